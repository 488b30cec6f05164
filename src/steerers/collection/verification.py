"""Verification of all matched pairs of a collection: their two-view geometry, and what their loops say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._console import Progress
from steerers._parallel import spread
from steerers._tables import Table
from steerers.collection.rotations import Consistency, check_rotations
from steerers.collection.shards import Shards, cut
from steerers.collection.store import PAIRS_A_SHARD, Collection, Pair, Photograph
from steerers.collection.two_view import KINDS, TwoView, VerificationOptions, View, verify_pair

AT_ONCE = 16
"""Pairs that are spread over the threads together."""


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Keypoints that were moved to their exact places; :func:`steerers.collection.adjustment.adjust` makes it.

    Attributes:
        keypoints: (N, 2) of each photograph, by its name.
        registered: (K,) which matches of a pair were registered; ``None`` of a pair that was not tried.
        about: how it was made.
    """

    keypoints: Mapping[str, NDArray[np.float32]]
    registered: Callable[[Pair], NDArray[np.bool_] | None]
    about: dict[str, Any]

    def usable(self, pair: Pair, count: int, least: int) -> NDArray[np.bool_]:
        """(count,) which matches of a pair are used: where enough were registered, those alone. What was not is often
        not one thing, and lies on its epipolar line by chance. Where few were, as by day and by night, all of them."""
        found = self.registered(pair)
        return np.ones(count, dtype=bool) if found is None or found.sum() < least else found


@dataclass(frozen=True)
class Verdict:
    """What is kept in memory of a matched pair: the kind of its geometry, the number of its matches and inliers, and
    its rotation in degrees, NaN where it is not known."""

    pair: Pair
    kind: str
    matches: int
    inliers: int
    angle: float


class Verified:
    """The two-view geometry of the matched pairs of a collection.

    Attributes:
        collection: theirs.
        about: how they were verified.
        verdicts: on all of them, in the order of their names.
    """

    def __init__(
        self, collection: Collection, shards: Shards, about: dict[str, Any], adjusted: Adjusted | None = None
    ) -> None:
        self.collection, self._shards, self.about, self._adjusted = collection, shards, about, adjusted
        self.verdicts = sorted(self._read(), key=lambda verdict: verdict.pair)

    def keypoints(self, name: str) -> NDArray[np.float32]:
        """(N, 2) keypoints of a photograph: the collection's, or where refinement has moved them."""
        return keypoints_of(self.collection, self._adjusted, name)

    def _read(self) -> Iterator[Verdict]:
        for number in range(len(self._shards.plan())):
            yield from _verdicts(self._shards.table(number))

    @cached_property
    def good(self) -> list[Verdict]:
        """Those that geometry explains."""
        return [verdict for verdict in self.verdicts if verdict.kind != "none"]

    @cached_property
    def names(self) -> list[str]:
        """Of all photographs with features, sorted."""
        return [photograph.name for photograph in self.collection.photographs()]

    @cached_property
    def consistency(self) -> Consistency:
        """What the loops say of the pairs in :attr:`good`."""
        place = {name: index for index, name in enumerate(self.names)}
        ends = [(place[first], place[second]) for first, second in (verdict.pair for verdict in self.good)]
        found = check_rotations(
            ends, [verdict.angle for verdict in self.good], [verdict.inliers for verdict in self.good]
        )
        missing = len(self.names) - len(found.orientations)
        return Consistency(
            found.probability,
            found.agreeing,
            found.contradicting,
            np.concatenate([found.orientations, np.full(missing, np.nan)]),
        )

    @property
    def consistent(self) -> list[Verdict]:
        """Those in :attr:`good` that their loops do not contradict."""
        return [verdict for verdict, kept in zip(self.good, self.consistency.kept, strict=True) if kept]

    @property
    def contradicted(self) -> list[Verdict]:
        """Those in :attr:`good` that their loops contradict."""
        return [verdict for verdict, kept in zip(self.good, self.consistency.kept, strict=True) if not kept]

    def chosen(self, keep_contradicted: bool) -> list[Pair]:
        """The pairs that are used: those that geometry explains, without those that contradict their loops unless
        they are asked for."""
        return [verdict.pair for verdict in (self.good if keep_contradicted else self.consistent)]

    def orientations(self) -> dict[str, float]:
        """Degrees counter-clockwise by which each photograph is rotated against most of its group; of those known."""
        found = zip(self.names, self.consistency.orientations.tolist(), strict=True)
        return {name: degrees for name, degrees in found if not np.isnan(degrees)}

    def two_view(self, pair: Pair) -> TwoView:
        """The geometry of a pair.

        Raises:
            KeyError: if it is not verified.
            ValueError: naming the file, if it is damaged.
        """
        row, (matrices, inliers) = self._shards.row(pair), self._shards.read(pair, "matrices", "inliers")
        F, E, H = matrices.reshape(3, 3, 3)
        angle = float("nan") if row["angle"] is None else float(row["angle"])
        return TwoView(row["kind"], F, E, H, inliers.astype(bool), angle)

    def close(self) -> None:
        """Close the files that are open."""
        self._shards.close()


