"""Render two views of one plane, a board of prints, with the homography between them as ground truth.

Neither view is the source: each is a pinhole camera's picture of the board, with its own viewpoint, light (direction,
gain, tone curve, vignetting, a highlight), blur and sensor noise. The second camera is rolled by 130 degrees.

Usage::

    python make_planar_pair.py astronaut.jpg hubble.jpg coffee.jpg camera.jpg retina.jpg brick.jpg --out board

writes ``board_0.jpg``, ``board_1.jpg`` and ``board_H.txt`` (3 x 3, pixels of view 0 to pixels of view 1; x right,
y down, the centre of the top-left pixel at (0, 0)).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

BOARD = (2000, 1500)  # pixels of the plane's texture, (width, height)
COLUMNS = 3
VIEW = (1024, 768)  # pixels of a view
FOCAL = 1000.0
SUPERSAMPLING = 2
QUALITY = 90

Image = NDArray[np.float32]  # (H, W, 3), linear light in [0, 1]
Matrix = NDArray[np.float64]  # (3, 3)


@dataclass(frozen=True)
class Shot:
    """One picture of the board: where the camera stands, the light, and what the camera does to it.

    Attributes:
        roll: rotation of the picture, degrees counter-clockwise as seen.
        tilt: slant about the picture's horizontal axis of the board, degrees.
        pan: slant about its vertical axis, degrees.
        distance: camera to board, in widths of the board.
        shift: where the board's centre lands, pixels from the view's centre.
        light: gain at the four sides of the picture: (left, right, top, bottom).
        tone: exponent of the tone curve.
        vignetting: loss of light in the corners.
        highlight: (x, y, radius, strength) of a specular reflection, in widths of the view.
        blur: standard deviation in pixels.
        noise: standard deviation at mid-grey.
    """

    roll: float
    tilt: float
    pan: float
    distance: float
    shift: tuple[float, float]
    light: tuple[float, float, float, float]
    tone: float
    vignetting: float
    highlight: tuple[float, float, float, float]
    blur: float
    noise: float


SHOTS = (
    Shot(
        roll=0.0,
        tilt=22.0,
        pan=-18.0,
        distance=1.15,
        shift=(40.0, 0.0),
        light=(1.1, 0.9, 1.05, 0.95),
        tone=1.0 / 2.2,
        vignetting=0.15,
        highlight=(0.72, 0.2, 0.08, 0.3),
        blur=0.5,
        noise=0.008,
    ),
    Shot(
        roll=130.0,
        tilt=-20.0,
        pan=24.0,
        distance=1.3,
        shift=(5.0, 45.0),
        light=(0.55, 0.95, 0.65, 0.85),
        tone=1.0 / 1.9,
        vignetting=0.35,
        highlight=(0.4, 0.55, 0.1, 0.4),
        blur=0.9,
        noise=0.015,
    ),
)


def read_linear(path: Path) -> Image:
    """Read an image as linear light."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f"cannot read {path} as an image: give a JPEG or PNG file")
    return np.asarray((image / np.float32(255)) ** np.float32(2.2), dtype=np.float32)


def cork(rng: np.random.Generator) -> Image:
    """The bare board: grains of several sizes about a warm brown."""
    width, height = BOARD
    grain = np.zeros((height, width), np.float32)
    for sigma in (1.5, 4.0, 12.0):
        layer = cv2.GaussianBlur(rng.standard_normal((height, width), dtype=np.float32), (0, 0), sigma)
        grain += layer / layer.std()
    colour = np.array([0.10, 0.20, 0.32], np.float32)  # blue, green, red
    return np.asarray(np.clip(colour * (1 + 0.12 * grain[..., None]), 0, 1), dtype=np.float32)


