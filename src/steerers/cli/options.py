"""Options that several commands share, and the checks on them that come before any work."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from steerers import _arguments
from steerers.matching.strategies import NAMES
from steerers.models.base import NUM_KEYPOINTS
from steerers.pipeline import MAX_SIZE
from steerers.steering.representations import Order

positive, names = _arguments.positive, _arguments.names
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")


def add_matcher_options(parser: argparse.ArgumentParser) -> None:
    """What :func:`steerers.load` takes."""
    from steerers.models.zoo import DEFAULT_MODEL

    parser.add_argument("--model", default=DEFAULT_MODEL, help="see `steerers models` (default: %(default)s)")
    parser.add_argument(
        "--detector", metavar="NAME", help="detector or model whose keypoints are described (default: the model's)"
    )
    parser.add_argument(
        "--steerer", type=Path, metavar="FILE", help="a steerer that `steerers fit` wrote (default: the model's)"
    )
    add_weights_option(parser)
    parser.add_argument("--strategy", help=f"{', '.join(NAMES)} (default: what suits the model)")
    parser.add_argument(
        "--order", type=parse_order, default="default", metavar="N", help="rotations that are tried, or 'continuous'"
    )
    parser.add_argument(
        "--num-keypoints", type=positive, default=NUM_KEYPOINTS, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--max-size",
        type=size_limit,
        default=MAX_SIZE,
        metavar="PX",
        help="longest side, or 'none' to keep the size (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, metavar="P", help="least probability of a match (default: the model's)"
    )
    parser.add_argument(
        "--exif", choices=("ignore", "apply"), default="ignore", help="orientation (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    parser.add_argument(
        "--precision",
        default="float32",
        help="float32, or bfloat16 or float16 for DeDoDe and compact (default: %(default)s)",
    )


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """Weights by hand."""
    parser.add_argument(
        "--weights",
        type=Path,
        action="append",
        metavar="FILE",
        help="weights that are not in the cache, by name; may be repeated",
    )


def matcher_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for :func:`steerers.load`."""
    names = ("detector", "steerer", "strategy", "order", "num_keypoints", "max_size", "exif", "device", "precision")
    options = {name: getattr(arguments, name) for name in names} | {"weights": arguments.weights or ()}
    return options if arguments.threshold is None else {**options, "threshold": arguments.threshold}


def parse_order(text: str) -> Order:
    """A whole number of at least 2, or ``continuous``."""
    if text in ("continuous", "default"):
        return None if text == "continuous" else "default"
    order = _arguments.whole_number(text)
    if order < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number of at least 2 nor 'continuous'")
    return order


def above_zero(what: str) -> Callable[[str], float]:
    """The type of an option that takes a finite number above 0; ``what`` that is, for the message."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


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
    if picture:
        _check_picture_name(path)
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _check_picture_name(path: Path) -> None:
    if path.suffix.lower() not in PICTURES:
        ending = f"the ending {path.suffix!r}" if path.suffix else "a name without ending"
        raise ValueError(f"cannot write {path}: {ending} is no picture; use .png or .jpg")


def check_distinct(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that would overwrite one another or an input.

    Raises:
        ValueError: naming the file.
    """
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is not None and path.resolve() in taken:
            raise ValueError(f"cannot write {path}: it is an input, or another output")
        if path is not None:
            taken.add(path.resolve())


def say(text: str) -> None:
    """Print a line, even if a file name in it cannot be written in the encoding of standard output."""
    try:
        print(text)
    except UnicodeEncodeError:
        print(text.encode("ascii", "backslashreplace").decode())
