"""Photographs that were never taken: points in space, seen by cameras that are known, as keypoints and matches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from steerers.collection.georeference import Position
from steerers.collection.store import Collection, PairMatches
from steerers.features import Features
from steerers.images.exif import Taken
from steerers.matching.fingerprints import describe_strategy

SIZE = (640, 480)
FOCAL = 600.0


def look_at(centre: np.ndarray, target: np.ndarray, roll: float) -> np.ndarray:
    """(3, 4) from the world (z up) to a camera (x right, y down, z forward) rolled so that its image is rotated
    counter-clockwise by ``roll`` degrees."""
    forward = (target - centre) / np.linalg.norm(target - centre)
    up = np.array([0.0, 1.0, 0.0]) if abs(forward[2]) > 0.99 else np.array([0.0, 0.0, 1.0])
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    upright = np.stack([right, np.cross(forward, right), forward])
    c, s = math.cos(math.radians(roll)), math.sin(math.radians(roll))
    R = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ upright
    return np.column_stack([R, -R @ centre])


@dataclass(frozen=True, eq=False)
class Scene:
    """N cameras of one focal length and size that look at T points.

    Attributes:
        poses: (N, 3, 4) from the world to the cameras; ``rolls`` (N,) degrees that are in them.
    """

    poses: np.ndarray
    rolls: np.ndarray
    points: np.ndarray  # (T, 3)
    focal: float = FOCAL
    size: tuple[int, int] = SIZE
    intrinsics: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        K = np.diag([self.focal, self.focal, 1.0])
        K[:2, 2] = (np.array(self.size) - 1) / 2
        object.__setattr__(self, "intrinsics", K)

    @property
    def centres(self) -> np.ndarray:
        """(N, 3)."""
        return np.stack([-pose[:, :3].T @ pose[:, 3] for pose in self.poses])

    def project(self, camera: int) -> tuple[np.ndarray, np.ndarray]:
        """(T, 2) pixels of all points, and which of them are in the picture."""
        seen = (self.points @ self.poses[camera][:, :3].T + self.poses[camera][:, 3]) @ self.intrinsics.T
        xy = seen[:, :2] / np.where(np.abs(seen[:, 2:]) < 1e-9, 1e-9, seen[:, 2:])
        inside = (seen[:, 2] > 0.1) & (xy > 0).all(axis=1) & (xy < np.array(self.size) - 1).all(axis=1)
        return xy, inside


def make_scene(count: int = 6, *, seed: int = 0, points: int = 400, flat: bool = False, arc: float = 60.0) -> Scene:
    """Cameras on an arc above a bumpy (or flat) ground of 10 x 10 that all look at its middle, rolled at random."""
    rng = np.random.default_rng(seed)
    ground = rng.uniform(-5, 5, (points, 3)) * (1, 1, 0.0 if flat else 0.3)
    around = np.radians(np.linspace(0, arc, count))
    centres = np.stack([8 * np.cos(around), 8 * np.sin(around), np.full(count, 10.0)], axis=1)
    centres += rng.normal(0, 0.3, centres.shape)
    rolls = rng.uniform(-180, 180, count)
    poses = [look_at(centre, rng.normal(0, 0.3, 3), roll) for centre, roll in zip(centres, rolls, strict=True)]
    return Scene(np.stack(poses), rolls, ground)


def local_rotation(scene: Scene, first: int, second: int) -> float:
    """Degrees counter-clockwise by which the picture around the middle of the ground rotates between two cameras."""
    around = np.array([[0.1, 0, 0], [-0.1, 0, 0], [0, 0.1, 0], [0, -0.1, 0]])
    place = Scene(scene.poses, scene.rolls, around)
    offsets = []
    for camera in (first, second):
        xy, _ = place.project(camera)
        offsets.append(xy - xy.mean(axis=0))
    moved = offsets[0].T @ offsets[1]
    return math.degrees(math.atan2(moved[1, 0] - moved[0, 1], moved[0, 0] + moved[1, 1]))


@dataclass(frozen=True, eq=False)
class Keypoints:
    """What a scene looks like to a matcher: keypoints of every camera with the points that they are of."""

    xy: list[np.ndarray]
    ids: list[np.ndarray]


def detect(scene: Scene, *, noise: float = 0.3, seed: int = 0) -> Keypoints:
    """Keypoints of every camera, in an order of their own."""
    rng = np.random.default_rng(seed)
    found, ids = [], []
    for camera in range(len(scene.poses)):
        xy, inside = scene.project(camera)
        order = rng.permutation(np.flatnonzero(inside))
        found.append((xy[order] + rng.normal(0, noise, (len(order), 2))).astype(np.float32))
        ids.append(order)
    return Keypoints(found, ids)


def match(keypoints: Keypoints, first: int, second: int, *, wrong: float = 0.2, seed: int = 0) -> np.ndarray:
    """(K, 2) indices of matches, of which a fraction joins any two keypoints."""
    rng = np.random.default_rng([seed, first, second])
    _, own, other = np.intersect1d(keypoints.ids[first], keypoints.ids[second], return_indices=True)
    mixed = rng.random(len(own)) < wrong
    other[mixed] = rng.permutation(other[mixed])
    return np.stack([own, other], axis=1).astype(np.int32)


def make_collection(
    folder: Path,
    scenes: Sequence[Scene],
    *,
    focal: bool = False,
    camera: str = "",
    positions: Sequence[Position | None] | None = None,
    false_pairs: Sequence[tuple[int, int]] = (),
    max_size: int = 1024,
    prefix: str = "scene ",
    suffix: str = " é.jpg",
    seed: int = 0,
) -> Collection:
    """A collection of all cameras of some scenes, matched within each, as if their photographs had been taken.

    Args:
        focal: whether the photographs say their focal length.
        positions: of the photographs, the scenes one after the other.
        false_pairs: photographs, numbered through, whose matches say a rotation that is wrong.
    """
    counts = [len(scene.poses) for scene in scenes]
    names = [f"{prefix}{chr(97 + s)}/{k:02d}{suffix}" for s, count in enumerate(counts) for k in range(count)]
    photos = folder.with_name(f"{folder.name}-photos")
    for name in names:
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).touch()
    collection = Collection.create(folder, photos, "upright-sift", max_size=max_size)
    found = [detect(scene, seed=seed + s) for s, scene in enumerate(scenes)]
    with collection.write_features(0) as writer:
        for index, name in enumerate(names):
            s, k = _place(counts, index)
            xy = torch.from_numpy(found[s].xy[k])
            described = Features(xy, torch.zeros(len(xy), 128), torch.ones(len(xy)), scenes[s].size, "upright-sift")
            position = None if positions is None else positions[index]
            writer.add(name, described, Taken(scenes[s].size, scenes[s].focal if focal else None, camera, position))
    _match_all(collection, scenes, found, names, counts, false_pairs)
    collection.close()
    return Collection.open(folder)


def _place(counts: Sequence[int], index: int) -> tuple[int, int]:
    """The scene, and the camera in it, of a photograph."""
    for scene, count in enumerate(counts):
        if index < count:
            return scene, index
        index -= count
    raise IndexError(index)


def _match_all(
    collection: Collection,
    scenes: Sequence[Scene],
    found: Sequence[Keypoints],
    names: Sequence[str],
    counts: Sequence[int],
    false_pairs: Sequence[tuple[int, int]],
) -> None:
    rng = np.random.default_rng(0)
    pairs: dict[tuple[str, str], PairMatches] = {}
    for i, j in combinations(range(len(names)), 2):
        (s, a), (t, b) = _place(counts, i), _place(counts, j)
        if s != t:
            continue
        indices, angle = match(found[s], a, b), local_rotation(scenes[s], a, b)
        angle = angle + float(rng.uniform(90, 270)) if (i, j) in false_pairs else angle
        angles = (angle + rng.normal(0, 4, len(indices))).astype(np.float32)
        pairs[names[i], names[j]] = PairMatches(indices, np.ones(len(indices), np.float32), angle, angles)
    collection.set_pairs(pairs)
    collection.set_matching(describe_strategy(collection.load_pipeline().strategy))
    collection.plan_matches()
    for number in range(len(collection.match_shards())):
        with collection.write_matches(number) as writer:
            for pair in collection.pairs_in(number):
                writer.add(pair, pairs[pair])
