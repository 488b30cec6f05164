"""The folder of a collection: what is kept comes back, and nothing else is mixed into it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import steerers
from collection.photographs import bytes_of, fill, make_features, save_blank
from helpers import contents
from steerers.collection import Collection, Count, PairMatches, Photograph
from steerers.collection.shards import BusyError
from steerers.images.exif import Taken

NAMES = ["a 1.jpg", "b/a 1.jpg", "b/c.d/é 雪.PNG", "c.jpg", "e.jpg"]


def create(tmp_path: Path, **options: object) -> Collection:
    for name in NAMES:
        if not (tmp_path / "photos" / name).exists():
            save_blank(tmp_path / "photos" / name)
    told = {"model": "upright-sift", "shard_size": 2, **options}
    return Collection.create(tmp_path / "out", tmp_path / "photos", **told)  # type: ignore[arg-type]


def make_matches(count: int = 3, angle: float | None = 90.5) -> PairMatches:
    indices = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    angles = None if angle is None else np.full(count, angle, np.float32)
    return PairMatches(indices, np.linspace(1, 0.5, count, dtype=np.float32), angle, angles)


def match_all(collection: Collection, told: dict[str, str] | None = None, **size: int) -> None:
    collection.set_matching(told or {"name": "test"})  # type: ignore[arg-type]
    collection.plan_matches(**size)
    for number, pairs in enumerate(collection.match_shards()):
        if pairs and not collection.is_matched(number):
            with collection.write_matches(number) as writer:
                for index, pair in enumerate(pairs):
                    writer.add(pair, make_matches(index, None if index == 1 else 30.0 * index))


def planned(collection: Collection) -> list[list[tuple[str, str]]]:
    collection.plan_matches(2)
    return collection.match_shards()


# What comes back ------------------------------------------------------------------------------------------------------


def test_names_are_paths_below_the_folder(tmp_path: Path) -> None:
    collection = create(tmp_path)
    (tmp_path / "photos" / "notes.txt").write_text("no photograph")
    (tmp_path / "photos" / "folder.jpg").mkdir()
    assert collection.names() == NAMES
    assert collection.feature_shards() == [NAMES[:2], NAMES[2:4], NAMES[4:]]
    assert collection.photographs() == []
    assert steerers.Collection is Collection


def test_features_come_back(tmp_path: Path) -> None:
    fill(create(tmp_path, descriptions="float32"), failed=["c.jpg"])
    collection = Collection.open(tmp_path / "out")
    assert [photograph.name for photograph in collection.photographs()] == [*NAMES[:3], NAMES[4]]
    for name in (NAMES[2], NAMES[0]):
        features, expected = collection.features(name), make_features(seed=sum(map(ord, name)))
        assert torch.equal(features.keypoints, expected.keypoints)
        assert torch.equal(features.descriptions, expected.descriptions)
        assert torch.equal(features.scores, expected.scores)
        assert (features.model, features.image_size) == ("upright-sift", (120, 90))
        np.testing.assert_array_equal(collection.keypoints(name), expected.keypoints.numpy())
    assert collection.failures() == {"c.jpg": "it is broken"}
    assert collection.status()["photographs"] == Count(done=4, failed=1, left=0)
    for read in (collection.features, collection.keypoints):
        with pytest.raises(KeyError, match=r"no features of 'c\.jpg': it is broken"):
            read("c.jpg")
        with pytest.raises(KeyError, match=r"no features of 'x\.jpg'"):
            read("x.jpg")


def test_descriptions_are_float16_by_default(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection)
    assert collection.features("e.jpg").descriptions.dtype == torch.float16


def test_how_a_photograph_was_taken(tmp_path: Path) -> None:
    collection = create(tmp_path)
    with collection.write_features(0) as writer:
        writer.add("a 1.jpg", make_features(7), Taken((120, 90), 1234.5, "Maker Model Lens", (-1.5, 2.25, -3.0)))
        writer.add("b/a 1.jpg", make_features(0), Taken((120, 90)))
    assert collection.photographs() == [
        Photograph("a 1.jpg", (120, 90), 1234.5, "Maker Model Lens", (-1.5, 2.25, -3.0), 7),
        Photograph("b/a 1.jpg", (120, 90), None, "", None, 0),
    ]
    assert len(collection.features("b/a 1.jpg")) == 0
    assert collection.status()["photographs"] == Count(2, 0, 3)


def test_a_shard_of_failures_alone(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection, failed=NAMES)
    assert collection.photographs() == []
    assert list(collection.failures()) == NAMES
    with pytest.raises(KeyError, match="it is broken"):
        collection.features("e.jpg")


def test_pairs_are_sorted_and_each_once(tmp_path: Path) -> None:
    collection = create(tmp_path)
    assert collection.pairs() == []
    asked = [("e.jpg", "c.jpg"), ("a 1.jpg", NAMES[2]), ("c.jpg", "e.jpg")]
    assert collection.set_pairs(asked) == [("a 1.jpg", NAMES[2]), ("c.jpg", "e.jpg")] == collection.pairs()
    assert (tmp_path / "out" / "pairs.txt").read_text(encoding="utf-8") == f"a 1.jpg\t{NAMES[2]}\nc.jpg\te.jpg\n"


def test_matches_come_back(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection)
    pairs = collection.set_pairs([(first, second) for first in NAMES for second in NAMES if first < second])
    match_all(collection, size=4)
    assert len(contents(tmp_path / "out" / "matches")) == 4  # three shards and the plan
    opened = Collection.open(tmp_path / "out")
    assert opened.matched() == pairs
    assert opened.status()["pairs"] == Count(10, 0, 0)
    for number, shard in enumerate(opened.match_shards()):
        for index, pair in enumerate(shard):
            found, expected = opened.matches(*pair), make_matches(index, None if index == 1 else 30.0 * index)
            assert found.indices.dtype == np.int32, number
            np.testing.assert_array_equal(found.indices, expected.indices)
            np.testing.assert_array_equal(found.scores, expected.scores)
            assert found.angle == expected.angle
            assert (found.angles is None) == (expected.angles is None)
    with pytest.raises(KeyError, match=r"no matches of 'e\.jpg' and 'a 1\.jpg'"):
        opened.matches("e.jpg", "a 1.jpg")


# Going on -------------------------------------------------------------------------------------------------------------


def test_new_photographs_come_in_new_shards(tmp_path: Path) -> None:
    fill(create(tmp_path))
    before = bytes_of(tmp_path / "out")
    save_blank(tmp_path / "photos" / "0 new.jpg")
    collection = create(tmp_path)
    assert collection.feature_shards() == [NAMES[:2], NAMES[2:4], NAMES[4:], ["0 new.jpg"]]
    assert [collection.is_extracted(number) for number in range(4)] == [True, True, True, False]
    after = bytes_of(tmp_path / "out")
    assert {name for name in after if after[name] != before.get(name)} == {"photographs.txt"}


def test_new_pairs_come_in_new_shards(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection)
    first, second = [("a 1.jpg", "c.jpg"), ("a 1.jpg", "e.jpg"), ("c.jpg", "e.jpg")], [("b/a 1.jpg", "c.jpg")]
    collection.set_pairs(first)
    match_all(collection, size=2)
    before = bytes_of(tmp_path / "out" / "matches")
    collection.set_pairs(first[:1] + second)
    assert collection.status()["pairs"] == Count(1, 0, 1)
    match_all(collection, size=2)
    after = bytes_of(tmp_path / "out" / "matches")
    assert {name for name in after if after[name] != before.get(name)} == {"0002.h5", "plan.txt"}
    assert collection.matched() == sorted(first + second)


def test_pairs_that_are_left_are_planned_anew(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection)
    pairs = collection.set_pairs([(NAMES[i], NAMES[j]) for i in range(5) for j in range(i + 1, 5)])
    plan = planned(collection)
    assert len(plan) == 5
    with collection.write_matches(1) as writer:
        for pair in plan[1]:
            writer.add(pair, make_matches())
    collection.set_pairs(plan[1] + plan[4])
    assert planned(collection) == [plan[4], plan[1]]
    collection.set_pairs(plan[1])
    assert planned(collection) == Collection.open(tmp_path / "out").match_shards() == [[], plan[1]]
    collection.set_pairs(pairs)
    assert sorted(pair for shard in planned(collection) for pair in shard) == pairs


def test_the_folder_may_lie_among_the_photographs(tmp_path: Path) -> None:
    for name in ("a.jpg", "out/report/b.jpg"):
        save_blank(tmp_path / name)
    assert Collection.create(tmp_path / "out", tmp_path, "upright-sift").names() == ["a.jpg"]


def test_photographs_may_be_moved(tmp_path: Path) -> None:
    fill(create(tmp_path))
    for name in NAMES:
        save_blank(tmp_path / "others" / name)
    with pytest.raises(ValueError, match=r"holds photographs of .*photos, not of .*others"):
        Collection.create(tmp_path / "out", tmp_path / "others", "upright-sift")
    (tmp_path / "photos").rename(tmp_path / "moved")
    assert Collection.create(tmp_path / "out", tmp_path / "moved", "upright-sift").photos == tmp_path / "moved"
    assert Collection.open(tmp_path / "out").photos == tmp_path / "moved"


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "sift"}, "was made with model upright-sift, not sift: use another folder, or upright-sift"),
        ({"num_keypoints": 7}, "was made with num-keypoints 2048, not 7"),
        ({"max_size": None}, "was made with max-size 1024, not None"),
        ({"exif": "apply"}, "was made with exif ignore, not apply"),
        ({"descriptions": "float32"}, "was made with descriptions float16, not float32"),
        ({"shard_size": 3}, "has shards of 2 photographs, not 3"),
        ({"descriptions": "int8"}, "descriptions must be float16 or float32, got 'int8'"),
    ],
)
def test_a_second_way_is_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    fill(create(tmp_path))
    before = bytes_of(tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        create(tmp_path, **options)
    assert bytes_of(tmp_path / "out") == before


def test_before_the_first_features_the_way_may_change(tmp_path: Path) -> None:
    create(tmp_path, precision="float16")  # which may turn out not to work
    (tmp_path / "photos" / "e.jpg").rename(tmp_path / "photos" / "d.jpg")
    now = sorted([*NAMES[:4], "d.jpg"])
    collection = Collection.create(tmp_path / "out", tmp_path / "photos", "sift", shard_size=3)
    assert collection.manifest.extraction.model == "sift"
    assert collection.feature_shards() == [now[:3], now[3:]]


@pytest.mark.parametrize(("kind", "what"), [("features", "checksum"), ("matches", "matching")])
def test_a_shard_of_another_collection_is_refused(kind: str, what: str, tmp_path: Path) -> None:
    for place, told in (("here", {"name": "test"}), ("there", {"name": "other"})):
        collection = create(tmp_path / place)
        if place == "there" and kind == "features":
            collection.manifest = replace(collection.manifest, checksum="0" * 64)
        fill(collection)
        collection.set_pairs([("a 1.jpg", "c.jpg")])
        match_all(collection, told)
    (tmp_path / "there" / "out" / kind / "0000.h5").replace(tmp_path / "here" / "out" / kind / "0000.h5")
    mixed = Collection.open(tmp_path / "here" / "out")
    message = rf"0000\.h5: made with another {what} than the manifest of this collection says"
    with pytest.raises(ValueError, match=message):
        mixed.features("a 1.jpg") if kind == "features" else mixed.matches("a 1.jpg", "c.jpg")


def test_other_weights_are_refused(tmp_path: Path) -> None:
    fill(create(tmp_path))
    manifest = tmp_path / "out" / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "checksum": "0" * 64}))
    with pytest.raises(ValueError, match="other weights of upright-sift: use another folder, or those weights"):
        create(tmp_path)
    with pytest.raises(ValueError, match="other weights of upright-sift than are there now"):
        Collection.open(tmp_path / "out").load_pipeline()


def test_a_second_way_of_matching_is_refused(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection)
    collection.set_matching({"name": "subset", "order": 4})
    collection.set_matching({"name": "invariant"})  # nothing is matched yet
    collection.set_pairs([("a 1.jpg", "c.jpg")])
    match_all(collection)
    with pytest.raises(ValueError, match=r"holds matches with name test, not subset: match the same way, or remove"):
        Collection.open(tmp_path / "out").set_matching({"name": "subset"})


@pytest.mark.parametrize("name", ["a\tb.jpg", "a\nb.jpg", "\udcff.jpg"])
def test_names_that_no_line_can_hold(name: str, tmp_path: Path) -> None:
    save_blank(tmp_path / "photos" / name)
    with pytest.raises(ValueError, match="rename the photograph"):
        create(tmp_path)
    assert not (tmp_path / "out").exists()


def test_folders_without_photographs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no photographs in .*empty; known endings: \.avif"):
        Collection.create(tmp_path / "out", tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no folder"):
        Collection.create(tmp_path / "out", tmp_path / "none")
    with pytest.raises(ValueError, match="there is no collection in"):
        Collection.open(tmp_path / "empty")
    (tmp_path / "features.h5").touch()
    with pytest.raises(ValueError, match="is a file; a collection is a folder"):
        Collection.open(tmp_path / "features.h5")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "extraction": 3, "weights": []}'])
def test_a_damaged_manifest(content: str, tmp_path: Path) -> None:
    create(tmp_path)
    (tmp_path / "out" / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"^[^\n]*manifest\.json: [^\n]*$"):
        Collection.open(tmp_path / "out")


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg\tb.jpg\tc.jpg", "a.jpg\t", "", b"\xff\t\xff"])
def test_damaged_pairs(line: str | bytes, tmp_path: Path) -> None:
    collection = create(tmp_path)
    content = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "out" / "pairs.txt").write_bytes(b"a 1.jpg\tc.jpg\n" + content + b"\n")
    with pytest.raises(ValueError, match=r"pairs\.txt(, line 2|: 'utf-8')"):
        collection.pairs()


@pytest.mark.parametrize("line", ["x\ta", "0001\ta\n0000\tb", "9999999\ta", "-1\ta", "0000"])
def test_a_damaged_plan(line: str, tmp_path: Path) -> None:
    create(tmp_path)
    (tmp_path / "out" / "photographs.txt").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"photographs\.txt, line \d"):
        Collection.open(tmp_path / "out").names()


def test_pairs_without_features(tmp_path: Path) -> None:
    collection = create(tmp_path)
    fill(collection, failed=["c.jpg"])
    collection.set_pairs([("a 1.jpg", "c.jpg")])
    with pytest.raises(ValueError, match=r"pairs\.txt: there are no features of 'c\.jpg'; extract them first"):
        collection.plan_matches()


def nameless(file: h5py.File) -> None:
    told = json.loads(file["rows"][()].tobytes())
    told[0].pop("name")
    del file["rows"]
    file["rows"] = np.frombuffer(json.dumps(told).encode(), np.uint8)


@pytest.mark.parametrize("damage", [lambda file: file.pop("keypoints"), lambda file: file.attrs.pop("about"), nameless])
def test_a_damaged_shard_is_named(damage: Callable[[h5py.File], object], tmp_path: Path) -> None:
    fill(create(tmp_path))
    with h5py.File(tmp_path / "out" / "features" / "0000.h5", "r+") as file:
        damage(file)
    collection = Collection.open(tmp_path / "out")
    with pytest.raises(ValueError, match=r"features/0000\.h5: "):
        collection.features("a 1.jpg")
    assert len(collection.features("c.jpg")) == 20


def test_one_writer(tmp_path: Path) -> None:
    collection, other = create(tmp_path), create(tmp_path)
    with collection.write_features(0) as writer:
        with pytest.raises(BusyError, match=r"0000\.h5 is being written by another process"), other.write_features(0):
            pass
        with other.write_features(1) as elsewhere:
            elsewhere.add_failure("c.jpg", "broken")
        writer.add_failure("a 1.jpg", "broken")
    assert contents(tmp_path / "out" / "features") == ["0000.h5", "0001.h5"]
    with other.write_features(0) as writer:
        writer.add_failure("a 1.jpg", "broken again")
    assert other.failures()["a 1.jpg"] == "broken again"


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    collection = create(tmp_path)
    (tmp_path / "out" / "features").mkdir()
    (tmp_path / "out" / "features" / ".0000.h5").write_bytes(b"half a shard")
    fill(collection)
    assert contents(tmp_path / "out" / "features") == ["0000.h5", "0001.h5", "0002.h5"]
