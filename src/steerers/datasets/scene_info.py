"""The scenes of MegaDepth as DKM and DeDoDe prepared them: cameras and pairs, and the points of the reconstructions.

:mod:`.megadepth` says where the files lie. Pixels are COLMAP's: their top-left corner is at (0, 0).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steerers.datasets.safe_arrays import read_dictionary, read_named

Split = Literal["train", "test"]

SCENE_INFO = "prep_scene_info"
DETECTIONS_HELP = (
    "DeDoDe's data_prep/prep_keypoints.py (https://github.com/Parskatt/DeDoDe) makes them from the reconstructions in "
    "Undistorted_SfM/SCENE/sparse-txt"
)

TEST_SCENES = frozenset({"0015", "0022"})
"""The scenes of MegaDepth-1500, on which everybody evaluates."""
LEFT_OUT_BY_LOFTR = frozenset(
    {"0121", "0133", "0168", "0178", "0229", "0349", "0412", "0430", "0443", "1001", "5014", "5015", "5016"}
)
"""Scenes with reconstructions of low quality."""
IMC_2021_SCENES = frozenset({"0008", "0019", "0021", "0024", "0025", "0032", "0063", "1589"})
"""Scenes that are in the test set of the Image Matching Challenge 2021."""


# Scene descriptions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SceneInfo:
    """A scene: N photographs, of which some may be listed without data, and P pairs of them."""

    name: str
    image_paths: tuple[str | None, ...]  # relative to the root
    depth_paths: tuple[str | None, ...]
    intrinsics: NDArray[np.float64]  # (N, 3, 3), COLMAP's pixels; NaN where there are none
    poses: NDArray[np.float64]  # (N, 4, 4), from the world to the camera; NaN where there are none
    pairs: NDArray[np.int64]  # (P, 2)
    overlaps: NDArray[np.float64]  # (P,)

    @property
    def listed(self) -> NDArray[np.bool_]:
        """(N,) whether a photograph has paths."""
        return np.array([bool(a and b) for a, b in zip(self.image_paths, self.depth_paths, strict=True)], dtype=bool)

    @property
    def calibrated(self) -> NDArray[np.bool_]:
        """(N,) whether the intrinsics are finite, with positive focal lengths."""
        K = self.intrinsics
        with np.errstate(invalid="ignore"):
            focal = (K[:, 0, 0] > 0) & (K[:, 1, 1] > 0) & (K[:, 2] == (0, 0, 1)).all(axis=1)
        return np.asarray(np.isfinite(K).all(axis=(1, 2)) & focal)

    @property
    def posed(self) -> NDArray[np.bool_]:
        """(N,) whether the pose is finite and a rotation with a translation."""
        R = self.poses[:, :3, :3]
        finite = np.isfinite(self.poses).all(axis=(1, 2))
        R = np.where(np.asarray(finite)[:, None, None], R, 0.0)
        orthogonal = (np.abs(R @ R.transpose(0, 2, 1) - np.eye(3)) < 1e-3).all(axis=(1, 2))
        return np.asarray(finite & orthogonal & (np.linalg.det(R) > 0) & (self.poses[:, 3] == (0, 0, 0, 1)).all(axis=1))

    @property
    def usable_pairs(self) -> NDArray[np.bool_]:
        """(P,) whether both photographs of a pair exist in the lists, with paths and cameras, and are two."""
        faults = np.any(list(self._pair_faults().values()), axis=0)
        return np.asarray(~faults & self._of_both(self.listed & self.calibrated & self.posed))

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with cameras and pairs: kinds, and which photograph or pair each concerns."""
        images, depths = (np.array([bool(path) for path in paths]) for paths in (self.image_paths, self.depth_paths))
        faults = {
            "photograph without one of its paths": images != depths,
            "pose that is no rotation and translation": self.listed & ~self.posed,
            "intrinsics that are not finite, or without focal length": self.listed & ~self.calibrated,
        }
        for kind, wrong in faults.items():
            yield from ((kind, self.image_paths[n] or f"photograph {n}") for n in np.flatnonzero(wrong))
        if not len(self.pairs):
            yield "scene without pairs", self.name
        for kind, wrong in self._pair_faults().items():
            for n in np.flatnonzero(wrong):
                yield kind, f"pair {n}: {tuple(self.pairs[n].tolist())} of {len(self.image_paths)} photographs"

    def _pair_faults(self) -> dict[str, NDArray[np.bool_]]:
        """(P,) which pairs are wrong, by what is; cameras are faults of photographs."""
        inside = self._of_both(np.ones(len(self.image_paths), dtype=bool))
        return {
            "pair out of range": ~inside,
            "pair of a photograph with itself": inside & (self.pairs[:, 0] == self.pairs[:, 1]),
            "pair of a photograph without paths": inside & ~self._of_both(self.listed),
            "overlap that is not finite": ~np.isfinite(self.overlaps),
        }

    def _of_both(self, photographs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(P,) whether (N,) holds of both photographs of a pair; False where one is out of range."""
        inside = (self.pairs >= 0) & (self.pairs < len(photographs))
        return np.asarray(np.append(photographs, False)[np.where(inside, self.pairs, -1)].all(axis=1))


def read_scene_info(path: str | PathLike[str]) -> SceneInfo:
    """Read a scene description, ``.npy`` with a dictionary or ``.npz``; ValueError names one that cannot be used."""
    values = read_named(path, [field.name for field in fields(SceneInfo)][1:], "scene description")
    try:
        return _scene_info(Path(path).stem, values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _scene_info(name: str, values: dict[str, Any]) -> SceneInfo:
    lists: dict[str, Any] = {key: _paths(key, values[key]) for key in ("image_paths", "depth_paths")}
    lists |= {key: _matrices(key, values[key], side) for key, side in (("intrinsics", 3), ("poses", 4))}
    pairs = np.array(np.asarray(values["pairs"]).tolist(), dtype=np.int64).reshape(-1, 2)
    overlaps = np.asarray(values["overlaps"], dtype=np.float64).reshape(-1)
    if len(set(map(len, lists.values()))) > 1:
        counts = ", ".join(f"{key} {len(values)}" for key, values in lists.items())
        raise ValueError(f"the lists have different lengths: {counts}")
    if len(pairs) != len(overlaps):
        raise ValueError(f"there are {len(pairs)} pairs but {len(overlaps)} overlaps")
    return SceneInfo(name, pairs=pairs, overlaps=overlaps, **lists)


def _paths(key: str, values: Any) -> tuple[str | None, ...]:
    for index, path in enumerate(values):
        if path is not None and not isinstance(path, str):
            raise TypeError(f"{key}[{index}] must be a path or None, got {type(path).__name__}")
    return tuple(None if path is None else str(path) for path in values)


def _matrices(key: str, values: Any, side: int) -> NDArray[np.float64]:
    """(N, side, side), NaN for None."""
    matrices = np.full((len(values), side, side), np.nan)
    for index, value in enumerate(values):
        if value is not None:
            matrix = np.asarray(value, dtype=np.float64)
            if matrix.size != side * side:
                raise ValueError(f"{key}[{index}] must be {side} x {side}, got shape {matrix.shape}")
            matrices[index] = matrix.reshape(side, side)
    return matrices


# Which pairs ----------------------------------------------------------------------------------------------------------


def list_scenes(root: str | PathLike[str]) -> dict[str, Path]:
    """The scenes that are described below ``root``, by name, and the files that describe them.

    Raises:
        ValueError: if there are none.
    """
    folder = Path(root) / SCENE_INFO
    found = {path.stem: path for path in sorted(folder.glob("*")) if path.suffix in (".npy", ".npz") and path.is_file()}
    if not found:
        why = "holds no scene" if folder.is_dir() else "is missing"
        raise ValueError(
            f"{root} is no MegaDepth: {folder} {why}; it holds one SCENE.npy each, which the authors of DKM offer"
        )
    return found


def scenes_of(split: Split, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that belong to a split.

    ``train`` leaves out the test scenes, those that LoFTR leaves out, and those of the Image Matching Challenge, as the
    paper does; ``test`` are the scenes of MegaDepth-1500.
    """
    if split == "test":
        return sorted(TEST_SCENES & set(names))
    return sorted(set(names) - TEST_SCENES - LEFT_OUT_BY_LOFTR - IMC_2021_SCENES)


def weigh_pairs(
    info: SceneInfo, min_overlaps: Sequence[float] = (0.01, 0.35), max_overlap: float = 1.0, max_pairs: int = 100_000
) -> NDArray[np.float64]:
    """(P,) how often each pair of a scene is drawn; 0 for pairs that are left out. The defaults are the original's.

    Each overlap makes a list of n pairs that overlap more, but less than ``max_overlap``. At most ``max_pairs`` of a
    list are drawn, each with the weight n^-0.75, so that large scenes do not drown small ones. A pair has the sum of
    its weights in all lists.
    """
    weights = np.zeros(len(info.pairs))
    for index, overlap in enumerate(min_overlaps):
        chosen = np.flatnonzero((info.overlaps > overlap) & (info.overlaps < max_overlap))
        if len(chosen) > max_pairs:
            generator = np.random.default_rng([0, zlib.crc32(info.name.encode()), index])
            chosen = generator.choice(chosen, max_pairs, replace=False)
        weights[chosen] += max(1, len(chosen)) ** -0.75
    return weights


# Points of the reconstructions ----------------------------------------------------------------------------------------


def detections_path(root: str | PathLike[str], scene: str) -> Path:
    """Where the points of a scene lie."""
    return Path(root) / SCENE_INFO / "detections" / f"detections_{scene}.npy"


def read_detections(path: str | PathLike[str], photographs: Collection[int]) -> dict[int, NDArray[np.float32]]:
    """Where points of the reconstruction were seen: of each photograph (N, 2), in COLMAP's pixels.

    Args:
        photographs: which are wanted, by their indices in the lists of the scene description.

    Raises:
        ValueError: if the file is damaged, asks for more than arrays, or lacks a photograph; the path is named.
    """
    values = read_dictionary(path, "file of detections")
    missing = [index for index in photographs if index not in values]
    if missing:
        raise ValueError(f"{path}: it has no points of photograph {missing[0]}; {DETECTIONS_HELP}")
    return {index: _points(f"{path}: photograph {index}", values[index]) for index in photographs}


def _points(where: str, values: Any) -> NDArray[np.float32]:
    try:
        points = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: its points must be N x 3 numbers ({error})") from error
    if not points.size:
        return np.zeros((0, 2), dtype=np.float32)
    if points.ndim != 2 or points.shape[1] != 3 or not np.isfinite(points[:, :2]).all():
        raise ValueError(f"{where}: its points must be N x 3 finite numbers, got shape {points.shape}")
    return points[:, :2].copy()


def find_detections(root: str | PathLike[str], scenes: Sequence[str]) -> dict[str, Path]:
    """The files of points of ``scenes``.

    Raises:
        ValueError: if one is missing, saying where it should be and what makes it.
    """
    paths = {scene: detections_path(root, scene) for scene in scenes}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        count = f"{len(missing)} of {len(paths)} scenes have no points of their reconstructions"
        raise ValueError(f"{count}, such as {missing[0]}; {DETECTIONS_HELP}")
    return paths
