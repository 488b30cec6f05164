"""Depth by plane sweep, of rendered scenes whose depth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from datasets.workspaces import NAMES, rendered, write_scene
from helpers import randn, seeds
from steerers.datasets.colmap import Colmap
from steerers.datasets.reconstruction import DEPTHS, Covisible, Scene, open_scenes, read_colmap_depth
from steerers.datasets.stereo import (
    StereoOptions,
    _correlation,
    _highest,
    _normals,
    _photo,
    _rays,
    _supported,
    depth_maps,
    neighbours,
    write_depth_maps,
)
from steerers.datasets.views import Views

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = StereoOptions(size=160, planes=40, views=3, window=5, agreeing=1)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return next(open_scenes(write_scene(tmp_path_factory.mktemp("scene"))))


@pytest.fixture(scope="module")
def written(scene: Scene) -> dict[str, float]:
    """Which fraction of the pixels of each photograph has a depth; the maps lie in the folder of the scene."""
    return dict(write_depth_maps(scene._replace(depths=scene.home / DEPTHS), SMALL))


def read(scene: Scene, name: str) -> NDArray[np.float32]:
    return read_colmap_depth(scene.home / DEPTHS / f"{name}.geometric.bin")


def true_depth(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Of the pixels that are nearest to those of a smaller map."""
    depth = rendered(NAMES.index(name))[1]
    rows, columns = (
        ((np.arange(small) + 0.5) * full / small).astype(int) for small, full in zip(shape, depth.shape, strict=True)
    )
    return depth[np.ix_(rows, columns)]


def test_depth_is_that_of_the_scene(scene: Scene, written: dict[str, float]) -> None:
    assert list(written) == NAMES
    for name in NAMES:
        depth = read(scene, name)
        truth, known = true_depth(name, depth.shape), depth > 0
        assert max(depth.shape) == SMALL.size
        assert written[name] == pytest.approx(known.mean())
        assert known.mean() > 0.3
        assert (np.abs(depth / np.where(truth > 0, truth, np.inf) - 1)[known] < 0.03).mean() > 0.93


@pytest.mark.usefixtures("written")
def test_training_reads_what_is_written(scene: Scene) -> None:
    source = Colmap(scene.home, views=Views(size=96, scale=(0.8, 1.1)))
    assert source.dense
    batch = source.make([source.read(0)], *torch.zeros(2, 1).double(), [0], torch.device("cpu"))
    assert 0.1 < float(batch.warp_pixels(0)[1].float().mean()) < 1


def test_tilted_planes_follow_what_is_seen_from_the_side(scene: Scene) -> None:
    """The floor, which no plane that faces the photograph fits."""
    facing = dict(depth_maps(scene, replace(SMALL, size=96, tilt=0)))
    tilted = dict(depth_maps(scene, replace(SMALL, size=96)))

    def right(found: dict[str, NDArray[np.float32]]) -> float:
        shares = []
        for name, depth in found.items():
            truth = true_depth(name, depth.shape)
            shares.append(((depth > 0) & (np.abs(depth - truth) < 0.02 * truth)).mean())
        return float(np.mean(shares))

    assert right(tilted) > right(facing)
    assert _normals(0.0) == [(0.0, 0.0, 1.0)]
    assert all(normal[2] == 1 for normal in _normals(45.0))


