"""Ways through a folder of images."""

from __future__ import annotations

import pytest

import steerers
from helpers import EXAMPLES
from steerers.benchmarks.speed.pipeline import bench_pipeline

pytestmark = pytest.mark.usefixtures("one_thread")
HOUSE = [EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"]


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
