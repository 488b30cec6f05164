"""Frozen descriptors behind the package's protocol: DISK, ALIKED and XFeat (kornia's networks).

The networks are built without a download and with random weights; :meth:`FrozenExtractor.load_weights` reads the file
that the user has. Nothing of a network is trained here: parameters take no gradient and the modules stay in evaluation
mode. What they return are ordinary tensors, so that a steerer can be fitted on frozen descriptions.

Every network sees the whole image at its own aspect: where it needs sides that divide by 16 or 32, the image is padded,
never resized, and no keypoint lies in the padding. The score maps of all of them are right to the pixel (with kernels
made symmetric, the keypoints of a half-turned image are the same points). Trained weights do put keypoints beside the
structure they answer to, by up to 2.5 pixels and differently in every file; this is learned and left as it is.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Set
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers._weights import WeightsError, read
from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.models.base import SingleExtractor
from steerers.models.sampling import sample_descriptions

logger = logging.getLogger(__name__)

_PREFIXES = ("", "network.", "net.", "module.", "model.")
ALIKED_DIMS = {"aliked-t16": 64, "aliked-n16": 128, "aliked-n16rot": 128, "aliked-n32": 128}


class FrozenExtractor(SingleExtractor):
    """A network of fixed weights that finds and describes keypoints in one run.

    A subclass sets :attr:`title`, :attr:`dim` and ``network``, and says how to run the network, where its candidates
    are and how its feature map is read at given points. Masks, counts, order, weights and checks are the same for all.
    """

    network: Any  # an nn.Module with more methods than that
    title: ClassVar[str]
    """The network's name in messages."""
    constants: ClassVar[frozenset[str]] = frozenset()
    """Entries of the state dict that are constants of the architecture: a weight file may lack them."""

    def __init__(self, network: nn.Module, dim: int) -> None:
        super().__init__()
        self.network, self.dim = network, dim
        self._random_weights, self._warned = True, False
        self.requires_grad_(False)
        self.train(False)

    @abstractmethod
    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Score maps (C, H, W) over the image alone and the feature map (1, D, h, w), of a (1, 3, H, W) image."""

    @abstractmethod
    def _candidates(self, scores: Tensor) -> Keypoints:
        """All keypoints of (C, H, W) score maps, in any order."""

    @abstractmethod
    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        """(N, dim) descriptions of (N, 2) pixels, N > 0, from the feature map."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: frozen networks have no other."""
        return super().train(False)

    @torch.no_grad()
    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        scores, _ = self._run(image)
        return self._best(scores, num_keypoints, mask)

    @torch.no_grad()
    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        _, features = self._run(image)
        return self._read(features, keypoints)

    @torch.no_grad()
    def extract_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> tuple[Keypoints, Tensor]:
        scores, features = self._run(image)
        keypoints = self._best(scores, num_keypoints, mask)
        return keypoints, self._read(features, keypoints)

    def load_weights(self, path: str | os.PathLike[str]) -> Self:
        """Read the network's weights from a ``.pth``, ``.pt`` or ``.safetensors`` file.

        The names may be those of the authors' file, of kornia's module or of this one, bare or under a prefix, at the
        top of the file or one level down. Pickles are read with ``weights_only=True`` alone.

        Raises:
            WeightsError: there is no such file, it holds no tensors, or it holds the weights of something else.
        """
        expected = self.network.state_dict()
        optional = self.constants | {name for name in expected if name.endswith("num_batches_tracked")}
        state = _under_own_names(_read_content(path), expected)
        misfit = _misfit(state, expected, optional)
        if misfit:
            raise WeightsError(f"{os.fspath(path)}: not the weights of {self._label()}: {misfit}")
        self.network.load_state_dict(state, strict=False)
        self._random_weights = False
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._random_weights = False

    def _label(self) -> str:
        """What the weights are of, in messages."""
        return self.title

    def _run(self, image: Tensor) -> tuple[Tensor, Tensor]:
        if self._random_weights and not self._warned:
            self._warned = True
            logger.warning("%s runs with random weights: load_weights(path) has not been called", self.title)
        return self._forward(image[None].float())

    def _best(self, scores: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        keypoints = self._candidates(scores)
        if mask is not None:
            keypoints = keypoints.select(_allowed(keypoints.xy, mask))
        order = keypoints.scores.sort(descending=True, stable=True).indices
        return keypoints.select(order[:num_keypoints])

    def _read(self, features: Tensor, keypoints: Keypoints) -> Tensor:
        if len(keypoints) == 0:
            return features.new_zeros((0, self.dim))
        return self._sample(features, keypoints.xy.to(features))


class Disk(FrozenExtractor):
    """DISK (Tyszkiewicz, Fua, Trulls, 2020; Apache-2.0): 128 numbers a keypoint, a description for every pixel.

    Args:
        threshold: a keypoint's score, a logit, must exceed it.
        nms_radius: a keypoint is the strict maximum of its window of ``2 nms_radius + 1`` pixels; pixels whose window
            leaves the image are none.
    """

    title = "DISK"

    def __init__(self, *, threshold: float = 0.0, nms_radius: int = 2) -> None:
        super().__init__(_kornia("DISK", self.title)(), dim=128)
        self.threshold, self.nms_radius = threshold, check_radius(nms_radius)

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[-2:]
        # 32 and not 16: the instance norm of the coarsest level needs more than one cell.
        padded = pad_image(image, 16, minimum=32)
        heat, features = self.network.heatmap_and_dense_descriptors(padded)
        return heat[0, :, :height, :width], features

    def _candidates(self, scores: Tensor) -> Keypoints:
        return peaks(scores[0], scores[0], self.threshold, self.nms_radius)

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        return F.normalize(sample_descriptions(features, xy[None])[0], dim=-1)


class XFeat(FrozenExtractor):
    """XFeat (Potje et al., 2024; Apache-2.0): 64 numbers a keypoint, a description for every 8 x 8 cell.

    Args:
        threshold: a keypoint's value in the heatmap, a probability, must exceed it.
        nms_radius: as in :class:`Disk`.

    The keypoints' scores are the heatmap times the reliability and descriptions are read bicubically, as in the
    authors' code. Theirs resizes the image to multiples of 32, which squashes it; here it is padded.
    """

    title = "XFeat"

    def __init__(self, *, threshold: float = 0.05, nms_radius: int = 2) -> None:
        super().__init__(_kornia("XFeat", self.title)().net, dim=64)
        self.threshold, self.nms_radius = threshold, check_radius(nms_radius)

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[-2:]
        features, logits, reliability = self.network(pad_image(image, 32, minimum=32))
        heat = cells_to_pixels(logits)
        reliability = F.interpolate(reliability, scale_factor=8, mode="bilinear", align_corners=False)
        scores = torch.cat((heat, heat * reliability), dim=1)[0, :, :height, :width]
        return scores, F.normalize(features, dim=1)

    def _candidates(self, scores: Tensor) -> Keypoints:
        return peaks(scores[0], scores[1], self.threshold, self.nms_radius)

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        grid = to_normalised(xy, (8 * features.shape[-1], 8 * features.shape[-2]))[None, None]  # (1, 1, N, 2)
        sampled = F.grid_sample(features, grid, mode="bicubic", padding_mode="border", align_corners=False)
        return F.normalize(sampled[0, :, 0].mT, dim=-1)


class Aliked(FrozenExtractor):
    """ALIKED (Zhao et al., 2023; BSD-3-Clause): sub-pixel keypoints, described where a deformable head looks.

    Args:
        variant: ``"aliked-t16"`` (64 numbers a keypoint), ``"aliked-n16"``, ``"aliked-n16rot"`` (trained with rotated
            images) or ``"aliked-n32"`` (128 numbers). Files of n16 and n16rot have the same names and shapes.
        threshold: a keypoint's score in (0, 1) must exceed it; an image without any takes those above its mean score.
        nms_radius: as in :class:`Disk`.
    """

    title = "ALIKED"
    constants = frozenset({"dkd.hw_grid"})

    def __init__(self, variant: str = "aliked-n16", *, threshold: float = 0.2, nms_radius: int = 2) -> None:
        if variant not in ALIKED_DIMS:
            raise ValueError(f"variant must be one of {', '.join(ALIKED_DIMS)}, got {variant!r}")
        network = _kornia("ALIKED", self.title)(
            variant, max_num_keypoints=2**62, detection_threshold=threshold, nms_radius=check_radius(nms_radius)
        )
        super().__init__(network, dim=ALIKED_DIMS[variant])
        self.variant = variant

    def _label(self) -> str:
        return f"{self.title} ({self.variant})"

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[-2:]
        # The network pads around the centre and crops by itself, but its head reads patches of a map of 4 x 4 or more.
        features, scores = self.network.extract_dense_map(pad_image(image, 1, minimum=4))
        return scores[0, :, :height, :width], features

    def _candidates(self, scores: Tensor) -> Keypoints:
        (xy,), (values,), _ = self.network.dkd(scores[None])
        extent = xy.new_tensor([scores.shape[-1] - 1, scores.shape[-2] - 1])
        return Keypoints((xy + 1) / 2 * extent, values)

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        extent = xy.new_tensor([features.shape[-1] - 1, features.shape[-2] - 1])
        # The head rounds down to whole pixels after a way through [-1, 1]; without the small push a keypoint on a
        # whole pixel may come out of it a pixel before.
        xy = torch.minimum(xy.clamp(min=0) + 1e-3, extent)
        descriptions: Tensor = self.network.desc_head(features, [2 * xy / extent - 1])[0][0]
        return descriptions


# Maps -----------------------------------------------------------------------------------------------------------------


def check_radius(nms_radius: int) -> int:
    """``nms_radius``, refused if it is less than one pixel."""
    if nms_radius < 1:
        raise ValueError(f"nms_radius must be at least 1 pixel, got {nms_radius}")
    return nms_radius


def pad_image(image: Tensor, multiple: int, *, minimum: int) -> Tensor:
    """Pad (1, C, H, W) on the right and bottom to sides that are at least ``minimum`` and divide by ``multiple``.

    The outermost pixels are repeated. Zeros, as others pad for DISK, enter the statistics of its instance norms and
    change descriptions all over the image.
    """
    height, width = image.shape[-2:]
    bottom, right = (-(-max(side, minimum) // multiple) * multiple - side for side in (height, width))
    return F.pad(image, (0, right, 0, bottom), mode="replicate")


def cells_to_pixels(logits: Tensor) -> Tensor:
    """Heatmap (B, 1, 8h, 8w) of (B, 65, h, w) logits: a cell's 64 pixels and the last for "none of them"."""
    return F.pixel_shuffle(logits.softmax(dim=1)[:, :64], 8)


def peaks(heat: Tensor, scores: Tensor, threshold: float, radius: int) -> Keypoints:
    """The strict maxima of an (H, W) heatmap above ``threshold``, with their value in the (H, W) ``scores``."""
    from kornia.geometry.subpix import nms2d

    size = 2 * radius + 1
    found = nms2d(heat[None, None], (size, size), mask_only=True)[0, 0] & (heat > threshold)
    y, x = found.nonzero(as_tuple=True)
    return Keypoints(torch.stack((x, y), dim=-1).to(heat), scores[y, x])


def _allowed(xy: Tensor, mask: Tensor) -> Tensor:
    """Which of (N, 2) pixels an (H, W) mask allows."""
    height, width = mask.shape
    x, y = xy.round().long().unbind(dim=-1)
    return mask.to(xy.device)[y.clamp(0, height - 1), x.clamp(0, width - 1)]


# Weights --------------------------------------------------------------------------------------------------------------


def _kornia(name: str, title: str) -> Callable[..., Any]:
    """The class ``name`` of kornia."""
    try:
        import kornia.feature
    except ImportError as error:
        raise ImportError(f'{title} needs kornia: pip install "steerers[kornia]"') from error
    network: Callable[..., Any] = getattr(kornia.feature, name)
    return network


def _read_content(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The dictionary in a file of weights."""
    content = read(path, any_ending=True)
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise WeightsError(f"{path}: expected named tensors, found {type(content).__name__}")
    return content


def _under_own_names(content: Mapping[str, Any], expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """The entries of a file under the names ``expected``, from its top or one level down, without a common prefix.

    Of several readings it is the one with most names right; whether that is all of them is the caller's to check.
    """
    levels = [content, *(value for value in content.values() if isinstance(value, Mapping))]
    readings = [
        {str(name).removeprefix(prefix): value for name, value in level.items()}
        for level in levels
        for prefix in _PREFIXES
    ]
    return max(readings, key=lambda reading: len(reading.keys() & expected.keys()))


def _misfit(state: Mapping[str, Any], expected: Mapping[str, Tensor], optional: Set[str]) -> str:
    """What keeps ``state`` from being loaded, in words; empty if nothing does."""
    missing = sorted(expected.keys() - state.keys() - optional)
    unknown = sorted(state.keys() - expected.keys())
    faults = [
        f"{len(names)} names {kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    for name in sorted(expected.keys() & state.keys()):
        value = state[name]
        if not isinstance(value, Tensor):
            faults.append(f"{name} is {type(value).__name__}, not a tensor")
        elif value.shape != expected[name].shape:
            faults.append(f"{name} has shape {tuple(value.shape)}, not {tuple(expected[name].shape)}")
    return "; ".join(faults[:3])
