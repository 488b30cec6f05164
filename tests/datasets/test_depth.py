"""The warp between photographs with depth, against scenes whose geometry is known exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from datasets.scenes import (
    Array,
    Camera,
    Scene,
    box,
    cameras_around,
    cast,
    look_at,
    project,
    rectangle,
    render,
    street,
    unproject,
    visible,
    warp,
)
from helpers import randn, seeds
from steerers.datasets.depth import TOLERANCE, DepthCamera, DepthWarp
from steerers.datasets.pairs import ViewWarp
from steerers.geometry import scaling, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")

Bools = NDArray[np.bool_]


def depth_camera(scene: Scene, camera: Camera, depth: Tensor | None = None) -> DepthCamera:
    """What the warp knows of a camera; ``depth`` instead of the true one."""
    known = torch.from_numpy(render(scene, camera)[1]) if depth is None else depth
    size = (camera.width, camera.height)
    return DepthCamera(size, torch.from_numpy(camera.K), torch.from_numpy(camera.pose), known)


def scattered(camera: Camera, count: int = 4000, seed: int = 0) -> Array:
    """(N, 2) pixels anywhere in the image."""
    extent = np.array([camera.width - 1, camera.height - 1])
    return np.asarray(np.random.default_rng(seed).uniform(0, 1, (count, 2)) * extent)


def one_surface(scene: Scene, camera: Camera, xy: Array, margin: int = 0) -> Bools:
    """(N,) whether the four pixels around each point, and ``margin`` more on all sides, see the same surface."""
    low = np.floor(np.nan_to_num(xy))
    steps = range(-margin, 2 + margin)
    around = np.stack([cast(scene, camera, np.add(low, (x, y)))[1] for x in steps for y in steps])
    return np.asarray((around[0] >= 0) & np.all(around == around[0], axis=0))


class Batch:
    """Two pairs of cameras of different sizes in one warp."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.first = cameras_around(2, seed=1, spread=0.15, size=(240, 180))
        self.second = [
            look_at((1.6, -0.4, -3.2), (0, 0.2, 2), focal=150, size=(200, 220), roll=-0.5),
            look_at((-1.2, 0.3, -2.6), (0, 0.2, 2), focal=170, size=(260, 140), roll=0.3, principal=(110, 75)),
        ]
        self.cameras = tuple([depth_camera(scene, c) for c in side] for side in (self.first, self.second))
        self.warp = DepthWarp(*self.cameras)
        self.xy = [np.stack([scattered(c) for c in side]) for side in (self.first, self.second)]

    def both_ways(self) -> list[tuple[Camera, Camera, Array, Array, Bools]]:
        """For each pair and direction: the two cameras, points, and what the warp makes of them."""
        found = []
        for forward in (True, False):
            sources, targets = (self.first, self.second) if forward else (self.second, self.first)
            xy = self.xy[0 if forward else 1]
            moved, seen = (self.warp.forward if forward else self.warp.backward)(torch.from_numpy(xy))
            for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
                found.append((source, target, xy[n], moved[n].numpy(), seen[n].numpy()))
        return found


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch(street())


# The scenes themselves ------------------------------------------------------------------------------------------------


def test_a_camera_sees_what_it_projects() -> None:
    scene = Scene((rectangle((0, 0, 4), (20, 0, 0), (0, 20, 0)), *box((0, 0, 2), (1, 1, 1), 0.3)))
    camera = look_at((0.3, -0.2, -1), (0, 0, 3), size=(60, 50), focal=50)
    depth, surface = cast(scene, camera, camera.grid)
    assert set(np.unique(surface)) > {0}
    points = unproject(camera, camera.grid, depth)
    back, again = project(camera, points)
    np.testing.assert_allclose(back, camera.grid, atol=1e-9)
    np.testing.assert_allclose(again, depth)
    assert visible(scene, camera, points).all()
    hidden = unproject(camera, camera.grid, depth + 0.1)
    assert not visible(scene, camera, hidden).any()
    assert not visible(scene, camera, [[0, 0, -5]]).any()
    np.testing.assert_allclose(render(scene, camera)[1].ravel(), depth, rtol=1e-6)


# The warp -------------------------------------------------------------------------------------------------------------


