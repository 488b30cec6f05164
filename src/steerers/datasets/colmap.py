"""Pairs from COLMAP reconstructions: photographs that see the same points, and the tracks of those points.

A reconstruction is read with pycolmap (text or binary), or, on a machine without it, from the ``tracks.npz`` that
:func:`export` writes. Tracks give correspondences at their observations; where there are depth maps too, COLMAP's or
those of :mod:`~steerers.datasets.stereo`, these give them everywhere.

Photographs of a reconstruction need not stand upright: a drone comes back over its own path. The second of a pair is
therefore rotated so that the tracks lie as in the first, and the rotations that training asks for are all that is left.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers._files import StrPath
from steerers.datasets.depth import DepthCamera, DepthWarp
from steerers.datasets.pairs import (
    PairBatch,
    ViewWarp,
    covered,
    generator_of,
    mix,
    pad_points,
    points_in_views,
    uniforms,
)
from steerers.datasets.photos import Photo, PhotoStore, few, held_out
from steerers.datasets.reconstruction import (
    MAX_ANGLE,
    MIN_SHARED,
    TRACKS,
    Covisible,
    aspect_problem,
    depth_path,
    open_scenes,
    read_colmap_depth,
    scene_folders,
)
from steerers.datasets.views import (
    Views,
    draw_homographies,
    draw_whole,
    relight_views,
    render_views,
    rotations_about_middle,
)
from steerers.geometry import Size, scaling, transform_points
from steerers.images.decode import header_size
from steerers.images.load import load_image, to_uint8

RADIUS = 3.0
"""How near to the observation of a track, in pixels of the photograph, a point follows it."""
ANCHORS = 512
"""How many tracks a pair gives as :attr:`PairBatch.anchors <steerers.datasets.pairs.PairBatch>`, at most."""

_AIM, _ANCHORS = 21, 22  # streams of a seed
_FAR = 1e6  # pixels: nowhere near an observation


class _Side(NamedTuple):
    """A photograph of a pair, in pixels as decoded."""

    photo: Tensor  # (3, H, W) uint8
    camera: DepthCamera
    points: Tensor  # (T, 2) float64, of the tracks that both photographs see
    observed: Tensor  # (N, 2) float64, of all tracks that it sees


class _Read(NamedTuple):
    """A pair as :meth:`Colmap.read` gives it."""

    sides: tuple[_Side, _Side]
    linear: Tensor  # (2, 2) float64
    rotation: float  # radians, counter-clockwise, from the first photograph to the second


class _Photos:
    """The photographs of a source, decoded when they are first asked for, by whichever thread asks first."""

    def __init__(self, paths: Sequence[Path], expected: Sequence[Size], max_size: int, cache: Path | None) -> None:
        self.paths, self.expected, self.max_size, self.cache = paths, expected, max_size, cache
        self._lock = Lock()
        self._store: PhotoStore | None = None

    @property
    def store(self) -> PhotoStore:
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    def _open(self) -> PhotoStore:
        store = PhotoStore.open([Photo(path) for path in self.paths], self.max_size, self.cache)
        for path, size, expected in zip(self.paths, store.sizes, self.expected, strict=True):
            if problem := aspect_problem(size, expected):
                raise ValueError(f"{path}: {problem}")
        return store


class Colmap:
    """A :class:`~steerers.datasets.pairs.PairSource` of pairs of photographs that share tracks.

    The photographs are decoded once, by :meth:`open` or with the first pair that is read. They may be smaller than the
    cameras of the model say, as long as their aspect is the same. The ``detections`` of a batch are all observations of
    both photographs; where there are depth maps, ``known`` says where its views have depth.

    Attributes:
        root: as given.
        weights: (P,): a scene of n pairs counts as n^0.25, as in the sampling of MegaDepth. Within it, the weight of a
            pair falls with the square root of the number of pairs that each of its images is in, and rises with the
            angle between its cameras and with its change of scale, up to seven times that of two equal photographs.
        dense: whether every photograph of the pairs has a depth map. It is decided once, so that all batches of the
            source, in all processes, are of one kind.

    Args:
        root: a reconstruction: a folder with a COLMAP model (in it, or in ``sparse/`` or ``sparse/0/``) or with the
            ``tracks.npz`` of :func:`export`, which goes first, or that file; or a folder of such folders, of one scene
            each.
        images: where the photographs are; ``root/images`` by default. For several scenes, a folder with one for each.
        depths: where COLMAP's depth maps are; by default ``root/stereo/depth_maps``, if it is there.
        views: how they are drawn from the photographs; squashed, they show them whole.
        max_size: the longest side to which photographs are shrunk.
        cache: a folder in which the decoded photographs are kept.

    Raises:
        ImportError: if a COLMAP model is to be read and pycolmap is not installed.
        ValueError: if there is no reconstruction, a photograph is missing, or no pair is left.
    """

    def __init__(
        self,
        root: StrPath,
        *,
        images: StrPath | None = None,
        depths: StrPath | None = None,
        views: Views,
        max_size: int = 768,
        cache: Path | None = None,
    ) -> None:
        self.root, self.views = Path(root), views
        self.scenes = list(open_scenes(root, images, depths))
        self.pairs = [scene.pairs().usable() for scene in self.scenes]
        self.table = np.array([(s, p) for s, table in enumerate(self.pairs) for p in range(len(table))], np.int64)
        if not len(self.table):
            raise ValueError(
                f"{root}: no two photographs share {MIN_SHARED} tracks at an angle of 0 to {MAX_ANGLE:g} degrees that "
                "one rotation explains; reconstruct with more features, or from more photographs"
            )
        self.weights = torch.from_numpy(np.concatenate([_weigh(table) for table in self.pairs]))
        self._find_files(max_size, cache)

    def _find_files(self, max_size: int, cache: Path | None) -> None:
        """Find the photographs of all pairs and their depth maps, and where in the store each one will be."""
        used = [(s, int(n)) for s, table in enumerate(self.pairs) for n in np.unique(table.images)]
        missing = [str(path) for path in (self._path(s, n) for s, n in used) if not path.is_file()]
        if missing:
            raise ValueError(f"{len(missing)} photographs are missing: {few(missing)}; images says where they are")
        expected = [_pair_of(self.scenes[s].reconstruction.sizes[n]) for s, n in used]
        self._photos = _Photos([self._path(s, n) for s, n in used], expected, max_size, cache)
        self._stored = {key: index for index, key in enumerate(used)}
        self._depths = {(s, n): path for s, n in used if (path := self._depth_file(s, n)) is not None}
        self.dense = len(self._depths) == len(used)

    @property
    def store(self) -> PhotoStore:
        """The decoded photographs, which the first call decodes."""
        return self._photos.store

    def open(self) -> None:
        """Decode the photographs now.

        Raises:
            ValueError: if one cannot be read, or its aspect is not that of its camera.
        """
        _ = self.store

    def _depth_file(self, scene: int, image: int) -> Path | None:
        _, reconstruction, _, depths = self.scenes[scene]
        path = depths and depth_path(depths, reconstruction.names[image])
        return path if path and path.is_file() else None

    def _path(self, scene: int, image: int) -> Path:
        return self.scenes[scene].images / self.scenes[scene].reconstruction.names[image]

    def __len__(self) -> int:
        return len(self.table)

    def names(self, index: int) -> tuple[str, str, str]:
        """The scene and the two photographs of a pair."""
        scene, first, second, _ = self._pair(index)
        reconstruction = self.scenes[scene].reconstruction
        return self.scenes[scene].name, reconstruction.names[first], reconstruction.names[second]

    def split(self, fraction: float) -> tuple[Colmap, Colmap]:
        """Pairs to train on, and those with a photograph of the ``fraction`` that is held out, chosen by name."""
        out = np.array([any(held_out(name, fraction) for name in self.names(k)[1:]) for k in range(len(self))])
        if out.all() or not out.any():
            raise ValueError(f"fraction {fraction} holds out {'all' if out.all() else 'none'} of {len(self)} pairs")
        return self._subset(~out), self._subset(out)

    def _subset(self, chosen: NDArray[np.bool_]) -> Colmap:
        subset = copy.copy(self)
        subset.table, subset.weights = self.table[chosen], self.weights[torch.from_numpy(chosen)]
        return subset

    def _pair(self, index: int) -> tuple[int, int, int, complex]:
        """Scene, two images, and the similarity between them."""
        scene, row = self.table[index]
        first, second = self.pairs[scene].images[row]
        return int(scene), int(first), int(second), complex(self.pairs[scene].similarity[row])

    def read(self, index: int) -> _Read:
        """Pair ``index``: photographs, shared tracks, and cameras, with their depth maps where there are some."""
        scene, first, second, similarity = self._pair(index)
        shared = self.scenes[scene].reconstruction.shared(first, second)
        side0, to_photo0 = self._side(scene, first, shared[0])
        side1, to_photo1 = self._side(scene, second, shared[1])
        linear = torch.tensor([[similarity.real, -similarity.imag], [similarity.imag, similarity.real]]).double()
        linear = to_photo1[:2, :2] @ linear @ torch.linalg.inv(to_photo0[:2, :2])
        return _Read((side0, side1), linear, rotation=-float(np.angle(similarity)))  # y points down

    def _side(self, scene: int, image: int, shared: NDArray[np.float32]) -> tuple[_Side, Tensor]:
        """A photograph as decoded, and the (3, 3) map to its pixels from those of the reconstruction."""
        reconstruction, stored = self.scenes[scene].reconstruction, self._stored[scene, image]
        path = self._depths.get((scene, image))
        depth = None if path is None else torch.from_numpy(read_colmap_depth(path))
        taken = DepthCamera.of(reconstruction, image, depth)
        camera = taken.resized(self.store.sizes[stored])
        to_photo = scaling(taken.size, camera.size)
        points, observed = (
            transform_points(to_photo, torch.from_numpy(xy).double())
            for xy in (shared, reconstruction.observations(image))
        )
        return _Side(self.store[stored], camera, points, observed), to_photo

    def make(
        self, read: Sequence[Any], rotations0: Tensor, rotations1: Tensor, seeds: Sequence[int], device: torch.device
    ) -> PairBatch:
        """Views of both photographs of each pair; see :class:`~steerers.datasets.pairs.PairSource`."""
        pairs: Sequence[_Read] = read
        sides = [[pair.sides[side] for pair in pairs] for side in (0, 1)]
        points = [[own.points for own in side] for side in sides]
        views, squashed = [], self.views.resize == "squash"
        lean = torch.tensor([pair.rotation for pair in pairs], dtype=torch.float64)
        for number, (side, rotations) in enumerate(zip(sides, (rotations0, rotations1), strict=True)):
            own_seeds, sizes = [mix(seed, number) for seed in seeds], [own.camera.size for own in side]
            maps = (draw_whole if squashed else draw_homographies)(sizes, self.views, own_seeds)
            if number == 1:
                maps = rotations_about_middle(self.views.size, -lean) @ maps
            if not squashed:
                maps = aim(maps, sizes, draw_targets(points[number], seeds), self.views.size, own_seeds)
            photos = [own.photo.to(device, non_blocking=True) for own in side]
            images, masks, from_photos = render_views(photos, maps, rotations, self.views.size, own_seeds)
            seen = points_in_views([own.observed for own in side], from_photos, device)
            views.append((relight_views(images, self.views, own_seeds), masks, from_photos, seen, images))
        (images0, masks0, from0, seen0, plain0), (images1, masks1, from1, seen1, plain1) = views
        linear = torch.stack([pair.linear for pair in pairs]).to(device)
        depth = _depth_warp(sides, device) if self.dense else None
        warp = ViewWarp(from0, from1, masks0, masks1, depth or _track_warp(sides, linear, device))
        anchors = draw_anchors(points, warp, ANCHORS, seeds, device)
        rotated = (rotations0.to(device), rotations1.to(device))
        known = None if depth is None else depth.known_in(warp)
        batch = PairBatch(images0, images1, masks0, masks1, warp, *rotated, unchanged=(plain0, plain1))
        return replace(batch, anchors=anchors, dense=self.dense, detections=(seen0, seen1), known=known)


def _depth_warp(sides: Sequence[Sequence[_Side]], device: torch.device) -> DepthWarp:
    """Between the photographs, by their depth maps alone: it is asked for every pixel, of which hardly one is nearer to
    a track, and the distances to all tracks would take seconds."""
    first, second = ([own.camera for own in side] for side in sides)
    return DepthWarp(first, second, device=device)


def _track_warp(sides: Sequence[Sequence[_Side]], linear: Tensor, device: torch.device) -> TrackWarp:
    """Between the photographs, by their tracks, and by their depth maps where a pair has both."""
    both = any(a.camera.depth is not None and b.camera.depth is not None for a, b in zip(*sides, strict=True))
    points0, points1 = (pad_points([own.points for own in side]).to(device) for side in sides)
    return TrackWarp(points0, points1, linear, RADIUS, _depth_warp(sides, device) if both else None)


def _weigh(table: Covisible) -> NDArray[np.float64]:
    """(P,) weights of the pairs of a scene; see :class:`Colmap`."""
    degree = np.bincount(table.images.ravel()).astype(np.float64)
    hard = (table.angles / 30 + np.abs(np.log2(np.abs(table.similarity)))).clip(0, 1.8)
    weights = (0.3 + hard) / np.sqrt(degree[table.images].prod(axis=1))
    return np.asarray(weights * (len(table) ** 0.25 / max(weights.sum(), 1e-12)))


def _pair_of(size: NDArray[np.int64]) -> Size:
    return int(size[0]), int(size[1])


# Tracks between views -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrackWarp:
    """The warp that tracks give, in pixels of the photographs: known within ``radius`` of an observation, else not.

    A point goes where the nearest observation of its photograph goes, and its offset from it as ``linear`` says, which
    is the scale and the rotation of the pair as a whole.

    Attributes:
        points0: (B, T, 2) observations in the first photographs, NaN where a pair has fewer; ``points1`` in the second.
        linear: (B, 2, 2), from offsets in the first photographs to offsets in the second.
        radius: pixels of the photograph that a point comes from.
        dense: a warp that goes before that of the tracks wherever it is valid.
    """

    points0: Tensor
    points1: Tensor
    linear: Tensor
    radius: float
    dense: DepthWarp | None = None

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """First photographs to second; see :class:`~steerers.datasets.pairs.Warp`."""
        return self._warp(xy, self.points0, self.points1, self.linear, self.dense and self.dense.forward)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Second photographs to first."""
        linear = torch.linalg.inv(self.linear)
        return self._warp(xy, self.points1, self.points0, linear, self.dense and self.dense.backward)

    def _warp(self, xy: Tensor, source: Tensor, target: Tensor, linear: Tensor, first: Any) -> tuple[Tensor, Tensor]:
        if not source.shape[1]:
            moved, seen = torch.full_like(xy, torch.nan), torch.zeros_like(xy[..., 0], dtype=torch.bool)
        else:
            moved, seen = self._nearest(xy, source.to(xy), target.to(xy), linear.to(xy))
        if first is None:
            return moved, seen
        dense, valid = first(xy)
        return torch.where(valid[..., None], dense, moved), seen | valid

    def _nearest(self, xy: Tensor, source: Tensor, target: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
        reachable = source.nan_to_num(nan=_FAR)
        distances = torch.cdist(xy, reachable, compute_mode="donot_use_mm_for_euclid_dist")  # (B, N, T)
        distance, index = distances.min(dim=2)  # (B, N)
        index = index[..., None].expand(-1, -1, 2)
        offset = (xy - source.gather(1, index)) @ linear.mT
        return target.gather(1, index) + offset, distance <= self.radius


def draw_targets(points: Sequence[Tensor], seeds: Sequence[int]) -> Tensor:
    """(B, 2) observations at which views look, one of the (T, 2) of each photograph.

    They are of the same track in both photographs of a pair, as long as the seeds and the order of tracks are the same.
    """
    drawn = uniforms(seeds, 1, _AIM)[:, 0].tolist()
    return torch.stack([xy[int(fraction * len(xy))] for xy, fraction in zip(points, drawn, strict=True)])


def aim(maps: Tensor, sizes: Sequence[Size], targets: Tensor, size: int, seeds: Sequence[int]) -> Tensor:
    """Move views over their photographs so that they look at (B, 2) pixels of these, roughly.

    A view is not moved off its photograph, and its middle misses the target by up to a quarter of its extent, so that
    nothing can be learnt from where in a view the tracks are.

    Args:
        maps: (B, 3, 3) float64, from photographs of ``sizes`` to views of ``size``.
    """
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]], dtype=torch.float64) * (size - 1)
    placed = transform_points(torch.linalg.inv(maps), corners.expand(len(sizes), -1, -1))  # (B, 5, 2)
    low, high = placed.amin(dim=1), placed.amax(dim=1)  # (B, 2)
    miss = (uniforms(seeds, 2, _AIM + 100) - 0.5) * (high - low) / 2
    shift = targets.double() + miss - placed[:, 4]
    least, most = -low, torch.tensor(sizes, dtype=torch.float64) - 1 - high
    middle = (least + most) / 2
    shift = shift.maximum(least.minimum(middle)).minimum(most.maximum(middle))
    back = torch.eye(3, dtype=torch.float64).repeat(len(sizes), 1, 1)
    back[:, :2, 2] = -shift
    return maps @ back


