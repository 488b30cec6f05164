"""The fused kernels for single rows, in Triton: descriptions before the tiles (:mod:`.kernels`), matches after them.

Importing this needs Triton.
"""

import triton
import triton.language as tl

from steerers.accel.common_kernels import index_of, rank, value_of
from steerers.accel.matching.kernels import NOBODY

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
def _length(base, stride, dim, DIM: tl.constexpr):
    """:func:`_lengths` of a single description, as numbers."""
    largest, rest, bad = _lengths(base + tl.arange(0, 1), stride, tl.full((1,), True, tl.int1), dim, DIM)
    return tl.sum(largest, axis=0), tl.sum(rest, axis=0), tl.sum(bad, axis=0)


@triton.jit
def _coordinates(base, stride, largest, rest, mask, index, weight, inside, step, TWO: tl.constexpr):
    """Compared coordinates: two terms of unit descriptions; zero where ``mask`` or ``inside``, that of the tables, is
    not true. Descriptions and tables come as blocks that are broadcast together."""
    place = tl.load(index, mask=inside, other=0)
    first = tl.load(base + place * stride, mask=mask, other=0.0).to(largest.dtype)
    value = (first / largest).to(tl.float32) * tl.load(weight, mask=inside, other=0.0)
    if TWO:
        place = tl.load(index + step, mask=inside, other=0)
        second = tl.load(base + place * stride, mask=mask, other=0.0).to(largest.dtype)
        value += (second / largest).to(tl.float32) * tl.load(weight + step, mask=inside, other=0.0)
    return value / rest


@triton.jit(do_not_specialize=["num_rows"])
def prepare(
    raw, stride_n, stride_d, out, index, weight, table, stats, num_rows, dim,
    SIDE: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TWO: tl.constexpr,
    DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Unit descriptions in the coordinates of the plan: (G, rows, K) in the type of ``out``; some of all G K.

    The first two of ``stats`` say whether some description of either side is not finite.
    """
    p = tl.program_id(1)
    start = tl.load(table + 4 * p + 2 * SIDE).to(tl.int64)
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = i < tl.load(table + 4 * p + 2 * SIDE + 1)
    base = raw + (start + i) * stride_n
    largest, rest, bad = _lengths(base, stride_d, valid, dim, DIM)
    if tl.max(bad, axis=0) > 0:
        tl.atomic_max(stats + SIDE, 1)
    for chunk in tl.static_range(CHUNKS):  # unrolled, so that they wait for memory together
        k = (tl.program_id(2) * CHUNKS + chunk) * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (k < GROUPS * WIDTH)[None, :]
        mask = valid[:, None] & inside
        value = _coordinates(
            base[:, None], stride_d, largest[:, None], rest[:, None], mask, index + k[None, :], weight + k[None, :],
            inside, GROUPS * WIDTH, TWO,
        )  # fmt: skip
        group, coordinate = k // WIDTH, k % WIDTH
        target = (group.to(tl.int64) * num_rows + start) * WIDTH + coordinate
        tl.store(out + target[None, :] + i[:, None].to(tl.int64) * WIDTH, value.to(out.dtype.element_ty), mask=mask)


# Matches --------------------------------------------------------------------------------------------------------------


@triton.jit
def _pair_products(
    base0, stride0, largest0, rest0, base1, stride1, largest1, rest1,
    index0, weight0, step0, index1, weight1, step1, WIDTH: tl.constexpr, STOP: tl.constexpr, GROUPS: tl.constexpr,
    TWO0: tl.constexpr, TWO1: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(BLOCK_G,) products of one pair of descriptions over ``STOP`` of the compared coordinates, for every group."""
    g = tl.arange(0, BLOCK_G)[:, None]
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    for start in range(0, STOP, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K))[None, :]
        inside = (g < GROUPS) & (k < STOP)
        at = g * WIDTH + k
        row = _coordinates(
            base0, stride0, largest0, rest0, inside, index0 + at, weight0 + at, inside, step0, TWO0
        )  # fmt: skip
        col = _coordinates(
            base1, stride1, largest1, rest1, k < STOP, index1 + k, weight1 + k, k < STOP, step1, TWO1
        )  # fmt: skip
        total += tl.sum(row * col, axis=1)
    return total


