"""What a learned steerer is made of: eigenvalues, blocks, the nearest representation, invariants, idle directions,
and its exponential.

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
MAX_RESIDUAL = 1e-6
"""Of a decomposition into eigenvectors, relative to the matrix."""
FREQUENCY1_RESIDUAL = 1e-2
"""How far a matrix may be from a representation of frequency 1, relative to it, to be taken for one."""


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


def frequency1_basis(generator: Tensor, group: Group) -> Tensor:
    """The (D, D) change of basis in which every pair of coordinates rotates with the image (paper, section 5.2).

    It is for generators whose eigenvalues are those of frequency 1, up to a common factor: +-i of SO(2) and C_4. With
    the nearest such generator ``J``, ``J @ J = -I``, the inner product that no rotation changes is
    ``P = (I + J^T J) / 2``, the average of the ordinary one over the group. The basis is orthonormal for it: a rotation
    of orthonormal blocks times ``P^(1/2)``. So it is orthogonal where ``J`` is, and cosines are then what they were.

    Raises:
        ValueError: if the matrix is farther than :data:`FREQUENCY1_RESIDUAL` from every such representation.
    """
    found = block_diagonalise(generator, group)
    if set(found.representation.multiplicities()) != {1} or group.order == 2 or found.residual > FREQUENCY1_RESIDUAL:
        raise ValueError(
            f"the matrix is not one of frequency 1 within {FREQUENCY1_RESIDUAL:g}: the nearest representation is "
            f"{found.representation} of {group}, with a residual of {found.residual:.2g}"
        )
    quarter = Representation(Group(None), ((len(found.basis) // 2, 1),)).generator()
    J = found.inverse @ quarter @ found.basis
    values, vectors = torch.linalg.eigh((torch.eye(len(J), dtype=torch.float64) + J.mT @ J) / 2)
    root, inverse_root = ((vectors * values**power) @ vectors.mT for power in (0.5, -0.5))
    skew = root @ J @ inverse_root
    basis: Tensor = block_diagonalise((skew - skew.mT) / 2, Group(None)).basis @ root
    return basis


# The exponential ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Exponential:
    """``exp(t G)`` of a generator of SO(2) by its eigenvectors: ``columns @ blocks(t) @ inverse``, up to a factor.

    In the coordinates ``inverse @ d`` each eigenvalue a + ib acts by itself: e^(a t) is its growth, and of a conjugate
    pair the two coordinates rotate by ``b t``. The largest growth is subtracted from all, so that nothing overflows;
    steering ignores lengths.
    """

    columns: Tensor  # (D, D)
    inverse: Tensor  # (D, D)
    growth: Tensor  # (D,), 0 at most
    frequency: Tensor  # (D,), negative for the first of two coordinates
    partner: Tensor  # (D,), the other of two coordinates, or itself
    rate: float  # most radians by which a unit description turns for each radian: |G - c|, c being the middle growth
    residual: float  # |G - columns @ blocks @ inverse| / |G|, Frobenius
    condition: float  # of the columns

    @property
    def sound(self) -> bool:
        """Whether there are enough eigenvectors, well apart."""
        return self.condition <= MAX_CONDITION and self.residual <= MAX_RESIDUAL

    def to(self, device: torch.device) -> Exponential:
        """The same on a device."""
        return replace(
            self,
            columns=self.columns.to(device),
            inverse=self.inverse.to(device),
            growth=self.growth.to(device),
            frequency=self.frequency.to(device),
            partner=self.partner.to(device),
        )

    def move(self, coordinates: Tensor, angle: Tensor) -> Tensor:
        """(..., D) coordinates after rotations that broadcast with (...)."""
        t = angle[..., None]
        rotated = torch.cos(self.frequency * t) * coordinates
        rotated.addcmul_(torch.sin(self.frequency * t), coordinates[..., self.partner])
        return rotated.mul_(torch.exp(self.growth * t))

    def derivative(self, coordinates: Tensor) -> Tensor:
        """Of (..., D) coordinates along the rotation."""
        return self.growth * coordinates + self.frequency * coordinates[..., self.partner]

    def matrices(self, angles: Tensor) -> Tensor:
        """(L, D, D)."""
        # Blocks and inverse are one product with the coordinates of the unit vectors, which are its columns.
        return (self.move(self.inverse.mT, angles[:, None]) @ self.columns.mT).mT


def exponential(generator: Tensor) -> Exponential:
    """The exponential of a generator of SO(2), which is to be used only if it is ``sound``."""
    G = generator.detach().double().cpu()
    blocks = _eigen_blocks(G, Group(None))
    columns = torch.cat([block.columns for block in blocks], dim=1)
    condition = float(torch.linalg.cond(columns))
    inverse = torch.linalg.inv(columns) if condition < 1 / torch.finfo(G.dtype).eps else torch.linalg.pinv(columns)
    growth, frequency, partner = list[float](), list[float](), list[int]()
    for block in blocks:
        start, size = len(growth), block.columns.shape[1]
        growth += [block.value.real] * size
        frequency += [0.0] if size == 1 else [-block.value.imag, block.value.imag]
        partner += [start] if size == 1 else [start + 1, start]
    real, imaginary = torch.tensor(growth, dtype=torch.float64), torch.tensor(frequency, dtype=torch.float64)
    middle = (real.max() + real.min()) / 2
    rate = float(torch.linalg.matrix_norm(G - middle * torch.eye(len(G), dtype=torch.float64), 2))
    found = Exponential(columns, inverse, real, imaginary, torch.tensor(partner), rate, 0.0, condition)
    defect = float((G - (found.derivative(inverse.mT) @ columns.mT).mT).norm())
    residual = defect / float(G.norm()) if defect else 0.0
    return replace(found, growth=real - real.max(), residual=residual)


# Eigenvectors as real blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Block:
    columns: Tensor  # (D, 1 or 2): G columns = columns [[a, -b], [b, a]] for the eigenvalue a + ib
    value: complex
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
        blocks.append(_Block(columns, value, _nearest_frequency(value, group), magnitude))
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
