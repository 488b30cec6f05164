"""Representations of SO(2) and C_n as values: specification, structure, matrices."""

from __future__ import annotations

import doctest
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import steerers.steering.representations
from helpers import (
    acting,
    angles_of,
    assert_near,
    assert_same_multiset,
    count_near,
    cyclic_groups,
    groups,
    representations,
    representations_of,
    textbook_matrix,
)
from steerers.steering.representations import MAX_DIM, MAX_FREQUENCY, MAX_ORDER, Group, Representation

pytestmark = pytest.mark.usefixtures("one_thread")

SO2 = Group(None)
SPREAD = "40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6"


def test_docstring_examples_run() -> None:
    result = doctest.testmod(steerers.steering.representations)
    assert result.attempted > 0
    assert result.failed == 0


# Groups ---------------------------------------------------------------------------------------------------------------


@given(group=groups(max_order=100))
def test_group_names_round_trip(group: Group) -> None:
    assert Group.parse(str(group)) == group
    assert Group.parse(group) is group
    assert group.continuous == (str(group) == "SO2")


@pytest.mark.parametrize(
    ("name", "order"), [("SO2", None), ("so(2)", None), (" SO2 ", None), ("C4", 4), ("c_8", 8), ("C12", 12)]
)
def test_spellings_of_groups(name: str, order: int | None) -> None:
    assert Group.parse(name) == Group(order)


@pytest.mark.parametrize("name", ["", "S02", "SO3", "C", "C-4", "4", "D4", "C4.0"])
def test_unknown_groups_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown group '{name}'"):
        Group.parse(name)


@pytest.mark.parametrize("order", [-4, 0, 1])
def test_orders_below_two_are_refused(order: int) -> None:
    with pytest.raises(ValueError, match=f"at least 2, got {order}"):
        Group(order)


def test_sizes_are_refused_before_memory_is_asked_for() -> None:
    """What follows from the largest of each is some hundred MB at most; what follows from these does not fit."""
    assert len(Group(MAX_ORDER).angles()) == MAX_ORDER
    for name in (f"C{MAX_ORDER + 1}", "C1000000000", f"C1{'0' * 4000}"):
        with pytest.raises(ValueError, match=f"order of a cyclic group must be at most {MAX_ORDER}, got {name[1:]}"):
            Group.parse(name)
    assert Representation.parse(f"{MAX_DIM}x0", SO2).dim == MAX_DIM
    for spec in ("300000000x1", f"{MAX_DIM // 2}x1 + 1x0", f"1{'0' * 4000}x0"):
        with pytest.raises(ValueError, match=f"dim must be at most {MAX_DIM}, got "):
            Representation.parse(spec, SO2)
    assert Representation.parse(f"1x{MAX_FREQUENCY} + 1x-{MAX_FREQUENCY}", SO2).dim == 4
    for frequency in (MAX_FREQUENCY + 1, -(10**30)):
        with pytest.raises(ValueError, match=f"frequency in '1x{frequency}' must be -512 to 512 for SO2"):
            Representation.parse(f"1x{frequency}", SO2)


@pytest.mark.parametrize("name", [4, None, 4.0])
def test_a_group_that_is_no_string_is_a_type_error(name: Any) -> None:
    with pytest.raises(TypeError, match=f"group must be a string.*got {type(name).__name__}"):
        Group.parse(name)


@given(group=cyclic_groups(max_order=64), rotations=st.lists(st.integers(-1000, 1000), min_size=1, max_size=5))
def test_steps_count_the_rotations_of_a_cyclic_group(group: Group, rotations: list[int]) -> None:
    assert group.order is not None
    angle = torch.tensor(rotations, dtype=torch.float64) * (2 * math.pi / group.order)
    steps = group.steps(angle)
    assert steps.dtype == torch.long
    assert steps.tolist() == [k % group.order for k in rotations]
    assert group.steps(angle.float()).tolist() == steps.tolist()
    assert group.steps(group.angles()).tolist() == list(range(group.order))


