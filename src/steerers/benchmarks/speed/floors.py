"""The least time that matching can take on a device: its operations and bytes over what the device can do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steerers.matching.assignment import Precision
from steerers.steering.steerer import Steerer

PASSES = 2
"""Probabilities need complete sums, so that products are made twice, unless a bound shows that they do not matter."""
PEAKS: dict[str, dict[Precision, float]] = {
    "H100": {"default": 989e12, "exact": 67e12},
    "H200": {"default": 989e12, "exact": 67e12},
}
"""Operations a second by NVIDIA's data sheets: dense products of float16, and of float32 without tensor cores."""
BANDWIDTHS = {"H100": 3.35e12, "H200": 4.8e12}
"""Bytes a second."""


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
