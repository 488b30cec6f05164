"""The models by name: what each is, which files it needs, and how it is put together from its parts.

A model is a line of :data:`ZOO`: a descriptor, its steerer where there is one, and a detector where the descriptor does
not find keypoints itself. Any of them takes another detector: one of :data:`DETECTORS`, or that of another model.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from steerers import _choices
from steerers._files import StrPath
from steerers._weights import WeightsError
from steerers.features import Keypoints
from steerers.matching.consensus import Consensus
from steerers.models import downloads, parts
from steerers.models.base import Combined, Descriptor, Detector, Extractor, LogitDetector
from steerers.models.classical import Orb, Sift, UprightSift, c4_permutation
from steerers.models.compact import Compact
from steerers.models.dedode import DedodeNetwork
from steerers.models.downloads import WeightFile
from steerers.models.parts import Part, Weights
from steerers.models.sampling import KeypointSampling
from steerers.steering.representations import Group, Order
from steerers.steering.steerer import Steerer

try:  # the seam to the networks' fast forms; without that room the plain networks are used
    from steerers.accel import networks as accel
except ImportError:
    accel = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

PRECISIONS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _choices.PRECISIONS}
SHIPPED = Path(__file__).parent / "data" / "steerers"
COMPACT, COMPACT_1 = (Path(__file__).parent / "data" / f"compact-{name}.safetensors" for name in ("6", "1"))
COMPACT_SCALES = (1.0, 0.5)
COMPACT_COARSE = 0.5
"""The power of the scale by which keypoints count less; see :class:`~steerers.models.compact.Pyramid`."""
FITTED = ("mirror", "consensus")
"""What lies beside the weights of an embedded model, in files of its own."""

_C4, _SO2 = Group(4), Group(None)
_OFFICIAL_SPREAD = "40x0 + 18x-1 + 18x-2 + 18x-3 + 18x-4 + 18x-5 + 18x-6"  # the other way than Steerer.spread
_SETTINGS = {  # of training, as the paper calls them
    None: "",
    "A": ", steerer fitted to it (setting A)",
    "B": ", trained together with its steerer (setting B)",
    "C": ", trained for its steerer (setting C)",
}


# Models and entries ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Model:
    """Keypoints and descriptions, the steerer that fits them, and the matching that suits them."""

    name: str
    extractor: Extractor
    steerer: Steerer | None = None
    strategy: str = "dual-softmax"
    order: Order = "default"
    inverse_temperature: float = 20.0
    threshold: float = 0.01
    prototype: Tensor | None = None
    """Of ``prototype-procrustes``, (D,), where one was trained."""
    mirror: Steerer | None = None
    """What a reflection of the image does to descriptions, by half a turn of a steerer of C2, where it is known."""
    consensus: Consensus | None = None
    """What matches agree in with those around them, where it was learnt."""

    def __post_init__(self) -> None:
        if self.steerer is not None and self.steerer.dim != self.extractor.dim:
            raise ValueError(
                f"model {self.name!r} has descriptions of length {self.extractor.dim}, "
                f"but its steerer acts on length {self.steerer.dim}"
            )


@dataclass(frozen=True, eq=False)
class DetectorEntry:
    """A detector that any model can be given."""

    name: str
    summary: str
    licence: str
    part: Part[Detector]


@dataclass(frozen=True, eq=False)
class Entry:
    """A line of the zoo.

    Attributes:
        group: of the steerer; None where there is none.
        detector: None where the descriptor finds keypoints itself.
        strategy: None is what suits the group.
    """

    name: str
    summary: str
    dim: int
    group: Group | None
    licence: str
    descriptor: Part[Descriptor]
    steerer: Part[Steerer] | None = None
    detector: Part[Detector] | None = None
    strategy: str | None = None
    order: Order = "default"
    inverse_temperature: float = 20.0
    threshold: float = 0.01
    base: str | None = None
    """The model whose descriptions these are, if it is another one: its steerers fit here too."""
    prototype: Path | None = None
    """The file of a prototype that was trained for it."""
    mirror: Path | None = None
    """The file of what a reflection does to descriptions, which ``steerers fit --group mirror`` wrote."""
    consensus: Path | None = None
    """The file that ``steerers fit-consensus`` wrote."""

    @property
    def fitted_to(self) -> str:
        """The name that a steerer for these descriptions carries."""
        return self.base or self.name

    @property
    def parts(self) -> tuple[Part[nn.Module], ...]:
        """What it is made of."""
        return tuple(part for part in (self.detector, self.descriptor, self.steerer) if part is not None)

    @property
    def weights(self) -> tuple[WeightFile, ...]:
        """The files it needs, each once."""
        return tuple({file.name: file for part in self.parts for file in part.weights}.values())

    def build(self, weights: Weights) -> Model:
        """The model, from the paths of its files by their names; :func:`locate` finds them."""
        extractor = self.descriptor.build(weights)
        if self.detector is not None:
            extractor = Combined(self.detector.build(weights), extractor)
        if not isinstance(extractor, Extractor):
            raise TypeError(f"model {self.name!r} needs a detector: {type(extractor).__name__} finds no keypoints")
        steerer = None if self.steerer is None else self.steerer.build(weights)
        if steerer is not None and steerer.group != self.group:
            raise ValueError(f"model {self.name!r} needs a steerer for {self.group}, got one for {steerer.group}")
        strategy = self.strategy or suitable_strategy(self.group)
        prototype = None if self.prototype is None else parts.trained_prototype(self.prototype)
        suits = (strategy, self.order, self.inverse_temperature, self.threshold)
        mirror = None if self.mirror is None else parts.shipped(self.mirror, self.fitted_to).build(weights)
        consensus = None if self.consensus is None else Consensus.load(self.consensus, self.fitted_to)
        return Model(self.name, extractor, steerer, *suits, prototype, mirror, consensus)


def suitable_strategy(group: Group | None) -> str:
    """How to match with a steerer of that group, or without one."""
    if group is None:
        return "dual-softmax"
    return "max-similarity" if group.continuous else "max-matches"


# Tables ---------------------------------------------------------------------------------------------------------------

_SHA256 = {  # of files of DeDoDe, where known
    "L": "663c972a7215538ef3170ccc3183bb1019610ffde4bc7c9da6c13b143388dd64",
    "L_v2": "4113809dd9e0367af013a45fc2255a6b243ff241cd06520d17a65d9e231bdc17",
    "C4": "147b2d6163523d1aaedb4127d670dc6cec8042feef522505984d60e75aa630fd",
    "SO2": "471bf07344871227b91694ce974b6dd26169e3552ef42cb8e2b4ca7db950c92c",
    "B": "8eccfc270ec990ced60cd54a434411a47c4c504de13586f596d042e005b3022b",
    "G": "ef6e3f2911bb3c179960db15545a2137d0746054bb5bad75559524ccab1fee41",
}

DETECTORS = {
    name: DetectorEntry(name, summary, "MIT", parts.dedode_detector(file, address, _SHA256[file]))
    for name, summary, file, address in (
        ("dedode-l", "DeDoDe", "L", parts.V1),
        ("dedode-l-v2", "DeDoDe v2", "L_v2", parts.V2),
        ("dedode-l-c4", "DeDoDe, trained with quarter turns", "C4", parts.STEERERS),
        ("dedode-l-so2", "DeDoDe, trained with all rotations", "SO2", parts.STEERERS),
    )
}


def make_zoo(shipped: Path = SHIPPED) -> dict[str, Entry]:
    """The models by name; those with a steerer of this package as far as its file is in the folder ``shipped``."""
    bases = (*_compact(), *_classical(), *_dedode(), *_frozen())
    return {entry.name: entry for base in bases for entry in (base, *_with_shipped_steerers(base, shipped))}


def _compact() -> Iterator[Entry]:
    for name, base, summary, file, scales, coarse in (
        ("compact-6", None, "small network of this package, every angle", COMPACT, COMPACT_SCALES, COMPACT_COARSE),
        ("compact-6-single", "compact-6", "the same at one scale: faster, for like distances", COMPACT, (1.0,), 0.0),
        ("compact-1", "compact", "compact as it was in 0.1", COMPACT_1, COMPACT_SCALES, 0.0),
    ):
        network = parts.compact(file, scales, coarse)
        # The threshold was chosen on held-out photographs, see docs/models.md.
        entry = Entry(name, summary, 256, _SO2, "MIT", network, parts.shipped(file, name), order=16, threshold=0.05)
        mirror, consensus = (_if_there(file.with_name(f"{file.stem}-{what}.safetensors")) for what in FITTED)
        yield replace(entry, base=base, mirror=mirror, consensus=consensus)


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _classical() -> Iterator[Entry]:
    exact = Part(lambda _: Steerer.from_permutation(c4_permutation(), "C4"))
    upright, sift, orb = Part(lambda _: UprightSift()), Part(lambda _: Sift()), Part(lambda _: Orb())
    for name, summary, dim, group, network, steerer, inverse_temperature, threshold in (
        ("upright-sift", "SIFT without orientation, exact quarter turns", 128, _C4, upright, exact, 40.0, 0.1),
        ("sift", "SIFT, rotation-invariant baseline", 128, None, sift, None, 40.0, 0.1),
        ("orb", "ORB, rotation-invariant baseline", 256, None, orb, None, 20.0, 0.05),
    ):
        entry = Entry(name, summary, dim, group, "Apache-2.0", network, steerer)
        yield replace(entry, inverse_temperature=inverse_temperature, threshold=threshold)


def _dedode() -> Iterator[Entry]:
    b, g, matrix = parts.dedode_b, parts.dedode_g, parts.official_matrix
    plain, c4, so2 = (DETECTORS[name].part for name in ("dedode-l", "dedode-l-c4", "dedode-l-so2"))
    perm, spread = Part(lambda _: Steerer.perm(256)), Part(lambda _: Steerer.from_spec(_OFFICIAL_SPREAD, "SO2"))
    original_b = b("dedode_descriptor_B", parts.V1, _SHA256["B"])
    original_g = g("dedode_descriptor_G", parts.V1, _SHA256["G"])
    spread_b = b("B_SO2_Spread_descriptor_setting_B", mirrored=False)
    for name, setting, descriptor, group, steerer, detector in (
        ("dedode-b", None, original_b, None, None, plain),
        ("dedode-b-c4", "A", original_b, _C4, matrix("B_C4_steerer_setting_A", _C4), c4),
        ("dedode-b-c4-perm", "C", b("B_C4_Perm_descriptor_setting_C"), _C4, perm, c4),
        ("dedode-b-so2-spread", "C", b("B_SO2_Spread_descriptor_setting_C"), _SO2, spread, so2),
        ("dedode-b-so2-spread-b", "B", spread_b, _SO2, matrix("B_SO2_Spread_steerer_setting_B", _SO2), so2),
        ("dedode-g", None, original_g, None, None, plain),
        ("dedode-g-c4-perm", "C", g("G_C4_Perm_descriptor_setting_C"), _C4, perm, c4),
        ("dedode-g-so2-spread", "C", g("G_SO2_Spread_descriptor_setting_C"), _SO2, spread, so2),
    ):
        summary = f"DeDoDe {name[7].upper()}{_SETTINGS[setting]}"
        licence = ", ".join(dict.fromkeys(file.licence for file in descriptor.weights))
        yield Entry(name, summary, 256, group, licence, descriptor, steerer, detector)


def _frozen() -> Iterator[Entry]:
    for name, summary, dim in (
        ("disk", "DISK", 128),
        ("aliked-n16", "ALIKED n16", 128),
        ("aliked-n16rot", "ALIKED n16, trained with rotated images", 128),
        ("aliked-t16", "ALIKED t16, the smallest", 64),
        ("aliked-n32", "ALIKED n32, the largest", 128),
        ("xfeat", "XFeat", 64),
        ("superpoint", "SuperPoint", 256),
    ):
        yield Entry(name, summary, dim, None, parts.FROZEN[name].licence, parts.frozen(name))


# Measured in docs/results.md: max-similarity misleads where descriptions have a large common part.
_MEASURED: dict[str, dict[str, Any]] = {
    "disk-so2": {"strategy": "max-matches"},
    "xfeat-so2": {"strategy": "max-matches"},
    "upright-sift-so2": {"strategy": "max-matches", "order": 16},
}


def _with_shipped_steerers(base: Entry, folder: Path) -> Iterator[Entry]:
    for group in (_C4, _SO2):
        path = folder / f"{base.name}-{str(group).lower()}.safetensors"
        if path.is_file():
            yield replace(
                base,
                name=path.stem,
                summary=base.summary.split(",")[0] + _SETTINGS["A"],
                group=group,
                steerer=parts.shipped(path, base.name),
                base=base.name,
                **_MEASURED.get(path.stem, {}),
            )


ZOO = make_zoo()
ALIASES = {
    "compact": "compact-6",  # the newest; what is written says which, since descriptions of two do not compare
    "compact-single": "compact-6-single",
    "dedode-b-so2": "dedode-b-so2-spread",
}


# Finding and building -------------------------------------------------------------------------------------------------


def build(
    name: StrPath,
    *,
    detector: StrPath | None = None,
    steerer: StrPath | Steerer | None = None,
    weights: StrPath | Sequence[StrPath] = (),
    network: bool = True,
) -> Model:
    """The model of that name, or that a run of training left; weights that are not here are downloaded.

    Args:
        name: see :func:`find`.
        detector: whose keypoints are described, if not the model's own: one of :data:`DETECTORS`, a model, or a run.
        steerer: instead of the model's own; or its file, which ``steerers fit`` or ``train`` wrote for this model, or a
            published matrix.
        weights: files to use instead of those in the cache; see :func:`locate`.
        network: without it the model can match what others described, and needs no weights but those of its steerer.
    """
    entry = find(name)
    if steerer is not None:
        entry = with_steerer(entry, steerer if isinstance(steerer, Steerer) else Path(steerer))
    if detector is not None:
        entry = with_detector(entry, detector)
    if not network:
        entry = replace(entry, descriptor=Part(lambda _: _Elsewhere(entry.dim)), detector=None)
    given = (weights,) if isinstance(weights, str | os.PathLike) else weights
    return entry.build(locate(entry, given))


class _Elsewhere(Extractor):
    """Stands for the network of a model whose descriptions are made elsewhere."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        raise NotImplementedError("this model was built without its network")

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        raise NotImplementedError("this model was built without its network")


