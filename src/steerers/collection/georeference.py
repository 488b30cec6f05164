"""A model without scale, brought to metres by the GPS positions of its photographs, some of which may be very wrong.

The frame is east, north, up (ENU) in metres around an origin whose latitude, longitude and altitude are kept with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Position = tuple[float, float, float | None]
"""Latitude and longitude in degrees, altitude in metres if it is known."""

SEMI_MAJOR, FLATTENING = 6_378_137.0, 1 / 298.257223563
"""Of the ellipsoid of WGS 84."""
MOST_TRIPLES, SEED = 2000, 0
TOLERANCE = 5.0
"""A position that is off by less metres than this is never called wrong: so much GPS errs anyway."""
WELL_SPREAD, FOLLOWS = 0.02, 0.5
"""Least ratio of the second extent of the positions to the first, below which they lie on a line; and least fraction of
the variance of the positions that the model must explain (R squared, adjusted for its seven degrees of freedom)."""


# The Earth ------------------------------------------------------------------------------------------------------------


def to_ecef(degrees: Array) -> Array:
    """(N, 3) latitude, longitude and altitude as (N, 3) metres from the centre of the Earth."""
    latitude, longitude = np.radians(degrees[:, 0]), np.radians(degrees[:, 1])
    squared = FLATTENING * (2 - FLATTENING)  # eccentricity
    normal = SEMI_MAJOR / np.sqrt(1 - squared * np.sin(latitude) ** 2)
    out = (normal + degrees[:, 2]) * np.cos(latitude)
    height = (normal * (1 - squared) + degrees[:, 2]) * np.sin(latitude)
    return np.stack([out * np.cos(longitude), out * np.sin(longitude), height], axis=1)


def from_ecef(xyz: Array) -> Array:
    """The inverse of :func:`to_ecef`, by iteration; exact to a millimetre up to great heights."""
    squared = FLATTENING * (2 - FLATTENING)
    out = np.hypot(xyz[:, 0], xyz[:, 1])
    latitude = np.arctan2(xyz[:, 2], out * (1 - squared))
    for _ in range(10):
        normal = SEMI_MAJOR / np.sqrt(1 - squared * np.sin(latitude) ** 2)
        latitude = np.arctan2(xyz[:, 2] + squared * normal * np.sin(latitude), out)
    normal = SEMI_MAJOR / np.sqrt(1 - squared * np.sin(latitude) ** 2)
    altitude = out * np.cos(latitude) + xyz[:, 2] * np.sin(latitude) - SEMI_MAJOR**2 / normal
    return np.stack([np.degrees(latitude), np.degrees(np.arctan2(xyz[:, 1], xyz[:, 0])), altitude], axis=1)


def _axes(origin: Array) -> Array:
    """(3, 3) rows: east, north and up at a place, from the centre of the Earth."""
    latitude, longitude = np.radians(origin[:2])
    (a, b), (c, d) = (np.sin(latitude), np.cos(latitude)), (np.sin(longitude), np.cos(longitude))
    return np.array([[-c, d, 0], [-a * d, -a * c, b], [b * d, b * c, a]])


def to_enu(degrees: Array, origin: Array) -> Array:
    """(N, 3) latitude, longitude and altitude as (N, 3) metres east, north and up of an origin of the same kind."""
    return np.asarray((to_ecef(degrees) - to_ecef(origin[None])) @ _axes(origin).T)


def from_enu(xyz: Array, origin: Array) -> Array:
    """The inverse of :func:`to_enu`."""
    return from_ecef(xyz @ _axes(origin) + to_ecef(origin[None]))


# Alignment ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Similarity:
    """``x -> scale R x + t``."""

    scale: float
    R: Array  # (3, 3)
    t: Array  # (3,)

    def __call__(self, points: Array) -> Array:
        """Of (N, 3) points."""
        return np.asarray(self.scale * points @ self.R.T + self.t)


@dataclass(frozen=True, eq=False)
class Alignment:
    """How a model lies on the Earth.

    Attributes:
        transform: from the model to metres east, north and up of ``origin`` (latitude, longitude, altitude).
        offsets: metres from where the model has a photograph to where GPS has it, by name.
        wrong: those of them whose GPS position is not believed.
        error: median of the offsets of the others.
        level: altitudes were not used, for some are missing or one height for all follows the model clearly better;
            offsets are horizontal then.
    """

    transform: Similarity
    origin: Array
    offsets: dict[str, float]
    wrong: tuple[str, ...]
    error: float
    level: bool = False


CLEARLY = 0.5
"""One height is taken for all photographs where it suits as many and leaves this part of what altitudes leave
unexplained, or less."""


class NotAlignedError(ValueError):
    """Why GPS positions do not place a model, in words."""


def common_origin(positions: Sequence[Position]) -> Array:
    """Latitude, longitude and altitude in the middle of most positions; 0 for the altitude that none has."""
    altitudes = [altitude for _, _, altitude in positions if altitude is not None]
    places = np.array([position[:2] for position in positions], np.float64)
    return np.array([*np.median(places, axis=0), float(np.median(altitudes)) if altitudes else 0.0])


def align(centres: Mapping[str, Array], positions: Mapping[str, Position], origin: Array) -> Alignment:
    """Find the similarity from a model to metres that suits most GPS positions; the others are told apart.

    It is the one of least median of squares over triples of photographs, refined on those that it suits: a position in
    another country moves nothing as long as most are right. Altitudes of GPS are often far worse than the rest: where
    one height for all photographs follows the model clearly better, or some altitudes are missing, they are not used.

    Args:
        centres: (3,) of each photograph of the model, by name; ``positions`` of those that have one.

    Raises:
        NotAlignedError: saying why.
    """
    names = sorted(centres.keys() & positions.keys())
    if len(names) < 3:
        raise NotAlignedError(f"{len(names)} of its photographs have a GPS position, and three are needed")
    source = np.stack([centres[name] for name in names])
    level = to_enu(np.array([(*positions[name][:2], origin[2]) for name in names]), origin)
    fits = [_fit(source, level)]
    if all(positions[name][2] is not None for name in names):
        fits.insert(0, _fit(source, to_enu(np.array([positions[name] for name in names], np.float64), origin)))
    clearly = 1 - fits[-1].follows < CLEARLY * (1 - fits[0].follows) and fits[-1].wrong.sum() <= fits[0].wrong.sum()
    best = fits[-1] if clearly else fits[0]
    if best.reason or best.follows < FOLLOWS:
        raise NotAlignedError(best.reason or f"its GPS positions do not follow it: they are {best.told()}")
    is_level = best is fits[-1]
    off = np.linalg.norm((best.transform(source) - best.target)[:, : 2 if is_level else 3], axis=1)
    return Alignment(
        best.transform,
        origin,
        dict(zip(names, off.tolist(), strict=True)),
        tuple(name for name, bad in zip(names, best.wrong, strict=True) if bad),
        float(np.median(off[~best.wrong])),
        is_level,
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    """A similarity to (N, 3) positions, which are too far off, and how well it follows the others, or why it does not
    (then ``follows`` is below 0)."""

    transform: Similarity
    target: Array
    wrong: NDArray[np.bool_]
    off: Array
    follows: float
    reason: str = ""

    def told(self) -> str:
        right = self.target[~self.wrong]
        extent = float(np.sqrt(((right - right.mean(axis=0)) ** 2).sum(axis=1).mean()))
        return f"{np.median(self.off[~self.wrong]):.3g} m off over an extent of {extent:.3g} m"


def _fit(source: Array, target: Array) -> _Fit:
    transform, wrong = _search(source, target)
    off = np.linalg.norm(transform(source) - target, axis=1)
    right = ~wrong
    reason = _why_not(source[right], target[right])
    count = int(right.sum())
    total = float(((target[right] - target[right].mean(axis=0)) ** 2).sum())
    left = float((off[right] ** 2).sum())
    follows = -1.0 if reason else 1 - (left / max(3 * count - 7, 1)) / (total / (3 * count - 3))
    return _Fit(transform, target, wrong, off, follows, reason)


def fit_similarity(source: Array, target: Array) -> Similarity | None:
    """The similarity of least squares from (N, 3) points to others (Umeyama); ``None`` if they determine none."""
    middle, aim = source.mean(axis=0), target.mean(axis=0)
    U, s, V = np.linalg.svd((target - aim).T @ (source - middle))
    spread = float(((source - middle) ** 2).sum())
    if s[1] <= 1e-12 * s[0] or spread == 0:
        return None
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(U) * np.linalg.det(V))])
    R = (U * signs) @ V
    scale = float((s * signs).sum() / spread)
    return Similarity(scale, R, aim - scale * R @ middle) if scale > 0 else None


def _search(source: Array, target: Array) -> tuple[Similarity, NDArray[np.bool_]]:
    """The best similarity, and which positions are too far off.

    Positions that a fit left out stay out of what it is refined on; where all of them are near the fit to all, none is
    wrong.
    """
    best, least = None, np.inf
    for triple in _triples(len(source)):
        found = fit_similarity(source[triple], target[triple])
        if found is not None:
            median = float(np.median(np.linalg.norm(found(source) - target, axis=1)))
            best, least = (found, median) if median < least else (best, least)
    if best is None:
        raise NotAlignedError("its GPS positions lie on a line or in one point")
    wrong = np.zeros(len(source), dtype=bool)
    for _ in range(5):
        off = np.linalg.norm(best(source) - target, axis=1)
        limit = max(TOLERANCE, 5 * float(np.median(off)))
        wrong = off > limit
        refined = fit_similarity(source[~wrong], target[~wrong])
        if refined is None:
            break
        best = refined
    every = fit_similarity(source, target) if wrong.any() else None
    if every is not None and bool((np.linalg.norm(every(source) - target, axis=1) <= limit).all()):
        return every, np.zeros_like(wrong)
    return best, wrong


def _triples(count: int) -> list[list[int]]:
    """Three photographs each, all there are or as many as are tried; the same ones every time."""
    if count <= 20:
        return [list(triple) for triple in combinations(range(count), 3)]
    rng = np.random.default_rng(SEED)
    return [rng.choice(count, 3, replace=False).tolist() for _ in range(MOST_TRIPLES)]


def _why_not(source: Array, target: Array) -> str:
    """Why positions do not determine a similarity; empty if they do."""
    if len(source) < 3:
        return "fewer than three of its GPS positions agree with it"
    for what, points in (("photographs", source), ("GPS positions", target)):
        extents = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
        if extents[1] < WELL_SPREAD * extents[0]:
            return f"its {what} lie on a line, around which it could be turned at will"
    return ""
