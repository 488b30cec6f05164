"""From a configuration to the pairs that it is trained and validated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def open(self) -> None:
        """Decode now what is otherwise decoded with the first pair, so that no step waits for it or fails by it."""
        for source in (*(source for source, _ in self.training), self.validation):
            if hasattr(source, "open"):
                source.open()


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
        cache: where decoded photographs are kept; without it they are decoded anew, and kept on the device. Those of
            reconstructions are decoded by :meth:`Sources.open`, or with the first pair.
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
    splits = [_split(source, config.held_out) for source in open_reconstructions(config, places, cache)]
    validation = max((held for _, held in splits), key=len)
    return Sources([(source, 1 / len(splits)) for source, _ in splits], validation)


def _from_photographs(config: DataConfig, places: Sequence[Path], device: torch.device, cache: Path | None) -> Sources:
    from steerers.datasets.folder import Photographs
    from steerers.datasets.mosaics import Mosaics
    from steerers.datasets.photos import PhotoStore, find_photos

    store = PhotoStore.open(find_photos(places), config.max_photo_size, cache)
    if device.type != "cpu":
        store = store.to(device)
    training, validation = Photographs.split(store, config.views, config.held_out)
    reconstructions: list[Colmap] = []
    if config.colmap and config.colmap_share:
        reconstructions = open_reconstructions(config, [Path(place) for place in config.colmap], cache)
    sources: list[tuple[PairSource, float]] = [
        (source, config.colmap_share / len(reconstructions)) for source in reconstructions
    ]
    if config.mosaics.share:
        sources.insert(0, (Mosaics(training, config.mosaics), config.mosaics.share))
    sources.insert(0, (training, 1 - sum(share for _, share in sources)))
    return Sources(sources, validation)


def open_reconstructions(config: DataConfig, places: Sequence[Path], cache: Path | None) -> list[Colmap]:
    """The pairs of reconstructions; no photograph is decoded yet."""
    from steerers.datasets.colmap import Colmap

    return [Colmap(place, views=config.views, max_size=config.max_photo_size, cache=cache) for place in places]


def _split(source: Colmap, share: float) -> tuple[Colmap, Colmap]:
    try:
        return source.split(share)
    except ValueError as error:
        raise ValueError(f"data.held_out: {error}; choose another fraction") from error


# What the objectives need of them -------------------------------------------------------------------------------------


def check_dense(setting: str, training: Sequence[tuple[PairSource, float]], *, photographs: bool = False) -> None:
    """Refuse sources whose warp is known at tracks alone where keypoints are trained, which need it everywhere.

    Args:
        photographs: there are photographs too that are not among ``training``, as in a dry run, which opens none.

    Raises:
        ValueError: if a detector is given any such source, or the joint setting nothing else.
    """
    used = [source for source, share in training if share > 0]
    sparse = [source for source in used if not getattr(source, "dense", True)]
    if not sparse or setting not in ("detector", "joint"):
        return
    places = ", ".join(_place_of(source) for source in sparse)
    missing = f"but not every photograph of {places} has a depth map; make them (COLMAP's stereo/depth_maps)"
    if setting == "detector":
        raise ValueError(
            f"setting 'detector' needs pairs whose warp is known everywhere, {missing}, or train on photographs alone "
            "(data.source 'folder' without data.colmap)"
        )
    if len(sparse) == len(used) and not photographs:
        raise ValueError(
            f"setting 'joint' trains keypoints on pairs whose warp is known everywhere, {missing}, or have photographs "
            "beside (data.source 'folder', and reconstructions by data.colmap with data.colmap_share)"
        )


def read_pair(source: PairSource, index: int) -> Any:
    """A pair of a source.

    Raises:
        ValueError: naming the source and what checks it, if the pair cannot be read.
    """
    try:
        return source.read(index)
    except (KeyError, OSError, ValueError) as error:
        command = f"steerers data check {getattr(source, 'root', 'DIR')}"
        raise ValueError(
            f"pair {index} of {_place_of(source)} cannot be read: {error}; `{command}` lists what is missing or broken"
        ) from error


def _place_of(source: PairSource) -> str:
    """Where the data of a source lies, or else what kind it is."""
    return str(getattr(source, "root", type(source).__name__))
