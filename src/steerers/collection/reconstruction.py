"""All the way from a folder of photographs to a reconstruction, or from its matched pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steerers._choices import DEFAULT_MODEL, Cameras
from steerers._console import tell
from steerers._files import StrPath, checksum, write_text
from steerers.collection.adjustment import adjust, finer
from steerers.collection.colmap import import_pycolmap, write_database
from steerers.collection.extraction import check_failures, extract
from steerers.collection.georeference import Position
from steerers.collection.mapping import MappingOptions, Placed, map_database, write_geojson, write_points
from steerers.collection.matching import match_pairs
from steerers.collection.pairing import Choice, choose_pairs
from steerers.collection.report import draw_report
from steerers.collection.store import PAIRS, Collection, Photograph
from steerers.collection.summary import Model, sentences, summarise
from steerers.collection.two_view import VerificationOptions
from steerers.collection.verification import Verified, verify, view_of
from steerers.refinement import RefineOptions

if TYPE_CHECKING:
    import torch

FEW = 100
"""Up to so many photographs, all pairs are matched by default."""
CHOSEN = "pairs.sha256"
"""Beside ``pairs.txt``, if it was chosen by default and may be chosen again."""
DATABASE, REFINED, SPARSE, POINTS, GEOJSON, ORIGIN, REPORT, NUMBERS = (
    "colmap/database.db", "colmap/refined.db", "sparse", "points.ply", "cameras.geojson", "origin.json", "report.html",
    "report.json",
)  # fmt: skip
"""What a reconstruction writes into the folder of its collection."""


@dataclass(frozen=True)
class ReconstructionOptions:
    """What is done with matched pairs.

    Attributes:
        cameras: which photographs share the parameters of a camera, see :data:`steerers._choices.Cameras`.
        keep_contradicted: also use pairs whose rotations contradict their loops.
        gps: bring models to metres by GPS where photographs have positions.
        refinement: move keypoints to their exact places first, see :mod:`steerers.collection.adjustment`; ``None``
            leaves them where they were detected.
    """

    verification: VerificationOptions = field(default_factory=VerificationOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    cameras: Cameras = "auto"
    keep_contradicted: bool = False
    gps: bool = True
    refinement: RefineOptions | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """A reconstruction.

    Attributes:
        folder: where everything lies.
        numbers: of the report, as in ``report.json``; ``sentences`` are what it says in words.
        models: ``pycolmap.Reconstruction`` each, the largest first, in metres where GPS placed them.
    """

    folder: Path
    numbers: dict[str, Any]
    sentences: list[str]
    models: list[Any]


def reconstruct(
    photos: StrPath,
    out: StrPath,
    model: str = DEFAULT_MODEL,
    *,
    choice: Choice | None = None,
    options: ReconstructionOptions | None = None,
    matching: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
    retry: bool = False,
    strict: bool = False,
    **extraction: Any,
) -> Result:
    """Reconstruct a folder of photographs, in any orientation: extract, choose pairs, match, verify, map, report.

    Every step begins where it was left, in this or another process, so that after an interruption the same call goes
    on. :func:`reconstruct_matched` says what is written.

    Args:
        photos: a folder; photographs below it count too.
        out: the folder of the collection, see :meth:`Collection.create`, which also takes ``extraction``.
        choice: of pairs; by default :func:`default_choice`, or what ``pairs.txt`` has if that was made otherwise.
        matching: options of :func:`steerers.load` for matching, such as ``strategy``.
        retry: try photographs again that could not be read.
        strict: raise an error if one cannot be read.

    Raises:
        ImportError: naming the extra, without pycolmap.
        ValueError: if there are fewer than two photographs, or what is in ``out`` was made in another way.
        OSError: naming the file, if one cannot be written.
    """
    import_pycolmap()
    collection = match_photographs(
        photos,
        out,
        model,
        choice=choice,
        matching=matching,
        device=device,
        weights=weights,
        retry=retry,
        strict=strict,
        **extraction,
    )
    return reconstruct_matched(collection, options, device=device)


def match_photographs(
    photos: StrPath,
    out: StrPath,
    model: str = DEFAULT_MODEL,
    *,
    choice: Choice | None = None,
    matching: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
    retry: bool = False,
    strict: bool = False,
    least: int = 1,
    **extraction: Any,
) -> Collection:
    """The collection of a folder of photographs, matched: extract, choose pairs, match; arguments as of
    :func:`reconstruct`.

    Args:
        least: how many photographs must be read for it to make sense.
    """
    collection = Collection.create(out, photos, model, weights=weights, **extraction)
    extract(collection, device=device, weights=weights, retry=retry)
    check_failures(collection.failures(), strict or collection.status()["photographs"].done < least)
    _choose(collection, choice, device, weights)
    match_pairs(collection, device=device, weights=weights, **(matching or {}))
    return collection


def default_choice(photographs: Sequence[Photograph]) -> Choice:
    """All pairs of up to :data:`FEW` photographs; of more, those that are similar, and near by name and by GPS."""
    if len(photographs) <= FEW:
        return Choice(exhaustive=True)
    placed = sum(photograph.position is not None for photograph in photographs)
    return Choice(similar=20, sequential=5, gps=20 if placed > 1 else None)


def _choose(
    collection: Collection, choice: Choice | None, device: str | torch.device, weights: Sequence[StrPath]
) -> None:
    """Choose pairs, unless there are some that were not chosen here by default."""
    ours, path = collection.folder / CHOSEN, collection.folder / PAIRS
    if choice is None and path.is_file() and not (ours.is_file() and ours.read_text("utf-8") == checksum(path)):
        tell(f"pairs as in {path}")
        return
    asked = choice or default_choice(collection.photographs())
    choose_pairs(collection, asked, device=device, weights=weights)
    if choice is None:
        write_text(ours, checksum(path))
    else:
        ours.unlink(missing_ok=True)


def verify_refined(
    collection: Collection,
    verification: VerificationOptions | None = None,
    refinement: RefineOptions | None = None,
    *,
    keep_contradicted: bool = False,
    device: str | torch.device = "cpu",
) -> Verified:
    """Verify pairs, bring keypoints to their exact places by what is verified, and verify again with them."""
    verified = verify(collection, verification)
    adjusted = adjust(verified, refinement, keep_contradicted=keep_contradicted, device=device)
    verified.close()
    return verify(collection, verification, adjusted=adjusted)


def _remove_stale(database: Path, verified: Verified) -> None:
    """Remove a database of keypoints that were refined in another way: it is ours alone, and could not be added to."""
    made = database.with_suffix(".json")
    about = json.dumps(verified.about, sort_keys=True)
    if not made.is_file() or made.read_text("utf-8") != about:
        for path in database.parent.glob(f"{database.name}*"):
            path.unlink()
        database.parent.mkdir(parents=True, exist_ok=True)
        write_text(made, about)


def reconstruct_matched(
    collection: Collection, options: ReconstructionOptions | None = None, *, device: str | torch.device = "cpu"
) -> Result:
    """Verify the matched pairs of a collection, refine their keypoints if asked to, map them with COLMAP, and report.

    Writes the database, ``sparse/0`` and so on for every model, ``points.ply`` of the largest, with GPS
    ``cameras.geojson`` and ``origin.json``, and ``report.html`` with its numbers in ``report.json``. Each step begins
    where it was left; those that are done are not repeated.

    Raises:
        ImportError: naming the extra, without pycolmap.
        ValueError: if the database that is there is of other photographs or another model.
        OSError: naming the file, if one cannot be written.
    """
    options = options or ReconstructionOptions()
    import_pycolmap()
    folder = collection.folder
    keep, refinement = options.keep_contradicted, options.refinement
    if refinement is None:
        verified, database = verify(collection, options.verification), folder / DATABASE
    else:
        verified = verify_refined(collection, options.verification, refinement, keep_contradicted=keep, device=device)
        database = folder / REFINED
        _remove_stale(database, verified)
    _tell_pairs(verified)
    shrunk = _shrunk(verified)
    registered = None if refinement is None else finer(shrunk, collection.manifest.extraction.resize)
    options = replace(options, mapping=options.mapping.of_keypoints(registered=registered))
    write_database(verified, database, cameras=options.cameras, keep_contradicted=keep)
    placed = map_database(
        database,
        collection.photos,
        folder / SPARSE,
        options.mapping,
        positions=_positions(collection) if options.gps else None,
        shrunk=shrunk,
    )
    _write_places(folder, placed)
    shown = [Model.of(one) for one in placed]
    numbers = summarise(verified, shown)
    told = sentences(numbers)
    write_text(folder / NUMBERS, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    page = draw_report(collection.photos.name, verified, shown, numbers, _settings(collection, options))
    write_text(folder / REPORT, page)
    verified.close()
    return Result(folder, numbers, told, [one.model for one in placed])


def _tell_pairs(verified: Verified) -> None:
    tell(
        f"{len(verified.good):,} of {len(verified.verdicts):,} pairs are explained by geometry, "
        f"{len(verified.contradicted):,} of them contradict their loops"
    )


def _shrunk(verified: Verified) -> float:
    """Stored pixels of a pixel as it was matched; the median of the photographs."""
    photographs = verified.collection.photographs()
    return float(np.median([view_of(verified.collection, one).shrunk for one in photographs] or [1.0]))


def _positions(collection: Collection) -> dict[str, Position]:
    found = ((photograph.name, photograph.position) for photograph in collection.photographs())
    return {name: position for name, position in found if position is not None}


def _write_places(folder: Path, placed: list[Placed]) -> None:
    """Write the points, the cameras on the Earth, and the origin of their frame; remove what is of another time."""
    origin = next((one.alignment.origin for one in placed if one.alignment is not None), None)
    if origin is None:
        (folder / ORIGIN).unlink(missing_ok=True)
    else:
        names = ("latitude", "longitude", "altitude")
        about = {"frame": "metres east, north, up", **dict(zip(names, origin.tolist(), strict=True))}
        write_text(folder / ORIGIN, json.dumps(about, indent=1) + "\n")
    write_geojson(placed, folder / GEOJSON)
    if placed:
        write_points(placed[0].model, folder / POINTS)
    else:
        (folder / POINTS).unlink(missing_ok=True)


def _settings(collection: Collection, options: ReconstructionOptions) -> dict[str, Any]:
    manifest = collection.manifest
    return {
        "steerers": manifest.version,
        "pycolmap": import_pycolmap().__version__,
        "photographs": manifest.photos,
        **{name: value for name, value in asdict(manifest.extraction).items() if value is not None},
        **(manifest.matching or {}),
        **{f"verification {name}": value for name, value in asdict(options.verification).items()},
        **{f"mapping {name}": value for name, value in asdict(options.mapping).items()},
        "cameras": options.cameras,
        "keep contradicted": options.keep_contradicted,
        "refined": options.refinement is not None,
    }
