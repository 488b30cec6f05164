"""``assert_equivariant``: passes where a steerer steers, and says where one does not."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import steerers
from helpers import EXAMPLES, describe_image, detect_image
from steerers import Steerer, assert_equivariant
from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.images.load import load_image
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.equivariance import equivariance

Describe = Callable[[Tensor, Tensor], Tensor]
STEP = 2.0  # pixels, of the differences below


@pytest.fixture(scope="module")
def photograph() -> tuple[Tensor, Tensor, Describe]:
    """An image, its keypoints, and Upright SIFT as a callable that knows their scales."""
    model = UprightSift()
    image = load_image(EXAMPLES / "coffee.jpg", max_size=400).tensor
    found = detect_image(model, image, num_keypoints=200)

    def describe(image: Tensor, xy: Tensor) -> Tensor:
        return describe_image(model, image, Keypoints(xy, found.scores, found.scales))

    return image, found.xy, describe


def blobs() -> tuple[Tensor, Tensor]:
    """A (1, 81, 81) image that fades to the border, and (N, 2) keypoints on its slopes."""
    y, x = torch.meshgrid(torch.arange(81.0), torch.arange(81.0), indexing="ij")
    image = torch.exp(-((x - 44) ** 2 + (y - 37) ** 2) / 200) + 0.5 * torch.exp(-((x - 30) ** 2 + (y - 48) ** 2) / 90)
    return image[None], torch.tensor([[36.0, 30.0], [50.0, 40.0], [30.0, 55.0], [41.5, 47.25], [55.0, 28.0]])


def sample(image: Tensor, xy: Tensor) -> Tensor:
    """(N,) values of a (1, H, W) image."""
    grid = to_normalised(xy, (image.shape[2], image.shape[1]))[None, None]  # (1, 1, N, 2)
    return F.grid_sample(image[None], grid, align_corners=False)[0, 0, 0]


def value_and_gradient(image: Tensor, xy: Tensor) -> Tensor:
    """(N, 3): the value, which no rotation changes, and the gradient, y upwards, which rotates with the image."""
    right, down = torch.tensor([STEP, 0.0]), torch.tensor([0.0, STEP])
    across = sample(image, xy + right) - sample(image, xy - right)
    upwards = sample(image, xy - down) - sample(image, xy + down)
    return torch.stack([0.1 * sample(image, xy), across, upwards], dim=1)


def test_upright_sift_is_steered_by_its_permutation(photograph: tuple[Tensor, Tensor, Describe]) -> None:
    image, keypoints, describe = photograph
    steerer = Steerer.from_permutation(c4_permutation(), "C4")
    assert_equivariant(describe, steerer, image, keypoints)
    cosines = equivariance(describe, steerer, image, keypoints, math.pi / 2)
    assert cosines.shape == (len(keypoints),)
    assert float(cosines.mean()) > 0.99


def test_models_and_what_they_detected_are_taken(photograph: tuple[Tensor, Tensor, Describe]) -> None:
    image, xy, _ = photograph
    model, steerer = UprightSift(), Steerer.from_permutation(c4_permutation(), "C4")
    found = detect_image(model, image, num_keypoints=50)
    assert found.scales is not None
    for keypoints in (found, xy, xy.numpy()):
        assert_equivariant(model, steerer, image, keypoints)
    assert_equivariant(model, steerer, image.numpy(), found)
    with pytest.raises(AssertionError, match="does not steer"):
        assert_equivariant(model, Steerer.inv(128, "C4"), image, found)


def test_upright_sift_is_not_invariant(photograph: tuple[Tensor, Tensor, Describe]) -> None:
    image, keypoints, describe = photograph
    with pytest.raises(
        AssertionError, match=r"at a rotation of (90|180|270) degrees the mean cosine .* less than 0\.99"
    ):
        assert_equivariant(describe, Steerer.inv(128, "C4"), image, keypoints)


def test_the_inverse_permutation_is_the_wrong_way_round(photograph: tuple[Tensor, Tensor, Describe]) -> None:
    image, keypoints, describe = photograph
    backwards = Steerer.from_permutation(c4_permutation().argsort(), "C4")
    with pytest.raises(AssertionError, match=r"at a rotation of (90|270) degrees"):
        assert_equivariant(describe, backwards, image, keypoints)
    assert_equivariant(describe, backwards, image, keypoints, angles=[0.0, math.pi])


def test_any_angle_with_so2() -> None:
    image, keypoints = blobs()
    steerer = Steerer.from_spec("1x0 + 1x1", "SO2")
    assert_equivariant(value_and_gradient, steerer, image, keypoints)
    assert_equivariant(value_and_gradient, steerer, image, keypoints, angles=[0.3, -1.1, 2.5], min_cosine=0.999)


@pytest.mark.parametrize("spec", ["3x0", "1x0 + 1x2", "1x1 + 1x0"])
def test_a_wrong_frequency_is_named_with_its_angle(spec: str) -> None:
    image, keypoints = blobs()
    with pytest.raises(AssertionError, match=r"does not steer this descriptor: at a rotation of 40 degrees"):
        assert_equivariant(
            value_and_gradient, Steerer.from_spec(spec, "SO2"), image, keypoints, angles=[0.0, math.radians(40)]
        )


def test_a_rotation_the_wrong_way_is_noticed() -> None:
    def clockwise(image: Tensor, xy: Tensor) -> Tensor:
        return value_and_gradient(image, xy) * torch.tensor([1.0, 1.0, -1.0])

    image, keypoints = blobs()
    with pytest.raises(AssertionError, match=r"degrees"):
        assert_equivariant(clockwise, Steerer.from_spec("1x0 + 1x1", "SO2"), image, keypoints)


def test_so2_is_tried_between_quarter_turns() -> None:
    def of_the_canvas(image: Tensor, xy: Tensor) -> Tensor:
        """Sees nothing of a quarter turn of a square image; any other enlarges the canvas."""
        return torch.eye(2)[[int(image.shape[1] > 81)]].expand(len(xy), 2)

    image, keypoints = blobs()
    quarters = [k * math.pi / 2 for k in range(4)]
    assert_equivariant(of_the_canvas, Steerer.inv(2), image, keypoints, angles=quarters)
    with pytest.raises(AssertionError, match=r"at a rotation of \d+ degrees"):
        assert_equivariant(of_the_canvas, Steerer.inv(2), image, keypoints)


def test_min_cosine() -> None:
    image, keypoints = blobs()
    steerer = Steerer.inv(3)
    worst = min(
        float(equivariance(value_and_gradient, steerer, image, keypoints, math.radians(30 * k)).mean())
        for k in range(12)
    )
    assert_equivariant(value_and_gradient, steerer, image, keypoints, min_cosine=worst - 1e-3)
    with pytest.raises(AssertionError, match=rf"is {worst:.4f}"):
        assert_equivariant(value_and_gradient, steerer, image, keypoints, min_cosine=worst + 1e-3)


def test_no_keypoints() -> None:
    image, keypoints = blobs()
    with pytest.raises(ValueError, match="needs at least one keypoint"):
        assert_equivariant(value_and_gradient, Steerer.inv(3), image, keypoints[:0])


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_nan_at_any_rotation_is_no_pass(bad: int) -> None:
    """NaN is neither more nor less than a number: a comparison may step over it."""
    image, keypoints = blobs()

    def nan_once(rotated: Tensor, xy: Tensor) -> Tensor:
        is_bad = torch.equal(rotated, torch.rot90(image, bad, dims=(1, 2)))
        return torch.full((len(xy), 2), math.nan if is_bad else 1.0)

    with pytest.raises(AssertionError):
        assert_equivariant(nan_once, Steerer.inv(2, "C4"), image, keypoints)


def test_angles_the_group_does_not_have() -> None:
    image, keypoints = blobs()
    with pytest.raises(ValueError, match="C4"):
        assert_equivariant(value_and_gradient, Steerer.inv(3, "C4"), image, keypoints, angles=[math.radians(30)])


def test_descriptions_of_another_length() -> None:
    image, keypoints = blobs()
    with pytest.raises(ValueError, match="length 5, got 3"):
        assert_equivariant(value_and_gradient, Steerer.inv(5), image, keypoints)


def test_no_gradients_are_kept() -> None:
    image, keypoints = blobs()
    image.requires_grad_(True)
    kept = []

    def describe(image: Tensor, xy: Tensor) -> Tensor:
        descriptions = value_and_gradient(image, xy)
        kept.append(descriptions.requires_grad)
        return descriptions

    assert_equivariant(describe, Steerer.from_spec("1x0 + 1x1", "SO2"), image, keypoints)
    assert kept
    assert not any(kept)


def test_it_is_public() -> None:
    assert steerers.assert_equivariant is assert_equivariant


def test_it_imports_little() -> None:
    code = (
        "import sys, steerers.steering.equivariance; "
        "print(*(name for name in ('cv2', 'PIL', 'h5py', 'matplotlib', 'steerers.benchmarks') if name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
