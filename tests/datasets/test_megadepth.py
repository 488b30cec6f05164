"""MegaDepth, on small scenes in its layout whose geometry is known."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import steerers.datasets.views
from datasets.scenes import (
    Array,
    Camera,
    Scene,
    cameras_around,
    cast,
    look_at,
    project,
    save_scene_info,
    street,
    unproject,
    visible,
    warp,
    write_detections,
    write_megadepth,
)
from steerers.datasets.megadepth import MegaDepth, read_depth
from steerers.datasets.pairs import PairBatch, PairSource, ViewWarp, mix
from steerers.datasets.scene_info import detections_path, read_detections
from steerers.datasets.views import Views
from steerers.geometry import scaling, to_normalised, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
VIEWS = Views(size=160, photometric=0.0)
SQUASHED = Views(size=160, photometric=0.0, resize="squash")
SCENES = {"0001": street(1), "0015": street(2)}


def cameras(name: str) -> list[Camera]:
    """Of one scene: photographs of different sizes and focal lengths, larger and smaller than a view."""
    if name == "0015":
        return list(cameras_around(2, spread=0.2, size=(120, 90), focal=100))
    return [
        look_at((-0.6, -0.2, -3.4), (0, 0.3, 2), focal=260, size=(320, 240), roll=0.1),
        look_at((0.5, -0.3, -3.6), (0, 0.2, 2), focal=240, size=(250, 334), roll=-0.2),
        look_at((1.7, -0.5, -2.8), (0, 0.2, 2), focal=125, size=(151, 133), roll=0.3),
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("MegaDepth")
    for name, scene in SCENES.items():
        write_megadepth(made, name, scene, cameras(name))
    return made


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(root, tmp_path / "MegaDepth")
    return tmp_path / "MegaDepth"


def make(source: MegaDepth, rotations: tuple[float, float] = (0.0, 0.0), seed: int = 0) -> PairBatch:
    """All pairs in one batch."""
    count = len(source)
    rotations0, rotations1 = (torch.full((count,), rotation, dtype=torch.float64) for rotation in rotations)
    seeds = [mix(seed, index) for index in range(count)]
    return source.make([source.read(index) for index in range(count)], rotations0, rotations1, seeds, CPU)


def to_view(from_photo: Tensor, camera: Camera, views: Views = VIEWS) -> Tensor:
    """(3, 3), from the photograph as it is stored to a view of it, resized to the size of the view."""
    if views.resize == "squash":
        return from_photo @ scaling((camera.width, camera.height), (VIEWS.size, VIEWS.size))
    longest = max(camera.width, camera.height)
    shrunk = min(longest, VIEWS.size)
    size = (round(camera.width * shrunk / longest), round(camera.height * shrunk / longest))
    return from_photo @ scaling((camera.width, camera.height), size)


def stored_pixels(xy: Tensor, from_photo: Tensor, camera: Camera, views: Views = VIEWS) -> Array:
    """Pixels of a view in the photograph as it is stored."""
    return transform_points(torch.linalg.inv(to_view(from_photo, camera, views)), xy.double()).numpy()


def view_pixels(xy: Array, from_photo: Tensor, camera: Camera, views: Views = VIEWS) -> Array:
    """The other way."""
    return transform_points(to_view(from_photo, camera, views), torch.from_numpy(xy)).numpy()


def one_surface(scene: Scene, camera: Camera, xy: Array, reach: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether all within ``reach`` pixels of the stored photograph is one surface."""
    around = np.stack([cast(scene, camera, xy + np.multiply(reach, step))[1] for step in np.ndindex(3, 3)])
    middle = np.stack([cast(scene, camera, xy - np.multiply(reach, step))[1] for step in np.ndindex(3, 3)])
    return np.asarray((around[0] >= 0) & np.all(np.concatenate([around, middle]) == around[0], axis=0))


