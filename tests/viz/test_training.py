"""The curves of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steerers.viz import plots
from steerers.viz.training import by_rotation, draw_run

ENTRIES: list[dict[str, Any]] = [
    {"step": 1, "loss": 3.0, "keypoints": 2.0, "learning_rate": 1.0, "gradient": 1.0, "data_ms": 5.0, "seconds": 1.0},
    {"step": 2, "loss": 2.0, "nll": 1.5, "wait_ms": 1.0},
    {"step": 2, "validation": {"nll": 4.0, "nll@0": 4.0, "accuracy": 0.5, "accuracy@0": 0.6, "accuracy@90": 0.4}},
    {"step": 4, "validation": {"nll": 3.0, "accuracy@90": 0.5}, "ended": "finished"},
]


def test_losses_and_measures_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "curves", lambda path, curves, **options: drawn.update({path.name: curves}))
    assert draw_run(ENTRIES, tmp_path) == ["losses.png", "accuracy.png"]
    assert drawn["losses.png"] == {
        "loss": ([1, 2], [3.0, 2.0]),
        "keypoints": ([1], [2.0]),
        "nll": ([2], [1.5]),
        "nll, held out": ([2, 4], [4.0, 3.0]),
    }
    assert drawn["accuracy.png"] == {"accuracy, 0°": ([2], [0.6]), "accuracy, 90°": ([2, 4], [0.4, 0.5])}
    assert draw_run([], tmp_path) == []


def test_measures_by_rotation() -> None:
    assert by_rotation(ENTRIES[2]["validation"], "accuracy") == {0: 0.6, 90: 0.4}
    assert by_rotation({"accuracy": 0.5}, "accuracy") == {}
