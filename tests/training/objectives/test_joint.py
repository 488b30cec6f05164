"""Keypoints and descriptions of one network."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from helpers import assert_near
from steerers.datasets.pairs import PairBatch, correspondences
from steerers.steering.steerer import Steerer
from steerers.training.objectives.joint import JointObjective, _exchange, _reward
from steerers.training.objectives.keypoints import KeypointOptions
from training.tiny import OPTIONS, SMALL, batch_of, compact, photographs, shifted, small_steerer

pytestmark = pytest.mark.usefixtures("one_thread")

KEYPOINTS = KeypointOptions(area=40.0)


def joint(steerer: Steerer | None = None, keypoints: KeypointOptions = KEYPOINTS) -> JointObjective:
    return JointObjective(compact(), steerer or small_steerer(), OPTIONS, keypoints)


def with_tracks(batch: PairBatch, dense: bool) -> PairBatch:
    """The same pairs with some points that are known to correspond."""
    anchors0 = torch.full((len(batch), 5, 2), math.nan)
    anchors0[:, :4] = 8 + 30 * torch.rand(len(batch), 4, 2, generator=torch.Generator().manual_seed(0))
    anchors1, seen = batch.warp.forward(anchors0)
    anchors1[~seen] = math.nan
    return dataclasses.replace(batch, anchors=(anchors0, anchors1), dense=dense)


def total(objective: JointObjective, batch: PairBatch) -> Tensor:
    terms = objective(batch, 0.0)
    return sum((t.weight * t.total / t.count.clamp(min=1) for t in terms.values()), torch.zeros(()))


@pytest.mark.parametrize(
    "keypoints",
    [
        KEYPOINTS,
        KeypointOptions(targets="repeated", prior="none"),
        KeypointOptions(targets="repeated", prior="none", tried=12, reliability=1.0),
    ],
)
def test_a_small_network_learns_one_batch(keypoints: KeypointOptions) -> None:
    objective, batch = joint(keypoints=keypoints).train(), batch_of(photographs())
    assert list(objective.networks()) == ["network", "steerer"]
    start = objective.steerer.generator().detach().clone()
    optimiser, found = torch.optim.Adam(objective.parameters(), lr=1e-2), []
    for _ in range(15):
        loss = total(objective, batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    assert all(math.isfinite(value) for value in found)
    assert found[-1] < 0.85 * found[0]
    assert not torch.equal(objective.steerer.generator(), start)
    measures = objective.eval().measure(batch)
    assert set(measures) == {"nll", "accuracy", "repeatability"}
    assert all(0 <= value <= count for value, count in (measures["accuracy"], measures["repeatability"]))


@pytest.mark.parametrize("dense", [True, False])
def test_the_loss_is_not_finite_where_a_keypoint_is_not(dense: bool) -> None:
    """The backward pass of what is sampled at NaN ends the process, and what is sampled there is finite."""
    objective, batch = joint().train(), with_tracks(batch_of(photographs()), dense)
    assert total(objective, batch).isfinite()
    objective.network.trunk.head[2].bias.data.fill_(math.nan)
    features = objective.network(batch.images0).features
    assert all(bool(each.isfinite().all()) for each in features)
    assert not objective(batch, 0.0)["nll"].total.isfinite()


def test_there_are_true_matches_from_the_first_step_on() -> None:
    xy0, xy1 = torch.tensor([[[2.0, 3], [9, 9]]]), torch.tensor([[[15.0, 2], [3, 12]]])  # nothing is repeated
    real = torch.ones(1, 2, dtype=torch.bool)
    batch = shifted((1.5, 0.5))
    assert not len(correspondences(xy0, xy1, batch.warp, 3.0, real, real))
    (more0, real0), (more1, real1) = _exchange(xy0, real, xy1, real, batch, 3.0)
    assert_near(more0[0], torch.tensor([[2.0, 3], [9, 9], [13.5, 1.5]]), 1e-6)
    assert_near(more1[0], torch.tensor([[15.0, 2], [3, 12], [3.5, 3.5]]), 1e-6)
    matches = correspondences(more0, more1, batch.warp, 3.0, real0, real1)
    assert matches.tolist() == [[0, 0, 2], [0, 2, 0]]


def test_only_real_points_that_the_other_view_sees_are_exchanged() -> None:
    xy = torch.tensor([[[18.0, 3.0], [9.0, 9.0]]])
    both, second = torch.tensor([[True, True]]), torch.tensor([[False, True]])
    (more0, real0), (more1, real1) = _exchange(xy, both, xy, second, shifted((5.0, 0.0)), 3.0)
    assert real0.tolist() == [[True, True, False]]  # the second view's does not count
    assert real1.tolist() == [[False, True, False]]  # the first view's is not seen
    assert more0.isfinite().all()
    assert more1.isfinite().all()


def test_a_repeated_keypoint_gets_no_copy() -> None:
    """The exact copy would be the nearer match, and the keypoint that is repeated a false one."""
    batch = shifted((1.5, 0.5))
    xy0, xy1 = torch.tensor([[[5.0, 6.0], [12.0, 3.0]]]), torch.tensor([[[7.0, 7.5], [3.0, 12.0]]])
    real = torch.ones(1, 2, dtype=torch.bool)
    matches = correspondences(xy0, xy1, batch.warp, 3.0, real, real)
    assert matches.tolist() == [[0, 0, 0]]
    (more0, real0), (more1, real1) = _exchange(xy0, real, xy1, real, batch, 3.0)
    assert real0.tolist() == real1.tolist() == [[True, True, False]]
    assert correspondences(more0, more1, batch.warp, 3.0, real0, real1).tolist() == matches.tolist()
    (_, near0), (_, near1) = _exchange(xy0, real, xy1, real, batch, 1.0)  # too far for that radius
    assert near0.tolist() == near1.tolist() == [[True, True, True]]
    (_, filled0), (_, filled1) = _exchange(xy0, real, xy1, torch.tensor([[False, True]]), batch, 3.0)
    assert filled1.tolist() == [[False, True, True]]  # what only fills up a batch repeats nothing
    assert filled0.tolist() == [[True, True, False]]


def test_tracks_alone_train_descriptions_alone() -> None:
    objective = joint().train()
    batch = with_tracks(batch_of(photographs()), dense=False)
    terms = objective(batch, 0.0)
    assert set(terms) == {"nll"}
    assert float(terms["nll"].count) >= 1
    terms["nll"].total.backward()
    assert all(parameter.grad is None for parameter in objective.network.trunk.head.parameters())
    assert objective.network.describer.linear.weight.grad.isfinite().all()
    assert set(objective(with_tracks(batch_of(photographs()), dense=True), 0.0)) == {"keypoints", "reprojection", "nll"}
    unweighted = JointObjective(compact(), small_steerer(), OPTIONS, dataclasses.replace(KEYPOINTS, reprojection=0.0))
    assert set(unweighted(batch_of(photographs()), 0.0)) == {"keypoints", "nll"}


def test_validation_does_not_help_itself_with_exchanged_points() -> None:
    objective = joint().eval()
    batch = batch_of(photographs())
    term, measures = objective(batch, 0.0)["nll"], objective.measure(batch)
    assert measures["nll"][1] < float(term.count)


def test_keypoints_are_rewarded_that_match_better_than_the_mean() -> None:
    logits0, logits1 = (torch.zeros(1, 10, 12).requires_grad_() for _ in (0, 1))
    found = torch.tensor([[[2.0, 3.0], [8.0, 5.0], [5.0, 8.0]]]), torch.tensor([[[3.0, 3.0], [9.0, 5.0]]])
    matches = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 2, 5], [0, 7, 1]])  # the last two are with other points
    probabilities = torch.tensor([0.9, 0.3, 0.99, 0.01])
    term = _reward((logits0, logits1), found, matches, probabilities)
    assert float(term.count) == 2.0
    term.total.backward()
    for logits, places in ((logits0, ((2, 3), (8, 5))), (logits1, ((3, 3), (9, 5)))):
        (x, y), (u, v) = places
        assert float(logits.grad[0, y, x]) == pytest.approx(-0.3, abs=1e-5)  # likelier from now on
        assert float(logits.grad[0, v, u]) == pytest.approx(0.3, abs=1e-5)
        assert float(logits.grad.abs().sum()) == pytest.approx(0.6, abs=1e-4)  # and nowhere else
    nothing = _reward((logits0, logits1), found, matches[:0], probabilities[:0])
    assert float(nothing.total.detach()) == float(nothing.count) == 0.0


def test_rewards_and_margins_train() -> None:
    objective, batch = joint().train(), batch_of(photographs(size=48))
    objective.keypoints = dataclasses.replace(KEYPOINTS, reliability=1.0, margin=4)
    terms = objective(batch, 0.0)
    assert set(terms) == {"keypoints", "reprojection", "nll", "reliability"}
    total(objective, batch).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())
    assert objective.eval().measure(batch)["nll"][1] > 0


def test_the_prototype_is_trained_too() -> None:
    options = dataclasses.replace(OPTIONS, prototype=True)
    objective = JointObjective(compact(), Steerer.freq1(SMALL.dim), options, KEYPOINTS)
    assert list(objective.networks()) == ["network", "prototype"]
    total(objective, batch_of(photographs())).backward()
    assert float(objective.matcher.prototype.grad.abs().sum()) > 0


def test_half_precision_is_for_the_network_alone() -> None:
    objective, batch = joint().eval(), batch_of(photographs())
    maps = objective.network(torch.cat([batch.images0, batch.images1]))
    objective.network.forward = lambda _: maps  # type: ignore[method-assign]
    expected = objective(batch, 0.0), objective.measure(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms, measures = objective(batch, 0.0), objective.measure(batch)
    assert all(torch.equal(term.total, expected[0][name].total) for name, term in terms.items())
    assert measures == expected[1]
