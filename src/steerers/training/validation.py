"""What held-out pairs say of a run."""

from __future__ import annotations

import math

import torch

from steerers.datasets.pairs import PairBatch, PairSource, mix
from steerers.steering.steerer import Steerer
from steerers.training.config import TrainConfig
from steerers.training.feed import read_pair
from steerers.training.objectives.base import Objective

_SEED = 43


@torch.no_grad()
def validate(config: TrainConfig, objective: Objective, source: PairSource, device: torch.device) -> dict[str, float]:
    """Measures on held-out pairs: their mean, and those at each rotation (``@degrees``).

    The pairs are spread evenly over the source; the objective is in evaluation mode meanwhile.
    """
    mode = objective.training
    objective.eval()
    sums: dict[str, list[float]] = {}
    for degrees in _rotations(config, objective.steerer):
        for start in range(0, config.validation.pairs, config.batch):
            batch = _batch(config, source, start, degrees, device)
            with autocast(config, device):
                measures = objective.measure(batch)
            for name, (total, count) in measures.items():
                for key in (name, f"{name}@{degrees}"):
                    entry = sums.setdefault(key, [0.0, 0.0])
                    entry[0] += total
                    entry[1] += count
    objective.train(mode)
    return {name: total / count for name, (total, count) in sums.items() if count}


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """The precision of the networks that a configuration asks for."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


def _rotations(config: TrainConfig, steerer: Steerer | None) -> list[int]:
    """The degrees that the steerer can answer for."""
    order = None if steerer is None else steerer.group.order
    quarters = config.data.rotations.endswith("C4")
    return [
        degrees
        for degrees in config.validation.rotations
        if (order is None or degrees * order % 360 == 0) and (not quarters or degrees % 90 == 0)
    ] or [0]


def _batch(config: TrainConfig, source: PairSource, start: int, degrees: int, device: torch.device) -> PairBatch:
    pairs = config.validation.pairs
    numbers = range(start, min(start + config.batch, pairs))
    seeds = [mix(_SEED, number) for number in numbers]
    second = torch.full((len(seeds),), math.radians(degrees), dtype=torch.float64)
    first = second if config.data.rotations.startswith("joint") else torch.zeros_like(second)
    read = [read_pair(source, number * len(source) // pairs) for number in numbers]
    return source.make(read, first, second, seeds, device)
