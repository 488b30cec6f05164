"""Maps made of noise and views of them, whose true homographies are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.benchmarks.predict import Prediction
from steerers.features import Matches
from steerers.geometry import rotation, warp_image
from steerers.images.load import to_uint8


def make_terrain(size: int, seed: int) -> Tensor:
    """(3, size, size) image in [0, 1]: noise of all wavelengths from 5 pixels up."""
    generator = torch.Generator().manual_seed(seed)
    height = torch.zeros(1, 3, size, size)
    wavelength = 5.0
    while wavelength < size:
        cells = math.ceil(size / wavelength) + 1
        noise = torch.randn(1, 3, cells, cells, generator=generator)
        height += wavelength**0.4 * F.interpolate(noise, (size, size), mode="bicubic", align_corners=True)
        wavelength *= 2
    height = height[0]
    return ((height - height.amin()) / (height.amax() - height.amin())).clamp(0, 1)


def view_of(
    terrain: Tensor, centre: tuple[float, float], degrees: float, size: tuple[int, int], zoom: float = 1.0
) -> tuple[Tensor, np.ndarray]:
    """What is seen around a place of a map that is rotated counter-clockwise; also the (3, 3) map to its pixels."""
    to_view = torch.eye(3, dtype=torch.float64)
    to_view[:2, :2] = zoom * rotation(math.radians(degrees))
    middle = torch.tensor([(size[0] - 1) / 2, (size[1] - 1) / 2], dtype=torch.float64)
    to_view[:2, 2] = middle - to_view[:2, :2] @ torch.tensor(centre, dtype=torch.float64)
    return warp_image(terrain, to_view, size).clamp(0, 1), to_view.numpy()


def save(image: Tensor, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(to_uint8(image)).save(path, **options)  # type: ignore[arg-type]


def make_prediction(
    points0: np.ndarray,
    points1: np.ndarray,
    *,
    size: tuple[int, int] = (200, 150),
    stored: tuple[int, int] | None = None,
    angle: float | None = None,
) -> Prediction:
    """Matches as a run would have found them in images of one size."""
    count = len(points0)
    matches = Matches(
        keypoints0=np.asarray(points0, np.float32),
        keypoints1=np.asarray(points1, np.float32),
        scores=np.ones(count, np.float32),
        indices=np.stack([np.arange(count)] * 2, axis=1),
        angle=angle,
    )
    stored = stored or size
    return Prediction(matches, size, size, stored, stored, (count, count), math.nan, 2, 0.2, 0.1)
