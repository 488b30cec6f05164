"""Tiles of scores against dense float64 matrices."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from helpers import permutations_of, randn, random_basis, representations, representations_of, seeds
from matching.reference import continuous_maximum, cosines, steered_cosines, unit, wrapped
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Harmonics, Rotated
from steerers.matching.similarity import Cosine, Similarity, Steered, as_float, normalised
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

N, M = 13, 9
COS_ATOL = {torch.float32: 2e-6, torch.float64: 1e-12}


pytestmark = pytest.mark.usefixtures("one_thread")


def descriptions(dim: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return randn(N, dim, seed=seed, dtype=dtype), randn(M, dim, seed=seed + 1, dtype=dtype)


def whole(similarity: Similarity, scale: float = 1.0) -> Tensor:
    """(alternatives, N, M) in one tile."""
    return similarity.block(slice(0, similarity.shape[0]), scale)(slice(0, similarity.shape[1])).clone()


def every_pair(similarity: Similarity) -> tuple[Tensor, Tensor]:
    n, m = similarity.shape
    return torch.arange(n).repeat_interleave(m), torch.arange(m).repeat(n)


def learned(group: str, dim: int = 12, seed: int = 3, dtype: torch.dtype = torch.float64) -> Steerer:
    """A matrix that represents the group, in a basis that is far from orthogonal, and grows a little."""
    basis = random_basis(dim, seed)
    generator = Representation.parse("4x0 + 4x1", group, dim).generator()
    generator = generator + 0.05 * torch.eye(dim, dtype=torch.float64)
    return Steerer.from_matrix((basis @ generator @ torch.linalg.inv(basis)).to(dtype), group, learnable=True)


def kinds(dtype: torch.dtype = torch.float64) -> dict[str, Similarity]:
    """One of every similarity, on descriptions of length 12."""
    a, b = descriptions(12, 0, dtype)
    mixed, single = Steerer.from_spec("2x0 + 1x1 + 2x-2 + 2x3"), Steerer.from_spec("4x0 + 4x2")
    matrix, angles = learned("SO2", dtype=dtype), Group(5).angles()
    return {
        "cosine": Cosine(normalised(a), normalised(b)),
        "steered": Steered(normalised(a), normalised(b), matrix, angles, maximum=False),
        "steered-maximum": Steered(normalised(a), normalised(b), matrix, angles, maximum=True),
        "rotated-even": Rotated(Harmonics(a, b, mixed, 8), 8, maximum=False),
        "rotated-odd": Rotated(Harmonics(a, b, mixed, 5), 5, maximum=False),
        "rotated-even-maximum": Rotated(Harmonics(a, b, mixed, 8), 8, maximum=True),
        "rotated-odd-maximum": Rotated(Harmonics(a, b, mixed, 5), 5, maximum=True),
        "rotated-alternative": Rotated(Harmonics(a, b, mixed, 8), 8, maximum=False).alternative(3),
        "steered-alternative": Steered(normalised(a), normalised(b), matrix, angles, maximum=False).alternative(3),
        "continuous": Continuous(Harmonics(a, b, mixed, None)),
        "continuous-single": Continuous(Harmonics(a, b, single, None)),
    }


KINDS = list(kinds())


@st.composite
def steerers_with_order(draw: st.DrawFn) -> tuple[Steerer, int]:
    """A fixed steerer of any group, by blocks or by a permutation, and an order it can be discretised to."""
    if draw(st.booleans()):
        representation = draw(representations())
        whole_order = representation.group.order
        steerer = Steerer.from_representation(representation)
    else:
        whole_order = draw(st.integers(2, 9))
        steerer = Steerer.from_permutation(draw(permutations_of(Group(whole_order))), Group(whole_order))
    if whole_order is None:
        return steerer, draw(st.integers(2, 17))
    return steerer, draw(st.sampled_from([k for k in range(2, whole_order + 1) if whole_order % k == 0]))


# The contract that every similarity keeps -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_do_not_depend_on_their_limits(kind: str, dtype: torch.dtype) -> None:
    similarity = kinds(dtype)[kind]
    expected = whole(similarity)
    assert expected.shape == (similarity.alternatives, N, M)
    for rows in (slice(0, 5), slice(12, 13), torch.tensor([7, 2, 2, 11])):
        block = similarity.block(rows)
        for cols in (slice(0, 1), slice(3, 9), slice(0, M)):
            torch.testing.assert_close(
                block(cols), expected[:, rows][:, :, cols], atol=COS_ATOL[dtype], rtol=COS_ATOL[dtype]
            )


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_may_be_overwritten(kind: str) -> None:
    similarity = kinds()[kind]
    block, cols = similarity.block(slice(0, N)), slice(2, 8)
    expected = block(cols).clone()
    block(cols).zero_()
    assert torch.equal(block(cols), expected)


@pytest.mark.parametrize("scale", [0.5, 20.0, 500.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_multiplies_the_scores(kind: str, scale: float) -> None:
    similarity = kinds()[kind]
    torch.testing.assert_close(whole(similarity, scale), scale * whole(similarity), rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "continuous"])
def test_single_pairs_agree_with_tiles(kind: str, dtype: torch.dtype) -> None:
    similarity = kinds(dtype)[kind]
    i, j = every_pair(similarity)
    for k in range(similarity.alternatives):
        pairs = similarity.alternative(k).pairs(i, j)
        assert pairs.dtype == torch.float64
        expected = whole(similarity)[k].double().flatten()
        torch.testing.assert_close(pairs, expected, atol=COS_ATOL[dtype], rtol=0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kinds()[kind].alternatives > 1])
def test_an_alternative_alone_is_the_same(kind: str, dtype: torch.dtype) -> None:
    similarity = kinds(dtype)[kind]
    for k, expected in enumerate(whole(similarity)):
        (alone,) = whole(similarity.alternative(k))
        torch.testing.assert_close(alone, expected, atol=COS_ATOL[dtype], rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_many_pairs_are_taken_in_parts(kind: str) -> None:
    similarity = kinds()[kind].alternative(0)
    i, j = torch.arange(10_000) % N, torch.arange(10_000) % M
    pairs = similarity.pairs(i, j)
    assert pairs.shape == (10_000,)
    assert torch.allclose(pairs[-100:], similarity.pairs(i[-100:], j[-100:]), atol=1e-12)


# Cosine and Steered ---------------------------------------------------------------------------------------------------


@given(dim=st.integers(1, 20), seed=seeds)
def test_cosine(dim: int, seed: int, dtype: torch.dtype) -> None:
    a, b = descriptions(dim, seed, dtype)
    found = whole(Cosine(normalised(a), normalised(b)))[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), cosines(a, b), atol=COS_ATOL[dtype], rtol=0)


@pytest.mark.parametrize("group", ["C3", "C4", "C8", "SO2"])
@pytest.mark.parametrize("maximum", [False, True])
def test_learned_matrices_are_normalised_after_steering(group: str, maximum: bool) -> None:
    steerer, order = learned(group), Group.parse(group).order or 8
    a, b = descriptions(12, 5)
    similarity = Steered(normalised(a), normalised(b), steerer, Group(order).angles(), maximum=maximum)
    expected = steered_cosines(a, b, steerer, order)
    i, j = every_pair(similarity)
    with torch.no_grad():
        found, rotations = whole(similarity), similarity.rotations(i, j)
    if not maximum:
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
        assert rotations is None
        return
    value, index = expected.max(dim=0)
    torch.testing.assert_close(found[0], value, atol=1e-10, rtol=0)
    assert rotations is not None
    torch.testing.assert_close(rotations, Group(order).angles()[index.flatten()])


def test_matrices_that_annihilate_give_cosine_zero() -> None:
    steerer = Steerer.from_matrix(torch.zeros(4, 4), "C4")
    a, b = descriptions(4, 0, torch.float32)
    tiles = whole(Steered(normalised(a), normalised(b), steerer, Group(4).angles(), maximum=False))
    assert bool((tiles[1:] == 0).all())
    assert bool((tiles[0] != 0).any())


# Harmonics ------------------------------------------------------------------------------------------------------------


@given(case=steerers_with_order(), seed=seeds)
def test_rotated_is_one_product_a_rotation(case: tuple[Steerer, int], seed: int, dtype: torch.dtype) -> None:
    steerer, order = case
    a, b = descriptions(steerer.dim, seed, dtype)
    expected, harmonics = steered_cosines(a, b, steerer, order), Harmonics(a, b, steerer, order)
    every = Rotated(harmonics, order, maximum=False)
    assert every.alternatives == order
    torch.testing.assert_close(whole(every).double(), expected, atol=COS_ATOL[dtype], rtol=0)
    largest = Rotated(harmonics, order, maximum=True)
    torch.testing.assert_close(whole(largest)[0].double(), expected.amax(dim=0), atol=COS_ATOL[dtype], rtol=0)
    i, j = every_pair(largest)
    assert every.rotations(i, j) is None
    rotations = largest.rotations(i, j)
    assert rotations is not None
    step = (rotations * order / (2 * math.pi)).round().long()
    torch.testing.assert_close(expected[step, i, j], expected.amax(dim=0).flatten(), atol=COS_ATOL[dtype], rtol=0)


@given(representation=representations_of(Group(None)), seed=seeds, angle=st.floats(-7, 7))
def test_components_are_the_coefficients_of_the_steered_cosine(
    representation: Representation, seed: int, angle: float
) -> None:
    steerer = Steerer.from_representation(representation)
    a, b = descriptions(steerer.dim, seed)
    harmonics = Harmonics(a, b, steerer, None)
    out = harmonics.rows.new_empty(harmonics.num_components, N, M)
    components = harmonics.components(harmonics.rows, slice(0, M), out)  # (components, N, M)
    assert len(components) == harmonics.num_components
    basis = harmonics.basis(torch.tensor([angle], dtype=torch.float64))[0]
    found = torch.einsum("k,knm->nm", basis, components)
    torch.testing.assert_close(found, cosines(steerer.steer(unit(a), angle), b), atol=1e-12, rtol=0)


@pytest.mark.parametrize("derivative", [1, 2])
def test_the_basis_has_derivatives(derivative: int) -> None:
    a, b = descriptions(12, 0)
    harmonics = Harmonics(a, b, Steerer.from_spec("2x0 + 1x1 + 2x-2 + 2x3"), None)
    angles, step = torch.linspace(-3, 3, 11, dtype=torch.float64), 1e-5
    below, above = (harmonics.basis(angles + s * step, derivative - 1) for s in (-1, 1))
    torch.testing.assert_close(harmonics.basis(angles, derivative), (above - below) / (2 * step), atol=1e-6, rtol=0)


def test_orders_merge_frequencies() -> None:
    a, b = descriptions(256, 0)
    spread = Steerer.spread(256)
    assert Harmonics(a, b, spread, None).num_components == 13
    assert Harmonics(a, b, spread, 4).num_components == 4
    assert Harmonics(a, b, spread, 64).num_components == 13


def test_harmonics_leave_their_arguments_alone() -> None:
    a, b = descriptions(32, 0)
    for steerer in (Steerer.spread(32), Steerer.from_spec("32x0"), Steerer.perm(32)):
        before = a.clone(), b.clone()
        Harmonics(a, b, steerer, 4)
        assert torch.equal(a, before[0])
        assert torch.equal(b, before[1])


def test_harmonics_refuse_a_learned_matrix() -> None:
    a, b = descriptions(12, 0)
    with pytest.raises(ValueError, match="fixed steerer"):
        Harmonics(a, b, learned("SO2"), None)


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
    similarity = Continuous(Harmonics(a, b, steerer, None))
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
    similarity = Continuous(Harmonics(a, b, steerer, None))
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
    similarity = Continuous(Harmonics(a, b, steerer, None))
    i, j = every_pair(similarity)
    reached = (steerer.steer(unit(a)[i], similarity.rotations(i, j)) * unit(b)[j]).sum(dim=1)
    torch.testing.assert_close(reached, similarity.pairs(i, j), atol=1e-10, rtol=0)


@given(angle=st.floats(-3.1, 3.1), seed=seeds)
def test_the_continuous_rotation_of_a_steered_description(angle: float, seed: int) -> None:
    steerer = Steerer.spread(28)
    a = randn(N, 28, seed=seed)
    similarity = Continuous(Harmonics(a, steerer.steer(a, angle), steerer, None))
    i = torch.arange(N)
    torch.testing.assert_close(similarity.pairs(i, i), torch.ones(N, dtype=torch.float64), atol=1e-9, rtol=0)
    assert float(wrapped(similarity.rotations(i, i) - angle).abs().max()) < 1e-6


def test_continuous_without_any_rotation_is_the_cosine() -> None:
    a, b = descriptions(5, 0)
    similarity = Continuous(Harmonics(a, b, Steerer.inv(5), None))
    torch.testing.assert_close(whole(similarity)[0], cosines(a, b))
    i, j = every_pair(similarity)
    torch.testing.assert_close(similarity.pairs(i, j), cosines(a, b).flatten())
    assert bool((similarity.rotations(i, j) == 0).all())


# Precision ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_computed_in_single(given_dtype: torch.dtype, kept: torch.dtype) -> None:
    d = randn(4, 6, dtype=given_dtype)
    assert as_float(d).dtype == kept
    assert torch.equal(as_float(d).double(), d.double())
    assert normalised(d).dtype == kept
    torch.testing.assert_close(normalised(d).double(), unit(d), atol=1e-6, rtol=0)


def test_a_description_of_zeros_stays_zero() -> None:
    d = torch.zeros(2, 16)
    assert bool((normalised(d) == 0).all())
    assert bool((Harmonics(d, d, Steerer.spread(16), 4).rows == 0).all())
