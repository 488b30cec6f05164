"""What a rotation does to descriptions: exact for descriptors that are equivariant by construction."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.equivariant import STEERER, Harmonics
from helpers import randn, random_orthogonal
from steerers.benchmarks.agreement import central_disc, compare, compare_cosines, nearest_rotation
from steerers.features import Keypoints
from steerers.geometry import rotation_about_centre, transform_points
from steerers.models.base import Descriptor
from steerers.steering.equivariance import describe_rotated, equivariance
from steerers.steering.steerer import Steerer


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
    found = describe_rotated(descriptor.describe, image, keypoints, angle)
    agreement = compare(STEERER.steer(descriptor.describe(image, keypoints), angle), found)
    assert agreement.cosine == pytest.approx(1, abs=1e-6)
    assert (agreement.nearest, agreement.reciprocal_rank) == (1, 1)


@given(angle=st.floats(-7, 7))
def test_cosines_agree_with_the_testing_module(angle: float) -> None:
    image, keypoints = scene()
    descriptor = Harmonics()

    def describe(image: Tensor, xy: Tensor) -> Tensor:
        return descriptor.describe(image, Keypoints(xy, keypoints.scores))

    wrong = Steerer.from_spec("3x0 + 1x2 + 1x1 + 1x3", "SO2")
    expected = equivariance(describe, wrong, image, keypoints.xy, angle).mean()
    steered = wrong.steer(descriptor.describe(image, keypoints), angle)
    assert compare(steered, describe_rotated(descriptor.describe, image, keypoints, angle)).cosine == pytest.approx(
        float(expected), abs=1e-6
    )


def test_orientations_rotation_with_the_image() -> None:
    class Orientations(Descriptor):
        dim = 2

        def describe(self, image: Tensor, keypoints: Keypoints) -> Tensor:
            assert keypoints.orientations is not None
            return torch.stack([keypoints.orientations.cos(), keypoints.orientations.sin()], dim=1)

    image, keypoints = scene()
    found = describe_rotated(Orientations().describe, image, keypoints, 0.7)
    expected = Steerer.freq1(2).steer(Orientations().describe(image, keypoints), 0.7)
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
    """The other half of Theorem 4.1."""
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
