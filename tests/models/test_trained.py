"""What training left is a model like any other: of every kind that ``steerers train`` makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steerers
from helpers import EXAMPLES, run_command
from steerers._weights import WeightsError, load, save
from steerers.models import zoo
from steerers.models.parts import TRAINED_FILE, load_weights
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import ModelConfig, SteererConfig, TrainConfig
from steerers.training.objectives import Objective
from steerers.training.objectives.descriptions import MatchingOptions
from steerers.training.objectives.keypoints import KeypointOptions
from steerers.training.run_folder import export_model
from training.runs import small_config
from training.tiny import SMALL, config_of

IMAGE = EXAMPLES / "coffee.jpg"


def left(folder: Path, config: TrainConfig) -> Objective:
    """What a run that was trained by nothing would leave in ``folder``; the objective that it was."""
    folder.mkdir(parents=True)
    objective = build_objective(config)
    with torch.no_grad():
        for _, parameter in objective.trained():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    export_model(objective, config, 7, folder)
    return objective.eval()


def descriptor_config(setting: str, steerer: SteererConfig, **model: Any) -> TrainConfig:
    settled = {"kind": "compact", "detector": "upright-sift", "compact": SMALL, **model}
    plain = config_of(setting=setting, steerer=steerer)
    rotations = "SO2" if steerer.group == "SO2" else "C4"
    return replace(plain, model=ModelConfig(**settled), data=replace(plain.data, rotations=rotations))


def test_compact_by_folder_and_by_file(tmp_path: Path) -> None:
    objective = left(tmp_path / "mine", small_config("SO2"))
    models = [zoo.build(path) for path in (tmp_path / "mine", str(tmp_path / "mine" / TRAINED_FILE))]
    assert [model.mirror for model in models] == [None, None]  # the embedded one is of other weights
    for model in models:
        assert model.name.startswith("mine-")
        assert model.steerer is not None
        torch.testing.assert_close(model.steerer.generator(), objective.steerer.generator())
        assert not model.steerer.learnable or not any(p.requires_grad for p in model.steerer.parameters())
    assert models[0].name == models[1].name
    matches = steerers.load(tmp_path / "mine", strategy="mutual-nearest", num_keypoints=64, max_size=96)(IMAGE, IMAGE)
    assert len(matches) > 20
    np.testing.assert_array_equal(matches.keypoints0, matches.keypoints1)


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    left(tmp_path / "a" / "run", small_config("SO2"))
    left(tmp_path / "b" / "run", small_config("SO2", seed=5))
    first, second = (steerers.load(tmp_path / name / "run", num_keypoints=8, max_size=64) for name in "ab")
    with pytest.raises(ValueError, match="cannot be matched by"):
        second.match(first.extract(IMAGE), second.extract(IMAGE))


@pytest.mark.parametrize(
    ("setting", "steerer"),
    [("B", SteererConfig("C4", "random", True)), ("C", SteererConfig("SO2", "spread", max_frequency=1))],
)
def test_descriptors_at_the_keypoints_they_were_trained_at(
    tmp_path: Path, setting: str, steerer: SteererConfig
) -> None:
    objective = left(tmp_path / "mine", descriptor_config(setting, steerer))
    model = zoo.build(tmp_path / "mine")
    assert model.strategy == ("max-matches" if setting == "B" else "max-similarity")
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ((keypoints, descriptions),) = model.extractor.extract(images, num_keypoints=20)
    (same,) = zoo.build("upright-sift").extractor.detect(images, num_keypoints=20)
    torch.testing.assert_close(keypoints.xy, same.xy)
    (expected,) = objective.networks()["descriptor"].describe(images, [same])
    torch.testing.assert_close(descriptions, expected, rtol=1e-3, atol=1e-4)  # batch normalisations are folded


def test_dedode_with_a_detector_of_ones_own(tmp_path: Path) -> None:
    detectors = replace(
        config_of(setting="detector", keypoints=KeypointOptions()), model=ModelConfig(kind="dedode-detector-l")
    )
    detector = left(tmp_path / "detector", detectors).networks()["detector"]
    config = descriptor_config(
        "C",
        SteererConfig("C4", "perm"),
        kind="dedode-b",
        detector="dedode-l-c4",
        detector_weights=str(tmp_path / "detector" / TRAINED_FILE),
    )
    descriptor = left(tmp_path / "mine", config).networks()["descriptor"]
    for model in (zoo.build(tmp_path / "mine"), zoo.build(tmp_path / "mine", detector=tmp_path / "detector")):
        built = model.extractor
        for mine, theirs in ((built.detector, detector), (built.descriptor, descriptor)):
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[name], value)
    other = zoo.build("upright-sift", detector=tmp_path / "detector")
    assert other.name.startswith("upright-sift@detector-")
    with pytest.raises(ValueError, match="a detector, which describes nothing"):
        zoo.build(tmp_path / "detector")


def test_a_steerer_for_a_frozen_model(tmp_path: Path) -> None:
    config = descriptor_config("A", SteererConfig("C4", "random", True), kind="upright-sift", detector="")
    objective = left(tmp_path / "mine", config)
    model = zoo.build(tmp_path / "mine")
    torch.testing.assert_close(model.steerer.generator(), objective.steerer.generator())
    assert model.extractor.dim == 128


def test_setting_a_of_a_network_that_another_run_trained(tmp_path: Path) -> None:
    base = left(tmp_path / "base", descriptor_config("C", SteererConfig("C4", "inv")))
    start = str(tmp_path / "base" / TRAINED_FILE)
    left(tmp_path / "mine", descriptor_config("A", SteererConfig("C4", "random", True), weights=start))
    model = zoo.build(tmp_path / "mine")
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ((keypoints, descriptions),) = model.extractor.extract(images, num_keypoints=10)
    (expected,) = base.networks()["descriptor"].describe(images, [keypoints])
    torch.testing.assert_close(descriptions, expected, rtol=1e-3, atol=1e-4)
    Path(start).unlink()
    with pytest.raises(ValueError, match=r"trained for the descriptor in .*base.*, which is not there"):
        zoo.build(tmp_path / "mine")


def test_a_trained_prototype_is_used(tmp_path: Path) -> None:
    base = left(tmp_path / "base", descriptor_config("C", SteererConfig("SO2", "freq1")))
    start = str(tmp_path / "base" / TRAINED_FILE)
    config = descriptor_config("C", SteererConfig("SO2", "freq1"), weights=start)
    config = replace(config, matching=MatchingOptions(num_keypoints=16, prototype=True))
    objective = left(tmp_path / "mine", config)
    pipeline = steerers.load(tmp_path / "mine", num_keypoints=16, max_size=64)
    assert pipeline.strategy.name == "prototype-procrustes"
    torch.testing.assert_close(pipeline.strategy.prototype, objective.matcher.prototype.detach())
    assert base.steerer is not None


def test_without_a_steerer(tmp_path: Path) -> None:
    config = small_config("SO2")
    config = replace(config, steerer=SteererConfig(kind="none"), data=replace(config.data, rotations="none"))
    left(tmp_path / "mine", config)
    model = zoo.build(tmp_path / "mine")
    assert (model.steerer, model.strategy) == (None, "dual-softmax")


def test_a_steerer_as_it_is() -> None:
    steerer = Steerer.inv(128, "C4")
    pipeline = steerers.load("upright-sift", steerer=steerer)
    assert pipeline.model.steerer is steerer


def test_the_commands_take_a_run(tmp_path: Path) -> None:
    left(tmp_path / "mine", small_config("SO2"))
    folder, out = str(tmp_path / "mine"), tmp_path / "found.json"
    ran = run_command("match", IMAGE, IMAGE, "--model", folder, "--max-size", 96, "--num-keypoints", 64, "--json", out)
    assert ran.code == 0, ran.err
    assert json.loads(out.read_text())["model"].startswith("mine-")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder.mkdir(), "no model.safetensors in it: not the folder of a run"),
        (lambda folder: None, "no such file|No such file"),
        (lambda folder: Steerer.spread(16).save(made(folder) / TRAINED_FILE), "a steerer, to be given as such"),
        (lambda folder: save(made(folder) / TRAINED_FILE, {}, {}), "no model; `steerers train` did not write it"),
        (
            lambda folder: save(
                made(folder) / TRAINED_FILE, {}, {"setting": "joint", "config": "{}", "kind": "compact"}
            ),
            "does not say how it was trained",
        ),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "mine")
    with pytest.raises(WeightsError, match=message):
        zoo.build(tmp_path / "mine" if (tmp_path / "mine").exists() else tmp_path / "mine" / TRAINED_FILE)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_unknown_names_say_that_runs_will_do() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'compct'; use one of .*or the folder of a run"):
        zoo.build("compct")
    with pytest.raises(ValueError, match=r"unknown detector 'sfit'.*or the folder of a run"):
        zoo.build("compact", detector="sfit")


def test_weights_alone_load_too(tmp_path: Path) -> None:
    """A file that holds a network under its own names, as DeDoDe's do, is read like one of a run."""
    objective = left(tmp_path / "mine", small_config("SO2"))
    network = objective.networks()["network"]
    tensors, _ = load(tmp_path / "mine" / TRAINED_FILE)
    save(
        tmp_path / "alone.safetensors",
        {n.removeprefix("network."): t for n, t in tensors.items() if "network." in n},
        {},
    )
    fresh = build_objective(small_config("SO2")).networks()["network"]
    load_weights(fresh, tmp_path / "alone.safetensors", "compact")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value)
