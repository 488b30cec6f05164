"""Strategies that try the rotations of a cyclic group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from steerers.matching.assignment import Assignment, assign_best, count_best, empty
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Harmonics, Rotated
from steerers.matching.refinement import refined_rotations
from steerers.matching.similarity import CosineAfterRotation, Similarity, Steered, check_finite
from steerers.matching.strategy import Order, Pair, WithSteerer, with_angles
from steerers.steering.representations import Group

DEFAULT_ORDER = 8


@dataclass(frozen=True, kw_only=True)
class OverRotations(WithSteerer):
    """What strategies that try the rotations of C_order share."""

    order: Order = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "order", self._resolve_order())

    def _resolve_order(self) -> int | None:
        whole, order = self.steerer.group.order, self.order
        if order == "default":
            return whole or DEFAULT_ORDER
        if order is None:
            raise ValueError(f"{self.name} tries single rotations and needs an order, such as 8")
        if not isinstance(order, int) or order < 2:
            raise ValueError(f"order must be a whole number of at least 2, got {order!r}")
        if whole is not None and whole % order:
            raise ValueError(
                f"order {order} needs rotations that a {self.steerer.group} steerer does not have; use {whole}"
            )
        return order

    def refined_rotations(self, descriptions0: Tensor, descriptions1: Tensor, assignment: Assignment) -> Assignment:
        assert self.order is None or isinstance(self.order, int)
        rotations = refined_rotations(descriptions0, descriptions1, assignment, self.steerer, self.order)
        return assignment if rotations is None else with_angles(assignment, rotations)

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor, *, maximum: bool) -> Similarity:
        assert isinstance(self.order, int)
        if self.steerer.representation is not None:
            harmonics = Harmonics(descriptions0, descriptions1, self.steerer, self.order)
            return Rotated(harmonics, self.order, maximum=maximum)
        return Steered(descriptions0, descriptions1, self.steerer, Group(self.order).angles(), maximum=maximum)


@dataclass(frozen=True, kw_only=True)
class MaxMatches(OverRotations):
    """Match after each rotation and keep the rotation with the most matches."""

    name = "max-matches"

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        assert isinstance(self.order, int)
        best = assign_best([self._similarity(*pair, maximum=False) for pair in pairs], self)
        return [replace(found, angle=_angles(self.order)[step] if len(found) else None) for step, found in best]


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(OverRotations):
    """Compare each pair of descriptions at the rotation where they are most similar, then match once.

    ``order=None`` takes the exact maximum over every angle, for a fixed SO(2) steerer.
    """

    name = "max-similarity"

    def _resolve_order(self) -> int | None:
        if self.order is not None:
            return super()._resolve_order()
        if not self.steerer.group.continuous:
            raise ValueError(
                f"order=None maximises over all angles, but the steerer knows the rotations of {self.steerer.group} "
                "only"
            )
        if self.steerer.representation is None:
            raise ValueError("order=None needs a fixed SO(2) steerer; for a learned one give an order, such as 8")
        return None

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return self._assign_with_rotations([self._similarity(*pair, maximum=True) for pair in pairs])

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor, *, maximum: bool) -> Similarity:
        if self.order is None:
            return Continuous(Harmonics(descriptions0, descriptions1, self.steerer, None))
        return super()._similarity(descriptions0, descriptions1, maximum=maximum)


@dataclass(frozen=True, kw_only=True)
class Subset(MaxMatches):
    """Find the rotation by max-matches on random subsets, then match everything once at that rotation.

    ``seed`` is a number, with which every call draws the same subsets, or a generator that is drawn from.
    """

    name = "subset"
    subset_size: int = 1000
    seed: int | torch.Generator = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset_size < 1:
            raise ValueError(f"subset_size must be at least 1, got {self.subset_size}")

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        drawn = [self._draw(*pair) for pair in pairs]
        parts = [k for k, pair in enumerate(pairs) if drawn[k][0] is not pair[0] or drawn[k][1] is not pair[1]]
        few = [k for k in range(len(pairs)) if k not in parts]
        found = dict(zip(few, super()._match_all([pairs[k] for k in few]), strict=True))
        rotations = count_best([self._similarity(*drawn[k], maximum=False) for k in parts], self)
        members: dict[int, list[int]] = {}  # pairs by their rotation
        for k, (step, count) in zip(parts, rotations, strict=True):
            if count:
                members.setdefault(step, []).append(k)
                continue
            found[k] = empty(pairs[k][0].device)
            if pairs[k][0].is_cuda:
                check_finite(*pairs[k])  # what was not drawn is not looked at otherwise
        for step, chosen in members.items():
            found |= zip(chosen, self._match_after_rotation([pairs[k] for k in chosen], step), strict=True)
        return [found[k] for k in range(len(pairs))]

    def _match_after_rotation(self, pairs: Sequence[Pair], step: int) -> list[Assignment]:
        assert isinstance(self.order, int)
        similarities = [CosineAfterRotation(*pair, self.steerer, self.order, step) for pair in pairs]
        angle = similarities[0].angle
        return [replace(assignment, angle=angle) for assignment in self._assign(similarities)]

    def _draw(self, descriptions0: Tensor, descriptions1: Tensor) -> Pair:
        """Random subsets of a pair's descriptions, or those themselves where they are few."""
        device, lengths = str(descriptions0.device), (len(descriptions0), len(descriptions1))
        if isinstance(self.seed, torch.Generator):
            drawn = [_drawn(self.seed, n, self.subset_size) for n in lengths]
        else:
            drawn = _kept_draw(self.seed, lengths, self.subset_size, device)
        subset0, subset1 = (
            d if index is None else d[index.to(d.device)]
            for d, index in zip((descriptions0, descriptions1), drawn, strict=True)
        )
        return subset0, subset1


@lru_cache(maxsize=64)
def _angles(order: int) -> list[float]:
    """The rotations of C_order."""
    angles: list[float] = Group(order).angles().tolist()
    return angles


def _drawn(generator: torch.Generator, length: int, size: int) -> Tensor | None:
    """Which of ``length`` descriptions are drawn, or ``None`` for all."""
    if length <= size:
        return None
    return torch.randperm(length, generator=generator, device=generator.device)[:size]


@lru_cache(maxsize=16)
def _kept_draw(seed: int, lengths: tuple[int, int], size: int, device: str) -> list[Tensor | None]:
    """Numbers of a seed, drawn once: on a GPU drawing would take longer than matching."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [_drawn(generator, length, size) for length in lengths]
    return [None if index is None else index.to(device) for index in drawn]
