"""Relative pose of two calibrated views, upright and rotated: MegaDepth-1500 and its rotated versions, and any cameras.

The pose error of a pair is the larger of the angle between the estimated and the true rotation and the angle between
the lines of the translations, in degrees; the score is the area under the curve of recall at 5, 10 and 20 degrees. Two
estimators are protocols by name: ``poselib``, and ``opencv``, that of DeDoDe and of the steerers paper.

Cameras are those of folders with a ``cameras.json`` or a COLMAP model each, and of LoFTR's MegaDepth-1500: intrinsics
for pixels with the centre of the top-left pixel at (0, 0), poses from the world to the camera, ``x ~ K (R X + t)``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._files import read_json
from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, check_threshold, plot_errors
from steerers.benchmarks.offers import THRESHOLDS, EstimatorName, Rotation
from steerers.benchmarks.predict import Pair, Prediction, choose
from steerers.benchmarks.report import (
    COST_COLUMNS,
    MISSING,
    MODEL_COLUMNS,
    Column,
    TableRow,
    failed_fraction,
    look_up,
    number,
)
from steerers.datasets.reconstruction import Scene, check_pinholes, model_folder, open_scenes, tracks_file
from steerers.datasets.safe_arrays import read_named
from steerers.geometry import Pose, epipolar_errors, fundamental_matrix, relative_pose, scaled_intrinsics

CAMERAS_FILE = "cameras.json"
CAMERAS_HELP = (
    f"give --data a folder of sequences, each a folder of images with a {CAMERAS_FILE}: a list of "
    '{"name": "0000.jpg", "K": [3 x 3], "R": [3 x 3], "t": [3]} with x ~ K (R X + t), the centre of the top-left pixel '
    "at (0, 0); or of COLMAP models without lens distortion, each beside its images/"
)
MEGADEPTH_SCENES = ("0015_0.1_0.3", "0015_0.3_0.5", "0022_0.1_0.3", "0022_0.3_0.5", "0022_0.5_0.7")
MEGADEPTH_HELP = (
    "get the five scene files from https://github.com/zju3dv/LoFTR, assets/megadepth_test_1500_scene_info "
    f"({', '.join(MEGADEPTH_SCENES)}; each .npz), and the images of scenes 0015 and 0022 from LoFTR's Google Drive "
    "(megadepth_test_1500) or from MegaDepth as D2-Net undistorts it, and give --data the folder that holds the npz "
    "files, or a folder of them, and Undistorted_SfM/0015/images, Undistorted_SfM/0022/images"
)
Matrix = NDArray[np.float64]
AUC_DEGREES = (5.0, 10.0, 20.0)
RIGHT_PIXELS = (4.0, 1.0)
"""From its true epipolar lines, at the evaluated size, is a match that counts as right."""
OPENCV_CONFIDENCE = 0.99999
OPENCV_ITERATIONS = 1000
"""OpenCV's own default, which DeDoDe keeps."""
PAPER = (
    " Rows of the paper are of its own protocol: images squashed to 784 x 784 (`--resize squash --max-size 784`), "
    "20000 keypoints, the opencv estimator, and all of MegaDepth-1500, whatever was asked for here."
)


# Cameras ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Camera:
    """An image and its camera."""

    path: Path
    K: Matrix  # (3, 3)
    R: Matrix  # (3, 3)
    t: Matrix  # (3,)


@dataclass(frozen=True, eq=False, kw_only=True)
class PosePair(Pair):
    """A pair with its intrinsics, in stored pixels, and its true pose ``X1 = R X0 + t``."""

    K0: Matrix  # (3, 3)
    K1: Matrix
    R: Matrix  # (3, 3)
    t: Matrix  # (3,)

    def key(self) -> dict[str, Any]:
        return {**super().key(), **{name: getattr(self, name).tolist() for name in ("K0", "K1", "R", "t")}}


def make_pair(name: str, sequence: str, first: Camera, second: Camera) -> PosePair:
    """The pair of two images whose cameras are in one world."""
    R, t = relative_pose(first.R, first.t, second.R, second.t)
    return PosePair(name, sequence, first.path, second.path, K0=first.K, K1=second.K, R=R, t=t)


