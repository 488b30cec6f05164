"""Photographs found, decoded and kept."""

from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steerers._console import Progress
from steerers.datasets.photos import DamagedTarError, Photo, PhotoStore, find_images, find_photos, held_out, spread

SIZES = {"a.png": (40, 30), "b.png": (25, 50), "deep/c.PNG": (64, 64)}


def pixels(name: str) -> np.ndarray:
    width, height = SIZES[name]
    return np.random.default_rng(len(name)).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three photographs, one below another folder, and a file that is none."""
    root = tmp_path / "photographs"
    (root / "deep").mkdir(parents=True)
    for name in SIZES:
        PIL.Image.fromarray(pixels(name)).save(root / name)
    (root / "notes.txt").write_text("no image")
    return root


@pytest.fixture
def tar(folder: Path) -> Path:
    """The same as a tar."""
    path = folder.parent / "photographs.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=".")
    return path


def add(path: Path, name: str, data: bytes) -> None:
    """Add a member to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    with tarfile.open(path, "a") as archive:
        archive.addfile(member, io.BytesIO(data))


def assert_same(one: PhotoStore, other: PhotoStore) -> None:
    assert one.sizes == other.sizes
    assert one.names == other.names
    assert torch.equal(one.pixels, other.pixels)


# Finding --------------------------------------------------------------------------------------------------------------


def test_images_are_found_below_a_folder(folder: Path) -> None:
    assert [path.relative_to(folder).as_posix() for path in find_images(folder)] == list(SIZES)
    assert [photo.name for photo in find_photos(folder)] == ["a.png", "b.png", "c.PNG"]
    with pytest.raises(ValueError, match="no such folder of images"):
        find_images(folder / "missing")
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images in .*empty; known endings"):
        find_images(folder / "empty")


@given(st.integers(1, 300), st.integers(1, 300))
def test_some_of_many_photographs_are_spread_over_them(count: int, wanted: int) -> None:
    found = spread(range(count), wanted)
    assert len(found) == min(count, wanted)
    assert found == sorted(set(found))
    gaps = np.diff([*found, count])
    assert gaps.max() - gaps.min() <= 1
    assert spread(range(count), None) == list(range(count))


def test_images_are_found_in_tars_and_in_several_places(folder: Path, tar: Path) -> None:
    found = find_photos(tar)
    assert [photo.name for photo in found] == ["a.png", "b.png", "c.PNG"]
    assert all(photo.path == tar for photo in found)
    assert find_photos([str(tar), folder]) == found + find_photos(folder)
    with pytest.raises(ValueError, match=r"no such folder or tar of images: missing.tar"):
        find_photos("missing.tar")
    with pytest.raises(ValueError, match=r"no such folder or tar of images: .*notes.txt"):
        find_photos(folder / "notes.txt")


def test_a_tar_holds_the_photographs_that_its_folder_does(folder: Path, tar: Path) -> None:
    for name, inside, outside in zip(SIZES, find_photos(tar), find_photos(folder), strict=True):
        loaded = inside.load(None)
        assert torch.equal(loaded, outside.load(None))
        assert torch.equal(loaded, torch.from_numpy(pixels(name)).permute(2, 0, 1))
        assert loaded.dtype == torch.uint8
        assert loaded.is_contiguous()


@pytest.mark.usefixtures("strict_pillow")
def test_large_photographs_are_read_from_tars_too(tar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = found = find_photos(tar)
    assert [tuple(photo.load(None).shape[:0:-1]) for photo in found] == list(SIZES.values())
    monkeypatch.setattr("steerers.images.decode.MAX_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"photographs\.tar, member \./a\.png is 40 x 30 = 0 megapixels, more than"):
        first.load(None)


def test_a_tar_with_a_member_of_less_than_nothing_is_damaged(folder: Path, tar: Path) -> None:
    """Python of before 2025 goes back in the file by as much, for ever."""
    content = bytearray(tar.read_bytes())
    start = next(n for n in range(0, len(content), 512) if content[n : n + 7] == b"./a.png")
    content[start + 124 : start + 136] = (-512).to_bytes(12, "big", signed=True)
    content[start + 148 : start + 156] = b" " * 8
    content[start + 148 : start + 156] = f"{sum(content[start : start + 512]):06o}\0 ".encode()
    tar.write_bytes(content)
    with pytest.raises(DamagedTarError, match="not a tar, or compressed, or damaged"):
        find_photos(tar)


def test_a_tar_that_cannot_be_used_is_named(folder: Path, tar: Path) -> None:
    empty = folder.parent / "empty.tar"
    tarfile.open(empty, "w").close()
    with pytest.raises(ValueError, match=r"no images in .*empty.tar; known endings"):
        find_photos(empty)
    packed = folder.parent / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder / "a.png")
    with pytest.raises(ValueError, match=r"packed.tar.gz: not a tar, or compressed, or damaged"):
        find_photos(packed)
    tar.write_bytes(tar.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"photographs.tar: not a tar, or compressed, or damaged"):
        find_photos(tar)


# Broken photographs ---------------------------------------------------------------------------------------------------


def whole_and_half(name: str) -> dict[str, bytes]:
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels(name)).save(stream, "png")
    return {"text": b"no image", "empty": b"", "half": stream.getvalue()[:2000]}


