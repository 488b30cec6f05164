"""How well a steerer steers: descriptions steered, against descriptions computed anew from the rotated photograph.

Keypoints are found once, in the central disc of the upright photograph, so that none leaves the picture whatever the
rotation; where they go is known exactly, so that nothing but the description is measured. An angle that C_n does not
have is steered by the nearest that it has, as the best of max-matches would.

Theorem 4.1 of the paper says that a descriptor has an orthogonal steerer if rotating two images alike leaves the
cosines between their descriptions as they were. How far it is from that is measured without any steerer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers.benchmarks.agreement import (
    Agreement,
    Kept,
    central_disc,
    compare,
    compare_cosines,
    nearest_rotation,
)
from steerers.benchmarks.report import Column, Report, Table, number, percent, text
from steerers.benchmarks.runs import Run, hash_files
from steerers.geometry import quarter_turns
from steerers.images.load import load_image
from steerers.models.zoo import Model
from steerers.steering.equivariance import describe_image, describe_rotated
from steerers.steering.steerer import Steerer
from steerers.viz import plots
from steerers.viz.progress import progress

ANGLES = tuple(float(degrees) for degrees in range(0, 360, 10))
MIN_KEYPOINTS = 2  # fewer have no rank
STEERED, UNSTEERED = "steered", "as they are"

Curve = NDArray[np.float64]  # (A,), a value an angle


@dataclass(frozen=True)
class Settings:
    """How photographs are shown.

    Attributes:
        margin: pixels between the central disc and the nearest border.
        angles: degrees, counter-clockwise.
    """

    max_size: int = 640
    num_keypoints: int = 512
    margin: float = 16.0
    angles: tuple[float, ...] = ANGLES

    def __post_init__(self) -> None:
        if not self.angles:
            raise ValueError("angles must not be empty")
        for angle in self.angles:
            if not math.isfinite(angle):
                raise ValueError(f"angles must be finite numbers of degrees, got {angle}")
        if len(set(self.angles)) < len(self.angles):
            raise ValueError("angles must differ from each other")


# One photograph -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Described:
    """The keypoints of one photograph, described upright and after each rotation."""

    upright: Tensor  # (N, D)
    rotated: list[Tensor]  # an (N, D) an angle


@torch.no_grad()
def describe_photo(model: Model, image: Tensor, settings: Settings) -> Described | None:
    """Describe a (3, H, W) photograph upright and rotated; nothing if too few keypoints lie in its central disc."""
    height, width = image.shape[1:]
    mask = central_disc(height, width, settings.margin).to(image.device)
    (keypoints,) = model.extractor.detect(image[None], num_keypoints=settings.num_keypoints, masks=mask[None])
    if len(keypoints) < MIN_KEYPOINTS:
        return None
    angles = [math.radians(angle) for angle in settings.angles]
    rotated = [describe_rotated(model.extractor, image, keypoints, angle) for angle in angles]
    return Described(describe_image(model.extractor, image, keypoints), rotated)


# All photographs ------------------------------------------------------------------------------------------------------


class _Tally:
    """Means over photographs of one model."""

    def __init__(self, run: Run, settings: Settings) -> None:
        self.run, self.settings = run, settings
        self.agreements: dict[str, list[list[Agreement]]] = {UNSTEERED: []}
        if run.pipeline.model.steerer is not None:
            self.agreements = {STEERED: [], UNSTEERED: []}
        self.kept: list[list[Kept]] = []
        self.num_keypoints: list[int] = []
        self.num_skipped = 0
        self._previous: Described | None = None

    def add(self, described: Described | None) -> None:
        """Count a photograph; cosines are those with the photograph before."""
        if described is None:
            self.num_skipped += 1
            return
        self.num_keypoints.append(len(described.upright))
        self.agreements[UNSTEERED].append([compare(described.upright, found) for found in described.rotated])
        steerer = self.run.pipeline.model.steerer
        if steerer is not None:
            self.agreements[STEERED].append(self._steer(steerer, described))
        if self._previous is not None:
            self.kept.append(_compare_rotated(self._previous, described))
        self._previous = described

    def finish(self) -> None:
        """With one photograph alone, the cosines are those among its own descriptions."""
        if not self.kept and self._previous is not None:
            self.kept.append(_compare_rotated(self._previous, self._previous))

    @torch.no_grad()
    def _steer(self, steerer: Steerer, described: Described) -> list[Agreement]:
        rotations = [nearest_rotation(steerer, math.radians(angle)) for angle in self.settings.angles]
        upright = described.upright.float()
        return [
            compare(steerer.steer(upright, rotation), found)
            for rotation, found in zip(rotations, described.rotated, strict=True)
        ]


def _compare_rotated(first: Described, second: Described) -> list[Kept]:
    upright = (first.upright, second.upright)
    return [compare_cosines(upright, rotated) for rotated in zip(first.rotated, second.rotated, strict=True)]


def evaluate(
    runs: Sequence[Run], photos: Sequence[Path], settings: Settings | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows about steering (one or two a model) and rows about Theorem 4.1 (one a model)."""
    settings = settings or Settings()
    if not runs or not photos:
        raise ValueError("give at least one model and one photograph")
    tallies = [_Tally(run, settings) for run in runs]
    for path in progress(photos, "describing"):
        image = load_image(path, max_size=settings.max_size).tensor
        found: dict[int, Described | None] = {}  # models with the same networks differ in the steerer alone
        for tally in tallies:
            pipeline = tally.run.pipeline
            key = id(pipeline.model.extractor)
            if key not in found:
                found[key] = describe_photo(pipeline.model, image.to(pipeline.device), settings)
            tally.add(found[key])
    for tally in tallies:
        tally.finish()
    steering = [_steering_row(tally, kind) for tally in tallies for kind in tally.agreements]
    return steering, [_kept_row(tally) for tally in tallies]


