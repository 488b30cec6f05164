"""MegaDepth in its usual layout: photographs, depth maps in HDF5, and the scene descriptions that DKM prepared.

    ROOT/Undistorted_SfM/SCENE/images/*.jpg                         photographs, undistorted (D2-Net's preparation)
    ROOT/phoenix/S6/zl548/MegaDepth_v1/SCENE/dense0/depths/*.h5     depth maps, dataset "depth", zero for unknown
    ROOT/prep_scene_info/SCENE.npy                                  a dictionary: paths, cameras, pairs, overlaps
    ROOT/prep_scene_info/detections/detections_SCENE.npy            points of the reconstruction; for detectors alone

Only ``prep_scene_info`` is a fixed name: the other paths are those that the descriptions give. Intrinsics and points
there are COLMAP's, whose pixels have their top-left corner at (0, 0); they are moved by half a pixel here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers._console import progress
from steerers.datasets.depth import DepthCamera, DepthWarp
from steerers.datasets.pairs import PairBatch, ViewWarp, mix, points_in_views
from steerers.datasets.photos import few
from steerers.datasets.scene_info import (
    Split,
    find_detections,
    list_scenes,
    read_detections,
    read_scene_info,
    scenes_of,
    weigh_pairs,
)
from steerers.datasets.views import Views, draw_whole, relight_views, render_views
from steerers.geometry import scaling, transform_points
from steerers.images.load import load_image, to_uint8

MAX_DEPTHS = 100_000_000
"""Of one map; those of MegaDepth have two million."""


class Photograph(NamedTuple):
    """A photograph as read: (3, H, W) uint8, its camera and depth map."""

    image: Tensor
    camera: DepthCamera
    detections: Tensor | None = None
    """(N, 2) float64 pixels of the image at which points of the reconstruction were seen."""


class MegaDepth:
    """Pairs of MegaDepth, a :class:`~steerers.datasets.pairs.PairSource`.

    A view shows the whole photograph in the middle of the square but for a small shift: its aspect kept, or squashed to
    the square.

    Args:
        root: the folder that holds ``prep_scene_info``.
        views: their size, how photographs are resized to it, and the strength of the change of light; the rest of it is
            not used.
        split: which scenes.
        detections: read the points of the reconstructions too, towards which a detector is trained. A batch then has
            ``detections``, and ``known`` beside them: where its views have depth.

    Raises:
        ValueError: if there is no such scene, a file is damaged, no pair is left, or points are wanted and missing.
    """

    weights: Tensor
    """(P,) float64, how often each pair is drawn."""

    def __init__(
        self, root: str | PathLike[str], *, views: Views, split: Split = "train", detections: bool = False
    ) -> None:
        self.root, self.views = Path(root), views
        found = list_scenes(root)
        names = scenes_of(split, found)
        if not names:
            raise ValueError(f"{root} has no scene of the split {split!r}; it has {few(list(found), 8)}")
        self.scenes = [read_scene_info(found[name]) for name in progress(names, "reading scenes")]
        self._scene, self._pairs, self.weights = self._list_pairs(found)
        self._detections = self._read_detections() if detections else None

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, index: int) -> tuple[Photograph, Photograph]:
        """The two photographs of a pair, resized to the size of a view, with their cameras and depth maps.

        Raises:
            FileNotFoundError, ValueError: naming the file that is missing or broken.
        """
        scene, (first, second) = int(self._scene[index]), self._pairs[index].tolist()
        return self._photograph(scene, first), self._photograph(scene, second)

    def make(
        self,
        read: Sequence[tuple[Photograph, Photograph]],
        rotations0: Tensor,
        rotations1: Tensor,
        seeds: Sequence[int],
        device: torch.device,
    ) -> PairBatch:
        """A batch of rotated views; see :class:`~steerers.datasets.pairs.PairSource`."""
        sides = [[pair[side] for pair in read] for side in (0, 1)]
        views = [
            self._render(side, rotations, [mix(seed, number) for seed in seeds], device)
            for number, (side, rotations) in enumerate(zip(sides, (rotations0, rotations1), strict=True))
        ]
        (images0, masks0, from_photos0, plain0), (images1, masks1, from_photos1, plain1) = views
        cameras = [[photograph.camera for photograph in side] for side in sides]
        scene = DepthWarp(*cameras, device=device)
        warp = ViewWarp(from_photos0.to(device), from_photos1.to(device), masks0, masks1, scene)
        rotated = (rotations0.to(device), rotations1.to(device))
        batch = PairBatch(images0, images1, masks0, masks1, warp, *rotated, unchanged=(plain0, plain1))
        if self._detections is None:
            return batch
        detections = (
            points_in_views(_detections(sides[0]), from_photos0, device),
            points_in_views(_detections(sides[1]), from_photos1, device),
        )
        return replace(batch, detections=detections, known=scene.known_in(warp))

    def _list_pairs(self, found: dict[str, Path]) -> tuple[NDArray[np.int32], NDArray[np.int32], Tensor]:
        """(P,) scenes, (P, 2) photographs and (P,) weights of all pairs."""
        scenes, pairs, weights = [], [], []
        for index, info in enumerate(self.scenes):
            weight = weigh_pairs(info)
            wrong = int(((weight > 0) & ~info.usable_pairs).sum())
            if wrong:
                raise ValueError(
                    f"{found[info.name]}: {wrong} of its pairs have no data; see `steerers data check {self.root}`"
                )
            scenes.append(np.full(int((weight > 0).sum()), index, np.int32))
            pairs.append(info.pairs[weight > 0].astype(np.int32))
            weights.append(weight[weight > 0])
        if not sum(map(len, pairs)):
            raise ValueError(f"{self.root}: no pair of {few([info.name for info in self.scenes], 8)} overlaps enough")
        return np.concatenate(scenes), np.concatenate(pairs), torch.from_numpy(np.concatenate(weights))

    def _read_detections(self) -> list[dict[int, NDArray[np.float32]]]:
        """Of each scene, the points of the photographs that its pairs have."""
        paths = find_detections(self.root, [info.name for info in self.scenes])
        return [
            read_detections(paths[info.name], np.unique(self._pairs[self._scene == index]).tolist())
            for index, info in enumerate(progress(self.scenes, "reading points"))
        ]

    def _photograph(self, scene: int, index: int) -> Photograph:
        info, squashed = self.scenes[scene], self.views.resize == "squash"
        path = self.root / str(info.image_paths[index])
        image = load_image(path, max_size=None if squashed else self.views.size)
        pixels = squash(image.tensor, self.views.size) if squashed else image.tensor
        depth = read_depth(self.root / str(info.depth_paths[index]))
        K = torch.from_numpy(info.intrinsics[index].copy())
        K[:2, 2] -= 0.5  # from COLMAP's pixels
        size = (int(pixels.shape[2]), int(pixels.shape[1]))
        camera = DepthCamera(image.stored_size, K, torch.from_numpy(info.poses[index]), depth).resized(size)
        points = None
        if self._detections is not None:
            stored = torch.from_numpy(self._detections[scene][index]).double() - 0.5  # from COLMAP's pixels
            points = transform_points(scaling(image.stored_size, size), stored)
        filling = min(depth.shape) if squashed else max(depth.shape)  # fewest samples along a side that fills the view
        camera = camera.thinned(max(1, filling // self.views.size))
        return Photograph(torch.from_numpy(to_uint8(pixels)).permute(2, 0, 1).contiguous(), camera, points)

    def _render(
        self, photographs: Sequence[Photograph], rotations: Tensor, seeds: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, 3, S, S) views, their masks, the (B, 3, 3) maps from photographs, and the views in unchanged light."""
        shown = draw_whole([photograph.camera.size for photograph in photographs], self.views, seeds)  # (B, 3, 3)
        photos = [photograph.image.to(device, non_blocking=True) for photograph in photographs]
        strength, size = self.views.photometric, self.views.size
        images, masks, from_photos = render_views(photos, shown, rotations, size, seeds if strength else None)
        return relight_views(images, self.views, seeds), masks, from_photos, images


