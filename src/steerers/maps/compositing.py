"""Many photographs made one picture: gains and seams at low resolution, blended tile by tile in full (OpenCV's detail).

Each place is first given to the photograph that has it farthest from its border. Seams may then leave the borders of
these parts by a little, to where the two photographs differ least.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._console import progress
from steerers.geometry import Size
from steerers.maps.adjustment import distorted, inverse_of, straightened, transfer
from steerers.maps.transforms import Array

Pixels = NDArray[np.uint8]
Mask = NDArray[np.uint8]
Box = tuple[int, int, int, int]

SEAM_PIXELS = 60_000
"""Of a photograph where gains and seams are found."""
BANDS = 5
"""Of the blender: what is wider than 2 to the power of this is blended over such a width."""
BLOCK, MARGIN = 1024, 160
"""Pixels a side that are blended at once, and how many around them are, too, so that blocks do not show."""
WANDER = 0.08
"""How far a seam may leave the border between two parts, in sides of a photograph."""
AROUND = 2 ** (BANDS + 1)
"""Pixels around the part of a photograph that are blended with it."""
TOUCHING = 70
"""Of masks that are enlarged, 255 at most: the least with which no place is left between three of them."""
MOST_GAIN = 2.0
CACHED = 400_000_000
"""Bytes of photographs that are kept."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A photograph on the canvas.

    Attributes:
        read: gives its (H, W, 3) pixels, in full or with a longer side of so many pixels.
        size: (width, height) in full.
        matrix: (3, 3) from its pixels, as a lens without distortion would have them, to those of the canvas.
        distortion: of the lens, see :func:`steerers.maps.adjustment.straightened`.
    """

    name: str
    read: Callable[[int | None], Pixels]
    size: Size
    matrix: Array
    distortion: float = 0.0

    def outline(self, steps: int = 8) -> Array:
        """(4 steps, 2) pixels of the canvas around the photograph."""
        right, bottom = self.size[0] - 0.5, self.size[1] - 0.5
        along = np.linspace(0, 1, steps, endpoint=False)
        ends = np.array([[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom]])
        sides = [
            start + along[:, None] * (end - start) for start, end in zip(ends, np.roll(ends, -1, axis=0), strict=True)
        ]
        return transfer(self.matrix, straightened(np.concatenate(sides), self.size, self.distortion))

    def box(self) -> Box:
        """Left, top, right and bottom edge on the canvas."""
        outline = self.outline() + 0.5
        (left, top), (right, bottom) = np.floor(outline.min(axis=0)), np.ceil(outline.max(axis=0))
        return int(left), int(top), int(right), int(bottom)

    def draw(self, pixels: Pixels, box: Box, size: Size) -> tuple[Pixels, Mask]:
        """What it shows in a box of the canvas at a (width, height), mirrored beyond its border; and where it is (255).

        Args:
            pixels: of :attr:`read`, at any size.
        """
        import cv2

        left, top, right, bottom = box
        xs = left + (np.arange(size[0]) + 0.5) * ((right - left) / size[0]) - 0.5
        ys = top + (np.arange(size[1]) + 0.5) * ((bottom - top) / size[1]) - 0.5
        grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
        places = self._places(grid)
        height, width = pixels.shape[:2]
        ratio = np.array([width / self.size[0], height / self.size[1]])
        local = ((places + 0.5) * ratio - 0.5).reshape(size[1], size[0], 2)
        there = ((local >= 0) & (local <= [width - 1, height - 1])).all(axis=2)
        local = np.clip(np.nan_to_num(local, nan=-1e4), -3 * width, 4 * width).astype(np.float32)
        along = local[..., 0], local[..., 1]
        drawn = cv2.remap(pixels, *along, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
        return np.asarray(drawn, np.uint8), there.astype(np.uint8) * 255

    def _places(self, grid: Array) -> Array:
        """(N, 2) pixels of the photograph of those of the canvas; NaN where it has none."""
        inverse = inverse_of(self.matrix)
        middle = transfer(self.matrix, np.array([[self.size[0] / 2, self.size[1] / 2]]))[0]
        weights = np.column_stack([grid, np.ones(len(grid))]) @ inverse[2]
        ahead = weights * float(inverse[2] @ [*middle, 1]) > 0
        found = transfer(inverse, grid)
        if self.distortion:
            found = distorted(np.where(np.isfinite(found), found, 1e9), self.size, self.distortion)
        return np.where(ahead[:, None], found, np.nan)


class Composite:
    """Photographs that become one picture: make it, and draw its tiles.

    Args:
        layers: the photographs.
        size: (width, height) of the canvas.
    """

    def __init__(self, layers: Sequence[Layer], size: Size) -> None:
        self.layers, self.size = list(layers), size
        typical = float(np.median([_area(layer.box()) for layer in layers]))
        self._shrink = max(1.0, math.sqrt(typical / SEAM_PIXELS))
        small = [self._draw_small(layer) for layer in progress(self.layers, "looking at the photographs")]
        self.gains = _find_gains(small)
        self.parts = _find_seams(small, self.gains, round(WANDER * math.sqrt(SEAM_PIXELS)))
        self._photos: OrderedDict[int, Pixels] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.uint8]] = OrderedDict()

    def _draw_small(self, layer: Layer) -> _Small:
        left, top, right, bottom = layer.box()
        corner = (math.floor(left / self._shrink), math.floor(top / self._shrink))
        end = (math.ceil(right / self._shrink), math.ceil(bottom / self._shrink))
        size = (max(1, end[0] - corner[0]), max(1, end[1] - corner[1]))
        box = tuple(round(edge * self._shrink) for edge in (*corner, *end))
        longest = math.ceil(max(layer.size) / self._shrink * 1.5)
        pixels, mask = layer.draw(layer.read(longest), (box[0], box[1], box[2], box[3]), size)
        return _Small(pixels, mask, corner)

    def draw(self, tile: Box) -> NDArray[np.uint8]:
        """(4, H, W) RGB and alpha of a tile of the canvas."""
        left, top, right, bottom = tile
        drawn = np.zeros((4, bottom - top, right - left), np.uint8)
        for row in range(top // BLOCK, (bottom - 1) // BLOCK + 1):
            for column in range(left // BLOCK, (right - 1) // BLOCK + 1):
                block = self._block(column, row)
                x, y = column * BLOCK, row * BLOCK
                here = (slice(max(top, y), min(bottom, y + BLOCK)), slice(max(left, x), min(right, x + BLOCK)))
                part = block[:, here[0].start - y : here[0].stop - y, here[1].start - x : here[1].stop - x]
                drawn[:, here[0].start - top : here[0].stop - top, here[1].start - left : here[1].stop - left] = part
        return drawn

    def _block(self, column: int, row: int) -> NDArray[np.uint8]:
        """(4, BLOCK, BLOCK), of which those of a row are kept, for tiles are drawn row by row."""
        if (column, row) not in self._blocks:
            self._blocks[column, row] = self._blend(column * BLOCK, row * BLOCK)
            while len(self._blocks) > self.size[0] // BLOCK + 2:
                self._blocks.popitem(last=False)
        return self._blocks[column, row]

    def _blend(self, left: int, top: int) -> NDArray[np.uint8]:
        import cv2

        box = (left - MARGIN, top - MARGIN, left + BLOCK + MARGIN, top + BLOCK + MARGIN)
        side = BLOCK + 2 * MARGIN
        blender: Any = cv2.detail.MultiBandBlender(0, BANDS)
        blender.prepare((0, 0, side, side))
        fed = False
        for number, (layer, gain, part) in enumerate(zip(self.layers, self.gains, self.parts, strict=True)):
            chosen = part.drawn(box, self._shrink, side)
            if chosen is None:
                continue
            x, y, right, bottom = _around(chosen, AROUND)
            here = (box[0] + x, box[1] + y, box[0] + right, box[1] + bottom)
            pixels, mask = layer.draw(self._photo(number), here, (right - x, bottom - y))
            bright = np.clip(pixels * np.float32(gain), 0, 255).astype(np.int16)
            blender.feed(bright, mask & chosen[y:bottom, x:right], (x, y))
            fed = True
        if not fed:
            return np.zeros((4, BLOCK, BLOCK), np.uint8)
        pixels, mask = blender.blend(None, None)
        inner = np.s_[MARGIN : MARGIN + BLOCK, MARGIN : MARGIN + BLOCK]
        colours = np.clip(np.asarray(pixels)[inner], 0, 255).astype(np.uint8)
        alpha = np.where(np.asarray(mask)[inner] > 0, 255, 0).astype(np.uint8)
        return np.concatenate([np.moveaxis(colours * (alpha[..., None] > 0), 2, 0), alpha[None]])

    def _photo(self, number: int) -> Pixels:
        """A photograph in full; the last ones are kept."""
        if number in self._photos:
            self._photos.move_to_end(number)
        else:
            self._photos[number] = self.layers[number].read(None)
            while len(self._photos) > 1 and sum(photo.nbytes for photo in self._photos.values()) > CACHED:
                self._photos.popitem(last=False)
        return self._photos[number]


# At low resolution ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Small:
    """A photograph at low resolution: pixels, where it is, and its corner on the small canvas."""

    pixels: Pixels
    mask: Mask
    corner: tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Part:
    """What a photograph contributes: a mask at low resolution, and its corner on the small canvas."""

    mask: Mask
    corner: tuple[int, int]

    def drawn(self, box: Box, shrink: float, side: int) -> Mask | None:
        """(side, side) the mask in a box of the canvas; ``None`` where it has no part."""
        import cv2

        height, width = self.mask.shape
        left, top, right, bottom = (edge / shrink for edge in box)
        x, y = self.corner
        if not self.mask.any() or right < x or bottom < y or left > x + width or top > y + height:
            return None
        step = (right - left) / side
        ahead = np.array([[step, 0, left - x + step / 2 - 0.5], [0, step, top - y + step / 2 - 0.5]])
        how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        padded = cv2.warpAffine(self.mask, ahead, (side, side), flags=how, borderMode=cv2.BORDER_CONSTANT)
        found = np.where(padded > TOUCHING, 255, 0).astype(np.uint8)
        return found if found.any() else None


def _find_gains(small: Sequence[_Small]) -> list[float]:
    """By which each photograph is multiplied, so that they are equally bright where they overlap."""
    import cv2

    if len(small) == 1:
        return [1.0]
    compensator: Any = cv2.detail.GainCompensator(1)
    compensator.feed([one.corner for one in small], [one.pixels for one in small], [one.mask for one in small])
    gains = np.array([np.asarray(gain).ravel()[0] for gain in compensator.getMatGains()], np.float64)
    typical = max(float(np.median(gains)), 1e-3)  # all of them together may have become darker
    return [float(gain) for gain in np.clip(gains / typical, 1 / MOST_GAIN, MOST_GAIN)]


def _find_seams(small: Sequence[_Small], gains: Sequence[float], reach: int) -> list[_Part]:
    import cv2

    masks = _nearest_parts(small, reach)
    used = [number for number, mask in enumerate(masks) if mask.any()]
    if len(used) > 1:
        finder: Any = cv2.detail.GraphCutSeamFinder("COST_COLOR_GRAD")
        images = [np.clip(small[n].pixels * gains[n], 0, 255).astype(np.float32) for n in used]
        found = finder.find(images, [small[n].corner for n in used], [masks[n] for n in used])
        for number, mask in zip(used, found, strict=True):
            masks[number] = np.asarray(mask.get() if hasattr(mask, "get") else mask)
    return [_Part(mask, one.corner) for mask, one in zip(masks, small, strict=True)]


def _nearest_parts(small: Sequence[_Small], reach: int) -> list[Mask]:
    """Of each photograph, where it is farther from its border than the others are from theirs, and a little around."""
    import cv2

    depths = [cv2.distanceTransform(np.pad(one.mask, 1), cv2.DIST_L2, 3)[1:-1, 1:-1] for one in small]
    low = np.min([one.corner for one in small], axis=0)
    high = np.max([np.add(one.corner, one.mask.shape[::-1]) for one in small], axis=0)
    best = np.zeros(tuple((high - low)[::-1]), np.float32)
    owner = np.full(best.shape, -1, np.int32)
    for number, (one, depth) in enumerate(zip(small, depths, strict=True)):
        part = _at(one, low)
        better = depth > best[part]
        best[part][better] = depth[better]
        owner[part][better] = number
    kernel = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    found = []
    for number, one in enumerate(small):
        own = (owner[_at(one, low)] == number).astype(np.uint8) * 255
        found.append(np.asarray(cv2.dilate(own, kernel), np.uint8) & one.mask)
    return found


def _around(mask: Mask, margin: int) -> Box:
    """The box around what is not zero, with a margin, within the mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    height, width = mask.shape
    return (
        max(0, int(columns[0]) - margin),
        max(0, int(rows[0]) - margin),
        min(width, int(columns[-1]) + 1 + margin),
        min(height, int(rows[-1]) + 1 + margin),
    )


def _at(one: _Small, low: NDArray[np.int64]) -> tuple[slice, slice]:
    x, y = np.subtract(one.corner, low)
    height, width = one.mask.shape
    return slice(int(y), int(y) + height), slice(int(x), int(x) + width)


def _area(box: Box) -> float:
    return float((box[2] - box[0]) * (box[3] - box[1]))
