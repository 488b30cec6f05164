"""The maximum over every rotation, and rotations between the tried ones, to a fraction of a degree."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import steerers
from helpers import EXAMPLES, assert_near, randn, representations_of, seeds
from matching.reference import (
    COS_ATOL,
    M,
    N,
    assert_identical,
    continuous_maximum,
    cosines,
    descriptions,
    every_pair,
    rotations_of,
    steered_cosines,
    unit,
    whole,
    wrapped,
)
from steerers import Steerer
from steerers.geometry import rotate_image
from steerers.images.load import load_image
from steerers.matching.assignment import Assignment
from steerers.matching.extrema import Continuous, is_refinable, refine_rotations
from steerers.matching.strategies import OverRotations, make_strategy
from steerers.steering.representations import Group, Representation

pytestmark = pytest.mark.usefixtures("one_thread")

SO2 = Group(None)
FIXED = {"spread": Steerer.spread(64), "freq1": Steerer.freq1(32), "official": Steerer.from_spec("4x0 + 9x-1 + 9x-2")}


def refined(strategy: OverRotations, a: Tensor, b: Tensor) -> tuple[Assignment, Assignment]:
    """The assignment before and after."""
    return replace(strategy, refine=False).match(a, b), strategy.match(a, b)


def similarities(steerer: Steerer, a: Tensor, b: Tensor, rotations: Tensor) -> Tensor:
    return torch.cosine_similarity(steerer.steer(a.double(), rotations), b.double(), dim=1)


# Where rotations are refined ------------------------------------------------------------------------------------------


@given(angle=st.floats(-3.1, 3.1), order=st.sampled_from([12, 16]), seed=seeds)
@pytest.mark.parametrize("name", ["max-similarity", "max-matches", "subset"])
@pytest.mark.parametrize("key", list(FIXED))
def test_any_rotation_is_found(name: str, key: str, angle: float, order: int, seed: int, dtype: torch.dtype) -> None:
    strategy, steerer = make_strategy(name, FIXED[key], order=order), FIXED[key]
    a = randn(20, steerer.dim, seed=seed, dtype=dtype)
    before, after = refined(strategy, a, steerer.steer(a, angle))
    assert torch.equal(after.indices, before.indices)
    assert torch.equal(after.scores, before.scores)
    assert after.angle is not None
    assert after.angles is not None
    assert after.angles.dtype == torch.float64
    right = after.indices[:, 0] == after.indices[:, 1]
    assert right.double().mean() > 0.9
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert float(wrapped(after.angles - angle)[right].abs().max()) < tolerance
    assert abs(float(wrapped(after.angle - angle))) < 0.05  # a wrong match may be among those near


@given(angle=st.floats(-3.1, 3.1), seed=seeds)
@pytest.mark.parametrize("key", list(FIXED))
def test_noise_moves_the_rotation_a_little(key: str, angle: float, seed: int, dtype: torch.dtype) -> None:
    steerer = FIXED[key]
    a = randn(40, steerer.dim, seed=seed, dtype=dtype)
    b = steerer.steer(a, angle) + 0.1 * randn(40, steerer.dim, seed=seed + 1, dtype=dtype)
    _, after = refined(make_strategy("max-similarity", steerer, order=16), a, b)
    assert after.angle is not None
    assert after.angles is not None
    assert abs(float(wrapped(after.angle - angle))) < 0.03
    assert float(wrapped(after.angles - angle).abs().median()) < 0.05


@given(
    representation=representations_of(SO2), angle=st.floats(-3.1, 3.1), order=st.sampled_from([12, 16, 23]), seed=seeds
)
def test_every_representation(
    representation: Representation, angle: float, order: int, seed: int, dtype: torch.dtype
) -> None:
    """Some repeat after less than a full turn, or hardly rotation; steering by what is found is right in any case."""
    steerer = Steerer.from_representation(representation)
    a = randn(10, steerer.dim, seed=seed, dtype=dtype)
    step = 2 * math.pi / order
    tried = torch.full((10,), step * round(angle / step), dtype=torch.float64)
    b = steerer.steer(a, angle)
    assert is_refinable(steerer) == any(representation.multiplicities())
    assume(is_refinable(steerer))
    found = refine_rotations(a, b, tried, steerer, rotations_of(order))
    assert_near(steerer.steer(a.double(), found), b.double(), 1e-5 if dtype == torch.float32 else 1e-9)


@given(representation=representations_of(SO2), order=st.integers(2, 20), seed=seeds)
def test_never_worse_and_never_far(representation: Representation, order: int, seed: int) -> None:
    steerer = Steerer.from_representation(representation)
    a, b = randn(10, steerer.dim, seed=seed), randn(10, steerer.dim, seed=seed + 1)
    tried = randn(10, seed=seed + 2)
    assume(is_refinable(steerer))
    found = refine_rotations(a, b, tried, steerer, rotations_of(order))
    assert (similarities(steerer, a, b, found) >= similarities(steerer, a, b, tried) - 1e-12).all()
    assert ((found - tried).abs() <= 2 * math.pi / order + 1e-12).all()


LEARNED = {
    "exact": Steerer.from_matrix(Steerer.spread(64).generator(), "SO2"),
    "learned": Steerer.from_matrix(Steerer.spread(64).generator() + 0.01 * randn(64, 64, seed=5), "SO2"),
    "decaying": Steerer.from_matrix(Steerer.freq1(32).generator() - torch.linspace(0, 0.25, 32).double().diag(), "SO2"),
}


@given(angle=st.floats(0, 5.8), seed=seeds)
@pytest.mark.parametrize(
    ("name", "key"), [("max-similarity", "learned"), ("max-matches", "exact"), ("subset", "decaying")]
)
def test_any_rotation_is_found_by_a_learned_steerer(name: str, key: str, angle: float, seed: int) -> None:
    strategy, steerer = make_strategy(name, LEARNED[key], order=16), LEARNED[key]
    a = randn(20, steerer.dim, seed=seed)
    before, after = refined(strategy, a, steerer.steer(a, angle))
    assert torch.equal(after.indices, before.indices)
    assert after.angle is not None
    assert after.angles is not None
    right = after.indices[:, 0] == after.indices[:, 1]
    assert right.double().mean() > 0.9
    assert float(wrapped(after.angles - angle)[right].abs().max()) < 1e-9
    assert abs(float(wrapped(after.angle - angle))) < 0.05


@pytest.mark.parametrize("angle", [0.0, 0.01, -0.01, -0.2])
def test_a_learned_steerer_tells_rotations_about_zero(angle: float) -> None:
    """Either way: the rotations of [0, 2 pi) end there, images do not."""
    steerer = LEARNED["learned"]
    a = randn(40, 64)
    b = Steerer.spread(64).steer(a, angle) + 0.05 * randn(40, 64, seed=1)
    _, after = refined(make_strategy("max-matches", steerer, order=8), a, b)
    assert after.angles is not None
    assert float((after.angles - angle).abs().median()) < 0.01
    assert float((after.angles - angle).abs().max()) < 0.1


@given(angles=st.lists(st.floats(0, 6.28), min_size=1, max_size=6, unique=True), learned=st.booleans(), seed=seeds)
def test_no_farther_than_the_nearest_other_rotation(angles: list[float], learned: bool, seed: int) -> None:
    """Of those that were tried; and never worse."""
    spaced = [math.remainder(b - a, 2 * math.pi) for a, b in itertools.permutations(angles, 2)]
    assume(all(abs(gap) > 1e-3 for gap in spaced))
    steerer = LEARNED["exact"] if learned else FIXED["spread"]
    a, b = randn(len(angles), 64, seed=seed), randn(len(angles), 64, seed=seed + 1)
    tried = torch.tensor(angles, dtype=torch.float64)
    found = refine_rotations(a, b, wrapped(tried), steerer, tuple(angles))
    off = wrapped(found - tried).abs()
    for k, angle in enumerate(angles):
        others = [abs(math.remainder(other - angle, 2 * math.pi)) for other in angles if other != angle]
        assert float(off[k]) <= min(others, default=math.pi) + 1e-9
    assert (similarities(steerer, a, b, found) >= similarities(steerer, a, b, tried) - 1e-9).all()


def test_every_match_has_its_own_rotation() -> None:
    steerer = FIXED["spread"]
    a, rotations = (
        randn(50, steerer.dim),
        0.9 + 0.25 * (2 * torch.rand(50, generator=torch.Generator().manual_seed(0)) - 1),
    )
    b = steerer.steer(a, rotations.double())
    for name in ("max-similarity", "max-matches"):
        _, after = refined(make_strategy(name, steerer, order=16), a, b)
        assert after.angles is not None
        i, j = after.indices.unbind(dim=1)
        assert torch.equal(i, j)
        assert float((after.angles - rotations[i]).abs().max()) < 1e-6


def test_wrong_matches_do_not_pull_the_rotation() -> None:
    steerer = FIXED["spread"]
    a = randn(200, steerer.dim)
    b = steerer.steer(a, 2.8) + 0.2 * randn(200, steerer.dim, seed=1)
    b[:60] = steerer.steer(a[:60], 1.0)
    for name in ("max-similarity", "max-matches"):
        _, after = refined(make_strategy(name, steerer, order=16), a, b)
        assert after.angle == pytest.approx(2.8, abs=0.01)


@pytest.mark.parametrize(("first", "second"), [(torch.float16, torch.float16), (torch.float32, torch.float64)])
def test_types(first: torch.dtype, second: torch.dtype) -> None:
    steerer = FIXED["spread"]
    a = randn(20, steerer.dim)
    _, after = refined(
        make_strategy("max-similarity", steerer, order=16), a.to(first), steerer.steer(a, 0.5).to(second)
    )
    assert after.angle == pytest.approx(0.5, abs=1e-3)


# Where they stay as they are ------------------------------------------------------------------------------------------

UNCHANGED = {
    "exact": make_strategy("max-similarity", Steerer.spread(32), order=None),
    "cyclic": make_strategy("max-similarity", Steerer.perm(32)),
    "cyclic blocks": make_strategy("max-matches", Steerer.from_spec("8x0 + 12x1", "C8")),
    "learned, cyclic": make_strategy("max-matches", Steerer.from_matrix(Steerer.perm(32).generator(), "C4")),
    "learned, no eigenvectors": make_strategy("max-matches", Steerer.from_matrix(torch.eye(32).roll(1).triu(1), "SO2")),
    "learned, no frequency but 0": make_strategy("max-similarity", Steerer.from_matrix(torch.zeros(32, 32), "SO2")),
    "no frequency but 0": make_strategy("max-similarity", Steerer.inv(32)),
}


@pytest.mark.parametrize("key", list(UNCHANGED))
def test_unchanged(key: str) -> None:
    a = randn(30, 32, dtype=torch.float64)
    before, after = refined(UNCHANGED[key], a, a + 0.1 * randn(30, 32, seed=1))
    assert len(before) > 20
    assert_identical(after, before)


@pytest.mark.parametrize("name", ["max-similarity", "max-matches", "subset"])
def test_no_match(name: str) -> None:
    strategy = make_strategy(name, FIXED["spread"])
    before, after = refined(strategy, torch.zeros(0, 64), randn(5, 64, dtype=torch.float32))
    assert_identical(after, before)
    assert after.angle is None


# Of images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "degrees"), [("max-similarity", 33.0), ("max-matches", -100.0)])
def test_rotated_photograph(strategy: str, degrees: float) -> None:
    image = load_image(EXAMPLES / "camera.jpg", max_size=320).tensor
    rotated, _ = rotate_image(image, math.radians(degrees), fill=0.5)
    m = steerers.load("compact", strategy=strategy, order=16, num_keypoints=300)(image, rotated.clamp(0, 1))
    assert m.angle == pytest.approx(degrees, abs=1.0)
    assert m.angles is not None
    assert m.angles.shape == (len(m),)
    off = (m.angles - degrees + 180) % 360 - 180
    assert (abs(off) < 5).mean() > 0.8


# The continuous maximum -----------------------------------------------------------------------------------------------


def steepness(steerer: Steerer, a: Tensor, b: Tensor) -> Tensor:
    """(N, M) sum of (f / F)^2 |C_f + i S_f| over the frequencies f up to the highest, F."""
    top = int(steerer.generator().abs().max())
    samples = steered_cosines(a, b, steerer, 4 * top)
    amplitudes = 2 * torch.fft.rfft(samples, dim=0, norm="forward")[: top + 1].abs()
    weights = (torch.arange(top + 1, dtype=torch.float64) / top) ** 2
    return torch.einsum("f,fnm->nm", weights, amplitudes)


@given(representation=representations_of(Group(None)), seed=seeds)
def test_continuous_maximum_of_any_frequencies(representation: Representation, seed: int, dtype: torch.dtype) -> None:
    """Single pairs are exact; a tile may take the smaller of two nearly equal maxima, within what a grid can miss.

    A grid of spacing h misses at most (h/2)^2 |s''| / 2 of a maximum: with eight points a period, (pi / 8)^2 / 2 =
    0.0772 of the steepness. The last step along a parabola may overshoot, by far less. One frequency besides zero has a
    closed form and misses nothing.
    """
    steerer = Steerer.from_representation(representation)
    assume(any(frequency for _, frequency in representation.terms))
    a, b = descriptions(steerer.dim, seed, dtype)
    similarity = Continuous(a, b, steerer)
    exact, _ = continuous_maximum(a, b, steerer)
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), exact.flatten(), atol=4 * COS_ATOL[dtype], rtol=0)
    several = len({abs(frequency) for _, frequency in representation.terms} - {0}) > 1
    steep = steepness(steerer, a, b) if several else torch.zeros(N, M, dtype=torch.float64)
    missed = exact - whole(similarity)[0].double()
    assert bool((missed <= 0.0772 * steep + 4 * COS_ATOL[dtype]).all())
    assert bool((missed >= -0.002 * steep - 4 * COS_ATOL[dtype]).all())


def test_continuous_maximum_of_spread_is_seldom_missed() -> None:
    steerer = Steerer.spread(56)
    a, b = randn(60, 56, seed=1, dtype=torch.float32), randn(55, 56, seed=2, dtype=torch.float32)
    similarity = Continuous(a, b, steerer)
    exact, _ = continuous_maximum(a, b, steerer)
    error = (exact - whole(similarity)[0].double()).abs()
    assert float(error.max()) < 0.02
    assert float((error > 1e-5).double().mean()) < 0.03
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), exact.flatten(), atol=1e-6, rtol=0)


@given(representation=representations_of(Group(None)), seed=seeds)
def test_the_continuous_rotation_reaches_the_value(representation: Representation, seed: int) -> None:
    steerer = Steerer.from_representation(representation)
    a, b = descriptions(steerer.dim, seed)
    similarity = Continuous(a, b, steerer)
    i, j = every_pair(similarity)
    reached = (steerer.steer(unit(a)[i], similarity.rotations(i, j)) * unit(b)[j]).sum(dim=1)
    torch.testing.assert_close(reached, similarity.pairs(i, j), atol=1e-10, rtol=0)


@given(angle=st.floats(-3.1, 3.1), seed=seeds)
def test_the_continuous_rotation_of_a_steered_description(angle: float, seed: int) -> None:
    steerer = Steerer.spread(28)
    a = randn(N, 28, seed=seed)
    similarity = Continuous(a, steerer.steer(a, angle), steerer)
    i = torch.arange(N)
    torch.testing.assert_close(similarity.pairs(i, i), torch.ones(N, dtype=torch.float64), atol=1e-9, rtol=0)
    assert float(wrapped(similarity.rotations(i, i) - angle).abs().max()) < 1e-6


def test_continuous_without_any_rotation_is_the_cosine() -> None:
    a, b = descriptions(5, 0)
    similarity = Continuous(a, b, Steerer.inv(5))
    torch.testing.assert_close(whole(similarity)[0], cosines(a, b))
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), cosines(a, b).flatten())
    assert bool((similarity.rotations(i, j) == 0).all())
