"""What can be trained, as modules from a batch of pairs to the terms of a loss.

- :mod:`.descriptions`: the paper's objective over keypoints of a frozen detector, in Settings A, B and C.
- :mod:`.keypoints`: rotation-consistent keypoints without a descriptor, from photographs.
- :mod:`.dedode_keypoints`: the same from depth and points of reconstructions, as DeDoDe's authors train them.
- :mod:`.joint`: keypoints and descriptions of one network, for the embedded model.
- :mod:`.distillation`: the same, taught by what trained networks say of rotated views on average.

A term is a sum with its count, so that several processes can divide by the count of all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steerers.datasets.pairs import PairBatch
from steerers.models.base import Descriptor, Detector, Extractor
from steerers.steering.steerer import Steerer


class Term(NamedTuple):
    """A part of a loss: ``weight * total / count``."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # of a tuple it counts items, which nobody asks of a term
    weight: float = 1.0


Terms = dict[str, Term]
Measures = dict[str, tuple[float, float]]
"""Name to (sum, count)."""

Real = tuple[Tensor, Tensor]
"""(B, N) and (B, M) bool of the keypoints of both views, False for what only fills up the batch."""


class Objective(ABC, nn.Module):
    """From a batch to the terms of its loss."""

    steerer: Steerer | None  # no value here: a class's would hide the module of that name

    @abstractmethod
    def forward(self, batch: PairBatch, progress: float) -> Terms:
        """The terms of the loss; ``progress`` is how much of the run is done, 0 to 1."""

    @abstractmethod
    def measure(self, batch: PairBatch) -> Measures:
        """What validation reports of a batch."""

    @abstractmethod
    def networks(self) -> Mapping[str, nn.Module]:
        """What is trained, by the names under which learning rates are given and weights are saved."""

    def extractor(self) -> Extractor | None:
        """What finds and describes keypoints as it was trained to; ``None`` where nothing is described."""
        return None

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter that is trained, by its full name."""
        for prefix, network in self.networks().items():
            yield from network.named_parameters(prefix)

    def compile(self, *args: object, **options: object) -> None:
        """Compile the networks' forward passes in place; the rest is small."""
        for network in self.networks().values():
            if isinstance(network, (Descriptor, Detector)):
                network.forward = torch.compile(network.forward, dynamic=False)
