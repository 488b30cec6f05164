"""Pictures of eigenvalues, still and moving."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageDraw, ImageFont
from torch import Tensor

from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.viz.canvas import BACKGROUND, BLUE, MUTED, SUPERSAMPLING, TEXT, Brush

FOOTER = 30
NEAR = 0.1  # of an admissible place, after division by the common factor
_MARGIN = 1.12
_RAMP = np.array([[190, 92, 26], [240, 140, 40], [255, 190, 84], [255, 228, 160], [255, 255, 255]])  # of 1, 4, 16, ...
_HEAD, _LEFT, _RIGHT, _BOTTOM = 40, 38, 14, 26  # pixels around the plane


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of a generator as they are to be drawn.

    Attributes:
        values: (D,) complex.
        group: for C_n they belong on the n-th roots of unity, for SO(2) on the integers of the imaginary axis.
        factor: the common factor of the group element, up to which they belong there: steering ignores lengths.
        extent: how far the real and the imaginary axis are shown, to either side of 0; by default as far as there are
            eigenvalues. See :func:`spectrum_extent`.
    """

    values: Tensor
    group: Group
    title: str = ""
    note: str = ""
    factor: float = 1.0
    extent: tuple[float, float] | None = None


def draw_spectrum(steerer: Steerer, size: int = 640) -> PIL.Image.Image:
    """The eigenvalues of a steerer's generator in the complex plane, with the admissible places (paper, Figure 4).

    Of C_n the generator is the smallest rotation: eigenvalues belong on the n-th roots of unity, up to a common factor.
    Of SO(2) it is the Lie algebra element: they belong on the integers of the imaginary axis.
    """
    what = "Lie algebra generator of SO(2)" if steerer.group.continuous else f"generator of {steerer.group}"
    return draw_spectra([[Spectrum(steerer.eigenvalues(), steerer.group, what, f"{steerer.dim} eigenvalues")]], size)


def draw_spectra(rows: Sequence[Sequence[Spectrum]], size: int = 640) -> PIL.Image.Image:
    """Spectra in rows and columns, each ``size`` pixels wide and high, and below what the marks mean.

    The more eigenvalues lie on one another, the brighter they are; at admissible places their number is written.
    """
    columns = max(len(row) for row in rows)
    canvas = PIL.Image.new("RGB", (columns * size, len(rows) * size + FOOTER), BACKGROUND)
    for r, row in enumerate(rows):
        for c, spectrum in enumerate(row):
            canvas.paste(_draw_panel(spectrum, size), (c * size, r * size))
    _draw_legend(canvas, any(_has_factor(spectrum) for row in rows for spectrum in row))
    return canvas


