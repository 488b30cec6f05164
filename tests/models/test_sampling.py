"""Keypoints from logits and descriptions at keypoints."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import to_pixels
from steerers.models.sampling import (
    DEFAULT_SAMPLING,
    KeypointSampling,
    choose_keypoints,
    keypoint_scores,
    peaks,
    refine,
    sample_descriptions,
    sample_keypoints,
)

PLAIN = KeypointSampling(coverage=False)
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def random_logits(height: int, width: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(height, width, generator=torch.Generator().manual_seed(seed))


def peak(height: int, width: int, x: float, y: float, sigma: float = 1.0) -> Tensor:
    """Logits of a Gaussian about (x, y)."""
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return -((xs - x) ** 2 + (ys - y) ** 2) / (2 * sigma**2)


def pixels(keypoints: Keypoints) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in keypoints.xy]


def sample(
    logits: Tensor, count: int, mask: Tensor | None = None, sampling: KeypointSampling = DEFAULT_SAMPLING
) -> Keypoints:
    """The keypoints of one (H, W) map."""
    return sample_keypoints(logits[None], count, None if mask is None else mask[None], sampling)[0]


# The choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 40), (30, 65), (80, 21)])
@pytest.mark.parametrize("coverage", [True, False])
def test_agrees_with_kornia(size: tuple[int, int], coverage: bool) -> None:
    oracle = pytest.importorskip("kornia.feature.dedode.utils").sample_keypoints
    logits = random_logits(*size)
    probabilities = logits.flatten().softmax(0).view(1, *size)
    points, scores = oracle(probabilities, num_samples=200, increase_coverage=coverage)
    ours = sample(logits, 200, None, KeypointSampling(coverage=coverage))
    torch.testing.assert_close(ours.xy, to_pixels(points[0], size[::-1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.scores, scores[0], atol=0, rtol=1e-5)


def test_pixel_frame_and_order() -> None:
    logits = torch.full((5, 7), -4.0)
    logits[0, 0], logits[4, 6], logits[1, 5] = 3.0, 2.0, 1.0
    keypoints = sample(logits, 3, None, PLAIN)
    assert pixels(keypoints) == [(0, 0), (6, 4), (5, 1)]
    torch.testing.assert_close(keypoints.scores, logits.flatten().softmax(0)[[0, 34, 12]])
    assert keypoints.xy.dtype == keypoints.scores.dtype == torch.float32


@given(SIZES, st.integers(0, 100))
@settings(deadline=None, max_examples=25)
def test_scores_without_coverage_are_the_probabilities(size: tuple[int, int], seed: int) -> None:
    keypoints = sample(random_logits(*size, seed), 10**6, None, PLAIN)
    assert len(keypoints) == math.prod(size)
    assert float(keypoints.scores.sum()) == pytest.approx(1, abs=1e-5)
    assert (keypoints.scores.diff() <= 0).all()


@given(SIZES, st.integers(0, 100), st.integers(1, 3), st.sampled_from([torch.float32, torch.float64]))
@settings(deadline=None, max_examples=25)
def test_scores_rotate_with_the_map(size: tuple[int, int], seed: int, rotations: int, dtype: torch.dtype) -> None:
    logits = random_logits(*size, seed).to(dtype)
    rotated = keypoint_scores(torch.rot90(logits, rotations)[None])[0]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        rotated, torch.rot90(keypoint_scores(logits[None])[0], rotations), rtol=tolerance, atol=0
    )


def test_coverage_prefers_the_lonely() -> None:
    logits = torch.full((60, 120), -20.0)
    logits[20:40, 10:30] = 1.0  # a crowd
    logits[30, 100] = 0.5  # one alone, a little less probable than each of the crowd
    assert pixels(sample(logits, 1, None, DEFAULT_SAMPLING)) == [(100, 30)]
    assert pixels(sample(logits, 1, None, PLAIN)) != [(100, 30)]


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = random_logits(30, 40).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keypoints = sample(logits, 50)
    expected = sample(logits.float(), 50)
    assert torch.equal(keypoints.xy, expected.xy)
    assert torch.equal(keypoints.scores, expected.scores)


# Mask, border, suppression --------------------------------------------------------------------------------------------


@given(SIZES, st.integers(0, 100), st.floats(0, 1), st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=25)
def test_a_mask_keeps_the_ranking_of_what_it_allows(
    size: tuple[int, int], seed: int, fraction: float, nms_size: int
) -> None:
    logits = random_logits(*size, seed)
    mask = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < fraction
    sampling = KeypointSampling(nms_size=nms_size)
    everything = sample(logits, 10**6, None, sampling)
    x, y = everything.xy.long().unbind(1)
    expected = everything.select(mask[y, x])
    masked = sample(logits, 10**6, mask, sampling)
    assert torch.equal(masked.xy, expected.xy)
    assert torch.equal(masked.scores, expected.scores)
    fewer = sample(logits, 5, mask, sampling)
    assert torch.equal(fewer.xy, expected.xy[:5])


def test_nothing_allowed_is_no_keypoints() -> None:
    logits = random_logits(10, 10)
    assert len(sample(logits, 5, torch.zeros(10, 10, dtype=torch.bool))) == 0
    assert len(sample(logits, 5, None, KeypointSampling(border=5))) == 0


def test_border() -> None:
    keypoints = sample(random_logits(12, 20), 10**6, None, KeypointSampling(border=4))
    assert len(keypoints) == 4 * 12
    assert keypoints.xy.amin(0).tolist() == [4, 4]
    assert keypoints.xy.amax(0).tolist() == [15, 7]


@pytest.mark.parametrize("nms_size", [3, 5])
def test_suppression_leaves_one_in_a_window(nms_size: int) -> None:
    logits = random_logits(40, 50)
    keypoints = sample(logits, 10**6, None, KeypointSampling(nms_size=nms_size))
    chebyshev = (keypoints.xy[:, None] - keypoints.xy[None]).abs().amax(-1)
    chebyshev.fill_diagonal_(torch.inf)
    assert float(chebyshev.min()) > nms_size // 2
    assert keypoints.scores[0] == keypoint_scores(logits[None]).max()


def test_suppression_where_probabilities_are_zero() -> None:
    logits = random_logits(40, 40, spread=60.0)
    sampling = KeypointSampling(coverage=False, nms_size=5)
    keypoints = sample(logits, 10**6, None, sampling)
    assert float(keypoints.scores.min()) == 0.0
    chebyshev = (keypoints.xy[:, None] - keypoints.xy[None]).abs().amax(-1)
    assert float(chebyshev.fill_diagonal_(torch.inf).min()) > 2
    x, y = keypoints.xy.long().T
    assert (logits[y, x].diff() <= 0).all()


def test_what_is_impossible_comes_before_what_is_not_allowed() -> None:
    logits = torch.full((3, 4), -torch.inf)
    logits[0, 0], mask = 1.0, torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 0] = mask[2, 1] = True
    assert pixels(sample(logits, 5, mask, PLAIN)) == [(0, 0), (1, 2)]


# Sub-pixel ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [(10.0, 8.0), (10.3, 8.0), (9.8, 8.4)])
def test_subpixel_finds_a_peak_between_pixels(where: tuple[float, float]) -> None:
    logits = peak(17, 21, *where)
    sampling = KeypointSampling(coverage=False, nms_size=7, subpixel=True)
    refined = sample(logits, 1, None, sampling)
    torch.testing.assert_close(refined.xy[0], torch.tensor(where), atol=0.02, rtol=0)
    assert pixels(sample(logits, 1, None, PLAIN)) == [(round(where[0]), round(where[1]))]


def test_subpixel_is_the_soft_argmax_with_temperature_one_half() -> None:
    logits = torch.full((5, 5), -100.0)
    logits[2, 2], logits[2, 3] = 1.0, 0.5
    refined = sample(logits, 1, None, KeypointSampling(nms_size=3, subpixel=True, coverage=False))
    fraction = math.exp(0.5 / 0.5) / (math.exp(1 / 0.5) + math.exp(0.5 / 0.5))
    torch.testing.assert_close(refined.xy, torch.tensor([[2 + fraction, 2.0]]))


@given(x=st.floats(-0.7, 0.7), y=st.floats(-0.7, 0.7), a=st.floats(0.3, 3), c=st.floats(0.3, 3), b=st.floats(-0.7, 0.7))
def test_the_peak_of_a_paraboloid_is_exact(
    dtype: torch.dtype, x: float, y: float, a: float, b: float, c: float
) -> None:
    """Also where the best pixel is not the nearest one, as far as it moves by one at most."""
    b *= math.sqrt(a * c)
    column, row = torch.arange(11, dtype=dtype) - 5 - x, torch.arange(9, dtype=dtype)[:, None] - 4 - y
    logits = -(a * column**2 + 2 * b * column * row + c * row**2) / 2
    found = peaks(logits[None], torch.tensor([[[5, 4]]]))
    torch.testing.assert_close(found[0, 0], torch.tensor([5 + x, 4 + y], dtype=dtype), atol=1e-4, rtol=0)


def test_what_is_no_top_stays() -> None:
    flat, saddle = torch.zeros(7, 7), torch.arange(7.0) ** 2 - torch.arange(7.0)[:, None] ** 2
    hole = torch.full((7, 7), -torch.inf)
    pixel = torch.tensor([[[3, 3], [0, 6]]])
    for logits in (flat, saddle, hole):
        assert torch.equal(peaks(logits[None], pixel), pixel.float())
    saddle[2, 3] = torch.nan  # which training looks for
    assert peaks(saddle[None], pixel).isnan().tolist() == [[[True, True], [False, False]]]


def test_a_peak_moves_by_one_at_most_and_has_gradients() -> None:
    logits = (torch.arange(9.0) * 5 - 0.1 * torch.arange(9.0) ** 2 - 2 * (torch.arange(9.0)[:, None] - 4) ** 2)[None]
    logits.requires_grad_()
    found = peaks(logits, torch.tensor([[[4, 4], [8, 4]]]))
    torch.testing.assert_close(found[0, 0], torch.tensor([5.0, 4.0]))
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert bool(gradient.isfinite().all())


def test_subpixel_at_the_edge_stays_in_the_image() -> None:
    logits = peak(9, 9, 0, 8)
    refined = sample(logits, 1, None, KeypointSampling(nms_size=5, subpixel=True))
    x, y = refined.xy[0].tolist()
    assert 0 < x < 1
    assert 7 < y < 8


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"nms_size": 2}, {"nms_size": 0}, {"border": -1}, {"subpixel": True}, {"subpixel": "top"}]
)
def test_wrong_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        KeypointSampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite(bad: float) -> None:
    logits = random_logits(8, 8)
    logits[3, 4] = bad
    with pytest.raises(ValueError, match="NaN or inf"):
        sample(logits, 5)
    with pytest.raises(ValueError, match="-inf everywhere"):
        sample(torch.full((8, 8), -torch.inf), 5)


def test_wrong_arguments() -> None:
    logits = random_logits(8, 9)
    with pytest.raises(ValueError, match="num_keypoints must be at least 1, got 0"):
        sample(logits, 0)
    with pytest.raises(ValueError, match=r"\(B, H, W\), got \(8, 9\)"):
        sample_keypoints(logits, 5)
    with pytest.raises(ValueError, match=r"masks must have the images' shape \(1, 8, 9\), got \(1, 9, 8\)"):
        sample(logits, 5, torch.ones(9, 8, dtype=torch.bool))
    with pytest.raises(TypeError, match="bool"):
        sample(logits, 5, torch.ones(8, 9))


# Descriptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_descriptions_of_a_linear_map(dtype: torch.dtype) -> None:
    ys, xs = torch.meshgrid(torch.arange(11), torch.arange(17), indexing="ij")
    maps = torch.stack((xs, ys, xs - 2 * ys)).to(dtype)[None]  # (1, 3, 11, 17)
    xy = torch.rand(1, 50, 2, dtype=dtype) * torch.tensor([16, 10])
    descriptions = sample_descriptions(maps, xy)
    x, y = xy.unbind(-1)
    torch.testing.assert_close(descriptions, torch.stack((x, y, x - 2 * y), dim=-1), atol=1e-4, rtol=0)


def test_descriptions_of_a_map_of_another_size() -> None:
    maps = torch.arange(8.0).expand(1, 1, 4, 8)
    xy = torch.tensor([[[7.5, 3.0]]])  # the middle of an image of width 16
    assert sample_descriptions(maps, xy, size=(16, 8)).item() == pytest.approx(3.5)


def test_descriptions_beyond_the_edge_and_of_nothing() -> None:
    maps = torch.randn(1, 6, 5, 7)
    outside = torch.tensor([[[-0.5, -0.5], [6.4, 4.5], [100.0, 2.0]]])
    torch.testing.assert_close(sample_descriptions(maps, outside)[0], maps[0, :, [0, 4, 2], [0, 6, 6]].T)
    assert sample_descriptions(maps, torch.zeros(1, 0, 2)).shape == (1, 0, 6)
    with pytest.raises(ValueError, match="do not fit"):
        sample_descriptions(maps, torch.zeros(2, 3, 2))


def test_gradients_go_through_descriptions() -> None:
    maps = torch.randn(2, 3, 5, 7, requires_grad=True)
    sample_descriptions(maps, torch.rand(2, 4, 2) * 4).sum().backward()
    assert maps.grad is not None
    assert float(maps.grad.sum()) == pytest.approx(2 * 4 * 3, rel=1e-4)


# Batches --------------------------------------------------------------------------------------------------------------


@given(
    SIZES,
    st.integers(0, 100),
    st.integers(1, 30),
    st.sampled_from(
        [
            PLAIN,
            DEFAULT_SAMPLING,
            KeypointSampling(nms_size=3, border=2),
            KeypointSampling(coverage=False, nms_size=5, subpixel=True, border=1),
        ]
    ),
    st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_a_batch_is_sampled_image_by_image(
    size: tuple[int, int], seed: int, count: int, sampling: KeypointSampling, masked: bool
) -> None:
    logits = torch.stack([random_logits(*size, seed + k) for k in range(3)])
    masks = torch.rand(3, *size, generator=torch.Generator().manual_seed(seed)) < 0.4 if masked else None
    xy, _, real = choose_keypoints(logits, count, masks, sampling)
    assert xy.shape == (3, count, 2)
    assert real.shape == xy.shape[:2]
    assert xy.isfinite().all()
    for index in range(3):
        expected = sample(logits[index], count, None if masks is None else masks[index], sampling)
        assert real[index].tolist() == [k < len(expected) for k in range(real.shape[1])]
        torch.testing.assert_close(xy[index][real[index]], expected.xy)


def test_a_batch_is_sampled_in_full_precision() -> None:
    logits = torch.stack([random_logits(300, 400, seed) for seed in (0, 1)])
    sampling = KeypointSampling(coverage=False, nms_size=5, subpixel=True)
    expected, *_ = choose_keypoints(logits, 50, None, sampling)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        xy, *_ = choose_keypoints(logits, 50, None, sampling)
    assert xy.dtype == torch.float32
    assert torch.equal(xy, expected)
    assert choose_keypoints(logits.double(), 50, None, sampling)[0].dtype == torch.float64
    assert choose_keypoints(logits.bfloat16(), 50, None, sampling)[0].dtype == torch.float32


@pytest.mark.parametrize("size", [3, 5])
def test_the_gradient_of_refinement(size: int) -> None:
    logits = torch.randn(2, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    pixels = torch.tensor([[[0, 0], [4, 3], [8, 6]], [[8, 0], [1, 5], [5, 6]]])  # at the edges too
    assert torch.autograd.gradcheck(lambda x: refine(x, pixels, size), (logits,))


def test_keypoints_follow_the_gradient_of_their_positions() -> None:
    logits = peak(15, 15, 7.0, 7.0)[None].requires_grad_()
    sampling = KeypointSampling(coverage=False, nms_size=5, subpixel=True)
    xy, *_ = choose_keypoints(logits, 1, None, sampling)
    (xy[0, 0, 0] - 8).square().backward()  # further to the right, please
    assert float(logits.grad[0, 7, 8]) < 0 < float(logits.grad[0, 7, 6])
    moved = choose_keypoints(logits.detach() - logits.grad, 1, None, sampling)[0]
    assert 7 < float(moved[0, 0, 0]) < 8
