"""What models are made of: the files of weights that others publish, and how each part is built from its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor, nn

from steerers._weights import WeightsError, load, load_into, load_state, read_header
from steerers.models import dedode
from steerers.models.base import Descriptor, Detector, Extractor
from steerers.models.compact import Compact, CompactConfig, Pyramid, fold_batch_norms
from steerers.models.dedode import DedodeDescriptor, DedodeDetector
from steerers.models.downloads import WeightFile
from steerers.models.frozen import Aliked, Disk, FrozenExtractor, SuperPoint, XFeat
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer, load_described

Weights = Mapping[str, Path]
T_co = TypeVar("T_co", covariant=True)
Network = TypeVar("Network", bound=nn.Module)
TRAINED_FILE = "model.safetensors"
"""What a run of training leaves in its folder for use: weights, steerer and recipe."""
TRAINED = ("network.", "descriptor.", "detector.")
"""What stands before the names of the weights in it."""


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


# Files ----------------------------------------------------------------------------------------------------------------
# A file has the name under which it is published, so that one fetched by hand needs no new name. Its checksum is given
# where the first address is known to serve it; an address that serves anything else is then passed over.

_DEDODE = "https://github.com/Parskatt/DeDoDe/releases/download/"
V1, V2 = _DEDODE + "dedode_pretrained_models/", _DEDODE + "v2/"
STEERERS = "https://github.com/georg-bn/rotation-steerers/releases/download/release-2/"
_MIRROR = "https://huggingface.co/kornia/"


def _dedode_file(name: str, size: int, address: str, sha256: str | None = None, *, mirrored: bool = True) -> WeightFile:
    """A file of DeDoDe. The known checksums are those of the mirror, which then comes first."""
    mirror = (f"{_MIRROR}dedode/resolve/main/{name}.pth",) if mirrored else ()
    official = (f"{address}{name}.pth",)
    return WeightFile(f"{name}.pth", official + mirror if sha256 is None else mirror + official, sha256, size, "MIT")


def _aliked_file(name: str, size: int, sha256: str | None = None) -> WeightFile:
    addresses = ("https://github.com/Shiaoming/ALIKED/raw/main/models/", f"{_MIRROR}aliked/resolve/main/")
    return WeightFile(f"{name}.pth", tuple(f"{at}{name}.pth" for at in addresses), sha256, size, "BSD-3-Clause")


DINOV2 = WeightFile(
    "dinov2_vitl14_pretrain.pth",
    ("https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth",),
    "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428",
    1_217_586_395,
    "Apache-2.0",
)
"""The backbone of descriptor G."""
VGG19_BN = WeightFile(
    "vgg19_bn-c79401a0.pth",
    ("https://download.pytorch.org/models/vgg19_bn-c79401a0.pth",),
    size=574_769_405,
    licence="BSD-3-Clause",
)
"""ImageNet's weights of torchvision, from which the paper's networks are trained."""

FROZEN = {
    "disk": WeightFile(
        "depth-save.pth",
        (
            "https://raw.githubusercontent.com/cvlab-epfl/disk/master/depth-save.pth",
            _MIRROR + "disk/resolve/main/depth-save.pth",
        ),
        "9c2ee4ded238892dfa51569941372601e35e4a74aa6f84ea80053d2ab1c07abe",
        4_375_832,
        "Apache-2.0",
    ),
    "xfeat": WeightFile(
        "xfeat.pt",
        ("https://github.com/verlab/accelerated_features/raw/main/weights/xfeat.pt",),
        "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b",
        6_247_949,
        "Apache-2.0",
    ),
    "superpoint": WeightFile(
        "superpoint_v1.pth",
        sha256="52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
        size=5_206_086,
        licence="non-commercial",
        note=(
            "It is part of magicleap/SuperPointPretrainedNetwork on GitHub; read its licence first, which is for "
            "academic or non-profit organisations and non-commercial research use only."
        ),
    ),
    "aliked-n16": _aliked_file(
        "aliked-n16", 2_738_091, "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2"
    ),
    "aliked-n16rot": _aliked_file(
        "aliked-n16rot", 2_738_325, "ddf3abbf38e86f6a74540d214e1a9712c54b2d8551abc864542199f2347d7332"
    ),
    "aliked-t16": _aliked_file("aliked-t16", 794_859),
    "aliked-n32": _aliked_file("aliked-n32", 3_946_667),
}
"""The file of each frozen model."""


# Detectors and descriptors --------------------------------------------------------------------------------------------


def dedode_detector(name: str, address: str, sha256: str) -> Part[Detector]:
    """Detector L with one of its files."""
    file = _dedode_file(f"dedode_detector_{name}", 58_483_585, address, sha256)
    return Part(lambda paths: _loaded(DedodeDetector("L"), paths[file.name], "DeDoDe detector L"), (file,))


def dedode_b(
    name: str, address: str = STEERERS, sha256: str | None = None, *, mirrored: bool = True
) -> Part[Descriptor]:
    """Descriptor B with one of its files."""
    file = _dedode_file(name, 54_300_000, address, sha256, mirrored=mirrored)
    return Part(lambda paths: _loaded(DedodeDescriptor("B"), paths[file.name], "DeDoDe descriptor B"), (file,))


def dedode_g(name: str, address: str = STEERERS, sha256: str | None = None) -> Part[Descriptor]:
    """Descriptor G with one of its files, and DINOv2."""
    file = _dedode_file(name, 75_485_969, address, sha256)

    def build(paths: Weights) -> Descriptor:
        network = DedodeDescriptor("G", backbone=load_dinov2(paths[DINOV2.name]))
        return _loaded(network, paths[file.name], "DeDoDe descriptor G")

    return Part(build, (file, DINOV2), "dinov2")


def _loaded(network: Network, path: Path, title: str) -> Network:
    load_weights(network, path, title)
    return network


def load_weights(network: nn.Module, path: Path, title: str, later: Sequence[str] = ()) -> None:
    """Give a network the weights of a file: those alone, or among what a run of training left.

    Args:
        later: how names begin that the file may lack, each all together: parts that the network has got since.

    Raises:
        WeightsError: if the file cannot be read, or holds other names or shapes than the network.
    """
    state = _own(load_state(path))
    added: set[str] = set()
    for part in later:
        names = {name for name in network.state_dict() if name.startswith(part)}
        added |= set() if names & state.keys() else names
    load_into(network, state, path, title, added)


def _own(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a network under its own names, where a run of training put a word before them."""
    for prefix in TRAINED:
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if own:
            return own
    return dict(state)


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


