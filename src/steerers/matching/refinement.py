"""The rotation of every match to a fraction of a degree, where a strategy has tried single rotations only.

The similarity of two descriptions is a trigonometric polynomial of the rotation (:mod:`steerers.matching.harmonics`).
Made for the matched pairs alone it costs little, and where it is largest near the tried rotation is the rotation of the
pair.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steerers.matching.assignment import Assignment
from steerers.matching.harmonics import Harmonics
from steerers.steering.steerer import Steerer

POINTS = 8
"""Rotations at which the polynomial is looked at, in each period of its highest frequency."""
NEWTON_STEPS = 4


@torch.no_grad()
def refined_rotations(
    descriptions0: Tensor, descriptions1: Tensor, assignment: Assignment, steerer: Steerer, order: int | None
) -> Tensor | None:
    """The rotation of largest similarity of every match, within one step, a full turn by ``order``, of the tried one.

    Half a step would do if the rotation nearest to the truth were always the one that is kept. But neighbours vie where
    the truth lies between them, and one rotation for all matches is not the nearest for each.

    Args:
        descriptions0: (N, D); ``descriptions1`` (M, D); as they were matched.
        assignment: with the tried rotation of each match, or one for all.
        steerer: whose rotations were tried.
        order: how many of them; None if the rotations of the assignment are exact.

    Returns:
        (K,) float64 radians, or None where there is nothing to refine: no match, no tried rotation, or a steerer that
        is not a fixed one of SO(2) with other frequencies than 0.
    """
    representation = steerer.representation
    if representation is None or not representation.group.continuous or order is None or assignment.angle is None:
        return None
    top = max(map(abs, representation.multiplicities()))
    if top == 0:
        return None
    i, j = assignment.indices.unbind(dim=1)
    tried = (
        torch.full((len(i),), assignment.angle, dtype=torch.float64) if assignment.angles is None else assignment.angles
    )
    tried = tried.to(i.device, torch.float64)
    harmonics = Harmonics(descriptions0[i], descriptions1[j], steerer, None)
    every = torch.arange(len(i), device=i.device)
    return _climb(harmonics, harmonics.pair_components(every, every), tried, 2 * math.pi / order, top)


def _climb(harmonics: Harmonics, components: Tensor, tried: Tensor, reach: float, top: int) -> Tensor:
    """(K,) the highest place, within ``reach`` of (K,) tried rotations, of polynomials with (K, components)
    coefficients.

    The best of a few points, then Newton's steps, none of which leaves the neighbours of that point.
    """
    count = math.ceil(reach * POINTS * top / (2 * math.pi))  # on either side
    spacing = reach / count
    points = tried[:, None] + spacing * torch.arange(-count, count + 1, device=tried.device)  # (K, P)
    values = torch.einsum("kpc,kc->kp", harmonics.basis(points), components)
    best = points.gather(1, values.argmax(dim=1, keepdim=True))[:, 0]
    low, high = (torch.clamp(best + side * spacing, tried - reach, tried + reach) for side in (-1, 1))
    rotation = best
    for _ in range(NEWTON_STEPS):
        slope, curvature = ((harmonics.basis(rotation, k) * components).sum(dim=1) for k in (1, 2))
        step = torch.where(curvature < 0, -slope / curvature, torch.sign(slope) * (spacing / 2))
        rotation = torch.clamp(rotation + step, low, high)
    return rotation
