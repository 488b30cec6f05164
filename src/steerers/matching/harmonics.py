"""Steered similarities of a fixed steerer, from products of single frequencies.

If a representation acts on the descriptions, the similarity of ``a`` rotated by ``t`` with ``b`` is a trigonometric
polynomial

    s(t) = sum_f  C_f cos(f t) + S_f sin(f t)

whose coefficients are products over the coordinates of one frequency each. Those cost less than two ordinary products,
however many rotations are then tried.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers._parallel import spread_on
from steerers.matching.similarity import PAIR_CHUNK, Angles, RowBlock, Rows, Similarity, as_float, float_type
from steerers.steering.representations import SAME_ANGLE, Representation
from steerers.steering.steerer import Steerer

MOST_ORDER = 360
"""Orders up to this are looked for in the rotations that are tried."""

# Rotations ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def common_order(angles: Angles) -> int | None:
    """The least order of a cyclic group that has all of these rotations, if there is one; ``None`` for 0 alone."""
    turns = [angle / (2 * math.pi) for angle in angles]
    for order in range(1, MOST_ORDER + 1):
        if all(abs(turn * order - round(turn * order)) < SAME_ANGLE for turn in turns):
            return order if order > 1 else None
    return None


@lru_cache(maxsize=64)
def in_opposites(angles: Angles) -> bool:
    """Whether the second half of the rotations is the first, each half a turn further: so are those of even orders."""
    half = len(angles) // 2
    opposite = zip(angles[:half], angles[half:], strict=False)
    return len(angles) == 2 * half and all(abs(b - a - math.pi) < SAME_ANGLE for a, b in opposite)


# Frequencies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """The coordinates of one frequency: a range of columns, and of the quadrature columns if it has two components."""

    frequency: int
    columns: slice
    quadrature: slice | None


@dataclass(frozen=True, eq=False)
class Spectrum:
    """How coordinates are sorted by frequency, and the C waves of s(t).

    Coordinates are sorted by folded frequency, even ones first, x before y. A block that rotates the other way
    (frequency -f, or n - f) becomes one of frequency f when the sign of its second coordinate is changed, on both sides
    of the product. There is one wave for each band, then one more for its quadrature if it has one.

    Attributes:
        index: into the coordinates; and their ``signs``.
        num_even: waves of even frequencies, which come first.
        frequency: the k-th wave is cos(frequency t - phase), or a sine.
        members: which coordinates of the products of rows and columns each wave adds up.
        rotated: of the two-component bands, the coordinates of columns that their quadrature is made of, and its
            ``rotated_signs``; ``unrotated`` the coordinates of rows that it is multiplied with.
        quadrature_members: which coordinates of those products each wave adds up.
    """

    bands: list[Band]
    num_even: int
    index: Tensor  # (D,) int64
    signs: Tensor  # (D,) float32
    frequency: Tensor  # (C,) float64
    phase: Tensor  # (C,) float64
    members: Tensor  # (D, C) float64
    rotated: Tensor  # (Q,) int64
    rotated_signs: Tensor  # (Q,) float64
    unrotated: Tensor  # (Q,) int64
    quadrature_members: Tensor  # (Q, C) float64


@lru_cache(maxsize=64)
def spectrum(representation: Representation, device: torch.device) -> Spectrum:
    """The spectrum of a representation, on a device, so that few operations make all waves."""
    position = 0
    blocks: dict[int, tuple[list[int], list[int], list[float]]] = {}
    for frequency, size in representation.blocks():
        folded = representation.group.fold(frequency)
        xs, ys, signs = blocks.setdefault(folded, ([], [], []))
        xs.append(position)
        if size == 2:
            ys.append(position + 1)
            signs.append(1.0 if folded == frequency else -1.0)
        position += size
    bands, waves = list[Band](), list[tuple[int, float]]()  # frequency and phase
    index, sign, wave = list[int](), list[float](), list[int]()
    rotated, rotated_sign, unrotated, quadrature_wave = list[int](), list[float](), list[int](), list[int]()
    for frequency in sorted(blocks, key=lambda f: (f % 2, f)):
        xs, ys, signs = blocks[frequency]
        start, half, size = len(index), len(xs), len(xs) + len(ys)
        index += xs + ys
        sign += [1.0] * half + signs
        wave += [len(waves)] * size
        waves.append((frequency, 0.0))
        quadrature = None
        if ys:
            quadrature = slice(len(rotated), len(rotated) + size)
            rotated += [*range(start + half, start + size), *range(start, start + half)]
            rotated_sign += [1.0] * half + [-1.0] * half
            unrotated += range(start, start + size)
            quadrature_wave += [len(waves)] * size
            waves.append((frequency, math.pi / 2))
        bands.append(Band(frequency, slice(start, start + size), quadrature))

    def one_hot(of: list[int]) -> Tensor:
        return F.one_hot(torch.tensor(of, dtype=torch.long), len(waves)).double()

    frequencies, phases = torch.tensor(waves, dtype=torch.float64).unbind(dim=1)
    tensors = (
        torch.tensor(index), torch.tensor(sign), frequencies, phases, one_hot(wave),
        torch.tensor(rotated, dtype=torch.long), torch.tensor(rotated_sign, dtype=torch.float64),
        torch.tensor(unrotated, dtype=torch.long), one_hot(quadrature_wave),
    )  # fmt: skip
    num_even = sum(frequency % 2 == 0 for frequency, _ in waves)
    return Spectrum(bands, num_even, *(tensor.to(device) for tensor in tensors))


# Similarities ---------------------------------------------------------------------------------------------------------


class Harmonic(Similarity):
    """What the similarities of a fixed steerer share: descriptions arranged by frequency, so that the coefficients C_f
    and S_f of s(t) are plain products.

    Args:
        descriptions0: (N, D), the ones that are rotated; ``descriptions1`` (M, D). They are normalised here.
        steerer: a fixed one; its blocks are used.
        order: if given, frequencies are first taken modulo the order, which merges those that agree on its rotations.
    """

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, order: int | None) -> None:
        if steerer.representation is None:
            raise ValueError("only a fixed steerer, made from a representation or permutation, has harmonics")
        super().__init__(descriptions0, descriptions1)
        self.steerer, self.order, self.dtype = steerer, order, float_type(descriptions0)
        self._scratch: dict[tuple[int, str], Tensor] = {}

    @cached_property
    def _representation(self) -> Representation:
        representation = self.steerer.representation
        assert representation is not None
        return representation if self.order is None else representation.restrict(self.order)

    @cached_property
    def spectrum(self) -> Spectrum:
        """On the device of the descriptions."""
        return spectrum(self._representation, self.device)

    @property
    def num_components(self) -> int:
        """Of all frequencies: two for each, one where nothing rotates."""
        return len(self.spectrum.frequency)

    @cached_property
    def rows(self) -> Tensor:
        """(N, D) unit descriptions by frequency; made when first needed, as are the following."""
        return self._by_frequency(self.descriptions0)

    @cached_property
    def cols(self) -> Tensor:
        """(M, D)."""
        return self._by_frequency(self.descriptions1)

    def _by_frequency(self, d: Tensor) -> Tensor:
        arranged = self.steerer.to_blocks(as_float(d))[:, self.spectrum.index].mul_(self.spectrum.signs)
        # In place: the arranged copies are the largest thing that matching holds.
        return arranged.div_(arranged.norm(dim=-1, keepdim=True).clamp_(min=1e-12))

    @cached_property
    def quadrature(self) -> Tensor:
        """(M, D of the two-component bands)."""
        return self.cols[:, self.spectrum.rotated].mul_(self.spectrum.rotated_signs.to(self.cols))

    def basis(self, angles: Tensor, derivative: int = 0) -> Tensor:
        """(L, components) values of every component's wave, or a derivative of it, at L rotations; even frequencies
        first.

        Multiplied with the components they give s(t) or its derivative.
        """
        of = spectrum(self._representation, angles.device)
        phase = angles.double()[..., None] * of.frequency + (derivative * math.pi / 2 - of.phase)
        return phase.cos_().mul_(of.frequency**derivative)

    def components(self, rows: Tensor, cols: slice, out: Tensor) -> Tensor:
        """(components, r, c) products C_f and S_f of prepared (r, D) rows with a range of columns, put into ``out``."""
        k = 0
        for band in self.spectrum.bands:
            part = rows[:, band.columns]
            torch.mm(part, self.cols[cols, band.columns].mT, out=out[k])
            k += 1
            if band.quadrature is not None:
                torch.mm(part, self.quadrature[cols, band.quadrature].mT, out=out[k])
                k += 1
        return out

    def pair_components(self, i: Tensor, j: Tensor) -> Tensor:
        """(K, components) float64 coefficients of K pairs."""
        of, quadrature = self.spectrum, self.quadrature  # made before threads share it

        def of_some(pairs: tuple[Tensor, Tensor]) -> Tensor:
            rows = self.rows[pairs[0]].double()
            in_phase = self.cols[pairs[1]].double().mul_(rows) @ of.members
            return in_phase.addmm_(rows[:, of.unrotated].mul_(quadrature[pairs[1]]), of.quadrature_members)

        pieces = zip(i.split(PAIR_CHUNK), j.split(PAIR_CHUNK), strict=True)
        return torch.cat(spread_on(i.device, of_some, pieces))

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        prepared = self.rows[rows] * scale

        def scores(cols: slice) -> Tensor:
            shape = (self.num_components, len(prepared), len(self.cols[cols]))
            return self.combine(self.components(prepared, cols, self.scratch("components", shape)))

        return scores

    def scratch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor to overwrite, the same one for every tile of a thread: new arrays of this size cost fresh pages each
        time."""
        size, key = math.prod(shape), (threading.get_ident(), name)
        if key not in self._scratch or len(self._scratch[key]) < size:
            self._scratch[key] = self.rows.new_empty(size)
        return self._scratch[key][:size].view(shape)

    @abstractmethod
    def combine(self, components: Tensor) -> Tensor:
        """(components, r, c), which may be overwritten, to (alternatives, r, c) scores."""


