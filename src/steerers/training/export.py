"""What a run leaves for use: one safetensors file with the weights, the steerer and the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steerers import __version__
from steerers._weights import save
from steerers.training.config import TrainConfig, to_dict
from steerers.training.objectives import Objective

MODEL = "model.safetensors"


def export(objective: Objective, config: TrainConfig, step: int, path: Path, dtype: torch.dtype | None = None) -> None:
    """Write what was trained under its names (``network.``, ``descriptor.``, ``detector.``, ...) and the steerer.

    The steerer is written even if it is fixed, so that :meth:`steerers.Steerer.load` reads it from the file.

    Args:
        dtype: in which floating-point weights are written; by default as they are.
    """
    tensors: dict[str, Tensor] = {}
    for prefix, network in objective.networks().items():
        if prefix != "steerer":
            tensors |= {f"{prefix}.{name}": value for name, value in network.state_dict().items()}
    tensors = {name: _stored(value, dtype) for name, value in tensors.items()}
    metadata = {
        "steerers_version": __version__,
        "kind": config.model.kind,
        "setting": config.setting,
        "step": str(step),
        "config": json.dumps(_recipe(config), sort_keys=True),
    }
    if objective.steerer is not None:
        steering, described = objective.steerer.export()
        tensors, metadata = tensors | steering, metadata | described
    save(path, tensors, metadata)


def _recipe(config: TrainConfig) -> dict[str, Any]:
    """The configuration without where the data lay, which is nobody's business but the machine's."""
    recipe = to_dict(config)
    recipe["data"] = {key: value for key, value in recipe["data"].items() if key not in ("path", "colmap")}
    return recipe


def _stored(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    value = value.detach().cpu().contiguous()
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value
