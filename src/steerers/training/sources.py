"""From a configuration to the pairs that it is trained and validated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from steerers.datasets.pairs import PairSource
from steerers.training.config import DataConfig, TrainConfig

if TYPE_CHECKING:
    from steerers.datasets.colmap import Colmap


@dataclass(frozen=True, eq=False)
class Sources:
    """What a run draws from: sources with the share of the steps that each gets, and what validation uses."""

    training: list[tuple[PairSource, float]]
    validation: PairSource


def places_of(config: DataConfig, paths: Sequence[str | Path] = ()) -> list[Path]:
    """Where the data lies: ``paths``, or else what the configuration says.

    Raises:
        ValueError: if neither says anything, or there are several for MegaDepth.
    """
    places = [Path(place) for place in (list(paths) or config.path)]
    if not places:
        raise ValueError(f"no data: set data.path, or give --data (source {config.source!r})")
    if config.source == "megadepth" and len(places) > 1:
        raise ValueError(f"MegaDepth has one root, got {', '.join(map(str, places))}")
    return places


def needs_detections(config: TrainConfig) -> bool:
    """Whether a configuration trains keypoints towards the points of reconstructions."""
    return config.setting in ("detector", "joint") and config.keypoints.prior == "sfm"


def build_sources(
    config: DataConfig,
    paths: Sequence[str | Path],
    device: torch.device,
    cache: Path | None = None,
    *,
    detections: bool = False,
) -> Sources:
    """The data of a configuration.

    Args:
        paths: folders, tars, a MegaDepth root or reconstructions; by default those of the configuration.
        cache: where decoded photographs are kept; without it they are decoded anew, and kept on the device.
        detections: read the points of MegaDepth's reconstructions too; see :func:`needs_detections`.
    """
    places = places_of(config, paths)
    if config.source == "folder":
        return _from_photographs(config, places, device, cache)
    if config.source == "megadepth":
        from steerers.datasets.megadepth import MegaDepth

        training, test = (
            MegaDepth(places[0], views=config.views, split=split, detections=detections) for split in ("train", "test")
        )
        return Sources([(training, 1.0)], test)
    splits = [_split(source, config.held_out) for source in _reconstructions(config, places, cache)]
    validation = max((held for _, held in splits), key=len)
    return Sources([(source, 1 / len(splits)) for source, _ in splits], validation)


def _from_photographs(config: DataConfig, places: Sequence[Path], device: torch.device, cache: Path | None) -> Sources:
    from steerers.datasets.folder import Photographs
    from steerers.datasets.photos import PhotoStore, find_photos

    store = PhotoStore.open(find_photos(places), config.max_photo_size, cache)
    if device.type != "cpu":
        store = store.to(device)
    training, validation = Photographs.split(store, config.views, config.held_out)
    sources: list[tuple[PairSource, float]] = [(training, 1.0)]
    if config.colmap and config.colmap_share:
        reconstructions = _reconstructions(config, [Path(place) for place in config.colmap], cache)
        share = config.colmap_share / len(reconstructions)
        sources = [(training, 1 - config.colmap_share), *((source, share) for source in reconstructions)]
    return Sources(sources, validation)


def _reconstructions(config: DataConfig, places: Sequence[Path], cache: Path | None) -> list[Colmap]:
    from steerers.datasets.colmap import Colmap

    return [Colmap(place, views=config.views, max_size=config.max_photo_size, cache=cache) for place in places]


def _split(source: Colmap, share: float) -> tuple[Colmap, Colmap]:
    try:
        return source.split(share)
    except ValueError as error:
        raise ValueError(f"data.held_out: {error}; choose another share") from error
