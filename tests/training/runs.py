"""Runs to read back: real ones of a few steps on photographs of noise, and ones of which only the records are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from steerers.images.load import to_uint8
from steerers.training.build import build_objective
from steerers.training.config import ModelConfig, SteererConfig, TrainConfig, to_dict
from steerers.training.feed import build_sources
from steerers.training.loop import train
from steerers.training.run_folder import CONFIG, SPECTRUM
from training.tiny import SMALL, config_of, noise

CPU = torch.device("cpu")


def make_photographs(folder: Path, count: int = 6, size: int = 64) -> Path:
    folder.mkdir(parents=True)
    for index in range(count):
        PIL.Image.fromarray(to_uint8(noise(size, index))).save(folder / f"{index}.png")
    return folder


def small_config(group: str = "C4", **changes: Any) -> TrainConfig:
    """A run of the small network with a learnable steerer."""
    plain = config_of(setting="joint", model=ModelConfig(compact=SMALL), steerer=SteererConfig(group, "random", True))
    plain = replace(
        plain, steps=4, spectrum_every=1, data=replace(plain.data, rotations="SO2" if group == "SO2" else "C4")
    )
    return replace(plain, **changes)


def make_run(folder: Path, photographs: Path, config: TrainConfig) -> dict[str, float]:
    """Train in ``folder``; what validation measured at the end."""
    sources = build_sources(config.data, [photographs], CPU)
    return train(config, build_objective(config), sources, folder, device=CPU).validation


def fake_run(folder: Path, values: Tensor, steps: list[int] | None = None, group: str = "C4", **changes: Any) -> Path:
    """The folder of a run that recorded (T, D) eigenvalues and has not ended."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(to_dict(small_config(group, **changes))))
    np.savez(folder / SPECTRUM, steps=np.array(steps or range(len(values))), eigenvalues=values.numpy())
    return folder
