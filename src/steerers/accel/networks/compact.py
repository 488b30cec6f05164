"""The compact network for inference, at one or several scales: the same outputs, in a third of the passes on a GPU.

At several scales it is one recording, and one wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.accel.graphs import Graphs
from steerers.accel.networks import layers
from steerers.accel.networks.keypoints import (
    LevelFrame,
    LevelKeypoints,
    choose_in_cells,
    choose_plainly,
    has_cells,
    merge_scales,
)
from steerers.accel.networks.upsample_sampling import Size, Stencil, make_stencil
from steerers.features import Keypoints
from steerers.models.base import Extractor, check_batch, check_keypoints
from steerers.models.compact import (
    CELL,
    DEVIATION,
    DIAMETER,
    FLATTEST,
    MEAN,
    Compact,
    Describer,
    Pyramid,
    fold_batch_norms,
    shrink,
    shrink_masks,
    shrunk_size,
    textured,
)
from steerers.models.sampling import KeypointSampling, split_points, stack_points

if TYPE_CHECKING:
    from steerers.accel.networks.keypoint_kernels import Texture


class _Maps(NamedTuple):
    features: list[Tensor]  # (B, C_s, H / s, W / s) at strides 2, 4, ..., finest first
    logits: Tensor  # (B, H, W) float32
    size: Size  # that the features cover


class FastCompact(Extractor):
    """A :class:`~steerers.models.compact.Compact` for inference.

    Args:
        plain: is copied.
        dtype: of the network; descriptions are float32.
        graphs: how many sizes of images are recorded as CUDA graphs.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, plain: Compact, dtype: torch.dtype = torch.float32, *, graphs: int = 4) -> None:
        super().__init__()
        folded = fold_batch_norms(deepcopy(plain)).requires_grad_(False)
        describer = _Describer(folded.describer).to(dtype)
        folded.to(dtype)
        folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last: Any = folded.trunk.head[2]
        last.weight.data = last.weight.data.contiguous()  # as layers.conv_to_logit reads it
        self.sampling: KeypointSampling = plain.sampling
        self.dim, self.dtype, self.strides = plain.dim, dtype, tuple(2**k for k in range(len(plain.config.channels)))
        self.trunk: Any = folded.trunk
        self.describer = describer
        device = last.weight.device
        self.register_buffer("mean", torch.full((3,), MEAN, device=device), persistent=False)
        self.register_buffer("scale", torch.full((3,), 1 / DEVIATION, device=device), persistent=False)
        self.moves = 0
        self._extracting, self._describing = Graphs(self._extract, graphs), Graphs(self._describe, graphs)
        self.eval()

    # The model's protocol ---------------------------------------------------------------------------------------------

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        found = self.extract(images, num_keypoints=num_keypoints, masks=masks)
        return [keypoints.clone() for keypoints, _ in found]  # the descriptions made with them can be let go

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images)
        xy = stack_points(keypoints, images.device, layers.KEYPOINT_MULTIPLE).float()
        height, width = images.shape[-2:]
        (descriptions,) = self._describing(images, xy, stencil=self.stencil((height, width), images.device))
        return split_points(descriptions, keypoints)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        given = check_batch(images, num_keypoints, masks)
        height, width = images.shape[-2:]
        xy, scores, descriptions, stats = self._extracting(
            *given,
            num_keypoints=num_keypoints,
            sampling=self.sampling,
            stencil=self.stencil((height, width), images.device),
        )
        counts = self.read(stats)
        return [(Keypoints(xy[i, :n], scores[i, :n]), descriptions[i, :n]) for i, n in enumerate(counts)]

    # For a pyramid of this --------------------------------------------------------------------------------------------

    def find(
        self,
        images: Tensor,
        masks: Tensor | None,
        num_keypoints: int,
        sampling: KeypointSampling,
        stencil: Stencil,
        factor: float = 1.0,
    ) -> LevelKeypoints:
        """Keypoints and descriptions of images, as :func:`merge_scales` takes them; without a wait.

        Args:
            stencil: that for the size of the images.
            factor: by which scores are multiplied.
        """
        maps = self._maps(images)
        if has_cells(images.device, sampling):
            xy, scores = choose_in_cells(maps.logits, num_keypoints, masks, sampling, _texture(images), factor)
        else:
            allowed = textured(images) if masks is None else textured(images) & masks
            xy, scores = choose_plainly(maps.logits, num_keypoints, allowed, sampling, factor)
        return LevelKeypoints(xy, scores, self._describe_at(maps, xy, stencil))

    def stencil(self, size: tuple[int, int], device: torch.device) -> Stencil:
        """How features of images of a size (height, width) are sampled."""
        return _stencil(self.strides, size, device)

    def read(self, stats: Tensor) -> list[int]:
        """How many keypoints each image has; the one wait for a GPU.

        Raises:
            ValueError: something is not finite.
        """
        *counts, broken = stats.tolist()
        if broken:
            raise ValueError(
                f"the compact network in {self.dtype} gave logits or descriptions that are not finite; check that "
                "the image and the weights are, or use float32"
            )
        return counts

    # What is computed -------------------------------------------------------------------------------------------------

    def _extract(
        self,
        images: Tensor,
        masks: Tensor | None = None,
        *,
        num_keypoints: int,
        sampling: KeypointSampling,
        stencil: Stencil,
    ) -> tuple[Tensor, ...]:
        found = self.find(images, masks, num_keypoints, sampling, stencil)
        merged = merge_scales([found], [LevelFrame(1.0, 1.0, 0.0)], num_keypoints)
        return merged.xy, merged.scores, merged.descriptions, merged.stats

    def _describe(self, images: Tensor, xy: Tensor, *, stencil: Stencil) -> tuple[Tensor, ...]:
        return (self._describe_at(self._maps(images), xy, stencil).float(),)

    def _maps(self, images: Tensor) -> _Maps:
        height, width = images.shape[-2:]
        size = _padded_size((height, width), self.strides[-1])
        if size != (width, height):
            images = F.pad(images, (0, size[0] - width, 0, size[1] - height), mode="replicate")
        features = self._features(images)
        last = self.trunk.head[2]
        logits = layers.conv_to_logit(_conv(features[0], self.trunk.head[0]), last.weight, last.bias)
        return _Maps(features[1:], logits[:, 0, :height, :width].contiguous(), size)

    def _features(self, images: Tensor) -> list[Tensor]:
        """Refined features at strides 1, 2, 4, ..."""
        trunk = self.trunk
        features = [layers.stem(images, self.mean, self.scale, trunk.stem.weight, trunk.stem.bias)]
        for halving, *residuals in trunk.stages:
            x = _conv(features[-1], halving[0])
            for residual in residuals:
                second = residual.second[0]
                x = layers.conv_add_relu(_conv(x, residual.first[0]), second.weight, second.bias, x)
            features.append(x)
        for index in reversed(range(len(trunk.laterals))):
            coarse = layers.pointwise(features[index + 1], trunk.laterals[index].weight.flatten(1))
            features[index] = _conv(layers.upsample_add(features[index], coarse), trunk.refinements[index][0])
        return features

    def _describe_at(self, maps: _Maps, xy: Tensor, stencil: Stencil) -> Tensor:
        sampled = layers.sample_all(maps.features, xy, maps.size, stencil)  # (B, N, C)
        described: Tensor = self.describer(sampled.flatten(0, 1))
        return described.view(*xy.shape[:2], self.dim)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.moves += 1
        self._extracting.clear()
        self._describing.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


