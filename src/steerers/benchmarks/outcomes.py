"""What benchmarks on pairs of images make of predictions: an outcome a pair, a row a run, a table a rotation.

A benchmark brings the function that measures one pair and the one that summarises some; here is the way between, and
what all of them report: keypoints, matches and times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

import numpy as np

from steerers.benchmarks import protocol
from steerers.benchmarks import store as kept
from steerers.benchmarks.protocol import ROTATIONS, AnyPair, Observer, Pair, Prediction, Predictions, Settings
from steerers.benchmarks.report import Column, Table
from steerers.benchmarks.runs import Run, describe_strategy
from steerers.viz.progress import progress

COSTS = "s/image is extraction, images/pair how often it runs, s/pair matching."
"""What the columns of costs mean, for a report's description."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One pair of one run, measured: what every benchmark knows of it."""

    name: str
    sequence: str
    rotation0: int
    rotation1: int
    num_keypoints: tuple[int, int]
    num_matches: int
    extractions: int
    extraction_seconds: float
    matching_seconds: float


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


@dataclass(frozen=True, eq=False)
class Row(Generic[AnyOutcome]):
    """A run over all pairs."""

    run: Run
    predictions: Predictions
    outcomes: list[AnyOutcome]


@dataclass(frozen=True, eq=False)
class Evaluation(Generic[AnyPair, AnyOutcome]):
    """Runs side by side on the same pairs, rotated by one set of rotations."""

    rotation: protocol.Rotation
    pairs: list[AnyPair]
    rows: list[Row[AnyOutcome]]


# Measuring ------------------------------------------------------------------------------------------------------------


