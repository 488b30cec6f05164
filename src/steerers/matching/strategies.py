"""The matching strategies, by the names that users type (paper, sections 3.1 and 5.2, appendix A.3).

Each is a small frozen record with one call, ``match(descriptions0, descriptions1)``; what differs is the similarity and
where the rotation comes from. All but ``mutual-nearest`` come down to one assignment by dual softmax.

To add a strategy, write its class here, put it into :data:`STRATEGIES`, and its name into :mod:`steerers._choices`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from steerers._choices import STRATEGY_NAMES, TTA
from steerers._parallel import alone, spread
from steerers.features import Numbers, as_tensor
from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment, Options, Solution, Tiled, most_similar, mutual_nearest
from steerers.matching.exponentials import ContinuousSteered
from steerers.matching.extrema import Continuous, is_refinable, refine_rotations
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import (
    Aligned,
    Angles,
    Cosine,
    CosineAfterRotation,
    Similarity,
    Steered,
    as_float,
    check_finite,
    normalised,
    wrapped,
)
from steerers.steering.representations import MAX_ORDER, Group, Order
from steerers.steering.steerer import Steerer

try:
    from steerers.accel.matching import solve as solve_fused
except ImportError:  # everything works without it

    def solve_fused(similarities: Sequence[Similarity], options: Options) -> Solution | None:
        """Without :mod:`steerers.accel` there are no fused kernels."""
        if options.kernels == "fused":
            raise ValueError("the fused kernels cannot run: steerers.accel is missing")
        return None


Pair = tuple[Tensor, Tensor]
"""(N, D) and (M, D) descriptions."""
DEFAULT_ORDER = 8


def solve(similarities: Sequence[Similarity], options: Options) -> Solution:
    """The matches of pairs of images: by fused kernels on a GPU that has them, else tile by tile."""
    fused = solve_fused(similarities, options)
    return Tiled(similarities, options) if fused is None else fused


# What strategies share ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """Matches two sets of descriptions."""

    name: ClassVar[str]
    finds_candidates: ClassVar[bool] = False
    """Whether all pairs above a low threshold (``mutual=False``) mean something: each has a rotation of its own."""

    @torch.no_grad()
    def match(self, descriptions0: Numbers, descriptions1: Numbers) -> Assignment:
        """Match (N, D) with (M, D) descriptions of any lengths, N and M; they need not be normalised.

        NumPy arrays are taken as well as tensors.
        """
        return self._match_pairs([self._checked(descriptions0, descriptions1)])[0]

    @torch.no_grad()
    def match_batch(
        self,
        descriptions0: Sequence[Numbers] | Numbers,
        descriptions1: Sequence[Numbers] | Numbers,
        lengths0: Sequence[int] | None = None,
        lengths1: Sequence[int] | None = None,
    ) -> list[Assignment]:
        """Match pair by pair; the rotation is chosen for each pair. On a GPU all go in one launch.

        Args:
            descriptions0: B tensors (N_b, D), or one padded (B, N, D) tensor; ``descriptions1`` likewise.
            lengths0: for padded tensors, how many of the N descriptions of each are real; ``lengths1`` likewise.
        """
        batch0, batch1 = _unpad("0", descriptions0, lengths0), _unpad("1", descriptions1, lengths1)
        if len(batch0) != len(batch1):
            raise ValueError(f"a batch needs as many first as second descriptions, got {len(batch0)} and {len(batch1)}")
        pairs = [self._checked(first, second) for first, second in zip(batch0, batch1, strict=True)]
        alike = len({(first.dtype, first.device, first.shape[1]) for first, _ in pairs}) == 1
        if alike and self._at_once(pairs[0][0].device):
            return self._match_all(pairs)
        return self._match_pairs(pairs)

    def _match_pairs(self, pairs: Sequence[Pair]) -> list[Assignment]:
        """Match each of some pairs by itself; those on a CPU by its threads."""
        if all(first.device.type == "cpu" for first, _ in pairs):
            return spread(lambda pair: self._match_all([pair])[0], pairs)
        return [self._match_all([pair])[0] for pair in pairs]

    @abstractmethod
    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        """Match each of some pairs."""

    def _at_once(self, device: torch.device) -> bool:
        """Whether pairs on a device are matched all at once, which takes less time there but more memory."""
        return False

    def _checked(self, descriptions0: Numbers, descriptions1: Numbers) -> Pair:
        """A pair that can be compared, in one type. On a GPU the assignment looks whether it is finite."""
        first, second = as_tensor("descriptions0", descriptions0), as_tensor("descriptions1", descriptions1)
        _check_descriptions(first, second)
        if first.device.type == "cpu":
            alone(lambda: check_finite(first, second))
        elif first.device.type != "cuda":
            check_finite(first, second)
        common = torch.promote_types(first.dtype, second.dtype)
        return first.to(common), second.to(common)


@dataclass(frozen=True, kw_only=True)
class SoftmaxStrategy(Strategy):
    """A strategy that assigns matches by the dual softmax of a similarity, and has the options of it."""

    options: Options = field(default_factory=Options)

    @abstractmethod
    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        """What a pair is compared by."""

    def _at_once(self, device: torch.device) -> bool:
        return device.type == "cuda" or self.options.kernels == "fused"

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return self._assign([self._similarity(*pair) for pair in pairs])

    def _assign(self, similarities: Sequence[Similarity]) -> list[Assignment]:
        """Of similarities without alternatives."""
        solved = zip(solve(similarities, self.options).assignments(), similarities, strict=True)
        return [_with_rotations(assignment, similarity) for (assignment,), similarity in solved]


@dataclass(frozen=True, kw_only=True)
class SteererStrategy(SoftmaxStrategy):
    """A strategy that needs a steerer."""

    steerer: Steerer

    def _checked(self, descriptions0: Numbers, descriptions1: Numbers) -> Pair:
        pair = super()._checked(descriptions0, descriptions1)
        dim = pair[0].shape[1]
        if dim != self.steerer.dim:
            raise ValueError(f"descriptions have length {dim}, but the steerer acts on length {self.steerer.dim}")
        return pair


def _with_rotations(assignment: Assignment, similarity: Similarity) -> Assignment:
    """With the rotations that the similarity knows; the kernels say those of the matches already, and often of all."""
    if assignment.angle is not None:
        return assignment
    if assignment.angles is not None:
        return _with_angles(assignment, assignment.angles)
    angles = similarity.rotations(*assignment.indices.unbind(dim=1))
    return assignment if angles is None else _with_angles(assignment, wrapped(angles))


def _with_angles(assignment: Assignment, angles: Tensor) -> Assignment:
    """With the rotation of every match, and that of the images, where most agree."""
    angle = circular_mode(angles, assignment.scores) if len(assignment) else None
    return replace(assignment, angle=angle, angles=angles)


def _check_descriptions(descriptions0: Tensor, descriptions1: Tensor) -> None:
    for name, d in (("descriptions0", descriptions0), ("descriptions1", descriptions1)):
        if d.ndim != 2:
            raise ValueError(f"{name} must have shape (N, D), got {tuple(d.shape)}")
        if not d.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {d.dtype}")
    if descriptions0.shape[1] != descriptions1.shape[1]:
        raise ValueError(
            f"descriptions of lengths {descriptions0.shape[1]} and {descriptions1.shape[1]} do not compare"
        )
    if descriptions0.device != descriptions1.device:
        raise ValueError(f"descriptions lie on {descriptions0.device} and {descriptions1.device}; move them together")


def _unpad(which: str, given: Sequence[Numbers] | Numbers, lengths: Sequence[int] | None) -> list[Any]:
    descriptions = as_tensor(f"descriptions{which}", given) if isinstance(given, np.ndarray) else given
    if not isinstance(descriptions, Tensor):
        if lengths is not None:
            raise ValueError(f"lengths{which} goes with a padded (B, N, D) tensor, not with a list")
        return list(descriptions)
    if descriptions.ndim != 3:
        raise ValueError(f"descriptions{which} must be a list of (N, D) tensors or one (B, N, D) tensor")
    if lengths is None:
        return list(descriptions)
    if len(lengths) != len(descriptions) or any(not 0 <= n <= descriptions.shape[1] for n in lengths):
        raise ValueError(f"lengths{which} must hold {len(descriptions)} numbers of 0 to {descriptions.shape[1]}")
    return [d[:n] for d, n in zip(descriptions, lengths, strict=True)]


# Descriptions as they are ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DualSoftmax(SoftmaxStrategy):
    """Descriptions as they are: for images that are upright to each other."""

    name = "dual-softmax"

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        return Cosine(descriptions0, descriptions1)


@dataclass(frozen=True, kw_only=True)
class MutualNearest(Strategy):
    """Mutual nearest neighbours of the cosines of descriptions as they are: what protocols older than dual softmax do.

    Scores are cosines mapped to [0, 1]; there is no temperature.

    Attributes:
        threshold: least cosine; by default every mutual pair matches.
        ratio: SIFT's test: the distance (of unit vectors) to the nearest description of image 1 must be below ``ratio``
            times that to the second nearest. By default there is none.
        tile: most rows and columns that are compared at once; by default chosen for the device.
    """

    name = "mutual-nearest"
    threshold: float = -1.0
    ratio: float | None = None
    tile: int | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"threshold of {self.name} is a cosine and must be -1 to 1, got {self.threshold}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {self.ratio}")
        if self.tile is not None and self.tile < 1:
            raise ValueError(f"tile must be at least 1, got {self.tile}")

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return [
            mutual_nearest(Cosine(*pair), threshold=self.threshold, ratio=self.ratio, tile=self.tile) for pair in pairs
        ]


# What no rotation changes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Invariant(SteererStrategy):
    """Project descriptions to the subspace that no rotation changes, then match once."""

    name = "invariant"
    projection: Tensor = field(init=False, repr=False)
    """(d, D): for a fixed steerer the coordinates of frequency 0 in its blocks, for a learned one its projector."""

    def __post_init__(self) -> None:
        representation = self.steerer.representation
        if representation is None:
            projection = self.steerer.invariant_projector()
        else:
            projection = self.steerer.block_basis()[representation.coordinates()[0] == 0]
        if len(projection) == 0 or float(projection.norm()) < 1e-6:
            raise ValueError("invariant needs frequency 0, and this steerer has none: its invariant subspace is zero")
        object.__setattr__(self, "projection", projection)

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        return Cosine(self._projected(descriptions0), self._projected(descriptions1))

    def _projected(self, descriptions: Tensor) -> Tensor:
        return as_float(descriptions) @ self.projection.to(as_float(descriptions)).mT


# Rotations that are tried ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OverRotations(SteererStrategy):
    """What strategies that try single rotations share; these are alternatives, unless ``maximum`` says that each pair
    of descriptions is compared at its best one.

    Attributes:
        order: how many rotations are tried: those of C_order.
        angles: rotations to try instead, in radians; kept modulo a full turn, in [0, 2 pi), which is also where the
            rotations of a learned steerer are trained. Those of a C_n steerer must be rotations that it has.
        refine: whether the rotation of every match is looked for between the tried ones too, to a fraction of a degree,
            and that of the images is where most of those agree. An SO(2) steerer can tell, a learned one if it has a
            basis of eigenvectors. It is looked for as far away as the nearest other rotation that is tried, which is
            one step of C_order; from a single angle, half a turn.
    """

    maximum: ClassVar[bool] = False
    order: Order = "default"
    angles: Angles | None = None
    refine: bool = True

    def __post_init__(self) -> None:
        if self.angles is None:
            object.__setattr__(self, "order", self._resolve_order())
            return
        if self.order != "default":
            raise ValueError(f"give order or angles, not both: order {self.order!r} tries rotations of its own")
        object.__setattr__(self, "angles", self.steerer.group.rotations(self.angles))

    def _resolve_order(self) -> int | None:
        whole, order = self.steerer.group.order, self.order
        if order == "default":
            return whole or DEFAULT_ORDER
        if order is None:
            raise ValueError(f"{self.name} tries single rotations and needs an order, such as 8, or angles")
        if not isinstance(order, int) or order < 2:
            raise ValueError(f"order must be a whole number of at least 2, got {order!r}")
        if order > MAX_ORDER:
            raise ValueError(f"order must be at most {MAX_ORDER}, got {order}")
        if whole is not None and whole % order:
            raise ValueError(
                f"order {order} needs rotations that a {self.steerer.group} steerer does not have; use {whole}"
            )
        return order

    @cached_property
    def rotations(self) -> Angles:
        """Those that are tried, in radians in [0, 2 pi); none where every angle counts."""
        if self.angles is not None:
            return self.angles
        return tuple(Group(self.order).angles().tolist()) if isinstance(self.order, int) else ()

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        kind = Steered if self.steerer.representation is None else Rotated
        return kind(descriptions0, descriptions1, self.steerer, self.rotations, maximum=self.maximum)

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        found = self._try_rotations(pairs)
        if not self.refine or not self.rotations or not is_refinable(self.steerer):
            return found
        return [self._refined(*pair, assignment) for pair, assignment in zip(pairs, found, strict=True)]

    def _try_rotations(self, pairs: Sequence[Pair]) -> list[Assignment]:
        """Match each of some pairs, with the tried rotation of every match or of all."""
        return super()._match_all(pairs)

    def _refined(self, descriptions0: Tensor, descriptions1: Tensor, assignment: Assignment) -> Assignment:
        if assignment.angle is None:
            return assignment
        (i, j), tried = assignment.indices.unbind(dim=1), assignment.angles
        if tried is None:
            tried = torch.full_like(i, assignment.angle, dtype=torch.float64)
        angles = refine_rotations(descriptions0[i], descriptions1[j], tried, self.steerer, self.rotations)
        return _with_angles(assignment, wrapped(angles))


@dataclass(frozen=True, kw_only=True)
class MaxMatches(OverRotations):
    """Match after each rotation and keep the rotation with the most matches.

    Of several with as many, that whose probabilities add up to more; of those, the first that is tried. Of one
    description in each image every rotation makes one match of probability 1, which says nothing: there it is the
    rotation with the largest cosine.
    """

    name = "max-matches"

    def _try_rotations(self, pairs: Sequence[Pair]) -> list[Assignment]:
        similarities = [self._similarity(*pair) for pair in pairs]
        best = solve(similarities, self.options).best()
        rotations = self._chosen(similarities, [number for number, _ in best])
        return [
            replace(found, angle=angle if len(found) else None)
            for (_, found), angle in zip(best, rotations, strict=True)
        ]

    def _chosen(self, similarities: Sequence[Similarity], numbers: Sequence[int]) -> list[float]:
        """The rotation of each pair, of which the number with the most matches is known."""
        return [
            self.rotations[most_similar(similarity) if similarity.shape == (1, 1) else number]
            for similarity, number in zip(similarities, numbers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(OverRotations):
    """Compare each pair of descriptions at the rotation where they are most similar, then match once.

    ``order=None`` takes the maximum over every angle, for an SO(2) steerer; a learned one must have a basis of
    eigenvectors.
    """

    name = "max-similarity"
    maximum = True
    finds_candidates = True

    def _resolve_order(self) -> int | None:
        if self.order is not None:
            return super()._resolve_order()
        if not self.steerer.group.continuous:
            raise ValueError(
                f"order=None maximises over all angles, but the steerer knows the rotations of {self.steerer.group} "
                "only"
            )
        if self.steerer.representation is None and not (found := self.steerer.exponential()).sound:
            raise ValueError(
                "order=None maximises over all angles by the eigenvectors V of the steerer's generator G, but they are "
                f"no sound basis: |G - V L V^-1| / |G| is {found.residual:.2g}, and the condition of V is "
                f"{found.condition:.2g}; give an order instead, such as 8"
            )
        return None

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        if self.order is not None:
            return super()._similarity(descriptions0, descriptions1)
        kind = ContinuousSteered if self.steerer.representation is None else Continuous
        return kind(descriptions0, descriptions1, self.steerer)


@dataclass(frozen=True, kw_only=True)
class Subset(MaxMatches):
    """Find the rotation by max-matches on random subsets, then match everything once at that rotation.

    Where nothing matches on the subsets, everything is matched unrotated, without an angle, as the authors do.
    ``seed`` is a number, with which every call draws the same subsets, or a generator that is drawn from.
    """

    name = "subset"
    subset_size: int = 1000
    seed: int | torch.Generator = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset_size < 1:
            raise ValueError(f"subset_size must be at least 1, got {self.subset_size}")

    def _try_rotations(self, pairs: Sequence[Pair]) -> list[Assignment]:
        drawn = [self._draw(*pair) for pair in pairs]
        parts = [k for k, pair in enumerate(pairs) if drawn[k][0] is not pair[0] or drawn[k][1] is not pair[1]]
        few = [k for k in range(len(pairs)) if k not in parts]
        found = dict(zip(few, super()._try_rotations([pairs[k] for k in few]), strict=True))
        similarities = [self._similarity(*drawn[k]) for k in parts]
        counts = solve(similarities, self.options).counts()
        rotations = self._chosen(similarities, [number for number, _ in counts])
        members: dict[float | None, list[int]] = {None: [k for k in few if not len(found[k])]}  # pairs by rotation
        for k, angle, (_, count) in zip(parts, rotations, counts, strict=True):
            members.setdefault(angle if count else None, []).append(k)
        for rotation, chosen in members.items():
            found |= zip(chosen, self._match_after_rotation([pairs[k] for k in chosen], rotation), strict=True)
        return [found[k] for k in range(len(pairs))]

    def _match_after_rotation(self, pairs: Sequence[Pair], angle: float | None) -> list[Assignment]:
        if angle is None:
            return self._assign([Cosine(*pair) for pair in pairs])
        rotated = self._assign([CosineAfterRotation(*pair, self.steerer, angle) for pair in pairs])
        return [replace(assignment, angle=angle) for assignment in rotated]

    def _draw(self, descriptions0: Tensor, descriptions1: Tensor) -> Pair:
        """Random subsets of a pair's descriptions, or those themselves where they are few."""
        device, lengths = descriptions0.device, (len(descriptions0), len(descriptions1))
        if isinstance(self.seed, torch.Generator):
            index0, index1 = _drawn(self.seed, lengths, self.subset_size, device)
        else:
            index0, index1 = _kept_draw(self.seed, lengths, self.subset_size, device)
        subset0 = descriptions0 if index0 is None else descriptions0[index0]
        return subset0, descriptions1 if index1 is None else descriptions1[index1]


