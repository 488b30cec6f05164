"""Steered similarities of a fixed steerer, from products of single frequencies.

If a representation acts on the descriptions, the similarity of ``a`` turned by ``t`` with ``b`` is a trigonometric
polynomial

    s(t) = sum_f  C_f cos(f t) + S_f sin(f t)

whose coefficients are products over the coordinates of one frequency each. Those cost less than two ordinary products,
however many turns are then tried.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steerers.matching.similarity import PAIR_CHUNK, RowBlock, Rows, Similarity, as_float
from steerers.representations import Group, Representation
from steerers.steerer import Steerer


@dataclass(frozen=True)
class _Band:
    """The coordinates of one frequency: a range of columns, and of the quadrature columns if it has two components."""

    frequency: int
    columns: slice
    quadrature: slice | None


class Harmonics:
    """Descriptions arranged by frequency, so that the coefficients C_f and S_f of s(t) are plain products.

    Args:
        descriptions0: (N, D), the ones that are turned; ``descriptions1`` (M, D). They are normalised here.
        steerer: a fixed one; its blocks are used.
        order: if given, frequencies are first taken modulo the order, which merges those that agree on its turns.
    """

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, order: int | None) -> None:
        if steerer.representation is None:
            raise ValueError("only a fixed steerer, made from a representation or permutation, has harmonics")
        representation = steerer.representation if order is None else steerer.representation.restrict(order)
        index, signs, self.bands = _arrange(representation)
        self.rows, self.cols = (
            _unit(steerer.to_blocks(as_float(d))[:, index.to(d.device)].mul_(signs.to(d.device)))
            for d in (descriptions0, descriptions1)
        )  # (N, D), (M, D)
        self.quadrature = self._quadrature()  # (M, D of the two-component bands)
        self.num_even = sum(1 + (band.quadrature is not None) for band in self.bands if band.frequency % 2 == 0)
        self.num_components = sum(1 + (band.quadrature is not None) for band in self.bands)

    def _quadrature(self) -> Tensor:
        parts = []
        for band in self.bands:
            if band.quadrature is not None:
                x, y = self.cols[:, band.columns].chunk(2, dim=1)
                parts.append(torch.cat([y, -x], dim=1))
        return torch.cat(parts, dim=1) if parts else self.cols[:, :0]

    def basis(self, angles: Tensor, derivative: int = 0) -> Tensor:
        """(L, components) values of every component's wave, or a derivative of it, at L turns; even frequencies first.

        Multiplied with the components they give s(t) or its derivative.
        """
        waves = []
        for band in self.bands:
            f = float(band.frequency)
            phase = angles.double() * f + derivative * math.pi / 2
            waves.append(f**derivative * torch.cos(phase))
            if band.quadrature is not None:
                waves.append(f**derivative * torch.sin(phase))
        return torch.stack(waves, dim=-1)

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
        parts = []
        for a, b in zip(i.split(PAIR_CHUNK), j.split(PAIR_CHUNK), strict=True):
            rows, cols, quadrature = self.rows[a].double(), self.cols[b].double(), self.quadrature[b].double()
            columns = []
            for band in self.bands:
                columns.append((rows[:, band.columns] * cols[:, band.columns]).sum(dim=1))
                if band.quadrature is not None:
                    columns.append((rows[:, band.columns] * quadrature[:, band.quadrature]).sum(dim=1))
            parts.append(torch.stack(columns, dim=1))
        return torch.cat(parts)


def _arrange(representation: Representation) -> tuple[Tensor, Tensor, list[_Band]]:
    """Sort coordinates by folded frequency, even ones first, x before y.

    A block that turns the other way (frequency -f, or n - f) becomes one of frequency f when the sign of its second
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
    bands: list[_Band] = []
    quadratures = 0
    for frequency in sorted(members, key=lambda f: (f % 2, f)):
        xs, ys, signs = members[frequency]
        columns = slice(len(index), len(index) + len(xs) + len(ys))
        quadrature = slice(quadratures, quadratures + len(xs) + len(ys)) if ys else None
        quadratures += len(xs) + len(ys) if ys else 0
        index += xs + ys
        sign += [1.0] * len(xs) + signs
        bands.append(_Band(frequency, columns, quadrature))
    return torch.tensor(index), torch.tensor(sign), bands


