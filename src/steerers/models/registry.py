"""What models are made of: the published files of weights, and the networks and steerers that are built from them.

A file has the name under which it is published, so that one fetched by hand needs no new name. Its checksum is given
where the first address is known to serve it; an address that serves anything else is then passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from torch import nn

from steerers._weights import WeightsError, load, load_into, load_state, load_tensor
from steerers.models.base import Descriptor, Detector, Extractor
from steerers.models.downloads import WeightFile
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

if TYPE_CHECKING:
    from steerers.models.compact import CompactConfig
    from steerers.models.frozen import FrozenExtractor

Weights = Mapping[str, Path]
T_co = TypeVar("T_co", covariant=True)
Network = TypeVar("Network", bound=nn.Module)

# Official fixed matrices rotate their pairs of coordinates the other way than Steerer.spread.
_OFFICIAL_SPREAD = "40x0 + 18x-1 + 18x-2 + 18x-3 + 18x-4 + 18x-5 + 18x-6"


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


# DeDoDe's files -------------------------------------------------------------------------------------------------------

_DEDODE = "https://github.com/Parskatt/DeDoDe/releases/download/"
_STEERERS = "https://github.com/georg-bn/rotation-steerers/releases/download/release-2/"
_MIRROR = "https://huggingface.co/kornia/"

_DETECTOR_BYTES, _B_BYTES, _G_BYTES, _STEERER_BYTES = 58_483_585, 54_300_000, 75_485_969, 263_000


def _dedode_file(name: str, address: str, size: int, sha256: str | None = None, *, mirrored: bool = True) -> WeightFile:
    """A file of DeDoDe. The known checksums are those of the mirror, which then comes first."""
    mirror = (f"{_MIRROR}dedode/resolve/main/{name}",) if mirrored else ()
    official = (address + name,)
    urls = official + mirror if sha256 is None else mirror + official
    return WeightFile(name, urls, sha256, size, "MIT")


DETECTOR_L = _dedode_file(
    "dedode_detector_L.pth",
    _DEDODE + "dedode_pretrained_models/",
    _DETECTOR_BYTES,
    "663c972a7215538ef3170ccc3183bb1019610ffde4bc7c9da6c13b143388dd64",
)
DETECTOR_L_V2 = _dedode_file(
    "dedode_detector_L_v2.pth",
    _DEDODE + "v2/",
    _DETECTOR_BYTES,
    "4113809dd9e0367af013a45fc2255a6b243ff241cd06520d17a65d9e231bdc17",
)
DETECTOR_C4 = _dedode_file(
    "dedode_detector_C4.pth",
    _STEERERS,
    _DETECTOR_BYTES,
    "147b2d6163523d1aaedb4127d670dc6cec8042feef522505984d60e75aa630fd",
)
DETECTOR_SO2 = _dedode_file(
    "dedode_detector_SO2.pth",
    _STEERERS,
    _DETECTOR_BYTES,
    "471bf07344871227b91694ce974b6dd26169e3552ef42cb8e2b4ca7db950c92c",
)

DESCRIPTOR_B = _dedode_file(
    "dedode_descriptor_B.pth",
    _DEDODE + "dedode_pretrained_models/",
    _B_BYTES,
    "8eccfc270ec990ced60cd54a434411a47c4c504de13586f596d042e005b3022b",
)
DESCRIPTOR_G = _dedode_file(
    "dedode_descriptor_G.pth",
    _DEDODE + "dedode_pretrained_models/",
    _G_BYTES,
    "ef6e3f2911bb3c179960db15545a2137d0746054bb5bad75559524ccab1fee41",
)
B_C4_PERM = _dedode_file("B_C4_Perm_descriptor_setting_C.pth", _STEERERS, _B_BYTES)
B_SO2_SPREAD = _dedode_file("B_SO2_Spread_descriptor_setting_C.pth", _STEERERS, _B_BYTES)
G_C4_PERM = _dedode_file("G_C4_Perm_descriptor_setting_C.pth", _STEERERS, _G_BYTES)
G_SO2_SPREAD = _dedode_file("G_SO2_Spread_descriptor_setting_C.pth", _STEERERS, _G_BYTES)

STEERER_A = _dedode_file("B_C4_steerer_setting_A.pth", _STEERERS, _STEERER_BYTES, mirrored=False)
B_SO2_SPREAD_B = _dedode_file("B_SO2_Spread_descriptor_setting_B.pth", _STEERERS, _B_BYTES, mirrored=False)
STEERER_B = _dedode_file("B_SO2_Spread_steerer_setting_B.pth", _STEERERS, _STEERER_BYTES, mirrored=False)

DINOV2 = WeightFile(
    "dinov2_vitl14_pretrain.pth",
    ("https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth",),
    "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428",
    1_217_586_395,
    "Apache-2.0",
)

# Files of frozen descriptors ------------------------------------------------------------------------------------------

DISK = WeightFile(
    "depth-save.pth",
    (
        "https://raw.githubusercontent.com/cvlab-epfl/disk/master/depth-save.pth",
        _MIRROR + "disk/resolve/main/depth-save.pth",
    ),
    "9c2ee4ded238892dfa51569941372601e35e4a74aa6f84ea80053d2ab1c07abe",
    4_375_832,
    "Apache-2.0",
)

XFEAT = WeightFile(
    "xfeat.pt",
    ("https://github.com/verlab/accelerated_features/raw/main/weights/xfeat.pt",),
    "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b",
    6_247_949,
    "Apache-2.0",
)


def _aliked_file(variant: str, size: int, sha256: str | None = None) -> WeightFile:
    name = f"{variant}.pth"
    official = f"https://github.com/Shiaoming/ALIKED/raw/main/models/{name}"
    return WeightFile(name, (official, f"{_MIRROR}aliked/resolve/main/{name}"), sha256, size, "BSD-3-Clause")


ALIKED = {
    "aliked-n16": _aliked_file(
        "aliked-n16", 2_738_091, "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2"
    ),
    "aliked-n16rot": _aliked_file(
        "aliked-n16rot", 2_738_325, "ddf3abbf38e86f6a74540d214e1a9712c54b2d8551abc864542199f2347d7332"
    ),
    "aliked-t16": _aliked_file("aliked-t16", 794_859),
    "aliked-n32": _aliked_file("aliked-n32", 3_946_667),
}

SUPERPOINT = WeightFile(
    "superpoint_v1.pth",
    sha256="52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
    size=5_206_086,
    licence="non-commercial",
    note=(
        "It is part of magicleap/SuperPointPretrainedNetwork on GitHub; read its licence first, which is for academic "
        "or non-profit organisations and non-commercial research use only."
    ),
)


VGG19_BN = WeightFile(
    "vgg19_bn-c79401a0.pth",
    ("https://download.pytorch.org/models/vgg19_bn-c79401a0.pth",),
    size=574_769_405,
    licence="BSD-3-Clause",
)
"""ImageNet's weights of torchvision, from which the paper's networks are trained."""


# Detectors and descriptors --------------------------------------------------------------------------------------------


def dedode_detector(file: WeightFile) -> Part[Detector]:
    """Detector L with one of its files."""

    def build(located: Weights) -> Detector:
        from steerers.models.dedode import DedodeDetector

        return _loaded(DedodeDetector("L"), located[file.name], "DeDoDe detector L")

    return Part(build, (file,))


def dedode_b(file: WeightFile) -> Part[Descriptor]:
    """Descriptor B with one of its files."""

    def build(located: Weights) -> Descriptor:
        from steerers.models.dedode import DedodeDescriptor

        return _loaded(DedodeDescriptor("B"), located[file.name], "DeDoDe descriptor B")

    return Part(build, (file,))


def dedode_g(file: WeightFile) -> Part[Descriptor]:
    """Descriptor G with one of its files, and DINOv2."""

    def build(located: Weights) -> Descriptor:
        from steerers.models.dedode import DedodeDescriptor

        backbone = load_dinov2(located[DINOV2.name])
        return _loaded(DedodeDescriptor("G", backbone=backbone), located[file.name], "DeDoDe descriptor G")

    return Part(build, (file, DINOV2), "dinov2")


def load_dinov2(path: Path) -> nn.Module:
    """The backbone of descriptor G from DINOv2's own file."""
    from steerers.models.dedode import dinov2_backbone

    state = load_state(path)
    try:
        return dinov2_backbone(state)
    except ValueError as error:
        raise WeightsError(f"{path}: {str(error).splitlines()[0]}") from error


