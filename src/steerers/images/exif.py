"""What a photograph says of how it was taken, in its EXIF data: where, by which camera, with which focal length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steerers.geometry import Size
from steerers.images.decode import open_header

EARTH_RADIUS = 6_371_008.8  # metres, mean
DIAGONAL_35MM = math.hypot(36, 24)  # millimetres, of the film that focal lengths are compared by

Position = tuple[float, float]  # latitude and longitude, degrees
_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0, 5: 1e-3}  # of the unit of a sensor's resolution: inch, cm, mm, micrometre


@dataclass(frozen=True)
class Taken:
    """How a photograph was taken, as far as it says.

    Attributes:
        size: (width, height) of the stored image.
        focal: focal length in pixels of the stored image: from the equivalent for 35 mm film, whose diagonal is
            compared, or from the length and the resolution of the sensor.
        camera: maker, model and lens; empty if it does not say.
        position: latitude and longitude in degrees, and the altitude in metres or ``None``.
    """

    size: Size
    focal: float | None = None
    camera: str = ""
    position: tuple[float, float, float | None] | None = None


def read_taken(path: Path) -> Taken:
    """What a photograph says of how it was taken; what is missing, or cannot be right, is left out.

    Raises:
        ImageError: if it is no image, or too large.
    """
    from PIL.ExifTags import IFD, Base

    with open_header(path) as image:
        main, details, gps = (_tags(image, block) for block in (None, IFD.Exif, IFD.GPSInfo))
        size = image.size
    named = (main.get(Base.Make), main.get(Base.Model), details.get(Base.LensModel))
    camera = " ".join(" ".join(map(_text, named)).split())
    position = _position(gps)
    where = None if position is None else (*position, _altitude(gps))
    return Taken(size, _focal(details, size), camera, where)


def read_position(path: Path) -> Position | None:
    """Where a photograph was taken, by its EXIF data; ``None`` where it does not say, or not in a way that is read.

    Raises:
        ImageError: if it is no image, or too large.
    """
    taken = read_taken(path).position
    return None if taken is None else taken[:2]


def ground_distance(first: Position, second: Position) -> float:
    """Metres between two positions along the surface of a round earth."""
    (lat0, lon0), (lat1, lon1) = (tuple(map(math.radians, position)) for position in (first, second))
    squared_half_chord = (
        math.sin((lat1 - lat0) / 2) ** 2 + math.cos(lat0) * math.cos(lat1) * math.sin((lon1 - lon0) / 2) ** 2
    )
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(squared_half_chord)))


# Tags -----------------------------------------------------------------------------------------------------------------


def _tags(image: Any, block: int | None) -> Mapping[int, Any]:
    try:
        exif = image.getexif()
        return dict(exif if block is None else exif.get_ifd(block))
    except Exception:  # parsers of broken blocks raise almost anything
        return {}


def _text(value: Any) -> str:
    """A name without what pads it, or cannot be printed."""
    text = value if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _number(value: Any) -> float | None:
    """A number above 0, as far as it is one."""
    try:
        number = float(value)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return number if 0 < number < math.inf else None


def _focal(tags: Mapping[int, Any], size: Size) -> float | None:
    from PIL.ExifTags import Base

    diagonal = math.hypot(*size)
    equivalent = _number(tags.get(Base.FocalLengthIn35mmFilm))
    if equivalent is not None:
        return equivalent * diagonal / DIAGONAL_35MM
    length, resolution = _number(tags.get(Base.FocalLength)), _number(tags.get(Base.FocalPlaneXResolution))
    unit = _MILLIMETRES.get(tags.get(Base.FocalPlaneResolutionUnit, 2))
    if length is None or resolution is None or unit is None:
        return None
    focal = length * resolution / unit  # of the image as the camera made it, which may have been shrunk since
    made = _number(tags.get(Base.ExifImageWidth)), _number(tags.get(Base.ExifImageHeight))
    if None not in made:
        focal *= max(size) / max(side for side in made if side is not None)
    return focal if 0.1 * diagonal < focal < 100 * diagonal else None  # units are wrong in many files


def _position(tags: Mapping[int, Any]) -> Position | None:
    from PIL.ExifTags import GPS

    try:
        latitude = _degrees(tags[GPS.GPSLatitude], tags[GPS.GPSLatitudeRef], "NS")
        longitude = _degrees(tags[GPS.GPSLongitude], tags[GPS.GPSLongitudeRef], "EW")
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return (latitude, longitude) if abs(latitude) <= 90 and abs(longitude) <= 180 else None


def _altitude(tags: Mapping[int, Any]) -> float | None:
    from PIL.ExifTags import GPS

    try:
        metres, below = float(tags[GPS.GPSAltitude]), tags.get(GPS.GPSAltitudeRef, 0)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    if not math.isfinite(metres):
        return None
    return -metres if below in (1, b"\1") else metres


def _degrees(parts: Any, reference: str, letters: str) -> float:
    """Degrees, minutes and seconds as degrees, above 0 to the side of the first letter."""
    degrees, minutes, seconds = (float(part) for part in parts)
    sign = 1 - 2 * letters.index(reference.strip("\0 ").upper())
    return sign * (degrees + minutes / 60 + seconds / 3600)
