"""The coordinates of descriptions sorted by the frequency they turn with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from steerers.representations import Representation


@dataclass(frozen=True)
class Band:
    """The coordinates of one frequency: a range of columns, and of the quadrature columns if it has two components."""

    frequency: int
    columns: slice
    quadrature: slice | None


@lru_cache(maxsize=64)
def arrange(representation: Representation) -> tuple[Tensor, Tensor, list[Band]]:
    """Sort coordinates by folded frequency, even ones first, x before y.

    A block that turns the other way (frequency -f, or n - f) becomes one of frequency f when the sign of its second
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
