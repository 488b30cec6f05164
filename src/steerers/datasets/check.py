"""What is missing or broken in training data of any layout: all of it is read as training reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from steerers._console import progress
from steerers.datasets.megadepth import read_depth
from steerers.datasets.photos import DamagedTarError, Photo, few, find_photos
from steerers.datasets.reconstruction import (
    MAX_ANGLE,
    MIN_SHARED,
    Covisible,
    Scene,
    aspect_problem,
    depth_path,
    open_scenes,
    read_colmap_depth,
)
from steerers.datasets.scene_info import (
    TEST_SCENES,
    SceneInfo,
    detections_path,
    find_detections,
    list_scenes,
    read_detections,
    read_scene_info,
)
from steerers.geometry import Size
from steerers.images.load import load_image
from steerers.images.read_ahead import read_ahead

T = TypeVar("T")
Found = list[tuple[str, str]]  # kinds of problems of a file, and what is said after its name

MEGADEPTH_FOLDERS = ("prep_scene_info", "phoenix", "Undistorted_SfM")
COLMAP_FILES = ("cameras.bin", "images.bin", "points3D.bin", "cameras.txt", "points3D.txt", "tracks.npz")
COLMAP_FOLDERS = ("", "sparse/", "sparse/0/", "*/", "*/sparse/", "*/sparse/0/")
_UNREADABLE = {"image": "image that cannot be decoded", "depth map": "depth map that cannot be read"}


class Problem(NamedTuple):
    """One thing that is wrong."""

    scene: str  # "" where data has no scenes
    kind: str
    what: str


@dataclass
class Report:
    """What was looked at, and what is wrong with it."""

    layout: str
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_data(
    root: Path,
    *,
    quick: bool = False,
    scenes: Sequence[str] | None = None,
    images: Path | None = None,
    depths: Path | None = None,
) -> Report:
    """Check data of any layout.

    Args:
        quick: only look whether files are there, and whether they are empty; models and descriptions are read.
        scenes: of MegaDepth, if not all.
        images: of a COLMAP reconstruction, and ``depths``; see :class:`~steerers.datasets.colmap.Colmap`.

    Raises:
        ValueError: if there is no data of a known layout, or an option belongs to another one.
    """
    layout = find_layout(root)
    if scenes is not None and layout != "MegaDepth":
        raise ValueError(f"scenes are named for MegaDepth, but {root} is a {layout}")
    if (images is not None or depths is not None) and layout != "COLMAP reconstruction":
        raise ValueError(f"folders of images and depths are named for COLMAP reconstructions, but {root} is {layout}")
    report = Report(layout)
    if layout == "MegaDepth":
        _check_megadepth(report, root, scenes, quick)
    elif layout == "COLMAP reconstruction":
        _check_colmap(report, root, images, depths, quick)
    else:
        _check_photographs(report, root, quick)
    return report


def find_layout(root: Path) -> str:
    """Which kind of data lies at ``root``.

    Raises:
        ValueError: if there is nothing, or a file of no known kind.
    """
    if not root.exists():
        raise ValueError(f"there is no {root}")
    if root.is_file():
        if root.suffix == ".npz":
            return "COLMAP reconstruction"
        if ".tar" in root.suffixes:
            return "tar of photographs"
        raise ValueError(f"{root} is a file, but neither a tar of photographs nor the tracks of a reconstruction")
    if any((root / name).is_dir() for name in MEGADEPTH_FOLDERS):
        return "MegaDepth"
    if any(path.is_file() for below in COLMAP_FOLDERS for name in COLMAP_FILES for path in root.glob(f"{below}{name}")):
        return "COLMAP reconstruction"
    return "folder of photographs"


# Files ----------------------------------------------------------------------------------------------------------------


def _read(what: str, path: Path, read: Callable[[Path], T], quick: bool) -> tuple[T | None, Found]:
    """A file as training reads it, and what keeps training from doing so; with ``quick`` it is not opened."""
    try:
        if not path.is_file():
            return None, [(f"missing {what}", "")]
        if quick:
            return None, [] if path.stat().st_size else [(f"empty file of {what}", "")]
        return read(path), []
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        reason = message.rpartition(str(path))[2].partition(": ")[2]  # the report names the file itself
        return None, [(_UNREADABLE[what], f": {reason or message}")]


def _read_size(path: Path) -> Size:
    """The size of a photograph that can be decoded; a JPEG is read to its end at any size."""
    return load_image(path, max_size=256).stored_size


def _read_depth_size(path: Path) -> Size:
    height, width = read_colmap_depth(path).shape
    return width, height


def _problems(scene: str, name: object, found: Iterable[tuple[str, str]]) -> list[Problem]:
    return [Problem(scene, kind, f"{name}{why}") for kind, why in found]


def _in_threads(function: Callable[[T], Iterable[Problem]], items: Sequence[T]) -> Iterator[Problem]:
    """What ``function`` finds of all items, in their order."""
    threads = (os.cpu_count() or 1) + 4
    found = read_ahead(function, items, threads=threads, waiting=4 * threads)
    for problems in progress(found, "checking files", len(items)):
        yield from problems


# Photographs ----------------------------------------------------------------------------------------------------------


def _check_photographs(report: Report, root: Path, quick: bool) -> None:
    try:
        photos = find_photos(root)
    except DamagedTarError as error:
        report.problems.append(Problem("", "tar that cannot be read to its end", str(error)))
        return
    report.counts["photographs"] = len(photos)
    report.problems += _in_threads(lambda photo: _photo_problems(root, photo, quick), photos)


def _photo_problems(root: Path, photo: Photo, quick: bool) -> list[Problem]:
    _, found = _read("image", photo.path, lambda _: photo.load(max_size=256), quick)
    return _problems("", photo.member or photo.path.relative_to(root), found)


# MegaDepth ------------------------------------------------------------------------------------------------------------


def _check_megadepth(report: Report, root: Path, scenes: Sequence[str] | None, quick: bool) -> None:
    try:
        found = list_scenes(root)
    except ValueError as error:
        report.problems.append(Problem("", "missing scene descriptions", str(error)))
        return
    unknown = [name for name in scenes or () if name not in found]
    if unknown:
        raise ValueError(f"{root} has no scene {', '.join(unknown)}")
    names = [name for name in found if scenes is None or name in scenes]
    infos: list[SceneInfo] = []
    for name in progress(names, "reading scenes"):
        try:
            infos.append(read_scene_info(found[name]))
        except (ValueError, OSError) as error:
            report.problems.append(Problem(name, "scene description that cannot be used", str(error)))
            continue
        report.problems += [Problem(name, kind, what) for kind, what in infos[-1].problems()]
        report.problems += [] if quick else _detection_problems(root, infos[-1])
    photographs = [(info, int(index)) for info in infos for index in info.listed.nonzero()[0]]
    report.problems += _in_threads(lambda photograph: _megadepth_problems(root, *photograph, quick), photographs)
    report.problems.sort(key=lambda problem: problem.scene)
    pairs = sum(len(info.pairs) for info in infos)
    report.counts |= {"scenes": len(names), "photographs with depth": len(photographs), "pairs": pairs}
    report.notes += [] if scenes is not None else _scene_notes(root, set(found))
    try:
        find_detections(root, names)
    except ValueError as error:
        report.notes.append(f"{error}; they are optional, for keypoints.prior 'sfm' alone")


def _detection_problems(root: Path, info: SceneInfo) -> Iterator[Problem]:
    path = detections_path(root, info.name)
    if path.is_file():
        try:
            read_detections(path, np.unique(info.pairs[info.usable_pairs]).tolist())
        except (ValueError, OSError) as error:
            yield Problem(info.name, "points of the reconstruction that cannot be used", str(error))


def _megadepth_problems(root: Path, info: SceneInfo, index: int, quick: bool) -> list[Problem]:
    image, depth = str(info.image_paths[index]), str(info.depth_paths[index])
    size, of_image = _read("image", root / image, _read_size, quick)
    values, of_depth = _read("depth map", root / depth, read_depth, quick)
    x, y = info.intrinsics[index, :2, 2].tolist()  # COLMAP's pixels
    if size and (x < 0 or y < 0 or x > size[0] or y > size[1]):
        where = f": principal point ({x}, {y}), image {size[0]} x {size[1]}"
        of_image.append(("intrinsics that do not fit the image", where))
    if values is not None:
        of_depth += _odd_depths(values, size)
    return _problems(info.name, image, of_image) + _problems(info.name, depth, of_depth)


def _odd_depths(depth: Tensor, image_size: Size | None) -> Iterator[tuple[str, str]]:
    """What training would take for unknown, or stretch over the photograph."""
    if not bool((depth > 0).any()):
        yield "depth map without a depth", ""
    elif not bool((depth >= 0).all()):
        yield "depth map with negative or undefined values", ""
    height, width = depth.shape
    if image_size and (width, height) != image_size:
        yield "depth map of another size", f": {width} x {height}, image {image_size[0]} x {image_size[1]}"


def _scene_notes(root: Path, described: set[str]) -> Iterator[str]:
    """What is worth knowing and not wrong."""
    if not TEST_SCENES & described:
        yield f"none of the test scenes {', '.join(sorted(TEST_SCENES))} is here"
    folders = {path.name for path in root.glob("phoenix/S6/zl548/MegaDepth_v1/*") if path.is_dir()}
    if folders - described:
        yield f"depth maps of {len(folders - described)} more scenes have no description, and are not used"


# COLMAP ---------------------------------------------------------------------------------------------------------------


def _check_colmap(report: Report, root: Path, images: Path | None, depths: Path | None, quick: bool) -> None:
    try:
        scenes = list(open_scenes(root, images, depths))
        tables = [] if quick else [scene.pairs() for scene in scenes]
    except (ValueError, ImportError, OSError) as error:
        report.problems.append(Problem("", "reconstruction that cannot be used", str(error)))
        return
    report.counts |= {"scenes": len(scenes)} if len(scenes) > 1 else {}
    report.counts["photographs"] = sum(len(scene.reconstruction) for scene in scenes)
    report.counts["points"] = sum(len(scene.reconstruction.points) for scene in scenes)
    photographs = [(scene, index) for scene in scenes for index in range(len(scene.reconstruction))]
    report.problems += _in_threads(lambda photograph: _colmap_problems(*photograph, quick), photographs)
    if not quick:
        taken = [len(table.usable()) for table in tables]
        report.counts["pairs"] = sum(taken)
        for scene, table, count in zip(scenes, tables, taken, strict=True):
            report.problems += _pair_problems(scene, table, count)


def _colmap_problems(scene: Scene, index: int, quick: bool) -> list[Problem]:
    name, camera = scene.reconstruction.names[index], scene.reconstruction.sizes[index]
    files: list[tuple[str, Path, Callable[[Path], Size]]] = [("image", scene.images / name, _read_size)]
    if scene.depths is not None:
        files.append(("depth map", depth_path(scene.depths, name), _read_depth_size))
    problems = []
    for what, path, read in files:
        size, found = _read(what, path, read, quick)
        if size and (problem := aspect_problem(size, camera)):
            found.append((f"{what} of another aspect", f": {problem}"))
        problems += _problems(scene.name, path, found)
    return problems


def _pair_problems(scene: Scene, pairs: Covisible, taken: int) -> Iterator[Problem]:
    names = scene.reconstruction.names
    if not taken:
        why = f"none shares {MIN_SHARED} tracks at an angle of at most {MAX_ANGLE:g} degrees that one rotation explains"
        what = f"training takes none of its {len(pairs)} pairs of images that share tracks: {why}"
        yield Problem(scene.name, "scene without pairs", what)
    elif alone := set(range(len(names))) - set(pairs.images.ravel().tolist()):
        what = f"{len(alone)}: {few([names[n] for n in sorted(alone)])}"
        yield Problem(scene.name, "images that share no tracks with others", what)
