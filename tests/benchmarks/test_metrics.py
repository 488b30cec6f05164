"""Metrics against values worked out by hand, and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steerers.benchmarks import metrics
from steerers.benchmarks.metrics import precision_recall
from steerers.geometry import rotation_about_centre, transform_points

error_lists = st.lists(st.floats(0, 20) | st.just(math.inf), min_size=1, max_size=12)
SIZE = (101, 51)


def translation(x: float, y: float) -> np.ndarray:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]])


# Area under the curve -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "threshold", "area"),
    [
        ([0.0, 0.0, 0.0], 3.0, 1.0),
        ([math.inf, math.inf], 10.0, 0.0),
        ([math.nan], 10.0, 0.0),
        ([12.0, 20.0], 10.0, 0.0),
        ([1.0], 5.0, (0.5 * 1 + 4) / 5),
        ([1.0, 2.0, 3.0, math.inf], 5.0, (0.125 + 0.375 + 0.625 + 2 * 0.75) / 5),
        ([1.0, 2.0, 3.0, math.inf], 3.0, (0.125 + 0.375 + 1 * 0.5) / 3),  # an error at the threshold adds nothing
        ([3.0, math.inf, 1.0, 2.0], 5.0, 2.625 / 5),  # in any order
        ([0.0, 4.0], 8.0, (4 * (0.5 + 1) / 2 + 4) / 8),
    ],
)
def test_auc_by_hand(errors: list[float], threshold: float, area: float) -> None:
    assert metrics.auc(errors, [threshold]) == pytest.approx([area], abs=1e-12)


@given(errors=error_lists, threshold=st.floats(0.5, 25))
def test_auc_is_the_integral_of_the_recall_curve(errors: list[float], threshold: float) -> None:
    reached = sorted(error for error in errors if error < threshold)
    knots = np.array([0.0, *reached, threshold])
    recall = np.array([*range(len(reached) + 1), len(reached)]) / len(errors)
    grid = np.unique(np.concatenate([knots, np.linspace(0, threshold, 2001)]))
    curve = np.interp(grid, knots, recall)
    # np.interp takes one value at a jump; the two sides of a jump have no width
    (area,) = metrics.auc(errors, [threshold])
    assert area == pytest.approx(np.trapezoid(curve, grid) / threshold, abs=2e-3)


@given(errors=error_lists)
def test_auc_counts_failures_and_grows_with_the_threshold(errors: list[float]) -> None:
    areas = metrics.auc(errors, [1.0, 2.0, 5.0, 25.0])
    assert (np.diff(areas) >= -1e-12).all()
    assert all(0 <= area <= 1 + 1e-12 for area in areas)
    share = len(errors) / (len(errors) + 1)
    with_failure = metrics.auc([*errors, math.inf], [1.0, 2.0, 5.0, 25.0])
    assert with_failure == pytest.approx([share * area for area in areas], abs=1e-12)


@pytest.mark.parametrize(
    ("errors", "thresholds", "message"),
    [([], [3.0], "empty"), ([1.0], [0.0], "got 0.0"), ([1.0], [math.inf], "got inf"), ([-1.0], [3.0], "got -1.0")],
)
def test_auc_refuses_what_has_no_curve(errors: list[float], thresholds: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.auc(errors, thresholds)


# Points ---------------------------------------------------------------------------------------------------------------


def test_corner_error_of_a_shift_is_its_length() -> None:
    assert metrics.corner_error(translation(3, 4), np.eye(3), SIZE) == pytest.approx(5.0)
    assert metrics.corner_error(7 * translation(3, 4), translation(3, 4), SIZE) == pytest.approx(0.0, abs=1e-12)
    assert metrics.corner_error(np.diag([1.1, 1.0, 1.0]), np.eye(3), SIZE) == pytest.approx(5.0)  # 0, 10, 10, 0
    assert metrics.corner_error(None, np.eye(3), SIZE) == math.inf
    to_infinity = np.array([[1, 0, 0], [0, 1, 0], [-1 / 100, 0, 1.0]])  # a corner
    assert metrics.corner_error(to_infinity, np.eye(3), SIZE) == math.inf


def test_precision_says_exactly_what_the_threshold_says() -> None:
    points = np.random.default_rng(0).integers(0, 50, (20, 2)).astype(np.float64)
    for shift, share in ((0.0, 1.0), (2.999, 1.0), (3.0, 1.0), (3.001, 0.0)):
        errors = metrics.reprojection_errors(points, points + np.array([shift, 0]), np.eye(3))
        assert metrics.precision(errors, 3.0) == share
    assert metrics.precision(np.array([1.0, 2.0, 4.0, 9.0]), 3.0) == 0.5
    assert metrics.precision(np.zeros(0), 3.0) == 0.0


def test_repeatability_of_a_perfect_and_a_shifted_detector() -> None:
    grid = torch.cartesian_prod(torch.arange(0, 101, 10.0), torch.arange(10, 41, 10.0))
    H = torch.from_numpy(translation(20, 0))  # eight of them leave the image on the right
    seen = transform_points(H, grid)
    assert metrics.repeatability(grid, seen, H, SIZE, SIZE, 3.0) == 1.0
    off = seen + torch.tensor([0.0, 4.0])
    assert metrics.repeatability(grid, off, H, SIZE, SIZE, 3.0) == 0.0
    assert metrics.repeatability(grid, off, H, SIZE, SIZE, 4.0) == 1.0


def test_repeatability_counts_both_images_in_the_common_part_only() -> None:
    points0 = torch.tensor([[10.0, 10], [20, 20], [30, 30], [40, 40], [200, 10]])  # the last lies outside of image 0
    points1 = torch.tensor([[10.0, 12], [20, 20], [-30, 5]])  # the last lies outside of image 1
    identity = torch.eye(3, dtype=torch.float64)
    assert metrics.repeatability(points0, points1, identity, SIZE, SIZE, 3.0) == pytest.approx((2 + 2) / (4 + 2))
    assert metrics.repeatability(points0, points1[:0], identity, SIZE, SIZE, 3.0) == 0.0
    assert metrics.repeatability(points0[:0], points1[:0], identity, SIZE, SIZE, 3.0) == 0.0


def test_repeatability_of_many_keypoints_goes_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)) * 50
    identity = torch.eye(3, dtype=torch.float64)
    whole = metrics.repeatability(points[:30], points[20:], identity, SIZE, SIZE, 3.0)
    monkeypatch.setattr("steerers.geometry.DISTANCES_AT_ONCE", 7 * 30)
    assert metrics.repeatability(points[:30], points[20:], identity, SIZE, SIZE, 3.0) == whole
    assert 0 < whole < 1


# Angles ---------------------------------------------------------------------------------------------------------------


@given(degrees=st.floats(-179, 179), scale=st.floats(-3, 3).filter(lambda value: abs(value) > 0.1))
def test_rotation_at_centre_of_a_rotation(degrees: float, scale: float) -> None:
    rotation, _ = rotation_about_centre(SIZE, math.radians(degrees))
    assert metrics.rotation_at_centre(scale * rotation.numpy(), SIZE) == pytest.approx(
        degrees, abs=1e-6
    )  # near quarter turns are exact


def test_rotation_at_centre_of_a_perspective_map() -> None:
    rotation, _ = rotation_about_centre(SIZE, math.radians(25))
    H = rotation.numpy() @ np.array([[1.2, 0.3, 4], [-0.1, 0.9, 2], [1e-3, -2e-3, 1]])
    centre, step = np.array([50.0, 25.0]), 1e-5
    offsets = [np.array([step, 0]), np.array([0, step])]
    columns = [(metrics.apply(H, [centre + o]) - metrics.apply(H, [centre - o]))[0] / (2 * step) for o in offsets]
    (a, c), (b, d) = columns
    assert metrics.rotation_at_centre(H, SIZE) == pytest.approx(math.degrees(math.atan2(b - c, a + d)), abs=1e-4)
    assert metrics.rotation_at_centre(np.diag([-1.0, 1, 1]), SIZE) is None


@pytest.mark.parametrize(
    ("estimated", "truth", "error"),
    [
        (10.0, 30.0, 20.0), (-170.0, 170.0, 20.0), (180.0, -180.0, 0.0), (90.0, 450.0, 0.0), (0.0, 180.0, 180.0),
        (None, 10.0, None), (10.0, None, None),
    ],
)  # fmt: skip
def test_angle_error(estimated: float | None, truth: float | None, error: float | None) -> None:
    assert metrics.angle_error(estimated, truth) == pytest.approx(error)


# Poses ----------------------------------------------------------------------------------------------------------------


def rotation_3d(axis: list[float], degrees: float) -> np.ndarray:
    x, y, z = np.array(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = math.radians(degrees)
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


axes = st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda axis: np.linalg.norm(axis) > 0.1)


@given(axis=axes, degrees=st.floats(0, 180), other=axes)
def test_rotation_error(axis: list[float], degrees: float, other: list[float]) -> None:
    base = rotation_3d(other, 77)
    assert metrics.rotation_error(rotation_3d(axis, degrees) @ base, base) == pytest.approx(degrees, abs=1e-5)


@pytest.mark.parametrize("degrees", [1e-9, 1e-5, 0.01])
def test_small_rotations_are_not_lost_in_rounding(degrees: float) -> None:
    assert metrics.rotation_error(rotation_3d([1, 2, 3], degrees), np.eye(3)) == pytest.approx(degrees, rel=1e-4)


@pytest.mark.parametrize(
    ("estimated", "truth", "error"),
    [
        ([1, 0, 0], [2, 0, 0], 0.0),
        ([-1, 0, 0], [2, 0, 0], 0.0),  # the sign is not told apart
        ([0, 1, 0], [2, 0, 0], 90.0),
        ([1, 1, 0], [5, 0, 0], 45.0),
        ([-1, 1, 0], [5, 0, 0], 45.0),
        ([1, 0, 0], [0, 0, 0], 0.0),  # nothing to find
        ([0, 0, 0], [0, 0, 0], 0.0),
        ([0, 0, 0], [1, 0, 0], math.inf),  # no direction
        ([math.nan, 0, 0], [1, 0, 0], math.inf),
        ([math.inf, 0, 0], [0, 0, 0], math.inf),
        ([1e-200, 1e-200, 0], [1e-200, 0, 0], 45.0),
        ([0, 1e200, 0], [1e200, 0, 0], 90.0),
    ],
)
def test_translation_error(estimated: list[float], truth: list[float], error: float) -> None:
    assert metrics.translation_error(np.array(estimated), np.array(truth)) == pytest.approx(error, abs=1e-9)


def test_pose_error_is_the_larger() -> None:
    R, t = rotation_3d([0, 0, 1], 7), np.array([1.0, 0, 0])
    assert metrics.pose_error(R, t, np.eye(3), np.array([1.0, 1, 0])) == pytest.approx(45)
    assert metrics.pose_error(R, t, np.eye(3), t) == pytest.approx(7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_pose_that_is_not_finite_or_goes_nowhere_is_a_failure(bad: float) -> None:
    R, t = np.eye(3), np.array([1.0, 0, 0])
    broken = R.copy()
    broken[1, 2] = bad
    assert metrics.rotation_error(broken, R) == math.inf
    assert metrics.pose_error(broken, t, R, t) == math.inf
    assert metrics.pose_error(R, np.array([1.0, bad, 0]), R, t) == math.inf
    assert metrics.pose_error(R, np.zeros(3), R, t) == math.inf


# Precision and recall -------------------------------------------------------------------------------------------------

scored = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40).filter(
    lambda pairs: any(truth for _, truth in pairs)
)


def area(scores: list[float], positive: list[bool]) -> float:
    return precision_recall(scores, positive).average_precision


@given(scored)
def test_every_point_is_that_of_its_threshold(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = map(list, zip(*pairs, strict=True))
    curve = precision_recall(scores, positive)
    assert curve.scores.tolist() == sorted(set(scores), reverse=True)
    expected, before = 0.0, 0.0
    for least, precision, recall in zip(curve.scores, curve.precision, curve.recall, strict=True):
        found = [truth for score, truth in pairs if score >= least]
        assert precision == pytest.approx(sum(found) / len(found))
        assert recall == pytest.approx(sum(found) / sum(positive))
        expected += (recall - before) * precision
        before = recall
    assert curve.recall[-1] == 1.0
    assert curve.average_precision == pytest.approx(expected)


@given(st.integers(1, 20), st.integers(1, 20))
def test_known_areas(positives: int, negatives: int) -> None:
    positive = [True] * positives + [False] * negatives
    share = positives / (positives + negatives)
    assert area([2.0] * positives + [1.0] * negatives, positive) == 1.0
    assert area([0.0] * len(positive), positive) == pytest.approx(share)  # one step: all or nothing
    worst = [k / (k + negatives) for k in range(1, positives + 1)]
    assert area([1.0 / (k + 1) for k in range(positives)] + [2.0] * negatives, positive) == pytest.approx(
        sum(worst) / positives
    )


@pytest.mark.parametrize(
    ("scores", "positive", "message"),
    [
        ([1.0], [True, False], "one length"),
        ([math.nan], [True], "NaN"),
        ([1.0, 2.0], [False, False], "without positive pairs"),
    ],
)
def test_refused_scores(scores: list[float], positive: list[bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        precision_recall(scores, positive)
