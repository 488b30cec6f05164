"""Pairs from photographs laid side by side: views of a mosaic may shrink far more than one photograph allows.

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

from steerers.datasets.folder import Photographs, two_views
from steerers.datasets.pairs import PairBatch
from steerers.datasets.photos import PhotoStore
from steerers.datasets.rng import uniforms
from steerers.datasets.views import Views

_LAID = 6  # stream of a seed


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
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], got {self.fraction}")
        if self.side < 1 or self.cell < 16:
            raise ValueError(f"side must be at least 1 and cell at least 16, got {self.side} and {self.cell}")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be a range of positive numbers, got {self.scale}")


class Mosaics:
    """A :class:`~steerers.datasets.pairs.PairSource`: each photograph in a mosaic with others that are drawn."""

    weights: Tensor | None = None

    def __init__(self, photographs: Photographs, options: MosaicOptions) -> None:
        self.photographs, self.options = photographs, options
        self.views: Views = replace(photographs.views, scale=options.scale)
        self._cells = _Cells(photographs.store, options.cell)

    def __len__(self) -> int:
        return len(self.photographs)

    def read(self, index: int) -> int:
        """Nothing to read: the photographs are decoded already."""
        return self.photographs.read(index)

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """Two views of a mosaic around each photograph; see :class:`~steerers.datasets.pairs.PairSource`."""
        mosaics = self._cells.lay(self._members(read, seeds), device)  # (B, 3, S, S)
        size = self.options.side * self.options.cell
        return two_views(mosaics, [(size, size)] * len(read), self.views, rotations0, rotations1, seeds, device)

    def _members(self, read: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """(B, side, side) photographs of the mosaics: the one asked for, at a position that is drawn, among others."""
        side, chosen = self.options.side, torch.tensor(self.photographs.chosen)
        drawn = uniforms(seeds, side * side + 1, _LAID)  # (B, side^2 + 1)
        members = chosen[(drawn[:, 1:] * len(chosen)).long()]
        members.scatter_(1, (drawn[:, :1] * side * side).long(), torch.tensor(list(read))[:, None])
        return members.view(-1, side, side)


class _Cells:
    """The photographs of a store as squares of one size."""

    def __init__(self, store: PhotoStore, cell: int) -> None:
        self.store, self.cell = store, cell

    def lay(self, members: Tensor, device: torch.device) -> Tensor:
        """(B, 3, side * cell, side * cell) uint8 mosaics of (B, side, side) photographs.

        On a GPU the squares of all photographs are made once and kept.
        """
        batch, side = members.shape[:2]
        flat = members.flatten()
        if self.store.pixels.device.type == "cpu":
            cells = torch.stack([self._cut(index) for index in flat.tolist()]).to(device, non_blocking=True)
        else:
            cells = self._all[flat.to(self.store.pixels.device)]  # (B * side^2, 3, C, C)
        laid = cells.view(batch, side, side, 3, self.cell, self.cell).permute(0, 3, 1, 4, 2, 5)
        return laid.reshape(batch, 3, side * self.cell, side * self.cell)

    @cached_property
    def _all(self) -> Tensor:
        return torch.stack([self._cut(index) for index in range(len(self.store))])

    def _cut(self, index: int) -> Tensor:
        """(3, C, C) uint8: the middle of a photograph whose short side is made that of a cell."""
        photo = self.store[index]
        height, width = photo.shape[1:]
        factor = self.cell / min(height, width)
        size = [max(self.cell, math.floor(factor * extent)) for extent in (height, width)]
        scaled = F.interpolate(photo[None].float(), size, mode="bilinear", antialias=True, align_corners=False)[0]
        top, left = ((extent - self.cell) // 2 for extent in size)
        return scaled[:, top : top + self.cell, left : left + self.cell].round().clamp(0, 255).to(torch.uint8)
