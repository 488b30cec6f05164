"""Timings of refinement: what is refined, and that both forms find the same."""

from __future__ import annotations

import pytest
import torch

from steerers.benchmarks.speed.refinement import FORMS, OFF, RefinementSettings, _matches, bench_refinement
from steerers.refinement import _groups, local_maps
from steerers.resolutions import Resolutions

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def test_scales_differ_within_the_views() -> None:
    views, (xy0, xy1), truth = _matches(CPU, RefinementSettings(320, 240, 200))
    assert views[0].shape == views[1].shape == (240, 320)
    maps = local_maps(xy0, truth, None, 16)
    assert len(_groups([Resolutions(view, None) for view in views], maps)) > 1
    assert float((xy1 - truth).std()) == pytest.approx(OFF, rel=0.15)


def test_both_forms_find_the_truth() -> None:
    rows = bench_refinement(CPU, RefinementSettings(240, 200, 40, repeats=1))
    assert [row.speedup for row in rows[:2]] == [1.0, 1.0]
    assert all(row.after < 0.05 < row.before and row.same > 0.95 for row in rows)
    assert all(row.difference < 0.05 and row.decided > 0.95 for row in rows)
    assert rows[0].difference == 0.0
    assert {row.form for row in rows} == {FORMS["apart"], FORMS["together"]}


def test_too_much() -> None:
    with pytest.raises(ValueError, match="num_keypoints must be at most 65536, got 100000"):
        RefinementSettings(num=100_000)
