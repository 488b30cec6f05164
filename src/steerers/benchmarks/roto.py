"""Roto-360 (RELF, CVPR 2023): one photograph a scene, rotated in steps of 10 degrees, and the precision of matches.

    DATA/SCENE/1_rot0.jpg                   the photograph, with which every other one is matched
    DATA/SCENE/1_rot10.jpg, 1_rot10.txt     rotated, and the homography from the photograph to it, in pixels

:mod:`steerers.benchmarks.roto_like` makes the same from photographs. What is measured on that is called Roto-360-like:
it is another set of scenes, and less is known of how the original was made than one would wish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from steerers.benchmarks import metrics, outcomes
from steerers.benchmarks.homographies import HomographyPair, read_homography, true_homography
from steerers.benchmarks.outcomes import Evaluation, Outcome
from steerers.benchmarks.protocol import Prediction, Settings
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, Report, number, percent, share_failed
from steerers.benchmarks.roto_like import LIKE
from steerers.benchmarks.runs import Run
from steerers.geometry import scaling, transform_points

NAME = "roto-360"
PIXELS = (3.0, 5.0, 10.0)
MAX_SIZE = 3000
"""Longest side; RELF halves what is larger."""
HELP = (
    "get the Roto-360 zip that the README of https://github.com/bluedream1121/RELF links, and give --data the folder "
    "that holds the scenes: SCENE/1_rot0.jpg, SCENE/1_rot10.jpg, SCENE/1_rot10.txt, ...; or make data like it from "
    "photographs of your own: steerers eval roto-360 --make PHOTOGRAPHS --data NEW-FOLDER"
)
_ROTATED = re.compile(r"1_rot(\d+)")


@dataclass(frozen=True, eq=False, kw_only=True)
class RotoPair(HomographyPair):
    """The photograph of a scene and one of its rotated copies."""

    angle: int  # as the file is named, degrees


# Reading --------------------------------------------------------------------------------------------------------------


def list_pairs(folder: Path, scenes: Sequence[str] | None = None) -> list[RotoPair]:
    """The pairs of a folder: 35 a scene, since the photograph is not matched with itself.

    Args:
        scenes: names of those that are wanted; by default those of the list ``splits.json``, as the original has it, or
            all.

    Raises:
        ValueError: if the folder holds no scenes, or a broken one; the message says what to get.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and 0 in _rotated_images(path)}
    if not found:
        raise ValueError(f"{folder} holds no Roto-360 scenes; {HELP}")
    wanted = _listed(folder) if scenes is None else scenes
    for name in wanted or ():
        if name not in found:
            raise ValueError(f"{folder} has no scene {name!r}; it has {', '.join(found)}")
    return [pair for name in (wanted or found) for pair in _list_scene(found[name])]