def draw_anchors(
    points: Sequence[Sequence[Tensor]], warp: ViewWarp, count: int, seeds: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """(B, count, 2) pixels of the views each: tracks that both views show, drawn by the seeds, NaN beyond them.

    Args:
        points: (T, 2) pixels of the tracks that a pair shares, for each of B pairs, in first and in second photographs.
    """
    ends = [
        transform_points(to_view.to(device), pad_points(own).to(device)).float()
        for own, to_view in zip(points, (warp.from_photos0, warp.from_photos1), strict=True)
    ]
    seen = (covered(warp.masks0, ends[0]) & covered(warp.masks1, ends[1])).cpu()  # (B, T)
    anchors = torch.full((2, len(seeds), count, 2), torch.nan, device=device)
    for b, seed in enumerate(seeds):
        kept = seen[b].nonzero()[:, 0]
        order = torch.randperm(len(kept), generator=generator_of(seed, _ANCHORS))[:count]
        for side in (0, 1):
            anchors[side, b, : len(order)] = ends[side][b, kept[order].to(device)]
    return anchors[0], anchors[1]


# Carrying reconstructions to other machines --------------------------------------------------------------------------


def export(root: StrPath, path: StrPath, *, images: StrPath | None = None, max_size: int | None = None) -> None:
    """Write reconstructions so that they can be used without pycolmap: ``tracks.npz`` and ``images/``, for each scene.

    Depth maps stay where they are.

    Args:
        root: as for :class:`Colmap`; several scenes go to folders of their own below ``path``.
        max_size: photographs with a longer side are shrunk to it, and written as JPEG under the same name.
    """
    folders = scene_folders(Path(root))
    for scene in open_scenes(root, images):
        target = Path(path) if folders == [Path(root)] else Path(path) / scene.name
        outside = [name for name in scene.reconstruction.names if Path(name).is_absolute() or ".." in Path(name).parts]
        if outside:
            raise ValueError(f"{scene.name}: its photographs would be written to elsewhere: {few(outside)}")
        missing = [name for name in scene.reconstruction.names if not (scene.images / name).is_file()]
        if missing:
            raise ValueError(f"{len(missing)} photographs are missing in {scene.images}: {few(missing)}")
        for name in scene.reconstruction.names:
            copied = target / "images" / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            _copy_image(scene.images / name, copied, max_size)
        target.mkdir(parents=True, exist_ok=True)
        scene.reconstruction.save(target / TRACKS)


def _copy_image(source: Path, target: Path, max_size: int | None) -> None:
    if max(header_size(source)) <= (max_size or math.inf):
        shutil.copyfile(source, target)
    else:
        PIL.Image.fromarray(to_uint8(load_image(source, max_size=max_size).tensor)).save(target, "JPEG", quality=90)
