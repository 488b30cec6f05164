"""Tiles of scores against dense float64 matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import randn, random_basis, seeds
from matching.reference import (
    COS_ATOL,
    M,
    N,
    cosines,
    descriptions,
    every_pair,
    rotations_of,
    steered_cosines,
    unit,
    whole,
)
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import Cosine, Similarity, Steered, as_float, normalised
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")


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
    matrix = learned("SO2", dtype=dtype)
    return {
        "cosine": Cosine(a, b),
        "steered": Steered(a, b, matrix, rotations_of(5), maximum=False),
        "steered-maximum": Steered(a, b, matrix, rotations_of(5), maximum=True),
        "rotated-even": Rotated(a, b, mixed, rotations_of(8), maximum=False),
        "rotated-odd": Rotated(a, b, mixed, rotations_of(5), maximum=False),
        "rotated-even-maximum": Rotated(a, b, mixed, rotations_of(8), maximum=True),
        "rotated-odd-maximum": Rotated(a, b, mixed, rotations_of(5), maximum=True),
        "rotated-alternative": Rotated(a, b, mixed, rotations_of(8), maximum=False).alternative(3),
        "steered-alternative": Steered(a, b, matrix, rotations_of(5), maximum=False).alternative(3),
        "continuous": Continuous(a, b, mixed),
        "continuous-single": Continuous(a, b, single),
    }


KINDS = list(kinds())


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
    found = whole(Cosine(a, b))[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), cosines(a, b), atol=COS_ATOL[dtype], rtol=0)


@pytest.mark.parametrize("group", ["C3", "C4", "C8", "SO2"])
@pytest.mark.parametrize("maximum", [False, True])
def test_learned_matrices_are_normalised_after_steering(group: str, maximum: bool) -> None:
    steerer, order = learned(group), Group.parse(group).order or 8
    a, b = descriptions(12, 5)
    similarity = Steered(a, b, steerer, rotations_of(order), maximum=maximum)
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
    tiles = whole(Steered(a, b, steerer, rotations_of(4), maximum=False))
    assert bool((tiles[1:] == 0).all())
    assert bool((tiles[0] != 0).any())


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
    assert bool((Rotated(d, d, Steerer.spread(16), rotations_of(4), maximum=True).rows == 0).all())
