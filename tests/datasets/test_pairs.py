"""Two views and the warp of keypoints between them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, seeds
from steerers.datasets.pairs import (
    PairBatch,
    Rotations,
    ViewWarp,
    correspondences,
    covered,
    draw_rotations,
    generator_of,
    mix,
    noise,
    uniforms,
)
from steerers.datasets.views import Views, draw_homographies
from steerers.geometry import quarter_turns, transform_points

CPU = torch.device("cpu")
SIZE = 64


def points(
    seed: int, count: int = 40, batch: int = 2, extent: float = SIZE, dtype: torch.dtype = torch.float32
) -> Tensor:
    drawn = torch.rand(batch, count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn * extent).to(dtype)


def everywhere(batch: int = 2, size: int = SIZE) -> Tensor:
    return torch.ones(batch, size, size, dtype=torch.bool)


def maps(seed: int, batch: int = 2) -> Tensor:
    views = Views(size=SIZE, scale=(0.5, 2.0), tilt=2.0, perspective=0.1)
    return draw_homographies([(200, 150)] * batch, views, [seed + k for k in range(batch)])


def scaled(factor: float, batch: int = 1) -> ViewWarp:
    """The second views are ``factor`` times as large as the first, without limits."""
    return ViewWarp(
        torch.eye(3, dtype=torch.float64).repeat(batch, 1, 1),
        torch.diag(torch.tensor([factor, factor, 1.0], dtype=torch.float64)).repeat(batch, 1, 1),
        everywhere(batch, 512),
        everywhere(batch, 512),
    )


# Rotations ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotations", get_args(Rotations))
def test_rotations_are_what_their_kind_says(rotations: Rotations) -> None:
    rotations0, rotations1 = draw_rotations(rotations, range(300))
    assert rotations0.shape == rotations1.shape == (300,)
    assert rotations0.dtype == rotations1.dtype == torch.float64
    both = torch.cat([rotations0, rotations1])
    quarters = [quarter_turns(rotation) for rotation in both.tolist()]
    assert bool(((both >= 0) & (both < 2 * math.pi)).all())
    if rotations == "none":
        assert not both.any()
    elif rotations.endswith("C4"):
        assert all(quarters.count(k) > 100 for k in range(4))  # of 600
    else:
        assert quarters.count(None) == 600
        assert float(torch.histc(both, 8, 0, 2 * math.pi).min()) > 40  # of 75 that are expected
    assert torch.equal(rotations0, rotations1) == (rotations == "none" or rotations.startswith("joint"))


@given(rows=st.lists(seeds, min_size=1, max_size=5), rotations=st.sampled_from(get_args(Rotations)))
def test_rotations_of_a_pair_follow_from_its_seed_alone(rows: list[int], rotations: Rotations) -> None:
    whole = draw_rotations(rotations, rows)
    parts = [draw_rotations(rotations, [seed]) for seed in rows]
    for side in (0, 1):
        assert torch.equal(whole[side], torch.cat([part[side] for part in parts]))


def test_the_angle_of_a_pair_takes_the_second_view_to_the_first() -> None:
    images, masks = torch.zeros(2, 3, SIZE, SIZE), everywhere()
    rotations0, rotations1 = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0])
    batch = PairBatch(images, images, masks, masks, scaled(1.0, 2), rotations0, rotations1)
    assert len(batch) == 2
    assert batch.angles.tolist() == pytest.approx([0.5, 2 * math.pi - 1])
    assert batch.anchors is batch.detections is None


# Masks ----------------------------------------------------------------------------------------------------------------


@given(seed=seeds)
def test_covered_looks_up_the_nearest_pixel(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(2, 7, 9, generator=generator) < 0.5
    xy = torch.rand(2, 50, 2, generator=generator, dtype=torch.float64) * 14 - 3
    found = covered(masks, xy)
    for b, n in torch.cartesian_prod(torch.arange(2), torch.arange(50)).tolist():
        x, y = (round(float(value)) for value in xy[b, n])
        assert bool(found[b, n]) == (0 <= x < 9 and 0 <= y < 7 and bool(masks[b, y, x]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_what_is_nowhere_is_not_covered(value: float) -> None:
    xy = torch.tensor([[[value, 1.0], [1.0, value], [1.0, 1.0]]])
    assert covered(torch.ones(1, 4, 4, dtype=torch.bool), xy).tolist() == [[False, False, True]]


# Warps ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shifted:
    """A scene in which everything moves by (10, 0); points of the first photograph beyond x = 100 are hidden."""

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        return xy + xy.new_tensor([10.0, 0.0]), xy[..., 0] <= 100

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        back = xy - xy.new_tensor([10.0, 0.0])
        return back, back[..., 0] <= 100


@given(seed=seeds, with_scene=st.booleans())
def test_there_and_back_is_where_one_was(dtype: torch.dtype, tolerance: float, seed: int, with_scene: bool) -> None:
    warp = ViewWarp(maps(seed), maps(seed + 7), everywhere(), everywhere(), Shifted() if with_scene else None)
    xy = points(seed, dtype=dtype)
    there, valid = warp.forward(xy)
    back, _ = warp.backward(there)
    assert there.dtype == dtype
    assert valid.dtype == torch.bool
    # One pixel of a view may be tens of another, and float32 rounds at every stop on the way.
    near = (there.abs().amax(dim=-1) < 1e3) & (back.abs().amax(dim=-1) < 1e3)
    torch.testing.assert_close(back[near], xy[near], atol=50 * tolerance, rtol=0)
    assert torch.equal(warp.backward(there)[0], back)


@given(seed=seeds)
def test_the_warp_goes_through_the_photographs(seed: int) -> None:
    from0, from1, xy = maps(seed), maps(seed + 7), points(seed, dtype=torch.float64)
    in_photo = transform_points(torch.linalg.inv(from0), xy)
    torch.testing.assert_close(
        ViewWarp(from0, from1, everywhere(), everywhere()).forward(xy)[0], transform_points(from1, in_photo)
    )
    moved, valid = ViewWarp(from0, from1, everywhere(), everywhere(), Shifted()).forward(xy)
    expected = transform_points(from1, in_photo + torch.tensor([10.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(moved, expected)
    assert torch.equal(valid, covered(everywhere(), expected) & (in_photo[..., 0] <= 100))


def test_what_the_other_view_does_not_show_is_not_valid() -> None:
    half = everywhere(1)
    half[:, :, 32:] = False
    identity = torch.eye(3, dtype=torch.float64)[None]
    warp = ViewWarp(identity, identity, half, everywhere(1))
    xy = torch.tensor([[[10.0, 10.0], [50.0, 10.0], [70.0, 10.0]]])
    assert warp.forward(xy)[1].tolist() == [[True, True, False]]  # the second views' masks
    assert warp.backward(xy)[1].tolist() == [[True, False, False]]  # the first views'


@given(seed=seeds)
def test_a_warp_in_parts_is_the_warp_at_once(seed: int) -> None:
    from0, from1, xy = maps(seed, 5), maps(seed + 7, 5), points(seed, batch=5)
    whole = ViewWarp(from0, from1, everywhere(5), everywhere(5))
    parts = [ViewWarp(from0[k], from1[k], everywhere(5)[k], everywhere(5)[k]) for k in (slice(2), slice(2, 5))]
    for way in ("forward", "backward"):
        made = [getattr(part, way)(xy[k]) for part, k in zip(parts, (slice(2), slice(2, 5)), strict=True)]
        for k in (0, 1):
            assert torch.equal(getattr(whole, way)(xy)[k], torch.cat([one[k] for one in made]))


def test_all_pixels_of_a_view_go_where_the_warp_says() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(2, 2, SIZE, SIZE, generator=generator) < 0.7
    still, identity = torch.zeros(2), torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    shifted = identity + torch.tensor([[0, 0, 9.5], [0, 0, -20], [0, 0, 0]], dtype=torch.float64)
    warp = ViewWarp(identity, shifted, masks[0], masks[1])
    batch = PairBatch(torch.zeros(2, 3, SIZE, SIZE), torch.zeros(2, 3, SIZE, SIZE), *masks, warp, still, still)
    for side, way in ((0, warp.forward), (1, warp.backward)):
        moved, valid = batch.warp_pixels(side)
        for x, y in ((0, 0), (63, 0), (17, 40)):
            expected, seen = way(torch.tensor([[[float(x), float(y)]]]).expand(2, 1, 2))
            assert torch.equal(moved[:, y * SIZE + x], expected[:, 0])
            assert torch.equal(valid[:, y, x], seen[:, 0] & masks[side, :, y, x])
        assert 0.2 < float(valid.float().mean()) < 0.5


# Correspondences ------------------------------------------------------------------------------------------------------


def test_correspondences_are_mutual_and_within_the_radius() -> None:
    first = torch.tensor([[[10.0, 10], [20, 20], [30, 30], [30.5, 30]]])
    second = torch.tensor([[[40.0, 40.4], [21, 20], [60, 60], [61.2, 60]]])
    assert correspondences(first, second, scaled(2), 1.0).tolist() == [[0, 1, 0], [0, 2, 2], [0, 3, 3]]
    assert correspondences(first, second, scaled(2), 0.1).tolist() == [[0, 2, 2]]
    assert correspondences(first[:, :0], second, scaled(2), 1.0).shape == (0, 3)
    assert correspondences(first, second[:, :0], scaled(2), 1.0).shape == (0, 3)


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_the_radius_counts_in_both_views(factor: float) -> None:
    """Two pixels apart in the view of the higher resolution is half a pixel in the other."""
    off = torch.tensor([2.0 if factor > 1 else 0.5, 0.0])
    first = torch.tensor([[[20.0, 20.0]]])
    second = factor * first + off
    assert len(correspondences(first, second, scaled(factor), 2.1)) == 1
    assert len(correspondences(first, second, scaled(factor), 1.9)) == 0


def by_hand(xy0: Tensor, xy1: Tensor, warp: ViewWarp, radius: float, real0: Tensor, real1: Tensor) -> list[list[int]]:
    """Every keypoint with every other one, in float64."""
    (ahead, seen0), (back, seen1) = warp.forward(xy0), warp.backward(xy1)
    found = []
    for b in range(len(xy0)):
        d0 = (ahead[b][:, None] - xy1[b]).norm(dim=2)
        d1 = (back[b][None] - xy0[b][:, None]).norm(dim=2)
        d0[~(seen0[b] & real0[b])], d0[:, ~real1[b]] = math.inf, math.inf
        d1[:, ~(seen1[b] & real1[b])], d1[~real0[b]] = math.inf, math.inf
        for i in range(d0.shape[0]):
            j = int(d0[i].argmin())
            if max(float(d0[i, j]), float(d1[i, j])) < radius and int(d1[:, j].argmin()) == i:
                found.append([b, i, j])
    return found


@given(seed=seeds)
def test_correspondences_agree_with_an_exhaustive_search(seed: int) -> None:
    warp = ViewWarp(maps(seed), maps(seed), torch.rand(2, SIZE, SIZE) < 2, everywhere())
    generator = torch.Generator().manual_seed(seed)
    warp.masks0[:, :, 40:] = False
    xy0 = points(seed, 40, dtype=torch.float64)
    xy1 = torch.cat([xy0[:, :25] + randn(2, 25, 2, seed=seed), points(seed + 1, 10, dtype=torch.float64)], dim=1)
    real0, real1 = torch.rand(2, 40, generator=generator) < 0.8, torch.rand(2, 35, generator=generator) < 0.8
    found = correspondences(xy0, xy1, warp, 2.5, real0, real1)
    assert found.tolist() == by_hand(xy0, xy1, warp, 2.5, real0, real1)
    assert len(found)


@pytest.mark.parametrize("filling", [math.nan, math.inf, 0.0])
def test_what_fills_up_a_batch_is_never_chosen_and_hides_nothing(filling: float) -> None:
    xy = torch.tensor([[[10.0, 10.0], [30.0, 30.0], [0.0, 0.0]]])
    filled = torch.cat([torch.full((1, 2, 2), filling), xy, torch.full((1, 3, 2), filling)], dim=1)
    real = torch.tensor([[False, False, True, True, True, False, False, False]])
    both = correspondences(filled, filled, scaled(1), 1.0, real, real)
    assert both.tolist() == [[0, 2, 2], [0, 3, 3], [0, 4, 4]]
    assert correspondences(filled, xy, scaled(1), 1.0, real0=real).tolist() == [[0, 2, 0], [0, 3, 1], [0, 4, 2]]
    assert correspondences(xy, filled, scaled(1), 1.0, real1=real).tolist() == [[0, 0, 2], [0, 1, 3], [0, 2, 4]]
    if not math.isfinite(filling):  # what is nowhere need not be named
        assert torch.equal(correspondences(filled, filled, scaled(1), 1.0), both)


def test_what_is_not_valid_is_never_chosen() -> None:
    xy = torch.tensor([[[10.0, 10.0], [30.0, 30.0]]])
    identity = torch.eye(3, dtype=torch.float64)[None]
    hidden = everywhere(1)
    hidden[:, 30, 30] = False
    for masks in ((hidden, everywhere(1)), (everywhere(1), hidden)):
        assert correspondences(xy, xy, ViewWarp(identity, identity, *masks), 1.0).tolist() == [[0, 0, 0]]
    nowhere = ViewWarp(identity, identity, ~everywhere(1), ~everywhere(1))
    assert correspondences(xy, xy, nowhere, 1.0).shape == (0, 3)


# Random numbers -------------------------------------------------------------------------------------------------------


def test_different_parts_give_different_seeds() -> None:
    """Also where they differ by zeros, by their number or by their order alone."""
    parts = [p for length in range(1, 6) for p in itertools.product((0, 1, 2, 7), repeat=length)]
    assert len({mix(*p) for p in parts}) == len(parts)


@pytest.mark.parametrize("first", [0, 1, 2**40])
def test_what_a_generator_keeps_of_a_seed_differs_too(first: int) -> None:
    """PyTorch's generator of the CPU is seeded by the lower 32 bits."""
    low = {mix(first, step, place) & 0xFFFFFFFF for step in range(100) for place in range(32)}
    assert len(low) >= 3198  # of 3200, drawn at random, 0.001 would be expected to fall together


