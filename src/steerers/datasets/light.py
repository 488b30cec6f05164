"""The light of views: what changes between two photographs of one thing besides the place they were taken from.

:func:`relight` does what every camera and hour do. Weather and sensors are rarer and go further: fog, night and cast
shadows; negatives, false colour and speckle. Everything is drawn from one seed a view, on the device of the images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import noise, uniforms
from steerers.images.load import LUMA

_TONE, _FIELD, _LEVEL, _LENS, _COLOUR, _BLOCKS, _GRAIN, _WEATHER, _SENSOR, _SPECKLE = range(11, 21)  # of a seed
_FIELD_CELLS = 5  # of the field of light: shadows are smooth
_BLUR_TAPS = 9
_BLOCK = 8  # of JPEG
_MIDDLE = 0.45  # about which contrast changes: the mean of photographs, roughly


def relight(
    images: Tensor, strength: float, seeds: Sequence[int], *, weather: float = 0.0, sensors: float = 0.0
) -> Tensor:
    """Change the light of (B, 3, H, W) images in [0, 1], each by its seed; a strength of 0 changes nothing.

    In this order: weather and sensors, colours (mixed, tinted, to grey), a smooth field of light and shadow, gain,
    contrast and gamma, blur, noise, and the blocks of JPEG. Shadows, blur and JPEG act on a fraction of the images.

    Args:
        weather: fraction of the images with fog, a cast shadow or night; ``sensors`` of those seen by another sensor.
    """
    images = _sensed(_weathered(images, weather, seeds), sensors, seeds)
    if strength == 0:
        return images
    images = _tone(_shade(_colour(images.clamp(0, 1), strength, seeds), strength, seeds), strength, seeds)
    images = _blur(images, strength, seeds) + _noise(images, strength, seeds)
    return _compress(images.clamp(0, 1), strength, seeds)


def _colour(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Tint and saturation for all; grey, or a random mixture of the channels, for a few."""
    drawn = uniforms(seeds, 15, _COLOUR)
    luma = torch.tensor(LUMA, dtype=drawn.dtype).expand(3, 3)  # every row gives the luma
    saturation = 1 + strength * 0.6 * (2 * drawn[:, 0] - 1)  # (B,)
    saturation = torch.where(drawn[:, 1] < 0.15 * strength, 0.0, saturation).view(-1, 1, 1)
    matrix = luma + saturation * (torch.eye(3) - luma)  # (B, 3, 3)
    mixture = drawn[:, 6:].view(-1, 3, 3)
    mixture = mixture / mixture.sum(dim=2, keepdim=True)
    matrix = torch.where((drawn[:, 2] < 0.1 * strength).view(-1, 1, 1), mixture @ matrix, matrix)
    tint = 1 + strength * 0.25 * (2 * drawn[:, 3:6] - 1)  # (B, 3)
    red, green, blue = (tint[..., None] * matrix).to(images)[..., None, None].unbind(dim=2)  # (B, 3, 1, 1) each
    return red * images[:, :1] + green * images[:, 1:2] + blue * images[:, 2:]


