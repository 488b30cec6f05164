"""Which pairs of a collection can be true, by their rotations alone: every triangle of the view graph must close.

The rotation from photograph a to b and that from b to c make the rotation from a to c. Of three true pairs the sum
around the triangle is a full turn, up to noise and to what a change of viewpoint adds; with a false pair among them it
is anything. So the triangles that a pair is in say whether it is true, each as much as its other two pairs can be
trusted, which their own triangles say: sum-product message passing (belief propagation) over the pairs and triangles.

Longer loops are not asked: what changes of viewpoint add is small in a triangle of overlapping photographs, but grows
along a loop. Around a tower, looking down at a slant, it is a large part of a turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steerers.geometry import circular_mode, wrap_degrees

NOISE = 6.0
"""Degrees by which the rotations of three true pairs miss a full turn, as the scale of a Laplace density: a triangle
that misses by more than 20 speaks against its pairs. Measured, with every photograph rotated at random: of forty of a
drone 1 at the median and 4 at the 99th percentile, of Strecha's facade 1.5 and 11, of his fountain 1.6 and 8."""
SURPRISE = 0.02
"""Fraction of triangles of true pairs that may miss by anything at all."""
PRIOR_INLIERS = 15.0
"""A verified pair of n inliers is true by odds of n to this, before its triangles are asked."""
MOST_TRIANGLES = 64
"""Of a pair, those whose weaker other pair has the most inliers; the others would add little."""
ROUNDS, DAMPING = 60, 0.5
"""Of message passing: how often, and how much of the last message stays."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Consistency:
    """What the triangles say of P pairs.

    Attributes:
        probability: (P,) that a pair is true.
        agreeing: (P,) triangles with it that close; ``contradicting`` (P,) those that do not.
        orientations: (N,) degrees counter-clockwise by which each photograph is rotated against most of its group, from
            the pairs that are kept; NaN for one without such a pair.
    """

    probability: Array
    agreeing: Indices
    contradicting: Indices
    orientations: Array

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(P,) pairs that are rather true than false; one without triangles always is."""
        return self.probability >= 0.5


def check_rotations(
    pairs: Sequence[tuple[int, int]] | Indices, degrees: Sequence[float] | Array, inliers: Sequence[int] | Indices
) -> Consistency:
    """Ask the triangles of a view graph which of its pairs are true, and for the orientation of each photograph.

    Args:
        pairs: (P, 2) photographs, numbered from 0, each pair once.
        degrees: (P,) rotation counter-clockwise from the first of a pair to the second; NaN where it is not known.
        inliers: (P,) matches that two-view geometry explains.
    """
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    angles, weights = np.asarray(degrees, np.float64), np.asarray(inliers, np.float64)
    known = np.isfinite(angles)
    chosen = np.flatnonzero(known)
    sides, signs = find_triangles(ends[chosen], weights[chosen])
    sides = chosen[sides]  # (T, 3) pairs
    gap = np.abs((np.sum(signs * angles[sides], axis=1) + 180.0) % 360.0 - 180.0)  # (T,)
    log_odds = _pass_messages(sides, gap, weights)
    closes = _log_ratio(gap) > 0
    agreeing, contradicting = (
        np.bincount(sides[chosen_triangles].ravel(), minlength=len(ends)) for chosen_triangles in (closes, ~closes)
    )
    probability = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -500, 500)))
    used = known & (probability >= 0.5)
    orientations = solve_orientations(ends[used], angles[used], weights[used], int(ends.max(initial=-1)) + 1)
    return Consistency(probability, agreeing, contradicting, orientations)


# Triangles ------------------------------------------------------------------------------------------------------------


def find_triangles(ends: Indices, weights: Array) -> tuple[Indices, Array]:
    """The triangles of a graph, at most :data:`MOST_TRIANGLES` that every edge asks for.

    Returns:
        (T, 3) edges, and (T, 3) signs, -1 where an edge leads against the way a -> b -> c -> a.
    """
    neighbours: dict[int, dict[int, int]] = {}  # node -> node -> edge
    for edge, (a, b) in enumerate(ends.tolist()):
        neighbours.setdefault(a, {})[b] = edge
        neighbours.setdefault(b, {})[a] = edge
    found: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    for a, b in ends.tolist():
        shared = neighbours[a].keys() & neighbours[b].keys()
        strongest = sorted(shared, key=lambda c: (-min(weights[neighbours[a][c]], weights[neighbours[b][c]]), c))
        for c in strongest[:MOST_TRIANGLES]:
            i, j, k = sorted((a, b, c))
            found[i, j, k] = neighbours[i][j], neighbours[j][k], neighbours[i][k]
    corners = sorted(found)
    sides = np.array([found[corner] for corner in corners], np.int64).reshape(-1, 3)
    starts = np.array([(i, j, k) for i, j, k in corners], np.int64).reshape(-1, 3)  # of i -> j, j -> k, k -> i
    signs = np.where(ends[sides, 0] == starts, 1.0, -1.0)
    return sides, signs


