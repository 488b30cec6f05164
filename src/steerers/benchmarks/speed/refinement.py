"""Refinement: all matches at once, by operators and by one kernel, against one resolution after the other."""

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
from steerers.refinement import Form, Refined, reason_against_fusing, refine_places
from steerers.resolutions import Resolutions

ANGLE, TILT = math.radians(30), 4e-4
"""Of the second image: its rotation, and the perspective (a pixel), by which scales differ within it."""
FORMS: dict[Form, str] = {"apart": "one resolution after the other", "together": "together", "fused": "one kernel"}
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
    difference: float  # largest distance, in pixels, from the places of the plain form that moved in both
    decided: float  # fraction of matches that moved in both or in neither

    @property
    def speedup(self) -> float:
        """How many times as fast as the plain form."""
        return self.plain.seconds / self.cost.seconds


def bench_refinement(device: torch.device, settings: RefinementSettings) -> list[RefinementRow]:
    """Measure every form that the device has, with images ready and not."""
    views, (xy0, xy1), truth = _matches(device, settings)
    angles = torch.full((settings.num,), ANGLE, device=device)
    before = float((xy1 - truth).norm(dim=1).median())
    rows: list[RefinementRow] = []
    plain: dict[str, tuple[Cost, Refined]] = {}
    for form in _forms(views):
        ready = [Resolutions(view, None) for view in views]
        for images, (first, second) in (("ready", ready), ("as read", views)):
            call = partial(refine_places, first, second, xy0, xy1, angles, form=form)
            found = call()
            cost = measure(call, device, settings.repeats)
            base, reference = plain.setdefault(images, (cost, found))
            after = float((found.keypoints1 - truth).norm(dim=1).median())
            rows.append(RefinementRow(FORMS[form], images, cost, base, before, after, *_agreement(found, reference)))
    return rows


def _forms(views: tuple[Tensor, ...]) -> list[Form]:
    """Those that can run; the kernel on a GPU, though Triton may be interpreted on a CPU."""
    fused = views[0].is_cuda and reason_against_fusing([Resolutions(view, None) for view in views]) is None
    return ["apart", "together", "fused"] if fused else ["apart", "together"]


def _agreement(found: Refined, reference: Refined) -> tuple[float, float, float]:
    """The fraction of places within 0.01 pixels of the plain form's, the largest distance of what moved in both, and
    the fraction of matches that moved in both or in neither."""
    apart = (found.keypoints1 - reference.keypoints1).norm(dim=1)
    both = found.moved & reference.moved
    largest = float(torch.where(both, apart, 0.0).max())
    return float((apart < 0.01).float().mean()), largest, float((found.moved == reference.moved).float().mean())


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
