"""What ``steerers bench match`` measures: the made pairs, the textbook form, and the comparison of both."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from steerers.benchmarks.speed import matching
from steerers.benchmarks.speed.matching import (
    MEASURED,
    MatchingSettings,
    Peak,
    bench_matching,
    check_memory,
    dual_softmax,
    floor_of,
    match_by_textbook,
    peak_of,
)
from steerers.benchmarks.speed.subjects import plant_pair, steerer_for
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
NUM, DIM, ORDER = 200, 128, 8
PEAK = Peak(1e12, 1e12)
ROTATION = 2 * math.pi * 3 / ORDER  # of the made pairs here


def true_pairs(unit0: Tensor, unit1: Tensor, steerer: Steerer) -> set[tuple[int, int]]:
    """Pairs that are alike after the rotation; random ones never are."""
    return as_set((steerer.steer(unit0, ROTATION) @ unit1.mT > 0.6).nonzero())


def as_set(indices: Tensor) -> set[tuple[int, int]]:
    return {(i, j) for i, j in indices.tolist()}


# Pairs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steerer", [Steerer.spread(DIM), Steerer.freq1(DIM), Steerer.perm(DIM, "C8")], ids=["Spread", "Freq1", "Perm"]
)
def test_half_of_a_pair_corresponds(steerer: Steerer) -> None:
    unit0, unit1 = plant_pair(NUM, steerer, ROTATION, CPU)
    assert unit0.shape == unit1.shape == (NUM, DIM)
    assert unit0.dtype == unit1.dtype == torch.float32
    for unit in (unit0, unit1):
        torch.testing.assert_close(unit.norm(dim=1), torch.ones(NUM))
    pairs = true_pairs(unit0, unit1, steerer)
    assert len(pairs) == NUM // 2
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == NUM // 2
    cosines = (steerer.steer(unit0, ROTATION) @ unit1.mT)[tuple(zip(*pairs, strict=True))]
    assert float(cosines.mean()) == pytest.approx(0.78, abs=0.02)


def test_pairs_come_from_their_seed_alone() -> None:
    steerer, state = Steerer.spread(DIM), torch.random.get_rng_state()
    first, again, other = (plant_pair(20, steerer, ROTATION, CPU, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_small_pairs(num: int) -> None:
    unit0, unit1 = plant_pair(num, Steerer.spread(DIM), ROTATION, CPU)
    assert len(unit0) == len(unit1) == num
    assert bool(torch.isfinite(unit1).all())


# The textbook form ----------------------------------------------------------------------------------------------------


def test_dual_softmax_by_hand() -> None:
    similarity = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1], [0.0, 0.0, 0.7]])
    assert dual_softmax(similarity).tolist() == [[0, 0], [2, 2]]  # row 1 prefers a column that is taken
    assert dual_softmax(similarity, threshold=0.9).tolist() == [[2, 2]]


@pytest.mark.parametrize("strategy", ["max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes"])
def test_textbook_finds_what_was_rotated(strategy: str) -> None:
    _, steerer = steerer_for(strategy, DIM)
    unit0, unit1 = plant_pair(NUM, steerer, ROTATION, CPU)
    found = as_set(match_by_textbook(strategy, unit0, unit1, steerer, Group(ORDER).angles()))
    truth = true_pairs(unit0, unit1, steerer)
    assert len(found & truth) >= 0.85 * len(truth)  # noise in its rotation costs prototype-procrustes a tenth


def test_textbook_dual_softmax_does_not_rotate() -> None:
    steerer = Steerer.spread(DIM)
    upright, rotated = (plant_pair(NUM, steerer, angle, CPU) for angle in (0.0, ROTATION))
    truth = true_pairs(*rotated, steerer)
    found = [
        as_set(match_by_textbook("dual-softmax", *pair, steerer, Group(ORDER).angles())) for pair in (upright, rotated)
    ]
    assert len(found[0] & truth) > 0.95 * len(truth)  # the same seed: the same pairs
    assert len(found[1] & truth) < 0.5 * len(truth)


def test_textbook_invariant_sees_no_rotation() -> None:
    steerer = Steerer.spread(DIM)
    angles = Group(ORDER).angles()
    pair = plant_pair(NUM, steerer, ROTATION, CPU)
    rotated_back = steerer.steer(pair[0], ROTATION), pair[1]
    assert as_set(match_by_textbook("invariant", *pair, steerer, angles)) == as_set(
        match_by_textbook("invariant", *rotated_back, steerer, angles)
    )


def test_textbook_subset_agrees_with_the_whole_where_the_rotation_is_clear() -> None:
    steerer, angles = Steerer.spread(DIM), Group(ORDER).angles()
    pair = plant_pair(NUM, steerer, ROTATION, CPU)
    by_subset = match_by_textbook("subset", *pair, steerer, angles, subset=150)
    assert as_set(by_subset) == as_set(match_by_textbook("max-matches", *pair, steerer, angles))


def test_no_textbook_of_tta() -> None:
    unit = torch.eye(DIM)[:2]
    with pytest.raises(ValueError, match="no textbook form of 'tta'"):
        match_by_textbook("tta", unit, unit, Steerer.spread(DIM), Group(ORDER).angles())


# Rows -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [4, 7])
def test_the_same_matches_as_the_textbook(order: int) -> None:
    for name in MEASURED:
        row = bench_matching(name, MatchingSettings(NUM, 56, order, repeats=1), CPU)
        assert row.common == 1.0, row.strategy
        assert row.matches > 0
        assert row.textbook is not None
        assert row.textbook.extra_bytes >= 2 * 4 * NUM**2  # dense matrices


def test_different_matches_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """One match less of about a hundred is seen in the fraction."""
    whole = match_by_textbook
    monkeypatch.setattr(matching, "match_by_textbook", lambda *arguments: whole(*arguments)[1:])
    row = bench_matching("max-matches", MatchingSettings(NUM, DIM, ORDER, repeats=1), CPU)
    assert row.common == pytest.approx((row.matches - 1) / row.matches)


def test_the_papers_steerers() -> None:
    for name in MEASURED:
        label, steerer = steerer_for(name, 256)
        assert label == ("Freq1" if name in ("procrustes", "prototype-procrustes") else "Spread")
        assert str(steerer.representation) == {
            "Freq1": "128x1", "Spread": "40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6"
        }[label]  # fmt: skip


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_textbook_that_does_not_fit_is_left_out(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error("too much")

    monkeypatch.setattr(matching, "match_by_textbook", fail)
    row = bench_matching("dual-softmax", MatchingSettings(NUM, DIM, ORDER, repeats=1), CPU)
    assert row.textbook is row.common is row.speedup is None
    assert row.note == "the textbook form needs more memory than there is"
    assert row.matches > 0


def test_what_cannot_fit_is_not_tried() -> None:
    with pytest.raises(MemoryError, match="7 matrices of 10000000 x 10000000"):
        check_memory("procrustes", 10_000_000, CPU)
    check_memory("procrustes", 100, CPU)


def test_options_of_the_kernels_arrive() -> None:
    with pytest.raises(ValueError, match="precision must be one of default, exact, got 'half'"):
        bench_matching("invariant", MatchingSettings(NUM, DIM, ORDER, repeats=1, precision="half"), CPU)  # type: ignore[arg-type]


# Floors: the least time of matching, counted by hand ------------------------------------------------------------------


def test_known_devices() -> None:
    h200 = peak_of("NVIDIA H200", "default")
    assert h200 == Peak(989e12, 4.8e12)
    assert peak_of("NVIDIA H100 80GB HBM3", "exact") == Peak(67e12, 3.35e12)
    assert peak_of("CPU x86_64", "default") is None
    assert peak_of("CPU x86_64", "default", tflops=0.5) == Peak(5e11, math.inf)
    assert peak_of("NVIDIA H200", "default", tflops=800.0) == Peak(8e14, 4.8e12)


@pytest.mark.parametrize(
    ("strategy", "order", "coordinates"),
    [
        ("dual-softmax", 8, 256),
        ("max-matches", 8, 4 * 256),
        ("max-similarity", 8, 4 * 256),
        ("max-similarity", 5, 5 * 256),
        ("procrustes", 8, 512),
        ("prototype-procrustes", 8, 256),
        ("invariant", 8, 40),
    ],
)
def test_operations(strategy: str, order: int, coordinates: int) -> None:
    floor = floor_of(strategy, 20_000, steerer_for(strategy, 256)[1], order, PEAK)
    assert floor.operations == 2 * 2 * 20_000**2 * coordinates
    assert floor.bytes == 2 * 20_000 * 256 * 4
    assert floor.seconds == floor.operations / 1e12


def test_subsets_are_added() -> None:
    steerer = steerer_for("subset", 256)[1]
    plain = floor_of("dual-softmax", 5000, steerer, 8, PEAK).operations
    assert floor_of("subset", 5000, steerer, 8, PEAK).operations == plain + 4 * 1000**2 * 4 * 256
    few = floor_of("subset", 500, steerer, 8, PEAK)
    assert few.operations == floor_of("dual-softmax", 500, steerer, 8, PEAK).operations


def test_few_descriptions_are_bound_by_their_bytes() -> None:
    floor = floor_of("dual-softmax", 10, steerer_for("dual-softmax", 256)[1], 8, Peak(1e15, 1e9))
    assert floor.seconds == 2 * 10 * 256 * 4 / 1e9


def test_every_measured_strategy_has_one() -> None:
    for name in MEASURED:
        assert floor_of(name, 100, steerer_for(name, 64)[1], 4, PEAK).seconds > 0
