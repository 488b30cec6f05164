"""Pairs of images, and the sets of rotations under which benchmarks match them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from steerers.benchmarks.runs import sha256

Rotation = Literal["upright", "fixed", "quarter", "all", "joint", "c4", "so2"]
ROTATIONS: dict[Rotation, str] = {
    "upright": "as stored",
    "fixed": "second image of pair i rotated by (50 i + 40) mod 360 degrees",
    "quarter": "second image rotated by 90, 180 and 270 degrees",
    "all": "second image rotated by 0, 10, ..., 350 degrees",
    "joint": "both images rotated by the same 90, 180 and 270 degrees",
    "c4": "second image of pair i rotated by (i mod 4) 90 degrees",
    "so2": "second image of pair i rotated by (i mod 36) 10 degrees",
}


@dataclass(frozen=True)
class Pair:
    """Two images of a benchmark, and the rotations, in degrees counter-clockwise, under which they are matched."""

    name: str
    sequence: str
    image0: Path
    image1: Path
    rotation0: int = 0
    rotation1: int = 0

    def key(self) -> dict[str, Any]:
        """What makes it this pair, without the folder that the data lies in; benchmarks add their ground truth."""
        return {"name": self.name, "rotation0": self.rotation0, "rotation1": self.rotation1}


AnyPair = TypeVar("AnyPair", bound=Pair)


def rotate_pairs(pairs: Sequence[AnyPair], rotation: Rotation) -> list[AnyPair]:
    """The pairs under every rotation of a set of rotations, those of one pair together."""
    if rotation not in get_args(Rotation):
        raise ValueError(f"unknown rotation {rotation!r}; use one of {', '.join(ROTATIONS)}")
    return [
        replace(pair, rotation0=first, rotation1=second)
        for index, pair in enumerate(pairs)
        for first, second in _rotations(rotation, index)
    ]


def _rotations(rotation: Rotation, index: int) -> list[tuple[int, int]]:
    rotations: dict[Rotation, list[tuple[int, int]]] = {
        "upright": [(0, 0)],
        "fixed": [(0, (50 * index + 40) % 360)],
        "quarter": [(0, 90), (0, 180), (0, 270)],
        "all": [(0, degrees) for degrees in range(0, 360, 10)],
        "joint": [(90, 90), (180, 180), (270, 270)],
        "c4": [(0, index % 4 * 90)],
        "so2": [(0, index % 36 * 10)],
    }
    return rotations[rotation]


def hash_pairs(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the list of pairs: names, rotations and ground truth, wherever the data lies."""
    return sha256([pair.key() for pair in pairs])


def choose(
    found: dict[str, Path], wanted: Sequence[str] | None, folder: Path, what: str = "sequence"
) -> dict[str, Path]:
    """Of the sequences of a folder, by name, those that are wanted; all if ``wanted`` is ``None``."""
    for name in wanted or ():
        if name not in found:
            raise ValueError(f"{folder} has no {what} {name!r}; it has {', '.join(found)}")
    return found if wanted is None else {name: found[name] for name in dict.fromkeys(wanted)}