def _drawn(
    generator: torch.Generator, lengths: tuple[int, int], size: int, device: torch.device
) -> list[Tensor | None]:
    """Which of so many descriptions of each image are drawn, or ``None`` for all."""
    return [
        None if n <= size else torch.randperm(n, generator=generator, device=generator.device)[:size].to(device)
        for n in lengths
    ]


@lru_cache(maxsize=16)
def _kept_draw(seed: int, lengths: tuple[int, int], size: int, device: torch.device) -> list[Tensor | None]:
    """Numbers of a seed, drawn once: on a GPU drawing would take longer than matching."""
    return _drawn(torch.Generator().manual_seed(seed), lengths, size, device)


# Frequency 1, in closed form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Frequency1(SteererStrategy):
    """What the Procrustes strategies share: every pair of coordinates rotates with the image.

    Descriptions of a steerer given by a matrix, learned or not, are first changed to a basis in which that is so, up to
    :data:`~steerers.steering.analysis.FREQUENCY1_RESIDUAL`. The matrix is that of when the strategy is made.

    Attributes:
        blocks: the fixed steerer of the changed descriptions.
        basis: (D, D), of the change, where there is one.
    """

    blocks: Steerer = field(init=False, repr=False, compare=False)
    basis: Tensor | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        representation, basis, blocks = self.steerer.representation, None, self.steerer
        if representation is None:
            try:
                basis = self.steerer.frequency1_basis()
            except ValueError as error:
                raise ValueError(f"{self.name} needs every frequency to be 1, as of Steerer.freq1: {error}") from error
            blocks = Steerer.freq1(self.steerer.dim, self.steerer.group)
        elif set(representation.multiplicities()) != {1} or representation.group.order == 2:
            raise ValueError(
                f"{self.name} needs every frequency to be 1 (Steerer.freq1); this steerer is {representation} of "
                f"{representation.group}. For other SO(2) steerers, max-similarity with order=None is exact"
            )
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "blocks", blocks)

    def _changed(self, descriptions: Tensor) -> Tensor:
        """(N, D) descriptions that :attr:`blocks` steers."""
        return descriptions if self.basis is None else as_float(descriptions) @ self.basis.to(as_float(descriptions)).mT


