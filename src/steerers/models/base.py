"""What a model is: something that finds keypoints in an image tensor and describes them.

The image is always one (3, H, W) float32 RGB tensor in [0, 1]; keypoints are pixels of *that* tensor with the centre of
the top-left pixel at (0, 0). Reading files, resizing and mapping keypoints back is the pipeline's work, not a model's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steerers.features import Keypoints
from steerers.models.checks import check_image, check_mask


class Detector(ABC, nn.Module):
    """Finds keypoints."""

    @abstractmethod
    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        """At most ``num_keypoints`` keypoints of a (3, H, W) image, best first.

        Args:
            mask: (H, W) bool, True where keypoints are allowed. It acts before the best are selected, so that a mask
                does not cost keypoints.
        """

    def detect_batch(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        """:meth:`detect` for each of (B, 3, H, W) images with (B, H, W) masks; networks may do it in one run."""
        return [
            self.detect(image, num_keypoints=num_keypoints, mask=None if masks is None else masks[index])
            for index, image in enumerate(images)
        ]


class Descriptor(ABC, nn.Module):
    """Describes given keypoints."""

    dim: int

    @abstractmethod
    def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        """(N, dim) descriptions of N keypoints of a (3, H, W) image; not necessarily of unit length."""

    def describe_batch(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        """:meth:`describe` for each of (B, 3, H, W) images; networks may do it in one run."""
        return [self.describe(image, found) for image, found in zip(images, keypoints, strict=True)]


class Extractor(Detector, Descriptor):
    """Detector and descriptor in one. Networks that share their trunk override :meth:`extract` to run it once."""

    def extract(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> tuple[Keypoints, Tensor]:
        """Keypoints of a (3, H, W) image and their (N, dim) descriptions."""
        keypoints = self.detect(image, num_keypoints=num_keypoints, mask=mask)
        return keypoints, self.describe(image, keypoints)

    def extract_batch(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        """:meth:`extract` for each of (B, 3, H, W) images with (B, H, W) masks; networks may do it in one run."""
        return [
            self.extract(image, num_keypoints=num_keypoints, mask=None if masks is None else masks[index])
            for index, image in enumerate(images)
        ]


class BatchExtractor(Extractor):
    """An extractor that works on batches: what is asked of one image follows from :meth:`extract_batch` and
    :meth:`describe_batch`, which it implements."""

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        return _apart(self.extract(image, num_keypoints=num_keypoints, mask=mask)[0])

    def detect_batch(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        return [_apart(found) for found, _ in self.extract_batch(images, num_keypoints=num_keypoints, masks=masks)]

    def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        check_image(image)
        return self.describe_batch(image[None], [keypoints])[0]

    def extract(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> tuple[Keypoints, Tensor]:
        check_image(image)
        check_mask(mask, image.shape[-2:])
        masks = None if mask is None else mask[None]
        return self.extract_batch(image[None], num_keypoints=num_keypoints, masks=masks)[0]


def _apart(keypoints: Keypoints) -> Keypoints:
    """In memory of their own: what a network made together with them, as descriptions, can then be let go."""
    return keypoints.select(torch.arange(len(keypoints), device=keypoints.xy.device))


class Combined(Extractor):
    """The keypoints of one model described by another, as in the paper's Table 1 (SuperPoint's with any)."""

    def __init__(self, detector: Detector, descriptor: Descriptor) -> None:
        super().__init__()
        self.detector, self.descriptor, self.dim = detector, descriptor, descriptor.dim

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        return self.detector.detect(image, num_keypoints=num_keypoints, mask=mask)

    def detect_batch(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        return self.detector.detect_batch(images, num_keypoints=num_keypoints, masks=masks)

    def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return self.descriptor.describe(image, keypoints)

    def describe_batch(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        return self.descriptor.describe_batch(images, keypoints)

    def extract_batch(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        keypoints = self.detect_batch(images, num_keypoints=num_keypoints, masks=masks)
        return list(zip(keypoints, self.describe_batch(images, keypoints), strict=True))
