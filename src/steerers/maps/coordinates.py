"""Where pixels lie: coordinate reference systems (CRS), longitudes and latitudes, metres on the ground.

All that the package has of rasterio is here and in :mod:`steerers.maps.rasters`; it is an extra (``pip install
"steerers[maps]"``) and imported when used.

Pixels are ours, the centre of the top-left one at (0, 0); GDAL's geotransforms and ground control points count from its
corner, half a pixel before. Coordinates are x, y, which is longitude, latitude for a geographic CRS, whatever its
authority says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from steerers.geometry import Size, transform_points

Array: TypeAlias = NDArray[np.float64]

LONLAT = "EPSG:4326"
FROM_CORNER = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
"""From our pixels to those of GDAL."""
_WEB_MERCATOR = 3857
_EQUATOR, _FLATNESS = 6_378_137.0, 0.00669437999  # of WGS 84: radius in metres, and eccentricity squared
_WORLD = 2 * math.pi * _EQUATOR


def import_rasterio() -> Any:
    """rasterio, or an error that says how to install it."""
    try:
        import rasterio
        import rasterio.control
        import rasterio.warp
        import rasterio.windows
    except ImportError as error:
        raise ImportError('maps are read through rasterio: pip install "steerers[maps]"') from error
    return rasterio


def transform_coordinates(source: str, target: str, xy: ArrayLike) -> Array:
    """(N, 2) coordinates of one CRS in another; NaN for places that the other does not have."""
    rasterio, points = import_rasterio(), np.asarray(xy, np.float64).reshape(-1, 2)
    try:
        with rasterio.Env(OGR_ENABLE_PARTIAL_REPROJECTION=True):
            found = rasterio.warp.transform(source, target, *points.T.tolist())
    except rasterio.errors.CRSError:
        raise
    except Exception:  # of GDAL, which are no RasterioErrors: one of the points has no place in the other CRS
        if len(points) == 1:
            return np.full((1, 2), math.nan)
        halves = np.array_split(points, 2)
        return np.concatenate([transform_coordinates(source, target, half) for half in halves])
    placed = np.array(found, np.float64).T
    return np.where(np.isfinite(placed).all(axis=1, keepdims=True), placed, math.nan)


def check_crs(crs: Any, whose: str) -> str:
    """A CRS by its name, such as ``EPSG:32633``, or WKT, as WKT; one from which longitudes can be had.

    Raises:
        ValueError: saying ``whose`` it is, if it is none.
    """
    rasterio = import_rasterio()
    try:
        parsed = rasterio.crs.CRS.from_user_input(crs)
        if not (parsed.is_geographic or parsed.is_projected):
            raise ValueError("it is neither geographic nor projected")
        return str(parsed.to_wkt())
    except (rasterio.errors.CRSError, ValueError) as error:
        raise ValueError(
            f"{whose}: {str(crs)!r:.80} is no coordinate reference system of the earth ({error})"
        ) from error


def name_crs(crs: str) -> str:
    """A short name of a CRS that is given as WKT: ``EPSG:32651``, or what the WKT calls it."""
    parsed = import_rasterio().crs.CRS.from_wkt(crs)
    code = parsed.to_epsg()
    return f"EPSG:{code}" if code is not None else crs.split('"')[1]


@dataclass(frozen=True, eq=False)
class Georeference:
    """Where the pixels of an image lie.

    Attributes:
        crs: the coordinate reference system, as WKT.
        matrix: (3, 3) map from our pixels to its coordinates; projective where four corners were given.
        size: (width, height) of the image.
    """

    crs: str
    matrix: Array
    size: Size

    def to_crs(self, xy: ArrayLike) -> Array:
        """(N, 2) coordinates of pixels."""
        return map_points(self.matrix, xy)

    def to_pixels(self, coordinates: ArrayLike) -> Array:
        """(N, 2) pixels of coordinates; across the antimeridian to the side where the image lies."""
        points = np.array(coordinates, np.float64).reshape(-1, 2)
        if self._period is not None:
            points[:, 0] += self._period * np.rint((self._centre[0] - points[:, 0]) / self._period)
        return map_points(np.linalg.inv(self.matrix), points)

    def to_lonlat(self, xy: ArrayLike) -> Array:
        """(N, 2) longitudes, from -180 to 180, and latitudes of pixels; NaN where there are none."""
        found = transform_coordinates(self.crs, LONLAT, self.to_crs(xy))
        found[:, 0] = (found[:, 0] + 180) % 360 - 180
        return found

    def from_lonlat(self, lonlat: ArrayLike) -> Array:
        """(N, 2) pixels of longitudes and latitudes."""
        return self.to_pixels(transform_coordinates(LONLAT, self.crs, lonlat))

    def metres(self, xy: ArrayLike) -> Array:
        """(2, 2) how many metres east and north (rows) a step of a pixel right and down (columns) is, at a pixel."""
        x, y = np.asarray(xy, np.float64)
        left, right, above, below = self.to_lonlat([[x - 0.5, y], [x + 0.5, y], [x, y - 0.5], [x, y + 0.5]])
        steps = np.stack([right - left, below - above], axis=1)
        steps[0] = (steps[0] + 180) % 360 - 180
        return np.asarray(np.radians(steps) * _radii(float(left[1] + right[1]) / 2)[:, None])

    def resolution(self, xy: ArrayLike | None = None) -> float:
        """Metres of a side of a pixel on the ground, by default of the one in the middle."""
        middle = [(side - 1) / 2 for side in self.size]
        return math.sqrt(abs(float(np.linalg.det(self.metres(middle if xy is None else xy)))))

    def control_points(self, count: int = 5) -> ControlPoints:
        """Those of a grid of ``count`` by ``count`` pixels, from corner to corner."""
        across, down = (np.linspace(-0.5, side - 0.5, count) for side in self.size)
        grid = np.stack(np.meshgrid(across, down), axis=-1).reshape(-1, 2)
        return ControlPoints(self.crs, grid, self.to_crs(grid))

    @cached_property
    def _centre(self) -> Array:
        return np.asarray(self.to_crs([(side - 1) / 2 for side in self.size])[0])

    @cached_property
    def _period(self) -> float | None:
        """Of x around the earth, of those that have one and whose maps are known to go on beyond the antimeridian."""
        parsed = import_rasterio().crs.CRS.from_wkt(self.crs)
        if parsed.is_geographic:
            return 360.0
        return _WORLD if parsed.to_epsg() == _WEB_MERCATOR else None


@dataclass(frozen=True, eq=False)
class ControlPoints:
    """(N, 2) pixels of an image and the (N, 2) coordinates of a CRS, as WKT, where they lie."""

    crs: str
    pixels: Array
    coordinates: Array


def _radii(latitude: float) -> Array:
    """(2,) metres of a radian of longitude and of latitude, on the ellipsoid of WGS 84."""
    sine, cosine = math.sin(math.radians(latitude)), math.cos(math.radians(latitude))
    across = _EQUATOR / math.sqrt(1 - _FLATNESS * sine**2)
    return np.array([across * cosine, across * (1 - _FLATNESS) / (1 - _FLATNESS * sine**2)])


def map_points(matrix: ArrayLike, xy: ArrayLike) -> Array:
    """(N, 2) points through a (3, 3) projective map."""
    points = torch.tensor(np.asarray(xy, np.float64).reshape(-1, 2))
    mapped = transform_points(torch.tensor(np.asarray(matrix, np.float64)), points)
    return np.asarray(mapped.numpy(), np.float64)
