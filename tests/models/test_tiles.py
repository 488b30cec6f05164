"""Images in tiles against the same images in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import steerers
from helpers import EXAMPLES, assert_near, assert_refused, run_command
from steerers.accel.networks import for_inference
from steerers.features import Keypoints
from steerers.images.load import load_image, make_picture
from steerers.models import zoo
from steerers.models.base import Combined, LogitDetector, SingleExtractor
from steerers.models.classical import UprightSift
from steerers.models.compact import Compact, CompactConfig, Pyramid
from steerers.models.sampling import KeypointSampling, sample_keypoints
from steerers.models.tiles import OVERLAP, SMALLEST, STEP, list_tiles, tiled

pytestmark = pytest.mark.usefixtures("one_thread")
TILE = 512
HOUSE = EXAMPLES / "maupertuis_0.jpg"
Found = tuple[Keypoints, Tensor]


@pytest.fixture(scope="module")
def network() -> Compact:
    """The compact network with few channels and random weights: strides and windows, which tiles depend on, are its."""
    torch.manual_seed(0)
    return Compact(CompactConfig((4, 8, 8, 12, 16), dim=8, hidden=8)).double().eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Two, (2, 3, H, W), of no multiple of anything, one of them flat in a corner; two tiles each."""
    pair = torch.stack([make_picture(141, 587, seed) for seed in (0, 1)]).double()
    pair[1, :, :80, :300] = 0.5
    return pair


def assert_same(found: list[Found], expected: list[Found], tolerance: float = 1e-4) -> None:
    """The same keypoints, with the same scores and descriptions, up to the order of equals.

    Positions are float32, which at 1000 pixels has steps of 6e-5.
    """
    for (keypoints, descriptions), (wanted, wanted_descriptions) in zip(found, expected, strict=True):
        assert len(keypoints) == len(wanted)
        distances, nearest = torch.cdist(wanted.xy.double(), keypoints.xy.double()).min(dim=1)
        assert len(nearest.unique()) == len(wanted)
        assert float(distances.max()) < 2e-4
        assert bool((keypoints.scores.diff() <= 0).all())
        torch.testing.assert_close(keypoints.scores[nearest], wanted.scores, atol=0, rtol=tolerance)
        assert_near(descriptions[nearest], wanted_descriptions, tolerance)


# Cutting --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(SMALLEST, 1500))
def test_cores_make_up_the_image_and_tiles_see_around_them(height: int, width: int, tile: int) -> None:
    image = torch.empty(1, 1, 1, 1).expand(1, 3, height, width)
    found = list_tiles(image, tile)
    for side, length in (("rows", height), ("columns", width)):
        spans = sorted({getattr(each, side) for each in found})
        assert [span.core_start for span in spans] == [0, *(span.core_end for span in spans[:-1])]
        assert spans[-1].core_end == spans[-1].end == length
        for span in spans:
            assert span.start % STEP == 0
            assert span.end - span.start <= tile
            assert span.start == max(0, span.core_start - OVERLAP)
            assert span.end == min(length, span.core_end + OVERLAP)
    assert len(found) == len({each.rows for each in found}) * len({each.columns for each in found})


