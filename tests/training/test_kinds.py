"""Held-out pairs by kind: that the views of a kind are of that kind, and of no other."""

from __future__ import annotations

import math
from functools import cache
from typing import get_args

import pytest
import torch
from torch import Tensor

from steerers.datasets.folder import Mosaics, Photographs
from steerers.datasets.pairs import PairBatch, ViewWarp, mix, uniforms
from steerers.datasets.views import Views
from steerers.geometry import transform_points
from steerers.training.config import Kind
from steerers.training.kinds import as_taken, kind_source, kind_views
from training.tiny import photographs

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
KINDS: tuple[Kind, ...] = get_args(Kind)
RUN = Views(size=48, scale=(0.5, 2.0), tilt=6.0, perspective=0.2, photometric=0.9, weather=0.4, sensors=0.4)
"""Of a run that has trained on everything."""
PAIRS, PART = 48, 8


def batches(source: Photographs) -> list[PairBatch]:
    """The first pairs, the second views rotated by angles of their own."""
    made = []
    for start in range(0, PAIRS, PART):
        seeds = [mix(9, number) for number in range(start, start + PART)]
        turns = 2 * math.pi * uniforms(seeds, 1)[:, 0]
        read = [source.read(number % len(source)) for number in range(start, start + PART)]
        made.append(source.make(read, torch.zeros(PART, dtype=torch.float64), turns, seeds, CPU))
    return made


@cache
def pairs_of(kind: Kind) -> list[PairBatch]:
    return batches(kind_source(kind, photographs(5, 96, RUN), PAIRS))


def images_of(kind: Kind, side: int) -> Tensor:
    return torch.cat([batch.images1 if side else batch.images0 for batch in pairs_of(kind)])


def maps_of(kind: Kind) -> tuple[Tensor, Tensor]:
    """(P, 3, 3) from photographs or mosaics to the first views, and to the second."""
    warps = [batch.warp for batch in pairs_of(kind)]
    assert all(isinstance(warp, ViewWarp) for warp in warps)
    first, second = ([getattr(warp, name) for warp in warps] for name in ("from_photos0", "from_photos1"))
    return torch.cat(first), torch.cat(second)


def stretches(maps: Tensor) -> Tensor:
    """(P, 2) how much (P, 3, 3) maps stretch along and across, where they put the middle of a view; largest first."""
    middle = torch.full((len(maps), 1, 2), (RUN.size - 1) / 2, dtype=torch.float64)
    back = torch.linalg.inv(maps)
    step = 1e-4
    around = middle + torch.tensor([[0, 0], [step, 0], [0, step]], dtype=torch.float64)
    moved = transform_points(back, around)  # (P, 3, 2)
    return 1 / torch.linalg.svdvals((moved[:, 1:] - moved[:, :1]) / step).flip(1)


def zoom_ratios(kind: Kind) -> Tensor:
    """(P,) how much larger the second views show what they have in their middle."""
    first, second = maps_of(kind)
    return stretches(second @ torch.linalg.inv(first)).prod(dim=1).sqrt()


def tilts(kind: Kind) -> Tensor:
    """(2 P,) foreshortening of the views."""
    found = stretches(torch.cat(maps_of(kind)))
    return found[:, 0] / found[:, 1]


def test_scale_differs_up_to_five_fold_in_mosaics_alone() -> None:
    ratios = zoom_ratios("scale")
    assert float(ratios.max()) > 4
    assert float(ratios.median()) > 2.5
    assert float(ratios.min()) > 1.5
    assert float(tilts("scale").max()) < 2
    for kind in ("plain", "light"):
        assert float(zoom_ratios(kind).log().abs().max()) < math.log(2.2)


@pytest.mark.parametrize("size", [48, 320, 448, 672])
def test_a_mosaic_has_room_for_the_smallest_zoom(size: int) -> None:
    source = kind_source("scale", photographs(2, 64, Views(size=size)), 2)
    assert isinstance(source, Mosaics)
    assert source.options.side >= 3
    assert source.options.side * source.options.cell * source.options.scale[0] > 1.19 * size


def test_no_photograph_is_twice_in_a_mosaic() -> None:
    source = kind_source("scale", photographs(12, 16), 4)
    assert isinstance(source, Mosaics)
    seeds = range(300)
    members = source._members([7] * len(seeds), seeds)
    assert members.shape == (len(seeds), 3, 3)
    assert all(len(set(row.tolist())) == 9 for row in members.flatten(1))
    assert members.flatten().bincount().min() > 100  # all are used
    places = (members.flatten(1) == 7).nonzero()
    assert places[:, 0].tolist() == list(seeds)  # the one asked for is in each
    assert places[:, 1].bincount().min() > 15
    few = kind_source("scale", photographs(2), 4)
    assert isinstance(few, Mosaics)
    assert sorted(few._members([1], [0]).flatten().tolist()) in ([0] * 4 + [1] * 5, [0] * 5 + [1] * 4)


