"""One keypoint against every place of another image, at each rotation that a steerer has: what steering does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.images.load import to_grey
from steerers.matching.similarity import as_float, normalised
from steerers.matching.strategies import DEFAULT_ORDER
from steerers.models.base import Descriptor
from steerers.steering.equivariance import describe_image, describe_keypoint
from steerers.steering.steerer import Steerer
from steerers.viz.canvas import AMBER, BLUE, GAP, MUTED, TEXT, Canvas, fit_size, heat_colours, show_patch, to_picture

CURVE_DEGREES = 2
"""Between the angles of the curve, where the steerer has all of them."""
_CELL, _HEAD, _COLUMNS, _THUMBNAIL, _LOWEST = 300, 58, 4, 50, 180


class Peak(NamedTuple):
    """Where a map is largest: the cosine, and the pixel of the second image."""

    cosine: float
    x: float
    y: float


@dataclass(frozen=True, eq=False)
class SimilarityMaps:
    """Cosines of the description of one keypoint, steered by each of some rotations, with those of a grid of places.

    Attributes:
        angles: (L,) radians of the rotations.
        maps: (L, h, w).
        places: (h, w, 2) pixels of the second image.
        curve_angles: (T,) radians: every one of SO(2), a few degrees apart, or ``angles`` again.
        curve: (T,) the largest cosine of any place at each of them.
        maximum: (h, w), the largest cosine over all of them.
    """

    image0: Tensor  # (3, H, W)
    image1: Tensor  # (3, H', W')
    keypoint: Keypoints
    angles: Tensor
    maps: Tensor
    places: Tensor
    curve_angles: Tensor
    curve: Tensor
    maximum: Tensor

    @property
    def best(self) -> int:
        """The rotation at which a place is most similar."""
        return int(self.maps.flatten(1).amax(dim=1).argmax())

    @property
    def best_angle(self) -> float:
        """Of all angles of the curve, the one at which a place is most similar."""
        return float(self.curve_angles[self.curve.argmax()])

    def peak(self, index: int | None = None) -> Peak:
        """Of the map of a rotation, or of the maximum of all."""
        chosen = self.maximum if index is None else self.maps[index]
        place = int(chosen.argmax())
        x, y = self.places.flatten(0, 1)[place].tolist()
        return Peak(float(chosen.flatten()[place]), x, y)


@torch.no_grad()
def similarity_maps(
    model: Descriptor,
    steerer: Steerer,
    image0: Tensor,
    keypoint: Keypoints,
    image1: Tensor,
    *,
    step: int,
    order: int | None = None,
) -> SimilarityMaps:
    """Compare a keypoint of one (3, H, W) image with places of another, ``step`` pixels apart.

    Args:
        keypoint: one; the places are described at its scale.
        order: rotations that are tried; by default all of C_n, and 8 of SO(2).

    Raises:
        ValueError: if the keypoint has no description, or the steerer no such rotations.
    """
    tried = steerer.discretised(order or steerer.group.order or DEFAULT_ORDER).group.angles()
    query = as_float(describe_keypoint(model, image0, keypoint))  # (1, D)
    places = _grid(image1, step)
    xy = places.flatten(0, 1)
    scales = None if keypoint.scales is None else keypoint.scales.expand(len(xy))
    unit = normalised(describe_image(model, image1, Keypoints(xy, xy.new_ones(len(xy)), scales)))  # (M, D)

    def cosines(angles: Tensor) -> Tensor:
        steered = normalised(steerer.steer(query.expand(len(angles), -1), angles))
        return (steered @ unit.mT).view(-1, *places.shape[:2]).cpu()

    every = torch.arange(0, 361, CURVE_DEGREES, dtype=torch.float64).deg2rad() if steerer.group.continuous else tried
    maps, curve = cosines(tried), []
    maximum = maps.amax(dim=0)
    for few in every.split(8):  # all maps at once would be many
        part = cosines(few)
        curve.append(part.flatten(1).amax(dim=1))
        maximum = torch.maximum(maximum, part.amax(dim=0))
    return SimilarityMaps(image0, image1, keypoint, tried, maps, places, every, torch.cat(curve), maximum)


def _grid(image: Tensor, step: int) -> Tensor:
    """(h, w, 2) pixels of an image, in its middle."""
    ys, xs = (torch.arange((length - 1) % step // 2, length, step) for length in image.shape[1:])
    return torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).to(image)


# Drawing --------------------------------------------------------------------------------------------------------------


def draw_similarity(found: SimilarityMaps, title: str = "") -> PIL.Image.Image:
    """The keypoint, the maximum over rotations and the curve above; the map of every rotation below.

    Beside the angle of a map is the patch of the keypoint, rotated so. The largest value is ringed; the frame is about
    the rotation with the largest of all.
    """
    cell = _CELL + GAP
    heights = [fit_size(image, _CELL)[1] for image in (found.image0, found.image1)]
    tall = max(_LOWEST, *heights)  # the upper row, with the curve
    first, row = _HEAD + tall + 2 * GAP, _HEAD + heights[1] + GAP
    canvas = Canvas(GAP + _COLUMNS * cell, 40 + first + math.ceil(len(found.angles) / _COLUMNS) * row)
    canvas.text((GAP, GAP), title, TEXT, 18)
    low = float(found.maps.median())
    limits = low, max(float(found.maximum.max()), low + 1e-6)
    _draw_query(canvas, found, GAP, 40.0)
    _draw_map(canvas, found, None, limits, GAP + cell, 40.0)
    canvas.text((GAP + cell, 46), "maximum over all rotations", TEXT, 15)
    told = f"largest {found.peak().cosine:.3f}, at {math.degrees(found.best_angle):g}°"
    canvas.text((GAP + cell, 68), told, MUTED, 14)
    _draw_scale(canvas, limits, canvas.width - GAP - 4, 54.0)
    _draw_curve(canvas, found, limits, (GAP + 2 * cell, 40.0 + _HEAD, 2 * cell - GAP, tall))
    for index, angle in enumerate(found.angles.tolist()):
        left, top = GAP + index % _COLUMNS * cell, 40 + first + index // _COLUMNS * row
        _draw_rotation(canvas, found, index, angle, limits, (left, top))
    return canvas.finish()


def _draw_query(canvas: Canvas, found: SimilarityMaps, left: float, top: float) -> None:
    scale = _CELL / max(found.image0.shape)
    x, y = found.keypoint.xy[0].tolist()
    canvas.paste(to_picture(found.image0, fit_size(found.image0, _CELL)), left, top + _HEAD)
    canvas.brush.mark((left + scale * (x + 0.5), top + _HEAD + scale * (y + 0.5)), 8, (*AMBER, 255))
    canvas.paste(show_patch(found.image0, found.keypoint, 0.0, _THUMBNAIL), left, top)
    canvas.text((left + _THUMBNAIL + 10, top + 6), "keypoint of the first image", TEXT, 15)


def _draw_rotation(
    canvas: Canvas,
    found: SimilarityMaps,
    index: int,
    angle: float,
    limits: tuple[float, float],
    corner: tuple[float, float],
) -> None:
    left, top = corner
    size = _draw_map(canvas, found, index, limits, left, top)
    canvas.paste(show_patch(found.image0, found.keypoint, angle, _THUMBNAIL), left, top)
    best = index == found.best
    canvas.text((left + _THUMBNAIL + 10, top + 6), f"rotated by {math.degrees(angle):g}°", AMBER if best else TEXT, 15)
    canvas.text((left + _THUMBNAIL + 10, top + 28), f"largest {found.peak(index).cosine:.3f}", MUTED, 14)
    if best:
        box = (left - 3, top + _HEAD - 3, left + size[0] + 3, top + _HEAD + size[1] + 3)
        canvas.brush.frame(*box, (*AMBER, 255), 2)


def _draw_map(
    canvas: Canvas, found: SimilarityMaps, index: int | None, limits: tuple[float, float], left: float, top: float
) -> tuple[int, int]:
    """A map over the grey image, with its largest value ringed; the size that it takes."""
    scale, peak = _CELL / max(found.image1.shape), found.peak(index)
    width, height = fit_size(found.image1, _CELL)
    values = found.maps.amax(dim=0) if index is None else found.maps[index]
    fraction = ((_enlarged(values, found, (width, height)) - limits[0]) / (limits[1] - limits[0])).clip(0, 1)
    grey = PIL.Image.fromarray(to_grey(found.image1)).resize((width, height), PIL.Image.Resampling.LANCZOS)
    opacity = 0.9 * fraction[..., None]
    mixed = opacity * heat_colours(fraction) + (1 - opacity) * 0.6 * np.asarray(grey, np.float64)[..., None]
    canvas.paste(PIL.Image.fromarray(mixed.round().astype(np.uint8)), left, top + _HEAD)
    canvas.brush.mark((left + scale * (peak.x + 0.5), top + _HEAD + scale * (peak.y + 0.5)), 8, (*TEXT, 255))
    return width, height


def _enlarged(values: Tensor, found: SimilarityMaps, size: tuple[int, int]) -> np.ndarray:
    """An (h, w) map at the pixels of a picture of the second image, bilinearly; peaks are widened, to be seen."""
    height, width = found.image1.shape[1:]
    ys, xs = ((torch.arange(n) + 0.5) * side / n - 0.5 for n, side in ((size[1], height), (size[0], width)))
    pixels = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)  # of the image
    start, step = found.places[0, 0].cpu(), _step(found.places)
    grid = to_normalised((pixels - start) / step, (values.shape[1], values.shape[0]))
    reach = round(2.5 / (step * size[0] / width))  # so that a peak is some pixels wide
    widened = F.max_pool2d(values.float()[None, None], 2 * reach + 1, stride=1, padding=reach)
    sampled = F.grid_sample(widened, grid[None].float(), padding_mode="border", align_corners=False)
    enlarged: np.ndarray = sampled[0, 0].double().numpy()
    return enlarged


def _step(places: Tensor) -> float:
    """Pixels between places; any number if there is one place alone."""
    corner = places[min(1, places.shape[0] - 1), min(1, places.shape[1] - 1)]
    return max(1.0, float((corner - places[0, 0]).max()))


def _draw_scale(canvas: Canvas, limits: tuple[float, float], right: float, y: float) -> None:
    """What the colours of the maps mean, left of ``right``."""
    width, room = 120, 46
    bar = np.tile(heat_colours(np.linspace(0, 1, width)), (10, 1, 1)).round().astype(np.uint8)
    canvas.paste(PIL.Image.fromarray(bar), right - room - width, y - 5)
    canvas.text((right - room - width - 8, y), f"{limits[0]:.2f}", MUTED, 13, "rm")
    canvas.text((right - room + 8, y), f"{limits[1]:.2f}", MUTED, 13, "lm")


def _draw_curve(
    canvas: Canvas, found: SimilarityMaps, limits: tuple[float, float], box: tuple[float, float, float, float]
) -> None:
    """The largest cosine of any place over the rotation; dots are those that are shown below."""
    left, top, width, height = box[0] + 44, box[1], box[2] - 60, box[3] - 40
    low = min(limits[0], float(found.curve.min()))

    def place(angle: float, cosine: float) -> tuple[float, float]:
        return left + width * angle / (2 * math.pi), top + height * (1 - (cosine - low) / (1 - low))

    brush = canvas.brush
    canvas.text((box[0] + 44, top - _HEAD + 6), "largest similarity over the rotation", TEXT, 15)
    brush.frame(left, top, left + width, top + height, (*MUTED, 90))
    for degrees in range(0, 361, 45):
        x, _ = place(math.radians(degrees), low)
        brush.line([(x, top), (x, top + height)], (*MUTED, 50))
        canvas.text((x, top + height + 6), f"{degrees}°", MUTED, 13, "mt")
    for tenth in range(math.ceil(10 * low), 11):
        _, y = place(0.0, tenth / 10)
        brush.line([(left, y), (left + width, y)], (*MUTED, 50))
        canvas.text((left - 6, y), f"{tenth / 10:g}", MUTED, 13, "rm")
    points = [place(a, c) for a, c in zip(found.curve_angles.tolist(), found.curve.tolist(), strict=True)]
    if len(points) > len(found.angles):
        brush.line(points, (*BLUE, 255), 2)
    for index, angle in enumerate(found.angles.tolist()):
        brush.dot(place(angle, found.peak(index).cosine), 4, (*(AMBER if index == found.best else BLUE), 255))
