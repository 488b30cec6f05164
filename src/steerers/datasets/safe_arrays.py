"""NumPy files that hold objects, read without running anything that is in them.

An array of objects is stored as a pickle, which may call any function when it is read. Here a pickle gets arrays,
strings, numbers and their containers, and whatever else it asks for is refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

T = TypeVar("T")

_ALLOWED = {
    "numpy": "ndarray dtype",
    **{f"numpy.{core}.multiarray": "_reconstruct scalar" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": "_frombuffer" for core in ("core", "_core")},
    "collections": "OrderedDict",
    "builtins": "bool bytearray bytes complex dict float frozenset int list range set slice str tuple",
}


def read_dictionary(path: str | PathLike[str], what: str = "dictionary") -> dict[Any, Any]:
    """The dictionary that ``np.save`` put into an ``.npy`` file.

    Args:
        what: the file should hold, as an error calls it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, asks for more than arrays, or holds no dictionary; the path is named.
    """
    values = _guarded(Path(path), what, _read_array)
    if isinstance(values, np.ndarray) and values.shape == () and values.dtype == object:
        values = values.item()
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a {what} holds a dictionary, this file a {type(values).__name__}")
    return values


def read_named(path: str | PathLike[str], names: Sequence[str], what: str = "file of arrays") -> dict[str, Any]:
    """Values by their names, from an ``.npz`` file or a dictionary in an ``.npy`` file; see :func:`read_dictionary`.

    Args:
        names: which are wanted; of an ``.npz`` no others are read. Missing ones raise ValueError.
    """
    path = Path(path)
    if path.suffix == ".npz":
        found, values = _guarded(path, what, lambda file: _read_members(file, names))
    else:
        values = read_dictionary(path, what)
        found = list(values)
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"{path}: it has no {', '.join(missing)}; it has {', '.join(map(str, found)) or 'nothing'}")
    return {name: values[name] for name in names}


def _guarded(path: Path, what: str, read: Callable[[IO[bytes]], T]) -> T:
    """What ``read`` makes of a file, whose faults are told as one kind of error."""
    try:
        with path.open("rb") as file:
            return read(file)
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise ValueError(f"{path}: a damaged {what}, or none ({error or type(error).__name__})") from error


def _read_members(file: IO[bytes], names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """All names in an archive, and the arrays that are wanted. Whole members are read, which checks their sums."""
    with zipfile.ZipFile(file) as archive:
        found = [name.removesuffix(".npy") for name in archive.namelist()]
        wanted = [name for name in names if name in found]
        return found, {name: _read_array(io.BytesIO(archive.read(f"{name}.npy"))) for name in wanted}


def _read_array(file: IO[bytes]) -> Any:
    start = file.tell()
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        return np.asarray(_PlainUnpickler(file).load(), dtype=object).reshape(shape)
    file.seek(start)
    return np.lib.format.read_array(file, allow_pickle=False)


class _PlainUnpickler(pickle.Unpickler):
    """Makes arrays and builtin values, and nothing that could act."""

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # as protocol 2 calls it
        if name in _ALLOWED.get(module, "").split():
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")


def _encode(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 write bytes; the codec of that name could be anything else."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}, which no array needs")
    return text.encode("latin1")