# The warp between views -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rotations", "views"),
    [
        ((0.0, 0.0), VIEWS),
        ((math.pi / 2, 0.0), VIEWS),
        ((math.pi, 3 * math.pi / 2), VIEWS),
        ((0.7, -2.1), VIEWS),
        ((0.0, math.pi / 2), SQUASHED),
        ((0.7, -2.1), SQUASHED),
    ],
    ids=["upright", "quarter", "two quarters", "any angle", "squashed, quarter", "squashed, any angle"],
)
def test_warps_between_rotated_views_are_exact_to_a_tenth_of_a_pixel(
    root: Path, rotations: tuple[float, float], views: Views
) -> None:
    """Against the geometry that the photographs were made from, both ways, occlusion included."""
    source = MegaDepth(root, views=views)
    scene, photographed = SCENES["0001"], cameras("0001")
    assert len(source) == 3
    batch = make(source, rotations)
    assert isinstance(batch.warp, ViewWarp)
    maps = (batch.warp.from_photos0, batch.warp.from_photos1)
    generator = torch.Generator().manual_seed(0)
    xy = torch.rand(3, 3000, 2, generator=generator) * (VIEWS.size - 1)
    hidden_total = 0
    for side, way in ((0, batch.warp.forward), (1, batch.warp.backward)):
        moved, seen = way(xy)
        for n, pair in enumerate(((0, 1), (0, 2), (1, 2))):
            here, there = photographed[pair[side]], photographed[pair[1 - side]]
            stored = stored_pixels(xy[n], maps[side][n], here, views)
            true, really = warp(scene, here, there, stored)
            errors = np.linalg.norm(moved[n].numpy() - view_pixels(true, maps[1 - side][n], there, views), axis=1)
            good = seen[n].numpy() & one_surface(scene, here, stored, 1.0)
            assert good.sum() > 150
            assert errors[good].max() < 0.1
            assert (errors[seen[n].numpy()] < 0.1).mean() > 0.97
            assert (seen[n].numpy() & ~really).mean() < 0.02
            hidden = _hidden(scene, here, there, stored)
            hidden_total += int(hidden.sum())
            assert not seen[n].numpy()[hidden].any()
    assert hidden_total > 300


