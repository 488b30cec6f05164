"""Reconstructions side by side: the scenes, how they are rotated, what is measured, what is kept, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest

from collection.photographs import save_blank, save_taken
from collection.scenes import make_scene
from helpers import EXAMPLES, assert_refused, run_command
from steerers.benchmarks.reconstruction import (
    ReconstructionSettings,
    Scene,
    TrueCamera,
    _cameras,
    _task,
    camera_errors,
    list_scenes,
    quarter_turns,
    read_truth,
    rotate_photographs,
    rotate_truth,
    timed,
)
from steerers.images.exif import read_taken

pycolmap = pytest.importorskip("pycolmap")
pytestmark = pytest.mark.usefixtures("one_thread")

VILLAGE = [f"village_{index}.jpg" for index in range(4)]
CHEAP = ("--num-keypoints", "500", "--max-size", "400", "--no-report")


# Scenes ---------------------------------------------------------------------------------------------------------------


def test_scenes_of_a_folder(tmp_path: Path) -> None:
    for name in ("b/1.png", "b/0.png", "a/0.png", "a/more/é 1.png", "empty/deep/0.png"):
        save_blank(tmp_path / name)
    assert [(scene.name, scene.photos) for scene in list_scenes(tmp_path)] == [
        ("a", ("0.png", "more/é 1.png")), ("b", ("0.png", "1.png")),
    ]  # fmt: skip
    assert [scene.name for scene in list_scenes(tmp_path, ["b"])] == ["b"]
    assert [scene.name for scene in list_scenes(tmp_path / "a")] == ["a"]
    with pytest.raises(ValueError, match="has no scene 'c'; it has a, b"):
        list_scenes(tmp_path, ["a", "c"])


def test_other_photographs_have_a_folder_of_their_own(tmp_path: Path) -> None:
    for index in range(2):
        save_blank(tmp_path / f"photos/{index}.png", (8 + index, 6))
    settings = ReconstructionSettings(500, 400)
    before = _task(tmp_path, Scene.of(tmp_path / "photos"), "upright", {}, settings).folder
    assert _task(tmp_path, Scene.of(tmp_path / "photos"), "upright", {}, settings).folder == before
    save_blank(tmp_path / "photos/0.png", (20, 10))
    assert _task(tmp_path, Scene.of(tmp_path / "photos"), "upright", {}, settings).folder != before


def test_scenes_that_are_links_keep_their_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_blank(tmp_path / f"real/{name}/images/0.png")
        save_blank(tmp_path / f"real/{name}/images/1.png")
        (tmp_path / "scenes").mkdir(exist_ok=True)
        (tmp_path / "scenes" / name).symlink_to(tmp_path / f"real/{name}/images")
    assert [scene.name for scene in list_scenes(tmp_path / "scenes")] == ["a", "b"]


def test_turns_follow_from_seed_and_name() -> None:
    names = [f"{index}.jpg" for index in range(40)]
    turns = [quarter_turns(name, 0) for name in names]
    assert set(turns) == {0, 1, 2, 3}
    assert turns == [quarter_turns(name, 0) for name in names]
    assert turns != [quarter_turns(name, 1) for name in names]


def test_photographs_are_rotated_without_loss_and_exif(tmp_path: Path) -> None:
    names = [f"{index}.png" for index in range(8)]
    for index, name in enumerate(names):
        save_taken(tmp_path / "photos" / name, (48.0, 2.0), size=(8, 6 + index))
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / "photos/0.png")
    rotate_photographs(Scene.of(tmp_path / "photos"), tmp_path / "out", 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{name}.png" for name in names]
    turned = np.asarray(PIL.Image.open(tmp_path / "out/0.png.png"))
    assert np.array_equal(turned, np.rot90(pixels, quarter_turns("0.png", 0)))
    for index, name in enumerate(names):
        taken = read_taken(tmp_path / "out" / f"{name}.png")
        assert taken.position is None
        assert taken.size == ((8, 6 + index) if quarter_turns(name, 0) % 2 == 0 else (6 + index, 8))
    (tmp_path / "out/0.png.png").write_bytes(b"")
    rotate_photographs(Scene.of(tmp_path / "photos"), tmp_path / "out", 0)
    assert (tmp_path / "out/0.png.png").read_bytes() == b""  # it stays


# Measuring ------------------------------------------------------------------------------------------------------------


def test_cameras_turn_with_their_photographs() -> None:
    """A point is seen where the rotated picture has it."""
    camera = TrueCamera(np.eye(3), np.zeros(3))
    width, height, focal, point = 81, 61, 50.0, np.array([0.3, -0.1, 1.0])
    for name in (f"{index}.jpg" for index in range(12)):
        turned = rotate_truth({name: camera}, 0)[f"{name}.png"]
        quarters = quarter_turns(name, 0)
        picture = np.zeros((height, width))
        x, y = focal * point[:2] + ((width - 1) / 2, (height - 1) / 2)
        picture[round(y), round(x)] = 1
        rotated = np.rot90(picture, quarters)
        there = turned.R @ point
        x, y = focal * there[:2] / there[2] + ((rotated.shape[1] - 1) / 2, (rotated.shape[0] - 1) / 2)
        assert rotated[round(y), round(x)] == 1


def fake_model(names: list[str], rotations: list[np.ndarray], centres: list[np.ndarray]) -> Any:
    """What is asked of a ``pycolmap.Reconstruction``."""

    def image(name: str, R: np.ndarray, centre: np.ndarray) -> SimpleNamespace:
        pose = SimpleNamespace(rotation=SimpleNamespace(matrix=lambda: R))
        return SimpleNamespace(name=name, cam_from_world=lambda: pose, projection_center=lambda: centre)

    images = dict(enumerate(map(image, names, rotations, centres)))
    return SimpleNamespace(images=images, reg_image_ids=lambda: list(images))


def test_errors_of_cameras() -> None:
    poses = make_scene(6).poses  # (6, 3, 4)
    names = [f"{index}.jpg" for index in range(6)]
    truth = {
        name: TrueCamera(pose[:, :3], -pose[:, :3].T @ pose[:, 3]) for name, pose in zip(names, poses, strict=True)
    }
    R = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    rotations = [camera.R @ R for camera in truth.values()]  # a model that lies elsewhere, half as large
    centres = [R.T @ (camera.centre - (1.0, 2.0, 3.0)) / 2 for camera in truth.values()]
    found = camera_errors(fake_model(names, rotations, centres), truth)
    assert found["centres"]["most"] < 1e-9
    assert found["rotation"] < 1e-4
    tilt = np.array([[np.cos(0.1), -np.sin(0.1), 0], [np.sin(0.1), np.cos(0.1), 0], [0, 0, 1]])
    found = camera_errors(fake_model(names, [tilt @ R for R in rotations], centres), truth)
    assert found["rotation"] == pytest.approx(np.degrees(0.1))
    assert camera_errors(fake_model(names[:2], rotations, centres), truth) == {}
    assert camera_errors(fake_model([f"other {name}" for name in names], rotations, centres), truth) == {}


def test_truth_of_another_kind_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    assert read_truth(Scene.of(EXAMPLES / "village")) == {}
    assert "is no list of cameras" in caplog.text


def test_cameras_that_colmap_shares(tmp_path: Path) -> None:
    for index, size in enumerate([(8, 6), (6, 8), (8, 6)]):
        save_blank(tmp_path / f"{index}.png", size)
    assert list(_cameras(tmp_path, "auto")) == [(["0.png", "1.png", "2.png"], "AUTO")]
    assert list(_cameras(tmp_path, "each")) == [(["0.png", "1.png", "2.png"], "PER_IMAGE")]
    assert list(_cameras(tmp_path, "one")) == [(["0.png", "2.png"], "SINGLE"), (["1.png"], "SINGLE")]


def test_seconds_of_what_was_interrupted_are_not_known(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    with pytest.raises(ZeroDivisionError):
        timed(record, lambda: 1 / 0)
    assert timed(record, lambda: "done") == ("done", None)
    found, seconds = timed(tmp_path / "other.json", lambda: "done")
    assert found == "done"
    assert seconds is not None
    (tmp_path / "other.json").write_text('{"seconds": 12.5}')
    assert timed(tmp_path / "other.json", lambda: "again") == ("again", 12.5)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def village(tmp_path: Path) -> Path:
    """A folder of one scene: four views of the village at half their size, with their cameras."""
    truth = json.loads((EXAMPLES / "village/cameras.json").read_text(encoding="utf-8"))
    folder = tmp_path / "scenes/village"
    folder.mkdir(parents=True)
    entries = []
    for camera in truth["cameras"][: len(VILLAGE)]:
        picture = PIL.Image.open(EXAMPLES / "village" / camera["name"]).reduce(2)
        picture.save(folder / camera["name"], quality=95)
        R, focal, (width, height) = np.array(camera["R"]), truth["focal"] / 2, picture.size
        K = [[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]]
        t = -R @ np.array(camera["centre"])
        entries.append({"name": camera["name"], "K": K, "R": R.tolist(), "t": t.tolist()})
    (folder / "cameras.json").write_text(json.dumps(entries))
    return folder.parent


def test_the_command(village: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["eval", "reconstruction", "--data", village, "--rotation", "quarter-random", "--cameras", "one", *CHEAP]
    told += ["--work", tmp_path / "work", "--json", tmp_path / "a.json"]
    code, out, _ = run_command(*told)
    assert code == 0
    (table,) = json.loads((tmp_path / "a.json").read_text())["tables"]
    rows = {row["label"]: row for row in table["rows"]}
    assert list(rows) == ["compact", "compact?refine=1", "colmap-sift"]
    assert out.count("| village |") == 3
    for row in rows.values():
        assert (row["registered"], row["registered_in_all"], row["photographs"]) == (4, 4, 4)
        assert row["centres"]["median"] <= row["centres"]["most"] < 1.5  # metres, from 87 away
        assert row["rotation"] < 5  # degrees: a turn the wrong way would be 90
        assert row["seconds"] > 0
        assert 2 <= row["seen"] <= min(4, row["track"])
    assert rows["compact?refine=1"]["error"] < 0.6 * rows["compact"]["error"]
    assert rows["compact"]["contradicted"] == 0
    assert "contradicted" not in rows["colmap-sift"]
    for name in ("reconstruct_ours", "reconstruct_sift", "rotate_photographs"):
        monkeypatch.setattr(f"steerers.benchmarks.reconstruction.{name}", None)
    assert run_command(*told)[:2] == (0, out)  # rows are kept
    with pytest.raises(TypeError):  # another seed is something else
        run_command(*told, "--seed", "1")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["eval", "reconstruction", *CHEAP, "--data"]
    assert_refused([*told, tmp_path / "none"], "there is no folder")
    (tmp_path / "photos").mkdir()
    assert_refused([*told, tmp_path / "photos"], "holds no photographs, nor folders of them")
    save_blank(tmp_path / "photos/0.png")
    assert_refused([*told, tmp_path / "photos"], "holds one photograph, and a reconstruction takes two at least")
    save_blank(tmp_path / "photos/1.png")
    ready = [*told, tmp_path / "photos"]
    assert_refused([*ready, "--models", "colmap-sift,nothing"], "nothing")
    assert_refused([*ready, "--models", "colmap-sift,colmap-sift"], "is named twice")
    assert_refused([*ready, "--models", "upright-sift:tta:4"], "one description of every photograph")
    assert_refused([*ready, "--rotation", "fixed"], "unknown rotation 'fixed'")
    assert_refused([*ready, "--rotation", "upright,upright"], "named twice")
    assert_refused([*ready, "--work", tmp_path / "photos/work"], "lies among the photographs")
    assert_refused([*ready, "--scenes", "other"], "has no scene 'other'")
    (tmp_path / "photos/cameras.json").write_text("[{}]")
    assert_refused([*ready], "it has no name")
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert_refused([*ready], 'pip install "steerers[colmap]"')
    assert not (tmp_path / "photos/work").exists()


def test_photographs_of_nothing(tmp_path: Path) -> None:
    for index in range(2):
        save_blank(tmp_path / f"photos/{index}.png", (160, 120))
    told = ["eval", "reconstruction", "--data", tmp_path / "photos", "--models", "upright-sift,colmap-sift", *CHEAP]
    code, _, _ = run_command(*told, "--json", tmp_path / "a.json")
    assert code == 0
    (table,) = json.loads((tmp_path / "a.json").read_text())["tables"]
    assert [(row["registered"], row["photographs"]) for row in table["rows"]] == [(0, 2), (0, 2)]
