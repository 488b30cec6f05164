"""Pictures of the blocks of a steerer: what excites them, and how their response rotates (paper, appendix A.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import PIL.Image

from steerers.steering.irreps import Excited
from steerers.viz.canvas import AMBER, BLUE, GAP, MUTED, TEXT, Canvas, show_patch, text_width

_HEAD, _FOOT = 64, 34
_SIDE = 64  # of a patch and of a dial, in a row of many
_LARGE = 72  # in detail
_SPACE = 6
_LABEL = 150
_COLUMNS = 6  # of patches beside each other


def draw_frequencies(rows: Sequence[Excited], title: str) -> PIL.Image.Image:
    """A row for each frequency: the patches that excite it most, and how it responds to the first as that rotates."""
    step = _SIDE + _SPACE
    columns = min(_COLUMNS, max(len(row.patches) for row in rows))
    lines = [max(2, math.ceil(len(row.patches) / columns)) for row in rows]
    angles = rows[0].responses[0].angles.tolist()
    dials = _LABEL + columns * step + 2 * GAP
    canvas = Canvas(dials + len(angles) * step + GAP, _HEAD + sum(n * step + GAP for n in lines) + _FOOT)
    _draw_head(
        canvas, title, ((_LABEL, "patches that excite the frequency most"), (dials, "the first of them, rotated"))
    )
    top = float(_HEAD)
    for row, number in zip(rows, lines, strict=True):
        _draw_label(canvas, row, top)
        for index, (image, patch) in enumerate(zip(row.images, row.patches, strict=True)):
            at = (_LABEL + index % columns * step, top + index // columns * step)
            canvas.paste(show_patch(image, patch.keypoint, 0.0, _SIDE), *at)
        for index, angle in enumerate(angles):
            left = dials + index * step
            canvas.paste(show_patch(row.images[0], row.patches[0].keypoint, angle, _SIDE), left, top)
            _draw_dial(canvas, (left + _SIDE / 2, top + step + _SIDE / 2), _SIDE / 2, row, 0, index)
        top += number * step + GAP
    _draw_legend(canvas, top + _FOOT / 2 - _SPACE, angles)
    return canvas.finish()


def draw_detail(row: Excited, title: str) -> PIL.Image.Image:
    """One block or frequency in detail: every patch at every rotation, beside it the response."""
    angles = row.responses[0].angles.tolist()
    cell, height = 2 * _LARGE + _SPACE + GAP, _LARGE + GAP
    canvas = Canvas(_LABEL + len(angles) * cell + GAP, _HEAD + len(row.patches) * height + _FOOT)
    _draw_head(canvas, title, [(_LABEL + k * cell, f"{math.degrees(a):g}°") for k, a in enumerate(angles)])
    for index, (image, patch) in enumerate(zip(row.images, row.patches, strict=True)):
        top = _HEAD + index * height
        response = row.responses[index]
        canvas.text((GAP, top + 6), f"excitation {patch.excitation:.3f}", TEXT, 14)
        canvas.text((GAP, top + 26), f"{response.angle_error:.1f}° off", MUTED, 14)
        canvas.text((GAP, top + 46), f"deviation {response.deviation:.2f}", MUTED, 14)
        for k, angle in enumerate(angles):
            left = _LABEL + k * cell
            canvas.paste(show_patch(image, patch.keypoint, angle, _LARGE), left, top)
            middle = (left + _LARGE * 1.5 + _SPACE, top + _LARGE / 2)
            _draw_dial(canvas, middle, _LARGE / 2, row, index, k)
    _draw_legend(canvas, _HEAD + len(row.patches) * height + _FOOT / 2 - _SPACE, angles)
    return canvas.finish()


def _draw_head(canvas: Canvas, title: str, columns: Sequence[tuple[float, str]]) -> None:
    canvas.text((GAP, GAP), title, TEXT, 18)
    for left, text in columns:
        canvas.text((left, _HEAD - 8), text, MUTED, 14, "ls")


def _draw_label(canvas: Canvas, row: Excited, top: float) -> None:
    canvas.text((GAP, top + 4), f"frequency {row.frequency}", AMBER, 18)
    number = len(row.blocks)
    canvas.text((GAP, top + 32), f"{number} block{'s' if number > 1 else ''}", TEXT, 14)
    canvas.text((GAP, top + 52), f"excitation {row.excitation:.3f}", MUTED, 14)
    canvas.text((GAP, top + 72), f"{row.angle_error:.1f}° off", MUTED, 14)
    canvas.text((GAP, top + 92), f"deviation {row.deviation:.2f}", MUTED, 14)


def _draw_dial(
    canvas: Canvas, middle: tuple[float, float], radius: float, row: Excited, patch: int, index: int
) -> None:
    """The response at one rotation and the ideal one, as hands that point up without rotation; counter-clockwise."""
    response = row.responses[patch]
    brush, reach = canvas.brush, radius - 8

    def end(value: complex) -> tuple[float, float]:
        up = 1j * value * min(1.0, 1.2 / max(abs(value), 1e-9))  # not far beyond the ring
        return middle[0] + reach * up.real, middle[1] - reach * up.imag

    brush.ring(middle, reach, (*MUTED, 150), 1)
    brush.line([middle, end(complex(response.ideal[index]))], (*BLUE, 255), 5)
    brush.dot(end(complex(response.ideal[index])), 2.5, (*BLUE, 255))
    brush.line([middle, end(complex(response.found[index]))], (*AMBER, 255), 2)
    brush.dot(end(complex(response.found[index])), 3, (*AMBER, 255))


def _draw_legend(canvas: Canvas, y: float, angles: Sequence[float]) -> None:
    x = float(GAP)
    degrees = ", ".join(f"{math.degrees(angle):g}" for angle in angles[:3])
    for colour, width, text in (
        (AMBER, 2, f"response when the image rotates by {degrees}, ... degrees"),
        (BLUE, 5, "ideal: rotated by the frequency times the angle"),
    ):
        canvas.brush.line([(x, y), (x + 22, y)], (*colour, 255), width)
        canvas.text((x + 30, y), text, MUTED, 14, "lm")
        x += 30 + text_width(text, 14) + 24
