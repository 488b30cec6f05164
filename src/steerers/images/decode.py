"""Decoding of image files, Pillow images, arrays and tensors into opaque pictures in the frame of the stored image.

Whatever the source, it ends as a :class:`Decoded`, of which :func:`steerers.images.load.load_image` makes what models
see.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from PIL.ExifTags import Base as ExifTag
from torch import Tensor

from steerers._choices import Exif
from steerers.geometry import Size

Encoded: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO
"""A file by its path, its content, or a file that is open; from there, it is read to its end."""
ImageSource: TypeAlias = Encoded | PIL.Image.Image | NDArray[Any] | Tensor
Box: TypeAlias = tuple[float, float, float, float]
Opened: TypeAlias = tuple[PIL.Image.Image, Size, Box, int]  # and the last three as in `Decoded`

MAX_PIXELS = 1_000_000_000
"""The largest image that is read; a larger one is refused before its pixels are decoded."""

MAX_STREAM = 2**30
"""Bytes of an image that comes through a pipe or an open file, and is held as it is; a pipe need not have an end."""

_SOURCES = "a path, bytes, a file opened in binary mode, a Pillow image, a NumPy array or a torch tensor"
_ICON, _ICON_PIXELS = b"\0\0\1\0", 2048**2  # how one begins, and of what it holds, many times the usual 256 x 256
_HEIF = ("heic", "heix", "heim", "heis", "hevc", "hevx", "hevm", "hevs", "mif1", "msf1")
_AVIF = ("avif", "avis")
_FLOAT_SLACK = 1e-4  # rounding in the caller's own resampling may leave [0, 1] by this much

# EXIF orientation -> linear part of the map from stored to upright pixels, as rows.
UPRIGHT = {
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


class Decoded(NamedTuple):
    """An opaque picture in the frame of the stored image, possibly at a lower resolution."""

    pixels: PIL.Image.Image | NDArray[np.float32]  # mode L or RGB; or (1 | 3, H, W) in [0, 1]
    allowed: NDArray[np.bool_] | None  # (H, W) of the stored image
    stored_size: Size
    box: Box  # the extent of the stored image in `pixels`
    orientation: int = 1  # EXIF, to be applied


def decode(source: ImageSource, max_size: int | None, exif: Exif) -> Decoded:
    """A source as an opaque picture; larger than ``max_size`` still, unless its decoder could shrink it."""
    if isinstance(source, np.ndarray):
        return _decode_array(source)
    if isinstance(source, Tensor):
        return _decode_array(_channels_last(source))
    picture, size, box, orientation = open_picture(source, max_size, exif)
    try:
        pixels, allowed = _opaque(picture)
    except ValueError as error:  # a mode that Pillow does not convert to RGB
        raise _broken(source, f"mode {picture.mode} cannot be converted to RGB") from error
    return Decoded(pixels, allowed, size, box, orientation)


def open_picture(
    source: Encoded | PIL.Image.Image, max_size: int | None, exif: Exif, check: Callable[[Size], None] | None = None
) -> Opened:
    """A file or a Pillow image, at its current frame, with the colours and the alpha that it has.

    Args:
        check: raises an error for a size that will not do, before pixels are decoded.
    """
    if not isinstance(source, PIL.Image.Image):
        with open_header(source) as opened:
            if check is not None:
                check(opened.size)
            with _decoder_errors(source):
                return _decode_file(opened, max_size, exif)
    _check_pixels(source.size, name_of(source) or "Pillow image")
    if check is not None:
        check(source.size)
    with _decoder_errors(source):
        _load_pixels(source)
        orientation = _exif_orientation(source) if exif == "apply" else 1
    return source, source.size, (0, 0, *source.size), orientation


def header_size(source: Encoded | PIL.Image.Image) -> Size:
    """(width, height) without decoding; of a TIFF possibly the other way round, where it has an orientation."""
    if isinstance(source, PIL.Image.Image):
        return source.size
    with open_header(source) as opened:
        return opened.size


@contextmanager
def open_header(source: Encoded) -> Iterator[PIL.Image.Image]:
    """A file, open, whose size is known and allowed and whose pixels are not decoded yet.

    No other function opens image files.

    Args:
        source: a path, the content of a file, or an open file, whose ``name`` errors give if it has one.

    Raises:
        FileNotFoundError: if there is no such file.
        ImageError: if it is not an image, or has more than :data:`MAX_PIXELS`.
    """
    with _open_file(source) as file:
        with _decoder_errors(source, file):
            icon = file.read(len(_ICON)) == _ICON
            file.seek(0)
            with _pixel_limit(_ICON_PIXELS if icon else None):  # what an icon holds is decoded as it is opened
                opened = _identify(file)  # not by its path: Pillow would map the file, and misread rotated TIFFs
            _check_pixels(opened.size, _label(source))
            if opened.format == "EPS":
                raise _broken(source, "it is PostScript, a program, which is not run; convert it to PNG or TIFF")
        yield opened


def _decode_file(opened: PIL.Image.Image, max_size: int | None, exif: Exif) -> Opened:
    """The first frame of a file; a JPEG is decoded at a lower resolution if ``max_size`` leaves that much room."""
    size = opened.size
    tiff = opened.format == "TIFF"  # Pillow rotates these upright as it loads them, and drops the tag
    orientation = _exif_orientation(opened) if tiff else 1
    width, height = fit_within(size, max_size)
    drafted = opened.draft(None, (2 * width, 2 * height))
    _load_pixels(opened)
    if tiff:
        stored = opened.transpose(_UNDO[orientation]) if orientation in _UNDO else opened
        return stored, stored.size, (0, 0, *stored.size), orientation if exif == "apply" else 1
    orientation = _exif_orientation(opened) if exif == "apply" else 1
    if drafted:
        return opened, size, drafted[1], orientation
    return opened, opened.size, (0, 0, *opened.size), orientation  # decoded, some formats have another size


def _open_file(source: Encoded) -> AbstractContextManager[BinaryIO]:
    """A file that can be read from its start as often as need be."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, (str, os.PathLike)):
        if not hasattr(source, "read"):
            raise TypeError(f"an image or mask must be {_SOURCES}, got {type(source).__name__}")
        return _read_stream(source, source)
    path = Path(source)
    if path.is_dir():
        raise _broken(path, "it is a directory")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"no such image: {path}") from None
    if file.seekable():
        return file
    with file:
        return _read_stream(file, source)


