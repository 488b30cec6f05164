/** From a file to pixels as they are stored: EXIF orientation is ignored, as in the package. */

import { type Size, fitWithin } from "../maths/geometry";
import { ignoreOrientation } from "./exif";
import { type Pixels, lanczos } from "./resample";

export interface Picture {
  stored: Size; // of the file
  pixels: Pixels; // what the network sees
  shown: ImageBitmap; // what the page draws
}

/** Most pixels of a side on the screen. */
const SHOWN_SIDE = 1280;
/** Larger pictures are brought to so many times the wanted size by the browser first, as Pillow does. */
const GAP = 3;
const MOST_PIXELS = 268_000_000; // of a canvas, in browsers

export class PictureError extends Error {}

/** Read a picture, and shrink it so that no side is longer than `side` for the network. */
export async function readPicture(file: Blob, name: string, side: number): Promise<Picture> {
  const bitmap = await decode(file, name);
  const stored: Size = { width: bitmap.width, height: bitmap.height };
  if (stored.width * stored.height > MOST_PIXELS) throw new PictureError(`${name} is too large for a browser`);
  const size = fitWithin(stored, side), ready = fitWithin(stored, GAP * side);
  const pixels = lanczos(read(bitmap, ready), size);
  const screen = fitWithin(stored, SHOWN_SIDE);
  const shown = await createImageBitmap(draw(bitmap, screen));
  bitmap.close();
  return { stored, pixels, shown };
}

async function decode(file: Blob, name: string): Promise<ImageBitmap> {
  if (!file.size) throw new PictureError(`${name} is empty`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const stored = new Blob([ignoreOrientation(bytes) as BlobPart], { type: file.type });
  try {
    return await createImageBitmap(stored, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new PictureError(`${name} is no picture that this browser can read; try a JPEG, PNG or WebP file`);
  }
}

function draw(bitmap: ImageBitmap, { width, height }: Size): OffscreenCanvas {
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = "rgb(128 128 128)"; // what is transparent lies over mid-grey
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas;
}

function read(bitmap: ImageBitmap, size: Size): Pixels {
  const { data } = draw(bitmap, size).getContext("2d")!.getImageData(0, 0, size.width, size.height);
  const rgb = new Uint8ClampedArray((data.length / 4) * 3);
  for (let from = 0, to = 0; from < data.length; from += 4, to += 3) {
    rgb[to] = data[from];
    rgb[to + 1] = data[from + 1];
    rgb[to + 2] = data[from + 2];
  }
  return { ...size, data: rgb };
}
