"""Where the files of COLMAP reconstructions lie: models or tracks, photographs and depth maps, scene by scene."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steerers._files import StrPath
from steerers.datasets.reconstruction import Reconstruction, model_folder
from steerers.images.load import Size

TRACKS = "tracks.npz"
"""The file that :func:`steerers.datasets.colmap.export` writes beside the photographs."""

_ASPECT_SLACK = 0.02  # of sizes rounded to whole pixels


class Scene(NamedTuple):
    """A reconstruction and where its files are."""

    name: str
    reconstruction: Reconstruction
    images: Path
    depths: Path | None


def open_scenes(root: StrPath, images: StrPath | None = None, depths: StrPath | None = None) -> Iterator[Scene]:
    """The reconstructions at ``root``, with their folders."""
    folders = scene_folders(Path(root))
    if not folders:
        raise ValueError(
            f"{root}: no reconstruction: neither a COLMAP model (.bin or .txt; also in sparse/ or sparse/0/) nor a "
            f"{TRACKS}, here or in the folders below"
        )
    for folder in folders:
        below = "" if folder == Path(root) else folder.name
        tracks = tracks_file(folder)
        home = folder.parent if tracks == folder else folder
        maps = Path(depths) / below if depths is not None else home / "stereo" / "depth_maps"
        scene = Scene(
            name=home.name,
            reconstruction=Reconstruction.load(tracks) if tracks else Reconstruction.read(folder),
            images=Path(images) / below if images is not None else home / "images",
            depths=maps if maps.is_dir() or depths is not None else None,
        )
        if problem := _depth_problem(scene):
            raise ValueError(problem)
        yield scene


def _depth_problem(scene: Scene) -> str | None:
    if scene.depths is not None and not scene.depths.is_dir():
        return f"{scene.depths}: no such folder of depth maps"
    if scene.depths is not None and scene.reconstruction.distorted.any():
        count = int(scene.reconstruction.distorted.sum())
        return (
            f"{scene.depths}: depth maps need pinhole cameras, but {count} of the model have lens distortion; use the "
            "folder that COLMAP's image_undistorter (pycolmap.undistort_images) wrote"
        )
    return None


def depth_path(depths: Path, name: str) -> Path:
    """Where the depth map of a photograph is, or would be."""
    return depths / f"{name}.geometric.bin"


def tracks_file(root: Path) -> Path | None:
    """The tracks at ``root``, a folder or the file itself, if they are there."""
    found = root if root.suffix == ".npz" else root / TRACKS
    return found if found.is_file() else None


def scene_folders(root: Path) -> list[Path]:
    """``root`` if it is a reconstruction, else the folders in it that are one."""
    if tracks_file(root) or model_folder(root):
        return [root]
    children = sorted(root.iterdir()) if root.is_dir() else []
    return [child for child in children if child.is_dir() and (tracks_file(child) or model_folder(child))]


def read_depth(path: StrPath) -> NDArray[np.float32]:
    """(H, W) of a depth map as COLMAP writes it, ``width&height&channels&`` and then the values; 0 for unknown."""
    data = Path(path).read_bytes()
    header = data[:64].split(b"&", 3)
    try:
        width, height, channels = (int(part) for part in header[:3])
    except ValueError:
        raise ValueError(f"{path}: not a depth map of COLMAP") from None
    start = sum(len(part) + 1 for part in header[:3])
    if channels != 1 or len(data) - start != 4 * width * height:
        raise ValueError(
            f"{path}: a damaged depth map: {len(data) - start} bytes for {width} x {height} x {channels} values"
        )
    return np.frombuffer(data, "<f4", offset=start).reshape(height, width).astype(np.float32)


def aspect_problem(size: Size, expected: Sequence[int] | NDArray[np.int64]) -> str | None:
    """What is wrong with the size of a photograph or depth map that a camera of ``expected`` pixels took."""
    if abs(size[0] * expected[1] / (size[1] * expected[0]) - 1) < _ASPECT_SLACK:
        return None
    return f"{size[0]} x {size[1]} pixels, which is not the aspect of its camera's {expected[0]} x {expected[1]}"
