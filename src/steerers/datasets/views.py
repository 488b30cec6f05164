"""Square views of photographs through random projective maps, relit, in batches, on the device of the photographs.

A view is sampled from its photograph once, through one map with the rotation in it, so that rotated views have no
resampling of their own and, where the photograph is large enough, no empty corners. Quarter turns move pixels exactly.
What shrinks is sampled from a pyramid, so that it does not alias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.light import relight
from steerers.datasets.pairs import check_options, uniforms
from steerers.geometry import Size, quarter_turns, scaling, to_normalised

Resize = Literal["letterbox", "squash"]

SHAKE = 32
"""Largest shift, in pixels of the view, of a photograph that is shown whole."""

_SHAPE, _FILL, _SHIFT = 1, 2, 21  # streams of a seed
_LEVELS = 4  # of the pyramid
_WANDERING = 0.25  # how far the focus may be from the middle of a view, as a fraction of its side
_ROUNDING = 1e-6  # pixels: a view that ends where its photograph does is covered to its edge


@dataclass(frozen=True)
class Views:
    """How views are drawn.

    Attributes:
        size: side of a view, in pixels.
        scale: range of the zoom, in pixels of the view per pixel of the photograph. Where the photograph is too small
            for it, the zoom is larger, so that an unrotated view lies within the photograph.
        tilt: most foreshortening, as that of a plane seen from the side: 2 is a plane rotated away by 60 degrees.
        perspective: how far each corner moves, as a fraction of the side.
        photometric: strength of the change of light, from 0 to 1.
        weather: fraction of the views in fog, at night or with a shadow cast over a part.
        sensors: fraction of the views as another sensor might see them: negatives, false colours, curves of their own
            in every channel, speckle.
        resize: ``letterbox`` keeps the aspect: photographs of MegaDepth are shown whole, with borders, and a part is
            drawn of all others. ``squash``, for MegaDepth and reconstructions, shows the whole of a photograph and
            fills the square with it, whatever its aspect, before it is rotated; as the paper's authors do.
    """

    size: int = 384
    scale: tuple[float, float] = (0.8, 1.3)
    tilt: float = 1.0
    perspective: float = 0.08
    photometric: float = 0.5
    weather: float = 0.0
    sensors: float = 0.0
    resize: Resize = "letterbox"

    def __post_init__(self) -> None:
        if self.size < 32:
            raise ValueError(f"size of a view must be at least 32 pixels, got {self.size}")
        check_options(self, "be a range of positive numbers", is_range, "scale")
        check_options(self, "be in [1, 8]", lambda value: 1 <= value <= 8, "tilt")
        check_options(self, "be in [0, 0.3)", lambda value: 0 <= value < 0.3, "perspective")
        check_options(self, "be in [0, 1]", lambda value: 0 <= value <= 1, "photometric", "weather", "sensors")
        check_options(self, "be letterbox or squash", lambda value: value in get_args(Resize), "resize")


def is_range(scale: Sequence[float]) -> bool:
    """Whether it is a range of zooms."""
    return len(scale) == 2 and 0 < scale[0] <= scale[1]


# Maps -----------------------------------------------------------------------------------------------------------------


def draw_homographies(sizes: Sequence[Size], views: Views, seeds: Sequence[int], focus: Tensor | None = None) -> Tensor:
    """(B, 3, 3) float64 random maps from pixels of photographs of (width, height) to upright views, one seed each.

    Args:
        focus: (B, 2) pixels of the photographs that shall be seen, not far from the middle of the view; by default a
            view may lie anywhere. Two views with one focus overlap.

    Raises:
        ValueError: if the photographs shall be squashed, which is for those that are shown whole.
    """
    if views.resize == "squash":
        raise ValueError(
            "resize 'squash' is for MegaDepth and reconstructions: these views show a part of a photograph"
        )
    drawn = uniforms(seeds, 13, _SHAPE)  # (B, 13)
    low, high = math.log(views.scale[0]), math.log(views.scale[1])
    scale = (low + (high - low) * drawn[:, 0]).exp()  # (B,)
    tilted = _tilts(drawn[:, 1].mul(math.log(views.tilt)).exp(), math.pi * drawn[:, 2])  # (B, 2, 2)
    extent = torch.linalg.inv(tilted).abs().sum(dim=2) * views.size  # (B, 2), of the photograph, at scale 1
    available = torch.tensor(sizes, dtype=torch.float64)  # (B, 2)
    fitting = scale.maximum((extent / available).amax(dim=1))
    room = (available - extent / fitting[:, None]).clamp(min=0) / 2
    middle = (available - 1) / 2
    offset = (2 * drawn[:, 3:5] - 1) * room
    if focus is not None:
        wandering = (2 * drawn[:, 3:5] - 1) * _WANDERING * extent / fitting[:, None]
        offset = torch.clamp(focus.cpu().double() + wandering - middle, -room, room)
    centre = middle + offset  # (B, 2)
    zoom = torch.eye(3, dtype=torch.float64).repeat(len(seeds), 1, 1)
    zoom[:, :2, :2] = fitting[:, None, None] * tilted
    zoom[:, :2, 2] = (views.size - 1) / 2 - (zoom[:, :2, :2] @ centre[..., None])[..., 0]
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64) * (views.size - 1)
    shift = (2 * drawn[:, 5:].view(-1, 4, 2) - 1) * views.perspective * views.size
    return homographies_from_corners(corners.expand_as(shift), corners + shift) @ zoom


def _tilts(ratios: Tensor, directions: Tensor) -> Tensor:
    """(B, 2, 2) maps of area 1 that shrink by the square root of ``ratios`` along ``directions``, stretch across."""
    c, s = directions.cos(), directions.sin()
    axes = torch.stack([torch.stack([c, -s], dim=-1), torch.stack([s, c], dim=-1)], dim=-2)  # (B, 2, 2)
    return axes @ torch.diag_embed(torch.stack([ratios.rsqrt(), ratios.sqrt()], dim=-1)) @ axes.mT


def homographies_from_corners(source: Tensor, target: Tensor) -> Tensor:
    """(B, 3, 3) float64 maps that take (B, 4, 2) points to (B, 4, 2) others."""
    (x, y), (u, v) = source.double().unbind(-1), target.double().unbind(-1)  # (B, 4) each
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows = torch.cat(
        [
            torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1),
            torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1),
        ],
        dim=1,
    )  # (B, 8, 8)
    solution = torch.linalg.solve(rows, torch.cat([u, v], dim=1))  # (B, 8)
    return torch.cat([solution, torch.ones_like(solution[:, :1])], dim=1).view(-1, 3, 3)


def draw_whole(sizes: Sequence[Size], views: Views, seeds: Sequence[int]) -> Tensor:
    """(B, 3, 3) float64 maps that show the whole of photographs of (width, height) in upright views, a little shifted.

    The shift is of whole pixels, up to :data:`SHAKE` each way, by one seed each.
    """
    size = views.size
    maps = [scaling(own, (size, size)) if views.resize == "squash" else fit_view(own, size) for own in sizes]
    shown = torch.stack(maps)
    shown[:, :2, 2] += (uniforms(seeds, 2, _SHIFT) * (2 * SHAKE + 1)).floor() - SHAKE
    return shown


def fit_view(size: Size, view_size: int) -> Tensor:
    """The (3, 3) map that shows the whole of a photograph of (width, height), aspect kept, in the middle of a view."""
    scale = view_size / max(size)
    offset = [(view_size - 1) / 2 - scale * (extent - 1) / 2 for extent in size]
    return torch.tensor([[scale, 0, offset[0]], [0, scale, offset[1]], [0, 0, 1]], dtype=torch.float64)


def rotations_about_middle(size: int, angles: Tensor) -> Tensor:
    """(B, 3, 3) maps of the pixels of a square of ``size`` that rotate it counter-clockwise by (B,) radians."""
    angles = angles.cpu().double()
    quarters = (angles / (math.pi / 2)).round()
    exact = (angles - quarters * (math.pi / 2)).abs() < 1e-9
    cosine, sine = (torch.where(exact, f(angles).round(), f(angles)) for f in (torch.cos, torch.sin))
    linear = torch.stack([cosine, sine, -sine, cosine], dim=-1).view(-1, 2, 2)  # as geometry.rotation
    transforms = torch.eye(3, dtype=torch.float64).repeat(len(angles), 1, 1)
    transforms[:, :2, :2] = linear
    transforms[:, :2, 2] = (size - 1) / 2 * (1 - linear.sum(dim=2))
    return transforms


# Pixels ---------------------------------------------------------------------------------------------------------------


def render_views(
    photos: Sequence[Tensor] | Tensor,
    homographies: Tensor,
    rotations: Tensor,
    size: int,
    seeds: Sequence[int] | None = None,
    sizes: Sequence[Size] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Views of photographs, rotated counter-clockwise about their middle.

    Photographs of one shape are sampled together, others one by one: a view does not depend on what else is in the
    batch. So a batch is fast where photographs lie on canvases of one size.

    Args:
        photos: B tensors (3, H, W), uint8 or float in [0, 1], on one device.
        homographies: (B, 3, 3), from pixels of the photographs to upright views.
        rotations: (B,) radians.
        size: side of a view.
        seeds: with them, what lies outside the photograph is black or a random grey; mid-grey without.
        sizes: (width, height) of the photographs in the top-left corners of their canvases; by default they fill them.

    Returns:
        (B, 3, S, S) float32 images, (B, S, S) bool masks of what the photographs cover, and the (B, 3, 3) float64 maps
        from photographs to rotated views.
    """
    sizes = [(int(photo.shape[2]), int(photo.shape[1])) for photo in photos] if sizes is None else sizes
    upright = homographies.cpu().double()
    from_photos = rotations_about_middle(size, rotations) @ upright  # (B, 3, 3)
    quarters = [quarter_turns(rotation) for rotation in rotations.tolist()]
    exact = torch.tensor([k is not None for k in quarters])[:, None, None]
    images, masks = _sample(photos, sizes, torch.linalg.inv(torch.where(exact, upright, from_photos)), size)
    for k in {k for k in quarters if k}:
        chosen = torch.tensor([index for index, quarter in enumerate(quarters) if quarter == k], device=images.device)
        images[chosen] = torch.rot90(images[chosen], k, (2, 3))
        masks[chosen] = torch.rot90(masks[chosen], k, (1, 2))
    return torch.where(masks[:, None], images, _fills(len(photos), seeds).to(images)), masks, from_photos


