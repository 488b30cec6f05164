"""Transforms of alignments: both directions, the files of JSON and ITK, and the local part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import seeds
from steerers.maps.bending import agreeing, fit_bending
from steerers.maps.transforms import Array, Displacements, Transform

pytest.importorskip("rasterio")
pytest.importorskip("scipy")

SIZE = (120, 90)
AFFINE = np.array([[0.5, -1.1, 70], [1.0, 0.6, 2], [0, 0, 1]])
HOMOGRAPHY = np.array([[0.9, -0.3, 14], [0.25, 1.05, -2], [5e-4, -4e-4, 1]])
SMALL = settings(max_examples=10)


def wave(xy: Array) -> Array:
    return np.stack([3 * np.sin(xy[:, 1] / 25), 2 * np.cos(xy[:, 0] / 30)], axis=1)


def points(seed: int, count: int = 50) -> Array:
    return np.random.default_rng(seed).uniform(0, 1, (count, 2)) * (np.array(SIZE) - 1)


def bent(kind: Any = "homography", matrix: Array = HOMOGRAPHY) -> Transform:
    return Transform(kind, matrix, SIZE, (200, 150), Displacements.sampled(wave, SIZE))


@SMALL
@given(seed=seeds)
def test_there_and_back(seed: int) -> None:
    rng, xy = np.random.default_rng(seed), points(seed)
    matrix = HOMOGRAPHY + rng.normal(0, 1, (3, 3)) * [[0.2, 0.2, 20], [0.2, 0.2, 20], [1e-4, 1e-4, 0]]
    if abs(np.linalg.det(matrix[:2, :2])) < 0.1:
        return
    transform = Transform("homography", matrix, SIZE, (200, 150), Displacements.sampled(wave, SIZE))
    mapped = transform.to_moving(xy)
    plain = np.column_stack([xy + transform.local(xy), np.ones(50)]) @ matrix.T  # type: ignore[misc]
    np.testing.assert_allclose(mapped, plain[:, :2] / plain[:, 2:], rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(transform.to_fixed(mapped), xy, atol=1e-6)


def test_a_field_is_what_was_sampled() -> None:
    field = Displacements.sampled(wave, SIZE)
    xy = points(1, 500)
    np.testing.assert_allclose(field(xy), wave(xy), atol=2e-3)
    np.testing.assert_allclose(field(np.array([[-50.0, 20.0]])), field(np.array([[0.0, 20.0]])))  # as at the border


def test_beyond_the_horizon_there_is_nothing() -> None:
    transform = Transform("homography", np.array([[1, 0, 0], [0, 1, 0], [-0.02, 0, 1.7]]), SIZE, SIZE)
    found = transform.to_moving([[10.0, 5.0], [100.0, 5.0]])
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_mirrors_are_known() -> None:
    assert not Transform("affine", AFFINE, SIZE, SIZE).mirrored
    assert Transform("affine", AFFINE @ np.diag([-1.0, 1, 1]), SIZE, SIZE).mirrored


@pytest.mark.parametrize("local", [False, True])
def test_json(tmp_path: Path, local: bool) -> None:
    transform = bent() if local else Transform("affine", AFFINE, SIZE, (200, 150))
    transform.save(tmp_path / "t.json", {"fixed": "a.tif"})
    read = Transform.load(tmp_path / "t.json")
    xy = points(2)
    np.testing.assert_allclose(read.to_moving(xy), transform.to_moving(xy), atol=1e-9)
    assert (read.kind, read.fixed_size, read.moving_size) == (transform.kind, SIZE, (200, 150))
    told = json.loads((tmp_path / "t.json").read_text())
    assert told["fixed"] == "a.tif"
    assert "centre of the top-left pixel at (0, 0)" in told["convention"]
    back = np.column_stack([transform.to_moving(xy), np.ones(50)]) @ np.array(told["moving_to_fixed"]).T
    aim = back[:, :2] / back[:, 2:]
    inside = ((aim >= 0) & (aim <= np.array(SIZE) - 1)).all(axis=1)
    assert inside.mean() > 0.8
    if local:  # as the file says how
        aim = aim + Displacements(np.array(told["local"]["inverse_displacements"]), SIZE)(aim)
    np.testing.assert_allclose(aim[inside], xy[inside], atol=0.02 if local else 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "its format is 'other'"),
        ({"kind": "magic"}, "kind must be one of similarity, affine, homography, got 'magic'"),
        ({"fixed_to_moving": [[1, 0], [0, 1]]}, "matrix must be an invertible 3 x 3 matrix"),
        ({"fixed_to_moving": [[0] * 3] * 3}, "matrix must be an invertible 3 x 3 matrix"),
        ({"fixed_size": [0, 5]}, "a size is two whole numbers"),
        ({"local": {"displacements": [[1, 2], [3, 4]]}}, "its displacements are of shape"),
        ({"local": {}}, "displacements"),
    ],
)
def test_damaged_json(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**Transform("affine", AFFINE, SIZE, SIZE).to_dict(), **change}))
    with pytest.raises(ValueError, match=r"t\.json: no transform of `steerers align`, or damaged") as caught:
        Transform.load(path)
    assert message in str(caught.value)


# ITK ------------------------------------------------------------------------------------------------------------------


def parse_itk(text: str) -> tuple[str, Array, Array]:
    """Name, parameters and fixed parameters of ITK's text, by its rules: a key, a colon, numbers with spaces."""
    first, *lines = text.splitlines()
    assert first == "#Insight Transform File V1.0"
    told = dict(line.split(": ", 1) for line in lines if not line.startswith("#"))
    return told["Transform"], *(np.array(told[key].split(), float) for key in ("Parameters", "FixedParameters"))  # type: ignore[return-value]


