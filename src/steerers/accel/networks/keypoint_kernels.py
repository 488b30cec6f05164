"""Triton kernels for keypoints: candidates from (B, H, W) maps of float32 logits, their positions, and their order.

Where only the best pixel of a window of radius r remains, no two in a cell of (r + 1) x (r + 1) can, unless they are
equal. So there is one candidate a cell, and a choice has that many times fewer to look through.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from steerers.accel.common_kernels import rank
from steerers.models.compact import CELL, FLATTEST
from steerers.models.sampling import LEAST_CURVATURE, SUBPIXEL_TEMPERATURE

_TILE = 128  # cells
_STRIP = 256  # pixels
_BLOCK, _STEP = 16, 512  # of keypoints, and of those that they are compared with at once


@triton.jit
def at(logits, image, row, column, H, W):
    """The map that begins at ``image``; -inf outside."""
    width = tl.where((row >= 0) & (row < H), W, 0)
    return tl.load(logits + image + row * W + column, mask=(column >= 0) & (column < width), other=float("-inf"))


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
        pixel = images + image * stride_b + row.to(tl.int64) * stride_y + column * stride_x
        grey = tl.load(pixel, mask=inside, other=0.0).to(tl.float32)
        grey += tl.load(pixel + stride_c, mask=inside, other=0.0).to(tl.float32)
        grey = (grey + tl.load(pixel + 2 * stride_c, mask=inside, other=0.0).to(tl.float32)) / 3.0
        high = tl.where(inside, tl.maximum(high, grey), high)
        low = tl.where(inside, tl.maximum(low, -grey), low)
    cell = tl.program_id(0) * (STRIP // CELL) + tl.arange(0, STRIP // CELL)
    to = out + (image * 2 * h + line) * w + cell
    tl.store(to, tl.max(tl.reshape(high, (STRIP // CELL, CELL)), axis=1), mask=cell < w)
    tl.store(to + h * w, tl.max(tl.reshape(low, (STRIP // CELL, CELL)), axis=1), mask=cell < w)


def extremes(images: Tensor) -> Tensor:
    """(B, 2, h, w) float32: the largest grey value of each cell of the texture, and of its negatives; parts of cells
    count too. What :func:`~steerers.models.compact.textured` goes by, of images of any float dtype and strides."""
    batch, _, height, width = images.shape
    shape = (batch, 2, triton.cdiv(height, CELL), triton.cdiv(width, CELL))
    out = torch.empty(shape, dtype=torch.float32, device=images.device)
    _extremes[(triton.cdiv(width, _STRIP), shape[2], batch)](
        images, out, height, width, *shape[2:], *images.stride(), CELL, _STRIP, num_warps=4
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
    logits, masks, extremes, values, pixels, totals, H, W, cells, border, h, w, least, LEAST: tl.constexpr,
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
    tl.store(pixels + to, tl.where(found < 0, line * SIDE * W + cell * SIDE, found), mask=cell < cells)
    greatest = tl.max(most, axis=0)
    total = tl.sum(total * tl.exp(most - tl.where(greatest == float("-inf"), 0.0, greatest)), axis=0)
    program = (tl.program_id(2) * tl.num_programs(1) + line) * tl.num_programs(0) + tl.program_id(0)
    tl.store(totals + program, tl.log(total) + greatest)


def candidates(
    logits: Tensor, masks: Tensor | None, size: int, border: int, texture: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels that may be keypoints, at most one in a cell of half a window.

    Of equal pixels in a cell, all greatest there, only the first that is allowed is considered. Totals are NaN where a
    logit is not finite.

    Args:
        logits: (B, H, W) float32, contiguous.
        masks: (B, H, W) bool, contiguous.
        size: side of the window in which only the best pixel remains, odd.
        border: width of the frame in which no keypoint may lie.
        texture: the :func:`extremes` of the images, if keypoints may only lie where there is something to see.

    Returns:
        For each of C cells (B, C) logits, -inf where there is no keypoint, and (B, C) int32 pixels, counted row by row;
        and (B, P) logarithms of the sums of the exponentials of all logits, in P parts.
    """
    batch, height, width = logits.shape
    side = size // 2 + 1
    lines, cells = triton.cdiv(height, side), triton.cdiv(width, side)
    grid = (triton.cdiv(cells, _TILE), lines, batch)
    values = torch.empty((batch, lines * cells), dtype=torch.float32, device=logits.device)
    pixels = torch.empty_like(values, dtype=torch.int32)
    totals = torch.empty((batch, grid[0] * grid[1]), dtype=torch.float32, device=logits.device)
    seen = (logits, 0, 0, 0.0) if texture is None else (texture, *texture.shape[2:], FLATTEST)
    _candidates[grid](
        logits, logits if masks is None else masks.view(torch.uint8), seen[0], values, pixels, totals, height, width,
        cells, border, *seen[1:], torch.finfo(torch.float32).min, size // 2, masks is not None,
        0 if texture is None else CELL, _TILE, num_warps=4,
    )  # fmt: skip
    return values, pixels, totals


