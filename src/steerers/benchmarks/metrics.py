"""What benchmarks measure, as plain functions of points, homographies, poses, angles and scores.

Fractions and areas are 0 to 1; distances are pixels; angles are degrees, counter-clockwise as seen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.geometry import jacobians, nearest_points, rotation_of, transform_points, wrap_degrees
from steerers.images.load import Size


def mean(values: Iterable[float]) -> float | None:
    """The mean, ``None`` of nothing."""
    found = list(values)
    return statistics.fmean(found) if found else None


def middle(values: Iterable[float]) -> float | None:
    """The median, ``None`` of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def auc(errors: Sequence[float] | NDArray[Any], thresholds: Sequence[float]) -> list[float]:
    """Area under the curve of recall against error, up to each threshold, divided by the threshold.

    The curve is the one of the pose benchmarks: straight lines from (0, 0) through the sorted errors, each adding 1/n,
    then level from the last error below the threshold. The area is exact, by trapezoids. A failure is an infinite
    error (or NaN): it counts among the n and is never recalled.

    >>> auc([0.0, 0.0], [5.0])
    [1.0]
    >>> auc([4.0, float("inf")], [8.0])
    [0.375]
    """
    values = np.asarray(errors, np.float64).ravel()
    if not len(values):
        raise ValueError("errors must not be empty: there is no curve of no pairs")
    for threshold in thresholds:
        if not 0 < threshold < math.inf:
            raise ValueError(f"thresholds must be positive and finite, got {threshold}")
    if (values < 0).any():
        raise ValueError(f"errors must not be negative, got {values.min()}")
    values = np.sort(np.where(np.isnan(values), np.inf, values))
    return [_area(values, threshold) / threshold for threshold in thresholds]


def areas(errors: Sequence[float] | NDArray[Any], thresholds: Sequence[float]) -> dict[str, float]:
    """:func:`auc` by its thresholds, as the rows of reports have it."""
    return {f"{threshold:g}": area for threshold, area in zip(thresholds, auc(errors, thresholds), strict=True)}


def _area(sorted_errors: NDArray[np.float64], threshold: float) -> float:
    below = sorted_errors[: np.searchsorted(sorted_errors, threshold)]
    recall = np.arange(len(below) + 1) / len(sorted_errors)  # (k + 1,)
    knots = np.concatenate([[0.0], below])
    sloped = np.sum(np.diff(knots) * (recall[1:] + recall[:-1]) / 2)
    return float(sloped + (threshold - knots[-1]) * recall[-1])


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """A precision-recall curve: a point for each different score, from the highest down."""

    scores: NDArray[np.float64]  # (K,) falling; a pair is found if its score is at least this
    precision: NDArray[np.float64]  # (K,) fraction of the found that is positive
    recall: NDArray[np.float64]  # (K,) fraction of the positive that is found

    @property
    def average_precision(self) -> float:
        """The area under the steps: precision, weighted by how much recall grows."""
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.precision))


