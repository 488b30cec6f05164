"""The bins of Upright SIFT under a quarter turn, and their colours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import EXAMPLES, seeds
from steerers.features import Keypoints
from steerers.images.load import load_image, make_picture
from steerers.viz.sift import _colour, draw_sift, sift_bins


def keypoint(x: float, y: float, diameter: float | None) -> Keypoints:
    return Keypoints(torch.tensor([[x, y]]), torch.ones(1), None if diameter is None else torch.tensor([diameter]))


@settings(max_examples=15)
@given(seeds, st.integers(40, 90), st.integers(40, 90), st.sampled_from([None, 2.0, 5.0, 9.0]), st.floats(0.2, 0.8))
def test_bins_permute_to_a_level_of_eight_bits(
    seed: int, width: int, height: int, diameter: float | None, place: float
) -> None:
    """OpenCV rounds each bin to a whole number of 0 to 255, after sums whose order changes with the rotation."""
    image = make_picture(height, width, seed=seed % 1000)
    found = sift_bins(image, keypoint(round(place * width), round((1 - place) * height), diameter))
    assert found.difference < 0.03
    assert not torch.equal(found.upright, found.rotated)


@pytest.mark.parametrize("name", ["astronaut.jpg", "camera.jpg", "coffee.jpg", "retina.jpg"])
@pytest.mark.parametrize("diameter", [4.0, 8.0])
def test_bins_of_photographs_permute_exactly(name: str, diameter: float) -> None:
    found = sift_bins(load_image(EXAMPLES / name, max_size=256).tensor, keypoint(90, 110, diameter))
    assert found.difference == 0
    assert sorted(found.upright.tolist()) == sorted(found.rotated.tolist())


def test_where_a_quarter_turn_takes_the_bins() -> None:
    """Counter-clockwise: the top-right subregion becomes the top-left one; a direction gains two bins of 45 degrees."""
    found = sift_bins(load_image(EXAMPLES / "coffee.jpg", max_size=200).tensor, keypoint(90, 60, 8.0))
    upright, rotated = found.upright.view(4, 4, 8), found.rotated.view(4, 4, 8)
    for row in range(4):
        for column in range(4):
            for direction in range(8):
                moved = rotated[3 - column, row, (direction + 2) % 8]
                assert float(moved) == float(upright[row, column, direction])


def test_a_bin_keeps_its_colour_where_it_goes() -> None:
    found = sift_bins(load_image(EXAMPLES / "astronaut.jpg", max_size=256).tensor, keypoint(82, 190, 8.0))
    shown = np.asarray(draw_sift(found, "a title")).astype(int)
    highest = float(found.upright.max())
    for bin in found.upright.argsort(descending=True)[:40].tolist():
        row, column, direction = bin // 32, bin // 8 % 4, bin % 8
        moved = (3 - column) * 32 + row * 8 + (direction + 2) % 8
        middle = 130 * float(found.upright[bin]) / highest  # of the bar, above its foot
        for place, bottom in ((bin, 46 + 320), (moved, 46 + 344 + 320)):
            x = 12 + 320 + 36 + 6 * place + 8 * (place // 8) + 2
            assert np.abs(shown[round(bottom - middle), x] - np.array(_colour(bin))).max() <= 12


def test_colours_are_distinct() -> None:
    assert len({_colour(bin) for bin in range(128)}) == 128


def test_nothing_to_describe() -> None:
    with pytest.raises(ValueError, match=r"flat around \(20, 30\)"):
        sift_bins(torch.full((3, 60, 60), 0.5), keypoint(20, 30, 4.0))
