"""One keypoint against every place: the numbers behind the maps, and where they are drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

import steerers
from helpers import EXAMPLES, describe_image
from steerers.features import Keypoints
from steerers.geometry import rotate_image, transform_points
from steerers.images.load import load_image, make_picture
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.steerer import Steerer
from steerers.viz.similarity import SimilarityMaps, draw_similarity, similarity_maps

pytestmark = pytest.mark.usefixtures("one_thread")
SIFT, STEERER = UprightSift(), Steerer.from_permutation(c4_permutation(), "C4")


def keypoint(x: float, y: float, diameter: float | None = 6.0) -> Keypoints:
    return Keypoints(torch.tensor([[x, y]]), torch.ones(1), None if diameter is None else torch.tensor([diameter]))


def photograph(name: str = "coffee.jpg") -> Tensor:
    return load_image(EXAMPLES / name, max_size=160).tensor


@pytest.mark.parametrize("k", range(4))
def test_the_peak_of_a_quarter_turn(k: int) -> None:
    """At the true rotation the most similar place is the true one, exactly; at no other rotation is one as similar."""
    image = photograph()[:, 20:100, 30:120].contiguous()
    rotated, transform = rotate_image(image, k * math.pi / 2)
    at = keypoint(45, 32)
    found = similarity_maps(SIFT, STEERER, image, at, rotated.contiguous(), step=1)
    assert found.maps.shape == (4, *rotated.shape[1:])
    (truth,) = transform_points(transform, at.xy).tolist()
    assert found.best == k
    assert found.peak(k) == (pytest.approx(1, abs=1e-5), *truth)
    assert found.peak() == found.peak(k)
    assert found.best_angle == pytest.approx(k * math.pi / 2)
    others = [found.peak(index).cosine for index in range(4) if index != k]
    assert max(others) < 0.97


def test_the_peak_of_another_angle() -> None:
    """With a steerer of SO(2) the curve has its maximum between the tried rotations."""
    matcher = steerers.load("compact-single")
    assert matcher.model.steerer is not None
    image = photograph("astronaut.jpg")
    rotated, transform = rotate_image(image, math.radians(60))
    at = keypoint(78, 60, None)
    found = similarity_maps(matcher.model.extractor, matcher.model.steerer, image, at, rotated, step=2)
    truth = transform_points(transform, at.xy)[0]
    assert len(found.angles) == len(found.maps) == 8
    assert math.degrees(found.best_angle) == pytest.approx(60, abs=6)
    assert found.best == 1  # 45 degrees
    for peak in (found.peak(), found.peak(1)):
        assert float((torch.tensor(peak[1:]) - truth).norm()) < 3
    assert found.peak().cosine > found.peak(1).cosine + 0.02
    assert float((torch.tensor(found.peak(5)[1:]) - truth).norm()) > 6  # the other way round, another place
    assert len(found.curve) == 181
    assert float(found.curve[0]) == pytest.approx(found.peak(0).cosine, abs=1e-5)
    assert found.curve[0] == pytest.approx(float(found.curve[-1]), abs=1e-4)
    assert bool((found.maximum >= found.maps.amax(dim=0) - 1e-6).all())
    assert float(found.maximum.max()) == pytest.approx(float(found.curve.max()), abs=1e-6)


@pytest.mark.parametrize("step", [1, 7, 40])
def test_maps_against_one_place_at_a_time(step: int) -> None:
    first, second = photograph()[:, :60, :80].contiguous(), photograph("camera.jpg")[:, 40:90, 20:101].contiguous()
    at = keypoint(40, 31)
    found = similarity_maps(SIFT, STEERER, first, at, second, step=step)
    xs, ys = found.places[0, :, 0].tolist(), found.places[:, 0, 1].tolist()
    for along, length in ((xs, 81), (ys, 50)):
        assert len(along) == math.ceil((length - along[0]) / step)
        assert abs(along[0] - (length - 1 - along[-1])) <= 1  # in the middle
        assert {b - a for a, b in pairwise(along)} <= {float(step)}
    query = describe_image(SIFT, first, at)[0].double()
    for row, column in ((0, 0), (len(ys) // 2, len(xs) // 2), (len(ys) - 1, len(xs) - 1)):
        other = describe_image(SIFT, second, keypoint(xs[column], ys[row]))[0].double()
        for index in range(4):
            steered = STEERER.matrix(index * math.pi / 2) @ query
            cosine = float(steered @ other / (steered.norm() * other.norm()).clamp(min=1e-12))
            assert float(found.maps[index, row, column]) == pytest.approx(cosine, abs=1e-5)


def test_fewer_rotations_and_wrong_ones() -> None:
    image = photograph()
    found = similarity_maps(SIFT, STEERER, image, keypoint(75, 52), image, order=2, step=20)
    assert found.angles.tolist() == pytest.approx([0, math.pi])
    with pytest.raises(ValueError, match="C8 is not a subgroup of C4"):
        similarity_maps(SIFT, STEERER, image, keypoint(75, 52), image, order=8, step=20)


def test_nothing_to_describe() -> None:
    flat = torch.full((3, 60, 60), 0.4)
    with pytest.raises(ValueError, match=r"flat around \(30, 20\)"):
        similarity_maps(SIFT, STEERER, flat, keypoint(30, 20), flat, step=4)


# The picture ----------------------------------------------------------------------------------------------------------


def with_peak(found: SimilarityMaps, index: int, row: int, column: int) -> np.ndarray:
    """The picture of maps that are as good as nothing, with the largest value there."""
    maps = torch.zeros_like(found.maps)
    maps[index, row, column] = 1e-9
    return np.asarray(draw_similarity(replace(found, maps=maps, maximum=maps.amax(dim=0)))).astype(int)


def test_the_ring_is_where_the_map_is_largest() -> None:
    image = make_picture(100, 150)
    found = similarity_maps(SIFT, STEERER, image, keypoint(75, 52), image, step=4)
    pictures = [with_peak(found, 2, *place) for place in ((5, 5), (-5, -5))]
    width, height, scale = 300, 200, 300 / 150
    left, top = 12 + 2 * 312, 40 + 58 + height + 24 + 58  # of the third map
    changed = np.abs(pictures[0] - pictures[1])[top : top + height, left : left + width].sum(axis=2) > 200
    y, x = np.nonzero(changed)
    for half, place in ((x < width / 2, found.places[5, 5]), (x > width / 2, found.places[-5, -5])):
        ring = np.array([x[half].mean(), y[half].mean()])
        assert ring == pytest.approx(scale * (place.numpy() + 0.5), abs=1.5)


@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (9, 9)])
@pytest.mark.parametrize("order", [2, 4])
def test_odd_shapes(shape: tuple[int, int], order: int) -> None:
    image = make_picture(*shape, seed=1)
    at = keypoint(shape[1] // 2, shape[0] // 2)
    picture = draw_similarity(similarity_maps(SIFT, STEERER, image, at, image, order=order, step=30), "a title")
    assert isinstance(picture, PIL.Image.Image)
    assert picture.width == 4 * 312 + 12
    assert 300 < picture.height < 1300