def _hidden(scene: Scene, here: Camera, there: Camera, xy: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether something stands clearly before a point in the other photograph."""
    depth, surface = cast(scene, here, xy)
    true, reached = project(there, unproject(here, xy, np.where(surface >= 0, depth, np.nan)))
    inside = ((true > 1) & (true < (there.width - 2, there.height - 2))).all(axis=1)
    true = np.where(np.asarray(inside)[:, None], true, 50.0)
    before, _ = cast(scene, there, true)
    return np.asarray(inside & (before < 0.94 * reached) & one_surface(scene, there, true, 1.5))


@pytest.mark.parametrize("views", [VIEWS, SQUASHED], ids=["letterbox", "squash"])
@pytest.mark.parametrize("rotations", [(0.0, 0.0), (math.pi / 2, math.pi), (1.0, 2.5)])
def test_warped_points_have_the_same_colour(root: Path, rotations: tuple[float, float], views: Views) -> None:
    """Pictures and warp agree: the maps between photographs and views are those that the views were made with."""
    source = MegaDepth(root, views=views)
    batch = make(source, rotations)
    xy = torch.rand(3, 3000, 2, generator=torch.Generator().manual_seed(1)) * (VIEWS.size - 1)
    moved, seen = batch.warp.forward(xy)
    here, there, beside = (
        F.grid_sample(images, to_normalised(points, (VIEWS.size, VIEWS.size))[:, None], align_corners=False)[:, :, 0]
        for images, points in ((batch.images0, xy), (batch.images1, moved), (batch.images1, moved + 2))
    )
    right, wrong = ((here - other).abs().mean(dim=1)[seen].median() for other in (there, beside))
    assert float(right) < 0.03
    assert float(wrong) > 2 * float(right)


def test_nothing_outside_the_photographs_is_valid(root: Path) -> None:
    source = MegaDepth(root, views=VIEWS)
    batch = make(source, (0.5, 1.5))
    axis = torch.arange(VIEWS.size, dtype=torch.float32)
    xy = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(1, -1, 2).expand(len(source), -1, -1)
    for masks, way in ((batch.masks0, batch.warp.forward), (batch.masks1, batch.warp.backward)):
        moved, seen = way(xy)
        assert moved.isfinite().all()
        assert seen.any()
        assert not seen[~masks.flatten(1)].any()
    assert not batch.masks0[:, 0, 0].any()
    assert torch.all(batch.images0[:, :, 0, 0] == 0.5)


def test_depth_is_thinned_to_the_views_not_beyond(root: Path) -> None:
    """A depth map keeps at least the resolution of its view."""
    source = MegaDepth(root, views=Views(size=96, photometric=0.0))
    first, second = source.read(0)
    for photograph, stored in ((first, 320), (second, 334)):
        depth = photograph.camera.depth
        assert depth is not None
        assert max(photograph.image.shape[1:]) == 96
        assert 96 <= max(depth.shape) == math.ceil(stored / 3)
    for photograph in MegaDepth(root, views=Views(size=96, resize="squash")).read(0):
        assert photograph.image.shape == (3, 96, 96)
        assert photograph.camera.depth is not None
        assert min(photograph.camera.depth.shape) >= 96


def test_a_squashed_view_is_the_photograph_resized(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Pillow resizes it, whose bicubic is antialiased too; nothing is cut off, and there are no borders."""
    monkeypatch.setattr(steerers.datasets.views, "SHAKE", 0)
    source = MegaDepth(root, views=SQUASHED)
    batch = make(source, (0.0, math.pi / 2))
    assert batch.masks0.all()
    assert batch.masks1.all()
    for n, pair in enumerate(((0, 1), (0, 2), (1, 2))):
        for side, images in enumerate((batch.images0, batch.images1)):
            with PIL.Image.open(root / f"Undistorted_SfM/0001/images/{pair[side]}.jpg") as stored:
                channels = [PIL.Image.fromarray(channel) for channel in np.moveaxis(np.float32(stored) / 255, 2, 0)]
            resized = [channel.resize((160, 160), PIL.Image.Resampling.BICUBIC) for channel in channels]
            upright = torch.rot90(images[n], -side, (1, 2)).numpy()
            np.testing.assert_allclose(upright, np.clip(resized, 0, 1), atol=0.6 / 255)


# Batches --------------------------------------------------------------------------------------------------------------


def test_the_source_answers_the_protocol(root: Path) -> None:
    source: PairSource = MegaDepth(root, views=VIEWS)
    batch = source.make([source.read(0)], torch.zeros(1), torch.ones(1), [3], CPU)
    assert len(batch) == 1
    assert batch.images0.shape == batch.images1.shape == (1, 3, 160, 160)
    assert batch.images0.dtype == torch.float32
    assert batch.masks0.dtype == torch.bool
    assert batch.anchors is batch.detections is None
    assert batch.angles.tolist() == pytest.approx([2 * math.pi - 1])
    assert source.weights is not None
    assert source.weights.shape == (len(source),)


def test_all_that_is_drawn_follows_from_the_seeds(root: Path) -> None:
    source = MegaDepth(root, views=Views(size=96, photometric=0.7))
    read = [source.read(index) for index in range(3)]
    rotations = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    whole = source.make(read, rotations, rotations, [5, 6, 7], CPU)
    again = source.make(read, rotations, rotations, [5, 6, 7], CPU)
    assert torch.equal(whole.images0, again.images0)
    other = source.make(read, rotations, rotations, [8, 9, 10], CPU)
    assert not torch.equal(whole.images0, other.images0)
    for n in range(3):
        part = source.make(read[n : n + 1], rotations[n : n + 1], rotations[n : n + 1], [5 + n], CPU)
        torch.testing.assert_close(part.images1, whole.images1[n : n + 1], atol=1e-5, rtol=0)
        assert torch.equal(part.masks1, whole.masks1[n : n + 1])


def test_views_are_shaken_by_whole_pixels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MegaDepth(root, views=VIEWS, split="test")
    monkeypatch.setattr(steerers.datasets.views, "SHAKE", 0)
    fixed = make(source).warp
    monkeypatch.setattr(steerers.datasets.views, "SHAKE", 5)
    shifts = []
    for seed in range(12):
        shaken = make(source, seed=seed).warp
        assert isinstance(shaken, ViewWarp)
        assert isinstance(fixed, ViewWarp)
        change = shaken.from_photos0 @ torch.linalg.inv(fixed.from_photos0)
        torch.testing.assert_close(change[0, :2, :2], torch.eye(2, dtype=torch.float64))
        shifts.append(change[0, :2, 2])
        assert not torch.equal(shaken.from_photos0, shaken.from_photos1)
    drawn = torch.stack(shifts)
    torch.testing.assert_close(drawn, drawn.round(), atol=1e-6, rtol=0)
    assert 2 < float(drawn.abs().max()) < 5.1


# Which pairs ----------------------------------------------------------------------------------------------------------


def test_the_source_holds_the_pairs_that_overlap(root: Path, copy: Path) -> None:
    path = root / "prep_scene_info" / "0001.npy"
    values = np.load(path, allow_pickle=True).item()
    assert 0.05 < values["overlaps"].min() < values["overlaps"].max() < 0.95
    for overlaps, weights in (([0.4, 0.2, 0.005], [2.0**-0.75 + 1, 2.0**-0.75]), ([0.1, 0.1, 0.1], [3**-0.75] * 3)):
        save_scene_info(copy, "0001", values | {"overlaps": np.array(overlaps)})
        assert MegaDepth(copy, views=VIEWS).weights.tolist() == pytest.approx(weights)
    save_scene_info(copy, "0001", values | {"overlaps": np.zeros(3)})
    with pytest.raises(ValueError, match="no pair of 0001 overlaps enough"):
        MegaDepth(copy, views=VIEWS)


def test_splits_of_the_source(root: Path, copy: Path) -> None:
    assert [info.name for info in MegaDepth(root, views=VIEWS).scenes] == ["0001"]
    assert [info.name for info in MegaDepth(root, views=VIEWS, split="test").scenes] == ["0015"]
    (copy / "prep_scene_info" / "0015.npy").unlink()
    with pytest.raises(ValueError, match="has no scene of the split 'test'; it has 0001"):
        MegaDepth(copy, views=VIEWS, split="test")


# What is broken -------------------------------------------------------------------------------------------------------


def test_missing_and_broken_files_are_named(copy: Path) -> None:
    source = MegaDepth(copy, views=VIEWS)
    image = copy / "Undistorted_SfM/0001/images/0.jpg"
    depth = copy / "phoenix/S6/zl548/MegaDepth_v1/0001/dense0/depths/1.h5"
    kept = image.read_bytes(), depth.read_bytes()
    image.write_bytes(kept[0][:2000])
    with pytest.raises(ValueError, match=r"cannot read image .*0.jpg"):
        source.read(0)
    image.unlink()
    with pytest.raises(FileNotFoundError, match=r"no such image: .*0.jpg"):
        source.read(0)
    image.write_bytes(kept[0])
    depth.write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match=r"cannot read depth map .*1.h5"):
        source.read(0)
    depth.unlink()
    with pytest.raises(FileNotFoundError, match=r"no such depth map: .*1.h5"):
        source.read(0)