def verify(
    collection: Collection, options: VerificationOptions | None = None, *, adjusted: Adjusted | None = None
) -> Verified:
    """Verify the matched pairs of a collection, on all threads; those that were before are not asked again.

    Pairs are those of ``pairs.txt``: one that was taken out there after it was matched does not count any more. What
    was verified by other options, or of other matches, is done anew. The same matches and options give the same files.

    Args:
        adjusted: keypoints in their exact places, instead of those of the collection.
    """
    options = options or VerificationOptions()
    about = {"verification": asdict(options), "matching": collection.manifest.matching}
    shards = _shards(collection, "verified" if adjusted is None else "verified-refined")
    if adjusted is not None:
        about["adjusted"] = adjusted.about
    asked = set(collection.pairs())
    plan = shards.extend([pair for pair in collection.matched() if pair in asked], PAIRS_A_SHARD, about, _verdicts)
    left = [number for number in range(len(plan)) if not shards.done(number)]
    photographs = {photograph.name: photograph for photograph in collection.photographs()}
    total, done = sum(map(len, plan)), sum(len(shard) for n, shard in enumerate(plan) if n not in left)
    with Progress("verifying", total, "pair", done=done) as progress:
        for number in left:
            with shards.write(number, about) as table:
                for some in cut(plan[number], AT_ONCE):
                    found = spread(lambda pair: _verify(collection, adjusted, photographs, _pair(pair), options), some)
                    for pair, two_view in zip(some, found, strict=True):
                        table.append(*_to_row(_pair(pair), two_view))
                        progress.advance()
    return Verified(collection, shards, about, adjusted)


def _shards(collection: Collection, name: str) -> Shards:
    folder = collection.folder / name
    return Shards(
        folder, "two-view geometries", folder / "plan.txt", 2, lambda row: (str(row["name0"]), str(row["name1"]))
    )


def _verdicts(table: Table) -> list[Verdict]:
    """What a shard says.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    try:
        found = [
            Verdict(
                (str(row["name0"]), str(row["name1"])),
                KINDS[KINDS.index(row["kind"])],
                int(row["matches"]),
                int(row["inliers"]),
                float("nan") if row["angle"] is None else float(row["angle"]),
            )
            for row in table.rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{table.path}: damaged ({error})") from error
    counts = zip(found, table.lengths("inliers"), table.lengths("matrices"), strict=True)
    if any(inliers != verdict.matches or matrices != 3 for verdict, inliers, matrices in counts):
        raise ValueError(f"{table.path}: damaged, a pair lacks numbers")
    return found


def _pair(key: Sequence[str]) -> Pair:
    first, second = key
    return first, second


def keypoints_of(collection: Collection, adjusted: Adjusted | None, name: str) -> NDArray[np.float32]:
    """(N, 2) keypoints of a photograph."""
    return collection.keypoints(name) if adjusted is None else adjusted.keypoints[name]


def _verify(
    collection: Collection,
    adjusted: Adjusted | None,
    photographs: dict[str, Photograph],
    pair: Pair,
    options: VerificationOptions,
) -> TwoView:
    matches = collection.matches(*pair)
    used = np.ones(len(matches), dtype=bool)
    if adjusted is not None:
        used = adjusted.usable(pair, len(matches), options.min_inliers)
    points = [keypoints_of(collection, adjusted, name)[matches.indices[used, k]] for k, name in enumerate(pair)]
    views = view_of(collection, photographs[pair[0]]), view_of(collection, photographs[pair[1]])
    angles = None if matches.angles is None else matches.angles[used]
    found = verify_pair(points[0], points[1], views, options, matches.angle, angles)
    inliers = np.zeros(len(matches), dtype=bool)
    inliers[used] = found.inliers
    return replace(found, inliers=inliers)


def view_of(collection: Collection, photograph: Photograph) -> View:
    """What verification has to know of a photograph."""
    most = collection.manifest.extraction.max_size
    shrunk = 1.0 if not isinstance(most, int) else max(1.0, max(photograph.size) / most)
    return View(photograph.size, photograph.focal, shrunk)


def _to_row(pair: Pair, found: TwoView) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    told = {
        "name0": pair[0],
        "name1": pair[1],
        "kind": found.kind,
        "matches": len(found.inliers),
        "inliers": int(found.inliers.sum()),
        "angle": None if np.isnan(found.angle) else found.angle,
    }
    matrices = np.stack([found.F, found.E, found.H]).reshape(3, 9)
    return told, {"matrices": matrices, "inliers": found.inliers.astype(np.uint8)}
