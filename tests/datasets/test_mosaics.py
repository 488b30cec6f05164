"""Pairs of views of photographs laid side by side."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.folder import Photographs
from steerers.datasets.mosaics import MosaicOptions, Mosaics
from steerers.datasets.pairs import PairBatch, draw_rotations
from steerers.datasets.photos import PhotoStore
from steerers.datasets.views import Views
from steerers.geometry import to_normalised

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SIZES = [(40, 30), (30, 50), (32, 32), (64, 40), (33, 47), (50, 50)]  # (width, height)


def store_of(photos: list[Tensor]) -> PhotoStore:
    sizes = [(int(photo.shape[2]), int(photo.shape[1])) for photo in photos]
    return PhotoStore(torch.cat([photo.flatten() for photo in photos]), sizes, [f"{k}.jpg" for k in range(len(photos))])


def plain(level: int, width: int, height: int) -> Tensor:
    """A photograph of one grey, which tells where it lies in a mosaic."""
    return torch.full((3, height, width), level, dtype=torch.uint8)


def smooth(seed: int, width: int, height: int) -> Tensor:
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    fine = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)[0]
    return (fine.clamp(0, 1) * 255).round().to(torch.uint8)


GREYS = store_of([plain(40 * k + 20, *size) for k, size in enumerate(SIZES)])
SMOOTH = store_of([smooth(k, *size) for k, size in enumerate(SIZES)])


def make(source: Mosaics, indices: list[int], seeds: list[int]) -> PairBatch:
    return source.make([source.read(k) for k in indices], *draw_rotations("SO2", seeds), seeds, CPU)


def test_a_mosaic_holds_the_photograph_and_chosen_others() -> None:
    source = Mosaics(Photographs(GREYS, Views(size=32), [1, 2, 4]), MosaicOptions(fraction=1.0, side=2, cell=24))
    members = source._members([source.read(k) for k in range(3)], [7, 8, 9])
    assert members.shape == (3, 2, 2)
    assert set(members.flatten().tolist()) <= {1, 2, 4}
    for mosaic, asked in zip(members, (1, 2, 4), strict=True):
        assert asked in mosaic
    laid = source._cells.lay(members, CPU)
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
    cell = source._cells._cut(0)
    assert cell.shape == (3, 24, 24)
    middle = (torch.arange(24) * 2 + 24.5)[None, None].expand(3, 24, 24)
    assert float((cell.float() - middle).abs().max()) <= 1.0


def test_views_shrink_more_than_a_photograph_allows() -> None:
    """Photographs of 50 pixels cannot fill a view of 64 at a zoom of 0.5; mosaics of nine do."""
    views = Views(size=64, scale=(0.5, 0.5), perspective=0.0, photometric=0.0)
    photographs = Photographs(SMOOTH, views)
    mosaics = Mosaics(photographs, MosaicOptions(fraction=1.0, side=3, cell=48, scale=(0.5, 0.5)))
    seeds = [3, 4, 5]
    alone = photographs.make([0, 1, 2], torch.zeros(3), torch.zeros(3), seeds, CPU)
    together = mosaics.make([0, 1, 2], torch.zeros(3), torch.zeros(3), seeds, CPU)
    zoom_alone, zoom = (torch.linalg.det(batch.warp.from_photos0[:, :2, :2]).sqrt() for batch in (alone, together))
    assert float(zoom_alone.min()) > 1.2
    torch.testing.assert_close(zoom, torch.full((3,), 0.5, dtype=torch.float64))
    assert bool(together.masks0.all())


def test_both_views_show_the_same_where_the_warp_says() -> None:
    views = Views(size=64, tilt=1.5, perspective=0.1, photometric=0.0)
    source = Mosaics(Photographs(SMOOTH, views), MosaicOptions(fraction=1.0, side=3, cell=96, scale=(0.5, 1.5)))
    batch = make(source, [0, 1, 5], [11, 12, 13])
    axis = torch.arange(2.0, 63.0, 3.0)
    xy = torch.cartesian_prod(axis, axis).repeat(3, 1, 1)  # (B, N, 2)
    there, seen = batch.warp.forward(xy)
    here, again = (
        F.grid_sample(images, to_normalised(points.nan_to_num(), (64, 64))[:, :, None].float(), align_corners=False)
        for images, points in ((batch.images0, xy), (batch.images1, there))
    )
    difference = (here - again).abs().amax(dim=1)[..., 0][seen]  # (K,)
    assert seen.sum() > 100
    assert float(difference.median()) < 0.02
    assert float((difference < 0.1).float().mean()) > 0.9  # the rest lies where photographs meet


def test_lengths_and_weights_are_those_of_the_photographs() -> None:
    source = Mosaics(Photographs(SMOOTH, Views(size=32), [0, 2]), MosaicOptions(fraction=0.5))
    assert (len(source), source.read(1), source.weights) == (2, 2, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.5}, "fraction must be in"),
        ({"side": 0}, "side must be at least 1"),
        ({"cell": 8}, "cell at least 16"),
        ({"scale": (0.0, 1.0)}, "scale must be a range"),
        ({"scale": (1.0, 0.5)}, "scale must be a range"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MosaicOptions(**options)  # type: ignore[arg-type]
