"""The embedded network for inference, at one scale and at several: the keypoints and descriptions of the plain one."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near, describe_image, detect_image, extract_image
from steerers.accel.networks import compact, for_inference
from steerers.accel.networks.compact import FastCompact, FastPyramid, LevelKeypoints
from steerers.features import Keypoints
from steerers.models import zoo
from steerers.models.base import Extractor
from steerers.models.compact import DIAMETER, SAMPLING, Compact, CompactConfig, Pyramid, fold_batch_norms
from steerers.models.sampling import KeypointSampling

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = CompactConfig(channels=(4, 6, 8, 8, 8), blocks=(1, 1, 1, 1), dim=12, hidden=10)
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))
Extracted = Sequence[tuple[Keypoints, Tensor]]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def make(sampling: KeypointSampling = SAMPLING) -> Compact:
    """A small network with statistics of its own in its normalisations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Compact(SMALL, sampling)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return network.eval()


PLAIN = make()
FAST = FastCompact(PLAIN)
PYRAMID = FastPyramid(FAST)


@pytest.fixture(scope="module")
def shipped() -> Compact:
    return next(module for module in zoo.build("compact").extractor.modules() if isinstance(module, Compact))


def pictures(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, 3, height // 3 + 1, width // 3 + 1, generator=generator)
    return F.interpolate(noise, size=(height, width), mode="bicubic").clamp(0, 1)


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    return pictures(1, height, width, seed)[0]


def assert_same(found: Extracted, expected: Extracted, tolerance: float = 1e-4) -> None:
    for (keypoints, descriptions), (wanted, values) in zip(found, expected, strict=True):
        assert keypoints.scales is not None
        assert wanted.scales is not None
        assert torch.equal(keypoints.scales, wanted.scales)
        assert_near(keypoints.xy, wanted.xy, tolerance)
        assert_near(keypoints.scores, wanted.scores, 1e-6)
        assert_near(descriptions, values, tolerance)


# One scale ------------------------------------------------------------------------------------------------------------


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


def test_networks_that_see_farther_and_finer_smooth_before_halving_and_spread() -> None:
    torch.manual_seed(3)
    plain = Compact(dataclasses.replace(SMALL, context=1, antialias=2, fine=2, spread=0.6)).eval()
    for parameter in plain.parameters():
        parameter.data.normal_(0, 0.2)  # what begins as nothing would hide
    image = picture(90, 130)
    with torch.no_grad():
        expected, described = extract_image(plain, image, num_keypoints=60)
    found, descriptions = extract_image(FastCompact(fold_batch_norms(plain)), image, num_keypoints=60)
    assert_near(found.xy, expected.xy, 1e-3)
    assert_near(descriptions, described, 1e-3)


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


@pytest.mark.parametrize("extractor", [FAST, PYRAMID])
def test_results_can_be_trained_with(extractor: Extractor) -> None:
    _, descriptions = extract_image(extractor, picture(130, 140), num_keypoints=5)
    weight = nn.Parameter(torch.ones(12))
    (descriptions * weight).sum().backward()
    assert weight.grad is not None


def test_the_plain_network_stays() -> None:
    plain = make()
    before = copy.deepcopy(plain.state_dict())
    for parameter in FastCompact(plain, torch.bfloat16).parameters():
        parameter.data.zero_()
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("extractor", [FAST, PYRAMID])
def test_refusals(extractor: Extractor) -> None:
    images = pictures(1, 130, 140)
    with pytest.raises(ValueError, match=r"images must have shape \(B, 3, H, W\)"):
        extractor.extract(images[:, :2], num_keypoints=5)
    with pytest.raises(ValueError, match="num_keypoints must be at least 1, got 0"):
        extractor.extract(images, num_keypoints=0)
    with pytest.raises(TypeError, match="masks must be a bool tensor"):
        extractor.extract(images, num_keypoints=5, masks=torch.ones(1, 130, 140))
    with pytest.raises(ValueError, match="masks must have the images' shape"):
        extractor.extract(images, num_keypoints=5, masks=torch.ones(1, 130, 139, dtype=torch.bool))
    images[0, 1, 20, 20] = math.nan
    with pytest.raises(ValueError, match=r"the compact network in torch.float32 gave logits or descriptions that are"):
        extractor.extract(images, num_keypoints=5)


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


# Several scales -------------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    st.tuples(st.integers(100, 180), st.integers(100, 180)),
    st.sampled_from([(1.0,), (1.0, 0.5), (1.0, 0.7, 0.5)]),
    st.sampled_from([3, 60, 10**5]),
    st.booleans(),
    st.integers(0, 100),
)
def test_as_one_scale_after_the_other(
    size: tuple[int, int], scales: tuple[float, ...], count: int, masked: bool, seed: int
) -> None:
    images = pictures(2, *size, seed)
    masks = torch.rand(2, *size, generator=torch.Generator().manual_seed(seed)) > 0.1 if masked else None
    found = FastPyramid(FAST, scales, 0.7).extract(images, num_keypoints=count, masks=masks)
    assert_same(found, Pyramid(FAST, scales, 0.7).extract(images, num_keypoints=count, masks=masks))


