"""Collections: folders of photographs without ground truth, such as those of a drone.

Pairs are matched and verified by geometry: one with enough inliers shows the same place. How well the estimated angles
agree needs no truth either: around three images, the rotation from a to b and that from b to c make the rotation from a
to c. Agreement is no accuracy, though: a matcher whose angle is always 0 agrees with itself, so the angles are also
compared with those of the homographies.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, check_seed, check_threshold
from steerers.benchmarks.predict import Pair, Prediction
from steerers.benchmarks.report import (
    COST_COLUMNS,
    MODEL_COLUMNS,
    Column,
    Table,
    TableRow,
    failed_fraction,
    number,
    percent,
    text,
)
from steerers.datasets.photos import ENDINGS, is_image
from steerers.features import Matches
from steerers.geometry import estimate_homography, wrap_degrees
from steerers.images.exif import ground_distance, read_position
from steerers.viz import plots

Geometry = Literal["homography", "fundamental"]
GEOMETRIES: dict[Geometry, str] = {
    "homography": "homography, OpenCV USAC_MAGSAC",
    "fundamental": "fundamental matrix, poselib",
}
AGREEMENT_DEGREES = (5.0, 15.0)
SECTOR = 30
"""Degrees of a sector of the table of angles."""

HELP = f"give --data a folder with at least two photographs ({', '.join(sorted(ENDINGS))}) of one place"


# Choosing pairs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Which pairs of a folder are matched; by default all.

    Attributes:
        neighbours: each image with so many that follow it in the order of names.
        gps: those taken at most so many metres apart, by the positions in their EXIF data.
        most: no more than so many pairs, the nearest: on the ground with ``gps``, else in the order of names.
    """

    neighbours: int | None = None
    gps: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.gps is not None and not 0 < self.gps < math.inf:
            raise ValueError(f"gps must be a positive and finite number of metres, got {self.gps}")