def test_depth_maps_without_the_dataset_or_of_a_wrong_shape_are_named(tmp_path: Path) -> None:
    import h5py

    for name, shape, message in (
        ("colour", (4, 5), "doesn't exist"),
        ("depth", (4, 5, 3), r"its shape is \(4, 5, 3\)"),
    ):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset(name, data=np.ones(shape))
        with pytest.raises(ValueError, match=rf"cannot read depth map .*a.h5: .*{message}"):
            read_depth(tmp_path / "a.h5")


def test_a_small_file_of_a_huge_depth_map_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    """HDF5 leaves out what was not written."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("depth", (10**6, 10**6), np.float32)
    assert (tmp_path / "a.h5").stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"a.h5: its shape is \(1000000, 1000000\), more than the 100,000,000 values"):
        read_depth(tmp_path / "a.h5")


# Points of the reconstructions ----------------------------------------------------------------------------------------

PAIRS = ((0, 1), (0, 2), (1, 2))


@pytest.fixture(scope="module")
def points(root: Path) -> Array:
    """What the photographs of scene 0001 see; written for the detector's sake."""
    return write_detections(root, "0001", SCENES["0001"], cameras("0001"))


@pytest.mark.parametrize("views", [VIEWS, SQUASHED], ids=["letterbox", "squash"])
@pytest.mark.parametrize(
    "rotations", [(0.0, 0.0), (math.pi / 2, math.pi), (0.7, -2.1)], ids=["upright", "quarters", "any"]
)
def test_points_lie_in_the_views_where_the_geometry_says(
    root: Path, points: Array, rotations: tuple[float, float], views: Views
) -> None:
    batch = make(MegaDepth(root, views=views, detections=True), rotations)
    assert isinstance(batch.warp, ViewWarp)
    assert batch.detections is not None
    maps = (batch.warp.from_photos0, batch.warp.from_photos1)
    for side, found in enumerate(batch.detections):
        assert found.shape[::2] == (3, 2)
        assert found.dtype == torch.float32
        for n, pair in enumerate(PAIRS):
            camera = cameras("0001")[pair[side]]
            seen = points[visible(SCENES["0001"], camera, points, slack=1e-5)]
            assert len(seen) > 60
            np.testing.assert_allclose(
                found[n, : len(seen)], view_pixels(project(camera, seen)[0], maps[side][n], camera, views), atol=1e-3
            )
            assert found[n, len(seen) :].isnan().all()


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize("rotations", [(0.0, math.pi / 2), (0.7, -2.1)], ids=["quarter", "any"])
def test_depth_is_known_where_the_photographs_see_something(root: Path, rotations: tuple[float, float]) -> None:
    batch = make(MegaDepth(root, views=VIEWS, detections=True), rotations)
    assert isinstance(batch.warp, ViewWarp)
    assert batch.known is not None
    axis = torch.arange(VIEWS.size, dtype=torch.float64)
    grid, sky = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(-1, 2), 0
    for known, masks, maps, side in zip(
        batch.known,
        (batch.masks0, batch.masks1),
        (batch.warp.from_photos0, batch.warp.from_photos1),
        (0, 1),
        strict=True,
    ):
        assert not (known & ~masks).any()
        for n, pair in enumerate(PAIRS):
            camera = cameras("0001")[pair[side]]
            xy = stored_pixels(grid, maps[n], camera)
            steps = [np.add(xy, (4 * x, 4 * y)) for x in (-1, 0, 1) for y in (-1, 0, 1)]
            seen = np.stack([cast(SCENES["0001"], camera, step)[1] >= 0 for step in steps])
            inside = masks[n].flatten().numpy()
            found = known[n].flatten().numpy()
            assert found[inside & seen.all(axis=0)].all()
            assert not found[inside & ~seen.any(axis=0)].any()
            sky += int((inside & ~seen.any(axis=0)).sum())
    assert sky > 1000


