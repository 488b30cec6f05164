"""Steering a description against describing the rotated image, and how both are drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import EXAMPLES
from steerers.features import Keypoints
from steerers.geometry import rotate_image, transform_points
from steerers.images.load import load_image, make_picture
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.equivariance import equivariance
from steerers.steering.irreps import Irreps
from steerers.steering.steerer import Steerer
from steerers.viz.overview import _rows, draw_overview, make_overview
from training.tiny import Rings

SIFT, STEERER = UprightSift(), Steerer.from_permutation(c4_permutation(), "C4")
AT = Keypoints(torch.tensor([[75.0, 52.0]]), torch.ones(1), torch.tensor([6.0]))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_upright_sift_is_steered_exactly(k: int) -> None:
    image = load_image(EXAMPLES / "coffee.jpg", max_size=160).tensor
    found = make_overview(SIFT, STEERER, image, AT, k * math.pi / 2)
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert found.cosine_unsteered < 0.95
    rotated, transform = rotate_image(image, k * math.pi / 2)
    assert torch.equal(found.rotated, rotated)
    assert found.at == (75, 52)
    assert found.rotated_at == tuple(transform_points(transform, AT.xy)[0].tolist())


def test_another_angle_as_equivariance_says() -> None:
    model, steerer, image = Rings(), Steerer.from_spec(Rings.spec, "SO2"), make_picture(90, 120, seed=4)
    at = replace(AT, scales=None)
    found = make_overview(model, steerer, image, at, math.radians(50))
    assert found.cosine == pytest.approx(float(equivariance(model, steerer, image, at.xy, math.radians(50))), abs=1e-5)
    assert found.cosine > 0.97 > found.cosine_unsteered


def test_what_cannot_be_shown() -> None:
    flat = torch.full((3, 100, 120), 0.4)
    with pytest.raises(ValueError, match=r"flat around \(75, 52\)"):
        make_overview(SIFT, STEERER, flat, AT, math.pi / 2)
    with pytest.raises(ValueError, match="C4 rotates by multiples of 90 degrees only, got 30 degrees"):
        make_overview(SIFT, STEERER, make_picture(100, 120), AT, math.pi / 6)


@pytest.mark.parametrize(
    "steerer",
    [Steerer.spread(256), Steerer.perm(256), Steerer.freq1(256), Steerer.from_spec("3x-2 + 5x0 + 1x2", "SO2")],
    ids=lambda steerer: str(steerer.representation),
)
def test_a_strip_has_every_coordinate_once(steerer: Steerer) -> None:
    rows = _rows(Irreps.of(steerer))
    assert sorted(place for _, own in rows for place in own) == list(range(steerer.dim))
    assert [frequency for frequency, _ in rows] == sorted(frequency for frequency, _ in rows)
    assert max(len(own) for _, own in rows) <= 64
    frequencies, _, _ = steerer.representation.coordinates()  # type: ignore[union-attr]
    for frequency, own in rows:
        assert {abs(int(frequencies[place])) % 4 for place in own} <= {frequency, 4 - frequency} or frequency > 2


def test_the_picture_shows_steered_and_recomputed_alike() -> None:
    """Of an exact steerer the two strips at the right are the same, below each other; that at the left differs."""
    image = load_image(EXAMPLES / "coffee.jpg", max_size=160).tensor
    found = make_overview(SIFT, STEERER, image, AT, math.pi / 2)
    shown = np.asarray(draw_overview(found, "a title")).astype(int)
    height = 3 * (11 + 3)  # of a strip: rows of cells, and gaps below
    upper, lower = 46 + 440 + 78, 46 + 440 + 78 + height + 92
    left, right = 12 + 26, 12 + 440 + 150 + 26
    wide = 64 * 6
    recomputed, steered = (
        shown[upper : upper + height, right:][:, :wide],
        shown[lower : lower + height, right:][:, :wide],
    )
    assert np.abs(recomputed - steered).max() <= 2
    assert recomputed.max() > 120
    assert np.abs(shown[lower : lower + height, left:][:, :wide] - steered).max() > 60
