"""What a benchmark is: its words, its options, and what it makes of predictions; one runner and one report for all.

A benchmark on pairs of images is a :class:`PairBenchmark` record in a module of its own. It says how pairs are listed,
how one is measured from its :class:`~steerers.benchmarks.predict.Prediction` and how a row of the table is made of
many; rotating, matching, keeping and reporting are here. Other benchmarks have an ``evaluate`` of their own.
"""

from __future__ import annotations

import argparse
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from steerers._console import progress
from steerers.benchmarks.offers import CANVASES, ROTATIONS, Canvas, Offer, Rotation
from steerers.benchmarks.predict import (
    AnyPair,
    Observer,
    Pair,
    Prediction,
    Predictions,
    ViewSettings,
    are_rotated,
    hash_pairs,
    rotate_pairs,
)
from steerers.benchmarks.report import (
    MODEL_COLUMNS,
    Column,
    Draw,
    Report,
    Table,
    TableRow,
    environment,
    paper_rows,
    text,
)
from steerers.benchmarks.runs import Run, describe_matching, load_runs
from steerers.benchmarks.store import predict_or_load
from steerers.viz import plots

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COSTS = "s/image is extraction, images/pair how often it runs, s/pair matching."
"""What the columns of costs mean, for a report's description."""
AnyOutcome = TypeVar("AnyOutcome", bound="DataclassInstance")
"""What a benchmark measures of one pair."""
AnyOptions = TypeVar("AnyOptions")
"""What a benchmark measures with: an estimator and its threshold, say."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    """A benchmark: what ``steerers eval`` offers, and what it does.

    Attributes:
        instead: what the command does instead where an option says so, and the line that it prints.
    """

    offer: Offer
    instead: Callable[[argparse.Namespace], str | None] = lambda arguments: None

    @property
    def name(self) -> str:
        """As users type it."""
        return self.offer.name

    @abstractmethod
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        """Do what the arguments ask for."""

    def load_runs(self, arguments: argparse.Namespace, device: torch.device) -> list[Run]:
        """The runs that ``--models`` names."""
        return load_runs(
            arguments.models,
            num_keypoints=arguments.num_keypoints,
            max_size=getattr(arguments, "max_size", None),
            device=device,
            weights=arguments.weights or (),
            precision=getattr(arguments, "precision", "float32"),
            resize=getattr(arguments, "resize", "fit"),
        )


# On pairs of images ---------------------------------------------------------------------------------------------------


Case = tuple[AnyPair, Prediction, AnyOutcome]
"""A pair, what a run found in it, and what that is worth."""


@dataclass(frozen=True, eq=False)
class RunOutcomes(Generic[AnyOutcome]):
    """A run over all pairs."""

    run: Run
    predictions: Predictions
    outcomes: list[AnyOutcome]


@dataclass(frozen=True, eq=False)
class Evaluation(Generic[AnyPair, AnyOutcome]):
    """Runs side by side on the same pairs, rotated by one set of rotations."""

    rotation: Rotation
    pairs: list[AnyPair]
    rows: list[RunOutcomes[AnyOutcome]]


@dataclass(frozen=True, eq=False)
class Result(Generic[AnyPair, AnyOutcome, AnyOptions]):
    """All that a benchmark measured, and how, for its report."""

    benchmark: str
    evaluations: list[Evaluation[AnyPair, AnyOutcome]]
    options: AnyOptions
    views: ViewSettings
    has_paper: bool

    @property
    def num_keypoints(self) -> list[int]:
        """The numbers of keypoints that were asked for."""
        return sorted({row.run.pipeline.num_keypoints for found in self.evaluations for row in found.rows})

    @property
    def corners(self) -> str:
        """How the corners of rotated images were shown."""
        return "masked" if self.views.mask_corners else "black, not masked"

    @property
    def canvas(self) -> Canvas | None:
        """That of rotated images; ``None`` if there were none."""
        return self.views.canvas if any(are_rotated(found.pairs) for found in self.evaluations) else None

    def describe_views(self) -> str:
        """What images were shown to the matchers, in a sentence or two."""
        views, most = self.views, ", ".join(map(str, self.num_keypoints))
        size = f"longest side {views.max_size} px"
        if views.short_side is not None:
            size = f"shortest side {views.short_side} px"
        elif views.squashes:
            square = f"{views.max_size} x {views.max_size} px"
            size = f"squashed to {square}, after any rotation; estimated angles are those of squashed images"
        shown = f"At most {most} keypoints an image, {size}."
        if self.canvas is None:
            return shown
        return f"{shown} A rotated image is {CANVASES[self.canvas]}; what it uncovers is {self.corners}."


def by_sequence(pair: Pair) -> str:
    """The group of a pair where results are given for each sequence."""
    return pair.sequence


@dataclass(frozen=True, kw_only=True)
class PairBenchmark(Benchmark, Generic[AnyPair, AnyOutcome, AnyOptions]):
    """A benchmark that matches pairs of images and measures each from its matches.

    Attributes:
        list_pairs: the upright pairs that the arguments ask for.
        options: what it measures with, by default.
        read_options: the same from the arguments.
        rotation: of its pairs, where there is no ``--rotation``.
        measure: one pair, from its prediction.
        observe: what else to measure on all keypoints of a pair while they are at hand.
        summarise: the numbers of a table's row; keypoints, matches and times are added.
        columns: of the table.
        describe: the protocol and what the columns mean, for people.
        settings: what it measured with, as JSON.
        title: of its table, where that is not the rotation.
        groups: for which the numbers are given apart too, in JSON: a name, and the group of a pair.
        facts: about the pairs, as JSON.
        more_tables: made of the table.
        plots: by file name, what draws them.
        comparable: whether the data is what the paper's rows are of.
    """

    list_pairs: Callable[[argparse.Namespace], list[AnyPair]]
    options: AnyOptions
    read_options: Callable[[argparse.Namespace], AnyOptions]
    rotation: Rotation = "upright"
    measure: Callable[[AnyPair, Prediction, AnyOptions], AnyOutcome]
    observe: Observer[AnyPair] | None = None
    summarise: Callable[[Sequence[AnyOutcome]], TableRow]
    columns: tuple[Column, ...]
    describe: Callable[[Result[AnyPair, AnyOutcome, AnyOptions]], str]
    settings: Callable[[AnyOptions], dict[str, Any]]
    title: Callable[[AnyOptions], str] | None = None
    groups: Mapping[str, Callable[[AnyPair], str]] = field(
        default_factory=lambda: {"by_rotation": lambda pair: str(pair.rotation1), "by_sequence": by_sequence}
    )
    facts: Callable[[Sequence[AnyPair]], dict[str, Any]] = lambda pairs: {}
    more_tables: Callable[[Table], list[Table]] = lambda table: []
    plots: Callable[[Result[AnyPair, AnyOutcome, AnyOptions]], dict[str, Draw]]
    comparable: Callable[[AnyOptions], bool] = lambda options: True

    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        """List the pairs, match them under every rotation that is asked for, measure and report."""
        options = self.read_options(arguments)
        asked = {name: getattr(arguments, name, default) for name, default in asdict(ViewSettings()).items()}
        views = ViewSettings(**asked)
        pairs = self.list_pairs(arguments)
        runs = self.load_runs(arguments, device)
        made = environment(device)
        rotations = [self.rotation] if self.offer.rotations is None else arguments.rotation
        evaluations = [
            self.run(runs, pairs, rotation, options=options, views=views, cache=arguments.cache, made=made)
            for rotation in rotations
        ]
        hidden = self.offer.paper is None or arguments.no_paper or not self.comparable(options)
        return self.make_report(evaluations, made, options=options, views=views, paper=not hidden)

    def run(
        self,
        runs: Sequence[Run],
        pairs: Sequence[AnyPair],
        rotation: Rotation = "upright",
        *,
        options: AnyOptions | None = None,
        views: ViewSettings | None = None,
        cache: Path | None = None,
        made: dict[str, Any] | None = None,
    ) -> Evaluation[AnyPair, AnyOutcome]:
        """Rotate the pairs, match them or take what ``cache`` holds, and measure.

        Args:
            pairs: upright.
            cache, made: see :func:`~steerers.benchmarks.store.predict_or_load`.
        """
        rotated = rotate_pairs(pairs, rotation)
        predictions = predict_or_load(runs, rotated, views, self.observe, cache=cache, made=made)
        rows = []
        for run, found in zip(runs, predictions, strict=True):
            with ThreadPoolExecutor() as pool:  # the estimators work beside Python, so several at once
                outcomes = pool.map(self.measure, rotated, found.pairs, repeat(options or self.options))
                shown = progress(outcomes, f"estimating {run.label}", total=len(rotated))
                rows.append(RunOutcomes(run, found, list(shown)))
        return Evaluation(rotation, rotated, rows)

    def make_report(
        self,
        evaluations: Sequence[Evaluation[AnyPair, AnyOutcome]],
        environment: dict[str, Any],
        *,
        options: AnyOptions | None = None,
        views: ViewSettings | None = None,
        paper: bool = False,
    ) -> Report:
        """A table an evaluation, with a row and its pairs for each run, and the paper's rows below if wanted."""
        options, views = options or self.options, views or ViewSettings()
        result = Result(self.name, list(evaluations), options, views, has_paper=paper)
        printed = paper_rows(*self.offer.paper) if paper and self.offer.paper is not None else []
        tables = [self._make_table(found, options, views, printed) for found in evaluations]
        settings = {
            "num_keypoints": result.num_keypoints,
            **views.describe_size(),
            "canvas": result.canvas,
            "corners": result.corners,
            "sequences": sorted({pair.sequence for found in evaluations for pair in found.pairs}),
            **self.settings(options),
        }
        shown = [each for table in tables for each in (table, *self.more_tables(table))]
        return Report(self.name, self.describe(result), settings, environment, shown, self.plots(result))

    def _make_table(
        self,
        evaluation: Evaluation[AnyPair, AnyOutcome],
        options: AnyOptions,
        views: ViewSettings,
        printed: list[TableRow],
    ) -> Table:
        rotation, pairs = evaluation.rotation, evaluation.pairs
        title = f"{rotation}: {ROTATIONS[rotation]}" if self.title is None else self.title(options)
        rows = [self._make_row(pairs, row) for row in evaluation.rows]
        columns = self.columns
        if self.offer.canvas is not None and are_rotated(pairs):  # there is more than one way: title and rows say which
            title += f", {CANVASES[views.canvas]}"
            rows = [{**row, "canvas": views.canvas} for row in rows]
            count = len(MODEL_COLUMNS)
            columns = (*columns[:count], text("canvas", "canvas"), *columns[count:])
        facts = {
            "rotation": rotation,
            "description": ROTATIONS[rotation],
            "num_pairs": len(pairs),
            "pairs_sha256": hash_pairs(pairs),
            **self.facts(pairs),
        }
        return Table(title, columns, [*rows, *printed], facts)

    def _make_row(self, pairs: Sequence[AnyPair], row: RunOutcomes[AnyOutcome]) -> TableRow:
        cases = list(zip(pairs, row.predictions.pairs, row.outcomes, strict=True))
        return {
            "label": row.run.label,
            "model": row.run.pipeline.model.name,
            "strategy": describe_matching(row.run.pipeline),
            "made": row.predictions.made,
            **self._summarise(cases),
            **{name: self._group(cases, key) for name, key in self.groups.items()},
            "pairs": [{**_describe_pair(pair, found), **asdict(outcome)} for pair, found, outcome in cases],
        }

    def _group(self, cases: Sequence[Case[AnyPair, AnyOutcome]], key: Callable[[AnyPair], str]) -> dict[str, TableRow]:
        groups: dict[str, list[Case[AnyPair, AnyOutcome]]] = {}
        for case in cases:
            groups.setdefault(key(case[0]), []).append(case)
        return {name: self._summarise(group) for name, group in groups.items()}

    def _summarise(self, cases: Sequence[Case[AnyPair, AnyOutcome]]) -> TableRow:
        _, predictions, outcomes = zip(*cases, strict=True)
        return {**self.summarise(outcomes), **_summarise_costs(predictions)}


