"""Roto-360 on generated scenes whose right answer is known, and the scenes that the tool makes itself."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from benchmarks.dots import DOTS, PHOTOGRAPH, Stub, dots, draw, make_run, table_rows
from steerers.benchmarks import report, roto
from steerers.benchmarks.metrics import apply
from steerers.benchmarks.predict import ViewSettings
from steerers.benchmarks.roto import ROTO_360, list_pairs, make_data
from steerers.geometry import rotation_about_centre

SIZE = (160, 160)
ANGLES = (0, 30, 140, 250)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes of dots, each drawn where a rotation takes it."""
    folder = tmp_path_factory.mktemp("roto360")
    for scene, offset in (("v_one", 20), ("v_two", 16)):
        (folder / scene).mkdir()
        points = dots() + np.array([0, offset])
        for angle in ANGLES:
            H = rotation_about_centre(SIZE, math.radians(angle), expand=False)[0].numpy()
            draw(apply(H, points), folder / scene / f"1_rot{angle}.png", marked=angle > 0, size=SIZE)
            np.savetxt(folder / scene / f"1_rot{angle}.txt", H)
    return folder


def precision(stub: Stub, data: Path, **options: object) -> dict[str, float]:
    evaluation = ROTO_360.run([make_run(stub)], list_pairs(data), **options)  # type: ignore[arg-type]
    (row,) = table_rows(ROTO_360, evaluation)
    assert row["num_pairs"] == 2 * (len(ANGLES) - 1)
    found: dict[str, float] = row["precision"]
    return found


# Scores ---------------------------------------------------------------------------------------------------------------


def test_a_perfect_matcher_scores_100(data: Path) -> None:
    evaluation = ROTO_360.run([make_run()], list_pairs(data))
    (row,) = table_rows(ROTO_360, evaluation)
    assert row["precision"] == {"3": 1.0, "5": 1.0, "10": 1.0}
    assert row["num_matches"] == row["num_keypoints"] == DOTS
    assert row["num_failed"] == 0
    assert row["angle_error_median"] < 0.1
    assert [outcome.angle for outcome in evaluation.rows[0].outcomes] == [30, 140, 250] * 2


def test_a_shuffled_matcher_scores_0(data: Path) -> None:
    assert precision(Stub(shuffle=True), data) == {"3": 0.0, "5": 0.0, "10": 0.0}


@pytest.mark.parametrize("shift", [2.0, 4.0, 8.0, 12.0])
def test_a_shifted_matcher_scores_what_the_threshold_says(data: Path, shift: float) -> None:
    assert precision(Stub(shift), data) == {key: float(shift <= float(key)) for key in ("3", "5", "10")}


def test_pixels_are_those_of_the_stored_image(data: Path) -> None:
    """At half the size a shift of 2 pixels is one of 4."""
    assert precision(Stub(2.0), data, views=ViewSettings(max_size=80)) == {"3": 0.0, "5": 1.0, "10": 1.0}


def test_a_pair_without_matches_counts_as_0(data: Path) -> None:
    (row,) = table_rows(ROTO_360, ROTO_360.run([make_run(Stub(blind=True))], list_pairs(data)))
    assert row["num_failed"] == row["num_pairs"]
    assert row["precision"] == {"3": 0.0, "5": 0.0, "10": 0.0}


def test_kept_matches_are_used(data: Path, tmp_path: Path) -> None:
    stub = Stub()
    for _ in range(2):
        ROTO_360.run([make_run(stub)], list_pairs(data), cache=tmp_path)
    assert stub._calls == 2 * len(ANGLES)
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 2 * (len(ANGLES) - 1)


# Reports --------------------------------------------------------------------------------------------------------------


