"""A descriptor that is equivariant by construction, and the steerer that steers it exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from steerers.features import Keypoints
from steerers.models.base import SingleDescriptor
from steerers.steering.steerer import Steerer

STEERER = Steerer.from_spec("3x0 + 1x1 + 1x2 + 1x3", "SO2")


class Harmonics(SingleDescriptor):
    """Where a keypoint lies about the centre of the canvas, in frequencies 0 to 3: exactly equivariant."""

    dim = 9

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        centre = torch.tensor([image.shape[2] - 1, image.shape[1] - 1]) / 2
        x, y = (keypoints.xy.double() - centre).unbind(dim=1)
        z = torch.complex(x, -y) / 20  # y upwards
        parts = [torch.exp(-z.abs()), z.abs(), torch.ones_like(x)]
        for j in (1, 2, 3):
            parts += [(z**j).real, (z**j).imag]
        return torch.stack(parts, dim=1)