def locate(entry: Entry, given: Sequence[StrPath] = ()) -> dict[str, Path]:
    """Where each file of a model is: as given, else in the cache, else downloaded now.

    Args:
        given: paths, told apart by their names, whatever the ending; where one file is needed, any name will do. They
            are the user's own choice, so that no checksum is asked of them.

    Raises:
        WeightsError: naming what is missing, its address and the folder to put it in; or the path that does not fit.
        ImportError: if the model needs an extra of this package that is not installed; nothing is downloaded then.
    """
    for part in entry.parts:
        if part.extra is not None and importlib.util.find_spec("kornia") is None:
            raise ImportError(f'model {entry.name!r} needs kornia: pip install "steerers[{part.extra}]"')
    found = _by_name(entry, [Path(path) for path in given])
    missing = [file for file in entry.weights if file.name not in found]
    for file in sorted(missing, key=lambda file: bool(file.urls)):  # no download where another file cannot be had
        try:
            found[file.name] = downloads.fetch(file)
        except WeightsError as error:
            others = [other for other in missing if other is not file and downloads.find(other, check=False) is None]
            rest = "; ".join(f"{other.name} ({', '.join(other.urls) or other.note})" for other in others)
            if not rest:
                raise
            raise WeightsError(f"{str(error).rstrip('.')}. Model {entry.name!r} also needs {rest}") from error
    return found


