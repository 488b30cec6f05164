"""Steered similarities of a learned SO(2) steerer over every angle, by the eigenvectors of its generator.

With ``G = V L V^-1`` the description ``a`` rotated by ``t`` is a sum of exponentials, and its cosine with ``b`` is

    s(t) = q(t) / sqrt(n(t)),    q = Re sum_k  p_k exp(l_k t),    n = |exp(t G) a|^2,

n being a quadratic form by the Gram matrix of V. G may be any matrix with a basis of eigenvectors: real parts of
eigenvalues are growth and decay, and nothing repeats after a full turn. Rotations are therefore those of [0, 2 pi),
where training draws them.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from steerers.matching.similarity import PAIR_CHUNK, Angles, Steered, first_largest, float_type, normalised
from steerers.steering.analysis import Exponential
from steerers.steering.steerer import Steerer

FULL_TURN = 2 * math.pi
POINTS = 12
"""Rotations at which tiles are compared, for each full turn that a description can make."""
LEAST_POINTS = 16
MOST_CLIMBS = 12
"""Newton's steps double the digits; where they leave the interval, it is halved instead."""
SETTLED = 1e-12
LEVEL = 1e-13
"""A slope that is rounding: a description that no rotation changes has the same cosine at all."""


class Exponentials:
    """The cosines of K pairs of descriptions as functions of the rotation of the first, in float64.

    Args:
        descriptions0: (K, D); ``descriptions1`` likewise.
        steerer: a learned SO(2) steerer whose exponential is sound.
    """

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer) -> None:
        self.exponential = steerer.exponential().to(descriptions0.device)
        self.rate = self.exponential.rate
        self.gram = self.exponential.columns.mT @ self.exponential.columns  # (D, D)
        self.start = descriptions0.double() @ self.exponential.inverse.mT  # (K, D), the coordinates at 0
        self.targets = normalised(descriptions1.double()) @ self.exponential.columns  # (K, D)

    def values(self, angles: Tensor) -> Tensor:
        """(K, P) cosines at (K, P) rotations, which count modulo a full turn."""
        columns = angles.remainder(FULL_TURN).unbind(dim=1)
        return torch.stack([self._value(column) for column in columns], dim=1)

    def _value(self, angles: Tensor) -> Tensor:
        moved = self.exponential.move(self.start, angles)
        return (moved * self.targets).sum(dim=1) / self._squared(moved, moved @ self.gram).sqrt()

    def _squared(self, moved: Tensor, weighed: Tensor) -> Tensor:
        """n, which is zero for a description of zeros."""
        return (moved * weighed).sum(dim=1).clamp_(min=1e-290)

    def evaluate(self, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(K,) values, slopes and curvatures at (K,) rotations, as they are."""
        moved = self.exponential.move(self.start, angles)  # (K, D)
        moving = self.exponential.derivative(moved)
        bending = self.exponential.derivative(moving)
        weighed = moved @ self.gram
        squared = self._squared(moved, weighed)
        value, first, second = ((part * self.targets).sum(dim=1) / squared.sqrt() for part in (moved, moving, bending))
        growth = (moving * weighed).sum(dim=1) / squared  # of sqrt(n), relative to it
        growing = ((bending * weighed).sum(dim=1) + (moving * (moving @ self.gram)).sum(dim=1)) / squared
        slope = first - value * growth
        curvature = second - (first + slope) * growth - value * (growing - 2 * growth.square())
        return value, slope, curvature

    def climb(self, angles: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Place and value of a maximum uphill of (K,) rotations, between limits."""
        for _ in range(MOST_CLIMBS):
            _, slope, curvature = self.evaluate(angles)
            low, high = torch.where(slope > 0, angles, low), torch.where(slope < 0, angles, high)
            newton = angles - slope / curvature
            inside = (curvature < 0) & (newton >= low) & (newton <= high)
            moved = torch.where(inside, newton, (low + high) / 2)
            before, angles = angles, torch.where(slope.abs() > LEVEL, moved, angles)
            if bool(((angles - before).abs() < SETTLED).all()):
                break
        return angles, self._value(angles)

    def refine(self, angles: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The place of a maximum uphill of (K,) rotations that count modulo a full turn.

        Limits near them may lie a little beyond 0 or a full turn, so that rotations there go either way.
        """
        turns = angles - angles.remainder(FULL_TURN)
        return self.climb(angles - turns, low - turns, high - turns)[0] + turns


class ContinuousSteered(Steered):
    """The maximum over every rotation of [0, 2 pi], by a learned SO(2) steerer whose exponential is sound.

    Tiles are compared at a grid of rotations, one product each: twelve for every full turn that the steerer can turn a
    description by, which for a representation is a period of its highest frequency. The result is the highest vertex of
    a parabola through a local maximum of the grid and its neighbours; both ends of the interval count. A wave of the
    highest frequency is found to 0.2 % of its height, slower ones far better: cosines are off by 1e-4 on average, and
    by less than 5e-3 for all generators that were tried. Matched pairs climb from every local maximum of the grid, in
    float64, and are exact.
    """

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer) -> None:
        self.exponential = steerer.exponential()
        super().__init__(descriptions0, descriptions1, steerer, _grid(self.exponential), maximum=True)
        self.layers = 4 * len(self.angles)

    @cached_property
    def matrices(self) -> Tensor:
        return _grid_matrices(self.exponential, self.device, float_type(self.descriptions0))

    def _largest(self, tile: Tensor) -> Tensor:
        centre = tile[1:-1]
        slope = tile[2:] - tile[:-2]
        bend = (2 * centre).sub_(tile[2:]).sub_(tile[:-2])
        beyond = slope.abs() > bend  # the vertex lies beyond a neighbour: no local maximum of the grid
        slope[0].clamp_(min=0)  # nor does what lies beyond the ends count
        slope[-1].clamp_(max=0)
        gain = slope.square_().div_(bend.mul_(8).clamp_(min=1e-30)).masked_fill_(beyond, 0)
        return gain.add_(centre).amax(dim=0, keepdim=True)

    def _pair_maximum(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) rotations of the largest cosines, and these."""
        parts = [
            self._climb_everywhere(a, b)
            for a, b in zip(i.split(PAIR_CHUNK // 2), j.split(PAIR_CHUNK // 2), strict=True)
        ]
        angles, values = zip(*parts, strict=True)
        return torch.cat(angles), torch.cat(values)

    def _climb_everywhere(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        values = self._pair_scores(i, j)[:, 1:-1]  # (K, L), of [0, 2 pi]
        beside = torch.nn.functional.pad(values, (1, 1), value=-math.inf)
        pair, point = ((values >= beside[:, :-2]) & (values >= beside[:, 2:])).nonzero(as_tuple=True)  # (P,) each
        step = self.angles[2]
        start = step * point.double()
        low, high = (start - step).clamp_(min=0), (start + step).clamp_(max=FULL_TURN)
        found, heights = Exponentials(self.unit0[i[pair]], self.unit1[j[pair]], self.steerer).climb(start, low, high)
        everywhere = torch.full_like(values, -math.inf).index_put_((pair, point), heights)
        best, index = everywhere.amax(dim=1), first_largest(everywhere, SETTLED)
        angles = torch.zeros_like(values).index_put_((pair, point), found).gather(1, index[:, None])[:, 0]
        return angles, best

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_maximum(i, j)[1]

    def rotations(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_maximum(i, j)[0]


def _grid(exponential: Exponential) -> Angles:
    """From one step before 0 to one step after a full turn."""
    count = max(LEAST_POINTS, math.ceil(POINTS * exponential.rate))
    return tuple(FULL_TURN * k / count for k in range(-1, count + 2))


@lru_cache(maxsize=1)
def _grid_matrices(exponential: Exponential, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(L, D, D), kept from one pair of images to the next."""
    angles = torch.tensor(_grid(exponential), dtype=torch.float64, device=device)
    return exponential.to(device).matrices(angles).to(dtype)
