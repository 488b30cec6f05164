"""What a rotation of the image does to descriptions, as plain functions: where keypoints stay, and how to compare.

Describing again is :func:`steerers.steering.equivariance.describe_rotated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steerers.matching.similarity import normalised
from steerers.steering.steerer import Steerer


@dataclass(frozen=True)
class Agreement:
    """Descriptions against those of the same keypoints made in another way; means over keypoints.

    Attributes:
        cosine: between the two of a keypoint.
        nearest: share of keypoints whose nearest neighbour among all the others is their own; a tie counts against.
        reciprocal_rank: of the own among all, by the cosine.
    """

    cosine: float
    nearest: float
    reciprocal_rank: float


@dataclass(frozen=True)
class Kept:
    """Cosines between the descriptions of two images before and after both were rotated.

    Attributes:
        mean_change: mean absolute difference.
        max_change: largest.
        correlation: of the cosines before and after; 1 if the same ones are large.
    """

    mean_change: float
    max_change: float
    correlation: float


def central_disc(height: int, width: int, margin: float = 0.0) -> Tensor:
    """(H, W) mask of what stays inside when an image rotates about its centre, less ``margin`` pixels."""
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2
    return torch.hypot(x, y) <= (min(height, width) - 1) / 2 - margin


def nearest_rotation(steerer: Steerer, angle: float) -> float:
    """The rotation of the steerer's group that is nearest to ``angle`` radians."""
    order = steerer.group.order
    return angle if order is None else math.floor(angle * order / (2 * math.pi) + 0.5) * 2 * math.pi / order


def compare(expected: Tensor, found: Tensor) -> Agreement:
    """Compare (N, D) descriptions of N keypoints with others of the same keypoints, N > 0."""
    cosines = normalised(expected.double()) @ normalised(found.double()).mT  # (N, N)
    own = cosines.diagonal()
    ranks = (cosines >= own[:, None] - 1e-12).sum(dim=1).double()
    return Agreement(float(own.mean()), float((ranks == 1).double().mean()), float((1 / ranks).mean()))


def compare_cosines(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Kept:
    """How far the (N, M) cosines between the descriptions of two images change when both images rotation."""
    old, new = (normalised(a.double()) @ normalised(b.double()).mT for a, b in (before, after))
    change = (new - old).abs()
    spread = float(old.std() * new.std())
    covariance = float(((old - old.mean()) * (new - new.mean())).sum() / max(old.numel() - 1, 1))
    correlation = covariance / spread if spread > 1e-12 else math.nan
    return Kept(float(change.mean()), float(change.max()), correlation)
