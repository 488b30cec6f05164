"""A moving image as it lies over a fixed one, tile by tile, in its own bands and type of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._choices import Resampling
from steerers._files import StrPath
from steerers.geometry import Size
from steerers.maps.geotiff import write_geotiff
from steerers.maps.rasters import Raster, Window
from steerers.maps.transforms import Array, Transform

Read = Callable[[Window, Size], tuple[NDArray[Any], NDArray[np.bool_]]]
"""(H, W, C) pixels of a window of an image at a size, and (H, W) where there are some."""
REACH = 3
"""Pixels beyond what is sampled that are read, for interpolation."""
MOST_READ = 4096
"""Of what is read at once, along a side: more is reduced first."""
_NATIVE = ("uint8", "uint16", "int16", "float32", "float64")  # what OpenCV resamples as it is


@dataclass(frozen=True, eq=False)
class Sampled:
    """(H, W, C) pixels, and (H, W) where there are some."""

    pixels: NDArray[Any]
    valid: NDArray[np.bool_]


def sample(
    read: Read, transform: Transform, window: Window, size: Size, resampling: Resampling = "linear"
) -> Sampled | None:
    """What a moving image shows in a window of the fixed one, in pixels of any ``size``; ``None`` if nothing.

    Where the moving image is finer than that, it is reduced first, but for ``nearest``, so that nothing is left out.
    """
    places = transform.to_moving(_centres(window, size)).reshape(size[1], size[0], 2)
    width, height = transform.moving_size
    inside = np.all((places >= -0.5) & (places <= [width - 0.5, height - 0.5]), axis=2)  # (H, W), NaN is not
    if not inside.any():
        return None
    low, high = places[inside].min(axis=0), places[inside].max(axis=0)
    shrink = _shrink(places, inside, resampling, high - low)
    margin = REACH * shrink
    left, top = (max(0, math.floor(edge - margin)) for edge in low)
    right, bottom = (min(side, math.ceil(edge + margin) + 1) for edge, side in zip(high, (width, height), strict=True))
    count = tuple(max(1, round((end - start) / shrink)) for start, end in ((left, right), (top, bottom)))
    pixels, there = read((left, top, right, bottom), (count[0], count[1]))
    ratio = np.array([count[0] / (right - left), count[1] / (bottom - top)])
    local = (places - [left, top] + 0.5) * ratio - 0.5  # pixels of what was read
    return _remapped(pixels, there, np.where(inside[..., None], local, -1.0), inside, resampling)


def _centres(window: Window, size: Size) -> Array:
    """(H W, 2) pixels of the image that are the centres of the pixels of a window."""
    left, top, right, bottom = window
    xs = left + (np.arange(size[0]) + 0.5) * ((right - left) / size[0]) - 0.5
    ys = top + (np.arange(size[1]) + 0.5) * ((bottom - top) / size[1]) - 0.5
    return np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)


def _shrink(places: Array, inside: NDArray[np.bool_], resampling: Resampling, extent: Array) -> float:
    """How many pixels of the moving image are made one before it is sampled."""
    if resampling == "nearest" or min(inside.shape) < 2:
        return 1.0
    steps = [np.linalg.norm(np.diff(places, axis=axis), axis=2) for axis in (0, 1)]
    both = [inside[1:] & inside[:-1], inside[:, 1:] & inside[:, :-1]]
    known = [float(np.median(step[pair])) for step, pair in zip(steps, both, strict=True) if pair.any()]
    step = max(1.0, math.sqrt(math.prod(known)) if len(known) == 2 else max(known, default=1.0))
    return max(step if step >= 1.5 else 1.0, float(extent.max()) / MOST_READ)


def _remapped(
    pixels: NDArray[Any], there: NDArray[np.bool_], local: Array, inside: NDArray[np.bool_], resampling: Resampling
) -> Sampled:
    import cv2

    how = {"nearest": cv2.INTER_NEAREST, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}[resampling]
    pixels, there = (_padded(values) for values in (pixels, there))
    xs, ys = (np.ascontiguousarray(local[..., axis] + REACH, np.float32) for axis in (0, 1))
    valid = inside
    if not there.all():
        solid = cv2.erode(there.astype(np.uint8), np.ones((3, 3), np.uint8)) if resampling == "cubic" else there
        spread = cv2.INTER_NEAREST if resampling == "nearest" else cv2.INTER_LINEAR
        seen = cv2.remap(solid.astype(np.float32), xs, ys, spread, borderMode=cv2.BORDER_REPLICATE)
        valid = inside & (seen > 0.99)
    dtype = pixels.dtype
    source = pixels if dtype.name in _NATIVE or resampling == "nearest" else pixels.astype(np.float64)
    if resampling == "nearest":  # any type, exactly
        columns, rows = (
            np.clip(np.rint(v).astype(np.int64), 0, n - 1) for v, n in ((xs, pixels.shape[1]), (ys, pixels.shape[0]))
        )
        return Sampled(source[rows, columns], valid)
    if not np.isfinite(source).all():
        source = np.nan_to_num(source, nan=0.0, posinf=0.0, neginf=0.0)  # kept out by `valid`
    bands = [
        cv2.remap(np.ascontiguousarray(source[..., band]), xs, ys, how, borderMode=cv2.BORDER_REPLICATE)
        for band in range(pixels.shape[2])
    ]
    found = np.stack(bands, axis=2)
    if found.dtype != dtype:
        limits = np.iinfo(dtype)
        found = np.clip(np.rint(found), limits.min, limits.max).astype(dtype)
    return Sampled(found, valid)


def _padded(values: NDArray[Any]) -> NDArray[Any]:
    """With its border repeated: OpenCV rounds doubles where it interpolates beyond (5.0)."""
    return np.pad(values, ((REACH, REACH), (REACH, REACH), (0, 0))[: values.ndim], mode="edge")


# Writing --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outside:
    """What stands where there is no image: ``nodata``, or where that is ``None`` an alpha band, the last one, which is
    ``added`` if the image has none."""

    nodata: float | None
    added: bool = False


def outside_of(moving: Raster, nodata: float | None = None) -> Outside:
    """As the image has it itself; else not-a-number for floats, and an alpha band for whole numbers.

    Raises:
        ValueError: if its type of numbers does not have ``nodata``.
    """
    if moving.dtype.kind not in "iuf":
        raise ValueError(f"{moving.path} has numbers of type {moving.dtype}, which are no image: take their magnitudes")
    own = moving.nodata if nodata is None else nodata
    if own is not None:
        is_float = moving.dtype.kind == "f"
        held = np.isnan(own) if is_float and np.isnan(own) else np.array(own, np.float64).astype(moving.dtype) == own
        if not (is_float or float(own).is_integer()) or not held:
            raise ValueError(f"{moving.path} has numbers of type {moving.dtype}, of which {own:g} is none")
        return Outside(float(own))
    if moving.has_alpha:
        return Outside(None)
    return Outside(math.nan) if moving.dtype.kind == "f" else Outside(None, added=True)


def write_warped(
    path: StrPath,
    moving: Raster,
    transform: Transform,
    fixed: Raster,
    *,
    resampling: Resampling = "linear",
    nodata: float | None = None,
) -> None:
    """Write a moving image as it lies over a fixed one, whole or not at all, as a GeoTIFF that lies where that does.

    Raises:
        OSError: naming the file, if it cannot be written; of a full disk it says so.
        ValueError: naming the file, if one of them cannot be read.
    """
    outside = Outside(None, added=True) if moving.paletted else outside_of(moving, nodata)
    read, own = (moving.read, 3) if moving.paletted else (moving.read_stored, moving.count)  # a palette in its colours
    bands, alpha = own + outside.added, outside.nodata is None
    opaque = np.iinfo(moving.dtype).max if moving.dtype.kind in "iu" else 1
    empty = 0 if outside.nodata is None else outside.nodata

    def draw(tile: tuple[int, int, int, int]) -> NDArray[Any]:
        left, top, right, bottom = tile
        size = (right - left, bottom - top)
        drawn = np.full((bands, size[1], size[0]), empty, moving.dtype)
        found = sample(read, transform, tile, size, resampling)
        if found is not None:
            there = found.valid
            drawn[:own, there] = np.moveaxis(found.pixels, 2, 0)[:, there]
            if outside.added:
                drawn[-1, there] = opaque
        return drawn

    write_geotiff(
        path,
        fixed.size,
        draw,
        bands=bands,
        dtype=moving.dtype,
        place=fixed.georeference,
        alpha=alpha,
        nodata=outside.nodata,
    )
