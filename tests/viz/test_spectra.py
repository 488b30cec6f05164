"""Pictures of spectra: where eigenvalues are drawn, and how they move."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import groups, randn, seeds
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.viz import Spectrum, draw_spectra, draw_spectrum, save_animation, spectrum_extent

C4, SO2 = Group(4), Group(None)
WIDE = {C4: (2.0, 2.0), SO2: (1.5, 4.0)}


def pixels(picture: PIL.Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def spectrum_of(values: list[complex], group: Group = C4, **options: Any) -> Spectrum:
    return Spectrum(torch.tensor(values, dtype=torch.complex64), group, extent=WIDE[group], **options)


def amber(spectrum: Spectrum, size: int = 300) -> np.ndarray:
    """(size, size) bool, where eigenvalues are drawn: the only marks that are far more red than blue."""
    shown = pixels(draw_spectra([[spectrum]], size))[:size]
    mask: np.ndarray = shown[..., 0] - shown[..., 2] > 60
    return mask


def middle(mask: np.ndarray) -> np.ndarray:
    """(x, y) of what is set."""
    return np.argwhere(mask).mean(axis=0)[::-1]


@pytest.mark.parametrize("group", [C4, SO2], ids=str)
def test_eigenvalues_lie_where_they_belong(group: Group) -> None:
    """Right is real, up is imaginary; one scale for C_n, one for each axis of SO(2)."""
    origin, right, up, both = (middle(amber(spectrum_of([value], group))) for value in (0, 1, 1j, -1 - 1j))
    assert right[1] == pytest.approx(origin[1], abs=0.3)
    assert up[0] == pytest.approx(origin[0], abs=0.3)
    across, along = right[0] - origin[0], origin[1] - up[1]
    assert min(across, along) > 20
    assert both == pytest.approx(origin + np.array([-across, along]), abs=0.8)
    if group == C4:
        assert across == pytest.approx(along, abs=0.6)
    else:
        assert across > 2 * along


def test_admissible_places_are_ringed() -> None:
    """What differs between groups of different order are the rings, and they surround the roots of unity."""
    for value in (-1, 1j):
        centre = middle(amber(spectrum_of([value]))).round().astype(int)
        empty = pixels(draw_spectra([[spectrum_of([])]], 300))
        around = empty[centre[1] - 9 : centre[1] + 10, centre[0] - 9 : centre[0] + 10]
        assert (around.min(axis=2) > 150).sum() > 15
    triple = pixels(draw_spectra([[Spectrum(torch.zeros(0, dtype=torch.complex64), Group(3), extent=WIDE[C4])]], 300))
    assert np.abs(empty - triple)[:300].max() > 100


def test_equal_eigenvalues_are_told_from_single_ones() -> None:
    peaks = []
    for count in (1, 4, 16, 64):
        shown = pixels(draw_spectra([[spectrum_of([0.5] * count)]], 300))
        x, y = middle(amber(spectrum_of([0.5]))).round().astype(int)
        peaks.append(int(shown[y, x].sum()))
    assert (np.diff(peaks) > 40).all()


def test_the_number_at_a_place_counts_what_is_near_up_to_the_factor() -> None:
    def numbers(values: list[complex], factor: float) -> bytes:
        """The text at the place 1 times the factor."""
        size = 600
        x, y = middle(amber(spectrum_of([factor]), size)).round().astype(int)
        shown = pixels(draw_spectra([[spectrum_of(values, factor=factor)]], size))
        return shown[y - 30 : y - 12, x + 10 : x + 50].tobytes()

    one, two, none = (numbers(values, 1.0) for values in ([1.0], [1.0, 1.05], [1.2]))
    assert len({one, two, none}) == 3
    assert numbers([1.5, 1.64], 1.5) == numbers([1.5, 1.5], 1.5)
    assert numbers([1.5, 1.7], 1.5) == numbers([1.5], 1.5)


@pytest.mark.parametrize("group", [C4, SO2], ids=str)
def test_the_common_factor_is_drawn(group: Group) -> None:
    def blue(factor: float) -> np.ndarray:
        shown = pixels(draw_spectra([[spectrum_of([], group, factor=factor)]], 300))[:300]
        return np.argwhere(shown[..., 2] - shown[..., 0] > 60)

    assert not len(blue(1.0))
    assert not len(blue(1.01))
    extents = [np.ptp(blue(factor), axis=0) for factor in (0.7, 1.4)]
    place = middle(amber(spectrum_of([math.log(1.4)], group)))
    if group == C4:
        assert extents[1] == pytest.approx(2 * extents[0], rel=0.1)
    else:
        assert blue(1.4)[:, 1] == pytest.approx(place[0], abs=3)


@given(groups(), st.integers(1, 8), seeds, st.floats(0.1, 30))
def test_the_axes_reach_beyond_all_eigenvalues(group: Group, count: int, seed: int, scale: float) -> None:
    values = scale * torch.complex(randn(3, count, seed=seed), randn(3, count, seed=seed + 1))
    real, imaginary = spectrum_extent(values, group)
    assert float(values.real.abs().max()) < real
    assert float(values.imag.abs().max()) < imaginary
    assert min(real, imaginary) >= 1
    assert (real == imaginary) or group.continuous
    assert imaginary <= 4 * real


def test_spectra_stand_in_rows_and_columns() -> None:
    one, two = spectrum_of([1], title="one", note="step 0"), spectrum_of([1j], SO2, title="two")
    whole = pixels(draw_spectra([[one, two], [two, one]], 200))
    assert whole.shape[1] == 400
    assert 400 < whole.shape[0] < 450
    np.testing.assert_array_equal(whole[:200, :200], whole[200:400, 200:400])
    np.testing.assert_array_equal(whole[:200, 200:], whole[200:400, :200])
    assert np.abs(whole[:200, :200] - whole[:200, 200:]).max() > 100


def test_a_long_title_leaves_the_note_alone() -> None:
    titles = ["", "run", "a name that is longer than a panel is wide, and then some more"]
    shown = [pixels(draw_spectra([[spectrum_of([1], title=title, note="step 1,000")]], 300))[:40] for title in titles]
    note = slice(225, 300)
    for picture in shown[1:]:
        np.testing.assert_array_equal(picture[:, note], shown[0][:, note])
        assert np.abs(picture - shown[0])[:, :220].max() > 100


@pytest.mark.parametrize("steerer", [Steerer.perm(8), Steerer.spread(16), Steerer.inv(4, "C3")], ids=str)
def test_the_picture_of_a_steerer(steerer: Steerer) -> None:
    picture = draw_spectrum(steerer, 240)
    assert picture.mode == "RGB"
    assert picture.width == 240
    mask = pixels(picture)[:240, :, 0] - pixels(picture)[:240, :, 2] > 60
    assert mask.sum() > 10


def moving(count: int, size: int = 200) -> list[PIL.Image.Image]:
    steps = torch.linspace(-1, 1, count).tolist()
    return [draw_spectra([[spectrum_of([step + 0.5j, step - 0.5j], note=f"{step:.3f}")]], size) for step in steps]


def test_an_animation_holds_its_last_picture(tmp_path: Path) -> None:
    pictures = moving(5)
    save_animation(pictures, tmp_path / "moving.gif", milliseconds=70, hold=900)
    with PIL.Image.open(tmp_path / "moving.gif") as animation:
        assert (animation.size, animation.n_frames, animation.info["loop"]) == (pictures[0].size, 5, 0)
        durations = []
        for index, picture in enumerate(pictures):
            animation.seek(index)
            durations.append(animation.info["duration"])
            assert np.abs(pixels(animation.convert("RGB")) - pixels(picture)).max() < 70
            assert np.abs(pixels(animation.convert("RGB")) - pixels(picture)).mean() < 1
    assert durations == [70, 70, 70, 70, 900]


def test_an_animation_is_thinned_until_it_is_small(tmp_path: Path) -> None:
    pictures = moving(9)
    save_animation(pictures, tmp_path / "all.gif")
    limit = (tmp_path / "all.gif").stat().st_size - 1
    save_animation(pictures, tmp_path / "fewer.gif", limit=limit)
    assert (tmp_path / "fewer.gif").stat().st_size < limit
    with PIL.Image.open(tmp_path / "fewer.gif") as animation:
        assert animation.n_frames == 5
        assert animation.info["duration"] == 180
        animation.seek(4)
        assert np.abs(pixels(animation.convert("RGB")) - pixels(pictures[-1])).mean() < 1


def test_an_animation_of_one_picture(tmp_path: Path) -> None:
    save_animation(moving(1), tmp_path / "still.gif")
    with PIL.Image.open(tmp_path / "still.gif") as animation:
        assert getattr(animation, "n_frames", 1) == 1
