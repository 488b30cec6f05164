"""From a configuration to what is trained: networks, steerer and objective; and what it amounts to, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from steerers.datasets.pairs import generator_of
from steerers.datasets.photos import find_photos, held_out
from steerers.features import Keypoints
from steerers.models import parts, zoo
from steerers.models.base import Descriptor, Detector, LogitDetector
from steerers.models.compact import LATER_PARTS, Compact, Pyramid
from steerers.models.dedode import PATCH, DedodeDescriptor, DedodeDetector
from steerers.models.downloads import WeightFile, fetch, find
from steerers.models.zoo import TRAINABLE
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.training.config import ModelConfig, SteererConfig, TrainConfig
from steerers.training.feed import (
    build_sources,
    check_dense,
    check_kinds,
    data_paths,
    find_scenes,
    needs_detections,
    open_reconstructions,
    open_scenes,
)
from steerers.training.objectives import Objective
from steerers.training.objectives.descriptions import DescriptorObjective
from steerers.training.objectives.distillation import DistilledObjective
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import DetectorObjective

VGG = "vgg"
_STEERER, _NETWORK = 31, 32  # streams of the run's seed
_SETTINGS = {
    "A": "setting A, frozen descriptor",
    "B": "setting B, descriptor and steerer together",
    "C": "setting C, descriptor for a fixed steerer",
    "detector": "a detector",
    "joint": "keypoints and descriptions of one network",
}
_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_objective(config: TrainConfig, *, pretrained: bool = True) -> Objective:
    """The networks, the steerer and the loss of a configuration; the same seed gives the same start.

    Args:
        pretrained: read the weights; without, nothing is read and no keypoint is found, to look at the networks alone.
    """
    _check_data(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_of(config.seed, _NETWORK).initial_seed())
        network = build_network(config.model, config.precision, pretrained=pretrained)
    objective = _objective(config, network, pretrained)
    names = [name for name, _ in objective.trained()]
    for prefix in config.optimiser.learning_rates:
        if not any(name.startswith(prefix) for name in names):
            raise ValueError(
                f"optimiser.learning_rates: nothing that is trained begins with {prefix!r}; there are "
                f"{', '.join(sorted({'.'.join(name.split('.')[:2]) for name in names}))}"
            )
    return objective


def _objective(config: TrainConfig, network: Detector | Descriptor, pretrained: bool) -> Objective:
    if config.distillation.teachers and config.setting != "joint":
        raise ValueError(f"distillation.teachers teach in setting 'joint', not in {config.setting!r}")
    if config.setting == "detector":
        if not isinstance(network, LogitDetector):
            raise ValueError(f"setting 'detector' trains a detector, not model.kind {config.model.kind!r}")
        return DetectorObjective(network, config.keypoints)
    if not isinstance(network, Descriptor):
        raise ValueError(f"setting {config.setting!r} trains a descriptor, not model.kind {config.model.kind!r}")
    steerer = build_steerer(config.steerer, network.dim, config.seed)
    _check_rotations(config, steerer)
    if config.setting == "joint":
        if not isinstance(network, Compact):
            raise ValueError("setting 'joint' needs model.kind 'compact'")
        if config.distillation.teachers:
            return _distilled(config, network, steerer, pretrained)
        return JointObjective(network, steerer, config.matching, config.keypoints)
    detector = detector_for(config.model, network) if pretrained else NoDetector(config.model)
    return DescriptorObjective(network, steerer, detector, config.setting, config.matching)


def _check_data(config: TrainConfig) -> None:
    """Refuse data that the networks cannot be trained on, and networks that cannot be trained."""
    if config.model.kind not in TRAINABLE and config.setting != "A":
        raise ValueError(
            f"model.kind {config.model.kind!r} stays as it is: setting 'A' fits a steerer to it, but setting "
            f"{config.setting!r} trains a network, which may be {', '.join(TRAINABLE)}"
        )
    if config.model.kind.startswith("dedode-g") and config.data.views.size % PATCH:
        raise ValueError(
            f"model.kind {config.model.kind!r} needs views of a multiple of {PATCH} pixels, got data.views.size "
            f"{config.data.views.size}; the original is 560"
        )
    if needs_detections(config) and config.data.source == "folder":
        raise ValueError("keypoints.prior 'sfm' needs points of a reconstruction, which photographs do not have")


def _check_rotations(config: TrainConfig, steerer: Steerer | None) -> None:
    """Refuse rotations that the steerer does not have."""
    rotations = config.data.rotations
    if steerer is None and config.setting == "joint" and rotations in ("C4", "SO2"):
        raise ValueError(
            f"without a steerer (steerer.kind 'none') views cannot be rotated against each other: set "
            f"data.rotations to 'none' or 'joint-{rotations}', or steerer.kind to 'inv'"
        )
    order = None if steerer is None else steerer.group.order
    if order is not None and (rotations == "SO2" or (rotations == "C4" and order % 4)):
        raise ValueError(f"steerer.group C{order} does not have all the rotations of data.rotations {rotations!r}")


def _distilled(config: TrainConfig, network: Compact, steerer: Steerer | None, pretrained: bool) -> Objective:
    """A network that is taught by others."""
    if steerer is None or not steerer.group.continuous:
        raise ValueError("distillation.teachers: descriptions of views at any rotation need a steerer of SO2")
    if steerer.learnable:
        raise ValueError("distillation.teachers: the steerer stays that of the teachers; set steerer.learn to false")
    if not pretrained:
        return JointObjective(network, steerer, config.matching, config.keypoints)
    teachers = [build_teacher(name) for name in config.distillation.teachers]
    if teachers[0].dim != network.dim:
        raise ValueError(
            f"distillation.teachers: the first describes by {teachers[0].dim} numbers, but model.compact.dim is "
            f"{network.dim}"
        )
    return DistilledObjective(network, steerer, config.matching, config.keypoints, teachers, config.distillation)


# Networks -------------------------------------------------------------------------------------------------------------


def build_network(config: ModelConfig, precision: str = "float32", *, pretrained: bool = True) -> Detector | Descriptor:
    """The network that is trained, with the weights it starts from; or the model of the zoo that stays as it is.

    Args:
        precision: of DeDoDe's convolutions, which choose it themselves; others follow the loop's.
        pretrained: read the weights.
    """
    if config.kind not in TRAINABLE:
        return _frozen_descriptor(config) if pretrained else NoDescriptor(zoo.find(config.kind).dim)
    dtype = _PRECISIONS[precision]
    if config.kind == "compact":
        network: Detector | Descriptor = Compact(config.compact)
    elif config.kind == "dedode-detector-l":
        network = DedodeDetector("L", dtype=dtype)
    elif config.kind == "dedode-g":
        backbone = parts.load_dinov2(Path(config.backbone_weights or fetch(parts.DINOV2))) if pretrained else None
        network = DedodeDescriptor("G", backbone=backbone, dtype=dtype)
    else:
        network = DedodeDescriptor("B", dtype=dtype)
    if config.weights == VGG and config.kind == "compact":
        raise ValueError("model.weights 'vgg' is for DeDoDe's networks, not for model.kind 'compact'")
    if pretrained and config.weights == VGG:
        parts.load_vgg(network, fetch(parts.VGG19_BN))
    elif pretrained and config.weights:
        file = published(config.weights)
        path = Path(config.weights) if file is None else fetch(file)
        parts.load_weights(network, path, f"model.kind {config.kind!r}", later=LATER_PARTS)
    return network


def build_teacher(name: str) -> Compact:
    """A compact network of the zoo or of a run, at one scale, as it was trained."""
    entry = zoo.find(name)
    network = None if entry.weights or entry.detector else entry.descriptor.build({})
    network = network.extractor if isinstance(network, Pyramid) else network
    if not isinstance(network, Compact):
        raise ValueError(f"distillation.teachers must be compact networks with keypoints, and {name!r} is none")
    return network


def _frozen_descriptor(config: ModelConfig) -> Descriptor:
    """The descriptor of a model of the zoo, with its weights."""
    alone = _alone(config)
    given = [path for path in (config.weights, config.backbone_weights) if path]
    return alone.descriptor.build(zoo.locate(alone, given))


def _alone(config: ModelConfig) -> zoo.Entry:
    """The model of the zoo without its detector and steerer."""
    return replace(zoo.find(config.kind), detector=None, steerer=None)


class NoDescriptor(Descriptor):
    """Stands for a descriptor whose weights are not read; it describes nothing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        raise NotImplementedError("this objective was built without weights, to look at it")


