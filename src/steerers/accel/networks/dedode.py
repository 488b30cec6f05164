"""DeDoDe's networks for inference: the same outputs from fewer operations, of any of the plain modules.

- Batch normalisations are folded into the convolutions before them.
- The context that a scale leaves for the next goes through that one's first convolution *before* it is upsampled to the
  next scale's size, since a 1 x 1 convolution commutes with upsampling: the two matrices become one, nothing is
  concatenated, and fewer channels are upsampled.
- What the last pointwise convolution of a scale adds, and the division by 1.4, move into the linear maps after them.
- The descriptor makes no map of descriptions: the hidden features of every scale are sampled where keypoints are
  (:func:`~steerers.accel.networks.layers.sample_all`), and one matrix maps all of them to descriptions.

A fast network is a copy with parameters of its own names, in one dtype; it cannot be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from steerers.accel.graphs import Graphs
from steerers.accel.networks import layers
from steerers.accel.networks.layers import Size, Stencil, make_stencil
from steerers.features import Keypoints
from steerers.models.base import Descriptor, LogitDetector, check_batch, check_keypoints
from steerers.models.dedode import PATCH, SMALLEST, DedodeDescriptor, DedodeDetector, DedodeNetwork, to_patches
from steerers.models.sampling import KeypointSampling, choose_keypoints, split_points, stack_points

_SHRINK = 1.4  # by which a residual sum is divided


class Linear(NamedTuple):
    """A convolution in float64, of weight (out, in) if it is of 1 x 1 pixels, with its bias (out,)."""

    weight: Tensor
    bias: Tensor

    def after(self, inner: Linear) -> Linear:
        """This map after another; both of 1 x 1 pixels."""
        return Linear(self.weight @ inner.weight, self.weight @ inner.bias + self.bias)

    def rows(self, part: slice) -> Linear:
        """Some of its outputs."""
        return Linear(self.weight[part], self.bias[part])


def fold(conv: nn.Conv2d, norm: nn.Module | None = None) -> Linear:
    """A convolution together with the batch normalisation after it, if that is one.

    Raises:
        ValueError: for a normalisation by the statistics of each batch, which are no constants.
    """
    weight = conv.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach().double()
    if isinstance(norm, nn.BatchNorm2d):
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError("a batch normalisation without running statistics cannot be folded")
        mean, variance = norm.running_mean.double(), norm.running_var.double()
        weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, norm.weight, norm.bias)
    return Linear(weight.flatten(1) if conv.kernel_size == (1, 1) else weight, bias)


class _Scale:
    """The folded convolutions of one scale of the decoder.

    The hidden features are left as they are before the last bias and the division by 1.4; ``out`` takes both over.
    """

    def __init__(self, plain: Any, features: int) -> None:
        first = fold(plain.block1[0], plain.block1[1])
        self.first, self.context = Linear(first.weight[:, :features], first.bias), first.weight[:, features:]
        self.point = fold(plain.block1[3])
        self.blocks = [(fold(block[0], block[1]), fold(block[3])) for block in plain.hidden_blocks]
        out, last = fold(plain.out_conv), self.blocks[-1][1]
        self.out = Linear(out.weight / _SHRINK, out.bias + out.weight @ last.bias / _SHRINK)


def _fold_scales(decoder: Any) -> list[_Scale]:
    """The scales, coarse to fine; each but the first has the context of the one before among its inputs."""
    scales, context = [], 0
    for plain in decoder.layers.values():
        scales.append(_Scale(plain, plain.block1[0].in_channels - context))
        context = plain.out_conv.out_channels - decoder.prototypes
    return scales


def _parameter(value: Tensor, dtype: torch.dtype) -> nn.Parameter:
    copied = value.detach().to(dtype, copy=True, memory_format=torch.preserve_format)
    return nn.Parameter(copied, requires_grad=False)


# Encoder --------------------------------------------------------------------------------------------------------------


class _Encoder(nn.Module):
    """VGG's convolutions, with the normalisation of images before them."""

    mean: Tensor
    scale: Tensor

    def __init__(self, layers: nn.ModuleList, mean: Tensor, std: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().flatten().clone(), persistent=False)
        self.register_buffer("scale", 1 / std.detach().flatten(), persistent=False)
        self.depths: list[int] = [0]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        modules = list(layers)[:-1]
        for index, layer in enumerate(modules):
            if isinstance(layer, nn.MaxPool2d):
                self.depths.append(0)
            elif isinstance(layer, nn.Conv2d):
                weight, bias = fold(layer, modules[index + 1])
                self.weights.append(_parameter(weight.contiguous(memory_format=torch.channels_last), dtype))
                self.biases.append(_parameter(bias, dtype))
                self.depths[-1] += 1

    def normalise(self, images: Tensor) -> Tensor:
        """What VGG, and a backbone beside it, were trained with."""
        return (images - self.mean.view(3, 1, 1)) * self.scale.view(3, 1, 1)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features at strides 8, 4, 2 and 1."""
        convolutions = zip(self.weights, self.biases, strict=True)
        x = layers.stem(images, self.mean, self.scale, *next(convolutions))
        features: list[Tensor] = []
        for stage, depth in enumerate(self.depths):
            x = x if stage == 0 else layers.max_pool(x)
            for _ in range(depth - (stage == 0)):
                x = layers.conv_relu(x, *next(convolutions))
            features.append(x)
        return features[::-1]


# Decoder --------------------------------------------------------------------------------------------------------------


class _Refiner(nn.Module):
    """One scale: from features, and what the scale above leaves for it, to hidden features."""

    depths: Tensor

    def __init__(self, scale: _Scale, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = (_parameter(value, dtype) for value in scale.first)
        self.point, self.point_bias = (_parameter(value, dtype) for value in scale.point)
        depths = [depth.weight.flatten(1).mT for depth, _ in scale.blocks]
        self.register_buffer("depths", torch.stack(depths).float())  # (blocks, 25, C)
        self.depth_biases = nn.ParameterList(_parameter(depth.bias, dtype) for depth, _ in scale.blocks)
        self.points = nn.ParameterList(_parameter(point.weight, dtype) for _, point in scale.blocks)
        self.point_biases = nn.ParameterList(_parameter(point.bias, dtype) for _, point in scale.blocks[:-1])

    def forward(self, feature: Tensor, above: Tensor | None) -> Tensor:
        """(B, C, H, W) hidden features."""
        if above is None:
            first = layers.pointwise(feature, self.weight, self.bias).relu_()
            start = layers.pointwise(first, self.point, self.point_bias)
        else:
            start = layers.lateral(feature, above, self.weight, self.point, self.point_bias)
        x = start
        for block in zip(self.depths, self.depth_biases, self.points, [*self.point_biases, start], strict=True):
            x = layers.separable(x, *block)
        return x


class _Decoder(nn.Module):
    """All scales: the hidden features of each, coarse to fine."""

    def __init__(self, scales: Sequence[_Scale], prototypes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.refiners = nn.ModuleList(_Refiner(scale, dtype) for scale in scales)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for above, below in pairwise(scales):
            through = Linear(below.context, below.first.bias).after(above.out.rows(slice(prototypes, None)))
            self.weights.append(_parameter(through.weight, dtype))
            self.biases.append(_parameter(through.bias, dtype))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """The hidden features of each scale."""
        hidden = [self.refiners[0](features[0], None)]
        finer = zip(features[1:], list(self.refiners)[1:], self.weights, self.biases, strict=True)
        for feature, refiner, weight, bias in finer:
            hidden.append(refiner(feature, layers.pointwise(hidden[-1], weight, bias)))
        return hidden


# Models ---------------------------------------------------------------------------------------------------------------


class _Network(nn.Module):
    """What detector and descriptor share: the hidden features of all scales, and recorded runs."""

    def __init__(self, plain: DedodeNetwork, scales: Sequence[_Scale], dtype: torch.dtype, graphs: Graphs) -> None:
        super().__init__()
        self.kind, self.architecture, self.dtype = plain.kind, plain.architecture, dtype
        vgg: Any = getattr(plain.encoder, "vgg", plain.encoder)
        self.encoder = _Encoder(vgg.layers, plain._mean, plain._std, dtype)
        self.decoder = _Decoder(scales, plain.decoder.prototypes, dtype)
        hidden = getattr(plain.encoder, "_hidden", ())
        self.backbone = nn.ModuleList(deepcopy(module).to(dtype) for module in hidden)
        self._graphs = graphs
        if self.backbone:  # which may do what none can record
            graphs.capacity = 0
        self.eval()

    def hidden(self, images: Tensor) -> list[Tensor]:
        """Hidden features, coarse to fine, of (B, 3, H, W) images."""
        features = self.encoder(images)
        for backbone in self.backbone:
            patches = backbone(self.encoder.normalise(images).to(self.dtype))
            features = [layers.channels_last(patches), *features]
        return self.decoder(features)  # type: ignore[no-any-return]

    def _check(self, finite: bool, what: str) -> None:
        if not finite:
            raise ValueError(
                f"DeDoDe {self.kind} {self.architecture} in {self.dtype} gave {what} that are not finite; "
                "check that the image and the weights are finite, or use float32"
            )

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._graphs.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


class FastDedodeDescriptor(_Network, Descriptor):
    """A :class:`~steerers.models.dedode.DedodeDescriptor` for inference.

    Args:
        plain: is copied.
        dtype: of the network; descriptions are float32.
        graphs: how many sizes of images are recorded as CUDA graphs.
    """

    def __init__(self, plain: DedodeDescriptor, dtype: torch.dtype = torch.float32, *, graphs: int = 4) -> None:
        scales = _fold_scales(plain.decoder)
        super().__init__(plain, scales, dtype, Graphs(self._compute, graphs))
        self.dim = plain.dim
        deltas = [scale.out.rows(slice(0, self.dim)) for scale in scales]
        self.out = _parameter(torch.cat([delta.weight for delta in deltas], dim=1), dtype)
        self.out_bias = _parameter(torch.stack([delta.bias for delta in deltas]).sum(dim=0), dtype)

    def describe(self, images: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
        check_keypoints(keypoints, images, SMALLEST)
        xy = stack_points(keypoints, images.device, layers.KEYPOINT_MULTIPLE).float()
        size = (images.shape[-1], images.shape[-2])
        images = to_patches(images) if self.backbone else images
        descriptions, total = self._graphs(images, xy, size=size, stencil=self._stencil(images))
        self._check(bool(total.isfinite()), "descriptions")  # a sum is finite only if all its terms are
        return split_points(descriptions, keypoints)

    def _stencil(self, images: Tensor) -> Stencil:
        height, width = images.shape[-2:]
        sizes: list[Size] = [(width >> k, height >> k) for k in range(len(self.encoder.depths))]
        sizes += [(width // PATCH, height // PATCH)] * len(self.backbone)
        return make_stencil(tuple(tuple(sizes[:end]) for end in range(len(sizes), 0, -1)), images.device)

    def _compute(self, images: Tensor, xy: Tensor, *, size: Size, stencil: Stencil) -> tuple[Tensor, ...]:
        sampled = layers.sample_all(self.hidden(images), xy, size, stencil)
        descriptions = F.linear(sampled, self.out, self.out_bias).float()
        return descriptions, descriptions.sum()


class FastDedodeDetector(_Network, LogitDetector):
    """A :class:`~steerers.models.dedode.DedodeDetector` for inference; see :class:`FastDedodeDescriptor`."""

    def __init__(self, plain: DedodeDetector, dtype: torch.dtype = torch.float32, *, graphs: int = 4) -> None:
        scales = _fold_scales(plain.decoder)
        super().__init__(plain, scales, dtype, Graphs(self._compute, graphs))
        self.sampling: KeypointSampling = plain.sampling
        deltas = [scale.out.rows(slice(0, 1)) for scale in scales]
        self.outs = nn.ParameterList(_parameter(delta.weight[..., None, None], dtype) for delta in deltas)
        self.out_biases = nn.ParameterList(_parameter(delta.bias, dtype) for delta in deltas)

    def logits(self, images: Tensor) -> Tensor:
        """(B, H, W) float32 logits of a keypoint at each pixel of (B, 3, H, W) images."""
        parts = zip(self.hidden(images), self.outs, self.out_biases, strict=True)
        output, *finer = (layers.conv_to_logit(*part) for part in parts)
        for delta in finer:
            upsampled = F.interpolate(output, size=delta.shape[-2:], mode="bicubic", align_corners=False)
            output = delta.add_(upsampled)
        return output[:, 0]

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        given = check_batch(images, num_keypoints, masks, SMALLEST)
        xy, scores, counts, total = self._graphs(*given, num_keypoints=num_keypoints, sampling=self.sampling)
        *many, finite = torch.cat((counts, total.isfinite()[None])).tolist()  # one wait for the GPU
        self._check(bool(finite), "logits")
        return [Keypoints(xy[i, :n], scores[i, :n]) for i, n in enumerate(many)]

    def _compute(
        self, images: Tensor, masks: Tensor | None = None, *, num_keypoints: int, sampling: KeypointSampling
    ) -> tuple[Tensor, ...]:
        logits = self.logits(images)
        xy, scores, real = choose_keypoints(logits, min(num_keypoints, logits[0].numel()), masks, sampling)
        return xy, scores, real.sum(dim=1), logits.sum()
