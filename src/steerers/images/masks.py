"""Masks of where keypoints are allowed: read in the frame of the stored image, and shrunk with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from torch import Tensor

from steerers.geometry import Size
from steerers.images.decode import ImageSource, colour_and_alpha, is_deep, open_picture, size_text


def read_mask(source: ImageSource, stored_size: Size) -> NDArray[np.bool_]:
    """(H, W), True where any channel is neither zero nor transparent; checked to have the size of the stored image."""
    if isinstance(source, Tensor):
        tensor = source.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        allowed = _nonzero(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)
    elif isinstance(source, np.ndarray):
        allowed = _nonzero(source)
    else:
        allowed = _nonzero_picture(open_picture(source, None, "ignore").picture)
    size = (allowed.shape[1], allowed.shape[0])
    if size != stored_size:
        raise ValueError(
            f"mask is {size_text(size)} pixels but the image is stored with {size_text(stored_size)}; "
            "a mask has the size (width x height) and frame of the image as stored, before EXIF and resizing"
        )
    return allowed


def _nonzero_picture(picture: PIL.Image.Image) -> NDArray[np.bool_]:
    if is_deep(picture):
        return _nonzero(np.asarray(picture))
    colour, alpha = colour_and_alpha(picture)
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


def shrink_mask(allowed: NDArray[np.bool_], size: Size) -> NDArray[np.bool_]:
    """A mask at a smaller ``size``: a pixel stays allowed only if all that it overlaps was."""
    return np.ascontiguousarray(_shrink_rows(_shrink_rows(allowed, size[1]).T, size[0]).T)


def _shrink_rows(allowed: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """Row i of the result is the logical and of all old rows that [i, i + 1) overlaps."""
    old = len(allowed)
    if rows == old:
        return allowed
    spans = (slice(i * old // rows, -(-(i + 1) * old // rows)) for i in range(rows))
    return np.stack([allowed[span].all(axis=0) for span in spans])
