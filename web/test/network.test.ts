/** The network in onnxruntime's WebAssembly against PyTorch, on a picture of noise. */

import { existsSync, readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
import { expect, test } from "vitest";

import { type Features, Network, selectFeatures } from "../src/network";
import { toTensor } from "../src/pictures/resample";
import { bytes, fixture, floats } from "./fixture";

const MODEL = new URL("../static/model/compact.onnx", import.meta.url);

/** Each expected keypoint has one within 0.01 pixels, whose description has a cosine above 0.999. */
function expectAlike(found: Features, keypoints: Float32Array, descriptions: Float32Array): void {
  const dim = descriptions.length / (keypoints.length / 2);
  for (let k = 0; k < keypoints.length / 2; k++) {
    let nearest = 0, least = Infinity;
    for (let other = 0; other < found.scores.length; other++) {
      const distance = Math.hypot(
        found.keypoints[2 * other] - keypoints[2 * k], found.keypoints[2 * other + 1] - keypoints[2 * k + 1],
      );
      if (distance < least) [nearest, least] = [other, distance];
    }
    expect(least, `keypoint ${k}`).toBeLessThan(0.01);
    let dot = 0, own = 0, theirs = 0;
    for (let d = 0; d < dim; d++) {
      const a = descriptions[k * dim + d], b = found.descriptions[nearest * dim + d];
      [dot, own, theirs] = [dot + a * b, own + a * a, theirs + b * b];
    }
    expect(dot / Math.sqrt(own * theirs), `description ${k}`).toBeGreaterThan(0.999);
  }
}

test.skipIf(!existsSync(MODEL))("keypoints and descriptions are PyTorch's", async () => {
  const { width, height, pixels, keypoints, descriptions } = fixture.network;
  const network = await Network.create(ort, readFileSync(MODEL), "wasm", 1);
  const found = await network.describe(toTensor({ width, height, data: bytes(pixels) }), { width, height });
  expect(found.keypoints.length).toBe(2 * found.scores.length);
  expect(found.scores).toEqual(found.scores.slice().sort((a, b) => b - a));
  expectAlike(found, floats(keypoints), floats(descriptions));
});

test("features are selected by place", () => {
  const [keypoints, descriptions] = [Float32Array.of(1, 2, 9, 9), Float32Array.of(1, 2, 3, 4)];
  const features = { keypoints, scores: Float32Array.of(0.5, 0.4), descriptions };
  const kept = selectFeatures(features, (x) => x > 5);
  expect([[...kept.keypoints], [...kept.descriptions]]).toEqual([[9, 9], [3, 4]]);
});
