"""The textbook form of every matching strategy, to hold the package against.

Dense N x M matrices in float64, one product a rotation, Procrustes by SVD. It shares no code with the package: a
steerer enters through its generator alone, whose powers or exponentials are taken here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from helpers import randn
from steerers.matching.assignment import Assignment
from steerers.matching.similarity import Similarity
from steerers.steering.steerer import Steerer


@dataclass(frozen=True, eq=False)
class Expected:
    """Matches in the order of the first index; angles in radians."""

    indices: Tensor  # (K, 2)
    scores: Tensor  # (K,) float64
    angle: float | None = None
    angles: Tensor | None = None  # (K,)

    def __len__(self) -> int:
        return len(self.scores)


# Assignment -----------------------------------------------------------------------------------------------------------


def unit(descriptions: Tensor) -> Tensor:
    """Float64 descriptions of unit length; zero stays zero."""
    d = descriptions.detach().double()
    return d / d.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def cosines(descriptions0: Tensor, descriptions1: Tensor) -> Tensor:
    """(N, M)."""
    return unit(descriptions0) @ unit(descriptions1).mT


def probabilities(similarity: Tensor, inverse_temperature: float = 20.0) -> Tensor:
    """Equation (1) of the paper: the product of the softmax along rows and along columns."""
    s = inverse_temperature * similarity
    return torch.softmax(s, dim=0) * torch.softmax(s, dim=1)


def assign(similarity: Tensor, *, inverse_temperature: float = 20.0, threshold: float = 0.01) -> Expected:
    """Mutual nearest neighbours of the match probability above the threshold, of equal ones the first."""
    if 0 in similarity.shape:
        return Expected(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.float64))
    p = probabilities(similarity, inverse_temperature)
    row_best = (p == p.amax(dim=1, keepdim=True)).int().argmax(dim=1)  # argmax of integers: the first
    col_best = (p == p.amax(dim=0, keepdim=True)).int().argmax(dim=0)
    i = torch.arange(len(p))
    i = i[(col_best[row_best] == i) & (p[i, row_best] > threshold)]
    return Expected(torch.stack([i, row_best[i]], dim=1), p[i, row_best[i]])


# Steering -------------------------------------------------------------------------------------------------------------


def rotations_of(order: int) -> tuple[float, ...]:
    """The rotations of C_order in radians, from 0."""
    return tuple(2 * math.pi * k / order for k in range(order))


def elements(steerer: Steerer, rotations: int | Sequence[float]) -> Tensor:
    """(L, D, D) matrices of the rotations of C_order, or of angles of [0, 2 pi), from the generator."""
    angles = rotations_of(rotations) if isinstance(rotations, int) else rotations
    generator = steerer.generator().detach().double()
    if steerer.group.order is not None:
        steps = [round(angle * steerer.group.order / (2 * math.pi)) for angle in angles]
        return torch.stack([torch.linalg.matrix_power(generator, step) for step in steps])
    return torch.linalg.matrix_exp(torch.tensor(angles, dtype=torch.float64)[:, None, None] * generator)


def steered_cosines(
    descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, rotations: int | Sequence[float]
) -> Tensor:
    """(L, N, M) cosines after each rotation of the first descriptions: one dense product a rotation."""
    a = unit(descriptions0)
    return torch.stack([cosines(a @ element.mT, descriptions1) for element in elements(steerer, rotations)])


def fine_maximum(
    descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, count: int = 4000
) -> tuple[Tensor, Tensor]:
    """Largest cosine over very many rotations of [0, 2 pi] by any SO(2) steerer, and that rotation: (N, M) each.

    The first descriptions go round in small steps and are normalised after each, so that nothing overflows.
    """
    step = torch.linalg.matrix_exp(steerer.generator().detach().double() * (2 * math.pi / count))
    rotated, b = unit(descriptions0), unit(descriptions1)
    largest, rotation = rotated @ b.mT, torch.zeros(len(rotated), len(b), dtype=torch.float64)
    for k in range(1, count + 1):
        rotated = unit(rotated @ step.mT)
        similarity = rotated @ b.mT
        rotation[similarity > largest] = 2 * math.pi * k / count
        largest = torch.maximum(largest, similarity)
    return largest, rotation


def continuous_maximum(descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer) -> tuple[Tensor, Tensor]:
    """Largest cosine over every rotation of a fixed SO(2) steerer, and that rotation: (N, M) each.

    The cosine is sampled on a dense grid of rotations; every local maximum of the samples is then closed in on by
    Newton's method, with the derivatives of the trigonometric polynomial that the samples determine.
    """
    top = max(1, round(float(torch.linalg.eigvals(steerer.generator().double()).abs().max())))
    grid = steered_cosines(descriptions0, descriptions1, steerer, 32 * top).flatten(1)  # (L, N M)
    step = 2 * math.pi / len(grid)
    spectrum = torch.fft.rfft(grid, dim=0, norm="forward")[: top + 1]
    spectrum[1:] *= 2
    local = (grid >= grid.roll(1, dims=0)) & (grid >= grid.roll(-1, dims=0))
    peaks = torch.where(local, grid, -math.inf).topk(top, dim=0).indices  # (F, N M): there are no more than F
    start = rotation = peaks.double() * step
    for _ in range(6):
        _, slope, curvature = _polynomial(spectrum, rotation)
        newton = -slope / curvature.clamp(max=-1e-12)
        rotation = torch.minimum(torch.maximum(rotation + newton, start - step), start + step)
    value, index = _polynomial(spectrum, rotation)[0].max(dim=0)
    shape = (len(descriptions0), len(descriptions1))
    return value.view(shape), rotation.gather(0, index[None]).view(shape)


def _polynomial(spectrum: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Re sum_f spectrum_f exp(i f t) at (F, P) rotations, with its first and second derivative."""
    value = slope = curvature = torch.zeros_like(rotation)
    for f, coefficient in enumerate(spectrum):
        wave = coefficient * torch.polar(torch.ones_like(rotation), f * rotation)
        value, slope, curvature = value + wave.real, slope - f * wave.imag, curvature - f * f * wave.real
    return value, slope, curvature