def _describe_pair(pair: Pair, prediction: Prediction) -> TableRow:
    """What every benchmark knows of a pair."""
    costs = ("num_keypoints", "extractions", "extraction_seconds", "matching_seconds")
    return {
        **{name: getattr(pair, name) for name in ("name", "sequence", "rotation0", "rotation1")},
        **{name: getattr(prediction, name) for name in costs},
        "num_matches": len(prediction.matches),
    }


def _summarise_costs(predictions: Sequence[Prediction]) -> TableRow:
    """Means over pairs; times in seconds."""
    extractions = sum(prediction.extractions for prediction in predictions)
    return {
        "num_pairs": len(predictions),
        "num_matches": fmean(len(prediction.matches) for prediction in predictions),
        "num_keypoints": fmean(count for prediction in predictions for count in prediction.num_keypoints),
        "extractions_per_pair": extractions / len(predictions),
        "seconds_per_image": sum(prediction.extraction_seconds for prediction in predictions) / extractions,
        "seconds_per_pair": fmean(prediction.matching_seconds for prediction in predictions),
    }


# What the benchmarks share --------------------------------------------------------------------------------------------


def check_threshold(threshold: float) -> None:
    """Refuse, before the matching, what an estimator would refuse after it."""
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold must be positive and finite, got {threshold}")


