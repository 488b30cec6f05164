"""Options that several commands share, and the checks on them that come before any work."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from steerers._choices import (
    DEFAULT_MODEL,
    MAX_DISTANCE,
    MAX_SIZE,
    MIN_INLIERS,
    NUM_KEYPOINTS,
    STRATEGY_NAMES,
    Cameras,
    Exif,
    Resize,
)
from steerers._console import (
    OUTPUT,
    STANDARD,
    Option,
    Options,
    add_options,
    flag,
    one_of,
    positive,
    precision,
    whole_number,
)
from steerers._files import atomic_write, write_text

if TYPE_CHECKING:
    import PIL.Image

    from steerers.collection.two_view import VerificationOptions
    from steerers.steering.representations import Order

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")


WEIGHTS = Option(
    "--weights", "weights that are not in the cache, by name; may be repeated", Path, "FILE", action="append"
)
RESIZE = Option(
    "--resize",
    "fit keeps shapes; squash makes every image a square of --max-size, the paper's 784 (default: %(default)s)",
    default="fit",
    choices=get_args(Resize),
)
DEVICE = Option("--device", "cpu, cuda, cuda:1, mps (default: %(default)s)", default="cpu")


def num_keypoints(default: int) -> Option:
    """How many keypoints an image has at most."""
    return Option("--num-keypoints", "default: %(default)s", positive, "N", default)


TALK = (
    flag("-q --quiet", "print nothing but errors, and data that is asked for with -"),
    flag("-v --verbose", "say what is read, chosen and done, and how long it takes"),
)
"""Of every command; they exclude each other."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its words and options, and what it runs, or the commands below it under a ``title``.

    ``name`` and ``help`` are for those below another; of the others :data:`steerers.cli.COMMANDS` has them.
    """

    name: str = ""
    help: str = ""
    description: str
    example: str
    options: Options = ()
    run: Callable[[argparse.Namespace], int] | None = None
    commands: Sequence[Command] = ()
    title: str = ""
    metavar: str = ""

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Give its words and options to a parser; the commands below get theirs when they are asked for."""
        parser.description, parser.epilog = self.description, f"example:\n{self.example}"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        add_options(parser, self.options)
        if self.run is not None:
            add_options(parser, (TALK,))
            parser.set_defaults(run=self.run)
            return
        below: Any = parser.add_subparsers(title=self.title, metavar=self.metavar, required=True)
        for command in self.commands:
            below.add_parser(command.name, help=command.help, fill=command.fill)


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


def size_limit(text: str) -> int | str | None:
    """A whole number of at least 1, or ``none``."""
    if text in ("none", "default"):
        return None if text == "none" else "default"
    return positive(text)


MAX_SIDE = Option(
    "--max-size", "longest side, or 'none' to keep the size (default: %(default)s)", size_limit, "PX", MAX_SIZE
)
EXIF = Option("--exif", "orientation (default: %(default)s)", default="ignore", choices=get_args(Exif))
STEERER = Option(
    "--steerer", "that `steerers fit` or `train` wrote, or a published .pth (default: the model's)", Path, "FILE"
)
MODEL = (
    Option("--model", "see `steerers models` (default: %(default)s)", default=DEFAULT_MODEL),
    Option("--detector", "detector or model whose keypoints are described (default: the model's)", metavar="NAME"),
    WEIGHTS,
)
STRATEGY = (
    Option(
        "--strategy",
        f"{', '.join(STRATEGY_NAMES)} (default: what suits the model)",
        one_of("strategy", STRATEGY_NAMES),
        "NAME",
    ),
    (
        Option("--order", "rotations that are tried, or 'continuous'", parse_order, "N", "default"),
        Option("--angles", "or these rotations, in degrees, as in --angles=-90,0,90", parse_angles, "LIST"),
    ),
    Option("--threshold", "least probability of a match (default: the model's)", float, "P"),
)
IMAGES = (
    num_keypoints(NUM_KEYPOINTS),
    Option(
        "--max-size",
        f"longest side, or 'none' to keep the size (default: {MAX_SIZE}, with --tile none)",
        size_limit,
        "PX",
        "default",
    ),
    Option("--tile", "see larger images in tiles of this side, which overlap: less memory", positive, "PX"),
    RESIZE,
    EXIF,
)
COMPUTING = (DEVICE, precision())
REFINE = flag("--refine", "register the two patches of every match: places to a small fraction of a pixel")
CONSENSUS = (
    Option("--consensus", "that `steerers fit-consensus` wrote (default: the model's)", Path, "FILE"),
    flag("--no-consensus", "keep matches whether they agree with those around them or not"),
)
"""They exclude each other."""
MATCHER: Options = (*MODEL, STEERER, *STRATEGY, CONSENSUS, *IMAGES, REFINE, *COMPUTING)
"""What :func:`steerers.load` takes."""