def _listed(folder: Path) -> list[str] | None:
    """The scenes of the original's list, where it is there."""
    path = folder / "splits.json"
    if not path.is_file():
        return None
    try:
        return [str(name) for name in json.loads(path.read_text(encoding="utf-8"))["debug"]["test"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not RELF's list of scenes ({error!r}); name them by --sequences") from error


def _list_scene(folder: Path) -> list[RotoPair]:
    images = _rotated_images(folder)
    pairs = []
    for angle in sorted(images.keys() - {0}):
        matrix = folder / f"1_rot{angle}.txt"
        if not matrix.is_file():
            raise ValueError(f"scene {folder} has no {matrix.name}; {HELP}")
        H = read_homography(matrix)
        pairs.append(
            RotoPair(f"{folder.name} {angle}", folder.name, images[0], images[angle], homography=H, angle=angle)
        )
    if not pairs:
        raise ValueError(f"scene {folder} has no rotated images; {HELP}")
    return pairs


def _rotated_images(folder: Path) -> dict[int, Path]:
    """The images of a scene by the angle in their names."""
    from steerers.datasets.photos import ENDINGS

    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        name = _ROTATED.fullmatch(path.stem)
        if name and path.suffix.lower() in ENDINGS:
            angle = int(name[1])
            if angle in found:
                raise ValueError(f"{folder} has {found[angle].name} and {path.name}; keep one of them")
            found[angle] = path
    return found


# Evaluating -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RotoOutcome(Outcome):
    """One pair of one run, measured."""

    angle: int
    precision: dict[str, float]  # by the distance in pixels
    angle_error: float | None

    @property
    def failed(self) -> bool:
        """Whether there is no match at all."""
        return not self.num_matches


def measure_pair(pair: RotoPair, prediction: Prediction) -> RotoOutcome:
    """The share of matches that are correct, in stored pixels of the rotated image."""
    matches = prediction.matches
    points0, points1 = (
        transform_points(scaling(size, stored), torch.from_numpy(points).double()).numpy()
        for size, stored, points in (
            (prediction.size0, prediction.stored0, matches.keypoints0),
            (prediction.size1, prediction.stored1, matches.keypoints1),
        )
    )
    errors = metrics.reprojection_errors(points0, points1, pair.homography)
    rotation = metrics.rotation_at_centre(true_homography(pair, prediction), prediction.size0)
    return RotoOutcome(
        **outcomes.common(pair, prediction),
        angle=pair.angle,
        precision={f"{pixels:g}": metrics.precision(errors, pixels) for pixels in PIXELS},
        angle_error=metrics.angle_error(matches.angle, rotation),
    )


def summarise(found: Sequence[RotoOutcome]) -> dict[str, Any]:
    """The numbers of a table's row: means over pairs, 0 for a pair without matches."""
    angle_errors = [outcome.angle_error for outcome in found if outcome.angle_error is not None]
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "precision": {key: fmean(outcome.precision[key] for outcome in found) for key in found[0].precision},
        "angle_error_median": median(angle_errors) if angle_errors else None,
        **outcomes.summarise_common(found),
    }


def evaluate(
    runs: Sequence[Run],
    pairs: Sequence[RotoPair],
    *,
    settings: Settings | None = None,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> Evaluation[RotoPair, RotoOutcome]:
    """Match and measure the pairs of :func:`list_pairs`."""
    settings = settings or Settings(MAX_SIZE)
    return outcomes.evaluate(runs, pairs, "upright", measure_pair, settings=settings, cache=cache, made=made)


# Reporting ------------------------------------------------------------------------------------------------------------


def make_report(
    evaluation: Evaluation[RotoPair, RotoOutcome],
    settings: Settings,
    environment: dict[str, Any],
    *,
    like: bool,
    paper: Sequence[dict[str, Any]] = (),
) -> Report:
    """The report: one table, with the numbers for each angle in JSON and as a plot.

    Args:
        like: whether the data was made by ``roto_like``, which the title says.
        paper: rows of the paper, shown below.
    """
    columns = (
        *MODEL_COLUMNS,
        *(percent(f"precision@{pixels:g}", "precision", f"{pixels:g}") for pixels in PIXELS),
        number("matches", "num_matches"),
        number("keypoints", "num_keypoints"),
        number("angle error", "angle_error_median", form="{:.1f}°"),
        share_failed("no match"),
        *COST_COLUMNS,
    )
    title = LIKE if like else "Roto-360"
    groups = {"by_angle": lambda outcome: str(outcome.angle), "by_sequence": lambda outcome: outcome.sequence}
    table = outcomes.make_table(evaluation, columns, summarise, title=title, groups=groups, more_rows=paper)
    return Report(
        NAME,
        _describe(evaluation, settings, like),
        {**outcomes.describe_settings([evaluation], settings), "data": title, "correct_pixels": list(PIXELS)},
        environment,
        [table],
        {"precision-by-angle.png": lambda path: _plot(path, table.rows, title)},
    )


def _describe(evaluation: Evaluation[RotoPair, RotoOutcome], settings: Settings, like: bool) -> str:
    made = "Roto-360-like data, made by this tool and not comparable with published numbers. " if like else ""
    return (
        f"{made}{outcomes.describe_views([evaluation], settings)} Every rotated image is matched with the upright one. "
        f"Precision is the fraction of matches within 3, 5 and 10 stored pixels of the truth, in per cent, as the "
        f"mean over pairs, 0 where there are no matches; keypoints are the mean over images, the angle error is the "
        f"median. RELF matches by plain mutual nearest neighbours, here `:mutual-nearest`; {outcomes.COSTS}"
    )


def _plot(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    from steerers.viz.plots import curves

    least = f"{PIXELS[0]:g}"
    series = {}
    for row in rows:
        if "by_angle" in row:
            angles = sorted(row["by_angle"], key=int)
            shares = [100 * row["by_angle"][angle]["precision"][least] for angle in angles]
            series[row["label"]] = [float(angle) for angle in angles], shares
    curves(
        path,
        series,
        xlabel="rotation that the file is named after, degrees",
        ylabel=f"precision at {least} px, per cent",
        title=title,
        ylim=(0.0, 100.0),
        xticks=range(0, 361, 45),
    )