def frozen(name: str) -> Part[Extractor]:
    """DISK, XFeat, SuperPoint or an ALIKED, by the name of the model."""
    file, extra = FROZEN[name], None if name == "superpoint" else "kornia"
    return Part(lambda paths: frozen_network(name).load_weights(paths[file.name]), (file,), extra)  # type: ignore[arg-type]


def frozen_network(name: str) -> FrozenExtractor:
    """The network of a frozen model, without its weights."""
    networks: dict[str, Callable[[], FrozenExtractor]] = {"disk": Disk, "xfeat": XFeat, "superpoint": SuperPoint}
    return networks[name]() if name in networks else Aliked(name)


def compact(path: Path, scales: Sequence[float] = (1.0,), coarse: float = 0.0) -> Part[Extractor]:
    """The compact network of a file that training wrote, batch normalisations folded, at ``scales`` of the image; see
    :class:`~steerers.models.compact.Pyramid`."""

    def build(_: Weights) -> Extractor:
        tensors, metadata = load(path)
        try:
            network = Compact(_compact_config(metadata))
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{path}: does not say which compact network it is of ({error!r})") from error
        full = {name: value.float() if value.is_floating_point() else value for name, value in _own(tensors).items()}
        load_into(network, full, path, "a compact network")
        folded = fold_batch_norms(network).requires_grad_(False)
        return folded if len(scales) == 1 else Pyramid(folded, scales, coarse)

    return Part(build)


