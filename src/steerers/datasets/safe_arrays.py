"""NumPy files that hold objects, read without running anything that is in them.

An array of objects is stored as a pickle, which may call any function when it is read. Here a pickle gets arrays,
strings, numbers and their containers, and whatever else it asks for is refused; and so is, before memory is asked for,
what would be much larger than its file.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from steerers._files import atomic_write

T = TypeVar("T")

MAX_BYTES = 2 * 2**30
"""Of the arrays in one file, unpacked, which may be a thousand times as many: enough for 50 million observations."""
_EXPANSION = 4  # how many times its size a pickle may grow
_KINDS = "biufcSUO"  # of arrays that are read: numbers, text and objects, and no structures of them


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


def write_named(path: str | PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed ``.npz`` file that :func:`read_named` reads, whole or not at all."""
    packed = io.BytesIO()  # an archive on a full disk would complain once more when it is collected
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    with atomic_write(path) as temporary:
        temporary.write_bytes(packed.getbuffer())


def _guarded(path: Path, what: str, read: Callable[[IO[bytes]], T]) -> T:
    """What ``read`` makes of a file, whose faults are told as one kind of error."""
    with path.open("rb") as file:
        try:
            return read(file)
        except Exception as error:  # damaged archives and pickles raise almost anything
            raise ValueError(f"{path}: a damaged {what}, or none ({str(error) or type(error).__name__})") from error


def _read_members(file: IO[bytes], names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """All names in an archive, and the arrays that are wanted. Whole members are read, which checks their sums."""
    with zipfile.ZipFile(file) as archive:
        found = [name.removesuffix(".npy") for name in archive.namelist()]
        wanted = [name for name in names if name in found]
        unpacked = sum(archive.getinfo(f"{name}.npy").file_size for name in wanted)
        if unpacked > MAX_BYTES:
            raise ValueError(f"unpacked it has {unpacked:,} bytes, more than the {MAX_BYTES:,} that are read")
        return found, {name: _read_array(io.BytesIO(archive.read(f"{name}.npy"))) for name in wanted}


def _read_array(file: IO[bytes]) -> Any:
    """An array, refused before memory is asked for if its header promises more than the file holds."""
    start, size = file.tell(), file.seek(0, io.SEEK_END)
    file.seek(start)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        values = _PlainUnpickler(file, size).load()
        if not isinstance(values, np.ndarray):
            raise pickle.UnpicklingError(f"it holds a {type(values).__name__}, and no array")
        _check_expansion(values, size)
        return np.asarray(values).reshape(shape)
    needed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if not dtype.itemsize or needed > held:
        raise ValueError(f"its {dtype} array of shape {shape} has {held:,} bytes")
    file.seek(start)
    return _checked(np.lib.format.read_array(file, allow_pickle=False))


def _checked(array: NDArray[Any]) -> NDArray[Any]:
    """An array of numbers or of text, whose characters exist: NumPy passes others on, and Python crashes on them."""
    if array.dtype.kind not in _KINDS:
        raise ValueError(f"arrays of {array.dtype} are not read")
    if array.dtype.kind == "U":
        codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max(initial=0) > sys.maxunicode:
            raise ValueError("its text holds characters that do not exist")
    return array


# Pickles --------------------------------------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Makes arrays and builtin values, nothing that could act, and little more than the file has bytes.

    Whatever a pickle calls to make arrays is exchanged for what takes only that which NumPy writes. Bytes that are
    copied are counted, because a pickle may name the same ones again and again.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__(file)
        self._left = _EXPANSION * size
        parts = {"_reconstruct": self._reconstruct, "scalar": self._scalar}
        self._known: dict[str, dict[str, Any]] = {
            "numpy": {"ndarray": _ndarray, "dtype": _Dtype},
            **{f"numpy.{core}.multiarray": parts for core in ("core", "_core")},
            **{f"numpy.{core}.numeric": {"_frombuffer": _from_buffer} for core in ("core", "_core")},
            "collections": {"OrderedDict": OrderedDict},
            "builtins": {"complex": complex, "bytes": self._bytes, "bytearray": self._bytes},
            "_codecs": {"encode": self._encode},
        }

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # as protocol 2 calls it
        try:
            return self._known[module][name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs") from None

    def spend(self, count: int) -> None:
        """Count bytes that are copied."""
        self._left -= count
        if self._left < 0:
            raise pickle.UnpicklingError(_GROWS)

    def _reconstruct(self, kind: Any, shape: Any, _: Any) -> _Array:
        if kind is not _ndarray or shape != (0,):
            _ndarray()
        made = _Array((0,), dtype=np.int8)
        made.maker = self
        return made

    def _scalar(self, dtype: _Dtype, data: bytes) -> Any:
        self.spend(len(data))
        return _checked(np.frombuffer(data, dtype.made, count=1))[0] if data else dtype.made.type()

    def _bytes(self, *given: bytes) -> bytes:
        """Of nothing, or of bytes; of a number they would be as many."""
        if not all(isinstance(part, bytes) for part in given):
            raise pickle.UnpicklingError("it makes bytes in a way that no array needs")
        self.spend(sum(map(len, given)))
        return b"".join(given)

    def _encode(self, text: str, encoding: str) -> bytes:
        """How pickles of protocol 2 write bytes; the codec of that name could be anything else."""
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}, which no array needs")
        self.spend(len(text))
        return text.encode("latin1")


class _Array(np.ndarray[Any, Any]):
    """An array in the making, whose contents come second."""

    maker: _PlainUnpickler

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, data = state
        self.maker.spend(len(data))
        super().__setstate__((version, shape, dtype.made, fortran, data))
        _checked(self)


class _Dtype:
    """A type of numbers, strings or objects. NumPy's own would take from the file how its objects are laid out."""

    def __init__(self, code: str, *_: bool) -> None:
        if not re.fullmatch(rf"[{_KINDS}]\d{{1,9}}", code):
            raise pickle.UnpicklingError(f"it asks for arrays of type {code!r:.40}, which are not read")
        self.made = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.made = self.made.newbyteorder(state[1])


_GROWS = "it grows to many times its size, which no array does"


def _ndarray(*_: Any) -> NoReturn:
    """Stands for the class where a pickle names it; called, it would make an array of any size."""
    raise pickle.UnpicklingError("it makes arrays in a way that NumPy does not")


def _from_buffer(data: Any, dtype: _Dtype, shape: Any, order: Any, *_: Any) -> Any:
    return _checked(np.frombuffer(data, dtype.made)).reshape(shape, order=order)


def _check_expansion(value: Any, size: int) -> None:
    """Refuse lists that hold others again and again: they are small, and an array of all that is in them is not."""
    waiting, seen = [value], 0
    while waiting:
        held = waiting.pop()
        seen += 1
        if seen > _EXPANSION * size:
            raise pickle.UnpicklingError(_GROWS)
        if isinstance(held, np.ndarray) and held.dtype.hasobject:
            waiting += held.ravel().tolist()
        elif isinstance(held, dict):
            waiting += held.values()
        elif isinstance(held, (list, tuple)):
            waiting += held