def check_seed(seed: int) -> None:
    """Refuse a seed that OpenCV does not take."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be 0 to 2^31 - 1, got {seed}")


def plot_errors(
    name: str,
    errors: Callable[[AnyOutcome], Sequence[float]],
    *,
    limit: float,
    xlabel: str,
    ylabel: str = "pairs, per cent",
) -> Callable[[Result[AnyPair, AnyOutcome, Any]], dict[str, Draw]]:
    """Plots for each rotation: for each run the fraction of errors below each bound up to ``limit``.

    Failures are infinite errors.
    """

    def draw(benchmark: str, evaluation: Evaluation[AnyPair, AnyOutcome], path: Path) -> None:
        plots.curves(
            path,
            {row.run.label: _recall([e for o in row.outcomes for e in errors(o)], limit) for row in evaluation.rows},
            xlabel=xlabel,
            ylabel=ylabel,
            title=f"{benchmark}, {evaluation.rotation}",
            step="post",
            xlim=(0.0, limit),
            ylim=(0.0, 100.0),
        )

    return lambda result: {
        f"{name}-{found.rotation}.png": partial(draw, result.benchmark, found) for found in result.evaluations
    }


def _recall(errors: Sequence[float], limit: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors up to ``limit``, and the per cent of all errors that are at most so large."""
    found = np.sort(errors)
    below = found[found <= limit]
    percent = 100 * np.arange(1, len(below) + 1) / len(found)
    last = percent[-1] if len(below) else 0.0
    return np.concatenate([[0.0], below, [limit]]), np.concatenate([[0.0], percent, [last]])
