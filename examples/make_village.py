"""Make the photographs of ``village/``: eight views of a village that does not exist, each rotated at random.

Usage::

    python make_village.py village

A height map with houses, trees, fields and roads, its colours and shadows, and a camera that circles above it and looks
down at a slant; all from noise, nothing from elsewhere. Every view is rolled about its axis by any angle. The true
cameras are written to ``village/cameras.json``. The same seed gives the same pixels for the same version of numpy.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.float64]

EXTENT = 190.0  # metres, of the square that the height map spans
CELLS = 2304
SIZE, FOCAL = (800, 600), 760.0  # pixels
VIEWS, RADIUS, ALTITUDE = 8, 38.0, 78.0  # metres
QUALITY, SUPERSAMPLE = 84, 2
SUN = np.array([0.55, -0.35, 0.76])


def main() -> None:
    """Read the folder from the command line."""
    parser = argparse.ArgumentParser(description="Make eight views of a village that does not exist.")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(arguments.seed)
    village = make_village(rng)
    cameras = []
    for index in range(VIEWS):
        rotation, centre, roll = place_camera(rng, index)
        name = f"village_{index}.jpg"
        render(village, rotation, centre, rng).save(arguments.out / name, quality=QUALITY, optimize=True)
        cameras.append({"name": name, "R": rotation.tolist(), "centre": centre.tolist(), "roll_deg": roll})
    about = {"focal": FOCAL, "size": SIZE, "cameras": cameras}
    (arguments.out / "cameras.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


# The village ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Village:
    """Heights in metres and colours from 0 to 1 of the cells of a square."""

    height: Array  # (CELLS, CELLS)
    colour: Array  # (CELLS, CELLS, 3)


def noise(rng: np.random.Generator, wavelength: float) -> Array:
    """(CELLS, CELLS) smooth noise with deviation 1 of a wavelength in metres."""
    count = max(3, int(np.ceil(EXTENT / wavelength)) + 3)
    coarse = rng.normal(size=(count, count))
    places = np.arange(CELLS) / CELLS * EXTENT / wavelength
    low = places.astype(int)
    t = places - low
    t = t * t * (3 - 2 * t)
    rows = coarse[low] * (1 - t)[:, None] + coarse[low + 1] * t[:, None]
    return rows[:, low] * (1 - t) + rows[:, low + 1] * t


def fractal(rng: np.random.Generator, longest: float, shortest: float, fall: float) -> Array:
    """Noise of many wavelengths; each is ``fall`` times as strong as the one of twice its length."""
    total, strength, wavelength = np.zeros((CELLS, CELLS)), 1.0, longest
    while wavelength >= shortest:
        total += strength * noise(rng, wavelength)
        strength, wavelength = strength * fall, wavelength / 2
    return total


def make_village(rng: np.random.Generator) -> Village:
    """Ground, fields, roads, trees and houses, and the light on them."""
    x, y = np.meshgrid(*[(np.arange(CELLS) + 0.5) / CELLS * EXTENT - EXTENT / 2] * 2)
    height = 2.5 * fractal(rng, 60, 4, 0.4)
    colour, edge = make_fields(rng, x, y)
    road = np.clip((1.6 - edge) * 2, 0, 1)[..., None]
    gravel = 0.56 + 0.05 * fractal(rng, 2, 0.15, 0.8)[..., None] * np.array([1, 0.97, 0.9])
    colour = colour * (1 - road) + gravel * road
    for _ in range(600):
        plant_tree(rng, x, y, height, colour, edge)
    for _ in range(260):
        build_house(rng, x, y, height, colour, edge)
    return Village(height, np.clip(colour * light(height)[..., None], 0, 1))


def make_fields(rng: np.random.Generator, x: Array, y: Array) -> tuple[Array, Array]:
    """Colours of fields with furrows, and how far the next field is."""
    seeds = rng.uniform(-EXTENT / 2, EXTENT / 2, (85, 2))
    nearest, second, which = np.full(x.shape, np.inf), np.full(x.shape, np.inf), np.zeros(x.shape, int)
    wobble = 1.2 * noise(rng, 9), 1.2 * noise(rng, 9)
    for index, (a, b) in enumerate(seeds):
        distance = np.hypot(x + wobble[0] - a, y + wobble[1] - b)
        closer = distance < nearest
        second = np.where(closer, nearest, np.minimum(second, distance))
        which, nearest = np.where(closer, index, which), np.minimum(nearest, distance)
    crops = [[0.33, 0.45, 0.2], [0.62, 0.55, 0.28], [0.45, 0.36, 0.25], [0.25, 0.38, 0.18], [0.55, 0.58, 0.35]]
    kinds = np.array(crops)
    own = kinds[rng.integers(0, len(kinds), len(seeds))] * rng.uniform(0.8, 1.2, (len(seeds), 1))
    angle, pitch = rng.uniform(0, np.pi, len(seeds)), rng.uniform(0.8, 2.2, len(seeds))
    along = x * np.cos(angle)[which] + y * np.sin(angle)[which]
    furrows = 0.07 * np.sin(2 * np.pi * (along + 0.3 * noise(rng, 3)) / pitch[which])
    grain = 0.16 * fractal(rng, 6, 0.15, 0.75) / 2
    return own[which] * (1 + furrows + grain)[..., None], second - nearest


def window(x: Array, y: Array, place: Array, reach: float) -> tuple[slice, slice]:
    """The cells around a place."""
    low = np.floor((place - reach + EXTENT / 2) / EXTENT * CELLS).astype(int).clip(0, CELLS)
    high = np.ceil((place + reach + EXTENT / 2) / EXTENT * CELLS).astype(int).clip(0, CELLS)
    return slice(low[1], high[1]), slice(low[0], high[0])


def plant_tree(rng: np.random.Generator, x: Array, y: Array, height: Array, colour: Array, edge: Array) -> None:
    """A round tree, not on a road."""
    place, radius = rng.uniform(-EXTENT / 2, EXTENT / 2, 2), rng.uniform(0.9, 2.6)
    part = window(x, y, place, 1.3 * radius)
    if not edge[part].size or edge[part].min() < 1.5:
        return
    bumps = 0.25 * rng.normal(size=edge[part].shape)
    distance = np.hypot(x[part] - place[0], y[part] - place[1]) / radius
    crown = 1.5 * radius * np.sqrt(np.clip(1 - distance**2, 0, 1)) * (1 + 0.3 * bumps)
    inside = distance < 1
    height[part] += np.where(inside, crown, 0)
    leaves = np.array([0.16, 0.27, 0.1]) * rng.uniform(0.7, 1.5) * (1 + bumps[..., None])
    colour[part] = np.where(inside[..., None], leaves, colour[part])


def build_house(rng: np.random.Generator, x: Array, y: Array, height: Array, colour: Array, edge: Array) -> None:
    """A house with a gabled roof, beside a road."""
    place, angle = rng.uniform(-EXTENT / 2.2, EXTENT / 2.2, 2), rng.uniform(0, np.pi)
    half = np.array([rng.uniform(3.5, 6.5), rng.uniform(2.6, 4.0)])
    part = window(x, y, place, float(np.hypot(*half)))
    near = edge[part]
    if not near.size or near.min() < 1.0 or near.max() > 14:
        return
    dx, dy = x[part] - place[0], y[part] - place[1]
    u, v = dx * np.cos(angle) + dy * np.sin(angle), -dx * np.sin(angle) + dy * np.cos(angle)
    inside = (np.abs(u) < half[0]) & (np.abs(v) < half[1])
    ground = float(height[part][inside].mean()) if inside.any() else 0.0
    ridge = ground + rng.uniform(2.5, 4.0) + (half[1] - np.abs(v)) * rng.uniform(0.5, 0.9)
    height[part] = np.where(inside, ridge, height[part])
    kinds = np.array([[0.6, 0.26, 0.18], [0.45, 0.24, 0.2], [0.34, 0.35, 0.4], [0.66, 0.4, 0.28]])
    tiles = 1 + 0.12 * np.sign(np.sin(2 * np.pi * v / 0.5)) * np.sign(np.sin(2 * np.pi * u / 0.7))
    tiles = tiles + 0.07 * rng.normal(size=tiles.shape)
    roof = kinds[rng.integers(len(kinds))] * rng.uniform(0.85, 1.15) * tiles[..., None]
    colour[part] = np.where(inside[..., None], roof, colour[part])
    for _ in range(rng.integers(1, 4)):  # chimneys and windows in the roof
        a, b = rng.uniform(-0.8, 0.8, 2) * half
        spot = (np.abs(u - a) < rng.uniform(0.3, 0.7)) & (np.abs(v - b) < rng.uniform(0.3, 0.7)) & inside
        height[part] = np.where(spot, height[part] + rng.uniform(0.1, 1.0), height[part])
        colour[part] = np.where(spot[..., None], rng.uniform(0.15, 0.8) * np.array([1, 0.98, 0.95]), colour[part])


def light(height: Array) -> Array:
    """How bright each cell is: its slope against the sun, and shadows."""
    step = EXTENT / CELLS
    dy, dx = np.gradient(height, step)
    sun = SUN / np.linalg.norm(SUN)
    facing = (-dx * sun[0] - dy * sun[1] + sun[2]) / np.sqrt(dx**2 + dy**2 + 1)
    shadow = np.zeros_like(height, dtype=bool)
    flat = np.hypot(*sun[:2])
    for cells in range(2, 130, 2):
        a, b = round(sun[0] / flat * cells), round(sun[1] / flat * cells)
        moved = np.roll(height, (-b, -a), axis=(0, 1))
        shadow |= moved > height + np.hypot(a, b) * step * sun[2] / flat + 0.15
    return 0.42 + 0.85 * np.clip(facing, 0, 1) * np.where(shadow, 0.25, 1.0)


# The camera -----------------------------------------------------------------------------------------------------------


def place_camera(rng: np.random.Generator, index: int) -> tuple[Array, Array, float]:
    """(3, 3) from the world, z up, to a camera on a circle that looks near the middle; its place; its roll, degrees."""
    around = 2 * np.pi * index / VIEWS
    centre = np.array([RADIUS * np.cos(around), RADIUS * np.sin(around), ALTITUDE]) + rng.normal(0, 2.0, 3)
    forward = np.append(rng.normal(0, 4.0, 2), 0.0) - centre
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    roll = float(rng.uniform(0, 360))
    c, s = np.cos(np.radians(roll)), np.sin(np.radians(roll))
    upright = np.stack([right, np.cross(forward, right), forward])
    return np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ upright, centre, roll


def render(village: Village, rotation: Array, centre: Array, rng: np.random.Generator) -> Image.Image:
    """What the camera sees: rays that go down until they meet the ground."""
    width, height = SIZE[0] * SUPERSAMPLE, SIZE[1] * SUPERSAMPLE
    u, v = np.meshgrid(np.arange(width), np.arange(height))
    focal = FOCAL * SUPERSAMPLE
    rays = np.stack([(u + 0.5 - width / 2) / focal, (v + 0.5 - height / 2) / focal, np.ones_like(u, float)], axis=-1)
    picture = np.empty((height, width, 3))
    for rows in np.array_split(np.arange(height), 12):
        directions = rays[rows].reshape(-1, 3) @ rotation
        picture[rows] = shade(village, directions, centre).reshape(len(rows), width, 3)
    small = picture.reshape(SIZE[1], SUPERSAMPLE, SIZE[0], SUPERSAMPLE, 3).mean(axis=(1, 3))
    exposed = small * rng.uniform(0.9, 1.1) + rng.normal(0, 0.008, small.shape)
    return Image.fromarray((255 * np.clip(exposed, 0, 1) ** (1 / 1.15)).astype(np.uint8))


def shade(village: Village, directions: Array, centre: Array) -> Array:
    """(N, 3) colours along (N, 3) rays."""
    low, high = float(village.height.min()) - 1, float(village.height.max()) + 1
    near, far = (high - centre[2]) / directions[:, 2], (low - centre[2]) / directions[:, 2]
    before, after = near, far
    found = np.zeros(len(directions), bool)
    for t in np.linspace(0, 1, 45)[1:]:
        at = near + t * (far - near)
        points = centre + at[:, None] * directions
        below = points[:, 2] <= sample(village.height, points)
        after = np.where(below & ~found, at, after)
        found |= below
        before = np.where(found, before, at)
    for _ in range(6):
        middle = (before + after) / 2
        points = centre + middle[:, None] * directions
        below = points[:, 2] <= sample(village.height, points)
        before, after = np.where(below, before, middle), np.where(below, middle, after)
    return sample(village.colour, centre + after[:, None] * directions)


def sample(values: Array, points: Array) -> Array:
    """Values of the map at points, bilinear."""
    places = np.clip((points[:, :2] + EXTENT / 2) / EXTENT * CELLS - 0.5, 0, CELLS - 1.001)
    low = places.astype(int)
    t = places - low
    (i, j), (a, b) = low.T, t.T
    if values.ndim == 3:
        a, b = a[:, None], b[:, None]
    top = values[j, i] * (1 - a) + values[j, i + 1] * a
    return top * (1 - b) + (values[j + 1, i] * (1 - a) + values[j + 1, i + 1] * a) * b


if __name__ == "__main__":
    main()
