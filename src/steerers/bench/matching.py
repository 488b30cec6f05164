"""Matching strategies against the textbook form: time, memory, and whether the matches are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.bench import textbook
from steerers.bench.measure import Cost, measure
from steerers.matching.strategies import STRATEGIES, make_strategy
from steerers.representations import Group
from steerers.steerer import Steerer

MEASURED = tuple(name for name in STRATEGIES if name not in ("tta", "mutual-nearest"))
"""Those that match by dual softmax; but ``tta`` is as many networks as turns, not a matching."""
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

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the textbook form."""
        return None if self.textbook is None else self.textbook.seconds / self.cost.seconds


def make_pair(n: int, steerer: Steerer, angle: float, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit descriptions of two images, the second turned; half of the keypoints correspond."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, steerer.dim, generator=generator)
    second = torch.randn(n, steerer.dim, generator=generator)
    chosen = torch.randperm(n, generator=generator)[: n // 2]
    noise = NOISE * torch.randn(len(chosen), steerer.dim, generator=generator)
    second[: len(chosen)] = steerer.steer(first[chosen], angle) + noise
    return F.normalize(first, dim=1).to(device), F.normalize(second, dim=1).to(device)


def steerer_for(strategy: str, dim: int) -> tuple[str, Steerer]:
    """The paper's steerer for a strategy: Freq1 for the Procrustes ones, Spread for the others."""
    return ("Freq1", Steerer.freq1(dim)) if "procrustes" in strategy else ("Spread", Steerer.spread(dim))


def bench_matching(
    n: int,
    dim: int,
    order: int,
    device: torch.device,
    *,
    strategies: Sequence[str] = MEASURED,
    repeats: int = 5,
    with_textbook: bool = True,
) -> list[Row]:
    """Measure each strategy with N = M = ``n`` descriptions."""
    return [_bench(name, n, dim, order, device, repeats, with_textbook) for name in strategies]


def _bench(name: str, n: int, dim: int, order: int, device: torch.device, repeats: int, with_textbook: bool) -> Row:
    label, steerer = steerer_for(name, dim)
    angles = Group(order).angles()
    turn = 0.0 if name == "dual-softmax" else float(angles[order // 3])
    unit0, unit1 = make_pair(n, steerer, turn, device)
    steerer.to(device)
    turning = name in ("max-matches", "max-similarity", "subset")
    strategy = make_strategy(name, steerer, order=order if turning else "default")
    cost = measure(lambda: strategy.match(unit0, unit1), device, repeats)
    found = {(i, j) for i, j in strategy.match(unit0, unit1).indices.tolist()}
    if not with_textbook:
        return Row(name, label, cost, None, len(found), None)
    plain = measure(lambda: textbook.match(name, unit0, unit1, steerer, angles), device, repeats)
    expected = {(i, j) for i, j in textbook.match(name, unit0, unit1, steerer, angles).tolist()}
    union = len(found | expected)
    return Row(name, label, cost, plain, len(found), len(found & expected) / union if union else 1.0)
