"""The embedded network: keypoints and descriptions from one small convolutional trunk, for any image size.

A pyramid of features at strides 1 to 16 is refined from the coarsest to the finest. The finest gives the logits of
keypoints, so that they are found to a fraction of a pixel; a description is made only where there is a keypoint: the
features of all strides are sampled there and a small perceptron maps them to the description. No image of descriptions
is ever made.

:class:`Compact` is the network, and :class:`Pyramid` runs it at several scales of the image.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from steerers.features import Keypoints
from steerers.geometry import resized_points
from steerers.models.base import Extractor, LogitDetector, check_batch, check_keypoints
from steerers.models.sampling import (
    KeypointSampling,
    full_precision,
    sample_descriptions,
    sample_keypoints,
    split_points,
    stack_points,
)

MAX_WEIGHTS = 100_000_000
"""Of a configuration, which would take 400 MB; by default there are two million."""


@dataclass(frozen=True)
class CompactConfig:
    """The shape of the network.

    Attributes:
        channels: of the features at strides 1, 2, 4, ...
        blocks: residual blocks at strides 2, 4, ...
        dim: length of a description.
        hidden: width of the perceptron that makes it.
        context: residual blocks at twice the coarsest stride, whose result is added to the coarsest features, so that
            these see twice as far; 0 is none.
        antialias: of how many strides, from the finest on, features are smoothed before they are halved. Without, an
            image that is moved by one pixel has other features, and its keypoints are a fifth of a pixel off.
        fine: residual blocks at full size, before anything is halved: what is seen there does not depend on where
            pixels fall, so that it places keypoints.
        spread: the fraction of the logarithm of how many keypoints there are around a pixel that is taken off its
            logit (:func:`spread_logits`); 0 is none. The more, the more evenly keypoints lie.
    """

    channels: tuple[int, ...] = (16, 32, 64, 128, 192)
    blocks: tuple[int, ...] = (1, 2, 2, 2)
    dim: int = 256
    hidden: int = 512
    context: int = 0
    antialias: int = 0
    fine: int = 0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.blocks) + 1 or not self.blocks:
            raise ValueError(f"there must be one more of channels than of blocks, got {self.channels}, {self.blocks}")
        if min(*self.channels, *self.blocks, self.dim, self.hidden) < 1:
            raise ValueError(f"channels, blocks, dim and hidden must be positive, got {self}")
        if min(self.context, self.fine) < 0:
            raise ValueError(f"context and fine must not be negative, got {self.context} and {self.fine}")
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread must be from 0 to 1, got {self.spread}")
        if self.spread and self.stride % CELL:
            raise ValueError(f"spread needs a coarsest stride of at least {CELL}, got channels {self.channels}")
        if not 0 <= self.antialias <= len(self.blocks):
            raise ValueError(f"antialias must be from 0 to {len(self.blocks)}, got {self.antialias}")
        if self._num_weights() > MAX_WEIGHTS:
            raise ValueError(f"a compact network has at most {MAX_WEIGHTS:,} weights, but this is more: {self}")

    def _num_weights(self) -> int:
        """Roughly: of the convolutions and of the perceptron."""
        coarse = zip(self.channels, self.channels[1:], self.blocks, strict=False)
        trunk = sum(9 * own * (fine + 2 * count * own) for fine, own, count in coarse)
        context = 18 * self.context * self.channels[-1] ** 2
        fine = 18 * self.fine * self.channels[0] ** 2
        return trunk + context + fine + self.hidden * (sum(self.channels) + self.dim)

    @property
    def stride(self) -> int:
        """What the sides of images must be multiples of: the coarsest stride."""
        return int(2 ** (len(self.channels) - 1)) * (2 if self.context else 1)


SAMPLING = KeypointSampling(coverage=False, nms_size=5, subpixel="peak", border=4)
MEAN, DEVIATION = 0.45, 0.25  # of the channels of photographs, roughly
CELL = 8  # pixels
LEAST_DENSITY = (
    1e-30  # of keypoints, beside the likeliest pixel, where exponentials underflow; no sum, which exporters drop
)
FLATTEST = (2 - 1 / 6) / 255  # two levels of 8 bits, less half of what their mean over channels is a multiple of


LATER_PARTS = ("trunk.context.", "trunk.fine.")
"""Of the network, that begin as nothing: a file from before them is where a network with them starts."""


class FeatureMaps(NamedTuple):
    """What the trunk makes of a batch of images."""

    features: tuple[Tensor, ...]  # (B, C_s, H / s, W / s) at strides 2, 4, ..., finest first
    logits: Tensor  # (B, H, W)
    size: tuple[int, int]  # (width, height) that the features cover: the images' size, padded


class Trunk(nn.Module):
    """All that is computed for every pixel; images of a multiple of the coarsest stride."""

    def __init__(self, config: CompactConfig) -> None:
        super().__init__()
        channels, blocks, context = config.channels, config.blocks, config.context
        self.antialias, self.spread = config.antialias, config.spread
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1)
        self.fine = nn.ModuleList(Residual(channels[0], begins=False) for _ in range(config.fine))
        self.stages = nn.ModuleList(
            nn.Sequential(_halving(fine, coarse), *(Residual(coarse) for _ in range(count)))
            for fine, coarse, count in zip(channels, channels[1:], blocks, strict=False)
        )
        self.context = Context(channels[-1], context) if context else None
        self.laterals = nn.ModuleList(nn.Conv2d(coarse, fine, 1, bias=False) for fine, coarse in pairwise(channels))
        self.refinements = nn.ModuleList(_conv(fine, fine) for fine in channels[:-1])
        self.head = nn.Sequential(
            nn.Conv2d(channels[0], channels[0], 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels[0], 1, 3, padding=1),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The logits (B, 1, H, W) of (B, 3, H, W) images, then the features at strides 2, 4, ..."""
        features = [self.stem((images - MEAN) / DEVIATION).relu_()]
        for block in self.fine:
            features[0] = block(features[0])
        for index, stage in enumerate(self.stages):
            features.append(stage(smoothed(features[-1]) if index < self.antialias else features[-1]))
        if self.context is not None:
            features[-1] = self.context(features[-1])
        for index in reversed(range(len(self.laterals))):
            coarse = self.laterals[index](features[index + 1])
            upsampled = F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=False)
            features[index] = self.refinements[index](upsampled.add_(features[index]))
        logits = full_precision(self.head(features[0]))
        return spread_logits(logits[:, 0], self.spread)[:, None], *features[1:]


