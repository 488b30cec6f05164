"""The idea in one picture: to steer a description is to describe the rotated image (paper, Figure 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import rotate_image, transform_points
from steerers.models.base import Descriptor
from steerers.steering.equivariance import describe_keypoint
from steerers.steering.irreps import Irreps
from steerers.steering.steerer import Steerer
from steerers.viz.canvas import AMBER, BACKGROUND, GAP, MUTED, TEXT, Canvas, Point, fit_size, signed_colours, to_picture

_TOP, _PANEL, _BETWEEN = 46, 440, 150
_LABEL = 26  # left of a strip, for the frequencies
_MOST_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class Overview:
    """A keypoint described, its description steered, and described anew in the rotated image; all of unit length."""

    image: Tensor  # (3, H, W)
    rotated: Tensor  # (3, H', W')
    at: Point
    rotated_at: Point
    angle: float  # radians
    irreps: Irreps
    described: Tensor  # (D,)
    steered: Tensor  # (D,)
    recomputed: Tensor  # (D,)

    @property
    def cosine(self) -> float:
        """Of the steered description with the one of the rotated image."""
        return float(self.steered @ self.recomputed)

    @property
    def cosine_unsteered(self) -> float:
        """Of the description as it is with the one of the rotated image."""
        return float(self.described @ self.recomputed)


@torch.no_grad()
def make_overview(model: Descriptor, steerer: Steerer, image: Tensor, keypoint: Keypoints, angle: float) -> Overview:
    """Describe a keypoint of a (3, H, W) image, and again after the image has rotated by ``angle`` radians.

    Raises:
        ValueError: if there is nothing to describe, or the steerer does not have that rotation.
    """
    rotated, transform = rotate_image(image, angle)
    moved = replace(keypoint, xy=transform_points(transform, keypoint.xy))
    described = describe_keypoint(model, image, keypoint).float()
    recomputed = describe_keypoint(model, rotated.contiguous(), moved).float()
    (x, y), (u, v) = keypoint.xy[0].tolist(), moved.xy[0].tolist()
    unit = [F.normalize(d, dim=1)[0].cpu() for d in (described, steerer.steer(described, angle), recomputed)]
    return Overview(image, rotated, (x, y), (u, v), angle, Irreps.of(steerer), *unit)


def draw_overview(found: Overview, title: str = "") -> PIL.Image.Image:
    """Two ways to one description: rotate the image and describe it, or describe it and steer.

    Descriptions are drawn in the blocks of the steerer, a row for each frequency.
    """
    pictures = [to_picture(image, fit_size(image, _PANEL)) for image in (found.image, found.rotated)]
    height = max(picture.height for picture in pictures)
    strips = [_strip(found, values) for values in (found.recomputed, found.described, found.steered)]
    right, bottom, tall = GAP + _PANEL + _BETWEEN, _TOP + height, strips[0].height
    upper, lower = bottom + 78, bottom + 78 + tall + 92  # tops of the strips
    canvas = Canvas(right + _PANEL + GAP, lower + tall + 44)
    canvas.text((GAP, GAP), title, TEXT, 18)
    for left, picture, image, at, target in (
        (GAP, pictures[0], found.image, found.at, lower),
        (right, pictures[1], found.rotated, found.rotated_at, upper),
    ):
        corner = (left + (_PANEL - picture.width) // 2, _TOP + (height - picture.height) // 2)
        canvas.paste(picture, *corner)
        scale = picture.width / image.shape[2]
        place = (corner[0] + scale * (at[0] + 0.5), corner[1] + scale * (at[1] + 0.5))
        canvas.brush.mark(place, 16, (*AMBER, 255))
        middle = left + _PANEL / 2
        canvas.brush.arrow((middle, bottom + 12), (middle, target - 30), (*MUTED, 255))
        canvas.text((middle + 14, bottom + 28), "describe", MUTED, 15, "lm")
    for y, text in ((_TOP + height / 2, "rotate"), (lower + tall / 2, "steer")):
        canvas.brush.arrow((GAP + _PANEL + 16, y), (right - 16, y), (*AMBER, 255))
        label = f"{text} by {math.degrees(found.angle):g}°"
        canvas.text((GAP + _PANEL + _BETWEEN / 2, y - 12), label, AMBER, 16, "ms")
    for (left, top), text, strip in zip(
        ((right, upper), (GAP, lower), (right, lower)),
        ("description of the rotated image", "description, by frequency", "description, steered"),
        strips,
        strict=True,
    ):
        canvas.text((left + _LABEL, top - 8), text, TEXT, 15, "ls")
        canvas.paste(strip, left + _LABEL, top)
        _label_rows(canvas, found.irreps, left, top)
    _draw_cosines(canvas, found, right + _PANEL - 20, upper + tall, lower + tall)
    return canvas.finish()


def _draw_cosines(canvas: Canvas, found: Overview, x: float, upper: float, lower: float) -> None:
    """Of the description of the rotated image with the steered one, between the two, and with the unsteered one."""
    canvas.brush.arrow((x, upper + 18), (x, upper + 6), (*AMBER, 255))
    canvas.brush.arrow((x, upper + 18), (x, upper + 76), (*AMBER, 255))
    canvas.text((x - 14, upper + 38), f"cosine {found.cosine:.3f}", AMBER, 17, "rm")
    text = f"without steering, cosine {found.cosine_unsteered:.3f} with that of the rotated image"
    canvas.text((GAP + _LABEL, lower + 26), text, MUTED, 15, "ls")


# Descriptions as strips of cells --------------------------------------------------------------------------------------


def _rows(irreps: Irreps) -> list[tuple[int, list[int]]]:
    """Frequencies and coordinates of the rows of a strip: those of each frequency, in as many rows as they need."""
    by_frequency: dict[int, list[int]] = {}
    place = 0
    for frequency, size in irreps.representation.blocks():
        by_frequency.setdefault(irreps.representation.group.fold(frequency), []).extend(range(place, place + size))
        place += size
    return [
        (frequency, own[start : start + _MOST_COLUMNS])
        for frequency, own in sorted(by_frequency.items())
        for start in range(0, len(own), _MOST_COLUMNS)
    ]


def _cell(irreps: Irreps) -> tuple[int, int]:
    """Width and height of the cell of a coordinate, without the gap below it."""
    width = (_PANEL - _LABEL) // max(len(own) for _, own in _rows(irreps))
    return width, max(11, min(width, 16))


def _strip(found: Overview, values: Tensor) -> PIL.Image.Image:
    """Coordinates in the blocks of the steerer as cells, amber above zero and blue below, a row for each frequency."""
    coordinates = found.irreps.coordinates(values).numpy()
    scale = max(float(found.irreps.coordinates(each).abs().max()) for each in (found.described, found.recomputed))
    rows, (width, height) = _rows(found.irreps), _cell(found.irreps)
    most = max(len(own) for _, own in rows)
    pixels = np.tile(np.array(BACKGROUND, np.float64), (len(rows) * (height + 3), most * width, 1))
    for index, (_, own) in enumerate(rows):
        colours = signed_colours(np.sign(coordinates[own]) * np.sqrt(np.abs(coordinates[own]) / scale))
        top = index * (height + 3)
        pixels[top : top + height, : len(own) * width] = np.repeat(0.85 * colours + 6, width, axis=0)
    return PIL.Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def _label_rows(canvas: Canvas, irreps: Irreps, left: float, top: float) -> None:
    """The frequency of each first row of one."""
    _, height = _cell(irreps)
    before = None
    for index, (frequency, _) in enumerate(_rows(irreps)):
        if frequency != before:
            canvas.text((left + _LABEL - 8, top + index * (height + 3) + height / 2), str(frequency), MUTED, 13, "rm")
        before = frequency
