"""The files of COLMAP reconstructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steerers.datasets.colmap_files import read_depth


def test_depth_maps_keep_their_rows(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    (tmp_path / "d.bin").write_bytes(b"3&2&1&" + values.tobytes())
    np.testing.assert_array_equal(read_depth(tmp_path / "d.bin"), values)
