"""Images as benchmarks show them to matchers: at one size, rotated; and what was used last, kept for the next pair."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.geometry import rotate_image, scaling
from steerers.images.load import Image, Size, load_image

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class View:
    """How an image is shown: at the evaluated size, rotated. It has no pixels, so that all of them can be kept."""

    path: Path
    rotation: int  # degrees counter-clockwise
    to_upright: Tensor  # (3, 3) float64, from rotated to unrotated pixels
    size: Size  # of the unrotated image
    stored_size: Size


def make_view(
    loaded: Image, path: Path, rotation: int, *, mask_corners: bool, device: torch.device
) -> tuple[View, Image]:
    """Rotate an image that is loaded at the evaluated size; quarter turns are exact, what a rotation uncovers is black.

    The second is what the matcher is given: its stored pixels are those of the rotated canvas.
    """
    upright = loaded.tensor.to(device)
    angle = math.radians(rotation)
    tensor, to_rotated = rotate_image(upright, angle)
    mask = loaded.mask
    if mask is not None or (mask_corners and rotation % 90):
        allowed = torch.ones(upright.shape[1:]) if mask is None else mask.float()
        mask = rotate_image(allowed[None], angle)[0][0] > 0.999
    (height, width), (rotated_height, rotated_width) = upright.shape[1:], tensor.shape[1:]
    identity = torch.eye(3, dtype=torch.float64)
    image = Image(tensor.contiguous(), identity, (rotated_width, rotated_height), mask, loaded.name)
    return View(path, rotation, torch.linalg.inv(to_rotated), (width, height), loaded.stored_size), image


# Sizes ----------------------------------------------------------------------------------------------------------------


def load_at(path: Path, *, max_size: int | None, short_side: int | None) -> Image:
    """An image shrunk to a longest side of ``max_size``, or shrunk or enlarged to a shortest side, whatever its shape.

    Shrinking is :func:`~steerers.images.load.load_image`'s, enlarging :func:`resize`'s.
    """
    if short_side is None:
        return load_image(path, max_size=max_size)
    return resize(load_image(path, max_size=_longest(path, short_side)), short_side)


def _longest(path: Path, short_side: int) -> int | None:
    """The longest side at a shortest one; ``None`` if the file does not say, and reading it will say why."""
    import PIL.Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            with PIL.Image.open(path) as picture:
                return max(fit(picture.size, short_side))
    except Exception:  # decoders raise almost anything on broken data
        return None


def resize(image: Image, short_side: int) -> Image:
    """An image at a shortest side, by antialiased cubic interpolation; its map to stored pixels follows."""
    height, width = image.tensor.shape[-2:]
    size = fit((width, height), short_side)
    if size == (width, height):
        return image
    tensor = _interpolate(image.tensor, size, "bicubic").clamp(0, 1)
    mask = None if image.mask is None else _interpolate(image.mask[None].float(), size, "bilinear")[0] > 0.999
    return replace(image, tensor=tensor, mask=mask, to_stored=image.to_stored @ scaling(size, (width, height)))


def fit(size: Size, short_side: int) -> Size:
    """(width, height) of the same shape with a given shortest side."""
    scale = short_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def _interpolate(channels: Tensor, size: Size, mode: str) -> Tensor:
    return F.interpolate(channels[None], size[::-1], mode=mode, align_corners=False, antialias=True)[0]


# Keeping --------------------------------------------------------------------------------------------------------------


class Recent(Generic[Key, Value]):
    """What was used last, as much as fits into so many bytes; the very last in any case.

    Args:
        limit: bytes.
        weigh: the bytes of a value.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int]) -> None:
        self._limit, self._weigh = limit, weigh
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not at hand."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = make()
        self._kept[key] = value
        self._bytes += self._weigh(value)
        while self._bytes > self._limit and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= self._weigh(oldest)
        return value


def count_bytes(*tensors: Tensor | None) -> int:
    """The memory that tensors hold on to, which is more than their own where they are parts of larger ones."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)
