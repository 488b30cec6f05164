"""The homography benchmarks on generated sequences whose right answer is known; kept predictions; rotations."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.dots import DOTS, SIZE, Stub, dots, draw, make_run
from steerers import Matches
from steerers.benchmarks import homographies, protocol, report
from steerers.benchmarks.homographies import LAYOUTS, Estimator, HomographyPair, evaluate, list_pairs, summarise
from steerers.benchmarks.metrics import apply
from steerers.benchmarks.protocol import ROTATIONS, Pair, Prediction, Rotation, Settings, hash_pairs, rotate_pairs
from steerers.benchmarks.runs import Run, load_runs, share_extractors
from steerers.features import Keypoints
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
    table = evaluate(runs, pairs, rotation, **options)  # type: ignore[arg-type]
    return [summarise(row.outcomes) for row in table.rows]


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


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_keypoints_rotation_back_onto_the_truth(tilted: Path, rotation: Rotation) -> None:
    """Every mode, a true perspective map with a rotation of its own, at a size at which images are shrunk."""
    pairs = list_pairs(LAYOUTS["hpatches"], tilted)
    table = evaluate([make_run()], pairs, rotation, settings=Settings(max_size=120))
    (row,) = table.rows
    for pair, prediction, outcome in zip(table.pairs, row.predictions.pairs, row.outcomes, strict=True):
        assert (prediction.size0, prediction.stored0) == ((120, 90), SIZE)
        matches = prediction.matches
        assert len(matches) == DOTS
        points0 = (dots() + 0.5) * 0.75 - 0.5
        points1 = (apply(pair.homography, dots()) + 0.5) * 0.75 - 0.5
        np.testing.assert_allclose(apply(homographies.true_homography(pair, prediction), points0), points1, atol=1e-9)
        np.testing.assert_allclose(matches.keypoints0, points0[matches.indices[:, 0]], atol=0.1)
        np.testing.assert_allclose(matches.keypoints1, points1[matches.indices[:, 1]], atol=0.1)
        assert outcome.precision == outcome.repeatability == 1.0
        assert outcome.corner_error < 1.0
        assert outcome.angle_error is not None
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
    table = evaluate([make_run(Stub(blind=True))], list_pairs(LAYOUTS["oxford"], data), "fixed")
    row = summarise(table.rows[0].outcomes)
    assert row["num_failed"] == row["num_pairs"] == COUNT
    assert list(row["auc"].values()) == [0.0, 0.0, 0.0]
    assert row["precision"] == row["num_matches"] == row["repeatability"] == row["num_angles"] == 0
    assert row["angle_error_median"] is None
    made = homographies.make_report("oxford", [table], Settings(), Estimator(), {})
    written = made.to_json()
    assert written["tables"][0]["rows"][0]["pairs"][0]["corner_error"] is None
    json.dumps(written, allow_nan=False)
    assert f"| {COUNT} of {COUNT} |" in made.to_markdown()


def test_the_sign_of_the_angle(data: Path) -> None:
    table = evaluate([make_run()], list_pairs(LAYOUTS["oxford"], data), "quarter")
    first = [outcome for outcome in table.rows[0].outcomes if outcome.name == "seq 1-2"]  # a mere shift
    assert [outcome.rotation1 for outcome in first] == [90, 180, 270]
    assert [outcome.angle % 360 for outcome in first] == pytest.approx([90, 180, 270], abs=0.01)  # type: ignore[operator]
    second = [outcome for outcome in table.rows[0].outcomes if outcome.name == "seq 1-3"]  # rotated by 180 itself
    assert [outcome.angle % 360 for outcome in second] == pytest.approx([270, 0, 90], abs=0.01)  # type: ignore[operator]


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


def test_tta_of_jointly_rotated_images(data: Path) -> None:
    stub = Stub()
    (row,) = summary([make_run(stub, "tta", order=4)], list_pairs(LAYOUTS["oxford"], data), "joint")
    assert row["precision"] == 1.0
    assert row["auc"]["3"] > 0.999
    assert stub._calls == 3 * 4 + 3 * COUNT  # what the first image gives is kept for its other pairs


def test_equal_extractors_become_one() -> None:
    runs = share_extractors([make_run(Stub(), label="a"), make_run(Stub(), label="b"), make_run(Stub(1.0))])
    extractors = [run.pipeline.model.extractor for run in runs]
    assert extractors[0] is extractors[1]
    assert extractors[0] is not extractors[2]
    assert [run.pipeline.model.name for run in runs] == ["a", "b", "stub"]


def test_load_runs_reads_specs_and_shares_networks() -> None:
    specs = ["upright-sift", "upright-sift:tta:8", "upright-sift:max-similarity", "sift"]
    runs = load_runs(specs, num_keypoints=50)
    assert [run.label for run in runs] == specs
    assert [run.pipeline.strategy_name for run in runs] == ["max-matches", "tta", "max-similarity", "dual-softmax"]
    assert [run.pipeline.tta for run in runs] == [None, 8, None, None]
    assert len({id(run.pipeline.model.extractor) for run in runs}) == 2


def test_load_runs_combines_detectors_and_models() -> None:
    (run,) = load_runs(["upright-sift@sift:tta"], num_keypoints=50)
    names = [type(part).__name__ for part in run.pipeline.model.extractor.children()]
    assert names == ["Sift", "UprightSift"]
    with pytest.raises(ValueError, match=r"disk\.pth is none of the weights of the models sift, orb"):
        load_runs(["sift", "orb"], num_keypoints=50, weights=["disk.pth"])


def test_load_runs_reads_options() -> None:
    specs = ["sift:mutual-nearest?ratio=0.85", "sift?threshold=0.3&inverse_temperature=15", "sift:mutual-nearest"]
    nearest, softmax, plain = (run.pipeline.strategy for run in load_runs(specs, num_keypoints=50))
    assert (nearest.ratio, nearest.threshold) == (0.85, -1.0)  # type: ignore[attr-defined]
    assert (plain.ratio, plain.threshold) == (None, -1.0)  # type: ignore[attr-defined]
    assert (softmax.name, softmax.options.threshold, softmax.options.inverse_temperature) == ("dual-softmax", 0.3, 15.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sift?", r"write MODEL\[@DETECTOR\]"),
        ("sift?ratio", "'ratio' is none of the options"),
        ("sift?device=1", "'device=1' is none of the options inverse_temperature=, threshold=, ratio=, "),
        ("sift?threshold=high", "threshold must be a number, got 'high'"),
        ("upright-sift:subset?seed=1.5", "seed must be a whole number, got '1.5'"),
        ("sift?ratio=0.8", "strategy 'dual-softmax' has no option 'ratio'"),
        ("sift:mutual-nearest?ratio=2", "ratio must be above 0 and at most 1, got 2.0"),
        ("sift:mutual-nearest:4", "has no option 'order'"),
    ],
)
def test_wrong_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_runs([spec], num_keypoints=50)


@pytest.mark.parametrize(
    "spec", ["", ":tta", "sift@", "sift@orb@orb", "sift:", "sift:tta:x", "sift:tta:4:4", "no-such", "sift:no-such"]
)
def test_wrong_specs_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|unknown"):
        load_runs([spec], num_keypoints=50)


def test_two_runs_of_one_label_are_refused(data: Path) -> None:
    pairs = list_pairs(LAYOUTS["oxford"], data)
    with pytest.raises(ValueError, match="'stub' is named twice"):
        evaluate([make_run(), make_run()], pairs)
    with pytest.raises(ValueError, match="runs must not be empty"):
        evaluate([], pairs)
    with pytest.raises(ValueError, match="pairs must not be empty"):
        evaluate([make_run()], [])


# Kept predictions -----------------------------------------------------------------------------------------------------


def assert_same(first: Prediction, second: Prediction) -> None:
    for field in Prediction.__dataclass_fields__:
        if field != "matches":
            assert getattr(first, field) == getattr(second, field), field
    for field in Matches.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(first.matches, field), getattr(second.matches, field))


def test_kept_predictions_serve_another_estimator(data: Path, tmp_path: Path) -> None:
    pairs, cache = list_pairs(LAYOUTS["oxford"], data), tmp_path / "cache"
    stub = Stub(2.0)
    runs = [make_run(stub, label="a:b/c"), make_run(Stub(blind=True), "dual-softmax", "blind")]
    made = {"device": "here"}
    first = evaluate(runs, pairs, "fixed", cache=cache, made=made)
    calls = stub._calls
    again = evaluate(runs, pairs, "fixed", cache=cache, estimator=Estimator(threshold=0.5), made={"device": "there"})
    assert stub._calls == calls
    assert again.rows[0].predictions.made == made
    for before, after in zip(first.rows, again.rows, strict=True):
        for one, other in zip(before.predictions.pairs, after.predictions.pairs, strict=True):
            assert_same(one, other)
    assert sorted(path.suffix for path in cache.iterdir()) == [".h5", ".h5"]


@pytest.mark.parametrize(
    "change",
    [
        {"rotation": "upright"},
        {"settings": Settings(max_size=100)},
        {"settings": Settings(mask_corners=True)},
        {"runs": [make_run(strategy="max-matches", order=4)]},
        {"runs": [make_run(threshold=0.2)]},
        {"runs": [make_run(num_keypoints=8)]},
        {"runs": [make_run(Stub(0.5))]},
        {"sequence": "other"},
    ],
)
def test_another_configuration_is_computed_anew(data: Path, tmp_path: Path, change: dict) -> None:
    pairs = list_pairs(LAYOUTS["oxford"], data)[:1]
    options = {"runs": [make_run()], "rotation": "fixed", "settings": Settings()}
    evaluate(pairs=pairs, cache=tmp_path, **options)  # type: ignore[arg-type]
    if change.pop("sequence", None):
        pairs = [replace(pair, name="other 1-2") for pair in pairs]
    evaluate(pairs=pairs, cache=tmp_path, **{**options, **change})  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 2


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def flip_a_byte_of_the_scores(path: Path) -> None:
    with h5py.File(path) as file:
        offset = file["scores"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset] ^= 255
    path.write_bytes(bytes(content))


def drop_the_scores(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["scores"]


def drop_a_match(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        fewer = file["scores"][:-1]
        del file["scores"]
        file["scores"] = fewer


def forget_the_config(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["config"]


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [truncate, flip_a_byte_of_the_scores, drop_the_scores, drop_a_match, forget_the_config, empty]
)
def test_a_damaged_file_of_predictions_is_named(data: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    pairs = list_pairs(LAYOUTS["oxford"], data)
    evaluate([make_run()], pairs, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    damage(kept)
    with pytest.raises(ValueError, match=rf"{kept.name}: not a file of predictions.*delete it"):
        evaluate([make_run()], pairs, cache=tmp_path)


def test_predictions_of_another_configuration_are_refused(data: Path, tmp_path: Path) -> None:
    evaluate([make_run()], list_pairs(LAYOUTS["oxford"], data), cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    with h5py.File(kept, "r+") as file:
        config = json.loads(file.attrs["config"])
        file.attrs["config"] = json.dumps({**config, "num_keypoints": 7})
    with pytest.raises(ValueError, match=rf"{kept.name}: predictions of another configuration"):
        evaluate([make_run()], list_pairs(LAYOUTS["oxford"], data), cache=tmp_path)


def test_a_file_is_kept_whole_or_not_at_all(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(OSError, match="no space left"):
        evaluate([make_run()], list_pairs(LAYOUTS["oxford"], data), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Rotations and masks --------------------------------------------------------------------------------------------------


def test_the_rotations_of_every_mode() -> None:
    pairs = [Pair(str(k), "s", Path("a"), Path("b")) for k in range(8)]
    rotations = {
        rotation: [(p.rotation0, p.rotation1) for p in rotate_pairs(pairs, rotation)] for rotation in ROTATIONS
    }
    assert rotations["upright"] == [(0, 0)] * 8
    assert rotations["fixed"] == [(0, t) for t in (40, 90, 140, 190, 240, 290, 340, 30)]
    assert rotations["quarter"] == [(0, 90), (0, 180), (0, 270)] * 8
    assert rotations["joint"] == [(90, 90), (180, 180), (270, 270)] * 8
    assert rotations["c4"] == [(0, t) for t in (0, 90, 180, 270, 0, 90, 180, 270)]
    assert rotations["so2"] == [(0, t) for t in (0, 10, 20, 30, 40, 50, 60, 70)]
    assert rotate_pairs(pairs * 5, "so2")[37].rotation1 == 10
    assert rotations["all"] == [(0, t) for t in range(0, 360, 10)] * 8
    with pytest.raises(ValueError, match="unknown rotation 'no-such'; use one of upright, fixed"):
        rotate_pairs(pairs, "no-such")  # type: ignore[arg-type]


@pytest.mark.parametrize(("rotation", "masked"), [(0, False), (90, False), (40, True)])
def test_masked_corners(data: Path, rotation: int, masked: bool) -> None:
    @dataclass
    class Seen:
        mask: Tensor | None = None

    seen = Seen()

    class Looking(Stub):
        def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
            seen.mask = mask
            return super().detect(image, num_keypoints=num_keypoints)

    pairs = [replace(pair, rotation1=rotation) for pair in list_pairs(LAYOUTS["oxford"], data)[:1]]
    protocol.predict([make_run(Looking())], pairs)
    assert seen.mask is None
    protocol.predict([make_run(Looking())], pairs, Settings(mask_corners=True))
    assert (seen.mask is not None) == masked
    if seen.mask is not None:
        assert not bool(seen.mask[0, 0])
        assert float(seen.mask.sum()) == pytest.approx(SIZE[0] * SIZE[1], rel=0.03)


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
    tables = [evaluate([make_run()], pairs, rotation, made=made) for rotation in ("upright", "quarter")]  # type: ignore[arg-type]
    whole = homographies.make_report("oxford", tables, Settings(), Estimator(seed=3), made)
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
    assert "### quarter: second image rotated by 90, 180 and 270 degrees" in text
    assert "| stub | procrustes | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 | 12 | 0.0° | 0 of 6 |" in text
    assert "USAC_MAGSAC, 3 px" in text


def test_commit_of_an_installed_package_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.steerers, "__file__", str(tmp_path / "__init__.py"))
    assert report.commit() is None


def test_without_tqdm_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    items = [1, 2]
    assert protocol.progress(items, "counting") is items


def test_the_runner_imports_where_little_is_installed() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('tqdm', 'cv2', 'safetensors', 'poselib', 'h5py')); "
        "from steerers.benchmarks import homographies, metrics, protocol, report, roto, two_view; "
        "print(len(protocol.ROTATIONS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "7", done.stderr
