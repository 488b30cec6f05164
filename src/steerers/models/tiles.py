"""Large images in tiles: what one pass over the image would find, with the memory that a network needs for a tile.

An image is divided into cores. A tile is a core and :data:`OVERLAP` pixels around it, as far as the image goes, so that
what the network makes of the core depends on nothing that it does not see. Keypoints are taken from the cores alone, so
that none is found twice, and of all tiles together the best are kept. Tiles begin at multiples of :data:`STEP` pixels,
so that features lie where they lie in one pass.

The compact network without ``context`` sees 179 pixels around a keypoint (gradients tell), so that tiles find what one
pass does, up to rounding. With it, as the embedded one has, it sees twice as far, but little of that reaches it:
keypoints of tiles lie a hundredth of a pixel elsewhere. DeDoDe sees 302, but of what lies beyond 192 less than a
millionth reaches it. What knows the image as a whole (the instance normalisation of DISK, the attention of DeDoDe-G,
the largest scales of SIFT) takes a tile for an image.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steerers.features import Keypoints
from steerers.models.base import Combined, Descriptor, Detector, Extractor, LogitDetector, check_batch, check_keypoints
from steerers.models.compact import Pyramid, TrunkExtractor, best_of, textured
from steerers.models.sampling import choose_keypoints, sample_keypoints

logger = logging.getLogger(__name__)

OVERLAP = 192
"""Pixels that a tile sees around its core."""
STEP = 64
"""Pixels: twice the coarsest stride of any network here."""
SMALLEST = 2 * OVERLAP + STEP
"""The side of the smallest tile."""


def check_tile(tile: int | None) -> None:
    """Refuse what is no side of a tile."""
    if tile is not None and (isinstance(tile, bool) or not isinstance(tile, int) or tile < SMALLEST):
        raise ValueError(
            f"tile must be a whole number of at least {SMALLEST} pixels, {OVERLAP} on either side of the part whose "
            f"keypoints count, got {tile!r}"
        )


def tiled(extractor: Extractor, tile: int) -> Extractor:
    """An extractor that sees large images in tiles of at most ``tile`` pixels a side; at each scale, if it has several.

    The networks are shared with the one that is given.
    """
    check_tile(tile)
    made: Extractor = _tiled(extractor, tile)
    return made


def _tiled(model: Any, tile: int) -> Any:
    if isinstance(model, Pyramid):
        return Pyramid(tiled(model.extractor, tile), model.scales, model.coarse)
    if isinstance(model, Combined):
        return Combined(_tiled(model.detector, tile), _tiled(model.descriptor, tile))
    if isinstance(model, Extractor):
        return TiledExtractor(model, tile)
    return TiledDetector(model, tile) if isinstance(model, Detector) else TiledDescriptor(model, tile)


# Cutting --------------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """The pixels of a tile along one side of the image, and those of its core; ends are exclusive."""

    start: int
    core_start: int
    core_end: int
    end: int

    @property
    def seen(self) -> slice:
        """Of the image: the tile."""
        return slice(self.start, self.end)

    @property
    def core(self) -> slice:
        """Of the image: the core."""
        return slice(self.core_start, self.core_end)

    @property
    def inner(self) -> slice:
        """Of the tile: the core."""
        return slice(self.core_start - self.start, self.core_end - self.start)

    def holds(self, positions: Tensor) -> Tensor:
        """Which positions along the side belong to the core: what lies outside the image belongs to its border."""
        pixels = positions.round()
        first, last = self.core_start == self.start, self.core_end == self.end
        return (first | (pixels >= self.core_start)) & (last | (pixels < self.core_end))


class Tile(NamedTuple):
    """A part of an image."""

    rows: Span
    columns: Span

    def cut(self, maps: Tensor) -> Tensor:
        """(..., h, w) of (..., H, W) maps of the image, in memory of their own."""
        return maps[..., self.rows.seen, self.columns.seen].contiguous()

    def core(self, maps: Tensor) -> Tensor:
        """The core of (..., h, w) maps of the tile."""
        return maps[..., self.rows.inner, self.columns.inner]

    def allow(self, images: Tensor, masks: Tensor | None) -> Tensor:
        """(B, h, w) masks for its part of (B, 3, H, W) images: the core, and of it what (B, H, W) masks allow."""
        seen = self.cut(images[:, 0])
        allowed = torch.zeros_like(seen, dtype=torch.bool)
        self.core(allowed)[:] = True if masks is None else masks[:, self.rows.core, self.columns.core].to(seen.device)
        return allowed

    def holds(self, xy: Tensor) -> Tensor:
        """(N,) which of (N, 2) pixels of the image belong to the core."""
        return self.columns.holds(xy[:, 0]) & self.rows.holds(xy[:, 1])

    def moved(self, keypoints: Keypoints, sign: int = 1) -> Keypoints:
        """Keypoints of the tile as those of the image; with a ``sign`` of -1 the other way."""
        corner = keypoints.xy.new_tensor([self.columns.start, self.rows.start])
        return replace(keypoints, xy=keypoints.xy + sign * corner)


def list_tiles(images: Tensor, tile: int) -> list[Tile]:
    """The tiles of (B, 3, H, W) images, whose cores make up all of them."""
    height, width = images.shape[-2:]
    found = [Tile(rows, columns) for rows, columns in product(_spans(height, tile), _spans(width, tile))]
    logger.debug("%d tiles of an image of %d x %d", len(found), width, height)
    return found


def _spans(length: int, tile: int) -> list[Span]:
    """All but the last are ``tile`` long, or less by what makes every start a multiple of :data:`STEP`."""
    step = (tile - 2 * OVERLAP) // STEP * STEP
    inner = range(step + OVERLAP, length - OVERLAP, step) if length > tile else ()  # cores at the ends need one overlap
    edges = [0, *inner, length]
    return [Span(max(0, start - OVERLAP), start, end, min(length, end + OVERLAP)) for start, end in pairwise(edges)]


# Finding and describing -----------------------------------------------------------------------------------------------


class TiledDetector(Detector):
    """Finds keypoints tile by tile.

    Of a detector that makes logits, those of all tiles are put together, and keypoints are chosen from all of them: a
    probability is a fraction of that of the whole image. The scores of others are taken to compare between tiles.
    """

    def __init__(self, detector: Detector, tile: int) -> None:
        super().__init__()
        self.detector, self.tile = detector, tile

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        check_batch(images, num_keypoints, masks)
        tiles = list_tiles(images, self.tile)
        if len(tiles) == 1:
            return self.detector.detect(images, num_keypoints=num_keypoints, masks=masks)
        if isinstance(self.detector, LogitDetector):
            sampling: Any = self.detector.sampling
            return sample_keypoints(_logits(self.detector, images, tiles), num_keypoints, masks, sampling)
        best = _Best(num_keypoints)
        for tile in tiles:
            allowed = tile.allow(images, masks)
            found = self.detector.detect(tile.cut(images), num_keypoints=num_keypoints, masks=allowed)
            best.add([(tile.moved(keypoints), keypoints.xy[:, :0]) for keypoints in found])
        return [keypoints for keypoints, _ in best.found]


@torch.no_grad()
def _logits(detector: LogitDetector, images: Tensor, tiles: Sequence[Tile]) -> Tensor:
    """(B, H, W) logits of (B, 3, H, W) images, from the cores of all tiles."""
    logits = torch.empty_like(images[:, 0], dtype=torch.float32)
    for tile in tiles:
        logits[:, tile.rows.core, tile.columns.core] = tile.core(detector.logits(tile.cut(images)))
    return logits


class TiledDescriptor(Descriptor):
    """Describes each keypoint in the tile whose core it lies in; tiles without keypoints are not looked at."""

    def __init__(self, descriptor: Descriptor, tile: int) -> None:
        super().__init__()
        self.descriptor, self.tile, self.dim = descriptor, tile, descriptor.dim

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images)
        descriptions = [found.xy.new_zeros(len(found), self.dim) for found in keypoints]
        for tile in list_tiles(images, self.tile):
            here = [tile.holds(found.xy) for found in keypoints]
            if not any(bool(which.any()) for which in here):
                continue
            own = [tile.moved(found.select(which), -1) for found, which in zip(keypoints, here, strict=True)]
            parts = self.descriptor.describe(tile.cut(images), own)
            for whole, which, part in zip(descriptions, here, parts, strict=True):
                whole[which] = part.to(whole)
        return descriptions


class TiledExtractor(Extractor):
    """Finds and describes keypoints in one run a tile."""

    def __init__(self, extractor: Extractor, tile: int) -> None:
        super().__init__()
        self.extractor, self.tile, self.dim = extractor, tile, extractor.dim

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        return [keypoints for keypoints, _ in self.extract(images, num_keypoints=num_keypoints, masks=masks)]

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        return TiledDescriptor(self.extractor, self.tile).describe(images, keypoints)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        check_batch(images, num_keypoints, masks)
        tiles = list_tiles(images, self.tile)
        if len(tiles) == 1:
            return self.extractor.extract(images, num_keypoints=num_keypoints, masks=masks)
        if isinstance(self.extractor, TrunkExtractor):
            return _extract_trunk(self.extractor, images, tiles, num_keypoints, masks)
        best = _Best(num_keypoints)
        for tile in tiles:
            allowed = tile.allow(images, masks)
            found = self.extractor.extract(tile.cut(images), num_keypoints=num_keypoints, masks=allowed)
            best.add([(tile.moved(keypoints), descriptions) for keypoints, descriptions in found])
        return best.found


@torch.no_grad()
def _extract_trunk(
    network: TrunkExtractor, images: Tensor, tiles: Sequence[Tile], num_keypoints: int, masks: Tensor | None
) -> list[tuple[Keypoints, Tensor]]:
    """The compact network's, whose scores are fractions of one among all pixels: of a tile first, then of the image."""
    best = _Best(num_keypoints)
    total = images.new_full((len(images),), -torch.inf)  # of the exponentials of all logits, its logarithm
    for tile in tiles:
        seen = tile.cut(images)
        maps = network.maps(seen)
        if not bool(maps.logits.sum().isfinite()):
            raise ValueError("the compact network gave logits that are not finite; in half precision, use float32")
        allowed = textured(seen) & tile.allow(images, masks)
        xy, scores, real = choose_keypoints(maps.logits, num_keypoints, allowed, network.sampling)
        descriptions = network.describe_at(maps, xy)
        total = torch.logaddexp(total, tile.core(maps.logits).logsumexp(dim=(1, 2)))
        scores = scores.log() + maps.logits.logsumexp(dim=(1, 2))[:, None]  # the logits
        counts = real.sum(dim=1).tolist()
        best.add([(tile.moved(Keypoints(xy[i, :n], scores[i, :n])), descriptions[i, :n]) for i, n in enumerate(counts)])
    return [
        (Keypoints(keypoints.xy.float(), (keypoints.scores - whole).exp().float()), descriptions)
        for (keypoints, descriptions), whole in zip(best.found, total, strict=True)
    ]


class _Best:
    """The best keypoints of each image so far, with their descriptions."""

    def __init__(self, num_keypoints: int) -> None:
        self.num_keypoints = num_keypoints
        self.found: list[tuple[Keypoints, Tensor]] = []

    def add(self, parts: list[tuple[Keypoints, Tensor]]) -> None:
        """What was found in a tile of each image."""
        pairs = zip(self.found, parts, strict=True)
        self.found = [best_of(pair, self.num_keypoints) for pair in pairs] if self.found else parts
