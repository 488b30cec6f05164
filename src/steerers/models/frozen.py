"""Frozen descriptors behind the package's protocol: DISK, ALIKED and XFeat (kornia's networks), and SuperPoint.

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
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers._weights import WeightsError, load_into, read
from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.images.load import LUMA
from steerers.models.base import SingleExtractor
from steerers.models.sampling import sample_descriptions

logger = logging.getLogger(__name__)

_PREFIXES = ("", "network.", "net.", "module.", "model.")
ALIKED_DIMS = {"aliked-t16": 64, "aliked-n16": 128, "aliked-n16rot": 128, "aliked-n32": 128}
LICENCE_NOTE = (
    "The SuperPoint weights are Magic Leap's, under a licence for academic or non-profit organisations and "
    "non-commercial research use only; whoever uses them is bound by it."
)


class FrozenExtractor(SingleExtractor):
    """A network of fixed weights that finds and describes keypoints in one run.

    A subclass sets the constants and ``network``, says how to run the network, and where it differs from the others,
    which keypoints its score maps hold and how its feature map is read at given points.

    Args:
        threshold: a keypoint's score must exceed it.
        nms_radius: a keypoint is the strict maximum of its window of ``2 nms_radius + 1`` pixels; pixels whose window
            leaves the image are none.
    """

    network: Any  # an nn.Module with more methods than that
    title: str
    """The network's name in messages."""
    multiple: ClassVar[int]
    """The sides of the images that the network takes divide by it."""
    minimum: ClassVar[int]
    """The shortest side of them."""
    cell: ClassVar[int] = 8
    """Side in pixels of a cell of the feature map."""
    constants: ClassVar[frozenset[str]] = frozenset()
    """Entries of the state dict that are constants of the architecture: a weight file may lack them."""

    def __init__(self, network: nn.Module, dim: int, threshold: float, nms_radius: int) -> None:
        super().__init__()
        if nms_radius < 1:
            raise ValueError(f"nms_radius must be at least 1 pixel, got {nms_radius}")
        self.network, self.dim, self.threshold, self.nms_radius = network, dim, threshold, nms_radius
        self._random_weights, self._warned = True, False
        self.requires_grad_(False)
        self.train(False)

    @abstractmethod
    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Score maps (1, C, H, W) and the feature map (1, D, h, w), of a padded (1, 3, H, W) image."""

    def _candidates(self, scores: Tensor) -> Keypoints:
        """All keypoints of (C, H, W) score maps, in any order: peaks of the first, with their values in the last."""
        from kornia.geometry.subpix import nms2d

        size = 2 * self.nms_radius + 1
        return _at(nms2d(scores[None, :1], (size, size), mask_only=True)[0, 0] & (scores[0] > self.threshold), scores)

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        """(N, dim) descriptions of (N, 2) pixels, N > 0, from the feature map."""
        size = (self.cell * features.shape[-1], self.cell * features.shape[-2])
        return F.normalize(sample_descriptions(features, xy[None], size)[0], dim=-1)

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
        load_into(self.network, _read_under_names(path, expected), os.fspath(path), self.title, optional)
        self._random_weights = False
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._random_weights = False

    def _run(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Score maps (C, H, W) over the image alone, and the feature map, of a (3, H, W) image."""
        if self._random_weights and not self._warned:
            self._warned = True
            logger.warning("%s runs with random weights: load_weights(path) has not been called", self.title)
        height, width = image.shape[-2:]
        scores, features = self._forward(_pad(image[None].float(), self.multiple, self.minimum))
        return scores[0, :, :height, :width], features

    def _best(self, scores: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        keypoints = self._candidates(scores)
        if mask is not None:
            height, width = mask.shape
            x, y = keypoints.xy.round().long().unbind(dim=-1)
            keypoints = keypoints.select(mask.to(x.device)[y.clamp(0, height - 1), x.clamp(0, width - 1)])
        order = keypoints.scores.sort(descending=True, stable=True).indices
        return keypoints.select(order[:num_keypoints])

    def _read(self, features: Tensor, keypoints: Keypoints) -> Tensor:
        if len(keypoints) == 0:
            return features.new_zeros((0, self.dim))
        return self._sample(features, keypoints.xy.to(features))


class Disk(FrozenExtractor):
    """DISK (Tyszkiewicz, Fua, Trulls, 2020; Apache-2.0): 128 numbers a keypoint, a description for every pixel.

    A keypoint's score is a logit.
    """

    title = "DISK"
    multiple, minimum, cell = 16, 32, 1  # not 16: the instance norm of the coarsest level needs more than one cell

    def __init__(self, *, threshold: float = 0.0, nms_radius: int = 2) -> None:
        super().__init__(_kornia("DISK", self.title)(), 128, threshold, nms_radius)

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scores, features = self.network.heatmap_and_dense_descriptors(image)
        return scores, features


class XFeat(FrozenExtractor):
    """XFeat (Potje et al., 2024; Apache-2.0): 64 numbers a keypoint, a description for every 8 x 8 cell.

    Keypoints are peaks of the heatmap, of probabilities. Their scores are the heatmap times the reliability, and
    descriptions are read bicubically, as in the authors' code. Theirs resizes the image to multiples of 32, which
    squashes it; here it is padded.
    """

    title = "XFeat"
    multiple, minimum = 32, 32

    def __init__(self, *, threshold: float = 0.05, nms_radius: int = 2) -> None:
        super().__init__(_kornia("XFeat", self.title)().net, 64, threshold, nms_radius)

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features, logits, reliability = self.network(image)
        heat = _cells_to_pixels(logits)
        reliability = F.interpolate(reliability, scale_factor=8, mode="bilinear", align_corners=False)
        return torch.cat((heat, heat * reliability), dim=1), F.normalize(features, dim=1)

    def _sample(self, features: Tensor, xy: Tensor) -> Tensor:
        grid = to_normalised(xy, (8 * features.shape[-1], 8 * features.shape[-2]))[None, None]  # (1, 1, N, 2)
        sampled = F.grid_sample(features, grid, mode="bicubic", padding_mode="border", align_corners=False)
        return F.normalize(sampled[0, :, 0].mT, dim=-1)


class Aliked(FrozenExtractor):
    """ALIKED (Zhao et al., 2023; BSD-3-Clause): sub-pixel keypoints, described where a deformable head looks.

    A keypoint's score lies in (0, 1); an image without any above the threshold takes those above its mean score.

    Args:
        variant: ``"aliked-t16"`` (64 numbers a keypoint), ``"aliked-n16"``, ``"aliked-n16rot"`` (trained with rotated
            images) or ``"aliked-n32"`` (128 numbers). Files of n16 and n16rot have the same names and shapes.
    """

    # The network pads around the centre and crops by itself, but its head reads patches of a map of 4 x 4 or more.
    multiple, minimum = 1, 4
    constants = frozenset({"dkd.hw_grid"})

    def __init__(self, variant: str = "aliked-n16", *, threshold: float = 0.2, nms_radius: int = 2) -> None:
        if variant not in ALIKED_DIMS:
            raise ValueError(f"variant must be one of {', '.join(ALIKED_DIMS)}, got {variant!r}")
        network = _kornia("ALIKED", "ALIKED")(
            variant, max_num_keypoints=2**62, detection_threshold=threshold, nms_radius=nms_radius
        )
        super().__init__(network, ALIKED_DIMS[variant], threshold, nms_radius)
        self.variant, self.title = variant, f"ALIKED ({variant})"

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features, scores = self.network.extract_dense_map(image)
        return scores, features

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


# SuperPoint -----------------------------------------------------------------------------------------------------------

_LAYERS = (  # name, channels in, channels out, kernel; the names are those of the authors' weight file
    ("conv1a", 1, 64, 3),
    ("conv1b", 64, 64, 3),
    ("conv2a", 64, 64, 3),
    ("conv2b", 64, 64, 3),
    ("conv3a", 64, 128, 3),
    ("conv3b", 128, 128, 3),
    ("conv4a", 128, 128, 3),
    ("conv4b", 128, 128, 3),
    ("convPa", 128, 256, 3),
    ("convPb", 256, 65, 1),
    ("convDa", 128, 256, 3),
    ("convDb", 256, 256, 1),
)


class SuperPointNetwork(nn.Module):
    """From a (B, 1, H, W) grey image in [0, 1] to (B, 65, H/8, W/8) logits and (B, 256, H/8, W/8) descriptions.

    A cell of 8 x 8 pixels has a logit for each of its pixels, and one for "none of them".
    """

    def __init__(self) -> None:
        super().__init__()
        for name, width_in, width_out, kernel in _LAYERS:
            self.add_module(name, nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2))

    def forward(self, grey: Tensor) -> tuple[Tensor, Tensor]:
        x = self._pair(grey, "conv1a", "conv1b").relu_()
        for stage in (2, 3, 4):
            x = self._pair(F.max_pool2d(x, 2), f"conv{stage}a", f"conv{stage}b").relu_()
        return self._pair(x, "convPa", "convPb"), self._pair(x, "convDa", "convDb")

    def _pair(self, x: Tensor, first: str, second: str) -> Tensor:
        hidden: Tensor = self.get_submodule(first)(x)
        out: Tensor = self.get_submodule(second)(hidden.relu_())
        return out


