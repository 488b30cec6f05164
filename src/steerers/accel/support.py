"""Where the kernels in Triton can run: what matching and the networks both ask."""

from __future__ import annotations

import importlib.util
import logging
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

logger = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Of an NVIDIA GPU; (0, 0) for one of another maker, whose numbers mean something else."""
    return torch.cuda.get_device_capability(device) if torch.version.hip is None else (0, 0)


def capable(device: torch.device) -> bool:
    """Whether a device is a GPU of a kind that the kernels are written for."""
    return device.type == "cuda" and capability(device) >= LEAST_CAPABILITY


@cache
def unavailable(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device, or ``None`` if they can; looked at once."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":  # its interpreter stands in for a device, on the CPU
        return None
    if device.type != "cuda":
        return f"they need a CUDA device, not {device}"
    if torch.version.hip is not None:
        return "they are written for NVIDIA's GPUs"
    if not capable(device):
        return f"{torch.cuda.get_device_name(device)} is older than compute capability {LEAST_CAPABILITY[0]}.0"
    return _failure(device)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """The device that Triton launches on is the current one."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


def _failure(device: torch.device) -> str | None:
    """Why nothing can be compiled and launched, if so, for which Triton needs a C compiler; also logged."""
    try:
        from steerers.accel.common_kernels import try_out

        try_out(device)
    except torch.OutOfMemoryError:  # which says nothing about Triton
        raise
    except Exception as error:  # whatever a compiler or a driver may raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"Triton is installed but does not work on {device}"
        logger.warning("%s, so that PyTorch's own kernels are used, which is slower: %s", message, reason)
        return f"{message}: {reason}"
    return None