@given(group=cyclic_groups(), k=st.integers(-20, 20), off=st.floats(0.01, 0.99))
def test_steps_refuse_rotations_between(group: Group, k: int, off: float) -> None:
    assert group.order is not None
    angle = (k + off) * 2 * math.pi / group.order
    with pytest.raises(
        ValueError, match=f"{group} rotates by multiples of {360 / group.order:g} degrees only"
    ) as caught:
        group.steps(torch.tensor([0.0, angle], dtype=torch.float64))
    assert f"got {math.degrees(angle):g} degrees" in str(caught.value)


@pytest.mark.parametrize("angle", [math.nan, math.inf, -math.inf])
def test_steps_refuse_angles_that_are_no_numbers(angle: float) -> None:
    with pytest.raises(ValueError, match=r"nan|inf|finite"):
        Group(4).steps(torch.tensor([0.0, angle], dtype=torch.float64))


@given(group=groups(), data=st.data())
def test_rotations_are_brought_to_one_turn(group: Group, data: Any) -> None:
    angle, turns = data.draw(angles_of(group)), data.draw(st.integers(-3, 3))
    (kept,) = group.rotations([angle + 2 * math.pi * turns])
    assert 0 <= kept < 2 * math.pi
    assert abs(math.remainder(kept - angle, 2 * math.pi)) < 1e-8
    assert group.rotations(torch.tensor([kept], dtype=torch.float64)) == (kept,)
    with pytest.raises(ValueError, match="degrees twice"):
        group.rotations([angle, angle + 2 * math.pi * turns])


@pytest.mark.parametrize(
    ("angles", "message"),
    [([], "holds none"), ([0.0, math.inf], "must be finite"), (["0"], "must be numbers"), ("90", "must be numbers")],
)
def test_rotations_that_are_none(angles: Any, message: str) -> None:
    for group in (SO2, Group(4)):
        with pytest.raises(ValueError, match=f"angles {message}"):
            group.rotations(angles)


def test_so2_has_no_steps() -> None:
    with pytest.raises(ValueError, match="discretise it to C_n first"):
        SO2.steps(torch.tensor(0.0))
    with pytest.raises(ValueError, match="discretise it to C_n first"):
        SO2.angles()


# Specification --------------------------------------------------------------------------------------------------------


@given(representation=representations())
def test_specifications_round_trip(representation: Representation) -> None:
    spec = str(representation)
    again = Representation.parse(spec, representation.group, dim=representation.dim)
    assert again == representation
    assert hash(again) == hash(representation)
    assert str(again) == spec
    assert Representation.parse(spec, str(representation.group)) == representation


@pytest.mark.parametrize("spec", ["40x0+18x1", " 40x0 +  18x1 ", "40 x 0 + 18 x 1", "40x 0+18 x1"])
def test_spaces_do_not_matter(spec: str) -> None:
    assert str(Representation.parse(spec, "SO2")) == "40x0 + 18x1"