def _by_name(entry: Entry, given: Sequence[Path]) -> dict[str, Path]:
    """The given paths by the names of the files that they stand for."""
    names = {Path(file.name).stem: file.name for file in entry.weights}
    found: dict[str, Path] = {}
    for path in given:
        name = next(iter(names.values())) if len(names) == len(given) == 1 else names.get(path.stem)
        if name is None:
            needs = f"needs {', '.join(names.values())}" if names else "needs no weights"
            raise WeightsError(f"{path} is none of the weights of model {entry.name!r}, which {needs}")
        if name in found:
            raise WeightsError(f"{found[name]} and {path} are both given as {name}: give one")
        if not path.is_file():
            raise WeightsError(f"{path}: no such file")
        found[name] = path
    return found


def build_detector(name: str) -> Detector:
    """The detector of that name alone; weights that are not here are downloaded."""
    if name not in DETECTORS:
        raise ValueError(f"unknown detector {name!r}; use {', '.join(DETECTORS)}")
    part = DETECTORS[name].part
    return part.build({file.name: downloads.fetch(file) for file in part.weights})


def configure(
    model: Model,
    precision: str = "float32",
    sampling: KeypointSampling | None = None,
    *,
    fast: bool = True,
    device: torch.device | None = None,
) -> Model:
    """A model for inference, in a precision and with a sampling of keypoints where its networks have a choice of them.

    Args:
        model: as :func:`build` makes it; with ``fast`` it stays as it is.
        precision: of DeDoDe's networks and of the compact one; those of others are in float32.
        sampling: of DeDoDe's detectors.
        fast: exchange networks for their fast form, a copy; see :mod:`steerers.accel.networks`. Otherwise the options
            are set on the model's own networks, of which the compact one then has no choice of precision.
        device: that it will run on. On a CPU the plain compact network is as fast in float32, and stays.

    Raises:
        ValueError: for an unknown precision, or a model that has no such choice, or was configured for speed before.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    if accel is not None and accel.is_fast(model.extractor):
        raise ValueError(
            f"model {model.name!r} is already configured: its networks are in their fast form; build it anew"
        )
    fast = fast and accel is not None
    networks = [module for module in model.extractor.modules() if isinstance(module, DedodeNetwork)]
    compact = any(isinstance(module, Compact) for module in model.extractor.modules())
    if precision != "float32" and not networks and not (compact and fast):
        form = " without its fast form" if compact else ""
        raise ValueError(f"model {model.name!r}{form} runs in float32 only, not in {precision}")
    if sampling is not None and not _detectors(model):
        raise ValueError(
            f"model {model.name!r} has no choice of how its keypoints are sampled: its detector is not DeDoDe"
        )
    on_cpu = device is not None and device.type == "cpu"
    if on_cpu and precision == "float16":
        logger.warning("float16 is for GPUs: on a CPU float32 is several times as fast")
    elif on_cpu and precision == "bfloat16":  # half the time of float32, or several times it
        logger.info("bfloat16 is fast on GPUs, and on CPUs that have instructions for it: compare with float32")
    plain_is_as_fast = on_cpu and compact and not networks and precision == "float32"
    if plain_is_as_fast:
        # Takes a quarter less time (docs/performance.md).
        model.extractor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if fast and not plain_is_as_fast:
        model = replace(model, extractor=accel.for_inference(model.extractor, PRECISIONS[precision]))
    else:
        for network in networks:
            network.dtype = PRECISIONS[precision]
    for detector in _detectors(model) if sampling is not None else ():
        detector.sampling = sampling
    return model


def _detectors(model: Model) -> list[Any]:
    """DeDoDe's detectors in it, in whatever form."""
    modules = model.extractor.modules()
    return [module for module in modules if isinstance(module, LogitDetector) and not isinstance(module, Extractor)]


