"""Matching strategies against the textbook form: time, memory, and whether the matches are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.benchmarks.speed import textbook
from steerers.benchmarks.speed.floors import Floor, Peak, floor_of
from steerers.benchmarks.speed.measure import Cost, measure
from steerers.matching.assignment import Kernels, Precision
from steerers.matching.strategies import make_strategy
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

MEASURED = (
    "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant"
)  # fmt: skip
"""Those with a textbook form to hold them against."""
ROTATING = ("max-matches", "max-similarity", "subset")
"""Those that try the rotations of an order."""
NOISE = 0.8
"""Standard deviation of what is added to a unit-variance description to make its match: cosines of about 0.78."""


@dataclass(frozen=True)
class Row:
    """One strategy measured, beside the textbook form unless that was left out."""

    strategy: str
    steerer: str
    cost: Cost
    textbook: Cost | None
    matches: int
    common: float | None
    """Share of the textbook's and our matches that both found."""
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


def make_pair(
    n: int, steerer: Steerer, angle: float, device: torch.device, seed: int = 0, matching: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Unit descriptions of two images, the second rotated; a share ``matching`` of the keypoints correspond."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, steerer.dim, generator=generator)
    second = torch.randn(n, steerer.dim, generator=generator)
    chosen = torch.randperm(n, generator=generator)[: int(matching * n)]
    noise = NOISE * torch.randn(len(chosen), steerer.dim, generator=generator)
    second[: len(chosen)] = steerer.steer(first[chosen], angle) + noise
    return F.normalize(first, dim=1).to(device), F.normalize(second, dim=1).to(device)


def steerer_for(strategy: str, dim: int) -> tuple[str, Steerer]:
    """The paper's steerer for a strategy: Freq1 for the Procrustes ones, Spread for the others."""
    return ("Freq1", Steerer.freq1(dim)) if "procrustes" in strategy else ("Spread", Steerer.spread(dim))


@dataclass(frozen=True)
class Setting:
    """How strategies are measured, besides their sizes."""

    repeats: int = 5
    with_textbook: bool = True
    precision: Precision = "default"
    kernels: Kernels = "auto"
    peak: Peak | None = None
    matching: float = 0.5


def bench_matching(
    n: int,
    dim: int,
    order: int,
    device: torch.device,
    *,
    strategies: Sequence[str] = MEASURED,
    repeats: int = 5,
    with_textbook: bool = True,
    precision: Precision = "default",
    kernels: Kernels = "auto",
    peak: Peak | None = None,
    matching: float = 0.5,
) -> list[Row]:
    """Measure each strategy with N = M = ``n`` descriptions, of which a share ``matching`` correspond."""
    setting = Setting(repeats, with_textbook, precision, kernels, peak, matching)
    return [_bench(name, n, dim, order, device, setting) for name in strategies]


def _bench(name: str, n: int, dim: int, order: int, device: torch.device, setting: Setting) -> Row:
    label, steerer = steerer_for(name, dim)
    angles = Group(order).angles()
    rotation = 0.0 if name == "dual-softmax" else float(angles[order // 3])
    unit0, unit1 = make_pair(n, steerer, rotation, device, matching=setting.matching)
    floor = None if setting.peak is None else floor_of(name, n, steerer, order, setting.peak)
    steerer.to(device)
    options: dict[str, object] = {"precision": setting.precision, "kernels": setting.kernels}
    if name in ROTATING:
        options["refine"] = False
    strategy = make_strategy(name, steerer, order=order if name in ROTATING else "default", **options)
    found = {(i, j) for i, j in strategy.match(unit0, unit1).indices.tolist()}
    if device.type == "cuda":
        strategy.match(unit0, unit1)  # what is recorded at the second call is so before it is timed
    cost = measure(lambda: strategy.match(unit0, unit1), device, setting.repeats)
    if not setting.with_textbook:
        return Row(name, label, cost, None, len(found), None, floor)
    try:
        textbook.check_memory(name, n, device)
        plain = measure(lambda: textbook.match(name, unit0, unit1, steerer, angles), device, setting.repeats)
    except (torch.OutOfMemoryError, MemoryError):
        note = "the textbook form needs more memory than there is"
        return Row(name, label, cost, None, len(found), None, floor, note)
    expected = {(i, j) for i, j in textbook.match(name, unit0, unit1, steerer, angles).tolist()}
    union = len(found | expected)
    return Row(name, label, cost, plain, len(found), len(found & expected) / union if union else 1.0, floor)
