"""Relative pose of two calibrated views, upright and rotated: MegaDepth-1500 and its rotated versions, and any cameras.

The pose error of a pair is the larger of the angle between the estimated and the true rotation and the angle between
the lines of the translations, in degrees; the score is the area under the curve of recall at 5, 10 and 20 degrees. Two
estimators are protocols by name: ``poselib``, and ``opencv``, that of DeDoDe and of the steerers paper.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, pstdev
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from steerers._arguments import names, positive
from steerers.benchmarks import cameras, metrics
from steerers.benchmarks.benchmark import (
    COSTS,
    PairBenchmark,
    Result,
    check_threshold,
    plot_errors,
)
from steerers.benchmarks.cameras import PosePair
from steerers.benchmarks.pairs import ROTATIONS, Rotation
from steerers.benchmarks.predict import Prediction
from steerers.benchmarks.report import (
    COST_COLUMNS,
    MISSING,
    MODEL_COLUMNS,
    Column,
    Draw,
    TableRow,
    failed_fraction,
    look_up,
    number,
)
from steerers.geometry import Pose, scaling, transform_points
from steerers.images.load import Size

AUC_DEGREES = (5.0, 10.0, 20.0)
EstimatorName = Literal["poselib", "opencv"]
THRESHOLDS: dict[EstimatorName, float] = {"poselib": 1.0, "opencv": 0.5}
"""Pixels: at the evaluated size for poselib, at the stored one for OpenCV."""
OPENCV_CONFIDENCE = 0.99999
OPENCV_ITERATIONS = 1000
"""OpenCV's own default, which DeDoDe keeps."""
PAPER = (
    " Rows of the paper are of its own protocol: images squashed to 784 x 784, 20000 keypoints, the opencv estimator, "
    "and all of MegaDepth-1500, whatever was asked for here."
)
_NO_POSE: tuple[int, Any, Any] = (0, None, None)


@dataclass(frozen=True)
class PoseEstimator:
    """How a pose is found from matches.

    Attributes:
        name: ``poselib``: its LO-RANSAC, at the evaluated size. ``opencv``: the essential matrix by OpenCV's plain
            RANSAC on shuffled points, at the stored size, with the threshold divided by the mean focal length and
            confidence 0.99999, and of the poses that it stands for the one with most points in front.
        threshold: of inliers, in pixels; ``None`` is 1 for poselib and 0.5 for OpenCV.
        max_iterations: of poselib; OpenCV has its own :data:`OPENCV_ITERATIONS`.
        runs: how often every pair is estimated, with seeds ``seed``, ``seed + 1``, ...
    """

    name: EstimatorName = "poselib"
    threshold: float | None = None
    max_iterations: int = 10_000
    runs: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in THRESHOLDS:
            raise ValueError(f"unknown estimator {self.name!r}; use {' or '.join(THRESHOLDS)}")
        check_threshold(self.pixels)
        if self.runs < 1:
            raise ValueError(f"runs must be at least 1, got {self.runs}")
        if not 0 <= self.seed < 2**31 - self.runs:
            raise ValueError(f"seed must be 0 to 2^31 - 1, with those of the other runs, got {self.seed}")

    @property
    def pixels(self) -> float:
        """The threshold that is used."""
        return THRESHOLDS[self.name] if self.threshold is None else self.threshold

    def describe(self) -> dict[str, Any]:
        """What is used, for a report's settings."""
        used = {**asdict(self), "threshold": self.pixels}
        if self.name == "opencv":
            used |= {"max_iterations": OPENCV_ITERATIONS, "confidence": OPENCV_CONFIDENCE}
        return used

    def estimate(self, pair: PosePair, prediction: Prediction, seed: int) -> Pose:
        """The pose between the cameras, from matches in pixels of the unrotated images."""
        matches = prediction.matches
        if self.name == "poselib":
            K0 = scaled(pair.K0, prediction.stored0, prediction.size0)
            K1 = scaled(pair.K1, prediction.stored1, prediction.size1)
            return matches.pose(K0, K1, threshold=self.pixels, max_iterations=self.max_iterations, seed=seed)
        points0 = _move(matches.keypoints0, prediction.size0, prediction.stored0)
        points1 = _move(matches.keypoints1, prediction.size1, prediction.stored1)
        return estimate_opencv(points0, points1, pair.K0, pair.K1, threshold=self.pixels, seed=seed)


def scaled(K: NDArray[np.float64], size: Size, new_size: Size) -> NDArray[np.float64]:
    """Intrinsics of an image of ``size`` after it is resized to ``new_size``, both (width, height)."""
    return scaling(size, new_size).numpy() @ K


