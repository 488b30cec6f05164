"""Where matches put the centre of a photograph: a similarity that many agree with, however few they are among all.

A match has a rotation of its own. With a scale it says where the centre of the whole photograph lies, alone: matches
vote. So ten that are right are found among hundreds that are not, where samples of four, as a homography needs, would
hardly ever be right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steerers.features import Matches, angle_of_each
from steerers.geometry import estimate_homography, fit_similarity, jacobians, rotation, rotation_angles, scale_at
from steerers.maps.coordinates import map_points

Array = NDArray[np.float64]

NEAR = math.radians(25.0)
"""Largest difference of the rotation of a match from the one that it votes for."""
TURNS = 60
"""Rotations that are tried; of half as many, the nearest moves what is at the rim by more than ``WITHIN``."""
STEP = 1.12
"""Ratio of the scales that are tried."""
SURE = 1.25
"""Largest ratio of the scale that was voted for and that of a similarity fitted to those votes, if it is believed."""
WITHIN = 0.04
"""Largest distance of votes that agree, as a fraction of the diagonal of the photograph on the map."""


@dataclass(frozen=True, eq=False)
class Guess:
    """A similarity from pixels of a photograph to those of a map, and how many matches agree with it."""

    matrix: Array  # (3, 3)
    votes: int


def vote(matches: Matches, size: tuple[int, int], scales: tuple[float, float]) -> Guess | None:
    """The similarity that most matches agree with; ``None`` where no two do.

    Args:
        matches: of a photograph and a part of a map, with keypoints in pixels of the two.
        size: (width, height) of the photograph.
        scales: the least and the largest scale from its pixels to those of the map.
    """
    from scipy.spatial import KDTree

    p0, p1 = (np.asarray(points, np.float64) for points in (matches.keypoints0, matches.keypoints1))
    degrees = angle_of_each(matches)
    if degrees is None:
        return _sample(p0, p1, size, scales)
    turns = np.radians(degrees.astype(np.float64))
    count = max(1, round(math.log(scales[1] / scales[0]) / math.log(STEP)))
    tried = np.geomspace(*scales, count + 1)
    arms, diagonal = p0 - (np.asarray(size) - 1) / 2, math.hypot(*size)
    best, found = 1, None
    for angle in np.linspace(-math.pi, math.pi, TURNS, endpoint=False):
        own = np.flatnonzero(np.cos(turns - angle) > math.cos(NEAR))
        if len(own) <= best:
            continue
        turned = arms[own] @ rotation(float(angle)).numpy().T
        for scale in tried:
            centres, reach = p1[own] - scale * turned, WITHIN * scale * diagonal
            tree = KDTree(centres)
            votes = tree.query_ball_point(centres, reach, return_length=True)
            if votes.max() > best:
                chosen = own[sorted(tree.query_ball_point(centres[votes.argmax()], reach))]
                best, found = int(votes.max()), (float(angle), float(scale), chosen)
    if found is None:
        return None
    angle, scale, chosen = found
    fitted = fit_similarity(p0[chosen], p1[chosen])
    if not 1 / SURE < math.hypot(*fitted[0, :2]) / scale < SURE:  # they are too near each other to tell
        fitted[:2, :2] = scale * rotation(angle).numpy()
        fitted[:2, 2] = (p1[chosen] - p0[chosen] @ fitted[:2, :2].T).mean(axis=0)
    return Guess(fitted, best)


def _sample(p0: Array, p1: Array, size: tuple[int, int], scales: tuple[float, float]) -> Guess | None:
    """Without rotations: by a homography of samples, if it is about as large as it may be."""
    tolerance = WITHIN * math.hypot(*size) * math.sqrt(scales[0] * scales[1]) / 4
    H, inliers = estimate_homography(p0, p1, tolerance)
    if H is None or inliers.sum() < 4:
        return None
    matrix = fit_similarity(p0[inliers], p1[inliers])
    scale = math.sqrt(abs(float(np.linalg.det(matrix[:2, :2]))))
    return Guess(matrix, int(inliers.sum())) if scales[0] / 1.5 < scale < scales[1] * 1.5 else None


def overlap(first: Array, second: Array, size: tuple[int, int]) -> bool:
    """Whether two maps put a photograph at about the same place, turned about alike."""
    centre = np.array([[(size[0] - 1) / 2, (size[1] - 1) / 2]])
    apart = np.linalg.norm(map_points(first, centre) - map_points(second, centre))
    reach = 0.2 * math.hypot(*size) * scale_at(first, centre[0])
    turns = rotation_angles(np.concatenate([jacobians(matrix, centre) for matrix in (first, second)]))
    return bool(apart < reach and math.cos(turns[0] - turns[1]) > math.cos(NEAR))