def _steering_row(tally: _Tally, kind: str) -> dict[str, Any]:
    return {**_identify(tally), "descriptions": kind, **_curves(Agreement, tally.agreements[kind], tally.settings)}


def _kept_row(tally: _Tally) -> dict[str, Any]:
    return {**_identify(tally), "num_pairs": len(tally.kept), **_curves(Kept, tally.kept, tally.settings)}


def _identify(tally: _Tally) -> dict[str, Any]:
    steerer = tally.run.pipeline.model.steerer
    kind = None if steerer is None else f"{steerer.group}, {'learned' if steerer.representation is None else 'fixed'}"
    return {
        "label": tally.run.label,
        "model": tally.run.pipeline.model.name,
        "steerer": kind,
        "num_photos": len(tally.num_keypoints),
        "num_skipped": tally.num_skipped,
        "num_keypoints": float(np.mean(tally.num_keypoints)) if tally.num_keypoints else 0.0,
    }


def _curves(
    kind: type[Agreement] | type[Kept], found: Sequence[Sequence[Agreement | Kept]], settings: Settings
) -> dict[str, Any]:
    """Means over photographs: a curve over the angles, and its means over quarter turns and over all others."""
    quarters = np.array([quarter_turns(math.radians(angle)) is not None for angle in settings.angles])
    at_rest = np.array([quarter_turns(math.radians(angle)) == 0 for angle in settings.angles])
    summaries: dict[str, Any] = {"curves": {}, "quarter": {}, "other": {}}
    for name in (field.name for field in fields(kind)):
        values = np.array([[getattr(value, name) for value in photo] for photo in found], np.float64)
        curve = values.mean(axis=0) if len(values) else np.full(len(settings.angles), np.nan)
        summaries["curves"][name] = curve.tolist()
        summaries["quarter"][name] = _mean(curve[quarters & ~at_rest])
        summaries["other"][name] = _mean(curve[~quarters])
    return summaries


