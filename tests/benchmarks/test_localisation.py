"""How exact places are: the views, what is counted, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import EXAMPLES, assert_refused, run_command
from steerers.benchmarks.localisation import CHANGES, Change, errors, shown
from steerers.features import Matches
from steerers.geometry import transform_points


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_spot_is_seen_where_the_map_says(change: Change) -> None:
    """Its centre of mass, to a hundredth of a pixel; noise is left out."""
    side = torch.arange(80.0)
    spot = torch.exp(-((side - 31.3) ** 2 + (side[:, None] - 44.6) ** 2) / (2 * 4.0**2))
    seen, to_canvas = shown(0.5 + 0.4 * spot.expand(3, 80, 80), Change(change.angle, change.scale), torch.Generator())
    mass = seen[0].double() - 0.5
    y, x = torch.meshgrid(*(torch.arange(length, dtype=torch.float64) for length in mass.shape), indexing="ij")
    centre = torch.stack([(mass * x).sum(), (mass * y).sum()]) / mass.sum()
    truth = transform_points(to_canvas, torch.tensor([[31.3, 44.6]], dtype=torch.float64))[0]
    assert float((centre - truth).norm()) < 0.01


def test_blur_and_noise() -> None:
    image = torch.rand(3, 60, 60, generator=torch.Generator().manual_seed(0))
    plain, blurred, noisy = (
        shown(image, change, torch.Generator().manual_seed(1))[0]
        for change in (Change(), Change(blur=1.5), Change(noise=0.05))
    )
    inside = (slice(None), slice(10, 50), slice(10, 50))
    assert blurred[inside].std() < 0.5 * plain[inside].std()
    assert float((noisy - plain)[inside].std()) == pytest.approx(0.05, rel=0.1)


def test_errors_are_distances_to_the_truth() -> None:
    to_canvas = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 0.0, 9.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    first = np.array([[1, 2], [3, 4]], np.float32)
    second = np.array([[4, 8], [6, 9]], np.float32)
    matches = Matches(first, second, np.ones(2, np.float32), np.zeros((2, 2), np.int64))
    assert errors(matches, to_canvas).tolist() == [0.0, 3.0]


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    shutil.copy(EXAMPLES / "camera.jpg", tmp_path / "photos")
    options = ("--models", "upright-sift-so2", "--num-keypoints", "300", "--max-size", "240", "--no-report")
    code, out, err = run_command(
        "eval", "localisation", "--data", tmp_path / "photos", *options, "--json", tmp_path / "a.json"
    )
    assert code == 0, err
    assert "rotated by 30 degrees, blurred by 1.5 px" in out
    tables = json.loads((tmp_path / "a.json").read_text())["tables"]
    assert [table["title"] for table in tables] == [str(change) for change in CHANGES]
    detected, refined = tables[1]["rows"]
    assert (detected["places"], refined["places"]) == ("as detected", "refined")
    assert refined["median"] < 0.5 * detected["median"]
    assert refined["moved"] > 0.5


def test_what_is_refused(tmp_path: Path) -> None:
    assert_refused(["eval", "localisation", "--no-report", "--data", tmp_path / "none"], "no such folder of images")
