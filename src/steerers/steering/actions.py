"""How a steerer acts on descriptions: by blocks, by a permutation, or by a matrix.

All three answer the same calls. Blocks and permutations are exact representations and cost O(D) a description; a matrix
is what is learned.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from steerers.features import Numbers, as_tensor
from steerers.steering.representations import Group, Representation, check_dim

EXPONENTIALS = 16
"""Rotations whose matrices are made at once: several small exponentials take a GPU little longer than one."""


class Action(ABC, nn.Module):
    """A (possibly approximate) representation of ``group`` on descriptions of length ``dim``."""

    group: Group
    dim: int
    representation: Representation | None
    """The exact representation in the basis of :meth:`to_blocks`, or ``None`` for a matrix."""

    @abstractmethod
    def steer(self, descriptions: Tensor, angle: Tensor) -> Tensor:
        """Steer (..., D) descriptions by ``angle`` radians, a scalar or a tensor that broadcasts with (...)."""

    @abstractmethod
    def generator(self) -> Tensor:
        """The (D, D) matrix that defines the action: the smallest rotation of C_n, the Lie algebra element of SO(2)."""

    @abstractmethod
    def discretised(self, order: int) -> Action:
        """The same action of the subgroup C_order."""

    def to_blocks(self, descriptions: Tensor) -> Tensor:
        """Orthogonal change of (..., D) descriptions to the basis in which :attr:`representation` acts."""
        raise NotImplementedError(f"{type(self).__name__} has no exact blocks")


class BlockAction(Action):
    """A representation acting in its own basis: elementwise products with cosines and sines."""

    partner: Tensor
    sign: Tensor

    def __init__(self, representation: Representation) -> None:
        super().__init__()
        self.representation: Representation = representation
        self.group, self.dim = representation.group, representation.dim
        _, partner, sign = representation.coordinates()
        self.register_buffer("partner", partner, persistent=False)
        self.register_buffer("sign", sign, persistent=False)

    def steer(self, descriptions: Tensor, angle: Tensor) -> Tensor:
        cos, sin = self.representation.cos_sin(angle.to(self.partner.device))
        cos, signed_sin = cos.to(descriptions), (sin * self.sign.to(sin)).to(descriptions)
        return cos * descriptions + signed_sin * descriptions.index_select(-1, self.partner)

    def generator(self) -> Tensor:
        return self.representation.generator().to(self.sign.device)

    def discretised(self, order: int) -> BlockAction:
        return BlockAction(self.representation.restrict(order)).to(self.sign.device)

    def to_blocks(self, descriptions: Tensor) -> Tensor:
        return descriptions


class PermutationAction(Action):
    """A permutation whose n-th power is the identity, acting for C_n: steering is a gather.

    Its blocks are the discrete Fourier transforms along its cycles.
    """

    powers: Tensor
    basis: Tensor

    def __init__(self, permutation: Numbers, group: Group) -> None:
        super().__init__()
        if group.order is None:
            raise ValueError("a permutation represents a cyclic group, not SO(2)")
        checked = _check_permutation(permutation)
        self.group, self.dim = group, len(checked)
        powers = [torch.arange(self.dim)]
        for _ in range(1, group.order):
            powers.append(powers[-1][checked])
        if not torch.equal(powers[-1][checked], powers[0]):
            raise ValueError(
                f"the permutation's power {group.order} is not the identity, so it does not represent {group}"
            )
        self.register_buffer("powers", torch.stack(powers), persistent=False)  # (n, D)
        self.representation, basis = _fourier_basis(checked, group.order)
        self.register_buffer("basis", basis, persistent=False)  # (D, D), orthogonal

    @property
    def permutation(self) -> Tensor:
        """(D,) index ``p``: the smallest rotation maps ``d`` to ``d[p]``."""
        return self.powers[1]

    def steer(self, descriptions: Tensor, angle: Tensor) -> Tensor:
        index = self.powers[self.group.steps(angle).to(self.powers.device)]  # (..., D)
        if index.ndim == 1:
            return descriptions.index_select(-1, index)
        shape = torch.broadcast_shapes(descriptions.shape, index.shape)
        return descriptions.expand(shape).gather(-1, index.expand(shape))

    def generator(self) -> Tensor:
        return torch.eye(self.dim, dtype=torch.float64, device=self.powers.device)[self.permutation]

    def discretised(self, order: int) -> PermutationAction:
        subgroup, whole = self.group.subgroup(order), len(self.powers)
        action = PermutationAction(self.powers[whole // order % whole].cpu(), subgroup)
        return action.to(self.powers.device)

    def to_blocks(self, descriptions: Tensor) -> Tensor:
        return descriptions @ self.basis.to(descriptions).mT


class MatrixAction(Action):
    """Any square matrix: the rotation itself for C_n, the Lie algebra element for SO(2), fixed or learnable.

    It need not be orthogonal nor even invertible, so descriptions must be normalised after steering.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, group: Group, *, learnable: bool) -> None:
        super().__init__()
        self.group, self.dim, self.representation = group, int(weight.shape[0]), None
        if learnable:
            self.weight = nn.Parameter(weight.clone())
        else:
            self.register_buffer("weight", weight.clone())

    def steer(self, descriptions: Tensor, angle: Tensor) -> Tensor:
        if angle.ndim == 0:
            return descriptions @ self.element(angle).to(descriptions).mT
        shape = torch.broadcast_shapes(descriptions.shape[:-1], angle.shape)
        flat = descriptions.expand(*shape, self.dim).reshape(-1, self.dim)  # (M, D)
        rotations, which = angle.to(descriptions.device).expand(shape).reshape(-1).unique(return_inverse=True)
        if len(rotations) == 0:
            return flat.view(*shape, self.dim)
        order = which.argsort(stable=True)
        counts = which.bincount(minlength=len(rotations)).tolist()
        elements = (element for few in rotations.split(EXPONENTIALS) for element in self.element(few))
        parts = [part @ element.to(part).mT for part, element in zip(flat[order].split(counts), elements, strict=True)]
        return torch.cat(parts)[order.argsort()].view(*shape, self.dim)

    def element(self, angle: Tensor) -> Tensor:
        """The (..., D, D) matrices of rotations by (...) angles; gradients flow to the weight."""
        element: Tensor
        if self.group.order is not None:
            steps = self.group.steps(angle)
            powers = [torch.linalg.matrix_power(self.weight, step) for step in steps.reshape(-1).tolist()]
            return torch.stack(powers).view(*steps.shape, self.dim, self.dim)
        # In float64: repeated squaring multiplies rounding errors, which are large where TF32 is switched on. The CPU
        # does it where a device has no float64 (MPS).
        device = "cpu" if self.weight.device.type == "mps" else self.weight.device
        scaled = self.weight.to(device, torch.float64) * angle.to(device, torch.float64)[..., None, None]
        element = torch.linalg.matrix_exp(scaled)
        return element.to(self.weight)

    def generator(self) -> Tensor:
        return self.weight

    def discretised(self, order: int) -> MatrixAction:
        subgroup, rotation = self.group.subgroup(order), torch.tensor(2 * math.pi / order, dtype=torch.float64)
        return MatrixAction(self.element(rotation).detach(), subgroup, learnable=False)


