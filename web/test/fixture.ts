/** What Python made of fixed inputs (make_fixture.py), and how near is near enough. */

import { readFileSync } from "node:fs";
import { expect } from "vitest";

import { type Kernels, loadKernels } from "../src/maths/kernels";

export const fixture = JSON.parse(readFileSync(new URL("fixture.json", import.meta.url), "utf8"));
export const NEAR = 1e-4;

export function bytes(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}

export function floats(text: string): Float32Array {
  return new Float32Array(bytes(text).buffer);
}

export async function kernels(): Promise<Kernels> {
  return loadKernels(readFileSync(new URL("../assembly/build/kernels.wasm", import.meta.url)));
}

/** Every number within NEAR of the expected one. */
export function expectNear(actual: ArrayLike<number>, expected: ArrayLike<number>, near = NEAR): void {
  expect(actual.length).toBe(expected.length);
  for (let k = 0; k < actual.length; k++) {
    if (!(Math.abs(actual[k] - expected[k]) <= near)) {
      expect.fail(`number ${k} is ${actual[k]} where Python has ${expected[k]}`);
    }
  }
}