@dataclass(frozen=True, kw_only=True)
class Procrustes(Frequency1):
    """Align each pair of frequency-1 descriptions by its own best rotation, in closed form, then match once."""

    name = "procrustes"

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        changed0, changed1 = self._changed(descriptions0), self._changed(descriptions1)
        return Continuous(changed0, changed1, self.blocks, self.steerer.group.order)


@dataclass(frozen=True, kw_only=True)
class PrototypeProcrustes(Frequency1):
    """Align every frequency-1 description to one prototype, then match once: the cost of an ordinary match.

    ``prototype`` is a (D,) description, in the steerer's own coordinates; by default every pair of coordinates that
    rotates with the image points the same way.
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

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        (aligned0, angles0), (aligned1, angles1) = self._aligned(descriptions0), self._aligned(descriptions1)
        return Aligned(aligned0, aligned1, angles0, angles1)

    def _aligned(self, descriptions: Tensor) -> tuple[Tensor, Tensor]:
        """Unit descriptions rotated to the prototype, (N, D) in the steerer's blocks, and the rotations, (N,).

        A block is a complex number, and rotating it a product; nothing else of the size of the descriptions is made.
        """
        blocks = self.blocks.to_blocks(as_float(self._changed(descriptions))).contiguous()
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
            representation = self.blocks.representation
            assert representation is not None
            other = [representation.group.fold(frequency) != frequency for frequency, _ in representation.blocks()]
            signs = torch.tensor([sign for rotated in other for sign in (1.0, -1.0 if rotated else 1.0)]).to(like)
            if self.prototype is None:
                prototype = (torch.arange(self.steerer.dim)[None] % 2 == 0).to(like)
            else:
                prototype = self._changed(self.prototype[None].to(like))
            unit = normalised(self.blocks.to_blocks(prototype))[0] * signs
            quadrature = torch.view_as_real(_complex(unit[None])[0] * -1j).flatten()  # (y, -x)
            self._prototypes[key] = signs if any(other) else None, torch.stack([unit, quadrature], dim=1)
        return self._prototypes[key]


def _complex(blocks: Tensor) -> Tensor:
    """(N, D / 2) complex numbers in the memory of contiguous (N, D) blocks."""
    return torch.view_as_complex(blocks.unflatten(1, (-1, 2)))


# By name --------------------------------------------------------------------------------------------------------------

STRATEGIES: dict[str, type[Strategy]] = {
    cls.name: cls
    for cls in (
        DualSoftmax, MaxMatches, MaxSimilarity, Subset, Procrustes, PrototypeProcrustes, Invariant, MutualNearest
    )
}  # fmt: skip
"""The strategies, which match descriptions."""
NAMES = STRATEGY_NAMES
"""What users may type for a strategy: those, and test-time augmentation."""
NEEDS_IMAGES = "tta describes rotated copies of the image: give the images to the matcher, not descriptions"


def make_strategy(
    name: str, steerer: Steerer | None = None, *, order: Order = "default", **options: object
) -> Strategy:
    """The strategy of that name, with the options it knows.

    Args:
        name: one of :data:`STRATEGIES`.
        steerer: of the descriptor; ``dual-softmax`` and ``mutual-nearest`` need none.
        order: rotations that are tried: by default all of C_n, and 8 for SO(2). ``None`` is every angle, for
            ``max-similarity``. Strategies that try no rotations refuse one.
        options: ``inverse_temperature``, ``threshold``, ``mutual``, ``tile``, ``kernels``, ``precision``, ``graphs``;
            ``angles``, rotations to try instead of those of an order, in radians; ``refine``; ``subset_size``,
            ``seed``; ``prototype``; ``ratio``.

    Raises:
        ValueError: for an unknown name, a missing steerer, or a steerer or option that the strategy is not defined for.
    """
    check_name(name)
    if name == TTA:
        raise ValueError(NEEDS_IMAGES)
    cls = STRATEGIES[name]
    if issubclass(cls, SteererStrategy) and steerer is None:
        raise ValueError(f"strategy {name!r} needs a steerer, and this model has none; use dual-softmax or tta")
    if order != "default":
        options["order"] = order
    shared = {option.name for option in fields(Options)} if issubclass(cls, SoftmaxStrategy) else set()
    own = {option.name for option in fields(cls) if option.init} - {"options", "steerer"}
    for option in options:
        if option not in shared | own:
            raise ValueError(f"strategy {name!r} has no option {option!r}")
    given = {option: value for option, value in options.items() if option in own}
    if issubclass(cls, SoftmaxStrategy):
        given["options"] = Options(**{option: value for option, value in options.items() if option in shared})  # type: ignore[arg-type]
    if issubclass(cls, SteererStrategy):
        given["steerer"] = steerer
    return cls(**given)


def check_name(name: str) -> None:
    """Refuse a name that is none of :data:`NAMES`."""
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}; use one of {', '.join(NAMES)}")
