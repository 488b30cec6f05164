"""Pairs with known cameras: cameras.json, and LoFTR's scene files, read without running what is in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from datasets.workspaces import CAMERAS, NAMES, points_of, write_scene
from steerers.benchmarks.predict import hash_pairs, rotate_pairs
from steerers.benchmarks.two_view import MEGADEPTH_SCENES, list_megadepth, list_pairs

K = np.array([[500.0, 0, 320], [0, 510, 240], [0, 0, 1]])


def rotated(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def entry(index: int) -> dict[str, Any]:
    return {"name": f"{index}.jpg", "K": K.tolist(), "R": rotated(10 * index).tolist(), "t": [index, 0.0, 1.0]}


def make_sequence(folder: Path, count: int = 5, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    entries = [entry(index) for index in range(count)]
    for item in entries:
        (folder / item["name"]).write_bytes(b"")
    if entries:
        entries[-1].update(changes)
    (folder / "cameras.json").write_text(json.dumps(entries))
    return folder


# cameras.json ---------------------------------------------------------------------------------------------------------


def test_pairs_of_a_sequence(tmp_path: Path) -> None:
    make_sequence(tmp_path / "castle")
    pairs = list_pairs(tmp_path, (1, 3))
    names = ["0-1", "0-3", "1-2", "1-4", "2-3", "3-4"]
    assert [pair.name for pair in pairs] == [f"castle {name}" for name in names]
    assert {pair.sequence for pair in pairs} == {"castle"}
    X = np.array([0.3, -0.2, 4.0])
    for pair, (i, j) in zip(pairs, (map(int, name.split("-")) for name in names), strict=True):
        first, second = (rotated(10 * index) @ X + [index, 0, 1] for index in (i, j))
        np.testing.assert_allclose(pair.R @ first + pair.t, second, atol=1e-12)
        np.testing.assert_array_equal(pair.K0, K)
    assert len(list_pairs(tmp_path)) == 4 + 3 + 2


def test_sequences_are_chosen_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_sequence(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert list(dict.fromkeys(pair.sequence for pair in list_pairs(tmp_path))) == ["a", "b"]
    assert {pair.sequence for pair in list_pairs(tmp_path, (1,), ["b"])} == {"b"}
    assert {pair.sequence for pair in list_pairs(tmp_path / "a")} == {"a"}  # a sequence itself will do
    with pytest.raises(ValueError, match="has no sequence 'c'; it has a, b"):
        list_pairs(tmp_path, (1,), ["c"])


def test_the_hash_of_pairs_knows_rotations_and_cameras_but_not_the_folder(tmp_path: Path) -> None:
    first, second = (list_pairs(make_sequence(tmp_path / name / "s").parent, (1,)) for name in ("x", "y"))
    assert hash_pairs(first) == hash_pairs(second)
    assert hash_pairs(first) != hash_pairs(rotate_pairs(first, "fixed"))
    other = make_sequence(tmp_path / "z" / "s", K=(2 * K - np.diag([0, 0, 1])).tolist())
    assert hash_pairs(first) != hash_pairs(list_pairs(other.parent, (1,)))


def test_missing_cameras_say_how_the_folder_must_look(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no folder .*no-such; give --data a folder of sequences.*cameras\.json"
    ):
        list_pairs(tmp_path / "no-such")
    with pytest.raises(ValueError, match=r"holds no sequences with a cameras\.json or a COLMAP model; give --data"):
        list_pairs(tmp_path)
    make_sequence(tmp_path / "one", 1)
    with pytest.raises(ValueError, match="has two images that are 1 or 2 apart"):
        list_pairs(tmp_path, (1, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no-such.jpg"}, r"entry 4: there is no image .*no-such\.jpg"),
        ({"name": None}, "entry 4: it has no name"),
        ({"K": [1, 2, 3]}, "entry 4: K must be 3 x 3 finite numbers"),
        ({"K": (-K).tolist()}, r"K must be \[\[fx, 0, cx\]"),
        ({"R": (2 * np.eye(3)).tolist()}, "R must be a rotation"),
        ({"R": np.diag([1, 1, -1]).tolist()}, "R must be a rotation"),
        ({"R": "up"}, "R must be 3 x 3 finite numbers"),
        ({"t": [0, 0, float("nan")]}, "t must be 3 finite numbers"),
        ({"t": None}, "t must be 3 finite numbers"),
    ],
)
def test_broken_cameras_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_sequence(tmp_path / "s", **changes)
    with pytest.raises(ValueError, match=rf"cameras\.json, {message}" if message.startswith("entry") else message):
        list_pairs(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "damaged, or not JSON"), ("[" * 99999, "damaged, or not JSON"), ("{}", "it holds no list")],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    make_sequence(tmp_path / "s")
    (tmp_path / "s" / "cameras.json").write_text(text)
    with pytest.raises(ValueError, match=rf"cameras\.json: {message}"):
        list_pairs(tmp_path)


# COLMAP models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["binary", "text"])
def test_pairs_of_a_colmap_model(tmp_path: Path, kind: str) -> None:
    """Against the cameras that the scene was rendered with, where the points of the scene say what they should be."""
    write_scene(tmp_path / "street", kind)
    pairs = list_pairs(tmp_path, (1,))
    assert [pair.name for pair in pairs] == ["street 0-1", "street 1-2", "street 2-3"]
    assert [pair.image0 for pair in pairs] == [tmp_path / "street" / "images" / name for name in NAMES[:-1]]
    assert list_pairs(tmp_path / "street", (1,))[0].name == "street 0-1"  # alone, without its folder sparse/
    X = points_of()[:20]
    for n, pair in enumerate(pairs):
        first, second = (X @ camera.R.T + camera.t for camera in CAMERAS[n : n + 2])
        np.testing.assert_allclose(first @ pair.R.T + pair.t, second, atol=1e-9)
        np.testing.assert_allclose(pair.K0, CAMERAS[n].K, atol=1e-9)
        np.testing.assert_allclose(pair.K1, CAMERAS[n + 1].K, atol=1e-9)


def test_images_may_be_smaller_than_a_colmap_model_says(tmp_path: Path) -> None:
    home = write_scene(tmp_path / "street")
    path = home / "images" / NAMES[0]
    with PIL.Image.open(path) as image:
        half = image.resize((image.width // 2, image.height // 2))
    half.save(path)
    found = list_pairs(home, (1,))[0].K0
    x, y = 33.5, 21.5  # the edges of a pixel at half the size are those of four at full size
    ray = np.linalg.solve(CAMERAS[0].K, [2 * x + 0.5, 2 * y + 0.5, 1])
    np.testing.assert_allclose(found @ ray, [x, y, 1], atol=1e-9)
    half.resize((64, 64)).save(path)
    with pytest.raises(ValueError, match=r"0\.png: 64 x 64 pixels, which is not the aspect of its camera's"):
        list_pairs(home)
    path.unlink()
    with pytest.raises(ValueError, match=r"street: there is no image .*0\.png"):
        list_pairs(home)


def test_colmap_models_with_distortion_are_refused(tmp_path: Path) -> None:
    write_scene(tmp_path / "street", distortion=0.1)
    with pytest.raises(ValueError, match=r"street: poses of pairs need pinhole cameras, but 4 of the model have lens"):
        list_pairs(tmp_path)


# MegaDepth-1500 -------------------------------------------------------------------------------------------------------


def objects(*items: Any) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def scene(number: str, **changes: Any) -> dict[str, Any]:
    """What LoFTR's files hold: objects, some of them None, for images that no pair has."""
    poses = []
    for index in range(3):
        pose = np.eye(4, dtype=np.float32)
        pose[:3, :3], pose[:3, 3] = rotated(20 * index), (index, 1, 0)
        poses.append(pose)
    paths = [f"Undistorted_SfM/{number}/images/{index}.jpg" for index in range(3)]
    matches = np.zeros((2, 4), np.float32)
    return {
        "image_paths": objects(*paths, None),
        "depth_paths": objects(*paths, None),
        "intrinsics": objects(*[K.astype(np.float32)] * 3, None),
        "poses": objects(*poses, None),
        "pair_infos": objects(((0, 1), np.float64(0.2), matches), ((np.int64(2), np.int64(1)), 0.3, matches)),
        **changes,
    }


