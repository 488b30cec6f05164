"""``steerers bench``: tables, JSON, and what bad input gets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import EXAMPLES, Ran, assert_refused, run_command
from steerers.benchmarks.speed import busy_neighbours
from steerers.benchmarks.speed.matching import MEASURED
from steerers.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
HOUSE = [EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"]
SMALL = ["--num", "300", "--dim", "64", "--repeats", "1"]


bench = partial(run_command, "bench", "match")


def read(path: Path) -> dict[str, Any]:
    """JSON as the standard has it: without NaN."""
    report: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    return report


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict[str, Any]]:
    """A run over every strategy, and its JSON."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    return bench(*SMALL, "--order", "6", "--json", path), read(path)


def test_prints_every_strategy(whole: tuple[Ran, dict[str, Any]]) -> None:
    ran, _ = whole
    assert (ran.code, ran.err) == (0, "")
    setting, header, *rows = ran.out.splitlines()
    assert setting.startswith("num 300, dim 64, order 6, matching 0.5, device CPU ")
    assert header.split()[:2] == ["strategy", "steerer"]
    assert [row.split()[0] for row in rows] == list(MEASURED)
    assert set(MEASURED) == {
        "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant"
    }  # fmt: skip
    assert all("100.00 % of " in row for row in rows)


def test_json_holds_what_is_printed(whole: tuple[Ran, dict[str, Any]]) -> None:
    ran, report = whole
    assert {"num", "dim", "order", "matching", "device", "threads", "torch", "rows"} == set(report)
    assert (report["num"], report["dim"], report["order"]) == (300, 64, 6)
    assert [row["strategy"] for row in report["rows"]] == list(MEASURED)
    for row, line in zip(report["rows"], ran.out.splitlines()[2:], strict=True):
        assert row["steerer"] == ("Freq1" if "procrustes" in row["strategy"] else "Spread")
        for cost in (row["cost"], row["textbook"]):
            assert set(cost) == {"seconds", "extra_bytes"}
            assert cost["seconds"] > 0
            assert cost["extra_bytes"] > 300 * 4
        assert row["textbook"]["extra_bytes"] >= 300 * 300 * 4  # dense
        assert row["speedup"] == pytest.approx(row["textbook"]["seconds"] / row["cost"]["seconds"])
        assert line.split()[2] == f"{1e3 * row['cost']['seconds']:.1f}"
        assert line.endswith(f" of {row['matches']}")


