"""How models are built: parts from files of weights, and models from parts.

What there is, and which files it needs, say the tables of :mod:`steerers.models.zoo`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from torch import nn

from steerers._files import StrPath
from steerers._weights import WeightsError, load, load_into, load_state, load_tensor
from steerers.models import dedode, downloads
from steerers.models.base import Combined, Descriptor, Detector, Extractor
from steerers.models.compact import Compact, CompactConfig
from steerers.models.dedode import DedodeDescriptor, DedodeDetector
from steerers.models.downloads import WeightFile
from steerers.models.folding import fold_batch_norms
from steerers.models.frozen import Aliked, Disk, FrozenExtractor, XFeat
from steerers.models.scales import Pyramid
from steerers.models.superpoint import SuperPoint
from steerers.steering.representations import Group, Order
from steerers.steering.steerer import Steerer

Weights = Mapping[str, Path]
T_co = TypeVar("T_co", covariant=True)
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Part(Generic[T_co]):
    """Something that models are made of.

    Attributes:
        build: makes it from the paths of its files, by their names.
        weights: those files.
        extra: of this package, that must be installed; each brings kornia.
    """

    build: Callable[[Weights], T_co]
    weights: tuple[WeightFile, ...] = ()
    extra: Literal["kornia", "dinov2"] | None = None


# Detectors and descriptors --------------------------------------------------------------------------------------------


def dedode_detector(file: WeightFile) -> Part[Detector]:
    """Detector L with one of its files."""
    return Part(lambda paths: _loaded(DedodeDetector("L"), paths[file.name], "DeDoDe detector L"), (file,))


def dedode_b(file: WeightFile) -> Part[Descriptor]:
    """Descriptor B with one of its files."""
    return Part(lambda paths: _loaded(DedodeDescriptor("B"), paths[file.name], "DeDoDe descriptor B"), (file,))


def dedode_g(file: WeightFile, dinov2: WeightFile) -> Part[Descriptor]:
    """Descriptor G with one of its files, and DINOv2."""

    def build(paths: Weights) -> Descriptor:
        network = DedodeDescriptor("G", backbone=load_dinov2(paths[dinov2.name]))
        return _loaded(network, paths[file.name], "DeDoDe descriptor G")

    return Part(build, (file, dinov2), "dinov2")


def _loaded(network: Network, path: Path, title: str) -> Network:
    """``network`` with the weights of a file that has exactly its names and shapes."""
    load_into(network, load_state(path), path, title)
    return network


def load_dinov2(path: Path) -> nn.Module:
    """The backbone of descriptor G from DINOv2's own file."""
    state = load_state(path)
    try:
        return dedode.dinov2_backbone(state)
    except ValueError as error:
        raise WeightsError(f"{path}: {str(error).splitlines()[0]}") from error


def load_vgg(network: nn.Module, path: Path) -> None:
    """Give the encoder of a DeDoDe network the weights of torchvision's VGG19-BN, from which training starts."""
    encoder = network.get_submodule("encoder")
    vgg: nn.Module = getattr(encoder, "vgg", encoder)
    state = {name.replace("features.", "layers."): value for name, value in load_state(path).items()}
    used = {name: state[name] for name in vgg.state_dict() if name in state}
    load_into(vgg, used, path, "VGG19 with batch normalisation")


def frozen(name: str, file: WeightFile) -> Part[Extractor]:
    """DISK, XFeat, SuperPoint or an ALIKED, by the name of the model."""
    extra: Literal["kornia"] | None = None if name == "superpoint" else "kornia"
    return Part(lambda paths: frozen_network(name).load_weights(paths[file.name]), (file,), extra)


def frozen_network(name: str) -> FrozenExtractor:
    """The network of a frozen model, without its weights."""
    networks: dict[str, Callable[[], FrozenExtractor]] = {"disk": Disk, "xfeat": XFeat, "superpoint": SuperPoint}
    return networks[name]() if name in networks else Aliked(name)


def compact(path: Path, scales: Sequence[float] = (1.0,)) -> Part[Extractor]:
    """The compact network of a file that training wrote, batch normalisations folded, at ``scales`` of the image."""

    def build(_: Weights) -> Extractor:
        tensors, metadata = load(path)
        try:
            network = Compact(_compact_config(metadata))
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{path}: does not say which compact network it is of ({error!r})") from error
        own = {name.removeprefix("network."): value for name, value in tensors.items() if name.startswith("network.")}
        full = {name: value.float() if value.is_floating_point() else value for name, value in own.items()}
        load_into(network, full, path, "a compact network")
        folded = fold_batch_norms(network).requires_grad_(False)
        return folded if len(scales) == 1 else Pyramid(folded, scales)

    return Part(build)


def _compact_config(metadata: Mapping[str, str]) -> CompactConfig:
    """The shape of the network that a run exported."""
    shape = json.loads(metadata["config"])["model"]["compact"]
    return CompactConfig(tuple(shape["channels"]), tuple(shape["blocks"]), int(shape["dim"]), int(shape["hidden"]))


# Steerers -------------------------------------------------------------------------------------------------------------


def official_matrix(file: WeightFile, group: Group) -> Part[Steerer]:
    """A learned steerer, published as a bare matrix."""

    def build(paths: Weights) -> Steerer:
        path = paths[file.name]
        matrix = load_tensor(path)
        try:
            return Steerer.from_matrix(matrix, group)
        except (TypeError, ValueError) as error:
            raise WeightsError(f"{path}: {error}") from error

    return Part(build, (file,))


def shipped(path: Path, model: str) -> Part[Steerer]:
    """A steerer that comes with this package; refused if it was fitted to another model."""

    def build(_: Weights) -> Steerer:
        tensors, metadata = load(path)
        if metadata.get("model", model) != model:
            raise WeightsError(f"{path}: a steerer for model {metadata['model']!r}, not for {model!r}")
        try:
            return Steerer.restore(tensors, metadata).requires_grad_(False)
        except (KeyError, ValueError) as error:
            raise WeightsError(f"{path}: does not hold a steerer: {error}") from error

    return Part(build)


# Models ---------------------------------------------------------------------------------------------------------------


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

    def build(self, weights: Weights | None = None) -> Model:
        """The model, from the paths of its files by their names; :func:`locate` finds them."""
        located = {} if weights is None else weights
        extractor = self.descriptor.build(located)
        if self.detector is not None:
            extractor = Combined(self.detector.build(located), extractor)
        if not isinstance(extractor, Extractor):
            raise TypeError(f"model {self.name!r} needs a detector: {type(extractor).__name__} finds no keypoints")
        steerer = None if self.steerer is None else self.steerer.build(located)
        if steerer is not None and steerer.group != self.group:
            raise ValueError(f"model {self.name!r} needs a steerer for {self.group}, got one for {steerer.group}")
        return Model(
            self.name,
            extractor,
            steerer,
            strategy=self.strategy or _suitable_strategy(self.group),
            order=self.order,
            inverse_temperature=self.inverse_temperature,
            threshold=self.threshold,
        )


def _suitable_strategy(group: Group | None) -> str:
    if group is None:
        return "dual-softmax"
    return "max-similarity" if group.continuous else "max-matches"


def locate(entry: Entry, given: Sequence[StrPath] = ()) -> dict[str, Path]:
    """Where each file of a model is: as given, else in the cache, else downloaded now.

    Args:
        given: paths, told apart by their names, whatever the ending; where one file is needed, any name will do. They
            are the user's own choice, so that no checksum is asked of them.

    Raises:
        WeightsError: naming what is missing, its address and the folder to put it in; or the path that does not fit.
    """
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
