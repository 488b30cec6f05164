"""What the fused kernels wrote, still on the device, and how it becomes assignments with one wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerers.accel.matching.plans import Plan
from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment

MOST_COMPARED = 1 << 28
"""Problems are put in order by comparing every row with every other, up to so many comparisons; beyond by sorting."""
FLAGS = 2
"""How many of the numbers come first: whether some of the first and of the second descriptions are not finite."""


@dataclass(frozen=True, eq=False)
class Ordered:
    """The matches of P problems, the largest probability first; what follows them is no match."""

    indices: Tensor  # (P, N, 2)
    scores: Tensor  # (P, N)
    angles: Tensor | None = None  # (P, N) float64

    def assignment(self, problem: int, count: int, angle: float | None) -> Assignment:
        angles = None if self.angles is None else self.angles[problem, :count]
        return Assignment(self.indices[problem, :count], self.scores[problem, :count], angle, angles)


@dataclass(frozen=True, eq=False)
class Results:
    """P problems of up to N rows: pairs of so many alternatives each.

    Attributes:
        stats: two flags, then for each problem the number of matches, the sum of their probabilities in multiples of
            2^-32, and that sum for each of the plan's rotations.
        probability: of the match of each row, -1 for none.
        rotation: the number of the plan's rotation, or for the mode ``modulus`` the complex product.
        ordered: if what was found is in order already.
    """

    plan: Plan
    alternatives: int
    stats: Tensor  # (2 + P (2 + T),) int64
    probability: Tensor  # (P, N)
    partner: Tensor  # (P, N) int64
    rotation: Tensor | None = None  # (P, N) int32 or (P, N, 2)
    ordered: Ordered | None = field(default=None, kw_only=True)

    @classmethod
    def empty(cls, plan: Plan, alternatives: int, pairs: int, n_max: int, device: torch.device) -> Results:
        """To be filled by the kernels."""
        problems = pairs * alternatives
        rotation = None
        if plan.mode == "modulus":
            rotation = torch.empty(problems, n_max, 2, device=device)
        elif plan.rotations:
            rotation = torch.empty(problems, n_max, dtype=torch.int32, device=device)
        return cls(
            plan,
            alternatives,
            torch.zeros(FLAGS + problems * (2 + len(plan.rotations)), dtype=torch.long, device=device),
            torch.empty(problems, n_max, device=device),
            torch.empty(problems, n_max, dtype=torch.long, device=device),
            rotation,
        )

    def read(self) -> list[list[int]]:
        """Wait for the device; the numbers of each problem. Descriptions that are not finite are refused here."""
        values, width = self.stats.tolist(), 2 + len(self.plan.rotations)
        for which in range(FLAGS):
            if values[which]:
                raise ValueError(f"descriptions{which} holds NaN or infinite values")
        return [values[start : start + width] for start in range(FLAGS, len(values), width)]

    def sort(self, first: int = 0, count: int | None = None) -> Ordered:
        """``count`` problems from ``first`` in order; by default all."""
        count = len(self.probability) - first if count is None else count
        if 0 < count * self.probability.shape[1] ** 2 <= MOST_COMPARED:
            return self._arranged(first, count)
        chosen = slice(first, first + count)
        scores, order = self.probability[chosen].sort(dim=-1, descending=True, stable=True)
        indices = torch.stack([order, self.partner[chosen].gather(-1, order)], dim=-1)
        if self.rotation is None:
            return Ordered(indices, scores)
        if self.plan.mode == "modulus":
            return Ordered(indices, scores, self._angles(self.rotation[chosen]).gather(-1, order))
        number = self.rotation[chosen].gather(-1, order).long().masked_fill_(scores < 0, 0)
        return Ordered(indices, scores, self.plan.angles[number])

    def _arranged(self, first: int, count: int) -> Ordered:
        from steerers.accel.matching import row_kernels

        length, device, block = self.probability.shape[1], self.probability.device, 16
        indices = torch.empty(count, length, 2, dtype=torch.long, device=device)
        scores, angles = torch.empty(count, length, device=device), None
        if self.rotation is not None:
            kept = self.rotation.dtype if self.plan.mode == "modulus" else torch.float64
            angles = torch.empty(count, *self.rotation.shape[1:], dtype=kept, device=device)
        what = "none" if angles is None else "product" if self.plan.mode == "modulus" else "number"
        row_kernels.arrange[(-(-length // block), count)](
            self.probability, self.partner, self.partner if self.rotation is None else self.rotation, self.plan.angles,
            indices, scores, scores if angles is None else angles, first, length,
            ROTATION=what, BLOCK=block, STEP=512, num_warps=4,
        )  # fmt: skip
        return Ordered(indices, scores, self._angles(angles) if angles is not None and what == "product" else angles)

    def _angles(self, products: Tensor) -> Tensor:
        """(P, N) float64 rotations in [-pi, pi) of (P, N, 2) complex products."""
        real, imaginary = products.double().unbind(dim=-1)
        angles = torch.atan2(imaginary, real).div_(self.plan.frequency)
        return angles.masked_fill_(angles >= math.pi, -math.pi)

    def assignments(self) -> list[list[Assignment]]:
        """All of them: for every pair, those of its alternatives. One wait, after everything is asked for."""
        ordered = self.sort() if self.ordered is None else self.ordered
        found = [ordered.assignment(p, numbers[0], self._angle(numbers)) for p, numbers in enumerate(self.read())]
        return [found[start : start + self.alternatives] for start in range(0, len(found), self.alternatives)]

    def best(self) -> list[tuple[int, Assignment]]:
        """For every pair the alternative with the most matches, as its number and assignment; only those are sorted."""
        numbers = self.read()
        chosen = []
        for pair, number in enumerate(self._most(numbers)):
            p = pair * self.alternatives + number
            ordered = self.sort(p, 1)
            chosen.append((number, ordered.assignment(0, numbers[p][0], self._angle(numbers[p]))))
        return chosen

    def counts(self) -> list[tuple[int, int]]:
        """For every pair the alternative with the most matches, as its number, and how many they are."""
        numbers = self.read()
        return [
            (number, numbers[pair * self.alternatives + number][0]) for pair, number in enumerate(self._most(numbers))
        ]

    def _most(self, numbers: list[list[int]]) -> list[int]:
        """Of several with as many matches, the one whose probabilities add up to more."""
        each = range(self.alternatives)
        return [max(each, key=lambda k: numbers[start + k][:2]) for start in range(0, len(numbers), self.alternatives)]

    def _angle(self, numbers: list[int]) -> float | None:
        count, weights = numbers[0], numbers[2:]
        return circular_mode(self.plan.rotations, weights) if weights and count else None
