"""The modes of rotations that the kernels' host takes, against the plain one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import randn, seeds
from steerers.accel.matching.modes import mode_of_few, mode_of_many
from steerers.geometry import circular_mode
from steerers.steering.representations import Group


def apart(a: float, b: float) -> float:
    return abs(math.remainder(a - b, 2 * math.pi))


@given(st.integers(2, 64), seeds)
def test_of_few(order: int, seed: int) -> None:
    rotations = Group(order).angles()
    weights = randn(order, seed=seed).square()
    expected = circular_mode(rotations, weights)
    assert apart(mode_of_few(tuple(rotations.tolist()), tuple(weights.tolist())), expected) < 1e-9


@given(st.integers(1, 200), st.floats(-10, 10), st.floats(0.01, 1.0), seeds)
def test_of_many(count: int, centre: float, spread: float, seed: int) -> None:
    angles = centre + spread * randn(count, seed=seed)
    weights = randn(count, seed=seed + 1).abs()
    assert apart(mode_of_many(angles, weights), circular_mode(angles, weights)) < 1e-9


def test_where_most_agree() -> None:
    angles = torch.cat([torch.full((30,), 3.1), torch.full((30,), -3.1), torch.linspace(-2, 2, 50)])
    assert apart(mode_of_many(angles, torch.ones(110)), math.pi) < 1e-3
    assert mode_of_few((0.0, math.pi / 2), (1.0, 3.0)) == pytest.approx(math.pi / 2)
