"""Dual softmax and mutual nearest neighbours over tiles: exact, in memory O(N + M + tile).

The match probability of the paper's equation (1) is ``log P_ij = 2 s_ij - r_i - c_j`` with the logarithmic row and
column sums ``r`` and ``c`` of ``exp s``, ``s`` being the inverse temperature times the cosine. One pass over tiles
accumulates the sums; cosines are bounded, so no running maximum is needed and one exponential serves rows and columns.

The second pass looks for the largest P of each row and column. Only pairs above the threshold can match, and what
beats a match has a larger P still, so it is enough to visit what can exceed the threshold: the first pass keeps, for
each row, the best score within each range of columns, and the second computes only the rows that can reach it there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steerers.matching.similarity import Similarity

TILE = {"cpu": 512}
TILE_ELSEWHERE = 4096
TILE_ELEMENTS = {"cpu": 1 << 21}
TILE_ELEMENTS_ELSEWHERE = 1 << 26
SLACK = 1e-3
"""How far a bound may be off in log P through rounding: generous, since it only costs visits."""
SAFE_EXPONENT = 60.0


@dataclass(frozen=True, eq=False)
class Assignment:
    """Matches between two sets of descriptions, the best first.

    ``angle`` and ``angles`` are radians: the turn of the first set that aligns it with the second, for the pair and for
    every match, where the strategy has them.
    """

    indices: Tensor  # (K, 2) int64
    scores: Tensor  # (K,) float32 probability
    angle: float | None = None
    angles: Tensor | None = None  # (K,) float64

    def __len__(self) -> int:
        return len(self.scores)


@torch.no_grad()
def assign(
    similarity: Similarity, *, inverse_temperature: float = 20.0, threshold: float = 0.01, tile: int | None = None
) -> list[Assignment]:
    """Match by dual softmax and mutual nearest neighbours, for each alternative of the similarity.

    A pair matches if its probability is the largest of its row and of its column and above ``threshold``. Of equal ones
    the first counts.

    Args:
        tile: most rows and columns that are compared at once; by default chosen for the device. It does not change the
            result.
    """
    if inverse_temperature <= 0:
        raise ValueError(f"inverse_temperature must be positive, got {inverse_temperature}")
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be in [0, 1), got {threshold}")
    if tile is not None and tile < 1:
        raise ValueError(f"tile must be at least 1, got {tile}")
    if 0 in similarity.shape:
        return [_empty(similarity.device) for _ in range(similarity.alternatives)]
    sums = _Sums(similarity, inverse_temperature, tile)
    return [
        _mutual_nearest(similarity.alternative(k), sums, k, inverse_temperature, threshold)
        for k in range(similarity.alternatives)
    ]


def _empty(device: torch.device) -> Assignment:
    return Assignment(torch.zeros(0, 2, dtype=torch.long, device=device), torch.zeros(0, device=device))


def _ranges(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class _Sums:
    """The first pass: logarithmic row and column sums, and the best score of each row within each column range."""

    def __init__(self, similarity: Similarity, scale: float, tile: int | None) -> None:
        (n, m), alternatives, device = similarity.shape, similarity.alternatives, similarity.device
        tile = tile or TILE.get(device.type, TILE_ELSEWHERE)
        elements = TILE_ELEMENTS.get(device.type, TILE_ELEMENTS_ELSEWHERE)
        self.col_ranges = _ranges(m, tile)
        self.num_rows = max(1, min(tile, elements // (similarity.layers * min(tile, m))))
        rows = torch.zeros(alternatives, n, dtype=torch.float64, device=device)
        cols = torch.zeros(alternatives, m, dtype=torch.float64, device=device)
        self.best = torch.empty(alternatives, len(self.col_ranges), n, device=device)
        shift = scale if scale > SAFE_EXPONENT else 0.0
        for row_range in _ranges(n, self.num_rows):
            scores = similarity.block(row_range, scale)
            for index, col_range in enumerate(self.col_ranges):
                tile_scores = scores(col_range)  # (alternatives, r, c)
                self.best[:, index, row_range] = tile_scores.amax(dim=2)
                if shift:
                    tile_scores -= shift
                tile_scores.exp_()
                rows[:, row_range] += tile_scores.sum(dim=2)
                cols[:, col_range] += tile_scores.sum(dim=1)
        self.rows = rows.log_() + shift  # (alternatives, N)
        self.cols = cols.log_() + shift  # (alternatives, M)


def _mutual_nearest(similarity: Similarity, sums: _Sums, k: int, scale: float, threshold: float) -> Assignment:
    """The second pass for one alternative: mutual maxima of log P among the pairs that can exceed the threshold."""
    n, m = similarity.shape
    device, rows, cols = similarity.device, sums.rows[k], sums.cols[k]
    least = math.log(threshold) if threshold > 0 else -math.inf
    row_best = torch.full((n,), -math.inf, device=device, dtype=torch.float64)
    row_arg = torch.full((n,), -1, device=device)
    col_best = torch.full((m,), -math.inf, device=device, dtype=torch.float64)
    col_arg = torch.full((m,), -1, device=device)
    for index, col_range in enumerate(sums.col_ranges):
        reachable = 2 * sums.best[k, index] - rows - cols[col_range].min() >= least - SLACK
        for visited in reachable.nonzero()[:, 0].split(sums.num_rows) if reachable.any() else ():
            scores = similarity.block(visited, scale)(col_range)[0].double()  # (r, c)
            log_p = scores.mul_(2).sub_(rows[visited, None]).sub_(cols[col_range])
            _update(row_best, row_arg, visited, *log_p.max(dim=1), offset=col_range.start)
            value, arg = log_p.max(dim=0)
            _update(
                col_best, col_arg, torch.arange(col_range.start, col_range.stop, device=device), value, visited[arg]
            )
    i = torch.arange(n, device=device)
    mutual = (row_arg >= 0) & (col_arg[row_arg] == i)
    i, j = i[mutual], row_arg[mutual]
    if not len(i):
        return _empty(device)
    probability = torch.exp(2 * scale * similarity.pairs(i, j) - rows[i] - cols[j])
    order = probability.argsort(descending=True, stable=True)
    order = order[probability[order] > threshold]
    return Assignment(torch.stack([i[order], j[order]], dim=1), probability[order].clamp(max=1.0).float())


def _update(best: Tensor, arg: Tensor, index: Tensor, value: Tensor, candidate: Tensor, offset: int = 0) -> None:
    """Where ``value`` beats ``best[index]``, put it there, and ``candidate + offset`` into ``arg``."""
    better = value > best[index]
    best[index] = torch.where(better, value, best[index])
    arg[index] = torch.where(better, candidate + offset, arg[index])
