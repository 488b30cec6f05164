"""Relative pose on ScanNet-1500, upright and rotated: 1500 pairs of indoor views, in either of two published layouts.

LoFTR's:

    test.npz                          name (N, 4): scene, scan and two frames
    intrinsics.npz                    by scene, (3, 3), of images at 640 x 480: SuperGlue's, times 640 / 1296, 480 / 968
    sceneXXXX_YY/color/FRAME.jpg
    sceneXXXX_YY/pose/FRAME.txt       (4, 4), from the camera to the world

SuperGlue's, of the same pairs:

    scannet_test_pairs_with_gt.txt    a line a pair: two paths, two numbers of quarter turns, which are 0, intrinsics of
                                      both images at 1296 x 968, (3, 3) each, and the pose (4, 4) from camera 0 to 1

Images may be stored at either size, or any other of their shape: intrinsics follow. Thresholds are pixels at 640 x 480,
to which both resize.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from steerers.benchmarks import offers, two_view
from steerers.benchmarks.benchmark import PairBenchmark
from steerers.benchmarks.offers import SCANNET_LISTS as LISTS
from steerers.benchmarks.offers import SCANNET_SIZE as SIZE
from steerers.benchmarks.offers import Rotation
from steerers.benchmarks.predict import Prediction, choose
from steerers.benchmarks.two_view import (
    Matrix,
    PoseEstimator,
    PoseOutcome,
    PosePair,
    check_camera,
    pose_benchmark,
    read_matrix,
)
from steerers.datasets.safe_arrays import read_named
from steerers.geometry import scaled_intrinsics
from steerers.images.decode import header_size
from steerers.images.load import Size

STORED = (1296, 968)
"""At which ScanNet stores colour images."""
INTRINSICS = "intrinsics.npz"
HELP = (
    "get ScanNet-1500 as LoFTR has it, https://github.com/zju3dv/LoFTR (test.npz and intrinsics.npz of "
    "assets/scannet_test_1500, and the scannet-1500-testset of its Google Drive: sceneXXXX_YY/color/FRAME.jpg, "
    "sceneXXXX_YY/pose/FRAME.txt), or as SuperGlue has it, https://github.com/magicleap/SuperGluePretrainedNetwork "
    "(assets/scannet_test_pairs_with_gt.txt, and the frames that it names of ScanNet's test scans, "
    "https://github.com/ScanNet/ScanNet), and give --data the folder that holds the list, or a folder of it, and the "
    "images, or a folder of them"
)


@dataclass(frozen=True, eq=False)
class Listed:
    """A pair as a list has it: its images from the folder of all images, and its truth as far as the list tells it."""

    scene: str
    image0: str
    image1: str
    K0: Matrix  # (3, 3), at 1296 x 968
    K1: Matrix
    pose: Matrix | None  # (4, 4), from camera 0 to camera 1; `None`: that of files beside the images


def list_scannet(folder: Path, pairs: Path | None = None, scenes: Sequence[str] | None = None) -> list[PosePair]:
    """The pairs of a list, in its order.

    Args:
        folder: of the images, or of a folder of them, and the list, if that is not given.
        pairs: the list, as LoFTR or SuperGlue have it; by default the one that is there.
        scenes: names of those that are wanted; by default all.

    Raises:
        ValueError: if files are missing, saying what to get; or if one is damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; {HELP}")
    path = _find_list(folder) if pairs is None else pairs
    if not path.is_file():
        raise ValueError(f"there is no list of pairs {path}; {HELP}")
    listed = _read_loftr(path) if path.suffix == ".npz" else _read_superglue(path)
    wanted = choose({pair.scene: path for pair in listed}, scenes, path, "scene")
    listed = [pair for pair in listed if pair.scene in wanted]
    root = _find_root(folder, path, listed[0].image0)
    _check_files(root, listed)
    sizes = {image: _stored_size(root / image) for pair in listed for image in (pair.image0, pair.image1)}
    return [_make_pair(root, pair, sizes[pair.image0], sizes[pair.image1]) for pair in listed]


def _find_list(folder: Path) -> Path:
    found = [path for name in LISTS for path in (folder / name, *sorted(folder.glob(f"*/{name}"))) if path.is_file()]
    if not found:
        raise ValueError(f"there is none of {', '.join(LISTS)} in {folder}, nor in a folder in it; {HELP}")
    if len(found) > 1:
        raise ValueError(f"{folder} holds several lists of pairs: give one by --pairs, {', '.join(map(str, found))}")
    return found[0]


def _find_root(folder: Path, path: Path, image: str) -> Path:
    """The folder from which an image is found."""
    roots = [folder, path.parent, *sorted(below for below in folder.iterdir() if below.is_dir())]
    for root in roots:
        if (root / image).is_file():
            return root
    raise ValueError(f"{path} names {image}, which is neither in {folder} nor in a folder in it; {HELP}")


def _check_files(root: Path, listed: Sequence[Listed]) -> None:
    needed = {root / image for pair in listed for image in (pair.image0, pair.image1)}
    needed |= {pose_path(root / image) for pair in listed if pair.pose is None for image in (pair.image0, pair.image1)}
    missing = sorted(path for path in needed if not path.is_file())
    if missing:
        raise ValueError(f"{len(missing)} of {len(needed)} files are missing, such as {missing[0]}; {HELP}")


def _stored_size(path: Path) -> Size:
    """(width, height) of an image; refused unless it has the shape of ScanNet's to within 2 %."""
    width, height = header_size(path)
    if abs(width * SIZE[1] / (height * SIZE[0]) - 1) > 0.02:
        raise ValueError(
            f"{path} is {width} x {height}: an image of ScanNet is 1296 x 968 or 640 x 480, and its intrinsics hold "
            "for no other shape"
        )
    return width, height