@pytest.mark.parametrize("kind", ["text", "empty", "half"])
def test_a_broken_photograph_is_named(folder: Path, tar: Path, kind: str) -> None:
    data = whole_and_half("a.png")[kind]
    (folder / "broken.png").write_bytes(data)
    with pytest.raises(ValueError, match=r"^cannot use a photograph: cannot read image .*broken.png: "):
        PhotoStore.open(find_photos(folder))
    add(tar, "some/broken.png", data)
    with pytest.raises(ValueError, match=r"^cannot use a photograph: .*photographs.tar, member some/broken.png: "):
        PhotoStore.open(find_photos(tar))


def test_a_photograph_that_is_gone_is_named(folder: Path) -> None:
    found = find_photos(folder)
    found[1].path.unlink()
    with pytest.raises(ValueError, match=r"cannot use a photograph: .*b.png"):
        PhotoStore.open(found)


def test_nothing_is_kept_of_a_set_with_a_broken_photograph(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken.png"):
        PhotoStore.open(find_photos(folder), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Forty photographs, of which two are broken."""
    root = tmp_path / "many"
    root.mkdir()
    for number in range(40):
        PIL.Image.new("RGB", (8, 8), (number, 0, 0)).save(root / f"{number:02}.png")
    for number in (7, 23):
        (root / f"{number:02}.png").write_bytes(b"no image")
    return root


@pytest.mark.parametrize("cached", [False, True])
def test_a_few_broken_photographs_are_named_and_left_out(
    many: Path, tmp_path: Path, cached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache" if cached else None
    for _ in range(2):  # the second time from the cache
        store = PhotoStore.open(find_photos(many), cache=cache, max_broken=0.05)
        assert store.names == [f"{number:02}.png" for number in range(40) if number not in (7, 23)]
        assert [int(store[index][0, 0, 0]) for index in range(len(store))] == [int(name[:2]) for name in store.names]
        (told,) = caplog.messages
        caplog.clear()
        assert re.search(r"2 of 40 photographs cannot be used: .*07\.png: .*, .*23\.png: .*; left out$", told)
    for strict in (0.0, 0.04):
        with pytest.raises(ValueError, match=r"07\.png"):
            PhotoStore.open(find_photos(many), cache=cache, max_broken=strict)


def test_too_many_broken_photographs_are_refused(many: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = (
        r"^2 of 40 photographs cannot be used: .*07\.png: .*23\.png: .*; no more than 1, and not all, may be broken"
    )
    with pytest.raises(ValueError, match=expected):
        PhotoStore.open(find_photos(many), cache=cache, max_broken=0.04)
    assert list(cache.iterdir()) == []


def test_one_of_a_handful_may_be_broken_but_not_all(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "b.png").write_bytes(b"no image")
    assert PhotoStore.open(find_photos(folder), max_broken=0.05).names == ["a.png", "c.PNG"]
    assert "1 of 3 photographs cannot be used: cannot read image" in caplog.text
    with pytest.raises(ValueError, match=r"1 of 1 photographs cannot be used: .*b\.png.* and not all, may be broken"):
        PhotoStore.open([Photo(folder / "b.png")], max_broken=0.99)


def test_reading_photographs_is_said_and_shown(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    PhotoStore.open(find_photos(folder))
    assert caplog.messages == ["reading photographs"]


def test_who_interrupts_does_not_wait_for_all_photographs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Photo] = []

    def load(photo: Photo, max_size: int | None) -> Tensor:
        loaded.append(photo)
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    def interrupt(shown: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Photo, "load", load)
    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        PhotoStore.open(find_photos(folder) * 1000)
    assert len(loaded) < 1000


# The store ------------------------------------------------------------------------------------------------------------


def test_the_store_gives_back_each_photograph(folder: Path) -> None:
    store = PhotoStore.open(find_photos(folder))
    assert len(store) == 3
    assert store.sizes == list(SIZES.values())
    assert store.names == ["a.png", "b.png", "c.PNG"]
    for index, name in enumerate(SIZES):
        assert torch.equal(store[index], torch.from_numpy(pixels(name)).permute(2, 0, 1))
    assert_same(store.to(torch.device("cpu")), store)


def test_photographs_are_shrunk_to_their_longest_side(folder: Path) -> None:
    store = PhotoStore.open(find_photos(folder), max_size=32)
    assert store.sizes == [(32, 24), (16, 32), (32, 32)]
    for index, photo in enumerate(find_photos(folder)):
        assert torch.equal(store[index], photo.load(32))


def test_canvases_hold_photographs_and_go_on_beyond_them(folder: Path) -> None:
    store = PhotoStore.open(find_photos(folder))
    canvases = store.canvases([2, 0, 1, 0], torch.device("cpu"))
    assert canvases.shape == (4, 3, 64, 64)
    assert canvases.dtype == torch.uint8
    for canvas, index in zip(canvases, [2, 0, 1, 0], strict=True):
        photo = store[index]
        height, width = photo.shape[1:]
        assert torch.equal(canvas[:, :height, :width], photo)
        assert bool((canvas[:, height:, :width] == photo[:, -1:]).all())
        assert bool((canvas[:, :, width:] == canvas[:, :, width - 1 : width]).all())
    assert torch.equal(store.canvases([1], torch.device("cpu"))[0], canvases[2])


# The cache ------------------------------------------------------------------------------------------------------------


def test_the_cache_equals_what_was_decoded_and_is_reused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "some" / "cache"
    decoded = PhotoStore.open(find_photos(folder), 48)
    first = PhotoStore.open(find_photos(folder), 48, cache)
    assert_same(first, decoded)
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert sorted(path.suffix for path in kept) == [".json", ".npy"]

    def refuse(photo: Photo, max_size: int | None) -> Tensor:
        raise AssertionError("decoded once more")

    monkeypatch.setattr(Photo, "load", refuse)
    second = PhotoStore.open(find_photos(folder), 48, cache)
    assert_same(second, decoded)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == kept


def test_what_is_written_into_a_mapped_photograph_does_not_reach_the_disk(folder: Path, tmp_path: Path) -> None:
    one = PhotoStore.open(find_photos(folder), cache=tmp_path / "cache")
    one[0].zero_()
    other = PhotoStore.open(find_photos(folder), cache=tmp_path / "cache")
    assert torch.equal(other[0], find_photos(folder)[0].load(None))


def test_the_cache_is_made_anew_for_other_photographs_and_sizes(folder: Path, tar: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def opened(max_size: int = 64, place: Path = folder) -> PhotoStore:
        return PhotoStore.open(find_photos(place), max_size, cache)

    opened()
    assert opened(32).sizes[0] == (32, 24)
    assert opened(place=tar).names == opened().names
    PIL.Image.new("RGB", (10, 12)).save(folder / "a.png")
    assert opened().sizes[0] == (10, 12)
    (folder / "b.png").unlink()
    assert opened().names == ["a.png", "c.PNG"]
    assert len(list(cache.glob("*.npy"))) == 5


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".npy", b""),
        (".npy", b"no array"),
        (".npy", None),  # half of it
        (".json", b""),
        (".json", b"[]"),
        (".json", b'{"names": ["a", "b", "c"]}'),
        (".json", b'{"sizes": [[40, 30], [25]], "names": ["a", "b"]}'),
        (".json", b'{"sizes": [[40, 30]], "names": ["a.png"]}'),
        (".json", b'{"sizes": [[40, 30], [25, 50], [64, 64]], "names": ["a.png"]}'),
    ],
)
def test_a_damaged_cache_is_named(folder: Path, tmp_path: Path, suffix: str, data: bytes | None) -> None:
    cache = tmp_path / "cache"
    PhotoStore.open(find_photos(folder), cache=cache)
    damaged = next(cache.glob(f"*{suffix}"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2] if data is None else data)
    with pytest.raises(ValueError, match=r"photos-\w+.npy: a damaged cache of photographs \(.*\); delete it"):
        PhotoStore.open(find_photos(folder), cache=cache)
    next(cache.glob("*.npy")).unlink()
    assert_same(PhotoStore.open(find_photos(folder), cache=cache), PhotoStore.open(find_photos(folder)))


def test_who_sees_the_pixels_of_a_cache_sees_its_index(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may open the cache while this one writes it."""
    cache = tmp_path / "cache"

    def full(*arguments: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(OSError, match="no space left"):
            PhotoStore.open(find_photos(folder), cache=cache)
    assert list(cache.glob("*.npy")) == []
    assert len(PhotoStore.open(find_photos(folder), cache=cache)) == 3


# The split ------------------------------------------------------------------------------------------------------------


def test_what_is_held_out_never_changes() -> None:
    """These are facts of SHA-256: another split would make old and new results incomparable."""
    assert [k for k in range(80) if held_out(f"{k}.jpg", 0.1)] == [26, 34, 36, 38]


@given(name=st.text(max_size=20), fractions=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_larger_fraction_holds_out_the_same_and_more(name: str, fractions: tuple[float, float]) -> None:
    assert held_out(name, min(fractions)) <= held_out(name, max(fractions))
    assert not held_out(name, 0.0)
    assert held_out(name, 1.0)


def test_a_name_that_is_no_text_can_be_held_out() -> None:
    assert held_out(os.fsdecode(b"caf\xe9.jpg"), 1.0)


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_the_fraction_is_held_out(fraction: float) -> None:
    count = sum(held_out(f"photo-{k:05d}.jpg", fraction) for k in range(4000))
    assert count / 4000 == pytest.approx(fraction, abs=0.03)