def test_itk_affine() -> None:
    transform = Transform("affine", AFFINE, SIZE, (200, 150))
    name, numbers, centre = parse_itk(transform.to_itk())
    assert name == "AffineTransform_double_2_2"
    assert centre.tolist() == [0, 0]
    xy = points(3)
    # ITK: y = A (x - c) + t + c, row by row
    np.testing.assert_allclose(xy @ numbers[:4].reshape(2, 2).T + numbers[4:], transform.to_moving(xy), atol=1e-12)


@pytest.mark.parametrize("local", [False, True])
def test_itk_field(local: bool) -> None:
    transform = bent() if local else Transform("homography", HOMOGRAPHY, SIZE, (200, 150))
    name, numbers, told = parse_itk(transform.to_itk())
    assert name == "DisplacementFieldTransform_double_2_2"
    columns, rows = told[:2].astype(int)
    assert told[2:4].tolist() == [0, 0]
    assert told[6:].tolist() == [1, 0, 0, 1]
    np.testing.assert_allclose(told[4:6] * [columns - 1, rows - 1], np.array(SIZE) - 1)
    field = numbers.reshape(rows, columns, 2)
    for xy in points(4, 30):
        place = xy / told[4:6]
        (x, y), (u, v) = np.floor(place).astype(int), place % 1
        near = field[y : y + 2, x : x + 2]
        moved = xy + (1 - v) * ((1 - u) * near[0, 0] + u * near[0, 1]) + v * ((1 - u) * near[1, 0] + u * near[1, 1])
        np.testing.assert_allclose(moved, transform.to_moving(xy)[0], atol=0.02)


def test_itk_has_no_horizon() -> None:
    matrix = np.array([[1, 0, 0], [0, 1, 0], [-0.02, 0, 1.7]])
    with pytest.raises(ValueError, match="the horizon of the homography crosses the fixed image"):
        Transform("homography", matrix, SIZE, SIZE).to_itk()


# The local part -------------------------------------------------------------------------------------------------------


def test_bending_is_found_in_spite_of_wrong_points() -> None:
    rng, xy = np.random.default_rng(0), points(5, 300)
    displacements = wave(xy) + rng.normal(0, 0.1, xy.shape)
    displacements[::10] += rng.normal(0, 15, (30, 2))
    found = fit_bending(xy, displacements, SIZE)
    assert found.field is not None
    assert found.error < 0.25
    assert found.without > 1.5
    fresh = points(6, 200) * 0.9 + 5
    assert np.median(np.linalg.norm(found.field(fresh) - wave(fresh), axis=1)) < 0.1


def test_noise_alone_does_not_bend() -> None:
    rng, xy = np.random.default_rng(1), points(7, 120)
    found = fit_bending(xy, rng.normal(0, 0.5, xy.shape), SIZE)
    assert found.field is None
    assert found.error == found.without


def test_few_points_do_not_bend() -> None:
    xy = points(8, 14)
    assert fit_bending(xy, wave(xy), SIZE).field is None
    assert fit_bending(xy[:0], xy[:0], SIZE).field is None


@SMALL
@given(seed=seeds, which=st.integers(0, 79))
def test_who_disagrees_with_its_neighbours_is_alone(seed: int, which: int) -> None:
    xy = points(seed, 80)
    displacements = wave(xy)
    displacements[which] += 40
    kept = agreeing(xy, displacements)
    assert not kept[which]
    assert kept.mean() > 0.7
