"""The Triton kernels that go from one size to another and to points, and all of them in a network.

By Triton's interpreter on the CPU, which is chosen when Triton is first imported: these run in a process of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import assert_near, describe_image, detect_image, randn
from steerers.accel.networks import layers
from steerers.accel.networks.dedode import FastDedodeDescriptor, FastDedodeDetector
from steerers.models import dedode

resampling_kernels = pytest.importorskip("steerers.accel.networks.resampling_kernels", reason="needs Triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")


def test_interpreted(interpret: Callable[[], None]) -> None:
    interpret()


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return layers.channels_last(randn(*shape, seed=seed, dtype=dtype))


@interpreted
@pytest.mark.parametrize(
    ("height", "width", "low", "narrow"), [(7, 10, 3, 5), (8, 8, 4, 4), (5, 1, 2, 1), (9, 6, 1, 1)]
)
def test_raising(height: int, width: int, low: int, narrow: int) -> None:
    fine, above = maps(2, 16, height, width), maps(2, 16, low, narrow, seed=1)
    raised = F.interpolate(above, size=(height, width), mode="bilinear", align_corners=False)
    assert_near(resampling_kernels.upsample_add(fine, above), fine + raised, 1e-5)
    feature, weight = maps(2, 32, height, width, seed=2), randn(16, 32, seed=3, dtype=torch.float32) / 6
    point, bias = randn(16, 16, seed=4, dtype=torch.float32) / 4, randn(16, seed=5, dtype=torch.float32)
    assert_near(
        resampling_kernels.lateral(feature, above, weight, point, bias),
        layers.lateral(feature, above, weight, point, bias),
        2e-5,
    )


@interpreted
@pytest.mark.parametrize("size", [(8, 6), (7, 5), (2, 2), (3, 40)])
def test_max_pool(size: tuple[int, int]) -> None:
    x = maps(2, 32, *size)
    assert torch.equal(resampling_kernels.max_pool(x), F.max_pool2d(x, 2))


@interpreted
@pytest.mark.parametrize("channels", [16, 24, 80])
def test_sampling(channels: int) -> None:
    chain = ((21, 17), (10, 8), (5, 4))
    coarse, xy = maps(2, channels, 4, 5), 24 * torch.rand(2, 11, 2, generator=torch.Generator().manual_seed(0)) - 2
    stencil = layers.make_stencil((chain,), xy.device)
    out = torch.full((2, 11, channels + 3), 7.0)
    resampling_kernels.sample_into(out, 2, coarse, xy, (21, 17), stencil.tables[0])
    assert_near(out[..., 2:-1], layers._sample(coarse, xy, (21, 17), stencil.tables[0]), 1e-5)
    assert (out[..., :2] == 7).all()
    assert (out[..., -1] == 7).all()


@interpreted
def test_nan_stays_nan() -> None:
    """Of a ReLU and of a maximum too: what is not finite must show in what comes out, or no one would know."""
    fine, above = maps(1, 16, 6, 8), maps(1, 16, 3, 4, seed=1)
    fine[0, 3, 2, 5] = math.nan
    out = resampling_kernels.upsample_add(fine, above, relu=True)
    assert torch.equal(out.isnan(), fine.isnan())
    assert torch.equal(resampling_kernels.max_pool(fine).isnan(), F.max_pool2d(fine, 2).isnan())
    assert int(resampling_kernels.max_pool(fine).isnan().sum()) == 1
    matrix, bias = randn(16, 16, dtype=torch.float32), randn(16, dtype=torch.float32)
    out = resampling_kernels.lateral(fine, above, matrix, matrix, bias)
    assert out[0, :, 2, 5].isnan().all()
    assert int(out.isnan().sum()) == 16


@interpreted
def test_a_whole_dedode(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU would run it, but for cuDNN: what is passed to the kernels has the layout that they expect."""
    scales = {"8": (512, 64, 32), "4": (288, 128, 32), "2": (160, 32, 16), "1": (80, 16, 1)}
    monkeypatch.setattr(layers, "KEYPOINT_MULTIPLE", 8)
    monkeypatch.setitem(dedode._DETECTORS, "B", dedode._Architecture(1, 1, scales))
    monkeypatch.setitem(dedode._DESCRIPTORS, "B", dedode._Architecture(24, 1, scales))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        detector, descriptor = dedode.DedodeDetector("B").eval(), dedode.DedodeDescriptor("B").eval()
    image = torch.rand(3, 9, 10, generator=torch.Generator().manual_seed(0))
    expected = detect_image(detector, image, num_keypoints=5)
    described = describe_image(descriptor, image, expected)
    fast, fast_descriptor = FastDedodeDetector(detector), FastDedodeDescriptor(descriptor)
    monkeypatch.setattr(layers, "uses_kernels", lambda _: True)
    found = detect_image(fast, image, num_keypoints=5)
    assert_near(found.xy, expected.xy, 1e-4)
    assert_near(found.scores, expected.scores, 1e-4)
    assert_near(describe_image(fast_descriptor, image, expected), described, 1e-4)
