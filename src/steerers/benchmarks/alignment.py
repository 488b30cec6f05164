"""What ``steerers align`` makes of matches, on the Oxford affine sequences: which map suits, and what bending does."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, check_seed, check_threshold, plot_errors
from steerers.benchmarks.homographies import AUC_PIXELS, LAYOUTS, HomographyPair, list_pairs, true_homography
from steerers.benchmarks.predict import Prediction
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, TableRow, failed_fraction, number, percent
from steerers.maps.alignment import align_matches
from steerers.maps.registration import AlignOptions, NotAlignedError


@dataclass(frozen=True)
class AlignmentEstimator:
    """The options of ``steerers align`` that matches alone can be asked for."""

    transform: Any = "auto"
    local: bool = False
    threshold: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_seed(self.seed)
        self.options()

    def options(self) -> AlignOptions:
        """As ``steerers align`` has them."""
        return AlignOptions(**asdict(self))

    def __str__(self) -> str:
        return f"transform {self.transform}{' with a local part' if self.local else ''}, {self.threshold:g} px"


@dataclass(frozen=True)
class AlignmentOutcome:
    """One pair of one run, measured. ``corner_error`` is infinite where the images were not aligned."""

    corner_error: float
    num_inliers: int
    kind: str
    bent: bool

    @property
    def failed(self) -> bool:
        """Whether the images were not aligned."""
        return math.isinf(self.corner_error)


def measure_alignment(pair: HomographyPair, prediction: Prediction, estimator: AlignmentEstimator) -> AlignmentOutcome:
    """Align a pair by its matches, and compare the corners of image 0 with the truth."""
    try:
        found = align_matches(prediction.matches, prediction.size0, prediction.size1, estimator.options())
    except NotAlignedError:
        return AlignmentOutcome(math.inf, 0, "none", bent=False)
    corners = metrics.corners(prediction.size0)
    aims = metrics.apply(true_homography(pair, prediction), corners)
    error = float(np.linalg.norm(found.transform.to_moving(corners) - aims, axis=1).mean())
    bent = found.transform.local is not None
    return AlignmentOutcome(error if math.isfinite(error) else math.inf, len(found.fixed), found.transform.kind, bent)


def summarise(found: Sequence[AlignmentOutcome]) -> TableRow:
    """The numbers of a table's row; fractions are 0 to 1."""
    errors = [outcome.corner_error for outcome in found]
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "auc": metrics.areas(errors, AUC_PIXELS),
        "corner_error_median": metrics.middle(errors),
        "num_inliers": metrics.mean(outcome.num_inliers for outcome in found),
        "homographies": metrics.mean(float(outcome.kind == "homography") for outcome in found),
        "bent": metrics.mean(float(outcome.bent) for outcome in found),
    }


def _describe(result: Result[HomographyPair, AlignmentOutcome, AlignmentEstimator]) -> str:
    return (
        f"{result.describe_views()} Aligned by {result.options}; area under the curve of the mean corner error, and "
        f"its median in pixels; in per cent, pairs for which a homography was taken, and that were bent; {COSTS}"
    )


def _read_options(arguments: argparse.Namespace) -> AlignmentEstimator:
    return AlignmentEstimator(arguments.transform, arguments.local, arguments.threshold, arguments.seed)


ALIGNMENT: PairBenchmark[HomographyPair, AlignmentOutcome, AlignmentEstimator] = PairBenchmark(
    offer=offers.ALIGNMENT,
    list_pairs=lambda arguments: list_pairs(LAYOUTS["oxford"], arguments.data, arguments.sequences),
    options=AlignmentEstimator(),
    read_options=_read_options,
    measure=measure_alignment,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(percent(f"AUC@{pixels:g}", "auc", f"{pixels:g}") for pixels in AUC_PIXELS),
        number("median", "corner_error_median", form="{:.2f}"),
        number("matches", "num_matches"),
        number("inliers", "num_inliers"),
        percent("homographies", "homographies"),
        percent("bent", "bent"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=lambda estimator: {"alignment": asdict(estimator), "auc_pixels": list(AUC_PIXELS)},
    plots=plot_errors("corner-error", lambda o: [o.corner_error], limit=max(AUC_PIXELS), xlabel="corner error, pixels"),
)
