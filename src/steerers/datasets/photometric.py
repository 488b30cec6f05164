"""Change of light: what happens to a picture between two visits, in batches, on the device of the pictures.

Everything is drawn from one seed a picture, so that a batch may be made in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import noise, uniforms
from steerers.images.load import LUMA

_TONE, _FIELD, _LEVEL, _LENS, _COLOUR, _BLOCKS, _GRAIN = range(11, 18)  # streams of a seed
_FIELD_CELLS = 5  # of the field of light: shadows are smooth
_BLUR_TAPS = 9
_BLOCK = 8  # of JPEG
_MIDDLE = 0.45  # about which contrast changes: the mean of photographs, roughly


def relight(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Change the light of (B, 3, H, W) images in [0, 1], each by its seed; a strength of 0 changes nothing.

    In this order: colours (mixed, tinted, to grey), a smooth field of light and shadow, gain, contrast and gamma, blur,
    noise, and the blocks of JPEG. Shadows, blur and JPEG act on a fraction of the images only.
    """
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
