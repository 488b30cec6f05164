"""Triton kernels for networks in half precision: convolutions that cuDNN does slowly, or in several passes.

Depthwise ones with what follows them, those of few channels, the first of a network, and those to one channel.

Every map is (B, C, H, W) in channels-last memory, and numbers of channels are powers of two. Sums are made in float32.
Importing this needs Triton; :mod:`steerers.accel.networks.layers` chooses between these and PyTorch's own operations.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def relu(x):
    """The ReLU, of which NaN is NaN: the maximum alone would hide it."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


# Depthwise 5 x 5 ------------------------------------------------------------------------------------------------------


@triton.jit
def _taps(depth, channels, dy: tl.constexpr, C: tl.constexpr):
    """The five weights of a row of the window."""
    at = depth + dy * 5 * C + channels[None, :]
    return tl.load(at), tl.load(at + C), tl.load(at + 2 * C), tl.load(at + 3 * C), tl.load(at + 4 * C)


@triton.jit
def _pixel(at, column, width, dx: tl.constexpr, C: tl.constexpr):
    return tl.load(at + dx * C, mask=(column + dx >= 0) & (column + dx < width), other=0.0)


@triton.jit
def _pixels(at, column, row, H, W, C: tl.constexpr):
    """The eight pixels of a row that four neighbouring outputs are made of; zero beyond the image."""
    width = tl.where((row >= 0) & (row < H), W, 0)
    return (
        _pixel(at, column, width, -2, C),
        _pixel(at, column, width, -1, C),
        _pixel(at, column, width, 0, C),
        _pixel(at, column, width, 1, C),
        _pixel(at, column, width, 2, C),
        _pixel(at, column, width, 3, C),
        _pixel(at, column, width, 4, C),
        _pixel(at, column, width, 5, C),
    )


@triton.jit
def _weighted(total, pixels, taps, first: tl.constexpr):
    for dx in tl.static_range(5):
        total = tl.fma(pixels[first + dx].to(tl.float32), taps[dx], total)
    return total


@triton.jit
def _add_row(sums, pixels, taps):
    """Four neighbouring sums, and what a row adds to each."""
    return (
        _weighted(sums[0], pixels, taps, 0),
        _weighted(sums[1], pixels, taps, 1),
        _weighted(sums[2], pixels, taps, 2),
        _weighted(sums[3], pixels, taps, 3),
    )


