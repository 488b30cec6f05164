"""The host of the fused kernels: what is launched when, within a budget of memory; nothing is waited for.

Nothing here is larger than the prepared descriptions, the sums of tiles (a number for each row and each tile of
columns, and the reverse) and O(N + M). Where those would exceed the budget, problems come one after the other, and a
problem of its own in chunks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from steerers.accel.matching.plans import Operands, Plan, Terms
from steerers.accel.matching.results import Results
from steerers.accel.support import capability, on_device
from steerers.matching.assignment import Options, Precision
from steerers.matching.similarity import check_finite

BUDGET = 54 << 20
"""Most bytes of prepared descriptions, sums of tiles, and copies of descriptions at a time; O(N + M) comes on top."""
LEAST_BUDGET = 4 << 20
"""What is left for prepared rows and sums of tiles in any case."""
SHARED_MEMORY = 128 << 10
"""Bytes that the columns and rows of one program may take if they are kept; Hopper has 227 KiB."""
SLACK = {"default": 0.05, "exact": 1e-3}
"""How far a bound may be off in log2 P through rounding: generous, since it only costs visits."""
PREPARED_AT_ONCE, PREPARED_WIDTH = 4, 256
"""Rows of a program that prepares descriptions, and coordinates that it makes at a time: few, so that many programs
wait for memory together. The best found on an H200 for N = 5000, as is the following."""
MOST_UNROLLED = 4
FINISHED_AT_ONCE = 512
"""Coordinates of all rotations that a program multiplies at a time when it makes a match of a maximum."""
LOG2_E = 1 / math.log(2)
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
    size = plan.rows.width * (4 if precision == "exact" else 2)
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


# Problems -------------------------------------------------------------------------------------------------------------


def launch(operands: Sequence[Operands], options: Options) -> Results:
    """Launch everything for pairs of descriptions that share a plan; nothing is waited for."""
    plan, matrices, device = operands[0].plan, operands[0].matrices, operands[0].descriptions0.device
    alternatives = plan.alternatives if matrices is None else len(matrices)
    rows, cols = [pair.descriptions0 for pair in operands], [pair.descriptions1 for pair in operands]
    n_max, m_max = max(map(len, rows)), max(map(len, cols))
    results = Results.empty(plan, alternatives, len(operands), n_max, device)
    if not n_max or not m_max:
        for pair in operands:
            check_finite(pair.descriptions0, pair.descriptions1)
        results.probability.fill_(-1.0)
        return results
    copies = sum(pair.copied for pair in operands)
    if matrices is not None:
        copies += n_max * matrices.shape[1] * matrices.element_size()
    solver = Solver(plan, options, device, copies)
    with on_device(device):
        if matrices is None:
            solver.solve(results, rows, cols, 0)
            return results
        for b, (row, col) in enumerate(zip(rows, cols, strict=True)):
            for k, matrix in enumerate(matrices):
                solver.solve(results, [row.to(matrix.dtype) @ matrix.mT], [col], b * alternatives + k)
    return results


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


class Job:
    """P problems that are launched together: the same descriptions with some of a plan's alternatives.

    Args:
        results: where what is found goes, from the problem ``first`` on.
        raw0: (rows of all pairs, D); ``raw1`` likewise.
        rows: of the alternatives.
        cols: prepared.
    """

    def __init__(
        self, results: Results, raw0: Tensor, raw1: Tensor, pairs: Pairs, rows: Terms, first: int, cols: Tensor,
        config: TileConfig,
    ) -> None:  # fmt: skip
        self.results, self.raw0, self.raw1, self.pairs = results, raw0, raw1, pairs
        self.rows, self.first, self.cols = rows, first, cols
        self.alternatives = rows.groups // results.plan.groups
        self.problems = len(pairs) * self.alternatives
        self.n_max, self.m_max = results.probability.shape[1], max(pair[3] for pair in pairs)
        self.tiles_m = _cdiv(self.m_max, config.block_m)
        # What is kept for rows, columns and tiles between the passes.
        device = raw0.device
        self.row_logs = torch.empty(self.problems * self.n_max, device=device)
        self.col_logs = torch.empty(self.problems * self.m_max, device=device)
        self.row_best = torch.empty(self.problems * self.n_max, dtype=torch.long, device=device)
        self.col_best = torch.empty(self.problems * self.m_max, dtype=torch.long, device=device)
        self.tile_best = torch.empty(self.problems * _cdiv(self.n_max, config.block_n), self.tiles_m, device=device)


class Chunk(NamedTuple):
    """Some rows of the problems of a job, prepared; all of them unless they are too many."""

    rows: Tensor  # (G, rows, K)
    table: Tensor
    start: int  # the first row
    length: int
    tiles: int


class Solver:
    """Launches the kernels for problems of one plan; ``copied`` bytes of the budget are taken."""

    def __init__(self, plan: Plan, options: Options, device: torch.device, copied: int = 0) -> None:
        self.plan, self.options, self.budget = plan, options, BUDGET - copied
        self.config = config_for(plan, options.precision, device)
        self.dtype = torch.float32 if options.precision == "exact" else torch.float16  # of prepared descriptions
        self.scale = options.inverse_temperature * LOG2_E  # of cosines, to units of log 2

    # What fits into the budget ----------------------------------------------------------------------------------------

    def column_bytes(self, m: int) -> int:
        """Of prepared columns."""
        return m * self.plan.cols.width * self.dtype.itemsize

    def problem_bytes(self, n: int, m: int) -> int:
        """Of the prepared rows and the sums of tiles of one problem."""
        rows = n * self.plan.groups * self.plan.rows.width * self.dtype.itemsize
        return rows + 4 * (n * _cdiv(m, self.config.block_m) + m * _cdiv(n, self.config.block_n))

    def _left(self, m: int) -> int:
        """Of the budget beside prepared columns."""
        return max(self.budget - self.column_bytes(m), LEAST_BUDGET)

    def solve(self, results: Results, rows: Sequence[Tensor], cols: Sequence[Tensor], first: int) -> None:
        """All alternatives of some pairs, whose problems are ``first`` and the following."""
        n_max, m_max = max(map(len, rows)), max(map(len, cols))
        alternatives, groups = self.plan.alternatives, self.plan.groups
        each = alternatives * self.problem_bytes(n_max, m_max)
        together = max(self.budget // (each + self.column_bytes(m_max)), int(each <= self._left(m_max)))
        step = max(1, together)
        for start in range(0, len(rows), step):
            some_rows, some_cols = rows[start : start + step], cols[start : start + step]
            (raw0, starts0), (raw1, starts1) = joined(some_rows), joined(some_cols)
            pairs = tuple(zip(starts0, map(len, some_rows), starts1, map(len, some_cols), strict=True))
            prepared = self._prepare(results, raw1, pairs, self.plan.cols, side=1)
            _, n, _, m = pairs[0]
            most = alternatives if together else max(1, self._left(m) // max(1, self.problem_bytes(n, m)))
            for k in range(0, alternatives, most):
                terms = self.plan.rows.select(k * groups, min(k + most, alternatives) * groups)
                place = first + start * alternatives + k
                self._run(Job(results, raw0, raw1, pairs, terms, place, prepared, self.config))

    def _ranges(self, job: Job) -> list[tuple[int, int]]:
        """Ranges of rows that fit; several only for a single problem."""
        left = self._left(job.m_max)
        if job.problems > 1 or self.problem_bytes(job.n_max, job.m_max) <= left:
            return [(0, job.n_max)]
        n, block = job.pairs[0][1], self.config.block_n
        most = block * max(1, left // self.problem_bytes(block, job.m_max))
        each = block * _cdiv(_cdiv(n, block), _cdiv(n, most))  # of about the same size
        return [(start, min(start + each, n)) for start in range(0, n, each)]

    # The passes -------------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        ranges = self._ranges(job)
        kept = self._chunk(job, *ranges[0]) if len(ranges) == 1 else None
        col_sums = job.col_logs if kept else torch.empty(job.m_max, dtype=torch.float64, device=job.raw0.device)
        for span in ranges:
            chunk = kept or self._chunk(job, *span)
            self._add_up(job, chunk, col_sums, first=span is ranges[0], last=span is ranges[-1])
            del chunk
        for span in ranges:
            chunk = kept or self._chunk(job, *span)
            self._best(job, chunk)
            del chunk
        self._finish(job)

    def _chunk(self, job: Job, start: int, stop: int) -> Chunk:
        raw, pairs = job.raw0, job.pairs
        if job.problems == 1:
            begin = pairs[0][0]
            stop = min(stop, pairs[0][1])
            raw, pairs = raw[begin + start : begin + stop], ((0, stop - start, *pairs[0][2:]),)
        rows = self._prepare(job.results, raw, pairs, job.rows, side=0)
        table = problems(pairs, job.alternatives, len(raw), str(raw.device))
        return Chunk(rows, table, start, stop - start, _cdiv(stop - start, self.config.block_n))

    def _prepare(self, results: Results, raw: Tensor, pairs: Pairs, terms: Terms, *, side: int) -> Tensor:
        from steerers.accel.matching import row_kernels

        out = torch.empty(terms.groups, len(raw), terms.width, dtype=self.dtype, device=raw.device)
        block_d = _power_of_two(raw.shape[1])
        block_n = min(PREPARED_AT_ONCE, max(1, 4096 // block_d))
        longest = max(pair[2 * side + 1] for pair in pairs)
        chunks = _cdiv(terms.groups * terms.width, PREPARED_WIDTH)
        parts = _cdiv(chunks, MOST_UNROLLED)
        row_kernels.prepare[(_cdiv(longest, block_n), len(pairs), parts)](
            raw, raw.stride(0), raw.stride(1), out, terms.index, terms.weights,
            problems(pairs, 1, 0, str(raw.device)), results.stats, len(raw), raw.shape[1],
            SIDE=side, GROUPS=terms.groups, WIDTH=terms.width, TWO=terms.two,
            DIM=block_d, BLOCK_N=block_n, BLOCK_K=PREPARED_WIDTH, CHUNKS=_cdiv(chunks, parts), num_warps=4,
        )  # fmt: skip
        return out

    def _compiled_for(self) -> dict[str, int | str]:
        """The options of the kernels over tiles."""
        plan, config = self.plan, self.config
        return {
            "MODE": plan.mode, "GROUPS": plan.groups, "EVEN": plan.even, "ODD": plan.odd,
            "BLOCK_N": config.block_n, "BLOCK_M": config.block_m, "BLOCK_K": config.block_k, "KEEP": config.keep,
            "PRECISION": "ieee", "SWIZZLE": config.swizzle,
            "num_warps": config.num_warps, "num_stages": config.num_stages,
        }  # fmt: skip

    def _add_up(self, job: Job, chunk: Chunk, col_sums: Tensor, *, first: bool, last: bool) -> None:
        """The first pass: sums of tiles, then their logarithms."""
        from steerers.accel.matching import kernels

        config, block, device = self.config, 64, chunk.rows.device
        row_parts = torch.empty(job.tiles_m, job.problems * chunk.length, device=device)
        col_parts = torch.empty(chunk.tiles, job.problems * job.m_max, device=device)
        kernels.sums[(chunk.tiles * job.tiles_m, job.problems)](
            chunk.rows, job.cols, chunk.table, row_parts, col_parts,
            job.tile_best[chunk.start // config.block_n :], self.scale, chunk.rows.shape[1],
            chunk.length, job.m_max, chunk.tiles, job.tiles_m, job.problems, **self._compiled_for(),
        )  # fmt: skip
        kernels.logs[(_cdiv(max(chunk.length, job.m_max), block), job.problems, 2)](
            chunk.table, row_parts, col_parts, col_sums, job.row_logs[chunk.start :], job.col_logs,
            job.row_best[chunk.start :], job.col_best, chunk.length, job.m_max, job.problems,
            BLOCK_N=config.block_n, BLOCK_M=config.block_m, FIRST=first, LAST=last,
            TILES=32, BLOCK=block, num_warps=4,
        )  # fmt: skip

    def _best(self, job: Job, chunk: Chunk) -> None:
        """The second pass."""
        from steerers.accel.matching import kernels

        threshold = self.options.threshold
        least = math.log2(threshold) - SLACK[self.options.precision] if threshold > 0 else -math.inf
        kernels.best[(chunk.tiles * job.tiles_m, job.problems)](
            chunk.rows, job.cols, chunk.table, job.row_logs[chunk.start :], job.col_logs,
            job.tile_best[chunk.start // self.config.block_n :], job.row_best[chunk.start :], job.col_best,
            self.scale, least, chunk.rows.shape[1], chunk.start,
            chunk.length, job.m_max, chunk.tiles, job.tiles_m, **self._compiled_for(),
        )  # fmt: skip

    def _finish(self, job: Job) -> None:
        from steerers.accel.matching import row_kernels

        plan, results, rows, cols = self.plan, job.results, job.rows, self.plan.cols
        rotation = results.partner if results.rotation is None else results.rotation
        groups = _power_of_two(plan.groups)
        width = min(_power_of_two(max(plan.even, plan.odd)), max(16, FINISHED_AT_ONCE // groups))
        row_kernels.finish[(job.n_max, job.problems)](
            job.raw0, *job.raw0.stride(), job.raw1, *job.raw1.stride(),
            rows.index, rows.weights, cols.index, cols.weights,
            problems(job.pairs, job.alternatives, len(job.raw0), str(job.raw0.device)),
            job.row_logs, job.col_logs, job.row_best, job.col_best,
            results.probability, results.partner, rotation, results.stats,
            self.scale, self.options.threshold, job.first, job.n_max, job.m_max, len(job.raw0), job.raw0.shape[1],
            MODE=plan.mode, GROUPS=plan.groups, TABLES=rows.groups, EVEN=plan.even, ODD=plan.odd,
            ROTATIONS=len(plan.rotations), TWO0=rows.two, TWO1=cols.two,
            DIM=_power_of_two(job.raw0.shape[1]), BLOCK_G=groups, BLOCK_K=width, num_warps=1,
        )  # fmt: skip


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << (size - 1).bit_length()
