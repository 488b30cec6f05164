"""Photographs on a map: how many are placed, how well, how many wrongly, and what becomes of those of elsewhere."""

from __future__ import annotations

import argparse
import csv
import logging
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from steerers._choices import LIKELY
from steerers._console import progress
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.report import MISSING, Column, Report, Table, TableRow, environment, number, percent, text
from steerers.benchmarks.runs import hash_files, read_specs
from steerers.collection.manifest import Extraction
from steerers.datasets.photos import find_images, spread
from steerers.geometry import wrap_degrees
from steerers.images.exif import ground_distance
from steerers.maps.coordinates import map_points
from steerers.maps.finder import LocateOptions, Prior
from steerers.maps.locating import Located, Locator
from steerers.maps.rasters import open_map

logger = logging.getLogger(__name__)


def _of_strangers(row: Mapping[str, Any], key: str) -> str:
    return f"{row[key]} of {row['strangers']}" if row["strangers"] else MISSING


def _join_percents(fractions: Mapping[str, float]) -> str:
    return " / ".join(MISSING if math.isnan(part) else f"{100 * part:.1f}" for part in fractions.values())


WITHIN = (20, 50, 100)
"""Pixels of the map."""
FAR = 100.0
"""Pixels, or metres from the GPS position where the truth is not checked, beyond which an answer is false."""
KEPT = 0.95
"""Of the right answers that a threshold keeps, at which photographs of elsewhere are counted."""
ANY = 1e-12
"""Less probable than the verdict has any place that was looked at: the best answer is always told."""
COLUMNS = (
    text("model", "label"),
    text("known beforehand", "known"),
    Column("found", lambda row: f"{row['found']} of {row['photos']}"),
    *(percent(f"within {limit} px", "within", str(limit)) for limit in WITHIN),
    number("false", "false"),
    Column("best within " + " / ".join(map(str, WITHIN)), lambda row: _join_percents(row["best"])),
    number("off centre, px", "off", form="{:.0f}"),
    number("off north", "turned", form="{:.1f}°"),
    Column("elsewhere taken", lambda row: _of_strangers(row, "taken")),
    Column(f"keeping {KEPT:.0%}", lambda row: _of_strangers(row, "taken_kept")),
    number("seconds a photograph", "seconds", form="{:.1f}"),
)


@dataclass(frozen=True)
class Truth:
    """Of a photograph: the centre on the map in pixels, where it is checked, the yaw, and longitude and latitude."""

    photo: Path
    centre: tuple[float, float] | None
    yaw: float
    position: tuple[float, float]


