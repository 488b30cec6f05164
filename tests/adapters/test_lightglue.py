"""The modules in LightGlue's shape, against the pipeline, and by the layout that LightGlue documents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import steerers
from helpers import EXAMPLES, randn
from steerers import Steerer
from steerers.adapters.lightglue import Extractor, Matcher
from steerers.images.load import load_image
from steerers.models import downloads

pytestmark = pytest.mark.usefixtures("one_thread")
COUNT = 200


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    """A photograph, and the same after a quarter turn, (3, H, W)."""
    upright = load_image(EXAMPLES / "astronaut.jpg", max_size=256).tensor[:, :192]
    return [upright, torch.rot90(upright, 1, (1, 2)).contiguous()]


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return Extractor(num_keypoints=COUNT).eval()


def check_layout(found: dict[str, Any], counts0: tuple[int, int], counts1: tuple[int, int]) -> None:
    """What LightGlue's users rely on: (B, N) with -1, scores of 0 there, both directions and the lists agreeing."""
    batch = counts0[0]
    assert found["matches0"].shape == found["matching_scores0"].shape == counts0
    assert found["matches1"].shape == found["matching_scores1"].shape == counts1
    for name in ("matches0", "matches1"):
        assert found[name].dtype == torch.int64
        assert found[name].min() >= -1
    for name in ("matching_scores0", "matching_scores1"):
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name] > 0, found[f"matches{name[-1]}"] >= 0)
    assert len(found["matches"]) == len(found["scores"]) == len(found["angles"]) == batch
    assert found["angle"].shape == (batch,)
    for b in range(batch):
        pairs, scores = found["matches"][b], found["scores"][b]
        assert pairs.dtype == torch.int64
        assert pairs.shape == (len(scores), 2)
        assert found["angles"][b].shape == scores.shape
        assert torch.equal(scores, scores.sort(descending=True).values)
        own = torch.nonzero(found["matches0"][b] >= 0)[:, 0]
        assert sorted(pairs.tolist()) == [[i, int(found["matches0"][b, i])] for i in own]
        for i, j in pairs.tolist():
            assert found["matches1"][b, j] == i
            assert found["matching_scores0"][b, i] == found["matching_scores1"][b, j]


def test_a_pair_as_the_pipeline_matches_it(images: list[Tensor], extractor: Extractor) -> None:
    features = [extractor.extract(image) for image in images]
    found = Matcher()({"image0": features[0], "image1": features[1]})
    check_layout(found, (1, COUNT), (1, COUNT))
    expected = steerers.load(num_keypoints=COUNT, consensus=False)(*images)
    np.testing.assert_array_equal(found["matches"][0].numpy(), expected.indices)
    np.testing.assert_array_equal(found["scores"][0].numpy(), expected.scores)
    np.testing.assert_allclose(found["angles"][0].numpy(), expected.angles, atol=1e-4)
    assert float(found["angle"]) == pytest.approx(expected.angle, abs=1e-4) == pytest.approx(90, abs=1)
    keypoints = [features[which]["keypoints"][0, found["matches"][0][:, which]].numpy() for which in (0, 1)]
    np.testing.assert_array_equal(keypoints[0], expected.keypoints0)
    np.testing.assert_array_equal(keypoints[1], expected.keypoints1)


def test_features(images: list[Tensor], extractor: Extractor) -> None:
    """As LightGlue's extractors give them; paths, and images with a batch dimension, are the same."""
    features = extractor.extract(images[1])
    assert {name: tuple(value.shape) for name, value in features.items()} == {
        "keypoints": (1, COUNT, 2),
        "descriptors": (1, COUNT, 256),
        "keypoint_scores": (1, COUNT),
        "image_size": (1, 2),
        "num_keypoints": (1,),
    }
    assert features["image_size"].tolist() == [[192, 256]]  # width, height
    for other in (extractor.extract(images[1][None]), extractor({"image": images[1][None]})):
        assert all(torch.equal(features[name], other[name]) for name in features)


def test_keypoints_are_pixels_of_the_image_that_was_given(images: list[Tensor]) -> None:
    """However much it was shrunk."""
    found = Extractor("upright-sift", num_keypoints=60, max_size=128).extract(images[0])
    assert found["image_size"].tolist() == [[256, 192]]
    assert found["keypoints"][0, :, 0].max() > 200


def test_a_mask(images: list[Tensor], extractor: Extractor) -> None:
    mask = torch.zeros(192, 256, dtype=torch.bool)
    mask[:, :100] = True
    assert extractor.extract(images[0], mask=mask)["keypoints"][0, :, 0].max() < 100


