"""The matcher in vismatch's shape, by the layout that vismatch's base class checks."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

import steerers
from helpers import EXAMPLES
from steerers.adapters.vismatch import VismatchMatcher
from steerers.geometry import rotation_about_centre, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")
KEYS = {
    "num_inliers", "H", "all_kpts0", "all_kpts1", "all_desc0", "all_desc1", "matched_kpts0", "matched_kpts1",
    "inlier_kpts0", "inlier_kpts1", "matched_confidences",
}  # fmt: skip


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    """A photograph, and the same after a quarter turn, (3, H, W)."""
    upright = VismatchMatcher.load_image(EXAMPLES / "astronaut.jpg", resize=(192, 256))
    return [upright, torch.rot90(upright, 1, (1, 2)).contiguous()]


@pytest.fixture(scope="module")
def matcher() -> VismatchMatcher:
    return VismatchMatcher("cpu", 200, ransac_reproj_thresh=2)


def test_result(images: list[Tensor], matcher: VismatchMatcher) -> None:
    result = matcher(*images)
    assert set(result) == KEYS | {"angle", "angles"}
    expected = steerers.load(num_keypoints=200)(*images)
    assert result["angle"] == expected.angle == pytest.approx(90, abs=1)
    np.testing.assert_array_equal(result["matched_kpts0"], expected.keypoints0)
    np.testing.assert_array_equal(result["matched_kpts1"], expected.keypoints1)
    np.testing.assert_array_equal(result["matched_confidences"], expected.scores)
    np.testing.assert_array_equal(result["angles"], expected.angles)
    for which in (0, 1):
        assert result[f"all_kpts{which}"].shape == (200, 2)
        assert result[f"all_desc{which}"].shape == (200, 256)
        assert result[f"inlier_kpts{which}"].shape == (result["num_inliers"], 2)
    assert result["num_inliers"] > 100
    truth, _ = rotation_about_centre((256, 192), np.pi / 2)
    moved = transform_points(truth, torch.from_numpy(result["inlier_kpts0"])).numpy()
    assert np.median(np.linalg.norm(moved - result["inlier_kpts1"], axis=1)) < 0.5
    through = transform_points(torch.from_numpy(result["H"]), torch.from_numpy(result["inlier_kpts0"])).numpy()
    assert np.linalg.norm(through - result["inlier_kpts1"], axis=1).max() < 2.5


def test_what_the_base_class_of_vismatch_asks_for(images: list[Tensor], matcher: VismatchMatcher) -> None:
    """Seven arrays, in its order, under its checks; it calls in inference mode."""
    result = matcher(*images)
    with torch.inference_mode():
        given = matcher._forward(*images)
    names = [
        "matched_kpts0",
        "matched_kpts1",
        "all_kpts0",
        "all_kpts1",
        "all_desc0",
        "all_desc1",
        "matched_confidences",
    ]
    assert len(given) == 7
    for name, array in zip(names, given, strict=True):
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, result[name])


def test_kinds_of_images(images: list[Tensor], matcher: VismatchMatcher) -> None:
    """(3, H, W) arrays, tensors a little beyond [0, 1], Pillow images and paths."""
    expected = matcher.extract(images[0])
    assert set(expected) == {"all_kpts0", "all_desc0"}
    np.testing.assert_array_equal(matcher.extract(images[0].numpy())["all_kpts0"], expected["all_kpts0"])
    beyond = torch.where(images[0] == images[0].max(), 1.1, images[0])
    assert len(matcher.extract(beyond)["all_kpts0"]) == 200
    with PIL.Image.open(EXAMPLES / "coffee.jpg") as opened:
        picture = matcher.extract(opened)
    np.testing.assert_array_equal(picture["all_kpts0"], matcher.extract(EXAMPLES / "coffee.jpg")["all_kpts0"])
    with pytest.raises(ValueError, match=r"an image must have shape \(3, H, W\), got \(1, 5, 5\)"):
        matcher(torch.zeros(1, 5, 5), images[0])


def test_nothing_to_match(matcher: VismatchMatcher) -> None:
    result = matcher(torch.full((3, 64, 64), 0.5), torch.full((3, 64, 64), 0.5))
    assert result["num_inliers"] == 0
    assert result["H"] is result["angle"] is None
    assert result["matched_kpts0"].shape == result["inlier_kpts1"].shape == result["all_kpts0"].shape == (0, 2)
    assert result["all_desc0"].shape == (0, 256)


def test_load_image() -> None:
    path = EXAMPLES / "coffee.jpg"
    plain = VismatchMatcher.load_image(path)
    with PIL.Image.open(path) as opened:
        assert plain.shape == (3, opened.height, opened.width)
    assert VismatchMatcher.load_image(path, resize=64).shape == (3, 64, 64)
    small = VismatchMatcher.load_image(path, resize=(60, 80))
    assert small.shape == (3, 60, 80)
    assert 0 <= small.min() < small.max() <= 1
    assert small.mean() == pytest.approx(float(plain.mean()), abs=0.01)
    half = VismatchMatcher.load_image(path, resize=(60, 80), rot_angle=180)
    torch.testing.assert_close(half, small.rot90(2, (1, 2)))
    side = VismatchMatcher.load_image(path, resize=64, rot_angle=90)  # counter-clockwise, as torchvision does
    torch.testing.assert_close(side, VismatchMatcher.load_image(path, resize=64).rot90(1, (1, 2)))


def test_options(images: list[Tensor]) -> None:
    matcher = VismatchMatcher(model="upright-sift", strategy="dual-softmax", max_num_keypoints=50)
    result = matcher(images[0], images[0])
    assert result["all_desc0"].shape[1] == 128
    assert result["angles"] is None
    assert matcher.name == "VismatchMatcher"