def _detections(photographs: Sequence[Photograph]) -> list[Tensor]:
    return [photograph.detections for photograph in photographs if photograph.detections is not None]


def squash(image: Tensor, size: int) -> Tensor:
    """A (3, H, W) image in [0, 1] resized to a square of ``size``, whatever its aspect; bicubic, antialiased."""
    resized = F.interpolate(image[None], (size, size), mode="bicubic", align_corners=False, antialias=True)
    return resized[0].clamp(0, 1)  # bicubic overshoots


def read_depth(path: str | PathLike[str]) -> Tensor:
    """A (h, w) float32 depth map from HDF5.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no HDF5 file, or has no such dataset; the path is named.
        ImportError: if h5py is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise ImportError("depth maps of MegaDepth are HDF5 files: pip install h5py") from None
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such depth map: {path}")
    try:
        with h5py.File(path, "r") as file:
            stored = file["depth"]
            if stored.size > MAX_DEPTHS:  # a file that leaves them out may be small
                raise ValueError(f"its shape is {stored.shape}, more than the {MAX_DEPTHS:,} values that are read")
            values = np.asarray(stored[()], dtype=np.float32)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        raise ValueError(f"cannot read depth map {path}: {' '.join(str(error).split())}") from error
    if values.ndim != 2 or not values.size:
        raise ValueError(f"cannot read depth map {path}: its shape is {values.shape}, not (height, width)")
    return torch.from_numpy(values)
