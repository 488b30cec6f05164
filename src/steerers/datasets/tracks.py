"""What the tracks of a reconstruction give to pairs: a warp, where views look, and points that both views show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steerers.datasets.pairs import ViewWarp, Warp, covered, pad_points
from steerers.datasets.rng import generator_of, uniforms
from steerers.datasets.views import Size
from steerers.geometry import transform_points

_AIM, _ANCHORS = 21, 22  # streams of a seed
_FAR = 1e6  # pixels: nowhere near an observation


@dataclass(frozen=True, eq=False)
class TrackWarp:
    """The warp that tracks give, in pixels of the photographs: known within ``radius`` of an observation, else not.

    A point goes where the nearest observation of its photograph goes, and its offset from it as ``linear`` says, which
    is the scale and the rotation of the pair as a whole.

    Attributes:
        points0: (B, T, 2) observations in the first photographs, NaN where a pair has fewer; ``points1`` in the second.
        linear: (B, 2, 2), from offsets in the first photographs to offsets in the second.
        radius: pixels of the photograph that a point comes from.
        dense: a warp that goes before that of the tracks wherever it is valid.
    """

    points0: Tensor
    points1: Tensor
    linear: Tensor
    radius: float
    dense: Warp | None = None

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """First photographs to second; see :class:`~steerers.datasets.pairs.Warp`."""
        return self._warp(xy, self.points0, self.points1, self.linear, self.dense and self.dense.forward)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Second photographs to first."""
        linear = torch.linalg.inv(self.linear)
        return self._warp(xy, self.points1, self.points0, linear, self.dense and self.dense.backward)

    def _warp(self, xy: Tensor, source: Tensor, target: Tensor, linear: Tensor, first: Any) -> tuple[Tensor, Tensor]:
        if not source.shape[1]:
            moved, seen = torch.full_like(xy, torch.nan), torch.zeros_like(xy[..., 0], dtype=torch.bool)
        else:
            moved, seen = self._nearest(xy, source.to(xy), target.to(xy), linear.to(xy))
        if first is None:
            return moved, seen
        dense, valid = first(xy)
        return torch.where(valid[..., None], dense, moved), seen | valid

    def _nearest(self, xy: Tensor, source: Tensor, target: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
        reachable = source.nan_to_num(nan=_FAR)
        distances = torch.cdist(xy, reachable, compute_mode="donot_use_mm_for_euclid_dist")  # (B, N, T)
        distance, index = distances.min(dim=2)  # (B, N)
        index = index[..., None].expand(-1, -1, 2)
        offset = (xy - source.gather(1, index)) @ linear.mT
        return target.gather(1, index) + offset, distance <= self.radius


def draw_targets(points: Sequence[Tensor], seeds: Sequence[int]) -> Tensor:
    """(B, 2) observations at which views look, one of the (T, 2) of each photograph.

    They are of the same track in both photographs of a pair, as long as the seeds and the order of tracks are the same.
    """
    drawn = uniforms(seeds, 1, _AIM)[:, 0].tolist()
    return torch.stack([xy[int(share * len(xy))] for xy, share in zip(points, drawn, strict=True)])


def aim(maps: Tensor, sizes: Sequence[Size], targets: Tensor, size: int, seeds: Sequence[int]) -> Tensor:
    """Move views over their photographs so that they look at (B, 2) pixels of these, roughly.

    A view is not moved off its photograph, and its middle misses the target by up to a quarter of its extent, so that
    nothing can be learnt from where in a view the tracks are.

    Args:
        maps: (B, 3, 3) float64, from photographs of ``sizes`` to views of ``size``.
    """
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]], dtype=torch.float64) * (size - 1)
    placed = transform_points(torch.linalg.inv(maps), corners.expand(len(sizes), -1, -1))  # (B, 5, 2)
    low, high = placed.amin(dim=1), placed.amax(dim=1)  # (B, 2)
    miss = (uniforms(seeds, 2, _AIM + 100) - 0.5) * (high - low) / 2
    shift = targets.double() + miss - placed[:, 4]
    least, most = -low, torch.tensor(sizes, dtype=torch.float64) - 1 - high
    middle = (least + most) / 2
    shift = shift.maximum(least.minimum(middle)).minimum(most.maximum(middle))
    back = torch.eye(3, dtype=torch.float64).repeat(len(sizes), 1, 1)
    back[:, :2, 2] = -shift
    return maps @ back


def draw_anchors(
    points: Sequence[Sequence[Tensor]], warp: ViewWarp, count: int, seeds: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """(B, count, 2) pixels of the views each: tracks that both views show, drawn by the seeds, NaN beyond them.

    Args:
        points: (T, 2) pixels of the tracks that a pair shares, for each of B pairs, in first and in second photographs.
    """
    ends = [
        transform_points(to_view.to(device), pad_points(own).to(device)).float()
        for own, to_view in zip(points, (warp.from_photos0, warp.from_photos1), strict=True)
    ]
    seen = (covered(warp.masks0, ends[0]) & covered(warp.masks1, ends[1])).cpu()  # (B, T)
    anchors = torch.full((2, len(seeds), count, 2), torch.nan, device=device)
    for b, seed in enumerate(seeds):
        kept = seen[b].nonzero()[:, 0]
        order = torch.randperm(len(kept), generator=generator_of(seed, _ANCHORS))[:count]
        for side in (0, 1):
            anchors[side, b, : len(order)] = ends[side][b, kept[order].to(device)]
    return anchors[0], anchors[1]
