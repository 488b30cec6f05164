"""Draw a made-up place from above, as a map has it, and photograph it from a drone that looks down at a slant.

The map is an orthophoto of fields, a river, roads, houses and trees, all drawn. The photograph is another season and
time of day: other colours, other shadows, and trees of another year, through a pinhole camera that is rotated by 140
degrees, with uneven light, blur and noise. The ground is flat, so that the truth is a homography.

Usage::

    python make_map.py --out map

writes ``map.jpg``, ``map_photograph.jpg`` and ``map_H.txt`` (3 x 3, pixels of the photograph to pixels of the map; x
right, y down, the centre of the top-left pixel at (0, 0)).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

SIZE = 1024  # pixels of the map, a square
FINER = 2  # drawn at so many times that size
VIEW = (800, 600)  # pixels of the photograph
FOCAL = 760.0
QUALITY = 62

Picture = NDArray[np.float32]  # (H, W, 3), blue, green, red in [0, 1]
Points = NDArray[np.float64]  # (N, 2)


@dataclass(frozen=True)
class Season:
    """How the place looks at a time: colours (blue, green, red), where shadows fall, and what grew."""

    fields: tuple[tuple[float, float, float], ...]
    river: tuple[float, float, float]
    tree: tuple[float, float, float]
    shadow: tuple[int, int]  # pixels of the map
    seed: int  # of what is not the same at both times


SUMMER = Season(
    ((0.30, 0.55, 0.40), (0.35, 0.62, 0.62), (0.25, 0.45, 0.28), (0.42, 0.60, 0.70), (0.33, 0.50, 0.47)),
    (0.42, 0.40, 0.28),
    (0.14, 0.30, 0.16),
    (5, 4),
    10,
)
AUTUMN = Season(
    ((0.28, 0.46, 0.42), (0.30, 0.48, 0.60), (0.24, 0.38, 0.33), (0.34, 0.46, 0.60), (0.28, 0.42, 0.50)),
    (0.36, 0.38, 0.33),
    (0.13, 0.26, 0.27),
    (-4, 6),
    11,
)


def noise(rng: np.random.Generator, wavelength: float) -> NDArray[np.float32]:
    """(SIZE, SIZE) smooth noise of unit deviation."""
    layer = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
    soft = cv2.GaussianBlur(layer, (0, 0), wavelength)
    return np.asarray(soft / soft.std(), dtype=np.float32)


def fixed(points: Points) -> NDArray[np.int32]:
    """Points of the map as OpenCV draws them: in sixteenths of the finer picture's pixels."""
    return np.rint(16 * (FINER * points + (FINER - 1) / 2)).astype(np.int32)


def curve(rng: np.random.Generator, start: tuple[float, float], end: tuple[float, float], swing: float) -> Points:
    """A line that wanders from one place to another."""
    along = np.linspace(0, 1, 60)
    straight = np.outer(1 - along, start) + np.outer(along, end)
    across = np.array([start[1] - end[1], end[0] - start[0]]) / math.dist(start, end)
    waves = sum(rng.uniform(-1, 1) * np.sin(k * math.pi * along) / k for k in range(1, 6))
    return np.asarray(straight + swing * np.outer(np.asarray(waves), across))


def draw_fields(picture: Picture, season: Season, rng: np.random.Generator) -> None:
    """Fields between straight borders: the cells of random sites, each with a colour and rows of its own."""
    sites = rng.uniform(0, SIZE, (46, 2)).astype(np.float32)
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    distances = [np.abs(x - a) * 0.8 + np.hypot(x - a, y - b) for a, b in sites]
    owner = np.argmin(distances, axis=0)
    kinds, angles = rng.integers(0, 1 << 16, len(sites)), rng.uniform(0, math.pi, len(sites))
    wavelengths, depths = rng.uniform(5, 11, len(sites)), rng.uniform(0.02, 0.10, len(sites))
    patches = 0.05 * noise(rng, 18) + 0.04 * noise(rng, 3)
    for site in range(len(sites)):
        inside = owner == site
        rows = np.sin((x * np.cos(angles[site]) + y * np.sin(angles[site])) * 2 * math.pi / wavelengths[site])
        light = (1 + depths[site] * rows + patches)[..., None]
        colour = np.array(season.fields[kinds[site] % len(season.fields)], np.float32)
        fine = cv2.resize((colour * light).astype(np.float32), None, fx=FINER, fy=FINER, interpolation=cv2.INTER_CUBIC)
        mask = cv2.resize(inside.astype(np.uint8), None, fx=FINER, fy=FINER, interpolation=cv2.INTER_NEAREST) > 0
        picture[mask] = fine[mask]


