"""Features of many photographs: what comes out, what is left out, and the same bytes whoever extracts them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import steerers
from collection.photographs import bytes_of, save_taken, save_views
from helpers import contents, run_on_full_disk
from steerers.collection import Collection, Count, Extraction, Share, extract, extract_to_file
from steerers.collection import extraction as module

NAMES = ["a b/9.jpg", "a b/10.png", "c.jpg", "é 雪.jpg"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    save_views(folder, NAMES)
    return folder


def make(tmp_path: Path, photos: Path, name: str = "out", **options: object) -> Collection:
    told = {"model": "upright-sift", "num_keypoints": 60, "shard_size": 3, **options}
    return Collection.create(tmp_path / name, photos, **told)  # type: ignore[arg-type]


def test_features_are_those_of_the_matcher(tmp_path: Path, photos: Path) -> None:
    collection = make(tmp_path, photos, descriptions="float32")
    extract(collection)
    matcher = steerers.load("upright-sift", num_keypoints=60)
    assert [photograph.name for photograph in collection.photographs()] == sorted(NAMES)
    for photograph in collection.photographs():
        found, expected = collection.features(photograph.name), matcher.extract(photos / photograph.name)
        assert torch.equal(found.keypoints, expected.keypoints)
        assert torch.equal(found.descriptions, expected.descriptions)
        assert torch.equal(found.scores, expected.scores)
        assert found.image_size == expected.image_size == photograph.size == (120, 90)
        assert photograph.count == len(expected) > 20


def test_what_exif_says_is_kept(tmp_path: Path) -> None:
    save_taken(tmp_path / "photos" / "a.jpg", (-12.5, 30.25), size=(36, 24), details={41989: 50}, main={271: "Maker"})
    collection = make(tmp_path, tmp_path / "photos")
    extract(collection)
    (photograph,) = collection.photographs()
    assert (photograph.position, photograph.camera) == ((-12.5, 30.25, None), "Maker")
    assert photograph.focal == pytest.approx(50)


def test_shares_make_the_same_bytes(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(make(tmp_path, photos, "whole", shard_size=1))
    for index in (3, 1, 2):
        shared = make(tmp_path, photos, "shared", shard_size=1)
        extract(shared, share=Share(index, 3), batch=index)
        monkeypatch.setattr(module, "READERS", index)
    assert shared.status()["photographs"] == Count(4, 0, 0)
    assert bytes_of(tmp_path / "shared") == bytes_of(tmp_path / "whole")


def test_a_share_does_its_own_shards(tmp_path: Path, photos: Path) -> None:
    collection = make(tmp_path, photos, shard_size=1)
    extract(collection, share=Share(2, 3))
    assert contents(tmp_path / "out" / "features") == ["0001.h5"]
    assert collection.status()["photographs"] == Count(1, 0, 3)
    for wrong in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(ValueError, match="a share must be I/N"):
            Share(*wrong)


def test_what_is_done_is_not_done_again(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(make(tmp_path, photos))
    (tmp_path / "out" / "features" / "0001.h5").unlink()
    written = []
    real = Collection.write_features

    def write(self: Collection, shard: int) -> object:
        written.append(shard)
        return real(self, shard)

    monkeypatch.setattr(Collection, "write_features", write)
    extract(make(tmp_path, photos))
    extract(make(tmp_path, photos))
    assert written == [1]


def test_two_processes_at_once(tmp_path: Path, photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While one writes its first shard, another comes, does the second, and leaves the first to it."""
    caplog.set_level(logging.INFO, "steerers")
    first, second = make(tmp_path, photos), make(tmp_path, photos)
    written = []
    real = Collection.write_features

    @contextmanager
    def write(self: Collection, shard: int) -> Iterator[object]:
        with real(self, shard) as writer:
            written.append((self is first, shard))
            if self is first:
                extract(second)
            yield writer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collection, "write_features", write)
        extract(first)
    assert written == [(True, 0), (False, 1)]
    assert "1 shards are being written by other processes, and were left to them" in caplog.text
    assert first.status()["photographs"] == Count(4, 0, 0)


def test_broken_photographs_are_left_out_and_tried_again(
    tmp_path: Path, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    broken = {"a b/0.jpg": b"", "b.tif": b"II*\0broken", "c2.jpg": (photos / "c.jpg").read_bytes()[:500]}
    for name, content in broken.items():
        (tmp_path / "photos" / name).write_bytes(content)
    collection = make(tmp_path, tmp_path / "photos")
    extract(collection)
    assert collection.status()["photographs"] == Count(4, 3, 0)
    assert list(collection.failures()) == sorted(broken)
    for name, reason in collection.failures().items():
        assert reason.startswith(f"cannot read image {name}: ")
        assert f"{name} is left out: {reason}" in caplog.text
    shutil.copy(photos / "c.jpg", tmp_path / "photos" / "a b" / "0.jpg")
    before = bytes_of(tmp_path / "out")
    extract(collection)
    assert bytes_of(tmp_path / "out") == before
    extract(collection, retry=True)
    assert collection.status()["photographs"] == Count(5, 2, 0)
    np.testing.assert_array_equal(collection.keypoints("a b/0.jpg"), collection.keypoints("c.jpg"))


def test_an_image_that_the_model_refuses_is_one_that_failed(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._extract_together

    def refuse(pipeline: steerers.Pipeline, images: list[object]) -> object:
        if any("c.jpg" in image.name for image in images):  # type: ignore[attr-defined]
            raise ValueError("not\nthis one")
        return real(pipeline, images)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_extract_together", refuse)
    collection = make(tmp_path, photos)
    extract(collection, batch=4)
    assert collection.failures() == {"c.jpg": "not this one"}
    assert collection.status()["photographs"] == Count(3, 1, 0)


def test_flat_photographs_have_no_keypoints(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    PIL.Image.new("L", (64, 48)).save(tmp_path / "photos" / "a.png")
    collection = make(tmp_path, tmp_path / "photos")
    extract(collection)
    assert collection.keypoints("a.png").shape == (0, 2)


def test_one_file(tmp_path: Path, photos: Path) -> None:
    extraction = Extraction("upright-sift", num_keypoints=60)
    assert extract_to_file(tmp_path / "all.h5", photos, extraction) == {}
    collection = make(tmp_path, photos)
    extract(collection)
    for name in NAMES:
        found, expected = steerers.load_features(tmp_path / "all.h5", name), collection.features(name)
        assert torch.equal(found.descriptions, expected.descriptions)
    extract(make(tmp_path, photos, "one shard", shard_size=9))
    assert (tmp_path / "all.h5").read_bytes() == (tmp_path / "one shard" / "features" / "0000.h5").read_bytes()


def test_photographs_that_are_gone(tmp_path: Path, photos: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    collection = make(tmp_path, tmp_path / "photos")
    (tmp_path / "photos").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"the folder of the photographs, .*photos, is gone"):
        extract(collection)
    assert contents(tmp_path / "out") == ["manifest.json", "photographs.txt"]


def test_a_full_disk_names_the_file(tmp_path: Path, photos: Path) -> None:
    code = f"""
from steerers.cli import main
print(main(["extract", {str(photos)!r}, "-o", "out", "--model", "upright-sift", "--quiet"]))
"""
    out, err = run_on_full_disk(code, tmp_path, 50_000)
    assert out == ["2"]
    assert err == ["steerers: out/features/0000.h5: the disk is full (File too large)"]
    assert contents(tmp_path / "out" / "features") == []
