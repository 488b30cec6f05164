"""Random numbers that follow from seeds alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import seeds
from steerers.datasets.rng import generator_of, mix, noise, uniforms

whole = st.integers(-(2**70), 2**70)


def test_different_parts_give_different_seeds() -> None:
    """Also where they differ by zeros, by their number or by their order alone."""
    parts = [p for length in range(1, 6) for p in itertools.product((0, 1, 2, 7), repeat=length)]
    assert len({mix(*p) for p in parts}) == len(parts)


@pytest.mark.parametrize("first", [0, 1, 2**40])
def test_what_a_generator_keeps_of_a_seed_differs_too(first: int) -> None:
    """PyTorch's generator of the CPU is seeded by the lower 32 bits."""
    low = {mix(first, step, place) & 0xFFFFFFFF for step in range(100) for place in range(32)}
    assert len(low) >= 3198  # of 3200, drawn at random, 0.001 would be expected to fall together


@given(parts=st.lists(whole, min_size=1, max_size=5))
def test_a_mixed_seed_can_be_used_as_a_seed(parts: list[int]) -> None:
    seed = mix(*parts)
    assert 0 <= seed < 2**63
    assert generator_of(seed).initial_seed() == mix(seed, 0)
    assert mix(*parts) == seed


@given(rows=st.lists(seeds, min_size=1, max_size=6), stream=st.integers(0, 200), data=st.data())
def test_each_row_follows_from_its_seed_alone(rows: list[int], stream: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    drawn = uniforms(rows, 5, stream)
    assert torch.equal(uniforms([rows[k] for k in order], 5, stream), drawn[list(order)])
    assert torch.equal(uniforms(rows[:1], 5, stream), drawn[:1])
    assert drawn.dtype == torch.float64
    assert bool(((drawn >= 0) & (drawn < 1)).all())
    assert not torch.equal(uniforms(rows, 5, stream + 1), drawn)


def test_neighbouring_seeds_are_unrelated() -> None:
    drawn = uniforms(range(4000), 3)
    assert float((drawn.mean(dim=0) - 0.5).abs().max()) < 0.02
    centred = drawn - drawn.mean(dim=0)
    related = (centred[1:] * centred[:-1]).mean(dim=0) / centred.square().mean(dim=0)
    assert float(related.abs().max()) < 0.06  # four standard deviations
    assert float(torch.corrcoef(drawn.T).triu(1).abs().max()) < 0.06


def test_no_seeds_give_no_rows() -> None:
    assert uniforms([], 4).shape == (0, 4)
    assert noise([], 4, 0, torch.device("cpu")).shape == (0, 4)


def test_nobody_elses_generator_is_touched() -> None:
    state = torch.get_rng_state()
    uniforms([1, 2], 4)
    noise([1, 2], 4, 0, torch.device("cpu"))
    torch.rand(3, generator=generator_of(5, 2))
    assert torch.equal(state, torch.get_rng_state())


@given(rows=st.lists(seeds, min_size=1, max_size=5))
def test_noise_of_a_row_follows_from_its_seed_alone(rows: list[int]) -> None:
    drawn = noise(rows, 33, 3, torch.device("cpu"))
    assert drawn.dtype == torch.float32
    for k, seed in enumerate(rows):
        assert torch.equal(noise([seed], 33, 3, torch.device("cpu"))[0], drawn[k])
    assert torch.equal(noise(rows, 50, 3, torch.device("cpu"))[:, :33], drawn)
    assert not torch.equal(noise(rows, 33, 4, torch.device("cpu")), drawn)


def test_noise_is_nearly_normal_and_white() -> None:
    drawn = noise(range(8), 40000, 3, torch.device("cpu")).double()  # (8, 40000)
    assert float(drawn.mean(dim=1).abs().max()) < 0.02  # four standard deviations
    assert float((drawn.var(dim=1) - 1).abs().max()) < 0.03
    for reach, fraction in ((1.0, 0.683), (2.0, 0.954), (3.0, 0.997)):
        assert float((drawn.abs() < reach).double().mean()) == pytest.approx(fraction, abs=0.02)
    for lag in (1, 2, 3, 64, 384):
        assert abs(float((drawn[:, lag:] * drawn[:, :-lag]).mean())) < 0.01
    related = torch.corrcoef(drawn)
    assert float((related - torch.eye(8, dtype=torch.float64)).abs().max()) < 0.025
