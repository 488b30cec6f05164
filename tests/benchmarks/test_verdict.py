"""The benchmark of the verdict: how pairs are chosen, that the regression finds what made the data, and one run."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from helpers import EXAMPLES, assert_refused, run_command
from steerers.benchmarks.verdict import Judged, check, fit, neighbours
from steerers.verdict import Evidence, likelihood

TRUE = np.array([-6.0, 1.0, 2.0, 0.0, 1.5])


def draw(count: int, seed: int) -> list[Judged]:
    """Pairs whose truth is drawn by the probability that known coefficients give."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        planar, epipolar = (int(value) for value in np.exp(rng.uniform(0, 4, 2)))
        evidence = Evidence(100, planar, epipolar, float(rng.random()), bool(rng.random() < 0.5), True)
        together = bool(rng.random() < likelihood(float(evidence.values() @ TRUE)))
        found.append(Judged(evidence, together, number % 2 == 0))
    return found


def test_the_regression_finds_the_coefficients_that_made_the_data() -> None:
    """But for the constant, which is for as many related as unrelated pairs, and none against."""
    found = fit(draw(20_000, 0))
    assert found[1:3] == pytest.approx(TRUE[1:3], rel=0.2)
    assert found[4] == pytest.approx(TRUE[4], rel=0.25)
    assert 0 <= found[3] < 0.2


def test_no_evidence_counts_against() -> None:
    judged = [Judged(Evidence(9, 3, 40 if kind else 4, 0.9 * (not kind), True, True), kind, False) for kind in (0, 1)]
    found = fit([Judged(one.evidence, bool(one.together), False) for one in judged])
    assert found[3] == 0
    assert found[2] > 0


def test_what_is_checked() -> None:
    judged = draw(4000, 1)
    found = check(judged, TRUE)
    assert found["pairs"] == 4000
    assert found["auc"] > 0.85
    assert sum(row["pairs"] for row in found["calibration"]) == 4000
    for row in found["calibration"]:
        assert row["seen"] == pytest.approx(row["expected"], abs=0.08)
    truth = [one.together for one in judged]
    likely = [likelihood(float(one.evidence.values() @ TRUE)) > 0.5 for one in judged]
    assert found["right"] == pytest.approx(np.mean([a == b for a, b in zip(truth, likely, strict=True)]))


def test_neighbours_are_next_to_each_other_in_one_folder() -> None:
    photos = [
        Path(folder) / f"{number}.jpg" for folder in ("a", "b", "c") for number in range(4 if folder != "c" else 1)
    ]
    found = neighbours(photos, 6, random.Random(0))
    assert len(found) == 6
    assert len({first.parent for first, _ in found}) == 2
    assert all(first.parent == second.parent and int(second.stem) - int(first.stem) == 1 for first, second in found)


def test_the_command(tmp_path: Path) -> None:
    """By SIFT, on pictures so small that it takes no time: related pairs are told from others."""
    for name in ("one", "two", "three", "four", "five"):
        (tmp_path / "scenes" / name).mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    pictures = ("astronaut", "brick", "camera", "coffee", "retina")
    for folder, name in zip(sorted((tmp_path / "scenes").iterdir()), pictures, strict=True):
        with PIL.Image.open(EXAMPLES / f"{name}.jpg") as opened:
            for number in range(2):
                opened.crop((9 * number, 5 * number, 400, 400)).save(folder / f"{number}.png")
        shutil.copy(EXAMPLES / f"{name}.jpg", tmp_path / "photos" / f"a_{name}.jpg")
    ran = run_command(
        "eval", "verdict", "--data", tmp_path / "scenes", "--photos", tmp_path / "photos", "--models", "sift",
        "--pairs", "5", "--max-size", "256", "--num-keypoints", "256", "--no-report", "--json", tmp_path / "r.json",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    rows = json.loads((tmp_path / "r.json").read_text())["tables"][0]["rows"]
    assert [row["how"] for row in rows] == ["unknown", "unknown, as in the package"]
    assert rows[0]["auc"] > 0.8
    assert len(rows[0]["coefficients"]) == len(TRUE)
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    shutil.copy(EXAMPLES / "brick.jpg", lonely)
    assert_refused(["eval", "verdict", "--data", lonely, "--photos", lonely, "--no-report"], "are in one folder")
