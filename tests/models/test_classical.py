from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import EXAMPLES, describe_image, detect_image, extract_image
from steerers.features import Keypoints
from steerers.geometry import rotation_about_centre, transform_points
from steerers.models import classical
from steerers.models.base import Extractor
from steerers.models.classical import Orb, Sift, UprightSift, c4_permutation

MODELS = [UprightSift, Sift, Orb]


def middle(image: Tensor, height: int, width: int) -> Tensor:
    """The middle of an image, at most of the given size."""
    top, left = max(image.shape[-2] - height, 0) // 2, max(image.shape[-1] - width, 0) // 2
    return image[:, top : top + height, left : left + width]


@pytest.fixture(scope="module")
def photographs() -> list[Tensor]:
    """The middles of all the example photographs, even in height and odd in width."""
    from PIL import Image

    paths = sorted(EXAMPLES.glob("*.jpg"))
    assert paths, f"there is no photograph in {EXAMPLES}"
    pictures = (np.array(Image.open(path).convert("RGB")) for path in paths)
    return [middle(torch.from_numpy(picture).permute(2, 0, 1).float() / 255, 240, 301) for picture in pictures]


def rotated(image: Tensor, keypoints: Keypoints, k: int = 1) -> tuple[Tensor, Keypoints]:
    """An image and its keypoints rotated counter-clockwise by ``k`` quarters."""
    transform, _ = rotation_about_centre((image.shape[-1], image.shape[-2]), k * math.pi / 2)
    orientations = None if keypoints.orientations is None else keypoints.orientations + k * math.pi / 2
    moved = Keypoints(transform_points(transform, keypoints.xy), keypoints.scores, keypoints.scales, orientations)
    return torch.rot90(image, k, dims=(-2, -1)), moved


def found_again(a: Keypoints, b: Keypoints, *, pixels: float) -> float:
    """The share of the keypoints of ``a`` with one of ``b`` near them, of a like scale and orientation."""
    assert a.scales is not None
    assert b.scales is not None
    near = (a.xy.double()[:, None] - b.xy.double()[None]).norm(dim=-1) < pixels
    near &= (a.scales[:, None] / b.scales[None]).log2().abs() < 0.1
    if a.orientations is not None and b.orientations is not None:
        near &= (a.orientations[:, None] - b.orientations[None]).cos() > math.cos(math.radians(5))
    return float(near.any(dim=1).double().mean())


def foreign(image: Tensor, step: int = 7) -> Keypoints:
    """Whole pixels all over the image, from a detector that knows neither scale nor orientation."""
    rows, columns = torch.arange(0, image.shape[-2], step), torch.arange(0, image.shape[-1], step)
    xy = torch.cartesian_prod(columns, rows).float()
    return Keypoints(xy, torch.ones(len(xy)))


# The steerer ----------------------------------------------------------------------------------------------------------


def test_permutation_has_order_four() -> None:
    p = c4_permutation()
    powers = [torch.arange(128)]
    for _ in range(4):
        powers.append(powers[-1][p])
    assert torch.equal(p.sort().values, torch.arange(128))
    assert torch.equal(powers[4], powers[0])
    assert not (powers[2] == powers[0]).any()


def test_permutation_holds_each_eigenvalue_equally() -> None:
    eigenvalues = torch.linalg.eigvals(torch.eye(128, dtype=torch.float64)[c4_permutation()])
    counts = [int((eigenvalues - value).abs().lt(1e-9).sum()) for value in (1, 1j, -1, -1j)]
    assert counts == [32, 32, 32, 32]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_quarter_turn_permutes_upright_sift(photographs: list[Tensor], k: int) -> None:
    model, steered = UprightSift(), torch.arange(128)
    for _ in range(k):
        steered = steered[c4_permutation()]
    for image in photographs:
        keypoints, descriptions = extract_image(model, image, num_keypoints=300)
        similarity = (descriptions[:, steered] * describe_image(model, *rotated(image, keypoints, k))).sum(dim=1)
        assert similarity.mean() > 0.9995
        assert similarity.min() > 0.95


def test_quarter_turn_is_exact_in_every_octave(photographs: list[Tensor]) -> None:
    model = UprightSift()
    for image in photographs:
        keypoints, descriptions = extract_image(model, image, num_keypoints=2000)
        similarity = (descriptions[:, c4_permutation()] * describe_image(model, *rotated(image, keypoints))).sum(dim=1)
        coarse = keypoints.scales > 2.0**3
        assert coarse.any()
        assert similarity[coarse].mean() > 0.999


def test_opposite_rotation_is_another(photographs: list[Tensor]) -> None:
    model = UprightSift()
    keypoints, descriptions = extract_image(model, photographs[0], num_keypoints=300)
    similarity = (
        descriptions[:, c4_permutation().argsort()] * describe_image(model, *rotated(photographs[0], keypoints))
    ).sum(1)
    assert similarity.mean() < 0.9


