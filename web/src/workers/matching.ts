/** The worker that matches: for every turn of the dial, everything anew but the network. */

import kernelsUrl from "../../assembly/build/kernels.wasm?url";
import { type Size, mapPoints, turnAboutCentre } from "../maths/geometry";
import { type Homography, estimateHomography } from "../maths/homography";
import { loadKernels } from "../maths/kernels";
import { type Found, Matcher, type Neighbour, type Options } from "../maths/matcher";
import { Steerer } from "../maths/steerer";
import { expose } from "./rpc";

/** Of an inlier, in pixels of what the network saw, as `steerers match` has it. */
const THRESHOLD = 3;

interface Side {
  keypoints: Float32Array;
  descriptions: Float32Array;
  size: Size;
}

export interface Result extends Found {
  homography: Homography; // from pixels of the first picture to those of the second, turned
  ms: number;
}

/** `steered`: by the dial; `again`: described again, of pixels that were turned. */
export type Way = "steered" | "again";

let steerer: Steerer;
const matchers = new Map<Way, { matcher: Matcher; sides: [Side, Side] }>();
let make: () => Promise<Matcher>;

const handlers = {
  async load(frequencies: number[]): Promise<void> {
    steerer = new Steerer(frequencies);
    const bytes = await (await fetch(kernelsUrl)).arrayBuffer();
    make = async () => new Matcher(await loadKernels(bytes), steerer);
    warmUp(await make());
  },

  /** Take the features of two pictures, of which so many of the best count; how long that takes. */
  async setPair(way: Way, first: Side, second: Side, count: number): Promise<number> {
    const start = performance.now(), sides: [Side, Side] = [best(first, count), best(second, count)];
    const matcher = matchers.get(way)?.matcher ?? (await make());
    matcher.setPair(sides[0].descriptions, sides[1].descriptions);
    matchers.set(way, { matcher, sides });
    return performance.now() - start;
  },

  /** Match the pair, with the second picture turned by `turn` radians, and its descriptions steered by `steering`. */
  match(way: Way, turn: number, steering: number, options: Options): Result {
    const { matcher, sides: [first, second] } = matchers.get(way)!, start = performance.now();
    const found = matcher.match(steering, options);
    const turned = mapPoints(turnAboutCentre(second.size, turn).map, second.keypoints);
    const matched0 = points(first.keypoints, found.first), matched1 = points(turned, found.second);
    const homography = estimateHomography(matched0, matched1, THRESHOLD);
    return { ...found, homography, ms: performance.now() - start };
  },

  /** What is most like one keypoint in the other picture, and its description as frequencies. */
  look(way: Way, side: 0 | 1, index: number, steering: number, options: Options): Look {
    const { matcher, sides } = matchers.get(way)!;
    const own = sides[side].descriptions.slice(index * steerer.dim, (index + 1) * steerer.dim);
    const neighbours = matcher.neighbours(side, index, steering, options, 3);
    return { neighbours, spectrum: steerer.spectrum(side ? steerer.steer(own, steering) : own) };
  },
};

export interface Look {
  neighbours: Neighbour[];
  spectrum: { frequency: number; magnitude: number; phase: number }[];
}

export type MatchingWorker = typeof handlers;
expose(handlers);

/** Browsers compile WebAssembly well once it has run a while: do so before somebody turns the dial. */
function warmUp(matcher: Matcher): void {
  const descriptions = Float32Array.from({ length: 96 * steerer.dim }, (_, k) => Math.sin(k * k));
  matcher.setPair(descriptions, descriptions);
  const options: Options = { strategy: "max-similarity", order: 16, inverseTemperature: 20, threshold: 0.05 };
  for (let turn = 0; turn < 40; turn++) matcher.match(turn, options);
}

const best = ({ keypoints, descriptions, size }: Side, count: number): Side => ({
  keypoints: keypoints.slice(0, 2 * count), descriptions: descriptions.slice(0, steerer.dim * count), size,
});

function points(all: Float32Array, indices: Int32Array): Float32Array {
  const chosen = new Float32Array(2 * indices.length);
  indices.forEach((index, k) => chosen.set(all.subarray(2 * index, 2 * index + 2), 2 * k));
  return chosen;
}