def draw_lines(picture: Picture, season: Season, rng: np.random.Generator) -> tuple[Points, list[Points]]:
    """The river and the roads, which are given back."""
    river = curve(rng, (-20, 240), (SIZE + 20, 700), 190)
    roads = [
        curve(rng, (-20, 760), (SIZE + 20, 300), 60),
        curve(rng, (330, -20), (610, SIZE + 20), 50),
        curve(rng, (700, -20), (760, SIZE + 20), 40),
        curve(rng, (80, SIZE + 20), (480, 480), 30),
    ]
    for line, width, colour in [
        (river, 46, (0.25, 0.36, 0.30)),
        (river, 38, season.river),
        *((road, 15, (0.36, 0.46, 0.46)) for road in roads),
        *((road, 9, (0.58, 0.60, 0.62)) for road in roads),
    ]:
        cv2.polylines(picture, [fixed(line)], False, colour, FINER * width, cv2.LINE_AA, 4)
    for road in roads[:2]:
        for k in range(0, 58, 2):
            cv2.polylines(picture, [fixed(road[k : k + 2])], False, (0.9, 0.9, 0.9), FINER, cv2.LINE_AA, 4)
    return river, roads


def distance(place: Points, line: Points) -> float:
    """From a place to the nearest of a line's points."""
    return float(np.linalg.norm(line - place, axis=1).min())


def draw_houses(picture: Picture, season: Season, rng: np.random.Generator, river: Points, roads: list[Points]) -> None:
    """Houses along the roads: two halves of a roof, one lit and one not, and a shadow."""
    taken: list[Points] = []
    for _ in range(420):
        road = roads[rng.integers(len(roads))]
        k, side = int(rng.integers(4, 55)), rng.choice([-1, 1])
        along = road[k + 1] - road[k]
        along /= np.linalg.norm(along)
        across = np.array([-along[1], along[0]])
        centre = road[k] + side * rng.uniform(24, 62) * across + rng.uniform(-6, 6) * along
        half = np.array([rng.uniform(8, 17), rng.uniform(6, 10)])
        if any(np.linalg.norm(centre - other) < 34 for other in taken) or distance(centre, river) < 42:
            continue
        if any(distance(centre, other) < 20 for other in roads):
            continue
        taken.append(centre)
        corners = centre + np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half @ np.stack([along, across])
        roof = np.array(
            [(0.25, 0.30, 0.62), (0.42, 0.42, 0.46), (0.30, 0.36, 0.50), (0.72, 0.74, 0.76)][rng.integers(4)]
        )
        cv2.fillConvexPoly(picture, fixed(corners + season.shadow), (0.13, 0.16, 0.15), cv2.LINE_AA, 4)
        middles = (corners[[0, 1]] + corners[[3, 2]]) / 2
        lit = 0.15 * np.sign(np.dot(across, season.shadow))
        for part, light in (
            ([corners[0], corners[1], middles[1], middles[0]], 1 + lit),
            ([*middles, corners[2], corners[3]], 1 - lit),
        ):
            cv2.fillConvexPoly(picture, fixed(np.array(part)), tuple(map(float, roof * light)), cv2.LINE_AA, 4)


