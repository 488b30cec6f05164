/** The ring around the second photograph: by pointer, touch or keys, continuously. */

import { wrapDegrees } from "../maths/angles";

const KEYS: Record<string, number> = {
  ArrowLeft: 1, ArrowUp: 1, ArrowRight: -1, ArrowDown: -1, PageUp: 15, PageDown: -15,
};
const FASTER = 5;
const ROOM = 40;

export class Dial {
  private radius = 0;
  private angle = 0;

  /** @param turned is told the new angle in degrees whenever a visitor turns. */
  constructor(private readonly svg: SVGSVGElement, private readonly turned: (degrees: number) => void) {
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("pointerdown", (event) => this.grab(event));
  }

  /** Lie around a point of the stage. */
  place(x: number, y: number, radius: number): void {
    const size = 2 * (radius + ROOM);
    const box = { left: x - size / 2, top: y - size / 2, width: size, height: size };
    for (const [name, value] of Object.entries(box)) this.svg.style.setProperty(name, `${value}px`);
    if (radius === this.radius) return;
    this.radius = radius;
    this.svg.setAttribute("viewBox", `${-size / 2} ${-size / 2} ${size} ${size}`);
    const ticks = Array.from({ length: 24 }, (_, k) => {
      const [cos, sin] = [Math.cos((k * Math.PI) / 12), Math.sin((k * Math.PI) / 12)];
      const [near, far] = [radius + 6, radius + (k % 6 ? 10 : 15)];
      return `<line class="tick" x1="${near * cos}" y1="${near * sin}" x2="${far * cos}" y2="${far * sin}"/>`;
    });
    this.svg.innerHTML =
      `<circle class="ring" r="${radius}"/><circle class="track" r="${radius}"/><path class="arc"/>${ticks.join("")}` +
      `<path class="needle" d="M0 ${-radius - 15} l-8 -15 h16 z"/><circle class="knob" r="13"/>`;
    this.show(this.angle, null);
  }

  /** Show the turn, and the angle that was found. */
  show(degrees: number, found: number | null): void {
    this.angle = degrees;
    const knob = this.svg.querySelector(".knob"), needle = this.svg.querySelector(".needle");
    if (!knob || !needle) return;
    const [x, y] = onRing(degrees, this.radius), large = Math.abs(degrees) > 180 ? 1 : 0;
    knob.setAttribute("cx", String(x));
    knob.setAttribute("cy", String(y));
    const arc = `M0 ${-this.radius} A${this.radius} ${this.radius} 0 ${large} ${degrees > 0 ? 0 : 1} ${x} ${y}`;
    this.svg.querySelector(".arc")!.setAttribute("d", Math.abs(degrees) < 0.5 ? "" : arc);
    needle.setAttribute("visibility", found === null ? "hidden" : "visible");
    if (found !== null) needle.setAttribute("transform", `rotate(${-found})`);
    this.svg.setAttribute("aria-valuenow", degrees.toFixed(0));
    const heard = found === null ? "" : `, found ${found.toFixed(0)}`;
    this.svg.setAttribute("aria-valuetext", `${degrees.toFixed(0)} degrees${heard}`);
  }

  /** Turn with a pointer that went down, about the middle of the ring. */
  grab(event: PointerEvent, stop: () => void = () => {}): void {
    const box = this.svg.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
    const direction = (at: PointerEvent): number => (Math.atan2(-(at.clientY - y), at.clientX - x) * 180) / Math.PI;
    let last = direction(event), angle = this.angle;
    const move = (at: PointerEvent): void => {
      if (at.pointerId !== event.pointerId) return;
      const now = direction(at);
      angle = wrapDegrees(angle + wrapDegrees(now - last));
      last = now;
      this.turned(angle);
    };
    const end = (at: PointerEvent): void => {
      if (at.pointerId !== event.pointerId) return;
      this.svg.classList.remove("turning");
      for (const [name, heard] of listeners) window.removeEventListener(name, heard);
      stop();
    };
    const listeners = [["pointermove", move], ["pointerup", end], ["pointercancel", end]] as const;
    for (const [name, heard] of listeners) window.addEventListener(name, heard);
    this.svg.classList.add("turning");
    event.preventDefault();
    this.svg.focus({ preventScroll: true });
  }

  private key(event: KeyboardEvent): void {
    const step = KEYS[event.key];
    if (!step && event.key !== "Home") return;
    this.angle = step ? wrapDegrees(this.angle + step * (event.shiftKey ? FASTER : 1)) : 0; // before it is shown
    this.turned(this.angle);
    event.preventDefault();
  }
}

/** 0 degrees is at the top; counter-clockwise. */
function onRing(degrees: number, radius: number): [number, number] {
  const angle = (degrees * Math.PI) / 180;
  return [-radius * Math.sin(angle), -radius * Math.cos(angle)];
}
