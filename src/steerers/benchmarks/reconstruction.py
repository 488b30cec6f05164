"""Reconstructions: how many photographs become one model, and how exact it is, beside COLMAP's own features.

A scene is a folder of photographs. They are taken as they are, or each rotated by a random quarter turn and without its
EXIF data, so that nothing tells which way is up. Ours is what ``steerers reconstruct`` does; ``colmap-sift`` are
COLMAP's SIFT, exhaustive matching and verification with their defaults, and the same mapper. Where the true cameras are
known, those of the largest model are compared with them after alignment by a similarity.

Every step goes on where it was left in a folder that is kept, and rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from steerers._choices import MAX_ERROR, MAX_REFINED_ERROR, Cameras
from steerers._console import tell
from steerers._files import atomic_write, read_json, write_text
from steerers._version import __version__
from steerers.benchmarks import offers
from steerers.benchmarks.benchmark import Benchmark, check_seed
from steerers.benchmarks.offers import COLMAP_SIFT, TURNS, Turn
from steerers.benchmarks.report import Column, Report, Table, TableRow, environment, number, text
from steerers.benchmarks.runs import hash_files, read_specs
from steerers.benchmarks.two_view import CAMERAS_FILE, read_cameras
from steerers.collection.adjustment import FINER, NEAR, WORTH
from steerers.collection.colmap import import_pycolmap, quiet
from steerers.collection.georeference import fit_similarity
from steerers.collection.manifest import Extraction
from steerers.collection.mapping import MappingOptions, map_database
from steerers.collection.reconstruction import ReconstructionOptions, match_photographs, reconstruct_matched
from steerers.collection.store import Collection, find_names
from steerers.collection.verification import verify
from steerers.datasets.photos import ENDINGS, is_image
from steerers.geometry import rotation_degrees
from steerers.images.exif import read_taken
from steerers.images.load import load_image, to_uint8
from steerers.matching.fingerprints import sha256
from steerers.refinement import RefineOptions

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]
T = TypeVar("T")
HELP = f"give --data a folder of photographs ({', '.join(sorted(ENDINGS))}), or a folder of such folders"


def _of_all(row: Mapping[str, Any]) -> str:
    return f"{row['registered']} of {row['photographs']}"


COLUMNS = (
    text("photographs", "scene"),
    text("features", "label"),
    Column("registered", _of_all),
    number("in all models", "registered_in_all"),
    number("points", "points"),
    number("track", "track", form="{:.2f}"),
    number("seen in", "seen", form="{:.2f}"),
    number("px", "error", form="{:.2f}"),
    number("pairs left out", "contradicted"),
    number("centres off", "centres", "median", form="{:.4f}"),
    number("most", "centres", "most", form="{:.4f}"),
    number("rotation off", "rotation", form="{:.2f}°"),
    number("s", "seconds"),
)


@dataclass(frozen=True)
class ReconstructionSettings:
    """What is reconstructed with; ``seed`` is that of the rotations and of the mapper."""

    num_keypoints: int
    max_size: int
    cameras: Cameras = "auto"
    seed: int = 0


# Scenes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scene:
    """A folder of photographs of one place."""

    name: str
    folder: Path
    photos: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> Scene:
        """The photographs of a folder and those below it, by name."""
        return cls(folder.absolute().name, folder, tuple(find_names(folder)))

    @property
    def paths(self) -> list[Path]:
        """Of the photographs."""
        return [self.folder / name for name in self.photos]

    @cached_property
    def checksum(self) -> str:
        """Of the photographs, which are read once for it."""
        return hash_files(self.paths)


def list_scenes(folder: Path, wanted: Sequence[str] | None = None) -> list[Scene]:
    """The scene that a folder is, or those in it, by name.

    Args:
        wanted: names of those that are asked for, in this order; by default all.

    Raises:
        ValueError: if there is no such folder or scene, or one has fewer than two photographs.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    folders = [folder] if _has_photographs(folder) else filter(_has_photographs, sorted(folder.iterdir()))
    found = {scene.name: scene for scene in map(Scene.of, folders)}
    if not found:
        raise ValueError(f"{folder} holds no photographs, nor folders of them; {HELP}")
    for name in wanted or ():
        if name not in found:
            raise ValueError(f"{folder} has no scene {name!r}; it has {', '.join(found)}")
    scenes = [found[name] for name in wanted or found]
    for scene in scenes:
        if len(scene.photos) < 2:
            raise ValueError(f"{scene.folder} holds one photograph, and a reconstruction takes two at least")
    return scenes


def _has_photographs(folder: Path) -> bool:
    """Whether photographs lie in a folder itself."""
    return folder.is_dir() and any(map(is_image, folder.iterdir()))


