"""Which pairs of a collection can be true, by their rotations alone: every loop of the view graph must close.

The rotation from photograph a to b and that from b to c make the rotation from a to c. Around a loop of true pairs, a
triangle or a longer one, the sum is a full turn, up to noise and to what changes of viewpoint add; with a false pair
among them it is anything. So a pair is held against the ways that lead from its one photograph to the other over other
pairs, of which the widest count: those whose weakest pair has the most inliers.

Repeated structures make false pairs that agree with one another: all photographs of one roof match all of another that
looks the same, and their triangles close. They have fewer inliers than photographs of one place, which share what is
around the roof too. Therefore pairs are believed from the strongest on, each by the ways of those that are clearly
stronger; the false ones then contradict ways that are wider than any that they make up themselves.

Long loops are not asked: what changes of viewpoint add is small in a loop of a few overlapping photographs, but grows
along it. Around a tower, looking down at a slant, it is a large part of a turn.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steerers.geometry import circular_mode, wrap_degrees

NOISE = 6.0
"""Degrees by which the rotations of three true pairs miss a full turn, as the scale of a Laplace density, which grows
as the root of a loop's length: a triangle that misses by more than 20 speaks against its pairs, a loop of seven by more
than 27. Measured, with every photograph rotated at random: triangles of forty of a drone miss by 1 at the median and 4
at the 99th percentile, of Strecha's facade by 1.5 and 11, of his fountain by 1.6 and 8."""
SURPRISE = 0.02
"""Fraction of loops of true pairs that may miss by anything at all."""
PRIOR_INLIERS = 15.0
"""A verified pair of n inliers is true by odds of n to this, before its loops are asked."""
STRONGER = 1.25
"""By this factor a pair has more inliers than one that it is believed before."""
LONGEST, WAYS, STRONGEST = 6, 5, 8
"""Pairs of a way at most; how many ways a pair is held against; and of a photograph, the pairs that ways go along."""
ROUNDS = 60
"""In which orientations settle."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Consistency:
    """What the loops say of P pairs.

    Attributes:
        probability: (P,) that a pair is true.
        agreeing: (P,) loops with it that close, of those with pairs that were believed at first; ``contradicting`` (P,)
            those that do not.
        orientations: (N,) degrees counter-clockwise by which each photograph is rotated against most of its group, from
            the pairs that are kept; NaN for one without such a pair.
    """

    probability: Array
    agreeing: Indices
    contradicting: Indices
    orientations: Array

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(P,) pairs that are rather true than false; one without loops always is."""
        return self.probability >= 0.5


class _Pair(NamedTuple):
    """Two photographs, the matches that geometry explains, and degrees counter-clockwise from the first on."""

    first: int
    second: int
    inliers: float
    degrees: float


def check_rotations(
    pairs: Sequence[tuple[int, int]] | Indices, degrees: Sequence[float] | Array, inliers: Sequence[int] | Indices
) -> Consistency:
    """Ask the loops of a view graph which of its pairs are true, and for the orientation of each photograph.

    What is believed from the strongest pair on is then asked again as a whole: a pair that most of the others
    contradict, as a strong false one among weak true ones, does not speak against anything in the end.

    Args:
        pairs: (P, 2) photographs, numbered from 0, each pair once.
        degrees: (P,) rotation counter-clockwise from the first of a pair to the second; NaN where it is not known.
        inliers: (P,) matches that two-view geometry explains.
    """
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    angles, weights = np.asarray(degrees, np.float64), np.asarray(inliers, np.float64)
    known = np.isfinite(angles)
    told = [_Pair(a, b, float(n), float(d)) for (a, b), n, d in zip(ends.tolist(), weights, angles, strict=True)]
    asked = [told[k] for k in np.flatnonzero(known)]
    believed = _strongest_first(asked)
    graph = _ViewGraph(believed)
    votes = {pair: _votes(pair, graph) for pair in asked}
    trusted = _ViewGraph(pair for pair in believed if _prior(pair) + sum(votes[pair]) >= 0)
    log_odds = np.array([_log_odds(pair, trusted) if pair in votes else _prior(pair) for pair in told])
    agreeing, contradicting = (
        np.array([sum((vote > 0) == closes for vote in votes.get(pair, ())) for pair in told], np.int64)
        for closes in (True, False)
    )
    probability = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -500, 500)))
    used = known & (probability >= 0.5)
    orientations = solve_orientations(ends[used], angles[used], weights[used], int(ends.max(initial=-1)) + 1)
    return Consistency(probability, agreeing, contradicting, orientations)


