"""The objective of the paper, and what keypoints are trained by."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, randn, seeds
from steerers.training.objectives.descriptions import Described, Matcher, MatchingOptions
from steerers.training.objectives.losses import (
    corner_response,
    joint_targets,
    look_up,
    matching_accuracy,
    matching_nll,
    pixel_grid,
    reprojection_error,
)
from training.tiny import Shift

# Matching -------------------------------------------------------------------------------------------------------------


def unit(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(randn(*shape, seed=seed, dtype=dtype), dim=-1)


def test_the_loss_is_the_negative_logarithm_of_equation_1(dtype: torch.dtype, tolerance: float) -> None:
    unit0, unit1 = (unit(n, 16, seed=n, dtype=dtype) for n in (9, 7))
    matches = torch.tensor([[0, 0, 3], [0, 5, 5], [0, 8, 0]])
    scores = 20 * unit0 @ unit1.mT
    probability = scores.softmax(dim=1) * scores.softmax(dim=0)
    expected = -probability[matches[:, 1], matches[:, 2]].log()
    assert_near(matching_nll(unit0[None], unit1[None], matches), expected, tolerance)


@st.composite
def filled(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int, int]:
    """The real numbers of descriptions of each pair, to how many they are filled up, and a seed."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3))
    rows = max(1, *(n for n, _ in lengths)) + draw(st.integers(0, 2))
    columns = max(1, *(m for _, m in lengths)) + draw(st.integers(0, 2))
    return lengths, rows, columns, draw(seeds)


@given(filled(), st.floats(1, 30))
def test_what_fills_up_a_batch_changes_nothing(
    dtype: torch.dtype, tolerance: float, drawn: tuple[list[tuple[int, int]], int, int, int], temperature: float
) -> None:
    lengths, rows, columns, seed = drawn
    unit0, unit1 = unit(len(lengths), rows, 6, seed=seed), unit(len(lengths), columns, 6, seed=seed + 1)
    matches, expected = [], []
    for pair, (n, m) in enumerate(lengths):  # the textbook's form, of what is real alone
        scores = temperature * unit0[pair, :n] @ unit1[pair, :m].mT
        likelihood = (scores.softmax(dim=1) * scores.softmax(dim=0)).log()
        for i in range(min(n, m)):
            matches.append((pair, i, (i + seed) % m))
            expected.append(-float(likelihood[i, (i + seed) % m]))
    triples = torch.tensor(matches, dtype=torch.long).reshape(-1, 3)
    real0 = torch.arange(rows) < torch.tensor([n for n, _ in lengths])[:, None]
    real1 = torch.arange(columns) < torch.tensor([m for _, m in lengths])[:, None]
    first, second = unit0.to(dtype).requires_grad_(), unit1.to(dtype).requires_grad_()
    each = matching_nll(first, second, triples, temperature, real0, real1)
    assert_near(each, torch.tensor(expected, dtype=torch.float64), tolerance * 10)
    each.sum().backward()
    for gradient, real in ((first.grad, real0), (second.grad, real1)):
        assert gradient is not None
        assert gradient.isfinite().all()
        assert float(gradient[~real].abs().sum()) == 0.0


@pytest.mark.parametrize(("rows", "columns"), [(4, 5), (0, 5), (4, 0)])
def test_no_matches_give_no_loss_and_no_nan(rows: int, columns: int) -> None:
    unit0, unit1 = (unit(n, 8, seed=n).requires_grad_() for n in (rows, columns))
    pairs = Described(unit0[None], unit1[None], torch.zeros(1), torch.zeros(0, 3, dtype=torch.long))
    term, probabilities = Matcher(None, MatchingOptions()).terms(pairs)
    term.total.backward()
    assert (float(term.total.detach()), float(term.count), len(probabilities)) == (0.0, 0.0, 0)
    for description in (unit0, unit1):
        assert description.grad is not None
        assert torch.equal(description.grad, torch.zeros_like(description))


