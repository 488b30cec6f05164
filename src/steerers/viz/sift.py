"""The equivariance of Upright SIFT: a quarter turn permutes the bins of a description (paper, Figure 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import rotate_image, transform_points, window_at
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.equivariance import describe_keypoint
from steerers.viz.canvas import GAP, MUTED, TEXT, Canvas, hue, to_picture

CELLS, BINS = 4, 8
"""Subregions along a side, and directions of the gradient in each."""
_CELL_DIAMETERS = 1.5
"""Side of a subregion, in diameters of the keypoint."""
_CROP, _BAR, _SPACE, _TOP = 320, 6, 8, 46
_AROUND = 1.3  # the crop is so many times as wide as the patch


@dataclass(frozen=True, eq=False)
class SiftBins:
    """The 128 bins of a keypoint in an image, and in the image after a quarter turn counter-clockwise."""

    image: Tensor  # (3, H, W)
    keypoint: Keypoints
    diameter: float
    upright: Tensor  # (128,): rows of subregions, columns, directions
    rotated: Tensor  # (128,)

    @property
    def permuted(self) -> Tensor:
        """(128,) the bins of the upright image where a quarter turn takes them."""
        return self.upright[c4_permutation()]

    @property
    def difference(self) -> float:
        """The largest between the permuted bins and those of the rotated image."""
        return float((self.permuted - self.rotated).abs().max())


@torch.no_grad()
def sift_bins(image: Tensor, keypoint: Keypoints) -> SiftBins:
    """Describe a keypoint of a (3, H, W) image before and after a quarter turn.

    Raises:
        ValueError: if there is nothing to describe.
    """
    model = UprightSift()
    diameter = model.default_size if keypoint.scales is None else float(keypoint.scales[0])
    rotated, transform = rotate_image(image, math.pi / 2)
    moved = replace(keypoint, xy=transform_points(transform, keypoint.xy))
    upright, after = describe_keypoint(model, image, keypoint), describe_keypoint(model, rotated.contiguous(), moved)
    return SiftBins(image, keypoint, diameter, upright[0], after[0])


def draw_sift(found: SiftBins, title: str = "") -> PIL.Image.Image:
    """The subregions in the image and in the rotated one, and beside each the bins, in the order of the description.

    A bin keeps its colour when it moves: the hue is that of its subregion in the upright image, the brightness that of
    its direction there. Where the permutation puts the bins of the upright image, the rotated one has a white line.
    """
    left = GAP + _CROP + 3 * GAP
    width = CELLS**2 * (BINS * _BAR + _SPACE)
    row = _CROP + 2 * GAP
    canvas = Canvas(left + width + GAP, _TOP + 2 * row + GAP)
    canvas.text((GAP, GAP), title, TEXT, 18)
    source = torch.arange(CELLS**2 * BINS)
    highest = float(torch.maximum(found.upright, found.rotated).max())
    for index, (angle, values, origin, text) in enumerate(
        (
            (0.0, found.upright, source, "the 128 bins of the description: 8 directions in each of 4 x 4 subregions"),
            (math.pi / 2, found.rotated, source[c4_permutation()], "the same after a quarter turn of the image"),
        )
    ):
        top = _TOP + index * row
        colours = [_colour(int(bin)) for bin in origin]
        _draw_patch(canvas, found, angle, values.numpy(), colours, (GAP, top))
        canvas.text((left, top + 14), text, TEXT, 15)
        expected = None if index == 0 else found.permuted.numpy()
        box = (left, top + 60, highest, _CROP - 60)
        _draw_bars(canvas, values.numpy(), colours, expected, box)
    told = f"white: the bins above, permuted; largest difference {found.difference:.1g}"
    canvas.text((left + width - _SPACE, _TOP + row + 14), told, MUTED, 15, "ra")
    return canvas.finish()


def _colour(bin: int) -> tuple[int, int, int]:
    """Of a bin of the upright image."""
    subregion, direction = divmod(bin, BINS)
    order = subregion if subregion // CELLS % 2 == 0 else subregion ^ (CELLS - 1)  # there and back: no jumps of hue
    return hue(0.02 + order / CELLS**2, 0.7, 0.5 + 0.5 * direction / (BINS - 1))


def _draw_patch(
    canvas: Canvas,
    found: SiftBins,
    angle: float,
    values: NDArray[np.float32],
    colours: list[tuple[int, int, int]],
    corner: tuple[float, float],
) -> None:
    """The surroundings of the keypoint after a rotation, with subregions and, in each, its bins as directions."""
    patch = CELLS * _CELL_DIAMETERS * found.diameter
    radius = max(2, math.ceil(_AROUND * patch / 2))
    x, y = found.keypoint.xy[0].round().int().tolist()
    window, transform = window_at(found.image, (x, y), radius, angle)
    canvas.paste(to_picture(0.75 * window, (_CROP, _CROP)), *corner)
    scale = _CROP / (2 * radius + 1)
    centre = transform_points(transform, found.keypoint.xy)[0].tolist()
    side = scale * patch / CELLS
    left, top = (corner[k] + scale * (centre[k] + 0.5) - CELLS * side / 2 for k in (0, 1))
    highest = float(values.max())
    for row in range(CELLS):
        for column in range(CELLS):
            first = (CELLS * row + column) * BINS
            at = (left + column * side, top + row * side)
            colour = colours[first + int(np.argmax([sum(c) for c in colours[first : first + BINS]]))]
            canvas.brush.frame(at[0] + 1, at[1] + 1, at[0] + side - 1, at[1] + side - 1, (*colour, 255), 1.5)
            middle = (at[0] + side / 2, at[1] + side / 2)
            for direction in range(BINS):
                length = 0.48 * side * float(values[first + direction]) / highest
                turn = 2 * math.pi * direction / BINS
                end = (middle[0] + length * math.cos(turn), middle[1] - length * math.sin(turn))
                canvas.brush.line([middle, end], (0, 0, 0, 160), 4)
                canvas.brush.line([middle, end], (*colours[first + direction], 255), 2)


def _draw_bars(
    canvas: Canvas,
    values: NDArray[np.float32],
    colours: list[tuple[int, int, int]],
    expected: NDArray[np.float32] | None,
    box: tuple[float, float, float, float],
) -> None:
    """Bars in groups of a subregion each; ``box`` is left, top, the highest value, and the height for it."""
    left, top, highest, height = box
    bottom = top + height
    for bin, value in enumerate(values.tolist()):
        x = left + bin * _BAR + bin // BINS * _SPACE
        canvas.brush.box(x, bottom - height * value / highest, x + _BAR - 1, bottom, (*colours[bin], 255))
        if expected is not None:
            y = bottom - height * float(expected[bin]) / highest
            canvas.brush.line([(x - 0.5, y), (x + _BAR - 0.5, y)], (*TEXT, 255), 1.5)
    for group in range(CELLS**2):
        x = left + group * (BINS * _BAR + _SPACE)
        canvas.brush.line([(x, bottom + 1), (x + BINS * _BAR - 1, bottom + 1)], (*MUTED, 160), 1)
