"""Large images: what is known of a small version is refined by tiles of finer and finer resolution.

A tile of the fixed image and what the moving one shows there by then, read by windows, are nearly alike: they are
matched as two small images are, and what agrees within the tile counts. All tiles of a resolution together give the
transform that the next one begins with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from steerers._console import progress
from steerers.geometry import Size, estimate_similarity, farthest_points
from steerers.maps.bending import agreeing
from steerers.maps.rasters import Raster, Window
from steerers.maps.registration import MIN_INLIERS, Alignment, AlignOptions, Seen, finish, mask_of, polish
from steerers.maps.transforms import Array, Transform
from steerers.maps.warping import sample

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

logger = logging.getLogger(__name__)

SIDE = 512
"""Of a tile, in pixels of the resolution at which it is matched."""
STEP = 4.0
"""By how much finer each resolution is than the one before."""
KEYPOINTS = 1024
"""Most of a tile."""
PER_TILE, ALTOGETHER = 60, 3000
"""Most matches of a tile that count, so that no tile outweighs the others; of few tiles, so many of all together."""
COVERED = 0.5
"""Least part of a tile that both images show."""
MOST_CHANGE = 1.2
"""A tile is believed if it is still that alike: by how much its scale may differ, and rotations by 10 degrees."""


def refine_by_tiles(
    fixed: Raster, moving: Raster, start: Alignment, seen: tuple[Seen, Seen], matcher: Pipeline, options: AlignOptions
) -> Alignment:
    """An alignment of small versions, refined in full resolution; what tiles do not tell stays as it was."""
    found, matcher = start, replace(matcher, max_size=SIDE, num_keypoints=min(matcher.num_keypoints, KEYPOINTS))
    known: list[tuple[Array, Array]] = []  # of all resolutions, the finest first
    for shrunk in _resolutions(seen, start.transform):
        tiles = _choose(fixed.size, seen, found.transform, shrunk, options)
        parts = []
        for window in progress(tiles, f"matching tiles at 1:{shrunk:.3g}"):
            part = _match_tile(fixed, moving, found.transform, window, shrunk, matcher, options)
            logger.debug(
                "tile at %.0f, %.0f: %s", *window[:2], "nothing" if part is None else f"{len(part[0])} matches"
            )
            if part is not None:
                parts.append(part)
        logger.debug("1:%.3g: %d of %d tiles matched", shrunk, len(parts), len(tiles))
        if sum(len(p) for p, _ in parts) >= 3 * MIN_INLIERS:
            most = max(PER_TILE, ALTOGETHER // len(parts))
            p, q = (np.concatenate([end[:most] for end in side]) for side in zip(*parts, strict=True))
            known.insert(0, (p, q))
            finer = _again(found, known, shrunk, options)
            found = replace(finer, num_tiles=len(parts), probability=start.probability)
    return found


def _resolutions(seen: tuple[Seen, Seen], transform: Transform) -> list[float]:
    """Pixels of the fixed image that become one, from coarse to fine: to the finest that both images have."""
    scale = math.sqrt(abs(float(np.linalg.det(transform.matrix[:2, :2]))))  # moving pixels of a fixed one
    finest = max(1.0, 1.0 / scale)
    coarsest = max(seen[0].shrunk, seen[1].shrunk / scale)
    steps = max(0, math.ceil(math.log(max(coarsest / finest, 1.0), STEP) - 1e-9))
    return [finest * STEP**step for step in reversed(range(steps))]


def _choose(
    size: Size, seen: tuple[Seen, Seen], transform: Transform, shrunk: float, options: AlignOptions
) -> list[Window]:
    """Windows of the fixed image where both have something to show: the most varied of each part of it."""
    side = SIDE * shrunk
    across, down = (max(1, math.ceil(length / side)) for length in size)
    centres = np.stack(np.meshgrid(*((np.arange(n) + 0.5) / n for n in (across, down))), axis=-1).reshape(-1, 2)
    centres = centres * size - 0.5
    variety = np.array([_variety(seen[0], xy, side) for xy in centres])
    variety *= [_covers(seen[1], transform, xy, side) >= COVERED for xy in centres]
    if not variety.any() or options.tiles < 1:
        return []
    kept = farthest_points(centres, options.tiles, int(variety.argmax()), variety)
    return [_window(centres[index], side, size) for index in kept]


def _variety(seen: Seen, centre: Array, side: float) -> float:
    """Of a window, how much the fixed image varies there, as far as it was seen; 0 where half of it has no data."""
    part = _part(seen, centre, side)
    valid = seen.valid[part]
    return float(seen.pixels[part][valid].std()) if valid.mean() >= COVERED else 0.0


def _part(seen: Seen, centre: Array, side: float) -> tuple[slice, slice]:
    place, reach = (centre + 0.5) / seen.shrunk, max(1.0, side / seen.shrunk / 2)
    columns, rows = (
        slice(max(0, int(place[k] - reach)), max(1, min(seen.size[k], math.ceil(place[k] + reach)))) for k in (0, 1)
    )
    return rows, columns


def _covers(seen: Seen, transform: Transform, centre: Array, side: float) -> float:
    """Which part of a window the moving image shows."""
    steps = np.linspace(-0.4, 0.4, 5) * side
    grid = centre + np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    places = (transform.to_moving(grid) + 0.5) / seen.shrunk
    inside = ((places >= 0) & (places < seen.size)).all(axis=1)  # NaN is not
    columns, rows = np.nan_to_num(places[inside]).astype(np.int64).T
    return float(seen.valid[rows, columns].sum() / len(grid))


def _window(centre: Array, side: float, size: Size) -> Window:
    """A square around a place, moved into the image as far as it fits."""
    left, top = (
        float(np.clip(round(middle + 0.5 - side / 2), 0, max(0, length - side)))
        for middle, length in zip(centre, size, strict=True)
    )
    return left, top, min(left + side, size[0]), min(top + side, size[1])


def _match_tile(
    fixed: Raster,
    moving: Raster,
    transform: Transform,
    window: Window,
    shrunk: float,
    matcher: Pipeline,
    options: AlignOptions,
) -> tuple[Array, Array] | None:
    """(K, 2) stored pixels of the fixed image and where they are in the moving one, if a tile tells anything."""
    left, top, right, bottom = window
    size = (max(8, round((right - left) / shrunk)), max(8, round((bottom - top) / shrunk)))
    shown, valid = fixed.read(window, size)
    other = sample(moving.read, transform, window, size)
    if other is None or (other.valid & valid).mean() < COVERED / 2:
        return None
    images = [
        matcher.load_image(pixels, mask_of(there)) for pixels, there in ((shown, valid), (other.pixels, other.valid))
    ]
    matches = matcher.match(*matcher.extract(images))
    p, q = matches.keypoints0.astype(np.float64), matches.keypoints1.astype(np.float64)
    close = np.linalg.norm(p - q, axis=1) < SIDE / 4
    found = estimate_similarity(p[close], q[close], 2 * options.threshold, seed=options.seed)
    if found.H is None or found.inliers.sum() < MIN_INLIERS or not _nearly_alike(found.H):
        return None
    if options.refine:
        q = matches.refine(*images, device=matcher.device).keypoints1.astype(np.float64)
    kept = np.flatnonzero(close)[found.inliers]
    kept = kept[agreeing(p[kept], q[kept] - p[kept])]
    kept = np.random.default_rng(options.seed).permutation(kept)
    ratio = np.array([(right - left) / size[0], (bottom - top) / size[1]])
    p, q = ((xy[kept] + 0.5) * ratio + [left, top] - 0.5 for xy in (p, q))
    return p, transform.to_moving(q)


def _nearly_alike(similarity: Array) -> bool:
    scale, turn = math.hypot(*similarity[:2, 0]), math.atan2(similarity[1, 0], similarity[0, 0])
    return 1 / MOST_CHANGE < scale < MOST_CHANGE and abs(turn) < math.radians(10)


def _again(found: Alignment, known: Sequence[tuple[Array, Array]], shrunk: float, options: AlignOptions) -> Alignment:
    """The alignment of the matches of tiles, which agree within each: the map of the whole by those of the
    finest resolution, a local part also by others, which lie between them."""
    before, (p, q) = found.transform, known[0]
    scale = math.sqrt(abs(float(np.linalg.det(before.matrix[:2, :2]))))
    matrix = polish(before.kind, before.matrix, p, q, options.threshold * shrunk * scale)
    transform = Transform(before.kind, matrix, before.fixed_size, before.moving_size)
    if options.local:
        p, q = (np.concatenate(side) for side in zip(*known, strict=True))
    return finish(transform, p, q, found.num_matches, options)