def _fills(count: int, seeds: Sequence[int] | None) -> Tensor:
    """(B, 1, 1, 1) grey levels of what lies outside photographs."""
    if seeds is None:
        return torch.full((count, 1, 1, 1), 0.5)
    drawn = uniforms(seeds, 2, _FILL)
    return torch.where(drawn[:, 0] < 0.5, 0.0, drawn[:, 1]).view(-1, 1, 1, 1)


def _sample(
    photos: Sequence[Tensor] | Tensor, sizes: Sequence[Size], to_photos: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """(B, 3, S, S) bilinear samples of photographs, from pyramids of them, and (B, S, S) masks of where these are."""
    device = photos.device if isinstance(photos, Tensor) else photos[0].device
    source = _source_pixels(to_photos, size, device)  # (B, S, S, 2)
    limits = torch.tensor(sizes, dtype=torch.float64).to(device)[:, None, None] - 1 + _ROUNDING
    masks = ((source >= -_ROUNDING) & (source <= limits)).all(dim=-1)
    images = torch.empty(len(photos), 3, size, size, device=device)
    shapes = [photos.shape[1:]] * len(photos) if isinstance(photos, Tensor) else [photo.shape for photo in photos]
    groups: dict[tuple[int, torch.Size], list[int]] = {}
    for index, key in enumerate(zip(_pyramid_levels(to_photos, size), shapes, strict=True)):
        groups.setdefault(key, []).append(index)
    for (level, (_, height, width)), members in groups.items():
        rows = torch.tensor(members, device=device)
        alike = photos[rows] if isinstance(photos, Tensor) else torch.stack([_as_float(photos[k]) for k in members])
        wide, high = (math.ceil(side / 2**level) * 2**level for side in (width, height))  # of halved ones, in pixels
        images[rows] = _sample_halved(alike, to_normalised(source[rows], (wide, high)).float(), level)
    return images, masks


def _source_pixels(to_photos: Tensor, size: int, device: torch.device) -> Tensor:
    """(B, S, S, 2) pixels of the photographs that the pixels of the views come from; far outside beyond a horizon."""
    axis = torch.arange(size, device=device, dtype=torch.float64)
    columns = to_photos.to(device)[..., None, None]  # (B, 3, 3, 1, 1)
    mapped = columns[:, :, 0] * axis + (columns[:, :, 1] * axis[:, None] + columns[:, :, 2])  # (B, 3, S, S)
    depth = mapped[:, 2:]
    return torch.where(depth > 1e-9, mapped[:, :2] / depth.clamp(min=1e-9), -1e4).movedim(1, -1)


def _pyramid_levels(to_photos: Tensor, size: int) -> list[int]:
    """For each view how often its photograph is halved before it is sampled: about as much as its middle shrinks."""
    middle = to_photos.new_tensor([(size - 1) / 2, (size - 1) / 2, 1.0])
    depth = (to_photos[:, 2] * middle).sum(dim=1)  # (B,)
    area = torch.linalg.det(to_photos).abs() / depth.clamp(min=1e-9) ** 3  # that a pixel comes from
    levels = (area.clamp(min=1e-6).log2() / 2 + 0.25).floor().clamp(0, _LEVELS - 1)
    return [int(level) for level in torch.where(depth > 1e-9, levels, 0.0).tolist()]


def _sample_halved(photos: Tensor, grids: Tensor, level: int) -> Tensor:
    """Bilinear samples, at (G, S, S, 2) grids, of (G, 3, H, W) photographs that are halved ``level`` times."""
    pixels = _as_float(photos)
    for _ in range(level):
        pixels = F.avg_pool2d(pixels, 2, ceil_mode=True, count_include_pad=False)
    return F.grid_sample(pixels, grids, padding_mode="border", align_corners=False)


def _as_float(photos: Tensor) -> Tensor:
    return photos.float() if photos.is_floating_point() else photos.float() / 255


def relight_views(images: Tensor, views: Views, seeds: Sequence[int]) -> Tensor:
    """(B, 3, S, S) views in the light that they are drawn with."""
    return relight(images, views.photometric, seeds, weather=views.weather, sensors=views.sensors)
