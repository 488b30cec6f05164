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
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers._parallel import spread_on
from steerers.geometry import orientation_change, transform_points
from steerers.images.load import LUMA, Image

CHUNK = 256
"""Matches that a CPU registers at once: enough for large operators, few enough for all threads."""
COARSEST = 8
"""Half octaves by which the finer image is reduced, at most: what differs more in scale is left alone."""


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
        grey = torch.einsum("chw,c->hw", image.tensor, torch.tensor(LUMA)).to(device)
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
    together: bool | None = None,
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
        together: register matches of all scales at once, in one image of all resolutions, rather than by resolutions,
            in chunks; by default on a GPU, where every launch costs.

    Returns:
        The places of image 1 with their covariances.
    """
    options = options or RefineOptions()
    given = ((image0, mask0), (image1, mask1))
    views = [image if isinstance(image, Resolutions) else Resolutions(image, mask) for image, mask in given]
    xy0, xy1 = keypoints0.to(views[0].image), keypoints1.to(views[0].image)
    maps = local_maps(xy0, xy1, angles, options.neighbours) if len(xy0) else xy0.new_zeros(0, 2, 2)
    everything = Refined(
        xy1.clone(), xy1.new_full((len(xy1), 2, 2), torch.inf), maps.clone(), xy1.new_zeros(len(xy1)).bool()
    )
    groups = _groups(views, maps, xy0.device.type != "cpu" if together is None else together)

    def register(group: _Group) -> Refined:
        job, swapped = group.job, _determinant(maps[group.job]) < 1  # (k,) the template is of image 1
        ends = ((xy1[job], xy0[job]), (xy0[job], xy1[job]))
        own, other = (torch.where(swapped[:, None], *end) for end in ends)
        linear = torch.where(swapped[:, None, None], _inverse(maps[job]), maps[job])
        found = _register(_Patches(group.fixed, own, options.radius), group.moving, other, linear, options)
        return found.of_image1(xy0[job], xy1[job], swapped)

    for group, found in zip(groups, spread_on(xy0.device, register, groups), strict=True):
        for whole, part in zip(everything, found, strict=True):
            whole[group.job] = part
    return everything


class _Group(NamedTuple):
    """Matches that are registered together: (k,) indices, and the resolutions that their patches are of."""

    job: Tensor
    fixed: _Level
    moving: _Level


def _groups(views: Sequence[Resolutions], maps: Tensor, together: bool = False) -> list[_Group]:
    """All matches but those whose scale differs too much: those of two resolutions in chunks, or all ``together``.

    The template is of the coarser image; the other is reduced to its resolution.
    """
    octaves = _determinant(maps).abs().clamp(1e-6, 1e6).log2()  # twice: (K,) of pixels of image 1 for one of image 0
    reduced = octaves.abs().round().long()  # half octaves by which the finer image is reduced
    kinds = torch.where(octaves < 0, -1 - reduced, reduced).masked_fill(reduced > COARSEST, _NONE)  # (K,)
    present = [kind for kind in kinds.unique().tolist() if kind != _NONE]
    levels = [
        (views[1].level(0), views[0].level(-1 - kind)) if kind < 0 else (views[0].level(0), views[1].level(kind))
        for kind in present
    ]
    if together and levels:
        job = (kinds != _NONE).nonzero()[:, 0]
        which = torch.bucketize(kinds[job], torch.tensor(present, device=maps.device))  # (k,)
        fixed, moving = (_Level.packed(side, which) for side in zip(*levels, strict=True))
        return [_Group(job, fixed, moving)]
    chunks = [(kinds == kind).nonzero()[:, 0].split(CHUNK) for kind in present]
    return [_Group(job, *pair) for pair, jobs in zip(levels, chunks, strict=True) for job in jobs]


_NONE = 1000  # no kind of match


# Local maps -----------------------------------------------------------------------------------------------------------


def local_maps(xy0: Tensor, xy1: Tensor, angles: Tensor | None, neighbours: int) -> Tensor:
    """(K, 2, 2) linear maps from displacements in image 0 to displacements in image 1, around every match.

    A neighbour is believed as far as it agrees: with the rotation of the match, with the scale that most neighbours
    have, and with the map that results. The rotation and that scale count as two neighbours do, so that the map is
    sound where there are none.
    """
    near = _neighbours(xy0, neighbours)  # (K, M)
    d0, d1 = xy0[near] - xy0[:, None], xy1[near] - xy1[:, None]  # (K, M, 2)
    length0, length1 = d0.norm(dim=-1), d1.norm(dim=-1)
    known = (length0 > 1) & (length1 > 1)
    turned = torch.atan2(d0[..., 1], d0[..., 0]) - torch.atan2(d1[..., 1], d1[..., 0])  # counter-clockwise, y down
    angles = _common_direction(turned, known) if angles is None else angles.to(xy0)
    agrees = known & (torch.cos(turned - angles[:, None]) > math.cos(0.6))
    agrees &= torch.cos(angles[near] - angles[:, None]) > math.cos(0.6)
    growth = torch.where(agrees, (length1 / length0).log(), torch.nan)  # (K, M)
    overall = growth.flatten().nanmedian().nan_to_num(0.0)
    enough = agrees.sum(dim=1) >= 3
    growth_here = torch.where(enough, growth.nanmedian(dim=1).values.nan_to_num(0.0), overall)
    agrees &= (growth - growth_here[:, None]).abs() < 0.5
    cos, sin = torch.cos(angles), torch.sin(angles)
    prior = torch.stack([cos, sin, -sin, cos], dim=-1).view(-1, 2, 2) * growth_here.exp()[:, None, None]
    linear, spread = prior, (length0**2 * agrees).sum(dim=1) / agrees.sum(dim=1).clamp(min=1)
    ridge = (spread.clamp(min=1.0) * 2)[:, None, None] * torch.eye(2).to(xy0)
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


def _common_direction(turned: Tensor, known: Tensor) -> Tensor:
    """(K,) rotations that most of the (K, M) of neighbours agree with: the median of the densest sixth of a turn."""
    near = torch.cos(turned[:, :, None] - turned[:, None]) > math.cos(math.pi / 6)  # (K, M, M)
    best = (near & known[:, None]).sum(dim=2).masked_fill(~known, -1).argmax(dim=1)  # (K,)
    members = (near & known[:, None])[torch.arange(len(turned)), best]  # (K, M)
    return torch.atan2((turned.sin() * members).sum(dim=1), (turned.cos() * members).sum(dim=1))


# Images at several resolutions ----------------------------------------------------------------------------------------

BLUR = 0.8
"""Standard deviation, in pixels, of the Gaussian by which what lies between pixels is interpolated, and smoothed."""
FINE = 2
"""So many values a pixel and axis are made that way, and interpolated linearly: of a translation by a fraction of a
pixel the error (median) is 0.005 pixels; 0.002 with 3, for twice the memory and time. PyTorch's bicubic interpolation
moves what it interpolates by up to 0.05 pixels."""


class _Level(NamedTuple):
    """An image at one resolution, smoothed; or several, one above the other, of which every match has its own."""

    values: Tensor  # (1, 1, FINE h, FINE w)
    valid: Tensor | None  # (1, 1, h, w) 1 where the image can be relied on
    size: Tensor  # (2,) width and height, or (K, 2) of the resolution of every match
    ratio: Tensor  # (2,) or (K, 2) pixels of this resolution for a pixel of the image, along x and y
    top: Tensor | None = None  # (K,) the row at which the resolution of every match begins

    @classmethod
    def packed(cls, levels: Sequence[_Level], which: Tensor) -> _Level:
        """Several as one, for (K,) matches with the index of theirs: a GPU then needs one launch, not one for each."""
        heights = [level.values.shape[2] // FINE for level in levels]
        tops = torch.tensor([sum(heights[:k]) for k in range(len(levels))]).to(which)
        valid = [level._all_valid() if level.valid is None else level.valid for level in levels]
        masked = any(level.valid is not None for level in levels)
        size, ratio = (torch.stack([getattr(level, name) for level in levels])[which] for name in ("size", "ratio"))
        values = _stacked([level.values for level in levels])
        return cls(values, _stacked(valid) if masked else None, size, ratio, tops[which].to(size))

    def _all_valid(self) -> Tensor:
        return torch.ones_like(self.values[:, :, ::FINE, ::FINE])

    def at(self, xy: Tensor) -> Tensor:
        """(K, P) values at (K, P, 2) pixels of this resolution."""
        return self._sample(self.values, xy, FINE)

    def inside(self, xy: Tensor) -> Tensor:
        """(K, P) whether pixels of this resolution are in the image and can be relied on."""
        inside = ((xy >= 1) & (xy <= self.size[..., None, :] - 2)).all(dim=-1)
        return inside if self.valid is None else inside & (self._sample(self.valid, xy, 1) > 0.99)

    def _sample(self, values: Tensor, xy: Tensor, fine: int) -> Tensor:
        """Bilinearly, ``fine`` values for a pixel; beyond the border the nearest value."""
        if self.top is None:
            grid = (2 * xy + 1) / self.size - 1
        else:
            edge = (1 / fine - 1) / 2  # the centre of the first value
            xy = xy.clamp(min=edge).minimum(self.size[:, None] - 1 - edge)
            x, y = xy[..., 0], xy[..., 1] + self.top[:, None]
            width, height = values.shape[3] // fine, values.shape[2] // fine
            grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
        return F.grid_sample(values, grid[None], "bilinear", "border", align_corners=False)[0, 0]

    def to_level(self, xy: Tensor) -> Tensor:
        """Pixels of the image as pixels of this resolution."""
        return (xy + 0.5) * self.ratio - 0.5

    def to_image(self, xy: Tensor) -> Tensor:
        """The way back."""
        return (xy + 0.5) / self.ratio - 0.5


def _stacked(maps: Sequence[Tensor]) -> Tensor:
    """(1, 1, H, W) maps one above the other, padded to one width."""
    width = max(one.shape[3] for one in maps)
    return torch.cat([F.pad(one, (0, width - one.shape[3])) for one in maps], dim=2)


class Resolutions:
    """An image at resolutions that are half an octave apart, each made when it is first needed."""

    def __init__(self, image: Tensor, mask: Tensor | None) -> None:
        self.image, self.mask = image[None, None], None if mask is None else mask.to(image)[None, None]
        self._levels: dict[int, _Level] = {}

    def level(self, index: int) -> _Level:
        """The image reduced by 2 to the power ``index / 2``."""
        if index not in self._levels:
            self._levels[index] = self._make(index)
        return self._levels[index]

    def _make(self, index: int) -> _Level:
        full = torch.tensor([self.image.shape[3], self.image.shape[2]]).to(self.image)
        size = (full / 2 ** (index / 2)).round().clamp(min=1)
        shape = [int(size[1]), int(size[0])]
        reduced, valid = self.image, self.mask
        if index:
            reduced = F.interpolate(reduced, size=shape, mode="bicubic", align_corners=False, antialias=True)
            valid = None if valid is None else F.interpolate(valid, size=shape, mode="area")
        if valid is not None:  # what is smoothed looks three pixels far
            valid = 1 - F.max_pool2d(1 - valid, 7, stride=1, padding=3)
        return _Level(_interpolated(reduced[0, 0])[None, None], valid, size, size / full)


def _interpolated(image: Tensor) -> Tensor:
    """(h, w) to (FINE h, FINE w): what a Gaussian makes of the pixels."""
    phases = (torch.arange(FINE).double() - (FINE - 1) / 2) / FINE
    kernels = torch.exp(-0.5 * ((torch.arange(-3, 4) - phases[:, None]) / BLUR) ** 2)  # (FINE, 7)
    kernels = kernels / kernels.sum(dim=1, keepdim=True)
    along_y = torch.stack([_filtered(image, kernel, 0) for kernel in kernels], dim=1).flatten(0, 1)
    return torch.stack([_filtered(along_y, kernel, 1) for kernel in kernels], dim=2).flatten(1)


def _filtered(image: Tensor, kernel: Tensor, dim: int) -> Tensor:
    """(h, w) rows or columns added up by a kernel of seven weights: a few long sums, faster than a convolution of one
    channel."""
    padding = (0, 0, 3, 3) if dim == 0 else (3, 3, 0, 0)
    padded, length = F.pad(image[None, None], padding, mode="replicate")[0, 0], image.shape[dim]
    total = torch.zeros_like(image)
    for start, weight in enumerate(kernel.tolist()):
        total.add_(padded.narrow(dim, start, length), alpha=weight)
    return total


# Registration ---------------------------------------------------------------------------------------------------------


class _Patches:
    """Patches of the image that stays: values, weights, and how the values change with the six numbers of an affine
    map."""

    def __init__(self, level: _Level, centres: Tensor, radius: int) -> None:
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

    def of_image1(self, keypoints0: Tensor, keypoints1: Tensor, swapped: Tensor) -> Refined:
        """As places of image 1; what is not good stays. Where ``swapped``, (K,), the template is of image 1, in which
        the keypoint of image 0 is sought."""
        back = _inverse(self.linear)
        sought = keypoints1 + (back @ (keypoints0 - self.centres)[..., None])[..., 0]
        places = torch.where(swapped[:, None], sought, self.centres)
        moved = self.linear @ self.covariances @ self.linear.mT
        covariances = torch.where(swapped[:, None, None], self.covariances, moved)
        good = self.good & torch.isfinite(places).all(dim=1)
        return Refined(
            torch.where(good[:, None], places, keypoints1),
            torch.where(good[:, None, None], covariances, torch.inf),
            torch.where(swapped[:, None, None], back, self.linear),
            good,
        )


def _register(patches: _Patches, level: _Level, centres: Tensor, linear: Tensor, options: RefineOptions) -> _Registered:
    """Gauss-Newton, inverse compositional: the steps are those of the template, so that its normal equations are
    solved once."""
    centre, linear = level.to_level(centres), level.ratio[..., None] * linear
    waits = level.top is None  # on a GPU, which takes all together, nothing is asked that would have to be waited for
    start, first = centre, linear
    seen = patches.inside & level.inside(_mapped(centre, linear, patches.grid))
    weight = patches.window * seen  # (K, P)
    enough = weight.sum(dim=1) > 0.7 * patches.window.sum()
    weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
    template, contrast = _normalised(patches.values, weight)
    nuisances = (template, _sharpness(patches, template, weight))
    jacobian = _jacobian(patches, contrast, weight, nuisances)  # (K, P, 6)
    weighted = jacobian.mT * weight[:, None]  # (K, 6, P)
    normal = weighted @ jacobian
    damping = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).to(normal) * DAMPING
    damped = normal + torch.diag_embed(damping * normal.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True) + 1e-9)
    solver = torch.linalg.solve_ex(damped, weighted).result  # (K, 6, P)
    correlation = template.new_zeros(len(template))
    for step in range(options.iterations):
        values, _ = _normalised(level.at(_mapped(centre, linear, patches.grid)), weight)
        if step == 0:
            correlation = (weight * values * template).sum(dim=1)
        change = torch.bmm(solver, (values - template)[..., None])[..., 0]  # (K, 6)
        linear = linear @ _inverse(torch.eye(2).to(change) + change[:, 2:].view(-1, 2, 2) / options.radius)
        centre = centre - (linear @ change[:, :2, None])[..., 0]
        if waits and float((change[:, :2].abs().amax(dim=1) > SETTLED).float().mean()) < 0.02:
            break
    values, _ = _normalised(level.at(_mapped(centre, linear, patches.grid)), weight)
    final = (weight * values * template).sum(dim=1)
    residual = values - template
    for nuisance in nuisances:
        residual = residual - nuisance * (weight * nuisance * residual).sum(dim=1, keepdim=True)
    covariance = _covariance(patches, weighted, normal, (weight * residual.square()).sum(dim=1))
    deviation = _eigenvalues(covariance)[1].sqrt()
    shift = (_inverse(linear) @ (start - centre)[..., None])[..., 0]  # (K, 2) pixels of the template
    plainest = _eigenvalues(normal[:, :2, :2])[0]
    stretch = _determinant(linear) / _determinant(first)
    good = (
        enough & (final >= options.min_correlation) & (final >= correlation) & (shift.norm(dim=1) <= options.max_shift)
    )
    good &= (deviation <= options.max_deviation) & (stretch > 0.5) & (stretch < 2) & (contrast > MIN_CONTRAST)
    good &= plainest > MIN_SLOPE
    far = shift.norm(dim=1) > 0.8  # others are not nearly as near to another place
    doubtful = (good & far).nonzero()[:, 0] if waits else torch.arange(len(good), device=good.device)
    good[doubtful] &= ~far[doubtful] | ~_repeats(
        patches,
        (weight * template)[doubtful],
        weight[doubtful],
        level,
        (centre[doubtful], linear[doubtful]),
        shift[doubtful],
        options.max_repeat * final[doubtful],
    )
    return _Registered(level.to_image(centre), linear / level.ratio[..., None], covariance, good)


DAMPING = 0.3
"""Of the linear part, relative to the mean of the normal equations' diagonal: it is nearly known."""
MIN_CONTRAST = 1e-3
"""Least standard deviation of a patch, of values in [0, 1]."""
MIN_SLOPE = 2e-4
"""Least mean square of the slope, of a patch of variance 1, in the direction in which it changes least: what changes
less is an edge, along which a place cannot be told. A wave of 30 pixels has 0.04."""
FITTED = 9
"""Numbers that are fitted to a patch: six of the map, brightness, contrast and sharpness."""
SETTLED = 2e-3
"""Pixels: the search ends when hardly a place moves farther in a step."""


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
    return change * ((rest > 1e-2) & (contrast > 0))[:, None]


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


