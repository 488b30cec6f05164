"""Rotation-consistent keypoints: what their targets are, and that they are learned."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, detect_image, randn, seeds
from steerers.datasets.folder import Photographs
from steerers.datasets.pairs import PairBatch, pixel_grid
from steerers.datasets.views import Views
from steerers.models.compact import CompactConfig
from steerers.models.sampling import KeypointSampling, choose_keypoints, peaks
from steerers.training.objectives import Term, Terms
from steerers.training.objectives.keypoints import (
    DetectorObjective,
    Found,
    KeypointOptions,
    _expected,
    corner_response,
    find_keypoints,
    joint_targets,
    keypoint_terms,
    look_up,
    repeatability,
    repeated_targets,
    reprojection_error,
    reprojection_terms,
    without_margin,
    wrong_places,
)
from training.tiny import STILL, Shift, batch_of, compact, descriptor_objective, photographs, rotated, shifted, store_of

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = KeypointOptions(area=1.0, most=6, suppress=1, prior="none", reprojection=0.0)


def mean(term: Term) -> float:
    return float((term.total / term.count).detach())


def logits_like(batch: PairBatch, seed: int = 0) -> tuple[Tensor, Tensor]:
    first, second = (randn(*batch.masks0.shape, seed=seed + k, dtype=torch.float32) for k in (0, 1))
    return first.requires_grad_(), second.requires_grad_()


def terms_of(
    logits0: Tensor,
    logits1: Tensor,
    batch: PairBatch,
    options: KeypointOptions,
    progress: float,
    found: Found | None = None,
) -> Terms:
    """Of views that have found nothing yet, unless told."""
    xy = torch.zeros(len(logits0), 0, 2)
    nothing = Found.of(xy, xy, (xy[..., 0].bool(),) * 2, batch, 1.0)
    return keypoint_terms(logits0, logits1, batch, options, progress, found or nothing)


# The cross entropy ----------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 12), st.tuples(st.integers(-4, 4), st.integers(-4, 4)))
def test_the_loss_is_the_cross_entropy_to_the_best_common_pixels(seed: int, most: int, by: tuple[int, int]) -> None:
    batch = shifted((float(by[0]), float(by[1])), count=2)
    logits0, logits1 = logits_like(batch, seed)
    term = terms_of(logits0, logits1, batch, dataclasses.replace(PLAIN, most=most), 0.0)["keypoints"]
    total = 0.0
    first_logits, second_logits = logits0.detach(), logits1.detach()
    for pair in range(2):  # the same written out, pixel by pixel
        common = [(x, y) for y in range(16) for x in range(20) if 0 <= x + by[0] < 20 and 0 <= y + by[1] < 16]
        first = torch.tensor([float(first_logits[pair, y, x]) for x, y in common], dtype=torch.float64).log_softmax(0)
        second = torch.tensor(
            [float(second_logits[pair, y + by[1], x + by[0]]) for x, y in common], dtype=torch.float64
        )
        total -= float((first + second.log_softmax(0)).topk(most).values.sum())
    assert float(term.count) == 2 * most
    assert float(term.total.detach()) == pytest.approx(total, rel=1e-4)


@given(seeds, st.floats(0.3, 1.5), st.tuples(st.floats(-3, 22), st.floats(-3, 18)))
def test_a_gaussian_target_is_the_mean_that_it_says(seed: int, sigma: float, place: tuple[float, float]) -> None:
    log = randn(1, 16, 20, seed=seed)
    found = float(_expected(log, torch.tensor([[place]], dtype=torch.float64), sigma))
    x, y = min(max(place[0], 0.0), 19.0), min(max(place[1], 0.0), 15.0)
    total = weights = 0.0
    reach = math.ceil(2.5 * sigma)
    for row in range(round(y) - reach, round(y) + reach + 1):
        for column in range(round(x) - reach, round(x) + reach + 1):
            weight = math.exp(-((row - y) ** 2 + (column - x) ** 2) / (2 * sigma**2))
            total += weight * float(log[0, min(max(row, 0), 15), min(max(column, 0), 19)])
            weights += weight
    assert found == pytest.approx(total / weights, abs=1e-9)
    nowhere = torch.full((1, 1, 2), torch.nan, dtype=torch.float64)
    assert bool(_expected(log, nowhere, sigma).isfinite())


@pytest.mark.parametrize("place", [(8.3, 7.6), (10.0, 6.5)])
def test_what_has_learnt_a_gaussian_has_its_top_there(place: tuple[float, float]) -> None:
    logits = torch.zeros(1, 16, 20, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.2)
    xy = torch.tensor([[place]])
    for _ in range(150):
        optimiser.zero_grad()
        (-_expected(logits.flatten(1).log_softmax(dim=1).view_as(logits), xy, 0.8).sum()).backward()
        optimiser.step()
    best = int(logits.detach().flatten().argmax())
    found = peaks(logits.detach(), torch.tensor([[[best % 20, best // 20]]]))
    assert float((found - xy).abs().max()) < 0.03


def test_targets_with_sigma_lie_between_the_pixels_of_both_views() -> None:
    """Two views with a hill each, at the same place of the scene between pixels: there is no gradient at the truth."""
    batch = shifted((2.5, -1.5), count=1)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(20.0), indexing="ij")

    def hill(at: tuple[float, float]) -> Tensor:
        return (-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * 0.8**2))[None].clamp(min=-30).requires_grad_()

    options = dataclasses.replace(PLAIN, most=1, sigma=0.8)
    right = [hill((9.25, 8.75)), hill((11.75, 7.25))]
    wrong = [hill((9.25, 8.75)), hill((12.15, 7.25))]
    totals = [float(terms_of(*pair, batch, options, 0.0)["keypoints"].total.detach()) for pair in (right, wrong)]
    assert totals[0] < totals[1]
    terms_of(*right, batch, options, 0.0)["keypoints"].total.backward()
    pixels = torch.tensor([[[9, 9]]])
    moved = peaks(right[0].detach() - 0.5 * right[0].grad, pixels)
    assert float((moved - torch.tensor([9.25, 8.75])).abs().max()) < 0.06


def test_what_one_view_alone_sees_is_not_judged_and_padding_always_is() -> None:
    masks0 = torch.ones(1, 16, 20, dtype=torch.bool)
    masks0[:, :, :3] = False
    batch = shifted((6.0, 0.0), masks0=masks0)
    logits0, logits1 = logits_like(batch)
    terms_of(logits0, logits1, batch, PLAIN, 0.0)["keypoints"].total.backward()
    assert (logits0.grad[:, :, :3] > 0).all()  # outside of the photograph: less likely from now on
    assert (logits0.grad[:, :, 14:] == 0).all()  # moved out of the second view
    assert (logits1.grad[:, :, :6] == 0).all()  # not in the first view
    assert (logits0.grad[:, :, 3:14] != 0).all()


def known_around(x: int, y: int, radius: int = 2) -> Tensor:
    """(1, 16, 20) bool: the depth of a square is known."""
    known = torch.zeros(1, 16, 20, dtype=torch.bool)
    known[:, y - radius : y + radius + 1, x - radius : x + radius + 1] = True
    return known


@given(seeds, st.integers(1, 9))
def test_clutter_is_what_is_far_from_anything_known(seed: int, clutter: int) -> None:
    """Against every distance, by the larger of both coordinates, written out."""
    generator = torch.Generator().manual_seed(seed)
    known0, known1 = (torch.rand(2, 1, 16, 20, generator=generator) < 0.08).unbind()
    masks0 = torch.rand(1, 16, 20, generator=generator) < 0.9
    batch = shifted(masks0=masks0, known=(known0, known1))
    for wrong, known, masks in zip(wrong_places(batch, clutter), (known0, known1), (masks0, batch.masks1), strict=True):
        places = known[0].nonzero().float()
        grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(20.0), indexing="ij"), dim=-1)
        far = (grid[:, :, None] - places).abs().amax(dim=3).amin(dim=2) >= clutter if len(places) else None
        told = far is not None and float(known.float().mean()) >= 0.05
        assert torch.equal(wrong[0], ~masks[0] | (far if told and far is not None else torch.zeros(16, 20).bool()))


def test_clutter_is_no_place_for_keypoints_and_what_the_other_does_not_see_is_not_judged() -> None:
    known = known_around(5, 8)
    batch = shifted((3.0, 0.0), known=(known, known_around(8, 8)))
    logits0, logits1 = logits_like(batch)
    options = dataclasses.replace(PLAIN, clutter=4)
    seen0 = known & batch.warp_pixels(0)[1]
    object.__setattr__(batch.warp, "forward", lambda xy: (Shift.forward(batch.warp, xy)[0], inside(xy, seen0)))
    terms_of(logits0, logits1, batch, options, 0.0)["keypoints"].total.backward()
    assert (logits0.grad[:, :, 14:] > 0).all()  # clutter: less likely from now on
    assert (logits0.grad[0, 8, 8:11] == 0).all()  # beside what is known
    logits0.grad = None
    terms_of(logits0, logits1, batch, PLAIN, 0.0)["keypoints"].total.backward()
    assert (logits0.grad[:, :, 14:] == 0).all()  # unless asked, it is not judged


def inside(xy: Tensor, where: Tensor) -> Tensor:
    """(B, N) bool: which of (B, N, 2) pixels are in (B, H, W) ``where``."""
    x, y = xy.round().long().clamp(min=0).unbind(dim=-1)
    return where[0][y.clamp(max=where.shape[1] - 1), x.clamp(max=where.shape[2] - 1)]


@pytest.mark.parametrize(("known_area", "count"), [(0.0, 4), (80.0, 4), (40.0, 8), (320.0, 1)])
def test_pairs_with_depth_have_targets_by_an_area_of_their_own(known_area: float, count: int) -> None:
    options = dataclasses.replace(PLAIN, area=80.0, known_area=known_area, most=100)
    everywhere = torch.ones(1, 16, 20, dtype=torch.bool)
    for known, expected in ((None, 4), ((everywhere, everywhere), count)):
        batch = shifted(known=known)
        assert float(terms_of(*logits_like(batch), batch, options, 0.0)["keypoints"].count) == expected


@given(seeds, st.sampled_from([1, 5]), st.floats(1, 60))
def test_targets_are_as_many_as_the_area_allows_and_never_in_padding(seed: int, suppress: int, area: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks0, masks1 = torch.rand(2, 2, 16, 20, generator=generator) < 0.6
    batch = shifted((2.0, 1.0), count=2, masks0=masks0, masks1=masks1)
    logits0, logits1 = logits_like(batch, seed)
    with torch.no_grad():
        logits0[~masks0], logits1[~masks1] = 50.0, 50.0  # a network that finds keypoints outside of the photographs
    options = dataclasses.replace(PLAIN, area=area, most=100, suppress=suppress)
    term = terms_of(logits0, logits1, batch, options, 0.0)["keypoints"]
    seen = masks0.clone()
    seen[:, :, 18:], seen[:, 15:] = False, False  # moved out of the second view
    seen[:, :15, :18] &= masks1[:, 1:, 2:]
    allowed = [min(100, math.ceil(int(pair.sum()) / area)) for pair in seen]
    assert float(term.count) <= sum(allowed)
    if suppress == 1:
        assert float(term.count) == sum(min(most, int(pair.sum())) for most, pair in zip(allowed, seen, strict=True))
    term.total.backward()
    for logits, masks in ((logits0, masks0), (logits1, masks1)):
        assert (logits.grad[~masks] >= 0).all()  # a target would pull
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    "options", [KeypointOptions(), KeypointOptions(prior="none"), KeypointOptions(prior="none", targets="repeated")]
)
def test_views_that_share_nothing_give_no_loss_and_no_nan(options: KeypointOptions) -> None:
    batch = shifted((99.0, 0.0), count=2)
    logits0, logits1 = logits_like(batch)
    xy = torch.full((2, 3, 2), 4.0, requires_grad=True)
    real = (torch.ones(2, 3, dtype=torch.bool),) * 2
    found = Found.of(xy, xy, real, batch, 3.0)
    terms = terms_of(logits0, logits1, batch, options, 0.0, found) | reprojection_terms(found, batch, 0.2)
    assert float(terms["keypoints"].count) == float(terms["reprojection"].count) == 0.0
    total = sum(term.total for term in terms.values())
    assert float(total.detach()) == pytest.approx(0.0, abs=1e-6)
    total.backward()
    for leaf in (logits0, logits1, xy):
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_the_margin_of_a_photograph_is_padding() -> None:
    masks = torch.ones(1, 16, 20, dtype=torch.bool)
    masks[:, :, 15:] = False
    batch = shifted((1.0, 0.0), masks0=masks, masks1=masks)
    assert without_margin(batch, 0) is batch
    inner = without_margin(batch, 3)
    expected = masks.clone()
    expected[:, :, 12:] = False  # the view ends at its other sides, not the photograph
    assert torch.equal(inner.masks0, expected)
    assert torch.equal(inner.masks1, expected)
    logits0, logits1 = logits_like(inner)
    with torch.no_grad():
        logits0[:, :, 11], logits1[:, :, 12] = 9.0, 9.0  # within the first, in the margin of the second
    terms_of(logits0, logits1, inner, PLAIN, 0.0)["keypoints"].total.backward()
    assert (logits1.grad[:, :, 12] > 0).all()
    xy = torch.tensor([[[11.0, 4.0], [5.0, 4.0]]])
    real = (torch.ones(1, 2, dtype=torch.bool),) * 2
    assert repeatability(xy, xy + torch.tensor([1.0, 0.0]), inner, real, 1.0) == (1.0, 1.0)


# Priors ---------------------------------------------------------------------------------------------------------------


def targets_of(batch: PairBatch, options: KeypointOptions, progress: float = 0.0) -> set[tuple[int, int]]:
    """Where a network that knows nothing is pulled to."""
    logits0, logits1 = (torch.zeros_like(batch.masks0, dtype=torch.float32).requires_grad_() for _ in (0, 1))
    terms_of(logits0, logits1, batch, options, progress)["keypoints"].total.backward()
    y, x = (logits0.grad[0] < 0).nonzero().T
    return {(int(a), int(b)) for a, b in zip(x, y, strict=True)}


def test_corners_attract_until_they_have_faded() -> None:
    image = torch.zeros(1, 3, 30, 30)
    image[..., 8:20, 10:22] = 1.0
    batch = dataclasses.replace(shifted(size=(30, 30)), images0=image, images1=image)
    options = dataclasses.replace(PLAIN, prior="corners", prior_until=0.5, most=4, suppress=5)
    corners = targets_of(batch, options)
    assert len(corners) == 4
    for x, y in ((10, 8), (21, 8), (10, 19), (21, 19)):
        assert min(max(abs(x - a), abs(y - b)) for a, b in corners) <= 2
    assert targets_of(batch, options, 0.4) == corners
    faded = dataclasses.replace(options, prior="none")
    assert targets_of(batch, options, 0.5) == targets_of(batch, faded, 0.0) != corners


def test_points_for_the_detector_are_no_keypoints_of_a_descriptor() -> None:
    plain = batch_of(photographs())
    points = torch.rand(len(plain), 9, 2, generator=torch.Generator().manual_seed(0)) * plain.images0.shape[-1]
    pointed = dataclasses.replace(plain, detections=(points, points))
    objective = descriptor_objective("B").eval()
    expected, found = (objective(batch, 0.0)["nll"] for batch in (plain, pointed))
    assert float(found.count) == float(expected.count) > 0
    assert torch.equal(found.total, expected.total)


# Keypoints that should be one -----------------------------------------------------------------------------------------


def test_repeatability_counts_what_could_be_found_again() -> None:
    batch = shifted((4.0, 0.0), count=2)
    xy0 = torch.tensor([[[2.0, 2], [8, 8], [18, 5]], [[1, 1], [5, 5], [9, 9]]])
    xy1 = torch.tensor([[[6.5, 2.0], [12, 12], [0, 0]], [[5, 1], [9, 5], [13, 9]]])
    real0 = torch.tensor([[True, True, True], [True, True, False]])
    real1 = torch.tensor([[True, True, True], [False, True, True]])
    assert repeatability(xy0, xy1, batch, (real0, real1), 1.0) == (2.0, 4.0)
    nothing = torch.zeros_like(real1)
    assert repeatability(xy0, xy1, batch, (real0, nothing), 1.0) == (0.0, 4.0)


def test_reprojection_pulls_keypoints_together() -> None:
    batch = shifted((4.0, 0.0))
    xy0 = torch.tensor([[[2.0, 2.0], [10.0, 8.0]]], requires_grad=True)
    xy1 = torch.tensor([[[7.0, 2.0], [14.0, 13.0]]], requires_grad=True)  # one pixel too far; nowhere near
    found = Found.of(xy0, xy1, (torch.ones(1, 2, dtype=torch.bool),) * 2, batch, 3.0)
    term = reprojection_terms(found, batch, 1.0)["reprojection"]
    assert (float(term.count), float(term.total.detach())) == (1.0, 1.0)
    term.total.backward()
    assert xy0.grad.tolist() == [[[-1.0, 0.0], [0.0, 0.0]]]
    assert xy1.grad.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


# The objective --------------------------------------------------------------------------------------------------------


def test_a_small_detector_learns_one_batch() -> None:
    options = KeypointOptions(area=40.0, num_keypoints=20)
    objective = DetectorObjective(compact(), options).train()
    batch = batch_of(photographs())
    optimiser, found = torch.optim.Adam(objective.parameters(), lr=1e-2), []
    for _ in range(15):
        terms = objective(batch, 0.0)
        assert set(terms) == {"keypoints", "reprojection"}
        loss = sum(term.weight * term.total / term.count.clamp(min=1) for term in terms.values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(mean(terms["keypoints"]))
    assert all(math.isfinite(value) for value in found)
    assert found[-1] < 0.95 * found[0]
    assert objective.steerer is None
    assert list(objective.networks()) == ["detector"]
    assert set(objective.measure(batch)) == {"nll", "repeatability"}


def blobs(places: list[tuple[int, int]], size: int) -> Tensor:
    """A dark picture with bright spots."""
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    spots = [(-((xs - x) ** 2 + (ys - y) ** 2) / 8.0).exp() for x, y in places]
    return torch.stack(spots).sum(0).clamp(0, 1).expand(3, -1, -1)


def test_a_detector_learns_to_repeat_a_few_blobs() -> None:
    places = [(12, 10), (34, 14), (20, 26), (38, 36), (10, 38)]
    source = Photographs(store_of([blobs(places, 48)]), Views(size=48, scale=(1, 1), perspective=0, photometric=0))
    network = compact(0, CompactConfig(channels=(6, 8, 8), blocks=(1, 1), dim=2, hidden=2))
    options = KeypointOptions(area=400.0, most=5, prior_until=0.5, num_keypoints=5, radius=1.5)
    objective = DetectorObjective(network, options)
    optimiser = torch.optim.Adam(objective.parameters(), lr=2e-2)
    held_out = batch_of(source, "SO2", count=6, seed=10**6)
    before = objective.eval().measure(held_out)["repeatability"]
    objective.train()
    for step in range(50):
        terms = objective(batch_of(source, "SO2", count=3, seed=step), step / 50)
        loss = sum(term.weight * term.total / term.count.clamp(min=1) for term in terms.values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found, could = objective.eval().measure(held_out)["repeatability"]
    assert found / could > 0.8 > 2 * before[0] / max(before[1], 1)
    upright = rotated(source, *(torch.zeros(1, dtype=torch.float64),) * 2)
    keypoints = detect_image(network, upright.images0[0], num_keypoints=5).xy
    assert (torch.cdist(torch.tensor(places).float(), keypoints).amin(dim=1) < 1.5).sum() >= 4


def test_half_precision_is_for_the_network_alone() -> None:
    objective = DetectorObjective(compact().eval(), KeypointOptions(area=40.0, num_keypoints=20))
    batch = rotated(photographs(size=48, views=STILL), *torch.tensor([[0.4, 1.0], [0.0, 2.0]]).double())
    logits = objective.network.logits(torch.cat([batch.images0, batch.images1]))
    objective._logits = lambda _: logits.chunk(2)  # type: ignore[method-assign]
    expected = objective(batch, 0.0), objective.measure(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms, measures = objective(batch, 0.0), objective.measure(batch)
    for name, term in terms.items():
        assert torch.equal(term.total, expected[0][name].total)
    assert measures == expected[1]


def test_warps_that_are_known_at_tracks_alone_are_refused() -> None:
    batch = dataclasses.replace(batch_of(photographs()), dense=False)
    with pytest.raises(ValueError, match="known everywhere"):
        DetectorObjective(compact(), PLAIN)(batch, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suppress": 4}, "suppress must be odd"),
        ({"area": 0.0}, "area must be positive"),
        ({"reprojection": -1.0}, "reprojection must not be negative, got -1.0"),
        ({"margin": -1}, "margin must not be negative"),
        ({"sigma": -0.5}, "sigma must not be negative, got -0.5"),
        ({"reprojection_radius": 0.0}, "reprojection_radius must be positive, got 0.0"),
        ({"targets": "repeated", "prior": "none", "tried": -1}, "tried must not be negative, got -1"),
        ({"tried": 8}, "tried does not apply to targets 'joint', which are pixels of a sum: it is for 'repeated'"),
    ],
)
def test_wrong_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KeypointOptions(**changes)  # type: ignore[arg-type]


# Corners --------------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 3), st.tuples(st.integers(4, 20), st.integers(4, 20)))
def test_corners_rotation_with_the_image(
    dtype: torch.dtype, tolerance: float, seed: int, rotations: int, size: tuple[int, int]
) -> None:
    image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    response = corner_response(torch.rot90(image, rotations, (2, 3)))
    assert_near(response, torch.rot90(corner_response(image), rotations, (1, 2)), tolerance * 0.01)


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
    found = look_up(maps, pixel_grid(maps))
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


REPEATED = KeypointOptions(targets="repeated", prior="none", sigma=0.0, reprojection=0.0, reprojection_radius=1.5)


def scattered(batch: PairBatch, seed: int, radius: float = 1.5, counts: tuple[int, int] = (30, 25)) -> Found:
    """Keypoints of both views, some of the second within two pixels of where the first's are seen, some not real."""
    generator = torch.Generator().manual_seed(seed)
    size, pairs = torch.tensor([20.0, 16.0]) - 1, len(batch.masks0)
    xy0 = torch.rand(pairs, counts[0], 2, generator=generator) * size
    xy1 = torch.rand(pairs, counts[1], 2, generator=generator) * size
    near = batch.warp.forward(xy0)[0][:, : counts[1] // 2]
    near = near + 4 * torch.rand(near.shape, generator=generator) - 2
    xy1[:, : near.shape[1]] = torch.where(near.isfinite(), near, xy1[:, : near.shape[1]])
    real0, real1 = (torch.rand(pairs, count, generator=generator) < 0.8 for count in counts)
    return Found.of(xy0, xy1, (real0, real1), batch, radius)


@given(seeds, st.tuples(st.floats(-5, 5), st.floats(-5, 5)), st.floats(0.3, 3))
def test_repeated_targets_are_what_both_found_half_way_between(
    seed: int, by: tuple[float, float], radius: float
) -> None:
    """Against every keypoint of one view beside every one of the other."""
    batch = shifted(by, count=2)
    found = scattered(batch, seed, radius)
    xy0, xy1, (real0, real1), *_ = found
    first, second, repeated = repeated_targets(found, batch)
    for pair in range(2):
        apart = (xy0[pair, :, None].double() + torch.tensor(by) - xy1[pair].double()).norm(dim=2)  # (N, M)
        seen0 = batch.warp.forward(xy0)[1][pair] & real0[pair]
        seen1 = batch.warp.backward(xy1)[1][pair] & real1[pair]
        ahead = apart.masked_fill(~(seen0[:, None] & real1[pair]), math.inf)
        back = apart.masked_fill(~(real0[pair][:, None] & seen1), math.inf)
        for i in range(len(xy0[pair])):
            j = int(ahead[i].argmin())
            expected = float(ahead[i, j]) < radius and int(back[:, j].argmin()) == i and float(back[i, j]) < radius
            assert bool(repeated[pair, i]) == expected
            if expected:
                middle = (xy0[pair, i] + xy1[pair, j] - torch.tensor(by)) / 2
                assert_near(first[pair, i], middle, 1e-4)
                assert_near(second[pair, i], middle + torch.tensor(by), 1e-4)


@given(seeds)
def test_the_loss_of_repeated_keypoints_is_their_cross_entropy(seed: int) -> None:
    batch = shifted((2.0, -1.0), count=2)
    found = scattered(batch, seed)
    logits0, logits1 = logits_like(batch, seed)
    term = terms_of(logits0, logits1, batch, REPEATED, 0.0, found)["keypoints"]
    first, second, repeated = repeated_targets(found, batch)
    total = 0.0
    for logits, xy, side in ((logits0, first, 0), (logits1, second, 1)):
        seen = logits.detach().masked_fill(~batch.warp_pixels(side)[1], -math.inf)
        log = logits.detach() - seen.flatten(1).logsumexp(dim=1).view(-1, 1, 1)
        total -= float(look_up(log, xy)[repeated].double().sum())
    assert float(term.count) == int(repeated.sum())
    assert float(term.total.detach()) == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_what_one_view_alone_found_becomes_less_likely() -> None:
    batch = shifted((2.0, 0.0))
    logits0, logits1 = (torch.zeros(1, 16, 20).requires_grad_() for _ in (0, 1))
    with torch.no_grad():
        logits0[0, 5, 5], logits0[0, 10, 10], logits1[0, 5, 7] = 3.0, 4.0, 3.0
    xy0, xy1 = torch.tensor([[[5.0, 5.0], [10.0, 10.0]]]), torch.tensor([[[7.0, 5.0], [15.0, 3.0]]])
    real = (torch.ones(1, 2, dtype=torch.bool),) * 2
    found = Found.of(xy0, xy1, real, batch, 1.5)
    terms_of(logits0, logits1, batch, REPEATED, 0.0, found)["keypoints"].total.backward()
    assert logits0.grad[0, 5, 5] < 0  # found by both: likelier from now on
    assert logits1.grad[0, 5, 7] < 0
    assert logits0.grad[0, 10, 10] > 0
    assert logits1.grad[0, 3, 15] > 0


# What is tried --------------------------------------------------------------------------------------------------------

SAMPLING = KeypointSampling(coverage=False, nms_size=3)
TRIED = dataclasses.replace(REPEATED, tried=6, reprojection_radius=0.5)


@given(seeds, st.integers(1, 8), st.integers(1, 12))
def test_the_best_come_first_and_then_what_the_other_view_has_among_its_best(seed: int, best: int, tried: int) -> None:
    batch = shifted((2.0, -1.0), count=2)
    logits0 = randn(2, 16, 20, seed=seed, dtype=torch.float32)
    logits1 = logits0.roll((-1, 2), (1, 2)) + 0.7 * randn(2, 16, 20, seed=seed + 1, dtype=torch.float32)
    found = find_keypoints((logits0, logits1), batch, best, dataclasses.replace(TRIED, tried=tried), SAMPLING)
    peaked = [choose_keypoints(own, best + 4 * tried, None, SAMPLING) for own in (logits0, logits1)]
    assert found.best == best
    for pair in range(2):
        pools = [
            [tuple(xy.tolist()) for xy in one.xy[pair][one.real[pair]]] for one in peaked
        ]  # peaks are whole pixels
        kept = [tuple(xy.tolist()) for xy in found.xy0[pair][found.real[0][pair]]]
        assert kept[:best] == pools[0][:best]
        assert len(set(kept)) == len(kept) == min(best + tried, len(pools[0]))
        assert set(kept) <= set(pools[0])
        partners = {(x - 2.0, y + 1.0) for x, y in pools[1][:best]} & set(pools[0][best:])
        more = kept[best:]
        assert len(partners & set(more)) == min(len(partners), len(more))
        assert set(more[: len(partners)]) <= partners


def test_a_place_that_one_view_has_among_its_best_becomes_likelier_in_the_other() -> None:
    batch = shifted((2.0, 0.0))
    logits0, logits1 = torch.zeros(1, 16, 20), torch.zeros(1, 16, 20)
    logits0[0, 5, 5], logits0[0, 10, 10] = 3.0, 1.0
    logits1[0, 5, 7], logits1[0, 10, 12], logits1[0, 3, 15] = 1.0, 3.0, 2.0
    logits0.requires_grad_()
    logits1.requires_grad_()
    for tried, sign in ((0, 1.0), (6, -1.0)):
        options = dataclasses.replace(TRIED, tried=tried)
        found = find_keypoints((logits0, logits1), batch, 1, options, SAMPLING)
        assert found.best == 1 or not tried
        logits0.grad = logits1.grad = None
        terms_of(logits0, logits1, batch, options, 0.0, found)["keypoints"].total.backward()
        for grad, (x, y) in (
            (logits0.grad, (5, 5)),
            (logits0.grad, (10, 10)),
            (logits1.grad, (7, 5)),
            (logits1.grad, (12, 10)),
        ):
            assert grad[0, y, x] * sign > 0 or (not tried and grad[0, y, x] == 0)
        assert logits1.grad[0, 3, 15] >= 0


def test_what_neither_view_has_among_its_best_is_no_target() -> None:
    batch = shifted((2.0, 0.0))
    xy0 = torch.tensor([[[5.0, 5.0], [10.0, 10.0], [3.0, 12.0]]])
    xy1 = xy0 + torch.tensor([2.0, 0.0])
    found = Found.of(xy0, xy1, (torch.ones(1, 3, dtype=torch.bool),) * 2, batch, 1.0)
    assert repeated_targets(found, batch)[2].tolist() == [[True, True, True]]
    assert repeated_targets(found._replace(best=2), batch)[2].tolist() == [[True, True, False]]
    assert float(reprojection_terms(found._replace(best=2), batch, 1.0)["reprojection"].count) == 3.0


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
