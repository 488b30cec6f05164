"""What the tracks of a reconstruction give: pairs of images that share them, a warp, and where views look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.datasets.pairs import ViewWarp, Warp, covered, pad_points
from steerers.datasets.reconstruction import Reconstruction
from steerers.datasets.rng import generator_of, uniforms
from steerers.geometry import Size, transform_points

_AIM, _ANCHORS = 21, 22  # streams of a seed
_FAR = 1e6  # pixels: nowhere near an observation


# Pairs of images ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Covisible:
    """P pairs of images of a reconstruction that share tracks."""

    images: NDArray[np.int64]  # (P, 2), the first with the smaller index
    shared: NDArray[np.int64]  # (P,), how many tracks
    angles: NDArray[np.float64]  # (P,) degrees, mean angle at which the two cameras see them
    similarity: NDArray[np.complex128]  # (P,), scale and rotation of offsets x + iy from the first image to the second
    agreement: NDArray[np.float64]  # (P,) in [0, 1], how well a similarity explains where the tracks lie

    def __len__(self) -> int:
        return len(self.images)

    def where(self, chosen: NDArray[Any]) -> Covisible:
        """Some of the pairs, by index or mask."""
        return Covisible(*(getattr(self, field.name)[chosen] for field in fields(self)))


def covisible(reconstruction: Reconstruction) -> Covisible:
    """All pairs of images that share at least two tracks."""
    count = len(reconstruction)
    keys, sums = _pair_sums(reconstruction)
    shared, angle, x0, y0, x1, y1, spread0, spread1, dot, cross = sums[:, sums[0] >= 2]
    keys = keys[sums[0] >= 2]
    spread0 = spread0 - (x0**2 + y0**2) / shared
    spread1 = spread1 - (x1**2 + y1**2) / shared
    product = dot + 1j * cross - (x0 - 1j * y0) * (x1 + 1j * y1) / shared  # of conj(z0) z1, about the means
    with np.errstate(divide="ignore", invalid="ignore"):
        similarity = product / np.abs(product) * np.sqrt(spread1 / spread0)
        agreement = np.abs(product) / np.sqrt(spread0 * spread1)
    usable = np.isfinite(similarity) & (np.abs(similarity) > 0)
    return Covisible(
        images=np.stack([keys // max(count, 1), keys % max(count, 1)], axis=1),
        shared=shared.astype(np.int64),
        angles=angle / shared,
        similarity=np.where(usable, similarity, 1.0),
        agreement=np.where(usable, agreement, 0.0).clip(0, 1),
    )


def _pair_sums(reconstruction: Reconstruction) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(P,) pairs as ``first * N + second``, and (10, P) sums over the tracks they share; see :func:`covisible`."""
    image = np.repeat(np.arange(len(reconstruction)), np.diff(reconstruction.starts))
    order = np.lexsort((image, reconstruction.tracks))
    image, track, xy = image[order], reconstruction.tracks[order], reconstruction.xy[order].astype(np.float64)
    centres = -np.einsum("nji,nj->ni", reconstruction.poses[:, :, :3], reconstruction.poses[:, :, 3])  # (N, 3)
    rays = reconstruction.points[track] - centres[image]  # (O, 3)
    rays /= np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), 1e-12)
    keys, sums = [np.zeros(0, np.int64)], [np.zeros((10, 0))]
    for step in range(1, len(track)):
        a = np.flatnonzero(track[step:] == track[:-step])
        if not len(a):
            break
        b = a + step
        pair, inverse = np.unique(image[a] * len(reconstruction) + image[b], return_inverse=True)
        keys.append(pair)
        columns = _columns(xy[a], xy[b], rays[a], rays[b])
        sums.append(np.stack([np.bincount(inverse, column, len(pair)) for column in columns]))
    pair, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    joined = np.concatenate(sums, axis=1)
    return pair, np.stack([np.bincount(inverse, row, len(pair)) for row in joined])


def _columns(
    xy0: NDArray[np.float64], xy1: NDArray[np.float64], rays0: NDArray[np.float64], rays1: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """What is summed over the tracks of a pair: their number, angles, and the moments of the two sets of pixels."""
    (x0, y0), (x1, y1) = xy0.T, xy1.T
    angle = np.degrees(np.arccos(np.clip((rays0 * rays1).sum(axis=1), -1, 1)))
    moments = [x0**2 + y0**2, x1**2 + y1**2, x0 * x1 + y0 * y1, x0 * y1 - y0 * x1]
    return [np.ones_like(x0), angle, x0, y0, x1, y1, *moments]


# Pairs of views -------------------------------------------------------------------------------------------------------


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
    return torch.stack([xy[int(fraction * len(xy))] for xy, fraction in zip(points, drawn, strict=True)])


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
