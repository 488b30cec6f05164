/** The similarity of two descriptions as a function of how far the first is turned: where it is largest. */

import type { Steerer } from "./steerer";

/** Rotations at which it is looked at, in each period of its highest frequency. */
export const POINTS = 8;
const NEWTON_STEPS = 4;
const TURN = 2 * Math.PI;

export interface Peak {
  value: number;
  angle: number;
}

/** Value, slope and curvature at an angle, of coefficients of a steerer's waves in their order. */
export function evaluate(
  steerer: Steerer, coefficients: Float64Array, angle: number,
): { value: number; slope: number; curvature: number } {
  const { bands, top } = steerer, cos1 = Math.cos(angle), sin1 = Math.sin(angle);
  for (let f = 1; f <= top; f++) {
    COS[f] = COS[f - 1] * cos1 - SIN[f - 1] * sin1;
    SIN[f] = SIN[f - 1] * cos1 + COS[f - 1] * sin1;
  }
  let value = 0, slope = 0, curvature = 0;
  for (let band = 0, k = 0; band < bands.length; band++) {
    const f = bands[band];
    if (f === 0) {
      value += coefficients[k++];
      continue;
    }
    const c = coefficients[k++], s = coefficients[k++], wave = c * COS[f] + s * SIN[f];
    value += wave;
    slope += f * (s * COS[f] - c * SIN[f]);
    curvature -= f * f * wave;
  }
  return { value, slope, curvature };
}

const COS = new Float64Array(64).fill(1, 0, 1), SIN = new Float64Array(64); // of multiples of an angle

/** The maximum over every angle: uphill from every peak of a grid. */
export function highest(steerer: Steerer, coefficients: Float64Array): Peak {
  const points = POINTS * steerer.top || 1, reach = Math.PI / points;
  const values = Array.from({ length: points }, (_, l) => evaluate(steerer, coefficients, (TURN * l) / points).value);
  let best: Peak = { value: -Infinity, angle: 0 };
  values.forEach((here, l) => {
    if (here < values[(l + 1) % points] || here < values[(l + points - 1) % points]) return;
    const start = (TURN * l) / points;
    const angle = climb(steerer, coefficients, start, start - reach, start + reach, 6);
    const { value } = evaluate(steerer, coefficients, angle);
    if (value > best.value + 1e-12) best = { value, angle };
  });
  return best;
}

/** The first of some angles at which it is largest. */
export function largestOf(steerer: Steerer, coefficients: Float64Array, angles: readonly number[]): Peak {
  let best: Peak = { value: -Infinity, angle: 0 };
  for (const angle of angles) {
    const { value } = evaluate(steerer, coefficients, angle);
    if (value > best.value) best = { value, angle };
  }
  return best;
}

/** The maximum between a tried angle and its neighbours, `gap` away: the best of a few points, then uphill. */
export function refine(steerer: Steerer, coefficients: Float64Array, tried: number, gap: number): number {
  const count = Math.ceil((gap * POINTS * steerer.top) / TURN - 1e-9), spacing = gap / count;
  const around = Array.from({ length: 2 * count + 1 }, (_, k) => tried + spacing * (k - count));
  const best = largestOf(steerer, coefficients, around).angle;
  const low = Math.max(best - spacing, tried - gap), high = Math.min(best + spacing, tried + gap);
  return climb(steerer, coefficients, best, low, high, NEWTON_STEPS);
}

/** Newton's steps where it is concave, else uphill, within bounds. */
function climb(
  steerer: Steerer, coefficients: Float64Array, start: number, low: number, high: number, steps: number,
): number {
  let angle = start;
  for (let step = 0; step < steps; step++) {
    const { slope, curvature } = evaluate(steerer, coefficients, angle);
    const move = curvature < 0 ? -slope / curvature : (Math.sign(slope) * (high - low)) / 4;
    angle = Math.min(Math.max(angle + move, low), high);
  }
  return angle;
}
