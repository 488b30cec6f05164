"""Localisation: how far matched places are from the truth, in pixels, as they were detected and refined.

Every photograph is matched with itself, rotated, scaled, blurred or with noise: where each keypoint should be is known
exactly. Tables of poses and homographies hardly show what is measured here, since an estimate is a mean of many places.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from steerers._console import progress
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import Report, Table, TableRow, environment, number, percent, text
from steerers.benchmarks.runs import Run, hash_files
from steerers.datasets.photos import find_images
from steerers.datasets.photos import spread as spread_over
from steerers.features import Matches
from steerers.geometry import rotation, transform_points, warp_image
from steerers.images.load import load_image, to_uint8
from steerers.refinement import RefineOptions

WITHIN = 5.0
"""Pixels: a match that is farther off is a wrong one, and no question of its place."""
FINER = 4
"""So many samples a pixel and axis make a pixel of what is shown: it sees an area, as a camera's does."""


@dataclass(frozen=True)
class Change:
    """How the second image differs from the first.

    Attributes:
        angle: degrees counter-clockwise; ``scale`` pixels for a pixel of the first.
        blur: standard deviation in pixels of the second; ``noise`` of values in [0, 1].
    """

    angle: float = 0.0
    scale: float = 1.0
    blur: float = 0.0
    noise: float = 0.0

    def __str__(self) -> str:
        told = [f"rotated by {self.angle:g} degrees"]
        told += [f"scaled by {self.scale:g}"] if self.scale != 1 else []
        told += [f"blurred by {self.blur:g} px"] if self.blur else []
        told += [f"noise of {self.noise:g}"] if self.noise else []
        return ", ".join(told)


CHANGES = (
    Change(0.0),
    Change(30.0),
    Change(75.0, 0.8),
    Change(137.0, 0.6),
    Change(200.0, 0.4),
    Change(30.0, blur=1.5),
    Change(30.0, noise=0.05),
)
COLUMNS = (
    text("model", "label"),
    text("places", "places"),
    number("matches", "matches"),
    percent(f"within {WITHIN:g} px", "right"),
    number("median, px", "median", form="{:.3f}"),
    number("mean, px", "mean", form="{:.3f}"),
    number("of nine in ten, px", "most", form="{:.3f}"),
    percent("moved", "moved"),
)


