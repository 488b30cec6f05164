"""Pictures of blocks: patches that rotate, and hands that point where the responses do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steerers.features import Keypoints
from steerers.images.load import make_picture
from steerers.steering.irreps import Excited, Patch, Response
from steerers.viz.canvas import AMBER, BLUE
from steerers.viz.irreps import draw_detail, draw_frequencies

QUARTERS = [k * math.pi / 2 for k in range(4)]


def make_excited(found: Tensor, frequency: int = 1, count: int = 3) -> Excited:
    """Patches of noise, all with the same responses to quarter turns."""
    images = [make_picture(120, 120, seed=seed) for seed in range(count)]
    at = Keypoints(torch.tensor([[60.0, 58.0]]), torch.ones(1), torch.tensor([8.0]))
    response = Response(
        frequency, torch.tensor(QUARTERS, dtype=torch.float64), found.to(torch.complex128), torch.zeros(4)
    )
    return Excited(frequency, [0], images, [Patch(0, at, 0.5, 0)] * count, [response] * count)


def tip(picture: np.ndarray, colour: tuple[int, int, int], middle: tuple[float, float]) -> complex:
    """Where the hand of a colour ends, as a complex number from the middle of its dial, up is imaginary."""
    x, y = (round(value) for value in middle)
    around = picture[y - 32 : y + 33, x - 32 : x + 33]
    ys, xs = np.nonzero(np.abs(around - np.array(colour)).max(axis=2) <= 12)
    places = (xs - 32) - 1j * (ys - 32)
    return complex(places[np.abs(places).argmax()])


@pytest.mark.parametrize("frequency", [0, 1, 2, 3])
def test_hands_point_where_responses_do(frequency: int) -> None:
    """Up without rotation, then counter-clockwise by the frequency times the angle; a wrong response is seen apart."""
    ideal = torch.polar(torch.ones(4), frequency * torch.tensor(QUARTERS, dtype=torch.float32))
    shown = np.asarray(
        draw_detail(make_excited(ideal * torch.polar(torch.tensor(1.0), torch.tensor(0.9)), frequency), "t")
    )
    for index, value in enumerate(ideal.tolist()):
        middle = (150 + index * (2 * 72 + 6 + 12) + 1.5 * 72 + 6, 64 + 36)
        expected = 1j * value
        for colour, turn in ((BLUE, 0.0), (AMBER, 0.9)):
            found = tip(shown.astype(int), colour, middle) / expected
            assert abs(found) == pytest.approx(30, abs=3)
            assert math.atan2(found.imag, found.real) == pytest.approx(turn, abs=0.15)


def test_patches_rotate_counter_clockwise() -> None:
    shown = np.asarray(draw_detail(make_excited(torch.ones(4)), "t")).astype(int)
    cells = [shown[64 : 64 + 72, 150 + k * 162 : 150 + k * 162 + 72] for k in range(4)]
    for k in (1, 2, 3):
        assert np.abs(np.rot90(cells[0], k) - cells[k]).max() <= 2


def test_a_row_for_each_frequency() -> None:
    one, two = make_excited(torch.ones(4), 0), make_excited(torch.ones(4), 1, count=8)
    alone, both = (draw_frequencies(rows, "t") for rows in ([one], [one, two]))
    assert both.height > alone.height
    assert both.width > alone.width  # as the other has more patches beside each other
    many = draw_frequencies([make_excited(torch.ones(4), 2, count=13)], "t")
    assert many.height > alone.height  # they need a third line
    np.testing.assert_array_equal(np.asarray(both)[64:128, 150:214], np.asarray(alone)[64:128, 150:214])


def test_a_response_that_is_too_long_stays_in_its_dial() -> None:
    shown = np.asarray(draw_detail(make_excited(torch.tensor([1.0, 50.0, 0.0, -50.0])), "t")).astype(int)
    assert abs(tip(shown, AMBER, (150 + 162 + 1.5 * 72 + 6, 64 + 36))) < 40
