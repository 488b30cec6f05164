"""The Triton kernels that choose keypoints by cells and put them together, on the CPU by Triton's interpreter.

The interpreter is chosen when Triton is first imported, so that these run in a process of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, randn
from steerers.accel.networks import for_inference, layers
from steerers.accel.networks.compact import FastCompact, LevelFrame, LevelKeypoints, choose_in_cells, merge_scales
from steerers.models import compact
from steerers.models.compact import FLATTEST, Compact, CompactConfig, Pyramid, textured, textured_cells
from steerers.models.sampling import KeypointSampling, choose_keypoints

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")
pytestmark = pytest.mark.usefixtures("one_thread")
few = settings(max_examples=7)
SIZES = st.tuples(st.integers(1, 17), st.integers(1, 20))


def test_interpreted(interpret: Callable[[], None]) -> None:
    interpret()


def pictures(*shape: int, seed: int = 0) -> Tensor:
    """Grey of nearly one value, with some cells that show something."""
    images = torch.full(shape, 0.5)
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(-1, 2, (shape[0], 1, *shape[2:]), generator=generator) / 255
    seen = (torch.rand(shape[0], 1, *(-(-n // 8) for n in shape[2:]), generator=generator) < 0.1).float()
    where = F.interpolate(seen, scale_factor=8.0)[..., : shape[2], : shape[3]]
    return images + levels * where


def ranked(xy: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of one image, what counts, best first."""
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] >= 0]
    return xy[order], scores[order]


# Texture --------------------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("shape", [(2, 3, 33, 270), (1, 3, 8, 5), (1, 3, 1, 1)])
@pytest.mark.parametrize("rotated", [False, True])
def test_extremes_are_those_of_texture(shape: tuple[int, int, int, int], rotated: bool) -> None:
    from steerers.accel.networks import keypoint_kernels

    images = pictures(*shape)
    images = images.mT if rotated else images
    extremes = keypoint_kernels.extremes(images)
    around = F.max_pool2d(extremes, 3, stride=1, padding=1).sum(dim=1)
    assert torch.equal(around >= FLATTEST, textured_cells(images, ceil=True))


# Choice ---------------------------------------------------------------------------------------------------------------