def _compact_config(metadata: Mapping[str, str]) -> CompactConfig:
    """The shape of the network that a run exported; older files do not name what they do not have.

    What is not known here is refused: without it, the network would say something else than when it was trained.
    """
    written = json.loads(metadata["config"])["model"]["compact"].items()
    shape: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written}
    return CompactConfig(**shape)


# What training left ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """What a file that ``steerers train`` left says of itself.

    Attributes:
        kind: of the network, and the paper's ``setting``, or ``joint`` or ``detector``.
        model: the section ``[model]`` of its configuration.
        holds: whose weights are in the file: ``network``, ``descriptor``, ``detector``, ``prototype``, or none.
        group: of the steerer in it; None where there is none.
        checksum: of all that it holds.
    """

    path: Path
    kind: str
    setting: str
    model: Mapping[str, Any]
    inverse_temperature: float
    holds: frozenset[str]
    group: Group | None
    checksum: str

    @property
    def dim(self) -> int:
        """Length of the descriptions of a network that can be trained."""
        return int(self.model["compact"]["dim"]) if self.kind == "compact" else 256


def read_recipe(path: Path) -> Recipe:
    """What a run left: from its folder, or the file in it.

    Raises:
        WeightsError: if there is no such file, or it is something else.
    """
    file = path / TRAINED_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise WeightsError(f"{path}: no {TRAINED_FILE} in it: not the folder of a run, or one that has not ended yet")
    names, metadata = read_header(file)
    if "setting" not in metadata:
        instead = "a steerer, to be given as such (steerer=, --steerer)" if "steerer.kind" in metadata else "no model"
        raise WeightsError(f"{file}: {instead}; `steerers train` did not write it")
    try:
        config = json.loads(metadata["config"])
        return Recipe(
            file,
            metadata["kind"],
            metadata["setting"],
            {"weights": "", "detector": "", "detector_weights": "", "backbone_weights": "", **config["model"]},
            float(config["matching"]["inverse_temperature"]),
            frozenset(name.partition(".")[0] for name in names),
            Group.parse(metadata["steerer.group"]) if "steerer.kind" in metadata else None,
            metadata["sha256"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file}: does not say how it was trained ({error!r})") from error


def trained_descriptor(
    kind: str, path: Path, *, backbone: str = "", scales: Sequence[float] = (1.0,), coarse: float = 0.0
) -> Part[Descriptor]:
    """A descriptor of a kind that can be trained, with the weights of a file; ``backbone`` is DINOv2's file for G."""
    if kind == "compact":
        return compact(path, scales, coarse)
    if kind == "dedode-b":
        return Part(lambda _: _loaded(DedodeDescriptor("B"), path, "DeDoDe descriptor B"))

    def build(paths: Weights) -> Descriptor:
        network = DedodeDescriptor("G", backbone=load_dinov2(Path(backbone or paths[DINOV2.name])))
        return _loaded(network, path, "DeDoDe descriptor G")

    return Part(build, () if backbone else (DINOV2,), "dinov2")


def trained_detector(path: Path) -> Part[Detector]:
    """DeDoDe's detector L with the weights of a file."""
    return Part(lambda _: _loaded(DedodeDetector("L"), path, "DeDoDe detector L"))


def trained_prototype(path: Path) -> Tensor:
    """(D,) what a run trained for ``prototype-procrustes``."""
    return load(path)[0]["prototype.prototype"]


# Steerers -------------------------------------------------------------------------------------------------------------


def official_matrix(name: str, group: Group) -> Part[Steerer]:
    """A learned steerer, published as a bare matrix."""
    file = _dedode_file(name, 263_000, STEERERS, mirrored=False)
    return Part(lambda paths: Steerer.load(paths[file.name], group), (file,))


def shipped(path: Path, model: str) -> Part[Steerer]:
    """The steerer of a file; refused if it was fitted to another model."""

    def build(_: Weights) -> Steerer:
        steerer, metadata = load_described(path)
        if metadata.get("model", model) != model:
            raise WeightsError(f"{path}: a steerer for model {metadata['model']!r}, not for {model!r}")
        return steerer.requires_grad_(False)

    return Part(build)
