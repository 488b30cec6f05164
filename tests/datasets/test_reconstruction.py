"""COLMAP models of a rendered scene, whose geometry is known, and what is read of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch

from datasets.scenes import project, warp
from datasets.workspaces import CAMERAS, NAMES, SCENE, model_of, rotation_between, write_scene
from steerers.datasets.reconstruction import Reconstruction, covisible, read_colmap_depth

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["binary", "text", "old text"])
def test_reads_models_of_every_kind(kind: str, tmp_path: Path) -> None:
    found = Reconstruction.read(write_scene(tmp_path, kind))
    assert found.names == tuple(NAMES)
    assert not found.distorted.any()
    np.testing.assert_array_equal(found.sizes, [(camera.width, camera.height) for camera in CAMERAS])
    np.testing.assert_allclose(found.K, [camera.K for camera in CAMERAS], atol=1e-9)
    np.testing.assert_allclose(found.poses, [camera.pose[:3] for camera in CAMERAS], atol=1e-9)
    for n, camera in enumerate(CAMERAS):
        own = slice(found.starts[n], found.starts[n + 1])
        assert own.stop - own.start > 100
        np.testing.assert_allclose(found.xy[own], project(camera, found.points[found.tracks[own]])[0], atol=1e-3)


def test_tracks_that_an_image_sees_twice_do_not_count(tmp_path: Path) -> None:
    model = model_of(CAMERAS[:2])
    point_id = min(model.point3D_ids())
    model.add_observation(point_id, pycolmap.TrackElement(2, 0))  # the unused keypoint of the first camera
    model.write_binary(str(tmp_path))
    before = Reconstruction._of(model_of(CAMERAS[:2]))
    found = Reconstruction.read(tmp_path)
    assert np.diff(found.starts).tolist() == (np.diff(before.starts) - [1, 0]).tolist()


def test_shared_tracks_follow_the_geometry() -> None:
    found = Reconstruction._of(model_of(CAMERAS))
    xy0, xy1 = found.shared(0, 2)
    moved, seen = warp(SCENE, CAMERAS[0], CAMERAS[2], xy0)
    assert len(xy0) > 50
    assert seen.mean() > 0.9  # float32 pixels at an edge may fall off it
    np.testing.assert_allclose(xy1[seen], moved[seen], atol=0.02)


def test_depth_maps_keep_their_rows(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    (tmp_path / "d.bin").write_bytes(b"3&2&1&" + values.tobytes())
    np.testing.assert_array_equal(read_colmap_depth(tmp_path / "d.bin"), values)


def test_covisible_pairs_count_tracks_angles_and_rotations() -> None:
    found = Reconstruction._of(model_of(CAMERAS))
    pairs = covisible(found)
    assert len(pairs) == 6
    for k, (first, second) in enumerate(pairs.images):
        xy0, xy1 = found.shared(first, second)
        assert pairs.shared[k] == len(xy0)
        joint = np.intersect1d(*(found.tracks[found.starts[n] : found.starts[n + 1]] for n in (first, second)))
        rays = [found.points[joint] - CAMERAS[n].centre for n in (first, second)]
        rays = [ray / np.linalg.norm(ray, axis=1, keepdims=True) for ray in rays]
        angles = np.degrees(2 * np.arcsin(np.linalg.norm(rays[0] - rays[1], axis=1) / 2))
        assert pairs.angles[k] == pytest.approx(angles.mean(), rel=1e-6)
        assert -np.angle(pairs.similarity[k]) == pytest.approx(
            rotation_between(*map(torch.from_numpy, (xy0, xy1))), abs=1e-5
        )
        assert 0.7 < pairs.agreement[k] <= 1
