"""Rotation-consistent keypoints without a descriptor: both views choose together what the keypoints are.

The objective here is this package's own, for photographs; DeDoDe's is in :mod:`.dedode_keypoints`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.datasets.pairs import PairBatch, Warp, check_options, correspondences, covered
from steerers.geometry import to_normalised
from steerers.models.base import LogitDetector
from steerers.models.sampling import Chosen, KeypointSampling, choose_keypoints, peaks, windows
from steerers.training.objectives import Measures, Objective, Real, Term, Terms
from steerers.training.objectives.dedode_keypoints import DedodeOptions, dedode_terms


@dataclass(frozen=True)
class KeypointOptions:
    """The detector's objective.

    With ``corners`` and ``none`` as prior it is this package's own and needs nothing but photographs. Both views'
    log-probabilities and the prior are added; their best pixels are the targets, whose cross entropy in both views is
    minimised. Corners (Shi and Tomasi's) start it and fade, near targets are suppressed as in DeDoDe v2 (Edstedt et
    al., CVPRW 2024), and sub-pixel keypoints are pulled together as in ALIKE (Zhao et al., 2022).

    A target of whole pixels teaches keypoints to lie on them. With ``sigma`` it is a Gaussian about the top of the sum,
    between pixels: its logarithm is a paraboloid, so that a network that has learnt it puts the top of its own where
    the target is (``peaks`` of :mod:`steerers.models.sampling`).

    The best pixels of a sum are also those along a strong edge, each as good as its neighbour: found again where both
    views are of one photograph, not where they are of two. With ``targets = "repeated"`` the targets are what both
    views found on their own at the same place. What only one of them found is none, and along an edge few are found
    again, by luck, so that edges lose to corners and blobs, however faint these are.

    What is not among the best of a view is never a target, and so stays where it is. With ``tried`` other peaks of the
    logits are tried beside the best: those where the other view has one of its best, which are targets, too, and others
    that both views have, which are described and rewarded where they match (``reliability``).

    With ``sfm``, points of the reconstruction, it is DeDoDe's (:mod:`.dedode_keypoints`), whose options are in
    ``dedode``; of those here only ``num_keypoints`` and ``radius`` apply then.

    Views of one photograph teach that a place is found again, not that it is worth finding: grass, water and people are
    as repeatable as a building. Pairs of a reconstruction with depth maps can tell. What of their photographs no other
    photograph confirms is clutter, and ``clutter`` teaches that it has no keypoints, which is what DeDoDe's term of
    matchability is for, too.

    Attributes:
        targets: ``"joint"``, the best pixels of the sum, or ``"repeated"``, keypoints that both views found within
            ``reprojection_radius`` of each other, half way between. These have no prior, and ``area``, ``known_area``,
            ``most`` and ``suppress`` are not for them: there are as many as are repeated.
        tried: how many other peaks are tried in each view beside the best, for ``"repeated"`` alone.
        area: pixels of the common part for each target.
        known_area: the same of pairs whose warp is known by depth maps, and so in a part of what both views see; 0 is
            ``area``.
        clutter: in views of a reconstruction with depth maps, what is at least so many pixels from any known depth
            counts as a wrong place for a keypoint, as what lies outside of a photograph does; with 0 it is not judged.
        most: targets a pair.
        suppress: side of the window in which only the best pixel may be a target.
        sigma: standard deviation of a target, in pixels of each view; with 0 a target is a whole pixel.
        prior_weight: of the logarithm of the corners.
        prior_until: fraction of the run after which ``corners`` has faded.
        reprojection: weight of the distance between keypoints that should be one.
        reprojection_radius: in pixels; keypoints that are farther apart are not one thing, and not pulled together.
        reliability: weight of the reward of keypoints whose descriptions match well, where both are trained together:
            the probability of the match less its mean, as in DISK (Tyszkiewicz et al., 2020).
        margin: pixels from the edge of a photograph within which nothing is a keypoint: that both views show the edge
            makes it repeatable, but it is not part of the scene.
        num_keypoints: of a detector, in each view: those whose repeatability is measured, and that are pulled together.
        radius: in pixels, within which a keypoint is repeated.
        dedode: for the prior ``sfm`` alone.
    """

    targets: Literal["joint", "repeated"] = "joint"
    tried: int = 0
    area: float = 220.0
    known_area: float = 0.0
    clutter: int = 0
    most: int = 512
    suppress: int = 5
    sigma: float = 0.0
    prior: Literal["corners", "sfm", "none"] = "corners"
    prior_weight: float = 1.0
    prior_until: float = 0.4
    reprojection: float = 0.2
    reprojection_radius: float = 3.0
    reliability: float = 0.0
    margin: int = 0
    num_keypoints: int = 512
    radius: float = 3.0
    dedode: DedodeOptions = field(default_factory=DedodeOptions)

    def __post_init__(self) -> None:
        weights = ("prior_weight", "reprojection", "reliability")
        check_options(self, "be odd and positive (1 is off)", lambda value: value > 0 and value % 2 == 1, "suppress")
        sizes = ("area", "most", "num_keypoints", "radius", "reprojection_radius")
        check_options(self, "be positive", lambda value: value > 0, *sizes)
        least = ("tried", "margin", "sigma", "known_area", "clutter", *weights)
        check_options(self, "not be negative", lambda value: value >= 0, *least)
        if self.prior != "sfm" and self.dedode != DedodeOptions():
            raise ValueError(f"dedode is DeDoDe's objective, of prior 'sfm': it does not apply to {self.prior!r}")
        if self.prior == "sfm":
            reason = "DeDoDe's objective (prior 'sfm'): it has dedode.targets, dedode.splat and dedode.matchability"
            self._refuse(_OURS, reason)
        elif self.targets == "repeated":
            if self.prior != "none":
                raise ValueError(
                    "targets 'repeated' are what views find on their own: set keypoints.prior to 'none', and start "
                    "from a network that finds keypoints (model.weights)"
                )
            self._refuse(_OF_JOINT, "targets 'repeated', which are as many as are found by both views")
        else:
            self._refuse(("tried",), "targets 'joint', which are pixels of a sum: it is for 'repeated'")

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        changed = [name for name in names if getattr(self, name) != getattr(KeypointOptions, name)]
        if changed:
            raise ValueError(f"{', '.join(changed)} {'does' if len(changed) == 1 else 'do'} not apply to {reason}")


class Found(NamedTuple):
    """Keypoints that the two views of each pair found on their own."""

    xy0: Tensor  # (B, N, 2) pixels; the best first, and then what is only tried
    xy1: Tensor  # (B, M, 2)
    real: Real
    repeated: Tensor  # (K, 3) indices (pair, first, second), of one place in both views
    best: int
    """How many come first in either view that are its best."""

    @classmethod
    def of(cls, xy0: Tensor, xy1: Tensor, real: Real, batch: PairBatch, radius: float) -> Self:
        """All of them the best; repeated is what lies within ``radius`` pixels of what the other view found."""
        repeated = correspondences(xy0.detach(), xy1.detach(), batch.warp, radius, *real)
        return cls(xy0, xy1, real, repeated, max(xy0.shape[1], xy1.shape[1]))


POOL = 4
"""Times as many peaks as are tried, of which they are taken."""

TELLING = 0.05
"""The fraction of a view whose depth must be known before the rest is taken for clutter."""

_OF_JOINT = ("area", "known_area", "most", "suppress", "prior_weight", "prior_until")
_OF_PLACES = ("sigma", "reprojection", "reprojection_radius", "margin")
_OURS = ("targets", "tried", *_OF_JOINT, "clutter", *_OF_PLACES, "reliability")


def without_margin(batch: PairBatch, margin: int) -> PairBatch:
    """The batch with masks that end ``margin`` pixels before the photographs do; the views' own edges stay."""
    if margin == 0:
        return batch
    masks0, masks1 = (
        F.max_pool2d((~masks).float()[:, None], 2 * margin + 1, stride=1, padding=margin)[:, 0] == 0
        for masks in (batch.masks0, batch.masks1)
    )
    return replace(batch, masks0=masks0, masks1=masks1)


