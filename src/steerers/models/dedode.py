"""DeDoDe: detector L (and its smaller B), descriptors B and G, by the names and shapes of the official weight files.

Every network is an encoder (VGG19 with batch normalisation, at strides 1, 2, 4 and 8) and a decoder that goes from
coarse to fine: at each scale a stack of convolutions turns the features, and the context left by the scale before, into
a correction of the output and the context of the next. Descriptor G starts one scale coarser, from the patches of a
frozen DINOv2 ViT-L/14, which is not part of its weights (see :func:`dinov2_backbone`).

An official state dictionary loads unchanged with ``strict=True``. For training from ImageNet, ``features.{i}`` of a
VGG19-BN classifier is ``encoder.layers.{i}`` here (``encoder.vgg.layers.{i}`` in G).

Precision is explicit: ``dtype`` is that of the convolutions alone. The parameters stay float32, and outputs are
accumulated and returned in float32.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.features import Keypoints
from steerers.models.base import Descriptor, LogitDetector, check_batch, check_images, check_keypoints
from steerers.models.sampling import (
    DEFAULT_SAMPLING,
    KeypointSampling,
    full_precision,
    sample_descriptions,
    sample_keypoints,
    split_points,
    stack_points,
)

DetectorName = Literal["L", "B"]
DescriptorName = Literal["B", "G"]

PATCH = 14  # side in pixels of a DINOv2 patch
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DINO_CHANNELS = 1024
_DINO_HEAD = 64  # channels of an attention head, in DINOv2 of every size
SMALLEST = 8  # pixels: the coarsest features have stride 8


@dataclass(frozen=True)
class _Architecture:
    """``scales`` maps a decoder's scale, coarse to fine, to its channels: in, hidden, context for the next scale."""

    prototypes: int  # channels of the output
    blocks: int
    scales: dict[str, tuple[int, int, int]]


_SMALL = {"8": (512, 512, 256), "4": (512, 256, 128), "2": (256, 64, 32), "1": (96, 32, 1)}
_LARGE = {"8": (512, 512, 256), "4": (512, 256, 128), "2": (256, 128, 64), "1": (128, 64, 1)}
_DINO = {"14": (_DINO_CHANNELS, 768, 512), **_SMALL, "8": (1024, 512, 256)}
_DETECTORS = {"L": _Architecture(1, 8, _LARGE), "B": _Architecture(1, 5, _SMALL)}
_DESCRIPTORS = {"B": _Architecture(256, 5, _SMALL), "G": _Architecture(256, 5, _DINO)}


# Networks -------------------------------------------------------------------------------------------------------------


class _Vgg(nn.Module):
    """The first four stages of VGG19-BN."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, depth in ((64, 2), (128, 2), (256, 4), (512, 4)):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.layers = nn.ModuleList(layers)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features before each pooling, coarse to fine: strides 8, 4, 2, 1."""
        features = []
        x = images
        for layer in self.layers[:-1]:
            if isinstance(layer, nn.MaxPool2d):
                features.append(x)
            x = layer(x)
        return [x, *reversed(features)]