class SuperPoint(FrozenExtractor):
    """SuperPoint (DeTone, Malisiewicz, Rabinovich, 2018): 256 numbers a keypoint, a description for every 8 x 8 cell.

    No weights come with this package. A keypoint's score is a probability; no two keypoints are as near as
    ``nms_radius`` in x and in y, the better one stays.

    Args:
        border: keypoints this near to the image's edge are dropped.
    """

    title = "SuperPoint"
    multiple, minimum = 8, 8

    def __init__(self, *, threshold: float = 0.005, nms_radius: int = 4, border: int = 4) -> None:
        super().__init__(SuperPointNetwork(), 256, threshold, nms_radius)
        if border < 0:
            raise ValueError(f"border must not be negative, got {border}")
        self.border = border

    def load_weights(self, path: str | os.PathLike[str]) -> Self:
        """Read the authors' file ``superpoint_v1.pth``, or one with its names; logs :data:`LICENCE_NOTE`."""
        super().load_weights(path)
        logger.warning(LICENCE_NOTE)
        return self

    def _forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        grey = (image * image.new_tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)
        logits, features = self.network(grey)
        return _cells_to_pixels(logits), F.normalize(features, dim=1)

    def _candidates(self, scores: Tensor) -> Keypoints:
        kept = suppress(scores[0], self.threshold, self.nms_radius)
        height, width = kept.shape
        inner = torch.zeros_like(kept)
        inner[self.border : height - self.border, self.border : width - self.border] = True
        return _at(kept & inner, scores)


