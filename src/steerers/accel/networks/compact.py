"""The compact network for inference, at one or several scales: the same outputs, in a third of the passes on a GPU.

At several scales it is one recording, and one wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.accel.graphs import Graphs
from steerers.accel.networks import layers
from steerers.accel.networks.layers import Size, Stencil, make_stencil
from steerers.features import Keypoints
from steerers.models.base import check_batch, check_keypoints
from steerers.models.compact import (
    DEVIATION,
    DIAMETER,
    MEAN,
    Compact,
    Describer,
    Pyramid,
    TrunkExtractor,
    fold_batch_norms,
    score_weight,
    shrink,
    shrink_masks,
    shrunk_size,
    smoothed,
    spread_logits,
    textured,
)
from steerers.models.sampling import KeypointSampling, choose_keypoints, split_points, stack_points


class _Maps(NamedTuple):
    features: list[Tensor]  # (B, C_s, H / s, W / s) at strides 2, 4, ..., finest first
    logits: Tensor  # (B, H, W) float32
    size: Size  # that the features cover


class FastCompact(TrunkExtractor):
    """A :class:`~steerers.models.compact.Compact` for inference.

    Args:
        plain: is copied.
        dtype: of the network; descriptions are float32.
        graphs: how many sizes of images are recorded as CUDA graphs.
        scales: at how many of its scales an image is described.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, plain: Compact, dtype: torch.dtype = torch.float32, *, graphs: int = 4, scales: int = 1) -> None:
        super().__init__()
        folded = fold_batch_norms(deepcopy(plain)).requires_grad_(False)
        describer = _Describer(folded.describer).to(dtype)
        folded.to(dtype)
        folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last: Any = folded.trunk.head[2]
        last.weight.data = last.weight.data.contiguous()  # as layers.conv_to_logit reads it
        self.sampling: KeypointSampling = plain.sampling
        self.dim, self.dtype, self.strides = plain.dim, dtype, tuple(2**k for k in range(len(plain.config.channels)))
        self.multiple = plain.config.stride  # of which the sides of images are made
        self.trunk: Any = folded.trunk
        self.describer = describer
        device = last.weight.device
        self.register_buffer("mean", torch.full((3,), MEAN, device=device), persistent=False)
        self.register_buffer("scale", torch.full((3,), 1 / DEVIATION, device=device), persistent=False)
        self._extracting, self._describing = Graphs(self._extract, graphs), Graphs(self._describe, graphs * scales)
        self.eval()

    # The model's protocol ---------------------------------------------------------------------------------------------

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        found = self.extract(images, num_keypoints=num_keypoints, masks=masks)
        return [keypoints.clone() for keypoints, _ in found]  # the descriptions made with them can be let go

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images)
        xy = stack_points(keypoints, images.device, layers.KEYPOINT_MULTIPLE).float()
        (descriptions,) = self._describing(images, xy, stencil=self._stencil(images))
        return split_points(descriptions, keypoints)

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        found = self.extract_at((1.0,), images, num_keypoints, masks)
        return [(Keypoints(keypoints.xy, keypoints.scores), descriptions) for keypoints, descriptions in found]

    def extract_at(
        self, scales: tuple[float, ...], images: Tensor, num_keypoints: int, masks: Tensor | None, coarse: float = 0.0
    ) -> list[tuple[Keypoints, Tensor]]:
        """The best keypoints of all scales of each image, in its pixels and with diameters, and their descriptions.

        While this is recorded, the smaller scales run beside the first: their kernels are too small to fill a GPU.
        """
        given = check_batch(images, num_keypoints, masks)
        stencils = tuple(self._stencil(images, scale) for scale in scales)
        xy, scores, diameters, descriptions, stats = self._extracting(
            *given, num_keypoints=num_keypoints, sampling=self.sampling, scales=scales, coarse=coarse, stencils=stencils
        )
        *counts, broken = stats.tolist()  # the one wait for a GPU
        if broken:
            raise ValueError(
                f"the compact network in {self.dtype} gave logits or descriptions that are not finite; check that "
                "the image and the weights are, or use float32"
            )
        return [
            (Keypoints(xy[i, :n], scores[i, :n], diameters[i, :n]), descriptions[i, :n]) for i, n in enumerate(counts)
        ]

    def describe_at(self, maps: _Maps, xy: Tensor) -> Tensor:
        return self._describe_at(maps, xy.float(), self._stencil_of(maps.size, xy.device)).float()

    # What is computed -------------------------------------------------------------------------------------------------

    def _extract(
        self,
        images: Tensor,
        masks: Tensor | None = None,
        *,
        num_keypoints: int,
        sampling: KeypointSampling,
        scales: tuple[float, ...],
        coarse: float,
        stencils: tuple[Stencil, ...],
    ) -> Merged:
        height, width = images.shape[-2:]

        def find(scale: float, stencil: Stencil) -> LevelKeypoints:
            level = shrink(images, scale)
            allowed = None if masks is None else shrink_masks(masks, level)
            maps = self.maps(level)
            weight = score_weight(images, level, scale, coarse)
            xy, scores = _choose(level, maps.logits, num_keypoints, allowed, sampling, weight)
            return LevelKeypoints(xy, scores, self._describe_at(maps, xy, stencil))

        found = _side_by_side([partial(find, *pair) for pair in zip(scales, stencils, strict=True)], images.device)
        sizes = [shrunk_size(images, scale) for scale in scales]
        frames = [
            LevelFrame(width / w, height / h, DIAMETER / scale) for (h, w), scale in zip(sizes, scales, strict=True)
        ]
        return merge_scales(found, frames, num_keypoints)

    def _describe(self, images: Tensor, xy: Tensor, *, stencil: Stencil) -> tuple[Tensor, ...]:
        return (self._describe_at(self.maps(images), xy, stencil).float(),)

    def maps(self, images: Tensor) -> _Maps:
        height, width = images.shape[-2:]
        size = _padded_size((height, width), self.multiple)
        if size != (width, height):
            images = F.pad(images, (0, size[0] - width, 0, size[1] - height), mode="replicate")
        features = self._features(images)
        last = self.trunk.head[2]
        logits = layers.conv_to_logit(_conv(features[0], self.trunk.head[0]), last.weight, last.bias)
        logits = spread_logits(logits[:, 0], self.trunk.spread)
        return _Maps(features[1:], logits[:, :height, :width].contiguous(), size)

    def _features(self, images: Tensor) -> list[Tensor]:
        """Refined features at strides 1, 2, 4, ..."""
        trunk = self.trunk
        stem = layers.stem(images, self.mean, self.scale, trunk.stem.weight, trunk.stem.bias)
        features = [_residuals(stem, trunk.fine)]
        for index, (halving, *residuals) in enumerate(trunk.stages):
            x = _conv(smoothed(features[-1]) if index < trunk.antialias else features[-1], halving[0])
            features.append(_residuals(x, residuals))
        if trunk.context is not None:
            features[-1] = trunk.context(features[-1])
        for index in reversed(range(len(trunk.laterals))):
            coarse = layers.pointwise(features[index + 1], trunk.laterals[index].weight.flatten(1))
            features[index] = _conv(layers.upsample_add(features[index], coarse), trunk.refinements[index][0])
        return features

    def _describe_at(self, maps: _Maps, xy: Tensor, stencil: Stencil) -> Tensor:
        sampled = layers.sample_all(maps.features, xy, maps.size, stencil)  # (B, N, C)
        described: Tensor = self.describer(sampled.flatten(0, 1))
        return described.view(*xy.shape[:2], self.dim)

    def _stencil(self, images: Tensor, scale: float = 1.0) -> Stencil:
        """How features of images at a scale are sampled."""
        return self._stencil_of(_padded_size(shrunk_size(images, scale), self.multiple), images.device)

    def _stencil_of(self, size: Size, device: torch.device) -> Stencil:
        return make_stencil(tuple(((size[0] // s, size[1] // s),) for s in self.strides[1:]), device)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._extracting.clear()
        self._describing.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


class FastPyramid(Pyramid):
    """A :class:`~steerers.models.compact.Pyramid` around the compact network that finds keypoints at all scales in one
    run."""

    extractor: FastCompact

    def extract(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        return self.extractor.extract_at(tuple(self.scales_for(images)), images, num_keypoints, masks, self.coarse)


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


def _padded_size(size: tuple[int, int], coarsest: int) -> Size:
    """(width, height) of images of a size (height, width), up to a multiple of the coarsest stride."""
    height, width = (-(-n // coarsest) * coarsest for n in size)
    return width, height


def _conv(x: Tensor, layer: Any) -> Tensor:
    return layers.conv_relu(x, layer.weight, layer.bias, layer.stride[0], layer.padding[0])


def _residuals(x: Tensor, blocks: Any) -> Tensor:
    for block in blocks:
        second = block.second[0]
        x = layers.conv_relu(_conv(x, block.first[0]), second.weight, second.bias, added=x)
    return x


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


# The choice of keypoints without waiting for a GPU --------------------------------------------------------------------


class LevelKeypoints(NamedTuple):
    """Keypoints of a batch of images at one size."""

    xy: Tensor  # (B, N, 2) float32 pixels at that size
    scores: Tensor  # (B, N) float32, negative for what only fills up, NaN if a logit was not finite
    descriptions: Tensor  # (B, N, D)


class LevelFrame(NamedTuple):
    """How keypoints at one size become those of the images."""

    ratio_x: float  # of the image's width to that at this size
    ratio_y: float
    diameter: float


class Merged(NamedTuple):
    """The best keypoints of a batch of images, best first."""

    xy: Tensor  # (B, K, 2) float32 pixels
    scores: Tensor  # (B, K) float32
    diameters: Tensor  # (B, K) float32
    descriptions: Tensor  # (B, K, D) float32
    stats: Tensor  # (B + 1,) whole numbers: how many of each image count, and whether something was not finite


def _choose(
    images: Tensor, logits: Tensor, num_keypoints: int, masks: Tensor | None, sampling: KeypointSampling, factor: float
) -> tuple[Tensor, Tensor]:
    """What :func:`choose_in_cells` gives where there is something to see; without kernels by PyTorch's operations."""
    if layers.has_kernels(images.device) and not sampling.coverage and sampling.nms_size > 1:
        return choose_in_cells(logits, num_keypoints, masks, sampling, images, factor)
    allowed = textured(images) if masks is None else textured(images) & masks
    xy, scores, real = choose_keypoints(logits, min(num_keypoints, logits[0].numel()), allowed, sampling)
    scores = torch.where(real, scores * factor, -1.0)
    return xy, torch.where(logits.sum().isfinite(), scores, torch.nan)


def choose_in_cells(
    logits: Tensor,
    num_keypoints: int,
    masks: Tensor | None,
    sampling: KeypointSampling,
    images: Tensor | None = None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """:func:`~steerers.models.sampling.choose_keypoints` of (B, H, W) float32 logits, in any order and faster.

    Windows of radius r leave at most one keypoint in a cell of (r + 1) x (r + 1) pixels, unless some of its pixels are
    equal: then only the first of these that is allowed may be one.

    Args:
        images: if keypoints may only lie where there is something to see.
        factor: by which scores are multiplied.

    Returns:
        (B, N, 2) pixels, and (B, N) scores: -1 for what only fills up, all NaN if a logit is not finite.
    """
    from steerers.accel.networks import keypoint_kernels

    logits = logits.contiguous()
    masks = None if masks is None else masks.to(logits.device).contiguous()
    texture = None if images is None else keypoint_kernels.extremes(images)
    values, pixels, totals = keypoint_kernels.candidates(logits, masks, sampling.nms_size, sampling.border, texture)
    values, best = values.topk(min(num_keypoints, values.shape[1]), sorted=False)
    size = sampling.nms_size if sampling.subpixel is True else 1
    peak = sampling.subpixel == "peak"
    return keypoint_kernels.positions(logits, values, best, totals, size, pixels, factor, peak=peak)


def merge_scales(parts: Sequence[LevelKeypoints], frames: Sequence[LevelFrame], num_keypoints: int) -> Merged:
    """The best of all parts; of equal scores the earlier.

    Args:
        parts: each best first, unless there are kernels for the device.
        frames: one for each part.
        num_keypoints: how many at most.
    """
    if layers.has_kernels(parts[0].xy.device):
        from steerers.accel.networks import keypoint_kernels

        return Merged(*keypoint_kernels.arrange(parts, frames, num_keypoints))
    scores = torch.cat([part.scores for part in parts], dim=1)  # (B, M)
    rows = torch.cat([_rows(part, frame) for part, frame in zip(parts, frames, strict=True)], dim=1)  # (B, M, 3 + D)
    finite = rows.isfinite().all() & ~scores.isnan().any()
    if len(parts) > 1:
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :num_keypoints]
        scores, rows = scores.gather(1, best), rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2]))
    stats = torch.cat(((scores >= 0).sum(dim=1), (~finite)[None]))
    return Merged(rows[..., :2], scores, rows[..., 2], rows[..., 3:], stats)


def _rows(part: LevelKeypoints, frame: LevelFrame) -> Tensor:
    """(B, N, 3 + D) pixels of the image, diameters and descriptions."""
    x, y = part.xy.unbind(dim=2)
    moved = [v * ratio + 0.5 * (ratio - 1) for v, ratio in ((x, frame.ratio_x), (y, frame.ratio_y))]
    head = torch.stack((*moved, torch.full_like(x, frame.diameter)), dim=2)
    return torch.cat((head, part.descriptions.float()), dim=2)
