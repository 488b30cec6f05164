"""Settings A, B and C: what is trained, what stays, and in which direction is steered."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near, detect_image, randn, seeds
from steerers.features import Keypoints
from steerers.matching.strategies import PrototypeProcrustes
from steerers.steering.steerer import Steerer
from steerers.training.objectives import Objective, Term
from steerers.training.objectives.descriptions import (
    Described,
    DescriptorObjective,
    Matcher,
    MatchingOptions,
    Setting,
    detect_frozen,
    matching_accuracy,
    matching_nll,
    with_anchors,
)
from training.tiny import (
    OPTIONS,
    SMALL,
    STILL,
    VIEWS,
    Corners,
    Patches,
    Rings,
    batch_of,
    compact,
    descriptor_objective,
    noise,
    photographs,
    rotated,
    shifted,
    small_steerer,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def mean(term: Term) -> Tensor:
    return term.total / term.count


def descend(objective: Objective, steps: int, rate: float = 1e-2, term: str = "nll") -> list[float]:
    """The losses of some steps on one batch."""
    batch = batch_of(photographs())
    parameters = [p for network in objective.networks().values() for p in network.parameters()]
    optimiser, found = torch.optim.Adam(parameters, lr=rate), []
    objective.train()
    for _ in range(steps):
        loss = mean(objective(batch, 0.0)[term])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    return found


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["A", "B", "C"])
def test_a_small_network_learns_one_batch(setting: Setting) -> None:
    found = descend(descriptor_objective(setting), 25)
    assert all(math.isfinite(loss) for loss in found)
    assert found[-1] < {"A": 0.95, "B": 0.7, "C": 0.7}[setting] * found[0]


def test_setting_a_leaves_the_descriptor_to_the_bit() -> None:
    objective = descriptor_objective("A")
    before = {name: value.clone() for name, value in objective.descriptor.state_dict().items()}
    start = objective.steerer.generator().detach().clone()
    descend(objective, 3)
    assert not objective.descriptor.training
    assert not any(parameter.requires_grad for parameter in objective.descriptor.parameters())
    assert list(objective.networks()) == ["steerer"]
    for name, value in objective.descriptor.state_dict().items():  # the statistics of batch norm are among them
        assert torch.equal(value, before[name]), name
    assert not torch.equal(objective.steerer.generator(), start)


@pytest.mark.parametrize("setting", ["A", "C"])
def test_what_was_trained_describes_the_keypoints_of_its_detector(setting: Setting) -> None:
    objective = descriptor_objective(setting).eval()
    images = noise(48, 5)[None]
    ((keypoints, descriptions),) = objective.extractor().extract(images, num_keypoints=9)
    (expected,) = objective.descriptor.describe(images, [keypoints])
    assert torch.equal(descriptions, expected)
    assert torch.equal(keypoints.xy, objective._frozen[0].detect(images, num_keypoints=9)[0].xy)


def test_setting_b_trains_both() -> None:
    objective = descriptor_objective("B")
    assert list(objective.networks()) == ["descriptor", "steerer"]
    start = {name: value.clone() for name, value in objective.state_dict().items()}
    descend(objective, 1)
    changed = {name for name, value in objective.state_dict().items() if not torch.equal(value, start[name])}
    assert "steerer.action.weight" in changed
    assert "descriptor.describer.linear.weight" in changed


def test_both_views_go_through_the_network_at_once() -> None:
    """So that its batch statistics are those of both, as in the original, also where keypoints differ in number."""
    objective, batch = descriptor_objective("B").train(), batch_of(photographs())
    masks = batch.masks1.clone()
    masks[:, :, 24:] = False
    batch = dataclasses.replace(batch, masks1=masks)
    seen, forward = [], objective.descriptor.forward
    objective.descriptor.forward = lambda images: (seen.append(images), forward(images))[1]
    objective(batch, 0.0)["nll"].total.backward()
    assert len(seen) == 1
    assert torch.equal(seen[0], torch.cat([batch.images0, batch.images1]))


def test_setting_c_trains_no_steerer() -> None:
    objective = descriptor_objective("C")
    assert list(objective.networks()) == ["descriptor"]
    assert not list(objective.steerer.parameters())
    assert not [name for name, _ in objective.named_parameters() if "steerer" in name]
    before = objective.steerer.generator().clone()
    descend(objective, 1)
    assert torch.equal(objective.steerer.generator(), before)


def test_the_dagger_compares_views_that_are_rotated_alike() -> None:
    objective = DescriptorObjective(Patches(), None, Corners(), "C", OPTIONS)
    rotations = quarters(0, 1, 2, 3)
    still = photographs(size=48, views=STILL)
    assert accuracy(objective, rotated(still, rotations, rotations)) == 1.0
    assert accuracy(objective, rotated(still, rotations, torch.zeros_like(rotations))) < 0.9


@pytest.mark.parametrize(
    ("setting", "steerer", "message"),
    [
        ("A", Steerer.spread(8, 2), "setting A needs a learnable steerer"),
        ("B", None, "setting B needs a learnable steerer"),
        ("C", small_steerer(), "setting C takes no learnable steerer"),
    ],
)
def test_settings_refuse_steerers_that_do_not_fit(setting: Setting, steerer: Steerer | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DescriptorObjective(compact(), steerer, Corners(), setting, OPTIONS)


@pytest.mark.parametrize("name", ["num_keypoints", "radius", "inverse_temperature"])
def test_options_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        MatchingOptions(**{name: 0})  # type: ignore[arg-type]


# The sign -------------------------------------------------------------------------------------------------------------


def accuracy(objective: Objective, batch: object) -> float:
    total, count = objective.measure(batch)["accuracy"]  # type: ignore[arg-type]
    assert count > 10
    return total / count


def quarters(*counts: int) -> Tensor:
    """Quarter turns, in radians."""
    return torch.tensor(counts, dtype=torch.float64) * (math.pi / 2)


def inverse(steerer: Steerer) -> Steerer:
    """That rotates the other way."""
    generator = steerer.generator().float()
    return Steerer.from_matrix(-generator if steerer.group.continuous else generator.mT, steerer.group)


@given(seeds, st.sampled_from(["spread", "freq1", "C4", "C8"]))
def test_an_equivariant_descriptor_is_steered_from_the_second_view_to_the_first(seed: int, kind: str) -> None:
    steerer = {
        "spread": lambda: Steerer.spread(28, 6),
        "freq1": lambda: Steerer.freq1(28),
        "C4": lambda: Steerer.perm(28, "C4"),
        "C8": lambda: Steerer.from_spec("4x0 + 4x1 + 4x2 + 4x3", "C8"),
    }[kind]()
    order = steerer.group.order or 360
    steps = torch.randint(order, (2, 6), generator=torch.Generator().manual_seed(seed))
    rotations0, rotations1 = steps.double() * (2 * math.pi / order)
    upright = randn(6, 12, steerer.dim, seed=seed, dtype=torch.float32)
    first, second = (steerer.steer(upright, rotations[:, None]) for rotations in (rotations0, rotations1))
    matches = torch.cartesian_prod(torch.arange(6), torch.arange(12))
    matches = torch.stack([matches[:, 0], matches[:, 1], matches[:, 1]], dim=1)
    pairs = Described(first, second, (rotations0 - rotations1) % (2 * math.pi), matches)
    measured = Matcher(steerer, OPTIONS).measure(pairs)
    assert measured["accuracy"] == (72.0, 72.0)
    apart = ((steps[0] - steps[1]) % order * 2 % order != 0).any()  # a half turn is its own inverse
    wrong = Matcher(inverse(steerer), OPTIONS).measure(pairs)
    assert (wrong["nll"][0] > measured["nll"][0] + 1) == bool(apart)


def test_quarter_turns_of_images_are_steered_exactly() -> None:
    perm = Steerer.perm(Patches.dim, "C4")
    still, rotations0 = photographs(size=48, views=STILL), quarters(0, 1, 2, 3)
    for k in range(4):
        batch = rotated(still, rotations0, rotations0 + quarters(k))
        assert accuracy(DescriptorObjective(Patches(), perm, Corners(), "C", OPTIONS), batch) == 1.0
        wrong = DescriptorObjective(Patches(), inverse(perm), Corners(), "C", OPTIONS)
        assert (accuracy(wrong, batch) == 1.0) == (k in (0, 2))


def test_any_rotation_of_images_is_steered() -> None:
    steerer = Steerer.from_spec(Rings.spec, dim=Rings.dim)
    batch = batch_of(photographs(size=80, views=dataclasses.replace(STILL, size=64)), "SO2", count=8)
    right = accuracy(DescriptorObjective(Rings(), steerer, Corners(), "C", OPTIONS), batch)
    wrong = accuracy(DescriptorObjective(Rings(), inverse(steerer), Corners(), "C", OPTIONS), batch)
    assert right > 0.8
    assert wrong < 0.5 * right


# Keypoints and the frozen detector ------------------------------------------------------------------------------------


def test_keypoints_are_filled_up_to_the_longest() -> None:
    images = torch.stack([noise(24, seed) for seed in range(3)])
    masks = torch.ones(3, 24, 24, dtype=torch.bool)
    masks[1], masks[2, :, :12] = False, False
    filled, real = detect_frozen(Corners(), images, 6, masks)
    xy = torch.stack([one.xy for one in filled])
    assert xy.shape == (3, 6, 2)
    assert real.sum(dim=1).tolist()[:2] == [6, 0]
    for index in (0, 2):
        found = detect_image(Corners(), images[index], num_keypoints=6, mask=masks[index]).xy
        assert torch.equal(xy[index][real[index]], found)
    assert (xy[2][real[2]][:, 0] >= 12).all()


def test_nothing_is_seen_in_padding() -> None:
    batch = rotated(photographs(size=48, views=STILL), torch.tensor([0.6, 0.0]), torch.tensor([0.0, 2.2]))
    assert not batch.masks0.all()
    found, real = detect_frozen(Corners(), batch.images0, 500, batch.masks0)
    xy = torch.stack([one.xy for one in found])
    pair = torch.arange(2)[:, None].expand_as(real)[real]
    x, y = xy[real].long().unbind(1)
    assert batch.masks0[pair, y, x].all()


def test_a_batch_without_keypoints_has_no_loss_and_no_nan() -> None:
    objective = descriptor_objective("B")
    batch = batch_of(photographs())
    nothing = torch.zeros_like(batch.masks0)
    term = objective(dataclasses.replace(batch, masks0=nothing), 0.0)["nll"]
    assert float(term.total.detach()) == float(term.count) == 0.0
    term.total.backward()
    for network in objective.networks().values():
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:  # what makes the keypoints has none
                assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name
    assert objective.steerer.generator().grad is not None


def test_the_detector_is_kept_out_but_moves_along() -> None:
    detector = Corners()
    objective = DescriptorObjective(compact(), small_steerer(), detector, "B", OPTIONS)
    assert not detector.training
    assert not detector.gain.requires_grad
    assert not [name for name in objective.state_dict() if "gain" in name]
    assert not [parameter for parameter in objective.parameters() if parameter is detector.gain]
    objective.train()
    assert not detector.training
    objective.to(torch.float64)
    assert detector.gain.dtype == torch.float64


def test_points_that_are_known_to_correspond_are_described_too() -> None:
    anchors = torch.tensor([[[3.0, 4.0], [math.nan, math.nan]]]), torch.tensor([[[5.0, 4.0], [math.nan, 1.0]]])
    batch = shifted((2.0, 0.0), anchors=anchors)
    xy, real = with_anchors(torch.ones(1, 3, 2), torch.tensor([[True, False, True]]), batch, 1)
    assert xy[0, 3:].tolist() == [[5.0, 4.0], [0.0, 1.0]]
    assert real[0].tolist() == [True, False, True, True, False]
    objective = DescriptorObjective(compact(), small_steerer(), Corners(), "B", OPTIONS)
    blank = torch.zeros_like(batch.masks0)
    term = objective(dataclasses.replace(batch, masks0=blank, masks1=blank), 0.0)["nll"]
    assert float(term.count) == 1.0
    assert with_anchors(xy, real, shifted(), 0) == (xy, real)


class Framed(Corners):
    """The same corners with scales and orientations, as classical detectors have them."""

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        found = super().detect_one(image, num_keypoints, mask)
        return Keypoints(found.xy, found.scores, 2 + found.xy[:, 0], 0.1 * found.xy[:, 1])


class Recording(Patches):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Keypoints] = []
        self.precisions: list[bool] = []

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        self.given.append(keypoints)
        self.precisions.append(torch.is_autocast_enabled("cpu"))
        return super().describe_one(image, keypoints)


def test_a_frozen_descriptor_is_told_the_scales_and_orientations_of_its_keypoints() -> None:
    batch = batch_of(photographs(), "C4")
    anchors = torch.full((2, 1, 2), 20.0)
    batch = dataclasses.replace(batch, anchors=(anchors, anchors))
    steerer = Steerer.random(Patches.dim, "C4", generator=torch.Generator().manual_seed(0))
    masks = batch.masks0.clone()
    masks[1] = False  # one view without keypoints: they are filled up
    for setting, detector in (("A", Framed()), ("A", Corners()), ("B", Framed())):
        descriptor = Recording()
        objective = DescriptorObjective(descriptor, steerer, detector, setting, OPTIONS)  # type: ignore[arg-type]
        objective(dataclasses.replace(batch, masks0=masks), 0.0)["nll"].total.backward()
        framed = setting == "A" and isinstance(detector, Framed)
        assert len(descriptor.given) == 4
        for one in descriptor.given:
            assert len(one) == OPTIONS.num_keypoints + (0 if framed else 1)  # the anchor has a place alone
            assert (one.scales is not None) == (one.orientations is not None) == framed
        if framed:
            first, empty = descriptor.given[:2]
            assert torch.equal(first.scales, 2 + first.xy[:, 0])
            assert torch.equal(first.orientations, 0.1 * first.xy[:, 1])
            assert (empty.scales > 0).all()


def test_a_frozen_descriptor_is_not_run_in_half_precision() -> None:
    steerer = Steerer.random(Patches.dim, "C4", generator=torch.Generator().manual_seed(0))
    for setting in ("A", "B"):
        descriptor = Recording()
        objective = DescriptorObjective(descriptor, steerer, Corners(), setting, OPTIONS)  # type: ignore[arg-type]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            objective(batch_of(photographs(), "C4"), 0.0)
        assert set(descriptor.precisions) == {setting == "B"}


def test_the_loss_is_not_computed_in_half_precision() -> None:
    matcher = Matcher(small_steerer(), OPTIONS)
    first, second = (randn(2, 9, SMALL.dim, seed=seed, dtype=torch.float32) for seed in (0, 1))
    angles, matches = torch.tensor([0.1, 2.0], dtype=torch.float64), torch.tensor([[0, 1, 2], [1, 3, 3]])
    real = (torch.ones(2, 9, dtype=torch.bool),) * 2
    pairs = Described(first, second, angles, matches, real)
    expected, measured = matcher.terms(pairs)[0], matcher.measure(pairs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(matcher.terms(pairs)[0].total, expected.total)
        assert matcher.measure(pairs) == measured


# The prototype --------------------------------------------------------------------------------------------------------

PROTOTYPE = dataclasses.replace(OPTIONS, prototype=True)


@given(st.integers(1, 8), seeds, st.sampled_from(["SO2", "C4", "C6"]))
def test_the_prototype_is_that_of_the_strategy(half: int, seed: int, group: str) -> None:
    steerer = Steerer.freq1(2 * half, group)
    first, second = (randn(2, n, 2 * half, seed=seed + n, dtype=torch.float32) for n in (7, 5))
    chosen = randn(2 * half, seed=seed + 1, dtype=torch.float32)
    for prototype in (None, chosen):
        matcher = Matcher(steerer, PROTOTYPE)
        if prototype is not None:
            nn.init.zeros_(matcher.prototype).data.add_(prototype)
        unit0, unit1 = matcher.aligned(first, second, torch.rand(2))
        strategy = PrototypeProcrustes(steerer=steerer, prototype=prototype)
        for pair in range(2):
            expected = strategy._aligned(first[pair])[0] @ strategy._aligned(second[pair])[0].mT
            assert_near(unit0[pair].detach() @ unit1[pair].detach().mT, expected, 1e-4)


@given(st.integers(1, 8), seeds, st.floats(-7, 7))
def test_alignment_to_the_prototype_forgets_the_rotation(half: int, seed: int, angle: float) -> None:
    matcher = Matcher(Steerer.freq1(2 * half), PROTOTYPE)
    descriptions = randn(1, 4, 2 * half, seed=seed)
    rotated_by = matcher.rotating.steer(descriptions, angle)
    unit0, unit1 = matcher.aligned(descriptions, rotated_by, torch.zeros(1))
    assert_near(unit0, unit1, 1e-6)
    assert_near(unit0.norm(dim=2), torch.ones(1, 4), 1e-9)


def test_the_gradient_of_the_prototype() -> None:
    matcher = Matcher(Steerer.freq1(6), PROTOTYPE)
    descriptions, prototype = randn(1, 3, 6).requires_grad_(), randn(6, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(matcher._to_prototype, (descriptions, prototype))
    nothing = torch.zeros(1, 2, 6, requires_grad=True)
    matcher._to_prototype(nothing, prototype.detach()).sum().backward()
    assert nothing.grad.isfinite().all()


def test_the_prototype_of_a_frozen_descriptor_is_trained() -> None:
    objective = DescriptorObjective(compact(), Steerer.freq1(SMALL.dim), Corners(), "A", PROTOTYPE)
    assert list(objective.networks()) == ["prototype"]
    found = descend(objective, 15, rate=0.1)
    assert found[-1] < found[0]
    again = DescriptorObjective(compact(1), Steerer.freq1(SMALL.dim), Corners(), "A", PROTOTYPE)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again.matcher.prototype, objective.matcher.prototype)


@pytest.mark.parametrize(
    "steerer", [None, Steerer.spread(8, 2), small_steerer(), Steerer.from_spec("4x1", "C2"), Steerer.from_spec("2x-1")]
)
def test_a_prototype_is_for_frequency_1(steerer: Steerer | None) -> None:
    with pytest.raises(ValueError, match="Freq1"):
        Matcher(steerer, PROTOTYPE)


def test_views_of_the_tests_are_what_they_say() -> None:
    batch = rotated(photographs(size=48, views=STILL), quarters(1), quarters(0))
    assert torch.equal(batch.images0, torch.rot90(batch.images1, 1, (2, 3)))
    assert VIEWS.size == 48
    assert F.mse_loss(batch.images0, batch.images1) > 0


# Likelihood and accuracy ----------------------------------------------------------------------------------------------


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
    each = matching_nll(first, second, triples, temperature, (real0, real1))
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
    matching_nll(descriptions, descriptions, torch.tensor([[0, 1, 1]]), 20.0, (real, real)).sum().backward()
    assert descriptions.grad is not None
    assert descriptions.grad.isfinite().all()


def test_accuracy_counts_mutual_nearest_true_matches() -> None:
    unit = torch.eye(4)[None]
    assert matching_accuracy(unit, unit, torch.tensor([[0, 0, 0], [0, 1, 1], [0, 2, 3], [0, 3, 2]])) == 0.5
    assert matching_accuracy(unit, unit.flip(1), torch.tensor([[0, 0, 3], [0, 3, 0]])) == 1.0
    assert matching_accuracy(unit, unit, torch.zeros(0, 3, dtype=torch.long)) == 0.0


def test_accuracy_does_not_count_what_fills_up() -> None:
    first, second = torch.tensor([[[1.0, 0]]]), torch.tensor([[[-1.0, 0], [1, 0]]])  # the better one only fills up
    matches = torch.tensor([[0, 0, 0]])
    assert matching_accuracy(first, second, matches) == 0.0
    assert matching_accuracy(first, second, matches, (torch.tensor([[True]]), torch.tensor([[True, False]]))) == 1.0
