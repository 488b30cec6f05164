"""Steered similarities from single frequencies, against dense float64 matrices."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import permutations_of, representations, representations_of, seeds
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
from steerers.matching.harmonics import Rotated, common_order, in_opposites
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")


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


@given(case=steerers_with_order(), seed=seeds)
def test_rotated_is_one_product_a_rotation(case: tuple[Steerer, int], seed: int, dtype: torch.dtype) -> None:
    steerer, order = case
    a, b = descriptions(steerer.dim, seed, dtype)
    expected, every = steered_cosines(a, b, steerer, order), Rotated(a, b, steerer, rotations_of(order), maximum=False)
    assert every.alternatives == order
    torch.testing.assert_close(whole(every).double(), expected, atol=COS_ATOL[dtype], rtol=0)
    largest = Rotated(a, b, steerer, rotations_of(order), maximum=True)
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
    harmonics = Continuous(a, b, steerer)
    out = harmonics.rows.new_empty(harmonics.num_components, N, M)
    components = harmonics.components(harmonics.rows, slice(0, M), out)  # (components, N, M)
    assert len(components) == harmonics.num_components
    basis = harmonics.basis(torch.tensor([angle], dtype=torch.float64))[0]
    found = torch.einsum("k,knm->nm", basis, components)
    torch.testing.assert_close(found, cosines(steerer.steer(unit(a), angle), b), atol=1e-12, rtol=0)


@pytest.mark.parametrize("derivative", [1, 2])
def test_the_basis_has_derivatives(derivative: int) -> None:
    a, b = descriptions(12, 0)
    harmonics = Continuous(a, b, Steerer.from_spec("2x0 + 1x1 + 2x-2 + 2x3"))
    angles, step = torch.linspace(-3, 3, 11, dtype=torch.float64), 1e-5
    below, above = (harmonics.basis(angles + s * step, derivative - 1) for s in (-1, 1))
    torch.testing.assert_close(harmonics.basis(angles, derivative), (above - below) / (2 * step), atol=1e-6, rtol=0)


@given(
    representation=representations_of(Group(None)),
    angles=st.lists(st.floats(0, 6.28), min_size=1, max_size=6),
    seed=seeds,
)
@pytest.mark.parametrize("opposites", [False, True])
def test_rotated_by_any_angles(
    opposites: bool, representation: Representation, angles: list[float], seed: int, dtype: torch.dtype
) -> None:
    steerer = Steerer.from_representation(representation)
    tried = (*angles, *(angle + math.pi for angle in angles)) if opposites else tuple(angles)
    a, b = descriptions(steerer.dim, seed, dtype)
    expected, every = steered_cosines(a, b, steerer, tried), Rotated(a, b, steerer, tried, maximum=False)
    assert len(every.tried) == len(angles) or not opposites
    torch.testing.assert_close(whole(every).double(), expected, atol=COS_ATOL[dtype], rtol=0)
    largest = Rotated(a, b, steerer, tried, maximum=True)
    torch.testing.assert_close(whole(largest)[0].double(), expected.amax(dim=0), atol=COS_ATOL[dtype], rtol=0)
    i, j = every_pair(largest)
    torch.testing.assert_close(largest.pairs(i, j), expected.amax(dim=0).flatten(), atol=COS_ATOL[dtype], rtol=0)


def test_the_least_group_that_has_some_rotations() -> None:
    for order in (2, 3, 4, 8, 16, 45, 360):
        assert common_order(rotations_of(order)) == order
        assert in_opposites(rotations_of(order)) == (order % 2 == 0)
    assert common_order((0.0,)) is None
    assert common_order((0.0, math.pi / 2, math.pi)) == 4
    assert common_order((math.radians(30), math.radians(20))) == 36
    assert common_order((1.0,)) is None
    assert not in_opposites((0.0, math.pi, math.pi / 2, 3 * math.pi / 2))
    assert in_opposites((0.5, 0.1, 0.5 + math.pi, 0.1 + math.pi))


def test_orders_merge_frequencies() -> None:
    a, b = descriptions(256, 0)
    spread = Steerer.spread(256)
    assert Rotated(a, b, spread, (0.0, math.pi / 2, math.pi), maximum=True).num_components == 4
    assert Rotated(a, b, spread, (0.0, 1.0), maximum=True).num_components == 13
    assert Continuous(a, b, spread).num_components == 13
    assert Rotated(a, b, spread, rotations_of(4), maximum=True).num_components == 4
    assert Rotated(a, b, spread, rotations_of(64), maximum=True).num_components == 13


def test_harmonics_leave_their_arguments_alone() -> None:
    a, b = descriptions(32, 0)
    for steerer in (Steerer.spread(32), Steerer.from_spec("32x0"), Steerer.perm(32)):
        before = a.clone(), b.clone()
        whole(Rotated(a, b, steerer, rotations_of(4), maximum=True))
        assert torch.equal(a, before[0])
        assert torch.equal(b, before[1])


def test_harmonics_refuse_a_learned_matrix() -> None:
    a, b = descriptions(12, 0)
    with pytest.raises(ValueError, match="fixed steerer"):
        Continuous(a, b, Steerer.from_matrix(torch.zeros(12, 12), "SO2"))
