/** The worker that reads pictures and runs the network. */

import plainModule from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import plainBinary from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";
import gpuModule from "onnxruntime-web/ort-wasm-simd-threaded.jspi.mjs?url";
import gpuBinary from "onnxruntime-web/ort-wasm-simd-threaded.jspi.wasm?url";

import { type Affine, type Size, invert, mapPoints } from "../maths/geometry";
import { type Backend, type Features, Network, selectFeatures } from "../network";
import { readPicture } from "../pictures/decode";
import { toTensor, turnTensor } from "../pictures/resample";
import { expose, transfer } from "./rpc";

const MOST_THREADS = 8;
/** How far inside the border of a turned picture keypoints must lie, in pixels: the border itself is no part of it. */
const MARGIN = 2;

let network: Network;
const seen: { tensor: Float32Array; size: Size }[] = [];

const handlers = {
  /** Load library and model; say what it runs on. */
  async load(model: string, bytes: number, wanted: Backend | null): Promise<{ backend: Backend; threads: number }> {
    const gpu = wanted !== "wasm" && (await hasGpu());
    const loading = fetchBytes(model, bytes, "model");
    network = gpu
      ? await create("webgpu", loading).catch(() => create("wasm", loading))
      : await create("wasm", loading);
    return { backend: network.backend, threads: network.threads };
  },

  /** Read a file into the first or second place, no side longer than `side`, and describe it. */
  async open(place: 0 | 1, file: Blob, name: string, side: number) {
    const picture = await readPicture(file, name, side);
    const { width, height } = picture.pixels, size = { width, height };
    seen[place] = { tensor: toTensor(picture.pixels), size };
    const start = performance.now();
    const features = await network.describe(seen[place].tensor.slice(), size);
    const opened = { ...features, size, stored: picture.stored, shown: picture.shown, ms: performance.now() - start };
    return transfer(opened, picture.shown, ...buffers(features));
  },

  /** Turn the pixels of the second picture and describe it again; keypoints are those of the unturned picture. */
  async describeTurned(angle: number) {
    const { tensor, size } = seen[1], start = performance.now();
    const turned = turnTensor(tensor, size, angle);
    const found = await network.describe(turned.tensor, turned.canvas);
    const features = inside(found, turned.map, size);
    return transfer({ ...features, ms: performance.now() - start }, ...buffers(features));
  },

  /** Describe RGB pixels as they are. */
  describe(data: Uint8Array, width: number, height: number): Promise<Features> {
    return network.describe(toTensor({ data, width, height }), { width, height });
  },
};

export type NetworkWorker = typeof handlers;
expose(handlers);

/** Features whose keypoints lie in the picture, not in the corners around it, in its own pixels. */
function inside(features: Features, map: Affine, { width, height }: Size): Features {
  const own = { ...features, keypoints: mapPoints(invert(map), features.keypoints) };
  return selectFeatures(
    own, (x, y) => x >= MARGIN && y >= MARGIN && x <= width - 1 - MARGIN && y <= height - 1 - MARGIN,
  );
}

async function create(backend: Backend, model: Promise<Uint8Array>): Promise<Network> {
  const gpu = backend === "webgpu";
  const ort = gpu ? await import("onnxruntime-web/jspi") : await import("onnxruntime-web/wasm");
  const [module, binary] = gpu ? [gpuModule, gpuBinary] : [plainModule, plainBinary];
  const [bytes, library] = await Promise.all([model, fetchBytes(binary, 0, "library")]);
  ort.env.wasm.wasmPaths = { mjs: new URL(module, self.location.href).href };
  ort.env.wasm.wasmBinary = library.buffer as ArrayBuffer;
  const threads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, MOST_THREADS) : 1;
  return Network.create(ort as typeof import("onnxruntime-web/wasm"), bytes, backend, threads);
}

/** Whether there is a GPU to use; the library for it needs promises in WebAssembly (JSPI). */
async function hasGpu(): Promise<boolean> {
  if (!("gpu" in navigator) || !("Suspending" in WebAssembly)) return false;
  try {
    return Boolean(await (navigator as any).gpu.requestAdapter());
  } catch {
    return false;
  }
}

/** Fetch a file, and tell how far that is. */
async function fetchBytes(url: string, expected: number, what: string): Promise<Uint8Array> {
  const response = await fetch(url);
  if (!response.ok || !response.body) throw new Error(`cannot load ${what}: ${response.status}`);
  const total = expected || Number(response.headers.get("Content-Length")) || 0;
  const reader = response.body.getReader(), parts: Uint8Array[] = [];
  let loaded = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    loaded += part.value.length;
    self.postMessage({ news: { what, loaded, total: Math.max(total, loaded) } });
  }
  const bytes = new Uint8Array(loaded);
  parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 0);
  return bytes;
}

const buffers = ({ keypoints, scores, descriptions }: Features): ArrayBuffer[] =>
  [keypoints, scores, descriptions].map((values) => values.buffer as ArrayBuffer);
