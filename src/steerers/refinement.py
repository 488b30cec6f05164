"""Matches to a fraction of a pixel: the patches around two matched keypoints are registered.

The rotation of a match is known, so that both patches can be laid upright to each other. What else differs, scale and
shear, is read from neighbouring matches; then Gauss-Newton steps move the patch of one image until it equals that of
the other, but for brightness and contrast. The coarser image, in which the scene has fewer pixels, gives the grid of
the patches, and the finer one is reduced to its resolution first. Keypoints of image 0 stay, those of image 1 move.

What cannot be told stays as it is: patches that are flat or change along one direction only, that repeat nearby, that
reach over the border, or that do not become alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers._parallel import spread_on
from steerers.geometry import orientation_change, transform_points
from steerers.images.load import LUMA, Image
from steerers.resolutions import BLUR, FINE, Level, Resolutions

try:  # the seam to registration by one kernel; without that room it is done by operators
    from steerers.accel import registration as accel
except ImportError:
    accel = None  # type: ignore[assignment]

Form = Literal["apart", "together", "fused"]
"""How matches are registered: by resolutions, in chunks; all at once, in one image of all resolutions; or all at once
by one kernel, which needs Triton, float32 and no patches of a radius beyond 15."""
CHUNK = 256
"""Matches that a CPU registers at once: enough for large operators, few enough for all threads."""
COARSEST = 8
"""Half octaves by which the finer image is reduced, at most: what differs more in scale is left alone."""
LEVELS = COARSEST + 1
"""Resolutions of an image."""


@dataclass(frozen=True, kw_only=True)
class RefineOptions:
    """How matches are refined, in pixels of the coarser image.

    Attributes:
        radius: of the patches: they have 2 radius + 1 pixels a side, weighted by a Gaussian of ``radius / 2``.
        iterations: most Gauss-Newton steps.
        max_shift: a place that would move farther stays.
        min_correlation: least correlation of the two patches at the end.
        max_deviation: largest standard deviation, in the least certain direction, of a place that is believed.
        max_repeat: a place stays if there is another, two to four pixels beside, that correlates as well but for this
            factor and is nearly as near to where the search began.
        neighbours: matches nearby that tell the local scale and shear.
    """

    radius: int = 7
    iterations: int = 12
    max_shift: float = 2.5
    min_correlation: float = 0.6
    max_deviation: float = 0.3
    max_repeat: float = 0.95
    neighbours: int = 16

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{option.name} must be a positive number, got {value!r}")
        if self.radius < 2:
            raise ValueError(f"radius must be at least 2, got {self.radius}")


class Refined(NamedTuple):
    """Where keypoints of image 1 are, after refinement."""

    keypoints1: Tensor  # (K, 2)
    covariances: Tensor  # (K, 2, 2) squared pixels of image 1; infinite where a place was left alone
    linear: Tensor  # (K, 2, 2) from displacements in image 0 to displacements in image 1, around each
    moved: Tensor  # (K,) bool


class RefinedKeypoints(NamedTuple):
    """:class:`Refined` in stored pixels."""

    keypoints1: NDArray[np.float32]  # (K, 2)
    covariances: NDArray[np.float32]  # (K, 2, 2)
    linear: NDArray[np.float32]  # (K, 2, 2)

    @property
    def told(self) -> NDArray[np.bool_]:
        """(K,) which were registered; the others stay where they were."""
        return np.asarray(np.isfinite(self.covariances).all(axis=(1, 2)))


class Shown(NamedTuple):
    """An image as the model saw it, ready to be registered with others, and its way back to stored pixels."""

    resolutions: Resolutions
    to_stored: Tensor  # (3, 3)
    orientation: Tensor  # see Image

    @classmethod
    def of(cls, image: Image, device: torch.device | str = "cpu") -> Shown:
        """The grey image, on a device."""
        grey = torch.einsum("chw,c->hw", image.tensor, torch.tensor(LUMA).to(image.tensor)).to(device)
        mask = None if image.mask is None else image.mask.to(device)
        return cls(Resolutions(grey, mask), image.to_stored.to(torch.float64), image.orientation)


def refine_keypoints(
    image0: Shown,
    image1: Shown,
    keypoints0: NDArray[np.float32],
    keypoints1: NDArray[np.float32],
    degrees: NDArray[np.float32] | None,
    *,
    options: RefineOptions | None = None,
) -> RefinedKeypoints:
    """:func:`refine_places` in stored pixels and degrees, whatever was done to the images on the way to the model."""
    sides = ((image0, keypoints0), (image1, keypoints1))
    shown0, shown1 = (
        transform_points(torch.linalg.inv(image.to_stored), torch.from_numpy(xy).double()).float()
        for image, xy in sides
    )
    angles = _shown_rotations(degrees, image0, image1)
    found = refine_places(image0.resolutions, image1.resolutions, shown0, shown1, angles, options=options)
    found = Refined(*(part.cpu() for part in found))
    out, back = image1.to_stored[:2, :2], torch.linalg.inv(image0.to_stored[:2, :2])
    moved = found.moved.numpy()
    places = transform_points(image1.to_stored, found.keypoints1.double()).float().numpy()
    covariances = torch.where(found.moved[:, None, None], found.covariances.double(), 0.0)
    return RefinedKeypoints(
        np.where(moved[:, None], places, keypoints1),
        np.where(moved[:, None, None], (out @ covariances @ out.mT).float().numpy(), np.float32(np.inf)),
        (out @ found.linear.double() @ back).float().numpy(),
    )


def _shown_rotations(degrees: NDArray[np.float32] | None, image0: Shown, image1: Shown) -> Tensor | None:
    """Rotations between stored images as rotations between what the model saw, in radians; ``None`` if unknown."""
    change = orientation_change(image0.orientation, image1.orientation)
    if degrees is None or change is None:
        return None
    base, sense = change
    return sense * (torch.deg2rad(torch.from_numpy(degrees)) - base)


@torch.no_grad()
def refine_places(
    image0: Tensor | Resolutions,
    image1: Tensor | Resolutions,
    keypoints0: Tensor,
    keypoints1: Tensor,
    angles: Tensor | None = None,
    *,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
    options: RefineOptions | None = None,
    form: Form | None = None,
) -> Refined:
    """Move the keypoints of image 1 to where the keypoints of image 0 are seen.

    Args:
        image0: (H, W) grey, float32 or float64, in which all is computed; ``image1`` likewise, of any size. What is
            registered with many others is given as its :class:`Resolutions`, which has its mask.
        keypoints0: (K, 2) pixels; ``keypoints1`` likewise.
        angles: (K,) radians, the counter-clockwise rotation of every match from image 0 to image 1; without, it is read
            from where neighbouring matches lie.
        mask0: (H, W), true where the image can be relied on; ``mask1`` likewise.
        options: see :class:`RefineOptions`.
        form: see :data:`Form`; all find the same. By default ``"apart"`` on a CPU, and on a GPU, where every launch
            costs, ``"fused"`` or where that cannot be ``"together"``.

    Returns:
        The places of image 1 with their covariances.

    Raises:
        ValueError: for the form ``"fused"``, where it cannot run.
    """
    options = options or RefineOptions()
    given = ((image0, mask0), (image1, mask1))
    views = [image if isinstance(image, Resolutions) else Resolutions(image, mask) for image, mask in given]
    xy0, xy1 = keypoints0.to(views[0].image), keypoints1.to(views[0].image)
    form = form or _fitting_form(views, options)
    if form == "fused":
        reason = reason_against_fusing(views, options)
        if reason is not None:
            raise ValueError(f"matches cannot be registered by one kernel: {reason}")
        if len(xy0):
            return _refine_fused(views, xy0, xy1, angles, options)
    maps = local_maps(xy0, xy1, angles, options.neighbours) if len(xy0) else xy0.new_zeros(0, 2, 2)
    everything = Refined(
        xy1.clone(), xy1.new_full((len(xy1), 2, 2), torch.inf), maps.clone(), xy1.new_zeros(len(xy1)).bool()
    )
    groups = _groups(views, maps, together=form == "together")

    def register(group: _Group) -> Refined:
        ends = _Ends.of(xy0[group.job], xy1[group.job], maps[group.job])
        patches = _Patches(group.fixed, ends.own, options.radius)
        return _register(patches, group.moving, ends.other, ends.linear, options).of_image1(ends)

    for group, found in zip(groups, spread_on(xy0.device, register, groups), strict=True):
        for whole, part in zip(everything, found, strict=True):
            whole[group.job] = part
    return everything


def _fitting_form(views: Sequence[Resolutions], options: RefineOptions) -> Form:
    """The fastest that there is on the device of images."""
    if views[0].image.device.type == "cpu":
        return "apart"
    return "fused" if reason_against_fusing(views, options) is None else "together"


def reason_against_fusing(views: Sequence[Resolutions], options: RefineOptions | None = None) -> str | None:
    """Why matches of images cannot be registered by one kernel, or ``None`` if they can."""
    radius = (options or RefineOptions()).radius
    reasons = (
        "steerers.accel is missing" if accel is None else accel.reason_against(view.image, radius) for view in views
    )
    return next(filter(None, reasons), None)


class _Ends(NamedTuple):
    """Matches as patches that stay and places that are sought: the template is of the coarser image."""

    xy0: Tensor  # (K, 2)
    xy1: Tensor  # (K, 2)
    swapped: Tensor  # (K,) whether the template is of image 1, in which case the keypoint of image 0 is sought
    own: Tensor  # (K, 2) centres of the templates
    other: Tensor  # (K, 2) where they are about, in the other image
    linear: Tensor  # (K, 2, 2) from displacements of the template to displacements there

    @classmethod
    def of(cls, xy0: Tensor, xy1: Tensor, maps: Tensor) -> _Ends:
        """By (K, 2, 2) maps from image 0 to image 1."""
        swapped = _determinant(maps) < 1
        own, other = (torch.where(swapped[:, None], *ends) for ends in ((xy1, xy0), (xy0, xy1)))
        return cls(xy0, xy1, swapped, own, other, torch.where(swapped[:, None, None], _inverse(maps), maps))


class _Group(NamedTuple):
    """Matches that are registered together: (k,) indices, and the resolutions that their patches are of."""

    job: Tensor
    fixed: Level
    moving: Level


def _groups(views: Sequence[Resolutions], maps: Tensor, together: bool = False) -> list[_Group]:
    """All matches but those whose scale differs too much: those of two resolutions in chunks, or all ``together``."""
    moving = _moving(maps)
    present = [kind for kind in moving.unique().tolist() if kind != _NONE]
    levels = [(views[kind < LEVELS].level(0), views[kind >= LEVELS].level(kind % LEVELS)) for kind in present]
    if together and levels:
        job = (moving != _NONE).nonzero()[:, 0]
        which = torch.bucketize(moving[job], torch.tensor(present, device=maps.device))  # (k,)
        fixed, reduced = (Level.packed(side, which) for side in zip(*levels, strict=True))
        return [_Group(job, fixed, reduced)]
    chunks = [(moving == kind).nonzero()[:, 0].split(CHUNK) for kind in present]
    return [_Group(job, *pair) for pair, jobs in zip(levels, chunks, strict=True) for job in jobs]


def _moving(maps: Tensor) -> Tensor:
    """(K,) which resolution of which image moves: the finer image is reduced to what the coarser one shows.

    Resolutions of image 0 are 0, 1, ..., by half octaves, those of image 1 follow at :data:`LEVELS`.
    """
    octaves = _determinant(maps).abs().clamp(1e-6, 1e6).log2()  # twice: (K,) of pixels of image 1 for one of image 0
    reduced = octaves.abs().round()  # half octaves by which the finer image is reduced
    moving = torch.where(octaves < 0, reduced, reduced + LEVELS)
    return torch.where(reduced <= COARSEST, moving, _NONE).long()


_NONE = -1  # for matches whose scale differs too much


# By one kernel --------------------------------------------------------------------------------------------------------


def _refine_fused(
    views: Sequence[Resolutions], xy0: Tensor, xy1: Tensor, angles: Tensor | None, options: RefineOptions
) -> Refined:
    """:func:`refine_places` of matches of all scales by one kernel, with what comes before and after recorded.

    A GPU is waited for once: to know which resolutions are needed.
    """
    known = [] if angles is None else [angles.to(xy0)]
    filled = [accel.filled_up(tensor) for tensor in (xy0, xy1, *known)]
    maps, moving, needed = accel.run(_maps_and_levels, *filled, neighbours=options.neighbours)
    sources = [
        _source(views[index // LEVELS].level(index % LEVELS)) if index % LEVELS == 0 or used else None
        for index, used in enumerate(needed.tolist())
    ]
    found = accel.run(_register_fused, *filled[:2], maps, moving, accel.table(sources, xy0.device), options=options)
    return Refined(*(part[: len(xy0)] for part in found))


def _source(level: Level) -> accel.Source:
    """As the kernel takes it."""
    values, valid = level.values[0, 0].contiguous(), None if level.valid is None else level.valid[0, 0].contiguous()
    return accel.Source(values, valid, (values.shape[1] // FINE, values.shape[0] // FINE))


def _maps_and_levels(
    xy0: Tensor, xy1: Tensor, angles: Tensor | None = None, *, neighbours: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The local maps, which resolution moves, and (2 LEVELS,) whether each is needed."""
    maps = local_maps(xy0, xy1, angles, neighbours)
    moving = _moving(maps)
    every = torch.arange(2 * LEVELS, device=maps.device)
    return maps, moving, (moving[:, None] == every).any(dim=0)