def save_animation(
    pictures: Sequence[PIL.Image.Image],
    path: Path,
    *,
    milliseconds: int = 100,
    hold: int = 2500,
    limit: int = 2_000_000,
) -> None:
    """Write pictures of :func:`draw_spectra` as a GIF that begins again after the last one.

    Args:
        milliseconds: of each picture; ``hold`` of the last.
        limit: most bytes; every other picture is left out until the file is smaller.
    """
    palette, shown = _palette(), list(pictures)
    while True:
        first, *others = [picture.quantize(palette=palette, dither=PIL.Image.Dither.NONE) for picture in shown]
        durations = [milliseconds * len(pictures) // len(shown)] * len(others) + [hold]
        file = io.BytesIO()
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
        if file.tell() < limit or len(shown) < 4:
            path.write_bytes(file.getvalue())
            return
        shown = [*shown[:-1:2], shown[-1]]


def _palette() -> PIL.Image.Image:
    """The colours that are drawn with, and how they blend into the background."""
    drawn = np.array([TEXT, MUTED, BLUE, *(_ramp(np.array(2.0**k)) for k in range(9))])  # (12, 3)
    blends = [BACKGROUND + opacity * (drawn - BACKGROUND) for opacity in (0.2, 0.4, 0.6, 0.8, 1.0)]
    colours = np.concatenate([np.array([BACKGROUND]), *blends]).round().astype(np.uint8)
    palette = PIL.Image.new("P", (1, 1))
    palette.putpalette(colours.tobytes())
    return palette


def spectrum_extent(values: Tensor, group: Group) -> tuple[float, float]:
    """How far the axes must reach to show all of ``values`` (of any shape), so that several pictures have the same.

    For C_n both axes have one scale. For SO(2) the real axis is drawn out, at most four times, to show how far
    eigenvalues are from the imaginary one.
    """
    flat = values.detach().cpu().flatten()
    if not group.continuous:
        reach = max(1.3, _MARGIN * float(flat.abs().max()))
        return reach, reach
    imaginary = max(1.3, _MARGIN * float(flat.imag.abs().max()))
    return max(1.0, _MARGIN * float(flat.real.abs().max()), imaginary / 4), imaginary


class _Plane:
    """Where complex numbers lie in a panel of ``size`` pixels."""

    def __init__(self, size: int, extent: tuple[float, float], *, round_circles: bool) -> None:
        self.size, self.extent = size, extent
        self.box = (_LEFT, _HEAD, size - _RIGHT, size - _BOTTOM)  # left, top, right, bottom
        width, height = self.box[2] - self.box[0], self.box[3] - self.box[1]
        self.units = (width / (2 * extent[0]), height / (2 * extent[1]))  # pixels per unit
        if round_circles:
            self.units = (min(self.units), min(self.units))
        self.middle = ((self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2)

    def place(self, value: complex) -> tuple[float, float]:
        return self.middle[0] + self.units[0] * value.real, self.middle[1] - self.units[1] * value.imag


def _draw_panel(spectrum: Spectrum, size: int) -> PIL.Image.Image:
    extent = spectrum.extent or spectrum_extent(spectrum.values, spectrum.group)
    plane = _Plane(size, extent, round_circles=not spectrum.group.continuous)
    canvas = PIL.Image.new("RGB", (size * SUPERSAMPLING,) * 2, BACKGROUND)
    brush = Brush(canvas)
    _draw_plane(brush, plane, spectrum)
    radius = _dot_radius(size)
    rings = [plane.place(admissible) for admissible in _admissible(spectrum.group, extent[1])]
    for at in rings:
        brush.ring(at, 2.4 * radius, (*TEXT, 210), 1.5)
    values = spectrum.values.detach().cpu().numpy().astype(np.complex128)
    places = np.array([plane.place(complex(value)) for value in values]).reshape(-1, 2)
    canvas = PIL.Image.fromarray(_with_dots(np.array(canvas), places * SUPERSAMPLING, radius * SUPERSAMPLING))
    for at in rings:  # and once more, faintly, over what would hide them
        Brush(canvas).ring(at, 2.4 * radius, (*TEXT, 90), 1)
    canvas = canvas.resize((size, size), PIL.Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(canvas)
    _draw_ticks(draw, plane, spectrum.group)
    _draw_counts(draw, plane, spectrum, values)
    _draw_title(draw, spectrum, size)
    return canvas


def _dot_radius(size: int) -> float:
    return max(2.4, size / 170)


def _draw_plane(brush: Brush, plane: _Plane, spectrum: Spectrum) -> None:
    """The frame, the axes, the unit circle (of SO(2) the imaginary axis), and the same times the common factor."""
    left, top, right, bottom = plane.box
    x, y = plane.middle
    brush.line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], (*MUTED, 90))
    brush.line([(left, y), (right, y)], (*MUTED, 90))
    brush.line([(x, top), (x, bottom)], (*MUTED, 200 if spectrum.group.continuous else 90))
    if not spectrum.group.continuous:
        brush.ring((x, y), plane.units[0], (*MUTED, 200), 1)
    if _has_factor(spectrum) and spectrum.group.continuous:
        at = plane.place(complex(math.log(spectrum.factor)))[0]
        brush.dashes([(at, float(step)) for step in range(top, bottom, 6)], (*BLUE, 220))
    elif _has_factor(spectrum):
        around = np.exp(1j * np.linspace(0, 2 * math.pi, 121))
        brush.dashes([plane.place(spectrum.factor * complex(rotation)) for rotation in around], (*BLUE, 220))


def _has_factor(spectrum: Spectrum) -> bool:
    return abs(spectrum.factor - 1) > 0.02


def _with_dots(canvas: NDArray[np.uint8], places: NDArray[np.float64], radius: float) -> NDArray[np.uint8]:
    """A disc at each of (D, 2) places; the more of them cover a pixel, the brighter it is."""
    height, width = canvas.shape[:2]
    covered = np.zeros((height, width))
    reach = math.ceil(radius)
    for x, y in places:
        xs = np.arange(max(0, round(x) - reach), min(width, round(x) + reach + 1))
        ys = np.arange(max(0, round(y) - reach), min(height, round(y) + reach + 1))
        covered[ys[:, None], xs] += (ys[:, None] - y) ** 2 + (xs - x) ** 2 <= radius**2
    return np.where(covered[..., None] > 0, _ramp(covered), canvas).astype(np.uint8)


def _ramp(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 3) colours of how many eigenvalues lie on one another."""
    fourfold = np.log2(np.maximum(counts, 1)) / 2
    return np.stack([np.interp(fourfold, range(len(_RAMP)), _RAMP[:, channel]) for channel in range(3)], axis=-1)


def _draw_ticks(draw: ImageDraw.ImageDraw, plane: _Plane, group: Group) -> None:
    left, _, _, bottom = plane.box
    font = ImageFont.load_default(_font_size(plane.size, 13))
    for value in _ticks(plane.extent[0] if group.continuous else plane.extent[1]):
        draw.text((plane.place(complex(value))[0], bottom + 4), f"{value:g}", fill=MUTED, font=font, anchor="mt")
    for value in _ticks(plane.extent[1]):
        text = {0.0: "0", 1.0: "i", -1.0: "-i"}.get(value, f"{value:g}i")
        draw.text((left - 5, plane.place(1j * value)[1]), text, fill=MUTED, font=font, anchor="rm")


def _ticks(extent: float) -> list[float]:
    """Multiples of a round number within the extent, four to either side at most."""
    step = next(s for k in range(-2, 9) for s in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if 4.5 * s > extent)
    return [step * k for k in range(-math.floor(extent / step), math.floor(extent / step) + 1)]


def _font_size(size: int, largest: int) -> int:
    return max(11, min(largest, size // 26))


def _draw_counts(draw: ImageDraw.ImageDraw, plane: _Plane, spectrum: Spectrum, values: NDArray[np.complex128]) -> None:
    """How many eigenvalues are near each admissible place, up to the common factor; for SO(2) at the right border."""
    font = ImageFont.load_default(_font_size(plane.size, 14))
    gap = 3 * _dot_radius(plane.size)
    for admissible in _admissible(spectrum.group, plane.extent[1]):
        if spectrum.group.continuous:
            place, near = admissible + math.log(spectrum.factor), NEAR
        else:
            place, near = admissible * spectrum.factor, NEAR * spectrum.factor
        count = int((np.abs(values - place) <= near).sum())
        if count:
            x, y = plane.place(place)
            at, anchor = ((plane.box[2] - 8, y), "rm") if spectrum.group.continuous else ((x + gap, y - gap), "ls")
            draw.text(at, str(count), fill=TEXT, font=font, anchor=anchor, stroke_width=2, stroke_fill=BACKGROUND)


def _draw_title(draw: ImageDraw.ImageDraw, spectrum: Spectrum, size: int) -> None:
    large, small = ImageFont.load_default(_font_size(size, 17)), ImageFont.load_default(_font_size(size, 14))
    room = size - _LEFT - _RIGHT - 10 - draw.textlength(spectrum.note, font=small)
    title = spectrum.title
    while title and draw.textlength(title, font=large) > room:
        title = title.removesuffix("\N{HORIZONTAL ELLIPSIS}")[:-1] + "\N{HORIZONTAL ELLIPSIS}"[: len(title) - 1]
    draw.text((_LEFT, _HEAD / 2), title, fill=TEXT, font=large, anchor="lm")
    draw.text((size - _RIGHT, _HEAD / 2), spectrum.note, fill=MUTED, font=small, anchor="rm")


def _draw_legend(canvas: PIL.Image.Image, factor: bool) -> None:
    """The marks and what they mean."""
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    x, y = float(_LEFT), canvas.height - FOOTER / 2

    def explain(text: str, gap: int = 18) -> float:
        draw.text((x + 18, y), text, fill=MUTED, font=font, anchor="lm")
        return x + 18 + draw.textlength(text, font=font) + gap

    draw.ellipse([x, y - 6, x + 12, y + 6], outline=TEXT, width=2)
    x = explain("admissible")
    if factor:
        draw.line([(x, y), (x + 5, y)], fill=BLUE, width=2)
        draw.line([(x + 9, y), (x + 14, y)], fill=BLUE, width=2)
        x = explain("common factor")
    for count in (1, 4, 16, 64):
        colour = tuple(int(part) for part in _ramp(np.array(float(count))))
        draw.ellipse([x + 2, y - 5, x + 12, y + 5], fill=colour)
        x = explain(str(count) if count < 64 else "64 on one another", 10)


def _admissible(group: Group, reach: float) -> list[complex]:
    if group.order is None:
        return [1j * k for k in range(-math.floor(reach), math.floor(reach) + 1)]
    return [complex(math.cos(t), math.sin(t)) for t in group.angles().tolist()]
