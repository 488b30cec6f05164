"""Two-view geometry of one matched pair: what explains its matches, and which it explains.

Kinds are those that COLMAP's mappers tell apart. ``calibrated``: both focal lengths are known beforehand, and an
essential matrix explains as much as a fundamental matrix does. ``uncalibrated``: a fundamental matrix. ``planar``: a
homography explains nearly as many, so that the scene is flat or the camera only turned. ``none``: too few inliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from steerers._choices import MAX_DISTANCE, MIN_INLIERS
from steerers.geometry import (
    Size,
    circular_mode,
    estimate_fundamental,
    estimate_homography,
    estimate_pose,
    wrap_degrees,
)

Kind = Literal["none", "calibrated", "uncalibrated", "planar"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class VerificationOptions:
    """When a pair is verified.

    Attributes:
        threshold: largest distance of an inlier from its epipolar line, or from where a homography has it, in pixels of
            the image that was matched, which may have been shrunk.
        min_inliers: of a pair that is verified.
        max_iterations: most samples that each estimator tries; ``seed`` is theirs.
        min_essential: fraction of the fundamental matrix' inliers that an essential matrix needs, else a prior focal
            length is not believed; max_homography: a homography that explains more than this fraction makes it planar.
    """

    threshold: float = MAX_DISTANCE
    min_inliers: int = MIN_INLIERS
    max_iterations: int = 10_000
    seed: int = 0
    min_essential: float = 0.95
    max_homography: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.threshold < np.inf:
            raise ValueError(f"threshold must be a positive and finite number of pixels, got {self.threshold}")
        if self.min_inliers < 8:
            raise ValueError(f"min_inliers must be at least 8, what a fundamental matrix needs, got {self.min_inliers}")


@dataclass(frozen=True, eq=False)
class TwoView:
    """The geometry of a pair of images, in stored pixels, the centre of the top-left one at (0, 0).

    Attributes:
        kind: one of :data:`KINDS`.
        F: (3, 3) with ``x1' F x0 = 0``; E of directions; H with ``x1 ~ H x0``; NaN where there is none.
        inliers: (K,) of the matches.
        angle: degrees counter-clockwise from image 0 to image 1, of the inliers; NaN where the matcher has none.
    """

    kind: Kind
    F: Array
    E: Array
    H: Array
    inliers: NDArray[np.bool_]
    angle: float


@dataclass(frozen=True)
class View:
    """What is known of one image of a pair: its (width, height), its focal length in pixels if that is a prior, and how
    many stored pixels a pixel is of what the model saw."""

    size: Size
    focal: float | None = None
    shrunk: float = 1.0

    def intrinsics(self) -> Array | None:
        """(3, 3) in pixels of what the model saw; ``None`` without a focal length."""
        if self.focal is None:
            return None
        matrix = np.diag([self.focal, self.focal, 1.0])
        matrix[:2, 2] = (np.asarray(self.size) - 1) / 2
        return self.to_seen() @ matrix

    def to_seen(self) -> Array:
        """(3, 3) from stored pixels to those of what the model saw; edges go to edges."""
        s = 1 / self.shrunk
        return np.array([[s, 0, (s - 1) / 2], [0, s, (s - 1) / 2], [0, 0, 1]])


def verify_pair(
    points0: NDArray[Any],
    points1: NDArray[Any],
    views: tuple[View, View],
    options: VerificationOptions,
    angle: float | None = None,
    angles: NDArray[Any] | None = None,
) -> TwoView:
    """Verify one pair.

    Args:
        points0: (K, 2) stored pixels of the matches in image 0; ``points1`` in image 1.
        angle: degrees of the pair as matched; ``angles`` (K,) of each match.
    """
    maps = views[0].to_seen(), views[1].to_seen()
    seen = [np.asarray(p, np.float64) * m[0, 0] + m[0, 2] for p, m in zip((points0, points1), maps, strict=True)]
    kind, F, E, H, inliers = _choose(seen[0], seen[1], views, options)
    return TwoView(
        kind=kind,
        F=_normalised(maps[1].T @ F @ maps[0]),
        E=_normalised(E),
        H=_normalised(np.linalg.inv(maps[1]) @ H @ maps[0]),
        inliers=inliers,
        angle=_angle_of(inliers, angle, angles) if kind != "none" else float("nan"),
    )


_NOTHING = np.full((3, 3), np.nan)


def _choose(
    p0: Array, p1: Array, views: tuple[View, View], options: VerificationOptions
) -> tuple[Kind, Array, Array, Array, NDArray[np.bool_]]:
    """Kind, fundamental, essential matrix, homography and inliers, all of what the model saw."""
    nothing: Kind = "none"
    none = nothing, _NOTHING, _NOTHING, _NOTHING, np.zeros(len(p0), dtype=bool)
    if len(p0) < options.min_inliers:
        return none
    told = {"max_iterations": options.max_iterations, "seed": options.seed}
    fundamental = estimate_fundamental(p0, p1, options.threshold, **told)
    homography = estimate_homography(p0, p1, options.threshold, **told)
    kind: Kind = "uncalibrated"
    F, inliers, E = fundamental.F, fundamental.inliers, _NOTHING
    K0, K1 = views[0].intrinsics(), views[1].intrinsics()
    if K0 is not None and K1 is not None:
        pose = estimate_pose(p0, p1, K0, K1, threshold=options.threshold, **told)
        enough = max(options.min_inliers, options.min_essential * inliers.sum())
        if pose.R is not None and pose.t is not None and pose.inliers.sum() >= enough:
            kind, inliers, E = "calibrated", pose.inliers, _cross(pose.t) @ pose.R
            F = np.linalg.inv(K1).T @ E @ np.linalg.inv(K0)
    if homography.H is not None and homography.inliers.sum() > options.max_homography * inliers.sum():
        kind = "planar"
        inliers = homography.inliers if homography.inliers.sum() > inliers.sum() else inliers
    if inliers.sum() < options.min_inliers:
        return none
    return kind, _or_nothing(F), E, _or_nothing(homography.H), inliers


def _or_nothing(matrix: Array | None) -> Array:
    return _NOTHING if matrix is None else matrix


def _cross(t: Array) -> Array:
    """The matrix of the cross product with ``t``."""
    return np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]])


def _normalised(matrix: Array) -> Array:
    """Of norm 1; NaN stays."""
    return matrix / np.linalg.norm(matrix)


def _angle_of(inliers: NDArray[np.bool_], angle: float | None, angles: NDArray[Any] | None) -> float:
    """The rotation that most inliers have; where matches have none of their own, that of the pair."""
    if angles is None:
        return float("nan") if angle is None else angle
    mode = np.degrees(circular_mode(np.radians(np.asarray(angles, np.float64)[inliers]), np.ones(int(inliers.sum()))))
    return wrap_degrees(float(mode))
