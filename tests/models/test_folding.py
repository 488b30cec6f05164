"""Folded batch normalisations: the same outputs in fewer passes."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_near, randn
from steerers.models.compact import Compact, CompactConfig
from steerers.models.dedode import DedodeDescriptor, DedodeDetector
from steerers.models.folding import fold_batch_norms

pytestmark = pytest.mark.usefixtures("one_thread")

Network = TypeVar("Network", bound=nn.Module)
SHAPE = CompactConfig(channels=(4, 8, 8), blocks=(1, 2), dim=8, hidden=8)


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def with_statistics(network: Network, seed: int = 0) -> Network:
    """The network as training may leave it: no normalisation is the identity."""
    generator = torch.Generator().manual_seed(seed)
    for norm in norms(network):
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator))
            norm.running_var.copy_(0.3 + torch.rand(norm.num_features, generator=generator))
        if norm.affine:
            nn.init.uniform_(norm.weight, -1.5, 1.5, generator=generator)
            nn.init.normal_(norm.bias, generator=generator)
    return network.eval()


def image(dtype: torch.dtype, size: int = 32) -> Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1)).to(dtype)


def assert_same_relative(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == expected.dtype == dtype
    assert_near(actual / expected.abs().max(), expected / expected.abs().max(), 1e-12 if dtype.itemsize == 8 else 1e-5)


@torch.no_grad()
def test_the_compact_network_computes_the_same(dtype: torch.dtype) -> None:
    network = with_statistics(Compact(SHAPE)).to(dtype)
    xy = torch.tensor([[[3.5, 4.0], [20.0, 11.25]]], dtype=dtype).expand(2, -1, -1)
    expected = network(image(dtype))
    described = network.describe_at(expected, xy)
    folded = fold_batch_norms(network.train())
    assert folded is network
    assert not norms(folded)
    assert not any(module.training for module in folded.modules())
    found = folded(image(dtype))
    for one, other in zip((*found.features, found.logits), (*expected.features, expected.logits), strict=True):
        assert_same_relative(one, other, dtype)
    assert_same_relative(folded.describe_at(found, xy), described, dtype)


@torch.no_grad()
@pytest.mark.parametrize("kind", [DedodeDetector, DedodeDescriptor])
def test_dedode_computes_the_same(kind: type[DedodeDetector] | type[DedodeDescriptor]) -> None:
    network = with_statistics(kind())
    count, expected = len(norms(network)), network(image(torch.float32))
    fold_batch_norms(network)
    assert len(norms(network)) < count / 2  # those of VGG are in no sequence
    assert_same_relative(network(image(torch.float32)), expected, torch.float32)


@torch.no_grad()
def test_the_blocks_of_dedode_compute_the_same_in_double_precision() -> None:
    """The whole has no double precision."""
    network = with_statistics(DedodeDescriptor()).double()
    blocks = [m for m in network.modules() if type(m) is nn.Sequential and isinstance(m[0], nn.Conv2d)]
    inputs = [randn(1, block[0].in_channels, 9, 9, seed=seed) for seed, block in enumerate(blocks)]
    expected = [block(x) for block, x in zip(blocks, inputs, strict=True)]
    fold_batch_norms(network)
    assert len(blocks) > 20
    for block, x, before in zip(blocks, inputs, expected, strict=True):
        assert not norms(block)
        assert_same_relative(block(x), before, torch.float64)


@torch.no_grad()
@pytest.mark.parametrize(
    ("layers", "left"),
    [
        ([nn.Conv2d(3, 4, 3)], 0),
        ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)], 0),
        ([nn.Conv2d(3, 6, 3, groups=3, dilation=2, bias=False), nn.BatchNorm2d(6), nn.ReLU()], 0),
        ([nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4, eps=0.1)], 0),
        ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)], 0),
        ([nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)], 0),
        ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)], 1),
        ([nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)], 1),
        ([nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)], 1),
        ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)], 1),
        ([nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)], 1),
        ([], 0),
    ],
)
def test_what_cannot_be_folded_stays(layers: list[nn.Module], left: int) -> None:
    network = with_statistics(nn.Sequential(*layers)).double()
    expected = network(image(torch.float64).clone())
    folded = fold_batch_norms(network)
    assert len(norms(folded)) == left
    assert_near(folded(image(torch.float64)), expected, 1e-12)
