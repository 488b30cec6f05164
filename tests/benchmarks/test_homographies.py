"""The homography benchmarks on generated sequences whose right answer is known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.dots import DOTS, SIZE, Stub, dots, draw, make_run, table_rows
from steerers.benchmarks import homographies, report
from steerers.benchmarks.homographies import LAYOUTS, OXFORD, HomographyEstimator, HomographyPair, list_pairs
from steerers.benchmarks.metrics import apply
from steerers.benchmarks.offers import ROTATIONS, Rotation
from steerers.benchmarks.predict import ViewSettings, hash_pairs, rotate_pairs
from steerers.benchmarks.runs import Run
from steerers.geometry import rotation_about_centre

COUNT = 2  # pairs of the generated sequence

pytestmark = pytest.mark.usefixtures("one_thread")


# Data -----------------------------------------------------------------------------------------------------------------


def whole_pixels() -> list[np.ndarray]:
    """Homographies that take the dots to centres of pixels: a shift, and a rotation by 180 degrees."""
    half_turn = rotation_about_centre(SIZE, math.pi)[0].numpy()
    return [np.array([[1, 0, 7], [0, 1, -5], [0, 0, 1.0]]), half_turn]


def perspective() -> list[np.ndarray]:
    rotation = rotation_about_centre(SIZE, math.radians(20))[0].numpy()
    tilt = np.array([[1.0, 0.05, 2], [-0.03, 1.05, -4], [2e-4, -3e-4, 1]])
    return [tilt, tilt @ np.array([[1, 0, -12], [0, 1, -20], [0, 0, 1.0]]) @ rotation]


def make_data(folder: Path, layout: str = "oxford", Hs: list[np.ndarray] | None = None, ending: str = ".png") -> Path:
    """A folder with one sequence."""
    looks = LAYOUTS[layout]
    sequence = folder / "seq"
    sequence.mkdir(parents=True)
    draw(dots(), sequence / f"{looks.image.format(k=1)}{ending}", marked=False)
    for k, H in enumerate(whole_pixels() if Hs is None else Hs, start=2):
        draw(apply(H, dots()), sequence / f"{looks.image.format(k=k)}{ending}", marked=True)
        np.savetxt(sequence / f"{looks.homography.format(k=k)}{'.txt' if layout == 'oxford' else ''}", H)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("whole") / "oxford")


@pytest.fixture(scope="module")
def tilted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("tilted") / "hpatches", "hpatches", perspective())


def summary(runs: list[Run], pairs: list[HomographyPair], rotation: Rotation, **options: object) -> list[dict]:
    table = OXFORD.run(runs, pairs, rotation, **options)  # type: ignore[arg-type]
    return table_rows(OXFORD, table)


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", [name for name in ROTATIONS if name != "all"])
def test_a_perfect_matcher_scores_100(data: Path, rotation: Rotation) -> None:
    (row,) = summary([make_run()], list_pairs(LAYOUTS["oxford"], data), rotation)
    assert row["num_pairs"] == COUNT * (3 if rotation in ("quarter", "joint") else 1)
    assert row["num_failed"] == 0
    assert row["precision"] == row["repeatability"] == 1.0
    assert row["num_matches"] == row["num_inliers"] == row["num_keypoints"] == DOTS
    oblique = rotation in ("fixed", "so2")  # bilinear sampling moves centres by some hundredths of a pixel
    assert all(area > (0.95 if oblique else 0.999) for area in row["auc"].values())
    assert row["num_angles"] == row["num_pairs"]
    assert row["angle_error_mean"] < (0.2 if oblique else 0.01)


VIEWS = {
    "fit": ViewSettings(max_size=120),
    "kept": ViewSettings(max_size=120, canvas="keep"),
    "squashed": ViewSettings(max_size=120, resize="squash"),
    "kept, squashed": ViewSettings(max_size=120, resize="squash", canvas="keep"),
}


@pytest.mark.parametrize(
    ("rotation", "views"),
    [*((rotation, "fit") for rotation in ROTATIONS), *(("fixed", name) for name in VIEWS), ("quarter", "kept"),
     *((rotation, "squashed") for rotation in ("upright", "quarter", "so2"))],
)  # fmt: skip
def test_keypoints_are_rotated_back_onto_the_truth(tilted: Path, rotation: Rotation, views: str) -> None:
    """Every mode, a true perspective map with a rotation of its own, at a size at which images are shrunk."""
    pairs = list_pairs(LAYOUTS["hpatches"], tilted)
    table = OXFORD.run([make_run()], pairs, rotation, views=VIEWS[views])
    (row,) = table.rows
    for pair, prediction, outcome in zip(table.pairs, row.predictions.pairs, row.outcomes, strict=True):
        assert (prediction.size0, prediction.stored0) == ((120, 90), SIZE)
        matches = prediction.matches
        assert len(matches) == DOTS
        points0 = (dots() + 0.5) * 0.75 - 0.5
        points1 = (apply(pair.homography, dots()) + 0.5) * 0.75 - 0.5
        np.testing.assert_allclose(apply(homographies.true_homography(pair, prediction), points0), points1, atol=1e-9)
        np.testing.assert_allclose(matches.keypoints0, points0[matches.indices[:, 0]], atol=0.1)
        kept = VIEWS[views].canvas == "grow" or np.hypot(*(points1 - [59.5, 44.5]).T) < 39  # else cut, or nearly so
        found = np.flatnonzero(np.broadcast_to(kept, DOTS)[matches.indices[:, 1]])
        assert len(found) >= 8
        np.testing.assert_allclose(matches.keypoints1[found], points1[matches.indices[found, 1]], atol=0.1)
        assert outcome.corner_error < 1.0 or len(found) < DOTS
        assert outcome.precision == outcome.repeatability == 1.0
        assert outcome.angle_error is not None
        if VIEWS[views].resize == "fit":  # else it is an angle of squashed images
            assert outcome.angle_error < 5.0  # the stub sees the tilted direction, the truth is that at the centre


@pytest.mark.parametrize("rotation", ["upright", "quarter", "joint", "fixed"])
def test_a_shuffled_matcher_scores_0(data: Path, rotation: Rotation) -> None:
    (row,) = summary([make_run(Stub(shuffle=True))], list_pairs(LAYOUTS["oxford"], data), rotation)
    assert row["num_matches"] == DOTS
    assert row["precision"] == 0.0
    assert list(row["auc"].values()) == [0.0, 0.0, 0.0]
    assert row["repeatability"] == 1.0  # the detector is as good as ever


@pytest.mark.parametrize("rotation", ["upright", "quarter", "joint"])
@pytest.mark.parametrize("shift", [2.0, 4.0])
def test_a_shifted_matcher_scores_what_the_threshold_says(data: Path, rotation: Rotation, shift: float) -> None:
    (row,) = summary([make_run(Stub(shift))], list_pairs(LAYOUTS["oxford"], data), rotation)
    assert row["precision"] == (1.0 if shift <= 3 else 0.0)
    assert row["repeatability"] == (1.0 if shift <= 3 else 0.0)
    n = row["num_pairs"]  # the curve climbs to 1 / n on its way to the first error, and to 1 there
    expected = [max(0.0, pixels - shift + shift / (2 * n)) / pixels if shift < pixels else 0.0 for pixels in (3, 5, 10)]
    assert list(row["auc"].values()) == pytest.approx(expected, abs=2e-3)


def test_failures_are_counted(data: Path) -> None:
    table = OXFORD.run([make_run(Stub(blind=True))], list_pairs(LAYOUTS["oxford"], data), "fixed")
    (row,) = table_rows(OXFORD, table)
    assert row["num_failed"] == row["num_pairs"] == COUNT
    assert list(row["auc"].values()) == [0.0, 0.0, 0.0]
    assert row["precision"] == row["num_matches"] == row["repeatability"] == row["num_angles"] == 0
    assert row["angle_error_median"] is None
    made = OXFORD.make_report([table], {})
    written = made.to_json()
    assert written["tables"][0]["rows"][0]["pairs"][0]["corner_error"] is None
    json.dumps(written, allow_nan=False)
    assert f"| {COUNT} of {COUNT} |" in made.to_markdown()


def test_the_sign_of_the_angle(data: Path) -> None:
    table = OXFORD.run([make_run()], list_pairs(LAYOUTS["oxford"], data), "quarter")
    pairs = table_rows(OXFORD, table)[0]["pairs"]
    first = [pair for pair in pairs if pair["name"] == "seq 1-2"]  # a mere shift
    assert [pair["rotation1"] for pair in first] == [90, 180, 270]
    assert [pair["angle"] % 360 for pair in first] == pytest.approx([90, 180, 270], abs=0.01)
    second = [pair for pair in pairs if pair["name"] == "seq 1-3"]  # rotated by 180 itself
    assert [pair["angle"] % 360 for pair in second] == pytest.approx([270, 0, 90], abs=0.01)


# Work done once -------------------------------------------------------------------------------------------------------


def test_features_are_shared_by_runs_of_one_extractor(data: Path) -> None:
    stub = Stub()
    runs = [
        make_run(stub, "procrustes", "a"),
        make_run(stub, "max-matches", "b", order=4),
        make_run(stub, "tta", "c", order=4),
        make_run(stub, "dual-softmax", "d"),
    ]
    rows = summary(runs, list_pairs(LAYOUTS["oxford"], data), "quarter")
    # the first image upright and at three rotations for tta, each other one at three rotations
    assert stub._calls == 4 + 3 * COUNT
    assert [row["extractions_per_pair"] for row in rows] == [2, 2, 5, 2]
    assert [row["precision"] for row in rows[:3]] == [1.0, 1.0, 1.0]
    assert rows[2]["angle_error_mean"] == pytest.approx(0, abs=0.01)
    assert rows[3]["precision"] < 0.5  # descriptions that rotate with the image, matched as if they did not


def test_two_runs_of_one_label_are_refused(data: Path) -> None:
    pairs = list_pairs(LAYOUTS["oxford"], data)
    with pytest.raises(ValueError, match="'stub' is named twice"):
        OXFORD.run([make_run(), make_run()], pairs)
    with pytest.raises(ValueError, match="runs must not be empty"):
        OXFORD.run([], pairs)
    with pytest.raises(ValueError, match="pairs must not be empty"):
        OXFORD.run([make_run()], [])


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".png", ".ppm", ".webp", ".jpg"])
@pytest.mark.parametrize("layout", ["oxford", "hpatches"])
def test_both_layouts_are_read(tmp_path: Path, layout: str, ending: str) -> None:
    pairs = list_pairs(LAYOUTS[layout], make_data(tmp_path / "data", layout, perspective(), ending))
    assert [(pair.name, pair.sequence) for pair in pairs] == [("seq 1-2", "seq"), ("seq 1-3", "seq")]
    assert all(pair.image0.suffix == ending for pair in pairs)
    for pair, H in zip(pairs, perspective(), strict=True):
        np.testing.assert_allclose(pair.homography, H)


def test_the_hash_of_pairs_knows_rotations_and_truth_but_not_the_folder(tmp_path: Path) -> None:
    first, second = (
        list_pairs(LAYOUTS["oxford"], make_data(tmp_path / name, ending=ending))
        for name, ending in (("a", ".png"), ("b", ".ppm"))
    )
    assert hash_pairs(first) == hash_pairs(second)
    assert hash_pairs(first) != hash_pairs(rotate_pairs(first, "fixed"))
    assert hash_pairs(first) != hash_pairs([replace(pair, homography=2 * pair.homography) for pair in first])


def test_missing_data_says_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*missing; get .*robots\.ox\.ac\.uk.* SEQUENCE/img1\.ppm.*H1to2p"):
        list_pairs(LAYOUTS["oxford"], tmp_path / "missing")
    with pytest.raises(
        ValueError, match=r"holds no hpatches sequences; get hpatches-sequences-release.*SEQUENCE/H_1_2"
    ):
        list_pairs(LAYOUTS["hpatches"], tmp_path)


def test_near_misses_are_recognised(tmp_path: Path) -> None:
    folder = make_data(tmp_path / "data", "hpatches")
    with pytest.raises(ValueError, match="looks like hpatches: try `steerers eval hpatches`"):
        list_pairs(LAYOUTS["oxford"], folder)
    with pytest.raises(ValueError, match=r"it is one: give the folder above it, .*data"):
        list_pairs(LAYOUTS["hpatches"], folder / "seq")
    with pytest.raises(ValueError, match="has no sequence 'no-such'; it has seq"):
        list_pairs(LAYOUTS["hpatches"], folder, ["no-such"])


def test_sequences_are_chosen_by_name(tmp_path: Path) -> None:
    folder = make_data(tmp_path / "data", "hpatches")
    (folder / "seq").rename(folder / "i_dc")
    make_data(tmp_path / "more", "hpatches")
    (tmp_path / "more" / "seq").rename(folder / "v_wall")
    layout = LAYOUTS["hpatches"]
    assert {pair.sequence for pair in list_pairs(layout, folder)} == {"i_dc", "v_wall"}
    assert {pair.sequence for pair in list_pairs(layout, folder, ["i_dc"])} == {"i_dc"}
    assert {pair.sequence for pair in list_pairs(layout, folder, skip=homographies.HPATCHES_LARGE)} == {"v_wall"}


def test_broken_sequences_are_refused(tmp_path: Path) -> None:
    folder = make_data(tmp_path / "data")
    sequence = folder / "seq"
    draw(dots(), sequence / "img3.ppm", marked=True)
    with pytest.raises(ValueError, match=r"img3\.png and img3\.ppm; keep one"):
        list_pairs(LAYOUTS["oxford"], folder)
    (sequence / "img3.ppm").unlink()
    (sequence / "img3.png").unlink()
    with pytest.raises(ValueError, match="has no img3"):
        list_pairs(LAYOUTS["oxford"], folder)
    (sequence / "H1to3p.txt").unlink()
    assert len(list_pairs(LAYOUTS["oxford"], folder)) == 1
    (sequence / "H1to2p.txt").unlink()
    with pytest.raises(ValueError, match="has no H1to2p"):
        list_pairs(LAYOUTS["oxford"], folder)
    (sequence / "img2.png").unlink()
    with pytest.raises(ValueError, match="no image 2"):
        list_pairs(LAYOUTS["oxford"], folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 0 0 1 0 0 0", "nine finite numbers, got 8"),
        ("1 0 0 0 1 0 0 0 nan", "nine finite numbers"),
        ("1 0 0 1 0 0 0 0 1", "singular"),
        ("one 0 0 0 1 0 0 0 1", "not a text file of numbers"),
    ],
)
def test_broken_homographies_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "H1to2p"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"H1to2p: .*{message}"):
        homographies.read_homography(path)


# Reports --------------------------------------------------------------------------------------------------------------


def test_report_holds_what_a_reader_needs(data: Path) -> None:
    pairs = list_pairs(LAYOUTS["oxford"], data)
    made = report.environment(torch.device("cpu"))
    tables = [OXFORD.run([make_run()], pairs, rotation, made=made) for rotation in ("upright", "quarter")]  # type: ignore[arg-type]
    whole = OXFORD.make_report(tables, made, options=HomographyEstimator(seed=3))
    written = json.loads(json.dumps(whole.to_json(), allow_nan=False))
    assert written["settings"]["estimator"]["seed"] == 3
    assert written["settings"]["num_keypoints"] == [100]
    assert written["settings"]["corners"] == "black, not masked"
    assert set(written["environment"]) >= {"steerers", "commit", "python", "torch", "numpy", "opencv", "device"}
    quarter = written["tables"][1]
    assert quarter["pairs_sha256"] == hash_pairs(tables[1].pairs)
    assert list(quarter["rows"][0]["by_rotation"]) == ["90", "180", "270"]
    assert quarter["rows"][0]["by_sequence"]["seq"]["num_pairs"] == 3 * COUNT
    text = whole.to_markdown()
    assert "### quarter: second image rotated by 90, 180 and 270 degrees, on a canvas that holds it whole\n" in text
    assert "| stub | procrustes | grow | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 | 12 | 12 | 0.0° | 0 of 6 |" in text
    assert "USAC_MAGSAC, 3 px" in text


def test_the_runner_imports_where_little_is_installed() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('tqdm', 'cv2', 'safetensors', 'poselib', 'h5py')); "
        "from steerers.benchmarks import homographies, metrics, offers, predict, report, roto, two_view; "
        "print(len(offers.ROTATIONS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "7", done.stderr
