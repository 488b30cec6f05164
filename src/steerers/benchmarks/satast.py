"""SatAst: photographs by astronauts and satellite images with correspondences marked by hand, upright and rotated.

Forty pairs of the AIMS and EarthMatch data, a JSON file each. A homography is estimated from the matches, and what
counts is how far it takes the marked points of the photograph from those of the satellite image, in stored pixels:
every marked point of every pair is one error, those of a pair without homography are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PureWindowsPath
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steerers._files import parse_json
from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, check_threshold, plot_errors
from steerers.benchmarks.predict import Pair, Prediction
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, TableRow, failed_fraction, number, percent
from steerers.geometry import to_normalised, to_pixels
from steerers.images.load import Size

AUC_PIXELS = (5.0, 10.0, 20.0, 30.0)
ANNOTATIONS = "annotation_*.json"
HELP = (
    "get https://github.com/georg-bn/satast (annotations-v1) and its images by the download_images.sh in it, and give "
    "--data the folder of the repository: annotations-v1/annotation_ISS*.json beside data/ISS*/*.jpg"
)

Points = NDArray[np.float64]  # (K, 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class AnnotatedPair(Pair):
    """A photograph (image 0) and a satellite image with (K, 2) corresponding points, stored pixels."""

    points0: Points
    points1: Points

    def key(self) -> dict[str, Any]:
        return {**super().key(), "points0": self.points0.tolist(), "points1": self.points1.tolist()}


# Reading --------------------------------------------------------------------------------------------------------------


def list_pairs(folder: Path) -> list[AnnotatedPair]:
    """The pairs of a folder, by the names of their annotations, which lie in it or in one folder below.

    Raises:
        ValueError: if there are none, or one is broken or its images are missing; the message says what to get.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    files = sorted(folder.glob(ANNOTATIONS)) or sorted(folder.glob(f"*/{ANNOTATIONS}"))
    if not files:
        raise ValueError(f"{folder} holds no {ANNOTATIONS}, nor does a folder in it; {HELP}")
    if len({path.parent for path in files}) > 1:
        versions = ", ".join(sorted({path.parent.name for path in files}))
        raise ValueError(f"{folder} holds several versions of the annotations ({versions}); keep one of them")
    return [read_pair(path, folder) for path in files]


