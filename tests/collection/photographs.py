"""Small photographs, with EXIF data, and features that nobody extracted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from PIL.ExifTags import GPS, IFD

from helpers import randn
from steerers.collection import Collection
from steerers.features import Features
from steerers.images.exif import Taken
from terrain import make_terrain, save, view_of

DIM = 128
"""Of the descriptions of Upright SIFT."""


def save_blank(path: Path, size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", size).save(path)


def save_taken(
    path: Path,
    position: tuple[float, float] | None = None,
    *,
    size: tuple[int, int] = (8, 6),
    main: dict[int, object] | None = None,
    details: dict[int, object] | None = None,
    gps: dict[int, object] | None = None,
) -> None:
    """A photograph with EXIF data: where it was taken, and tags of its three blocks."""
    image = PIL.Image.new("RGB", size)
    exif = image.getexif()
    exif.update(main or {})
    exif.get_ifd(IFD.Exif).update(details or {})
    tags = exif.get_ifd(IFD.GPSInfo)
    if position is not None:
        for value, place, reference, letters in (
            (position[0], GPS.GPSLatitude, GPS.GPSLatitudeRef, "NS"),
            (position[1], GPS.GPSLongitude, GPS.GPSLongitudeRef, "EW"),
        ):
            tags[place], tags[reference] = (abs(value), 0.0, 0.0), letters[value < 0]
    tags.update(gps or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif)


def save_street(folder: Path, houses: int, seed: int) -> list[float]:
    """Views along a street whose houses have the same roof, each turned its own way; the degrees that views are rotated
    by."""
    rng, roof, apart = np.random.default_rng(seed), 60, 120  # pixels
    street = make_terrain(max(700, houses * apart + 200), seed)
    tiles = make_terrain(2 * roof, seed + 100)
    side = torch.arange(2 * roof) - roof + 0.5
    inside = torch.hypot(side[:, None], side) < 0.7 * roof
    y = street.shape[1] // 2
    for house in range(houses):
        turned, _ = view_of(tiles, (roof - 0.5, roof - 0.5), rng.uniform(0, 360), (2 * roof, 2 * roof))
        place = (slice(None), slice(y - roof, y + roof), slice(100 + house * apart - roof, 100 + house * apart + roof))
        street[place] = torch.where(inside, turned, street[place])
    turns = []
    for index, x in enumerate(range(90, (houses - 1) * apart + 120, 45)):
        turns.append(rng.uniform(0, 360))
        view, _ = view_of(street, (x, y + rng.uniform(-15, 15)), turns[-1], (200, 160))
        save(view, folder / f"{index:02d}.png")
    return turns


def save_views(folder: Path, names: Iterable[str], size: tuple[int, int] = (120, 90)) -> None:
    """Views of one map, each a step further, every other one on its head."""
    terrain = make_terrain(300, seed=1)
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        view, _ = view_of(terrain, (100 + 12 * index, 150), 180 * (index % 2), size)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray((255 * view.permute(1, 2, 0)).byte().numpy()).save(path)


def make_features(count: int = 20, seed: int = 0) -> Features:
    return Features(
        100 * randn(count, 2, seed=seed).float(),
        randn(count, DIM, seed=seed + 1).float(),
        torch.ones(count),
        (120, 90),
        "upright-sift",
    )


def fill(
    collection: Collection, *, failed: Iterable[str] = (), positions: dict[str, tuple[float, float]] | None = None
) -> None:
    """Write features that nobody extracted into all shards."""
    for number, names in enumerate(collection.feature_shards()):
        with collection.write_features(number) as writer:
            for name in names:
                if name in failed:
                    writer.add_failure(name, "it is broken")
                    continue
                place = (positions or {}).get(name)
                taken = Taken((120, 90), position=None if place is None else (*place, None))
                writer.add(name, make_features(seed=sum(map(ord, name))), taken)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their paths, but locks and what is hidden."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    shown = (path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in shown}
