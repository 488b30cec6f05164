"""Pictures of matches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageDraw, ImageFont

from steerers.features import Matches
from steerers.geometry import scaling
from steerers.images.decode import fit_within
from steerers.images.load import Image, to_uint8
from steerers.viz.canvas import BACKGROUND, MUTED, SUPERSAMPLING, TEXT, hue

OUTLIER = (226, 74, 74)
MOST_STRETCH = 4  # the picture is at most so many times as wide as it is high, however wide the images are
LEAST_WIDTH = 720  # so that the header finds room


@dataclass(frozen=True)
class _Panel:
    """One image on the canvas: where its top-left corner lies, and the map from its stored pixels to the canvas."""

    picture: PIL.Image.Image
    left: int
    top: int
    to_canvas: NDArray[np.float64]  # (3, 3)

    def place(self, xy: NDArray[np.float32]) -> NDArray[np.float64]:
        """(K, 2) stored pixels to canvas pixels."""
        homogeneous = np.concatenate([xy, np.ones((len(xy), 1))], axis=1) @ self.to_canvas.T
        return np.asarray(homogeneous[:, :2] / homogeneous[:, 2:])


def draw_matches(
    image0: Image,
    image1: Image,
    matches: Matches,
    inliers: NDArray[np.bool_] | None = None,
    *,
    height: int = 640,
    max_lines: int = 150,
    outliers: bool = True,
) -> PIL.Image.Image:
    """Both images side by side, joined by matches: inliers coloured by their place in image 0, outliers thin and red.

    Args:
        image0: as loaded; shown in the frame of its stored pixels. ``image1`` likewise.
        inliers: (K,) which matches geometry confirmed; without it all are drawn as inliers.
        height: of the larger image, in pixels of the picture.
        max_lines: at most so many inliers, and half as many outliers, are drawn, evenly spread over the scores.
        outliers: whether they are drawn; the header counts them in any case.
    """
    ss = SUPERSAMPLING
    panels = _layout(image0, image1, height * ss, gap=12 * ss, header=52 * ss)
    width = max(panels[1].left + panels[1].picture.width + 12 * ss, LEAST_WIDTH * ss)
    bottom = max(panel.top + panel.picture.height for panel in panels) + 12 * ss
    canvas = PIL.Image.new("RGB", (width, bottom), BACKGROUND)
    for panel in panels:
        canvas.paste(panel.picture, (panel.left, panel.top))
    confirmed = np.ones(len(matches), dtype=bool) if inliers is None else inliers
    overlay = PIL.Image.new("RGBA", canvas.size)
    draw = ImageDraw.Draw(overlay)
    ends = np.stack([panels[0].place(matches.keypoints0), panels[1].place(matches.keypoints1)], axis=1)  # (K, 2, 2)
    if outliers:
        _draw_lines(draw, ends, _pick(~confirmed, max_lines // 2), panels[0], ss, outliers=True)
    _draw_lines(draw, ends, _pick(confirmed, max_lines), panels[0], ss, outliers=False)
    canvas = PIL.Image.alpha_composite(canvas.convert("RGBA"), overlay).convert("RGB")
    canvas = canvas.resize((width // ss, bottom // ss), PIL.Image.Resampling.LANCZOS)
    _draw_header(canvas, matches, inliers)
    return canvas


def _layout(image0: Image, image1: Image, height: int, gap: int, header: int) -> tuple[_Panel, _Panel]:
    """Both images at one scale, side by side, so that a rotation is seen as a rotation and a zoom as a zoom."""
    stored = [_stored_picture(image) for image in (image0, image1)]
    scale = min(
        height / max(picture.height for picture in stored), MOST_STRETCH * height / sum(p.width for p in stored)
    )
    panels: list[_Panel] = []
    left = gap
    tallest = max(1, round(scale * max(picture.height for picture in stored)))
    for image, picture in zip((image0, image1), stored, strict=True):
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        top = header + (tallest - size[1]) // 2
        to_canvas = scaling(image.stored_size, size).numpy().copy()
        to_canvas[:2, 2] += (left, top)
        panels.append(_Panel(picture.resize(size, PIL.Image.Resampling.LANCZOS), left, top, to_canvas))
        left += size[0] + gap
    return panels[0], panels[1]


def _stored_picture(image: Image) -> PIL.Image.Image:
    """What the model saw, in the orientation of the stored image, and in its shape if it was squashed."""
    pixels = to_uint8(image.tensor)
    linear = np.rint(image.orientation.numpy()).astype(int)  # stored -> seen: a signed permutation
    if linear[0, 0] == 0:  # the axes change places
        pixels = pixels.transpose(1, 0, 2)
        linear = linear[::-1]
    if linear[0, 0] < 0:
        pixels = pixels[:, ::-1]
    if linear[1, 1] < 0:
        pixels = pixels[::-1]
    picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    size = fit_within(image.stored_size, max(picture.size))
    return picture if picture.size == size else picture.resize(size, PIL.Image.Resampling.LANCZOS)


def _pick(chosen: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """At most ``most`` of the chosen indices, evenly spread over their order (which is by score)."""
    index = np.flatnonzero(chosen)
    if len(index) <= most:
        return index
    spread: NDArray[np.int64] = index[np.linspace(0, len(index) - 1, most).astype(int)]
    return spread


def _draw_lines(
    draw: ImageDraw.ImageDraw,
    ends: NDArray[np.float64],
    index: NDArray[np.int64],
    panel: _Panel,
    ss: int,
    *,
    outliers: bool,
) -> None:
    opacity, width, radius = (80, ss, 1.5 * ss) if outliers else (170, ss + 1, 2.5 * ss)
    for (x0, y0), (x1, y1) in ends[index]:
        place = (x0 - panel.left) / panel.picture.width, (y0 - panel.top) / panel.picture.height
        colour = OUTLIER if outliers else _colour(*place)
        draw.line([(x0, y0), (x1, y1)], fill=(*colour, opacity), width=width)
        for x, y in ((x0, y0), (x1, y1)):
            draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=(*colour, 230))


def _colour(u: float, v: float) -> tuple[int, int, int]:
    """A colour for a place: hue along the diagonal, so that a rotated image shows its colours rotated."""
    return hue(0.15 + 0.55 * (0.6 * u + 0.4 * v))


def _draw_header(canvas: PIL.Image.Image, matches: Matches, inliers: NDArray[np.bool_] | None) -> None:
    draw = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(22), ImageFont.load_default(15)
    confirmed = "" if inliers is None else f", {int(inliers.sum())} inliers"
    text = f"{len(matches)} matches{confirmed}"
    draw.text((12, 14), text, fill=TEXT, font=large)
    right = canvas.width - 12
    if matches.angle is not None:
        dial = 17
        centre = (right - dial, 27)
        angle_text = f"{matches.angle:.1f}\N{DEGREE SIGN} counter-clockwise"
        right = int(centre[0] - dial - 12 - draw.textlength(angle_text, font=large))
        draw.text((right, 14), angle_text, fill=TEXT, font=large)
        _draw_dial(draw, centre, dial, matches.angle)
    label = f"{matches.model}  \N{MIDDLE DOT}  {matches.strategy}"
    middle = 12 + draw.textlength(text, font=large) + 24
    if middle + draw.textlength(label, font=small) < right - 12:
        draw.text((middle, 19), label, fill=MUTED, font=small)


def _draw_dial(draw: ImageDraw.ImageDraw, centre: tuple[float, float], radius: float, degrees: float) -> None:
    """A circle with the upward direction before (grey) and after the rotation (white)."""
    x, y = centre
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], outline=MUTED, width=1)
    for angle, colour in ((0.0, MUTED), (degrees, TEXT)):
        t = math.radians(angle)
        draw.line([(x, y), (x - radius * math.sin(t), y - radius * math.cos(t))], fill=colour, width=2)
