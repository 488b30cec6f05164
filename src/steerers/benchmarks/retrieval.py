"""Retrieval: whether a rotated photograph finds its neighbours, by what no rotation changes in its descriptions.

Photographs of a folder were taken one after the other, as along a path, so that those next to each other in the order
of names show the same: they are what shall be found. Of each model that has a steerer, descriptions are pooled in two
ways, as they are and by their invariants (:mod:`steerers.collection.retrieval`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steerers._console import progress
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import Report, Table, TableRow, environment, number, percent, text
from steerers.benchmarks.runs import Run, hash_files
from steerers.collection.retrieval import AXES, SAMPLE, WORDS, Vocabulary
from steerers.datasets.photos import find_images
from steerers.steering.irreps import Irreps

POOLED = ("as they are", "what no rotation changes")
TOP = 10
COLUMNS = (
    text("model", "label"),
    text("descriptions", "pooled"),
    number("numbers", "dim"),
    *(
        percent(f"{title}, {how}", how, name)
        for how in ("upright", "rotated")
        for name, title in (("first", "a neighbour first"), ("found", f"neighbours in the first {TOP}"))
    ),
)


@dataclass(frozen=True)
class RetrievalSettings:
    """What is looked for.

    Attributes:
        within: how many places apart neighbours are at most, in the order of names.
        seed: of the rotations of the queries.
    """

    num_keypoints: int
    max_size: int
    within: int = 2
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Described:
    """The (N, D) descriptions of a photograph as it is, and rotated by a random angle."""

    upright: Tensor
    rotated: Tensor


def neighbours_of(photos: Sequence[Path], within: int) -> list[set[int]]:
    """Of each photograph the indices of those that shall be found: near it in its folder."""
    found: list[set[int]] = []
    for _, group in groupby(range(len(photos)), key=lambda index: photos[index].parent):
        scene = list(group)
        found += [{other for other in scene if 0 < abs(other - index) <= within} for index in scene]
    return found


def describe(run: Run, photos: Sequence[Path], seed: int) -> list[Described]:
    """Describe photographs twice: as they are, and rotated by angles that follow from the seed."""
    generator = torch.Generator().manual_seed(seed)
    angles = (math.pi * (2 * torch.rand(len(photos), generator=generator, dtype=torch.float64) - 1)).tolist()
    found = []
    for photo, angle in progress(list(zip(photos, angles, strict=True)), f"describing by {run.label}"):
        image = run.pipeline.load_image(photo)
        rotated = run.pipeline.extract_rotated(image, angle).descriptions
        found.append(Described(run.pipeline.extract(image).descriptions, rotated))
    return found


def measure(described: Sequence[Described], neighbours: Sequence[set[int]], irreps: Irreps | None) -> dict[str, Any]:
    """How often a neighbour comes first, and how many of them are among the first, by vectors of all photographs."""
    vocabulary = Vocabulary.learn([one.upright for one in described], irreps)
    kept = torch.stack([vocabulary.vector(one.upright) for one in described])
    asked = {"upright": kept, "rotated": torch.stack([vocabulary.vector(one.rotated) for one in described])}
    rows = {how: _rank(vectors @ kept.mT, neighbours) for how, vectors in asked.items()}
    return {"dim": kept.shape[1], **rows}


def _rank(cosines: Tensor, neighbours: Sequence[set[int]]) -> dict[str, float]:
    """Of (N, N) cosines of queries and what is kept; nobody finds himself."""
    cosines.fill_diagonal_(-torch.inf)
    order = cosines.argsort(dim=1, descending=True, stable=True)[:, :TOP].tolist()
    pairs = list(zip(order, neighbours, strict=True))
    found = sum(len(near & set(first)) for first, near in pairs)
    return {
        "first": sum(first[0] in near for first, near in pairs) / len(pairs),
        "found": found / sum(map(len, neighbours)),
    }


def evaluate(runs: Sequence[Run], photos: Sequence[Path], settings: RetrievalSettings) -> list[TableRow]:
    """A row a model and way to pool."""
    neighbours = neighbours_of(photos, settings.within)
    rows: list[TableRow] = []
    for run in runs:
        described, steerer = describe(run, photos, settings.seed), run.pipeline.model.steerer
        ways = [None] if steerer is None else [None, Irreps.of(steerer)]
        for pooled, irreps in zip(POOLED, ways, strict=False):
            rows.append({"label": run.label, "pooled": pooled, **measure(described, neighbours, irreps)})
    return rows


def make_report(
    rows: list[TableRow], photos: Sequence[Path], settings: RetrievalSettings, where: dict[str, Any]
) -> Report:
    """One table."""
    facts = {"num_photos": len(photos), "photos_sha256": hash_files(photos)}
    about = (
        f"{len(photos)} photographs, longest side {settings.max_size} px, at most {settings.num_keypoints} keypoints. "
        f"Each is looked for among all others, as it is and rotated by a random angle (seed {settings.seed}); at most "
        f"{settings.within} places away in the order of names, in the same folder, others are its neighbours. VLAD of "
        f"{WORDS} words and at most {AXES} axes, learnt from {SAMPLE} descriptions of each photograph, upright."
    )
    table = Table("photographs that find their neighbours, per cent", COLUMNS, rows, facts)
    return Report(
        benchmark="retrieval", description=about, settings=asdict(settings), environment=where, tables=[table], plots={}
    )


class _Retrieval(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        for name in arguments.models:
            if set(name) & set(":?"):
                raise ValueError(f"cannot measure {name!r}: nothing is matched here; give MODEL[@DETECTOR] alone")
        settings = RetrievalSettings(arguments.num_keypoints, arguments.max_size, arguments.within, arguments.seed)
        photos = sorted(find_images(arguments.data), key=lambda path: (path.parent, path.name))
        if not any(neighbours_of(photos, settings.within)):
            raise ValueError(f"no two photographs of {arguments.data} are in one folder: nothing could be found")
        rows = evaluate(self.load_runs(arguments, device), photos, settings)
        return make_report(rows, photos, settings, environment(device))


RETRIEVAL = _Retrieval(offer=offers.RETRIEVAL)
