"""The fused kernels over tiles of scores, in Triton; those for single rows are in :mod:`.row_kernels`.

Importing this needs Triton. Scores are in units of log 2: a cosine times the inverse temperature times log2 e, so that
one ``exp2`` makes the term of a row's and of a column's sum. Sums of tiles are stored and added up in a fixed order,
and maxima are integers, so results are the same at every run and equal descriptions have equal results.

Row i of problem p lies at ``row_start + i`` of the prepared rows and at ``p * n_max + i`` of everything that is kept
for rows; columns likewise. ``table`` holds (row_start, n, col_start, m) for each problem. Rows and columns past the end
of a problem repeat its last one and are taken out again where it matters.
"""

import triton
import triton.language as tl

from steerers.accel.common_kernels import key

NOBODY = tl.constexpr(-(1 << 63))
"""The key of a row or column that nothing was found for: less than every other."""


# Tiles of scores ------------------------------------------------------------------------------------------------------


@triton.jit
def _place(tile, tiles_n, tiles_m, SWIZZLE: tl.constexpr):
    """Row and column of a tile, in an order in which tiles at work at a time share rows and columns."""
    band = tile // (SWIZZLE * tiles_m)
    first = band * SWIZZLE
    height = tl.minimum(tiles_n - first, SWIZZLE)
    inside = tile % (SWIZZLE * tiles_m)
    return first + inside % height, inside // height


@triton.jit
def _tile(table, tiles_n, tiles_m, SWIZZLE: tl.constexpr):
    """Of a program its problem, the row and column of its tile, and where the problem's rows and columns lie."""
    p = tl.program_id(1)
    ti, tj = _place(tl.program_id(0), tiles_n, tiles_m, SWIZZLE)
    row_start, n = tl.load(table + 4 * p), tl.load(table + 4 * p + 1)
    col_start, m = tl.load(table + 4 * p + 2), tl.load(table + 4 * p + 3)
    return p, ti, tj, row_start, n, col_start, m


