"""What is timed: models with every strategy and its steerer, random images, planted descriptions, random weights.

Images are random tensors and keypoints random points, so that every model describes as many. Descriptions of random
tensors do not match, and matching nothing costs less than matching: so what is matched are planted descriptions, as
many and as long, of which half correspond.

What a strategy costs does not depend on whether its steerer fits: where a model has none, or one that a strategy is not
defined for, the paper's kind stands in (Spread, or Freq1 for the Procrustes strategies). Nor do time and memory depend
on the weights, so that models can be built with random ones.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers._choices import TTA
from steerers.benchmarks.runs import describe_steerer
from steerers.features import Keypoints
from steerers.matching.assignment import Assignment, number_of_most_matches
from steerers.matching.strategies import NAMES, Strategy, check_name, make_strategy
from steerers.models.base import Combined, Descriptor, Extractor, check_tried
from steerers.models.zoo import Entry, Model, find
from steerers.pipeline import count_augmentations
from steerers.steering.equivariance import describe_image, describe_rotated
from steerers.steering.representations import Group, Order
from steerers.steering.steerer import Steerer

PLAIN = "dual-softmax"
ROTATING = ("max-matches", "subset", "max-similarity")
"""The strategies that try the rotations of an order."""
ROTATIONS = (4, 8)
"""How many rotations are tried by strategies that may try any number: the paper's C4 and C8."""
KEYPOINT_DIAMETER = 5.0  # pixels
NOISE = 0.8
"""Standard deviation of what is added to a unit-variance description to make its match: cosines of about 0.78."""

ImagePair = tuple[tuple[Tensor, Keypoints], tuple[Tensor, Keypoints]]
Network = TypeVar("Network", bound=nn.Module)
Descriptions = tuple[list[Tensor], Tensor]  # (N, D) of the first image after each rotation, and of the second


@dataclass(frozen=True)
class RuntimeSettings:
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
        check_tried(self.num_keypoints, (self.size, self.size))


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with one way of matching."""

    label: str
    model: Model
    strategy: Strategy
    steerer: str | None  # what kind of steerer it matches with
    tta: int | None = None  # how many rotations of the first image are described, for test-time augmentation

    @property
    def rotations(self) -> tuple[float, ...]:
        """Radians by which the first image is rotated before it is described."""
        return (0.0,) if self.tta is None else tuple(Group(self.tta).angles().tolist())


# Models with strategies -----------------------------------------------------------------------------------------------


def list_subjects(model: Model, wanted: Sequence[str] | None = None) -> list[Subject]:
    """A model with every strategy, or those that are wanted.

    Args:
        wanted: ``STRATEGY[:ORDER]``, such as ``tta:4`` or ``max-similarity:continuous``. Without an order, all of
            the paper's.
    """
    names = list(dict.fromkeys((PLAIN, "mutual-nearest", TTA, *ROTATING, *NAMES))) if wanted is None else wanted
    found = [subject for name in names for subject in _make_subjects(model, name)]
    return list({subject.label: subject for subject in found}.values())


def _make_subjects(model: Model, wanted: str) -> Iterator[Subject]:
    name, colon, order = wanted.partition(":")
    check_name(name)
    if colon and order != "continuous" and not order.isdecimal():
        raise ValueError(f"cannot read {wanted!r}: the order {order!r} is neither a whole number nor 'continuous'")
    steerer, kind = _choose_steerer(model, name)
    orders: Sequence[Order] = _orders(name, steerer) if not colon else [None if order == "continuous" else int(order)]
    for rotations in orders:
        tta = count_augmentations(rotations) if name == TTA else None
        tried: Order = "default" if name == TTA else rotations
        coarse = {"refine": False} if name in ROTATING else {}
        strategy = make_strategy(PLAIN if name == TTA else name, steerer, order=tried, **coarse)
        suffix = "" if rotations == "default" else f":{'continuous' if rotations is None else rotations}"
        yield Subject(f"{model.name}:{name}{suffix}", model, strategy, kind, tta)


def _choose_steerer(model: Model, strategy: str) -> tuple[Steerer | None, str | None]:
    """The model's own steerer if the strategy takes it, else one that stands in, with the words for it."""
    if strategy in (PLAIN, "mutual-nearest", TTA):
        return None, None
    if model.steerer is not None:
        with suppress(ValueError):
            make_strategy(strategy, model.steerer)
            return model.steerer, describe_steerer(model.steerer)
    kind, steerer = steerer_for(strategy, model.extractor.dim)
    return steerer, f"{kind}, standing in"


def _orders(strategy: str, steerer: Steerer | None) -> list[Order]:
    if strategy == TTA:
        return list(ROTATIONS)
    if strategy not in ROTATING or steerer is None or not steerer.group.continuous:
        return ["default"]
    exact: list[Order] = [None] if strategy == "max-similarity" and steerer.representation is not None else []
    return [*ROTATIONS, *exact]


def steerer_for(strategy: str, dim: int) -> tuple[str, Steerer]:
    """The paper's steerer for a strategy: Freq1 for the Procrustes ones, Spread for the others."""
    return ("Freq1", Steerer.freq1(dim)) if "procrustes" in strategy else ("Spread", Steerer.spread(dim))


# Images and descriptions ----------------------------------------------------------------------------------------------


