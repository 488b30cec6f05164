"""Verification of a collection: what is kept, what is done again, and what the loops say."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collection.scenes import make_collection, make_scene
from steerers._tables import Table, write_table
from steerers.collection import verification
from steerers.collection.store import Collection
from steerers.collection.two_view import TwoView, VerificationOptions
from steerers.collection.verification import verify, view_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pairs that were asked for."""
    asked: list[Any] = []
    original = verification._verify

    def verify_one(collection: Collection, *told: Any) -> TwoView:
        asked.append(told[2])
        return original(collection, *told)

    monkeypatch.setattr(verification, "_verify", verify_one)
    return asked


def test_all_pairs_once(tmp_path: Path, counted: list[Any]) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(5)])
    verified = verify(collection)
    assert [verdict.pair for verdict in verified.verdicts] == collection.matched() == sorted(counted)
    assert all(verdict.kind == "uncalibrated" for verdict in verified.verdicts)
    assert verified.contradicted == []
    assert len(verified.consistent) == 10
    pair = collection.matched()[3]
    found = verified.two_view(pair)
    assert int(found.inliers.sum()) == verified.verdicts[3].inliers
    assert len(found.inliers) == verified.verdicts[3].matches == len(collection.matches(*pair))
    assert np.isnan(found.E).all()
    assert found.angle == pytest.approx(verified.verdicts[3].angle)
    files = {path.name: path.read_bytes() for path in (tmp_path / "out/verified").iterdir()}
    counted.clear()
    again = verify(Collection.open(tmp_path / "out"))
    assert counted == []
    assert again.verdicts == verified.verdicts
    assert {path.name: path.read_bytes() for path in (tmp_path / "out/verified").iterdir()} == files


def test_other_options_and_damage_are_done_again(tmp_path: Path, counted: list[Any]) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(3)])
    verify(collection)
    counted.clear()
    strict = verify(collection, VerificationOptions(min_inliers=100_000))
    assert len(counted) == 3
    assert strict.good == []
    counted.clear()
    shard = tmp_path / "out/verified/0000.h5"
    for damage in (spoil, lambda path: write_other(path, {}), lambda path: write_other(path, {"kind": "round"})):
        counted.clear()
        damage(shard)
        assert len(verify(collection).good) == 3
        assert len(counted) == 3


def spoil(path: Path) -> None:
    path.write_bytes(b"no")


def write_other(path: Path, change: dict[str, str]) -> None:
    """A table like the one that is there, whose rows say something else, or nothing."""
    with Table(path, "two-view geometries") as table:
        about, rows = table.about, [{**row, **change} if change else {} for row in table.rows]
    with write_table(path, "two-view geometries", about) as writer:
        for row in rows:
            writer.append(row, {})


def test_pairs_that_come_and_go(tmp_path: Path, counted: list[Any]) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(4)])
    everything = collection.matched()
    collection.set_pairs(everything[:4])
    assert [verdict.pair for verdict in verify(collection).verdicts] == everything[:4]
    counted.clear()
    collection.set_pairs(everything)
    assert [verdict.pair for verdict in verify(collection).verdicts] == everything
    assert counted == everything[4:]
    collection.set_pairs(everything[2:])
    assert [verdict.pair for verdict in verify(collection).verdicts] == everything[2:]


def test_a_false_rotation_is_told_from_its_loops(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(7), make_scene(4, seed=1)], false_pairs=[(1, 4)])
    verified = verify(collection)
    names = verified.names
    assert [verdict.pair for verdict in verified.contradicted] == [(names[1], names[4])]
    assert len(verified.consistent) == len(list(combinations(range(7), 2))) - 1 + 6
    assert set(verified.orientations()) == set(names)


def test_no_pairs(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(1)])
    verified = verify(collection)
    assert verified.verdicts == verified.consistent == verified.contradicted == []
    assert verified.orientations() == {}


def test_how_much_photographs_were_shrunk(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(2)], max_size=320, focal=True)
    view = view_of(collection, collection.photographs()[0])
    assert (view.size, view.focal, view.shrunk) == ((640, 480), 600.0, 2.0)
    assert verify(collection).verdicts[0].kind == "calibrated"
