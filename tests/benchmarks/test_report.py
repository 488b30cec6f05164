"""Reports: tables of rows of every make, JSON without infinities, and folders with or without plots."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from steerers.benchmarks import report
from steerers.benchmarks.report import Column, Report, Table, failed_fraction, number, paper_rows, percent, text

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
    failed_fraction(),
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


@pytest.mark.parametrize(("threads", "words"), [(1, "CPU, 1 thread;"), (None, "CPU;")])
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    made = make(**{"curve.png": lambda _: pytest.fail("drawn")})
    made.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]
    assert (tmp_path / "report.md").read_text() == made.to_markdown()
    make().write(tmp_path)  # nothing is missed where there is nothing to draw
    (warning,) = caplog.messages
    assert 'pip install "steerers[plots]"' in warning


def test_a_plot_that_fails_leaves_no_picture(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        make(**{"curve.png": fail}).write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_commit_of_an_installed_package_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SOURCE", tmp_path)
    assert report.commit() is None


# The paper's numbers: some of every table, typed from it by hand, and the shape of all of them ------------------------


def list_experiments() -> list[tuple[str, str]]:
    return [(name, variant) for name, variants in json.loads(report._paper()).items() for variant in variants]


def find(benchmark: str, variant: str, label: str) -> dict[str, Any]:
    (row,) = [row for row in paper_rows(benchmark, variant) if row["label"] == label]
    return row


@pytest.mark.parametrize(
    ("experiment", "variant", "key", "label", "expected"),
    [
        ("roto-360", "", "precision", "SIFT", (78, 78, 79)),
        ("roto-360", "", "precision", "ORB", (79, 85, 87)),
        ("roto-360", "", "precision", "RELF, multiple@SuperPoint", (92, 93, 94)),
        ("roto-360", "", "precision", "C4-B@SuperPoint, Max matches C4-steered", (82, 82, 83)),
        ("roto-360", "", "precision", "SO2-Spread-B@SuperPoint, Max similarity C8-steered", (96, 97, 97)),
        ("roto-360", "", "precision", "SO2-Spread-B@DeDoDe-SO2, Max similarity C8-steered", (95, 97, 98)),
        ("aims", "", "ap", "SE2-LoFTR", (58, 51, 52)),
        ("aims", "", "ap", "C4-B@DeDoDe-SO2, Max matches C4-steered", (52, 51, 51)),
        ("aims", "", "ap", "SO2-Freq1-B@DeDoDe-SO2, Procrustes", (64, 59, 60)),
        ("megadepth", "1500", "auc", "DeDoDe-B@DeDoDe, Dual softmax", (49, 65, 77)),
        ("megadepth", "1500", "auc", "DeDoDe-B@DeDoDe-C4, Project to invariant subspace", (39, 55, 68)),
        ("megadepth", "1500", "auc", "SO2-Spread-B@DeDoDe-SO2, Dual softmax", (50, 66, 79)),
        ("megadepth", "1500", "auc", "SO2-Spread-B@DeDoDe-SO2, Max similarity C8-steered", (49, 66, 78)),
        ("megadepth", "1500", "auc", "DISK@DeDoDe, Dual softmax", (34, 49, 62)),
        ("megadepth", "c4", "auc", "DeDoDe-B@DeDoDe, Dual softmax", (12, 17, 20)),
        ("megadepth", "c4", "auc", "DeDoDe-B@DeDoDe, Dual softmax + TTA C4", (46, 61, 73)),
        ("megadepth", "c4", "auc", "DeDoDe-G@DeDoDe, Max matches C4-steered", (31, 45, 57)),
        ("megadepth", "c4", "auc", "C4-Perm-G@DeDoDe-C4, Max matches C4-steered", (53, 69, 82)),
        ("megadepth", "c4", "auc", "DISK@DeDoDe, Max matches C4-steered", (26, 41, 54)),
        ("megadepth", "so2", "auc", "DeDoDe-B@DeDoDe-SO2, Max matches C8-steered", (34, 51, 65)),
        ("megadepth", "so2", "auc", "SO2-Spread-B@DeDoDe-SO2, Max matches C8-steered", (46, 63, 76)),
        ("megadepth", "so2", "auc", "SO2-Freq1-B@DeDoDe-SO2, Prototype Procrustes", (41, 58, 72)),
        ("megadepth", "so2", "auc", "C4-Perm-G@DeDoDe-C4, Subset C4-steered", (43, 60, 73)),
        ("megadepth", "joint", "auc", "DeDoDe-B@DeDoDe, Dual softmax", (46, 62, 74)),
        ("megadepth", "joint", "auc", "DISK@DeDoDe, Dual softmax", (29, 45, 58)),
        ("megadepth", "joint", "auc", "DeDoDe-B†@DeDoDe, Dual softmax", (50, 66, 78)),
    ],
)
def test_per_cent(experiment: str, variant: str, key: str, label: str, expected: tuple[int, int, int]) -> None:
    """At growing thresholds; of aims for North Up, All Others and All."""
    assert list(find(experiment, variant, label)[key].values()) == pytest.approx([value / 100 for value in expected])


@pytest.mark.parametrize(
    ("label", "milliseconds", "plus_minus"),
    [
        ("DeDoDe-B, Dual softmax", 63.4, 0.03),
        ("DeDoDe-B, Dual softmax + TTAx8", 513.0, 0.09),
        ("DeDoDe-B-SO2, Max matches C8-steered", 141.4, 0.05),
        ("DeDoDe-B-SO2, Prototype Procrustes", 63.9, 0.02),
        ("DeDoDe-G, Dual softmax + TTAx4", 872.5, 0.11),
        ("DeDoDe-G-C4, Max similarity C4-steered", 221.3, 0.05),
    ],
)
def test_runtime(label: str, milliseconds: float, plus_minus: float) -> None:
    total = find("runtime", "", label)["seconds"]["total"]
    assert 1e3 * total["mean"] == pytest.approx(milliseconds)
    assert 1e3 * total["plus_minus"] == pytest.approx(plus_minus)


def test_every_table_is_whole() -> None:
    assert {experiment: len(paper_rows(*experiment)) for experiment in list_experiments()} == {
        ("roto-360", ""): 8,
        ("aims", ""): 4,
        ("megadepth", "1500"): 20,
        ("megadepth", "c4"): 27,
        ("megadepth", "so2"): 25,
        ("megadepth", "joint"): 4,
        ("runtime", ""): 16,
    }


def test_rows_fit_the_tables() -> None:
    for experiment in list_experiments():
        found = paper_rows(*experiment)
        assert len({row["label"] for row in found}) == len(found)
        for row in found:
            assert next(iter(row)) == "label"
            assert row["source"] == "paper"
            assert row["table"] in range(1, 7)
            json.dumps(row, allow_nan=False)
            for key in ("precision", "ap", "auc"):
                values = list(row.get(key, {}).values())
                assert all(0 < value < 1 for value in values)
                if key != "ap":
                    assert values == sorted(values)  # a looser threshold scores more


def test_the_paper_is_in_proportion() -> None:
    """One rotation more costs one matching more: a slip of the pen among the times would show."""
    times = {row["label"]: row["seconds"]["total"]["mean"] for row in paper_rows("runtime")}
    plain = times["DeDoDe-B, Dual softmax"]
    four, eight = times["DeDoDe-B-C4, Max matches C4-steered"], times["DeDoDe-B-SO2, Max matches C8-steered"]
    assert math.isclose((four - plain) / 3, (eight - plain) / 7, rel_tol=0.05)


def test_rows_are_the_callers_own() -> None:
    paper_rows("aims")[0]["ap"]["all"] = 1.0
    assert paper_rows("aims")[0]["ap"]["all"] == 0.52


@pytest.mark.parametrize(("benchmark", "variant"), [("oxford", ""), ("megadepth", "c5"), ("roto-360", "fixed")])
def test_no_such_experiment(benchmark: str, variant: str) -> None:
    assert paper_rows(benchmark, variant) == []
