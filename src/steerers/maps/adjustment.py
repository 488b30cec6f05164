"""One homography an image, of all images together: bundle adjustment of a flat scene.

What two images both show must lie at one place of the plane. The start is a tree of the pairs with the most inliers; a
solver then moves all homographies at once until matched points are as near to each other as they can be, seen in the
images themselves, with a robust loss. The plane is the frame of one image, which stays, so that nothing is left free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steerers.geometry import Size, farthest_points
from steerers.maps.transforms import Array, transfer

PER_LINK = 40
"""Most matches of a pair that are adjusted, evenly spread."""
LOSSES = ("soft_l1", "cauchy")
"""One after the other: the first finds the way from a rough start, to the second what is far off matters no more."""
MOST_STEPS = 60
"""Of the solver."""
FARTHEST = 2.0
"""From the middle of an image, in halves of its longer side, beyond which nothing is seen."""
MOST_DISTORTION = 0.3
"""Of a lens: the corners of a photograph are moved by that part of half of its longer side, and half as much again."""


@dataclass(frozen=True, eq=False)
class Link:
    """Two images of a scene, by their numbers, and (K, 2) pixels that are matched.

    Attributes:
        H: (3, 3) from ``first`` to ``second``.
        weight: how far the pair is to be relied on: its inliers.
    """

    first: int
    second: int
    points0: Array
    points1: Array
    H: Array
    weight: int


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Where images lie on a plane.

    Attributes:
        maps: (3, 3) from pixels, as a lens without distortion would have them, to the plane, by the numbers of images.
        root: the image whose frame the plane is.
        distortion: of the lens, see :func:`straightened`.
        sizes: (width, height) of all images.
    """

    maps: dict[int, Array]
    root: int
    distortion: float
    sizes: Sequence[Size]

    def straight(self, index: int, xy: Array) -> Array:
        """(N, 2) pixels of an image as a lens without distortion would have them."""
        return straightened(xy, self.sizes[index], self.distortion)

    def residuals(self, link: Link) -> Array:
        """(K,) distances in pixels between matched points, each seen in the other's image: the mean of both ways."""
        ahead = inverse_of(self.maps[link.second]) @ self.maps[link.first]
        p, q = self.straight(link.first, link.points0), self.straight(link.second, link.points1)
        there = np.linalg.norm(transfer(ahead, p) - q, axis=1)
        back = np.linalg.norm(transfer(inverse_of(ahead), q) - p, axis=1)
        return np.asarray((there + back) / 2)


def straightened(xy: Array, size: Size, distortion: float) -> Array:
    """(N, 2) pixels as a lens without distortion would have them: ``x (1 + k |x|^2)``, of coordinates around the middle
    of which the longer side has two."""
    unit = to_unit(size)
    points = transfer(unit, xy)
    return transfer(inverse_of(unit), points * (1 + distortion * (points**2).sum(axis=1, keepdims=True)))


def distorted(xy: Array, size: Size, distortion: float) -> Array:
    """The inverse of :func:`straightened`, by Newton's steps along the radius; NaN where it has none."""
    unit = to_unit(size)
    aims = transfer(unit, xy)
    aim = np.minimum(np.linalg.norm(aims, axis=1), 1e6)
    radius = np.minimum(aim, FARTHEST)
    for _ in range(10):
        slope = np.maximum(1 + 3 * distortion * radius**2, 0.05)
        radius = np.clip(radius - (radius * (1 + distortion * radius**2) - aim) / slope, 0, 2 * FARTHEST)
    ratio = np.where(aim > 0, radius / np.maximum(aim, 1e-12), 1.0)
    there = (np.abs(radius * (1 + distortion * radius**2) - aim) < 1e-6) & (1 + 3 * distortion * radius**2 > 0)
    found = transfer(inverse_of(unit), np.where(there[:, None], aims * ratio[:, None], 0.0))
    return np.where(there[:, None], found, np.nan)


def inverse_of(matrix: Array) -> Array:
    """The inverse of a (3, 3) matrix."""
    return np.asarray(np.linalg.inv(matrix), np.float64)