def _mean(values: Curve) -> float | None:
    return float(values.mean()) if len(values) else None


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    steering: list[dict[str, Any]],
    kept: list[dict[str, Any]],
    photos: Sequence[Path],
    settings: Settings,
    environment: dict[str, Any],
) -> Report:
    """Two tables and the curves."""
    facts = {"num_photos": len(photos), "photos_sha256": hash_files(photos), "angles": list(settings.angles)}
    tables = [
        Table("steering: descriptions against those of the rotated photograph", _steering_columns(), steering, facts),
        Table("Theorem 4.1: cosines between two photographs when both are rotated alike", _kept_columns(), kept, facts),
    ]
    degrees = settings.angles
    return Report(
        benchmark="equivariance",
        description=_describe(len(photos), settings),
        settings={
            "max_size": settings.max_size,
            "num_keypoints": settings.num_keypoints,
            "margin": settings.margin,
            "angles": list(degrees),
        },
        environment=environment,
        tables=tables,
        plots={
            "cosine.png": _plot(steering, degrees, "cosine", "mean cosine"),
            "nearest.png": _plot(steering, degrees, "nearest", "right nearest neighbours, share"),
            "joint.png": _plot(kept, degrees, "mean_change", "mean change of the cosines"),
        },
    )


def _steering_columns() -> tuple[Column, ...]:
    common = (text("model", "label"), text("steerer", "steerer"), text("descriptions", "descriptions"))
    measured = [
        column
        for title, where in (("quarter turns", "quarter"), ("other angles", "other"))
        for column in (
            number(f"cosine, {title}", where, "cosine", form="{:.3f}"),
            percent(f"nearest, {title}", where, "nearest"),
            number(f"reciprocal rank, {title}", where, "reciprocal_rank", form="{:.3f}"),
        )
    ]
    return (*common, number("keypoints", "num_keypoints"), number("skipped", "num_skipped"), *measured)


def _kept_columns() -> tuple[Column, ...]:
    measured = [
        number(f"{title}, {rotations}", where, name, form="{:.3f}")
        for rotations, where in (("quarter turns", "quarter"), ("other angles", "other"))
        for title, name in (
            ("mean change", "mean_change"),
            ("largest change", "max_change"),
            ("correlation", "correlation"),
        )
    ]
    return (text("model", "label"), number("pairs", "num_pairs"), *measured)


def _describe(num_photos: int, settings: Settings) -> str:
    return (
        f"{num_photos} photographs, longest side {settings.max_size} px; at most {settings.num_keypoints} keypoints in "
        f"the central disc of the upright one ({settings.margin:g} px inside the border), described again after the "
        f"photograph has rotated about its centre by {len(settings.angles)} angles (bilinear, quarter turns exact, "
        "corners black). *cosine*: mean cosine of the two descriptions of a keypoint. *nearest*: keypoints, in per "
        "cent, whose nearest neighbour among all of the rotated photograph is their own; *reciprocal rank*: of the own "
        "among all. *steered*: the upright descriptions are steered first, by the nearest rotation of the steerer. "
        "*change*: absolute difference of the cosines between all keypoints of a photograph and all of the next one, "
        "before and after both were rotated by the same angle; the largest is the mean over pairs of the largest. "
        "Means over photographs; quarter turns are 90, 180 and 270 degrees."
    )


def _plot(
    rows: Sequence[Mapping[str, Any]], degrees: Sequence[float], name: str, ylabel: str
) -> Callable[[Path], None]:
    """A curve a row; rows whose curves are the same, as of one network with several steerers, share one."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        labels.setdefault((row.get("descriptions", ""), *map(str, row["curves"][name])), []).append(row["label"])
    series = {
        ", ".join(filter(None, (" = ".join(same), kind))): (degrees, [float(value) for value in curve])
        for (kind, *curve), same in labels.items()
    }
    ticks = list(range(0, 361, 45))

    def draw(path: Path) -> None:
        plots.curves(path, series, xlabel="rotation in degrees, counter-clockwise", ylabel=ylabel, xticks=ticks)

    return draw
