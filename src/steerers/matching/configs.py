"""Shapes of tiles for the fused kernels, and where those can run."""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from steerers.matching.assignment import Precision
from steerers.matching.plans import Plan

SHARED_MEMORY = 128 << 10
"""Bytes that the columns and rows of one program may take if they are kept; Hopper has 227 KiB."""
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Config:
    """Shape of a tile, how much of the coordinates is multiplied at once, and what the compiler is told."""

    block_n: int
    block_m: int
    block_k: int
    num_warps: int
    num_stages: int
    swizzle: int = 8
    keep: bool = False
    """Whether a program keeps all coordinates of its columns while it goes through the groups of rows."""


HOPPER: dict[tuple[str, Precision], Config] = {
    ("cosine", "default"): Config(128, 128, 64, 4, 3),
    ("maximum", "default"): Config(128, 128, 64, 8, 3),
    ("paired", "default"): Config(64, 64, 128, 4, 2, keep=True),
    ("modulus", "default"): Config(128, 64, 64, 4, 3),
    ("cosine", "exact"): Config(128, 64, 32, 4, 2),
    ("maximum", "exact"): Config(64, 64, 32, 4, 2),
    ("paired", "exact"): Config(128, 128, 16, 8, 3),
    ("modulus", "exact"): Config(64, 64, 32, 4, 2),
}
"""The best found on an H200, over N = 5000 and 20000, where some descriptions match."""
NOT_KEPT = Config(128, 128, 32, 8, 4)
"""On Hopper, for descriptions that are too long to be kept."""
ELSEWHERE = Config(64, 64, 32, 4, 2)
"""Fits every GPU that is supported."""


def unavailable(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device, or ``None`` if they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if interpreted():
        return None
    if device.type != "cuda":
        return f"they need a CUDA device, and the descriptions lie on {device}"
    if _capability(device) < LEAST_CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is older than compute capability {LEAST_CAPABILITY[0]}.0"
    return None


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a device, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _capability(device: torch.device) -> tuple[int, int]:
    return _capability_of(torch.cuda.current_device() if device.index is None else device.index)


@lru_cache
def _capability_of(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def config_for(plan: Plan, precision: Precision, device: torch.device) -> Config:
    """The tile for a plan."""
    single = plan.mode == "maximum" and plan.groups == 1
    hopper = device.type != "cuda" or _capability(device)[0] in (9, 10)  # later ones may have less shared memory
    config = HOPPER["cosine" if single else plan.mode, precision] if hopper else ELSEWHERE
    size = (plan.even + plan.odd) * (4 if precision == "exact" else 2)
    if config.keep and size * (config.block_m + config.num_stages * config.block_n) > SHARED_MEMORY:
        config = NOT_KEPT
    return fitting(config, plan)


def fitting(config: Config, plan: Plan) -> Config:
    """The config with a ``block_k`` that divides the numbers of coordinates, or leaves a power of two where kept."""
    if not config.keep or plan.mode == "modulus":
        return replace(config, block_k=math.gcd(config.block_k, plan.even, plan.odd), keep=False)
    block_k = config.block_k
    while any((rest := size % block_k) & (rest - 1) for size in (plan.even, plan.odd)):
        block_k //= 2
    return replace(config, block_k=block_k)
