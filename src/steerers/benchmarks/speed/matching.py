"""Matching strategies against the textbook form: time, memory, and whether the matches are the same.

And the least time that matching can take on a device: its operations and bytes over what the device can do.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.benchmarks.speed import Cost, measure
from steerers.benchmarks.speed.subjects import ROTATING, plant_pair, steerer_for
from steerers.matching.assignment import Kernels, Precision
from steerers.matching.strategies import make_strategy
from steerers.models.base import MAX_KEYPOINTS
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

MEASURED = (
    "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant"
)  # fmt: skip
"""Those with a textbook form to hold them against."""
PASSES = 2
"""Probabilities need complete sums, so that products are made twice, unless a bound shows that they do not matter."""
OPERATIONS: dict[Precision, float] = {"default": 989e12, "exact": 67e12}
"""A second, of both by NVIDIA's data sheets: dense products of float16, and of float32 without tensor cores."""
BANDWIDTHS = {"H100": 3.35e12, "H200": 4.8e12}
"""Bytes a second of the devices that are known."""


# The textbook form ----------------------------------------------------------------------------------------------------

# Matching as the formulas say it: dense matrices of float32, one product a rotation.


def dual_softmax(similarity: Tensor, inverse_temperature: float = 20.0, threshold: float = 0.01) -> Tensor:
    """(K, 2) mutual maxima of the dual softmax of an (N, M) similarity."""
    scaled = inverse_temperature * similarity
    probability = scaled.softmax(dim=1) * scaled.softmax(dim=0)
    mutual = (probability == probability.amax(dim=1, keepdim=True)) & (
        probability == probability.amax(dim=0, keepdim=True)
    )
    return (mutual & (probability > threshold)).nonzero()


def check_memory(strategy: str, n: int, device: torch.device) -> None:
    """Raise MemoryError if the dense N x N matrices cannot fit; a CPU would try, and the process be killed."""
    if device.type != "cpu":
        return
    matrices = 7 if strategy == "procrustes" else 5  # of float32, at a time
    if 4 * matrices * n * n > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise MemoryError(f"{matrices} matrices of {n} x {n}")


def match_by_textbook(
    strategy: str, unit0: Tensor, unit1: Tensor, steerer: Steerer, angles: Tensor, subset: int = 1000
) -> Tensor:
    """(K, 2) matches of unit descriptions by the strategy of that name."""
    if strategy == "dual-softmax":
        return dual_softmax(unit0 @ unit1.mT)
    if strategy == "invariant":
        projector = steerer.invariant_projector().to(unit0)
        return dual_softmax(F.normalize(unit0 @ projector.mT, dim=1) @ F.normalize(unit1 @ projector.mT, dim=1).mT)
    if strategy == "procrustes":
        return dual_softmax(_procrustes(unit0, unit1))
    if strategy == "prototype-procrustes":
        return dual_softmax(_towards_prototype(unit0) @ _towards_prototype(unit1).mT)
    matrices = [steerer.matrix(float(angle)).to(unit0) for angle in angles]
    if strategy == "max-similarity":
        return dual_softmax(_max_similarity(unit0, unit1, matrices))
    if strategy == "max-matches":
        return max((_rotated(unit0, unit1, matrix) for matrix in matrices), key=len)
    if strategy == "subset":
        generator = torch.Generator().manual_seed(0)
        small0, small1 = (d[torch.randperm(len(d), generator=generator)[:subset].to(d.device)] for d in (unit0, unit1))
        best = max(matrices, key=lambda matrix: len(_rotated(small0, small1, matrix)))
        return _rotated(unit0, unit1, best)
    raise ValueError(f"no textbook form of {strategy!r}")


def _rotated(unit0: Tensor, unit1: Tensor, matrix: Tensor) -> Tensor:
    return dual_softmax(F.normalize(unit0 @ matrix.mT, dim=1) @ unit1.mT)


def _max_similarity(unit0: Tensor, unit1: Tensor, matrices: list[Tensor]) -> Tensor:
    best = torch.full((len(unit0), len(unit1)), -1.0, device=unit0.device)
    for matrix in matrices:
        best = torch.maximum(best, F.normalize(unit0 @ matrix.mT, dim=1) @ unit1.mT)
    return best


def _procrustes(unit0: Tensor, unit1: Tensor) -> Tensor:
    """The best rotation of every pair from its 2 x 2 matrix of products, without the singular value decomposition."""
    pairs0, pairs1 = unit0.view(len(unit0), -1, 2), unit1.view(len(unit1), -1, 2)
    products = torch.einsum("ncx,mcy->nmxy", pairs0, pairs1)  # (N, M, 2, 2)
    return torch.hypot(products[..., 0, 0] + products[..., 1, 1], products[..., 0, 1] - products[..., 1, 0])


def _towards_prototype(unit: Tensor) -> Tensor:
    pairs = unit.view(len(unit), -1, 2)
    total = F.normalize(pairs.sum(dim=1), dim=1)  # (N, 2)
    cos, sin = total[:, :1], total[:, 1:]
    x, y = pairs.unbind(dim=2)
    return torch.stack([cos * x + sin * y, cos * y - sin * x], dim=2).flatten(1)


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
    bandwidth = next((bandwidth for name, bandwidth in BANDWIDTHS.items() if name in device), math.inf)
    if tflops is not None:
        return Peak(1e12 * tflops, bandwidth)
    return None if math.isinf(bandwidth) else Peak(OPERATIONS[precision], bandwidth)


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

    def __post_init__(self) -> None:
        if not 1 <= self.num <= MAX_KEYPOINTS:
            raise ValueError(f"num must be 1 to {MAX_KEYPOINTS}, got {self.num}")


@dataclass(frozen=True)
class MatchingRow:
    """One strategy measured, beside the textbook form unless that was left out."""

    strategy: str
    steerer: str
    cost: Cost
    textbook: Cost | None
    matches: int
    common: float | None  # fraction of the textbook's and our matches that both found
    floor: Floor | None = None
    note: str | None = None  # why there is no textbook form, if it was to be measured

    @property
    def over_floor(self) -> float | None:
        """How many times the least time that the device allows, where that is known."""
        return None if self.floor is None else self.cost.seconds / self.floor.seconds

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the textbook form."""
        return None if self.textbook is None else self.textbook.seconds / self.cost.seconds


def bench_matching(name: str, settings: MatchingSettings, device: torch.device) -> MatchingRow:
    """Measure a strategy."""
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
    found = set(map(tuple, strategy.match(unit0, unit1).indices.tolist()))
    if device.type == "cuda":
        strategy.match(unit0, unit1)  # what is recorded at the second call is so before it is timed
    cost = measure(lambda: strategy.match(unit0, unit1), device, settings.repeats)
    if not settings.with_textbook:
        return MatchingRow(name, label, cost, None, len(found), None, floor)
    try:
        check_memory(name, n, device)
        plain = measure(lambda: match_by_textbook(name, unit0, unit1, steerer, angles), device, settings.repeats)
    except (torch.OutOfMemoryError, MemoryError):
        note = "the textbook form needs more memory than there is"
        return MatchingRow(name, label, cost, None, len(found), None, floor, note)
    expected = set(map(tuple, match_by_textbook(name, unit0, unit1, steerer, angles).tolist()))
    common = len(found & expected) / len(found | expected) if found or expected else 1.0
    return MatchingRow(name, label, cost, plain, len(found), common, floor)
