"""What the benchmark of run time times: models with every strategy, random images, planted descriptions.

Images are random tensors and keypoints random points, so that every model describes as many. Descriptions of random
tensors do not match, and matching nothing costs less than matching: so what is matched are planted descriptions, as
many and as long, of which half correspond.

What a strategy costs does not depend on whether its steerer fits: where a model has none, or one that a strategy is not
defined for, the paper's kind stands in (Spread, or Freq1 for the Procrustes strategies).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steerers.benchmarks.speed.matching import make_pair, steerer_for
from steerers.features import Keypoints
from steerers.matching.assignment import Assignment
from steerers.matching.strategies import STRATEGIES, Order, Strategy, Tta, make_strategy, unknown_strategy
from steerers.models.zoo import Model
from steerers.steering.equivariance import describe_image, describe_rotated
from steerers.steering.steerer import Steerer

PLAIN = "dual-softmax"
ROTATING = ("max-matches", "subset", "max-similarity")
ROTATIONS = (4, 8)
"""How many rotations are tried by strategies that may try any number: the paper's C4 and C8."""
KEYPOINT_DIAMETER = 5.0  # pixels

Pair = tuple[tuple[Tensor, Keypoints], tuple[Tensor, Keypoints]]
Descriptions = tuple[list[Tensor], Tensor]  # (N, D) of the first image after each rotation, and of the second


@dataclass(frozen=True)
class Settings:
    """The paper's.

    Attributes:
        size: side of the square images, pixels.
        repeats: pairs of random tensors that are timed.
        warm_up: pairs that come before them.
    """

    size: int = 784
    num_keypoints: int = 5000
    repeats: int = 100
    warm_up: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 32), ("num_keypoints", 1), ("repeats", 1), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with one way of matching."""

    label: str
    model: Model
    strategy: Strategy
    steerer: str | None
    """What kind of steerer it matches with."""

    @property
    def rotations(self) -> tuple[float, ...]:
        """Radians by which the first image is rotated before it is described."""
        return tuple(self.strategy.angles.tolist()) if isinstance(self.strategy, Tta) else (0.0,)


# Subjects -------------------------------------------------------------------------------------------------------------


def list_subjects(model: Model, wanted: Sequence[str] | None = None) -> list[Subject]:
    """A model with every strategy, or those that are wanted.

    Args:
        wanted: ``STRATEGY[:ORDER]``, such as ``tta:4`` or ``max-similarity:continuous``. Without an order, all of
            the paper's.
    """
    names = list(dict.fromkeys((PLAIN, "mutual-nearest", "tta", *ROTATING, *STRATEGIES))) if wanted is None else wanted
    found = [subject for name in names for subject in _make_subjects(model, name)]
    return list({subject.label: subject for subject in found}.values())


def _make_subjects(model: Model, wanted: str) -> Iterator[Subject]:
    name, colon, order = wanted.partition(":")
    if name not in STRATEGIES:
        raise ValueError(unknown_strategy(name))
    if colon and order != "continuous" and not order.isdecimal():
        raise ValueError(f"cannot read {wanted!r}: the order {order!r} is neither a whole number nor 'continuous'")
    steerer, kind = _choose_steerer(model, name)
    orders: Sequence[Order] = _orders(name, steerer) if not colon else [None if order == "continuous" else int(order)]
    for rotations in orders:
        strategy = make_strategy(name, steerer, order=rotations)
        suffix = "" if rotations == "default" else f":{'continuous' if rotations is None else rotations}"
        yield Subject(f"{model.name}:{name}{suffix}", model, strategy, kind)


def _choose_steerer(model: Model, strategy: str) -> tuple[Steerer | None, str | None]:
    """The model's own steerer if the strategy takes it, else one that stands in, with the words for it."""
    if strategy in (PLAIN, "mutual-nearest", "tta"):
        return None, None
    own = model.steerer
    if own is not None:
        try:
            make_strategy(strategy, own)
        except ValueError:
            pass
        else:
            return own, f"{own.group}, {'learned' if own.representation is None else 'fixed'}"
    kind, steerer = steerer_for(strategy, model.extractor.dim)
    return steerer, f"{kind}, standing in"


def _orders(strategy: str, steerer: Steerer | None) -> list[Order]:
    if strategy == "tta":
        return list(ROTATIONS)
    if strategy not in ROTATING or steerer is None or not steerer.group.continuous:
        return ["default"]
    exact: list[Order] = [None] if strategy == "max-similarity" and steerer.representation is not None else []
    return [*ROTATIONS, *exact]


def draw_pair(settings: Settings, index: int, device: torch.device) -> Pair:
    """Two random images with random keypoints, on a device; the same for the same index."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
    first, second = (_draw_image(settings, generator, device) for _ in range(2))
    return first, second


def _draw_image(settings: Settings, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Keypoints]:
    image = torch.rand(3, settings.size, settings.size, generator=generator)
    draws = torch.rand(4, settings.num_keypoints, generator=generator).to(device)
    keypoints = Keypoints(
        xy=(settings.size - 1) * draws[:2].mT,
        scores=draws[2],
        scales=torch.full_like(draws[2], KEYPOINT_DIAMETER),
        orientations=2 * math.pi * draws[3],
    )
    return image.to(device), keypoints


@torch.no_grad()
def describe_pair(model: Model, pair: Pair, rotations: Sequence[float]) -> Descriptions:
    """Descriptions of the first image after each rotation, and of the second; as many networks as images."""
    (image0, keypoints0), (image1, keypoints1) = pair
    rotated = [describe_rotated(model.extractor, image0, keypoints0, rotation, fill=0.5) for rotation in rotations]
    return rotated, describe_image(model.extractor, image1, keypoints1)


def plant_descriptions(settings: Settings, dim: int, device: torch.device) -> Descriptions:
    """Descriptions to be matched, of the first image after some rotations: those of the first rotation are the right
    ones."""
    still = Steerer.inv(dim)
    pairs = [make_pair(settings.num_keypoints, still, 0.0, device, settings.seed + k) for k in range(max(ROTATIONS))]
    return [first for first, _ in pairs], pairs[0][1]


def match_pair(strategy: Strategy, descriptions: Descriptions) -> Assignment:
    """The matching alone."""
    rotated, second = descriptions
    if isinstance(strategy, Tta):
        every = [rotated[k % len(rotated)] for k in range(len(strategy.angles))]
        return strategy.match_rotated(every, second)[0]
    return strategy.match(rotated[0], second)
