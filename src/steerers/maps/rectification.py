"""The plane of a mosaic, straightened: in it squares of the ground are squares, and cameras have places above it.

Bundle adjustment gives homographies to the frame of one photograph, which may have been taken at a slant. A camera of
known focal length sees two perpendicular units of a plane as two columns of a rotation; the four numbers of the frame
that make it so for all cameras at once straighten the plane. Then every camera has a place, which GPS can be held
against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steerers.collection.georeference import Alignment as Placement
from steerers.collection.georeference import NotAlignedError, Position, align, common_origin, from_enu
from steerers.geometry import Size
from steerers.maps.adjustment import transfer
from steerers.maps.coordinates import LONLAT, transform_coordinates
from steerers.maps.transforms import Array

TYPICAL_FOCAL = 1.2
"""Of a photograph that does not say, in longer sides."""
SURE, UNSURE = 0.05, 0.3
"""How far a focal length may be off, as a logarithm: one from EXIF data, and one that is guessed."""
TOLERANCE = 0.05
"""Of a camera's columns, how far from perpendicular and equal they may be before they count less."""


@dataclass(frozen=True, eq=False)
class Rectified:
    """Images on a straightened plane.

    Attributes:
        maps: (3, 3) from pixels to the plane, by the numbers of the images; a pixel is about one of the photographs.
        cameras: (3,) where each camera is: along the plane, and below zero above it.
    """

    maps: dict[int, Array]
    cameras: dict[int, Array]


def rectify(maps: Mapping[int, Array], sizes: Mapping[int, Size], focals: Mapping[int, float | None]) -> Rectified:
    """Straighten the plane of homographies.

    Args:
        focals: in pixels, by the numbers of the images; ``None`` where it is not known.
    """
    from scipy.optimize import least_squares

    numbers = sorted(maps)
    unit = _centred(maps, sizes)
    onto = np.stack([np.linalg.inv(unit @ maps[index]) for index in numbers])  # (M, 3, 3) from the plane to pixels
    known = np.array([focals[index] is not None for index in numbers])
    lengths = np.array([focals[index] or TYPICAL_FOCAL * max(sizes[index]) for index in numbers])
    middles = np.array([[(side - 1) / 2 for side in sizes[index]] for index in numbers])

    def columns(values: Array) -> Array:
        """(M, 3, 3) directions that the axes of the straightened plane have in each camera."""
        return _directions(lengths * np.exp(values[4]), middles) @ onto @ np.linalg.inv(_frame(values))

    def off(values: Array) -> Array:
        first, second = columns(values)[:, :, 0], columns(values)[:, :, 1]
        norms = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
        lean = (first * second).sum(axis=1) / (norms[0] * norms[1])
        prior = values[4] / (SURE if known.mean() > 0.5 else UNSURE)
        return np.concatenate([lean / TOLERANCE, np.log(norms[0] / norms[1]) / TOLERANCE, [prior], 1e-3 * values[:4]])

    found = least_squares(off, np.zeros(5), loss="soft_l1")
    straight = _frame(found.x) @ unit
    scale = np.median([_scale(straight @ maps[index], sizes[index]) for index in numbers])
    straight = np.diag([1 / scale, 1 / scale, 1.0]) @ straight
    seen = columns(found.x) @ np.diag([scale, scale, 1.0])
    cameras = {index: _centre(own) for index, own in zip(numbers, seen, strict=True)}
    placed = {index: straight @ maps[index] for index in numbers}
    return Rectified({index: H / H[2, 2] for index, H in placed.items()}, cameras)


def _centred(maps: Mapping[int, Array], sizes: Mapping[int, Size]) -> Array:
    """(3, 3) to coordinates in which the centres of the images lie around zero, about one apart."""
    centres = np.concatenate([transfer(H, np.array([sizes[index]]) / 2) for index, H in maps.items()])
    middle = np.median(centres, axis=0)
    spread = max(float(np.median(np.abs(centres - middle))), max(max(size) for size in sizes.values()) / 2)
    return np.array([[1 / spread, 0, -middle[0] / spread], [0, 1 / spread, -middle[1] / spread], [0, 0, 1]])


