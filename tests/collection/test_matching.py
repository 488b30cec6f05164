"""Matches of many pairs: those of the matcher, in shards that are the same whoever makes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import steerers
from collection.photographs import bytes_of, save_views
from helpers import contents, run_on_full_disk
from steerers.collection import Choice, Collection, Count, Share, choose_pairs, extract, match_pairs
from steerers.collection import matching as module
from steerers.features import Features

NAMES = [f"view {index}.png" for index in range(6)]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matching")
    save_views(folder / "photos", NAMES)
    collection = Collection.create(folder / "out", folder / "photos", "upright-sift", num_keypoints=80, shard_size=4)
    extract(collection)
    choose_pairs(collection, Choice(exhaustive=True))
    return folder / "out"


@pytest.fixture
def collection(extracted: Path, tmp_path: Path) -> Collection:
    shutil.copytree(extracted, tmp_path / "out")
    return Collection.open(tmp_path / "out")


def test_matches_are_those_of_the_matcher(collection: Collection) -> None:
    match_pairs(collection, batch=4)
    matcher = steerers.load("upright-sift", num_keypoints=80)
    assert len(collection.matched()) == 15
    for first, second in collection.matched():
        found = collection.matches(first, second)
        expected = matcher.match(collection.features(first), collection.features(second))
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.scores, expected.scores)
        assert found.angle == expected.angle
    near = collection.matches("view 0.png", "view 1.png")
    assert len(near) > 10
    assert abs(near.angle or 0) == pytest.approx(180, abs=1)


def test_shares_and_batches_make_the_same_bytes(collection: Collection, extracted: Path, tmp_path: Path) -> None:
    match_pairs(collection, shard_size=4)
    shutil.copytree(extracted, tmp_path / "shared")
    for index in (2, 3, 1):
        shared = Collection.open(tmp_path / "shared")
        match_pairs(shared, shard_size=4, share=Share(index, 3), batch=index)
    assert shared.status()["pairs"] == Count(15, 0, 0)
    assert bytes_of(tmp_path / "shared") == bytes_of(collection.folder)


def test_more_pairs_later(collection: Collection) -> None:
    choose_pairs(collection, Choice(sequential=1))
    match_pairs(collection)
    choose_pairs(collection, Choice(exhaustive=True))
    assert collection.status()["pairs"] == Count(5, 0, 10)
    match_pairs(collection)
    assert collection.status()["pairs"] == Count(15, 0, 0)
    assert contents(collection.folder / "matches") == ["0000.h5", "0001.h5", "plan.txt"]


def test_few_features_are_held_and_each_is_read_few_times(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steerers.collection import store

    read: list[str] = []
    held: list[int] = []
    real_features, real_get = Collection.features, module._Resident._get

    def features(self: Collection, name: str) -> Features:
        read.append(name)
        return real_features(self, name)

    def get(self: module._Resident, name: str) -> Features:
        held.append(len(self._kept))
        return real_get(self, name)

    monkeypatch.setattr(Collection, "features", features)
    monkeypatch.setattr(module._Resident, "_get", get)
    monkeypatch.setattr(store, "TILE", 2)
    monkeypatch.setattr(module, "TILE", 2)
    match_pairs(collection, batch=1)
    assert max(held) <= 2 * (2 + 1)
    assert len(read) <= 10  # of 30 that the pairs name


def test_options_of_the_strategy(collection: Collection) -> None:
    match_pairs(collection, strategy="mutual-nearest", ratio=0.9)
    assert collection.manifest.matching == {"name": "mutual-nearest", "threshold": -1.0, "ratio": 0.9}
    match_pairs(Collection.open(collection.folder), strategy="mutual-nearest", ratio=0.9)
    with pytest.raises(
        ValueError, match=r"holds matches with ratio 0\.9, not None: match the same way, or remove .*matches"
    ):
        match_pairs(collection, strategy="mutual-nearest")
    with pytest.raises(ValueError, match="holds matches with name mutual-nearest, not max-matches"):
        match_pairs(collection)


def test_what_cannot_be_matched(collection: Collection) -> None:
    with pytest.raises(ValueError, match="tta describes rotated copies of every image"):
        match_pairs(collection, strategy="tta")
    (collection.folder / "pairs.txt").write_text("")
    with pytest.raises(ValueError, match=r"pairs\.txt has no pairs to match; choose some with steerers pairs"):
        match_pairs(collection)
    (collection.folder / "pairs.txt").write_text("view 0.png\tview 9.png\n")
    with pytest.raises(ValueError, match=r"pairs\.txt: there are no features of 'view 9\.png'"):
        match_pairs(collection)
    assert not (collection.folder / "matches").exists()


def test_a_full_disk_names_the_file(collection: Collection, tmp_path: Path) -> None:
    code = """
from steerers.cli import main
print(main(["match-pairs", "out", "--quiet"]))
"""
    out, err = run_on_full_disk(code, tmp_path, 10_000)
    assert out == ["2"]
    assert err == ["steerers: out/matches/0000.h5: the disk is full (File too large)"]
    assert contents(collection.folder / "matches") == ["plan.txt"]