@triton.jit
def _add_chunk(total, row, col, START: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    k = START + tl.arange(0, SIZE)
    return tl.dot(tl.load(row + k[None, :]), tl.load(col + k[:, None]), total, input_precision=PRECISION)


@triton.jit
def _add_product(
    total, row, col, START: tl.constexpr, STOP: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the product over the coordinates from ``START`` to ``STOP``, of which ``row`` and ``col`` point to the first.

    With ``KEEP`` the loop is unrolled. Loads of columns are then seen not to depend on the group, and are kept.
    """
    if KEEP:
        whole: tl.constexpr = (STOP - START) // BLOCK_K
        for chunk in tl.static_range(whole):
            total = _add_chunk(total, row, col, START + chunk * BLOCK_K, BLOCK_K, PRECISION)
        if whole * BLOCK_K < STOP - START:
            total = _add_chunk(
                total, row, col, START + whole * BLOCK_K, STOP - START - whole * BLOCK_K, PRECISION
            )  # fmt: skip
    else:
        k = START + tl.arange(0, BLOCK_K)
        a, b = row + k[None, :], col + k[:, None]
        for start in range(0, STOP - START, BLOCK_K):
            total = tl.dot(tl.load(a + start), tl.load(b + start), total, input_precision=PRECISION)
    return total


@triton.jit
def _scores(
    rows, cols, i, j, num_rows,
    MODE: tl.constexpr, GROUPS: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK_N, BLOCK_M) cosines of prepared rows ``i`` with columns ``j``."""
    width: tl.constexpr = EVEN + ODD
    if MODE == "modulus":
        k = tl.arange(0, BLOCK_K)
        a = rows + i.to(tl.int64)[:, None] * EVEN + k[None, :]
        b = cols + j.to(tl.int64)[None, :] * (2 * EVEN) + k[:, None]
        real = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        imaginary = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for start in range(0, EVEN, BLOCK_K):
            row = tl.load(a + start)
            real = tl.dot(row, tl.load(b + start), real, input_precision=PRECISION)
            imaginary = tl.dot(row, tl.load(b + EVEN + start), imaginary, input_precision=PRECISION)
        best = tl.sqrt(real * real + imaginary * imaginary)
    else:
        row = rows + i.to(tl.int64)[:, None] * width
        col = cols + j.to(tl.int64)[None, :] * width
        if GROUPS == 1:
            best = _group(row, col, MODE, EVEN, ODD, BLOCK_N, BLOCK_M, BLOCK_K, KEEP, PRECISION)
        else:
            best = tl.full((BLOCK_N, BLOCK_M), float("-inf"), dtype=tl.float32)
            for g in range(GROUPS):  # a multiple of the width, so that the compiler knows how loads are aligned
                rotated = row + g * num_rows.to(tl.int64) * width
                score = _group(rotated, col, MODE, EVEN, ODD, BLOCK_N, BLOCK_M, BLOCK_K, KEEP, PRECISION)
                best = tl.maximum(best, score)
    return best


@triton.jit
def _group(
    row, col, MODE: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The product of one group; for ``paired`` E + |O|, where the sum starts from |O| and so needs no tile more."""
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    if MODE == "paired":
        total = _add_product(total, row, col, EVEN, EVEN + ODD, BLOCK_K, KEEP, PRECISION)
        # Not tl.abs, which clears a bit: ptxas 12.8 then takes the products for unused and leaves them out.
        total = tl.maximum(total, -total)
    return _add_product(total, row, col, 0, EVEN, BLOCK_K, KEEP, PRECISION)


# The first pass -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_rows", "n_max", "m_max", "tiles_n", "tiles_m", "num_problems"])
def sums(
    rows, cols, table, row_parts, col_parts, tile_best, scale, num_rows, n_max, m_max, tiles_n, tiles_m,
    num_problems, MODE: tl.constexpr, GROUPS: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
    SWIZZLE: tl.constexpr,
):  # fmt: skip
    """Sums of exp2 over the rows and columns of one tile, and its largest score."""
    p, ti, tj, row_start, n, col_start, m = _tile(table, tiles_n, tiles_m, SWIZZLE)
    if (ti * BLOCK_N < n) & (tj * BLOCK_M < m):
        i, j = ti * BLOCK_N + tl.arange(0, BLOCK_N), tj * BLOCK_M + tl.arange(0, BLOCK_M)
        score = _scores(
            rows, cols, row_start + tl.minimum(i, n - 1), col_start + tl.minimum(j, m - 1), num_rows,
            MODE, GROUPS, EVEN, ODD, BLOCK_N, BLOCK_M, BLOCK_K, KEEP, PRECISION,
        )  # fmt: skip
        largest = tl.max(tl.max(score, axis=1), axis=0) * scale
        tl.store(tile_best + (p * tiles_n + ti).to(tl.int64) * tiles_m + tj, largest)
        absent = tl.where(j < m, 0.0, float("-inf"))
        absent_row = tl.where(i < n, 0.0, float("-inf"))
        term = tl.exp2(score * scale + absent[None, :] + absent_row[:, None])
        at = tj.to(tl.int64) * num_problems * n_max + p * n_max + i
        tl.store(row_parts + at, tl.sum(term, axis=1), mask=i < n)
        at = ti.to(tl.int64) * num_problems * m_max + p * m_max + j
        tl.store(col_parts + at, tl.sum(term, axis=0), mask=j < m)


@triton.jit
def _add_up(parts, at, stride, count, valid, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """(BLOCK,) float64 sums over ``count`` tiles."""
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for t0 in range(0, count, TILES):
        t = t0 + tl.arange(0, TILES)
        part = tl.load(
            parts + t.to(tl.int64)[:, None] * stride + at[None, :],
            mask=(t < count)[:, None] & valid[None, :],
            other=0.0,
        )
        total += tl.sum(part.to(tl.float64), axis=0)
    return total


@triton.jit(do_not_specialize=["n_max", "m_max", "num_problems"])
def logs(
    table, row_parts, col_parts, col_sums, row_logs, col_logs, row_best, col_best, n_max, m_max, num_problems,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logarithms of the sums, and maxima to begin with. Rows are complete; columns may come in several chunks of rows,
    of which this is the ``FIRST`` or the ``LAST``."""
    p = tl.program_id(1)
    n, m = tl.load(table + 4 * p + 1), tl.load(table + 4 * p + 3)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(2) == 0:
        if tl.program_id(0) * BLOCK < n:
            at = p.to(tl.int64) * n_max + i
            stride = num_problems.to(tl.int64) * n_max
            total = _add_up(row_parts, at, stride, tl.cdiv(m, BLOCK_M), i < n, TILES, BLOCK)
            tl.store(row_logs + at, tl.log2(tl.where(i < n, total, 1.0).to(tl.float32)), mask=i < n)
            tl.store(row_best + at, tl.full((BLOCK,), NOBODY, dtype=tl.int64), mask=i < n)
    elif tl.program_id(0) * BLOCK < m:
        at = p.to(tl.int64) * m_max + i
        stride = num_problems.to(tl.int64) * m_max
        total = _add_up(col_parts, at, stride, tl.cdiv(n, BLOCK_N), i < m, TILES, BLOCK)
        if not FIRST:
            total += tl.load(col_sums + at, mask=i < m, other=0.0)
        if LAST:
            tl.store(col_logs + at, tl.log2(tl.where(i < m, total, 1.0).to(tl.float32)), mask=i < m)
            tl.store(col_best + at, tl.full((BLOCK,), NOBODY, dtype=tl.int64), mask=i < m)
        else:
            tl.store(col_sums + at, total, mask=i < m)


# The second pass ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_rows", "row_offset", "n_max", "m_max", "tiles_n", "tiles_m"])
def best(
    rows, cols, table, row_logs, col_logs, tile_best, row_best, col_best, scale, least, num_rows, row_offset,
    n_max, m_max, tiles_n, tiles_m, MODE: tl.constexpr, GROUPS: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
    SWIZZLE: tl.constexpr,
):  # fmt: skip
    """The largest log P of every row and column, and where it is, among those of at least ``least``."""
    p, ti, tj, row_start, n, col_start, m = _tile(table, tiles_n, tiles_m, SWIZZLE)
    if (ti * BLOCK_N < n) & (tj * BLOCK_M < m):
        i, j = ti * BLOCK_N + tl.arange(0, BLOCK_N), tj * BLOCK_M + tl.arange(0, BLOCK_M)
        row_at, col_at = p.to(tl.int64) * n_max + i, p.to(tl.int64) * m_max + j
        row_log = tl.load(row_logs + row_at, mask=i < n, other=float("inf"))
        col_log = tl.load(col_logs + col_at, mask=j < m, other=float("inf"))
        largest = tl.load(tile_best + (p * tiles_n + ti).to(tl.int64) * tiles_m + tj)
        if 2 * largest - tl.min(row_log, axis=0) - tl.min(col_log, axis=0) >= least:
            score = _scores(
                rows, cols, row_start + tl.minimum(i, n - 1), col_start + tl.minimum(j, m - 1), num_rows,
                MODE, GROUPS, EVEN, ODD, BLOCK_N, BLOCK_M, BLOCK_K, KEEP, PRECISION,
            )  # fmt: skip
            log_p = score * (2 * scale) - row_log[:, None] - col_log[None, :]
            nobody = 0x7FFFFFFF
            top = tl.max(log_p, axis=1)
            where = tl.min(tl.where(log_p == top[:, None], j[None, :], nobody), axis=1)
            tl.atomic_max(row_best + row_at, key(top, where), mask=(i < n) & (top >= least), sem="relaxed")
            top = tl.max(log_p, axis=0)
            where = tl.min(tl.where(log_p == top[None, :], i[:, None], nobody), axis=0) + row_offset
            tl.atomic_max(col_best + col_at, key(top, where), mask=(j < m) & (top >= least), sem="relaxed")
