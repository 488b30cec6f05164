/** Where the photographs lie on the stage: at one scale, beside or below each other, with room to turn the second. */

import type { Size } from "../maths/geometry";

export interface Place {
  x: number; // of the centre
  y: number;
  scale: number; // screen pixels for a pixel of what the network saw
  size: Size;
}

export interface Layout {
  places: [Place, Place];
  /** Of the ring around the second. */
  radius: number;
  /** What the stage needs. */
  height: number;
}

const EDGE = 20;
/** Between the photograph's corners and the ring, and beyond it. */
const GAP = 10, RING = 30;
const BUTTON = 52;
/** The legend, below all. */
const LEGEND = 44;

export function layOut(stage: Size, first: Size, second: Size, stacked: boolean): Layout {
  const longest0 = Math.max(first.width, first.height), longest1 = Math.max(second.width, second.height);
  const [width0, height0] = [first.width / longest0, first.height / longest0];
  const diagonal = Math.hypot(second.width, second.height) / longest1;
  const around = 2 * (GAP + RING);
  const side = stacked
    ? Math.min((stage.width - 2 * EDGE) / width0, (stage.width - around) / diagonal)
    : Math.min(
        (stage.width - 3 * EDGE - around) / (width0 + diagonal),
        (stage.height - 2 * EDGE - BUTTON) / height0,
        (stage.height - around - BUTTON) / diagonal,
      );
  const size = Math.max(side, 60), radius = (size * diagonal) / 2 + GAP, reach = radius + RING;
  const scale0 = size / longest0, scale1 = size / longest1;
  if (stacked) {
    const top = EDGE / 2 + (size * height0) / 2, below = EDGE / 2 + size * height0 + BUTTON + reach;
    return {
      places: [
        { x: stage.width / 2, y: top, scale: scale0, size: first },
        { x: stage.width / 2, y: below, scale: scale1, size: second },
      ],
      radius,
      height: below + reach + BUTTON + LEGEND,
    };
  }
  const used = size * width0 + 2 * reach, spare = Math.max(0, (stage.width - used) / 3);
  const y = (stage.height - BUTTON) / 2;
  return {
    places: [
      { x: spare + (size * width0) / 2, y, scale: scale0, size: first },
      { x: 2 * spare + size * width0 + reach, y, scale: scale1, size: second },
    ],
    radius,
    height: stage.height,
  };
}

/** Where a pixel of a photograph that is turned by `turn` radians lies on the stage. */
export function toStage(place: Place, turn: number, x: number, y: number): [number, number] {
  const cos = Math.cos(turn), sin = Math.sin(turn);
  const dx = (x - (place.size.width - 1) / 2) * place.scale, dy = (y - (place.size.height - 1) / 2) * place.scale;
  return [place.x + cos * dx + sin * dy, place.y - sin * dx + cos * dy];
}