class TrunkExtractor(Extractor):
    """The network in whatever form: keypoints and descriptions come from maps that one trunk makes of images."""

    sampling: KeypointSampling

    @abstractmethod
    def maps(self, images: Tensor) -> Any:
        """What the trunk makes of (B, 3, H, W) images; its ``logits`` are (B, H, W)."""

    @abstractmethod
    def describe_at(self, maps: Any, xy: Tensor) -> Tensor:
        """(B, N, dim) descriptions of (B, N, 2) pixels."""


class Compact(TrunkExtractor, LogitDetector):
    """Keypoints and descriptions of one trunk; see the module."""

    parallel = True

    def __init__(self, config: CompactConfig | None = None, sampling: KeypointSampling = SAMPLING) -> None:
        super().__init__()
        self.config = config or CompactConfig()
        self.sampling, self.dim, channels = sampling, self.config.dim, self.config.channels
        self.trunk = Trunk(self.config)
        self.describer = Describer(sum(channels[1:]), self.config.hidden, self.dim)

    def forward(self, images: Tensor) -> FeatureMaps:
        """Features and logits of (B, 3, H, W) RGB images in [0, 1]."""
        height, width = images.shape[-2:]
        padded = F.pad(images, (0, -width % self.config.stride, 0, -height % self.config.stride), mode="replicate")
        logits, *features = self.trunk(padded)
        size = (int(padded.shape[-1]), int(padded.shape[-2]))
        return FeatureMaps(tuple(features), logits[:, 0, :height, :width], size)

    def describe_at(self, maps: FeatureMaps, xy: Tensor) -> Tensor:
        """(B, N, dim) descriptions of (B, N, 2) pixels."""
        sampled = [sample_descriptions(full_precision(features), xy, maps.size) for features in maps.features]
        described: Tensor = self.describer(torch.cat(sampled, dim=2))
        return described

    # The model's protocol -----------------------------------------------------------------------------------------

    def logits(self, images: Tensor) -> Tensor:
        maps: FeatureMaps = self(images)
        return maps.logits

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        check_batch(images, num_keypoints, masks)
        return self._choose(self.maps(images).logits, images, num_keypoints, masks)

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images)
        return self._describe(self.maps(images), keypoints)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        check_batch(images, num_keypoints, masks)
        maps = self.maps(images)
        keypoints = self._choose(maps.logits, images, num_keypoints, masks)
        return list(zip(keypoints, self._describe(maps, keypoints), strict=True))

    def maps(self, images: Tensor) -> FeatureMaps:
        maps: FeatureMaps = self(images.contiguous(memory_format=torch.channels_last))
        return maps

    def _choose(self, logits: Tensor, images: Tensor, num_keypoints: int, masks: Tensor | None) -> list[Keypoints]:
        allowed = textured(images) if masks is None else textured(images) & masks.to(images.device)
        return sample_keypoints(logits, num_keypoints, allowed, self.sampling)

    def _describe(self, maps: FeatureMaps, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        return split_points(self.describe_at(maps, stack_points(keypoints, maps.logits.device)), keypoints)


@torch.no_grad()
def textured(images: Tensor) -> Tensor:
    """(B, H, W) bool of (B, 3, H, W) images: where there is something to see, and so may be a keypoint.

    The network ranks pixels, so it would find its best of a blank image too. A pixel counts if the grey values of its
    cell of 8 x 8 pixels, and of the cells around it, differ by at least two levels of 8 bits.
    """
    rows, columns = (torch.arange(n, device=images.device) // CELL for n in images.shape[-2:])
    return textured_cells(images, ceil=True).index_select(1, rows).index_select(2, columns)


def textured_cells(images: Tensor, *, ceil: bool = False) -> Tensor:
    """:func:`textured` for whole cells, of images of a multiple of their size unless parts of cells count too."""
    grey = images.mean(dim=1, keepdim=True)
    extremes = F.max_pool2d(torch.cat((grey, -grey), dim=1), CELL, ceil_mode=ceil)  # (B, 2, H / 8, W / 8)
    return F.max_pool2d(extremes, 3, stride=1, padding=1).sum(dim=1) >= FLATTEST


class Describer(nn.Module):
    """From the features of a keypoint to its description: a linear map and a perceptron beside it."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        features = self.norm(features)
        described: Tensor = self.linear(features) + self.second(F.relu(self.first(features)))
        return described


class Residual(nn.Module):
    """Two convolutions beside the identity.

    Args:
        begins: False for one that begins as nothing.
    """

    def __init__(self, channels: int, *, begins: bool = True) -> None:
        super().__init__()
        self.first = _conv(channels, channels)
        norm = nn.BatchNorm2d(channels)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm)
        if not begins:
            nn.init.zeros_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.second(self.first(x)).add_(x)
        return added.relu_()


class Context(nn.Module):
    """What is seen around: features at half the size go through residual blocks and are added.

    It begins as nothing, so that a network without it is where a network with it starts.
    """

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(channels) for _ in range(count))
        self.last = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) of even sides."""
        seen = F.avg_pool2d(x, 2)
        for block in self.blocks:
            seen = block(seen)
        return x + F.interpolate(self.last(seen), scale_factor=2.0, mode="bilinear", align_corners=False)


def spread_logits(logits: Tensor, fraction: float) -> Tensor:
    """(B, H, W) logits less a fraction of the logarithm of the mean of their exponentials around each pixel.

    Keypoints crowd where contrast is high: on people and along trees, say, in front of a hazy building, of which next
    to nothing is left then. A probability that is a fraction of those around it says how much a place stands out there.
    A constant that is added to all logits is one that is added to the result. Sides are multiples of :data:`CELL`.
    """
    if fraction == 0:
        return logits
    top = logits.amax(dim=(1, 2), keepdim=True)
    around = F.avg_pool2d((logits - top).exp()[:, None], CELL)
    for _ in range(2):
        around = F.avg_pool2d(F.pad(around, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    around = F.interpolate(around, scale_factor=float(CELL), mode="bilinear", align_corners=False)[:, 0]
    return logits - fraction * (around.clamp(min=LEAST_DENSITY).log() + top)


def smoothed(features: Tensor) -> Tensor:
    """(B, C, H, W), by the binomial window 1, 2, 1: what is too fine for half the size is taken out, not aliased."""
    padded = F.pad(features, (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, 2, stride=1), 2, stride=1)


def _halving(inputs: int, outputs: int) -> nn.Sequential:
    """To half the size; the window of four keeps the centres of pixels where halving the image puts them."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def fold_batch_norms(network: Compact) -> Compact:
    """Fold, in place, every batch normalisation into the convolution before it; for evaluation only.

    Returns:
        The network, in evaluation mode. Its normalisations have become identities, so that it can no longer be trained
        nor take the weights of one that was not folded.
    """
    network.eval()
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        conv, norm = sequence[0], sequence[1]
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            sequence[0], sequence[1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return network.eval()


# Several scales -------------------------------------------------------------------------------------------------------

SMALLEST = 64
"""Pixels: no image is shrunk to a shorter side."""
DIAMETER = 16.0
"""Of a keypoint at full size, nominally: it tells at which scale a keypoint was found."""


class Pyramid(Extractor):
    """Keypoints and descriptions of another extractor from the image at several sizes.

    A network knows patterns of the sizes that it was trained on. What another image shows four times as large it does
    not find again; at half the size of that image it may. So the image is also shown at smaller scales, and of the
    keypoints of all scales the best are kept. Half the size costs a quarter of the time.

    The other's scores are fractions of one among all pixels of an image, so they are weighed by the image's area: what
    is left is how far a keypoint stands out, whatever the size.

    Args:
        extractor: the one that is run.
        scales: of the image, the first 1.
        coarse: the power of the scale by which scores are weighed besides: a place that was found at half the size is
            known half as well.
    """

    def __init__(self, extractor: Extractor, scales: Sequence[float] = (1.0, 0.5), coarse: float = 0.0) -> None:
        super().__init__()
        self.parallel, self.coarse = extractor.parallel, coarse
        if not scales or scales[0] != 1 or not all(0 < scale < 1 for scale in scales[1:]):
            raise ValueError(f"scales must be 1 and then some between 0 and 1, got {tuple(scales)}")
        self.extractor, self.scales, self.dim = extractor, tuple(scales), extractor.dim

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        found = self.extract(images, num_keypoints=num_keypoints, masks=masks)
        return [keypoints.clone() for keypoints, _ in found]  # the descriptions made with them can be let go

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        """(N, dim) descriptions of each image, each at the scale that its keypoint was found at; those without one at
        full size."""
        check_keypoints(keypoints, images)
        descriptions = [found.xy.new_zeros(len(found), self.dim) for found in keypoints]
        scales = self.scales_for(images)
        found_at = [_nearest(found, scales) for found in keypoints]
        for index, scale in enumerate(scales):
            here = [levels == index for levels in found_at]
            if index > 0 and not any(bool(chosen.any()) for chosen in here):
                continue
            level = shrink(images, scale)
            chosen = [
                Keypoints(_moved(found.xy[which], images, level), found.scores[which])
                for found, which in zip(keypoints, here, strict=True)
            ]
            parts = self.extractor.describe(level, chosen)
            for whole, which, part in zip(descriptions, here, parts, strict=True):
                whole[which] = part.to(whole)
        return descriptions

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        """The best keypoints of all scales of each image, in its pixels, and their descriptions."""
        check_batch(images, num_keypoints, masks)
        by_scale = []
        for scale in self.scales_for(images):
            level = shrink(images, scale)
            allowed = None if masks is None else shrink_masks(masks, level)
            found = self.extractor.extract(level, num_keypoints=num_keypoints, masks=allowed)
            weight = score_weight(images, level, scale, self.coarse)
            by_scale.append([(_enlarged(keypoints, level, images, scale, weight), d) for keypoints, d in found])
        return [best_of(parts, num_keypoints) for parts in zip(*by_scale, strict=True)]

    def scales_for(self, images: Tensor) -> list[float]:
        """Those that do not make images of their size too small."""
        shortest = min(images.shape[-2:])
        return [scale for scale in self.scales if scale == 1 or scale * shortest >= SMALLEST]


def shrunk_size(images: Tensor, scale: float) -> tuple[int, int]:
    """(height, width) of images at a scale."""
    height, width = (round(extent * scale) for extent in images.shape[-2:])
    return height, width


def shrink(images: Tensor, scale: float) -> Tensor:
    """(B, 3, H, W) images at a scale."""
    if scale == 1:
        return images
    size = list(shrunk_size(images, scale))
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def shrink_masks(masks: Tensor, level: Tensor) -> Tensor:
    """(B, H, W) masks at the size of a level, whose pixels are allowed only if all that they overlap are."""
    if masks.shape[-2:] == level.shape[-2:]:
        return masks
    return F.interpolate(masks[:, None].float(), level.shape[-2:], mode="area")[:, 0] > 0.999


def _moved(xy: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Pixels of an image at one size as pixels of it at another: edges meet, not the outermost centres."""
    if source.shape[-2:] == target.shape[-2:]:
        return xy
    ratio = xy.new_tensor([target.shape[-1] / source.shape[-1], target.shape[-2] / source.shape[-2]])
    return resized_points(xy, ratio)


def score_weight(images: Tensor, level: Tensor, scale: float, coarse: float) -> float:
    """By what scores at a scale of images are multiplied to compare with others; see :class:`Pyramid`."""
    return float(level[0, 0].numel() / images[0, 0].numel() * scale**coarse)


def _enlarged(keypoints: Keypoints, level: Tensor, images: Tensor, scale: float, weight: float) -> Keypoints:
    """Keypoints of a level as those of the image, with scores and diameters that compare between levels."""
    diameters = torch.full_like(keypoints.scores, DIAMETER / scale)
    return Keypoints(_moved(keypoints.xy, level, images), keypoints.scores * weight, diameters)


def _nearest(keypoints: Keypoints, scales: Sequence[float]) -> Tensor:
    """(N,) which of the scales each keypoint was found at."""
    if keypoints.scales is None:
        return torch.zeros(len(keypoints), dtype=torch.long, device=keypoints.xy.device)
    diameters = keypoints.scales.new_tensor([DIAMETER / scale for scale in scales])
    return (keypoints.scales[:, None].log() - diameters.log()).abs().argmin(dim=1)


def best_of(parts: Sequence[tuple[Keypoints, Tensor]], num_keypoints: int) -> tuple[Keypoints, Tensor]:
    """Of keypoints that were found apart, in one image, those with the best scores."""
    if len(parts) == 1:
        return parts[0]
    found, descriptions = zip(*parts, strict=True)
    keypoints = Keypoints.join(found)
    best = keypoints.scores.argsort(descending=True, stable=True)[:num_keypoints]
    return keypoints.select(best), torch.cat(descriptions)[best]
