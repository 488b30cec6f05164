/** The WebAssembly of assembly/kernels.ts, and its memory: one pair of photographs at a time. */

import type { Steerer } from "./steerer";

interface Exports {
  memory: WebAssembly.Memory;
  products(...numbers: number[]): void;
  largest(...numbers: number[]): void;
  blank(...numbers: number[]): void;
  sums(...numbers: number[]): void;
  best(...numbers: number[]): void;
  highest(...numbers: number[]): void;
}

const FIRST_ADDRESS = 4096;
const PAGE = 65536;
/** Most rotations that are tried. */
const MOST_ROTATIONS = 64;
const MOST_POINTS = 256;

export async function loadKernels(bytes: BufferSource): Promise<Kernels> {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  return new Kernels(instance.exports as unknown as Exports);
}

/** Where the arrays of a pair lie, as addresses. */
interface Layout {
  rows: number; // a multiple of 4
  stride: number; // columns, a multiple of 8
  coefficients: number; // (rows, waves, stride)
  scores: number; // (rows, stride)
  [name: string]: number;
}

export class Kernels {
  layout: Layout | null = null;
  private steerer!: Steerer;

  constructor(private readonly wasm: Exports) {}

  /** Compute the coefficients of all pairs of (N, D) and (M, D) descriptions; no turn changes them. */
  setPair(steerer: Steerer, descriptions0: Float32Array, descriptions1: Float32Array): void {
    const { dim, waves } = steerer;
    const rows = roundUp(descriptions0.length / dim, 4), stride = roundUp(descriptions1.length / dim, 8);
    this.steerer = steerer;
    const at = (this.layout = this.allocate(rows, stride));
    const arranged = this.floats(at.rowsOf, rows * dim).fill(0);
    const cosines = this.floats(at.cosines, dim * stride).fill(0), sines = this.floats(at.sines, dim * stride).fill(0);
    steerer.arrangeRows(descriptions0, arranged);
    steerer.arrangeColumns(descriptions1, stride, cosines, sines);
    steerer.products.forEach(({ start, size, sine }, k) => {
      const columns = (sine ? at.sines : at.cosines) + 4 * start * stride;
      const out = at.coefficients + 4 * k * stride;
      this.wasm.products(at.rowsOf + 4 * start, dim, columns, stride, size, out, waves.length * stride, rows);
    });
  }

  /** The coefficients of one pair. */
  coefficients(i: number, j: number): Float64Array {
    const { coefficients, stride, rows } = this.layout!, count = this.steerer.waves.length;
    const all = this.floats(coefficients, rows * count * stride), own = new Float64Array(count);
    for (let k = 0; k < count; k++) own[k] = all[(i * count + k) * stride + j];
    return own;
  }

  /** Scores of the first rows and columns: the largest similarity over some rotations, in radians. */
  largest(rotations: readonly number[], rows: number, columns: number): void {
    const { steerer, layout } = this, { waves } = steerer, at = layout!;
    const opposites = inOpposites(rotations);
    const tried = opposites ? rotations.slice(0, rotations.length / 2) : rotations;
    if (tried.length > MOST_ROTATIONS) throw new Error(`at most ${MOST_ROTATIONS} rotations are tried`);
    const fourfold = tried.flatMap((angle) => [...steerer.wavesAt(angle)].flatMap((wave) => [wave, wave, wave, wave]));
    this.floats(at.weights, fourfold.length).set(fourfold);
    const padded = roundUp(columns, 8);
    this.wasm.largest(
      at.coefficients, waves.length, steerer.even, at.weights, tried.length, opposites ? 1 : 0,
      rows, padded, at.stride, at.scores,
    );
    this.wasm.blank(at.scores, rows, columns, padded, at.stride);
  }

