"""The extractor and the matcher in hloc's shape.

hloc is not on PyPI: what is known of it stands here, written anew from its source of 2025: how it finds a class, what
its base class does, and how it calls one.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABCMeta, abstractmethod
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steerers
from helpers import EXAMPLES
from steerers.adapters import hloc as ours
from steerers.images.load import load_image

pytestmark = pytest.mark.usefixtures("one_thread")


class BaseModel(nn.Module, metaclass=ABCMeta):
    """As hloc's: defaults below what is given, required inputs, and two methods to be written."""

    default_conf: dict[str, Any] = {}  # noqa: RUF012
    required_inputs: list[str] = []  # noqa: RUF012

    def __init__(self, conf: dict[str, Any]) -> None:
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)

    def forward(self, data: dict[str, Tensor]) -> dict[str, Any]:
        assert all(key in data for key in self.required_inputs)
        return self._forward(data)

    @abstractmethod
    def _init(self, conf: dict[str, Any]) -> None: ...

    @abstractmethod
    def _forward(self, data: dict[str, Tensor]) -> dict[str, Any]: ...


def dynamic_load(package: str, name: str) -> type[BaseModel]:
    """The one class of a module ``package.name`` that is its own and a model."""
    path = f"{package}.{name}"
    members = inspect.getmembers(importlib.import_module(path), inspect.isclass)
    (found,) = [cls for _, cls in members if cls.__module__ == path and issubclass(cls, BaseModel)]
    return cast(type[BaseModel], found)


@pytest.fixture
def hloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """hloc's packages, as far as they are asked for."""
    names = ("hloc", "hloc.extractors", "hloc.matchers", "hloc.utils", "hloc.utils.base_model")
    for name in names:
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            package, _, own = name.rpartition(".")
            setattr(sys.modules[package], own, module)
    sys.modules["hloc.utils.base_model"].BaseModel = BaseModel  # type: ignore[attr-defined]
    for package in names[1:3]:  # so that what is registered goes when the test ends
        monkeypatch.setitem(sys.modules, f"{package}.steerers", ModuleType("before"))


@pytest.mark.usefixtures("hloc")
def test_a_pair_through_hloc() -> None:
    ours.register()
    features, matches = ours.feature_conf(max_keypoints=150, resize_max=256), ours.match_conf(threshold=0.1)
    upright = load_image(EXAMPLES / "astronaut.jpg", max_size=features["preprocessing"]["resize_max"]).tensor
    images = [upright, torch.rot90(upright, 1, (1, 2)).contiguous()]
    extractor = dynamic_load("hloc.extractors", features["model"]["name"])(features["model"]).eval()
    data: dict[str, Tensor] = {}
    for which, image in enumerate(images):
        found = {key: value[0].numpy() for key, value in extractor({"image": image[None]}).items()}
        assert {key: value.shape for key, value in found.items()} == {
            "keypoints": (150, 2), "keypoint_scores": (150,), "descriptors": (256, 150)
        }  # fmt: skip
        data |= {f"{key}{which}": torch.from_numpy(value)[None].float() for key, value in found.items()}
        data[f"image{which}"] = torch.empty(1, 1, *image.shape[1:])  # which hloc gives for its size
    matcher = dynamic_load("hloc.matchers", matches["model"]["name"])(matches["model"]).eval()
    predicted = matcher(data)
    expected = steerers.load(num_keypoints=150, max_size=None, threshold=0.1, consensus=False)(*images)
    matches0 = predicted["matches0"][0].short().numpy()
    pairs = np.stack([np.flatnonzero(matches0 >= 0), matches0[matches0 >= 0]], axis=1)
    assert len(pairs) > 100
    assert sorted(pairs.tolist()) == sorted(expected.indices.tolist())
    scores = predicted["matching_scores0"][0].numpy()
    np.testing.assert_allclose(scores[expected.indices[:, 0]], expected.scores, atol=1e-5)
    assert set(predicted) == {"matches0", "matches1", "matching_scores0", "matching_scores1"}
    assert all(value.shape == (1, 150) for value in predicted.values())


@pytest.mark.usefixtures("hloc")
def test_an_image_without_keypoints() -> None:
    ours.register()
    extractor = dynamic_load("hloc.extractors", "steerers")({"name": "steerers", "model": "upright-sift"})
    found = extractor({"image": torch.full((1, 1, 64, 80), 0.5)})  # grey, as hloc may read it
    assert found["descriptors"][0].shape == (128, 0)
    matcher = dynamic_load("hloc.matchers", "steerers")({"name": "steerers", "model": "upright-sift"})
    predicted = matcher({"descriptors0": found["descriptors"][0][None], "descriptors1": torch.rand(1, 128, 7)})
    assert predicted["matches0"].shape == (1, 0)
    assert predicted["matches1"].tolist() == [[-1] * 7]


@pytest.mark.usefixtures("hloc")
def test_registering_twice() -> None:
    ours.register()
    ours.register()
    assert issubclass(dynamic_load("hloc.matchers", "steerers"), ours.SteerersMatcher)


def test_configurations() -> None:
    """Names of output tell what would differ."""
    features = ours.feature_conf("disk-so2", max_keypoints=100, resize_max=800, precision="float32")
    assert features == {
        "output": "feats-steerers-disk-so2-n100-r800",
        "model": {"name": "steerers", "model": "disk-so2", "max_keypoints": 100, "precision": "float32"},
        "preprocessing": {"grayscale": False, "resize_max": 800},
    }
    assert ours.feature_conf("runs/mine")["output"] == "feats-steerers-mine-n4096-r1024"
    assert ours.match_conf() == {
        "output": "matches-steerers-compact-6",
        "model": {"name": "steerers", "model": "compact"},
    }
    assert ours.match_conf(strategy="max-matches", order=4)["output"] == "matches-steerers-compact-6-max-matches-4"


def test_what_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown option 'max_num_keypoints' in a configuration of steerers; use model"
    ):
        ours.feature_conf(max_num_keypoints=5)
    with pytest.raises(ValueError, match="unknown option 'angle'"):
        ours.match_conf(angle=5)
    with pytest.raises(ValueError, match="max_keypoints must be at most 32767, as hloc keeps matches, got 40000"):
        ours.SteerersExtractor()._init({"model": "compact", "max_keypoints": 40_000})
    with pytest.raises(ValueError, match="tta describes rotated copies"):
        ours.SteerersMatcher()._init({"model": "compact", "strategy": "tta"})


def test_without_hloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hloc", None)
    with pytest.raises(ImportError, match=r"hloc cannot be imported .*; install it: https://github.com/cvg/Hier"):
        ours.register()
