"""What commands ask and show: options as data, the types of their values, exit codes, lines and progress bars.

All that the package has to say goes through the logger ``steerers``: notes (``INFO``), details (``DEBUG``) and
warnings, and through its child ``steerers.output`` what a command prints. A program that imports the package sees what
its own handlers let through; the command line shows notes and output by :func:`shown`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

from steerers._choices import PRECISIONS

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes."""
STANDARD = Path("-")
"""Standard output, or input, where a file is named."""
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


class Bar:
    """A progress bar of tqdm on standard error, if that is a terminal, which appears after two seconds; without tqdm,
    or where it shall be quiet, there is none.

    Args:
        what: is being done.
        look: what tqdm takes, such as ``total`` and ``unit``.
    """

    def __init__(self, what: str, **look: Any) -> None:
        self._bar: Any = None
        with suppress(ImportError):
            from tqdm import tqdm

            hidden = None if _LOGGER.isEnabledFor(logging.WARNING) else True  # None: unless it is a terminal
            self._bar = tqdm(desc=what, delay=2, leave=False, file=sys.stderr, disable=hidden, **look)

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
