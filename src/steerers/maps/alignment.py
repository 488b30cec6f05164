"""One image laid over another: slides, scans, satellite images of two dates, infra-red beside colour.

Both are matched once, at the size that the model sees; a similarity, affine map or homography explains the matches,
then, if asked for, a smooth local part (:mod:`steerers.maps.bending`). Of larger images tiles in full resolution are
matched under what is known by then (:mod:`steerers.maps.tiles`). Descriptions of mirrored images are had from those of
the image as it is where the model has a map for that, else the mirrored image is described as well.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from steerers._choices import LIKELY, Resampling
from steerers._files import StrPath
from steerers.geometry import Size, estimate_homography
from steerers.images.decode import fit_within
from steerers.maps.bending import agreeing
from steerers.maps.rasters import Raster, open_raster
from steerers.maps.registration import (
    MIN_INLIERS,
    Alignment,
    AlignOptions,
    NotAlignedError,
    Seen,
    finish,
    fit_map,
    loosest,
    see,
)
from steerers.maps.tiles import refine_by_tiles
from steerers.maps.transforms import Array, Transform, need_scipy, transfer
from steerers.maps.warping import sample, write_warped
from steerers.viz.checkerboard import draw_checkerboard

if TYPE_CHECKING:
    import PIL.Image

    from steerers.features import Features, Matches
    from steerers.pipeline import Pipeline

logger = logging.getLogger(__name__)

FLAT = 0.75
"""An image is bent if fewer of the matches that their neighbours agree with follow a map of the whole."""


def align(
    fixed: StrPath,
    moving: StrPath,
    out: StrPath | None = None,
    *,
    matcher: Pipeline | None = None,
    options: AlignOptions | None = None,
    resampling: Resampling = "linear",
    nodata: float | None = None,
) -> Alignment:
    """Lay a moving image over a fixed one.

    Args:
        fixed: an image that rasterio opens, of any size, bands and type of numbers; ``moving`` likewise.
        out: a GeoTIFF, the moving image in the frame of the fixed one, georeferenced where that is.
        matcher: by default :func:`steerers.load`'s; its ``max_size`` is the size at which whole images are matched.
        resampling: ``"nearest"`` for labels, ``"linear"`` or ``"cubic"``.
        nodata: what stands in ``out`` where there is no image; by default as the moving image has it, else NaN for
            floats and an alpha band for whole numbers.

    Raises:
        NotAlignedError: if the matches do not tell how the images lie.
        ValueError: if a file cannot be read.
        OSError: naming the file, if it cannot be written.
    """
    from steerers.pipeline import load

    need_scipy()
    matcher, options = matcher or load(), options or AlignOptions()
    with open_raster(fixed) as first, open_raster(moving) as second:
        found = align_rasters(first, second, matcher, options)
        if out is not None:
            write_warped(out, second, found.transform, first, resampling=resampling, nodata=nodata)
    return found


def align_rasters(fixed: Raster, moving: Raster, matcher: Pipeline, options: AlignOptions) -> Alignment:
    """:func:`align` of images that are open."""
    start = time.perf_counter()
    seen = see(fixed, matcher.max_size), see(moving, matcher.max_size)
    matched = _match(seen[0], seen[1], matcher, options)
    found = _in_full(matched, *seen, options)
    if options.tiles and max(seen[0].shrunk, seen[1].shrunk) > 1.0:
        found = refine_by_tiles(fixed, moving, found, seen, matcher, options)
    return replace(found, seconds=time.perf_counter() - start)


def draw_alignment(fixed: StrPath, moving: StrPath, transform: Transform, side: int) -> PIL.Image.Image:
    """Squares of both images in turns, in the frame of the fixed one; the longer side has at most so many pixels."""
    with open_raster(fixed) as first, open_raster(moving) as second:
        size = fit_within(first.size, side)
        shown, _ = first.read(size=size)
        found = sample(second.read, transform, (0, 0, *first.size), size)
    if found is None:
        return draw_checkerboard(shown, shown, np.zeros(shown.shape[:2], dtype=bool))
    return draw_checkerboard(shown, found.pixels, found.valid)


# Matching -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Matched:
    """Matches of two images as the model sees them, the moving one mirrored or not, and how many of them agree."""

    matches: Matches
    mirrored: bool
    inliers: int


def _match(fixed: Seen, moving: Seen, matcher: Pipeline, options: AlignOptions) -> Matched:
    """The matches of the moving image as it is, or of its mirror image: whichever has more that agree."""
    image = fixed.image(matcher)
    own = matcher.extract(image)
    ways = [mirrored for mirrored in (False, True) if options.mirror in ("auto", "yes" if mirrored else "no")]
    tried = []
    plain = moving.image(matcher)
    features = matcher.extract(plain) if False in ways or matcher.model.mirror is not None else None
    for mirrored in ways:
        described = _mirrored(features, moving, matcher) if mirrored else features
        assert described is not None
        found = matcher.match(own, described)
        inliers = int(
            estimate_homography(found.keypoints0, found.keypoints1, loosest(options, fixed.size)).inliers.sum()
        )
        logger.debug("%s: %d matches, %d agree", "mirrored" if mirrored else "as it is", len(found), inliers)
        tried.append((inliers, found, mirrored))
    inliers, found, mirrored = max(tried, key=lambda one: one[0])
    if options.refine and inliers >= MIN_INLIERS:
        found = found.refine(image, moving.image(matcher, mirrored), device=matcher.device)
    return Matched(found, mirrored, inliers)


def _mirrored(features: Features | None, moving: Seen, matcher: Pipeline) -> Features:
    """The features of the mirror image: by the model's map of descriptions, else described anew."""
    mirror = matcher.model.mirror
    if mirror is None or features is None:
        return matcher.extract(moving.image(matcher, mirrored=True))
    keypoints = features.keypoints.clone()
    keypoints[:, 0] = moving.size[0] - 1 - keypoints[:, 0]
    turned = mirror.to(features.descriptions.device).steer(features.descriptions, math.pi)
    return replace(features, keypoints=keypoints, descriptions=turned)


