"""What alignments are made of: options, images as the model sees them, maps fitted to points, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from steerers._choices import Kind, Mirror
from steerers._console import APART
from steerers.geometry import (
    Homography,
    Size,
    estimate_affine,
    estimate_homography,
    estimate_similarity,
    jacobians,
    rotation_angles,
    scale_at,
    scaling,
)
from steerers.images.decode import fit_within
from steerers.maps.bending import Bending, fit_bending
from steerers.maps.rasters import Raster
from steerers.maps.transforms import KINDS, Array, Transform, transfer

if TYPE_CHECKING:
    from steerers.images.load import Image
    from steerers.pipeline import Pipeline

MIRRORS: tuple[Mirror, ...] = get_args(Mirror)
WORTH = 0.9
"""A more pliable kind is taken if it leaves less than this part of the squared distances."""
BENT = 0.02
"""Of the longer side: how far from the map of the whole the matches of a bent image may lie."""
MIN_INLIERS = 12
"""Least matches that agree, of images that are aligned."""
_ESTIMATORS: dict[Kind, Callable[..., Homography]] = {
    "similarity": estimate_similarity,
    "affine": estimate_affine,
    "homography": estimate_homography,
}
_NUMBERS: dict[Kind, int] = {"similarity": 4, "affine": 6, "homography": 8}


class NotAlignedError(ValueError):
    """Two images that do not lie over each other, as far as their matches tell."""

    exit_code = APART


@dataclass(frozen=True, kw_only=True)
class AlignOptions:
    """How images are aligned.

    Attributes:
        transform: ``"similarity"``, ``"affine"``, ``"homography"``, or ``"auto"``: the stiffest of them that suits the
            matches.
        mirror: whether the moving image is a mirror image: ``"yes"``, ``"no"``, or ``"auto"``, what agrees more.
        refine: register the patches of matches, see :meth:`Matches.refine <steerers.Matches.refine>`.
        local: also a smooth local part, if it foretells matches that were held out.
        threshold: largest distance of an inlier, in pixels as the model sees them; of bent images ``local`` asks first
            for the neighbours of a match, and this holds for what the local part leaves.
        tiles: most tiles of larger images that are matched in full resolution; 0 for none.
        seed: of what is drawn at random.
    """

    transform: Kind | Literal["auto"] = "auto"
    mirror: Mirror = "auto"
    refine: bool = True
    local: bool = False
    threshold: float = 3.0
    tiles: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("transform", ("auto", *KINDS)), ("mirror", MIRRORS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold must be a positive number of pixels, got {self.threshold}")
        if self.tiles < 0:
            raise ValueError(f"tiles must not be negative, got {self.tiles}")


@dataclass(frozen=True, eq=False)
class Alignment:
    """How a moving image lies over a fixed one.

    Attributes:
        transform: from pixels of the fixed image to those of the moving one.
        fixed: (K, 2) pixels of the matches that it explains; ``moving`` likewise.
        num_matches: of all, at the size that the model sees.
        error: median distance of the matches from where the transform has them, in pixels of the fixed image.
        probability: that the images show the same thing, see :attr:`Matches.probability
            <steerers.Matches.probability>`.
        bending: what cross-validation says of the local part, if one was asked for.
        num_tiles: that were matched in full resolution.
        seconds: it took.
    """

    transform: Transform
    fixed: Array
    moving: Array
    num_matches: int
    error: float
    probability: float = 1.0
    bending: Bending | None = None
    num_tiles: int = 0
    seconds: float = 0.0

    def summary(self) -> str:
        """One line for people."""
        middle = [(side - 1) / 2 for side in self.transform.fixed_size]
        linear = jacobians(self.transform.matrix, np.array([middle]))[0]
        scale = scale_at(self.transform.matrix, middle)
        mirror = np.diag([-1.0 if self.transform.mirrored else 1.0, 1.0])
        turned = mirror @ linear
        angle = math.degrees(float(rotation_angles(turned)))
        named = {"affine": "an affine map"}.get(self.transform.kind, f"a {self.transform.kind}")
        told = [f"{len(self.fixed)} of {self.num_matches} matches agree with {named}"]
        if self.num_tiles:
            told = [f"{len(self.fixed)} matches in {self.num_tiles} tiles agree with {named}"]
        told.append(
            f"{'mirrored and ' if self.transform.mirrored else ''}rotated by {angle:.1f} degrees, {scale:.3g} x"
        )
        if self.bending is not None:
            left = f"{self.bending.error:.2f} px off where {self.bending.without:.2f} px were"
            told.append(f"bent ({left})" if self.transform.local else "not bent as far as the matches tell")
        return f"{', '.join(told)}; {self.error:.2f} px off (median)"

    def to_dict(self) -> dict[str, Any]:
        """What the file of the transform says beside it."""
        bending = self.bending
        told = {"num_matches": self.num_matches, "num_inliers": len(self.fixed), "num_tiles": self.num_tiles}
        held_out = None if bending is None else {"error_px": bending.error, "without_px": bending.without}
        return {
            **told,
            "probability": self.probability,
            "error_px": self.error,
            "held_out": held_out,
            "seconds": self.seconds,
        }


# What the model sees --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """An image at the size that the model sees: (H, W, 3) RGB, and (H, W) where there are data."""

    pixels: NDArray[np.uint8]
    valid: NDArray[np.bool_]
    stored_size: Size

    @property
    def size(self) -> Size:
        """(width, height)."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def shrunk(self) -> float:
        """How many stored pixels one is."""
        return max(self.stored_size) / max(self.size)

    def to_stored(self, mirrored: bool = False) -> Array:
        """(3, 3) from its pixels, or those of its mirror image, to stored ones."""
        back = scaling(self.size, self.stored_size).numpy()
        flip = np.array([[-1.0, 0, self.size[0] - 1], [0, 1, 0], [0, 0, 1]])
        return np.asarray(back @ flip if mirrored else back)

    def image(self, matcher: Pipeline, mirrored: bool = False) -> Image:
        """As the matcher takes it, or its mirror image."""
        pixels, valid = (self.pixels[:, ::-1], self.valid[:, ::-1]) if mirrored else (self.pixels, self.valid)
        return matcher.load_image(np.ascontiguousarray(pixels), mask_of(valid))


