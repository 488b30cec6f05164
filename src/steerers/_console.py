"""What commands ask and show: options as data, the types of their values, exit codes, lines and progress bars.

All that the package has to say goes through the logger ``steerers``: notes (``INFO``), details (``DEBUG``) and
warnings, and through its child ``steerers.output`` what a command prints. A program that imports the package sees what
its own handlers let through; the command line shows notes and output by :func:`shown`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

from steerers._choices import PRECISIONS

BAD_INPUT, APART, INTERRUPTED = 2, 3, 130
"""Exit codes; the second is for images that do not belong together."""
STANDARD = Path("-")
"""Standard output, or input, where a file is named."""
EVERY, SOON = 60.0, 2.0  # seconds: between the plain lines of long work, and what is too short for them
T = TypeVar("T")
_LOGGER = logging.getLogger("steerers")
OUTPUT = logging.getLogger("steerers.output")
"""What commands print."""


@dataclass(frozen=True)
class Option:
    """An option or argument of a command, as argparse takes it; several ``names`` have spaces between."""

    names: str
    help: str | None = None
    type: Callable[[str], Any] | None = None
    metavar: str | None = None
    default: Any = None
    action: str | None = None
    nargs: str | None = None
    const: Any = None
    choices: Sequence[str] | None = None
    dest: str | None = None
    required: bool | None = None


Options = Sequence["Option | tuple[Option, ...]"]
"""Options of a command; those in a tuple exclude each other."""


def add_options(parser: argparse._ActionsContainer, options: Options) -> None:
    """Add options to a parser, in their order."""
    for option in options:
        if isinstance(option, Option):
            told = {name: value for name, value in vars(option).items() if value is not None}
            parser.add_argument(*told.pop("names").split(), **told)
        else:
            add_options(parser.add_mutually_exclusive_group(), option)


def flag(names: str, help: str) -> Option:
    """An option without a value."""
    return Option(names, help, action="store_true")


def one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    """The type of a value that is one of some names; ``what`` they name, for the message."""

    def check(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown {what} {text!r}; use one of {', '.join(known)}")
        return text

    return check


def precision(default: str = PRECISIONS[0]) -> Option:
    """That of networks."""
    about = f"{', '.join(PRECISIONS)}; for DeDoDe and compact, the last two on a GPU (default: %(default)s)"
    return Option("--precision", about, one_of("precision", PRECISIONS), "NAME", default)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def whole_number(text: str) -> int:
    """The number, or 0, which no option takes, for what is none."""
    try:
        return int(text)
    except ValueError:
        return 0


def four_corners(text: str) -> list[list[float]]:
    """``X,Y X,Y X,Y X,Y``: top left, top right, bottom right, bottom left."""
    try:
        corners = [[float(number) for number in pair.split(",")] for pair in text.split()]
    except ValueError:
        corners = []
    if [len(pair) for pair in corners] != [2, 2, 2, 2]:
        raise argparse.ArgumentTypeError(
            f"{text!r} are not four corners such as '12.1,47.3 12.4,47.3 12.4,47.1 12.1,47.1': top left, top right, "
            "bottom right, bottom left"
        )
    return corners


def names(text: str) -> list[str]:
    """Names with commas between."""
    found = [name.strip() for name in text.split(",")]
    if "" in found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return found


# Showing --------------------------------------------------------------------------------------------------------------


@contextmanager
def shown(level: int, output: TextIO) -> Iterator[None]:
    """While a command runs, show what is said: output on a stream, all else from ``level`` up on standard error.

    From ``logging.ERROR`` up there is neither output nor a progress bar.
    """
    handlers = ((OUTPUT, _Lines(output)), (_LOGGER, _Lines(sys.stderr)))
    before = _LOGGER.level
    _LOGGER.setLevel(level)
    OUTPUT.propagate = False
    for logger, handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handler in handlers:
            logger.removeHandler(handler)
        OUTPUT.propagate = True
        _LOGGER.setLevel(before)


class _Lines(logging.Handler):
    """Lines without ornament, even if a file name in them cannot be written in the encoding of the stream."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{'warning: ' if record.levelno == logging.WARNING else ''}{record.getMessage()}"
        try:
            print(text, file=self.stream)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=self.stream)


def tell(text: str, level: int = logging.INFO) -> None:
    """Log a line; of the processes that ``torchrun`` started, the first alone speaks."""
    if _speaks():
        _LOGGER.log(level, text)


class Bar:
    """A progress bar on standard error, if that is a terminal, for work that takes over two seconds.

    Args:
        what: is being done.
        look: what tqdm takes, such as ``total`` and ``unit``.
    """

    def __init__(self, what: str, **look: Any) -> None:
        self._bar = _bar(what, delay=SOON, **look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1, what: str | None = None) -> None:
        """So much more is done; ``what`` comes next."""
        if self._bar is not None:
            if what is not None:
                self._bar.set_description(what, refresh=False)
            self._bar.update(count)


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items behind a progress bar."""
    length = len(items) if total is None and isinstance(items, Sized) else total
    with Bar(what, total=length) as bar:
        for item in items:
            yield item
            bar.update()


class Progress:
    """How far long work is, from its first moment on.

    On a terminal it is tqdm's bar. A log gets notes instead, as does a terminal where tqdm is missing: what is
    begun, and then how it goes, after the first item and once a minute; of what is done soon, the first alone.

    Attributes:
        note: what else is to be said, such as the loss.

    Args:
        what: is done, for the start of the bar or the first line.
        total: how many items there are, of which some are ``done``.
        unit: what an item is called.
    """

    def __init__(self, what: str, total: int, unit: str, *, done: int = 0) -> None:
        self.total, self.unit, self.done, self._begun, self.note = total, unit, done, done, ""
        self._bar = _bar(what, total=total, initial=done, unit=unit)
        self._told, self._since = time.monotonic(), done  # of the last line
        if self._bar is None and total > done:
            tell(what)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        """One item more is done."""
        self.done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update()
            return
        now = time.monotonic()
        each = (now - self._told) / (self.done - self._since)  # since the last line
        left = each * (self.total - self.done)
        if now >= self._told + EVERY or (self.done == self._begun + 1 and left > SOON):
            pace = f"{duration(each)} a {self.unit}, about {duration(left)} left"
            tell(", ".join(filter(None, [f"{self.unit} {self.done:,} of {self.total:,}", pace, self.note])))
            self._told, self._since = now, self.done


def noted(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """The items of long work, behind a :class:`Progress`: a log is told how it goes, too."""
    with Progress(what, total, "part") as shown:
        for item in items:
            yield item
            shown.advance()


def duration(seconds: float) -> str:
    """A time for people: ``35 ms``, ``3.2 s``, ``40 min``, ``8 h``, ``3 days``.

    Example:
        >>> duration(0.0351), duration(3.21), duration(2400), duration(8.3 * 3600), duration(3e5)
        ('35 ms', '3.2 s', '40 min', '8 h', '3 days')
    """
    for size, unit, most in ((1e-3, "ms", 1), (1, "s", 120), (60, "min", 7200), (3600, "h", 172_800)):
        if seconds < most:
            number = seconds / size
            return f"{number:.1f} {unit}" if unit == "s" and number < 9.95 else f"{number:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _bar(what: str, **look: Any) -> Any:
    """tqdm's bar; ``None`` without it or a terminal, where it shall be quiet, and in every process but the first."""
    if not sys.stderr.isatty() or not _LOGGER.isEnabledFor(logging.WARNING) or not _speaks():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(desc=what, leave=False, file=sys.stderr, **look)


def _speaks() -> bool:
    return os.environ.get("RANK", "0") == "0"