@pytest.mark.parametrize("sampling", [KeypointSampling(), KeypointSampling(coverage=False, border=3)])
def test_other_ways_to_choose(sampling: KeypointSampling) -> None:
    network, images = FastCompact(make(sampling)), pictures(2, 130, 140)
    found = FastPyramid(network).extract(images, num_keypoints=50)
    assert_same(found, Pyramid(network).extract(images, num_keypoints=50))


def test_images_with_fewer_keypoints_and_with_none() -> None:
    images = pictures(3, 140, 150)
    images[1] = 0.5
    images[2, :, 20:] = 0.5
    found = PYRAMID.extract(images, num_keypoints=500)
    counts = [len(keypoints) for keypoints, _ in found]
    assert counts[1] == 0 < counts[2] < counts[0] == 500
    assert_same(found, Pyramid(FAST).extract(images, num_keypoints=500))


def test_one_image_is_its_batch() -> None:
    pyramid, image = PYRAMID, picture(131, 150)
    keypoints, descriptions = extract_image(pyramid, image, num_keypoints=40)
    assert_same([(keypoints, descriptions)], pyramid.extract(image[None], num_keypoints=40))
    assert torch.equal(detect_image(pyramid, image, num_keypoints=40).xy, keypoints.xy)
    assert_near(describe_image(pyramid, image, keypoints), descriptions, 1e-4)


def test_small_images_have_one_scale() -> None:
    image = picture(90, 200)
    keypoints, _ = extract_image(PYRAMID, image, num_keypoints=30)
    assert keypoints.scales is not None
    assert keypoints.scales.unique().tolist() == [DIAMETER]
    assert torch.equal(keypoints.xy, extract_image(FAST, image, num_keypoints=30)[0].xy)


def test_copies() -> None:
    image = picture(130, 140)
    expected = [extract_image(PYRAMID, image, num_keypoints=20)]
    for twin in (copy.deepcopy(PYRAMID), pickle.loads(pickle.dumps(PYRAMID))):
        function: Any = twin.extractor._extracting.function
        assert function.__self__ is twin.extractor
        assert_same([extract_image(twin, image, num_keypoints=20)], expected)


def test_a_network_that_moved_is_recorded_anew() -> None:
    """Recordings read its weights where they were."""
    pyramid = copy.deepcopy(PYRAMID)
    for graphs in (pyramid.extractor._extracting, pyramid.extractor._describing):
        graphs._met["something"] = True
        pyramid.to("cpu")
        assert not graphs._met


def test_what_is_wrapped() -> None:
    fast = for_inference(zoo.build("compact").extractor)
    assert isinstance(fast, FastPyramid)
    assert for_inference(fast) is fast
    other = Pyramid(zoo.build("upright-sift-so2").extractor)
    assert for_inference(other) is other


class _Stream:
    """Stands in for a stream, and writes down who waits for whom."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: _Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("recording", [False, True])
def test_smaller_scales_are_a_branch_of_a_recording(recording: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    current = [_Stream("main", log)]

    @contextmanager
    def within(stream: _Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    monkeypatch.setattr(compact, "_side_stream", lambda _: _Stream("side", log))
    monkeypatch.setattr(torch.cuda, "stream", within)

    def task(index: int) -> LevelKeypoints:
        log.append(f"{index} in {current[-1].name}")
        return LevelKeypoints(*(torch.full((1,), float(index)) for _ in range(3)))

    tasks = [lambda index=index: task(index) for index in range(3)]
    found = compact._side_by_side(tasks, torch.device("cuda"))
    assert [int(result.xy) for result in found] == [0, 1, 2]
    if recording:
        assert log == ["side waits for main", "1 in side", "2 in side", "0 in main", "main waits for side"]
    else:
        assert log == ["0 in main", "1 in main", "2 in main"]


def test_detections_do_not_keep_descriptions() -> None:
    """In memory of their own, though a recorded run puts all that it finds into one piece."""
    for found in (
        detect_image(FAST, picture(70, 80), num_keypoints=9),
        *FAST.detect(pictures(2, 70, 80), num_keypoints=9),
    ):
        assert found.xy.untyped_storage().nbytes() == found.xy.nbytes


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_recorded_runs_of_several_scales_on_a_gpu(dtype: torch.dtype, masked: bool) -> None:
    plain = zoo.build("compact").extractor
    fast, eager = (for_inference(plain, dtype, graphs=graphs).to("cuda") for graphs in (4, 0))
    assert isinstance(fast, FastPyramid)
    apart = Pyramid(fast.extractor, fast.scales)
    for seed in range(4):
        images = pictures(2, 200, 263, seed).cuda()
        masks = images[:, 0] > 0.1 if masked else None
        found = fast.extract(images, num_keypoints=300, masks=masks)
        assert_same(found, eager.extract(images, num_keypoints=300, masks=masks), 1e-3)
        assert_same(found, apart.extract(images, num_keypoints=300, masks=masks), 1e-3)
