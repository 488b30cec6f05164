"""Manifests: what is read, and the line that an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerers.benchmarks.manifest import read_manifest
from steerers.benchmarks.protocol import hash_pairs

HEADER = "query,candidate,positive,split"


def write(folder: Path, *lines: str, header: str = HEADER, **options: str) -> Path:
    for name in ("a.jpg", "b.jpg", "t1.jpg", "t2.jpg"):
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / name).write_bytes(b"")
    path = folder / "manifest.csv"
    path.write_text("\n".join([header, *lines]) + "\n", **options)  # type: ignore[arg-type]
    return path


def test_pairs_of_a_photograph_stand_together(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "images/a.jpg,images/t1.jpg,1,north-up",
        "images/b.jpg,images/t1.jpg,0,others",
        "",
        "images/a.jpg, images/t2.jpg ,0,north-up",
    )
    pairs = read_manifest(path)
    assert [(p.image0.name, p.image1.name, p.positive, p.split) for p in pairs] == [
        ("a.jpg", "t1.jpg", True, "north-up"),
        ("a.jpg", "t2.jpg", False, "north-up"),
        ("b.jpg", "t1.jpg", False, "others"),
    ]
    assert pairs[0].image0 == tmp_path / "images/a.jpg"
    assert str(tmp_path) not in str([pair.key() for pair in pairs])


def test_the_hash_knows_the_truth(tmp_path: Path) -> None:
    lines = ("images/a.jpg,images/t1.jpg,1,others", "images/a.jpg,images/t2.jpg,0,others")
    first = hash_pairs(read_manifest(write(tmp_path, *lines)))
    assert first != hash_pairs(read_manifest(write(tmp_path, lines[0], lines[1].replace(",0,", ",1,"))))
    assert first != hash_pairs(read_manifest(write(tmp_path, *(line.replace("others", "north-up") for line in lines))))
    again = write(tmp_path, *lines, encoding="utf-8-sig")
    assert first == hash_pairs(read_manifest(again))


def test_columns_may_come_in_any_order_and_with_others(tmp_path: Path) -> None:
    path = write(tmp_path, "x,1,others,images/t1.jpg,images/a.jpg", header="note,positive,split,candidate, query")
    (pair,) = read_manifest(path)
    assert (pair.image0.name, pair.image1.name, pair.positive) == ("a.jpg", "t1.jpg", True)


GOOD = "images/a.jpg,images/t1.jpg,1,others"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/a.jpg,images/t2.jpg,yes,others", "line 3: positive must be 0 or 1, got 'yes'"),
        ("images/a.jpg,images/t2.jpg,1,south-up", "line 3: split must be north-up or others, got 'south-up'"),
        ("images/c.jpg,images/t2.jpg,1,others", "line 3: there is no query .*c.jpg"),
        ("images/a.jpg,images/t3.jpg,1,others", "line 3: there is no candidate .*t3.jpg"),
        ("images/a.jpg,,1,others", "line 3: candidate is empty"),
        ("images/a.jpg,images/t2.jpg,1", "line 3: 3 fields, but the header has 4"),
        ("images/a.jpg,images/t2.jpg,1,others,x", "line 3: 5 fields, but the header has 4"),
        (GOOD, "line 3: the same query and candidate as in line 2"),
        ("images/a.jpg,images/t2.jpg,1,north-up", "line 3: images/a.jpg is north-up here but others in line 2"),
        ('images/a.jpg,"images/t2.jpg,1,others', "not a CSV file"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_manifest(write(tmp_path, GOOD, line))


def test_errors_of_the_whole(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no manifest .*manifest.csv; get the Astronaut Image"):
        read_manifest(tmp_path / "manifest.csv")
    with pytest.raises(ValueError, match="line 1: the header lacks positive, split"):
        read_manifest(write(tmp_path, header="query,candidate"))
    with pytest.raises(ValueError, match="lists 1 pairs and no positive one"):
        read_manifest(write(tmp_path, GOOD.replace(",1,", ",0,")))
    with pytest.raises(ValueError, match="lists 0 pairs"):
        read_manifest(write(tmp_path))
    latin = write(tmp_path, GOOD)
    latin.write_bytes(b"query,candidate,positive,split\n\xe9.jpg,t,1,others\n")
    with pytest.raises(ValueError, match="not a CSV file in UTF-8"):
        read_manifest(latin)
