"""Runs that several tests read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steerers.training.run_folder import CONFIG
from training.runs import make_photographs, make_run, small_config


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photographs(tmp_path_factory.mktemp("data") / "photographs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, photographs: Path) -> dict[str, tuple[Path, dict[str, float]]]:
    """Folders of runs and what they measured; that of C4 has averaged weights, that of SO(2) would need a GPU."""
    root = tmp_path_factory.mktemp("runs")
    made = {group: make_run(root / group, photographs, small_config(group)) for group in ("C4", "SO2")}
    path = root / "SO2" / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cuda_graphs": True}))
    return {group: (root / group, measured) for group, measured in made.items()}