def test_points_go_where_the_geometry_takes_them(batch: Batch) -> None:
    """To 0.001 px wherever the samples of depth around a point are of one surface, both ways."""
    for source, target, xy, moved, seen in batch.both_ways():
        true, really = warp(batch.scene, source, target, xy)
        good = seen & one_surface(batch.scene, source, xy)
        assert good.sum() > 1000
        errors = np.linalg.norm(moved - true, axis=1)
        assert errors[good].max() < 1e-3
        edges = errors[seen & really & ~good]  # where two surfaces meet, depth between samples is a guess
        assert len(edges) < 0.02 * len(xy)
        assert np.median(edges) < 0.2
        assert edges.max() < 1.5


def test_what_is_hidden_is_not_valid(batch: Batch) -> None:
    """Nothing is valid that stands behind something nearer by more than the tolerance."""
    total = 0
    for source, target, xy, _, seen in batch.both_ways():
        depth, surface = cast(batch.scene, source, xy)
        points = unproject(source, xy, np.where(surface >= 0, depth, np.nan))
        true, reached = project(target, points)
        inside = ((true > 0) & (true < (target.width - 1, target.height - 1))).all(axis=1)
        before, _ = cast(batch.scene, target, np.where(np.asarray(inside)[:, None], true, 0))
        hidden = inside & (before < (1 - 1.2 * TOLERANCE) * reached) & one_surface(batch.scene, target, true)
        total += hidden.sum()
        assert not seen[hidden].any()
    assert total > 300


def test_what_is_seen_is_valid(batch: Batch) -> None:
    """All of it, but for the rims of surfaces."""
    for source, target, xy, moved, seen in batch.both_ways():
        _, really = warp(batch.scene, source, target, xy)
        inner = really & one_surface(batch.scene, source, xy, 1) & one_surface(batch.scene, target, moved, 1)
        inner &= ((moved > 1) & (moved < (target.width - 2, target.height - 2))).all(axis=1)
        inner &= ((xy > 1) & (xy < (source.width - 2, source.height - 2))).all(axis=1)
        assert inner.sum() > 1000
        assert seen[inner].all()
        assert seen[really].mean() > 0.9
        assert (seen & ~really).mean() < 0.02  # behind something by less than the tolerance


def test_what_is_out_of_view_or_sees_nothing_is_not_valid(batch: Batch) -> None:
    for source, target, xy, moved, seen in batch.both_ways():
        true, _ = warp(batch.scene, source, target, xy)
        with np.errstate(invalid="ignore"):
            out = ((true < -0.01) | (true > (target.width - 0.99, target.height - 0.99))).any(axis=1)
        sky = np.isnan(true).any(axis=1)
        assert out.sum() > 50
        assert sky.sum() > 50
        assert not seen[out | sky].any()
        assert np.isfinite(moved).all()


def test_there_and_back_is_home(batch: Batch) -> None:
    xy = torch.from_numpy(batch.xy[0])
    there, seen = batch.warp.forward(xy)
    back, again = batch.warp.backward(there)
    both = seen & again
    assert float(both.sum()) > 0.9 * float(seen.sum())
    errors = (back - xy).norm(dim=-1)[both]
    assert float(errors.median()) < 1e-4
    assert float(errors.quantile(0.98)) < 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e9, 1e9, -1.0])
def test_points_beside_the_image_are_finite_and_not_valid(batch: Batch, dtype: torch.dtype, bad: float) -> None:
    xy = torch.tensor([[bad, 50.0], [50.0, bad], [bad, bad]], dtype=dtype).expand(2, 3, 2)
    for way in (batch.warp.forward, batch.warp.backward):
        moved, seen = way(xy)
        assert moved.dtype == dtype
        assert moved.isfinite().all()
        assert not seen.any()


def test_no_points(batch: Batch) -> None:
    moved, seen = batch.warp.forward(torch.zeros(2, 0, 2))
    assert moved.shape == (2, 0, 2)
    assert seen.shape == (2, 0)


