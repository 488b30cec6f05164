"""What models are made of, and what every one refuses, in the plain and in the fast form in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from steerers.accel.networks.compact import FastCompact
from steerers.accel.networks.dedode import FastDedodeDetector
from steerers.features import Keypoints
from steerers.models.base import (
    Combined,
    Extractor,
    SingleDescriptor,
    SingleDetector,
    SingleExtractor,
    check_batch,
    check_images,
    check_keypoints,
)
from steerers.models.classical import UprightSift
from steerers.models.compact import Compact, CompactConfig
from steerers.models.dedode import DedodeDetector


class Corner(SingleDetector):
    """One keypoint, told by the mask; counts its runs."""

    runs = 0

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        return Keypoints(torch.full((num_keypoints, 2), 0.0 if mask is None else float(mask.sum())), torch.ones(1))

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        self.runs += 1
        return super().detect(images, num_keypoints=num_keypoints, masks=masks)


class Mean(SingleDescriptor):
    """The mean of the image; counts its runs."""

    dim, runs = 1, 0

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return image.mean().expand(len(keypoints), 1)

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        self.runs += 1
        return super().describe(images, keypoints)


def test_two_models_together_run_batches_as_batches() -> None:
    detector, descriptor = Corner(), Mean()
    combined = Combined(detector, descriptor)
    images, masks = torch.rand(3, 3, 4, 5), torch.arange(60).view(3, 4, 5) > 25
    found = combined.detect(images, num_keypoints=1, masks=masks)
    assert [float(keypoints.xy[0, 0]) for keypoints in found] == [0, 14, 20]
    described = combined.describe(images, found)
    assert torch.equal(torch.stack(described)[:, 0, 0], torch.stack([image.mean() for image in images]))
    assert (detector.runs, descriptor.runs) == (1, 1)
    for (keypoints, descriptions), alone, values in zip(
        combined.extract(images, num_keypoints=1, masks=masks), found, described, strict=True
    ):
        assert torch.equal(keypoints.xy, alone.xy)
        assert torch.equal(descriptions, values)
    assert (detector.runs, descriptor.runs) == (2, 2)


class Both(SingleExtractor):
    """A keypoint at the brightest pixel, described by its value."""

    dim = 1

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        grey = image.mean(dim=0) if mask is None else image.mean(dim=0) * mask
        index = int(grey.argmax())
        return Keypoints(torch.tensor([[index % grey.shape[1], index // grey.shape[1]]]).float(), torch.ones(1))

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        x, y = keypoints.xy.long().unbind(dim=1)
        return image.mean(dim=0)[y, x][:, None]


def test_one_image_at_a_time_is_a_batch() -> None:
    images, masks = torch.rand(4, 3, 6, 7), torch.rand(4, 6, 7) < 0.5
    for keypoints, descriptions in Both().extract(images, num_keypoints=1):
        assert keypoints.xy.shape == (1, 2)
        assert descriptions.shape == (1, 1)
    for image, mask, (keypoints, descriptions) in zip(
        images, masks, Both().extract(images, num_keypoints=1, masks=masks), strict=True
    ):
        assert descriptions[0, 0] == image.mean(dim=0)[mask].max()
        assert mask[int(keypoints.xy[0, 1]), int(keypoints.xy[0, 0])]


# Refusals -------------------------------------------------------------------------------------------------------------

GREY = torch.full((1, 3, 20, 24), 0.5)
POINTS = Keypoints(torch.zeros(2, 2), torch.ones(2))
_SHAPE = "images must have shape (B, 3, H, W) with sides of at least"


@pytest.fixture(scope="module")
def extractors() -> list[Extractor]:
    plain = Compact(CompactConfig(channels=(4, 6, 8), blocks=(1, 1), dim=12, hidden=10)).eval()
    return [plain, FastCompact(plain), UprightSift()]


@pytest.fixture(scope="module")
def detectors(extractors: list[Extractor]) -> list[Any]:
    plain = DedodeDetector("B").eval()
    return [*extractors, plain, FastDedodeDetector(plain)]


def refusal(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return caught.type, str(caught.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 20, 24), _SHAPE),
        (torch.zeros(1, 1, 20, 24), _SHAPE),
        (torch.zeros(1, 3, 0, 24), _SHAPE),
        (
            torch.zeros(1, 3, 20, 24, dtype=torch.uint8),
            "images must be floating point in [0, 1], got torch.uint8; divide 8-bit values by 255",
        ),
    ],
)
def test_images(extractors: list[Extractor], detectors: list[Any], images: Tensor, message: str) -> None:
    for model in detectors:
        assert refusal(lambda model=model: model.detect(images, num_keypoints=5))[1].startswith(message)
    for model in extractors:
        assert refusal(lambda model=model: model.extract(images, num_keypoints=5))[1].startswith(message)
        assert refusal(lambda model=model: model.describe(images, [POINTS]))[1].startswith(message)


@pytest.mark.parametrize("count", [0, -3])
def test_numbers_of_keypoints(extractors: list[Extractor], detectors: list[Any], count: int) -> None:
    message = (ValueError, f"num_keypoints must be at least 1, got {count}")
    for model in detectors:
        assert refusal(lambda model=model: model.detect(GREY, num_keypoints=count)) == message
    for model in extractors:
        assert refusal(lambda model=model: model.extract(GREY, num_keypoints=count)) == message


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (torch.ones(1, 20, 24), "masks must be a bool tensor, True where keypoints are allowed, got torch.float32"),
        (torch.ones(1, 20, 23) > 0, "masks must have the images' shape (1, 20, 24), got (1, 20, 23)"),
    ],
)
def test_masks(detectors: list[Any], masks: Tensor, message: str) -> None:
    for model in detectors:
        assert refusal(lambda model=model: model.detect(GREY, num_keypoints=5, masks=masks))[1] == message


def test_keypoints_of_other_images(extractors: list[Extractor]) -> None:
    message = "keypoints must be those of 1 images, got those of 2"
    for model in extractors:
        assert refusal(lambda model=model: model.describe(GREY, [POINTS, POINTS])) == (ValueError, message)


def test_what_is_good_passes() -> None:
    check_images(GREY.half(), 20)
    check_keypoints([POINTS], GREY)
    assert check_batch(GREY, 1, None) == (GREY,)
    with pytest.raises(ValueError, match="sides of at least 21"):
        check_images(GREY, 21)