class FastPyramid(Pyramid):
    """A :class:`~steerers.models.compact.Pyramid` around the compact network that finds keypoints at all scales in one
    run.

    While it is recorded, the smaller scales run beside the first: their kernels are too small to fill a GPU.

    Args:
        extractor: the network.
        scales: of the image, the first 1.
        graphs: how many sizes of images are recorded as CUDA graphs.
    """

    extractor: FastCompact

    def __init__(self, extractor: FastCompact, scales: Sequence[float] = (1.0, 0.5), *, graphs: int = 4) -> None:
        super().__init__(extractor, scales)
        self._extracting = Graphs(self._extract, graphs)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        given = check_batch(images, num_keypoints, masks)
        scales = tuple(self.scales_for(images))
        stencils = tuple(self.extractor.stencil(shrunk_size(images, scale), images.device) for scale in scales)
        xy, scores, diameters, descriptions, stats = self._extracting(
            *given,
            num_keypoints=num_keypoints,
            sampling=self.extractor.sampling,
            scales=scales,
            stencils=stencils,
            moves=self.extractor.moves,
        )
        counts = self.extractor.read(stats)
        return [
            (Keypoints(xy[i, :n], scores[i, :n], diameters[i, :n]), descriptions[i, :n]) for i, n in enumerate(counts)
        ]

    def _extract(
        self,
        images: Tensor,
        masks: Tensor | None = None,
        *,
        num_keypoints: int,
        sampling: KeypointSampling,
        scales: tuple[float, ...],
        stencils: tuple[Stencil, ...],
        moves: int,
    ) -> tuple[Tensor, ...]:
        """``moves`` only tells apart what was recorded before the network moved."""
        height, width = images.shape[-2:]

        def find(scale: float, stencil: Stencil) -> LevelKeypoints:
            level = shrink(images, scale)
            allowed = None if masks is None else shrink_masks(masks, level)
            area = level.shape[-2] * level.shape[-1] / (height * width)
            return self.extractor.find(level, allowed, num_keypoints, sampling, stencil, area)

        found = _side_by_side([partial(find, *pair) for pair in zip(scales, stencils, strict=True)], images.device)
        sizes = [shrunk_size(images, scale) for scale in scales]
        frames = [
            LevelFrame(width / w, height / h, DIAMETER / scale) for (h, w), scale in zip(sizes, scales, strict=True)
        ]
        return merge_scales(found, frames, num_keypoints)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._extracting.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


