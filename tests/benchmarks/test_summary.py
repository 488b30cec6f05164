"""Several reports in one table: what is joined, what each number says of itself, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import EXAMPLES, assert_refused, run_command
from steerers.benchmarks.report import MODEL_COLUMNS, Report, Table
from steerers.benchmarks.summary import TABLES, find_reports, make_report

PAIRS = {part.benchmark: part.num_pairs for part in TABLES["redi"]}
PRINTED = {
    "REDI-Match": ["59.2", "-", "-", "-", "-", "-", "98.5", "98.6", "98.6", "50.6"],
    "RoMa v2": ["53.5", *["-"] * 9],
    "LoMa-R": ["45.2", *["-"] * 8, "42.0"],
    "steerers": ["48.7", *["-"] * 9],
}

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


def a_row(label: str, metric: str, values: dict[str, Any], **strategy: object) -> dict[str, Any]:
    return {"label": label, "model": label, "strategy": {"name": "procrustes", **strategy}, metric: values}


def write_report(
    folder: Path, benchmark: str, rows: list[dict[str, Any]], num_pairs: int | None = None, **settings: object
) -> Path:
    """As a benchmark writes it, with a row of the paper below."""
    rotation = "c4" if benchmark.endswith("c4") else "upright"
    facts = {"rotation": rotation, "num_pairs": num_pairs or PAIRS.get(benchmark, 1)}
    paper = {"label": "DeDoDe-B", "source": "paper", "auc": {"5": 0.49}}
    told = {"num_keypoints": [5000], "max_size": 784, "resize": "squash", **settings}
    where = {"steerers": "1.2", "commit": "0123456789abcdef"}
    Report(benchmark, "What it is.", told, where, [Table(rotation, MODEL_COLUMNS, [*rows, paper], facts)]).write(folder)
    return folder


def cells(markdown: str) -> dict[str, list[str]]:
    """By model, the numbers of its row."""
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    return {name: rest for name, _, *rest in lines}


def test_rows_are_joined_by_label_and_every_number_says_where_it_is_from() -> None:
    areas = {"5": 0.5, "10": 0.625, "20": 0.75}
    megadepth = write_report(Path("m"), "megadepth-c4", [a_row("a", "auc", areas), a_row("b", "auc", {"5": None})])
    roto = write_report(Path("r"), "roto-360", [a_row("b", "precision", {"3": 0.9, "5": 0.95, "10": 1.0})])
    more = write_report(Path("n"), "megadepth-c4", [a_row("c", "auc", areas)])
    satast = write_report(Path("s"), "sat-ast", [a_row("a", "auc", {"5": 0.1, "10": 0.3})])
    report = make_report(find_reports([satast, roto, megadepth, more / "report.json"], Path("reports"), "redi"), "redi")
    text = report.to_markdown()
    found = cells(text)
    assert found["a"] == ["50.0 [1]", "62.5 [1]", "75.0 [1]", *["-"] * 6, "30.0 [4]"]
    assert found["b"] == [*["-"] * 6, "90.0 [3]", "95.0 [3]", "100.0 [3]", "-"]
    assert found["c"] == ["50.0 [2]", "62.5 [2]", "75.0 [2]", *["-"] * 7]
    assert "DeDoDe-B" not in found  # the paper's rows are of another table
    for name, numbers in PRINTED.items():
        assert found[f"{name} (printed)"] == [number if number == "-" else f"{number} [5]" for number in numbers]
    about = "at most 5000 keypoints, squashed to 784 x 784 px; steerers 1.2, commit 0123456789ab."
    assert f"\n- [1] m/report.json: megadepth-c4, 1500 pairs; {about}\n- [2] n/report.json: " in text
    assert "\n- [5] the tables of REDI-Match (2026), as they print them.\n" in text
    assert "Differs" not in text
    assert "Run on" not in text  # nothing was
    written = report.to_json()
    names = ["m", "n", "r", "s"]
    sources = [*(f"{name}/report.json" for name in names), "the tables of REDI-Match (2026)"]
    assert written["settings"] == {"table": "redi", "sources": sources}
    first, *_, last = written["tables"][0]["rows"]
    assert first["results"]["sat-ast"] == {"auc": {"5": 0.1, "10": 0.3}, "source": 4}
    assert last == {
        "label": "steerers",
        "source": "printed",
        "results": {"megadepth-c4": {"auc": {"5": 0.487}, "source": 5}},
    }
    assert written["tables"][0]["notes"][0].startswith("[1] m/report.json: ")


def test_what_reports_do_not_share_stands_below() -> None:
    pose = {"auc_degrees": [5, 10, 20], "estimator": {"name": "opencv", "threshold": 0.5, "runs": 1}}
    others = {**pose, "estimator": {"name": "poselib", "threshold": 1.0, "runs": 5}, "num_keypoints": [2048, 4096]}
    areas = {"5": 0.5}
    folders = [
        write_report(Path("m"), "megadepth-c4", [a_row("a", "auc", areas, threshold=0.1)], **pose),
        write_report(Path("s"), "scannet-c4", [a_row("a", "auc", areas, threshold=0.2)], 30, **others, resize="fit"),
        write_report(Path("r"), "roto-360", [a_row("b", "precision", {})], data="Roto-360-like", max_size=3000),
        write_report(Path("t"), "sat-ast", [a_row("a", "auc", {})], data=None, estimator={"name": "USAC_DEFAULT"}),
    ]
    (table,) = make_report(find_reports(folders, Path("reports"), "redi"), "redi").tables
    *sources, printed = table.notes[:5]
    assert printed.startswith("[5] ")
    assert (
        "scannet-c4, 30 pairs instead of 1500, not to be compared; at most 2048, 4096 keypoints, longest" in sources[1]
    )
    assert "roto-360, 350 pairs, Roto-360-like data, not to be compared; " in sources[2]
    assert "not to be compared" not in sources[0] + sources[3]
    assert list(table.notes[5:]) == [
        "Differs: keypoints: 5000 [1][3][4]; 2048, 4096 [2].",
        "Differs: max_size: 784 [1][2][4]; 3000 [3].",
        "Differs: resize: squash [1][3][4]; fit [2].",
        "Differs: estimator of poses: opencv 0.5 px, 1 runs [1]; poselib 1.0 px, 5 runs [2].",
        "Differs: strategy's threshold of a: 0.1 [1]; 0.2 [2].",
    ]


def test_the_command_reads_what_benchmarks_wrote(elsewhere: Path) -> None:
    """Roto-360-like data is made and evaluated; beside it lies a report that does not belong here."""
    (elsewhere / "photographs").mkdir()
    shutil.copy(EXAMPLES / "astronaut.jpg", elsewhere / "photographs")
    made = run_command(
        "eval", "roto-360", "--data", "roto", "--make", "photographs", "--scenes", "1", "--max-size", "200"
    )
    assert made.code == 0
    ran = run_command("eval", "roto-360", "--data", "roto", "--models", "orb", "--num-keypoints", "200")
    assert ran.code == 0
    write_report(Path("reports/oxford"), "oxford", [])
    arguments = ["eval", "summary", "--table", "redi"]
    ran = run_command(*arguments, "--json", "out.json", "--markdown", "out.md")
    assert ran.code == 0, ran.err
    assert ran.err == "report: reports/summary\n"
    assert ran.out == (elsewhere / "out.md").read_text() == (elsewhere / "reports/summary/report.md").read_text()
    (row,) = json.loads((elsewhere / "reports/roto-360/report.json").read_text())["tables"][0]["rows"]
    expected = [f"{100 * row['precision'][bound]:.1f} [1]" for bound in ("3", "5", "10")]
    assert cells(ran.out)["orb"] == [*["-"] * 6, *expected, "-"]
    assert (
        "[1] reports/roto-360/report.json: roto-360, 35 pairs instead of 350, not to be compared, Roto-360-like"
        in ran.out
    )
    again = run_command(*arguments, "reports/roto-360", "--no-report")  # its own report is in the way of nothing
    assert (again.code, again.out, again.err) == (0, ran.out, "")
    assert run_command(*arguments).out == ran.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no report that `steerers eval` wrote (ValueError: damaged, or not JSON"),
        ("[]", "is no report that `steerers eval` wrote (TypeError"),
        ("{}", "is no report that `steerers eval` wrote (KeyError: 'benchmark')"),
        ('{"benchmark": 5, "settings": {}, "tables": []}', "is no report that `steerers eval` wrote"),
        ('{"benchmark": "sat-ast", "settings": {}, "tables": [{"rows": [{"label": 3}]}]}', "is no report"),
        ('{"benchmark": "sat-ast", "settings": {}, "tables": [{}]}', "(KeyError: 'rows')"),
        (
            '{"benchmark": "oxford", "settings": {}, "tables": []}',
            "is a report of 'oxford'; --table redi takes those of",
        ),
        (
            '{"benchmark": "sat-ast", "settings": {}, "tables": [{"rotation": "quarter", "rows": []}]}',
            "has no table of rotation 'upright', which is what counts: run sat-ast with --rotation upright",
        ),
        (
            '{"benchmark": "sat-ast", "settings": {}, "tables": [{"rotation": "upright", "rows": '
            '[{"label": "a", "auc": {"10": "much"}}]}]}',
            "auc of 'a' is no number from 0 to 1, got ['much']",
        ),
    ],
)
def test_what_is_no_report_is_refused(content: str, message: str, elsewhere: Path) -> None:
    Path("x.json").write_text(content)
    assert_refused(["eval", "summary", "x.json"], message)
    assert [path.name for path in elsewhere.iterdir()] == ["x.json"]


def test_missing_doubled_and_overwritten_reports_are_refused() -> None:
    assert_refused(
        ["eval", "summary"], "there is no report of megadepth-c4, scannet-c4, roto-360, sat-ast in reports: run"
    )
    assert_refused(["eval", "summary", "no-such"], "there is no no-such; give a folder or a report.json that")
    Path("empty").mkdir()
    assert_refused(["eval", "summary", "empty"], "there is no empty/report.json; give a folder")
    assert_refused(["eval", "summary", "--table", "loma"], "invalid choice: 'loma'")
    for name in ("a", "b"):
        write_report(Path(name), "sat-ast", [a_row("sift", "auc", {"10": 0.2})])
    both = "a/report.json and b/report.json both hold sat-ast of 'sift': name one of them, not both"
    assert_refused(["eval", "summary", "a", "b"], both)
    for option in (["--report", "a"], ["--json", "a/report.json"]):
        assert_refused(["eval", "summary", "a", *option], "cannot write a/report.json: it is an input")
    assert run_command("eval", "summary", "a", "a", "a/report.json", "--no-report").code == 0  # one and the same
