"""Held-out photographs by kind of change, so that a run says which changes it has learnt and which it pays with.

The views of a kind have the size of the run's, one change is strong and all others are mild. Every kind but that of
scale, which shows mosaics, takes the same photographs by the same seeds: kinds differ in their change, not in what they
show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.folder import MosaicOptions, Mosaics, Photographs, two_views
from steerers.datasets.pairs import PairBatch, noise, uniforms
from steerers.datasets.photos import spread
from steerers.datasets.views import Views
from steerers.training.config import Kind

_MILD: dict[str, Any] = {
    "scale": (0.8, 1.3),
    "tilt": 1.3,
    "perspective": 0.05,
    "photometric": 0.3,
    "weather": 0.0,
    "sensors": 0.0,
}
_STRONG: dict[Kind, dict[str, Any]] = {
    "tilt": {"tilt": 5.0, "perspective": 0.14},
    "light": {"photometric": 1.0},
    "weather": {"weather": 1.0},
    "sensors": {"sensors": 1.0},
}
_FAR, _NEAR = (0.25, 0.4), (0.8, 1.2)  # zooms of the views of a mosaic: 2 to 4.8 fold
_BLUR = (1.0, 3.0)  # standard deviation in pixels of the view
_NOISE = (0.05, 0.15)  # standard deviation, where white is 1
_REACH = 9  # pixels: three deviations of the strongest blur
_LAID = 128  # photographs of which mosaics are made, at least: on a GPU they are kept
_AMOUNT, _GRAIN, _ORDER, _START = 51, 52, 53, 54  # streams of a seed


def kind_views(kind: Kind, views: Views) -> Views:
    """The views of a kind, at the size of a run's."""
    return replace(views, **(_MILD | _STRONG.get(kind, {})))


def as_taken(views: Views) -> Views:
    """Views of real pairs: what differs between them is what differs between the photographs."""
    return replace(views, **(_MILD | {"tilt": 1.0, "perspective": 0.0, "photometric": 0.0}))


def kind_source(kind: Kind, photographs: Photographs, pairs: int) -> Photographs:
    """The pairs of a kind, of held-out photographs.

    Args:
        pairs: that validation takes.
    """
    store, views = photographs.store, kind_views(kind, photographs.views)
    if kind == "scale":
        return _FarAndNear(Photographs(store, views, spread(photographs.chosen, max(_LAID, pairs))))
    if kind in ("blur", "noise"):
        return _Spoilt(kind, Photographs(store, views, photographs.chosen))
    return Photographs(store, views, photographs.chosen)


class _FarAndNear(Mosaics):
    """Mosaics seen from far, and a part of them from near: drawn alike, the zooms of most pairs would differ little.

    As long as there are enough photographs none is there twice, so that every place is like no other.
    """

    def __init__(self, photographs: Photographs) -> None:
        cell = MosaicOptions().cell
        seen = math.ceil(1.2 * photographs.views.size / _FAR[0])  # pixels, tilted as they may be
        options = MosaicOptions(side=max(3, math.ceil(seen / cell)), cell=cell, scale=(_FAR[0], _NEAR[1]))
        super().__init__(photographs, options)
        self.both = replace(self.views, scale=_FAR), replace(self.views, scale=_NEAR)

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """See :class:`~steerers.datasets.pairs.PairSource`."""
        mosaics = self._lay(self._members(read, seeds), device)  # (B, 3, S, S)
        sizes = [(int(mosaics.shape[3]), int(mosaics.shape[2]))] * len(read)
        return two_views(mosaics, sizes, self.both, rotations0, rotations1, seeds, device)

    def _members(self, read: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """(B, side, side) photographs: the one asked for, at a position that is drawn, among others."""
        side, chosen = self.options.side, torch.tensor(self.chosen)
        cells = torch.arange(side * side)
        drawn = uniforms(seeds, len(chosen), _ORDER)  # (B, N)
        drawn = drawn.masked_fill(chosen == torch.tensor(list(read))[:, None], -1.0)  # so that it comes first
        order = chosen[drawn.argsort(dim=1)][:, cells % len(chosen)]  # (B, side^2)
        start = (uniforms(seeds, 1, _START) * len(cells)).long()  # (B, 1)
        return order.gather(1, (cells - start) % len(cells)).view(-1, side, side)


class _Spoilt(Photographs):
    """Second views that are out of focus, or noisy."""

    def __init__(self, kind: Kind, photographs: Photographs) -> None:
        super().__init__(photographs.store, photographs.views, photographs.chosen)
        self.kind = kind

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """See :class:`~steerers.datasets.pairs.PairSource`."""
        batch = super().make(read, rotations0, rotations1, seeds, device)
        drawn = uniforms(seeds, 1, _AMOUNT)[:, 0].to(batch.images1)  # (B,)
        low, high = _BLUR if self.kind == "blur" else _NOISE
        amounts = low + (high - low) * drawn
        if self.kind == "blur":
            return replace(batch, images1=_out_of_focus(batch.images1, amounts))
        grain = noise(seeds, batch.images1[0].numel(), _GRAIN, batch.images1.device).view_as(batch.images1)
        return replace(batch, images1=(batch.images1 + amounts.view(-1, 1, 1, 1) * grain).clamp(0, 1))


def _out_of_focus(images: Tensor, deviations: Tensor) -> Tensor:
    """(B, 3, H, W) images through Gaussians of (B,) standard deviations in pixels."""
    count, channels, height, width = images.shape
    taps = torch.arange(-_REACH, _REACH + 1).to(images)
    kernels = (-0.5 * (taps / deviations[:, None]) ** 2).softmax(dim=1)  # (B, T)
    kernels = kernels.repeat_interleave(channels, 0)[:, None]  # (B * 3, 1, T)
    padded = F.pad(images.reshape(1, -1, height, width), (_REACH,) * 4, mode="replicate")
    across = F.conv2d(padded, kernels[:, :, None], groups=count * channels)
    return F.conv2d(across, kernels[..., None], groups=count * channels).view_as(images)
