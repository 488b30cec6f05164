"""Every angle of a learned SO(2) steerer, against a plain float64 search over thousands of rotations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, random_basis, representations_of, seeds
from matching import reference
from matching.reference import (
    COS_ATOL,
    M,
    N,
    assert_same,
    cosines,
    descriptions,
    every_pair,
    fine_maximum,
    planted,
    unit,
    whole,
    wrapped,
)
from steerers.matching.exponentials import ContinuousSteered, Exponentials
from steerers.matching.extrema import Continuous
from steerers.matching.strategies import make_strategy
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")

DIM = 24


def perturbed(seed: int, noise: float = 0.02) -> Tensor:
    """Spread, as training leaves it."""
    return Steerer.spread(DIM, 4).generator() + noise * randn(DIM, DIM, seed=seed)


def decaying(seed: int) -> Tensor:
    """Directions that fade at different rates, by factors of up to e^-6 in a full turn, and one that grows."""
    rates = -torch.rand(DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rates[3] = 0.5
    return perturbed(seed) + rates.diag()


def skewed(seed: int) -> Tensor:
    """Frequencies of a representation in a basis far from orthogonal."""
    basis = random_basis(DIM, seed % 1000)
    return basis @ Steerer.spread(DIM, 4).generator() @ torch.linalg.inv(basis)


def initial(seed: int) -> Tensor:
    """The random start of Setting B."""
    start = Steerer.random(DIM, "SO2", generator=torch.Generator().manual_seed(seed))
    return start.generator().detach().double()


GENERATORS = {"perturbed": perturbed, "decaying": decaying, "skewed": skewed, "initial": initial}
kinds = pytest.mark.parametrize("kind", list(GENERATORS))


def steerer_of(kind: str, seed: int) -> Steerer:
    return Steerer.from_matrix(GENERATORS[kind](seed), "SO2")


def cosines_at(a: Tensor, b: Tensor, steerer: Steerer, angles: Tensor) -> Tensor:
    """(K,) cosines of pairs after a rotation of each of the first, by dense exponentials."""
    matrices = torch.linalg.matrix_exp(angles[:, None, None] * steerer.generator().double())
    return (unit((matrices @ unit(a)[..., None])[..., 0]) * unit(b)).sum(dim=1)


# Single pairs ---------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(seed=seeds)
@kinds
def test_single_pairs_are_exact(kind: str, seed: int) -> None:
    """What is found is reached there, and no rotation of a very fine grid is better."""
    steerer = steerer_of(kind, seed)
    a, b = descriptions(DIM, seed)
    similarity = ContinuousSteered(a, b, steerer)
    i, j = every_pair(similarity)
    values, rotations = similarity.pairs(i, j), similarity.rotations(i, j)
    assert values.dtype == rotations.dtype == torch.float64
    assert bool(((rotations >= 0) & (rotations <= 2 * math.pi)).all())
    torch.testing.assert_close(cosines_at(a[i], b[j], steerer, rotations), values, atol=1e-10, rtol=0)
    fine, _ = fine_maximum(a, b, steerer, 2000)
    assert float((fine.flatten() - values).max()) < 1e-10


@given(seed=seeds, angle=st.floats(0, 6.28))
@kinds
def test_the_rotation_of_a_steered_description(kind: str, seed: int, angle: float) -> None:
    steerer = steerer_of(kind, seed)
    a = randn(N, DIM, seed=seed)
    similarity, i = ContinuousSteered(a, steerer.steer(a, angle), steerer), torch.arange(N)
    torch.testing.assert_close(similarity.pairs(i, i), torch.ones(N, dtype=torch.float64), atol=1e-10, rtol=0)
    assert float(wrapped(similarity.rotations(i, i) - angle).abs().max()) < 1e-5


@given(seed=seeds)
@kinds
def test_derivatives(kind: str, seed: int) -> None:
    a, b = randn(5, DIM, seed=seed), randn(5, DIM, seed=seed + 1)
    course, step = Exponentials(a, b, steerer_of(kind, seed)), 1e-5
    angles = torch.linspace(0.5, 6, 5, dtype=torch.float64)
    value, slope, curvature = course.evaluate(angles)
    torch.testing.assert_close(value, cosines_at(a, b, steerer_of(kind, seed), angles), atol=1e-10, rtol=0)
    below, above = course.evaluate(angles - step), course.evaluate(angles + step)
    torch.testing.assert_close((above[0] - below[0]) / (2 * step), slope, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close((above[1] - below[1]) / (2 * step), curvature, atol=1e-5, rtol=1e-6)


def test_growth_does_not_overflow() -> None:
    """Factors of e^+-600 in a full turn."""
    rates = torch.linspace(-100, 100, DIM, dtype=torch.float64)
    steerer = Steerer.from_matrix(perturbed(0) + rates.diag(), "SO2")
    a, b = descriptions(DIM, 0)
    similarity = ContinuousSteered(a, b, steerer)
    i, j = every_pair(similarity)
    fine, _ = fine_maximum(a, b, steerer, 10_000)
    torch.testing.assert_close(similarity.pairs(i, j), fine.flatten(), atol=1e-4, rtol=0)
    assert bool((fine.flatten() - similarity.pairs(i, j) < 1e-10).all())
    assert bool(torch.isfinite(whole(similarity)).all())


def test_zeros_stay_zero() -> None:
    a, b = descriptions(DIM, 0)
    a[3], b[5] = 0, 0
    similarity = ContinuousSteered(a, b, steerer_of("perturbed", 0))
    i, j = every_pair(similarity)
    values, tile = similarity.pairs(i, j).view(N, M), whole(similarity)[0]
    for found in (values, tile):
        assert bool(torch.isfinite(found).all())
        assert not found[3].any()
        assert not found[:, 5].any()


# Tiles ----------------------------------------------------------------------------------------------------------------


@given(seed=seeds)
@kinds
def test_tiles_are_nearly_exact(kind: str, seed: int, dtype: torch.dtype) -> None:
    a, b = descriptions(DIM, seed, dtype)
    similarity = ContinuousSteered(a, b, steerer_of(kind, seed))
    i, j = every_pair(similarity)
    off = (whole(similarity)[0].flatten().double() - similarity.pairs(i, j)).abs()
    assert float(off.max()) < 3e-3


@kinds
def test_tiles_are_mostly_far_better(kind: str) -> None:
    steerer, a = steerer_of(kind, 7), randn(60, DIM)
    b = steerer.steer(a, torch.linspace(0, 6, 60)) + 0.1 * randn(60, DIM, seed=1)
    similarity = ContinuousSteered(a, b, steerer)
    i, j = every_pair(similarity)
    off = (whole(similarity)[0].flatten() - similarity.pairs(i, j)).abs()
    assert float(off.mean()) < 2e-4


def test_the_ends_of_the_interval_count() -> None:
    """A description that only moves away is most similar at 0, one that comes ever nearer at a full turn."""
    slow = torch.tensor([[0.0, -0.1], [0.1, 0.0]], dtype=torch.float64)
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for target, rotation in ((-1.0, 0.0), (1.0, 2 * math.pi)):
        b = torch.tensor([[math.cos(target), math.sin(target)]], dtype=torch.float64)
        similarity, only = ContinuousSteered(a, b, Steerer.from_matrix(slow, "SO2")), torch.zeros(1, dtype=torch.long)
        assert float(similarity.rotations(only, only)) == pytest.approx(rotation)
        expected = math.cos(0.1 * rotation - target)
        assert float(similarity.pairs(only, only)) == pytest.approx(expected, abs=1e-12)
        assert float(whole(similarity)) == pytest.approx(expected, abs=1e-12)


# Beside fixed steerers ------------------------------------------------------------------------------------------------


@given(representation=representations_of(Group(None)), seed=seeds)
def test_a_representation_given_as_a_matrix(representation: Representation, seed: int, dtype: torch.dtype) -> None:
    fixed = Steerer.from_representation(representation)
    learned = Steerer.from_matrix(fixed.generator().to(dtype), "SO2", learnable=True)
    a, b = descriptions(fixed.dim, seed, dtype)
    expected, similarity = Continuous(a, b, fixed), ContinuousSteered(a, b, learned)
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), expected.pairs(i, j), atol=4 * COS_ATOL[dtype], rtol=0)
    reached = (fixed.steer(unit(a)[i], similarity.rotations(i, j)) * unit(b)[j]).sum(dim=1)
    torch.testing.assert_close(reached, expected.pairs(i, j), atol=4 * COS_ATOL[dtype], rtol=0)


def test_matching_by_a_representation_given_as_a_matrix(dtype: torch.dtype) -> None:
    fixed = Steerer.spread(42)
    learned = Steerer.from_matrix(fixed.generator().to(dtype), "SO2")
    a, b, _ = planted(fixed, 2.2, 60, 41, dtype=dtype)
    found, expected = (make_strategy("max-similarity", steerer, order=None).match(a, b) for steerer in (learned, fixed))
    assert len(found) > 20
    assert_same(found, expected, atol=0.02, pair_atol=1e-3)


# Matching -------------------------------------------------------------------------------------------------------------


@kinds
def test_as_the_textbook(kind: str, dtype: torch.dtype) -> None:
    """The same matches; probabilities are off by what tiles are, times the inverse temperature, twice."""
    steerer = steerer_of(kind, 3)
    a, b, true = planted(steerer, 2.2, 60, 41, noise=0.15, dtype=dtype)
    found = make_strategy("max-similarity", steerer, order=None).match(a, b)
    expected = reference.max_similarity(a, b, steerer, None)
    assert_same(found, expected, atol=0.05, angle_atol=5e-3)
    assert len(set(map(tuple, true.tolist())) & set(map(tuple, found.indices.tolist()))) > 0.9 * len(true)
    assert wrapped(found.angle - 2.2).abs() < 0.05


def test_a_generator_of_zeros_is_the_cosine() -> None:
    a, b = descriptions(5, 0)
    similarity = ContinuousSteered(a, b, Steerer.from_matrix(torch.zeros(5, 5), "SO2"))
    torch.testing.assert_close(whole(similarity)[0], cosines(a, b))
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), cosines(a, b).flatten())
