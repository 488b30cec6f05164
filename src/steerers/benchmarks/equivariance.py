"""How well a steerer steers: descriptions steered, against descriptions computed anew from the rotated photograph.

Keypoints are found once, in the central disc of the upright photograph, so that none leaves the picture whatever the
rotation; where they go is known exactly, so that nothing but the description is measured. An angle that C_n does not
have is steered by the nearest that it has, as the best of max-matches would.

Theorem 5.1 of the paper says that a descriptor has an orthogonal steerer if rotating two images alike leaves the
cosines between their descriptions as they were. How far it is from that is measured without any steerer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steerers._console import progress
from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import Report, Table, TableRow, environment, number, percent, text
from steerers.benchmarks.runs import Run, describe_steerer, hash_files
from steerers.datasets.photos import find_images, spread
from steerers.geometry import quarter_turns
from steerers.images.load import load_image
from steerers.matching.similarity import normalised
from steerers.models.zoo import Model
from steerers.steering.equivariance import describe_image, describe_rotated
from steerers.steering.steerer import Steerer
from steerers.viz import plots

ANGLES = tuple(float(degrees) for degrees in range(0, 360, 10))
MIN_KEYPOINTS = 2  # fewer have no rank
STEERED, UNSTEERED = "steered", "as they are"
_ANGLES = {"quarter": "quarter turns", "other": "other angles"}
STEERING_COLUMNS = (
    text("model", "label"),
    text("steerer", "steerer"),
    text("descriptions", "descriptions"),
    number("keypoints", "num_keypoints"),
    number("skipped", "num_skipped"),
    *(
        column
        for where, title in _ANGLES.items()
        for column in (
            number(f"cosine, {title}", where, "cosine", form="{:.3f}"),
            percent(f"nearest, {title}", where, "nearest"),
            number(f"reciprocal rank, {title}", where, "reciprocal_rank", form="{:.3f}"),
        )
    ),
)
_CHANGES = {"mean_change": "mean change", "max_change": "largest change", "correlation": "correlation"}
KEPT_COLUMNS = (
    text("model", "label"),
    number("pairs", "num_pairs"),
    *(
        number(f"{change}, {title}", where, name, form="{:.3f}")
        for where, title in _ANGLES.items()
        for name, change in _CHANGES.items()
    ),
)


@dataclass(frozen=True)
class EquivarianceSettings:
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
        different = len(set(self.angles)) == len(self.angles) > 0
        if not different or not all(map(math.isfinite, self.angles)):
            raise ValueError(f"angles must be different finite numbers of degrees, at least one, got {self.angles}")


# What a rotation does to descriptions ---------------------------------------------------------------------------------


class DescriptionAgreement(NamedTuple):
    """Descriptions against those of the same keypoints made in another way; means over keypoints."""

    cosine: float  # between the two of a keypoint
    nearest: float  # fraction whose nearest neighbour among all the others is their own; a tie counts against
    reciprocal_rank: float  # of the own among all, by the cosine


class CosineChange(NamedTuple):
    """Cosines between the descriptions of two images before and after both were rotated."""

    mean_change: float  # mean absolute difference
    max_change: float
    correlation: float  # of the cosines before and after; 1 if the same ones are large


def central_disc(height: int, width: int, margin: float = 0.0) -> Tensor:
    """(H, W) mask of what stays inside when an image rotates about its centre, less ``margin`` pixels."""
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2
    return torch.hypot(x, y) <= (min(height, width) - 1) / 2 - margin


def nearest_rotation(steerer: Steerer, angle: float) -> float:
    """The rotation of the steerer's group that is nearest to ``angle`` radians."""
    order = steerer.group.order
    return angle if order is None else math.floor(angle * order / (2 * math.pi) + 0.5) * 2 * math.pi / order


def compare(expected: Tensor, found: Tensor) -> DescriptionAgreement:
    """Compare (N, D) descriptions of N keypoints with others of the same keypoints, N > 0."""
    cosines = normalised(expected.double()) @ normalised(found.double()).mT  # (N, N)
    own = cosines.diagonal()
    ranks = (cosines >= own[:, None] - 1e-12).sum(dim=1).double()
    return DescriptionAgreement(float(own.mean()), float((ranks == 1).double().mean()), float((1 / ranks).mean()))


