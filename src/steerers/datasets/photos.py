"""Photographs decoded and shrunk once: in memory, in a memory-mapped file, or on the training device."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from steerers._console import progress
from steerers._files import atomic_write
from steerers.geometry import Size
from steerers.images.load import ImageError, load_image, to_uint8

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2"}
_FORMAT = 1
T = TypeVar("T")


class DamagedTarError(ValueError):
    """A tar that cannot be read to its end."""


@dataclass(frozen=True)
class Photo:
    """A photograph on disk: a file, or a member of a tar, where :func:`find_photos` found it."""

    path: Path
    member: str | None = None
    start: int = 0  # of the member, in bytes
    length: int = 0

    @property
    def name(self) -> str:
        """What tells it from the others, wherever the data lies."""
        return self.path.name if self.member is None else Path(self.member).name

    def load(self, max_size: int | None) -> Tensor:
        """(3, H, W) uint8; a broken one raises ValueError with its path."""
        try:
            loaded = load_image(self.path if self.member is None else self._picture(), max_size=max_size)
        except (ImageError, OSError, PIL.Image.DecompressionBombError) as error:
            raise ValueError(f"cannot use a photograph: {error}") from error
        return torch.from_numpy(to_uint8(loaded.tensor)).permute(2, 0, 1).contiguous()

    def _picture(self) -> PIL.Image.Image:
        """The member, opened, with a name by which errors call it."""
        with self.path.open("rb") as archive:
            archive.seek(self.start)
            data = archive.read(self.length)
        name = f"{self.path}, member {self.member}"
        try:
            opened = PIL.Image.open(io.BytesIO(data))
        except PIL.UnidentifiedImageError as error:
            reason = "it is not an image, or damaged, or in a format Pillow does not read"
            raise ImageError(f"cannot read image {name}: {reason}") from error
        opened.filename = name
        return opened


def find_photos(roots: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Photo]:
    """The photographs in folders and tars, in the order of their names.

    Raises:
        ValueError: if there is no such folder or tar, or no image in it.
    """
    given = [roots] if isinstance(roots, (str, os.PathLike)) else list(roots)
    return [photo for root in given for photo in _find(Path(root))]


def _find(root: Path) -> list[Photo]:
    if root.is_dir():
        found = [Photo(path) for path in sorted(root.rglob("*")) if path.suffix.lower() in ENDINGS and path.is_file()]
    elif root.is_file() and ".tar" in root.suffixes:
        found = _members(root)
    else:
        raise ValueError(f"no such folder or tar of images: {root}")
    if not found:
        raise ValueError(f"no images in {root}; known endings: {' '.join(sorted(ENDINGS))}")
    return found


def _members(path: Path) -> list[Photo]:
    """The images of a tar, by their positions in it: to read one, nothing before it has to be read."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = [m for m in archive if m.isfile() and Path(m.name).suffix.lower() in ENDINGS]
    except tarfile.TarError as error:
        raise DamagedTarError(f"{path}: not a tar, or compressed, or damaged ({error})") from error
    members.sort(key=lambda member: member.name)
    return [Photo(path, member.name, member.offset_data, member.size) for member in members]


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """The image files below a folder, in the order of their names.

    Raises:
        ValueError: if there is no such folder, or no image in it.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"no such folder of images: {folder}")
    return [photo.path for photo in _find(Path(folder))]


def spread(photos: Sequence[T], wanted: int | None) -> list[T]:
    """As many photographs as are wanted, spread over all of them; all by default, or where there are no more."""
    if wanted is None or wanted >= len(photos):
        return list(photos)
    step = len(photos) / wanted
    return [photos[int(index * step)] for index in range(wanted)]


@dataclass(frozen=True, eq=False)
class PhotoStore:
    """Decoded photographs, one behind the other in one tensor."""

    pixels: Tensor  # (T,) uint8
    sizes: list[Size]
    names: list[str]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Tensor:
        """(3, H, W) uint8, a view into the store."""
        (width, height), start = self.sizes[index], self._starts[index]
        return self.pixels[start : start + 3 * width * height].view(3, height, width)

    @cached_property
    def _starts(self) -> list[int]:
        """Where photographs begin, and at the end where the last one ends."""
        return list(accumulate((3 * width * height for width, height in self.sizes), initial=0))

    def to(self, device: torch.device) -> PhotoStore:
        """The same photographs on ``device``."""
        return replace(self, pixels=self.pixels.to(device))

    def canvases(self, indices: Sequence[int], device: torch.device) -> Tensor:
        """(B, 3, H, W) uint8 photographs in the top-left corners of canvases that hold the largest of the store.

        Their last rows and columns are repeated beyond them. On a GPU the canvases of all are made once and kept.
        """
        if self.pixels.device.type == "cpu":
            return torch.stack([self._canvas(index) for index in indices]).to(device, non_blocking=True)
        return self._all_canvases[torch.tensor(indices, device=self.pixels.device)]

    @cached_property
    def _all_canvases(self) -> Tensor:
        return torch.stack([self._canvas(index) for index in range(len(self))])

    def _canvas(self, index: int) -> Tensor:
        width, height = (max(side) for side in zip(*self.sizes, strict=True))
        photo = self[index]
        rows = torch.arange(height, device=photo.device).clamp(max=photo.shape[1] - 1)
        columns = torch.arange(width, device=photo.device).clamp(max=photo.shape[2] - 1)
        return photo[:, rows][:, :, columns]

    @classmethod
    def open(cls, photos: Sequence[Photo], max_size: int = 768, cache: Path | None = None) -> PhotoStore:
        """Decode photographs, or map the file of an earlier call.

        Args:
            max_size: longest side.
            cache: a folder in which the decoded photographs are kept; they are then mapped, not read, into memory.

        Raises:
            ValueError: naming the photograph that cannot be read, or the cache that is damaged.
        """
        if cache is None:
            return cls._decode(photos, max_size)
        path = cache / f"photos-{_hash(photos, max_size)}.npy"
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            cls._decode(photos, max_size)._keep(path)
        return cls._map(path)

    @classmethod
    def _decode(cls, photos: Sequence[Photo], max_size: int) -> PhotoStore:
        pixels, sizes = bytearray(), []  # grows in place: at no time is there a second copy of all pixels
        with ThreadPoolExecutor() as pool:
            for photo in progress(pool.map(lambda photo: photo.load(max_size), photos), "decoding", len(photos)):
                pixels += photo.numpy().tobytes()
                sizes.append((int(photo.shape[2]), int(photo.shape[1])))
        return cls(torch.frombuffer(pixels, dtype=torch.uint8), sizes, [photo.name for photo in photos])

    def _keep(self, path: Path) -> None:
        """Write the index, then the pixels: where those are, another process may read both."""
        with atomic_write(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps({"sizes": self.sizes, "names": self.names}))
        with atomic_write(path) as temporary:
            np.save(temporary, self.pixels.numpy())

    @classmethod
    def _map(cls, path: Path) -> PhotoStore:
        try:
            index = json.loads(path.with_suffix(".json").read_text())
            pixels = np.load(path, mmap_mode="c")  # copy on write: torch wants memory that may be written
            store = cls(torch.from_numpy(pixels), [(int(w), int(h)) for w, h in index["sizes"]], list(index["names"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: a damaged cache of photographs ({error}); delete it") from error
        expected = (torch.uint8, (store._starts[-1],), len(store))
        if (store.pixels.dtype, tuple(store.pixels.shape), len(store.names)) != expected:
            raise ValueError(f"{path}: a damaged cache of photographs (sizes do not add up); delete it")
        return store


def _hash(photos: Sequence[Photo], max_size: int) -> str:
    stats = [(photo.name, photo.path.stat().st_size, photo.path.stat().st_mtime_ns) for photo in photos]
    return hashlib.sha256(json.dumps([_FORMAT, max_size, stats]).encode()).hexdigest()[:16]


def held_out(name: str, fraction: float) -> bool:
    """Whether a photograph of that name belongs to the fraction that is held out: always the same ones, in any set."""
    return int(hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8], 16) < fraction * 2**32


def few(names: Sequence[str], count: int = 5) -> str:
    """The first of many names, and how many more there are, for messages."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
