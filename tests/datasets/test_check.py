"""Reconstructions of a rendered scene, whole and damaged: what a check of them counts and finds."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from datasets.workspaces import NAMES, write_scene
from steerers.datasets.check import check_data
from steerers.datasets.colmap import Colmap
from steerers.datasets.photos import find_photos
from steerers.datasets.reconstruction import TRACKS, Reconstruction, covisible
from steerers.datasets.views import Views

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def source(root: Path) -> Colmap:
    return Colmap(root, views=Views(size=160))


def found(root: Path, *, quick: bool = False) -> list[str]:
    return [f"{problem.kind}: {problem.what}" for problem in check_data(root, quick=quick).problems]


def test_nothing_is_wrong_with_what_is_right(root: Path, tmp_path: Path) -> None:
    assert found(root) == []
    assert found(write_scene(tmp_path, "text", depths=True)) == []


def test_what_is_missing_or_broken_is_listed(tmp_path: Path) -> None:
    write_scene(tmp_path, depths=True)
    images, depths = tmp_path / "images", tmp_path / "stereo" / "depth_maps"
    (images / NAMES[0]).unlink()
    (images / NAMES[1]).write_bytes(b"no picture")
    PIL.Image.new("RGB", (32, 64)).save(images / NAMES[2])
    (depths / f"{NAMES[0]}.geometric.bin").unlink()
    (depths / f"{NAMES[2]}.geometric.bin").write_bytes(b"240&180&1&1234")
    (depths / f"{NAMES[3]}.geometric.bin").write_bytes(b"text")
    unreadable = f"depth map that cannot be read: {depths}"
    expected = [
        f"missing image: {images / NAMES[0]}",
        f"missing depth map: {depths / NAMES[0]}.geometric.bin",
        f"image that cannot be decoded: {images / NAMES[1]}: it is not an image, or damaged",
        f"image of another aspect: {images / NAMES[2]}: 32 x 64 pixels, which is not the aspect of its camera's",
        f"{unreadable}/{NAMES[2]}.geometric.bin: a damaged depth map",
        f"{unreadable}/{NAMES[3]}.geometric.bin: not a depth map",
    ]
    problems = found(tmp_path)
    for line, part in zip(problems, expected, strict=True):
        assert line.startswith(part)


def test_reconstructions_are_counted_and_the_quick_check_opens_no_photograph(tmp_path: Path, source: Colmap) -> None:
    write_scene(tmp_path, depths=True)
    counted = {"photographs": len(NAMES), "points": len(source.scenes[0].reconstruction.points)}
    assert check_data(tmp_path).counts == {**counted, "pairs": len(source)}
    (tmp_path / "images" / NAMES[0]).write_bytes(b"no picture")
    (tmp_path / "stereo" / "depth_maps" / f"{NAMES[1]}.geometric.bin").write_bytes(b"no depth")
    assert len(found(tmp_path)) == 2
    assert check_data(tmp_path, quick=True).counts == counted
    assert found(tmp_path, quick=True) == []
    (tmp_path / "images" / NAMES[0]).unlink()
    (tmp_path / "stereo" / "depth_maps" / f"{NAMES[1]}.geometric.bin").unlink()
    missing = found(tmp_path, quick=True)
    assert [line.split(":")[0] for line in missing] == ["missing image", "missing depth map"]


def tracks_with(**changes: Any) -> Callable[[Path], None]:
    """Writes the tracks of the scene with other arrays."""

    def write(root: Path) -> None:
        found = Reconstruction.read(root)
        arrays = {field.name: np.asarray(getattr(found, field.name)) for field in fields(found)}
        new = {name: change(arrays[name]) if callable(change) else change for name, change in changes.items()}
        np.savez_compressed(root / TRACKS, **{**arrays, **new})

    return write


def half(name: str) -> Callable[[Path], None]:
    def cut(root: Path) -> None:
        path = root / "sparse" / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


def nan_first(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flat[0] = np.nan
    return array


DAMAGES: dict[str, Callable[[Path], None]] = {
    "half a cameras.bin": half("cameras.bin"),
    "half an images.bin": half("images.bin"),
    "half a points3D.bin": half("points3D.bin"),
    "half a frames.bin": half("frames.bin"),
    "half a rigs.bin": half("rigs.bin"),
    "no archive": lambda root: (root / TRACKS).write_bytes(b"tracks"),
    "negative sizes": tracks_with(sizes=lambda sizes: -sizes),
    "sizes of nothing": tracks_with(sizes=lambda sizes: 0 * sizes),
    "sizes that are no numbers": tracks_with(sizes=lambda sizes: sizes.astype(str)),
    "an empty K": tracks_with(K=np.zeros((0, 3, 3))),
    "K without a focal length": tracks_with(K=lambda K: 0 * K),
    "K of text": tracks_with(K=np.array("K")),
    "K that is not finite": tracks_with(K=nan_first),
    "poses of another shape": tracks_with(poses=lambda poses: poses[:, :, :3]),
    "poses that are no rotations": tracks_with(poses=lambda poses: 2 * poses),
    "points that are not finite": tracks_with(points=nan_first),
    "pixels that are not finite": tracks_with(xy=nan_first),
    "one pixel": tracks_with(xy=np.float32(1)),
    "tracks without points": tracks_with(points=lambda points: points[:5]),
    "negative tracks": tracks_with(tracks=lambda tracks: tracks - 3),
    "tracks in another order": tracks_with(tracks=lambda tracks: tracks[::-1].copy()),
    "starts beyond the end": tracks_with(starts=lambda starts: starts + 5),
    "starts in another order": tracks_with(starts=lambda starts: starts[[0, 2, 1, 3, 4]]),
    "names of another number": tracks_with(names=lambda names: names[:2]),
    "names that are numbers": tracks_with(names=np.arange(4)),
    "names that are objects": tracks_with(names=lambda names: names.astype(object)),
    "distorted that are numbers": tracks_with(distorted=np.ones(4)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_training_would_refuse_is_a_problem(tmp_path: Path, damage: str) -> None:
    """Found by the check in the words of the reader, and no other way."""
    write_scene(tmp_path)
    DAMAGES[damage](tmp_path)
    with pytest.raises(ValueError, match=r"tracks\.npz: |\.bin: a damaged file") as caught:
        Colmap(tmp_path, views=Views(size=160))
    assert found(tmp_path) == found(tmp_path, quick=True) == [f"reconstruction that cannot be used: {caught.value}"]


def test_a_scene_of_too_many_pairs_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path)
    whole = covisible(Reconstruction.read(tmp_path))
    monkeypatch.setattr("steerers.datasets.reconstruction.MAX_PAIRS", len(whole))
    merged = covisible(Reconstruction.read(tmp_path))
    for field in fields(whole):
        np.testing.assert_allclose(getattr(merged, field.name), getattr(whole, field.name), rtol=1e-9)
    monkeypatch.setattr("steerers.datasets.reconstruction.MAX_PAIRS", len(whole) - 1)
    assert found(tmp_path) == [
        f"reconstruction that cannot be used: scene {tmp_path.name}: its tracks join more than 5 pairs of images; "
        "divide it into scenes"
    ]


@pytest.mark.usefixtures("strict_pillow")
def test_large_photographs_are_no_problem(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    assert found(tmp_path) == []
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.png", "a.png")
    assert found(tmp_path / "a.tar") == []


def test_a_tar_that_is_compressed_is_refused_by_both(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    with tarfile.open(tmp_path / "t.tar", "w:gz") as archive:
        archive.add(tmp_path / "a.png", "a.png")
    with pytest.raises(ValueError, match=r"t\.tar: not a tar, or compressed") as caught:
        find_photos(tmp_path / "t.tar")
    assert found(tmp_path / "t.tar") == [f"tar that cannot be read to its end: {caught.value}"]


def test_a_scene_of_which_training_would_take_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path)
    monkeypatch.setattr("steerers.datasets.reconstruction.MIN_SHARED", 10_000)
    report = check_data(tmp_path)
    assert report.counts["pairs"] == 0
    assert "training takes none of its" in report.problems[0].what
