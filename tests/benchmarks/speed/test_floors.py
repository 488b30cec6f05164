"""The least time of matching, counted by hand."""

from __future__ import annotations

import math

import pytest

from steerers.benchmarks.speed.floors import Peak, floor_of, peak_of
from steerers.benchmarks.speed.matching import MEASURED, steerer_for

PEAK = Peak(1e12, 1e12)


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
