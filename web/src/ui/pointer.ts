/** Looking and turning on the stage itself: by pointer, by touch, and keypoints by keys. */

import type { Dial } from "./dial";
import type { Scene, Stage } from "./stage";

export interface Spot {
  side: 0 | 1;
  index: number;
}

/** How far a finger may move, in pixels, that only taps. */
const TAP = 5;

/**
 * Over a keypoint: look at it. On the second photograph a tap looks and a drag turns. Left and right arrows go through
 * the matches, the best first.
 *
 * @param scene what is drawn now, if there is anything to look at.
 */
export function listenToPointer(
  stage: Stage, dial: Dial, scene: () => Scene | null, look: (spot: Spot | null) => void,
): void {
  const { canvas } = stage;
  const spotAt = ({ clientX, clientY }: PointerEvent): Spot | null => {
    const box = canvas.getBoundingClientRect(), drawn = scene();
    return drawn && stage.keypointAt(drawn, clientX - box.left, clientY - box.top);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons && event.pointerType === "mouse") look(spotAt(event));
  });
  canvas.addEventListener("pointerdown", (event) => {
    const { clientX: x, clientY: y } = event;
    const tapped = (at: PointerEvent): void => {
      if (Math.hypot(at.clientX - x, at.clientY - y) < TAP) look(spotAt(at));
    };
    window.addEventListener("pointerup", tapped, { once: true });
    if (scene() && stage.isOnSecond(x, y)) dial.grab(event);
  });
  let match = -1;
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], matches = scene()?.matches;
    if (!step || !matches?.first.length) return;
    match = (match + step + matches.first.length) % matches.first.length;
    look({ side: 1, index: matches.second[match] });
    event.preventDefault();
  });
}
