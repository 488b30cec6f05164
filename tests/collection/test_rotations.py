"""Triangles of rotations: planted false pairs are found, true ones stay, and without triangles nothing goes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import seeds
from steerers.collection.rotations import MOST_TRIANGLES, check_rotations, find_triangles, solve_orientations


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


@given(seeds, st.integers(2, 20))
def test_without_triangles_nothing_goes(seed: int, count: int) -> None:
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
    assert found.contradicting[3] == 6
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


def test_triangles_against_a_plain_search() -> None:
    rng = np.random.default_rng(0)
    ends = np.array([pair for pair in combinations(range(15), 2) if rng.random() < 0.5])
    ends[::2] = ends[::2, ::-1].copy()
    angles = rng.uniform(-180, 180, 15)
    degrees = angles[ends[:, 1]] - angles[ends[:, 0]]
    known = {frozenset(pair) for pair in ends.tolist()}
    expected = {c for c in combinations(range(15), 3) if all(frozenset(p) in known for p in combinations(c, 2))}
    sides, signs = find_triangles(ends, np.ones(len(ends)))
    assert {tuple(sorted(set(ends[edges].ravel().tolist()))) for edges in sides} == expected
    assert len(sides) == len(expected)
    np.testing.assert_allclose((signs * degrees[sides]).sum(axis=1), 0, atol=1e-9)


def test_a_dense_graph_has_a_limited_number_of_triangles() -> None:
    count = MOST_TRIANGLES + 30
    ends = np.array(list(combinations(range(count), 2)))
    sides, _ = find_triangles(ends, np.ones(len(ends)))
    assert np.bincount(sides.ravel(), minlength=len(ends)).min() >= MOST_TRIANGLES
    assert len(sides) < MOST_TRIANGLES * len(ends)


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