  /** Scores of all: the largest similarity over every rotation. */
  highest(points: number, rows: number, columns: number): void {
    const { steerer, layout } = this, { waves } = steerer, at = layout!;
    if (points > MOST_POINTS) throw new Error("a frequency is too high");
    const values = this.doubles(at.grid, points * waves.length);
    for (let l = 0; l < points; l++) values.set(steerer.wavesAt((2 * Math.PI * l) / points), l * waves.length);
    this.doubles(at.frequencies, waves.length).set(waves.map((wave) => wave.frequency));
    this.wasm.highest(
      at.coefficients, waves.length, at.grid, at.frequencies, points, Math.PI / points,
      rows, columns, at.stride, at.scores, at.room,
    );
    this.wasm.blank(at.scores, rows, columns, roundUp(columns, 8), at.stride);
  }

  /** The dual softmax of the scores: logarithmic sums of rows and columns, and the most probable of each. */
  assign(rows: number, columns: number, scale: number): Assigned {
    const at = this.layout!, padded = roundUp(columns, 8);
    this.wasm.sums(at.scores, rows, padded, at.stride, scale, at.rowLogs, at.columnLogs);
    const rowLogs = takeLogs(this.floats(at.rowLogs, rows)), columnLogs = takeLogs(this.floats(at.columnLogs, padded));
    const tie = 8 * 2 ** -23 * scale + 1e-6;
    this.wasm.best(
      at.scores, rows, padded, at.stride, 2 * scale, tie, at.rowLogs, at.columnLogs,
      at.rowBest, at.columnBest, at.bestRow,
    );
    const rowBest = this.integers(at.rowBest, rows), columnBest = this.integers(at.bestRow, columns);
    return { rowLogs, columnLogs, rowBest, columnBest };
  }

  /** A view of the scores, (rows, stride). */
  get scores(): Float32Array {
    return this.floats(this.layout!.scores, this.layout!.rows * this.layout!.stride);
  }

  private allocate(rows: number, stride: number): Layout {
    const { dim, waves } = this.steerer;
    let next = FIRST_ADDRESS;
    const take = (bytes: number): number => {
      const address = next;
      next = roundUp(next + bytes, 16);
      return address;
    };
    const layout: Layout = {
      rows,
      stride,
      coefficients: take(4 * rows * waves.length * stride),
      scores: take(4 * rows * stride),
      rowsOf: take(4 * rows * dim),
      cosines: take(4 * dim * stride),
      sines: take(4 * dim * stride),
      rowLogs: take(4 * rows),
      columnLogs: take(4 * stride),
      rowBest: take(4 * rows),
      columnBest: take(4 * stride),
      bestRow: take(4 * stride),
      weights: take(16 * MOST_ROTATIONS * waves.length),
      frequencies: take(8 * waves.length),
      grid: take(8 * MOST_POINTS * waves.length),
      room: take(8 * (MOST_POINTS + waves.length)),
    };
    const missing = next - this.wasm.memory.buffer.byteLength;
    if (missing > 0) this.wasm.memory.grow(Math.ceil(missing / PAGE));
    return layout;
  }

  private floats(address: number, length: number): Float32Array {
    return new Float32Array(this.wasm.memory.buffer, address, length);
  }

  private doubles(address: number, length: number): Float64Array {
    return new Float64Array(this.wasm.memory.buffer, address, length);
  }

  private integers(address: number, length: number): Int32Array {
    return new Int32Array(this.wasm.memory.buffer, address, length);
  }
}

/** Views of the kernels' memory, which the next call overwrites. */
export interface Assigned {
  rowLogs: Float32Array;
  columnLogs: Float32Array;
  rowBest: Int32Array; // the most probable column of each row
  columnBest: Int32Array; // and row of each column
}

const roundUp = (value: number, multiple: number): number => Math.ceil(value / multiple) * multiple;

function takeLogs(values: Float32Array): Float32Array {
  for (let k = 0; k < values.length; k++) values[k] = Math.log(values[k]);
  return values;
}

/** Whether the second half of the rotations is the first, each half a turn further. */
function inOpposites(rotations: readonly number[]): boolean {
  const half = rotations.length / 2;
  return (
    Number.isInteger(half) && half > 0 &&
    rotations.slice(0, half).every((angle, k) => Math.abs(rotations[half + k] - angle - Math.PI) < 1e-9)
  );
}
