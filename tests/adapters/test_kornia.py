"""The module in kornia's shape, in kornia's own pipeline."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from helpers import randn
from steerers import Matcher, Steerer
from steerers.adapters.kornia import DescriptorMatcher


def test_distances_and_indices() -> None:
    steerer, first = Steerer.spread(256), randn(20, 256, dtype=torch.float32)
    second = steerer.steer(first, math.radians(135))[5:]
    distances, indices = DescriptorMatcher()(first, second)
    assert indices.tolist() == [[i + 5, i] for i in indices[:, 1].tolist()]
    assert len(indices) == 15
    assert distances.shape == (15, 1)
    expected = Matcher()({"image0": {"descriptors": first[None]}, "image1": {"descriptors": second[None]}})
    torch.testing.assert_close(1 - distances[:, 0], expected["scores"][0])
    distances, indices = DescriptorMatcher("disk-c4", threshold=0.5)(randn(0, 128), randn(3, 128))
    assert distances.shape == (0, 1)
    assert indices.shape == (0, 2)


def test_in_the_pipeline_of_kornia() -> None:
    feature = pytest.importorskip("kornia.feature")
    places = torch.rand(1, 30, 2, generator=torch.Generator().manual_seed(0)) * 50
    descriptions = randn(1, 30, 256, dtype=torch.float32)

    class Local(nn.Module):
        """Finds the same keypoints in every image, described as after the rotation that its mean tells."""

        def forward(self, image: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
            steered = Steerer.spread(256).steer(descriptions, float(image.mean()))
            return feature.laf_from_center_scale_ori(places), torch.ones(1, 30), steered

    pipeline = feature.LocalFeatureMatcher(Local(), DescriptorMatcher())
    found = pipeline({"image0": torch.zeros(1, 1, 8, 8), "image1": torch.full((1, 1, 8, 8), 2.0)})
    assert len(found["keypoints0"]) == 30
    assert torch.equal(found["keypoints0"], found["keypoints1"])
    assert found["confidence"].min() > 0.5
