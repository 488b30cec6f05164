"""Pairs of images with known cameras: folders with a ``cameras.json`` each, and LoFTR's MegaDepth-1500.

Intrinsics are for pixels with the centre of the top-left pixel at (0, 0), poses from the world to the camera,
``x ~ K (R X + t)``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers.benchmarks.pairs import Pair, choose
from steerers.datasets.safe_arrays import read_named

CAMERAS = "cameras.json"
CAMERAS_HELP = (
    f"give --data a folder of sequences, each a folder of images with a {CAMERAS}: a list of "
    '{"name": "0000.jpg", "K": [3 x 3], "R": [3 x 3], "t": [3]} with x ~ K (R X + t), the centre of the top-left pixel '
    "at (0, 0)"
)
MEGADEPTH_SCENES = ("0015_0.1_0.3", "0015_0.3_0.5", "0022_0.1_0.3", "0022_0.3_0.5", "0022_0.5_0.7")
MEGADEPTH_HELP = (
    "get the five scene files from https://github.com/zju3dv/LoFTR, assets/megadepth_test_1500_scene_info "
    f"({', '.join(MEGADEPTH_SCENES)}; each .npz), and the images of scenes 0015 and 0022 from LoFTR's Google Drive "
    "(megadepth_test_1500) or from MegaDepth as D2-Net undistorts it, and give --data the folder that holds the npz "
    "files, or a folder of them, and Undistorted_SfM/0015/images, Undistorted_SfM/0022/images"
)
Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Camera:
    """An image and its camera."""

    path: Path
    K: Matrix  # (3, 3)
    R: Matrix  # (3, 3)
    t: Matrix  # (3,)


@dataclass(frozen=True, eq=False, kw_only=True)
class PosePair(Pair):
    """A pair with its intrinsics, in stored pixels, and its true pose ``X1 = R X0 + t``."""

    K0: Matrix  # (3, 3)
    K1: Matrix
    R: Matrix  # (3, 3)
    t: Matrix  # (3,)

    def key(self) -> dict[str, Any]:
        return {**super().key(), **{name: getattr(self, name).tolist() for name in ("K0", "K1", "R", "t")}}


def make_pair(name: str, sequence: str, first: Camera, second: Camera) -> PosePair:
    """The pair of two images whose cameras are in one world."""
    R = second.R @ first.R.T
    t = second.t - R @ first.t
    return PosePair(name, sequence, first.path, second.path, K0=first.K, K1=second.K, R=R, t=t)


# Folders with cameras.json --------------------------------------------------------------------------------------------


def list_pairs(
    folder: Path, apart: Sequence[int] = (1, 2, 3), sequences: Sequence[str] | None = None
) -> list[PosePair]:
    """The pairs (i, i + k) of the images of every sequence, for every ``k`` of ``apart``.

    Args:
        folder: of sequences, or one sequence.
        sequences: names of those that are wanted; by default all.

    Raises:
        ValueError: if there are no such sequences, or a broken one.
    """
    if not apart or min(apart) < 1:
        raise ValueError(f"apart must be whole numbers of at least 1, got {list(apart)}")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {CAMERAS_HELP}")
    folders = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    found = {path.resolve().name: path for path in folders if (path / CAMERAS).is_file()}
    if not found:
        raise ValueError(f"{folder} holds no sequences with a {CAMERAS}; {CAMERAS_HELP}")
    wanted = choose(found, None if sequences is None else sorted(sequences), folder)
    pairs = [pair for name, path in wanted.items() for pair in _pair_up(name, read_cameras(path), apart)]
    if not pairs:
        raise ValueError(f"no sequence of {folder} has two images that are {' or '.join(map(str, apart))} apart")
    return pairs


def _pair_up(sequence: str, cameras: Sequence[Camera], apart: Sequence[int]) -> list[PosePair]:
    return [
        make_pair(f"{sequence} {first.path.stem}-{cameras[i + k].path.stem}", sequence, first, cameras[i + k])
        for i, first in enumerate(cameras)
        for k in sorted(set(apart))
        if i + k < len(cameras)
    ]


def read_cameras(folder: Path) -> list[Camera]:
    """The cameras of one sequence, in the order of the file."""
    path = folder / CAMERAS
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: it holds no list; {CAMERAS_HELP}")
    return [_read_camera(folder, f"{path}, entry {index}", entry) for index, entry in enumerate(entries)]


def _read_camera(folder: Path, where: str, entry: Any) -> Camera:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{where}: it has no name; {CAMERAS_HELP}")
    image = folder / entry["name"]
    if not image.is_file():
        raise ValueError(f"{where}: there is no image {image}")
    K, R, t = (_matrix(f"{where}: {name}", entry.get(name), shape) for name, shape in _SHAPES.items())
    return Camera(image, _check_intrinsics(where, K), _check_rotation(where, R), t)


_SHAPES = {"K": (3, 3), "R": (3, 3), "t": (3,)}


def _matrix(where: str, values: Any, shape: tuple[int, ...]) -> Matrix:
    try:
        matrix = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape != shape or not np.isfinite(matrix).all():
        raise ValueError(f"{where} must be {' x '.join(map(str, shape))} finite numbers")
    return matrix


def _check_intrinsics(where: str, K: Matrix) -> Matrix:
    if K[0, 0] <= 0 or K[1, 1] <= 0 or K[1, 0] != 0 or not np.array_equal(K[2], (0, 0, 1)):
        raise ValueError(f"{where}: K must be [[fx, 0, cx], [0, fy, cy], [0, 0, 1]], got {K.tolist()}")
    return K


def _check_rotation(where: str, R: Matrix) -> Matrix:
    if np.abs(R @ R.T - np.eye(3)).max() > 1e-3 or np.linalg.det(R) < 0:
        raise ValueError(f"{where}: R must be a rotation, got {R.tolist()}")
    return R


# MegaDepth-1500 -------------------------------------------------------------------------------------------------------


def list_megadepth(folder: Path, scenes: Sequence[str] | None = None) -> list[PosePair]:
    """The pairs of LoFTR's scene files, 300 each, in their order.

    Raises:
        ValueError: if files or images are missing, saying what to get; or if a file is damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {MEGADEPTH_HELP}")
    for name in scenes or ():
        if name not in MEGADEPTH_SCENES:
            raise ValueError(f"MegaDepth-1500 has no scene file {name!r}; it has {', '.join(MEGADEPTH_SCENES)}")
    wanted = [name for name in MEGADEPTH_SCENES if scenes is None or name in scenes]
    pairs = [pair for name in wanted for pair in _read_scene(folder, _find_scene(folder, name))]
    images = {path for pair in pairs for path in (pair.image0, pair.image1)}
    missing = sorted(path for path in images if not path.is_file())
    if missing:
        raise ValueError(f"{len(missing)} of {len(images)} images are missing, such as {missing[0]}; {MEGADEPTH_HELP}")
    return pairs


