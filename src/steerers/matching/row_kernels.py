"""The fused kernels for single rows, in Triton: descriptions before the tiles (:mod:`.kernels`), matches after them.

Importing this needs Triton.
"""

import triton
import triton.language as tl

from steerers.matching.kernels import NOBODY, _index_of, _key, _value_of

FIXED = tl.constexpr(1 << 32)
"""Probabilities are added up as whole multiples of its inverse: such sums do not depend on their order."""


# Descriptions ---------------------------------------------------------------------------------------------------------


@triton.jit
def _lengths(base, stride, valid, dim, DIM: tl.constexpr):
    """Largest absolute coordinate of some descriptions, what the rest of their length is divided by, and whether one
    of their coordinates is not finite. In two factors, so that no square leaves the range of float32."""
    k = tl.arange(0, DIM)
    x = tl.load(base[:, None] + k[None, :] * stride, mask=valid[:, None] & (k[None, :] < dim), other=0.0)
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    bad = tl.max(tl.where(x - x == 0.0, 0, 1), axis=1)
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-20)
    x = (x / largest[:, None]).to(tl.float32)
    rest = tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), 1e-12 / largest.to(tl.float32))
    return largest, rest, bad


@triton.jit
def _coordinates(base, stride, largest, rest, mask, index, weight, step, TWO: tl.constexpr):
    """(rows, K) compared coordinates: two terms of the unit descriptions."""
    first = tl.load(base[:, None] + tl.load(index)[None, :] * stride, mask=mask, other=0.0).to(largest.dtype)
    value = (first / largest[:, None]).to(tl.float32) * tl.load(weight)[None, :]
    if TWO:
        second = tl.load(base[:, None] + tl.load(index + step)[None, :] * stride, mask=mask, other=0.0)
        value += (second.to(largest.dtype) / largest[:, None]).to(tl.float32) * tl.load(weight + step)[None, :]
    return value / rest[:, None]


