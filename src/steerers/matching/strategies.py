"""The matching strategies, by the names that users type (paper, sections 3.1 and 5.2, appendix A.3).

Each is a small frozen record with one call, ``match(descriptions0, descriptions1)``; what differs is the similarity and
where the turn comes from. All share one assignment.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from steerers.geometry import circular_mode
from steerers.matching.assignment import Assignment, assign
from steerers.matching.harmonics import Continuous, Harmonics, Turned
from steerers.matching.nearest import mutual_nearest
from steerers.matching.similarity import Cosine, Similarity, Steered, as_float, normalised
from steerers.representations import Group
from steerers.steerer import Steerer

Order = int | None | Literal["default"]
DEFAULT_ORDER = 8


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """Matches two sets of descriptions.

    Attributes:
        inverse_temperature: of the dual softmax.
        threshold: least match probability.
        tile: see :func:`steerers.matching.assignment.assign`.
    """

    name: ClassVar[str]
    inverse_temperature: float = 20.0
    threshold: float = 0.01
    tile: int | None = None

    def __post_init__(self) -> None:
        self._assign(Cosine(torch.zeros(0, 1), torch.zeros(0, 1)))  # the assignment checks its own options

    @torch.no_grad()
    def match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        """Match (N, D) with (M, D) descriptions of any lengths, N and M; they need not be normalised."""
        _check_descriptions(descriptions0, descriptions1)
        self._check_dim(int(descriptions0.shape[1]))
        common = torch.promote_types(descriptions0.dtype, descriptions1.dtype)
        return self._match(descriptions0.to(common), descriptions1.to(common))

    def match_batch(
        self,
        descriptions0: Sequence[Tensor] | Tensor,
        descriptions1: Sequence[Tensor] | Tensor,
        lengths0: Sequence[int] | None = None,
        lengths1: Sequence[int] | None = None,
    ) -> list[Assignment]:
        """Match pair by pair; the turn is chosen for each pair.

        Args:
            descriptions0: B tensors (N_b, D), or one padded (B, N, D) tensor; ``descriptions1`` likewise.
            lengths0: for padded tensors, how many of the N descriptions of each are real; ``lengths1`` likewise.
        """
        batch0, batch1 = _unpad("0", descriptions0, lengths0), _unpad("1", descriptions1, lengths1)
        if len(batch0) != len(batch1):
            raise ValueError(f"a batch needs as many first as second descriptions, got {len(batch0)} and {len(batch1)}")
        return [self.match(first, second) for first, second in zip(batch0, batch1, strict=True)]

    @abstractmethod
    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment: ...

    def _check_dim(self, dim: int) -> None:  # noqa: B027 -- most strategies have nothing to check
        """Refuse descriptions that the strategy's steerer does not fit."""

    def _assign(self, similarity: Similarity) -> list[Assignment]:
        return assign(
            similarity, inverse_temperature=self.inverse_temperature, threshold=self.threshold, tile=self.tile
        )

    def _assign_with_turns(self, similarity: Similarity) -> Assignment:
        """Assign by a similarity that knows the turn of each pair; the turn of the images is where most agree."""
        (assignment,) = self._assign(similarity)
        angles = similarity.turns(assignment.indices[:, 0], assignment.indices[:, 1]) if len(assignment) else None
        return _with_turns(assignment, angles)


@dataclass(frozen=True, kw_only=True)
class DualSoftmax(Strategy):
    """Descriptions as they are: for images that are upright to each other."""

    name = "dual-softmax"

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        return self._assign(Cosine(normalised(descriptions0), normalised(descriptions1)))[0]


@dataclass(frozen=True, kw_only=True)
class _WithSteerer(Strategy):
    steerer: Steerer

    def _check_dim(self, dim: int) -> None:
        if dim != self.steerer.dim:
            raise ValueError(f"descriptions have length {dim}, but the steerer acts on length {self.steerer.dim}")


