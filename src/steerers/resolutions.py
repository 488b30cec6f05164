"""Images at resolutions that are half an octave apart, smoothed, to be sampled between pixels: what
:mod:`steerers.refinement` registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLUR = 0.8
"""Standard deviation, in pixels, of the Gaussian by which what lies between pixels is interpolated, and smoothed."""
FINE = 2
"""So many values a pixel and axis are made that way, and interpolated linearly: of a translation by a fraction of a
pixel the error (median) is 0.005 pixels; 0.002 with 3, for twice the memory and time. PyTorch's bicubic interpolation
moves what it interpolates by up to 0.05 pixels."""


class Level(NamedTuple):
    """An image at one resolution, smoothed; or several, one above the other, of which every match has its own."""

    values: Tensor  # (1, 1, FINE h, FINE w)
    valid: Tensor | None  # (1, 1, h, w) 1 where the image can be relied on
    size: Tensor  # (2,) width and height, or (K, 2) of the resolution of every match
    ratio: Tensor  # (2,) or (K, 2) pixels of this resolution for a pixel of the image, along x and y
    top: Tensor | None = None  # (K,) the row at which the resolution of every match begins

    @classmethod
    def packed(cls, levels: Sequence[Level], which: Tensor) -> Level:
        """Several as one, for (K,) matches with the index of theirs: a GPU then needs one launch, not one for each."""
        heights = [level.values.shape[2] // FINE for level in levels]
        tops = torch.tensor([sum(heights[:k]) for k in range(len(levels))]).to(which)
        valid = [level._all_valid() if level.valid is None else level.valid for level in levels]
        masked = any(level.valid is not None for level in levels)
        size, ratio = (torch.stack([getattr(level, name) for level in levels])[which] for name in ("size", "ratio"))
        values = _stacked([level.values for level in levels])
        return cls(values, _stacked(valid) if masked else None, size, ratio, tops[which].to(size))

    def _all_valid(self) -> Tensor:
        return torch.ones_like(self.values[:, :, ::FINE, ::FINE])

    def at(self, xy: Tensor) -> Tensor:
        """(K, P) values at (K, P, 2) pixels of this resolution."""
        return self._sample(self.values, xy, FINE)

    def inside(self, xy: Tensor) -> Tensor:
        """(K, P) whether pixels of this resolution are in the image and can be relied on."""
        inside = ((xy >= 1) & (xy <= self.size[..., None, :] - 2)).all(dim=-1)
        return inside if self.valid is None else inside & (self._sample(self.valid, xy, 1) > 0.99)

    def _sample(self, values: Tensor, xy: Tensor, fine: int) -> Tensor:
        """Bilinearly, ``fine`` values for a pixel; beyond the border the nearest value."""
        if self.top is None:
            grid = (2 * xy + 1) / self.size - 1
        else:
            edge = (1 / fine - 1) / 2  # the centre of the first value
            xy = xy.clamp(min=edge).minimum(self.size[:, None] - 1 - edge)
            x, y = xy[..., 0], xy[..., 1] + self.top[:, None]
            width, height = values.shape[3] // fine, values.shape[2] // fine
            grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
        return F.grid_sample(values, grid[None], "bilinear", "border", align_corners=False)[0, 0]

    def to_level(self, xy: Tensor) -> Tensor:
        """Pixels of the image as pixels of this resolution."""
        return (xy + 0.5) * self.ratio - 0.5

    def to_image(self, xy: Tensor) -> Tensor:
        """The way back."""
        return (xy + 0.5) / self.ratio - 0.5


def _stacked(maps: Sequence[Tensor]) -> Tensor:
    """(1, 1, H, W) maps one above the other, padded to one width."""
    width = max(one.shape[3] for one in maps)
    return torch.cat([F.pad(one, (0, width - one.shape[3])) for one in maps], dim=2)


class Resolutions:
    """An image at resolutions that are half an octave apart, each made when it is first needed."""

    def __init__(self, image: Tensor, mask: Tensor | None) -> None:
        self.image, self.mask = image[None, None], None if mask is None else mask.to(image)[None, None]
        self._levels: dict[int, Level] = {}

    def level(self, index: int) -> Level:
        """The image reduced by 2 to the power ``index / 2``."""
        if index not in self._levels:
            self._levels[index] = self._make(index)
        return self._levels[index]

    def _make(self, index: int) -> Level:
        full = self.image.shape[3], self.image.shape[2]
        width, height = (max(1, round(side / 2 ** (index / 2))) for side in full)
        reduced, valid = self.image, self.mask
        if index:
            shape = [height, width]
            reduced = F.interpolate(reduced, size=shape, mode="bicubic", align_corners=False, antialias=True)
            valid = None if valid is None else F.interpolate(valid, size=shape, mode="area")
        if valid is not None:  # what is smoothed looks three pixels far
            valid = 1 - F.max_pool2d(1 - valid, 7, stride=1, padding=3)
        told = torch.tensor([[width, height], [width / full[0], height / full[1]]], dtype=reduced.dtype)
        return Level(_interpolated(reduced[0, 0])[None, None], valid, *told.to(reduced.device))


def _interpolated(image: Tensor) -> Tensor:
    """(h, w) to (FINE h, FINE w): what a Gaussian makes of the pixels."""
    phases = (torch.arange(FINE).double() - (FINE - 1) / 2) / FINE
    kernels = torch.exp(-0.5 * ((torch.arange(-3, 4) - phases[:, None]) / BLUR) ** 2)  # (FINE, 7)
    kernels = kernels / kernels.sum(dim=1, keepdim=True)
    if image.device.type != "cpu":
        kernels = kernels.to(image)
        return _spread(_spread(image, kernels, 0), kernels, 1)
    along_y = torch.stack([_filtered(image, kernel, 0) for kernel in kernels], dim=1).flatten(0, 1)
    return torch.stack([_filtered(along_y, kernel, 1) for kernel in kernels], dim=2).flatten(1)


def _spread(image: Tensor, kernels: Tensor, dim: int) -> Tensor:
    """(h, w) to FINE times as many rows or columns by (FINE, 7) kernels: :func:`_filtered` with all of them at once, in
    few launches."""
    padded, length = _padded(image, dim), image.shape[dim]
    weights = kernels.mT[:, :, None] if dim == 0 else kernels.mT  # (7, FINE, 1) or (7, FINE)
    total = image.new_zeros(())
    for start, weight in enumerate(weights):
        total = torch.addcmul(total, padded.narrow(dim, start, length).unsqueeze(dim + 1), weight)
    return total.flatten(dim, dim + 1)


def _filtered(image: Tensor, kernel: Tensor, dim: int) -> Tensor:
    """(h, w) rows or columns added up by a kernel of seven weights: a few long sums, faster than a convolution of one
    channel."""
    padded, length = _padded(image, dim), image.shape[dim]
    total = torch.zeros_like(image)
    for start, weight in enumerate(kernel.tolist()):
        total.add_(padded.narrow(dim, start, length), alpha=weight)
    return total


def _padded(image: Tensor, dim: int) -> Tensor:
    """With its first and last row or column three times more."""
    return F.pad(image[None, None], (0, 0, 3, 3) if dim == 0 else (3, 3, 0, 0), mode="replicate")[0, 0]