def quarter_turns(name: str, seed: int) -> int:
    """0 to 3, by how many quarters a photograph is rotated counter-clockwise: drawn from the seed and its name."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()[0] % 4


def rotate_photographs(scene: Scene, folder: Path, seed: int) -> None:
    """Write the photographs of a scene into a folder, each rotated by a quarter turn of its own, without EXIF data and
    without loss, as NAME.png; those that are there stay."""
    for name in scene.photos:
        path = folder / f"{name}.png"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = to_uint8(load_image(scene.folder / name, max_size=None).tensor)  # (H, W, 3)
            turned = PIL.Image.fromarray(np.rot90(pixels, quarter_turns(name, seed)))
            with atomic_write(path) as temporary:
                turned.save(temporary, format="PNG", compress_level=1)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrueCamera:
    """(3, 3) rotation from the world to a camera, and (3,) its centre in the world."""

    R: Array
    centre: Array


def read_truth(scene: Scene) -> dict[str, TrueCamera]:
    """The cameras of the photographs of a scene, by name; none where they are not known.

    Raises:
        ValueError: if the file of cameras is damaged.
    """
    path = scene.folder / CAMERAS_FILE
    if not path.is_file():
        return {}
    if not isinstance(read_json(path), list):
        logger.warning("%s is no list of cameras as `steerers eval cameras` reads it, and is not used", path)
        return {}
    cameras = [(camera.path.relative_to(scene.folder).as_posix(), camera) for camera in read_cameras(scene.folder)]
    return {name: TrueCamera(camera.R, -camera.R.T @ camera.t) for name, camera in cameras}


def rotate_truth(truth: Mapping[str, TrueCamera], seed: int) -> dict[str, TrueCamera]:
    """The cameras of photographs after :func:`rotate_photographs`."""
    return {f"{name}.png": _rotated(camera, quarter_turns(name, seed)) for name, camera in truth.items()}


def _rotated(camera: TrueCamera, quarters: int) -> TrueCamera:
    """The camera of a photograph that is rotated counter-clockwise: what was to the right is above."""
    quarter = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # x to the right, y down
    return TrueCamera(np.linalg.matrix_power(quarter, quarters) @ camera.R, camera.centre)


def camera_errors(model: Any, truth: Mapping[str, TrueCamera]) -> TableRow:
    """How far the cameras of a model of pycolmap are off after alignment by a similarity: of the centres the median and
    the most, in the unit of the truth, and the median rotation in degrees; nothing where too few are known."""
    images = [model.images[index] for index in model.reg_image_ids() if model.images[index].name in truth]
    if len(images) < 3:
        return {}
    known = [truth[image.name] for image in images]
    source = np.array([image.projection_center() for image in images], np.float64)
    target = np.stack([camera.centre for camera in known])
    aligned = fit_similarity(source, target)
    if aligned is None:
        return {}
    off = np.linalg.norm(aligned(source) - target, axis=1)
    rotations = [np.asarray(image.cam_from_world().rotation.matrix()) @ aligned.R.T for image in images]
    turned = [rotation_degrees(found @ camera.R.T) for found, camera in zip(rotations, known, strict=True)]
    return {
        "centres": {"median": float(np.median(off)), "most": float(off.max())},
        "rotation": float(np.median(turned)),
    }


def measure(models: Sequence[Any], photographs: int, truth: Mapping[str, TrueCamera]) -> TableRow:
    """The numbers of models of pycolmap, the largest first; but for the number of all registered, of that alone."""
    if not models:
        return {"photographs": photographs, "registered": 0, "registered_in_all": 0, "models": 0}
    best = models[0]
    names = {model.images[index].name for model in models for index in model.reg_image_ids()}
    return {
        "photographs": photographs,
        "registered": best.num_reg_images(),
        "registered_in_all": len(names),
        "models": len(models),
        "points": best.num_points3D(),
        "track": best.compute_mean_track_length(),
        "seen": float(np.mean([_seen(point) for point in best.points3D.values()])),
        "error": best.compute_mean_reprojection_error(),
        **camera_errors(best, truth),
    }


def _seen(point: Any) -> int:
    """In how many photographs; COLMAP's length of a track counts two keypoints of one photograph twice."""
    return len({element.image_id for element in point.track.elements})


# Reconstructing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Features:
    """What an entry of ``--models`` asks for.

    Attributes:
        label: as it was written.
        name: of its folder, which entries share that differ in refinement alone.
        matching: options of :func:`steerers.load`; ``extraction`` is ``None`` for COLMAP's own.
    """

    label: str
    name: str
    extraction: Extraction | None = None
    matching: dict[str, Any] | None = None
    weights: Sequence[Any] = ()
    refined: bool = False


