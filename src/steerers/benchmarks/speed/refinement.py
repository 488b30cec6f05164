"""Refinement: matches of all scales registered together, as on a GPU, against one resolution after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from steerers.benchmarks.speed import Cost, measure
from steerers.geometry import rotation, transform_points, warp_image
from steerers.images.load import make_picture
from steerers.models.base import check_tried
from steerers.refinement import Resolutions, refine_places

ANGLE, TILT = math.radians(30), 4e-4
"""Of the second image: its rotation, and the perspective (a pixel), by which scales differ within it."""
OFF = 0.5
"""Pixels, standard deviation: how far keypoints of the second image are off."""


@dataclass(frozen=True)
class RefinementSettings:
    """What is refined: matches of two views of noise."""

    width: int = 1024
    height: int = 768
    num: int = 1000
    repeats: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_tried(self.num, (self.width, self.height))


@dataclass(frozen=True)
class RefinementRow:
    """One way to refine, with images made ready or not."""

    form: str
    images: str  # "ready": their resolutions were made before
    cost: Cost
    plain: Cost  # of one resolution after the other
    before: float  # median pixels off
    after: float
    same: float  # fraction of places within 0.01 pixels of the plain form's

    @property
    def speedup(self) -> float:
        """How many times as fast as the plain form."""
        return self.plain.seconds / self.cost.seconds


def bench_refinement(device: torch.device, settings: RefinementSettings) -> list[RefinementRow]:
    """Measure both forms, with images ready and not."""
    views, (xy0, xy1), truth = _matches(device, settings)
    angles = torch.full((settings.num,), ANGLE, device=device)
    before = float((xy1 - truth).norm(dim=1).median())
    rows: list[RefinementRow] = []
    plain: dict[str, tuple[Cost, Tensor]] = {}
    for form, together in (("one resolution after the other", False), ("together", True)):
        ready = [Resolutions(view, None) for view in views]
        for images, (first, second) in (("ready", ready), ("as read", views)):
            call = partial(refine_places, first, second, xy0, xy1, angles, together=together)
            places = call().keypoints1
            cost = measure(call, device, settings.repeats)
            base, reference = plain.setdefault(images, (cost, places))
            after = float((places - truth).norm(dim=1).median())
            same = float(((places - reference).norm(dim=1) < 0.01).float().mean())
            rows.append(RefinementRow(form, images, cost, base, before, after, same))
    return rows


def _matches(
    device: torch.device, settings: RefinementSettings
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Two grey images, (N, 2) keypoints of both, and where those of the second should be."""
    generator = torch.Generator().manual_seed(settings.seed)
    size = (settings.width, settings.height)
    picture = make_picture(settings.height, settings.width, settings.seed).mean(dim=0, keepdim=True)
    middle = torch.tensor(size).double() / 2
    turn = torch.eye(3).double()
    turn[:2, :2] = rotation(ANGLE).double()
    turn[2, 0] = TILT
    centred = torch.eye(3).double()
    centred[:2, 2] = middle
    warp = centred @ turn @ torch.linalg.inv(centred)
    seen = warp_image(picture, warp, size, fill=0.5)
    share = 0.25 + 0.5 * torch.rand(settings.num, 2, generator=generator, dtype=torch.float64)
    xy0 = share * torch.tensor(size)
    truth = transform_points(warp, xy0)
    xy1 = truth + OFF * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    xy0, xy1, truth = (xy.float().to(device) for xy in (xy0, xy1, truth))
    return (picture[0].to(device), seen[0].to(device)), (xy0, xy1), truth
