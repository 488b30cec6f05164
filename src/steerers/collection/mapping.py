"""From a COLMAP database to models: incremental or global mapping by pycolmap, and their place on the Earth."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from steerers._choices import MAX_ERROR, MAX_REFINED_ERROR, MIN_MODEL_SIZE, Mapper
from steerers._console import Bar, tell
from steerers._files import atomic_write, read_json, write_text
from steerers.collection.colmap import check_room, import_pycolmap, open_database, quiet
from steerers.collection.georeference import Alignment, NotAlignedError, Position, align, common_origin, from_enu

MAPPERS: tuple[Mapper, ...] = get_args(Mapper)
MADE = "mapping.json"
"""Of a folder of models: what they were made of."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MappingOptions:
    """How a database becomes models.

    Attributes:
        mapper: ``incremental``, or ``global`` (GLOMAP), which is faster for many photographs and wants focal lengths.
        min_model_size: photographs of a model that is kept.
        max_error: largest reprojection error of an observation, in pixels of the images that were matched; ``None`` is
            4, and of refined keypoints 2 pixels of the images as they were registered, which may be larger: their
            places are known to a fraction of a pixel there, so that what is farther off is something else.
        seed: of all that is drawn at random.
        threads: of the mapper; with more than one it is faster, and models differ a little from run to run.
    """

    mapper: Mapper = "incremental"
    min_model_size: int = MIN_MODEL_SIZE
    max_error: float | None = None
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.mapper not in MAPPERS:
            raise ValueError(f"mapper must be {' or '.join(MAPPERS)}, got {self.mapper!r}")
        if self.min_model_size < 2:
            raise ValueError(f"min_model_size must be at least 2, got {self.min_model_size}")
        if self.max_error is not None and not 0 < self.max_error < np.inf:
            raise ValueError(f"max_error must be a positive and finite number of pixels, got {self.max_error}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")

    def of_keypoints(self, *, registered: float | None = None) -> MappingOptions:
        """The same, with what ``max_error`` stands for: of keypoints as detected, or as registered in images so many
        times larger than those that were matched."""
        if self.max_error is not None:
            return self
        return replace(self, max_error=MAX_ERROR if registered is None else MAX_REFINED_ERROR / registered)


@dataclass(frozen=True, eq=False)
class Placed:
    """A model, and how it lies on the Earth, or why that is not known."""

    model: Any
    alignment: Alignment | None
    reason: str


def map_database(
    database: Path,
    photos: Path,
    out: Path,
    options: MappingOptions | None = None,
    *,
    positions: Mapping[str, Position] | None = None,
    shrunk: float = 1.0,
) -> list[Placed]:
    """Reconstruct what a database holds; the models, the largest first, in metres where GPS positions place them.

    They are written to ``out/0``, ``out/1`` and so on, all of them or none. A second call with the same database and
    options reads them.

    Args:
        photos: folder of the photographs, for the colours of points; without it they are black.
        positions: of the photographs, by name; ``None`` if they shall not be used.
        shrunk: stored pixels of one pixel of an image that was matched.
    """
    options = (options or MappingOptions()).of_keypoints()
    made = {
        "options": asdict(options),
        "shrunk": shrunk,
        "positions": {name: list(position) for name, position in sorted((positions or {}).items())},
        "database": _fingerprint(database),
    }
    known = _read_models(out, made)
    if known is not None:
        return place_models(known, positions)  # again: they stay where they are, and it is known how well that suits
    pycolmap = import_pycolmap()
    with _new_folder(out) as folder, quiet(pycolmap), _with_room(folder, out):
        pycolmap.set_random_seed(options.seed)
        run = _incremental if options.mapper == "incremental" else _global
        work = folder / "work"  # where COLMAP writes models as they are before they are placed
        work.mkdir()
        found = run(pycolmap, database, photos if photos.is_dir() else work, work, options, shrunk)
        kept = [model for model in found.values() if model.num_reg_images() >= options.min_model_size]
        kept = [model for model in kept if model.num_points3D() > 0]
        placed = place_models(sorted(kept, key=lambda model: -model.num_reg_images()), positions)
        shutil.rmtree(work)
        _write_models(folder, [one.model for one in placed], made)
    return placed


def _read_models(out: Path, made: Mapping[str, Any]) -> list[Any] | None:
    """The models of a folder, if they were made of the same; else ``None``."""
    try:
        if read_json(out / MADE) != made:
            return None
        pycolmap = import_pycolmap()
        numbers = sorted(int(entry.name) for entry in out.iterdir() if entry.name.isdecimal())
        return [pycolmap.Reconstruction(out / str(number)) for number in numbers]
    except (OSError, ValueError, RuntimeError):  # it is made again
        return None


def _write_models(folder: Path, models: list[Any], made: Mapping[str, Any]) -> None:
    """Write models into an empty folder, and what they were made of."""
    for number, model in enumerate(models):
        (folder / str(number)).mkdir()
        model.write(folder / str(number))
    write_text(folder / MADE, json.dumps(made, indent=2) + "\n")


