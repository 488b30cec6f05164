"""The processes of a run: one, or as many as ``torchrun`` started."""

from __future__ import annotations

import torch
import torch.distributed as dist


def world() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def agree(flags: list[bool], device: torch.device) -> list[bool]:
    """For each flag whether any process says so."""
    if world() == 1:
        return flags
    votes = torch.tensor(flags, dtype=torch.float32, device=device)
    dist.all_reduce(votes)
    return [vote > 0 for vote in votes.tolist()]