def mask_of(valid: NDArray[np.bool_]) -> NDArray[np.uint8] | None:
    """Where keypoints are allowed, as a matcher takes it, of (H, W) where there are data."""
    return None if valid.all() else np.ascontiguousarray(valid).astype(np.uint8)


def see(raster: Raster, max_size: int | None) -> Seen:
    """An image at the size that a model sees."""
    size = fit_within(raster.size, max_size)
    return Seen(*raster.read(size=size), raster.size)


# Maps fitted to points ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fitted:
    """A (3, 3) map of a kind, and (K,) which points it explains."""

    kind: Kind
    matrix: Array
    inliers: NDArray[np.bool_]


def fit_map(p: Array, q: Array, threshold: float, options: AlignOptions) -> Fitted | None:
    """The map from (K, 2) points to others of the kind that was asked for, or of the stiffest that suits them.

    Each kind is fitted; a more pliable one must leave less of the distances than chance allows its further numbers (the
    Bayesian information criterion), and less by a part that is worth it.
    """
    asked: tuple[Kind, ...] = KINDS if options.transform == "auto" else (options.transform,)
    found = [one for kind in asked if (one := _fit_kind(kind, p, q, threshold, options)) is not None]
    if not found:
        return None
    known = np.any([one.inliers for one in found], axis=0)
    best = found[0]
    for one in found[1:]:
        before, after = (_cost(each, p[known], q[known], threshold) for each in (best, one))
        numbers = (_NUMBERS[one.kind] - _NUMBERS[best.kind]) * math.log(known.sum())
        if after < WORTH * before and known.sum() * math.log(before / max(after, 1e-12)) > numbers:
            best = one
    return best


def loosest(options: AlignOptions, size: Size) -> float:
    """How far a match of images that may be bent may lie from the map of the whole, in pixels; else the threshold."""
    return max(options.threshold, BENT * max(size)) if options.local else options.threshold


def _fit_kind(kind: Kind, p: Array, q: Array, threshold: float, options: AlignOptions) -> Fitted | None:
    H, inliers = _ESTIMATORS[kind](p, q, threshold, seed=options.seed)
    if H is None or inliers.sum() < MIN_INLIERS:
        return None
    return Fitted(kind, polish(kind, H, p[inliers], q[inliers], options.threshold), inliers)


def _cost(fitted: Fitted, p: Array, q: Array, threshold: float) -> float:
    """Mean square of the distances, none of which counts more than the threshold."""
    off = np.linalg.norm(transfer(fitted.matrix, p) - q, axis=1)
    return float((np.minimum(off, threshold) ** 2).mean()) + 1e-12


def finish(transform: Transform, p: Array, q: Array, num_matches: int, options: AlignOptions) -> Alignment:
    """With a local part, if asked for, and the errors of (K, 2) stored pixels ``p`` that are ``q`` of the other."""
    bending = None
    if options.local:
        bending = fit_bending(p, transform.unbent(q) - p, transform.fixed_size, seed=options.seed)
        transform = replace(transform, local=bending.field)
    off = np.linalg.norm(transform.to_fixed(q) - p, axis=1)
    return Alignment(transform, p, q, num_matches, float(np.median(off)), bending=bending)


def polish(kind: Kind, start: Array, p: Array, q: Array, scale: float) -> Array:
    """The (3, 3) map of a kind with the least sum of robust distances (soft L1) from ``p`` to ``q``, near ``start``."""
    from scipy.optimize import least_squares

    if np.linalg.det(start) < 0:  # a similarity of mirrored points
        flip = np.diag([-1.0, 1.0, 1.0])
        return np.asarray(polish(kind, start @ flip, p * [-1.0, 1.0], q, scale) @ flip)
    middle, spread = p.mean(axis=0), max(float(np.abs(p - p.mean(axis=0)).max()), 1e-9)
    norm = np.array([[1 / spread, 0, -middle[0] / spread], [0, 1 / spread, -middle[1] / spread], [0, 0, 1]])
    unit, first = (p - middle) / spread, start @ np.linalg.inv(norm)
    first = first / first[2, 2]

    def matrix(values: Array) -> Array:
        if kind == "similarity":
            a, b, x, y = values
            return np.array([[a, -b, x], [b, a, y], [0, 0, 1]])
        return np.append(values, [0, 0, 1] if kind == "affine" else [1]).reshape(3, 3)

    begin = first[[0, 1, 0, 1], [0, 0, 2, 2]] if kind == "similarity" else first.ravel()[: 6 if kind == "affine" else 8]
    found = least_squares(
        lambda values: (transfer(matrix(values), unit) - q).ravel(),
        begin,
        loss="soft_l1",
        f_scale=scale / 3,
        x_scale="jac",
    )
    return np.asarray(matrix(found.x) @ norm)
