"""Many images one after the other: read ahead by threads, and put together with others like them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import PIL.Image

from steerers.images.load import Image, ImageError, ImageSource

S = TypeVar("S")
T = TypeVar("T")

READERS = 4
"""Threads that decode images ahead of the network."""


def read_images(
    load: Callable[[ImageSource | Image, ImageSource | None], Image],
    images: Sequence[ImageSource | Image],
    masks: Any = None,
    *,
    waiting: int,
    pinned: bool = False,
) -> Iterator[Image]:
    """The images in order, read ahead by threads.

    A Pillow image decodes itself when it is first used, which no two threads may ask of it at once. So those that come
    more than once are read one after the other.

    Args:
        load: reads an image with its mask.
        masks: a list with one, or None, for each image; or None for none at all.
        waiting: most images that are read and not yet asked for, besides one for every thread.
        pinned: put them where they go to a GPU from without waiting.

    Raises:
        ValueError: for masks that are no such list.
        ValueError, TypeError: of ``load``, with the index of the image in front.
    """
    given = list(zip(images, _check_masks(masks, len(images)), strict=True))
    counts = Counter(id(source) for pair in given for source in pair if isinstance(source, PIL.Image.Image))
    one_by_one = threading.Lock()

    def read(index: int) -> Image:
        source, mask = given[index]
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

    return read_ahead(read, range(len(given)), threads=READERS, waiting=waiting + READERS)


def _check_masks(masks: Any, count: int) -> Sequence[ImageSource | None]:
    if masks is None:
        return [None] * count
    got = type(masks).__name__
    if isinstance(masks, (list, tuple)):
        if len(masks) == count:
            return masks
        got = f"a {got} of {len(masks)}"
    raise ValueError(f"mask must be a list of {count} masks or None, one for each image, got {got}")


def read_ahead(read: Callable[[S], T], items: Iterable[S], *, threads: int, waiting: int) -> Iterator[T]:
    """``read`` of every item in order, done by threads ahead of whoever asks for the next.

    An error comes when its item's turn comes; what was not begun by then is left.

    Args:
        waiting: most items that are read, or being read, and not yet asked for.
    """
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
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for index, item in enumerate(items):
        kind = key(item)
        groups.setdefault(kind, []).append((index, item))
        if len(groups[kind]) == size:
            yield groups.pop(kind)
        elif sum(map(len, groups.values())) > waiting:
            yield groups.pop(max(groups, key=lambda kind: len(groups[kind])))
    yield from groups.values()