def suppress(heat: Tensor, threshold: float, radius: int) -> Tensor:
    """Greedy suppression in an (H, W) map: take the best pixel, drop those within ``radius`` in x and y, and so on.

    Done for all local maxima at once, until none is left, it comes to the same as one by one; only pixels of exactly
    equal value do not suppress each other.

    Returns:
        (H, W) bool, the pixels taken.
    """
    left = heat > threshold
    kept = torch.zeros_like(left)
    while bool(left.any()):
        remaining = heat.masked_fill(~left, -torch.inf)
        tops = left & (remaining == _window_maximum(remaining, radius))
        kept |= tops
        left &= ~(_window_maximum(tops.to(heat), radius) > 0)
    return kept


def _window_maximum(values: Tensor, radius: int) -> Tensor:
    """The largest of (H, W) values within ``radius`` in x and y."""
    size = 2 * radius + 1
    rows = F.max_pool2d(values[None, None], (1, size), stride=1, padding=(0, radius))
    return F.max_pool2d(rows, (size, 1), stride=1, padding=(radius, 0))[0, 0]


# Maps and weights -----------------------------------------------------------------------------------------------------


def _pad(image: Tensor, multiple: int, minimum: int) -> Tensor:
    """Pad (1, C, H, W) on the right and bottom to sides that are at least ``minimum`` and divide by ``multiple``.

    The outermost pixels are repeated. Zeros, as others pad for DISK, enter the statistics of its instance norms and
    change descriptions all over the image.
    """
    bottom, right = (-(-max(side, minimum) // multiple) * multiple - side for side in image.shape[-2:])
    return F.pad(image, (0, right, 0, bottom), mode="replicate")


def _cells_to_pixels(logits: Tensor) -> Tensor:
    """Heatmap (B, 1, 8h, 8w) of (B, 65, h, w) logits: a cell's 64 pixels and the last for "none of them"."""
    return F.pixel_shuffle(logits.softmax(dim=1)[:, :64], 8)


def _at(found: Tensor, scores: Tensor) -> Keypoints:
    """The pixels where an (H, W) map is true, with their values in the last of (C, H, W) score maps."""
    y, x = found.nonzero(as_tuple=True)
    return Keypoints(torch.stack((x, y), dim=-1).to(scores), scores[-1, y, x])


def _kornia(name: str, title: str) -> Callable[..., Any]:
    """The class ``name`` of kornia."""
    try:
        import kornia.feature
    except ImportError as error:
        raise ImportError(f'{title} needs kornia: pip install "steerers[kornia]"') from error
    network: Callable[..., Any] = getattr(kornia.feature, name)
    return network


def _read_under_names(path: str | os.PathLike[str], expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """The entries of a file under the names ``expected``, from its top or one level down, without a common prefix.

    Of several readings it is the one with most names right; whether that is all of them is the caller's to check.
    """
    content = read(path, any_ending=True)
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise WeightsError(f"{path}: expected named tensors, found {type(content).__name__}")
    levels = [content, *(value for value in content.values() if isinstance(value, Mapping))]
    readings = [
        {str(name).removeprefix(prefix): value for name, value in level.items()}
        for level in levels
        for prefix in _PREFIXES
    ]
    return max(readings, key=lambda reading: len(reading.keys() & expected.keys()))
