"""Loops of rotations: planted false pairs are found, true ones stay, and without loops nothing goes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collection.photographs import save_street
from helpers import seeds
from steerers.collection import Choice, Collection, choose_pairs, extract, match_pairs, verify
from steerers.collection.rotations import LONGEST, WAYS, _Pair, _ViewGraph, check_rotations, solve_orientations


def wrapped(degrees: np.ndarray) -> np.ndarray:
    return np.abs((np.asarray(degrees) + 180.0) % 360.0 - 180.0)


def make_graph(
    rng: np.random.Generator, photographs: int, neighbours: int, false: float, noise: float = 1.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A strip in which every photograph overlaps the next ones; some pairs a little farther apart are false.

    Returns:
        Pairs, degrees, inliers, which are true, and the orientations.
    """
    orientations = rng.uniform(-180, 180, photographs)
    near = [(i, j) for i, j in combinations(range(photographs), 2) if j - i <= neighbours]
    far = [(i, j) for i, j in combinations(range(photographs), 2) if neighbours < j - i <= 2 * neighbours - 2]
    chosen = rng.choice(len(far), round(false * len(near)), replace=False)
    ends = np.array(near + [far[k] for k in chosen])
    true = np.arange(len(ends)) < len(near)
    degrees = orientations[ends[:, 1]] - orientations[ends[:, 0]] + rng.laplace(0, noise, len(ends))
    wrong = rng.uniform(45, 315, len(ends))  # of a false pair: anything but the truth
    degrees = np.where(true, degrees, degrees + wrong)
    swap = rng.random(len(ends)) < 0.5  # pairs have no order
    ends[swap], degrees[swap] = ends[swap, ::-1], -degrees[swap]
    inliers = np.where(true, rng.integers(30, 800, len(ends)), rng.integers(15, 60, len(ends)))
    return ends, degrees, inliers, true, orientations


@given(seeds)
def test_planted_false_pairs_are_found_and_true_ones_stay(seed: int) -> None:
    ends, degrees, inliers, true, orientations = make_graph(np.random.default_rng(seed), 40, 5, 0.25)
    found = check_rotations(ends, degrees, inliers)
    assert found.kept[true].all()
    assert not found.kept[~true].any()
    off = found.orientations - orientations
    assert np.median(wrapped(off[ends[true, 1]] - off[ends[true, 0]])) < 2.0  # the strip as a whole may bend


@given(seeds, st.floats(-1000, 1000))
def test_rotating_a_photograph_rotates_its_orientation_alone(seed: int, by: float) -> None:
    ends, degrees, inliers, _, _ = make_graph(np.random.default_rng(seed), 12, 4, 0.2)
    rotated = degrees + by * ((ends[:, 1] == 5).astype(float) - (ends[:, 0] == 5))
    before, after = check_rotations(ends, degrees, inliers), check_rotations(ends, rotated, inliers)
    np.testing.assert_allclose(after.probability, before.probability, atol=1e-6)
    off = after.orientations - before.orientations
    off -= off[0]
    off[5] -= by
    assert wrapped(off).max() < 1e-6


@given(seeds)
def test_pairs_have_no_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends, degrees, inliers, _, _ = make_graph(rng, 24, 5, 0.3)
    swapped = rng.random(len(ends)) < 0.5
    other = np.where(swapped[:, None], ends[:, ::-1], ends), np.where(swapped, -degrees, degrees)
    before, after = check_rotations(ends, degrees, inliers), check_rotations(*other, inliers)
    np.testing.assert_allclose(after.probability, before.probability, atol=1e-9)


