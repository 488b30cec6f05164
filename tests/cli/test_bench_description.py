"""``steerers bench describe`` and ``steerers bench pipeline``: tables, JSON, and what bad input gets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import EXAMPLES, assert_refused
from steerers.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
HOUSE = [EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"]
SMALL = ["--size", "72x56", "--num-keypoints", "30", "--repeats", "1"]


def read(path: Path) -> dict[str, Any]:
    """JSON as the standard has it: without NaN."""
    report: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    return report


def test_describe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    models = ["--models", "compact,dedode-b", "--random-weights", "--precision", "bfloat16"]
    assert main(["bench", "describe", *SMALL, *models, "--json", str(path)]) == 0
    told, header, *lines = capsys.readouterr().out.splitlines()
    assert told.startswith("width 72, height 56, num_keypoints 30, repeats 1, seed 0, precision bfloat16, device CPU ")
    assert header.split()[:4] == ["model", "step", "form", "ms"]
    report = read(path)
    assert (report["width"], report["height"], report["num_keypoints"]) == (72, 56, 30)
    assert [row["model"] for row in report["rows"]] == ["compact"] * 4 + ["dedode-b"] * 8
    for line, row in zip(lines, report["rows"], strict=True):
        assert line.startswith(f"{row['model']:<8} {row['step']:<9} {row['form']}")
        assert f" {1e3 * row['cost']['seconds']:.2f} " in line
        assert row["speedup"] == pytest.approx(row["plain"]["seconds"] / row["cost"]["seconds"])


def test_pipeline_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, path = tmp_path / "photos", tmp_path / "bench.json"
    folder.mkdir()
    for image in HOUSE:
        shutil.copy(image, folder)
    options = ["--model", "upright-sift", "--num-keypoints", "50", "--max-size", "128", "--repeats", "1"]
    assert main(["bench", "pipeline", "--data", str(folder), *options, "--json", str(path)]) == 0
    told, header, *lines = capsys.readouterr().out.splitlines()
    assert told.startswith("model upright-sift, images 2, num_keypoints 50, max_size 128, batch 1, precision float32")
    assert header.split() == ["way", "seconds", "images/s", "matches"]
    rows = read(path)["rows"]
    assert [row["way"] for row in rows] == [line[:24].strip() for line in lines]
    assert len(rows) == 5


def test_the_help_has_an_example_of_every_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    for subject in ("match", "describe", "pipeline"):
        assert f"\n  steerers bench {subject} --" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "--size", "784"], "'784' is not a width and height such as 640x480"),
        (["describe", "--size", "0x5"], "'0x5' is not a width and height"),
        (["describe", "--precision", "float8"], "unknown precision 'float8'; use float32, bfloat16, float16"),
        (["describe", "--models", ","], "--models names no model"),
        (["describe", "--models", "no-such"], "unknown model 'no-such'"),
        (["describe", "--models", "sift,orb", "--weights", "a.pth"], "--weights goes with one model"),
        (["describe", "--random-weights", "--weights", "a.pth"], "--weights and --random-weights exclude each other"),
        (["describe", "--device", "cuda:99"], "device 'cuda:99' is not available"),
        (["pipeline"], "give images, or a folder of them with --data"),
        (["pipeline", "a.jpg", "--data", "."], "give images, or a folder of them with --data"),
        (["pipeline", "--data", "no-such-folder"], "no such folder of images: no-such-folder"),
        (["pipeline", str(HOUSE[0])], "at least two images to match, got 1"),
        (["pipeline", str(HOUSE[0]), "missing.jpg"], "no such image: missing.jpg"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert_refused(capsys, ["bench", *arguments], message)
