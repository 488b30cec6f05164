"""The objective of the paper."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from helpers import randn
from steerers.training.losses import dual_softmax_nll, matching_accuracy


def test_the_loss_is_the_negative_logarithm_of_equation_1(dtype: torch.dtype, tolerance: float) -> None:
    unit0, unit1 = (F.normalize(randn(n, 16, seed=n, dtype=dtype), dim=1) for n in (9, 7))
    matches = torch.tensor([[0, 3], [5, 5], [8, 0]])
    scores = 20 * unit0 @ unit1.mT
    probability = scores.softmax(dim=1) * scores.softmax(dim=0)
    expected = -probability[matches[:, 0], matches[:, 1]].log().mean()
    assert float(dual_softmax_nll(unit0, unit1, matches)) == pytest.approx(float(expected), abs=tolerance)


def test_no_matches_give_no_loss_and_no_nan() -> None:
    unit0 = F.normalize(randn(4, 8), dim=1).requires_grad_()
    loss = dual_softmax_nll(unit0, unit0, torch.zeros(0, 2, dtype=torch.long))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert unit0.grad is not None
    assert float(unit0.grad.abs().max()) == 0.0


def test_accuracy_counts_mutual_nearest_true_matches() -> None:
    unit = torch.eye(4)
    assert matching_accuracy(unit, unit, torch.tensor([[0, 0], [1, 1], [2, 3], [3, 2]])) == 0.5
    assert matching_accuracy(unit, unit.flip(0), torch.tensor([[0, 3], [3, 0]])) == 1.0
    assert math.isnan(matching_accuracy(unit, unit, torch.zeros(0, 2, dtype=torch.long)))
