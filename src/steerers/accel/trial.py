"""A trivial kernel, to see whether Triton works. Importing this needs Triton."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl


@triton.jit
def _store_one(out):
    tl.store(out, 1.0)


def try_out(device: torch.device) -> None:
    """Compile and launch it.

    Raises:
        Exception: whatever Triton, the compiler or the driver does not like.
    """
    out = torch.zeros(1, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _store_one[(1,)](out)
    if float(out) != 1:
        raise RuntimeError("a kernel ran and left no trace")
