"""Rasters, opened and read by windows, whatever their size, bands and types of numbers."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steerers._files import StrPath
from steerers.geometry import Size
from steerers.maps.coordinates import FROM_CORNER, LONLAT, Array, Georeference, check_crs, import_rasterio

Window: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels: those of a whole image are 0, 0, width and height."""

GREY = 128
"""Colour of what lies beyond a map, or has no data."""
STRETCH = (0.5, 99.5)
"""Percentiles of values of more than 8 bits that become black and white."""
_OVERVIEW = 1024  # pixels of the longest side of what they are measured on


class Raster:
    """An image that rasterio opened, read by windows; a context manager. Make one with :func:`open_raster`.

    Attributes:
        size: (width, height).
        count: how many bands it has, ``dtype`` of what type, and ``bands`` which of them, from 1, are shown as colours.
        georeference: where it lies, or ``None``.
        nodata: the value of pixels without data, or ``None``; ``has_alpha`` if the last band says where there are some.
    """

    def __init__(self, path: Path, dataset: Any, georeference: Georeference | None, bands: Sequence[int]) -> None:
        self.path, self.dataset, self.georeference = path, dataset, georeference
        self.size: Size = (dataset.width, dataset.height)
        self.count, self.dtype = int(dataset.count), np.dtype(dataset.dtypes[0])
        self.bands = tuple(bands)
        self.nodata: float | None = dataset.nodata
        self.has_alpha = dataset.colorinterp[-1].name == "alpha"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.dataset.close()

    @property
    def place(self) -> Georeference:
        """Where it lies; ValueError if it does not say."""
        if self.georeference is None:
            raise ValueError(f"{self.path} does not say where it lies")
        return self.georeference

    def read(
        self, window: Window | None = None, size: Size | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """What a window shows, which may reach beyond the image; no more is read than is asked for.

        One band becomes grey. Values of more than 8 bits are stretched, by percentiles of the whole image.

        Args:
            window: by default all of it.
            size: (width, height) in which it is returned, by default in pixels of the image.

        Returns:
            (H, W, 3) RGB, and (H, W) where there are data.
        """
        left, top, right, bottom = window or (0, 0, *self.size)
        width, height = size or (round(right - left), round(bottom - top))
        colours = np.full((height, width, 3), GREY, np.uint8)
        valid = np.zeros((height, width), bool)
        columns, rows = (
            _cells(start, end, count, side)
            for start, end, count, side in ((left, right, width, self.size[0]), (top, bottom, height, self.size[1]))
        )
        if columns.shown and rows.shown:
            inside, there = self._read_inside(columns, rows)
            part = np.s_[rows.first : rows.last, columns.first : columns.last]
            colours[part][there] = inside[there]
            valid[part] = there
        return colours, valid

    def read_bands(self, window: Window) -> NDArray[Any]:
        """(C, H, W) all bands of a window of whole pixels inside the image, as they are stored."""
        with self._errors():
            return np.asarray(self.dataset.read(window=rasterio_window(window)))

    def read_stored(self, window: Window, size: Size) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """(H, W, C) all bands of a window of whole pixels inside the image, as they are stored, at a (width, height),
        averaged where that is smaller; and (H, W) where there are data."""
        resampling, shape = import_rasterio().enums.Resampling, (size[1], size[0])
        how = resampling.nearest if (window[2] - window[0], window[3] - window[1]) == size else resampling.average
        told: dict[str, Any] = {"window": rasterio_window(window), "resampling": how}
        with self._errors():
            values = self.dataset.read(out_shape=(self.count, *shape), **told)
            there = self.dataset.dataset_mask(out_shape=shape, window=told["window"]) > 0
        return np.moveaxis(values, 0, 2), there & np.isfinite(values).all(axis=0)

    def _read_inside(self, columns: _Cells, rows: _Cells) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        rasterio = import_rasterio()
        window = rasterio_window((columns.start, rows.start, columns.end, rows.end))
        shape = (rows.shown, columns.shown)
        shrunk = columns.end - columns.start > columns.shown or rows.end - rows.start > rows.shown
        how = rasterio.enums.Resampling.average if shrunk else rasterio.enums.Resampling.bilinear
        palette = self._palette
        with self._errors():
            if palette is not None:
                how = rasterio.enums.Resampling.nearest
            values = self.dataset.read(self.bands, window=window, out_shape=(len(self.bands), *shape), resampling=how)
            there = self.dataset.dataset_mask(window=window, out_shape=shape) > 0
        if palette is not None:
            return palette[values[0]], there
        there &= np.isfinite(values).all(axis=0)
        if self.dtype != np.uint8:
            low, high = self._range
            scaled = (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
            values = np.rint(np.clip(np.nan_to_num(scaled), 0, 1) * 255).astype(np.uint8)
        return np.broadcast_to(np.moveaxis(values, 0, 2), (*shape, 3)), there

    @cached_property
    def _palette(self) -> NDArray[np.uint8] | None:
        """(256, 3) colours of an image whose values are their numbers."""
        rasterio = import_rasterio()
        if self.dataset.colorinterp[0] != rasterio.enums.ColorInterp.palette or self.dtype != np.uint8:
            return None
        colours = np.zeros((256, 3), np.uint8)
        for number, colour in self.dataset.colormap(1).items():
            colours[number] = colour[:3]
        return colours

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Values that become black and white."""
        shrink = max(1.0, max(self.size) / _OVERVIEW)
        shape = tuple(max(1, round(side / shrink)) for side in reversed(self.size))
        with self._errors():
            values = self.dataset.read(self.bands, out_shape=(len(self.bands), *shape))
            there = self.dataset.dataset_mask(out_shape=shape) > 0
        seen = values[:, there & np.isfinite(values).all(axis=0)].astype(np.float64)
        low, high = np.percentile(seen, STRETCH) if seen.size else (0.0, 1.0)
        return float(low), float(high)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What cannot be read names the file."""
        try:
            yield
        except import_rasterio().errors.RasterioIOError as error:
            raise ValueError(f"{self.path} cannot be read, or is damaged: {error}") from error


@dataclass(frozen=True)
class _Cells:
    """Which of the cells of an axis, from ``first`` to before ``last``, lie wholly inside the image, and where."""

    first: int
    last: int
    start: float
    end: float

    @property
    def shown(self) -> int:
        return max(0, self.last - self.first)


def _cells(start: float, end: float, count: int, side: int) -> _Cells:
    """``count`` cells between two edges, of an image that goes from 0 to ``side``."""
    if count < 1 or not end > start:
        raise ValueError(f"a window must have a size, got {start} to {end} in {count} pixels")
    pitch = (end - start) / count
    first = max(0, math.ceil(-start / pitch - 1e-6))
    last = min(count, math.floor((side - start) / pitch + 1e-6))
    return _Cells(first, last, max(0.0, start + first * pitch), min(float(side), start + last * pitch))


def rasterio_window(window: Window) -> Any:
    """A window as rasterio takes it."""
    left, top, right, bottom = window
    return import_rasterio().windows.Window(left, top, right - left, bottom - top)


# Opening --------------------------------------------------------------------------------------------------------------


def open_raster(
    path: StrPath, *, crs: str | None = None, corners: ArrayLike | None = None, bands: Sequence[int] | None = None
) -> Raster:
    """Open an image of any kind that rasterio knows; it need not say where it lies (:attr:`Raster.georeference`).

    Args:
        crs: of an image that does not say, such as one with a world file, or of the corners: a name such as
            ``EPSG:32633``, or WKT.
        corners: (4, 2) coordinates of the outer corners of an image without georeference: top left, top right, bottom
            right, bottom left; longitudes and latitudes, unless ``crs`` says otherwise.
        bands: which are red, green and blue, counted from 1, or the one that is grey; by default as the image says, and
            else the first three, or the first.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no raster, or what is given of it contradicts it.
    """
    rasterio, shown = import_rasterio(), Path(path)
    if not shown.exists():
        raise FileNotFoundError(f"no such file: {shown}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            dataset = rasterio.open(shown)
    except rasterio.errors.RasterioIOError as error:
        raise ValueError(f"{shown} is no raster that rasterio reads: {error}") from error
    try:
        georeference = _georeference(dataset, shown, crs, corners)
        return Raster(shown, dataset, georeference, _bands(dataset, shown, bands))
    except BaseException:
        dataset.close()
        raise


def open_map(
    path: StrPath, *, crs: str | None = None, corners: ArrayLike | None = None, bands: Sequence[int] | None = None
) -> Raster:
    """:func:`open_raster` of one that says where it lies.

    Raises:
        ValueError: also if it does not.
    """
    opened = open_raster(path, crs=crs, corners=corners, bands=bands)
    if opened.georeference is not None:
        return opened
    located, known = not _is_identity(opened.dataset) or bool(opened.dataset.gcps[0]), opened.dataset.crs is not None
    opened.dataset.close()
    lacks = (
        "says where it lies, but not in which coordinate reference system"
        if located and not known
        else ("does not say where it lies")
    )
    advice = "give its CRS, such as EPSG:32633" if located else "give its corners"
    raise ValueError(f"{os.fspath(path)} {lacks}: {advice}")


def _is_identity(dataset: Any) -> bool:
    return bool(dataset.transform.is_identity)


def _georeference(dataset: Any, path: Path, crs: str | None, corners: ArrayLike | None) -> Georeference | None:
    size = (dataset.width, dataset.height)
    points, points_crs = dataset.gcps
    own = dataset.crs or points_crs
    known = check_crs(own if crs is None else crs, str(path)) if own or crs else None
    if corners is not None:
        places = np.asarray(corners, np.float64)
        if places.shape != (4, 2) or not np.isfinite(places).all():
            raise ValueError(f"corners must be four pairs of coordinates, got {np.asarray(corners).tolist()}")
        width, height = size
        edges = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
        return Georeference(check_crs(crs or LONLAT, str(path)), _fit(edges, places, path) @ FROM_CORNER, size)
    if known is None:
        return None
    if not _is_identity(dataset):
        matrix = np.array([*dataset.transform], np.float64).reshape(3, 3)
        if np.linalg.det(matrix) == 0:
            raise ValueError(f"the geotransform of {path} makes all of it a line: {list(dataset.transform)[:6]}")
        return Georeference(known, matrix @ FROM_CORNER, size)
    if len(points) < 3:
        return None
    pixels, places = np.array([[p.col, p.row] for p in points]), np.array([[p.x, p.y] for p in points])
    return Georeference(known, _fit(pixels, places, path) @ FROM_CORNER, size)


def _fit(pixels: Array, places: Array, path: Path) -> Array:
    """(3, 3) map from pixels to places by least squares: affine for three of them, projective for more."""
    import cv2

    middle, spread = places.mean(axis=0), np.ptp(places, axis=0).max() or 1.0
    scale = max(np.ptp(pixels, axis=0).max(), 1.0)
    before, after = pixels / scale, (places - middle) / spread
    if len(pixels) == 3:
        full = np.column_stack([before, np.ones(3)])
        linear = np.linalg.lstsq(full, after, rcond=None)[0].T if np.linalg.matrix_rank(full) == 3 else None
        fitted = None if linear is None else np.vstack([linear, [0, 0, 1]])
    else:
        fitted = cv2.findHomography(before, after, 0)[0]
    if fitted is None or not np.isfinite(fitted).all() or abs(np.linalg.det(fitted)) < 1e-12:
        raise ValueError(f"the points that say where {path} lies are on a line, or cross over")
    back = np.array([[spread, 0, middle[0]], [0, spread, middle[1]], [0, 0, 1]])
    return np.asarray(back @ fitted @ np.diag([1 / scale, 1 / scale, 1.0]), np.float64)


def _bands(dataset: Any, path: Path, asked: Sequence[int] | None) -> Sequence[int]:
    if asked is not None:
        if len(asked) not in (1, 3) or not all(1 <= band <= dataset.count for band in asked):
            raise ValueError(
                f"bands must be one or three numbers from 1 to {dataset.count}, as {path} has, got {asked}"
            )
        return asked
    kinds = [kind.name for kind in dataset.colorinterp]
    if all(name in kinds for name in ("red", "green", "blue")):
        return [kinds.index(name) + 1 for name in ("red", "green", "blue")]
    colours = [number for number, kind in enumerate(kinds, start=1) if kind != "alpha"]
    return colours[:3] if len(colours) >= 3 else colours[:1]
