"""Whether two images show the same thing: a probability, from how well their matches agree.

Unrelated images have matches too, and an estimator finds some that agree with a homography or a fundamental matrix by
chance. How likely that is was learnt from pairs that do and do not belong together, by a logistic regression on a few
numbers (``steerers eval verdict`` fits and checks it): how many matches agree with a homography and with a fundamental
matrix, in place and, where matches have rotations, in these; over how much of the images they spread; and whether the
homography could be that of a camera. A homography says by how much an image rotates
at each keypoint, and a steerer says it for each match, on its own: chance does not make the two agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steerers.geometry import Size, circular_mode, estimate_fundamental, estimate_homography, jacobians, rotation_angles

if TYPE_CHECKING:
    from steerers.geometry import Homography

SHOWN = 1024
"""Longest side, in pixels, of images for which the thresholds are meant; those of larger ones are larger by as much."""
PLANAR, EPIPOLAR = 3.0, 1.0
"""Largest distance of inliers from where a homography has them, and from their epipolar lines, in such pixels."""
TURN = math.radians(25.0)
"""Largest difference of the rotation of a match from that of the geometry, of a match that agrees in it."""
MOST_FORESHORTENING = 8.0
"""Largest ratio of the scales at two corners of an image, of a homography that could be that of a camera."""


class Matched(Protocol):
    """What :class:`steerers.Matches` has: keypoints of two images, rotations, and features with the images' sizes."""

    @property
    def keypoints0(self) -> NDArray[np.float32]: ...
    @property
    def keypoints1(self) -> NDArray[np.float32]: ...
    @property
    def angles(self) -> NDArray[np.float32] | None: ...
    @property
    def features0(self) -> Any: ...
    @property
    def features1(self) -> Any: ...


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made of.

    Attributes:
        matches: how many there are.
        planar: how many agree with the homography, ``epipolar`` with the fundamental matrix; in rotation too, if they
            have one.
        spread: of those, over the images: 1 if they are as far apart as can be, 0 on one spot or line.
        sane: whether the homography keeps the image a convex quadrangle, unmirrored, and not too foreshortened.
        rotations: whether matches have them.
    """

    matches: int
    planar: int
    epipolar: int
    spread: float
    sane: bool
    rotations: bool

    def values(self) -> NDArray[np.float64]:
        """(5,) what the regression weighs; the first is 1."""
        return np.array([1.0, math.log1p(self.planar), math.log1p(self.epipolar), self.spread, float(self.sane)])


# Fitted by `steerers eval verdict` on training photographs: constant, planar, epipolar, spread, sane. No weight may be
# negative, and spread came out without one: what it says, the counts say already.
WITH_ROTATIONS = (-7.3, 1.15, 2.06, 0.0, 0.84)
WITHOUT_ROTATIONS = (-13.06, 2.81, 2.06, 0.0, 1.31)


def probability(evidence: Evidence, prior: float = 0.5) -> float:
    """That two images show the same thing.

    Args:
        prior: how likely that is before anything is known of them; below 1/2 where the best of many pairs is judged.
    """
    return float(likelihood(log_odds(evidence) + math.log(prior / (1 - prior))))


def log_odds(evidence: Evidence) -> float:
    """Of a pair that is as likely as not to show the same thing."""
    return float(evidence.values() @ np.array(WITH_ROTATIONS if evidence.rotations else WITHOUT_ROTATIONS))


def likelihood(logit: Any) -> Any:
    """The probability of log odds, a number or an array."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(logit)))


def gather(matches: Matched, homography: Homography | None = None) -> Evidence:
    """What the matches say; ``homography`` is their own, if it is known already."""
    size0, size1 = (_size(matches, side) for side in (0, 1))
    shrunk = max(1.0, *(max(size) / SHOWN for size in (size0, size1)))
    p0, p1 = np.asarray(matches.keypoints0, np.float64), np.asarray(matches.keypoints1, np.float64)
    H, inliers = estimate_homography(p0, p1, PLANAR * shrunk) if homography is None else homography
    on_lines = estimate_fundamental(p0, p1, EPIPOLAR * shrunk).inliers
    planar = inliers if H is None else inliers & _agree_with(H, p0, matches.angles)
    epipolar = on_lines & _agree_with_each_other(on_lines, matches.angles)
    either = planar if planar.sum() >= epipolar.sum() else epipolar
    spread = min(_spread(p0[either], size0), _spread(p1[either], size1))
    sane = H is not None and _is_sane(H, size0)
    return Evidence(len(p0), int(planar.sum()), int(epipolar.sum()), spread, sane, matches.angles is not None)


def _size(matches: Matched, side: int) -> Size:
    """(width, height) of an image; of matches without features, of the part that they cover."""
    features = matches.features0 if side == 0 else matches.features1
    if features is not None:
        return int(features.image_size[0]), int(features.image_size[1])
    points = matches.keypoints0 if side == 0 else matches.keypoints1
    if not len(points):
        return 1, 1
    width, height = np.ceil(np.ptp(points, axis=0)).astype(int) + 1
    return int(width), int(height)


def _agree_with(H: NDArray[np.float64], points: NDArray[np.float64], degrees: NDArray[Any] | None) -> NDArray[np.bool_]:
    """(K,) whether the rotations of matches are those of a homography where they are; all, if they have none."""
    if degrees is None:
        return np.ones(len(points), dtype=bool)
    linear = jacobians(H, points)  # (K, 2, 2)
    near = _is_near(np.radians(np.asarray(degrees, np.float64)) - rotation_angles(linear))
    return np.asarray(near & (np.linalg.det(linear) > 0))


def _agree_with_each_other(chosen: NDArray[np.bool_], degrees: NDArray[Any] | None) -> NDArray[np.bool_]:
    """(K,) whether the rotations of matches are about the one that most of the chosen have."""
    if degrees is None or not chosen.any():
        return np.ones(len(chosen), dtype=bool)
    radians = np.radians(np.asarray(degrees, np.float64))
    return _is_near(radians - circular_mode(radians[chosen], np.ones(int(chosen.sum()))))


def _is_near(turns: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(np.cos(turns) > math.cos(TURN))


def _spread(points: NDArray[np.float64], size: Size) -> float:
    """How far points reach in both directions: the geometric mean of their deviations, of those of a full image."""
    if len(points) < 3:
        return 0.0
    area = math.sqrt(max(0.0, float(np.linalg.det(np.cov(points.T)))))
    return min(1.0, math.sqrt(12 * area / (size[0] * size[1])))


def _is_sane(H: NDArray[np.float64], size: Size) -> bool:
    """Whether a homography is one that a camera could make of an image of that size."""
    width, height = size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    depths = np.column_stack([corners, np.ones(4)]) @ H[2]
    if not ((depths > 0).all() or (depths < 0).all()):
        return False
    areas = np.linalg.det(jacobians(H, corners))
    return bool((areas > 0).all() and areas.max() < MOST_FORESHORTENING**2 * areas.min())
