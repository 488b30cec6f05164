"""Pairs from nothing but photographs: two views of each by random homographies, with the exact warp between them.

A view is a square that is sampled from the photograph through one projective map, its turn included, so that turned
views have no resampling of their own and, where the photograph is large enough, no empty corners.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.geometry import rotation, transform_points, warp_image
from steerers.images import ImageError, ImageSource, load_image

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2"}


@dataclass(frozen=True)
class Views:
    """How views are drawn.

    Attributes:
        size: side of a view, in pixels.
        scale: range of the zoom, in pixels of the view per pixel of the photograph.
        perspective: how far each corner moves, as a share of the side.
        photometric: strength of the change of light, from 0 to 1.
    """

    size: int = 384
    scale: tuple[float, float] = (0.8, 1.3)
    perspective: float = 0.08
    photometric: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 32:
            raise ValueError(f"size of a view must be at least 32 pixels, got {self.size}")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be a range of positive numbers, got {self.scale}")
        if not 0 <= self.perspective < 0.3:
            raise ValueError(f"perspective must be in [0, 0.3), got {self.perspective}")
        if not 0 <= self.photometric <= 1:
            raise ValueError(f"photometric must be in [0, 1], got {self.photometric}")


@dataclass(frozen=True, eq=False)
class View:
    """A (3, S, S) view, the (3, 3) map from pixels of the photograph to its own, and where the photograph covers it."""

    image: Tensor
    from_photo: Tensor
    mask: Tensor  # (S, S) bool


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """The image files below a folder, in the order of their names.

    Raises:
        ValueError: if there is no such folder, or no image in it.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"no such folder of images: {root}")
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not found:
        raise ValueError(f"no images in {root}; known endings: {' '.join(sorted(ENDINGS))}")
    return found


def load_photos(sources: Iterable[ImageSource], max_size: int, device: torch.device) -> Iterable[Tensor]:
    """(3, H, W) tensors of the photographs, one after the other; a broken one raises with its path."""
    for source in sources:
        try:
            yield load_image(source, max_size=max_size).tensor.to(device)
        except ImageError as error:
            raise ValueError(f"cannot use a photograph: {error}") from error


def draw_homography(photo_size: tuple[int, int], views: Views, generator: torch.Generator) -> Tensor:
    """A random (3, 3) map from pixels of a photograph of (width, height) to an upright view."""
    width, height = photo_size
    scale = math.exp(_uniform(math.log(views.scale[0]), math.log(views.scale[1]), generator))
    fitting = max(scale, views.size / min(width, height))  # the view must not be larger than the photograph
    slack = [max(0.0, extent - views.size / fitting) / 2 for extent in (width, height)]
    centre = [
        (extent - 1) / 2 + _uniform(-room, room, generator) for extent, room in zip((width, height), slack, strict=True)
    ]
    middle = (views.size - 1) / 2
    zoom = torch.tensor(
        [[fitting, 0, middle - fitting * centre[0]], [0, fitting, middle - fitting * centre[1]], [0, 0, 1]],
        dtype=torch.float64,
    )
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64) * (views.size - 1)
    shift = (2 * torch.rand(4, 2, generator=generator, dtype=torch.float64) - 1) * views.perspective * views.size
    return homography_from_corners(corners, corners + shift) @ zoom


def homography_from_corners(source: Tensor, target: Tensor) -> Tensor:
    """The (3, 3) map that takes four (4, 2) points to four others."""
    rows = []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    solution = torch.linalg.solve(torch.tensor(rows, dtype=torch.float64), target.double().flatten())
    return torch.cat([solution, torch.ones(1, dtype=torch.float64)]).view(3, 3)


def turn_about_middle(size: int, angle: float) -> Tensor:
    """The (3, 3) map of the pixels of a square of ``size`` when it turns counter-clockwise about its centre."""
    transform = torch.eye(3, dtype=torch.float64)
    transform[:2, :2] = rotation(angle)
    middle = torch.full((2,), (size - 1) / 2, dtype=torch.float64)
    transform[:2, 2] = middle - transform[:2, :2] @ middle
    return transform


def render(photo: Tensor, homography: Tensor, angle: float, views: Views, generator: torch.Generator) -> View:
    """The view of a (3, H, W) photograph through ``homography``, turned counter-clockwise by ``angle`` radians."""
    from_photo = turn_about_middle(views.size, angle) @ homography
    side = (views.size, views.size)
    image = warp_image(photo, from_photo, side, fill=0.5)
    inside = warp_image(torch.ones_like(photo[:1]), from_photo, side)[0] > 0.999
    return View(relight(image, views.photometric, generator), from_photo, inside)


def relight(image: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change the light of a (3, H, W) image: gain, gamma, colour, blur and noise."""
    if strength == 0:
        return image.clamp(0, 1)
    gamma = math.exp(_uniform(-0.5, 0.5, generator) * strength)
    gain = math.exp(_uniform(-0.4, 0.4, generator) * strength)
    tint = 1 + strength * 0.2 * (2 * torch.rand(3, 1, 1, generator=generator) - 1)
    image = (gain * image.clamp(0, 1) ** gamma * tint.to(image)).clamp(0, 1)
    blur = _uniform(0, 1, generator) * strength
    smooth = F.avg_pool2d(F.pad(image[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
    noise = torch.randn(image.shape, generator=generator).to(image) * (0.02 * strength)
    return ((1 - blur) * image + blur * smooth + noise).clamp(0, 1)


def correspondences(first: Tensor, second: Tensor, transform: Tensor, radius: float) -> Tensor:
    """(K, 2) indices of keypoints of two views that are mutually nearest under the warp, within ``radius`` pixels.

    Args:
        first: (N, 2) pixels of the first view; ``second`` (M, 2) of the second.
        transform: (3, 3) from the first view to the second. The distance counts in both views.
    """
    if not len(first) or not len(second):
        return torch.zeros(0, 2, dtype=torch.long, device=first.device)
    ahead = torch.cdist(transform_points(transform, first.double()), second.double())  # (N, M)
    back = torch.cdist(first.double(), transform_points(torch.linalg.inv(transform), second.double()))
    nearest, j = ahead.min(dim=1)
    i = torch.arange(len(first), device=first.device)
    mutual = (back.argmin(dim=0)[j] == i) & (nearest < radius) & (back[i, j] < radius)
    return torch.stack([i[mutual], j[mutual]], dim=1)


def split(sources: Sequence[ImageSource], held_out: float, generator: torch.Generator) -> tuple[list[int], list[int]]:
    """Indices of photographs to fit to and to hold out, at least one of each if there are two."""
    order = torch.randperm(len(sources), generator=generator).tolist()
    count = min(max(1, round(held_out * len(order))), len(order) - 1)
    return order[count:], order[:count]


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))
