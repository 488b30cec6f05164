"""From images to matches."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import steerers
from helpers import EXAMPLES
from matching import reference
from matching.reference import planted
from steerers.features import Features, Keypoints
from steerers.geometry import epipolar_errors, fundamental_matrix, rotate_image, transform_points
from steerers.images.load import Image, ImageSource, load_image, to_uint8
from steerers.matching.consensus import CANDIDATE, LIKELY, Consensus
from steerers.matching.strategies import NAMES, DualSoftmax
from steerers.models.zoo import Model

ASTRONAUT = EXAMPLES / "astronaut.jpg"
HOUSE = EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"


def rotated(path: Path, quarter_turns: int) -> np.ndarray:
    return np.ascontiguousarray(np.rot90(np.asarray(PIL.Image.open(path)), quarter_turns))


def corner_error(H: np.ndarray, truth: np.ndarray, size: tuple[int, int]) -> float:
    corners = torch.tensor([[0, 0], [size[0], 0], [0, size[1]], size], dtype=torch.float64)
    moved, expected = (transform_points(torch.from_numpy(matrix), corners) for matrix in (H, truth))
    return float((moved - expected).norm(dim=1).max())


@pytest.mark.parametrize("strategy", ["max-matches", "max-similarity", "subset", "tta"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_quarter_turns_are_found_exactly(strategy: str, k: int) -> None:
    matcher = steerers.load("upright-sift", strategy=strategy, num_keypoints=500)
    m = matcher(ASTRONAUT, rotated(ASTRONAUT, k))
    assert m.angle == pytest.approx({1: 90, 2: 180, 3: -90}[k])
    H, inliers = m.homography()
    assert inliers.sum() > 200
    _, transform = rotate_image(torch.zeros(1, 512, 512), k * math.pi / 2)
    assert H is not None
    assert corner_error(H, transform.numpy(), (512, 512)) < 0.1  # half a pixel would show here


def test_two_views_of_a_house_one_rotated() -> None:
    matcher = steerers.load()
    m = matcher(HOUSE[0], rotated(HOUSE[1], 1))
    assert m.angle == pytest.approx(90.0, abs=4.0)  # the views themselves are rotated a little
    K = np.loadtxt(EXAMPLES / "maupertuis_K.txt")
    truth = np.loadtxt(EXAMPLES / "maupertuis_pose.txt")
    # undo the rotation in the keypoints: the camera and its pose stay as they are
    _, transform = rotate_image(torch.zeros(1, 768, 1024), math.pi / 2)
    back = transform_points(torch.linalg.inv(transform), torch.from_numpy(m.keypoints1)).numpy()
    R, t, inliers = steerers.Matches(m.keypoints0, back, m.scores, m.indices).pose(K, K)
    assert R is not None
    assert t is not None
    assert inliers.sum() > 100
    angle = math.degrees(math.acos(min(1.0, (np.trace(R.T @ truth[:, :3]) - 1) / 2)))
    direction = math.degrees(math.acos(min(1.0, float(t @ truth[:, 3]))))
    assert angle < 1.0
    assert direction < 5.0


@pytest.mark.parametrize("strategy", ["max-matches", "tta"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_quarter_turns_of_squashed_images_are_found_exactly(strategy: str, k: int) -> None:
    """The photograph is not square, and what the network sees is: keypoints are stored pixels all the same."""
    matcher = steerers.load("upright-sift", strategy=strategy, num_keypoints=500, max_size=400, resize="squash")
    m = matcher(HOUSE[0], rotated(HOUSE[0], k))
    assert m.features0 is not None
    assert m.features0.image_size == (1024, 768)
    assert m.angle == pytest.approx({1: 90, 2: 180, 3: -90}[k])
    _, transform = rotate_image(torch.zeros(1, 768, 1024), k * math.pi / 2)
    H, inliers = m.homography()
    assert H is not None
    assert inliers.mean() > 0.9
    assert corner_error(H, transform.numpy(), (1024, 768)) < 1.0  # a squashed pixel is 2.56 x 1.92 stored ones


@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_augmentation_of_squashed_images_by_any_angle(tmp_path: Path, orientation: int) -> None:
    """A photograph, whose tag may rotate or mirror it, against itself rotated by 45 degrees; then both are squashed."""
    stored = PIL.Image.open(HOUSE[0]).resize((512, 384))
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    upright = load_image(tmp_path / "a.png", exif="apply")
    oblique, transform = rotate_image(upright.tensor, math.radians(45), fill=0.5)
    matcher = steerers.load(
        "upright-sift", strategy="tta", order=8, num_keypoints=500, max_size=400, resize="squash", exif="apply"
    )
    m = matcher(tmp_path / "a.png", oblique)
    expected = transform_points(transform @ torch.linalg.inv(upright.to_stored), torch.from_numpy(m.keypoints0))
    error = np.hypot(*(m.keypoints1 - expected.numpy()).T)
    assert len(m) > 100
    assert np.median(error) < 0.8  # a squashed pixel is 1.3 to 1.6 stored ones
    assert np.mean(error < 3) > 0.9


def test_a_side_to_squash_to_is_asked_for_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerers.models.zoo.build", pytest.fail)
    with pytest.raises(ValueError, match="resize 'squash' needs a max_size"):
        steerers.load("dedode-b", max_size=None, resize="squash")
    with pytest.raises(ValueError, match="resize must be 'fit' or 'squash', got 'pad'"):
        steerers.load("dedode-b", resize="pad")  # type: ignore[arg-type]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="resize 'squash' needs a max_size"):
        replace(steerers.load("sift"), max_size=None, resize="squash")


def test_planar_pair_by_sift() -> None:
    m = steerers.load("sift")(EXAMPLES / "board_0.jpg", EXAMPLES / "board_1.jpg")
    H, inliers = m.homography()
    assert H is not None
    assert inliers.sum() > 50
    assert corner_error(H, np.loadtxt(EXAMPLES / "board_H.txt"), (1024, 768)) < 3.0
    assert m.angle is None
    assert m.angles is None


def test_match_reuses_extracted_features() -> None:
    matcher = steerers.load(num_keypoints=300)
    f0, f1 = matcher.extract(ASTRONAUT), matcher.extract(rotated(ASTRONAUT, 1))
    m, direct = matcher.match(f0, f1), matcher(ASTRONAUT, rotated(ASTRONAUT, 1))
    np.testing.assert_array_equal(m.indices, direct.indices)
    np.testing.assert_array_equal(m.keypoints0, f0.keypoints[m.indices[:, 0]].numpy())
    np.testing.assert_array_equal(m.keypoints1, f1.keypoints[m.indices[:, 1]].numpy())
    assert m.scores.dtype == m.keypoints0.dtype == np.float32
    assert (np.diff(m.scores) <= 0).all()
    assert (m.model, m.strategy) == ("compact-6", "max-similarity")


def test_every_match_has_its_angle_with_max_similarity() -> None:
    m = steerers.load(strategy="max-similarity", num_keypoints=300)(ASTRONAUT, rotated(ASTRONAUT, 3))
    assert m.angles is not None
    assert m.angles.shape == (len(m),)
    assert np.mean(abs(m.angles + 90.0) < 5.0) > 0.9


# Consensus ------------------------------------------------------------------------------------------------------------


def test_matches_of_the_default_model_agree_with_those_around_them() -> None:
    """Of candidates by descriptions alone nearly all right ones stay, and most others go."""
    matcher = steerers.load(num_keypoints=1024, max_size=640)
    plain = steerers.load(num_keypoints=1024, max_size=640, consensus=False, threshold=CANDIDATE)
    features = matcher.extract([HOUSE[0], rotated(HOUSE[1], 1)])
    agreeing, all_found = matcher.match(*features), plain.match(*features)
    K = np.loadtxt(EXAMPLES / "maupertuis_K.txt")
    R, t = np.split(np.loadtxt(EXAMPLES / "maupertuis_pose.txt"), [3], axis=1)
    F = fundamental_matrix(K, K, R, t[:, 0])
    width = PIL.Image.open(HOUSE[1]).width

    def errors(m: steerers.Matches) -> np.ndarray:
        upright = np.column_stack([width - 1 - m.keypoints1[:, 1], m.keypoints1[:, 0]])  # as before the quarter turn
        return epipolar_errors(m.keypoints0, upright, F)

    kept, among = errors(agreeing), errors(all_found)
    assert (kept < 4).sum() > 0.95 * (among < 4).sum()
    assert (kept > 8).sum() < 0.5 * (among > 8).sum()
    assert (agreeing.scores > LIKELY).all()
    assert agreeing.angle == pytest.approx(90, abs=4)


def test_the_threshold_is_that_of_the_consensus() -> None:
    matcher = steerers.load(num_keypoints=500, max_size=480)
    features = matcher.extract(list(HOUSE))
    for threshold in (0.0, 0.5, 0.9):
        chosen = steerers.load(num_keypoints=500, max_size=480, threshold=threshold).match(*features)
        expected = matcher.consensus.above(threshold)  # type: ignore[union-attr]
        assert chosen.scores.min() > threshold
        again = replace(matcher, consensus=expected).match(*features)
        np.testing.assert_array_equal(chosen.indices, again.indices)
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\), got 1.5"):
        steerers.load(threshold=1.5)


def test_candidates_need_not_be_mutual_where_each_has_a_rotation_of_its_own() -> None:
    def mutual(**options: Any) -> bool:
        return bool(steerers.load(**options).strategy.options.mutual)  # type: ignore[attr-defined]

    assert not mutual()
    assert mutual(consensus=False)
    assert mutual(strategy="max-similarity")
    assert mutual(strategy="max-matches", consensus=True)
    assert mutual(mutual=True)


def test_a_strategy_of_ones_choice_is_what_it_says() -> None:
    assert steerers.load(strategy="max-similarity").consensus is None
    assert steerers.load("upright-sift-so2").consensus is None
    assert steerers.load(strategy="max-matches", consensus=True).consensus is not None
    assert steerers.load(detector="upright-sift").consensus is not None
    assert steerers.load(steerer=steerers.Steerer.spread(256)).consensus is None


@pytest.mark.parametrize("orientation", [3, 5, 6])
def test_the_consensus_sees_images_as_the_model_does(tmp_path: Path, orientation: int) -> None:
    """Of stored images that are rotated or mirrored, EXIF applied: the matches of the upright ones."""
    upright = [PIL.Image.open(path).convert("RGB").resize((512, 384)) for path in HOUSE]
    undo = {3: PIL.Image.Transpose.ROTATE_180, 5: PIL.Image.Transpose.TRANSPOSE, 6: PIL.Image.Transpose.ROTATE_90}
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    upright[1].transpose(undo[orientation]).save(tmp_path / "b.png", exif=exif)
    matcher = steerers.load(num_keypoints=600, exif="apply")
    expected = matcher(upright[0], upright[1])
    m = matcher(upright[0], tmp_path / "b.png")
    assert len(expected) > 50
    found, wanted = (dict(zip(map(tuple, one.indices.tolist()), one.scores, strict=True)) for one in (m, expected))
    assert found.keys() == wanted.keys()  # in an order that rounding may change where they are equally likely
    for pair, score in wanted.items():
        assert found[pair] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("upright-sift-so2", {"consensus": True}, "model 'upright-sift-so2' has no consensus; steerers fit-consensus"),
        ("compact", {"consensus": True, "strategy": "dual-softmax"}, "'dual-softmax' tells no rotation of every match"),
        ("compact", {"consensus": True, "strategy": "tta"}, "'tta' tells no rotation of every match"),
        ("sift", {"consensus": True}, "'dual-softmax' tells no rotation of every match, which consensus needs"),
        ("compact", {"consensus": "none.safetensors"}, "none.safetensors"),
    ],
)
def test_a_consensus_that_is_not_to_be_had(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steerers.load(model, **options)


def test_a_consensus_of_ones_own(tmp_path: Path) -> None:
    network = Consensus().requires_grad_(False)
    network.save(tmp_path / "mine.safetensors", {"model": "upright-sift"})
    loaded = steerers.load("upright-sift-so2", consensus=tmp_path / "mine.safetensors")
    assert loaded.consensus is not None
    assert loaded.strategy.options.threshold == CANDIDATE  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="a consensus for model 'upright-sift', not for 'compact-6'"):
        steerers.load(consensus=tmp_path / "mine.safetensors")


@pytest.mark.parametrize(("first", "second"), [("sift", "compact"), ("compact-1", "compact"), ("compact", "compact-1")])
def test_features_of_another_model_or_generation_are_refused(first: str, second: str) -> None:
    features, matcher = steerers.load(first, num_keypoints=50).extract(ASTRONAUT), steerers.load(second)
    message = (
        f"features of model '{features.model}' cannot be matched by '{matcher.model.name}': what two models, or two"
    )
    with pytest.raises(ValueError, match=message):
        matcher.match(features, features)
    assert features.model == {"compact": "compact-6"}.get(first, first)  # files say which generation


def test_sources_agree(tmp_path: Path) -> None:
    pixels = np.asarray(PIL.Image.open(ASTRONAUT))
    path = tmp_path / "a.png"
    PIL.Image.fromarray(pixels).save(path)
    matcher = steerers.load(num_keypoints=100)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    expected = matcher.extract(path)
    sources: list[ImageSource | Image] = [str(path), path.read_bytes(), path.open("rb"), PIL.Image.open(path)]
    sources += [pixels, tensor, tensor.float() / 255, tensor[None], matcher.load_image(path)]
    for source in sources:
        assert torch.equal(matcher.extract(source).keypoints, expected.keypoints)
    assert len(matcher(path.read_bytes(), path.open("rb"))) == 100


def test_what_is_printed_of_them_is_one_line() -> None:
    matcher = steerers.load("upright-sift", num_keypoints=50, max_size=200)
    m = matcher(ASTRONAUT, ASTRONAUT)
    assert (
        repr(matcher) == "Pipeline(upright-sift, max-matches, 50 keypoints, images of at most 200 pixels a side, cpu)"
    )
    assert repr(m) == "Matches(50 matches, rotated by 0.0 degrees, upright-sift, max-matches)"
    assert repr(m.features0) == "Features(50 keypoints of an image of 512 x 512, 128 dimensions, upright-sift)"
    bare = steerers.Matches(m.keypoints0, m.keypoints1, m.scores, m.indices)
    assert repr(bare) == "Matches(50 matches)"


def test_half_precision_on_a_cpu_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for precision, said in (
        ("float32", ""),
        ("bfloat16", "INFO bfloat16 is fast"),
        ("float16", "WARNING float16 is for"),
    ):
        caplog.clear()
        steerers.load(precision=precision)
        assert " ".join(f"{record.levelname} {record.getMessage()}" for record in caplog.records).startswith(said)
        assert bool(caplog.records) == bool(said)


def test_keypoints_are_stored_pixels_after_resizing() -> None:
    large = PIL.Image.open(ASTRONAUT).resize((2048, 2048), PIL.Image.Resampling.BICUBIC)
    m = steerers.load(max_size=512, num_keypoints=500)(ASTRONAUT, large)
    H, inliers = m.homography()
    expected = np.array([[4, 0, 1.5], [0, 4, 1.5], [0, 0, 1]])  # edges go to edges: x' + 0.5 = 4 (x + 0.5)
    assert H is not None
    assert inliers.mean() > 0.95
    assert corner_error(H, expected, (512, 512)) < 1.0
    assert m.features1 is not None
    assert m.features1.image_size == (2048, 2048)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_is_applied_on_request_and_keypoints_stay_stored(tmp_path: Path, orientation: int) -> None:
    """Both files show the same upright picture; stored pixels, matched, are related by the stored rotation."""
    upright = PIL.Image.open(ASTRONAUT).crop((0, 0, 400, 300))
    undo = {
        1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4
    }[orientation]  # PIL.Image.Transpose that makes the stored picture  # fmt: skip
    stored = upright if undo is None else upright.transpose(PIL.Image.Transpose(undo))
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    first, second = tmp_path / "upright.png", tmp_path / "stored.png"
    upright.save(first)
    stored.save(second, exif=exif)
    m = steerers.load(strategy="max-similarity", num_keypoints=300, exif="apply")(first, second)
    assert m.features1 is not None
    assert m.features1.image_size == stored.size
    to_stored = load_image(second, exif="apply").to_stored
    expected = transform_points(to_stored, torch.from_numpy(m.keypoints0)).numpy()
    assert len(m) > 100
    assert np.mean(np.abs(m.keypoints1 - expected).max(axis=1) < 0.1) > 0.95
    # mirrored: no rotation relates the stored pictures
    assert m.angle == {1: 0.0, 3: 180.0, 6: 90.0, 8: -90.0}.get(orientation)


def test_exif_is_ignored_by_default(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.png"
    PIL.Image.open(ASTRONAUT).save(path, exif=exif)
    m = steerers.load(num_keypoints=300)(ASTRONAUT, path)
    assert m.angle == 0.0


def test_masks_act_before_selection() -> None:
    mask = np.zeros((512, 512), dtype=np.uint8)
    mask[:, :256] = 255
    matcher = steerers.load(num_keypoints=100)
    features = matcher.extract(ASTRONAUT, mask=mask)
    assert len(features) == 100
    assert float(features.keypoints[:, 0].max()) < 256
    m = matcher(ASTRONAUT, ASTRONAUT, mask0=mask, mask1=np.roll(mask, 256, axis=1))
    assert (m.keypoints0[:, 0] < 256).all()
    assert (m.keypoints1[:, 0] > 255).all()
    with pytest.raises(ValueError, match="loaded already"):
        matcher(load_image(ASTRONAUT), ASTRONAUT, mask0=mask)


def test_tta_with_a_mask_and_an_oblique_rotation_stays_inside_the_image() -> None:
    mask = np.zeros((512, 512), dtype=bool)
    mask[100:400, 100:400] = True
    oblique = to_uint8(rotate_image(load_image(ASTRONAUT).tensor, math.radians(45))[0].clamp(0, 1))
    m = steerers.load("upright-sift", strategy="tta", order=8, num_keypoints=400)(ASTRONAUT, oblique, mask0=mask)
    assert m.angle == pytest.approx(45)
    assert len(m) > 30
    assert (m.keypoints0 >= 99.5).all()
    assert (m.keypoints0 <= 399.5).all()
    _, inliers = m.homography()
    assert inliers.mean() > 0.8


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (64, 64)])
@pytest.mark.parametrize("model", ["upright-sift", "sift", "orb"])
def test_images_without_content_give_no_matches(model: str, size: tuple[int, int]) -> None:
    blank = np.full((*size, 3), 127, dtype=np.uint8)
    m = steerers.load(model)(blank, ASTRONAUT)
    assert len(m) == 0
    assert m.keypoints0.shape == m.keypoints1.shape == m.indices.shape == (0, 2)
    assert m.angle is None
    H, inliers = m.homography()
    assert H is None
    assert inliers.shape == (0,)
    R, t, _ = m.pose(np.eye(3), np.eye(3))
    assert R is None
    assert t is None
    assert m.fundamental().F is None


@pytest.mark.parametrize("strategy", [name for name in NAMES if "procrustes" not in name])
def test_blank_images_with_every_strategy(strategy: str) -> None:
    blank = np.zeros((50, 60, 3), dtype=np.uint8)
    assert len(steerers.load(strategy=strategy)(blank, blank)) == 0


@pytest.mark.parametrize("strategy", ["procrustes", "prototype-procrustes"])
def test_strategies_that_do_not_fit_the_model_are_refused(strategy: str) -> None:
    with pytest.raises(ValueError, match="needs every frequency to be 1"):
        steerers.load(strategy=strategy)
    with pytest.raises(ValueError, match="needs a steerer, and this model has none"):
        steerers.load("sift", strategy=strategy)


def test_tta_of_features_is_refused() -> None:
    matcher = steerers.load(strategy="tta", num_keypoints=20)
    features = matcher.extract(ASTRONAUT)
    with pytest.raises(ValueError, match="give the images to the matcher"):
        matcher.match(features, features)
    with pytest.raises(ValueError, match="tta of order 4 needs the descriptions of 4 rotations, got 3"):
        matcher.match_rotated([features] * 3, features)


def test_tta_is_a_mode_of_plain_matching() -> None:
    matcher = steerers.load("upright-sift", strategy="tta", num_keypoints=100, threshold=0.3)
    assert (matcher.tta, matcher.strategy_name, matcher.strategy.name) == (4, "tta", "dual-softmax")
    assert matcher.strategy.options.threshold == 0.3
    assert matcher.rotations == pytest.approx([0, math.pi / 2, math.pi, 3 * math.pi / 2])
    by_hand = steerers.Pipeline(matcher.model, DualSoftmax(options=matcher.strategy.options), 100, tta=4)
    m, expected = matcher(ASTRONAUT, rotated(ASTRONAUT, 3)), by_hand(ASTRONAUT, rotated(ASTRONAUT, 3))
    np.testing.assert_array_equal(m.indices, expected.indices)
    assert (m.strategy, expected.strategy) == ("tta", "tta")
    assert steerers.load("sift").rotations == [0.0]


def test_tta_keeps_the_rotation_with_the_most_matches() -> None:
    steerer = steerers.Steerer.spread(32)
    a, b, _ = planted(steerer, 3 * math.pi / 2, 50, 40)
    pipeline = replace(steerers.load("sift"), strategy=DualSoftmax(), tta=4)

    def features(descriptions: torch.Tensor) -> Features:
        return Features(torch.zeros(len(descriptions), 2), descriptions, torch.ones(len(descriptions)), (4, 4))

    described = [features(steerer.steer(a, angle)) for angle in pipeline.rotations]
    m, expected = pipeline.match_rotated(described, features(b)), reference.max_matches(a, b, steerer, 4)
    assert (m.angle, m.features0) == (-90.0, described[3])
    assert sorted(m.indices.tolist()) == expected.indices.tolist()
    nothing = pipeline.match_rotated([features(a[:0])] * 4, features(b))
    assert (len(nothing), nothing.angle) == (0, None)


@pytest.mark.parametrize("strategy", [None, "max-matches", "subset"])
def test_angles_are_degrees(strategy: str | None) -> None:
    matcher = steerers.load("upright-sift", strategy=strategy, angles=[0, -90], num_keypoints=300)
    assert matcher.strategy.rotations == pytest.approx((0.0, 1.5 * math.pi))  # type: ignore[attr-defined]
    m = matcher(ASTRONAUT, rotated(ASTRONAUT, 3))
    assert m.angle == pytest.approx(-90)
    assert len(m) > 200
    found = matcher(ASTRONAUT, rotated(ASTRONAUT, 1))  # which was not tried
    assert found.angle in (None, 0, -90)
    assert len(found) < len(m) / 2


def test_tta_of_more_rotations_than_memory_holds() -> None:
    with pytest.raises(ValueError, match="order must be at most 360 for tta, got 1000000000"):
        steerers.load("sift", strategy="tta", order=10**9)


@pytest.mark.parametrize("order", [None, 1, 2.5, "8"])
def test_orders_that_tta_does_not_have(order: object) -> None:
    with pytest.raises(ValueError, match="order must be a whole number of at least 2 for tta, got"):
        steerers.load("sift", strategy="tta", order=order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "no-such"}, "unknown model 'no-such'; use one of .*upright-sift"),
        ({"strategy": "no-such"}, "unknown strategy 'no-such'; use one of dual-softmax"),
        ({"device": "no-such"}, "unknown device 'no-such'"),
        ({"device": "cuda:99"}, "not available"),
        ({"device": "xla"}, "unknown device 'xla'"),
        ({"name": "upright-sift", "order": 8}, "order 8 needs rotations that a C4 steerer does not have"),
        ({"angles": [0, 90], "order": 8}, "give order or angles, not both"),
        ({"angles": []}, "angles holds none"),
        ({"angles": [0, 360]}, "angles holds 0 degrees twice"),
        ({"angles": [math.nan]}, "angles must be finite"),
        ({"angles": "0,90"}, "angles must be numbers, in degrees, got '0,90'"),
        ({"angles": 90}, "angles must be numbers, in degrees, got 90"),
        ({"name": "upright-sift", "angles": [45]}, "C4 rotates by multiples of 90 degrees only, got 45 degrees"),
        ({"strategy": "tta", "angles": [0, 90]}, "tta rotates the image .* give order instead of angles"),
        ({"strategy": "dual-softmax", "angles": [0, 90]}, "'dual-softmax' has no option 'angles'"),
        ({"num_keypoints": 0}, "num_keypoints must be a whole number of at least 1, got 0"),
        ({"threshold": 1.5}, r"threshold must be in \[0, 1\), got 1.5"),
        ({"inverse_temperature": -1.0}, "inverse_temperature must be positive"),
        ({"nonsense": 1}, "has no option 'nonsense'"),
        ({"strategy": "mutual-nearest", "inverse_temperature": 20.0}, "has no option 'inverse_temperature'"),
    ],
)
def test_wrong_options_say_what_would_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steerers.load(**options)  # type: ignore[arg-type]


def test_the_threshold_of_the_model_is_no_cosine() -> None:
    """Models choose a probability; mutual-nearest takes it for a cosine, and so must be spared it."""
    model = steerers.load("sift")
    assert model.strategy.options.threshold > 0
    plain = steerers.load("sift", strategy="mutual-nearest", num_keypoints=200)
    assert plain.strategy.threshold == -1.0
    assert steerers.load("sift", strategy="mutual-nearest", threshold=0.5).strategy.threshold == 0.5
    assert len(plain(ASTRONAUT, rotated(ASTRONAUT, 1))) > 150


def test_nan_descriptions_are_an_error() -> None:
    class Broken(torch.nn.Module):
        dim = 4

        def extract(self, images: torch.Tensor, **_: object) -> list[tuple[Keypoints, torch.Tensor]]:
            return [(Keypoints(torch.zeros(3, 2), torch.ones(3)), torch.full((3, 4), math.nan))]

    model = Model("broken", Broken())  # type: ignore[arg-type]
    pipeline = steerers.Pipeline(model, steerers.load("sift").strategy)
    with pytest.raises(ValueError, match=r"3 of 3 descriptions of model 'broken' are not finite .* float32"):
        pipeline(ASTRONAUT, ASTRONAUT)


def test_a_steerer_of_another_length_is_refused() -> None:
    extractor = steerers.load().model.extractor
    with pytest.raises(ValueError, match="descriptions of length 256, but its steerer acts on length 64"):
        Model("mine", extractor, steerers.Steerer.perm(64))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keypoints": torch.zeros(3, 3)}, r"keypoints must have shape \(N, 2\)"),
        ({"descriptions": torch.zeros(2, 8)}, r"descriptions must have shape \(3, D\)"),
        ({"scores": torch.zeros(4)}, r"scores must have shape \(3,\)"),
    ],
)
def test_features_check_their_shapes(fields: dict[str, torch.Tensor], message: str) -> None:
    good = {"keypoints": torch.zeros(3, 2), "descriptions": torch.zeros(3, 8), "scores": torch.zeros(3)}
    with pytest.raises(ValueError, match=message):
        Features(**{**good, **fields}, image_size=(4, 4))


def test_features_take_arrays() -> None:
    matcher, found = steerers.load("sift"), np.random.default_rng(0).normal(size=(3, 128))
    features = Features(np.zeros((3, 2), np.float32), found, np.ones(3), (4, 4), orientation=np.eye(2))
    assert all(isinstance(value, torch.Tensor) for value in (features.keypoints, features.scores, features.orientation))
    np.testing.assert_array_equal(features.descriptions.numpy(), found)
    assert sorted(matcher.match(features, features).indices.tolist()) == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(Keypoints(np.ones((3, 2)), np.ones(3)).xy, torch.ones(3, 2).double())
    for wrong in ("abc", [[1, 2]], np.array([["a", "b"]])):
        with pytest.raises(TypeError, match="keypoints must be a tensor or a NumPy array of numbers, got"):
            Features(wrong, found, np.ones(3), (4, 4))
        with pytest.raises(TypeError, match="xy must be a tensor or a NumPy array of numbers, got"):
            Keypoints(wrong, torch.ones(3))


def test_images_are_not_taken_for_features() -> None:
    matcher, features = steerers.load("sift"), Features(torch.zeros(0, 2), torch.zeros(0, 128), torch.zeros(0), (4, 4))
    for pair in (("a.jpg", "b.jpg"), (features, "b.jpg"), (None, features)):
        with pytest.raises(TypeError, match=r"must be Features, .* got (str|None).*call the matcher with them"):
            matcher.match(*pair)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be Features, .* got str"):
        steerers.load("sift", strategy="tta").match_rotated(["a.jpg"] * 4, features)  # type: ignore[list-item]


@pytest.mark.parametrize("field", ["scores", "scales", "orientations"])
def test_keypoints_check_their_shapes(field: str) -> None:
    values = {"scores": torch.zeros(3), field: torch.zeros(2)}
    with pytest.raises(ValueError, match=rf"keypoints.{field} must have shape \(3,\), got \(2,\)"):
        Keypoints(torch.zeros(3, 2), **values)
    with pytest.raises(ValueError, match=r"keypoints.xy must have shape \(N, 2\)"):
        Keypoints(torch.zeros(3), torch.zeros(3))


def test_import_is_light() -> None:
    """``import steerers`` imports neither torch nor OpenCV; the matcher imports OpenCV only when it works."""
    code = (
        "import sys, steerers; assert 'torch' not in sys.modules; steerers.load(); "
        "print(*(name in sys.modules for name in ('cv2', 'poselib', 'matplotlib', 'torchvision')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"] * 4
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        steerers.nonsense  # noqa: B018
    assert "load" in dir(steerers)


# Several images -------------------------------------------------------------------------------------------------------


def assert_same_features(actual: Features, expected: Features) -> None:
    torch.testing.assert_close(actual.keypoints, expected.keypoints, atol=1e-3, rtol=0)
    torch.testing.assert_close(actual.descriptions, expected.descriptions, atol=1e-3, rtol=1e-3)
    assert (actual.image_size, actual.model) == (expected.image_size, expected.model)


@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("model", ["compact", "upright-sift"])
def test_a_list_of_images_is_what_its_images_are(model: str, batch: int | None) -> None:
    matcher = steerers.load(model, num_keypoints=80, max_size=160)
    pixels = np.asarray(PIL.Image.open(ASTRONAUT))
    images = [ASTRONAUT, HOUSE[0], pixels, matcher.load_image(HOUSE[1]), str(HOUSE[0]), pixels[:, :300], ASTRONAUT]
    found = matcher.extract(images, batch=batch)
    assert len(found) == len(images)
    for image, features in zip(images, found, strict=True):
        assert_same_features(features, matcher.extract(image))


def test_a_tensor_of_several_images_is_a_batch() -> None:
    matcher = steerers.load(num_keypoints=50, max_size=160)
    images = torch.stack([load_image(path, max_size=160).tensor[:, :120, :120] for path in (ASTRONAUT, *HOUSE)])
    masks = torch.zeros(3, 120, 120, dtype=torch.bool)
    masks[:, :60] = True
    for features, image in zip(matcher.extract(images), images, strict=True):
        assert_same_features(features, matcher.extract(image))
    for features, image in zip(matcher.extract(images, mask=masks), images, strict=True):
        assert_same_features(features, matcher.extract(image, mask=masks[0]))
    assert matcher.extract(images[:0]) == []
    assert_same_features(matcher.extract(images[:1]), matcher.extract(images[0]))
    with pytest.raises(ValueError, match=r"got \(3, 3, 120, 120\); of several images a Pipeline extracts the features"):
        matcher(images, images)


def test_masks_of_a_list_of_images() -> None:
    matcher = steerers.load(num_keypoints=50, max_size=128)
    mask = np.zeros((512, 512), dtype=np.uint8)
    mask[:, :256] = 255
    first, second, third = matcher.extract((ASTRONAUT, ASTRONAUT, ASTRONAUT), mask=[None, mask, None], batch=3)
    assert_same_features(second, matcher.extract(ASTRONAUT, mask=mask))
    assert_same_features(first, third)
    assert float(second.keypoints[:, 0].max()) < 256 < float(first.keypoints[:, 0].max())
    for wrong, got in (([mask], "a list of 1"), (mask, "ndarray"), (str(ASTRONAUT), "str")):
        message = f"mask must be a list of 2 masks or None, one for each image, got {got}$"
        with pytest.raises(ValueError, match=message):
            matcher.extract([ASTRONAUT, ASTRONAUT], mask=wrong)  # type: ignore[arg-type]


def test_no_images_and_bad_ones(tmp_path: Path) -> None:
    matcher = steerers.load(num_keypoints=20, max_size=64)
    assert matcher.extract([]) == []
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"cannot read image .*broken\.jpg"):
        matcher.extract([ASTRONAUT, tmp_path / "broken.jpg", ASTRONAUT])
    with pytest.raises(FileNotFoundError, match=r"no such image: .*missing\.jpg"):
        matcher.extract([ASTRONAUT, ASTRONAUT, tmp_path / "missing.jpg"])
    for wrong, told in ((0, "0"), (-2, "-2"), (1.5, "1.5"), ("4", "'4'")):
        with pytest.raises(ValueError, match=f"batch must be a whole number of at least 1, got {told}$"):
            matcher.extract([ASTRONAUT], batch=wrong)  # type: ignore[arg-type]
    assert len(matcher.extract([ASTRONAUT], batch=np.int64(2))) == 1  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch goes with a list of images; got 4 with a single one"):
        matcher.extract(ASTRONAUT, batch=4)  # type: ignore[call-overload]


def test_images_of_a_list_that_have_no_name_fail_with_their_place() -> None:
    matcher = steerers.load("upright-sift", num_keypoints=20, max_size=64)
    good, mask = np.zeros((30, 40, 3), dtype=np.uint8), np.ones((30, 41), dtype=np.uint8)
    with pytest.raises(
        ValueError, match=r"^image 2 of 3, counted from 0: an image array must have shape .*, got \(5,\)"
    ):
        matcher.extract([good, good, np.zeros(5)])
    with pytest.raises(TypeError, match=r"^image 1 of 2, counted from 0: an image array must be uint8"):
        matcher.extract([good, good.astype(np.int64)])
    with pytest.raises(ValueError, match=r"^image 0 of 2, counted from 0: mask is 41 x 30 pixels but"):
        matcher.extract([good, good], mask=[mask, None])


def test_the_same_picture_several_times(tmp_path: Path) -> None:
    """A Pillow image reads its file when it is first used, which two threads at once must not make it do."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "large.png"
    PIL.Image.open(ASTRONAUT).resize((900, 900)).save(path, exif=exif)
    matcher = steerers.load("upright-sift", num_keypoints=30, max_size=100, exif="apply")
    expected = matcher.extract(path)
    PIL.Image.new("L", (900, 900), 255).save(tmp_path / "mask.png")
    picture, mask = PIL.Image.open(path), PIL.Image.open(tmp_path / "mask.png")
    for features in matcher.extract([picture] * 8, mask=[mask] * 8):
        assert_same_features(features, expected)


def test_a_batch_that_mixes_images_with_keypoints_and_without() -> None:
    matcher = steerers.load(num_keypoints=30, max_size=96)
    blank = np.full((512, 512, 3), 90, dtype=np.uint8)
    some, none = matcher.extract([ASTRONAUT, blank], batch=2)
    assert len(some) == 30
    assert len(none) == 0
    assert none.descriptions.shape == (0, 256)
