"""Steered similarities of a fixed steerer, from products of single frequencies.

If a representation acts on the descriptions, the similarity of ``a`` rotated by ``t`` with ``b`` is a trigonometric
polynomial

    s(t) = sum_f  C_f cos(f t) + S_f sin(f t)

whose coefficients are products over the coordinates of one frequency each. Those cost less than two ordinary products,
however many rotations are then tried.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from steerers.matching.similarity import PAIR_CHUNK, RowBlock, Rows, Similarity, as_float, check_finite, float_type
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

# Bands ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """The coordinates of one frequency: a range of columns, and of the quadrature columns if it has two components."""

    frequency: int
    columns: slice
    quadrature: slice | None


@lru_cache(maxsize=64)
def arrange(representation: Representation) -> tuple[Tensor, Tensor, list[Band]]:
    """Sort coordinates by folded frequency, even ones first, x before y.

    A block that rotates the other way (frequency -f, or n - f) becomes one of frequency f when the sign of its second
    coordinate is changed, on both sides of the product.

    Returns:
        (D,) indices into the coordinates, (D,) signs, and the bands.
    """
    position = 0
    members: dict[int, tuple[list[int], list[int], list[float]]] = {}
    for frequency, size in representation.blocks():
        folded = representation.group.fold(frequency)
        xs, ys, signs = members.setdefault(folded, ([], [], []))
        xs.append(position)
        if size == 2:
            ys.append(position + 1)
            signs.append(1.0 if folded == frequency else -1.0)
        position += size
    index: list[int] = []
    sign: list[float] = []
    bands: list[Band] = []
    quadratures = 0
    for frequency in sorted(members, key=lambda f: (f % 2, f)):
        xs, ys, signs = members[frequency]
        columns = slice(len(index), len(index) + len(xs) + len(ys))
        quadrature = slice(quadratures, quadratures + len(xs) + len(ys)) if ys else None
        quadratures += len(xs) + len(ys) if ys else 0
        index += xs + ys
        sign += [1.0] * len(xs) + signs
        bands.append(Band(frequency, columns, quadrature))
    return torch.tensor(index), torch.tensor(sign), bands


@dataclass(frozen=True, eq=False)
class Waves:
    """The waves of s(t), C in all: one for each band, then one more for its quadrature if it has one.

    Attributes:
        frequency: the k-th wave is cos(frequency t - phase), or a sine.
        members: which coordinates of the products of rows and columns each adds up.
        rotated: of the two-component bands, the coordinates of columns that their quadrature is made of, and its
            ``signs``; ``unrotated`` the coordinates of rows that it is multiplied with.
        quadrature_members: which coordinates of those products each wave adds up.
    """

    frequency: Tensor  # (C,) float64
    phase: Tensor  # (C,) float64
    members: Tensor  # (D, C) float64
    rotated: Tensor  # (Q,) int64
    signs: Tensor  # (Q,) float64
    unrotated: Tensor  # (Q,) int64
    quadrature_members: Tensor  # (Q, C) float64


@lru_cache(maxsize=64)
def waves(representation: Representation, device: torch.device) -> Waves:
    """Of the bands that :func:`arrange` makes, on a device, so that few operations make all of them."""
    index, _, bands = arrange(representation)
    count = sum(1 + (band.quadrature is not None) for band in bands)
    length = sum(band.quadrature.stop - band.quadrature.start for band in bands if band.quadrature is not None)
    frequency, phase = torch.zeros(2, count, dtype=torch.float64)
    members, quadrature_members = (torch.zeros(size, count, dtype=torch.float64) for size in (len(index), length))
    rotated, signs, unrotated = list[int](), list[float](), list[int]()
    k = 0
    for band in bands:
        frequency[k] = band.frequency
        members[band.columns, k] = 1.0
        k += 1
        if band.quadrature is None:
            continue
        start, stop = band.columns.start, band.columns.stop
        half = (stop - start) // 2
        rotated += [*range(start + half, stop), *range(start, start + half)]
        signs += [1.0] * half + [-1.0] * half
        unrotated += range(start, stop)
        frequency[k], phase[k] = band.frequency, math.pi / 2
        quadrature_members[band.quadrature, k] = 1.0
        k += 1
    tensors = (
        frequency, phase, members, torch.tensor(rotated, dtype=torch.long), torch.tensor(signs, dtype=torch.float64),
        torch.tensor(unrotated, dtype=torch.long), quadrature_members,
    )  # fmt: skip
    return Waves(*(tensor.to(device) for tensor in tensors))


# Coefficients ---------------------------------------------------------------------------------------------------------


class Harmonics:
    """Descriptions arranged by frequency, so that the coefficients C_f and S_f of s(t) are plain products.

    Args:
        descriptions0: (N, D), the ones that are rotated; ``descriptions1`` (M, D). They are normalised here.
        steerer: a fixed one; its blocks are used.
        order: if given, frequencies are first taken modulo the order, which merges those that agree on its rotations.
    """

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, order: int | None) -> None:
        if steerer.representation is None:
            raise ValueError("only a fixed steerer, made from a representation or permutation, has harmonics")
        self.descriptions0, self.descriptions1, self.steerer, self.order = descriptions0, descriptions1, steerer, order
        self.shape, self.device = (len(descriptions0), len(descriptions1)), descriptions0.device
        self.dtype = float_type(descriptions0)

    @cached_property
    def _representation(self) -> Representation:
        representation = self.steerer.representation
        assert representation is not None
        return representation if self.order is None else representation.restrict(self.order)

    @property
    def _arranged(self) -> tuple[Tensor, Tensor, list[Band]]:
        return arrange(self._representation)

    @property
    def bands(self) -> list[Band]:
        """By frequency, the even ones first."""
        return self._arranged[2]

    @cached_property
    def num_even(self) -> int:
        """Components of even frequencies."""
        return sum(1 + (band.quadrature is not None) for band in self.bands if band.frequency % 2 == 0)

    @cached_property
    def num_components(self) -> int:
        """Of all frequencies: two for each, one where nothing rotates."""
        return sum(1 + (band.quadrature is not None) for band in self.bands)

    @cached_property
    def rows(self) -> Tensor:
        """(N, D) unit descriptions by frequency; made when first needed, as are the following."""
        return self._by_frequency(self.descriptions0)

    @cached_property
    def cols(self) -> Tensor:
        """(M, D)."""
        return self._by_frequency(self.descriptions1)

    def _by_frequency(self, d: Tensor) -> Tensor:
        index, signs, _ = self._arranged
        arranged = self.steerer.to_blocks(as_float(d))[:, index.to(d.device)]
        return _unit(arranged.mul_(signs.to(d.device)))

    @cached_property
    def quadrature(self) -> Tensor:
        """(M, D of the two-component bands)."""
        of = waves(self._representation, self.device)
        return self.cols[:, of.rotated].mul_(of.signs.to(self.cols))

    def basis(self, angles: Tensor, derivative: int = 0) -> Tensor:
        """(L, components) values of every component's wave, or a derivative of it, at L rotations; even frequencies
        first.

        Multiplied with the components they give s(t) or its derivative.
        """
        of = waves(self._representation, angles.device)
        phase = angles.double()[..., None] * of.frequency + (derivative * math.pi / 2 - of.phase)
        return phase.cos_().mul_(of.frequency**derivative)

    def components(self, rows: Tensor, cols: slice, out: Tensor) -> Tensor:
        """(components, r, c) products C_f and S_f of prepared (r, D) rows with a range of columns, put into ``out``."""
        k = 0
        for band in self.bands:
            part = rows[:, band.columns]
            torch.mm(part, self.cols[cols, band.columns].mT, out=out[k])
            k += 1
            if band.quadrature is not None:
                torch.mm(part, self.quadrature[cols, band.quadrature].mT, out=out[k])
                k += 1
        return out

    def pair_components(self, i: Tensor, j: Tensor) -> Tensor:
        """(K, components) float64 coefficients of K pairs."""
        of = waves(self._representation, self.device)
        parts = []
        for a, b in zip(i.split(PAIR_CHUNK), j.split(PAIR_CHUNK), strict=True):
            rows = self.rows[a].double()
            in_phase = self.cols[b].double().mul_(rows) @ of.members
            parts.append(in_phase.addmm_(rows[:, of.unrotated].mul_(self.quadrature[b]), of.quadrature_members))
        return torch.cat(parts)


# Similarities ---------------------------------------------------------------------------------------------------------


class Harmonic(Similarity):
    """What the steered similarities of a fixed steerer share."""

    def __init__(self, harmonics: Harmonics) -> None:
        self.harmonics = harmonics
        self._scratch: dict[str, Tensor] = {}
        self.shape, self.device = harmonics.shape, harmonics.device

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        prepared = self.harmonics.rows[rows] * scale

        def scores(cols: slice) -> Tensor:
            shape = (self.harmonics.num_components, len(prepared), len(self.harmonics.cols[cols]))
            return self.combine(self.harmonics.components(prepared, cols, self.scratch("components", shape)))

        return scores

    def scratch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor to overwrite, the same one for every tile: new arrays of this size cost fresh pages each time."""
        size = math.prod(shape)
        if name not in self._scratch or len(self._scratch[name]) < size:
            self._scratch[name] = self.harmonics.rows.new_empty(size)
        return self._scratch[name][:size].view(shape)

    def check(self) -> None:
        check_finite(self.harmonics.descriptions0, self.harmonics.descriptions1)

    @abstractmethod
    def combine(self, components: Tensor) -> Tensor:
        """(components, r, c), which may be overwritten, to (alternatives, r, c) scores."""


