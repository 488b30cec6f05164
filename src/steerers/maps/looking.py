"""A second look at a guess where on a map a photograph was taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.features import Features, Matches
from steerers.geometry import Homography, Size, estimate_homography, scale_at, scaling, warp_image
from steerers.images.decode import header_size
from steerers.images.load import Image, load_image
from steerers.maps.coordinates import map_points
from steerers.maps.rasters import Raster
from steerers.pipeline import Pipeline
from steerers.verdict import Evidence, gather, log_odds

Array = NDArray[np.float64]

SHOWN = 1024
"""Longest side, in pixels, at which photographs are looked at."""
BORDER = 0.2
"""How much more of the map is cut out on each side of what the photograph should show, as a fraction of its size."""
FINAL = 3.0
"""Largest distance of inliers, in pixels of the shown photograph."""
SEEDS = 5
"""Estimates of the homography, of which the one with the most inliers is kept."""


@dataclass(frozen=True, eq=False)
class Look:
    """What looking at a guess found: the (3, 3) map from pixels of the photograph to those of the map, the inliers in
    both (K, 2), and how much speaks for it."""

    matrix: Array
    photo_points: Array
    map_points: Array
    evidence: Evidence

    @property
    def logit(self) -> float:
        """The log odds that it is the place."""
        return log_odds(self.evidence)


class Photo:
    """A photograph, shown in any size, decoded and described once in each.

    Attributes:
        size: (width, height) as stored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size: Size = header_size(path)
        self._shown: dict[int, Image] = {}
        self._kept: dict[tuple[int, ...], Features] = {}

    def shown(self, longest: int) -> Image:
        """With so many pixels on the longer side, at most."""
        if longest not in self._shown:
            self._shown[longest] = load_image(self.path, max_size=longest)
        return self._shown[longest]

    def features(self, pipeline: Pipeline, image: Image) -> Features:
        """Of what :meth:`shown` gave; always by the same pipeline."""
        key = tuple(image.tensor.shape)
        if key not in self._kept:
            self._kept[key] = pipeline.extract(image)
        return self._kept[key]


def look(raster: Raster, pipeline: Pipeline, photo: Photo, matrix: Array) -> Look | None:
    """Match a photograph with what the map shows where ``matrix`` puts it; ``None`` if that tells nothing."""
    size = photo.size
    centre = np.array([[(size[0] - 1) / 2, (size[1] - 1) / 2]])
    scale = scale_at(matrix, centre[0])  # pixels of the map in one of it
    image = photo.shown(_shown_side(max(size) * min(1.0, scale)))
    height, width = image.tensor.shape[1:]
    to_shown = torch.linalg.inv(image.to_stored).numpy()
    cut, mask, to_map = _cut(raster, matrix @ np.linalg.inv(to_shown), (width, height))
    if not mask.any():
        return None
    seen = pipeline.extract(cut, mask=mask)
    own = photo.features(pipeline, image)
    own = replace(own, keypoints=_moved(to_shown, own.keypoints), image_size=(width, height))
    matches = pipeline.match(own, seen)
    H, inliers = _estimate(matches, (width, height))
    if H is None:
        return None
    evidence = gather(matches, Homography(H, inliers))
    photo_points = map_points(np.linalg.inv(to_shown), matches.keypoints0[inliers])
    found = to_map @ H @ to_shown
    found = found / (found[2] @ np.append(centre[0], 1))  # as it is in the middle, whatever is beyond the horizon
    return Look(found, photo_points, map_points(to_map, matches.keypoints1[inliers]), evidence)


def _shown_side(wanted: float) -> int:
    """The longest side in which a photograph is shown, of a few, so that it is described in few of them."""
    steps = max(0, math.floor(4 * math.log2(SHOWN / max(wanted, 64.0))))
    return round(SHOWN * 2 ** (-steps / 4))


def _cut(raster: Raster, matrix: Array, size: Size) -> tuple[Tensor, NDArray[np.bool_], Array]:
    """What the map shows where a shown photograph lies and around it, in its pixels: (3, H, W), where there is a
    map, and the (3, 3) map from pixels of what is cut out to those of the map."""
    width, height = (round(side * (1 + 2 * BORDER)) for side in size)
    to_shown = np.array([[1.0, 0, (size[0] - width) / 2], [0, 1, (size[1] - height) / 2], [0, 0, 1]])
    to_map = matrix @ to_shown
    corners = map_points(to_map, [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    low = np.maximum(np.floor(corners.min(axis=0)) - 2, -16)
    high = np.minimum(np.ceil(corners.max(axis=0)) + 3, np.asarray(raster.size) + 16)
    nothing = torch.zeros(3, height, width), np.zeros((height, width), bool), to_map
    if not np.isfinite(corners).all() or (high <= low).any():
        return nothing
    shrink = max(1.0, scale_at(to_map, [(width - 1) / 2, (height - 1) / 2]))  # map pixels in one of these
    read = tuple(max(1, math.ceil(side / shrink)) for side in (high - low))
    if read[0] * read[1] > 64 * width * height:  # beyond the horizon
        return nothing
    picture, valid = raster.read((low[0], low[1], high[0], high[1]), (read[0], read[1]))
    to_read = scaling((int(high[0] - low[0]), int(high[1] - low[1])), (read[0], read[1])).numpy().copy()
    to_read = to_read @ np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]])
    from_read = torch.from_numpy(np.linalg.inv(to_read @ to_map))
    layers = torch.from_numpy(np.concatenate([picture / 255.0, valid[..., None]], axis=2)).float().permute(2, 0, 1)
    warped = warp_image(layers, from_read, (width, height))
    mask = warped[3] > 0.999
    return torch.where(mask, warped[:3], 0.5), mask.numpy(), to_map


def _moved(transform: Array, points: Tensor) -> Tensor:
    return torch.from_numpy(map_points(transform, points.cpu().numpy())).float().to(points.device)


def _estimate(matches: Matches, size: Size) -> tuple[Array | None, NDArray[np.bool_]]:
    """A map from a shown photograph to what was cut out for it, which is nearly a shift, and the inliers."""
    p0, p1 = (np.asarray(points, np.float64) for points in (matches.keypoints0, matches.keypoints1))
    near = np.abs(p1 - p0 - BORDER * np.asarray(size)).max(axis=1) < BORDER * max(size)
    if matches.angles is not None:
        near &= np.abs(matches.angles) < 30
    nothing = np.zeros(len(p0), dtype=bool)
    best: tuple[Array | None, NDArray[np.bool_]] = None, nothing
    for seed in range(SEEDS):
        H, inliers = estimate_homography(p0[near], p1[near], FINAL, seed=seed)
        if H is not None and inliers.sum() > best[1].sum():
            best = H, inliers
    H, kept = best
    if H is None:
        return None, nothing
    inliers = nothing.copy()
    inliers[np.flatnonzero(near)[kept]] = True
    return H, inliers
