"""Sampling of maps that were never raised, against raising them and sampling what comes out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, randn, seeds
from steerers.accel.networks.upsample_sampling import make_stencil, sample
from steerers.models.sampling import sample_descriptions

CPU = torch.device("cpu")
TOLERANCE = 2e-5  # of float32, in which places and weights are


@st.composite
def chains(draw: st.DrawFn, longest: int = 40) -> tuple[tuple[int, int], ...]:
    """Sizes fine to coarse, each between a fifth and all of the one before, as networks halve and round."""
    sizes = [(draw(st.integers(1, longest)), draw(st.integers(1, longest)))]
    for _ in range(draw(st.integers(0, 4))):
        width, height = (draw(st.integers(max(1, n // 5), n)) for n in sizes[-1])
        sizes.append((width, height))
    return tuple(sizes)


def raised(maps: Tensor, chain: tuple[tuple[int, int], ...]) -> Tensor:
    """What a decoder does: to one size after the other."""
    for width, height in reversed(chain[:-1]):
        maps = F.interpolate(maps, size=(height, width), mode="bilinear", align_corners=False)
    return maps


def points(size: tuple[int, int], count: int, seed: int) -> Tensor:
    """(2, N, 2) pixels inside an image, on its border and beyond it, some of them whole."""
    xy = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed))
    xy = xy * (torch.tensor(size) + 3.0) - 2.0
    xy[:, ::3] = xy[:, ::3].round()
    return xy


@given(chains(), seeds)
def test_the_same_as_raising_and_sampling(chain: tuple[tuple[int, int], ...], seed: int) -> None:
    width, height = chain[-1]
    maps, xy = randn(2, 3, height, width, seed=seed, dtype=torch.float32), points(chain[0], 9, seed)
    tables = make_stencil((chain,), CPU).tables[0]
    assert_near(sample(maps, xy, chain[0], tables), sample_descriptions(raised(maps, chain), xy), TOLERANCE)


@given(chains(), st.tuples(st.integers(1, 60), st.integers(1, 60)), seeds)
def test_points_of_an_image_of_another_size(
    chain: tuple[tuple[int, int], ...], size: tuple[int, int], seed: int
) -> None:
    width, height = chain[-1]
    maps, xy = randn(2, 3, height, width, seed=seed, dtype=torch.float32), points(size, 9, seed)
    tables = make_stencil((chain,), CPU).tables[0]
    assert_near(sample(maps, xy, size, tables), sample_descriptions(raised(maps, chain), xy, size), 5e-5)


@given(chains())
def test_weights_sum_to_one_and_taps_are_few(chain: tuple[tuple[int, int], ...]) -> None:
    """So that biases may be added after sampling; and halving needs at most three taps, however often."""
    for table in make_stencil((chain,), CPU).tables[0]:
        assert_near(table.weights.sum(dim=2), torch.ones(table.weights.shape[:2]), 1e-6)
        assert (table.weights >= 0).all()
        assert (table.first >= 0).all()
    halved = tuple((784 >> k, 523 >> k) for k in range(4))
    assert all(table.weights.shape[2] <= 3 for table in make_stencil((halved,), CPU).tables[0])


def test_stencils_are_made_once_and_known_by_identity() -> None:
    chain = ((16, 12), (8, 6))
    first, again = make_stencil((chain,), CPU), make_stencil((chain,), CPU)
    assert first is again
    assert {first: 1}[again] == 1
    assert make_stencil((chain[:1],), CPU) != first


def test_channels_last_and_half_maps() -> None:
    maps, xy = randn(2, 5, 7, 9, dtype=torch.float32), points((9, 7), 20, 0)
    tables = make_stencil((((9, 7),),), CPU).tables[0]
    expected = sample(maps, xy, (9, 7), tables)
    assert torch.equal(sample(maps.contiguous(memory_format=torch.channels_last), xy, (9, 7), tables), expected)
    half = sample(maps.half(), xy, (9, 7), tables)
    assert half.dtype == torch.float32
    assert_near(half, expected, 5e-3)


def test_no_points() -> None:
    tables = make_stencil((((3, 3),),), CPU).tables[0]
    assert sample(torch.rand(1, 4, 3, 3), torch.zeros(1, 0, 2), (3, 3), tables).shape == (1, 0, 4)
