"""Matching strategies against the textbook form: time, memory, and whether the matches are the same.

And the least time that matching can take on a device: its operations and bytes over what the device can do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from steerers.benchmarks.speed import textbook
from steerers.benchmarks.speed.measure import Cost, measure
from steerers.benchmarks.speed.subjects import ROTATING, plant_pair, steerer_for
from steerers.matching.assignment import Kernels, Precision
from steerers.matching.strategies import make_strategy
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

MEASURED = (
    "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant"
)  # fmt: skip
"""Those with a textbook form to hold them against."""
PASSES = 2
"""Probabilities need complete sums, so that products are made twice, unless a bound shows that they do not matter."""
PEAKS: dict[str, dict[Precision, float]] = {
    "H100": {"default": 989e12, "exact": 67e12},
    "H200": {"default": 989e12, "exact": 67e12},
}
"""Operations a second by NVIDIA's data sheets: dense products of float16, and of float32 without tensor cores."""
BANDWIDTHS = {"H100": 3.35e12, "H200": 4.8e12}
"""Bytes a second."""


# Floors ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peak:
    """What a device can do in a second."""

    operations: float
    bytes: float = math.inf


@dataclass(frozen=True)
class Floor:
    """What a strategy cannot do without."""

    operations: float
    bytes: float
    seconds: float


def peak_of(device: str, precision: Precision, tflops: float | None = None) -> Peak | None:
    """By the device's name; ``tflops`` takes the place of the operations. None for a device that is not known."""
    known = next((name for name in PEAKS if name in device), None)
    if tflops is None and known is None:
        return None
    operations = PEAKS[known][precision] if tflops is None and known is not None else 1e12 * (tflops or 0.0)
    return Peak(operations, math.inf if known is None else BANDWIDTHS[known])


def floor_of(strategy: str, n: int, steerer: Steerer, order: int, peak: Peak, subset: int = 1000) -> Floor:
    """For N = M = ``n`` float32 descriptions.

    A product of two descriptions is two operations a coordinate. With an even order, opposite rotations share theirs.
    """
    rotations, dim = order // 2 if order % 2 == 0 else order, steerer.dim
    coordinates = {
        "dual-softmax": dim,
        "max-matches": rotations * dim,
        "max-similarity": rotations * dim,
        "subset": dim,
        "procrustes": 2 * dim,
        "prototype-procrustes": dim,
        "invariant": _invariant_coordinates(steerer),
    }[strategy]
    products = n * n * coordinates
    if strategy == "subset" and n > subset:
        products += subset * subset * rotations * dim
    operations = float(PASSES * 2 * products)
    moved = float(2 * n * dim * 4)
    return Floor(operations, moved, max(operations / peak.operations, moved / peak.bytes))


def _invariant_coordinates(steerer: Steerer) -> int:
    representation = steerer.representation
    return steerer.dim if representation is None else int((representation.coordinates()[0] == 0).sum())


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchingSettings:
    """N = M = ``num`` descriptions, of which a fraction ``matching`` correspond, and how strategies are measured."""

    num: int
    dim: int
    order: int
    matching: float = 0.5
    repeats: int = 5
    with_textbook: bool = True
    precision: Precision = "default"
    kernels: Kernels = "auto"
    peak: Peak | None = None


@dataclass(frozen=True)
class MatchingRow:
    """One strategy measured, beside the textbook form unless that was left out."""

    strategy: str
    steerer: str
    cost: Cost
    textbook: Cost | None
    matches: int
    common: float | None
    """Fraction of the textbook's and our matches that both found."""
    floor: Floor | None = None
    note: str | None = None
    """Why there is no textbook form, if it was to be measured."""

    @property
    def over_floor(self) -> float | None:
        """How many times the least time that the device allows, where that is known."""
        return None if self.floor is None else self.cost.seconds / self.floor.seconds

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the textbook form."""
        return None if self.textbook is None else self.textbook.seconds / self.cost.seconds


def bench_matching(
    settings: MatchingSettings, device: torch.device, strategies: Sequence[str] = MEASURED
) -> list[MatchingRow]:
    """Measure each strategy."""
    return [_bench(name, settings, device) for name in strategies]


def _bench(name: str, settings: MatchingSettings, device: torch.device) -> MatchingRow:
    n, order = settings.num, settings.order
    label, steerer = steerer_for(name, settings.dim)
    angles = Group(order).angles()
    rotation = 0.0 if name == "dual-softmax" else float(angles[order // 3])
    unit0, unit1 = plant_pair(n, steerer, rotation, device, matching=settings.matching)
    floor = None if settings.peak is None else floor_of(name, n, steerer, order, settings.peak)
    steerer.to(device)
    options: dict[str, object] = {"precision": settings.precision, "kernels": settings.kernels}
    if name in ROTATING:
        options["refine"] = False
    strategy = make_strategy(name, steerer, order=order if name in ROTATING else "default", **options)
    found = {(i, j) for i, j in strategy.match(unit0, unit1).indices.tolist()}
    if device.type == "cuda":
        strategy.match(unit0, unit1)  # what is recorded at the second call is so before it is timed
    cost = measure(lambda: strategy.match(unit0, unit1), device, settings.repeats)
    if not settings.with_textbook:
        return MatchingRow(name, label, cost, None, len(found), None, floor)
    try:
        textbook.check_memory(name, n, device)
        plain = measure(lambda: textbook.match(name, unit0, unit1, steerer, angles), device, settings.repeats)
    except (torch.OutOfMemoryError, MemoryError):
        note = "the textbook form needs more memory than there is"
        return MatchingRow(name, label, cost, None, len(found), None, floor, note)
    expected = {(i, j) for i, j in textbook.match(name, unit0, unit1, steerer, angles).tolist()}
    union = len(found | expected)
    return MatchingRow(name, label, cost, plain, len(found), len(found & expected) / union if union else 1.0, floor)
