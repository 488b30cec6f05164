"""Pixel frames, rotations, homographies and poses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from helpers import randn, seeds
from steerers.geometry import (
    circular_mode,
    epipolar_errors,
    estimate_affine,
    estimate_homography,
    estimate_pose,
    estimate_similarity,
    farthest_points,
    fit_similarity,
    fundamental_matrix,
    jacobians,
    nearest_points,
    quarter_turns,
    relative_pose,
    resized_points,
    rotate_image,
    rotate_squashed,
    rotation,
    rotation_about_centre,
    rotation_angles,
    rotation_of,
    scale_at,
    scaled_intrinsics,
    scaling,
    to_normalised,
    to_pixels,
    transform_points,
    warp_image,
    weighted_homography,
    window_at,
    wrap_degrees,
)

Array = NDArray[np.float64]

sizes = st.tuples(st.integers(1, 200), st.integers(1, 200))
angles = st.floats(-10, 10)
dtypes = st.sampled_from([torch.float32, torch.float64])
relaxed = settings(deadline=None, max_examples=60)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixel_grid(size: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    """(H, W, 2) pixel centres."""
    xs, ys = (torch.arange(n, dtype=dtype) for n in size)
    return torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)


def gaussian(size: tuple[int, int], centre: Tensor, sigma: float = 2.5) -> Tensor:
    """(1, H, W) blob."""
    return torch.exp(-((pixel_grid(size) - centre) ** 2).sum(-1) / (2 * sigma**2))[None]


def centroid(image: Tensor) -> Tensor:
    """(2,) of a (1, H, W) image."""
    grid = pixel_grid((image.shape[2], image.shape[1]))
    return (grid * image[0, :, :, None]).sum((0, 1)) / image.sum()


# Frames ---------------------------------------------------------------------------------------------------------------


@relaxed
@given(size=sizes, seed=st.integers(0, 1000), dtype=dtypes)
def test_normalised_round_trip(size: tuple[int, int], seed: int, dtype: torch.dtype) -> None:
    xy = (torch.rand(5, 7, 2, generator=generator(seed), dtype=dtype) * 2 - 0.5) * 400
    there = to_normalised(xy, size)
    assert there.dtype == dtype
    torch.testing.assert_close(to_pixels(there, size), xy, atol=TOLERANCE[dtype] * 10, rtol=0)
    back = to_pixels(xy / 200, size)
    torch.testing.assert_close(to_normalised(back, size), xy / 200, atol=TOLERANCE[dtype] * 10, rtol=0)


def test_normalised_spans_the_edges() -> None:
    corners = torch.tensor([[-0.5, -0.5], [6.5, 4.5], [3.0, 2.0]])
    assert to_normalised(corners, (7, 5)).tolist() == [[-1, -1], [1, 1], [0, 0]]
    assert to_pixels(torch.tensor([[-1.0, -1], [1, 1]]), (7, 5)).tolist() == [[-0.5, -0.5], [6.5, 4.5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_agrees_with_grid_sample(dtype: torch.dtype) -> None:
    size = (11, 6)
    image = torch.rand(2, 6, 11, generator=generator(), dtype=dtype)
    grid = to_normalised(pixel_grid(size, dtype), size)
    sampled = grid_sample(image[None], grid[None], align_corners=False)[0]
    torch.testing.assert_close(sampled, image, atol=1e-5, rtol=0)
    between = to_normalised(torch.tensor([[[3.5, 2.0]]], dtype=dtype), size)
    mean = (image[:, 2, 3] + image[:, 2, 4]) / 2
    torch.testing.assert_close(grid_sample(image[None], between[None], align_corners=False)[0, :, 0, 0], mean)


@relaxed
@given(size=sizes, new_size=sizes, other=sizes)
def test_scaling(size: tuple[int, int], new_size: tuple[int, int], other: tuple[int, int]) -> None:
    def corners(s: tuple[int, int]) -> Tensor:
        return torch.tensor([[-0.5, -0.5], [s[0] - 0.5, s[1] - 0.5]], dtype=torch.float64)

    transform = scaling(size, new_size)
    torch.testing.assert_close(transform_points(transform, corners(size)), corners(new_size), atol=1e-9, rtol=0)
    torch.testing.assert_close(scaling(new_size, other) @ transform, scaling(size, other))
    assert torch.equal(scaling(size, size), torch.eye(3, dtype=torch.float64))


def test_scaling_agrees_with_interpolate() -> None:
    image = gaussian((64, 48), torch.tensor([30.2, 21.7]), sigma=6.0)
    smaller = interpolate(image[None], size=(16, 32), mode="area")[0]
    expected = transform_points(scaling((64, 48), (32, 16)), torch.tensor([30.2, 21.7], dtype=torch.float64))
    assert (centroid(smaller) - expected).abs().max() < 0.01
    torch.testing.assert_close(
        resized_points(torch.tensor([30.2, 21.7]).double(), torch.tensor([1 / 2, 1 / 3])), expected
    )


@relaxed
@given(seed=st.integers(0, 1000), dtype=dtypes)
def test_transform_points(seed: int, dtype: torch.dtype) -> None:
    transform = torch.eye(3, dtype=torch.float64) + 0.1 * torch.rand(3, 3, generator=generator(seed)).double()
    xy = torch.rand(4, 3, 2, generator=generator(seed), dtype=dtype) * 10
    mapped = transform_points(transform, xy)
    assert mapped.dtype == dtype
    assert mapped.shape == xy.shape
    x, y, w = transform @ torch.tensor([*xy[2, 1].tolist(), 1.0], dtype=torch.float64)
    torch.testing.assert_close(mapped[2, 1], torch.stack([x / w, y / w]).to(dtype))
    back = transform_points(torch.linalg.inv(transform), mapped)
    torch.testing.assert_close(back, xy, atol=TOLERANCE[dtype] * 10, rtol=1e-4 if dtype == torch.float32 else 1e-9)
    assert transform_points(transform.float(), xy[:0]).shape == (0, 3, 2)


@given(seed=seeds, counts=st.tuples(st.integers(0, 20), st.integers(1, 20)), at_once=st.integers(1, 60))
def test_nearest_points_are_those_of_all_distances(seed: int, counts: tuple[int, int], at_once: int) -> None:
    points, others = randn(counts[0], 2, seed=seed), randn(counts[1], 2, seed=seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steerers.geometry.DISTANCES_AT_ONCE", at_once)
        distance, index = nearest_points(points, others)
    apart = (points[:, None] - others).norm(dim=2)
    assert torch.equal(index, apart.argmin(dim=1))
    torch.testing.assert_close(distance, apart.amin(dim=1))


# Rotations ------------------------------------------------------------------------------------------------------------


@relaxed
@given(k=st.integers(-50, 50), offset=st.sampled_from([0.0, 1e-10, -1e-10]))
def test_quarter_turns(k: int, offset: float) -> None:
    assert quarter_turns(k * math.pi / 2 + offset) == k % 4
    assert quarter_turns(math.radians(90 * k)) == k % 4
    assert quarter_turns(k * math.pi / 2 + 1e-6) is None


@relaxed
@given(a=angles, b=angles)
def test_rotation_is_a_homomorphism(a: float, b: float) -> None:
    torch.testing.assert_close(rotation(a) @ rotation(b), rotation(a + b), atol=1e-8, rtol=0)
    torch.testing.assert_close(rotation(-a), rotation(a).T, atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.linalg.det(rotation(a)), torch.tensor(1.0, dtype=torch.float64))


def test_rotation_is_counter_clockwise_as_seen() -> None:
    right, up = torch.tensor([1.0, 0], dtype=torch.float64), torch.tensor([0, -1.0], dtype=torch.float64)
    assert torch.equal(rotation(math.pi / 2) @ right, up)
    assert rotation(math.pi / 2).tolist() == [[0, 1], [-1, 0]]
    assert (rotation(0.1) @ right)[1] < 0


@relaxed
@given(angle=st.floats(-math.pi + 1e-6, math.pi), scale=st.floats(1e-3, 1e3), dtype=dtypes)
def test_rotation_of_is_the_inverse_of_rotation(angle: float, scale: float, dtype: torch.dtype) -> None:
    found = rotation_of((rotation(angle) * scale).to(dtype))
    assert found is not None
    assert abs(math.remainder(found - angle, 2 * math.pi)) < (1e-5 if dtype == torch.float32 else 1e-8)


@relaxed
@given(angle=angles, seed=st.integers(0, 1000))
def test_rotation_of_is_the_nearest_rotation(angle: float, seed: int) -> None:
    linear = rotation(angle) @ (torch.eye(2) + 0.3 * torch.rand(2, 2, generator=generator(seed))).double()
    found = rotation_of(linear)
    assert found is not None
    distances = [float((linear - rotation(found + delta)).norm()) for delta in (-0.01, 0.0, 0.01)]
    assert distances[1] == min(distances)


@relaxed
@given(angle=angles)
def test_rotation_of_a_mirror_is_none(angle: float) -> None:
    mirror = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert rotation_of(rotation(angle) @ mirror) is None
    assert rotation_of(mirror @ rotation(angle)) is None


@relaxed
@given(size=sizes, k=st.integers(-5, 5))
def test_quarter_turns_move_pixels_as_rot90(size: tuple[int, int], k: int) -> None:
    """Every pixel of the image is found, exactly, where the map says."""
    width, height = size
    labels = torch.arange(width * height).reshape(1, height, width)
    rotated = torch.rot90(labels, k, dims=(1, 2))
    transform, new_size = rotation_about_centre(size, k * math.pi / 2)
    assert new_size == (rotated.shape[2], rotated.shape[1])
    moved = transform_points(transform, pixel_grid(size))
    assert torch.equal(moved, moved.round())
    x, y = moved.long().unbind(-1)
    assert torch.equal(rotated[0, y, x], labels[0])
    image, same = rotate_image(labels, k * math.pi / 2)
    assert torch.equal(image, rotated)
    assert torch.equal(same, transform)


@relaxed
@given(size=sizes, angle=angles)
def test_rotation_about_centre(size: tuple[int, int], angle: float) -> None:
    """The centre stays the centre, and the canvas holds the image without a pixel to spare on either side."""
    transform, new_size = rotation_about_centre(size, angle)
    torch.testing.assert_close(transform[:2, :2], rotation(angle))
    centre = torch.tensor(size, dtype=torch.float64) / 2 - 0.5
    new_centre = torch.tensor(new_size, dtype=torch.float64) / 2 - 0.5
    torch.testing.assert_close(transform_points(transform, centre), new_centre, atol=1e-9, rtol=0)
    corners = torch.tensor([[x, y] for x in (0, size[0]) for y in (0, size[1])], dtype=torch.float64) - 0.5
    moved = transform_points(transform, corners)
    assert moved.min() >= -0.5 - 1e-5
    spare = torch.tensor(new_size, dtype=torch.float64) - (moved.max(0).values - moved.min(0).values)
    assert (spare >= -1e-5).all()
    assert (spare < 1 + 1e-5).all()


@pytest.mark.parametrize("degrees", [0, 10, 45, 89.9, 90, 137, 180, 200.5, 270, -33, 359])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotate_image_keeps_a_dot_where_the_map_says(degrees: float, dtype: torch.dtype) -> None:
    dot = torch.tensor([31.3, 12.6], dtype=torch.float64)
    image = gaussian((50, 35), dot).to(dtype)
    rotated, transform = rotate_image(image, math.radians(degrees))
    assert rotated.dtype == dtype
    error = centroid(rotated.double()) - transform_points(transform, dot)
    assert error.abs().max() < 2e-3
    assert rotated.sum() == pytest.approx(float(image.sum()), rel=1e-3)


def test_half_turn_finds_points_again() -> None:
    image = torch.rand(3, 37, 52, generator=generator())
    rotated, transform = rotate_image(image, math.pi)
    points = torch.rand(100, 2, generator=generator()) * torch.tensor([51.0, 36.0])
    moved = transform_points(transform, points)
    torch.testing.assert_close(moved, torch.tensor([51.0, 36.0]) - points, atol=1e-4, rtol=0)
    samples = [
        grid_sample(picture[None], to_normalised(xy, (52, 37))[None, None], align_corners=False)
        for picture, xy in ((image, points), (rotated, moved))
    ]
    torch.testing.assert_close(*samples, atol=1e-4, rtol=0)


def test_rotate_image_fills_the_corners() -> None:
    image = torch.ones(2, 30, 40)
    rotated, _ = rotate_image(image, math.radians(30), fill=0.25)
    assert (rotated[:, 0, 0] == 0.25).all()
    assert (rotated[:, -1, -1] == 0.25).all()
    torch.testing.assert_close(rotated[:, rotated.shape[1] // 2, rotated.shape[2] // 2], torch.ones(2))
    assert rotated.min() >= 0.25 - 1e-6
    assert rotated.max() <= 1 + 1e-6
    assert (rotate_image(image, math.radians(30))[0][:, 0, 0] == 0).all()


@relaxed
@given(size=sizes, angle=angles)
def test_rotation_on_the_own_canvas(size: tuple[int, int], angle: float) -> None:
    """Centre and size stay; every other point goes where the linear map takes its offset."""
    transform, new_size = rotation_about_centre(size, angle, expand=False)
    assert new_size == size
    centre = np.array(size) / 2 - 0.5
    point = np.array([3.0, -7.0])
    c, s = math.cos(angle), math.sin(angle)
    moved = transform_points(transform, torch.from_numpy(centre + point))
    np.testing.assert_allclose(moved, centre + np.array([c * 3 + s * -7, -s * 3 + c * -7]), atol=1e-9)


@relaxed
@given(size=sizes, k=st.integers(-5, 5))
def test_quarter_turns_on_the_own_canvas_are_cut(size: tuple[int, int], k: int) -> None:
    """What stays of an image that is not square is the middle of the whole rotation, and the rest is filled."""
    width, height = size
    image = torch.rand(2, height, width, generator=generator())
    rotated, _ = rotate_image(image, k * math.pi / 2, fill=-1.0, expand=False)
    assert rotated.shape == image.shape
    whole = torch.rot90(image, k, dims=(1, 2))
    if k % 2 == 0 or width == height:
        assert torch.equal(rotated, whole)
    elif (width - height) % 2 == 0:  # else it is half a pixel off
        side, x, y = min(size), (width - min(size)) // 2, (height - min(size)) // 2
        middle = whole[:, x : x + side, y : y + side]
        torch.testing.assert_close(rotated[:, y : y + side, x : x + side], middle, atol=1e-3, rtol=0)
        assert int((rotated[0] < -0.99).sum()) == width * height - side**2


@pytest.mark.parametrize("degrees", [0, 10, 45, 90, 137, 180, 200.5, 270, -33])
@pytest.mark.parametrize("size", [(200, 90), (70, 160), (120, 120)])
def test_what_was_squashed_rotates_as_if_it_had_its_shape(degrees: float, size: tuple[int, int]) -> None:
    """A dot is found where rotating the image, and then squashing the canvas, takes it."""
    side = (100, 100)
    dot = torch.tensor([0.6 * size[0], 0.42 * size[1]], dtype=torch.float64)
    to_squashed = torch.tensor([side[0] / size[0], side[1] / size[1]], dtype=torch.float64)
    squashed = gaussian(side, (dot + 0.5) * to_squashed - 0.5, sigma=4.0)
    rotated, transform = rotate_squashed(squashed, math.radians(degrees), size)
    assert rotated.shape == (1, 100, 100)
    whole, canvas = rotation_about_centre(size, math.radians(degrees))
    expected = (transform_points(whole, dot) + 0.5) * torch.tensor(side) / torch.tensor(canvas) - 0.5
    moved = transform_points(transform, (dot + 0.5) * to_squashed - 0.5)
    torch.testing.assert_close(moved, expected.double(), atol=1e-9, rtol=0)
    assert (centroid(rotated.double()) - expected).abs().max() < 0.05
    if degrees % 90 == 0:
        assert torch.equal(rotated, torch.rot90(squashed, int(degrees // 90), dims=(1, 2)))


def test_warp_image() -> None:
    image = torch.rand(3, 12, 17, generator=generator())
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(warp_image(image, eye, (17, 12)), image, atol=1e-5, rtol=0)
    shift = eye.clone()
    shift[:2, 2] = torch.tensor([3, -2])
    shifted = warp_image(image, shift, (17, 12), fill=0.5)
    torch.testing.assert_close(shifted[:, :10, 3:], image[:, 2:, :14], atol=1e-5, rtol=0)
    assert (shifted[:, :, :3] == 0.5).all()
    assert (shifted[:, 10:] == 0.5).all()
    assert warp_image(image, shift, (5, 7)).shape == (3, 7, 5)


def test_warp_image_by_a_homography() -> None:
    H = torch.tensor([[0.9, -0.2, 12], [0.15, 1.1, 4], [1e-3, -5e-4, 1]], dtype=torch.float64)
    dot = torch.tensor([40.0, 30.0], dtype=torch.float64)
    warped = warp_image(gaussian((80, 60), dot, sigma=1.5), H, (100, 90))
    peak = int(warped.argmax())
    expected = transform_points(H, dot)
    assert (torch.tensor([peak % 100, peak // 100]) - expected).abs().max() <= 0.75


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
def test_warp_image_strip_by_strip(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.rand(3, 40, 31, generator=torch.Generator().manual_seed(0))
    transform = torch.tensor([[0.9, 0.2, 3.0], [-0.1, 1.1, 2.0], [1e-3, 2e-3, 1.0]], dtype=torch.float64)
    expected = warp_image(image, transform, (37, 45), fill=0.3)
    monkeypatch.setattr("steerers.geometry.MOST_AT_ONCE", at_once)
    assert torch.equal(warp_image(image, transform, (37, 45), fill=0.3), expected)


@relaxed
@given(
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    at=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    radius=st.integers(0, 8),
    k=st.integers(-4, 5),
)
def test_window_of_a_quarter_turn_pixel_by_pixel(
    size: tuple[int, int], at: tuple[float, float], radius: int, k: int
) -> None:
    image, centre = randn(2, size[1], size[0]), (round(at[0] * (size[0] - 1)), round(at[1] * (size[1] - 1)))
    window, transform = window_at(image, centre, radius, k * math.pi / 2, fill=7.0)
    expected = torch.full((2, 2 * radius + 1, 2 * radius + 1), 7.0, dtype=torch.float64)
    for y in range(2 * radius + 1):
        for x in range(2 * radius + 1):
            u, v = centre[0] - radius + x, centre[1] - radius + y
            if 0 <= u < size[0] and 0 <= v < size[1]:
                expected[:, y, x] = image[:, v, u]
    assert torch.equal(window, torch.rot90(expected, k, dims=(1, 2)))
    places = pixel_grid(size)
    for u, v in transform_points(transform, places).flatten(0, 1).tolist():
        assert max(abs(u - round(u)), abs(v - round(v))) < 1e-9
    assert transform_points(transform, torch.tensor([centre], dtype=torch.float64)).tolist() == [[radius, radius]]


@pytest.mark.parametrize("degrees", [10, 45, 137, -33])
def test_window_shows_what_the_image_shows_around_a_pixel(degrees: float) -> None:
    """A dot is where the map says, and no corner is empty as long as there is image."""
    size, centre, dot = (80, 70), (42, 33), torch.tensor([46.0, 29.0], dtype=torch.float64)
    window, transform = window_at(gaussian(size, dot), centre, 20, math.radians(degrees), fill=0.0)
    assert window.shape == (1, 41, 41)
    torch.testing.assert_close(centroid(window), transform_points(transform, dot[None])[0], rtol=0, atol=0.02)
    expected = rotation(math.radians(degrees)) @ (dot - torch.tensor(centre, dtype=torch.float64)) + 20
    torch.testing.assert_close(transform_points(transform, dot[None])[0], expected)
    ones, _ = window_at(torch.ones(1, 70, 80), centre, 20, math.radians(degrees), fill=0.0)
    assert float(ones.min()) == pytest.approx(1)
    beyond, _ = window_at(torch.ones(1, 70, 80), (0, 0), 20, math.radians(degrees), fill=0.25)
    assert float(beyond.min()) == pytest.approx(0.25)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_rotate_image_on_a_gpu_as_on_a_cpu() -> None:
    image = torch.rand(3, 60, 50, generator=torch.Generator().manual_seed(0))
    (rotated, transform), (expected, same) = rotate_image(image.cuda(), 0.7, 0.5), rotate_image(image, 0.7, 0.5)
    assert torch.equal(transform, same)
    torch.testing.assert_close(rotated.cpu(), expected, atol=1e-5, rtol=0)


def test_warp_image_is_finite_at_the_horizon() -> None:
    H = torch.tensor([[1, 0, 0], [0, 1, 0], [0.2, 0, 1]], dtype=torch.float64)  # its horizon is canvas x = 5
    assert torch.isfinite(warp_image(torch.ones(1, 20, 20), H, (20, 20))).all()


# Directions -----------------------------------------------------------------------------------------------------------


@relaxed
@given(
    degrees=st.sampled_from([-179.9, -135.0, -90.3, -1.0, 0.0, 0.4, 45.0, 90.0, 179.2, 179.99, 180.0]),
    seed=st.integers(0, 10_000),
    dtype=dtypes,
)
def test_circular_mode_with_outliers(degrees: float, seed: int, dtype: torch.dtype) -> None:
    """40 % of the angles are anything; the rest are within a few degrees, also across the wrap at 180."""
    rng = generator(seed)
    right = math.radians(degrees) + math.radians(3) * torch.randn(300, generator=rng, dtype=torch.float64)
    wrong = (2 * torch.rand(200, generator=rng, dtype=torch.float64) - 1) * math.pi
    values = torch.cat([right, wrong])
    values = torch.atan2(values.sin(), values.cos()).to(dtype)
    found = circular_mode(values, torch.ones(500, dtype=dtype))
    assert abs(wrap_degrees(math.degrees(found) - degrees)) < 3


@relaxed
@given(angle=st.floats(-20, 20))
def test_circular_mode_of_one_angle(angle: float) -> None:
    found = circular_mode(torch.tensor([angle], dtype=torch.float64), torch.ones(1))
    assert abs(math.remainder(found - angle, 2 * math.pi)) < 1e-9


@given(st.integers(1, 200), st.floats(-10, 10), st.floats(0.01, 1.0), seeds)
def test_circular_mode_against_its_formula(count: int, centre: float, spread: float, seed: int) -> None:
    """The peak of a von Mises density at whole degrees, of angles at whole degrees; then the mean around it."""
    angles = centre + spread * randn(count, seed=seed)
    weights, width = randn(count, seed=seed + 1).abs(), math.radians(10.0)
    degrees = torch.deg2rad(torch.arange(360, dtype=torch.float64))
    rounded = torch.deg2rad(torch.rad2deg(angles).round())
    density = torch.exp((torch.cos(degrees[:, None] - rounded) - 1) / width**2) @ weights  # (360,)
    best = density.topk(2).values
    assume(float(best[0] - best[1]) > 1e-12 * float(best[0]))
    peak = degrees[density.argmax()]
    near = weights * (torch.cos(angles - peak) > math.cos(3 * width))
    mean = torch.atan2((near * torch.sin(angles - peak)).sum(), (near * torch.cos(angles - peak)).sum())
    for found in (circular_mode(angles, weights), circular_mode(angles.tolist(), weights.numpy())):
        assert abs(math.remainder(found - float(peak + mean), 2 * math.pi)) < 1e-9


def test_circular_mode_weighs() -> None:
    values = torch.tensor([0.5] * 10 + [-2.0] * 3)
    weights = torch.tensor([0.1] * 10 + [1.0] * 3)
    assert wrap_degrees(math.degrees(circular_mode(values, weights))) == pytest.approx(math.degrees(-2.0), abs=1e-4)
    assert circular_mode(values, torch.ones(13)) == pytest.approx(0.5, abs=1e-6)


def test_circular_mode_is_no_mean() -> None:
    values = torch.tensor([0.0] * 6 + [math.pi / 2] * 5)
    assert abs(math.remainder(circular_mode(values, torch.ones(11)), 2 * math.pi)) < 1e-6


@relaxed
@given(degrees=st.floats(-1e4, 1e4))
def test_wrap_degrees(degrees: float) -> None:
    wrapped = wrap_degrees(degrees)
    assert -180 < wrapped <= 180
    assert abs(math.remainder(wrapped - degrees, 360)) < 1e-8
    assert wrap_degrees(wrapped) == pytest.approx(wrapped, abs=1e-12)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(0, 0), (180, 180), (-180, 180), (540, 180), (-540, 180), (181, -179), (-181, 179), (360, 0), (90, 90)],
)
def test_wrap_degrees_values(degrees: float, expected: float) -> None:
    assert wrap_degrees(degrees) == expected


def test_wrap_degrees_has_no_negative_zero() -> None:
    assert math.copysign(1, wrap_degrees(0.0)) == 1


# Homographies ---------------------------------------------------------------------------------------------------------


H_TRUE = np.array([[0.9, -0.3, 140], [0.25, 1.05, -20], [1e-4, -5e-5, 1]])
CORNERS = np.array([[0, 0], [639, 0], [0, 479], [639, 479]], np.float64)


def apply(H: Array, points: Array) -> Array:
    return transform_points(torch.from_numpy(H), torch.from_numpy(points)).numpy()


def homography_data(seed: int, count: int = 400, noise: float = 0.5) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Points of a 640 x 480 image, their noisy images under ``H_TRUE``, half of them wrong, and which are right."""
    rng = np.random.default_rng(seed)
    points0 = rng.uniform(0, 1, (count, 2)) * [640, 480]
    points1 = apply(H_TRUE, points0) + rng.normal(0, noise, (count, 2))
    right = rng.permutation(count) < count // 2
    points1[~right] = rng.uniform(0, 1, (count - count // 2, 2)) * [640, 480]
    return points0, points1, right


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_homography_with_half_outliers(seed: int, dtype: Any) -> None:
    points0, points1, right = homography_data(seed)
    H, inliers = estimate_homography(points0.astype(dtype), points1.astype(dtype))
    assert H is not None
    assert H.dtype == np.float64
    assert np.linalg.norm(apply(H, CORNERS) - apply(H_TRUE, CORNERS), axis=1).max() < 0.5
    assert inliers.dtype == bool
    assert inliers.shape == (400,)
    assert inliers[right].mean() > 0.98
    assert inliers[~right].mean() < 0.02


def test_homography_is_repeatable() -> None:
    points0, points1, _ = homography_data(7, noise=1.5)
    first = estimate_homography(points0, points1, seed=3)
    estimate_homography(points1, points0, seed=5)
    second = estimate_homography(points0, points1, seed=3)
    assert first.H is not None
    assert second.H is not None
    assert np.array_equal(first.H, second.H)
    assert np.array_equal(first.inliers, second.inliers)


def test_homography_of_four_points() -> None:
    H, inliers = estimate_homography(CORNERS, apply(H_TRUE, CORNERS))
    assert H is not None
    assert inliers.all()
    np.testing.assert_allclose(apply(H, CORNERS), apply(H_TRUE, CORNERS), atol=0.01)


def test_homography_threshold() -> None:
    points0, points1, right = homography_data(1, noise=1.0)
    tight = estimate_homography(points0, points1, threshold=0.5)
    wide = estimate_homography(points0, points1, threshold=5.0)
    assert tight.inliers.sum() < 0.8 * wide.inliers.sum()
    assert wide.inliers[right].all()
    for threshold in (0, -1, math.nan):
        with pytest.raises(ValueError, match="threshold must be positive, got"):
            estimate_homography(points0, points1, threshold=threshold)


LINE = np.stack([np.arange(20.0), 2 * np.arange(20.0) + 1], axis=1)


@pytest.mark.parametrize(
    ("points0", "points1"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2))),
        (CORNERS[:1], CORNERS[:1]),
        (CORNERS[:3], CORNERS[:3]),
        (np.full((20, 2), 5.0), np.full((20, 2), 7.0)),
        (LINE, LINE * 3),
        (homography_data(0)[0][:20], np.full((20, 2), 7.0)),
        (np.repeat(CORNERS[:3], 5, axis=0), np.repeat(CORNERS[:3], 5, axis=0)),
    ],
    ids=["none", "one", "three", "equal", "collinear", "to one point", "three places"],
)
def test_points_that_determine_no_homography(points0: Array, points1: Array) -> None:
    H, inliers = estimate_homography(points0, points1)
    assert H is None
    assert inliers.shape == (len(points0),)
    assert inliers.dtype == bool
    assert not inliers.any()


