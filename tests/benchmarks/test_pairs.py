"""Pairs and their rotations."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerers.benchmarks.pairs import ROTATIONS, Pair, choose, rotate_pairs


def test_the_rotations_of_every_mode() -> None:
    pairs = [Pair(str(k), "s", Path("a"), Path("b")) for k in range(8)]
    rotations = {
        rotation: [(p.rotation0, p.rotation1) for p in rotate_pairs(pairs, rotation)] for rotation in ROTATIONS
    }
    assert rotations["upright"] == [(0, 0)] * 8
    assert rotations["fixed"] == [(0, t) for t in (40, 90, 140, 190, 240, 290, 340, 30)]
    assert rotations["quarter"] == [(0, 90), (0, 180), (0, 270)] * 8
    assert rotations["joint"] == [(90, 90), (180, 180), (270, 270)] * 8
    assert rotations["c4"] == [(0, t) for t in (0, 90, 180, 270, 0, 90, 180, 270)]
    assert rotations["so2"] == [(0, t) for t in (0, 10, 20, 30, 40, 50, 60, 70)]
    assert rotate_pairs(pairs * 5, "so2")[37].rotation1 == 10
    assert rotations["all"] == [(0, t) for t in range(0, 360, 10)] * 8
    with pytest.raises(ValueError, match="unknown rotation 'no-such'; use one of upright, fixed"):
        rotate_pairs(pairs, "no-such")  # type: ignore[arg-type]


def test_sequences_are_chosen_in_the_order_that_is_asked_for() -> None:
    found = {name: Path(name) for name in "abc"}
    assert choose(found, None, Path("data")) == found
    assert list(choose(found, ["c", "a", "c"], Path("data"))) == ["c", "a"]
    with pytest.raises(ValueError, match="data has no scene 'd'; it has a, b, c"):
        choose(found, ["a", "d"], Path("data"), "scene")
