"""Change of light."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import seeds
from steerers.datasets.photometric import relight

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
