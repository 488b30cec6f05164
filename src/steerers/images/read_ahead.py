"""Many images one after the other: read ahead by threads, and put together with others like them."""

from __future__ import annotations

import operator
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import PIL.Image

from steerers.images.load import Image, ImageError, ImageSource

S = TypeVar("S")
T = TypeVar("T")
Given = tuple[ImageSource | Image, ImageSource | None]  # an image and its mask

READERS = 4
"""Threads that decode images ahead of the network."""


def read_images(
    load: Callable[[ImageSource | Image, ImageSource | None], Image],
    given: Sequence[Given],
    *,
    waiting: int,
    pinned: bool = False,
) -> Iterator[Image]:
    """The images in order, read ahead by threads.

    A Pillow image decodes itself when it is first used, which no two threads may ask of it at once. So those that come
    more than once are read one after the other.

    Args:
        load: reads an image with its mask.
        waiting: most images that are read and not yet asked for, besides one for every thread.
        pinned: put them where they go to a GPU from without waiting.

    Raises:
        ValueError, TypeError: of ``load``, with the index of the image in front.
    """
    counts = Counter(id(source) for pair in given for source in pair if isinstance(source, PIL.Image.Image))
    one_by_one = threading.Lock()

    def read(numbered: tuple[int, Given]) -> Image:
        index, (source, mask) = numbered
        shared = counts[id(source)] > 1 or counts[id(mask)] > 1
        try:
            with one_by_one if shared else nullcontext():
                image = load(source, mask)
        except (ValueError, TypeError) as error:
            kind = next(kind for kind in (ImageError, ValueError, TypeError) if isinstance(error, kind))
            raise kind(f"image {index} of {len(given)}, counted from 0: {error}") from error
        if pinned and image.tensor.device.type == "cpu":
            return replace(image, tensor=image.tensor.pin_memory())
        return image

    return read_ahead(read, enumerate(given), threads=READERS, waiting=waiting + READERS)


def check_masks(masks: object, count: int) -> Sequence[ImageSource | None]:
    """The masks of ``count`` images, None for none; refused if it is not a list with one for each."""
    if masks is None:
        return [None] * count
    kind = type(masks).__name__
    if not isinstance(masks, (list, tuple)):
        raise ValueError(f"mask must be a list of {count} masks or None, one for each image, got {kind}")
    if len(masks) != count:
        got = f"a {kind} of {len(masks)}"
        raise ValueError(f"mask must be a list of {count} masks or None, one for each image, got {got}")
    return masks


def check_batch(batch: object) -> int:
    """A whole number of at least 1."""
    try:
        size = operator.index(batch)  # type: ignore[arg-type]
    except TypeError:
        size = 0
    if size < 1:
        raise ValueError(f"batch must be a whole number of at least 1, got {batch!r}")
    return size


def read_ahead(read: Callable[[S], T], items: Iterable[S], *, threads: int, waiting: int) -> Iterator[T]:
    """``read`` of every item in order, done by threads ahead of whoever asks for the next.

    An error comes when its item's turn comes; what was not begun by then is left.

    Args:
        waiting: most items that are read, or being read, and not yet asked for.
    """
    if threads < 1 or waiting < 1:
        raise ValueError(f"threads and waiting must be at least 1, got {threads} and {waiting}")
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(read, item))
                if len(pending) >= waiting:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def put_together(
    items: Iterable[T], key: Callable[[T], Hashable], *, size: int, waiting: int
) -> Iterator[list[tuple[int, T]]]:
    """Items with the same key, at most ``size`` at once, each with its index among all.

    Args:
        waiting: most items that wait for others like them; beyond that, those that are most go incomplete.
    """
    if size < 1 or waiting < 1:
        raise ValueError(f"size and waiting must be at least 1, got {size} and {waiting}")
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for index, item in enumerate(items):
        kind = key(item)
        groups.setdefault(kind, []).append((index, item))
        if len(groups[kind]) == size:
            yield groups.pop(kind)
        elif sum(map(len, groups.values())) > waiting:
            yield groups.pop(max(groups, key=lambda kind: len(groups[kind])))
    yield from groups.values()
