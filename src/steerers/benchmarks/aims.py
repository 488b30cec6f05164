"""AIMS: which satellite images show the place of an astronaut's photograph (paper, section 6.3 and its appendix).

Every photograph comes with satellite images of the region that it may show. A pair is scored by the number of inliers
of its homography, 0 where there is none; over all pairs the scores make one precision-recall curve, and the average
precision is the area under the whole of it. "North Up" are photographs that are rotated little, "All Others" the rest.

The data is described by a manifest, see :mod:`steerers.benchmarks.manifest`. The paper takes the
Scale-1 subset, with all satellite images of each photograph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from steerers.benchmarks import outcomes, paper
from steerers.benchmarks.homographies import Estimator
from steerers.benchmarks.manifest import AimsPair, Split
from steerers.benchmarks.metrics import PrecisionRecall, precision_recall
from steerers.benchmarks.outcomes import Evaluation, Outcome
from steerers.benchmarks.protocol import Prediction, Settings
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, Column, Report, number, percent, share_failed
from steerers.benchmarks.runs import Run

GROUPS = {"north-up": "North Up", "all-others": "All Others", "all": "All"}
"""What the average precision is given for: keys of rows, and the paper's names."""
SHORT_SIDE = 576


def paper_estimator(threshold: float = 5.0, seed: int = 0) -> Estimator:
    """The paper's settings of OpenCV's USAC_MAGSAC."""
    return Estimator(threshold=threshold, confidence=0.999, max_iterations=10_000, seed=seed)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AimsOutcome(Outcome):
    """One pair of one run: its score is ``num_inliers``, 0 where no homography was found."""

    positive: bool
    split: Split
    num_inliers: int
    failed: bool
    angle: float | None  # estimated, degrees


def measure_pair(pair: AimsPair, prediction: Prediction, estimator: Estimator) -> AimsOutcome:
    """Score a pair by its matches, the threshold in pixels of the images at their short side."""
    H, inliers = prediction.matches.homography(
        estimator.threshold,
        confidence=estimator.confidence,
        max_iterations=estimator.max_iterations,
        seed=estimator.seed,
    )
    return AimsOutcome(
        **outcomes.common(pair, prediction),
        positive=pair.positive,
        split=pair.split,
        num_inliers=int(inliers.sum()),
        failed=H is None,
        angle=prediction.matches.angle,
    )


def curves_of(found: Sequence[AimsOutcome]) -> dict[str, PrecisionRecall | None]:
    """The curve of each of :data:`GROUPS`; ``None`` for one without positive pairs."""
    groups = {
        "north-up": [outcome for outcome in found if outcome.split == "north-up"],
        "all-others": [outcome for outcome in found if outcome.split == "others"],
        "all": list(found),
    }
    return {name: _curve(group) for name, group in groups.items()}


def _curve(found: Sequence[AimsOutcome]) -> PrecisionRecall | None:
    positive = [outcome.positive for outcome in found]
    return precision_recall([outcome.num_inliers for outcome in found], positive) if any(positive) else None


def summarise(found: Sequence[AimsOutcome]) -> dict[str, Any]:
    """The numbers of a table's row; average precision is 0 to 1, and ``None`` without positive pairs."""
    inliers = {truth: [o.num_inliers for o in found if o.positive == truth] for truth in (True, False)}
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "ap": {name: curve and curve.average_precision for name, curve in curves_of(found).items()},
        "num_positive": len(inliers[True]),
        "num_inliers_positive": fmean(inliers[True]) if inliers[True] else None,
        "num_inliers_negative": fmean(inliers[False]) if inliers[False] else None,
        **outcomes.summarise_common(found),
    }


