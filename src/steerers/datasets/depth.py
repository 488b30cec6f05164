"""The warp between photographs of a scene whose depth and cameras are known.

A point of the first photograph is lifted by its depth, seen from the second camera, and counts as seen there if the
second depth map agrees with its depth; else something stands before it. A depth map may be coarser or finer than its
photograph, and photographs of one batch may have different sizes.

What is not known is never guessed: a point is valid only if all four samples of depth around it are, at both ends, and
if they belong to one surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import ViewWarp, pixel_grid
from steerers.datasets.reconstruction import Reconstruction
from steerers.geometry import Size, scaling, to_normalised, transform_points

TOLERANCE = 0.05
"""Relative difference of depths up to which two points are taken for the same one."""

_SLACK = 1e-3  # pixels by which rounding may carry a point out of its photograph
_FAR = 1e6  # pixels; what is nearly beside a camera is projected no further out than this


@dataclass(frozen=True, eq=False)
class DepthCamera:
    """The camera of one photograph, and the depth map that goes with it.

    Attributes:
        size: (width, height) of the photograph.
        K: (3, 3) intrinsics, in pixels of the photograph with the centre of the top-left one at (0, 0). COLMAP counts
            from its corner: subtract 0.5 from the principal point.
        pose: (4, 4), from the world to the camera.
        depth: (h, w) z of what each pixel sees; zero, negative or not finite for unknown. ``None`` if there is no map.
        to_depth: (3, 3), from pixels of the photograph to pixels of the depth map. By default the depth map covers the
            photograph, edge to edge.
    """

    size: Size
    K: Tensor
    pose: Tensor
    depth: Tensor | None = None
    to_depth: Tensor | None = None

    @classmethod
    def of(cls, reconstruction: Reconstruction, image: int, depth: Tensor | None = None) -> DepthCamera:
        """The camera of an image of a reconstruction, at the size that this has it in."""
        width, height = reconstruction.sizes[image].tolist()
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3] = torch.from_numpy(reconstruction.poses[image])
        return cls((width, height), torch.from_numpy(reconstruction.K[image]), pose, depth)

    def resized(self, size: Size) -> DepthCamera:
        """The camera of the same photograph at another size; the depth map stays as it is."""
        change = scaling(self.size, size)
        return DepthCamera(
            size, change @ self.K.double(), self.pose, self.depth, self._map() @ torch.linalg.inv(change)
        )

    def thinned(self, step: int) -> DepthCamera:
        """Every ``step``-th sample of the depth map in both directions: no sample moves, none is blended."""
        if self.depth is None or step == 1:
            return self
        top, left = ((extent - 1) % step // 2 for extent in self.depth.shape)  # as much is cut off at either side
        thin = torch.tensor([[1, 0, -left], [0, 1, -top], [0, 0, step]], dtype=torch.float64)
        depth = self.depth[top::step, left::step].contiguous()
        return DepthCamera(self.size, self.K, self.pose, depth, thin @ self._map())

    def _map(self) -> Tensor:
        if self.to_depth is not None:
            return self.to_depth.double()
        if self.depth is None:
            return torch.eye(3, dtype=torch.float64)
        return scaling(self.size, (int(self.depth.shape[1]), int(self.depth.shape[0])))


class DepthWarp:
    """The :class:`~steerers.datasets.pairs.Warp` between the photographs of B pairs, in their pixels.

    Args:
        first: the cameras of the first photographs; ``second`` those of the second.
        tolerance: largest relative difference between the depth of a point and what the other depth map says.
        device: where points will be; depth maps are moved there.
    """

    def __init__(
        self,
        first: Sequence[DepthCamera],
        second: Sequence[DepthCamera],
        *,
        tolerance: float = TOLERANCE,
        device: torch.device | str = "cpu",
    ) -> None:
        self.tolerance = tolerance
        self._first = _Side(first, tolerance, torch.device(device))
        self._second = _Side(second, tolerance, torch.device(device))
        self._ahead = _relative(first, second).to(device)  # (B, 4, 4)
        self._back = _relative(second, first).to(device)

    def forward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, 2) pixels of the first photographs in the second, and (B, N) whether they are seen there.

        What is not seen has a finite position all the same, of no meaning.
        """
        return self._warp(xy, self._first, self._second, self._ahead)

    def backward(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the second photographs to the first."""
        return self._warp(xy, self._second, self._first, self._back)

    def known_in(self, views: ViewWarp) -> tuple[Tensor, Tensor]:
        """(B, S, S) bool of the first and of the second views of the photographs: where they show something of depth.

        Where the warp asks for a surface, this asks for depth alone: that it is positive, interpolated bilinearly.
        """
        sides = ((self._first, views.to_photos0, views.masks0), (self._second, views.to_photos1, views.masks1))
        first, second = (masks & side.has_depth(_pixels(masks, maps)).view_as(masks) for side, maps, masks in sides)
        return first, second

    def _warp(self, xy: Tensor, source: _Side, target: _Side, pose: Tensor) -> tuple[Tensor, Tensor]:
        pixels = xy.double()
        depth, seen = source.depths_at(pixels)  # (B, N) each
        points = depth[..., None] * (F.pad(pixels.nan_to_num(), (0, 1), value=1.0) @ source.K_inverse.mT)  # (B, N, 3)
        points = points @ pose[:, :3, :3].mT + pose[:, None, :3, 3]
        ahead = points[..., 2]  # (B, N), the depth in the other camera
        seen = seen & (ahead > 1e-6 * depth)
        rays = points / torch.where(seen, ahead, torch.ones_like(ahead))[..., None]
        moved = (rays @ target.K.mT)[..., :2].clamp(-_FAR, _FAR)
        expected, known = target.depths_at(moved)
        seen = seen & known & ((ahead - expected).abs() <= self.tolerance * expected)
        return moved.to(xy.dtype), seen


def _pixels(masks: Tensor, to_photos: Tensor) -> Tensor:
    """(B, S * S, 2) float64 pixels of the photographs that those of (B, S, S) views show."""
    return transform_points(to_photos, pixel_grid(masks).double())


def _relative(source: Sequence[DepthCamera], target: Sequence[DepthCamera]) -> Tensor:
    """(B, 4, 4) float64, from the frames of the source cameras to those of the target cameras."""
    poses = [torch.stack([camera.pose.double().cpu() for camera in cameras]) for cameras in (source, target)]
    inverse: Tensor = torch.linalg.inv(poses[0])
    return poses[1] @ inverse


class _Side:
    """The photographs of one side of B pairs: intrinsics, and depth maps padded to one size."""

    def __init__(self, cameras: Sequence[DepthCamera], tolerance: float, device: torch.device) -> None:
        depths = [torch.zeros(1, 1) if camera.depth is None else camera.depth for camera in cameras]
        intrinsics = torch.stack([camera.K.double().cpu() for camera in cameras])
        self.K = intrinsics.to(device)  # (B, 3, 3)
        self.K_inverse = torch.linalg.inv(intrinsics).to(device)
        self.to_depth = torch.stack([camera._map().cpu() for camera in cameras]).to(device)  # (B, 3, 3)
        self.limits = _limits([camera.size for camera in cameras]).to(device)  # (B, 1, 2)
        self.depth_limits = _limits([(int(depth.shape[1]), int(depth.shape[0])) for depth in depths]).to(device)
        self.depths = _pad(depths, device)  # (B, H, W)
        self.tolerance = tolerance

    def depths_at(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N) depths at (B, N, 2) float64 pixels, 1 where there is none, and (B, N) whether there is one.

        The inverse of depth is what is interpolated: on a plane it is linear in the pixels, and so exact.
        """
        inside = _within(xy, self.limits)
        position = transform_points(self.to_depth, torch.where(inside[..., None], xy, torch.zeros_like(xy)))
        inside = inside & _within(position, self.depth_limits)
        position = position.clamp(min=0).minimum(self.depth_limits)
        cell = position.floor().minimum((self.depth_limits - 1).clamp(min=0))  # the last pixel is of the cell before
        around = self._inverse_around(cell)  # (B, N, 4, 4)
        inner = around[..., 1:3, 1:3]
        known = inside & (inner > 0).flatten(2).all(dim=-1) & _of_one_surface(around, self.tolerance)
        x, y = (position - cell).unbind(dim=-1)
        rows = inner[..., 0] * (1 - x[..., None]) + inner[..., 1] * x[..., None]  # (B, N, 2)
        inverse = rows[..., 0] * (1 - y) + rows[..., 1] * y
        return 1 / torch.where(known, inverse, torch.ones_like(inverse)), known

    def has_depth(self, xy: Tensor) -> Tensor:
        """(B, N) whether the depth at (B, N, 2) float64 pixels is positive, interpolated bilinearly."""
        size = (int(self.depths.shape[2]), int(self.depths.shape[1]))
        grid = to_normalised(transform_points(self.to_depth, xy), size)[:, None]  # (B, 1, N, 2)
        depths = self.depths[:, None].clamp(min=0).double()
        return F.grid_sample(depths, grid, mode="bilinear", padding_mode="zeros", align_corners=False)[:, 0, 0] > 0

    def _inverse_around(self, cell: Tensor) -> Tensor:
        """(B, N, 4, 4) float64 inverse depths at the corners of cells, inmost, and around them; 0: unknown."""
        width = self.depths.shape[2]
        steps = torch.arange(-1, 3, device=cell.device)
        x, y = (cell[..., k, None].long() + steps for k in (0, 1))  # (B, N, 4) each
        within = [(c >= 0) & (c <= self.depth_limits[..., k, None]) for k, c in enumerate((x, y))]
        index = y.clamp(min=0)[..., :, None] * width + x.clamp(min=0)[..., None, :]
        index = torch.where(within[1][..., :, None] & within[0][..., None, :], index, torch.zeros_like(index))
        depths = self.depths.flatten(1).gather(1, index.flatten(1)).view(index.shape).double()
        known = within[1][..., :, None] & within[0][..., None, :] & (depths > 0)
        return torch.where(known, 1 / torch.where(known, depths, torch.ones_like(depths)), torch.zeros_like(depths))


def _of_one_surface(around: Tensor, tolerance: float) -> Tensor:
    """(B, N) whether the corners of a cell belong together, from (B, N, 4, 4) inverse depths with the cell inmost.

    They do if they differ by no more than the tolerance; or by more, but as evenly as a surface that is seen from the
    side: neither way do the differences change by more than the tolerance.
    """
    inner = around[..., 1:3, 1:3].flatten(2)
    limit = tolerance * inner.amin(dim=-1)
    alike = inner.amax(dim=-1) <= (1 + tolerance) * inner.amin(dim=-1)
    lines = torch.cat([around[..., 1:3, :], around[..., :, 1:3].mT], dim=-2)  # (B, N, 4, 4)
    bends = (lines[..., :-2] - 2 * lines[..., 1:-1] + lines[..., 2:]).abs().flatten(2)
    even = (bends.amax(dim=-1) <= limit) & (lines > 0).flatten(2).all(dim=-1)
    return alike | even


def _limits(sizes: Sequence[Size]) -> Tensor:
    """(B, 1, 2) float64 centres of the last pixels."""
    return torch.tensor(sizes, dtype=torch.float64)[:, None] - 1


def _within(xy: Tensor, limits: Tensor) -> Tensor:
    """(B, N) whether pixels lie between the centres of the first and the last; False for NaN."""
    return ((xy >= -_SLACK) & (xy <= limits + _SLACK)).all(dim=-1)


def _pad(depths: Sequence[Tensor], device: torch.device) -> Tensor:
    """(B, H, W) float32 of (h, w) maps, each in the top-left corner; what is no depth is zero."""
    height, width = max(depth.shape[0] for depth in depths), max(depth.shape[1] for depth in depths)
    padded = torch.zeros(len(depths), height, width, device=device)
    for row, depth in zip(padded, depths, strict=True):
        moved = depth.to(device, torch.float32, non_blocking=True)
        row[: depth.shape[0], : depth.shape[1]] = torch.where(moved.isfinite(), moved, torch.zeros_like(moved))
    return padded
