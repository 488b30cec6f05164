"""Reports: tables of rows of every make, JSON without infinities, and folders with or without plots."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from steerers.benchmarks import report
from steerers.benchmarks.report import Column, Report, Table, number, percent, share_failed, text

OURS = {
    "label": "sift:mutual-nearest?ratio=0.8",
    "model": "sift",
    "strategy": {"name": "mutual-nearest", "ratio": 0.8},
    "auc": {"5": 0.431},
    "num_matches": 12.6,
    "num_failed": 1,
    "num_pairs": 9,
    "note": "a|b",
}
PAPER = {"label": "DeDoDe-B", "source": "paper", "auc": {"5": 0.49, "20": 0.77}}
COLUMNS = (
    *report.MODEL_COLUMNS,
    percent("AUC@5", "auc", "5"),
    percent("AUC@20", "auc", "20"),
    number("matches", "num_matches"),
    share_failed(),
    text("note", "note"),
)


def make(**plots: object) -> Report:
    table = Table("fixed: rotated", COLUMNS, [OURS, PAPER], {"num_pairs": 9, "pairs_sha256": "0123456789abcdef0123"})
    environment = {"steerers": "1", "device": "CPU", "threads": 2, "commit": None}
    return Report("poses", "What it is.", {"seed": 3}, environment, [table], plots)  # type: ignore[arg-type]


def test_markdown() -> None:
    assert make().to_markdown() == (
        "## poses\n\n"
        "What it is. Run on CPU, 2 threads; steerers 1; commit unknown.\n\n"
        "### fixed: rotated\n\n"
        "9 pairs, SHA-256 of the list `0123456789abcdef`.\n\n"
        "| model | strategy | AUC@5 | AUC@20 | matches | failed | note |\n"
        "|---|---|---:|---:|---:|---:|---|\n"
        "| sift | mutual-nearest, ratio 0.8 | 43.1 | - | 13 | 1 of 9 | a\\|b |\n"
        "| DeDoDe-B (paper) | - | 49.0 | 77.0 | - | - | - |\n"
    )


@pytest.mark.parametrize(("threads", "words"), [(1, "CPU, 1 thread;"), (8, "CPU, 8 threads;"), (None, "CPU;")])
def test_threads(threads: int | None, words: str) -> None:
    assert words in Report("poses", "What.", {}, {"device": "CPU", "threads": threads}, []).to_markdown()


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_no_number_is_a_dash(value: float | None) -> None:
    assert number("x", "x").cell({"x": value}) == "-"
    assert percent("x", "a", "x").cell({"a": {"x": value}}) == "-"
    assert percent("x", "a", "x").cell({"a": 0.5}) == "-"


def test_where_predictions_were_made_is_said() -> None:
    table = Table("t", (Column("model", lambda row: row["label"]),), [{"label": "a", "made": {"device": "H200"}}])
    assert "Run on H200;" in Report("b", "d", {}, {"device": "CPU"}, [table]).to_markdown()


def test_json_has_no_infinities() -> None:
    rows = [{"label": "a", "error": math.inf, "pairs": [{"angle": math.nan, "sizes": (1, 2)}]}]
    written = Report("b", "d", {"limit": math.inf}, {}, [Table("t", (), rows, {"rotation": "fixed"})]).to_json()
    assert written["settings"] == {"limit": None}
    expected = {"label": "a", "error": None, "pairs": [{"angle": None, "sizes": [1, 2]}]}
    assert written["tables"] == [{"title": "t", "rotation": "fixed", "rows": [expected]}]
    assert json.loads(report.dump(written)) == written


def test_a_folder_with_plots(tmp_path: Path) -> None:
    def draw(path: Path) -> None:
        path.write_bytes(b"picture")

    folder = tmp_path / "new" / "report"
    made = make(**{"curve.png": draw})
    made.write(folder)
    made.write(folder)  # over what is there
    assert sorted(path.name for path in folder.iterdir()) == ["curve.png", "report.json", "report.md"]
    assert (folder / "curve.png").read_bytes() == b"picture"
    assert json.loads((folder / "report.json").read_text()) == made.to_json()
    assert (folder / "report.md").read_text() == made.to_markdown() + "\n![curve](curve.png)\n"


def test_without_matplotlib_the_report_has_no_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    made = make(**{"curve.png": lambda _: pytest.fail("drawn")})
    made.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]
    assert (tmp_path / "report.md").read_text() == made.to_markdown()
    error = capsys.readouterr().err
    assert 'pip install "steerers[plots]"' in error
    assert error.count("\n") == 1
    make().write(tmp_path)  # nothing is missed where there is nothing to draw
    assert capsys.readouterr().err == ""


def test_a_plot_that_fails_leaves_no_picture(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        make(**{"curve.png": fail}).write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