def _find_scene(folder: Path, name: str) -> Path:
    found = [path for path in (folder / f"{name}.npz", *sorted(folder.glob(f"*/{name}.npz"))) if path.is_file()]
    if not found:
        raise ValueError(f"there is no {name}.npz in {folder}, nor in a folder in it; {MEGADEPTH_HELP}")
    return found[0]


def _read_scene(folder: Path, path: Path) -> list[PosePair]:
    values = read_named(path, ("image_paths", "intrinsics", "poses", "pair_infos"), "scene file")
    try:
        chosen = [(int(index0), int(index1)) for (index0, index1), *_ in values["pair_infos"]]
        cameras = {index: _scene_camera(folder, values, index) for pair in chosen for index in pair}
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: not a scene file of LoFTR ({error})") from error
    return [
        make_pair(f"{path.stem} {number}", path.stem, cameras[index0], cameras[index1])
        for number, (index0, index1) in enumerate(chosen)
    ]


def _scene_camera(folder: Path, values: dict[str, Any], index: int) -> Camera:
    """Intrinsics are COLMAP's, for pixels with the corner of the top-left one at (0, 0): half a pixel is taken off."""
    where = f"image {index}"
    K = _check_intrinsics(where, _matrix(f"intrinsics of {where}", values["intrinsics"][index], (3, 3)))
    pose = _matrix(f"pose of {where}", values["poses"][index], (4, 4))
    centred = K - np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    image = folder / str(values["image_paths"][index])
    return Camera(image, centred, _check_rotation(where, pose[:3, :3]), pose[:3, 3])
