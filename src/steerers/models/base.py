"""What a model is: something that finds keypoints in images and describes them.

Images are (B, 3, H, W) RGB tensors in [0, 1]; keypoints are pixels of *those* tensors, with the centre of the top-left
pixel at (0, 0). Reading files, resizing and mapping keypoints back is the pipeline's work, not a model's.

A model implements two methods, :meth:`Detector.detect` and :meth:`Descriptor.describe`. A network whose trunk serves
both overrides :meth:`Extractor.extract` to run it once. What takes one image at a time is a :class:`SingleExtractor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from steerers.features import Keypoints

MAX_KEYPOINTS, MAX_TRIED = 2**16, 2**24
"""Most keypoints, and pixels of an image, that a graph is exported or a network timed for: memory grows with both, that
of the compact network to some 6 GB at 4096 x 4096."""


class Detector(ABC, nn.Module):
    """Finds keypoints."""

    @abstractmethod
    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        """At most ``num_keypoints`` keypoints of each of (B, 3, H, W) images, best first.

        Args:
            masks: (B, H, W) bool, True where keypoints are allowed. They act before the best are selected, so that a
                mask does not cost keypoints.
        """


class LogitDetector(Detector):
    """Chooses keypoints from a map of logits, which training can reach."""

    @abstractmethod
    def logits(self, images: Tensor) -> Tensor:
        """(B, H, W) logits of a keypoint at each pixel of (B, 3, H, W) images."""


class Descriptor(ABC, nn.Module):
    """Describes given keypoints."""

    dim: int

    @abstractmethod
    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        """(N, dim) descriptions of the N keypoints of each of (B, 3, H, W) images; not necessarily of unit length."""


class Extractor(Detector, Descriptor):
    """Detector and descriptor in one."""

    parallel: bool = False
    """Whether several threads may extract at once, each from images of its own."""

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        """The keypoints of each of (B, 3, H, W) images and their (N, dim) descriptions."""
        keypoints = self.detect(images, num_keypoints=num_keypoints, masks=masks)
        return list(zip(keypoints, self.describe(images, keypoints), strict=True))


class Combined(Extractor):
    """The keypoints of one model described by another, as in the paper's Table 1 (SuperPoint's with any)."""

    def __init__(self, detector: Detector, descriptor: Descriptor) -> None:
        super().__init__()
        self.detector, self.descriptor, self.dim = detector, descriptor, descriptor.dim

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        return self.detector.detect(images, num_keypoints=num_keypoints, masks=masks)

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        return self.descriptor.describe(images, keypoints)


class SingleDetector(Detector):
    """A detector that takes one image at a time."""

    @abstractmethod
    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        """Keypoints of a (3, H, W) image with an (H, W) mask."""

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        check_batch(images, num_keypoints, masks)
        return [self.detect_one(image, num_keypoints, mask) for image, mask in _each(images, masks)]


class SingleDescriptor(Descriptor):
    """A descriptor that takes one image at a time."""

    @abstractmethod
    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        """(N, dim) descriptions of keypoints of a (3, H, W) image."""

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images)
        return [self.describe_one(image, found) for image, found in zip(images, keypoints, strict=True)]


class SingleExtractor(SingleDetector, SingleDescriptor, Extractor):
    """Both: classical features, or a network that knows no batches."""

    def extract_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> tuple[Keypoints, Tensor]:
        """Keypoints and descriptions; to be overridden where one run gives both."""
        keypoints = self.detect_one(image, num_keypoints, mask)
        return keypoints, self.describe_one(image, keypoints)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        check_batch(images, num_keypoints, masks)
        return [self.extract_one(image, num_keypoints, mask) for image, mask in _each(images, masks)]


def _each(images: Tensor, masks: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    return zip(images, [None] * len(images) if masks is None else masks, strict=True)


# What every model refuses, in the same words --------------------------------------------------------------------------


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
        raise ValueError(f"num_keypoints must be at least 1, got {num_keypoints}")


def check_tried(num_keypoints: int, size: tuple[int, int]) -> None:
    """Refuse, before memory is asked for, what no network is tried with: beyond :data:`MAX_KEYPOINTS` and such."""
    check_count(num_keypoints)
    if num_keypoints > MAX_KEYPOINTS:
        raise ValueError(f"num_keypoints must be at most {MAX_KEYPOINTS}, got {num_keypoints}")
    if min(size) < 1:
        raise ValueError(f"size must be a positive width and height, got {size}")
    if size[0] * size[1] > MAX_TRIED:
        raise ValueError(f"size must be at most {MAX_TRIED / 1e6:.1f} megapixels, got {size[0]} x {size[1]}")


def check_masks(masks: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse what is no masks of maps of that shape, (B, H, W)."""
    if masks is None:
        return
    if masks.dtype != torch.bool:
        raise TypeError(f"masks must be a bool tensor, True where keypoints are allowed, got {masks.dtype}")
    if tuple(masks.shape) != tuple(shape):
        raise ValueError(f"masks must have the images' shape {tuple(shape)}, got {tuple(masks.shape)}")


def check_batch(images: Tensor, num_keypoints: int, masks: Tensor | None, smallest: int = 1) -> tuple[Tensor, ...]:
    """Refuse images, a number of keypoints and masks that cannot be meant; the images, and masks beside them."""
    check_images(images, smallest)
    check_count(num_keypoints)
    check_masks(masks, (len(images), *images.shape[-2:]))
    return (images,) if masks is None else (images, masks.to(images.device))


def check_keypoints(keypoints: Sequence[Keypoints], images: Tensor, smallest: int = 1) -> None:
    """Refuse images that cannot be meant, and keypoints of more or fewer of them than are given."""
    check_images(images, smallest)
    if len(keypoints) != len(images):
        raise ValueError(f"keypoints must be those of {len(images)} images, got those of {len(keypoints)}")