@given(seeds, st.integers(2, 20))
def test_without_loops_nothing_goes(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.array([(int(rng.integers(0, k)), k) for k in range(1, count)])  # a tree
    degrees = rng.uniform(-180, 180, len(ends))
    found = check_rotations(ends, degrees, rng.integers(15, 100, len(ends)))
    assert found.kept.all()
    assert not found.agreeing.any()
    assert not found.contradicting.any()
    gap = found.orientations[ends[:, 1]] - found.orientations[ends[:, 0]] - degrees
    assert wrapped(gap).max() < 1e-3


def test_one_triangle_that_does_not_close() -> None:
    """The pair with the fewest inliers is the false one, unless all three have as many: then nobody can tell."""
    ends, degrees = [(0, 1), (1, 2), (0, 2)], [10.0, 20.0, 150.0]
    assert check_rotations(ends, degrees, [400, 300, 20]).kept.tolist() == [True, True, False]
    assert check_rotations(ends, degrees, [20, 300, 400]).kept.tolist() == [False, True, True]
    equal = check_rotations(ends, degrees, [300, 300, 300])
    assert equal.kept.all()
    assert equal.contradicting.tolist() == [1, 1, 1]
    assert check_rotations(ends, [10.0, 20.0, 30.0], [15, 15, 15]).kept.all()


def test_many_weak_true_pairs_outvote_a_strong_false_one() -> None:
    ends = list(combinations(range(8), 2))
    degrees = [0.0] * len(ends)
    degrees[3] = 180.0
    inliers = [30] * len(ends)
    inliers[3] = 500
    found = check_rotations(ends, degrees, inliers)
    assert np.flatnonzero(~found.kept).tolist() == [3]
    assert (found.agreeing[3], found.contradicting[3]) == (0, WAYS)
    np.testing.assert_allclose(found.orientations, 0.0, atol=1e-6)


def test_unknown_rotations_and_no_pairs() -> None:
    found = check_rotations([(0, 1), (1, 2), (0, 2)], [10.0, np.nan, 100.0], [50, 50, 50])
    assert found.kept.all()
    assert not found.contradicting.any()
    assert np.isfinite(found.orientations).all()
    nothing = check_rotations([], [], [])
    assert len(nothing.kept) == len(nothing.orientations) == 0
    lonely = check_rotations([(0, 1), (3, 4)], [90.0, np.nan], [50, 50])
    assert np.isfinite(lonely.orientations).tolist() == [True, True, False, False, False]


@given(seeds)
def test_ways_against_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = [(int(a), int(b)) for a, b in combinations(rng.permutation(7), 2) if rng.random() < 0.5]
    pairs = [_Pair(a, b, float(rng.integers(15, 60)), float(rng.uniform(-180, 180))) for a, b in ends]
    steps = {(p.first, p.second): p for p in pairs} | {(p.second, p.first): p for p in pairs}

    def all_ways(node: int, end: int, passed: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
        if node == end:
            yield (*passed, node), np.inf
        elif len(passed) < LONGEST:
            for here, there in steps:
                if here == node and there not in passed and (node, there) != (0, 1):
                    for way, width in all_ways(there, end, (*passed, node)):
                        yield way, min(width, steps[here, there].inliers)

    widest: dict[int, float] = {}
    for way, width in all_ways(0, 1, ()):
        widest[way[1]] = max(width, widest.get(way[1], 0.0))
    found = _ViewGraph(sorted(pairs, key=lambda pair: -pair.inliers)).ways(0, 1)
    assert [width for width, _, _ in found] == sorted(widest.values(), reverse=True)[:WAYS]
    for width, length, degrees in found:
        assert any(
            len(way) == length + 1
            and wide == width
            and wrapped(degrees - sum(_along(steps[step], step) for step in pairwise(way))) < 1e-6
            for way, wide in all_ways(0, 1, ())
        )


def _along(pair: _Pair, step: tuple[int, int]) -> float:
    return pair.degrees if step == (pair.first, pair.second) else -pair.degrees


def test_roofs_that_look_alike(tmp_path: Path) -> None:
    """Photographs along a street whose houses have the same roof, each turned its own way: those of different houses
    match by their roofs, more than half of all pairs, and agree with one another."""
    turns = save_street(tmp_path / "photos", houses=5, seed=0)
    collection = Collection.create(tmp_path / "out", tmp_path / "photos", num_keypoints=512)
    extract(collection)
    choose_pairs(collection, Choice(exhaustive=True))
    match_pairs(collection)
    verified = verify(collection)
    ends = [tuple(verified.names.index(name) for name in verdict.pair) for verdict in verified.good]
    off = [verdict.angle - (turns[b] - turns[a]) for verdict, (a, b) in zip(verified.good, ends, strict=True)]
    true, kept = wrapped(np.array(off)) < 15, verified.consistency.kept
    assert (~true).sum() > true.sum() > 20
    assert kept[true].mean() > 0.95
    assert kept[~true].mean() < 0.1


@pytest.mark.parametrize("count", [3, 30])
def test_orientations_of_a_loop(count: int) -> None:
    """Noise around a loop is spread by the median: one bad pair of a well-connected graph moves nothing."""
    rng = np.random.default_rng(count)
    truth = rng.choice([0.0, 90.0, 180.0, -90.0], count)
    ends = np.array(list(combinations(range(count), 2)))
    degrees = truth[ends[:, 1]] - truth[ends[:, 0]]
    if count > 3:
        degrees[7] += 100.0
    solved = solve_orientations(ends, degrees, np.ones(len(ends)), count + 1)
    off = solved[:count] - truth
    assert wrapped(off - off[0]).max() < 0.1
    assert np.isnan(solved[count])
