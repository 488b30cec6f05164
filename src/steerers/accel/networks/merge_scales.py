"""From what a network found in images at one or several sizes to keypoints, best first; without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from steerers.accel.networks import layers


class Found(NamedTuple):
    """Keypoints of a batch of images at one size."""

    xy: Tensor  # (B, N, 2) float32 pixels at that size
    scores: Tensor  # (B, N) float32, negative for what only fills up, NaN if a logit was not finite
    descriptions: Tensor  # (B, N, D)


class Frame(NamedTuple):
    """How keypoints at one size become those of the images."""

    ratio_x: float  # of the image's width to that at this size
    ratio_y: float
    diameter: float


class Joined(NamedTuple):
    """The best keypoints of a batch of images, best first."""

    xy: Tensor  # (B, K, 2) float32 pixels
    scores: Tensor  # (B, K) float32
    diameters: Tensor  # (B, K) float32
    descriptions: Tensor  # (B, K, D) float32
    stats: Tensor  # (B + 1,) whole numbers: how many of each image count, and whether something was not finite


def join(parts: Sequence[Found], frames: Sequence[Frame], num_keypoints: int) -> Joined:
    """The best of all parts; of equal scores the earlier.

    Args:
        parts: each best first, unless there are kernels for the device.
        frames: one for each part.
        num_keypoints: how many at most.
    """
    if layers.has_kernels(parts[0].xy.device):
        from steerers.accel.networks import cell_kernels

        return Joined(*cell_kernels.arrange(parts, frames, num_keypoints))
    scores = torch.cat([part.scores for part in parts], dim=1)  # (B, M)
    rows = torch.cat([_rows(part, frame) for part, frame in zip(parts, frames, strict=True)], dim=1)  # (B, M, 3 + D)
    finite = rows.isfinite().all() & ~scores.isnan().any()
    if len(parts) > 1:
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :num_keypoints]
        scores, rows = scores.gather(1, best), rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2]))
    stats = torch.cat(((scores >= 0).sum(dim=1), (~finite)[None]))
    return Joined(rows[..., :2], scores, rows[..., 2], rows[..., 3:], stats)


def _rows(part: Found, frame: Frame) -> Tensor:
    """(B, N, 3 + D) pixels of the image, diameters and descriptions."""
    x, y = part.xy.unbind(dim=2)
    moved = [v * ratio + 0.5 * (ratio - 1) for v, ratio in ((x, frame.ratio_x), (y, frame.ratio_y))]
    head = torch.stack((*moved, torch.full_like(x, frame.diameter)), dim=2)
    return torch.cat((head, part.descriptions.float()), dim=2)
