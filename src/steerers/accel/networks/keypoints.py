"""The choice of keypoints without waiting for a GPU: from the logits of one map, and from what several scales found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from steerers.accel.networks import layers
from steerers.models.sampling import SUBPIXEL_TEMPERATURE, KeypointSampling, choose_keypoints

if TYPE_CHECKING:
    from steerers.accel.networks.keypoint_kernels import Texture


class LevelKeypoints(NamedTuple):
    """Keypoints of a batch of images at one size."""

    xy: Tensor  # (B, N, 2) float32 pixels at that size
    scores: Tensor  # (B, N) float32, negative for what only fills up, NaN if a logit was not finite
    descriptions: Tensor  # (B, N, D)


class LevelFrame(NamedTuple):
    """How keypoints at one size become those of the images."""

    ratio_x: float  # of the image's width to that at this size
    ratio_y: float
    diameter: float


class Merged(NamedTuple):
    """The best keypoints of a batch of images, best first."""

    xy: Tensor  # (B, K, 2) float32 pixels
    scores: Tensor  # (B, K) float32
    diameters: Tensor  # (B, K) float32
    descriptions: Tensor  # (B, K, D) float32
    stats: Tensor  # (B + 1,) whole numbers: how many of each image count, and whether something was not finite


def has_cells(device: torch.device, sampling: KeypointSampling) -> bool:
    """Whether the kernels can choose keypoints on a device: at most one in a cell of half a window."""
    return layers.has_kernels(device) and not sampling.coverage and sampling.nms_size > 1


def choose_in_cells(
    logits: Tensor,
    num_keypoints: int,
    masks: Tensor | None,
    sampling: KeypointSampling,
    texture: Texture | None = None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """:func:`~steerers.models.sampling.choose_keypoints` of (B, H, W) float32 logits, in any order and faster.

    Windows of radius r leave at most one keypoint in a cell of (r + 1) x (r + 1) pixels, unless some of its pixels are
    equal: then only the first of these that is allowed may be one.

    Args:
        texture: where there is something to see, if keypoints may only lie there.
        factor: by which scores are multiplied.

    Returns:
        (B, N, 2) pixels, and (B, N) scores: -1 for what only fills up, all NaN if a logit is not finite.
    """
    from steerers.accel.networks import keypoint_kernels

    logits = logits.contiguous()
    masks = None if masks is None else masks.to(logits.device).contiguous()
    found = keypoint_kernels.candidates(logits, masks, sampling.nms_size, sampling.border, texture)
    values, best = found.values.topk(min(num_keypoints, found.values.shape[1]), sorted=False)
    size = sampling.nms_size if sampling.subpixel else 1
    return keypoint_kernels.positions(
        logits, values, best, found.totals, size, SUBPIXEL_TEMPERATURE, found.pixels, factor
    )


def choose_plainly(
    logits: Tensor, num_keypoints: int, masks: Tensor | None, sampling: KeypointSampling, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own operations, where there are no kernels."""
    xy, scores, real = choose_keypoints(logits, min(num_keypoints, logits[0].numel()), masks, sampling)
    scores = torch.where(real, scores * factor, -1.0)
    return xy, torch.where(logits.sum().isfinite(), scores, torch.nan)


def merge_scales(parts: Sequence[LevelKeypoints], frames: Sequence[LevelFrame], num_keypoints: int) -> Merged:
    """The best of all parts; of equal scores the earlier.

    Args:
        parts: each best first, unless there are kernels for the device.
        frames: one for each part.
        num_keypoints: how many at most.
    """
    if layers.has_kernels(parts[0].xy.device):
        from steerers.accel.networks import keypoint_kernels

        return Merged(*keypoint_kernels.arrange(parts, frames, num_keypoints))
    scores = torch.cat([part.scores for part in parts], dim=1)  # (B, M)
    rows = torch.cat([_rows(part, frame) for part, frame in zip(parts, frames, strict=True)], dim=1)  # (B, M, 3 + D)
    finite = rows.isfinite().all() & ~scores.isnan().any()
    if len(parts) > 1:
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :num_keypoints]
        scores, rows = scores.gather(1, best), rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2]))
    stats = torch.cat(((scores >= 0).sum(dim=1), (~finite)[None]))
    return Merged(rows[..., :2], scores, rows[..., 2], rows[..., 3:], stats)


def _rows(part: LevelKeypoints, frame: LevelFrame) -> Tensor:
    """(B, N, 3 + D) pixels of the image, diameters and descriptions."""
    x, y = part.xy.unbind(dim=2)
    moved = [v * ratio + 0.5 * (ratio - 1) for v, ratio in ((x, frame.ratio_x), (y, frame.ratio_y))]
    head = torch.stack((*moved, torch.full_like(x, frame.diameter)), dim=2)
    return torch.cat((head, part.descriptions.float()), dim=2)
