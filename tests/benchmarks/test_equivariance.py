"""The benchmark of equivariance: what is steered exactly scores 1 at every angle, what is not does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.equivariant import STEERER, Harmonics
from helpers import EXAMPLES, describe_image, randn, random_orthogonal
from steerers.benchmarks.equivariance import (
    EquivarianceSettings,
    central_disc,
    compare,
    compare_cosines,
    describe_photo,
    evaluate,
    make_report,
    nearest_rotation,
)
from steerers.benchmarks.runs import Run, hash_files, load_runs
from steerers.features import Keypoints
from steerers.geometry import rotation_about_centre, transform_points
from steerers.matching.strategies import DualSoftmax
from steerers.models.base import Extractor, SingleDescriptor, SingleExtractor
from steerers.models.zoo import Model
from steerers.pipeline import Pipeline
from steerers.steering.equivariance import describe_rotated, equivariance
from steerers.steering.steerer import Steerer

PHOTOGRAPH = EXAMPLES / "astronaut.jpg"

pytestmark = pytest.mark.usefixtures("one_thread")


class Points(SingleExtractor):
    """Finds the brightest pixels that are allowed."""

    dim = 9

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        brightness = image.sum(dim=0) * (1 if mask is None else mask)
        values, index = brightness.flatten().topk(min(num_keypoints, int((brightness > 0).sum())))
        xy = torch.stack([index % image.shape[2], index // image.shape[2]], dim=1).float()
        return Keypoints(xy, values)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return describe_image(Harmonics(), image, keypoints)


class Arbitrary(Points):
    """Descriptions by where a keypoint lies on the canvas, in no relation to a rotation."""

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        frequencies = torch.arange(1, 10).double()
        x, y = keypoints.xy.double().unbind(dim=1)
        return torch.sin(37.7 * x[:, None] * frequencies + 91.3 * y[:, None] * frequencies**2)


def make_run(extractor: Extractor, steerer: Steerer | None = STEERER, label: str = "fake") -> Run:
    return Run(label, Pipeline(Model(label, extractor, steerer), DualSoftmax()))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three small pictures of noise."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    paths = []
    for index, shape in enumerate(((50, 60, 3), (61, 47, 3), (40, 40, 3))):
        paths.append(folder / f"{index}.png")
        PIL.Image.fromarray(generator.integers(1, 255, shape, dtype=np.uint8)).save(paths[-1])
    return paths


SMALL = EquivarianceSettings(num_keypoints=30, margin=2.0)


def test_an_exactly_equivariant_descriptor_scores_1_at_all_angles(photos: list[Path]) -> None:
    (steered, unsteered), (kept,) = evaluate([make_run(Points())], photos, SMALL)
    assert len(steered["curves"]["cosine"]) == 36
    for name in ("cosine", "nearest", "reciprocal_rank"):
        np.testing.assert_allclose(steered["curves"][name], 1, atol=1e-5)
        assert steered["quarter"][name] == pytest.approx(1)
        assert steered["other"][name] == pytest.approx(1)
    assert unsteered["curves"]["cosine"][0] == pytest.approx(1)
    assert unsteered["quarter"]["cosine"] < 0.9
    assert unsteered["quarter"]["nearest"] < 0.5
    np.testing.assert_allclose(kept["curves"]["max_change"], 0, atol=1e-5)  # Theorem 5.1
    np.testing.assert_allclose(kept["curves"]["correlation"], 1, atol=1e-5)
    assert (steered["num_photos"], steered["num_skipped"], steered["num_keypoints"]) == (3, 0, 30)
    assert kept["num_pairs"] == 2


def test_an_arbitrary_descriptor_does_not(photos: list[Path]) -> None:
    (steered, unsteered), (kept,) = evaluate([make_run(Arbitrary())], photos, SMALL)
    for row in (steered, unsteered):
        for where in ("quarter", "other"):
            assert row[where]["cosine"] < 0.3
            assert row[where]["nearest"] < 0.2
    assert steered["curves"]["cosine"][0] == pytest.approx(1)  # no rotation
    assert kept["quarter"]["mean_change"] > 0.1
    assert kept["quarter"]["correlation"] < 0.3


def test_a_cyclic_steerer_is_exact_at_its_rotations_alone(photos: list[Path]) -> None:
    settings = EquivarianceSettings(num_keypoints=30, margin=2.0, angles=(0.0, 30.0, 60.0, 90.0, 180.0))
    (steered, unsteered), _ = evaluate([make_run(Points(), STEERER.discretised(4))], photos, settings)
    cosines = steered["curves"]["cosine"]
    np.testing.assert_allclose([cosines[k] for k in (0, 3, 4)], 1, atol=1e-5)
    assert cosines[1] == pytest.approx(unsteered["curves"]["cosine"][1])  # 30 degrees are nearest to none
    assert cosines[2] == pytest.approx(cosines[1], abs=1e-5)  # 60 are 30 short of 90
    assert cosines[1] < 0.95


def test_upright_sift_is_exact_at_quarter_turns() -> None:
    runs = load_runs(["upright-sift", "sift"], num_keypoints=200, max_size=320)
    settings = EquivarianceSettings(max_size=320, num_keypoints=200, angles=(90.0, 180.0, 270.0, 45.0))
    (steered, unsteered, sift), (kept, _) = evaluate(runs, [PHOTOGRAPH], settings)
    assert min(steered["curves"]["cosine"][:3]) > 0.9999
    assert steered["quarter"]["nearest"] == 1
    assert unsteered["quarter"]["nearest"] < 0.1
    assert steered["other"]["nearest"] < 0.5
    assert kept["quarter"]["max_change"] < 0.01
    assert kept["other"]["max_change"] > 0.05
    assert sift["descriptions"] == "as they are"
    assert sift["steerer"] is None
    assert sift["quarter"]["nearest"] > 0.99  # orientations rotate too
    assert sift["other"]["nearest"] > 0.9


def test_models_with_the_same_networks_describe_once(photos: list[Path]) -> None:
    calls = []

    class Counting(Points):
        def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
            calls.append(1)
            return super().describe_one(image, keypoints)

    extractor = Counting()
    runs = [make_run(extractor, STEERER, "a"), make_run(extractor, None, "b")]
    steering, kept = evaluate(
        runs, photos[:2], EquivarianceSettings(num_keypoints=5, margin=2.0, angles=(0.0, 90.0, 100.0))
    )
    assert len(calls) == 2 * (3 + 1)
    assert [row["label"] for row in steering] == ["a", "a", "b"]
    assert steering[1]["curves"] == steering[2]["curves"]
    assert len(kept) == 2


def test_photographs_without_keypoints_are_counted(photos: list[Path], tmp_path: Path) -> None:
    black = tmp_path / "black.png"
    PIL.Image.new("RGB", (50, 50)).save(black)
    settings = EquivarianceSettings(num_keypoints=30, margin=2.0, angles=(0.0, 90.0))
    (steered, _), (kept,) = evaluate([make_run(Points())], [photos[0], black, photos[1]], settings)
    assert (steered["num_photos"], steered["num_skipped"]) == (2, 1)
    assert kept["num_pairs"] == 1
    (steered, _), (kept,) = evaluate([make_run(Points())], [black], settings)
    assert (steered["num_photos"], steered["num_keypoints"], kept["num_pairs"]) == (0, 0, 0)
    assert math.isnan(steered["quarter"]["cosine"])


def test_one_photograph_is_compared_with_itself(photos: list[Path]) -> None:
    _, (kept,) = evaluate(
        [make_run(Points())], photos[:1], EquivarianceSettings(num_keypoints=10, margin=2.0, angles=(90.0,))
    )
    assert kept["num_pairs"] == 1
    assert kept["quarter"]["max_change"] < 1e-5
    assert kept["other"]["max_change"] is None  # there is no other angle


def test_keypoints_lie_in_the_disc() -> None:
    image = torch.zeros(3, 40, 60)
    image[:, ::4, ::4] = 1
    found = []

    class Keeping(Points):
        def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
            found.append(super().detect_one(image, num_keypoints, mask))
            return found[-1]

    described = describe_photo(
        Model("fake", Keeping(), STEERER), image, EquivarianceSettings(num_keypoints=500, margin=3.0)
    )
    assert described is not None
    distances = (found[0].xy - torch.tensor([29.5, 19.5])).norm(dim=1)
    assert 10 < float(distances.max()) <= 16.5


def test_the_report(photos: list[Path], tmp_path: Path) -> None:
    settings = EquivarianceSettings(num_keypoints=10, margin=2.0, angles=(0.0, 45.0, 90.0))
    runs = [make_run(Points()), make_run(Arbitrary(), None, "other")]
    report = make_report(*evaluate(runs, photos, settings), photos, settings, {"device": "nowhere"})
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["settings"]["angles"] == [0, 45, 90]
    first, second = found["tables"]
    assert [row["label"] for row in first["rows"]] == ["fake", "fake", "other"]
    assert first["photos_sha256"] == second["photos_sha256"] == hash_files(photos)
    text = report.to_markdown()
    assert "| fake | SO2, fixed | steered | 10 | 0 | 1.000 | 100.0 | 1.000 | 1.000 | 100.0 | 1.000 |" in text
    assert "Theorem 5.1" in text
    pytest.importorskip("matplotlib")
    report.write(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.json", "report.md", "cosine.png", "nearest.png", "joint.png"
    }  # fmt: skip


def test_the_hash_does_not_know_the_folder(photos: list[Path], tmp_path: Path) -> None:
    copies = [tmp_path / path.name for path in photos]
    for source, copy in zip(photos, copies, strict=True):
        copy.write_bytes(source.read_bytes())
    assert hash_files(copies) == hash_files(photos)
    assert hash_files(photos[:2]) != hash_files(photos)


@pytest.mark.parametrize("angles", [(), (0.0, math.nan), (90.0, 90.0)])
def test_bad_angles(angles: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="angles must be different finite numbers of degrees, at least one"):
        EquivarianceSettings(angles=angles)


def test_nothing_to_measure(photos: list[Path]) -> None:
    with pytest.raises(ValueError, match="at least one model and one photograph"):
        evaluate([], photos)
    with pytest.raises(ValueError, match="at least one model and one photograph"):
        evaluate([make_run(Points())], [])


# What a rotation does to descriptions ---------------------------------------------------------------------------------


def scene(count: int = 20, seed: int = 0) -> tuple[Tensor, Keypoints]:
    """A dark image that is not square, and keypoints in its central disc."""
    generator = torch.Generator().manual_seed(seed)
    radius, angle = 18 * torch.rand(count, generator=generator), 6.28 * torch.rand(count, generator=generator)
    xy = torch.stack([29.5 + radius * torch.cos(angle), 19.5 + radius * torch.sin(angle)], dim=1)
    return torch.zeros(3, 40, 60), Keypoints(xy, torch.ones(count), None, angle)


@given(angle=st.floats(-7, 7))
def test_an_equivariant_descriptor_is_steered_exactly(angle: float) -> None:
    image, keypoints = scene()
    descriptor = Harmonics()
    found = describe_rotated(descriptor, image, keypoints, angle)
    agreement = compare(STEERER.steer(describe_image(descriptor, image, keypoints), angle), found)
    assert agreement.cosine == pytest.approx(1, abs=1e-6)
    assert (agreement.nearest, agreement.reciprocal_rank) == (1, 1)


@given(angle=st.floats(-7, 7))
def test_cosines_agree_with_the_testing_module(angle: float) -> None:
    image, keypoints = scene()
    descriptor = Harmonics()

    def describe(image: Tensor, xy: Tensor) -> Tensor:
        return describe_image(descriptor, image, Keypoints(xy, keypoints.scores))

    wrong = Steerer.from_spec("3x0 + 1x2 + 1x1 + 1x3", "SO2")
    expected = equivariance(describe, wrong, image, keypoints.xy, angle).mean()
    steered = wrong.steer(describe_image(descriptor, image, keypoints), angle)
    assert compare(steered, describe_rotated(descriptor, image, keypoints, angle)).cosine == pytest.approx(
        float(expected), abs=1e-6
    )


def test_orientations_rotate_with_the_image() -> None:
    class Orientations(SingleDescriptor):
        dim = 2

        def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
            assert keypoints.orientations is not None
            return torch.stack([keypoints.orientations.cos(), keypoints.orientations.sin()], dim=1)

    image, keypoints = scene()
    found = describe_rotated(Orientations(), image, keypoints, 0.7)
    expected = Steerer.freq1(2).steer(describe_image(Orientations(), image, keypoints), 0.7)
    torch.testing.assert_close(found, expected)


@given(height=st.integers(2, 60), width=st.integers(2, 60), angle=st.floats(-7, 7))
def test_the_central_disc_stays_inside_whatever_the_rotation(height: int, width: int, angle: float) -> None:
    mask = central_disc(height, width)
    rows, columns = mask.nonzero().unbind(dim=1)
    points = torch.stack([columns, rows], dim=1).double()
    transform, (new_width, new_height) = rotation_about_centre((width, height), angle)
    shift = torch.tensor([(new_width - width) / 2, (new_height - height) / 2], dtype=torch.float64)
    moved = transform_points(transform, points) - shift  # in a canvas of the image's own size
    limit = torch.tensor([width - 1, height - 1], dtype=torch.float64)
    assert bool(((moved > -1e-6) & (moved < limit + 1e-6)).all())


def test_the_margin_of_the_disc() -> None:
    assert int(central_disc(21, 31).any(dim=0).sum()) == 21
    assert int(central_disc(21, 31, 4).any(dim=0).sum()) == 13
    assert not bool(central_disc(20, 20, 10).any())


@pytest.mark.parametrize(("degrees", "expected"), [(0, 0), (44, 0), (46, 90), (100, 90), (350, 360), (-50, -90)])
def test_a_cyclic_group_has_a_nearest_rotation(degrees: float, expected: float) -> None:
    found = nearest_rotation(Steerer.perm(8), math.radians(degrees))
    assert math.degrees(found) == pytest.approx(expected)
    assert nearest_rotation(Steerer.freq1(8), math.radians(degrees)) == math.radians(degrees)


def test_ranks_of_swapped_descriptions() -> None:
    descriptions = torch.eye(4) + 0.1
    swapped = descriptions[[1, 0, 2, 3]]
    agreement = compare(descriptions, swapped)
    assert agreement.nearest == 0.5
    assert agreement.reciprocal_rank == pytest.approx((1 + 1 + 1 / 4 + 1 / 4) / 4)  # three others are as far: a tie


def test_a_tie_counts_against() -> None:
    agreement = compare(torch.ones(5, 3), torch.ones(5, 3))
    assert (agreement.nearest, agreement.reciprocal_rank) == (0, 1 / 5)
    assert agreement.cosine == pytest.approx(1)


def test_lengths_do_not_matter() -> None:
    descriptions = randn(6, 4)
    scales = torch.rand(6, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    agreement = compare(descriptions, scales * descriptions)
    assert agreement.cosine == pytest.approx(1)
    assert agreement.nearest == 1


@given(seed=st.integers(0, 1000))
def test_an_orthogonal_map_keeps_the_cosines(seed: int) -> None:
    """The other half of Theorem 5.1."""
    first, second, rotation = randn(7, 6, seed=seed), randn(5, 6, seed=seed + 1), random_orthogonal(6, seed)
    kept = compare_cosines((first, second), (first @ rotation.mT, second @ rotation.mT))
    assert kept.max_change < 1e-12
    assert kept.correlation == pytest.approx(1)


def test_changes_of_cosines_by_hand() -> None:
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    kept = compare_cosines((torch.cat([x, y]), x), (torch.cat([x, x]), x))  # cosines 1, 0 become 1, 1
    assert (kept.mean_change, kept.max_change) == (0.5, 1.0)
    assert math.isnan(kept.correlation)  # of what does not vary there is none
    kept = compare_cosines((torch.cat([x, y]), x), (torch.cat([y, x]), x))
    assert (kept.mean_change, kept.max_change) == (1.0, 1.0)
    assert kept.correlation == pytest.approx(-1)
