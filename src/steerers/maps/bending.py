"""What a similarity, affine map or homography leaves: a smooth field of displacements, as stiff as the points ask for.

A thin-plate spline is fitted to the displacements of matched points. How stiff it is, cross-validation says: of each
stiffness, how well does the spline of four fifths of the points foretell the others?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers.geometry import Size
from steerers.maps.transforms import Array, Displacements

MOST_POINTS = 600
"""That a spline is fitted to: its cost grows with their cube."""
FOLDS = 5
STIFFNESSES = tuple(10.0**power for power in np.arange(-6.0, 1.5, 0.5))
"""Weights of the energy of bending, of an image whose longer side is 1."""
NEIGHBOURS = 8
FARTHEST = 4.0
"""A displacement is wrong if it differs from those around it by more than so many times as much as most do."""
CLEARLY = 0.95
"""A local part is kept if it leaves less than this part of the error on points that it has not seen."""


@dataclass(frozen=True, eq=False)
class Bending:
    """A local part, and what cross-validation says of it.

    Attributes:
        field: ``None`` where points that were held out are not foretold better with one.
        error: median distance, in pixels, of points that were held out; ``without`` a local part.
    """

    field: Displacements | None
    error: float
    without: float
    stiffness: float
    points: int


def fit_bending(xy: Array, displacements: Array, size: Size, *, seed: int = 0) -> Bending:
    """The field that leads from (K, 2) pixels by (K, 2) displacements, some of which may be wrong.

    Args:
        size: (width, height) of the image.
    """
    without = float(np.median(np.linalg.norm(displacements, axis=1))) if len(xy) else 0.0
    nothing = Bending(None, without, without, np.inf, len(xy))
    if len(xy) < 3 * FOLDS:
        return nothing
    kept = _spread(xy, size, MOST_POINTS, seed)
    kept = kept[agreeing(xy[kept], displacements[kept])]
    unit = xy / max(size)
    for _ in range(2):  # again without what does not follow
        if len(kept) < 3 * FOLDS:
            return nothing
        stiffness, off = _cross_validate(unit[kept], displacements[kept], seed)
        error = float(np.median(off))
        follows = off <= max(FARTHEST * error, 1e-9)
        if follows.all():
            break
        kept = kept[follows]
    without = float(np.median(np.linalg.norm(displacements[kept], axis=1)))
    if not error < CLEARLY * without:
        return nothing
    spline, near = _spline(unit[kept], displacements[kept], stiffness), _Near(xy[kept])
    field = Displacements.sampled(lambda places: np.asarray(spline(near(places) / max(size))), size)
    return Bending(field, error, without, stiffness, len(kept))


class _Near:
    """Places moved towards the nearest of some points, as far as they are farther from it than these are apart: what is
    known of them goes on as it is, and does not grow."""

    def __init__(self, xy: Array) -> None:
        from scipy.spatial import KDTree

        self._points, self._tree = xy, KDTree(xy)
        self._reach = 2 * float(np.quantile(self._tree.query(xy, k=2)[0][:, 1], 0.95))

    def __call__(self, places: Array) -> Array:
        distance, index = self._tree.query(places)
        part = np.minimum(1.0, self._reach / np.maximum(distance, 1e-12))[:, None]
        nearest = self._points[index]
        return np.asarray(nearest + part * (places - nearest))


def agreeing(xy: Array, displacements: Array, neighbours: int = NEIGHBOURS) -> NDArray[np.bool_]:
    """(K,) which displacements are like the median of their neighbours'; for wrong matches are alone."""
    from scipy.spatial import KDTree

    count = min(neighbours + 1, len(xy))
    if count < 4:
        return np.ones(len(xy), dtype=bool)
    near = KDTree(xy).query(xy, k=count)[1][:, 1:]  # (K, M)
    off = np.linalg.norm(displacements - np.median(displacements[near], axis=1), axis=1)
    return np.asarray(off <= FARTHEST * max(float(np.median(off)), 0.25))


def _spread(xy: Array, size: Size, most: int, seed: int) -> NDArray[np.int64]:
    """Indices of at most so many points, as evenly spread as they can be: of each cell one, then of each another."""
    order = np.random.default_rng(seed).permutation(len(xy))
    cells = np.floor(xy[order] / max(size) * 24).astype(np.int64) @ [1, 4096]
    rank = np.zeros(len(xy), np.int64)
    for cell in np.unique(cells):
        own = np.flatnonzero(cells == cell)
        rank[own] = np.arange(len(own))
    return np.sort(order[np.argsort(rank, kind="stable")[:most]])


def _cross_validate(unit: Array, displacements: Array, seed: int) -> tuple[float, Array]:
    """The best stiffness, and (K,) how far off each point is for the spline of the other folds."""
    fold = np.random.default_rng(seed).permutation(len(unit)) % FOLDS
    best, errors = np.inf, np.full(len(unit), np.inf)
    for stiffness in STIFFNESSES:
        off = np.empty(len(unit))
        for number in range(FOLDS):
            out = fold == number
            spline = _spline(unit[~out], displacements[~out], stiffness)
            off[out] = np.linalg.norm(spline(unit[out]) - displacements[out], axis=1)
        if np.minimum(off, FARTHEST * np.median(off)).mean() < np.minimum(errors, FARTHEST * np.median(errors)).mean():
            best, errors = stiffness, off
    return best, errors


def _spline(unit: Array, displacements: Array, stiffness: float) -> Any:
    from scipy.interpolate import RBFInterpolator

    return RBFInterpolator(unit, displacements, kernel="thin_plate_spline", smoothing=stiffness, degree=1)
