"""Pairs of views from photographs."""

from __future__ import annotations

import math
from pathlib import Path

import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steerers.datasets.folder import (
    Views,
    correspondences,
    draw_homography,
    find_images,
    homography_from_corners,
    load_photos,
    relight,
    render,
    split,
    turn_about_middle,
)
from steerers.geometry import transform_points

seeds = st.integers(0, 2**31 - 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(seed=seeds, width=st.integers(100, 900), height=st.integers(100, 900))
def test_a_view_lies_within_the_photograph_up_to_its_perspective(seed: int, width: int, height: int) -> None:
    views = Views(size=96, perspective=0.0)
    homography = draw_homography((width, height), views, generator(seed))
    corners = torch.tensor([[0.0, 0], [95, 0], [0, 95], [95, 95]], dtype=torch.float64)
    seen = transform_points(torch.linalg.inv(homography), corners)
    assert float(seen.min()) > -1.0
    assert float(seen[:, 0].max()) < width
    assert float(seen[:, 1].max()) < height


@given(seed=seeds)
def test_four_corners_determine_the_homography(seed: int) -> None:
    source = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64) * 100
    target = source + 10 * torch.randn(4, 2, generator=generator(seed), dtype=torch.float64)
    torch.testing.assert_close(transform_points(homography_from_corners(source, target), source), target)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_quarter_turns_of_a_view_are_exact(k: int) -> None:
    views = Views(size=64, photometric=0.0)
    photo = torch.rand(3, 120, 150, generator=generator())
    homography = draw_homography((150, 120), views, generator(1))
    upright = render(photo, homography, 0.0, views, generator())
    turned = render(photo, homography, k * math.pi / 2, views, generator())
    torch.testing.assert_close(turned.image, torch.rot90(upright.image, k, (1, 2)), atol=1e-5, rtol=0)
    assert torch.equal(turned.mask, torch.rot90(upright.mask, k, (0, 1)))


@given(seed=seeds, angle=st.floats(-7, 7))
def test_the_warp_between_views_is_exact(seed: int, angle: float) -> None:
    """A bright dot of the photograph is found where the maps say, in both views."""
    views = Views(size=80, photometric=0.0, scale=(1.5, 2.0))
    xs, ys = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="xy")
    photo = torch.exp(-((xs - 31) ** 2 + (ys - 28) ** 2) / 8)[None].repeat(3, 1, 1)
    for turn in (0.0, angle):
        view = render(photo, draw_homography((60, 60), views, generator(seed)), turn, views, generator())
        expected = transform_points(view.from_photo, torch.tensor([31.0, 28.0]))
        if bool(((expected > 12) & (expected < 67)).all()) and view.mask.all():
            weights = (view.image[0] - 0.2).clamp(min=0)
            columns = torch.arange(80.0)
            centroid = torch.stack([(weights.sum(0) * columns).sum(), (weights.sum(1) * columns).sum()]) / weights.sum()
            assert float((centroid - expected).norm()) < 1.0


def test_what_lies_outside_the_photograph_is_masked() -> None:
    views = Views(size=64, photometric=0.0)
    photo = torch.zeros(3, 64, 64)
    view = render(photo, torch.eye(3, dtype=torch.float64), math.pi / 4, views, generator())
    assert not view.mask[0, 0]
    assert view.mask[32, 32]
    assert float(view.image[0, 0, 0]) == pytest.approx(0.5)


def test_correspondences_are_mutual_and_within_the_radius() -> None:
    first = torch.tensor([[10.0, 10], [20, 20], [30, 30], [30.5, 30]])
    second = torch.tensor([[40.0, 40.4], [21, 20], [60, 60], [61.2, 60]])
    doubled = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    found = correspondences(first, second, doubled, radius=1.0)
    assert found.tolist() == [[1, 0], [2, 2], [3, 3]]
    assert correspondences(first[:0], second, doubled, 1.0).shape == (0, 2)
    assert correspondences(first, second[:0], doubled, 1.0).shape == (0, 2)
    assert correspondences(first, second, doubled, radius=0.1).tolist() == [[2, 2]]


def test_turning_about_the_middle_keeps_the_middle() -> None:
    middle = torch.tensor([31.5, 31.5], dtype=torch.float64)
    torch.testing.assert_close(transform_points(turn_about_middle(64, 1.234), middle), middle)


def test_relighting_stays_in_range_and_follows_the_generator() -> None:
    image = torch.rand(3, 20, 30, generator=generator())
    one, same, other = (relight(image, 1.0, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert float(one.min()) >= 0
    assert float(one.max()) <= 1
    assert torch.equal(relight(image, 0.0, generator()), image)


def test_images_are_found_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.png", "deep/a.JPG", "notes.txt"):
        if name.endswith("txt"):
            (tmp_path / name).write_text("no image")
        else:
            PIL.Image.new("RGB", (8, 8)).save(tmp_path / name)
    assert [path.name for path in find_images(tmp_path)] == ["b.png", "a.JPG"]
    with pytest.raises(ValueError, match="no such folder of images"):
        find_images(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images in .*empty; known endings"):
        find_images(tmp_path / "empty")


def test_a_broken_photograph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot use a photograph: .*broken.jpg"):
        list(load_photos([path], 100, torch.device("cpu")))


def test_splitting_holds_out_at_least_one() -> None:
    chosen, held_out = split(["a", "b"], 0.01, generator())
    assert sorted(chosen + held_out) == [0, 1]
    assert len(held_out) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size of a view must be at least 32 pixels, got 8"),
        ({"scale": (0.0, 1.0)}, "scale must be a range of positive numbers"),
        ({"scale": (2.0, 1.0)}, "scale must be a range of positive numbers"),
        ({"perspective": 0.5}, r"perspective must be in \[0, 0.3\), got 0.5"),
        ({"photometric": 2.0}, r"photometric must be in \[0, 1\], got 2.0"),
    ],
)
def test_wrong_views_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Views(**options)  # type: ignore[arg-type]
