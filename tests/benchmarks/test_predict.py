"""Images as they are shown: sizes, frames, what reaches the network; and what is kept of them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.dots import IMAGES, SIZE, Stub, assert_same, draw_collection, make_run, predict_all
from helpers import detect_image
from steerers.benchmarks import predict, speed
from steerers.benchmarks.offers import CANVASES, ROTATIONS, Canvas
from steerers.benchmarks.predict import (
    Pair,
    Recent,
    View,
    ViewSettings,
    choose,
    count_bytes,
    fit_size,
    load_at,
    make_view,
    resize,
    rotate_pairs,
)
from steerers.benchmarks.runs import Run, load_runs
from steerers.features import Keypoints
from steerers.geometry import transform_points
from steerers.images.load import Image, ImageError, Resize, load_image
from steerers.matching.strategies import make_strategy
from steerers.models.base import SingleExtractor
from terrain import save

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    return draw_collection(tmp_path_factory.mktemp("collection"))


def blob(size: tuple[int, int], centre: tuple[float, float]) -> Tensor:
    """(3, H, W) image with one soft dot, placed in shares of the width and height."""
    xs, ys = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="xy")
    x, y = centre[0] * size[0] - 0.5, centre[1] * size[1] - 0.5
    width = min(size) / 12
    return torch.exp(-((xs - x) ** 2 + (ys - y) ** 2) / (2 * width**2)).expand(3, -1, -1).contiguous()


class Centroid(SingleExtractor):
    """Finds the centre of mass of a picture, and remembers the shapes that it was given."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self._shapes: list[tuple[int, ...]] = []

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        self._shapes.append(tuple(image.shape[1:]))
        weight = image[0].double()
        xs, ys = torch.meshgrid(torch.arange(weight.shape[1]), torch.arange(weight.shape[0]), indexing="xy")
        xy = torch.stack([(weight * xs).sum(), (weight * ys).sum()]) / weight.sum()
        return Keypoints(xy[None].float(), torch.ones(1))

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return torch.ones(len(keypoints), 2)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 800))
def test_the_shortest_side_is_exact_and_the_shape_kept(width: int, height: int, short_side: int) -> None:
    fitted = fit_size((width, height), short_side)
    assert min(fitted) == short_side
    assert max(fitted) == pytest.approx(short_side * max(width, height) / min(width, height), abs=0.5)


@pytest.mark.usefixtures("strict_pillow")
def test_large_images_are_shrunk_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def load(path: Path, *, max_size: int | None = None) -> Image:
        asked.append(max_size)
        return load_image(path, max_size=max_size)

    monkeypatch.setattr("steerers.benchmarks.predict.load_image", load)
    PIL.Image.new("L", (500, 400)).save(tmp_path / "a.png")
    assert load_at(tmp_path / "a.png", ViewSettings(short_side=40)).tensor.shape == (3, 40, 50)
    assert load_at(tmp_path / "a.png", ViewSettings(20, resize="squash")).tensor.shape == (3, 128, 160)
    assert asked == [50, 160]


def test_a_strip_is_not_enlarged_without_end(tmp_path: Path) -> None:
    PIL.Image.new("L", (20_000, 1)).save(tmp_path / "strip.png")
    with pytest.raises(ImageError, match=r"strip\.png would be 11520000 x 576 at a shortest side of 576, more than"):
        load_at(tmp_path / "strip.png", ViewSettings(short_side=576))


@pytest.mark.parametrize(("size", "short_side"), [((120, 90), 60), ((60, 90), 90), ((75, 75), 75)])
def test_frames_survive_both_shrinking_and_enlarging(size: tuple[int, int], short_side: int) -> None:
    image = load_image(blob(size, (0.4, 0.55)))
    resized = resize(image, short_side)
    assert min(resized.tensor.shape[1:]) == short_side
    assert resized.stored_size == size
    (found,) = detect_image(Centroid(), resized.tensor, num_keypoints=1).xy
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
    (predictions,) = predict_all([Run("stub", pipeline)], pairs, ViewSettings(short_side=80))
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
    image = load_at(tmp_path / "a.bmp", ViewSettings(short_side=short_side))
    assert tuple(image.tensor.shape[1:]) == fit_size((width, height), short_side)[::-1]
    if short_side < min(width, height):
        shrunk = load_image(tmp_path / "a.bmp", max_size=max(fit_size((width, height), short_side)))
        assert shrunk.tensor.shape == image.tensor.shape