@triton.jit(do_not_specialize=["num_rows"])
def prepare(
    raw, stride_n, stride_d, out, index, weight, table, stats, num_rows, dim,
    SIDE: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TWO: tl.constexpr,
    DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Unit descriptions in the coordinates of the plan: (G, rows, K) in the type of ``out``.

    The first two of ``stats`` say whether some description of either side is not finite.
    """
    p, g = tl.program_id(1), tl.program_id(2)
    start = tl.load(table + 4 * p + 2 * SIDE).to(tl.int64)
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = i < tl.load(table + 4 * p + 2 * SIDE + 1)
    base = raw + (start + i) * stride_n
    largest, rest, bad = _lengths(base, stride_d, valid, dim, DIM)
    if tl.max(bad, axis=0) > 0:
        tl.atomic_max(stats + SIDE, 1)
    target = out + (g.to(tl.int64) * num_rows + start + i) * WIDTH
    for k0 in range(0, WIDTH, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        table_k = g * WIDTH + k
        value = _coordinates(
            base, stride_d, largest, rest, valid[:, None], index + table_k, weight + table_k, GROUPS * WIDTH, TWO
        )
        tl.store(target[:, None] + k[None, :], value.to(out.dtype.element_ty), mask=valid[:, None])


# Matches --------------------------------------------------------------------------------------------------------------


@triton.jit
def _pair_products(
    base0, stride0, largest0, rest0, base1, stride1, largest1, rest1, mask,
    index0, weight0, step0, index1, weight1, step1,
    STOP: tl.constexpr, TWO0: tl.constexpr, TWO1: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(BLOCK,) products of pairs of descriptions over ``STOP`` of the compared coordinates."""
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, STOP, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        row = _coordinates(base0, stride0, largest0, rest0, mask[:, None], index0 + k, weight0 + k, step0, TWO0)
        col = _coordinates(base1, stride1, largest1, rest1, mask[:, None], index1 + k, weight1 + k, step1, TWO1)
        total += tl.sum(row * col, axis=1)
    return total


@triton.jit
def _pair_scores(
    base0, stride0, base1, stride1, mask, index0, weight0, index1, weight1, dim,
    MODE: tl.constexpr, GROUPS: tl.constexpr, TABLES: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    TWO0: tl.constexpr, TWO1: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(BLOCK,) cosines of pairs from the descriptions themselves, at which turn, and the last even and odd product."""
    largest0, rest0, _ = _lengths(base0, stride0, mask, dim, DIM)
    largest1, rest1, _ = _lengths(base1, stride1, mask, dim, DIM)
    step0: tl.constexpr = TABLES * (EVEN + ODD)
    step1: tl.constexpr = 2 * EVEN if MODE == "modulus" else EVEN + ODD
    odd_start: tl.constexpr = 0 if MODE == "modulus" else EVEN  # of the rows; the quadrature is one of columns
    odd_stop: tl.constexpr = EVEN if MODE == "modulus" else ODD
    score = tl.full((BLOCK,), -2.0, dtype=tl.float32)
    which = tl.zeros((BLOCK,), dtype=tl.int32)
    even = tl.zeros((BLOCK,), dtype=tl.float32)
    odd = tl.zeros((BLOCK,), dtype=tl.float32)
    for g in range(GROUPS):
        at = g * (EVEN + ODD)
        even = _pair_products(
            base0, stride0, largest0, rest0, base1, stride1, largest1, rest1, mask,
            index0 + at, weight0 + at, step0, index1, weight1, step1, EVEN, TWO0, TWO1, BLOCK, BLOCK_K,
        )  # fmt: skip
        value = even
        if MODE != "maximum":
            at += odd_start
            odd = _pair_products(
                base0, stride0, largest0, rest0, base1, stride1, largest1, rest1, mask, index0 + at, weight0 + at,
                step0, index1 + EVEN, weight1 + EVEN, step1, odd_stop, TWO0, TWO1, BLOCK, BLOCK_K,
            )  # fmt: skip
        if MODE == "modulus":
            value = tl.sqrt(even * even + odd * odd)
        if MODE == "paired":
            value += tl.abs(odd)
        which = tl.where(value > score, tl.where(odd >= 0, g, g + GROUPS), which)
        score = tl.maximum(score, value)
    return score, which, even, odd


@triton.jit
def _replaced(log, rounded, term):
    """The logarithm of a sum in which one term is put into the place of another."""
    return tl.log2(tl.maximum(tl.exp2(log) - rounded, 0.0) + term)


@triton.jit(do_not_specialize=["first", "n_max", "m_max", "num_rows"])
def finish(
    raw0, stride0_n, stride0_d, raw1, stride1_n, stride1_d, index0, weight0, index1, weight1, table,
    row_logs, col_logs, row_best, col_best, probability, partner, turn, stats,
    scale, threshold, first, n_max, m_max, num_rows, dim,
    MODE: tl.constexpr, GROUPS: tl.constexpr, TABLES: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    TURNS: tl.constexpr, TWO0: tl.constexpr, TWO1: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Mutual maxima with their score once more, in float32 from the descriptions themselves.

    ``stats`` holds two flags and then, for each problem, the number of matches, the sum of their probabilities, and the
    same for each turn; ``turn`` the number of the turn, or for ``modulus`` the complex product. What is found of
    problem p is put at ``first + p``.
    """
    p = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alternative = p % (TABLES // GROUPS)
    row_start, n = tl.load(table + 4 * p) - alternative * num_rows, tl.load(table + 4 * p + 1)
    col_start = tl.load(table + 4 * p + 2)
    row_at, col_at = p.to(tl.int64) * n_max + i, p.to(tl.int64) * m_max
    key = tl.load(row_best + row_at, mask=i < n, other=NOBODY)
    found = key != NOBODY
    j = tl.where(found, _index_of(key), 0)
    found = found & (_index_of(tl.load(col_best + col_at + j, mask=found, other=NOBODY)) == i)
    table_at = alternative * GROUPS * (EVEN + ODD)
    cosine, which, even, odd = _pair_scores(
        raw0 + (row_start + i).to(tl.int64) * stride0_n, stride0_d, raw1 + (col_start + j) * stride1_n, stride1_d,
        found, index0 + table_at, weight0 + table_at, index1, weight1, dim,
        MODE, GROUPS, TABLES, EVEN, ODD, TWO0, TWO1, DIM, BLOCK, BLOCK_K,
    )  # fmt: skip
    score = cosine * scale
    row_log = tl.load(row_logs + row_at, mask=found, other=0.0)
    col_log = tl.load(col_logs + col_at + j, mask=found, other=0.0)
    # The sums hold this pair's term from the tile, rounded: the better one takes its place.
    rounded, term = tl.exp2((_value_of(key) + row_log + col_log) * 0.5), tl.exp2(score)
    row_log, col_log = _replaced(row_log, rounded, term), _replaced(col_log, rounded, term)
    value = tl.minimum(tl.exp2(2 * score - row_log - col_log), 1.0)
    found = found & (value > threshold)
    out_at = (first + p).to(tl.int64) * n_max + i
    tl.store(probability + out_at, tl.where(found, value, -1.0), mask=i < n_max)
    tl.store(partner + out_at, j, mask=i < n_max)
    mine = stats + 2 + (first + p) * (2 + TURNS)
    fixed = tl.where(found, (value * FIXED).to(tl.int64), 0)
    tl.atomic_add(mine, tl.sum(found.to(tl.int64), axis=0))
    tl.atomic_add(mine + 1, tl.sum(fixed, axis=0))
    if TURNS > 0:
        tl.store(turn + out_at, which, mask=i < n_max)
        tl.atomic_add(mine + 2 + which, fixed, mask=found)
    if MODE == "modulus":
        tl.store(turn + 2 * out_at, even, mask=i < n_max)
        tl.store(turn + 2 * out_at + 1, odd, mask=i < n_max)


@triton.jit(do_not_specialize=["first", "n_max"])
def arrange(
    probability, partner, turn, turn_angles, indices, scores, angles, first, n_max,
    TURN: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The rows of problems from ``first``, the largest probability first and of equal ones the lower row.

    Each row counts those before it, which for some thousand takes less time than the passes of a sort. ``TURN`` says
    what ``turn`` holds: "none", the "number" of one of ``turn_angles``, or a complex "product", which is put into
    ``angles`` as it is.
    """
    p = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < n_max
    start = (first + p).to(tl.int64) * n_max
    value = tl.load(probability + start + i, mask=valid, other=-2.0)
    key = _key(value, i)
    before = tl.zeros((BLOCK, STEP), dtype=tl.int32)
    for first_j in range(0, n_max, STEP):
        j = first_j + tl.arange(0, STEP)
        other = _key(tl.load(probability + start + j, mask=j < n_max, other=-2.0), j)
        before += (other[None, :] > key[:, None]).to(tl.int32)
    at = p.to(tl.int64) * n_max + tl.sum(before, axis=1)
    tl.store(scores + at, value, mask=valid)
    tl.store(indices + 2 * at, i.to(tl.int64), mask=valid)
    tl.store(indices + 2 * at + 1, tl.load(partner + start + i, mask=valid, other=0), mask=valid)
    found = valid & (value >= 0)
    if TURN == "number":
        number = tl.load(turn + start + i, mask=found, other=0)
        tl.store(angles + at, tl.load(turn_angles + number), mask=valid)
    if TURN == "product":
        tl.store(angles + 2 * at, tl.load(turn + 2 * (start + i), mask=found, other=0.0), mask=valid)
        tl.store(angles + 2 * at + 1, tl.load(turn + 2 * (start + i) + 1, mask=found, other=0.0), mask=valid)
