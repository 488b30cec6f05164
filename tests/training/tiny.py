"""What the tests of training share: photographs of noise, exact warps, a small network, and short runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.datasets.folder import Photographs
from steerers.datasets.pairs import PairBatch, Rotations, draw_rotations, mix
from steerers.datasets.photos import PhotoStore
from steerers.datasets.views import Views
from steerers.features import Keypoints
from steerers.models.base import SingleDescriptor, SingleDetector
from steerers.models.compact import Compact, CompactConfig
from steerers.models.sampling import KeypointSampling, sample_keypoints
from steerers.steering.steerer import Steerer
from steerers.training.config import DataConfig, OptimiserConfig, TrainConfig, ValidationConfig
from steerers.training.objectives.descriptions import DescriptorObjective, MatchingOptions, Setting
from steerers.training.objectives.keypoints import corner_response

SMALL = CompactConfig(channels=(4, 8, 8), blocks=(1, 1), dim=8, hidden=8)
VIEWS = Views(size=48, scale=(0.9, 1.2), perspective=0.03, photometric=0.2)
STILL = Views(size=48, scale=(1.0, 1.0), perspective=0.0, photometric=0.0)
"""Of a photograph of 48 by 48 pixels every view is the photograph itself, rotated."""

# Data -----------------------------------------------------------------------------------------------------------------


def noise(size: int, seed: int, cell: int = 4) -> Tensor:
    """(3, size, size) smooth colours in [0, 1]."""
    coarse = torch.rand(1, 3, size // cell, size // cell, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (size, size), mode="bicubic", align_corners=True)[0].clamp(0, 1)


def store_of(photos: Sequence[Tensor]) -> PhotoStore:
    """Photographs of (3, H, W) in [0, 1], as if they had been decoded."""
    pixels = torch.cat([(255 * photo).round().to(torch.uint8).flatten() for photo in photos])
    sizes = [(int(photo.shape[2]), int(photo.shape[1])) for photo in photos]
    return PhotoStore(pixels, sizes, [f"{index}.png" for index in range(len(photos))])


def photographs(count: int = 4, size: int = 64, views: Views = VIEWS) -> Photographs:
    return Photographs(store_of([noise(size, seed) for seed in range(count)]), views)


def batch_of(source: Photographs, rotations: Rotations = "SO2", count: int = 2, seed: int = 0) -> PairBatch:
    """The first ``count`` pairs, rotated at random."""
    seeds = [mix(seed, place) for place in range(count)]
    return rotated(source, *draw_rotations(rotations, seeds), seed=seed)


def rotated(source: Photographs, rotations0: Tensor, rotations1: Tensor, seed: int = 0) -> PairBatch:
    """Pairs rotated as told."""
    seeds = [mix(seed, place) for place in range(len(rotations0))]
    read = [source.read(place % len(source)) for place in range(len(seeds))]
    return source.make(read, rotations0, rotations1, seeds, torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class Shift:
    """The warp that moves by (2,) pixels between images of ``size``; not defined, not even by a number, elsewhere."""

    by: Tensor
    size: tuple[int, int]  # (width, height)

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        return self._moved(xy, self.by)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        return self._moved(xy, -self.by)

    def _moved(self, xy: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        moved = xy + by.to(xy)
        limit = torch.tensor(self.size).to(xy) - 0.5
        seen = ((moved > -0.5) & (moved < limit)).all(dim=-1)
        return moved * torch.where(seen, 1.0, math.nan).to(xy)[..., None], seen


def shifted(
    by: tuple[float, float] = (0.0, 0.0), size: tuple[int, int] = (20, 16), count: int = 1, **changes: Any
) -> PairBatch:
    """Pairs of grey images that see the same, moved by some pixels."""
    width, height = size
    images = torch.full((count, 3, height, width), 0.5)
    masks = torch.ones(count, height, width, dtype=torch.bool)
    still = torch.zeros(count, dtype=torch.float64)
    batch = PairBatch(images, images, masks, masks, Shift(torch.tensor(by), size), still, still)
    return dataclasses.replace(batch, **changes)


# Models ---------------------------------------------------------------------------------------------------------------


class Corners(SingleDetector):
    """Shi and Tomasi's corners; its parameter does nothing but show where it goes."""

    def __init__(self, sampling: KeypointSampling | None = None) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.sampling = sampling or KeypointSampling(coverage=False, nms_size=3, border=2)

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        logits = (corner_response(image[None].to(self.gain) * self.gain)[0] + 1e-6).log()
        return sample_keypoints(logits[None], num_keypoints, None if mask is None else mask[None], self.sampling)[0]