def read_pair(path: Path, folder: Path) -> AnnotatedPair:
    """A pair from its annotation; ``folder`` is what the paths in it start from.

    Of the rounds of annotation the last counts, which refined those before.
    """
    try:
        content = parse_json(path.read_bytes())
        last = content["correspondences"][-1]
        points0, points1 = (np.array(last[key], np.float64) for key in ("pts_src", "pts_dst"))
        # made on Windows: both slashes part folders
        images = [folder.joinpath(*PureWindowsPath(content[key]).parts) for key in ("query_path", "pred_path")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: not an annotation of SatAst ({type(error).__name__}: {error}); {HELP}") from error
    if points0.ndim != 2 or points0.shape[1:] != (2,) or points0.shape != points1.shape or not len(points0):
        raise ValueError(
            f"{path}: pts_src and pts_dst must be equally many points (x, y), got shapes {points0.shape} and "
            f"{points1.shape}"
        )
    if not (np.isfinite(points0).all() and np.isfinite(points1).all()):
        raise ValueError(f"{path}: pts_src or pts_dst hold NaN or infinite coordinates")
    for image in images:
        if not image.is_file():
            raise ValueError(f"{path} names {image}, which is not there; {HELP}")
    name = path.stem.removeprefix("annotation_")
    return AnnotatedPair(name, name, images[0], images[1], points0=points0, points1=points1)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormalisedEstimator:
    """OpenCV's USAC_DEFAULT in coordinates from -1 to 1 over each image, whatever its shape.

    OpenCV draws its samples from a state of its own, always the same, so there is no seed.
    """

    threshold: float = 0.001
    confidence: float = 0.99999999
    max_iterations: int = 100_000

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def estimate(self, points0: Points, points1: Points) -> tuple[Points | None, int]:
        """The (3, 3) homography, ``None`` where the points determine none, and the number of inliers."""
        import cv2

        if len(points0) < 4:
            return None, 0
        try:
            H, inliers = cv2.findHomography(
                points0,
                points1,
                method=cv2.USAC_DEFAULT,
                ransacReprojThreshold=self.threshold,
                confidence=self.confidence,
                maxIters=self.max_iterations,
            )
        except cv2.error:  # degenerate points; OpenCV signals them so
            return None, 0
        if H is None or not np.isfinite(H).all():
            return None, 0
        return np.asarray(H, np.float64), int(np.count_nonzero(inliers))


@dataclass(frozen=True)
class SatAstOutcome:
    """One pair of one run, measured. ``errors`` are those of the marked points, infinite without homography."""

    num_inliers: int
    failed: bool
    errors: list[float]


def measure_pair(pair: AnnotatedPair, prediction: Prediction, estimator: NormalisedEstimator) -> SatAstOutcome:
    """Estimate the homography of a pair from its matches and apply it to the marked points."""
    matches = prediction.matches
    H, num_inliers = estimator.estimate(
        _normalise(matches.keypoints0, prediction.size0), _normalise(matches.keypoints1, prediction.size1)
    )
    errors = np.full(len(pair.points0), math.inf)
    if H is not None:
        moved = metrics.apply(H, _normalise(pair.points0, prediction.stored0))
        found = to_pixels(torch.from_numpy(moved), prediction.stored1).numpy()
        errors = np.linalg.norm(found - pair.points1, axis=1)
    return SatAstOutcome(num_inliers=num_inliers, failed=H is None, errors=errors.tolist())


def _normalise(points: NDArray[Any], size: Size) -> Points:
    normalised: Points = to_normalised(torch.from_numpy(np.asarray(points, np.float64)), size).numpy()
    return normalised


def summarise(found: Sequence[SatAstOutcome]) -> TableRow:
    """The numbers of a table's row; areas are 0 to 1, over the errors of all points of all pairs."""
    errors = [error for outcome in found for error in outcome.errors]
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "num_points": len(errors),
        "auc": metrics.areas(errors, AUC_PIXELS),
        "error_median": median(errors),
        "num_inliers": fmean(outcome.num_inliers for outcome in found),
    }


# The benchmark --------------------------------------------------------------------------------------------------------


SatAstResult = Result[AnnotatedPair, SatAstOutcome, NormalisedEstimator]


def _describe(result: SatAstResult) -> str:
    estimator = result.options
    return (
        f"{result.describe_views()} Homography by OpenCV USAC_DEFAULT in coordinates from -1 to 1, threshold "
        f"{estimator.threshold:g}, confidence {estimator.confidence:.8f}, {estimator.max_iterations} iterations, "
        f"without seed; area under the curve of the errors of all marked points of all pairs, in stored pixels of the "
        f"satellite image. Fractions in per cent; the error is the median over points, matches and inliers are means "
        f"over pairs; {COSTS}"
    )


SAT_AST = PairBenchmark(
    offer=offers.SAT_AST,
    list_pairs=lambda arguments: list_pairs(arguments.data),
    options=NormalisedEstimator(),
    read_options=lambda arguments: NormalisedEstimator(arguments.threshold),
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(percent(f"AUC@{pixels:g}", "auc", f"{pixels:g}") for pixels in AUC_PIXELS),
        number("error", "error_median", form="{:.1f} px"),
        number("matches", "num_matches"),
        number("inliers", "num_inliers"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=lambda estimator: {
        "estimator": {"name": "OpenCV USAC_DEFAULT, normalised coordinates", **asdict(estimator)},
        "auc_pixels": list(AUC_PIXELS),
    },
    plots=plot_errors(
        "errors",
        lambda outcome: outcome.errors,
        limit=AUC_PIXELS[-1],
        xlabel="error of a marked point, stored pixels",
        ylabel="points, per cent",
    ),
)
