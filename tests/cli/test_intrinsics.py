"""Intrinsics as users have them, read from numbers and files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from steerers.cli.intrinsics import MAX_BYTES, read_intrinsics
from steerers.geometry import check_intrinsics

ROWS = [[500.5, 0.0, 320.25], [0.0, 510.0, 240.0], [0.0, 0.0, 1.0]]
FOUR = {"fx": 500.5, "fy": 510, "cx": 320.25, "cy": 240}


@pytest.mark.parametrize("text", ["500.5,510,320.25,240", " 500.5, 5.1e2, 320.25, 240 "])
def test_numbers(text: str) -> None:
    assert read_intrinsics(text) == ROWS


@pytest.mark.parametrize(
    "content",
    [
        "500.5 0 320.25\n0 510 240\n0 0 1\n",
        "# camera 3\r\n500.5, 0, 320.25\r\n0, 510, 240 # y\r\n0, 0, 1\r\n",
        "\ufeff500.5 510 320.25 240",
        "500.5,510,320.25,240\n",
        str(np.array(ROWS)),  # [[500.5 0. ...] ...]
        str(ROWS),
        json.dumps([*FOUR.values()]),
        json.dumps({"K": ROWS, "model": "PINHOLE"}),
        json.dumps({"camera_matrix": [*ROWS[0], *ROWS[1], *ROWS[2]]}, indent=1),
        json.dumps({**FOUR, "width": 640}),
    ],
)
def test_files(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a, b"
    path.write_text(content, encoding="utf-8", newline="")
    assert read_intrinsics(str(path)) == ROWS
    np.testing.assert_array_equal(check_intrinsics("K", read_intrinsics(str(path))), ROWS)


@pytest.mark.parametrize(
    "content",
    [
        "", "1 2 3", "1 0 0 0 1 0 0 0", "1 0 nan 0 1 0 0 0 1", "a picture of a camera", '{"fx": 1, "fy": 1}',
        '{"K": "500"}', '{"K": [[1, 0, 0], [0, true, 0], [0, 0, 1]]}', '{"K": [1, [2, [3]], 4]}', "{", "[1, 2",
        '{"K": [1e999, 1, 0, 0]}', '{"K": null}',
    ],
)  # fmt: skip
def test_files_without(content: str, tmp_path: Path) -> None:
    path = tmp_path / "K.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=str(path)):
        read_intrinsics(str(path))


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "film.mov"
    path.write_bytes(b"1 " * MAX_BYTES)
    with pytest.raises(ValueError, match=rf"film\.mov: more than {MAX_BYTES} bytes are no file of intrinsics"):
        read_intrinsics(str(path))


def test_a_transposed_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="K must be a finite 3 x 3 intrinsic matrix"):
        check_intrinsics("K", np.array(ROWS).T)
