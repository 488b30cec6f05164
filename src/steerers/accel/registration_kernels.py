"""Registration of patches in one Triton kernel, a program for a match: what :mod:`steerers.refinement` does by a
thousand operators on all matches at once.

Importing this needs Triton. Patches lie in SIDE x SIDE values, a power of two; those beyond the patch weigh nothing.
What is fitted are six numbers, in tensors of eight.
"""

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = 19
"""That are stored for a match: centre (2), linear part (4), spread (4), normal equations of the translation (4),
variance, contrast, the part of the window that is seen, correlations before and after."""


# Images ---------------------------------------------------------------------------------------------------------------


@triton.jit
def _sample(address, width, height, x, y, FINE: tl.constexpr):
    """Bilinearly, FINE values for a pixel and axis; beyond the border, and at what is no number, the nearest value."""
    values = address.to(tl.pointer_type(tl.float32))
    right, bottom = FINE * width - 1, FINE * height - 1
    x, y = (x + 0.5) * FINE - 0.5, (y + 0.5) * FINE - 0.5
    x = tl.minimum(tl.where(x > 0.0, x, 0.0), right.to(tl.float32))
    y = tl.minimum(tl.where(y > 0.0, y, 0.0), bottom.to(tl.float32))
    column, row = x.to(tl.int32), y.to(tl.int32)
    x -= column.to(tl.float32)
    y -= row.to(tl.float32)
    beside = tl.minimum(column + 1, right)
    above = values + row.to(tl.int64) * (right + 1)
    below = values + tl.minimum(row + 1, bottom).to(tl.int64) * (right + 1)
    upper = tl.load(above + column) * (1 - x) + tl.load(above + beside) * x
    lower = tl.load(below + column) * (1 - x) + tl.load(below + beside) * x
    return upper * (1 - y) + lower * y


@triton.jit
def _inside(valid, width, height, x, y):
    """Whether pixels are in the image and can be relied on; ``valid`` is 0 where all can."""
    inside = (x >= 1.0) & (y >= 1.0) & (x <= (width - 2).to(tl.float32)) & (y <= (height - 2).to(tl.float32))
    if valid != 0:
        inside = inside & (_sample(valid, width, height, x, y, 1) > 0.99)
    return inside


@triton.jit
def _image(row):
    """Of a row of the table the addresses, width and height."""
    return tl.load(row), tl.load(row + 1), tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32)


# Small matrices -------------------------------------------------------------------------------------------------------


@triton.jit
def _entry(matrix, row, column):
    """One number of a matrix."""
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    return tl.sum(tl.sum(tl.where((i == row) & (j == column), matrix, 0.0), axis=1), axis=0)


@triton.jit
def _products(first, second):
    """(8, 8) ``first @ second.T`` of (8, n) rows, of which six are more than zero."""
    rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    result = tl.zeros((8, 8), tl.float32)
    for k in range(6):
        row = tl.sum(tl.where(rows == k, second, 0.0), axis=0)
        result = tl.where(columns == k, tl.sum(first * row[None, :], axis=1)[:, None], result)
    return result


@triton.jit
def _inverse(matrix, ridge):
    """(8, 8) inverse of six rows and columns, positive definite, with something added to the diagonal: Gauss-Jordan,
    which needs no pivots there. The others stay zero."""
    rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    one = tl.where((rows == columns) & (rows < 6), 1.0, 0.0)
    matrix, inverse = matrix + one * ridge, one
    for k in range(6):
        pivot = _entry(matrix, k, k)
        row = tl.sum(tl.where(rows == k, matrix, 0.0), axis=0) / pivot
        other = tl.sum(tl.where(rows == k, inverse, 0.0), axis=0) / pivot
        column = tl.sum(tl.where(columns == k, matrix, 0.0), axis=1)
        matrix = tl.where(rows == k, row[None, :], matrix - column[:, None] * row[None, :])
        inverse = tl.where(rows == k, other[None, :], inverse - column[:, None] * other[None, :])
    return inverse


