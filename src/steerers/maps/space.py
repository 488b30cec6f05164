"""Photographs from space: a camera above a round earth, PROJ's tilted perspective (``tpers``).

Over hundreds of kilometres no homography relates a photograph to a flat map. Seven numbers do: where the camera stands
above, how high, by how much and in which direction it looks away from straight down, how it is rolled, and its focal
length. They are fitted to matched points. The earth is a sphere here, as it is for ``tpers``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steerers.geometry import Size
from steerers.maps.coordinates import LONLAT, transform_coordinates

Array = NDArray[np.float64]

LARGE = 100_000.0
"""Metres across of what a photograph shows, from which it is taken for one from space."""
RADIUS = 6_371_000.0
HEIGHT = 400_000.0
"""Metres, where the search begins: where the space station flies."""
_BEHIND = 1e4  # pixels that a point is off which the camera could not see
_STEP = 1e-6  # of numerical derivatives
_SCALES = (0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.1)  # of the seven numbers: how far they are off, roughly
_HELD = np.array([0, 0, 0.3, 0, 0, 0, 0.3])  # pixels for a factor of e: height and focal length are hard to tell apart


@dataclass(frozen=True, eq=False)
class View:
    """A camera above the earth.

    Attributes:
        longitude, latitude: of the point straight below, in degrees; ``height`` above it in metres.
        tilt: degrees from straight down, towards ``azimuth``, degrees clockwise from north.
        roll: degrees by which what is towards the azimuth is turned clockwise from up in the photograph.
        focal: in pixels; the axis meets the middle of the photograph, of ``size`` (width, height).
    """

    longitude: float
    latitude: float
    height: float
    tilt: float
    azimuth: float
    roll: float
    focal: float
    size: Size

    @property
    def crs(self) -> str:
        """The projection, as PROJ writes it."""
        return (
            f"+proj=tpers +lat_0={self.latitude:.12f} +lon_0={self.longitude:.12f} +h={self.height:.6f} "
            f"+tilt={self.tilt:.12f} +azi={self.azimuth:.12f} +R={RADIUS} +units=m +no_defs"
        )

    def to_pixels(self, lonlat: ArrayLike) -> Array:
        """(N, 2) pixels of longitudes and latitudes; NaN where the camera does not see them."""
        x, y = transform_coordinates(LONLAT, self.crs, lonlat).T
        tilt = math.radians(self.tilt)
        scale = self.focal / (self.height * math.cos(tilt))
        u, v = scale * x, -scale * (y - self.height * math.sin(tilt))  # from the middle, right and down
        return np.stack([u, v], axis=1) @ _clockwise(self.roll).T + self._middle

    def to_lonlat(self, xy: ArrayLike) -> Array:
        """(N, 2) longitudes and latitudes of pixels; NaN where they show no earth."""
        tilt = math.radians(self.tilt)
        scale = self.focal / (self.height * math.cos(tilt))
        u, v = ((np.asarray(xy, np.float64).reshape(-1, 2) - self._middle) @ _clockwise(self.roll)).T
        plane = np.stack([u / scale, self.height * math.sin(tilt) - v / scale], axis=1)
        return transform_coordinates(self.crs, LONLAT, plane)

    @property
    def _middle(self) -> Array:
        return (np.asarray(self.size, np.float64) - 1) / 2


def _clockwise(degrees: float) -> Array:
    """(2, 2) rotation of pixel offsets, clockwise as seen."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[c, -s], [s, c]])


def fit_view(pixels: ArrayLike, lonlat: ArrayLike, size: Size, heading: float, resolution: float) -> View | None:
    """The camera that sees (N, 2) longitudes and latitudes at (N, 2) pixels, by least squares; ``None`` of fewer than
    six points, or where no camera does.

    Args:
        heading: about by how many degrees the upper edge of the photograph points clockwise from north.
        resolution: about how many metres a pixel has in the middle.
    """
    from scipy.optimize import least_squares

    seen, places = np.asarray(pixels, np.float64), np.asarray(lonlat, np.float64)
    if len(seen) < 6:
        return None
    middle = places[np.argmin(np.linalg.norm(seen - (np.asarray(size) - 1) / 2, axis=1))]
    start = np.array([*middle, math.log(HEIGHT), 0, 0, math.radians(-heading), math.log(HEIGHT / resolution)])

    def residuals(values: Array) -> Array:
        found = _view(values, size).to_pixels(places) - seen
        return np.append(np.where(np.isfinite(found), found, _BEHIND).ravel(), _HELD * (values - start))

    best = least_squares(residuals, start, method="lm", diff_step=_STEP, x_scale=_SCALES)
    view = _view(best.x, size)
    return view if np.isfinite(view.to_pixels(places)).all() else None


def _view(values: Array, size: Size) -> View:
    """Of seven numbers without seams: the tilt as a vector east and north, and how north is turned from up."""
    longitude, latitude, height, east, north, turn, focal = values.tolist()
    tilt = min(math.degrees(math.hypot(east, north)), 89.0)
    azimuth = math.degrees(math.atan2(east, north)) if tilt > 0 else 0.0
    roll = math.degrees(turn) + azimuth
    place = (longitude + 180) % 360 - 180, min(89.9, max(-89.9, latitude))
    return View(*place, math.exp(min(height, 25.0)), tilt, azimuth, roll, math.exp(min(focal, 25.0)), size)
