"""What COLMAP would leave of a rendered scene, whose geometry is known."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pycolmap
import torch
from torch import Tensor

from datasets.scenes import Camera, cast, look_at, project, render, street, unproject, visible

SCENE = street(3)
TARGET = (0, 0.2, 2)
CAMERAS = [
    look_at((-0.9, 0.1, -3.4), TARGET, roll=0.1),
    look_at((0.1, -0.4, -3.9), TARGET, roll=-0.2, focal=230),
    look_at((0.8, 0.0, -3.0), TARGET, roll=2.2, principal=(124.0, 83.5)),
    look_at((1.5, -0.2, -3.6), TARGET, roll=math.pi / 2, size=(200, 200)),
]
NAMES = [f"day/{n}.png" for n in range(len(CAMERAS))]


def points_of(count: int = 600, seed: int = 0) -> np.ndarray[Any, Any]:
    """(T, 3) points of the scene, as two of the cameras see it."""
    generator = np.random.default_rng(seed)
    found = []
    for camera in (CAMERAS[0], CAMERAS[3]):
        xy = generator.uniform(0, (camera.width - 1, camera.height - 1), (count // 2, 2))
        depth, surface = cast(SCENE, camera, xy)
        found.append(unproject(camera, xy[surface >= 0], depth[surface >= 0]))
    return np.concatenate(found)


def model_of(cameras: Sequence[Camera], distortion: float = 0.0) -> pycolmap.Reconstruction:
    """What COLMAP would have found, without error: pixels count from the corner, unused keypoints are there too."""
    points = points_of()
    seen = [visible(SCENE, camera, points, slack=1e-5) for camera in cameras]
    model = pycolmap.Reconstruction()
    for n, camera in enumerate(cameras):
        focal, cx, cy = camera.K[0, 0], camera.K[0, 2] + 0.5, camera.K[1, 2] + 0.5
        kind, params = (
            ("PINHOLE", [focal, focal, cx, cy]) if not distortion else ("SIMPLE_RADIAL", [focal, cx, cy, distortion])
        )
        size = {"width": camera.width, "height": camera.height}
        model.add_camera_with_trivial_rig(pycolmap.Camera(model=kind, params=params, camera_id=n + 1, **size))
        xy = np.concatenate([[(3.0, 4.0)], project(camera, points[seen[n]])[0] + 0.5])
        image = pycolmap.Image(name=NAMES[n], keypoints=xy, camera_id=n + 1, image_id=len(cameras) - n)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(np.column_stack([camera.R, camera.t])))
    place = [np.cumsum(own) for own in seen]  # the index among the keypoints of an image, behind the unused one
    for k, point in enumerate(points):
        track = [(len(cameras) - n, place[n][k]) for n in range(len(cameras)) if seen[n][k]]
        if len(track) >= 2:
            model.add_point3D(point, pycolmap.Track([pycolmap.TrackElement(*element) for element in track]))
    return model


@functools.cache
def rendered(index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Image and depth map of a camera."""
    return render(SCENE, CAMERAS[index])


def write_scene(root: Path, kind: str = "binary", *, depths: bool = False, distortion: float = 0.0) -> Path:
    """A COLMAP workspace: images, sparse, and depth maps where asked for."""
    model, sparse = model_of(CAMERAS, distortion), root / "sparse"
    sparse.mkdir(parents=True)
    (model.write_binary if kind == "binary" else model.write_text)(str(sparse))
    if kind == "old text":  # before COLMAP 3.12
        for name in ("rigs.txt", "frames.txt"):
            (sparse / name).unlink()
    for index, (name, camera) in enumerate(zip(NAMES, CAMERAS, strict=True)):
        image, depth = rendered(index)
        path = root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).save(path)
        if depths:
            path = root / "stereo" / "depth_maps" / f"{name}.geometric.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{camera.width}&{camera.height}&1&".encode() + depth.astype("<f4").tobytes())
    return root


def rotation_between(first: Tensor, second: Tensor) -> float:
    """Radians, counter-clockwise, by which (N, 2) points are rotated against each other."""
    a, b = (torch.complex(*(xy - xy.mean(dim=0)).double().T) for xy in (first, second))
    return -float((a.conj() * b).sum().angle())
