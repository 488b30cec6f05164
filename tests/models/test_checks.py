"""What every model refuses, in the plain and in the fast form in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from steerers.accel.networks.compact import FastCompact
from steerers.accel.networks.dedode import FastDedodeDetector
from steerers.features import Keypoints
from steerers.models.checks import check_count, check_image, check_images, check_keypoints, check_mask
from steerers.models.compact import Compact, CompactConfig
from steerers.models.dedode import DedodeDetector

pytestmark = pytest.mark.usefixtures("one_thread")
GREY = torch.full((3, 20, 24), 0.5)
POINTS = Keypoints(torch.zeros(2, 2), torch.ones(2))


@pytest.fixture(scope="module")
def compact() -> tuple[Compact, FastCompact]:
    plain = Compact(CompactConfig(channels=(4, 6, 8), blocks=(1, 1), dim=12, hidden=10)).eval()
    return plain, FastCompact(plain)


@pytest.fixture(scope="module")
def detectors() -> tuple[DedodeDetector, FastDedodeDetector]:
    plain = DedodeDetector("B").eval()
    return plain, FastDedodeDetector(plain)


def refusal(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return caught.type, str(caught.value)


BAD_IMAGES = [
    (torch.zeros(1, 20, 24), "image must have shape (3, H, W), got (1, 20, 24)"),
    (torch.zeros(1, 3, 20, 24), "image must have shape (3, H, W), got (1, 3, 20, 24)"),
    (torch.zeros(3, 0, 24), "image must have shape (3, H, W), got (3, 0, 24)"),
    (
        torch.zeros(3, 20, 24, dtype=torch.uint8),
        "image must be floating point in [0, 1], got torch.uint8; divide 8-bit values by 255",
    ),
]


@pytest.mark.parametrize(("image", "message"), BAD_IMAGES)
def test_images(
    compact: tuple[Compact, FastCompact],
    detectors: tuple[DedodeDetector, FastDedodeDetector],
    image: Tensor,
    message: str,
) -> None:
    for model in compact:
        assert refusal(lambda model=model: model.extract(image, num_keypoints=5))[1] == message
        assert refusal(lambda model=model: model.detect(image, num_keypoints=5))[1] == message
        assert refusal(lambda model=model: model.describe(image, POINTS))[1] == message
    for detector in detectors:
        assert refusal(lambda detector=detector: detector.detect(image, num_keypoints=5))[1] == message


@pytest.mark.parametrize("count", [0, -3])
def test_numbers_of_keypoints(
    compact: tuple[Compact, FastCompact], detectors: tuple[DedodeDetector, FastDedodeDetector], count: int
) -> None:
    message = (ValueError, f"num_keypoints must be positive, got {count}")
    for model in compact:
        assert refusal(lambda model=model: model.extract(GREY, num_keypoints=count)) == message
        assert refusal(lambda model=model: model.detect_batch(GREY[None], num_keypoints=count)) == message
        assert refusal(lambda model=model: model.extract_batch(GREY[None], num_keypoints=count)) == message
    for detector in detectors:
        assert refusal(lambda detector=detector: detector.detect(GREY, num_keypoints=count)) == message
        assert refusal(lambda detector=detector: detector.detect_batch(GREY[None], num_keypoints=count)) == message


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(20, 24), "mask must be a bool tensor, True where keypoints are allowed, got torch.float32"),
        (torch.ones(20, 23) > 0, "mask must have the image's shape (20, 24), got (20, 23)"),
    ],
)
def test_masks(
    compact: tuple[Compact, FastCompact],
    detectors: tuple[DedodeDetector, FastDedodeDetector],
    mask: Tensor,
    message: str,
) -> None:
    for model in (*compact, *detectors):
        assert refusal(lambda model=model: model.detect(GREY, num_keypoints=5, mask=mask))[1] == message


def test_batches_of_fast_forms(compact: tuple[Compact, FastCompact]) -> None:
    _, fast = compact
    for images in (GREY, torch.zeros(2, 1, 20, 24)):
        for call in (
            lambda images=images: fast.extract_batch(images, num_keypoints=5),
            lambda images=images: fast.detect_batch(images, num_keypoints=5),
            lambda images=images: fast.describe_batch(images, [POINTS]),
        ):
            assert refusal(call)[1].startswith("images must have shape (B, 3, H, W) with sides of at least 1, got")
    message = "keypoints must be those of 1 images, got those of 2"
    assert refusal(lambda: fast.describe_batch(GREY[None], [POINTS, POINTS])) == (ValueError, message)


def test_what_is_good_passes() -> None:
    check_image(GREY.half())
    check_images(GREY[None], 20)
    check_count(1)
    check_mask(None, (1, 2))
    check_mask(torch.ones(20, 24, dtype=torch.bool), GREY.shape[1:])
    check_keypoints([POINTS], GREY[None])
    with pytest.raises(ValueError, match="sides of at least 21"):
        check_images(GREY[None], 21)
    with pytest.raises(TypeError, match=r"images must be floating point in \[0, 1\], got torch.uint8"):
        check_images(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
