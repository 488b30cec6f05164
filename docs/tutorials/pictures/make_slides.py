"""Draw two pictures of one made-up section of tissue, as two stains show it: nothing in them was ever alive.

Glands, each a ring of nuclei around an opening, lie in fibres with nuclei between. The first picture has the colours of
haematoxylin and eosin. The second has haematoxylin and a brown stain of the glands; it is rotated by 115 degrees and
bent by some pixels, as sections are on glass.

Usage::

    python make_slides.py --out slide

writes ``slide_0.jpg`` and ``slide_1.jpg``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

SIZE = 1100  # pixels of the section, a square
VIEW = (760, 600)  # pixels of a picture, (width, height)
ROTATION = 115.0  # degrees counter-clockwise, of the second picture
BEND = 5.0  # pixels
QUALITY = 88
HAEMATOXYLIN, EOSIN, BROWN = (0.65, 0.70, 0.29), (0.07, 0.99, 0.11), (0.27, 0.57, 0.78)  # absorption of R, G, B

Plane = NDArray[np.float32]  # (SIZE, SIZE)


def noise(rng: np.random.Generator, wavelength: float, aspect: float = 1.0) -> Plane:
    """Smooth noise of unit deviation, drawn out along x by an aspect."""
    layer = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
    soft = cv2.GaussianBlur(layer, (0, 0), sigmaX=aspect * wavelength, sigmaY=wavelength)
    return np.asarray(soft / soft.std(), dtype=np.float32)


def draw_nucleus(plane: Plane, rng: np.random.Generator, x: float, y: float, axes: tuple[float, float]) -> None:
    """An ellipse of random direction, to a sixteenth of a pixel."""
    centre, sizes = (round(16 * x), round(16 * y)), (round(16 * axes[0]), round(16 * axes[1]))
    strength = float(rng.uniform(0.55, 1.0))
    cv2.ellipse(plane, centre, sizes, float(rng.uniform(0, 180)), 0, 360, strength, -1, cv2.LINE_AA, 4)


def draw_glands(rng: np.random.Generator, nuclei: Plane) -> tuple[Plane, Plane]:
    """Rings of nuclei, drawn onto ``nuclei``; also the cells of the glands and their openings, 0 to 1."""
    cells, openings = np.zeros_like(nuclei), np.zeros_like(nuclei)
    angles = np.linspace(0, 2 * math.pi, 72, endpoint=False)
    placed: list[tuple[float, float, float]] = []
    while len(placed) < 48:
        x, y, radius = rng.uniform(40, SIZE - 40), rng.uniform(40, SIZE - 40), rng.uniform(26, 58)
        if any(math.hypot(x - a, y - b) < 1.05 * (radius + r) for a, b, r in placed):
            continue
        placed.append((x, y, radius))
        waves = sum(rng.uniform(-0.09, 0.09) * np.cos(k * angles + rng.uniform(0, 6)) for k in range(2, 6))
        rim = radius * (1 + np.asarray(waves))
        ring = np.stack([x + rim * np.cos(angles), y + rim * np.sin(angles)], axis=1)  # (72, 2)
        inner = (x, y) + rng.uniform(0.25, 0.5) * (ring - (x, y))
        for plane, outline in ((cells, ring), (openings, inner)):
            cv2.fillPoly(plane, [np.rint(16 * outline).astype(np.int32)], 1.0, cv2.LINE_AA, 4)
        for k in range(0, 72, max(2, round(72 * 7 / (2 * math.pi * radius)))):
            at = (x, y) + rng.uniform(0.74, 0.88) * (ring[k] - (x, y))
            draw_nucleus(nuclei, rng, float(at[0]), float(at[1]), (4.2, 3.0))
    return cells, openings


def make_section(seed: int) -> tuple[Plane, Plane, Plane]:
    """How much there is of nuclei, of the glands' cells and of fibres, at every pixel."""
    rng = np.random.default_rng(seed)
    nuclei = np.zeros((SIZE, SIZE), np.float32)
    cells, openings = draw_glands(rng, nuclei)
    between = np.zeros_like(nuclei)
    for _ in range(2600):
        draw_nucleus(between, rng, *rng.uniform(0, SIZE, 2), (float(rng.uniform(3, 6)), float(rng.uniform(1.2, 2.4))))
    nuclei = np.maximum(nuclei, between * (cells == 0)) * (1 + 0.12 * noise(rng, 1.2))
    waves = np.sin(0.09 * np.arange(SIZE, dtype=np.float32)[:, None] + 2.5 * noise(rng, 60))
    fibres = 0.5 + 0.16 * waves + 0.10 * noise(rng, 1.5, aspect=5) + 0.08 * noise(rng, 25)
    gaps = np.clip(noise(rng, 14) - 1.4, 0, 0.5) * 2
    fibres = np.clip(fibres, 0, 1) * (1 - cells) * (1 - gaps)
    cells = cells * (1 - openings) * (0.8 + 0.08 * noise(rng, 3))
    return tuple(cv2.GaussianBlur(part, (0, 0), 0.8) for part in (nuclei, cells, fibres))  # type: ignore[return-value]


def stained(amounts: list[tuple[Plane, tuple[float, float, float], float]], light: float) -> NDArray[np.float32]:
    """(SIZE, SIZE, 3) light, R, G, B, that is left after stains have absorbed theirs (Beer and Lambert)."""
    density = sum(strength * plane[..., None] * np.array(stain, np.float32) for plane, stain, strength in amounts)
    return np.asarray(light * np.exp(-np.asarray(density)), dtype=np.float32)


def bend(seed: int) -> tuple[Plane, Plane]:
    """Where each pixel of the rotated picture comes from in the section: a rotation, and a slow random shift."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32))
    cos, sin, middle = math.cos(math.radians(ROTATION)), math.sin(math.radians(ROTATION)), (SIZE - 1) / 2
    dx, dy = x - middle, y - middle
    across, down = middle + cos * dx - sin * dy, middle + sin * dx + cos * dy
    return across + BEND * noise(rng, 130), down + BEND * noise(rng, 130)


def crop(picture: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """The middle, with the noise of a camera, as 8-bit BGR."""
    left, top = (SIZE - VIEW[0]) // 2, (SIZE - VIEW[1]) // 2
    middle = picture[top : top + VIEW[1], left : left + VIEW[0], ::-1]
    return np.asarray(np.clip(255 * (middle + 0.01 * rng.standard_normal(middle.shape)), 0, 255), dtype=np.uint8)


def make_slides(out: Path, seed: int) -> None:
    """Draw the section in both stains and write the two pictures."""
    nuclei, cells, fibres = make_section(seed)
    first = stained([(nuclei, HAEMATOXYLIN, 1.5), (cells, EOSIN, 0.45), (fibres, EOSIN, 0.75)], 0.95)
    second = stained([(nuclei, HAEMATOXYLIN, 1.1), (cells, BROWN, 0.9), (fibres, HAEMATOXYLIN, 0.22)], 0.90)
    second = cv2.remap(second, *bend(seed + 1), cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    rng = np.random.default_rng(seed + 2)
    pictures = [crop(first, rng), crop(np.asarray(second, np.float32), rng)]
    for number, picture in enumerate(pictures):
        cv2.imwrite(f"{out}_{number}.jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1])


def main() -> None:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description="Draw a made-up section of tissue in two stains, one of them rotated.")
    parser.add_argument("--out", type=Path, default=Path("slide"), help="prefix of the files written (default: slide)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn (default: 0)")
    args = parser.parse_args()
    make_slides(args.out, args.seed)


if __name__ == "__main__":
    main()
