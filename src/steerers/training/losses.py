"""Objectives."""

from __future__ import annotations

import torch
from torch import Tensor


def dual_softmax_nll(unit0: Tensor, unit1: Tensor, matches: Tensor, inverse_temperature: float = 20.0) -> Tensor:
    """The paper's objective: the mean negative logarithm of equation (1) over true matches.

    Args:
        unit0: (N, D) unit descriptions; ``unit1`` (M, D), steered before they were normalised.
        matches: (K, 2) indices of true matches. With none the loss is zero, and its gradient too.
    """
    scores = inverse_temperature * (unit0 @ unit1.mT)  # (N, M)
    if not len(matches):
        return scores.sum() * 0.0
    i, j = matches.unbind(dim=1)
    log_rows, log_cols = scores.logsumexp(dim=1), scores.logsumexp(dim=0)
    return (log_rows[i] + log_cols[j] - 2 * scores[i, j]).mean()


@torch.no_grad()
def matching_accuracy(unit0: Tensor, unit1: Tensor, matches: Tensor) -> float:
    """Share of true matches that are mutual nearest neighbours; not a number if there are none."""
    if not len(matches):
        return float("nan")
    scores = unit0 @ unit1.mT
    i, j = matches.unbind(dim=1)
    return float(((scores.argmax(dim=1)[i] == j) & (scores.argmax(dim=0)[j] == i)).float().mean())
