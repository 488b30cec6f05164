/** Steering, similarities over rotations, and every strategy, against Python's outputs. */

import { beforeAll, describe, expect, test } from "vitest";

import type { Kernels } from "../src/maths/kernels";
import { Matcher, type Options, refusal, rotationsOf } from "../src/maths/matcher";
import { POINTS, evaluate } from "../src/maths/polynomial";
import { Steerer } from "../src/maths/steerer";
import { expectNear, fixture, floats, kernels } from "./fixture";

interface Steering {
  spec: string;
  frequencies: number[];
  descriptions0: string;
  descriptions1: string;
  steered: { angle: number; descriptions: string }[];
  largest: string;
  highest: string;
}

interface Matching {
  spec: string;
  turn: number;
  options: Options;
  indices: [number, number][];
  scores: number[];
  angle: number | null;
  angles: number[] | null;
}

const given = (spec: string): Steering => fixture.steering.find((case_: Steering) => case_.spec === spec);
let loaded: Kernels;
beforeAll(async () => (loaded = await kernels()));

function scores(rows: number, columns: number): Float32Array {
  const { stride } = loaded.layout!, all = loaded.scores;
  return Float32Array.from({ length: rows * columns }, (_, k) => all[Math.floor(k / columns) * stride + (k % columns)]);
}

/** Places of the matches, by the keypoint of the first picture: those of like probability come in any order. */
function byKeypoint(first: Int32Array): number[] {
  return Array.from(first, (_, k) => k).sort((a, b) => first[a] - first[b]);
}

describe.each(fixture.steering as Steering[])("$spec", (case_) => {
  const steerer = new Steerer(case_.frequencies);
  const first = floats(case_.descriptions0), second = floats(case_.descriptions1);
  const [rows, columns] = [first.length / steerer.dim, second.length / steerer.dim];

  test.each(case_.steered)("steering by $angle", ({ angle, descriptions }) => {
    expectNear(steerer.steer(second, angle), floats(descriptions));
  });

  test("the largest similarity over sixteen rotations", () => {
    loaded.setPair(steerer, first, second);
    loaded.largest(rotationsOf(16), rows, columns);
    expectNear(scores(rows, columns), floats(case_.largest));
  });

  test("the largest similarity over every rotation", () => {
    loaded.setPair(steerer, first, second);
    loaded.highest(POINTS * steerer.top, rows, columns);
    expectNear(scores(rows, columns), floats(case_.highest));
  });

  test("the curve of a pair is the cosine after steering", () => {
    loaded.setPair(steerer, first, second);
    for (const angle of [0, 0.3, -2]) {
      const steered = steerer.steer(first, angle);
      const dot = (a: Float32Array, i: number, b: Float32Array, j: number): number =>
        a.slice(i * steerer.dim, (i + 1) * steerer.dim).reduce((sum, x, d) => sum + x * b[j * steerer.dim + d], 0);
      for (const [i, j] of [[0, 0], [7, 30], [rows - 1, columns - 1]]) {
        const cosine = dot(steered, i, second, j) / Math.sqrt(dot(first, i, first, i) * dot(second, j, second, j));
        expectNear([evaluate(steerer, loaded.coefficients(i, j), angle).value], [cosine], 1e-5);
      }
    }
  });
});

test.each(fixture.matching as Matching[])(
  "$options.strategy of order $options.order, turned by $turn ($spec)",
  ({ spec, turn, options, indices, scores, angle, angles }) => {
    const { frequencies, descriptions0, descriptions1 } = given(spec);
    const matcher = new Matcher(loaded, new Steerer(frequencies));
    matcher.setPair(floats(descriptions0), floats(descriptions1));
    const found = matcher.match(turn, options);
    expect(indices.length, "the fixture must have matches").toBeGreaterThan(10);
    expect([...found.scores]).toEqual([...found.scores].sort((a, b) => b - a));
    const expected = byKeypoint(Int32Array.from(indices, ([i]) => i)), own = byKeypoint(found.first);
    expect(own.map((k) => [found.first[k], found.second[k]])).toEqual(expected.map((k) => indices[k]));
    expectNear(own.map((k) => found.scores[k]), expected.map((k) => scores[k]));
    if (angles === null) expect(found.angles).toBeNull();
    else expectNear(own.map((k) => found.angles![k]), expected.map((k) => angles[k]));
    if (angle === null) expect(found.angle).toBeNull();
    else expectNear([Math.cos(found.angle!), Math.sin(found.angle!)], [Math.cos(angle), Math.sin(angle)]);
  },
);

test("turning is the same as matching what was steered", () => {
  const { frequencies, descriptions0, descriptions1 } = given(fixture.steering[0].spec);
  const steerer = new Steerer(frequencies), matcher = new Matcher(loaded, steerer);
  const options: Options = { strategy: "max-similarity", order: 16, inverseTemperature: 20, threshold: 0.05 };
  for (const turn of [0.1, 1.9, -2.9]) {
    matcher.setPair(floats(descriptions0), floats(descriptions1));
    const turned = matcher.match(turn, options);
    matcher.setPair(floats(descriptions0), steerer.steer(floats(descriptions1), turn));
    const steered = matcher.match(0, options);
    const one = byKeypoint(turned.first), other = byKeypoint(steered.first);
    expect(one.map((k) => [turned.first[k], turned.second[k]])).toEqual(
      other.map((k) => [steered.first[k], steered.second[k]]),
    );
    expectNear(one.map((k) => turned.scores[k]), other.map((k) => steered.scores[k]), 1e-5);
    expectNear(one.map((k) => turned.angles![k]), other.map((k) => steered.angles![k]), 1e-5);
    expectNear(turned.curve!, steered.curve!, 1e-5);
  }
});

test("many descriptions: the subset is drawn, and indices are those that were given", () => {
  const steerer = new Steerer([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]), matcher = new Matcher(loaded, steerer);
  let state = 1;
  const random = (): number => (state = (state * 16807) % 2147483647) / 2147483647 - 0.5;
  const first = Float32Array.from({ length: 1100 * steerer.dim }, random);
  matcher.setPair(first, steerer.steer(first, Math.PI / 2));
  const options: Options = { strategy: "subset", order: 8, inverseTemperature: 60, threshold: 0.01 };
  const found = matcher.match(0.5, options);
  expect(found.first.length).toBeGreaterThan(500);
  const right = found.first.filter((i, k) => i === found.second[k]).length;
  expect(right / found.first.length).toBeGreaterThan(0.9);
  expectNear([found.angle!], [Math.PI / 2 + 0.5], 0.02);
  const near = matcher.neighbours(1, 1099, 0.5, { ...options, strategy: "max-similarity" }, 3);
  expect(near[0].index).toBe(1099);
  expect(near[0].similarity).toBeGreaterThan(near[1].similarity);
});

test("no descriptions at all make no matches", () => {
  const steerer = new Steerer([0, 1, 1]), matcher = new Matcher(loaded, steerer);
  matcher.setPair(new Float32Array(0), new Float32Array(6));
  const found = matcher.match(1, { strategy: "max-matches", order: 8, inverseTemperature: 20, threshold: 0 });
  expect([found.first.length, found.angle, found.curve]).toEqual([0, null, null]);
});

test("procrustes is refused where it is not defined", () => {
  expect(refusal("procrustes", new Steerer([0, 1, 1]))).toContain("turn once");
  expect(refusal("procrustes", new Steerer([1, 1]))).toBeNull();
  expect(() => new Steerer([1, 2])).toThrow("neighbour");
});