def read_truth(folder: Path) -> tuple[Path, list[Truth]]:
    """The map of a folder, and what is known of its photographs.

    Raises:
        ValueError: saying what is missing.
    """
    charts = sorted(path for path in folder.glob("map.*") if path.suffix.lower() in (".tif", ".tiff", ".jpg", ".png"))
    if not charts or not (folder / "truth.csv").is_file():
        raise ValueError(f"{folder} must hold map.tif, .jpg or .png, truth.csv and photos: see steerers eval map -h")
    found = []
    with (folder / "truth.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                checked = row["checked"] == "1"
                centre = (float(row["centre_x"]), float(row["centre_y"])) if checked else None
                position = float(row["gps_lon"]), float(row["gps_lat"])
                found.append(Truth(folder / "photos" / row["file"], centre, float(row["yaw_deg"]), position))
            except (KeyError, ValueError, TypeError) as error:
                raise ValueError(f"{folder / 'truth.csv'}: cannot read {row}: {error}") from error
    if not found:
        raise ValueError(f"{folder / 'truth.csv'} names no photograph")
    return charts[0], found


@dataclass(frozen=True)
class Outcome:
    """Of a photograph: the best answer, its probability and whether that is enough, and how far it is from the truth,
    in pixels of the map (metres from the GPS position where the centre is not checked) and degrees; infinitely far if
    there is none."""

    name: str
    checked: bool
    probability: float
    found: bool
    off: float
    turned: float
    inliers: int
    seconds: float


def measure(located: Located, truth: Truth) -> Outcome:
    """Compare; ``located`` tells the best answer, however unlikely."""
    off = turned = math.inf
    if located.matrix is not None:
        width, height = located.size
        if truth.centre is not None:
            at = map_points(located.matrix, [[(width - 1) / 2, (height - 1) / 2]])[0]
            off = float(np.linalg.norm(at - truth.centre))
        else:
            lon, lat = located.centre
            off = ground_distance((lat, lon), (truth.position[1], truth.position[0]))
        turned = abs(wrap_degrees(located.heading - truth.yaw))
    checked, name = truth.centre is not None, truth.photo.name
    likely, inliers = located.probability, located.inliers
    return Outcome(name, checked, likely, likely >= LIKELY, off, turned, inliers, located.seconds)


def summarise(found: Sequence[Outcome], strangers: Sequence[float]) -> TableRow:
    """Numbers of a row; ``strangers`` are the probabilities of photographs of elsewhere."""
    checked = [one for one in found if one.checked]
    right = [one for one in found if one.found and one.off <= FAR]
    near = [one for one in right if one.checked]
    bar = float(np.quantile([one.probability for one in right], 1 - KEPT)) if right else 1.0
    return {
        "photos": len(found),
        "found": sum(one.found for one in found),
        "within": _shares([one for one in checked if one.found], len(checked)),
        "best": _shares(checked, len(checked)),
        "false": sum(one.found and one.off > FAR for one in found),
        "off": median(one.off for one in near) if near else math.nan,
        "turned": median(one.turned for one in right) if right else math.nan,
        "strangers": len(strangers),
        "taken": sum(likely >= LIKELY for likely in strangers),
        "taken_kept": sum(likely >= bar for likely in strangers),
        "kept_at": bar,
        "seconds": fmean(one.seconds for one in found),
        "pairs": [vars(one) for one in found],
        "strangers_probabilities": list(strangers),
    }


def _shares(answers: Sequence[Outcome], photos: int) -> dict[str, float]:
    """For each limit, how many answers are so near the truth, as a fraction of so many photographs."""
    near = {str(limit): sum(one.off <= limit for one in answers) for limit in WITHIN}
    return {limit: count / photos if photos else math.nan for limit, count in near.items()}


class _Map(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        chart, truths = read_truth(arguments.data)
        photos = [] if arguments.elsewhere is None else spread(find_images(arguments.elsewhere), arguments.num_photos)
        rows: list[TableRow] = []
        specs = read_specs(arguments.models, arguments.weights or ())
        with open_map(chart, corners=arguments.corners) as raster, _folder(arguments.indexes) as folder:
            for name, (model, matching, weights) in zip(arguments.models, specs, strict=True):
                extraction = Extraction(model, matching.pop("detector"), arguments.num_keypoints)
                index = Path(folder) / f"{re.split('[:?]', name)[0].replace('/', '-')}.h5"
                told: dict[str, Any] = {"extraction": extraction, "weights": weights, "matching": matching}
                with Locator(raster, index, **told, device=device, options=LocateOptions(threshold=ANY)) as locator:
                    rows += _evaluate(locator, name, truths, photos, arguments.within)
        facts = {"photos_sha256": hash_files([truth.photo for truth in truths]), "map": chart.name}
        table = Table("photographs on the map", COLUMNS, rows, facts)
        return Report(
            benchmark="map",
            description=(
                f"{len(truths)} photographs on a map of {raster.size[0]} x {raster.size[1]} pixels, whose index has at "
                f"most {arguments.num_keypoints} keypoints for 1024 x 1024 pixels. *Within* is of the "
                f"{sum(truth.centre is not None for truth in truths)} photographs whose centre is known; false are "
                f"answers that are more than {FAR:g} pixels off, or metres from the GPS position where it is not. "
                f"*Best* are the best answers of all these photographs, whatever their probability. Off are medians of "
                f"right answers. *Elsewhere taken*: photographs of elsewhere with a probability of at least 1/2, and "
                f"of at least what {KEPT:.0%} of the right answers have."
            ),
            settings={"num_keypoints": arguments.num_keypoints, "within": arguments.within},
            environment=environment(device),
            tables=[table],
            plots={},
        )


def _evaluate(
    locator: Locator, name: str, truths: Sequence[Truth], elsewhere: Sequence[Path], within: float | None
) -> list[TableRow]:
    """The rows of a model: with nothing known beforehand, and with positions, if asked for."""
    outcomes = _measure_all(locator, truths, name, None)
    strangers = [_judge(locator, photo) for photo in progress(elsewhere, f"elsewhere, {name}")]
    rows: list[TableRow] = [{"label": name, "known": "nothing", **summarise(outcomes, strangers)}]
    if within is not None:
        outcomes = _measure_all(locator, truths, name, within)
        rows.append({"label": name, "known": f"position, {within:g} m", **summarise(outcomes, [])})
    return rows


def _measure_all(locator: Locator, truths: Sequence[Truth], name: str, within: float | None) -> list[Outcome]:
    found = []
    for truth in progress(truths, f"{name}, {'no position' if within is None else f'within {within:g} m'}"):
        prior = Prior() if within is None else Prior(truth.position, within)
        one = measure(locator(truth.photo, prior), truth)
        logger.debug("%s", one)
        found.append(one)
    return found


def _judge(locator: Locator, photo: Path) -> float:
    likely = locator(photo, Prior()).probability
    logger.debug("%s: probability %.3f", photo, likely)
    return likely


def _folder(given: Path | None) -> Any:
    if given is None:
        return tempfile.TemporaryDirectory()
    given.mkdir(parents=True, exist_ok=True)
    return nullcontext(given)


MAP = _Map(offer=offers.MAP)
