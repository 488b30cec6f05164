"""What a check of training data finds, and how it looks at files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from steerers.images.load import ImageError, ImageSource, Size, load_image
from steerers.viz.progress import progress

T = TypeVar("T")
R = TypeVar("R")


class Problem(NamedTuple):
    """One thing that is wrong."""

    scene: str  # "" where data has no scenes
    kind: str
    what: str


@dataclass
class Report:
    """What was looked at, and what is wrong with it."""

    layout: str
    counts: dict[str, int]
    problems: list[Problem]
    notes: list[str] = field(default_factory=list)


def image_problem(source: ImageSource) -> tuple[Size | None, tuple[str, str] | None]:
    """The size of an image if it decodes, and what is wrong with it: kind, and what follows its path."""
    try:
        return load_image(source, max_size=256).stored_size, None  # a JPEG is read to its end at any size
    except FileNotFoundError:
        return None, ("missing image", "")
    except (ImageError, OSError) as error:
        return None, ("image that cannot be decoded", f": {reason_of(error, source)}")


def reason_of(error: Exception, source: object) -> str:
    """What an error says after the path it names."""
    message = " ".join(str(error).split())
    for name in (str(source), "(a Pillow image)"):
        message = message.rpartition(f"{name}: ")[2]
    return message


def in_threads(function: Callable[[T], R], items: Sequence[T], what: str) -> Iterator[R]:
    """``function`` of every item, in their order, several at a time; what is not begun is dropped on Ctrl-C."""
    pool = ThreadPoolExecutor()
    try:
        yield from progress(pool.map(function, items), what, total=len(items))
    finally:
        pool.shutdown(cancel_futures=True)


def few(names: Sequence[str], count: int = 5) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
