"""The Triton kernels that convolve and that choose keypoints, on the CPU by Triton's interpreter.

The interpreter is chosen when Triton is first imported, so that these run in a process of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import assert_near, randn
from steerers.accel.networks import layers

conv_kernels = pytest.importorskip("steerers.accel.networks.conv_kernels", reason="needs Triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ROWS = [  # height, programs, and how many rows each does on 132 processors
    (1, 1, 8),  # the fewest
    (98, 56, 14),  # 392 programs: nearly three for each processor
    (784, 25, 38),
    (784, 1000, 56),  # plenty, so that they may be tall and few rows are read twice
]
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")


def test_interpreted(interpret: Callable[[], None]) -> None:
    interpret()


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return layers.channels_last(randn(*shape, seed=seed, dtype=dtype))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of few rows, so that small maps have several."""

    monkeypatch.setattr(conv_kernels, "_rows", lambda *_, **__: 2)


@interpreted
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("shape", "groups", "residual", "dtype"),
    [
        ((1, 32, 4, 18), 4, False, torch.float16),  # two programs down, two across
        ((2, 16, 3, 5), 8, True, torch.float32),
        ((1, 64, 1, 1), 4, True, torch.float32),
    ],
)
def test_separable(shape: tuple[int, int, int, int], groups: int, residual: bool, dtype: torch.dtype) -> None:
    channels = shape[1]
    x, depth = maps(*shape, dtype=dtype), randn(25, channels, seed=1, dtype=torch.float32) / 5
    bias, point = randn(channels, seed=2, dtype=dtype), randn(channels, channels, seed=3, dtype=dtype) / channels**0.5
    added = maps(*shape, seed=4, dtype=dtype) if residual else randn(channels, seed=4, dtype=dtype)
    actual = conv_kernels.separable(x, depth, bias, point, added, conv_kernels.Plan(groups, channels))
    expected = layers.separable(x.float(), depth, bias.float(), point.float(), added.float())
    assert actual.dtype == dtype
    assert_near(actual, expected, 2e-5 if dtype == torch.float32 else 1e-2)


@interpreted
@pytest.mark.usefixtures("short")
def test_depthwise() -> None:
    x, depth, bias = maps(1, 64, 4, 3), randn(25, 64, seed=1, dtype=torch.float32), randn(64, dtype=torch.float32)
    expected = F.conv2d(x, depth.mT.reshape(64, 1, 5, 5), bias, padding=2, groups=64).relu()
    assert_near(conv_kernels.depthwise_relu(x, depth, bias, conv_kernels.Plan(2, 32)), expected, 2e-5)


@interpreted
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(2, 16, 7, 70), (1, 32, 5, 33), (1, 16, 1, 1)])
def test_dense(shape: tuple[int, int, int, int], added: bool) -> None:
    channels = shape[1]
    x, bias = maps(*shape), randn(channels, dtype=torch.float32)
    weight = maps(channels, channels, 3, 3, seed=1) / channels
    other = maps(*shape, seed=2) if added else None
    convolved = F.conv2d(x, weight, bias, padding=1)
    actual = conv_kernels.conv3_relu(x, weight, bias, other, tile=32)
    assert_near(actual, (convolved if other is None else convolved + other).relu(), 1e-5)


@interpreted
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["separable", "depthwise", "dense", "added", "stem"])
def test_nan_stays_nan(name: str) -> None:
    """Of a ReLU too: what is not finite must show in what comes out, or no one would know."""
    x = maps(1, 16, 6, 9)
    x[0, 3, 2, 4] = math.nan
    bias, clean = randn(16, dtype=torch.float32), maps(1, 16, 6, 9)
    depth, point = randn(25, 16, dtype=torch.float32), randn(16, 16, dtype=torch.float32)
    weight = maps(16, 16, 3, 3)
    if name == "separable":
        out = conv_kernels.separable(x, depth, bias, point, bias, conv_kernels.Plan(2, 16))
        assert out[0, :, :5, 2:7].isnan().all()  # the window, of all channels
        assert not out[0, :, :, 7:].isnan().any()
    elif name == "depthwise":
        out = conv_kernels.depthwise_relu(x, depth, bias, conv_kernels.Plan(2, 16))
        assert out[0, 3, :5, 2:7].isnan().all()
        assert int(out.isnan().sum()) == 25
    elif name == "dense":
        out = conv_kernels.conv3_relu(x, weight, bias, tile=16)
        assert out[0, :, 1:4, 3:6].isnan().all()
        assert int(out.isnan().sum()) == 16 * 9
    elif name == "added":
        out = conv_kernels.conv3_relu(clean, weight, bias, x, tile=16)
        assert torch.equal(out.isnan(), x.isnan())
    else:
        first = randn(16, 3, 3, 3, dtype=torch.float32)
        out = conv_kernels.stem(x[:, 1:4], torch.zeros(3), torch.ones(3), first, bias)
        assert out[0, :, 1:4, 3:6].isnan().all()
        assert int(out.isnan().sum()) == 16 * 9


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("side", [1, 3])
def test_weigh(side: int, dtype: torch.dtype) -> None:
    x, weight, bias = maps(2, 16, 7, 21, dtype=dtype), randn(1, 16, side, side, dtype=dtype), randn(1, dtype=dtype)
    actual = conv_kernels.conv_to_logit(x, weight, bias)
    assert actual.dtype == torch.float32
    assert_near(actual, F.conv2d(x.float(), weight.float(), bias.float(), padding=side // 2), 2e-5)


@interpreted
@pytest.mark.parametrize("contiguous", [True, False])
def test_stem(contiguous: bool) -> None:
    images = randn(2, 3, 9, 14, dtype=torch.float32)
    weight, bias = randn(16, 3, 3, 3, dtype=torch.float32), randn(16, dtype=torch.float32)
    if not contiguous:
        images, weight = images.mT, weight.contiguous(memory_format=torch.channels_last)
    mean, scale = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([2.0, 3.0, 4.0])
    assert_near(
        conv_kernels.stem(images, mean, scale, weight, bias), layers.stem(images, mean, scale, weight, bias), 2e-5
    )


@interpreted
def test_trying_out() -> None:
    from steerers.accel.common_kernels import try_out

    try_out(torch.device("cpu"))


@pytest.mark.parametrize(("height", "programs", "rows"), ROWS)
def test_rows(height: int, programs: int, rows: int) -> None:
    assert conv_kernels._rows(height, programs, 132, halo=4) == rows
