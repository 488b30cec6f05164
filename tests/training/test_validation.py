"""Held-out pairs: which they are, how they are rotated, and that measuring them changes nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from steerers.datasets.pairs import PairBatch
from steerers.steering.steerer import Steerer
from steerers.training.config import DataConfig, ValidationConfig
from steerers.training.objectives.base import Measures
from steerers.training.validation import _batch, _rotations, validate
from training.tiny import Numbers, config_of, descriptor_objective, photographs

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def test_validation_does_not_depend_on_the_batch() -> None:
    source = photographs(3, size=56)
    found = []
    for batch in (1, 2, 5):
        config = config_of(batch=batch, validation=ValidationConfig(pairs=5, rotations=(0, 90)))
        found.append(validate(config, descriptor_objective("B"), source, CPU))
    assert set(found[0]) == {"nll", "nll@0", "nll@90", "accuracy", "accuracy@0", "accuracy@90"}
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-4)


def test_rotations_are_those_that_the_steerer_knows() -> None:
    validation = ValidationConfig(rotations=(0, 45, 90, 120, 180))
    for steerer, rotations, expected in (
        (Steerer.spread(8, 2), "SO2", [0, 45, 90, 120, 180]),
        (Steerer.perm(8, "C4"), "C4", [0, 90, 180]),
        (Steerer.from_spec("8x1", "C2"), "SO2", [0, 180]),
        (None, "joint-C4", [0, 90, 180]),
        (None, "joint-SO2", [0, 45, 90, 120, 180]),
    ):
        config = config_of(validation=validation, data=DataConfig(rotations=rotations))
        assert _rotations(config, steerer) == expected


@pytest.mark.parametrize(("rotations", "both"), [("SO2", False), ("joint-SO2", True)])
def test_the_second_views_of_validation_are_rotated(rotations: Any, both: bool) -> None:
    config = config_of(data=DataConfig(rotations=rotations))
    batch = _batch(config, photographs(), 0, 90, CPU)
    assert batch.rotations1.tolist() == [math.pi / 2] * 2
    assert batch.rotations0.tolist() == ([math.pi / 2] * 2 if both else [0.0] * 2)


@pytest.mark.parametrize(
    ("count", "pairs", "expected"),
    [(12, 4, [0, 3, 6, 9]), (5, 3, [0, 1, 3]), (3, 3, [0, 1, 2]), (2, 5, [0, 0, 0, 1, 1])],
)
def test_pairs_are_spread_over_the_source(count: int, pairs: int, expected: list[int]) -> None:
    source = Numbers(count)
    objective = descriptor_objective("B").train()
    modes = []

    def measure(batch: PairBatch) -> Measures:
        modes.append(objective.training)
        return {"pairs": (float(len(batch)), 1.0), "nothing": (0.0, 0.0)}

    objective.measure = measure  # type: ignore[method-assign]
    config = config_of(batch=2, validation=ValidationConfig(pairs=pairs, rotations=(0,)))
    measured = validate(config, objective, source, CPU)
    assert [index for batch in source.drawn for index in batch] == expected
    assert measured == {"pairs": pytest.approx(pairs / len(modes)), "pairs@0": pytest.approx(pairs / len(modes))}
    assert not any(modes)
    assert objective.training
    objective.eval()
    validate(config, objective, source, CPU)
    assert not objective.training