def test_a_batch_is_its_pairs(images: list[Tensor]) -> None:
    """Also where one image has fewer keypoints, which zeros fill up, and where it has none."""
    extractor, matcher = Extractor(num_keypoints=COUNT), Matcher()
    half = images[0].clone()
    half[:, :, 40:] = 0.5
    batch = torch.stack([images[0], half, torch.full_like(half, 0.5)])
    features = extractor({"image": batch})
    counts = features["num_keypoints"].tolist()
    assert counts[0] == COUNT > counts[1] > 0 == counts[2]
    assert features["descriptors"][1, counts[1] :].abs().max() == 0
    others = extractor({"image": images[1].expand(3, -1, -1, -1)})
    found = matcher({"image0": features, "image1": others})
    check_layout(found, (3, COUNT), (3, COUNT))
    for b, image in enumerate(batch):
        alone = matcher({"image0": extractor.extract(image), "image1": extractor.extract(images[1])})
        assert torch.equal(found["matches"][b], alone["matches"][0])
        assert torch.equal(found["matches0"][b, : counts[b]], alone["matches0"][0])
        assert found["matches0"][b, counts[b] :].eq(-1).all()
        torch.testing.assert_close(found["angle"][b], alone["angle"][0], equal_nan=True)
    assert len(found["matches"][2]) == 0
    assert math.isnan(found["angle"][2])


def test_grey_images(images: list[Tensor], extractor: Extractor) -> None:
    grey = images[0].mean(dim=0, keepdim=True)
    expected = extractor.extract(grey.expand(3, -1, -1))
    assert torch.equal(extractor({"image": grey[None]})["keypoints"], expected["keypoints"])


def test_descriptions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """DISK's, made elsewhere: no network is loaded, no weights are fetched, keypoints are not asked for."""
    monkeypatch.setattr(downloads, "fetch", pytest.fail)
    matcher = Matcher("disk-so2")
    assert sum(parameter.numel() for parameter in matcher.parameters()) <= 128**2
    first = randn(1, 40, 128, dtype=torch.float32)
    second = matcher.steerer.steer(first, math.radians(45)).flip(1)
    found = matcher({"image0": {"descriptors": first}, "image1": {"descriptors": second.numpy()}})
    assert torch.equal(found["matches0"][0], torch.arange(39, -1, -1))
    assert float(found["angle"]) == pytest.approx(45, abs=1)


def test_a_steerer_of_ones_own() -> None:
    steerer = Steerer.perm(64, "C4")
    first = randn(2, 30, 64, dtype=torch.float32)
    data = {"image0": {"descriptors": first}, "image1": {"descriptors": steerer.steer(first, math.pi)}}
    with pytest.raises(ValueError, match="model 'superpoint' has descriptions of length 256, but its steerer acts on"):
        Matcher("superpoint", steerer=steerer)
    found = Matcher("xfeat", steerer=steerer, strategy="max-matches", threshold=0.2)(data)
    assert torch.equal(found["matches0"], torch.arange(30).expand(2, -1))
    assert found["angle"].tolist() == [180, 180]
    assert torch.stack(found["angles"]).isnan().all()  # the strategy has one for the pair alone


def test_what_is_refused(images: list[Tensor]) -> None:
    matcher, features = Matcher(), {"descriptors": torch.randn(1, 5, 256)}
    for data in (
        {"image0": features},
        {"image0": features, "image1": {"keypoints": 0}},
        {"image0": features["descriptors"], "image1": features},
    ):
        with pytest.raises(ValueError, match=r"data\['image[01]'\]\['descriptors'\] is missing"):
            matcher(data)
    with pytest.raises(ValueError, match=r"descriptors of image1 must have shape \(B, N, D\), got \(5, 256\)"):
        matcher({"image0": features, "image1": {"descriptors": torch.randn(5, 256)}})
    with pytest.raises(TypeError, match="descriptors of image1 must be a tensor or a NumPy array of numbers, got list"):
        matcher({"image0": features, "image1": {"descriptors": [[1.0]]}})
    with pytest.raises(ValueError, match="descriptions have length 64, but the steerer acts on length 256"):
        matcher({"image0": {"descriptors": torch.randn(1, 5, 64)}, "image1": {"descriptors": torch.randn(1, 5, 64)}})
    with pytest.raises(ValueError, match="tta describes rotated copies of the image"):
        Matcher(strategy="tta")
    with pytest.raises(ValueError, match="unknown model 'no-such'"):
        Matcher("no-such")
    with pytest.raises(
        ValueError, match=r"image must have shape \(B, 3, H, W\) or \(B, 1, H, W\), got \(3, 192, 256\)"
    ):
        Extractor("upright-sift")({"image": images[0]})


def test_the_public_name() -> None:
    assert steerers.Matcher is Matcher


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_they_move(images: list[Tensor]) -> None:
    extractor, matcher = Extractor(num_keypoints=COUNT), Matcher("compact")
    here = matcher({"image0": extractor.extract(images[0]), "image1": extractor.extract(images[1])})
    extractor, matcher = extractor.cuda(), matcher.cuda()
    there = matcher({"image0": extractor.extract(images[0]), "image1": extractor({"image": images[1][None].cuda()})})
    assert there["matches0"].is_cuda
    assert there["angle"].is_cuda
    assert len(there["matches"][0]) == pytest.approx(len(here["matches"][0]), abs=0.1 * COUNT)
    assert float(there["angle"]) == pytest.approx(90, abs=1)
    learned = Matcher("disk-so2", strategy="max-similarity", order=None)
    for device in ("cpu", "cuda", "cpu"):  # what was kept of it moves along
        descriptions = {"descriptors": randn(1, 20, 128, dtype=torch.float32).to(device)}
        found = learned.to(device)({"image0": descriptions, "image1": descriptions})
        assert found["matches0"].tolist() == [list(range(20))]
