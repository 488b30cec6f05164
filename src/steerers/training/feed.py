"""The pairs of a run: where its configuration takes them from, and batches of them, made while a step is trained."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from steerers.datasets.colmap import Colmap
from steerers.datasets.folder import Mosaics, Photographs
from steerers.datasets.megadepth import MegaDepth
from steerers.datasets.pairs import PairBatch, PairSource, draw_rotations, mix, uniforms
from steerers.datasets.photos import PhotoStore, find_photos
from steerers.training.config import DataConfig, TrainConfig, ValidationConfig
from steerers.training.kinds import as_taken, kind_source

_CHOICE, _ORDER = 41, 42  # streams of the run's seed
_READ_AHEAD = 2  # steps


# Sources --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sources:
    """What a run draws from: sources with the fraction of the steps that each gets, and what validation uses.

    Attributes:
        kinds: what validation measures apart, by its names.
    """

    training: list[tuple[PairSource, float]]
    validation: PairSource
    kinds: Mapping[str, PairSource] = field(default_factory=dict)

    def open(self) -> None:
        """Decode now what is otherwise decoded with the first pair, so that no step waits for it or fails by it."""
        for source in (*(source for source, _ in self.training), self.validation, *self.kinds.values()):
            if hasattr(source, "open"):
                source.open()


def data_paths(config: DataConfig, paths: Sequence[str | Path] = ()) -> list[Path]:
    """Where the data lies: ``paths``, or else what the configuration says.

    Raises:
        ValueError: if neither says anything, or there are several for MegaDepth.
    """
    found = [Path(path) for path in (list(paths) or config.path)]
    if not found:
        raise ValueError(f"no data: set data.path, or give --data (source {config.source!r})")
    if config.source == "megadepth" and len(found) > 1:
        raise ValueError(f"MegaDepth has one root, got {', '.join(map(str, found))}")
    return found


def needs_detections(config: TrainConfig) -> bool:
    """Whether a configuration trains a detector towards the points of reconstructions."""
    return config.setting == "detector" and config.keypoints.prior == "sfm"


def build_sources(
    config: DataConfig,
    paths: Sequence[str | Path],
    device: torch.device,
    cache: Path | None = None,
    *,
    detections: bool = False,
    validation: ValidationConfig | None = None,
) -> Sources:
    """The data of a configuration.

    Args:
        paths: folders, tars, a MegaDepth root or reconstructions; by default those of the configuration.
        cache: where decoded photographs are kept; without it they are decoded anew, and kept on the device. Those of
            reconstructions are decoded by :meth:`Sources.open`, or with the first pair.
        detections: read the points of MegaDepth's reconstructions too; see :func:`needs_detections`.
        validation: whose kinds and scenes there are to be; by default none.
    """
    roots, validation = data_paths(config, paths), validation or ValidationConfig()
    scenes = find_scenes(config, roots, validation)
    if missing := [path for path in scenes.values() if not path.exists()]:
        raise ValueError(f"validation.scenes: there is no {missing[0]}")
    sources = _open_sources(config, roots, device, cache, detections)
    kinds: dict[str, PairSource] = {}
    if isinstance(sources.validation, Photographs):
        kinds = {kind: kind_source(kind, sources.validation, validation.pairs) for kind in validation.kinds}
    opened = open_scenes(config, list(scenes.values()), cache)
    return replace(sources, kinds=kinds | dict(zip(scenes, opened, strict=True)))


def _open_sources(
    config: DataConfig, roots: Sequence[Path], device: torch.device, cache: Path | None, detections: bool
) -> Sources:
    """What is trained on, and what is held out of it."""
    if config.source == "folder":
        return _from_photographs(config, roots, device, cache)
    if config.source == "megadepth":
        training, test = (
            MegaDepth(roots[0], views=config.views, split=split, detections=detections) for split in ("train", "test")
        )
        return Sources([(training, 1.0)], test)
    sources = open_reconstructions(config, roots, cache)
    try:
        splits = [source.split(config.held_out) for source in sources]
    except ValueError as error:
        raise ValueError(f"data.held_out: {error}; choose another fraction") from error
    validation = max((held for _, held in splits), key=len)
    return Sources([(source, 1 / len(splits)) for source, _ in splits], validation)


def _from_photographs(config: DataConfig, paths: Sequence[Path], device: torch.device, cache: Path | None) -> Sources:
    store = PhotoStore.open(find_photos(paths), config.max_photo_size, cache, max_broken=config.max_broken)
    if device.type != "cpu":
        store = store.to(device)
    training, validation = Photographs.split(store, config.views, config.held_out)
    reconstructions: list[Colmap] = []
    if config.colmap and config.colmap_fraction:
        reconstructions = open_reconstructions(config, [Path(path) for path in config.colmap], cache)
    sources: list[tuple[PairSource, float]] = [
        (source, config.colmap_fraction / len(reconstructions)) for source in reconstructions
    ]
    if config.mosaics.fraction:
        sources.insert(0, (Mosaics(training, config.mosaics), config.mosaics.fraction))
    sources.insert(0, (training, 1 - sum(fraction for _, fraction in sources)))
    return Sources(sources, validation)


def open_reconstructions(config: DataConfig, paths: Sequence[Path], cache: Path | None) -> list[Colmap]:
    """The pairs of reconstructions; no photograph is decoded yet."""
    return [Colmap(path, views=config.views, max_size=config.max_photo_size, cache=cache) for path in paths]


def open_scenes(config: DataConfig, paths: Sequence[Path], cache: Path | None) -> list[Colmap]:
    """Reconstructions that are held out, their photographs shown as they were taken."""
    return open_reconstructions(replace(config, views=as_taken(config.views)), paths, cache)


def find_scenes(config: DataConfig, roots: Sequence[Path], validation: ValidationConfig) -> dict[str, Path]:
    """The reconstructions that are held out, by the names of their folders; they need not be there.

    Args:
        roots: of the data that is trained on; see :func:`data_paths`.

    Raises:
        ValueError: if one is trained on as well, wholly or in part, or there are two kinds of one name.
    """
    trained = [("data.colmap", Path(path)) for path in config.colmap] + [("data.path", root) for root in roots]
    scenes: dict[str, Path] = {}
    for path in map(Path, validation.scenes):
        home = _home(path)
        for option, other in trained:
            if _overlap(home, _home(other)):
                raise ValueError(
                    f"validation.scenes: {path} is trained on as well ({option} {other}): leave it out of one of them"
                )
        if home.name in scenes or home.name in validation.kinds:
            raise ValueError(f"validation.scenes: there are two kinds {home.name!r}; rename the folder of {path}")
        scenes[home.name] = path
    return scenes


def _home(path: Path) -> Path:
    """The folder of a reconstruction, which may be named by the file in it."""
    return path.parent.resolve() if path.suffix == ".npz" else path.resolve()


def _overlap(one: Path, other: Path) -> bool:
    """Whether one folder is the other or lies in it; a tar of photographs lies in none."""
    return one == other or other in one.parents or (one in other.parents and not other.is_file())


# What the objectives need of them -------------------------------------------------------------------------------------


def check_dense(setting: str, training: Sequence[tuple[PairSource, float]], *, photographs: bool = False) -> None:
    """Refuse sources whose warp is known at tracks alone where keypoints are trained, which need it everywhere.

    Args:
        photographs: there are photographs too that are not among ``training``, as in a dry run, which opens none.

    Raises:
        ValueError: if a detector is given any such source, or the joint setting nothing else.
    """
    used = [source for source, fraction in training if fraction > 0]
    sparse = [source for source in used if not getattr(source, "dense", True)]
    if not sparse or setting not in ("detector", "joint"):
        return
    names = ", ".join(_name_of(source) for source in sparse)
    missing = f"but not every photograph of {names} has a depth map; make them (COLMAP's stereo/depth_maps)"
    if setting == "detector":
        raise ValueError(
            f"setting 'detector' needs pairs whose warp is known everywhere, {missing}, or train on photographs alone "
            "(data.source 'folder' without data.colmap)"
        )
    if len(sparse) == len(used) and not photographs:
        raise ValueError(
            f"setting 'joint' trains keypoints on pairs whose warp is known everywhere, {missing}, or have photographs "
            "beside (data.source 'folder', and reconstructions by data.colmap with data.colmap_fraction)"
        )


def check_kinds(setting: str, kinds: Mapping[str, PairSource]) -> None:
    """Refuse scenes at which nothing could be measured: a detector's measures need a warp that is known everywhere.

    Raises:
        ValueError: naming the first of them.
    """
    sparse = [source for source in kinds.values() if not getattr(source, "dense", True)]
    if sparse and setting == "detector":
        raise ValueError(
            f"validation.scenes: not every photograph of {_name_of(sparse[0])} has a depth map, without which setting "
            f"'detector' measures nothing; make them (`steerers data depth {_name_of(sparse[0])}`), or leave it out"
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
            f"pair {index} of {_name_of(source)} cannot be read: {error}; `{command}` lists what is missing or broken"
        ) from error


def _name_of(source: PairSource) -> str:
    """Where the data of a source lies, or else what kind it is."""
    return str(getattr(source, "root", type(source).__name__))


# Batches --------------------------------------------------------------------------------------------------------------


class Feed:
    """Batches by their step, one step ahead of training: read by several threads, made by one of its own.

    On a GPU that thread has its own stream, so that making a batch waits for no step and no step waits for it.

    Args:
        sources: with the fraction of the steps that each gets.
        rank: of this process among ``world``: each makes its part of every batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        sources: Sequence[tuple[PairSource, float]],
        device: torch.device,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if config.batch % world:
            raise ValueError(f"batch {config.batch} is not a multiple of the {world} processes")
        self.config, self.device = config, device
        self.rows = range(config.batch)[rank * config.batch // world : (rank + 1) * config.batch // world]  # ours
        self.sources = [source for source, _ in sources]
        self.ladder = torch.tensor([fraction for _, fraction in sources], dtype=torch.float64).cumsum(0)
        self.readers, self.maker = ThreadPoolExecutor(8), ThreadPoolExecutor(1)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.read: dict[int, list[Future[Any]]] = {}
        self.made: dict[int, Future[tuple[PairBatch, float]]] = {}
        self.orders: dict[tuple[int, int], list[int]] = {}
        self.recent: deque[PairBatch] = deque(maxlen=3)  # memory of one stream must outlive its use in another

    def batch(self, step: int) -> tuple[PairBatch, float]:
        """The pairs of this process for a step, and the seconds it took to make them."""
        last = self.config.steps - 1
        for coming in range(step, min(step + _READ_AHEAD, last) + 1):
            if coming not in self.read and coming not in self.made:
                source = self.sources[self._choose(coming)]
                self.read[coming] = [self.readers.submit(read_pair, source, index) for index in self._indices(coming)]
        for coming in range(step, min(step + 1, last) + 1):
            if coming not in self.made:
                self.made[coming] = self.maker.submit(self._make, coming, self.read.pop(coming))
        batch, seconds = self.made.pop(step).result()
        self.recent.append(batch)
        return batch, seconds

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in (self.maker, self.readers):
            pool.shutdown(cancel_futures=True)

    @torch.no_grad()
    def _make(self, step: int, reading: list[Future[Any]]) -> tuple[PairBatch, float]:
        read = [future.result() for future in reading]
        start = time.perf_counter()
        seeds = self._seeds(step)
        rotations0, rotations1 = draw_rotations(self.config.data.rotations, seeds)
        with torch.cuda.stream(self.stream):
            batch = self.sources[self._choose(step)].make(read, rotations0, rotations1, seeds, self.device)
        if self.stream is not None:
            self.stream.synchronize()  # so that any other stream may use the batch
        return batch, time.perf_counter() - start

    def _choose(self, step: int) -> int:
        drawn = float(uniforms([mix(self.config.seed, step)], 1, _CHOICE)) * float(self.ladder[-1])
        return int(torch.searchsorted(self.ladder, drawn, right=True).clamp(max=len(self.sources) - 1))

    def _seeds(self, step: int) -> list[int]:
        return [mix(self.config.seed, step, row) for row in self.rows]

    def _indices(self, step: int) -> list[int]:
        """Every pair once before any comes again; or at random, by the weights of the source.

        Of several sources each skips the steps that others have, and with them some of its pairs.
        """
        number = self._choose(step)
        source = self.sources[number]
        if source.weights is not None:
            ladder = source.weights.double().cumsum(0)
            drawn = uniforms(self._seeds(step), 1, _ORDER)[:, 0] * ladder[-1]
            return torch.searchsorted(ladder, drawn, right=True).clamp(max=len(source) - 1).tolist()
        positions = [step * self.config.batch + row for row in self.rows]
        return [self._order(number, len(source), p // len(source))[p % len(source)] for p in positions]

    def _order(self, number: int, length: int, epoch: int) -> list[int]:
        if (number, epoch) not in self.orders:
            self.orders = {key: order for key, order in self.orders.items() if key[1] >= epoch - 1}
            generator = torch.Generator().manual_seed(mix(self.config.seed, epoch, _ORDER))
            self.orders[number, epoch] = torch.randperm(length, generator=generator).tolist()
        return self.orders[number, epoch]
