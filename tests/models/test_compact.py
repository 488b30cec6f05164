"""The embedded network, for images of any size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near, describe_image, detect_image, extract_image
from steerers.features import Keypoints
from steerers.models.compact import Compact, CompactConfig, fold_batch_norms, textured
from steerers.models.sampling import KeypointSampling

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
    ],
)
def test_shapes_that_are_none_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="channels"):
        CompactConfig(**changes)  # type: ignore[arg-type]


@torch.no_grad()
def test_folded_batch_normalisations_compute_the_same(dtype: torch.dtype) -> None:
    plain, generator = network().to(dtype), torch.Generator().manual_seed(0)
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
