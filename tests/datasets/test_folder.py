"""Pairs of views from photographs, and from photographs laid side by side."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import seeds
from steerers.datasets.folder import MosaicOptions, Mosaics, Photographs
from steerers.datasets.pairs import PairBatch, Rotations, ViewWarp, correspondences, draw_rotations
from steerers.datasets.photos import PhotoStore, held_out
from steerers.datasets.views import Views
from steerers.geometry import to_normalised, transform_points

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SIZES = [(97, 130), (250, 201), (64, 64), (160, 90), (120, 120)]  # (width, height)


def smooth(width: int, height: int, seed: int) -> Tensor:
    """A (3, H, W) uint8 photograph without detail finer than about eight pixels."""
    coarse = torch.rand(1, 3, height // 16 + 2, width // 16 + 2, generator=torch.Generator().manual_seed(seed))
    fine = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)[0]
    return (fine.clamp(0, 1) * 255).round().to(torch.uint8)


def store_of(photos: list[Tensor]) -> PhotoStore:
    sizes = [(int(photo.shape[2]), int(photo.shape[1])) for photo in photos]
    return PhotoStore(torch.cat([photo.flatten() for photo in photos]), sizes, [f"{k}.jpg" for k in range(len(photos))])


def smooth_store(sizes: list[tuple[int, int]]) -> PhotoStore:
    return store_of([smooth(*size, seed=k) for k, size in enumerate(sizes)])


STORE = smooth_store(SIZES)


def make(source: Photographs, indices: list[int], rotations: Rotations, own: list[int]) -> PairBatch:
    return source.make([source.read(k) for k in indices], *draw_rotations(rotations, own), own, CPU)


def sample(images: Tensor, xy: Tensor) -> Tensor:
    """(B, 3, N) bilinear samples of (B, 3, S, S) images."""
    grid = to_normalised(xy, (images.shape[3], images.shape[2]))
    return F.grid_sample(images, grid[:, :, None], align_corners=False)[..., 0]


def test_every_photograph_is_a_pair() -> None:
    source = Photographs(STORE, Views(size=48))
    batch = make(source, [0, 3, 1], "SO2", [5, 6, 7])
    assert len(source) == 5
    assert source.weights is None
    assert len(batch) == 3
    assert batch.images0.shape == batch.images1.shape == (3, 3, 48, 48)
    assert batch.masks0.shape == batch.masks1.shape == (3, 48, 48)
    assert batch.images0.dtype == torch.float32
    assert batch.masks0.dtype == torch.bool
    for images in (batch.images0, batch.images1):
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert batch.dense
    assert not torch.equal(batch.images0, batch.images1)
    torch.testing.assert_close(batch.angles, torch.subtract(*draw_rotations("SO2", [5, 6, 7])) % (2 * math.pi))


@settings(max_examples=15)
@given(seed=seeds, rotations=st.sampled_from(get_args(Rotations)))
def test_both_views_show_the_same_where_the_warp_says(seed: int, rotations: Rotations) -> None:
    """The colours of a smooth photograph agree, in both directions; they would not a few pixels off."""
    views = Views(size=64, scale=(0.8, 1.6), tilt=1.5, perspective=0.1, photometric=0.0)
    batch = make(Photographs(STORE, views), [0, 1, 4], rotations, [seed, seed + 1, seed + 2])
    axis = torch.arange(2.0, 63.0, 3.0)
    xy = torch.cartesian_prod(axis, axis).repeat(3, 1, 1)  # (B, N, 2)
    for images, masks, others, way in (
        (batch.images0, batch.masks0, batch.images1, batch.warp.forward),
        (batch.images1, batch.masks1, batch.images0, batch.warp.backward),
    ):
        moved, valid = way(xy)
        valid &= (moved > 1).all(dim=-1) & (moved < 62).all(dim=-1)
        inner = -F.max_pool2d(-masks.float(), 5, 1, 2)  # a grey border blends into its neighbours
        outer = -F.max_pool2d(-(batch.masks1 if others is batch.images1 else batch.masks0).float(), 5, 1, 2)
        valid &= (sample(inner[:, None], xy)[:, 0] == 1) & (sample(outer[:, None], moved)[:, 0] == 1)
        difference = (sample(images, xy) - sample(others, moved)).abs().amax(dim=1)
        assert float(valid.double().mean()) > 0.05
        assert float(difference[valid].max()) < 0.06
        assert float(difference[valid].mean()) < 0.01


@settings(max_examples=12)
@given(seed=seeds, rotations=st.sampled_from(get_args(Rotations)), cut=st.integers(1, 4))
def test_a_batch_in_parts_is_the_batch_at_once(seed: int, rotations: Rotations, cut: int) -> None:
    """Bit for bit: pixels, masks, rotations and warps."""
    source = Photographs(STORE, Views(size=40, scale=(0.2, 1.5), tilt=2.0, photometric=1.0))
    order, own = [3, 0, 1, 4, 2], [seed + k for k in range(5)]
    whole = make(source, order, rotations, own)
    parts = [make(source, order[part], rotations, own[part]) for part in (slice(cut), slice(cut, 5))]
    for name in ("images0", "images1", "masks0", "masks1", "rotations0", "rotations1", "angles"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    xy = 40 * torch.rand(5, 30, 2, generator=torch.Generator().manual_seed(seed))
    for way in ("forward", "backward"):
        moved = [getattr(part.warp, way)(own) for part, own in zip(parts, (xy[:cut], xy[cut:]), strict=True)]
        for k in (0, 1):
            assert torch.equal(getattr(whole.warp, way)(xy)[k], torch.cat([one[k] for one in moved]))


def test_masks_end_with_the_photograph_not_with_its_canvas() -> None:
    source = Photographs(STORE, Views(size=48, perspective=0.2))
    batch = make(source, [0, 1, 2, 3, 4], "SO2", [1, 2, 3, 4, 5])
    axis = torch.arange(48, dtype=torch.float64)
    pixels = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(1, -1, 2)
    assert isinstance(batch.warp, ViewWarp)
    for k, size in enumerate(SIZES):
        for maps, masks in ((batch.warp.from_photos0, batch.masks0), (batch.warp.from_photos1, batch.masks1)):
            source_pixels = transform_points(torch.linalg.inv(maps[k]), pixels)
            inside = (source_pixels >= 0) & (source_pixels <= torch.tensor(size) - 1)
            assert torch.equal(masks[k].flatten(), inside.all(dim=-1)[0])
    assert not batch.masks0.all()


def test_views_of_a_pair_overlap() -> None:
    """Also of a photograph that is much larger than they are."""
    source = Photographs(smooth_store([(500, 400)]), Views(size=40, scale=(0.8, 1.3), photometric=0.0))
    batch = make(source, [0] * 50, "none", list(range(50)))
    axis = torch.arange(40.0)
    pixels = torch.cartesian_prod(axis, axis).repeat(50, 1, 1)
    seen = batch.warp.forward(pixels)[1].double().mean(dim=1)
    assert float(seen.min()) > 0.05
    assert float(seen.mean()) > 0.4


def test_keypoints_on_the_same_spots_correspond() -> None:
    """Points of the first view, warped to the second, are found again, and only where both views see them."""
    source = Photographs(STORE, Views(size=64, perspective=0.1, photometric=0.0))
    batch = make(source, [0, 1], "C4", [1, 2])
    xy0 = torch.cartesian_prod(torch.arange(4.0, 64.0, 8.0), torch.arange(4.0, 64.0, 8.0)).repeat(2, 1, 1)
    xy1, valid = batch.warp.forward(xy0)
    found = correspondences(xy0, xy1, batch.warp, 0.5)
    assert torch.equal(found[:, 1], found[:, 2])
    expected = valid & batch.warp.backward(xy1)[1]
    assert torch.equal(found[:, :2], expected.nonzero())
    assert len(found) > 20


def test_the_split_goes_by_the_names() -> None:
    store = smooth_store([(40, 40)] * 60)
    train, test = Photographs.split(store, Views(size=32), 0.2)
    names = [[store.names[source.read(k)] for k in range(len(source))] for source in (train, test)]
    assert sorted(names[0] + names[1]) == sorted(store.names)
    assert names[1] == [name for name in store.names if held_out(name, 0.2)]
    fewer = PhotoStore(store.pixels, store.sizes, list(reversed(store.names)))
    _, other = Photographs.split(fewer, Views(size=32), 0.2)
    assert sorted(fewer.names[other.read(k)] for k in range(len(other))) == sorted(names[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1e-6])
def test_a_handful_of_photographs_holds_out_the_last(fraction: float) -> None:
    train, test = Photographs.split(STORE, Views(size=32), fraction)
    assert [source.read(k) for source in (train, test) for k in range(len(source))] == [0, 1, 2, 3, 4]
    assert len(test) == 1


def test_too_few_photographs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 photographs, one of them to be held out, got 1"):
        Photographs.split(smooth_store([(40, 40)]), Views(size=32), 0.1)


def test_a_chosen_few_are_the_pairs() -> None:
    source = Photographs(STORE, Views(size=40, photometric=0.0), [4, 2])
    assert len(source) == 2
    batch = make(source, [1], "none", [9])
    same = make(Photographs(STORE, source.views), [2], "none", [9])
    assert torch.equal(batch.images0, same.images0)
    assert math.isclose(float(batch.angles[0]), 0.0)


# Mosaics --------------------------------------------------------------------------------------------------------------

SMALL_SIZES = [(40, 30), (30, 50), (32, 32), (64, 40), (33, 47), (50, 50)]
SMALL = smooth_store(SMALL_SIZES)
GREYS = store_of([torch.full((3, h, w), 40 * k + 20, dtype=torch.uint8) for k, (w, h) in enumerate(SMALL_SIZES)])
"""Each of one grey, which tells where it lies in a mosaic."""


def test_a_mosaic_holds_the_photograph_and_chosen_others() -> None:
    source = Mosaics(Photographs(GREYS, Views(size=32), [1, 2, 4]), MosaicOptions(fraction=1.0, side=2, cell=24))
    members = source._members([source.read(k) for k in range(3)], [7, 8, 9])
    assert members.shape == (3, 2, 2)
    assert set(members.flatten().tolist()) <= {1, 2, 4}
    for mosaic, asked in zip(members, (1, 2, 4), strict=True):
        assert asked in mosaic
    laid = source._lay(members, CPU)
    assert laid.shape == (3, 3, 48, 48)
    expected = (40 * members + 20).repeat_interleave(24, 1).repeat_interleave(24, 2)
    assert torch.equal(laid, expected[:, None].expand(-1, 3, -1, -1).to(torch.uint8))


def test_where_it_is_laid_varies_and_follows_from_the_seed() -> None:
    source = Mosaics(Photographs(GREYS, Views(size=32), [1, 2, 3]), MosaicOptions(fraction=1.0, side=3, cell=24))
    first = source._members([0] * 40, list(range(40)))
    assert torch.equal(first, source._members([0] * 40, list(range(40))))
    places = {int((mosaic == 0).flatten().nonzero()) for mosaic in first}
    assert len(places) == 9


def test_a_cell_is_the_middle_of_a_photograph() -> None:
    """Of a ramp along the long side the middle is kept; the short side fits exactly."""
    ramp = torch.arange(96, dtype=torch.uint8).expand(3, 48, 96)
    source = Mosaics(Photographs(store_of([ramp, ramp]), Views(size=32)), MosaicOptions(fraction=1.0, cell=24))
    cell = source._cut(0)
    assert cell.shape == (3, 24, 24)
    middle = (torch.arange(24) * 2 + 24.5)[None, None].expand(3, 24, 24)
    assert float((cell.float() - middle).abs().max()) <= 1.0


def test_views_shrink_more_than_a_photograph_allows() -> None:
    """Photographs of 50 pixels cannot fill a view of 64 at a zoom of 0.5; mosaics of nine do."""
    views = Views(size=64, scale=(0.5, 0.5), perspective=0.0, photometric=0.0)
    photographs = Photographs(SMALL, views)
    mosaics = Mosaics(photographs, MosaicOptions(fraction=1.0, side=3, cell=48, scale=(0.5, 0.5)))
    alone = photographs.make([0, 1, 2], torch.zeros(3), torch.zeros(3), [3, 4, 5], CPU)
    together = mosaics.make([0, 1, 2], torch.zeros(3), torch.zeros(3), [3, 4, 5], CPU)
    zoom_alone, zoom = (torch.linalg.det(batch.warp.from_photos0[:, :2, :2]).sqrt() for batch in (alone, together))
    assert float(zoom_alone.min()) > 1.2
    torch.testing.assert_close(zoom, torch.full((3,), 0.5, dtype=torch.float64))
    assert bool(together.masks0.all())


def test_both_views_of_a_mosaic_show_the_same_where_the_warp_says() -> None:
    views = Views(size=64, tilt=1.5, perspective=0.1, photometric=0.0)
    source = Mosaics(Photographs(SMALL, views), MosaicOptions(fraction=1.0, side=3, cell=96, scale=(0.5, 1.5)))
    batch = make(source, [0, 1, 5], "SO2", [11, 12, 13])
    axis = torch.arange(2.0, 63.0, 3.0)
    xy = torch.cartesian_prod(axis, axis).repeat(3, 1, 1)  # (B, N, 2)
    there, seen = batch.warp.forward(xy)
    again = sample(batch.images1, there.nan_to_num().float())
    difference = (sample(batch.images0, xy) - again).abs().amax(dim=1)[seen]  # (K,)
    assert seen.sum() > 100
    assert float(difference.median()) < 0.02
    assert float((difference < 0.1).float().mean()) > 0.9  # the rest lies where photographs meet


def test_lengths_and_weights_are_those_of_the_photographs() -> None:
    source = Mosaics(Photographs(SMALL, Views(size=32), [0, 2]), MosaicOptions(fraction=0.5))
    assert (len(source), source.read(1), source.weights) == (2, 2, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.5}, "fraction must be in"),
        ({"side": 0}, "side must be at least 1"),
        ({"cell": 8}, "cell must be at least 16"),
        ({"scale": (0.0, 1.0)}, "scale must be a range"),
        ({"scale": (1.0, 0.5)}, "scale must be a range"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MosaicOptions(**options)  # type: ignore[arg-type]
