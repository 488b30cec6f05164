"""What fast networks are made of, against the textbook form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, randn, seeds
from steerers.accel.networks import layers
from steerers.accel.networks.layers import make_stencil
from steerers.models.sampling import sample_descriptions

CPU = torch.device("cpu")
TOLERANCE = 2e-5  # of float32, in which places and weights of sampling are
pytestmark = pytest.mark.usefixtures("one_thread")


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return randn(*shape, seed=seed, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 2, 1)])
def test_convolutions(dtype: torch.dtype, tolerance: float, kernel: int, stride: int, padding: int) -> None:
    x, weight, bias = maps(2, 4, 9, 12, dtype=dtype), maps(6, 4, kernel, kernel, dtype=dtype), randn(6, dtype=dtype)
    expected = F.conv2d(x, weight, bias, stride, padding)
    assert_near(layers.conv_relu(x, weight, bias, stride, padding), expected.relu(), tolerance)
    if stride == 1:
        other = maps(2, 6, 9, 12, seed=1, dtype=dtype)
        kept = other.clone()
        assert_near(layers.conv_relu(x, weight, bias, added=other), (expected + other).relu(), tolerance)
        assert torch.equal(other, kept)


def test_stem_normalises_before_it_pads() -> None:
    images, weight, bias = torch.rand(2, 3, 7, 5), randn(8, 3, 3, 3, dtype=torch.float32), torch.zeros(8)
    mean, scale = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1.0, 2.0, 3.0])
    normalised = (images - mean.view(3, 1, 1)) * scale.view(3, 1, 1)
    assert_near(
        layers.stem(images, mean, scale, weight, bias), F.conv2d(normalised, weight, bias, padding=1).relu(), 1e-5
    )
    assert layers.stem(images, mean, scale, weight.bfloat16(), bias.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("size", [(8, 6), (7, 9), (1, 1), (3, 2)])
def test_pointwise_maps(dtype: torch.dtype, tolerance: float, size: tuple[int, int]) -> None:
    x, weight, bias = maps(2, 4, *size, dtype=dtype), randn(6, 4, dtype=dtype), randn(6, seed=1, dtype=dtype)
    other = maps(2, 6, *size, seed=2, dtype=dtype)
    expected = torch.einsum("oi,bihw->bohw", weight, x)
    assert_near(layers.pointwise(x, weight), expected, tolerance)
    assert_near(layers.pointwise(x, weight, bias), expected + bias[:, None, None], tolerance)
    assert_near(layers.pointwise_add(x, weight, other), expected + other, tolerance)


@pytest.mark.parametrize("residual", [False, True])
def test_separable(residual: bool) -> None:
    x, depth = maps(2, 6, 9, 7, dtype=torch.float32), randn(25, 6, seed=1, dtype=torch.float32)
    bias, point = randn(6, seed=2, dtype=torch.float32), randn(6, 6, seed=3, dtype=torch.float32)
    added = maps(2, 6, 9, 7, seed=4, dtype=torch.float32) if residual else randn(6, seed=4, dtype=torch.float32)
    taps = depth.mT.reshape(6, 1, 5, 5)
    expected = F.conv2d(F.conv2d(x, taps, bias, padding=2, groups=6).relu(), point[..., None, None])
    expected += added if residual else added[:, None, None]
    assert_near(layers.separable(x, depth, bias, point, added), expected, 1e-4)


@pytest.mark.parametrize(("size", "coarse"), [((8, 6), (4, 3)), ((9, 7), (4, 3)), ((5, 5), (1, 1))])
def test_raising(dtype: torch.dtype, tolerance: float, size: tuple[int, int], coarse: tuple[int, int]) -> None:
    fine, above = maps(2, 4, *size, dtype=dtype), maps(2, 4, *coarse, seed=1, dtype=dtype)
    raised = F.interpolate(above, size=size, mode="bilinear", align_corners=False)
    assert_near(layers.upsample_add(fine, above), fine + raised, tolerance)
    feature, weight = maps(2, 3, *size, seed=2, dtype=dtype), randn(4, 3, seed=3, dtype=dtype)
    point, bias = randn(4, 4, seed=4, dtype=dtype), randn(4, seed=5, dtype=dtype)
    hidden = (torch.einsum("oi,bihw->bohw", weight, feature) + raised).relu()
    expected = torch.einsum("oi,bihw->bohw", point, hidden) + bias[:, None, None]
    assert_near(layers.lateral(feature, above, weight, point, bias), expected, tolerance)


@pytest.mark.parametrize("side", [1, 3])
def test_weighing_is_in_float32(side: int) -> None:
    x, weight, bias = maps(2, 8, 5, 6, dtype=torch.float32), maps(1, 8, side, side, dtype=torch.float32), torch.ones(1)
    expected = F.conv2d(x, weight, bias, padding=side // 2)
    assert_near(layers.conv_to_logit(x, weight, bias), expected, 1e-5)
    half = layers.conv_to_logit(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    assert half.dtype == torch.float32
    assert_near(half, expected, 0.2)


def test_sampling_of_several_maps() -> None:
    several = [maps(2, 3, 4, 5, dtype=torch.float32), maps(2, 4, 8, 10, seed=1, dtype=torch.float32)]
    stencil = make_stencil((((10, 8), (5, 4)), ((10, 8),)), CPU)
    xy = torch.tensor([[[0.0, 0.0], [9.0, 7.0], [4.5, 3.25]]]).expand(2, -1, -1)
    sampled = layers.sample_all(several, xy, (10, 8), stencil)
    assert sampled.shape == (2, 3, 7)
    raised = F.interpolate(several[0], size=(8, 10), mode="bilinear", align_corners=False)
    together = torch.cat([raised, several[1]], dim=1)
    assert_near(sampled[:, 0], together[:, :, 0, 0], 1e-5)
    assert_near(sampled[:, 1], together[:, :, 7, 9], 1e-5)
    between = together[:, :, 3:5, 4:6].mean(dim=3)
    assert_near(sampled[:, 2], 0.75 * between[:, :, 0] + 0.25 * between[:, :, 1], 1e-5)


# Sampling -------------------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn, longest: int = 40) -> tuple[tuple[int, int], ...]:
    """Sizes fine to coarse, each between a fifth and all of the one before, as networks halve and round."""
    sizes = [(draw(st.integers(1, longest)), draw(st.integers(1, longest)))]
    for _ in range(draw(st.integers(0, 4))):
        width, height = (draw(st.integers(max(1, n // 5), n)) for n in sizes[-1])
        sizes.append((width, height))
    return tuple(sizes)


def raised(maps: Tensor, chain: tuple[tuple[int, int], ...]) -> Tensor:
    """What a decoder does: to one size after the other."""
    for width, height in reversed(chain[:-1]):
        maps = F.interpolate(maps, size=(height, width), mode="bilinear", align_corners=False)
    return maps


def points(size: tuple[int, int], count: int, seed: int) -> Tensor:
    """(2, N, 2) pixels inside an image, on its border and beyond it, some of them whole."""
    xy = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed))
    xy = xy * (torch.tensor(size) + 3.0) - 2.0
    xy[:, ::3] = xy[:, ::3].round()
    return xy


@given(chains(), seeds)
def test_the_same_as_raising_and_sampling(chain: tuple[tuple[int, int], ...], seed: int) -> None:
    width, height = chain[-1]
    maps, xy = randn(2, 3, height, width, seed=seed, dtype=torch.float32), points(chain[0], 9, seed)
    tables = make_stencil((chain,), CPU).tables[0]
    assert_near(layers._sample(maps, xy, chain[0], tables), sample_descriptions(raised(maps, chain), xy), TOLERANCE)


@given(chains(), st.tuples(st.integers(1, 60), st.integers(1, 60)), seeds)
def test_points_of_an_image_of_another_size(
    chain: tuple[tuple[int, int], ...], size: tuple[int, int], seed: int
) -> None:
    width, height = chain[-1]
    maps, xy = randn(2, 3, height, width, seed=seed, dtype=torch.float32), points(size, 9, seed)
    tables = make_stencil((chain,), CPU).tables[0]
    assert_near(layers._sample(maps, xy, size, tables), sample_descriptions(raised(maps, chain), xy, size), 5e-5)


@given(chains())
def test_weights_sum_to_one_and_taps_are_few(chain: tuple[tuple[int, int], ...]) -> None:
    """So that biases may be added after sampling; and halving needs at most three taps, however often."""
    for table in make_stencil((chain,), CPU).tables[0]:
        assert_near(table.weights.sum(dim=2), torch.ones(table.weights.shape[:2]), 1e-6)
        assert (table.weights >= 0).all()
        assert (table.first >= 0).all()
    halved = tuple((784 >> k, 523 >> k) for k in range(4))
    assert all(table.weights.shape[2] <= 3 for table in make_stencil((halved,), CPU).tables[0])


def test_stencils_are_made_once_and_known_by_identity() -> None:
    chain = ((16, 12), (8, 6))
    first, again = make_stencil((chain,), CPU), make_stencil((chain,), CPU)
    assert first is again
    assert {first: 1}[again] == 1
    assert make_stencil((chain[:1],), CPU) != first


def test_channels_last_and_half_maps() -> None:
    maps, xy = randn(2, 5, 7, 9, dtype=torch.float32), points((9, 7), 20, 0)
    tables = make_stencil((((9, 7),),), CPU).tables[0]
    expected = layers._sample(maps, xy, (9, 7), tables)
    assert torch.equal(layers._sample(maps.contiguous(memory_format=torch.channels_last), xy, (9, 7), tables), expected)
    half = layers._sample(maps.half(), xy, (9, 7), tables)
    assert half.dtype == torch.float32
    assert_near(half, expected, 5e-3)


def test_no_points() -> None:
    tables = make_stencil((((3, 3),),), CPU).tables[0]
    assert layers._sample(torch.rand(1, 4, 3, 3), torch.zeros(1, 0, 2), (3, 3), tables).shape == (1, 0, 4)


# Kernels --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [6, 24, 96])
def test_widths_that_no_kernel_takes(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go through PyTorch's operations; a kernel would fail here, or on a GPU."""
    x, above = maps(1, channels, 4, 6, dtype=torch.float32), maps(1, channels, 2, 3, seed=1, dtype=torch.float32)
    square, bias = randn(channels, channels, dtype=torch.float32), randn(channels, dtype=torch.float32)
    depth, images = randn(25, channels, dtype=torch.float32), torch.rand(1, 3, 4, 6)
    first = maps(channels, 3, 3, 3, dtype=torch.float32)
    calls = (
        lambda: layers.max_pool(x),
        lambda: layers.separable(x, depth, bias, square, bias),
        lambda: layers.lateral(x, above, square, square, bias),
        lambda: layers.upsample_add(x, above),
        lambda: layers.conv_to_logit(x, maps(1, channels, 3, 3, dtype=torch.float32), bias[:1]),
        lambda: layers.stem(images, torch.zeros(3), torch.ones(3), first, bias),
        lambda: layers.conv_relu(x, maps(channels, channels, 3, 3, dtype=torch.float32), bias),
    )
    expected = [call() for call in calls]
    monkeypatch.setattr(layers, "uses_kernels", lambda _: True)
    for call, value in zip(calls, expected, strict=True):
        assert torch.equal(call(), value)


def test_channels_last_in_memory() -> None:
    for shape in ((2, 3, 4, 5), (1, 4, 1, 1), (2, 1, 3, 3)):
        x = randn(*shape)
        laid = layers.channels_last(x)
        assert torch.equal(laid, x)
        assert laid.permute(0, 2, 3, 1).is_contiguous()
