"""``steerers data`` as users call it, on data that the tests make and break."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import PIL.Image
import pytest

from datasets.scenes import cameras_around, save_scene_info, street, write_detections, write_megadepth
from datasets.workspaces import write_scene
from helpers import assert_refused
from steerers.cli import main
from steerers.datasets.check import find_layout

IMAGES = "Undistorted_SfM/0001/images"
DEPTHS = "phoenix/S6/zl548/MegaDepth_v1/0001/dense0/depths"


@pytest.fixture(scope="module")
def megadepth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("MegaDepth")
    for name in ("0001", "0015"):
        write_megadepth(root, name, street(), cameras_around(3, size=(80, 60), focal=70))
    return root


@pytest.fixture
def copy(megadepth: Path, tmp_path: Path) -> Path:
    """A MegaDepth to break."""
    shutil.copytree(megadepth, tmp_path / "MegaDepth")
    return tmp_path / "MegaDepth"


def check(*arguments: object) -> int:
    return main(["data", "check", *map(str, arguments)])


def overwrite_depth(path: Path, depth: Any, dataset: str = "depth") -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset(dataset, data=depth)


def describe(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the description of scene 0001."""
    values = np.load(root / "prep_scene_info" / "0001.npy", allow_pickle=True).item()
    change(values)
    save_scene_info(root, "0001", values)


