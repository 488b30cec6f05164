"""The embedded network at several scales in one run: what the scales one after the other give."""

from __future__ import annotations

import copy
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
from steerers.accel.networks import compact
from steerers.accel.networks.compact import FastCompact, FastPyramid
from steerers.accel.networks.inference import for_inference
from steerers.accel.networks.keypoints import LevelKeypoints
from steerers.features import Keypoints
from steerers.models import zoo
from steerers.models.compact import DIAMETER, SAMPLING, Compact, CompactConfig, Pyramid
from steerers.models.sampling import KeypointSampling

pytestmark = pytest.mark.usefixtures("one_thread")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
Extracted = Sequence[tuple[Keypoints, Tensor]]


def make(sampling: KeypointSampling = SAMPLING) -> FastCompact:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = CompactConfig(channels=(4, 6, 8, 8, 8), blocks=(1, 1, 1, 1), dim=12, hidden=10)
        return FastCompact(Compact(config, sampling).eval())


NETWORK = make()


def pictures(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, 3, height // 3 + 1, width // 3 + 1, generator=generator)
    return F.interpolate(noise, size=(height, width), mode="bicubic").clamp(0, 1)


def assert_same(found: Extracted, expected: Extracted, tolerance: float = 1e-4) -> None:
    for (keypoints, descriptions), (wanted, values) in zip(found, expected, strict=True):
        assert keypoints.scales is not None
        assert wanted.scales is not None
        assert torch.equal(keypoints.scales, wanted.scales)
        assert_near(keypoints.xy, wanted.xy, tolerance)
        assert_near(keypoints.scores, wanted.scores, 1e-6)
        assert_near(descriptions, values, tolerance)


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
    found = FastPyramid(NETWORK, scales).extract(images, num_keypoints=count, masks=masks)
    assert_same(found, Pyramid(NETWORK, scales).extract(images, num_keypoints=count, masks=masks))


@pytest.mark.parametrize("sampling", [KeypointSampling(), KeypointSampling(coverage=False, border=3)])
def test_other_ways_to_choose(sampling: KeypointSampling) -> None:
    network, images = make(sampling), pictures(2, 130, 140)
    found = FastPyramid(network).extract(images, num_keypoints=50)
    assert_same(found, Pyramid(network).extract(images, num_keypoints=50))


def test_images_with_fewer_keypoints_and_with_none() -> None:
    images = pictures(3, 140, 150)
    images[1] = 0.5
    images[2, :, 20:] = 0.5
    found = FastPyramid(NETWORK).extract(images, num_keypoints=500)
    counts = [len(keypoints) for keypoints, _ in found]
    assert counts[1] == 0 < counts[2] < counts[0] == 500
    assert_same(found, Pyramid(NETWORK).extract(images, num_keypoints=500))


def test_one_image_is_its_batch() -> None:
    pyramid, image = FastPyramid(NETWORK), pictures(1, 131, 150)[0]
    keypoints, descriptions = extract_image(pyramid, image, num_keypoints=40)
    assert_same([(keypoints, descriptions)], pyramid.extract(image[None], num_keypoints=40))
    assert torch.equal(detect_image(pyramid, image, num_keypoints=40).xy, keypoints.xy)
    assert_near(describe_image(pyramid, image, keypoints), descriptions, 1e-4)


def test_small_images_have_one_scale() -> None:
    image = pictures(1, 90, 200)[0]
    keypoints, _ = extract_image(FastPyramid(NETWORK), image, num_keypoints=30)
    assert keypoints.scales is not None
    assert keypoints.scales.unique().tolist() == [DIAMETER]
    assert torch.equal(keypoints.xy, extract_image(NETWORK, image, num_keypoints=30)[0].xy)


def test_copies() -> None:
    pyramid, image = FastPyramid(NETWORK), pictures(1, 130, 140)[0]
    expected = [extract_image(pyramid, image, num_keypoints=20)]
    for twin in (copy.deepcopy(pyramid), pickle.loads(pickle.dumps(pyramid))):
        function: Any = twin._extracting.function
        assert function.__self__ is twin
        assert_same([extract_image(twin, image, num_keypoints=20)], expected)
    moved = copy.deepcopy(pyramid).to("cpu")
    moved._extracting._met["something"] = True
    assert not moved.to("cpu")._extracting._met


def test_results_can_be_trained_with() -> None:
    _, descriptions = extract_image(FastPyramid(NETWORK), pictures(1, 130, 140)[0], num_keypoints=5)
    weight = nn.Parameter(torch.ones(12))
    (descriptions * weight).sum().backward()
    assert weight.grad is not None


def test_refusals() -> None:
    pyramid, images = FastPyramid(NETWORK), pictures(1, 130, 140)
    with pytest.raises(ValueError, match=r"images must have shape \(B, 3, H, W\)"):
        pyramid.extract(images[:, :2], num_keypoints=5)
    with pytest.raises(ValueError, match="num_keypoints must be at least 1, got 0"):
        pyramid.extract(images, num_keypoints=0)
    with pytest.raises(TypeError, match="masks must be a bool tensor"):
        pyramid.extract(images, num_keypoints=5, masks=torch.ones(1, 130, 140))
    images[0, 1, 20, 20] = math.nan
    with pytest.raises(ValueError, match=r"the compact network in torch.float32 gave logits or descriptions that are"):
        pyramid.extract(images, num_keypoints=5)


def test_only_the_compact_network_is_wrapped() -> None:
    plain = zoo.build("compact").extractor
    assert isinstance(for_inference(plain), FastPyramid)
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


def test_a_network_that_moved_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another module that holds the network moved it: recordings read its weights where they were."""
    pyramid = FastPyramid(make(), (1.0,))
    keys: list[object] = []
    extracting = pyramid._extracting
    monkeypatch.setattr(
        pyramid,
        "_extracting",
        lambda *given, **constants: (keys.append(constants["moves"]), extracting(*given, **constants))[1],
    )
    images = pictures(1, 70, 80)
    for _ in range(2):
        pyramid.extract(images, num_keypoints=5)
    pyramid.extractor.to(torch.float32)
    pyramid.extract(images, num_keypoints=5)
    assert keys[0] == keys[1] != keys[2]


def test_what_is_fast_stays_as_it_is() -> None:
    fast = for_inference(zoo.build("compact").extractor)
    assert isinstance(fast, FastPyramid)
    assert for_inference(fast) is fast


def test_detections_do_not_keep_descriptions() -> None:
    """In memory of their own, though a recorded run puts all that it finds into one piece."""
    for found in (
        detect_image(NETWORK, pictures(1, 70, 80)[0], num_keypoints=9),
        *NETWORK.detect(pictures(2, 70, 80), num_keypoints=9),
    ):
        assert found.xy.untyped_storage().nbytes() == found.xy.nbytes


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_recorded_runs_on_a_gpu(dtype: torch.dtype, masked: bool) -> None:
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
