"""Pairs from nothing but photographs: two views of each, or of a mosaic of several, by random homographies.

A view of S pixels at zoom z shows S / z pixels of what it is a view of. Photographs of 500 pixels leave little choice,
so that all views of them are at nearly one scale, and enlarged rather than shrunk. A mosaic of several has room for
zooms that differ four-fold and more between two views, and what surrounds a point is then something else entirely,
which it must be told from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import PairBatch, ViewWarp, check_options, mix, uniforms
from steerers.datasets.photos import PhotoStore, held_out
from steerers.datasets.views import Views, draw_homographies, is_range, relight_views, render_views
from steerers.geometry import Size

_FOCUS, _LAID = 5, 6  # streams of a seed


class Photographs:
    """A :class:`~steerers.datasets.pairs.PairSource` of which every photograph is a pair.

    Args:
        store: the photographs; if it lies on the training device nothing is copied.
        chosen: which of them; by default all.
    """

    weights: Tensor | None = None

    def __init__(self, store: PhotoStore, views: Views, chosen: Sequence[int] | None = None) -> None:
        self.store, self.views = store, views
        self.chosen = list(range(len(store))) if chosen is None else list(chosen)

    @classmethod
    def split(cls, store: PhotoStore, views: Views, fraction: float) -> tuple[Photographs, Photographs]:
        """Photographs to train on, and the fixed ``fraction`` of them that is held out, which goes by their names."""
        if len(store) < 2:
            raise ValueError("training needs at least 2 photographs, one of them to be held out, got 1")
        out = [held_out(name, fraction) for name in store.names]
        if all(out) or not any(out):  # a handful of photographs: hold out the last
            out = [index == len(store) - 1 for index in range(len(store))]
        train, test = ([index for index, held in enumerate(out) if held is wanted] for wanted in (False, True))
        return cls(store, views, train), cls(store, views, test)

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: int) -> int:
        """Nothing to read: the photographs are decoded already."""
        return self.chosen[index]

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """Two views of each photograph; see :class:`~steerers.datasets.pairs.PairSource`."""
        photos = self.store.canvases(read, device)  # (B, 3, H, W)
        sizes = [self.store.sizes[index] for index in read]
        return two_views(photos, sizes, self.views, rotations0, rotations1, seeds, device)


def two_views(
    photos: Tensor,
    sizes: Sequence[Size],
    views: Views | tuple[Views, Views],
    rotations0: Tensor,
    rotations1: Tensor,
    seeds: Sequence[int],
    device: torch.device,
) -> PairBatch:
    """Two views of each of (B, 3, H, W) photographs, of (width, height) ``sizes``, around a point that is drawn.

    Args:
        views: how they are drawn, both alike or the first and the second each in its own way; of one size.
    """
    focus = uniforms(seeds, 2, _FOCUS) * torch.tensor(sizes, dtype=torch.float64)  # (B, 2), seen by both views
    rendered, both = [], views if isinstance(views, tuple) else (views, views)
    for side, (drawn, rotations) in enumerate(zip(both, (rotations0, rotations1), strict=True)):
        own = [mix(seed, side) for seed in seeds]
        maps = draw_homographies(sizes, drawn, own, focus)
        images, masks, from_photos = render_views(photos, maps, rotations, drawn.size, own, sizes)
        rendered.append((relight_views(images, drawn, own), masks, from_photos, images))
    (images0, masks0, from0, plain0), (images1, masks1, from1, plain1) = rendered
    warp, rotated = ViewWarp(from0, from1, masks0, masks1), (rotations0.to(device), rotations1.to(device))
    return PairBatch(images0, images1, masks0, masks1, warp, *rotated, unchanged=(plain0, plain1))


# Mosaics --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MosaicOptions:
    """How photographs are laid out, and how much is seen of them.

    Attributes:
        fraction: of the steps whose pairs are views of mosaics.
        side: a mosaic is ``side`` x ``side`` photographs.
        cell: side of each in pixels; photographs are shrunk (or enlarged) to cover it, the middle is kept.
        scale: range of the zoom, in pixels of the view per pixel of the mosaic; instead of that of ``views``.
    """

    fraction: float = 0.0
    side: int = 3
    cell: int = 448
    scale: tuple[float, float] = (0.25, 1.2)

    def __post_init__(self) -> None:
        check_options(self, "be in [0, 1]", lambda value: 0 <= value <= 1, "fraction")
        check_options(self, "be at least 1", lambda value: value >= 1, "side")
        check_options(self, "be at least 16", lambda value: value >= 16, "cell")
        check_options(self, "be a range of positive numbers", is_range, "scale")


class Mosaics(Photographs):
    """A :class:`~steerers.datasets.pairs.PairSource`: each photograph in a mosaic with others that are drawn."""

    def __init__(self, photographs: Photographs, options: MosaicOptions) -> None:
        views = replace(photographs.views, scale=options.scale)
        super().__init__(photographs.store, views, photographs.chosen)
        self.options = options

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """Two views of a mosaic around each photograph; see :class:`~steerers.datasets.pairs.PairSource`."""
        mosaics = self._lay(self._members(read, seeds), device)  # (B, 3, S, S)
        size = self.options.side * self.options.cell
        return two_views(mosaics, [(size, size)] * len(read), self.views, rotations0, rotations1, seeds, device)

    def _members(self, read: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """(B, side, side) photographs of the mosaics: the one asked for, at a position that is drawn, among others."""
        side, chosen = self.options.side, torch.tensor(self.chosen)
        drawn = uniforms(seeds, side * side + 1, _LAID)  # (B, side^2 + 1)
        members = chosen[(drawn[:, 1:] * len(chosen)).long()]
        members.scatter_(1, (drawn[:, :1] * side * side).long(), torch.tensor(list(read))[:, None])
        return members.view(-1, side, side)

    def _lay(self, members: Tensor, device: torch.device) -> Tensor:
        """(B, 3, side * cell, side * cell) uint8 mosaics of (B, side, side) photographs.

        On a GPU the squares of all photographs are made once and kept.
        """
        flat, side, cell = members.flatten(), self.options.side, self.options.cell
        if self.store.pixels.device.type == "cpu":
            cells = torch.stack([self._cut(index) for index in flat.tolist()]).to(device, non_blocking=True)
        else:
            cells = self._all_cells[flat.to(self.store.pixels.device)]  # (B * side^2, 3, C, C)
        laid = cells.view(-1, side, side, 3, cell, cell).permute(0, 3, 1, 4, 2, 5)
        return laid.reshape(-1, 3, side * cell, side * cell)

    @cached_property
    def _all_cells(self) -> Tensor:
        return torch.stack([self._cut(index) for index in range(len(self.store))])

    def _cut(self, index: int) -> Tensor:
        """(3, C, C) uint8: the middle of a photograph whose short side is made that of a cell."""
        photo, cell = self.store[index], self.options.cell
        height, width = photo.shape[1:]
        factor = cell / min(height, width)
        size = [max(cell, math.floor(factor * extent)) for extent in (height, width)]
        scaled = F.interpolate(photo[None].float(), size, mode="bilinear", antialias=True, align_corners=False)[0]
        top, left = ((extent - cell) // 2 for extent in size)
        return scaled[:, top : top + cell, left : left + cell].round().clamp(0, 255).to(torch.uint8)
