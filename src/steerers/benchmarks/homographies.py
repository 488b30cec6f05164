"""Homography benchmarks: the Oxford affine sequences and HPatches, upright and rotated.

Both hold sequences of images of a plane (or from one place), with a text file for the homography from image 1 to each
other one, in pixels with the centre of the top-left pixel at (0, 0). Image 1 is matched with each of the others.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, check_seed, check_threshold, plot_errors
from steerers.benchmarks.offers import Offer
from steerers.benchmarks.predict import Pair, Prediction, View, choose
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, TableRow, failed_fraction, number, percent
from steerers.datasets.photos import ENDINGS
from steerers.features import Matches
from steerers.geometry import Homography, scaling
from steerers.images.load import Size

AUC_PIXELS = (3.0, 5.0, 10.0)
CORRECT_PIXELS = 3.0
"""Within this distance a match is correct and a keypoint is repeated."""


@dataclass(frozen=True)
class Layout:
    """How a folder of sequences looks, and where it comes from."""

    name: str
    image: str  # the name of image {k} of a sequence, without its ending
    homography: str  # of the file with the homography from image 1 to image {k}
    source: str

    @property
    def help(self) -> str:
        """What to get, from where, and how the folder must look."""
        return (
            f"get {self.source}, and give --data the folder that holds the sequences: "
            f"SEQUENCE/{self.image.format(k=1)}.ppm, {self.image.format(k=2)}.ppm, ... (or .png, .webp, .jpg) and "
            f"SEQUENCE/{self.homography.format(k=2)}, {self.homography.format(k=3)}, ... (with or without .txt)"
        )

    def find_image(self, folder: Path, k: int) -> Path | None:
        """Image k of a sequence."""
        return _find(folder, self.image.format(k=k), sorted(ENDINGS))


LAYOUTS = {
    "oxford": Layout(
        "oxford",
        "img{k}",
        "H1to{k}p",
        "the eight affine covariant sequences from https://www.robots.ox.ac.uk/~vgg/research/affine/",
    ),
    "hpatches": Layout(
        "hpatches",
        "{k}",
        "H_1_{k}",
        "hpatches-sequences-release (the full images) from https://huggingface.co/datasets/vbalnt/hpatches "
        "(project: https://github.com/hpatches/hpatches-dataset)",
    ),
}
HPATCHES_LARGE = (
    "i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding", "v_artisans", "v_astronautis", "v_talent"
)  # fmt: skip
"""The sequences of images over 1600 x 1200 that D2-Net and many since leave out."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HomographyPair(Pair):
    """A pair with its true homography, from stored pixels of image 0 to those of image 1."""

    homography: NDArray[np.float64]  # (3, 3)

    def key(self) -> dict[str, Any]:
        return {**super().key(), "homography": self.homography.tolist()}


# Reading --------------------------------------------------------------------------------------------------------------


