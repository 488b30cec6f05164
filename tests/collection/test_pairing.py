"""Which pairs: all, in sequence, near on the ground, similar, and unions of them."""

from __future__ import annotations

import logging
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collection.photographs import fill, save_blank
from helpers import seeds
from steerers.collection import Choice, Collection, Photograph, choose_pairs
from steerers.collection.pairing import natural, near_pairs, sequential_pairs
from steerers.images.exif import ground_distance

METRE = 180 / 3.141592653589793 / 6_371_008.8  # of latitude, in degrees
NAMES = ["1.jpg", "2.jpg", "9.jpg", "10.jpg", "11.jpg"]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Five photographs 0, 10, 30, 100 and 0 metres north of a place."""
    for name in NAMES:
        save_blank(tmp_path / "photos" / name)
    made = Collection.create(tmp_path / "out", tmp_path / "photos", "upright-sift", shard_size=2)
    fill(
        made,
        positions={
            name: (-20.5 + north * METRE, -98.25) for name, north in zip(NAMES, (0, 10, 30, 100, 0), strict=True)
        },
    )
    return made


def chosen(collection: Collection, **choice: object) -> set[str]:
    """Pairs as texts such as ``1-10``."""
    pairs = choose_pairs(collection, Choice(**choice))  # type: ignore[arg-type]
    assert pairs == collection.pairs() == sorted(pairs)
    assert all(first < second for first, second in pairs)
    return {"-".join(sorted((name.removesuffix(".jpg") for name in pair), key=int)) for pair in pairs}


def test_all(collection: Collection) -> None:
    assert chosen(collection, exhaustive=True) == {f"{i}-{j}" for i, j in combinations((1, 2, 9, 10, 11), 2)}


def test_those_that_follow_as_people_count(collection: Collection) -> None:
    assert chosen(collection, sequential=1) == {"1-2", "2-9", "9-10", "10-11"}
    assert chosen(collection, sequential=2) == {"1-2", "2-9", "9-10", "10-11", "1-9", "2-10", "9-11"}
    assert len(chosen(collection, sequential=99)) == 10


def test_the_nearest_on_the_ground(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steerers")
    assert chosen(collection, gps=1) == {"1-11", "1-2", "2-9", "9-10"}
    assert "4 pairs by GPS: 20 m in the middle, 70 m at most (10.jpg and 9.jpg)" in caplog.text
    assert chosen(collection, gps=1, metres=15) == {"1-11", "1-2"}
    assert "2 photographs have no other within 15 m; the nearest to 10.jpg is 70 m away" in caplog.text
    assert chosen(collection, gps=2, metres=15) == {"1-11", "1-2", "2-11"}


def test_unions(collection: Collection) -> None:
    both = chosen(collection, gps=1, metres=15, sequential=1)
    assert both == chosen(collection, gps=1, metres=15) | chosen(collection, sequential=1)


def test_failed_photographs_are_in_no_pair(collection: Collection) -> None:
    fill(collection, failed=["9.jpg"])
    assert chosen(collection, sequential=1) == {"1-2", "2-10", "10-11"}


def test_photographs_without_features_are_told(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steerers")
    (collection.folder / "features" / "0002.h5").unlink()
    assert len(chosen(collection, exhaustive=True)) == 6
    assert "1 photographs have no features yet, and are in no pair" in caplog.text


# A position that is wrong by a country --------------------------------------------------------------------------------


def placed(*positions: tuple[float, float] | None) -> list[Photograph]:
    return [
        Photograph(f"{index}.jpg", (8, 6), position=None if place is None else (*place, None))
        for index, place in enumerate(positions)
    ]


def test_a_wrong_position_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steerers")
    photographs = placed(*((48 + index * 20 * METRE, 2.0) for index in range(5)), (52.5, 13.4))  # Paris and Berlin
    assert len(near_pairs(photographs, 2)) == 6 + 2
    assert "8 pairs by GPS: 40 m in the middle, 950,919 m at most (3.jpg and 5.jpg)" in caplog.text
    assert "a position may be wrong: --metres M leaves out what is further apart" in caplog.text
    caplog.clear()
    pairs = near_pairs(photographs, 2, metres=1000)
    assert not any("5.jpg" in pair for pair in pairs)
    assert "1 photographs have no other within 1000 m; the nearest to 5.jpg is 9" in caplog.text


def test_no_two_are_that_near() -> None:
    with pytest.raises(ValueError, match=r"no two photographs are within 5 m: the nearest to 1\.jpg is 111,195 m away"):
        near_pairs(placed((0, 0), (1, 0)), 3, metres=5)


def test_positions_that_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steerers")
    with pytest.raises(ValueError, match="1 of 3 photographs have a GPS position in their EXIF data"):
        near_pairs(placed((0, 0), None, None), 1)
    assert near_pairs(placed((0, 0), None, (0, 1)), 1) == [("0.jpg", "2.jpg")]
    assert "1 of 3 photographs have no GPS position" in caplog.text


@given(st.integers(2, 30), st.integers(1, 5), st.sampled_from([1e-4, 1.0, 80.0]), seeds)
def test_the_nearest_are_those_of_a_plain_search(count: int, nearest: int, spread: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    positions = [tuple(position) for position in (spread * draw.uniform(-1, 1, (count, 2)) + (5, 100)).tolist()]
    expected = set()
    for index in range(count):
        others = [other for other in range(count) if other != index]
        others.sort(key=lambda other: ground_distance(positions[index], positions[other]))
        expected |= {frozenset((f"{index}.jpg", f"{other}.jpg")) for other in others[:nearest]}
    assert set(map(frozenset, near_pairs(placed(*positions), nearest))) == expected


# Names ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=6)))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural)) == sorted(names)


def test_pairs_of_a_sequence() -> None:
    assert sequential_pairs("abcd", 2) == [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({}, "say which pairs: --exhaustive, --sequential N, --gps K, --similar K"),
        ({"loop": True, "similar": 2}, "--loop goes with --sequential N"),
        ({"metres": 5.0, "exhaustive": True}, "--metres goes with --gps K"),
    ],
)
def test_choices_that_say_nothing(choice: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Choice(**choice)  # type: ignore[arg-type]


def test_one_photograph_makes_no_pair(tmp_path: Path) -> None:
    save_blank(tmp_path / "photos" / "a.jpg")
    collection = Collection.create(tmp_path / "out", tmp_path / "photos", "upright-sift")
    for count in (0, 1):
        with pytest.raises(ValueError, match=rf"pairs need two photographs with features, and .*out has {count}"):
            choose_pairs(collection, Choice(exhaustive=True))
        fill(collection)
