"""Triton kernels for the ends of networks in half precision: the first convolution, and those to one channel.

As in :mod:`steerers.accel.networks.conv_kernels`, every map is (B, C, H, W) in channels-last memory, and numbers of
channels are powers of two. Sums are made in float32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steerers.accel.networks.conv_kernels import relu

# To one channel ------------------------------------------------------------------------------------------------------


@triton.jit
def _weigh(x, weights, bias, out, H, W, C: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr):
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channels = tl.arange(0, C)
    image = tl.program_id(2).to(tl.int64) * H * W
    total = tl.zeros((TILE,), tl.float32) + tl.load(bias).to(tl.float32)
    for dy in tl.static_range(SIDE):
        y = tl.zeros_like(columns) + (tl.program_id(1) + dy - SIDE // 2)
        for dx in tl.static_range(SIDE):
            shifted = columns + dx - SIDE // 2
            inside = ((shifted >= 0) & (shifted < W) & (y >= 0) & (y < H))[:, None]
            places = (image + y * W + shifted)[:, None] * C + channels[None, :]
            value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(weights + (channels * SIDE + dy) * SIDE + dx).to(tl.float32)
            total += tl.sum(value * weight[None, :], axis=1)
    tl.store(out + image + tl.program_id(1) * W + columns, total, mask=columns < W)


def weigh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, 1, H, W) float32: a convolution to one channel, by ``weight`` (1, C, 1, 1) or (1, C, 3, 3)."""
    batch, channels, height, width = x.shape
    out = torch.empty((batch, 1, height, width), dtype=torch.float32, device=x.device)
    tile = max(16, 4096 // channels)
    grid = (triton.cdiv(width, tile), height, batch)
    _weigh[grid](x, weight.contiguous(), bias, out, height, width, channels, weight.shape[-1], tile, num_warps=4)
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
    places = (colour * stride_c + rows * stride_y)[None, :] + shifted * stride_x
    values = tl.load(images + image * stride_b + places, mask=valid, other=0.0).to(tl.float32)
    values = (values - tl.load(mean + colour)[None, :]) * tl.load(scale + colour)[None, :]
    values = tl.where(valid, values, 0.0).to(out.dtype.element_ty)
    channels = tl.arange(0, C)
    places = (colour * weight_c + (dy + 1) * weight_y + (dx + 1) * weight_x)[:, None] + channels[None, :] * weight_o
    matrix = tl.load(weights + places, mask=(inputs < 27)[:, None], other=0.0)
    result = tl.dot(values, matrix) + tl.load(bias + channels).to(tl.float32)[None, :]
    places = ((image * H + y) * W + columns)[:, None] * C + channels[None, :]
    result = relu(result).to(out.dtype.element_ty)
    tl.store(out + places, result, mask=(columns < W)[:, None])


def stem(images: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a 3 x 3 convolution of ``(images - mean) * scale`` with zero padding.

    Args:
        images: (B, 3, H, W) of any float dtype and strides.
        mean, scale: (3,) float32.
        weight: (C, 3, 3, 3) of any strides, in the dtype of the result.
        bias: (C,).
    """
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