def list_pairs(
    folder: Path, apart: Sequence[int] = (1, 2, 3), sequences: Sequence[str] | None = None
) -> list[PosePair]:
    """The pairs (i, i + k) of the images of every sequence, for every ``k`` of ``apart``.

    Args:
        folder: of sequences, or one sequence.
        sequences: names of those that are wanted; by default all.

    Raises:
        ValueError: if there are no such sequences, or a broken one.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {CAMERAS_HELP}")
    folders = [folder] if _has_cameras(folder) else filter(_has_cameras, sorted(folder.iterdir()))
    found = {path.resolve().name: path for path in folders}
    if not found:
        raise ValueError(f"{folder} holds no sequences with a {CAMERAS_FILE} or a COLMAP model; {CAMERAS_HELP}")
    wanted = choose(found, None if sequences is None else sorted(sequences), folder)
    pairs = [pair for name, path in wanted.items() for pair in _pair_up(name, read_cameras(path), apart)]
    if not pairs:
        raise ValueError(f"no sequence of {folder} has two images that are {' or '.join(map(str, apart))} apart")
    return pairs


def _pair_up(sequence: str, cameras: Sequence[Camera], apart: Sequence[int]) -> list[PosePair]:
    return [
        make_pair(f"{sequence} {first.path.stem}-{cameras[i + k].path.stem}", sequence, first, cameras[i + k])
        for i, first in enumerate(cameras)
        for k in sorted(set(apart))
        if i + k < len(cameras)
    ]


def _has_cameras(folder: Path) -> bool:
    """Whether a folder is a sequence."""
    known = (folder / CAMERAS_FILE).is_file() or tracks_file(folder) or model_folder(folder)
    return folder.is_dir() and bool(known)


def read_cameras(folder: Path) -> list[Camera]:
    """The cameras of one sequence, in the order of the file, or those of its COLMAP model, by name."""
    path = folder / CAMERAS_FILE
    if not path.is_file():
        (scene,) = open_scenes(folder)
        check_pinholes(scene, "poses of pairs")
        return [_model_camera(scene, image) for image in range(len(scene.reconstruction))]
    entries = read_json(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: it holds no list; {CAMERAS_HELP}")
    return [_read_camera(folder, f"{path}, entry {index}", entry) for index, entry in enumerate(entries)]


def _read_camera(folder: Path, where: str, entry: Any) -> Camera:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{where}: it has no name; {CAMERAS_HELP}")
    image = folder / entry["name"]
    if not image.is_file():
        raise ValueError(f"{where}: there is no image {image}")
    shapes = {"K": (3, 3), "R": (3, 3), "t": (3,)}
    K, R, t = (read_matrix(f"{where}: {name}", entry.get(name), shape) for name, shape in shapes.items())
    check_camera(where, K, R)
    return Camera(image, K, R, t)


def _model_camera(scene: Scene, image: int) -> Camera:
    """That of a COLMAP model."""
    pose = scene.reconstruction.poses[image]  # (3, 4)
    return Camera(*scene.stored(image), pose[:, :3], pose[:, 3])


def read_matrix(where: str, values: Any, shape: tuple[int, ...]) -> Matrix:
    """An array of that shape, all finite; ``where`` it stands, for the message."""
    try:
        matrix = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        matrix = np.zeros(0)
    if matrix.shape != shape or not np.isfinite(matrix).all():
        raise ValueError(f"{where} must be {' x '.join(map(str, shape))} finite numbers")
    return matrix


def check_camera(where: str, K: Matrix, R: Matrix) -> None:
    """Refuse what are no intrinsics, or no rotation to within 0.001."""
    if K[0, 0] <= 0 or K[1, 1] <= 0 or K[1, 0] != 0 or not np.array_equal(K[2], (0, 0, 1)):
        raise ValueError(f"{where}: K must be [[fx, 0, cx], [0, fy, cy], [0, 0, 1]], got {K.tolist()}")
    if np.abs(R @ R.T - np.eye(3)).max() > 1e-3 or np.linalg.det(R) < 0:
        raise ValueError(f"{where}: R must be a rotation, got {R.tolist()}")


def list_megadepth(folder: Path, scenes: Sequence[str] | None = None) -> list[PosePair]:
    """The pairs of LoFTR's scene files, 300 each, in their order.

    Raises:
        ValueError: if files or images are missing, saying what to get; or if a file is damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {MEGADEPTH_HELP}")
    for name in scenes or ():
        if name not in MEGADEPTH_SCENES:
            raise ValueError(f"MegaDepth-1500 has no scene file {name!r}; it has {', '.join(MEGADEPTH_SCENES)}")
    wanted = [name for name in MEGADEPTH_SCENES if scenes is None or name in scenes]
    pairs = [pair for name in wanted for pair in _read_scene(folder, _find_scene(folder, name))]
    images = {path for pair in pairs for path in (pair.image0, pair.image1)}
    missing = sorted(path for path in images if not path.is_file())
    if missing:
        raise ValueError(f"{len(missing)} of {len(images)} images are missing, such as {missing[0]}; {MEGADEPTH_HELP}")
    return pairs


