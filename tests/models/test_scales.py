"""An extractor at several scales of the image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import EXAMPLES, assert_near, describe_image, extract_image
from steerers.accel.networks import for_inference
from steerers.accel.networks.compact import FastPyramid
from steerers.features import Keypoints
from steerers.images.load import load_image, make_picture
from steerers.matching.strategies import make_strategy
from steerers.models import zoo
from steerers.models.base import SingleExtractor
from steerers.models.scales import DIAMETER, Pyramid

pytestmark = pytest.mark.usefixtures("one_thread")

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
