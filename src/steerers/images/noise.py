"""Pictures made of noise, for measuring and comparing where there are no photographs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CELLS = (2, 4, 8, 16, 32)  # pixels


def make_picture(height: int, width: int, seed: int = 0) -> Tensor:
    """(3, H, W) noise of many sizes, so that there is something to find at every scale."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((3, height, width), 0.5)
    for cell in _CELLS:
        noise = torch.rand(1, 3, height // cell + 2, width // cell + 2, generator=generator) - 0.5
        image += 0.4 * F.interpolate(noise, size=(height, width), mode="bilinear")[0]
    return image.clamp(0, 1)
