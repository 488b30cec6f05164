"""Every strategy against its textbook form, what each refuses, batches, and the sense of the angles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, random_basis, random_orthogonal, seeds
from matching import reference
from matching.reference import assert_identical, assert_same, planted, rotations_of, wrapped
from steerers.matching.assignment import Options
from steerers.matching.strategies import NAMES, STRATEGIES, SoftmaxStrategy, Strategy, make_strategy
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

QUARTER = math.pi / 2


pytestmark = pytest.mark.usefixtures("one_thread")


def mixed_permutation() -> Steerer:
    """Cycles of lengths 4, 2 and 1 on shuffled coordinates, for C4."""
    lengths = [4] * 6 + [2] * 3 + [1] * 3
    shuffled, permutation = torch.randperm(33, generator=torch.Generator().manual_seed(0)), torch.empty(33).long()
    for cycle in shuffled.split(lengths):
        permutation[cycle] = cycle.roll(-1)
    return Steerer.from_permutation(permutation, "C4")


def learned(group: str, dtype: torch.dtype = torch.float64) -> Steerer:
    """A matrix far from orthogonal that represents the group nearly."""
    basis, generator = random_basis(24, seed=1), Representation.parse("8x0 + 8x1", group, 24).generator()
    noisy = basis @ generator @ torch.linalg.inv(basis) + 0.01 * randn(24, 24, seed=2)
    return Steerer.from_matrix(noisy.to(dtype), group, learnable=True)


STEERERS: dict[str, tuple[Callable[[], Steerer], list[int]]] = {
    "spread": (lambda: Steerer.spread(42), [2, 4, 5, 8, 16, 64]),
    "freq1": (lambda: Steerer.freq1(32), [3, 8]),
    "inv": (lambda: Steerer.inv(24), [8]),
    "signs": (lambda: Steerer.from_spec("5x0 + 4x3 + 3x-2 + 2x1 + 3x2 + 2x-1"), [4, 7, 8, 12]),
    "no-zero": (lambda: Steerer.from_spec("9x-5 + 7x2"), [8, 9]),
    "perm-C4": (lambda: Steerer.perm(32), [2, 4]),
    "perm-C8": (lambda: Steerer.perm(40, "C8"), [2, 4, 8]),
    "perm-C5": (lambda: Steerer.perm(30, "C5"), [5]),
    "cycles-C4": (mixed_permutation, [2, 4]),
    "blocks-C2": (lambda: Steerer.from_spec("12x0 + 16x1", "C2"), [2]),
    "blocks-C6": (lambda: Steerer.from_spec("4x0 + 3x1 + 3x5 + 2x2 + 2x4 + 5x3", "C6"), [2, 3, 6]),
    "blocks-C7": (lambda: Steerer.from_spec("2x0 + 4x1 + 3x6 + 3x2 + 2x4", "C7"), [7]),
    "learned-C4": (lambda: learned("C4"), [2, 4]),
    "learned-C3": (lambda: learned("C3"), [3]),
    "learned-SO2": (lambda: learned("SO2"), [5, 8]),
    "random-C4": (lambda: Steerer.random(24, "C4", generator=torch.Generator().manual_seed(0)), [4]),
}
"""Each with the orders that are tried."""
OVER_ROTATIONS = [(name, order) for name, (_, orders) in STEERERS.items() for order in orders]
FREQUENCY_1: dict[str, Callable[[], Steerer]] = {
    "SO2": lambda: Steerer.freq1(32),
    "C4": lambda: Steerer.freq1(32, "C4"),
    "C3": lambda: Steerer.freq1(32, "C3"),
    "C8": lambda: Steerer.freq1(32, "C8"),
    "signs": lambda: Steerer.from_spec("9x1 + 7x-1"),
    "C5-signs": lambda: Steerer.from_spec("6x4 + 10x1", "C5"),
}


def rotation_in(group: Group, index: int = 3) -> float:
    """Some rotation of the group: the ``index``-th of C_n, an odd angle of SO(2)."""
    return 2.2 if group.order is None else 2 * math.pi * (index % group.order) / group.order


def atol_of(dtype: torch.dtype) -> float:
    return 2e-5 if dtype != torch.float64 else 1e-6


def every_strategy() -> dict[str, Strategy]:
    """One of each that takes descriptions, on 32 dimensions."""
    spread, freq1 = Steerer.spread(32), Steerer.freq1(32)
    return {
        "dual-softmax": make_strategy("dual-softmax"),
        "max-matches": make_strategy("max-matches", spread),
        "max-similarity": make_strategy("max-similarity", spread),
        "max-similarity-continuous": make_strategy("max-similarity", spread, order=None),
        "max-similarity-learned": make_strategy("max-similarity", Steerer.spread(32, learnable=True)),
        "max-similarity-learned-continuous": make_strategy(
            "max-similarity", Steerer.spread(32, learnable=True), order=None
        ),
        "max-similarity-angles": make_strategy("max-similarity", spread, angles=[0.0, 1.0, QUARTER, math.pi]),
        "subset": make_strategy("subset", spread, subset_size=20),
        "procrustes": make_strategy("procrustes", freq1),
        "procrustes-learned": make_strategy("procrustes", Steerer.freq1(32, learnable=True)),
        "prototype-procrustes": make_strategy("prototype-procrustes", freq1),
        "invariant": make_strategy("invariant", spread),
        "mutual-nearest": make_strategy("mutual-nearest"),
    }


EVERY = list(every_strategy())


@pytest.fixture(params=EVERY)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return every_strategy()[request.param]


WITHOUT_STEERER = ("dual-softmax", "mutual-nearest")


def remade(name: str, **options: object) -> Strategy:
    """One of :func:`every_strategy` with other options."""
    strategy = every_strategy()[name]
    kept = {key: getattr(strategy, key) for key in ("order", "angles", "subset_size") if hasattr(strategy, key)}
    return make_strategy(strategy.name, getattr(strategy, "steerer", None), **kept, **options)


# Against the textbook -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(90, 61), (50, 110)])
def test_dual_softmax(n: int, m: int, dtype: torch.dtype) -> None:
    a, b, true = planted(Steerer.inv(24), 0.0, n, m, dtype=dtype)
    found = make_strategy("dual-softmax").match(a, b)
    assert_same(found, reference.dual_softmax(a, b), atol=atol_of(dtype))
    assert len(set(map(tuple, true.tolist())) & set(map(tuple, found.indices.tolist()))) > 0.9 * len(true)


@pytest.mark.parametrize(("name", "order"), OVER_ROTATIONS)
@pytest.mark.parametrize(("n", "m"), [(60, 41)])
def test_max_matches(name: str, order: int, n: int, m: int, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(steerer, 2 * math.pi * (order // 2) / order, n, m, dtype=dtype)
    found = make_strategy("max-matches", steerer, order=order, refine=False).match(a, b)
    assert_same(found, reference.max_matches(a, b, steerer, order), atol=atol_of(dtype), pair_atol=1e-9)


@pytest.mark.parametrize(("name", "order"), OVER_ROTATIONS)
@pytest.mark.parametrize(("n", "m"), [(60, 41), (35, 70)])
def test_max_similarity(name: str, order: int, n: int, m: int, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(
        steerer, rotation_in(steerer.group, steerer.group.order // order if steerer.group.order else 0), n, m
    )
    a, b = a.to(dtype), b.to(dtype)
    found = make_strategy("max-similarity", steerer, order=order, refine=False).match(a, b)
    assert_same(found, reference.max_similarity(a, b, steerer, order), atol=atol_of(dtype), angle_atol=1e-9)


@pytest.mark.parametrize("name", ["freq1", "inv"])
def test_continuous_max_similarity_of_one_frequency(name: str, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(steerer, 2.2, 60, 41, dtype=dtype)
    found = make_strategy("max-similarity", steerer, order=None).match(a, b)
    expected = reference.max_similarity(a, b, steerer, None)
    if name == "inv":  # every rotation is as good; none is taken
        expected = reference.Expected(expected.indices, expected.scores, 0.0, torch.zeros(len(expected)))
    assert_same(found, expected, atol=atol_of(dtype))


@pytest.mark.parametrize("name", ["spread", "signs", "no-zero"])
def test_continuous_max_similarity(name: str, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(steerer, 2.2, 60, 41, dtype=dtype)
    found = make_strategy("max-similarity", steerer, order=None).match(a, b)
    assert_same(found, reference.max_similarity(a, b, steerer, None), atol=1e-4)
    assert wrapped(found.angle - 2.2).abs() < 0.05


@pytest.mark.parametrize("name", list(FREQUENCY_1))
@pytest.mark.parametrize(("n", "m"), [(70, 45), (30, 80)])
def test_procrustes(name: str, n: int, m: int, dtype: torch.dtype) -> None:
    steerer = FREQUENCY_1[name]()
    angle = rotation_in(steerer.group, 1)
    a, b, _ = planted(steerer, angle, n, m, dtype=dtype)
    found = make_strategy("procrustes", steerer).match(a, b)
    assert_same(found, reference.procrustes(a, b, steerer), atol=atol_of(dtype))
    assert wrapped(found.angle - angle).abs() < 0.05


@pytest.mark.parametrize("name", list(FREQUENCY_1))
@pytest.mark.parametrize("given_prototype", [False, True])
def test_prototype_procrustes(name: str, given_prototype: bool, dtype: torch.dtype) -> None:
    steerer = FREQUENCY_1[name]()
    angle = rotation_in(steerer.group, 1)
    a, b, _ = planted(steerer, angle, 70, 45, noise=0.15, dtype=dtype)
    prototype = randn(32, seed=9) if given_prototype else None
    found = make_strategy("prototype-procrustes", steerer, prototype=prototype).match(a, b)
    # The rotation to the prototype is ill-conditioned where a description has nothing in common with it.
    expected = reference.prototype_procrustes(a, b, steerer, prototype)
    assert_same(found, expected, atol=5e-5 if dtype == torch.float32 else 1e-6, angle_atol=1e-3)
    assert wrapped(found.angle - angle).abs() < 0.2


def disguised(group: str, *, orthogonal: bool, factor: float = 1.0, noise: float = 0.0) -> tuple[Steerer, Tensor]:
    """A matrix of frequency 1 in another basis, and the quarter turn in that basis."""
    basis = random_orthogonal(32, seed=3) if orthogonal else random_basis(32, seed=3)
    quarter = basis @ Steerer.freq1(32).generator() @ torch.linalg.inv(basis)
    step = 2 * math.pi / (Group.parse(group).order or 4)
    identity, error = torch.eye(32, dtype=torch.float64), noise * randn(32, 32, seed=4)
    if group == "SO2":
        return Steerer.from_matrix(quarter + math.log(factor) * identity + error, group, learnable=True), quarter
    element = factor * (math.cos(step) * identity + math.sin(step) * quarter)
    return Steerer.from_matrix(element + error, group), quarter


@pytest.mark.parametrize("group", ["SO2", "C4", "C3", "C8"])
@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_procrustes_of_a_matrix(group: str, orthogonal: bool, factor: float, dtype: torch.dtype) -> None:
    steerer, quarter = disguised(group, orthogonal=orthogonal, factor=factor)
    angle = rotation_in(steerer.group, 1)
    a, b, _ = planted(steerer, angle, 70, 45, noise=0.15, dtype=dtype)
    found = make_strategy("procrustes", steerer).match(a, b)
    assert_same(found, reference.procrustes_of(a, b, quarter), atol=2 * atol_of(dtype))
    assert wrapped(found.angle - angle).abs() < 0.05
    prototype = randn(32, seed=9)
    found = make_strategy("prototype-procrustes", steerer, prototype=prototype).match(a, b)
    expected = reference.prototype_procrustes_of(a, b, quarter, prototype)
    assert_same(found, expected, atol=1e-4 if dtype == torch.float32 else 1e-6, angle_atol=1e-3)
    by_default = make_strategy("prototype-procrustes", steerer).match(a, b)
    assert wrapped(by_default.angle - angle).abs() < 0.2


@pytest.mark.parametrize("group", ["SO2", "C4"])
def test_procrustes_of_a_matrix_that_is_nearly_of_frequency_1(group: str) -> None:
    steerer, quarter = disguised(group, orthogonal=True, noise=1e-4)
    assert 1e-4 < steerer.nearest_representation()[1] < 1e-2
    a, b, _ = planted(steerer, rotation_in(steerer.group, 1), 70, 45, noise=0.15, dtype=torch.float64)
    found = make_strategy("procrustes", steerer).match(a, b)
    assert_same(found, reference.procrustes_of(a, b, quarter), atol=2e-2, angle_atol=2e-2)


@pytest.mark.parametrize("name", ["procrustes", "prototype-procrustes"])
@pytest.mark.parametrize(
    "spec", [("16x1", "SO2"), ("9x1 + 7x-1", "SO2"), ("6x4 + 10x1", "C5"), ("16x3", "C4")], ids=str
)
def test_procrustes_of_a_matrix_is_that_of_its_blocks(name: str, spec: tuple[str, str]) -> None:
    blocks = Steerer.from_spec(*spec)
    matrix = Steerer.from_matrix(blocks.generator(), spec[1])
    a, b, _ = planted(blocks, rotation_in(blocks.group, 1), 50, 40, dtype=torch.float64)
    options = {"prototype": randn(32, seed=9)} if name.startswith("prototype") else {}
    found, expected = (make_strategy(name, steerer, **options).match(a, b) for steerer in (matrix, blocks))
    assert_same(found, expected, atol=1e-6, angle_atol=1e-6, pair_atol=1e-6)


@pytest.mark.parametrize("name", [name for name in STEERERS if name not in ("freq1", "no-zero")])
def test_invariant(name: str, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(steerer, rotation_in(steerer.group), 60, 41, dtype=dtype)
    found = make_strategy("invariant", steerer).match(a, b)
    assert_same(found, reference.invariant(a, b, steerer), atol=atol_of(dtype))


@pytest.mark.parametrize(("name", "order"), [("spread", 8), ("perm-C4", 4), ("learned-C4", 4), ("blocks-C7", 7)])
def test_subset(name: str, order: int, dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    rotation = 2 * math.pi * 2 / order
    a, b, _ = planted(steerer, rotation, 90, 70, fraction=0.8, dtype=dtype)
    options = {"threshold": 0.4}  # few keypoints match by chance above it
    coarse = {"order": order, "refine": False, **options}
    found = make_strategy("subset", steerer, subset_size=55, seed=5, **coarse).match(a, b)
    generator = torch.Generator().manual_seed(5)
    index0, index1 = torch.randperm(90, generator=generator)[:55], torch.randperm(70, generator=generator)[:55]
    expected = reference.subset(a, b, steerer, order, index0=index0, index1=index1, **options)
    assert_same(found, expected, atol=atol_of(dtype), pair_atol=1e-9)
    assert found.angle == pytest.approx(rotation)
    everything = make_strategy("max-matches", steerer, **coarse).match(a, b)
    assert_same(found, everything, atol=2 * atol_of(dtype), pair_atol=1e-9)


# Rotations that are given ---------------------------------------------------------------------------------------------

UNEVEN = (0.3, 1.0, 2.2, 4.0, 5.9)
LISTS: dict[str, list[tuple[float, ...]]] = {
    "spread": [UNEVEN, (2.2,), (0.5, 2.2, 0.5 + math.pi, 2.2 + math.pi), (4.0, 2.2, 0.0), rotations_of(6)],
    "signs": [UNEVEN, (2.2, 2.2 + math.pi)],
    "inv": [UNEVEN],
    "learned-SO2": [UNEVEN, (2.2, 0.0)],
    "perm-C4": [(QUARTER, 0.0), (2 * QUARTER,), (0.0, 3 * QUARTER, QUARTER)],
    "perm-C5": [(0.0,), tuple(2 * math.pi * k / 5 for k in (3, 1))],
    "cycles-C4": [(0.0, 2 * QUARTER)],
    "blocks-C6": [tuple(math.pi * k / 3 for k in (0, 2, 3, 5))],
    "learned-C4": [(QUARTER, 3 * QUARTER)],
    "learned-C3": [(0.0, 2 * math.pi / 3)],
}
"""Of each steerer some rotations, of which one is that of :func:`rotation_in`, or is not."""
GIVEN = [(name, angles) for name, lists in LISTS.items() for angles in lists]


@pytest.mark.parametrize(("name", "angles"), GIVEN, ids=str)
def test_given_angles(name: str, angles: tuple[float, ...], dtype: torch.dtype) -> None:
    steerer = STEERERS[name][0]()
    a, b, _ = planted(steerer, rotation_in(steerer.group), 60, 41, dtype=dtype)
    tried = {"angles": angles, "refine": False}
    found = make_strategy("max-matches", steerer, **tried).match(a, b)
    assert_same(found, reference.max_matches(a, b, steerer, angles), atol=atol_of(dtype), pair_atol=1e-9)
    found = make_strategy("max-similarity", steerer, **tried).match(a, b)
    expected = reference.max_similarity(a, b, steerer, angles)
    assert_same(found, expected, atol=atol_of(dtype), angle_atol=math.inf if name == "inv" else 1e-9)
    found = make_strategy("subset", steerer, subset_size=30, seed=5, **tried).match(a, b)
    generator = torch.Generator().manual_seed(5)
    index0, index1 = torch.randperm(60, generator=generator)[:30], torch.randperm(41, generator=generator)[:30]
    expected = reference.subset(a, b, steerer, angles, index0=index0, index1=index1)
    assert_same(found, expected, atol=atol_of(dtype), pair_atol=1e-9)


@pytest.mark.parametrize("name", ["max-matches", "max-similarity", "subset"])
@pytest.mark.parametrize("key", ["spread", "learned-SO2", "perm-C4"])
def test_an_order_is_a_list_of_angles(name: str, key: str) -> None:
    steerer = STEERERS[key][0]()
    a, b, _ = planted(steerer, QUARTER, 60, 41)
    by_order, by_angles = make_strategy(name, steerer, order=4), make_strategy(name, steerer, angles=rotations_of(4))
    assert by_order.rotations == by_angles.rotations
    assert_identical(by_angles.match(a, b), by_order.match(a, b))


@pytest.mark.parametrize("key", ["spread", "learned-SO2", "learned-C4", "perm-C4"])
def test_angles_count_modulo_a_full_turn(key: str) -> None:
    """Of a learned steerer, which need not repeat itself, a rotation is that of [0, 2 pi)."""
    steerer = STEERERS[key][0]()
    assert make_strategy(
        "max-matches", steerer, angles=[-QUARTER, 2 * math.pi, 9 * QUARTER]
    ).rotations == pytest.approx((3 * QUARTER, 0.0, QUARTER), abs=1e-12)
    a, b, _ = planted(steerer, 3 * QUARTER, 60, 41)
    found = make_strategy("max-matches", steerer, angles=[-QUARTER], refine=False).match(a, b)
    assert_same(found, reference.max_matches(a, b, steerer, [3 * QUARTER]), pair_atol=1e-9)


@pytest.mark.parametrize("name", ["max-matches", "max-similarity", "subset"])
@pytest.mark.parametrize(
    ("steerer", "options", "reason"),
    [
        (Steerer.spread(16), {"angles": []}, "angles holds none"),
        (Steerer.spread(16), {"angles": ()}, "angles holds none"),
        (Steerer.spread(16), {"angles": [0.0, math.nan]}, "angles must be finite, got .*nan"),
        (Steerer.spread(16), {"angles": [math.inf]}, "angles must be finite"),
        (Steerer.spread(16), {"angles": [0.0, QUARTER, 0.0]}, "angles holds 0 degrees twice"),
        (Steerer.spread(16), {"angles": [0.0, 2 * math.pi]}, "angles holds 0 degrees twice; they count modulo"),
        (Steerer.spread(16), {"angles": [-1e-12, 0.0]}, "angles holds 0 degrees twice"),
        (Steerer.spread(16), {"angles": [math.radians(-90), math.radians(270)]}, "angles holds 270 degrees twice"),
        (Steerer.spread(16), {"angles": ["up", "down"]}, r"angles must be numbers, got \['up'"),
        (Steerer.spread(16), {"angles": 1.0}, "angles must be numbers, got 1.0"),
        (Steerer.spread(16), {"angles": "90"}, "angles must be numbers, got '90'"),
        (Steerer.spread(16), {"angles": [0.0], "order": 4}, "give order or angles, not both"),
        (Steerer.spread(16), {"angles": [0.0], "order": None}, "give order or angles, not both"),
        (
            Steerer.perm(16),
            {"angles": [0.0, math.pi / 4]},
            "C4 rotates by multiples of 90 degrees only, got 45 degrees",
        ),
        (Steerer.perm(16), {"angles": [QUARTER, 5 * QUARTER]}, "angles holds 90 degrees twice"),
        (learned("C3"), {"angles": [QUARTER]}, "C3 rotates by multiples of 120 degrees only, got 90"),
    ],
)
def test_angles_that_cannot_be_tried(name: str, steerer: Steerer, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_strategy(name, steerer, **options)


# One keypoint in each image -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max-matches", "subset"])
@pytest.mark.parametrize("key", ["spread", "signs", "perm-C4", "perm-C5", "learned-SO2", "learned-C4", "random-C4"])
def test_of_one_keypoint_the_rotation_is_the_most_similar(name: str, key: str, dtype: torch.dtype) -> None:
    """Every rotation has one match of probability 1, up to rounding, which must not decide."""
    steerer = STEERERS[key][0]()
    order = steerer.group.order or 16
    strategy = make_strategy(name, steerer, order=order, refine=False)
    drawn = make_strategy("subset", steerer, order=order, subset_size=1, refine=False)
    for seed in range(15):
        a, b = (randn(1, steerer.dim, seed=2 * seed + k, dtype=dtype) for k in range(2))
        cosines = reference.steered_cosines(a, b, steerer, order).flatten()
        best = int(cosines.argmax())
        found = strategy.match(a, b)
        assert found.indices.tolist() == [[0, 0]]
        assert found.scores.tolist() == pytest.approx([1.0])
        assert found.angle == pytest.approx(rotations_of(order)[best])
        again = a.expand(3, -1), b.expand(2, -1)  # of which one of each is drawn
        assert drawn.match(*again).angle == pytest.approx(rotations_of(order)[best])
        batch = strategy.match_batch([a, a[:0]], [b, b])
        assert batch[0].angle == found.angle


def test_of_one_keypoint_and_equal_rotations_it_is_the_first() -> None:
    steerer = Steerer.from_spec("4x0 + 4x2")  # the half turn changes nothing
    for seed in range(20):
        a, b = (randn(1, 12, seed=2 * seed + k, dtype=torch.float32) for k in range(2))
        found = make_strategy("max-matches", steerer, order=16, refine=False).match(a, b)
        assert found.angle < math.pi


@given(
    frequencies=st.lists(st.integers(-7, 7), min_size=1, max_size=5, unique=True),
    order=st.integers(2, 12),
    inverse_temperature=st.sampled_from([5.0, 20.0, 50.0]),
    threshold=st.sampled_from([0.0, 0.01, 0.5]),
    seed=seeds,
)
def test_any_spec_and_options(
    frequencies: list[int], order: int, inverse_temperature: float, threshold: float, seed: int
) -> None:
    steerer = Steerer.from_spec(" + ".join(f"4x{f}" for f in frequencies))
    options = {"inverse_temperature": inverse_temperature, "threshold": threshold}
    a, b, _ = planted(steerer, 1.0, 25, 18, seed=seed, dtype=torch.float64)
    found = make_strategy("max-similarity", steerer, order=order, **options).match(a, b)
    expected = reference.max_similarity(a, b, steerer, order, **options)
    assert [found.indices[reference.by_first(found)].tolist()] == [expected.indices.tolist()]
    scores = found.scores[reference.by_first(found)].double()
    torch.testing.assert_close(scores, expected.scores, atol=1e-6, rtol=0)


# Inputs of every make -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_matched_as_the_same_numbers_in_single(strategy: Strategy, half: torch.dtype) -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 40, 30, dtype=half)
    assert_identical(strategy.match(a, b), strategy.match(a.float(), b.float()))


def test_strides_do_not_matter(strategy: Strategy, dtype: torch.dtype) -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 40, 30, dtype=dtype)
    expected = strategy.match(a, b)
    wide = torch.stack([a, torch.zeros_like(a)], dim=-1)[..., 0]  # every other number
    assert not wide.is_contiguous()
    transposed = b.mT.contiguous().mT
    assert not transposed.is_contiguous()
    assert_same(strategy.match(wide, transposed), expected, atol=atol_of(dtype))


def test_descriptions_of_different_precision_match_each_other() -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 40, 30)
    precisions = (torch.float16, torch.float32, torch.float64)
    for strategy, p, q in itertools.product(every_strategy().values(), precisions, precisions):
        first, second = a.half().to(p), b.half().to(q)
        assert_same(strategy.match(first, second), strategy.match(first.float(), second.float()), atol=2e-5)


def test_arguments_are_left_alone_and_gradients_do_not_disturb(strategy: Strategy) -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 40, 30)
    before = a.clone(), b.clone()
    expected = strategy.match(a, b)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    with torch.enable_grad():
        found = strategy.match(a.requires_grad_(), (b.requires_grad_() * 1.0))
    assert_identical(found, expected)
    assert not found.scores.requires_grad
    assert found.angles is None or not found.angles.requires_grad
    assert a.grad is None


def test_lengths_of_descriptions_do_not_matter(strategy: Strategy) -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 40, 30, dtype=torch.float64)
    lengths = torch.linspace(0.01, 100, 40, dtype=torch.float64)[:, None]
    assert_same(strategy.match(a * lengths, b * 7), strategy.match(a, b), atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_the_tile_does_not_change_the_result(name: str) -> None:
    a, b, _ = planted(Steerer.spread(32), QUARTER, 24, 19)
    expected = every_strategy()[name].match(a, b)
    assert len(expected) > 5
    for tile in (1, 7, 64, 1000):
        assert_same(remade(name, tile=tile).match(a, b), expected, atol=2e-5)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 4), (4, 0)])
def test_nothing_to_match(strategy: Strategy, n: int, m: int) -> None:
    found = strategy.match(torch.zeros(n, 32), torch.zeros(m, 32))
    assert len(found) == 0
    assert found.indices.shape == (0, 2)
    assert found.indices.dtype == torch.int64
    assert found.angle is None
    assert found.angles is None or found.angles.shape == (0,)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 9), (9, 1)])
def test_one_keypoint(strategy: Strategy, n: int, m: int) -> None:
    a, b = randn(n, 32, dtype=torch.float32), randn(m, 32, seed=1, dtype=torch.float32)
    found = strategy.match(a, b)
    assert len(found) == 1
    assert bool(((found.scores > 0) & (found.scores <= 1)).all())


def test_one_dimension() -> None:
    a, b = torch.tensor([[2.0], [-1.0]]), torch.tensor([[-0.5], [3.0]])
    for strategy in (make_strategy("dual-softmax"), make_strategy("invariant", Steerer.inv(1))):
        assert sorted(strategy.match(a, b).indices.tolist()) == [[0, 1], [1, 0]]
    minus = Steerer.from_spec("1x1", "C2")
    found = make_strategy("max-similarity", minus).match(torch.tensor([[1.0]]), torch.tensor([[-1.0]]))
    assert found.angles.abs().tolist() == pytest.approx([math.pi])


@pytest.mark.parametrize("inverse_temperature", [100.0, 500.0])
@pytest.mark.parametrize("name", [name for name in EVERY if name != "mutual-nearest"])
def test_a_large_inverse_temperature_stays_finite(name: str, inverse_temperature: float) -> None:
    a, b, true = planted(Steerer.spread(32), 0.0, 40, 30, noise=0.1)
    found = remade(name, inverse_temperature=inverse_temperature).match(a, b)
    assert bool(torch.isfinite(found.scores).all())
    for column in found.indices.unbind(dim=1):
        assert len(column.unique()) == len(column)
    if name == "dual-softmax":
        expected = reference.dual_softmax(a, b, inverse_temperature=inverse_temperature)
        assert sorted(found.indices.tolist()) == expected.indices.tolist()
        assert len(found) >= len(true)


# The sense of the angles ----------------------------------------------------------------------------------------------


@given(angle=st.floats(-3.1, 3.1), seed=seeds)
@pytest.mark.parametrize("name", ["max-similarity-continuous", "procrustes", "prototype-procrustes"])
def test_any_rotation_is_found(name: str, angle: float, seed: int, dtype: torch.dtype) -> None:
    strategy = every_strategy()[name]
    a = randn(20, 32, seed=seed, dtype=dtype)
    found = strategy.match(a, strategy.steerer.steer(a, angle))
    assert sorted(found.indices.tolist()) == [[i, i] for i in range(20)]
    atol = 1e-3 if dtype == torch.float32 else 1e-6
    assert float(wrapped(found.angles - angle).abs().max()) < atol
    assert float(wrapped(found.angle - angle).abs()) < atol


@pytest.mark.parametrize("name", ["max-matches", "max-similarity", "subset"])
@pytest.mark.parametrize("key", ["spread", "perm-C4", "perm-C5", "signs", "blocks-C7", "learned-C4"])
def test_rotations_of_the_order_are_found(name: str, key: str) -> None:
    steerer = STEERERS[key][0]()
    options = {"subset_size": 25} if name == "subset" else {}
    strategy = make_strategy(name, steerer, **options)
    a = randn(30, steerer.dim, dtype=torch.float64)
    for k in range(strategy.order):
        rotation = 2 * math.pi * k / strategy.order
        with torch.no_grad():
            found = strategy.match(a, steerer.steer(a, rotation))
        assert abs(float(wrapped(found.angle - rotation))) < 0.02
        assert sorted(found.indices.tolist()) == [[i, i] for i in range(30)]
        if found.angles is not None:
            assert float(wrapped(found.angles - rotation).abs().max()) < 1e-9


def test_which_strategies_have_angles() -> None:
    a, b, _ = planted(Steerer.freq1(32), QUARTER, 40, 30, noise=0.1)
    rotating, coarse = {"max-matches", "max-similarity", "subset"}, {"refine": False}
    for tried in (set(), rotating):
        with_rotation = {
            name: make_strategy(name, Steerer.freq1(32), **(coarse if name in tried else {})).match(a, b)
            for name in STRATEGIES if name != "invariant"
        }  # fmt: skip
        assert {name for name, found in with_rotation.items() if found.angle is not None} == {
            *rotating, "procrustes", "prototype-procrustes"
        }  # fmt: skip
        assert {name for name, found in with_rotation.items() if found.angles is not None} == {
            *(rotating - tried), "max-similarity", "procrustes", "prototype-procrustes"
        }  # fmt: skip
    invariant = make_strategy("invariant", Steerer.spread(32)).match(a, b)
    assert invariant.angle is None
    assert invariant.angles is None


@pytest.mark.parametrize("name", ["procrustes", "max-similarity-continuous"])
def test_wrong_matches_do_not_pull_the_rotation(name: str) -> None:
    strategy = every_strategy()[name]
    a, b, _ = planted(strategy.steerer, 2.8, 200, 200, noise=0.2, fraction=0.25)
    found = strategy.match(a, b)
    assert float(wrapped(found.angles - 2.8).abs().max()) > 1  # there are wrong ones
    assert abs(float(wrapped(found.angle - 2.8))) < 0.03


def test_default_options() -> None:
    for name in STRATEGIES:
        strategy = make_strategy(name, Steerer.freq1(8) if "procrustes" in name else Steerer.spread(16))
        assert strategy.name == name
        if isinstance(strategy, SoftmaxStrategy):
            assert strategy.options == Options() == Options(inverse_temperature=20.0, threshold=0.01)
    assert make_strategy("max-matches", Steerer.spread(16)).order == 8
    assert make_strategy("max-matches", Steerer.perm(16, "C4")).order == 4
    assert make_strategy("max-similarity", learned("C3")).order == 3
    assert make_strategy("subset", Steerer.spread(16)).subset_size == 1000
    assert make_strategy("mutual-nearest").threshold == -1
    given = make_strategy("subset", Steerer.spread(16), order=4, threshold=0.2, seed=3, tile=7)
    assert (given.order, given.seed, given.options) == (4, 3, Options(threshold=0.2, tile=7))


# Batches --------------------------------------------------------------------------------------------------------------

SIZES = [(40, 30), (1, 25), (33, 0), (20, 50)]


def batch_of_pairs() -> tuple[list[Tensor], list[Tensor]]:
    """Pairs with different rotations and different numbers of keypoints."""
    pairs = [planted(Steerer.spread(32), k * QUARTER, n, m, seed=k)[:2] for k, (n, m) in enumerate(SIZES)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def padded(batch: list[Tensor]) -> Tensor:
    """(B, N, D), filled up with what would spoil a result that looked at it."""
    size = max(len(d) for d in batch) + 3
    return torch.stack([torch.cat([d, torch.full((size - len(d), d.shape[1]), math.nan)]) for d in batch])


def test_a_batch_is_a_loop(strategy: Strategy) -> None:
    first, second = batch_of_pairs()
    alone = [strategy.match(a, b) for a, b in zip(first, second, strict=True)]
    as_list = strategy.match_batch(first, second)
    lengths0, lengths1 = ([len(d) for d in batch] for batch in (first, second))
    as_tensor = strategy.match_batch(padded(first), padded(second), lengths0, lengths1)
    half_way = strategy.match_batch(first, padded(second), lengths1=lengths1)
    for found in (as_list, as_tensor, half_way):
        assert len(found) == len(SIZES)
        for one, expected in zip(found, alone, strict=True):
            assert_identical(one, expected)


@pytest.mark.parametrize("name", ["max-matches", "max-similarity", "subset"])
def test_the_rotation_is_chosen_for_each_pair(name: str) -> None:
    steerer = Steerer.spread(32)
    pairs = [planted(steerer, k * QUARTER, 60, 50, seed=k, noise=0.1) for k in range(4)]
    strategy = make_strategy(name, steerer, refine=False)
    found = strategy.match_batch([a for a, _, _ in pairs], [b for _, b, _ in pairs])
    for k, one in enumerate(found):
        assert abs(float(wrapped(one.angle - k * QUARTER))) < 1e-6
        assert len(one) >= 30


def test_arrays_are_matched_as_tensors_are(strategy: Strategy) -> None:
    first, second = batch_of_pairs()
    arrays = [d.numpy() for d in first], [d.numpy() for d in second]
    expected = strategy.match_batch(first, second)
    for found in (list(map(strategy.match, *arrays)), strategy.match_batch(*arrays)):
        for one, other in zip(found, expected, strict=True):
            assert_identical(one, other)
    (one,) = strategy.match_batch(arrays[0][0][None], arrays[1][0][None])
    assert_identical(one, expected[0])


@pytest.mark.parametrize("wrong", ["ab", None, [[1.0, 2.0]], np.array(["a"])])
def test_what_are_no_descriptions_is_said(wrong: Any) -> None:
    strategy = make_strategy("dual-softmax")
    with pytest.raises(TypeError, match="descriptions0 must be a tensor or a NumPy array of numbers, got"):
        strategy.match(wrong, torch.zeros(2, 2))
    with pytest.raises(TypeError, match="descriptions1 must be a tensor or a NumPy array of numbers, got"):
        strategy.match(torch.zeros(2, 2), wrong)


def test_a_tensor_without_lengths_is_full() -> None:
    a, b = randn(3, 20, 8, dtype=torch.float32), randn(3, 15, 8, seed=1, dtype=torch.float32)
    strategy = make_strategy("dual-softmax")
    for one, first, second in zip(strategy.match_batch(a, b), a, b, strict=True):
        assert_identical(one, strategy.match(first, second))
    assert strategy.match_batch([], []) == []


def test_batches_that_do_not_fit_are_refused() -> None:
    strategy, a = make_strategy("dual-softmax"), torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match="as many first as second"):
        strategy.match_batch(a, a[:1])
    with pytest.raises(ValueError, match="lengths0"):
        strategy.match_batch(list(a), a, lengths0=[5, 5])
    with pytest.raises(ValueError, match="lengths1 must hold 2 numbers"):
        strategy.match_batch(a, a, lengths1=[5])
    with pytest.raises(ValueError, match="lengths0 must hold"):
        strategy.match_batch(a, a, lengths0=[5, 6])
    with pytest.raises(ValueError, match=r"\(B, N, D\)"):
        strategy.match_batch(a[0], a)


# Subset ---------------------------------------------------------------------------------------------------------------


def test_a_seed_repeats_itself_and_a_generator_goes_on() -> None:
    steerer = Steerer.spread(32)
    a, b, _ = planted(steerer, 0.5, 120, 100, noise=0.9)  # rotation and noise that leave the choice to the draw
    options = {"subset_size": 12, "order": 16}
    seeded = make_strategy("subset", steerer, seed=3, **options)
    assert_identical(seeded.match(a, b), seeded.match(a, b))
    assert_identical(seeded.match(a, b), make_strategy("subset", steerer, seed=3, **options).match(a, b))
    generator = torch.Generator().manual_seed(3)
    drawn = make_strategy("subset", steerer, seed=generator, **options)
    state = generator.get_state()
    assert_identical(drawn.match(a, b), seeded.match(a, b))
    assert not torch.equal(generator.get_state(), state)
    later = generator.get_state()
    drawn.match(a, b)
    assert not torch.equal(generator.get_state(), later)
    angles = {make_strategy("subset", steerer, seed=seed, **options).match(a, b).angle for seed in range(12)}
    assert len(angles) > 1


def test_the_global_generator_is_left_alone() -> None:
    a, b = randn(50, 16, dtype=torch.float32), randn(50, 16, seed=1, dtype=torch.float32)
    state = torch.get_rng_state()
    make_strategy("subset", Steerer.spread(16), subset_size=10).match(a, b)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("n", "m"), [(30, 25), (30, 100), (100, 25), (60, 60)])
def test_fewer_keypoints_than_the_subset(n: int, m: int) -> None:
    steerer = Steerer.spread(32)
    a, b, _ = planted(steerer, QUARTER, n, m, fraction=0.9)
    found = make_strategy("subset", steerer, subset_size=60, refine=False).match(a, b)
    assert_same(found, make_strategy("max-matches", steerer, refine=False).match(a, b), atol=2e-5, pair_atol=1e-9)


def test_where_nothing_matches_on_the_subsets_all_is_matched_unrotated() -> None:
    """One of 300 keypoints corresponds, too few to be drawn: the threshold keeps all others from matching."""
    steerer = Steerer.spread(32)
    strategy = make_strategy("subset", steerer, subset_size=20, threshold=0.9)
    a, b = torch.ones(300, 32), torch.ones(300, 32)
    common = randn(32, dtype=torch.float32)
    a[170], b[260] = common, common
    rotated = planted(steerer, QUARTER, 40, 35, noise=0.0)[:2]
    elsewhere = b.clone()
    elsewhere[260] = -common
    pairs = [(a, b), rotated, (a, elsewhere), (a[:0], b)]
    expected = [reference.dual_softmax(a, b, threshold=0.9), None, None, None]
    for found in (
        [strategy.match(*pair) for pair in pairs],
        strategy.match_batch([first for first, _ in pairs], [second for _, second in pairs]),
        strategy._match_all(pairs),  # together, as on a GPU
    ):
        assert_same(found[0], expected[0])
        assert found[0].indices.tolist() == [[170, 260]]
        assert (found[0].angle, found[0].angles) == (None, None)
        assert found[1].angle == pytest.approx(QUARTER, abs=0.02)
        assert [len(one) for one in found[2:]] == [0, 0]
        assert [one.angle for one in found[2:]] == [None, None]


def test_a_list_without_the_right_rotation_leaves_what_is_unrotated() -> None:
    steerer = Steerer.freq1(32)
    a = randn(30, 32)
    strategy = make_strategy("subset", steerer, angles=[math.pi], threshold=0.9)  # all are drawn
    assert len(make_strategy("max-matches", steerer, angles=[math.pi], threshold=0.9).match(a, a)) == 0
    found = strategy.match(a, a)
    assert found.indices.tolist() == [[k, k] for k in found.indices[:, 0].tolist()]
    assert len(found) == 30
    assert (found.angle, found.angles) == (None, None)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["procrustes", "prototype-procrustes"])
@pytest.mark.parametrize(
    ("steerer", "reason"),
    [
        (Steerer.spread(32), "needs every frequency to be 1"),
        (Steerer.inv(32), "needs every frequency to be 1"),
        (Steerer.perm(32), "needs every frequency to be 1"),
        (Steerer.from_spec("4x2"), "needs every frequency to be 1"),
        (Steerer.from_spec("4x1", "C2"), "needs every frequency to be 1"),
        (Steerer.from_spec("4x3", "C8"), "needs every frequency to be 1"),
        (Steerer.spread(32, learnable=True), r"nearest representation is 8x0 \+ 2x1 \+ .* of SO2, with a residual of"),
        (Steerer.from_matrix(2 * Steerer.freq1(32).generator(), "SO2"), "nearest representation is 16x2 of SO2"),
        (Steerer.from_matrix(Steerer.perm(32).generator(), "C4"), r"nearest representation is 8x0 \+ 8x1 \+ 8x2 of C4"),
        (Steerer.from_matrix(-torch.eye(4), "C2"), "nearest representation is 4x1 of C2"),
        (Steerer.from_matrix(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "SO2"), "cannot be diagonalised"),
        (
            Steerer.from_matrix(Steerer.freq1(32).generator() + 0.05 * randn(32, 32), "SO2"),
            "not one of frequency 1 within 0.01: the nearest representation is 16x1 of SO2, with a residual of 0.[12]",
        ),
    ],
)
def test_procrustes_is_for_frequency_1(name: str, steerer: Steerer, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_strategy(name, steerer)


@pytest.mark.parametrize("steerer", [Steerer.freq1(16), Steerer.freq1(16, "C4"), Steerer.from_spec("4x1", "C2")])
def test_invariant_needs_an_invariant_subspace(steerer: Steerer) -> None:
    with pytest.raises(ValueError, match="needs frequency 0"):
        make_strategy("invariant", steerer)
    with pytest.raises(ValueError, match="needs frequency 0"):
        make_strategy("invariant", Steerer.from_matrix(steerer.generator(), steerer.group))


@pytest.mark.parametrize("name", ["max-matches", "max-similarity", "subset"])
@pytest.mark.parametrize(
    ("steerer", "order", "reason"),
    [
        (Steerer.perm(16, "C4"), 8, "order 8 needs rotations that a C4 steerer does not have"),
        (Steerer.perm(16, "C4"), 3, "order 3 needs rotations"),
        (learned("C4"), 8, "order 8 needs rotations"),
        (Steerer.spread(16), 1, "at least 2"),
        (Steerer.spread(16), 0, "at least 2"),
        (Steerer.spread(16), -4, "at least 2"),
        (Steerer.spread(16), 4097, "at most 4096, got 4097"),
        (Steerer.spread(16), 10**9, "at most 4096"),
        (Steerer.spread(16), 2.5, "whole number"),
        (Steerer.spread(16), "8", "whole number"),
    ],
)
def test_orders_that_the_steerer_does_not_have(name: str, steerer: Steerer, order: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_strategy(name, steerer, order=order)


@pytest.mark.parametrize(
    ("name", "steerer", "reason"),
    [
        ("max-similarity", Steerer.perm(16), "the rotations of C4 only"),
        ("max-similarity", learned("C4"), "the rotations of C4 only"),
        (
            "max-similarity",
            Steerer.from_matrix(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "SO2"),
            r"\|G - V L V\^-1\| / \|G\| is 1, and the condition of V is .*; give an order instead, such as 8",
        ),
        ("max-similarity", Steerer.from_matrix(torch.eye(6).roll(1).triu(1), "SO2"), "give an order instead"),
        ("max-matches", Steerer.spread(16), "needs an order"),
        ("subset", Steerer.spread(16), "needs an order"),
    ],
)
def test_every_angle_is_for_max_similarity_of_so2(name: str, steerer: Steerer, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_strategy(name, steerer, order=None)


@pytest.mark.parametrize("name", ["nearest", "dual_softmax", "", "Max-Matches"])
def test_unknown_strategies_name_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown strategy .*dual-softmax, max-matches, .* tta"):
        make_strategy(name)


def test_what_users_may_type() -> None:
    assert list(STRATEGIES) == [
        "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant",
        "mutual-nearest",
    ]  # fmt: skip
    assert (*STRATEGIES, "tta") == NAMES


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in WITHOUT_STEERER])
def test_a_missing_steerer(name: str) -> None:
    with pytest.raises(ValueError, match=f"strategy '{name}' needs a steerer"):
        make_strategy(name)


@pytest.mark.parametrize(
    ("name", "option"),
    [("dual-softmax", "order"), ("procrustes", "order"), ("invariant", "order"), ("max-matches", "subset_size"),
     ("max-similarity", "seed"), ("procrustes", "prototype"), ("dual-softmax", "temperature"),
     ("procrustes", "refine"), ("max-matches", "options")],
)  # fmt: skip
def test_unknown_options(name: str, option: str) -> None:
    steerer = Steerer.spread(16) if name in ("invariant", "max-matches", "max-similarity") else Steerer.freq1(16)
    with pytest.raises(ValueError, match=f"strategy '{name}' has no option '{option}'"):
        make_strategy(name, steerer, **{option: 8})


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("prototype-procrustes", {"prototype": torch.ones(15)}, r"prototype must have shape \(16,\)"),
        ("prototype-procrustes", {"prototype": torch.ones(1, 16)}, r"prototype must have shape \(16,\)"),
        ("prototype-procrustes", {"prototype": torch.zeros(16)}, "not all zero"),
        ("prototype-procrustes", {"prototype": torch.full((16,), math.nan)}, "finite"),
        ("subset", {"subset_size": 0}, "subset_size must be at least 1"),
        ("tta", {}, "give the images"),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_strategy(name, Steerer.freq1(16), **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_descriptions_that_are_not_finite(bad: float, which: int) -> None:
    descriptions = [torch.ones(4, 32), torch.ones(3, 32)]
    descriptions[which][2, 7] = bad
    for name in EVERY:
        with pytest.raises(ValueError, match=f"descriptions{which} holds NaN or infinite"):
            every_strategy()[name].match(*descriptions)


def test_descriptions_of_wrong_shapes() -> None:
    good = torch.ones(4, 32)
    for name in EVERY:
        strategy = every_strategy()[name]
        with pytest.raises(ValueError, match=r"descriptions0 must have shape \(N, D\)"):
            strategy.match(good[0], good)
        with pytest.raises(ValueError, match=r"descriptions1 must have shape \(N, D\)"):
            strategy.match(good, good[None])
        with pytest.raises(ValueError, match="lengths 32 and 31 do not compare"):
            strategy.match(good, good[:, 1:])
        with pytest.raises(TypeError, match="descriptions0 must be floating-point"):
            strategy.match(good.int(), good)
        if name not in WITHOUT_STEERER:
            with pytest.raises(ValueError, match="length 30, but the steerer acts on length 32"):
                strategy.match(good[:, 2:], good[:, 2:])


@pytest.mark.parametrize("spec", [("10x1", "SO2"), ("4x1 + 6x4", "C5")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_aligning_leaves_descriptions_as_they_are(spec: tuple[str, str], dtype: torch.dtype) -> None:
    """Aligned are copies, also where blocks share the memory of what was given, or lie in another order."""
    steerer = Steerer.from_spec(*spec)
    first = randn(12, 20).to(dtype)
    wide = torch.zeros(24, 40, dtype=dtype)
    second = wide[::2, ::2]
    second.copy_(steerer.steer(first, 2 * math.pi / 5))
    before = first.clone(), second.clone()
    strategy = make_strategy("prototype-procrustes", steerer)
    found = strategy.match(first, second)
    assert torch.equal(first, before[0])
    assert torch.equal(second, before[1])
    assert sorted(found.indices.tolist()) == [[k, k] for k in range(12)]
    assert found.angle == pytest.approx(2 * math.pi / 5, abs=1e-3)
    assert torch.equal(strategy.match(first, second.contiguous()).indices, found.indices)


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "mutual-nearest"]
)
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    """To the bit, and with tiles of several kinds: column sums are added up in an order of their own."""
    steerer = Steerer.freq1(16) if name == "procrustes" else Steerer.spread(32)
    pairs = [planted(steerer, QUARTER, n, m)[:2] for n, m in ((300, 280), (70, 90))]
    options = {"tile": 37} if name != "subset" else {"tile": 37, "subset_size": 50}
    strategy = make_strategy(name, None if name in ("dual-softmax", "mutual-nearest") else steerer, **options)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(strategy.match_batch([a for a, _ in pairs], [b for _, b in pairs]))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert torch.equal(one.indices, other.indices)
            assert torch.equal(one.scores, other.scores)
            assert one.angle == other.angle


@pytest.mark.parametrize("strength", [0.0, -0.3])
@pytest.mark.parametrize("order", [8, None])
def test_where_rotations_change_nothing_the_first_is_reported(strength: float, order: int | None) -> None:
    """A generator without frequencies: rounding would pick any rotation."""
    steerer = Steerer.from_matrix(strength * torch.eye(6), "SO2")
    strategy = make_strategy("max-similarity", steerer, order=order)
    for seed in range(20):
        a, b = (torch.randn(1, 6, generator=torch.Generator().manual_seed(2 * seed + k)) for k in range(2))
        assert strategy.match(a, b).angle == pytest.approx(0.0, abs=1e-9)
