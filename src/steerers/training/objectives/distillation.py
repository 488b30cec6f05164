"""Keypoints and descriptions that rotate with the image, learnt from what trained networks say on average.

A network whose strides alias puts a keypoint of a rotated image a quarter of a pixel beside where it should be. The
mean of its logits over many rotations of the image does not: it is off by half as much, and repeats more keypoints. So
is the mean of its steered descriptions. A network that sees the image once is taught these means, which are known at
every pixel; the teachers may be several, and one of them what the network starts from. They may also see a view as it
was before its light was changed, which moves nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.datasets.pairs import PairBatch, check_options, pixel_grid
from steerers.models.compact import Compact, FeatureMaps
from steerers.models.sampling import choose_keypoints, full_precision, peaks
from steerers.steering.steerer import Steerer
from steerers.training.objectives import Term, Terms
from steerers.training.objectives.descriptions import MatchingOptions
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import KeypointOptions, without_margin

FARTHEST = 1.0
"""Pixels: a top of the network's logits that is farther from the teachers' is not pulled there, but its logits are."""
LOWEST = -17.0
"""Below a view's highest logit: what is lower is no keypoint, by however much. Where keypoints were rewarded for long,
logits away from them are lower by hundreds, and their squared differences were all that a network learnt from."""


@dataclass(frozen=True)
class DistillationOptions:
    """What a network is taught by others of its kind.

    Attributes:
        teachers: models of ``steerers models`` that are compact networks, or files of runs. The mean of their logits is
            the target; descriptions are those of the first. Empty: nobody teaches, and views teach each other.
        unchanged: teachers see the views in the light of their photographs, so that a network learns to say in any
            light, weather and by any sensor what they say in that.
        rotations: of each view that the teachers see, spread evenly over the turn from a random one on.
        margin: pixels from the edge of a rotated view that are not asked.
        elsewhere: weight of the logits away from keypoints; that of the 5 x 5 pixels around one is 1.
        places: weight of the distance, in pixels, between the tops of both logits.
        descriptions: weight of one less the cosine of descriptions.
        pairs: weight of what the two views of a pair teach each other beside that, the joint setting's own terms; a
            network is then drawn towards its teachers while it learns from real changes of view, which they never saw.
    """

    teachers: tuple[str, ...] = ()
    unchanged: bool = False
    rotations: int = 2
    margin: int = 8
    elsewhere: float = 0.1
    places: float = 1.0
    descriptions: float = 5.0
    pairs: float = 0.0

    def __post_init__(self) -> None:
        check_options(self, "be at least 1", lambda value: value >= 1, "rotations")
        weights = ("margin", "elsewhere", "places", "descriptions", "pairs")
        check_options(self, "not be negative", lambda value: value >= 0, *weights)


class Taught(NamedTuple):
    """What the teachers say of a batch of views."""

    logits: Tensor  # (B, H, W)
    seen: Tensor  # (B, H, W) bool, where at least one of the rotated views shows it
    views: list[tuple[Tensor, FeatureMaps]]  # (B,) radians of each rotation, and what the first teacher made of it


class DistilledObjective(JointObjective):
    """A network is taught the mean of what teachers say of rotated views; see the module.

    Batch normalisations keep the statistics that the network starts with: a few views at a time would change them.
    """

    def __init__(
        self,
        network: Compact,
        steerer: Steerer,
        matching: MatchingOptions,
        keypoints: KeypointOptions,
        teachers: Sequence[Compact],
        options: DistillationOptions,
    ) -> None:
        super().__init__(network, steerer, matching, keypoints)
        if not teachers:
            raise ValueError("distillation needs a teacher")
        self.options = options
        self._teachers = [teacher.eval().requires_grad_(False) for teacher in teachers]  # not a part of what is saved

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # SyncBatchNorm, too
                module.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for teacher in self._teachers:
            teacher._apply(fn, recurse)  # type: ignore[no-untyped-call]  # so that to(device) takes them along
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        batch = without_margin(batch, self.keypoints.margin)
        images = torch.cat([batch.images0, batch.images1])
        # Each view's rotation is drawn for the other, so that it tells nothing of how this one stands.
        taught = self._teach(self._shown(batch), torch.cat([batch.rotations1, batch.rotations0]).to(images))
        maps = self.network(images)
        allowed = taught.seen & torch.cat([batch.masks0, batch.masks1])
        with torch.autocast(images.device.type, enabled=False):
            xy, _, real = choose_keypoints(
                taught.logits, self.matching.num_keypoints, allowed, self.network.sampling
            )  # (B, N, 2), (B, N)
            terms = logit_terms(maps.logits, taught.logits, allowed, xy, real, self.options)
            terms |= self._description_terms(maps, taught, xy, real)
        if self.options.pairs:
            own = self._pair_terms(maps, batch, progress)
            terms |= {name: term._replace(weight=self.options.pairs * term.weight) for name, term in own.items()}
        return terms

    def _shown(self, batch: PairBatch) -> Tensor:
        """(2B, 3, H, W) what the teachers see."""
        if not self.options.unchanged:
            return torch.cat([batch.images0, batch.images1])
        if batch.unchanged is None:
            raise ValueError("distillation.unchanged: these pairs are known in the light alone that they are shown in")
        return torch.cat(batch.unchanged)

    @torch.no_grad()
    def _teach(self, images: Tensor, start: Tensor) -> Taught:
        """The mean over rotations of (B, 3, H, W) views, evenly spread from (B,) radians on."""
        total, count, views = torch.zeros_like(images[:, 0]), torch.zeros_like(images[:, 0]), []
        for turn in range(self.options.rotations):
            angles = start + 2 * math.pi * turn / self.options.rotations
            rotated = rotate_maps(images, angles).clamp(0, 1)
            made = [teacher(rotated) for teacher in self._teachers]
            with torch.autocast(images.device.type, enabled=False):
                logits = torch.stack([maps.logits for maps in made]).mean(dim=0)
                back = rotate_maps(logits[:, None], -angles)[:, 0]
                inside = _inside(rotate_points(pixel_grid(images[:, 0]), angles, images), images, self.options.margin)
                inside = inside.view_as(back)
                total, count = total + back * inside, count + inside
            views.append((angles, made[0]))
        return Taught(total / count.clamp(min=1), count > 0, views)

    def _description_terms(self, maps: FeatureMaps, taught: Taught, xy: Tensor, real: Tensor) -> Terms:
        if not self.options.descriptions:
            return {}
        with torch.no_grad():
            target, seen = self._descriptions(taught, xy)
        own = self.network.describe_at(maps, xy)
        off = 1 - F.cosine_similarity(own, target, dim=2)  # (B, N)
        counted = real & seen
        total = torch.where(counted, off, 0.0).sum()
        return {"descriptions": Term(total, counted.sum().to(total), self.options.descriptions)}

    def _descriptions(self, taught: Taught, xy: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) the mean over rotations of descriptions, steered back, and (B, N) whether any rotation has it."""
        assert self.steerer is not None
        total = xy.new_zeros(*xy.shape[:2], self.network.dim)
        seen = torch.zeros_like(xy[..., 0], dtype=torch.bool)
        for angles, maps in taught.views:
            moved = rotate_points(xy, angles, maps.logits)
            described = F.normalize(self._teachers[0].describe_at(maps, moved), dim=2)
            inside = _inside(moved, maps.logits, self.options.margin)
            total = total + self.steerer.steer(described, -angles[:, None]) * inside[..., None]
            seen = seen | inside
        return total, seen


