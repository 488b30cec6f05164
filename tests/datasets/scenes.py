"""Small synthetic scenes with exact geometry: textured rectangles and boxes, pinhole cameras, depth without error.

Everything is NumPy in float64. World and camera axes are those of computer vision (x right, y down, z ahead), a camera
takes a world point X to ``K (R X + t)``, and pixels have the centre of the top-left one at (0, 0). The depth of a pixel
is the z of what its centre sees, and 0 where it sees nothing.

    scene = street()
    first, second = look_at((0, 0, -4), (0, 0, 2)), look_at((1, -0.3, -4), (0, 0, 2), roll=0.3)
    image, depth = render(scene, first)  # (H, W, 3) uint8, (H, W) float32
    xy1, seen = warp(scene, first, second, xy0)  # where points of the first image lie in the second, exactly
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera: intrinsics ``K`` (3, 3), pose ``X_camera = R X + t``, and the size of its image."""

    K: Array
    R: Array
    t: Array
    width: int
    height: int

    @property
    def centre(self) -> Array:
        """(3,) where the camera stands."""
        return np.asarray(-self.R.T @ self.t)

    @property
    def pose(self) -> Array:
        """(4, 4) from the world to the camera."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self.R, self.t
        return pose

    @property
    def grid(self) -> Array:
        """(H * W, 2) centres of all pixels, row by row."""
        xs, ys = np.meshgrid(np.arange(self.width), np.arange(self.height))
        return np.stack([xs, ys], axis=-1).reshape(-1, 2).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Rectangle:
    """``corner + a side0 + b side1`` for a and b in [0, 1], seen from both sides, with a texture of its own."""

    corner: Array  # (3,)
    side0: Array  # (3,)
    side1: Array  # (3,), at a right angle to side0
    seed: int = 0
    detail: float = 3.0
    """Largest frequency of the texture, in cycles a unit of length."""

    def colours(self, across: Array) -> Array:
        """(N, 3) in [0, 1] at (N, 2) lengths along the sides: a band-limited pattern, so that views do not alias."""
        generator = np.random.default_rng(self.seed)
        colours = np.empty((len(across), 3))
        base = generator.uniform(-0.6, 0.6, 3)
        shared = _pattern(across, self.detail, generator)
        for channel in range(3):
            own = _pattern(across, self.detail / 2, generator)
            colours[:, channel] = 0.5 + 0.5 * np.tanh(base[channel] + shared + 0.5 * own)
        return colours


@dataclass(frozen=True, eq=False)
class Scene:
    """Rectangles in space; what lies behind them all is black, at no depth."""

    surfaces: tuple[Rectangle, ...]


def _pattern(across: Array, detail: float, generator: np.random.Generator) -> Array:
    """(N,) a sum of plane waves of up to ``detail`` cycles a unit."""
    total = np.zeros(len(across))
    for frequency in np.geomspace(detail / 8, detail, 12):
        direction, phase = generator.uniform(0, 2 * np.pi, 2)
        along = across @ np.array([np.cos(direction), np.sin(direction)])
        total += 0.45 * np.cos(2 * np.pi * frequency * along + phase)
    return total


# Making scenes and cameras --------------------------------------------------------------------------------------------


def rectangle(centre: ArrayLike, side0: ArrayLike, side1: ArrayLike, seed: int = 0, detail: float = 3.0) -> Rectangle:
    """A rectangle about ``centre``."""
    first, second = np.asarray(side0, np.float64), np.asarray(side1, np.float64)
    return Rectangle(np.asarray(centre, np.float64) - (first + second) / 2, first, second, seed, detail)


def box(
    centre: ArrayLike, size: ArrayLike, rotation: float = 0.0, seed: int = 0, detail: float = 3.0
) -> list[Rectangle]:
    """The six faces of a box of ``size`` (x, y, z), rotated by ``rotation`` radians about the vertical."""
    c, s = np.cos(rotation), np.sin(rotation)
    axes = (np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) * np.asarray(size, np.float64)).T  # rows: sides of the box
    faces: list[Rectangle] = []
    for k in range(3):
        for sign in (-1, 1):
            middle = np.asarray(centre, np.float64) + sign * axes[k] / 2
            faces.append(rectangle(middle, axes[(k + 1) % 3], axes[(k + 2) % 3], seed + len(faces), detail))
    return faces


def street(seed: int = 0) -> Scene:
    """A wall, a floor and two boxes before them, about 6 units before a camera at (0, 0, -4); sky above the wall."""
    wall = rectangle((0, 0, 4), (14, 0, 0), (0, 5, 0), 100 * seed)
    floor = rectangle((0, 1.5, 0), (14, 0, 0), (0, 0, 8), 100 * seed + 1)
    near = box((-0.9, 0.5, 0.2), (1.1, 1.6, 1.0), 0.4, 100 * seed + 10)
    far = box((1.2, 0.3, 1.8), (1.3, 2.4, 0.9), -0.5, 100 * seed + 20)
    return Scene((wall, floor, *near, *far))


def look_at(
    eye: ArrayLike,
    target: ArrayLike,
    *,
    focal: float = 200.0,
    size: tuple[int, int] = (240, 180),
    roll: float = 0.0,
    principal: tuple[float, float] | None = None,
) -> Camera:
    """A camera at ``eye`` that looks at ``target``, rolled by ``roll`` radians; ``size`` is (width, height)."""
    ahead = np.asarray(target, np.float64) - np.asarray(eye, np.float64)
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross([0.0, 1.0, 0.0], ahead)
    right = right / np.linalg.norm(right)
    upright = np.stack([right, np.cross(ahead, right), ahead])
    c, s = np.cos(roll), np.sin(roll)
    R = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ upright
    cx, cy = principal or ((size[0] - 1) / 2, (size[1] - 1) / 2)
    K = np.array([[focal, 0, cx], [0, focal, cy], [0, 0, 1]])
    return Camera(K, R, -R @ np.asarray(eye, np.float64), *size)


# Seeing ---------------------------------------------------------------------------------------------------------------


def cast(scene: Scene, camera: Camera, xy: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """What (N, 2) pixels see first: (N,) depths, infinite for nothing, and (N,) surfaces, -1 for nothing."""
    rays = _rays(camera, xy) @ camera.R  # (N, 3), in the world, of depth 1
    depth = np.full(len(rays), np.inf)
    surface = np.full(len(rays), -1)
    for index, rect in enumerate(scene.surfaces):
        normal = np.cross(rect.side0, rect.side1)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = ((rect.corner - camera.centre) @ normal) / (rays @ normal)
            inside = _inside(rect, camera.centre + reach[:, None] * rays)
        nearer = inside & (reach > 1e-9) & (reach < depth)
        depth[nearer], surface[nearer] = reach[nearer], index
    return depth, surface


def _inside(rect: Rectangle, points: Array) -> NDArray[np.bool_]:
    a, b = ((points - rect.corner) @ side / (side @ side) for side in (rect.side0, rect.side1))
    return np.asarray((a >= 0) & (a <= 1) & (b >= 0) & (b <= 1))


def _rays(camera: Camera, xy: ArrayLike) -> Array:
    """(N, 3) points of depth 1 before the camera, in its frame."""
    pixels = np.asarray(xy, np.float64).reshape(-1, 2)
    return np.asarray(np.column_stack([pixels, np.ones(len(pixels))]) @ np.linalg.inv(camera.K).T)


def render(scene: Scene, camera: Camera) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """The (H, W, 3) image and the (H, W) depth map; black and 0 where the camera sees nothing."""
    depth, surface = cast(scene, camera, camera.grid)
    points = unproject(camera, camera.grid, np.where(surface >= 0, depth, 1.0))
    image = np.zeros((len(depth), 3))
    for index, rect in enumerate(scene.surfaces):
        hit = surface == index
        offsets = points[hit] - rect.corner
        lengths = [offsets @ side / np.linalg.norm(side) for side in (rect.side0, rect.side1)]
        image[hit] = rect.colours(np.column_stack(lengths))
    shape = (camera.height, camera.width)
    known = np.where(surface >= 0, depth, 0.0).astype(np.float32)
    return (255 * image).round().astype(np.uint8).reshape(*shape, 3), known.reshape(shape)


def unproject(camera: Camera, xy: ArrayLike, depth: ArrayLike) -> Array:
    """(N, 3) world points at (N, 2) pixels and their (N,) depths."""
    inside = _rays(camera, xy) * np.asarray(depth, np.float64).reshape(-1, 1)
    return np.asarray((inside - camera.t) @ camera.R)


def project(camera: Camera, points: ArrayLike) -> tuple[Array, Array]:
    """(N, 2) pixels and (N,) depths of (N, 3) world points; pixels behind the camera are NaN."""
    inside = np.asarray(points, np.float64).reshape(-1, 3) @ camera.R.T + camera.t
    ahead = inside[:, 2] > 1e-9
    image = (inside / np.where(ahead, inside[:, 2], np.nan)[:, None]) @ camera.K.T
    return image[:, :2], inside[:, 2]


def visible(scene: Scene, camera: Camera, points: ArrayLike, slack: float = 1e-6) -> NDArray[np.bool_]:
    """(N,) whether (N, 3) world points lie within the centres of the image's outer pixels, with nothing before them."""
    xy, depth = project(camera, points)
    with np.errstate(invalid="ignore"):
        inside = ((xy > -1e-9) & (xy < np.array([camera.width, camera.height]) - 1 + 1e-9)).all(axis=1)
    first, _ = cast(scene, camera, np.where(np.asarray(inside)[:, None], xy, 0.0))
    return np.asarray(inside & (depth > 0) & (depth <= first * (1 + slack)))


