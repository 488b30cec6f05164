"""Images as models see them: reading, EXIF, resizing, masks, tensors.

:func:`load_image` turns a file, a Pillow image, an array or a tensor into an :class:`Image`: a (3, H, W) tensor with
the map that leads from its pixels back to those of the image as stored. Whatever is done to the picture on the way
(resizing, rotating upright), that map tells; nothing else in the package needs to know.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, get_args

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers._choices import Exif, Resize
from steerers.geometry import Size, scaling
from steerers.images.decode import (
    MAX_PIXELS,
    UPRIGHT,
    Box,
    Decoded,
    ImageError,
    ImageSource,
    colour_and_alpha,
    combine,
    decode,
    fit_within,
    is_deep,
    name_of,
    open_picture,
    size_text,
)

__all__ = [
    "LUMA",
    "MAX_PIXELS",
    "Exif",
    "Image",
    "ImageError",
    "ImageSource",
    "Resize",
    "Size",
    "check_resize",
    "load_image",
    "make_picture",
    "to_grey",
    "to_uint8",
]

logger = logging.getLogger(__name__)

LUMA = (0.299, 0.587, 0.114)
"""How red, green and blue make grey: ITU-R 601, as OpenCV and Pillow have it."""

Resample: TypeAlias = Callable[[PIL.Image.Image, Size, Box], PIL.Image.Image]
_NOISE_CELLS = (2, 4, 8, 16, 32)  # pixels


@dataclass(frozen=True, eq=False)
class Image:
    """An image as a model sees it, and the way back to the image as stored."""

    tensor: Tensor  # (3, H, W) float32 RGB in [0, 1]
    to_stored: Tensor  # (3, 3) float64, pixels of `tensor` -> stored pixels
    stored_size: Size  # (width, height) of the stored image
    mask: Tensor | None  # (H, W) bool, True where keypoints are allowed; None: everywhere
    name: str  # the path, or "" where there is none

    @property
    def orientation(self) -> Tensor:
        """(2, 2) float64 linear part, without scale, of the map from stored pixels to pixels of ``tensor`` (EXIF).

        An exact signed permutation, so that its inverse is its transpose.
        """
        return self.to_stored[:2, :2].sign().T

    @property
    def kind(self) -> tuple[torch.Size, bool]:
        """What must be equal for images to go through a network together."""
        return self.tensor.shape, self.mask is None

    @property
    def upright_size(self) -> Size:
        """(width, height) of the stored image in the orientation of ``tensor``."""
        width, height = self.stored_size
        return (width, height) if self.orientation[0, 0] else (height, width)


def load_image(
    source: ImageSource,
    *,
    max_size: int | None = None,
    resize: Resize = "fit",
    exif: Exif = "ignore",
    mask: ImageSource | None = None,
) -> Image:
    """Read an image.

    Grey becomes three equal channels. Pixel values of more than 8 bits (modes I;16, I and F, and uint16 arrays) are
    stretched linearly from their smallest and largest finite value to [0, 1], because satellites and microscopes use a
    part of the range; a constant image becomes mid-grey. Transparent pixels (alpha 0) and pixels that are not finite
    are kept out of the mask, and colour is laid over mid-grey by its alpha. Of several frames the first is read.

    Args:
        source: a path to any format that Pillow reads but PostScript, which is a program, and HEIC with
            ``steerers[heif]``; the content of such a file as bytes, or the file opened in binary mode, which is read to
            its end; a Pillow image; a (H, W) or (H, W, 1 | 3 | 4) array, RGB(A) uint8, uint16, or float in [0, 1]; a
            (1 | 3, H, W) or (1, 1 | 3, H, W)
            tensor, uint8 or float in [0, 1].
        max_size: the longest side is shrunk to this many pixels if it is longer.
        resize: ``"fit"`` keeps the aspect and never enlarges (Lanczos); ``"squash"`` makes every image a square of
            ``max_size`` pixels a side, whatever its shape, as the authors of DeDoDe and of the steerers do (bicubic,
            antialiased). A rotation of what is squashed is a rotation of the image for quarter turns and squares alone.
        exif: ``"apply"`` rotates the tensor upright as the EXIF orientation says; ``"ignore"`` takes pixels as stored.
            Keypoints mapped by ``to_stored`` are stored pixels either way.
        mask: an image source of the size of the stored image, never rotated by an EXIF tag of its own; keypoints are
            allowed where any of its channels is not zero. A (H, W) tensor will do too.

    Raises:
        FileNotFoundError: if there is no such file.
        ImageError: if a file is not a readable image, or an image is empty or larger than :data:`MAX_PIXELS`.
        ValueError: if an array, tensor, mask or option has a wrong shape or value.
        TypeError: if the source or its dtype is not one of the above.
    """
    if exif not in get_args(Exif):
        raise ValueError(f"exif must be 'ignore' or 'apply', got {exif!r}")
    max_size = check_resize(resize, max_size)
    fit = resize == "fit"
    decoded = decode(source, max_size if fit else None, exif)
    allowed = combine(decoded.allowed, None if mask is None else _read_mask(mask, decoded.stored_size))
    size = fit_within(decoded.stored_size, max_size) if fit or max_size is None else (max_size, max_size)
    linear = UPRIGHT[decoded.orientation]
    logger.debug(
        "image %s: %s pixels, shown at %s%s%s",
        name_of(source) or f"({type(source).__name__})",
        size_text(decoded.stored_size),
        size_text(size),
        "" if decoded.orientation == 1 else f", EXIF orientation {decoded.orientation} applied",
        "" if allowed is None else ", masked",
    )
    return Image(
        tensor=_rotated(_to_tensor(_resized(decoded, size, _lanczos if fit else _bicubic)), linear),
        to_stored=scaling(size, decoded.stored_size) @ _rotation_back(size, linear),
        stored_size=decoded.stored_size,
        mask=None if allowed is None else _rotated(torch.from_numpy(_resize_mask(allowed, size)), linear),
        name=name_of(source),
    )


def to_uint8(image: Tensor) -> NDArray[np.uint8]:
    """A (3, H, W) float image in [0, 1] as a (H, W, 3) uint8 array, rounded, for classical features and drawing."""
    _check_rgb(image)
    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    array: NDArray[np.uint8] = levels.permute(1, 2, 0).contiguous().cpu().numpy()
    return array


def to_grey(image: Tensor) -> NDArray[np.uint8]:
    """A (3, H, W) float image in [0, 1] as (H, W) uint8 luma, rounded."""
    _check_rgb(image)
    red, green, blue = image.detach().float()
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    array: NDArray[np.uint8] = (luma.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return array


def make_picture(height: int, width: int, seed: int = 0) -> Tensor:
    """(3, H, W) noise of many sizes, for measuring where there are no photographs: at every scale there is something to
    find."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((3, height, width), 0.5)
    for cell in _NOISE_CELLS:
        noise = torch.rand(1, 3, height // cell + 2, width // cell + 2, generator=generator) - 0.5
        image += 0.4 * F.interpolate(noise, size=(height, width), mode="bilinear")[0]
    return image.clamp(0, 1)


# Size and frame -------------------------------------------------------------------------------------------------------


def _resized(decoded: Decoded, size: Size, resample: Resample) -> PIL.Image.Image | NDArray[np.float32]:
    """The pixels at ``size``, antialiased."""
    pixels = decoded.pixels
    if size == decoded.stored_size:
        return pixels
    if isinstance(pixels, PIL.Image.Image):
        return resample(pixels, size, decoded.box)
    planes = [resample(PIL.Image.fromarray(np.ascontiguousarray(plane)), size, decoded.box) for plane in pixels]
    return np.stack([np.asarray(plane) for plane in planes]).clip(0, 1)  # (C, H, W); both filters overshoot


def _lanczos(picture: PIL.Image.Image, size: Size, box: Box) -> PIL.Image.Image:
    return picture.resize(size, PIL.Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)


def _bicubic(picture: PIL.Image.Image, size: Size, box: Box) -> PIL.Image.Image:
    """As ``Image.resize(size)`` of Pillow is by default."""
    return picture.resize(size, PIL.Image.Resampling.BICUBIC, box=box)


def _to_tensor(pixels: PIL.Image.Image | NDArray[np.float32]) -> Tensor:
    """(3, H, W) float32 in [0, 1], written in one pass."""
    if isinstance(pixels, PIL.Image.Image):
        levels = np.asarray(pixels)  # (H, W) or (H, W, 3)
        tensor = torch.empty(3, *levels.shape[:2])
        np.divide(levels if levels.ndim == 2 else levels.transpose(2, 0, 1), np.float32(255), out=tensor.numpy())
    else:
        tensor = torch.empty(3, *pixels.shape[1:])
        tensor.numpy()[...] = pixels
    return tensor


def _rotated(stored: Tensor, linear: tuple[tuple[int, int], tuple[int, int]]) -> Tensor:
    """Move the pixels of (..., H, W) by a signed permutation of (x, y)."""
    rotated = stored if linear[0][0] else stored.transpose(-2, -1)
    dims = [dim for dim, row in zip((-1, -2), linear, strict=True) if sum(row) < 0]
    return (rotated.flip(dims) if dims else rotated).contiguous()


def _rotation_back(size: Size, linear: tuple[tuple[int, int], tuple[int, int]]) -> Tensor:
    """The (3, 3) map from the pixels that :func:`_rotated` makes of an image of ``size`` to its own, exact."""
    back = torch.tensor(linear, dtype=torch.float64).T
    transform = torch.eye(3, dtype=torch.float64)
    transform[:2, :2] = back
    for axis, row in enumerate(back):
        transform[axis, 2] = size[axis] - 1 if float(row.sum()) < 0 else 0
    return transform


# Masks of where keypoints are allowed ---------------------------------------------------------------------------------


def _read_mask(source: ImageSource, stored_size: Size) -> NDArray[np.bool_]:
    """(H, W), True where any channel is neither zero nor transparent; checked to have the size of the stored image."""
    if isinstance(source, Tensor):
        tensor = source.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        allowed = _nonzero(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)
    elif isinstance(source, np.ndarray):
        allowed = _nonzero(source)
    else:
        picture, *_ = open_picture(source, None, "ignore", partial(_check_pixels_of_mask, source, stored_size))
        colour, alpha = (picture, None) if is_deep(picture) else colour_and_alpha(picture)
        allowed = _nonzero(np.asarray(colour))
        if alpha is not None:
            allowed &= np.asarray(alpha) != 0
    size = (allowed.shape[1], allowed.shape[0])
    if size != stored_size:
        raise _other_size(source, size, stored_size)
    return allowed


def _check_pixels_of_mask(source: ImageSource, stored_size: Size, size: Size) -> None:
    """As far as it is known before anything is decoded: a rotated TIFF may lie on its side."""
    if math.prod(size) != math.prod(stored_size):
        raise _other_size(source, size, stored_size)


def _other_size(source: ImageSource, size: Size, stored_size: Size) -> ValueError:
    name = f"mask {name_of(source)}".rstrip()
    return ValueError(
        f"{name} is {size_text(size)} pixels but the image is stored with {size_text(stored_size)}; "
        "a mask has the size (width x height) and frame of the image as stored, before EXIF and resizing"
    )


def _nonzero(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "buif":
        raise TypeError(f"mask must be bool, integer or float, got {values.dtype}")
    allowed: NDArray[np.bool_] = np.not_equal(values, 0)
    if values.dtype.kind == "f":
        allowed &= np.isfinite(values)
    if allowed.ndim == 2:
        return allowed
    if allowed.ndim != 3 or allowed.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"mask must have shape (H, W) or, with channels, that of an image, got {values.shape} (channels last)"
        )
    colour: NDArray[np.bool_] = np.any(allowed[..., :3], axis=2)
    return colour & allowed[..., 3] if allowed.shape[2] == 4 else colour


def _resize_mask(allowed: NDArray[np.bool_], size: Size) -> NDArray[np.bool_]:
    """A mask at another ``size``, smaller or larger: a pixel is allowed only if all that it overlaps was."""
    return np.ascontiguousarray(_resize_rows(_resize_rows(allowed, size[1]).T, size[0]).T)


def _resize_rows(allowed: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """Row i of the result is the logical and of all old rows that [i, i + 1) overlaps."""
    old = len(allowed)
    if rows == old:
        return allowed
    spans = (slice(i * old // rows, -(-(i + 1) * old // rows)) for i in range(rows))
    return np.stack([allowed[span].all(axis=0) for span in spans])


# Checks ---------------------------------------------------------------------------------------------------------------


def check_resize(resize: Resize, max_size: int | None) -> int | None:
    """Refuse what :func:`load_image` does not take; ``max_size`` as an int."""
    if resize not in get_args(Resize):
        raise ValueError(f"resize must be 'fit' or 'squash', got {resize!r}")
    if resize == "squash" and max_size is None:
        raise ValueError("resize 'squash' needs a max_size, to which both sides are brought; the paper's is 784")
    side = _check_max_size(max_size)
    if resize == "squash" and side is not None and side**2 > MAX_PIXELS:
        raise ValueError(f"max_size must be at most {math.isqrt(MAX_PIXELS)} to squash images to it, got {side}")
    return side


def _check_max_size(max_size: int | None) -> int | None:
    if max_size is None:
        return None
    try:
        value = operator.index(max_size)
    except TypeError:
        raise TypeError(f"max_size must be a whole number of pixels or None, got {max_size!r}") from None
    if value < 1:
        raise ValueError(f"max_size must be at least 1 pixel, got {value}")
    return value


def _check_rgb(image: Tensor) -> None:
    if image.ndim != 3 or image.shape[0] != 3 or not image.is_floating_point():
        raise ValueError(f"image must be a (3, H, W) float tensor, got {tuple(image.shape)} {image.dtype}")