def _shade(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Multiply half of the images by a smooth field of light."""
    drawn = uniforms(seeds, 2 + _FIELD_CELLS**2, _FIELD).to(images)
    depth = torch.where(drawn[:, 0] < 0.5, strength * drawn[:, 1] * 1.2, 0.0).view(-1, 1, 1, 1)
    cells = (2 * drawn[:, 2:] - 1).view(-1, 1, _FIELD_CELLS, _FIELD_CELLS)
    field = F.interpolate(cells, images.shape[2:], mode="bicubic", align_corners=True)
    return images * (depth * field).exp()


def _tone(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Gain, contrast about the middle of the range, and gamma."""
    drawn = (2 * uniforms(seeds, 3, _TONE) - 1).to(images)
    gain, contrast, gamma = ((strength * reach * drawn[:, k]).exp() for k, reach in enumerate((0.5, 0.5, 0.6)))
    images = _MIDDLE + _column(contrast) * (images - _MIDDLE)
    return (_column(gamma) * (_column(gain) * images).clamp(1e-4, 1).log()).exp()


def _blur(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """A Gaussian for half of the images, as long in one direction as in the other or, for some, much longer."""
    drawn = uniforms(seeds, 4, _LENS).to(images)
    sigma = torch.where(drawn[:, 0] < 0.5, 0.05 + 1.6 * strength * drawn[:, 1], 0.05)
    other = torch.where(drawn[:, 2] < 0.3, 0.05, sigma)
    flip = drawn[:, 3] < 0.5
    kernels = (torch.where(flip, other, sigma), torch.where(flip, sigma, other))
    count, channels, height, width = images.shape
    flat = images.reshape(1, count * channels, height, width)
    radius = _BLUR_TAPS // 2
    for deviation, shape in zip(kernels, ((1, _BLUR_TAPS), (_BLUR_TAPS, 1)), strict=True):
        taps = torch.arange(-radius, radius + 1).to(images)
        weights = (-0.5 * (taps / deviation[:, None]) ** 2).exp()  # (B, T)
        weights = (weights / weights.sum(dim=1, keepdim=True)).repeat_interleave(channels, 0)
        padding = (radius, radius, 0, 0) if shape[0] == 1 else (0, 0, radius, radius)
        flat = F.conv2d(F.pad(flat, padding, mode="replicate"), weights.view(-1, 1, *shape), groups=count * channels)
    return flat.view(count, channels, height, width)


def _noise(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """(B, 3, H, W) noise, nearly Gaussian, of a random level."""
    levels = uniforms(seeds, 1, _LEVEL).to(images)[:, 0] ** 2 * (0.06 * strength)
    return noise(seeds, images[0].numel(), _GRAIN, images.device).view_as(images).to(images) * _column(levels)


def _compress(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """What JPEG does to a third of the images: cosines of blocks rounded, the higher ones more coarsely."""
    drawn = uniforms(seeds, 2, _BLOCKS).to(images)
    steps = torch.where(drawn[:, 0] < 0.33, strength * drawn[:, 1] * 0.08, 0.0)
    channels, height, width = images.shape[1:]
    if height % _BLOCK or width % _BLOCK:
        return images
    chosen = (steps > 0.002).nonzero()[:, 0]
    if not len(chosen):
        return images
    basis = _cosines().to(images)  # (8, 8)
    blocks = images[chosen].view(-1, channels, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).transpose(3, 4)
    coefficients = basis @ blocks @ basis.mT
    order = torch.arange(_BLOCK).to(images)
    coarse = steps[chosen].view(-1, 1, 1, 1, 1, 1) * (1 + order[:, None] + order)
    blocks = basis.mT @ ((coefficients / coarse).round() * coarse) @ basis
    rebuilt = blocks.transpose(3, 4).reshape(-1, channels, height, width).clamp(0, 1)
    return images.index_copy(0, chosen, rebuilt)


def _cosines() -> Tensor:
    """The (8, 8) orthonormal discrete cosine transform."""
    k, x = torch.meshgrid(torch.arange(_BLOCK), torch.arange(_BLOCK), indexing="ij")
    basis = (math.pi * (2 * x + 1) * k / (2 * _BLOCK)).cos() * math.sqrt(2 / _BLOCK)
    basis[0] /= math.sqrt(2)
    return basis


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


# Weather --------------------------------------------------------------------------------------------------------------


def _weathered(images: Tensor, fraction: float, seeds: Sequence[int]) -> Tensor:
    """Fog, a cast shadow, or night, each for a third of the ``fraction``."""
    if fraction == 0:
        return images
    drawn = uniforms(seeds, 12 + _FIELD_CELLS**2, _WEATHER).to(images)
    kind, rest = (drawn[:, 0] / fraction * 3).floor(), drawn[:, 1:]  # 0, 1, 2, or more for none
    for number, change in enumerate((_fog, _cast_shadow, _night)):
        images = torch.where(_column(kind == number), change(images, rest), images)
    return images.clamp(0, 1)


def _fog(images: Tensor, drawn: Tensor) -> Tensor:
    """A bright grey that hides more of some parts than of others."""
    cells = drawn[:, -(_FIELD_CELLS**2) :].view(-1, 1, _FIELD_CELLS, _FIELD_CELLS)
    density = F.interpolate(cells, images.shape[2:], mode="bilinear", align_corners=True)
    density = (_column(0.3 + 0.4 * drawn[:, 0]) + 0.6 * (density - 0.5)).clamp(0, 0.85)
    return images + density * (_column(0.6 + 0.35 * drawn[:, 1]) - images)


def _cast_shadow(images: Tensor, drawn: Tensor) -> Tensor:
    """Darker, and bluer, on one side of a line that passes through the middle part of the image."""
    rows, columns = (torch.linspace(-1, 1, n).to(images) for n in images.shape[2:])
    angle = 2 * math.pi * drawn[:, 0]
    across = _column(angle.cos()) * columns + _column(angle.sin()) * rows[:, None] - _column(drawn[:, 1] - 0.5)
    softness = _column(0.004 + 0.05 * drawn[:, 2] ** 2)
    shadow = torch.sigmoid(across / softness)  # (B, 1, H, W)
    depth = _column(0.4 + 0.45 * drawn[:, 3]) * torch.tensor([1.0, 0.95, 0.85]).to(images).view(1, 3, 1, 1)
    return images * (1 - depth * shadow)


def _night(images: Tensor, drawn: Tensor) -> Tensor:
    """Dark, with lamps of a warm colour at a few places, and the noise of a high sensitivity."""
    rows, columns = (torch.linspace(0, 1, n).to(images) for n in images.shape[2:])
    light = _column(0.08 + 0.2 * drawn[:, 0])
    for lamp in range(3):
        x, y, reach = (_column(drawn[:, 1 + 3 * lamp + k]) for k in range(3))
        distance = (columns - x) ** 2 + (rows[:, None] - y) ** 2
        light = light + 0.9 * (-distance / (0.02 + 0.15 * reach)).exp()
    tint = torch.tensor([1.0, 0.8, 0.55]).to(images).view(1, 3, 1, 1)
    return images ** _column(1.0 + drawn[:, 10]) * light * tint


# Sensors --------------------------------------------------------------------------------------------------------------

_KNOTS = 6  # of a sensor's curves


def _sensed(images: Tensor, fraction: float, seeds: Sequence[int]) -> Tensor:
    """As another sensor sees it, for a ``fraction`` of the images.

    A third of these are negatives; the others have a curve of their own in every channel, which rises, falls or, for a
    few, does neither, as stains and bands of infra-red do. A third has one channel, a third has speckle.
    """
    if fraction == 0:
        return images
    drawn = uniforms(seeds, 8 + 3 * _KNOTS, _SENSOR).to(images)
    knots = drawn[:, 8:].view(-1, 3, _KNOTS)
    rising = knots.sort(dim=2).values
    rising = (rising - rising[..., :1]) / (rising[..., -1:] - rising[..., :1]).clamp(min=1e-3)
    knots = torch.where((drawn[:, 1:4] < 0.15)[..., None], knots, rising)
    knots = torch.where((drawn[:, 1:4] > 0.6)[..., None], 1 - knots, knots)
    even = torch.linspace(1, 0, _KNOTS).to(images).expand_as(knots)
    knots = torch.where((drawn[:, 4] < 0.33).view(-1, 1, 1), even, knots)
    sensed = _curved(images.clamp(0, 1), knots)
    single = sensed.gather(1, (drawn[:, 5] * 3).long().clamp(max=2).view(-1, 1, 1, 1).expand_as(sensed[:, :1]))
    sensed = torch.where(_column(drawn[:, 6] < 0.33), single, sensed)
    speckle = noise(seeds, images[0].numel(), _SPECKLE, images.device).view_as(images).to(images)[:, :1]
    amount = torch.where(drawn[:, 7] < 0.33, 0.6 * drawn[:, 7], 0.0)
    sensed = (sensed * (1 + _column(amount) * speckle)).clamp(0, 1)
    return torch.where(_column(drawn[:, 0] < fraction), sensed, images)


def _curved(images: Tensor, knots: Tensor) -> Tensor:
    """(B, 3, H, W) images in [0, 1] through the polygons of (B, 3, K) knots, one for each channel."""
    place = images.flatten(2) * (_KNOTS - 1)
    below = place.long().clamp(max=_KNOTS - 2)
    low, high = knots.gather(2, below), knots.gather(2, below + 1)
    return (low + (place - below) * (high - low)).view_as(images)
