"""AIMS: which satellite images show the place of an astronaut's photograph (paper, section 6.3 and its appendix).

Every photograph comes with satellite images of the region that it may show. A pair is scored by the number of inliers
of its homography, 0 where there is none; over all pairs the scores make one precision-recall curve, and the average
precision is the area under the whole of it. "North Up" are photographs that are rotated little, "All Others" the rest.
The paper takes the Scale-1 subset, with all satellite images of each photograph.

The data is described by a manifest. A CSV file in UTF-8 with a line for each pair and the columns

- ``query``: the photograph, and ``candidate``: the satellite image, as paths from the folder of the manifest;
- ``positive``: 1 if they show the same place, else 0;
- ``split``: ``north-up`` or ``others``, the same for all pairs of a photograph.

The order of columns is free, and further ones are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, by_sequence
from steerers.benchmarks.homographies import HomographyEstimator
from steerers.benchmarks.metrics import PrecisionRecall, mean, precision_recall
from steerers.benchmarks.predict import Pair, Prediction
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, Draw, TableRow, failed_fraction, number, percent
from steerers.viz import plots

GROUPS = {"north-up": "North Up", "all-others": "All Others", "all": "All"}
"""What the average precision is given for: keys of rows, and the paper's names."""
AimsSplit = Literal["north-up", "others"]
MANIFEST_COLUMNS = ("query", "candidate", "positive", "split")
MANIFEST = "manifest.csv"
HELP = (
    "get the Astronaut Image Matching Subset (Stoken and Fisher, Find My Astronaut Photo, CVPR workshops 2023) from "
    "its authors, or what https://github.com/gmberton/EarthMatch has of it, or photographs and maps of your own, and "
    f"write DIR/{MANIFEST}: a CSV file with the header {','.join(MANIFEST_COLUMNS)} and a line for each pair, "
    "paths from its folder, positive 0 or 1, split north-up or others"
)


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AimsPair(Pair):
    """A photograph (image 0) and a satellite image, with whether they show the same place."""

    positive: bool
    split: AimsSplit

    def key(self) -> dict[str, Any]:
        return {**super().key(), "positive": self.positive, "split": self.split}


def read_manifest(path: Path) -> list[AimsPair]:
    """The pairs that a manifest lists, those of one photograph together, photographs as they first appear.

    Raises:
        ValueError: naming the line and what is wrong with it.
    """
    if not path.is_file():
        raise ValueError(f"there is no manifest {path}; {HELP}")
    found: dict[str, dict[str, tuple[int, AimsPair]]] = {}  # line and pair by query and candidate
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            lacking = [name for name in MANIFEST_COLUMNS if name not in header]
            if lacking:
                raise ValueError(f"{path}, line 1: the header lacks {', '.join(lacking)}; {HELP}")
            for row in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(header):
                    raise ValueError(f"{where}: {len(row)} fields, but the header has {len(header)}")
                fields = {name: value.strip() for name, value in zip(header, row, strict=True)}
                try:
                    _add(found, rows.line_num, _read_pair(path.parent, fields))
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    pairs = [pair for group in found.values() for _, pair in group.values()]
    if not any(pair.positive for pair in pairs):
        raise ValueError(f"{path} lists {len(pairs)} pairs and no positive one; average precision needs some")
    return pairs


def _read_pair(folder: Path, fields: dict[str, str]) -> AimsPair:
    query, candidate, positive, split = (fields[name] for name in MANIFEST_COLUMNS)
    if positive not in ("0", "1"):
        raise ValueError(f"positive must be 0 or 1, got {positive!r}")
    if split not in get_args(AimsSplit):
        raise ValueError(f"split must be {' or '.join(get_args(AimsSplit))}, got {split!r}")
    for column in ("query", "candidate"):
        if not fields[column]:
            raise ValueError(f"{column} is empty")
        if not (folder / fields[column]).is_file():
            raise ValueError(f"there is no {column} {folder / fields[column]}")
    return AimsPair(
        f"{query} {candidate}",
        query,
        folder / query,
        folder / candidate,
        positive=positive == "1",
        split="north-up" if split == "north-up" else "others",
    )


def _add(found: dict[str, dict[str, tuple[int, AimsPair]]], line: int, pair: AimsPair) -> None:
    """Beside the pairs of the same photograph, none of which may be the same or of another split."""
    others = found.setdefault(pair.sequence, {})
    if pair.name in others:
        raise ValueError(f"the same query and candidate as in line {others[pair.name][0]}")
    for first_line, first in list(others.values())[:1]:
        if first.split != pair.split:
            raise ValueError(f"{pair.sequence} is {pair.split} here but {first.split} in line {first_line}")
    others[pair.name] = line, pair


# Measuring ------------------------------------------------------------------------------------------------------------