# Estimation -----------------------------------------------------------------------------------------------------------


def _in_full(matched: Matched, fixed: Seen, moving: Seen, options: AlignOptions) -> Alignment:
    """The alignment of images of which small versions were matched."""
    matches, probability = matched.matches, matched.matches.probability
    if probability < LIKELY:
        raise NotAlignedError(
            f"the images cannot be aligned: that they show the same thing has a probability of {probability:.2f} "
            f"({len(matches)} matches, {matched.inliers} agree); try more keypoints or a larger size"
        )
    small = align_matches(matches, fixed.size, moving.size, options)
    to_fixed, to_moving = fixed.to_stored(), moving.to_stored(matched.mirrored)
    matrix = to_moving @ small.transform.matrix @ np.linalg.inv(to_fixed)
    transform = Transform(small.transform.kind, matrix, fixed.stored_size, moving.stored_size)
    ends = transfer(to_fixed, small.fixed), transfer(to_moving, small.moving)
    return replace(finish(transform, *ends, len(matches), options), probability=probability)


def align_matches(matches: Matches, fixed_size: Size, moving_size: Size, options: AlignOptions) -> Alignment:
    """The alignment that matches of two images tell, at the size at which they were matched.

    Raises:
        NotAlignedError: if too few of them agree.
    """
    p, q = matches.keypoints0.astype(np.float64), matches.keypoints1.astype(np.float64)
    if options.local:
        p, q = _smooth(p, q, loosest(options, fixed_size))
    found = fit_map(p, q, options.threshold, options)
    if options.local and (found is None or found.inliers.sum() < FLAT * len(p)):
        found = fit_map(p, q, loosest(options, fixed_size), options)
    if found is None:
        raise NotAlignedError(
            f"the images cannot be aligned: of {len(matches)} matches fewer than {MIN_INLIERS} agree on one; try more "
            "keypoints, a larger size or another transform"
        )
    transform = Transform(found.kind, found.matrix, fixed_size, moving_size)
    return finish(transform, p[found.inliers], q[found.inliers], len(matches), options)


def _smooth(p: Array, q: Array, farthest: float) -> tuple[Array, Array]:
    """The points that are not too far from where a map of the whole has them, and there move as their neighbours do."""
    rough = estimate_homography(p, q, farthest)
    if rough.H is None:
        return p, q
    p, q = p[rough.inliers], q[rough.inliers]
    kept = agreeing(p, q - transfer(rough.H, p))
    return p[kept], q[kept]
