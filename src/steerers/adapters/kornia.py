"""kornia's shape: a module from two sets of descriptions to distances and indices.

It stands where ``kornia.feature.DescriptorMatcher`` does, in ``LocalFeatureMatcher`` too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from steerers._choices import DEFAULT_MODEL
from steerers._files import StrPath
from steerers.adapters.lightglue import Matcher


class DescriptorMatcher(nn.Module):
    """Matches (N, D) with (M, D) descriptions. LAFs are not needed: a steerer finds the rotation by itself.

    Args:
        name: the model that made the descriptions, such as ``"disk-so2"`` for those of kornia's DISK.
        options: of :class:`steerers.Matcher`.
    """

    def __init__(self, name: StrPath = DEFAULT_MODEL, **options: Any) -> None:
        super().__init__()
        self.matcher = Matcher(name, **options)

    def forward(self, desc1: Tensor, desc2: Tensor) -> tuple[Tensor, Tensor]:
        """Match (N, D) with (M, D) descriptions.

        Returns:
            (K, 1) distances, which are 1 minus the probability of a match, and the (K, 2) indices into both, the best
            match first.
        """
        found = self.matcher.strategy.match(desc1, desc2)
        return 1 - found.scores[:, None], found.indices