def _register_fused(
    xy0: Tensor, xy1: Tensor, maps: Tensor, moving: Tensor, table: Tensor, *, options: RefineOptions
) -> Refined:
    ends, smoothing = _Ends.of(xy0, xy1, maps), _smoothing(options.radius, xy0)
    found = accel.fit(
        ends.own,
        ends.other,
        ends.linear,
        moving,
        table,
        smoothing.mT @ smoothing,
        radius=options.radius,
        steps=options.iterations,
        damping=DAMPING,
        fine=FINE,
        reach=REACH,
        far=FAR,
        least_change=LEAST_SHARPNESS,
    )
    covariances = found.spread * _white(found.variance, options.radius)[:, None, None]
    fit = _Fit(
        found.centres, found.linear, covariances, found.slopes, found.contrast, found.seen, found.before, found.after
    )
    good, shift = _believed(fit, ends.other, ends.linear, options)
    good &= (moving != _NONE) & ~(_is_far(shift) & _rivals(found.beside, shift, options.max_repeat * fit.after))
    linear = torch.where((moving != _NONE)[:, None, None], fit.linear, ends.linear)
    return _Registered(fit.centres, linear, covariances, good).of_image1(ends)


# Local maps -----------------------------------------------------------------------------------------------------------


def local_maps(xy0: Tensor, xy1: Tensor, angles: Tensor | None, neighbours: int) -> Tensor:
    """(K, 2, 2) linear maps from displacements in image 0 to displacements in image 1, around every match.

    A neighbour is believed as far as it agrees: with the rotation of the match, with the scale that most neighbours
    have, and with the map that results. The rotation and that scale count as two neighbours do, so that the map is
    sound where there are none. Rows of NaN, in both, are nobody's neighbours.
    """
    near = _neighbours(xy0, neighbours)  # (K, M)
    d0, d1 = ((xy[near] - xy[:, None]).nan_to_num(0.0) for xy in (xy0, xy1))  # (K, M, 2)
    length0, length1 = d0.norm(dim=-1), d1.norm(dim=-1)
    known = (length0 > 1) & (length1 > 1)
    turned = torch.atan2(d0[..., 1], d0[..., 0]) - torch.atan2(d1[..., 1], d1[..., 0])  # counter-clockwise, y down
    angles = _common_direction(turned, known) if angles is None else angles.to(xy0)
    agrees = known & (torch.cos(turned - angles[:, None]) > math.cos(0.6))
    agrees &= torch.cos(angles[near] - angles[:, None]) > math.cos(0.6)
    growth = torch.where(agrees, (length1 / length0).log(), torch.nan)  # (K, M)
    overall = _median(growth.flatten()).nan_to_num(0.0)
    enough = agrees.sum(dim=1) >= 3
    growth_here = torch.where(enough, _median(growth).nan_to_num(0.0), overall)
    agrees &= (growth - growth_here[:, None]).abs() < 0.5
    cos, sin = torch.cos(angles), torch.sin(angles)
    prior = torch.stack([cos, sin, -sin, cos], dim=-1).view(-1, 2, 2) * growth_here.exp()[:, None, None]
    linear, spread = prior, (length0**2 * agrees).sum(dim=1) / agrees.sum(dim=1).clamp(min=1)
    ridge = (spread.clamp(min=1.0) * 2)[:, None, None] * torch.eye(2, dtype=xy0.dtype, device=xy0.device)
    for _ in range(3):
        misfit = (d1 - d0 @ linear.mT).norm(dim=-1)
        weight = agrees / (1 + (misfit / (2 + 0.1 * length1)) ** 2) ** 2  # (K, M)
        weighted = (d0 * weight[..., None]).mT
        linear = (d1.mT @ weighted.mT + prior @ ridge) @ _inverse(weighted @ d0 + ridge)
    sound = _determinant(linear) > 0.25 * _determinant(prior)
    return torch.where(sound[:, None, None], linear, prior)