@pytest.mark.parametrize(
    ("spec", "group", "dim"),
    [
        (SPREAD, "SO2", 256),
        ("128x1", "SO2", 256),
        ("256x0", "SO2", 256),
        ("64x0 + 64x1 + 64x2", "C4", 256),
        ("3x0 + 2x-5", "SO2", 7),
        ("5x1", "C2", 5),
        ("1x0 + 1x1 + 1x2", "C3", 5),
        ("1x0 + 1x1 + 1x2 + 1x3", "C6", 6),
    ],
)
def test_dimensions_written_out(spec: str, group: str, dim: int) -> None:
    assert Representation.parse(spec, group).dim == dim


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("", ""),
        ("40x0 +", ""),
        ("40x0 + + 2x1", ""),
        ("40x0 + 18y1", "18y1"),
        ("40x0 + 18", "18"),
        ("-4x1", "-4x1"),
        ("2x1.5 + 1x0", "2x1.5"),
        ("2*1", "2*1"),
        ("1x0, 2x1", "1x0, 2x1"),
        ("40x0 + x1", "x1"),
        ("40x0 - 18x1", "40x0 - 18x1"),
    ],
)
def test_unreadable_terms_are_named(spec: str, part: str) -> None:
    with pytest.raises(ValueError, match="cannot read") as caught:
        Representation.parse(spec, "SO2")
    assert f"cannot read {part!r} in {spec!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "group", "message"),
    [
        ("4x0 + 0x1", "SO2", "multiplicity in '0x1' must be at least 1"),
        ("4x0 + 2x4", "C4", "frequency in '2x4' must be 0 to 3 for C4"),
        ("4x0 + 2x-1", "C4", "frequency in '2x-1' must be 0 to 3 for C4"),
        ("1x7", "C7", "frequency in '1x7' must be 0 to 6 for C7"),
    ],
)
def test_terms_out_of_range_are_named(spec: str, group: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Representation.parse(spec, group)


def test_a_dimension_that_does_not_add_up_is_explained() -> None:
    with pytest.raises(ValueError, match=r"has dimension 76 \(40 for 40x0 \+ 36 for 18x1\), not 256"):
        Representation.parse("40x0 + 18x1", "SO2", dim=256)


@pytest.mark.parametrize("spec", [None, 256, ["40x0"]])
def test_a_specification_that_is_no_string_is_a_type_error(spec: Any) -> None:
    with pytest.raises(TypeError, match=f"spec must be a string.*got {type(spec).__name__}"):
        Representation.parse(spec, "SO2")


def test_a_representation_needs_a_term() -> None:
    with pytest.raises(ValueError, match="at least one term"):
        Representation(SO2, ())


# Structure ------------------------------------------------------------------------------------------------------------


@given(representation=representations())
def test_everything_has_the_dimension(representation: Representation) -> None:
    dim = representation.dim
    assert sum(size for _, size in representation.blocks()) == dim
    assert [len(part) for part in representation.coordinates()] == [dim, dim, dim]
    assert representation.generator().shape == (dim, dim)
    assert representation.matrix(0.0).shape == (dim, dim)
    assert representation.eigenvalues().shape == (dim,)
    cos, sin = representation.cos_sin(torch.zeros(2, 3))
    assert cos.shape == sin.shape == (2, 3, dim)


@given(representation=representations())
def test_canonical_form(representation: Representation) -> None:
    canonical = representation.canonical()
    frequencies = [frequency for _, frequency in canonical.terms]
    assert canonical.canonical() == canonical
    assert canonical.dim == representation.dim
    assert canonical.multiplicities() == representation.multiplicities() == {j: m for m, j in canonical.terms}
    assert all(first < second for first, second in pairwise(frequencies))
    assert frequencies[0] >= 0
    if representation.group.order is not None:
        assert 2 * frequencies[-1] <= representation.group.order
    assert representation.is_equivalent(canonical)
    assert canonical.is_equivalent(representation)


@given(representation=representations(), data=st.data())
def test_order_and_sense_of_rotating_do_not_matter_to_equivalence(representation: Representation, data: Any) -> None:
    order = representation.group.order
    mirrored = [(m, -j if order is None else -j % order) for m, j in representation.terms]
    shuffled = Representation(representation.group, tuple(data.draw(st.permutations(mirrored))))
    assert shuffled.is_equivalent(representation)


@given(data=st.data(), group=groups(max_order=6))
def test_equivalent_means_equal_characters(data: Any, group: Group) -> None:
    # A representation of a compact group is determined by its traces. Of SO(2), frequencies up to 6 are told apart by
    # their values at 13 equally spaced rotations, which C_13 has.
    first, second = (data.draw(representations_of(group, max_terms=2, max_multiplicity=2)) for _ in range(2))
    rotations = (Group(13) if group.continuous else group).angles().tolist()
    same = all(abs(first.matrix(t).trace() - second.matrix(t).trace()) < 1e-9 for t in rotations)
    assert first.is_equivalent(second) == same


def test_representations_of_different_groups_are_not_equivalent() -> None:
    assert not Representation.parse("2x1", "SO2").is_equivalent(Representation.parse("2x1", "C5"))


@given(data=st.data(), group=groups())
def test_direct_sum(data: Any, group: Group) -> None:
    first, second, third = (data.draw(representations_of(group)) for _ in range(3))
    total = first + second
    angle = data.draw(angles_of(group))
    assert str(total) == f"{first} + {second}"
    assert total.dim == first.dim + second.dim
    assert_near(total.matrix(angle), torch.block_diag(first.matrix(angle), second.matrix(angle)), 1e-12)
    assert_near(total.generator(), torch.block_diag(first.generator(), second.generator()), 1e-12)
    assert (first + second) + third == first + (second + third)
    assert total.is_equivalent(second + first)


def test_sums_over_different_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot add representations of SO2 and C4"):
        Representation.parse("1x0", "SO2") + Representation.parse("1x0", "C4")
    with pytest.raises(TypeError):
        Representation.parse("1x0", "SO2") + "1x0"  # type: ignore[operator]


# Restriction ----------------------------------------------------------------------------------------------------------


@given(representation=representations(), factor=st.integers(2, 12), data=st.data())
def test_restriction_has_the_same_matrices(representation: Representation, factor: int, data: Any) -> None:
    whole = representation.group.order
    order = factor if whole is None else data.draw(st.sampled_from([n for n in range(2, whole + 1) if whole % n == 0]))
    restricted = representation.restrict(order)
    assert restricted.group == Group(order)
    assert restricted.dim == representation.dim
    for angle in restricted.group.angles().tolist():
        assert_near(restricted.matrix(angle), representation.matrix(angle), 1e-12)
    assert_near(restricted.generator(), representation.matrix(2 * math.pi / order), 1e-12)


@given(representation=representations(), order=st.integers(2, 6), factor=st.integers(1, 4))
def test_restricting_twice_is_restricting_once(representation: Representation, order: int, factor: int) -> None:
    if representation.group.order is not None:
        whole = order * factor
        representation = Representation(Group(whole), tuple((m, j % whole) for m, j in representation.terms))
    assert representation.restrict(order * factor).restrict(order) == representation.restrict(order)


@pytest.mark.parametrize(("group", "order"), [("C4", 3), ("C4", 8), ("C9", 2), ("C5", 4)])
def test_restriction_to_no_subgroup_is_refused(group: str, order: int) -> None:
    with pytest.raises(ValueError, match=f"C{order} is not a subgroup of {group}"):
        Representation.parse("2x0", group).restrict(order)


def test_discretisations_of_the_papers_spread() -> None:
    spread = Representation.parse(SPREAD, "SO2")
    assert spread.restrict(8).canonical().multiplicities() == {0: 40, 1: 18, 2: 36, 3: 36, 4: 36}
    assert spread.restrict(4).canonical().multiplicities() == {0: 76, 1: 54, 2: 72}
    assert spread.restrict(2).canonical().multiplicities() == {0: 148, 1: 108}


# Matrices -------------------------------------------------------------------------------------------------------------


@given(drawn=acting())
def test_matrices_are_the_textbook_blocks(drawn: Any, dtype: torch.dtype, tolerance: float) -> None:
    representation, (angle,) = drawn
    matrix = representation.matrix(angle, dtype)
    assert matrix.dtype == dtype
    assert_near(matrix, textbook_matrix(representation, angle), tolerance)


@given(drawn=acting(count=2))
def test_homomorphism(drawn: Any, dtype: torch.dtype, tolerance: float) -> None:
    representation, (first, second) = drawn
    product = representation.matrix(first, dtype) @ representation.matrix(second, dtype)
    assert_near(product, representation.matrix(first + second, dtype), tolerance)


@given(drawn=acting())
def test_matrices_are_orthogonal(drawn: Any, dtype: torch.dtype, tolerance: float) -> None:
    representation, (angle,) = drawn
    matrix = representation.matrix(angle, dtype)
    assert_near(matrix @ matrix.mT, torch.eye(representation.dim), tolerance)
    assert_near(matrix.mT, representation.matrix(-angle, dtype), tolerance)


@given(representation=representations(), rotations=st.integers(-3, 3))
def test_full_turns_are_the_identity(
    representation: Representation, rotations: int, dtype: torch.dtype, tolerance: float
) -> None:
    assert_near(representation.matrix(2 * math.pi * rotations, dtype), torch.eye(representation.dim), tolerance)


@given(drawn=acting(of=st.just(SO2)))
def test_so2_is_generated_by_matrix_exp(drawn: Any, dtype: torch.dtype, tolerance: float) -> None:
    representation, (angle,) = drawn
    generator = representation.generator(dtype)
    assert generator.dtype == dtype
    assert torch.equal(generator, -generator.mT)
    assert_near(torch.linalg.matrix_exp(angle * generator), representation.matrix(angle, dtype), tolerance)
    assert_near(torch.linalg.matrix_exp(2 * math.pi * generator), torch.eye(representation.dim), tolerance)


@given(representation=representations(cyclic_groups()), k=st.integers(-15, 15))
def test_cyclic_groups_are_generated_by_matrix_power(
    representation: Representation, k: int, dtype: torch.dtype, tolerance: float
) -> None:
    order = representation.group.order
    assert order is not None
    generator = representation.generator(dtype)
    assert generator.dtype == dtype
    power = torch.linalg.matrix_power(generator, k % order)
    assert_near(power, representation.matrix(k * 2 * math.pi / order, dtype), tolerance)
    assert_near(torch.linalg.matrix_power(generator, order), torch.eye(representation.dim), tolerance)


def test_rotations_of_cyclic_groups_stay_exact_however_large() -> None:
    representation = Representation.parse("1x0 + 1x1 + 1x2 + 1x3", "C7")
    far = 2 * math.pi / 7 * (7 * 10**8 + 3)
    assert torch.equal(representation.matrix(far), representation.matrix(2 * math.pi / 7 * 3))


@given(representation=representations())
def test_eigenvalues_are_those_of_the_generator(representation: Representation) -> None:
    values = torch.linalg.eigvals(representation.generator())
    assert_same_multiset(values, representation.eigenvalues())


@given(representation=representations())
def test_multiplicities_count_eigenvalues(representation: Representation) -> None:
    values = torch.linalg.eigvals(representation.generator())
    order = representation.group.order
    for frequency, multiplicity in representation.multiplicities().items():
        phase = 0.0 if order is None else 2 * math.pi * frequency / order
        target = 1j * frequency if order is None else complex(math.cos(phase), math.sin(phase))
        assert count_near(values, target) == multiplicity
        assert count_near(values, target.conjugate()) == multiplicity


@given(drawn=acting(count=6))
def test_coordinate_form_agrees_with_matrices(drawn: Any) -> None:
    representation, angles = drawn
    frequency, partner, sign = representation.coordinates()
    assert frequency.dtype == partner.dtype == torch.long
    assert torch.equal(partner[partner], torch.arange(representation.dim))
    vector = torch.arange(1.0, representation.dim + 1, dtype=torch.float64)
    cos, sin = representation.cos_sin(torch.tensor(angles, dtype=torch.float64).view(2, 3))
    steered = cos * vector + sign * sin * vector[partner]  # (2, 3, D)
    expected = torch.stack([representation.matrix(angle) @ vector for angle in angles])
    assert_near(steered.view(6, -1), expected, 1e-10)
