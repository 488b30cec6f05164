"""``steerers eval`` of homographies, rotated photographs and poses as users call it, on data made from a photograph."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from helpers import EXAMPLES, assert_refused, run_command
from steerers._choices import DEFAULT_MODEL
from steerers.benchmarks.offers import OFFERS
from steerers.cli import main
from steerers.cli.eval import benchmarks
from steerers.geometry import rotation_about_centre, warp_image
from steerers.images.load import load_image, to_uint8

PHOTOGRAPH = EXAMPLES / "astronaut.jpg"
QUICK = ["--num-keypoints", "400", "--max-size", "320"]

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same pair in both layouts: a photograph and a mild perspective view of it."""
    image = load_image(PHOTOGRAPH, max_size=320).tensor
    H = torch.tensor([[1.0, 0.08, -4], [-0.05, 0.95, 6], [1e-4, -5e-5, 1]], dtype=torch.float64)
    H = rotation_about_centre((320, 320), math.radians(5))[0] @ H
    second = warp_image(image, H, (320, 320)).clamp(0, 1)
    made = {}
    for name, images, matrix in (("oxford", "img{}.webp", "H1to2p.txt"), ("hpatches", "{}.ppm", "H_1_2")):
        made[name] = tmp_path_factory.mktemp(name)
        sequence = made[name] / "portrait"
        sequence.mkdir()
        for k, tensor in enumerate((image, second), start=1):
            PIL.Image.fromarray(to_uint8(tensor)).save(sequence / images.format(k), lossless=True)
        np.savetxt(sequence / matrix, H.numpy())
    return made


def test_every_offer_is_that_of_a_benchmark_and_the_default_model_comes_first() -> None:
    known = benchmarks()
    assert [(name, benchmark.offer) for name, benchmark in known.items()] == [(offer.name, offer) for offer in OFFERS]
    for offer in OFFERS:
        assert offer.models.split(",")[0] == DEFAULT_MODEL


