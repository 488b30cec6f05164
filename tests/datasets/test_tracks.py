"""What tracks give: pairs of images, their warp, and views that look at them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datasets.workspaces import CAMERAS, model_of, rotation_between
from steerers.datasets.reconstruction import Reconstruction
from steerers.datasets.tracks import TrackWarp, aim, covisible
from steerers.datasets.views import Views, draw_homographies
from steerers.geometry import rotation, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")


def test_covisible_pairs_count_tracks_angles_and_rotations() -> None:
    found = Reconstruction._of(model_of(CAMERAS))
    pairs = covisible(found)
    assert len(pairs) == 6
    for k, (first, second) in enumerate(pairs.images):
        xy0, xy1 = found.shared(first, second)
        assert pairs.shared[k] == len(xy0)
        joint = np.intersect1d(*(found.tracks[found.starts[n] : found.starts[n + 1]] for n in (first, second)))
        rays = [found.points[joint] - CAMERAS[n].centre for n in (first, second)]
        rays = [ray / np.linalg.norm(ray, axis=1, keepdims=True) for ray in rays]
        angles = np.degrees(2 * np.arcsin(np.linalg.norm(rays[0] - rays[1], axis=1) / 2))
        assert pairs.angles[k] == pytest.approx(angles.mean(), rel=1e-6)
        assert -np.angle(pairs.similarity[k]) == pytest.approx(
            rotation_between(*map(torch.from_numpy, (xy0, xy1))), abs=1e-5
        )
        assert 0.7 < pairs.agreement[k] <= 1


@given(seed=st.integers(0, 10_000), angle=st.floats(-3, 3), scale=st.floats(0.5, 2))
def test_track_warp_goes_there_and_back(seed: int, angle: float, scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = 40 * torch.stack(torch.meshgrid(torch.arange(5.0), torch.arange(4.0), indexing="xy"), -1).view(1, -1, 2)
    linear = (scale * rotation(angle))[None].to(dtype)
    points0 = points.to(dtype)
    points1 = (points0 @ linear.mT)[:, torch.randperm(20, generator=generator)]  # tracks need not follow one map
    gone = torch.full((1, 3, 2), math.nan, dtype=dtype)
    tracks = TrackWarp(torch.cat([points0, gone], 1), torch.cat([points1, gone], 1), linear, 2.0)
    offsets = 3 * torch.rand(1, 20, 2, generator=generator, dtype=dtype) - 1.5
    moved, seen = tracks.forward(points0 + offsets)
    torch.testing.assert_close(seen, offsets.norm(dim=-1) <= 2)
    torch.testing.assert_close(moved[seen], (points1 + offsets @ linear.mT)[seen], atol=1e-3, rtol=0)
    near = (moved - points1).norm(dim=-1) <= 1.99
    back, known = tracks.backward(moved)
    assert bool(known[near].all())
    torch.testing.assert_close(back[near], (points0 + offsets)[near], atol=1e-3, rtol=0)


def test_track_warp_knows_nothing_without_tracks_or_points() -> None:
    empty = TrackWarp(torch.zeros(2, 0, 2), torch.zeros(2, 0, 2), torch.eye(2).expand(2, 2, 2), 3.0)
    assert not empty.forward(torch.zeros(2, 5, 2))[1].any()
    one = TrackWarp(torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.eye(2)[None], 3.0)
    _, seen = one.forward(torch.tensor([[[math.nan, 0.0], [0.0, 1.0], [9.0, 9.0]]]))
    assert seen.tolist() == [[False, True, False]]
    assert one.forward(torch.zeros(1, 0, 2))[0].shape == (1, 0, 2)


@given(seed=st.integers(0, 10_000), x=st.floats(0, 299), y=st.floats(0, 199))
def test_aimed_views_look_at_their_targets_from_within(seed: int, x: float, y: float) -> None:
    views = Views(size=64, scale=(0.9, 1.3), perspective=0.05)
    maps = draw_homographies([(300, 200)], views, [seed])
    aimed = aim(maps, [(300, 200)], torch.tensor([[x, y]]), 64, [seed])
    corners = torch.tensor([[[0.0, 0], [63, 0], [63, 63], [0, 63]]], dtype=torch.float64)
    placed = transform_points(torch.linalg.inv(aimed), corners)
    assert bool((placed > -1e-6).all())
    assert bool((placed < placed.new_tensor([299, 199]) + 1e-6).all())
    if 60 < x < 240 and 60 < y < 140:
        seen = transform_points(aimed, torch.tensor([[[x, y]]], dtype=torch.float64))
        assert bool(((seen > 0) & (seen < 63)).all())
    shape = transform_points(torch.linalg.inv(maps), corners)
    torch.testing.assert_close(placed - placed.mean(1), shape - shape.mean(1))  # only moved
