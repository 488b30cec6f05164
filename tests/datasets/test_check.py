"""Reconstructions of a rendered scene, whole and damaged: what a check of them counts and finds."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

from datasets.workspaces import NAMES, write_scene
from steerers.datasets.check import check_data
from steerers.datasets.colmap import Colmap
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


def test_a_scene_of_which_training_would_take_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path)
    monkeypatch.setattr("steerers.datasets.reconstruction.MIN_SHARED", 10_000)
    report = check_data(tmp_path)
    assert report.counts["pairs"] == 0
    assert "training takes none of its" in report.problems[0].what