def test_report(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = ROTO_360.run([make_run()], list_pairs(data))
    paper = {"": [{"descriptor": "RELF", "precision": {"3": 0.9, "5": 0.91, "10": 0.93}}]}
    monkeypatch.setattr(report, "_paper", lambda: json.dumps({"roto-360": paper}))
    whole = ROTO_360.make_report([evaluation], {}, views=ViewSettings(3000), paper=True)
    text = whole.to_markdown()
    assert "### Roto-360\n" in text
    assert "| stub | procrustes | 100.0 | 100.0 | 100.0 | 12 | 12 | 0.0° | 0 of 6 |" in text
    assert "| RELF (paper) | - | 90.0 | 91.0 | 93.0 | - | - |" in text
    assert "Roto-360-like" not in text
    row = whole.to_json()["tables"][0]["rows"][0]
    assert list(row["by_angle"]) == ["30", "140", "250"]
    assert set(row["by_sequence"]) == {"v_one", "v_two"}
    whole.write(tmp_path)
    assert (tmp_path / "precision-by-angle.png").stat().st_size > 1000


def test_the_report_of_made_data_says_so(data: Path) -> None:
    text = ROTO_360.make_report([ROTO_360.run([make_run()], list_pairs(data))], {}, options=roto.LIKE).to_markdown()
    assert "### Roto-360-like\n" in text
    assert "not comparable with published numbers" in text


# Reading --------------------------------------------------------------------------------------------------------------


def copy_scene(data: Path, to: Path) -> Path:
    to.mkdir()
    for path in (data / "v_one").iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_missing_data_says_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*missing; get the Roto-360 zip .*RELF.* SCENE/1_rot0\.jpg"):
        list_pairs(tmp_path / "missing")
    with pytest.raises(ValueError, match="holds no Roto-360 scenes; get the Roto-360 zip"):
        list_pairs(tmp_path)


def test_scenes_are_chosen_by_name_or_by_the_list(data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        copy_scene(data, tmp_path / name)
    assert {pair.sequence for pair in list_pairs(tmp_path)} == {"a", "b"}
    assert {pair.sequence for pair in list_pairs(tmp_path, ["b"])} == {"b"}
    with pytest.raises(ValueError, match="has no scene 'c'; it has a, b"):
        list_pairs(tmp_path, ["c"])
    (tmp_path / "splits.json").write_text(json.dumps({"debug": {"test": ["a"]}}))
    assert {pair.sequence for pair in list_pairs(tmp_path)} == {"a"}
    (tmp_path / "splits.json").write_text("{}")
    with pytest.raises(ValueError, match=r"splits\.json: not RELF's list"):
        list_pairs(tmp_path)


def test_broken_scenes_are_refused(data: Path, tmp_path: Path) -> None:
    scene = copy_scene(data, tmp_path / "a")
    (scene / "1_rot30.txt").unlink()
    with pytest.raises(ValueError, match=r"scene .*a has no 1_rot30\.txt"):
        list_pairs(tmp_path)
    (scene / "1_rot30.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1_rot30\.jpg and 1_rot30\.png; keep one"):
        list_pairs(tmp_path)
    for path in scene.iterdir():
        if "rot0" not in path.name:
            path.unlink()
    with pytest.raises(ValueError, match="has no rotated images"):
        list_pairs(tmp_path)


# Making ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    image = PIL.Image.open(PHOTOGRAPH).convert("RGB").resize((120, 90), PIL.Image.Resampling.LANCZOS)
    image.save(folder / "b.png")
    image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "a.png")
    image.save(folder / "c.webp", lossless=True)
    (folder / "notes.txt").write_text("no picture")
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(PIL.Image.open(path).convert("L"), np.float64)


def test_made_scenes_are_rotated_as_their_homographies_say(photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert make_data(photographs, folder, scenes=2) == ["01_a", "02_b"]
    assert roto.is_made(folder)
    marker = json.loads((folder / roto.MARKER).read_text())
    assert marker["dataset"] == "Roto-360-like"
    assert {name: scene["image"] for name, scene in marker["scenes"].items()} == {"01_a": "a.png", "02_b": "b.png"}
    pairs = list_pairs(folder)
    assert [pair.angle for pair in pairs] == [*range(10, 360, 10)] * 2
    for pair in pairs[35:]:
        first, second = pixels(pair.image0), pixels(pair.image1)
        assert first.shape == second.shape == (90, 120)
        ys, xs = np.mgrid[30:61, 45:76]  # in the middle, which every rotation keeps in view
        points = apply(pair.homography, np.stack([xs.ravel(), ys.ravel()], axis=1))
        near = np.rint(points).astype(int)
        off = np.abs(points - near).max(axis=1) < 0.1  # where no neighbour has a say
        expected, found = first[ys.ravel(), xs.ravel()][off], second[near[:, 1], near[:, 0]][off]
        assert off.sum() > 5
        assert np.corrcoef(expected, found)[0, 1] > 0.97
        if pair.angle in (90, 180, 270):
            np.testing.assert_allclose(found.mean(), expected.mean(), atol=1.0)
    half = next(pair for pair in pairs[35:] if pair.angle == 180)
    assert np.abs(pixels(half.image1) - pixels(half.image0)[::-1, ::-1]).mean() < 2
    quarter = next(pair for pair in pairs[35:] if pair.angle == 90)
    rotated = np.rot90(pixels(quarter.image0)[:, 15:105])  # counter-clockwise; what stays on the canvas
    assert np.abs(pixels(quarter.image1)[:, 15:105] - rotated).mean() < 3
    assert pixels(quarter.image1)[:, :10].max() < 30  # uncovered: black, but for what JPEG makes of it


def test_photographs_are_shrunk_first(photographs: Path, tmp_path: Path) -> None:
    make_data(photographs, tmp_path / "made", scenes=1, max_size=60)
    assert PIL.Image.open(tmp_path / "made" / "01_a" / "1_rot40.jpg").size == (60, 45)


def test_photographs_in_folders_below_count(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    shutil.copytree(photographs, tmp_path / "above" / "below")
    assert make_data(tmp_path / "above", tmp_path / "made", scenes=1, max_size=40) == ["01_a"]


def test_what_cannot_be_made(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds 3 photographs, not 10; ask for fewer by --scenes"):
        make_data(photographs, tmp_path / "made")
    with pytest.raises(ValueError, match=r"there is no folder .*no-such; give --make a folder of photographs"):
        make_data(tmp_path / "no-such", tmp_path / "made", scenes=1)
    with pytest.raises(ValueError, match="it is there and not empty"):
        make_data(photographs, photographs, scenes=1)
    with pytest.raises(ValueError, match="there is no folder"):
        make_data(photographs, tmp_path / "no" / "such", scenes=1)
    (tmp_path / "empty").mkdir()
    make_data(photographs, tmp_path / "empty", scenes=1)
    assert (tmp_path / "empty" / "01_a" / "1_rot350.txt").is_file()


def test_data_is_made_whole_or_not_at_all(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savetxt", lambda *_, **__: fail())
    with pytest.raises(OSError, match="no space left"):
        make_data(photographs, tmp_path / "made", scenes=1)
    assert list(tmp_path.iterdir()) == []
