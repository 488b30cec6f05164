/** What a visitor takes along: the picture, and the matches in the format of `steerers match --json`. */

import { degrees, radians, wrapDegrees } from "./maths/angles";
import { mapPoints, scaling } from "./maths/geometry";
import type { Again, Match, Photograph, Session } from "./session";
import type { Settings } from "./settings";

/**
 * The report of `steerers match`: keypoints are pixels of the files, and so are angles those between the files.
 *
 * How far the second photograph was turned on the page is told beside them.
 */
export function report(session: Session, match: Match | Again, settings: Settings): Record<string, unknown> {
  const [first, second] = session.photographs as [Photograph, Photograph];
  const keypoints = [first.keypoints, "keypoints" in match ? match.keypoints : second.keypoints];
  const pixels = ([first, second] as const).map(({ size, stored }, side) =>
    mapPoints(scaling(size, stored), keypoints[side]),
  );
  const between = (angle: number): number => wrapDegrees(degrees(angle - radians(match.turn)));
  const points = (all: Float32Array, indices: Int32Array): number[][] =>
    Array.from(indices, (index) => [...all.subarray(2 * index, 2 * index + 2)]);
  const { inliers } = match.homography, matrix = session.stored(match);
  return {
    image0: first.name,
    image1: second.name,
    model: session.model.name,
    strategy: settings.strategy,
    verified_by: "homography",
    angle_deg: match.angle === null ? null : between(match.angle),
    num_matches: match.scores.length,
    num_inliers: inliers.filter(Boolean).length,
    probability: null, // that both show the same thing: the page does not estimate it, nor a pose
    homography: matrix && [matrix.slice(0, 3), matrix.slice(3, 6), matrix.slice(6, 9)],
    pose: null,
    keypoints0: points(pixels[0], match.first),
    keypoints1: points(pixels[1], match.second),
    scores: [...match.scores],
    angles_deg: match.angles && Array.from(match.angles, between),
    inliers,
    seconds: (first.ms + ("msNetwork" in match ? match.msNetwork : second.ms) + match.ms) / 1000,
    turned_deg: match.turn,
  };
}

export function download(content: Blob, name: string): void {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Copy text, also where the page may not touch the clipboard. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