@pytest.mark.parametrize("size", [3.0, 5.0, 11.0, 30.0])
@pytest.mark.parametrize("shape", [(120, 160), (123, 163), (121, 160)])
def test_foreign_keypoints_rotation_too(photographs: list[Tensor], size: float, shape: tuple[int, int]) -> None:
    model, image = UprightSift(), middle(photographs[0], *shape)
    keypoints = foreign(image)
    if size != 5.0:  # what keypoints without a scale have
        keypoints = replace(keypoints, scales=torch.full((len(keypoints),), size))
    descriptions = describe_image(model, image, keypoints)
    similarity = (descriptions[:, c4_permutation()] * describe_image(model, *rotated(image, keypoints))).sum(dim=1)
    lengths = descriptions.norm(dim=1)
    assert descriptions.shape == (len(keypoints), 128)
    assert descriptions.dtype == torch.float32
    assert torch.allclose(lengths[lengths > 0], torch.ones(()))
    assert similarity[lengths > 0].mean() > 0.999


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_halving_commutes_with_a_quarter_turn(height: int, width: int, seed: int) -> None:
    image = np.random.default_rng(seed).uniform(0, 255, (height, width)).astype(np.float32)
    half = classical._halve(image)
    assert half.shape == (math.ceil(height / 2), math.ceil(width / 2))
    np.testing.assert_allclose(classical._halve(np.rot90(image).copy()), np.rot90(half), atol=1e-3)


@given(octave=st.integers(-1, 8), layer=st.integers(1, 3), fraction=st.floats(-0.49, 0.49))
def test_octave_and_layer_from_the_size(octave: int, layer: int, fraction: float) -> None:
    size = np.array([1.6 * 2 ** (octave + 1 + (layer + fraction) / 3)])
    assert [int(value[0]) for value in classical._octaves_and_layers(size)] == [octave, layer]


# Detection ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [UprightSift(), Sift()], ids=["upright", "sift"])
def test_quarter_turn_keeps_keypoints(photographs: list[Tensor], model: Extractor) -> None:
    for image in photographs:
        image1, expected = rotated(image, detect_image(model, image, num_keypoints=10_000))
        found = detect_image(model, image1, num_keypoints=10_000)
        assert found_again(expected, found, pixels=0.5) > 0.97
        assert found_again(found, expected, pixels=0.5) > 0.97


@pytest.mark.parametrize("factory", MODELS)
def test_best_keypoints_first_and_no_more_than_asked(photographs: list[Tensor], factory: type[Extractor]) -> None:
    image, model = photographs[0], factory()
    every = detect_image(model, image, num_keypoints=10_000)
    few = detect_image(model, image, num_keypoints=50)
    assert 50 < len(every) < 10_000
    assert len(few) == 50
    assert (every.scores.diff() <= 0).all()
    assert (every.xy >= 0).all()
    assert (every.xy <= torch.tensor([image.shape[2] - 1, image.shape[1] - 1])).all()
    if factory is not Orb:  # ORB shares its number out over the levels
        assert torch.equal(few.xy, every.xy[:50])


