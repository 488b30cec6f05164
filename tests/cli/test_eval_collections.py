"""``steerers eval collections`` as users call it, on views of a map made of noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import assert_refused
from steerers.cli import main
from terrain import make_terrain, save, view_of

QUICK = ["--models", "sift,orb", "--num-keypoints", "400", "--max-size", "180"]

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flight")
    terrain = make_terrain(260, seed=30)
    for name, degrees in (("a", 0.0), ("b", 45.0), ("c", 120.0)):
        save(view_of(terrain, (130, 130), degrees, (180, 150))[0], folder / f"{name}.png")
    return folder


def test_several_models_in_one_table(flight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, cache = tmp_path / "out.json", tmp_path / "cache"
    arguments = ["eval", "collections", "--data", str(flight), *QUICK, "--json", str(out), "--cache", str(cache)]
    assert main(arguments) == 0
    assert "| sift | dual-softmax | 3 of 3 | 3 of 3 |" in capsys.readouterr().out
    main_table, sectors = json.loads(out.read_text())["tables"]
    assert [row["label"] for row in main_table["rows"]] == ["sift", "orb"]
    sift = main_table["rows"][0]
    assert [round(pair["angle"]) for pair in sift["pairs"]] == [45, 120, 75]
    assert sift["triplets"]["within"]["5"] == 1.0
    assert sectors["rows"][0]["sectors"]["120"] == 1
    assert main([*arguments, "--geometry", "fundamental", "--min-inliers", "9999", "--threshold", "1.5"]) == 0
    printed = capsys.readouterr().out
    assert "| sift | dual-softmax | 0 of 3 | 0 of 3 | - |" in printed
    assert "at least 9999 inliers of a fundamental matrix, poselib, 1.5 px" in printed


def test_a_report_with_a_histogram(flight: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["eval", "collections", "--data", str(flight), *QUICK, "--neighbours", "1", "--report", str(tmp_path)]
    assert main(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["angles.png", "report.json", "report.md"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["settings"]["selection"] == {"neighbours": 1, "gps": None, "most": None}
    assert report["tables"][0]["num_pairs"] == 2


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data", "nowhere"], "there is no folder nowhere; give --data a folder with at least two photographs"),
        (["--gps", "10"], "has no GPS position in its EXIF data, nor have 2 others of 3"),
        (["--gps", "10", "--neighbours", "2"], "not allowed with argument"),
        (["--geometry", "affine"], "unknown geometry 'affine'; use homography or fundamental"),
        (["--min-inliers", "0"], "'0' is not a whole number of at least 1"),
        (["--threshold", "0"], "threshold must be positive"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(flight: Path, extra: list[str], message: str) -> None:
    assert_refused(["eval", "collections", "--data", str(flight), *QUICK, *extra], message)