def test_homography_needs_pairs() -> None:
    points0, points1, _ = homography_data(0)
    with pytest.raises(ValueError, match="points"):
        estimate_homography(points0[:10], points1[:11])


def scattered(seed: int, count: int = 80, wrong: int = 0) -> tuple[Array, Array, Array]:
    """Points, where the homography has them but for noise of known covariances, of 0.03 to 0.8 pixels along axes of any
    direction, and these. A fifth were not registered; so many are off by up to 2.5 pixels, whatever is said of them."""
    rng = np.random.default_rng(seed)
    points0 = rng.uniform(0, 1, (count, 2)) * [640, 480]
    deviations = np.exp(rng.uniform(np.log(0.03), np.log(0.8), (count, 2)))
    angles = rng.uniform(0, np.pi, count)
    axes = np.stack([np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)], axis=1).reshape(-1, 2, 2)
    covariances = (axes * deviations[:, None] ** 2) @ axes.swapaxes(1, 2)
    covariances[: count // 5] = 0.7**2 * np.eye(2)
    noise = (np.linalg.cholesky(covariances) @ rng.normal(size=(count, 2, 1)))[..., 0]
    noise[count - wrong :] += rng.uniform(-2.5, 2.5, (wrong, 2))
    covariances[: count // 5] = np.inf
    return points0, apply(H_TRUE, points0) + noise, covariances


def corner_error(H: Array) -> float:
    return float(np.linalg.norm(apply(H, CORNERS) - apply(H_TRUE, CORNERS), axis=1).mean())


@pytest.mark.parametrize("wrong", [0, 6])
def test_covariances_make_homographies_exact(wrong: int) -> None:
    """The best that can be done with such noise is known: least squares with the true weights, started at the truth."""
    errors = []
    for seed in range(20):
        points0, points1, covariances = scattered(seed, wrong=wrong)
        H, inliers = estimate_homography(points0, points1)
        assert H is not None
        told = points0[inliers], points1[inliers], covariances[inliers]
        found, ideal = weighted_homography(H, *told), weighted_homography(H_TRUE, *told)
        np.testing.assert_allclose(apply(found, CORNERS), apply(ideal, CORNERS), atol=1e-3)
        errors.append((corner_error(H), corner_error(found)))
    plain, weighted = np.mean(errors, axis=0)
    assert weighted < 0.35 * plain


def test_covariances_are_symmetric_but_for_rounding() -> None:
    points0, points1, covariances = scattered(0)
    nearly = covariances.copy()
    nearly[-1] = [[1.0, 1.0e-5], [1.2e-5, 1.0]]
    exactly = nearly.copy()
    exactly[-1] = [[1.0, 1.1e-5], [1.1e-5, 1.0]]
    found, expected = (weighted_homography(H_TRUE, points0, points1, told) for told in (nearly, exactly))
    np.testing.assert_allclose(found, expected)


def test_equal_covariances_are_least_squares() -> None:
    """As OpenCV's, without a robust estimator."""
    cv2 = pytest.importorskip("cv2")
    points0, points1, _ = scattered(3)
    expected, _ = cv2.findHomography(points0, points1, 0)
    found = weighted_homography(H_TRUE, points0, points1, np.full((80, 2, 2), 25.0) * np.eye(2))
    np.testing.assert_allclose(apply(found, CORNERS), apply(expected, CORNERS), atol=0.02)


def test_weighted_points_that_determine_no_homography() -> None:
    for points in (CORNERS[:3], LINE, np.full((9, 2), 5.0), np.zeros((0, 2))):
        covariances = np.tile(np.eye(2), (len(points), 1, 1))
        assert np.array_equal(weighted_homography(H_TRUE, points, points, covariances), H_TRUE)


@pytest.mark.parametrize(
    ("covariances", "message"),
    [
        (np.ones((4, 2)), r"covariances must have shape \(4, 2, 2\) to go with 4 points, got \(4, 2\)"),
        (np.tile(-np.eye(2), (4, 1, 1)), "covariances must be symmetric and positive"),
        (np.tile([[1.0, 2.0], [0.0, 1.0]], (4, 1, 1)), "covariances must be symmetric and positive"),
        (np.full((4, 2, 2), np.nan), "covariances must be symmetric and positive"),
    ],
    ids=["shape", "negative", "skew", "nan"],
)
def test_covariances_that_are_none(covariances: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weighted_homography(H_TRUE, CORNERS, CORNERS, covariances)


# Similarities and affine maps -----------------------------------------------------------------------------------------


SIMILARITY = np.array([[0.4, -1.2, 300], [1.2, 0.4, -50], [0, 0, 1]])
AFFINE = np.array([[0.9, -0.3, 140], [0.5, 1.4, -20], [0, 0, 1]])
STIFF = [(estimate_similarity, SIMILARITY, 2), (estimate_affine, AFFINE, 3)]


def stiff_data(seed: int, truth: Array, dtype: Any = np.float64) -> tuple[Any, Any, NDArray[np.bool_]]:
    """As :func:`homography_data`, seven of ten wrong."""
    rng = np.random.default_rng(seed)
    points0 = rng.uniform(0, 1, (300, 2)) * [640, 480]
    points1 = apply(truth, points0) + rng.normal(0, 0.5, (300, 2))
    right = rng.permutation(300) < 90
    points1[~right] = rng.uniform(-400, 900, (210, 2))
    return points0.astype(dtype), points1.astype(dtype), right


@pytest.mark.parametrize(("estimate", "truth", "least"), STIFF)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stiff_maps_with_many_outliers(estimate: Any, truth: Array, least: int, dtype: Any) -> None:
    for seed in range(3):
        points0, points1, right = stiff_data(seed, truth, dtype)
        found, inliers = estimate(points0, points1, 2.0)
        assert found.dtype == np.float64
        assert np.linalg.norm(apply(found, CORNERS) - apply(truth, CORNERS), axis=1).max() < 0.8
        assert found[2].tolist() == [0, 0, 1]
        assert inliers[right].mean() > 0.95
        assert inliers[~right].mean() < 0.02
        again = estimate(points0, points1, 2.0)
        assert np.array_equal(found, again.H)
        assert np.array_equal(inliers, again.inliers)


@pytest.mark.parametrize(("estimate", "truth", "least"), STIFF)
def test_stiff_maps_of_few_points(estimate: Any, truth: Array, least: int) -> None:
    points = CORNERS[:least]
    found, inliers = estimate(points, apply(truth, points))
    np.testing.assert_allclose(found, truth, atol=1e-3)  # OpenCV computes in float32
    assert inliers.all()
    one = np.full((20, 2), 5.0)
    for few, aims in ((points[: least - 1],) * 2, (one, one), (homography_data(0)[0][:20], one)):
        found, inliers = estimate(few, aims)
        assert found is None
        assert inliers.tolist() == [False] * len(few)
    with pytest.raises(ValueError, match="threshold must be positive"):
        estimate(points, points, 0)


def test_similarity_is_the_least_squares_one() -> None:
    """Against complex least squares written out, of points without outliers."""
    rng = np.random.default_rng(1)
    points0 = rng.uniform(0, 500, (50, 2))
    points1 = apply(SIMILARITY, points0) + rng.normal(0, 0.1, (50, 2))
    x, y = points0.T
    zeros, ones = np.zeros(50), np.ones(50)
    rows = np.concatenate([np.stack([x, -y, ones, zeros], 1), np.stack([y, x, zeros, ones], 1)])
    a, b, right, down = np.linalg.lstsq(rows, np.concatenate(points1.T), rcond=None)[0]
    found, _ = estimate_similarity(points0, points1, 1000.0)  # weights are nearly equal
    np.testing.assert_allclose(found, [[a, -b, right], [b, a, down], [0, 0, 1]], rtol=1e-6, atol=1e-6)


# Poses ----------------------------------------------------------------------------------------------------------------


K0 = np.array([[500, 0, 320], [0, 510, 240], [0, 0, 1]], np.float64)
K1 = np.array([[700, 0, 300], [0, 690, 260], [0, 0, 1]], np.float64)


def pose_data(seed: int) -> tuple[Array, Array, Array, Array, NDArray[np.bool_]]:
    """Points of two views, a third of them wrong; R, t; and which are right."""
    rng = np.random.default_rng(seed)
    axis = rng.normal(size=3)
    x, y, z = 0.5 * axis / np.linalg.norm(axis)
    R = torch.linalg.matrix_exp(torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)).numpy()
    t = rng.normal(size=3)
    t /= np.linalg.norm(t)
    X0 = np.column_stack([rng.uniform(-2, 2, (300, 2)), rng.uniform(5, 9, 300)])
    X1 = X0 @ R.T + t
    points0, points1 = ((X @ K.T)[:, :2] / X[:, 2:] + rng.normal(0, 0.5, (300, 2)) for X, K in ((X0, K0), (X1, K1)))
    right = rng.permutation(300) < 200
    points1[~right] = rng.uniform(0, 600, (100, 2))
    return points0, points1, R, t, right


def degrees_between(a: Array, b: Array) -> float:
    return math.degrees(math.acos(min(1.0, float((a * b).sum()) / float(np.linalg.norm(a) * np.linalg.norm(b)))))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pose_with_outliers(seed: int, dtype: Any) -> None:
    points0, points1, R, t, right = pose_data(seed)
    pose = estimate_pose(points0.astype(dtype), points1.astype(dtype), K0, K1)
    assert pose.R is not None
    assert pose.t is not None
    cosine = (np.trace(pose.R.T @ R) - 1) / 2
    assert math.degrees(math.acos(min(1.0, float(cosine)))) < 1
    assert degrees_between(pose.t, t) < 2
    assert np.linalg.norm(pose.t) == pytest.approx(1)
    np.testing.assert_allclose(pose.R @ pose.R.T, np.eye(3), atol=1e-9)
    assert pose.inliers.shape == (300,)
    assert pose.inliers.dtype == bool
    assert pose.inliers[right].mean() > 0.8
    assert pose.inliers[~right].mean() < 0.1


def test_pose_is_repeatable() -> None:
    points0, points1, *_ = pose_data(0)
    first = estimate_pose(points0, points1, K0, K1, seed=4)
    estimate_pose(points0, points1, K0, K1, seed=8)
    second = estimate_pose(points0, points1, K0, K1, seed=4)
    assert first.R is not None
    assert second.R is not None
    assert np.array_equal(first.R, second.R)
    assert np.array_equal(first.inliers, second.inliers)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_fewer_than_five_points_give_no_pose(count: int) -> None:
    points0, points1, *_ = pose_data(0)
    R, t, inliers = estimate_pose(points0[:count], points1[:count], K0, K1)
    assert R is None
    assert t is None
    assert inliers.shape == (count,)
    assert not inliers.any()


def test_nan_coordinates_are_refused() -> None:
    points = np.full((20, 2), np.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        estimate_pose(points, points, np.eye(3), np.eye(3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        estimate_homography(points, points)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda K: K[:2], "K1 must be a finite 3 x 3 intrinsic matrix"),
        (lambda K: K.ravel(), "K1 must be a finite 3 x 3"),
        (lambda K: K * np.nan, "K1 must be a finite 3 x 3"),
        (lambda K: K * [[-1], [1], [1]], "positive focal lengths"),
        (lambda K: K * [[1], [0], [1]], "positive focal lengths"),
        (lambda K: K + np.diag([5.0, 0], k=1), r"K1 has skew 5\.0"),
    ],
)
def test_wrong_intrinsics(change: Any, message: str) -> None:
    points0, points1, *_ = pose_data(0)
    for count in (0, 300):
        with pytest.raises(ValueError, match=message):
            estimate_pose(points0[:count], points1[:count], K0, change(K1))
        with pytest.raises(ValueError, match=message.replace("K1", "K0")):
            estimate_pose(points0[:count], points1[:count], change(K0), K1)


def test_pose_threshold() -> None:
    points0, points1, *_ = pose_data(0)
    with pytest.raises(ValueError, match="threshold must be positive, got 0"):
        estimate_pose(points0, points1, K0, K1, threshold=0)
    tight, wide = (estimate_pose(points0, points1, K0, K1, threshold=x).inliers.sum() for x in (0.3, 3.0))
    assert tight < 0.8 * wide


def test_pose_needs_pairs() -> None:
    points0, points1, *_ = pose_data(0)
    with pytest.raises(ValueError, match="points"):
        estimate_pose(points0[:10], points1[:11], K0, K1)


@given(seed=st.integers(0, 2**32 - 1), off=st.floats(0.01, 20))
def test_epipolar_errors_are_distances_to_the_lines_written_out(seed: int, off: float) -> None:
    """Each line through two of its points, and a match that is moved off both lines."""
    rng = np.random.default_rng(seed)
    fundamental = np.linalg.svd(rng.normal(size=(3, 3)))[0] @ np.diag([3.0, 1, 0]) @ rng.normal(size=(3, 3))
    points0, points1 = rng.uniform(0, 100, (2, 8, 2))
    found = epipolar_errors(points0, points1 + off, fundamental)
    for x0, x1, error in zip(points0, points1 + off, found, strict=True):
        apart = [distance(fundamental @ [*x0, 1], x1), distance(fundamental.T @ [*x1, 1], x0)]
        assert error == pytest.approx(max(apart), rel=1e-6)
    swapped = epipolar_errors(points1 + off, points0, fundamental.T)
    np.testing.assert_allclose(found, swapped, rtol=1e-9)


def distance(line: np.ndarray, point: np.ndarray) -> float:
    """From a point to the line a x + b y + c = 0, by two points of it."""
    a, b, c = line
    first = np.array([0, -c / b])
    along = np.array([b, -a]) / math.hypot(a, b)
    away = point - first
    return float(np.linalg.norm(away - (away @ along) * along))


def test_what_has_no_epipolar_line_has_no_error() -> None:
    points = np.array([[3.0, 4.0], [5.0, 6.0]])
    assert epipolar_errors(points, points, np.zeros((3, 3))).tolist() == [math.inf, math.inf]
    assert epipolar_errors(points[:0], points[:0], np.eye(3)).shape == (0,)


def test_scaled_intrinsics_move_edges_to_edges() -> None:
    K = np.array([[120.0, 0, 79.5], [0, 130.0, 59.5], [0, 0, 1]])
    rays = np.column_stack([np.random.default_rng(3).uniform(-0.5, 0.5, (12, 2)), np.ones(12)])
    stored, small = ((rays @ of.T)[:, :2] for of in (K, scaled_intrinsics(K, (160, 120), (80, 40))))
    np.testing.assert_allclose(small, (stored + 0.5) * [1 / 2, 1 / 3] - 0.5)


@given(seed=seeds)
def test_relative_poses_take_points_from_one_camera_to_the_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    R0, R1 = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    t0, t1, X = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(9, 3))
    R, t = relative_pose(R0, t0, R1, t1)
    np.testing.assert_allclose((X @ R0.T + t0) @ R.T + t, X @ R1.T + t1, atol=1e-9)


@given(seed=seeds, spin=st.floats(-1, 1))
def test_true_matches_lie_on_the_lines_of_the_cameras(seed: int, spin: float) -> None:
    rng = np.random.default_rng(seed)
    K0, K1 = (np.array([[f, 0, 320.0], [0, f, 240.0], [0, 0, 1]]) for f in rng.uniform(300, 900, 2))
    c, s = math.cos(spin), math.sin(spin)
    R, t = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), rng.normal(size=3)
    X = rng.uniform(-1, 1, (20, 3)) + np.array([0, 0, 6])
    x0, x1 = (P / P[:, 2:] for P in (X @ K0.T, (X @ R.T + t) @ K1.T))
    errors = epipolar_errors(x0[:, :2], x1[:, :2], fundamental_matrix(K0, K1, R, t))
    np.testing.assert_allclose(errors, 0, atol=1e-6)


