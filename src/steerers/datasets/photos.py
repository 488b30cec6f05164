"""Photographs decoded and shrunk once: in memory, in a memory-mapped file, or on the training device."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from steerers._console import Progress, tell
from steerers._files import atomic_write
from steerers.geometry import Size
from steerers.images.load import ImageError, load_image, to_uint8
from steerers.images.read_ahead import read_ahead

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2", ".heic", ".heif", ".avif"}
"""Of photographs; the last need what Pillow does not always have, and say so."""
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
            loaded = load_image(self.path if self.member is None else self._file(), max_size=max_size)
        except (ImageError, OSError) as error:
            raise ValueError(f"cannot use a photograph: {error}") from error
        return torch.from_numpy(to_uint8(loaded.tensor)).permute(2, 0, 1).contiguous()

    def _file(self) -> io.BytesIO:
        """The member, open, with a name by which errors call it."""
        with self.path.open("rb") as archive:
            archive.seek(self.start)
            file = io.BytesIO(archive.read(self.length))
        file.name = f"{self.path}, member {self.member}"
        return file


def is_image(path: Path) -> bool:
    """Whether a path is a file with the ending of an image."""
    return path.suffix.lower() in ENDINGS and path.is_file()


def find_photos(roots: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Photo]:
    """The photographs in folders and tars, in the order of their names.

    Raises:
        ValueError: if there is no such folder or tar, or no image in it.
    """
    given = [roots] if isinstance(roots, (str, os.PathLike)) else list(roots)
    return [photo for root in given for photo in _find(Path(root))]


def _find(root: Path) -> list[Photo]:
    if root.is_dir():
        found = [Photo(path) for path in sorted(root.rglob("*")) if is_image(path)]
    elif root.is_file() and ".tar" in root.suffixes:
        found = _members(root)
    else:
        raise ValueError(f"no such folder or tar of images: {root}")
    if not found:
        raise ValueError(f"no images in {root}; known endings: {' '.join(sorted(ENDINGS))}")
    return found


def _members(path: Path) -> list[Photo]:
    """The images of a tar, by their positions in it: to read one, nothing before it has to be read."""
    members: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.size < 0:  # older versions of Python would go back by as much, and come here again
                    raise tarfile.ReadError(f"member {member.name} has a size of {member.size}")
                if member.isfile() and Path(member.name).suffix.lower() in ENDINGS:
                    members.append(member)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
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
    broken: list[str] = field(default_factory=list)  # what is wrong with those that were left out

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
    def open(
        cls, photos: Sequence[Photo], max_size: int = 768, cache: Path | None = None, *, max_broken: float = 0.0
    ) -> PhotoStore:
        """Decode photographs, or map the file of an earlier call.

        Args:
            max_size: longest side.
            cache: a folder in which the decoded photographs are kept; they are then mapped, not read, into memory.
            max_broken: the fraction of the photographs, but at least one, that may be broken: they are left out, and
                named in a warning. With 0 none may be.

        Raises:
            ValueError: naming a photograph that cannot be read, if too many cannot, or the cache that is damaged.
        """
        allowed = max(1, int(max_broken * len(photos))) if max_broken else 0
        if cache is None:
            store = cls._decode(photos, max_size, allowed)
        else:
            path = cache / f"photos-{_hash(photos, max_size)}.npy"
            if not path.exists():
                cache.mkdir(parents=True, exist_ok=True)
                cls._decode(photos, max_size, allowed)._keep(path)
            store = cls._map(path)
        _check_broken(store.broken, allowed, len(photos))
        if store.broken:
            tell(f"{_describe(store.broken, len(photos))}; left out", logging.WARNING)
        return store

    @classmethod
    def _decode(cls, photos: Sequence[Photo], max_size: int, allowed: int) -> PhotoStore:
        """All photographs but those that are broken, unless there are more of them than allowed."""
        pixels = bytearray()  # grows in place: at no time is there a second copy of all pixels
        sizes: list[Size] = []
        names: list[str] = []
        broken: list[str] = []

        def load(photo: Photo) -> Tensor | ValueError:
            try:
                return photo.load(max_size)
            except ValueError as error:
                return error

        threads = (os.cpu_count() or 1) + 4
        loaded = read_ahead(load, photos, threads=threads, waiting=4 * threads)
        with Progress("reading photographs", len(photos), "photograph") as shown:
            for photo, found in zip(photos, loaded, strict=True):
                if isinstance(found, ValueError):
                    broken.append(str(found.__cause__ or found))
                    _check_broken(broken, allowed, len(photos))
                else:
                    pixels += found.numpy().tobytes()
                    sizes.append((int(found.shape[2]), int(found.shape[1])))
                    names.append(photo.name)
                shown.advance()
        return cls(torch.frombuffer(pixels, dtype=torch.uint8), sizes, names, broken)

    def _keep(self, path: Path) -> None:
        """Write the index, then the pixels: where those are, another process may read both."""
        with atomic_write(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps({"sizes": self.sizes, "names": self.names, "broken": self.broken}))
        with atomic_write(path) as temporary:
            np.save(temporary, self.pixels.numpy())

    @classmethod
    def _map(cls, path: Path) -> PhotoStore:
        try:
            index = json.loads(path.with_suffix(".json").read_text())
            pixels = np.load(path, mmap_mode="c")  # copy on write: torch wants memory that may be written
            sizes = [(int(w), int(h)) for w, h in index["sizes"]]
            store = cls(torch.from_numpy(pixels), sizes, list(index["names"]), list(index.get("broken", ())))
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: a damaged cache of photographs ({error}); delete it") from error
        expected = (torch.uint8, (store._starts[-1],), len(store))
        if (store.pixels.dtype, tuple(store.pixels.shape), len(store.names)) != expected:
            raise ValueError(f"{path}: a damaged cache of photographs (sizes do not add up); delete it")
        return store


def _check_broken(broken: Sequence[str], allowed: int, total: int) -> None:
    """Refuse more broken photographs than are allowed, or nothing but broken ones."""
    if not broken or (len(broken) <= allowed and len(broken) < total):
        return
    if not allowed:
        raise ValueError(f"cannot use a photograph: {broken[0]}")
    raise ValueError(
        f"{_describe(broken, total)}; no more than {allowed}, and not all, may be broken (data.max_broken); `steerers "
        "data check` lists them"
    )


def _describe(broken: Sequence[str], total: int) -> str:
    return f"{len(broken)} of {total} photographs cannot be used: {few(broken, 3)}"


def _hash(photos: Sequence[Photo], max_size: int) -> str:
    stats = [(photo.name, photo.path.stat().st_size, photo.path.stat().st_mtime_ns) for photo in photos]
    return hashlib.sha256(json.dumps([_FORMAT, max_size, stats]).encode()).hexdigest()[:16]


def held_out(name: str, fraction: float) -> bool:
    """Whether a photograph of that name belongs to the fraction that is held out: always the same ones, in any set."""
    return int(hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8], 16) < fraction * 2**32


def few(names: Sequence[str], count: int = 5) -> str:
    """The first of many names, and how many more there are, for messages."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