def test_windows_are_correlated_as_written_out(scene: Scene) -> None:
    """At a few pixels: the window of the other photograph by bilinear interpolation, point by point."""
    photos = [_photo(scene, n, 160, torch.device("cpu")) for n in (0, 1)]
    inverse = 0.17
    found = _correlation(photos[0], photos[1], _rays(photos[0]), torch.full((1, *photos[0].grey.shape), inverse), 5)[0]
    first, second = (photo.camera for photo in photos)
    pose = second.pose @ torch.linalg.inv(first.pose)
    grey = photos[1].grey.double().numpy()
    checked = 0
    for x, y in ((60, 50), (80, 60), (100, 40), (75, 90)):
        own, their = [], []
        for dy in range(-2, 3):
            for dx in range(-2, 3):
                ray = torch.linalg.inv(first.K) @ torch.tensor([x + dx, y + dy, 1.0]).double()
                seen = second.K @ (pose[:3, :3] @ ray / inverse + pose[:3, 3])
                u, v = (seen[:2] / seen[2]).tolist()
                column, row = int(np.floor(u)), int(np.floor(v))
                a, b = u - column, v - row
                corners = grey[row : row + 2, column : column + 2]
                their.append(float(np.array([1 - b, b]) @ corners @ np.array([1 - a, a])))
                own.append(float(photos[0].grey[y + dy, x + dx]))
        assert float(found[y, x]) == pytest.approx(np.corrcoef(own, their)[0, 1], abs=2e-3)
        checked += 1
    assert checked == 4
    far = _correlation(photos[0], photos[1], _rays(photos[0]), torch.full((1, *photos[0].grey.shape), 5.0), 5)
    assert bool((far == -1).all())  # so near that nothing of it is in the other photograph


@given(seeds, st.floats(1.2, 8.8), st.floats(0.01, 1))
def test_the_top_lies_between_planes(seed: int, place: float, bend: float) -> None:
    planes = torch.arange(11, dtype=torch.float64)
    scores = (1 - bend * (planes - place).square()).view(-1, 1, 1).expand(-1, 2, 3)
    score, found = _highest(scores)
    assert float((found - place).abs().max()) < 1e-6
    assert float(score.max()) == pytest.approx(float(scores.max()))
    ends = randn(5, 4, 4, seed=seed).sort(dim=0).values  # best at the last plane: nothing is known beyond
    assert bool((_highest(ends)[1] == 4).all())


def test_specks_go_and_surfaces_stay() -> None:
    depth = torch.zeros(20, 20)
    depth[4:16, 4:16] = 2.0
    depth[8, 8], depth[1, 18] = 3.0, 2.0
    found = _supported(depth)
    assert found[8, 8] == found[1, 18] == 0
    assert bool((found[5:15, 5:15] == 2).sum() == 99)


def test_neighbours_share_tracks_at_an_angle() -> None:
    pairs = Covisible(
        images=np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2]]),
        shared=np.array([100, 100, 100, 9, 50]),
        angles=np.array([0.5, 12.0, 50.0, 12.0, 10.0]),
        similarity=np.array([1, 1, 1, 1, 4], np.complex128),
        agreement=np.ones(5),
    )
    found = [own.tolist() for own in neighbours(pairs, 5, 2)]
    assert found[0] == [2, 3]  # the first has no depth in it, the last too few tracks
    assert found[1] == [2, 0]
    assert found[4] == []


def test_refusals(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="depths must say where its depth maps are to be written"):
        list(write_depth_maps(scene, SMALL))
    distorted = next(open_scenes(write_scene(tmp_path, distortion=0.01)))
    with pytest.raises(ValueError, match="need pinhole cameras, but 4 of the model have lens distortion"):
        list(depth_maps(distorted, SMALL))
    alone = scene.reconstruction
    one = type(alone)(
        alone.names[:1], alone.sizes[:1], alone.K[:1], alone.distorted[:1], alone.poses[:1], alone.starts[:2],
        alone.xy[: alone.starts[1]], alone.tracks[: alone.starts[1]], alone.points,
    )  # fmt: skip
    with pytest.raises(ValueError, match="no photograph shares tracks with another one"):
        list(depth_maps(scene._replace(reconstruction=one), SMALL))
    for changes, message in (
        ({"window": 4}, "window must be odd and positive, got 4"),
        ({"planes": 2}, "planes must be at least 3, got 2"),
        ({"views": 0}, "views must be positive, got 0"),
        ({"tilt": 90.0}, "tilt must be from 0 to 80, got 90.0"),
    ):
        with pytest.raises(ValueError, match=message):
            StereoOptions(**changes)  # type: ignore[arg-type]
