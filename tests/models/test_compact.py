"""The embedded network, for images of any size, and at several scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import steerers
from helpers import EXAMPLES, assert_near, describe_image, detect_image, extract_image, randn, seeds
from steerers.accel.networks import for_inference
from steerers.accel.networks.compact import FastPyramid
from steerers.features import Keypoints
from steerers.images.load import load_image, make_picture
from steerers.matching.strategies import make_strategy
from steerers.models import zoo
from steerers.models.base import SingleExtractor
from steerers.models.compact import (
    DIAMETER,
    LATER_PARTS,
    Compact,
    CompactConfig,
    Pyramid,
    fold_batch_norms,
    smoothed,
    spread_logits,
    textured,
)
from steerers.models.sampling import KeypointSampling, choose_keypoints

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = CompactConfig(channels=(4, 6, 8, 8, 8), blocks=(1, 1, 1, 1), dim=12, hidden=10)


def network(config: CompactConfig = SMALL, sampling: KeypointSampling | None = None, seed: int = 0) -> Compact:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (Compact(config) if sampling is None else Compact(config, sampling)).eval()


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


SIZES = st.tuples(st.integers(1, 50), st.integers(1, 50))
PLAIN = KeypointSampling(coverage=False, nms_size=3, subpixel=True)


@given(SIZES)
def test_images_of_any_size(size: tuple[int, int]) -> None:
    model, image = network(sampling=PLAIN), picture(*size)
    with torch.no_grad():
        maps = model(image[None])
        keypoints, descriptions = extract_image(model, image, num_keypoints=9)
    assert maps.logits.shape == (1, *size)
    assert maps.logits.isfinite().all()
    assert (1 if max(size) > 1 else 0) <= len(keypoints) <= 9  # one pixel alone has no texture
    assert descriptions.shape == (len(keypoints), 12)
    assert descriptions.isfinite().all()
    limit = torch.tensor([size[1], size[0]]) - 1
    assert (keypoints.xy >= 0).all()
    assert (keypoints.xy <= limit).all()


@given(SIZES, st.booleans())
def test_extracting_is_detecting_and_describing(size: tuple[int, int], masked: bool) -> None:
    model, image = network(sampling=PLAIN), picture(*size)
    mask = picture(*size, seed=1)[0] > 0.3 if masked else None
    with torch.no_grad():
        keypoints, descriptions = extract_image(model, image, num_keypoints=20, mask=mask)
        detected = detect_image(model, image, num_keypoints=20, mask=mask)
        described = describe_image(model, image, detected)
    assert torch.equal(keypoints.xy, detected.xy)
    assert torch.equal(keypoints.scores, detected.scores)
    assert torch.equal(descriptions, described)


# Where nothing is to be seen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", [0.0, 0.5, 1.0])
def test_a_picture_of_nothing(colour: float) -> None:
    model, image = network(), torch.full((3, 40, 56), colour)
    with torch.no_grad():
        keypoints, descriptions = extract_image(model, image, num_keypoints=10)
        assert len(detect_image(model, image, num_keypoints=10)) == 0
    assert keypoints.xy.shape == (0, 2)
    assert descriptions.shape == (0, 12)


def test_black_corners_have_no_keypoints() -> None:
    """As a rotated image has them: keypoints come no nearer than the cells beside what can be seen."""
    image = torch.zeros(3, 96, 96)
    image[:, 40:, 48:] = picture(56, 48)
    mask = torch.ones(96, 96, dtype=torch.bool)
    mask[:, :60] = False
    with torch.no_grad():
        keypoints = detect_image(network(), image, num_keypoints=1000)
        masked = detect_image(network(), image, num_keypoints=1000, mask=mask)
    assert len(keypoints) > 50
    assert (keypoints.xy[:, 0] > 39).all()
    assert (keypoints.xy[:, 1] > 31).all()
    assert 10 < len(masked) < len(keypoints)
    assert (masked.xy[:, 0] > 59).all()


@given(SIZES, st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_texture_is_a_range_of_grey_values(size: tuple[int, int], seed: int, levels: int) -> None:
    """Of 8-bit images, told in whole numbers: three times the grey level is the sum of the channels."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, levels + 1, (3, *size), generator=generator) * torch.randint(
        0, 2, size, generator=generator
    )
    total = 3 * 100 + values.sum(dim=0)
    expected = torch.zeros(size, dtype=torch.bool)
    for y in range(size[0]):
        for x in range(size[1]):
            top, left = 8 * (y // 8 - 1), 8 * (x // 8 - 1)
            around = total[max(top, 0) : top + 24, max(left, 0) : left + 24]
            expected[y, x] = around.max() - around.min() >= 3 * 2
    assert torch.equal(textured((100 + values)[None] / 255)[0], expected)


@given(st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_texture_rotations_with_the_image(cells: tuple[int, int], k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = (torch.rand(1, 3, 8 * cells[0], 8 * cells[1], generator=generator) < 0.002).float()
    assert torch.equal(textured(image.rot90(k, dims=(2, 3))), textured(image).rot90(k, dims=(1, 2)))


def test_too_small_for_a_keypoint() -> None:
    with torch.no_grad():
        keypoints, descriptions = extract_image(network(), picture(8, 60), num_keypoints=10)  # all of it is border
    assert len(keypoints) == 0
    assert descriptions.shape == (0, 12)


def test_what_lies_to_the_right_and_below_is_padding_alone() -> None:
    """Features of a padded image are those of the image: keypoints need not be moved."""
    model, image = network(), picture(32, 48)
    xy = torch.tensor([[[5.0, 6.0], [20.5, 11.25]]])
    with torch.no_grad():
        whole, cut = model(image[None]), model(image[None, :, :31, :45])
        assert cut.size == whole.size == (48, 32)
        padded = torch.nn.functional.pad(image[None, :, :31, :45], (0, 3, 0, 1), mode="replicate")
        assert_near(model.describe_at(cut, xy), model.describe_at(model(padded), xy), 1e-6)
        assert_near(cut.logits, model(padded).logits[:, :31, :45], 1e-6)


def test_a_batch_is_what_its_images_are() -> None:
    model = network()
    images = torch.stack([picture(32, 40, seed) for seed in range(3)])
    xy = 30 * torch.rand(3, 5, 2)
    with torch.no_grad():
        maps = model(images)
        together = model.describe_at(maps, xy)
        for index, image in enumerate(images):
            assert_near(maps.logits[index], model(image[None]).logits[0], 1e-4)
            alone = describe_image(model, image, Keypoints(xy[index], torch.ones(5)))
            assert_near(together[index], alone, 1e-4)


def test_double_precision_is_kept() -> None:
    model, image = network().double(), picture(33, 45).double()
    with torch.no_grad():
        maps = model(image[None])
        keypoints, descriptions = extract_image(model, image, num_keypoints=6)
        single = network()(image.float()[None]).logits
    assert maps.logits.dtype == descriptions.dtype == torch.float64
    assert keypoints.xy.dtype == torch.float32
    assert_near(maps.logits, single.double(), 1e-4)


def test_half_precision_gives_single_precision_back() -> None:
    model, image = network(), picture(32, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        maps = model(image[None])
        keypoints, _ = extract_image(model, image, num_keypoints=6)
    assert maps.logits.dtype == keypoints.xy.dtype == torch.float32


def test_gradients_reach_every_weight() -> None:
    model = network().train()
    maps = model(torch.stack([picture(32, 32, seed) for seed in (0, 1)]))
    (maps.logits.square().mean() + model.describe_at(maps, 30 * torch.rand(2, 6, 2)).square().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_default_is_small() -> None:
    with torch.device("meta"):
        model = Compact()
    assert sum(parameter.numel() for parameter in model.parameters()) <= 4_000_000
    assert model.dim == 256
    assert model.config.stride == 16


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": (4, 8), "blocks": (1, 1)},
        {"channels": (), "blocks": ()},
        {"channels": (4, 0, 8), "blocks": (1, 1)},
        {"dim": 0},
        {"hidden": -1},
        {"channels": (4, 1_000_000), "blocks": (1,)},
        {"channels": (4, 8), "blocks": (10**6,), "dim": 10**6},
        {"hidden": 10**6},
        {"context": 10**6},
        {"context": -1},
        {"fine": -1},
        {"fine": 10**6},
        {"antialias": -1},
        {"antialias": 5},
        {"spread": -0.1},
        {"spread": 1.5},
        {"spread": float("nan")},
        {"spread": 0.5, "channels": (4, 8, 8), "blocks": (1, 1)},
    ],
)
def test_shapes_that_are_none_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"channels|context|antialias|spread"):
        CompactConfig(**changes)  # type: ignore[arg-type]


def test_what_came_later_begins_as_nothing() -> None:
    """With the weights of a network without it, all is as it was."""
    plain, wide = network(), network(replace(SMALL, context=2, fine=2), seed=1)
    missing, unknown = wide.load_state_dict(plain.state_dict(), strict=False)
    assert not unknown
    assert all(name.startswith(LATER_PARTS) for name in missing)
    images = picture(64, 96)[None]
    for one, other in zip(wide.trunk(images), plain.trunk(images), strict=True):
        assert torch.equal(one, other)
    assert wide.config.stride == 32


def test_context_sees_farther() -> None:
    def reach(context: int) -> int:
        """How many columns of the coarsest features a change of the first column of pixels alters."""
        model = network(replace(SMALL, context=context))
        if model.trunk.context is not None:
            nn.init.normal_(model.trunk.context.last.weight, generator=torch.Generator().manual_seed(0))
        images = torch.stack([picture(32, 1024)] * 2)
        images[1, :, :, 0] = 1 - images[1, :, :, 0]
        first, second = model(images).features[-1].double()
        return int(((first - second).abs().amax(dim=(0, 1)) > 0).sum())

    assert reach(2) >= 2 * reach(0)


@pytest.mark.parametrize(("context", "fine"), [(0, 0), (2, 1)])
@torch.no_grad()
def test_folded_batch_normalisations_compute_the_same(dtype: torch.dtype, context: int, fine: int) -> None:
    shape, generator = replace(SMALL, context=context, fine=fine), torch.Generator().manual_seed(0)
    plain = network(shape).to(dtype)
    if plain.trunk.context is not None:
        nn.init.normal_(plain.trunk.context.last.weight, generator=generator)
    for norm in (module for module in plain.modules() if isinstance(module, nn.BatchNorm2d)):
        for values in (norm.running_mean, norm.weight, norm.bias):
            nn.init.normal_(values, generator=generator)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.3, 1.3, generator=generator)  # type: ignore[arg-type]
    images, xy = picture(32, 32)[None].to(dtype), torch.tensor([[[3.5, 4.0], [20.0, 11.25]]], dtype=dtype)
    expected = plain(images)
    described = plain.describe_at(expected, xy)
    folded = fold_batch_norms(plain.train())
    assert folded is plain
    assert not any(isinstance(module, nn.BatchNorm2d) or module.training for module in folded.modules())
    found = folded(images)
    actual = (*found.features, found.logits, folded.describe_at(found, xy))
    for one, other in zip(actual, (*expected.features, expected.logits, described), strict=True):
        assert one.dtype == dtype
        assert_near(one / other.abs().max(), other / other.abs().max(), 1e-12 if dtype.itemsize == 8 else 1e-5)


# Several scales -------------------------------------------------------------------------------------------------------

ASTRONAUT = EXAMPLES / "astronaut.jpg"


class Bright(SingleExtractor):
    """The brightest pixels, with their fraction of all grey, described by where they are."""

    dim = 3

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        grey = image.mean(dim=0)
        fractions = grey / grey.sum()
        allowed = fractions if mask is None else fractions.masked_fill(~mask, -1.0)
        count = fractions.numel() if mask is None else int(mask.sum())
        best = allowed.flatten().topk(min(num_keypoints, count))
        width = grey.shape[1]
        xy = torch.stack([best.indices % width, best.indices // width], dim=1).float()
        return Keypoints(xy, best.values)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return torch.cat([keypoints.xy, torch.full((len(keypoints), 1), float(image.shape[2]))], dim=1)


def dots(height: int, width: int, *places: tuple[int, int]) -> Tensor:
    """Black but for squares of 4 x 4 pixels."""
    image = torch.zeros(3, height, width)
    for x, y in places:
        image[:, y : y + 4, x : x + 4] = 1.0
    return image


def test_keypoints_of_all_scales_are_pixels_of_the_image() -> None:
    image = dots(128, 160, (40, 80))
    keypoints, descriptions = extract_image(Pyramid(Bright()), image, num_keypoints=20)
    assert len(keypoints) == len(descriptions) == 20
    assert keypoints.scales is not None
    fine, coarse = keypoints.scales == DIAMETER, keypoints.scales == 2 * DIAMETER
    assert (int(fine.sum()), int(coarse.sum())) == (16, 4)
    for chosen in (fine, coarse):  # the middle of the square, at either size
        torch.testing.assert_close(keypoints.xy[chosen].mean(dim=0), torch.tensor([41.5, 81.5]))
    assert descriptions[fine, 2].unique().tolist() == [160]
    assert descriptions[coarse, 2].unique().tolist() == [80]
    assert (keypoints.scores.diff() <= 0).all()


def test_scores_compare_between_scales() -> None:
    """What is wide stands out as far at half the size: neither size drives the other out."""
    image = torch.zeros(3, 128, 128)
    image[:, 32:96, 32:96] = 1.0
    keypoints, _ = extract_image(Pyramid(Bright()), image, num_keypoints=10**6)
    assert keypoints.scales is not None
    fine, coarse = (keypoints.scores[keypoints.scales == d][0] for d in (DIAMETER, 2 * DIAMETER))
    torch.testing.assert_close(fine, coarse, rtol=0.01, atol=0)


def test_coarse_places_weigh_less() -> None:
    image = torch.zeros(3, 128, 128)
    image[:, 32:96, 32:96] = 1.0
    plain, _ = extract_image(Pyramid(Bright()), image, num_keypoints=10**6)
    keypoints, _ = extract_image(Pyramid(Bright(), coarse=1.5), image, num_keypoints=10**6)
    for found, factor in ((plain, 1.0), (keypoints, 0.5**1.5)):
        assert found.scales is not None
        fine, coarse = (found.scores[found.scales == d][0] for d in (DIAMETER, 2 * DIAMETER))
        torch.testing.assert_close(fine * factor, coarse, rtol=0.01, atol=0)


def test_the_best_of_all_are_kept() -> None:
    image = torch.rand(3, 128, 160, generator=torch.Generator().manual_seed(0))
    many, _ = extract_image(Pyramid(Bright()), image, num_keypoints=10**6)
    few, _ = extract_image(Pyramid(Bright()), image, num_keypoints=50)
    assert len(many) == 128 * 160 * 5 // 4
    assert torch.equal(few.scores, many.scores[:50])


def test_small_images_are_not_shrunk() -> None:
    image = dots(127, 300, (40, 80))  # half of it would have a side of less than 64
    keypoints, descriptions = extract_image(Pyramid(Bright()), image, num_keypoints=30)
    alone, described = extract_image(Bright(), image, num_keypoints=30)
    assert torch.equal(keypoints.xy, alone.xy)
    assert torch.equal(descriptions, described)


def test_a_mask_holds_at_every_scale() -> None:
    image, mask = dots(128, 160, (40, 80), (100, 20)), torch.zeros(128, 160, dtype=torch.bool)
    mask[:, 80:] = True
    keypoints, _ = extract_image(Pyramid(Bright()), image, num_keypoints=20, mask=mask)
    assert len(keypoints) == 20
    assert float(keypoints.xy[:, 0].min()) >= 80


@pytest.mark.parametrize("cut", [80, 81])
def test_a_coarse_pixel_is_allowed_only_if_all_under_it_are(cut: int) -> None:
    image, mask = torch.rand(3, 130, 162), torch.zeros(130, 162, dtype=torch.bool)
    mask[:, cut:] = True
    keypoints, _ = extract_image(Pyramid(Bright()), image, num_keypoints=10**6, mask=mask)
    assert keypoints.scales is not None
    coarse = keypoints.scales == 2 * DIAMETER
    assert int(coarse.sum()) == 65 * ((162 - cut) // 2)
    assert float(keypoints.xy[coarse, 0].min()) - 0.5 >= cut  # the left edge of the lowest of its pixels, at least


def test_a_mask_of_another_size_is_refused() -> None:
    pyramid, image = Pyramid(Bright()), torch.rand(3, 130, 150)
    for call in (pyramid.detect, pyramid.extract):
        with pytest.raises(ValueError, match=r"masks must have the images' shape \(1, 130, 150\), got \(1, 65, 75\)"):
            call(image[None], num_keypoints=5, masks=torch.ones(1, 65, 75, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"masks must have the images' shape \(2, 130, 150\)"):
            call(image.expand(2, -1, -1, -1), num_keypoints=5, masks=torch.ones(1, 130, 150) > 0)


@pytest.mark.parametrize(("height", "width"), [(130, 161), (143, 201)])
def test_the_fast_form_at_two_scales(height: int, width: int) -> None:
    plain = zoo.build("compact").extractor
    fast = for_inference(plain)
    assert isinstance(fast, FastPyramid)
    images = torch.stack([make_picture(height, width, seed) for seed in range(2)])
    masks = torch.ones(2, height, width, dtype=torch.bool)
    masks[1, :, : width // 3] = False
    found = fast.extract(images, num_keypoints=150, masks=masks)
    with torch.no_grad():
        expected = [extract_image(plain, i, num_keypoints=150, mask=m) for i, m in zip(images, masks, strict=True)]
        described = plain.describe(images, [keypoints for keypoints, _ in found])
    for (keypoints, descriptions), (wanted, values), again in zip(found, expected, described, strict=True):
        assert keypoints.scales is not None
        assert len(keypoints.scales.unique()) == 2
        assert_near(keypoints.xy, wanted.xy, 1e-3)
        assert torch.equal(keypoints.scales, wanted.scales)  # type: ignore[arg-type]
        assert_near(descriptions, values, 1e-3)
        assert_near(again, descriptions, 1e-3)


def test_there_is_room_to_record_every_scale() -> None:
    fast = for_inference(zoo.build("compact").extractor, graphs=3)
    assert isinstance(fast, FastPyramid)
    assert fast.extractor._extracting.capacity == 3  # of all scales at once
    assert fast.extractor._describing.capacity == 6


def test_describing_what_was_found_is_extracting() -> None:
    image = torch.rand(3, 130, 150, generator=torch.Generator().manual_seed(1))
    pyramid = Pyramid(Bright(), (1.0, 0.75, 0.5))
    keypoints, descriptions = extract_image(pyramid, image, num_keypoints=5000)
    assert keypoints.scales is not None
    assert len(keypoints.scales.unique()) == 3
    torch.testing.assert_close(describe_image(pyramid, image, keypoints), descriptions, atol=1e-4, rtol=0)
    without = Keypoints(keypoints.xy, keypoints.scores)
    assert (describe_image(pyramid, image, without)[:, 2] == 150).all()


def test_a_batch_is_its_images() -> None:
    images = torch.rand(3, 3, 128, 140, generator=torch.Generator().manual_seed(2))
    masks = torch.rand(3, 128, 140, generator=torch.Generator().manual_seed(3)) > 0.3
    for index, (keypoints, descriptions) in enumerate(Pyramid(Bright()).extract(images, num_keypoints=40, masks=masks)):
        alone, described = extract_image(Pyramid(Bright()), images[index], num_keypoints=40, mask=masks[index])
        assert torch.equal(keypoints.xy, alone.xy)
        assert torch.equal(descriptions, described)
    found = Pyramid(Bright()).detect(images, num_keypoints=40, masks=masks)
    described_again = Pyramid(Bright()).describe(images, found)
    for image, keypoints, descriptions in zip(images, found, described_again, strict=True):
        assert torch.equal(descriptions, describe_image(Pyramid(Bright()), image, keypoints))
    with pytest.raises(ValueError, match="keypoints must be those of 3 images, got those of 2"):
        Pyramid(Bright()).describe(images, found[:2])


@pytest.mark.parametrize("scales", [(), (0.5,), (1.0, 0.0), (1.0, 2.0), (1.0, 1.0)])
def test_wrong_scales_are_refused(scales: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"scales must be 1 and then some between 0 and 1, got"):
        Pyramid(Bright(), scales)


@given(seeds, st.tuples(st.integers(2, 9), st.integers(2, 9)))
def test_smoothing_is_the_binomial_window(seed: int, size: tuple[int, int]) -> None:
    features = randn(2, 3, *size, seed=seed)
    window = torch.tensor([1.0, 2, 1], dtype=torch.float64) / 4
    padded = F.pad(features, (1, 1, 1, 1), mode="replicate")
    expected = F.conv2d(padded, (window[:, None] * window).expand(3, 1, 3, 3), groups=3)
    assert_near(smoothed(features), expected, 1e-12)


def test_smoothed_features_hardly_depend_on_where_pixels_fall() -> None:
    """An image that is moved by one pixel: without smoothing, halving sees the other pixels of it."""
    torch.manual_seed(0)
    rough = Compact(SMALL).eval()
    smooth = Compact(replace(SMALL, antialias=4)).eval()
    smooth.load_state_dict(rough.state_dict())
    image = load_image(ASTRONAUT, max_size=200).tensor[None, :, :160, :160]
    changes = []
    for network in (rough, smooth):
        with torch.no_grad():
            here, moved = network.logits(image[..., :-32, :-32]), network.logits(image[..., 1:-31, 1:-31])
        inner, outer = here[:, 33:-31, 33:-31], moved[:, 32:-32, 32:-32]
        changes.append(float((inner - outer).std() / inner.std()))
    assert changes[1] < 0.7 * changes[0]


def slowly_spread(logits: Tensor, fraction: float) -> Tensor:
    """Cell by cell and pixel by pixel: :func:`spread_logits` of (H, W) logits."""
    cells = logits.exp().unflatten(0, (-1, 8)).unflatten(2, (-1, 8)).mean(dim=(1, 3))
    for _ in range(2):  # the mean of 5 x 5 cells, of which those at the edge count for what lies beyond
        rows, columns = ([[min(max(i + k, 0), n - 1) for k in OFFSETS] for i in range(n)] for n in cells.shape)
        cells = torch.stack([torch.stack([cells[row][:, column].mean() for column in columns]) for row in rows])
    around = torch.empty_like(logits)
    for y, x in np.ndindex(*logits.shape):
        (top, v), (left, u) = (divmod(max((place + 0.5) / 8 - 0.5, 0.0), 1) for place in (y, x))
        i, j = int(top), int(left)
        k, m = min(i + 1, len(cells) - 1), min(j + 1, cells.shape[1] - 1)
        upper, lower = ((1 - u) * cells[row, j] + u * cells[row, m] for row in (i, k))
        around[y, x] = (1 - v) * upper + v * lower
    return logits - fraction * around.log()


OFFSETS = (-2, -1, 0, 1, 2)


@given(
    seeds,
    st.sampled_from([(8, 8), (16, 32), (40, 24)]),
    st.floats(0.05, 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_spread_is_what_stands_out_of_its_surroundings(
    seed: int, size: tuple[int, int], fraction: float, dtype: torch.dtype
) -> None:
    logits = 3 * randn(2, *size, seed=seed).to(dtype)
    slow = torch.stack([slowly_spread(own.double(), fraction) for own in logits])
    spread = spread_logits(logits, fraction)
    assert spread.dtype == dtype
    assert (spread.double() - slow).abs().max() < (1e-4 if dtype == torch.float32 else 1e-10)


@given(seeds, st.floats(-50, 50), st.floats(0, 1))
def test_a_constant_does_not_change_how_keypoints_spread(seed: int, constant: float, fraction: float) -> None:
    logits = 3 * randn(1, 24, 32, seed=seed).double()
    first, second = (spread_logits(own, fraction) for own in (logits, logits + constant))
    torch.testing.assert_close(first + (1 - fraction) * constant, second, atol=1e-9, rtol=0)


def test_a_part_of_a_picture_spreads_as_the_whole() -> None:
    """So that tiles, of which each has its own likeliest pixel, find what one pass finds."""
    logits = randn(1, 128, 192, seed=5).double()
    logits[0, 5, 180] = 30.0
    part = spread_logits(logits[:, :, :128], 0.75)
    torch.testing.assert_close(part[:, :, :72], spread_logits(logits, 0.75)[:, :, :72], atol=1e-9, rtol=0)


def test_faint_surroundings_get_their_share() -> None:
    """What is likely all over one half of a picture takes the keypoints of the other."""
    logits = randn(1, 128, 256, seed=3) + torch.cat([torch.full((128,), 0.0), torch.full((128,), 2.0)])
    fractions = []
    for spread in (0.0, 0.5, 1.0):
        chosen = choose_keypoints(spread_logits(logits, spread), 1000, None, PLAIN)
        fractions.append(float((chosen.xy[0, :, 0] < 128).float().mean()))
    assert 5 * fractions[0] < 0.05 < fractions[1] < 0.2
    assert 0.4 < fractions[2] < 0.6


def test_logits_that_all_underflow_are_finite() -> None:
    logits = torch.full((1, 16, 400), -300.0)
    logits[0, 3, 5] = 0
    assert spread_logits(logits, 1.0).isfinite().all()
    assert spread_logits(torch.full((1, 8, 8), -1e30), 0.5).isfinite().all()


def test_a_network_spreads_its_logits() -> None:
    images = picture(40, 70)[None]
    plain, spreading = network(), network(replace(SMALL, spread=0.75))
    with torch.no_grad():
        padded = F.pad(images, (0, 10, 0, 8), mode="replicate")
        expected = spread_logits(plain(padded).logits, 0.75)[:, :40, :70]
        torch.testing.assert_close(spreading(images).logits, expected)


def test_the_embedded_model_has_two_scales_and_finds_what_is_four_times_as_large() -> None:
    """At full size alone it finds few of the matches between a picture and its quarter."""
    image = load_image(ASTRONAUT).tensor  # (3, 512, 512)
    small = F.interpolate(image[None], size=(144, 144), mode="bilinear", antialias=True)[0]
    found = {}
    for name in ("compact", "compact-single"):
        model = zoo.build(name)
        first, second = (extract_image(model.extractor, part, num_keypoints=600) for part in (image, small))
        assert model.steerer is not None
        strategy = make_strategy(model.strategy, model.steerer, order=model.order, threshold=model.threshold)
        assignment = strategy.match(first[1], second[1])
        i, j = assignment.indices.unbind(dim=1)
        error = ((first[0].xy[i] + 0.5) * (144 / 512) - 0.5 - second[0].xy[j]).norm(dim=1)
        found[name] = int((error < 1.5).sum())
    assert found["compact"] > 1.5 * found["compact-single"]


@pytest.mark.parametrize(("name", "least", "most"), [("compact-1", 0, 40), ("compact", 120, 300)])
def test_negatives_match(name: str, least: int, most: int) -> None:
    """Which the first generation, whose training never inverts, does not."""
    matcher = steerers.load(name, num_keypoints=300)
    image = load_image(ASTRONAUT, max_size=320).tensor
    matches = matcher(image, 1 - image.rot90(1, (1, 2)))
    x, y = matches.keypoints0.T
    there = np.stack([y, image.shape[2] - 1 - x], axis=1)
    right = int((np.linalg.norm(there - matches.keypoints1, axis=1) < 3).sum())
    assert least <= right <= most