def invariant_projector(steerer: Steerer) -> Tensor:
    """The average over the group; for a learned SO(2) steerer, whose rotations do not close, the zero frequencies."""
    if steerer.group.order is not None:
        return elements(steerer, steerer.group.order).mean(dim=0)
    generator = steerer.generator().detach().double()
    values, vectors = torch.linalg.eig(generator)
    if steerer.representation is None:
        kept = (values.imag.abs() < 0.5).to(vectors.dtype)
        return (vectors @ torch.diag(kept) @ torch.linalg.inv(vectors)).real
    return elements(steerer, 2 * round(float(values.abs().max())) + 1).mean(dim=0)


# Procrustes -----------------------------------------------------------------------------------------------------------


def two_vectors(descriptions: Tensor, steerer: Steerer) -> Tensor:
    """(N, D/2, 2) planar vectors that rotate with the image; those that rotate against it are mirrored."""
    generator = steerer.generator().double()
    x = torch.arange(0, steerer.dim, 2)
    sense = torch.sign(generator[x + 1, x])
    vectors = unit(descriptions).view(len(descriptions), -1, 2)
    return torch.stack([vectors[..., 0], vectors[..., 1] * sense], dim=-1)


def best_rotations(covariance: Tensor) -> Tensor:
    """The proper rotations R that maximise <R, covariance>, for (..., 2, 2) covariances, by SVD."""
    U, _, Vh = torch.linalg.svd(covariance)
    correction = torch.ones_like(covariance[..., 0])
    correction[..., 1] = torch.linalg.det(U @ Vh)
    return U @ (correction[..., None] * Vh)


def rotation_of(rotations: Tensor) -> Tensor:
    return torch.atan2(rotations[..., 1, 0], rotations[..., 0, 0])


# Strategies -----------------------------------------------------------------------------------------------------------


def dual_softmax(descriptions0: Tensor, descriptions1: Tensor, **options: float) -> Expected:
    return assign(cosines(descriptions0, descriptions1), **options)


def max_matches(
    descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, tried: int | Sequence[float], **options: float
) -> Expected:
    """Match after each rotation, keep the rotation with the most matches (of equal ones, the most probable).

    Of one description in each image every rotation has one match of probability 1: there the most similar is kept.
    """
    angles = rotations_of(tried) if isinstance(tried, int) else tried
    similarities = steered_cosines(descriptions0, descriptions1, steerer, angles)
    found = [assign(s, **options) for s in similarities]
    best = max(range(len(angles)), key=lambda k: (len(found[k]), float(found[k].scores.sum())))
    if similarities.shape[1:] == (1, 1):
        best = int(similarities.flatten().argmax())
    return replace(found[best], angle=angles[best] if len(found[best]) else None)


