"""Keypoints and descriptions of one network, trained together: for the embedded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from steerers.datasets.pairs import PairBatch, correspondences
from steerers.models.base import Extractor
from steerers.models.compact import Compact, FeatureMaps
from steerers.steering.steerer import Steerer
from steerers.training.objectives import Measures, Objective, Real, Term, Terms
from steerers.training.objectives.descriptions import Described, Matcher, MatchingOptions, with_anchors
from steerers.training.objectives.keypoints import (
    Found,
    KeypointOptions,
    find_keypoints,
    keypoint_terms,
    look_up,
    repeatability,
    reprojection_terms,
    without_margin,
)


class JointObjective(Objective):
    """Keypoints and descriptions of one network: descriptions are trained at the network's own keypoints.

    A quarter of each view's keypoints is also looked for at the true place in the other view, unless it is repeated
    there, so that there are true matches from the first step on.
    """

    def __init__(
        self, network: Compact, steerer: Steerer | None, matching: MatchingOptions, keypoints: KeypointOptions
    ) -> None:
        super().__init__()
        if keypoints.prior == "sfm":
            raise ValueError(
                "setting 'joint' trains keypoints from photographs: keypoints.prior is 'corners' or 'none', not 'sfm', "
                "which is DeDoDe's objective for a detector alone"
            )
        self.network, self.steerer, self.matching, self.keypoints = network, steerer, matching, keypoints
        self.matcher = Matcher(steerer, matching)

    def networks(self) -> Mapping[str, nn.Module]:
        return {"network": self.network, **self.matcher.networks()}

    def extractor(self) -> Extractor:
        return self.network

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        batch = without_margin(batch, self.keypoints.margin)
        return self._pair_terms(self.network(torch.cat([batch.images0, batch.images1])), batch, progress)

    def _pair_terms(self, maps: FeatureMaps, batch: PairBatch, progress: float) -> Terms:
        """What the two views of each pair teach each other."""
        with torch.autocast(maps.logits.device.type, enabled=False):
            logits0, logits1 = maps.logits.chunk(2)
            found = self._find(maps, batch, self.keypoints)
            first, second, real = found.xy0.detach(), found.xy1.detach(), found.real
            terms: Terms = {}
            if batch.dense:
                terms = keypoint_terms(logits0, logits1, batch, self.keypoints, progress, found)
                if self.keypoints.reprojection > 0:
                    terms |= reprojection_terms(found, batch, self.keypoints.reprojection)
            pairs = self._describe(maps, first, second, real, batch, True)
            nll, probabilities = self.matcher.terms(pairs)
            # Where a keypoint is NaN, so is the loss: its backward pass would crash, and the loop does not begin it.
            terms["nll"] = nll._replace(total=nll.total + 0.0 * (first.sum() + second.sum()))
            if self.keypoints.reliability > 0:
                reward = _reward((logits0, logits1), (first, second), pairs.matches, probabilities)
                terms["reliability"] = reward._replace(weight=self.keypoints.reliability)
        return terms

    @torch.no_grad()
    def measure(self, batch: PairBatch) -> Measures:
        batch = without_margin(batch, self.keypoints.margin)
        maps = self.network(torch.cat([batch.images0, batch.images1]))
        with torch.autocast(maps.logits.device.type, enabled=False):
            xy0, xy1, real, *_ = self._find(maps, batch, replace(self.keypoints, tried=0))
            measures = self.matcher.measure(self._describe(maps, xy0, xy1, real, batch, False))
            measures["repeatability"] = repeatability(xy0, xy1, batch, real, self.matching.radius)
        return measures

    def _find(self, maps: FeatureMaps, batch: PairBatch, options: KeypointOptions) -> Found:
        logits0, logits1 = maps.logits.chunk(2)
        return find_keypoints((logits0, logits1), batch, self.matching.num_keypoints, options, self.network.sampling)

    def _describe(
        self, maps: FeatureMaps, xy0: Tensor, xy1: Tensor, real: Real, batch: PairBatch, extra: bool
    ) -> Described:
        real0, real1 = real
        if extra and batch.dense:
            (xy0, real0), (xy1, real1) = _exchange(xy0, real0, xy1, real1, batch, self.matching.radius)
        if extra or not batch.dense:
            xy0, real0 = with_anchors(xy0, real0, batch, 0)
            xy1, real1 = with_anchors(xy1, real1, batch, 1)
        matches = correspondences(xy0, xy1, batch.warp, self.matching.radius, real0, real1)
        first, second = self.network.describe_at(maps, torch.cat([xy0, xy1])).chunk(2)
        return Described(first, second, batch.angles, matches, (real0, real1))


def _reward(
    logits: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], matches: Tensor, probabilities: Tensor
) -> Term:
    """Make keypoints likelier whose match is likelier than the mean, and the others less likely.

    Of ``found``, (B, N, 2) keypoints of both views: matches with anything beyond them, which is none, do not count.
    """
    pair, i, j = matches.unbind(dim=1)
    detected = (i < found[0].shape[1]) & (j < found[1].shape[1])
    mean = (probabilities * detected).sum() / detected.sum().clamp(min=1)
    gain = torch.where(detected, probabilities - mean, 0.0)  # (K,)
    total = 0.0 * (logits[0].sum() + logits[1].sum())
    for own, xy, index in zip(logits, found, (i, j), strict=True):
        log = own - own.flatten(1).logsumexp(dim=1).view(-1, 1, 1)
        total = total - (gain * look_up(log, xy)[pair, index.clamp(max=xy.shape[1] - 1)]).sum()
    return Term(total, detected.sum().to(total))


def _exchange(
    xy0: Tensor, real0: Tensor, xy1: Tensor, real1: Tensor, batch: PairBatch, radius: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Every fourth keypoint of each view also at its true place in the other, unless it is repeated there already.

    Beside a keypoint within ``radius``, the copy would be the nearer match and make the keypoint a false one.
    """
    there, seen0 = batch.warp.forward(xy0[:, ::4])
    here, seen1 = batch.warp.backward(xy1[:, ::4])
    new0 = seen1 & real1[:, ::4] & ~_near(here, xy0, real0, radius)
    new1 = seen0 & real0[:, ::4] & ~_near(there, xy1, real1, radius)
    first = torch.cat([xy0, here.nan_to_num()], dim=1), torch.cat([real0, new0], dim=1)
    second = torch.cat([xy1, there.nan_to_num()], dim=1), torch.cat([real1, new1], dim=1)
    return first, second


def _near(points: Tensor, xy: Tensor, real: Tensor, radius: float) -> Tensor:
    """(B, N) bool: which of (B, N, 2) points have a real one of (B, M, 2) keypoints within the radius."""
    distances = torch.cdist(points.nan_to_num().double(), xy.double())  # (B, N, M)
    return ((distances < radius) & real[:, None]).any(dim=2)
