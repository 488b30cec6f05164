"""The embedded network for inference: the keypoints and descriptions of the plain one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near, describe_image, detect_image, extract_image
from steerers.accel.networks.compact import FastCompact
from steerers.features import Keypoints
from steerers.models import zoo
from steerers.models.compact import Compact, CompactConfig

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = CompactConfig(channels=(4, 6, 8, 8, 8), blocks=(1, 1, 1, 1), dim=12, hidden=10)
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def make() -> Compact:
    """A small network with statistics of its own in its normalisations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Compact(SMALL)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return network.eval()


PLAIN = make()
FAST = FastCompact(PLAIN)


@pytest.fixture(scope="module")
def shipped() -> Compact:
    return next(module for module in zoo.build("compact").extractor.modules() if isinstance(module, Compact))


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    noise = torch.rand(1, 3, height // 3 + 1, width // 3 + 1, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=(height, width), mode="bicubic")[0].clamp(0, 1)


@given(SIZES, st.booleans(), st.integers(0, 1000))
def test_the_same_for_images_of_any_size(size: tuple[int, int], masked: bool, seed: int) -> None:
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(seed))
    mask = image[0] > 0.3 if masked else None
    with torch.no_grad():
        expected, described = extract_image(PLAIN, image, num_keypoints=9, mask=mask)
    found, descriptions = extract_image(FAST, image, num_keypoints=9, mask=mask)
    assert_near(found.xy, expected.xy, 1e-3)
    assert_near(found.scores, expected.scores, 1e-4)
    assert_near(descriptions, described, 1e-4)
    assert torch.equal(detect_image(FAST, image, num_keypoints=9, mask=mask).xy, found.xy)
    assert_near(describe_image(FAST, image, found), descriptions, 1e-5)


def test_the_shipped_network(shipped: Compact) -> None:
    image = picture(201, 263)
    with torch.no_grad():
        expected, described = extract_image(shipped, image, num_keypoints=300)
    found, descriptions = extract_image(FastCompact(shipped), image, num_keypoints=300)
    assert_near(found.xy, expected.xy, 1e-3)
    assert_near(descriptions, described, 1e-4)


@pytest.mark.parametrize(("dtype", "cosine"), [(torch.bfloat16, 0.995), (torch.float16, 0.9999)])
def test_half_precision(shipped: Compact, dtype: torch.dtype, cosine: float) -> None:
    image, fast = picture(120, 150), FastCompact(shipped, dtype)
    with torch.no_grad():
        keypoints, expected = extract_image(shipped, image, num_keypoints=100)
    descriptions = describe_image(fast, image, keypoints)
    assert descriptions.dtype == torch.float32
    assert float(F.cosine_similarity(descriptions, expected, dim=1).min()) > cosine
    found, _ = extract_image(fast, image, num_keypoints=100)
    assert found.xy.dtype == found.scores.dtype == torch.float32
    near = torch.cdist(found.xy, keypoints.xy).min(dim=1).values < 1
    assert float(near.float().mean()) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    image, fast = picture(50, 61), FastCompact(PLAIN, dtype)
    found, descriptions = extract_image(fast, image, num_keypoints=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again, described = extract_image(fast, image, num_keypoints=20)
        assert torch.equal(describe_image(fast, image, found), describe_image(FastCompact(PLAIN, dtype), image, found))
    assert torch.equal(again.xy, found.xy)
    assert torch.equal(described, descriptions)


def test_a_batch_is_what_its_images_are() -> None:
    images = torch.stack([picture(37, 50, seed) for seed in range(4)])
    images[3] = 0.5  # nothing to see
    masks = torch.ones(4, 37, 50, dtype=torch.bool)
    masks[1, :, 12:] = False
    found = FAST.extract(images, num_keypoints=20, masks=masks)
    for image, mask, (keypoints, descriptions) in zip(images, masks, found, strict=True):
        alone, described = extract_image(FAST, image, num_keypoints=20, mask=mask)
        assert_near(keypoints.xy, alone.xy, 1e-3)
        assert_near(descriptions, described, 1e-4)
    counts = [len(keypoints) for keypoints, _ in found]
    assert counts[0] == counts[2] == 20
    assert 0 < counts[1] < 20
    assert counts[3] == 0
    detected = FAST.detect(images, num_keypoints=20, masks=masks)
    assert [len(keypoints) for keypoints in detected] == counts
    described_again = FAST.describe(images, detected)
    for (_, descriptions), again in zip(found, described_again, strict=True):
        assert_near(again, descriptions, 1e-4)


def test_results_can_be_trained_with() -> None:
    _, descriptions = extract_image(FAST, picture(40, 40), num_keypoints=5)
    weight = nn.Parameter(torch.ones(12))
    (descriptions * weight).sum().backward()
    assert weight.grad is not None


def test_the_plain_network_stays() -> None:
    plain = make()
    before = copy.deepcopy(plain.state_dict())
    for parameter in FastCompact(plain, torch.bfloat16).parameters():
        parameter.data.zero_()
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in before.items())


def test_refusals() -> None:
    image = picture(40, 40)
    with pytest.raises(TypeError, match="masks must be a bool tensor"):
        extract_image(FAST, image, num_keypoints=5, mask=torch.ones(40, 40))
    with pytest.raises(ValueError, match="masks must have the images' shape"):
        extract_image(FAST, image, num_keypoints=5, mask=torch.ones(40, 39, dtype=torch.bool))
    image[1, 20, 20] = math.nan
    with pytest.raises(ValueError, match=r"the compact network in torch.float32 gave logits or descriptions that are"):
        extract_image(FAST, image, num_keypoints=5)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_recorded_runs_on_a_gpu(shipped: Compact, dtype: torch.dtype) -> None:
    fast, eager = (FastCompact(shipped, dtype, graphs=graphs).to("cuda") for graphs in (4, 0))
    for seed in range(4):
        image = picture(120, 150, seed)
        with torch.no_grad():
            keypoints, expected = extract_image(shipped, image, num_keypoints=100)
        onto = Keypoints(keypoints.xy.cuda(), keypoints.scores.cuda())
        descriptions = describe_image(fast, image.cuda(), onto).cpu()
        assert float(F.cosine_similarity(descriptions, expected, dim=1).min()) > 0.999
        found, described = extract_image(fast, image.cuda(), num_keypoints=100)
        again, as_well = extract_image(eager, image.cuda(), num_keypoints=100)
        assert torch.equal(found.xy, again.xy)
        assert_near(described, as_well, 1e-3)
