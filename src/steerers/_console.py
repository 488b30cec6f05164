"""What commands ask and show: options as data, the types of their values, exit codes and progress bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes."""
T = TypeVar("T")


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


PRECISION = Option(
    "--precision", "float32, or bfloat16 or float16 for DeDoDe and compact (default: %(default)s)", default="float32"
)


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


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items behind a progress bar that appears after two seconds, or without one where tqdm is missing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    shown: Iterable[T] = tqdm(items, desc=what, total=total, delay=2, leave=False, file=sys.stderr, disable=None)
    return shown