@triton.jit(do_not_specialize=["H", "rows"])
def _depthwise(
    x, depth, depth_bias, points, added, out, H, W, rows, C: tl.constexpr, GROUPS: tl.constexpr, TILE_C: tl.constexpr,
    POINTWISE: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """A tile of rows: 5 x 5 depthwise convolution and ReLU, then perhaps a pointwise convolution.

    A thread has two channels of four neighbouring columns, and all 25 weights of them in registers. It goes down the
    rows of its input; each is read once, while the one before is worked on, and counts for five rows of the output,
    whose sums move up by one at every step: ``sums0`` is complete when the last of its five rows has come.
    """
    tiles = tl.cdiv(W, 4 * GROUPS)
    left = (tl.program_id(0) % tiles) * 4 * GROUPS
    channels = (tl.program_id(0) // tiles) * TILE_C + tl.arange(0, TILE_C)
    column = left + 4 * tl.arange(0, GROUPS)[:, None]
    top = tl.program_id(1) * rows
    bottom = tl.minimum(top + rows, H)
    stride = W * C
    origin = tl.program_id(2).to(tl.int64) * H * stride + (top.to(tl.int64) - 2) * stride
    taps0, taps1, taps2 = _taps(depth, channels, 0, C), _taps(depth, channels, 1, C), _taps(depth, channels, 2, C)
    taps3, taps4 = _taps(depth, channels, 3, C), _taps(depth, channels, 4, C)
    bias = tl.load(depth_bias + channels).to(tl.float32)[None, :] + tl.zeros((GROUPS, TILE_C), tl.float32)
    start = (bias, bias, bias, bias)
    sums0, sums1, sums2, sums3 = start, start, start, start
    at = x + origin + column * C + channels[None, :]
    ahead = _pixels(at, column, top - 2, H, W, C)
    if POINTWISE:
        point = tl.load(points + tl.arange(0, C)[:, None] + channels[None, :] * C)
        column = left + tl.arange(0, 4 * GROUPS)[:, None]
        if not RESIDUAL:
            shift = tl.load(added + channels).to(tl.float32)[None, :]
    place = origin - 2 * stride + column * C + channels[None, :]
    for row in range(top - 2, bottom + 2):
        pixels = ahead
        at += stride
        ahead = _pixels(at, left + 4 * tl.arange(0, GROUPS)[:, None], row + 1, H, W, C)
        sums0 = _add_row(sums0, pixels, taps4)
        a = relu(sums0[0]).to(out.dtype.element_ty)
        b = relu(sums0[1]).to(out.dtype.element_ty)
        c = relu(sums0[2]).to(out.dtype.element_ty)
        d = relu(sums0[3]).to(out.dtype.element_ty)
        width = tl.where(row - 2 >= top, W, 0)
        if POINTWISE:
            matrix = tl.join(tl.join(a, c), tl.join(b, d)).permute(0, 2, 3, 1).reshape(4 * GROUPS, C)
            result = tl.dot(matrix, point)
            if RESIDUAL:
                result += tl.load(added + place, mask=column < width, other=0.0).to(tl.float32)
            else:
                result += shift
            tl.store(out + place, result.to(out.dtype.element_ty), mask=column < width)
        else:
            tl.store(out + place, a, mask=column < width)
            tl.store(out + place + C, b, mask=column + 1 < width)
            tl.store(out + place + 2 * C, c, mask=column + 2 < width)
            tl.store(out + place + 3 * C, d, mask=column + 3 < width)
        place += stride
        sums0 = _add_row(sums1, pixels, taps3)
        sums1 = _add_row(sums2, pixels, taps2)
        sums2 = _add_row(sums3, pixels, taps1)
        sums3 = _add_row(start, pixels, taps0)


class Plan(NamedTuple):
    """How a depthwise convolution is cut up."""

    groups: int  # of four columns, in a program
    channels: int  # in a program


_DEPTHWISE = Plan(2, 64)  # these were the best on an H200
_SEPARABLE = {16: Plan(8, 16), 32: Plan(4, 32), 64: Plan(4, 64)}


def depthwise_relu(x: Tensor, depth: Tensor, depth_bias: Tensor, plan: Plan | None = None) -> Tensor:
    """ReLU of the 5 x 5 depthwise convolution of (B, C, H, W), any multiple of 64; ``depth`` is (25, C) float32."""
    return _convolve(x, depth, depth_bias, x, x, plan or _DEPTHWISE, pointwise=False)


def separable(
    x: Tensor, depth: Tensor, depth_bias: Tensor, point: Tensor, added: Tensor, plan: Plan | None = None
) -> Tensor:
    """:func:`~steerers.accel.networks.layers.separable` in one pass, of 16, 32 or 64 channels, or others by a plan."""
    return _convolve(x, depth, depth_bias, point, added, plan or _SEPARABLE[x.shape[1]], pointwise=True)


def _convolve(
    x: Tensor, depth: Tensor, depth_bias: Tensor, point: Tensor, added: Tensor, plan: Plan, *, pointwise: bool
) -> Tensor:
    out = torch.empty_like(x)
    batch, channels, height, width = x.shape
    groups, tile_c = plan
    programs = triton.cdiv(width, 4 * groups) * (channels // tile_c)
    rows = _rows(height, programs * batch, _processors(x.device), halo=4)
    _depthwise[(programs, triton.cdiv(height, rows), batch)](
        x, depth, depth_bias, point, added, out, height, width, rows, channels, groups, tile_c, pointwise,
        pointwise and added.ndim == 4, num_warps=max(1, groups * tile_c // 64),
    )  # fmt: skip
    return out


@cache
def _rows(height: int, programs: int, processors: int, halo: int) -> int:
    """How many rows a program does: few, for all processors to be busy, but not so few that most are read twice.

    A processor works on three programs at once in little more time than on one.
    """
    rounds = {rows: -(-programs * -(-height // rows) // processors) for rows in range(8, 65, 2)}
    return min(rounds, key=lambda rows: max(rounds[rows], 3) * (rows + halo))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# Dense 3 x 3 ----------------------------------------------------------------------------------------------------------


@triton.jit
def _triples(at, k, column, row, H, W, C: tl.constexpr):
    """Three neighbouring pixels, which lie one after the other in memory, for every column; zero beyond the image."""
    width = tl.where((row >= 0) & (row < H), W, 0)
    source = column + k // C - 1
    return tl.load(at, mask=(k < 3 * C) & (source >= 0) & (source < width), other=0.0)


@triton.jit(do_not_specialize=["H", "rows"])
def _conv3(
    x, weights, bias, added, out, H, W, rows, C: tl.constexpr, K: tl.constexpr, TILE: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Rows of TILE pixels; a row of the input counts for three of the output, as in :func:`_depthwise`."""
    left, top = tl.program_id(0) * TILE, tl.program_id(1) * rows
    bottom = tl.minimum(top + rows, H)
    column = left + tl.arange(0, TILE)[:, None]
    k, channels = tl.arange(0, K), tl.arange(0, C)
    stride = W * C
    origin = tl.program_id(2).to(tl.int64) * H * stride + (top.to(tl.int64) - 1) * stride
    matrix = weights + channels[None, :] * (9 * C) + k[:, None]
    real = (k < 3 * C)[:, None]
    weights0 = tl.load(matrix, mask=real, other=0.0)
    weights1 = tl.load(matrix + 3 * C, mask=real, other=0.0)
    weights2 = tl.load(matrix + 6 * C, mask=real, other=0.0)
    start = tl.load(bias + channels).to(tl.float32)[None, :] + tl.zeros((TILE, C), tl.float32)
    sum0, sum1 = start, start
    at = x + origin + (column - 1) * C + k[None, :]
    place = origin - stride + column * C + channels[None, :]
    ahead = _triples(at, k[None, :], column, top - 1, H, W, C)
    for row in range(top - 1, bottom + 1):
        pixels = ahead
        at += stride
        ahead = _triples(at, k[None, :], column, row + 1, H, W, C)
        result = tl.dot(pixels, weights2, sum0)
        sum0 = tl.dot(pixels, weights1, sum1)
        sum1 = tl.dot(pixels, weights0, start)
        inside = column < tl.where(row - 1 >= top, W, 0)
        if RESIDUAL:
            result += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, relu(result).to(out.dtype.element_ty), mask=inside)
        place += stride


def conv3_relu(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None, tile: int = 64) -> Tensor:
    """ReLU of a 3 x 3 convolution of at most 32 channels, by weights in channels-last memory, and perhaps a map added;
    a program does ``tile`` columns."""
    out = torch.empty_like(x)
    batch, channels, height, width = x.shape
    tiles = triton.cdiv(width, tile)
    rows = _rows(height, tiles * batch, _processors(x.device), halo=2)
    _conv3[(tiles, triton.cdiv(height, rows), batch)](
        x, weight, bias, x if added is None else added, out, height, width, rows, channels,
        triton.next_power_of_2(3 * channels), tile, added is not None, num_warps=4,
    )  # fmt: skip
    return out


# To one channel ------------------------------------------------------------------------------------------------------


@triton.jit
def _conv_to_logit(x, weights, bias, out, H, W, C: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr):
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channels = tl.arange(0, C)
    image = tl.program_id(2).to(tl.int64) * H * W
    total = tl.zeros((TILE,), tl.float32) + tl.load(bias).to(tl.float32)
    for dy in tl.static_range(SIDE):
        y = tl.zeros_like(columns) + (tl.program_id(1) + dy - SIDE // 2)
        for dx in tl.static_range(SIDE):
            shifted = columns + dx - SIDE // 2
            inside = ((shifted >= 0) & (shifted < W) & (y >= 0) & (y < H))[:, None]
            offsets = (image + y * W + shifted)[:, None] * C + channels[None, :]
            value = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(weights + (channels * SIDE + dy) * SIDE + dx).to(tl.float32)
            total += tl.sum(value * weight[None, :], axis=1)
    tl.store(out + image + tl.program_id(1) * W + columns, total, mask=columns < W)


def conv_to_logit(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, 1, H, W) float32: a convolution to one channel, by ``weight`` (1, C, 1, 1) or (1, C, 3, 3)."""
    batch, channels, height, width = x.shape
    out = torch.empty((batch, 1, height, width), dtype=torch.float32, device=x.device)
    tile = max(16, 4096 // channels)
    grid = (triton.cdiv(width, tile), height, batch)
    _conv_to_logit[grid](
        x, weight.contiguous(), bias, out, height, width, channels, weight.shape[-1], tile, num_warps=4
    )
    return out


# The first convolution ------------------------------------------------------------------------------------------------


@triton.jit
def _stem(
    images, mean, scale, weights, bias, out, H, W, stride_b, stride_c, stride_y, stride_x,
    weight_o, weight_c, weight_y, weight_x, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    y, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    inputs = tl.arange(0, 32)  # colour, row and column of the 27 inputs
    colour, dy, dx = tl.minimum(inputs // 9, 2), (inputs % 9) // 3 - 1, inputs % 3 - 1
    rows, shifted = y + dy, columns[:, None] + dx[None, :]
    valid = (inputs < 27) & (rows >= 0) & (rows < H)
    valid = valid[None, :] & (shifted >= 0) & (shifted < W)
    offsets = (colour * stride_c + rows * stride_y)[None, :] + shifted * stride_x
    values = tl.load(images + image * stride_b + offsets, mask=valid, other=0.0).to(tl.float32)
    values = (values - tl.load(mean + colour)[None, :]) * tl.load(scale + colour)[None, :]
    values = tl.where(valid, values, 0.0).to(out.dtype.element_ty)
    channels = tl.arange(0, C)
    offsets = (colour * weight_c + (dy + 1) * weight_y + (dx + 1) * weight_x)[:, None] + channels[None, :] * weight_o
    matrix = tl.load(weights + offsets, mask=(inputs < 27)[:, None], other=0.0)
    result = tl.dot(values, matrix) + tl.load(bias + channels).to(tl.float32)[None, :]
    offsets = ((image * H + y) * W + columns)[:, None] * C + channels[None, :]
    result = relu(result).to(out.dtype.element_ty)
    tl.store(out + offsets, result, mask=(columns < W)[:, None])


def stem(images: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a 3 x 3 convolution of ``(images - mean) * scale`` with zero padding; all of any strides."""
    batch, _, height, width = images.shape
    channels = weight.shape[0]
    shape = (batch, channels, height, width)
    out = torch.empty(shape, dtype=weight.dtype, device=images.device, memory_format=torch.channels_last)
    tile = 128
    grid = (triton.cdiv(width, tile), height, batch)
    _stem[grid](
        images, mean, scale, weight, bias, out, height, width, *images.stride(), *weight.stride(), channels, tile,
        num_warps=4,
    )  # fmt: skip
    return out
