"""The matching strategies, by the names that users type (paper, sections 3.1 and 5.2, appendix A.3).

Each is a small frozen record with one call, ``match(descriptions0, descriptions1)``; what differs is the similarity and
where the rotation comes from. All but ``mutual-nearest`` come down to one assignment by dual softmax.

To add a strategy, write its class here, put it into :data:`STRATEGIES`, and its name into :mod:`steerers._choices`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from steerers._choices import STRATEGY_NAMES, TTA
from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment, Options, Solution, Tiled, empty, mutual_nearest
from steerers.matching.extrema import Continuous, is_refinable, refine_rotations
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import (
    Aligned,
    Cosine,
    CosineAfterRotation,
    Similarity,
    Steered,
    as_float,
    check_finite,
    normalised,
    wrapped,
)
from steerers.steering.representations import Order
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

    @torch.no_grad()
    def match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        """Match (N, D) with (M, D) descriptions of any lengths, N and M; they need not be normalised."""
        return self._match_all([self._checked(descriptions0, descriptions1)])[0]

    @torch.no_grad()
    def match_batch(
        self,
        descriptions0: Sequence[Tensor] | Tensor,
        descriptions1: Sequence[Tensor] | Tensor,
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
        return [self._match_all([pair])[0] for pair in pairs]

    @abstractmethod
    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        """Match each of some pairs."""

    def _at_once(self, device: torch.device) -> bool:
        """Whether pairs on a device are matched all at once, which takes less time there but more memory."""
        return False

    def _checked(self, descriptions0: Tensor, descriptions1: Tensor) -> Pair:
        """A pair that can be compared, in one type. On a GPU the assignment looks whether it is finite."""
        _check_descriptions(descriptions0, descriptions1)
        if descriptions0.device.type != "cuda":
            check_finite(descriptions0, descriptions1)
        common = torch.promote_types(descriptions0.dtype, descriptions1.dtype)
        return descriptions0.to(common), descriptions1.to(common)


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

    def _checked(self, descriptions0: Tensor, descriptions1: Tensor) -> Pair:
        pair, dim = super()._checked(descriptions0, descriptions1), descriptions0.shape[1]
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


def _unpad(which: str, descriptions: Sequence[Tensor] | Tensor, lengths: Sequence[int] | None) -> list[Tensor]:
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
            device = next(self.steerer.buffers()).device
            blocks = self.steerer.to_blocks(torch.eye(self.steerer.dim, dtype=torch.float64, device=device)).mT.cpu()
            projection = blocks[representation.coordinates()[0] == 0]
        if len(projection) == 0 or float(projection.norm()) < 1e-6:
            raise ValueError("invariant needs frequency 0, and this steerer has none: its invariant subspace is zero")
        object.__setattr__(self, "projection", projection)

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        return Cosine(self._projected(descriptions0), self._projected(descriptions1))

    def _projected(self, descriptions: Tensor) -> Tensor:
        return as_float(descriptions) @ self.projection.to(as_float(descriptions)).mT


# Rotations of a cyclic group ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OverRotations(SteererStrategy):
    """What strategies that try the rotations of C_order share; these are alternatives, unless ``maximum`` says that
    each pair of descriptions is compared at its best one.

    Attributes:
        order: how many rotations are tried.
        refine: whether the rotation of every match is looked for between the tried ones too, to a fraction of a degree,
            and that of the images is where most of those agree. A fixed SO(2) steerer can tell.
    """

    maximum: ClassVar[bool] = False
    order: Order = "default"
    refine: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", self._resolve_order())

    def _resolve_order(self) -> int | None:
        whole, order = self.steerer.group.order, self.order
        if order == "default":
            return whole or DEFAULT_ORDER
        if order is None:
            raise ValueError(f"{self.name} tries single rotations and needs an order, such as 8")
        if not isinstance(order, int) or order < 2:
            raise ValueError(f"order must be a whole number of at least 2, got {order!r}")
        if whole is not None and whole % order:
            raise ValueError(
                f"order {order} needs rotations that a {self.steerer.group} steerer does not have; use {whole}"
            )
        return order

    @property
    def _order(self) -> int:
        assert isinstance(self.order, int)
        return self.order

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        kind = Steered if self.steerer.representation is None else Rotated
        return kind(descriptions0, descriptions1, self.steerer, self._order, maximum=self.maximum)

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        found = self._try_rotations(pairs)
        if not self.refine or self.order is None or not is_refinable(self.steerer):
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
        angles = refine_rotations(descriptions0[i], descriptions1[j], tried, self.steerer, self._order)
        return _with_angles(assignment, wrapped(angles))


@dataclass(frozen=True, kw_only=True)
class MaxMatches(OverRotations):
    """Match after each rotation and keep the rotation with the most matches."""

    name = "max-matches"

    def _try_rotations(self, pairs: Sequence[Pair]) -> list[Assignment]:
        best = solve([self._similarity(*pair) for pair in pairs], self.options).best()
        step = 2 * math.pi / self._order
        return [replace(found, angle=number * step if len(found) else None) for number, found in best]


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(OverRotations):
    """Compare each pair of descriptions at the rotation where they are most similar, then match once.

    ``order=None`` takes the exact maximum over every angle, for a fixed SO(2) steerer.
    """

    name = "max-similarity"
    maximum = True

    def _resolve_order(self) -> int | None:
        if self.order is not None:
            return super()._resolve_order()
        if not self.steerer.group.continuous:
            raise ValueError(
                f"order=None maximises over all angles, but the steerer knows the rotations of {self.steerer.group} "
                "only"
            )
        if self.steerer.representation is None:
            raise ValueError("order=None needs a fixed SO(2) steerer; for a learned one give an order, such as 8")
        return None

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        if self.order is None:
            return Continuous(descriptions0, descriptions1, self.steerer)
        return super()._similarity(descriptions0, descriptions1)


@dataclass(frozen=True, kw_only=True)
class Subset(MaxMatches):
    """Find the rotation by max-matches on random subsets, then match everything once at that rotation.

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
        rotations = solve([self._similarity(*drawn[k]) for k in parts], self.options).counts()
        members: dict[int, list[int]] = {}  # pairs by their rotation
        for k, (step, count) in zip(parts, rotations, strict=True):
            if count:
                members.setdefault(step, []).append(k)
                continue
            found[k] = empty(pairs[k][0].device)
            if pairs[k][0].is_cuda:
                check_finite(*pairs[k])  # what was not drawn is not looked at otherwise
        for step, chosen in members.items():
            found |= zip(chosen, self._match_after_rotation([pairs[k] for k in chosen], step), strict=True)
        return [found[k] for k in range(len(pairs))]

    def _match_after_rotation(self, pairs: Sequence[Pair], step: int) -> list[Assignment]:
        similarities = [CosineAfterRotation(*pair, self.steerer, self._order, step) for pair in pairs]
        angle = similarities[0].angle
        return [replace(assignment, angle=angle) for assignment in self._assign(similarities)]

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
    """What the Procrustes strategies share: every pair of coordinates rotates with the image."""

    def __post_init__(self) -> None:
        representation = self.steerer.representation
        if representation is None:
            raise ValueError(f"{self.name} needs a fixed frequency-1 steerer (Steerer.freq1), not a learned matrix")
        if set(representation.multiplicities()) != {1} or representation.group.order == 2:
            raise ValueError(
                f"{self.name} needs every frequency to be 1 (Steerer.freq1); this steerer is {representation} of "
                f"{representation.group}. For other fixed SO(2) steerers, max-similarity with order=None is exact"
            )


