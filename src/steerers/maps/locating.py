"""Where on a map photographs were taken: :func:`locate`, and what it says of each, :class:`Located`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from steerers._console import tell
from steerers._files import StrPath
from steerers.collection.manifest import Extraction
from steerers.geometry import Size
from steerers.images.exif import read_position
from steerers.maps.coordinates import LONLAT, ControlPoints, Georeference, map_points, name_crs, transform_coordinates
from steerers.maps.finder import Finder, LocateOptions, Prior
from steerers.maps.index import MapIndex, index_map, index_path
from steerers.maps.looking import Look, Photo
from steerers.maps.rasters import Raster, open_map
from steerers.maps.space import LARGE, RADIUS, View, fit_view
from steerers.maps.transforms import need_scipy

Array = NDArray[np.float64]

WITHIN = 1000.0
"""Metres that what a photograph shows may be away from its GPS position, unless said otherwise."""
_EDGE = 9  # points of an edge of a footprint


@dataclass(frozen=True, eq=False)
class Located:
    """Where a photograph was taken.

    Attributes:
        photo: its path; ``size`` (width, height) as stored.
        probability: that it is on the map, there; ``found`` whether that is enough.
        place: from its pixels to coordinates of the map's CRS; ``None`` if it is not found.
        matrix: (3, 3) map from its pixels to those of the map.
        photo_points: (K, 2) pixels of the matches that agree, and ``map_points`` (K, 2) those of the map.
        view: of a photograph from space, the camera.
        tiles: of the map with which it was compared; ``seconds`` that took.
        reason: in words, why it is not found.
    """

    photo: Path
    size: Size
    probability: float
    found: bool
    place: Georeference | None
    matrix: Array | None
    photo_points: Array
    map_points: Array
    map_place: Georeference
    view: View | None = None
    tiles: int = 0
    seconds: float = 0.0
    reason: str = ""

    def to_crs(self, xy: ArrayLike) -> Array:
        """(N, 2) coordinates of pixels in the CRS of the map; NaN where they show no earth."""
        if self.place is None:
            raise ValueError(f"{self.photo} was not found on the map")
        if self.view is None:
            return self.place.to_crs(xy)
        return transform_coordinates(LONLAT, self.place.crs, self.view.to_lonlat(xy))

    def to_lonlat(self, xy: ArrayLike) -> Array:
        """(N, 2) longitudes and latitudes of pixels."""
        if self.view is not None:
            return self.view.to_lonlat(xy)
        if self.place is None:
            raise ValueError(f"{self.photo} was not found on the map")
        return self.place.to_lonlat(xy)

    def to_pixels(self, coordinates: ArrayLike) -> Array:
        """(N, 2) pixels of coordinates in the CRS of the map."""
        if self.place is None:
            raise ValueError(f"{self.photo} was not found on the map")
        if self.view is None:
            return self.place.to_pixels(coordinates)
        return self.view.to_pixels(transform_coordinates(self.place.crs, LONLAT, coordinates))

    def control_points(self, count: int = 5) -> ControlPoints:
        """Of a grid of pixels that show the earth."""
        assert self.place is not None
        grid = self.place.control_points(count).pixels
        places = self.to_crs(grid)
        shown = np.isfinite(places).all(axis=1)
        return ControlPoints(self.place.crs, grid[shown], places[shown])

    @property
    def centre(self) -> tuple[float, float]:
        """Longitude and latitude of what is in the middle."""
        lon, lat = self.to_lonlat([self._middle])[0]
        return float(lon), float(lat)

    @property
    def heading(self) -> float:
        """By how many degrees, from 0 to 360, the upper edge of the photograph points clockwise from north."""
        east, north = self._metres @ (0.0, -1.0)
        return math.degrees(math.atan2(east, north)) % 360

    @property
    def resolution(self) -> float:
        """Metres of a side of a pixel on the ground, in the middle."""
        return math.sqrt(abs(float(np.linalg.det(self._metres))))

    @property
    def inliers(self) -> int:
        """How many matches agree."""
        return len(self.photo_points)

    @property
    def rmse(self) -> float:
        """Root of the mean squared distance, in metres, of matched points of the map from where they should be."""
        if self.view is not None:
            off = self.view.to_pixels(self.map_place.to_lonlat(self.map_points)) - self.photo_points
            return self.resolution * math.sqrt(float((off**2).sum(axis=1).mean()))
        assert self.matrix is not None
        off = map_points(self.matrix, self.photo_points) - self.map_points
        metres = self.map_place.resolution(self.map_points.mean(axis=0))
        return metres * math.sqrt(float((off**2).sum(axis=1).mean()))

    def footprint(self) -> Array:
        """(N, 2) longitudes and latitudes around what it shows, from the top-left corner clockwise, not closed."""
        right, bottom = self.size[0] - 0.5, self.size[1] - 0.5
        corners = np.array([[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom], [-0.5, -0.5]])
        parts = [np.linspace(a, b, _EDGE)[:-1] for a, b in pairwise(corners)]
        found = self.to_lonlat(np.concatenate(parts))
        return found[np.isfinite(found).all(axis=1)]

    def properties(self) -> dict[str, Any]:
        """What is said of it in GeoJSON and in reports, as JSON can hold it."""
        told: dict[str, Any] = {"photograph": str(self.photo), "found": self.found, "probability": self.probability}
        told |= {"tiles": self.tiles, "seconds": round(self.seconds, 2)}
        if not self.found:
            return {**told, "reason": self.reason}
        told |= {"centre": list(self.centre), "heading": self.heading, "resolution": self.resolution}
        told |= {"inliers": self.inliers, "rmse": self.rmse, "crs": self._crs_name}
        if self.view is not None:
            told["camera"] = {name: getattr(self.view, name) for name in ("longitude", "latitude", "height", "tilt")}
        return told

    @cached_property
    def _metres(self) -> Array:
        """(2, 2) metres east and north of a step of a pixel right and down, in the middle."""
        assert self.place is not None
        if self.view is None:
            return self.place.metres(self._middle)
        x, y = self._middle
        lonlat = self.view.to_lonlat([[x - 1, y], [x + 1, y], [x, y - 1], [x, y + 1]])
        across, down = (lonlat[1] - lonlat[0]) / 2, (lonlat[3] - lonlat[2]) / 2
        steps = np.stack([across, down], axis=1)
        steps[0] = ((steps[0] + 90) % 180 - 90) * math.cos(math.radians(float(lonlat[:, 1].mean())))
        return np.asarray(np.radians(steps) * RADIUS)

    @property
    def _middle(self) -> tuple[float, float]:
        return (self.size[0] - 1) / 2, (self.size[1] - 1) / 2

    @property
    def _crs_name(self) -> str:
        assert self.place is not None
        return name_crs(self.place.crs)


class Locator:
    """Looks for photographs on one map: call it with one after the other.

    Args:
        raster: the map, as :func:`steerers.maps.open_map` opens it.
        index: of the map, by default the one beside it; if there is none, it is made.
        extraction: model and options of an index that is made.
        weights: of the model, see :func:`steerers.load`.
        matching: how features are matched, as :func:`steerers.load` takes it: ``strategy``, ``order`` and others, but
            not ``refine``; by default as suits the model.
        options: how thoroughly is looked.

    Raises:
        ValueError: if the index is of another map or model, or the map has changed since, or ``matching`` refines.
    """

    def __init__(
        self,
        raster: Raster,
        index: StrPath | None = None,
        *,
        extraction: Extraction | None = None,
        weights: Sequence[StrPath] = (),
        device: str | torch.device = "cpu",
        matching: Mapping[str, Any] | None = None,
        options: LocateOptions | None = None,
    ) -> None:
        need_scipy()
        if matching is not None and matching.get("refine"):
            raise ValueError("places on maps are not refined: leave refine out")
        path = index_path(raster.path) if index is None else Path(index)
        if path.is_file():
            opened = MapIndex.open(path)
            opened.check(raster, extraction, weights)
        else:
            tell(f"{raster.path.name} has no index yet: it is made once, in {path}")
            opened = index_map(raster, path, extraction=extraction, weights=weights, device=device)
        pipeline = opened.extraction.load(weights, device=device, **(matching or {}))
        self._finder = Finder(raster, opened, pipeline, options)
        self.place = self._finder.place

    def __enter__(self) -> Locator:
        return self

    def __exit__(self, *error: object) -> None:
        self._finder.index.close()

    def __call__(self, photo: StrPath, prior: Prior | None = None) -> Located:
        """Where a photograph was taken.

        Args:
            prior: what is known beforehand; by default the GPS position of its EXIF data, if it has one, is within
                :data:`WITHIN` metres. ``Prior()`` is for nothing.

        Raises:
            ImageError: if it is no image.
        """
        start = time.perf_counter()
        path = Path(photo)
        shown = Photo(path)
        prior = exif_prior(path) if prior is None else prior
        found = self._finder.find(shown, prior)
        located = self._judge(shown, found.look, found.probability, found.tiles, prior)
        return replace(located, seconds=time.perf_counter() - start)

    def _judge(self, photo: Photo, look: Look | None, likely: float, tiles: int, prior: Prior) -> Located:
        enough = self._finder.options.threshold
        none = np.zeros((0, 2))
        nothing = Located(photo.path, photo.size, likely, False, None, None, none, none, self.place, tiles=tiles)
        if not tiles:
            return replace(nothing, reason=f"its position is more than {prior.within:g} m from the map")
        if look is None or likely < enough:
            return replace(nothing, reason=f"the best place on it has a probability of {likely:.2f}, below {enough:g}")
        place = Georeference(self.place.crs, self.place.matrix @ look.matrix, photo.size)
        located = replace(
            nothing,
            found=True,
            place=place,
            matrix=look.matrix,
            photo_points=look.photo_points,
            map_points=look.map_points,
        )
        return replace(located, view=_view_of(located)) if _is_large(located) else located


def locate(photo: StrPath, map_path: StrPath, *, prior: Prior | None = None, **told: Any) -> Located:
    """Where on a map a photograph was taken; for several, make one :class:`Locator`.

    Args:
        photo: its path.
        map_path: of any georeferenced raster that rasterio opens.
        prior: see :class:`Locator`; what else it takes may be given by name.
    """
    with open_map(map_path) as raster, Locator(raster, **told) as locator:
        return locator(photo, prior)


def exif_prior(photo: Path, within: float = WITHIN) -> Prior:
    """What the EXIF data of a photograph say of where it was taken."""
    position = read_position(photo)
    return Prior() if position is None else Prior((position[1], position[0]), within)


def _is_large(located: Located) -> bool:
    """Whether it shows so much of the earth that this is not flat."""
    return located.resolution * math.hypot(*located.size) > LARGE


def _view_of(located: Located) -> View | None:
    """The camera in space that explains the matches, if one does."""
    places = located.map_place.to_lonlat(located.map_points)
    return fit_view(located.photo_points, places, located.size, located.heading, located.resolution)