class _VggDino(nn.Module):
    """VGG features and, before them, the patches of a frozen backbone that is no part of the parameters."""

    def __init__(self, backbone: nn.Module | None) -> None:
        super().__init__()
        self.vgg = _Vgg()
        # Within a tuple it is hidden from state_dict(), parameters() and train().
        self._hidden = () if backbone is None else (backbone.eval().requires_grad_(False),)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features at strides 14, 8, 4, 2, 1."""
        height, width = images.shape[-2:]
        if height % PATCH or width % PATCH:
            raise ValueError(
                f"DeDoDe descriptor G needs images with sides of a multiple of {PATCH}, got {height} x {width}"
            )
        if not self._hidden:
            raise ValueError(
                "DeDoDe descriptor G has no backbone: make it with backbone=dinov2_backbone(state_dict), the state "
                "dictionary that of dinov2_vitl14_pretrain.pth"
            )
        with torch.no_grad():
            patches = self._hidden[0](images)  # (B, 1024, H / 14, W / 14)
        expected = (images.shape[0], _DINO_CHANNELS, height // PATCH, width // PATCH)
        if tuple(patches.shape) != expected:
            raise ValueError(f"the backbone of DeDoDe descriptor G must give {expected}, got {tuple(patches.shape)}")
        return [patches, *self.vgg(images)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for module in self._hidden:  # so that to(device) takes the backbone along
            module._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


def _block(channels: int, hidden: int, kernel: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, hidden, kernel, padding=kernel // 2, groups=groups),
        nn.BatchNorm2d(hidden),
        nn.ReLU(inplace=True),
        nn.Conv2d(hidden, hidden, 1),
    )


class _Refiner(nn.Module):
    """The decoder of one scale: a residual stack of depthwise convolutions."""

    def __init__(self, channels: int, hidden: int, out: int, blocks: int) -> None:
        super().__init__()
        self.block1 = _block(channels, hidden, kernel=1, groups=1)
        self.hidden_blocks = nn.Sequential(*(_block(hidden, hidden, kernel=5, groups=hidden) for _ in range(blocks)))
        self.out_conv = nn.Conv2d(hidden, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(x)
        x = (self.hidden_blocks(x) + x) / 1.4
        return self.out_conv(x)  # type: ignore[no-any-return]


class _Decoder(nn.Module):
    """The refiners of all scales; ``mode`` is how the output goes from one scale to the next."""

    def __init__(self, architecture: _Architecture, mode: Literal["bilinear", "bicubic"]) -> None:
        super().__init__()
        self.prototypes, self.mode = architecture.prototypes, mode
        self.layers = nn.ModuleDict(
            {
                scale: _Refiner(channels, hidden, architecture.prototypes + context, architecture.blocks)
                for scale, (channels, hidden, context) in architecture.scales.items()
            }
        )

    def forward(self, features: list[Tensor]) -> Tensor:
        """(B, P, H, W) output from features, coarse to fine, the last of (H, W)."""
        output, context = None, None
        for feature, refiner in zip(features, self.layers.values(), strict=True):
            x = feature
            if output is not None and context is not None:
                size = feature.shape[-2:]
                output = F.interpolate(output, size=size, mode=self.mode, align_corners=False)
                context = F.interpolate(full_precision(context), size=size, mode="bilinear", align_corners=False)
                x = torch.cat((feature, context.to(feature.dtype)), dim=1)
            refined = refiner(x)
            delta, context = refined[:, : self.prototypes], refined[:, self.prototypes :]
            output = full_precision(delta) if output is None else output.add_(delta)  # a map of 256 channels is large
        if output is None:
            raise ValueError("no features to decode")
        return output


# Models ---------------------------------------------------------------------------------------------------------------


class DedodeNetwork(nn.Module):
    """What detector and descriptor share: normalisation, precision and the check of what comes out."""

    _mean: Tensor
    _std: Tensor

    def __init__(
        self, kind: Literal["detector", "descriptor"], architecture: str, backbone: nn.Module | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        known = _DETECTORS if kind == "detector" else _DESCRIPTORS
        if architecture not in known:
            raise ValueError(f"architecture of a DeDoDe {kind} must be one of {sorted(known)}, got {architecture!r}")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or torch.float16, got {dtype}")
        self.kind, self.architecture, self.dtype = kind, architecture, dtype
        self.encoder = _VggDino(backbone) if architecture == "G" else _Vgg()
        self.decoder = _Decoder(known[architecture], "bicubic" if kind == "detector" else "bilinear")
        self.register_buffer("_mean", torch.tensor(_IMAGENET_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(_IMAGENET_STD).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """The network alone, to compile or export: (B, 3, H, W) RGB in [0, 1] to an unchecked (B, P, H, W) map."""
        enabled = self.dtype != torch.float32
        # Each weight is used once in a run, so that a cache of converted weights would only hold memory.
        with torch.autocast(images.device.type, dtype=self.dtype, enabled=enabled, cache_enabled=False):
            normalised = (images - self._mean) / self._std
            # Channels last: a quarter less time on a CPU, and what tensor cores want.
            features = self.encoder(normalised.contiguous(memory_format=torch.channels_last))
            return self.decoder(features)  # type: ignore[no-any-return]

    def _checked_map(self, images: Tensor, what: str) -> Tensor:
        check_images(images, SMALLEST)
        output: Tensor = self(images)
        if not torch.isfinite(output.detach().sum()):  # a sum is finite only if all its terms are
            remedy = (
                "check that the image and the weights are finite and the weights are of this architecture"
                if self.dtype == torch.float32
                else "make the network with dtype=torch.float32"
            )
            raise ValueError(
                f"DeDoDe {self.kind} {self.architecture} in {self.dtype} gave {what} that are not finite; {remedy}"
            )
        return output

    def _inference(self) -> AbstractContextManager[object]:
        return nullcontext() if self.training else torch.inference_mode()


class DedodeDetector(DedodeNetwork, LogitDetector):
    """DeDoDe's detector, without weights: give them with ``load_state_dict``.

    Args:
        architecture: ``"L"``, that of all official files, or the smaller ``"B"``.
        sampling: how keypoints are chosen from the logits.
        dtype: of the convolutions; ``torch.bfloat16`` and ``torch.float16`` are faster on a GPU.
    """

    def __init__(
        self,
        architecture: DetectorName = "L",
        *,
        sampling: KeypointSampling = DEFAULT_SAMPLING,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__("detector", architecture, None, dtype)
        self.sampling = sampling

    def logits(self, images: Tensor) -> Tensor:
        """(B, H, W) float32 logits of a keypoint at each pixel of (B, 3, H, W) images, for training too."""
        return self._checked_map(images, "logits")[:, 0]

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        check_batch(images, num_keypoints, masks, SMALLEST)
        with self._inference():
            logits = self.logits(images)
        return sample_keypoints(logits, num_keypoints, masks, self.sampling)


class DedodeDescriptor(DedodeNetwork, Descriptor):
    """DeDoDe's descriptor, without weights: give them with ``load_state_dict``.

    Args:
        architecture: ``"B"``, or ``"G"`` which needs a backbone.
        backbone: for G, what :func:`dinov2_backbone` makes, or any module from normalised (B, 3, H, W) images to
            (B, 1024, H / 14, W / 14). It is frozen and put into evaluation mode. It moves with ``to`` but is in neither
            ``state_dict()`` nor ``parameters()``.
        dtype: of the convolutions; ``torch.bfloat16`` and ``torch.float16`` are faster on a GPU.
    """

    def __init__(
        self,
        architecture: DescriptorName = "B",
        *,
        backbone: nn.Module | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if backbone is not None and architecture != "G":
            raise ValueError(f"backbone is for architecture 'G' alone, got one with {architecture!r}")
        super().__init__("descriptor", architecture, backbone, dtype)
        self.dim = _DESCRIPTORS[architecture].prototypes

    def description_map(self, images: Tensor) -> Tensor:
        """(B, 256, H, W) float32 descriptions of each pixel of (B, 3, H, W) images, for training too.

        G takes sides of a multiple of 14.
        """
        return self._checked_map(images, "descriptions")

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        """(N, 256) descriptions of the keypoints of each of (B, 3, H, W) images, not of unit length.

        For G images of any size are resized to the nearest multiples of 14, which changes their aspect by a few
        thousandths and commutes with quarter turns; keypoints stay in pixels of ``images``.
        """
        check_keypoints(keypoints, images, SMALLEST)
        height, width = images.shape[-2:]
        with self._inference():
            maps = self.description_map(to_patches(images) if self.architecture == "G" else images)
            sampled = sample_descriptions(maps, stack_points(keypoints, maps.device), (width, height))
        # An inference tensor could not be saved for a backward pass.
        return split_points(sampled if self.training else sampled.clone(), keypoints)


def to_patches(images: Tensor) -> Tensor:
    """(B, 3, H, W) images resized to the nearest sides of a multiple of a patch."""
    size = [max(1, round(n / PATCH)) * PATCH for n in images.shape[-2:]]
    if list(images.shape[-2:]) == size:
        return images
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


# DINOv2 ---------------------------------------------------------------------------------------------------------------


class _DinoPatches(nn.Module):
    """A vision transformer's patch tokens as a map."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.transformer.forward_features(images)["x_norm_patchtokens"]  # (B, H * W / 14^2, D)
        height, width = (n // PATCH for n in images.shape[-2:])
        return tokens.mT.unflatten(-1, (height, width))  # type: ignore[no-any-return]


def dinov2_backbone(state_dict: Mapping[str, Tensor]) -> nn.Module:
    """DINOv2 as descriptor G's backbone, from the official weights under their official names.

    The transformer is kornia's, which computes what DeDoDe was trained with (its interpolation of the position
    embedding included): ``pip install "steerers[dinov2]"``. Width and depth follow the weights; G needs ViT-L/14
    without registers, ``dinov2_vitl14_pretrain.pth``.

    Args:
        state_dict: the content of the file, e.g. ``torch.load(path, weights_only=True)``; its tensors are not copied.
    """
    try:
        dinov2 = importlib.import_module("kornia.feature.dedode.transformer.dinov2")
    except ImportError as error:
        raise ImportError('DINOv2 for DeDoDe descriptor G needs kornia: pip install "steerers[dinov2]"') from error
    if "pos_embed" not in state_dict:
        raise ValueError("state_dict is not that of a DINOv2 transformer: it has no 'pos_embed'")
    _, tokens, channels = state_dict["pos_embed"].shape
    depth = len({name.split(".")[1] for name in state_dict if name.startswith("blocks.")})
    with torch.device("meta"):  # the weights are there already: initialising 300 M parameters would take seconds
        transformer = dinov2.DinoVisionTransformer(
            img_size=round((tokens - 1) ** 0.5) * PATCH,
            patch_size=PATCH,
            embed_dim=channels,
            depth=depth,
            num_heads=max(1, channels // _DINO_HEAD),
            init_values=1.0,
            drop_path_uniform=True,  # as good as not, without drop path, and it can be built without memory
            block_chunks=0,
        )
    try:
        transformer.load_state_dict(state_dict, strict=True, assign=True)
    except RuntimeError as error:
        raise ValueError(f"state_dict does not fit DINOv2 ViT/14 without registers: {error}") from error
    return _DinoPatches(transformer).eval().requires_grad_(False)