@pytest.mark.parametrize("factory", MODELS)
def test_mask_acts_before_selection(photographs: list[Tensor], factory: type[Extractor]) -> None:
    image, model = photographs[0], factory()
    mask = torch.zeros(image.shape[-2:], dtype=torch.bool)
    mask[:, : image.shape[-1] // 2] = True
    keypoints = detect_image(model, image, num_keypoints=40, mask=mask)
    columns, rows = keypoints.xy.round().long().T
    assert len(keypoints) == 40
    assert mask[rows, columns].all()
    assert len(detect_image(model, image, num_keypoints=40, mask=torch.zeros_like(mask))) == 0


def test_upright_sift_has_each_keypoint_once_and_sift_once_an_orientation(photographs: list[Tensor]) -> None:
    upright = detect_image(UprightSift(), photographs[0], num_keypoints=10_000)
    oriented = detect_image(Sift(), photographs[0], num_keypoints=10_000)
    distinct = {(x, y, size) for (x, y), size in zip(oriented.xy.tolist(), oriented.scales.tolist(), strict=True)}
    assert upright.orientations is None
    assert len(upright) == len(distinct) < len(oriented)
    assert {(x, y, s) for (x, y), s in zip(upright.xy.tolist(), upright.scales.tolist(), strict=True)} == distinct


def test_agrees_with_opencv(photographs: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    import cv2

    from steerers.images.load import to_grey

    monkeypatch.setattr(classical, "_CONTRAST", 0.04)
    image, model = photographs[0], Sift()
    theirs = cv2.SIFT.create(enable_precise_upscale=True)
    points, packed = theirs.detectAndCompute(np.ascontiguousarray(to_grey(image)), None)
    keypoints = Keypoints(
        torch.tensor([point.pt for point in points]),
        torch.tensor([point.response for point in points]),
        torch.tensor([point.size for point in points]),
        torch.tensor([-math.radians(point.angle) for point in points]),
    )
    expected = torch.nn.functional.normalize(torch.from_numpy(packed), p=1, dim=1).sqrt()
    assert (describe_image(model, image, keypoints) * expected).sum(dim=1).mean() > 0.99
    assert found_again(keypoints, detect_image(model, image, num_keypoints=10_000), pixels=1.0) > 0.9


# The rotation-invariant ones ------------------------------------------------------------------------------------------


def test_sift_is_invariant_when_its_orientations_rotation_along(photographs: list[Tensor]) -> None:
    model = Sift()
    for image in photographs:
        keypoints, descriptions = extract_image(model, image, num_keypoints=300)
        assert (descriptions * describe_image(model, *rotated(image, keypoints))).sum(dim=1).mean() > 0.999


def test_orb_rotations_counter_clockwise_as_seen(photographs: list[Tensor]) -> None:
    model, again, similarity = Orb(), [], []
    for image in photographs:
        keypoints, descriptions = extract_image(model, image, num_keypoints=300)
        if len(keypoints):  # ORB finds nothing in pictures without corners
            image1, moved = rotated(image, keypoints)
            again.append(found_again(moved, detect_image(model, image1, num_keypoints=2000), pixels=2.0))
            similarity.append((descriptions * describe_image(model, image1, moved)).sum(dim=1))
    assert np.mean(again) > 0.8
    assert torch.cat(similarity).mean() > 0.85


def test_orb_is_opencvs_with_the_hamming_distance_as_cosine(photographs: list[Tensor]) -> None:
    import cv2

    from steerers.images.load import to_grey

    image = photographs[0]
    keypoints, descriptions = extract_image(Orb(), image, num_keypoints=200)
    points, packed = cv2.ORB.create(200).detectAndCompute(np.ascontiguousarray(to_grey(image)), None)
    order = np.lexsort(tuple(np.array([(p.angle, p.pt[1], p.pt[0], -p.response) for p in points]).T))[:200]
    packed = packed[order]
    hamming = np.array([[cv2.norm(a, b, cv2.NORM_HAMMING) for b in packed[:20]] for a in packed[:20]])
    cosines = descriptions[:20] @ descriptions[:20].T
    assert torch.allclose(descriptions.abs(), torch.tensor(1 / 16))
    assert torch.allclose(keypoints.xy, torch.tensor([points[i].pt for i in order]))
    np.testing.assert_allclose(cosines.numpy(), 1 - 2 * hamming / 256, atol=1e-6)


@pytest.mark.parametrize("factory", [Sift, Orb])
def test_orientations_are_needed(photographs: list[Tensor], factory: type[Extractor]) -> None:
    with pytest.raises(ValueError, match=f"{factory.__name__} describes keypoints relative to their orientations"):
        describe_image(factory(), photographs[0], foreign(photographs[0]))


# Edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", MODELS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 90), (90, 2), (13, 7), (130, 140), (16, 4000)])
def test_one_colour_has_no_keypoints(factory: type[Extractor], shape: tuple[int, int]) -> None:
    image, model = torch.full((3, *shape), 0.4), factory()
    keypoints, descriptions = extract_image(model, image, num_keypoints=100)
    assert keypoints.xy.shape == (0, 2)
    assert descriptions.shape == (0, model.dim)
    assert descriptions.dtype == torch.float32


@pytest.mark.parametrize("factory", MODELS)
@pytest.mark.parametrize("shape", [(1, 1), (4, 5), (2, 90), (33, 34)])
@pytest.mark.parametrize("scale", [1e-3, 2.0, 40.0, 1e12])
def test_any_keypoint_of_any_image_is_described(factory: type[Extractor], shape: tuple[int, int], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    xy = torch.tensor([[0.0, 0.0], [shape[1] - 1, shape[0] - 1], [-0.4, 0.3], [1e6, -1e6]])
    keypoints = Keypoints(xy, torch.ones(4), torch.full((4,), scale), torch.tensor([0.0, 1.0, -2.0, 9.0]))
    for image in (torch.rand((3, *shape), generator=generator), torch.full((3, *shape), 0.7)):
        descriptions = describe_image(factory(), image, keypoints)
        lengths = descriptions.norm(dim=1)
        assert descriptions.shape == (4, factory.dim)
        assert ((lengths == 0) | (lengths - 1).abs().lt(1e-5)).all()


@pytest.mark.parametrize("factory", MODELS)
def test_many_keypoints_of_a_small_noisy_image(factory: type[Extractor]) -> None:
    image = torch.rand((3, 70, 65), generator=torch.Generator().manual_seed(1))
    keypoints, descriptions = extract_image(factory(), image, num_keypoints=10_000)
    assert len(keypoints) == len(descriptions) > 0
    assert torch.isfinite(descriptions).all()


@pytest.mark.parametrize("factory", MODELS)
def test_wrong_arguments_are_named(factory: type[Extractor]) -> None:
    image, model = torch.rand((3, 80, 90), generator=torch.Generator().manual_seed(2)), factory()
    with pytest.raises(ValueError, match=r"keypoints\.scales must be positive"):
        describe_image(model, image, Keypoints(torch.ones((1, 2)), torch.ones(1), torch.zeros(1), torch.zeros(1)))