def _make_pair(root: Path, pair: Listed, stored0: Size, stored1: Size) -> PosePair:
    image0, image1 = root / pair.image0, root / pair.image1
    pose = pair.pose
    if pose is None:
        pose = np.linalg.inv(read_pose(pose_path(image1))) @ read_pose(pose_path(image0))
    return PosePair(
        f"{pair.scene} {image0.stem}-{image1.stem}",
        pair.scene,
        image0,
        image1,
        K0=scaled_intrinsics(pair.K0, STORED, stored0),
        K1=scaled_intrinsics(pair.K1, STORED, stored1),
        R=pose[:3, :3],
        t=pose[:3, 3],
    )


# As LoFTR has it ------------------------------------------------------------------------------------------------------


def _read_loftr(path: Path) -> list[Listed]:
    names = read_named(path, ("name",), "list of pairs")["name"]
    if not isinstance(names, np.ndarray) or names.ndim != 2 or names.shape[1] != 4 or names.dtype.kind not in "iu":
        raise ValueError(f"{path}: name must be (N, 4) whole numbers: scene, scan and two frames; {HELP}")
    if not len(names):
        raise ValueError(f"{path}: it lists no pairs")
    rows = [(f"scene{scene:04d}_{scan:02d}", frame0, frame1) for scene, scan, frame0, frame1 in names.tolist()]
    beside = path.parent / INTRINSICS
    if not beside.is_file():
        raise ValueError(f"there is no {beside}; {HELP}")
    scenes = list(dict.fromkeys(scene for scene, *_ in rows))
    found = read_named(beside, scenes, "file of intrinsics")
    enlarge = np.diag([STORED[0] / SIZE[0], STORED[1] / SIZE[1], 1.0])  # as they were made: without half a pixel
    K = {scene: enlarge @ _intrinsics(f"{beside}: {scene}", found[scene]) for scene in scenes}
    return [
        Listed(scene, f"{scene}/color/{frame0}.jpg", f"{scene}/color/{frame1}.jpg", K[scene], K[scene], None)
        for scene, frame0, frame1 in rows
    ]


def _intrinsics(where: str, values: object) -> Matrix:
    K = read_matrix(where, values, (3, 3))
    check_camera(where, K, np.eye(3))
    return K


def pose_path(image: Path) -> Path:
    """The file with the pose of an image, in LoFTR's layout."""
    return image.parents[1] / "pose" / f"{image.stem}.txt"


def read_pose(path: Path) -> Matrix:
    """The (4, 4) map from the camera to the world in a text file of sixteen numbers."""
    try:
        values = path.read_text(encoding="utf-8").split()
        pose = read_matrix("a pose", np.array(values, np.float64).reshape(4, 4), (4, 4))
        _check_pose("a pose", pose)
    except ValueError as error:
        raise ValueError(f"{path}: not the pose of a camera, 4 x 4 numbers ({error})") from error
    return pose


def _check_pose(where: str, pose: Matrix) -> None:
    if not np.array_equal(pose[3], (0, 0, 0, 1)):
        raise ValueError(f"{where}: the last row must be 0 0 0 1, got {pose[3].tolist()}")
    check_camera(where, np.eye(3), pose[:3, :3])


# As SuperGlue has it --------------------------------------------------------------------------------------------------


def _read_superglue(path: Path) -> list[Listed]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a list of pairs ({error})") from error
    pairs = [_read_line(f"{path}, line {n}", line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not pairs:
        raise ValueError(f"{path}: it lists no pairs")
    return pairs


def _read_line(where: str, line: str) -> Listed:
    parts = line.split()
    if len(parts) != 38:
        raise ValueError(
            f"{where}: a pair is two paths, two quarter turns, 9 + 9 intrinsics and a pose of 16 numbers, 38 in "
            f"all, got {len(parts)}; {HELP}"
        )
    image0, image1, *rest = parts
    try:
        values = np.array(rest, np.float64)  # (36,)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if values[:2].any():
        raise ValueError(f"{where}: images are taken as stored, and ScanNet's are upright: quarter turns must be 0 0")
    K0, K1 = (_intrinsics(f"{where}: intrinsics", values[k : k + 9].reshape(3, 3)) for k in (2, 11))
    pose = read_matrix(f"{where}: the pose", values[20:].reshape(4, 4), (4, 4))
    _check_pose(f"{where}: the pose", pose)
    scene = re.search(r"scene\d+_\d+", image0)
    name = scene[0] if scene else PurePosixPath(image0).parent.name or "scene"
    return Listed(name, image0, image1, K0, K1, pose)


# The benchmarks -------------------------------------------------------------------------------------------------------


def measure_pair(pair: PosePair, prediction: Prediction, estimator: PoseEstimator) -> PoseOutcome:
    """As for other cameras, but OpenCV's threshold is in pixels at 640 x 480, whatever size is stored."""
    if estimator.name == "opencv":
        estimator = replace(estimator, threshold=estimator.pixels * prediction.stored0[0] / SIZE[0])
    return two_view.measure_pair(pair, prediction, estimator)


def _scannet(variant: str, rotation: Rotation) -> PairBenchmark[PosePair, PoseOutcome, PoseEstimator]:
    return pose_benchmark(
        offer=offers.SCANNET[variant],
        list_pairs=lambda arguments: list_scannet(arguments.data, arguments.pairs, arguments.sequences),
        rotation=rotation,
        measure=measure_pair,
        describe=partial(two_view.describe, at="640 x 480"),
    )


SCANNET = (_scannet("1500", "upright"), _scannet("c4", "c4"), _scannet("so2", "so2"))
