/**
 * Pixels (x right, y down, the centre of the top-left one at (0, 0)) and rotations, positive counter-clockwise as seen.
 *
 * As src/steerers/geometry.py.
 */

export interface Size {
  width: number;
  height: number;
}

/** A map of pixels: x' = a x + b y + c, y' = d x + e y + f. */
export type Affine = readonly [number, number, number, number, number, number];

/** The map of pixels when a picture turns about its centre onto a canvas that holds all of it, and that canvas. */
export function turnAboutCentre(size: Size, angle: number): { map: Affine; canvas: Size } {
  const cos = snap(Math.cos(angle)), sin = snap(Math.sin(angle));
  const width = Math.ceil(Math.abs(cos) * size.width + Math.abs(sin) * size.height - 1e-6);
  const height = Math.ceil(Math.abs(sin) * size.width + Math.abs(cos) * size.height - 1e-6);
  const x = (size.width - 1) / 2, y = (size.height - 1) / 2;
  const map: Affine = [cos, sin, (width - 1) / 2 - cos * x - sin * y, -sin, cos, (height - 1) / 2 + sin * x - cos * y];
  return { map, canvas: { width, height } };
}

/** Quarter turns are exact. */
const snap = (value: number): number => (Math.abs(value - Math.round(value)) < 1e-9 ? Math.round(value) : value);

export function invert([a, b, c, d, e, f]: Affine): Affine {
  const det = a * e - b * d;
  return [e / det, -b / det, (b * f - c * e) / det, -d / det, a / det, (c * d - a * f) / det];
}

/** Map (N, 2) points. */
export function mapPoints([a, b, c, d, e, f]: Affine, points: Float32Array): Float32Array {
  const mapped = new Float32Array(points.length);
  for (let k = 0; k < points.length; k += 2) {
    mapped[k] = a * points[k] + b * points[k + 1] + c;
    mapped[k + 1] = d * points[k] + e * points[k + 1] + f;
  }
  return mapped;
}

/** From pixels of a picture of one size to those of it at another: edges go to edges. */
export function scaling(from: Size, to: Size): Affine {
  const x = to.width / from.width, y = to.height / from.height;
  return [x, 0, (x - 1) / 2, 0, y, (y - 1) / 2];
}

/** The size of a picture whose longest side is at most `side`; it is never enlarged. */
export function fitWithin(size: Size, side: number): Size {
  const longest = Math.max(size.width, size.height);
  if (longest <= side) return { ...size };
  const shrink = (extent: number): number => Math.max(1, Math.round((extent * side) / longest));
  return { width: shrink(size.width), height: shrink(size.height) };
}
