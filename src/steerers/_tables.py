"""Tables in HDF5 files: the arrays of many things one behind the other, and what else is to be said of each.

A file holds, for each column, a group with ``values``, the arrays of all rows joined along their first axis, and
``ends``, where each row ends in them; ``rows``, what else is known of each row, as a JSON list in bytes; and as
attributes of the file what kind it is, its format, and in ``about`` what holds for all rows, as JSON. A thousand
photographs are read as fast as one, and a file that holds the same is the same, byte for byte, whoever wrote it.

A file is written by one process, whole or not at all, and never changed: readers need no locks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from steerers._files import StrPath, atomic_write, parse_json

LARGEST_ATTRIBUTE = 1 << 20
"""Bytes: what says that it has more is damaged."""
FORMAT = 1
"""Of the files; a change of what they mean raises it."""
_CHUNK = 1 << 18  # bytes of a column that are kept together
_ERRORS = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError, OverflowError)

Arrays = Mapping[str, NDArray[Any]]
T = TypeVar("T")


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ImportError("features and matches are kept in HDF5 files: pip install h5py") from None
    return h5py


# Writing --------------------------------------------------------------------------------------------------------------


class _Disk:
    """A file that HDF5 writes to, and that never fails: HDF5 would try again whenever one of its objects is deleted,
    where nothing can be caught. What went wrong first is kept, and what is written after that goes nowhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def _try(self, action: Callable[[], T], otherwise: T) -> T:
        if self.error is None:
            try:
                return action()
            except OSError as error:
                self.error = error
        return otherwise

    def write(self, data: memoryview) -> int:
        return self._try(lambda: self._file.write(data), len(data))

    def read(self, size: int) -> bytes:
        return self._try(lambda: self._file.read(size), bytes(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._try(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        return self._try(self._file.tell, 0)

    def truncate(self, size: int | None = None) -> int:
        return self._try(lambda: self._file.truncate(size), size or 0)

    def flush(self) -> None:
        self._try(self._file.flush, None)

    def check(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error


class TableWriter:
    """A table that is being written, row by row; no more than one row is held in memory."""

    def __init__(self, file: Any, disk: _Disk, single: bool) -> None:
        self._file, self._disk, self._single = file, disk, single
        self._ends: dict[str, list[int]] = {}
        self._rows: list[Mapping[str, Any]] = []

    def append(self, row: Mapping[str, Any], arrays: Arrays) -> None:
        """Add a row: its arrays by the names of the columns, and what else is known of it, as JSON can hold it.

        Rows may lack columns, as if theirs were empty; a column has one type and one shape of its entries.

        Raises:
            OSError: if the disk takes no more.
        """
        for name, array in arrays.items():
            if name not in self._ends:
                self._add_column(name, array)
            values = self._file[name]["values"]
            start = len(values)
            values.resize(start + len(array), axis=0)
            if len(array):
                values[start:] = array
            before = self._ends[name]
            before += [before[-1] if before else 0] * (len(self._rows) - len(before)) + [start + len(array)]
        self._rows.append(row)
        self._disk.check()

    def _add_column(self, name: str, array: NDArray[Any]) -> None:
        shape = array.shape[1:]
        entry = max(1, array.dtype.itemsize * int(np.prod(shape)))
        rows = max(1, len(array) if self._single else _CHUNK // entry)
        self._file.create_group(name).create_dataset(
            "values", (0, *shape), array.dtype, maxshape=(None, *shape), chunks=(rows, *shape), track_times=False
        )
        self._ends[name] = []

    def finish(self) -> None:
        """Write what is known of the rows."""
        for name, known in self._ends.items():
            ends = known + [known[-1] if known else 0] * (len(self._rows) - len(known))
            self._file[name].create_dataset("ends", data=np.array(ends, dtype=np.int64), track_times=False)
        told = json.dumps(self._rows, ensure_ascii=False, allow_nan=False).encode()
        self._file.create_dataset("rows", data=np.frombuffer(told, dtype=np.uint8), track_times=False)


@contextmanager
def write_table(
    path: StrPath,
    kind: str,
    about: Mapping[str, Any] | None = None,
    *,
    single: bool = False,
    temporary: str | None = None,
) -> Iterator[TableWriter]:
    """Write a table whole or not at all.

    Args:
        kind: what it holds, such as ``"features"``.
        about: what holds for all rows, as JSON can hold it.
        single: it will have one row, and takes no more room than that.
        temporary: see :func:`~steerers._files.atomic_write`.

    Raises:
        OSError: naming ``path``, if it cannot be written; of a full disk it says so.
    """
    h5py = _h5py()
    with atomic_write(path, temporary) as unfinished, unfinished.open("wb+") as opened:
        disk = _Disk(opened)
        with h5py.File(disk, "w") as file:
            file.attrs["steerers"], file.attrs["format"] = kind, FORMAT
            file.attrs["about"] = json.dumps(about or {}, ensure_ascii=False, sort_keys=True)
            writer = TableWriter(file, disk, single)
            yield writer
            writer.finish()
        disk.flush()
        disk.check()


# Reading --------------------------------------------------------------------------------------------------------------


class Table:
    """A table of a file that stays open until :meth:`close`; arrays are read when they are asked for.

    Attributes:
        about: what holds for all rows.
        rows: what is known of each, besides its arrays.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file, if it is damaged or of another kind.
    """

    def __init__(self, path: StrPath, kind: str) -> None:
        self.path, self.kind = Path(path), kind
        if not self.path.is_file():
            raise FileNotFoundError(f"no such file of {kind}: {os.fspath(path)}")
        h5py = _h5py()
        with self._damages():
            self._file = h5py.File(self.path, "r")
        try:
            with self._damages():
                self.about, self.rows = self._read_about()
                self._ends = {name: self._read_ends(name) for name in self._file if name != "rows"}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int, *columns: str) -> list[NDArray[Any]]:
        """The arrays of a row, of the columns of these names.

        Raises:
            ValueError: naming the file, if they cannot be read.
        """
        with self._damages():
            return [self._slice(row, name) for name in columns]

    def lengths(self, column: str) -> list[int]:
        """How long the array of each row is, in a column; 0 for all where there is no such column."""
        ends = self._ends.get(column)
        return [0] * len(self) if ends is None else np.diff(ends, prepend=0).tolist()

    def _slice(self, row: int, name: str) -> NDArray[Any]:
        if name not in self._ends:
            raise KeyError(f"there is no column {name}")
        ends = self._ends[name]
        found: NDArray[Any] = self._file[name]["values"][int(ends[row - 1]) if row else 0 : int(ends[row])]
        return found

    def _attribute(self, name: str) -> Any:
        """An attribute of the file; of a damaged one that says it is an endless array nothing is read."""
        told = self._file.attrs.get_id(name)
        if told.shape != () or told.dtype.itemsize > LARGEST_ATTRIBUTE:
            raise ValueError(f"its attribute {name} is no single value")
        return self._file.attrs[name]

    def _read_about(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        kind, version = str(self._attribute("steerers")), int(self._attribute("format"))
        if kind != self.kind:
            raise ValueError(f"it holds {kind[:40]!r}")
        if version != FORMAT:
            raise ValueError(f"its format is {version}, and this version of steerers reads {FORMAT}")
        about, rows = parse_json(str(self._attribute("about"))), parse_json(bytes(self._stored("rows")[()]))
        if not isinstance(about, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("what it says of its rows is no list of them")
        return about, rows

    def _read_ends(self, name: str) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = self._stored(f"{name}/ends")[()]
        values = self._stored(f"{name}/values")
        if ends.dtype != np.int64 or ends.shape != (len(self.rows),):
            raise ValueError(f"its column {name} has {ends.shape} ends for {len(self.rows)} rows")
        if len(ends) and (ends[0] < 0 or ends[-1] != len(values) or bool((np.diff(ends) < 0).any())):
            raise ValueError(f"the rows of its column {name} are not one behind the other")
        return ends

    def _stored(self, name: str) -> Any:
        """A dataset whose values are all in the file: one that leaves them out, or is packed, may be small and ask for
        any amount of memory."""
        values = self._file[name]
        if values.nbytes > values.id.get_storage_size():
            raise ValueError(f"its {name} have {values.nbytes:,} bytes, more than are there")
        return values

    @contextmanager
    def _damages(self) -> Iterator[None]:
        """Errors in the block name the file."""
        try:
            yield
        except _ERRORS as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{self.path}: not a file of {self.kind} of steerers, or damaged ({reason})") from error
