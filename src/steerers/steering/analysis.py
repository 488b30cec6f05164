"""What a learned steerer is made of: eigenvalues, blocks, the nearest representation, invariants, idle directions.

A generator ``G`` is the matrix of the smallest rotation of C_n, or the Lie algebra element of SO(2). Everything is
computed in float64 and returned so.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from steerers.steering.representations import Group, Representation

NORMAL_TOLERANCE = 1e-12
MAX_CONDITION = 1e6


@dataclass(frozen=True, eq=False)
class BlockDiagonalisation:
    """``G = inverse @ matrix @ basis`` with ``matrix`` block-diagonal, and the representation nearest to it.

    The blocks are 1 x 1 and 2 x 2, in the order of :attr:`representation`, so that ``descriptions @ basis.T`` are the
    disentangled coordinates of appendix A.1.
    """

    basis: Tensor  # (D, D), the paper's Q
    inverse: Tensor  # (D, D)
    matrix: Tensor  # (D, D) block-diagonal
    representation: Representation
    scale: float
    """Steering ignores lengths, so the nearest representation is taken up to this common factor (C_n: of the generator,
    SO(2): the exponential of a multiple of the identity that is added to it)."""
    nearest: Tensor  # (D, D) generator of the nearest representation times the factor, in the basis of G
    residual: float  # |G - nearest| / |G|, Frobenius


def eigenvalues(generator: Tensor) -> Tensor:
    """The (D,) complex128 eigenvalues, largest first (by modulus; no account is taken of the group)."""
    values: Tensor = torch.linalg.eigvals(generator.detach().double().cpu())
    return values[values.abs().argsort(descending=True, stable=True)]


def block_diagonalise(generator: Tensor, group: Group) -> BlockDiagonalisation:
    """Block-diagonalise a generator over the real numbers and find the admissible representation nearest to it.

    Raises:
        ValueError: if the matrix cannot be diagonalised (no representation can be near it).
    """
    G = generator.detach().double().cpu()
    blocks = sorted(_admissible_blocks(G, group), key=lambda block: (block.frequency, -block.magnitude))
    inverse = _columns(blocks)
    basis = torch.linalg.inv(inverse)
    counts = Counter(block.frequency for block in blocks)  # in ascending order, as the blocks are
    representation = Representation(group, tuple((count, frequency) for frequency, count in counts.items()))
    reference = _reference_magnitude(blocks)
    admissible = representation.generator()
    if group.continuous:
        nearest, scale = admissible + reference * torch.eye(len(G), dtype=torch.float64), math.exp(reference)
    else:
        nearest, scale = admissible * reference, reference
    nearest = inverse @ nearest @ basis
    norm = float(G.norm())
    residual = float((G - nearest).norm()) / norm if norm > 0 else 0.0
    return BlockDiagonalisation(basis, inverse, basis @ G @ inverse, representation, scale, nearest, residual)


def invariant_projector(generator: Tensor, group: Group) -> Tensor:
    """The (D, D) float64 projector to the invariant subspace.

    For C_n it is the average over the group (paper, appendix A.3); for SO(2) the spectral projector to the eigenvalues
    whose frequency is nearest to zero.
    """
    G = generator.detach().double().cpu()
    if group.order is not None:
        power, total = torch.eye(len(G), dtype=torch.float64), torch.zeros_like(G)
        for _ in range(group.order):
            total += power
            power = power @ G
        return total / group.order
    blocks = _admissible_blocks(G, group)
    columns = _columns(blocks)
    keep = torch.cat([torch.full((block.columns.shape[1],), float(block.frequency == 0)) for block in blocks])
    projector: Tensor = columns @ (keep.double()[:, None] * torch.linalg.inv(columns))
    return projector


def reduce(generator: Tensor, group: Group, dim: int) -> tuple[Tensor, Tensor]:
    """Project to the span of the eigenvectors with the largest eigenvalues.

    The projection is along the other eigenvectors, so that it commutes with steering exactly; coordinates in the span
    are orthonormal, so that cosines keep their meaning.

    Returns:
        The (d, D) projection and the (d, d) generator of the projected descriptions, ``d`` being ``dim`` or one less.
    """
    G = generator.detach().double().cpu()
    if not 1 <= dim <= len(G):
        raise ValueError(f"dim must be 1 to {len(G)}, got {dim}")
    blocks = sorted(_eigen_blocks(G, group), key=lambda block: -block.magnitude)
    columns = _columns(blocks)
    kept = 0
    for block in blocks:
        if kept + block.columns.shape[1] > dim:
            break
        kept += block.columns.shape[1]
    if kept == 0:
        raise ValueError(f"dim must be at least 2 here: the largest eigenvalues are a conjugate pair, got {dim}")
    _, triangular = torch.linalg.qr(columns[:, :kept])
    coordinates = torch.linalg.inv(columns)[:kept]
    inner = coordinates @ G @ columns[:, :kept]
    return triangular @ coordinates, triangular @ inner @ torch.linalg.inv(triangular)


# Eigenvectors as real blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Block:
    columns: Tensor  # (D, 1 or 2): G columns = columns [[a, -b], [b, a]] for the eigenvalue a + ib
    frequency: int  # nearest admissible one
    magnitude: float  # |eigenvalue| of the group element, or its logarithm for SO(2)


def _columns(blocks: list[_Block]) -> Tensor:
    """The (D, D) real basis of the blocks, refused if it is nearly singular."""
    columns = torch.cat([block.columns for block in blocks], dim=1)
    if float(torch.linalg.cond(columns)) > MAX_CONDITION:
        raise ValueError("the steerer's matrix cannot be diagonalised: it has too few independent eigenvectors")
    return columns


def _eigen_blocks(G: Tensor, group: Group) -> list[_Block]:
    """One block for each real eigenvalue and each conjugate pair."""
    values, vectors = (_normal_eig(G) if _is_normal(G) else None) or torch.linalg.eig(G)
    blocks = []
    for index, value in enumerate(values.tolist()):
        if value.imag < 0:  # its conjugate stands for both
            continue
        vector = vectors[:, index]
        if value.imag == 0:
            columns = vector.real[:, None]
        else:
            columns = torch.stack([vector.real, -vector.imag], dim=1) * math.sqrt(2)
        magnitude = value.real if group.continuous else abs(value)
        blocks.append(_Block(columns, _nearest_frequency(value, group), magnitude))
    return blocks


def _admissible_blocks(G: Tensor, group: Group) -> list[_Block]:
    """Eigen blocks whose sizes fit their frequencies.

    A conjugate pair near a one-dimensional frequency is two blocks of it; real eigenvalues near -1 of C_n with odd n,
    where -1 is not admissible, are joined two by two (one that is left over counts as frequency 0).
    """
    fitting: list[_Block] = []
    lonely: list[_Block] = []
    for block in _eigen_blocks(G, group):
        single = block.frequency == 0 or 2 * block.frequency == (group.order or -1)
        if block.columns.shape[1] == 2 and single:
            fitting += [replace(block, columns=column) for column in block.columns.split(1, dim=1)]
        elif block.columns.shape[1] == 1 and not single:
            lonely.append(block)
        else:
            fitting.append(block)
    for first, second in zip(lonely[::2], lonely[1::2], strict=False):
        fitting.append(replace(first, columns=torch.cat([first.columns, second.columns], dim=1)))
    if len(lonely) % 2:
        fitting.append(replace(lonely[-1], frequency=0))
    return fitting


def _nearest_frequency(value: complex, group: Group) -> int:
    if group.order is None:
        return round(abs(value.imag))
    return min(round(abs(math.atan2(value.imag, value.real)) * group.order / (2 * math.pi)), group.order // 2)


def _reference_magnitude(blocks: list[_Block]) -> float:
    """The median of the larger half: the common factor of the eigenvalues that matter."""
    magnitudes = sorted((block.magnitude for block in blocks), reverse=True)
    return statistics.median_low(magnitudes[: (len(magnitudes) + 1) // 2])


def _is_normal(G: Tensor) -> bool:
    scale = float(G.norm()) ** 2
    return scale == 0.0 or float((G @ G.mT - G.mT @ G).norm()) < NORMAL_TOLERANCE * scale


def _normal_eig(G: Tensor) -> tuple[Tensor, Tensor] | None:
    """Orthonormal eigenvectors of a normal matrix, sound where eigenvalues repeat (LAPACK's ``geev`` is not).

    The symmetric and the skew part commute, so the Hermitian matrix ``S - i t K`` with a generic ``t`` has the same
    eigenvectors; those of real eigenvalues are made real. ``None`` if the matrix proves not to be normal after all.
    """
    symmetric, skew = (G + G.mT) / 2, (G - G.mT) / 2
    for weight in (math.sqrt(2.0), math.sqrt(3.0), math.pi):  # eigenvalues may collide for one of them
        _, vectors = torch.linalg.eigh(torch.complex(symmetric, -weight * skew))
        values = torch.einsum("di,de,ei->i", vectors.conj(), G.to(vectors.dtype), vectors)
        _make_real(values, vectors)
        defect = (G.to(vectors.dtype) @ vectors - vectors * values).norm()
        paired = int((values.imag > 0).sum()) == int((values.imag < 0).sum())
        if paired and float(defect) <= 1e-12 * len(G) * float(G.norm()):
            return values, vectors
    return None


def _make_real(values: Tensor, vectors: Tensor) -> None:
    """Give real eigenvalues real eigenvectors, in place: any basis of an eigenspace will do, so take a real one."""
    scale = max(1.0, float(values.abs().max()))
    real = values.imag.abs() <= 1e-9 * scale
    for value in _distinct(values.real[real]):
        group = real & ((values.real - value).abs() < 1e-7 * scale)
        span = vectors[:, group]
        _, directions = torch.linalg.eigh((span @ span.mH).real)
        vectors[:, group] = directions[:, -int(group.sum()) :].to(vectors.dtype)
        values[group] = torch.complex(values.real[group], torch.zeros_like(values.real[group]))


def _distinct(values: Tensor) -> list[float]:
    """Values of a tensor that differ by more than rounding."""
    distinct: list[float] = []
    for value in values.sort().values.tolist():
        if not distinct or value - distinct[-1] > 1e-7 * max(1.0, abs(value)):
            distinct.append(value)
    return distinct