@dataclass(frozen=True, kw_only=True)
class Procrustes(Frequency1):
    """Align each pair of frequency-1 descriptions by its own best rotation, in closed form, then match once."""

    name = "procrustes"

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        return Continuous(descriptions0, descriptions1, self.steerer, self.steerer.group.order)


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

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor) -> Similarity:
        (aligned0, angles0), (aligned1, angles1) = self._aligned(descriptions0), self._aligned(descriptions1)
        return Aligned(aligned0, aligned1, angles0, angles1)

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


def make_strategy(
    name: str, steerer: Steerer | None = None, *, order: Order = "default", **options: object
) -> Strategy:
    """The strategy of that name, with the options it knows.

    Args:
        name: one of :data:`STRATEGIES`.
        steerer: of the descriptor; ``dual-softmax`` and ``mutual-nearest`` need none.
        order: rotations that are tried: by default all of C_n, and 8 for SO(2). ``None`` is every angle, for
            ``max-similarity``. Strategies that try no rotations refuse one.
        options: ``inverse_temperature``, ``threshold``, ``tile``, ``kernels``, ``precision``, ``graphs``; ``refine``;
            ``subset_size``, ``seed``; ``prototype``; ``ratio``.

    Raises:
        ValueError: for an unknown name, a missing steerer, or a steerer or option that the strategy is not defined for.
    """
    check_name(name)
    if name == TTA:
        raise ValueError("tta describes rotated copies of the image: give the images to the matcher, not descriptions")
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