def _log_ratio(gap: Array) -> Array:
    """How much likelier a gap in degrees is of three true pairs than of a triangle with a false one; its logarithm."""
    laplace = np.exp(-gap / NOISE) / (2 * NOISE * (1 - math.exp(-180.0 / NOISE)))  # over (-180, 180]
    return np.asarray(np.log((1 - SURPRISE) * laplace * 360.0 + SURPRISE))


def _pass_messages(sides: Indices, gap: Array, weights: Array) -> Array:
    """(P,) log odds of pairs, of the triangles (T, 3) they are in, by sum-product."""
    prior = np.log(np.maximum(weights, PRIOR_INLIERS) / PRIOR_INLIERS)
    if not len(sides):
        return prior
    ratio = np.exp(_log_ratio(gap))[:, None]  # (T, 1)
    messages = np.zeros(sides.shape)  # of log odds, from a triangle to its pairs
    total = prior
    for _ in range(ROUNDS):
        to_triangle = total[sides] - messages
        true = 1.0 / (1.0 + np.exp(-np.clip(to_triangle, -500, 500)))
        others = np.stack([true[:, 1] * true[:, 2], true[:, 0] * true[:, 2], true[:, 0] * true[:, 1]], axis=1)
        fresh = np.log(others * ratio + 1.0 - others)  # a triangle with a false pair closes by chance
        messages = DAMPING * messages + (1 - DAMPING) * fresh
        total = prior + np.bincount(sides.ravel(), messages.ravel(), len(prior))
    return total


# Orientations ---------------------------------------------------------------------------------------------------------


def solve_orientations(ends: Indices, degrees: Array, weights: Array, count: int) -> Array:
    """(N,) degrees for N photographs so that differences over pairs are their rotations, in the sense of least sums.

    From a spanning tree of the strongest pairs, each photograph is moved to where its neighbours want it, a pair
    counting less the more it is off (reweighting for L1 on the circle). In every connected group 0 is where the most
    photographs are; one without pairs has NaN.
    """
    solved = np.full(count, np.nan)
    if not len(ends):
        return solved
    groups = _spanning_tree(ends, degrees, weights, solved)
    turn = np.exp(1j * np.radians(degrees))  # from the first to the second
    z = np.exp(1j * np.radians(np.nan_to_num(solved)))
    first, second = ends.T
    for _ in range(ROUNDS):
        off = np.abs(z[second] - z[first] * turn)  # chord
        strength = weights / np.maximum(off, math.radians(1.0))
        wanted = _gather(second, strength * z[first] * turn, count) + _gather(first, strength * z[second] / turn, count)
        wanted += _gather(second, strength, count) * z + _gather(first, strength, count) * z  # halfway: no oscillation
        z = np.where(np.abs(wanted) > 0, wanted / np.maximum(np.abs(wanted), 1e-300), z)
    solved = np.where(np.isfinite(solved), np.degrees(np.angle(z)), np.nan)
    for group in groups:
        mode = math.degrees(circular_mode(np.radians(solved[group]), np.ones(len(group))))
        solved[group] = [wrap_degrees(degrees) for degrees in (solved[group] - mode).tolist()]
    return solved


def _gather(index: Indices, values: Array | NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """(N,) sums of the values of each index."""
    values = np.asarray(values, np.complex128)
    return np.bincount(index, values.real, count) + 1j * np.bincount(index, values.imag, count)


def _spanning_tree(ends: Indices, degrees: Array, weights: Array, solved: Array) -> list[Indices]:
    """Fill in the orientations that a spanning tree of the strongest pairs gives; the connected groups."""
    root = list(range(len(solved)))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    tree: dict[int, list[tuple[int, float]]] = {}
    for edge in np.argsort(-weights, kind="stable").tolist():
        a, b = ends[edge].tolist()
        if find(a) != find(b):
            root[find(a)] = find(b)
            tree.setdefault(a, []).append((b, float(degrees[edge])))
            tree.setdefault(b, []).append((a, -float(degrees[edge])))
    groups = []
    for start in sorted(tree):
        if np.isfinite(solved[start]):
            continue
        solved[start] = 0.0
        group = [start]
        for node in group:  # it grows
            for other, turn in tree[node]:
                if not np.isfinite(solved[other]):
                    solved[other] = solved[node] + turn
                    group.append(other)
        groups.append(np.array(sorted(group)))
    return groups