def precision_recall(scores: Sequence[float], positive: Sequence[bool]) -> PrecisionRecall:
    """The curve of some scores; equal ones are found together, in one step, so that their order does not matter.

    >>> precision_recall([9, 5, 5, 1], [True, False, True, False]).average_precision  # 1/2 * 1 + 1/2 * 2/3
    0.8333333333333333
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if values.ndim != 1 or values.shape != truth.shape:
        raise ValueError(f"scores and positive must be two lists of one length, got {values.shape} and {truth.shape}")
    if np.isnan(values).any():
        raise ValueError("scores hold NaN")
    if not truth.any():
        raise ValueError("there is no recall without positive pairs")
    order = np.argsort(-values, kind="stable")
    values, hits = values[order], np.cumsum(truth[order])
    last = np.flatnonzero(np.append(values[1:] != values[:-1], True))  # of each group of equal scores
    return PrecisionRecall(values[last], hits[last] / (last + 1), hits[last] / hits[-1])


def corners(size: Size) -> NDArray[np.float64]:
    """(4, 2) centres of the corner pixels."""
    right, bottom = size[0] - 1, size[1] - 1
    return np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)


def corner_error(estimated: NDArray[Any] | None, truth: NDArray[Any], size0: Size) -> float:
    """Mean distance, in image 1, between the four corners of image 0 under the estimated and the true homography.

    Infinite where nothing was estimated, or a corner goes to infinity.
    """
    if estimated is None:
        return math.inf
    points = corners(size0)
    error = float(reprojection_errors(points, apply(truth, points), estimated).mean())
    return error if math.isfinite(error) else math.inf


def reprojection_errors(points0: NDArray[Any], points1: NDArray[Any], homography: NDArray[Any]) -> NDArray[np.float64]:
    """(K,) distances in image 1 between (K, 2) ``points1`` and the images of ``points0``."""
    distances: NDArray[np.float64] = np.linalg.norm(
        apply(homography, points0) - np.asarray(points1, np.float64), axis=1
    )
    return distances


def apply(homography: NDArray[Any], points: NDArray[Any]) -> NDArray[np.float64]:
    """(K, 2) points mapped by a (3, 3) homography, in float64."""
    mapped = transform_points(_tensor(homography), _tensor(points))
    moved: NDArray[np.float64] = mapped.numpy()
    return moved


def precision(errors: NDArray[Any], threshold: float) -> float:
    """The fraction of matches whose error is at most ``threshold``; 0 if there are none."""
    return float(np.mean(errors <= threshold)) if len(errors) else 0.0


@torch.no_grad()
def repeatability(
    points0: Tensor, points1: Tensor, homography: Tensor, size0: Size, size1: Size, threshold: float
) -> float:
    """How much of what the detector finds in one image it finds again in the other.

    The fraction, over both images, of the keypoints in the common part that have a keypoint of the other image within
    ``threshold`` pixels; 0 if no keypoint lies in the common part.

    Args:
        points0: (N, 2) keypoints of image 0 in pixels; ``points1`` (M, 2) of image 1, on the same device.
        homography: (3, 3) from pixels of image 0 to those of image 1.
        size0: (width, height) of image 0. Keypoints outside of it, as in the corners of a rotated canvas, do not count.
    """
    inside0, inside1 = _inside(points0, size0), _inside(points1, size1)
    points0, points1 = points0[inside0].double(), points1[inside1].double()
    found = common = 0
    for source, target, transform, size in (
        (points0, points1, homography.double(), size1),
        (points1, points0, torch.linalg.inv(homography.double()), size0),
    ):
        moved = transform_points(transform, source)
        moved = moved[_inside(moved, size)]
        common += len(moved)
        if len(moved) and len(target):
            found += int((nearest_points(moved, target)[0] <= threshold).sum())
    return found / common if common else 0.0


def rotation_at_centre(homography: NDArray[Any], size0: Size) -> float | None:
    """The rotation, in degrees, of a homography at the centre of image 0; ``None`` if it mirrors there."""
    centre = np.array([[(size0[0] - 1) / 2, (size0[1] - 1) / 2]])
    rotation = rotation_of(torch.from_numpy(jacobians(homography, centre)[0]))
    return None if rotation is None else math.degrees(rotation)


def angle_error(estimated: float | None, truth: float | None) -> float | None:
    """Degrees between two directions, 0 to 180; ``None`` where one of them is missing."""
    return None if estimated is None or truth is None else abs(wrap_degrees(estimated - truth))


def rotation_error(estimated: NDArray[Any], truth: NDArray[Any]) -> float:
    """Degrees of the rotation between two (3, 3) rotations, 0 to 180; infinite if the estimated one is not finite.

    >>> round(rotation_error(np.diag([-1.0, -1.0, 1.0]), np.eye(3)), 9)
    180.0
    """
    if not np.isfinite(estimated).all():
        return math.inf
    distance = float(np.linalg.norm(np.asarray(estimated, np.float64) - truth))  # 2 sqrt(2) sin(angle / 2)
    return math.degrees(2 * math.asin(min(1.0, distance / math.sqrt(8))))


def translation_error(estimated: NDArray[Any], truth: NDArray[Any]) -> float:
    """Degrees between the lines of two (3,) translations, 0 to 90; the sign of a translation is not told apart.

    Infinite if the estimated one is not finite, or zero, which has no direction; 0 if the true one is zero: then there
    is no direction to find.
    """
    a, b = np.asarray(estimated, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    if not np.isfinite(a).all():
        return math.inf
    if not b.any():
        return 0.0
    if not a.any():
        return math.inf
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # products of very short or long ones would leave float64
    return math.degrees(math.atan2(float(np.linalg.norm(np.cross(a, b))), abs(float(a @ b))))


def pose_error(R: NDArray[Any], t: NDArray[Any], true_R: NDArray[Any], true_t: NDArray[Any]) -> float:
    """The larger of :func:`rotation_error` and :func:`translation_error`, in degrees; infinite if one of them is."""
    return max(rotation_error(R, true_R), translation_error(t, true_t))


def _inside(points: Tensor, size: Size) -> Tensor:
    """(N,) whether points lie in an image, its pixels' edges included."""
    limit = points.new_tensor(size) - 0.5
    return ((points >= -0.5) & (points <= limit)).all(dim=-1)


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