class _Harmonic(Similarity):
    """What the steered similarities of a fixed steerer share."""

    def __init__(self, harmonics: Harmonics) -> None:
        self.harmonics = harmonics
        self._scratch: dict[str, Tensor] = {}
        self.shape, self.device = (len(harmonics.rows), len(harmonics.cols)), harmonics.rows.device

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

    @abstractmethod
    def combine(self, components: Tensor) -> Tensor:
        """(components, r, c), which may be overwritten, to (alternatives, r, c) scores."""


class Turned(_Harmonic):
    """Cosines after each turn of C_order by a fixed steerer; their maximum, or all as alternatives.

    For even orders opposite turns share their even and odd frequencies: s(t) = E + O and s(t + pi) = E - O.
    """

    def __init__(self, harmonics: Harmonics, order: int, *, maximum: bool) -> None:
        super().__init__(harmonics)
        self.order, self.maximum = order, maximum
        self.angles = Group(order).angles()
        self.tried = self.angles[: order // 2] if order % 2 == 0 else self.angles
        weights = harmonics.basis(self.tried).to(harmonics.rows)  # (L or L/2, components)
        self.even, self.odd = weights[:, : harmonics.num_even], weights[:, harmonics.num_even :]
        self.alternatives = 1 if maximum else order
        self.layers = harmonics.num_components + (2 * len(self.tried) if maximum else order + len(self.tried))

    def combine(self, components: Tensor) -> Tensor:
        flat = components.flatten(1)  # (components, r c)
        tried, split, size = len(self.tried), self.harmonics.num_even, flat.shape[1]
        even = torch.mm(self.even, flat[:split], out=self.scratch("even", (tried, size)))  # (L, r c)
        odd = torch.mm(self.odd, flat[split:], out=self.scratch("odd", (tried, size)))
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
        return _SingleTurn(self.harmonics, float(self.angles[index]))

    def _pair_scores(self, i: Tensor, j: Tensor) -> Tensor:
        weights = self.harmonics.basis(self.angles).to(i.device)
        return self.harmonics.pair_components(i, j) @ weights.mT  # (K, L)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_scores(i, j).amax(dim=1)

    def turns(self, i: Tensor, j: Tensor) -> Tensor | None:
        return self.angles.to(i.device)[self._pair_scores(i, j).argmax(dim=1)] if self.maximum else None


class _SingleTurn(_Harmonic):
    """The cosine after one turn, from harmonics: the rows are turned, then it is one product."""

    def __init__(self, harmonics: Harmonics, angle: float) -> None:
        super().__init__(harmonics)
        self.weights = harmonics.basis(torch.tensor([angle], dtype=torch.float64))[0]  # (components,)

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        turned = self._turn(self.harmonics.rows[rows] * scale)
        return lambda cols: (turned @ self.harmonics.cols[cols].mT)[None]

    def _turn(self, rows: Tensor) -> Tensor:
        turned, k = torch.empty_like(rows), 0
        for band in self.harmonics.bands:
            cos = float(self.weights[k])
            k += 1
            if band.quadrature is None:
                turned[:, band.columns] = rows[:, band.columns] * cos
                continue
            sin = float(self.weights[k])
            k += 1
            x, y = rows[:, band.columns].chunk(2, dim=1)
            turned[:, band.columns] = torch.cat([cos * x - sin * y, sin * x + cos * y], dim=1)
        return turned

    def combine(self, components: Tensor) -> Tensor:
        return torch.einsum("k,krc->rc", self.weights.to(components), components)[None]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self.harmonics.pair_components(i, j) @ self.weights.to(i.device)


class Continuous(_Harmonic):
    """The exact maximum over every turn of SO(2).

    With one frequency besides zero it is the modulus of a complex product, the closed form of the Procrustes problem.
    With more, the polynomial is maximised on a grid of eight points per period of its highest frequency. Tiles climb by
    Newton's step from the two most promising points, which is exact to rounding unless three maxima are nearly equal
    (as with a few far-apart high frequencies); matched pairs climb from every point and are exact.
    """

    def __init__(self, harmonics: Harmonics) -> None:
        super().__init__(harmonics)
        self.frequencies = [band.frequency for band in harmonics.bands if band.quadrature is not None]
        top = max(self.frequencies, default=0)
        self.single = len(self.frequencies) <= 1
        self.one_band = self.single and len(harmonics.bands) == 1 and top > 0
        self.grid = Group(8 * top).angles() if top else torch.zeros(1, dtype=torch.float64)
        self.weights = harmonics.basis(self.grid).to(harmonics.rows)
        self.layers = harmonics.num_components + (2 if self.single else 4 * len(self.grid))

    def combine(self, components: Tensor) -> Tensor:
        flat = components.flatten(1)
        scores = self._modulus(flat) if self.single else self._maximum(flat)
        return scores.view(1, *components.shape[1:])

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        return self._modulus_block(rows, scale) if self.one_band else super().block(rows, scale)

    def _modulus_block(self, rows: Rows, scale: float) -> RowBlock:
        """The modulus of a complex product from three real ones instead of four (Gauss)."""
        x, y = (self.harmonics.rows[rows] * scale).chunk(2, dim=1)
        total = x + y

        def scores(cols: slice) -> Tensor:
            u, v = self.harmonics.cols[cols].chunk(2, dim=1)
            shape = (len(x), len(u))
            real = torch.mm(x, u.mT, out=self.scratch("real", shape))
            second = torch.mm(y, v.mT, out=self.scratch("second", shape))
            imaginary = torch.mm(total, (u - v).mT, out=self.scratch("imaginary", shape))
            imaginary.sub_(real).add_(second)  # y u - x v
            real.add_(second)
            return real.square_().addcmul_(imaginary, imaginary).sqrt_()[None]

        return scores

    def _modulus(self, flat: Tensor) -> Tensor:
        constant, waves = self._split(flat)
        if not waves:
            return constant
        ((c, s),) = waves
        modulus = c.square_().addcmul_(s, s).sqrt_()  # in place; hypot is slower and guards ranges never met here
        return modulus if constant.ndim == 0 else modulus.add_(constant)

    def _split(self, flat: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The constant component (zero if there is none) and (C_f, S_f) in the order of :attr:`frequencies`."""
        constant, waves, k = torch.zeros((), dtype=flat.dtype, device=flat.device), [], 0
        for band in self.harmonics.bands:
            if band.quadrature is None:
                constant, k = flat[k], k + 1
            else:
                waves.append((flat[k], flat[k + 1]))
                k += 2
        return constant, waves

    def _maximum(self, flat: Tensor) -> Tensor:
        """(P,) largest value of the polynomials with (components, P) coefficients, from the two best starts."""
        first, second = (self._climb(flat, start, steps=1)[0] for start in self._best_starts(flat))
        return torch.maximum(first, second)

    def _climb(self, flat: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Value and place of the maximum within half a step of the grid around ``start``.

        ``steps`` times Newton's step, then the vertex of the parabola there.
        """
        constant, waves = self._split(flat)
        reach = math.pi / len(self.grid)
        low, high = start - reach, start + reach
        angle = start
        for _ in range(steps):
            _, slope, curvature = self._evaluate(constant, waves, angle)
            angle = torch.clamp(angle + self._step(slope, curvature, reach), low, high)
        value, slope, curvature = self._evaluate(constant, waves, angle)
        step = torch.clamp(angle + self._step(slope, curvature, reach), low, high) - angle
        return value + step * (slope + step * curvature / 2), angle + step

    def _best_starts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """(P,) the two turns of the grid near which s is likely to be largest.

        They are the local maxima whose parabola through three points of the grid has the highest vertex.
        """
        half, split = len(self.grid) // 2, self.harmonics.num_even
        even, odd = self.weights[:half, :split] @ flat[:split], self.weights[:half, split:] @ flat[split:]
        values = torch.cat([even + odd, even.sub_(odd)])  # (L, P)
        after, before = values.roll(-1, dims=0), values.roll(1, dims=0)
        bend = (2 * values).sub_(after).sub_(before)
        peak = (values >= after) & (values >= before) & (bend > 0)
        vertex = values.add_(after.sub_(before).square_().div_(bend.mul_(8))).masked_fill_(~peak, -math.inf)
        first = vertex.max(dim=0).indices
        second = vertex.scatter_(0, first[None], -math.inf).max(dim=0).indices
        grid = self.grid.to(flat)
        return grid[first], grid[second]

    @staticmethod
    def _step(slope: Tensor, curvature: Tensor, reach: float) -> Tensor:
        """Newton's step where s is concave, else uphill."""
        return torch.where(curvature < 0, -slope / curvature, torch.sign(slope) * (reach / 2))

    def _evaluate(
        self, constant: Tensor, waves: Sequence[tuple[Tensor, Tensor]], angle: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Value, slope and curvature of s at (P,) angles; cosines of multiples by recurrence, which is the cheaper."""
        coefficients = dict(zip(self.frequencies, waves, strict=True))
        cos1, sin1 = torch.cos(angle), torch.sin(angle)
        cos, sin = cos1, sin1
        value, slope, curvature = constant + torch.zeros_like(angle), torch.zeros_like(angle), torch.zeros_like(angle)
        for f in range(1, max(self.frequencies) + 1):
            if f > 1:
                cos, sin = (cos * cos1).addcmul_(sin, sin1, value=-1), (sin * cos1).addcmul_(cos, sin1)
            if f in coefficients:
                c, s = coefficients[f]
                wave = (c * cos).addcmul_(s, sin)
                value += wave
                slope.addcmul_(s, cos, value=f).addcmul_(c, sin, value=-f)
                curvature.sub_(wave, alpha=f * f)
        return value, slope, curvature

    def _pair_maximum(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        flat = self.harmonics.pair_components(i, j).mT  # (components, K)
        if self.single:
            constant, waves = self._split(flat)
            if not waves:
                return constant.expand(len(i)), torch.zeros(len(i), dtype=torch.float64, device=flat.device)
            ((c, s),) = waves
            return constant + torch.hypot(c, s), torch.atan2(s, c) / self.frequencies[0]
        grid = self.grid.to(flat.device)
        parts = [self._climb_everywhere(part, grid) for part in flat.split(PAIR_CHUNK, dim=1)]
        return torch.cat([value for value, _ in parts]), torch.cat([angle for _, angle in parts])

    def _climb_everywhere(self, flat: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
        """The exact maximum: climb from every point of the grid, keep the highest."""
        shape = (len(grid), flat.shape[1])
        start = grid[:, None].expand(shape).flatten()  # (L K,)
        everywhere = flat[:, None].expand(-1, *shape).flatten(1)  # (components, L K)
        value, angle = (result.view(shape) for result in self._climb(everywhere, start, steps=5))
        best, index = value.max(dim=0)
        return best, angle.gather(0, index[None])[0]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_maximum(i, j)[0]

    def turns(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_maximum(i, j)[1]


def _unit(descriptions: Tensor) -> Tensor:
    """:func:`normalised`, in place: the arranged copies are the largest thing that matching holds."""
    return descriptions.div_(descriptions.norm(dim=-1, keepdim=True).clamp_(min=1e-12))
