"""Collections: folders of photographs without ground truth, such as those of a drone.

Pairs are matched and verified by geometry: one with enough inliers shows the same place. How well the estimated angles
agree needs no truth either: around three images, the rotation from a to b and that from b to c make the rotation from a
to c. Agreement is no accuracy, though: a matcher whose angle is always 0 agrees with itself, so the angles are also
compared with those of the homographies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from steerers.benchmarks import metrics, outcomes
from steerers.benchmarks.outcomes import Evaluation, Outcome
from steerers.benchmarks.protocol import Pair, Prediction, Settings
from steerers.benchmarks.report import (
    COST_COLUMNS,
    MODEL_COLUMNS,
    Column,
    Report,
    Table,
    number,
    percent,
    share_failed,
    text,
)
from steerers.benchmarks.runs import Run
from steerers.benchmarks.selection import Selection
from steerers.features import Matches
from steerers.geometry import estimate_homography, wrap_degrees

Geometry = Literal["homography", "fundamental"]
GEOMETRIES: dict[Geometry, str] = {
    "homography": "homography, OpenCV USAC_MAGSAC",
    "fundamental": "fundamental matrix, poselib",
}
AGREEMENT_DEGREES = (5.0, 15.0)
SECTOR = 30
"""Degrees of a sector of the table of angles."""

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
        if self.geometry not in get_args(Geometry):
            raise ValueError(f"unknown geometry {self.geometry!r}; use {' or '.join(GEOMETRIES)}")
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold must be positive and finite, got {self.threshold}")
        if self.min_inliers < 1:
            raise ValueError(f"min_inliers must be at least 1, got {self.min_inliers}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be 0 to 2^31 - 1, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class CollectionOutcome(Outcome):
    """One pair of one run. Angles are degrees counter-clockwise from image 0 to image 1."""

    image0: str
    image1: str
    num_inliers: int
    failed: bool  # no geometry at all
    verified: bool
    angle: float | None  # the matcher's, or where it has none that of the homography
    angle_source: Literal["matcher", "homography"] | None
    homography_angle: float | None  # of the homography at the centre of image 0


def measure_pair(pair: Pair, prediction: Prediction, verification: Verification) -> CollectionOutcome:
    """Verify a pair from its matches."""
    matches = prediction.matches
    inliers, failed, H = _estimate(matches, verification)
    tilt = None if H is None else metrics.rotation_at_centre(H, prediction.size0)
    angle = tilt if matches.angle is None else matches.angle
    number_inliers = int(inliers.sum())
    return CollectionOutcome(
        **outcomes.common(pair, prediction),
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
    options = {"max_iterations": verification.max_iterations, "seed": verification.seed}
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


def summarise(found: Sequence[CollectionOutcome]) -> dict[str, Any]:
    """The numbers of a table's row; shares are 0 to 1, angles degrees."""
    verified = [outcome for outcome in found if outcome.verified]
    angles = {(o.image0, o.image1): o.angle for o in verified if o.angle is not None}
    tilts = {(o.image0, o.image1): o.homography_angle for o in verified if o.homography_angle is not None}
    apart = [metrics.angle_error(o.angle, o.homography_angle) for o in verified if o.angle_source == "matcher"]
    known = [error for error in apart if error is not None]
    sources = {outcome.angle_source for outcome in verified} - {None}
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "num_images": len({image for outcome in found for image in (outcome.image0, outcome.image1)}),
        "num_verified": len(verified),
        "num_joined": largest_group([(outcome.image0, outcome.image1) for outcome in verified]),
        "num_inliers": fmean(outcome.num_inliers for outcome in verified) if verified else None,
        "num_inliers_median": median(outcome.num_inliers for outcome in verified) if verified else None,
        "num_angles": len(angles),
        "angle_source": " and ".join(sorted(source for source in sources if source)) or None,
        "angle_from_homography_median": median(known) if known else None,
        "triplets": _summarise_triplets(angles),
        "homography_triplets": _summarise_triplets(tilts),
        "sectors": count_sectors(list(angles.values())),
        **outcomes.summarise_common(found),
    }


