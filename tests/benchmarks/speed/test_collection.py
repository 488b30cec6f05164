"""What ``steerers bench collection`` measures and says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collection.photographs import save_views
from helpers import assert_refused, run_command
from steerers.benchmarks.speed import collection
from steerers.benchmarks.speed.collection import CollectionRow, CollectionSettings, growth, make_photographs

SMALL = ("--model", "upright-sift", "--num-keypoints", "50", "--neighbours", "1", "--size", "96x72")


def row(step: str, images: int, memory: int) -> CollectionRow:
    return CollectionRow(step, images, 10, 2.0, 100, memory, 0)


def test_memory_against_the_number_of_photographs() -> None:
    rows = [row("extract", 10, 5000), row("match", 10, 1), row("extract", 30, 5040), row("extract", 20, 9999)]
    assert growth(rows, "extract") == 2.0
    assert growth(rows, "match") is None
    assert rows[0].per_second == 5.0


def test_photographs_are_taken_again(tmp_path: Path) -> None:
    save_views(tmp_path / "data", ["a.jpg", "b.png"])
    make_photographs(tmp_path / "photos", CollectionSettings(5, data=str(tmp_path / "data")))
    assert [path.name for path in sorted((tmp_path / "photos").iterdir())] == [
        "0000000.jpg", "0000001.png", "0000002.jpg", "0000003.png", "0000004.jpg",
    ]  # fmt: skip
    assert (tmp_path / "photos" / "0000003.png").read_bytes() == (tmp_path / "data" / "b.png").read_bytes()


def test_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collection, "_in_process", collection.do_step)
    code, out, _ = run_command("bench", "collection", "--images", "4", "2", *SMALL, "--json", tmp_path / "a.json")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["step", "photographs"]
    assert "extract: " in out
    report = json.loads((tmp_path / "a.json").read_text())
    assert [(row["step"], row["images"], row["items"]) for row in report["rows"]] == [
        ("extract", 2, 2), ("similar", 2, 2), ("match", 2, 1), ("extract", 4, 4), ("similar", 4, 4), ("match", 4, 3),
    ]  # fmt: skip
    assert all(row["memory_bytes"] > 2**20 and row["per_second"] > 0 for row in report["rows"])
    assert all((row["stored_bytes"] > 0) == (row["step"] != "similar") for row in report["rows"])


def test_a_step_that_fails_is_said_in_a_line() -> None:
    assert_refused(["bench", "collection", "--images", "2", "--model", "none"], "step extract failed: ")
