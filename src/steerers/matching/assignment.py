"""Dual softmax and mutual nearest neighbours over tiles: exact, in memory O(N + M + tile).

The match probability of the paper's equation (1) is ``log P_ij = 2 s_ij - r_i - c_j`` with the logarithmic row and
column sums ``r`` and ``c`` of ``exp s``, ``s`` being the inverse temperature times the cosine. One pass over tiles
accumulates the sums; cosines are bounded, so at ordinary temperatures no running maximum is needed and one exponential
serves rows and columns.

The second pass looks for the largest P of each row and column. Only pairs above the threshold can match, and what
beats a match has a larger P still, so it is enough to visit what can exceed the threshold: the first pass keeps, for
each row, the best score within each range of columns, and the second computes only the rows that can reach it there.

Older protocols take mutual nearest neighbours of the cosines themselves, with the ratio test of SIFT: that is
:func:`mutual_nearest`, one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from steerers._parallel import spread_on
from steerers.matching.similarity import Similarity, first_largest, float_type

Kernels = Literal["auto", "tiled", "fused"]
"""What computes: the fused kernels of :mod:`steerers.accel.matching` where they can, the tiles of this module, or the
fused kernels or an error."""
Precision = Literal["default", "exact"]
"""Of the fused kernels: products of float16, added up in float32, or all in float32. Tiles have float32, or float64 for
descriptions of that type; for those, ``exact`` is tiled."""

TILE = {"cpu": 512}
TILE_ELSEWHERE = 4096
TILE_ELEMENTS = {"cpu": 1 << 21}
TILE_ELEMENTS_ELSEWHERE = 1 << 26
SLACK = 1e-3
"""How far a bound may be off in log P through rounding: generous, since it only costs visits."""
SAFE_EXPONENT = 60.0
"""Inverse temperatures up to this need no shift: the exponential of it, summed, is far from overflow in float32."""
LANES = 8
"""Into so many parts rows are dealt on a CPU, which threads take as they are free. The column sums of all parts are
added up in their order, so that the number of threads changes no result."""
MOST_BOUNDS = 1 << 23
"""Most numbers that are kept to bound the second pass; with more tiles than that allows, several share one."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """Matches between two sets of descriptions, the best first.

    ``angle`` and ``angles`` are radians: the rotation of the first set that aligns it with the second, for the pair and
    for every match, where the strategy has them.
    """

    indices: Tensor  # (K, 2) int64
    scores: Tensor  # (K,) float32 probability
    angle: float | None = None
    angles: Tensor | None = None  # (K,) float64

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How matches are assigned: by dual softmax and mutual nearest neighbours.

    A pair matches if its probability is the largest of its row and of its column and above the threshold. Of equal ones
    the first counts.

    Attributes:
        inverse_temperature: of the dual softmax.
        threshold: least match probability.
        mutual: whether a match must be the most probable of its row and of its column. Without, all pairs above the
            threshold are found, several of one keypoint among them, for something else to choose from.
        tile: most rows and columns that are compared at once; by default chosen for the device. It does not change the
            result.
        kernels: see :data:`Kernels`.
        precision: see :data:`Precision`.
        graphs: on a GPU, pairs of the same sizes are matched by replaying a recording, which is faster for up to some
            thousand keypoints, and keeps some memory between calls.
    """

    inverse_temperature: float = 20.0
    threshold: float = 0.01
    mutual: bool = True
    tile: int | None = None
    kernels: Kernels = "auto"
    precision: Precision = "default"
    graphs: bool = True

    def __post_init__(self) -> None:
        if not (self.inverse_temperature > 0 and math.isfinite(self.inverse_temperature)):
            raise ValueError(f"inverse_temperature must be positive and finite, got {self.inverse_temperature}")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")
        if not self.mutual and self.threshold == 0:
            raise ValueError("mutual=False needs a threshold above 0: without either, all pairs match")
        if self.tile is not None and self.tile < 1:
            raise ValueError(f"tile must be at least 1, got {self.tile}")
        for name, known in (("kernels", get_args(Kernels)), ("precision", get_args(Precision))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")


# Dual softmax ---------------------------------------------------------------------------------------------------------


class Solution(Protocol):
    """The matches of several pairs of images, each by a similarity; found when they are asked for."""

    def assignments(self) -> list[list[Assignment]]:
        """For every pair, the assignment of each alternative of its similarity."""

    def best(self) -> list[tuple[int, Assignment]]:
        """For every pair, the number of the alternative with the most matches, and its assignment."""

    def counts(self) -> list[tuple[int, int]]:
        """For every pair, the number of the alternative with the most matches, and how many they are."""


@dataclass(frozen=True, eq=False)
class Tiled:
    """The :class:`Solution` that is computed tile by tile, on any device."""

    similarities: Sequence[Similarity]
    options: Options

    @torch.no_grad()
    def assignments(self) -> list[list[Assignment]]:
        return [_assign(similarity, self.options) for similarity in self.similarities]

    def best(self) -> list[tuple[int, Assignment]]:
        found = self.assignments()
        numbers = map(number_of_most_matches, found)
        return [(number, alternatives[number]) for number, alternatives in zip(numbers, found, strict=True)]

    def counts(self) -> list[tuple[int, int]]:
        return [(number, len(assignment)) for number, assignment in self.best()]


def number_of_most_matches(found: Sequence[Assignment]) -> int:
    """Which assignment has the most matches; of several with as many, the one whose probabilities add up to more."""
    return max(range(len(found)), key=lambda k: (len(found[k]), float(found[k].scores.sum())))


def most_similar(similarity: Similarity) -> int:
    """The number of the alternative with the largest cosine, of one description in each image; of equal ones the first.

    Probabilities cannot choose there: each alternative has one match, of probability 1 up to rounding.
    """
    only = torch.zeros(1, dtype=torch.long, device=similarity.device)
    cosines = [similarity.alternative(k).pairs(only, only) for k in range(similarity.alternatives)]
    return int(first_largest(torch.stack(cosines, dim=1), 8 * torch.finfo(float_type(similarity.descriptions0)).eps))


def _assign(similarity: Similarity, options: Options) -> list[Assignment]:
    """For each alternative."""
    if similarity.device.type == "cuda":
        similarity.check()
    if 0 in similarity.shape:
        return [empty(similarity.device) for _ in range(similarity.alternatives)]
    scale = options.inverse_temperature
    sums = _Sums(similarity, scale, options.tile)

    choose = _most_probable if options.mutual else _all_probable

    def chosen(k: int) -> Assignment:
        return choose(similarity.alternative(k), sums, k, scale, options.threshold)

    return spread_on(similarity.device, chosen, range(similarity.alternatives))


def empty(device: torch.device) -> Assignment:
    """No match at all."""
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
        self.group = math.ceil(len(self.col_ranges) * alternatives * n / MOST_BOUNDS)  # ranges that share a bound
        self.safe = scale <= SAFE_EXPONENT
        start = 0.0 if self.safe else -math.inf
        self.rows = torch.full((alternatives, n), start, dtype=torch.float64, device=device)
        groups = math.ceil(len(self.col_ranges) / self.group)
        self.best = torch.full((alternatives, groups, n), -math.inf, device=device)
        self.lanes = LANES if device.type == "cpu" else 1
        ranges = _ranges(n, self.num_rows)
        if device.type == "cpu":
            similarity.block(slice(0, 1))(slice(0, 1))  # makes what is made once, before threads share it
        lanes = [ranges[k :: self.lanes] for k in range(min(self.lanes, len(ranges)))]
        parts = spread_on(device, lambda lane: self._add_up(similarity, scale, lane), lanes)
        cols = parts[0]
        for part in parts[1:]:
            cols = cols.add_(part) if self.safe else torch.logaddexp(cols, part)
        if self.safe:
            self.rows.log_()
            cols.log_()
        self.cols = cols  # (alternatives, M), as self.rows is (alternatives, N)

    def _add_up(self, similarity: Similarity, scale: float, row_ranges: Sequence[slice]) -> Tensor:
        """Fill in what concerns some rows; the (alternatives, M) sums of the columns over those rows, not yet as
        logarithms where that is safe."""
        m, alternatives = similarity.shape[1], similarity.alternatives
        start = 0.0 if self.safe else -math.inf
        rows, cols = self.rows, torch.full((alternatives, m), start, dtype=torch.float64, device=similarity.device)
        for row_range in row_ranges:
            scores = similarity.block(row_range, scale)
            for index, col_range in enumerate(self.col_ranges):
                tile_scores = scores(col_range)  # (alternatives, r, c)
                best = self.best[:, index // self.group, row_range]
                torch.maximum(best, tile_scores.amax(dim=2).to(best), out=best)
                if self.safe:
                    tile_scores.exp_()
                    rows[:, row_range] += tile_scores.sum(dim=2)
                    cols[:, col_range] += tile_scores.sum(dim=1)
                else:
                    rows[:, row_range] = torch.logaddexp(rows[:, row_range], tile_scores.logsumexp(dim=2).double())
                    cols[:, col_range] = torch.logaddexp(cols[:, col_range], tile_scores.logsumexp(dim=1).double())
        return cols


def _most_probable(similarity: Similarity, sums: _Sums, k: int, scale: float, threshold: float) -> Assignment:
    """The second pass for one alternative: mutual maxima of log P among the pairs that can exceed the threshold."""
    device, rows, cols = similarity.device, sums.rows[k], sums.cols[k]
    least = math.log(threshold) if threshold > 0 else -math.inf
    parts = spread_on(device, lambda lane: _best_of(similarity, sums, k, scale, least, lane), _lanes(sums))
    row_best, col_best = parts[0]
    for more_rows, more_cols in parts[1:]:
        row_best.merge(more_rows)
        col_best.merge(more_cols)
    i = torch.arange(similarity.shape[0], device=device)
    mutual = (row_best.arg >= 0) & (col_best.arg[row_best.arg] == i)
    i, j = i[mutual], row_best.arg[mutual]
    if not len(i):
        return empty(device)
    probability = torch.exp(2 * scale * similarity.pairs(i, j) - rows[i] - cols[j])
    order = probability.argsort(descending=True, stable=True)
    order = order[probability[order] > threshold]
    return Assignment(torch.stack([i[order], j[order]], dim=1), probability[order].clamp(max=1.0).float())


def _all_probable(similarity: Similarity, sums: _Sums, k: int, scale: float, threshold: float) -> Assignment:
    """The second pass for one alternative: all pairs above the threshold, the best first."""
    least = math.log(threshold)

    def found(lane: Iterable[int]) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for rows, columns, log_p in _visited(similarity, sums, k, scale, least, lane):
            i, j = (log_p > least).nonzero(as_tuple=True)
            pairs.append((torch.stack([rows[i], columns[j]], dim=1), log_p[i, j]))
        return pairs

    parts = [part for pairs in spread_on(similarity.device, found, _lanes(sums)) for part in pairs]
    if not parts:
        return empty(similarity.device)
    indices, log_p = torch.cat([pairs for pairs, _ in parts]), torch.cat([values for _, values in parts])
    order = log_p.argsort(descending=True, stable=True)
    return Assignment(indices[order], log_p[order].exp().clamp(max=1.0).float())


def _lanes(sums: _Sums) -> list[range]:
    """The ranges of columns, as parts that threads take."""
    ranges = range(len(sums.col_ranges))
    return [ranges[part] for part in _ranges(len(ranges), math.ceil(len(ranges) / sums.lanes))]


def _best_of(
    similarity: Similarity, sums: _Sums, k: int, scale: float, least: float, lane: Iterable[int]
) -> tuple[_Best, _Best]:
    """The largest log P of each row and of each column within some ranges of columns, where it can be ``least``."""
    (n, m), device = similarity.shape, similarity.device
    tie = 8 * torch.finfo(float_type(similarity.descriptions0)).eps * scale + 1e-6
    row_best, col_best = _Best(n, device, tie), _Best(m, device, tie)
    for rows, columns, log_p in _visited(similarity, sums, k, scale, least, lane):
        row_best.update(rows, log_p, columns)
        col_best.update(columns, log_p.mT, rows)
    return row_best, col_best


def _visited(
    similarity: Similarity, sums: _Sums, k: int, scale: float, least: float, lane: Iterable[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(r,) rows, (c,) columns and their (r, c) log P within some ranges of columns: all where it can be ``least``."""
    device, rows, cols = similarity.device, sums.rows[k], sums.cols[k]
    for index in lane:
        col_range = sums.col_ranges[index]
        reachable = 2 * sums.best[k, index // sums.group] - rows - cols[col_range].min() >= least - SLACK
        columns = torch.arange(col_range.start, col_range.stop, device=device)
        for visited in reachable.nonzero()[:, 0].split(sums.num_rows) if reachable.any() else ():
            scores = similarity.block(visited, scale)(col_range)[0]  # (r, c)
            log_p = scores.double().mul_(2).sub_(rows[visited, None]).sub_(cols[col_range])
            yield visited, columns, log_p


class _Best:
    """The largest log P of each row (or column) so far, and where it is.

    Values that differ by no more than rounding are equal, and of equal ones the first counts: equal descriptions stand
    at different places of a product, which may change their last bits.
    """

    def __init__(self, length: int, device: torch.device, tie: float) -> None:
        self.value = torch.full((length,), -math.inf, dtype=torch.float64, device=device)
        self.arg = torch.full((length,), -1, device=device)
        self.tie = tie

    def update(self, index: Tensor, log_p: Tensor, candidates: Tensor) -> None:
        """Take into account the (a, b) values of rows ``index`` (a,) at ``candidates`` (b,), which ascend."""
        value = log_p.amax(dim=1)
        nobody = torch.iinfo(candidates.dtype).max
        first = torch.where(log_p >= value[:, None] - self.tie, candidates, nobody).amin(dim=1)
        better = value > self.value[index] + self.tie
        self.value[index] = torch.where(better, value, self.value[index])
        self.arg[index] = torch.where(better, first, self.arg[index])

    def merge(self, later: _Best) -> None:
        """Take into account what was found at other candidates, all of which come after those of this one."""
        better = later.value > self.value + self.tie
        self.value = torch.where(better, later.value, self.value)
        self.arg = torch.where(better, later.arg, self.arg)


# Nearest neighbours ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def mutual_nearest(
    similarity: Similarity, *, threshold: float = -1.0, ratio: float | None = None, tile: int | None = None
) -> Assignment:
    """Pairs each of whose descriptions is the most similar one to the other; scores are cosines mapped to [0, 1].

    Of equal ones the first counts.

    Args:
        similarity: with one alternative, such as :class:`~steerers.matching.similarity.Cosine`.
        threshold: least cosine.
        ratio: keep a match only if its distance, that of unit vectors, is below ``ratio`` times the distance from the
            description of image 0 to its second nearest in image 1. A single candidate has no second and passes.
        tile: most rows and columns that are compared at once.
    """
    (n, m), device = similarity.shape, similarity.device
    if device.type == "cuda":
        similarity.check()
    if not n or not m:
        return empty(device)
    rows, cols, second = _search(similarity, tile or TILE.get(device.type, TILE_ELSEWHERE), second=ratio is not None)
    i = torch.arange(n, device=device)
    i = i[cols[rows] == i]
    cosines = similarity.pairs(i, rows[i]).clamp(-1, 1)
    kept = cosines >= threshold
    if ratio is not None and m > 1:
        others = similarity.pairs(i, second[i]).clamp(-1, 1)
        kept &= 1 - cosines < ratio**2 * (1 - others)  # half the squared distances
    i, scores = i[kept], (1 + cosines[kept]) / 2
    order = scores.argsort(descending=True, stable=True)
    return Assignment(torch.stack([i, rows[i]], dim=1)[order], scores[order].float())


def _search(similarity: Similarity, tile: int, *, second: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest column of each row, (N,), the nearest row of each column, (M,), and each row's second nearest."""
    (n, m), device = similarity.shape, similarity.device
    tie = 8 * torch.finfo(float_type(similarity.descriptions0)).eps
    row_best, col_best = _Best(n, device, tie), _Best(m, device, tie)
    values = torch.full((n, 2), -math.inf, device=device, dtype=torch.float64)  # the two best of each row so far
    indices = torch.zeros(n, 2, dtype=torch.long, device=device)
    for rows in torch.arange(n, device=device).split(tile):
        block = similarity.block(rows)
        for index, cols in enumerate(torch.arange(m, device=device).split(tile)):
            tile_scores = block(slice(index * tile, index * tile + len(cols)))[0]  # (r, c)
            scores = tile_scores.double()
            row_best.update(rows, scores, cols)
            col_best.update(cols, scores.mT, rows)
            if second:
                best = scores.topk(min(2, len(cols)), dim=1)
                together = torch.cat([values[rows], best.values], dim=1)
                values[rows], chosen = together.topk(2, dim=1)
                indices[rows] = torch.cat([indices[rows], cols[best.indices]], dim=1).gather(1, chosen)
    runner_up = torch.where(indices[:, 0] == row_best.arg, indices[:, 1], indices[:, 0])
    return row_best.arg, col_best.arg, runner_up
