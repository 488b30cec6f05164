/** Angles, maps of pixels, shrinking and homographies, against Python's outputs. */

import { expect, test } from "vitest";

import { circularMode, wrapDegrees, wrapRadians } from "../src/maths/angles";
import { invert, mapPoints, turnAboutCentre } from "../src/maths/geometry";
import { estimateHomography } from "../src/maths/homography";
import { lanczos, turnTensor } from "../src/pictures/resample";
import { bytes, expectNear, fixture, floats } from "./fixture";

test.each(fixture.modes as any[])("where most angles lie", ({ angles, weights, mode }) => {
  const found = circularMode(angles, weights);
  expectNear([Math.cos(found), Math.sin(found)], [Math.cos(mode), Math.sin(mode)]);
});

test("wrapping", () => {
  expect([180, -180, 190, -190, 540].map(wrapDegrees)).toEqual([180, 180, -170, 170, 180]);
  expectNear([Math.PI, 4, -4].map(wrapRadians), [-Math.PI, 4 - 2 * Math.PI, 2 * Math.PI - 4], 1e-12);
});

test.each(fixture.turned as any[])("a picture turned by $angle", ({ angle, size, image, turned, canvas, map }) => {
  const found = turnTensor(floats(image), size, angle);
  expect(found.canvas).toEqual(canvas);
  expectNear(found.map, map, 1e-9);
  expectNear(found.tensor, floats(turned));
  const points = Float32Array.of(1, 2, 8, 0);
  expectNear(mapPoints(invert(found.map), mapPoints(turnAboutCentre(size, angle).map, points)), points, 1e-5);
});

test("shrinking, to one level of 255", () => {
  const { width, height, pixels, size, shrunk } = fixture.shrunk;
  const found = lanczos({ width, height, data: bytes(pixels) }, size);
  expectNear(found.data, bytes(shrunk), 1);
  const off = found.data.filter((level, k) => level !== bytes(shrunk)[k]).length;
  expect(off / found.data.length).toBeLessThan(0.01);
});

test("a homography, among outliers", () => {
  const { points0, points1, matrix, inliers } = fixture.homography;
  const found = estimateHomography(floats(points0), floats(points1), 3);
  expect(found.inliers).toEqual(inliers);
  const corners = [[0, 0], [600, 0], [0, 600], [600, 600]];
  for (const [x, y] of corners) {
    const at = (m: number[]): number[] => {
      const w = m[6] * x + m[7] * y + m[8];
      return [(m[0] * x + m[1] * y + m[2]) / w, (m[3] * x + m[4] * y + m[5]) / w];
    };
    expectNear(at(found.matrix!), at(matrix), 0.5); // pixels: least squares here, weights by MAGSAC there
  }
});

test("points that determine no homography", () => {
  expect(estimateHomography(new Float32Array(6), new Float32Array(6), 3).matrix).toBeNull();
  const line = Float32Array.from({ length: 40 }, (_, k) => Math.floor(k / 2));
  expect(estimateHomography(line, line, 3).matrix).toBeNull();
});
