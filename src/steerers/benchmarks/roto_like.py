"""Data in the layout of Roto-360, made from any photographs, with a marker that says so."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from steerers import __version__
from steerers.benchmarks.report import dump
from steerers.geometry import rotation, warp_image
from steerers.images.load import load_image, to_uint8
from steerers.viz.progress import progress

LIKE = "Roto-360-like"
MARKER = "roto-360-like.json"
"""The file that made data carries."""
ANGLES = range(0, 360, 10)
SCENES = 10


def is_made(folder: Path) -> bool:
    """Whether the data is not the original, but made by :func:`make`."""
    return (folder / MARKER).is_file()


def make(photographs: Path, folder: Path, *, scenes: int = SCENES, max_size: int | None = None) -> list[str]:
    """Generate the layout from the first photographs of a folder, by name, those in folders below included.

    Each is rotated about its centre onto a canvas of its own size; what a rotation uncovers is black. Sampling is
    bilinear, files are JPEG of quality 95, the unrotated one too.

    Args:
        folder: where to; new or empty, and written whole or not at all.
        max_size: longest side; what is larger is shrunk first.

    Returns:
        The names of the scenes.
    """
    sources = _list_photographs(photographs, scenes)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"cannot make data in {folder}: it is there and not empty; name a new folder")
    if not folder.resolve().parent.is_dir():
        raise ValueError(f"cannot make data in {folder}: there is no folder {folder.resolve().parent}")
    names = [f"{index:02d}_{path.stem}" for index, path in enumerate(sources, start=1)]
    with tempfile.TemporaryDirectory(prefix=".steerers-", dir=folder.resolve().parent) as temporary:
        whole = Path(temporary) / "data"
        whole.mkdir()
        for name, path in progress(list(zip(names, sources, strict=True)), "rotating"):
            _make_scene(path, whole / name, max_size)
        (whole / MARKER).write_text(dump(_describe_made(names, sources, max_size)), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        shutil.move(whole, folder)
    return names


def _list_photographs(folder: Path, scenes: int) -> list[Path]:
    from steerers.datasets.photos import find_images

    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give --make a folder of photographs")
    found = find_images(folder)
    if len(found) < scenes:
        raise ValueError(f"{folder} holds {len(found)} photographs, not {scenes}; ask for fewer by --scenes")
    return found[:scenes]


def _make_scene(source: Path, folder: Path, max_size: int | None) -> None:
    folder.mkdir()
    image = load_image(source, max_size=max_size).tensor  # (3, H, W)
    size = (image.shape[2], image.shape[1])
    for angle in ANGLES:
        H = rotation_about_centre(size, angle)
        rotated = warp_image(image, torch.from_numpy(H), size) if angle else image
        PIL.Image.fromarray(to_uint8(rotated)).save(folder / f"1_rot{angle}.jpg", quality=95)
        np.savetxt(folder / f"1_rot{angle}.txt", H, fmt="%.17g")


def rotation_about_centre(size: tuple[int, int], degrees: float) -> NDArray[np.float64]:
    """The (3, 3) map of pixels when an image is rotated counter-clockwise about its centre, on its own canvas."""
    H = np.eye(3)
    H[:2, :2] = rotation(math.radians(degrees)).numpy()
    centre = np.array([(size[0] - 1) / 2, (size[1] - 1) / 2])
    H[:2, 2] = centre - H[:2, :2] @ centre
    return H


def _describe_made(names: Sequence[str], sources: Sequence[Path], max_size: int | None) -> dict[str, Any]:
    return {
        "dataset": LIKE,
        "made_by": f"steerers {__version__}",
        "note": "Not the Roto-360 of RELF: made in its layout by `steerers eval roto-360 --make`.",
        "angles": list(ANGLES),
        "max_size": max_size,
        "scenes": {
            name: {"image": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in zip(names, sources, strict=True)
        },
    }
