/** Shrinking as Pillow does it (Lanczos, in 8 bits), and turning as geometry.py does: the network's own pictures. */

import { type Affine, type Size, invert, turnAboutCentre } from "../maths/geometry";

/** RGB in 8 bits, row by row. */
export interface Pixels extends Size {
  data: Uint8ClampedArray | Uint8Array; // 3 x width x height
}

const SUPPORT = 3;

/** Shrink to a size; first along rows, then along columns, each rounded to 8 bits. */
export function lanczos(pixels: Pixels, size: Size): Pixels {
  if (size.width === pixels.width && size.height === pixels.height) return pixels;
  return columns(rows(pixels, size.width), size.height);
}

function rows(pixels: Pixels, width: number): Pixels {
  const { height } = pixels, taps = weights(pixels.width, width), data = new Uint8ClampedArray(3 * width * height);
  for (let y = 0; y < height; y++) {
    const from = 3 * y * pixels.width;
    for (let x = 0; x < width; x++) {
      const { start, values } = taps[x];
      let r = 0, g = 0, b = 0;
      for (let k = 0, at = from + 3 * start; k < values.length; k++, at += 3) {
        r += values[k] * pixels.data[at];
        g += values[k] * pixels.data[at + 1];
        b += values[k] * pixels.data[at + 2];
      }
      const to = 3 * (y * width + x);
      data[to] = Math.floor(r + 0.5);
      data[to + 1] = Math.floor(g + 0.5);
      data[to + 2] = Math.floor(b + 0.5);
    }
  }
  return { width, height, data };
}

function columns(pixels: Pixels, height: number): Pixels {
  const line = 3 * pixels.width, data = new Uint8ClampedArray(line * height);
  weights(pixels.height, height).forEach(({ start, values }, y) => {
    for (let x = 0; x < line; x++) {
      let sum = 0;
      for (let k = 0; k < values.length; k++) sum += values[k] * pixels.data[(start + k) * line + x];
      data[y * line + x] = Math.floor(sum + 0.5);
    }
  });
  return { width: pixels.width, height, data };
}

/** Of each new pixel: the first old one that counts, and how much each does. */
function weights(old: number, size: number): { start: number; values: Float64Array }[] {
  const scale = old / size, stretch = Math.max(scale, 1), support = SUPPORT * stretch;
  return Array.from({ length: size }, (_, at) => {
    const centre = (at + 0.5) * scale;
    const start = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(old, Math.trunc(centre + support + 0.5));
    const values = Float64Array.from({ length: end - start }, (_, k) => window((start + k - centre + 0.5) / stretch));
    const total = values.reduce((sum, value) => sum + value, 0);
    return { start, values: values.map((value) => value / total) };
  });
}

function window(x: number): number {
  return Math.abs(x) < SUPPORT ? sinc(x) * sinc(x / SUPPORT) : 0;
}

const sinc = (x: number): number => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** (3, H, W) floats in [0, 1], as the network takes them. */
export function toTensor({ width, height, data }: Pixels): Float32Array {
  const area = width * height, tensor = new Float32Array(3 * area);
  for (let k = 0; k < area; k++) {
    for (let c = 0; c < 3; c++) tensor[c * area + k] = data[3 * k + c] / 255;
  }
  return tensor;
}

/**
 * Turn counter-clockwise by an angle in radians onto a canvas that holds all of it; what lies outside is mid-grey.
 *
 * Quarter turns move pixels, others sample bilinearly, and the outermost half pixel blends into the grey.
 */
export function turnTensor(
  tensor: Float32Array, size: Size, angle: number,
): { tensor: Float32Array; map: Affine; canvas: Size } {
  const { map, canvas } = turnAboutCentre(size, angle), [a, b, c, d, e, f] = invert(map);
  const turned = new Float32Array(3 * canvas.width * canvas.height), area = size.width * size.height;
  const GREY = 0.5;
  const at = (channel: number, x: number, y: number): number =>
    x < 0 || y < 0 || x >= size.width || y >= size.height ? GREY : tensor[channel * area + y * size.width + x];
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      const u = a * x + b * y + c, v = d * x + e * y + f;
      const left = Math.floor(u + 1e-9), top = Math.floor(v + 1e-9);
      const right = Math.max(0, u - left), below = Math.max(0, v - top);
      for (let channel = 0; channel < 3; channel++) {
        const upper = (1 - right) * at(channel, left, top) + right * at(channel, left + 1, top);
        const lower = (1 - right) * at(channel, left, top + 1) + right * at(channel, left + 1, top + 1);
        turned[(channel * canvas.height + y) * canvas.width + x] = (1 - below) * upper + below * lower;
      }
    }
  }
  return { tensor: turned, map, canvas };
}
