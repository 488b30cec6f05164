"""Which matches agree with those around them: a small network that no rotation of either image changes.

A steerer says of every match, on its own, by how much the image is rotated there. The way from a true match to a true
one nearby rotates by as much, and its length changes as that to others does; a wrong match agrees with its neighbours
by chance alone. So the candidates of a pair are points in both images at once: each hears from those that are nearest
to it in both, and says how likely it is to be right.

Where a pair is hard, the right match of a keypoint is often the second or third best by descriptions, in one direction
or in both. So candidates are all pairs above a low probability, several of one keypoint among them. Each is told how it
stands among its rivals; in the end the likeliest stays.

What is heard are lengths in units of how far all candidates spread, and angles between rotations and directions, so
that neither image need be upright or of any scale. How much each disagreement weighs is learnt
(:mod:`steerers.training.fit_consensus`), and differs little from scene to scene.

Neighbours know nothing of what is far away, and a match that is off by a little agrees with all of them. But all right
ones of a pair lie on the epipolar lines of one fundamental matrix. So between the rounds, those that are thought to be
right so far say which it is, and each is told how far it is from its lines.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers._files import StrPath
from steerers._weights import WeightsError, load, load_into, save
from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment

NEIGHBOURS = 16
CHANNELS, ROUNDS = 32, 4
CANDIDATE = 0.003
"""Least match probability of a candidate, by descriptions alone."""
LIKELY = 0.1
"""Least probability of a match among its neighbours, unless said otherwise; chosen on held-out scenes."""
LEAST = 3
"""Fewer candidates are left as they are: there is no neighbourhood to speak of."""
PER_MATCH, PER_NEIGHBOUR, PER_LINE = 4, 10, 3
"""Numbers that say what a match is by itself, beside another, and beside its epipolar lines."""
FEWEST = 16
"""Candidates that say anything of a fundamental matrix, which eight determine."""
EXACT = 1e-3
"""Distance from an epipolar line, in units of how far the likely ones spread, that is as good as none."""
CLOSE = 0.005
"""Distance, in units of the spread of all candidates, below which places are as good as the same."""
CHUNK = 512
MOST = 8192
"""Candidates that are looked at: where everything repeats, each keypoint has a dozen."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What may be matches of a pair of images, and where.

    Attributes:
        points0: (M, 2) pixels of image 0, x right and y down, in whatever frame rotations are told in; ``points1``.
        scores: (M,) match probabilities by descriptions alone.
        rivals: (M, 2) of the probability of all candidates of its keypoint in image 0, and of that in image 1, the
            fraction that is its own: 1 where there is no other.
        angles: (M,) radians, the rotation of each; ``angle`` that of the pair.
    """

    points0: Tensor
    points1: Tensor
    scores: Tensor
    rivals: Tensor
    angles: Tensor
    angle: float

    @classmethod
    def of(cls, found: Assignment, points0: Tensor, points1: Tensor) -> Self:
        """The first :data:`MOST` of an assignment with rotations, of keypoints at (N, 2) and (N', 2) pixels."""
        assert found.angles is not None
        indices, scores = found.indices[:MOST], found.scores[:MOST]
        i, j = indices.unbind(dim=1)
        rivals = torch.stack([_own_fraction(scores, index) for index in (i, j)], dim=1)
        return cls(points0[i], points1[j], scores, rivals, found.angles[:MOST], found.angle or 0.0)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: Tensor) -> Candidates:
        """Some of them; the rotation of the pair is theirs."""
        scores, angles = self.scores[index], self.angles[index]
        angle = circular_mode(angles, scores) if len(scores) else self.angle
        return Candidates(self.points0[index], self.points1[index], scores, self.rivals[index], angles, angle)


