"""Reading ahead and putting together, and what is read: images."""

from __future__ import annotations

import threading
import time
from collections import Counter

import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steerers.images.load import Image, ImageError
from steerers.images.read_ahead import put_together, read_ahead, read_images


@given(st.lists(st.integers()), st.integers(1, 4), st.integers(1, 6))
def test_everything_in_order(items: list[int], threads: int, waiting: int) -> None:
    def read(item: int) -> int:
        time.sleep(1e-4 * (item % 3))
        return 2 * item

    assert list(read_ahead(read, items, threads=threads, waiting=waiting)) == [2 * item for item in items]


def test_no_further_ahead_than_said() -> None:
    begun: Counter[int] = Counter()
    reading = read_ahead(lambda item: begun.update([item]) or item, range(100), threads=2, waiting=5)
    assert next(reading) == 0
    time.sleep(0.05)
    assert sum(begun.values()) <= 5
    reading.close()  # type: ignore[attr-defined]
    assert sum(begun.values()) <= 5


def test_threads_read_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)
    assert list(read_ahead(lambda item: together.wait() >= 0, range(6), threads=3, waiting=3)) == [True] * 6


def test_an_error_comes_in_its_rotation_and_ends_it() -> None:
    def read(item: int) -> int:
        if item == 3:
            raise ValueError("item 3 is broken")
        return item

    reading = read_ahead(read, range(100), threads=2, waiting=4)
    assert [next(reading) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3 is broken"):
        next(reading)


@given(st.lists(st.sampled_from("abc")), st.integers(1, 4), st.integers(1, 6))
def test_groups_are_of_one_kind_and_hold_everything_once(items: list[str], size: int, waiting: int) -> None:
    seen: list[int] = []
    taken = 0

    def taking() -> object:
        nonlocal taken
        for item in items:
            taken += 1
            yield item

    for group in put_together(taking(), lambda item: item, size=size, waiting=waiting):  # type: ignore[arg-type]
        assert 1 <= len(group) <= size
        assert len({item for _, item in group}) == 1
        assert all(items[place] == item for place, item in group)
        assert taken - len(seen) <= waiting + 1 or taken == len(items)
        seen += [place for place, _ in group]
    assert sorted(seen) == list(range(len(items)))


def test_alternating_kinds_still_make_whole_groups() -> None:
    groups = list(put_together("abababab", lambda item: item, size=4, waiting=16))
    assert [len(group) for group in groups] == [4, 4]


# Images ---------------------------------------------------------------------------------------------------------------


def grey(level: int = 0, *, device: str = "cpu") -> Image:
    return Image(torch.full((3, 4, 5), level / 255, device=device), torch.eye(3), (5, 4), None, "")


def pictures(count: int) -> list[PIL.Image.Image]:
    return [PIL.Image.new("L", (5, 4), level) for level in range(count)]


def test_images_are_read_at_once_but_not_the_same_picture() -> None:
    together, reading, most = threading.Barrier(3, timeout=10), Counter[int](), Counter[int]()
    lock = threading.Lock()

    def load(source: object, mask: object) -> Image:
        for used in (source, mask):
            with lock:
                reading[id(used)] += 1
                most[id(used)] = max(most[id(used)], reading[id(used)])
        if id(source) in map(id, alone):
            together.wait()  # until three are read at once
        time.sleep(2e-3)
        with lock:
            reading.subtract([id(source), id(mask)])
        return grey()

    alone, (twice, mask) = pictures(3), pictures(2)
    list(read_images(load, alone, waiting=4))
    images, masks = [twice, twice, grey(), grey(), mask, twice], [None, None, mask, mask, twice, mask]
    assert len(list(read_images(load, images, masks, waiting=4))) == 6
    assert most[id(twice)] == most[id(mask)] == 1


def test_errors_have_the_place_of_their_image() -> None:
    class OddError(ValueError):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(f"{first} and {second}")

    def load(source: object, mask: object) -> Image:
        if isinstance(source, Exception):
            raise source
        return grey()

    for error, kind in (
        (ImageError("broken"), ImageError),
        (TypeError("no image"), TypeError),
        (OddError(1, 2), ValueError),
    ):
        with pytest.raises(kind, match=rf"^image 1 of 2, counted from 0: {error}$") as caught:
            list(read_images(load, [grey(), error], waiting=1))  # type: ignore[list-item]
        assert caught.value.__cause__ is error
    with pytest.raises(FileNotFoundError, match=r"^no such image$"):  # which has its name
        list(read_images(load, [FileNotFoundError("no such image")], waiting=1))  # type: ignore[list-item]


def test_only_what_is_on_the_cpu_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.device] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    images = [grey(1), grey(2, device="meta")]  # which stands for a GPU
    read = list(read_images(lambda source, mask: source, images, waiting=2, pinned=True))  # type: ignore[arg-type, return-value]
    assert [image.tensor.device.type for image in read] == ["cpu", "meta"]
    assert pinned == [torch.device("cpu")]


def test_masks_are_one_for_each_image() -> None:
    mask = pictures(1)[0]
    seen: list[object] = []
    load = lambda source, mask: seen.append(mask) or source  # noqa: E731
    for masks in (None, (mask, None)):
        list(read_images(load, [grey(), grey()], masks, waiting=1))  # type: ignore[arg-type]
    assert Counter(map(id, seen)) == Counter(map(id, [None, None, mask, None]))
    for wrong, got in ((mask, "Image"), ([mask] * 3, "a list of 3"), ((mask,), "a tuple of 1")):
        with pytest.raises(
            ValueError, match=rf"mask must be a list of 2 masks or None, one for each image, got {got}$"
        ):
            read_images(load, [grey(), grey()], wrong, waiting=1)  # type: ignore[arg-type]