def find(name: StrPath) -> Entry:
    """The entry of that name; or of what a run of training left: its folder, or the ``model.safetensors`` in it.

    Raises:
        ValueError: naming the known ones.
        WeightsError: if a path holds no model.
    """
    known = ALIASES.get(os.fspath(name), os.fspath(name))
    if known in ZOO:
        return ZOO[known]
    if is_path(name):
        return trained(Path(name))
    raise ValueError(f"unknown model {known!r}; use one of {', '.join(names())}, or the folder of a run of training")


def names() -> list[str]:
    """All names by which models are found; those that mean another come first."""
    return [*ALIASES, *ZOO]


def is_path(name: StrPath) -> bool:
    """Whether what is given for a model or detector is a run of training, not a name."""
    return Path(name).suffix == ".safetensors" or Path(name).is_dir() or len(Path(name).parts) > 1


def with_steerer(entry: Entry, steerer: Steerer | Path) -> Entry:
    """The entry with a steerer, or that of a file if it fits this model, and the strategy that suits it."""
    own = steerer if isinstance(steerer, Steerer) else parts.shipped(steerer, entry.fitted_to).build({})
    return replace(
        entry,
        group=own.group,
        steerer=Part(lambda _: own),
        strategy=None,
        order="default",
        prototype=None,
        consensus=None,
    )