def test_mosaics_are_made_of_some_of_the_photographs_that_are_held_out() -> None:
    held_out = photographs(256, 16)
    assert kind_source("scale", held_out, 3).chosen == list(range(0, 256, 2))
    assert kind_source("scale", held_out, 256).chosen == list(range(256))
    assert kind_source("scale", photographs(2), 0).chosen == [0, 1]
    assert kind_source("tilt", held_out, 3).chosen == list(range(256))


def test_tilt_reaches_four_and_of_other_kinds_not_two() -> None:
    assert float(tilts("tilt").max()) > 4
    assert float(tilts("tilt").median()) > 2
    for kind in ("plain", "light"):
        assert float(tilts(kind).max()) < 2


def test_all_but_views_are_those_of_plain_pairs() -> None:
    expected = maps_of("plain")
    for kind in ("light", "blur", "noise", "weather", "sensors"):
        for found, plain in zip(maps_of(kind), expected, strict=True):
            assert torch.equal(found, plain)


def change(kind: Kind) -> Tensor:
    """(2 P,) mean difference of views to what they are of plain pairs."""
    both = [(images_of(kind, side) - images_of("plain", side)).abs().mean(dim=(1, 2, 3)) for side in (0, 1)]
    return torch.cat(both)


def test_light_weather_and_sensors_change_what_views_look_like() -> None:
    for kind, least in (("light", 0.05), ("weather", 0.1), ("sensors", 0.1)):
        assert float(change(kind).mean()) > least
    darkest = images_of("weather", 0).mean(dim=(1, 2, 3)) / images_of("plain", 0).mean(dim=(1, 2, 3))
    assert float(darkest.min()) < 0.5  # night
    seen, plain = (images_of(kind, 0).mean(dim=1).flatten(1) for kind in ("sensors", "plain"))
    alike = torch.stack([torch.corrcoef(torch.stack(both))[0, 1] for both in zip(seen, plain, strict=True)])
    assert float((alike < -0.5).float().mean()) > 0.2  # negatives


def roughness(images: Tensor) -> Tensor:
    """(P,) mean square of the second differences, which noise raises and blur lowers."""
    return (images[..., 2:] - 2 * images[..., 1:-1] + images[..., :-2]).square().mean(dim=(1, 2, 3))


def test_second_views_are_out_of_focus_or_noisy() -> None:
    plain = images_of("plain", 1)
    for kind in ("blur", "noise"):
        assert torch.equal(images_of(kind, 0), images_of("plain", 0))
    assert bool((roughness(images_of("blur", 1)) < 0.7 * roughness(plain)).all())
    torch.testing.assert_close(images_of("blur", 1).mean(), plain.mean(), atol=0.02, rtol=0)
    noisy = images_of("noise", 1)
    assert 0 <= float(noisy.min()) < float(noisy.max()) <= 1
    inner = (plain > 0.4) & (plain < 0.6)  # where nothing is cut off
    assert 0.07 < float((noisy - plain)[inner].std()) < 0.13


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_gives_the_same_views_each_time(kind: Kind) -> None:
    source = kind_source(kind, photographs(5, 96, RUN), PAIRS)
    first = pairs_of(kind)[1]
    seeds = [mix(9, number) for number in range(PART, 2 * PART)]
    read = [source.read(number % len(source)) for number in range(PART, 2 * PART)]
    again = source.make(read, first.rotations0, first.rotations1, seeds, CPU)
    assert torch.equal(again.images0, first.images0)
    assert torch.equal(again.images1, first.images1)
    assert again.dense


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_of_the_run_do_not_matter_but_for_the_size(kind: Kind) -> None:
    assert kind_views(kind, RUN) == kind_views(kind, Views(size=48))
    assert kind_views(kind, Views(size=64)).size == 64


def test_real_pairs_are_shown_as_they_were_taken() -> None:
    shown = as_taken(Views(size=64, tilt=3.0, photometric=1.0, weather=0.5, sensors=0.5, resize="squash"))
    assert (shown.size, shown.resize, shown.tilt, shown.perspective) == (64, "squash", 1.0, 0.0)
    assert (shown.photometric, shown.weather, shown.sensors) == (0.0, 0.0, 0.0)
