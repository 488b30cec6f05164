"""The benchmark of alignments, on matches whose right answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from steerers.benchmarks.alignment import AlignmentEstimator, AlignmentOutcome, measure_alignment, summarise
from steerers.benchmarks.homographies import HomographyPair
from steerers.benchmarks.metrics import apply
from terrain import make_prediction

pytest.importorskip("rasterio")
pytest.importorskip("scipy")

TILT = np.array([[1.0, 0.05, 2], [-0.03, 1.05, -4], [1e-4, -2e-4, 1]])
TURN = np.array([[0.0, 1, 3], [-1, 0, 190], [0, 0, 1]])
PAIR = {"name": "seq 1-2", "sequence": "seq", "path0": Path("a"), "path1": Path("b")}


def pair(truth: np.ndarray) -> HomographyPair:
    return HomographyPair(*PAIR.values(), homography=truth)  # type: ignore[arg-type]


def measure(truth: np.ndarray, **options: object) -> AlignmentOutcome:
    points = np.random.default_rng(0).uniform(0, 1, (80, 2)) * [199, 149]
    return measure_alignment(pair(truth), make_prediction(points, apply(truth, points)), AlignmentEstimator(**options))


def test_what_suits_is_taken() -> None:
    found = measure(TILT)
    assert (found.kind, found.bent, found.num_inliers) == ("homography", False, 80)
    assert found.corner_error < 0.01
    assert measure(TURN).kind == "similarity"
    stiff = measure(TILT, transform="similarity")
    assert stiff.corner_error > 1


def test_what_is_not_aligned_fails() -> None:
    points = np.random.default_rng(1).uniform(0, 1, (2, 40, 2)) * [199, 149]
    found = measure_alignment(pair(TURN), make_prediction(*points), AlignmentEstimator())
    assert found.failed
    told = summarise([found, measure(TURN)])
    assert told["num_failed"] == 1
    assert told["auc"]["10"] == pytest.approx(0.5, abs=0.01)
    assert told["homographies"] == 0


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="transform must be one of auto, similarity, affine, homography, got 'rigid'"):
        AlignmentEstimator("rigid")
    with pytest.raises(ValueError, match="threshold"):
        AlignmentEstimator(threshold=math.nan)
