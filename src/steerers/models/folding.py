"""Batch normalisation folded into the convolution before it: what a network computes, in fewer passes."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def fold_batch_norms(network: AnyModule) -> AnyModule:
    """Fold, in place, every batch normalisation that follows a convolution in a sequence; for evaluation only.

    A normalisation by the statistics of each batch, which are no constants, stays.

    Returns:
        The network, in evaluation mode. Its normalisations have become identities, so that it can no longer be trained
        nor take the weights of one that was not folded.
    """
    network.eval()
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for (place, first), (_, second) in pairwise(list(enumerate(sequence))):
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d) and second.track_running_stats:
                sequence[place] = fuse_conv_bn_eval(first, second)
                sequence[place + 1] = nn.Identity()
    return network.eval()
