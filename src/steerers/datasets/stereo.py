"""Depth maps for a reconstruction, by plane sweep: training then learns from every pixel, not from tracks alone.

A photograph is compared with those beside it on planes of several normals at many distances (Collins, 1996; Gallup et
al., 2007), by the correlation of small windows, which light does not change. What stays is what the depth maps of other
photographs confirm. It is plain PyTorch and made for a GPU, where a photograph takes a fraction of a second; COLMAP's
own stereo is more exact, but needs a build with CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers.datasets.depth import DepthCamera, DepthWarp
from steerers.datasets.pairs import check_options, pixel_grid
from steerers.datasets.reconstruction import (
    Covisible,
    Reconstruction,
    Scene,
    check_pinholes,
    depth_path,
    write_colmap_depth,
)
from steerers.geometry import to_normalised
from steerers.images.load import load_image

_SUPPORT, _ALIKE = 7, 0.02  # side of the window, and relative difference of depth, of what supports a pixel
_RANGE = (0.7, 1.5)  # how far before and behind the tracks planes reach, of the nearest and the farthest
_CHUNK = 1 << 26  # values of one tensor while planes are compared


@dataclass(frozen=True)
class StereoOptions:
    """How depth is found.

    Attributes:
        size: longest side of the depth maps, and of the photographs that they are made of, in pixels.
        planes: how many, of each normal.
        tilt: degrees by which planes are tilted to either side, right, left, up and down; with 0 they all face the
            photograph.
        views: with how many photographs one is compared at most.
        window: side of the windows that are correlated.
        correlation: the least, of the mean over the best ``agreeing`` photographs.
        agreeing: how many other depth maps must confirm a pixel, to ``reprojection`` pixels there and back; in a scene
            of few photographs as many as there are.
        reprojection: see ``agreeing``.
    """

    size: int = 512
    planes: int = 160
    tilt: float = 45.0
    views: int = 8
    window: int = 7
    correlation: float = 0.5
    agreeing: int = 2
    reprojection: float = 1.5

    def __post_init__(self) -> None:
        check_options(self, "be odd and positive", lambda value: value > 0 and value % 2 == 1, "window")
        check_options(self, "be at least 3", lambda value: value >= 3, "planes")
        check_options(self, "be positive", lambda value: value > 0, "size", "views", "agreeing", "reprojection")
        check_options(self, "be from 0 to 80", lambda value: 0 <= value <= 80, "tilt")


class _Photo(NamedTuple):
    """A photograph at the size of its depth map."""

    grey: Tensor  # (H, W) float32
    camera: DepthCamera  # without depth


def write_depth_maps(
    scene: Scene, options: StereoOptions | None = None, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, float]]:
    """Make the depth maps of a scene and write them into its folder for them, where training looks for them.

    Yields:
        A photograph, and which fraction of its pixels has a depth, as soon as its map is written.

    Raises:
        ValueError: if the scene has no such folder, a camera has lens distortion, or no photograph shares tracks with
            another.
    """
    if scene.depths is None:
        raise ValueError(f"scene {scene.name}: depths must say where its depth maps are to be written")
    for name, depth in depth_maps(scene, options, device):
        path = depth_path(scene.depths, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_colmap_depth(path, depth)
        yield name, float((depth > 0).mean())


def depth_maps(
    scene: Scene, options: StereoOptions | None = None, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(h, w) depth of every photograph of a scene by its name, 0 where it is not known."""
    reconstruction, device, options = scene.reconstruction, torch.device(device), options or StereoOptions()
    check_pinholes(scene)
    beside = neighbours(scene.pairs(), len(reconstruction), options.views)
    if not any(map(len, beside)):
        raise ValueError(f"scene {scene.name}: no photograph shares tracks with another one")
    photos = [_photo(scene, n, options.size, device) for n in range(len(reconstruction))]
    swept = [
        photo.camera
        if not len(others)
        else _swept(photo, [photos[k] for k in others], _range(reconstruction, n), options)
        for n, (photo, others) in enumerate(zip(photos, beside, strict=True))
    ]
    for name, camera, others in zip(reconstruction.names, swept, beside, strict=True):
        depth = _confirmed(camera, [swept[k] for k in others], options)
        yield name, depth.cpu().numpy()


def _photo(scene: Scene, image: int, size: int, device: torch.device) -> _Photo:
    reconstruction = scene.reconstruction
    loaded = load_image(scene.images / reconstruction.names[image], max_size=size)
    height, width = loaded.tensor.shape[1:]
    camera = DepthCamera.of(reconstruction, image).resized((width, height))
    return _Photo(loaded.tensor.to(device).mean(dim=0), camera)


