"""Shapes of tiles for the fused kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from steerers.accel.matching.plans import Plan
from steerers.accel.support import capability
from steerers.matching.assignment import Precision

SHARED_MEMORY = 128 << 10
"""Bytes that the columns and rows of one program may take if they are kept; Hopper has 227 KiB."""


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


def config_for(plan: Plan, precision: Precision, device: torch.device) -> Config:
    """The tile for a plan."""
    single = plan.mode == "maximum" and plan.groups == 1
    hopper = device.type != "cuda" or capability(device)[0] in (9, 10)  # later ones may have less shared memory
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
