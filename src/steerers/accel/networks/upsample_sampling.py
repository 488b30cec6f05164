"""Bilinear sampling of a map that was never upsampled to the size it is sampled at.

Upsampling a map bilinearly, once or several times, and sampling the result bilinearly is linear in the map, and along
each axis only a few neighbouring pixels of the map count. Their weights follow from the sizes: a table has, for every
pixel of the finest size, the pixels of the map that it and the pixel after it are made of. So a decoder that adds up
the outputs of several scales need not make any of them at full resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Size = tuple[int, int]  # (width, height)


class Table(NamedTuple):
    """How the pixels of a fine axis are made of those of a coarse one."""

    first: Tensor  # (fine,) int32, the first pixel of the coarse axis that counts
    weights: Tensor  # (fine, 2, T) float32, of it and those after it: for each fine pixel, and for the one after that


@dataclass(frozen=True, eq=False)
class Stencil:
    """How maps of several sizes are sampled; told apart by identity, so that a recorded run can keep what it reads."""

    tables: tuple[tuple[Table, Table], ...]  # of the axes x and y of each map


@lru_cache(maxsize=64)
def make_stencil(chains: tuple[tuple[Size, ...], ...], device: torch.device) -> Stencil:
    """The stencil of maps that are upsampled bilinearly, each through sizes of its own.

    Args:
        chains: for each map (width, height) of what is sampled, of what that was upsampled from, and so on to the map.
    """
    return Stencil(
        tuple((_table([w for w, _ in chain], device), _table([h for _, h in chain], device)) for chain in chains)
    )


def _table(lengths: Sequence[int], device: torch.device) -> Table:
    """From the finest length of an axis to the coarsest."""
    fine = lengths[0]
    first = np.arange(fine)
    weights = np.zeros((fine, 2, 2))
    weights[:, 0, 0] = 1.0
    weights[first, 1, np.minimum(first + 1, fine - 1) - first] = 1.0
    for above, below in pairwise(lengths):
        first, weights = _lowered(first, weights, above, below)
    used = np.flatnonzero(weights.any(axis=(0, 1)))[-1] + 1  # taps that are zero throughout go
    with torch.inference_mode(False):
        return Table(
            torch.from_numpy(first.astype(np.int32)).to(device),
            torch.from_numpy(np.ascontiguousarray(weights[:, :, :used]).astype(np.float32)).to(device),
        )


def _lowered(
    first: NDArray[np.int64], weights: NDArray[np.float64], above: int, below: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A table into an axis of length ``above`` as one into the axis of length ``below`` that was upsampled to it."""
    places = np.maximum((np.arange(above) + 0.5) * (below / above) - 0.5, 0.0)
    low = np.minimum(places.astype(np.int64), below - 1)
    high, part = np.minimum(low + 1, below - 1), places - low
    taps = np.minimum(first[:, None] + np.arange(weights.shape[2]), above - 1)  # (fine, T)
    start = low[taps[:, 0]]
    lowered = np.zeros((*weights.shape[:2], int((high[taps[:, -1]] - start).max()) + 1))
    for tap in range(weights.shape[2]):
        at = taps[:, tap]
        for side, share in ((low, 1 - part), (high, part)):
            slot = (side[at] - start)[:, None, None]  # (fine, 1, 1)
            lowered += (np.arange(lowered.shape[2]) == slot) * (weights[:, :, tap] * share[at, None])[:, :, None]
    return start, lowered


def sample(maps: Tensor, xy: Tensor, size: Size, tables: tuple[Table, Table]) -> Tensor:
    """(B, N, C) samples of (B, C, H, W) maps, as :func:`~steerers.models.sampling.sample_descriptions` of upsampled
    ones.

    Args:
        xy: (B, N, 2) pixels of an image of ``size`` (width, height).
        tables: of the axes x and y.
    """
    batch, channels, height, width = maps.shape
    column, weight_x = _taps(xy[..., 0], size[0], tables[0], width)  # (B, N, T)
    row, weight_y = _taps(xy[..., 1], size[1], tables[1], height)
    image = torch.arange(batch, device=maps.device)[:, None] * (height * width)
    pixels = maps.permute(0, 2, 3, 1).reshape(-1, channels)
    total = torch.zeros((*xy.shape[:2], channels), dtype=weight_x.dtype, device=maps.device)
    for j in range(row.shape[2]):
        for i in range(column.shape[2]):
            value = pixels[image + row[..., j] * width + column[..., i]].to(total.dtype)
            total.addcmul_(value, (weight_x[..., i] * weight_y[..., j])[..., None])
    return total


def _taps(position: Tensor, size: int, table: Table, length: int) -> tuple[Tensor, Tensor]:
    """Pixels of an axis of ``length`` and their weights, (B, N, T) each, for positions on an image of ``size``."""
    fine = len(table.first)
    place = ((position + 0.5) * (fine / size) - 0.5).clamp(0, fine - 1).nan_to_num(0.0)  # NaN is no index
    before = place.long()
    low, high = table.weights[before].unbind(dim=2)  # (B, N, T)
    weights = torch.lerp(low.to(place.dtype), high.to(place.dtype), (place - before)[..., None])
    steps = torch.arange(weights.shape[2], device=position.device)
    return (table.first[before][..., None] + steps).clamp(max=length - 1), weights
