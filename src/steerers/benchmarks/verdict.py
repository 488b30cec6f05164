"""The verdict whether two images show the same thing: fitted on one half of the data, checked on the other.

Pairs that belong together are photographs next to each other in a folder, the second rotated by a random angle, and two
views of one photograph through random maps, relit. Pairs that do not are photographs of different folders, and views of
different photographs, half of them of one kind (the part of a name before ``_``), which are harder. Which half a folder
or photograph is in follows from its name. See :mod:`steerers.verdict`.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steerers._console import progress
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import Report, Table, TableRow, environment, number, percent, text
from steerers.benchmarks.runs import Run, hash_files
from steerers.datasets.folder import two_views
from steerers.datasets.photos import find_images, held_out, spread
from steerers.datasets.views import Views
from steerers.features import Features, Matches
from steerers.geometry import rotate_image
from steerers.images.load import load_image, to_uint8
from steerers.pipeline import Pipeline
from steerers.verdict import WITH_ROTATIONS, WITHOUT_ROTATIONS, Evidence, gather, likelihood

Array = NDArray[np.float64]

VIEWS = Views(size=448, scale=(0.5, 1.6), tilt=2.0, perspective=0.2, photometric=0.9)
"""Of single photographs."""
RIDGE = 0.002
"""How much large coefficients are held back."""
UNRELATED = 4
"""Unrelated pairs for every pair of neighbours."""
BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Of probabilities, in the table that compares them with what is true."""
COLUMNS = (
    text("model", "label"),
    text("rotations of matches", "how"),
    number("pairs", "pairs"),
    percent("belong together", "together"),
    percent("right", "right"),
    percent("taken for related, of unrelated", "false"),
    percent("taken for related, of related", "recall"),
    number("log loss", "loss", form="{:.3f}"),
    number("area under ROC", "auc", form="{:.4f}"),
)

CALIBRATION = (
    text("model", "label"),
    text("rotations of matches", "how"),
    number("probability from", "from", form="{:.2f}"),
    number("to", "to", form="{:.2f}"),
    number("pairs", "pairs"),
    percent("probability, mean", "expected"),
    percent("belong together", "seen"),
)


@dataclass(frozen=True)
class VerdictSettings:
    """How many pairs of each kind; ``seed`` is of what is drawn."""

    num_keypoints: int
    max_size: int
    pairs: int
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Shown:
    """The features of one image: what it is of (a folder or photograph), of which kind, and its number in the pair."""

    features: Features
    of: str
    kind: str


@dataclass(frozen=True)
class Judged:
    """The evidence of a pair, whether it belongs together, and whether it is held out."""

    evidence: Evidence
    together: bool
    kept_out: bool


# Pairs ----------------------------------------------------------------------------------------------------------------


def neighbours(photos: Sequence[Path], count: int, rng: random.Random) -> list[tuple[Path, Path]]:
    """Photographs next to each other in folders of at least two, equally many of each folder."""
    folders = [sorted(group) for _, group in groupby(photos, key=lambda path: path.parent)]
    folders = [group for group in folders if len(group) > 1]
    each = math.ceil(count / max(1, len(folders)))
    chosen = []
    for group in folders:
        starts = rng.sample(range(len(group) - 1), min(each, len(group) - 1))
        chosen += [(group[start], group[start + 1]) for start in starts]
    return rng.sample(chosen, min(count, len(chosen)))


def show_neighbours(
    pipeline: Pipeline, pairs: Sequence[tuple[Path, Path]], max_size: int, rng: random.Random
) -> list[tuple[Shown, Shown]]:
    """Both of each pair, the second rotated."""
    found = []
    for pair in progress(pairs, "photographs next to each other"):
        shown = []
        for path, angle in zip(pair, (0.0, rng.uniform(-math.pi, math.pi)), strict=True):
            tensor = load_image(path, max_size=max_size).tensor
            rotated, _ = rotate_image(tensor, angle, fill=0.5)
            mask = rotate_image(torch.ones(1, *tensor.shape[1:]), angle)[0] > 0.999
            features = pipeline.extract(to_uint8(rotated), mask=mask[0].numpy())
            shown.append(Shown(features, str(path.parent), "neighbours"))
        found.append((shown[0], shown[1]))
    return found


