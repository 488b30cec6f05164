"""How one tile of scores is made.

A :class:`Similarity` stands for the N x M matrix of cosines of two sets of descriptions without ever holding it: the
assignment asks for blocks of rows against ranges of columns. Every kind of it is positively homogeneous in the rows, so
that the inverse temperature is multiplied into the rows instead of the scores.

Here are the plain cosine and the steered ones of any steerer; those of a fixed steerer are in
:mod:`steerers.matching.harmonics`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.steering.steerer import Steerer

Rows = slice | Tensor
RowBlock = Callable[[slice], Tensor]
Angles = tuple[float, ...]
"""The rotations that are tried, in radians: those of C_order, or any others."""

PAIR_CHUNK = 512
"""Pairs that are compared at once; few enough that the matches of one image occupy all threads."""


class Similarity(ABC):
    """Cosines of (N, D) and (M, D) descriptions, for one or several alternative rotations of the first."""

    alternatives: int = 1
    layers: int = 1
    """How many arrays of the size of a tile are alive while one is made; the assignment sizes tiles by it."""

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor) -> None:
        self.descriptions0, self.descriptions1 = descriptions0, descriptions1
        self.shape, self.device = (len(descriptions0), len(descriptions1)), descriptions0.device

    @cached_property
    def unit0(self) -> Tensor:
        """(N, D), normalised when first needed."""
        return normalised(self.descriptions0)

    @cached_property
    def unit1(self) -> Tensor:
        """(M, D)."""
        return normalised(self.descriptions1)

    @abstractmethod
    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        """Prepare some rows; the result maps a range of c columns to an (alternatives, r, c) tensor of ``scale`` x
        cosines. The caller may overwrite it, and the next tile does."""

    @abstractmethod
    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """(K,) float64 cosines of row ``i[k]`` with column ``j[k]``; independent of any tile."""

    def alternative(self, index: int) -> Similarity:
        """The similarity of one alternative alone."""
        return self

    def rotations(self, i: Tensor, j: Tensor) -> Tensor | None:
        """(K,) rotations in radians at which the pairs' similarity is reached, or ``None``."""
        return None

    def check(self) -> None:
        """Refuse descriptions that are not finite. Where the device is waited for, that is left to the assignment."""
        check_finite(self.descriptions0, self.descriptions1)


def float_type(descriptions: Tensor) -> torch.dtype:
    """The type that descriptions are compared in: float32, unless they are float64."""
    return torch.float64 if descriptions.dtype == torch.float64 else torch.float32


def as_float(descriptions: Tensor) -> Tensor:
    """Descriptions in float32; float64 stays."""
    return descriptions.to(float_type(descriptions))


def normalised(descriptions: Tensor) -> Tensor:
    """Unit descriptions in float32 (float64 stays): what every similarity compares."""
    return F.normalize(as_float(descriptions), dim=-1)


def check_finite(descriptions0: Tensor, descriptions1: Tensor) -> None:
    """Refuse NaN and infinite values; one wait for the device."""
    total = descriptions0.sum(dtype=float_type(descriptions0)) + descriptions1.sum(dtype=float_type(descriptions1))
    if math.isfinite(float(total)):
        return
    for name, d in (("descriptions0", descriptions0), ("descriptions1", descriptions1)):
        if not bool(torch.isfinite(d).all()):
            raise ValueError(f"{name} holds NaN or infinite values")


def first_largest(scores: Tensor, rounding: float = 1e-6) -> Tensor:
    """(K,) index of the first of each row of (K, L) scores that is as large as any, but for rounding.

    Where rotations change nothing, it is not rounding that says which.
    """
    return (scores >= scores.amax(dim=1, keepdim=True) - rounding).int().argmax(dim=1)


def wrapped(angles: Tensor) -> Tensor:
    """Radians in [-pi, pi), in float64."""
    return torch.remainder(angles.double() + math.pi, 2 * math.pi) - math.pi


class Cosine(Similarity):
    """The plain cosine."""

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        prepared = self.unit0[rows] * scale  # (r, D)
        return lambda cols: (prepared @ self.unit1[cols].mT)[None]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        parts = [
            (self.unit0[a].double() * self.unit1[b].double()).sum(dim=1)
            for a, b in zip(i.split(PAIR_CHUNK), j.split(PAIR_CHUNK), strict=True)
        ]
        return torch.cat(parts)


class Aligned(Cosine):
    """The cosine of copies of descriptions that were each rotated, by (N,) and (M,) angles; their memory counts as its
    own."""

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, angles0: Tensor, angles1: Tensor) -> None:
        super().__init__(descriptions0, descriptions1)
        self.angles0, self.angles1 = angles0, angles1

    def rotations(self, i: Tensor, j: Tensor) -> Tensor:
        return self.angles0[i] - self.angles1[j]


class CosineAfterRotation(Cosine):
    """The cosine after a rotation by ``angle`` radians, by any steerer."""

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, angle: float) -> None:
        super().__init__(descriptions0, descriptions1)
        self.steerer, self.angle = steerer, angle

    @cached_property
    def unit0(self) -> Tensor:
        return normalised(self.steerer.steer(as_float(self.descriptions0), self.angle))


class Steered(Similarity):
    """Cosines after each of some rotations by any steerer, learned ones included: one product a rotation.

    With ``maximum`` the result is the largest of them, otherwise they are alternatives.
    """

    def __init__(
        self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, angles: Angles, *, maximum: bool
    ) -> None:
        super().__init__(descriptions0, descriptions1)
        self.steerer, self.angles, self.maximum = steerer, angles, maximum
        self.alternatives, self.layers = 1 if maximum else len(angles), len(angles)

    @cached_property
    def matrices(self) -> Tensor:
        """(L, D, D), one a rotation."""
        matrices = torch.stack([self.steerer.matrix(angle) for angle in self.angles])
        return matrices.to(self.device, float_type(self.descriptions0))

    def _steer(self, rows: Tensor) -> Tensor:
        return F.normalize(rows @ self.matrices.mT, dim=-1)  # (L, r, D)

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        steered = self._steer(self.unit0[rows]) * scale  # (L, r, D)

        def scores(cols: slice) -> Tensor:
            tile = (steered.flatten(0, 1) @ self.unit1[cols].mT).view(*steered.shape[:2], -1)  # (L, r, c)
            return self._largest(tile) if self.maximum else tile

        return scores

    def _largest(self, tile: Tensor) -> Tensor:
        """(1, r, c) of (L, r, c) cosines, which may be overwritten."""
        return tile.amax(dim=0, keepdim=True)

    def alternative(self, index: int) -> Similarity:
        if self.maximum:
            return self
        alone = copy(self)  # with the same unit descriptions
        alone.matrices, alone.alternatives, alone.layers = self.matrices[index : index + 1], 1, 1
        return alone

    def _pair_scores(self, i: Tensor, j: Tensor) -> Tensor:
        parts = [
            torch.einsum("lkd,kd->kl", self._steer(self.unit0[a]).double(), self.unit1[b].double())
            for a, b in zip(i.split(PAIR_CHUNK // 2), j.split(PAIR_CHUNK // 2), strict=True)
        ]
        return torch.cat(parts)  # (K, L)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_scores(i, j).amax(dim=1)

    def rotations(self, i: Tensor, j: Tensor) -> Tensor | None:
        if not self.maximum:
            return None
        return torch.tensor(self.angles, dtype=torch.float64, device=i.device)[first_largest(self._pair_scores(i, j))]