@given(parts=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=5))
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
    assert noise([], 4, 0, CPU).shape == (0, 4)


def test_nobody_elses_generator_is_touched() -> None:
    state = torch.get_rng_state()
    uniforms([1, 2], 4)
    noise([1, 2], 4, 0, CPU)
    torch.rand(3, generator=generator_of(5, 2))
    assert torch.equal(state, torch.get_rng_state())


@given(rows=st.lists(seeds, min_size=1, max_size=5))
def test_noise_of_a_row_follows_from_its_seed_alone(rows: list[int]) -> None:
    drawn = noise(rows, 33, 3, CPU)
    assert drawn.dtype == torch.float32
    for k, seed in enumerate(rows):
        assert torch.equal(noise([seed], 33, 3, CPU)[0], drawn[k])
    assert torch.equal(noise(rows, 50, 3, CPU)[:, :33], drawn)
    assert not torch.equal(noise(rows, 33, 4, CPU), drawn)


def test_noise_is_nearly_normal_and_white() -> None:
    drawn = noise(range(8), 40000, 3, CPU).double()  # (8, 40000)
    assert float(drawn.mean(dim=1).abs().max()) < 0.02  # four standard deviations
    assert float((drawn.var(dim=1) - 1).abs().max()) < 0.03
    for reach, fraction in ((1.0, 0.683), (2.0, 0.954), (3.0, 0.997)):
        assert float((drawn.abs() < reach).double().mean()) == pytest.approx(fraction, abs=0.02)
    for lag in (1, 2, 3, 64, 384):
        assert abs(float((drawn[:, lag:] * drawn[:, :-lag]).mean())) < 0.01
    related = torch.corrcoef(drawn)
    assert float((related - torch.eye(8, dtype=torch.float64)).abs().max()) < 0.025
