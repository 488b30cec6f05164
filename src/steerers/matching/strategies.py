"""The matching strategies, by the names that users type (paper, sections 3.1 and 5.2, appendix A.3).

Each is a small frozen record with one call, ``match(descriptions0, descriptions1)``; what differs is the similarity and
where the rotation comes from. All share one assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from steerers.matching.assignment import Assignment, number_of_most_matches
from steerers.matching.nearest import mutual_nearest
from steerers.matching.procrustes import Procrustes, PrototypeProcrustes
from steerers.matching.rotating import MaxMatches, MaxSimilarity, Subset
from steerers.matching.similarity import Cosine, as_float, check_finite
from steerers.matching.strategy import Order, Pair, Strategy, WithSteerer
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

__all__ = [
    "STRATEGIES", "DualSoftmax", "Invariant", "MaxMatches", "MaxSimilarity", "MutualNearest", "Order", "Procrustes",
    "PrototypeProcrustes", "Strategy", "Subset", "Tta", "make_strategy", "most_matches", "unknown_strategy",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DualSoftmax(Strategy):
    """Descriptions as they are: for images that are upright to each other."""

    name = "dual-softmax"

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return self._assign([Cosine(*pair) for pair in pairs])


@dataclass(frozen=True, kw_only=True)
class Invariant(WithSteerer):
    """Project descriptions to the subspace that no rotation changes, then match once."""

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

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        return self._assign([Cosine(self._projected(first), self._projected(second)) for first, second in pairs])

    def _projected(self, descriptions: Tensor) -> Tensor:
        return as_float(descriptions) @ self.projection.to(as_float(descriptions)).mT


@dataclass(frozen=True, kw_only=True)
class Tta(Strategy):
    """Test-time augmentation: rotate the first image, describe it again, keep the rotation with the most matches.

    It needs no steerer, but one run of the network for every rotation; what steerers replace. Descriptions alone do not
    suffice, so the pipeline calls :meth:`match_rotated`.
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
        """The rotations, in radians, at which the first image is described."""
        assert isinstance(self.order, int)
        return Group(self.order).angles()

    @torch.no_grad()
    def match_rotated(self, rotated0: Sequence[Tensor], descriptions1: Tensor) -> tuple[Assignment, int]:
        """Match the descriptions of every rotated first image; the best assignment, and which rotate it was."""
        if len(rotated0) != len(self.angles):
            raise ValueError(
                f"tta of order {self.order} needs the descriptions of {self.order} rotations, got {len(rotated0)}"
            )
        plain = DualSoftmax(
            inverse_temperature=self.inverse_temperature,
            threshold=self.threshold,
            tile=self.tile,
            kernels=self.kernels,
            precision=self.precision,
            graphs=self.graphs,
        )
        found = [plain.match(descriptions0, descriptions1) for descriptions0 in rotated0]
        best = most_matches(found, self.angles)
        index = 0 if best.angle is None else int((self.angles - best.angle).abs().argmin())
        return best, index

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        raise ValueError("tta describes rotated copies of the image: give the images to the matcher, not descriptions")


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

    def _match_all(self, pairs: Sequence[Pair]) -> list[Assignment]:
        found = []
        for first, second in pairs:
            check_finite(first, second)
            similarity = Cosine(first, second)
            found.append(mutual_nearest(similarity, threshold=self.threshold, ratio=self.ratio, tile=self.tile))
        return found


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
        order: rotations that are tried: by default all of C_n, and 8 for SO(2). ``None`` is every angle, for
            ``max-similarity``. Strategies that try no rotations refuse one.
        options: ``inverse_temperature``, ``threshold``, ``tile``, ``kernels``, ``precision``, ``graphs``;
            ``subset_size``, ``seed``; ``prototype``; ``ratio``.

    Raises:
        ValueError: for an unknown name, a missing steerer, or a steerer or option that the strategy is not defined for.
    """
    if name not in STRATEGIES:
        raise ValueError(unknown_strategy(name))
    cls = STRATEGIES[name]
    if issubclass(cls, WithSteerer):
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
    """The assignment with the most matches, with its rotation; no rotation if none has any.

    Of several with as many matches, the one whose probabilities add up to more.
    """
    best = number_of_most_matches(found)
    return replace(found[best], angle=float(angles[best]) if len(found[best]) else None)