def test_a_pair_without_any_real_keypoint_gives_no_nan() -> None:
    descriptions = unit(2, 3, 4, seed=0).requires_grad_()
    real = torch.tensor([[True, True, True], [False, False, False]])
    matching_nll(descriptions, descriptions, torch.tensor([[0, 1, 1]]), 20.0, real, real).sum().backward()
    assert descriptions.grad is not None
    assert descriptions.grad.isfinite().all()


def test_accuracy_counts_mutual_nearest_true_matches() -> None:
    unit = torch.eye(4)[None]
    assert matching_accuracy(unit, unit, torch.tensor([[0, 0, 0], [0, 1, 1], [0, 2, 3], [0, 3, 2]])) == 0.5
    assert matching_accuracy(unit, unit.flip(1), torch.tensor([[0, 0, 3], [0, 3, 0]])) == 1.0
    assert math.isnan(matching_accuracy(unit, unit, torch.zeros(0, 2, dtype=torch.long)))


def test_accuracy_does_not_count_what_fills_up() -> None:
    first, second = torch.tensor([[[1.0, 0]]]), torch.tensor([[[-1.0, 0], [1, 0]]])  # the better one only fills up
    matches = torch.tensor([[0, 0, 0]])
    assert matching_accuracy(first, second, matches) == 0.0
    assert matching_accuracy(first, second, matches, torch.tensor([[True]]), torch.tensor([[True, False]])) == 1.0


# Corners --------------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 3), st.tuples(st.integers(4, 20), st.integers(4, 20)))
def test_corners_rotation_with_the_image(
    dtype: torch.dtype, tolerance: float, seed: int, rotations: int, size: tuple[int, int]
) -> None:
    image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    rotated = corner_response(torch.rot90(image, rotations, (2, 3)))
    assert_near(rotated, torch.rot90(corner_response(image), rotations, (1, 2)), tolerance * 0.01)


def test_corners_are_where_the_corners_are() -> None:
    image = torch.zeros(1, 3, 40, 40)
    image[..., 10:31, 8:25] = 1.0
    response = corner_response(image)[0]
    peaks = F.max_pool2d(response[None, None], 9, stride=1, padding=4)[0, 0]
    y, x = ((response == peaks) & (response > 0.5 * response.max())).nonzero().T
    found = {(int(a), int(b)) for a, b in zip(x, y, strict=True)}
    assert len(found) == 4
    for corner in ((8, 10), (24, 10), (8, 30), (24, 30)):
        assert min(max(abs(corner[0] - a), abs(corner[1] - b)) for a, b in found) <= 2
    assert float(response[20, 8].abs()) < 1e-6  # a straight edge
    assert float(response[20, 16].abs()) < 1e-6  # nothing at all
    assert float(response.min()) > -1e-6


def test_corners_are_not_computed_in_half_precision() -> None:
    image = torch.rand(1, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        response = corner_response(image)
    assert torch.equal(response, corner_response(image))


# Looking up -----------------------------------------------------------------------------------------------------------


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), seeds)
def test_whole_pixels_are_looked_up_exactly(size: tuple[int, int], seed: int) -> None:
    maps = randn(2, *size, seed=seed)
    found = look_up(maps, pixel_grid(2, *size, maps.device))
    assert_near(found.view_as(maps), maps, 1e-6)


def test_looking_up_is_linear_between_pixels_and_constant_beyond() -> None:
    maps = torch.arange(5.0).expand(1, 4, 5) + 10 * torch.arange(4.0)[:, None]
    xy = torch.tensor([[[1.5, 0.0], [2.25, 1.5], [-3.0, -7.0], [90.0, 2.0]]])
    assert_near(look_up(maps, xy)[0], torch.tensor([1.5, 17.25, 0.0, 24.0]), 1e-5)


