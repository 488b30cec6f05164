"""Pictures of matches: where things are drawn, whatever the sizes and orientations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import pytest
import torch

from steerers.features import Matches
from steerers.images.load import Image, load_image
from steerers.viz import draw_matches

SIZES = (120, 80), (60, 90)  # (width, height)
HEADER = 50  # rows above the images hold text
HEIGHT = 270  # of the larger image, less than by default: three times its pixels


class Box(NamedTuple):
    """Where an image lies in the picture: its first column and row, and its size."""

    left: int
    top: int
    width: int
    height: int

    def place(self, xy: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
        """A pixel of an image of ``size`` in the picture; edges go to edges."""
        scale = np.array([self.width / size[0], self.height / size[1]])
        return np.array([self.left, self.top]) + (np.array(xy) + 0.5) * scale - 0.5


def plain(size: tuple[int, int], level: int) -> Image:
    return load_image(np.full((size[1], size[0], 3), level, dtype=np.uint8))


def make_matches(pairs: list[tuple[tuple[float, float], tuple[float, float]]], angle: float | None = None) -> Matches:
    ends = np.array(pairs, dtype=np.float32).reshape(-1, 2, 2)
    index = np.tile(np.arange(len(ends))[:, None], (1, 2))
    scores = np.linspace(1, 0.5, len(ends), dtype=np.float32)
    return Matches(ends[:, 0], ends[:, 1], scores, index, angle=angle, model="a-model", strategy="a-strategy")


def pixels(picture: PIL.Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def boxes(picture: PIL.Image.Image) -> tuple[Box, Box]:
    """The two bright images on the dark background, found by looking."""
    bright = pixels(picture)[HEADER:].min(axis=2) > 100  # (H, W)
    columns = np.flatnonzero(bright.any(axis=0))
    split = int(np.diff(columns).argmax()) + 1
    assert np.diff(columns)[split - 1] > 2
    found = []
    for inside in (columns[:split], columns[split:]):
        rows = np.flatnonzero(bright[:, inside].any(axis=1)) + HEADER
        found.append(Box(int(inside[0]), int(rows[0]), int(np.ptp(inside)) + 1, int(np.ptp(rows)) + 1))
    return found[0], found[1]


def drawn(matches: Matches, inliers: np.ndarray | None = None, max_lines: int = 150) -> np.ndarray:
    """(H, W, 3) how much matches change the picture of two black images, below the header."""
    images = plain(SIZES[0], 0), plain(SIZES[1], 0)
    with_matches, without = (
        pixels(draw_matches(*images, m, i, height=HEIGHT, max_lines=max_lines))
        for m, i in ((matches, inliers), (make_matches([]), None))
    )
    assert with_matches.shape == without.shape
    changed = with_matches - without
    changed[:HEADER] = 0
    return changed


@pytest.fixture(scope="module")
def places() -> tuple[Box, Box]:
    """Where images of SIZES go."""
    return boxes(draw_matches(plain(SIZES[0], 255), plain(SIZES[1], 255), make_matches([]), height=HEIGHT))


@pytest.mark.parametrize("inliers", [None, np.zeros(0, dtype=bool)])
def test_no_matches(inliers: np.ndarray | None) -> None:
    picture = draw_matches(plain(SIZES[0], 200), plain(SIZES[1], 200), make_matches([]), inliers)
    assert isinstance(picture, PIL.Image.Image)
    assert picture.mode == "RGB"
    for box in boxes(picture):
        inside = pixels(picture)[box.top + 8 : box.top + box.height - 8, box.left + 8 : box.left + box.width - 8]
        assert np.abs(inside - 200).max() <= 2  # nothing is drawn on the images


def test_both_images_at_one_scale(places: tuple[Box, Box]) -> None:
    height = max(size[1] for size in SIZES)
    for box, size in zip(places, SIZES, strict=True):
        assert box.width == pytest.approx(HEIGHT / height * size[0], abs=2)
        assert box.height == pytest.approx(HEIGHT / height * size[1], abs=2)
    assert places[1].left > places[0].left + places[0].width


def test_height_by_default() -> None:
    picture = draw_matches(plain(SIZES[0], 255), plain(SIZES[1], 255), make_matches([]))
    assert [box.height for box in boxes(picture)] == [pytest.approx(640 * 80 / 90, abs=2), pytest.approx(640, abs=2)]


@pytest.mark.parametrize(
    ("first", "second"), [((30, 20), (40, 70)), ((100.5, 60.25), (10, 5)), ((0, 0), (59, 89)), ((119, 79), (0, 0))]
)
def test_ends_land_on_the_keypoints(
    places: tuple[Box, Box], first: tuple[float, float], second: tuple[float, float]
) -> None:
    """The line runs from left to right: its leftmost pixels are half a disc about the first end, likewise the last."""
    changed = np.abs(drawn(make_matches([(first, second)]))).sum(axis=2) > 60
    y, x = np.nonzero(changed)
    for box, xy, size, extreme in ((places[0], first, SIZES[0], x.min()), (places[1], second, SIZES[1], x.max())):
        expected = box.place(xy, size)
        assert abs(extreme - expected[0]) == pytest.approx(2.5, abs=1.5)  # the disc's radius
        assert y[np.abs(x - extreme) <= 1].mean() == pytest.approx(expected[1], abs=1.5)
        assert changed[round(expected[1]), round(expected[0])]


def test_inliers_and_outliers_look_different() -> None:
    matches = make_matches([((20, 10), (20, 10)), ((20, 70), (20, 80))])
    unchecked = drawn(matches)
    confirmed = drawn(matches, np.array([True, True]))
    mixed = drawn(matches, np.array([True, False]))
    np.testing.assert_array_equal(unchecked, confirmed)
    y = np.nonzero(unchecked.sum(axis=2))[0]
    middle = (y.min() + y.max()) // 2
    np.testing.assert_array_equal(mixed[: middle - 40], confirmed[: middle - 40])
    outlier = mixed[middle:].sum(axis=(0, 1))
    assert outlier[0] > 2 * max(outlier[1:])  # red
    inlier = confirmed[middle:].sum(axis=(0, 1))
    assert inlier[0] < 1.5 * max(inlier[1:])
    assert inlier.sum() > 2 * outlier.sum()  # and thick


def test_outliers_can_be_left_out() -> None:
    """The lines, but not the number."""
    matches, inliers = make_matches([((20, 10), (20, 10)), ((20, 70), (20, 80))]), np.array([True, False])
    images = plain(SIZES[0], 0), plain(SIZES[1], 0)
    without, neither = (
        pixels(draw_matches(*images, matches, inliers, height=HEIGHT, outliers=False, max_lines=most))
        for most in (150, 0)
    )
    np.testing.assert_array_equal(without[:HEADER], neither[:HEADER])
    changed = without - pixels(draw_matches(*images, make_matches([]), height=HEIGHT))
    changed[:HEADER] = 0
    np.testing.assert_array_equal(changed, drawn(make_matches([((20, 10), (20, 10))])))


def test_inliers_are_coloured_by_their_place() -> None:
    near, far = (drawn(make_matches([((x, 40), (30, 45))])).sum(axis=(0, 1)) for x in (1, 118))
    near, far = near / near.sum(), far / far.sum()
    assert np.abs(near - far).max() > 0.2


def test_lines_are_limited_and_the_best_stay() -> None:
    matches = make_matches([((60, 10), (30, 10)), ((60, 70), (30, 80))])
    best = drawn(make_matches([((60, 10), (30, 10))]))
    np.testing.assert_array_equal(drawn(matches, max_lines=1), best)
    assert not drawn(matches, np.array([False, False]), max_lines=1).any()


def test_header_tells_counts_and_angle() -> None:
    """Not read here, but it changes with what it tells, and with nothing else."""
    images = plain(SIZES[0], 0), plain(SIZES[1], 0)

    def header(matches: Matches, inliers: np.ndarray | None = None) -> bytes:
        return pixels(draw_matches(*images, matches, inliers, height=HEIGHT, max_lines=0))[:HEADER].tobytes()

    pair = [((10.0, 10.0), (20.0, 20.0))]
    texts = [
        header(make_matches([])),
        header(make_matches(pair)),
        header(make_matches(pair), np.array([True])),
        header(make_matches(pair), np.array([False])),
        header(make_matches(pair, angle=0.0)),
        header(make_matches(pair, angle=90.0)),
        header(make_matches(pair, angle=-90.0)),
    ]
    assert len(set(texts)) == len(texts)
    assert header(make_matches([((1.0, 2.0), (3.0, 4.0))])) == texts[1]


@pytest.mark.parametrize("max_size", [None, 60])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_show_as_stored(tmp_path: Path, orientation: int, max_size: int | None) -> None:
    """Rotated upright for the model, an image is shown as its file has it, and keypoints lie where they belong."""
    corner = (100, 15)  # of the stored picture, (x, y)
    stored = PIL.Image.new("RGB", SIZES[0], (200, 200, 200))
    stored.paste((255, 110, 110), (80, 0, 120, 30))  # off centre: no two orientations show it alike
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "stored.png"
    stored.save(path, exif=exif)
    image = load_image(path, exif="apply", max_size=max_size)
    assert image.stored_size == SIZES[0]
    assert (image.tensor.shape[2] > image.tensor.shape[1]) == (orientation <= 4)
    other = plain(SIZES[1], 200)
    picture = draw_matches(image, other, make_matches([]), height=HEIGHT)
    box, _ = boxes(picture)
    assert box.width / box.height == pytest.approx(SIZES[0][0] / SIZES[0][1], rel=0.02)
    shown = pixels(picture)
    for x, y, red in ((100, 15, True), (20, 15, False), (20, 65, False), (100, 65, False)):
        column, row = np.rint(box.place((x, y), SIZES[0])).astype(int)
        assert (shown[row, column, 0] - shown[row, column, 1] > 100) == red
    joined = draw_matches(image, other, make_matches([(corner, (30, 45))]), height=HEIGHT)
    changed = np.abs(pixels(joined) - shown).sum(axis=2)
    column, row = np.rint(box.place(corner, SIZES[0])).astype(int)
    assert changed[row, column] > 60
    assert np.flatnonzero(changed[HEADER:].any(axis=0)).min() > column - 8


def test_a_strip_does_not_blow_up_the_picture() -> None:
    """A panorama of a few rows is shown small, not on a canvas of gigabytes."""
    strip = plain((1000, 4), 200)
    picture = draw_matches(strip, strip, make_matches([((10, 1), (900, 2))]), height=64)
    assert picture.width < 16_000
    assert picture.height < 1_000


@pytest.mark.parametrize("size", [(1, 1), (3, 700), (700, 300)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    for pair in ((plain(size, 0), plain((40, 30), 0)), (plain((40, 30), 0), plain(size, 0))):
        picture = draw_matches(*pair, make_matches([((0, 0), (0, 0))], angle=180.0), height=100)
        assert picture.mode == "RGB"
        assert min(picture.size) > 20


def test_images_are_left_alone() -> None:
    images = plain(SIZES[0], 90), plain(SIZES[1], 90)
    before = [image.tensor.clone() for image in images]
    draw_matches(*images, make_matches([((5, 5), (6, 6))]))
    for image, tensor in zip(images, before, strict=True):
        assert torch.equal(image.tensor, tensor)