class Patches(SingleDescriptor):
    """The pixels around a keypoint in the order in which quarter turns move them: ``Steerer.perm`` is its steerer."""

    offsets = ((1, 0), (2, 0), (3, 0), (2, 1), (1, 2), (3, 2))
    dim = 4 * len(offsets)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        around = []
        for x, y in self.offsets:
            for _ in range(4):
                around.append((x, y))
                x, y = -y, x  # noqa: PLW2901 -- clockwise as seen
        at = keypoints.xy[:, None].round().long() + torch.tensor(around)  # (N, 4 K, 2)
        x, y = at[..., 0].clamp(0, image.shape[2] - 1), at[..., 1].clamp(0, image.shape[1] - 1)
        return image.mean(dim=0)[y, x] - 0.5


class Rings(SingleDescriptor):
    """Waves along circles around a keypoint, of frequencies 0 to 3, which rotate with the image by any angle."""

    radii, frequencies, samples = (2.0, 3.5, 5.0), (0, 1, 2, 3), 16
    spec = "3x0 + 3x1 + 3x2 + 3x3"
    dim = 3 + 3 * 6

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        phase = torch.arange(self.samples) * (2 * math.pi / self.samples)
        around = torch.stack([phase.cos(), -phase.sin()], dim=-1)  # (S, 2), counter-clockwise as seen
        at = keypoints.xy[:, None, None] + torch.tensor(self.radii)[:, None, None] * around  # (N, R, S, 2)
        size = torch.tensor([image.shape[2], image.shape[1]])
        grid = ((2 * at + 1) / size - 1).flatten(1, 2)[None]
        values = F.grid_sample(image.mean(dim=0)[None, None] - 0.5, grid, align_corners=False)[0, 0]
        values = values.view(len(keypoints), len(self.radii), self.samples)
        waves = [torch.stack([(values * f(k * phase)).sum(-1) for f in (torch.cos, torch.sin)], -1) for k in range(4)]
        return torch.cat([waves[0][..., 0], *(wave.flatten(1) for wave in waves[1:])], dim=1)


def compact(seed: int = 0, config: CompactConfig = SMALL) -> Compact:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Compact(config)


def small_steerer(seed: int = 0, group: str = "SO2") -> Steerer:
    return Steerer.random(SMALL.dim, group, generator=torch.Generator().manual_seed(seed))


OPTIONS = MatchingOptions(num_keypoints=24, radius=3.0)


def descriptor_objective(setting: Setting, options: MatchingOptions = OPTIONS) -> DescriptorObjective:
    """Of the small network."""
    steerer = Steerer.spread(SMALL.dim, 2) if setting == "C" else small_steerer()
    return DescriptorObjective(compact(), steerer, Corners(), setting, options)


# Runs -----------------------------------------------------------------------------------------------------------------


def config_of(**changes: Any) -> TrainConfig:
    """A run of a few steps."""
    plain = TrainConfig(
        setting="B",
        steps=6,
        batch=2,
        checkpoint_every=100,
        log_every=1,
        spectrum_every=2,
        data=DataConfig(rotations="SO2", views=VIEWS),
        matching=OPTIONS,
        optimiser=OptimiserConfig(learning_rate=1e-2, warm_up=2, clip=1.0, ema=0.5),
        validation=ValidationConfig(every=3, pairs=2, rotations=(0, 90)),
    )
    return dataclasses.replace(plain, **changes)


class Numbers:
    """Pairs of which nothing is known but their numbers."""

    def __init__(self, count: int, weights: Tensor | None = None) -> None:
        self.count, self.weights = count, weights
        self.drawn: list[list[int]] = []

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> int:
        return index

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        self.drawn.append(list(read))
        return dataclasses.replace(shifted(size=(4, 4), count=len(read)), rotations0=rotations0, rotations1=rotations1)