def _summarise_triplets(angles: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    errors = triplet_errors(angles)
    return {
        "number": len(errors),
        "median": median(errors) if errors else None,
        "within": {
            f"{limit:g}": fmean(error <= limit for error in errors) if errors else None for limit in AGREEMENT_DEGREES
        },
    }


def count_sectors(angles: Sequence[float]) -> dict[str, int]:
    """How many angles lie in each sector, by the angle in the middle of it: -150, -120, ..., 180."""
    counts = {str(middle): 0 for middle in range(SECTOR - 180, 181, SECTOR)}
    for angle in angles:
        middle = SECTOR * math.floor(angle / SECTOR + 0.5)
        counts[f"{wrap_degrees(middle):.0f}"] += 1
    return counts


def evaluate(
    runs: Sequence[Run],
    pairs: Sequence[Pair],
    *,
    settings: Settings | None = None,
    verification: Verification | None = None,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> Evaluation[Pair, CollectionOutcome]:
    """Match and verify the pairs of :func:`~steerers.benchmarks.selection.list_pairs`."""
    return outcomes.evaluate(
        runs,
        pairs,
        "upright",
        partial(measure_pair, verification=verification or Verification()),
        settings=settings,
        cache=cache,
        made=made,
    )


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    evaluation: Evaluation[Pair, CollectionOutcome],
    settings: Settings,
    verification: Verification,
    selection: Selection,
    environment: dict[str, Any],
) -> Report:
    """Two tables with a row a run: verified pairs with agreement, and angles by sector; a histogram of the angles."""
    title = "verified pairs and agreement of angles"
    main = outcomes.make_table(evaluation, _columns(), summarise, title=title, groups={})
    keypoints = outcomes.list_keypoints([evaluation])
    return Report(
        "collections",
        _describe(keypoints, settings, verification),
        {
            "num_keypoints": keypoints,
            "max_size": settings.max_size,
            "selection": asdict(selection),
            "verification": {**asdict(verification), "estimator": GEOMETRIES[verification.geometry]},
            "agreement_degrees": list(AGREEMENT_DEGREES),
        },
        environment,
        [main, _sector_table(main)],
        {"angles.png": partial(_plot, evaluation)},
    )


def _describe(keypoints: Sequence[int], settings: Settings, verification: Verification) -> str:
    return (
        f"At most {', '.join(map(str, keypoints))} keypoints an image, longest side {settings.max_size} px. There is "
        f"no ground truth. A pair is verified by at least {verification.min_inliers} inliers of a "
        f"{GEOMETRIES[verification.geometry]}, {verification.threshold:g} px, {verification.max_iterations} "
        f"iterations, seed {verification.seed}; failed are pairs without any. Joined are the images of the largest "
        f"group that verified pairs hold together; inliers are the median over verified pairs. Angles are those of the "
        f"matcher, or where it has none those of the homography at the centre; off homography is the median difference "
        f"between the two. Triplets are three images of which each two are verified: the median of how far the angles "
        f"from a to b and b to c are from that of a to c, and the share of triplets within some degrees; the last by "
        f"the angles of the homographies, whatever the matcher says. "
        f"{outcomes.COSTS}"
    )


def _columns() -> tuple[Column, ...]:
    return (
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
        percent(
            f"homographies within {AGREEMENT_DEGREES[0]:g}°",
            "homography_triplets",
            "within",
            f"{AGREEMENT_DEGREES[0]:g}",
        ),
        share_failed(),
        *COST_COLUMNS,
    )


def _sector_table(main: Table) -> Table:
    names = list(main.rows[0]["sectors"])
    rows = [{key: row[key] for key in ("label", "model", "strategy", "sectors")} for row in main.rows]
    columns = (*MODEL_COLUMNS, *(number(f"{name}°", "sectors", name) for name in names))
    return Table(f"verified pairs by angle, sectors of {SECTOR} degrees about", columns, rows)


def _plot(evaluation: Evaluation[Pair, CollectionOutcome], path: Path) -> None:
    from steerers.viz.plots import angle_histogram

    series = {row.run.label: [o.angle for o in row.outcomes if o.verified] for row in evaluation.rows}
    angle_histogram(path, series, ylabel="pairs", title="angles of verified pairs")