@triton.jit
def _smoothed(rows, gram, SIDE: tl.constexpr):
    """(8, P) patches, multiplied along both sides by a symmetric (SIDE, SIDE) matrix."""
    i, j = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    matrix = tl.load(gram + i * SIDE + j)
    rows = tl.dot(tl.reshape(rows, (8 * SIDE, SIDE)), matrix, input_precision="ieee")
    rows = tl.permute(tl.reshape(rows, (8, SIDE, SIDE)), (0, 2, 1))
    rows = tl.dot(tl.reshape(rows, (8 * SIDE, SIDE)), matrix, input_precision="ieee")
    return tl.reshape(tl.permute(tl.reshape(rows, (8, SIDE, SIDE)), (0, 2, 1)), (8, SIDE * SIDE))


# Patches --------------------------------------------------------------------------------------------------------------


@triton.jit
def _window(RADIUS: tl.constexpr, SIDE: tl.constexpr):
    """(P,) x and y of the pixels of a patch, and how they weigh."""
    pixel = tl.arange(0, SIDE * SIDE)
    x, y = (pixel % SIDE - RADIUS).to(tl.float32), (pixel // SIDE - RADIUS).to(tl.float32)
    weight = tl.exp(-2.0 * (x * x + y * y) / (RADIUS * RADIUS))
    return x, y, tl.where((x <= RADIUS) & (y <= RADIUS), weight, 0.0)


@triton.jit
def _normalised(values, weight):
    """Values of weighted mean 0 and variance 1, and what they were divided by."""
    values -= tl.sum(weight * values, axis=0)
    contrast = tl.sqrt(tl.sum(weight * values * values, axis=0))
    return values / tl.maximum(contrast, 1e-9), contrast


@triton.jit
def _without(rows, nuisance, weight):
    """(8, P) rows but for what looks like a nuisance of weighted variance 1."""
    return rows - nuisance[None, :] * tl.sum(rows * (weight * nuisance)[None, :], axis=1)[:, None]


@triton.jit
def _slope(near, back, far, far_back):
    """A derivative of fourth order, of values a pixel and two to both sides."""
    return (8 * (near - back) - far + far_back) / 12


@triton.jit
def _jacobian(slope_x, slope_y, x, y, weight):
    """(8, P) how patches change with the translation and the linear part; brightness does not count."""
    k = tl.arange(0, 8)[:, None]
    along_x = (k == 0) | (k == 2) | (k == 3)
    factor = tl.where(k % 2 == 0, x[None, :], y[None, :])
    factor = tl.where(k < 2, 1.0, tl.where(k < 6, factor, 0.0))
    rows = tl.where(along_x, slope_x[None, :], slope_y[None, :]) * factor
    return rows - tl.sum(rows * weight[None, :], axis=1)[:, None]


@triton.jit
def _mapped(cx, cy, xx, xy, yx, yy, x, y):
    """Places ``centre + linear @ (x, y)``."""
    return cx + xx * x + xy * y, cy + yx * x + yy * y


@triton.jit
def _template(address, width, height, px, py, x, y, weight, least_change, RADIUS: tl.constexpr, FINE: tl.constexpr):
    """Normalised patches, how they change with sharpness, (8, P) with the six numbers of a map, and their contrast."""
    values = _sample(address, width, height, px, py, FINE)
    right = _sample(address, width, height, px + 1, py, FINE)
    left = _sample(address, width, height, px - 1, py, FINE)
    below = _sample(address, width, height, px, py + 1, FINE)
    above = _sample(address, width, height, px, py - 1, FINE)
    far_right = _sample(address, width, height, px + 2, py, FINE)
    far_left = _sample(address, width, height, px - 2, py, FINE)
    far_below = _sample(address, width, height, px, py + 2, FINE)
    far_above = _sample(address, width, height, px, py - 2, FINE)
    template, contrast = _normalised(values, weight)
    sharper, strength = _normalised(right + left + below + above - 4 * values, weight)
    sharper, rest = _normalised(sharper - template * tl.sum(weight * template * sharper, axis=0), weight)
    sharper = tl.where((rest > least_change) & (strength > 0.0), sharper, 0.0)
    slope_x, slope_y = _slope(right, left, far_right, far_left), _slope(below, above, far_below, far_above)
    divisor = tl.maximum(contrast, 1e-9)
    jacobian = _jacobian(slope_x / divisor, slope_y / divisor, x / RADIUS, y / RADIUS, weight)
    return template, sharper, _without(_without(jacobian, template, weight), sharper, weight), contrast


# Registration ---------------------------------------------------------------------------------------------------------


@triton.jit
def _step(change, cx, cy, xx, xy, yx, yy, RADIUS: tl.constexpr):
    """The map after a step, taken from the template's side: its inverse comes first."""
    k = tl.arange(0, 8)
    dx, dy = tl.sum(tl.where(k == 0, change, 0.0), axis=0), tl.sum(tl.where(k == 1, change, 0.0), axis=0)
    a = 1 + tl.sum(tl.where(k == 2, change, 0.0), axis=0) / RADIUS
    b = tl.sum(tl.where(k == 3, change, 0.0), axis=0) / RADIUS
    c = tl.sum(tl.where(k == 4, change, 0.0), axis=0) / RADIUS
    d = 1 + tl.sum(tl.where(k == 5, change, 0.0), axis=0) / RADIUS
    determinant = a * d - b * c
    xx, xy = (xx * d - xy * c) / determinant, (xy * a - xx * b) / determinant
    yx, yy = (yx * d - yy * c) / determinant, (yy * a - yx * b) / determinant
    return cx - (xx * dx + xy * dy), cy - (yx * dx + yy * dy), xx, xy, yx, yy


@triton.jit
def _variance(residual, template, sharper, weight):
    """Of what is left of residuals but for contrast and sharpness."""
    residual -= template * tl.sum(weight * template * residual, axis=0)
    residual -= sharper * tl.sum(weight * sharper * residual, axis=0)
    return tl.sum(weight * residual * residual, axis=0)


@triton.jit
def _correlation(values, template, weight):
    """Of values with a normalised template."""
    mean, square = tl.sum(weight * values, axis=0), tl.sum(weight * values * values, axis=0)
    return tl.sum(weight * template * values, axis=0) / tl.sqrt(tl.maximum(square - mean * mean, 1e-12))


@triton.jit
def _squared_shift(x, y, xx, xy, yx, yy):
    """Of a displacement in the moving image, in pixels of the template."""
    determinant = xx * yy - xy * yx
    x, y = (yy * x - xy * y) / determinant, (xx * y - yx * x) / determinant
    return x * x + y * y


@triton.jit
def _store_map(at, cx, cy, xx, xy, yx, yy):
    tl.store(at, cx)
    tl.store(at + 1, cy)
    tl.store(at + 2, xx)
    tl.store(at + 3, xy)
    tl.store(at + 4, yx)
    tl.store(at + 5, yy)


@triton.jit
def _store_rest(at, variance, contrast, seen, before, after):
    tl.store(at, variance)
    tl.store(at + 1, contrast)
    tl.store(at + 2, seen)
    tl.store(at + 3, before)
    tl.store(at + 4, after)


@triton.jit
def register(
    own, other, linear, moving, table, gram, out, correlations, steps, damping, far, least_change,
    RADIUS: tl.constexpr, SIDE: tl.constexpr, FINE: tl.constexpr, LEVELS: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """The twin of ``refinement._fitted``, and of ``_beside`` where a place moved by more than ``far``.

    ``table`` has the addresses of values and of what is valid, width and height of the LEVELS resolutions of both
    images, of which ``moving`` says the one that moves; the template is of the other image as it is.
    """
    match = tl.program_id(0).to(tl.int64)
    level = tl.maximum(tl.load(moving + match), 0)
    base = level // LEVELS * LEVELS  # the moving image as it is
    values1, valid1, width1, height1 = _image(table + 4 * level)
    values0, valid0, width0, height0 = _image(table + 4 * (LEVELS - base))
    ratio_x = width1.to(tl.float32) / tl.load(table + 4 * base + 2).to(tl.float32)
    ratio_y = height1.to(tl.float32) / tl.load(table + 4 * base + 3).to(tl.float32)

    x, y, window = _window(RADIUS, SIDE)
    px, py = tl.load(own + 2 * match) + x, tl.load(own + 2 * match + 1) + y
    start_x = (tl.load(other + 2 * match) + 0.5) * ratio_x - 0.5
    start_y = (tl.load(other + 2 * match + 1) + 0.5) * ratio_y - 0.5
    xx, xy = tl.load(linear + 4 * match) * ratio_x, tl.load(linear + 4 * match + 1) * ratio_x
    yx, yy = tl.load(linear + 4 * match + 2) * ratio_y, tl.load(linear + 4 * match + 3) * ratio_y
    cx, cy = start_x, start_y
    qx, qy = _mapped(cx, cy, xx, xy, yx, yy, x, y)
    seen = _inside(valid0, width0, height0, px, py) & _inside(valid1, width1, height1, qx, qy)
    weight = tl.where(seen, window, 0.0)
    total = tl.sum(weight, axis=0)
    weight = weight / tl.maximum(total, 1e-12)

    template, sharper, jacobian, contrast = _template(
        values0, width0, height0, px, py, x, y, weight, least_change, RADIUS, FINE
    )  # fmt: skip
    weighted = jacobian * weight[None, :]
    normal = _products(weighted, jacobian)
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    scale = tl.sum(tl.sum(tl.where(i == j, normal, 0.0), axis=1), axis=0) / 6
    solver = _inverse(normal + tl.where((i == j) & (i >= 2) & (i < 6), damping * scale, 0.0), 1e-9)
    before = 0.0
    for step in range(steps):
        qx, qy = _mapped(cx, cy, xx, xy, yx, yy, x, y)
        found, _ = _normalised(_sample(values1, width1, height1, qx, qy, FINE), weight)
        before = tl.where(step == 0, tl.sum(weight * found * template, axis=0), before)
        gradient = tl.sum(weighted * (found - template)[None, :], axis=1)
        change = tl.sum(solver * gradient[None, :], axis=1)
        cx, cy, xx, xy, yx, yy = _step(change, cx, cy, xx, xy, yx, yy, RADIUS)

    # How alike they became, and how far the place can be relied on.
    qx, qy = _mapped(cx, cy, xx, xy, yx, yy, x, y)
    values = _sample(values1, width1, height1, qx, qy, FINE)
    found, _ = _normalised(values, weight)
    inverse = _inverse(normal, 1e-3 * scale + 1e-9)
    spread = _products(_products(inverse, _products(weighted, _smoothed(weighted, gram, SIDE))), inverse)
    alike, variance = tl.sum(weight * found * template, axis=0), _variance(found - template, template, sharper, weight)
    to_x, to_y = (cx + 0.5) / ratio_x - 0.5, (cy + 0.5) / ratio_y - 0.5
    _store_map(out + 19 * match, to_x, to_y, xx / ratio_x, xy / ratio_x, yx / ratio_y, yy / ratio_y)
    tl.store(out + 19 * match + 6 + 2 * i + j, spread, mask=(i < 2) & (j < 2))
    tl.store(out + 19 * match + 10 + 2 * i + j, normal, mask=(i < 2) & (j < 2))
    _store_rest(out + 19 * match + 14, variance, contrast, total / tl.sum(window, axis=0), before, alike)
    if _squared_shift(start_x - cx, start_y - cy, xx, xy, yx, yy) > far * far:
        middle = tl.sum(weight * values, axis=0)
        SPAN: tl.constexpr = 2 * REACH + 1
        for offset in range(SPAN * SPAN):
            qx, qy = _mapped(cx, cy, xx, xy, yx, yy, x + (offset % SPAN - REACH), y + (offset // SPAN - REACH))
            beside = _sample(values1, width1, height1, qx, qy, FINE) - middle  # small, to be squared
            tl.store(correlations + SPAN * SPAN * match + offset, _correlation(beside, template, weight))