class Consensus(nn.Module):
    """Probabilities of candidates among their neighbours.

    Args:
        channels: of what is known of a match; ``rounds`` in which neighbours are heard.
        threshold: least probability of a match that is kept.
    """

    def __init__(self, channels: int = CHANNELS, rounds: int = ROUNDS, threshold: float = LIKELY) -> None:
        super().__init__()
        self.threshold = threshold
        self.embed = nn.Sequential(nn.Linear(PER_MATCH, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.rounds = nn.ModuleList(_Round(channels) for _ in range(rounds))
        self.lines = nn.ModuleList(nn.Linear(PER_LINE, channels) for _ in range(rounds - 1))
        self.heads = nn.ModuleList(nn.Linear(channels, 1) for _ in range(rounds))

    def forward(self, candidates: Candidates) -> Tensor:
        """(rounds, M) logits, of which the last are the answer and the others help to learn it; M of at least 2."""
        near, beside = neighbourhoods(candidates)
        known, weights, logits = self.embed(_alone(candidates)), candidates.scores.float(), []
        for number, (hear, head) in enumerate(zip(self.rounds, self.heads, strict=True)):
            if number > 0:
                known = known + self.lines[number - 1](beside_lines(candidates, weights))
            known = hear(known, near, beside, weights)
            logits.append(head(known)[:, 0])
            weights = logits[-1].sigmoid()
        return torch.stack(logits)

    @torch.no_grad()
    def choose(self, found: Assignment, points0: Tensor, points1: Tensor) -> Assignment:
        """Of candidates those that are likely, the best first; their scores are then these probabilities.

        Of several candidates of one keypoint the likeliest stays, unless the keypoint that it leads to has a likelier
        one.

        Args:
            found: candidates with their rotations, above :data:`CANDIDATE`, the best first; :data:`MOST` are seen.
            points0: (N, 2) pixels of all keypoints of image 0, in the frame of the rotations; ``points1`` (N', 2).
        """
        if found.angles is None or found.angle is None:
            return found
        if len(found) < LEAST:
            probability, order = found.scores, torch.arange(len(found), device=found.scores.device)
        else:
            probability = self(Candidates.of(found, points0, points1))[-1].sigmoid()
            order = probability.argsort(descending=True, stable=True)
            order = order[probability[order] > self.threshold]
        order = order[_first_of_both(found.indices[order])]
        angles, scores = found.angles[order], probability[order]
        angle = circular_mode(angles, scores) if len(order) else None
        return replace(found, indices=found.indices[order], scores=scores, angle=angle, angles=angles)

    def above(self, threshold: float) -> Self:
        """The same with another threshold."""
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {threshold}")
        other = copy(self)
        other.threshold = threshold
        return other

    # Files ------------------------------------------------------------------------------------------------------------

    def save(self, path: StrPath, metadata: dict[str, str]) -> None:
        """Write a file that :meth:`load` reads, and what it says of its making."""
        save(path, self.state_dict(), {"kind": "consensus", **metadata})

    @classmethod
    def load(cls, path: StrPath, model: str | None = None) -> Self:
        """What :meth:`save` wrote.

        Args:
            model: by whose descriptions the candidates are found; refused if it was fitted to another's.
        """
        state, metadata = load(path)
        if metadata.get("kind") != "consensus":
            raise WeightsError(f"{path}: not a consensus, which steerers fit-consensus writes")
        if model is not None and metadata.get("model", model) != model:
            raise WeightsError(f"{path}: a consensus for model {metadata['model']!r}, not for {model!r}")
        network = cls()
        load_into(network, state, path, "a consensus")
        return network.requires_grad_(False).eval()


class _Round(nn.Module):
    """What a match knows after it has heard from its neighbours and, in one voice, from all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.own = nn.Linear(channels, channels)
        self.other = nn.Linear(channels, channels, bias=False)
        self.beside = nn.Linear(PER_NEIGHBOUR, channels)
        self.say = nn.Linear(channels, 2 * channels)  # what is said, and how much it counts
        self.conclude = nn.Sequential(
            nn.Linear(4 * channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels)
        )
        self.norm = nn.LayerNorm(channels)

    def forward(self, known: Tensor, near: Tensor, beside: Tensor, weights: Tensor) -> Tensor:
        """(M, C) after, of (M, C) ``known`` before, (M, K) neighbours with (M, K, E) numbers, and (M,) weights."""
        heard = F.relu(self.own(known)[:, None] + self.other(known)[near] + self.beside(beside))  # (M, K, C)
        said, counts = self.say(heard).chunk(2, dim=-1)
        everybody = weights @ known / (weights.sum() + 1e-3)  # (C,)
        told = (known, (said * counts.sigmoid()).mean(dim=1), said.amax(dim=1), everybody.expand_as(known))
        concluded: Tensor = self.norm(known + self.conclude(torch.cat(told, dim=-1)))
        return concluded


# What is told ---------------------------------------------------------------------------------------------------------


def _alone(candidates: Candidates) -> Tensor:
    """(M, 4): how well descriptions agree, whether the match rotates as most do, and how it stands among its rivals."""
    odds = torch.logit(candidates.scores.float().clamp(1e-5, 1 - 1e-4))
    alone = torch.stack([0.3 * odds, (candidates.angles - candidates.angle).cos().float()], dim=-1)
    return torch.cat([alone, candidates.rivals.float().clamp(min=1e-3).log() / 3 + 1], dim=-1)


def _own_fraction(scores: Tensor, index: Tensor) -> Tensor:
    """(M,) of the sum of the scores of all with the same (M,) index, the fraction that is a candidate's own."""
    total = scores.new_zeros(int(index.max()) + 1 if len(index) else 0).index_add(0, index, scores)
    return scores / total[index]


def _first_of_both(indices: Tensor) -> Tensor:
    """(M,) bool of (M, 2) matches, the best first: whether none before has the same keypoint in either image."""
    place = torch.arange(len(indices), device=indices.device)
    first = torch.ones_like(place, dtype=torch.bool)
    for index in indices.unbind(dim=1) if len(indices) else ():
        earliest = place.new_full((int(index.max()) + 1,), len(place)).scatter_reduce(0, index, place, "amin")
        first &= earliest[index] == place
    return first


def neighbourhoods(candidates: Candidates, count: int = NEIGHBOURS) -> tuple[Tensor, Tensor]:
    """(M, K) the candidates that are nearest in both images, and (M, K, 10) what each is beside the match.

    The distance of two candidates is the larger of their distances in the two images.
    """
    points0, points1 = _in_units(candidates.points0), _in_units(candidates.points1)
    count = min(count, len(candidates) - 1)
    near = torch.cat([_nearest(points0, points1, rows, count) for rows in _chunks(len(candidates))])
    away0, away1 = points0[near] - points0[:, None], points1[near] - points1[:, None]  # (M, K, 2)
    length0, length1 = away0.norm(dim=-1), away1.norm(dim=-1)
    angles = candidates.angles.float()
    rotation = _direction(away1) - _direction(away0)
    disagreements = (rotation - angles[:, None], rotation - angles[near], angles[near] - angles[:, None])
    ratio = torch.log((length1 + CLOSE) / (length0 + CLOSE))
    told = [wave for angle in disagreements for wave in (angle.cos(), angle.sin())]
    told += [ratio, ratio.abs(), 0.5 * torch.log(torch.maximum(length0, length1) + CLOSE) + 1]
    told.append((torch.minimum(length0, length1) / CLOSE).clamp(max=4) / 2)  # whether directions mean anything
    return near, torch.stack(told, dim=-1)


@torch.no_grad()
def beside_lines(candidates: Candidates, weights: Tensor) -> Tensor:
    """(M, 3): how far a candidate is from its epipolar lines by what the others say, how far those are that are thought
    to be right, and how many these are.

    The fundamental matrix is that of all candidates by their (M,) weights (Hartley's normalised eight points), and
    distances are Sampson's. What points of a plane say of it is told all the same, with how well it fits; of fewer than
    :data:`FEWEST` candidates nothing is.
    """
    if len(candidates) < FEWEST:
        return candidates.points0.new_zeros(len(candidates), PER_LINE, dtype=torch.float32)
    weights, count = weights.double(), weights.double().sum()
    rays0, rays1 = (_weighed_units(points, weights) for points in (candidates.points0, candidates.points1))
    products = (rays1[:, :, None] * rays0[:, None]).flatten(1)  # (M, 9)
    fundamental = torch.linalg.eigh(products.mT @ (weights[:, None] * products)).eigenvectors[:, 0].view(3, 3)
    lines1, lines0 = rays0 @ fundamental.mT, rays1 @ fundamental  # (M, 3)
    slopes = lines0[:, :2].square().sum(dim=1) + lines1[:, :2].square().sum(dim=1)
    off = (rays1 * lines1).sum(dim=1).abs() / slopes.sqrt().clamp(min=1e-9)
    logs = torch.log(off + EXACT)
    typical = (weights * logs).sum() / count.clamp(min=1e-9)
    told = [logs / 3 + 1, (logs - typical) / 3, (count + 1).log().expand_as(logs) / 5]
    return torch.stack(told, dim=1).float()


def _weighed_units(points: Tensor, weights: Tensor) -> Tensor:
    """(M, 3) places with a 1 beside, in units of how far they spread, around their middle, both by weight."""
    total = weights.sum().clamp(min=1e-9)
    around = points.double() - (weights[:, None] * points.double()).sum(dim=0) / total
    spread = ((weights * around.square().sum(dim=1)).sum() / total).sqrt().clamp(min=1e-6)
    return F.pad(around / spread, (0, 1), value=1.0)


def _in_units(points: Tensor) -> Tensor:
    """(M, 2) places in units of how far they spread, around their middle."""
    around = (points.double() - points.double().mean(dim=0)).float()
    return around / around.square().sum(dim=1).mean().sqrt().clamp(min=1e-6)


def _chunks(length: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, length, CHUNK)]


def _nearest(points0: Tensor, points1: Tensor, rows: slice, count: int) -> Tensor:
    """(r, K) the nearest of all candidates to some rows of them, but for itself."""
    exact = "donot_use_mm_for_euclid_dist"  # which would lose what is near
    apart = torch.maximum(
        torch.cdist(points0[rows], points0, compute_mode=exact), torch.cdist(points1[rows], points1, compute_mode=exact)
    )
    own = torch.arange(len(points0), device=points0.device)[rows]
    apart[torch.arange(len(own), device=own.device), own] = math.inf
    return apart.topk(count, dim=1, largest=False).indices


def _direction(away: Tensor) -> Tensor:
    """Radians counter-clockwise from x of (..., 2) vectors whose y goes down."""
    return torch.atan2(-away[..., 1], away[..., 0])
