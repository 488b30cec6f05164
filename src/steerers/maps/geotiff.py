"""GeoTIFFs, written tile by tile."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._console import progress
from steerers._files import StrPath, atomic_write
from steerers.geometry import Size
from steerers.maps.coordinates import FROM_CORNER, ControlPoints, Georeference, import_rasterio
from steerers.maps.rasters import rasterio_window

TILE = 512
"""Pixels a side of what is written at once."""


def write_geotiff(
    path: StrPath,
    size: Size,
    draw: Callable[[tuple[int, int, int, int]], NDArray[Any]],
    *,
    bands: int,
    dtype: Any = "uint8",
    place: Georeference | ControlPoints | None = None,
    alpha: bool = False,
    nodata: float | None = None,
) -> None:
    """Write a GeoTIFF tile by tile, whole or not at all, compressed without loss.

    Args:
        size: (width, height).
        draw: gives the (bands, H, W) pixels of a tile, by its left, top, right and bottom edge.
        place: where it lies; what is not affine is written as ground control points.
        alpha: the last band says where there is an image.

    Raises:
        OSError: naming the file, if it cannot be written; of a full disk it says so.
    """
    rasterio, (width, height) = import_rasterio(), size
    profile = {"width": width, "height": height, "count": bands, "dtype": np.dtype(dtype).name, "nodata": nodata}
    profile |= {"tiled": True, "blockxsize": TILE, "blockysize": TILE, "compress": "deflate", "bigtiff": "IF_SAFER"}
    profile |= {"photometric": "rgb"} if bands - alpha == 3 else {}
    tiles = [
        (left, top, min(left + TILE, width), min(top + TILE, height))
        for top in range(0, height, TILE)
        for left in range(0, width, TILE)
    ]
    with atomic_write(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(temporary, "w", driver="GTiff", **profile, **_placement(place, size)) as dataset:
            if alpha:
                kinds = [*dataset.colorinterp][:-1]
                dataset.colorinterp = [*kinds, rasterio.enums.ColorInterp.alpha]
            for tile in progress(tiles, f"writing {os.path.basename(path)}"):
                dataset.write(draw(tile), window=rasterio_window(tile))
        with rasterio.open(temporary) as dataset:  # a disk that filled up while the file was closed says nothing
            for tile in tiles:
                dataset.read(1, window=rasterio_window(tile))


def _placement(place: Georeference | ControlPoints | None, size: Size) -> dict[str, Any]:
    """What rasterio is told of where an image lies."""
    rasterio = import_rasterio()
    if place is None:
        return {}
    if isinstance(place, Georeference):
        matrix = place.matrix / place.matrix[2, 2]
        if np.abs(matrix[2, :2]).max() * max(size) < 1e-9:
            corner = matrix @ np.linalg.inv(FROM_CORNER)
            return {"crs": place.crs, "transform": rasterio.Affine(*corner[:2].ravel().tolist())}
        place = place.control_points()
    places = zip(place.pixels.tolist(), place.coordinates.tolist(), strict=True)
    return {
        "crs": place.crs,
        "gcps": [rasterio.control.GroundControlPoint(py + 0.5, px + 0.5, x, y) for (px, py), (x, y) in places],
    }
