"""Reconstructions of rendered scenes, whose geometry is known: the pairs of them, and their warps."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from datasets.scenes import Scene, cameras_around, render, warp
from datasets.workspaces import CAMERAS, NAMES, SCENE, rotation_between, write_scene
from helpers import EXAMPLES
from steerers.datasets import colmap, reconstruction
from steerers.datasets.check import check_data
from steerers.datasets.colmap import Colmap, TrackWarp, aim, export
from steerers.datasets.pairs import PairBatch, correspondences, covered
from steerers.datasets.photos import PhotoStore, held_out
from steerers.datasets.reconstruction import TRACKS, Reconstruction
from steerers.datasets.views import Views, draw_homographies
from steerers.geometry import rotation, transform_points
from steerers.images.decode import header_size

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
VIEWS = Views(size=160, scale=(0.8, 1.1), tilt=1.2, perspective=0.05, photometric=0.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def source(root: Path) -> Colmap:
    return Colmap(root, views=VIEWS)


def batch_of(source: Colmap, rotations: tuple[Tensor, Tensor] | None = None, seed: int = 0) -> PairBatch:
    """All pairs, each view rotated by an angle of its own."""
    count = len(source)
    if rotations is None:
        drawn = torch.rand(2, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        rotations = (2 * math.pi * drawn[0], 2 * math.pi * drawn[1])
    read = [source.read(index) for index in range(count)]
    return source.make(read, *rotations, [seed + k for k in range(count)], CPU)


def truth(source: Colmap, batch: PairBatch, index: int, xy: Tensor, shrunk: float = 1.0) -> tuple[Tensor, Tensor]:
    """Where (N, 2) pixels of a first view lie in the second by the known geometry, and whether they are seen."""
    first, second = (CAMERAS[NAMES.index(name)] for name in source.names(index)[1:])
    from0, from1 = (transforms[index] for transforms in (batch.warp.from_photos0, batch.warp.from_photos1))
    full = torch.tensor([[1, 0, (1 - shrunk) / 2], [0, 1, (1 - shrunk) / 2], [0, 0, shrunk]], dtype=torch.float64)
    moved, seen = warp(SCENE, first, second, transform_points(full @ torch.linalg.inv(from0), xy.double()).numpy())
    moved = transform_points(from1 @ torch.linalg.inv(full), torch.from_numpy(moved))
    return moved, torch.from_numpy(seen) & covered(batch.masks1[index : index + 1], moved[None])[0]


# Warps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_tracks_are_exact_between_rotated_views(source: Colmap, seed: int) -> None:
    batch = batch_of(source, seed=seed)
    assert batch.anchors is not None
    checked = 0
    for index in range(len(source)):
        first, second = (ends[index] for ends in batch.anchors)
        known = first.isfinite().all(dim=1)
        moved, seen = truth(source, batch, index, first[known])
        assert bool(known.any())
        assert float((moved - second[known])[seen].norm(dim=1).max()) < 0.1
        checked += int(seen.sum())
    assert checked > 100
    known = batch.anchors[0].isfinite().all(dim=2)
    ahead, seen = batch.warp.forward(batch.anchors[0])
    torch.testing.assert_close(seen, known)
    assert float((ahead - batch.anchors[1])[known].norm(dim=1).quantile(0.98)) < 0.1  # a nearer track may take over
    back, seen = batch.warp.backward(batch.anchors[1])
    torch.testing.assert_close(seen, known)
    assert float((back - batch.anchors[0])[known].norm(dim=1).quantile(0.98)) < 0.1


def test_offsets_rotation_with_the_photographs(source: Colmap) -> None:
    batch = batch_of(source)
    assert batch.anchors is not None
    index = next(k for k in range(len(source)) if source.names(k)[2] == NAMES[2])  # rolled by more than 120 degrees
    xy = batch.anchors[0][index][batch.anchors[0][index].isfinite().all(dim=1)] + torch.tensor([1.0, -1.0])
    expected, visible_there = truth(source, batch, index, xy)
    moved, seen = batch.warp.forward(xy.expand(len(source), -1, -1))
    both = seen[index] & visible_there
    assert float((moved[index] - expected)[both].norm(dim=1).median()) < 0.5
    assert int(both.sum()) > 20


def test_depth_maps_make_the_warp_dense(tmp_path: Path) -> None:
    source = Colmap(write_scene(tmp_path, depths=True), views=VIEWS)
    batch = batch_of(source, seed=3)
    assert batch.dense
    xy = torch.rand(1, 400, 2, generator=torch.Generator().manual_seed(0)).expand(len(source), -1, -1) * 159
    moved, seen = batch.warp.forward(xy)
    for index in range(len(source)):
        inside = covered(batch.masks0[index : index + 1], xy[:1])[0]
        expected, visible_there = truth(source, batch, index, xy[0])
        both = seen[index] & inside & visible_there
        assert int(both.sum()) > 0.75 * int((inside & visible_there).sum())
        errors = (moved[index] - expected)[both].norm(dim=1)
        assert float(errors.quantile(0.9)) < 0.1
        assert float((seen[index] & inside & ~visible_there).float().mean()) < 0.05
    assert batch.known is not None
    for known, masks, side in zip(batch.known, (batch.masks0, batch.masks1), (0, 1), strict=True):
        seen = batch.warp_pixels(side)[1]
        assert not (known & ~masks).any()
        assert (seen & ~known).sum() < 0.01 * seen.sum()  # at the edges of depth
        assert known.sum() > seen.sum()


def test_squashed_views_show_whole_photographs(tmp_path: Path) -> None:
    """The warp is exact through them, and the rotation of a pair is taken out as of drawn views."""
    source = Colmap(write_scene(tmp_path, depths=True), views=replace(VIEWS, resize="squash"))
    batch = batch_of(source, seed=3)
    xy = torch.rand(1, 400, 2, generator=torch.Generator().manual_seed(0)).expand(len(source), -1, -1) * 159
    moved, seen = batch.warp.forward(xy)
    for index in range(len(source)):
        expected, visible_there = truth(source, batch, index, xy[0])
        both = seen[index] & covered(batch.masks0[index : index + 1], xy[:1])[0] & visible_there
        assert int(both.sum()) > 40
        assert float((moved[index] - expected)[both].norm(dim=1).quantile(0.9)) < 0.1
    still = (torch.zeros(len(source), dtype=torch.float64),) * 2
    batch = batch_of(source, still)
    assert batch.anchors is not None
    for index, (first, second) in enumerate(zip(*batch.anchors, strict=True)):
        camera = CAMERAS[NAMES.index(source.names(index)[1])]
        linear = batch.warp.from_photos0[index, :2, :2].diagonal()
        assert linear.tolist() == pytest.approx([160 / camera.width, 160 / camera.height])
        known = first.isfinite().all(dim=1)
        assert int(known.sum()) > 10
        assert abs(rotation_between(first[known], second[known])) < 0.3


def test_batches_are_dense_only_if_every_photograph_of_the_source_has_a_depth_map(tmp_path: Path) -> None:
    write_scene(tmp_path, depths=True)
    whole = Colmap(tmp_path, views=VIEWS)
    path = tmp_path / "stereo" / "depth_maps" / f"{NAMES[0]}.geometric.bin"
    kept = path.read_bytes()
    path.unlink()
    assert whole.dense
    with pytest.raises(FileNotFoundError, match="geometric"):  # not a batch of another kind
        batch_of(whole)
    partly = Colmap(tmp_path, views=VIEWS)
    assert not partly.dense
    path.write_bytes(kept)
    deep = [k for k in range(len(partly)) if NAMES[0] not in partly.names(k)]
    assert deep
    read = [partly.read(k) for k in deep]
    assert all(side.camera.depth is not None for pair in read for side in pair.sides)
    still = torch.zeros(len(deep), dtype=torch.float64)
    assert not partly.make(read, still, still, deep, CPU).dense
    assert not batch_of(partly).dense
    assert batch_of(partly).known is None
    assert not any(part.dense for part in partly.split(0.3))
    batch = batch_of(partly)
    assert batch.anchors is not None
    seen = batch.warp.forward(batch.anchors[0])[1]
    for k in range(len(partly)):  # those without depth go by their tracks, also beside others that have it
        known = batch.anchors[0][k].isfinite().all(dim=1)
        assert bool(known.any())
        assert bool(seen[k][known].all()) or k in deep


def test_keypoints_near_tracks_correspond(source: Colmap) -> None:
    batch = batch_of(source)
    assert batch.anchors is not None
    xy0, xy1 = (ends.nan_to_num(nan=-50.0) for ends in batch.anchors)
    found = correspondences(xy0, xy1, batch.warp, 1.0)
    assert len(found) > 0.9 * int(batch.anchors[0].isfinite().all(dim=2).sum())
    assert bool((found[:, 1] == found[:, 2]).float().mean() > 0.95)


# Batches --------------------------------------------------------------------------------------------------------------


def test_rotations_are_all_that_is_left_of_rotation(source: Colmap) -> None:
    quarter = torch.full((len(source),), math.pi / 2, dtype=torch.float64)
    for rotations in ((0 * quarter, 0 * quarter), (quarter, -0.8 * quarter)):
        batch = batch_of(source, rotations)
        assert batch.anchors is not None
        for index, angle in enumerate(batch.angles.tolist()):
            first, second = (ends[index][ends[index].isfinite().all(dim=1)] for ends in batch.anchors)
            left = rotation_between(first, second) + angle
            assert abs(math.remainder(left, 2 * math.pi)) < math.radians(25)


def test_batches_follow_from_seeds_alone(source: Colmap) -> None:
    read = [source.read(0), source.read(3)]
    rotations0, rotations1 = torch.tensor([0.3, 1.0]).double(), torch.tensor([2.0, 4.0]).double()
    whole = source.make(read, rotations0, rotations1, [5, 6], CPU)
    for k in (0, 1):
        part = source.make(read[k : k + 1], rotations0[k : k + 1], rotations1[k : k + 1], [5 + k], CPU)
        for name in ("images0", "images1", "masks0", "masks1"):
            torch.testing.assert_close(getattr(part, name)[0], getattr(whole, name)[k], atol=1e-5, rtol=0)
        assert part.anchors is not None
        assert whole.anchors is not None
        torch.testing.assert_close(part.anchors[1][0], whole.anchors[1][k], equal_nan=True, atol=1e-3, rtol=0)
    other = source.make(read, rotations0, rotations1, [7, 8], CPU)
    assert not torch.equal(other.images0, whole.images0)


def test_anchors_are_few_and_seen(source: Colmap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colmap, "ANCHORS", 8)
    batch = batch_of(source)
    assert batch.anchors is not None
    for ends, masks in zip(batch.anchors, (batch.masks0, batch.masks1), strict=True):
        assert ends.shape == (len(source), 8, 2)
        torch.testing.assert_close(covered(masks, ends), ends.isfinite().all(dim=2))
    assert not batch.dense
    assert batch.images0.shape == (len(source), 3, 160, 160)
    assert 0 <= float(batch.images0.min()) <= float(batch.images0.max()) <= 1


def test_detections_are_all_observations_of_each_photograph(source: Colmap) -> None:
    batch = batch_of(source)
    assert batch.detections is not None
    assert batch.anchors is not None
    scene = source.scenes[0].reconstruction
    for side, found in enumerate(batch.detections):
        maps = (batch.warp.from_photos0, batch.warp.from_photos1)[side]
        for index in range(len(source)):
            n = scene.names.index(source.names(index)[1 + side])
            stored = torch.from_numpy(scene.xy[scene.starts[n] : scene.starts[n + 1]])
            expected = transform_points(maps[index], stored.double()).float()
            torch.testing.assert_close(found[index, : len(stored)], expected, atol=1e-3, rtol=1e-5)
            assert bool(found[index, len(stored) :].isnan().all())
            anchors = batch.anchors[side][index]
            anchors = anchors[anchors.isfinite().all(dim=1)]
            nearest = torch.cdist(anchors.double(), expected.double()).amin(dim=1)
            assert float(nearest.max()) < 1e-2  # tracks that both show are among them
            assert len(stored) > len(source.read(index).sides[side].points)


# Tracks between views -------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), angle=st.floats(-3, 3), scale=st.floats(0.5, 2))
def test_track_warp_goes_there_and_back(seed: int, angle: float, scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = 40 * torch.stack(torch.meshgrid(torch.arange(5.0), torch.arange(4.0), indexing="xy"), -1).view(1, -1, 2)
    linear = (scale * rotation(angle))[None].to(dtype)
    points0 = points.to(dtype)
    points1 = (points0 @ linear.mT)[:, torch.randperm(20, generator=generator)]  # tracks need not follow one map
    gone = torch.full((1, 3, 2), math.nan, dtype=dtype)
    tracks = TrackWarp(torch.cat([points0, gone], 1), torch.cat([points1, gone], 1), linear, 2.0)
    offsets = 3 * torch.rand(1, 20, 2, generator=generator, dtype=dtype) - 1.5
    moved, seen = tracks.forward(points0 + offsets)
    torch.testing.assert_close(seen, offsets.norm(dim=-1) <= 2)
    torch.testing.assert_close(moved[seen], (points1 + offsets @ linear.mT)[seen], atol=1e-3, rtol=0)
    near = (moved - points1).norm(dim=-1) <= 1.99
    back, known = tracks.backward(moved)
    assert bool(known[near].all())
    torch.testing.assert_close(back[near], (points0 + offsets)[near], atol=1e-3, rtol=0)


def test_track_warp_knows_nothing_without_tracks_or_points() -> None:
    empty = TrackWarp(torch.zeros(2, 0, 2), torch.zeros(2, 0, 2), torch.eye(2).expand(2, 2, 2), 3.0)
    assert not empty.forward(torch.zeros(2, 5, 2))[1].any()
    one = TrackWarp(torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.eye(2)[None], 3.0)
    _, seen = one.forward(torch.tensor([[[math.nan, 0.0], [0.0, 1.0], [9.0, 9.0]]]))
    assert seen.tolist() == [[False, True, False]]
    assert one.forward(torch.zeros(1, 0, 2))[0].shape == (1, 0, 2)


@given(seed=st.integers(0, 10_000), x=st.floats(0, 299), y=st.floats(0, 199))
def test_aimed_views_look_at_their_targets_from_within(seed: int, x: float, y: float) -> None:
    views = Views(size=64, scale=(0.9, 1.3), perspective=0.05)
    maps = draw_homographies([(300, 200)], views, [seed])
    aimed = aim(maps, [(300, 200)], torch.tensor([[x, y]]), 64, [seed])
    corners = torch.tensor([[[0.0, 0], [63, 0], [63, 63], [0, 63]]], dtype=torch.float64)
    placed = transform_points(torch.linalg.inv(aimed), corners)
    assert bool((placed > -1e-6).all())
    assert bool((placed < placed.new_tensor([299, 199]) + 1e-6).all())
    if 60 < x < 240 and 60 < y < 140:
        seen = transform_points(aimed, torch.tensor([[[x, y]]], dtype=torch.float64))
        assert bool(((seen > 0) & (seen < 63)).all())
    shape = transform_points(torch.linalg.inv(maps), corners)
    torch.testing.assert_close(placed - placed.mean(1), shape - shape.mean(1))  # only moved


# Pairs and their weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "of"), [("MIN_SHARED", "shared"), ("MAX_ANGLE", "angles")])
def test_far_and_wide_pairs_are_left_out(
    root: Path, source: Colmap, limit: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = np.median(getattr(source.pairs[0], of))
    monkeypatch.setattr(reconstruction, limit, middle + (limit == "MIN_SHARED"))
    assert 0 < len(Colmap(root, views=VIEWS)) < len(source)
    monkeypatch.setattr(reconstruction, limit, 9999 if limit == "MIN_SHARED" else -1)
    with pytest.raises(ValueError, match="no two photographs share 30 tracks at an angle of 0 to 60 degrees"):
        Colmap(root, views=VIEWS)


def test_several_scenes_weigh_by_the_root_of_their_pairs(tmp_path: Path, source: Colmap) -> None:
    write_scene(tmp_path / "a")
    export(tmp_path / "a", tmp_path / "b")
    (tmp_path / "empty").mkdir()
    both = Colmap(tmp_path, views=VIEWS)
    assert len(both) == 2 * len(source)
    assert {both.names(k)[0] for k in range(len(both))} == {"a", "b"}
    assert both.weights.shape == (len(both),)
    assert float(both.weights.sum()) == pytest.approx(2 * len(source) ** 0.25)
    batch = both.make([both.read(0), both.read(len(source))], *torch.zeros(2, 2).double(), [1, 1], CPU)
    torch.testing.assert_close(batch.images0[0], batch.images0[1])


def test_split_keeps_photographs_apart(source: Colmap) -> None:
    fraction = next(f for f in np.linspace(0.05, 0.95, 19) if 0 < sum(held_out(name, f) for name in NAMES) < 3)
    train, test = source.split(float(fraction))
    assert len(train) + len(test) == len(source)
    assert not any(held_out(name, fraction) for k in range(len(train)) for name in train.names(k)[1:])
    assert all(any(held_out(name, fraction) for name in test.names(k)[1:]) for k in range(len(test)))
    assert len(train.weights) == len(train)
    with pytest.raises(ValueError, match="fraction"):
        source.split(0.0)


# Files ----------------------------------------------------------------------------------------------------------------


def test_export_needs_no_pycolmap_and_changes_nothing(
    root: Path, source: Colmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(root, tmp_path / "carried")
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(ImportError, match=r"steerers\[colmap\]"):
        Colmap(root, views=VIEWS)
    for path in (tmp_path / "carried", tmp_path / "carried" / TRACKS):
        carried = Colmap(path, views=VIEWS)
        ours, theirs = carried.scenes[0].reconstruction, source.scenes[0].reconstruction
        assert ours.names == theirs.names
        for name in ("sizes", "K", "distorted", "poses", "starts", "xy", "tracks", "points"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        first, second = batch_of(carried), batch_of(source)
        assert torch.equal(first.images1, second.images1)
        assert first.anchors is not None
        assert second.anchors is not None
        torch.testing.assert_close(first.anchors, second.anchors, equal_nan=True, atol=0, rtol=0)


@pytest.mark.usefixtures("strict_pillow")
def test_large_photographs_are_carried_too(root: Path, tmp_path: Path) -> None:
    export(root, tmp_path / "as they are")
    export(root, tmp_path / "shrunk", max_size=50)
    assert header_size(tmp_path / "as they are" / "images" / NAMES[0]) == (CAMERAS[0].width, CAMERAS[0].height)
    assert max(header_size(tmp_path / "shrunk" / "images" / NAMES[0])) == 50


@pytest.mark.parametrize("name", ["../../stolen.png", "/tmp/stolen.png"])
def test_nothing_is_written_beside_the_folder_that_is_asked_for(root: Path, tmp_path: Path, name: str) -> None:
    write_scene(tmp_path / "scene")
    found = Reconstruction.read(tmp_path / "scene")
    replace(found, names=(name, *found.names[1:])).save(tmp_path / "scene" / TRACKS)
    with pytest.raises(ValueError, match=r"scene: its photographs would be written to elsewhere: .*stolen\.png"):
        export(tmp_path / "scene", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_photographs_may_be_smaller_than_their_cameras(root: Path, tmp_path: Path) -> None:
    export(root, tmp_path, max_size=120)
    shrunk = Colmap(tmp_path, views=Views(size=96, scale=(0.8, 1.1), photometric=0.0))
    assert max(shrunk.store.sizes) == (120, 120)
    batch = batch_of(shrunk, seed=2)
    assert batch.anchors is not None
    for index in range(len(shrunk)):
        if NAMES[3] in shrunk.names(index):  # shrunk by another factor than the others
            continue
        first, second = (ends[index][ends[index].isfinite().all(dim=1)] for ends in batch.anchors)
        moved, seen = truth(shrunk, batch, index, first, shrunk=0.5)
        assert bool(seen.any())
        assert float((moved - second)[seen].norm(dim=1).max()) < 0.1


def test_missing_and_wrong_photographs_are_named(tmp_path: Path) -> None:
    write_scene(tmp_path)
    (tmp_path / "images" / NAMES[1]).unlink()
    with pytest.raises(ValueError, match=r"1 photographs are missing.*1\.png"):
        Colmap(tmp_path, views=VIEWS)
    with pytest.raises(ValueError, match=r"1 photographs are missing.*1\.png"):
        export(tmp_path, tmp_path / "out")
    PIL.Image.new("RGB", (50, 60)).save(tmp_path / "images" / NAMES[1])
    with pytest.raises(ValueError, match=r"1\.png: 50 x 60 pixels, which is not the aspect"):
        Colmap(tmp_path, views=VIEWS).open()


def test_photographs_are_decoded_once_and_not_to_be_counted(
    tmp_path: Path, source: Colmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scene(tmp_path)
    calls, decode = [], PhotoStore.open
    monkeypatch.setattr(PhotoStore, "open", lambda *arguments: calls.append(arguments) or decode(*arguments))
    lazy = Colmap(tmp_path, views=VIEWS, cache=tmp_path / "cache")
    parts = lazy.split(0.3)
    assert sum(map(len, parts)) == len(lazy) == len(source)
    assert not calls
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: part.read(0), (*parts, lazy, lazy)))
    assert len(calls) == 1
    assert list((tmp_path / "cache").glob("photos-*.npy"))


def test_images_and_depths_may_lie_elsewhere(tmp_path: Path) -> None:
    write_scene(tmp_path / "scene", depths=True)
    (tmp_path / "scene" / "images").rename(tmp_path / "photos")
    (tmp_path / "scene" / "stereo" / "depth_maps").rename(tmp_path / "depths")
    source = Colmap(tmp_path / "scene", images=tmp_path / "photos", depths=tmp_path / "depths", views=VIEWS)
    assert source.read(0).sides[0].camera.depth is not None
    with pytest.raises(ValueError, match="nowhere: no such folder of depth maps"):
        Colmap(tmp_path / "scene", images=tmp_path / "photos", depths=tmp_path / "nowhere", views=VIEWS)


def test_distorted_cameras_give_tracks_but_no_depth(tmp_path: Path) -> None:
    write_scene(tmp_path, depths=True, distortion=0.01)
    with pytest.raises(ValueError, match="lens distortion; use the folder that COLMAP's image_undistorter"):
        Colmap(tmp_path, views=VIEWS)
    assert "image_undistorter" in check_data(tmp_path).problems[0].what
    (tmp_path / "stereo" / "depth_maps").rename(tmp_path / "aside")
    source = Colmap(tmp_path, views=VIEWS)
    assert source.scenes[0].reconstruction.distorted.all()
    assert batch_of(source).anchors is not None


def test_broken_models_are_named(tmp_path: Path) -> None:
    write_scene(tmp_path)
    for name in ("points3D.bin", "images.bin", "cameras.bin", "rigs.bin", "frames.bin"):
        path = tmp_path / "sparse" / name
        whole = path.read_bytes()
        for broken in (whole[:-50], whole[:4], whole + b"more", b"\xff" * 20, b"", b"\xff" * 8 + whole[8:]):
            path.write_bytes(broken)
            with pytest.raises(ValueError, match=rf"{name}: a damaged file of a COLMAP model"):
                Colmap(tmp_path, views=VIEWS)
        path.write_bytes(whole)
    path = tmp_path / "sparse" / "cameras.bin"
    path.write_bytes(path.read_bytes().replace((240).to_bytes(8, "little"), (2**63).to_bytes(8, "little")))
    with pytest.raises(ValueError, match="sparse: COLMAP model cannot be read"):
        Colmap(tmp_path, views=VIEWS)
    (tmp_path / TRACKS).write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"tracks\.npz: a damaged file of tracks"):
        Colmap(tmp_path, views=VIEWS)
    with pytest.raises(ValueError, match="no COLMAP model"):
        Reconstruction.read(tmp_path / "images")


def test_photographs_become_a_reconstruction(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The tool for users, examples/reconstruct.py, from pixels alone, with photographs shrunk to three quarters."""
    fine = Scene(tuple(replace(surface, detail=10.0) for surface in SCENE.surfaces))
    cameras = cameras_around(4, size=(288, 216), focal=250, spread=0.25)
    (tmp_path / "photos").mkdir()
    for n, camera in enumerate(cameras):
        PIL.Image.fromarray(render(fine, camera)[0]).save(tmp_path / "photos" / f"{n}.png")
    spec = importlib.util.spec_from_file_location("reconstruct", EXAMPLES / "reconstruct.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    options = ["--one-camera", "--model", "SIMPLE_PINHOLE", "--threads", "1", "--long-side", "216"]
    assert tool.main([str(tmp_path / "photos"), str(tmp_path / "out"), *options]) == 0
    assert json.loads(capfd.readouterr().out)["registered"] == 4
    assert check_data(tmp_path / "out").problems == []
    found = Reconstruction.read(tmp_path / "out")
    assert found.sizes.tolist() == [[216, 162]] * 4
    xy0, xy1 = ((xy + 0.5) / 0.75 - 0.5 for xy in found.shared(0, 1))
    moved, seen = warp(fine, cameras[0], cameras[1], xy0)
    assert int(seen.sum()) > 50
    assert float(np.median(np.linalg.norm(moved - xy1, axis=1)[seen])) < 0.3
    assert tool.main([str(tmp_path / "out" / "sparse"), str(tmp_path / "none")]) == 2
    radial = ["--one-camera", "--model", "SIMPLE_RADIAL", "--threads", "1", "--undistort"]
    assert tool.main([str(tmp_path / "photos"), str(tmp_path / "pinholes"), *radial]) == 0
    assert check_data(tmp_path / "pinholes").problems == []
    assert not Reconstruction.read(tmp_path / "pinholes").distorted.any()
