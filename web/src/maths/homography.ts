/** The homography that most matches agree with: random samples of four, then least squares on those that agree. */

import { randomNumbers } from "./matcher";

/** Three rows of three numbers, one after the other. */
export type Matrix = number[];

export interface Homography {
  matrix: Matrix | null;
  inliers: boolean[];
}

const CONFIDENCE = 0.9999;
const MOST_SAMPLES = 2000;
const POLISHES = 4;

/**
 * From (K, 2) points to (K, 2) others; those that lie within `threshold` pixels of where they should be agree.
 *
 * Fewer than four points, or points that determine none, give no matrix.
 */
export function estimateHomography(from: Float32Array, to: Float32Array, threshold: number): Homography {
  const count = from.length / 2, random = randomNumbers(0);
  let best: Matrix | null = null, least = Infinity, samples = MOST_SAMPLES;
  for (let sample = 0; count >= 4 && sample < samples; sample++) {
    const matrix = solve(from, to, draw(random, count));
    if (!matrix) continue;
    const cost = costOf(matrix, from, to, threshold);
    if (cost >= least) continue;
    [best, least] = polish(matrix, cost, from, to, threshold);
    const share = inliersOf(best, from, to, threshold).length / count;
    samples = Math.min(MOST_SAMPLES, Math.log(1 - CONFIDENCE) / Math.log(Math.max(1e-12, 1 - share ** 4)));
  }
  const inliers = new Array<boolean>(count).fill(false);
  const agreeing = best ? inliersOf(best, from, to, threshold) : [];
  if (agreeing.length < 4) return { matrix: null, inliers };
  for (const k of agreeing) inliers[k] = true;
  return { matrix: best!.map((value) => value / best![8]), inliers };
}

export function project(matrix: Matrix, x: number, y: number): [number, number] {
  const w = matrix[6] * x + matrix[7] * y + matrix[8];
  return [(matrix[0] * x + matrix[1] * y + matrix[2]) / w, (matrix[3] * x + matrix[4] * y + matrix[5]) / w];
}

export function multiply(a: Matrix, b: Matrix): Matrix {
  return Array.from({ length: 9 }, (_, k) => {
    const row = 3 * Math.floor(k / 3), column = k % 3;
    return a[row] * b[column] + a[row + 1] * b[3 + column] + a[row + 2] * b[6 + column];
  });
}

function draw(random: () => number, count: number): number[] {
  const drawn = new Set<number>();
  while (drawn.size < 4) drawn.add(Math.floor(random() * count));
  return [...drawn];
}

/** Squared distances, no more than that of the threshold each. */
function costOf(matrix: Matrix, from: Float32Array, to: Float32Array, threshold: number): number {
  let cost = 0;
  for (let k = 0; k < from.length; k += 2) cost += Math.min(distance2(matrix, from, to, k), threshold * threshold);
  return cost;
}

function inliersOf(matrix: Matrix, from: Float32Array, to: Float32Array, threshold: number): number[] {
  const found: number[] = [];
  for (let k = 0; k < from.length; k += 2) {
    if (distance2(matrix, from, to, k) < threshold * threshold) found.push(k / 2);
  }
  return found;
}

function distance2(m: Matrix, from: Float32Array, to: Float32Array, k: number): number {
  const x = from[k], y = from[k + 1], w = m[6] * x + m[7] * y + m[8];
  const dx = (m[0] * x + m[1] * y + m[2]) / w - to[k], dy = (m[3] * x + m[4] * y + m[5]) / w - to[k + 1];
  return dx * dx + dy * dy;
}

/** Least squares on what agrees, as long as that lowers the cost. */
function polish(
  matrix: Matrix, cost: number, from: Float32Array, to: Float32Array, threshold: number,
): [Matrix, number] {
  for (let step = 0; step < POLISHES; step++) {
    const better = solve(from, to, inliersOf(matrix, from, to, threshold));
    const lower = better ? costOf(better, from, to, threshold) : Infinity;
    if (lower >= cost) break;
    [matrix, cost] = [better!, lower];
  }
  return [matrix, cost];
}

/** The homography of some points by least squares, in coordinates of mean 0 and distance 1 from it. */
function solve(from: Float32Array, to: Float32Array, indices: number[]): Matrix | null {
  if (indices.length < 4) return null;
  const [normal0, normal1] = [normalisation(from, indices), normalisation(to, indices)];
  const normal = Array.from({ length: 8 }, () => new Float64Array(9)); // of the equations, and their right side
  for (const k of indices) {
    const [x, y] = normal0.apply(from[2 * k], from[2 * k + 1]), [u, v] = normal1.apply(to[2 * k], to[2 * k + 1]);
    for (const row of [
      [x, y, 1, 0, 0, 0, -u * x, -u * y, u],
      [0, 0, 0, x, y, 1, -v * x, -v * y, v],
    ]) {
      for (let a = 0; a < 8; a++) for (let b = 0; b < 9; b++) normal[a][b] += row[a] * row[b];
    }
  }
  const solution = eliminate(normal);
  return solution && multiply(normal1.back, multiply([...solution, 1], normal0.matrix));
}

function normalisation(points: Float32Array, indices: number[]) {
  let x = 0, y = 0, spread = 0;
  for (const k of indices) [x, y] = [x + points[2 * k] / indices.length, y + points[2 * k + 1] / indices.length];
  for (const k of indices) spread += Math.hypot(points[2 * k] - x, points[2 * k + 1] - y) / indices.length;
  const scale = 1 / Math.max(spread, 1e-12);
  return {
    apply: (px: number, py: number): [number, number] => [scale * (px - x), scale * (py - y)],
    matrix: [scale, 0, -scale * x, 0, scale, -scale * y, 0, 0, 1],
    back: [1 / scale, 0, x, 0, 1 / scale, y, 0, 0, 1],
  };
}

/** Gauss: the solution of 8 equations, or null where they have no single one. */
function eliminate(rows: Float64Array[]): number[] | null {
  const size = rows.length;
  for (let column = 0; column < size; column++) {
    let pivot = column;
    for (let k = column + 1; k < size; k++) if (Math.abs(rows[k][column]) > Math.abs(rows[pivot][column])) pivot = k;
    if (Math.abs(rows[pivot][column]) < 1e-10) return null;
    [rows[column], rows[pivot]] = [rows[pivot], rows[column]];
    for (let k = 0; k < size; k++) {
      if (k === column) continue;
      const factor = rows[k][column] / rows[column][column];
      for (let b = column; b <= size; b++) rows[k][b] -= factor * rows[column][b];
    }
  }
  return rows.map((row, k) => row[size] / row[k]);
}
