"""For your own descriptor: does a steerer steer it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints, Numbers, as_tensor
from steerers.geometry import rotate_image, transform_points
from steerers.steering.steerer import Steerer


@runtime_checkable
class Describes(Protocol):
    """What every descriptor of :mod:`steerers.models` does."""

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]: ...


Describer = Describes | Callable[[Tensor, Tensor], Tensor]
"""A model, or any function of a (C, H, W) image and (N, 2) keypoints in its pixels that gives (N, D) descriptions."""


def describe_image(describe: Describer, image: Tensor, keypoints: Keypoints) -> Tensor:
    """(N, D) descriptions of the keypoints of one (C, H, W) image."""
    if isinstance(describe, Describes):
        return describe.describe(image[None], [keypoints])[0]
    return describe(image, keypoints.xy)


def describe_keypoint(describe: Describer, image: Tensor, keypoint: Keypoints) -> Tensor:
    """(1, D) description of the one keypoint of a (C, H, W) image.

    Raises:
        ValueError: if it is zero, as where a classical descriptor sees no gradient.
    """
    description = describe_image(describe, image, keypoint)
    if not bool(description.any()):
        x, y = keypoint.xy[0].tolist()
        raise ValueError(f"the image is flat around ({x:.0f}, {y:.0f}), so that there is nothing to describe")
    return description


def describe_rotated(
    describe: Describer, image: Tensor, keypoints: Keypoints, angle: float, *, fill: float = 0.0
) -> Tensor:
    """(N, D) descriptions of the same keypoints after the image has rotated counter-clockwise by ``angle`` radians.

    Args:
        image: (C, H, W); it rotates onto a canvas that holds all of it, and what that adds is ``fill``. Quarter turns
            are exact, others are sampled bilinearly.
        keypoints: in pixels of the upright image; positions and orientations rotate with it.
    """
    if angle == 0.0:
        return describe_image(describe, image, keypoints)
    rotated, transform = rotate_image(image, angle, fill)
    orientations = None if keypoints.orientations is None else keypoints.orientations + angle
    moved = replace(keypoints, xy=transform_points(transform, keypoints.xy), orientations=orientations)
    return describe_image(describe, rotated.contiguous(), moved)


def equivariance(
    describe: Describer, steerer: Steerer, image: Numbers, keypoints: Numbers | Keypoints, angle: float
) -> Tensor:
    """Cosines of steered with recomputed descriptions when an image rotates counter-clockwise by ``angle`` radians.

    Args:
        image: (C, H, W); quarter turns are exact, others are sampled bilinearly onto a canvas that holds the image.
        keypoints: (N, 2) pixels, or what a detector found, with scales and orientations for who needs them.

    Returns:
        (N,) cosines; 1 where ``steer(d(I), angle)`` is the direction of ``d(I rotated)``.
    """
    image = as_tensor("image", image)
    if isinstance(keypoints, Keypoints):
        points = keypoints
    else:
        xy = as_tensor("keypoints", keypoints)
        points = Keypoints(xy, xy.new_ones(len(xy)))
    steered = steerer.steer(describe_image(describe, image, points), angle)
    recomputed = describe_rotated(describe, image, points, angle)
    return F.cosine_similarity(steered, recomputed.to(steered), dim=-1)


def assert_equivariant(
    describe: Describer,
    steerer: Steerer,
    image: Numbers,
    keypoints: Numbers | Keypoints,
    *,
    angles: Sequence[float] | None = None,
    min_cosine: float = 0.99,
) -> None:
    """Check that ``steerer`` steers the descriptor ``describe``, to be called from a test.

    Args:
        describe: a model, or a function of a (C, H, W) image and (N, 2) keypoints in its pixels.
        image: (C, H, W), and ``keypoints``: see :func:`equivariance`.
        angles: rotations in radians; by default those of C_n, or every 30 degrees for SO(2).
        min_cosine: least mean cosine of steered with recomputed descriptions at every angle.

    Raises:
        AssertionError: naming the worst angle and its mean cosine.
    """
    if angles is not None and len(angles) == 0:
        raise ValueError("assert_equivariant needs at least one angle: with none there is nothing to check")
    if len(keypoints) == 0:
        raise ValueError("assert_equivariant needs at least one keypoint: with none there is nothing to check")
    if angles is None:
        rotations = steerer.discretised(12).group.angles() if steerer.group.continuous else steerer.group.angles()
        angles = [float(rotation) for rotation in rotations]
    with torch.no_grad():
        means = [float(equivariance(describe, steerer, image, keypoints, angle).mean()) for angle in angles]
    worst = min(range(len(means)), key=lambda k: -math.inf if math.isnan(means[k]) else means[k])
    if not means[worst] >= min_cosine:
        raise AssertionError(
            f"the steerer does not steer this descriptor: at a rotation of {math.degrees(angles[worst]):g} degrees the "
            f"mean cosine of steered with recomputed descriptions is {means[worst]:.4f}, less than {min_cosine}"
        )