def warp(scene: Scene, source: Camera, target: Camera, xy: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Where (N, 2) pixels of one image lie in another, and whether they are seen there; NaN where they see nothing."""
    depth, surface = cast(scene, source, xy)
    points = unproject(source, xy, np.where(surface >= 0, depth, np.nan))
    known = surface >= 0
    seen = np.zeros(len(points), dtype=bool)
    seen[known] = visible(scene, target, points[known])
    return project(target, points)[0], seen


def cameras_around(
    count: int, *, target: ArrayLike = (0, 0.2, 2), radius: float = 5.5, spread: float = 0.6, seed: int = 0, **how: Any
) -> Sequence[Camera]:
    """Cameras on an arc before ``target``, each a little higher or lower and rolled; ``how`` goes to look_at."""
    generator = np.random.default_rng(seed)
    cameras = []
    for angle in np.linspace(-spread, spread, count):
        lift, roll = generator.uniform(-0.6, 0.4), generator.uniform(-0.25, 0.25)
        eye = np.asarray(target) + radius * np.array([np.sin(angle), 0, -np.cos(angle)]) + (0, lift, 0)
        cameras.append(look_at(eye, target, roll=roll, **how))
    return cameras


# MegaDepth's layout ---------------------------------------------------------------------------------------------------


def overlap(scene: Scene, first: Camera, second: Camera) -> float:
    """The smaller fraction of what one camera sees that the other sees too."""
    fractions = []
    for source, target in ((first, second), (second, first)):
        xy = source.grid.reshape(source.height, source.width, 2)[::6, ::6].reshape(-1, 2)
        known = cast(scene, source, xy)[1] >= 0
        fractions.append(float(warp(scene, source, target, xy)[1].sum() / max(1, known.sum())))
    return min(fractions)


def write_megadepth(root: Path, name: str, scene: Scene, cameras: Sequence[Camera]) -> dict[str, Any]:
    """Write a scene as MegaDepth and DKM have it: photographs, depth maps, and the description, which is returned.

    The first entry of its lists is a photograph without data, as those have that MegaDepth gives no depth.
    """
    import h5py

    images = Path("Undistorted_SfM") / name / "images"
    depths = Path("phoenix/S6/zl548/MegaDepth_v1") / name / "dense0" / "depths"
    for folder in (images, depths, Path("prep_scene_info")):
        (root / folder).mkdir(parents=True, exist_ok=True)
    info: dict[str, list[Any]] = {"image_paths": [None], "depth_paths": [None], "intrinsics": [None], "poses": [None]}
    for n, camera in enumerate(cameras):
        image, depth = render(scene, camera)
        info["image_paths"].append(str(images / f"{n}.jpg"))
        info["depth_paths"].append(str(depths / f"{n}.h5"))
        info["intrinsics"].append(camera.K + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0.0]]))  # COLMAP's pixels
        info["poses"].append(camera.pose)
        PIL.Image.fromarray(image).save(root / info["image_paths"][-1], quality=95, subsampling=0)
        with h5py.File(root / info["depth_paths"][-1], "w") as file:
            file.create_dataset("depth", data=depth, compression="gzip")
    pairs = [(i, j) for j in range(len(cameras)) for i in range(j)]
    described: dict[str, Any] = {key: objects(values) for key, values in info.items()}
    described["pairs"] = np.array(pairs).reshape(-1, 2) + 1
    described["overlaps"] = np.array([overlap(scene, cameras[i], cameras[j]) for i, j in pairs])
    save_scene_info(root, name, described)
    return described


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """A one-dimensional array of objects."""
    array = np.empty(len(values), dtype=object)
    for n, value in enumerate(values):
        array[n] = value
    return array


def save_scene_info(root: Path, name: str, described: Any) -> Path:
    """Write what :func:`write_megadepth` returned, changed or not, as DKM does."""
    path = root / "prep_scene_info" / f"{name}.npy"
    np.save(path, described, allow_pickle=True)
    return path


def write_detections(root: Path, name: str, scene: Scene, cameras: Sequence[Camera], count: int = 60) -> Array:
    """Write where each camera sees points of the scene, as DeDoDe has it; ``count`` points a camera are returned."""
    generator, found = np.random.default_rng(0), []
    for camera in cameras:
        xy = generator.uniform(1, (camera.width - 2, camera.height - 2), (4 * count, 2))
        depth, surface = cast(scene, camera, xy)
        found.append(unproject(camera, xy[surface >= 0], depth[surface >= 0])[:count])
    points = np.concatenate(found)
    seen: dict[int, Any] = {0: np.zeros((0, 3), np.float32)}  # the photograph without data
    for n, camera in enumerate(cameras):
        ids = np.flatnonzero(visible(scene, camera, points, slack=1e-5))
        xy = project(camera, points[ids])[0] + 0.5  # COLMAP's pixels
        seen[n + 1] = np.column_stack([xy, ids]).astype(np.float32)
    path = root / "prep_scene_info" / "detections" / f"detections_{name}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, seen, allow_pickle=True)  # type: ignore[arg-type]
    return points