def list_pairs(
    layout: Layout, folder: Path, sequences: Sequence[str] | None = None, *, skip: Sequence[str] = ()
) -> list[HomographyPair]:
    """The pairs of a folder, by the names of their sequences.

    Args:
        sequences: names of those that are wanted; by default all.
        skip: names of those that are left out, whether they are there or not.

    Raises:
        ValueError: if the folder holds no sequences of this layout, or a broken one; the message says what to get.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {layout.help}")
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and layout.find_image(path, 1)}
    if not found:
        raise ValueError(f"{folder} holds no {layout.name} sequences{_other_layout(layout, folder)}; {layout.help}")
    wanted = choose(found, sequences, folder)
    return [pair for name in sorted(wanted) if name not in skip for pair in _list_sequence(layout, wanted[name])]


def _other_layout(layout: Layout, folder: Path) -> str:
    """A hint where the folder has the other layout, or is itself a sequence."""
    if layout.find_image(folder, 1):
        return f", it is one: give the folder above it, {folder.resolve().parent}"
    for other in LAYOUTS.values():
        if any(path.is_dir() and other.find_image(path, 1) for path in folder.iterdir()):
            return f" (it looks like {other.name}: try `steerers eval {other.name}`)"
    return ""


def _list_sequence(layout: Layout, folder: Path) -> list[HomographyPair]:
    first = layout.find_image(folder, 1)
    assert first is not None
    pairs: list[HomographyPair] = []
    for k in count(2):
        image = layout.find_image(folder, k)
        matrix = _find(folder, layout.homography.format(k=k), ("", ".txt"))
        if image is None and matrix is None:
            break
        if image is None or matrix is None:
            lacking = layout.image.format(k=k) if image is None else layout.homography.format(k=k)
            raise ValueError(f"sequence {folder} has no {lacking}; {layout.help}")
        name = f"{folder.name} 1-{k}"
        pairs.append(HomographyPair(name, folder.name, first, image, homography=read_homography(matrix)))
    if not pairs:
        raise ValueError(f"sequence {folder} has an image 1 but no image 2; {layout.help}")
    return pairs


def _find(folder: Path, stem: str, endings: Sequence[str]) -> Path | None:
    found = [path for ending in endings if (path := folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} has {' and '.join(path.name for path in found)}; keep one of them")
    return found[0] if found else None


def read_homography(path: Path) -> NDArray[np.float64]:
    """The (3, 3) matrix in a text file of nine numbers."""
    try:
        values = np.array(path.read_text(encoding="utf-8").split(), dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path}: not a text file of numbers ({error})") from error
    if values.shape != (9,) or not np.isfinite(values).all():
        raise ValueError(f"{path}: a homography is nine finite numbers, got {len(values)}")
    H = values.reshape(3, 3)
    if abs(np.linalg.det(H)) < 1e-12:
        raise ValueError(f"{path}: the homography is singular")
    return H


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HomographyEstimator:
    """OpenCV's USAC with MAGSAC scoring; ``threshold`` in pixels at the evaluated size."""

    threshold: float = 3.0
    confidence: float = 0.9999
    max_iterations: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_seed(self.seed)

    def __str__(self) -> str:
        return (
            f"OpenCV USAC_MAGSAC, {self.threshold:g} px, confidence {self.confidence:g}, {self.max_iterations} "
            f"iterations, seed {self.seed}"
        )

    def find(self, matches: Matches) -> Homography:
        """The homography of the matches, with its inliers."""
        return matches.homography(**asdict(self))

    def estimate(self, matches: Matches) -> tuple[NDArray[np.float64] | None, int]:
        """The (3, 3) homography, ``None`` where the matches determine none, and the number of inliers."""
        H, inliers = self.find(matches)
        return H, int(inliers.sum())

    def settings(self) -> dict[str, Any]:
        """For a report's settings."""
        return {"estimator": {"name": "OpenCV USAC_MAGSAC", **asdict(self)}}


@dataclass(frozen=True)
class HomographyOutcome:
    """One pair of one run, measured. ``corner_error`` is infinite where no homography was found."""

    num_inliers: int
    precision: float
    corner_error: float
    repeatability: float
    angle: float | None  # estimated, degrees
    angle_error: float | None

    @property
    def failed(self) -> bool:
        """Whether no homography was found."""
        return math.isinf(self.corner_error)


def true_homography(pair: HomographyPair, prediction: Prediction) -> NDArray[np.float64]:
    """The (3, 3) ground truth between the unrotated images at the evaluated size."""
    return _evaluated(pair, prediction.stored0, prediction.size0, prediction.stored1, prediction.size1).numpy()


def _evaluated(pair: HomographyPair, stored0: Size, size0: Size, stored1: Size, size1: Size) -> Tensor:
    return scaling(stored1, size1) @ torch.from_numpy(pair.homography) @ scaling(size0, stored0)


def measure_repeatability(
    pair: HomographyPair, view0: View, keypoints0: Tensor, view1: View, keypoints1: Tensor
) -> float:
    """Repeatability of the detector at :data:`CORRECT_PIXELS`."""
    H = _evaluated(pair, view0.stored_size, view0.size, view1.stored_size, view1.size)
    return metrics.repeatability(keypoints0, keypoints1, H, view0.size, view1.size, CORRECT_PIXELS)


