"""Problems that the fused kernels solve: how they lie in memory, and how much of it they take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from steerers.accel.matching.plans import Plan, Table
from steerers.accel.matching.tile_shapes import Config
from steerers.matching.assignment import Precision

Pairs = tuple[tuple[int, int, int, int], ...]
"""(row_start, n, col_start, m) of pairs of descriptions."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that problems take."""

    plan: Plan
    config: Config
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
    rows: Table
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