def _read_stream(stream: BinaryIO, source: Encoded) -> io.BytesIO:
    """What a pipe gives, or a file of the caller's, to its end."""
    content = io.BytesIO()
    while piece := stream.read(2**20):  # some give less than they are asked for
        if not isinstance(piece, bytes):
            raise TypeError(f"a file of an image must be opened in binary mode, got one that reads {type(piece)}")
        if content.write(piece) and content.tell() > MAX_STREAM:
            raise _broken(source, f"it goes on beyond {MAX_STREAM:,} bytes; give the path of a file instead")
    content.seek(0)
    return content


def _identify(file: BinaryIO) -> PIL.Image.Image:
    """The picture in a file, not yet decoded; what Pillow does not know by itself, with the package that does."""
    try:
        return PIL.Image.open(file)
    except PIL.UnidentifiedImageError:
        file.seek(0)
        head = file.read(12)
        brand = head[8:].decode("latin-1") if head[4:8] == b"ftyp" else ""
        file.seek(0)
        if brand in _AVIF:
            raise ImportError("it is AVIF, which Pillow reads from 11.3 on: pip install --upgrade pillow") from None
        if brand not in _HEIF:
            raise
    try:
        import pillow_heif
    except ImportError:
        raise ImportError('it is HEIC, which needs pillow-heif: pip install "steerers[heif]"') from None
    pillow_heif.register_heif_opener()
    return PIL.Image.open(file)


# Pillow's limit -------------------------------------------------------------------------------------------------------


def _load_pixels(picture: PIL.Image.Image) -> None:
    """Decode; where the size is above Pillow's limit, which it holds some formats against again, with our own."""
    with _PIXEL_LIMIT_LOCK:
        limit = PIL.Image.MAX_IMAGE_PIXELS
    if limit is None or picture.width * picture.height <= limit:
        picture.load()
        return
    with _pixel_limit(MAX_PIXELS):
        picture.load()


_PIXEL_LIMIT_LOCK = threading.Lock()


@contextmanager
def _pixel_limit(limit: int | None) -> Iterator[None]:
    """Sets Pillow's process-wide limit on pixels, one thread at a time, and puts it back.

    Sizes are checked against :data:`MAX_PIXELS` instead, between reading the header and decoding.
    """
    with _PIXEL_LIMIT_LOCK:
        before = PIL.Image.MAX_IMAGE_PIXELS
        PIL.Image.MAX_IMAGE_PIXELS = limit
        try:
            yield
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = before


@contextmanager
def _decoder_errors(source: Encoded | PIL.Image.Image, file: BinaryIO | None = None) -> Iterator[None]:
    """Decoders raise almost anything on broken data; the caller gets an :class:`ImageError` with the path."""
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise _broken(source, "its pixels need more memory than there is") from error
    except PIL.UnidentifiedImageError as error:
        empty = file is not None and file.seek(0, os.SEEK_END) == 0
        reason = "it is not an image, or damaged, or in a format Pillow does not read"
        if empty:
            read = not isinstance(source, (str, os.PathLike, bytes))
            reason = "the file is empty, or was read before" if read else "the file is empty"
        raise _broken(source, reason) from error
    except PIL.Image.DecompressionBombError as error:  # an image within it is larger than it says itself to be
        raise _broken(source, "it holds an image that is larger than the file says") from error
    except Exception as error:
        raise _broken(source, str(error) or type(error).__name__) from error