def measure_pair(pair: HomographyPair, prediction: Prediction, estimator: HomographyEstimator) -> HomographyOutcome:
    """Estimate the homography of a pair from its matches and compare with the truth."""
    truth, matches = true_homography(pair, prediction), prediction.matches
    H, num_inliers = estimator.estimate(matches)
    errors = metrics.reprojection_errors(matches.keypoints0, matches.keypoints1, truth)
    tilt = metrics.rotation_at_centre(truth, prediction.size0)
    rotation = None if tilt is None else tilt + pair.rotation1 - pair.rotation0
    return HomographyOutcome(
        num_inliers=num_inliers,
        precision=metrics.precision(errors, CORRECT_PIXELS),
        corner_error=metrics.corner_error(H, truth, prediction.size0),
        repeatability=prediction.observed,
        angle=matches.angle,
        angle_error=metrics.angle_error(matches.angle, rotation),
    )


def summarise(found: Sequence[HomographyOutcome]) -> TableRow:
    """The numbers of a table's row; fractions are 0 to 1, times are means in seconds."""
    angle_errors = [outcome.angle_error for outcome in found if outcome.angle_error is not None]
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "auc": metrics.areas([outcome.corner_error for outcome in found], AUC_PIXELS),
        "precision": fmean(outcome.precision for outcome in found),
        "repeatability": fmean(outcome.repeatability for outcome in found),
        "num_inliers": fmean(outcome.num_inliers for outcome in found),
        "num_angles": len(angle_errors),
        "angle_error_median": metrics.middle(angle_errors),
        "angle_error_mean": metrics.mean(angle_errors),
    }


# The benchmarks -------------------------------------------------------------------------------------------------------


HomographyResult = Result[HomographyPair, HomographyOutcome, HomographyEstimator]


def _describe(result: HomographyResult) -> str:
    return (
        f"{result.describe_views()} Homography by {result.options}; area under the curve of the mean corner error. "
        f"Fractions in per cent; precision, matches, inliers and repeatability are means over pairs, the angle error "
        f"is the median; {COSTS}"
    )


def _list_asked(layout: Layout, arguments: argparse.Namespace) -> list[HomographyPair]:
    skip = HPATCHES_LARGE if getattr(arguments, "skip_large", False) else ()
    return list_pairs(layout, arguments.data, arguments.sequences, skip=skip)


def _benchmark(offer: Offer) -> PairBenchmark[HomographyPair, HomographyOutcome, HomographyEstimator]:
    return PairBenchmark(
        offer=offer,
        list_pairs=partial(_list_asked, LAYOUTS[offer.name]),
        options=HomographyEstimator(),
        read_options=lambda arguments: HomographyEstimator(arguments.threshold, seed=arguments.seed),
        measure=measure_pair,
        observe=measure_repeatability,
        summarise=summarise,
        columns=(
            *MODEL_COLUMNS,
            *(percent(f"AUC@{pixels:g}", "auc", f"{pixels:g}") for pixels in AUC_PIXELS),
            percent(f"precision@{CORRECT_PIXELS:g}", "precision"),
            percent(f"repeatability@{CORRECT_PIXELS:g}", "repeatability"),
            number("matches", "num_matches"),
            number("inliers", "num_inliers"),
            number("angle error", "angle_error_median", form="{:.1f}°"),
            failed_fraction(),
            *COST_COLUMNS,
        ),
        describe=_describe,
        settings=lambda estimator: {
            **estimator.settings(),
            "auc_pixels": list(AUC_PIXELS),
            "correct_pixels": CORRECT_PIXELS,
        },
        plots=plot_errors(
            "corner-error", lambda o: [o.corner_error], limit=max(AUC_PIXELS), xlabel="corner error, pixels"
        ),
    )


OXFORD = _benchmark(offers.OXFORD)
HPATCHES = _benchmark(offers.HPATCHES)
