"""COLMAP reconstructions: scenes on disk, with models or tracks, depth maps, and the pairs of images that they give."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steerers._files import StrPath, atomic_write
from steerers.datasets.safe_arrays import read_named, write_named
from steerers.geometry import Size, scaled_intrinsics
from steerers.images.decode import MAX_PIXELS, header_size

TRACKS = "tracks.npz"
"""The file that :func:`steerers.datasets.colmap.export` writes beside the photographs."""

DEPTHS = Path("stereo", "depth_maps")
"""Where COLMAP writes depth maps, below the folder of a reconstruction."""

MIN_SHARED, MAX_ANGLE, MIN_AGREEMENT = 30, 60.0, 0.7
"""Of a pair that training takes: how many tracks its images share, at which mean angle (degrees) the two cameras see
them, and how well, from 0 to 1, one rotation and scale explain where the tracks lie."""

MAX_PAIRS = 10_000_000
"""Of images that share tracks, of which training chooses; a table of so many takes 1 GB."""

_MODELS = ("", "sparse", "sparse/0")  # where a model may lie below its folder
_ASPECT_SLACK = 0.02  # of sizes rounded to whole pixels


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What training needs of a COLMAP model, in NumPy: N images, O observations of T tracks.

    Pixels have the centre of the top-left one at (0, 0), half a pixel less than COLMAP's. The observations of image n
    are ``xy[starts[n]:starts[n + 1]]``, in the order of their tracks; a track has one in an image at most.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]  # (N, 2), (width, height)
    K: NDArray[np.float64]  # (N, 3, 3)
    distorted: NDArray[np.bool_]  # (N,), True where a pixel is not K alone
    poses: NDArray[np.float64]  # (N, 3, 4), from the world to the camera
    starts: NDArray[np.int64]  # (N + 1,)
    xy: NDArray[np.float32]  # (O, 2)
    tracks: NDArray[np.int64]  # (O,), in 0 to T - 1
    points: NDArray[np.float64]  # (T, 3), in the world

    def __len__(self) -> int:
        return len(self.names)

    def observations(self, image: int) -> NDArray[np.float32]:
        """(S, 2) pixels of all tracks that an image sees."""
        return self.xy[self.starts[image] : self.starts[image + 1]]

    def shared(self, first: int, second: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(S, 2) pixels each, of the tracks that two images share."""
        (a, b), (c, d) = self.starts[first : first + 2], self.starts[second : second + 2]
        _, own, other = np.intersect1d(self.tracks[a:b], self.tracks[c:d], assume_unique=True, return_indices=True)
        return self.xy[a:b][own], self.xy[c:d][other]

    def save(self, path: StrPath) -> None:
        """Write all of it to a ``.npz``."""
        write_named(path, {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)})

    @classmethod
    def load(cls, path: StrPath) -> Reconstruction:
        """What :meth:`save` wrote; a broken file raises ValueError with its path."""
        arrays = read_named(path, [field.name for field in fields(cls)], "file of tracks")
        names = arrays.pop("names")
        try:
            if names.dtype.kind != "U" or names.ndim != 1:
                raise ValueError(f"names must be a list of strings, got {names.dtype} of shape {names.shape}")
            found = cls(names=tuple(names.tolist()), **arrays)
            found.check()
        except ValueError as error:
            raise ValueError(f"{path}: not a file that steerers.datasets.colmap.export wrote: {error}") from error
        return found

    @classmethod
    def read(cls, folder: StrPath) -> Reconstruction:
        """A COLMAP model, text or binary, from ``folder``, ``folder/sparse`` or ``folder/sparse/0``."""
        pycolmap = _pycolmap()
        model = model_folder(Path(folder))
        if model is None:
            raise ValueError(
                f"{folder}: no COLMAP model (cameras, images and points3D, .bin or .txt) there, in sparse/"
            )
        for name, skip in _RECORDS.items():
            _check_whole(model / name, skip)
        try:
            found = cls._of(pycolmap.Reconstruction(str(model)))
            found.check()
        except Exception as error:  # broken files raise whatever the parser ran into
            raise ValueError(f"{model}: COLMAP model cannot be read ({' '.join(str(error).split())})") from error
        return found

    def check(self) -> None:
        """Refuse arrays that do not belong together, and values that no camera or point has.

        Raises:
            ValueError: saying which.
        """
        images, observed, points = len(self.names), len(self.tracks), len(self.points)
        layouts = {
            "sizes": ("i", (images, 2)),
            "K": ("f", (images, 3, 3)),
            "distorted": ("b", (images,)),
            "poses": ("f", (images, 3, 4)),
            "starts": ("i", (images + 1,)),
            "xy": ("f", (observed, 2)),
            "tracks": ("i", (observed,)),
            "points": ("f", (points, 3)),
        }
        for name, (kind, shape) in layouts.items():
            array = getattr(self, name)
            if array.dtype.kind != kind or array.shape != shape:
                raise ValueError(f"{name} are {array.dtype} of shape {array.shape}, not {kind} of shape {shape}")
            if kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{name} are not all finite")
        self._check_values()

    def _check_values(self) -> None:
        if (self.sizes < 1).any() or (self.sizes > MAX_PIXELS).any():
            raise ValueError("a camera has no pixels, or too many")
        if (self.K[:, [0, 1], [0, 1]] <= 0).any() or (self.K[:, 2] != (0, 0, 1)).any():
            raise ValueError("a camera has no focal length")
        R = self.poses[:, :, :3]
        if (np.abs(R @ R.transpose(0, 2, 1) - np.eye(3)) > 1e-3).any():
            raise ValueError("the pose of a camera is no rotation and translation")
        if self.starts[0] != 0 or self.starts[-1] != len(self.tracks) or (np.diff(self.starts) < 0).any():
            raise ValueError("starts do not divide the observations among the images")
        if len(self.tracks) and not 0 <= self.tracks.min() <= self.tracks.max() < len(self.points):
            raise ValueError("an observation is of a track that has no point")
        image = np.repeat(np.arange(len(self)), np.diff(self.starts))
        if ((np.diff(self.tracks) <= 0) & (np.diff(image) == 0)).any():
            raise ValueError("the observations of an image are not in the order of their tracks")

    @classmethod
    def _of(cls, model: Any) -> Reconstruction:
        images = sorted((model.images[index] for index in model.reg_image_ids()), key=lambda image: str(image.name))
        cameras = [model.cameras[image.camera_id] for image in images]
        point_ids = np.array(sorted(model.point3D_ids()), dtype=np.int64)
        observed = [_observations(image, point_ids) for image in images]
        K = np.array([camera.calibration_matrix() for camera in cameras], np.float64).reshape(-1, 3, 3)
        K[:, :2, 2] -= 0.5  # from COLMAP's pixels
        return cls(
            names=tuple(str(image.name) for image in images),
            sizes=np.array([(camera.width, camera.height) for camera in cameras], np.int64).reshape(-1, 2),
            K=K,
            distorted=np.array([not camera.is_undistorted() for camera in cameras], np.bool_),
            poses=np.array([image.cam_from_world().matrix() for image in images], np.float64).reshape(-1, 3, 4),
            starts=np.cumsum([0, *(len(tracks) for _, tracks in observed)], dtype=np.int64),
            xy=np.concatenate([np.zeros((0, 2), np.float32), *(xy for xy, _ in observed)]),
            tracks=np.concatenate([np.zeros(0, np.int64), *(tracks for _, tracks in observed)]),
            points=np.array([model.points3D[int(i)].xyz for i in point_ids], np.float64).reshape(-1, 3),
        )


