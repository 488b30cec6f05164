"""Which shards are to be done by whom, and a loop over them that any process may leave and any other take up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from steerers._console import Progress, tell
from steerers.collection.shards import BusyError


@dataclass(frozen=True)
class Share:
    """The ``index``-th, counted from 1, of ``count`` equal parts of the work, as ``--shard 2/8`` says it."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"a share must be I/N with I from 1 to N, got {self.index}/{self.count}")

    def of(self, numbers: Iterable[int]) -> list[int]:
        """Those of some numbers of shards that are its own: whoever asks, and whatever is done, the same."""
        return [number for number in numbers if number % self.count == self.index - 1]


class Worker(Protocol):
    """Does shards."""

    def __call__(self, number: int, advance: Callable[[], None]) -> None:
        """Do a shard, and call ``advance`` for every item of it."""


def do_shards(
    work: Worker,
    numbers: Sequence[int],
    sizes: Sequence[int],
    is_done: Callable[[int], bool],
    *,
    what: str,
    unit: str,
    done: int,
) -> None:
    """Do shards one after the other, with progress; what other processes write, or have written since, is theirs.

    Args:
        numbers: of the shards that are left.
        sizes: how many items each of all shards has.
        is_done: whether a shard is there by now.
        what: is done, for the progress; ``unit`` is what an item is called, and ``done`` of them are.
    """
    busy = 0
    total = done + sum(sizes[number] for number in numbers)
    with Progress(what, total, unit, done=done) as progress:
        for number in numbers:
            if is_done(number):
                continue
            try:
                work(number, progress.advance)
            except BusyError:
                busy += 1
    tell_busy(busy)


def tell_busy(count: int) -> None:
    """Tell of shards that were left to other processes, if there are any."""
    if count:
        tell(f"{count} shards are being written by other processes, and were left to them")
