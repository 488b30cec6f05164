"""What every model refuses, in the same words: images, masks and numbers that cannot be meant."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerers.features import Keypoints


def check_image(image: Tensor) -> None:
    """Refuse what is not one (3, H, W) image in floating point."""
    if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise ValueError(f"image must have shape (3, H, W), got {tuple(image.shape)}")
    if not image.is_floating_point():
        raise TypeError(f"image must be floating point in [0, 1], got {image.dtype}; divide 8-bit values by 255")


def check_images(images: Tensor, smallest: int = 1) -> None:
    """Refuse what is no (B, 3, H, W) images in floating point, or has a side of less than ``smallest`` pixels."""
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[-2:]) < smallest:
        raise ValueError(
            f"images must have shape (B, 3, H, W) with sides of at least {smallest}, got {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point in [0, 1], got {images.dtype}; divide 8-bit values by 255")


def check_count(num_keypoints: int) -> None:
    """Refuse a number of keypoints below one."""
    if num_keypoints < 1:
        raise ValueError(f"num_keypoints must be positive, got {num_keypoints}")


def check_mask(mask: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse what is no mask of a map of that shape."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be a bool tensor, True where keypoints are allowed, got {mask.dtype}")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"mask must have the image's shape {tuple(shape)}, got {tuple(mask.shape)}")


def check_batch(images: Tensor, num_keypoints: int, masks: Tensor | None, smallest: int = 1) -> tuple[Tensor, ...]:
    """Refuse what cannot be meant of images, a number of keypoints and masks; the images, and masks beside them."""
    check_images(images, smallest)
    check_count(num_keypoints)
    check_mask(masks, (len(images), *images.shape[-2:]))
    return (images,) if masks is None else (images, masks.to(images.device))


def check_keypoints(keypoints: Sequence[Keypoints], images: Tensor) -> None:
    """Refuse keypoints of more or fewer images than are given."""
    if len(keypoints) != len(images):
        raise ValueError(f"keypoints must be those of {len(images)} images, got those of {len(keypoints)}")
