"""The light of views: in range, from one seed each, in its place; weather and other sensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import seeds
from steerers.datasets.light import relight

pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count: int, size: int = 40, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@given(seed=seeds, strength=st.floats(0, 1), size=st.integers(8, 50))
def test_relighting_stays_in_range(seed: int, strength: float, size: int) -> None:
    images = pictures(3, size, seed)
    images[1], images[2] = 0.0, 1.0
    lit = relight(images, strength, [seed, seed + 1, seed + 2])
    assert lit.shape == images.shape
    assert lit.dtype == torch.float32
    assert bool(torch.isfinite(lit).all())
    assert 0 <= float(lit.min()) <= float(lit.max()) <= 1


def test_no_strength_changes_nothing() -> None:
    images = pictures(2)
    assert torch.equal(relight(images, 0.0, [1, 2]), images)


def test_relighting_does_not_change_its_input() -> None:
    images = pictures(8)
    before = images.clone()
    relight(images, 1.0, range(8))
    assert torch.equal(images, before)


@given(rows=st.lists(seeds, min_size=2, max_size=6, unique=True), size=st.sampled_from([33, 40]), data=st.data())
def test_each_image_follows_from_its_seed_alone(rows: list[int], size: int, data: st.DataObject) -> None:
    """Bit for bit, whatever else is in the batch."""
    images = pictures(len(rows), size)
    whole = relight(images, 1.0, rows)
    order = data.draw(st.permutations(range(len(rows))))
    assert torch.equal(relight(images[list(order)], 1.0, [rows[k] for k in order]), whole[list(order)])
    cut = data.draw(st.integers(1, len(rows) - 1))
    parts = [relight(images[part], 1.0, rows[part]) for part in (slice(cut), slice(cut, None))]
    assert torch.equal(torch.cat(parts), whole)
    other = relight(images, 1.0, [seed + 1 for seed in rows])
    assert not bool((other == whole).flatten(1).all(dim=1).any())


def test_more_strength_changes_more() -> None:
    images = pictures(64)
    changes = [float((relight(images, s, range(64)) - images).abs().mean()) for s in (0.01, 0.1, 0.3, 1.0)]
    assert changes == sorted(changes)
    assert changes[0] < 0.01
    assert changes[-1] > 0.08


def test_some_images_change_little_and_some_much() -> None:
    """A network that sees nothing but ruined pictures learns less."""
    axis = torch.linspace(0, 6, 48)
    image = (0.5 + 0.2 * (axis.sin() + (2 * axis)[:, None].cos())).clamp(0, 1).expand(200, 3, -1, -1)
    change = (relight(image, 0.5, range(200)) - image).abs().mean(dim=(1, 2, 3))
    assert float(change.quantile(0.1)) < 0.06
    assert float(change.quantile(0.9)) > 0.12


def test_relighting_moves_nothing() -> None:
    """Bright spots stay where they are: blur is symmetric, the rest works on each pixel or block in its place."""
    axis = torch.arange(64.0)
    spot = torch.exp(-((axis - 30.0) ** 2 + (axis[:, None] - 35.0) ** 2) / 18)
    images = (0.25 + 0.5 * spot).expand(60, 3, -1, -1)
    grey = relight(images, 0.5, range(60)).mean(dim=1).double()
    window = slice(22, 49), slice(17, 44)
    grey = grey[:, window[0], window[1]]
    level = grey.flatten(1).quantile(torch.tensor([0.5, 0.99], dtype=torch.float64), dim=1).mean(dim=0)  # half way up
    weights = (grey - level[:, None, None]).clamp(min=0)
    total = weights.sum(dim=(1, 2))
    x = (weights.sum(dim=1) * axis[window[1]]).sum(dim=1) / total
    y = (weights.sum(dim=2) * axis[window[0]]).sum(dim=1) / total
    off = torch.hypot(x - 30, y - 35)
    assert float(off.quantile(0.5)) < 0.1
    assert float(off.quantile(0.9)) < 0.6


def test_grey_stays_grey_up_to_tint_and_noise() -> None:
    """Colours are mixed, not swapped: the channels of a grey picture stay together."""
    images = pictures(40, 48).mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    lit = relight(images, 0.5, range(40)).flatten(2)  # (B, 3, HW)
    centred = lit - lit.mean(dim=2, keepdim=True)
    unit = centred / centred.norm(dim=2, keepdim=True)
    together = (unit @ unit.mT)[:, [0, 0, 1], [1, 2, 2]]
    assert float(together.min()) > 0.6
    assert float(together.median()) > 0.9


def test_some_pictures_lose_their_colour() -> None:
    lit = relight(pictures(300, 16), 1.0, range(300))
    spread = (lit - lit.mean(dim=1, keepdim=True)).flatten(1).std(dim=1) / lit.flatten(1).std(dim=1)
    assert float((spread < 0.35).double().mean()) > 0.05
    assert float((spread > 0.5).double().mean()) > 0.5


def test_blocks_appear_in_some_pictures() -> None:
    """JPEG: beyond a smooth ramp, steps lie at multiples of eight pixels."""
    ramp = torch.linspace(0.3, 0.7, 64).expand(300, 3, 64, 64)
    lit = relight(ramp, 1.0, range(300)).mean(dim=(1, 2))  # (B, 64), without noise, nearly
    jumps = (lit[:, 2:] - 2 * lit[:, 1:-1] + lit[:, :-2]).abs()  # bends, at 1 to 62
    at_blocks = jumps[:, [k - 1 for k in range(8, 64, 8)]].mean(dim=1)
    within = jumps[:, [k - 1 for k in range(4, 64, 8)]].mean(dim=1)
    assert 0.05 < float((at_blocks > 3 * within).double().mean()) < 0.5


# Weather and sensors --------------------------------------------------------------------------------------------------


def scene(count: int, size: int = 48) -> Tensor:
    """The same smooth picture, so many times."""
    axis = torch.linspace(0, 6, size)
    waves = 0.5 + 0.2 * (axis.sin() + (2 * axis)[:, None].cos())
    return torch.stack([waves, waves**2, waves.sqrt()]).clamp(0, 1).expand(count, -1, -1, -1)


@given(seed=seeds, weather=st.floats(0, 1), sensors=st.floats(0, 1))
@settings(max_examples=20)
def test_weather_and_sensors_stay_in_range(seed: int, weather: float, sensors: float) -> None:
    images = pictures(4, 24, seed)
    images[1], images[2] = 0.0, 1.0
    lit = relight(images, 0.0, range(seed, seed + 4), weather=weather, sensors=sensors)
    assert bool(torch.isfinite(lit).all())
    assert 0 <= float(lit.min()) <= float(lit.max()) <= 1


@pytest.mark.parametrize("kind", ["weather", "sensors"])
def test_so_many_images_are_changed(kind: str) -> None:
    images = scene(400)
    lit = relight(images, 0.0, range(400), **{kind: 0.3})
    changed = (lit != images).flatten(1).any(dim=1)
    assert 0.22 < float(changed.double().mean()) < 0.38
    assert torch.equal(lit[~changed], images[~changed])
    single = relight(images[:7], 0.0, range(7), **{kind: 0.3})
    assert torch.equal(single, lit[:7])


def test_weather_is_fog_a_shadow_or_night() -> None:
    images = scene(300)
    lit = relight(images, 0.0, range(300), weather=1.0)
    contrast = lit.flatten(1).std(dim=1) / images.flatten(1).std(dim=1)
    brightness = lit.flatten(1).mean(dim=1) - images.flatten(1).mean(dim=1)
    assert float(((contrast < 0.8) & (brightness > 0)).double().mean()) > 0.2  # fog
    assert float((brightness < -0.2).double().mean()) > 0.2  # night
    untouched = ((lit - images).abs() < 0.01).flatten(1).double().mean(dim=1)
    assert float(((untouched > 0.2) & (brightness < 0)).double().mean()) > 0.15  # a shadow over a part


def test_sensors_turn_bright_to_dark_in_some_images() -> None:
    images = scene(300)
    lit = relight(images, 0.0, range(300), sensors=1.0)
    flat, seen = (x.mean(dim=1).flatten(1) for x in (images, lit))
    agreement = torch.cosine_similarity(flat - flat.mean(dim=1, keepdim=True), seen - seen.mean(dim=1, keepdim=True))
    assert float((agreement < -0.8).double().mean()) > 0.25
    assert float((agreement > 0.5).double().mean()) > 0.1
    grey = (lit[:, 0] == lit[:, 1]).flatten(1).all(dim=1)
    assert 0.2 < float(grey.double().mean()) < 0.7