def read_features(labels: Sequence[str], weights: Sequence[Path], settings: ReconstructionSettings) -> list[Features]:
    """What ``--models`` asks for, each tried before any work.

    Raises:
        ValueError: for one that is not known, is named twice, or cannot match a collection.
    """
    names = [_file_name(label) for label in labels]
    for index, label in enumerate(labels):
        if names[index] in names[:index]:
            raise ValueError(
                f"{label!r} is named twice, or as another of the models but for signs that no file may have"
            )
    ours = [label for label in labels if label != COLMAP_SIFT]
    found = {COLMAP_SIFT: Features(COLMAP_SIFT, COLMAP_SIFT)}
    for label, (model, options, files) in zip(ours, read_specs(ours, weights) if ours else [], strict=True):
        refined = bool(options.pop("refine", False))
        extraction = Extraction(model, options.pop("detector"), settings.num_keypoints, settings.max_size)
        matching = {name: value for name, value in options.items() if value not in (None, "default")}
        if extraction.load(files, **matching).tta is not None:
            raise ValueError(f"cannot reconstruct with {label!r}: a collection has one description of every photograph")
        found[label] = Features(
            label, _file_name(re.sub("[?&]refine=[^&]*", "", label)), extraction, matching, files, refined
        )
    return [found[label] for label in labels]


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.@=-]+", "-", label)


@dataclass(frozen=True, eq=False)
class Task:
    """The photographs of a scene as they are shown, and where what is made of them lies."""

    scene: Scene
    turn: Turn
    photos: Path
    folder: Path
    truth: Mapping[str, TrueCamera]


def reconstruct_ours(
    task: Task, features: Features, settings: ReconstructionSettings, device: torch.device
) -> tuple[list[Any], TableRow]:
    """The models of a collection, and how many pairs it left out and how long it took."""
    assert features.extraction is not None
    folder = task.folder / features.name
    told = asdict(features.extraction)
    options = ReconstructionOptions(
        mapping=MappingOptions(seed=settings.seed),
        cameras=settings.cameras,
        gps=False,
        refinement=RefineOptions() if features.refined else None,
    )

    def matched() -> Collection:
        found = match_photographs(
            task.photos, folder, matching=features.matching, device=device, weights=features.weights, **told
        )
        verify(found, options.verification).close()
        return found

    collection, before = timed(task.folder / f"{features.name}-matched.json", matched)
    record = task.folder / f"{_file_name(features.label)}-mapped.json"
    result, after = timed(record, lambda: reconstruct_matched(collection, options, device=device))
    contradicted = len(result.numbers["pairs"]["contradicted"])
    return result.models, {"contradicted": contradicted, "seconds": _sum([before, after])}


def reconstruct_sift(task: Task, settings: ReconstructionSettings) -> tuple[list[Any], TableRow]:
    """The models of COLMAP's SIFT with its defaults, by the same mapper, and how long it took."""
    pycolmap, folder = import_pycolmap(), task.folder / COLMAP_SIFT
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "database.db"

    def mapped() -> list[Any]:
        with quiet(pycolmap):
            pycolmap.set_random_seed(settings.seed)
            for names, mode in _cameras(task.photos, settings.cameras):
                how = getattr(pycolmap.CameraMode, mode)
                pycolmap.extract_features(database, task.photos, image_names=names, camera_mode=how)
            pycolmap.match_exhaustive(database)
        options = MappingOptions(seed=settings.seed)
        return [placed.model for placed in map_database(database, task.photos, folder / "sparse", options)]

    models, seconds = timed(task.folder / f"{COLMAP_SIFT}-mapped.json", mapped)
    return models, {"seconds": seconds}


def _cameras(photos: Path, cameras: Cameras) -> Iterable[tuple[list[str], str]]:
    """Names of photographs, and how COLMAP shares cameras among them."""
    names = find_names(photos)
    if cameras != "one":
        return [(names, "AUTO" if cameras == "auto" else "PER_IMAGE")]
    sizes: dict[tuple[int, int], list[str]] = {}
    for name in names:
        sizes.setdefault(read_taken(photos / name).size, []).append(name)
    return [(same, "SINGLE") for same in sizes.values()]


