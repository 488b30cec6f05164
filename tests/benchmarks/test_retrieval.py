"""Photographs that find their neighbours: who they are, how it is counted, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from collection.photographs import save_views
from helpers import assert_refused, run_command
from steerers.benchmarks.retrieval import _rank, neighbours_of


def test_neighbours_are_in_one_folder() -> None:
    photos = [Path(name) for name in ("a/0.jpg", "a/1.jpg", "a/2.jpg", "a/3.jpg", "b/0.jpg", "b/1.jpg", "c/0.jpg")]
    assert neighbours_of(photos, 1) == [{1}, {0, 2}, {1, 3}, {2}, {5}, {4}, set()]
    assert neighbours_of(photos, 2) == [{1, 2}, {0, 2, 3}, {0, 1, 3}, {1, 2}, {5}, {4}, set()]


def test_counting() -> None:
    cosines = torch.eye(12).roll(1, dims=1) - 2 * torch.eye(12).roll(3, dims=1) + 5 * torch.eye(12)
    neighbours = [{(index + 1) % 12, (index + 3) % 12} for index in range(12)]
    assert _rank(cosines, neighbours) == {"first": 1.0, "found": 0.5}  # itself and the third are not among ten of 12
    assert _rank(cosines, [{(index + 3) % 12} for index in range(12)]) == {"first": 0.0, "found": 0.0}


def test_the_command(tmp_path: Path) -> None:
    save_views(tmp_path / "photos", [f"{scene}/{index}.png" for scene in "ab" for index in range(8)])
    options = ("--models", "upright-sift,sift", "--num-keypoints", "200", "--max-size", "120", "--no-report")
    code, out, _ = run_command(
        "eval", "retrieval", "--data", tmp_path / "photos", *options, "--json", tmp_path / "a.json"
    )
    assert code == 0
    assert "what no rotation changes" in out
    (table,) = json.loads((tmp_path / "a.json").read_text())["tables"]
    rows = {(row["label"], row["pooled"]): row for row in table["rows"]}
    assert list(rows) == [
        ("upright-sift", "as they are"), ("upright-sift", "what no rotation changes"), ("sift", "as they are"),
    ]  # fmt: skip
    assert all(0 <= row[how][name] <= 1 for row in rows.values() for how in ("upright", "rotated") for name in row[how])
    turned = rows["upright-sift", "what no rotation changes"]["upright"]["found"]  # every other one is on its head
    assert turned > rows["upright-sift", "as they are"]["upright"]["found"]


def test_what_is_refused(tmp_path: Path) -> None:
    told = ["eval", "retrieval", "--no-report", "--data"]
    assert_refused([*told, tmp_path / "none"], "no such folder of images")
    save_views(tmp_path / "photos", ["a/0.png", "b/0.png"])
    assert_refused([*told, tmp_path / "photos"], "no two photographs of")
    assert_refused([*told, tmp_path / "photos", "--models", "sift:subset"], "nothing is matched here")
