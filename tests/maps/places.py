"""A small map of a made-up place, and photographs of it with known pose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from helpers import EXAMPLES
from steerers.geometry import rotation, warp_image
from steerers.images.load import load_image, to_uint8

DRAWN = EXAMPLES.parent / "docs" / "tutorials" / "pictures" / "map.jpg"
SIZE = (540, 460)
PHOTO = (320, 240)
METRES = 0.5
UTM = "EPSG:32651"
WEST, NORTH = 300_000.0, 2_680_000.0


def picture() -> NDArray[np.uint8]:
    """(H, W, 3) of the map."""
    with PIL.Image.open(DRAWN) as opened:
        return np.asarray(opened.convert("RGB").crop((200, 200, 200 + SIZE[0], 200 + SIZE[1])))


def write_map(path: Path, pixels: NDArray[Any] | None = None, **told: Any) -> Path:
    """A GeoTIFF of half a metre a pixel, north up unless said otherwise."""
    import rasterio

    bands = np.moveaxis(picture(), 2, 0) if pixels is None else pixels
    transform = rasterio.Affine(METRES, 0, WEST, 0, -METRES, NORTH)
    profile = {"driver": "GTiff", "crs": UTM, "transform": transform, "count": len(bands), "dtype": bands.dtype, **told}
    with rasterio.open(path, "w", height=bands.shape[1], width=bands.shape[2], **profile) as dataset:
        dataset.write(bands)
    return path


def photo_matrix(
    degrees: float, centre: tuple[float, float] = (270.0, 230.0), scale: float = 0.9
) -> NDArray[np.float64]:
    """(3, 3) from pixels of a photograph to those of the map: its upper edge points ``degrees`` clockwise from north,
    and a pixel of it is ``scale`` of the map."""
    linear = scale * rotation(-math.radians(degrees)).numpy()
    matrix = np.eye(3)
    matrix[:2, :2] = linear
    matrix[:2, 2] = np.array(centre) - linear @ ((np.array(PHOTO) - 1) / 2)
    return matrix


def write_photo(path: Path, matrix: NDArray[np.float64], size: tuple[int, int] = PHOTO) -> Path:
    """What a camera sees there, in other light."""
    shown = load_image(picture()).tensor
    seen = warp_image(shown, torch.from_numpy(np.linalg.inv(matrix)), size, fill=0.5)
    noise = torch.randn(seen.shape, generator=torch.Generator().manual_seed(0))
    PIL.Image.fromarray(to_uint8((seen.clamp(0, 1) ** 1.3 * 0.9 + 0.01 * noise).clamp(0, 1))).save(path)
    return path
