"""Collections: verification at its threshold, agreement around triplets, views of a map."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerers.benchmarks.benchmark import Evaluation
from steerers.benchmarks.collections import (
    COLLECTIONS,
    CollectionOptions,
    CollectionOutcome,
    Verification,
    count_sectors,
    largest_group,
    list_pairs,
    measure_pair,
    summarise,
    triplet_errors,
)
from steerers.benchmarks.metrics import apply
from steerers.benchmarks.predict import Pair, ViewSettings
from steerers.benchmarks.runs import load_runs
from steerers.geometry import rotation, wrap_degrees
from terrain import make_prediction, make_terrain, save, view_of

ROTATIONS = {"a": 0.0, "b": 40.0, "c": 115.0, "d": -130.0}  # of views of one map; e is of another
ANGLES = st.floats(-1000, 1000)

pytestmark = pytest.mark.usefixtures("one_thread")


# Angles ---------------------------------------------------------------------------------------------------------------


@given(st.lists(ANGLES, min_size=3, max_size=7), st.integers(-2, 2))
def test_rotations_of_one_world_agree(headings: list[float], rotations: int) -> None:
    angles = {
        (str(i), str(j)): headings[j] - headings[i] + 360 * rotations for i, j in combinations(range(len(headings)), 2)
    }
    errors = triplet_errors(angles)
    assert len(errors) == math.comb(len(headings), 3)
    assert max(errors) < 1e-6


@given(st.floats(-180, 180))
def test_one_wrong_angle_shows_in_each_of_its_triplets(wrong: float) -> None:
    angles = dict.fromkeys(combinations("abcd", 2), 0.0)
    angles["b", "d"] = wrong
    assert sorted(triplet_errors(angles)) == pytest.approx([0.0, 0.0, abs(wrong), abs(wrong)])


def test_only_whole_triplets_count() -> None:
    assert triplet_errors({}) == []
    assert triplet_errors({("a", "b"): 1.0, ("b", "c"): 2.0}) == []
    assert triplet_errors({("a", "b"): 170.0, ("b", "c"): 170.0, ("a", "c"): -10.0}) == pytest.approx([10.0])


@given(st.lists(ANGLES, max_size=50))
def test_every_angle_is_in_the_sector_that_it_is_nearest_to(angles: list[float]) -> None:
    counts = count_sectors(angles)
    assert list(counts) == [str(middle) for middle in range(-150, 181, 30)]
    assert sum(counts.values()) == len(angles)
    for angle in angles:
        (sector,) = [name for name, count in count_sectors([angle]).items() if count]
        assert abs(wrap_degrees(angle - float(sector))) <= 15 + 1e-6


def test_groups() -> None:
    assert largest_group([]) == 0
    assert largest_group([("a", "b"), ("c", "d")]) == 2
    assert largest_group([("a", "b"), ("c", "d"), ("e", "f"), ("d", "a"), ("b", "c")]) == 4


# Verification ---------------------------------------------------------------------------------------------------------


def points(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform([0, 0], [199, 149], (count, 2))


def rotated(xy: np.ndarray, degrees: float) -> np.ndarray:
    """As the pixels of an image that is rotated counter-clockwise."""
    return xy @ rotation(math.radians(degrees)).numpy().T + [60, 90]


def measured(xy0: np.ndarray, xy1: np.ndarray, angle: float | None = None, **options: object) -> CollectionOutcome:
    pair = Pair("a b", "", Path("a"), Path("b"))
    return measure_pair(pair, make_prediction(xy0, xy1, angle=angle), CollectionOptions(Verification(**options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("geometry", ["homography", "fundamental"])
def test_a_pair_needs_so_many_inliers(geometry: str) -> None:
    xy = points(40)
    assert measured(xy, rotated(xy, 50), geometry=geometry, min_inliers=40).verified
    outcome = measured(xy, rotated(xy, 50), geometry=geometry, min_inliers=41)
    assert (outcome.verified, outcome.failed, outcome.num_inliers) == (False, False, 40)


def test_the_threshold_is_in_pixels() -> None:
    xy = points(60)
    off = rotated(xy, 0)
    off[40:] += 2.5 * np.random.default_rng(1).choice([-1, 1], (20, 2))  # by 3.5 px
    assert measured(xy, off, threshold=3.0).num_inliers == 40
    assert measured(xy, off, threshold=4.0).num_inliers == 60


@pytest.mark.parametrize("geometry", ["homography", "fundamental"])
def test_wrong_matches_and_none_are_not_verified(geometry: str) -> None:
    shuffled = measured(points(100), points(100, seed=1), geometry=geometry)
    assert not shuffled.verified
    none = measured(points(0), points(0), geometry=geometry)
    assert (none.failed, none.verified, none.num_inliers, none.angle, none.angle_source) == (True, False, 0, None, None)


def test_a_scene_with_depth_needs_the_fundamental_matrix() -> None:
    xy, depth = points(80), np.random.default_rng(3).uniform(1, 4, 80)
    moved = xy + np.stack([60 / depth, 12 / depth], axis=1)
    assert measured(xy, moved, geometry="fundamental", threshold=1.0).num_inliers == 80
    assert measured(xy, moved, geometry="homography", threshold=1.0).num_inliers < 70


@pytest.mark.parametrize("geometry", ["homography", "fundamental"])
@pytest.mark.parametrize("degrees", [-135.0, 20.0, 90.0])
def test_the_angle_is_that_of_the_homography_unless_the_matcher_has_one(geometry: str, degrees: float) -> None:
    xy = points(60)
    outcome = measured(xy, rotated(xy, degrees), geometry=geometry)
    assert outcome.angle == pytest.approx(degrees, abs=0.05)
    assert (outcome.angle_source, outcome.homography_angle) == ("homography", outcome.angle)
    known = measured(xy, rotated(xy, degrees), angle=degrees - 7.0, geometry=geometry)
    assert (known.angle, known.angle_source) == (degrees - 7.0, "matcher")
    assert summarise([known])["angle_from_homography_median"] == pytest.approx(7.0, abs=0.05)
    assert summarise([outcome])["angle_from_homography_median"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"geometry": "affine"}, "unknown geometry 'affine'; use homography or fundamental"),
        ({"threshold": 0.0}, "threshold must be positive"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Verification(**options)  # type: ignore[arg-type]


# A generated flight ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four views of one map, and one of another."""
    folder = tmp_path_factory.mktemp("flight")
    terrain = make_terrain(320, seed=3)
    for index, (name, degrees) in enumerate(ROTATIONS.items()):
        save(view_of(terrain, (150 + 8 * index, 165), degrees, (200, 160))[0], folder / f"{name}.png")
    save(view_of(make_terrain(320, seed=4), (160, 160), 0.0, (200, 160))[0], folder / "e.png")
    return folder


