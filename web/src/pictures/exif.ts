/** Browsers turn photographs as EXIF data say. The package takes pixels as they are stored, and so does the page. */

const EXIF = [0x45, 0x78, 0x69, 0x66, 0, 0]; // "Exif", as JPEG and some WebP files have it
const ORIENTATION = 0x0112;
const UPRIGHT = 1;

/** The file with an orientation of "upright"; one that has none comes back as it is. */
export function ignoreOrientation(bytes: Uint8Array): Uint8Array {
  const kind = String.fromCharCode(...bytes.slice(0, 4), ...bytes.slice(8, 12));
  try {
    if (bytes[0] === 0xff && bytes[1] === 0xd8) return setUpright(bytes, inJpeg(bytes));
    if (kind.startsWith("RIFF") && kind.endsWith("WEBP")) return setUpright(bytes, inWebp(bytes));
    if (kind.startsWith("\x89PNG")) return withoutExif(bytes);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a damaged file: the decoder will say so
  }
  return bytes;
}

/** Where the EXIF data of a JPEG file begin, or -1. */
function inJpeg(bytes: Uint8Array): number {
  for (let at = 2; at + 4 < bytes.length && bytes[at] === 0xff; ) {
    const marker = bytes[at + 1], length = (bytes[at + 2] << 8) | bytes[at + 3];
    if (marker === 0xda || length < 2) return -1; // the picture itself
    if (marker === 0xe1 && EXIF.every((byte, k) => bytes[at + 4 + k] === byte)) return at + 10;
    at += 2 + length;
  }
  return -1;
}

function inWebp(bytes: Uint8Array): number {
  const view = viewOf(bytes);
  for (let at = 12; at + 8 < bytes.length; ) {
    const length = view.getUint32(at + 4, true);
    if (String.fromCharCode(...bytes.slice(at, at + 4)) === "EXIF") {
      return EXIF.every((byte, k) => bytes[at + 8 + k] === byte) ? at + 14 : at + 8;
    }
    at += 8 + length + (length & 1);
  }
  return -1;
}

/** A PNG file without its EXIF chunk. */
function withoutExif(bytes: Uint8Array): Uint8Array {
  const view = viewOf(bytes);
  for (let at = 8; at + 12 <= bytes.length; at += 12 + view.getUint32(at)) {
    if (String.fromCharCode(...bytes.slice(at + 4, at + 8)) !== "eXIf") continue;
    const after = at + 12 + view.getUint32(at), kept = new Uint8Array(at + bytes.length - after);
    kept.set(bytes.subarray(0, at));
    kept.set(bytes.subarray(after), at);
    return kept;
  }
  return bytes;
}

/** Change the orientation in the first directory of TIFF data at `start`. */
function setUpright(bytes: Uint8Array, start: number): Uint8Array {
  if (start < 0) return bytes;
  const view = viewOf(bytes), little = bytes[start] === 0x49;
  const directory = start + view.getUint32(start + 4, little);
  for (let k = 0; k < view.getUint16(directory, little); k++) {
    const entry = directory + 2 + 12 * k;
    if (view.getUint16(entry, little) !== ORIENTATION) continue;
    const copy = bytes.slice();
    viewOf(copy).setUint16(entry + 8, UPRIGHT, little);
    return copy;
  }
  return bytes;
}

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