def _find_scene(folder: Path, name: str) -> Path:
    found = [path for path in (folder / f"{name}.npz", *sorted(folder.glob(f"*/{name}.npz"))) if path.is_file()]
    if not found:
        raise ValueError(f"there is no {name}.npz in {folder}, nor in a folder in it; {MEGADEPTH_HELP}")
    return found[0]


def _read_scene(folder: Path, path: Path) -> list[PosePair]:
    values = read_named(path, ("image_paths", "intrinsics", "poses", "pair_infos"), "scene file")
    try:
        chosen = [(int(index0), int(index1)) for (index0, index1), *_ in values["pair_infos"]]
        cameras = {index: _scene_camera(folder, values, index) for pair in chosen for index in pair}
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: not a scene file of LoFTR ({error})") from error
    return [
        make_pair(f"{path.stem} {number}", path.stem, cameras[index0], cameras[index1])
        for number, (index0, index1) in enumerate(chosen)
    ]


def _scene_camera(folder: Path, values: dict[str, Any], index: int) -> Camera:
    """Intrinsics are COLMAP's, for pixels with the corner of the top-left one at (0, 0): half a pixel is taken off."""
    where = f"image {index}"
    K = read_matrix(f"intrinsics of {where}", values["intrinsics"][index], (3, 3))
    pose = read_matrix(f"pose of {where}", values["poses"][index], (4, 4))
    check_camera(where, K, pose[:3, :3])
    centred = K - np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    return Camera(folder / str(values["image_paths"][index]), centred, pose[:3, :3], pose[:3, 3])


# Estimating -----------------------------------------------------------------------------------------------------------


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
        check_threshold(self.pixels)
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
        if self.name == "poselib":
            K0, K1 = shown_intrinsics(pair, prediction)
            return prediction.matches.pose(K0, K1, threshold=self.pixels, max_iterations=self.max_iterations, seed=seed)
        return estimate_opencv(*prediction.stored_keypoints(), pair.K0, pair.K1, threshold=self.pixels, seed=seed)


def shown_intrinsics(pair: PosePair, prediction: Prediction) -> tuple[Matrix, Matrix]:
    """Those of both images at the evaluated size."""
    return (
        scaled_intrinsics(pair.K0, prediction.stored0, prediction.size0),
        scaled_intrinsics(pair.K1, prediction.stored1, prediction.size1),
    )


def estimate_opencv(
    points0: Matrix, points1: Matrix, K0: Matrix, K1: Matrix, *, threshold: float = 0.5, seed: int = 0
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
    count, R, t, *_ = max(poses, key=lambda pose: pose[0], default=(0, np.eye(3), np.zeros(3)))
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
    num_right: dict[str, int]  # matches, by the pixels that they may be off their true epipolar lines
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
        num_right=count_right(pair, prediction),
        angle=prediction.matches.angle,
    )


def count_right(pair: PosePair, prediction: Prediction) -> dict[str, int]:
    """How many matches lie within :data:`RIGHT_PIXELS` of their true epipolar lines, those that do by chance too."""
    K0, K1 = shown_intrinsics(pair, prediction)
    fundamental = fundamental_matrix(K0, K1, pair.R, pair.t)
    errors = epipolar_errors(prediction.matches.keypoints0, prediction.matches.keypoints1, fundamental)
    return {f"{pixels:g}": int((errors <= pixels).sum()) for pixels in RIGHT_PIXELS}


