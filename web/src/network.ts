/** The network: from pictures to keypoints and descriptions, by onnxruntime on the GPU or, without one, on the CPU. */

import type { InferenceSession, Tensor } from "onnxruntime-web/wasm";

import type { Size } from "./maths/geometry";

export interface Features {
  keypoints: Float32Array; // (N, 2) pixels of what the network saw, the best first
  scores: Float32Array; // (N,)
  descriptions: Float32Array; // (N, D)
}

export type Backend = "webgpu" | "wasm";
type Ort = typeof import("onnxruntime-web/wasm");

const INPUT = "image";

export class Network {
  /** What is being described: one picture after the other. */
  private last: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly ort: Ort,
    private readonly session: InferenceSession,
    readonly backend: Backend,
    readonly threads: number,
  ) {}

  /** Make a session of a model by a library whose files are set up. */
  static async create(ort: Ort, model: Uint8Array, backend: Backend, threads: number): Promise<Network> {
    ort.env.wasm.numThreads = threads;
    ort.env.logLevel = "error";
    const session = await ort.InferenceSession.create(model, {
      executionProviders: [backend], graphOptimizationLevel: "all", logSeverityLevel: 3,
    });
    return new Network(ort, session, backend, threads);
  }

  /** Keypoints and descriptions of a (3, H, W) picture in [0, 1]. */
  describe(tensor: Float32Array, size: Size): Promise<Features> {
    const described = this.last.then(() => this.run(tensor, size));
    this.last = described.catch(() => {});
    return described;
  }

  private async run(tensor: Float32Array, { width, height }: Size): Promise<Features> {
    const image = new this.ort.Tensor("float32", tensor, [1, 3, height, width]);
    const outputs = await this.session.run({ [INPUT]: image });
    const [keypoints, scores, descriptions] = await Promise.all(
      ["keypoints", "scores", "descriptions"].map((name) => read(outputs[name])),
    );
    const found = scores.findIndex((score) => score < 0), count = found < 0 ? scores.length : found;
    const dim = descriptions.length / scores.length;
    return {
      keypoints: keypoints.slice(0, 2 * count),
      scores: scores.slice(0, count),
      descriptions: descriptions.slice(0, dim * count),
    };
  }
}

async function read(tensor: Tensor): Promise<Float32Array> {
  return (await tensor.getData(true)) as Float32Array;
}

/** Those of some features whose keypoints are wanted. */
export function selectFeatures(features: Features, wanted: (x: number, y: number) => boolean): Features {
  const { keypoints, scores, descriptions } = features, dim = descriptions.length / Math.max(scores.length, 1);
  const kept = [...scores.keys()].filter((k) => wanted(keypoints[2 * k], keypoints[2 * k + 1]));
  const gather = (values: Float32Array, size: number): Float32Array => {
    const gathered = new Float32Array(kept.length * size);
    kept.forEach((from, to) => gathered.set(values.subarray(from * size, (from + 1) * size), to * size));
    return gathered;
  };
  return { keypoints: gather(keypoints, 2), scores: gather(scores, 1), descriptions: gather(descriptions, dim) };
}
