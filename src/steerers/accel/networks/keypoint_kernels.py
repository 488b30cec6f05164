"""Triton kernels for the choice of keypoints from (B, H, W) maps of float32 logits."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 256
_ROWS = 8


@triton.jit
def at(logits, image, row, column, H, W):
    """The map that begins at ``image``; -inf outside."""
    width = tl.where((row >= 0) & (row < H), W, 0)
    return tl.load(logits + image + row * W + column, mask=(column >= 0) & (column < width), other=float("-inf"))


@triton.jit
def _peaks(
    logits, masks, ranking, totals, H, W, border, LEAST: tl.constexpr, RADIUS: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of TILE pixels; also the logarithm of the sum of their exponentials."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    image = tl.program_id(2).to(tl.int64) * H * W
    greatest = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for step in range(ROWS):
        row = tl.program_id(1) * ROWS + step
        centre = at(logits, image, row, column, H, W)
        best = centre
        for dy in tl.static_range(-RADIUS, RADIUS + 1):
            for dx in tl.static_range(-RADIUS, RADIUS + 1):
                if dx != 0 or dy != 0:
                    best = tl.maximum(best, at(logits, image, row + dy, column + dx, H, W))
        inside = column < tl.where(row < H, W, 0)
        right = tl.where((row >= border) & (row < H - border), W - border, 0)
        allowed = (centre == best) & (column >= border) & (column < right)
        place = image + row * W + column
        if MASKED:
            allowed = allowed & (tl.load(masks + place, mask=inside, other=0) != 0)
        tl.store(ranking + place, tl.where(allowed, tl.maximum(centre, LEAST), float("-inf")), mask=inside)
        higher = tl.maximum(greatest, centre)
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(greatest - finite) + tl.exp(centre - finite)
        greatest = higher
    most = tl.max(greatest, axis=0)
    total = tl.sum(total * tl.exp(greatest - tl.where(most == float("-inf"), 0.0, most)), axis=0)
    program = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(totals + program, tl.log(total) + most)


def peaks(logits: Tensor, masks: Tensor | None, size: int, border: int) -> tuple[Tensor, Tensor]:
    """(B, H, W) logits where a keypoint may be and -inf elsewhere, and how large the exponentials of all are.

    The second is (B, P): the logarithms of the sums of exponentials in P parts of the map.

    Args:
        logits: (B, H, W) float32, contiguous.
        masks: (B, H, W) bool, contiguous.
        size: side of the window in which only the best pixel remains, odd.
        border: width of the frame in which no keypoint may lie.
    """
    batch, height, width = logits.shape
    ranking = torch.empty_like(logits)
    grid = (triton.cdiv(width, _TILE), triton.cdiv(height, _ROWS), batch)
    totals = torch.empty((batch, grid[0] * grid[1]), dtype=torch.float32, device=logits.device)
    given = logits if masks is None else masks.view(torch.uint8)
    _peaks[grid](
        logits, given, ranking, totals, height, width, border, torch.finfo(torch.float32).min, size // 2,
        masks is not None, _ROWS, _TILE, num_warps=4,
    )  # fmt: skip
    return ranking, totals


@triton.jit
def _place(
    logits, best, values, places, totals, xy, scores, count, cells, parts, H, W, inverse, share,
    CHOSEN: tl.constexpr, RADIUS: tl.constexpr, SIDE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    point = tl.program_id(0) * TILE + tl.arange(0, TILE)
    real = point < count
    image = tl.program_id(1).to(tl.int64)
    index = tl.load(best + image * count + point, mask=real, other=0)
    if CHOSEN:
        index = tl.load(places + image * cells + index, mask=real, other=0).to(tl.int64)
    column, row = (index % W).to(tl.int32), (index // W).to(tl.int32)
    step = tl.arange(0, SIDE)
    dx, dy = step % (2 * RADIUS + 1) - RADIUS, step // (2 * RADIUS + 1) - RADIUS
    x, y = column[:, None] + dx[None, :], row[:, None] + dy[None, :]
    window = at(logits, image * H * W, tl.where(dy <= RADIUS, y, -1), x, H, W) * inverse
    weights = tl.exp(window - tl.max(window, axis=1)[:, None])
    whole = tl.sum(weights, axis=1)
    to = xy + (image * count + point) * 2
    tl.store(to, column + tl.sum(weights * dx.to(tl.float32)[None, :], axis=1) / whole, mask=real)
    tl.store(to + 1, row + tl.sum(weights * dy.to(tl.float32)[None, :], axis=1) / whole, mask=real)
    part = tl.arange(0, PARTS)
    logs = tl.load(totals + image * parts + part, mask=part < parts, other=float("-inf"))
    most = tl.max(logs, axis=0)
    total = most + tl.log(tl.sum(tl.exp(logs - most), axis=0))
    score = tl.exp(tl.load(logits + image * H * W + index, mask=real, other=0.0) - total)
    value = tl.load(values + image * count + point, mask=real, other=0.0)
    # Not score - score == 0, which together with the product below would be one operation that does not round.
    filling = (value == float("-inf")) & (score < float("inf"))
    tl.store(scores + image * count + point, tl.where(filling, -1.0, score * share), mask=real)


def place(
    logits: Tensor,
    values: Tensor,
    best: Tensor,
    totals: Tensor,
    size: int,
    temperature: float,
    places: Tensor | None = None,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(B, N, 2) means of windows, weighted by the softmax of their logits, and (B, N) probabilities of the centres.

    Args:
        logits: (B, H, W) float32, contiguous.
        values: (B, N) by which they were chosen; where that is -inf the probability is -1.
        best: (B, N) int64, the pixels counted row by row, or where they are found in ``places``.
        totals: (B, P), as :func:`peaks` gives them; if one is NaN, so are all probabilities.
        size: side of a window, odd; 1 leaves pixels where they are.
        temperature: by which logits are divided in a window.
        places: (B, C) int32, pixels.
        share: by which probabilities are multiplied.
    """
    batch, height, width = logits.shape
    count = best.shape[1]
    xy = torch.empty((batch, count, 2), dtype=torch.float32, device=logits.device)
    scores = torch.empty((batch, count), dtype=torch.float32, device=logits.device)
    side, tile, parts = triton.next_power_of_2(size**2), 16, totals.shape[1]
    _place[(triton.cdiv(count, tile), batch)](
        logits, best, values, best if places is None else places, totals, xy, scores, count,
        0 if places is None else places.shape[1], parts, height, width, 1 / temperature, share, places is not None,
        size // 2, side, triton.next_power_of_2(parts), tile, num_warps=4,
    )  # fmt: skip
    return xy, scores
