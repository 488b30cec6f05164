"""Images as models see them: reading, EXIF, resizing that keeps the aspect, masks, tensors.

:func:`load_image` turns a path, a Pillow image, an array or a tensor into an :class:`Image`: a (3, H, W) tensor with
the map that leads from its pixels back to those of the image as stored. Whatever is done to the picture on the way
(shrinking, turning upright), that map tells; nothing else in the package needs to know.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from PIL.ExifTags import Base as ExifTag
from torch import Tensor

from steerers.geometry import scaling

ImageSource: TypeAlias = str | os.PathLike[str] | PIL.Image.Image | NDArray[Any] | Tensor
Exif = Literal["ignore", "apply"]
Size: TypeAlias = tuple[int, int]  # (width, height)

MAX_PIXELS = 1_000_000_000
"""The largest image that is read; a larger one is refused before its pixels are decoded."""

_SOURCES = "a path, a Pillow image, a NumPy array or a torch tensor"
_FLOAT_SLACK = 1e-4  # rounding in the caller's own resampling may leave [0, 1] by this much

# EXIF orientation -> linear part of the map from stored to upright pixels, as rows.
_UPRIGHT = {
    1: ((1, 0), (0, 1)),
    2: ((-1, 0), (0, 1)),
    3: ((-1, 0), (0, -1)),
    4: ((1, 0), (0, -1)),
    5: ((0, 1), (1, 0)),
    6: ((0, -1), (1, 0)),
    7: ((0, -1), (-1, 0)),
    8: ((0, 1), (-1, 0)),
}
# EXIF orientation -> what takes an upright picture back to the stored one.
_UNDO = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_90,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_270,
}


class ImageError(ValueError):
    """An image that cannot be used: a file that is broken or no image, or one without pixels, or with too many."""


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


def load_image(
    source: ImageSource, *, max_size: int | None = None, exif: Exif = "ignore", mask: ImageSource | None = None
) -> Image:
    """Read an image.

    Grey becomes three equal channels. Pixel values of more than 8 bits (modes I;16, I and F, and uint16 arrays) are
    stretched linearly from their smallest and largest finite value to [0, 1], because satellites and microscopes use a
    part of the range; a constant image becomes mid-grey. Transparent pixels (alpha 0) and pixels that are not finite
    are kept out of the mask, and colour is laid over mid-grey by its alpha. Of several frames the first is read.

    Args:
        source: a path to any format that Pillow reads; a Pillow image; a (H, W) or (H, W, 1 | 3 | 4) array, RGB(A)
            uint8, uint16, or float in [0, 1]; a (1 | 3, H, W) tensor, uint8 or float in [0, 1].
        max_size: the longest side is shrunk to this many pixels if it is longer; the aspect is kept.
        exif: ``"apply"`` turns the tensor upright as the EXIF orientation says; ``"ignore"`` takes pixels as stored.
            Keypoints mapped by ``to_stored`` are stored pixels either way.
        mask: an image source of the size of the stored image, never turned by an EXIF tag of its own; keypoints are
            allowed where any of its channels is not zero. A (H, W) tensor will do too.

    Raises:
        FileNotFoundError: if there is no such file.
        ImageError: if a file is not a readable image, or an image is empty or larger than :data:`MAX_PIXELS`.
        ValueError: if an array, tensor, mask or option has a wrong shape or value.
        TypeError: if the source or its dtype is not one of the above.
    """
    if exif not in get_args(Exif):
        raise ValueError(f"exif must be 'ignore' or 'apply', got {exif!r}")
    max_size = _check_max_size(max_size)
    decoded = _decode(source, max_size, exif)
    allowed = _combine(decoded.allowed, None if mask is None else _read_mask(mask, decoded.stored_size))
    size = _fit(decoded.stored_size, max_size)
    linear = _UPRIGHT[decoded.orientation]
    return Image(
        tensor=_turn(_to_tensor(_shrink(decoded, size)), linear),
        to_stored=scaling(size, decoded.stored_size) @ _turn_back(size, linear),
        stored_size=decoded.stored_size,
        mask=None if allowed is None else _turn(torch.from_numpy(_shrink_mask(allowed, size)), linear),
        name=_name(source),
    )


def to_uint8(image: Tensor) -> NDArray[np.uint8]:
    """A (3, H, W) float image in [0, 1] as a (H, W, 3) uint8 array, rounded, for classical features and drawing."""
    _check_rgb(image)
    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    array: NDArray[np.uint8] = levels.permute(1, 2, 0).contiguous().cpu().numpy()
    return array


def to_grey(image: Tensor) -> NDArray[np.uint8]:
    """A (3, H, W) float image in [0, 1] as (H, W) uint8 luma (ITU-R 601, as OpenCV and Pillow), rounded."""
    _check_rgb(image)
    red, green, blue = image.detach().float()
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    array: NDArray[np.uint8] = (luma.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return array


# Decoding -------------------------------------------------------------------------------------------------------------


class _Decoded(NamedTuple):
    """An opaque picture in the frame of the stored image, possibly at a lower resolution."""

    pixels: PIL.Image.Image | NDArray[np.float32]  # mode L or RGB; or (1 | 3, H, W) in [0, 1]
    allowed: NDArray[np.bool_] | None  # (H, W) of the stored image
    stored_size: Size
    box: tuple[float, float, float, float]  # the extent of the stored image in `pixels`
    orientation: int = 1  # EXIF, to be applied


class _Picture(NamedTuple):
    """A Pillow image with its pixels in memory, in the frame of the stored image."""

    picture: PIL.Image.Image
    stored_size: Size
    box: tuple[float, float, float, float]
    orientation: int


def _decode(source: ImageSource, max_size: int | None, exif: Exif) -> _Decoded:
    if isinstance(source, np.ndarray):
        return _decode_array(source)
    if isinstance(source, Tensor):
        return _decode_array(_channels_last(source))
    opened = _open(source, max_size, exif)
    try:
        pixels, allowed = _opaque(opened.picture)
    except ValueError as error:  # a mode that Pillow does not convert to RGB
        raise _broken(source, f"mode {opened.picture.mode} cannot be converted to RGB") from error
    return _Decoded(pixels, allowed, opened.stored_size, opened.box, opened.orientation)


def _open(source: str | os.PathLike[str] | PIL.Image.Image, max_size: int | None, exif: Exif) -> _Picture:
    if isinstance(source, PIL.Image.Image):
        return _load_picture(source, exif)
    if isinstance(source, (str, os.PathLike)):
        return _load_file(Path(source), max_size, exif)
    raise TypeError(f"an image or mask must be {_SOURCES}, got {type(source).__name__}")


def _load_picture(picture: PIL.Image.Image, exif: Exif) -> _Picture:
    """A picture that the caller opened: as it is, at its current frame, without changing its size or mode."""
    _check_pixels(picture.size, _name(picture) or "Pillow image")
    with _decoder_errors(picture):
        picture.load()
        orientation = _exif_orientation(picture) if exif == "apply" else 1
    return _Picture(picture, picture.size, (0, 0, *picture.size), orientation)


def _load_file(path: Path, max_size: int | None, exif: Exif) -> _Picture:
    """The first frame of a file; a JPEG is decoded at a lower resolution if ``max_size`` leaves that much room."""
    with _open_file(path) as file, _decoder_errors(path):
        with _no_pixel_limit() as limit:
            opened = PIL.Image.open(file)  # by its handle: Pillow maps files given by path, and misreads turned TIFFs
        size = opened.size
        _check_pixels(size, str(path))
        turns = opened.format == "TIFF"  # Pillow turns these upright as it loads them, and drops the tag
        orientation = _exif_orientation(opened) if turns else 1
        width, height = _fit(size, max_size)
        drafted = opened.draft(None, (2 * width, 2 * height))
        lifted = limit is not None and size[0] * size[1] > limit
        with _no_pixel_limit() if lifted else nullcontext():  # a TIFF is held against the limit a second time
            opened.load()
        if turns:
            stored = opened.transpose(_UNDO[orientation]) if orientation in _UNDO else opened
            return _Picture(stored, stored.size, (0, 0, *stored.size), orientation if exif == "apply" else 1)
        orientation = _exif_orientation(opened) if exif == "apply" else 1
    return _Picture(opened, size, drafted[1] if drafted else (0, 0, *size), orientation)


def _open_file(path: Path) -> BinaryIO:
    if path.is_dir():
        raise _broken(path, "it is a directory")
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"no such image: {path}") from None


_PIXEL_LIMIT_LOCK = threading.Lock()


@contextmanager
def _no_pixel_limit() -> Iterator[int | None]:
    """Lifts Pillow's process-wide limit on pixels, one thread at a time, and puts it back; yields what it was.

    Files are checked against :data:`MAX_PIXELS` instead, between reading the header and decoding.
    """
    with _PIXEL_LIMIT_LOCK:
        limit = PIL.Image.MAX_IMAGE_PIXELS
        PIL.Image.MAX_IMAGE_PIXELS = None
        try:
            yield limit
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = limit


@contextmanager
def _decoder_errors(source: Path | PIL.Image.Image) -> Iterator[None]:
    """Decoders raise almost anything on broken data; the caller gets an :class:`ImageError` with the path."""
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except PIL.UnidentifiedImageError as error:
        empty = isinstance(source, Path) and source.stat().st_size == 0
        reason = "the file is empty" if empty else "it is not an image, or damaged, or in a format Pillow does not read"
        raise _broken(source, reason) from error
    except Exception as error:
        raise _broken(source, str(error) or type(error).__name__) from error


def _broken(source: str | os.PathLike[str] | PIL.Image.Image, reason: str) -> ImageError:
    return ImageError(f"cannot read image {_name(source) or '(a Pillow image)'}: {' '.join(reason.split())}")


def _exif_orientation(picture: PIL.Image.Image) -> int:
    """1 to 8; 1, upright, also where the tag is missing, out of range or in a block that cannot be read."""
    try:
        value = picture.getexif().get(ExifTag.Orientation, 1)
    except Exception:  # parsers of broken blocks raise almost anything
        return 1
    return value if value in _UPRIGHT else 1


# Colour and alpha -----------------------------------------------------------------------------------------------------


def _opaque(picture: PIL.Image.Image) -> tuple[PIL.Image.Image | NDArray[np.float32], NDArray[np.bool_] | None]:
    """A picture as L, RGB, or (1, H, W) float32 in [0, 1], and where it may be used (``None``: everywhere)."""
    if _is_deep(picture):
        values = np.asarray(picture)  # (H, W)
        allowed = _valid(picture, values)
        return _stretch(values, allowed)[None], allowed
    colour, alpha = _colour_and_alpha(picture)
    if alpha is None:
        return colour, None
    grey = PIL.Image.new(colour.mode, colour.size, 128 if colour.mode == "L" else (128, 128, 128))
    grey.paste(colour, (0, 0), alpha)
    return grey, _unless_all(np.asarray(alpha) != 0)


def _is_deep(picture: PIL.Image.Image) -> bool:
    """Whether pixels are single numbers of more than 8 bits."""
    return picture.mode in ("I", "F") or picture.mode.startswith("I;16")


def _valid(picture: PIL.Image.Image, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where a deep picture has a finite value other than the one its file calls transparent."""
    valid = np.isfinite(values) if values.dtype.kind == "f" else None
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        valid = _combine(valid, values != transparent)
    return None if valid is None else _unless_all(valid)


