"""DeDoDe's objective for a detector (Edstedt et al., 3DV 2024), from pairs with depth and points of a reconstruction.

Every image of the batch chooses its keypoints together with its partner, whose logits are sampled back through the true
warp. A rotation of the views is a part of that warp, so that the objective is the same with rotations and without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import PairBatch, check_options
from steerers.geometry import to_normalised
from steerers.training.objectives import Term, Terms

_SPLAT_TAPS, _SPLAT_DEVIATION = 5, 0.5  # pixels
_SPREAD_TAPS = 51
_LEAST_LIKELY = 1e-8  # added to the smoothed likelihood of a keypoint
_LEAST_TARGET = 1e-12  # and to the target in the logarithm of its entropy


@dataclass(frozen=True)
class DedodeOptions:
    """DeDoDe's objective; the values are the original's.

    Attributes:
        targets: keypoints an image, on average over the batch.
        splat: weight of the points of the reconstruction in the choice of the targets.
        matchability: weight of the second term, by which keypoints are spread as the pixels with depth are.
        blank_sides: the original pads its horizontal convolutions above and below instead of left and right, which
            leaves nothing in the outer 2 columns of splats and the outer 25 of the smoothed likelihood. ``False``
            smooths up to the sides.
    """

    targets: int = 1024
    splat: float = 50.0
    matchability: float = 1.0
    blank_sides: bool = True

    def __post_init__(self) -> None:
        check_options(self, "be positive", lambda value: value > 0, "targets")
        check_options(self, "not be negative", lambda value: value >= 0, "splat", "matchability")


def dedode_terms(logits0: Tensor, logits1: Tensor, batch: PairBatch, options: DedodeOptions) -> Terms:
    """The joint likelihood of the keypoints of all 2B images, as one number, and their matchability.

    Raises:
        ValueError: if the batch has no points of a reconstruction, or does not know where its views have depth.
    """
    if batch.detections is None or batch.known is None:
        raise ValueError(
            "keypoints.prior 'sfm' needs points of a reconstruction and depth maps: use COLMAP with depth maps, or "
            "MegaDepth with its detections"
        )
    logits = torch.cat([logits0, logits1])  # (2B, H, W)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # not in half precision
    splats = torch.cat([splat(points, batch.masks0, options.blank_sides) for points in batch.detections])
    sides = [batch.warp_pixels(side) for side in (0, 1)]
    moved, valid = (torch.cat(parts) for parts in zip(*sides, strict=True))  # (2B, H * W, 2), (2B, H, W)
    own = masked_log_softmax(logits, valid)
    partner = masked_log_softmax(sample_bicubic(_swapped(logits), moved), valid)
    with torch.no_grad():
        points = splats + sample_bicubic(_swapped(splats), moved)
        chosen = above_rank(own + partner + options.splat * points, options.targets)
    total = -torch.where(chosen, own + partner, 0.0).sum() / options.targets
    terms = {"keypoints": Term(total, total.new_ones(()))}
    if options.matchability > 0:
        each = spread_divergence(logits, torch.cat(batch.known), options.blank_sides)
        terms["matchability"] = Term(each.sum(), each.new_full((), len(each)), options.matchability)
    return terms


def _swapped(maps: Tensor) -> Tensor:
    """(2B, H, W) maps of the partners."""
    return maps.roll(len(maps) // 2, dims=0)


# The joint likelihood -------------------------------------------------------------------------------------------------


def sample_bicubic(maps: Tensor, xy: Tensor) -> Tensor:
    """(B, H, W) bicubic values of (B, H, W) maps at (B, H * W, 2) pixels; they are zero beyond their border.

    For NaN, which a warp gives where it is not defined, it is any value: NaN in a grid crashes the backward pass.
    """
    count, height, width = maps.shape
    grid = to_normalised(xy.double().nan_to_num(), (width, height)).to(maps.dtype).view(count, height, width, 2)
    return F.grid_sample(maps[:, None], grid, mode="bicubic", padding_mode="zeros", align_corners=False)[:, 0]


def masked_log_softmax(logits: Tensor, valid: Tensor) -> Tensor:
    """(B, H, W) log-probabilities among the valid pixels of an image, minus infinity at the others."""
    masked = logits.masked_fill(~valid, -math.inf)
    summed = masked.flatten(1).logsumexp(dim=1).view(-1, 1, 1)
    return masked - torch.where(summed.isfinite(), summed, 0.0)  # of no valid pixel there is no sum


def above_rank(scores: Tensor, targets: int) -> Tensor:
    """(B, H, W) bool, which scores exceed the one of rank ``B * targets`` among those of all images together.

    One threshold for the batch: an image that sees its partner well has more targets than one that hardly does.
    """
    rank = min(len(scores) * targets, scores.numel())
    return scores > scores.flatten().topk(rank, sorted=False).values.min()


def splat(points: Tensor, like: Tensor, blank_sides: bool = True) -> Tensor:
    """(B, H, W) maps, of the shape of ``like``, of (B, K, 2) points, NaN where there are fewer: one each, blurred.

    Counted from the corner of the first pixel, a point belongs to the pixel of its integer part; several in one pixel
    are as one. Points with a coordinate of zero or less, or outside, do not count.
    """
    height, width = like.shape[1:]
    corner = points.double().nan_to_num(nan=-1.0) + 0.5
    x, y = corner.floor().clamp(-1, max(height, width)).long().unbind(dim=2)  # (B, K) each
    counts = (corner > 0).all(dim=2) & (x < width) & (y < height)
    flat = (y * width + x).where(counts, 0)
    maps = torch.zeros(like.shape, device=points.device).flatten(1).scatter_reduce(1, flat, counts.float(), "amax")
    taps = torch.arange(_SPLAT_TAPS, device=maps.device) - _SPLAT_TAPS // 2
    return _smooth(maps.view(like.shape), (-0.5 * (taps / _SPLAT_DEVIATION) ** 2).exp(), blank_sides)


# Matchability ---------------------------------------------------------------------------------------------------------


def spread_divergence(logits: Tensor, known: Tensor, blank_sides: bool = True) -> Tensor:
    """(B,) divergence of the smoothed distribution of keypoints from that of the (B, H, W) pixels with known depth.

    It is over all pixels, whether the partner sees them or not. An image without depth has none.
    """
    taps = (-2 * torch.linspace(-1, 1, _SPREAD_TAPS, dtype=logits.dtype, device=logits.device) ** 2).exp()
    likely = _smooth(logits.flatten(1).softmax(dim=1).view_as(logits), taps, blank_sides).flatten(1)
    log = (likely + _LEAST_LIKELY).log().log_softmax(dim=1)  # (B, H * W)
    target = _smooth(known.to(logits), taps, False).flatten(1)
    target = target / target.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return (target * ((target + _LEAST_TARGET).log() - log)).sum(dim=1)


def _smooth(maps: Tensor, taps: Tensor, blank_sides: bool) -> Tensor:
    """(B, H, W) maps blurred by the (T,) taps both ways, their sum made 1; zero beyond the border.

    With ``blank_sides`` it is zero also where the taps reach beyond the left or right border.
    """
    kernel, reach = (taps / taps.sum()).to(maps), len(taps) // 2
    rows = F.conv2d(maps[:, None], kernel.view(1, 1, 1, -1), padding=(0, reach))
    if blank_sides:
        columns = torch.arange(rows.shape[3], device=rows.device)
        rows = rows * ((columns >= reach) & (columns < len(columns) - reach))
    return F.conv2d(rows, kernel.view(1, 1, -1, 1), padding=(reach, 0))[:, 0]