# MegaDepth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--quick"], ["--scenes", "0015"]])
def test_good_data_is_well(megadepth: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert check(megadepth, *options) == 0
    out = capsys.readouterr().out
    scenes = 1 if "--scenes" in options else 2
    assert f"MegaDepth in {megadepth}: {scenes} scenes, {3 * scenes} photographs with depth, {3 * scenes} pairs" in out
    assert out.endswith("all is well\n")


def unlink_image(root: Path) -> None:
    (root / IMAGES / "1.jpg").unlink()


def cut_image(root: Path) -> None:
    path = root / IMAGES / "1.jpg"
    path.write_bytes(path.read_bytes()[:1500])


def unlink_depth(root: Path) -> None:
    (root / DEPTHS / "2.h5").unlink()


def ruin_depth(root: Path) -> None:
    (root / DEPTHS / "2.h5").write_bytes(b"no HDF5")


BREAKAGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "missing image": (unlink_image, "missing image: 1", f"{IMAGES}/1.jpg"),
    "cut image": (cut_image, "image that cannot be decoded: 1", f"{IMAGES}/1.jpg: "),
    "missing depth": (unlink_depth, "missing depth map: 1", f"{DEPTHS}/2.h5"),
    "ruined depth": (ruin_depth, "depth map that cannot be read: 1", f"{DEPTHS}/2.h5: "),
    "no dataset": (
        lambda root: overwrite_depth(root / DEPTHS / "0.h5", np.ones((60, 80)), "other"),
        "depth map that cannot be read: 1",
        f"{DEPTHS}/0.h5: ",
    ),
    "empty depth": (
        lambda root: overwrite_depth(root / DEPTHS / "0.h5", np.zeros((60, 80))),
        "depth map without a depth: 1",
        f"{DEPTHS}/0.h5",
    ),
    "ordinal depth": (
        lambda root: overwrite_depth(root / DEPTHS / "0.h5", np.where(np.eye(60, 80) > 0, -1.0, 1.0)),
        "depth map with negative or undefined values: 1",
        f"{DEPTHS}/0.h5",
    ),
    "size of depth": (
        lambda root: overwrite_depth(root / DEPTHS / "0.h5", np.ones((30, 40))),
        "depth map of another size: 1",
        f"{DEPTHS}/0.h5: 40 x 30, image 80 x 60",
    ),
    "cut description": (
        lambda root: (root / "prep_scene_info/0001.npy").write_bytes(b"no array"),
        "scene description that cannot be used: 1",
        "0001.npy: a damaged scene description",
    ),
    "missing key": (
        lambda root: describe(root, lambda values: values.pop("poses")),
        "scene description that cannot be used: 1",
        "0001.npy: it has no poses; it has image_paths",
    ),
    "mirrored pose": (
        lambda root: describe(root, lambda values: values["poses"].__setitem__(2, np.diag([1, 1, -1, 1]))),
        "pose that is no rotation and translation: 1",
        f"{IMAGES}/1.jpg",
    ),
    "stretched pose": (
        lambda root: describe(root, lambda values: values["poses"].__setitem__(2, np.diag([1.1, 1.1, 1.1, 1]))),
        "pose that is no rotation and translation: 1",
        f"{IMAGES}/1.jpg",
    ),
    "intrinsics": (
        lambda root: describe(root, lambda values: values["intrinsics"].__setitem__(1, np.full((3, 3), np.nan))),
        "intrinsics that are not finite, or without focal length: 1",
        f"{IMAGES}/0.jpg",
    ),
    "intrinsics of another size": (
        lambda root: describe(
            root,
            lambda values: values["intrinsics"].__setitem__(1, np.array([[700, 0, 400], [0, 700, 300], [0, 0, 1]])),
        ),
        "intrinsics that do not fit the image: 1",
        f"{IMAGES}/0.jpg: principal point (400.0, 300.0), image 80 x 60",
    ),
    "pair out of range": (
        lambda root: describe(root, lambda values: values["pairs"].__setitem__((1, 1), 4)),
        "pair out of range: 1",
        "pair 1: (1, 4) of 4 photographs",
    ),
    "pair of nothing": (
        lambda root: describe(root, lambda values: values["pairs"].__setitem__((1, 0), 0)),
        "pair of a photograph without paths: 1",
        "pair 1: (0, 3) of 4 photographs",
    ),
    "pair with itself": (
        lambda root: describe(root, lambda values: values["pairs"].__setitem__(1, [2, 2])),
        "pair of a photograph with itself: 1",
        "pair 1: (2, 2)",
    ),
    "overlap": (
        lambda root: describe(root, lambda values: values["overlaps"].__setitem__(2, np.nan)),
        "overlap that is not finite: 1",
        "pair 2",
    ),
    "no pairs": (
        lambda root: describe(root, lambda values: values.update(pairs=np.zeros((0, 2)), overlaps=np.zeros(0))),
        "scene without pairs: 1",
        "0001",
    ),
    "path": (
        lambda root: describe(root, lambda values: values["depth_paths"].__setitem__(1, None)),
        "photograph without one of its paths: 1",
        f"{IMAGES}/0.jpg",
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_each_breakage_is_told_exactly(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, kind, what = BREAKAGES[name]
    damage(copy)
    assert check(copy) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == ""
    assert f"  {kind}" in lines
    told = lines[lines.index(f"  {kind}") + 1]
    assert what in told
    assert "scene 0015" not in captured.out
    if name not in ("pair of nothing", "path"):  # which come as two problems
        assert "scene 0001: 1 problem" in lines
        assert lines[-1] == "1 problem in all"


def test_the_quick_check_opens_no_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_image(copy)
    ruin_depth(copy)
    assert check(copy, "--quick") == 0
    (copy / IMAGES / "2.jpg").write_bytes(b"")
    unlink_image(copy)
    unlink_depth(copy)
    capsys.readouterr()
    assert check(copy, "--quick") == 1
    out = capsys.readouterr().out
    for line in ("missing image: 1", "empty file of image: 1", "missing depth map: 1", "3 problems in all"):
        assert line in out


def test_only_the_first_are_listed_unless_all_are_wanted(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / IMAGES)
    assert check(copy, "--first", 1) == 1
    out = capsys.readouterr().out
    assert out.count(f"    {IMAGES}") == 1
    assert "    and 2 more (--all lists them)" in out
    assert check(copy, "--first", 1, "--all") == 1
    out = capsys.readouterr().out
    assert out.count(f"    {IMAGES}") == 3
    assert "more" not in out


def test_missing_descriptions_are_a_problem(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "prep_scene_info")
    assert check(copy) == 1
    assert "missing scene descriptions: 1" in capsys.readouterr().out


def test_what_is_worth_knowing_is_noted(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "prep_scene_info" / "0015.npy").unlink()
    assert check(copy) == 0
    out = capsys.readouterr().out
    assert "note: none of the test scenes 0015, 0022 is here" in out
    assert "note: depth maps of 1 more scenes have no description" in out


def test_points_of_the_reconstructions_are_optional(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(copy) == 0
    where = Path("prep_scene_info/detections/detections_0001.npy")
    out = capsys.readouterr().out
    assert f"note: 2 of 2 scenes have no points of their reconstructions, such as {copy / where}; DeDoDe's" in out
    assert "data_prep/prep_keypoints.py" in out
    assert "; they are optional, for keypoints.prior 'sfm' alone" in out
    for name in ("0001", "0015"):
        write_detections(copy, name, street(), cameras_around(3, size=(80, 60), focal=70))
    assert check(copy) == 0
    assert "optional" not in capsys.readouterr().out
    (copy / where).write_bytes((copy / where).read_bytes()[:200])
    assert check(copy, "--quick") == 0
    capsys.readouterr()
    assert check(copy) == 1
    out = capsys.readouterr().out
    assert "scene 0001: 1 problem\n  points of the reconstruction that cannot be used: 1\n" in out
    assert "detections_0001.npy: a damaged file of detections" in out


# Other layouts --------------------------------------------------------------------------------------------------------


def write_photographs(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    for name in ("a.png", "deep/b.jpg"):
        PIL.Image.new("RGB", (32, 24), "teal").save(folder / name)


def test_photographs_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photographs(tmp_path)
    assert check(tmp_path) == 0
    assert f"folder of photographs in {tmp_path}: 2 photographs\nall is well" in capsys.readouterr().out
    (tmp_path / "deep" / "c.jpg").write_bytes(b"no image")
    assert check(tmp_path, "--quick") == 0
    capsys.readouterr()
    assert check(tmp_path) == 1
    assert "  image that cannot be decoded: 1\n    deep/c.jpg: it is not an image" in capsys.readouterr().out
    (tmp_path / "deep" / "c.jpg").write_bytes(b"")
    assert check(tmp_path, "--quick") == 1


def test_photographs_in_a_tar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photographs(tmp_path / "photos")
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path / "photos", "photos")
    assert check(path) == 0
    assert "tar of photographs" in capsys.readouterr().out
    whole = path.read_bytes()
    with tarfile.open(path, "a") as archive:
        for name, data in (("c.jpg", b"no image"), ("d.png", (tmp_path / "photos/a.png").read_bytes()[:60])):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert check(path) == 1
    out = capsys.readouterr().out
    assert "4 photographs" in out
    assert "  image that cannot be decoded: 2\n    c.jpg" in out
    path.write_bytes(whole[:1200])
    assert check(path) == 1
    assert "tar that cannot be read to its end: 1" in capsys.readouterr().out


def test_reconstructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scene(tmp_path)
    (tmp_path / "images").rename(tmp_path / "photos")
    assert check(tmp_path, "--quick") == 1
    assert "  missing image: 4\n" in capsys.readouterr().out
    assert check(tmp_path, "--images", tmp_path / "photos") == 0
    counted = rf"COLMAP reconstruction in {tmp_path}: 4 photographs, \d+ points, \d+ pairs\nall is well\n"
    assert re.fullmatch(counted, capsys.readouterr().out)
    for name in ("images.bin", "points3D.bin"):
        (tmp_path / "sparse" / name).unlink()
    assert check(tmp_path) == 1
    out = capsys.readouterr().out
    assert "COLMAP reconstruction" in out
    assert "no reconstruction: neither a COLMAP model" in out


def test_layouts_are_told_apart(megadepth: Path, tmp_path: Path) -> None:
    assert find_layout(megadepth) == "MegaDepth"
    (tmp_path / "phoenix").mkdir()
    assert find_layout(tmp_path) == "MegaDepth"
    (tmp_path / "a" / "scene" / "sparse").mkdir(parents=True)
    (tmp_path / "a" / "scene" / "sparse" / "points3D.bin").write_bytes(b"")
    assert find_layout(tmp_path / "a") == find_layout(tmp_path / "a" / "scene") == "COLMAP reconstruction"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such"], "there is no no-such"),
        (["empty"], "no images in empty"),
        (["notes.txt"], "notes.txt is a file, but neither a tar of photographs nor"),
        (["empty.tar"], "no images in empty.tar"),
        (["photos", "--scenes", "0001"], "scenes are named for MegaDepth, but photos is a folder of photographs"),
        (["photos", "--depths", "d"], "folders of images and depths are named for COLMAP reconstructions"),
        (["MegaDepth", "--scenes", "0001, 0777"], "has no scene 0777"),
        (["photos", "--first", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    write_photographs(tmp_path / "photos")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert copy.name == "MegaDepth"
    assert_refused(["data", "check", *arguments], message)


# Depth maps -----------------------------------------------------------------------------------------------------------


def test_depth_maps_are_made_and_then_training_data_is_dense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scene(tmp_path / "scene")
    small = ["--size", "64", "--planes", "16", "--views", "2"]
    assert main(["data", "depth", str(tmp_path), *small]) == 0
    said = capsys.readouterr().out
    assert re.search(r"scene: 4 depth maps in .*depth_maps, \d+% of the pixels have a depth", said)
    assert len(list((tmp_path / "scene" / "stereo" / "depth_maps").rglob("*.geometric.bin"))) == 4
    assert check(tmp_path) == 0


def test_depth_maps_that_cannot_be_made(tmp_path: Path) -> None:
    assert_refused(["data", "depth", tmp_path], "no reconstruction")
    write_scene(tmp_path / "bent", distortion=0.01)
    assert_refused(["data", "depth", tmp_path], "lens distortion; use the folder that COLMAP's image_undistorter")
    assert_refused(["data", "depth", tmp_path, "--planes", "2"], "planes must be at least 3, got 2")
    assert_refused(["data", "depth", tmp_path, "--device", "abacus"], "abacus")
