"""Triton kernels for networks in half precision: from one size of maps to another, and from maps to points.

As in :mod:`steerers.accel.networks.conv_kernels`, every map is (B, C, H, W) in channels-last memory, and numbers of
channels are powers of two except where said. Sums are made in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steerers.accel.networks.conv_kernels import relu

# From a coarse map to a fine one --------------------------------------------------------------------------------------


@triton.jit
def _upsampled(above, row, column, width, channels, h, w, ratio_y, ratio_x, C: tl.constexpr):
    """Maps of h x w upsampled bilinearly, at columns up to ``width`` of a row."""
    y = tl.maximum((row + 0.5) * ratio_y - 0.5, 0.0)
    x = tl.maximum((column.to(tl.float32) + 0.5) * ratio_x - 0.5, 0.0)
    y0, x0 = tl.minimum(y.to(tl.int32), h - 1), tl.minimum(x.to(tl.int32), w - 1)
    y1, x1 = tl.minimum(y0 + 1, h - 1), tl.minimum(x0 + 1, w - 1)
    down, right = y - y0, (x - x0)[:, None]
    mask = (column < width)[:, None]
    near, far = x0[:, None] * C + channels[None, :], x1[:, None] * C + channels[None, :]
    upper, lower = above + y0.to(tl.int64) * w * C, above + y1.to(tl.int64) * w * C
    a = tl.load(upper + near, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(upper + far, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(lower + near, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(lower + far, mask=mask, other=0.0).to(tl.float32)
    a += (b - a) * right
    return a + (c + (d - c) * right - a) * down


@triton.jit
def _upsample_add(
    fine, above, out, H, W, h, w, ratio_y, ratio_x, C: tl.constexpr, TILE: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channels = tl.arange(0, C)
    row, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    total = _upsampled(above + image * h * w * C, row, column, W, channels, h, w, ratio_y, ratio_x, C)
    offsets = (image * H + row) * W * C + column[:, None] * C + channels[None, :]
    mask = (column < W)[:, None]
    total += tl.load(fine + offsets, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        total = relu(total)
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=mask)


def upsample_add(fine: Tensor, above: Tensor, *, relu: bool = False) -> Tensor:
    """``fine`` plus ``above`` upsampled bilinearly to its size, or the ReLU of that."""
    batch, channels, height, width = fine.shape
    low, narrow = above.shape[2:]
    out = torch.empty_like(fine)
    tile = max(1, 2048 // channels)
    _upsample_add[(triton.cdiv(width, tile), height, batch)](
        fine, above, out, height, width, low, narrow, low / height, narrow / width, channels, tile, relu, num_warps=4
    )  # fmt: skip
    return out


@triton.jit
def _lateral(
    feature, above, weights, point, point_bias, out, H, W, h, w, ratio_y, ratio_x, ROWS: tl.constexpr,
    F: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channels, inputs = tl.arange(0, C), tl.arange(0, F)
    image = tl.program_id(2).to(tl.int64)
    above += image * h * w * C
    entering = tl.load(weights + inputs[:, None] + channels[None, :] * F)
    mixing = tl.load(point + channels[:, None] + channels[None, :] * C)
    bias = tl.load(point_bias + channels).to(tl.float32)[None, :]
    for step in range(ROWS):
        row = tl.program_id(1) * ROWS + step
        width = tl.where(row < H, W, 0)
        mask = (column < width)[:, None]
        start = (image * H + row) * W
        features = tl.load(feature + start * F + column[:, None] * F + inputs[None, :], mask=mask, other=0.0)
        hidden = _upsampled(above, row, column, width, channels, h, w, ratio_y, ratio_x, C)
        hidden = relu(tl.dot(features, entering, hidden)).to(out.dtype.element_ty)
        result = tl.dot(hidden, mixing) + bias
        tl.store(out + start * C + column[:, None] * C + channels[None, :], result.to(out.dtype.element_ty), mask=mask)


def lateral(feature: Tensor, above: Tensor, weight: Tensor, point: Tensor, point_bias: Tensor, rows: int = 8) -> Tensor:
    """``point(relu(weight(feature) + above upsampled to its size))``; both matrices are (out, in)."""
    batch, inputs, height, width = feature.shape
    channels, low, narrow = above.shape[1:]
    shape = (batch, channels, height, width)
    out = torch.empty(shape, dtype=feature.dtype, device=feature.device, memory_format=torch.channels_last)
    tile = 64
    _lateral[(triton.cdiv(width, tile), triton.cdiv(height, rows), batch)](
        feature, above, weight, point, point_bias, out, height, width, low, narrow, low / height, narrow / width, rows,
        inputs, channels, tile, num_warps=4 if channels <= 64 else 8,
    )  # fmt: skip
    return out


# Pooling --------------------------------------------------------------------------------------------------------------


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _halve(x, out, pixels, H, W, h, w, C: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column, row, image = place % w, (place // w) % h, place // (w * h)
    channels = tl.arange(0, C)
    start = ((image * H + 2 * row) * W + 2 * column)[:, None] * C + channels[None, :]
    mask = (place < pixels)[:, None]
    a = tl.load(x + start, mask=mask)
    b = tl.load(x + start + C, mask=mask)
    c = tl.load(x + start + W * C, mask=mask)
    d = tl.load(x + start + W * C + C, mask=mask)
    best = _larger(_larger(a, b), _larger(c, d))
    tl.store(out + place[:, None] * C + channels[None, :], best, mask=mask)


def max_pool(x: Tensor) -> Tensor:
    """The maximum of every 2 x 2 pixels; an odd last row or column is left out."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, height // 2, width // 2)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels = batch * shape[2] * shape[3]
    tile = max(1, 2048 // channels)
    _halve[(triton.cdiv(pixels, tile),)](
        x, out, pixels, height, width, shape[2], shape[3], channels, tile, num_warps=4
    )  # fmt: skip
    return out


# Sampling -------------------------------------------------------------------------------------------------------------


@triton.jit
def _sample(
    maps, xy, first_x, weights_x, first_y, weights_y, out, count, H, W, wide, high, ratio_x, ratio_y, columns, offset,
    C: tl.constexpr, TILE_C: tl.constexpr, TAPS_X: tl.constexpr, TAPS_Y: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    point = tl.program_id(0) * TILE + tl.arange(0, TILE)
    image = tl.program_id(2).to(tl.int64)
    real = point < count
    x = tl.load(xy + (image * count + point) * 2, mask=real, other=0.0)
    y = tl.load(xy + (image * count + point) * 2 + 1, mask=real, other=0.0)
    x = tl.minimum(tl.maximum((x + 0.5) * ratio_x - 0.5, 0.0), wide - 1.0)
    y = tl.minimum(tl.maximum((y + 0.5) * ratio_y - 0.5, 0.0), high - 1.0)
    left, top = x.to(tl.int32), y.to(tl.int32)
    right, down = x - left, y - top
    start_x, start_y = tl.load(first_x + left), tl.load(first_y + top)
    channels = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    total = tl.zeros((TILE, TILE_C), tl.float32)
    for j in tl.static_range(TAPS_Y):
        low = tl.load(weights_y + (top * 2) * TAPS_Y + j)
        weight_y = low + (tl.load(weights_y + (top * 2 + 1) * TAPS_Y + j) - low) * down
        row = tl.minimum(start_y + j, H - 1)
        for i in tl.static_range(TAPS_X):
            low = tl.load(weights_x + (left * 2) * TAPS_X + i)
            weight_x = low + (tl.load(weights_x + (left * 2 + 1) * TAPS_X + i) - low) * right
            column = tl.minimum(start_x + i, W - 1)
            offsets = ((image * H + row) * W + column)[:, None] * C + channels[None, :]
            weight = (weight_x * weight_y)[:, None]
            value = tl.load(maps + offsets, mask=real[:, None] & (channels < C)[None, :], other=0.0)
            total += weight * value.to(tl.float32)
    offsets = (image * count + point)[:, None] * columns + offset + channels[None, :]
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=real[:, None] & (channels < C)[None, :])


def sample_into(
    out: Tensor,
    offset: int,
    maps: Tensor,
    xy: Tensor,
    size: tuple[int, int],
    tables: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    """Write samples of (B, C, H, W) maps, of any C, into the columns of ``out`` from ``offset`` on; see
    :func:`~steerers.accel.networks.layers.sample_all`."""
    batch, channels, height, width = maps.shape
    count = xy.shape[1]
    (first_x, weights_x), (first_y, weights_y) = tables
    wide, high = len(first_x), len(first_y)
    tile_c = min(64, triton.next_power_of_2(channels))
    tile = 512 // tile_c
    grid = (triton.cdiv(count, tile), triton.cdiv(channels, tile_c), batch)
    _sample[grid](
        maps, xy, first_x, weights_x, first_y, weights_y, out, count, height, width, wide, high, wide / size[0],
        high / size[1], out.shape[2], offset, channels, tile_c, weights_x.shape[2], weights_y.shape[2], tile,
        num_warps=4,
    )  # fmt: skip
