"""The models by name: what each is, which files it needs, and how it is put together from its parts.

A model is a line of :data:`ZOO`: a descriptor, its steerer where there is one, and a detector where the descriptor does
not find keypoints itself. Any of them takes another detector: one of :data:`DETECTORS`, or that of another model.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from steerers._files import StrPath
from steerers.models import downloads, parts
from steerers.models.base import Detector, Extractor, LogitDetector
from steerers.models.classical import Orb, Sift, UprightSift, c4_permutation
from steerers.models.compact import Compact
from steerers.models.dedode import DedodeNetwork
from steerers.models.downloads import WeightFile
from steerers.models.parts import DetectorEntry, Entry, Model, Part, locate
from steerers.models.sampling import KeypointSampling
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

try:  # the seam to the networks' fast forms; without that room the plain networks are used
    from steerers.accel import networks as accel
except ImportError:
    accel = None  # type: ignore[assignment]

__all__ = [
    "ALIASES",
    "COMPACT",
    "DEFAULT_MODEL",
    "DETECTORS",
    "DINOV2",
    "PRECISIONS",
    "SHIPPED",
    "VGG19_BN",
    "ZOO",
    "DetectorEntry",
    "Entry",
    "Model",
    "build",
    "build_detector",
    "configure",
    "find",
    "make_zoo",
    "with_detector",
    "with_steerer",
]

DEFAULT_MODEL = "compact"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHIPPED = Path(__file__).parent / "data" / "steerers"
COMPACT = Path(__file__).parent / "data" / "compact.safetensors"

_C4, _SO2 = Group(4), Group(None)
_OFFICIAL_SPREAD = "40x0 + 18x-1 + 18x-2 + 18x-3 + 18x-4 + 18x-5 + 18x-6"  # the other way than Steerer.spread
_SETTINGS = {  # of training, as the paper calls them
    None: "",
    "A": ", steerer fitted to it (setting A)",
    "B": ", trained together with its steerer (setting B)",
    "C": ", trained for its steerer (setting C)",
}


# Files ----------------------------------------------------------------------------------------------------------------
# A file has the name under which it is published, so that one fetched by hand needs no new name. Its checksum is given
# where the first address is known to serve it; an address that serves anything else is then passed over.

_DEDODE = "https://github.com/Parskatt/DeDoDe/releases/download/"
_V1, _V2 = _DEDODE + "dedode_pretrained_models/", _DEDODE + "v2/"
_STEERERS = "https://github.com/georg-bn/rotation-steerers/releases/download/release-2/"
_MIRROR = "https://huggingface.co/kornia/"
_B_BYTES, _G_BYTES, _STEERER_BYTES = 54_300_000, 75_485_969, 263_000


def _dedode_file(name: str, size: int, address: str, sha256: str | None = None, *, mirrored: bool = True) -> WeightFile:
    """A file of DeDoDe. The known checksums are those of the mirror, which then comes first."""
    mirror = (f"{_MIRROR}dedode/resolve/main/{name}.pth",) if mirrored else ()
    official = (f"{address}{name}.pth",)
    return WeightFile(f"{name}.pth", official + mirror if sha256 is None else mirror + official, sha256, size, "MIT")


def _detector_file(name: str, address: str, sha256: str) -> WeightFile:
    return _dedode_file(f"dedode_detector_{name}", 58_483_585, address, sha256)


def _aliked_file(name: str, size: int, sha256: str | None = None) -> WeightFile:
    addresses = ("https://github.com/Shiaoming/ALIKED/raw/main/models/", f"{_MIRROR}aliked/resolve/main/")
    return WeightFile(f"{name}.pth", tuple(f"{at}{name}.pth" for at in addresses), sha256, size, "BSD-3-Clause")


_DETECTOR_L = _detector_file("L", _V1, "663c972a7215538ef3170ccc3183bb1019610ffde4bc7c9da6c13b143388dd64")
_DETECTOR_V2 = _detector_file("L_v2", _V2, "4113809dd9e0367af013a45fc2255a6b243ff241cd06520d17a65d9e231bdc17")
_DETECTOR_C4 = _detector_file("C4", _STEERERS, "147b2d6163523d1aaedb4127d670dc6cec8042feef522505984d60e75aa630fd")
_DETECTOR_SO2 = _detector_file("SO2", _STEERERS, "471bf07344871227b91694ce974b6dd26169e3552ef42cb8e2b4ca7db950c92c")
_STEERER_A = _dedode_file("B_C4_steerer_setting_A", _STEERER_BYTES, _STEERERS, mirrored=False)
_STEERER_B = _dedode_file("B_SO2_Spread_steerer_setting_B", _STEERER_BYTES, _STEERERS, mirrored=False)
_DESCRIPTOR_B = _dedode_file(
    "dedode_descriptor_B", _B_BYTES, _V1, "8eccfc270ec990ced60cd54a434411a47c4c504de13586f596d042e005b3022b"
)
_DESCRIPTOR_G = _dedode_file(
    "dedode_descriptor_G", _G_BYTES, _V1, "ef6e3f2911bb3c179960db15545a2137d0746054bb5bad75559524ccab1fee41"
)
_B_C4_PERM = _dedode_file("B_C4_Perm_descriptor_setting_C", _B_BYTES, _STEERERS)
_B_SO2_SPREAD = _dedode_file("B_SO2_Spread_descriptor_setting_C", _B_BYTES, _STEERERS)
_B_SO2_SPREAD_B = _dedode_file("B_SO2_Spread_descriptor_setting_B", _B_BYTES, _STEERERS, mirrored=False)
_G_C4_PERM = _dedode_file("G_C4_Perm_descriptor_setting_C", _G_BYTES, _STEERERS)
_G_SO2_SPREAD = _dedode_file("G_SO2_Spread_descriptor_setting_C", _G_BYTES, _STEERERS)

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

_DISK = WeightFile(
    "depth-save.pth",
    (
        "https://raw.githubusercontent.com/cvlab-epfl/disk/master/depth-save.pth",
        _MIRROR + "disk/resolve/main/depth-save.pth",
    ),
    "9c2ee4ded238892dfa51569941372601e35e4a74aa6f84ea80053d2ab1c07abe",
    4_375_832,
    "Apache-2.0",
)
_XFEAT = WeightFile(
    "xfeat.pt",
    ("https://github.com/verlab/accelerated_features/raw/main/weights/xfeat.pt",),
    "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b",
    6_247_949,
    "Apache-2.0",
)
_SUPERPOINT = WeightFile(
    "superpoint_v1.pth",
    sha256="52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
    size=5_206_086,
    licence="non-commercial",
    note=(
        "It is part of magicleap/SuperPointPretrainedNetwork on GitHub; read its licence first, which is for academic "
        "or non-profit organisations and non-commercial research use only."
    ),
)
_N16 = _aliked_file("aliked-n16", 2_738_091, "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2")
_N16ROT = _aliked_file("aliked-n16rot", 2_738_325, "ddf3abbf38e86f6a74540d214e1a9712c54b2d8551abc864542199f2347d7332")


# Detectors and models -------------------------------------------------------------------------------------------------

DETECTORS = {
    name: DetectorEntry(name, summary, "MIT", parts.dedode_detector(file))
    for name, summary, file in (
        ("dedode-l", "DeDoDe", _DETECTOR_L),
        ("dedode-l-v2", "DeDoDe v2", _DETECTOR_V2),
        ("dedode-l-c4", "DeDoDe, trained with quarter turns", _DETECTOR_C4),
        ("dedode-l-so2", "DeDoDe, trained with all rotations", _DETECTOR_SO2),
    )
}


def make_zoo(shipped: Path = SHIPPED) -> dict[str, Entry]:
    """The models by name; those with a steerer of this package as far as its file is in the folder ``shipped``."""
    bases = (*_compact(), *_classical(), *_dedode(), *_frozen())
    return {entry.name: entry for base in bases for entry in (base, *_with_shipped_steerers(base, shipped))}


def _compact() -> Iterator[Entry]:
    if not COMPACT.is_file():
        return
    steerer = parts.shipped(COMPACT, "compact")
    for name, summary, scales in (
        ("compact", "small network of this package, every angle", (1.0, 0.5)),
        ("compact-single", "the same at one scale: faster, for views from like distances", (1.0,)),
    ):
        network = parts.compact(COMPACT, scales)  # the threshold was chosen on held-out photographs, see docs/models.md
        yield Entry(name, summary, 256, _SO2, "MIT", network, steerer, order=16, threshold=0.05)


def _classical() -> Iterator[Entry]:
    permutation = Part(lambda _: Steerer.from_permutation(c4_permutation(), "C4"))
    for name, summary, dim, network, group, steerer, inverse_temperature, threshold in (
        (
            "upright-sift",
            "SIFT without orientation, exact quarter turns",
            128,
            UprightSift,
            _C4,
            permutation,
            40,
            0.1,
        ),
        ("sift", "SIFT, rotation-invariant baseline", 128, Sift, None, None, 40, 0.1),
        ("orb", "ORB, rotation-invariant baseline", 256, Orb, None, None, 20, 0.05),
    ):
        entry = Entry(name, summary, dim, group, "Apache-2.0", _embedded(network), steerer)
        yield replace(entry, inverse_temperature=float(inverse_temperature), threshold=threshold)


def _embedded(network: Callable[[], Extractor]) -> Part[Extractor]:
    """A part that needs no weights."""
    return Part(lambda _: network())


def _dedode() -> Iterator[Entry]:
    b, g, matrix = parts.dedode_b, partial(parts.dedode_g, dinov2=DINOV2), parts.official_matrix
    original, (plain, c4, so2) = b(_DESCRIPTOR_B), (DETECTORS[f"dedode-l{end}"].part for end in ("", "-c4", "-so2"))
    perm, spread = Part(lambda _: Steerer.perm(256)), Part(lambda _: Steerer.from_spec(_OFFICIAL_SPREAD, "SO2"))
    for name, setting, descriptor, group, steerer, detector in (
        ("dedode-b", None, original, None, None, plain),
        ("dedode-b-c4", "A", original, _C4, matrix(_STEERER_A, _C4), c4),
        ("dedode-b-c4-perm", "C", b(_B_C4_PERM), _C4, perm, c4),
        ("dedode-b-so2-spread", "C", b(_B_SO2_SPREAD), _SO2, spread, so2),
        ("dedode-b-so2-spread-b", "B", b(_B_SO2_SPREAD_B), _SO2, matrix(_STEERER_B, _SO2), so2),
        ("dedode-g", None, g(_DESCRIPTOR_G), None, None, plain),
        ("dedode-g-c4-perm", "C", g(_G_C4_PERM), _C4, perm, c4),
        ("dedode-g-so2-spread", "C", g(_G_SO2_SPREAD), _SO2, spread, so2),
    ):
        summary = f"DeDoDe {name[7].upper()}{_SETTINGS[setting]}"
        licence = ", ".join(dict.fromkeys(file.licence for file in descriptor.weights))
        yield Entry(name, summary, 256, group, licence, descriptor, steerer, detector)


def _frozen() -> Iterator[Entry]:
    for name, summary, dim, file in (
        ("disk", "DISK", 128, _DISK),
        ("aliked-n16", "ALIKED n16", 128, _N16),
        ("aliked-n16rot", "ALIKED n16, trained with rotated images", 128, _N16ROT),
        ("aliked-t16", "ALIKED t16, the smallest", 64, _aliked_file("aliked-t16", 794_859)),
        ("aliked-n32", "ALIKED n32, the largest", 128, _aliked_file("aliked-n32", 3_946_667)),
        ("xfeat", "XFeat", 64, _XFEAT),
        ("superpoint", "SuperPoint", 256, _SUPERPOINT),
    ):
        yield Entry(name, summary, dim, None, file.licence, parts.frozen(name, file))


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
ALIASES = {"dedode-b-so2": "dedode-b-so2-spread"}


# Finding and building -------------------------------------------------------------------------------------------------


def build(
    name: str,
    *,
    detector: str | None = None,
    steerer: StrPath | None = None,
    weights: StrPath | Sequence[StrPath] = (),
) -> Model:
    """The model of that name; weights that are not here are downloaded.

    Args:
        detector: whose keypoints are described, if not the model's own: one of :data:`DETECTORS`, or a model.
        steerer: a file that ``steerers fit`` wrote for this model, instead of the model's own.
        weights: files to use instead of those in the cache; see :func:`~steerers.models.parts.locate`.
    """
    entry = find(name)
    if steerer is not None:
        entry = with_steerer(entry, Path(steerer))
    if detector is not None:
        entry = with_detector(entry, detector)
    for part in entry.parts:  # before any download
        if part.extra is not None and importlib.util.find_spec("kornia") is None:
            raise ImportError(f'model {entry.name!r} needs kornia: pip install "steerers[{part.extra}]"')
    given = (weights,) if isinstance(weights, str | os.PathLike) else weights
    return entry.build(locate(entry, given))


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
        raise ValueError(f"unknown precision {precision!r}; use {', '.join(PRECISIONS)}")
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
    plain_is_as_fast = on_cpu and compact and not networks and precision == "float32"
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


def find(name: str) -> Entry:
    """The entry of that name.

    Raises:
        ValueError: naming the known ones.
    """
    name = ALIASES.get(name, name)
    if name not in ZOO:
        raise ValueError(f"unknown model {name!r}; use one of {', '.join(ZOO)}")
    return ZOO[name]


def with_steerer(entry: Entry, path: Path) -> Entry:
    """The entry with the steerer of a file and the strategy that suits it; refused if fitted to another model."""
    steerer = parts.shipped(path, entry.fitted_to).build({})
    return replace(entry, group=steerer.group, steerer=Part(lambda _: steerer), strategy=None, order="default")


def with_detector(entry: Entry, name: str) -> Entry:
    """The entry with the keypoints of the detector of that name, or of the model of that name."""
    if name in DETECTORS:
        part = DETECTORS[name].part
    elif name in ZOO:
        # A model without a detector has a descriptor that is one too: Entry.build sees to it.
        part = ZOO[name].detector or cast("Part[Detector]", ZOO[name].descriptor)
    else:
        raise ValueError(f"unknown detector {name!r}; use {', '.join(DETECTORS)}, or a model: {', '.join(ZOO)}")
    if part is (entry.detector or entry.descriptor):
        return entry
    return replace(entry, name=f"{entry.name}@{name}", detector=part)