def show_views(
    pipeline: Pipeline, photos: Sequence[Path], max_size: int, rng: random.Random
) -> list[tuple[Shown, Shown]]:
    """Two views of each photograph."""
    found = []
    for path in progress(photos, "views of photographs"):
        photo = load_image(path, max_size=max_size).tensor[None]
        size = (int(photo.shape[3]), int(photo.shape[2]))
        turn0, turn1 = (torch.tensor([rng.uniform(-math.pi, math.pi)], dtype=torch.float64) for _ in range(2))
        batch = two_views(photo, [size], VIEWS, turn0, turn1, [rng.randrange(2**31)], torch.device("cpu"))
        shown = [
            Shown(pipeline.extract(to_uint8(image[0]), mask=mask[0].numpy()), str(path), path.name.split("_")[0])
            for image, mask in ((batch.images0, batch.masks0), (batch.images1, batch.masks1))
        ]
        found.append((shown[0], shown[1]))
    return found


def unrelated(shown: Sequence[tuple[Shown, Shown]], count: int, rng: random.Random) -> list[tuple[Shown, Shown]]:
    """First and second images of different pairs, of different things of the same half; half of them of one kind."""
    found: list[tuple[Shown, Shown]] = []
    while len(found) < count:
        first, second = rng.choice(shown)[0], rng.choice(shown)[1]
        alike = first.kind == second.kind
        if first.of == second.of or is_held_out(first) != is_held_out(second) or (len(found) % 2 and not alike):
            continue
        found.append((first, second))
    return found


def is_held_out(shown: Shown) -> bool:
    """Whether it is in the half that checks."""
    return held_out(Path(shown.of).name, 0.5)


def judge(
    pipeline: Pipeline, pairs: Sequence[tuple[Shown, Shown]], together: bool, rng: np.random.Generator
) -> list[Judged]:
    """The evidence of each pair with and without rotations; of those that belong together also with most of what agrees
    taken away, so that there are pairs with little in common."""
    found = []
    for first, second in progress(pairs, "related pairs" if together else "unrelated pairs"):
        matches, kept_out = pipeline.match(first.features, second.features), is_held_out(first)
        whole = (matches, thinned(matches, rng)) if together else (matches,)
        plain = () if matches.angles is None else tuple(replace(some, angles=None) for some in whole)
        found += [Judged(gather(told), together, kept_out) for told in (*whole, *plain)]
    return found


def thinned(matches: Matches, rng: np.random.Generator) -> Matches:
    """With a random part of the matches that agree with a geometry, from all of them to one of 200."""
    agree = matches.homography().inliers | matches.fundamental().inliers
    kept = ~agree | (rng.random(len(agree)) < 10 ** rng.uniform(-2.3, 0))
    arrays = {name: getattr(matches, name)[kept] for name in ("keypoints0", "keypoints1", "scores", "indices")}
    return replace(matches, **arrays, angles=None if matches.angles is None else matches.angles[kept])


# Fitting --------------------------------------------------------------------------------------------------------------


def fit(judged: Sequence[Judged]) -> Array:
    """Coefficients of the logistic regression, as if every second pair belonged together.

    No evidence counts against: what would have a coefficient below 0 has none.
    """
    values = np.stack([one.evidence.values() for one in judged])  # (N, C)
    truth = np.array([one.together for one in judged])
    weights = np.where(truth, 1 / max(1, truth.sum()), 1 / max(1, (~truth).sum())) / 2
    used = np.ones(values.shape[1], dtype=bool)
    while True:
        found = np.zeros(values.shape[1])
        found[used] = _newton(values[:, used], truth.astype(np.float64), weights)
        against = (found < 0) & (np.arange(len(found)) > 0)
        if not against.any():
            return found
        used &= ~against


def _newton(values: Array, truth: Array, weights: Array) -> Array:
    """Coefficients by Newton's method; the first, of the constant, is not held back."""
    held = RIDGE * np.diag([0.0, *np.ones(values.shape[1] - 1)])
    found = np.zeros(values.shape[1])
    for _ in range(100):
        expected = likelihood(values @ found)
        slope = values.T @ (weights * (truth - expected)) - held @ found
        curvature = (values * (weights * expected * (1 - expected))[:, None]).T @ values + held
        step = np.linalg.solve(curvature + 1e-12 * np.eye(len(found)), slope)
        found = found + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-9:
            break
    return found