def _pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError as error:
        raise ImportError(
            'COLMAP models are read with pycolmap: pip install "steerers[colmap]"; where it cannot be installed, write '
            "a tracks.npz elsewhere with steerers.datasets.colmap.export"
        ) from error
    return pycolmap


def model_folder(root: Path) -> Path | None:
    """Where the COLMAP model of a folder lies: in it, in ``sparse`` or in ``sparse/0``; ``None`` if it has none."""
    for folder in (root / below for below in _MODELS):
        for ending in (".bin", ".txt"):
            if all((folder / f"{name}{ending}").is_file() for name in ("cameras", "images", "points3D")):
                return folder
    return None


def _check_whole(path: Path, skip: Callable[[bytes, int], int]) -> None:
    """Walk a binary file of a model to its end: on one that was cut off, pycolmap would go on for ever.

    Args:
        skip: from where a record begins to where it ends.
    """
    if not path.is_file():
        return
    data = path.read_bytes()
    position = 8
    try:
        (left,) = struct.unpack_from("<Q", data)
        while left and position < len(data):
            position, left = skip(data, position), left - 1
    except (struct.error, ValueError):  # a record goes on beyond the end, or is of no known kind
        left = 1
    if left or position != len(data):
        raise ValueError(f"{path}: a damaged file of a COLMAP model: it is cut off, or not what its name says")


