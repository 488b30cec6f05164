"""What networks for inference are made of: convolutions together with what follows them, and sampling.

Maps are (B, C, H, W) in channels-last memory. On a GPU in half precision these are one kernel each: cuDNN's, or where
Triton works those of :mod:`.conv_kernels` and :mod:`.resampling_kernels`. Elsewhere they are PyTorch's operations one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers.accel.support import capable, unavailable

Size = tuple[int, int]  # (width, height)
KEYPOINT_MULTIPLE = 256
"""Keypoints of a batch are filled up to a multiple of this, so that runs recorded for a number of them fit again."""
_HALF = (torch.float16, torch.bfloat16)
_FEW = (16, 32)  # channels of convolutions that the kernel for few does faster
_JOINED = (16, 32, 64)  # channels for which a depthwise and a pointwise convolution are faster in one kernel
_DEPTHWISE_TILE = 64  # channels that the kernel for a depthwise convolution alone does at once
_LEAST, _WIDEST = 16, 128  # channels for which the entry to a scale can be, and fits, in one kernel


def has_kernels(device: torch.device) -> bool:
    """Whether the kernels run on a device."""
    return device.type == "cuda" and unavailable(device) is None


def uses_kernels(x: Tensor) -> bool:
    """Whether maps like ``x`` go through the kernels."""
    return x.dtype in _HALF and has_kernels(x.device)


def _uses_cudnn(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN convolves and does what follows in one kernel."""
    return x.is_cuda and x.dtype in _HALF and capable(x.device) and weight.shape[0] % 8 == weight.shape[1] % 8 == 0


def channels_last(x: Tensor) -> Tensor:
    """``x`` in channels-last memory, also where PyTorch thinks that it already is (maps of one pixel or channel)."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 1, added: Tensor | None = None
) -> Tensor:
    """ReLU of a convolution, to which a map may be added."""
    if stride == padding == 1 and _is_small(x, weight):
        from steerers.accel.networks import conv_kernels

        return conv_kernels.conv3_relu(x, weight, bias, added)
    if _uses_cudnn(x, weight):
        rest = (bias, (stride,) * 2, (padding,) * 2, (1, 1), 1)
        if added is None:
            return torch.cudnn_convolution_relu(x, weight, *rest)
        return torch.cudnn_convolution_add_relu(x, weight, added, 1.0, *rest)
    convolved = F.conv2d(x, weight, bias, stride, padding)
    return (convolved if added is None else convolved.add_(added)).relu_()


def stem(images: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a 3 x 3 convolution of ``(images - mean) * scale``, in the dtype of ``weight`` (C, 3, 3, 3)."""
    if uses_kernels(weight) and len(weight) >= _LEAST and _is_power_of_two(len(weight)):
        from steerers.accel.networks import conv_kernels

        return conv_kernels.stem(images, mean, scale, weight, bias)
    normalised = ((images - mean.view(3, 1, 1)) * scale.view(3, 1, 1)).to(weight.dtype)
    return conv_relu(channels_last(normalised), weight, bias)