def check(judged: Sequence[Judged], coefficients: Array) -> dict[str, Any]:
    """How good probabilities by these coefficients are."""
    p = np.array([likelihood(float(one.evidence.values() @ coefficients)) for one in judged])
    truth = np.array([one.together for one in judged])
    loss = -np.log(np.clip(np.where(truth, p, 1 - p), 1e-12, 1))
    pairs = p[truth][:, None] - p[~truth]  # a related one and an unrelated one
    calibration = [
        {
            "from": low,
            "to": high,
            "pairs": int(inside.sum()),
            "expected": _mean(p[inside]),
            "seen": _mean(truth[inside]),
        }
        for low, high in pairwise(BINS)
        for inside in [(p >= low) & ((p < high) | (high == 1.0))]
    ]
    return {
        "pairs": len(p),
        "together": _mean(truth),
        "right": _mean((p > 0.5) == truth),
        "false": _mean(p[~truth] > 0.5),
        "recall": _mean(p[truth] > 0.5),
        "loss": _mean(loss),
        "auc": _mean((pairs > 0) + 0.5 * (pairs == 0)),
        "calibration": calibration,
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if values.size else math.nan


# The benchmark --------------------------------------------------------------------------------------------------------


def evaluate(
    run: Run, scenes: Sequence[Path], photos: Sequence[Path], settings: VerdictSettings
) -> tuple[list[TableRow], list[TableRow]]:
    """Rows of a model, one with rotations of matches (if it has any) and one without; and of their calibration."""
    rng, noise = random.Random(settings.seed), np.random.default_rng(settings.seed)
    pairs = neighbours(scenes, settings.pairs, rng)
    related = show_neighbours(run.pipeline, pairs, settings.max_size, rng)
    related += show_views(run.pipeline, photos, settings.max_size, rng)
    strangers = unrelated(related, UNRELATED * settings.pairs, rng)
    judged = judge(run.pipeline, related, True, noise) + judge(run.pipeline, strangers, False, noise)
    rows, bins = [], []
    for known in (True, False):
        own = [one for one in judged if one.evidence.rotations == known]
        if not own:
            continue
        told = {"label": run.label, "how": "known" if known else "unknown"}
        halves = [[one for one in own if one.kept_out == kept_out] for kept_out in (False, True)]
        if not all({one.together for one in half} == {True, False} for half in halves):
            raise ValueError("there are too few folders and photographs to hold half of them out: give more")
        rows.append({**told, "coefficients": fit(own).tolist(), **check(halves[1], fit(halves[0]))})
        package = WITH_ROTATIONS if known else WITHOUT_ROTATIONS
        rows.append({**told, "how": f"{told['how']}, as in the package", **check(own, np.array(package))})
        bins += [{**told, **one} for one in rows[-2]["calibration"]]
    return rows, bins


class _Verdict(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        settings = VerdictSettings(arguments.num_keypoints, arguments.max_size, arguments.pairs, arguments.seed)
        scenes = sorted(find_images(arguments.data), key=lambda path: (path.parent, path.name))
        if not neighbours(scenes, 1, random.Random(0)):
            raise ValueError(f"no two photographs of {arguments.data} are in one folder")
        photos = spread(find_images(arguments.photos), settings.pairs)
        rows: list[TableRow] = []
        bins: list[TableRow] = []
        for run in self.load_runs(arguments, device):
            found = evaluate(run, scenes, photos, settings)
            rows, bins = rows + found[0], bins + found[1]
        facts = {"scenes_sha256": hash_files(scenes), "photos_sha256": hash_files(photos)}
        tables = [
            Table("pairs that were held out", COLUMNS, rows, facts),
            Table("calibration there", CALIBRATION, bins),
        ]
        return Report(
            benchmark="verdict",
            description=(
                f"{settings.pairs} pairs of neighbours in folders, as many of views of a photograph, all of them also "
                f"with most of what agrees taken away, and {UNRELATED * settings.pairs} unrelated pairs; longest side "
                f"{settings.max_size} px, at most {settings.num_keypoints} keypoints. Fitted on one half of the "
                "folders and photographs, checked on the other; *coefficients* in the JSON report are fitted on all. "
                "Rows *as in the package* judge all by the coefficients that steerers has."
            ),
            settings=asdict(settings),
            environment=environment(device),
            tables=tables,
            plots={},
        )


VERDICT = _Verdict(offer=offers.VERDICT)
