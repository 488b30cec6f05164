"""Roto-360 (RELF, CVPR 2023): one photograph a scene, rotated in steps of 10 degrees, and the precision of matches.

    DATA/SCENE/1_rot0.jpg                   the photograph, with which every other one is matched
    DATA/SCENE/1_rot10.jpg, 1_rot10.txt     rotated, and the homography from the photograph to it, in pixels

:func:`make_data` makes the same from photographs, with a marker that says so. What is measured on that is called
Roto-360-like: it is another set of scenes, and less is known of how the original was made than one would wish.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import PIL.Image

from steerers._console import progress
from steerers._files import parse_json
from steerers._version import __version__
from steerers.benchmarks import metrics, offers
from steerers.benchmarks.benchmark import COSTS, PairBenchmark, Result, by_sequence
from steerers.benchmarks.homographies import HomographyPair, read_homography, true_homography
from steerers.benchmarks.offers import ROTO_LIKE as LIKE
from steerers.benchmarks.offers import ROTO_ORIGINAL as ORIGINAL
from steerers.benchmarks.offers import ROTO_SCENES
from steerers.benchmarks.predict import Prediction, choose
from steerers.benchmarks.report import COST_COLUMNS, MODEL_COLUMNS, TableRow, dump, failed_fraction, number, percent
from steerers.datasets.photos import ENDINGS, find_images
from steerers.geometry import rotate_image
from steerers.images.load import load_image, to_uint8
from steerers.viz import plots

MARKER = "roto-360-like.json"
"""The file that made data carries."""
ANGLES = range(0, 360, 10)
PIXELS = (3.0, 5.0, 10.0)
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
    return [pair for scene in choose(found, wanted or None, folder, "scene").values() for pair in _list_scene(scene)]


def _listed(folder: Path) -> list[str] | None:
    """The scenes of the original's list, where it is there."""
    path = folder / "splits.json"
    if not path.is_file():
        return None
    try:
        return [str(name) for name in parse_json(path.read_bytes())["debug"]["test"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not RELF's list of scenes ({error!r}); name them by --sequences") from error


def _list_scene(folder: Path) -> list[RotoPair]:
    images = _rotated_images(folder)
    pairs = []
    for angle in sorted(images.keys() - {0}):
        matrix = folder / f"1_rot{angle}.txt"
        if not matrix.is_file():
            raise ValueError(f"scene {folder} has no {matrix.name}; {HELP}")
        name, H = f"{folder.name} {angle}", read_homography(matrix)
        pairs.append(RotoPair(name, folder.name, images[0], images[angle], homography=H, angle=angle))
    if not pairs:
        raise ValueError(f"scene {folder} has no rotated images; {HELP}")
    return pairs


def _rotated_images(folder: Path) -> dict[int, Path]:
    """The images of a scene by the angle in their names."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        name = _ROTATED.fullmatch(path.stem)
        if name and path.suffix.lower() in ENDINGS:
            angle = int(name[1])
            if angle in found:
                raise ValueError(f"{folder} has {found[angle].name} and {path.name}; keep one of them")
            found[angle] = path
    return found


# Making ---------------------------------------------------------------------------------------------------------------


def is_made(folder: Path) -> bool:
    """Whether the data is not the original, but made by :func:`make_data`."""
    return (folder / MARKER).is_file()


def make_data(photographs: Path, folder: Path, *, scenes: int = ROTO_SCENES, max_size: int | None = None) -> list[str]:
    """Generate the layout from the first photographs of a folder, by name, those in folders below included.

    Each is rotated about its centre onto a canvas of its own size; what a rotation uncovers is black. Sampling is
    bilinear, files are JPEG of quality 95, the unrotated one too.

    Args:
        folder: where to; new or empty, and written whole or not at all.
        max_size: longest side; what is larger is shrunk first.

    Returns:
        The names of the scenes.
    """
    sources = _list_photographs(photographs, scenes)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"cannot make data in {folder}: it is there and not empty; name a new folder")
    if not folder.resolve().parent.is_dir():
        raise ValueError(f"cannot make data in {folder}: there is no folder {folder.resolve().parent}")
    names = [f"{index:02d}_{path.stem}" for index, path in enumerate(sources, start=1)]
    with tempfile.TemporaryDirectory(prefix=".steerers-", dir=folder.resolve().parent) as temporary:
        whole = Path(temporary) / "data"
        whole.mkdir()
        for name, path in progress(list(zip(names, sources, strict=True)), "rotating"):
            _make_scene(path, whole / name, max_size)
        (whole / MARKER).write_text(dump(_describe_made(names, sources, max_size)), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        shutil.move(whole, folder)
    return names


def _list_photographs(folder: Path, scenes: int) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give --make a folder of photographs")
    found = find_images(folder)
    if len(found) < scenes:
        raise ValueError(f"{folder} holds {len(found)} photographs, not {scenes}; ask for fewer by --scenes")
    return found[:scenes]


def _make_scene(source: Path, folder: Path, max_size: int | None) -> None:
    folder.mkdir()
    image = load_image(source, max_size=max_size).tensor  # (3, H, W)
    for angle in ANGLES:
        rotated, H = rotate_image(image, math.radians(angle), expand=False)
        PIL.Image.fromarray(to_uint8(rotated)).save(folder / f"1_rot{angle}.jpg", quality=95)
        np.savetxt(folder / f"1_rot{angle}.txt", H.numpy(), fmt="%.17g")


def _describe_made(names: Sequence[str], sources: Sequence[Path], max_size: int | None) -> dict[str, Any]:
    return {
        "dataset": LIKE,
        "made_by": f"steerers {__version__}",
        "note": "Not the Roto-360 of RELF: made in its layout by `steerers eval roto-360 --make`.",
        "angles": list(ANGLES),
        "max_size": max_size,
        "scenes": {
            name: {"image": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in zip(names, sources, strict=True)
        },
    }


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RotoOutcome:
    """One pair of one run, measured."""

    angle: int
    precision: dict[str, float]  # by the distance in pixels
    angle_error: float | None
    failed: bool  # without any match


def measure_pair(pair: RotoPair, prediction: Prediction, title: str) -> RotoOutcome:
    """The fraction of matches that are correct, in stored pixels of the rotated image."""
    matches = prediction.matches
    errors = metrics.reprojection_errors(*prediction.stored_keypoints(), pair.homography)
    true_angle = metrics.rotation_at_centre(true_homography(pair, prediction), prediction.size0)
    return RotoOutcome(
        angle=pair.angle,
        precision={f"{pixels:g}": metrics.precision(errors, pixels) for pixels in PIXELS},
        angle_error=metrics.angle_error(matches.angle, true_angle),
        failed=not len(matches),
    )


def summarise(found: Sequence[RotoOutcome]) -> TableRow:
    """The numbers of a table's row: means over pairs, 0 for a pair without matches."""
    angle_errors = [outcome.angle_error for outcome in found if outcome.angle_error is not None]
    return {
        "num_failed": sum(outcome.failed for outcome in found),
        "precision": {key: fmean(outcome.precision[key] for outcome in found) for key in found[0].precision},
        "angle_error_median": metrics.middle(angle_errors),
    }


# The benchmark --------------------------------------------------------------------------------------------------------


RotoResult = Result[RotoPair, RotoOutcome, str]
"""Options are what the data is called, which the report says."""


def _describe(result: RotoResult) -> str:
    made = "Roto-360-like data, made by this tool and not comparable with published numbers. "
    return (
        f"{made if result.options == LIKE else ''}{result.describe_views()} Every rotated image is matched with the "
        f"upright one. Precision is the fraction of matches within 3, 5 and 10 stored pixels of the truth, in per "
        f"cent, as the mean over pairs, 0 where there are no matches; keypoints are the mean over images, the angle "
        f"error is the median. RELF matches by plain mutual nearest neighbours, here `:mutual-nearest`; {COSTS}"
    )


def _plot(result: RotoResult, path: Path) -> None:
    least = f"{PIXELS[0]:g}"
    series = {}
    for row in result.evaluations[0].rows:
        angles = sorted({outcome.angle for outcome in row.outcomes})
        precision = [fmean(100 * o.precision[least] for o in row.outcomes if o.angle == angle) for angle in angles]
        series[row.run.label] = angles, precision
    plots.curves(
        path,
        series,
        xlabel="rotation that the file is named after, degrees",
        ylabel=f"precision at {least} px, per cent",
        title=result.options,
        ylim=(0.0, 100.0),
        xticks=range(0, 361, 45),
    )


def _make_asked(arguments: argparse.Namespace) -> str | None:
    if arguments.make is None:
        return None
    made = make_data(arguments.make, arguments.data, scenes=arguments.scenes, max_size=arguments.max_size)
    return f"made {len(made)} scenes of {len(ANGLES)} images ({LIKE}) in {arguments.data}"


ROTO_360 = PairBenchmark(
    offer=offers.ROTO_360,
    instead=_make_asked,
    list_pairs=lambda arguments: list_pairs(arguments.data, arguments.sequences),
    options=ORIGINAL,
    read_options=lambda arguments: LIKE if is_made(arguments.data) else ORIGINAL,
    comparable=lambda title: title == ORIGINAL,
    measure=measure_pair,
    summarise=summarise,
    columns=(
        *MODEL_COLUMNS,
        *(percent(f"precision@{pixels:g}", "precision", f"{pixels:g}") for pixels in PIXELS),
        number("matches", "num_matches"),
        number("keypoints", "num_keypoints"),
        number("angle error", "angle_error_median", form="{:.1f}°"),
        failed_fraction("no match"),
        *COST_COLUMNS,
    ),
    describe=_describe,
    settings=lambda title: {"data": title, "correct_pixels": list(PIXELS)},
    title=lambda title: title,
    groups={"by_angle": lambda pair: str(pair.angle), "by_sequence": by_sequence},
    plots=lambda result: {"precision-by-angle.png": partial(_plot, result)},
)