def neighbours(pairs: Covisible, count: int, most: int) -> list[NDArray[np.int64]]:
    """Of each of ``count`` images those beside it that tell most of its depth, at most so many.

    They share many tracks, at an angle that is neither too small for depth nor too large for windows to look alike, and
    at a like scale.
    """
    apart = np.minimum(pairs.angles / 6, 1) * np.exp(-np.maximum(pairs.angles - 15, 0) / 15)
    worth = pairs.shared * apart * np.exp2(-np.abs(np.log2(np.abs(pairs.similarity))))
    worth = np.where(pairs.shared >= 10, worth, 0)
    found = []
    for image in range(count):
        rows = np.flatnonzero((pairs.images == image).any(axis=1) & (worth > 0))
        rows = rows[np.argsort(-worth[rows], kind="stable")][:most]
        found.append(pairs.images[rows].sum(axis=1) - image)
    return found


def _range(reconstruction: Reconstruction, image: int) -> tuple[float, float]:
    """The smallest and the largest inverse depth of an image's tracks, and some more to either side."""
    tracks = reconstruction.tracks[reconstruction.starts[image] : reconstruction.starts[image + 1]]
    R, t = reconstruction.poses[image, :, :3], reconstruction.poses[image, :, 3]
    depths = reconstruction.points[tracks] @ R[2] + t[2]
    near, far = np.percentile(depths[depths > 0], [1, 99])
    return float(1 / (_RANGE[1] * far)), float(1 / (_RANGE[0] * near))


# The sweep ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _swept(photo: _Photo, others: Sequence[_Photo], limits: tuple[float, float], options: StereoOptions) -> DepthCamera:
    """The camera of a photograph with the depth that its pixels most likely have; 0 where none is likely."""
    height, width = photo.grey.shape
    rays = _rays(photo)  # (3, H, W)
    steps = torch.linspace(limits[0], limits[1], options.planes, device=rays.device)
    best = torch.full((height, width), -1.0, device=rays.device)
    inverse = torch.zeros_like(best)
    for normal in _normals(options.tilt):
        slope = (rays * rays.new_tensor(normal).view(3, 1, 1)).sum(dim=0)  # inverse depth of the plane at distance 1
        scores = _scores(photo, others, rays, steps, slope, options)  # (P, H, W)
        score, place = _highest(scores)
        better = (score > best) & (slope > 0)
        found = slope * (limits[0] + place * (limits[1] - limits[0]) / (options.planes - 1))
        best, inverse = torch.where(better, score, best), torch.where(better, found, inverse)
    known = (best >= options.correlation) & (inverse > 0)
    depth = torch.where(known, 1 / torch.where(known, inverse, 1.0), 0.0)
    camera = photo.camera
    return DepthCamera(camera.size, camera.K, camera.pose, depth)


def _normals(tilt: float) -> list[tuple[float, float, float]]:
    """Of the planes, in the frame of the camera; they all have depth 1 on its axis."""
    slope = math.tan(math.radians(tilt))
    tilted = [(slope, 0.0, 1.0), (-slope, 0.0, 1.0), (0.0, slope, 1.0), (0.0, -slope, 1.0)]
    return [(0.0, 0.0, 1.0), *(tilted if tilt > 0 else [])]


def _rays(photo: _Photo) -> Tensor:
    """(3, H, W) points of depth 1 that the pixels of a photograph see."""
    pixels = F.pad(pixel_grid(photo.grey[None])[0], (0, 1), value=1.0).double()  # (H * W, 3)
    inverse: Tensor = torch.linalg.inv(photo.camera.K.double()).to(pixels)
    return (inverse @ pixels.mT).view(3, *photo.grey.shape).float()