def max_pool(x: Tensor) -> Tensor:
    """The maximum of every 2 x 2 pixels."""
    if uses_kernels(x) and _is_power_of_two(x.shape[1]):
        from steerers.accel.networks import resampling_kernels

        return resampling_kernels.max_pool(x)
    return F.max_pool2d(x, 2)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A 1 x 1 convolution, by a (out, in) matrix."""
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def pointwise_add(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """``other`` plus a 1 x 1 convolution, by a (out, in) matrix."""
    batch, _, height, width = x.shape
    rows, added = (m.permute(0, 2, 3, 1).reshape(-1, m.shape[1]) for m in (x, other))
    return torch.addmm(added, rows, weight.mT).view(batch, height, width, -1).permute(0, 3, 1, 2)


def separable(x: Tensor, depth: Tensor, depth_bias: Tensor, point: Tensor, added: Tensor) -> Tensor:
    """A 1 x 1 convolution of the ReLU of a 5 x 5 depthwise one, and something added.

    Args:
        depth: (25, C) float32, with its bias (C,).
        point: (C, C) matrix from inputs (columns) to outputs.
        added: a bias (C,), or a map like ``x``.
    """
    channels = x.shape[1]
    if uses_kernels(x) and channels in _JOINED:
        from steerers.accel.networks import conv_kernels

        return conv_kernels.separable(x, depth, depth_bias, point, added)
    if uses_kernels(x) and channels % _DEPTHWISE_TILE == 0:
        from steerers.accel.networks import conv_kernels

        x = conv_kernels.depthwise_relu(x, depth, depth_bias)
    else:
        taps = depth.mT.reshape(channels, 1, 5, 5).to(x.dtype)
        x = F.conv2d(x, taps, depth_bias, padding=2, groups=channels).relu_()
    return pointwise(x, point, added) if added.ndim == 1 else pointwise_add(x, point, added)


def lateral(feature: Tensor, above: Tensor, weight: Tensor, point: Tensor, point_bias: Tensor) -> Tensor:
    """``point(relu(weight(feature) + above))``, where ``above`` is upsampled bilinearly to the feature's size."""
    if uses_kernels(feature) and all(_is_power_of_two(n) and _LEAST <= n <= _WIDEST for n in weight.shape):
        from steerers.accel.networks import resampling_kernels

        return resampling_kernels.lateral(feature, above, weight, point, point_bias)
    if uses_kernels(feature) and _is_power_of_two(above.shape[1]):
        from steerers.accel.networks import resampling_kernels

        hidden = resampling_kernels.upsample_add(pointwise(feature, weight), above, relu=True)
    else:
        upsampled = F.interpolate(above, size=feature.shape[-2:], mode="bilinear", align_corners=False)
        hidden = pointwise_add(feature, weight, upsampled).relu_()
    return pointwise(hidden, point, point_bias)


def upsample_add(fine: Tensor, above: Tensor) -> Tensor:
    """``fine`` plus ``above`` upsampled bilinearly to its size."""
    if uses_kernels(fine) and _is_power_of_two(fine.shape[1]):
        from steerers.accel.networks import resampling_kernels

        return resampling_kernels.upsample_add(fine, above)
    return F.interpolate(above, size=fine.shape[-2:], mode="bilinear", align_corners=False).add_(fine)