class Rotated(Harmonic):
    """Cosines after each of some rotations by a fixed steerer; their maximum, or all as alternatives.

    Opposite rotations, as those of even orders are, share their even and odd frequencies: s(t) = E + O and
    s(t + pi) = E - O.
    """

    def __init__(
        self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, angles: Angles, *, maximum: bool
    ) -> None:
        super().__init__(descriptions0, descriptions1, steerer, common_order(angles))
        self.angles, self.paired = angles, in_opposites(angles)
        self.maximum, self.alternatives = maximum, 1 if maximum else len(angles)

    @property
    def layers(self) -> int:  # type: ignore[override]
        tried = len(self.tried)
        return self.num_components + (2 * tried if self.maximum else len(self.angles) + tried)

    @property
    def tried(self) -> Angles:
        """Of opposite rotations the first."""
        return self.angles[: len(self.angles) // 2] if self.paired else self.angles

    @cached_property
    def weights(self) -> Tensor:
        """(L or L/2, components), the even ones first."""
        return self.basis(torch.tensor(self.tried, dtype=torch.float64)).to(self.device, self.dtype)

    def combine(self, components: Tensor) -> Tensor:
        flat = components.flatten(1)  # (components, r c)
        tried, split, size = len(self.tried), self.spectrum.num_even, flat.shape[1]
        even = torch.mm(self.weights[:, :split], flat[:split], out=self.scratch("even", (tried, size)))  # (L, r c)
        odd = torch.mm(self.weights[:, split:], flat[split:], out=self.scratch("odd", (tried, size)))
        if not self.paired:
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
        return self if self.maximum else _SingleRotation(self, self.angles[index])

    def _pair_scores(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """The (K,) largest cosines over the rotations, and those rotations."""
        angles = torch.tensor(self.angles, dtype=torch.float64, device=i.device)
        scores, index = (self.pair_components(i, j) @ self.basis(angles).mT).max(dim=1)  # of (K, L)
        return scores, angles[index]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_scores(i, j)[0]

    def rotations(self, i: Tensor, j: Tensor) -> Tensor | None:
        return self._pair_scores(i, j)[1] if self.maximum else None


class _SingleRotation(Similarity):
    """The cosine after one rotation, from harmonics: the rows are rotated, then it is one product."""

    def __init__(self, of: Harmonic, angle: float) -> None:
        super().__init__(of.descriptions0, of.descriptions1)
        self.of = of
        self.weights = of.basis(torch.tensor([angle], dtype=torch.float64))[0]  # (components,)

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        rotated = self._rotation(self.of.rows[rows] * scale)
        return lambda cols: (rotated @ self.of.cols[cols].mT)[None]

    def _rotation(self, rows: Tensor) -> Tensor:
        rotated, weights = torch.empty_like(rows), iter(self.weights.tolist())
        for band in self.of.spectrum.bands:
            cos = next(weights)
            if band.quadrature is None:
                rotated[:, band.columns] = rows[:, band.columns] * cos
                continue
            sin = next(weights)
            x, y = rows[:, band.columns].chunk(2, dim=1)
            rotated[:, band.columns] = torch.cat([cos * x - sin * y, sin * x + cos * y], dim=1)
        return rotated

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self.of.pair_components(i, j) @ self.weights.to(i.device)