def _colour_and_alpha(picture: PIL.Image.Image) -> tuple[PIL.Image.Image, PIL.Image.Image | None]:
    """The colour of a picture of 8 bits, as L or RGB, and its alpha, ``None`` where it is opaque throughout."""
    grey = picture.mode in ("1", "L", "LA", "La")
    alpha = None
    if picture.has_transparency_data:
        picture = _convert(picture, "LA" if grey else "RGBA")
        alpha = picture.getchannel("A")
        if alpha.getextrema() == (255, 255):
            alpha = None
    return _convert(picture, "L" if grey else "RGB"), alpha


def _convert(picture: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    return picture if picture.mode == mode else picture.convert(mode)  # Pillow's own copies if there is nothing to do


def _stretch(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[np.float32]:
    """Values from their smallest..largest to 0..1; a constant, and what is not valid, to 0.5.

    Args:
        values: (H, W) or (H, W, C), of any real dtype; the channels share one range.
        valid: (H, W), or ``None`` if all are.
    """
    used = values if valid is None else values[valid]
    low, high = (float(used.min()), float(used.max())) if used.size else (0.0, 0.0)
    stretched = np.full(values.shape, 0.5, np.float32)
    if high > low:
        for row, out in zip(values, stretched, strict=True):  # by rows: no second full-size copy in float64
            out[...] = (row.astype(np.float64) - low) / (high - low)
    if valid is not None:
        stretched[~valid] = 0.5
    return stretched


# Arrays ---------------------------------------------------------------------------------------------------------------


def _channels_last(tensor: Tensor) -> NDArray[Any]:
    """A (1 | 3, H, W) tensor as a (H, W, C) array."""
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        raise ValueError(f"an image tensor must have shape (3, H, W) or (1, H, W), got {tuple(tensor.shape)}")
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise TypeError(f"an image tensor must be uint8, or float in [0, 1], got {tensor.dtype}")
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.uint8 else tensor.float()).permute(1, 2, 0).numpy()


def _decode_array(values: NDArray[Any]) -> _Decoded:
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"an image array must have shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), got {values.shape}; "
            "a (3, H, W) image is given as a torch tensor"
        )
    size = (values.shape[1], values.shape[0])
    _check_pixels(size, "image array")
    pixels: PIL.Image.Image | NDArray[np.float32]
    if values.dtype == np.uint8:
        pixels, allowed = _opaque(PIL.Image.fromarray(values[..., 0] if values.shape[2] == 1 else values))
    elif values.dtype.kind == "f" or (values.dtype.kind == "u" and values.dtype.itemsize == 2):
        pixels, allowed = _opaque_array(values)
    else:
        raise TypeError(f"an image array must be uint8, uint16, or float in [0, 1], got {values.dtype}")
    return _Decoded(pixels, allowed, size, (0, 0, *size))