def make_megadepth(folder: Path, index: str = "", **changes: Any) -> Path:
    (folder / index).mkdir(parents=True, exist_ok=True)
    for name in MEGADEPTH_SCENES:
        np.savez(folder / index / f"{name}.npz", **scene(name[:4], **changes))
        images = folder / "Undistorted_SfM" / name[:4] / "images"
        images.mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (images / f"{number}.jpg").write_bytes(b"")
    return folder


@pytest.mark.parametrize("index", ["", "megadepth_test_1500_scene_info"])
def test_scene_files(tmp_path: Path, index: str) -> None:
    folder = make_megadepth(tmp_path / "megadepth", index)
    pairs = list_megadepth(folder)
    assert [pair.name for pair in pairs[:3]] == ["0015_0.1_0.3 0", "0015_0.1_0.3 1", "0015_0.3_0.5 0"]
    assert len(pairs) == 10
    second = pairs[1]
    assert (second.image0.name, second.image1.name) == ("2.jpg", "1.jpg")
    np.testing.assert_allclose(second.R, rotated(-20), atol=1e-6)
    np.testing.assert_allclose(second.t, [1, 1, 0] - rotated(-20) @ [2, 1, 0], atol=1e-6)
    np.testing.assert_allclose(second.K0, K - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])  # COLMAP's pixels to ours
    assert [pair.sequence for pair in list_megadepth(folder, ["0022_0.5_0.7"])] == ["0022_0.5_0.7"] * 2


