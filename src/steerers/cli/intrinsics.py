"""Intrinsics of cameras as users have them: four numbers, a text file of a matrix, JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steerers._files import parse_json

MAX_BYTES = 1 << 20
"""Of a file of intrinsics: JSON of a camera may say much else."""
FORMS = "fx,fy,cx,cy in pixels, or a file with these four, with a 3 x 3 matrix, or with JSON that has K or fx, fy, ..."
_MATRICES, _NUMBERS = ("K", "camera_matrix"), ("fx", "fy", "cx", "cy")

Rows = list[list[float]]


def read_intrinsics(text: str) -> Rows:
    """The rows of a 3 x 3 matrix, from ``fx,fy,cx,cy`` or the name of a file.

    A file holds the four numbers, or the nine of the matrix row by row, with spaces, commas, brackets or lines between,
    and comments after ``#``; or JSON: such a list, or an object with ``K``, ``camera_matrix``, or ``fx``, ``fy``,
    ``cx`` and ``cy``. What the numbers may be, :func:`steerers.geometry.check_intrinsics` says.

    Raises:
        ValueError: naming the text or the file, if it is none of these.
        OSError: if the file cannot be read.
    """
    if re.fullmatch(r"[^,]*(,[^,]*){3}", text) and (given := _floats(text.split(","))) is not None:
        return _rows(text, given)
    path = Path(text)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"no intrinsics: {text!r} is no file; give {FORMS}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES} bytes are no file of intrinsics; give {FORMS}")
    if content.lstrip()[:1] in (b"{", b"["):
        return _from_json(path, content)
    lines = content.decode("utf-8-sig", "replace").splitlines()
    words = re.split(r"[\s,;]+", " ".join(line.partition("#")[0] for line in lines).strip())
    return _rows(path, _floats(words))


def _from_json(path: Path, content: bytes) -> Rows:
    try:
        value = parse_json(content)
    except ValueError as error:
        if content.lstrip()[:1] == b"[":  # as NumPy prints a matrix
            return _rows(path, _floats(re.findall(r"[^\s,;\[\]]+", content.decode("utf-8", "replace"))))
        raise ValueError(f"{path}: {error}") from error
    if isinstance(value, dict):
        own = value
        value = next((own[key] for key in _MATRICES if key in own), [own.get(key) for key in _NUMBERS])
    return _rows(path, _flat(value))


def _flat(value: Any) -> list[float] | None:
    """The numbers of a list, or of a list of lists."""
    if not isinstance(value, list):
        return None
    entries = [entry for row in value for entry in (row if isinstance(row, list) else [row])]
    return _floats(entries) if all(type(entry) in (int, float) for entry in entries) else None


def _floats(words: Sequence[Any]) -> list[float] | None:
    """All of them as numbers, or None."""
    try:
        return [float(word) for word in words]
    except (ValueError, OverflowError):
        return None


def _rows(where: object, numbers: list[float] | None) -> Rows:
    if numbers is None or len(numbers) not in (4, 9) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{where} holds no intrinsics; give {FORMS}")
    if len(numbers) == 4:
        fx, fy, cx, cy = numbers
        return [[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]]
    return [numbers[start : start + 3] for start in (0, 3, 6)]
