"""A COLMAP database of a collection, through pycolmap: cameras, photographs, keypoints, matches, two-view geometries.

COLMAP's pixels have the centre of the top-left one at (0.5, 0.5), half a pixel more than ours. A database is never
overwritten: what is missing in it is added, and one that holds something else is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._choices import Cameras
from steerers._console import Progress
from steerers._files import writing
from steerers.collection.store import Photograph
from steerers.collection.two_view import TwoView
from steerers.collection.verification import Verdict, Verified

CAMERA_MODEL = "SIMPLE_RADIAL"
FOCAL_FACTOR = 1.2
"""Of the longer side: the focal length that COLMAP begins with where nothing is known."""
AT_ONCE = 500
"""Photographs or pairs of a transaction: what a killed process loses at most."""
HALF = 0.5
_SHIFT = np.array([[1, 0, -HALF], [0, 1, -HALF], [0, 0, 1]])  # from COLMAP's pixels to ours


def import_pycolmap() -> Any:
    """pycolmap, or an error that says how to install it."""
    try:
        import pycolmap
    except ImportError as error:
        raise ImportError('COLMAP is reached through pycolmap: pip install "steerers[colmap]"') from error
    return pycolmap


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """COLMAP says what it does on standard error; in the block it does not."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


@dataclass(frozen=True)
class Written:
    """What a database holds of a collection: photographs, cameras, pairs with matches, and with geometry."""

    photographs: int
    cameras: int
    matched: int
    verified: int


def write_database(
    verified: Verified, path: Path, *, cameras: Cameras = "auto", keep_contradicted: bool = False
) -> Written:
    """Write a collection and its verified pairs into a database, or what is missing of them.

    Args:
        cameras: which share their parameters, see :data:`steerers._choices.Cameras`.
        keep_contradicted: also the geometry of pairs that their loops contradict.

    Raises:
        ValueError: if there is a file that is no database, or one of other photographs or keypoints.
        OSError: naming the file, if the disk is full.
    """
    pycolmap = import_pycolmap()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_database(path) as database:
        ids = _write_photographs(pycolmap, database, verified, cameras, path)
        _write_pairs(pycolmap, database, verified, ids, set(verified.chosen(keep_contradicted)))
        return Written(
            database.num_images(),
            database.num_cameras(),
            database.num_matched_image_pairs(),
            database.num_verified_image_pairs(),
        )


@contextmanager
def open_database(path: Path) -> Iterator[Any]:
    """``pycolmap.Database``, made if it is not there, whose errors name the file and say what to do.

    Raises:
        ValueError: if it is no database.
        OSError: if the disk is full; opening writes files beside it.
    """
    pycolmap = import_pycolmap()
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise ValueError(f"{path} is no COLMAP database; name another file, or remove it")
    try:
        with quiet(pycolmap), pycolmap.Database.open(path) as database:
            yield database
    except (RuntimeError, ValueError) as error:
        if "SQLite" not in str(error) and "database factory" not in str(error):
            raise
        check_room(path.parent, path)
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not a COLMAP database, damaged, or in use by another program ({reason})") from error


def check_room(folder: Path, path: Path) -> None:
    """Refuse to go on if the disk is full: libraries in C++ may not notice, or say so in words of their own.

    Args:
        folder: in which something was written, for now; ``path`` is what it will be.

    Raises:
        OSError: naming ``path``, if not even a little can be added to a file as long as those that are there.
    """
    longest = max((entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()), default=0)
    with writing(path), tempfile.TemporaryFile(dir=folder) as file:
        file.seek(longest)  # a limit of the file system, or of the process, may be on the length alone
        file.write(bytes(1 << 16))
        file.flush()


# Photographs ----------------------------------------------------------------------------------------------------------


def _write_photographs(
    pycolmap: Any, database: Any, verified: Verified, cameras: Cameras, path: Path
) -> dict[str, int]:
    """The identifiers of the photographs, by name."""
    collection, photographs = verified.collection, verified.collection.photographs()
    there = {image.name: image for image in database.read_all_images()}
    strangers = sorted(there.keys() - {photograph.name for photograph in photographs})
    if strangers:
        raise ValueError(
            f"{path} holds {len(strangers)} photographs that are not in {collection.folder}, such as {strangers[0]!r}: "
            "name another file"
        )
    shared = _cameras_there(there.values(), {p.name: p for p in photographs}, cameras, path)
    ids = {name: image.image_id for name, image in there.items()}
    with Progress("writing photographs", len(photographs), "photograph") as progress:
        for start in range(0, len(photographs), AT_ONCE):
            with pycolmap.DatabaseTransaction(database):
                for photograph in photographs[start : start + AT_ONCE]:
                    if photograph.name not in ids:
                        camera = _camera_id(pycolmap, database, photograph, cameras, shared)
                        image = pycolmap.Image(name=photograph.name, camera_id=camera)
                        ids[photograph.name] = database.write_image(image)
                    _write_keypoints(database, ids[photograph.name], verified, photograph.name, path)
                    progress.advance()
    return ids


