"""Where tensors live."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def parse_device(device: str | torch.device) -> torch.device:
    """A device that is there, or a ValueError that says why not."""
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {str(device)!r}; use cpu, cuda, cuda:1 or mps") from None
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r} is not available: this PyTorch sees no CUDA GPU; use cpu")
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {str(device)!r} is not available: there are {torch.cuda.device_count()} GPUs")
    if parsed.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {str(device)!r} is not available on this machine; use cpu")
    if parsed.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"unknown device {str(device)!r}; use cpu, cuda, cuda:1 or mps")
    return parsed


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the kind of CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()} {platform.machine()}"