def evaluate(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    rotation: protocol.Rotation,
    measure_pair: Callable[[AnyPair, Prediction], AnyOutcome],
    *,
    settings: Settings | None = None,
    observe: Observer[AnyPair] | None = None,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> Evaluation[AnyPair, AnyOutcome]:
    """Rotate the pairs, match them or take what ``cache`` holds, and measure.

    Args:
        pairs: upright.
        observe, cache, made: see :func:`~steerers.benchmarks.store.predict_or_load`.
    """
    rotated = protocol.rotate_pairs(pairs, rotation)
    predictions = kept.predict_or_load(runs, rotated, settings, observe, cache=cache, made=made)
    rows = [
        Row(run, found, measure(rotated, found, measure_pair)) for run, found in zip(runs, predictions, strict=True)
    ]
    return Evaluation(rotation, rotated, rows)


def measure(
    pairs: Sequence[AnyPair], predictions: Predictions, measure_pair: Callable[[AnyPair, Prediction], AnyOutcome]
) -> list[AnyOutcome]:
    """Every pair of a run; the estimators work beside Python, so several at once."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(measure_pair, pairs, predictions.pairs)
        return list(progress(found, f"estimating {predictions.label}", total=len(pairs)))


def common(pair: Pair, prediction: Prediction) -> dict[str, Any]:
    """The fields of :class:`Outcome`."""
    return {
        "name": pair.name,
        "sequence": pair.sequence,
        "rotation0": pair.rotation0,
        "rotation1": pair.rotation1,
        "num_keypoints": prediction.num_keypoints,
        "num_matches": len(prediction.matches),
        "extractions": prediction.extractions,
        "extraction_seconds": prediction.extraction_seconds,
        "matching_seconds": prediction.matching_seconds,
    }


# Reporting ------------------------------------------------------------------------------------------------------------

GROUPS: dict[str, Callable[[Any], str]] = {
    "by_rotation": lambda outcome: str(outcome.rotation1),
    "by_sequence": lambda outcome: str(outcome.sequence),
}


def summarise_common(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means over pairs; times in seconds."""
    runs = sum(outcome.extractions for outcome in outcomes)
    return {
        "num_pairs": len(outcomes),
        "num_matches": fmean(outcome.num_matches for outcome in outcomes),
        "num_keypoints": fmean(count for outcome in outcomes for count in outcome.num_keypoints),
        "extractions_per_pair": runs / len(outcomes),
        "seconds_per_image": sum(outcome.extraction_seconds for outcome in outcomes) / runs,
        "seconds_per_pair": fmean(outcome.matching_seconds for outcome in outcomes),
    }


def make_table(
    evaluation: Evaluation[AnyPair, AnyOutcome],
    columns: tuple[Column, ...],
    summarise: Callable[[Sequence[AnyOutcome]], dict[str, Any]],
    *,
    title: str | None = None,
    groups: Mapping[str, Callable[[AnyOutcome], str]] = GROUPS,
    more_rows: Sequence[dict[str, Any]] = (),
) -> Table:
    """The table of an evaluation; its rows keep every pair.

    Args:
        groups: for which the numbers are given apart too, in JSON: a name, and the group of an outcome.
        more_rows: shown below, of the paper.
    """
    rotation = evaluation.rotation
    rows = [
        {
            **identify(row.run),
            "made": row.predictions.made,
            **summarise(row.outcomes),
            **{name: _grouped(row.outcomes, summarise, key) for name, key in groups.items()},
            "pairs": [asdict(outcome) for outcome in row.outcomes],
        }
        for row in evaluation.rows
    ]
    facts = {
        "rotation": rotation,
        "description": ROTATIONS[rotation],
        "num_pairs": len(evaluation.pairs),
        "pairs_sha256": protocol.hash_pairs(evaluation.pairs),
    }
    return Table(title or f"{rotation}: {ROTATIONS[rotation]}", columns, [*rows, *more_rows], facts)


def identify(run: Run) -> dict[str, Any]:
    """Which matcher a row is of: what :data:`~steerers.benchmarks.report.MODEL_COLUMNS` show."""
    pipeline = run.pipeline
    return {
        "label": run.label,
        "model": pipeline.model.name,
        "strategy": describe_strategy(pipeline.strategy, pipeline.tta),
    }


def _grouped(
    outcomes: Sequence[AnyOutcome],
    summarise: Callable[[Sequence[AnyOutcome]], dict[str, Any]],
    key: Callable[[AnyOutcome], str],
) -> dict[str, Any]:
    groups: dict[str, list[AnyOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return {name: summarise(group) for name, group in groups.items()}


def list_keypoints(evaluations: Sequence[Evaluation[AnyPair, AnyOutcome]]) -> list[int]:
    """The numbers of keypoints that were asked for."""
    return sorted({row.run.pipeline.num_keypoints for evaluation in evaluations for row in evaluation.rows})


def describe_settings(evaluations: Sequence[Evaluation[AnyPair, AnyOutcome]], settings: Settings) -> dict[str, Any]:
    """What images were shown to the matchers, for a report's settings."""
    return {
        "num_keypoints": list_keypoints(evaluations),
        **settings.describe_size(),
        "corners": "masked" if settings.mask_corners else "black, not masked",
        "sequences": sorted({pair.sequence for evaluation in evaluations for pair in evaluation.pairs}),
    }


def describe_views(evaluations: Sequence[Evaluation[AnyPair, AnyOutcome]], settings: Settings) -> str:
    """The same in a sentence, for a report's description."""
    keypoints = ", ".join(map(str, list_keypoints(evaluations)))
    corners = "masked" if settings.mask_corners else "black, not masked"
    side = f"longest side {settings.max_size}" if settings.short_side is None else f"short side {settings.short_side}"
    return f"At most {keypoints} keypoints an image, {side} px, corners of rotated images {corners}."


def plot_errors(
    evaluation: Evaluation[AnyPair, AnyOutcome],
    errors: Callable[[AnyOutcome], Sequence[float]],
    *,
    limit: float,
    xlabel: str,
    title: str,
    ylabel: str = "pairs, per cent",
) -> Callable[[Path], None]:
    """What draws, for each run, the share of errors below each bound up to ``limit``; failures are infinite errors."""
    series = {}
    for row in evaluation.rows:
        found = np.sort([error for outcome in row.outcomes for error in errors(outcome)])
        below = found[found <= limit]
        share = 100 * np.arange(1, len(below) + 1) / len(found)
        ends = share[-1] if len(below) else 0.0
        series[row.run.label] = np.concatenate([[0.0], below, [limit]]), np.concatenate([[0.0], share, [ends]])

    def draw(path: Path) -> None:
        from steerers.viz.plots import curves

        curves(
            path,
            series,
            xlabel=xlabel,
            ylabel=ylabel,
            title=title,
            step="post",
            xlim=(0.0, limit),
            ylim=(0.0, 100.0),
        )

    return draw