def test_missing_megadepth_says_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*; get the five scene files from .*zju3dv/LoFTR"):
        list_megadepth(tmp_path / "no-such")
    with pytest.raises(ValueError, match=r"there is no 0015_0\.1_0\.3\.npz in .*; get the five scene files"):
        list_megadepth(tmp_path)
    folder = make_megadepth(tmp_path / "megadepth")
    (folder / "Undistorted_SfM" / "0022" / "images" / "1.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of 6 images are missing, such as .*0022/images/1\.jpg; get "):
        list_megadepth(folder)
    with pytest.raises(ValueError, match=r"no scene file '0015'; it has 0015_0\.1_0\.3"):
        list_megadepth(folder, ["0015"])


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_nothing_in_a_scene_file_is_run(tmp_path: Path) -> None:
    folder = make_megadepth(tmp_path / "megadepth", pair_infos=objects(Bomb(tmp_path / "trace")))
    with pytest.raises(ValueError, match=r"0015_0\.1_0\.3\.npz: a damaged scene file.*\.mkdir, which no array needs"):
        list_megadepth(folder)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair_infos": objects(((0, 3), 0.1, None))}, "intrinsics of image 3 must be 3 x 3"),
        ({"pair_infos": objects(((0, 9), 0.1, None))}, "not a scene file of LoFTR"),
        ({"pair_infos": np.zeros((2, 3))}, "not a scene file of LoFTR"),
        ({"poses": objects(*[2 * np.eye(4)] * 4)}, "R must be a rotation"),
    ],
)
def test_broken_scene_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = make_megadepth(tmp_path / "megadepth", **changes)
    with pytest.raises(ValueError, match=rf"0015_0\.1_0\.3\.npz: .*{message}"):
        list_megadepth(folder)


def test_damaged_scene_files_are_refused(tmp_path: Path) -> None:
    path = make_megadepth(tmp_path / "megadepth") / "0015_0.1_0.3.npz"
    whole = path.read_bytes()
    middle = whole.rindex(b"images/1.jpg", 0, whole.index(b"depth_paths.npy"))  # of what is used
    for content in (b"", whole[:300], whole[:middle] + b"?" + whole[middle + 1 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"0015_0\.1_0\.3\.npz: a damaged scene file, or none"):
            list_megadepth(tmp_path / "megadepth")