def logit_terms(
    logits: Tensor, target: Tensor, allowed: Tensor, xy: Tensor, real: Tensor, options: DistillationOptions
) -> Terms:
    """How far (B, H, W) logits are from a target, whatever constant is added to them, and their tops from its tops.

    Args:
        allowed: (B, H, W) bool, where the target is known.
        xy: (B, N, 2) the target's keypoints, of which ``real`` are none that only fill up.
    """
    pixels = xy.round().long().clamp(min=0).minimum(xy.new_tensor([logits.shape[2] - 1, logits.shape[1] - 1]).long())
    weights = (options.elsewhere + (1 - options.elsewhere) * _around(pixels, real, logits)) * allowed
    off = _bounded(logits, allowed) - _bounded(target, allowed)
    off = off - (weights * off).sum(dim=(1, 2), keepdim=True) / weights.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    distances = (peaks(logits, pixels) - xy).norm(dim=2)  # (B, N)
    near = real & (distances.detach() < FARTHEST)
    return {
        "logits": Term((weights * off.square()).sum(), weights.sum().detach()),
        "places": Term(torch.where(near, distances, 0.0).sum(), near.sum().to(distances), options.places),
    }


def _bounded(logits: Tensor, allowed: Tensor) -> Tensor:
    """(B, H, W) logits less their view's highest, none lower than :data:`LOWEST`."""
    top = logits.detach().masked_fill(~allowed, -math.inf).amax(dim=(1, 2), keepdim=True)
    return (logits - torch.where(top.isfinite(), top, 0.0)).clamp(min=LOWEST)


def _around(pixels: Tensor, real: Tensor, like: Tensor) -> Tensor:
    """(B, H, W) 1 in the 5 x 5 pixels around each real one of (B, N, 2) whole pixels, else 0."""
    width = like.shape[2]
    flat = pixels[..., 1] * width + pixels[..., 0]
    marked = torch.zeros_like(like).flatten(1).scatter_reduce(1, flat, real.to(like), "amax").view_as(like)
    return F.max_pool2d(marked[:, None], 5, stride=1, padding=2)[:, 0]


# Rotations of square maps ---------------------------------------------------------------------------------------------


def rotate_maps(maps: Tensor, angles: Tensor) -> Tensor:
    """(B, C, S, S) maps rotated about their middle by (B,) radians counter-clockwise; what comes in from outside is the
    nearest that is known."""
    if maps.shape[2] != maps.shape[3]:
        raise ValueError(f"only square maps are rotated in place, got {tuple(maps.shape[2:])}")
    with torch.autocast(maps.device.type, enabled=False):  # in half precision a grid is a third of a pixel off
        maps = full_precision(maps)
        back = F.pad(_rotations(-angles).to(maps), (0, 1))  # (B, 2, 3), from where a pixel is to where it came from
        grid = F.affine_grid(back, list(maps.shape), align_corners=False)
        return F.grid_sample(maps, grid, mode="bicubic", padding_mode="border", align_corners=False)


def rotate_points(xy: Tensor, angles: Tensor, maps: Tensor) -> Tensor:
    """Where (B, N, 2) pixels of (B, ..., S, S) maps are after :func:`rotate_maps`."""
    middle = (maps.shape[-1] - 1) / 2
    with torch.autocast(xy.device.type, enabled=False):
        return (xy - middle) @ _rotations(angles).to(xy).mT + middle


def _rotations(angles: Tensor) -> Tensor:
    """(B, 2, 2) of (B,) radians, as :func:`steerers.geometry.rotation`."""
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([cosines, sines, -sines, cosines], dim=1).view(-1, 2, 2)


def _inside(xy: Tensor, maps: Tensor, margin: float) -> Tensor:
    """(B, N) bool: which of (B, N, 2) pixels are in (..., S, S) maps, as far from the edge."""
    return ((xy >= margin) & (xy <= maps.shape[-1] - 1 - margin)).all(dim=2)
