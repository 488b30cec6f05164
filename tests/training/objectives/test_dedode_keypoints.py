"""DeDoDe's objective, against one that is written out from its description: plainly, in float64."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, seeds
from steerers.datasets.pairs import PairBatch
from steerers.training.objectives import Terms
from steerers.training.objectives.dedode_keypoints import DedodeOptions, above_rank, dedode_terms, splat
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import DetectorObjective, KeypointOptions
from training.tiny import OPTIONS, batch_of, compact, photographs, shifted, small_steerer

pytestmark = pytest.mark.usefixtures("one_thread")

FEW = DedodeOptions(targets=9, blank_sides=False)


# The reference --------------------------------------------------------------------------------------------------------


def cubic(distance: float, a: float = -0.75) -> float:
    """The weight of a sample at a distance in pixels."""
    t = abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def sampling_matrix(places: np.ndarray, height: int, width: int) -> Tensor:
    """(P, H * W) weights with which a map is sampled at (P, 2) pixels; what lies beyond the map is zero."""
    matrix = np.zeros((len(places), height * width))
    for row, (x, y) in enumerate(places):
        if not math.isfinite(x):
            continue
        for v in range(math.floor(y) - 1, math.floor(y) + 3):
            for u in range(math.floor(x) - 1, math.floor(x) + 3):
                if 0 <= u < width and 0 <= v < height:
                    matrix[row, v * width + u] += cubic(x - u) * cubic(y - v)
    return torch.from_numpy(matrix)


def blur_matrix(taps: list[float], length: int) -> Tensor:
    """(L, L), which blurs along an axis by taps that sum to one."""
    reach = len(taps) // 2
    matrix = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            if abs(i - j) <= reach:
                matrix[i, j] = taps[i - j + reach] / sum(taps)
    return torch.from_numpy(matrix)


def blurred(image: Tensor, taps: list[float], blank_sides: bool = False) -> Tensor:
    """The original has nothing in the columns from which its window reaches beyond the sides."""
    across, reach = blur_matrix(taps, image.shape[1]), len(taps) // 2
    if blank_sides:
        across[:reach], across[image.shape[1] - reach :] = 0, 0
    return blur_matrix(taps, image.shape[0]) @ image @ across.T


def drawn(points: np.ndarray, height: int, width: int, blank_sides: bool) -> Tensor:
    """Points as ones, blurred by half a pixel."""
    image = torch.zeros(height, width, dtype=torch.float64)
    for x, y in points + 0.5:
        if x > 0 and y > 0 and x < width and y < height:
            image[int(y), int(x)] = 1.0
    return blurred(image, [math.exp(-0.5 * (k / 0.5) ** 2) for k in range(-2, 3)], blank_sides)


def log_softmax_over(values: Tensor, valid: Tensor) -> Tensor:
    """(P,) with minus infinity where not valid."""
    result = torch.full_like(values, -math.inf)
    if bool(valid.any()):
        result[valid] = values[valid] - values[valid].exp().sum().log()
    return result


def on_the_photograph(places: Tensor, mask: Tensor) -> Tensor:
    """(P,) whether the pixels in which (P, 2) places lie are of the photograph."""
    found = [
        math.isfinite(x)
        and 0 <= math.floor(x + 0.5) < mask.shape[1]
        and 0 <= math.floor(y + 0.5) < mask.shape[0]
        and bool(mask[math.floor(y + 0.5), math.floor(x + 0.5)])
        for x, y in places.tolist()
    ]
    return torch.tensor(found)


def reference(logits: list[Tensor], batch: PairBatch, options: DedodeOptions) -> tuple[Tensor, Tensor]:
    """The joint term and the matchability of a batch, from (H, W) logits of first and then of second views."""
    count, (height, width) = len(batch), logits[0].shape
    grid = torch.tensor([[float(x), float(y)] for y in range(height) for x in range(width)]).expand(count, -1, -1)
    ahead, back = batch.warp.forward(grid), batch.warp.backward(grid)
    detections, known = (*batch.detections[0], *batch.detections[1]), (*batch.known[0], *batch.known[1])
    places, seen = (*ahead[0], *back[0]), (*ahead[1], *back[1])
    masks = (*batch.masks0, *batch.masks1)
    blank = options.blank_sides
    splats = [drawn(points.double().numpy(), height, width, blank).flatten() for points in detections]
    scores, ours, theirs = [], [], []
    for image in range(2 * count):
        partner = (image + count) % (2 * count)
        matrix = sampling_matrix(places[image].double().numpy(), height, width)
        valid = seen[image] & masks[image].flatten() & on_the_photograph(places[image], masks[partner])
        ours.append(log_softmax_over(logits[image].flatten(), valid))
        theirs.append(log_softmax_over(matrix @ logits[partner].flatten(), valid))
        found = splats[image] + matrix @ splats[partner]
        scores.append((ours[-1] + theirs[-1]).detach() + options.splat * found)
    ranked = sorted((float(score) for image in scores for score in image), reverse=True)
    threshold = ranked[2 * count * options.targets - 1]
    joint = torch.zeros((), dtype=torch.float64)
    for image in range(2 * count):
        target = scores[image] > threshold
        joint = joint - (ours[image][target] + theirs[image][target]).sum() / options.targets
    return joint, matchability(logits, known, blank)


def matchability(logits: list[Tensor], known: tuple[Tensor, ...], blank_sides: bool) -> Tensor:
    """Cross entropy less entropy, the mean over the images."""
    window = [math.exp(-(x**2) / (2 / 4)) for x in np.linspace(-1, 1, 51)]
    total = torch.zeros((), dtype=torch.float64)
    for own, depth in zip(logits, known, strict=True):
        likely = blurred((own.flatten() - own.exp().sum().log()).exp().view(own.shape), window, blank_sides) + 1e-8
        log = likely.log() - likely.log().exp().sum().log()
        target = blurred(depth.double(), window)
        target = target / target.sum()
        total = total - (target * log).sum() + (target * (target + 1e-12).log()).sum()
    return total / len(logits)


# Pairs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rotating:
    """Rotates, enlarges and moves about the middle of views of ``size``; what falls outside or into a hole is lost."""

    angles: Tensor  # (B,)
    scale: float
    by: tuple[float, float]
    size: tuple[int, int]
    holes: Tensor  # (B, 2), pixels of both views about which nothing is valid

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        middle, by = (torch.tensor(self.size).double() - 1) / 2, torch.tensor(self.by).double()
        moved = self.scale * (xy.double() - middle) @ self._rotations() + middle + by
        return self._valid(xy, moved)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        middle, by = (torch.tensor(self.size).double() - 1) / 2, torch.tensor(self.by).double()
        moved = (xy.double() - middle - by) @ self._rotations().mT / self.scale + middle
        return self._valid(xy, moved)

    def _rotations(self) -> Tensor:
        c, s = self.angles.cos(), self.angles.sin()
        return torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)

    def _valid(self, xy: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        limit = torch.tensor(self.size) - 0.5
        seen = ((moved > -0.5) & (moved < limit)).all(dim=-1)
        seen = seen & ((xy - self.holes[:, None]).norm(dim=-1) > 3) & ((moved - self.holes[:, None]).norm(dim=-1) > 3)
        return moved.where(seen[..., None], math.nan).to(xy.dtype), seen


def random_pairs(seed: int, count: int, size: tuple[int, int], scale: float = 1.2) -> PairBatch:
    """Rotated pairs with holes in warp and depth and with padding; points inside, at the border, and outside."""
    generator = torch.Generator().manual_seed(seed)
    width, height = size
    angles = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
    holes = torch.rand(count, 2, generator=generator, dtype=torch.float64) * torch.tensor(size)
    warp = Rotating(angles, scale, (1.3, -0.8), size, holes)
    masks = torch.ones(2, count, height, width, dtype=torch.bool)
    masks[0, :, :2], masks[1, :, :, width - 1 :] = False, False
    known = (torch.rand(2, count, height, width, generator=generator) < 0.6) & masks
    known[:, :, height // 2 :, : width // 2] = False
    points = torch.rand(2, count, 14, 2, generator=generator) * (torch.tensor(size) + 4) - 2.5
    points[:, :, 0] = torch.tensor([width - 0.5, 3.0])  # just outside, and just inside
    points[:, :, 1], points[:, :, 2] = torch.tensor([width - 0.51, 3.0]), torch.tensor([2.0, height - 0.51])
    points[:, :, 3], points[:, :, 4] = torch.tensor([-0.5, 4.0]), torch.tensor([-0.49, -0.49])
    points[0, :, 5], points[1, :, 6] = math.nan, points[1, :, 7]
    batch = shifted(size=size, count=count, masks0=masks[0], masks1=masks[1], warp=warp)
    return dataclasses.replace(batch, detections=(points[0], points[1]), known=(known[0], known[1]))


def logits_of(batch: PairBatch, seed: int, spread: float = 1.5) -> Tensor:
    """(2, B, H, W) float32."""
    return spread * randn(2, *batch.masks0.shape, seed=seed, dtype=torch.float32)


def loss_of(terms: Terms) -> Tensor:
    return torch.stack([term.weight * term.total / term.count for term in terms.values()]).sum()


def assert_as_the_reference(batch: PairBatch, logits: Tensor, options: DedodeOptions, within: float = 1e-5) -> None:
    """Terms and gradients to ``within``, relative.

    Matchability is a difference of two numbers of about the logarithm of the number of pixels, to which rounding is
    relative.
    """
    own = logits.clone().requires_grad_()
    terms = dedode_terms(own[0], own[1], batch, options)
    plain = logits.double().requires_grad_()
    joint, spread = reference([*plain[0], *plain[1]], batch, options)
    assert float(terms["keypoints"].count) == 1.0
    assert float(terms["matchability"].count) == 2 * len(batch)
    assert float(terms["keypoints"].total.detach()) == pytest.approx(float(joint.detach()), rel=within)
    found = terms["matchability"].total.detach() / terms["matchability"].count
    rounding = torch.finfo(logits.dtype).eps * math.log(logits[0, 0].numel())
    assert float(found) == pytest.approx(float(spread.detach()), rel=within, abs=rounding)
    loss_of(terms).backward()
    (joint + options.matchability * spread).backward()
    cosine = torch.cosine_similarity(own.grad.double().flatten(), plain.grad.flatten(), dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=within)
    assert float(own.grad.double().norm()) == pytest.approx(float(plain.grad.norm()), rel=within)


# Against the reference ------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(seeds, st.integers(1, 3), st.sampled_from([(17, 13), (12, 16)]), st.sampled_from([0.7, 1.0, 1.6]))
def test_values_and_gradients_are_those_of_the_description(
    dtype: torch.dtype, seed: int, count: int, size: tuple[int, int], scale: float
) -> None:
    batch, within = random_pairs(seed, count, size, scale), {torch.float32: 1e-5, torch.float64: 1e-9}
    assert_as_the_reference(batch, logits_of(batch, seed).to(dtype), FEW, within[dtype])


@pytest.mark.parametrize("blank_sides", [False, True])
def test_values_and_gradients_where_the_window_is_smaller_than_the_view(blank_sides: bool) -> None:
    batch = random_pairs(5, 1, (60, 56))
    options = DedodeOptions(targets=64, splat=20.0, matchability=0.5, blank_sides=blank_sides)
    assert_as_the_reference(batch, logits_of(batch, 6), options)


def test_one_threshold_holds_for_the_whole_batch() -> None:
    """Of two pairs of which one is sure of its keypoints, that one has more of the targets."""
    scores = torch.zeros(4, 6, 5)
    scores[0, 0], scores[1, 1] = torch.arange(5.0) + 10, torch.arange(5.0) + 20
    scores[2] = torch.arange(30.0).view(6, 5) / 100
    chosen = above_rank(scores, 3)
    assert chosen.flatten(1).sum(dim=1).tolist() == [5, 5, 1, 0]  # the one of rank 12 is not above itself
    assert chosen[2, 5, 4]
    assert above_rank(scores, 1000).sum() == scores.numel() - (scores == 0).sum()


def test_the_joint_term_is_a_sum_and_matchability_a_mean() -> None:
    single = random_pairs(3, 2, (17, 13))
    logits = logits_of(single, 4)
    pairs = torch.tensor([0, 1, 0, 1])
    warp = dataclasses.replace(single.warp, angles=single.warp.angles[pairs], holes=single.warp.holes[pairs])
    double = dataclasses.replace(
        single,
        **{name: getattr(single, name)[pairs] for name in ("images0", "images1", "masks0", "masks1")},
        warp=warp,
        detections=tuple(points[pairs] for points in single.detections),
        known=tuple(known[pairs] for known in single.known),
    )
    once, twice = (
        dedode_terms(own[0], own[1], batch, FEW) for own, batch in ((logits, single), (logits[:, pairs], double))
    )
    for name, ratio in (("keypoints", 2.0), ("matchability", 1.0)):
        means = [float(terms[name].total / terms[name].count) for terms in (once, twice)]
        assert means[1] == pytest.approx(ratio * means[0], rel=1e-5)


def test_points_of_the_reconstruction_are_the_targets() -> None:
    points = torch.tensor([[[3.0, 4.0], [10.2, 7.8], [math.nan, math.nan], [15.0, 2.0]]])
    there = points + torch.tensor([1.0, 0.0])
    known = torch.ones(1, 16, 20, dtype=torch.bool)
    batch = shifted((1.0, 0.0), detections=(points, there), known=(known, known))
    logits = torch.zeros(2, 1, 16, 20, requires_grad=True)
    options = DedodeOptions(targets=4, matchability=0.0)
    terms = dedode_terms(logits[0], logits[1], batch, options)
    assert list(terms) == ["keypoints"]
    terms["keypoints"].total.backward()
    for own, shift in zip(logits.grad[:, 0], (0, 1), strict=True):
        y, x = (own < -0.1).nonzero().T
        pulled = {(int(a) - shift, int(b)) for a, b in zip(x, y, strict=True)}
        assert {(3, 4), (10, 8), (15, 2)} <= pulled
        assert len(pulled) <= options.targets


def test_pixels_without_depth_repel_keypoints() -> None:
    known = torch.zeros(1, 60, 60, dtype=torch.bool)
    known[:, :, :30] = True
    points = torch.full((1, 1, 2), math.nan)
    batch = shifted(size=(60, 60), detections=(points, points), known=(known, known))
    logits = torch.zeros(2, 1, 60, 60, requires_grad=True)
    dedode_terms(logits[0], logits[1], batch, FEW)["matchability"].total.backward()
    assert (logits.grad[..., :20] < 0).all()
    assert (logits.grad[..., 40:] > 0).all()


def test_a_splat_is_blurred_by_half_a_pixel() -> None:
    maps = torch.ones(2, 9, 12)
    points = torch.tensor([[[4.0, 4.0], [4.2, 3.9], [math.nan, 0.0]], [[-0.5, 3.0], [11.5, 2.0], [0.0, 0.0]]])
    drawn_maps = splat(points, maps, blank_sides=False)
    taps = [math.exp(-2.0 * k * k) for k in range(-2, 3)]
    assert float(drawn_maps[0].max()) == float(drawn_maps[0, 4, 4]) == pytest.approx(1 / sum(taps) ** 2, rel=1e-6)
    assert float(drawn_maps[0, 4, 4]) == pytest.approx(0.62, abs=5e-3)  # of two in one pixel there is one
    assert float(drawn_maps[0, 4, 5] / drawn_maps[0, 4, 4]) == pytest.approx(math.exp(-2.0))
    assert float(drawn_maps[0].sum()) == pytest.approx(1.0, rel=1e-6)
    assert float(drawn_maps[1, 0, 0]) == pytest.approx(1 / sum(taps) ** 2)
    assert not drawn_maps[1, 3:].any()  # the other two are outside
    as_published = splat(points, maps)
    assert not as_published[..., :2].any()
    torch.testing.assert_close(as_published[..., 2:-2], drawn_maps[..., 2:-2])


def test_views_that_share_nothing_have_no_joint_term_and_no_nan() -> None:
    batch = random_pairs(0, 2, (17, 13))
    nothing = torch.zeros_like(batch.masks0)
    apart = dataclasses.replace(batch, masks0=nothing, masks1=nothing, known=(nothing, nothing))
    logits = logits_of(batch, 0).requires_grad_()
    terms = dedode_terms(logits[0], logits[1], apart, FEW)
    assert float(terms["keypoints"].total.detach()) == float(terms["matchability"].total.detach()) == 0.0
    loss_of(terms).backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


# The objective --------------------------------------------------------------------------------------------------------


def with_points(batch: PairBatch, count: int = 20) -> PairBatch:
    """The same pairs with points that both views show, and depth wherever there is a photograph."""
    size = batch.images0.shape[-1]
    points = torch.rand(len(batch), count, 2, generator=torch.Generator().manual_seed(0)) * (size - 1)
    moved, seen = batch.warp.forward(points)
    detections = (points, moved.where(seen[..., None], math.nan))
    return dataclasses.replace(batch, detections=detections, known=(batch.masks0, batch.masks1))


SFM = KeypointOptions(prior="sfm", num_keypoints=20, dedode=DedodeOptions(targets=12))


def test_a_small_detector_learns_the_points_of_one_batch() -> None:
    objective, batch = DetectorObjective(compact(), SFM).train(), with_points(batch_of(photographs()))
    optimiser = torch.optim.Adam(objective.parameters(), lr=1e-2)
    before, losses = objective.measure(batch), []
    for _ in range(15):
        loss = loss_of(objective(batch, 0.0))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    after = objective.measure(batch)
    assert set(after) == {"nll", "repeatability"}
    assert before["nll"][1] == after["nll"][1] == 2 * len(batch)
    assert after["nll"][0] < 0.95 * before["nll"][0]
    assert losses[-1] < 0.95 * losses[0]


def test_half_precision_is_for_the_network_alone() -> None:
    objective, batch = DetectorObjective(compact().eval(), SFM), with_points(batch_of(photographs()))
    logits = objective.network.logits(torch.cat([batch.images0, batch.images1])).detach()
    objective._logits = lambda _: logits.chunk(2)  # type: ignore[method-assign]
    expected = objective(batch, 0.0), objective.measure(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms, measures = objective(batch, 0.0), objective.measure(batch)
    assert all(torch.equal(term.total, expected[0][name].total) for name, term in terms.items())
    assert measures == expected[1]


def test_without_points_or_depth_there_is_no_objective() -> None:
    batch = with_points(batch_of(photographs()))
    for missing in ("detections", "known"):
        with pytest.raises(ValueError, match="'sfm' needs points of a reconstruction and depth maps"):
            DetectorObjective(compact(), SFM)(dataclasses.replace(batch, **{missing: None}), 0.0)


def test_keypoints_and_descriptions_together_are_not_trained_so() -> None:
    with pytest.raises(ValueError, match=r"setting 'joint' .* not 'sfm', which is DeDoDe's"):
        JointObjective(compact(), small_steerer(), OPTIONS, SFM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": "sfm", "most": 1024}, r"most does not apply to DeDoDe's objective .*dedode\.targets"),
        ({"prior": "sfm", "margin": 4, "area": 1.0}, "area, margin do not apply to DeDoDe's"),
        ({"dedode": FEW}, "dedode is DeDoDe's objective, of prior 'sfm': it does not apply to 'corners'"),
    ],
)
def test_options_of_the_other_objective_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KeypointOptions(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": 0}, "targets must be positive, got 0"),
        ({"splat": -1.0}, "splat must not be negative"),
        ({"matchability": -1.0}, "matchability must not be negative, got -1.0"),
    ],
)
def test_wrong_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DedodeOptions(**changes)  # type: ignore[arg-type]
