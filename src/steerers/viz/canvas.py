"""What pictures are drawn with: colours, lettering, and a canvas on which edges are smooth."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageDraw, ImageFont
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import window_at
from steerers.images.load import to_uint8
from steerers.steering.irreps import patch_side

SUPERSAMPLING = 2
GAP = 12  # between pictures, and around them
BACKGROUND, TEXT, MUTED = (16, 18, 22), (236, 238, 242), (150, 156, 166)
AMBER, BLUE = (255, 190, 84), (104, 166, 255)
_HEAT = np.array([[20, 18, 40], [96, 28, 110], [200, 54, 78], [250, 142, 40], [255, 240, 170]])  # from low to high

Colour = tuple[int, ...]
Point = tuple[float, float]


class Brush:
    """Draws on a canvas that is larger than it will be, with coordinates as they will be."""

    def __init__(self, canvas: PIL.Image.Image) -> None:
        self.draw = ImageDraw.Draw(canvas, "RGBA")

    def line(self, points: Sequence[Point], colour: Colour, width: float = 1.0) -> None:
        ss = SUPERSAMPLING
        self.draw.line([(ss * x, ss * y) for x, y in points], fill=colour, width=round(ss * width), joint="curve")

    def ring(self, at: Point, radius: float, colour: Colour, width: float) -> None:
        x, y, r = (SUPERSAMPLING * value for value in (*at, radius))
        self.draw.ellipse([x - r, y - r, x + r, y + r], outline=colour, width=round(SUPERSAMPLING * width))

    def mark(self, at: Point, radius: float, colour: Colour) -> None:
        """A ring that is seen on dark and on bright ground."""
        self.ring(at, radius + 1, (0, 0, 0, 200), 4)
        self.ring(at, radius, colour, 2)

    def dot(self, at: Point, radius: float, colour: Colour) -> None:
        x, y, r = (SUPERSAMPLING * value for value in (*at, radius))
        self.draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def dashes(self, points: Sequence[Point], colour: Colour) -> None:
        for start, end in zip(points[::2], points[1::2], strict=False):
            self.line([start, end], colour, 1.5)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        self.draw.polygon([(SUPERSAMPLING * x, SUPERSAMPLING * y) for x, y in points], fill=colour)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A filled rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def frame(self, left: float, top: float, right: float, bottom: float, colour: Colour, width: float = 1.0) -> None:
        """The outline of a rectangle."""
        self.line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], colour, width)

    def arrow(self, start: Point, end: Point, colour: Colour, width: float = 2.0) -> None:
        """A line with a head at its end."""
        (x0, y0), (x1, y1) = start, end
        length = max(math.hypot(x1 - x0, y1 - y0), 1e-9)
        ux, uy, head = (x1 - x0) / length, (y1 - y0) / length, 4.5 * width
        base = (x1 - head * ux, y1 - head * uy)
        self.line([start, base], colour, width)
        self.polygon([end, *((base[0] + s * head * uy / 2, base[1] - s * head * ux / 2) for s in (1, -1))], colour)


class Canvas:
    """Pictures, over them shapes with smooth edges (:attr:`brush`), over these text; in pixels of the result."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = math.ceil(width), math.ceil(height)
        self._pictures = PIL.Image.new("RGB", (self.width, self.height), BACKGROUND)
        self._shapes = PIL.Image.new("RGBA", (SUPERSAMPLING * self.width, SUPERSAMPLING * self.height))
        self._texts: list[tuple[Point, str, Colour, int, str]] = []
        self.brush = Brush(self._shapes)

    def paste(self, picture: PIL.Image.Image, left: float, top: float) -> None:
        """Put a picture with its top-left corner there."""
        self._pictures.paste(picture, (round(left), round(top)))

    def text(self, at: Point, text: str, colour: Colour = TEXT, size: int = 15, anchor: str = "la") -> None:
        """Write; ``anchor`` is Pillow's."""
        self._texts.append((at, text, colour, size, anchor))

    def finish(self) -> PIL.Image.Image:
        """The picture."""
        shapes = self._shapes.resize(self._pictures.size, PIL.Image.Resampling.LANCZOS)
        picture = PIL.Image.alpha_composite(self._pictures.convert("RGBA"), shapes).convert("RGB")
        draw = ImageDraw.Draw(picture)
        for at, text, colour, size, anchor in self._texts:
            draw.text(at, text, fill=colour, font=ImageFont.load_default(size), anchor=anchor)
        return picture


def text_width(text: str, size: int) -> float:
    """How wide a text is."""
    return float(ImageFont.load_default(size).getlength(text))


def stack(pictures: Sequence[PIL.Image.Image], captions: Sequence[str] = ()) -> PIL.Image.Image:
    """Pictures below one another, each in the middle and below its caption if there are any."""
    above = 30 if captions else 0
    canvas = Canvas(max(p.width for p in pictures), sum(p.height + above for p in pictures))
    top = 0
    for index, picture in enumerate(pictures):
        if captions:
            canvas.text((GAP, top + 14), captions[index], AMBER, 18)
        canvas.paste(picture, (canvas.width - picture.width) // 2, top + above)
        top += picture.height + above
    return canvas.finish()


def to_picture(image: Tensor, size: tuple[int, int]) -> PIL.Image.Image:
    """A (3, H, W) image in [0, 1] at a (width, height), antialiased."""
    return PIL.Image.fromarray(to_uint8(image)).resize(size, PIL.Image.Resampling.LANCZOS)


def fit_size(image: Tensor, side: int) -> tuple[int, int]:
    """(width, height) at which the longest side of a (C, H, W) image is ``side``."""
    height, width = image.shape[1:]
    scale = side / max(height, width)
    return max(1, round(scale * width)), max(1, round(scale * height))


def show_patch(image: Tensor, keypoint: Keypoints, angle: float, side: int) -> PIL.Image.Image:
    """The patch of a keypoint as a square, after the image has rotated counter-clockwise by ``angle`` radians."""
    x, y = keypoint.xy[0].round().int().tolist()
    window, _ = window_at(image, (x, y), max(1, round(patch_side(keypoint) / 2)), angle)
    return to_picture(window, (side, side))


def hue(fraction: float, saturation: float = 0.75, value: float = 1.0) -> tuple[int, int, int]:
    """A colour of the circle of hues, 0 to 1."""
    red, green, blue = colorsys.hsv_to_rgb(fraction % 1.0, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def heat_colours(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 3) colours of values in [0, 1], from dark to bright."""
    places = np.clip(values, 0, 1) * (len(_HEAT) - 1)
    return np.stack([np.interp(places, range(len(_HEAT)), _HEAT[:, channel]) for channel in range(3)], axis=-1)


def signed_colours(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 3) colours of values in [-1, 1]: amber above zero, blue below, as dark as the background at zero."""
    strength = np.clip(np.abs(values), 0, 1)[..., None]
    full = np.where(values[..., None] >= 0, np.array(AMBER), np.array(BLUE))
    return np.asarray(np.array(BACKGROUND) + strength * (full - np.array(BACKGROUND)))
