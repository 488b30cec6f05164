/** The small drawings: similarity over all angles, and a description as a wheel. */

import { radians } from "../maths/angles";
import { evaluate } from "../maths/polynomial";
import type { Steerer } from "../maths/steerer";

interface Sheet {
  context: CanvasRenderingContext2D;
  width: number;
  height: number;
  colour: (name: string) => string;
}

function prepare(canvas: HTMLCanvasElement): Sheet {
  const ratio = window.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d")!, style = getComputedStyle(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height, colour: (name) => style.getPropertyValue(name).trim() };
}

/** Mean similarity of the matches against the angle, -180 to 180 degrees, with the turn and what was found. */
export function drawCurve(
  canvas: HTMLCanvasElement, steerer: Steerer, curve: Float64Array | null, turn: number, found: number | null,
): void {
  const { context, width, height, colour } = prepare(canvas), bottom = height - 16, top = 8;
  const x = (angle: number): number => ((angle + 180) / 360) * (width - 2) + 1;
  const y = (value: number): number => bottom - ((value + 0.3) / 1.3) * (bottom - top); // from -0.3 to 1
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--quiet");
  context.textAlign = "center";
  for (const tick of [-180, -90, 0, 90, 180]) {
    context.beginPath();
    context.moveTo(x(tick), top);
    context.lineTo(x(tick), bottom);
    context.stroke();
    context.textAlign = tick === -180 ? "left" : tick === 180 ? "right" : "center";
    context.fillText(`${tick}°`, x(tick), height - 3);
  }
  context.beginPath();
  context.moveTo(x(-180), y(0));
  context.lineTo(x(180), y(0));
  context.stroke();
  context.textAlign = "center";
  if (!curve) return context.fillText("no matches, no curve", width / 2, y(0.4));
  context.strokeStyle = colour("--accent");
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(x(turn), top);
  context.lineTo(x(turn), bottom);
  context.stroke();
  context.setLineDash([]);
  context.strokeStyle = colour("--agree");
  context.lineWidth = 2;
  context.beginPath();
  for (let angle = -180; angle <= 180; angle += 2) {
    context.lineTo(x(angle), y(evaluate(steerer, curve, radians(angle)).value));
  }
  context.stroke();
  if (found === null) return;
  context.fillStyle = colour("--found");
  context.beginPath();
  context.arc(x(found), y(evaluate(steerer, curve, radians(found)).value), 5, 0, 2 * Math.PI);
  context.fill();
}

/** One ring a frequency, the slowest inside: a dot for each pair of numbers, at its phase, sized by its magnitude. */
export function drawWheel(
  canvas: HTMLCanvasElement, spectrum: { frequency: number; magnitude: number; phase: number }[] | null,
): void {
  const { context, width, height, colour } = prepare(canvas);
  const rings = [...new Set((spectrum ?? []).map(({ frequency }) => frequency))].filter((frequency) => frequency > 0);
  const most = Math.max(...rings, 6), outer = Math.min(width, height) / 2 - 8;
  const radius = (frequency: number): number => outer * (0.25 + (0.75 * frequency) / most);
  context.translate(width / 2, height / 2);
  context.strokeStyle = colour("--line");
  for (let frequency = 1; frequency <= most; frequency++) {
    context.beginPath();
    context.arc(0, 0, radius(frequency), 0, 2 * Math.PI);
    context.stroke();
  }
  if (!spectrum) return;
  const largest = Math.max(...spectrum.map(({ magnitude }) => magnitude), 1e-12);
  for (const frequency of rings) {
    const own = spectrum.filter((entry) => entry.frequency === frequency);
    const strongest = own.reduce((best, entry) => (entry.magnitude > best.magnitude ? entry : best));
    for (const entry of own) {
      const x = radius(frequency) * Math.cos(entry.phase), y = -radius(frequency) * Math.sin(entry.phase);
      context.globalAlpha = entry === strongest ? 1 : 0.45;
      context.fillStyle = colour(entry === strongest ? "--found" : "--agree");
      context.beginPath();
      context.arc(x, y, Math.max(0.8, 5.5 * Math.sqrt(entry.magnitude / largest)), 0, 2 * Math.PI);
      context.fill();
    }
  }
  context.globalAlpha = 1;
}
