"""The index of a map: its features at several resolutions, in one file, so that photographs are looked for in seconds.

A map is described once, in windows of its pyramid, each level of which has half the pixels a side of the one before.
Features are kept by cells; a tile, what a photograph is matched with, has two cells a side, so that tiles overlap by
half and nothing is kept twice. A tile also has a vector of what no rotation changes in its descriptions
(:mod:`steerers.collection.retrieval`), with words that are learnt from the map itself.

While it is made, finished parts lie in a folder beside it; whoever begins again goes on with them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers._choices import MAP_KEYPOINTS
from steerers._console import Progress
from steerers._files import StrPath, checksum
from steerers._parallel import alone
from steerers._tables import Table, TableWriter, write_table
from steerers.collection.manifest import Extraction
from steerers.collection.retrieval import SAMPLE, Vocabulary
from steerers.features import Features
from steerers.geometry import Size, resized_points
from steerers.maps.coordinates import Georeference
from steerers.maps.rasters import Raster
from steerers.steering.irreps import Irreps

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

KIND, ENDING, PARTS = "map index", ".steerers.h5", ".parts"
CELL = 512
"""Pixels a side of a cell, of its level."""
ACROSS = 2
"""Cells a side of a tile, and of a window that is described at once."""
MARGIN = 32
"""Pixels around a window that are shown to the network, so that it sees what lies beside a keypoint."""
EDGE = 8
"""Pixels beside the end of a map, or what has no data, that have no keypoints: the end itself would be one."""
_AT_ONCE = 16  # windows of a part

_ERRORS = (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError, AttributeError)  # of damaged files

Cell = tuple[int, int, int]
"""Level, column and row."""


@dataclass(frozen=True)
class Tile:
    """Some cells of a level, two a side: its number in the index, level, and left, top, right and bottom edge in pixels
    of the map."""

    number: int
    level: int
    window: tuple[float, float, float, float]

    @property
    def centre(self) -> tuple[float, float]:
        """In pixels of the map, the centre of the top-left one at (0, 0)."""
        left, top, right, bottom = self.window
        return (left + right - 1) / 2, (top + bottom - 1) / 2


def index_path(map_path: StrPath) -> Path:
    """Where the index of a map lies, unless said otherwise: beside it."""
    path = Path(map_path)
    return path.with_name(path.name + ENDING)


def level_sizes(size: Size) -> list[Size]:
    """(width, height) of the levels of a map, from its own to the first that fits into a cell."""
    sizes = [size]
    while max(sizes[-1]) > CELL:
        sizes.append((math.ceil(size[0] / 2 ** len(sizes)), math.ceil(size[1] / 2 ** len(sizes))))
    return sizes


# Making ---------------------------------------------------------------------------------------------------------------


def index_map(
    raster: Raster,
    out: StrPath | None = None,
    *,
    extraction: Extraction | None = None,
    weights: Sequence[StrPath] = (),
    device: str | torch.device = "cpu",
) -> MapIndex:
    """Describe a map, or go on where that was interrupted; an index that is there already stays as it is.

    Args:
        raster: the map, as :func:`steerers.maps.open_map` opens it.
        out: the file, by default beside the map.
        extraction: model and options; ``num_keypoints`` are those of 1024 x 1024 pixels.
        weights: of the model, see :func:`steerers.load`.

    Raises:
        ValueError: if the file is the index of another map or model, or the map shows nothing.
        OSError: naming the file, if it cannot be written.
    """
    path = index_path(raster.path) if out is None else Path(out)
    extraction = extraction or Extraction(num_keypoints=MAP_KEYPOINTS)
    if path.is_file():
        there = MapIndex.open(path)
        there.check(raster, extraction, weights)
        return there
    facts = _facts(raster, extraction, weights)
    pipeline = replace(extraction.load(weights, device=device), max_size=None)
    jobs = list(_windows(raster.size))
    parts = [jobs[start : start + _AT_ONCE] for start in range(0, len(jobs), _AT_ONCE)]
    folder = path.with_name(path.name + PARTS)
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number:06d}.h5" for number in range(len(parts))]
    done = [_is_done(file, facts) for file in files]
    with Progress("describing the map", len(jobs), "window") as progress:
        for file, part, finished in zip(files, parts, done, strict=True):
            if finished:
                for _ in part:
                    progress.advance()
                continue
            with write_table(file, KIND, facts) as table:
                for level, column, row in part:
                    _describe(table, raster, pipeline, level, column, row)
                    progress.advance()
    _join(path, files, facts, raster.size, pipeline)
    shutil.rmtree(folder)
    return MapIndex.open(path)


def _facts(raster: Raster, extraction: Extraction, weights: Sequence[StrPath]) -> dict[str, Any]:
    """What an index was made of, as JSON can hold it."""
    stat, place = raster.path.stat(), raster.place
    return {
        "map": raster.path.name,
        "bytes": stat.st_size,
        "modified": stat.st_mtime_ns,
        "sha256": checksum(raster.path),
        "size": list(raster.size),
        "bands": list(raster.bands),
        "crs": place.crs,
        "matrix": place.matrix.tolist(),
        "extraction": asdict(extraction),
        "checksum": extraction.checksum(weights),
        "cell": CELL,
    }


def _is_done(file: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a part is there, and of this map and model."""
    try:
        with Table(file, KIND) as table:
            return table.about == facts
    except (ValueError, FileNotFoundError):
        return False


