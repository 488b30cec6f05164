"""What training needs of data, wherever it comes from: two views and the warp of keypoints between them, both ways.

A source (:class:`PairSource`) lists pairs of photographs. A pair is read from disk by :meth:`PairSource.read`, which
many threads may call at once, and a batch is made of what was read by :meth:`PairSource.make` on the training device:
each photograph is resampled once, through one projective map with its rotation in it, into a square view. The warp
between views goes back to the photographs, from one photograph to the other by the scene (nowhere at all if both views
are of one photograph), and to the other view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from steerers.geometry import transform_points

Rotations = Literal["none", "C4", "SO2", "joint-C4", "joint-SO2"]
"""How views are rotated: not at all, each by its own quarter turns or angle, or both of a pair alike."""


class Warp(Protocol):
    """Where points of one image of each of B pairs lie in the other, and whether they are seen there."""

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, 2) pixels of the first images to (B, N, 2) pixels of the second, and (B, N) bool validity."""

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the second images to the first."""


@dataclass(frozen=True, eq=False)
class PairBatch:
    """B pairs of square views with the warp between them."""

    images0: Tensor  # (B, 3, S, S) float32 RGB in [0, 1]
    images1: Tensor
    masks0: Tensor  # (B, S, S) bool, True where the photograph covers the view
    masks1: Tensor
    warp: Warp
    rotations0: Tensor  # (B,) radians, by which the first views are rotated counter-clockwise
    rotations1: Tensor
    anchors: tuple[Tensor, Tensor] | None = None
    """(B, K, 2) pixels each, points that are known to correspond, such as the tracks of a reconstruction; NaN where a
    pair has fewer than K."""
    dense: bool = True
    """Whether the warp is known wherever both views see the scene, or at the anchors alone."""
    detections: tuple[Tensor, Tensor] | None = None
    """(B, K, 2) pixels each, where a view shows points of a reconstruction, whether the other shows them or not; NaN
    where there are fewer than K. A detector may learn from them; they are no keypoints of a descriptor."""
    known: tuple[Tensor, Tensor] | None = None
    """(B, S, S) bool each, where the depth of what a view shows is known; as with the detections, for a detector."""
    unchanged: tuple[Tensor, Tensor] | None = None
    """(B, 3, S, S) each, the views in the light of their photographs, before it was changed."""

    def __len__(self) -> int:
        return int(self.images0.shape[0])

    @property
    def angles(self) -> Tensor:
        """(B,) radians in [0, 2 pi): the rotation that takes the second view to the first.

        The sign matters to a learned generator, whose powers are not periodic: rotations of one sign alone, as in the
        original, tell important directions (which grow) from idle ones.
        """
        return (self.rotations0 - self.rotations1) % (2 * math.pi)

    def warp_pixels(self, side: int) -> tuple[Tensor, Tensor]:
        """(B, H * W, 2) where all pixels of a view go, and (B, H, W) whether they are of the photograph and seen there.

        Args:
            side: 0 for the first views, 1 for the second.
        """
        masks, others = (self.masks1, self.masks0) if side else (self.masks0, self.masks1)
        grid = pixel_grid(masks)
        moved, seen = self.warp.backward(grid) if side else self.warp.forward(grid)
        return moved, (seen & covered(others, moved)).view_as(masks) & masks


class PairSource(Protocol):
    """Pairs that training draws from.

    A source may also have ``dense`` (False if its batches know the warp at anchors alone), ``root`` (where its data
    lies, for messages) and ``open()`` (what is decoded once, before the first step).
    """

    @property
    def weights(self) -> Tensor | None:
        """(P,) not negative, how often each pair is drawn; ``None`` if all alike."""

    def __len__(self) -> int:
        """The number P of pairs."""

    def read(self, index: int) -> Any:
        """Pair ``index`` from disk or cache, on the CPU; called from several threads."""

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """A batch of what :meth:`read` gave, views rotated by (B,) radians.

        Args:
            seeds: one for each pair: all that is drawn for a pair follows from its seed alone, so that a batch may be
                made in parts.
        """


def draw_rotations(rotations: Rotations, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rotations of the first and the second views, (B,) float64 radians each, from one seed a pair."""
    drawn = uniforms(seeds, 2)  # (B, 2)
    if rotations.endswith("C4"):
        drawn = (4 * drawn).floor() / 4
    if rotations.startswith("joint"):
        drawn = drawn[:, :1].expand(-1, 2)
    angles = (0.0 if rotations == "none" else 2 * math.pi) * drawn  # (B, 2)
    return angles[:, 0], angles[:, 1]


