"""Networks in their fast form against the plain module: time, memory, and whether they find the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.accel.networks.inference import for_inference
from steerers.benchmarks.speed.measure import Cost, measure
from steerers.features import Keypoints
from steerers.images.noise import make_picture
from steerers.models.base import Combined, Extractor
from steerers.models.dedode import DedodeNetwork
from steerers.models.zoo import PRECISIONS, Model

NEAR = 0.5
"""How near, in pixels, keypoints must be to count as the same."""


@dataclass(frozen=True)
class Setting:
    """What is described: one image made of noise, with keypoints at random."""

    width: int = 784
    height: int = 784
    num_keypoints: int = 5000
    repeats: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One step of a model in one form."""

    model: str
    step: str  # detect, describe, or extract where a network does both at once
    form: str
    cost: Cost
    plain: Cost
    same_keypoints: float | None
    """Share of the plain module's keypoints that are found."""
    largest_difference: float | None
    """Of descriptions of the same keypoints."""
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


class _Found(NamedTuple):
    keypoints: Keypoints
    descriptions: Tensor  # of given keypoints


def bench_description(model: Model, precision: str, device: torch.device, setting: Setting) -> list[Row]:
    """Measure a model's steps in every form; the first is the plain module in float32, which the others compare to.

    Args:
        model: with plain modules, as :func:`steerers.models.zoo.build` makes it.
        precision: the half that is measured beside float32, or ``"float32"`` for none.
    """
    image = make_picture(setting.height, setting.width, setting.seed).to(device)
    keypoints = _scatter(setting, device)
    reference: _Found | None = None
    plain: dict[str, Cost] = {}
    rows = []
    for form in _forms(model.extractor.to(device).eval(), PRECISIONS[precision], device):
        found = _find(form, image, keypoints, setting.num_keypoints)
        reference = reference or found
        for step, cost in _costs(form, image, keypoints, setting).items():
            baseline = plain.setdefault(step, cost)
            rows.append(Row(model.name, step, form.name, cost, baseline, *_agreement(step, found, reference)))
    return rows


def _costs(form: _Form, image: Tensor, keypoints: Keypoints, setting: Setting) -> dict[str, Cost]:
    """What each step takes; the memory of a form with recordings is that of the same form without."""
    costs = {
        step: measure(call, image.device, setting.repeats)
        for step, call in _steps(form, image, keypoints, setting.num_keypoints)
    }
    if form.unrecorded is None:
        return costs
    without = _costs(_Form(form.name, form.unrecorded), image, keypoints, replace(setting, repeats=1))
    return {step: Cost(cost.seconds, without[step].extra_bytes) for step, cost in costs.items()}


def _scatter(setting: Setting, device: torch.device) -> Keypoints:
    generator = torch.Generator().manual_seed(setting.seed)
    last = torch.tensor([setting.width - 1.0, setting.height - 1.0])
    xy = torch.rand(setting.num_keypoints, 2, generator=generator) * last
    ones = torch.ones(setting.num_keypoints, device=device)
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


def _steps(form: _Form, image: Tensor, keypoints: Keypoints, count: int) -> list[tuple[str, Callable[[], Any]]]:
    extractor = form.extractor

    def under_autocast(call: Callable[[], Any]) -> Callable[[], Any]:
        @torch.no_grad()
        def run() -> Any:
            with nullcontext() if form.autocast is None else torch.autocast(image.device.type, dtype=form.autocast):
                return call()

        return run

    if not isinstance(extractor, Combined):
        return [("extract", under_autocast(lambda: extractor.extract(image[None], num_keypoints=count)))]
    return [
        ("detect", under_autocast(lambda: extractor.detect(image[None], num_keypoints=count))),
        ("describe", under_autocast(lambda: extractor.describe(image[None], [keypoints]))),
    ]


@torch.no_grad()
def _find(form: _Form, image: Tensor, keypoints: Keypoints, count: int) -> _Found:
    with nullcontext() if form.autocast is None else torch.autocast(image.device.type, dtype=form.autocast):
        (found,) = form.extractor.detect(image[None], num_keypoints=count)
        return _Found(found, form.extractor.describe(image[None], [keypoints])[0].float())


def _agreement(step: str, found: _Found, expected: _Found) -> tuple[float | None, float | None, float | None]:
    """Same keypoints, largest difference and least cosine, as far as a step is about them."""
    same = difference = cosine = None
    if step != "describe" and len(expected.keypoints):
        near = torch.zeros(len(expected.keypoints), dtype=torch.bool, device=found.keypoints.xy.device)
        if len(found.keypoints):
            near = torch.cdist(expected.keypoints.xy.double(), found.keypoints.xy.double()).amin(dim=1) < NEAR
        same = float(near.float().mean())
    if step != "detect":
        difference = float((found.descriptions - expected.descriptions).abs().max())
        cosine = float(F.cosine_similarity(found.descriptions, expected.descriptions, dim=1).min())
    return same, difference, cosine