def _cameras_there(
    images: Iterable[Any], photographs: dict[str, Photograph], cameras: Cameras, path: Path
) -> dict[Any, int]:
    """The identifiers of the cameras that are there, by what makes photographs share one."""
    pairs = {(_camera_key(photographs[image.name], cameras), image.camera_id) for image in images}
    shared = dict(pairs)
    if len(shared) < len(pairs) or len(set(shared.values())) < len(shared):
        raise ValueError(
            f"{path} has photographs that share cameras in another way than {cameras!r}: name another file, or "
            "remove it"
        )
    return shared


def _camera_key(photograph: Photograph, cameras: Cameras) -> Any:
    """Photographs with equal keys share a camera."""
    if cameras == "one":
        return photograph.size
    known = photograph.camera and photograph.focal is not None
    if cameras == "auto" and known:
        return photograph.camera, photograph.focal, photograph.size
    return photograph.name


def _camera_id(pycolmap: Any, database: Any, photograph: Photograph, cameras: Cameras, shared: dict[Any, int]) -> int:
    key = _camera_key(photograph, cameras)
    if key not in shared:
        focal = photograph.focal or FOCAL_FACTOR * max(photograph.size)
        camera = pycolmap.Camera.create_from_model_name(0, CAMERA_MODEL, focal, *photograph.size)
        camera.has_prior_focal_length = photograph.focal is not None
        shared[key] = database.write_camera(camera)
    return shared[key]


def _write_keypoints(database: Any, image_id: int, verified: Verified, name: str, path: Path) -> None:
    keypoints = to_colmap(verified.keypoints(name))
    if not database.exists_keypoints(image_id):
        database.write_keypoints(image_id, keypoints)
        return
    if database.num_keypoints_for_image(image_id) == len(keypoints):
        there = np.asarray(database.read_keypoints(image_id))[:, :2]
        if np.array_equal(there, keypoints):
            return
    raise ValueError(
        f"{path} has other keypoints of {name!r} than {verified.collection.folder}: it is of another model or other "
        "options; name another file"
    )


def to_colmap(keypoints: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, 2) keypoints in COLMAP's pixels, rounded once."""
    return (keypoints.astype(np.float64) + HALF).astype(np.float32).reshape(-1, 2)


# Pairs ----------------------------------------------------------------------------------------------------------------


def _write_pairs(
    pycolmap: Any, database: Any, verified: Verified, ids: dict[str, int], chosen: set[tuple[str, str]]
) -> None:
    _remove_others(pycolmap, database, {frozenset(ids[name] for name in verdict.pair) for verdict in verified.verdicts})
    with Progress("writing pairs", len(verified.verdicts), "pair") as progress:
        for start in range(0, len(verified.verdicts), AT_ONCE):
            with pycolmap.DatabaseTransaction(database):
                for verdict in verified.verdicts[start : start + AT_ONCE]:
                    _write_pair(pycolmap, database, verified, ids, verdict, verdict.pair in chosen)
                    progress.advance()


def _remove_others(pycolmap: Any, database: Any, known: set[frozenset[int]]) -> None:
    """Remove the geometry of pairs that are no longer asked for."""
    there, _ = database.read_two_view_geometry_num_inliers()
    for pair_id in there:
        ids = pycolmap.pair_id_to_image_pair(pair_id)
        if frozenset(ids) not in known:
            database.delete_two_view_geometry(*ids)


def _write_pair(
    pycolmap: Any, database: Any, verified: Verified, ids: dict[str, int], verdict: Verdict, chosen: bool
) -> None:
    first, second = (ids[name] for name in verdict.pair)
    wants_raw = verdict.matches > 0 and not database.exists_matches(first, second)
    if database.exists_two_view_geometry(first, second):
        if chosen and len(database.read_two_view_geometry(first, second).inlier_matches) == verdict.inliers:
            chosen = False  # it is there
        else:
            database.delete_two_view_geometry(first, second)
    if wants_raw or chosen:
        indices = verified.collection.matches(*verdict.pair).indices.astype(np.uint32)
        if wants_raw:
            database.write_matches(first, second, indices)
        if chosen:
            geometry = to_two_view_geometry(pycolmap, verified.two_view(verdict.pair), indices)
            database.write_two_view_geometry(first, second, geometry)


def to_two_view_geometry(pycolmap: Any, found: TwoView, indices: NDArray[np.uint32]) -> Any:
    """COLMAP's record of a pair, in its pixels."""
    kinds = pycolmap.TwoViewGeometryConfiguration
    geometry = pycolmap.TwoViewGeometry()
    geometry.config = {
        "none": kinds.DEGENERATE,
        "calibrated": kinds.CALIBRATED,
        "uncalibrated": kinds.UNCALIBRATED,
        "planar": kinds.PLANAR_OR_PANORAMIC,
    }[found.kind]
    if np.isfinite(found.F).all():
        geometry.F = _SHIFT.T @ found.F @ _SHIFT
    if np.isfinite(found.E).all():
        geometry.E = found.E
    if np.isfinite(found.H).all():
        geometry.H = np.linalg.inv(_SHIFT) @ found.H @ _SHIFT
    geometry.inlier_matches = indices[found.inliers]
    return geometry
