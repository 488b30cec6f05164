"""The canvas and its colours."""

from __future__ import annotations

import math

import numpy as np
import PIL.Image
import pytest
import torch

from steerers.features import Keypoints
from steerers.images.load import make_picture
from steerers.steering.irreps import SIDE
from steerers.viz.canvas import (
    BACKGROUND,
    GAP,
    TEXT,
    Canvas,
    fit_size,
    heat_colours,
    hue,
    show_patch,
    signed_colours,
    stack,
    text_width,
    to_picture,
)

RED = (255, 0, 0, 255)


def pixels(picture: PIL.Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def drawn(canvas: Canvas) -> np.ndarray:
    """(H, W) where something is."""
    mask: np.ndarray = np.abs(pixels(canvas.finish()) - np.array(BACKGROUND)).sum(axis=2) > 60
    return mask


def test_shapes_are_where_they_belong() -> None:
    canvas = Canvas(60, 40)
    canvas.brush.dot((20, 10), 4, RED)
    y, x = np.nonzero(drawn(canvas))
    assert (x.mean() + 0.5, y.mean() + 0.5) == (pytest.approx(20, abs=0.6), pytest.approx(10, abs=0.6))
    assert np.ptp(x) + 1 == pytest.approx(8, abs=2)
    canvas = Canvas(60, 40)
    canvas.brush.box(10, 5, 30, 25, RED)
    y, x = np.nonzero(drawn(canvas))
    assert (x.min(), x.max(), y.min(), y.max()) == pytest.approx((10, 30, 5, 25), abs=1)
    assert drawn(canvas)[15, 20]
    canvas = Canvas(60, 40)
    canvas.brush.frame(10, 5, 30, 25, RED)
    assert not drawn(canvas)[15, 20]
    assert drawn(canvas)[15, 10]


def test_an_arrow_is_wider_at_its_end() -> None:
    canvas = Canvas(100, 40)
    canvas.brush.arrow((10, 20), (90, 20), RED)
    heights = drawn(canvas).sum(axis=0)
    assert heights[15:75].max() <= 4
    assert heights[80:85].max() >= 6
    assert heights[92:].sum() == heights[:8].sum() == 0


def test_pictures_below_shapes_below_text() -> None:
    canvas = Canvas(80, 30)
    canvas.text((5, 5), "MMM", TEXT, 20)
    canvas.brush.box(0, 0, 80, 30, (0, 0, 255, 255))
    canvas.paste(PIL.Image.new("RGB", (80, 30), (0, 255, 0)), 0, 0)
    shown = pixels(canvas.finish())
    assert tuple(shown[25, 70]) == (0, 0, 255)
    assert shown[..., 0].max() > 200
    assert shown[..., 1].max() < 250
    assert text_width("MMM", 20) > text_width("M", 20) > 0


def test_stack() -> None:
    wide, narrow = PIL.Image.new("RGB", (90, 20), (200, 0, 0)), PIL.Image.new("RGB", (50, 30), (0, 200, 0))
    plain = stack([wide, narrow])
    assert plain.size == (90, 50)
    green = np.argwhere(pixels(plain)[..., 1] > 150)
    assert (green.min(axis=0).tolist(), green.max(axis=0).tolist()) == ([20, 20], [49, 69])
    titled = stack([wide, narrow], ["one", "another"])
    assert titled.height > plain.height + 2 * GAP
    assert np.abs(pixels(titled)[:28] - np.array(BACKGROUND)).max() > 100


def test_to_picture() -> None:
    image = torch.rand(3, 20, 40)
    assert to_picture(image, (30, 50)).size == (30, 50)
    assert np.abs(pixels(to_picture(image, (40, 20))) - 255 * image.permute(1, 2, 0).numpy()).max() <= 0.5 + 1e-4
    assert [fit_size(image, side) for side in (80, 10, 1)] == [(80, 40), (10, 5), (1, 1)]
    assert fit_size(image.mT, 80) == (40, 80)


def test_a_patch_rotates_with_its_image() -> None:
    image = make_picture(80, 90, seed=2)
    keypoint = Keypoints(torch.tensor([[41.0, 38.0]]), torch.ones(1), torch.tensor([8.0]))
    upright = pixels(show_patch(image, keypoint, 0.0, 64))
    for k in (1, 2, 3):
        assert np.abs(np.rot90(upright, k) - pixels(show_patch(image, keypoint, k * math.pi / 2, 64))).max() <= 2
    side = SIDE * 8
    cut = image[:, 38 - int(side / 2) : 39 + int(side / 2), 41 - int(side / 2) : 42 + int(side / 2)]
    np.testing.assert_array_equal(upright, pixels(to_picture(cut, (64, 64))))


def test_heat_grows_brighter() -> None:
    colours = heat_colours(np.linspace(-0.5, 1.5, 101))
    assert colours.shape == (101, 3)
    assert (np.diff(colours @ [0.3, 0.6, 0.1]) >= 0).all()
    np.testing.assert_array_equal(colours[0], colours[25])
    np.testing.assert_array_equal(colours[-1], colours[75])


def test_signs_have_colours() -> None:
    above, zero, below = signed_colours(np.array([1.0, 0.0, -1.0]))
    assert above[0] > above[2]
    assert below[2] > below[0]
    np.testing.assert_array_equal(zero, BACKGROUND)


def test_hues_go_round() -> None:
    assert hue(0.25) == hue(1.25)
    assert len({hue(k / 12) for k in range(12)}) == 12