@pytest.fixture(scope="module")
def evaluation(flight: Path) -> Evaluation[Pair, CollectionOutcome]:
    runs = load_runs(["sift", "upright-sift-so2"], num_keypoints=500)
    return COLLECTIONS.run(runs, list_pairs(flight), views=ViewSettings(max_size=200))


def test_views_of_one_map_are_verified_and_their_rotations_found(
    evaluation: Evaluation[Pair, CollectionOutcome],
) -> None:
    for row, source, slack in zip(evaluation.rows, ("homography", "matcher"), (1.0, 22.5), strict=True):
        for outcome in row.outcomes:
            first, second = outcome.image0[0], outcome.image1[0]
            assert outcome.verified == (second != "e"), outcome
            if outcome.verified:
                assert outcome.angle is not None
                assert abs(wrap_degrees(outcome.angle - ROTATIONS[second] + ROTATIONS[first])) < slack
        found = summarise(row.outcomes)
        assert (len(row.outcomes), found["num_verified"], found["num_images"], found["num_joined"]) == (10, 6, 5, 4)
        assert (found["angle_source"], found["num_angles"]) == (source, 6)
        assert found["triplets"]["number"] == 4
        assert found["triplets"]["median"] <= slack  # angles of the second come in steps of 22.5 degrees
        assert found["homography_triplets"]["number"] == 4
        assert found["homography_triplets"]["within"] == {"5": 1.0, "15": 1.0}
        assert source == "matcher" or found["triplets"] == found["homography_triplets"]
        assert found["num_inliers_median"] == median(o.num_inliers for o in row.outcomes if o.verified)
        assert sum(found["sectors"].values()) == 6


def test_the_report(evaluation: Evaluation[Pair, CollectionOutcome], flight: Path) -> None:
    report = COLLECTIONS.make_report([evaluation], {"device": "CPU"}, views=ViewSettings(200))
    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    main, sectors = content["tables"]
    assert [row["label"] for row in main["rows"]] == ["sift", "upright-sift-so2"]
    assert (main["num_pairs"], len(main["rows"][0]["pairs"])) == (10, 10)
    assert sectors["rows"][0]["sectors"]["30"] == 1  # a to b
    assert str(flight) not in json.dumps(content)
    markdown = report.to_markdown()
    assert "| sift | dual-softmax | 6 of 10 | 4 of 5 |" in markdown
    assert "at least 30 inliers of a homography" in markdown
    assert list(report.plots) == ["angles.png"]


def test_nothing_verified_is_a_row_of_dashes(evaluation: Evaluation[Pair, CollectionOutcome]) -> None:
    strict = CollectionOptions(Verification(min_inliers=10_000))
    row = evaluation.rows[0]
    outcomes = [
        measure_pair(pair, found, strict) for pair, found in zip(evaluation.pairs, row.predictions.pairs, strict=True)
    ]
    found = summarise(outcomes)
    assert (found["num_verified"], found["num_joined"], found["num_inliers"]) == (0, 0, None)
    assert found["triplets"] == {"number": 0, "median": None, "within": {"5": None, "15": None}}


def test_the_homography_angle_is_that_at_the_centre() -> None:
    """Of a perspective map, whose rotation differs from place to place."""
    H = np.array([[1.0, 0.1, 5], [0.05, 1.1, -3], [8e-4, 5e-4, 1]])
    xy = points(60)
    angle = measured(xy, apply(H, xy)).angle
    step = 1e-3 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    right, left, down, up = apply(H, np.array([99.5, 74.5]) + step)
    jacobian = np.stack([right - left, down - up], axis=1)
    u, _, vt = np.linalg.svd(jacobian)
    nearest = u @ vt
    assert angle == pytest.approx(math.degrees(math.atan2(nearest[0, 1], nearest[0, 0])), abs=0.05)
