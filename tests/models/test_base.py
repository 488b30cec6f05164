"""What models are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerers.features import Keypoints
from steerers.models.base import Combined, Descriptor, Detector


class Corner(Detector):
    """One keypoint, told by the mask; counts its runs."""

    runs = 0

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        return Keypoints(torch.full((num_keypoints, 2), 0.0 if mask is None else float(mask.sum())), torch.ones(1))

    def detect_batch(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        self.runs += 1
        return super().detect_batch(images, num_keypoints=num_keypoints, masks=masks)


class Mean(Descriptor):
    """The mean of the image; counts its runs."""

    dim, runs = 1, 0

    def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return image.mean().expand(len(keypoints), 1)

    def describe_batch(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        self.runs += 1
        return super().describe_batch(images, keypoints)


def test_two_models_together_run_batches_as_batches() -> None:
    detector, descriptor = Corner(), Mean()
    combined = Combined(detector, descriptor)
    images, masks = torch.rand(3, 3, 4, 5), torch.arange(60).view(3, 4, 5) > 25
    found = combined.detect_batch(images, num_keypoints=1, masks=masks)
    assert [float(keypoints.xy[0, 0]) for keypoints in found] == [0, 14, 20]
    described = combined.describe_batch(images, found)
    assert torch.equal(torch.stack(described)[:, 0, 0], torch.stack([image.mean() for image in images]))
    assert (detector.runs, descriptor.runs) == (1, 1)
    for (keypoints, descriptions), alone, values in zip(
        combined.extract_batch(images, num_keypoints=1, masks=masks), found, described, strict=True
    ):
        assert torch.equal(keypoints.xy, alone.xy)
        assert torch.equal(descriptions, values)
    assert (detector.runs, descriptor.runs) == (2, 2)
