"""What is missing or broken in training data of any layout."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import PIL.Image

from steerers.datasets.check_colmap import check_colmap
from steerers.datasets.check_megadepth import check_megadepth
from steerers.datasets.check_report import Problem, Report, image_problem, in_threads
from steerers.datasets.photos import ENDINGS, find_photos
from steerers.images.load import Size
from steerers.viz.progress import progress

MEGADEPTH_FOLDERS = ("prep_scene_info", "phoenix", "Undistorted_SfM")
COLMAP_FILES = ("cameras.bin", "images.bin", "points3D.bin", "cameras.txt", "points3D.txt", "tracks.npz")
COLMAP_FOLDERS = ("", "sparse/", "sparse/0/", "*/", "*/sparse/", "*/sparse/0/")


def check_data(
    root: Path,
    *,
    quick: bool = False,
    scenes: Sequence[str] | None = None,
    images: Path | None = None,
    depths: Path | None = None,
) -> Report:
    """Check data of any layout.

    Raises:
        ValueError: if there is no data of a known layout, or an option belongs to another one.
    """
    layout = find_layout(root)
    if scenes is not None and layout != "MegaDepth":
        raise ValueError(f"scenes are named for MegaDepth, but {root} is a {layout}")
    if (images is not None or depths is not None) and layout != "COLMAP reconstruction":
        raise ValueError(f"folders of images and depths are named for COLMAP reconstructions, but {root} is {layout}")
    if layout == "MegaDepth":
        return check_megadepth(root, quick=quick, scenes=scenes)
    if layout == "COLMAP reconstruction":
        return check_colmap(root, images, depths, quick=quick)
    return check_tar(root, quick=quick) if root.is_file() else check_folder(root, quick=quick)


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


def check_folder(root: Path, *, quick: bool = False) -> Report:
    """Every photograph below a folder."""
    paths = [photo.path for photo in find_photos(root)]
    if quick:
        found: Iterable[tuple[Size | None, tuple[str, str] | None]] = (
            (None, None if path.stat().st_size else ("empty file of image", "")) for path in paths
        )
    else:
        found = in_threads(image_problem, paths, "decoding")
    problems = [
        Problem("", problem[0], f"{path.relative_to(root)}{problem[1]}")
        for path, (_, problem) in zip(paths, found, strict=True)
        if problem is not None
    ]
    return Report("folder of photographs", {"photographs": len(paths)}, problems)


def check_tar(root: Path, *, quick: bool = False) -> Report:
    """Every photograph in a tar, which is read once from its start to its end."""
    report = Report("tar of photographs", {"photographs": 0}, [])
    try:
        with tarfile.open(root) as archive:
            for member in progress(archive, "decoding"):
                if not member.isfile() or Path(member.name).suffix.lower() not in ENDINGS:
                    continue
                report.counts["photographs"] += 1
                problem = None if quick else _member_problem(archive, member)
                if problem is not None:
                    report.problems.append(Problem("", problem[0], f"{member.name}{problem[1]}"))
    except (tarfile.TarError, EOFError, OSError) as error:
        report.problems.append(Problem("", "tar that cannot be read to its end", f"{root}: {error}"))
    if not report.counts["photographs"] and not report.problems:
        raise ValueError(f"no images in {root}; known endings: {' '.join(sorted(ENDINGS))}")
    return report


def _member_problem(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, str] | None:
    stream = archive.extractfile(member)
    data = b"" if stream is None else stream.read()
    try:
        return image_problem(PIL.Image.open(io.BytesIO(data)))[1]
    except OSError:  # Pillow's word for what is no image
        return "image that cannot be decoded", ""