def timed(record: Path, work: Callable[[], T]) -> tuple[T, float | None]:
    """What some work gives, and the seconds that it took when it was done first; ``None`` if that was interrupted, so
    that nobody knows. ``record`` keeps them."""
    known = read_json(record) if record.is_file() else None
    if known is None:
        write_text(record, json.dumps({"seconds": None}) + "\n")
    start = time.perf_counter()
    found = work()
    if known is None:
        known = {"seconds": round(time.perf_counter() - start, 1)}
        write_text(record, json.dumps(known) + "\n")
    return found, known["seconds"]


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def evaluate(
    task: Task, features: Features, settings: ReconstructionSettings, device: torch.device, made: dict[str, Any]
) -> TableRow:
    """A row of the table, or the one that is kept if nothing has changed that it depends on."""
    tell(f"{task.scene.name}, {task.turn}: {features.label}")
    about = {
        "settings": asdict(settings),
        "label": features.label,
        "photographs": task.scene.checksum,
        "truth": {name: [camera.R.tolist(), camera.centre.tolist()] for name, camera in task.truth.items()},
        "model": None if features.extraction is None else features.extraction.checksum(features.weights),
        "limits": [MAX_ERROR, MAX_REFINED_ERROR, FINER, WORTH, NEAR],
        "version": __version__,
        "pycolmap": import_pycolmap().__version__,
    }
    path, key = task.folder / f"{_file_name(features.label)}.json", sha256(about)
    if path.is_file():
        kept = read_json(path)
        if kept.get("key") == key:
            return dict(kept["row"])
    if task.turn == "quarter-random":
        rotate_photographs(task.scene, task.photos, settings.seed)
    if features.extraction is None:
        models, told = reconstruct_sift(task, settings)
    else:
        models, told = reconstruct_ours(task, features, settings, device)
    numbers = measure(models, len(task.scene.photos), task.truth)
    row = {"scene": task.scene.name, "label": features.label, **numbers, **told, "made": made}
    write_text(path, json.dumps({"key": key, "row": row}, indent=1) + "\n")
    return row


# The benchmark --------------------------------------------------------------------------------------------------------


def make_report(tables: list[Table], settings: ReconstructionSettings, made: dict[str, Any]) -> Report:
    """One table for each way to show photographs."""
    about = (
        f"COLMAP models of folders of photographs, by pycolmap {import_pycolmap().__version__}. Ours as `steerers "
        f"reconstruct` makes them: at most {settings.num_keypoints} keypoints, longest side {settings.max_size} px, "
        f"cameras {settings.cameras!r}, without GPS; with refine=1 as with --refine. {COLMAP_SIFT}: COLMAP's SIFT, "
        f"exhaustive matching and verification with their defaults, the same incremental mapper. Registered, points, "
        f"mean track length (*seen in*: photographs, of which a track may have two keypoints) and mean reprojection "
        f"error, in stored pixels, are of the largest model. *Pairs left out*: by their loops. "
        f"Cameras are compared with the truth, in its unit, after alignment by a similarity; "
        f"rotations are medians. Seconds are of all steps; a dash where a run was interrupted and went on."
    )
    return Report("reconstruction", about, {**asdict(settings), "turns": dict(TURNS)}, made, tables)


class _Reconstruction(Benchmark):
    def evaluate(self, arguments: argparse.Namespace, device: torch.device) -> Report:
        import_pycolmap()
        check_seed(arguments.seed)
        settings = ReconstructionSettings(
            arguments.num_keypoints, arguments.max_size, arguments.cameras, arguments.seed
        )
        scenes = list_scenes(arguments.data, arguments.scenes)
        for scene in scenes:
            if arguments.work is not None and scene.folder.resolve() in (arguments.work / "it").resolve().parents:
                raise ValueError(f"--work {arguments.work} lies among the photographs of {scene.folder}: give another")
        truths = [read_truth(scene) for scene in scenes]
        features = read_features(arguments.models, arguments.weights or (), settings)
        made = {**environment(device), "pycolmap": import_pycolmap().__version__}
        facts = {"photos_sha256": {scene.name: scene.checksum for scene in scenes}}
        tables = []
        with _folder(arguments.work) as work:
            for turn in arguments.rotation:
                shown = zip(scenes, truths, strict=True)
                tasks = [_task(Path(work), scene, turn, truth, settings) for scene, truth in shown]
                rows = [evaluate(task, each, settings, device, made) for task in tasks for each in features]
                tables.append(Table(f"{turn}: {TURNS[turn]}", COLUMNS, rows, {"rotation": turn, **facts}))
        return make_report(tables, settings, made)


def _task(
    work: Path, scene: Scene, turn: Turn, truth: Mapping[str, TrueCamera], settings: ReconstructionSettings
) -> Task:
    """Each settings and photographs have a folder of their own, so that nothing is mixed."""
    folder = work / scene.name / "-".join([turn, *map(str, asdict(settings).values()), scene.checksum[:8]])
    folder.mkdir(parents=True, exist_ok=True)
    if turn == "upright":
        return Task(scene, turn, scene.folder, folder, truth)
    return Task(scene, turn, folder / "photos", folder, rotate_truth(truth, settings.seed))


def _folder(given: Path | None) -> AbstractContextManager[Any]:
    return tempfile.TemporaryDirectory() if given is None else nullcontext(given)


RECONSTRUCTION = _Reconstruction(offer=offers.RECONSTRUCTION)
