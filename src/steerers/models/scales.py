"""An extractor at several scales of the image: for views from much nearer or farther.

A network knows patterns of the sizes that it was trained on. What another image shows four times as large it does not
find again; at half the size of that image it may. So the image is also shown at smaller scales, and of the keypoints of
all scales the best are kept. Half the size costs a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import resized_points
from steerers.models.base import Extractor, check_batch, check_images, check_keypoints

SMALLEST = 64
"""Pixels: no image is shrunk to a shorter side."""
DIAMETER = 16.0
"""Of a keypoint at full size, nominally: it tells at which scale a keypoint was found."""


class Pyramid(Extractor):
    """Keypoints and descriptions of another extractor from the image at several sizes.

    The other's scores are fractions of one among all pixels of an image, so they are weighed by the image's area: what
    is left is how far a place stands out, whatever the size.

    Args:
        extractor: the one that is run.
        scales: of the image, the first 1.
    """

    def __init__(self, extractor: Extractor, scales: Sequence[float] = (1.0, 0.5)) -> None:
        super().__init__()
        if not scales or scales[0] != 1 or not all(0 < scale < 1 for scale in scales[1:]):
            raise ValueError(f"scales must be 1 and then some between 0 and 1, got {tuple(scales)}")
        self.extractor, self.scales, self.dim = extractor, tuple(scales), extractor.dim

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        found = self.extract(images, num_keypoints=num_keypoints, masks=masks)
        return [keypoints.clone() for keypoints, _ in found]  # the descriptions made with them can be let go

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        """(N, dim) descriptions of each image, each at the scale that its keypoint was found at; those without one at
        full size."""
        check_images(images)
        check_keypoints(keypoints, images)
        descriptions = [found.xy.new_zeros(len(found), self.dim) for found in keypoints]
        scales = self.scales_for(images)
        found_at = [_nearest(found, scales) for found in keypoints]
        for index, scale in enumerate(scales):
            here = [places == index for places in found_at]
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
            by_scale.append([(_enlarged(keypoints, level, images, scale), d) for keypoints, d in found])
        return [_best(parts, num_keypoints) for parts in zip(*by_scale, strict=True)]

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


def _enlarged(keypoints: Keypoints, level: Tensor, images: Tensor, scale: float) -> Keypoints:
    """Keypoints of a level as those of the image, with scores and diameters that compare between levels."""
    area = level[0, 0].numel() / images[0, 0].numel()
    diameters = torch.full_like(keypoints.scores, DIAMETER / scale)
    return Keypoints(_moved(keypoints.xy, level, images), keypoints.scores * area, diameters)


def _nearest(keypoints: Keypoints, scales: Sequence[float]) -> Tensor:
    """(N,) which of the scales each keypoint was found at."""
    if keypoints.scales is None:
        return torch.zeros(len(keypoints), dtype=torch.long, device=keypoints.xy.device)
    diameters = keypoints.scales.new_tensor([DIAMETER / scale for scale in scales])
    return (keypoints.scales[:, None].log() - diameters.log()).abs().argmin(dim=1)


def _best(parts: Sequence[tuple[Keypoints, Tensor]], num_keypoints: int) -> tuple[Keypoints, Tensor]:
    if len(parts) == 1:
        return parts[0]
    keypoints = _joined([keypoints for keypoints, _ in parts])
    best = keypoints.scores.argsort(descending=True, stable=True)[:num_keypoints]
    return keypoints.select(best), torch.cat([descriptions for _, descriptions in parts])[best]


def _joined(parts: Sequence[Keypoints]) -> Keypoints:
    xy, scores = torch.cat([part.xy for part in parts]), torch.cat([part.scores for part in parts])
    return Keypoints(xy, scores, torch.cat([part.scales for part in parts if part.scales is not None]))
