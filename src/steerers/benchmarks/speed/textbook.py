"""Matching as the formulas say it: dense matrices, one product a rotation. What the fast forms are measured against.

Everything is float32 and unit descriptions come in; the tests hold a separate float64 reference.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.steering.steerer import Steerer


def dual_softmax(similarity: Tensor, inverse_temperature: float = 20.0, threshold: float = 0.01) -> Tensor:
    """(K, 2) mutual maxima of the dual softmax of an (N, M) similarity."""
    scaled = inverse_temperature * similarity
    probability = scaled.softmax(dim=1) * scaled.softmax(dim=0)
    mutual = (probability == probability.amax(dim=1, keepdim=True)) & (
        probability == probability.amax(dim=0, keepdim=True)
    )
    return (mutual & (probability > threshold)).nonzero()


def check_memory(strategy: str, n: int, device: torch.device) -> None:
    """Raise MemoryError if the dense N x N matrices cannot fit; a CPU would try, and the process be killed."""
    if device.type != "cpu":
        return
    matrices = 7 if strategy == "procrustes" else 5  # of float32, at a time
    if 4 * matrices * n * n > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise MemoryError(f"{matrices} matrices of {n} x {n}")


def match(strategy: str, unit0: Tensor, unit1: Tensor, steerer: Steerer, angles: Tensor, subset: int = 1000) -> Tensor:
    """(K, 2) matches of unit descriptions by the strategy of that name."""
    if strategy == "dual-softmax":
        return dual_softmax(unit0 @ unit1.mT)
    if strategy == "invariant":
        projector = steerer.invariant_projector().to(unit0)
        return dual_softmax(F.normalize(unit0 @ projector.mT, dim=1) @ F.normalize(unit1 @ projector.mT, dim=1).mT)
    if strategy == "procrustes":
        return dual_softmax(_procrustes(unit0, unit1))
    if strategy == "prototype-procrustes":
        return dual_softmax(_towards_prototype(unit0) @ _towards_prototype(unit1).mT)
    matrices = [steerer.matrix(float(angle)).to(unit0) for angle in angles]
    if strategy == "max-similarity":
        return dual_softmax(_max_similarity(unit0, unit1, matrices))
    if strategy == "max-matches":
        return max((_rotated(unit0, unit1, matrix) for matrix in matrices), key=len)
    if strategy == "subset":
        generator = torch.Generator().manual_seed(0)
        small0, small1 = (d[torch.randperm(len(d), generator=generator)[:subset].to(d.device)] for d in (unit0, unit1))
        best = max(matrices, key=lambda matrix: len(_rotated(small0, small1, matrix)))
        return _rotated(unit0, unit1, best)
    raise ValueError(f"no textbook form of {strategy!r}")


def _rotated(unit0: Tensor, unit1: Tensor, matrix: Tensor) -> Tensor:
    return dual_softmax(F.normalize(unit0 @ matrix.mT, dim=1) @ unit1.mT)


def _max_similarity(unit0: Tensor, unit1: Tensor, matrices: list[Tensor]) -> Tensor:
    best = torch.full((len(unit0), len(unit1)), -1.0, device=unit0.device)
    for matrix in matrices:
        best = torch.maximum(best, F.normalize(unit0 @ matrix.mT, dim=1) @ unit1.mT)
    return best


def _procrustes(unit0: Tensor, unit1: Tensor) -> Tensor:
    """The best rotation of every pair from its 2 x 2 matrix of products, without the singular value decomposition."""
    pairs0, pairs1 = unit0.view(len(unit0), -1, 2), unit1.view(len(unit1), -1, 2)
    products = torch.einsum("ncx,mcy->nmxy", pairs0, pairs1)  # (N, M, 2, 2)
    return torch.hypot(products[..., 0, 0] + products[..., 1, 1], products[..., 0, 1] - products[..., 1, 0])


def _towards_prototype(unit: Tensor) -> Tensor:
    pairs = unit.view(len(unit), -1, 2)
    total = F.normalize(pairs.sum(dim=1), dim=1)  # (N, 2)
    cos, sin = total[:, :1], total[:, 1:]
    x, y = pairs.unbind(dim=2)
    return torch.stack([cos * x + sin * y, cos * y - sin * x], dim=2).flatten(1)
