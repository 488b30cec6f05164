"""Types of command-line arguments, for commands and for the benchmarks that bring options of their own."""

from __future__ import annotations

import argparse

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes."""


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
