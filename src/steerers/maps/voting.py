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

from steerers.features import Matches
from steerers.geometry import estimate_homography, local_maps, rotation

Array = NDArray[np.float64]

NEAR = math.radians(25.0)
"""Largest difference of the rotation of a match from the one that it votes for."""
TURNS = 30
"""Rotations that are tried."""
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
    p0, p1 = (np.asarray(points, np.float64) for points in (matches.keypoints0, matches.keypoints1))
    turns = _turns(matches)
    if turns is None:
        return _sample(p0, p1, size, scales)
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
            centres = p1[own] - scale * turned
            apart = np.linalg.norm(centres[:, None] - centres[None], axis=2) < WITHIN * scale * diagonal
            votes = apart.sum(axis=1)
            if votes.max() > best:
                chosen = own[apart[votes.argmax()]]
                best, found = int(votes.max()), (float(angle), float(scale), chosen)
    if found is None:
        return None
    angle, scale, chosen = found
    fitted = fit_similarity(p0[chosen], p1[chosen])
    if not 1 / SURE < math.hypot(*fitted[0, :2]) / scale < SURE:  # they are too near each other to tell
        fitted[:2, :2] = scale * rotation(angle).numpy()
        fitted[:2, 2] = (p1[chosen] - p0[chosen] @ fitted[:2, :2].T).mean(axis=0)
    return Guess(fitted, best)


def _turns(matches: Matches) -> Array | None:
    """(K,) rotations in radians: of each match, or of all; ``None`` if unknown."""
    if matches.angles is not None:
        return np.radians(np.asarray(matches.angles, np.float64))
    return None if matches.angle is None else np.full(len(matches), math.radians(matches.angle))


def _sample(p0: Array, p1: Array, size: tuple[int, int], scales: tuple[float, float]) -> Guess | None:
    """Without rotations: by a homography of samples, if it is about as large as it may be."""
    tolerance = WITHIN * math.hypot(*size) * math.sqrt(scales[0] * scales[1]) / 4
    H, inliers = estimate_homography(p0, p1, tolerance)
    if H is None or inliers.sum() < 4:
        return None
    matrix = fit_similarity(p0[inliers], p1[inliers])
    scale = math.sqrt(abs(float(np.linalg.det(matrix[:2, :2]))))
    return Guess(matrix, int(inliers.sum())) if scales[0] / 1.5 < scale < scales[1] * 1.5 else None


def fit_similarity(p0: Array, p1: Array) -> Array:
    """(3, 3) similarity that takes (K, 2) points to others, by least squares; of one point, a shift."""
    z0, z1 = (points[:, 0] + 1j * points[:, 1] for points in (p0, p1))
    m0, m1 = z0.mean(), z1.mean()
    spread = float((np.abs(z0 - m0) ** 2).sum())
    factor = complex((np.conj(z0 - m0) * (z1 - m1)).sum() / spread) if spread > 0 else 1 + 0j
    shift = m1 - factor * m0
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag], [0, 0, 1]])


def overlap(first: Array, second: Array, size: tuple[int, int]) -> bool:
    """Whether two maps put a photograph at about the same place, turned about alike."""
    centre = np.array([[(size[0] - 1) / 2, (size[1] - 1) / 2]])
    linear = [local_maps(matrix, centre)[0] for matrix in (first, second)]
    places = [matrix @ np.append(centre[0], 1) for matrix in (first, second)]
    apart = np.linalg.norm(places[0][:2] / places[0][2] - places[1][:2] / places[1][2])
    reach = 0.2 * math.hypot(*size) * math.sqrt(abs(float(np.linalg.det(linear[0]))))
    turns = [math.atan2(part[0, 1] - part[1, 0], part[0, 0] + part[1, 1]) for part in linear]
    return bool(apart < reach and math.cos(turns[0] - turns[1]) > math.cos(NEAR))