def published(weights: str) -> WeightFile | None:
    """The published file that ``model.weights`` names; ``None`` if it is a path.

    Raises:
        ValueError: if it is neither.
    """
    if Path(weights).is_file():
        return None
    descriptors = [entry.descriptor for entry in zoo.ZOO.values() if entry.name.startswith("dedode")]
    built = [*descriptors, *(entry.part for entry in zoo.DETECTORS.values())]
    files = {file.name: file for part in built for file in part.weights if file is not parts.DINOV2}
    files[VGG] = parts.VGG19_BN
    if weights in files:
        return files[weights]
    if Path(weights).name == weights:
        raise ValueError(
            f"model.weights {weights!r}: there is no such file here, and none is published under that name; published "
            f"are {', '.join(sorted(files))}"
        )
    return None


def needed_weights(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The files that a configuration reads: names or paths, and ``here``, ``to be downloaded`` or ``missing``."""
    trained = config.kind in TRAINABLE
    file = published(config.weights) if config.weights and trained else None
    files = [] if file is None else [file]
    paths = [config.weights if file is None else "", config.backbone_weights, config.detector_weights]
    if not trained:
        files += [file for file in _alone(config).weights if file is not parts.DINOV2 and not config.weights]
    if config.kind.startswith("dedode-g") and not config.backbone_weights:
        files.append(parts.DINOV2)
    if config.detector and not config.detector_weights:
        files += _detector_files(config.detector)
    elif not config.detector and not trained:
        own = zoo.find(config.kind).detector
        files += () if own is None else own.weights
    for file in files:
        elsewhere = "to be downloaded" if file.urls else "missing"
        yield file.name, elsewhere if find(file, check=False) is None else "here"
    for path in filter(None, paths):
        yield path, "here" if Path(path).is_file() else "missing"


def _detector_files(name: str) -> Sequence[WeightFile]:
    return zoo.DETECTORS[name].part.weights if name in zoo.DETECTORS else zoo.find(name).weights


# Detectors ------------------------------------------------------------------------------------------------------------


class NoDetector(Detector):
    """Stands for a detector whose weights are not read; it finds nothing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.detector or config.kind in TRAINABLE:
            _check_detector(config)

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        raise NotImplementedError("this objective was built without weights, to look at it")


def detector_for(config: ModelConfig, descriptor: Descriptor) -> Detector:
    """Whose keypoints are described: those of ``model.detector``, or a frozen model's own."""
    if config.detector or config.kind in TRAINABLE:
        return build_detector(config)
    own = zoo.find(config.kind).detector
    if own is not None:
        return own.build({file.name: fetch(file) for file in own.weights})
    return cast("Detector", descriptor)  # a model without a detector has a descriptor that is one too


def build_detector(config: ModelConfig) -> Detector:
    """The frozen detector whose keypoints a descriptor is trained at."""
    _check_detector(config)
    weights = (config.detector_weights,) if config.detector_weights else ()
    if config.detector not in zoo.DETECTORS:
        return cast("Detector", zoo.build(config.detector, weights=weights).extractor)
    if not weights:
        return zoo.build_detector(config.detector)
    return parts.trained_detector(Path(config.detector_weights)).build({})


def _check_detector(config: ModelConfig) -> None:
    if not config.detector:
        raise ValueError("a descriptor needs keypoints: set model.detector, for example to 'dedode-l-so2' or 'sift'")
    if config.detector not in zoo.DETECTORS:
        try:
            zoo.find(config.detector)
        except ValueError as error:
            raise ValueError(f"model.detector: {error}, or a detector: {', '.join(zoo.DETECTORS)}") from error


# Steerers -------------------------------------------------------------------------------------------------------------


def build_steerer(config: SteererConfig, dim: int, seed: int) -> Steerer | None:
    """The steerer at the start of a run."""
    group = Group.parse(config.group)
    if config.kind == "none":
        return None
    fixed = {"inv": Steerer.inv, "freq1": Steerer.freq1, "perm": Steerer.perm}
    if config.kind in fixed:
        return fixed[config.kind](dim, group, learnable=config.learn)
    if config.kind == "spread":
        if not group.continuous:
            raise ValueError(f"steerer.kind 'spread' is for SO2, not {group}; for C_n use 'perm'")
        return Steerer.spread(dim, config.max_frequency, learnable=config.learn)
    if config.kind == "random":
        return Steerer.random(dim, group, generator=generator_of(seed, _STEERER), learnable=config.learn)
    if Path(config.kind).suffix:
        return _load_steerer(Path(config.kind), group, dim, config.learn)
    raise ValueError(f"steerer.kind must be inv, freq1, perm, spread, random, none or a file, got {config.kind!r}")


def _load_steerer(path: Path, group: Group, dim: int, learn: bool) -> Steerer:
    steerer = Steerer.load(path, group)
    if steerer.dim != dim:
        raise ValueError(f"{path}: a steerer for descriptions of length {steerer.dim}, but here they have length {dim}")
    if steerer.learnable == learn:
        return steerer
    return Steerer.from_matrix(steerer.generator().float(), group, learnable=learn)


# In words -------------------------------------------------------------------------------------------------------------


def overview(config: TrainConfig, data: list[Path], cache: Path | None = None) -> Iterator[tuple[str, str]]:
    """What a configuration amounts to, as titles and texts.

    No photograph is decoded, no weights are read, nor data that is not there.

    Args:
        cache: of decoded photographs, as the run would have it.

    Raises:
        ValueError: for what a run would refuse.
    """
    objective = build_objective(config, pretrained=False)
    yield "run", f"{config.name}: {_SETTINGS[config.setting]}"
    yield from _networks(config, objective)
    yield from _data(config, data, cache)
    yield "optimiser", _optimiser(config)
    for prefix, (count, rate) in _rates(config, objective).items():
        yield "learning rate", f"{rate:g} of {prefix} ({count:,} parameters)"
    schedule = f"warm-up over {config.optimiser.warm_up}, then " if config.optimiser.warm_up else ""
    yield "schedule", f"{config.steps:,} steps of {config.batch} pairs; {schedule}a cosine to 0"
    validation = f"every {config.validation.every:,} steps" if config.validation.every else "at the end"
    degrees = ", ".join(f"{angle}°" for angle in config.validation.rotations)
    yield "validation", f"{validation}, {config.validation.pairs} pairs at each of {degrees} that the group has"
    yield from _kinds(config, data, cache)
    faster = (", compiled" if config.compile else "") + (", CUDA graphs on a GPU" if config.cuda_graphs else "")
    yield "precision", config.precision + faster


def _networks(config: TrainConfig, objective: Objective) -> Iterator[tuple[str, str]]:
    yield "network", _network(config)
    if config.setting not in ("detector", "joint"):
        yield "keypoints", f"{config.matching.num_keypoints:,} of {config.model.detector or 'its own'}, frozen"
    if config.setting != "detector":
        yield "steerer", _steerer(config, objective)
    if config.matching.prototype:
        yield "prototype", "trained, for prototype-procrustes"
    if config.distillation.teachers:
        yield "teachers", f"{', '.join(config.distillation.teachers)}, frozen"
    for name, where in needed_weights(config.model):
        yield "weights", f"{name} ({where})"


def _network(config: TrainConfig) -> str:
    if config.model.kind not in TRAINABLE:
        return f"{config.model.kind}, frozen"
    network = build_network(config.model, pretrained=False)
    count = sum(parameter.numel() for parameter in network.parameters())
    frozen = "frozen" if config.setting == "A" else "trained"
    return f"{config.model.kind}, {count:,} parameters, {frozen}; from {config.model.weights or 'random'}"


def _steerer(config: TrainConfig, objective: Objective) -> str:
    steerer = objective.steerer
    if steerer is None:
        return "none"
    fixed = build_steerer(replace(config.steerer, learn=False), steerer.dim, config.seed)
    known = None if fixed is None else fixed.representation
    start = config.steerer.kind if known is None else f"{config.steerer.kind}, {known}"
    how = "trained from" if steerer.learnable else "fixed:"
    return f"{steerer.group}, {steerer.dim} x {steerer.dim}, {how} {start}"


def _data(run: TrainConfig, data: list[Path], cache: Path | None) -> Iterator[tuple[str, str]]:
    config = run.data
    views = f"rotations {config.rotations}, views of {config.views.size} x {config.views.size} pixels"
    squashed = ", squashed" if config.views.resize == "squash" else ""
    yield "data", f"{config.source}, {views}{squashed}"
    if not data and not config.path:
        yield "", "none given: set data.path, or give --data"
        return
    paths = data_paths(config, data)
    missing = [path for path in paths if not path.exists()]
    yield from (("", f"{path} is not there") for path in missing)
    if not missing:
        yield "", f"{', '.join(map(str, paths))}: {_count_pairs(run, paths, cache)}"
    if config.mosaics.fraction:
        low, high = config.mosaics.scale
        laid = f"mosaics of {config.mosaics.side} x {config.mosaics.side} photographs at zooms of {low:g} to {high:g}"
        yield "", f"for {config.mosaics.fraction:.0%} of the steps {laid}"
    if config.source == "folder" and config.colmap and config.colmap_fraction:
        mixed = ", ".join(_beside(run, Path(path), cache) for path in config.colmap)
        yield "", f"for {config.colmap_fraction:.0%} of the steps {mixed}"


def _kinds(run: TrainConfig, data: list[Path], cache: Path | None) -> Iterator[tuple[str, str]]:
    """What validation measures apart."""
    roots = data_paths(run.data, data) if data or run.data.path else []
    scenes = [_held_out_scene(run, path, cache) for path in find_scenes(run.data, roots, run.validation).values()]
    if kinds := [*run.validation.kinds, *scenes]:
        yield "", f"by kind, {run.validation.pairs} pairs each at angles of their own: {', '.join(kinds)}"


def _held_out_scene(run: TrainConfig, path: Path, cache: Path | None) -> str:
    """A reconstruction that validation measures."""
    if not path.exists():
        return f"{path} (not there)"
    (source,) = open_scenes(run.data, [path], cache)
    check_kinds(run.setting, {path.name: source})
    tracks = "" if source.dense else ", at tracks alone"
    return f"{path} ({len(source):,} pairs{tracks})"


def _beside(run: TrainConfig, path: Path, cache: Path | None) -> str:
    """A reconstruction beside photographs."""
    if not path.exists():
        return f"{path} (not there)"
    (source,) = open_reconstructions(run.data, [path], cache)
    check_dense(run.setting, [(source, run.data.colmap_fraction)], photographs=True)
    return f"{path} ({len(source):,} pairs)"


def _count_pairs(run: TrainConfig, paths: list[Path], cache: Path | None) -> str:
    config = run.data
    if config.source == "folder":  # without decoding them
        names = [photo.name for photo in find_photos(paths)]
        held = sum(held_out(name, config.held_out) for name in names)
        kept = held if 0 < held < len(names) else 1  # a handful: the last
        return f"{len(names)} photographs, a pair each; of them {kept} held out"
    sources = build_sources(config, paths, torch.device("cpu"), cache, detections=needs_detections(run))
    check_dense(run.setting, sources.training)
    return f"{sum(len(source) for source, _ in sources.training):,} pairs, {len(sources.validation):,} held out"


def _optimiser(config: TrainConfig) -> str:
    chosen = config.optimiser
    clip = f"gradient clipped to {chosen.clip:g}" if chosen.clip else "gradient not clipped"
    return f"AdamW, weight decay {chosen.weight_decay:g}, {clip}" + (f", average {chosen.ema:g}" if chosen.ema else "")


def _rates(config: TrainConfig, objective: Objective) -> dict[str, tuple[int, float]]:
    """Number of parameters and learning rate by the beginning of their names."""
    rates: dict[str, tuple[int, float]] = {}
    for name, parameter in objective.trained():
        key = config.optimiser.prefix_of(name) or name.partition(".")[0]
        count, _ = rates.get(key, (0, 0.0))
        rates[key] = count + parameter.numel(), config.optimiser.rate_of(name)
    return rates
