"""Fast forms beside plain modules, measured small, and ways through a folder of images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import steerers
from helpers import EXAMPLES
from steerers.benchmarks.speed import extraction
from steerers.benchmarks.speed.extraction import ExtractionRow, ExtractionSettings, bench_description, bench_pipeline
from steerers.benchmarks.speed.subjects import build_untrained
from steerers.features import Keypoints
from steerers.models import zoo
from steerers.models.base import SingleExtractor

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
HOUSE = [EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"]
SMALL = ExtractionSettings(width=70, height=52, num_keypoints=40, repeats=1)


def check(rows: list[ExtractionRow]) -> None:
    for row in rows:
        assert row.cost.seconds > 0
        assert row.speedup == pytest.approx(row.plain.seconds / row.cost.seconds)
        assert (row.same_keypoints is None) == (row.step == "describe")
        assert (row.least_cosine is None) == (row.largest_difference is None) == (row.step == "detect")
        if row.least_cosine is not None:
            assert row.least_cosine > 0.995  # of bfloat16
        if row.form in ("plain float32", "fast float32"):
            assert row.same_keypoints in (None, 1.0)
            assert row.largest_difference is None or row.largest_difference < 1e-3


def test_a_network_that_does_both_at_once() -> None:
    rows = bench_description(zoo.build("compact"), "bfloat16", CPU, SMALL)
    check(rows)
    assert [(row.step, row.form) for row in rows] == [
        ("extract", form)
        for form in ("plain float32", "plain bfloat16 autocast", "fast float32", "fast bfloat16")
    ]  # fmt: skip


def test_detector_and_descriptor() -> None:
    rows = bench_description(build_untrained("dedode-b"), "float32", CPU, SMALL)
    check(rows)
    assert [(row.step, row.form) for row in rows] == [
        (step, form) for form in ("plain float32", "fast float32") for step in ("detect", "describe")
    ]
    assert all(row.cost.extra_bytes > 0 for row in rows)


def test_models_without_a_fast_form() -> None:
    rows = bench_description(zoo.build("upright-sift"), "bfloat16", CPU, SMALL)  # which it has no use for
    assert [row.form for row in rows] == ["plain float32"]


def test_the_memory_of_recordings_is_that_without_them() -> None:
    class Allocating(SingleExtractor):
        """Takes memory by the floats that it is made for."""

        dim = 1

        def __init__(self, floats: int) -> None:
            super().__init__()
            self.floats = floats

        def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
            torch.zeros(self.floats)
            return Keypoints(torch.zeros(1, 2), torch.ones(1))

        def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
            return torch.zeros(1, 1)

    keypoints, image = Keypoints(torch.zeros(1, 2), torch.ones(1)), torch.zeros(3, 8, 8)
    recorded = extraction._Form("fast", Allocating(1000), unrecorded=Allocating(50_000))
    costs = extraction._costs(recorded, image, keypoints, SMALL.repeats)
    assert 200_000 <= costs["extract"].extra_bytes < 210_000
    alone = extraction._costs(recorded._replace(unrecorded=None), image, keypoints, SMALL.repeats)
    assert alone["extract"].extra_bytes < 20_000


def test_every_way_finds_the_same() -> None:
    matcher = steerers.load("upright-sift", num_keypoints=100, max_size=200)
    rows = bench_pipeline(matcher, [*HOUSE, HOUSE[0]], batch=2, repeats=1)
    assert [row.way for row in rows] == [
        "reading alone", "one by one", "together", "one by one, read before", "together, read before"
    ]  # fmt: skip
    assert rows[0].matches is None
    assert rows[1].matches == rows[2].matches == rows[3].matches == rows[4].matches
    assert rows[1].matches
    for row in rows:
        assert row.images_per_second == pytest.approx(3 / row.seconds)


def test_one_image_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least two images to match, got 1"):
        bench_pipeline(steerers.load("upright-sift"), HOUSE[:1])