def draw_pair(settings: RuntimeSettings, index: int, device: torch.device) -> ImagePair:
    """Two random images with random keypoints, on a device; the same for the same index."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
    first, second = (_draw_image(settings, generator, device) for _ in range(2))
    return first, second


def _draw_image(
    settings: RuntimeSettings, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Keypoints]:
    image = torch.rand(3, settings.size, settings.size, generator=generator)
    numbers = torch.rand(4, settings.num_keypoints, generator=generator).to(device)
    keypoints = Keypoints(
        xy=(settings.size - 1) * numbers[:2].mT,
        scores=numbers[2],
        scales=torch.full_like(numbers[2], KEYPOINT_DIAMETER),
        orientations=2 * math.pi * numbers[3],
    )
    return image.to(device), keypoints


@torch.no_grad()
def describe_pair(model: Model, pair: ImagePair, rotations: Sequence[float]) -> Descriptions:
    """Descriptions of the first image after each rotation, and of the second; as many networks as images."""
    (image0, keypoints0), (image1, keypoints1) = pair
    rotated = [describe_rotated(model.extractor, image0, keypoints0, rotation, fill=0.5) for rotation in rotations]
    return rotated, describe_image(model.extractor, image1, keypoints1)


def plant_descriptions(settings: RuntimeSettings, dim: int, device: torch.device) -> Descriptions:
    """Descriptions to be matched, of the first image after some rotations: those of the first rotation are the right
    ones."""
    still = Steerer.inv(dim)
    pairs = [plant_pair(settings.num_keypoints, still, 0.0, device, settings.seed + k) for k in range(max(ROTATIONS))]
    return [first for first, _ in pairs], pairs[0][1]


def match_pair(subject: Subject, descriptions: Descriptions) -> Assignment:
    """The matching alone."""
    rotated, second = descriptions
    found = [subject.strategy.match(rotated[k % len(rotated)], second) for k in range(len(subject.rotations))]
    return found[number_of_most_matches(found)] if len(found) > 1 else found[0]


def plant_pair(
    n: int, steerer: Steerer, angle: float, device: torch.device, seed: int = 0, matching: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Unit descriptions of two images, the second rotated; a fraction ``matching`` of the keypoints correspond."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, steerer.dim, generator=generator)
    second = torch.randn(n, steerer.dim, generator=generator)
    chosen = torch.randperm(n, generator=generator)[: int(matching * n)]
    noise = NOISE * torch.randn(len(chosen), steerer.dim, generator=generator)
    second[: len(chosen)] = steerer.steer(first[chosen], angle) + noise
    return F.normalize(first, dim=1).to(device), F.normalize(second, dim=1).to(device)


# Random weights -------------------------------------------------------------------------------------------------------


def build_untrained(name: str, seed: int = 0) -> Model:
    """The model of that name as :func:`steerers.models.zoo.build` makes it, but without any file of weights.

    A learned steerer whose file is published is a random matrix too; those of this package are as they are.

    Raises:
        ValueError: for an unknown name, or a model whose networks are not known here.
        ImportError: if its networks are kornia's, and kornia is not installed.
    """
    entry = find(name)
    generator = torch.Generator().manual_seed(seed)
    extractor: Descriptor = _build_descriptor(entry, generator)
    if entry.detector is not None:
        from steerers.models.dedode import DedodeDetector

        extractor = Combined(_randomised(DedodeDetector("L"), generator), extractor)
    if not isinstance(extractor, Extractor):
        raise TypeError(f"model {entry.name!r} needs a detector: {type(extractor).__name__} finds no keypoints")
    return Model(entry.name, extractor, _build_steerer(entry, generator))


def _build_steerer(entry: Entry, generator: torch.Generator) -> Steerer | None:
    if entry.steerer is None or entry.group is None:
        return None
    if entry.steerer.weights:
        return Steerer.random(entry.dim, entry.group, generator=generator, learnable=False)
    return entry.steerer.build({})


def _build_descriptor(entry: Entry, generator: torch.Generator) -> Descriptor:
    from steerers.models.dedode import DedodeDescriptor
    from steerers.models.parts import FROZEN, frozen_network

    name = entry.fitted_to
    if not entry.descriptor.weights:
        return entry.descriptor.build({})
    if name.startswith("dedode-b"):
        return _randomised(DedodeDescriptor("B"), generator)
    if name.startswith("dedode-g"):
        return _randomised(DedodeDescriptor("G", backbone=_random_dinov2(generator)), generator)
    if name in FROZEN:
        return _randomised(frozen_network(name), generator)
    raise ValueError(f"the networks of model {name!r} are not known without weights")


def _random_dinov2(generator: torch.Generator) -> nn.Module:
    """DINOv2 ViT-L/14 as :func:`steerers.models.dedode.dinov2_backbone` makes it from its file."""
    from steerers.models.dedode import PATCH, dinov2_backbone

    try:
        dinov2 = importlib.import_module("kornia.feature.dedode.transformer.dinov2")
    except ImportError as error:
        raise ImportError('DINOv2 for DeDoDe descriptor G needs kornia: pip install "steerers[dinov2]"') from error
    with torch.device("meta"):
        transformer = dinov2.vit_large(
            img_size=37 * PATCH, patch_size=PATCH, init_values=1.0, block_chunks=0, drop_path_uniform=True
        )
    return dinov2_backbone({name: _draw(old, generator) for name, old in transformer.state_dict().items()})


def _randomised(network: Network, generator: torch.Generator) -> Network:
    """``network`` with random weights that keep the size of what flows through; vectors and buffers stay."""
    drawn = {name: _draw(old, generator) for name, old in network.named_parameters() if old.ndim > 1}
    network.load_state_dict({**network.state_dict(), **drawn})
    return network


def _draw(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values of variance one over the number of inputs; ones for vectors."""
    if like.ndim < 2:
        return torch.ones(like.shape)
    inputs = max(1, math.prod(like.shape[1:]))
    return torch.randn(like.shape, generator=generator) * math.sqrt(1 / inputs)
