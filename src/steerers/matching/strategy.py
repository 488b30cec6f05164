"""What all matching strategies share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from steerers.accel.matching.modes import mode_of_many
from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment, Options, assign_all
from steerers.matching.similarity import Similarity, check_finite
from steerers.steering.steerer import Steerer

Pair = tuple[Tensor, Tensor]
"""(N, D) and (M, D) descriptions."""
Order = int | None | Literal["default"]


@dataclass(frozen=True, kw_only=True)
class Strategy(Options, ABC):
    """Matches two sets of descriptions, with the options of the assignment that all come down to."""

    name: ClassVar[str]

    @torch.no_grad()
    def match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        """Match (N, D) with (M, D) descriptions of any lengths, N and M; they need not be normalised."""
        return self._match(*self._checked(descriptions0, descriptions1))

    @torch.no_grad()
    def match_batch(
        self,
        descriptions0: Sequence[Tensor] | Tensor,
        descriptions1: Sequence[Tensor] | Tensor,
        lengths0: Sequence[int] | None = None,
        lengths1: Sequence[int] | None = None,
    ) -> list[Assignment]:
        """Match pair by pair; the rotation is chosen for each pair. On a GPU all go in one launch.

        Args:
            descriptions0: B tensors (N_b, D), or one padded (B, N, D) tensor; ``descriptions1`` likewise.
            lengths0: for padded tensors, how many of the N descriptions of each are real; ``lengths1`` likewise.
        """
        batch0, batch1 = _unpad("0", descriptions0, lengths0), _unpad("1", descriptions1, lengths1)
        if len(batch0) != len(batch1):
            raise ValueError(f"a batch needs as many first as second descriptions, got {len(batch0)} and {len(batch1)}")
        pairs = [self._checked(first, second) for first, second in zip(batch0, batch1, strict=True)]
        alike = len({(first.dtype, first.device, first.shape[1]) for first, _ in pairs}) == 1
        if alike and (pairs[0][0].device.type == "cuda" or self.kernels == "fused"):
            return self._match_all(pairs)
        return [self._match(*pair) for pair in pairs]

    def refined_rotations(self, descriptions0: Tensor, descriptions1: Tensor, assignment: Assignment) -> Assignment:
        """The assignment that :meth:`match` gave, with rotations between the tried ones; as it is where there are none.

        Strategies that try single rotations of a fixed SO(2) steerer have them: one for every match, and for the pair
        where most of those agree.
        """
        return assignment

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        return self._match_all([(descriptions0, descriptions1)])[0]

    @abstractmethod
    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        """Match each of at least one pair."""

    def _checked(self, descriptions0: Tensor, descriptions1: Tensor) -> Pair:
        """A pair that can be compared, in one type. On a GPU the assignment looks whether it is finite."""
        _check_descriptions(descriptions0, descriptions1)
        if descriptions0.device.type != "cuda":
            check_finite(descriptions0, descriptions1)
        self._check_dim(int(descriptions0.shape[1]))
        common = torch.promote_types(descriptions0.dtype, descriptions1.dtype)
        return descriptions0.to(common), descriptions1.to(common)

    def _check_dim(self, dim: int) -> None:
        """Refuse descriptions that the strategy's steerer does not fit."""

    def _assign(self, similarities: Sequence[Similarity]) -> list[Assignment]:
        """Of similarities without alternatives."""
        return [assignment for (assignment,) in assign_all(similarities, self)]

    def _assign_with_rotations(self, similarities: Sequence[Similarity]) -> list[Assignment]:
        """Assign by similarities that know the rotation of each pair; that of the images is where most agree."""
        return [
            with_rotations(assignment, similarity)
            for assignment, similarity in zip(self._assign(similarities), similarities, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class WithSteerer(Strategy):
    steerer: Steerer

    def _check_dim(self, dim: int) -> None:
        if dim != self.steerer.dim:
            raise ValueError(f"descriptions have length {dim}, but the steerer acts on length {self.steerer.dim}")


def with_rotations(assignment: Assignment, similarity: Similarity) -> Assignment:
    """With the rotation of every match, and that of the images; the kernels say the first already, and often both."""
    if assignment.angle is not None:
        return assignment
    if assignment.angles is not None and len(assignment):
        return replace(assignment, angle=_mode(assignment.angles, assignment.scores))
    angles = similarity.rotations(assignment.indices[:, 0], assignment.indices[:, 1]) if len(assignment) else None
    return with_angles(assignment, angles)


def with_angles(assignment: Assignment, angles: Tensor | None) -> Assignment:
    """With the rotation of every match, and that of the images, where most agree."""
    if angles is None or not len(assignment):
        return replace(assignment, angles=assignment.scores.new_zeros(0, dtype=torch.float64))
    angles = torch.remainder(angles.double() + math.pi, 2 * math.pi) - math.pi
    return replace(assignment, angle=_mode(angles, assignment.scores), angles=angles)


def _mode(angles: Tensor, weights: Tensor) -> float:
    return mode_of_many(angles, weights) if angles.is_cuda else circular_mode(angles, weights)


def _check_descriptions(descriptions0: Tensor, descriptions1: Tensor) -> None:
    for name, d in (("descriptions0", descriptions0), ("descriptions1", descriptions1)):
        if d.ndim != 2:
            raise ValueError(f"{name} must have shape (N, D), got {tuple(d.shape)}")
        if not d.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {d.dtype}")
    if descriptions0.shape[1] != descriptions1.shape[1]:
        raise ValueError(
            f"descriptions of lengths {descriptions0.shape[1]} and {descriptions1.shape[1]} do not compare"
        )
    if descriptions0.device != descriptions1.device:
        raise ValueError(f"descriptions lie on {descriptions0.device} and {descriptions1.device}; move them together")


def _unpad(which: str, descriptions: Sequence[Tensor] | Tensor, lengths: Sequence[int] | None) -> list[Tensor]:
    if not isinstance(descriptions, Tensor):
        if lengths is not None:
            raise ValueError(f"lengths{which} goes with a padded (B, N, D) tensor, not with a list")
        return list(descriptions)
    if descriptions.ndim != 3:
        raise ValueError(f"descriptions{which} must be a list of (N, D) tensors or one (B, N, D) tensor")
    if lengths is None:
        return list(descriptions)
    if len(lengths) != len(descriptions) or any(not 0 <= n <= descriptions.shape[1] for n in lengths):
        raise ValueError(f"lengths{which} must hold {len(descriptions)} numbers of 0 to {descriptions.shape[1]}")
    return [d[:n] for d, n in zip(descriptions, lengths, strict=True)]
