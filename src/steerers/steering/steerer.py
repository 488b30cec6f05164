"""The steerer: a linear map of descriptions that stands for a rotation of the image.

``steer(d(I), angle)`` is approximately ``d(I rotated counter-clockwise by angle)``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steerers.features import Numbers, as_tensor
from steerers.steering import analysis
from steerers.steering.actions import Action, BlockAction, MatrixAction, PermutationAction
from steerers.steering.representations import Group, Representation, check_dim

if TYPE_CHECKING:
    from collections.abc import Mapping

ORTHOGONAL_TOLERANCE = 1e-5
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Of learned matrices: what PyTorch computes with."""


class Steerer(nn.Module):
    """A representation of SO(2) or C_n, or a learned matrix, acting on descriptions.

    Make one with :meth:`inv`, :meth:`freq1`, :meth:`perm`, :meth:`spread`, :meth:`random`, :meth:`from_spec`,
    :meth:`from_permutation`, :meth:`from_matrix` or :meth:`load`.

    A *fixed* steerer made from a representation or a permutation is exact and costs O(D) a description. A *learnable*
    one holds a dense (D, D) generator as its parameter, whatever it was initialised from.
    """

    def __init__(self, action: Action) -> None:
        super().__init__()
        self.action = action
        self._exponential: tuple[Tensor, analysis.Exponential] | None = None

    # Constructors -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_representation(cls, representation: Representation, *, learnable: bool = False) -> Steerer:
        """The steerer that acts by ``representation`` in its own basis, or is initialised so."""
        return cls._fixed_or_learnable(BlockAction(representation), learnable)

    @classmethod
    def from_spec(
        cls, spec: str, group: str | Group = "SO2", *, dim: int | None = None, learnable: bool = False
    ) -> Steerer:
        """The steerer of a specification such as ``"40x0 + 18x1"``; ``dim``, if given, must be what it adds up to."""
        return cls.from_representation(Representation.parse(spec, group, dim), learnable=learnable)

    @classmethod
    def inv(cls, dim: int, group: str | Group = "SO2", *, learnable: bool = False) -> Steerer:
        """*Inv*: every eigenvalue 1; descriptions that do not change when the image rotates."""
        check_dim(dim)
        return cls.from_spec(f"{dim}x0", group, learnable=learnable)

    @classmethod
    def freq1(cls, dim: int, group: str | Group = "SO2", *, learnable: bool = False) -> Steerer:
        """*Freq1*: pairs of coordinates that rotate with the image; ``dim`` must be even."""
        check_dim(dim)
        group = Group.parse(group)
        if group.order == 2:
            raise ValueError("Freq1 needs a group with 2 x 2 blocks: SO(2) or C_n with n > 2")
        if dim % 2:
            raise ValueError(f"Freq1 is made of pairs of coordinates: dim must be even, got {dim}")
        return cls.from_spec(f"{dim // 2}x1", group, learnable=learnable)

    @classmethod
    def perm(cls, dim: int, group: str | Group = "C4", *, learnable: bool = False) -> Steerer:
        """*Perm*: cyclic permutations of n coordinates each, for C_n; ``dim`` must be a multiple of n."""
        check_dim(dim)
        group = Group.parse(group)
        if group.order is None:
            raise ValueError("Perm represents a cyclic group such as C4, not SO(2); for SO(2) use Spread")
        if dim % group.order:
            raise ValueError(f"Perm for {group} is made of cycles of {group.order}: dim {dim} is not a multiple of it")
        cycles = torch.arange(dim).view(-1, group.order).roll(-1, dims=1)
        return cls.from_permutation(cycles.flatten(), group, learnable=learnable)

    @classmethod
    def spread(cls, dim: int, max_frequency: int = 6, *, learnable: bool = False) -> Steerer:
        """*Spread*: frequencies 0 to ``max_frequency`` of SO(2) in about equal parts, the remainder to frequency 0.

        For 256 dimensions it is the paper's: 40 of frequency 0 and 18 each of 1 to 6.
        """
        check_dim(dim)
        if max_frequency < 1:
            raise ValueError(f"max_frequency must be at least 1, got {max_frequency}")
        each = dim // (2 * max_frequency + 2)
        if each == 0:
            raise ValueError(
                f"Spread with frequencies up to {max_frequency} needs dim {2 * max_frequency + 2} or more, got {dim}; "
                "lower max_frequency or choose the frequencies with Steerer.from_spec"
            )
        terms = [(dim - 2 * max_frequency * each, 0)] + [(each, j) for j in range(1, max_frequency + 1)]
        return cls.from_representation(Representation(Group(None), tuple(terms)), learnable=learnable)

    @classmethod
    def random(
        cls, dim: int, group: str | Group = "SO2", *, generator: torch.Generator | None = None, learnable: bool = True
    ) -> Steerer:
        """The initialisation of Setting B: entries uniform in (-D^-1/2, D^-1/2), from ``generator``."""
        check_dim(dim)
        bound = dim**-0.5
        weight = (2 * torch.rand(dim, dim, generator=generator) - 1) * bound
        return cls(MatrixAction(weight, Group.parse(group), learnable=learnable))

    @classmethod
    def from_permutation(cls, permutation: Numbers, group: str | Group, *, learnable: bool = False) -> Steerer:
        """The steerer whose smallest rotation maps ``d`` to ``d[permutation]``, such as that of Upright SIFT."""
        return cls._fixed_or_learnable(PermutationAction(permutation, Group.parse(group)), learnable)

    @classmethod
    def from_matrix(cls, matrix: Numbers, group: str | Group, *, learnable: bool = False) -> Steerer:
        """The steerer of a (D, D) matrix: the smallest rotation of C_n, or the Lie algebra element of SO(2)."""
        matrix = as_tensor("matrix", matrix)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise ValueError(f"a steerer needs a square matrix, got shape {tuple(matrix.shape)}")
        check_dim(matrix.shape[0])
        if matrix.dtype not in DTYPES:
            raise TypeError(f"a steerer needs a 16, 32 or 64-bit floating-point matrix, got {matrix.dtype}")
        if not bool(torch.isfinite(matrix).all()):
            raise ValueError("the steerer's matrix holds NaN or infinite entries")
        return cls(MatrixAction(matrix.detach(), Group.parse(group), learnable=learnable))

    @classmethod
    def _fixed_or_learnable(cls, action: Action, learnable: bool) -> Steerer:
        if not learnable:
            return cls(action)
        return cls(MatrixAction(action.generator().to(torch.get_default_dtype()), action.group, learnable=True))

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        """The group that is represented."""
        return self.action.group

    @property
    def dim(self) -> int:
        """Length D of the descriptions it steers."""
        return self.action.dim

    @property
    def representation(self) -> Representation | None:
        """The exact representation, in the basis of :meth:`to_blocks`; ``None`` for a matrix."""
        return self.action.representation

    @property
    def learnable(self) -> bool:
        """Whether it has a parameter."""
        return any(True for _ in self.parameters())

    @property
    def orthogonal(self) -> bool:
        """Whether steering keeps lengths, so that normalising before it suffices."""
        if self.representation is not None:
            return True
        weight = self.generator().detach().double()
        defect = weight + weight.mT if self.group.continuous else weight @ weight.mT - torch.eye(self.dim).to(weight)
        return bool(defect.abs().max() < ORTHOGONAL_TOLERANCE)

    def extra_repr(self) -> str:
        what = f'"{self.representation}"' if self.representation is not None else f"{self.dim} x {self.dim} matrix"
        return f"{what}, group={self.group}, learnable={self.learnable}"

    # What it does -----------------------------------------------------------------------------------------------------

    def steer(self, descriptions: Numbers, angle: float | Numbers) -> Tensor:
        """Descriptions of the image rotated counter-clockwise.

        Args:
            descriptions: (..., D), a tensor or a NumPy array.
            angle: radians; a number, or a tensor that broadcasts with the leading shape, for a rotation of each. For
                C_n it must be a multiple of 2 pi / n.

        Returns:
            (..., D), not normalised, since a learned steerer does not keep lengths.
        """
        descriptions = as_tensor("descriptions", descriptions)
        if not descriptions.is_floating_point():
            raise TypeError(f"descriptions must be floating-point, got {descriptions.dtype}")
        length = descriptions.shape[-1] if descriptions.ndim else 0
        if length != self.dim:
            raise ValueError(f"this steerer acts on descriptions of length {self.dim}, got {length}")
        radians = angle if isinstance(angle, (int, float)) else as_tensor("angle", angle)
        return self.action.steer(descriptions, torch.as_tensor(radians, dtype=torch.float64))

    forward = steer

    def matrix(self, angle: float) -> Tensor:
        """The (D, D) matrix of a rotation by ``angle`` radians."""
        generator = self.generator()
        return self.steer(torch.eye(self.dim, dtype=generator.dtype, device=generator.device), angle).mT

    def generator(self) -> Tensor:
        """What defines the steerer, (D, D): the smallest rotation of C_n, the Lie algebra generator of SO(2)."""
        return self.action.generator()

    def discretised(self, order: int) -> Steerer:
        """The fixed steerer of the subgroup C_order; of SO(2) every order is one."""
        return Steerer(self.action.discretised(order))

    def to_blocks(self, descriptions: Tensor) -> Tensor:
        """(..., D) descriptions in the orthogonal basis in which :attr:`representation` acts block by block."""
        if self.representation is None:
            raise ValueError("a steerer made from a matrix has no exact blocks; see Steerer.block_diagonalise")
        return self.action.to_blocks(descriptions)

    def block_basis(self) -> Tensor:
        """(D, D) float64 on the CPU: ``descriptions @ basis.T`` is what :meth:`to_blocks` gives."""
        identity = torch.eye(self.dim, dtype=torch.float64, device=self.generator().device)
        return self.to_blocks(identity).mT.cpu()

    # Analysis ---------------------------------------------------------------------------------------------------------

    def eigenvalues(self) -> Tensor:
        """The (D,) complex eigenvalues of the generator."""
        if self.representation is not None:
            return self.representation.eigenvalues()
        return analysis.eigenvalues(self.generator())

    def block_diagonalise(self) -> analysis.BlockDiagonalisation:
        """A basis in which the steerer is block-diagonal, with the nearest admissible representation."""
        return analysis.block_diagonalise(self.generator(), self.group)

    def nearest_representation(self) -> tuple[Representation, float]:
        """The admissible representation whose eigenvalues are nearest, and the relative residual (0 if exact)."""
        blocks = self.block_diagonalise()
        return blocks.representation, blocks.residual

    def frequency1_basis(self) -> Tensor:
        """The (D, D) change of basis in which every pair of coordinates rotates with the image.

        Raises:
            ValueError: if not all frequencies are 1; see :func:`~steerers.steering.analysis.frequency1_basis`.
        """
        return analysis.frequency1_basis(self.generator(), self.group)

    def exponential(self) -> analysis.Exponential:
        """Every rotation of an SO(2) steerer by its eigenvectors; found once, unless the generator changes."""
        if not self.group.continuous:
            raise ValueError(f"a {self.group} steerer has single rotations; the exponential is for SO(2)")
        generator = self.generator().detach()
        kept = self._exponential
        if kept is None or kept[0].device != generator.device or not torch.equal(kept[0], generator):
            self._exponential = kept = generator.clone(), analysis.exponential(generator)
        return kept[1]

    def invariant_projector(self) -> Tensor:
        """The (D, D) projector to the descriptions that no rotation changes."""
        return analysis.invariant_projector(self.generator(), self.group)

    def reduced(self, dim: int) -> tuple[Tensor, Steerer]:
        """Shorten descriptions to the span of the eigenvectors with the largest eigenvalues (paper, section 6.5).

        Returns:
            The (d, D) projection and the steerer of the projected descriptions ``descriptions @ projection.T``; ``d``
            is ``dim``, or one less where a pair of conjugate eigenvalues would be torn apart. Both have the dtype of
            the generator (float64 for a fixed steerer).
        """
        dtype = self.generator().dtype
        projection, generator = analysis.reduce(self.generator(), self.group, dim)
        return projection.to(dtype), Steerer.from_matrix(generator.to(dtype), self.group)

    # Files ------------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write a safetensors file that :meth:`load` reads back, with ``metadata`` of your own beside."""
        from steerers._weights import save

        tensors, described = self.export()
        save(path, tensors, {**(metadata or {}), **described})

    @classmethod
    def load(cls, path: str | os.PathLike[str], group: str | Group | None = None) -> Steerer:
        """Read what :meth:`save` wrote, or a matrix that others publish.

        A learnable steerer comes back learnable. The files of others are a matrix by itself, in a state dict, or in a
        training checkpoint, as ``.pth`` or ``.safetensors``, such as ``B_C4_steerer_setting_A.pth`` of the paper's
        authors. They do not say of which group the matrix is.

        Args:
            group: of the steerer, which a file of :meth:`save` must then have; by default that of the file, and for
                those of others the one that their name holds as a part, such as C4 or SO2.
        """
        return load_described(path, group)[0]

    def export(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The steerer as tensors and metadata, to travel in one file with the weights of its descriptor."""
        metadata = {"steerer.group": str(self.group), "steerer.dim": str(self.dim)}
        if isinstance(self.action, BlockAction):
            representation = self.action.representation
            tensors = {"steerer.frequencies": representation.coordinates()[0]}
            return tensors, metadata | {"steerer.kind": "blocks", "steerer.spec": str(representation)}
        if isinstance(self.action, PermutationAction):
            return {"steerer.permutation": self.action.permutation.cpu()}, metadata | {"steerer.kind": "permutation"}
        kind = "learnable" if self.learnable else "matrix"
        return {"steerer.generator": self.generator().detach().cpu()}, metadata | {"steerer.kind": kind}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Steerer:
        """The inverse of :meth:`export`; a file whose parts contradict each other is refused."""
        if "steerer.kind" not in metadata:
            raise ValueError("its metadata names no steerer")
        kind, group, dim = metadata["steerer.kind"], metadata["steerer.group"], int(metadata["steerer.dim"])
        if kind == "blocks":
            representation = Representation.parse(metadata["steerer.spec"], group)
            steerer = cls.from_representation(representation)
            found, expected = tensors["steerer.frequencies"], representation.coordinates()[0]
            if found.dtype != expected.dtype or not torch.equal(found, expected):
                raise ValueError("its frequencies contradict its specification")
        elif kind == "permutation":
            steerer = cls.from_permutation(tensors["steerer.permutation"], group)
        elif kind in ("matrix", "learnable"):
            steerer = cls.from_matrix(tensors["steerer.generator"], group, learnable=kind == "learnable")
        else:
            raise ValueError(f"unknown kind of steerer {kind!r}")
        if steerer.dim != dim:
            raise ValueError(f"its metadata says dimension {dim}, its contents {steerer.dim}")
        return steerer


def load_described(path: str | os.PathLike[str], group: str | Group | None = None) -> tuple[Steerer, dict[str, str]]:
    """What :meth:`Steerer.load` gives, and the metadata of the file; of a file of others there is none."""
    from steerers._weights import WeightsError, load_steerer

    wanted = None if group is None else Group.parse(group)
    tensors, metadata = load_steerer(path)
    told = metadata
    if not metadata:
        known, dim = wanted or _group_in_name(path), len(tensors["steerer.generator"])
        told = {"steerer.kind": "matrix", "steerer.group": str(known), "steerer.dim": str(dim)}
    try:
        steerer = Steerer.restore(tensors, told)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{os.fspath(path)} does not hold a steerer: {error}") from error
    if wanted not in (None, steerer.group):
        raise WeightsError(f"{os.fspath(path)}: a steerer of {steerer.group}, but the group shall be {wanted}")
    return steerer, metadata


def _group_in_name(path: str | os.PathLike[str]) -> Group:
    """The group that is a part of a file's name, such as ``C4`` in ``B_C4_steerer_setting_A.pth``."""
    parts = re.split(r"[^0-9A-Za-z]+", Path(path).stem.upper())
    found = {part for part in parts if re.fullmatch(r"SO2|C([2-9]|[1-9]\d+)", part)}
    if len(found) != 1:
        raise ValueError(
            f"{os.fspath(path)}: a matrix that does not say of which group it is: give group, such as C4 or SO2, to "
            "Steerer.load, or let the file's name hold it, as in steerer_C4.pth"
        )
    return Group.parse(found.pop())