def _fingerprint(database: Path) -> str:
    """Of what mapping depends on in a database."""
    found = hashlib.sha256()
    with open_database(database) as opened:
        for camera in opened.read_all_cameras():
            found.update(f"{camera.camera_id} {camera.model_name} {camera.params_to_string()}".encode())
        for image in opened.read_all_images():
            count = opened.num_keypoints_for_image(image.image_id)
            found.update(f"{image.image_id} {image.name} {image.camera_id} {count}".encode())
        pairs, counts = opened.read_two_view_geometry_num_inliers()
        found.update(repr(sorted(zip(pairs, counts, strict=True))).encode())
    return found.hexdigest()


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that takes its place when the block ends."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}-*"):  # of a process that was killed
        shutil.rmtree(left)
    folder = out.parent / f".{out.name}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            os.replace(out, out.parent / f".{out.name}-old-{secrets.token_hex(4)}")
        os.replace(folder, out)
        for left in out.parent.glob(f".{out.name}-*"):
            shutil.rmtree(left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _with_room(folder: Path, out: Path) -> Iterator[None]:
    """A full disk is said to be one: COLMAP has other words for it, or none, and leaves a part of a file."""
    try:
        yield
    except (RuntimeError, ValueError):
        check_room(folder, out)
        raise
    check_room(folder, out)


# Mappers --------------------------------------------------------------------------------------------------------------


def _incremental(
    pycolmap: Any, database: Path, photos: Path, folder: Path, options: MappingOptions, shrunk: float
) -> dict[int, Any]:
    told = pycolmap.IncrementalPipelineOptions()
    told.random_seed, told.num_threads = options.seed, options.threads
    told.min_model_size = options.min_model_size
    told.extract_colors = photos != folder
    assert options.max_error is not None  # map_database has said what that stands for
    error = options.max_error * shrunk
    told.mapper.filter_max_reproj_error = error
    told.mapper.init_max_error = error
    told.mapper.abs_pose_max_error = 3 * error
    told.triangulation.merge_max_reproj_error = error
    told.triangulation.complete_max_reproj_error = error
    with open_database(database) as opened:
        total = opened.num_images()
    with Bar("mapping", total=total, unit="photograph") as bar:
        models: dict[int, Any] = pycolmap.incremental_mapping(
            database,
            photos,
            folder,
            options=told,
            initial_image_pair_callback=lambda: bar.update(2),
            next_image_callback=bar.update,
        )
    return models


def _global(
    pycolmap: Any, database: Path, photos: Path, folder: Path, options: MappingOptions, shrunk: float
) -> dict[int, Any]:
    told = pycolmap.GlobalPipelineOptions()
    told.random_seed, told.num_threads = options.seed, options.threads
    told.min_model_size = options.min_model_size
    told.mapper.random_seed = options.seed
    told.mapper.rotation_averaging.random_seed = options.seed
    told.mapper.global_positioning.random_seed = options.seed
    tell("mapping: global")
    models: dict[int, Any] = pycolmap.global_mapping(database, photos, folder, options=told)
    return models


# Place ----------------------------------------------------------------------------------------------------------------


def centres_of(model: Any) -> dict[str, Array]:
    """Where the cameras of a model are, by the names of their photographs."""
    images = (model.images[index] for index in model.reg_image_ids())
    return {image.name: np.asarray(image.projection_center(), np.float64) for image in images}


def place_models(models: list[Any], positions: Mapping[str, Position] | None) -> list[Placed]:
    """Bring models to metres by GPS, each by itself but around one origin; they are changed in place."""
    pycolmap = import_pycolmap()
    if not positions:
        reason = "GPS was left aside" if positions is None else "no photograph has a GPS position"
        return [Placed(model, None, reason) for model in models]
    origin = common_origin(list(positions.values()))
    placed = []
    for model in models:
        try:
            found = align(centres_of(model), positions, origin)
        except NotAlignedError as error:
            placed.append(Placed(model, None, f"not aligned to GPS: {error}"))
            continue
        to = found.transform
        model.transform(pycolmap.Sim3d(to.scale, pycolmap.Rotation3d(to.R), to.t))
        placed.append(Placed(model, found, ""))
    return placed


def write_geojson(placed: list[Placed], path: Path) -> bool:
    """Write where the cameras of aligned models are, as points in WGS 84 with altitudes; whether there were any."""
    features = []
    for number, one in enumerate(placed):
        if one.alignment is None:
            continue
        centres = centres_of(one.model)
        names = sorted(centres)
        places = from_enu(np.stack([centres[name] for name in names]), one.alignment.origin)
        for name, (latitude, longitude, altitude) in zip(names, places.tolist(), strict=True):
            off = one.alignment.offsets.get(name)
            told = {
                "name": name,
                "model": number,
                "gps_offset_m": None if off is None else round(off, 2),
                "gps_wrong": name in one.alignment.wrong,
            }
            where = [round(longitude, 8), round(latitude, 8), round(altitude, 3)]
            point = {"type": "Point", "coordinates": where}
            features.append({"type": "Feature", "geometry": point, "properties": told})
    if not features:
        path.unlink(missing_ok=True)
        return False
    content = {"type": "FeatureCollection", "features": features}
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return True


def write_points(model: Any, path: Path) -> None:
    """Write the points of a model as PLY, whole or not at all."""
    with atomic_write(path) as temporary:
        model.export_PLY(temporary)
        check_room(path.parent, path)
