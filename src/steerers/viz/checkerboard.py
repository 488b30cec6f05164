"""Two images that lie over each other, in squares of the one and of the other: what belongs together goes on."""

from __future__ import annotations

import numpy as np
import PIL.Image
from numpy.typing import NDArray

SQUARES = 10
"""Along the longer side."""


def draw_checkerboard(fixed: NDArray[np.uint8], moving: NDArray[np.uint8], valid: NDArray[np.bool_]) -> PIL.Image.Image:
    """Squares of two (H, W, 3) images, in turns; the second one where it is (H, W) ``valid``."""
    height, width = fixed.shape[:2]
    side = max(1, -(-max(height, width) // SQUARES))
    rows, columns = np.ogrid[:height, :width]
    other = ((rows // side + columns // side) % 2 == 1) & valid
    return PIL.Image.fromarray(np.where(other[..., None], moving, fixed))
