"""``steerers eval aims`` and ``sat-ast`` as users call them, on maps made of noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers import assert_refused
from steerers.benchmarks.metrics import apply
from steerers.cli import main
from terrain import make_terrain, save, view_of

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both layouts in one folder: two photographs, their maps and points on both."""
    folder = tmp_path_factory.mktemp("space")
    lines = ["query,candidate,positive,split"]
    (folder / "annotations-v1").mkdir()
    for place, (degrees, split) in enumerate(((20.0, "north-up"), (200.0, "others"))):
        terrain = make_terrain(240, seed=20 + place)
        photograph, to_photograph = view_of(terrain, (120, 120), degrees, (180, 120))
        tile, to_tile = view_of(terrain, (120, 118), 0.0, (170, 170))
        save(photograph, folder / f"data/p{place}.png")
        save(tile, folder / f"data/t{place}.png")
        lines += [f"data/p{place}.png,data/t{k}.png,{int(k == place)},{split}" for k in range(2)]
        points = np.array([[60.0, 40.0], [110.0, 50.0], [90.0, 80.0]])
        there = apply(to_tile @ np.linalg.inv(to_photograph), points)
        annotation = {
            "correspondences": [{"pts_src": points.tolist(), "pts_dst": there.tolist()}],
            "query_path": f"data\\p{place}.png",
            "pred_path": f"data\\t{place}.png",
        }
        (folder / f"annotations-v1/annotation_ISS{place}.json").write_text(json.dumps(annotation))
    (folder / "manifest.csv").write_text("\n".join(lines))
    return folder


AIMS = ["--models", "sift", "--num-keypoints", "300", "--short-side", "120"]
SAT_AST = ["--models", "sift", "--num-keypoints", "300", "--max-size", "180", "--threshold", "0.01"]


def test_aims(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["eval", "aims", "--data", str(data), *AIMS]
    assert main([*arguments, "--json", str(out), "--cache", str(tmp_path / "cache")]) == 0
    printed = capsys.readouterr().out
    assert "| sift | dual-softmax | 100.0 | 100.0 | 100.0 |" in printed
    assert "SO2-Freq1-B@DeDoDe-SO2 (paper) | Procrustes | 64.0 | 59.0 | 60.0 |" in printed
    assert "confidence 0.999, 10000 iterations, seed 0" in printed
    report = json.loads(out.read_text())
    assert report["settings"]["short_side"] == 120
    assert report["tables"][0]["rows"][0]["num_pairs"] == 4
    manifest = tmp_path / "one.csv"
    line = f"{data}/data/p0.png,{data}/data/t0.png,1,others"
    manifest.write_text(f"query,candidate,positive,split\n{line}\n")
    assert main([*arguments, "--manifest", str(manifest), "--no-paper"]) == 0
    printed = capsys.readouterr().out
    assert "| - | 100.0 | 100.0 |" in printed  # no photograph with North up
    assert "(paper)" not in printed


def test_the_reports_have_plots(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["eval", "aims", "--data", str(data), *AIMS, "--report", str(tmp_path / "aims")]) == 0
    assert main(["eval", "sat-ast", "--data", str(data), *SAT_AST, "--report", str(tmp_path / "satast")]) == 0
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")}
    plots = {f"aims/precision-recall-{group}.png" for group in ("north-up", "all-others", "all")}
    plots |= {"satast/errors-upright.png", "satast/errors-quarter.png"}
    assert made == plots | {f"{folder}/report.{ending}" for folder in ("aims", "satast") for ending in ("json", "md")}
    assert "precision-recall-all.png" in (tmp_path / "aims/report.md").read_text()


def test_sat_ast(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["eval", "sat-ast", "--data", str(data), *SAT_AST, "--json", str(out)]) == 0
    upright, quarter = json.loads(out.read_text())["tables"]
    for table, number in ((upright, 2), (quarter, 6)):
        (row,) = table["rows"]
        assert (row["num_pairs"], row["num_failed"]) == (number, 0)
        assert row["auc"]["5"] > 0.8
    assert "USAC_DEFAULT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aims", "--data", "nowhere"], "there is no manifest nowhere/manifest.csv; get the Astronaut Image"),
        (["aims", "--data", "DATA", "--short-side", "0"], "'0' is not a whole number of at least 1"),
        (["aims", "--data", "DATA", "--threshold", "-1"], "threshold must be positive"),
        (["sat-ast", "--data", "nowhere"], "there is no folder nowhere; get https://github.com/georg-bn/satast"),
        (["sat-ast", "--data", "DATA", "--threshold", "0"], "threshold must be positive"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(data: Path, arguments: list[str], message: str) -> None:
    assert_refused(["eval", *(str(data) if argument == "DATA" else argument for argument in arguments)], message)
