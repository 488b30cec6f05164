"""A collection: a folder with the features of many photographs, which of them are pairs, and their matches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from steerers._choices import DEFAULT_MODEL
from steerers._files import StrPath, write_text
from steerers._tables import TableWriter
from steerers.collection.manifest import SHARD_SIZE, Extraction, Manifest
from steerers.collection.shards import Shards, check_name, cut, read_lines
from steerers.datasets.photos import ENDINGS, is_image
from steerers.features import Features, check_matches
from steerers.images.exif import Taken

if TYPE_CHECKING:
    from steerers.features import Matches
    from steerers.pipeline import Pipeline

MANIFEST, PHOTOGRAPHS, PAIRS, PLAN = "manifest.json", "photographs.txt", "pairs.txt", "plan.txt"
PAIRS_A_SHARD = 1000
TILE = 64
"""Photographs whose pairs with as many others are matched one after the other, so that they are read once."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Photograph:
    """A photograph with features.

    Attributes:
        name: its path below the folder of photographs, with ``/`` on every system.
        size: (width, height) of the stored image.
        focal: focal length in pixels of the stored image, from EXIF data: a first guess.
        camera: maker, model and lens as EXIF has them, or empty. Photographs of equal camera, focal length and size
            were taken with the same.
        position: latitude and longitude in degrees, altitude in metres.
        count: how many keypoints it has.
    """

    name: str
    size: tuple[int, int]
    focal: float | None = None
    camera: str = ""
    position: tuple[float, float, float | None] | None = None
    count: int = 0


@dataclass(frozen=True, eq=False)
class PairMatches:
    """The matches of a pair, as they are kept.

    Attributes:
        indices: (K, 2) int32 into the keypoints of the two photographs.
        scores: (K,) float32.
        angle: degrees counter-clockwise from photograph 0 to 1, ``None`` if unknown; ``angles`` (K,) float32 likewise.
    """

    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    angle: float | None = None
    angles: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def of(cls, matches: Matches) -> PairMatches:
        """What is kept of matches."""
        return cls(matches.indices.astype(np.int32), matches.scores, matches.angle, matches.angles)


@dataclass(frozen=True)
class Count:
    """How far a step is."""

    done: int
    failed: int
    left: int