def test_points_that_both_views_show_are_where_the_warp_takes_them(root: Path, points: Array) -> None:
    """Half a pixel of COLMAP's would show here."""
    batch = make(MegaDepth(root, views=VIEWS, detections=True), (1.0, 2.0))
    assert batch.detections is not None
    moved, seen = batch.warp.forward(batch.detections[0])
    for n, pair in enumerate(PAIRS):
        first, second = (np.flatnonzero(visible(SCENES["0001"], cameras("0001")[k], points, slack=1e-5)) for k in pair)
        _, i, j = np.intersect1d(first, second, return_indices=True)
        errors = (moved[n, i] - batch.detections[1][n, j]).norm(dim=1)[seen[n, i]]
        assert len(errors) > 30
        assert float(errors.median()) < 0.05


@pytest.mark.usefixtures("points")
def test_points_are_read_only_if_they_are_wanted(copy: Path) -> None:
    shutil.rmtree(copy / "prep_scene_info" / "detections")
    source = MegaDepth(copy, views=VIEWS)
    assert make(source).detections is make(source).known is None
    assert source.read(0)[0].detections is None
    with pytest.raises(ValueError, match=r"1 of 1 scenes have no points .*detections_0001.npy; .*prep_keypoints.py"):
        MegaDepth(copy, views=VIEWS, detections=True)


@pytest.mark.usefixtures("points")
def test_a_photograph_may_have_no_points(copy: Path) -> None:
    change(copy, lambda values: values.update({1: np.zeros(0), 2: np.zeros((0, 3))}))
    batch = make(MegaDepth(copy, views=VIEWS, detections=True))
    assert batch.detections is not None
    assert batch.detections[0].isnan().flatten(1).all(dim=1).tolist() == [True, True, True]
    assert batch.detections[1].isnan().flatten(1).all(dim=1).tolist() == [True, False, False]


def change(root: Path, how: Callable[[dict[int, Any]], Any]) -> Path:
    path = detections_path(root, "0001")
    values = np.load(path, allow_pickle=True).item()
    how(values)
    np.save(path, values, allow_pickle=True)
    return path


@pytest.mark.usefixtures("points")
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
        MegaDepth(copy, views=VIEWS, detections=True)
    assert str(path) in str(caught.value)
    assert list(read_detections(path, [1, 3])) == [1, 3]  # the others are good
