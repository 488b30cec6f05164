"""The host of the fused kernels: what is launched when, within a budget of memory; nothing is waited for.

Nothing here is larger than the prepared descriptions, the sums of tiles (a number for each row and each tile of
columns, and the reverse) and O(N + M). Where those would exceed the budget, problems come one after the other, and a
problem of its own in chunks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from steerers.accel.matching.batching import (
    Chunk,
    Footprint,
    Job,
    Pairs,
    State,
    TileConfig,
    cdiv,
    config_for,
    fitting,
    joined,
    on_device,
    problems,
)
from steerers.accel.matching.plans import Operands, Plan, Terms
from steerers.accel.matching.results import Results
from steerers.matching.assignment import Options
from steerers.matching.similarity import check_finite

BUDGET = 54 << 20
"""Most bytes of prepared descriptions, sums of tiles, and copies of descriptions at a time; O(N + M) comes on top."""
SLACK = {"default": 0.05, "exact": 1e-3}
"""How far a bound may be off in log2 P through rounding: generous, since it only costs visits."""
LEAST_BUDGET = 4 << 20
"""What is left for prepared rows and sums of tiles in any case."""
PREPARED_AT_ONCE, PREPARED_WIDTH = 4, 256
"""Rows of a program that prepares descriptions, and coordinates that it makes at a time: few, so that many programs
wait for memory together. The best found on an H200 for N = 5000, as is the following."""
MOST_UNROLLED = 4
FINISHED_AT_ONCE = 512
"""Coordinates of all rotations that a program multiplies at a time when it makes a match of a maximum."""
LOG2_E = 1 / math.log(2)


@dataclass(frozen=True)
class Task:
    """What is asked of the kernels, besides descriptions and plan.

    Attributes:
        ordered: whether all matches are wanted in order; otherwise those of single problems may be.
        config: instead of the one for the device.
    """

    options: Options = field(default_factory=Options)
    ordered: bool = True
    config: TileConfig | None = None
    budget: int = BUDGET

    def config_for(self, plan: Plan, device: torch.device) -> TileConfig:
        """The shape of tiles."""
        if self.config is not None:
            return fitting(self.config, plan)
        return config_for(plan, self.options.precision, device)


def launch(operands: Sequence[Operands], task: Task) -> Results:
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
    solver = Solver(results, plan, task.config_for(plan, device), task, task.budget - copies)
    with on_device(device):
        if matrices is None:
            solver.solve(rows, cols, 0)
            return results
        for b, (row, col) in enumerate(zip(rows, cols, strict=True)):
            for k, matrix in enumerate(matrices):
                solver.solve([row.to(matrix.dtype) @ matrix.mT], [col], b * alternatives + k)
    return results


@dataclass(frozen=True, eq=False)
class Solver:
    """Launches the kernels for one kind of problem."""

    results: Results
    plan: Plan
    config: TileConfig
    task: Task
    budget: int

    @property
    def scale(self) -> float:
        """Of cosines, to units of log 2."""
        return self.task.options.inverse_temperature * LOG2_E

    # What fits into the budget ----------------------------------------------------------------------------------------

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.plan, self.config, self.task.options.precision)

    def _left(self, m: int) -> int:
        """Of the budget beside prepared columns."""
        return max(self.budget - self.footprint.columns(m), min(self.task.budget, LEAST_BUDGET))

    def solve(self, rows: Sequence[Tensor], cols: Sequence[Tensor], first: int) -> None:
        """All alternatives of some pairs, whose problems are ``first`` and the following."""
        n_max, m_max = max(map(len, rows)), max(map(len, cols))
        alternatives = self.plan.alternatives
        each = alternatives * self.footprint.problem(n_max, m_max)
        together = max(self.budget // (each + self.footprint.columns(m_max)), int(each <= self._left(m_max)))
        step = max(1, together)
        for start in range(0, len(rows), step):
            some_rows, some_cols = rows[start : start + step], cols[start : start + step]
            (raw0, starts0), (raw1, starts1) = joined(some_rows), joined(some_cols)
            pairs = tuple(zip(starts0, map(len, some_rows), starts1, map(len, some_cols), strict=True))
            prepared = self._prepare(raw1, pairs, self.plan.cols, side=1)
            job = Job(raw0, raw1, pairs, self.plan.rows, alternatives, first + start * alternatives, prepared)
            for part in [job] if together else self._parts(job):
                self._run(part)

    def _parts(self, job: Job) -> Iterator[Job]:
        """As many alternatives of a single pair as fit."""
        ((_, n, _, m),) = job.pairs
        step = max(1, self._left(m) // max(1, self.footprint.problem(n, m)))
        groups = self.plan.groups
        for start in range(0, job.alternatives, step):
            stop = min(start + step, job.alternatives)
            rows = job.rows.select(start * groups, stop * groups)
            yield replace(job, rows=rows, alternatives=stop - start, first=job.first + start)

    def _ranges(self, job: Job) -> list[tuple[int, int]]:
        """Ranges of rows that fit; several only for a single problem."""
        n_max, m_max = self.results.probability.shape[1], max(pair[3] for pair in job.pairs)
        if job.problems > 1 or self.footprint.problem(n_max, m_max) <= self._left(m_max):
            return [(0, n_max)]
        n, block = job.pairs[0][1], self.config.block_n
        most = block * max(1, self._left(m_max) // self.footprint.problem(block, m_max))
        each = block * cdiv(cdiv(n, block), cdiv(n, most))  # of about the same size
        return [(start, min(start + each, n)) for start in range(0, n, each)]

    # The passes -------------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        ranges, m_max = self._ranges(job), max(pair[3] for pair in job.pairs)
        n_max, device = self.results.probability.shape[1], job.raw0.device
        tiles_n, tiles_m = cdiv(n_max, self.config.block_n), cdiv(m_max, self.config.block_m)
        state = State(job.problems, n_max, m_max, tiles_n, tiles_m, device)
        col_sums = state.col_logs if len(ranges) == 1 else torch.empty(m_max, dtype=torch.float64, device=device)
        kept = self._chunk(job, *ranges[0]) if len(ranges) == 1 else None
        for index, span in enumerate(ranges):
            chunk = kept or self._chunk(job, *span)
            parts = self._sums(job, chunk, state, m_max)
            self._logs(job, chunk, state, parts, col_sums, m_max, first=index == 0, last=index == len(ranges) - 1)
            del chunk, parts
        for span in ranges:
            chunk = kept or self._chunk(job, *span)
            self._best(job, chunk, state, m_max)
            del chunk
        self._finish(job, state, m_max)

    def _chunk(self, job: Job, start: int, stop: int) -> Chunk:
        raw, pairs = job.raw0, job.pairs
        if job.problems == 1:
            begin = pairs[0][0]
            stop = min(stop, pairs[0][1])
            raw, pairs = raw[begin + start : begin + stop], ((0, stop - start, *pairs[0][2:]),)
        rows = self._prepare(raw, pairs, job.rows, side=0)
        table = problems(pairs, job.alternatives, len(raw), str(raw.device))
        return Chunk(rows, table, start, stop, cdiv(stop - start, self.config.block_n))

    def _prepare(self, raw: Tensor, pairs: Pairs, table: Terms, *, side: int) -> Tensor:
        from steerers.accel.matching import row_kernels

        out = torch.empty(table.groups, len(raw), table.width, dtype=self.footprint.dtype, device=raw.device)
        block_d = _power_of_two(raw.shape[1])
        block_n = min(PREPARED_AT_ONCE, max(1, 4096 // block_d))
        longest = max(pair[2 * side + 1] for pair in pairs)
        chunks = cdiv(table.groups * table.width, PREPARED_WIDTH)
        parts = cdiv(chunks, MOST_UNROLLED)
        row_kernels.prepare[(cdiv(longest, block_n), len(pairs), parts)](
            raw, raw.stride(0), raw.stride(1), out, table.index, table.weights,
            problems(pairs, 1, 0, str(raw.device)), self.results.stats, len(raw), raw.shape[1],
            SIDE=side, GROUPS=table.groups, WIDTH=table.width, TWO=table.two,
            DIM=block_d, BLOCK_N=block_n, BLOCK_K=PREPARED_WIDTH, CHUNKS=cdiv(chunks, parts), num_warps=4,
        )  # fmt: skip
        return out

    def _options(self) -> dict[str, int | str]:
        """What the kernels over tiles are compiled for."""
        plan, config = self.plan, self.config
        return {
            "MODE": plan.mode, "GROUPS": plan.groups, "EVEN": plan.even, "ODD": plan.odd,
            "BLOCK_N": config.block_n, "BLOCK_M": config.block_m, "BLOCK_K": config.block_k, "KEEP": config.keep,
            "PRECISION": "ieee", "SWIZZLE": config.swizzle,
            "num_warps": config.num_warps, "num_stages": config.num_stages,
        }  # fmt: skip

    def _sums(self, job: Job, chunk: Chunk, state: State, m_max: int) -> tuple[Tensor, Tensor]:
        from steerers.accel.matching import kernels

        n, tiles_m, device = chunk.stop - chunk.start, state.tile_best.shape[1], chunk.rows.device
        row_parts = torch.empty(tiles_m, job.problems * n, device=device)
        col_parts = torch.empty(chunk.tiles, job.problems * m_max, device=device)
        kernels.sums[(chunk.tiles * tiles_m, job.problems)](
            chunk.rows, job.cols, chunk.table, row_parts, col_parts,
            state.tile_best[chunk.start // self.config.block_n :], self.scale, chunk.rows.shape[1],
            n, m_max, chunk.tiles, tiles_m, job.problems, **self._options(),
        )  # fmt: skip
        return row_parts, col_parts

    def _logs(
        self, job: Job, chunk: Chunk, state: State, parts: tuple[Tensor, Tensor], col_sums: Tensor, m_max: int,
        *, first: bool, last: bool,
    ) -> None:  # fmt: skip
        from steerers.accel.matching import kernels

        n, block = chunk.stop - chunk.start, 64
        kernels.logs[(cdiv(max(n, m_max), block), job.problems, 2)](
            chunk.table, *parts, col_sums, state.row_logs[chunk.start :], state.col_logs,
            state.row_best[chunk.start :], state.col_best, n, m_max, job.problems,
            BLOCK_N=self.config.block_n, BLOCK_M=self.config.block_m, FIRST=first, LAST=last,
            TILES=32, BLOCK=block, num_warps=4,
        )  # fmt: skip

    def _best(self, job: Job, chunk: Chunk, state: State, m_max: int) -> None:
        from steerers.accel.matching import kernels

        threshold = self.task.options.threshold
        least = math.log2(threshold) - SLACK[self.task.options.precision] if threshold > 0 else -math.inf
        tiles_m = state.tile_best.shape[1]
        kernels.best[(chunk.tiles * tiles_m, job.problems)](
            chunk.rows, job.cols, chunk.table, state.row_logs[chunk.start :], state.col_logs,
            state.tile_best[chunk.start // self.config.block_n :], state.row_best[chunk.start :], state.col_best,
            self.scale, least, chunk.rows.shape[1], chunk.start,
            chunk.stop - chunk.start, m_max, chunk.tiles, tiles_m, **self._options(),
        )  # fmt: skip

    def _finish(self, job: Job, state: State, m_max: int) -> None:
        from steerers.accel.matching import row_kernels

        plan, results, rows, cols = self.plan, self.results, job.rows, self.plan.cols
        rotation = results.partner if results.rotation is None else results.rotation
        n_max, groups = results.probability.shape[1], _power_of_two(plan.groups)
        width = min(_power_of_two(max(plan.even, plan.odd)), max(16, FINISHED_AT_ONCE // groups))
        row_kernels.finish[(n_max, job.problems)](
            job.raw0, *job.raw0.stride(), job.raw1, *job.raw1.stride(),
            rows.index, rows.weights, cols.index, cols.weights,
            problems(job.pairs, job.alternatives, len(job.raw0), str(job.raw0.device)),
            state.row_logs, state.col_logs, state.row_best, state.col_best,
            results.probability, results.partner, rotation, results.stats,
            self.scale, self.task.options.threshold, job.first, n_max, m_max, len(job.raw0), job.raw0.shape[1],
            MODE=plan.mode, GROUPS=plan.groups, TABLES=rows.groups, EVEN=plan.even, ODD=plan.odd,
            ROTATIONS=len(plan.rotations), TWO0=rows.two, TWO1=cols.two,
            DIM=_power_of_two(job.raw0.shape[1]), BLOCK_G=groups, BLOCK_K=width, num_warps=1,
        )  # fmt: skip


def _power_of_two(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << (size - 1).bit_length()
