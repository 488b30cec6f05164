"""Verification of one pair against cameras that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collection.scenes import FOCAL, SIZE, Scene, detect, local_rotation, make_scene, match
from steerers.collection.two_view import TwoView, VerificationOptions, View, verify_pair
from steerers.geometry import wrap_degrees

OPTIONS = VerificationOptions()


def verified(scene: Scene, *, focal: float | None = None, scale: float = 1.0, noise: float = 0.3) -> TwoView:
    """Cameras 0 and 1 of a scene whose photographs were stored ``scale`` times as large as they were matched."""
    keypoints = detect(scene, noise=noise)
    indices = match(keypoints, 0, 1)
    points = [(keypoints.xy[k][indices[:, k]] + 0.5) * scale - 0.5 for k in (0, 1)]
    size = (round(SIZE[0] * scale), round(SIZE[1] * scale))
    view = View(size, None if focal is None else focal * scale, scale)
    angles = np.full(len(indices), local_rotation(scene, 0, 1)) + np.random.default_rng(0).normal(0, 5, len(indices))
    return verify_pair(points[0], points[1], (view, view), OPTIONS, 77.0, angles)


def true_inliers(scene: Scene) -> np.ndarray:
    keypoints = detect(scene)
    indices = match(keypoints, 0, 1)
    return keypoints.ids[0][indices[:, 0]] == keypoints.ids[1][indices[:, 1]]


def relative(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Rotation and translation from camera 0 to camera 1."""
    (R0, t0), (R1, t1) = ((pose[:, :3], pose[:, 3]) for pose in scene.poses[:2])
    R = R1 @ R0.T
    return R, t1 - R @ t0


def true_essential(scene: Scene) -> np.ndarray:
    R, t = relative(scene)
    E = np.cross(np.eye(3), t) @ R
    return E / np.linalg.norm(E)


def assert_same_up_to_sign(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    found, expected = found / np.linalg.norm(found), expected / np.linalg.norm(expected)
    assert min(np.abs(found - expected).max(), np.abs(found + expected).max()) < tolerance


@pytest.mark.parametrize("scale", [1.0, 3.7])
def test_any_two_views(scale: float) -> None:
    scene = make_scene(2, arc=25)
    found = verified(scene, scale=scale)
    assert found.kind == "uncalibrated"
    true = true_inliers(scene)
    assert found.inliers[true].mean() > 0.95
    assert found.inliers[~true].mean() < 0.15
    assert abs(wrap_degrees(found.angle - local_rotation(scene, 0, 1))) < 1.5
    # The points as they would be without noise lie on their epipolar lines, in stored pixels.
    exact = [np.column_stack([(scene.project(k)[0] + 0.5) * scale - 0.5, np.ones(len(scene.points))]) for k in (0, 1)]
    lines = exact[0] @ found.F.T
    distance = np.abs((exact[1] * lines).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1)
    assert np.median(distance) < 0.5 * scale
    assert np.isnan(found.E).all()


@pytest.mark.parametrize("scale", [1.0, 3.7])
def test_known_focal_lengths_give_an_essential_matrix(scale: float) -> None:
    scene = make_scene(2, arc=25)
    found = verified(scene, focal=FOCAL, scale=scale)
    assert found.kind == "calibrated"
    assert_same_up_to_sign(found.E, true_essential(scene), 0.02)
    K = scene.intrinsics.copy()
    K[:2] *= scale
    K[:2, 2] += (scale - 1) / 2
    assert_same_up_to_sign(np.linalg.inv(K).T @ found.E @ np.linalg.inv(K), found.F, 1e-6)


def test_a_focal_length_that_is_wrong_is_not_believed() -> None:
    assert verified(make_scene(2, arc=25), focal=0.3 * FOCAL).kind == "uncalibrated"


@pytest.mark.parametrize("focal", [None, FOCAL])
def test_a_flat_scene_is_planar(focal: float | None) -> None:
    scene = make_scene(2, flat=True, arc=25)
    found = verified(scene, focal=focal, scale=2.0)
    assert found.kind == "planar"
    ones = np.ones((len(scene.points), 1))
    exact = [np.column_stack([(scene.project(k)[0] + 0.5) * 2 - 0.5, ones]) for k in (0, 1)]
    mapped = exact[0] @ found.H.T
    assert np.median(np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - exact[1][:, :2], axis=1)) < 1.0


def test_the_same_image_twice_is_planar() -> None:
    points = np.random.default_rng(0).uniform(0, 400, (100, 2))
    found = verify_pair(points, points, (View(SIZE, FOCAL), View(SIZE, FOCAL)), OPTIONS, 0.0, np.zeros(100))
    assert found.kind == "planar"
    assert found.inliers.all()
    assert_same_up_to_sign(found.H, np.eye(3), 1e-6)


def test_chance_is_not_verified() -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 14, 60):
        points = rng.uniform(0, 400, (2, count, 2))
        found = verify_pair(points[0], points[1], (View(SIZE), View(SIZE)), OPTIONS, 10.0, rng.uniform(0, 90, count))
        assert found.kind == "none"
        assert not found.inliers.any()
        assert np.isnan(found.angle)


def test_the_angle_of_a_matcher_without_angles_of_matches() -> None:
    points = np.random.default_rng(0).uniform(0, 400, (100, 2))
    views = View(SIZE), View(SIZE)
    assert verify_pair(points, points, views, OPTIONS, 33.0).angle == 33.0
    assert np.isnan(verify_pair(points, points, views, OPTIONS).angle)


def test_the_same_twice() -> None:
    first, second = verified(make_scene(2)), verified(make_scene(2))
    assert np.array_equal(first.F, second.F)
    assert np.array_equal(first.inliers, second.inliers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 0.0}, "threshold must be"),
        ({"threshold": np.inf}, "threshold"),
        ({"min_inliers": 7}, "at least 8"),
    ],
)
def test_refusals(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(OPTIONS, **change)  # type: ignore[arg-type]