def paper_estimator(threshold: float = 5.0, seed: int = 0) -> HomographyEstimator:
    """The paper's settings of OpenCV's USAC_MAGSAC."""
    return HomographyEstimator(threshold=threshold, confidence=0.999, max_iterations=10_000, seed=seed)


@dataclass(frozen=True)
class AimsOutcome:
    """One pair of one run: its score is ``num_inliers``, 0 where no homography was found."""

    positive: bool
    split: AimsSplit
    num_inliers: int
    failed: bool
    angle: float | None  # estimated, degrees


def measure_pair(pair: AimsPair, prediction: Prediction, estimator: HomographyEstimator) -> AimsOutcome:
    """Score a pair by its matches, the threshold in pixels of the images at their short side."""
    H, num_inliers = estimator.estimate(prediction.matches)
    return AimsOutcome(
        positive=pair.positive,
        split=pair.split,
        num_inliers=num_inliers,
        failed=H is None,
        angle=prediction.matches.angle,
    )


def curves_of(found: Sequence[AimsOutcome]) -> dict[str, PrecisionRecall | None]:
    """The curve of each of :data:`GROUPS`; ``None`` for one without positive pairs."""
    curves: dict[str, PrecisionRecall | None] = {}
    for name in GROUPS:
        group = [outcome for outcome in found if name == "all" or name.removeprefix("all-") == outcome.split]
        positive = [outcome.positive for outcome in group]
        scores = [outcome.num_inliers for outcome in group]
        curves[name] = precision_recall(scores, positive) if any(positive) else None
    return curves


def summarise(found: Sequence[AimsOutcome]) -> TableRow:
    """The numbers of a table's row; average precision is 0 to 1, and ``None`` without positive pairs."""
    inliers = {truth: [o.num_inliers for o in found if o.positive == truth] for truth in (True, False)}
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "ap": {name: curve and curve.average_precision for name, curve in curves_of(found).items()},
        "num_positive": len(inliers[True]),
        "num_inliers_positive": mean(inliers[True]),
        "num_inliers_negative": mean(inliers[False]),
    }


# The benchmark --------------------------------------------------------------------------------------------------------


AimsResult = Result[AimsPair, AimsOutcome, HomographyEstimator]


def _describe(result: AimsResult) -> str:
    pairs = result.evaluations[0].pairs
    positive = sum(pair.positive for pair in pairs)
    theirs = " Rows of the paper are of AIMS (Scale-1), whatever the data here is." if result.has_paper else ""
    return (
        f"{len({pair.sequence for pair in pairs})} photographs, {len(pairs)} pairs, {positive} of them positive, so "
        f"that scores by chance have an average precision of about {100 * positive / len(pairs):.1f} %. "
        f"{result.describe_views()} The score of a pair is the number of inliers of its homography by "
        f"{result.options}; 0 where there is none (failed). Average precision in per cent, over the whole "
        f"precision-recall curve, equal scores as one step; inliers+ and inliers- are means over positive and negative "
        f"pairs; {COSTS}{theirs}"
    )


def _plots(result: AimsResult) -> dict[str, Draw]:
    rows = result.evaluations[0].rows
    drawn = [group for group in GROUPS if any(curves_of(row.outcomes)[group] for row in rows)]
    return {f"precision-recall-{group}.png": partial(_plot, result, group) for group in drawn}


def _plot(result: AimsResult, group: str, path: Path) -> None:
    """Precision over recall in steps, so that the area under a line is its average precision."""
    found = {row.run.label: curves_of(row.outcomes)[group] for row in result.evaluations[0].rows}
    series = {
        f"{label}, {100 * curve.average_precision:.1f}": (
            np.concatenate([[0.0], 100 * curve.recall]),
            np.concatenate([100 * curve.precision[:1], 100 * curve.precision]),
        )
        for label, curve in found.items()
        if curve is not None
    }
    plots.curves(
        path,
        series,
        xlabel="recall, per cent",
        ylabel="precision, per cent",
        title=f"aims, {GROUPS[group]}",
        step="pre",
        xlim=(0, 100),
        ylim=(0, 102),
    )


AIMS = PairBenchmark(
    offer=offers.AIMS,
    list_pairs=lambda arguments: read_manifest(arguments.manifest or arguments.data / MANIFEST),
    options=paper_estimator(),
    read_options=lambda arguments: paper_estimator(arguments.threshold, arguments.seed),
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(percent(title, "ap", group) for group, title in GROUPS.items()),
        number("inliers+", "num_inliers_positive", form="{:.1f}"),
        number("inliers-", "num_inliers_negative", form="{:.1f}"),
        number("matches", "num_matches"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=HomographyEstimator.settings,
    title=lambda estimator: "average precision",
    groups={"by_query": by_sequence},
    facts=lambda pairs: {
        "num_queries": len({pair.sequence for pair in pairs}),
        "num_positive": sum(pair.positive for pair in pairs),
    },
    plots=_plots,
)