def _broken(source: ImageSource, reason: str) -> ImageError:
    return ImageError(f"cannot read image {_label(source)}: {' '.join(reason.split())}")


def _exif_orientation(picture: PIL.Image.Image) -> int:
    """1 to 8; 1, upright, also where the tag is missing, out of range or in a block that cannot be read."""
    try:
        value = picture.getexif().get(ExifTag.Orientation, 1)
    except Exception:  # parsers of broken blocks raise almost anything
        return 1
    return value if value in UPRIGHT else 1


# Colour and alpha -----------------------------------------------------------------------------------------------------


def _opaque(picture: PIL.Image.Image) -> tuple[PIL.Image.Image | NDArray[np.float32], NDArray[np.bool_] | None]:
    """A picture as L, RGB, or (1, H, W) float32 in [0, 1], and where it may be used (``None``: everywhere)."""
    if is_deep(picture):
        values = np.asarray(picture)  # (H, W)
        allowed = _valid(picture, values)
        return _stretch(values, allowed)[None], allowed
    colour, alpha = colour_and_alpha(picture)
    if alpha is None:
        return colour, None
    grey = PIL.Image.new(colour.mode, colour.size, 128 if colour.mode == "L" else (128, 128, 128))
    grey.paste(colour, (0, 0), alpha)
    return grey, _unless_all(np.asarray(alpha) != 0)


def is_deep(picture: PIL.Image.Image) -> bool:
    """Whether pixels are single numbers of more than 8 bits."""
    return picture.mode in ("I", "F") or picture.mode.startswith("I;16")


def _valid(picture: PIL.Image.Image, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where a deep picture has a finite value other than the one its file calls transparent."""
    valid = np.isfinite(values) if values.dtype.kind == "f" else None
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        valid = combine(valid, values != transparent)
    return None if valid is None else _unless_all(valid)


def colour_and_alpha(picture: PIL.Image.Image) -> tuple[PIL.Image.Image, PIL.Image.Image | None]:
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


def combine(first: NDArray[np.bool_] | None, second: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Where both allow keypoints; ``None`` allows them everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _unless_all(allowed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    return None if allowed.all() else allowed


# Arrays ---------------------------------------------------------------------------------------------------------------


def _channels_last(tensor: Tensor) -> NDArray[Any]:
    """A (1 | 3, H, W) tensor, or a batch of one, as a (H, W, C) array."""
    given = tuple(tensor.shape)
    tensor = tensor[0] if tensor.ndim == 4 and len(tensor) == 1 else tensor
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        raise ValueError(
            f"an image tensor must have shape (3, H, W), (1, H, W) or (1, 3, H, W), got {given}; of several images "
            "a Pipeline extracts the features: extract(images)"
        )
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise TypeError(f"an image tensor must be uint8, or float in [0, 1], got {tensor.dtype}")
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.uint8 else tensor.float()).permute(1, 2, 0).numpy()


def _decode_array(values: NDArray[Any]) -> Decoded:
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
    return Decoded(pixels, allowed, size, (0, 0, *size))


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


# Size and name --------------------------------------------------------------------------------------------------------


def fit_within(size: Size, max_size: int | None) -> Size:
    """``size``, shrunk if need be to a longest side of ``max_size``; keeps the aspect as well as whole pixels can."""
    longest = max(size)
    if max_size is None or longest <= max_size:
        return size
    width, height = (max(1, round(side * max_size / longest)) for side in size)
    return width, height


def _check_pixels(size: Size, name: str) -> None:
    width, height = size
    if width * height == 0:
        raise ImageError(f"{name} has no pixels: its size is {size_text(size)}")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} is {size_text(size)} = {width * height / 1e6:.0f} megapixels, more than the {MAX_PIXELS // 10**6} "
            "that are read at once; cut it into tiles or reduce it first"
        )


def size_text(size: Size) -> str:
    """A size as messages give it."""
    return f"{size[0]} x {size[1]}"


def name_of(source: ImageSource) -> str:
    """The path of a source, or "" where it has none."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, (bytes, np.ndarray, Tensor)):
        return ""
    name = getattr(source, "filename" if isinstance(source, PIL.Image.Image) else "name", "")
    return name if isinstance(name, str) else ""


def _label(source: ImageSource) -> str:
    """What messages call a source."""
    kind = (
        "a Pillow image" if isinstance(source, PIL.Image.Image) else "bytes" if isinstance(source, bytes) else "a file"
    )
    return name_of(source) or f"({kind})"
