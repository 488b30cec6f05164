"""Which pairs of a folder of photographs are matched: all, neighbours in the order of names, or by GPS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from steerers.benchmarks.pairs import Pair
from steerers.datasets.photos import ENDINGS

EARTH_RADIUS = 6_371_008.8  # metres, mean
HELP = f"give --data a folder with at least two photographs ({', '.join(sorted(ENDINGS))}) of one place"

Position = tuple[float, float]  # latitude and longitude, degrees


@dataclass(frozen=True)
class Selection:
    """Which pairs of a folder are matched; by default all.

    Attributes:
        neighbours: each image with so many that follow it in the order of names.
        gps: those taken at most so many metres apart, by the positions in their EXIF data.
        most: no more than so many pairs, the nearest: on the ground with ``gps``, else in the order of names.
    """

    neighbours: int | None = None
    gps: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("neighbours", self.neighbours), ("most", self.most)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.gps is not None and not 0 < self.gps < math.inf:
            raise ValueError(f"gps must be a positive and finite number of metres, got {self.gps}")
        if self.gps is not None and self.neighbours is not None:
            raise ValueError("give neighbours (in the order of names) or gps (on the ground), not both")


def list_images(folder: Path) -> list[Path]:
    """The photographs of a folder, by name; not those in folders below, whose names could be the same."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())
    if len(images) < 2:
        raise ValueError(f"{folder} holds {len(images)} photographs; {HELP}")
    return images


def list_pairs(folder: Path, selection: Selection | None = None) -> list[Pair]:
    """The pairs of a folder that a selection takes, in the order of names; the first name of each comes first."""
    selection = selection or Selection()
    images = list_images(folder)
    if selection.gps is None:
        gaps = {(i, j): float(j - i) for i, j in combinations(range(len(images)), 2)}
        reach = math.inf if selection.neighbours is None else selection.neighbours
    else:
        gaps, reach = _ground_distances(images), selection.gps
    near = [pair for pair, gap in gaps.items() if gap <= reach]
    if not near:
        closest = min(gaps.values())
        raise ValueError(
            f"no two photographs of {folder} are within {reach:g} m; the nearest are {closest:.1f} m apart"
        )
    if selection.most is not None:
        near = sorted(sorted(near, key=lambda pair: (gaps[pair], pair))[: selection.most])
    return [Pair(f"{images[i].name} {images[j].name}", folder.name, images[i], images[j]) for i, j in near]


def _ground_distances(images: Sequence[Path]) -> dict[tuple[int, int], float]:
    positions = [read_position(path) for path in images]
    without = [path for path, position in zip(images, positions, strict=True) if position is None]
    if without:
        raise ValueError(
            f"{without[0]} has no GPS position in its EXIF data, nor have {len(without) - 1} others of {len(images)}; "
            "choose pairs by the order of names, or leave those out"
        )
    known = [position for position in positions if position is not None]
    return {(i, j): ground_distance(known[i], known[j]) for i, j in combinations(range(len(known)), 2)}


# Positions ------------------------------------------------------------------------------------------------------------


def read_position(path: Path) -> Position | None:
    """Where a photograph was taken, by its EXIF data; ``None`` where it does not say, or not in a way that is read."""
    import PIL.Image
    from PIL.ExifTags import GPS, IFD

    try:
        with PIL.Image.open(path) as image:
            tags = image.getexif().get_ifd(IFD.GPSInfo)
        latitude = _degrees(tags[GPS.GPSLatitude]) * _sign(tags[GPS.GPSLatitudeRef], "NS")
        longitude = _degrees(tags[GPS.GPSLongitude]) * _sign(tags[GPS.GPSLongitudeRef], "EW")
    except (OSError, SyntaxError, KeyError, ValueError, TypeError, ZeroDivisionError):  # broken blocks raise all these
        return None
    return (latitude, longitude) if abs(latitude) <= 90 and abs(longitude) <= 180 else None


def _degrees(parts: Any) -> float:
    """Degrees, minutes and seconds as degrees."""
    degrees, minutes, seconds = (float(part) for part in parts)
    return degrees + minutes / 60 + seconds / 3600


def _sign(reference: str, letters: str) -> int:
    return 1 - 2 * letters.index(reference.strip("\0 ").upper())


def ground_distance(first: Position, second: Position) -> float:
    """Metres between two positions along the surface of a round earth."""
    (lat0, lon0), (lat1, lon1) = (tuple(map(math.radians, position)) for position in (first, second))
    squared_half_chord = (
        math.sin((lat1 - lat0) / 2) ** 2 + math.cos(lat0) * math.cos(lat1) * math.sin((lon1 - lon0) / 2) ** 2
    )
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(squared_half_chord)))