@given(seeds, st.floats(-3, 3), st.floats(0.3, 3))
def test_a_similarity_has_its_angle_and_scale_everywhere(seed: int, angle: float, scale: float) -> None:
    H = np.eye(3)
    H[:2, :2] = scale * rotation(angle).numpy()
    H[:2, 2] = randn(2, seed=seed).numpy()
    points = 50 * randn(6, 2, seed=seed + 1).numpy()
    assert np.allclose(np.cos(rotation_angles(jacobians(H, points)) - angle), 1)
    assert scale_at(H, points[0]) == pytest.approx(scale)
    moved = transform_points(torch.from_numpy(H), torch.from_numpy(points)).numpy()
    assert np.allclose(fit_similarity(points, moved), H)


@given(seeds, st.integers(1, 12))
def test_farthest_points_one_by_one(seed: int, count: int) -> None:
    points, worth = randn(9, 2, seed=seed).numpy(), randn(9, seed=seed + 1).abs().numpy()
    worth[4] = 0
    for weights in (None, worth):
        kept = farthest_points(points, count, 2, weights)
        usable = [k for k in range(9) if weights is None or weights[k] > 0]
        assert kept[0] == 2
        assert len(set(kept)) == len(kept) == min(count, len(usable))
        for step in range(1, len(kept)):
            gains = {
                k: min(math.dist(points[k], points[other]) for other in kept[:step])
                * (1 if weights is None else math.sqrt(weights[k]))
                for k in usable
                if k not in kept[:step]
            }
            assert gains[kept[step]] == pytest.approx(max(gains.values()))
