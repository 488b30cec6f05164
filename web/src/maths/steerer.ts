/**
 * A fixed steerer: how descriptions change when the picture turns.
 *
 * Coordinates of frequency 0 stay; each two neighbours of frequency f turn by f times the angle. The similarity of one
 * description, turned by t, with another is then a sum of waves in t, whose coefficients are plain products over the
 * coordinates of one frequency: see src/steerers/matching/harmonics.py.
 */

/** The coordinates of one frequency: x of every block, then y with its sign. */
interface Band {
  frequency: number;
  x: number[];
  y: number[];
  signs: number[]; // -1 where a block turns the other way
}

/** A wave cos(frequency t) or sin(frequency t), or the constant. */
export interface Wave {
  frequency: number;
  sine: boolean;
}

/** What makes the coefficients of a wave: products over `size` coordinates from `start`. */
export interface Product {
  start: number;
  size: number;
  sine: boolean;
}

export class Steerer {
  readonly dim: number;
  /** The frequencies there are, those that are even first. */
  readonly bands: number[];
  /** Of each frequency a cosine and a sine; of 0 the constant. */
  readonly waves: Wave[] = [];
  readonly products: Product[] = [];
  /** How many waves, which come first, are of even frequency. */
  readonly even: number;
  /** The highest frequency. */
  readonly top: number;
  private readonly coordinates: Band[];

  /** @param frequencies of each coordinate, as in the model's metadata. */
  constructor(readonly frequencies: readonly number[]) {
    this.dim = frequencies.length;
    this.coordinates = coordinatesOf(frequencies);
    this.bands = this.coordinates.map(({ frequency }) => frequency);
    let start = 0;
    for (const { frequency, x, y } of this.coordinates) {
      const size = x.length + y.length;
      for (const sine of y.length ? [false, true] : [false]) {
        this.waves.push({ frequency, sine });
        this.products.push({ start, size, sine });
      }
      start += size;
    }
    this.even = this.waves.filter((wave) => wave.frequency % 2 === 0).length;
    this.top = Math.max(...this.bands);
  }

  /** Whether all turn once with the picture, so that two descriptions can be aligned in closed form. */
  get isFrequency1(): boolean {
    return this.frequencies.every((frequency) => Math.abs(frequency) === 1);
  }

  /** Descriptions of the picture turned counter-clockwise by an angle in radians: (N, D) to (N, D). */
  steer(descriptions: Float32Array, angle: number): Float32Array {
    const turned = descriptions.slice();
    for (let d = 0; d < this.dim; ) {
      const frequency = this.frequencies[d];
      if (frequency === 0) {
        d += 1;
        continue;
      }
      const cos = Math.cos(frequency * angle), sin = Math.sin(frequency * angle);
      for (let at = d; at < descriptions.length; at += this.dim) {
        const x = descriptions[at], y = descriptions[at + 1];
        turned[at] = cos * x - sin * y;
        turned[at + 1] = sin * x + cos * y;
      }
      d += 2;
    }
    return turned;
  }

  /** Every wave at an angle. */
  wavesAt(angle: number): Float64Array {
    return Float64Array.from(this.waves, ({ frequency, sine }) =>
      sine ? Math.sin(frequency * angle) : Math.cos(frequency * angle),
    );
  }

  /** (N, D) unit descriptions, coordinates sorted by frequency: the rows of the products. */
  arrangeRows(descriptions: Float32Array, into: Float32Array): void {
    for (let i = 0; i * this.dim < descriptions.length; i++) {
      const scale = 1 / Math.max(norm(descriptions, i * this.dim, this.dim), 1e-12);
      let to = i * this.dim;
      for (const { x, y, signs } of this.coordinates) {
        for (const d of x) into[to++] = scale * descriptions[i * this.dim + d];
        y.forEach((d, k) => (into[to++] = scale * signs[k] * descriptions[i * this.dim + d]));
      }
    }
  }

  /**
   * The same as columns, (D, stride), and what they are multiplied with for sines, (D, stride).
   *
   * A column (u, v) of a block has the sine (v, -u); where nothing turns there is none.
   */
  arrangeColumns(descriptions: Float32Array, stride: number, cosines: Float32Array, sines: Float32Array): void {
    for (let j = 0; j * this.dim < descriptions.length; j++) {
      const at = j * this.dim, scale = 1 / Math.max(norm(descriptions, at, this.dim), 1e-12);
      let row = 0;
      for (const { x, y, signs } of this.coordinates) {
        for (let k = 0; k < x.length; k++) {
          const u = scale * descriptions[at + x[k]];
          cosines[(row + k) * stride + j] = u;
          if (!y.length) continue;
          const v = scale * signs[k] * descriptions[at + y[k]];
          cosines[(row + x.length + k) * stride + j] = v;
          sines[(row + k) * stride + j] = v;
          sines[(row + x.length + k) * stride + j] = -u;
        }
        row += x.length + y.length;
      }
    }
  }

  /** The complex numbers of a description, by frequency: what turns with the picture, and how fast. */
  spectrum(description: Float32Array): { frequency: number; magnitude: number; phase: number }[] {
    return this.coordinates.flatMap(({ frequency, x, y, signs }) =>
      x.map((d, k) => {
        const re = description[d], im = y.length ? signs[k] * description[y[k]] : 0;
        return { frequency, magnitude: Math.hypot(re, im), phase: Math.atan2(im, re) };
      }),
    );
  }
}

function coordinatesOf(frequencies: readonly number[]): Band[] {
  const bands = new Map<number, Band>();
  for (let d = 0; d < frequencies.length; ) {
    const frequency = Math.abs(frequencies[d]);
    if (!bands.has(frequency)) bands.set(frequency, { frequency, x: [], y: [], signs: [] });
    const band = bands.get(frequency)!;
    band.x.push(d++);
    if (frequency === 0) continue;
    if (frequencies[d] !== frequencies[d - 1]) throw new Error(`coordinate ${d - 1} has no neighbour of its frequency`);
    band.signs.push(Math.sign(frequencies[d]));
    band.y.push(d++);
  }
  return [...bands.values()].sort((a, b) => (a.frequency % 2) - (b.frequency % 2) || a.frequency - b.frequency);
}

function norm(values: Float32Array, start: number, length: number): number {
  let sum = 0;
  for (let k = start; k < start + length; k++) sum += values[k] * values[k];
  return Math.sqrt(sum);
}