def with_detector(entry: Entry, name: StrPath) -> Entry:
    """The entry with the keypoints of the detector of that name, of the model of that name, or that a run trained."""
    known = ALIASES.get(os.fspath(name), os.fspath(name))
    if known in DETECTORS:
        part = DETECTORS[known].part
    elif known not in ZOO and is_path(name):
        recipe = parts.read_recipe(Path(name))
        known = _name_of(recipe)
        part = parts.trained_detector(recipe.path) if recipe.setting == "detector" else _keypoints(trained(Path(name)))
    elif known in ZOO:
        part = _keypoints(ZOO[known])
    else:
        raise ValueError(
            f"unknown detector {known!r}; use {', '.join(DETECTORS)}, a model: {', '.join(names())}, or the folder of "
            "a run"
        )
    if part is (entry.detector or entry.descriptor):
        return entry
    # Descriptions stay what they are, and so what is fitted to them.
    return replace(entry, name=f"{entry.name}@{known}", detector=part, base=entry.fitted_to)


def _keypoints(entry: Entry) -> Part[Detector]:
    """What finds the keypoints of a model; one without a detector has a descriptor that is one too."""
    return entry.detector or cast("Part[Detector]", entry.descriptor)


# Trained by users -----------------------------------------------------------------------------------------------------