def draw_trees(picture: Picture, season: Season, rng: np.random.Generator, river: Points) -> None:
    """Trees in groups; nine of ten stand in both seasons."""
    yearly = np.random.default_rng(season.seed)
    centres = np.concatenate([rng.normal(place, 30, (16, 2)) for place in rng.uniform(0, SIZE, (26, 2))])
    for centre, radius, light in zip(
        centres, rng.uniform(3, 8, len(centres)), rng.uniform(0.7, 1.3, len(centres)), strict=True
    ):
        if yearly.uniform() < 0.1 or distance(centre, river) < 30:
            continue
        size = round(16 * FINER * radius)
        for shift, colour in (
            (np.array(season.shadow), (0.10, 0.13, 0.12)),
            (np.zeros(2), np.array(season.tree) * light),
        ):
            place = tuple(map(int, fixed(centre + shift)))
            cv2.circle(picture, place, size, tuple(map(float, colour)), -1, cv2.LINE_AA, 4)
        bright = tuple(map(float, np.minimum(1, np.array(season.tree) * light * 1.5)))
        cv2.circle(
            picture,
            tuple(map(int, fixed(centre - np.array(season.shadow) * radius / 22))),
            size // 2,
            bright,
            -1,
            cv2.LINE_AA,
            4,
        )


def draw(season: Season, seed: int) -> Picture:
    """The place from straight above."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((FINER * SIZE, FINER * SIZE, 3), np.float32)
    draw_fields(picture, season, rng)
    river, roads = draw_lines(picture, season, rng)
    draw_houses(picture, season, rng, river, roads)
    draw_trees(picture, season, rng, river)
    grain = 0.02 * noise(np.random.default_rng(season.seed + 100), 1.0)
    return np.clip(picture + cv2.resize(grain, None, fx=FINER, fy=FINER)[..., None], 0, 1)


def camera() -> NDArray[np.float64]:
    """(3, 3), from pixels of the map to those of the photograph: a pinhole camera, rolled by 140 degrees."""
    pose = np.eye(3)
    for axis, degrees in ((2, -140.0), (0, 24.0), (1, -10.0)):
        vector = np.zeros(3)
        vector[axis] = math.radians(degrees)
        pose = pose @ cv2.Rodrigues(vector)[0]
    intrinsics = np.array([[FOCAL, 0, (VIEW[0] - 1) / 2], [0, FOCAL, (VIEW[1] - 1) / 2], [0, 0, 1]])
    plane = np.column_stack([pose[:, 0], pose[:, 1], (0, 0, 560.0)])
    to_plane = np.array([[1, 0, -540.0], [0, 1, -500.0], [0, 0, 1]])
    return np.asarray(intrinsics @ plane @ to_plane)


def photograph(place: Picture, homography: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """The place through a camera, with uneven light, blur and noise."""
    to_finer = np.array([[FINER, 0, (FINER - 1) / 2], [0, FINER, (FINER - 1) / 2], [0, 0, 1]])
    size = (FINER * VIEW[0], FINER * VIEW[1])
    fine = cv2.warpPerspective(place, to_finer @ homography @ np.linalg.inv(to_finer), size, flags=cv2.INTER_LINEAR)
    view = cv2.GaussianBlur(cv2.resize(fine, VIEW, interpolation=cv2.INTER_AREA), (0, 0), 0.7)
    x, y = np.meshgrid(np.linspace(-1, 1, VIEW[0]), np.linspace(-1, 1, VIEW[1]))
    gain = (1.05 + 0.12 * x - 0.08 * y - 0.12 * (x**2 + y**2))[..., None]
    return np.asarray(np.clip(255 * (view * gain + 0.012 * rng.standard_normal(view.shape)), 0, 255), dtype=np.uint8)


def make_map(out: Path, seed: int) -> None:
    """Draw the place twice, photograph the second, and write both with the homography between them."""
    options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    above = cv2.resize(draw(SUMMER, seed), (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    cv2.imwrite(f"{out}.jpg", np.rint(255 * above).astype(np.uint8), options)
    homography = camera()
    cv2.imwrite(
        f"{out}_photograph.jpg", photograph(draw(AUTUMN, seed), homography, np.random.default_rng(seed + 1)), options
    )
    back = np.linalg.inv(homography)
    np.savetxt(f"{out}_H.txt", back / back[2, 2], fmt="%.12g")


def main() -> None:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description="Draw a made-up place as a map, and a photograph of it.")
    parser.add_argument("--out", type=Path, default=Path("map"), help="prefix of the files written (default: map)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn (default: 0)")
    args = parser.parse_args()
    make_map(args.out, args.seed)


if __name__ == "__main__":
    main()
