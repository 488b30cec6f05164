"""Real representations of the rotation groups SO(2) and C_n, as values without data.

A real representation is, up to a change of basis, a list of frequencies (paper, theorems of sections 4 and 4.1). Of
SO(2), frequency 0 is one-dimensional and every other ``j`` is the 2 x 2 rotation by ``j`` times the angle. Of C_n the
frequencies run modulo ``n``; for even ``n`` the frequency ``n/2`` is one-dimensional: the generator acts as -1.

A representation is written as its multiplicities and frequencies, and prints back the same:

>>> spread = Representation.parse("40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6", "SO2")
>>> spread.dim
256
>>> print(spread.restrict(4).canonical())
76x0 + 54x1 + 72x2
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Order = int | None | Literal["default"]
"""How many rotations are tried: those of C_order, every rotation of SO(2) for None, or what suits a steerer."""
SAME_ANGLE = 1e-9
"""Angles that differ by less, in radians, are the same."""
MAX_DIM, MAX_ORDER, MAX_FREQUENCY = 4096, 4096, 512
"""The longest descriptions, the largest cyclic group, and the highest frequency of SO(2), whose period is looked at in
eight places. Whatever a file or an option asks for, a (D, D) matrix and a (n, D) table then take 128 MiB at most.
Descriptors have 64 to 512 dimensions, and no photograph tells a rotation to a 4096th of a turn."""
_TERM = re.compile(r"(\d+)\s*x\s*(-?\d+)")


@dataclass(frozen=True)
class Group:
    """The rotation group: C_n for ``order=n``, SO(2) for ``order=None``."""

    order: int | None

    def __post_init__(self) -> None:
        if self.order is not None and not 2 <= self.order <= MAX_ORDER:
            bound = "at least 2" if self.order < 2 else f"at most {MAX_ORDER}"
            raise ValueError(f"the order of a cyclic group must be {bound}, got {self.order}")

    @classmethod
    def parse(cls, name: str | Group) -> Group:
        """Read ``"SO2"`` (or ``"SO(2)"``) and ``"C4"`` (or ``"C_4"``); upper or lower case."""
        if isinstance(name, Group):
            return name
        if not isinstance(name, str):
            raise TypeError(f'group must be a string such as "SO2" or "C4", got {type(name).__name__}')
        text = name.strip().upper()
        if text in ("SO2", "SO(2)"):
            return cls(None)
        match = re.fullmatch(r"C_?(\d+)", text)
        if match is None:
            raise ValueError(f'unknown group {name!r}: use "SO2" or "C" and the order, such as "C4" or "C8"')
        return cls(int(match[1]))

    def __str__(self) -> str:
        return "SO2" if self.order is None else f"C{self.order}"

    @property
    def continuous(self) -> bool:
        """Whether the group is SO(2)."""
        return self.order is None

    def subgroup(self, order: int) -> Group:
        """C_order, refused if it has rotations that this group has not."""
        subgroup = Group(order)
        if self.order is not None and self.order % order:
            raise ValueError(f"C{order} is not a subgroup of {self}: {order} does not divide {self.order}")
        return subgroup

    def steps(self, angle: Tensor) -> Tensor:
        """How many times the generator of C_n makes the rotations ``angle`` (radians), as integers in 0..n-1.

        Raises:
            ValueError: if the group is SO(2), or an angle is not a multiple of 360/n degrees.
        """
        if self.order is None:
            raise ValueError("SO(2) has no smallest rotation; discretise it to C_n first")
        exact = angle.double() * (self.order / (2 * math.pi))
        steps = exact.round()
        if not bool(((exact - steps).abs() <= 1e-4).all()):
            worst = math.degrees(float(angle.double().flatten()[(exact - steps).abs().argmax()]))
            raise ValueError(f"{self} rotates by multiples of {360 / self.order:g} degrees only, got {worst:g} degrees")
        return steps.long() % self.order

    def rotations(self, angles: Iterable[float]) -> tuple[float, ...]:
        """Some rotations of the group, in radians, each brought to [0, 2 pi).

        Raises:
            ValueError: if there is none, one is not finite or comes twice, or one is no rotation of C_n.
        """
        try:
            given = [angle + 0.0 for angle in angles]  # float() would take text
        except TypeError:
            raise ValueError(f"angles must be numbers, got {angles!r}") from None
        if not given:
            raise ValueError("angles holds none: give at least one")
        if not all(map(math.isfinite, given)):
            raise ValueError(f"angles must be finite, got {given}")
        if self.order is None:
            kept = [angle % (2 * math.pi) for angle in given]
            kept = [0.0 if 2 * math.pi - angle < SAME_ANGLE else angle for angle in kept]
        else:
            kept = self.angles()[self.steps(torch.tensor(given, dtype=torch.float64))].tolist()
        for first, second in pairwise(sorted(kept)):
            if second - first < SAME_ANGLE:
                raise ValueError(f"angles holds {math.degrees(first):g} degrees twice; they count modulo a full turn")
        return tuple(map(float, kept))

    def fold(self, frequency: int) -> int:
        """The frequency that stands for an equivalent one: ``j`` for ``-j``, or for ``n - j``."""
        return abs(frequency) if self.order is None else min(frequency, self.order - frequency)

    def angles(self) -> Tensor:
        """The (n,) rotations of C_n in radians, from 0."""
        if self.order is None:
            raise ValueError("SO(2) has infinitely many rotations; discretise it to C_n first")
        return torch.arange(self.order, dtype=torch.float64) * (2 * math.pi / self.order)


@dataclass(frozen=True)
class Representation:
    """A direct sum of irreducible real representations, in the order in which they act on the coordinates.

    Attributes:
        group: SO(2) or C_n.
        terms: ``(multiplicity, frequency)`` pairs. The frequency is any integer for SO(2) (the sign is the sense in
            which the pair of coordinates rotations) and 0..n-1 for C_n.
    """

    group: Group
    terms: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("a representation needs at least one term, such as '8x0'")
        for multiplicity, frequency in self.terms:
            part = f"{multiplicity}x{frequency}"
            if multiplicity < 1:
                raise ValueError(f"multiplicity in {part!r} must be at least 1")
            order = self.group.order
            if order is not None and not 0 <= frequency < order:
                raise ValueError(f"frequency in {part!r} must be 0 to {order - 1} for {self.group}")
            if order is None and abs(frequency) > MAX_FREQUENCY:
                raise ValueError(f"frequency in {part!r} must be {-MAX_FREQUENCY} to {MAX_FREQUENCY} for SO2")
        check_dim(self.dim)

    # Specification ----------------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, spec: str, group: str | Group, dim: int | None = None) -> Representation:
        """Read a specification such as ``"40x0 + 18x1"``.

        Args:
            spec: terms ``multiplicity x frequency`` joined by ``+``.
            group: ``"SO2"`` or ``"C4"`` and the like.
            dim: if given, the dimension that the terms must add up to.

        Raises:
            ValueError: naming the term at fault.
        """
        if not isinstance(spec, str):
            raise TypeError(f'spec must be a string such as "40x0 + 18x1", got {type(spec).__name__}')
        terms = []
        for part in spec.split("+"):
            match = _TERM.fullmatch(part.strip())
            if match is None:
                raise ValueError(
                    f"cannot read {part.strip()!r} in {spec!r}: a term is 'multiplicity x frequency', such as '18x1'"
                )
            terms.append((int(match[1]), int(match[2])))
        representation = cls(Group.parse(group), tuple(terms))
        if dim is not None and representation.dim != dim:
            sizes = " + ".join(f"{m * _block_size(representation.group, j)} for {m}x{j}" for m, j in terms)
            raise ValueError(f"{spec!r} has dimension {representation.dim} ({sizes}), not {dim}")
        return representation

    def __str__(self) -> str:
        return " + ".join(f"{multiplicity}x{frequency}" for multiplicity, frequency in self.terms)

    # Structure --------------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The irreducible blocks in order, as ``(frequency, size)`` with size 1 or 2."""
        for multiplicity, frequency in self.terms:
            yield from [(frequency, _block_size(self.group, frequency))] * multiplicity

    @property
    def dim(self) -> int:
        """Dimension D of the space that is acted on."""
        return sum(multiplicity * _block_size(self.group, frequency) for multiplicity, frequency in self.terms)

    def multiplicities(self) -> dict[int, int]:
        """How often each frequency occurs up to equivalence: ``j`` and ``-j`` (or ``n - j``) count as one."""
        counts: Counter[int] = Counter()
        for multiplicity, frequency in self.terms:
            counts[self.group.fold(frequency)] += multiplicity
        return dict(sorted(counts.items()))

    def canonical(self) -> Representation:
        """The equivalent representation with folded frequencies, ascending, each once."""
        return Representation(self.group, tuple((m, j) for j, m in self.multiplicities().items()))

    def is_equivalent(self, other: Representation) -> bool:
        """Whether a change of basis turns one into the other."""
        return self.group == other.group and self.multiplicities() == other.multiplicities()

    def __add__(self, other: Representation) -> Representation:
        """The direct sum."""
        if not isinstance(other, Representation):
            return NotImplemented
        if self.group != other.group:
            raise ValueError(f"cannot add representations of {self.group} and {other.group}")
        return Representation(self.group, self.terms + other.terms)

    def restrict(self, order: int) -> Representation:
        """The same matrices seen as a representation of the subgroup C_order (the paper's discretisation to C_l).

        The coordinates stay as they are: a 2 x 2 block whose frequency becomes 0 or order/2 is two 1 x 1 blocks.
        """
        subgroup = self.group.subgroup(order)
        terms = []
        for multiplicity, frequency in self.terms:
            size, new_size = _block_size(self.group, frequency), _block_size(subgroup, frequency % order)
            terms.append((multiplicity * size // new_size, frequency % order))
        return Representation(subgroup, tuple(terms))

    # Matrices ---------------------------------------------------------------------------------------------------------

    def coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        """How a rotation acts coordinate by coordinate, in O(D).

        Returns:
            ``(frequency, partner, sign)``, each (D,). A rotation by ``t`` maps ``d`` to
            ``cos(frequency t) d + sign sin(frequency t) d[partner]``.
        """
        frequencies: list[int] = []
        partners: list[int] = []
        signs: list[float] = []
        for frequency, size in self.blocks():
            start = len(partners)
            frequencies += [frequency] * size
            partners += [start] if size == 1 else [start + 1, start]
            signs += [0.0] if size == 1 else [-1.0, 1.0]
        return torch.tensor(frequencies), torch.tensor(partners), torch.tensor(signs, dtype=torch.float64)

    def cos_sin(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        """``cos(j t)`` and ``sin(j t)`` of every coordinate's frequency ``j``, for rotations ``t``: (..., D) float64.

        Rotations of C_n are counted in whole steps first, so that they stay exact however large the angle.
        """
        frequency = self.coordinates()[0].to(angle.device)
        if self.group.order is None:
            phase = angle.double()[..., None] * frequency
        else:
            order = self.group.order
            phase = (self.group.steps(angle)[..., None] * frequency % order).double() * (2 * math.pi / order)
        return torch.cos(phase), torch.sin(phase)

    def matrix(self, angle: float, dtype: torch.dtype = torch.float64) -> Tensor:
        """The (D, D) matrix of a rotation by ``angle`` radians; for C_n a multiple of its smallest rotation."""
        _, partner, sign = self.coordinates()
        cos, sin = self.cos_sin(torch.tensor(angle, dtype=torch.float64))
        matrix = torch.diag(cos)
        matrix[torch.arange(self.dim), partner] += sign * sin
        return matrix.to(dtype)

    def generator(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The (D, D) matrix that defines the representation.

        For C_n it is the group element of the smallest rotation; for SO(2) the Lie algebra element ``G`` with
        ``matrix(t) = matrix_exp(t G)``.
        """
        if self.group.order is not None:
            return self.matrix(2 * math.pi / self.group.order, dtype)
        frequency, partner, sign = self.coordinates()
        generator = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        generator[torch.arange(self.dim), partner] = sign * frequency
        return generator.to(dtype)

    def eigenvalues(self) -> Tensor:
        """The (D,) complex eigenvalues of :meth:`generator`, block by block; those of a pair are conjugate."""
        values: list[complex] = []
        for frequency, size in self.blocks():
            phase = frequency if self.group.order is None else 2 * math.pi * frequency / self.group.order
            if self.group.order is None:
                values += [0j] if size == 1 else [1j * phase, -1j * phase]
            elif size == 1:
                values += [complex(1 if frequency == 0 else -1)]
            else:
                values += [complex(math.cos(phase), math.sin(phase)), complex(math.cos(phase), -math.sin(phase))]
        return torch.tensor(values, dtype=torch.complex128)


def check_dim(dim: int) -> None:
    """Refuse what is no length of descriptions, or beyond :data:`MAX_DIM`, before memory is asked for."""
    if not isinstance(dim, int) or dim < 1:
        raise ValueError(f"dim must be a positive integer, got {dim!r}")
    if dim > MAX_DIM:
        raise ValueError(f"dim must be at most {MAX_DIM}, got {dim}")


def _block_size(group: Group, frequency: int) -> int:
    """Dimension of the irreducible real representation of that frequency."""
    one_dimensional = frequency == 0 or (group.order is not None and 2 * frequency == group.order)
    return 1 if one_dimensional else 2
