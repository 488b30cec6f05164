"""DeDoDe for inference: the outputs of the plain modules, whatever the size of the image."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near, describe_image, detect_image
from steerers.accel.networks.dedode import FastDedodeDescriptor, FastDedodeDetector
from steerers.features import Keypoints
from steerers.models.dedode import PATCH, DedodeDescriptor, DedodeDetector
from steerers.models.sampling import KeypointSampling

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = [(64, 72), (61, 83), (30, 29), (8, 9)]  # 8 is the smallest
HALF = [torch.bfloat16, torch.float16]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Patches(nn.Module):
    """A stand-in for DINOv2."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 1024, PATCH, stride=PATCH)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.embed(images)
        return patches


@torch.no_grad()
def randomise(network: Any) -> Any:
    """Random weights and statistics that keep activations of order one; the backbone's stay."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            gain = 2 if module.kernel_size == (3, 3) else 1
            module.weight.normal_(std=math.sqrt(gain / module.weight[0].numel()), generator=generator)
            module.bias.normal_(std=0.1, generator=generator)  # type: ignore[union-attr]
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2, generator=generator)  # type: ignore[union-attr]
            module.running_var.uniform_(0.6, 1.4, generator=generator)  # type: ignore[union-attr]
            module.weight.uniform_(0.8, 1.2, generator=generator)
            module.bias.normal_(std=0.2, generator=generator)
    return network.eval()


@pytest.fixture(scope="module")
def descriptor() -> DedodeDescriptor:
    network: DedodeDescriptor = randomise(DedodeDescriptor("B"))
    return network


@pytest.fixture(scope="module")
def descriptor_g() -> DedodeDescriptor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = Patches()
    network: DedodeDescriptor = randomise(DedodeDescriptor("G", backbone=backbone))
    return network


@pytest.fixture(scope="module")
def detector() -> DedodeDetector:
    network: DedodeDetector = randomise(DedodeDetector("B"))
    return network


@pytest.fixture(scope="module")
def fast(descriptor: DedodeDescriptor) -> FastDedodeDescriptor:
    return FastDedodeDescriptor(descriptor)


@pytest.fixture(scope="module")
def fast_detector(detector: DedodeDetector) -> FastDedodeDetector:
    return FastDedodeDetector(detector)


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    noise = torch.rand(1, 3, height // 4 + 1, width // 4 + 1, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=(height, width), mode="bilinear")[0]


def everywhere(height: int, width: int, count: int = 60, seed: int = 0) -> Keypoints:
    """Keypoints in an image, at its corners, and a little outside."""
    xy = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * torch.tensor([width + 2.0, height + 2.0])
    corners = torch.tensor([[0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1]])
    return Keypoints(torch.cat([corners, xy - 1.5]), torch.ones(count + 4))


def cosine(actual: Tensor, expected: Tensor) -> float:
    return float(F.cosine_similarity(actual.float(), expected, dim=1).min())


# The same outputs -----------------------------------------------------------------------------------------------------


@given(st.tuples(st.integers(8, 40), st.integers(8, 40)), st.integers(0, 1000))
@example((64, 72), 0)
@example((61, 83), 0)
@example((8, 9), 0)  # the smallest
@settings(max_examples=8)
def test_descriptions(
    descriptor: DedodeDescriptor, fast: FastDedodeDescriptor, size: tuple[int, int], seed: int
) -> None:
    image, keypoints = picture(*size, seed), everywhere(*size, seed=seed)
    actual = describe_image(fast, image, keypoints)
    assert actual.dtype == torch.float32
    assert not actual.is_inference()
    assert_near(actual, describe_image(descriptor, image, keypoints), 1e-4)


@pytest.mark.parametrize(("height", "width"), [(56, 70), (45, 33)])
def test_descriptions_of_g(descriptor_g: DedodeDescriptor, height: int, width: int) -> None:
    image, keypoints = picture(height, width), everywhere(height, width)
    expected = describe_image(descriptor_g, image, keypoints)
    assert_near(describe_image(FastDedodeDescriptor(descriptor_g), image, keypoints), expected, 1e-4)
    assert (
        cosine(describe_image(FastDedodeDescriptor(descriptor_g, torch.bfloat16), image, keypoints), expected) > 0.999
    )


@pytest.mark.parametrize("dtype", HALF)
def test_descriptions_in_half_precision(descriptor: DedodeDescriptor, dtype: torch.dtype) -> None:
    image, keypoints = picture(45, 50), everywhere(45, 50)
    actual = describe_image(FastDedodeDescriptor(descriptor, dtype), image, keypoints)
    assert actual.dtype == torch.float32
    assert cosine(actual, describe_image(descriptor, image, keypoints)) > 0.999


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(
    "sampling", [KeypointSampling(), KeypointSampling(coverage=False, nms_size=3, subpixel=True, border=1)]
)
def test_keypoints(detector: DedodeDetector, height: int, width: int, sampling: KeypointSampling) -> None:
    image, detector = picture(height, width), copy.deepcopy(detector)
    detector.sampling = sampling
    fast_detector = FastDedodeDetector(detector)
    with torch.no_grad():
        logits = fast_detector.logits(image[None])
        assert_near(logits, detector.logits(image[None]), 1e-4)
    mask = torch.rand(height, width, generator=torch.Generator().manual_seed(1)) > 0.2
    for given_mask in (None, mask):
        actual = detect_image(fast_detector, image, num_keypoints=20, mask=given_mask)
        expected = detect_image(detector, image, num_keypoints=20, mask=given_mask)
        assert_near(actual.xy, expected.xy, 1e-3)
        assert_near(actual.scores, expected.scores, 1e-4)


@pytest.mark.parametrize("dtype", HALF)
def test_logits_in_half_precision(detector: DedodeDetector, dtype: torch.dtype) -> None:
    image = picture(40, 56)
    with torch.no_grad():
        expected, actual = detector.logits(image[None]), FastDedodeDetector(detector, dtype).logits(image[None])
    assert actual.dtype == torch.float32
    assert float((actual - expected).std() / expected.std()) < 0.02


def test_the_large_detector() -> None:
    detector = randomise(DedodeDetector("L"))
    image = picture(37, 42)
    with torch.no_grad():
        assert_near(FastDedodeDetector(detector).logits(image[None]), detector.logits(image[None]), 1e-4)


def test_autocast_changes_nothing(fast: FastDedodeDescriptor, fast_detector: FastDedodeDetector) -> None:
    image = picture(30, 29)
    found = detect_image(fast_detector, image, num_keypoints=20)
    descriptions = describe_image(fast, image, found)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = detect_image(fast_detector, image, num_keypoints=20)
        assert torch.equal(again.xy, found.xy)
        assert torch.equal(describe_image(fast, image, found), descriptions)


# Batches --------------------------------------------------------------------------------------------------------------


def test_a_batch_is_what_its_images_are(fast: FastDedodeDescriptor, fast_detector: FastDedodeDetector) -> None:
    images = torch.stack([picture(40, 52, seed) for seed in range(3)])
    masks = torch.ones(3, 40, 52, dtype=torch.bool)
    masks[1, :, 2:] = False  # leaves fewer keypoints than asked for
    masks[2] = False
    found = fast_detector.detect(images, num_keypoints=90, masks=masks)
    described = fast.describe(images, found)
    assert [len(keypoints) for keypoints in found] == [90, 80, 0]
    for image, mask, keypoints, descriptions in zip(images, masks, found, described, strict=True):
        alone = detect_image(fast_detector, image, num_keypoints=90, mask=mask)
        assert_near(keypoints.xy, alone.xy, 1e-4)
        assert_near(keypoints.scores, alone.scores, 1e-4)
        assert_near(descriptions, describe_image(fast, image, keypoints), 1e-4)
        assert descriptions.shape == (len(keypoints), 256)


# The module -----------------------------------------------------------------------------------------------------------


def test_the_plain_module_stays(descriptor: DedodeDescriptor) -> None:
    before = copy.deepcopy(descriptor.state_dict())
    fast = FastDedodeDescriptor(descriptor, torch.bfloat16)
    for parameter in fast.parameters():
        parameter.data.zero_()
    after = descriptor.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert not fast.training


def test_a_copy_is_a_network_of_its_own(fast: FastDedodeDescriptor) -> None:
    image, keypoints = picture(16, 16), everywhere(16, 16, 5)
    expected = describe_image(fast, image, keypoints)
    other = copy.deepcopy(fast)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert not describe_image(other, image, keypoints).any()
    assert torch.equal(describe_image(fast, image, keypoints), expected)


def test_what_cannot_be_folded_is_refused() -> None:
    network = DedodeDetector("B")
    network.encoder.layers[1] = nn.BatchNorm2d(64, track_running_stats=False)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match="without running statistics cannot be folded"):
        FastDedodeDetector(network)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_bad_images_are_refused(fast: FastDedodeDescriptor, fast_detector: FastDedodeDetector) -> None:
    keypoints = everywhere(16, 16, 2)
    for image, message in (
        (torch.rand(1, 16, 16), r"images must have shape \(B, 3, H, W\)"),
        (torch.rand(3, 7, 16), "sides of at least 8"),
    ):
        with pytest.raises(ValueError, match=message):
            describe_image(fast, image, keypoints)
        with pytest.raises(ValueError, match=message):
            detect_image(fast_detector, image, num_keypoints=3)
    with pytest.raises(TypeError, match="images must be floating point"):
        describe_image(fast, torch.zeros(3, 16, 16, dtype=torch.uint8), keypoints)
    with pytest.raises(TypeError, match="masks must be a bool tensor"):
        detect_image(fast_detector, torch.rand(3, 16, 16), num_keypoints=3, mask=torch.ones(16, 16))
    with pytest.raises(ValueError, match="masks must have the images' shape"):
        detect_image(fast_detector, torch.rand(3, 16, 16), num_keypoints=3, mask=torch.ones(16, 15, dtype=torch.bool))


def test_what_is_not_finite_is_an_error(fast: FastDedodeDescriptor, fast_detector: FastDedodeDetector) -> None:
    image = picture(16, 16)
    image[0, 3, 3] = math.nan
    with pytest.raises(ValueError, match=r"DeDoDe descriptor B in torch.float32 gave descriptions that are not finite"):
        describe_image(fast, image, everywhere(16, 16, 2))
    with pytest.raises(ValueError, match=r"DeDoDe detector B in torch.float32 gave logits that are not finite"):
        detect_image(fast_detector, image, num_keypoints=3)


# On a GPU -------------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("height", "width"), [(64, 72), (61, 83)])
def test_recorded_runs_on_a_gpu(descriptor: DedodeDescriptor, dtype: torch.dtype, height: int, width: int) -> None:
    keypoints = everywhere(height, width)
    fast = FastDedodeDescriptor(descriptor, dtype).to("cuda")
    for seed in (0, 1, 2, 3):
        image = picture(height, width, seed)
        actual = describe_image(fast, image.cuda(), keypoints).cpu()
        assert cosine(actual, describe_image(descriptor, image, keypoints)) > 0.999


@on_gpu
@pytest.mark.parametrize("dtype", HALF)
def test_the_detector_on_a_gpu(detector: DedodeDetector, dtype: torch.dtype) -> None:
    fast = FastDedodeDetector(detector, dtype).to("cuda")
    image = picture(64, 90)
    with torch.inference_mode():
        expected = detector.logits(image[None])
        actual = fast.logits(image[None].cuda()).cpu()
    assert float((actual - expected).std() / expected.std()) < 0.02
    found = [detect_image(fast, image.cuda(), num_keypoints=30) for _ in range(3)]
    assert all(torch.equal(keypoints.xy, found[0].xy) for keypoints in found)