class ViewWarp:
    """The warp between views of photographs.

    Args:
        from_photos0: (B, 3, 3), from pixels of the first photographs to those of the first views.
        masks0: (B, S, S) bool, where photographs cover views: what falls elsewhere is not valid.
        scene: the warp between the photographs, in their pixels; ``None`` where both views are of one photograph.
    """

    def __init__(
        self, from_photos0: Tensor, from_photos1: Tensor, masks0: Tensor, masks1: Tensor, scene: Warp | None = None
    ) -> None:
        self.masks0, self.masks1, self.scene = masks0, masks1, scene
        both, device = (from_photos0.double(), from_photos1.double()), masks0.device
        self.from_photos0, self.from_photos1 = (maps.to(device) for maps in both)
        # Inverted once, where the maps are: on the CPU that keeps no GPU waiting.
        self.to_photos0, self.to_photos1 = (torch.linalg.inv(maps).to(device) for maps in both)

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """First views to second views; see :class:`Warp`."""
        if self.scene is None:
            return self._covered(transform_points(self.from_photos1 @ self.to_photos0, xy), self.masks1)
        moved, seen = self.scene.forward(transform_points(self.to_photos0, xy))
        return self._covered(transform_points(self.from_photos1, moved), self.masks1, seen)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Second views to first views."""
        if self.scene is None:
            return self._covered(transform_points(self.from_photos0 @ self.to_photos1, xy), self.masks0)
        moved, seen = self.scene.backward(transform_points(self.to_photos1, xy))
        return self._covered(transform_points(self.from_photos0, moved), self.masks0, seen)

    @staticmethod
    def _covered(moved: Tensor, masks: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inside = covered(masks, moved)
        return moved, inside if seen is None else inside & seen


def covered(masks: Tensor, xy: Tensor) -> Tensor:
    """(B, N) whether (B, N, 2) pixels lie on a True pixel of (B, H, W) masks; False outside, and for NaN."""
    height, width = masks.shape[-2:]
    nearest = xy.nan_to_num(nan=-1e6, posinf=1e6, neginf=-1e6).round().clamp(-1e6, 1e6).long()
    x, y = nearest.unbind(dim=-1)  # (B, N) each
    inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    flat = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return inside & masks.flatten(1).gather(1, flat)


def pixel_grid(maps: Tensor) -> Tensor:
    """(B, H * W, 2) float32 (x, y) of every pixel of (B, H, W) maps, row by row."""
    height, width = maps.shape[1:]
    xs, ys = torch.arange(width, device=maps.device), torch.arange(height, device=maps.device)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).float()
    return grid.view(1, -1, 2).expand(len(maps), -1, -1)


def pad_points(points: Sequence[Tensor]) -> Tensor:
    """(B, K, 2) of B tensors (k, 2), NaN beyond their ends."""
    return torch.nn.utils.rnn.pad_sequence(list(points), batch_first=True, padding_value=torch.nan)


def points_in_views(points: Sequence[Tensor], from_photos: Tensor, device: torch.device) -> Tensor:
    """(B, K, 2) float32 pixels of views, of B tensors (k, 2) of points of photographs; NaN where there are fewer."""
    return transform_points(from_photos, pad_points(points)).float().to(device)


def correspondences(
    xy0: Tensor, xy1: Tensor, warp: Warp, radius: float, real0: Tensor | None = None, real1: Tensor | None = None
) -> Tensor:
    """Keypoints of two views that are mutually nearest under the warp, within ``radius`` pixels in both views.

    Args:
        xy0: (B, N, 2) pixels of the first views; ``xy1`` (B, M, 2) of the second.
        real0: (B, N) bool, False for what only fills up a batch; ``real1`` likewise.

    Returns:
        (K, 3) indices (pair, keypoint of the first view, keypoint of the second).
    """
    if not xy0.shape[1] or not xy1.shape[1]:
        return torch.zeros(0, 3, dtype=torch.long, device=xy0.device)
    ahead = _distances(*warp.forward(xy0), xy1, real0, real1)  # (B, N, M)
    back = _distances(*warp.backward(xy1), xy0, real1, real0).mT  # (B, N, M)
    nearest = ahead.argmin(dim=2)  # (B, N)
    own = torch.arange(xy0.shape[1], device=xy0.device).expand_as(nearest)
    mutual = back.argmin(dim=1).gather(1, nearest) == own
    close = ahead.gather(2, nearest[..., None])[..., 0].maximum(back.gather(2, nearest[..., None])[..., 0]) < radius
    pair, first = (mutual & close).nonzero(as_tuple=True)
    return torch.stack([pair, first, nearest[pair, first]], dim=1)


def _distances(moved: Tensor, seen: Tensor, others: Tensor, real: Tensor | None, real_others: Tensor | None) -> Tensor:
    """(B, N, M) distances between warped points and the points of the other view; infinite where one does not count."""
    seen = seen if real is None else seen & real
    finite = others.isfinite().all(dim=-1)  # (B, M)
    counted = finite if real_others is None else finite & real_others
    moved = torch.where(seen[..., None], moved, torch.zeros_like(moved))
    distances = torch.cdist(moved.double(), others.double()).float()
    return distances.masked_fill(~(seen[..., None] & counted[:, None]), math.inf)


# Random numbers -------------------------------------------------------------------------------------------------------
#
# They follow from seeds alone: step, rank and position in the batch give the seed, so that a resumed run draws what the
# uninterrupted one would have drawn, and two processes draw what one would.

_MIX = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits: spreads small seeds
_MASK = (1 << 63) - 1
_WORD = (1 << 32) - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


def mix(*parts: int) -> int:
    """One seed from several whole numbers; different parts give, for all practical purposes, different seeds."""
    state = _MIX  # not 0, from which leading zeros would not move it
    for part in parts:
        state = (state ^ (part & _MASK)) * _MIX & (1 << 64) - 1
        state ^= state >> 29
    return state & _MASK


def generator_of(seed: int, stream: int = 0) -> torch.Generator:
    """A generator for one element of a batch; ``stream`` keeps its purposes apart."""
    return torch.Generator().manual_seed(mix(seed, stream))


def uniforms(seeds: Sequence[int], count: int, stream: int = 0) -> Tensor:
    """(B, count) float64 in [0, 1), row b from ``seeds[b]`` alone.

    SplitMix64 (Steele, Lea and Flood, 2014) for all rows at once: making a generator for each of them took longer than
    a step of training does.
    """
    starts = np.array([mix(seed, stream) for seed in seeds], dtype=np.uint64)  # (B,)
    state = starts[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_MIX)  # (B, count), modulo 2^64
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    bits = (state ^ (state >> np.uint64(31))) >> np.uint64(11)  # 53 of them
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def noise(seeds: Sequence[int], count: int, stream: int, device: torch.device) -> Tensor:
    """(B, count) float32 of mean 0 and deviation 1, nearly normal, row b from ``seeds[b]`` alone, made on ``device``.

    The same generator with 32 bits, in whole numbers, so that every device makes the same: the sum of four bytes of
    each state, which no eye and no network tells from a normal distribution.
    """
    starts = torch.tensor([mix(seed, stream) & _WORD for seed in seeds], dtype=torch.int64).to(device)
    state = starts[:, None] + torch.arange(count, device=device) * (_MIX & _WORD)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):  # products stay below 2^63
        state = state & _WORD
        state = (state ^ (state >> shift)) * factor
    state = state & _WORD
    state = state ^ (state >> 15)
    total = (state & 0xFF) + (state >> 8 & 0xFF) + (state >> 16 & 0xFF) + (state >> 24)
    return (total - 510).float() / 147.8  # the mean and the deviation of four bytes


# Options --------------------------------------------------------------------------------------------------------------


def check_options(options: object, must: str, fits: Callable[[Any], bool], *names: str) -> None:
    """Refuse values of a dataclass that do not fit, naming the first that ``must`` be something else."""
    for name in names:
        if not fits(getattr(options, name)):
            raise ValueError(f"{name} must {must}, got {getattr(options, name)}")
