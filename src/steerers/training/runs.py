"""Runs read back from what they left."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from steerers import _weights
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import TrainConfig, parse_config
from steerers.training.export import MODEL
from steerers.training.log import CONFIG, SPECTRUM, read_spectrum
from steerers.training.objectives.terms import Objective


@dataclass(frozen=True, eq=False)
class Records:
    """The eigenvalues that a run recorded, from its start on; the run may still go on."""

    folder: Path
    config: TrainConfig
    steps: list[int]
    values: Tensor  # (T, D) complex64

    @property
    def name(self) -> str:
        """That of the folder, which tells runs of one configuration apart."""
        return self.folder.resolve().name

    @property
    def group(self) -> Group:
        """The group of the steerer."""
        return Group.parse(self.config.steerer.group)


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What a run has trained: its objective with the weights and the steerer of the file it left."""

    config: TrainConfig
    objective: Objective
    step: int


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run.

    Raises:
        ValueError: if the folder is not that of a run.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such run")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {CONFIG}: it is not the folder of a run") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not the configuration of a run, which is a table")
    try:
        return parse_config(values)
    except ValueError as error:
        raise ValueError(f"{path}: not a configuration of this version of steerers: {error}") from error


def read_records(folder: Path) -> Records:
    """The eigenvalues that a run recorded, and its configuration.

    Raises:
        ValueError: if the folder is not that of a run, or of one whose steerer is not trained, or is damaged.
    """
    config, path = read_config(folder), folder / SPECTRUM
    if config.setting == "detector" or config.steerer.kind == "none":
        raise ValueError(f"{folder}: this run has no steerer")
    if not config.steerer.learn:
        raise ValueError(
            f"{folder}: the steerer of this run is fixed, so that its eigenvalues stay as they are; draw them with "
            f"`steerers spectrum {folder / MODEL}`"
        )
    if not path.exists():
        raise ValueError(f"{folder} has no {SPECTRUM} yet: it comes with the first checkpoint")
    try:
        steps, values = read_spectrum(folder)
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if values.ndim != 2 or not values.is_complex() or not values.numel() or len(steps) != len(values):
        raise ValueError(f"{path}: damaged: {len(steps)} steps, and {values.dtype} of shape {tuple(values.shape)}")
    if not bool(torch.isfinite(torch.view_as_real(values)).all()):
        raise ValueError(f"{path}: it holds eigenvalues that are not finite")
    return Records(folder, config, steps, values)


def load_steerer(folder: Path) -> tuple[Steerer, int]:
    """The steerer that a run left, and its step.

    Raises:
        ValueError: if it has left none yet, or the file is damaged.
    """
    path = _model_of(folder)
    tensors, metadata = _weights.load(path)
    try:
        return Steerer.restore(tensors, metadata), int(metadata["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the steerer of a run: {error}") from error


def load_run(folder: Path) -> LoadedRun:
    """The objective of a run with what was trained, on the CPU and in evaluation mode.

    What a trained network started from is not read again; a frozen network and a detector are.

    Raises:
        ValueError: if the folder is not that of a run, it has left no file yet, or the file is of another run.
    """
    config, path = read_config(folder), _model_of(folder)
    start = config.model.weights if config.setting == "A" else ""
    objective = build_objective(replace(config, model=replace(config.model, weights=start)))
    tensors, metadata = _weights.load(path)
    for prefix, network in objective.networks().items():
        if prefix != "steerer":
            state = {
                name.removeprefix(f"{prefix}."): tensors[name] for name in tensors if name.startswith(f"{prefix}.")
            }
            _weights.load_into(network, state, path, "the configuration beside it")
    if objective.steerer is not None:
        _set_steerer(objective.steerer, load_steerer(folder)[0], path)
    return LoadedRun(config, objective.eval(), int(metadata["step"]))


def _model_of(folder: Path) -> Path:
    path = folder / MODEL
    if not path.exists():
        raise ValueError(f"{folder} has no {MODEL}: it is not a run, or has not ended yet")
    return path


def _set_steerer(steerer: Steerer, trained: Steerer, path: Path) -> None:
    if (steerer.group, steerer.dim) != (trained.group, trained.dim):
        raise ValueError(
            f"{path}: a steerer of {trained.group} for {trained.dim} dimensions, but the configuration beside it has "
            f"{steerer.group} and {steerer.dim}"
        )
    if steerer.learnable:
        with torch.no_grad():
            steerer.generator().copy_(trained.generator())