@pytest.mark.parametrize("hole", [0.0, -1.0, math.nan, math.inf])
def test_holes_in_either_depth_map_are_not_valid(batch: Batch, hole: float) -> None:
    scene, first, second = batch.scene, batch.first[0], batch.second[0]
    xy = batch.xy[0][:1]
    plain = DepthWarp([batch.cameras[0][0]], [batch.cameras[1][0]])
    moved, seen = plain.forward(torch.from_numpy(xy))
    for side in (0, 1):
        depths = [torch.from_numpy(render(scene, camera)[1]) for camera in (first, second)]
        depths[side][60:100, 80:140] = hole
        cameras = [depth_camera(scene, c, d) for c, d in zip((first, second), depths, strict=True)]
        pierced, still = DepthWarp([cameras[0]], [cameras[1]]).forward(torch.from_numpy(xy))
        place = (torch.from_numpy(xy) if side == 0 else moved)[0]
        touched = ((place > torch.tensor([79.0, 59.0])) & (place < torch.tensor([140.0, 100.0]))).all(dim=1)
        assert int((touched & seen[0]).sum()) > 50
        assert not still[0][touched].any()
        assert torch.equal(still[0][~touched], seen[0][~touched])
        assert pierced.isfinite().all()


def test_a_photograph_without_depth_has_no_valid_points(batch: Batch) -> None:
    first, second = batch.cameras[0][0], batch.cameras[1][0]
    blind = DepthCamera(second.size, second.K, second.pose)
    for warp_ in (DepthWarp([first], [blind]), DepthWarp([blind], [first])):
        moved, seen = warp_.forward(torch.from_numpy(batch.xy[0][:1]))
        assert moved.isfinite().all()
        assert not seen.any()


def test_pairs_of_a_batch_do_not_touch_each_other(batch: Batch) -> None:
    xy = torch.from_numpy(batch.xy[0])
    together = batch.warp.forward(xy)
    for n in range(2):
        alone = DepthWarp([batch.cameras[0][n]], [batch.cameras[1][n]]).forward(xy[n : n + 1])
        torch.testing.assert_close(together[0][n : n + 1], alone[0], rtol=0, atol=1e-9)
        assert torch.equal(together[1][n : n + 1], alone[1])


@settings(max_examples=10)
@given(angle=st.floats(-1.2, 1.2), step=st.integers(1, 5), scale=st.floats(0.3, 1.5), seed=st.integers(0, 1000))
def test_planes_are_exact_at_any_resolution_of_depth(angle: float, step: int, scale: float, seed: int) -> None:
    """The inverse of depth is linear on a plane, so that coarse maps lose nothing on it."""
    slope = (30 * math.cos(angle), 0, 30 * math.sin(angle))
    scene = Scene((rectangle((0, 0, 6), slope, (0, 30, 0)),))
    first = look_at((0, 0, -2), (0, 0, 6), size=(97, 64), focal=90)
    second = look_at((0.7, 0.2, -2.5), (0.2, 0, 6), size=(80, 75), focal=100, roll=0.4)
    size = (round(97 * scale), round(64 * scale))
    cameras = [depth_camera(scene, camera).thinned(step) for camera in (first, second)]
    warp_ = DepthWarp([cameras[0].resized(size)], [cameras[1]], tolerance=0.4)
    xy = scattered(first, 200, seed)
    resize = scaling((97, 64), size)
    moved, seen = warp_.forward(transform_points(resize, torch.from_numpy(xy))[None])
    true, _ = warp(scene, first, second, xy)
    assert seen.any()
    errors = np.linalg.norm(moved[0].numpy() - true, axis=1)[seen[0].numpy()]
    assert errors.max() < 1e-3
    back, again = warp_.backward(moved)
    both = seen & again
    home = transform_points(torch.linalg.inv(resize), back)[0].numpy()
    assert np.abs(home - xy)[both[0].numpy()].max(initial=0) < 1e-3


def test_the_last_pixel_is_still_within() -> None:
    scene = Scene((rectangle((0, 0, 4), (20, 0, 0), (0, 20, 0)),))
    camera = look_at((0, 0, 0), (0, 0, 1), size=(31, 21), focal=40)
    same = depth_camera(scene, camera)
    corners = torch.tensor([[[0.0, 0], [30, 0], [0, 20], [30, 20], [30.4, 20], [30, -0.4]]])
    moved, seen = DepthWarp([same], [same]).forward(corners)
    assert seen.tolist() == [[True] * 4 + [False] * 2]
    torch.testing.assert_close(moved[:, :4], corners[:, :4], atol=1e-4, rtol=0)


