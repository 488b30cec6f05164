"""The manifest of an AIMS-like benchmark: which pairs there are, and which of them show the same place.

A CSV file in UTF-8 with a line for each pair and the columns

- ``query``: the photograph, and ``candidate``: the satellite image, as paths from the folder of the manifest;
- ``positive``: 1 if they show the same place, else 0;
- ``split``: ``north-up`` or ``others``, the same for all pairs of a photograph.

The order of columns is free, and further ones are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from steerers.benchmarks.protocol import Pair

Split = Literal["north-up", "others"]
COLUMNS = ("query", "candidate", "positive", "split")
MANIFEST = "manifest.csv"
HELP = (
    "get the Astronaut Image Matching Subset (Stoken and Fisher, Find My Astronaut Photo, CVPR workshops 2023) from "
    "its authors, or what https://github.com/gmberton/EarthMatch has of it, or photographs and maps of your own, and "
    f"write DIR/{MANIFEST}: a CSV file with the header {','.join(COLUMNS)} and a line for each pair, paths from its "
    "folder, positive 0 or 1, split north-up or others"
)


@dataclass(frozen=True, kw_only=True)
class AimsPair(Pair):
    """A photograph (image 0) and a satellite image, with whether they show the same place."""

    positive: bool
    split: Split

    def key(self) -> dict[str, Any]:
        return {**super().key(), "positive": self.positive, "split": self.split}


def read_manifest(path: Path) -> list[AimsPair]:
    """The pairs that a manifest lists, those of one photograph together, photographs as they first appear.

    Raises:
        ValueError: naming the line and what is wrong with it.
    """
    if not path.is_file():
        raise ValueError(f"there is no manifest {path}; {HELP}")
    reader = _Reader(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            reader.read_header(next(rows, []))
            for row in rows:
                if row:
                    reader.read(rows.line_num, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    pairs = [pair for group in reader.by_query.values() for pair in group]
    if not any(pair.positive for pair in pairs):
        raise ValueError(f"{path} lists {len(pairs)} pairs and no positive one; average precision needs some")
    return pairs


class _Reader:
    """The lines of a manifest so far, to check the next against."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path.parent
        self.places: list[int] = []
        self.lines: dict[str, int] = {}  # of pairs, by name
        self.by_query: dict[str, list[AimsPair]] = {}
        self.files: dict[str, Path] = {}

    def read_header(self, header: Sequence[str]) -> None:
        names = [name.strip() for name in header]
        lacking = [name for name in COLUMNS if name not in names]
        if lacking:
            raise ValueError(f"{self.path}, line 1: the header lacks {', '.join(lacking)}; {HELP}")
        self.width = len(names)
        self.places = [names.index(name) for name in COLUMNS]

    def read(self, line: int, row: Sequence[str]) -> None:
        where = f"{self.path}, line {line}"
        if len(row) != self.width:
            raise ValueError(f"{where}: {len(row)} fields, but the header has {self.width}")
        query, candidate, positive, split = (row[place].strip() for place in self.places)
        if positive not in ("0", "1"):
            raise ValueError(f"{where}: positive must be 0 or 1, got {positive!r}")
        if split not in get_args(Split):
            raise ValueError(f"{where}: split must be {' or '.join(get_args(Split))}, got {split!r}")
        name = f"{query} {candidate}"
        pair = AimsPair(
            name,
            query,
            self._file(where, "query", query),
            self._file(where, "candidate", candidate),
            positive=positive == "1",
            split="north-up" if split == "north-up" else "others",
        )
        if name in self.lines:
            raise ValueError(f"{where}: the same query and candidate as in line {self.lines[name]}")
        others = self.by_query.setdefault(query, [])
        if others and others[0].split != split:
            raise ValueError(
                f"{where}: {query} is {split} here but {others[0].split} in line {self.lines[others[0].name]}"
            )
        self.lines[name] = line
        others.append(pair)

    def _file(self, where: str, column: str, written: str) -> Path:
        if not written:
            raise ValueError(f"{where}: {column} is empty")
        if written not in self.files:
            path = self.folder / written
            if not path.is_file():
                raise ValueError(f"{where}: there is no {column} {path}")
            self.files[written] = path
        return self.files[written]