def _number(form: str, data: bytes, position: int) -> int:
    return int(struct.unpack_from(form, data, position)[0])


def _skip_camera(data: bytes, start: int) -> int:
    return start + 24 + 8 * _num_params(_number("<i", data, start + 4))


@cache
def _num_params(model: int) -> int:
    """Of a camera's model; ValueError for one that does not exist."""
    pycolmap = _pycolmap()
    camera = pycolmap.Camera()
    camera.model = pycolmap.CameraModelId(model)
    return len(camera.params_info.split(","))


def _skip_image(data: bytes, start: int) -> int:
    points = data.index(b"\0", start + 64) + 1  # after its name
    return points + 8 + 24 * _number("<Q", data, points)


def _skip_point(data: bytes, start: int) -> int:
    return start + 51 + 8 * _number("<Q", data, start + 43)


def _skip_rig(data: bytes, start: int) -> int:
    sensors, position = _number("<I", data, start + 4), start + 8
    if sensors:
        position += 8  # the one that the others are placed by
        for _ in range(sensors - 1):
            position += 65 if data[position + 8 : position + 9] == b"\1" else 9
            if position > len(data):
                break
    return position


def _skip_frame(data: bytes, start: int) -> int:
    return start + 68 + 16 * _number("<I", data, start + 64)


_RECORDS = {
    "cameras.bin": _skip_camera,
    "images.bin": _skip_image,
    "points3D.bin": _skip_point,
    "rigs.bin": _skip_rig,  # the last two since COLMAP 3.12
    "frames.bin": _skip_frame,
}
"""The binary files of a model: a number of records, and how to find the end of each."""