def list_images(folder: Path) -> list[Path]:
    """The photographs of a folder, by name; not those in folders below, whose names could be the same."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    images = sorted(filter(is_image, folder.iterdir()))
    if len(images) < 2:
        raise ValueError(f"{folder} holds {len(images)} photographs; {HELP}")
    return images


def list_pairs(folder: Path, selection: Selection | None = None) -> list[Pair]:
    """The pairs of a folder that a selection takes, in the order of names; the first name of each comes first."""
    selection = selection or Selection()
    images = list_images(folder)
    if selection.gps is None:
        gaps = {(i, j): float(j - i) for i, j in combinations(range(len(images)), 2)}
        reach = math.inf if selection.neighbours is None else selection.neighbours
    else:
        gaps, reach = _ground_distances(images), selection.gps
    near = sorted((gap, pair) for pair, gap in gaps.items() if gap <= reach)
    if not near:
        closest = min(gaps.values())
        raise ValueError(
            f"no two photographs of {folder} are within {reach:g} m; the nearest are {closest:.1f} m apart"
        )
    chosen = [pair for _, pair in near[: selection.most]]
    return [Pair(f"{images[i].name} {images[j].name}", folder.name, images[i], images[j]) for i, j in sorted(chosen)]


def _ground_distances(images: Sequence[Path]) -> dict[tuple[int, int], float]:
    positions = [read_position(path) for path in images]
    without = [path for path, position in zip(images, positions, strict=True) if position is None]
    if without:
        raise ValueError(
            f"{without[0]} has no GPS position in its EXIF data, nor have {len(without) - 1} others of {len(images)}; "
            "choose pairs by the order of names, or leave those out"
        )
    known = enumerate(position for position in positions if position is not None)
    return {(i, j): ground_distance(first, second) for (i, first), (j, second) in combinations(known, 2)}


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """When a pair is verified: at least ``min_inliers`` within ``threshold`` pixels at the evaluated size."""

    geometry: Geometry = "homography"
    threshold: float = 3.0
    min_inliers: int = 30
    max_iterations: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.geometry not in GEOMETRIES:
            raise ValueError(f"unknown geometry {self.geometry!r}; use {' or '.join(GEOMETRIES)}")
        check_threshold(self.threshold)
        check_seed(self.seed)


@dataclass(frozen=True)
class CollectionOptions:
    """Which pairs are matched, and when one is verified."""

    verification: Verification = field(default_factory=Verification)
    selection: Selection = field(default_factory=Selection)


@dataclass(frozen=True)
class CollectionOutcome:
    """One pair of one run. Angles are degrees counter-clockwise from image 0 to image 1."""

    image0: str
    image1: str
    num_inliers: int
    failed: bool  # no geometry at all
    verified: bool
    angle: float | None  # the matcher's, or where it has none that of the homography
    angle_source: Literal["matcher", "homography"] | None
    homography_angle: float | None  # of the homography at the centre of image 0


def measure_pair(pair: Pair, prediction: Prediction, options: CollectionOptions) -> CollectionOutcome:
    """Verify a pair from its matches."""
    matches, verification = prediction.matches, options.verification
    inliers, failed, H = _estimate(matches, verification)
    tilt = None if H is None else metrics.rotation_at_centre(H, prediction.size0)
    angle = tilt if matches.angle is None else matches.angle
    number_inliers = int(inliers.sum())
    return CollectionOutcome(
        image0=pair.image0.name,
        image1=pair.image1.name,
        num_inliers=number_inliers,
        failed=failed,
        verified=number_inliers >= verification.min_inliers,
        angle=angle,
        angle_source=None if angle is None else "homography" if matches.angle is None else "matcher",
        homography_angle=tilt,
    )


def _estimate(
    matches: Matches, verification: Verification
) -> tuple[NDArray[np.bool_], bool, NDArray[np.float64] | None]:
    """Inliers, whether there is no geometry, and the homography: of all matches, or of the inliers of the other one."""
    options: dict[str, Any] = {"max_iterations": verification.max_iterations, "seed": verification.seed}
    if verification.geometry == "homography":
        H, inliers = matches.homography(verification.threshold, **options)
        return inliers, H is None, H
    F, inliers = matches.fundamental(verification.threshold, **options)
    H, _ = estimate_homography(
        matches.keypoints0[inliers], matches.keypoints1[inliers], threshold=verification.threshold, **options
    )
    return inliers, F is None, H


def triplet_errors(angles: Mapping[tuple[str, str], float]) -> list[float]:
    """For any three images of which each two have an angle, how far the two rotations are from the one, 0 to 180
    degrees.

    Args:
        angles: degrees from the first to the second image, of each two under the same order of names.
    """
    after: dict[str, dict[str, float]] = {}
    for (first, second), angle in angles.items():
        after.setdefault(first, {})[second] = angle
    return [
        abs(wrap_degrees(there[b] + after[b][c] - there[c]))
        for there in after.values()
        for b in there
        for c in there.keys() & after.get(b, {}).keys()
    ]


def largest_group(pairs: Sequence[tuple[str, str]]) -> int:
    """How many images the largest group has that pairs join, directly or through others; 0 without pairs."""
    group: dict[str, set[str]] = {}
    for first, second in pairs:
        joined = group.get(first, {first}) | group.get(second, {second})
        for image in joined:
            group[image] = joined
    return max((len(images) for images in group.values()), default=0)


def summarise(found: Sequence[CollectionOutcome]) -> TableRow:
    """The numbers of a table's row; fractions are 0 to 1, angles degrees."""
    verified = [outcome for outcome in found if outcome.verified]
    angles = {(o.image0, o.image1): o.angle for o in verified if o.angle is not None}
    tilts = {(o.image0, o.image1): o.homography_angle for o in verified if o.homography_angle is not None}
    apart = [metrics.angle_error(o.angle, o.homography_angle) for o in verified if o.angle_source == "matcher"]
    known = [error for error in apart if error is not None]
    sources = {outcome.angle_source for outcome in verified if outcome.angle_source}
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "num_images": len({image for outcome in found for image in (outcome.image0, outcome.image1)}),
        "num_verified": len(verified),
        "num_joined": largest_group([(outcome.image0, outcome.image1) for outcome in verified]),
        "num_inliers": metrics.mean(outcome.num_inliers for outcome in verified),
        "num_inliers_median": metrics.middle(outcome.num_inliers for outcome in verified),
        "num_angles": len(angles),
        "angle_source": " and ".join(sorted(sources)) or None,
        "angle_from_homography_median": metrics.middle(known),
        "triplets": _summarise_triplets(angles),
        "homography_triplets": _summarise_triplets(tilts),
        "sectors": count_sectors(list(angles.values())),
    }