@pytest.mark.parametrize("benchmark", ["oxford", "hpatches"])
def test_tables_of_several_models(
    folders: dict[str, Path], benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["eval", benchmark, "--data", str(folders[benchmark]), *QUICK]
    arguments += ["--models", "upright-sift,upright-sift:tta,sift", "--rotation", "upright,quarter"]
    assert main([*arguments, "--json", str(out), "--markdown", str(table)]) == 0
    assert capsys.readouterr().out == table.read_text()
    report = json.loads(out.read_text())
    assert report["benchmark"] == benchmark
    assert [t["rotation"] for t in report["tables"]] == ["upright", "quarter"]
    assert [t["num_pairs"] for t in report["tables"]] == [1, 3]
    for t in report["tables"]:
        assert [row["label"] for row in t["rows"]] == ["upright-sift", "upright-sift:tta", "sift"]
        for row in t["rows"]:
            assert row["auc"]["3"] > 0.6
            assert row["precision"] > 0.8
            assert row["num_failed"] == 0
    steered, augmented, sift = report["tables"][1]["rows"]
    assert steered["angle_error_median"] < 15  # of the perspective view itself
    assert (steered["extractions_per_pair"], augmented["extractions_per_pair"]) == (2, 5)
    assert sift["angle_error_median"] is None


def test_squashed_images_on_both_canvases(folders: dict[str, Path], elsewhere: Path) -> None:
    """Told apart where matches are kept, and named in title, row and settings."""
    arguments = ["eval", "oxford", "--data", folders["oxford"], "--num-keypoints", "400", "--max-size", "200"]
    arguments += ["--models", "sift", "--rotation", "upright,fixed", "--json", "out.json", "--resize", "squash"]
    for canvas, words in (("keep", "of its own size, corners cut"), ("grow", "that holds it whole")):
        ran = run_command(*arguments, "--canvas", canvas)
        assert (ran.code, "matched before" in ran.err) == (0, canvas == "grow")  # the upright ones
        assert "squashed to 200 x 200 px" in ran.out
        assert (
            f"### fixed: second image of pair i rotated by (50 i + 40) mod 360 degrees, on a canvas {words}" in ran.out
        )
        assert f"| sift | dual-softmax | {canvas} |" in ran.out
        report = json.loads((elsewhere / "out.json").read_text())
        settings = {name: report["settings"][name] for name in ("max_size", "resize", "canvas")}
        assert settings == {"max_size": 200, "resize": "squash", "canvas": canvas}
        upright, fixed = (table["rows"][0] for table in report["tables"])
        assert ("canvas" in upright, fixed["canvas"]) == (False, canvas)
        assert min(upright["precision"], fixed["precision"]) > 0.8
    assert len(list((elsewhere / "home" / "predictions").iterdir())) == 3


def test_a_report_folder(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = "orb,orb:mutual-nearest?ratio=0.9"
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", models]
    assert main([*arguments, "--report", str(tmp_path / "report")]) == 0
    names = ["corner-error-upright.png", "report.json", "report.md"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == names
    written = (tmp_path / "report" / "report.md").read_text()
    assert written.startswith(capsys.readouterr().out)
    assert "![corner-error-upright](corner-error-upright.png)" in written
    assert "| orb | mutual-nearest, ratio 0.9 |" in written


def test_a_plain_call_leaves_a_report_and_its_matches(
    folders: dict[str, Path], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == f"report: {Path('reports') / 'oxford'}"
    assert "matched before" not in printed.err
    written = elsewhere / "reports" / "oxford"
    assert {"report.json", "report.md"} <= {path.name for path in written.iterdir()}
    assert (written / "report.md").read_text().startswith(printed.out)
    (folder,) = (elsewhere / "home" / "predictions").iterdir()
    (kept,) = folder.iterdir()
    made = kept.stat().st_mtime_ns
    assert main([*arguments, "--threshold", "1"]) == 0
    assert f"matched before, taken from {folder.parent}: orb\n" in capsys.readouterr().err
    assert kept.stat().st_mtime_ns == made
    assert "USAC_MAGSAC, 1 px" in (written / "report.md").read_text()


def test_the_threshold_counts_inliers(folders: dict[str, Path]) -> None:
    arguments = ["eval", "oxford", "--data", folders["oxford"], *QUICK, "--models", "orb", "--no-report", "--threshold"]
    strict, loose = (run_command(*arguments, threshold).out for threshold in ("0.5", "5"))
    column = strict.split("| model |")[1].split("\n")[0].split("|").index(" inliers ")
    few, many = (float(table.split("| orb |")[1].split("|")[column]) for table in (strict, loose))
    assert 0 < few < many


def test_reports_on_standard_output_are_alone_there(folders: dict[str, Path]) -> None:
    arguments = ["eval", "oxford", "--data", folders["oxford"], *QUICK, "--models", "orb", "--no-report"]
    table = run_command(*arguments)
    as_json, as_markdown = run_command(*arguments, "--json", "-"), run_command(*arguments, "--markdown", "-")
    assert json.loads(as_json.out)["benchmark"] == "oxford"
    assert as_markdown.out == table.out
    for ran in (as_json, as_markdown):
        assert ran.code == 0
        assert ran.err.endswith(table.out)  # for people to see
    assert_refused([*arguments, "--json", "-", "--markdown", "-"], "cannot write -: it is an input, or another output")


def test_nothing_is_left_where_nothing_is_wanted(
    folders: dict[str, Path], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb"]
    assert main([*arguments, "--no-report", "--no-cache"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("## oxford")
    assert "report:" not in printed.err
    assert list(elsewhere.iterdir()) == []


def test_without_matplotlib_the_report_is_written_all_the_same(
    folders: dict[str, Path], elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    assert main(["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb"]) == 0
    notice, where = capsys.readouterr().err.splitlines()[-2:]
    assert notice.startswith("warning: the report has no plots, for want of matplotlib")
    assert where.startswith("report: ")
    assert {path.name for path in (elsewhere / "reports" / "oxford").iterdir()} == {"report.json", "report.md"}


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("reports", "cannot write reports: it is a file, and the report a folder; give --report DIR, or --no-report"),
        ("home", "cannot keep matches in HOME/predictions: cannot write to HOME; give --cache DIR, or --no-cache"),
    ],
)
def test_default_places_that_cannot_be_written_are_refused_first(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], blocked: str, message: str
) -> None:
    (elsewhere / blocked).write_text("in the way")
    assert main(["eval", "oxford", "--data", "no-such"]) == 2
    assert message.replace("HOME", str(elsewhere / "home")) in capsys.readouterr().err


def test_roto_360_is_made_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photographs").mkdir()
    shutil.copy(PHOTOGRAPH, tmp_path / "photographs")
    data = ["--data", str(tmp_path / "data")]
    made = ["eval", "roto-360", *data, "--make", str(tmp_path / "photographs"), "--scenes", "1", "--max-size", "200"]
    assert main(made) == 0
    assert "made 1 scenes of 36 images (Roto-360-like)" in capsys.readouterr().out
    assert (
        main(["eval", "roto-360", *data, "--models", "orb", "--num-keypoints", "200", "--json", str(tmp_path / "out")])
        == 0
    )
    out = capsys.readouterr().out
    assert "### Roto-360-like" in out
    assert "(paper)" not in out  # it measured other data
    (row,) = json.loads((tmp_path / "out").read_text())["tables"][0]["rows"]
    assert row["num_pairs"] == 35
    assert row["precision"]["5"] > 0.7
    (tmp_path / "data" / "roto-360-like.json").unlink()  # as if it were the original
    rest = ["--models", "orb", "--num-keypoints", "20", "--cache", str(tmp_path / "cache")]
    assert main(["eval", "roto-360", *data, *rest]) == 0
    assert "(paper)" in capsys.readouterr().out
    assert main(["eval", "roto-360", *data, *rest, "--no-paper"]) == 0
    assert "(paper)" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph on a plane, seen by two cameras."""
    folder = tmp_path_factory.mktemp("calibrated") / "plane"
    folder.mkdir()
    image = load_image(PHOTOGRAPH, max_size=320).tensor
    K = np.array([[300.0, 0, 159.5], [0, 300, 159.5], [0, 0, 1]])
    c, s = math.cos(0.3), math.sin(0.3)
    R, t = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]), np.array([-0.45, 0.05, 0.1])
    H = K @ (R + np.outer(t, [0, 0, 1])) @ np.linalg.inv(K)  # the plane z = 1
    second = warp_image(image, torch.from_numpy(H), (320, 320)).clamp(0, 1)
    cameras = []
    for index, (tensor, rotation, translation) in enumerate([(image, np.eye(3), np.zeros(3)), (second, R, t)]):
        PIL.Image.fromarray(to_uint8(tensor)).save(folder / f"{index}.png")
        pose = {"R": rotation.tolist(), "t": translation.tolist()}
        cameras.append({"name": f"{index}.png", "K": K.tolist(), **pose})
    (folder / "cameras.json").write_text(json.dumps(cameras))
    return folder.parent


def test_cameras(calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["eval", "cameras", "--data", str(calibrated), *QUICK, "--models", "sift", "--apart", "1,4"]
    arguments += ["--rotation", "upright,so2", "--cache", str(tmp_path / "cache"), "--json", str(out)]
    assert main(arguments) == 0
    assert "Pose by poselib, 1 px at the evaluated size" in capsys.readouterr().out
    tables = json.loads(out.read_text())["tables"]
    assert [table["rotation"] for table in tables] == ["upright", "so2"]
    assert all(table["rows"][0]["num_pairs"] == 1 for table in tables)
    assert all(table["rows"][0]["num_matches"] > 40 for table in tables)
    assert main([*arguments, "--estimator", "opencv", "--runs", "2", "--threshold", "0.8", "--seed", "4"]) == 0
    printed = capsys.readouterr().out
    assert "plain RANSAC, 0.8 px at the stored size" in printed
    assert "shuffled with seed 4" in printed
    assert "2 runs" in printed
    (pair,) = json.loads(out.read_text())["tables"][0]["rows"][0]["pairs"]
    assert len(pair["pose_errors"]) == 2


@pytest.mark.parametrize(
    ("name", "rotations"),
    [
        ("megadepth-1500", [(0, 0), (0, 0)]),
        ("megadepth-c4", [(0, 0), (0, 90)]),
        ("megadepth-so2", [(0, 0), (0, 10)]),
        ("megadepth-joint", [(90, 90), (180, 180), (270, 270)] * 2),
    ],
)
def test_megadepth(
    calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, rotations: list[tuple[int, int]]
) -> None:
    cameras = json.loads((calibrated / "plane" / "cameras.json").read_text())
    images = tmp_path / "Undistorted_SfM" / "0015" / "images"
    images.mkdir(parents=True)
    columns = {key: np.empty(2, dtype=object) for key in ("image_paths", "intrinsics", "poses", "pair_infos")}
    for index, camera in enumerate(cameras):
        shutil.copy(calibrated / "plane" / camera["name"], images)
        columns["image_paths"][index] = f"Undistorted_SfM/0015/images/{camera['name']}"
        columns["intrinsics"][index] = np.add(camera["K"], [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
        columns["poses"][index] = np.vstack([np.column_stack([camera["R"], camera["t"]]), [0, 0, 0, 1]])
        columns["pair_infos"][index] = ((index, 1 - index), 0.2, np.zeros((0, 4)))
    np.savez(tmp_path / "0015_0.1_0.3.npz", **columns)
    out = tmp_path / "out.json"
    arguments = ["eval", name, "--data", str(tmp_path), "--sequences", "0015_0.1_0.3", "--models", "sift", *QUICK]
    assert main([*arguments, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "(paper)" in printed
    assert "Rows of the paper are of its own protocol: images squashed to 784 x 784" in printed
    assert "plain RANSAC, 0.5 px at the stored size" in printed  # the paper's estimator
    assert ("| sift | dual-softmax | keep |" in printed) == (name == "megadepth-so2")
    ours, *paper = json.loads(out.read_text())["tables"][0]["rows"]
    assert [(pair["rotation0"], pair["rotation1"]) for pair in ours["pairs"]] == rotations
    assert ours["num_matches"] > 40
    assert all(row["source"] == "paper" for row in paper)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["roto-360", "--data", "no-such"], "there is no folder no-such; get the Roto-360 zip"),
        (["sat-ast", "--data", "no-such", "--rotation", "fixed,sideways"], "unknown rotation 'sideways'"),
        (["oxford", "--data", "no-such", "--report", "x", "--no-report"], "not allowed with argument"),
        (["oxford", "--data", "no-such", "--cache", "x", "--no-cache"], "not allowed with argument"),
        (["equivariance", "--data", "no-such", "--no-cache"], "unrecognized arguments: --no-cache"),
        (["roto-360", "--data", "x", "--seed", "1"], "unrecognized arguments: --seed"),
        (["sat-ast", "--data", "x", "--seed", "1"], "unrecognized arguments: --seed"),
        (["equivariance", "--data", "x", "--seed", "1"], "unrecognized arguments: --seed"),
        (["roto-360", "--data", "x", "--make", "no-such"], "there is no folder no-such; give --make a folder"),
        (["cameras", "--data", "no-such"], "there is no folder no-such; give --data a folder of sequences"),
        (["megadepth-c4", "--data", ".", "--canvas", "keep"], "unrecognized arguments: --canvas keep"),
        (["cameras", "--data", ".", "--canvas", "crop"], "invalid choice: 'crop'"),
        (["cameras", "--data", ".", "--resize", "pad"], "invalid choice: 'pad'"),
        (["aims", "--data", ".", "--resize", "squash"], "unrecognized arguments: --resize squash"),
        (["equivariance", "--data", ".", "--resize", "squash"], "unrecognized arguments: --resize squash"),
        (["cameras", "--data", ".", "--apart", "0"], "'0' is not a whole number of at least 1"),
        (["cameras", "--data", ".", "--estimator", "magsac"], "invalid choice: 'magsac'"),
        (["cameras", "--data", ".", "--threshold", "-1"], "threshold must be positive"),
        (["cameras", "--data", ".", "--runs", "0"], "'0' is not a whole number of at least 1"),
        (["cameras", "--data", ".", "--report", "no-such/report"], "there is no folder no-such"),
    ],
)
def test_bad_input_of_the_other_benchmarks(arguments: list[str], message: str, elsewhere: Path) -> None:
    assert_refused(["eval", *arguments], message)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data", "no-such-folder"], "there is no folder no-such-folder; get the eight affine covariant sequences"),
        (["--models", "no-such"], "unknown model 'no-such'"),
        (["--models", "sift,sift"], "'sift' is named twice"),
        (["--models", "sift:max-matches"], "needs a steerer"),
        (["--models", "sift,"], "not a list of names"),
        (["--rotation", "sideways"], "unknown rotation 'sideways'; use one of upright, fixed, quarter, all, joint"),
        (["--rotation", "upright,fixed,upright"], "rotation 'upright' is named twice"),
        (["--sequences", "no-such"], "has no sequence 'no-such'; it has portrait"),
        (["--device", "no-such"], "unknown device"),
        (["--json", "no-such-folder/out.json"], "there is no folder no-such-folder"),
        (["--report", __file__], "it is a file, and the report a folder"),
        (["--models", "sift?ratio=0.8"], "strategy 'dual-softmax' has no option 'ratio'"),
        (["--threshold", "0"], "threshold must be positive"),
        (["--num-keypoints", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folders: dict[str, Path], extra: list[str], message: str) -> None:
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb", *extra]
    assert_refused(arguments, message)