def compare_cosines(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> CosineChange:
    """How far the (N, M) cosines between the descriptions of two images change when both images are rotated."""
    old, new = (normalised(a.double()) @ normalised(b.double()).mT for a, b in (before, after))
    change = (new - old).abs()
    spread = float(old.std() * new.std())
    covariance = float(((old - old.mean()) * (new - new.mean())).sum() / max(old.numel() - 1, 1))
    correlation = covariance / spread if spread > 1e-12 else math.nan
    return CosineChange(float(change.mean()), float(change.max()), correlation)


# One photograph -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Described:
    """The keypoints of one photograph, described upright and after each rotation."""

    upright: Tensor  # (N, D)
    rotated: list[Tensor]  # an (N, D) an angle


@torch.no_grad()
def describe_photo(model: Model, image: Tensor, settings: EquivarianceSettings) -> Described | None:
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

    def __init__(self, run: Run, settings: EquivarianceSettings) -> None:
        self.run, self.settings = run, settings
        self.steerer = run.pipeline.model.steerer
        kinds = [UNSTEERED] if self.steerer is None else [STEERED, UNSTEERED]
        self.agreements: dict[str, list[list[DescriptionAgreement]]] = {kind: [] for kind in kinds}
        self.kept: list[list[CosineChange]] = []
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
        if self.steerer is not None:
            self.agreements[STEERED].append(self._steer(self.steerer, described))
        if self._previous is not None:
            self.kept.append(_compare_rotated(self._previous, described))
        self._previous = described

    def finish(self) -> None:
        """With one photograph alone, the cosines are those among its own descriptions."""
        if not self.kept and self._previous is not None:
            self.kept.append(_compare_rotated(self._previous, self._previous))

    @torch.no_grad()
    def _steer(self, steerer: Steerer, described: Described) -> list[DescriptionAgreement]:
        rotations = [nearest_rotation(steerer, math.radians(angle)) for angle in self.settings.angles]
        upright = described.upright.float()
        return [
            compare(steerer.steer(upright, rotation), found)
            for rotation, found in zip(rotations, described.rotated, strict=True)
        ]


def _compare_rotated(first: Described, second: Described) -> list[CosineChange]:
    upright = (first.upright, second.upright)
    return [compare_cosines(upright, rotated) for rotated in zip(first.rotated, second.rotated, strict=True)]


def evaluate(
    runs: Sequence[Run], photos: Sequence[Path], settings: EquivarianceSettings | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows about steering (one or two a model) and rows about Theorem 5.1 (one a model)."""
    settings = settings or EquivarianceSettings()
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
    steering = [
        {**_identify(tally), "descriptions": kind, **_curves(DescriptionAgreement, found, settings)}
        for tally in tallies
        for kind, found in tally.agreements.items()
    ]
    kept = [
        {**_identify(tally), "num_pairs": len(tally.kept), **_curves(CosineChange, tally.kept, settings)}
        for tally in tallies
    ]
    return steering, kept


def _identify(tally: _Tally) -> dict[str, Any]:
    return {
        "label": tally.run.label,
        "model": tally.run.pipeline.model.name,
        "steerer": None if tally.steerer is None else describe_steerer(tally.steerer),
        "num_photos": len(tally.num_keypoints),
        "num_skipped": tally.num_skipped,
        "num_keypoints": metrics.mean(tally.num_keypoints) or 0.0,
    }


def _curves(
    kind: type[DescriptionAgreement] | type[CosineChange],
    found: Sequence[Sequence[DescriptionAgreement | CosineChange]],
    settings: EquivarianceSettings,
) -> dict[str, Any]:
    """Means over photographs: a curve over the angles, and its means over quarter turns and over all others."""
    turns = [quarter_turns(math.radians(angle)) for angle in settings.angles]
    quarters, others = np.array([bool(turn) for turn in turns]), np.array([turn is None for turn in turns])
    shape = (len(turns), len(kind._fields))
    means = np.mean(found, axis=0) if found else np.full(shape, np.nan)  # (A, 3)
    curves = dict(zip(kind._fields, means.T, strict=True))
    return {
        "curves": {name: curve.tolist() for name, curve in curves.items()},
        "quarter": {name: metrics.mean(curve[quarters]) for name, curve in curves.items()},
        "other": {name: metrics.mean(curve[others]) for name, curve in curves.items()},
    }


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    steering: list[TableRow],
    kept: list[TableRow],
    photos: Sequence[Path],
    settings: EquivarianceSettings,
    environment: dict[str, Any],
) -> Report:
    """Two tables and the curves."""
    facts = {"num_photos": len(photos), "photos_sha256": hash_files(photos), "angles": list(settings.angles)}
    tables = [
        Table("steering: descriptions against those of the rotated photograph", STEERING_COLUMNS, steering, facts),
        Table("Theorem 5.1: cosines between two photographs when both are rotated alike", KEPT_COLUMNS, kept, facts),
    ]
    degrees = settings.angles
    return Report(
        benchmark="equivariance",
        description=_describe(len(photos), settings),
        settings=asdict(settings),
        environment=environment,
        tables=tables,
        plots={
            "cosine.png": partial(_plot, steering, degrees, "cosine", "mean cosine"),
            "nearest.png": partial(_plot, steering, degrees, "nearest", "right nearest neighbours, fraction"),
            "joint.png": partial(_plot, kept, degrees, "mean_change", "mean change of the cosines"),
        },
    )


def _describe(num_photos: int, settings: EquivarianceSettings) -> str:
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


def _plot(rows: Sequence[TableRow], degrees: Sequence[float], name: str, ylabel: str, path: Path) -> None:
    """A curve a row; rows whose curves are the same, as of one network with several steerers, share one."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        labels.setdefault((row.get("descriptions", ""), *map(str, row["curves"][name])), []).append(row["label"])
    series = {
        ", ".join(filter(None, (" = ".join(same), kind))): (degrees, [float(value) for value in curve])
        for (kind, *curve), same in labels.items()
    }
    ticks = range(0, 361, 45)
    plots.curves(path, series, xlabel="rotation in degrees, counter-clockwise", ylabel=ylabel, xticks=ticks)


# The benchmark --------------------------------------------------------------------------------------------------------


class _Equivariance(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        for name in arguments.models:
            if set(name) & set(":?"):
                raise ValueError(f"cannot measure {name!r}: nothing is matched here; give MODEL[@DETECTOR] alone")
        settings = EquivarianceSettings(
            arguments.max_size, arguments.num_keypoints, arguments.margin, arguments.angles or ANGLES
        )
        photos = _list_photos(arguments.data, arguments.num_photos)
        steering, kept = evaluate(self.load_runs(arguments, device), photos, settings)
        return make_report(steering, kept, photos, settings, environment(device))


def _list_photos(folder: Path, wanted: int | None) -> list[Path]:
    """The photographs of a folder, or as many as are wanted, spread over it."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give --data a folder of photographs, any will do")
    return spread(find_images(folder), wanted)


EQUIVARIANCE = _Equivariance(offer=offers.EQUIVARIANCE)