def _check_permutation(given: Numbers) -> Tensor:
    permutation = as_tensor("permutation", given)
    if permutation.is_floating_point() or permutation.is_complex() or permutation.dtype == torch.bool:
        raise TypeError(f"permutation must hold integers, got {permutation.dtype}")
    numbers = permutation.long().cpu()
    if numbers.ndim != 1 or not torch.equal(numbers.sort().values, torch.arange(len(numbers))):
        raise ValueError("permutation must hold each of the numbers 0 to D - 1 once")
    check_dim(len(numbers))
    return numbers


def _fourier_basis(permutation: Tensor, order: int) -> tuple[Representation, Tensor]:
    """The real Fourier transform along the cycles of a permutation.

    Along a cycle ``c`` of length m the permutation shifts ``d[c]`` by one, which rotates its coefficient of frequency f
    by ``2 pi f / m``; as a representation of C_n that is the frequency ``f n / m``.

    Returns:
        The representation and the (D, D) orthogonal matrix whose rows are the basis, ordered by frequency.
    """
    rows: list[tuple[int, Tensor]] = []  # (frequency, (1 or 2, D))
    for cycle in _cycles(permutation):
        length = len(cycle)
        time = torch.arange(length, dtype=torch.float64)
        for f in range(length // 2 + 1):
            phase = 2 * math.pi * f * time / length
            single = f == 0 or 2 * f == length
            waves = torch.cos(phase)[None] if single else torch.stack([torch.cos(phase), -torch.sin(phase)])
            row = torch.zeros(len(waves), len(permutation), dtype=torch.float64)
            row[:, cycle] = waves / waves.norm(dim=1, keepdim=True)
            rows.append((f * order // length, row))
    rows.sort(key=lambda item: item[0])
    frequencies = [frequency for frequency, _ in rows]
    terms = tuple((frequencies.count(j), j) for j in sorted(set(frequencies)))
    return Representation(Group(order), terms), torch.cat([row for _, row in rows])


def _cycles(permutation: Tensor) -> list[list[int]]:
    """The cycles ``i, p[i], p[p[i]], ...`` of a permutation."""
    targets, seen, cycles = permutation.tolist(), set[int](), []
    for start in range(len(targets)):
        cycle, current = [], start
        while current not in seen:
            seen.add(current)
            cycle.append(current)
            current = targets[current]
        if cycle:
            cycles.append(cycle)
    return cycles