def test_looking_up_nowhere_is_any_number() -> None:
    maps = torch.randn(1, 4, 5, requires_grad=True)
    xy = torch.tensor([[[math.nan, math.nan], [math.inf, 1.0], [1.0, -math.inf], [math.nan, 2.0]]])
    found = look_up(maps, xy)
    assert found.isfinite().all()
    (found * torch.tensor([[0.0, 1, 1, 0]])).sum().backward()
    assert maps.grad.isfinite().all()


# Targets --------------------------------------------------------------------------------------------------------------


@given(
    seeds,
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
    st.integers(1, 40),
    st.sampled_from([1, 3, 5]),
    st.floats(0, 1),
)
def test_targets_are_the_best_of_what_is_allowed(
    seed: int, size: tuple[int, int], count: int, suppress: int, share: float
) -> None:
    log0, log1 = randn(2, *size, seed=seed), randn(2, *size, seed=seed + 1)
    allowed = torch.rand(2, *size, generator=torch.Generator().manual_seed(seed)) < share
    xy, real = joint_targets(log0, log1, allowed, count, suppress)
    assert xy.shape[1] == real.shape[1] == min(count, size[0] * size[1])
    joint = (log0 + log1).masked_fill(~allowed, -math.inf)
    for pair in range(2):
        x, y = xy[pair][real[pair]].unbind(1)
        assert allowed[pair, y, x].all()
        values = joint[pair, y, x]
        assert (values.diff() <= 0).all()
        if allowed[pair].any():
            assert float(values[0]) == float(joint[pair].max())
        if suppress == 1:
            assert len(x) == min(count, int(allowed[pair].sum()))
            assert torch.equal(values, joint[pair].flatten().sort(descending=True).values[: len(x)])
        if len(x) > 1:
            distances = (xy[pair][real[pair]][:, None] - xy[pair][real[pair]]).abs().amax(-1)
            assert int(distances.fill_diagonal_(99).min()) > suppress // 2


# Reprojection ---------------------------------------------------------------------------------------------------------


@given(st.floats(-3, 3), st.floats(-3, 3), seeds)
def test_the_reprojection_error_is_the_distance_to_the_true_place(dx: float, dy: float, seed: int) -> None:
    warp = Shift(torch.tensor([2.0, -1.0]), (40, 40))
    xy0 = 10 + 20 * torch.rand(1, 5, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    xy1 = xy0 + torch.tensor([2.0, -1.0]) + torch.tensor([dx, dy], dtype=torch.float64)
    matches = torch.tensor([[0, 0, 0], [0, 3, 3]])
    assert_near(
        reprojection_error(xy0, xy1, matches, warp), torch.full((2,), math.hypot(dx, dy), dtype=torch.float64), 1e-9
    )


def test_points_that_go_nowhere_do_not_spoil_the_gradient_of_the_others() -> None:
    warp = Shift(torch.tensor([5.0, 0.0]), (20, 20))
    xy0 = torch.tensor([[[3.0, 3.0], [18.0, 9.0]]], requires_grad=True)  # the second leaves the image: NaN
    xy1 = torch.tensor([[[9.0, 3.0], [2.0, 9.0]]], requires_grad=True)
    assert warp.forward(xy0)[0].isnan().any()
    reprojection_error(xy0, xy1, torch.tensor([[0, 0, 0]]), warp).sum().backward()
    assert torch.equal(xy0.grad, torch.tensor([[[-1.0, 0], [0, 0]]]))
    assert torch.equal(xy1.grad, torch.tensor([[[1.0, 0], [0, 0]]]))


def test_points_that_coincide_have_no_gradient() -> None:
    xy = torch.tensor([[[3.0, 3.0]]], requires_grad=True)
    warp = Shift(torch.zeros(2), (20, 20))
    reprojection_error(xy, xy.detach().clone(), torch.tensor([[0, 0, 0]]), warp).sum().backward()
    assert torch.equal(xy.grad, torch.zeros_like(xy))
