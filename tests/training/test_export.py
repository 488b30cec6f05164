"""The file that a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from steerers._weights import load
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import TrainConfig, parse_config, to_dict
from steerers.training.export import MODEL, export

SMALL = {"compact": {"dim": 32, "hidden": 32}}


def exported(
    folder: Path, values: dict[str, Any], dtype: torch.dtype | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, str], TrainConfig]:
    config = parse_config({"model": {**SMALL, "detector": "upright-sift"}, **values})
    export(build_objective(config), config, 12, folder / MODEL, dtype)
    tensors, metadata = load(folder / MODEL)
    return tensors, metadata, config


def test_weights_and_steerer_travel_together(tmp_path: Path) -> None:
    tensors, metadata, config = exported(tmp_path, {"setting": "joint"})
    network = build_objective(config).networks()["network"]
    for name, value in network.state_dict().items():
        assert torch.equal(tensors[f"network.{name}"], value)
    assert (metadata["kind"], metadata["setting"], metadata["step"]) == ("compact", "joint", "12")
    steerer = Steerer.load(tmp_path / MODEL)
    assert not steerer.learnable
    assert str(steerer.representation) == str(Steerer.spread(32).representation)


def test_a_learned_steerer_comes_back(tmp_path: Path) -> None:
    values = {
        "setting": "B",
        "steerer": {"group": "C4", "kind": "random", "learn": True},
        "data": {"rotations": "C4"},
    }
    tensors, _, config = exported(tmp_path, values)
    assert any(name.startswith("descriptor.") for name in tensors)
    steerer, expected = Steerer.load(tmp_path / MODEL), build_objective(config).steerer
    assert expected is not None
    assert steerer.learnable
    assert torch.equal(steerer.generator(), expected.generator())


def test_a_frozen_descriptor_and_detector_stay_out(tmp_path: Path) -> None:
    values = {"setting": "A", "steerer": {"group": "C4", "kind": "random", "learn": True}, "data": {"rotations": "C4"}}
    tensors, _, _ = exported(tmp_path, values)
    assert list(tensors) == ["steerer.generator"]


def test_the_prototype_is_written(tmp_path: Path) -> None:
    values = {"setting": "A", "steerer": {"kind": "freq1"}, "matching": {"prototype": True}}
    tensors, _, _ = exported(tmp_path, values)
    assert sorted(tensors) == ["prototype.prototype", "steerer.frequencies"]
    assert tensors["prototype.prototype"].shape == (32,)


def test_without_a_steerer_there_is_none(tmp_path: Path) -> None:
    values = {"setting": "C", "steerer": {"kind": "none"}, "data": {"rotations": "joint-C4"}}
    tensors, metadata, _ = exported(tmp_path, values)
    assert not any("steerer." in key for key in (*tensors, *metadata))
    with pytest.raises(ValueError, match="does not hold a steerer"):
        Steerer.load(tmp_path / MODEL)


def test_the_recipe_says_all_but_where_the_data_lay(tmp_path: Path) -> None:
    values = {"data": {"path": ["/home/me/photographs"], "colmap": ["/home/me/street"]}}
    _, metadata, config = exported(tmp_path, values)
    assert "/home/me" not in json.dumps(metadata)
    recipe = json.loads(metadata["config"])
    again = to_dict(parse_config(recipe))
    for part in (again, expected := to_dict(config)):
        part["data"].pop("path"), part["data"].pop("colmap")
    assert again == expected


def test_half_precision_halves_the_floating_point_weights_alone(tmp_path: Path) -> None:
    tensors, _, _ = exported(tmp_path, {"setting": "joint"}, torch.float16)
    weights = {name: value for name, value in tensors.items() if name.startswith("network.")}
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float16}
    assert all(not value.is_floating_point() for name, value in weights.items() if "num_batches" in name)