def pin(board: Image, picture: Image, centre: tuple[float, float], side: float, angle: float) -> Image:
    """Put a print with a white border on the board, rotated by ``angle`` degrees, its longest side ``side`` pixels."""
    scale = side / max(picture.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    sheet = np.clip(cv2.resize(picture, size, interpolation=method), 0, 1)
    sheet = cv2.copyMakeBorder(sheet, 14, 14, 14, 14, cv2.BORDER_CONSTANT, value=(0.8, 0.8, 0.8))
    height, width = sheet.shape[:2]
    place = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, 1.0)  # (2, 3)
    place[:, 2] += np.array(centre) - ((width - 1) / 2, (height - 1) / 2)
    alpha = cv2.warpAffine(np.ones((height, width), np.float32), place, BOARD, flags=cv2.INTER_LINEAR)[..., None]
    shadow = cv2.GaussianBlur(np.roll(alpha[..., 0], (7, 5), (0, 1)), (0, 0), 6)[..., None]
    printed = cv2.warpAffine(sheet, place, BOARD, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(board * (1 - 0.6 * shadow) * (1 - alpha) + printed * alpha, dtype=np.float32)


def lay_out(pictures: Sequence[Image], rng: np.random.Generator) -> Image:
    """Pin the pictures to the board on a loose grid."""
    board = cork(rng)
    columns = min(COLUMNS, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    cell = (BOARD[0] / columns, BOARD[1] / rows)
    for i, picture in enumerate(pictures):
        jitter = rng.uniform(-0.04, 0.04, 2) * min(cell)
        centre = ((i % columns + 0.5) * cell[0] + jitter[0], (i // columns + 0.5) * cell[1] + jitter[1])
        board = pin(board, picture, centre, 0.84 * min(cell), rng.uniform(-7, 7))
    return board


def rotation(axis: int, degrees: float) -> Matrix:
    """The (3, 3) rotation about a coordinate axis."""
    vector = np.zeros(3)
    vector[axis] = math.radians(degrees)
    return np.asarray(cv2.Rodrigues(vector)[0], dtype=np.float64)


def view_homography(shot: Shot) -> Matrix:
    """The (3, 3) map from the board's pixels to the view's: a pinhole camera that looks at the board's centre."""
    pose = rotation(2, -shot.roll) @ rotation(0, shot.tilt) @ rotation(1, shot.pan)
    camera = np.array(
        [[FOCAL, 0, (VIEW[0] - 1) / 2 + shot.shift[0]], [0, FOCAL, (VIEW[1] - 1) / 2 + shot.shift[1]], [0, 0, 1]]
    )
    plane = np.column_stack([pose[:, 0], pose[:, 1], (0, 0, shot.distance)])  # (3, 3)
    unit = 1 / BOARD[0]
    board = np.array([[unit, 0, -unit * (BOARD[0] - 1) / 2], [0, unit, -unit * (BOARD[1] - 1) / 2], [0, 0, 1]])
    return np.asarray(camera @ plane @ board, dtype=np.float64)


def warp(board: Image, homography: Matrix) -> Image:
    """The board as seen through a homography, averaged over ``SUPERSAMPLING`` squared samples a pixel."""
    n = SUPERSAMPLING
    finer = np.array([[n, 0, (n - 1) / 2], [0, n, (n - 1) / 2], [0, 0, 1]])
    size = (n * VIEW[0], n * VIEW[1])
    wall = (0.30, 0.33, 0.34)
    fine = cv2.warpPerspective(
        board, finer @ homography, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_CONSTANT, borderValue=wall
    )
    return np.asarray(cv2.resize(np.clip(fine, 0, 1), VIEW, interpolation=cv2.INTER_AREA), dtype=np.float32)


def illuminate(image: Image, shot: Shot) -> Image:
    """Uneven light, a highlight, and the lens' vignetting."""
    x, y = np.meshgrid(np.linspace(0, 1, VIEW[0]), np.linspace(0, 1, VIEW[1]))
    left, right, top, bottom = shot.light
    gain = ((1 - x) * left + x * right) * ((1 - y) * top + y * bottom)
    gain *= 1 - shot.vignetting * ((x - 0.5) ** 2 + (y - 0.5) ** 2) / 0.5
    hx, hy, radius, strength = shot.highlight
    aspect = VIEW[1] / VIEW[0]
    shine = strength * np.exp(-((x - hx) ** 2 + ((y - hy) * aspect) ** 2) / (2 * radius**2))
    return np.asarray(image * gain[..., None] + shine[..., None], dtype=np.float32)


def expose(image: Image, shot: Shot, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blur, shot noise (its variance grows with the light), tone curve, 8 bits."""
    soft = np.clip(cv2.GaussianBlur(image, (0, 0), shot.blur), 0, None)
    noisy = soft + shot.noise * np.sqrt(soft / 0.2 + 0.05) * rng.standard_normal(soft.shape)
    return np.asarray(np.rint(255 * np.clip(noisy, 0, 1) ** shot.tone), dtype=np.uint8)


def make_pair(sources: Sequence[Path], out: Path, seed: int) -> None:
    """Render both views and write them with the homography from the first to the second."""
    rng = np.random.default_rng(seed)
    board = lay_out([read_linear(source) for source in sources], rng)
    maps = [view_homography(shot) for shot in SHOTS]
    for i, (shot, homography) in enumerate(zip(SHOTS, maps, strict=True)):
        view = expose(illuminate(warp(board, homography), shot), shot, rng)
        cv2.imwrite(f"{out}_{i}.jpg", view, [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1])
    between = maps[1] @ np.linalg.inv(maps[0])
    np.savetxt(f"{out}_H.txt", between / between[2, 2], fmt="%.12g")


def main() -> None:
    """Read the sources from the command line."""
    parser = argparse.ArgumentParser(description="Render two views of a board of prints, with their homography.")
    parser.add_argument("sources", type=Path, nargs="+", help="pictures to pin to the board")
    parser.add_argument("--out", type=Path, default=Path("board"), help="prefix of the files written (default: board)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the layout and the noise (default: 0)")
    args = parser.parse_args()
    make_pair(args.sources, args.out, args.seed)


if __name__ == "__main__":
    main()
