// The loops over all pairs of descriptions, as WebAssembly with SIMD (AssemblyScript).
//
// Everything lies in linear memory, laid out by src/maths/kernels.ts; arguments are addresses and counts of floats.
// Coefficients of the N x M similarities are [row][component][column], a row of M floats being a multiple of 8 long.
// Scores are [row][column]. Columns at the end that stand for nothing have the score NOTHING.

const NOTHING: f32 = -100;

/** out[i][j] = sum over d of a[i][d] b[d][j], for rows in fours and columns in eights. */
export function products(
  a: usize, aStride: usize, b: usize, columns: usize, dim: usize, out: usize, outStride: usize, rows: usize,
): void {
  const aStep = aStride << 2, bStep = columns << 2, outStep = outStride << 2;
  for (let i: usize = 0; i < rows; i += 4) {
    for (let j: usize = 0; j < columns; j += 8) {
      let c00 = f32x4.splat(0), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00, c30 = c00, c31 = c00;
      let at = a + i * aStep, from = b + (j << 2);
      for (let d: usize = 0; d < dim; d++) {
        const left = v128.load(from), right = v128.load(from, 16);
        let x = v128.load_splat<f32>(at);
        c00 = f32x4.add(c00, f32x4.mul(x, left));
        c01 = f32x4.add(c01, f32x4.mul(x, right));
        x = v128.load_splat<f32>(at + aStep);
        c10 = f32x4.add(c10, f32x4.mul(x, left));
        c11 = f32x4.add(c11, f32x4.mul(x, right));
        x = v128.load_splat<f32>(at + 2 * aStep);
        c20 = f32x4.add(c20, f32x4.mul(x, left));
        c21 = f32x4.add(c21, f32x4.mul(x, right));
        x = v128.load_splat<f32>(at + 3 * aStep);
        c30 = f32x4.add(c30, f32x4.mul(x, left));
        c31 = f32x4.add(c31, f32x4.mul(x, right));
        at += 4;
        from += bStep;
      }
      const to = out + i * outStep + (j << 2);
      v128.store(to, c00);
      v128.store(to, c01, 16);
      v128.store(to + outStep, c10);
      v128.store(to + outStep, c11, 16);
      v128.store(to + 2 * outStep, c20);
      v128.store(to + 2 * outStep, c21, 16);
      v128.store(to + 3 * outStep, c30);
      v128.store(to + 3 * outStep, c31, 16);
    }
  }
}

/**
 * scores[i][j] = the largest similarity over some rotations.
 *
 * weights[l][k], each four times over, is the wave of component k at rotation l. With `opposites` every rotation also
 * stands for the one half a turn further, where the components after the first `even` change their sign.
 */
export function largest(
  coefficients: usize, components: usize, even: usize, weights: usize, rotations: usize, opposites: bool,
  rows: usize, columns: usize, stride: usize, scores: usize,
): void {
  const step = stride << 2;
  for (let i: usize = 0; i < rows; i++) {
    const row = coefficients + i * components * step, to = scores + i * step;
    for (let j: usize = 0; j < columns; j += 8) {
      let best0 = f32x4.splat(NOTHING), best1 = best0, w = weights;
      for (let l: usize = 0; l < rotations; l++) {
        let from = row + (j << 2);
        let e0 = f32x4.splat(0), e1 = e0, o0 = e0, o1 = e0;
        for (let k: usize = 0; k < even; k++) {
          const wave = v128.load(w);
          e0 = f32x4.add(e0, f32x4.mul(wave, v128.load(from)));
          e1 = f32x4.add(e1, f32x4.mul(wave, v128.load(from, 16)));
          w += 16;
          from += step;
        }
        for (let k: usize = even; k < components; k++) {
          const wave = v128.load(w);
          o0 = f32x4.add(o0, f32x4.mul(wave, v128.load(from)));
          o1 = f32x4.add(o1, f32x4.mul(wave, v128.load(from, 16)));
          w += 16;
          from += step;
        }
        if (opposites) {
          o0 = f32x4.abs(o0);
          o1 = f32x4.abs(o1);
        }
        best0 = f32x4.pmax(best0, f32x4.add(e0, o0));
        best1 = f32x4.pmax(best1, f32x4.add(e1, o1));
      }
      v128.store(to + (j << 2), best0);
      v128.store(to + (j << 2), best1, 16);
    }
  }
}