def test_the_longest_side_is_another_rule(tmp_path: Path) -> None:
    save(blob((60, 40), (0.5, 0.5)), tmp_path / "a.png")
    for views, expected in (
        (ViewSettings(30), (20, 30)),
        (ViewSettings(90), (40, 60)),
        (ViewSettings(30, short_side=80), (80, 120)),
    ):
        assert load_at(tmp_path / "a.png", views).tensor.shape[1:] == expected


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"cannot read image .*a\.png"):
        load_at(tmp_path / "a.png", ViewSettings(short_side=100))
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        load_at(tmp_path / "b.png", ViewSettings(short_side=100))


def test_an_image_of_the_right_size_stays() -> None:
    image = load_image(blob((60, 40), (0.5, 0.5)))
    assert resize(image, 40) is image
    assert isinstance(resize(image, 20), Image)


# Squashing and canvases -----------------------------------------------------------------------------------------------


def shown(path: Path, rotation: int, settings: ViewSettings) -> tuple[View, Image]:
    return make_view(load_at(path, settings), path, rotation, settings, torch.device("cpu"))


@pytest.mark.parametrize("size", [(90, 60), (41, 77), (64, 64)])
def test_what_is_not_rotated_is_squashed_as_the_pipeline_does(tmp_path: Path, size: tuple[int, int]) -> None:
    """Quarter turns follow, but for the rounding of 8 bits, which depends on which axis is resampled first."""
    noise = torch.rand(3, size[1], size[0], generator=torch.Generator().manual_seed(0))
    save(0.3 + 0.4 * noise, tmp_path / "a.png")  # so that nothing overshoots
    settings = ViewSettings(50, resize="squash")
    expected = load_image(tmp_path / "a.png", max_size=50, resize="squash").tensor
    for k in range(4):
        _, seen = shown(tmp_path / "a.png", 90 * k, settings)
        rotated = torch.rot90(expected, k, dims=(1, 2))
        assert torch.equal(seen.tensor, rotated) or (k and (seen.tensor - rotated).abs().max() < 2.01 / 255)


@given(
    st.integers(20, 90), st.integers(20, 90), st.integers(16, 100), st.integers(-40, 40),
    st.sampled_from(["keep", "grow"]), st.sampled_from(["fit", "squash"]), st.data(),
)  # fmt: skip
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stored_pixel_is_found_in_every_view(
    tmp_path: Path, width: int, height: int, side: int, tens: int, canvas: Canvas, resize: Resize, data: st.DataObject
) -> None:
    """From a stored pixel by hand to what the network sees, and back by the view: rotated first, then squashed."""
    stored = np.array([data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))], np.float64)
    PIL.Image.new("RGB", (width, height)).save(tmp_path / "a.bmp")
    view, image = shown(tmp_path / "a.bmp", 10 * tens, ViewSettings(side, resize=resize, canvas=canvas))
    shrink = min(1.0, side / max(width, height))
    size = np.array([max(1, round(width * shrink)), max(1, round(height * shrink))])
    assert (view.size, view.stored_size) == (tuple(size), (width, height))
    upright = (stored + 0.5) * size / [width, height] - 0.5
    loaded = size if resize == "fit" else np.array([width, height])  # the size at which it is rotated
    c, s = math.cos(math.radians(10 * tens)), math.sin(math.radians(10 * tens))
    turn = np.array([[c, s], [-s, c]])
    frame = loaded if canvas == "keep" else np.ceil(abs(turn) @ loaded - 1e-6)
    offset = (stored + 0.5) * loaded / [width, height] - loaded / 2
    on_canvas = turn @ offset + frame / 2 - 0.5
    seen = (on_canvas + 0.5) * side / frame - 0.5 if resize == "squash" else on_canvas
    assert image.stored_size == tuple(frame)
    assert image.tensor.shape[1:] == ((side, side) if resize == "squash" else (frame[1], frame[0]))
    found = transform_points(image.to_stored, torch.from_numpy(seen))
    np.testing.assert_allclose(found, on_canvas, atol=1e-6)
    np.testing.assert_allclose(view.upright(found), upright, atol=1e-6)


