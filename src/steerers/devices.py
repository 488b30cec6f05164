"""Where tensors live."""

from __future__ import annotations

import torch


def parse_device(device: str | torch.device) -> torch.device:
    """A device that is there, or a ValueError that says why not."""
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
