"""How one tile of scores is made.

A :class:`Similarity` stands for the N x M matrix of cosines of two sets of descriptions without ever holding it: the
assignment asks for blocks of rows against ranges of columns. Every kind of it is positively homogeneous in the rows, so
that the inverse temperature is multiplied into the rows instead of the scores.

Here are the plain cosine and the steered ones of any steerer; those of a fixed steerer are in
:mod:`steerers.matching.harmonics`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.steerer import Steerer

Rows = slice | Tensor
RowBlock = Callable[[slice], Tensor]

PAIR_CHUNK = 2048


class Similarity(ABC):
    """Cosines of N by M descriptions, for one or several alternative turns of the first."""

    shape: tuple[int, int]
    alternatives: int = 1
    layers: int = 1
    """How many arrays of the size of a tile are alive while one is made; the assignment sizes tiles by it."""
    device: torch.device

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

    def turns(self, i: Tensor, j: Tensor) -> Tensor | None:
        """(K,) float64 turns in radians at which the pairs' similarity is reached, or ``None``."""
        return None


def as_float(descriptions: Tensor) -> Tensor:
    """Descriptions in float32; float64 stays."""
    return descriptions if descriptions.dtype == torch.float64 else descriptions.float()


def normalised(descriptions: Tensor) -> Tensor:
    """Unit descriptions in float32 (float64 stays): what every similarity compares."""
    return F.normalize(as_float(descriptions), dim=-1)


class Cosine(Similarity):
    """The plain cosine; with ``steer``, of the rows after a map that keeps or restores their length."""

    def __init__(self, unit0: Tensor, unit1: Tensor, steer: Callable[[Tensor], Tensor] | None = None) -> None:
        self.unit0, self.unit1, self.steer = unit0, unit1, steer
        self.shape, self.device = (len(unit0), len(unit1)), unit0.device

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        prepared = self._rows(rows) * scale  # (r, D)
        return lambda cols: (prepared @ self.unit1[cols].mT)[None]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        parts = [
            (self._rows(a).double() * self.unit1[b].double()).sum(dim=1)
            for a, b in zip(i.split(PAIR_CHUNK), j.split(PAIR_CHUNK), strict=True)
        ]
        return torch.cat(parts)

    def _rows(self, rows: Rows) -> Tensor:
        return self.unit0[rows] if self.steer is None else self.steer(self.unit0[rows])


class Steered(Similarity):
    """Cosines after each of several turns by any steerer, learned ones included: one product a turn.

    With ``maximum`` the result is the largest of them, otherwise they are alternatives.
    """

    def __init__(self, unit0: Tensor, unit1: Tensor, steerer: Steerer, angles: Tensor, *, maximum: bool) -> None:
        self.unit0, self.unit1, self.maximum = unit0, unit1, maximum
        self.angles = angles  # (L,)
        self.matrices = torch.stack([steerer.matrix(float(angle)) for angle in angles]).to(unit0)  # (L, D, D)
        self.shape, self.device = (len(unit0), len(unit1)), unit0.device
        self.alternatives = 1 if maximum else len(angles)
        self.layers = len(angles)

    def _steer(self, rows: Tensor) -> Tensor:
        return F.normalize(rows @ self.matrices.mT, dim=-1)  # (L, r, D)

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        steered = self._steer(self.unit0[rows]) * scale  # (L, r, D)

        def scores(cols: slice) -> Tensor:
            tile = (steered.flatten(0, 1) @ self.unit1[cols].mT).view(*steered.shape[:2], -1)  # (L, r, c)
            return tile.amax(dim=0, keepdim=True) if self.maximum else tile

        return scores

    def alternative(self, index: int) -> Similarity:
        if self.maximum:
            return self
        matrix = self.matrices[index]
        return Cosine(self.unit0, self.unit1, lambda rows: F.normalize(rows @ matrix.mT, dim=-1))

    def _pair_scores(self, i: Tensor, j: Tensor) -> Tensor:
        parts = [
            torch.einsum("lkd,kd->kl", self._steer(self.unit0[a]).double(), self.unit1[b].double())
            for a, b in zip(i.split(PAIR_CHUNK // 8), j.split(PAIR_CHUNK // 8), strict=True)
        ]
        return torch.cat(parts)  # (K, L)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_scores(i, j).amax(dim=1)

    def turns(self, i: Tensor, j: Tensor) -> Tensor | None:
        return self.angles.to(i.device)[self._pair_scores(i, j).argmax(dim=1)] if self.maximum else None