def _move(points: NDArray[Any], size: Size, new_size: Size) -> NDArray[np.float64]:
    moved: NDArray[np.float64] = transform_points(scaling(size, new_size), torch.from_numpy(points).double()).numpy()
    return moved


def estimate_opencv(
    points0: NDArray[np.float64],
    points1: NDArray[np.float64],
    K0: NDArray[np.float64],
    K1: NDArray[np.float64],
    *,
    threshold: float = 0.5,
    seed: int = 0,
) -> Pose:
    """Relative pose as DeDoDe's benchmark has it: see :class:`PoseEstimator`.

    OpenCV's RANSAC always draws the same; ``seed`` is of the order of the points. Fewer than five give no pose.
    """
    import cv2

    nothing = Pose(None, None, np.zeros(len(points0), dtype=bool))
    if len(points0) < 5:
        return nothing
    order = np.random.default_rng(seed).permutation(len(points0))
    rays0, rays1 = (metrics.apply(np.linalg.inv(K), points)[order] for K, points in ((K0, points0), (K1, points1)))
    focal = (K0[0, 0] + K0[1, 1] + K1[0, 0] + K1[1, 1]) / 4
    try:
        stacked, mask = cv2.findEssentialMat(
            rays0,
            rays1,
            np.eye(3),
            method=cv2.RANSAC,
            prob=OPENCV_CONFIDENCE,
            threshold=threshold / focal,
            maxIters=OPENCV_ITERATIONS,
        )
        found = [] if stacked is None else np.split(stacked, len(stacked) // 3)
        poses = [cv2.recoverPose(E, rays0, rays1, np.eye(3), 1e9, mask=mask.copy()) for E in found]
    except cv2.error:  # degenerate points; OpenCV signals them so
        return nothing
    count, R, t = max(((pose[0], pose[1], pose[2]) for pose in poses), key=lambda pose: pose[0], default=_NO_POSE)
    if not count or not (np.isfinite(R).all() and np.isfinite(t).all()):
        return nothing
    inliers = np.zeros(len(points0), dtype=bool)
    inliers[order] = mask.ravel() > 0
    return Pose(np.asarray(R, np.float64), np.asarray(t, np.float64).ravel(), inliers)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoseOutcome:
    """One pair of one run, measured as often as the estimator runs; an error is infinite where no pose was found."""

    pose_errors: list[float]  # degrees
    num_inliers: float  # mean over the estimator's runs
    angle: float | None  # estimated rotation between the images, degrees


def measure_pair(pair: PosePair, prediction: Prediction, estimator: PoseEstimator) -> PoseOutcome:
    """Estimate the pose of a pair from its matches and compare with the truth."""
    poses = [estimator.estimate(pair, prediction, estimator.seed + run) for run in range(estimator.runs)]
    return PoseOutcome(
        pose_errors=[
            math.inf if pose.R is None or pose.t is None else metrics.pose_error(pose.R, pose.t, pair.R, pair.t)
            for pose in poses
        ],
        num_inliers=fmean(int(pose.inliers.sum()) for pose in poses),
        angle=prediction.matches.angle,
    )


def summarise(found: Sequence[PoseOutcome]) -> TableRow:
    """The numbers of a table's row: means over the estimator's runs, and the deviation of the areas among them."""
    runs = len(found[0].pose_errors)
    areas = [metrics.auc([outcome.pose_errors[run] for outcome in found], AUC_DEGREES) for run in range(runs)]
    keys = [f"{degrees:g}" for degrees in AUC_DEGREES]
    return {
        "num_failed": sum(math.isinf(error) for outcome in found for error in outcome.pose_errors) / runs,
        "auc": {key: fmean(area) for key, area in zip(keys, zip(*areas, strict=True), strict=True)},
        "auc_deviation": {key: pstdev(area) for key, area in zip(keys, zip(*areas, strict=True), strict=True)},
        "num_inliers": fmean(outcome.num_inliers for outcome in found),
    }


# The benchmarks -------------------------------------------------------------------------------------------------------


PoseResult = Result[PosePair, PoseOutcome, PoseEstimator]


def _area(key: str) -> Column:
    """The area in per cent, with the deviation among repeated runs where there is one."""

    def cell(row: Mapping[str, Any]) -> str:
        area, deviation = look_up(row, "auc", key), look_up(row, "auc_deviation", key)
        if area is None:
            return MISSING
        return f"{100 * area:.1f}" + (f" ± {100 * deviation:.1f}" if deviation else "")

    return Column(f"AUC@{key}°", cell)


def _describe(result: PoseResult) -> str:
    estimator = result.options
    if estimator.name == "poselib":
        how = (
            f"poselib, {estimator.pixels:g} px at the evaluated size, at most {estimator.max_iterations} iterations, "
            f"seed {estimator.seed}"
        )
    else:
        how = (
            f"OpenCV's findEssentialMat, plain RANSAC, {estimator.pixels:g} px at the stored size over the mean focal "
            f"length, confidence {OPENCV_CONFIDENCE:g}, matches shuffled with seed {estimator.seed}, and the best of "
            f"recoverPose: the estimator of DeDoDe and of the paper"
        )
    return (
        f"{result.describe_views()} Keypoints of rotated images are rotated back, so that intrinsics and poses stay. "
        f"Pose by {how}; {estimator.runs} {'run' if estimator.runs == 1 else 'runs'} of it. Area under the curve of "
        f"the pose error, the larger of the rotation's and the translation's (at most 90 degrees, its sign is not told "
        f"apart), in per cent; a failure is an infinite error, which gives the same areas as the 90 degrees of others. "
        f"Matches, inliers and keypoints are means; {COSTS}{PAPER if result.has_paper else ''}"
    )


def _plots(result: PoseResult) -> dict[str, Draw]:
    return plot_errors(
        result, "pose-error", lambda o: o.pose_errors, limit=max(AUC_DEGREES), xlabel="pose error, degrees"
    )


def _add_options(parser: argparse.ArgumentParser, *, estimator: EstimatorName = "opencv") -> None:
    parser.add_argument("--sequences", type=names, metavar="LIST", help="names of the sequences (default: all)")
    parser.add_argument(
        "--estimator",
        choices=tuple(THRESHOLDS),
        default=estimator,
        help="opencv is that of the paper (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, metavar="PX", help="of inliers (default: 1 for poselib, 0.5 for opencv)"
    )
    parser.add_argument(
        "--runs",
        dest="repeats",
        type=positive,
        default=1,
        metavar="N",
        help="estimate every pair so often, with other seeds (default: %(default)s)",
    )


def _add_cameras_options(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, estimator="poselib")
    parser.add_argument(
        "--apart",
        type=lambda text: [positive(number) for number in names(text)],
        default="1,2,3",
        metavar="LIST",
        help="pairs (i, i + k) of a sequence for each k (default: %(default)s)",
    )


def _read_options(arguments: argparse.Namespace) -> PoseEstimator:
    return PoseEstimator(arguments.estimator, arguments.threshold, runs=arguments.repeats, seed=arguments.seed)


_benchmark = partial(
    PairBenchmark[PosePair, PoseOutcome, PoseEstimator],
    max_size=1024,
    rotates=True,
    options=PoseEstimator(),
    read_options=_read_options,
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(_area(f"{degrees:g}") for degrees in AUC_DEGREES),
        number("matches", "num_matches"),
        number("inliers", "num_inliers"),
        number("keypoints", "num_keypoints"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=lambda estimator: {"estimator": estimator.describe(), "auc_degrees": list(AUC_DEGREES)},
    plots=_plots,
)


def _megadepth(
    variant: str, rotation: Rotation, rotated: str = ""
) -> PairBenchmark[PosePair, PoseOutcome, PoseEstimator]:
    name, images = f"megadepth-{variant}", f"MegaDepth-1500{rotated}"
    return _benchmark(
        name=name,
        help=f"relative pose on {images}",
        about=f"Relative pose on {images}: area under the curve of the pose error at 5, 10 and 20 degrees.",
        example=f"  steerers eval {name} --data megadepth --models dedode-b,dedode-b-c4 --runs 5\n",
        data="the folder that holds LoFTR's scene files and Undistorted_SfM",
        num_keypoints=20_000,
        paper=("megadepth", variant),
        add_options=_add_options,
        list_pairs=lambda arguments: cameras.list_megadepth(arguments.data, arguments.sequences),
        rotation=rotation,
    )


MEGADEPTH = (
    _megadepth("1500", "upright"),
    _megadepth("c4", "c4", f", the {ROTATIONS['c4']}"),
    _megadepth("so2", "so2", f", the {ROTATIONS['so2']}"),
    _megadepth("joint", "joint", f", {ROTATIONS['joint']}"),
)
CAMERAS = _benchmark(
    name="cameras",
    help="relative pose on your own images with cameras",
    about="Relative pose on sequences of images with a cameras.json each, upright or rotated: area under the curve of "
    "the pose error at 5, 10 and 20 degrees.",
    example="""\
  steerers eval cameras --data strecha --models upright-sift,sift --rotation upright,fixed --apart 1,2,3
""",
    data="a folder of sequences, each with a cameras.json",
    rotations="upright",
    add_options=_add_cameras_options,
    list_pairs=lambda arguments: cameras.list_pairs(arguments.data, arguments.apart, arguments.sequences),
)