@pytest.mark.parametrize("tta", [None, 8])
@pytest.mark.parametrize("canvas", CANVASES)
def test_the_network_sees_squares_alone(tmp_path: Path, tta: int | None, canvas: Canvas) -> None:
    """However images are rotated, by the benchmark or for test-time augmentation; what it finds is where it was."""
    save(blob((120, 80), (0.47, 0.55)), tmp_path / "a.png")
    save(blob((60, 90), (0.55, 0.46)), tmp_path / "b.png")
    extractor = Centroid()
    pipeline = load_runs(["sift"], num_keypoints=10, max_size=64, resize="squash")[0].pipeline
    model, strategy = replace(pipeline.model, extractor=extractor), make_strategy("dual-softmax", threshold=0.0)
    run = Run("stub", replace(pipeline, model=model, strategy=strategy, tta=tta))
    found = []
    for rotation in (0, 90, 20, 160):
        pairs = [Pair("ab", "", tmp_path / "a.png", tmp_path / "b.png", rotation0=10, rotation1=rotation)]
        (predictions,) = predict_all([run], pairs, ViewSettings(64, resize="squash", canvas=canvas))
        found.append(predictions[0])
    assert set(extractor._shapes) == {(64, 64)}
    for prediction in found:
        assert (prediction.size0, prediction.size1) == ((64, 43), (43, 64))
        np.testing.assert_allclose(prediction.matches.keypoints0, [[0.47 * 64 - 0.5, 0.55 * 43 - 0.5]], atol=0.3)
        np.testing.assert_allclose(prediction.matches.keypoints1, [[0.55 * 43 - 0.5, 0.46 * 64 - 0.5]], atol=0.3)


@pytest.mark.parametrize("rotation", [90, 40])
@pytest.mark.parametrize("size", [(90, 60), (60, 60)])
def test_a_kept_canvas_cuts(tmp_path: Path, rotation: int, size: tuple[int, int]) -> None:
    save(torch.ones(3, size[1], size[0]), tmp_path / "a.png")
    _, kept = shown(tmp_path / "a.png", rotation, ViewSettings(90, canvas="keep", mask_corners=True))
    _, grown = shown(tmp_path / "a.png", rotation, ViewSettings(90, canvas="grow"))
    assert kept.stored_size == size
    whole = size[0] == size[1] and rotation == 90
    assert (kept.mask is None) == whole
    assert float(grown.tensor.mean(0).sum()) == pytest.approx(size[0] * size[1], rel=0.02)
    if not whole:
        assert kept.mask is not None
        assert not kept.mask[0, 0]
        assert float(kept.tensor.mean(0).sum()) < 0.95 * size[0] * size[1]


def test_sides_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="short_side keeps shapes: give max_size with resize 'squash'"):
        ViewSettings(short_side=60, resize="squash")


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


# Features -------------------------------------------------------------------------------------------------------------


class Slow(Stub):
    """Takes a second more for each image, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0.0

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        self._clock += 1 + self._calls
        return super().detect_one(image, num_keypoints, None)


def test_each_image_is_described_once_for_all_of_its_pairs(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(predict, "load_at", lambda path, views: (loaded.append(path), load_at(path, views))[1])
    first, second = Stub(), Stub(1.0)
    runs = [make_run(first, label="a"), make_run(first, "max-matches", "b", order=4), make_run(second, label="c")]
    predict_all(runs, pairs)
    assert (first._calls, second._calls) == (IMAGES, IMAGES)
    assert len(loaded) == len(set(loaded)) == IMAGES


def test_what_does_not_fit_is_described_again_with_the_same_result(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, pressed = Stub(), Stub()
    (expected,) = predict_all([make_run(stub)], pairs)
    monkeypatch.setattr(predict, "FEATURE_BYTES", 1)
    monkeypatch.setattr(predict, "PIXEL_BYTES", 1)
    (found,) = predict_all([make_run(pressed)], pairs)
    assert stub._calls == IMAGES
    assert pressed._calls > 2 * IMAGES
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def test_where_some_fit_what_was_used_last_is_used_first(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that always start with the oldest would find little but their first image at hand: 14 extractions."""
    features = make_run().pipeline.extract(pairs[0].image0)
    monkeypatch.setattr(
        predict, "FEATURE_BYTES", 4 * count_bytes(features.keypoints, features.descriptions, features.scores)
    )
    stub = Stub()
    predict_all([make_run(stub)], pairs)
    assert IMAGES < stub._calls <= 12


