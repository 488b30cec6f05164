"""Extraction: networks in their fast form against the plain module, and many images one by one against in batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.accel.networks import for_inference
from steerers.benchmarks.speed import Cost, measure, timed
from steerers.features import Features, Keypoints, Matches
from steerers.geometry import nearest_points
from steerers.images.load import make_picture
from steerers.models.base import Combined, Extractor, check_tried
from steerers.models.dedode import DedodeNetwork
from steerers.models.zoo import PRECISIONS, Model
from steerers.pipeline import Pipeline

NEAR = 0.5
"""How near, in pixels, keypoints must be to count as the same."""


# Networks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExtractionSettings:
    """What is described: one image made of noise, with keypoints at random."""

    width: int = 784
    height: int = 784
    num_keypoints: int = 5000
    repeats: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_tried(self.num_keypoints, (self.width, self.height))


@dataclass(frozen=True)
class ExtractionRow:
    """One step of a model in one form."""

    model: str
    step: str  # detect, describe, or extract where a network does both at once
    form: str
    cost: Cost
    plain: Cost
    same_keypoints: float | None  # fraction of the plain module's keypoints that are found
    largest_difference: float | None  # of descriptions of the same keypoints
    least_cosine: float | None

    @property
    def speedup(self) -> float:
        """How many times as fast as the plain module in float32."""
        return self.plain.seconds / self.cost.seconds


class _Form(NamedTuple):
    name: str
    extractor: Extractor
    autocast: torch.dtype | None = None
    unrecorded: Extractor | None = None
    """The same without CUDA graphs, if it has them: the memory of a recording is there before a run."""

    @torch.no_grad()
    def run(self, step: str, image: Tensor, keypoints: Keypoints) -> Any:
        """Detect or extract as many keypoints, or describe these."""
        with nullcontext() if self.autocast is None else torch.autocast(image.device.type, dtype=self.autocast):
            if step == "describe":
                return self.extractor.describe(image[None], [keypoints])[0]
            find = self.extractor.detect if step == "detect" else self.extractor.extract
            return find(image[None], num_keypoints=len(keypoints))[0]


class _Found(NamedTuple):
    keypoints: Keypoints
    descriptions: Tensor  # of given keypoints


def bench_description(
    model: Model, precision: str, device: torch.device, settings: ExtractionSettings
) -> list[ExtractionRow]:
    """Measure a model's steps in every form; the first is the plain module in float32, which the others compare to.

    Args:
        model: with plain modules, as :func:`steerers.models.zoo.build` makes it.
        precision: the half that is measured beside float32, or ``"float32"`` for none.
    """
    image = make_picture(settings.height, settings.width, settings.seed).to(device)
    keypoints = _scatter(settings, device)
    reference: _Found | None = None
    plain: dict[str, Cost] = {}
    rows = []
    for form in _forms(model.extractor.to(device).eval(), PRECISIONS[precision], device):
        found = _Found(form.run("detect", image, keypoints), form.run("describe", image, keypoints).float())
        reference = reference or found
        for step, cost in _costs(form, image, keypoints, settings.repeats).items():
            baseline = plain.setdefault(step, cost)
            rows.append(ExtractionRow(model.name, step, form.name, cost, baseline, *_agreement(step, found, reference)))
    return rows


def _costs(form: _Form, image: Tensor, keypoints: Keypoints, repeats: int) -> dict[str, Cost]:
    """What each step takes; the memory of a form with recordings is that of the same form without."""
    steps = ("detect", "describe") if isinstance(form.extractor, Combined) else ("extract",)
    costs = {step: measure(partial(form.run, step, image, keypoints), image.device, repeats) for step in steps}
    if form.unrecorded is None:
        return costs
    without = _costs(_Form(form.name, form.unrecorded), image, keypoints, repeats=1)
    return {step: Cost(cost.seconds, without[step].extra_bytes) for step, cost in costs.items()}


def _scatter(settings: ExtractionSettings, device: torch.device) -> Keypoints:
    generator = torch.Generator().manual_seed(settings.seed)
    last = torch.tensor([settings.width - 1.0, settings.height - 1.0])
    xy = torch.rand(settings.num_keypoints, 2, generator=generator) * last
    ones = torch.ones(settings.num_keypoints, device=device)
    return Keypoints(xy.to(device), ones, scales=5 * ones, orientations=0 * ones)


def _forms(extractor: Extractor, half: torch.dtype, device: torch.device) -> Iterator[_Form]:
    """One at a time, so that no two are in memory that need not be."""
    yield _Form("plain float32", extractor)
    if for_inference(extractor) is extractor:  # no network of it has a choice of precision
        return
    name = str(half).removeprefix("torch.")
    if half != torch.float32:
        cast = copy.deepcopy(extractor)
        for module in cast.modules():
            if isinstance(module, DedodeNetwork):
                module.dtype = half
        yield _Form(f"plain {name} autocast", cast, half)
        del cast
    yield _fast_form("fast float32", extractor, torch.float32, device)
    if half != torch.float32:
        if device.type == "cuda":
            yield _Form(f"fast {name}, no graphs", for_inference(extractor, half, graphs=0))
        yield _fast_form(f"fast {name}", extractor, half, device)


def _fast_form(name: str, extractor: Extractor, dtype: torch.dtype, device: torch.device) -> _Form:
    unrecorded = for_inference(extractor, dtype, graphs=0) if device.type == "cuda" else None
    return _Form(name, for_inference(extractor, dtype), unrecorded=unrecorded)


def _agreement(step: str, found: _Found, expected: _Found) -> tuple[float | None, float | None, float | None]:
    """Same keypoints, largest difference and least cosine, as far as a step is about them."""
    same = difference = cosine = None
    if step != "describe" and len(expected.keypoints):
        near = torch.zeros(len(expected.keypoints), dtype=torch.bool, device=found.keypoints.xy.device)
        if len(found.keypoints):
            near = nearest_points(expected.keypoints.xy.double(), found.keypoints.xy.double())[0] < NEAR
        same = float(near.float().mean())
    if step != "detect":
        difference = float((found.descriptions - expected.descriptions).abs().max())
        cosine = float(F.cosine_similarity(found.descriptions, expected.descriptions, dim=1).min())
    return same, difference, cosine


# Many images ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineRow:
    """A way to go through the images."""

    way: str
    seconds: float
    images_per_second: float
    matches: int | None  # of each image with the next


def bench_pipeline(
    matcher: Pipeline, paths: Sequence[Path], batch: int | None = None, repeats: int = 3
) -> list[PipelineRow]:
    """Time the ways to extract all images and match each with the next, after one run of all of it.

    Args:
        batch: see :meth:`Pipeline.extract`.
    """
    if len(paths) < 2:
        raise ValueError(f"there must be at least two images to match, got {len(paths)}")
    files = list(paths)
    loaded = [matcher.load_image(path) for path in files]
    ways: dict[str, Callable[[], list[Features]]] = {
        "reading alone": lambda: _read_only(matcher, files),
        "one by one": lambda: [matcher.extract(path) for path in files],
        "together": lambda: matcher.extract(files, batch=batch),
        "one by one, read before": lambda: [matcher.extract(image) for image in loaded],
        "together, read before": lambda: matcher.extract(loaded, batch=batch),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    matches: dict[str, int | None] = {}
    for _ in range(repeats + 1):
        for way, extract in ways.items():  # in turn, so that a change of the machine's pace meets all of them
            found, seconds = timed(partial(_extract_and_match, matcher, extract), matcher.device)
            taken[way].append(seconds)
            matches[way] = sum(map(len, found)) if found else None
    return [
        PipelineRow(way, median(seconds[1:]), len(files) / median(seconds[1:]), matches[way])
        for way, seconds in taken.items()
    ]


def _read_only(matcher: Pipeline, paths: Sequence[Path]) -> list[Features]:
    for path in paths:
        matcher.load_image(path)
    return []


def _extract_and_match(matcher: Pipeline, extract: Callable[[], list[Features]]) -> list[Matches]:
    """Each image with the next."""
    return [matcher.match(first, second) for first, second in pairwise(extract())]