def shown(image: Tensor, change: Change, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A (3, H, W) image as changed, on a canvas that holds it whole, and the (3, 3) map from its pixels to those.

    The canvas is not in line with the pixels: without a rotation too, places lie between them.
    """
    size = torch.tensor([image.shape[2], image.shape[1]], dtype=torch.float64)
    linear = change.scale * rotation(math.radians(change.angle))
    canvas = (linear.abs() @ size).ceil() + 1
    to_canvas = torch.eye(3, dtype=torch.float64)
    to_canvas[:2, :2] = linear
    off = torch.tensor([0.3, -0.2], dtype=torch.float64)
    to_canvas[:2, 2] = (canvas - 1) / 2 + off - linear @ ((size - 1) / 2)
    to_fine = torch.diag(torch.tensor([FINER, FINER, 1.0], dtype=torch.float64))
    to_fine[:2, 2] = (FINER - 1) / 2
    width, height = (int(side) for side in canvas.tolist())
    fine = warp_image(image, to_fine @ to_canvas, (FINER * width, FINER * height), fill=0.5)
    seen = _blurred(F.avg_pool2d(fine, FINER), change.blur)
    noise = change.noise * torch.randn(seen.shape, generator=generator)
    return (seen + noise).clamp(0, 1), to_canvas


def _blurred(image: Tensor, deviation: float) -> Tensor:
    """(3, H, W), by a Gaussian."""
    if not deviation:
        return image
    reach = math.ceil(4 * deviation)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    kernel = kernel / kernel.sum()
    padded = F.pad(image[:, None], (reach,) * 4, mode="replicate")  # channels as a batch
    return F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))[:, 0]


def errors(matches: Matches, to_canvas: Tensor) -> np.ndarray:
    """(K,) pixels between the keypoints of image 1 and where those of image 0 are."""
    truth = transform_points(to_canvas, torch.from_numpy(matches.keypoints0).double()).numpy()
    off: np.ndarray = np.linalg.norm(matches.keypoints1 - truth, axis=1)
    return off


def measure(run: Run, photos: Sequence[Path], change: Change, settings: LocalisationSettings) -> list[TableRow]:
    """Rows of a model: its places as detected, and refined."""
    generator = torch.Generator().manual_seed(settings.seed)
    plain = replace(run.pipeline, refinement=None, max_size=None)
    found: dict[str, list[np.ndarray]] = {"as detected": [], "refined": []}
    moved: list[np.ndarray] = []
    for photo in progress(photos, f"{run.label}, {change}"):
        image = load_image(photo, max_size=settings.max_size).tensor
        seen, to_canvas = shown(image, change, generator)
        pair = [plain.load_image(to_uint8(part)) for part in (image, seen)]
        matches = plain(*pair)
        refined = matches.refine(*pair, options=run.pipeline.refinement or RefineOptions(), device=plain.device)
        off = errors(matches, to_canvas)
        found["as detected"].append(off)
        found["refined"].append(errors(refined, to_canvas)[off < WITHIN])  # of the same matches
        assert refined.covariances is not None
        moved.append(np.isfinite(refined.covariances[:, 0, 0])[off < WITHIN])
    count = sum(map(len, found["as detected"]))
    right = np.concatenate(found["as detected"])
    places = {"as detected": right[right < WITHIN], "refined": np.concatenate(found["refined"])}
    return [
        {
            "label": run.label,
            "places": name,
            "matches": count / len(photos),
            "right": len(off) / max(1, count),
            **_summary(off),
            "moved": float(np.concatenate(moved).mean()) if name == "refined" and len(off) else math.nan,
        }
        for name, off in places.items()
    ]


def _summary(off: np.ndarray) -> dict[str, float]:
    if not len(off):
        return dict.fromkeys(("median", "mean", "most"), math.nan)
    return {"median": float(np.median(off)), "mean": float(off.mean()), "most": float(np.quantile(off, 0.9))}


@dataclass(frozen=True)
class LocalisationSettings:
    """What is matched; ``seed`` is that of the noise."""

    num_keypoints: int
    max_size: int
    seed: int = 0


def make_report(
    tables: list[Table], photos: Sequence[Path], settings: LocalisationSettings, where: dict[str, Any]
) -> Report:
    """One table a change."""
    about = (
        f"{len(photos)} photographs, longest side {settings.max_size} px, each matched with itself as changed; at most "
        f"{settings.num_keypoints} keypoints. A pixel of the changed image is the mean of {FINER} x {FINER} samples. "
        f"Pixels of the second image between a keypoint of it and where the matched one of the first is, of all "
        f"matches within {WITHIN:g} px as detected; nine in ten are nearer than the last. *Moved*: the fraction of "
        f"them that refinement did not leave alone; the others count as they are."
    )
    return Report(
        benchmark="localisation",
        description=about,
        settings={**asdict(settings), "photos": len(photos), "photos_sha256": hash_files(photos)},
        environment=where,
        tables=tables,
        plots={},
    )


class _Localisation(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        settings = LocalisationSettings(arguments.num_keypoints, arguments.max_size, arguments.seed)
        photos = spread_over(find_images(arguments.data), arguments.num_photos)
        runs = self.load_runs(arguments, device)
        tables = [
            Table(str(change), COLUMNS, [row for run in runs for row in measure(run, photos, change, settings)])
            for change in CHANGES
        ]
        return make_report(tables, photos, settings, environment(device))


LOCALISATION = _Localisation(offer=offers.LOCALISATION)