def test_every_pair_counts_the_seconds_of_its_own_images(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(speed, "now", lambda _: slow._clock)
    (found,) = predict_all([make_run(slow)], pairs)
    order = dict.fromkeys(path for pair in pairs for path in (pair.image0, pair.image1))
    seconds = {path: 1.0 + k for k, path in enumerate(order)}
    assert [prediction.extractions for prediction in found] == [2] * len(pairs)
    assert [prediction.extraction_seconds for prediction in found] == [
        seconds[pair.image0] + seconds[pair.image1] for pair in pairs
    ]


@pytest.mark.parametrize(("rotation", "masked"), [(0, False), (90, False), (40, True)])
def test_masked_corners(pairs: list[Pair], rotation: int, masked: bool) -> None:
    @dataclass
    class Seen:
        mask: Tensor | None = None

    seen = Seen()

    class Looking(Stub):
        def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
            seen.mask = mask
            return super().detect_one(image, num_keypoints, None)

    rotated = [replace(pairs[0], rotation1=rotation)]
    predict_all([make_run(Looking())], rotated)
    assert seen.mask is None
    predict_all([make_run(Looking())], rotated, ViewSettings(mask_corners=True))
    assert (seen.mask is not None) == masked
    if seen.mask is not None:
        assert not bool(seen.mask[0, 0])
        assert float(seen.mask.sum()) == pytest.approx(SIZE[0] * SIZE[1], rel=0.03)


def test_without_tqdm_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(predict.progress([1, 2], "counting")) == [1, 2]


# Pairs ----------------------------------------------------------------------------------------------------------------


def test_the_rotations_of_every_mode() -> None:
    pairs = [Pair(str(k), "s", Path("a"), Path("b")) for k in range(8)]
    rotations = {
        rotation: [(p.rotation0, p.rotation1) for p in rotate_pairs(pairs, rotation)] for rotation in ROTATIONS
    }
    assert rotations["upright"] == [(0, 0)] * 8
    assert rotations["fixed"] == [(0, t) for t in (40, 90, 140, 190, 240, 290, 340, 30)]
    assert rotations["quarter"] == [(0, 90), (0, 180), (0, 270)] * 8
    assert rotations["joint"] == [(90, 90), (180, 180), (270, 270)] * 8
    assert rotations["c4"] == [(0, t) for t in (0, 90, 180, 270, 0, 90, 180, 270)]
    assert rotations["so2"] == [(0, t) for t in (0, 10, 20, 30, 40, 50, 60, 70)]
    assert rotate_pairs(pairs * 5, "so2")[37].rotation1 == 10
    assert rotations["all"] == [(0, t) for t in range(0, 360, 10)] * 8
    with pytest.raises(ValueError, match="unknown rotation 'no-such'; use one of upright, fixed"):
        rotate_pairs(pairs, "no-such")  # type: ignore[arg-type]


def test_sequences_are_chosen_in_the_order_that_is_asked_for() -> None:
    found = {name: Path(name) for name in "abc"}
    assert choose(found, None, Path("data")) == found
    assert list(choose(found, ["c", "a", "c"], Path("data"))) == ["c", "a"]
    with pytest.raises(ValueError, match="data has no scene 'd'; it has a, b, c"):
        choose(found, ["a", "d"], Path("data"), "scene")
