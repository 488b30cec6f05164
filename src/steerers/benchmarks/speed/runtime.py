"""Run time of description and matching, apart and together: the paper's Table 4.

What is timed is in :mod:`steerers.benchmarks.speed.subjects`; neither reading nor detection is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any, Literal

import torch

from steerers._console import progress
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import (
    MODEL_COLUMNS,
    Column,
    Report,
    Table,
    TableRow,
    environment,
    look_up,
    number,
    paper_rows,
    text,
)
from steerers.benchmarks.speed import peak_memory, timed
from steerers.benchmarks.speed.subjects import (
    PLAIN,
    Descriptions,
    ImagePair,
    RuntimeSettings,
    Subject,
    build_untrained,
    describe_pair,
    draw_pair,
    list_subjects,
    match_pair,
    plant_descriptions,
)
from steerers.matching.assignment import Assignment
from steerers.matching.fingerprints import describe_strategy
from steerers.models import zoo
from steerers.viz import plots

# Timing ---------------------------------------------------------------------------------------------------------------


def measure_model(subjects: Sequence[Subject], settings: RuntimeSettings, device: torch.device) -> list[TableRow]:
    """A row for every strategy of one model; pair after pair, so that a change of the machine's pace meets them all."""
    model = subjects[0].model
    model.extractor.to(device).eval()
    for steerer in (getattr(subject.strategy, "steerer", None) for subject in subjects):
        if steerer is not None:
            steerer.to(device)
    planted = plant_descriptions(settings, model.extractor.dim, device)
    taken: dict[str, list[dict[str, float]]] = {subject.label: [] for subject in subjects}
    for index in progress(range(-settings.warm_up, settings.repeats), f"timing {model.name}"):
        times = _time_pair(subjects, draw_pair(settings, index % settings.repeats, device), planted, device)
        for label in taken if index >= 0 else ():
            taken[label].append(times[label])
    pair = draw_pair(settings, 0, device)
    return [_row(subject, taken[subject.label], _memory(subject, pair, planted, device)) for subject in subjects]


def _time_pair(
    subjects: Sequence[Subject], pair: ImagePair, planted: Descriptions, device: torch.device
) -> dict[str, dict[str, float]]:
    """Seconds of every subject; the description is the same for all that rotate the image alike, and is timed once."""
    described: dict[tuple[float, ...], float] = {}
    times = {}
    for subject in subjects:
        rotations = subject.rotations
        if rotations not in described:
            _, described[rotations] = timed(partial(describe_pair, subject.model, pair, rotations), device)
        _, matching = timed(partial(match_pair, subject, planted), device)
        _, total = timed(partial(_run, subject, pair, planted), device)
        times[subject.label] = {"description": described[rotations], "matching": matching, "total": total}
    return times


def _run(subject: Subject, pair: ImagePair, planted: Descriptions) -> Assignment:
    describe_pair(subject.model, pair, subject.rotations)
    return match_pair(subject, planted)


def _memory(subject: Subject, pair: ImagePair, planted: Descriptions, device: torch.device) -> int | None:
    """Most bytes beyond weights and inputs; only where the device counts them itself."""
    return peak_memory(partial(_run, subject, pair, planted), device) if device.type == "cuda" else None


