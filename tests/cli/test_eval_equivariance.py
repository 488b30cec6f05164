"""``steerers eval equivariance`` as users call it, on one photograph."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers import EXAMPLES, assert_refused
from steerers.cli import main

QUICK = ["--num-keypoints", "100", "--max-size", "256"]

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("photographs")
    for name in ("astronaut.jpg", "coffee.jpg", "camera.jpg"):
        shutil.copy(EXAMPLES / name, made)
    return made


def test_curves_tables_and_plots(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "equivariance", "--data", str(folder), *QUICK, "--angles", "0,45,90", "--num-photos", "2"]
    assert main([*arguments, "--models", "upright-sift,orb@upright-sift", "--report", str(tmp_path / "out")]) == 2
    assert "Orb describes keypoints relative to their orientations" in capsys.readouterr().err
    assert main([*arguments, "--models", "upright-sift,orb", "--report", str(tmp_path / "out")]) == 0
    assert "| upright-sift | C4, fixed | steered | 100 | 0 | 1.000 | 100.0 | 1.000 |" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    steering, kept = report["tables"]
    assert [(row["label"], row["descriptions"]) for row in steering["rows"]] == [
        ("upright-sift", "steered"), ("upright-sift", "as they are"), ("orb", "as they are")
    ]  # fmt: skip
    assert steering["angles"] == [0, 45, 90]
    assert steering["num_photos"] == 2
    assert [row["num_pairs"] for row in kept["rows"]] == [1, 1]
    assert len(steering["rows"][0]["curves"]["cosine"]) == 3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data", "no-such-folder"], "there is no folder no-such-folder; give --data a folder of photographs"),
        (["--models", "upright-sift:tta"], "nothing is matched here; give MODEL[@DETECTOR] alone"),
        (["--angles", "0,x"], "is not a list of different angles"),
        (["--angles", "0,nan"], "is not a list of different angles"),
        (["--angles", "10,10"], "is not a list of different angles"),
        (["--num-photos", "0"], "is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, extra: list[str], message: str) -> None:
    assert_refused(["eval", "equivariance", "--data", str(folder), "--models", "orb", *QUICK, *extra], message)
