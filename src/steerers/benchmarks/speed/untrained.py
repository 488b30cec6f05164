"""Models of the zoo with random weights, for what does not depend on them: run time and memory."""

from __future__ import annotations

import importlib
import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from steerers.models.base import Combined, Descriptor, Extractor
from steerers.models.zoo import Entry, Model, find
from steerers.steering.steerer import Steerer

Network = TypeVar("Network", bound=nn.Module)


def build_untrained(name: str, seed: int = 0) -> Model:
    """The model of that name as :func:`steerers.models.zoo.build` makes it, but without any file of weights.

    A learned steerer whose file is published is a random matrix too; those of this package are as they are.

    Raises:
        ValueError: for an unknown name, or a model whose networks are not known here.
        ImportError: if its networks are kornia's, and kornia is not installed.
    """
    entry = find(name)
    generator = torch.Generator().manual_seed(seed)
    extractor: Descriptor = _build_descriptor(entry, generator)
    if entry.detector is not None:
        from steerers.models.dedode import DedodeDetector

        extractor = Combined(_randomised(DedodeDetector("L"), generator), extractor)
    if not isinstance(extractor, Extractor):
        raise TypeError(f"model {entry.name!r} needs a detector: {type(extractor).__name__} finds no keypoints")
    return Model(entry.name, extractor, _build_steerer(entry, generator))


def _build_steerer(entry: Entry, generator: torch.Generator) -> Steerer | None:
    if entry.steerer is None or entry.group is None:
        return None
    if entry.steerer.weights:
        return Steerer.random(entry.dim, entry.group, generator=generator, learnable=False)
    return entry.steerer.build({})


def _build_descriptor(entry: Entry, generator: torch.Generator) -> Descriptor:
    from steerers.models.dedode import DedodeDescriptor
    from steerers.models.frozen import ALIKED_DIMS, Aliked, Disk, XFeat
    from steerers.models.superpoint import SuperPoint

    name = entry.fitted_to
    if not entry.descriptor.weights:
        return entry.descriptor.build({})
    if name.startswith("dedode-b"):
        return _randomised(DedodeDescriptor("B"), generator)
    if name.startswith("dedode-g"):
        return _randomised(DedodeDescriptor("G", backbone=_random_dinov2(generator)), generator)
    if name in ALIKED_DIMS:
        return _randomised(Aliked(name), generator)
    for known, network in (("disk", Disk), ("xfeat", XFeat), ("superpoint", SuperPoint)):
        if name == known:
            return _randomised(network(), generator)
    raise ValueError(f"the networks of model {name!r} are not known without weights")


def _random_dinov2(generator: torch.Generator) -> nn.Module:
    """DINOv2 ViT-L/14 as :func:`steerers.models.dedode.dinov2_backbone` makes it from its file."""
    from steerers.models.dedode import PATCH, dinov2_backbone

    try:
        dinov2 = importlib.import_module("kornia.feature.dedode.transformer.dinov2")
    except ImportError as error:
        raise ImportError('DINOv2 for DeDoDe descriptor G needs kornia: pip install "steerers[dinov2]"') from error
    with torch.device("meta"):
        transformer = dinov2.vit_large(
            img_size=37 * PATCH, patch_size=PATCH, init_values=1.0, block_chunks=0, drop_path_uniform=True
        )
    return dinov2_backbone({name: _draw(old, generator) for name, old in transformer.state_dict().items()})


def _randomised(network: Network, generator: torch.Generator) -> Network:
    """``network`` with random weights that keep the size of what flows through; vectors and buffers stay."""
    drawn = {name: _draw(old, generator) for name, old in network.named_parameters() if old.ndim > 1}
    network.load_state_dict({**network.state_dict(), **drawn})
    return network


def _draw(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values of variance one over the number of inputs; ones for vectors."""
    if like.ndim < 2:
        return torch.ones(like.shape)
    inputs = max(1, math.prod(like.shape[1:]))
    return torch.randn(like.shape, generator=generator) * math.sqrt(1 / inputs)