def keypoint_terms(
    logits0: Tensor, logits1: Tensor, batch: PairBatch, options: KeypointOptions, progress: float, found: Found
) -> Terms:
    """Cross entropy of both views' keypoints to the targets that they choose together; ``found`` is what each has."""
    seen0, seen1 = (batch.warp_pixels(side)[1] for side in (0, 1))
    # What one view alone sees is not judged; what lies outside of a photograph is never a keypoint, nor is clutter.
    wrong0, wrong1 = wrong_places(batch, options.clutter)
    log0 = logits0.float() - _log_sum(logits0, seen0 | wrong0)
    log1 = logits1.float() - _log_sum(logits1, seen1 | wrong1)
    if options.targets == "repeated":
        first, second, real = repeated_targets(found, batch)
    else:
        first, second, real = _joint_targets(log0, log1, batch, options, progress)
    each = _expected(log0, first, options.sigma) + _expected(log1, second, options.sigma)
    total = -torch.where(real, each, 0.0).sum() + 0.0 * (logits0.sum() + logits1.sum())
    return {"keypoints": Term(total, real.sum().to(total))}


@torch.no_grad()
def repeated_targets(found: Found, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
    """What both views found on their own, one of them among its best, half way between the two places in each view.

    Returns:
        (B, N, 2) pixels of the first views and of the second, and (B, N) bool, which of the N were repeated.
    """
    xy0, xy1, real, matches, best = found
    pair, i, j = matches[(matches[:, 1] < best) | (matches[:, 2] < best)].unbind(dim=1)
    there, here = batch.warp.forward(xy0)[0], batch.warp.backward(xy1)[0]
    repeated, first, second = torch.zeros_like(real[0]), xy0.clone(), there.clone()
    repeated[pair, i] = True
    first[pair, i] = (xy0[pair, i] + here[pair, j]) / 2
    second[pair, i] = (there[pair, i] + xy1[pair, j]) / 2
    return first, second, repeated


@torch.no_grad()
def _joint_targets(
    log0: Tensor, log1: Tensor, batch: PairBatch, options: KeypointOptions, progress: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The best pixels of the sum of both views' (B, H, W) log-probabilities, as :func:`repeated_targets` gives them."""
    moved0, seen0 = batch.warp_pixels(0)
    area = options.area if batch.known is None else options.known_area or options.area
    prior0, prior1 = _priors(batch, options, progress)
    moved_log1 = look_up(log1 + prior1, moved0).view_as(log0)
    pixels, real = joint_targets(log0 + prior0, moved_log1, seen0, options.most, options.suppress)
    xy = peaks(log0 + prior0 + moved_log1, pixels) if options.sigma > 0 else pixels.float()
    allowed = (seen0.flatten(1).sum(dim=1) / area).ceil()  # (B,)
    real = real & (torch.arange(xy.shape[1], device=xy.device) < allowed[:, None])
    there, seen = batch.warp.forward(xy)
    return xy, there, real & seen


@torch.no_grad()
def wrong_places(batch: PairBatch, clutter: int) -> tuple[Tensor, Tensor]:
    """(B, S, S) bool of both views: where no keypoint should be, outside of the photograph or in clutter.

    A view with less than :data:`TELLING` of known depth tells nothing of what is clutter in it: it shows the scene from
    where no other photograph does.
    """
    outside0, outside1 = ~batch.masks0, ~batch.masks1
    if clutter == 0 or batch.known is None:
        return outside0, outside1
    near0, near1 = (
        F.max_pool2d(known.float()[:, None], 2 * clutter - 1, stride=1, padding=clutter - 1)[:, 0] > 0
        for known in batch.known
    )
    told0, told1 = (known.flatten(1).float().mean(dim=1).view(-1, 1, 1) >= TELLING for known in batch.known)
    return outside0 | (told0 & ~near0), outside1 | (told1 & ~near1)


def _expected(log: Tensor, xy: Tensor, sigma: float) -> Tensor:
    """(B, N) mean of (B, H, W) log-probabilities over Gaussians about (B, N, 2) places; see :class:`KeypointOptions`.

    For NaN, as :func:`look_up`, it is any value.
    """
    if sigma == 0:
        return look_up(log, xy)
    radius = math.ceil(2.5 * sigma)
    limits = xy.new_tensor([log.shape[2] - 1, log.shape[1] - 1])
    xy = xy.nan_to_num().clamp(min=0).minimum(limits)
    pixels = xy.round().long()
    padded = F.pad(log[:, None], (radius,) * 4, mode="replicate")[:, 0]
    around, offsets = windows(padded, pixels, radius)  # (B, N, S) and (S, 2)
    squared = (pixels[:, :, None] + offsets - xy[:, :, None]).square().sum(dim=3)
    return ((-squared / (2 * sigma**2)).softmax(dim=2) * around).sum(dim=2)


def _log_sum(logits: Tensor, counted: Tensor) -> Tensor:
    """(B, 1, 1) logarithm of the sum of exponentials over the pixels that are counted."""
    summed = logits.float().masked_fill(~counted, -math.inf).flatten(1).logsumexp(dim=1)
    return torch.where(summed.isfinite(), summed, 0.0).view(-1, 1, 1)


def _priors(batch: PairBatch, options: KeypointOptions, progress: float) -> tuple[Tensor, Tensor]:
    """What is added to the log-probabilities of both views."""
    weight = options.prior_weight * max(0.0, 1 - progress / max(options.prior_until, 1e-9))
    if options.prior == "none" or weight == 0:
        return torch.zeros(()).to(batch.images0), torch.zeros(()).to(batch.images1)
    corners0, corners1 = (corner_response(images) for images in (batch.images0, batch.images1))
    return weight * (corners0 + 1e-6).log(), weight * (corners1 + 1e-6).log()


def reprojection_terms(found: Found, batch: PairBatch, weight: float) -> Terms:
    """How far keypoints of the two views that should be one point are apart."""
    each = reprojection_error(found.xy0, found.xy1, found.repeated, batch.warp)
    nothing = 0.0 * (found.xy0.sum() + found.xy1.sum())
    return {"reprojection": Term(each.sum() + nothing, each.new_full((), len(each)), weight)}


@torch.no_grad()
def repeatability(xy0: Tensor, xy1: Tensor, batch: PairBatch, real: Real, radius: float) -> tuple[float, float]:
    """(Found again, all that could be) of the first views' keypoints."""
    moved, seen = batch.warp.forward(xy0)
    seen = seen & real[0] & covered(batch.masks1, moved)
    distances = torch.cdist(moved.nan_to_num(), xy1).masked_fill(~real[1][:, None], math.inf)
    found = (distances.amin(dim=2) <= radius) & seen
    return float(found.sum()), float(seen.sum())


def find_keypoints(
    logits: tuple[Tensor, Tensor], batch: PairBatch, count: int, options: KeypointOptions, sampling: KeypointSampling
) -> Found:
    """The ``count`` best keypoints of (B, H, W) logits of both views, and what is tried beside them."""
    peaked, radius = count + POOL * options.tried, options.reprojection_radius
    first, second = (
        choose_keypoints(own, peaked, masks, sampling)
        for own, masks in zip(logits, (batch.masks0, batch.masks1), strict=True)
    )
    found = Found.of(first.xy, second.xy, (first.real, second.real), batch, radius)
    if not options.tried:
        return found
    (xy0, real0), (xy1, real1) = _with_tried(first, second, found.repeated, count, options.tried)
    return Found.of(xy0, xy1, (real0, real1), batch, radius)._replace(best=count)


def _with_tried(
    first: Chosen, second: Chosen, repeated: Tensor, best: int, tried: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Of both views' peaks the best and so many others: those that the other view has among its best, then those that
    both have, the same in both views, then any. Which is as good as drawn: it follows from where they lie."""
    pair, i, j = repeated.unbind(dim=1)
    drawn = _scattered(first.xy)[pair, i]  # (K,)
    kept = []
    for chosen, own, other in ((first, i, j), (second, j, i)):
        worth = _scattered(chosen.xy).masked_fill(~chosen.real, -1.0)  # (B, P)
        worth[pair, own] = drawn + torch.where(other < best, 2.0, 1.0)
        worth[:, :best] = torch.arange(best + 3, 3, -1).to(worth)
        index = worth.topk(min(best + tried, worth.shape[1])).indices
        xy = chosen.xy.gather(1, index[..., None].expand(-1, -1, 2))
        kept.append((xy, chosen.real.gather(1, index)))
    return kept[0], kept[1]


@torch.no_grad()
def _scattered(xy: Tensor) -> Tensor:
    """(B, N) numbers in [0, 1) of (B, N, 2) places, without any order: another pixel, another number."""
    x, y = xy.nan_to_num().round().long().unbind(dim=-1)
    return ((x * 73_856_093 ^ y * 19_349_663) % 999_983).to(xy) / 999_983


class DetectorObjective(Objective):
    """Keypoints that both views find, whatever their rotations, without a descriptor."""

    def __init__(self, network: LogitDetector, options: KeypointOptions) -> None:
        super().__init__()
        self.network, self.steerer, self.options = network, None, options
        self.sampling = KeypointSampling(coverage=False, nms_size=5, subpixel="peak", border=4)

    def networks(self) -> Mapping[str, nn.Module]:
        return {"detector": self.network}

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        batch = without_margin(batch, self.options.margin)
        logits0, logits1 = self._logits(batch)
        with torch.autocast(logits0.device.type, enabled=False):
            if self.options.prior == "sfm":
                return dedode_terms(logits0, logits1, batch, self.options.dedode)
            found = self._find(logits0, logits1, batch)
            terms = keypoint_terms(logits0, logits1, batch, self.options, progress, found)
            if self.options.reprojection > 0:
                terms |= reprojection_terms(found, batch, self.options.reprojection)
        return terms

    @torch.no_grad()
    def measure(self, batch: PairBatch) -> Measures:
        batch = without_margin(batch, self.options.margin)
        logits0, logits1 = self._logits(batch)
        with torch.autocast(logits0.device.type, enabled=False):
            found = self._find(logits0, logits1, batch, tried=0)
            if self.options.prior == "sfm":
                joint = dedode_terms(logits0, logits1, batch, self.options.dedode)["keypoints"]
                nll = (float(joint.total), 2.0 * len(batch))  # of an image, whatever the size of the batch
            else:
                term = keypoint_terms(logits0, logits1, batch, self.options, 1.0, found)["keypoints"]
                nll = (float(term.total), float(term.count))
            again = repeatability(found.xy0, found.xy1, batch, found.real, self.options.radius)
        return {"nll": nll, "repeatability": again}

    def _find(self, logits0: Tensor, logits1: Tensor, batch: PairBatch, **changes: Any) -> Found:
        options = replace(self.options, **changes)
        return find_keypoints((logits0, logits1), batch, options.num_keypoints, options, self.sampling)

    def _logits(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        if not batch.dense:
            raise ValueError("a detector needs pairs whose warp is known everywhere: photographs, or depth maps")
        logits0, logits1 = self.network.logits(torch.cat([batch.images0, batch.images1])).chunk(2)
        return logits0, logits1


# Maps and points ------------------------------------------------------------------------------------------------------


def look_up(maps: Tensor, xy: Tensor) -> Tensor:
    """(B, N) bilinear values of (B, H, W) maps at (B, N, 2) pixels; the nearest value beyond the border.

    For NaN, which a warp gives where it is not defined, it is any value: NaN in a grid crashes the backward pass.
    """
    size = (int(maps.shape[2]), int(maps.shape[1]))
    grid = to_normalised(xy.to(maps.dtype).nan_to_num(), size)[:, None]  # (B, 1, N, 2)
    sampled = F.grid_sample(maps[:, None], grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled[:, 0, 0]


def joint_targets(
    log0: Tensor, moved_log1: Tensor, allowed: Tensor, count: int, suppress: int = 1
) -> tuple[Tensor, Tensor]:
    """The pixels that both views together hold most likely to be keypoints.

    Args:
        log0: (B, H, W) log-probabilities of the first views, plus whatever prior; ``moved_log1`` those of the second
            views at the same places.
        allowed: (B, H, W) bool, where a target may be: what both views see.
        count: targets a pair.
        suppress: side of the window in which only the best pixel may be a target; 1 is off.

    Returns:
        (B, count, 2) whole pixels (x, y), and (B, count) bool, False where a pair has fewer.
    """
    joint = (log0 + moved_log1).masked_fill(~allowed, -math.inf)
    if suppress > 1:
        best = F.max_pool2d(joint[:, None], suppress, stride=1, padding=suppress // 2)[:, 0]
        joint = joint.masked_fill(joint < best, -math.inf)
    chosen = joint.flatten(1).topk(min(count, joint[0].numel()))
    width = joint.shape[2]
    xy = torch.stack([chosen.indices % width, chosen.indices // width], dim=-1)
    return xy, chosen.values > -math.inf


def reprojection_error(xy0: Tensor, xy1: Tensor, matches: Tensor, warp: Warp) -> Tensor:
    """(K,) distances in pixels, in both views and averaged, between keypoints that should be one point.

    Args:
        xy0: (B, N, 2) keypoints; ``xy1`` (B, M, 2).
        matches: (K, 3) indices (pair, first, second) of keypoints that are near one another under the warp.
    """
    pair, i, j = matches.unbind(dim=1)
    first, second = (_only(xy, pair, index) for xy, index in ((xy0, i), (xy1, j)))
    ahead = (warp.forward(first)[0][pair, i] - second[pair, j]).norm(dim=1)
    back = (warp.backward(second)[0][pair, j] - first[pair, i]).norm(dim=1)
    error: Tensor = (ahead + back) / 2
    return error


def _only(xy: Tensor, pair: Tensor, index: Tensor) -> Tensor:
    """``xy`` with gradients for the chosen points alone: where a warp is not defined, its derivative is NaN."""
    chosen = torch.zeros_like(xy[..., :1], dtype=torch.bool)  # (B, N, 1)
    chosen[pair, index] = True
    return torch.where(chosen, xy, xy.detach())


def corner_response(images: Tensor, sigma: float = 1.5) -> Tensor:
    """(B, H, W) strength of corners: the smaller eigenvalue of the structure tensor, of (B, 3, H, W) images.

    It does not depend on the rotation of the image (Shi and Tomasi, 1994), which makes it a prior for keypoints.
    """
    with torch.autocast(images.device.type, enabled=False):  # the difference of nearly equal numbers
        xx, yy, xy = _structure_tensor(images, sigma).unbind(dim=1)
        return ((xx + yy) - ((xx - yy).square() + 4 * xy.square()).sqrt()) / 2


def _structure_tensor(images: Tensor, sigma: float) -> Tensor:
    """(B, 3, H, W) squares and product of the derivatives by x and y, smoothed."""
    grey = images.mean(dim=1, keepdim=True)
    kernel = images.new_tensor([[-0.5, 0.0, 0.5]]).view(1, 1, 1, 3)
    dx = F.conv2d(F.pad(grey, (1, 1, 0, 0), mode="replicate"), kernel)
    dy = F.conv2d(F.pad(grey, (0, 0, 1, 1), mode="replicate"), kernel.mT)
    products = torch.cat([dx * dx, dy * dy, dx * dy], dim=1)  # (B, 3, H, W)
    radius = math.ceil(2 * sigma)
    taps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    taps = (-0.5 * (taps / sigma) ** 2).exp()
    taps = (taps / taps.sum()).expand(3, 1, 1, -1)
    products = F.conv2d(F.pad(products, (radius, radius, 0, 0), mode="replicate"), taps, groups=3)
    return F.conv2d(F.pad(products, (0, 0, radius, radius), mode="replicate"), taps.mT, groups=3)
