"""Triton kernels for keypoints of which a cell holds one at most, and for putting together what several runs found.

Where only the best pixel of a window of radius r remains, no two in a cell of (r + 1) x (r + 1) can, unless they are
equal. So there is one candidate a cell, and a choice has that many times fewer to look through.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from steerers.accel.common_kernels import rank
from steerers.accel.networks.keypoint_kernels import at

_TILE = 128  # cells
_STRIP = 256  # pixels
_BLOCK, _STEP = 16, 512  # of keypoints, and of those that they are compared with at once


class Texture(NamedTuple):
    """Where there is something to see."""

    extremes: Tensor  # (B, 2, H / cell, W / cell) float32, the largest grey value of each cell, and of its negatives
    cell: int
    least: float  # by which the grey values of a cell and of those around it differ


class Candidates(NamedTuple):
    """One for each of C cells."""

    values: Tensor  # (B, C) float32 logits, -inf where there is none
    places: Tensor  # (B, C) int32, pixels counted row by row
    totals: Tensor  # (B, P) logarithms of the sums of the exponentials of all logits, in P parts


# Texture --------------------------------------------------------------------------------------------------------------


@triton.jit
def _extremes(
    images, out, H, W, h, w, stride_b, stride_c, stride_y, stride_x, CELL: tl.constexpr, STRIP: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * STRIP + tl.arange(0, STRIP)
    line, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    high = tl.full((STRIP,), float("-inf"), tl.float32)
    low = tl.full((STRIP,), float("-inf"), tl.float32)
    for step in tl.static_range(CELL):
        row = line * CELL + step
        inside = column < tl.where(row < H, W, 0)
        place = images + image * stride_b + row.to(tl.int64) * stride_y + column * stride_x
        grey = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        grey += tl.load(place + stride_c, mask=inside, other=0.0).to(tl.float32)
        grey = (grey + tl.load(place + 2 * stride_c, mask=inside, other=0.0).to(tl.float32)) / 3.0
        high = tl.where(inside, tl.maximum(high, grey), high)
        low = tl.where(inside, tl.maximum(low, -grey), low)
    cell = tl.program_id(0) * (STRIP // CELL) + tl.arange(0, STRIP // CELL)
    to = out + (image * 2 * h + line) * w + cell
    tl.store(to, tl.max(tl.reshape(high, (STRIP // CELL, CELL)), axis=1), mask=cell < w)
    tl.store(to + h * w, tl.max(tl.reshape(low, (STRIP // CELL, CELL)), axis=1), mask=cell < w)


def extremes(images: Tensor, cell: int) -> Tensor:
    """(B, 2, h, w) float32: the largest grey value of each cell, and of its negatives; parts of cells count too.

    Args:
        images: (B, 3, H, W) of any float dtype and strides.
        cell: side in pixels, a power of two up to 256.
    """
    batch, _, height, width = images.shape
    shape = (batch, 2, triton.cdiv(height, cell), triton.cdiv(width, cell))
    out = torch.empty(shape, dtype=torch.float32, device=images.device)
    _extremes[(triton.cdiv(width, _STRIP), shape[2], batch)](
        images, out, height, width, *shape[2:], *images.stride(), cell, _STRIP, num_warps=4
    )  # fmt: skip
    return out


@triton.jit
def _range(extremes, image, row, column, h, w, CELL: tl.constexpr):
    """By how much the grey values of the cells of pixels, and of those around, differ."""
    high = tl.full(row.shape, float("-inf"), tl.float32)
    low = tl.full(row.shape, float("-inf"), tl.float32)
    start = image * 2 * h * w
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            high = tl.maximum(high, at(extremes, start, row // CELL + dy, column // CELL + dx, h, w))
            low = tl.maximum(low, at(extremes, start + h * w, row // CELL + dy, column // CELL + dx, h, w))
    return high + low


# Candidates -----------------------------------------------------------------------------------------------------------


@triton.jit
def _candidates(
    logits, masks, extremes, values, places, totals, H, W, cells, border, h, w, least, LEAST: tl.constexpr,
    RADIUS: tl.constexpr, MASKED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """TILE cells of a row of them; CELL is that of the texture, zero if that does not matter."""
    SIDE: tl.constexpr = RADIUS + 1
    cell = tl.program_id(0) * TILE + tl.arange(0, TILE)
    line, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = image * H * W
    most = tl.full((TILE,), float("-inf"), tl.float32)
    for dy in tl.static_range(SIDE):
        for dx in tl.static_range(SIDE):
            most = tl.maximum(most, at(logits, start, line * SIDE + dy, cell * SIDE + dx, H, W))
    finite = tl.where(most == float("-inf"), 0.0, most)
    total = tl.zeros((TILE,), tl.float32)
    found = tl.full((TILE,), -1, tl.int32)
    for dy in tl.static_range(SIDE):
        for dx in tl.static_range(SIDE):
            row, column = line * SIDE + dy, cell * SIDE + dx
            value = at(logits, start, row, column, H, W)
            inside = column < tl.where(row < H, W, 0)
            total += tl.where(inside & (value == float("-inf")), float("nan"), tl.exp(value - finite))
            right = tl.where((row >= border) & (row < H - border), W - border, 0)
            allowed = inside & (value == most) & (column >= border) & (column < right) & (found < 0)
            if MASKED:
                allowed = allowed & (tl.load(masks + start + row * W + column, mask=inside, other=0) != 0)
            found = tl.where(allowed, row * W + column, found)
    row, column = found // W, found % W
    best = most
    for dy in tl.static_range(-RADIUS, RADIUS + 1):
        for dx in tl.static_range(-RADIUS, RADIUS + 1):
            best = tl.maximum(best, at(logits, start, row + dy, column + dx, H, W))
    allowed = (found >= 0) & (best == most)
    if CELL > 0:
        allowed = allowed & (_range(extremes, image, row, column, h, w, CELL) >= least)
    to = (image * tl.num_programs(1) + line) * cells + cell
    tl.store(values + to, tl.where(allowed, tl.maximum(most, LEAST), float("-inf")), mask=cell < cells)
    tl.store(places + to, tl.where(found < 0, line * SIDE * W + cell * SIDE, found), mask=cell < cells)
    greatest = tl.max(most, axis=0)
    total = tl.sum(total * tl.exp(most - tl.where(greatest == float("-inf"), 0.0, greatest)), axis=0)
    program = (tl.program_id(2) * tl.num_programs(1) + line) * tl.num_programs(0) + tl.program_id(0)
    tl.store(totals + program, tl.log(total) + greatest)


def candidates(logits: Tensor, masks: Tensor | None, size: int, border: int, texture: Texture | None) -> Candidates:
    """The pixels that may be keypoints, at most one in a cell of half a window.

    Of equal pixels in a cell, all greatest there, only the first that is allowed is considered. Totals are NaN where a
    logit is not finite.

    Args:
        logits: (B, H, W) float32, contiguous.
        masks: (B, H, W) bool, contiguous.
        size: side of the window in which only the best pixel remains, odd.
        border: width of the frame in which no keypoint may lie.
        texture: of the images, if keypoints may only lie where there is some.
    """
    batch, height, width = logits.shape
    side = size // 2 + 1
    lines, cells = triton.cdiv(height, side), triton.cdiv(width, side)
    grid = (triton.cdiv(cells, _TILE), lines, batch)
    values = torch.empty((batch, lines * cells), dtype=torch.float32, device=logits.device)
    places = torch.empty_like(values, dtype=torch.int32)
    totals = torch.empty((batch, grid[0] * grid[1]), dtype=torch.float32, device=logits.device)
    seen = (logits, 0, 0, 0.0) if texture is None else (texture.extremes, *texture.extremes.shape[2:], texture.least)
    _candidates[grid](
        logits, logits if masks is None else masks.view(torch.uint8), seen[0], values, places, totals, height, width,
        cells, border, *seen[1:], torch.finfo(torch.float32).min, size // 2, masks is not None,
        0 if texture is None else texture.cell, _TILE, num_warps=4,
    )  # fmt: skip
    return Candidates(values, places, totals)


# Joining --------------------------------------------------------------------------------------------------------------


@triton.jit
def _arrange(
    xy, scores, descriptions, out_xy, out_scores, out_diameters, out_descriptions, stats, batch, first, count, whole,
    kept, ratio_x, ratio_y, diameter, width, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1).to(tl.int64)
    real = i < count
    score = tl.load(scores + image * whole + first + i, mask=real, other=-1.0)
    position = rank(scores + image * whole, whole, score, first + i, BLOCK, STEP)
    keep = real & (position < kept)
    place, to = image * count + i, image * kept + position
    x = tl.load(xy + 2 * place, mask=keep, other=0.0)
    y = tl.load(xy + 2 * place + 1, mask=keep, other=0.0)
    tl.store(out_xy + 2 * to, x * ratio_x + 0.5 * (ratio_x - 1.0), mask=keep)
    tl.store(out_xy + 2 * to + 1, y * ratio_y + 0.5 * (ratio_y - 1.0), mask=keep)
    tl.store(out_scores + to, score, mask=keep)
    tl.store(out_diameters + to, tl.zeros((BLOCK,), tl.float32) + diameter, mask=keep)
    k = tl.arange(0, WIDTH)
    inside = real[:, None] & (k < width)[None, :]
    values = tl.load(descriptions + place[:, None] * stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out_descriptions + to[:, None] * width + k[None, :], values, mask=inside & keep[:, None])
    tl.atomic_add(stats + image, tl.sum((keep & (score >= 0.0)).to(tl.int32), axis=0))
    bad = tl.max(tl.where(values - values == 0.0, 0, 1), axis=1)
    if tl.max(tl.where(score - score == 0.0, bad, 1), axis=0) > 0:
        tl.atomic_max(stats + batch, 1)


def arrange(
    parts: Sequence[tuple[Tensor, Tensor, Tensor]],
    frames: Sequence[tuple[float, float, float]],
    num_keypoints: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The best of all parts, best first; of equal ones the earlier.

    Args:
        parts: (B, N, 2) float32 pixels, (B, N) scores, negative for what only fills up, and (B, N, D) descriptions,
            whose rows may lie apart.
        frames: of each part, by what its x and y are multiplied, and the diameter of its keypoints.

    Returns:
        (B, K, 2) pixels, (B, K) scores, (B, K) diameters, (B, K, D) descriptions, all float32, and (B + 1,) int32: how
        many count of each image, and whether something is not finite.
    """
    scores = parts[0][1] if len(parts) == 1 else torch.cat([score for _, score, _ in parts], dim=1)  # (B, M)
    batch, whole = scores.shape
    kept, width = min(num_keypoints, whole), parts[0][2].shape[2]
    out = [scores.new_empty((batch, kept, *rest)) for rest in ((2,), (), (), (width,))]
    stats = torch.zeros(batch + 1, dtype=torch.int32, device=scores.device)
    first = 0
    for (xy, part, descriptions), frame in zip(parts, frames, strict=True):
        count, rows = part.shape[1], descriptions.flatten(0, 1)
        _arrange[(triton.cdiv(count, _BLOCK), batch)](
            xy, scores, rows, *out, stats, batch, first, count, whole, kept, *frame, width, rows.stride(0),
            triton.next_power_of_2(width), _BLOCK, _STEP, num_warps=4,
        )  # fmt: skip
        first += count
    xy, ranked, diameters, described = out
    return xy, ranked, diameters, described, stats
