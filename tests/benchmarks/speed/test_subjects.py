"""Models with random weights: built without files, and of the shapes of the real ones."""

from __future__ import annotations

import importlib.util
import logging

import pytest
import torch
from torch import Tensor, nn

from helpers import describe_image
from steerers.benchmarks.speed import subjects
from steerers.benchmarks.speed.subjects import build_untrained
from steerers.features import Keypoints
from steerers.models.downloads import WeightFile
from steerers.models.zoo import ZOO, find

NEEDS_KORNIA = pytest.mark.skipif(importlib.util.find_spec("kornia") is None, reason="needs kornia")

pytestmark = pytest.mark.usefixtures("one_thread")


def describe(name: str) -> Tensor:
    """Descriptions of some points of a random image by an untrained model."""
    generator = torch.Generator().manual_seed(0)
    image, xy = torch.rand(3, 70, 84, generator=generator), 60 * torch.rand(20, 2, generator=generator)
    extractor = build_untrained(name).extractor.eval()
    return describe_image(extractor, image, Keypoints(xy, torch.ones(20), torch.full((20,), 5.0), torch.zeros(20)))


@pytest.mark.parametrize(
    "name",
    [
        "upright-sift",
        "dedode-b",
        "superpoint",
        pytest.param("disk-c4", marks=NEEDS_KORNIA),
        pytest.param("aliked-t16", marks=NEEDS_KORNIA),
        pytest.param("xfeat", marks=NEEDS_KORNIA),
    ],
)
def test_descriptions_are_finite_and_differ(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: WeightFile, *_: object, **__: object) -> None:
        raise AssertionError(f"asked for {file.name}")

    monkeypatch.setattr("steerers.models.downloads.fetch", refuse)
    with caplog.at_level(logging.WARNING):
        found = describe(name)
    assert not caplog.records  # random weights are what was asked for
    assert found.shape == (20, ZOO[name].dim)
    assert bool(torch.isfinite(found).all())
    assert float(found.std(dim=0).max()) > 1e-3


def test_the_same_seed_gives_the_same_network() -> None:
    first, second, other = (build_untrained("superpoint", seed).extractor.state_dict() for seed in (0, 0, 1))
    name = max(first, key=lambda name: first[name].numel())
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], other[name])


def test_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    build_untrained("upright-sift")
    assert torch.equal(torch.rand(3), expected)


def test_g_has_a_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.new_zeros(len(images), 1024, images.shape[2] // 14, images.shape[3] // 14)

    monkeypatch.setattr(subjects, "_random_dinov2", lambda _: Zeros())
    assert describe("dedode-g").shape == (20, 256)


@pytest.mark.parametrize(
    ("name", "group", "fixed"),
    [
        ("dedode-b", None, None),
        ("dedode-b-c4", "C4", False),
        ("dedode-b-c4-perm", "C4", True),
        ("dedode-b-so2", "SO2", True),
        ("dedode-b-so2-spread-b", "SO2", False),
        ("upright-sift", "C4", True),
        ("upright-sift-so2", "SO2", False),
    ],
)
def test_steerers(name: str, group: str | None, fixed: bool | None) -> None:
    steerer = subjects._build_steerer(find(name), torch.Generator())
    if steerer is None:
        assert group is None
    else:
        assert str(steerer.group) == group
        assert (steerer.representation is not None) == fixed


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="unknown model 'no-such'"):
        build_untrained("no-such")
