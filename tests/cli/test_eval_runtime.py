"""``steerers eval runtime`` as users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import assert_refused
from steerers.cli import main

QUICK = ["--size", "64", "--num-keypoints", "50", "--repeats", "2", "--warm-up", "1"]

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


def test_models_side_by_side_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["eval", "runtime", "--models", "upright-sift,orb", "--strategies", "dual-softmax,max-matches,tta:4"]
    assert main([*arguments, *QUICK, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = report["tables"][0]["rows"]
    ours = [row for row in rows if row.get("source") != "paper"]
    assert [row["label"] for row in ours] == [
        "upright-sift:dual-softmax", "upright-sift:max-matches", "upright-sift:tta:4",
        "orb:dual-softmax", "orb:max-matches:4", "orb:max-matches:8", "orb:tta:4",
    ]  # fmt: skip
    assert len(rows) == len(ours) + 16
    for row in ours:
        assert 0 < row["seconds"]["total"]["lower_quartile"] <= row["seconds"]["total"]["upper_quartile"]
    assert report["settings"] == {
        "size": 64, "num_keypoints": 50, "repeats": 2, "warm_up": 1, "seed": 0,
        "weights": "trained", "precision": "float32",
    }  # fmt: skip
    assert "| DeDoDe-B (paper) | Dual softmax |" in capsys.readouterr().out


def test_without_weights_and_without_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "runtime", "--models", "superpoint-so2", "--random-weights", "--no-paper"]
    assert main([*arguments, "--strategies", "max-similarity,procrustes", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "random weights" in out
    assert "| superpoint-so2 | max-similarity (8) | SO2, learned |" in out
    assert "| superpoint-so2 | procrustes | Freq1, standing in |" in out
    assert "(paper)" not in out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--models", "orb:tta"], "cannot time 'orb:tta': give models by name"),
        (["--models", "no-such", "--random-weights"], "unknown model 'no-such'"),
        (["--strategies", "no-such"], "unknown strategy 'no-such'"),
        (["--precision", "float16"], "model 'orb' runs in float32 only"),
        (["--precision", "float8"], "unknown precision 'float8'"),
        (["--random-weights", "--weights", "w.pth"], "exclude each other"),
        (["--size", "8"], "size must be at least 32"),
        (["--size", "1000000"], "size must be at most 16.8 megapixels, got 1000000 x 1000000"),
        (["--num-keypoints", "10000000000"], "num_keypoints must be at most 65536, got 10000000000"),
        (["--warm-up", "-1"], "warm_up must be at least 0"),
        (["--repeats", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(extra: list[str], message: str) -> None:
    assert_refused(["eval", "runtime", "--models", "orb", *QUICK, *extra], message)