def _neighbours(xy: Tensor, count: int) -> Tensor:
    """(K, M) indices of the points that are nearest to each, without itself where there are others."""
    count = min(count + 1, len(xy))
    parts = [torch.cdist(part, xy).topk(count, dim=1, largest=False).indices for part in xy.split(1024)]
    return torch.cat(parts)[:, min(1, count - 1) :]


def _median(values: Tensor) -> Tensor:
    """(...) of (..., M) values but NaN, the lower of two; NaN of none. PyTorch's own asks a GPU and waits for it."""
    last = (values.isfinite().sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    return values.sort(dim=-1).values.gather(-1, last // 2)[..., 0]


def _common_direction(turned: Tensor, known: Tensor) -> Tensor:
    """(K,) rotations that most of the (K, M) of neighbours agree with: the median of the densest sixth of a turn."""
    near = torch.cos(turned[:, :, None] - turned[:, None]) > math.cos(math.pi / 6)  # (K, M, M)
    best = (near & known[:, None]).sum(dim=2).masked_fill(~known, -1).argmax(dim=1)  # (K,)
    members = (near & known[:, None]).gather(1, best[:, None, None].expand(-1, 1, near.shape[2]))[:, 0]  # (K, M)
    return torch.atan2((turned.sin() * members).sum(dim=1), (turned.cos() * members).sum(dim=1))


# Registration ---------------------------------------------------------------------------------------------------------


class _Patches:
    """Patches of the image that stays: values, weights, and how the values change with the six numbers of an affine
    map."""

    def __init__(self, level: Level, centres: Tensor, radius: int) -> None:
        self.radius, self.grid = radius, _square(radius, centres)  # (P, 2)
        wide = level.at(centres[:, None] + _square(radius + 2, centres)).unflatten(1, (2 * radius + 5, -1))
        self.inside = level.inside(centres[:, None] + self.grid)  # (K, P)
        self.window = torch.exp(-0.5 * (self.grid / (radius / 2)).square().sum(dim=1))  # (P,)
        self.values = self._shifted(wide, 0, 0)  # (K, P)
        slopes = [self._slope(wide, 1, 0), self._slope(wide, 0, 1)]
        self.slopes = torch.stack(slopes, dim=-1)  # (K, P, 2)
        around = sum(self._shifted(wide, *step) for step in ((1, 0), (-1, 0), (0, 1), (0, -1)))
        self.laplacians = around - 4 * self.values  # (K, P): how the values change with the sharpness

    @staticmethod
    def _shifted(wide: Tensor, x: int, y: int) -> Tensor:
        """(K, P) the patches, so many pixels to the right and below, of (K, p + 4, p + 4) ones."""
        side = wide.shape[1] - 4
        return wide[:, 2 + y : 2 + y + side, 2 + x : 2 + x + side].flatten(1)

    def _slope(self, wide: Tensor, x: int, y: int) -> Tensor:
        """(K, P) derivatives along a direction, of fourth order: of waves of three pixels half would be missing by the
        second, and steps that are twice too long do not settle."""
        near = self._shifted(wide, x, y) - self._shifted(wide, -x, -y)
        return (8 * near - self._shifted(wide, 2 * x, 2 * y) + self._shifted(wide, -2 * x, -2 * y)) / 12


class _Registered(NamedTuple):
    """Where patches of the template are in the moving image: x there is ``centre + linear @ x`` of the template."""

    centres: Tensor  # (K, 2) pixels of the moving image
    linear: Tensor  # (K, 2, 2)
    covariances: Tensor  # (K, 2, 2) of the translation, in squared pixels of the template
    good: Tensor  # (K,) bool

    def of_image1(self, ends: _Ends) -> Refined:
        """As places of image 1; what is not good stays."""
        back, swapped = _inverse(self.linear), ends.swapped
        sought = ends.xy1 + (back @ (ends.xy0 - self.centres)[..., None])[..., 0]
        places = torch.where(swapped[:, None], sought, self.centres)
        moved = self.linear @ self.covariances @ self.linear.mT
        covariances = torch.where(swapped[:, None, None], self.covariances, moved)
        good = self.good & torch.isfinite(places).all(dim=1)
        return Refined(
            torch.where(good[:, None], places, ends.xy1),
            torch.where(good[:, None, None], covariances, torch.inf),
            torch.where(swapped[:, None, None], back, self.linear),
            good,
        )


class _Fit(NamedTuple):
    """What the steps came to, for each match; places and maps in pixels of the moving image."""

    centres: Tensor  # (K, 2)
    linear: Tensor  # (K, 2, 2)
    covariances: Tensor  # (K, 2, 2) of the translation, in squared pixels of the template
    slopes: Tensor  # (K, 2, 2) mean products of the slopes: the normal equations of the translation
    contrast: Tensor  # (K,) standard deviation of the template
    seen: Tensor  # (K,) part of the window that is in both images
    before: Tensor  # (K,) correlation of the two patches
    after: Tensor  # (K,)


def _register(patches: _Patches, level: Level, centres: Tensor, linear: Tensor, options: RefineOptions) -> _Registered:
    """Fit, and believe what can be told."""
    waits = level.top is None  # where all are taken together, nothing is asked that would have to be waited for
    fit, weight, template = _fitted(patches, level, centres, linear, options)
    good, shift = _believed(fit, centres, linear, options)
    far = _is_far(shift)
    doubtful = (good & far).nonzero()[:, 0] if waits else torch.arange(len(good), device=good.device)
    found = level.to_level(fit.centres[doubtful]), level.ratio[..., None] * fit.linear[doubtful]
    beside = _beside(patches, (weight * template)[doubtful], weight[doubtful], level, found)
    rivals = _rivals(beside, shift[doubtful], options.max_repeat * fit.after[doubtful])
    good[doubtful] &= ~(far[doubtful] & rivals)
    return _Registered(fit.centres, fit.linear, fit.covariances, good)


def _fitted(
    patches: _Patches, level: Level, centres: Tensor, linear: Tensor, options: RefineOptions
) -> tuple[_Fit, Tensor, Tensor]:
    """Gauss-Newton, inverse compositional: the steps are those of the template, so that its normal equations are
    solved once. Also (K, P) weights and normalised templates."""
    centre, linear = level.to_level(centres), level.ratio[..., None] * linear
    seen = patches.inside & level.inside(_mapped(centre, linear, patches.grid))
    weight = patches.window * seen  # (K, P)
    total = weight.sum(dim=1, keepdim=True)
    weight = weight / total.clamp(min=1e-12)
    template, contrast = _normalised(patches.values, weight)
    nuisances = (template, _sharpness(patches, template, weight))
    jacobian = _jacobian(patches, contrast, weight, nuisances)  # (K, P, 6)
    weighted = jacobian.mT * weight[:, None]  # (K, 6, P)
    normal = weighted @ jacobian
    damping = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).to(normal) * DAMPING
    damped = normal + torch.diag_embed(damping * normal.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True) + 1e-9)
    solver = torch.linalg.solve_ex(damped, weighted).result  # (K, 6, P)
    centre, linear, before = _settled(_Search(centre, linear, solver, template, weight), patches, level, options)
    values, _ = _normalised(level.at(_mapped(centre, linear, patches.grid)), weight)
    residual = values - template
    for nuisance in nuisances:
        residual = residual - nuisance * (weight * nuisance * residual).sum(dim=1, keepdim=True)
    covariances = _covariances(weighted, normal, (weight * residual.square()).sum(dim=1), options.radius)
    fit = _Fit(
        level.to_image(centre),
        linear / level.ratio[..., None],
        covariances,
        normal[:, :2, :2],
        contrast,
        total[:, 0] / patches.window.sum(),
        before,
        (weight * values * template).sum(dim=1),
    )
    return fit, weight, template


