"""Problems that the fused kernels solve: shapes of their tiles, how they lie in memory, and how much they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from steerers.accel.matching.plans import Plan, Terms
from steerers.accel.support import capability
from steerers.matching.assignment import Precision

SHARED_MEMORY = 128 << 10
"""Bytes that the columns and rows of one program may take if they are kept; Hopper has 227 KiB."""
Pairs = tuple[tuple[int, int, int, int], ...]
"""(row_start, n, col_start, m) of pairs of descriptions."""


# Shapes of tiles ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileConfig:
    """Shape of a tile, how much of the coordinates is multiplied at once, and what the compiler is told."""

    block_n: int
    block_m: int
    block_k: int
    num_warps: int
    num_stages: int
    swizzle: int = 8
    keep: bool = False
    """Whether a program keeps all coordinates of its columns while it goes through the groups of rows."""


HOPPER: dict[tuple[str, Precision], TileConfig] = {
    ("cosine", "default"): TileConfig(128, 128, 64, 4, 3),
    ("maximum", "default"): TileConfig(128, 128, 64, 8, 3),
    ("paired", "default"): TileConfig(64, 64, 128, 4, 2, keep=True),
    ("modulus", "default"): TileConfig(128, 64, 64, 4, 3),
    ("cosine", "exact"): TileConfig(128, 64, 32, 4, 2),
    ("maximum", "exact"): TileConfig(64, 64, 32, 4, 2),
    ("paired", "exact"): TileConfig(128, 128, 16, 8, 3),
    ("modulus", "exact"): TileConfig(64, 64, 32, 4, 2),
}
"""The best found on an H200, over N = 5000 and 20000, where some descriptions match."""
NOT_KEPT = TileConfig(128, 128, 32, 8, 4)
"""On Hopper, for descriptions that are too long to be kept."""
ELSEWHERE = TileConfig(64, 64, 32, 4, 2)
"""Fits every GPU that is supported."""


def config_for(plan: Plan, precision: Precision, device: torch.device) -> TileConfig:
    """The tile for a plan."""
    single = plan.mode == "maximum" and plan.groups == 1
    hopper = device.type != "cuda" or capability(device)[0] in (9, 10)  # later ones may have less shared memory
    config = HOPPER["cosine" if single else plan.mode, precision] if hopper else ELSEWHERE
    size = (plan.even + plan.odd) * (4 if precision == "exact" else 2)
    if config.keep and size * (config.block_m + config.num_stages * config.block_n) > SHARED_MEMORY:
        config = NOT_KEPT
    return fitting(config, plan)


def fitting(config: TileConfig, plan: Plan) -> TileConfig:
    """The config with a ``block_k`` that divides the numbers of coordinates, or leaves a power of two where kept."""
    if not config.keep or plan.mode == "modulus":
        return replace(config, block_k=math.gcd(config.block_k, plan.even, plan.odd), keep=False)
    block_k = config.block_k
    while any((rest := size % block_k) & (rest - 1) for size in (plan.even, plan.odd)):
        block_k //= 2
    return replace(config, block_k=block_k)


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """Bytes that problems take."""

    plan: Plan
    config: TileConfig
    precision: Precision

    @property
    def dtype(self) -> torch.dtype:
        """Of prepared descriptions."""
        return torch.float32 if self.precision == "exact" else torch.float16

    def columns(self, m: int) -> int:
        """Of prepared columns."""
        return m * self.plan.cols.width * self.dtype.itemsize

    def problem(self, n: int, m: int) -> int:
        """Of the prepared rows and the sums of tiles of one problem."""
        rows = n * self.plan.groups * self.plan.rows.width * self.dtype.itemsize
        return rows + 4 * (n * cdiv(m, self.config.block_m) + m * cdiv(n, self.config.block_n))


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """The device that Triton launches on is the current one."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


def joined(descriptions: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Descriptions of several images in one tensor, and where each begins; without a copy if they are parts of one."""
    first = descriptions[0]
    if len(descriptions) == 1:
        return first, [0]
    stride = max(first.stride(0), 1)
    begin = min(d.storage_offset() for d in descriptions)
    starts = [(d.storage_offset() - begin) / stride for d in descriptions]
    stop = max(int(start) + len(d) for start, d in zip(starts, descriptions, strict=True))
    alike = all(
        d.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and d.stride() == first.stride()
        for d in descriptions
    )
    if alike and all(start.is_integer() for start in starts) and stop <= 2 * sum(map(len, descriptions)):
        return first.as_strided((stop, first.shape[1]), first.stride(), begin), [int(start) for start in starts]
    lengths = [len(d) for d in descriptions]
    return torch.cat(list(descriptions)), [sum(lengths[:k]) for k in range(len(lengths))]


@lru_cache(maxsize=256)
def problems(pairs: Pairs, alternatives: int, num_rows: int, device: str) -> Tensor:
    """(P, 4) int32: for each pair its alternatives, each of ``num_rows`` prepared rows."""
    table = [(i + k * num_rows, n, j, m) for i, n, j, m in pairs for k in range(alternatives)]
    return torch.tensor(table, dtype=torch.int32).to(device)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, eq=False)
class Job:
    """Problems that are launched together: the same descriptions with some of a plan's alternatives."""

    raw0: Tensor  # (rows of all pairs, D)
    raw1: Tensor
    pairs: Pairs
    rows: Terms
    alternatives: int
    first: int  # of the problems found
    cols: Tensor  # prepared

    @property
    def problems(self) -> int:
        return len(self.pairs) * self.alternatives


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of the problems of a job, prepared; all of them unless they are too many."""

    rows: Tensor  # (G, rows, K)
    table: Tensor
    start: int  # the first row
    stop: int
    tiles: int


class State:
    """What is kept for rows, columns and tiles between the passes."""

    def __init__(self, problems: int, n_max: int, m_max: int, tiles_n: int, tiles_m: int, device: torch.device) -> None:
        self.row_logs = torch.empty(problems * n_max, device=device)
        self.col_logs = torch.empty(problems * m_max, device=device)
        self.row_best = torch.empty(problems * n_max, dtype=torch.long, device=device)
        self.col_best = torch.empty(problems * m_max, dtype=torch.long, device=device)
        self.tile_best = torch.empty(problems * tiles_n, tiles_m, device=device)