TRAINABLE = ("compact", "dedode-b", "dedode-g", "dedode-detector-l")
"""The networks that can be trained; any other model of the zoo is frozen, for Setting A."""


def trained(path: Path) -> Entry:
    """The model that a run of training left: its descriptor, steerer and detector, matched as that kind is here.

    Raises:
        ValueError: if the run trained a detector alone, or a file that it was trained from is gone.
        WeightsError: if the path holds no such thing.
    """
    recipe = parts.read_recipe(path)
    if recipe.setting == "detector":
        raise ValueError(f"{path}: a detector, which describes nothing: give it to a model (detector=, --detector)")
    if recipe.kind in names() and recipe.kind not in TRAINABLE:  # a steerer for a frozen model
        base = find(recipe.kind)
        entry = with_steerer(replace(base, base=base.fitted_to), recipe.path)
    else:
        entry = _trained_descriptor(recipe)
    entry = replace(entry, name=_name_of(recipe), inverse_temperature=recipe.inverse_temperature)
    detector = _trained_detector(recipe)
    if "prototype" in recipe.holds:
        entry = replace(entry, strategy="prototype-procrustes", order="default", prototype=recipe.path)
    return entry if detector is None else replace(entry, detector=detector)


def _name_of(recipe: parts.Recipe) -> str:
    """The name of the run's folder, or of a file elsewhere, and what tells it from others of that name."""
    path = recipe.path
    return f"{path.absolute().parent.name if path.name == parts.TRAINED_FILE else path.stem}-{recipe.checksum[:6]}"


def _trained_descriptor(recipe: parts.Recipe) -> Entry:
    """A descriptor of a kind that can be trained, with the weights of the run, or those that it was frozen with."""
    like = find(recipe.kind)
    file: StrPath = recipe.path if recipe.holds & {"network", "descriptor"} else recipe.model["weights"]
    published = [entry for entry in ZOO.values() if file in {weights.name for weights in entry.descriptor.weights}]
    if published:
        part = published[0].descriptor
    elif os.fspath(file) and Path(file).is_file():
        # At the scales of the embedded model where it finds the keypoints itself.
        scales = COMPACT_SCALES if recipe.setting == "joint" else (1.0,)
        backbone = recipe.model["backbone_weights"]
        part = parts.trained_descriptor(
            recipe.kind, Path(file), backbone=backbone, scales=scales, coarse=COMPACT_COARSE
        )
    else:
        raise ValueError(f"{recipe.path}: it was trained for the descriptor in {file or 'no file'}, which is not there")
    steerer = None if recipe.group is None else Part(lambda _: Steerer.load(recipe.path).requires_grad_(False))
    suits = like if recipe.group == like.group else replace(like, strategy=None, order="default")
    suits = replace(suits, licence="your own", mirror=None, consensus=None)
    return replace(suits, dim=recipe.dim, group=recipe.group, descriptor=part, steerer=steerer)


def _trained_detector(recipe: parts.Recipe) -> Part[Detector] | None:
    """Whose keypoints a run was trained at; None where the model finds them itself."""
    name, weights = recipe.model["detector"], recipe.model["detector_weights"]
    if weights and name in DETECTORS:
        if not Path(weights).is_file():
            raise ValueError(f"{recipe.path}: it was trained at the keypoints of {weights}, which is not there")
        return parts.trained_detector(Path(weights))
    if name in DETECTORS:
        return DETECTORS[name].part
    return _keypoints(find(name)) if name else None
