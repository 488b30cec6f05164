"""Pairs from nothing but photographs: two views of each by random homographies, with the exact warp between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steerers.datasets.pairs import PairBatch, ViewWarp
from steerers.datasets.photometric import relight
from steerers.datasets.photos import PhotoStore, held_out
from steerers.datasets.rng import mix, uniforms
from steerers.datasets.views import Views, draw_homographies, render_views
from steerers.geometry import Size

_FOCUS = 5  # stream of a seed


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
        if not self.chosen:
            raise ValueError("there are no photographs to draw pairs from")

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
    views: Views,
    rotations0: Tensor,
    rotations1: Tensor,
    seeds: Sequence[int],
    device: torch.device,
) -> PairBatch:
    """Two views of each of (B, 3, H, W) photographs, of (width, height) ``sizes``, around a point that is drawn."""
    focus = uniforms(seeds, 2, _FOCUS) * torch.tensor(sizes, dtype=torch.float64)  # (B, 2), seen by both views
    rendered = []
    for side, rotations in enumerate((rotations0, rotations1)):
        own = [mix(seed, side) for seed in seeds]
        maps = draw_homographies(sizes, views, own, focus)
        images, masks, from_photos = render_views(photos, maps, rotations, views.size, own, sizes)
        rendered.append((relight(images, views.photometric, own), masks, from_photos))
    (images0, masks0, from0), (images1, masks1, from1) = rendered
    warp = ViewWarp(from0, from1, masks0, masks1)
    return PairBatch(images0, images1, masks0, masks1, warp, rotations0.to(device), rotations1.to(device))