def _covariance(patches: _Patches, weighted: Tensor, normal: Tensor, variance: Tensor) -> Tensor:
    """(K, 2, 2) of the translation, for noise that was white before the images were smoothed.

    Of the residuals, which have that ``variance``, neighbouring ones are alike: what they do to the normal equations is
    what white noise does to their smoothed rows.
    """
    side = 2 * patches.radius + 1
    taps = torch.arange(side + 6).to(weighted)[:, None] - torch.arange(side).to(weighted) - 3  # (p + 6, p)
    smoothing = torch.exp(-0.5 * (taps / BLUR) ** 2) * (taps.abs() <= 3)
    smoothing = smoothing / smoothing[:, 3].sum()
    rows = (smoothing @ weighted.reshape(len(weighted), 6, side, side) @ smoothing.mT).flatten(2)  # (K, 6, (p + 6)^2)
    independent = patches.window.sum() ** 2 / patches.window.square().sum() / (2 * math.pi * BLUR**2)  # pixels
    variance = variance.clamp(min=1e-6) / (1 - FITTED / independent).clamp(min=0.2)
    white = variance / smoothing[:, 3].square().sum() ** 2
    level = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    inverse = torch.linalg.inv_ex(normal + (1e-3 * level + 1e-9) * torch.eye(6).to(normal)).inverse
    covariance: Tensor = inverse @ (rows @ rows.mT) @ inverse.mT  # (K, 6, 6)
    return covariance[:, :2, :2] * white[:, None, None]