@pytest.mark.parametrize("where", [4.0, 6.0], ids=["beside", "behind"])
def test_what_lies_beside_or_behind_the_other_camera_is_not_valid(where: float) -> None:
    scene = Scene((rectangle((0, 0, 4), (20, 0, 0), (0, 20, 0)),))
    first = look_at((0, 0, 0), (0, 0, 1), size=(40, 30), focal=40)
    away = look_at((0, 0, where), (0, 0, 9), size=(40, 30), focal=40)
    flat = depth_camera(scene, away, torch.full((30, 40), 2.0))
    known = depth_camera(scene, first, torch.full((30, 40), 4.0))
    moved, seen = DepthWarp([known], [flat]).forward(torch.from_numpy(scattered(first, 50))[None])
    assert moved.isfinite().all()
    assert not seen.any()


def test_the_tolerance_decides_what_counts_as_hidden() -> None:
    scene = Scene((rectangle((0, 0, 4), (20, 0, 0), (0, 20, 0)),))
    camera = look_at((0, 0, 0), (0, 0, 1), size=(40, 30), focal=40)
    nearer = depth_camera(scene, camera, torch.full((30, 40), 4 * 0.93))
    for tolerance, valid in ((0.05, False), (0.1, True)):
        both = DepthWarp([depth_camera(scene, camera)], [nearer], tolerance=tolerance)
        assert bool(both.forward(torch.tensor([[[20.0, 15.0]]]))[1]) is valid


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_agrees(batch: Batch) -> None:
    xy = torch.from_numpy(batch.xy[0])
    expected, seen = batch.warp.forward(xy)
    moved, still = DepthWarp(*batch.cameras, device="cuda").forward(xy.cuda())
    torch.testing.assert_close(moved.cpu(), expected, rtol=0, atol=1e-6)
    assert torch.equal(still.cpu(), seen)


# Where there is depth -------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seeds, st.sampled_from([(6, 9), (14, 5)]))
def test_views_have_depth_where_the_map_interpolated_is_positive(seed: int, shape: tuple[int, int]) -> None:
    """Against the four samples around, one by one; what is no depth counts as zero."""
    generator = torch.Generator().manual_seed(seed)
    depths = torch.rand(2, *shape, generator=generator) + 0.5
    drawn = torch.rand(2, *shape, generator=generator)
    depths[drawn < 0.6], depths[drawn < 0.2], depths[drawn < 0.1] = 0.0, -1.0, math.nan
    size, eye = (12, 11), torch.eye(4, dtype=torch.float64)
    cameras = [DepthCamera(size, torch.eye(3), eye, depth) for depth in depths]
    linear = torch.tensor([[0.8, 0.5], [-0.5, 0.8]], dtype=torch.float64) + 0.1 * randn(2, 2, seed=seed)
    from_photo = torch.eye(3, dtype=torch.float64)
    from_photo[:2, :2], from_photo[:2, 2] = linear, torch.tensor([1.3, 5.1])
    masks = torch.rand(2, 1, 16, 16, generator=generator) < 0.9
    views = ViewWarp(from_photo[None], from_photo[None] / 2, masks[0], masks[1])
    known = DepthWarp(cameras[:1], cameras[1:]).known_in(views)
    for side, maps in ((0, from_photo), (1, from_photo / 2)):
        grid = torch.tensor([[float(x), float(y)] for y in range(16) for x in range(16)], dtype=torch.float64)
        at = transform_points(scaling(size, (shape[1], shape[0])) @ torch.linalg.inv(maps), grid)
        expected = [interpolated(depths[side], x, y) > 0 for x, y in at.tolist()]
        assert torch.equal(known[side][0], torch.tensor(expected).view(16, 16) & masks[side, 0])


def interpolated(depth: Tensor, x: float, y: float) -> float:
    total = 0.0
    for v in (math.floor(y), math.floor(y) + 1):
        for u in (math.floor(x), math.floor(x) + 1):
            if 0 <= u < depth.shape[1] and 0 <= v < depth.shape[0] and float(depth[v, u]) > 0:
                total += (1 - abs(x - u)) * (1 - abs(y - v)) * float(depth[v, u])
    return total