def components(count: int, links: Sequence[Link]) -> list[list[int]]:
    """Groups of images that links join, the largest first; those alone too."""
    parent = list(range(count))

    def top(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for link in links:
        parent[top(link.first)] = top(link.second)
    groups: dict[int, list[int]] = {}
    for index in range(count):
        groups.setdefault(top(index), []).append(index)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def spanning_tree(members: Sequence[int], links: Sequence[Link]) -> tuple[int, dict[int, Array]]:
    """The image that is linked best, and (3, 3) maps of all to it along the links with the most inliers (Prim)."""
    strength = dict.fromkeys(members, 0)
    near: dict[int, list[tuple[int, int, Array]]] = {index: [] for index in members}
    for link in links:
        if link.first in strength:
            for own, other, H in ((link.first, link.second, inverse_of(link.H)), (link.second, link.first, link.H)):
                strength[own] += link.weight
                near[own].append((other, link.weight, H))  # H leads from the other to its own
    root = max(members, key=lambda index: (strength[index], -index))
    maps, queue = {root: np.eye(3)}, [(-weight, root, other, n) for n, (other, weight, _) in enumerate(near[root])]
    heapq.heapify(queue)
    while queue:
        _, own, other, n = heapq.heappop(queue)
        if other not in maps:
            found = maps[own] @ near[own][n][2]
            maps[other] = found / np.linalg.norm(found)
            for number, (further, weight, _) in enumerate(near[other]):
                heapq.heappush(queue, (-weight, other, further, number))
    return root, maps


def adjust(sizes: Sequence[Size], links: Sequence[Link], members: Sequence[int], *, scale: float = 1.0) -> Adjusted:
    """The homographies of the ``members``, which the links join.

    Args:
        sizes: (width, height) of all images.
        scale: pixels from which on distances count less and less.
    """
    from scipy.optimize import least_squares

    root, start = spanning_tree(members, links)
    system = _System([link for link in links if link.first in start], start, root, sizes)
    values = system.begin
    for loss in LOSSES:
        values = least_squares(
            system.residuals,
            values,
            system.jacobian,
            bounds=system.bounds,
            loss=loss,
            f_scale=scale,
            x_scale="jac",
            tr_solver="lsmr",
            max_nfev=MOST_STEPS,
            ftol=1e-6,
            xtol=1e-10,
        ).x
    return Adjusted(system.maps(values), root, float(values[-1]), sizes)


class _System:
    """Residuals of all links, both ways, and how they change with the numbers that are sought: eight of each
    homography, of coordinates in which an image spans about -1 to 1, and last the distortion of the lens."""

    def __init__(self, links: Sequence[Link], start: dict[int, Array], root: int, sizes: Sequence[Size]) -> None:
        self.order = [index for index in sorted(start) if index != root]
        self.root = root
        place = {index: k for k, index in enumerate([root, *self.order])}  # 0 is the root
        self.units = {index: to_unit(sizes[index]) for index in start}
        begin = [self.units[root] @ start[index] @ inverse_of(self.units[index]) for index in self.order]
        self.begin = np.concatenate([*((H / H[2, 2]).ravel()[:8] for H in begin), [0.0]])
        most = np.full(len(self.begin), np.inf)
        most[-1] = MOST_DISTORTION
        self.bounds = (-most, most)
        own, other, points, aims, scales = [], [], [], [], []
        for link in links:
            kept = _spread(link.points0, PER_LINK)
            ends = (link.first, link.points0[kept]), (link.second, link.points1[kept])
            for (i, p), (j, q) in (ends, ends[::-1]):
                own.append(np.full(len(p), place[i]))
                other.append(np.full(len(p), place[j]))
                points.append(transfer(self.units[i], p))
                aims.append(transfer(self.units[j], q))
                scales.append(np.full(len(p), 1 / self.units[j][0, 0]))
        self.own, self.other = np.concatenate(own), np.concatenate(other)
        self.points, self.aims, self.scales = np.concatenate(points), np.concatenate(aims), np.concatenate(scales)
        self.bends, self.aim_bends = (xy * (xy**2).sum(axis=1, keepdims=True) for xy in (self.points, self.aims))

    def _matrices(self, values: Array) -> Array:
        """(M, 3, 3) of the root and the others."""
        rows = np.column_stack([values[:-1].reshape(-1, 8), np.ones(len(self.order))]).reshape(-1, 3, 3)
        return np.concatenate([np.eye(3)[None], rows])

    def _mapped(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """(N, 3) straightened points in the other image, what they were in their own, and the (N, 3, 3) matrices that
        led to the plane and from there."""
        matrices = self._matrices(values)
        ahead, back = matrices[self.own], np.linalg.inv(matrices)[self.other]
        points = np.column_stack([self.points + values[-1] * self.bends, np.ones(len(self.own))])
        return np.einsum("nij,nj->ni", back, np.einsum("nij,nj->ni", ahead, points)), points, ahead, back

    def _weights(self, values: Array) -> Array:
        """(N,) pixels of an image for what is straightened; else a lens that shrinks all would have least errors."""
        return np.asarray(self.scales / (1 + values[-1] * (self.aims**2).sum(axis=1)))

    def residuals(self, values: Array) -> Array:
        """(2 N,) pixels."""
        mapped = self._mapped(values)[0]
        aims = self.aims + values[-1] * self.aim_bends
        off = (mapped[:, :2] / mapped[:, 2:] - aims) * self._weights(values)[:, None]
        return np.asarray(np.clip(np.nan_to_num(off, nan=1e6), -1e6, 1e6).ravel())

    def jacobian(self, values: Array) -> object:
        """(2 N, 8 M + 1) sparse, of ``G_j^-1 G_i x`` by the entries of both homographies and by the distortion."""
        from scipy.sparse import csr_matrix

        y, points, ahead, back = self._mapped(values)
        count, weights = len(y), self._weights(values)
        projection = np.zeros((count, 2, 3))
        projection[:, 0, 0] = projection[:, 1, 1] = 1 / y[:, 2]
        projection[:, :, 2] = -y[:, :2] / y[:, 2:] ** 2
        slopes = np.einsum("nij,njk->nik", projection, back) * weights[:, None, None]  # (N, 2, 3) by the plane
        by_own, by_other = ((slopes[..., None] * x[:, None, None]).reshape(count, 2, 9)[..., :8] for x in (points, -y))
        by_lens = np.einsum("nij,njk,nk->ni", slopes, ahead[..., :2], self.bends)
        by_lens -= self.aim_bends * weights[:, None]
        squares = (self.aims**2).sum(axis=1) * weights / self.scales
        by_lens -= self.residuals(values).reshape(-1, 2) * squares[:, None]
        rows, columns, entries = [np.arange(2 * count)], [np.full(2 * count, len(values) - 1)], [by_lens.ravel()]
        for which, block in ((self.own, by_own), (self.other, by_other)):
            kept = np.flatnonzero(which > 0)
            shape = (len(kept), 2, 8)
            rows.append(np.broadcast_to((2 * kept[:, None] + np.arange(2))[..., None], shape).ravel())
            columns.append(np.broadcast_to((8 * (which[kept] - 1)[:, None] + np.arange(8))[:, None], shape).ravel())
            entries.append(block[kept].ravel())
        where = (np.concatenate(rows), np.concatenate(columns))
        return csr_matrix((np.concatenate(entries), where), shape=(2 * count, len(values)))

    def maps(self, values: Array) -> dict[int, Array]:
        """(3, 3) from straightened pixels of images to those of the root, by their numbers."""
        back = inverse_of(self.units[self.root])
        numbers = [self.root, *self.order]
        return {index: back @ H @ self.units[index] for index, H in zip(numbers, self._matrices(values), strict=True)}


def to_unit(size: Size) -> Array:
    """(3, 3) from pixels to coordinates in which the longer side goes from -1 to 1."""
    half = max(size) / 2
    return np.array([[1 / half, 0, -(size[0] - 1) / 2 / half], [0, 1 / half, -(size[1] - 1) / 2 / half], [0, 0, 1]])


def _spread(xy: Array, most: int) -> NDArray[np.int64]:
    """Indices of at most so many points, evenly spread: each the farthest from those before."""
    if len(xy) <= most:
        return np.arange(len(xy))
    first = int(np.linalg.norm(xy - xy.mean(axis=0), axis=1).argmax())
    return np.sort(np.array(farthest_points(xy, most, first)))