@dataclass(frozen=True, kw_only=True)
class _OverTurns(_WithSteerer):
    """What strategies that try the turns of C_order share."""

    order: Order = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "order", self._resolve_order())

    def _resolve_order(self) -> int | None:
        whole, order = self.steerer.group.order, self.order
        if order == "default":
            return whole or DEFAULT_ORDER
        if order is None:
            raise ValueError(f"{self.name} tries single turns and needs an order, such as 8")
        if not isinstance(order, int) or order < 2:
            raise ValueError(f"order must be a whole number of at least 2, got {order!r}")
        if whole is not None and whole % order:
            raise ValueError(
                f"order {order} needs turns that a {self.steerer.group} steerer does not have; use {whole}"
            )
        return order

    def _similarity(self, descriptions0: Tensor, descriptions1: Tensor, *, maximum: bool) -> Similarity:
        assert isinstance(self.order, int)
        if self.steerer.representation is not None:
            harmonics = Harmonics(descriptions0, descriptions1, self.steerer, self.order)
            return Turned(harmonics, self.order, maximum=maximum)
        unit0, unit1 = normalised(descriptions0), normalised(descriptions1)
        return Steered(unit0, unit1, self.steerer, Group(self.order).angles(), maximum=maximum)


@dataclass(frozen=True, kw_only=True)
class MaxMatches(_OverTurns):
    """Match after each turn and keep the turn with the most matches."""

    name = "max-matches"

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        found = self._assign(self._similarity(descriptions0, descriptions1, maximum=False))
        return most_matches(found, Group(len(found)).angles())


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(_OverTurns):
    """Compare each pair of descriptions at the turn where they are most similar, then match once.

    ``order=None`` takes the exact maximum over every angle, for a fixed SO(2) steerer.
    """

    name = "max-similarity"

    def _resolve_order(self) -> int | None:
        if self.order is not None:
            return super()._resolve_order()
        if not self.steerer.group.continuous:
            raise ValueError(
                f"order=None maximises over all angles, but the steerer knows the turns of {self.steerer.group} only"
            )
        if self.steerer.representation is None:
            raise ValueError("order=None needs a fixed SO(2) steerer; for a learned one give an order, such as 8")
        return None

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        if self.order is None:
            similarity: Similarity = Continuous(Harmonics(descriptions0, descriptions1, self.steerer, None))
        else:
            similarity = self._similarity(descriptions0, descriptions1, maximum=True)
        return self._assign_with_turns(similarity)


@dataclass(frozen=True, kw_only=True)
class Subset(_OverTurns):
    """Find the turn by max-matches on random subsets, then match everything once at that turn.

    ``seed`` is a number, with which every call draws the same subsets, or a generator that is drawn from.
    """

    name = "subset"
    subset_size: int = 1000
    seed: int | torch.Generator = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset_size < 1:
            raise ValueError(f"subset_size must be at least 1, got {self.subset_size}")

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        generator = self.seed if isinstance(self.seed, torch.Generator) else torch.Generator().manual_seed(self.seed)
        subset0, subset1 = (self._draw(d, generator) for d in (descriptions0, descriptions1))
        found = self._assign(self._similarity(subset0, subset1, maximum=False))
        turn = most_matches(found, Group(len(found)).angles())
        if turn.angle is None or (len(subset0) == len(descriptions0) and len(subset1) == len(descriptions1)):
            return turn
        steered = self.steerer.steer(as_float(descriptions0), turn.angle)
        (assignment,) = self._assign(Cosine(normalised(steered), normalised(descriptions1)))
        return replace(assignment, angle=turn.angle)

    def _draw(self, descriptions: Tensor, generator: torch.Generator) -> Tensor:
        if len(descriptions) <= self.subset_size:
            return descriptions
        index = torch.randperm(len(descriptions), generator=generator, device=generator.device)[: self.subset_size]
        return descriptions[index.to(descriptions.device)]


@dataclass(frozen=True, kw_only=True)
class _Frequency1(_WithSteerer):
    """What the Procrustes strategies share: every pair of coordinates turns with the image."""

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
class Procrustes(_Frequency1):
    """Align each pair of frequency-1 descriptions by its own best rotation, in closed form, then match once."""

    name = "procrustes"

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        return self._assign_with_turns(Continuous(self._harmonics(descriptions0, descriptions1)))


