"""Which photographs are matched with which: all, those that follow one another, near on the ground, or similar.

Every choice is a set of pairs of names; a union of several is one too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from steerers._console import tell
from steerers.collection.retrieval import Similarities
from steerers.collection.store import Collection, Pair, Photograph
from steerers.images.exif import EARTH_RADIUS, ground_distance

if TYPE_CHECKING:
    from steerers._files import StrPath

_BLOCK = 1024  # photographs whose distances to all others are computed at once


@dataclass(frozen=True)
class Choice:
    """Which pairs are taken: the union of all that is asked for.

    Attributes:
        exhaustive: all.
        sequential: each photograph with so many that follow it in the order of names, in which 9 comes before 10.
        loop: also with as many of those further away in that order to which it is most similar: where a path comes back
            to where it was.
        gps: each with so many that are nearest on the ground, by their EXIF data.
        metres: of those, only what is at most so far apart.
        similar: each with so many to which it is most similar, see :mod:`steerers.collection.retrieval`.
    """

    exhaustive: bool = False
    sequential: int | None = None
    loop: bool = False
    gps: int | None = None
    metres: float | None = None
    similar: int | None = None

    def __post_init__(self) -> None:
        if not (self.exhaustive or self.sequential or self.gps or self.similar):
            raise ValueError("say which pairs: --exhaustive, --sequential N, --gps K, --similar K, or several of them")
        if self.loop and not self.sequential:
            raise ValueError("--loop goes with --sequential N")
        if self.metres is not None and not self.gps:
            raise ValueError("--metres goes with --gps K")


def choose_pairs(
    collection: Collection, choice: Choice, *, device: str | torch.device = "cpu", weights: Sequence[StrPath] = ()
) -> list[Pair]:
    """Choose pairs among the photographs with features, and write them to ``pairs.txt``.

    Args:
        device: where similarities are computed; ``weights`` as of :meth:`Collection.load_pipeline`, for the steerer.

    Returns:
        The pairs, sorted.

    Raises:
        ValueError: if that makes no pair, or positions are asked for and no photograph has one.
    """
    photographs = collection.photographs()
    if len(photographs) < 2:
        raise ValueError(f"pairs need two photographs with features, and {collection.folder} has {len(photographs)}")
    left = collection.status()["photographs"].left
    if left:
        tell(f"{left} photographs have no features yet, and are in no pair")
    names = sorted((photograph.name for photograph in photographs), key=natural)
    similarities = None
    if choice.similar or choice.loop:
        similarities = Similarities.of(collection, names, device=device, weights=weights)
    pairs: set[Pair] = set()
    if choice.exhaustive:
        pairs.update(combinations(names, 2))
    if choice.sequential:
        pairs.update(sequential_pairs(names, choice.sequential))
    if choice.gps:
        pairs.update(near_pairs(photographs, choice.gps, choice.metres))
    if similarities is not None and choice.similar:
        pairs.update(similarities.nearest(choice.similar))
    if similarities is not None and choice.loop:
        pairs.update(similarities.nearest(choice.sequential or 1, beyond=choice.sequential))
    if not pairs:
        raise ValueError(f"no two photographs of {collection.folder} are a pair by what was asked for")
    return collection.set_pairs(pairs)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """By which names are sorted as people count: 9 before 10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def sequential_pairs(names: Sequence[str], following: int) -> list[Pair]:
    """Each name with so many that follow it."""
    return [(name, other) for index, name in enumerate(names) for other in names[index + 1 : index + 1 + following]]


# On the ground --------------------------------------------------------------------------------------------------------


def near_pairs(photographs: Sequence[Photograph], count: int, metres: float | None = None) -> list[Pair]:
    """Each photograph with a position and the ``count`` nearest others, at most so many metres away.

    How far that is, is told: a position that is wrong by a country has nearest others too.

    Raises:
        ValueError: if less than two have a position, or no two are that near.
    """
    placed = [
        (photograph.name, photograph.position[:2]) for photograph in photographs if photograph.position is not None
    ]
    if len(placed) < 2:
        raise ValueError(f"{len(placed)} of {len(photographs)} photographs have a GPS position in their EXIF data")
    if len(placed) < len(photographs):
        tell(f"{len(photographs) - len(placed)} of {len(photographs)} photographs have no GPS position")
    nearest = _nearest(_in_metres([position for _, position in placed]), count)
    far: dict[str, float] = {}  # of those with no other near enough, how far the nearest is
    pairs: dict[Pair, float] = {}
    for index, others in enumerate(nearest):
        name, position = placed[index]
        apart = [(ground_distance(position, placed[other][1]), placed[other][0]) for other in others]
        near = [(distance, other) for distance, other in apart if metres is None or distance <= metres]
        pairs |= {(min(name, other), max(name, other)): distance for distance, other in near}
        if not near:
            far[name] = min(distance for distance, _ in apart)
    _tell_distances(pairs, far, metres)
    return list(pairs)


def _tell_distances(pairs: dict[Pair, float], far: dict[str, float], metres: float | None) -> None:
    if far:
        name = max(far, key=lambda name: (far[name], name))
        told = f"the nearest to {name} is {far[name]:,.0f} m away"
        if not pairs:
            raise ValueError(f"no two photographs are within {metres:g} m: {told}")
        tell(f"{len(far)} photographs have no other within {metres:g} m; {told}")
    distances = sorted(pairs.values())
    furthest = max(pairs, key=lambda pair: (pairs[pair], pair))
    told = f"{distances[len(distances) // 2]:,.0f} m in the middle, {distances[-1]:,.0f} m at most"
    tell(f"{len(pairs)} pairs by GPS: {told} ({' and '.join(furthest)})")
    if metres is None and distances[-1] > 100 * max(1.0, distances[len(distances) // 2]):
        tell("a position may be wrong: --metres M leaves out what is further apart")


def _in_metres(positions: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """(N, 3) points of a round earth around their mean, so that small distances keep their digits."""
    latitude, longitude = np.radians(np.array(positions, dtype=np.float64)).T
    around = np.cos(latitude)
    points = np.stack([around * np.cos(longitude), around * np.sin(longitude), np.sin(latitude)], axis=1)
    metres: NDArray[np.float64] = EARTH_RADIUS * (points - points.mean(axis=0))
    return metres


def _nearest(points: NDArray[np.float64], count: int) -> list[list[int]]:
    """Of each of (N, 3) points the indices of the nearest others; of equal ones the first."""
    count, lengths, found = min(count, len(points) - 1), (points**2).sum(axis=1), []
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        squared = lengths[start : start + _BLOCK, None] + lengths - 2 * block @ points.T  # (B, N)
        squared[np.arange(len(block)), start + np.arange(len(block))] = np.inf
        for row in squared:
            within = np.partition(row, count - 1)[count - 1]
            candidates = np.flatnonzero(row <= within)
            found.append(candidates[np.argsort(row[candidates], kind="stable")][:count].tolist())
    return found
