"""The coordinates of descriptions sorted by the frequency they rotate with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from steerers.steering.representations import Representation


@dataclass(frozen=True)
class Band:
    """The coordinates of one frequency: a range of columns, and of the quadrature columns if it has two components."""

    frequency: int
    columns: slice
    quadrature: slice | None


@lru_cache(maxsize=64)
def arrange(representation: Representation) -> tuple[Tensor, Tensor, list[Band]]:
    """Sort coordinates by folded frequency, even ones first, x before y.

    A block that rotates the other way (frequency -f, or n - f) becomes one of frequency f when the sign of its second
    coordinate is changed, on both sides of the product.

    Returns:
        (D,) indices into the coordinates, (D,) signs, and the bands.
    """
    position = 0
    members: dict[int, tuple[list[int], list[int], list[float]]] = {}
    for frequency, size in representation.blocks():
        folded = representation.group.fold(frequency)
        xs, ys, signs = members.setdefault(folded, ([], [], []))
        xs.append(position)
        if size == 2:
            ys.append(position + 1)
            signs.append(1.0 if folded == frequency else -1.0)
        position += size
    index: list[int] = []
    sign: list[float] = []
    bands: list[Band] = []
    quadratures = 0
    for frequency in sorted(members, key=lambda f: (f % 2, f)):
        xs, ys, signs = members[frequency]
        columns = slice(len(index), len(index) + len(xs) + len(ys))
        quadrature = slice(quadratures, quadratures + len(xs) + len(ys)) if ys else None
        quadratures += len(xs) + len(ys) if ys else 0
        index += xs + ys
        sign += [1.0] * len(xs) + signs
        bands.append(Band(frequency, columns, quadrature))
    return torch.tensor(index), torch.tensor(sign), bands


@dataclass(frozen=True, eq=False)
class Waves:
    """The waves of s(t), C in all: one for each band, then one more for its quadrature if it has one.

    Attributes:
        frequency: the k-th wave is cos(frequency t - phase), or a sine.
        members: which coordinates of the products of rows and columns each adds up.
        rotated: of the two-component bands, the coordinates of columns that their quadrature is made of, and its
            ``signs``; ``unrotated`` the coordinates of rows that it is multiplied with.
        quadrature_members: which coordinates of those products each wave adds up.
    """

    frequency: Tensor  # (C,) float64
    phase: Tensor  # (C,) float64
    members: Tensor  # (D, C) float64
    rotated: Tensor  # (Q,) int64
    signs: Tensor  # (Q,) float64
    unrotated: Tensor  # (Q,) int64
    quadrature_members: Tensor  # (Q, C) float64


@lru_cache(maxsize=64)
def waves(representation: Representation, device: torch.device) -> Waves:
    """Of the bands that :func:`arrange` makes, on a device, so that few operations make all of them."""
    index, _, bands = arrange(representation)
    count = sum(1 + (band.quadrature is not None) for band in bands)
    length = sum(band.quadrature.stop - band.quadrature.start for band in bands if band.quadrature is not None)
    frequency, phase = torch.zeros(2, count, dtype=torch.float64)
    members, quadrature_members = (torch.zeros(size, count, dtype=torch.float64) for size in (len(index), length))
    rotated, signs, unrotated = list[int](), list[float](), list[int]()
    k = 0
    for band in bands:
        frequency[k] = band.frequency
        members[band.columns, k] = 1.0
        k += 1
        if band.quadrature is None:
            continue
        start, stop = band.columns.start, band.columns.stop
        half = (stop - start) // 2
        rotated += [*range(start + half, stop), *range(start, start + half)]
        signs += [1.0] * half + [-1.0] * half
        unrotated += range(start, stop)
        frequency[k], phase[k] = band.frequency, math.pi / 2
        quadrature_members[band.quadrature, k] = 1.0
        k += 1
    tensors = (
        frequency, phase, members, torch.tensor(rotated, dtype=torch.long), torch.tensor(signs, dtype=torch.float64),
        torch.tensor(unrotated, dtype=torch.long), quadrature_members,
    )  # fmt: skip
    return Waves(*(tensor.to(device) for tensor in tensors))