def _frame(values: Array) -> Array:
    """(3, 3) by which the plane is straightened: stretched, sheared, and its horizon moved to infinity."""
    stretch, shear, x, y = values[:4]
    return np.array([[np.exp(stretch), shear, 0], [0, 1, 0], [x, y, 1]])


def _directions(focals: Array, middles: Array) -> Array:
    """(M, 3, 3) from pixels to directions of each camera."""
    found = np.zeros((len(focals), 3, 3))
    found[:, 0, 0] = found[:, 1, 1] = 1 / focals
    found[:, :2, 2] = -middles / focals[:, None]
    found[:, 2, 2] = 1
    return found


def _centre(columns: Array) -> Array:
    """(3,) where a camera is that sees the axes and the origin of the plane as the columns of a (3, 3) matrix."""
    scale = np.linalg.norm(columns[:, :2], axis=0).mean() * np.sign(columns[2, 2] or 1.0)
    first, second, origin = (columns / scale).T
    left, _, right = np.linalg.svd(np.stack([first, second, np.cross(first, second)], axis=1))
    return np.asarray(-(left @ right).T @ origin)


def _scale(H: Array, size: Size) -> float:
    """Units of the plane for a pixel of an image, in its middle."""
    x, y = (size[0] - 1) / 2, (size[1] - 1) / 2
    corner = transfer(H, np.array([[x, y], [x + 1, y], [x, y + 1]]))
    (a, b), (c, d) = corner[1:] - corner[0]
    return float(np.sqrt(abs(a * d - b * c)))


# On the Earth ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OnGround:
    """How the plane lies on the Earth.

    Attributes:
        crs: the UTM zone.
        matrix: (3, 3) from the plane to its coordinates, in metres.
        placement: of the cameras, with the distances from GPS, by the names of the photographs.
        metres: of a unit of the plane.
    """

    crs: str
    matrix: Array
    placement: Placement
    metres: float


def place_on_ground(rectified: Rectified, names: Mapping[int, str], positions: Mapping[str, Position]) -> OnGround:
    """Lay the plane, which is taken to be level, on the Earth by the GPS positions of the cameras.

    Altitudes are not asked: they are the worst that GPS has, and would tilt the plane.

    Raises:
        NotAlignedError: saying why that cannot be done.
    """
    centres = {names[index]: np.array([*camera[:2], 0.0]) for index, camera in rectified.cameras.items()}
    level: dict[str, Position] = {name: (*positions[name][:2], None) for name in centres.keys() & positions.keys()}
    if len(level) < 3:
        raise NotAlignedError(f"{len(level)} of the photographs have a GPS position, and three are needed")
    origin = common_origin(list(level.values()))
    placement = align(centres, level, origin)
    if placement.transform.R[2, 2] > 0:  # z of the plane goes into the ground
        raise NotAlignedError("by their GPS positions the photographs were taken from below")
    crs = utm_zone(float(origin[1]), float(origin[0]))
    reach = max(1.0, *(float(np.abs(centre[:2]).max()) for centre in centres.values()))
    grid = np.stack(np.meshgrid(*(np.linspace(-reach, reach, 5),) * 2), axis=-1).reshape(-1, 2)
    placed = from_enu(placement.transform(np.column_stack([grid, np.zeros(len(grid))])), origin)
    coordinates = transform_coordinates(LONLAT, crs, placed[:, [1, 0]])
    middle = coordinates.mean(axis=0)
    linear = np.linalg.lstsq(np.column_stack([grid, np.ones(len(grid))]), coordinates - middle, rcond=None)[0].T
    matrix = np.vstack([linear, [0, 0, 1]])
    matrix[:2, 2] += middle
    return OnGround(crs, matrix, placement, float(np.sqrt(abs(np.linalg.det(linear[:, :2])))))


def utm_zone(longitude: float, latitude: float) -> str:
    """The name of the UTM zone of a place; near the poles that of the polar stereographic projection."""
    if not -80 <= latitude <= 84:
        return "EPSG:32661" if latitude > 0 else "EPSG:32761"
    return f"EPSG:{(32600 if latitude >= 0 else 32700) + int((longitude + 180) % 360 // 6) + 1}"
