"""Points of MegaDepth's reconstructions: read, brought into views, and missing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datasets.scenes import Array, Camera, look_at, project, street, visible, write_detections, write_megadepth
from steerers.datasets.megadepth import MegaDepth
from steerers.datasets.pairs import PairBatch, ViewWarp
from steerers.datasets.scene_info import detections_path, read_detections
from steerers.datasets.views import Views
from steerers.geometry import scaling, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
VIEWS = Views(size=160, photometric=0.0)
SCENE = street(1)
CAMERAS = [  # larger and smaller than a view
    look_at((-0.6, -0.2, -3.4), (0, 0.3, 2), focal=260, size=(320, 240), roll=0.1),
    look_at((0.5, -0.3, -3.6), (0, 0.2, 2), focal=240, size=(250, 334), roll=-0.2),
    look_at((1.7, -0.5, -2.8), (0, 0.2, 2), focal=125, size=(151, 133), roll=0.3),
]
PAIRS = ((0, 1), (0, 2), (1, 2))
Made = tuple[Path, Array]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A MegaDepth, and the points that its photographs see."""
    root = tmp_path_factory.mktemp("MegaDepth")
    write_megadepth(root, "0001", SCENE, CAMERAS)
    return root, write_detections(root, "0001", SCENE, CAMERAS)


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(made[0], tmp_path / "MegaDepth")
    return tmp_path / "MegaDepth"


def make(source: MegaDepth, rotations: tuple[float, float] = (0.0, 0.0)) -> PairBatch:
    """All pairs in one batch."""
    rotations0, rotations1 = (torch.full((len(source),), rotation, dtype=torch.float64) for rotation in rotations)
    return source.make([source.read(index) for index in range(len(source))], rotations0, rotations1, [3, 4, 5], CPU)


def in_view(camera: Camera, points: Array, from_photo: torch.Tensor) -> Array:
    """(N, 2) pixels of a view at which it shows world points."""
    longest = max(camera.width, camera.height)
    shrunk = min(longest, VIEWS.size)
    size = (round(camera.width * shrunk / longest), round(camera.height * shrunk / longest))
    to_view = from_photo @ scaling((camera.width, camera.height), size)
    return transform_points(to_view, torch.from_numpy(project(camera, points)[0])).numpy()


@pytest.mark.parametrize(
    "rotations", [(0.0, 0.0), (math.pi / 2, math.pi), (0.7, -2.1)], ids=["upright", "quarters", "any"]
)
def test_points_lie_in_the_views_where_the_geometry_says(made: Made, rotations: tuple[float, float]) -> None:
    root, points = made
    batch = make(MegaDepth(root, views=VIEWS, scenes=["0001"], min_overlaps=[0.0], detections=True), rotations)
    assert isinstance(batch.warp, ViewWarp)
    assert batch.detections is not None
    maps = (batch.warp.from_photos0, batch.warp.from_photos1)
    for side, found in enumerate(batch.detections):
        assert found.shape[::2] == (3, 2)
        assert found.dtype == torch.float32
        for n, pair in enumerate(PAIRS):
            camera = CAMERAS[pair[side]]
            seen = points[visible(SCENE, camera, points, slack=1e-5)]
            assert len(seen) > 60
            np.testing.assert_allclose(found[n, : len(seen)], in_view(camera, seen, maps[side][n]), atol=1e-3)
            assert found[n, len(seen) :].isnan().all()


def test_points_that_both_views_show_are_where_the_warp_takes_them(made: Made) -> None:
    """Half a pixel of COLMAP's would show here."""
    root, points = made
    batch = make(MegaDepth(root, views=VIEWS, scenes=["0001"], min_overlaps=[0.0], detections=True), (1.0, 2.0))
    assert batch.detections is not None
    moved, seen = batch.warp.forward(batch.detections[0])
    for n, pair in enumerate(PAIRS):
        first, second = (np.flatnonzero(visible(SCENE, CAMERAS[k], points, slack=1e-5)) for k in pair)
        _, i, j = np.intersect1d(first, second, return_indices=True)
        errors = (moved[n, i] - batch.detections[1][n, j]).norm(dim=1)[seen[n, i]]
        assert len(errors) > 30
        assert float(errors.median()) < 0.05


def test_points_are_read_only_if_they_are_wanted(copy: Path) -> None:
    shutil.rmtree(copy / "prep_scene_info" / "detections")
    source = MegaDepth(copy, views=VIEWS, min_overlaps=[0.0])
    assert make(source).detections is None
    assert source.read(0)[0].detections is None
    with pytest.raises(ValueError, match=r"1 of 1 scenes have no points .*detections_0001.npy; .*prep_keypoints.py"):
        MegaDepth(copy, views=VIEWS, min_overlaps=[0.0], detections=True)


def test_a_photograph_may_have_no_points(copy: Path) -> None:
    change(copy, lambda values: values.update({1: np.zeros(0), 2: np.zeros((0, 3))}))
    batch = make(MegaDepth(copy, views=VIEWS, min_overlaps=[0.0], detections=True))
    assert batch.detections is not None
    assert batch.detections[0].isnan().flatten(1).all(dim=1).tolist() == [True, True, True]
    assert batch.detections[1].isnan().flatten(1).all(dim=1).tolist() == [True, False, False]


def change(root: Path, how: Callable[[dict[int, Any]], Any]) -> Path:
    path = detections_path(root, "0001")
    values = np.load(path, allow_pickle=True).item()
    how(values)
    np.save(path, values, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda values: values.pop(2), r"it has no points of photograph 2; DeDoDe's data_prep/prep_keypoints.py"),
        (
            lambda values: values.update({2: np.ones((5, 2))}),
            r"photograph 2: .*N x 3 finite numbers, got shape \(5, 2\)",
        ),
        (lambda values: values.update({2: np.full((5, 3), np.nan)}), "photograph 2: .*finite numbers"),
        (lambda values: values.update({2: "points"}), r"photograph 2: its points must be N x 3 numbers \("),
    ],
)
def test_wrong_points_are_named(copy: Path, how: Callable[[dict[int, Any]], Any], message: str) -> None:
    path = change(copy, how)
    with pytest.raises(ValueError, match=message) as caught:
        MegaDepth(copy, min_overlaps=[0.0], detections=True)
    assert str(path) in str(caught.value)
    assert list(read_detections(path, [1, 3])) == [1, 3]  # the others are good


def test_a_damaged_file_is_named(copy: Path) -> None:
    path = detections_path(copy, "0001")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"detections_0001.npy: a damaged file of detections, or none"):
        MegaDepth(copy, min_overlaps=[0.0], detections=True)