/** Give the columns from `used` to `columns` the score NOTHING. */
export function blank(scores: usize, rows: usize, used: usize, columns: usize, stride: usize): void {
  for (let i: usize = 0; i < rows; i++) {
    for (let j = used; j < columns; j++) store<f32>(scores + ((i * stride + j) << 2), NOTHING);
  }
}

/** exp of four numbers between -87 and 87; smaller ones count as -87. */
// @ts-ignore: a decorator of AssemblyScript
@inline
function exp4(x: v128): v128 {
  x = f32x4.pmax(f32x4.splat(-87), x);
  const whole = f32x4.nearest(f32x4.mul(x, f32x4.splat(1.44269504)));
  let r = f32x4.sub(x, f32x4.mul(whole, f32x4.splat(0.693359375)));
  r = f32x4.add(r, f32x4.mul(whole, f32x4.splat(2.12194440e-4)));
  let p = f32x4.splat(1.9875691500e-4);
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.3981999507e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(8.3334519073e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(4.1665795894e-2));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.6666665459e-1));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(5.0000001201e-1));
  p = f32x4.add(f32x4.add(f32x4.mul(p, f32x4.mul(r, r)), r), f32x4.splat(1));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(whole), i32x4.splat(127)), 23);
  return f32x4.mul(p, power);
}

/** rowSums[i] and columnSums[j] of exp(scale scores). */
export function sums(
  scores: usize, rows: usize, columns: usize, stride: usize, scale: f32, rowSums: usize, columnSums: usize,
): void {
  memory.fill(columnSums, 0, columns << 2);
  const factor = f32x4.splat(scale);
  for (let i: usize = 0; i < rows; i++) {
    const from = scores + ((i * stride) << 2);
    let total = f32x4.splat(0);
    for (let j: usize = 0; j < columns; j += 4) {
      const weight = exp4(f32x4.mul(factor, v128.load(from + (j << 2))));
      total = f32x4.add(total, weight);
      v128.store(columnSums + (j << 2), f32x4.add(v128.load(columnSums + (j << 2)), weight));
    }
    const sum = f32x4.extract_lane(total, 0) + f32x4.extract_lane(total, 1) + f32x4.extract_lane(total, 2);
    store<f32>(rowSums + (i << 2), sum + f32x4.extract_lane(total, 3));
  }
}

/**
 * The most probable column of every row and row of every column, by scale scores - rowLogs - columnLogs; of those that
 * differ by no more than `tie` the first. `columnBest` is room for as many floats as there are columns.
 */
export function best(
  scores: usize, rows: usize, columns: usize, stride: usize, scale: f32, tie: f32, rowLogs: usize, columnLogs: usize,
  rowBest: usize, columnBest: usize, bestRow: usize,
): void {
  const factor = f32x4.splat(scale), least = f32x4.splat(tie);
  for (let j: usize = 0; j < columns; j += 4) {
    v128.store(columnBest + (j << 2), f32x4.splat(-1e30));
    v128.store(bestRow + (j << 2), i32x4.splat(-1));
  }
  for (let i: usize = 0; i < rows; i++) {
    const from = scores + ((i * stride) << 2), log = f32x4.splat(load<f32>(rowLogs + (i << 2)));
    let value = f32x4.splat(-1e30), where = i32x4.splat(-1);
    let index = i32x4(0, 1, 2, 3);
    for (let j: usize = 0; j < columns; j += 4) {
      const p = f32x4.sub(
        f32x4.sub(f32x4.mul(factor, v128.load(from + (j << 2))), log), v128.load(columnLogs + (j << 2)),
      );
      const better = f32x4.gt(p, f32x4.add(value, least));
      value = v128.bitselect(p, value, better);
      where = v128.bitselect(index, where, better);
      const known = v128.load(columnBest + (j << 2));
      const higher = f32x4.gt(p, f32x4.add(known, least));
      if (v128.any_true(higher)) {
        v128.store(columnBest + (j << 2), v128.bitselect(p, known, higher));
        const old = v128.load(bestRow + (j << 2));
        v128.store(bestRow + (j << 2), v128.bitselect(i32x4.splat(<i32>i), old, higher));
      }
      index = i32x4.add(index, i32x4.splat(4));
    }
    store<i32>(rowBest + (i << 2), firstLargest(value, where, tie));
  }
}