class _Describer(nn.Module):
    """A :class:`~steerers.models.compact.Describer` in two products, the second added to a part of the first."""

    weight: Tensor
    bias: Tensor
    second: Tensor

    def __init__(self, plain: Describer) -> None:
        super().__init__()
        self.norm, self.outputs = plain.norm, plain.linear.out_features
        self.register_buffer("weight", torch.cat((plain.linear.weight, plain.first.weight)))
        self.register_buffer("bias", torch.cat((plain.linear.bias + plain.second.bias, plain.first.bias)))
        self.register_buffer("second", plain.second.weight.mT.contiguous())

    def forward(self, features: Tensor) -> Tensor:
        """(N, inputs) to (N, outputs), in rows that lie apart."""
        both = F.linear(self.norm(features), self.weight, self.bias)
        hidden = both[:, self.outputs :].relu_()
        return both[:, : self.outputs].addmm_(hidden, self.second)


@lru_cache(maxsize=64)
def _stencil(strides: tuple[int, ...], size: tuple[int, int], device: torch.device) -> Stencil:
    width, height = _padded_size(size, strides[-1])
    return make_stencil(tuple(((width // s, height // s),) for s in strides[1:]), device)


def _padded_size(size: tuple[int, int], coarsest: int) -> Size:
    """(width, height) of images of a size (height, width), up to a multiple of the coarsest stride."""
    height, width = (-(-n // coarsest) * coarsest for n in size)
    return width, height


def _conv(x: Tensor, layer: Any) -> Tensor:
    return layers.conv_relu(x, layer.weight, layer.bias, layer.stride[0], layer.padding[0])


def _texture(images: Tensor) -> Texture:
    """What :func:`~steerers.models.compact.textured` goes by."""
    from steerers.accel.networks import keypoint_kernels

    return keypoint_kernels.Texture(keypoint_kernels.extremes(images, CELL), CELL, FLATTEST)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings, since cuBLAS keeps memory for each."""
    return torch.cuda.Stream(device)


def _side_by_side(tasks: Sequence[Callable[[], LevelKeypoints]], device: torch.device) -> list[LevelKeypoints]:
    """The results of all tasks; of a recording, those after the first are a branch of their own.

    Only of a recording: there, memory that one branch lets go is not given to another.
    """
    if len(tasks) == 1 or device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return [task() for task in tasks]
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        others = [task() for task in tasks[1:]]
    first = tasks[0]()
    main.wait_stream(side)
    return [first, *others]