# Positions ------------------------------------------------------------------------------------------------------------


@triton.jit
def _top(logits, image, row, column, H, W, least):
    """How far the top of the paraboloid through nine logits is from the middle one, along x and y."""
    up, left = tl.maximum(row - 1, 0), tl.maximum(column - 1, 0)
    down, right = tl.minimum(row + 1, H - 1), tl.minimum(column + 1, W - 1)
    a, b, c = at(logits, image, up, left, H, W), at(logits, image, up, column, H, W), at(logits, image, up, right, H, W)
    d, e = at(logits, image, row, left, H, W), at(logits, image, row, column, H, W)
    f, g = at(logits, image, row, right, H, W), at(logits, image, down, left, H, W)
    h, i = at(logits, image, down, column, H, W), at(logits, image, down, right, H, W)
    dx, dy = ((c + f + i) - (a + d + g)) / 6, ((g + h + i) - (a + b + c)) / 6
    dxx, dyy = ((c + f + i) + (a + d + g) - 2 * (b + e + h)) / 3, ((g + h + i) + (a + b + c) - 2 * (d + e + f)) / 3
    dxy = (i + a - g - c) / 4
    curvature = dxx * dyy - dxy * dxy
    is_top = (dxx < 0) & (curvature > least)
    curvature = tl.where(is_top, curvature, 1.0)
    x = tl.where(is_top, tl.minimum(tl.maximum((dxy * dy - dyy * dx) / curvature, -1.0), 1.0), 0.0)
    return x, tl.where(is_top, tl.minimum(tl.maximum((dxy * dx - dxx * dy) / curvature, -1.0), 1.0), 0.0)


