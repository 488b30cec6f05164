"""What is missing or broken in a MegaDepth: scene descriptions, photographs, depth maps and points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steerers.datasets.check_report import Problem, Report, image_problem, in_threads, reason_of
from steerers.datasets.megadepth import read_depth
from steerers.datasets.scene_info import (
    DETECTIONS_HELP,
    SCENE_INFO,
    TEST_SCENES,
    SceneInfo,
    detections_path,
    list_scenes,
    read_detections,
    read_scene_info,
)
from steerers.images.load import Size
from steerers.viz.progress import progress


class _Entry(NamedTuple):
    """A photograph of a scene, its depth map, and where its camera looks."""

    scene: str
    image: str
    depth: str
    principal: tuple[float, float]  # COLMAP's pixels


def check_megadepth(root: Path, *, quick: bool = False, scenes: Sequence[str] | None = None) -> Report:
    """Every scene description, photograph and depth map of a MegaDepth."""
    report = Report("MegaDepth", {}, [])
    if not any((root / SCENE_INFO).glob("*.np[yz]")):
        report.problems.append(Problem("", "missing scene descriptions", f"{SCENE_INFO}/SCENE.npy, one a scene"))
        return report
    found = list_scenes(root)
    unknown = [name for name in scenes or () if name not in found]
    if unknown:
        raise ValueError(f"{root} has no scene {', '.join(unknown)}")
    entries: list[_Entry] = []
    pairs = 0
    chosen = [name for name in found if scenes is None or name in scenes]
    for name in progress(chosen, "reading scenes"):
        try:
            info = read_scene_info(found[name])
        except (ValueError, OSError) as error:
            report.problems.append(Problem(name, "scene description that cannot be used", str(error)))
            continue
        report.problems += [Problem(name, kind, what) for kind, what in scene_problems(info)]
        report.problems += [] if quick else _detection_problems(root, info)
        entries += _entries(info)
        pairs += len(info.pairs)
    looked = in_threads(lambda entry: _file_problems(root, entry, quick), entries, "checking files")
    report.problems += [problem for problems in looked for problem in problems]
    report.problems.sort(key=lambda problem: problem.scene)
    report.counts |= {"scenes": len(chosen), "photographs with depth": len(entries), "pairs": pairs}
    report.notes += [] if scenes is not None else _notes(root, set(found))
    report.notes += _note_detections(root, chosen)
    return report


def _notes(root: Path, described: set[str]) -> Iterator[str]:
    """What is worth knowing and not wrong."""
    if not TEST_SCENES & described:
        yield f"none of the test scenes {', '.join(sorted(TEST_SCENES))} is here"
    folders = {path.name for path in root.glob("phoenix/S6/zl548/MegaDepth_v1/*") if path.is_dir()}
    if folders - described:
        yield f"depth maps of {len(folders - described)} more scenes have no description, and are not used"


def _note_detections(root: Path, scenes: Sequence[str]) -> Iterator[str]:
    missing = [name for name in scenes if not detections_path(root, name).is_file()]
    if missing:
        where = detections_path(root, missing[0]).relative_to(root)
        yield (
            f"{len(missing)} of {len(scenes)} scenes have no points of their reconstructions, such as {where}; they "
            f"are optional, for keypoints.prior 'sfm' alone; {DETECTIONS_HELP}"
        )


def _detection_problems(root: Path, info: SceneInfo) -> Iterator[Problem]:
    path = detections_path(root, info.name)
    if path.is_file():
        try:
            read_detections(path, np.unique(info.pairs[info.usable_pairs]).tolist())
        except (ValueError, OSError) as error:
            yield Problem(info.name, "points of the reconstruction that cannot be used", str(error))


def _entries(info: SceneInfo) -> Iterator[_Entry]:
    for n, (image, depth) in enumerate(zip(info.image_paths, info.depth_paths, strict=True)):
        if image and depth:
            principal = info.intrinsics[n, :2, 2].tolist()
            yield _Entry(info.name, image, depth, (principal[0], principal[1]))


def scene_problems(info: SceneInfo) -> Iterator[tuple[str, str]]:
    """What is wrong with the cameras and pairs of a scene: kinds, and what each concerns."""
    listed, posed, calibrated = info.listed, info.posed, info.calibrated
    names = [path or f"photograph {n}" for n, path in enumerate(info.image_paths)]
    for n, name in enumerate(names):
        if bool(info.image_paths[n]) != bool(info.depth_paths[n]):
            yield "photograph without one of its paths", name
        if listed[n] and not posed[n]:
            yield "pose that is no rotation and translation", name
        if listed[n] and not calibrated[n]:
            yield "intrinsics that are not finite, or without focal length", name
    if not len(info.pairs):
        yield "scene without pairs", info.name
    wrong = ~info.usable_pairs
    for (first, second), place in zip(info.pairs[wrong].tolist(), wrong.nonzero()[0].tolist(), strict=True):
        if kind := _pair_problem(info, first, second, listed):
            yield kind, f"pair {place}: ({first}, {second}) of {len(names)} photographs"
        elif not float(abs(info.overlaps[place])) < float("inf"):
            yield "overlap that is not finite", f"pair {place}"


def _pair_problem(info: SceneInfo, first: int, second: int, listed: NDArray[np.bool_]) -> str | None:
    count = len(info.image_paths)
    if not (0 <= first < count and 0 <= second < count):
        return "pair out of range"
    if first == second:
        return "pair of a photograph with itself"
    return None if listed[first] and listed[second] else "pair of a photograph without paths"


def _file_problems(root: Path, entry: _Entry, quick: bool) -> list[Problem]:
    image, depth = root / entry.image, root / entry.depth
    if quick:
        found = [(_quick_problem("image", image), entry.image), (_quick_problem("depth map", depth), entry.depth)]
        return [Problem(entry.scene, kind, name) for kind, name in found if kind is not None]
    size, problem = image_problem(image)
    problems = [] if problem is None else [Problem(entry.scene, problem[0], f"{entry.image}{problem[1]}")]
    if size and any(c < 0 or c > extent for c, extent in zip(entry.principal, size, strict=True)):
        where = f"{entry.image}: principal point {entry.principal}, image {size[0]} x {size[1]}"
        problems.append(Problem(entry.scene, "intrinsics that do not fit the image", where))
    return problems + [Problem(entry.scene, kind, f"{entry.depth}{why}") for kind, why in _depth_problems(depth, size)]


def _quick_problem(kind: str, path: Path) -> str | None:
    if not path.is_file():
        return f"missing {kind}"
    return None if path.stat().st_size else f"empty file of {kind}"


def _depth_problems(path: Path, image_size: Size | None) -> Iterator[tuple[str, str]]:
    """What is wrong with a depth map: kind, and what follows its path."""
    if not path.is_file():
        yield "missing depth map", ""
        return
    try:
        depth = read_depth(path)
    except (ValueError, OSError) as error:
        yield "depth map that cannot be read", f": {reason_of(error, path)}"
        return
    if not bool((depth > 0).any()):
        yield "depth map without a depth", ""
    elif not bool((depth >= 0).all()):
        yield "depth map with negative or undefined values", ""
    size = (int(depth.shape[1]), int(depth.shape[0]))
    if image_size and size != image_size:
        yield "depth map of another size", f": {size[0]} x {size[1]}, image {image_size[0]} x {image_size[1]}"