def max_similarity(
    descriptions0: Tensor,
    descriptions1: Tensor,
    steerer: Steerer,
    tried: int | Sequence[float] | None,
    **options: float,
) -> Expected:
    """One match by the largest cosine over the rotations of an order or list; ``None`` is every rotation."""
    if 0 in (len(descriptions0), len(descriptions1)):
        similarity = rotations = torch.zeros(len(descriptions0), len(descriptions1), dtype=torch.float64)
    elif tried is None:
        maximum = fine_maximum if steerer.representation is None else continuous_maximum
        similarity, rotations = maximum(descriptions0, descriptions1, steerer)
    else:
        angles = rotations_of(tried) if isinstance(tried, int) else tried
        similarity, index = steered_cosines(descriptions0, descriptions1, steerer, angles).max(dim=0)
        rotations = torch.tensor(angles, dtype=torch.float64)[index]
    return _with_rotations(assign(similarity, **options), rotations)


def subset(
    descriptions0: Tensor,
    descriptions1: Tensor,
    steerer: Steerer,
    tried: int | Sequence[float],
    *,
    index0: Tensor,
    index1: Tensor,
    **options: float,
) -> Expected:
    """The rotation by max-matches among the drawn descriptions; then everything is matched at that rotation.

    If nothing matches among those, everything is matched as it is.
    """
    drawn = max_matches(descriptions0[index0], descriptions1[index1], steerer, tried, **options)
    if drawn.angle is None:
        return dual_softmax(descriptions0, descriptions1, **options)
    (element,) = elements(steerer, [drawn.angle])
    return replace(dual_softmax(unit(descriptions0) @ element.mT, descriptions1, **options), angle=drawn.angle)


def procrustes(descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, **options: float) -> Expected:
    """Every pair aligned by its own rotation: (N, M, 2, 2) covariances and their SVDs."""
    a, b = two_vectors(descriptions0, steerer), two_vectors(descriptions1, steerer)
    covariance = torch.einsum("mcx,ncy->nmxy", b, a)  # (N, M, 2, 2)
    rotations = best_rotations(covariance)
    return _with_rotations(assign((rotations * covariance).sum(dim=(2, 3)), **options), rotation_of(rotations))