def _observations(image: Any, point_ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(S, 2) pixels and (S,) tracks of an image in the order of the tracks, without those that it sees twice."""
    seen = image.get_observation_points2D()
    xy = np.array([point.xy for point in seen], np.float64).reshape(-1, 2) - 0.5
    tracks = np.searchsorted(point_ids, np.array([point.point3D_id for point in seen], np.int64))
    unique, first, counts = np.unique(tracks, return_index=True, return_counts=True)
    return xy[first[counts == 1]].astype(np.float32), unique[counts == 1]


# Scenes ---------------------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """A reconstruction and where its files are."""

    home: Path
    reconstruction: Reconstruction
    images: Path
    depths: Path | None

    @property
    def name(self) -> str:
        """That of its folder."""
        return self.home.name

    def pairs(self) -> Covisible:
        """:func:`covisible` of the reconstruction; ValueError names the scene."""
        try:
            return covisible(self.reconstruction)
        except ValueError as error:
            raise ValueError(f"scene {self.name}: {error}") from error

    def stored(self, image: int) -> tuple[Path, NDArray[np.float64]]:
        """The file of an image, and the intrinsics for its pixels as stored, which may be fewer than the model says."""
        path = self.images / self.reconstruction.names[image]
        if not path.is_file():
            raise ValueError(f"{self.home}: there is no image {path}")
        width, height = self.reconstruction.sizes[image].tolist()
        stored = header_size(path)
        if problem := aspect_problem(stored, (width, height)):
            raise ValueError(f"{path}: {problem}")
        return path, scaled_intrinsics(self.reconstruction.K[image], (width, height), stored)


def open_scenes(root: StrPath, images: StrPath | None = None, depths: StrPath | None = None) -> Iterator[Scene]:
    """The reconstructions at ``root``, with their folders."""
    folders = scene_folders(Path(root))
    if not folders:
        raise ValueError(
            f"{root}: no reconstruction: neither a COLMAP model (.bin or .txt; also in sparse/ or sparse/0/) nor a "
            f"{TRACKS}, here or in the folders below"
        )
    for folder in folders:
        below = "" if folder == Path(root) else folder.name
        tracks = tracks_file(folder)
        home = folder.parent if tracks == folder else folder
        maps = Path(depths) / below if depths is not None else home / DEPTHS
        scene = Scene(
            home=home,
            reconstruction=Reconstruction.load(tracks) if tracks else Reconstruction.read(folder),
            images=Path(images) / below if images is not None else home / "images",
            depths=maps if maps.is_dir() or depths is not None else None,
        )
        if scene.depths is not None and not scene.depths.is_dir():
            raise ValueError(f"{scene.depths}: no such folder of depth maps")
        if scene.depths is not None:
            check_pinholes(scene)
        yield scene


def check_pinholes(scene: Scene, what: str = "depth maps") -> None:
    """Refuse a scene if a camera has lens distortion; ``what`` cannot be had then."""
    if distorted := int(scene.reconstruction.distorted.sum()):
        raise ValueError(
            f"{scene.depths or scene.home}: {what} need pinhole cameras, but {distorted} of the model have lens "
            "distortion; use the folder that COLMAP's image_undistorter (pycolmap.undistort_images) wrote"
        )


def depth_path(depths: Path, name: str) -> Path:
    """Where the depth map of a photograph is, or would be."""
    return depths / f"{name}.geometric.bin"


def tracks_file(root: Path) -> Path | None:
    """The tracks at ``root``, a folder or the file itself, if they are there."""
    found = root if root.suffix == ".npz" else root / TRACKS
    return found if found.is_file() else None


def scene_folders(root: Path) -> list[Path]:
    """``root`` if it is a reconstruction, else the folders in it that are one."""
    if tracks_file(root) or model_folder(root):
        return [root]
    children = sorted(root.iterdir()) if root.is_dir() else []
    return [child for child in children if child.is_dir() and (tracks_file(child) or model_folder(child))]


def read_colmap_depth(path: StrPath) -> NDArray[np.float32]:
    """(H, W) of a depth map as COLMAP writes it, ``width&height&channels&`` and then the values; 0 for unknown."""
    data = Path(path).read_bytes()
    header = data[:64].split(b"&", 3)
    try:
        width, height, channels = (int(part) for part in header[:3])
    except ValueError:
        raise ValueError(f"{path}: not a depth map of COLMAP") from None
    start = sum(len(part) + 1 for part in header[:3])
    if channels != 1 or min(width, height) < 1 or len(data) - start != 4 * width * height:
        raise ValueError(
            f"{path}: a damaged depth map: {len(data) - start} bytes for {width} x {height} x {channels} values"
        )
    return np.frombuffer(data, "<f4", offset=start).reshape(height, width).astype(np.float32)


def write_colmap_depth(path: StrPath, depth: NDArray[np.float32]) -> None:
    """Write a (H, W) depth map, 0 for unknown, as COLMAP does; see :func:`read_colmap_depth`."""
    height, width = depth.shape
    with atomic_write(path) as temporary:
        temporary.write_bytes(f"{width}&{height}&1&".encode() + depth.astype("<f4").tobytes())


def aspect_problem(size: Size, expected: Sequence[int] | NDArray[np.int64]) -> str | None:
    """What is wrong with the size of a photograph or depth map that a camera of ``expected`` pixels took."""
    if abs(size[0] * expected[1] / (size[1] * expected[0]) - 1) < _ASPECT_SLACK:
        return None
    return f"{size[0]} x {size[1]} pixels, which is not the aspect of its camera's {expected[0]} x {expected[1]}"


# Pairs of images ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Covisible:
    """P pairs of images of a reconstruction that share tracks."""

    images: NDArray[np.int64]  # (P, 2), the first with the smaller index
    shared: NDArray[np.int64]  # (P,), how many tracks
    angles: NDArray[np.float64]  # (P,) degrees, mean angle at which the two cameras see them
    similarity: NDArray[np.complex128]  # (P,), scale and rotation of offsets x + iy from the first image to the second
    agreement: NDArray[np.float64]  # (P,) in [0, 1], how well a similarity explains where the tracks lie

    def __len__(self) -> int:
        return len(self.images)

    def usable(self) -> Covisible:
        """The pairs that training takes: near enough to each other, and with no doubt how they are rotated."""
        chosen = (self.shared >= MIN_SHARED) & (self.angles <= MAX_ANGLE) & (self.agreement >= MIN_AGREEMENT)
        return Covisible(*(getattr(self, field.name)[chosen] for field in fields(self)))


def covisible(reconstruction: Reconstruction) -> Covisible:
    """All pairs of images that share at least two tracks."""
    count = len(reconstruction)
    keys, sums = _pair_sums(reconstruction)
    shared, angle, x0, y0, x1, y1, spread0, spread1, dot, cross = sums[:, sums[0] >= 2]
    keys = keys[sums[0] >= 2]
    spread0 = spread0 - (x0**2 + y0**2) / shared
    spread1 = spread1 - (x1**2 + y1**2) / shared
    product = dot + 1j * cross - (x0 - 1j * y0) * (x1 + 1j * y1) / shared  # of conj(z0) z1, about the means
    with np.errstate(divide="ignore", invalid="ignore"):
        similarity = product / np.abs(product) * np.sqrt(spread1 / spread0)
        agreement = np.abs(product) / np.sqrt(spread0 * spread1)
    usable = np.isfinite(similarity) & (np.abs(similarity) > 0)
    return Covisible(
        images=np.stack([keys // max(count, 1), keys % max(count, 1)], axis=1),
        shared=shared.astype(np.int64),
        angles=angle / shared,
        similarity=np.where(usable, similarity, 1.0),
        agreement=np.where(usable, agreement, 0.0).clip(0, 1),
    )


def _pair_sums(reconstruction: Reconstruction) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(P,) pairs as ``first * N + second``, and (10, P) sums over the tracks they share; see :func:`covisible`."""
    image = np.repeat(np.arange(len(reconstruction)), np.diff(reconstruction.starts))
    order = np.lexsort((image, reconstruction.tracks))
    image, track, xy = image[order], reconstruction.tracks[order], reconstruction.xy[order].astype(np.float64)
    centres = -np.einsum("nji,nj->ni", reconstruction.poses[:, :, :3], reconstruction.poses[:, :, 3])  # (N, 3)
    rays = reconstruction.points[track] - centres[image]  # (O, 3)
    rays /= np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), 1e-12)
    keys, sums = [np.zeros(0, np.int64)], [np.zeros((10, 0))]
    for step in range(1, len(track)):
        a = np.flatnonzero(track[step:] == track[:-step])
        if not len(a):
            break
        b = a + step
        pair, inverse = np.unique(image[a] * len(reconstruction) + image[b], return_inverse=True)
        keys.append(pair)
        columns = _columns(xy[a], xy[b], rays[a], rays[b])
        sums.append(np.stack([np.bincount(inverse, column, len(pair)) for column in columns]))
        if sum(map(len, keys)) > MAX_PAIRS:
            pair, total = _added_up(keys, sums)
            if len(pair) > MAX_PAIRS:
                raise ValueError(f"its tracks join more than {MAX_PAIRS:,} pairs of images; divide it into scenes")
            keys, sums = [pair], [total]
    return _added_up(keys, sums)


def _added_up(
    keys: Sequence[NDArray[np.int64]], sums: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Every pair once."""
    pair, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    joined = np.concatenate(sums, axis=1)
    return pair, np.stack([np.bincount(inverse, row, len(pair)) for row in joined])


def _columns(
    xy0: NDArray[np.float64], xy1: NDArray[np.float64], rays0: NDArray[np.float64], rays1: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """What is summed over the tracks of a pair: their number, angles, and the moments of the two sets of pixels."""
    (x0, y0), (x1, y1) = xy0.T, xy1.T
    angle = np.degrees(np.arccos(np.clip((rays0 * rays1).sum(axis=1), -1, 1)))
    moments = [x0**2 + y0**2, x1**2 + y1**2, x0 * x1 + y0 * y1, x0 * y1 - y0 * x1]
    return [np.ones_like(x0), angle, x0, y0, x1, y1, *moments]