def _scores(
    photo: _Photo, others: Sequence[_Photo], rays: Tensor, steps: Tensor, slope: Tensor, options: StereoOptions
) -> Tensor:
    """(P, H, W) how well the photograph agrees with others on planes of one normal, from -1 to 1.

    A pixel's score is the mean of its best correlations, with as many photographs as must agree later; others may not
    see what it shows.
    """
    chunk = max(1, _CHUNK // (len(others) * photo.grey.numel()))
    agreeing = min(options.agreeing, len(others))
    scores = []
    for some in steps.split(chunk):
        inverse = some.view(-1, 1, 1) * slope  # (P', H, W)
        each = torch.stack([_correlation(photo, other, rays, inverse, options.window) for other in others])
        mean = each.topk(agreeing, dim=0).values.mean(dim=0)
        scores.append(_smoothed(mean, 3))
    return torch.cat(scores)


def _correlation(photo: _Photo, other: _Photo, rays: Tensor, inverse: Tensor, window: int) -> Tensor:
    """(P, H, W) correlation of windows of a photograph with another one, at (P, H, W) inverse depths; -1 outside."""
    pose = other.camera.pose.double() @ torch.linalg.inv(photo.camera.pose.double())  # (4, 4)
    K = other.camera.K.double()
    turned = ((K @ pose[:3, :3]).float().to(rays) @ rays.flatten(1)).view(1, *rays.shape)  # (1, 3, H, W)
    shift = (K @ pose[:3, 3]).float().to(rays).view(1, 3, 1, 1)
    seen = turned + inverse[:, None] * shift  # (P, 3, H, W), in homogeneous pixels of the other photograph
    ahead = seen[:, 2] > 1e-6
    xy = (seen[:, :2] / torch.where(ahead, seen[:, 2], 1.0)[:, None]).permute(0, 2, 3, 1)  # (P, H, W, 2)
    height, width = other.grey.shape
    inside = ahead & (xy >= 0).all(dim=3) & (xy[..., 0] <= width - 1) & (xy[..., 1] <= height - 1)
    grid = to_normalised(xy, (width, height)).clamp(-2, 2)
    warped = F.grid_sample(other.grey.expand(len(grid), 1, -1, -1), grid, align_corners=False)[:, 0]  # (P, H, W)
    mean0, mean1 = _smoothed(photo.grey[None], window), _smoothed(warped, window)
    own = _smoothed(photo.grey[None].square(), window) - mean0.square()
    their = _smoothed(warped.square(), window) - mean1.square()
    both = _smoothed(photo.grey * warped, window) - mean0 * mean1
    correlation = both / (own.clamp(min=_FLAT) * their.clamp(min=_FLAT)).sqrt()
    return torch.where(_smoothed(inside.float(), window) > 0.99, correlation, -1.0)


_FLAT = 1e-5
"""The least variance of a window, of grey values from 0 to 1: flatter ones do not correlate with anything."""


def _smoothed(maps: Tensor, window: int) -> Tensor:
    """Means over windows of (P, H, W); beyond the border there is nothing."""
    rows, columns = (1, window), (window, 1)  # one after the other: 14 values are added, not 49
    for side in (rows, columns):
        maps = F.avg_pool2d(maps[:, None], side, 1, (side[0] // 2, side[1] // 2), count_include_pad=False)[:, 0]
    return maps


def _highest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(H, W) best of (P, H, W) scores, and at which plane: between planes by a parabola, from 0 to P - 1."""
    score, index = scores.max(dim=0)
    inner = index.clamp(1, len(scores) - 2)[None]
    before, at, after = (scores.gather(0, inner + step)[0] for step in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = torch.where(bend < 0, (before - after) / (2 * torch.where(bend < 0, bend, 1.0)), 0.0).clamp(-0.5, 0.5)
    return score, index + torch.where(index == inner[0], shift, 0.0)


# What other depth maps say --------------------------------------------------------------------------------------------


@torch.no_grad()
def _confirmed(camera: DepthCamera, others: Sequence[DepthCamera], options: StereoOptions) -> Tensor:
    """(H, W) depth of a camera where others and its own surroundings confirm it, else 0."""
    if camera.depth is None or not others:
        return torch.zeros(camera.size[1], camera.size[0])
    warp = DepthWarp([camera] * len(others), others, device=camera.depth.device)
    xy = pixel_grid(camera.depth.expand(len(others), -1, -1)).double()  # (V, H * W, 2)
    there, seen = warp.forward(xy)
    back, again = warp.backward(there)
    agree = seen & again & ((back - xy).norm(dim=2) <= options.reprojection)  # (V, H * W)
    enough = agree.sum(dim=0).view_as(camera.depth) >= min(options.agreeing, len(others))
    return _supported(torch.where(enough, camera.depth, 0.0))


def _supported(depth: Tensor) -> Tensor:
    """(H, W) depth without specks: what fewer than a third of the pixels around it continue is gone."""
    radius = _SUPPORT // 2
    around = F.unfold(F.pad(depth[None, None], (radius,) * 4), _SUPPORT)[0].view(-1, *depth.shape)  # (49, H, W)
    alike = ((around - depth).abs() <= _ALIKE * depth) & (around > 0)
    return torch.where(alike.float().mean(dim=0) >= 1 / 3, depth, 0.0)
