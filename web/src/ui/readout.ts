/** What was found, in numbers and words. */

import { degrees } from "../maths/angles";
import type { Again, Match } from "../session";
import type { Strategy } from "../maths/matcher";
import type { Look } from "../workers/matching";
import { element } from "./controls";

/** With fewer matches that agree, photographs are said to have nothing in common, as in the package's collections. */
export const FEW = 15;

export const agreeing = (match: Match | null): number => match?.homography.inliers.filter(Boolean).length ?? 0;

/** An angle for reading. */
export const shownAngle = (angle: number | null): string => (angle === null ? "–" : `${degrees(angle).toFixed(1)}°`);

const shownTime = (ms: number): string => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Fill a column of the table. */
export function showTable(match: Match | Again | null, column: "" | "-again"): void {
  const cells = match
    ? {
        matches: String(match.scores.length),
        inliers: String(agreeing(match)),
        angle: shownAngle(match.angle),
        time: shownTime(match.ms + ("msNetwork" in match ? match.msNetwork : 0)),
      }
    : { matches: "–", inliers: "–", angle: "–", time: "–" };
  for (const [name, value] of Object.entries(cells)) element(name + column).textContent = value;
}

/** What to think of it, where that is not good. */
export function verdict(match: Match | null, strategy: Strategy): string {
  if (!match || agreeing(match) >= FEW) return "";
  return strategy === "dual-softmax"
    ? "Too few matches agree: no angles are tried, and the photograph may be turned too far."
    : "Too few matches agree: the photographs may have nothing in common.";
}

/** On one keypoint. */
export function wordsOn(looking: { side: 0 | 1; look: Look } | null): string {
  if (!looking) return "Point at a keypoint, or tap it: what it is most like, and how its description turns.";
  const [best] = looking.look.neighbours;
  const likeness = best
    ? `Its like has a similarity of ${best.similarity.toFixed(2)} (${(100 * best.probability).toFixed(0)} %). `
    : "";
  return looking.side
    ? `${likeness}Its dots turn with the photograph, those of the outer rings up to six times as fast.`
    : `${likeness}It is in the first photograph: its dots stay.`;
}

/** For who listens to the page. */
export function summaryOf(match: Match): string {
  const angle = match.angle === null ? "" : ` Found a turn of ${degrees(match.angle).toFixed(0)} degrees.`;
  return `${match.scores.length} matches, ${agreeing(match)} agree.${angle}`;
}
