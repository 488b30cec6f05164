"""Strategies that align descriptions of frequency 1 in closed form (paper, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerers.matching.assignment import Assignment
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Harmonics
from steerers.matching.similarity import Cosine, as_float, normalised
from steerers.matching.strategy import Pair, WithSteerer, with_angles


@dataclass(frozen=True, kw_only=True)
class Frequency1(WithSteerer):
    """What the Procrustes strategies share: every pair of coordinates rotates with the image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        representation = self.steerer.representation
        if representation is None:
            raise ValueError(f"{self.name} needs a fixed frequency-1 steerer (Steerer.freq1), not a learned matrix")
        if set(representation.multiplicities()) != {1} or representation.group.order == 2:
            raise ValueError(
                f"{self.name} needs every frequency to be 1 (Steerer.freq1); this steerer is {representation} of "
                f"{representation.group}. For other fixed SO(2) steerers, max-similarity with order=None is exact"
            )

    def _harmonics(self, descriptions0: Tensor, descriptions1: Tensor) -> Harmonics:
        return Harmonics(descriptions0, descriptions1, self.steerer, self.steerer.group.order)


@dataclass(frozen=True, kw_only=True)
class Procrustes(Frequency1):
    """Align each pair of frequency-1 descriptions by its own best rotation, in closed form, then match once."""

    name = "procrustes"

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return self._assign_with_rotations([Continuous(self._harmonics(*pair)) for pair in pairs])


@dataclass(frozen=True, kw_only=True)
class PrototypeProcrustes(Frequency1):
    """Align every frequency-1 description to one prototype, then match once: the cost of an ordinary match.

    ``prototype`` is a (D,) description; by default every pair of coordinates points the same way.
    """

    name = "prototype-procrustes"
    prototype: Tensor | None = None
    _prototypes: dict[tuple[torch.device, torch.dtype], tuple[Tensor | None, Tensor]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prototype is not None and self.prototype.shape != (self.steerer.dim,):
            raise ValueError(f"prototype must have shape ({self.steerer.dim},), got {tuple(self.prototype.shape)}")
        if self.prototype is not None and not bool(torch.isfinite(self.prototype).all() and self.prototype.any()):
            raise ValueError("prototype must be finite and not all zero")

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        aligned = [(self._aligned(first), self._aligned(second)) for first, second in pairs]
        assignments = self._assign([Cosine(first, second, copied=True) for (first, _), (second, _) in aligned])
        found = []
        for assignment, ((_, rotations0), (_, rotations1)) in zip(assignments, aligned, strict=True):
            i, j = assignment.indices.unbind(dim=1)
            found.append(with_angles(assignment, rotations0[i] - rotations1[j]))
        return found

    def _aligned(self, descriptions: Tensor) -> tuple[Tensor, Tensor]:
        """Unit descriptions rotated to the prototype, (N, D) in the steerer's blocks, and the rotations, (N,).

        A block is a complex number, and rotating it a product; nothing else of the size of the descriptions is made.
        """
        own = as_float(descriptions)
        blocks = self.steerer.to_blocks(own).contiguous()
        signs, towards = self._prototype(blocks)
        if signs is not None:
            blocks = blocks * signs
        products = blocks @ towards  # (N, 2)
        rotations = torch.atan2(products[:, 1], products[:, 0])
        factors = torch.polar(blocks.norm(dim=1).clamp_(min=1e-12).reciprocal_(), rotations)  # (N,)
        shared = blocks.untyped_storage().data_ptr() == descriptions.untyped_storage().data_ptr()
        aligned = torch.empty_like(blocks) if shared else blocks
        torch.mul(_complex(blocks), factors[:, None], out=_complex(aligned))
        return aligned, rotations

    def _prototype(self, like: Tensor) -> tuple[Tensor | None, Tensor]:
        """The signs that make all blocks rotate the same way, if some do not, and the prototype with its quadrature,
        (D, 2), whose products with a description are the cosine and sine of its rotation, times something."""
        key = (like.device, like.dtype)
        if key not in self._prototypes:
            representation = self.steerer.representation
            assert representation is not None
            other = [representation.group.fold(frequency) != frequency for frequency, _ in representation.blocks()]
            signs = torch.tensor([sign for rotated in other for sign in (1.0, -1.0 if rotated else 1.0)]).to(like)
            prototype = torch.arange(self.steerer.dim) % 2 == 0 if self.prototype is None else self.prototype
            unit = normalised(self.steerer.to_blocks(prototype[None].to(like)))[0] * signs
            quadrature = torch.view_as_real(_complex(unit[None])[0] * -1j).flatten()  # (y, -x)
            self._prototypes[key] = signs if any(other) else None, torch.stack([unit, quadrature], dim=1)
        return self._prototypes[key]


def _complex(blocks: Tensor) -> Tensor:
    """(N, D / 2) complex numbers in the memory of contiguous (N, D) blocks."""
    return torch.view_as_complex(blocks.unflatten(1, (-1, 2)))