@dataclass(frozen=True, kw_only=True)
class PrototypeProcrustes(_Frequency1):
    """Align every frequency-1 description to one prototype, then match once: the cost of an ordinary match.

    ``prototype`` is a (D,) description; by default every pair of coordinates points the same way.
    """

    name = "prototype-procrustes"
    prototype: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prototype is not None and self.prototype.shape != (self.steerer.dim,):
            raise ValueError(f"prototype must have shape ({self.steerer.dim},), got {tuple(self.prototype.shape)}")
        if self.prototype is not None and not bool(torch.isfinite(self.prototype).all() and self.prototype.any()):
            raise ValueError("prototype must be finite and not all zero")

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        (aligned0, turns0), (aligned1, turns1) = self._aligned(descriptions0), self._aligned(descriptions1)
        (assignment,) = self._assign(Cosine(aligned0, aligned1))
        i, j = assignment.indices.unbind(dim=1)
        return _with_turns(assignment, turns0[i] - turns1[j])

    def _aligned(self, descriptions: Tensor) -> tuple[Tensor, Tensor]:
        """Unit descriptions turned to the prototype, (N, D), and the turns, (N,)."""
        prototype = torch.arange(self.steerer.dim) % 2 == 0 if self.prototype is None else self.prototype
        harmonics = self._harmonics(descriptions, prototype[None].to(as_float(descriptions)))
        towards, across = harmonics.rows @ harmonics.cols[0], harmonics.rows @ harmonics.quadrature[0]  # (N,)
        turns = torch.atan2(across, towards)
        cos, sin = torch.cos(turns)[:, None], torch.sin(turns)[:, None]
        x, y = harmonics.rows.chunk(2, dim=1)
        return torch.cat([cos * x - sin * y, sin * x + cos * y], dim=1), turns