def _repeats(
    patches: _Patches,
    weighted: Tensor,
    weight: Tensor,
    level: _Level,
    found: tuple[Tensor, Tensor],
    start: Tensor,
    least: Tensor,
) -> Tensor:
    """(K,) whether the place is one of several: another, two to four pixels beside it, correlates by ``least`` or more
    and is nearly as near to where the search began.

    Args:
        weighted: (K, P) normalised templates times their weights.
        found: the centres and linear maps at the end.
        start: (K, 2) where the search began, from there, in pixels of the template.
    """
    reach, side = 4, 2 * patches.radius + 1
    wide = level.at(_mapped(*found, _square(patches.radius + reach, start)))
    wide = (wide - wide.mean(dim=1, keepdim=True)).unflatten(1, (side + 2 * reach, -1))  # small, to be squared
    beside = wide.unfold(1, side, 1).unfold(2, side, 1).flatten(3).flatten(1, 2)  # (K, 81, P)
    product, mean = (beside @ torch.stack([weighted, weight], dim=2)).unbind(dim=2)
    square = (beside.square() @ weight[..., None])[..., 0]
    correlations = (product / (square - mean.square()).clamp(min=1e-12).sqrt()).view(-1, 1, 9, 9)
    largest = F.max_pool2d(correlations, 3, 1, 1) == correlations
    rival = (largest & (correlations >= least[:, None, None, None])).flatten(1)  # (K, 81)
    offsets = _square(reach, start)  # (81, 2)
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
    side = torch.arange(-radius, radius + 1).to(like)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return torch.stack([x, y], dim=-1).view(-1, 2)