def evaluate(
    runs: Sequence[Run],
    pairs: Sequence[AimsPair],
    *,
    short_side: int = SHORT_SIDE,
    estimator: Estimator | None = None,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> Evaluation[AimsPair, AimsOutcome]:
    """Match and score the pairs of a manifest, all images with a shortest side of ``short_side`` pixels."""
    return outcomes.evaluate(
        runs,
        pairs,
        "upright",
        partial(measure_pair, estimator=estimator or paper_estimator()),
        settings=Settings(short_side=short_side),
        cache=cache,
        made=made,
    )


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    evaluation: Evaluation[AimsPair, AimsOutcome],
    short_side: int,
    estimator: Estimator,
    environment: dict[str, Any],
    *,
    show_paper: bool = True,
) -> Report:
    """A table with a row a run, the paper's below, and precision-recall curves."""
    keypoints = outcomes.list_keypoints([evaluation])
    pairs = evaluation.pairs
    table = outcomes.make_table(
        evaluation,
        _columns(),
        summarise,
        title="average precision",
        groups={"by_query": lambda outcome: outcome.sequence},
        more_rows=paper.rows("aims") if show_paper else (),
    )
    table.facts["num_queries"] = len({pair.sequence for pair in pairs})
    table.facts["num_positive"] = sum(pair.positive for pair in pairs)
    return Report(
        "aims",
        _describe(pairs, keypoints, short_side, estimator, show_paper=show_paper),
        {
            "num_keypoints": keypoints,
            "short_side": short_side,
            "estimator": {"name": "OpenCV USAC_MAGSAC", **asdict(estimator)},
        },
        environment,
        [table],
        {
            f"precision-recall-{group}.png": partial(_plot, evaluation, group)
            for group in GROUPS
            if any(curves_of(row.outcomes)[group] for row in evaluation.rows)
        },
    )


def _describe(
    pairs: Sequence[AimsPair], keypoints: Sequence[int], short_side: int, estimator: Estimator, *, show_paper: bool
) -> str:
    theirs = " Rows of the paper are of AIMS (Scale-1), whatever the data here is." if show_paper else ""
    positive = sum(pair.positive for pair in pairs)
    return (
        f"{len({pair.sequence for pair in pairs})} photographs, {len(pairs)} pairs, {positive} of them positive, so "
        f"that scores by chance have an average precision of about {100 * positive / len(pairs):.1f} %. At most "
        f"{', '.join(map(str, keypoints))} keypoints an image, shortest side {short_side} px. The score of a pair is "
        f"the number of inliers of its homography by OpenCV USAC_MAGSAC, {estimator.threshold:g} px, confidence "
        f"{estimator.confidence:g}, {estimator.max_iterations} iterations, seed {estimator.seed}; 0 where there is "
        f"none (failed). Average precision in per cent, over the whole precision-recall curve, equal scores as one "
        f"step; inliers+ and inliers- are means over positive and negative pairs; {outcomes.COSTS}"
        f"{theirs}"
    )


def _columns() -> tuple[Column, ...]:
    return (
        *MODEL_COLUMNS,
        *(percent(title, "ap", group) for group, title in GROUPS.items()),
        number("inliers+", "num_inliers_positive", form="{:.1f}"),
        number("inliers-", "num_inliers_negative", form="{:.1f}"),
        number("matches", "num_matches"),
        share_failed(),
        *COST_COLUMNS,
    )


def _plot(evaluation: Evaluation[AimsPair, AimsOutcome], group: str, path: Path) -> None:
    """Precision over recall in steps, so that the area under a line is its average precision."""
    from steerers.viz.plots import curves

    found = {row.run.label: curves_of(row.outcomes)[group] for row in evaluation.rows}
    series = {
        f"{label}, {100 * curve.average_precision:.1f}": (
            np.concatenate([[0.0], 100 * curve.recall]),
            np.concatenate([100 * curve.precision[:1], 100 * curve.precision]),
        )
        for label, curve in found.items()
        if curve is not None
    }
    curves(
        path,
        series,
        xlabel="recall, per cent",
        ylabel="precision, per cent",
        title=f"aims, {GROUPS[group]}",
        step="pre",
        xlim=(0, 100),
        ylim=(0, 102),
    )
