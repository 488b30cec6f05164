"""Looking for a photograph on a map: guesses, and a second look at them.

The tiles of the map that may show it, ranked by what no rotation changes, are matched, and the matches of each vote for
a place (:mod:`steerers.maps.voting`). The best guesses are looked at again: the part of the map that the photograph
should show is cut out as the photograph would show it, upright to it and in its scale, and matched anew, with more
keypoints, until nothing changes. Whether what is found is the place says the verdict (:mod:`steerers.verdict`), as if
every place that was looked at had been equally likely beforehand, and none of them as likely as any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steerers._choices import LIKELY, MAP_TILES
from steerers.features import Features
from steerers.geometry import Size, scale_at
from steerers.images.exif import ground_distance
from steerers.images.load import Image
from steerers.maps.coordinates import map_points
from steerers.maps.index import MapIndex, Tile
from steerers.maps.looking import SHOWN, Look, Photo, look
from steerers.maps.rasters import Raster
from steerers.maps.voting import Guess, overlap, vote
from steerers.matching.strategies import SoftmaxStrategy
from steerers.pipeline import Pipeline
from steerers.steering.irreps import Irreps
from steerers.verdict import probability

Array = NDArray[np.float64]

SMALLER = (512, 256)
"""Longest sides at which a photograph is also matched with the finest level of a map, which it may be finer than."""
REACH = 1.5
"""Scales from a shown photograph to a level that are looked for: up to this ratio, and down to its inverse."""
QUICK = 0.01
"""Least probability of a match that votes: right ones are found among many."""
AT_ONCE = 16
"""Tiles that are matched before it is asked whether a place stands out."""
LEAST, STANDING_OUT = 10, 1.8
"""Votes of a place that stands out, and how many times those of the next."""
WORTH = 0.6
"""Votes of a place that is looked at too, as a fraction of those of one that led somewhere."""
SETTLED = 0.003
"""Largest move of a corner, as a fraction of what a photograph shows, of a place at which looking again ends."""
SURE = 0.95
"""Probability with which nothing else is looked at."""


@dataclass(frozen=True)
class Prior:
    """What is known of a photograph beforehand.

    Attributes:
        position: longitude and latitude of about where it was taken.
        within: metres that it may be away from there; the middle of what it shows, that is.
        resolution: metres of the side of its pixels on the ground, to about a quarter.
    """

    position: tuple[float, float] | None = None
    within: float = math.inf
    resolution: float | None = None

    def __post_init__(self) -> None:
        if self.position is not None and not (abs(self.position[0]) <= 180 and abs(self.position[1]) <= 90):
            raise ValueError(f"position must be a longitude and a latitude in degrees, got {self.position}")
        if not self.within > 0:
            raise ValueError(f"within must be a positive number of metres, got {self.within}")
        if self.resolution is not None and not 0 < self.resolution < math.inf:
            raise ValueError(f"resolution must be a positive number of metres, got {self.resolution}")


@dataclass(frozen=True, kw_only=True)
class LocateOptions:
    """How thoroughly is looked.

    Attributes:
        tiles: most tiles of the map that a photograph is matched with.
        guesses: places that are looked at again.
        iterations: how often at most.
        num_keypoints: of the photograph and of what is cut out of the map, when they are looked at again.
        threshold: least probability with which a photograph is on the map.
    """

    tiles: int = MAP_TILES
    guesses: int = 3
    iterations: int = 4
    num_keypoints: int = 4096
    threshold: float = LIKELY

    def __post_init__(self) -> None:
        for name in ("tiles", "guesses", "iterations", "num_keypoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must be a probability between 0 and 1, got {self.threshold}")


@dataclass(frozen=True, eq=False)
class Found:
    """What looking for a photograph found: the best look, its probability, and with how many tiles it was compared."""

    look: Look | None
    probability: float
    tiles: int


@dataclass(frozen=True, eq=False)
class Candidate:
    """The features of a photograph, shown in some size, a tile to compare them with, and the least and largest scale
    from pixels of the photograph to those of the map; with test-time augmentation also the rotation, in degrees, at
    which the photograph was described, which is about that of right matches."""

    features: Features
    tile: Tile
    scales: tuple[float, float]
    angle: float | None = None


class Finder:
    """Looks for photographs on one map.

    Args:
        raster: the map; ``index`` its index; ``pipeline`` the model that the index was made with. If it has test-time
            augmentation, photographs are described and compared with tiles at each of its rotations.
    """

    def __init__(
        self, raster: Raster, index: MapIndex, pipeline: Pipeline, options: LocateOptions | None = None
    ) -> None:
        self.raster, self.index, self.options = raster, index, options or LocateOptions()
        self._rotations = [None] if pipeline.tta is None else pipeline.rotations
        self.thorough = replace(pipeline, num_keypoints=self.options.num_keypoints, max_size=None, tta=None)
        self.quick = replace(self.thorough, num_keypoints=index.extraction.num_keypoints)
        if isinstance(pipeline.strategy, SoftmaxStrategy):
            least = QUICK if pipeline.consensus else min(QUICK, pipeline.strategy.options.threshold)
            more = replace(pipeline.strategy.options, threshold=least, mutual=True)
            self.quick = replace(self.quick, strategy=replace(pipeline.strategy, options=more), consensus=None)
        self.place = raster.georeference or index.place
        steerer = pipeline.model.steerer
        self._irreps = None if steerer is None else Irreps.of(steerer)

    def find(self, photo: Photo, prior: Prior) -> Found:
        """The place that most speaks for, if any does.

        Tiles are matched from the most similar one on, and as soon as a place stands out it is looked at.
        """
        pairs = self._candidates(photo, prior)
        guesses: list[Guess] = []
        looked: list[tuple[Guess, Look | None]] = []
        step = AT_ONCE * len(self._rotations)
        compared: set[int] = set()
        for start in range(0, len(pairs), step):
            some = pairs[start : start + step]
            compared |= {one.tile.number for one in some}
            guesses = _distinct([*guesses, *self._vote(photo, some, prior)], photo.size)
            left = [one for one in guesses if not _is_among(one, looked, photo.size)]
            if not left or left[0].votes < max(LEAST, STANDING_OUT * (left[1].votes if len(left) > 1 else 0)):
                continue
            if len(looked) == self.options.guesses:
                break
            looked.append((left[0], self._look_well(photo, left[0].matrix, prior)))
            if _chance(looked) >= SURE:
                break
        if _chance(looked) < SURE:
            least = WORTH * max((one.votes for one, seen in looked if seen is not None), default=0)
            left = [one for one in guesses if one.votes >= least and not _is_among(one, looked, photo.size)]
            rest = left[: self.options.guesses - len(looked)]
            looked += [(one, self._look_well(photo, one.matrix, prior)) for one in rest]
        best = max((seen for _, seen in looked if seen is not None), key=lambda seen: seen.logit, default=None)
        return Found(best, _chance(looked), len(compared))

    # Guessing ---------------------------------------------------------------------------------------------------------

    def _vote(self, photo: Photo, pairs: Sequence[Candidate], prior: Prior) -> list[Guess]:
        """What the matches with some tiles vote for, as far as it is allowed."""
        found = self.quick.match_pairs([(one.features, self.index.features(one.tile)) for one in pairs])
        voted = [
            vote(matches if one.angle is None else replace(matches, angle=one.angle), photo.size, one.scales)
            for matches, one in zip(found, pairs, strict=True)
        ]
        return [one for one in voted if one is not None and self._is_allowed(one.matrix, photo.size, prior)]

    def _candidates(self, photo: Photo, prior: Prior) -> list[Candidate]:
        """Tiles with which the photograph is compared, the most similar first."""
        tiles = [tile for tile in self.index.tiles if self._may_show(tile, prior)]
        found: list[tuple[float, Candidate]] = []
        for longest, levels in self._sizes(photo.size, prior):
            own = [tile for tile in tiles if tile.level in levels]
            if not own:
                continue
            for features, angle in self._describe(photo.shown(longest)):
                alike = self.index.similarities(features.descriptions, self._irreps)
                for tile in own:
                    ratio = longest / max(photo.size) * self.index.resolution(tile.level)
                    one = Candidate(features, tile, (ratio / REACH, ratio * REACH), angle)
                    found.append((float(alike[tile.number]), one))
        found.sort(key=lambda one: -one[0])
        return [one for _, one in found[: self.options.tiles * len(self._rotations)]]

    def _describe(self, image: Image) -> Iterator[tuple[Features, float | None]]:
        """The features of a shown photograph, at each rotation, and that in degrees."""
        for angle in self._rotations:
            if angle is None:
                yield self.quick.extract(image), None
            else:
                yield self.quick.extract_rotated(image, angle), math.degrees(angle)

    def _sizes(self, size: Size, prior: Prior) -> list[tuple[int, list[int]]]:
        """Longest sides in which a photograph is shown, and the levels with which it is compared then."""
        levels, longest = list(range(self.index.levels)), max(size)
        if prior.resolution is None:
            return [(min(SHOWN, longest), levels), *((side, [0]) for side in SMALLER if side < longest)]
        ratio = prior.resolution / self.place.resolution()  # pixels of the map in one of the photograph
        sides = {level: round(longest * ratio / self.index.resolution(level)) for level in levels}
        best = min(levels, key=lambda level: abs(math.log(max(1, sides[level]) / SHOWN)))
        return [(min(max(64, sides[best]), longest), [best])]

    def _may_show(self, tile: Tile, prior: Prior) -> bool:
        """Whether some of a tile is near enough to where the photograph was taken."""
        if prior.position is None or math.isinf(prior.within):
            return True
        left, top, right, bottom = tile.window
        reach = 0.5 * math.hypot(right - left, bottom - top) * self.place.resolution(tile.centre)
        return self._metres_away(tile.centre, prior) <= prior.within + reach

    def _is_allowed(self, matrix: Array, size: Size, prior: Prior) -> bool:
        """Whether a place is near enough to where the photograph was taken, and on the map."""
        middle = np.array([[(size[0] - 1) / 2, (size[1] - 1) / 2]])
        centre = map_points(matrix, middle)[0]
        beyond = 0.5 * math.hypot(*size) * scale_at(matrix, middle[0])
        inside = all(-beyond <= at <= side + beyond for at, side in zip(centre, self.raster.size, strict=True))
        if not inside or prior.position is None or math.isinf(prior.within):
            return inside
        return self._metres_away((float(centre[0]), float(centre[1])), prior) <= prior.within

    def _metres_away(self, pixel: tuple[float, float], prior: Prior) -> float:
        assert prior.position is not None
        lon, lat = self.place.to_lonlat([pixel])[0]
        there = ground_distance((float(lat), float(lon)), (prior.position[1], prior.position[0]))
        return math.inf if math.isnan(there) else there

    # Looking again ----------------------------------------------------------------------------------------------------

    def _look_well(self, photo: Photo, matrix: Array, prior: Prior) -> Look | None:
        """Look at a guess, and again from where that ended, until nothing changes or it gets no better."""
        width, height = photo.size
        corners = [[0, 0], [width, 0], [width, height], [0, height]]
        best = look(self.raster, self.thorough, photo, matrix)
        for _ in range(self.options.iterations - 1):
            again = None if best is None else look(self.raster, self.thorough, photo, best.matrix)
            if best is None or again is None or again.evidence.planar < best.evidence.planar:
                break
            moved = np.abs(map_points(again.matrix, corners) - map_points(best.matrix, corners)).max()
            best = again
            if moved < SETTLED * np.abs(np.ptp(map_points(best.matrix, corners), axis=0)).max():
                break
        return best if best is not None and self._is_allowed(best.matrix, photo.size, prior) else None


def _distinct(guesses: Sequence[Guess], size: Size) -> list[Guess]:
    """The best guess of each place, the best first."""
    best: list[Guess] = []
    for one in sorted(guesses, key=lambda guess: -guess.votes):
        if not any(overlap(one.matrix, other.matrix, size) for other in best):
            best.append(one)
    return best


def _is_among(guess: Guess, looked: Sequence[tuple[Guess, Look | None]], size: Size) -> bool:
    """Whether a place was looked at, or is where looking at another led."""
    places = [matrix for one, seen in looked for matrix in (one.matrix, *([] if seen is None else [seen.matrix]))]
    return any(overlap(guess.matrix, matrix, size) for matrix in places)


def _chance(looked: Sequence[tuple[Guess, Look | None]]) -> float:
    """The probability of the best of what was looked at."""
    prior = 1 / (1 + len(looked))
    return max((probability(seen.evidence, prior) for _, seen in looked if seen is not None), default=0.0)
