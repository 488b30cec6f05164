"""What is at hand while pairs are matched: images as they are shown, and features, each made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from steerers.benchmarks.speed.measure import now
from steerers.benchmarks.views import Recent, View, count_bytes, load_at, make_view
from steerers.features import Features
from steerers.images.load import Image

if TYPE_CHECKING:
    from steerers.benchmarks.protocol import Settings
    from steerers.pipeline import Pipeline

FEATURE_BYTES = 512 * 2**20
"""Memory for features that a later pair may need."""
PIXEL_BYTES = 256 * 2**20
"""Memory for images as loaded, and as much for rotated ones."""


@dataclass(frozen=True, eq=False)
class Extracted:
    """Features, and the seconds that it took to extract them."""

    features: Features
    seconds: float


class Desk:
    """The images and features at hand: each extraction is done once for all runs and pairs that share it.

    Views, which are small, are all kept; pixels and features as long as there is room. An image whose features are kept
    is not read again.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.views: dict[tuple[Path, int], View] = {}
        self.loaded: Recent[Path, Image] = Recent(PIXEL_BYTES, _image_bytes)
        self.rotated: Recent[tuple[Path, int], Image] = Recent(PIXEL_BYTES, _image_bytes)
        self.extracted: Recent[tuple[Path, int, int, int, float], Extracted] = Recent(FEATURE_BYTES, _feature_bytes)

    def view(self, path: Path, rotation: int) -> View:
        if (path, rotation) not in self.views:
            self._show(path, rotation)
        return self.views[path, rotation]

    def _show(self, path: Path, rotation: int) -> Image:
        """What the matcher is given."""
        settings = self.settings

        def load() -> Image:
            return load_at(path, max_size=settings.max_size, short_side=settings.short_side)

        def make() -> Image:
            loaded = self.loaded.get(path, load)
            self.views[path, rotation], image = make_view(
                loaded, path, rotation, mask_corners=settings.mask_corners, device=self.device
            )
            return image

        return self.rotated.get((path, rotation), make)

    def extract(self, pipeline: Pipeline, view: View, angle: float = 0.0) -> Extracted:
        """Features of a view, for augmentation rotated by a further ``angle`` in radians, in pixels of the view."""

        def make() -> Extracted:
            image = self._show(view.path, view.rotation)
            start = now(pipeline.device)
            features = pipeline.extract_rotated(image, angle) if angle else pipeline.extract(image)
            return Extracted(features, now(pipeline.device) - start)

        key = (view.path, view.rotation, id(pipeline.model.extractor), pipeline.num_keypoints, angle)
        found = self.extracted.get(key, make)
        return Extracted(replace(found.features, model=pipeline.model.name), found.seconds)


def _image_bytes(image: Image) -> int:
    return count_bytes(image.tensor, image.mask)


def _feature_bytes(extracted: Extracted) -> int:
    features = extracted.features
    return count_bytes(features.keypoints, features.descriptions, features.scores)
