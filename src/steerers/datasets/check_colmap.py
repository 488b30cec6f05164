"""What is missing or broken in COLMAP reconstructions: models, photographs, depth maps and pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steerers._files import StrPath
from steerers.datasets.check_report import Problem, Report, few
from steerers.datasets.colmap import ANGLES, MIN_AGREEMENT, MIN_SHARED, usable
from steerers.datasets.colmap_files import Scene, aspect_problem, depth_path, open_scenes, read_depth
from steerers.datasets.reconstruction import Covisible, covisible
from steerers.images.load import ImageError, load_image


def check_colmap(root: Path, images: Path | None = None, depths: Path | None = None, *, quick: bool = False) -> Report:
    """A COLMAP reconstruction, as :func:`survey` sees it."""
    counts, found = survey(root, images=images, depths=depths, quick=quick)
    return Report("COLMAP reconstruction", counts, [Problem("", "missing or broken", what) for what in found])


def check(
    root: StrPath, images: StrPath | None = None, depths: StrPath | None = None, *, quick: bool = False
) -> list[str]:
    """What is missing or broken in the reconstructions at ``root``, one line each; empty if all can be used."""
    return survey(root, images, depths, quick=quick)[1]


def survey(
    root: StrPath, images: StrPath | None = None, depths: StrPath | None = None, *, quick: bool = False
) -> tuple[dict[str, int], list[str]]:
    """How much there is in the reconstructions at ``root``, and what :func:`check` finds.

    Args:
        quick: only look whether photographs and depth maps are there, and count no pairs.

    Returns:
        Counts by what they are of (pairs: those that :class:`~steerers.datasets.colmap.Colmap` takes by default), and
        one line for each problem.
    """
    try:
        scenes = list(open_scenes(root, images, depths))
    except (ValueError, ImportError, OSError) as error:
        return {}, [str(error)]
    counts = {"scenes": len(scenes)} if len(scenes) > 1 else {}
    counts["photographs"] = sum(len(scene.reconstruction) for scene in scenes)
    counts["points"] = sum(len(scene.reconstruction.points) for scene in scenes)
    problems = [problem for scene in scenes for problem in _file_problems(scene, quick)]
    if not quick:
        counts["pairs"] = 0
        for scene in scenes:
            table = covisible(scene.reconstruction)
            taken = len(usable(table, MIN_SHARED, ANGLES, MIN_AGREEMENT))
            counts["pairs"] += taken
            problems += _pair_problems(scene, table, taken)
    return counts, problems


def _file_problems(scene: Scene, quick: bool) -> Iterator[str]:
    reconstruction = scene.reconstruction
    for n, name in enumerate(reconstruction.names):
        if problem := _image_problem(scene.images / name, reconstruction.sizes[n], quick):
            yield f"{scene.images / name}: {problem}"
        if scene.depths is not None:
            yield from _depth_map_problems(depth_path(scene.depths, name), reconstruction.sizes[n], quick)


def _pair_problems(scene: Scene, pairs: Covisible, taken: int) -> Iterator[str]:
    reconstruction = scene.reconstruction
    if len(pairs) and not taken:
        yield (
            f"{scene.name}: training takes none of its {len(pairs)} pairs of images: none shares {MIN_SHARED} tracks "
            f"at an angle of at most {ANGLES[1]:g} degrees that one rotation explains"
        )
    if not len(pairs):
        yield f"{scene.name}: no two images share tracks"
    alone = set(range(len(reconstruction))) - set(pairs.images.ravel().tolist())
    if len(pairs) and alone:
        names = few([reconstruction.names[n] for n in sorted(alone)])
        yield f"{scene.name}: {len(alone)} images share no tracks with others: {names}"


def _image_problem(path: Path, expected: NDArray[np.int64], quick: bool) -> str | None:
    if not path.is_file():
        return "no such photograph"
    if quick:
        return None
    try:
        size = load_image(path, max_size=256).stored_size
    except (ImageError, OSError) as error:
        return str(error)
    return aspect_problem(size, expected)


def _depth_map_problems(path: Path, expected: NDArray[np.int64], quick: bool) -> Iterator[str]:
    if quick:
        if not path.is_file():
            yield f"{path}: no such depth map"
        return
    try:
        height, width = read_depth(path).shape
    except FileNotFoundError:
        yield f"{path}: no such depth map"
    except ValueError as error:
        yield str(error)
    else:
        if problem := aspect_problem((width, height), expected):
            yield f"{path}: {problem}"