@dataclass(frozen=True, kw_only=True)
class Invariant(_WithSteerer):
    """Project descriptions to the subspace that no turn changes, then match once."""

    name = "invariant"
    projection: Tensor = field(init=False, repr=False)
    """(d, D): for a fixed steerer the coordinates of frequency 0 in its blocks, for a learned one its projector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        representation = self.steerer.representation
        if representation is None:
            projection = self.steerer.invariant_projector()
        else:
            identity = torch.eye(self.steerer.dim, dtype=torch.float64)
            projection = self.steerer.to_blocks(identity.to(next(self.steerer.buffers()).device)).mT.cpu()[
                representation.coordinates()[0] == 0
            ]
        if len(projection) == 0 or float(projection.norm()) < 1e-6:
            raise ValueError("invariant needs frequency 0, and this steerer has none: its invariant subspace is zero")
        object.__setattr__(self, "projection", projection)

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        unit0, unit1 = (
            normalised(as_float(d) @ self.projection.to(as_float(d)).mT) for d in (descriptions0, descriptions1)
        )
        return self._assign(Cosine(unit0, unit1))[0]


@dataclass(frozen=True, kw_only=True)
class Tta(Strategy):
    """Test-time augmentation: turn the first image, describe it again, keep the turn with the most matches.

    It needs no steerer, but one run of the network for every turn; what steerers replace. Descriptions alone do not
    suffice, so the pipeline calls :meth:`match_turned`.
    """

    name = "tta"
    order: Order = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order == "default":
            object.__setattr__(self, "order", 4)
        if not isinstance(self.order, int) or self.order < 2:
            raise ValueError(f"order must be a whole number of at least 2 for tta, got {self.order!r}")

    @property
    def angles(self) -> Tensor:
        """The turns, in radians, at which the first image is described."""
        assert isinstance(self.order, int)
        return Group(self.order).angles()

    @torch.no_grad()
    def match_turned(self, turned0: Sequence[Tensor], descriptions1: Tensor) -> tuple[Assignment, int]:
        """Match the descriptions of every turned first image; the best assignment, and which turn it was."""
        if len(turned0) != len(self.angles):
            raise ValueError(
                f"tta of order {self.order} needs the descriptions of {self.order} turns, got {len(turned0)}"
            )
        plain = DualSoftmax(inverse_temperature=self.inverse_temperature, threshold=self.threshold, tile=self.tile)
        found = [plain.match(descriptions0, descriptions1) for descriptions0 in turned0]
        best = most_matches(found, self.angles)
        index = 0 if best.angle is None else int((self.angles - best.angle).abs().argmin())
        return best, index

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        raise ValueError("tta describes turned copies of the image: give the images to the matcher, not descriptions")


@dataclass(frozen=True, kw_only=True)
class MutualNearest(Strategy):
    """Mutual nearest neighbours of the cosines of descriptions as they are: what protocols older than dual softmax do.

    Scores are cosines mapped to [0, 1]; there is no temperature.

    Attributes:
        threshold: least cosine; by default every mutual pair matches.
        ratio: SIFT's test: the distance (of unit vectors) to the nearest description of image 1 must be below ``ratio``
            times that to the second nearest. By default there is none.
    """

    name = "mutual-nearest"
    threshold: float = -1.0
    ratio: float | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"threshold of {self.name} is a cosine and must be -1 to 1, got {self.threshold}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {self.ratio}")
        if self.tile is not None and self.tile < 1:
            raise ValueError(f"tile must be at least 1, got {self.tile}")

    def _match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        similarity = Cosine(normalised(descriptions0), normalised(descriptions1))
        return mutual_nearest(similarity, threshold=self.threshold, ratio=self.ratio, tile=self.tile)


STRATEGIES: dict[str, type[Strategy]] = {
    cls.name: cls
    for cls in (
        DualSoftmax, MaxMatches, MaxSimilarity, Subset, Procrustes, PrototypeProcrustes, Invariant, Tta, MutualNearest
    )
}  # fmt: skip


def make_strategy(
    name: str, steerer: Steerer | None = None, *, order: Order = "default", **options: object
) -> Strategy:
    """The strategy of that name, with the options it knows.

    Args:
        name: one of :data:`STRATEGIES`.
        steerer: of the descriptor; ``dual-softmax``, ``tta`` and ``mutual-nearest`` need none.
        order: turns that are tried: by default all of C_n, and 8 for SO(2). ``None`` is every angle, for
            ``max-similarity``. Strategies that try no turns refuse one.
        options: ``inverse_temperature``, ``threshold``, ``tile``; ``subset_size``, ``seed``; ``prototype``;
            ``ratio``.

    Raises:
        ValueError: for an unknown name, a missing steerer, or a steerer or option that the strategy is not defined for.
    """
    if name not in STRATEGIES:
        raise ValueError(unknown_strategy(name))
    cls = STRATEGIES[name]
    if issubclass(cls, _WithSteerer):
        if steerer is None:
            raise ValueError(f"strategy {name!r} needs a steerer, and this model has none; use dual-softmax or tta")
        options["steerer"] = steerer
    if order != "default":
        options["order"] = order
    known = {name for name, option in cls.__dataclass_fields__.items() if option.init}
    for option in options:
        if option not in known:
            raise ValueError(f"strategy {name!r} has no option {option!r}")
    return cls(**options)  # type: ignore[arg-type]


def unknown_strategy(name: str) -> str:
    """What to say of a name that is none."""
    return f"unknown strategy {name!r}; use one of {', '.join(STRATEGIES)}"


def most_matches(found: Sequence[Assignment], angles: Tensor) -> Assignment:
    """The assignment with the most matches, with its turn; no turn if none has any.

    Of several with as many matches, the one whose probabilities add up to more.
    """
    best = max(range(len(found)), key=lambda k: (len(found[k]), float(found[k].scores.sum())))
    return replace(found[best], angle=float(angles[best]) if len(found[best]) else None)


def _with_turns(assignment: Assignment, angles: Tensor | None) -> Assignment:
    if angles is None or not len(assignment):
        return replace(assignment, angles=assignment.scores.new_zeros(0, dtype=torch.float64))
    angles = torch.remainder(angles.double() + math.pi, 2 * math.pi) - math.pi
    return replace(assignment, angle=circular_mode(angles, assignment.scores), angles=angles)


def _check_descriptions(descriptions0: Tensor, descriptions1: Tensor) -> None:
    for name, d in (("descriptions0", descriptions0), ("descriptions1", descriptions1)):
        if d.ndim != 2:
            raise ValueError(f"{name} must have shape (N, D), got {tuple(d.shape)}")
        if not d.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {d.dtype}")
        if not bool(torch.isfinite(d).all()):
            raise ValueError(f"{name} holds NaN or infinite values")
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