@triton.jit
def _pair_score(
    base0, stride0, base1, stride1, index0, weight0, index1, weight1, dim,
    MODE: tl.constexpr, GROUPS: tl.constexpr, TABLES: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    TWO0: tl.constexpr, TWO1: tl.constexpr, DIM: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The cosine of one pair from the descriptions themselves, its rotation, and its even and odd product there."""
    largest0, rest0, _ = _length(base0, stride0, dim, DIM)
    largest1, rest1, _ = _length(base1, stride1, dim, DIM)
    step0: tl.constexpr = TABLES * (EVEN + ODD)
    step1: tl.constexpr = 2 * EVEN if MODE == "modulus" else EVEN + ODD
    odd_start: tl.constexpr = 0 if MODE == "modulus" else EVEN  # of the rows; the quadrature is one of columns
    odd_stop: tl.constexpr = EVEN if MODE == "modulus" else ODD
    g = tl.arange(0, BLOCK_G)
    even = _pair_products(
        base0, stride0, largest0, rest0, base1, stride1, largest1, rest1, index0, weight0, step0,
        index1, weight1, step1, EVEN + ODD, EVEN, GROUPS, TWO0, TWO1, BLOCK_G, BLOCK_K,
    )  # fmt: skip
    odd = tl.zeros((BLOCK_G,), dtype=tl.float32)
    value = even
    if MODE != "maximum":
        odd = _pair_products(
            base0, stride0, largest0, rest0, base1, stride1, largest1, rest1, index0 + odd_start, weight0 + odd_start,
            step0, index1 + EVEN, weight1 + EVEN, step1, EVEN + ODD, odd_stop, GROUPS, TWO0, TWO1, BLOCK_G, BLOCK_K,
        )  # fmt: skip
    if MODE == "modulus":
        value = tl.sqrt(even * even + odd * odd)
    if MODE == "paired":
        value += tl.abs(odd)
    value = tl.where(g < GROUPS, value, -2.0)
    score = tl.max(value, axis=0)
    first = tl.min(tl.where(value == score, g, GROUPS - 1), axis=0)
    even, odd = tl.sum(tl.where(g == first, even, 0.0), axis=0), tl.sum(tl.where(g == first, odd, 0.0), axis=0)
    return score, tl.where(odd >= 0, first, first + GROUPS), even, odd


@triton.jit
def _replaced(log, rounded, term):
    """The logarithm of a sum in which one term is put into the place of another."""
    return tl.log2(tl.maximum(tl.exp2(log) - rounded, 0.0) + term)


@triton.jit(do_not_specialize=["first", "n_max", "m_max", "num_rows"])
def finish(
    raw0, stride0_n, stride0_d, raw1, stride1_n, stride1_d, index0, weight0, index1, weight1, table,
    row_logs, col_logs, row_best, col_best, probability, partner, rotation, stats,
    scale, threshold, first, n_max, m_max, num_rows, dim,
    MODE: tl.constexpr, GROUPS: tl.constexpr, TABLES: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    ROTATIONS: tl.constexpr, TWO0: tl.constexpr, TWO1: tl.constexpr,
    DIM: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One row: if its maximum is mutual, the score once more, in float32 from the descriptions themselves.

    ``stats`` holds two flags and then, for each problem, the number of matches, the sum of their probabilities, and the
    same for each rotation; ``rotation`` the number of the rotation, or for ``modulus`` the complex product. What is
    found of problem p is put at ``first + p``.
    """
    i, p = tl.program_id(0), tl.program_id(1)
    alternative = p % (TABLES // GROUPS)
    row_start, n = tl.load(table + 4 * p) - alternative * num_rows, tl.load(table + 4 * p + 1)
    col_start = tl.load(table + 4 * p + 2)
    row_at, col_at = p.to(tl.int64) * n_max + i, p.to(tl.int64) * m_max
    key = tl.load(row_best + row_at, mask=i < n, other=NOBODY)
    found = key != NOBODY
    j = tl.where(found, index_of(key), 0)
    mutual = index_of(tl.load(col_best + col_at + j, mask=found, other=NOBODY)) == i
    out_at = (first + p).to(tl.int64) * n_max + i
    if found & mutual:
        table_at = alternative * GROUPS * (EVEN + ODD)
        cosine, which, even, odd = _pair_score(
            raw0 + (row_start + i).to(tl.int64) * stride0_n, stride0_d, raw1 + (col_start + j) * stride1_n, stride1_d,
            index0 + table_at, weight0 + table_at, index1, weight1, dim,
            MODE, GROUPS, TABLES, EVEN, ODD, TWO0, TWO1, DIM, BLOCK_G, BLOCK_K,
        )  # fmt: skip
        score = cosine * scale
        row_log, col_log = tl.load(row_logs + row_at), tl.load(col_logs + col_at + j)
        # The sums hold this pair's term from the tile, rounded: the better one takes its place.
        rounded, term = tl.exp2((value_of(key) + row_log + col_log) * 0.5), tl.exp2(score)
        row_log, col_log = _replaced(row_log, rounded, term), _replaced(col_log, rounded, term)
        value = tl.minimum(tl.exp2(2 * score - row_log - col_log), 1.0)
        tl.store(probability + out_at, tl.where(value > threshold, value, -1.0))
        tl.store(partner + out_at, j)
        if MODE == "modulus":
            tl.store(rotation + 2 * out_at, even)
            tl.store(rotation + 2 * out_at + 1, odd)
        if ROTATIONS > 0:
            tl.store(rotation + out_at, which)
        if value > threshold:
            mine = stats + 2 + (first + p) * (2 + ROTATIONS)
            fixed = (value * FIXED).to(tl.int64)
            tl.atomic_add(mine, 1)
            tl.atomic_add(mine + 1, fixed)
            if ROTATIONS > 0:
                tl.atomic_add(mine + 2 + which, fixed)
    else:
        tl.store(probability + out_at, -1.0)
        tl.store(partner + out_at, 0)


@triton.jit(do_not_specialize=["first", "n_max"])
def arrange(
    probability, partner, rotation, rotation_angles, indices, scores, angles, first, n_max,
    ROTATION: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The rows of problems from ``first``, the largest probability first and of equal ones the lower row.

    ``ROTATION`` says what ``rotation`` holds: "none", the "number" of one of ``rotation_angles``, or a complex
    "product", which is put into ``angles`` as it is.
    """
    p = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < n_max
    start = (first + p).to(tl.int64) * n_max
    value = tl.load(probability + start + i, mask=valid, other=-2.0)
    at = p.to(tl.int64) * n_max + rank(probability + start, n_max, value, i, BLOCK, STEP)
    tl.store(scores + at, value, mask=valid)
    tl.store(indices + 2 * at, i.to(tl.int64), mask=valid)
    tl.store(indices + 2 * at + 1, tl.load(partner + start + i, mask=valid, other=0), mask=valid)
    found = valid & (value >= 0)
    if ROTATION == "number":
        number = tl.load(rotation + start + i, mask=found, other=0)
        tl.store(angles + at, tl.load(rotation_angles + number), mask=valid)
    if ROTATION == "product":
        tl.store(angles + 2 * at, tl.load(rotation + 2 * (start + i), mask=found, other=0.0), mask=valid)
        tl.store(angles + 2 * at + 1, tl.load(rotation + 2 * (start + i) + 1, mask=found, other=0.0), mask=valid)
