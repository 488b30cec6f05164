"""Objectives as functions of tensors: how likely true matches are, and how likely keypoints are."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import Warp
from steerers.geometry import to_normalised

# Matching -------------------------------------------------------------------------------------------------------------


def matching_nll(
    unit0: Tensor,
    unit1: Tensor,
    matches: Tensor,
    inverse_temperature: float = 20.0,
    real0: Tensor | None = None,
    real1: Tensor | None = None,
) -> Tensor:
    """The paper's objective: (K,) negative logarithms of equation (1) for true matches of a batch of pairs.

    Args:
        unit0: (B, N, D) unit descriptions; ``unit1`` (B, M, D), steered before they were normalised.
        matches: (K, 3) indices (pair, first, second) of true matches.
        real0: (B, N) bool, False for what only fills up the batch; ``real1`` (B, M) likewise.
    """
    scores = inverse_temperature * (unit0 @ unit1.mT)  # (B, N, M)
    pair, i, j = matches.unbind(dim=1)
    by_row, by_column = _masked(scores, real0, real1)
    log_rows, log_columns = by_row.logsumexp(dim=2), by_column.logsumexp(dim=1)  # (B, N), (B, M)
    return log_rows[pair, i] + log_columns[pair, j] - 2 * scores[pair, i, j]


@torch.no_grad()
def matching_accuracy(
    unit0: Tensor, unit1: Tensor, matches: Tensor, real0: Tensor | None = None, real1: Tensor | None = None
) -> float:
    """Fraction of true matches that are mutual nearest neighbours; not a number if there are none.

    Args:
        unit0: (B, N, D) unit descriptions; ``unit1`` (B, M, D).
        matches: (K, 3) indices (pair, first, second) of true matches.
        real0: (B, N) bool, False for what only fills up the batch; ``real1`` (B, M) likewise.
    """
    if not len(matches):
        return float("nan")
    by_row, by_column = _masked(unit0 @ unit1.mT, real0, real1)
    pair, i, j = matches.unbind(dim=1)
    mutual = (by_row.argmax(dim=2)[pair, i] == j) & (by_column.argmax(dim=1)[pair, j] == i)
    return float(mutual.float().mean())


def _masked(scores: Tensor, real0: Tensor | None, real1: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, N, M) scores with which a row compares columns, and a column rows: never with what only fills up."""
    by_row = scores if real1 is None else scores.masked_fill(~real1[:, None], -math.inf)
    by_column = scores if real0 is None else scores.masked_fill(~real0[..., None], -math.inf)
    return by_row, by_column


# Keypoints ------------------------------------------------------------------------------------------------------------


def pixel_grid(batch: int, height: int, width: int, device: torch.device) -> Tensor:
    """(B, H * W, 2) float32 (x, y) of every pixel."""
    xs, ys = torch.arange(width, device=device), torch.arange(height, device=device)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).float()
    return grid.view(1, -1, 2).expand(batch, -1, -1)


def look_up(maps: Tensor, xy: Tensor) -> Tensor:
    """(B, N) bilinear values of (B, H, W) maps at (B, N, 2) pixels; the nearest value beyond the border.

    For NaN, which a warp gives where it is not defined, it is any value: NaN in a grid crashes the backward pass.
    """
    size = (int(maps.shape[2]), int(maps.shape[1]))
    grid = to_normalised(xy.to(maps.dtype).nan_to_num(), size)[:, None]  # (B, 1, N, 2)
    sampled = F.grid_sample(maps[:, None], grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled[:, 0, 0]


def joint_targets(
    log0: Tensor, moved_log1: Tensor, allowed: Tensor, count: int, suppress: int = 1
) -> tuple[Tensor, Tensor]:
    """The pixels that both views together hold most likely to be keypoints.

    Args:
        log0: (B, H, W) log-probabilities of the first views, plus whatever prior; ``moved_log1`` those of the second
            views at the same places.
        allowed: (B, H, W) bool, where a target may be: what both views see.
        count: targets a pair.
        suppress: side of the window in which only the best pixel may be a target; 1 is off.

    Returns:
        (B, count, 2) whole pixels (x, y), and (B, count) bool, False where a pair has fewer.
    """
    joint = (log0 + moved_log1).masked_fill(~allowed, -math.inf)
    if suppress > 1:
        best = F.max_pool2d(joint[:, None], suppress, stride=1, padding=suppress // 2)[:, 0]
        joint = joint.masked_fill(joint < best, -math.inf)
    chosen = joint.flatten(1).topk(min(count, joint[0].numel()))
    width = joint.shape[2]
    xy = torch.stack([chosen.indices % width, chosen.indices // width], dim=-1)
    return xy, chosen.values > -math.inf


def reprojection_error(xy0: Tensor, xy1: Tensor, matches: Tensor, warp: Warp) -> Tensor:
    """(K,) distances in pixels, in both views and averaged, between keypoints that should be one point.

    Args:
        xy0: (B, N, 2) keypoints; ``xy1`` (B, M, 2).
        matches: (K, 3) indices (pair, first, second) of keypoints that are near one another under the warp.
    """
    pair, i, j = matches.unbind(dim=1)
    first, second = (_only(xy, pair, index) for xy, index in ((xy0, i), (xy1, j)))
    ahead = (warp.forward(first)[0][pair, i] - second[pair, j]).norm(dim=1)
    back = (warp.backward(second)[0][pair, j] - first[pair, i]).norm(dim=1)
    error: Tensor = (ahead + back) / 2
    return error


def _only(xy: Tensor, pair: Tensor, index: Tensor) -> Tensor:
    """``xy`` with gradients for the chosen points alone: where a warp is not defined, its derivative is NaN."""
    chosen = torch.zeros_like(xy[..., :1], dtype=torch.bool)  # (B, N, 1)
    chosen[pair, index] = True
    return torch.where(chosen, xy, xy.detach())


def corner_response(images: Tensor, sigma: float = 1.5) -> Tensor:
    """(B, H, W) strength of corners: the smaller eigenvalue of the structure tensor, of (B, 3, H, W) images.

    It does not depend on the rotation of the image (Shi and Tomasi, 1994), which makes it a prior for keypoints.
    """
    with torch.autocast(images.device.type, enabled=False):  # the difference of nearly equal numbers
        xx, yy, xy = _structure_tensor(images, sigma).unbind(dim=1)
        return ((xx + yy) - ((xx - yy).square() + 4 * xy.square()).sqrt()) / 2


def _structure_tensor(images: Tensor, sigma: float) -> Tensor:
    """(B, 3, H, W) squares and product of the derivatives by x and y, smoothed."""
    grey = images.mean(dim=1, keepdim=True)
    kernel = images.new_tensor([[-0.5, 0.0, 0.5]]).view(1, 1, 1, 3)
    dx = F.conv2d(F.pad(grey, (1, 1, 0, 0), mode="replicate"), kernel)
    dy = F.conv2d(F.pad(grey, (0, 0, 1, 1), mode="replicate"), kernel.mT)
    products = torch.cat([dx * dx, dy * dy, dx * dy], dim=1)  # (B, 3, H, W)
    radius = math.ceil(2 * sigma)
    taps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    taps = (-0.5 * (taps / sigma) ** 2).exp()
    taps = (taps / taps.sum()).expand(3, 1, 1, -1)
    products = F.conv2d(F.pad(products, (radius, radius, 0, 0), mode="replicate"), taps, groups=3)
    return F.conv2d(F.pad(products, (0, 0, radius, radius), mode="replicate"), taps.mT, groups=3)