def conv_to_logit(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution to one channel, by ``weight`` (1, C, 1, 1) or (1, C, 3, 3); in float32 if ``x`` is in half."""
    if uses_kernels(x) and _is_power_of_two(x.shape[1]):
        from steerers.accel.networks import conv_kernels

        return conv_kernels.conv_to_logit(x, weight, bias)
    total = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
    return total.to(torch.promote_types(x.dtype, torch.float32))


def _is_small(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel for convolutions of few channels applies, which cuDNN does slowly."""
    few = len(weight) in _FEW and tuple(weight.shape[1:]) == (len(weight), 3, 3)
    return few and uses_kernels(x) and weight.is_contiguous(memory_format=torch.channels_last)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


# Sampling of maps that were never upsampled ---------------------------------------------------------------------------
#
# Upsampling a map bilinearly, once or several times, and sampling the result bilinearly is linear in the map, and along
# each axis only a few neighbouring pixels of the map count. Their weights follow from the sizes: a table has, for every
# pixel of the finest size, the pixels of the map that it and the pixel after it are made of. So a decoder that adds up
# the outputs of several scales need not make any of them at full resolution.


class Table(NamedTuple):
    """How the pixels of a fine axis are made of those of a coarse one."""

    first: Tensor  # (fine,) int32, the first pixel of the coarse axis that counts
    weights: Tensor  # (fine, 2, T) float32, of it and those after it: for each fine pixel, and for the one after that


@dataclass(frozen=True, eq=False)
class Stencil:
    """How maps of several sizes are sampled; told apart by identity, so that a recorded run can keep what it reads."""

    tables: tuple[tuple[Table, Table], ...]  # of the axes x and y of each map


@lru_cache(maxsize=64)
def make_stencil(chains: tuple[tuple[Size, ...], ...], device: torch.device) -> Stencil:
    """The stencil of maps that are upsampled bilinearly, each through sizes of its own.

    Args:
        chains: for each map (width, height) of what is sampled, of what that was upsampled from, and so on to the map.
    """
    return Stencil(
        tuple((_table([w for w, _ in chain], device), _table([h for _, h in chain], device)) for chain in chains)
    )


def _table(lengths: Sequence[int], device: torch.device) -> Table:
    """From the finest length of an axis to the coarsest."""
    fine = lengths[0]
    first = np.arange(fine)
    weights = np.zeros((fine, 2, 2))
    weights[:, 0, 0] = 1.0
    weights[first, 1, np.minimum(first + 1, fine - 1) - first] = 1.0
    for above, below in pairwise(lengths):
        first, weights = _lowered(first, weights, above, below)
    used = np.flatnonzero(weights.any(axis=(0, 1)))[-1] + 1  # taps that are zero throughout go
    with torch.inference_mode(False):
        return Table(
            torch.from_numpy(first.astype(np.int32)).to(device),
            torch.from_numpy(np.ascontiguousarray(weights[:, :, :used]).astype(np.float32)).to(device),
        )


def _lowered(
    first: NDArray[np.int64], weights: NDArray[np.float64], above: int, below: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A table into an axis of length ``above`` as one into the axis of length ``below`` that was upsampled to it."""
    places = np.maximum((np.arange(above) + 0.5) * (below / above) - 0.5, 0.0)
    low = np.minimum(places.astype(np.int64), below - 1)
    high, part = np.minimum(low + 1, below - 1), places - low
    taps = np.minimum(first[:, None] + np.arange(weights.shape[2]), above - 1)  # (fine, T)
    start = low[taps[:, 0]]
    lowered = np.zeros((*weights.shape[:2], int((high[taps[:, -1]] - start).max()) + 1))
    for tap in range(weights.shape[2]):
        at = taps[:, tap]
        for side, fraction in ((low, 1 - part), (high, part)):
            slot = (side[at] - start)[:, None, None]  # (fine, 1, 1)
            lowered += (np.arange(lowered.shape[2]) == slot) * (weights[:, :, tap] * fraction[at, None])[:, :, None]
    return start, lowered


def sample_all(maps: Sequence[Tensor], xy: Tensor, size: Size, stencil: Stencil) -> Tensor:
    """(B, N, C) samples of all maps, their channels one after the other, in the maps' dtype.

    Args:
        maps: (B, C_i, H_i, W_i) each.
        xy: (B, N, 2) pixels of an image of ``size`` (width, height).
        stencil: that of the maps.
    """
    if not uses_kernels(maps[0]):
        sampled = [_sample(m, xy, size, pair) for m, pair in zip(maps, stencil.tables, strict=True)]
        return torch.cat(sampled, dim=2).to(maps[0].dtype)
    from steerers.accel.networks import resampling_kernels

    out = torch.empty((*xy.shape[:2], sum(m.shape[1] for m in maps)), dtype=maps[0].dtype, device=xy.device)
    points, offset = xy.float().contiguous(), 0
    for m, pair in zip(maps, stencil.tables, strict=True):
        resampling_kernels.sample_into(out, offset, m, points, size, pair)
        offset += m.shape[1]
    return out


def _sample(maps: Tensor, xy: Tensor, size: Size, tables: tuple[Table, Table]) -> Tensor:
    """(B, N, C) samples of (B, C, H, W) maps, as :func:`~steerers.models.sampling.sample_descriptions` of upsampled
    ones.

    Args:
        xy: (B, N, 2) pixels of an image of ``size`` (width, height).
        tables: of the axes x and y.
    """
    batch, channels, height, width = maps.shape
    column, weight_x = _taps(xy[..., 0], size[0], tables[0], width)  # (B, N, T)
    row, weight_y = _taps(xy[..., 1], size[1], tables[1], height)
    image = torch.arange(batch, device=maps.device)[:, None] * (height * width)
    pixels = maps.permute(0, 2, 3, 1).reshape(-1, channels)
    total = torch.zeros((*xy.shape[:2], channels), dtype=weight_x.dtype, device=maps.device)
    for j in range(row.shape[2]):
        for i in range(column.shape[2]):
            value = pixels[image + row[..., j] * width + column[..., i]].to(total.dtype)
            total.addcmul_(value, (weight_x[..., i] * weight_y[..., j])[..., None])
    return total


def _taps(position: Tensor, size: int, table: Table, length: int) -> tuple[Tensor, Tensor]:
    """Pixels of an axis of ``length`` and their weights, (B, N, T) each, for positions on an image of ``size``."""
    fine = len(table.first)
    place = ((position + 0.5) * (fine / size) - 0.5).clamp(0, fine - 1).nan_to_num(0.0)  # NaN is no index
    before = place.long()
    low, high = table.weights[before].unbind(dim=2)  # (B, N, T)
    weights = torch.lerp(low.to(place.dtype), high.to(place.dtype), (place - before)[..., None])
    steps = torch.arange(weights.shape[2], device=position.device)
    return (table.first[before][..., None] + steps).clamp(max=length - 1), weights
