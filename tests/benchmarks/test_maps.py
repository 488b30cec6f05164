"""The benchmark of photographs on a map: what is read, compared and counted, and one run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from helpers import assert_refused, run_command
from maps.places import photo_matrix, write_map, write_photo
from steerers.benchmarks.maps import Outcome, read_truth, summarise

pytest.importorskip("rasterio")
pytest.importorskip("scipy")

HEADER = "file,gps_lat,gps_lon,yaw_deg,centre_x,centre_y,checked"


def outcome(off: float, probability: float = 0.9, *, checked: bool = True, found: bool = True) -> Outcome:
    return Outcome("a.jpg", checked, probability, found, off, 2.0 if found else math.inf, 20, 3.0)


def test_what_is_counted() -> None:
    found = [
        outcome(5.0, 0.99),
        outcome(30.0, 0.8),
        outcome(80.0, 0.7),
        outcome(500.0, 0.6),
        outcome(math.inf, 0.1, found=False),
        outcome(15.0, 0.2, found=False),
        outcome(60.0, 0.95, checked=False),
        outcome(900.0, 0.9, checked=False),
    ]
    row = summarise(found, [0.2, 0.65, 0.72, 0.9])
    assert row["within"] == {"20": 1 / 6, "50": 2 / 6, "100": 3 / 6}
    assert row["best"] == {"20": 2 / 6, "50": 3 / 6, "100": 4 / 6}  # also one that is not believed
    assert (row["found"], row["false"], row["photos"]) == (6, 2, 8)
    assert row["off"] == 30.0
    assert row["turned"] == 2.0
    assert row["kept_at"] == pytest.approx(0.7 + 0.15 * 0.1)  # of 0.7, 0.8, 0.95, 0.99
    assert (row["taken"], row["taken_kept"], row["strangers"]) == (3, 2, 4)


def test_nothing_found() -> None:
    row = summarise([outcome(math.inf, 0.1, found=False)], [])
    assert row["within"] == row["best"] == {"20": 0, "50": 0, "100": 0}
    assert math.isnan(row["off"])
    assert row["taken_kept"] == 0


def test_what_a_folder_must_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold map"):
        read_truth(tmp_path)
    write_map(tmp_path / "map.tif")
    for text, message in (
        (HEADER + "\n", "names no photograph"),
        (HEADER + "\na.jpg,24,121,west,,,0\n", "cannot read"),
        ("file,yaw_deg\na.jpg,3\n", "cannot read"),
    ):
        (tmp_path / "truth.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_truth(tmp_path)
    assert_refused(["eval", "map", "--data", tmp_path / "none", "--no-report"], "must hold map")


def test_the_command(tmp_path: Path) -> None:
    write_map(tmp_path / "map.tif")
    (tmp_path / "photos").mkdir()
    write_photo(tmp_path / "photos" / "a.png", photo_matrix(100.0))
    (tmp_path / "truth.csv").write_text(f"{HEADER}\na.png,24.2190,121.0319,100,270,230,1\n")
    models = ["upright-sift:dual-softmax", "upright-sift:tta:4"]
    ran = run_command(
        "eval", "map", "--data", tmp_path, "--models", ",".join(models), "--num-keypoints", "512", "--indexes",
        tmp_path / "indexes", "--no-report", "--json", tmp_path / "r.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = json.loads((tmp_path / "r.json").read_text())["tables"][0]["rows"]
    assert [row["label"] for row in rows] == models
    assert {row["known"] for row in rows} == {"nothing"}
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == ["upright-sift.h5"]  # one of both
    upright, augmented = rows  # the photograph lies at 100 degrees
    assert upright["found"] == upright["best"]["100"] == 0
    assert augmented["within"]["20"] == augmented["best"]["20"] == 1.0
    assert augmented["off"] < 2
    assert augmented["turned"] < 2
    assert augmented["false"] == 0
    assert_refused(["eval", "map", "--data", tmp_path, "--models", "sift?refine=1", "--no-report"], "not refined")
