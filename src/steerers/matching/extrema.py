"""Where the similarity of two descriptions is largest over every rotation.

:class:`Continuous` takes the exact maximum of all pairs, for a fixed steerer;
:class:`~steerers.matching.exponentials.ContinuousSteered` is for a learned one. Where a strategy has tried single
rotations only, :func:`refine_rotations` finds the rotation of each match to a fraction of a degree: made for the
matched pairs alone, the trigonometric polynomial of :mod:`steerers.matching.harmonics`, or the exponentials, cost
little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from steerers.matching.exponentials import Exponentials
from steerers.matching.harmonics import Harmonic
from steerers.matching.similarity import PAIR_CHUNK, Angles, RowBlock, Rows, wrapped
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

POINTS = 8
"""Rotations at which a polynomial is looked at, in each period of its highest frequency."""
NEWTON_STEPS = 4


class Continuous(Harmonic):
    """The exact maximum over every rotation of SO(2).

    With one frequency besides zero it is the modulus of a complex product, the closed form of the Procrustes problem.
    With more, the polynomial is maximised on a grid of eight points per period of its highest frequency. Tiles climb by
    Newton's step from the two most promising points, which is exact to rounding unless three maxima are nearly equal
    (as with a few far-apart high frequencies); matched pairs climb from every point and are exact.
    """

    def __init__(
        self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, order: int | None = None
    ) -> None:
        super().__init__(descriptions0, descriptions1, steerer, order)
        bands = self.spectrum.bands
        self.frequencies = [band.frequency for band in bands if band.quadrature is not None]
        top = max(self.frequencies, default=0)
        self.single = len(self.frequencies) <= 1
        self.one_band = self.single and len(bands) == 1 and top > 0
        self.grid = Group(POINTS * top).angles() if top else torch.zeros(1, dtype=torch.float64)
        self.layers = self.num_components + (2 if self.single else 4 * len(self.grid))

    @cached_property
    def weights(self) -> Tensor:
        """(L, components) waves at the rotations of the grid."""
        return self.basis(self.grid).to(self.device, self.dtype)

    def combine(self, components: Tensor) -> Tensor:
        flat = components.flatten(1)
        scores = self._modulus(flat) if self.single else self._maximum(flat)
        return scores.view(1, *components.shape[1:])

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        return self._modulus_block(rows, scale) if self.one_band else super().block(rows, scale)

    def _modulus_block(self, rows: Rows, scale: float) -> RowBlock:
        """The modulus of a complex product from three real ones instead of four (Gauss)."""
        x, y = (self.rows[rows] * scale).chunk(2, dim=1)
        total = x + y

        def scores(cols: slice) -> Tensor:
            u, v = self.cols[cols].chunk(2, dim=1)
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
        for band in self.spectrum.bands:
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
            angle = torch.clamp(angle + _newton_step(slope, curvature, reach), low, high)
        value, slope, curvature = self._evaluate(constant, waves, angle)
        step = torch.clamp(angle + _newton_step(slope, curvature, reach), low, high) - angle
        return value + step * (slope + step * curvature / 2), angle + step

    def _best_starts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """(P,) the two rotations of the grid near which s is likely to be largest.

        They are the local maxima whose parabola through three points of the grid has the highest vertex.
        """
        half, split = len(self.grid) // 2, self.spectrum.num_even
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
        flat = self.pair_components(i, j).mT  # (components, K)
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

    def rotations(self, i: Tensor, j: Tensor) -> Tensor:
        return self._pair_maximum(i, j)[1]


# Refinement -----------------------------------------------------------------------------------------------------------


def is_refinable(steerer: Steerer) -> bool:
    """Whether rotations between the tried ones can be told: by an SO(2) steerer that is not all invariant.

    A learned one must have a basis of eigenvectors.
    """
    if not steerer.group.continuous:
        return False
    if steerer.representation is not None:
        return any(steerer.representation.multiplicities())
    exponential = steerer.exponential()
    return exponential.sound and bool(exponential.frequency.any())


def refine_rotations(
    descriptions0: Tensor, descriptions1: Tensor, tried: Tensor, steerer: Steerer, angles: Angles
) -> Tensor:
    """The rotation of largest similarity of every match, as far from the tried one as that is from the nearest other.

    Half as far would do if the rotation nearest to the truth were always the one that is kept. But neighbours vie where
    the truth lies between them, and one rotation for all matches is not the nearest for each. Farther would not do:
    where a list of rotations leaves a gap, none is looked for in it. A single rotation is refined within half a turn.

    Args:
        descriptions0: (K, D) of the matches; ``descriptions1`` likewise.
        tried: (K,) radians.
        steerer: whose rotations were tried, of which :func:`is_refinable` holds.
        angles: all that were tried, in [0, 2 pi).

    Returns:
        (K,) float64 radians.
    """
    kind = Exponentials if steerer.representation is None else _Polynomials
    course, tried, reach = kind(descriptions0, descriptions1, steerer), tried.double(), _reach(tried.double(), angles)
    # The best of a few points; then uphill from there, no farther than its neighbours.
    count = math.ceil(max(_gaps(angles)) * POINTS * course.rate / (2 * math.pi))  # on either side
    spacing = reach / count
    points = tried[:, None] + spacing[:, None] * torch.arange(-count, count + 1, device=tried.device)  # (K, P)
    best = points.gather(1, course.values(points).argmax(dim=1, keepdim=True))[:, 0]
    low, high = (torch.clamp(best + side * spacing, tried - reach, tried + reach) for side in (-1, 1))
    return course.refine(best, low, high)


class _Polynomials:
    """The cosines of K pairs of descriptions as functions of the rotation of the first, by a fixed steerer."""

    def __init__(self, descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer) -> None:
        self.harmonic = Continuous(descriptions0, descriptions1, steerer)
        self.rate = max(self.harmonic.frequencies)
        every = torch.arange(len(descriptions0), device=descriptions0.device)
        self.components = self.harmonic.pair_components(every, every)  # (K, components)

    def values(self, angles: Tensor) -> Tensor:
        """(K, P) cosines at (K, P) rotations."""
        return torch.einsum("kpc,kc->kp", self.harmonic.basis(angles), self.components)

    def refine(self, angles: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The place of a maximum uphill of (K,) rotations."""
        for _ in range(NEWTON_STEPS):
            slope, curvature = ((self.harmonic.basis(angles, k) * self.components).sum(dim=1) for k in (1, 2))
            angles = torch.clamp(angles + _newton_step(slope, curvature, (high - low) / 2), low, high)
        return angles


@lru_cache(maxsize=64)
def _gaps(angles: Angles) -> tuple[float, ...]:
    """How far each rotation is from the nearest other, in radians; half a turn if there is none."""
    between = [[abs(math.remainder(a - b, 2 * math.pi)) for b in angles if b != a] for a in angles]
    return tuple(min(others, default=math.pi) for others in between)


def _reach(tried: Tensor, angles: Angles) -> Tensor:
    """(K,) gaps of the rotations that were tried."""
    known, gaps = (torch.tensor(values, dtype=torch.float64, device=tried.device) for values in (angles, _gaps(angles)))
    return gaps[wrapped(tried[:, None] - known).abs().argmin(dim=1)]


def _newton_step(slope: Tensor, curvature: Tensor, reach: float | Tensor) -> Tensor:
    """Newton's step where s is concave, else uphill."""
    return torch.where(curvature < 0, -slope / curvature, torch.sign(slope) * (reach / 2))
