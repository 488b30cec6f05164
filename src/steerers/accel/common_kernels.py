"""What the kernels of matching and of networks share: an order of values, and a kernel to see whether Triton works.

Importing this needs Triton.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

# Order ----------------------------------------------------------------------------------------------------------------


@triton.jit
def key(value, index):
    """An integer that orders by value, then the lower index first."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
def value_of(made):
    """The value that a :func:`key` was made of."""
    ordered = (made >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(made):
    """The index that a :func:`key` was made of."""
    return 0xFFFFFFFF - (made & 0xFFFFFFFF)


@triton.jit
def _or_last(value):
    """What is not finite comes after all values of at least -1."""
    return tl.where(value - value == 0.0, value, -2.0)


@triton.jit
def rank(values, count, own, index, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """(BLOCK,) how many of ``count`` values, none below -1, come before each own one: larger ones, and equal ones of a
    lower index. For some thousand values, counting takes less time than the passes of a sort."""
    mine = key(_or_last(own), index)
    before = tl.zeros((BLOCK, STEP), dtype=tl.int32)
    for start in range(0, count, STEP):
        j = start + tl.arange(0, STEP)
        other = key(_or_last(tl.load(values + j, mask=j < count, other=-3.0)), j)
        before += (other[None, :] > mine[:, None]).to(tl.int32)
    return tl.sum(before, axis=1)


# Trial ----------------------------------------------------------------------------------------------------------------


@triton.jit
def _store_one(out):
    tl.store(out, 1.0)


def try_out(device: torch.device) -> None:
    """Compile and launch a trivial kernel.

    Raises:
        Exception: whatever Triton, the compiler or the driver does not like.
    """
    out = torch.zeros(1, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _store_one[(1,)](out)
    if float(out) != 1:
        raise RuntimeError("a kernel ran and left no trace")
