"""Mutual nearest neighbours over tiles, with the ratio test of SIFT: the matching of the older protocols.

One pass; no N x M matrix is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steerers.matching.assignment import TILE, TILE_ELSEWHERE, Assignment, _Best
from steerers.matching.similarity import Similarity


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
    if not n or not m:
        return _sorted(torch.zeros(0, 2, dtype=torch.long, device=device), torch.zeros(0, device=device))
    rows, cols, second = _search(similarity, tile or TILE.get(device.type, TILE_ELSEWHERE), second=ratio is not None)
    i = torch.arange(n, device=device)
    i = i[cols[rows] == i]
    cosines = similarity.pairs(i, rows[i]).clamp(-1, 1)
    kept = cosines >= threshold
    if ratio is not None and m > 1:
        others = similarity.pairs(i, second[i]).clamp(-1, 1)
        kept &= 1 - cosines < ratio**2 * (1 - others)  # half the squared distances
    i, cosines = i[kept], cosines[kept]
    return _sorted(torch.stack([i, rows[i]], dim=1), (1 + cosines) / 2)


def _search(similarity: Similarity, tile: int, *, second: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest column of each row, (N,), the nearest row of each column, (M,), and each row's second nearest."""
    (n, m), device = similarity.shape, similarity.device
    row_best, col_best = _Best(n, device), _Best(m, device)
    values = torch.full((n, 2), -math.inf, device=device, dtype=torch.float64)  # the two best of each row so far
    places = torch.zeros(n, 2, dtype=torch.long, device=device)
    for rows in torch.arange(n, device=device).split(tile):
        block = similarity.block(rows)
        for index, cols in enumerate(torch.arange(m, device=device).split(tile)):
            tile_scores = block(slice(index * tile, index * tile + len(cols)))[0]  # (r, c)
            tie = 8 * torch.finfo(tile_scores.dtype).eps
            scores = tile_scores.double()
            row_best.update(rows, scores, cols, tie)
            col_best.update(cols, scores.mT, rows, tie)
            if second:
                best = scores.topk(min(2, len(cols)), dim=1)
                together = torch.cat([values[rows], best.values], dim=1)
                values[rows], chosen = together.topk(2, dim=1)
                places[rows] = torch.cat([places[rows], cols[best.indices]], dim=1).gather(1, chosen)
    runner_up = torch.where(places[:, 0] == row_best.arg, places[:, 1], places[:, 0])
    return row_best.arg, col_best.arg, runner_up


def _sorted(indices: Tensor, scores: Tensor) -> Assignment:
    order = scores.argsort(descending=True, stable=True)
    return Assignment(indices[order], scores[order].float())