def summarise(seconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, mean, standard deviation and extremes."""
    lower, _, upper = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (seconds[0],) * 3
    return {
        "median": median(seconds),
        "lower_quartile": lower,
        "upper_quartile": upper,
        "mean": fmean(seconds),
        "standard_deviation": stdev(seconds) if len(seconds) > 1 else 0.0,
        "min": min(seconds),
        "max": max(seconds),
    }


def _row(subject: Subject, taken: Sequence[dict[str, float]], extra_bytes: int | None) -> TableRow:
    strategy = describe_strategy(subject.strategy, subject.tta)
    if "order" in strategy and strategy["order"] is None:
        strategy["order"] = "continuous"
    return {
        "label": subject.label,
        "model": subject.model.name,
        "strategy": strategy,
        "steerer": subject.steerer,
        "descriptions_per_pair": len(subject.rotations) + 1,
        "seconds": {part: summarise([times[part] for times in taken]) for part in ("description", "matching", "total")},
        "extra_bytes": extra_bytes,
    }


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    rows: Sequence[TableRow],
    settings: RuntimeSettings,
    environment: dict[str, Any],
    *,
    weights: Literal["trained", "random"] = "trained",
    precision: str = "float32",
    with_paper: bool = True,
) -> Report:
    """The report, with the paper's rows (of an A100) below ours."""
    ours = [{**row, "times_plain": _times_plain(row, rows)} for row in rows]
    printed = paper_rows("runtime") if with_paper else []
    theirs = [{**row, "times_plain": _times_plain(row, printed)} for row in printed]
    return Report(
        benchmark="runtime",
        description=_describe(settings, weights, precision),
        settings={**asdict(settings), "weights": weights, "precision": precision},
        environment=environment,
        tables=[Table("description and matching", COLUMNS, [*ours, *theirs])],
        plots={f"{model}.png": partial(_plot, model, ours) for model in dict.fromkeys(row["model"] for row in ours)},
    )


def _times_plain(row: TableRow, rows: Sequence[TableRow]) -> float | None:
    """How many times as long as plain matching of the same network; the paper names it without the group."""
    names = (row["model"], "-".join(row["model"].split("-")[:2]) if row.get("source") == "paper" else row["model"])
    for other in rows:
        if other["model"] in names and other["strategy"]["name"] in (PLAIN, "Dual softmax"):
            return _typical(row) / _typical(other)
    return None


def _typical(row: TableRow) -> float:
    total = row["seconds"]["total"]
    return float(total.get("median", total["mean"]))


def _together(row: Mapping[str, Any]) -> str:
    total = look_up(row, "seconds", "total")
    if "median" not in total:
        return f"{1e3 * total['mean']:.1f} ± {1e3 * total['plus_minus']:.2f}"
    low, high = (1e3 * total[key] for key in ("lower_quartile", "upper_quartile"))
    return f"{1e3 * total['median']:.1f} ({low:.1f} to {high:.1f})"


COLUMNS = (
    *MODEL_COLUMNS,
    text("steerer", "steerer"),
    number("images", "descriptions_per_pair"),
    number("description, ms", "seconds", "description", "median", form="{:.1f}", factor=1e3),
    number("matching, ms", "seconds", "matching", "median", form="{:.1f}", factor=1e3),
    Column("together, ms", _together),
    number("x plain", "times_plain", form="{:.2f}"),
    number("extra MB", "extra_bytes", factor=1e-6),
)


def _describe(settings: RuntimeSettings, weights: str, precision: str) -> str:
    return (
        f"Description and matching of a pair of random {settings.size} x {settings.size} tensors with "
        f"{settings.num_keypoints} random keypoints each; neither loading nor detection is timed. What is matched are "
        "planted descriptions, as many and as long, of which half correspond. Medians, with quartiles in parentheses, "
        f"over {settings.repeats} pairs after {settings.warm_up} to warm up, the device idle before and after each "
        f"timed call. Networks with {weights} weights in {precision}, one image at a time. *images* is how many are "
        "described for a pair, *together* is timed as one call, *x plain* is its ratio to the dual softmax of the same "
        "model, *extra MB* is the most memory held beyond weights and inputs. A rotation not by 90 degrees needs "
        "a larger canvas, so that it costs more to describe. Rows of the paper are means on an A100; its times for "
        "augmentation are those of plain matching times the number of rotations."
    )


def _plot(model: str, rows: Sequence[TableRow], path: Path) -> None:
    """The strategies of one model, below each other."""
    shown = [row for row in rows if row["model"] == model]
    labels = [row["label"].removeprefix(f"{model}:") for row in shown]
    parts = {part: [1e3 * row["seconds"][part]["median"] for row in shown] for part in ("description", "matching")}
    plots.bars(path, labels, parts, xlabel="milliseconds a pair, median", title=model)


# The benchmark --------------------------------------------------------------------------------------------------------


class _Runtime(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        settings = RuntimeSettings(
            arguments.size, arguments.num_keypoints, arguments.repeats, arguments.warm_up, arguments.seed
        )
        models = self._load_models(arguments, device)
        subjects = [list_subjects(model, arguments.strategies) for model in models]
        return make_report(
            [row for group in subjects for row in measure_model(group, settings, device)],
            settings,
            environment(device),
            weights="random" if arguments.random_weights else "trained",
            precision=arguments.precision,
            with_paper=not arguments.no_paper,
        )

    def _load_models(self, arguments: argparse.Namespace, device: torch.device) -> list[zoo.Model]:
        for name in arguments.models:
            if set(name) & set("@:?"):
                raise ValueError(f"cannot time {name!r}: give models by name, detection is not timed; see --strategies")
        if arguments.random_weights:
            if arguments.weights:
                raise ValueError("--weights and --random-weights exclude each other")
            return [
                zoo.configure(build_untrained(name, arguments.seed), arguments.precision) for name in arguments.models
            ]
        return [run.pipeline.model for run in self.load_runs(arguments, device)]


RUNTIME = _Runtime(offer=offers.RUNTIME)