class Rotated(Harmonic):
    """Cosines after each rotation of C_order by a fixed steerer; their maximum, or all as alternatives.

    For even orders opposite rotations share their even and odd frequencies: s(t) = E + O and s(t + pi) = E - O.
    """

    def __init__(self, harmonics: Harmonics, order: int, *, maximum: bool) -> None:
        super().__init__(harmonics)
        self.order, self.maximum = order, maximum
        self.alternatives = 1 if maximum else order

    @property
    def layers(self) -> int:  # type: ignore[override]
        tried = len(self.tried)
        return self.harmonics.num_components + (2 * tried if self.maximum else self.order + tried)

    @cached_property
    def angles(self) -> Tensor:
        """The (L,) rotations of C_order."""
        return Group(self.order).angles()

    @property
    def tried(self) -> Tensor:
        """Of opposite rotations the first."""
        return self.angles[: self.order // 2] if self.order % 2 == 0 else self.angles

    @cached_property
    def weights(self) -> Tensor:
        """(L or L/2, components), the even ones first."""
        return self.harmonics.basis(self.tried).to(self.harmonics.device, self.harmonics.dtype)

    def combine(self, components: Tensor) -> Tensor:
        flat = components.flatten(1)  # (components, r c)
        tried, split, size = len(self.tried), self.harmonics.num_even, flat.shape[1]
        even = torch.mm(self.weights[:, :split], flat[:split], out=self.scratch("even", (tried, size)))  # (L, r c)
        odd = torch.mm(self.weights[:, split:], flat[split:], out=self.scratch("odd", (tried, size)))
        if self.order % 2:
            scores = even.add_(odd)
        elif self.maximum:
            scores = even.add_(odd.abs_())
        else:
            scores = self.scratch("scores", (2 * tried, size))
            torch.add(even, odd, out=scores[:tried])
            torch.sub(even, odd, out=scores[tried:])
        if self.maximum:
            scores = scores.amax(dim=0, keepdim=True)
        return scores.view(-1, *components.shape[1:])

    def alternative(self, index: int) -> Similarity:
        if self.maximum:
            return self
        return _SingleRotation(self.harmonics, float(self.angles[index]))

    def _pair_scores(self, i: Tensor, j: Tensor) -> Tensor:
        weights = self.harmonics.basis(self.angles).to(i.device)
        return self.harmonics.pair_components(i, j) @ weights.mT  # (K, L)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_scores(i, j).amax(dim=1)

    def rotations(self, i: Tensor, j: Tensor) -> Tensor | None:
        return self.angles.to(i.device)[self._pair_scores(i, j).argmax(dim=1)] if self.maximum else None


class _SingleRotation(Harmonic):
    """The cosine after one rotation, from harmonics: the rows are rotated, then it is one product."""

    def __init__(self, harmonics: Harmonics, angle: float) -> None:
        super().__init__(harmonics)
        self.weights = harmonics.basis(torch.tensor([angle], dtype=torch.float64))[0]  # (components,)

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        rotated = self._rotation(self.harmonics.rows[rows] * scale)
        return lambda cols: (rotated @ self.harmonics.cols[cols].mT)[None]

    def _rotation(self, rows: Tensor) -> Tensor:
        rotated, k = torch.empty_like(rows), 0
        for band in self.harmonics.bands:
            cos = float(self.weights[k])
            k += 1
            if band.quadrature is None:
                rotated[:, band.columns] = rows[:, band.columns] * cos
                continue
            sin = float(self.weights[k])
            k += 1
            x, y = rows[:, band.columns].chunk(2, dim=1)
            rotated[:, band.columns] = torch.cat([cos * x - sin * y, sin * x + cos * y], dim=1)
        return rotated

    def combine(self, components: Tensor) -> Tensor:
        return torch.einsum("k,krc->rc", self.weights.to(components), components)[None]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self.harmonics.pair_components(i, j) @ self.weights.to(i.device)


def _unit(descriptions: Tensor) -> Tensor:
    """:func:`normalised`, in place: the arranged copies are the largest thing that matching holds."""
    return descriptions.div_(descriptions.norm(dim=-1, keepdim=True).clamp_(min=1e-12))
