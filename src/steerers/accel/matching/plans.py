"""How the fused kernels make the rows and columns that they compare: a plan, made once for a steerer.

A plan says every compared coordinate as a combination of two coordinates of a description,

    row[g, k] = weights[0, g, k] * d[index[0, g, k]] + weights[1, g, k] * d[index[1, g, k]]

for the G groups of rows, one for each rotation that is tried. Coordinates are sorted into those that the half turn
keeps (even) and those whose sign it changes (odd), each padded with zeros to a multiple of :data:`MULTIPLE`. How the
products of rows and columns become a score is the plan's mode:

* ``maximum``: the largest of the G products;
* ``paired``: the largest of E + |O| with the products E of the even and O of the odd coordinates, since opposite
  rotations have the scores E + O and E - O;
* ``modulus``: the root of the sum of the squares of the products with the columns and with their quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Literal, TypeVarTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from steerers.matching.harmonics import in_opposites
from steerers.matching.similarity import Angles, wrapped
from steerers.steering.representations import Representation
from steerers.steering.steerer import Steerer

Key = TypeVarTuple("Key")
Mode = Literal["maximum", "paired", "modulus"]
MULTIPLE = 32
"""What the numbers of even and of odd coordinates are padded to: the most that a kernel multiplies at once divides it
or is a power of two times it."""
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class Terms:
    """The two terms of every compared coordinate, for G groups."""

    index: Tensor  # (2, G, K) int32
    weights: Tensor  # (2, G, K) float32
    two: bool
    """Whether the second term is ever used."""

    @property
    def groups(self) -> int:
        return int(self.index.shape[1])

    @property
    def width(self) -> int:
        """K, padding included."""
        return int(self.index.shape[2])

    def select(self, start: int, stop: int) -> Terms:
        """Some of the groups."""
        if stop - start == self.groups:
            return self
        return Terms(self.index[:, start:stop].contiguous(), self.weights[:, start:stop].contiguous(), self.two)


@dataclass(frozen=True, eq=False)
class Plan:
    """How rows, columns and scores are made.

    Attributes:
        groups: of rows that one score is the maximum over.
        even: number K of even coordinates, padded.
        rotations: (T,) the rotations in radians that a score may be reached at; empty if the mode has none.
        frequency: for ``modulus``, what divides the angle of the complex product.
    """

    mode: Mode
    rows: Terms
    cols: Terms
    groups: int
    even: int
    rotations: tuple[float, ...] = ()
    frequency: int = 1

    @cached_property
    def odd(self) -> int:
        """Number of odd coordinates, padded; ``modulus`` has none."""
        return self.rows.width - self.even

    @cached_property
    def alternatives(self) -> int:
        """How many problems the rows hold, each of ``groups`` groups."""
        return self.rows.groups // self.groups

    @cached_property
    def angles(self) -> Tensor:
        """(T,) float64: the rotations in [-pi, pi), on the device of the plan."""
        return wrapped(torch.tensor(self.rotations, dtype=torch.float64)).to(self.rows.index.device)


@dataclass(frozen=True, eq=False)
class Operands:
    """What a similarity compares, for the fused kernels: descriptions as they came, and the plan."""

    descriptions0: Tensor  # (N, D), any floating-point type and strides
    descriptions1: Tensor  # (M, D)
    plan: Plan
    matrices: Tensor | None = None  # (L, D, D)
    """If given, the plan is that of the plain cosine and the first descriptions are multiplied with each of these."""
    copied: int = 0
    """Bytes of the descriptions if they were made for this comparison; the kernels then keep to that much less."""


@lru_cache(maxsize=64)
def cosine_plan(dim: int, device: torch.device) -> Plan:
    """The plain cosine of descriptions of length ``dim``."""
    terms = _terms([torch.eye(dim, dtype=torch.float64)], [list(range(dim))], device)
    assert terms is not None
    return Plan("maximum", terms, terms, 1, terms.width)


def _once(make: Callable[[Steerer, *Key], Plan | None]) -> Callable[[Steerer, *Key], Plan | None]:
    """Plans of a fixed steerer are made once, and live as long as it does; of a learned one there are none."""
    made: WeakKeyDictionary[Steerer, dict[tuple[*Key], Plan | None]] = WeakKeyDictionary()

    @wraps(make)
    def kept(steerer: Steerer, /, *key: *Key) -> Plan | None:
        plans = made.setdefault(steerer, {})
        if key not in plans:
            plans[key] = None if steerer.representation is None else make(steerer, *key)
        return plans[key]

    return kept


@_once
def rotated_plan(steerer: Steerer, angles: Angles, maximum: bool, device: torch.device) -> Plan | None:
    """The cosines after each of some rotations by a fixed steerer: the largest, or all as alternatives."""
    matrices = [steerer.matrix(angle).detach().double().cpu() for angle in angles]
    paired = maximum and in_opposites(angles)
    split = _halves(steerer.matrix(math.pi).detach().double().cpu()) if paired else None
    if paired and split is None:
        return None
    basis, parts = split or (torch.eye(steerer.dim, dtype=torch.float64), [list(range(steerer.dim))])
    tried = matrices[: len(angles) // 2] if paired else matrices
    rows = _terms([basis @ matrix for matrix in tried], parts, device)
    cols = _terms([basis], parts, device)
    if rows is None or cols is None:
        return None
    if paired:
        return Plan("paired", rows, cols, len(tried), _padded(len(parts[0])), angles)
    return Plan("maximum", rows, cols, len(angles) if maximum else 1, rows.width, angles if maximum else ())


@_once
def modulus_plan(steerer: Steerer, order: int | None, device: torch.device) -> Plan | None:
    """The largest cosine after any rotation, for a fixed steerer of one frequency above zero."""
    representation = steerer.representation
    assert representation is not None
    if order is not None:
        representation = representation.restrict(order)
    frequencies = list(representation.multiplicities())
    if len(frequencies) != 1 or any(size != 2 for _, size in representation.blocks()):
        return None
    in_phase, quadrature = _complex(representation)
    blocks = steerer.block_basis()
    whole = list(range(steerer.dim))
    rows = _terms([in_phase @ blocks], [whole], device)
    cols = _terms([torch.cat([in_phase, quadrature]) @ blocks], [whole, [k + steerer.dim for k in whole]], device)
    if rows is None or cols is None:
        return None
    return Plan("modulus", rows, cols, 1, rows.width, frequency=frequencies[0])


def _halves(half_turn: Tensor) -> tuple[Tensor, list[list[int]]] | None:
    """An orthogonal basis, as rows, whose vectors the half turn keeps (even) or negates (odd), and which are which.

    The half turn must be diagonal or a permutation, or both in blocks; otherwise there is none of two terms.
    """
    dim = len(half_turn)
    basis, even, odd = torch.zeros(dim, dim, dtype=torch.float64), list[int](), list[int]()
    for k, row in enumerate(half_turn):
        partner = int(row.abs().argmax())
        value = float(row[partner])
        if abs(abs(value) - 1) > NEGLIGIBLE or float(row.abs().sum()) > 1 + NEGLIGIBLE * dim:
            return None
        if partner == k:
            basis[k, k] = 1.0
            (even if value > 0 else odd).append(k)
        elif value < 0:
            return None
        elif partner > k:
            basis[[k, k, partner], [k, partner, k]] = 0.5**0.5
            basis[partner, partner] = -(0.5**0.5)
            even.append(k)
            odd.append(partner)
    return basis, [even, odd]


def _complex(representation: Representation) -> tuple[Tensor, Tensor]:
    """(D, D) matrices that bring every block to rotate the same way, and that then rotate it a quarter back."""
    in_phase = torch.eye(representation.dim, dtype=torch.float64)
    quadrature = torch.zeros_like(in_phase)
    for block, (frequency, _) in enumerate(representation.blocks()):
        x, y = 2 * block, 2 * block + 1
        sign = 1.0 if representation.group.fold(frequency) == frequency else -1.0
        in_phase[y, y] = sign
        quadrature[x, y], quadrature[y, x] = sign, -1.0
    return in_phase, quadrature


def _padded(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def _terms(matrices: list[Tensor], parts: list[list[int]], device: torch.device) -> Terms | None:
    """The rows of matrices (D', D), part by part with padding; ``None`` if one has more than two entries."""
    width = sum(_padded(len(part)) for part in parts)
    index = torch.zeros(2, len(matrices), width, dtype=torch.int32)
    weights = torch.zeros(2, len(matrices), width)
    for g, matrix in enumerate(matrices):
        terms = min(2, matrix.shape[1])
        largest = matrix.abs().topk(terms, dim=1).indices  # (D', 2)
        values = matrix.gather(1, largest)
        if float((matrix.abs().sum(dim=1) - values.abs().sum(dim=1)).max()) > NEGLIGIBLE:
            return None
        values = torch.where(values.abs() > NEGLIGIBLE, values, 0.0)
        start = 0
        for part in parts:
            index[:terms, g, start : start + len(part)] = largest[part].mT.int()
            weights[:terms, g, start : start + len(part)] = values[part].mT.float()
            start += _padded(len(part))
    index = torch.where(weights == 0, 0, index)
    return Terms(index.to(device), weights.to(device), bool((weights[1] != 0).any()))