def load_vgg(network: nn.Module, path: Path) -> None:
    """Give the encoder of a DeDoDe network the weights of torchvision's VGG19-BN, from which training starts."""
    encoder = network.get_submodule("encoder")
    vgg: nn.Module = getattr(encoder, "vgg", encoder)
    state = {name.replace("features.", "layers."): value for name, value in load_state(path).items()}
    used = {name: state[name] for name in vgg.state_dict() if name in state}
    load_into(vgg, used, path, "VGG19 with batch normalisation")


def _loaded(network: Network, path: Path, title: str) -> Network:
    """``network`` with the weights of a file that has exactly its names and shapes."""
    load_into(network, load_state(path), path, title)
    return network


def frozen(name: str, file: WeightFile) -> Part[Extractor]:
    """DISK, XFeat, SuperPoint or an ALIKED, by the name of the model."""

    def build(located: Weights) -> Extractor:
        return _frozen_network(name).load_weights(located[file.name])

    return Part(build, (file,), None if name == "superpoint" else "kornia")


def _frozen_network(name: str) -> FrozenExtractor:
    from steerers.models.frozen import Aliked, Disk, XFeat
    from steerers.models.superpoint import SuperPoint

    if name == "disk":
        return Disk()
    if name == "xfeat":
        return XFeat()
    return SuperPoint() if name == "superpoint" else Aliked(name)