# Loops ----------------------------------------------------------------------------------------------------------------


class _ViewGraph:
    """Photographs, joined by pairs, which come from the strongest on."""

    def __init__(self, pairs: Iterable[_Pair] = ()) -> None:
        self.strongest: dict[int, dict[int, tuple[float, float]]] = {}  # of each: another to inliers and degrees
        for pair in pairs:
            self.add(pair)

    def add(self, pair: _Pair) -> None:
        """A pair that is no stronger than those that are there."""
        for node, other, degrees in ((pair.first, pair.second, pair.degrees), (pair.second, pair.first, -pair.degrees)):
            beside = self.strongest.setdefault(node, {})
            if len(beside) <= STRONGEST:  # one more: it may be the pair that is asked about
                beside[other] = pair.inliers, degrees

    def ways(self, start: int, end: int) -> list[tuple[float, int, float]]:
        """The widest ways between two photographs, the pair of these apart, by different neighbours of the first: the
        inliers of their weakest pair, their pairs, and the degrees that they add up to."""
        wanted = {other for other in self.strongest.get(start, ()) if other != end}
        found: list[tuple[float, int, float]] = []
        queue, reached = [(-math.inf, 0, end, 0.0)], dict[int, int]()
        while queue and wanted:
            width, length, node, degrees = heapq.heappop(queue)
            if reached.get(node, LONGEST) <= length:
                continue
            reached[node] = length
            if node in wanted:
                wanted.remove(node)
                inliers, first = self.strongest[start][node]
                found.append((min(inliers, -width), length + 1, first + degrees))
            if len(found) >= WAYS and heapq.nlargest(WAYS, (way[0] for way in found))[-1] > -width:
                break  # all others are narrower
            for other, (inliers, step) in self.strongest.get(node, {}).items():
                if other != start and length + 2 <= LONGEST and reached.get(other, LONGEST) > length + 1:
                    heapq.heappush(queue, (max(width, -inliers), length + 1, other, degrees - step))
        return sorted(found, key=lambda way: (-way[0], way[1]))[:WAYS]


def _strongest_first(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Those that are believed, each by the ways over pairs that are clearly stronger; among equals nobody can tell."""
    graph, believed, heard = _ViewGraph(), list[_Pair](), 0
    for pair in sorted(pairs, key=lambda pair: -pair.inliers):
        while heard < len(believed) and believed[heard].inliers >= STRONGER * pair.inliers:
            graph.add(believed[heard])
            heard += 1
        if _log_odds(pair, graph) >= 0:
            believed.append(pair)
    return believed


def _log_odds(pair: _Pair, graph: _ViewGraph) -> float:
    """Of a pair, by the loops that it makes with the ways of a graph."""
    return _prior(pair) + sum(_votes(pair, graph))


def _prior(pair: _Pair) -> float:
    return math.log(max(pair.inliers, PRIOR_INLIERS) / PRIOR_INLIERS)


def _votes(pair: _Pair, graph: _ViewGraph) -> list[float]:
    """How much likelier each loop is if the pair is true than if it is false; logarithms.

    Ways begin at the photograph with fewer pairs, whichever is named first.
    """
    ends = sorted((pair.first, pair.second), key=lambda node: (len(graph.strongest.get(node, ())), node))
    degrees = pair.degrees if ends[0] == pair.first else -pair.degrees
    ways = graph.ways(*ends)
    return [_log_ratio(abs(wrap_degrees(way - degrees)), length + 1) for _, length, way in ways]


def _log_ratio(gap: float, length: int) -> float:
    """How much likelier a gap in degrees is of a loop of so many true pairs than with a false one; its logarithm."""
    scale = NOISE * math.sqrt(length / 3)
    laplace = math.exp(-gap / scale) / (2 * scale * (1 - math.exp(-180.0 / scale)))  # over (-180, 180]
    return math.log((1 - SURPRISE) * laplace * 360.0 + SURPRISE)


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