@interpreted
@few
@given(SIZES, st.integers(0, 100), st.sampled_from([3, 5, 7]), st.integers(0, 5), st.integers(1, 20), st.booleans())
def test_one_a_cell_are_all(
    size: tuple[int, int], seed: int, window: int, border: int, count: int, masked: bool
) -> None:
    logits = 2 * randn(2, *size, seed=seed, dtype=torch.float32)
    masks = randn(2, *size, seed=seed + 1, dtype=torch.float32) > -0.5 if masked else None
    subpixel: tuple[bool | Literal["peak"], ...] = (True, False, "peak")
    options = KeypointSampling(coverage=False, nms_size=window, subpixel=subpixel[seed % 3], border=border)
    expected_xy, expected_scores, real = choose_keypoints(logits, count, masks, options)
    xy, scores = choose_in_cells(logits, count, masks, options, factor=0.5)
    assert xy.shape[1] == min(count, math.prod(-(-n // (window // 2 + 1)) for n in size))
    for image, number in enumerate(real.sum(dim=1).tolist()):
        place, score = ranked(xy[image], scores[image])
        assert len(place) == number
        assert_near(place, expected_xy[image, :number], 1e-5)
        assert_near(2 * score, expected_scores[image, :number], 1e-6)


@interpreted
def test_over_several_programs() -> None:
    logits, options = randn(2, 7, 420, dtype=torch.float32), KeypointSampling(coverage=False, nms_size=5)
    expected_xy, expected_scores, real = choose_keypoints(logits, 400, None, options)
    xy, scores = choose_in_cells(logits, 400, None, options)
    for image, number in enumerate(real.sum(dim=1).tolist()):
        place, score = ranked(xy[image], scores[image])
        assert torch.equal(place, expected_xy[image, :number])
        assert_near(score, expected_scores[image, :number], 1e-6)


@interpreted
@few
@given(SIZES, st.integers(0, 100))
def test_only_where_there_is_something_to_see(size: tuple[int, int], seed: int) -> None:
    images, logits = pictures(2, 3, *size, seed=seed), randn(2, *size, seed=seed, dtype=torch.float32)
    options = KeypointSampling(coverage=False, nms_size=5)
    expected, _, real = choose_keypoints(logits, 50, textured(images), options)
    xy, scores = choose_in_cells(logits, 50, None, options, images)
    for image, number in enumerate(real.sum(dim=1).tolist()):
        assert torch.equal(ranked(xy[image], scores[image])[0], expected[image, :number])


@interpreted
@few
@given(SIZES, st.integers(0, 100), st.sampled_from([3, 5]))
def test_of_equal_pixels_in_a_cell_one_remains(size: tuple[int, int], seed: int, window: int) -> None:
    """Never what is no peak, and never two in a cell."""
    logits = torch.randint(0, 4, (1, *size), generator=torch.Generator().manual_seed(seed)).float()
    options = KeypointSampling(coverage=False, nms_size=window)
    expected, _, real = choose_keypoints(logits, 10**6, None, options)
    every = {tuple(p) for p in expected[0, : int(real.sum())].tolist()}
    xy, scores = choose_in_cells(logits, 10**6, None, options)
    found = [tuple(p) for p in ranked(xy[0], scores[0])[0].tolist()]
    side = window // 2 + 1
    cells = {(x // side, y // side) for x, y in found}
    assert set(found) <= every
    assert len(cells) == len(found)
    assert float(logits.amax()) in {float(logits[0, int(y), int(x)]) for x, y in found}


@interpreted
def test_a_flat_map_has_one_keypoint_a_cell() -> None:
    options, logits = KeypointSampling(coverage=False, nms_size=5), torch.zeros(1, 7, 8)
    xy, scores = choose_in_cells(logits, 100, None, options)
    places = ranked(xy[0], scores[0])[0].tolist()
    assert sorted(map(tuple, places)) == [(x, y) for x in (0, 3, 6) for y in (0, 3, 6)]
    masks = torch.ones(1, 7, 8, dtype=torch.bool)
    masks[0, 0, 0] = masks[0, 3:, 3:] = False  # the first of a cell, and whole cells
    xy, scores = choose_in_cells(logits, 100, masks, options)
    places = ranked(xy[0], scores[0])[0].tolist()
    assert sorted(map(tuple, places)) == [(0, 3), (0, 6), (1, 0), (3, 0), (6, 0)]


@interpreted
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_not_finite_shows_in_the_scores(bad: float, masked: bool) -> None:
    logits, options = randn(2, 9, 11, dtype=torch.float32), KeypointSampling(coverage=False, nms_size=3)
    masks = torch.zeros(2, 9, 11, dtype=torch.bool) if masked else None
    assert choose_in_cells(logits, 9, masks, options)[1].isfinite().all()
    logits[1, 4, 5] = bad
    _, scores = choose_in_cells(logits, 9, masks, options)
    assert scores[0].isfinite().all()
    assert scores[1].isnan().all()


# Merging --------------------------------------------------------------------------------------------------------------


def part(count: int, seed: int, *, equal: bool = False) -> LevelKeypoints:
    """As a choice by topk gives it: best first."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, count, generator=generator)
    scores = (4 * scores).round() / 4 if equal else scores
    scores[1, count // 2 :] = -1.0
    scores = scores.sort(dim=1, descending=True).values
    return LevelKeypoints(
        50 * torch.rand(2, count, 2, generator=generator), scores, randn(2, count, 6, dtype=torch.float32)
    )


@interpreted
@few
@given(st.lists(st.integers(1, 150), min_size=1, max_size=3), st.integers(1, 200), st.integers(0, 100), st.booleans())
def test_merging(counts: list[int], num_keypoints: int, seed: int, equal: bool) -> None:
    parts = [part(count, seed + k, equal=equal) for k, count in enumerate(counts)]
    num_keypoints = max(num_keypoints, *counts)  # no part has more than was asked for
    frames = [LevelFrame(1.0 + k, 1.0 + k / 2, 16.0 * (1 + k)) for k in range(len(parts))]
    expected = merge_scales(parts, frames, num_keypoints)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "has_kernels", lambda _: True)
        actual = merge_scales(parts, frames, num_keypoints)
    assert torch.equal(actual.stats.long(), expected.stats)
    for own, other in zip(actual[:4], expected[:4], strict=True):
        for image, number in enumerate(expected.stats[:2].tolist()):
            assert_near(own[image, :number], other[image, :number], 1e-5)


@interpreted
def test_merging_sorts_what_is_in_no_order() -> None:
    found = part(70, 0)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "has_kernels", lambda _: True)
        merged = merge_scales(
            [LevelKeypoints(*(tensor[:, order] for tensor in found))], [LevelFrame(1.0, 1.0, 16.0)], 70
        )
    assert torch.equal(merged.scores, found.scores)
    assert torch.equal(merged.xy[0], found.xy[0])
    assert torch.equal(merged.descriptions[0], found.descriptions[0])
    assert merged.stats.tolist() == [70, 35, 0]


@pytest.mark.parametrize("kernels", [pytest.param(True, marks=interpreted), False])
@pytest.mark.parametrize("which", ["scores", "descriptions"])
def test_merging_says_what_is_not_finite(which: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "has_kernels", lambda _: kernels)
    first, second = part(20, 0), part(30, 1)
    assert int(merge_scales([first, second], [LevelFrame(1.0, 1.0, 16.0)] * 2, 100).stats[-1]) == 0
    getattr(second, which)[1, 29] = math.nan
    assert int(merge_scales([first, second], [LevelFrame(1.0, 1.0, 16.0)] * 2, 100).stats[-1]) == 1


# All of it ------------------------------------------------------------------------------------------------------------


@interpreted
def test_a_whole_pyramid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU would run it, but for cuDNN."""
    monkeypatch.setattr(compact, "SMALLEST", 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = Compact(CompactConfig(channels=(16, 16, 32), blocks=(1, 1), dim=12, hidden=8)).eval()
    images = torch.rand(1, 3, 32, 36, generator=torch.Generator().manual_seed(0))
    masks = torch.rand(1, 32, 36, generator=torch.Generator().manual_seed(1)) > 0.05
    expected = Pyramid(FastCompact(plain)).extract(images, num_keypoints=60, masks=masks)
    fast = for_inference(Pyramid(plain))
    monkeypatch.setattr(layers, "has_kernels", lambda _: True)
    monkeypatch.setattr(layers, "uses_kernels", lambda _: True)
    found = fast.extract(images, num_keypoints=60, masks=masks)
    for (keypoints, descriptions), (wanted, values) in zip(found, expected, strict=True):
        assert len(keypoints) == len(wanted) > 2
        assert keypoints.scales is not None
        assert len(keypoints.scales.unique()) == 2
        assert torch.equal(keypoints.scales, wanted.scales)  # type: ignore[arg-type]
        assert_near(keypoints.xy, wanted.xy, 1e-4)
        assert_near(keypoints.scores, wanted.scores, 1e-5)
        assert_near(descriptions, values, 1e-4)
