"""Options that several commands share, and the checks on them that come before any work."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steerers._console import PRECISION, Option, Options, add_options, positive, whole_number
from steerers.matching.strategies import NAMES
from steerers.models.base import NUM_KEYPOINTS
from steerers.models.zoo import DEFAULT_MODEL
from steerers.pipeline import MAX_SIZE
from steerers.steering.representations import Order

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")


WEIGHTS = Option(
    "--weights", "weights that are not in the cache, by name; may be repeated", Path, "FILE", action="append"
)
RESIZE = Option(
    "--resize",
    "fit keeps shapes; squash makes every image a square of --max-size, the paper's 784 (default: %(default)s)",
    default="fit",
    choices=("fit", "squash"),
)
DEVICE = Option("--device", "cpu, cuda, cuda:1, mps (default: %(default)s)", default="cpu")


def num_keypoints(default: int) -> Option:
    """How many keypoints an image has at most."""
    return Option("--num-keypoints", "default: %(default)s", positive, "N", default)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its words and options, and what it runs, or the commands below it under a ``title``."""

    name: str
    help: str
    description: str
    example: str
    options: Options = ()
    run: Callable[[argparse.Namespace], int] | None = None
    commands: Sequence[Command] = ()
    title: str = ""
    metavar: str = ""

    def add_to(self, parsers: Any) -> None:
        """Add it to the commands of a parser."""
        parser: argparse.ArgumentParser = parsers.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=f"example:\n{self.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(parser, self.options)
        if self.run is not None:
            parser.set_defaults(run=self.run)
            return
        below = parser.add_subparsers(title=self.title, metavar=self.metavar, required=True)
        for command in self.commands:
            command.add_to(below)


def parse_order(text: str) -> Order:
    """A whole number of at least 2, or ``continuous``."""
    if text in ("continuous", "default"):
        return None if text == "continuous" else "default"
    order = whole_number(text)
    if order < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number of at least 2 nor 'continuous'")
    return order


def number(text: str, allowed: Callable[[float], bool], what: str) -> float:
    """A number that is ``allowed``; ``what`` that is, for the message."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def parse_angles(text: str) -> list[float]:
    """``0,90,180``: degrees."""
    return [number(part, math.isfinite, "an angle in degrees") for part in text.split(",")]


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    return number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def above_zero(text: str, what: str = "a number above 0") -> float:
    """A finite number above 0."""
    return number(text, lambda value: 0 < value < math.inf, what)


def parse_size(text: str) -> tuple[int, int]:
    """``640x480``: width and height."""
    width, _, height = text.partition("x")
    try:
        return positive(width), positive(height)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width and height such as 640x480") from None


def size_limit(text: str) -> int | None:
    """A whole number of at least 1, or ``none``."""
    return None if text == "none" else positive(text)


MAX_SIDE = Option(
    "--max-size", "longest side, or 'none' to keep the size (default: %(default)s)", size_limit, "PX", MAX_SIZE
)
EXIF = Option("--exif", "orientation (default: %(default)s)", default="ignore", choices=("ignore", "apply"))
MATCHER = (
    Option("--model", "see `steerers models` (default: %(default)s)", default=DEFAULT_MODEL),
    Option("--detector", "detector or model whose keypoints are described (default: the model's)", metavar="NAME"),
    Option(
        "--steerer", "that `steerers fit` or `train` wrote, or a published .pth (default: the model's)", Path, "FILE"
    ),
    WEIGHTS,
    Option("--strategy", f"{', '.join(NAMES)} (default: what suits the model)"),
    (
        Option("--order", "rotations that are tried, or 'continuous'", parse_order, "N", "default"),
        Option("--angles", "or these rotations, in degrees, as in --angles=-90,0,90", parse_angles, "LIST"),
    ),
    num_keypoints(NUM_KEYPOINTS),
    MAX_SIDE,
    RESIZE,
    Option("--threshold", "least probability of a match (default: the model's)", float, "P"),
    EXIF,
    DEVICE,
    PRECISION,
)
"""What :func:`steerers.load` takes."""


def matcher_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for :func:`steerers.load`, of those of :data:`MATCHER` that a command has."""
    same = (
        "detector", "steerer", "strategy", "order", "angles", "num_keypoints", "max_size", "resize", "exif", "device",
        "precision",
    )  # fmt: skip
    options = {name: getattr(arguments, name) for name in same if hasattr(arguments, name)}
    options["weights"] = arguments.weights or ()
    threshold = getattr(arguments, "threshold", None)
    return options if threshold is None else {**options, "threshold": threshold}


def check_output(path: Path | None, *, picture: bool = False) -> None:
    """Refuse an output path that could not be written, before any work is done; ``None`` where nothing is to be.

    Raises:
        ValueError: if the folder is missing or closed, the path is a folder, or no picture can have that ending.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if picture and path.suffix.lower() not in PICTURES:
        ending = f"the ending {path.suffix!r}" if path.suffix else "a name without ending"
        raise ValueError(f"cannot write {path}: {ending} is no picture; use .png or .jpg")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def check_distinct(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that would overwrite one another or an input.

    Raises:
        ValueError: naming the file.
    """
    taken = {os.path.realpath(path) for path in inputs if path is not None}
    for path in outputs:
        if path is not None and os.path.realpath(path) in taken:
            raise ValueError(f"cannot write {path}: it is an input, or another output")
        if path is not None:
            taken.add(os.path.realpath(path))


def say(text: str) -> None:
    """Print a line, even if a file name in it cannot be written in the encoding of standard output."""
    try:
        print(text)
    except UnicodeEncodeError:
        print(text.encode("ascii", "backslashreplace").decode())


def table(rows: Sequence[Sequence[str]], align: str = "") -> str:
    """Cells in columns as wide as they need to be, the head first; ``align`` has < or > for each (by default <)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    places = [f"{{:{side}{width}}}" for side, width in zip(align or "<" * len(widths), widths, strict=True)]
    return "\n".join("  ".join(places).format(*row).rstrip() for row in rows)