def test_without_textbook(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    ran = bench(*SMALL, "--no-textbook", "--strategies", "procrustes", "dual-softmax", "--json", path)
    assert (ran.code, ran.err) == (0, "")
    rows = read(path)["rows"]
    assert [row["strategy"] for row in rows] == ["procrustes", "dual-softmax"]
    assert all(row["textbook"] is row["speedup"] is row["common"] is None for row in rows)
    assert [line.split()[-1] for line in ran.out.splitlines()[2:]] == ["-", "-"]


def test_several_sizes_and_orders(tmp_path: Path) -> None:
    """What tries no rotations is measured once for each size."""
    path = tmp_path / "bench.json"
    sizes = ["--num", "100", "200", "--order", "4", "3", "--dim", "28", "--repeats", "1", "--no-textbook"]
    ran = bench(*sizes, "--strategies", "dual-softmax", "max-similarity", "--json", path)
    assert (ran.code, ran.err) == (0, "")
    runs = read(path)["runs"]
    assert [(run["num"], run["order"], [row["strategy"] for row in run["rows"]]) for run in runs] == [
        (num, order, [*["dual-softmax"] * (order == 4), "max-similarity"]) for num in (100, 200) for order in (4, 3)
    ]
    assert [block[:8] for block in ran.out.split("\n\n")] == ["num 100,", "num 100,", "num 200,", "num 200,"]


def test_floors(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    ran = bench(*SMALL, "--peak-tflops", "0.01", "--strategies", "dual-softmax", "--json", path)
    (row,) = read(path)["rows"]
    assert row["floor"]["operations"] == 4 * 300**2 * 64
    assert row["floor"]["seconds"] == pytest.approx(4 * 300**2 * 64 / 1e10)
    assert row["over_floor"] == pytest.approx(row["cost"]["seconds"] / row["floor"]["seconds"])
    header, line = ran.out.splitlines()[1:]
    assert header.split()[-4:] == ["floor", "ms", "over", "same"]
    assert line.split()[7] == "2.304"


def test_kernels_and_precision(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    ran = bench(*SMALL, "--kernels", "tiled", "--precision", "exact", "--strategies", "invariant", "--json", path)
    assert ran.code == 0
    assert ", precision exact, kernels tiled, device " in ran.out
    assert (read(path)["precision"], read(path)["kernels"]) == ("exact", "tiled")


def test_no_matches_at_all_is_still_json(tmp_path: Path) -> None:
    """Two invariant coordinates tell nothing apart: neither form finds a match, and they agree."""
    path = tmp_path / "bench.json"
    ran = bench("--num", "300", "--dim", "14", "--repeats", "1", "--strategies", "invariant", "--json", path)
    assert ran.code == 0
    assert "nan" not in ran.out
    assert read(path)["rows"][0]["matches"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "no-such"], "cannot bench strategy 'no-such'; use some of dual-softmax, max-matches"),
        (["--strategies", "dual-softmax", "tta"], "cannot bench strategy 'tta'"),
        (["--device", "no-such"], "unknown device 'no-such'"),
        (["--num", "-1"], "argument --num: '-1' is not a whole number of at least 1"),
        (["--dim", "0"], "argument --dim: '0' is not a whole number of at least 1"),
        (["--dim", "5"], "needs dim 14 or more, got 5"),
        (["--dim", "15", "--strategies", "procrustes"], "dim must be even, got 15"),
        (["--order", "-8"], "argument --order: '-8' is not a whole number"),
        (["--order", "1"], "order"),
        (["--order", "1000000000"], "the order of a cyclic group must be at most 4096, got 1000000000"),
        (["--num", "1000000000"], "num must be 1 to 65536, got 1000000000"),
        (["--dim", "1000000000"], "dim must be at most 4096, got 1000000000"),
        (["--peak-tflops", "-1"], "argument --peak-tflops: '-1' is not a number above 0"),
        (["--matching", "2"], "argument --matching: '2' is not a number from 0 to 1"),
        (["--matching", "half"], "argument --matching: 'half' is not a number from 0 to 1"),
        (["--peak-tflops", "many"], "argument --peak-tflops: 'many' is not a number above 0"),
        (["--kernels", "fast"], "argument --kernels: invalid choice: 'fast'"),
        (["--repeats", "0"], "argument --repeats: '0' is not a whole number of at least 1"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert_refused(["bench", "match", *SMALL, *arguments, "--json", tmp_path / "bench.json"], message)
    assert os.listdir(tmp_path) == []


def test_bad_output_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerers.benchmarks.speed.matching.bench_matching", lambda *_, **__: pytest.fail("measured"))
    path = tmp_path / "no-such" / "bench.json"
    told = f"steerers: cannot write {path}: there is no folder {path.parent}\n"
    assert bench(*SMALL, "--json", path) == (2, "", told)


def test_process_keeps_standard_error_clean() -> None:
    """PyTorch's profiler, by which memory is measured, logs there if let."""
    done = subprocess.run(
        [sys.executable, "-m", "steerers", "bench", "match", *SMALL, "--strategies", "dual-softmax"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "100.00 % of " in done.stdout


# describe and pipeline ------------------------------------------------------------------------------------------------


def test_describe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    models = ["--models", "compact,dedode-b", "--random-weights", "--precision", "bfloat16"]
    small = ["--size", "72x56", "--num-keypoints", "30", "--repeats", "1"]
    assert main(["bench", "describe", *small, *models, "--json", str(path)]) == 0
    told, header, *lines = capsys.readouterr().out.splitlines()
    assert told.startswith("width 72, height 56, num_keypoints 30, repeats 1, seed 0, precision bfloat16, device CPU ")
    assert header.split()[:4] == ["model", "step", "form", "ms"]
    report = read(path)
    assert (report["width"], report["height"], report["num_keypoints"]) == (72, 56, 30)
    assert [row["model"] for row in report["rows"]] == ["compact-6"] * 4 + ["dedode-b"] * 8
    for line, row in zip(lines, report["rows"], strict=True):
        assert line.startswith(f"{row['model']:<9}  {row['step']:<8}  {row['form']}")
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


def test_refine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    assert main(["bench", "refine", "--num", "60", "--size", "200x160", "--repeats", "1", "--json", str(path)]) == 0
    told, header, *lines = capsys.readouterr().out.splitlines()
    assert told.startswith("width 200, height 160, num 60, repeats 1, seed 0, device CPU ")
    assert header.split()[:3] == ["form", "images", "ms"]
    rows = read(path)["rows"]
    assert [(row["form"], row["images"]) for row in rows] == [
        (form, images) for form in ("one resolution after the other", "together") for images in ("ready", "as read")
    ]
    for line, row in zip(lines, rows, strict=True):
        assert f" {1e3 * row['cost']['seconds']:.2f} " in line
        assert row["speedup"] == pytest.approx(row["plain"]["seconds"] / row["cost"]["seconds"])
        assert row["after"] < 0.1 < row["before"]
        assert row["same"] > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["refine", "--num", "0"], "'0' is not a whole number of at least 1"),
        (["refine", "--size", "9x9x9"], "'9x9x9' is not a width and height"),
        (["describe", "--size", "784"], "'784' is not a width and height such as 640x480"),
        (["describe", "--size", "0x5"], "'0x5' is not a width and height"),
        (["describe", "--precision", "float8"], "unknown precision 'float8'; use one of float32, bfloat16, float16"),
        (["describe", "--models", ","], "--models names no model"),
        (["describe", "--models", "no-such"], "unknown model 'no-such'"),
        (["describe", "--models", "sift,orb", "--weights", "a.pth"], "--weights goes with one model"),
        (["describe", "--random-weights", "--weights", "a.pth"], "--weights and --random-weights exclude each other"),
        (["describe", "--device", "cuda:99"], "device 'cuda:99' is not available"),
        (["describe", "--size", "1000000x1000000"], "size must be at most 16.8 megapixels, got 1000000 x 1000000"),
        (["describe", "--num-keypoints", "1000000000000"], "num_keypoints must be at most 65536, got 1000000000000"),
        (["pipeline"], "give images, or a folder of them with --data"),
        (["pipeline", "a.jpg", "--data", "."], "give images, or a folder of them with --data"),
        (["pipeline", "--data", "no-such-folder"], "no such folder of images: no-such-folder"),
        (["pipeline", str(HOUSE[0])], "at least two images to match, got 1"),
        (["pipeline", str(HOUSE[0]), "missing.jpg"], "no such image: missing.jpg"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    assert_refused(["bench", *arguments], message)


def test_beside_busy_processes(tmp_path: Path) -> None:
    """They are there while it measures, and gone when it ends."""
    out = tmp_path / "table.json"
    ran = run_command(
        "bench", "match", "--num", 50, "--dim", 16, "--repeats", 1, "--strategies", "dual-softmax", "--load", 1,
        "--json", out,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "busy processes beside 1" in ran.out
    assert json.loads(out.read_text())["busy processes beside"] == 1
    with busy_neighbours(2) as others:
        assert [other.poll() for other in others] == [None, None]
    assert all(other.poll() is not None for other in others)