def _summarise_triplets(angles: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    errors = triplet_errors(angles)
    within = {f"{limit:g}": metrics.mean(error <= limit for error in errors) for limit in AGREEMENT_DEGREES}
    return {"number": len(errors), "median": metrics.middle(errors), "within": within}


def count_sectors(angles: Sequence[float]) -> dict[str, int]:
    """How many angles lie in each sector, by the angle in the middle of it: -150, -120, ..., 180."""
    counts = {str(middle): 0 for middle in range(SECTOR - 180, 181, SECTOR)}
    for angle in angles:
        middle = SECTOR * math.floor(angle / SECTOR + 0.5)
        counts[f"{wrap_degrees(middle):.0f}"] += 1
    return counts


# The benchmark --------------------------------------------------------------------------------------------------------


CollectionResult = Result[Pair, CollectionOutcome, CollectionOptions]


def _describe(result: CollectionResult) -> str:
    verification = result.options.verification
    return (
        f"{result.describe_views()} There is no ground truth. A pair is verified by at least "
        f"{verification.min_inliers} inliers of a {GEOMETRIES[verification.geometry]}, {verification.threshold:g} px, "
        f"{verification.max_iterations} iterations, seed {verification.seed}; failed are pairs without any. Joined are "
        f"the images of the largest group that verified pairs hold together; inliers are the median over verified "
        f"pairs. Angles are those of the matcher, or where it has none those of the homography at the centre; off "
        f"homography is the median difference between the two. Triplets are three images of which each two are "
        f"verified: the median of how far the angles from a to b and b to c are from that of a to c, and the fraction "
        f"of triplets within some degrees; the last by the angles of the homographies, whatever the matcher says. "
        f"{COSTS}"
    )


def _settings(options: CollectionOptions) -> dict[str, Any]:
    told = asdict(options)
    told["verification"]["estimator"] = GEOMETRIES[options.verification.geometry]
    return {**told, "agreement_degrees": AGREEMENT_DEGREES}


def _sector_tables(main: Table) -> list[Table]:
    names = list(main.rows[0]["sectors"])
    rows = [{key: row[key] for key in ("label", "model", "strategy", "sectors")} for row in main.rows]
    columns = (*MODEL_COLUMNS, *(number(f"{name}°", "sectors", name) for name in names))
    return [Table(f"verified pairs by angle, sectors of {SECTOR} degrees about", columns, rows)]


def _plot(result: CollectionResult, path: Path) -> None:
    rows = result.evaluations[0].rows
    series = {row.run.label: [o.angle for o in row.outcomes if o.verified] for row in rows}
    plots.angle_histogram(path, series, ylabel="pairs", title="angles of verified pairs")


def _read_options(arguments: argparse.Namespace) -> CollectionOptions:
    return CollectionOptions(
        Verification(arguments.geometry, arguments.threshold, arguments.min_inliers, seed=arguments.seed),
        Selection(arguments.neighbours, arguments.gps, arguments.pairs),
    )


COLLECTIONS = PairBenchmark(
    offer=offers.COLLECTIONS,
    list_pairs=lambda arguments: list_pairs(arguments.data, _read_options(arguments).selection),
    options=CollectionOptions(),
    read_options=_read_options,
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        Column("verified", lambda row: f"{row['num_verified']} of {row['num_pairs']}"),
        Column("joined", lambda row: f"{row['num_joined']} of {row['num_images']}"),
        number("inliers", "num_inliers_median"),
        number("matches", "num_matches"),
        text("angles by", "angle_source"),
        number("off homography", "angle_from_homography_median", form="{:.1f}°"),
        number("triplets", "triplets", "number"),
        number("median", "triplets", "median", form="{:.1f}°"),
        *(percent(f"within {limit:g}°", "triplets", "within", f"{limit:g}") for limit in AGREEMENT_DEGREES),
        percent("homographies within 5°", "homography_triplets", "within", "5"),
        failed_fraction(),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=_settings,
    title=lambda options: "verified pairs and agreement of angles",
    groups={},
    more_tables=_sector_tables,
    plots=lambda result: {"angles.png": partial(_plot, result)},
)