def prototype_procrustes(
    descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, prototype: Tensor | None = None, **options: float
) -> Expected:
    """Every description aligned to the prototype, then matched as it is."""
    if prototype is None:
        prototype = torch.tensor([1.0, 0.0]).repeat(steerer.dim // 2)
    target = two_vectors(prototype[None], steerer)[0]  # (D/2, 2)
    aligned, angles = [], []
    for descriptions in (descriptions0, descriptions1):
        vectors = two_vectors(descriptions, steerer)  # (N, D/2, 2)
        rotations = best_rotations(torch.einsum("cx,ncy->nxy", target, vectors))
        aligned.append(torch.einsum("nxy,ncy->ncx", rotations, vectors).flatten(1))
        angles.append(rotation_of(rotations))
    return _with_rotations(dual_softmax(*aligned, **options), angles[0][:, None] - angles[1])


def procrustes_of(descriptions0: Tensor, descriptions1: Tensor, quarter: Tensor, **options: float) -> Expected:
    """Every pair aligned by its own rotation cos t + J sin t, J being the (D, D) quarter turn of some basis.

    Lengths and products are those of the inner product (I + J^T J) / 2, which these rotations keep.
    """
    metric = (torch.eye(len(quarter), dtype=torch.float64) + quarter.mT @ quarter) / 2
    a, b = (
        d / (d @ metric * d).sum(dim=1, keepdim=True).sqrt() for d in (descriptions0.double(), descriptions1.double())
    )
    in_phase, quadrature = a @ metric @ b.mT, a @ quarter.mT @ metric @ b.mT  # (N, M)
    return _with_rotations(assign(torch.hypot(in_phase, quadrature), **options), torch.atan2(quadrature, in_phase))


def prototype_procrustes_of(
    descriptions0: Tensor, descriptions1: Tensor, quarter: Tensor, prototype: Tensor, **options: float
) -> Expected:
    """As :func:`procrustes_of`, but every description aligned to the (D,) prototype."""
    metric = (torch.eye(len(quarter), dtype=torch.float64) + quarter.mT @ quarter) / 2
    lengths, towards = torch.linalg.cholesky(metric), metric @ prototype.double()
    aligned, angles = [], []
    for d in (descriptions0.double(), descriptions1.double()):
        angle = torch.atan2(d @ quarter.mT @ towards, d @ towards)
        rotated = torch.cos(angle)[:, None] * d + torch.sin(angle)[:, None] * (d @ quarter.mT)
        aligned.append(rotated @ lengths)
        angles.append(angle)
    return _with_rotations(dual_softmax(*aligned, **options), angles[0][:, None] - angles[1])


def invariant(descriptions0: Tensor, descriptions1: Tensor, steerer: Steerer, **options: float) -> Expected:
    projector = invariant_projector(steerer)
    return dual_softmax(descriptions0.double() @ projector.mT, descriptions1.double() @ projector.mT, **options)


def pair_rotation(angles: Tensor, weights: Tensor, width: float = math.radians(10.0)) -> float:
    """Where the weight of the angles is densest: a von Mises density on a grid of a twentieth of a degree."""
    grid = torch.deg2rad(torch.arange(7200, dtype=torch.float64) / 20)
    density = torch.exp((torch.cos(grid[:, None] - angles) - 1) / width**2) @ weights.double()
    return float(grid[density.argmax()])


def _with_rotations(matches: Expected, rotations: Tensor) -> Expected:
    angles = rotations[matches.indices[:, 0], matches.indices[:, 1]]
    return replace(matches, angle=pair_rotation(angles, matches.scores) if len(matches) else None, angles=angles)


# Tiles of scores ------------------------------------------------------------------------------------------------------

N, M = 13, 9
COS_ATOL = {torch.float32: 2e-6, torch.float64: 1e-12}


def descriptions(dim: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return randn(N, dim, seed=seed, dtype=dtype), randn(M, dim, seed=seed + 1, dtype=dtype)


def whole(similarity: Similarity, scale: float = 1.0) -> Tensor:
    """(alternatives, N, M) in one tile."""
    return similarity.block(slice(0, similarity.shape[0]), scale)(slice(0, similarity.shape[1])).clone()


def every_pair(similarity: Similarity) -> tuple[Tensor, Tensor]:
    n, m = similarity.shape
    return torch.arange(n).repeat_interleave(m), torch.arange(m).repeat(n)


# Data and comparison --------------------------------------------------------------------------------------------------


def planted(
    steerer: Steerer,
    angle: float,
    n: int,
    m: int,
    *,
    noise: float = 0.3,
    fraction: float = 0.6,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptions of two images, the second rotated by ``angle``: some correspond up to noise, the others do not.

    Returns:
        (N, D) and (M, D) descriptions of assorted lengths, and the (K, 2) true pairs.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    first, second = normal(n, steerer.dim), normal(m, steerer.dim)
    count = int(fraction * min(n, m))
    i, j = torch.randperm(n, generator=generator)[:count], torch.randperm(m, generator=generator)[:count]
    matrix = steerer.matrix(angle).detach().double()
    rotated = unit(first[i]) @ matrix.mT
    second[j] = unit(rotated) + noise * unit(normal(count, steerer.dim))
    lengths = (0.5 + torch.rand(n + m, 1, generator=generator, dtype=torch.float64)) * 3
    return (first * lengths[:n]).to(dtype), (second * lengths[n:]).to(dtype), torch.stack([i, j], dim=1)


def wrapped(angle: float | Tensor) -> Tensor:
    """Radians in [-pi, pi)."""
    return torch.remainder(torch.as_tensor(angle, dtype=torch.float64) + math.pi, 2 * math.pi) - math.pi


def by_first(assignment: Assignment | Expected) -> Tensor:
    return assignment.indices[:, 0].argsort()


def assert_same(
    found: Assignment,
    expected: Expected | Assignment,
    *,
    atol: float = 2e-5,
    angle_atol: float = 1e-4,
    pair_atol: float = math.radians(3.0),
) -> None:
    """The same pairs, probabilities and rotations; and that ``found`` is well formed."""
    assert found.indices.dtype == torch.int64
    assert found.scores.dtype == torch.float32
    assert found.indices.shape == (len(found), 2)
    assert bool((found.scores[1:] <= found.scores[:-1]).all()), "best first"
    for column in found.indices.unbind(dim=1):
        assert len(column.unique()) == len(column), "at most one match a keypoint"
    order, expected_order = by_first(found), by_first(expected)
    assert found.indices[order].tolist() == expected.indices[expected_order].tolist()
    scores, expected_scores = found.scores[order].double(), expected.scores[expected_order].double()
    torch.testing.assert_close(scores, expected_scores, atol=atol, rtol=0)
    assert (found.angle is None) == (expected.angle is None)
    if found.angle is not None:
        assert abs(float(wrapped(found.angle - expected.angle))) <= pair_atol
    assert (found.angles is None) == (expected.angles is None)
    if found.angles is not None:
        assert found.angles.dtype == torch.float64
        difference = wrapped(found.angles[order] - expected.angles[expected_order])
        assert len(difference) == 0 or float(difference.abs().max()) <= angle_atol


def assert_identical(found: Assignment, expected: Assignment) -> None:
    """The same to the last bit, order included."""
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.scores, expected.scores)
    assert found.angle == expected.angle
    assert (found.angles is None) == (expected.angles is None)
    if found.angles is not None:
        assert torch.equal(found.angles, expected.angles)
