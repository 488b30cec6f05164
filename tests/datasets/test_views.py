"""Square views of photographs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, seeds
from steerers.datasets import views
from steerers.datasets.pairs import ViewWarp
from steerers.datasets.views import (
    Views,
    draw_homographies,
    draw_whole,
    fit_view,
    homographies_from_corners,
    render_views,
    rotations_about_middle,
)
from steerers.geometry import transform_points

pytestmark = pytest.mark.usefixtures("one_thread")

IDENTITY = torch.eye(3, dtype=torch.float64)
CORNERS = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
NO_ROTATION = torch.zeros(1, dtype=torch.float64)


def noise(width: int, height: int, seed: int = 0) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def dot(x: float, y: float, size: int, spread: float) -> Tensor:
    """A (3, size, size) photograph of one bright, smooth dot."""
    axis = torch.arange(float(size))
    bright = torch.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / (2 * spread**2))
    return bright.expand(3, -1, -1).contiguous()


def centroid(image: Tensor) -> Tensor:
    """(2,) where the light of a (3, S, S) image lies."""
    weights = (image[0].double() - 0.1).clamp(min=0)
    axis = torch.arange(image.shape[1], dtype=torch.float64)
    return torch.stack([(weights.sum(0) * axis).sum(), (weights.sum(1) * axis).sum()]) / weights.sum()


# Maps -----------------------------------------------------------------------------------------------------------------


@given(seed=seeds, width=st.integers(100, 900), height=st.integers(100, 900), tilt=st.floats(1, 4))
def test_a_view_lies_within_the_photograph_up_to_its_perspective(
    seed: int, width: int, height: int, tilt: float
) -> None:
    views = Views(size=96, tilt=tilt, perspective=0.0)
    homography = draw_homographies([(width, height)], views, [seed])[0]
    edges = 96 * CORNERS - 0.5  # pixels have an extent
    seen = transform_points(torch.linalg.inv(homography), edges)
    assert float(seen.min()) > -0.5 - 1e-6
    assert float(seen[:, 0].max()) < width - 0.5 + 1e-6
    assert float(seen[:, 1].max()) < height - 0.5 + 1e-6


@given(seed=seeds, share=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_views_with_a_focus_see_it_from_within_the_photograph(seed: int, share: tuple[float, float]) -> None:
    views, sizes = Views(size=96, scale=(0.5, 2.5), perspective=0.0), [(400, 300)] * 2
    focus = torch.tensor([[399.0 * share[0], 299.0 * share[1]]], dtype=torch.float64).repeat(2, 1)
    maps = draw_homographies(sizes, views, [seed, seed + 1], focus)
    placed = transform_points(maps, focus[:, None])
    assert bool(((placed >= -0.5) & (placed <= 95.5 + 1e-6)).all())
    seen = transform_points(torch.linalg.inv(maps), (96 * CORNERS - 0.5).expand(2, 4, 2))
    assert float(seen.min()) > -0.5 - 1e-6
    assert bool((seen.amax(dim=(0, 1)) < torch.tensor([400.0, 300.0]) - 0.499).all())


def test_a_focus_is_not_always_in_the_middle() -> None:
    focus = torch.tensor([[450.0, 450.0]], dtype=torch.float64).repeat(200, 1)
    maps = draw_homographies([(900, 900)] * 200, Views(size=96, perspective=0.0), range(200), focus)
    off = (transform_points(maps, focus[:, None])[:, 0] - 47.5) / 96
    assert float(off.abs().max()) <= 0.25 + 1e-9
    assert bool((off.amin(dim=0) < -0.22).all() & (off.amax(dim=0) > 0.22).all())


def test_the_range_of_scales_is_reached_and_kept() -> None:
    views = Views(size=64, scale=(0.5, 2.5), perspective=0.0)
    maps = draw_homographies([(900, 700)] * 200, views, range(200))
    zoom = torch.linalg.det(maps[:, :2, :2]).sqrt()
    assert float(zoom.min()) >= 0.5
    assert float(zoom.max()) <= 2.5
    assert float(zoom.max() / zoom.min()) > 4.5
    pairs = zoom.view(2, 100).log()
    assert float((pairs[0] - pairs[1]).abs().max().exp()) >= 4  # between the two views of one pair


def test_a_photograph_that_is_too_small_is_enlarged() -> None:
    maps = draw_homographies([(40, 80)] * 20, Views(size=64, scale=(0.5, 1.0), perspective=0.0), range(20))
    torch.testing.assert_close(maps[:, 0, 0], torch.full((20,), 1.6, dtype=torch.float64))


def test_tilts_foreshorten_up_to_their_limit_in_all_directions() -> None:
    maps = draw_homographies([(900, 900)] * 200, Views(size=64, scale=(1, 1), tilt=2.0, perspective=0.0), range(200))
    _, stretch, axes = torch.linalg.svd(maps[:, :2, :2])
    ratio = stretch[:, 0] / stretch[:, 1]
    assert float(ratio.max()) <= 2.0 + 1e-9
    assert float(ratio.max()) > 1.9
    assert float(ratio.min()) < 1.1
    torch.testing.assert_close(stretch.prod(dim=1), torch.ones(200, dtype=torch.float64))
    directions = torch.atan2(axes[:, 1, 1], axes[:, 1, 0]) % math.pi
    assert float(torch.histc(directions, 4, 0, math.pi).min()) > 30


@given(seed=seeds, perspective=st.floats(0, 0.2))
def test_perspective_moves_each_corner_by_its_share_at_most(seed: int, perspective: float) -> None:
    plain, moved = (
        draw_homographies([(300, 300)], Views(size=65, perspective=share), [seed])[0] for share in (0.0, perspective)
    )
    corners = 64 * CORNERS
    shift = transform_points(moved @ torch.linalg.inv(plain), corners) - corners
    assert float(shift.abs().max()) <= perspective * 65 + 1e-6


@given(seed=seeds)
def test_four_corners_determine_homographies(seed: int) -> None:
    source = 100 * CORNERS.repeat(3, 1, 1)
    target = source + 10 * randn(3, 4, 2, seed=seed)
    found = homographies_from_corners(source, target)
    torch.testing.assert_close(transform_points(found, source), target)
    torch.testing.assert_close(found[:1], homographies_from_corners(source[:1], target[:1]))


@given(angle=st.floats(-10, 10), size=st.integers(32, 500))
@example(angle=1.2e-10, size=32)
def test_rotating_about_the_middle_keeps_the_middle_and_adds_up(angle: float, size: int) -> None:
    middle = torch.full((1, 2), (size - 1) / 2, dtype=torch.float64)
    rotations = rotations_about_middle(size, torch.tensor([angle, 0.5, angle + 0.5], dtype=torch.float64))
    for rotation in rotations:
        torch.testing.assert_close(transform_points(rotation, middle), middle)
    # What is a quarter turn to within 1e-9 radians is made one, which moves pixels by as much times their distance.
    torch.testing.assert_close(rotations[0] @ rotations[1], rotations[2], atol=2e-9 * size, rtol=0)


@given(k=st.integers(-8, 8), x=st.integers(0, 32), y=st.integers(0, 32))
def test_rotations_move_pixels_as_rot90_does(k: int, x: int, y: int) -> None:
    image = torch.zeros(33, 33)
    image[y, x] = 1
    row, column = torch.rot90(image, k).nonzero()[0].tolist()
    rotation = rotations_about_middle(33, torch.tensor([k * math.pi / 2], dtype=torch.float64))[0]
    assert transform_points(rotation, torch.tensor([x, y], dtype=torch.float64)).tolist() == [column, row]


@given(width=st.integers(20, 900), height=st.integers(20, 900))
def test_a_fitted_view_shows_the_whole_photograph(width: int, height: int) -> None:
    edges = torch.tensor([width, height]) * CORNERS - 0.5
    placed = transform_points(fit_view((width, height), 64), edges)
    reach = 32 * torch.tensor([width, height], dtype=torch.float64) / max(width, height)
    torch.testing.assert_close(placed.amin(dim=0), 31.5 - reach)
    torch.testing.assert_close(placed.amax(dim=0), 31.5 + reach)


@given(width=st.integers(20, 900), height=st.integers(20, 900), seed=seeds)
def test_a_squashed_view_is_filled_by_the_photograph_but_for_a_shift(width: int, height: int, seed: int) -> None:
    edges = torch.tensor([width, height]) * CORNERS - 0.5
    placed = transform_points(draw_whole([(width, height)], Views(size=64, resize="squash"), [seed])[0], edges)
    shift = (placed - (64 * CORNERS - 0.5))[0]
    torch.testing.assert_close(placed, 64 * CORNERS - 0.5 + shift)
    torch.testing.assert_close(shift, shift.round())
    assert float(shift.abs().max()) < views.SHAKE + 0.5


def test_a_part_of_a_photograph_is_not_squashed() -> None:
    with pytest.raises(ValueError, match="resize 'squash' is for MegaDepth and reconstructions"):
        draw_homographies([(90, 60)], Views(size=64, resize="squash"), [0])
    with pytest.raises(ValueError, match="resize must be letterbox or squash, got crop"):
        Views(resize="crop")  # type: ignore[arg-type]


# Pixels ---------------------------------------------------------------------------------------------------------------


def test_a_view_that_changes_nothing_is_the_photograph() -> None:
    photo = noise(64, 64)
    images, masks, from_photos = render_views([photo], IDENTITY[None], NO_ROTATION, 64)
    torch.testing.assert_close(images[0], photo, atol=1e-5, rtol=0)
    assert masks.all()
    assert images.dtype == torch.float32
    assert torch.equal(from_photos[0], IDENTITY)


def test_photographs_may_be_bytes_or_numbers() -> None:
    levels = (noise(80, 70) * 255).round().to(torch.uint8)
    maps = draw_homographies([(80, 70)] * 3, Views(size=48), range(3))
    photos = [levels, levels.float() / 255, levels.double() / 255]
    for k in range(3):
        images, _, _ = render_views(photos, maps[k].repeat(3, 1, 1), NO_ROTATION.repeat(3), 48)
        torch.testing.assert_close(images[0], images[1])
        torch.testing.assert_close(images[0], images[2])


@given(seed=seeds, k=st.integers(-4, 7))
def test_quarter_turns_of_a_view_are_exact_in_any_company(seed: int, k: int) -> None:
    photo = noise(150, 120)
    maps = draw_homographies([(150, 120)], Views(size=48, tilt=2.0), [seed]).repeat(3, 1, 1)
    rotations = torch.tensor([0.0, k * math.pi / 2, 0.3], dtype=torch.float64)
    images, masks, from_photos = render_views([photo] * 3, maps, rotations, 48)
    assert torch.equal(images[1], torch.rot90(images[0], k, (1, 2)))
    assert torch.equal(masks[1], torch.rot90(masks[0], k, (0, 1)))
    torch.testing.assert_close(from_photos, rotations_about_middle(48, rotations) @ maps)


@given(seed=seeds, angles=st.tuples(st.floats(-7, 7), st.floats(-7, 7)))
def test_the_warp_between_views_is_exact(seed: int, angles: tuple[float, float]) -> None:
    """A dot of the photograph is found where the maps say, and where the warp takes it from one view to the other."""
    views = Views(size=80, scale=(1.0, 1.6), tilt=2.0, perspective=0.1)
    maps = draw_homographies([(120, 120)] * 2, views, [seed, seed + 1])
    middles = transform_points(torch.linalg.inv(maps), torch.full((2, 1, 2), 39.5, dtype=torch.float64))
    place = middles.mean(dim=(0, 1))  # in the photograph, between the middles of the views
    rotations = torch.tensor(angles, dtype=torch.float64)
    images, masks, from_photos = render_views([dot(*place.tolist(), 120, spread=2.0)] * 2, maps, rotations, 80)
    expected = transform_points(from_photos, place.expand(2, 1, 2))[:, 0]  # (2, 2)
    assume(bool(((expected > 14) & (expected < 65)).all()))
    found = torch.stack([centroid(image * mask) for image, mask in zip(images, masks, strict=True)])  # (2, 2)
    assert float((found - expected).norm(dim=1).max()) < 0.3
    warp = ViewWarp(from_photos[:1], from_photos[1:], masks[:1], masks[1:])
    for way, k in ((warp.forward, 0), (warp.backward, 1)):
        moved, valid = way(found[k].view(1, 1, 2))
        assert bool(valid.all())
        assert float((moved[0, 0] - found[1 - k]).norm()) < 0.8


@given(seed=seeds, angle=st.floats(-7, 7))
def test_masks_tell_what_the_photograph_covers(seed: int, angle: float) -> None:
    views = Views(size=48, scale=(0.5, 1.0), perspective=0.2)
    photo = torch.ones(3, 60, 50)
    rotations = torch.tensor([angle], dtype=torch.float64)
    images, masks, from_photos = render_views([photo], draw_homographies([(50, 60)], views, [seed]), rotations, 48)
    axis = torch.arange(48, dtype=torch.float64)
    pixels = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)  # (S, S, 2)
    source = transform_points(torch.linalg.inv(from_photos[0]), pixels)
    margin = torch.stack([source, torch.tensor([49.0, 59.0]) - source]).amin(dim=(0, 3))  # of the photograph's inside
    assert bool(masks[0][margin > 1e-3].all())
    assert not bool(masks[0][margin < -1e-3].any())
    torch.testing.assert_close(images, torch.where(masks, 1.0, 0.5)[:, None].expand_as(images), atol=1e-5, rtol=0)


def test_a_view_that_ends_with_its_photograph_is_covered_to_its_edge() -> None:
    maps = draw_homographies([(48, 48)] * 8, Views(size=48, scale=(1.0, 1.0), perspective=0.0), range(8))
    _, masks, _ = render_views([noise(48, 48)] * 8, maps, NO_ROTATION.repeat(8), 48)
    assert masks.all()


def test_what_lies_beyond_the_horizon_is_masked() -> None:
    """A plane seen at a slant: its far end is a line in the view, and above that line there is nothing."""
    seen = torch.tensor([[24.0, 20], [40, 20], [64, 64], [0, 64]], dtype=torch.float64)  # of a square
    homography = homographies_from_corners(60 * CORNERS[None], seen[None])
    _, masks, _ = render_views([noise(300, 300)], homography, NO_ROTATION, 64)
    line = torch.linalg.inv(homography[0])[2]  # (a, b, c): a x + b y + c = 0 in the view, and a is 0
    horizon = -float(line[2] / line[1])
    assert 0 < horizon < 20
    assert not bool(masks[0, : math.floor(horizon)].any())
    assert bool(masks[0, 60, 30])


def test_what_lies_outside_follows_from_the_seed() -> None:
    photo, maps = torch.ones(3, 64, 64), IDENTITY.repeat(40, 1, 1)
    rotations = torch.full((40,), math.pi / 4, dtype=torch.float64)
    images, masks, _ = render_views([photo] * 40, maps, rotations, 64, seeds=range(40))
    assert not masks[:, 0, 0].any()
    assert masks[:, 32, 32].all()
    fills = images[:, 0, 0, 0]
    for image, mask, fill in zip(images, masks, fills, strict=True):
        assert bool((image[:, ~mask] == fill).all())
    assert 8 < int((fills == 0).sum()) < 32
    assert len(fills.unique()) > 8
    plain, _, _ = render_views([photo], IDENTITY[None], rotations[:1], 64)
    assert float(plain[0, 0, 0, 0]) == 0.5


# Shrinking ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [1, 2])
@pytest.mark.parametrize("angle", [0.0, 0.3])
def test_what_shrinks_to_a_quarter_does_not_alias(cell: int, angle: float) -> None:
    """Checks that are finer than a pixel of the view become grey, wherever the view lies."""
    axis = torch.arange(430)
    checks = ((axis // cell + (axis // cell)[:, None]) % 2).float().expand(3, -1, -1)
    zoom = torch.tensor([[0.25, 0, -16.3], [0, 0.25, -15.1], [0, 0, 1]], dtype=torch.float64)
    images, masks, _ = render_views([checks], zoom[None], torch.tensor([angle], dtype=torch.float64), 64)
    assert masks.all()
    assert float((images - 0.5).abs().max()) < 0.02


def test_shrinking_averages() -> None:
    """White noise shrunk to a quarter keeps its mean and a sixteenth of its variance."""
    photo = noise(800, 800)
    zoom = torch.diag(torch.tensor([0.25, 0.25, 1.0], dtype=torch.float64))
    images, _, _ = render_views([photo], zoom[None], NO_ROTATION, 190)
    assert float(images.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(images.var() * 12) < 1 / 12


@pytest.mark.parametrize("factor", [0.6, 0.5, 0.3, 0.25, 0.125, 0.06])
def test_a_dot_stays_in_place_when_it_shrinks(factor: float) -> None:
    size = 777
    photo = dot(300.5, 411.25, size, spread=3 / factor)
    zoom = torch.diag(torch.tensor([factor, factor, 1.0], dtype=torch.float64))
    side = max(32, math.floor(size * factor))
    images, masks, from_photos = render_views([photo], zoom[None], NO_ROTATION, side)
    expected = transform_points(from_photos[0], torch.tensor([300.5, 411.25], dtype=torch.float64))
    assert float((centroid(images[0] * masks[0]) - expected).norm()) < 0.05


def test_the_border_of_a_shrunken_photograph_keeps_its_brightness() -> None:
    """In any company: white stays white to the edge."""
    photos = [torch.full((3, 301, 333), 255, dtype=torch.uint8), noise(500, 450)]
    maps = torch.stack([fit_view((333, 301), 64), fit_view((500, 450), 64)])
    images, masks, _ = render_views(photos, maps, NO_ROTATION.repeat(2), 64)
    assert float(images[0][:, masks[0]].min()) > 0.9999
    assert int(masks[0].sum()) >= 64 * 57


def test_how_much_a_view_shrinks_counts_where_it_looks() -> None:
    """A view of the near end of a plane whose far end, with the middle of the photograph, is beyond the horizon."""
    zoom = torch.tensor([[0.25, 0, 0], [0, 0.25, 0], [-0.002, 0, 1]], dtype=torch.float64)  # horizon at x = 500
    axis = torch.arange(1600)
    checks = ((axis + axis[:, None]) % 2).float().expand(3, -1, -1)
    images, masks, _ = render_views([checks], zoom[None], NO_ROTATION, 40)
    assert bool(masks[0, 20, 20])
    assert float((images[0][:, 10:30, 10:30] - 0.5).abs().max()) < 0.05


# Batches --------------------------------------------------------------------------------------------------------------


@given(seed=seeds, cut=st.integers(1, 5))
def test_a_batch_in_parts_is_the_batch_at_once(seed: int, cut: int) -> None:
    """Bit for bit, with photographs of different sizes, shrunk by different powers, rotated by quarters and not."""
    sizes = [(97, 60), (250, 301), (64, 64), (160, 90), (33, 120), (400, 211)]
    photos = [noise(*size, seed=k) for k, size in enumerate(sizes)]
    photos[::2] = [(photo * 255).to(torch.uint8) for photo in photos[::2]]
    own, views = [seed + k for k in range(6)], Views(size=48, scale=(0.15, 1.5), tilt=2.0)
    rotations = torch.tensor([0.0, 0.4, math.pi / 2, math.pi, 2.5, 3 * math.pi / 2], dtype=torch.float64)

    def made(part: slice) -> tuple[Tensor, ...]:
        maps = draw_homographies(sizes[part], views, own[part])
        return maps, *render_views(photos[part], maps, rotations[part], 48, own[part])

    for whole, first, second in zip(made(slice(6)), made(slice(cut)), made(slice(cut, 6)), strict=True):
        assert torch.equal(whole, torch.cat([first, second]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size of a view must be at least 32 pixels, got 8"),
        ({"scale": (0.0, 1.0)}, "scale must be a range of positive numbers"),
        ({"scale": (2.0, 1.0)}, "scale must be a range of positive numbers"),
        ({"scale": (1.0, 2.0, 3.0)}, "scale must be a range of positive numbers"),
        ({"tilt": 0.5}, r"tilt must be in \[1, 8\], got 0.5"),
        ({"perspective": 0.5}, r"perspective must be in \[0, 0.3\), got 0.5"),
        ({"photometric": 2.0}, r"photometric must be in \[0, 1\], got 2.0"),
        ({"weather": -1.0}, r"weather must be in \[0, 1\], got -1.0"),
        ({"sensors": 2.0}, r"sensors must be in \[0, 1\], got 2.0"),
    ],
)
def test_wrong_views_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Views(**options)  # type: ignore[arg-type]