/** The least index among the four whose values are the largest, but for a tie. */
function firstLargest(value: v128, where: v128, tie: f32): i32 {
  const a = f32x4.extract_lane(value, 0), b = f32x4.extract_lane(value, 1);
  const c = f32x4.extract_lane(value, 2), d = f32x4.extract_lane(value, 3);
  const enough = max(max(a, b), max(c, d)) - tie;
  let found = i32.MAX_VALUE;
  if (a >= enough) found = min(found, i32x4.extract_lane(where, 0));
  if (b >= enough) found = min(found, i32x4.extract_lane(where, 1));
  if (c >= enough) found = min(found, i32x4.extract_lane(where, 2));
  if (d >= enough) found = min(found, i32x4.extract_lane(where, 3));
  return found;
}

/**
 * scores[i][j] = the largest similarity over every rotation.
 *
 * values[l][k] are the waves at the `points` rotations of a grid, as doubles; frequencies[k] those of the components,
 * which come as one constant or none, then a cosine and a sine of each frequency. From the two most promising points
 * of the grid it is uphill by Newton's step and the vertex of the parabola there.
 */
export function highest(
  coefficients: usize, components: usize, values: usize, frequencies: usize, points: usize, reach: f64,
  rows: usize, columns: usize, stride: usize, scores: usize, room: usize,
): void {
  const own = room + (points << 3);
  for (let i: usize = 0; i < rows; i++) {
    for (let j: usize = 0; j < columns; j++) {
      const from = coefficients + ((i * components * stride + j) << 2);
      for (let k: usize = 0; k < components; k++) {
        store<f64>(own + (k << 3), <f64>load<f32>(from + ((k * stride) << 2)));
      }
      let w = values;
      for (let l: usize = 0; l < points; l++) {
        let value: f64 = 0;
        for (let k: usize = 0; k < components; k++) {
          value += load<f64>(w) * load<f64>(own + (k << 3));
          w += 8;
        }
        store<f64>(room + (l << 3), value);
      }
      let first: f64 = -1e30, second: f64 = -1e30;
      let firstAt: usize = 0, secondAt: usize = 0;
      for (let l: usize = 0; l < points; l++) {
        const here = load<f64>(room + (l << 3));
        const after = load<f64>(room + ((l + 1 == points ? 0 : l + 1) << 3));
        const before = load<f64>(room + ((l == 0 ? points - 1 : l - 1) << 3));
        const bend = 2 * here - after - before;
        if (here < after || here < before || bend <= 0) continue;
        const vertex = here + ((after - before) * (after - before)) / (8 * bend);
        if (vertex > first) {
          second = first;
          secondAt = firstAt;
          first = vertex;
          firstAt = l;
        } else if (vertex > second) {
          second = vertex;
          secondAt = l;
        }
      }
      let found = climb(own, components, values + ((firstAt * components) << 3), frequencies, reach);
      if (second > -1e30) {
        found = max(found, climb(own, components, values + ((secondAt * components) << 3), frequencies, reach));
      }
      store<f32>(scores + ((i * stride + j) << 2), <f32>found);
    }
  }
}

/** The value at a maximum near a point of the grid, whose waves are given. */
function climb(own: usize, components: usize, waves: usize, frequencies: usize, reach: f64): f64 {
  let move: f64 = 0, value: f64 = 0, slope: f64 = 0, curvature: f64 = 0;
  for (let step = 0; step < 2; step++) {
    value = slope = curvature = 0;
    let k: usize = 0;
    while (k < components) {
      const f = load<f64>(frequencies + (k << 3)), c = load<f64>(own + (k << 3));
      if (f == 0) {
        value += c;
        k++;
        continue;
      }
      const s = load<f64>(own + ((k + 1) << 3));
      const cos0 = load<f64>(waves + (k << 3)), sin0 = load<f64>(waves + ((k + 1) << 3));
      const x = f * move, xx = x * x; // at most pi / 8, see POINTS
      const dcos = 1 - xx / 2 * (1 - xx / 12 * (1 - xx / 30)), dsin = x * (1 - xx / 6 * (1 - xx / 20 * (1 - xx / 42)));
      const cos = cos0 * dcos - sin0 * dsin, sin = sin0 * dcos + cos0 * dsin;
      const wave = c * cos + s * sin;
      value += wave;
      slope += f * (s * cos - c * sin);
      curvature -= f * f * wave;
      k += 2;
    }
    const newton = curvature < 0 ? -slope / curvature : (slope > 0 ? reach / 2 : -reach / 2);
    const next = max(-reach, min(reach, move + newton));
    if (step == 1) return value + (next - move) * (slope + (next - move) * curvature / 2);
    move = next;
  }
  return value;
}