def matcher_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for :func:`steerers.load`, of those of :data:`MATCHER` that a command has."""
    same = (
        "detector", "steerer", "strategy", "order", "angles", "num_keypoints", "max_size", "resize", "exif", "device",
        "precision", "tile", "refine", "consensus",
    )  # fmt: skip
    options = {name: getattr(arguments, name) for name in same if hasattr(arguments, name)}
    options["weights"] = arguments.weights or ()
    if getattr(arguments, "no_consensus", False):
        options["consensus"] = False
    threshold = getattr(arguments, "threshold", None)
    return options if threshold is None else {**options, "threshold": threshold}


VERIFICATION = (
    Option(
        "--max-distance",
        "of an inlier from its epipolar line, in pixels of the shrunk image (default: %(default)s)",
        above_zero,
        "PX",
        MAX_DISTANCE,
    ),
    Option("--min-inliers", "of a pair that is verified (default: %(default)s)", positive, "N", MIN_INLIERS),
    flag("--keep-contradicted", "also use pairs whose rotations contradict their loops"),
)
"""How matched pairs are verified."""
REFINE_TRACKS = flag("--refine", "move keypoints to their exact places, by the patches of all their matches")
CAMERAS = Option(
    "--cameras",
    "that share their parameters: auto (as EXIF data say), one (all photographs of one size) or each (none; default: "
    "%(default)s)",
    default="auto",
    choices=get_args(Cameras),
)


def verification(arguments: argparse.Namespace) -> VerificationOptions:
    """What :data:`VERIFICATION` asks for."""
    from steerers.collection.two_view import VerificationOptions

    return VerificationOptions(arguments.max_distance, arguments.min_inliers)


def share(text: str) -> tuple[int, int]:
    """``2/8``: the second of eight parts of the work."""
    index, count = (whole_number(part) for part in (text.split("/") if text.count("/") == 1 else ("", "")))
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part of the work such as 2/8, the second of eight")
    return index, count


OUT = Option("folder", "the folder of a collection, as `steerers extract` made it", Path, "OUT")
SHARE = Option("--shard", "do the I-th of N parts of the work alone, as in --shard 2/8", share, "I/N")

RAY = Option(
    "--ray",
    "do the shards on a Ray cluster, by default of this machine alone (steerers[ray])",
    metavar="ADDRESS",
    nargs="?",
    const="local",
)


def check_output(path: Path | None, *, picture: bool = False) -> None:
    """Refuse an output path that could not be written, before any work is done; ``None`` where nothing is to be, and
    ``-`` is standard output.

    Raises:
        ValueError: if the folder is missing or closed, the path is a folder, or no picture can have that ending.
    """
    if path is None or path == STANDARD:
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
    """Print a line of what a command found, unless it shall be quiet."""
    OUTPUT.info(text)


def say_wrote(*paths: Path | None) -> None:
    """Say which files were written, of those that were asked for."""
    for path in paths:
        if path not in (None, STANDARD):
            say(f"wrote {path}")


def save(picture: PIL.Image.Image, path: Path) -> None:
    """Write a picture whole or not at all, or to standard output, as PNG."""
    if path == STANDARD:
        picture.save(sys.stdout.buffer, "PNG")
        return
    with atomic_write(path) as temporary:
        picture.save(temporary)


def write(path: Path, content: str) -> None:
    """Write a text file whole or not at all, or to standard output."""
    if path == STANDARD:
        sys.stdout.write(content)
    else:
        write_text(path, content)


def table(rows: Sequence[Sequence[str]], align: str = "") -> str:
    """Cells in columns as wide as they need to be, the head first; ``align`` has < or > for each (by default <)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    places = [f"{{:{side}{width}}}" for side, width in zip(align or "<" * len(widths), widths, strict=True)]
    return "\n".join("  ".join(places).format(*row).rstrip() for row in rows)
