"""A consensus for the descriptions of a model: what neighbours of a match agree in, learnt from pairs with a truth.

Pairs are photographs of reconstructions, where a match is right if it lies on the true epipolar lines, two views of
one photograph, where the place is known, and photographs that have nothing in common. Networks run once, before; what
is kept are candidates, and how far each is off. Then right ones are left out at random, more of them than of wrong
ones, since the pairs that are hard are those with few.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers._files import StrPath
from steerers.datasets.folder import two_views
from steerers.datasets.pairs import check_options, generator_of, uniforms
from steerers.datasets.photos import find_images, held_out, spread
from steerers.datasets.reconstruction import Scene, check_pinholes, open_scenes
from steerers.datasets.views import Views
from steerers.features import Features
from steerers.geometry import epipolar_errors, fundamental_matrix, relative_pose
from steerers.images.load import load_image, to_uint8
from steerers.matching.consensus import CANDIDATE, LEAST, Candidates, Consensus
from steerers.matching.strategies import SoftmaxStrategy
from steerers.pipeline import Pipeline

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]
SCENES, VIEWS, UNRELATED = "scenes", "views", "unrelated"
PORTIONS = {SCENES: 0.6, VIEWS: 0.25, UNRELATED: 0.15}
"""Of the examples of a step, as far as there are such pairs."""
RIGHT, WRONG = 2.0, 4.0
"""Pixels of the image as it was matched: at most so far off is right, farther than that wrong, and between is not told.
"""
SHARED = 8
"""Least number of points of a reconstruction that two photographs of a pair both show."""
KEYPOINTS = (512, 1024, 2048)
"""An image of a pair has at most as many as one of these, drawn."""


@dataclass(frozen=True)
class ConsensusOptions:
    """How a consensus is learnt.

    Attributes:
        pairs: of each reconstruction at most.
        views: photographs of which two views are made.
        unrelated: pairs that have nothing in common: half of them photographs of two scenes, the others two of those of
            which views are made.
        held_out: fraction of the views, and of the pairs of reconstructions, that it is measured on.
        steps: of gradient descent, of ``batch`` pairs each.
        learning_rate: of AdamW, decaying to zero along a cosine.
        average: weights are averaged over so many steps.
        thinned: fraction of the examples of which right candidates are left out.
        drawn: how views are drawn.
        seed: of everything that is drawn; the same seed gives the same network, but for rounding.
    """

    pairs: int = 160
    views: int = 700
    unrelated: int = 1400
    held_out: float = 0.1
    steps: int = 5000
    batch: int = 4
    learning_rate: float = 3e-3
    average: int = 100
    thinned: float = 0.8
    drawn: Views = field(
        default_factory=lambda: Views(
            size=576, scale=(0.3, 1.6), tilt=4.0, perspective=0.25, photometric=0.9, weather=0.2, sensors=0.2
        )
    )
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, "be at least 1", lambda value: value >= 1, "pairs", "steps", "batch", "average")
        check_options(self, "not be negative", lambda value: value >= 0, "views", "unrelated")
        check_options(self, "be positive and finite", lambda value: 0 < value < math.inf, "learning_rate")
        check_options(self, "be in [0, 1]", lambda value: 0 <= value <= 1, "thinned")
        check_options(self, "be in [0, 1)", lambda value: 0 <= value < 1, "held_out")


@dataclass(frozen=True, eq=False)
class Example:
    """The candidates of a pair, and by how many pixels each is off: (M,), infinite where it cannot be right."""

    candidates: Candidates
    errors: Tensor
    kind: str
    kept_out: bool = False


@dataclass(frozen=True, eq=False)
class ConsensusFit:
    """A consensus, and what is known about it.

    Attributes:
        recall: of held-out pairs, the fraction of right candidates that it keeps; ``precision`` the fraction of those
            kept that are right, and ``before`` that of all candidates.
    """

    consensus: Consensus
    recall: float
    precision: float
    before: float
    counts: dict[str, int]

    def summary(self) -> str:
        """One line for people."""
        counted = ", ".join(f"{count} of {kind}" for kind, count in self.counts.items())
        return (
            f"of held-out pairs {self.recall:.1%} of the right candidates are kept, and {self.precision:.1%} of those "
            f"kept are right, where {self.before:.1%} were; pairs: {counted}"
        )


def fit_consensus(
    matcher: Pipeline,
    *,
    images: str | os.PathLike[str] | None = None,
    reconstructions: Sequence[StrPath] = (),
    options: ConsensusOptions | None = None,
    progress: Progress | None = None,
) -> ConsensusFit:
    """Learn which candidates of a model are right.

    Args:
        matcher: whose strategy tells the rotation of every match.
        images: a folder of photographs, for views; ``reconstructions`` folders of COLMAP models without lens
            distortion, or of such folders. One of the two at least.
        progress: wraps the loops, ``progress(iterable, what, length)``.

    Raises:
        ValueError: if there is nothing to learn from, or the matcher tells no rotations.
    """
    options = options or ConsensusOptions()
    finder = candidate_finder(matcher)
    if images is None and not reconstructions:
        raise ValueError("a consensus is learnt from photographs, reconstructions or both, and none were given")
    show = progress or (lambda items, what, length: items)
    rng = random.Random(options.seed)
    scenes = [scene for root in reconstructions for scene in open_scenes(root)]
    described = [_describe_scene(finder, scene, show) for scene in scenes]
    examples = [
        example
        for scene, features in zip(scenes, described, strict=True)
        for example in scene_examples(finder, scene, features, options, rng)
    ]
    alone: list[list[Features]] = []
    if images is not None:
        photos = spread(find_images(images), options.views)
        examples += show(view_examples(finder, photos, options, rng), "views of photographs", len(photos))
        few = spread(photos, options.unrelated // 6)
        alone = [[finder.extract(photo)] for photo in show(few, "unrelated photographs", len(few))]
    groups = [group for group in (described, alone) if len(group) > 1]
    for group in groups:
        examples += unrelated_examples(finder, group, options.unrelated // len(groups), rng)
    examples = [example for example in examples if len(example.candidates) >= LEAST]
    training = [example for example in examples if not example.kept_out]
    if not training:
        raise ValueError("no pair has candidates to learn from: are these photographs of scenes with some texture?")
    consensus = learn(training, options, show)
    return ConsensusFit(
        consensus,
        *measure(consensus, [example for example in examples if example.kept_out] or training),
        {kind: sum(example.kind == kind for example in examples) for kind in PORTIONS},
    )


def candidate_finder(matcher: Pipeline) -> Pipeline:
    """The matcher that finds candidates: all that is not hopeless, and nothing chosen among them."""
    if not isinstance(matcher.strategy, SoftmaxStrategy) or matcher.model.steerer is None:
        raise ValueError(f"{matcher.strategy_name} tells no rotation of every match, which a consensus needs")
    mutual = not matcher.strategy.finds_candidates
    strategy = replace(matcher.strategy, options=replace(matcher.strategy.options, threshold=CANDIDATE, mutual=mutual))
    return replace(matcher, strategy=strategy, consensus=None, refinement=None)


# Examples -------------------------------------------------------------------------------------------------------------


def _describe_scene(finder: Pipeline, scene: Scene, show: Progress) -> list[Features]:
    """The features of all photographs of a scene, in its order."""
    check_pinholes(scene, "epipolar lines")
    paths = [scene.stored(image)[0] for image in range(len(scene.reconstruction))]
    return [finder.extract(path) for path in show(paths, f"describing {scene.name}", len(paths))]


def scene_examples(
    finder: Pipeline, scene: Scene, features: Sequence[Features], options: ConsensusOptions, rng: random.Random
) -> Iterator[Example]:
    """Pairs of photographs that show the same points, drawn."""
    model, count = scene.reconstruction, len(scene.reconstruction)
    intrinsics = [scene.stored(image)[1] for image in range(count)]
    both = [(i, j) for i in range(count) for j in range(i + 1, count) if len(model.shared(i, j)[0]) >= SHARED]
    for i, j in rng.sample(both, min(options.pairs, len(both))):
        found = find_candidates(finder, features[i], features[j], rng)
        pose0, pose1 = model.poses[i], model.poses[j]  # (3, 4)
        R, t = relative_pose(pose0[:, :3], pose0[:, 3], pose1[:, :3], pose1[:, 3])
        fundamental = fundamental_matrix(intrinsics[i], intrinsics[j], R, t)
        errors = epipolar_errors(found.points0.numpy(), found.points1.numpy(), fundamental)
        shrunk = min(1.0, (finder.max_size or math.inf) / max(*features[i].image_size, *features[j].image_size))
        kept_out = held_out(f"{scene.name}/{model.names[i]}/{model.names[j]}", options.held_out)
        yield Example(found, torch.from_numpy(errors * shrunk).float(), SCENES, kept_out)


def view_examples(
    finder: Pipeline, photos: Sequence[os.PathLike[str]], options: ConsensusOptions, rng: random.Random
) -> Iterator[Example]:
    """Two views of each photograph, both rotated at random."""
    for path in photos:
        photo = load_image(path, max_size=finder.max_size).tensor[None]
        size = (int(photo.shape[3]), int(photo.shape[2]))
        turn0, turn1 = (torch.tensor([rng.uniform(-math.pi, math.pi)], dtype=torch.float64) for _ in range(2))
        batch = two_views(photo, [size], options.drawn, turn0, turn1, [rng.randrange(2**31)], torch.device("cpu"))
        first, second = (
            finder.extract(to_uint8(image[0]), mask=mask[0].numpy())
            for image, mask in ((batch.images0, batch.masks0), (batch.images1, batch.masks1))
        )
        found = find_candidates(finder, first, second, rng)
        moved, seen = batch.warp.forward(found.points0[None].double())
        errors = (moved[0] - found.points1).norm(dim=1).where(seen[0], math.inf).float()
        yield Example(found, errors, VIEWS, held_out(os.path.basename(path), options.held_out))


def unrelated_examples(
    finder: Pipeline, described: Sequence[Sequence[Features]], count: int, rng: random.Random
) -> Iterator[Example]:
    """Pairs from two of the scenes each, none of whose candidates is right; a photograph may be a scene of its own."""
    filled = [features for features in described if features]
    for _ in range(count if len(filled) > 1 else 0):
        first, second = (rng.choice(features) for features in rng.sample(filled, 2))
        found = find_candidates(finder, first, second, rng)
        yield Example(found, torch.full((len(found),), math.inf), UNRELATED)


def find_candidates(finder: Pipeline, features0: Features, features1: Features, rng: random.Random) -> Candidates:
    """The candidates of two images, each with as many keypoints as is drawn."""
    first, second = (_best(features, rng.choice(KEYPOINTS)) for features in (features0, features1))
    found = finder.strategy.match(first.descriptions, second.descriptions)
    if found.angles is None and len(found):
        raise ValueError(f"{finder.strategy_name} tells no rotation of every match, which a consensus needs")
    angles = torch.zeros(0) if found.angles is None else found.angles.cpu()
    found = replace(found, indices=found.indices.cpu(), scores=found.scores.cpu(), angles=angles)
    return Candidates.of(found, first.keypoints.cpu(), second.keypoints.cpu())


def _best(features: Features, count: int) -> Features:
    """Those with the highest scores."""
    order = features.scores.argsort(descending=True, stable=True)[:count]
    return replace(
        features,
        keypoints=features.keypoints[order],
        descriptions=features.descriptions[order],
        scores=features.scores[order],
    )


# Learning -------------------------------------------------------------------------------------------------------------


def learn(examples: Sequence[Example], options: ConsensusOptions, show: Progress) -> Consensus:
    """Descend; the average of the weights over the last steps is the result."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_of(options.seed).initial_seed())
        network = Consensus()
    average = {name: value.clone() for name, value in network.state_dict().items()}
    optimiser = torch.optim.AdamW(network.parameters(), options.learning_rate, weight_decay=1e-3)
    kinds = {kind: [one for one in examples if one.kind == kind] for kind in PORTIONS}
    portions = {kind: PORTIONS[kind] for kind, found in kinds.items() if found}
    rng = random.Random(options.seed + 1)
    for step in show(range(options.steps), "learning", options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.learning_rate * _rate(step, options.steps)
        optimiser.zero_grad()
        for kind in rng.choices(list(portions), list(portions.values()), k=options.batch):
            drawn = augmented(rng.choice(kinds[kind]), rng.randrange(2**31), options.thinned)
            if len(drawn.candidates) >= LEAST:
                (loss_of(network(drawn.candidates), drawn.errors) / options.batch).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        weight = max(1 / options.average, 1 / (step + 1))
        for name, value in network.state_dict().items():
            average[name].lerp_(value, weight)
    network.load_state_dict(average)
    return network.requires_grad_(False).eval()


def _rate(step: int, steps: int) -> float:
    """The learning rate at a step, of its peak: up within 50 steps, then down along a cosine."""
    return min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))