def classical(name: Literal["upright-sift", "sift", "orb"]) -> Part[Extractor]:
    """A model of OpenCV."""

    def build(_: Weights) -> Extractor:
        from steerers.models.classical import Orb, Sift, UprightSift

        if name == "orb":
            return Orb()
        return Sift() if name == "sift" else UprightSift()

    return Part(build)


def compact(path: Path, scales: Sequence[float] = (1.0,)) -> Part[Extractor]:
    """The compact network of a file that training wrote, batch normalisations folded, at ``scales`` of the image."""

    def build(_: Weights) -> Extractor:
        from steerers.models.compact import Compact
        from steerers.models.folding import fold_batch_norms
        from steerers.models.scales import Pyramid

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
    from steerers.models.compact import CompactConfig

    shape = json.loads(metadata["config"])["model"]["compact"]
    return CompactConfig(tuple(shape["channels"]), tuple(shape["blocks"]), int(shape["dim"]), int(shape["hidden"]))


# Steerers -------------------------------------------------------------------------------------------------------------


def compact_steerer(path: Path) -> Part[Steerer]:
    """The steerer that travels with a compact network."""
    return shipped(path, "compact")


def upright_sift_steerer() -> Part[Steerer]:
    """The permutation that a quarter turn is for Upright SIFT."""

    def build(_: Weights) -> Steerer:
        from steerers.models.classical import c4_permutation

        return Steerer.from_permutation(c4_permutation(), "C4")

    return Part(build)


def official_perm() -> Part[Steerer]:
    """The fixed steerer of the official C4-Perm descriptors."""
    return Part(lambda _: Steerer.perm(256))


def official_spread() -> Part[Steerer]:
    """The fixed steerer of the official SO2-Spread descriptors."""
    return Part(lambda _: Steerer.from_spec(_OFFICIAL_SPREAD, "SO2"))


def official_matrix(file: WeightFile, group: Group) -> Part[Steerer]:
    """A learned steerer, published as a bare matrix."""

    def build(located: Weights) -> Steerer:
        path = located[file.name]
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