@given(st.integers(0, 2**32 - 1), st.integers(400, 2000), st.integers(400, 2000))
def test_every_pixel_belongs_to_one_core(seed: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    xy = torch.rand(50, 2, generator=generator) * torch.tensor([width + 20.0, height + 20.0]) - 10  # also outside
    tiles = list_tiles(torch.empty(1, 1, 1, 1).expand(1, 3, height, width), SMALLEST)
    assert torch.stack([tile.holds(xy) for tile in tiles]).sum(dim=0).tolist() == [1] * 50


def test_the_overlap_is_what_the_network_sees() -> None:
    """Where the gradient of a logit or a description reaches, with weights that cannot cancel."""
    network = Compact(CompactConfig((2, 2, 2, 2, 2), dim=2, hidden=2)).double().eval()
    for parameter in network.trunk.parameters():
        parameter.data.abs_()
    image = torch.rand(1, 3, 512, 512, dtype=torch.float64, requires_grad=True)
    maps = network(image)
    seen = 0
    for place in (256, 271):  # the first and the last in a cell of the coarsest features
        described = network.describe_at(maps, torch.tensor([[[place + 0.5, place + 0.5]]], dtype=torch.float64))
        for value in (maps.logits[0, place, place], described.square().sum()):
            (gradient,) = torch.autograd.grad(value, image, retain_graph=True)
            reached = gradient[0].abs().sum(dim=0).nonzero()
            seen = max(seen, place - int(reached.min()), int(reached.max()) - place)
    assert seen == 179
    assert OVERLAP - STEP < seen <= OVERLAP


# As in one pass -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scales", [(1.0,), (1.0, 0.5)], ids=["one scale", "two scales"])
def test_the_compact_network(network: Compact, images: Tensor, scales: tuple[float, ...], masked: bool) -> None:
    masks = None
    if masked:
        masks = torch.ones(2, *images.shape[-2:], dtype=torch.bool)
        masks[:, 40:100, 250:500] = False
    whole = Pyramid(network, scales)
    expected = whole.extract(images, num_keypoints=400, masks=masks)
    assert_same(tiled(whole, TILE).extract(images, num_keypoints=400, masks=masks), expected)
    assert [len(keypoints) for keypoints, _ in expected] == [400, 400]
    if masked:
        x, y = expected[0][0].xy.unbind(dim=1)
        assert not bool(((x > 252) & (x < 497) & (y > 42) & (y < 97)).any())


def test_tiles_beside_and_below_each_other(network: Compact) -> None:
    image = make_picture(523, 587).double()[None]
    assert len(list_tiles(image, TILE)) == 4
    expected = network.extract(image, num_keypoints=1000)
    assert_same(tiled(network, TILE).extract(image, num_keypoints=1000), expected)


def test_fewer_keypoints_than_are_asked_for(network: Compact, images: Tensor) -> None:
    masks = torch.zeros(2, *images.shape[-2:], dtype=torch.bool)
    masks[:, 100:120, 310:330] = True
    expected = network.extract(images, num_keypoints=500, masks=masks)
    assert 0 < len(expected[0][0]) < 500
    assert_same(tiled(network, TILE).extract(images, num_keypoints=500, masks=masks), expected)
    nothing = tiled(network, TILE).extract(images, num_keypoints=500, masks=torch.zeros_like(masks))
    assert [len(keypoints) for keypoints, _ in nothing] == [0, 0]


def test_detection_and_description_apart(network: Compact, images: Tensor) -> None:
    in_tiles = tiled(Pyramid(network), TILE)
    found = in_tiles.detect(images, num_keypoints=200)
    expected = Pyramid(network).extract(images, num_keypoints=200)
    assert_same(list(zip(found, in_tiles.describe(images, found), strict=True)), expected)


def test_the_embedded_network_sees_farther_than_tiles_overlap() -> None:
    """So that tiles find nearly what one pass does; see the module."""
    image, network = load_image(HOUSE).tensor[None, :, 100:700, :600], zoo.build("compact").extractor
    ((expected, descriptions),) = network.extract(image, num_keypoints=500)
    ((found, others),) = tiled(network, TILE).extract(image, num_keypoints=500)
    distances, nearest = torch.cdist(expected.xy.double(), found.xy.double()).min(dim=1)
    same = distances < 0.1
    assert float(same.double().mean()) > 0.97
    assert float(torch.cosine_similarity(descriptions[same], others[nearest[same]]).min()) > 0.99


def test_the_form_for_inference() -> None:
    """As on a GPU, in PyTorch's own operations; with the trained weights, whose logits are far apart."""
    image = load_image(HOUSE).tensor[None, :, 300:500, :600]
    fast = for_inference(zoo.build("compact-1").extractor)
    ((expected, descriptions),) = fast.extract(image, num_keypoints=300)
    ((found, others),) = tiled(fast, TILE).extract(image, num_keypoints=300)
    distances, nearest = torch.cdist(expected.xy.double(), found.xy.double()).min(dim=1)
    assert int((distances < 1e-3).sum()) >= 299  # rounding may exchange the last
    same = distances < 1e-3
    assert float(torch.cosine_similarity(descriptions[same], others[nearest[same]]).min()) > 0.99999
    torch.testing.assert_close(found.scores[nearest[same]], expected.scores[same], atol=0, rtol=1e-4)


class Corners(LogitDetector):
    """Logits of a small network, sampled as DeDoDe's are: for coverage, which needs the probabilities of all pixels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Conv2d(3, 4, 9, padding=4), nn.ReLU(), nn.Conv2d(4, 1, 9, padding=4))
        self.sampling = KeypointSampling(nms_size=3)
        self.sides: list[int] = []

    def logits(self, images: Tensor) -> Tensor:
        self.sides += images.shape[-2:]
        return 20 * self.network(images)[:, 0]

    def detect(self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None) -> list[Keypoints]:
        return sample_keypoints(self.logits(images), num_keypoints, masks, self.sampling)


def test_a_detector_that_makes_logits(images: Tensor) -> None:
    detector = Corners().double()
    whole = Combined(detector, UprightSift())
    expected = whole.extract(images, num_keypoints=400)
    assert max(detector.sides) > TILE
    detector.sides.clear()
    found = tiled(whole, TILE).extract(images, num_keypoints=400)
    assert max(detector.sides) <= TILE
    assert_same(found, expected, 1e-4)


def test_scales_of_sift_that_a_tile_holds() -> None:
    image = load_image(HOUSE).tensor[None]
    sift = UprightSift()
    ((expected, descriptions),) = sift.extract(image, num_keypoints=10_000)
    ((found, others),) = tiled(sift, 640).extract(image, num_keypoints=10_000)
    small = expected.scales < 8  # pixels
    place, other_place = (torch.cat([k.xy, k.scales[:, None]], dim=1).double() for k in (expected.select(small), found))
    distances, nearest = torch.cdist(place, other_place).min(dim=1)
    assert float((distances < 0.01).float().mean()) > 0.99
    same = distances < 0.01
    cosines = torch.cosine_similarity(descriptions[small][same], others[nearest[same]])
    assert float((cosines > 0.999).float().mean()) > 0.99
    assert len(found) == pytest.approx(len(expected), rel=0.01)


class Recorder(SingleExtractor):
    """Sees the brightest pixels; remembers what it was shown."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        self.shapes.append(tuple(image.shape[1:]))
        grey = image[0] if mask is None else image[0].masked_fill(~mask, -1)
        values, index = grey.flatten().topk(min(num_keypoints, grey.numel()))
        kept = index[values >= 0]
        return Keypoints(torch.stack((kept % grey.shape[1], kept // grey.shape[1]), dim=1).float(), values[values >= 0])

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        x, y = keypoints.xy.long().unbind(dim=1)
        return image[:2, y, x].T


def test_any_other_extractor_sees_tiles_and_the_best_of_all_are_kept() -> None:
    image = torch.randperm(3 * 700 * 900).double().view(1, 3, 700, 900) / (3 * 700 * 900)
    recorder = Recorder()
    found = tiled(recorder, 500).extract(image, num_keypoints=50)
    assert max(max(shape) for shape in recorder.shapes) <= 500
    assert len(recorder.shapes) == len(list_tiles(image, 500)) > 1
    assert_same(found, recorder.extract(image, num_keypoints=50), 0)
    recorder.shapes.clear()
    assert_same(tiled(recorder, 900).extract(image, num_keypoints=50), recorder.extract(image, num_keypoints=50), 0)
    assert recorder.shapes == [(700, 900), (700, 900)]  # what fits into a tile is not cut


# The pipeline and the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [1, 6])
def test_keypoints_are_stored_pixels(tmp_path: Path, orientation: int) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    pixels = np.asarray(PIL.Image.open(HOUSE))[300:500, :600]
    PIL.Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    mask = np.zeros(pixels.shape[:2], np.uint8)
    mask[:, 250:] = 255
    options: dict[str, Any] = {"num_keypoints": 300, "exif": "apply"}
    in_tiles = steerers.load("compact-1", tile=TILE, **options).extract(tmp_path / "a.png", mask=mask)
    whole = steerers.load("compact-1", max_size=None, **options).extract(tmp_path / "a.png", mask=mask)
    assert in_tiles.image_size == (600, 200)
    distances, nearest = torch.cdist(whole.keypoints.double(), in_tiles.keypoints.double()).min(dim=1)
    assert float(distances.max()) < 2e-3
    assert sorted(nearest.tolist()) == list(range(300))
    assert float(torch.cosine_similarity(in_tiles.descriptions[nearest], whole.descriptions).min()) > 0.99999
    torch.testing.assert_close(in_tiles.scores[nearest], whole.scores, atol=0, rtol=1e-4)
    assert float(in_tiles.keypoints[:, 0].min()) > 245


def test_the_size_of_images_with_tiles() -> None:
    assert steerers.load("orb").max_size == 1024
    assert steerers.load("orb", tile=600).max_size is None
    assert steerers.load("orb", tile=600, max_size=2000).max_size == 2000


@pytest.mark.parametrize("tile", [0, 447, -512, 512.0, True, "512"])
def test_what_is_no_tile(tile: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerers.models.zoo.build", pytest.fail)  # before any download
    with pytest.raises(ValueError, match=f"tile must be a whole number of at least 448 pixels, .* got {tile!r}"):
        steerers.load(tile=tile)  # type: ignore[arg-type]


def test_the_command() -> None:
    pair = ["match", EXAMPLES / "board_0.jpg", EXAMPLES / "board_1.jpg", "--model", "upright-sift"]
    ran = run_command(*pair, "--tile", "800", "--verbose")
    assert ran.code == 0
    assert "2 tiles of an image of 1024 x 768" in ran.err
    assert "shown at 1024 x 768" in ran.err
    assert_refused([*pair, "--tile", "100"], "tile must be a whole number of at least 448 pixels")
    assert_refused([*pair, "--tile", "none"], "argument --tile: 'none' is not a whole number of at least 1")
