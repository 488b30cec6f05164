"""Where the photographs of a mosaic lie: their outlines, over it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from steerers.viz.canvas import GAP, TEXT, Canvas, hue

FEW = 60
"""Up to so many photographs are named."""


def draw_layout(picture: PIL.Image.Image, outlines: Mapping[str, NDArray[np.float64]]) -> PIL.Image.Image:
    """Outlines of photographs, (K, 2) pixels of a picture each, over it, with their names if there are few."""
    canvas = Canvas(picture.width + 2 * GAP, picture.height + 2 * GAP)
    canvas.paste(picture, GAP, GAP)
    for index, (name, outline) in enumerate(outlines.items()):
        points = [(float(x) + GAP, float(y) + GAP) for x, y in (*outline, outline[0])]
        colour = hue(index * 0.381966)  # by the golden angle, so that neighbours differ
        canvas.brush.line(points, (*colour, 255), 1.5)
        if len(outlines) <= FEW:
            x, y = outline.mean(axis=0)
            canvas.text((float(x) + GAP, float(y) + GAP), name.rsplit("/", 1)[-1].rsplit(".", 1)[0], TEXT, 11, "mm")
    return canvas.finish()