@triton.jit
def _positions(
    logits, best, values, pixels, totals, xy, scores, count, cells, parts, H, W, inverse, factor, least,
    RADIUS: tl.constexpr, SIDE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, PEAK: tl.constexpr,
):  # fmt: skip
    point = tl.program_id(0) * TILE + tl.arange(0, TILE)
    real = point < count
    image = tl.program_id(1).to(tl.int64)
    index = tl.load(best + image * count + point, mask=real, other=0)
    index = tl.load(pixels + image * cells + index, mask=real, other=0).to(tl.int64)
    column, row = (index % W).to(tl.int32), (index // W).to(tl.int32)
    if PEAK:
        right, down = _top(logits, image * H * W, row, column, H, W, least)
    else:
        step = tl.arange(0, SIDE)
        dx, dy = step % (2 * RADIUS + 1) - RADIUS, step // (2 * RADIUS + 1) - RADIUS
        x, y = column[:, None] + dx[None, :], row[:, None] + dy[None, :]
        window = at(logits, image * H * W, tl.where(dy <= RADIUS, y, -1), x, H, W) * inverse
        weights = tl.exp(window - tl.max(window, axis=1)[:, None])
        whole = tl.sum(weights, axis=1)
        right = tl.sum(weights * dx.to(tl.float32)[None, :], axis=1) / whole
        down = tl.sum(weights * dy.to(tl.float32)[None, :], axis=1) / whole
    to = xy + (image * count + point) * 2
    tl.store(to, column + right, mask=real)
    tl.store(to + 1, row + down, mask=real)
    part = tl.arange(0, PARTS)
    logs = tl.load(totals + image * parts + part, mask=part < parts, other=float("-inf"))
    most = tl.max(logs, axis=0)
    total = most + tl.log(tl.sum(tl.exp(logs - most), axis=0))
    score = tl.exp(tl.load(logits + image * H * W + index, mask=real, other=0.0) - total)
    value = tl.load(values + image * count + point, mask=real, other=0.0)
    # Not score - score == 0, which together with the product below would be one operation that does not round.
    filling = (value == float("-inf")) & (score < float("inf"))
    tl.store(scores + image * count + point, tl.where(filling, -1.0, score * factor), mask=real)


def positions(
    logits: Tensor,
    values: Tensor,
    best: Tensor,
    totals: Tensor,
    size: int,
    pixels: Tensor,
    factor: float,
    *,
    peak: bool = False,
) -> tuple[Tensor, Tensor]:
    """(B, N, 2) means of windows, weighted by the softmax of their logits, and (B, N) probabilities of the centres.

    Args:
        logits: (B, H, W) float32, contiguous.
        values: (B, N) by which they were chosen; where that is -inf the probability is -1.
        best: (B, N) int64, which of ``pixels``.
        totals: (B, P), as :func:`candidates` gives them; if one is NaN, so are all probabilities.
        size: side of a window, odd; 1 leaves pixels where they are.
        pixels: (B, C) int32, counted row by row.
        factor: by which probabilities are multiplied.
        peak: positions are the tops of paraboloids instead, see :func:`steerers.models.sampling.peaks`.
    """
    batch, height, width = logits.shape
    count = best.shape[1]
    xy = torch.empty((batch, count, 2), dtype=torch.float32, device=logits.device)
    scores = torch.empty((batch, count), dtype=torch.float32, device=logits.device)
    side, tile, parts = triton.next_power_of_2(size**2), 16, totals.shape[1]
    _positions[(triton.cdiv(count, tile), batch)](
        logits, best, values, pixels, totals, xy, scores, count, pixels.shape[1], parts, height, width,
        1 / SUBPIXEL_TEMPERATURE, factor, LEAST_CURVATURE, size // 2, side, triton.next_power_of_2(parts), tile, peak,
        num_warps=4,
    )  # fmt: skip
    return xy, scores


# Order ----------------------------------------------------------------------------------------------------------------


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
    source, to = image * count + i, image * kept + position
    x = tl.load(xy + 2 * source, mask=keep, other=0.0)
    y = tl.load(xy + 2 * source + 1, mask=keep, other=0.0)
    tl.store(out_xy + 2 * to, x * ratio_x + 0.5 * (ratio_x - 1.0), mask=keep)
    tl.store(out_xy + 2 * to + 1, y * ratio_y + 0.5 * (ratio_y - 1.0), mask=keep)
    tl.store(out_scores + to, score, mask=keep)
    tl.store(out_diameters + to, tl.zeros((BLOCK,), tl.float32) + diameter, mask=keep)
    k = tl.arange(0, WIDTH)
    inside = real[:, None] & (k < width)[None, :]
    values = tl.load(descriptions + source[:, None] * stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out_descriptions + to[:, None] * width + k[None, :], values, mask=inside & keep[:, None])
    tl.atomic_add(stats + image, tl.sum((keep & (score >= 0.0)).to(tl.int32), axis=0))
    bad = tl.max(tl.where(values - values == 0.0, 0, 1), axis=1)
    if tl.max(tl.where(score - score == 0.0, bad, 1), axis=0) > 0:
        tl.atomic_max(stats + batch, 1)


def arrange(
    parts: Sequence[tuple[Tensor, Tensor, Tensor]], frames: Sequence[tuple[float, float, float]], num_keypoints: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """:func:`~steerers.accel.networks.compact.merge_scales` of parts in any order, whose descriptions may lie apart."""
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
