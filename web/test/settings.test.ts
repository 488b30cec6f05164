/** Links, and photographs whose EXIF data say that they lie on their side. */

import { describe, expect, test } from "vitest";

import { ignoreOrientation } from "../src/pictures/exif";
import { type Model, defaults, fromLink, toLink } from "../src/settings";

const MODEL = {
  strategy: "max-similarity", order: 16, inverseTemperature: 20, threshold: 0.05, frequencies: [0, 1, 1],
} as unknown as Model;
const standard = defaults(MODEL, false);

describe("a link", () => {
  test("of the defaults is empty", () => expect(toLink(standard, standard)).toBe(""));

  test("restores what was changed", () => {
    const settings = {
      ...standard, strategy: "max-matches", order: 8, turn: -71.5, keypoints: 2000, side: 1024, inverseTemperature: 31,
      threshold: 0.2, again: true, example: 1, backend: "wasm",
    } as typeof standard;
    expect(fromLink(`#${toLink(settings, standard)}`, standard)).toEqual(settings);
    const every = { ...standard, order: null };
    expect(fromLink(toLink(every, standard), standard)).toEqual(every);
  });

  test("that makes no sense changes nothing", () => {
    const wrong = "#strategy=magic&order=7&turn=1e9&keypoints=-5&side=x&threshold=NaN&inverseTemperature=&again=maybe";
    expect(fromLink(wrong, standard)).toEqual(standard);
  });
});

/** TIFF data with one entry, an orientation. */
function tiff(orientation: number, little: boolean): number[] {
  const two = (value: number): number[] => (little ? [value, 0] : [0, value]);
  const four = (value: number): number[] => (little ? [value, 0, 0, 0] : [0, 0, 0, value]);
  const tag = little ? [0x12, 0x01] : [0x01, 0x12];
  const order = little ? [0x49, 0x49] : [0x4d, 0x4d];
  const entry = [...tag, ...two(3), ...four(1), ...two(orientation), 0, 0];
  return [...order, ...two(42), ...four(8), ...two(1), ...entry, ...four(0)];
}

const text = (word: string): number[] => [...word].map((letter) => letter.charCodeAt(0));

describe.each([true, false])("EXIF data, little-endian: %s", (little) => {
  const exif = tiff(6, little), upright = tiff(1, little);

  test("of JPEG", () => {
    const head = [0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 2], scan = [0xff, 0xda, 0, 2, 7];
    const file = (data: number[]): number[] =>
      [...head, 0xff, 0xe1, 0, data.length + 8, ...text("Exif"), 0, 0, ...data, ...scan];
    expect([...ignoreOrientation(Uint8Array.from(file(exif)))]).toEqual(file(upright));
    const cut = file(exif).slice(0, 30);
    expect([...ignoreOrientation(Uint8Array.from(cut))]).toEqual(cut);
  });

  test("of WebP", () => {
    const head = [...text("RIFF"), 9, 9, 0, 0, ...text("WEBP"), ...text("VP8 "), 1, 0, 0, 0, 5, 0];
    const file = (data: number[]): number[] => [...head, ...text("EXIF"), data.length, 0, 0, 0, ...data];
    expect([...ignoreOrientation(Uint8Array.from(file(exif)))]).toEqual(file(upright));
  });

  test("of PNG", () => {
    const head = [0x89, ...text("PNG"), 13, 10, 26, 10], chunk = [0, 0, 0, 1, ...text("IHDR"), 7, 1, 1, 1, 1];
    const own = [0, 0, 0, exif.length, ...text("eXIf"), ...exif, 2, 2, 2, 2];
    const whole = Uint8Array.from([...head, ...chunk, ...own, ...chunk]);
    expect([...ignoreOrientation(whole)]).toEqual([...head, ...chunk, ...chunk]);
  });
});

test("other files stay as they are", () => {
  for (const file of [[], [1, 2, 3], text("GIF89a and more than that")]) {
    expect([...ignoreOrientation(Uint8Array.from(file))]).toEqual(file);
  }
});
