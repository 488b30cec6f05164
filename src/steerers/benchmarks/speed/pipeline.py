"""Extracting and matching many images: one by one, against batches that are read ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from steerers.benchmarks.speed.measure import now
from steerers.features import Features, Matches
from steerers.pipeline import Pipeline


@dataclass(frozen=True)
class Row:
    """A way to go through the images."""

    way: str
    seconds: float
    images_per_second: float
    matches: int | None
    """Of each image with the next."""


def bench_pipeline(matcher: Pipeline, paths: Sequence[Path], batch: int | None = None, repeats: int = 3) -> list[Row]:
    """Time the ways to extract all images and match each with the next, after one run of all of it.

    Args:
        batch: see :meth:`Pipeline.extract`.
    """
    if len(paths) < 2:
        raise ValueError(f"there must be at least two images to match, got {len(paths)}")
    files = list(paths)
    loaded = [matcher.load_image(path) for path in files]
    ways: dict[str, Callable[[], list[Features]]] = {
        "reading alone": lambda: _read_only(matcher, files),
        "one by one": lambda: [matcher.extract(path) for path in files],
        "together": lambda: matcher.extract(files, batch=batch),
        "one by one, read before": lambda: [matcher.extract(image) for image in loaded],
        "together, read before": lambda: matcher.extract(loaded, batch=batch),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    matches: dict[str, int | None] = {}
    for _ in range(repeats + 1):
        for way, extract in ways.items():  # in turn, so that a change of the machine's pace meets all of them
            start = now(matcher.device)
            found = _match_neighbours(matcher, extract())
            taken[way].append(now(matcher.device) - start)
            matches[way] = sum(map(len, found)) if found else None
    return [
        Row(way, median(seconds[1:]), len(files) / median(seconds[1:]), matches[way]) for way, seconds in taken.items()
    ]


def _read_only(matcher: Pipeline, paths: Sequence[Path]) -> list[Features]:
    for path in paths:
        matcher.load_image(path)
    return []


def _match_neighbours(matcher: Pipeline, features: Sequence[Features]) -> list[Matches]:
    return [matcher.match(first, second) for first, second in pairwise(features)]