def _opaque_array(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
    """A (H, W, 1 | 3 | 4) uint16 or float array as (1 | 3, H, W) in [0, 1], and where it may be used."""
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # NaN too
            raise ValueError(
                f"a float image must lie in [0, 1], got values from {low:g} to {high:g}; divide by its largest "
                "possible value (255 for 8 bits), or give it as uint8"
            )
        values = values.astype(np.float32).clip(0, 1)
    alpha = values[..., 3] if values.shape[2] == 4 else None
    colour = values[..., :3] if alpha is not None else values
    allowed = None if alpha is None else _unless_all(alpha != 0)
    if values.dtype.kind == "u":
        colour = _stretch(colour, allowed)
    if alpha is not None:
        weight = (alpha / np.float32(1 if alpha.dtype.kind == "f" else 65535)).astype(np.float32)[..., None]
        colour = colour * weight + 0.5 * (1 - weight)
    return np.moveaxis(colour, -1, 0), allowed


# Masks ----------------------------------------------------------------------------------------------------------------


def _read_mask(source: ImageSource, stored_size: Size) -> NDArray[np.bool_]:
    """(H, W), True where any channel is neither zero nor transparent; checked to have the size of the stored image."""
    if isinstance(source, Tensor):
        tensor = source.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        allowed = _nonzero(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)
    elif isinstance(source, np.ndarray):
        allowed = _nonzero(source)
    else:
        allowed = _nonzero_picture(_open(source, None, "ignore").picture)
    size = (allowed.shape[1], allowed.shape[0])
    if size != stored_size:
        raise ValueError(
            f"mask is {_by(size)} pixels but the image is stored with {_by(stored_size)}; "
            "a mask has the size (width x height) and frame of the image as stored, before EXIF and resizing"
        )
    return allowed


def _nonzero_picture(picture: PIL.Image.Image) -> NDArray[np.bool_]:
    if _is_deep(picture):
        return _nonzero(np.asarray(picture))
    colour, alpha = _colour_and_alpha(picture)
    return _nonzero(np.asarray(colour)) if alpha is None else _nonzero(np.asarray(colour)) & (np.asarray(alpha) != 0)


def _nonzero(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "buif":
        raise TypeError(f"mask must be bool, integer or float, got {values.dtype}")
    allowed: NDArray[np.bool_] = np.logical_and(values != 0, np.isfinite(values))
    if allowed.ndim == 2:
        return allowed
    if allowed.ndim != 3 or allowed.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"mask must have shape (H, W) or, with channels, that of an image, got {values.shape} (channels last)"
        )
    colour: NDArray[np.bool_] = np.any(allowed[..., :3], axis=2)
    return colour & allowed[..., 3] if allowed.shape[2] == 4 else colour


def _combine(first: NDArray[np.bool_] | None, second: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _unless_all(allowed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    return None if allowed.all() else allowed


def _shrink_mask(allowed: NDArray[np.bool_], size: Size) -> NDArray[np.bool_]:
    """A mask at a smaller ``size``: a pixel stays allowed only if all that it overlaps was."""
    return np.ascontiguousarray(_shrink_rows(_shrink_rows(allowed, size[1]).T, size[0]).T)


def _shrink_rows(allowed: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """Row i of the result is the logical and of all old rows that [i, i + 1) overlaps."""
    old = len(allowed)
    if rows == old:
        return allowed
    spans = (slice(i * old // rows, -(-(i + 1) * old // rows)) for i in range(rows))
    return np.stack([allowed[span].all(axis=0) for span in spans])


# Size and frame -------------------------------------------------------------------------------------------------------


def _fit(size: Size, max_size: int | None) -> Size:
    """``size``, shrunk if need be to a longest side of ``max_size``; keeps the aspect as well as whole pixels can."""
    longest = max(size)
    if max_size is None or longest <= max_size:
        return size
    width, height = (max(1, round(side * max_size / longest)) for side in size)
    return width, height


def _shrink(decoded: _Decoded, size: Size) -> PIL.Image.Image | NDArray[np.float32]:
    """The pixels at ``size``, antialiased."""
    pixels = decoded.pixels
    if size == decoded.stored_size:
        return pixels
    if isinstance(pixels, PIL.Image.Image):
        return _lanczos(pixels, size, decoded.box)
    planes = [_lanczos(PIL.Image.fromarray(np.ascontiguousarray(plane)), size, decoded.box) for plane in pixels]
    return np.stack([np.asarray(plane) for plane in planes]).clip(0, 1)  # (C, H, W); Lanczos overshoots


def _lanczos(picture: PIL.Image.Image, size: Size, box: tuple[float, float, float, float]) -> PIL.Image.Image:
    return picture.resize(size, PIL.Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)


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


def _turn(stored: Tensor, linear: tuple[tuple[int, int], tuple[int, int]]) -> Tensor:
    """Move the pixels of (..., H, W) by a signed permutation of (x, y)."""
    turned = stored if linear[0][0] else stored.transpose(-2, -1)
    dims = [dim for dim, row in zip((-1, -2), linear, strict=True) if sum(row) < 0]
    return (turned.flip(dims) if dims else turned).contiguous()


def _turn_back(size: Size, linear: tuple[tuple[int, int], tuple[int, int]]) -> Tensor:
    """The (3, 3) map from the pixels that :func:`_turn` makes of an image of ``size`` to that image's own, exact."""
    back = torch.tensor(linear, dtype=torch.float64).T
    transform = torch.eye(3, dtype=torch.float64)
    transform[:2, :2] = back
    for axis, row in enumerate(back):
        transform[axis, 2] = size[axis] - 1 if float(row.sum()) < 0 else 0
    return transform


# Checks ---------------------------------------------------------------------------------------------------------------


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


def _check_pixels(size: Size, name: str) -> None:
    width, height = size
    if width * height == 0:
        raise ImageError(f"{name} has no pixels: its size is {_by(size)}")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} is {_by(size)} = {width * height / 1e6:.0f} megapixels, more than the {MAX_PIXELS // 10**6} "
            "that are read at once; cut it into tiles or reduce it first"
        )


def _check_rgb(image: Tensor) -> None:
    if image.ndim != 3 or image.shape[0] != 3 or not image.is_floating_point():
        raise ValueError(f"image must be a (3, H, W) float tensor, got {tuple(image.shape)} {image.dtype}")


def _by(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def _name(source: ImageSource) -> str:
    """The path of a source, or "" for arrays and tensors."""
    if isinstance(source, PIL.Image.Image):
        name = getattr(source, "filename", "")
        return name if isinstance(name, str) else ""
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
