"""Votes for where a photograph lies: few right matches among many, whatever the rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steerers.features import Matches
from steerers.geometry import fit_similarity
from steerers.maps.coordinates import map_points
from steerers.maps.voting import NEAR, STEP, TURNS, WITHIN, overlap, vote

pytest.importorskip("scipy")

SIZE = (1200, 800)


def similarity(angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    """The image rotates counter-clockwise as seen."""
    c, s = scale * math.cos(angle), scale * math.sin(angle)
    return np.array([[c, s, shift[0]], [-s, c, shift[1]], [0, 0, 1]])


def make(matrix: np.ndarray, right: int, wrong: int, seed: int, rotations: str = "each") -> Matches:
    rng = np.random.default_rng(seed)
    p0 = rng.uniform(0, SIZE, (right + wrong, 2))
    p1 = map_points(matrix, p0) + rng.normal(0, 2, p0.shape)
    p1[right:] = rng.uniform(0, 2000, (wrong, 2))
    angle = math.degrees(math.atan2(matrix[0, 1], matrix[0, 0]))
    angles = np.concatenate([rng.normal(angle, 8, right), rng.uniform(-180, 180, wrong)]).astype(np.float32)
    return Matches(
        p0.astype(np.float32),
        p1.astype(np.float32),
        np.ones(right + wrong, np.float32),
        np.zeros((right + wrong, 2), np.int64),
        angle=angle if rotations != "none" else None,
        angles=angles if rotations == "each" else None,
    )


@settings(max_examples=20, deadline=None)
@given(st.floats(-3.1, 3.1), st.floats(0.7, 1.4), st.integers(0, 1000))
@example(2.0, 1.0, 28)  # half way between two of 30 rotations
def test_ten_of_two_hundred_place_the_photograph(angle: float, scale: float, seed: int) -> None:
    matrix = similarity(angle, scale, (900.0, 700.0))
    found = vote(make(matrix, 12, 200, seed), SIZE, (0.6, 1.6))
    assert found is not None
    assert found.votes >= 8
    centre = [[(SIZE[0] - 1) / 2, (SIZE[1] - 1) / 2]]
    assert np.linalg.norm(map_points(found.matrix, centre) - map_points(matrix, centre)) < 0.04 * math.hypot(*SIZE)
    assert overlap(found.matrix, matrix, SIZE)


@pytest.mark.parametrize("rotations", ["each", "one", "none"])
def test_whether_matches_have_rotations_of_their_own_or_none(rotations: str) -> None:
    matrix = similarity(2.0, 1.1, (800.0, 900.0))
    found = vote(make(matrix, 40, 60, 0, rotations), SIZE, (0.6, 1.6))
    assert found is not None
    assert np.abs(found.matrix - matrix).max() < 30


def count_plainly(matches: Matches, scales: tuple[float, float]) -> int:
    """Most votes by the distances of all pairs of places."""
    p0, p1 = matches.keypoints0.astype(float), matches.keypoints1.astype(float)
    turns = np.full(len(p0), matches.angle) if matches.angles is None else matches.angles
    steps = max(1, round(math.log(scales[1] / scales[0]) / math.log(STEP)))
    best = 0
    for angle in np.linspace(-math.pi, math.pi, TURNS, endpoint=False):
        agree = np.cos(np.radians(turns.astype(float)) - angle) > math.cos(NEAR)
        for scale in np.geomspace(*scales, steps + 1):
            arms = map_points(similarity(angle, scale, (0.0, 0.0)), p0[agree] - (np.array(SIZE) - 1) / 2)
            places = p1[agree] - arms
            for place in places:
                near = np.hypot(*(places - place).T) < WITHIN * scale * math.hypot(*SIZE)
                best = max(best, int(near.sum()))
    return best


@pytest.mark.parametrize("rotations", ["each", "one"])
def test_votes_are_counted_as_by_all_pairs(rotations: str) -> None:
    matches = make(similarity(-1.0, 1.2, (800.0, 900.0)), 6, 60, 1, rotations)
    found = vote(matches, SIZE, (1.0, 1.4))
    assert found is not None
    assert found.votes == count_plainly(matches, (1.0, 1.4)) > 2


def test_wrong_matches_alone_have_few_votes() -> None:
    votes = [vote(make(np.eye(3), 0, 200, seed), SIZE, (0.6, 1.6)) for seed in range(3)]
    assert all(one is None or one.votes < 8 for one in votes)
    assert vote(make(np.eye(3), 0, 0, 0), SIZE, (0.6, 1.6)) is None
    assert vote(make(np.eye(3), 1, 0, 0), SIZE, (0.6, 1.6)) is None
    assert vote(make(np.eye(3), 3, 0, 0, "none"), SIZE, (0.6, 1.6)) is None


@settings(max_examples=20, deadline=None)
@given(st.floats(-3.1, 3.1), st.floats(0.1, 10), st.floats(-500, 500))
def test_a_similarity_is_found_exactly(angle: float, scale: float, shift: float) -> None:
    matrix = similarity(angle, scale, (shift, -shift))
    p0 = np.random.default_rng(0).uniform(0, 100, (5, 2))
    assert np.allclose(fit_similarity(p0, map_points(matrix, p0)), matrix, atol=1e-6)
    one = fit_similarity(p0[:1], p0[:1] + 3)
    assert np.allclose(map_points(one, p0[:1]), p0[:1] + 3)


def test_which_places_are_the_same() -> None:
    first = similarity(0.0, 1.0, (0.0, 0.0))
    assert overlap(first, similarity(0.1, 1.1, (20.0, 0.0)), SIZE)
    assert not overlap(first, similarity(0.0, 1.0, (600.0, 0.0)), SIZE)
    turned = similarity(2.0, 1.0, (0.0, 0.0))
    centre = (np.array(SIZE) - 1) / 2
    turned[:2, 2] = centre - turned[:2, :2] @ centre
    assert not overlap(first, turned, SIZE)
