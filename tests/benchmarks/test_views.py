"""Images as they are shown: sizes, frames, what reaches the network; and what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steerers.benchmarks.protocol import Pair, Settings, predict
from steerers.benchmarks.runs import Run, load_runs
from steerers.benchmarks.views import Recent, count_bytes, fit, load_at, resize
from steerers.features import Keypoints
from steerers.geometry import transform_points
from steerers.images.load import Image, ImageError, load_image
from steerers.matching.strategies import make_strategy
from steerers.models.base import Extractor
from terrain import save

pytestmark = pytest.mark.usefixtures("one_thread")


def blob(size: tuple[int, int], centre: tuple[float, float]) -> Tensor:
    """(3, H, W) image with one soft dot, placed in shares of the width and height."""
    xs, ys = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="xy")
    x, y = centre[0] * size[0] - 0.5, centre[1] * size[1] - 0.5
    width = min(size) / 12
    return torch.exp(-((xs - x) ** 2 + (ys - y) ** 2) / (2 * width**2)).expand(3, -1, -1).contiguous()


class Centroid(Extractor):
    """Finds the centre of mass of a picture, and remembers the shapes that it was given."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self._shapes: list[tuple[int, ...]] = []

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        self._shapes.append(tuple(image.shape[1:]))
        weight = image[0].double()
        xs, ys = torch.meshgrid(torch.arange(weight.shape[1]), torch.arange(weight.shape[0]), indexing="xy")
        xy = torch.stack([(weight * xs).sum(), (weight * ys).sum()]) / weight.sum()
        return Keypoints(xy[None].float(), torch.ones(1))

    def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return torch.ones(len(keypoints), 2)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 800))
def test_the_shortest_side_is_exact_and_the_shape_kept(width: int, height: int, short_side: int) -> None:
    fitted = fit((width, height), short_side)
    assert min(fitted) == short_side
    assert max(fitted) == pytest.approx(short_side * max(width, height) / min(width, height), abs=0.5)


@pytest.mark.parametrize(("size", "short_side"), [((120, 90), 60), ((60, 90), 90), ((75, 75), 75)])
def test_frames_survive_both_shrinking_and_enlarging(size: tuple[int, int], short_side: int) -> None:
    image = load_image(blob(size, (0.4, 0.55)))
    resized = resize(image, short_side)
    assert min(resized.tensor.shape[1:]) == short_side
    assert resized.stored_size == size
    (found,) = Centroid().detect(resized.tensor, num_keypoints=1).xy
    expected = torch.tensor([0.4 * size[0] - 0.5, 0.55 * size[1] - 0.5])
    torch.testing.assert_close(transform_points(resized.to_stored, found), expected, atol=0.05, rtol=0)


def test_masks_never_grow() -> None:
    mask = torch.zeros(90, 120, dtype=torch.bool)
    mask[:, 61:] = True
    image = replace(load_image(blob((120, 90), (0.5, 0.5))), mask=mask)
    resized = resize(image, 30)
    assert resized.mask is not None
    assert resized.mask.shape == (30, 40)
    assert not resized.mask[:, :20].any()
    assert resized.mask[:, 23:].all()


@pytest.mark.parametrize("tta", [None, 4])
def test_the_network_sees_the_short_side_of_every_image(tmp_path: Path, tta: int | None) -> None:
    """Whatever the shapes and sizes, and keypoints come in pixels of what it saw."""
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    for path, size in zip(paths, ((300, 200), (90, 90), (40, 60)), strict=True):
        save(blob(size, (0.45, 0.6)), path)
    pairs = [Pair("ab", "", paths[0], paths[1]), Pair("ac", "", paths[0], paths[2])]
    extractor = Centroid()
    pipeline = load_runs(["sift"], num_keypoints=10)[0].pipeline
    pipeline = replace(
        pipeline,
        model=replace(pipeline.model, extractor=extractor),
        strategy=make_strategy("dual-softmax", threshold=0.0),
        tta=tta,
    )
    (predictions,) = predict([Run("stub", pipeline)], pairs, Settings(short_side=80))
    assert {min(shape) for shape in extractor._shapes} == {80}
    assert {max(shape) for shape in extractor._shapes} == {80, 120}
    for prediction, size1, stored1 in zip(predictions, ((80, 80), (80, 120)), ((90, 90), (40, 60)), strict=True):
        assert (prediction.size0, prediction.stored0) == ((120, 80), (300, 200))
        assert (prediction.size1, prediction.stored1) == (size1, stored1)
        for points, size in ((prediction.matches.keypoints0, (120, 80)), (prediction.matches.keypoints1, size1)):
            np.testing.assert_allclose(points, [[0.45 * size[0] - 0.5, 0.6 * size[1] - 0.5]], atol=0.2)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 120))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shrinking_leaves_nothing_to_resize(tmp_path: Path, width: int, height: int, short_side: int) -> None:
    """One resampling, not two."""
    PIL.Image.new("RGB", (width, height)).save(tmp_path / "a.bmp")
    image = load_at(tmp_path / "a.bmp", max_size=None, short_side=short_side)
    assert tuple(image.tensor.shape[1:]) == fit((width, height), short_side)[::-1]
    if short_side < min(width, height):
        shrunk = load_image(tmp_path / "a.bmp", max_size=max(fit((width, height), short_side)))
        assert shrunk.tensor.shape == image.tensor.shape


def test_the_longest_side_is_another_rule(tmp_path: Path) -> None:
    save(blob((60, 40), (0.5, 0.5)), tmp_path / "a.png")
    for options, expected in (
        ({"max_size": 30, "short_side": None}, (20, 30)),
        ({"max_size": 90, "short_side": None}, (40, 60)),
        ({"max_size": 30, "short_side": 80}, (80, 120)),
    ):
        assert load_at(tmp_path / "a.png", **options).tensor.shape[1:] == expected  # type: ignore[arg-type]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"cannot read image .*a\.png"):
        load_at(tmp_path / "a.png", max_size=None, short_side=100)
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        load_at(tmp_path / "b.png", max_size=None, short_side=100)


def test_settings_refuse_no_side_at_all() -> None:
    with pytest.raises(ValueError, match="short_side must be at least 1 pixel, got 0"):
        Settings(short_side=0)


def test_an_image_of_the_right_size_stays() -> None:
    image = load_image(blob((60, 40), (0.5, 0.5)))
    assert resize(image, 40) is image
    assert isinstance(resize(image, 20), Image)


# Keeping --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(0, 12))
def test_what_was_used_last_is_kept_as_far_as_it_fits(keys: list[int], limit: int) -> None:
    made: list[int] = []
    recent: Recent[int, int] = Recent(limit, weigh=lambda value: value // 10)

    def make(key: int) -> int:
        made.append(key)
        return 10 * key  # weighs as much as its key

    order: list[int] = []  # the last used is the last
    for key in keys:
        known = key in order
        before = len(made)
        assert recent.get(key, lambda key=key: make(key)) == 10 * key  # type: ignore[misc]
        assert len(made) == before + (not known)
        order = [other for other in order if other != key] + [key]
        while len(order) > 1 and sum(order) > limit:
            order.pop(0)


def test_the_memory_of_a_part_is_that_of_the_whole() -> None:
    whole = torch.zeros(100, 10)
    assert count_bytes(whole[:3], None, torch.zeros(5, dtype=torch.bool)) == 4005
