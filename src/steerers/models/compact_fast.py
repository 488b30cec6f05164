"""The embedded network for inference: the same outputs, in half precision on a GPU in a third of the passes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.models import fused
from steerers.models.base import BatchExtractor
from steerers.models.checks import check_count, check_images, check_keypoints, check_mask
from steerers.models.compact import DEVIATION, MEAN, Compact, textured
from steerers.models.folding import fold_batch_norms
from steerers.models.graphs import Graphs
from steerers.models.sampling import KeypointSampling, choose_keypoints, stack_points
from steerers.models.stencils import Size, Stencil, make_stencil


class _Maps(NamedTuple):
    features: list[Tensor]  # (B, C_s, H / s, W / s) at strides 2, 4, ..., finest first
    logits: Tensor  # (B, H, W) float32
    size: Size  # that the features cover


class FastCompact(BatchExtractor):
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
        folded = fold_batch_norms(deepcopy(plain)).requires_grad_(False).to(dtype)
        folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last: Any = folded.trunk.head[2]
        last.weight.data = last.weight.data.contiguous()  # as fused.weigh reads it
        self.sampling: KeypointSampling = plain.sampling
        self.dim, self.dtype, self.strides = plain.dim, dtype, tuple(2**k for k in range(len(plain.config.channels)))
        self.trunk: Any = folded.trunk
        self.describer = folded.describer
        self.register_buffer("mean", torch.full((3,), MEAN), persistent=False)
        self.register_buffer("scale", torch.full((3,), 1 / DEVIATION), persistent=False)
        self._extracting, self._describing = Graphs(self._extract, graphs), Graphs(self._describe, graphs)
        self.eval()

    # The model's protocol ---------------------------------------------------------------------------------------------

    def describe_batch(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_images(images)
        check_keypoints(keypoints, images)
        xy = stack_points(keypoints, images.device)
        (descriptions,) = self._describing(images, xy, stencil=self._stencil(images))
        return [described[: len(found)] for described, found in zip(descriptions, keypoints, strict=True)]

    def extract_batch(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        check_images(images)
        check_count(num_keypoints)
        check_mask(masks, (len(images), *images.shape[-2:]))
        given = (images,) if masks is None else (images, masks.to(images.device))
        xy, scores, counts, descriptions, total = self._extracting(
            *given, num_keypoints=num_keypoints, sampling=self.sampling, stencil=self._stencil(images)
        )
        *many, finite = torch.cat((counts, total.isfinite()[None])).tolist()  # one wait for the GPU
        if not finite:
            raise ValueError(
                f"the compact network in {self.dtype} gave logits or descriptions that are not finite; check that "
                "the image and the weights are, or use float32"
            )
        return [(Keypoints(xy[i, :n], scores[i, :n]), descriptions[i, :n]) for i, n in enumerate(many)]

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
        maps = self._maps(images)
        allowed = textured(images) if masks is None else textured(images) & masks
        xy, scores, counts = choose_keypoints(maps.logits, num_keypoints, allowed, sampling)
        descriptions = self._describe_at(maps, xy, stencil)
        return xy, scores, counts, descriptions, maps.logits.sum() + descriptions.sum()

    def _describe(self, images: Tensor, xy: Tensor, *, stencil: Stencil) -> tuple[Tensor, ...]:
        return (self._describe_at(self._maps(images), xy, stencil),)

    def _maps(self, images: Tensor) -> _Maps:
        height, width = images.shape[-2:]
        size = self._padded_size(images)
        if size != (width, height):
            images = F.pad(images, (0, size[0] - width, 0, size[1] - height), mode="replicate")
        features = self._features(images)
        last = self.trunk.head[2]
        logits = fused.weigh(_conv(features[0], self.trunk.head[0]), last.weight, last.bias)
        return _Maps(features[1:], logits[:, 0, :height, :width].contiguous(), size)

    def _features(self, images: Tensor) -> list[Tensor]:
        """Refined features at strides 1, 2, 4, ..."""
        trunk = self.trunk
        features = [fused.stem(images, self.mean, self.scale, trunk.stem.weight, trunk.stem.bias)]
        for halving, *residuals in trunk.stages:
            x = _conv(features[-1], halving[0])
            for residual in residuals:
                second = residual.second[0]
                x = fused.conv_add_relu(_conv(x, residual.first[0]), second.weight, second.bias, x)
            features.append(x)
        for index in reversed(range(len(trunk.laterals))):
            coarse = fused.pointwise(features[index + 1], trunk.laterals[index].weight.flatten(1))
            features[index] = _conv(fused.raise_add(features[index], coarse), trunk.refinements[index][0])
        return features

    def _describe_at(self, maps: _Maps, xy: Tensor, stencil: Stencil) -> Tensor:
        described: Tensor = self.describer(fused.sample_all(maps.features, xy, maps.size, stencil))
        return described.float()

    def _stencil(self, images: Tensor) -> Stencil:
        width, height = self._padded_size(images)
        return make_stencil(tuple(((width // s, height // s),) for s in self.strides[1:]), images.device)

    def _padded_size(self, images: Tensor) -> Size:
        """(width, height) up to a multiple of the coarsest stride."""
        coarsest = self.strides[-1]
        height, width = (-(-n // coarsest) * coarsest for n in images.shape[-2:])
        return width, height

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._extracting.clear()
        self._describing.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


def _conv(x: Tensor, layer: Any) -> Tensor:
    return fused.conv_relu(x, layer.weight, layer.bias, layer.stride[0], layer.padding[0])