class _Search(NamedTuple):
    """Where the steps are, and what they need, for each match."""

    centre: Tensor  # (K, 2) pixels of the resolution
    linear: Tensor  # (K, 2, 2)
    solver: Tensor  # (K, 6, P) from differences of the patches to a step
    template: Tensor  # (K, P)
    weight: Tensor  # (K, P)


def _settled(search: _Search, patches: _Patches, level: Level, options: RefineOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Centres and linear maps after the last step, and (K,) the correlation before the first.

    On a CPU places that have settled are left out of further steps, which most have after a few.
    """
    centre, linear, before = search.centre, search.linear, search.weight.new_zeros(len(search.weight))
    unit, all_of = torch.eye(2).to(linear), torch.arange(len(centre), device=centre.device)
    going = all_of
    for step in range(options.iterations):
        values, _ = _normalised(level.at(_mapped(search.centre, search.linear, patches.grid)), search.weight)
        if step == 0:
            before = (search.weight * values * search.template).sum(dim=1)
        change = torch.bmm(search.solver, (values - search.template)[..., None])[..., 0]  # (k, 6)
        turned = search.linear @ _inverse(unit + change[:, 2:].view(-1, 2, 2) / options.radius)
        search = search._replace(centre=search.centre - (turned @ change[:, :2, None])[..., 0], linear=turned)
        if level.top is not None:  # nothing is asked that would have to be waited for
            centre, linear = search.centre, search.linear
            continue
        centre, linear = centre.index_copy(0, going, search.centre), linear.index_copy(0, going, search.linear)
        steps = change[:, :2].abs().amax(dim=1)
        if int((steps > SETTLED).sum()) < 0.02 * len(all_of):
            break
        moves = steps > SETTLED / 4  # what still follows is as small
        if int(moves.sum()) < FEWER * len(going):
            going, search = going[moves], _Search(*(part[moves] for part in search))
    return centre, linear, before


def _believed(fit: _Fit, centres: Tensor, linear: Tensor, options: RefineOptions) -> tuple[Tensor, Tensor]:
    """(K,) whether a place can be told, and (K, 2) where the search began, from there, in pixels of the template;
    ``centres`` and ``linear`` are those that it began with."""
    shift = (_inverse(fit.linear) @ (centres - fit.centres)[..., None])[..., 0]
    stretch = _determinant(fit.linear) / _determinant(linear)
    good = (fit.seen > MIN_SEEN) & (fit.contrast > MIN_CONTRAST) & (_eigenvalues(fit.slopes)[0] > MIN_SLOPE)
    good &= (fit.after >= options.min_correlation) & (fit.after >= fit.before) & (stretch > 0.5) & (stretch < 2)
    good &= _eigenvalues(fit.covariances)[1].sqrt() <= options.max_deviation
    return good & (shift.norm(dim=1) <= options.max_shift), shift


def _is_far(shift: Tensor) -> Tensor:
    """(K,) whether places moved so far that another may be as near."""
    far: Tensor = shift.norm(dim=1) > FAR
    return far


DAMPING = 0.3
"""Of the linear part, relative to the mean of the normal equations' diagonal: it is nearly known."""
MIN_SEEN = 0.7
"""Least part of the window that is in both images."""
MIN_CONTRAST = 1e-3
"""Least standard deviation of a patch, of values in [0, 1]."""
MIN_SLOPE = 2e-4
"""Least mean square of the slope, of a patch of variance 1, in the direction in which it changes least: what changes
less is an edge, along which a place cannot be told. A wave of 30 pixels has 0.04."""
LEAST_SHARPNESS = 1e-2
"""Least change with the sharpness, of patches of variance 1, that is one beyond brightness and contrast."""
FITTED = 9
"""Numbers that are fitted to a patch: six of the map, brightness, contrast and sharpness."""
SETTLED = 2e-3
"""Pixels: the search ends when hardly a place moves farther in a step."""
FEWER = 0.7
"""Those that settled are left out when at most this fraction still moves: to copy the others costs as well."""
FAR = 0.8
"""Pixels of the template: of what moved less, no other place is nearly as near."""
REACH = 4
"""Pixels up to which other places are looked at."""


def _normalised(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(K, P) values of weighted mean 0 and variance 1, and (K,) what they were divided by."""
    values = values - (weight * values).sum(dim=1, keepdim=True)
    contrast = (weight * values.square()).sum(dim=1).sqrt()
    return values / contrast.clamp(min=1e-9)[:, None], contrast


def _sharpness(patches: _Patches, template: Tensor, weight: Tensor) -> Tensor:
    """(K, P) how the normalised template changes with the sharpness of the image, but for brightness and contrast;
    normalised, or 0 where it changes in those alone, as waves of one length do."""
    change, contrast = _normalised(patches.laplacians, weight)
    change = change - template * (weight * template * change).sum(dim=1, keepdim=True)
    change, rest = _normalised(change, weight)
    return change * ((rest > LEAST_SHARPNESS) & (contrast > 0))[:, None]


def _jacobian(patches: _Patches, contrast: Tensor, weight: Tensor, nuisances: tuple[Tensor, ...]) -> Tensor:
    """(K, P, 6) derivatives of normalised patches by translation and by the linear part, times the radius.

    Brightness, contrast and sharpness may be anything: what looks like a change of them tells nothing.
    """
    slopes = patches.slopes / contrast.clamp(min=1e-9)[:, None, None]  # (K, P, 2)
    products = slopes[..., None] * (patches.grid / patches.radius)[:, None]  # (K, P, 2, 2)
    jacobian = torch.cat([slopes, products.flatten(2)], dim=2)
    jacobian = jacobian - (weight[..., None] * jacobian).sum(dim=1, keepdim=True)
    for nuisance in nuisances:
        jacobian = jacobian - nuisance[..., None] * ((weight * nuisance)[:, None] @ jacobian)
    return jacobian


def _covariances(weighted: Tensor, normal: Tensor, variance: Tensor, radius: int) -> Tensor:
    """(K, 2, 2) of the translation, for noise that was white before the images were smoothed.

    Of the residuals, which have that ``variance``, neighbouring ones are alike: what they do to the normal equations is
    what white noise does to their smoothed rows.
    """
    smoothing, side = _smoothing(radius, weighted), 2 * radius + 1
    rows = (smoothing @ weighted.reshape(len(weighted), 6, side, side) @ smoothing.mT).flatten(2)  # (K, 6, (p + 6)^2)
    level = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    inverse = torch.linalg.inv_ex(normal + (1e-3 * level + 1e-9) * torch.eye(6).to(normal)).inverse
    spread: Tensor = inverse @ (rows @ rows.mT) @ inverse.mT  # (K, 6, 6)
    return spread[:, :2, :2] * _white(variance, radius)[:, None, None]


def _smoothing(radius: int, like: Tensor) -> Tensor:
    """(p + 6, p) the Gaussian that smooths images, along one side of a patch."""
    side = torch.arange(2 * radius + 7, dtype=like.dtype, device=like.device)
    taps = side[:, None] - side[:-6] - 3
    smoothing = torch.exp(-0.5 * (taps / BLUR) ** 2) * (taps.abs() <= 3)
    return smoothing / smoothing[:7, 0].sum()


def _white(variance: Tensor, radius: int) -> Tensor:
    """(K,) variance of white noise that, smoothed, leaves so much of a patch after the fit."""
    remaining, kept = _noise(radius)
    return variance.clamp(min=1e-6) / remaining / kept


@cache
def _noise(radius: int) -> tuple[float, float]:
    """The part of the noise of a patch that a fit leaves, and the part of white noise that smoothing leaves."""
    side = torch.arange(-radius, radius + 1, dtype=torch.float64)
    window = torch.exp(-0.5 * (side / (radius / 2)) ** 2)  # along x or y
    independent = float((window.sum() ** 2 / window.square().sum()) ** 2) / (2 * math.pi * BLUR**2)  # pixels
    smoothing = _smoothing(radius, window)[:7, 0]
    return max(1 - FITTED / independent, 0.2), float(smoothing.square().sum() ** 2)


def _beside(patches: _Patches, weighted: Tensor, weight: Tensor, level: Level, found: tuple[Tensor, Tensor]) -> Tensor:
    """(K, (2 REACH + 1)^2) correlations of patches with what lies up to :data:`REACH` pixels beside their places.

    Args:
        weighted: (K, P) normalised templates times their weights.
        found: the centres and linear maps at the end, in pixels of the resolution.
    """
    side = 2 * patches.radius + 1
    wide = level.at(_mapped(*found, _square(patches.radius + REACH, weight)))
    wide = (wide - wide.mean(dim=1, keepdim=True)).unflatten(1, (side + 2 * REACH, -1))  # small, to be squared
    beside = wide.unfold(1, side, 1).unfold(2, side, 1).flatten(3).flatten(1, 2)  # (K, 81, P)
    product, mean = (beside @ torch.stack([weighted, weight], dim=2)).unbind(dim=2)
    square = (beside.square() @ weight[..., None])[..., 0]
    correlations: Tensor = product / (square - mean.square()).clamp(min=1e-12).sqrt()
    return correlations


def _rivals(correlations: Tensor, start: Tensor, least: Tensor) -> Tensor:
    """(K,) whether the place is one of several: another, two to four pixels beside it, correlates by ``least`` or more
    and is nearly as near to where the search began.

    Args:
        correlations: of :func:`_beside`.
        start: (K, 2) where the search began, from there, in pixels of the template.
    """
    near = correlations.unflatten(1, (1, 2 * REACH + 1, -1))
    largest = F.max_pool2d(near, 3, 1, 1) == near
    rival = largest.flatten(1) & (correlations >= least[:, None])
    offsets = _square(REACH, start)  # (81, 2)
    as_near = (start[:, None] - offsets).norm(dim=-1) < 1.5 * start.norm(dim=-1, keepdim=True)
    repeated: Tensor = (rival & as_near & (offsets.norm(dim=-1) >= 2)).any(dim=1)
    return repeated


def _eigenvalues(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) the smaller and the larger of (K, 2, 2) symmetric matrices."""
    mean = (symmetric[:, 0, 0] + symmetric[:, 1, 1]) / 2
    spread = torch.hypot((symmetric[:, 0, 0] - symmetric[:, 1, 1]) / 2, symmetric[:, 0, 1])
    return mean - spread, mean + spread


def _determinant(linear: Tensor) -> Tensor:
    """(K,) of (K, 2, 2), written out."""
    (a, b), (c, d) = (row.unbind(dim=-1) for row in linear.unbind(dim=-2))
    return a * d - b * c


def _inverse(linear: Tensor) -> Tensor:
    """(K, 2, 2), written out: a tenth of the time of the general one."""
    (a, b), (c, d) = (row.unbind(dim=-1) for row in linear.unbind(dim=-2))
    return torch.stack([d, -b, -c, a], dim=-1).view(-1, 2, 2) / _determinant(linear)[:, None, None]


def _mapped(centre: Tensor, linear: Tensor, grid: Tensor) -> Tensor:
    """(K, P, 2) places ``centre + linear @ grid`` of a (P, 2) grid; as sums, since products of this size are slow."""
    along_x, along_y = linear.unbind(dim=-1)  # (K, 2)
    return centre[:, None] + grid[:, :1] * along_x[:, None] + grid[:, 1:] * along_y[:, None]


def _square(radius: int, like: Tensor) -> Tensor:
    """((2 radius + 1)^2, 2) whole pixels around (0, 0), row by row."""
    side = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return torch.stack([x, y], dim=-1).view(-1, 2)