def summarise(found: Sequence[PoseOutcome]) -> TableRow:
    """The numbers of a table's row: means over the estimator's runs, and the deviation of the areas among them."""
    runs = len(found[0].pose_errors)
    areas = [metrics.auc([outcome.pose_errors[run] for outcome in found], AUC_DEGREES) for run in range(runs)]
    by_degrees = {f"{degrees:g}": area for degrees, *area in zip(AUC_DEGREES, *areas, strict=True)}
    return {
        "num_failed": sum(math.isinf(error) for outcome in found for error in outcome.pose_errors) / runs,
        "auc": {degrees: fmean(area) for degrees, area in by_degrees.items()},
        "auc_deviation": {degrees: pstdev(area) for degrees, area in by_degrees.items()},
        "num_inliers": fmean(outcome.num_inliers for outcome in found),
        "num_right": {pixels: fmean(outcome.num_right[pixels] for outcome in found) for pixels in found[0].num_right},
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


def describe(result: PoseResult, at: str = "the stored size") -> str:
    """The protocol, for people; ``at`` what size the threshold of OpenCV's estimator is in pixels."""
    estimator = result.options
    if estimator.name == "poselib":
        how = (
            f"poselib, {estimator.pixels:g} px at the evaluated size, at most {estimator.max_iterations} iterations, "
            f"seed {estimator.seed}"
        )
    else:
        how = (
            f"OpenCV's findEssentialMat, plain RANSAC, {estimator.pixels:g} px at {at} over the mean focal "
            f"length, confidence {OPENCV_CONFIDENCE:g}, matches shuffled with seed {estimator.seed}, and the best of "
            f"recoverPose: the estimator of DeDoDe and of the paper"
        )
    return (
        f"{result.describe_views()} Keypoints of rotated images are rotated back, so that intrinsics and poses stay. "
        f"Pose by {how}; {estimator.runs} {'run' if estimator.runs == 1 else 'runs'} of it. Area under the curve of "
        f"the pose error, the larger of the rotation's and the translation's (at most 90 degrees, its sign is not told "
        f"apart), in per cent; a failure is an infinite error, which gives the same areas as the 90 degrees of others. "
        f"Right are matches within so many pixels of their true epipolar lines in both images, where some lie by "
        f"chance. Matches, inliers and keypoints are means; {COSTS}{PAPER if result.has_paper else ''}"
    )


def _read_options(arguments: argparse.Namespace) -> PoseEstimator:
    return PoseEstimator(arguments.estimator, arguments.threshold, runs=arguments.repeats, seed=arguments.seed)


pose_benchmark = partial(
    PairBenchmark[PosePair, PoseOutcome, PoseEstimator],
    options=PoseEstimator(),
    read_options=_read_options,
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(_area(f"{degrees:g}") for degrees in AUC_DEGREES),
        number("matches", "num_matches"),
        *(number(f"right, {pixels:g} px", "num_right", f"{pixels:g}") for pixels in RIGHT_PIXELS),
        number("inliers", "num_inliers"),
        number("keypoints", "num_keypoints"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=describe,
    settings=lambda estimator: {"estimator": estimator.describe(), "auc_degrees": list(AUC_DEGREES)},
    plots=plot_errors("pose-error", lambda o: o.pose_errors, limit=max(AUC_DEGREES), xlabel="pose error, degrees"),
)


def _megadepth(variant: str, rotation: Rotation) -> PairBenchmark[PosePair, PoseOutcome, PoseEstimator]:
    return pose_benchmark(
        offer=offers.MEGADEPTH[variant],
        list_pairs=lambda arguments: list_megadepth(arguments.data, arguments.sequences),
        rotation=rotation,
    )


MEGADEPTH = (
    _megadepth("1500", "upright"),
    _megadepth("c4", "c4"),
    _megadepth("so2", "so2"),
    _megadepth("joint", "joint"),
)
CAMERAS = pose_benchmark(
    offer=offers.CAMERAS, list_pairs=lambda arguments: list_pairs(arguments.data, arguments.apart, arguments.sequences)
)