def loss_of(logits: Tensor, errors: Tensor) -> Tensor:
    """The cross-entropy of (rounds, M) logits, over candidates of which is known whether they are right."""
    right = (errors <= RIGHT).float().expand_as(logits)
    told = ((errors <= RIGHT) | (errors > WRONG)).float().expand_as(logits)
    losses = F.binary_cross_entropy_with_logits(logits, right, reduction="none")
    total: Tensor = (losses * told).sum() / told.sum().clamp(min=1)
    return total


def augmented(example: Example, seed: int, thinned: float) -> Example:
    """A harder example: without some candidates, more of the right ones; exchanged and mirrored half of the times."""
    thin, fraction, less, rest, swap, flip = uniforms([seed], 6)[0].tolist()
    found, errors = example.candidates, example.errors
    chances = torch.ones(len(found), dtype=torch.float64)
    if thin < thinned:
        chances[errors <= RIGHT] *= (0.05 + 0.95 * fraction) ** 1.5
    if less < 0.3:
        chances *= 0.3 + 0.7 * rest
    kept = (uniforms([seed], len(found), 1)[0] < chances).nonzero()[:, 0]
    found, errors = found[kept], errors[kept]
    if swap < 0.5:
        points = found.points1, found.points0
        found = Candidates(*points, found.scores, found.rivals.flip(1), -found.angles, -found.angle)
    if flip < 0.5:
        mirror = torch.tensor([-1.0, 1.0])
        points = found.points0 * mirror, found.points1 * mirror
        found = Candidates(*points, found.scores, found.rivals, -found.angles, -found.angle)
    return replace(example, candidates=found, errors=errors)


@torch.no_grad()
def measure(consensus: Consensus, examples: Sequence[Example]) -> tuple[float, float, float]:
    """Of pairs: the fraction of right candidates that are kept, of the kept that are right, and of all that are."""
    kept = right = both = total = 0
    for example in examples:
        likely = consensus(example.candidates)[-1].sigmoid() > consensus.threshold
        true = example.errors <= RIGHT
        told = true | (example.errors > WRONG)
        kept, right = kept + int((likely & told).sum()), right + int(true.sum())
        both, total = both + int((likely & true).sum()), total + int(told.sum())
    return both / max(1, right), both / max(1, kept), right / max(1, total)
