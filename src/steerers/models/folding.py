"""Linear maps put together into one: what a network computes, in fewer passes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

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