def _windows(size: Size) -> Iterator[Cell]:
    """Level, column and row of the first cell of each window that is described."""
    for level, (width, height) in enumerate(level_sizes(size)):
        for row in range(0, math.ceil(height / CELL), ACROSS):
            for column in range(0, math.ceil(width / CELL), ACROSS):
                yield level, column, row


def _describe(table: TableWriter, raster: Raster, pipeline: Pipeline, level: int, column: int, row: int) -> None:
    """Add the cells of a window."""
    import cv2

    size = level_sizes(raster.size)[level]
    left, top = column * CELL, row * CELL
    right, bottom = (min(start + ACROSS * CELL, side) for start, side in zip((left, top), size, strict=True))
    shown = (left - MARGIN, top - MARGIN, right + MARGIN, bottom + MARGIN)
    ratios = [whole / side for whole, side in zip(raster.size, size, strict=True)]
    picture, valid = raster.read(
        (shown[0] * ratios[0], shown[1] * ratios[1], shown[2] * ratios[0], shown[3] * ratios[1]),
        (shown[2] - shown[0], shown[3] - shown[1]),
    )
    valid = cv2.erode(valid.astype(np.uint8), np.ones((2 * EDGE + 1,) * 2, np.uint8)) > 0
    valid[:MARGIN] = valid[-MARGIN:] = False
    valid[:, :MARGIN] = valid[:, -MARGIN:] = False
    features = pipeline.extract(picture, mask=valid) if valid.any() else None
    xy = np.zeros((0, 2)) if features is None else features.keypoints.cpu().numpy() + np.array(shown[:2])
    cells = np.clip(((xy + 0.5) // CELL).astype(int), (column, row), (column + ACROSS - 1, row + ACROSS - 1))
    for down in range(row, math.ceil(bottom / CELL)):
        for across in range(column, math.ceil(right / CELL)):
            chosen = np.flatnonzero((cells == (across, down)).all(axis=1))
            arrays: dict[str, NDArray[Any]] = {}
            if features is not None and len(chosen):
                arrays["keypoints"] = xy[chosen].astype(np.float32)
                arrays["descriptions"] = features.descriptions[chosen].half().cpu().numpy()
                arrays["scores"] = features.scores[chosen].cpu().numpy()
            table.append({"cell": [level, across, down]}, arrays)


def _join(path: Path, files: Sequence[Path], facts: Mapping[str, Any], size: Size, pipeline: Pipeline) -> None:
    """Put parts together, with words and the vectors of tiles."""
    tables = [Table(file, KIND) for file in files]
    try:
        where = {tuple(row["cell"]): (table, number) for table in tables for number, row in enumerate(table.rows)}

        def read(cell: Cell) -> list[NDArray[Any]]:
            table, number = where[cell]
            if not table.lengths("scores")[number]:
                return [np.zeros((0, 2), np.float32), np.zeros((0, 0), np.float16), np.zeros(0, np.float32)]
            return table.read(number, "keypoints", "descriptions", "scores")

        full = [cell for cell, (table, number) in where.items() if table.lengths("scores")[number]]
        if not full:
            raise ValueError("the map shows nothing that could be described")
        steerer = pipeline.model.steerer
        irreps = None if steerer is None else Irreps.of(steerer)
        step = max(1, len(full) // SAMPLE)
        sample = [_on(pipeline, read(cell)[1]) for cell in full[::step]]
        vocabulary = alone(lambda: Vocabulary.learn(sample, irreps))
        words = {name: getattr(vocabulary, name).cpu().numpy() for name in ("mean", "axes", "words")}
        with write_table(path, KIND, facts) as joined:
            joined.append({}, words)
            for cell in sorted(where):
                keypoints, descriptions, scores = read(cell)
                arrays = {"keypoints": keypoints, "descriptions": descriptions, "scores": scores} if len(scores) else {}
                if _begins_tile(cell, size):
                    parts = [part for part in (read(each)[1] for each in _cells_of(cell, size)) if len(part)]
                    if parts:
                        vector = vocabulary.vector(_on(pipeline, np.concatenate(parts))).half().cpu().numpy()
                        arrays["vector"] = vector[None]
                joined.append({"cell": list(cell)}, arrays)
    finally:
        for table in tables:
            table.close()


def _on(pipeline: Pipeline, descriptions: NDArray[Any]) -> Tensor:
    return torch.from_numpy(descriptions).to(pipeline.device).float()


def _counts(size: Size, level: int) -> tuple[int, int]:
    """How many cells a level has in a row and in a column."""
    width, height = level_sizes(size)[level]
    return math.ceil(width / CELL), math.ceil(height / CELL)


def _begins_tile(cell: Cell, size: Size) -> bool:
    """Whether a cell is the top-left one of a tile."""
    level, *place = cell
    return all(at <= max(0, count - ACROSS) for at, count in zip(place, _counts(size, level), strict=True))


def _cells_of(cell: Cell, size: Size) -> list[Cell]:
    """The cells of the tile that a cell begins."""
    level, column, row = cell
    columns, rows = _counts(size, level)
    return [
        (level, across, down)
        for down in range(row, min(row + ACROSS, rows))
        for across in range(column, min(column + ACROSS, columns))
    ]


# Using ----------------------------------------------------------------------------------------------------------------


class MapIndex:
    """The index of a map, open until :meth:`close`; a context manager.

    Attributes:
        path: of the file.
        extraction: model and options that it was made with.
        size: (width, height) of the map; ``place`` where the map lies.
        tiles: all that show something.
    """

    def __init__(self, table: Table) -> None:
        self.path, self._table, about = table.path, table, table.about
        try:
            self.extraction = Extraction(**about["extraction"])
            self.size: Size = (int(about["size"][0]), int(about["size"][1]))
            self.bands = tuple(int(band) for band in about["bands"])
            self.place = Georeference(str(about["crs"]), np.array(about["matrix"], np.float64).reshape(3, 3), self.size)
            self.checksum = str(about["checksum"])
            if about["cell"] != CELL:
                raise ValueError(f"its cells have {about['cell']!r} pixels, not {CELL}")
            rows = [tuple(map(int, row["cell"])) for row in table.rows[1:]]
            self._rows = {(cell[0], cell[1], cell[2]): number for number, cell in enumerate(rows, start=1)}
            vectors = table.lengths("vector")
            begun = [cell for cell, number in self._rows.items() if vectors[number]]
            self.tiles = [Tile(number, cell[0], self._window(cell)) for number, cell in enumerate(begun)]
            self._begun = begun
        except _ERRORS as error:
            raise ValueError(f"{self.path}: not the index of a map, or damaged ({error})") from error

    @classmethod
    def open(cls, path: StrPath) -> MapIndex:
        """The index in a file.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if the file is damaged, or none.
        """
        table = Table(path, KIND)
        try:
            return cls(table)
        except BaseException:
            table.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._table.close()

    def check(self, raster: Raster, extraction: Extraction | None = None, weights: Sequence[StrPath] = ()) -> None:
        """Refuse another map than the one that was described, or one that has changed, and another model.

        Raises:
            ValueError: saying what differs.
        """
        about, stat = self._table.about, raster.path.stat()
        again = f"remove {self.path} to have it made anew"
        same = about["bytes"] == stat.st_size and self.size == raster.size
        if not same or (about["modified"] != stat.st_mtime_ns and about["sha256"] != checksum(raster.path)):
            raise ValueError(f"{raster.path} has changed since {self.path} was made of {about['map']}: {again}")
        if self.bands != raster.bands:
            raise ValueError(f"{self.path} was made of the bands {self.bands}, not {raster.bands}: {again}")
        for name, here in asdict(self.extraction).items():
            asked = here if extraction is None else getattr(extraction, name)
            if here != asked:
                raise ValueError(f"{self.path} was made with {name.replace('_', '-')} {here}, not {asked}: {again}")
        if self.checksum != self.extraction.checksum(weights):
            raise ValueError(
                f"{self.path} was made with other weights, or another version, of {self.extraction.model}: {again}"
            )

    def features(self, tile: Tile) -> Features:
        """Of a tile, with keypoints in pixels of the map, the best first.

        Raises:
            ValueError: naming the file, if it is damaged.
        """
        try:
            return self._read_features(tile)
        except _ERRORS as error:
            raise ValueError(f"{self.path}: not the index of a map, or damaged ({error})") from error

    def _read_features(self, tile: Tile) -> Features:
        cell = self._begun[tile.number]
        found = [
            self._table.read(number, "keypoints", "descriptions", "scores")
            for number in (self._rows[each] for each in _cells_of(cell, self.size))
            if self._table.lengths("scores")[number]
        ]
        keypoints, descriptions, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(-scores, kind="stable")
        ratio = torch.tensor(self._ratios(tile.level), dtype=torch.float64)
        xy = resized_points(torch.from_numpy(keypoints[order]).double(), ratio).float()
        described = torch.from_numpy(descriptions[order]).float()
        return Features(xy, described, torch.from_numpy(scores[order]), self.size)

    def similarities(self, descriptions: Tensor, irreps: Irreps | None) -> Tensor:
        """(T,) of tiles to an image with these descriptions, by what no rotation changes."""
        mean, axes, words = (torch.from_numpy(values) for values in self._table.read(0, "mean", "axes", "words"))
        vector = Vocabulary(irreps, mean, axes, words).vector(descriptions.cpu().float())
        return self._vectors.float() @ vector

    @cached_property
    def _vectors(self) -> Tensor:
        """(T, V) float16 of the tiles."""
        kept = [self._table.read(self._rows[cell], "vector")[0] for cell in self._begun]
        return torch.from_numpy(np.concatenate(kept))

    def resolution(self, level: int) -> float:
        """How many pixels of the map a side of a pixel of a level has."""
        across, down = self._ratios(level)
        return math.sqrt(across * down)

    @property
    def levels(self) -> int:
        """How many there are."""
        return len(level_sizes(self.size))

    def _ratios(self, level: int) -> tuple[float, float]:
        width, height = level_sizes(self.size)[level]
        return self.size[0] / width, self.size[1] / height

    def _window(self, cell: Cell) -> tuple[float, float, float, float]:
        level, column, row = cell
        (width, height), (across, down) = level_sizes(self.size)[level], self._ratios(level)
        right, bottom = (
            min((at + ACROSS) * CELL, side) for at, side in zip((column, row), (width, height), strict=True)
        )
        return column * CELL * across, row * CELL * down, right * across, bottom * down