class Collection:
    """What lies in a folder: the features of photographs, pairs and matches. Arrays are read when they are asked for.

    Make one with :meth:`create`, fill it with :func:`steerers.collection.extract` and so on, or by the commands
    ``steerers extract``, ``pairs`` and ``match-pairs``; open one with :meth:`open`.

    Attributes:
        folder: where it lies.
        photos: the folder of the photographs.
        manifest: what it was made with.
    """

    def __init__(self, folder: StrPath, manifest: Manifest) -> None:
        self.folder, self.photos, self.manifest = Path(folder), Path(manifest.photos), manifest
        self._checked: set[tuple[str, ...]] = set()  # files of weights that are those of the collection
        self._features = Shards(
            self.folder / "features",
            "features",
            self.folder / PHOTOGRAPHS,
            1,
            lambda row: (row["name"],),
            lambda: feature_facts(self.manifest),
        )
        self._matches = Shards(
            self.folder / "matches",
            "pair matches",
            self.folder / "matches" / PLAN,
            2,
            lambda row: (row["name0"], row["name1"]),
            lambda: match_facts(self.manifest),
        )

    def __repr__(self) -> str:
        return (
            f"Collection({os.fspath(self.folder)}, {len(self.names())} photographs, {self.manifest.extraction.model})"
        )

    @classmethod
    def open(cls, folder: StrPath) -> Collection:
        """The collection in a folder.

        Raises:
            ValueError: if there is none, or its manifest is damaged.
        """
        path = Path(folder)
        if path.is_file():
            raise ValueError(f"{path} is a file; a collection is a folder: steerers extract PHOTOS -o FOLDER makes one")
        if not (path / MANIFEST).is_file():
            raise ValueError(f"there is no collection in {path}; steerers extract PHOTOS -o {path} makes one")
        return cls(path, Manifest.read(path / MANIFEST))

    @classmethod
    def create(
        cls,
        folder: StrPath,
        photos: StrPath,
        model: str = DEFAULT_MODEL,
        *,
        weights: Sequence[StrPath] = (),
        shard_size: int | None = None,
        **options: Any,
    ) -> Collection:
        """Begin a collection of all photographs of a folder and those below it, or go on with it.

        Photographs that have come since are added; shards that are there stay as they are.

        Args:
            folder: where it shall lie; made if it is missing.
            model: see :func:`steerers.load`, also for ``weights``.
            shard_size: photographs a file, by default 1000; of a collection that is there, it stays.
            options: of :class:`~steerers.collection.manifest.Extraction`, such as ``num_keypoints``.

        Raises:
            ValueError: if there is no photograph, a name cannot be kept, or the collection that is there was made with
                another model or other options; it says which.
        """
        path, extraction = Path(folder), Extraction(model, **options)
        names = find_names(Path(photos), leave_out=path)
        given = tuple(os.path.abspath(file) for file in weights)
        made = Manifest(
            os.path.abspath(photos), extraction, extraction.checksum(weights), given, shard_size or SHARD_SIZE
        )
        there = cls.open(path) if (path / MANIFEST).is_file() else None
        if there is None or there.is_empty():
            path.mkdir(parents=True, exist_ok=True)
            made.write(path / MANIFEST)
        else:
            there.manifest.check_same(made, path)
            there._move_photos(made)
            if shard_size not in (None, there.manifest.shard_size):
                raise ValueError(f"{path} has shards of {there.manifest.shard_size} photographs, not {shard_size}")
            made = there.manifest
        collection = cls(path, made)
        collection._checked.add(given)
        collection._add(names)
        return collection

    def is_empty(self) -> bool:
        """Whether no features are there yet: then it may still be made in another way."""
        return next(self._done(self._features), None) is None

    def _move_photos(self, asked: Manifest) -> None:
        """Take another folder of photographs if the old one is gone: it may have been moved."""
        if asked.photos == self.manifest.photos:
            return
        if self.photos.is_dir():
            raise ValueError(f"{self.folder} holds photographs of {self.photos}, not of {asked.photos}")
        self.manifest = replace(self.manifest, photos=asked.photos)
        self.manifest.write(self.folder / MANIFEST)

    def _add(self, names: Iterable[str]) -> None:
        plan = [] if self.is_empty() else self._features.plan()
        known = {name for shard in plan for (name,) in shard}
        new = cut([(name,) for name in names if name not in known], self.manifest.shard_size)
        if new:
            self._features.set_plan([*plan, *new])

    def load_pipeline(self, weights: Sequence[StrPath] = (), **options: Any) -> Pipeline:
        """The matcher that the features were extracted by.

        Args:
            weights: where the files of weights lie now, if not where they did.
            options: what :func:`steerers.load` takes for matching, and the device.

        Raises:
            ValueError: if the weights are not those of the collection.
        """
        given, extraction = tuple(map(os.path.abspath, weights or self.manifest.weights)), self.manifest.extraction
        if given not in self._checked and extraction.checksum(given) != self.manifest.checksum:
            raise ValueError(f"{self.folder} was made with other weights of {extraction.model} than are there now")
        self._checked.add(given)
        return extraction.load(given, **options)

    # Photographs ------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all photographs, with features or not, in the order of the shards."""
        return [name for shard in self._features.plan() for (name,) in shard]

    def photographs(self) -> list[Photograph]:
        """Those with features, sorted by name."""
        found = (photograph for number in self._done(self._features) for photograph in self._photographs_of(number))
        return sorted(found, key=lambda photograph: photograph.name)

    def failures(self) -> dict[str, str]:
        """The photographs that could not be read, and why, sorted by name."""
        rows = (row for number in self._done(self._features) for row in self._features.table(number).rows)
        return dict(sorted((row["name"], str(row["error"])) for row in rows if "error" in row))

    def features(self, name: str) -> Features:
        """Those of a photograph; descriptions are as they are kept, by default float16.

        Raises:
            KeyError: if there are none.
            ValueError: naming the file, if it is damaged.
        """
        row = self._row(name)
        with _naming(self._path_of(name)):
            return Features.from_row(row, lambda *columns: self._features.read((name,), *columns))

    def keypoints(self, name: str) -> NDArray[np.float32]:
        """(N, 2) keypoints of a photograph, without its descriptions; errors as of :meth:`features`."""
        self._row(name)
        return self._features.read((name,), "keypoints")[0]

    def _row(self, name: str) -> dict[str, Any]:
        try:
            row = self._features.row((name,))
        except KeyError:
            raise KeyError(f"{self.folder} has no features of {name!r}") from None
        if "error" in row:
            raise KeyError(f"{self.folder} has no features of {name!r}: {row['error']}")
        return row

    def _path_of(self, name: str) -> Path:
        return self._features.path(self._features.shard_of((name,)) or 0)

    def _photographs_of(self, number: int) -> Iterator[Photograph]:
        table = self._features.table(number)
        with _naming(table.path):
            for row, count in zip(table.rows, table.lengths("keypoints"), strict=True):
                if "error" not in row:
                    place = row["position"]
                    where = None if place is None else (float(place[0]), float(place[1]), place[2])
                    width, height = row["size"]
                    yield Photograph(row["name"], (width, height), row["focal"], row["camera"], where, count)

    # Pairs and matches ------------------------------------------------------------------------------------------------

    def pairs(self) -> list[Pair]:
        """Those of ``pairs.txt``, in its order; none if it is not there.

        Raises:
            ValueError: naming the file and the line, where it is not two names with a tab between.
        """
        path = self.folder / PAIRS
        return [(parts[0], parts[1]) for _, parts in read_lines(path, 2)] if path.is_file() else []

    def set_pairs(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Write ``pairs.txt``: each pair once, the name that comes first in front, sorted; and give them back."""
        kept = sorted({(min(pair), max(pair)) for pair in pairs})
        write_text(
            self.folder / PAIRS, "".join(f"{check_name(first)}\t{check_name(second)}\n" for first, second in kept)
        )
        return kept

    def matched(self) -> list[Pair]:
        """The pairs with matches, sorted."""
        plan = self._matches.plan()
        return sorted((first, second) for number in self._done(self._matches) for first, second in plan[number])

    def matches(self, name0: str, name1: str) -> PairMatches:
        """Those of a pair, whose names are in the order of :meth:`matched`.

        Raises:
            KeyError: if there are none.
            ValueError: naming the file, if it is damaged.
        """
        key = (name0, name1)
        try:
            row = self._matches.row(key)
        except KeyError:
            raise KeyError(f"{self.folder} has no matches of {name0!r} and {name1!r}") from None
        indices, scores = self._matches.read(key, "indices", "scores")
        angles = self._matches.read(key, "angles")[0] if row.get("angles") else None
        with _naming(self._matches.path(self._matches.shard_of(key) or 0)):
            check_matches(
                row["angle"], {"indices": indices, "scores": scores, **({} if angles is None else {"angles": angles})}
            )
        return PairMatches(indices, scores, row["angle"], angles)

    def status(self) -> dict[str, Count]:
        """How far each step is: ``"photographs"`` and ``"pairs"``."""
        failed = len(self.failures())
        rows = sum(len(self._features.plan()[number]) for number in self._done(self._features))
        pairs = set(self.pairs())
        matched = len(pairs.intersection(self.matched()))
        return {
            "photographs": Count(rows - failed, failed, len(self.names()) - rows),
            "pairs": Count(matched, 0, len(pairs) - matched),
        }

    # Filling ----------------------------------------------------------------------------------------------------------

    def feature_shards(self) -> list[list[str]]:
        """The names of the photographs of each shard."""
        return [self.names_in(number) for number in range(len(self._features.plan()))]

    def names_in(self, shard: int) -> list[str]:
        """Those of one shard."""
        return [name for (name,) in self._features.plan()[shard]]

    def shard_path(self, kind: Literal["features", "matches"], shard: int) -> Path:
        """The file of a shard."""
        return (self._features if kind == "features" else self._matches).path(shard)

    def is_extracted(self, shard: int) -> bool:
        """Whether a shard of features is there."""
        return self._features.done(shard)

    @contextmanager
    def write_features(self, shard: int) -> Iterator[FeatureWriter]:
        """Write a shard of features; see :meth:`~steerers.collection.shards.Shards.write`."""
        with self._features.write(shard, feature_facts(self.manifest)) as table:
            yield FeatureWriter(table, half=self.manifest.extraction.descriptions == "float16")

    def match_shards(self) -> list[list[Pair]]:
        """The pairs of each shard of matches, as they were planned."""
        return [self.pairs_in(number) for number in range(len(self._matches.plan()))]

    def pairs_in(self, shard: int) -> list[Pair]:
        """Those of one shard."""
        return [(first, second) for first, second in self._matches.plan()[shard]]

    def plan_matches(self, size: int = PAIRS_A_SHARD) -> None:
        """Plan shards of matches: what is matched stays, and what else ``pairs.txt`` has is added.

        Pairs of photographs that are near each other in the order of names are in one shard, so that features are read
        few times.

        Raises:
            ValueError: if a photograph of ``pairs.txt`` has no features, or is paired with itself.
        """
        plan, asked = self._matches.plan(), self.pairs()
        done = {number for number in range(len(plan)) if self._matches.done(number)}
        matched = {key for number in done for key in plan[number]}
        left = [pair for pair in dict.fromkeys(asked) if pair not in matched]
        planned = {key for number, shard in enumerate(plan) if number not in done for key in shard}
        if planned != set(left):
            self._check_extracted(left)
            place = {photograph.name: index for index, photograph in enumerate(self.photographs())}
            left.sort(key=lambda pair: _tile(place[pair[0]], place[pair[1]]))
            self._matches.divide(left, size, done)

    def is_matched(self, shard: int) -> bool:
        """Whether a shard of matches is there."""
        return self._matches.done(shard)

    @contextmanager
    def write_matches(self, shard: int) -> Iterator[MatchWriter]:
        """Write a shard of matches; see :meth:`~steerers.collection.shards.Shards.write`."""
        with self._matches.write(shard, match_facts(self.manifest)) as table:
            yield MatchWriter(table)

    def set_matching(self, matching: dict[str, Any]) -> None:
        """Say how pairs are matched; a second way is refused as long as there are matches of the first.

        Raises:
            ValueError: saying what differs.
        """
        before = (
            self.manifest if any(True for _ in self._done(self._matches)) else replace(self.manifest, matching=None)
        )
        self.manifest = before.with_matching(matching, self.folder)
        self.manifest.write(self.folder / MANIFEST)

    def _check_extracted(self, pairs: Sequence[Pair]) -> None:
        known = {photograph.name for photograph in self.photographs()}
        for pair in pairs:
            if pair[0] == pair[1]:
                raise ValueError(f"{self.folder / PAIRS}: {pair[0]!r} is paired with itself")
            for name in pair:
                if name not in known:
                    raise ValueError(f"{self.folder / PAIRS}: there are no features of {name!r}; extract them first")

    @staticmethod
    def _done(shards: Shards) -> Iterator[int]:
        return (number for number in range(len(shards.plan())) if shards.done(number))

    def close(self) -> None:
        """Close the files that are open."""
        self._features.close()
        self._matches.close()


class FeatureWriter:
    """Writes photographs into a file of features; ``half`` keeps descriptions as float16."""

    def __init__(self, table: TableWriter, *, half: bool) -> None:
        self._table, self._half = table, half

    def add(self, name: str, features: Features, taken: Taken) -> None:
        """Add a photograph, with what it says of how it was taken."""
        told, arrays = features.to_row(half=self._half)
        facts = {"focal": taken.focal, "camera": taken.camera, "position": taken.position}
        self._table.append({"name": name, **told, **facts}, arrays)

    def add_failure(self, name: str, reason: str) -> None:
        """Add a photograph that could not be read."""
        self._table.append({"name": name, "error": reason}, {})


class MatchWriter:
    """Writes pairs into a file of matches."""

    def __init__(self, table: TableWriter) -> None:
        self._table = table

    def add(self, pair: Pair, matches: PairMatches) -> None:
        """Add a pair."""
        told = {"name0": pair[0], "name1": pair[1], "angle": matches.angle, "angles": matches.angles is not None}
        arrays = {"indices": matches.indices, "scores": matches.scores}
        self._table.append(told, arrays if matches.angles is None else {**arrays, "angles": matches.angles})


def feature_facts(manifest: Manifest) -> dict[str, Any]:
    """What every file says of how it was made; not where, so that it is the same wherever it is made."""
    return {"extraction": asdict(manifest.extraction), "checksum": manifest.checksum}


def match_facts(manifest: Manifest) -> dict[str, Any]:
    """The same of files of matches."""
    return {**feature_facts(manifest), "matching": manifest.matching}


def find_names(folder: Path, leave_out: Path | None = None) -> list[str]:
    """The names of the photographs of a folder and those below it, sorted.

    Args:
        leave_out: a folder in which none is looked for.

    Raises:
        ValueError: if there is no such folder, no photograph in it, or one whose name cannot be kept.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} of photographs")
    out = None if leave_out is None else leave_out.resolve()
    found = filter(is_image, folder.rglob("*"))
    names = [path.relative_to(folder).as_posix() for path in found if out is None or out not in path.resolve().parents]
    if not names:
        raise ValueError(f"no photographs in {folder}; known endings: {' '.join(sorted(ENDINGS))}")
    return sorted(map(check_name, names))


def _tile(first: int, second: int) -> tuple[int, int, int, int]:
    """By which pairs are ordered: those of two blocks of photographs one after the other."""
    return first // TILE, second // TILE, first, second


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors about what a file says name it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
