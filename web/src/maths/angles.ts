/** Angles: wrapping, and where most of them lie. */

const WIDTH = (10 * Math.PI) / 180;
/** Of the kernel that angles are smoothed with. */

export const degrees = (radians: number): number => (radians * 180) / Math.PI;
export const radians = (degrees: number): number => (degrees * Math.PI) / 180;

/** Radians in [-pi, pi). */
export function wrapRadians(angle: number): number {
  return angle - 2 * Math.PI * Math.floor((angle + Math.PI) / (2 * Math.PI));
}

/** Degrees in (-180, 180]. */
export function wrapDegrees(angle: number): number {
  const wrapped = 180 - ((((180 - angle) % 360) + 360) % 360);
  return wrapped < -180 + 1e-9 ? 180 : wrapped;
}

/**
 * The direction around which most weight lies: the peak of a density, refined by a mean around it.
 *
 * A mean over all would be pulled by wrong matches, whose angles are anything. As geometry.py: circular_mode.
 */
export function circularMode(angles: ArrayLike<number>, weights: ArrayLike<number>): number {
  const histogram = new Float64Array(360);
  for (let k = 0; k < angles.length; k++) histogram[((Math.round(degrees(angles[k])) % 360) + 360) % 360] += weights[k];
  let peak = 0, most = -1;
  for (let centre = 0; centre < 360; centre++) {
    let density = 0;
    for (let at = 0; at < 360; at++) if (histogram[at]) density += histogram[at] * DENSITY[Math.abs(at - centre)];
    if (density > most + 1e-12) [peak, most] = [radians(centre), density];
  }
  let cos = 0, sin = 0;
  for (let k = 0; k < angles.length; k++) {
    if (Math.cos(angles[k] - peak) <= Math.cos(3 * WIDTH)) continue;
    cos += weights[k] * Math.cos(angles[k] - peak);
    sin += weights[k] * Math.sin(angles[k] - peak);
  }
  return peak + Math.atan2(sin, cos);
}

const DENSITY = Float64Array.from({ length: 360 }, (_, at) => Math.exp((Math.cos(radians(at)) - 1) / WIDTH ** 2));
