"""Whether photographs show something flat: what two-view geometry explains, a plane must explain nearly as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steerers._console import APART, tell
from steerers.collection.store import Photograph
from steerers.collection.verification import Verified, view_of
from steerers.maps.adjustment import Adjusted, Link, adjust, components
from steerers.maps.transforms import Array, transfer

NEAR = 5.0
"""Pixels, of the image as it was matched, within which a match of a flat scene lies."""
FLAT = 0.8
"""Least part of the matches that two-view geometry explains and the plane explains too: 0.92 of a flight over fields
(caliterra), 0.68 and 0.45 of a church front and a fountain (Strecha)."""


class NotFlatError(ValueError):
    """Photographs that cannot be made a mosaic, since what they show is not flat, or they do not overlap."""

    exit_code = APART


@dataclass(frozen=True, eq=False)
class Scene:
    """Pairs by what a homography explains, and all that two-view geometry explains; ``shrunk`` are stored pixels of one
    as it was matched."""

    links: list[Link]
    explained: list[Link]
    shrunk: float

    def near(self, adjusted: Adjusted, links: Sequence[Link]) -> Array:
        """Distances, in pixels as they were matched, of the links between images that were adjusted."""
        known = [link for link in links if link.first in adjusted.maps and link.second in adjusted.maps]
        return np.concatenate([adjusted.residuals(link) for link in known]) / self.shrunk

    def numbers(self, adjusted: Adjusted) -> dict[str, Any]:
        """Of the adjustment, in stored pixels."""
        off, all_of_it = self.near(adjusted, self.links) * self.shrunk, self.near(adjusted, self.explained)
        return {
            "pairs": len(self.links),
            "matches": len(off),
            "error_px": {
                "median": float(np.median(off)),
                "rms_of_near": float(np.sqrt((off[off < NEAR * self.shrunk] ** 2).mean())),
            },
            "flat": float((all_of_it < NEAR).mean()),
        }


def link_scene(
    verified: Verified,
    photographs: Sequence[Photograph],
    *,
    max_distance: float,
    min_inliers: int,
    keep_contradicted: bool,
) -> Scene:
    """The pairs of a collection that geometry explains, without those that contradict their loops unless asked for.

    Args:
        max_distance: of a match from where the homography of its pair has it, in pixels of the image as it was matched.
    """
    collection = verified.collection
    place = {photograph.name: index for index, photograph in enumerate(photographs)}
    views = {photograph.name: view_of(collection, photograph) for photograph in photographs}
    points = {photograph.name: collection.keypoints(photograph.name).astype(np.float64) for photograph in photographs}
    links, explained = [], []
    for pair in verified.chosen(keep_contradicted):
        found, matches = verified.two_view(pair), collection.matches(*pair)
        if not np.isfinite(found.H).all():
            continue
        ends = [points[name][matches.indices[found.inliers, k]] for k, name in enumerate(pair)]
        shrunk = max(views[name].shrunk for name in pair)
        near = np.linalg.norm(transfer(found.H, ends[0]) - ends[1], axis=1) < max_distance * shrunk
        numbers = (place[pair[0]], place[pair[1]])
        explained.append(Link(*numbers, ends[0], ends[1], found.H, len(near)))
        if near.sum() >= min_inliers:
            links.append(Link(*numbers, ends[0][near], ends[1][near], found.H, int(near.sum())))
    return Scene(links, explained, float(np.median([view.shrunk for view in views.values()])))


def adjust_scene(scene: Scene, photographs: Sequence[Photograph], left_out: dict[str, str]) -> Adjusted:
    """The homographies of the largest group.

    Raises:
        NotFlatError: if nothing is linked, or the plane leaves out too much of what is explained otherwise.
    """
    groups = components(len(photographs), scene.links)
    if len(groups[0]) < 2:
        raise NotFlatError(
            f"no two of {len(photographs)} photographs overlap, as far as their matches tell: no homography does"
        )
    for group in groups[1:]:
        why = "does not overlap with the others" if len(group) == 1 else f"is in another group of {len(group)}"
        left_out |= {photographs[index].name: why for index in group}
    if len(groups) > 1:
        others = ", ".join(str(len(group)) for group in groups[1:6])
        tell(f"the photographs are not joined: {len(groups[0])} of them are shown, and groups of {others} left out")
    adjusted = adjust([photograph.size for photograph in photographs], scene.links, groups[0], scale=scene.shrunk)
    off = scene.near(adjusted, scene.explained)
    flat = float((off < NEAR).mean())
    if flat < FLAT:
        raise NotFlatError(
            f"the scene is not flat: of the matches that two-view geometry explains, a plane explains {flat:.0%} "
            f"within {NEAR:g} pixels ({FLAT:.0%} are needed), the median is {np.median(off):.1f} pixels off; "
            "steerers reconstruct takes such scenes"
        )
    return adjusted
