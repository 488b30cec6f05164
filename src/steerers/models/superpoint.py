"""SuperPoint (DeTone, Malisiewicz, Rabinovich, 2018): the network, for the weights that the user has.

The architecture is that of the paper: eight 3 x 3 convolutions with three 2 x 2 max-pools, then one head of 65 logits a
cell of 8 x 8 pixels (its pixels, and "none") and one of 256 numbers a cell. No weights come with this package.
"""

from __future__ import annotations

import logging
import os
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.features import Keypoints
from steerers.images.load import LUMA
from steerers.models.frozen import FrozenExtractor, cells_to_pixels, check_radius, pad_image
from steerers.models.sampling import sample_descriptions

logger = logging.getLogger(__name__)

LICENCE_NOTE = (
    "The SuperPoint weights are Magic Leap's, under a licence for academic or non-profit organisations and "
    "non-commercial research use only; whoever uses them is bound by it."
)

_LAYERS = (  # name, channels in, channels out, kernel; the names are those of the authors' weight file
    ("conv1a", 1, 64, 3),
    ("conv1b", 64, 64, 3),
    ("conv2a", 64, 64, 3),
    ("conv2b", 64, 64, 3),
    ("conv3a", 64, 128, 3),
    ("conv3b", 128, 128, 3),
    ("conv4a", 128, 128, 3),
    ("conv4b", 128, 128, 3),
    ("convPa", 128, 256, 3),
    ("convPb", 256, 65, 1),
    ("convDa", 128, 256, 3),
    ("convDb", 256, 256, 1),
)


class SuperPointNetwork(nn.Module):
    """From a (B, 1, H, W) grey image in [0, 1] to (B, 65, H/8, W/8) logits and (B, 256, H/8, W/8) descriptions."""

    def __init__(self) -> None:
        super().__init__()
        for name, width_in, width_out, kernel in _LAYERS:
            self.add_module(name, nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2))

    def forward(self, grey: Tensor) -> tuple[Tensor, Tensor]:
        x = self._pair(grey, "conv1a", "conv1b").relu_()
        for stage in (2, 3, 4):
            x = self._pair(F.max_pool2d(x, 2), f"conv{stage}a", f"conv{stage}b").relu_()
        return self._pair(x, "convPa", "convPb"), self._pair(x, "convDa", "convDb")

    def _pair(self, x: Tensor, first: str, second: str) -> Tensor:
        hidden: Tensor = self.get_submodule(first)(x)
        out: Tensor = self.get_submodule(second)(hidden.relu_())
        return out


class SuperPoint(FrozenExtractor):
    """SuperPoint: 256 numbers a keypoint, a description for every 8 x 8 cell.

    Args:
        threshold: a keypoint's probability must exceed it.
        nms_radius: no two keypoints are this near, in x and in y; the better one stays.
        border: keypoints this near to the image's edge are dropped.
    """

    title = "SuperPoint"

    def __init__(self, *, threshold: float = 0.005, nms_radius: int = 4, border: int = 4) -> None:
        super().__init__(SuperPointNetwork(), dim=256)
        if border < 0:
            raise ValueError(f"border must not be negative, got {border}")
        self.threshold, self.nms_radius, self.border = threshold, check_radius(nms_radius), border

    def load_weights(self, path: str | os.PathLike[str]) -> Self:
        """Read the authors' file ``superpoint_v1.pth``, or one with its names; logs :data:`LICENCE_NOTE`."""
        super().load_weights(path)
        logger.warning(LICENCE_NOTE)
        return self

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[-2:]
        grey = (image * image.new_tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)
        logits, features = self.network(pad_image(grey, 8, minimum=8))
        return cells_to_pixels(logits)[0, :, :height, :width], F.normalize(features, dim=1)

    def _candidates(self, scores: Tensor) -> Keypoints:
        heat = scores[0]
        kept = suppress(heat, self.threshold, self.nms_radius)
        height, width = heat.shape
        inner = torch.zeros_like(kept)
        inner[self.border : height - self.border, self.border : width - self.border] = True
        y, x = (kept & inner).nonzero(as_tuple=True)
        return Keypoints(torch.stack((x, y), dim=-1).to(heat), heat[y, x])

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        size = (8 * features.shape[-1], 8 * features.shape[-2])
        return F.normalize(sample_descriptions(features, xy[None], size)[0], dim=-1)


def suppress(heat: Tensor, threshold: float, radius: int) -> Tensor:
    """Greedy suppression in an (H, W) map: take the best pixel, drop those within ``radius`` in x and y, and so on.

    Done for all local maxima at once, until none is left, it comes to the same as one by one; only pixels of exactly
    equal value do not suppress each other.

    Returns:
        (H, W) bool, the pixels taken.
    """
    left = heat > threshold
    kept = torch.zeros_like(left)
    while bool(left.any()):
        remaining = heat.masked_fill(~left, -torch.inf)
        tops = left & (remaining == _window_maximum(remaining, radius))
        kept |= tops
        left &= ~(_window_maximum(tops.to(heat), radius) > 0)
    return kept


def _window_maximum(values: Tensor, radius: int) -> Tensor:
    """The largest of (H, W) values within ``radius`` in x and y."""
    size = 2 * radius + 1
    rows = F.max_pool2d(values[None, None], (1, size), stride=1, padding=(0, radius))
    return F.max_pool2d(rows, (size, 1), stride=1, padding=(radius, 0))[0, 0]
