"""Runs read back, and what is no run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerers._weights import load, save
from steerers.steering.representations import Group
from steerers.training.config import ModelConfig, SteererConfig, to_dict
from steerers.training.export import MODEL
from steerers.training.log import CONFIG, SPECTRUM
from steerers.training.runs import load_run, load_steerer, read_records
from training.runs import fake_run, small_config
from training.tiny import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")
C4, SO2 = Group(4), Group(None)


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_a_run_is_read_back(trained: dict[str, tuple[Path, dict[str, float]]], group: str) -> None:
    folder, _ = trained[group]
    records, run = read_records(folder), load_run(folder)
    assert (records.name, records.group, records.steps) == (group, Group.parse(group), [0, 1, 2, 3, 4])
    assert records.values.shape == (5, SMALL.dim)
    assert run.step == 4
    tensors, _ = load(folder / MODEL)
    state = run.objective.state_dict()
    for name, value in tensors.items():
        if name != "steerer.generator":
            torch.testing.assert_close(state[name], value)
    steerer, step = load_steerer(folder)
    assert step == 4
    assert run.objective.steerer is not None
    torch.testing.assert_close(run.objective.steerer.generator(), steerer.generator())
    assert not run.objective.training


VALUES = torch.tensor([[1, -1, 1j, -1j], [0.5, -0.5, 0.5j, -0.5j]])


def _config(**changes: Any) -> Callable[[Path], object]:
    return lambda run: (run / CONFIG).write_text(json.dumps(to_dict(small_config("C4", **changes))))


def _records(**arrays: Any) -> Callable[[Path], object]:
    return lambda run: np.savez(run / SPECTRUM, **arrays)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "there is no such run"),
        (lambda run: (run / CONFIG).unlink(), "no config.json: it is not the folder of a run"),
        (lambda run: (run / CONFIG).write_text("{"), "config.json: damaged"),
        (lambda run: (run / CONFIG).write_bytes(b"\xff"), "config.json: damaged"),
        (lambda run: (run / CONFIG).write_text("[]"), "config.json: not the configuration of a run"),
        (lambda run: (run / CONFIG).write_text('{"depth": 3}'), "config.json: .*this version.*unknown key 'depth'"),
        (_config(steerer=SteererConfig("C4", "perm", False)), "fixed.*steerers spectrum .*model.safetensors"),
        (_config(steerer=SteererConfig("C4", "none", False)), "has no steerer"),
        (_config(setting="detector"), "has no steerer"),
        (lambda run: (run / SPECTRUM).unlink(), "no spectrum.npz yet"),
        (lambda run: (run / SPECTRUM).write_bytes(b"PK"), "spectrum.npz: damaged"),
        (lambda run: (run / SPECTRUM).write_bytes(b""), "spectrum.npz: damaged"),
        (_records(steps=np.arange(2)), "spectrum.npz: damaged"),
        (_records(steps=np.arange(2), eigenvalues=np.array(["a"])), "spectrum.npz: damaged"),
        (_records(steps=np.arange(3), eigenvalues=VALUES.numpy()), "spectrum.npz: damaged: 3 steps"),
        (_records(steps=np.arange(2), eigenvalues=VALUES.real.numpy()), "spectrum.npz: damaged"),
        (_records(steps=np.arange(0), eigenvalues=VALUES[:0].numpy()), "spectrum.npz: damaged"),
        (_records(steps=np.arange(2), eigenvalues=VALUES.numpy() * np.nan), "not finite"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    run = fake_run(tmp_path / "run", VALUES)
    assert read_records(run).steps == [0, 1]
    spoil(run)
    with pytest.raises(ValueError, match=message):
        read_records(run)


def test_a_run_that_goes_on_has_no_weights(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", VALUES)
    for reader in (load_run, load_steerer):
        with pytest.raises(ValueError, match=r"no model\.safetensors: it is not a run, or has not ended yet"):
            reader(run)


def test_weights_of_another_run_are_refused(tmp_path: Path, trained: dict[str, tuple[Path, dict[str, float]]]) -> None:
    run = shutil.copytree(trained["C4"][0], tmp_path / "run")
    shutil.copy(trained["SO2"][0] / MODEL, run)
    with pytest.raises(ValueError, match=r"a steerer of SO2 for 8 dimensions, but .* has C4 and 8"):
        load_run(run)
    larger = replace(SMALL, hidden=16)
    (run / CONFIG).write_text(json.dumps(to_dict(small_config("SO2", model=ModelConfig(compact=larger)))))
    with pytest.raises(ValueError, match=r"model\.safetensors: not the weights of the configuration beside it"):
        load_run(run)
    save(run / MODEL, {"a": torch.zeros(1)}, {"step": "1"})
    with pytest.raises(ValueError, match="does not hold the steerer of a run"):
        load_steerer(run)
