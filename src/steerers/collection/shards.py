"""Numbered HDF5 files of a folder, its shards, and the plan that says what each of them holds.

The plan is a text file, one line an item: the number of its shard, and its name or names, with tabs between. It is
made of what is to be done alone, so that all who share the work make the same one. A shard is there, whole, or not; its
writer holds a lock in the meantime, and what a writer that was killed left behind is overwritten by the next.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from steerers._files import write_text
from steerers._tables import Table, TableWriter, write_table

Key = tuple[str, ...]
"""The name of a photograph, or the names of two."""
LOCKS = ".locks"
_MOST_EMPTY = 1_000_000  # shards of which nothing is left, before one of which there is
OPEN = 32
"""Most shards of a kind that are open at once."""


class BusyError(ValueError):
    """A shard that another process is writing."""


@dataclass(eq=False)
class Shards:
    """The shards of one kind.

    Attributes:
        folder: where they are.
        kind: what they hold, see :class:`~steerers._tables.Table`.
        plan_path: the file of the plan.
        width: how many names an item has.
        key: the names of an item, of what is known of its row.
        facts: what the files must say of how they were made; by default they may say anything.
    """

    folder: Path
    kind: str
    plan_path: Path
    width: int
    key: Callable[[Mapping[str, Any]], Key]
    facts: Callable[[], Mapping[str, Any]] | None = None
    _plan: list[list[Key]] | None = None
    _where: dict[Key, int] | None = None
    _open: OrderedDict[int, tuple[Table, dict[Key, int]]] = field(default_factory=OrderedDict)
    _reading: threading.RLock = field(default_factory=threading.RLock)

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self) -> list[list[Key]]:
        """What each shard holds, or will."""
        if self._plan is None:
            self._plan = self._read_plan()
        return self._plan

    def set_plan(self, plan: Sequence[Sequence[Key]]) -> None:
        """Write the plan; one that is there already stays as it is."""
        rows = ((f"{number:04d}", *key) for number, shard in enumerate(plan) for key in shard)
        content = "".join("\t".join(row) + "\n" for row in rows)
        if not self.plan_path.is_file() or self.plan_path.read_text(encoding="utf-8") != content:
            self.plan_path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.plan_path, content)
        self._plan = self._where = None

    def divide(self, items: Iterable[Key], size: int, kept: set[int]) -> None:
        """Plan shards of a size for some items; those of the numbers in ``kept`` stay as they are planned."""
        new = iter(cut(items, size))
        there = [shard if number in kept else next(new, []) for number, shard in enumerate(self.plan())]
        self.set_plan([*there, *new])

    def extend(
        self, items: Sequence[Key], size: int, about: Mapping[str, Any], check: Callable[[Table], Any]
    ) -> list[list[Key]]:
        """Plan shards for some items, and for nothing else: those that are there stay if they were made in the same way
        and all of what they hold is still asked for; the others are removed, and the rest is divided anew.

        Args:
            about: how shards are made, see :meth:`write`.
            check: what raises a ValueError where one is damaged.
        """
        asked = set(items)
        kept = {number for number, shard in enumerate(self.plan()) if self._stays(number, shard, asked, about, check)}
        for number in range(len(self.plan())):
            if number not in kept:
                self._close(number)
                self.path(number).unlink(missing_ok=True)
        known = {key for number in kept for key in self.plan()[number]}
        self.divide([key for key in items if key not in known], size, kept)
        return self.plan()

    def _stays(
        self, number: int, shard: list[Key], asked: set[Key], about: Mapping[str, Any], check: Callable[[Table], Any]
    ) -> bool:
        if not self.done(number) or not asked.issuperset(shard):
            return False
        try:
            table = self.table(number)
            check(table)
        except ValueError:
            return False
        return bool(table.about == about)

    def shard_of(self, key: Key) -> int | None:
        """The shard in which the plan has an item."""
        if self._where is None:
            self._where = {item: number for number, shard in enumerate(self.plan()) for item in shard}
        return self._where.get(key)

    def _read_plan(self) -> list[list[Key]]:
        if not self.plan_path.is_file():
            return []
        plan: list[list[Key]] = []
        for line, parts in read_lines(self.plan_path, self.width + 1):
            number = int(parts[0]) if parts[0].isdecimal() else -1
            if not max(0, len(plan) - 1) <= number < len(plan) + _MOST_EMPTY:
                raise ValueError(f"{self.plan_path}, line {line}: damaged, its shard is {parts[0]!r:.20}")
            plan += [[] for _ in range(number + 1 - len(plan))]
            plan[number].append(tuple(map(sys.intern, parts[1:])))
        return plan

    # Files ------------------------------------------------------------------------------------------------------------

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"{number:04d}.h5"

    def done(self, number: int) -> bool:
        """Whether a shard is there."""
        return self.path(number).is_file()

    @contextmanager
    def write(self, number: int, about: Mapping[str, Any]) -> Iterator[TableWriter]:
        """Write a shard, whole or not at all, as its only writer.

        Raises:
            BusyError: if another process is writing it.
            OSError: naming the file, if it cannot be written.
        """
        locks = self.folder.parent / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        lock, path = FileLock(locks / f"{self.folder.name}-{number:04d}.lock"), self.path(number)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BusyError(f"{path} is being written by another process") from None
        try:
            with write_table(path, self.kind, about, temporary=f".{path.name}") as table:
                yield table
            self._close(number)
        finally:
            lock.release()

    def table(self, number: int) -> Table:
        """A shard, open; it stays so until many others were asked for."""
        return self._opened(number)[0]

    def find(self, key: Key) -> tuple[Table, int]:
        """The shard and the row of an item.

        Raises:
            KeyError: if there is none.
        """
        number = self.shard_of(key)
        if number is None or not self.done(number):
            raise KeyError(key)
        table, rows = self._opened(number)
        return table, rows[key]

    def row(self, key: Key) -> dict[str, Any]:
        """What is known of an item, besides its arrays; errors as of :meth:`read`."""
        with self._reading:
            table, row = self.find(key)
            return table.rows[row]

    def read(self, key: Key, *columns: str) -> list[NDArray[Any]]:
        """Its arrays, of some columns; safe in threads.

        Raises:
            KeyError: if there is no such item.
            ValueError: naming the file, if it is damaged.
        """
        with self._reading:
            table, row = self.find(key)
            return table.read(row, *columns)

    def _opened(self, number: int) -> tuple[Table, dict[Key, int]]:
        with self._reading:
            if number not in self._open:
                table = Table(self.path(number), self.kind)
                try:
                    self._check(table)
                    rows = {self.key(row): index for index, row in enumerate(table.rows)}
                except (KeyError, TypeError) as error:
                    table.close()
                    raise ValueError(f"{table.path}: damaged, a row lacks {error}") from error
                self._open[number] = table, rows
                while len(self._open) > OPEN:
                    self._open.popitem(last=False)[1][0].close()
            self._open.move_to_end(number)
            return self._open[number]

    def _check(self, table: Table) -> None:
        """Refuse a file of another collection, model or way of matching."""
        for name, expected in (self.facts() if self.facts is not None else {}).items():
            if table.about.get(name) != expected:
                table.close()
                raise ValueError(f"{table.path}: made with another {name} than the manifest of this collection says")

    def _close(self, number: int) -> None:
        with self._reading:
            if number in self._open:
                self._open.pop(number)[0].close()

    def close(self) -> None:
        """Close the files that are open."""
        for number in list(self._open):
            self._close(number)


# Text -----------------------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """Refuse a name that could not stand in a line of a text file.

    Raises:
        ValueError: saying so.
    """
    if any(letter in name for letter in "\t\n\r"):
        raise ValueError(f"the name {name!r} holds a tab or a line break: rename the photograph")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!r} is not valid UTF-8: rename the photograph") from None
    return name


def read_lines(path: Path, width: int) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text file, counted from 1, split at tabs into ``width`` parts.

    Raises:
        ValueError: naming the file and the line, where there are more or less.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                parts = line.rstrip("\r\n").split("\t")
                if len(parts) != width or not all(parts):
                    raise ValueError(f"line {number}: {line.rstrip()!r:.80} is not {width} texts with tabs between")
                yield number, parts
    except ValueError as error:  # also bytes that are no UTF-8
        raise ValueError(f"{path}, {error}" if str(error).startswith("line") else f"{path}: {error}") from error


def cut(items: Iterable[Key], size: int) -> list[list[Key]]:
    """Items in shards of a size, the last one smaller."""
    listed = list(items)
    return [listed[start : start + size] for start in range(0, len(listed), size)]
