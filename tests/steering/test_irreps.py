"""The blocks of a steerer: how they respond to rotations, and what excites them."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import EXAMPLES, acting, assert_near, describe_image, detect_image, permutations_of, randn, random_basis
from steerers.features import Keypoints
from steerers.images.load import load_image, make_picture
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.irreps import PER_PHOTO, SIDE, Irreps, Patch, Response, find_patches, rotate_patch, whole_patches
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer
from training.tiny import Rings

QUARTERS = [k * math.pi / 2 for k in range(4)]
EIGHTHS = [k * math.pi / 4 for k in range(8)]
UPRIGHT_SIFT = Steerer.from_permutation(c4_permutation(), "C4")


def rotated_by(irreps: Irreps, angle: float) -> Tensor:
    """(B,) complex: by what the paper multiplies each block."""
    return torch.polar(torch.ones(1).double(), torch.tensor(irreps.frequencies).double() * angle)


# Blocks ---------------------------------------------------------------------------------------------------------------


@given(acting())
def test_a_rotation_multiplies_every_response(
    dtype: torch.dtype, tolerance: float, case: tuple[Representation, list[float]]
) -> None:
    representation, (angle,) = case
    steerer = Steerer.from_representation(representation)
    irreps = Irreps.of(steerer)
    descriptions = randn(5, steerer.dim, dtype=dtype)
    before, after = irreps.responses(descriptions), irreps.responses(steerer.steer(descriptions, angle))
    assert_near(after, before * rotated_by(irreps, angle), tolerance)
    assert min(irreps.frequencies) >= 0
    assert_near(before.abs().square().sum(dim=1), torch.ones(5, dtype=torch.float64), tolerance)


@given(st.sampled_from([2, 3, 4, 6]).flatmap(lambda n: permutations_of(Group(n)).map(lambda p: (n, p))))
def test_of_a_permutation(case: tuple[int, Tensor]) -> None:
    order, permutation = case
    steerer = Steerer.from_permutation(permutation, f"C{order}")
    irreps = Irreps.of(steerer)
    descriptions = randn(3, steerer.dim)
    after = irreps.responses(descriptions[:, permutation])
    assert_near(after, irreps.responses(descriptions) * rotated_by(irreps, 2 * math.pi / order), 1e-9)


@pytest.mark.parametrize("spec", ["2x0 + 2x1 + 1x2", "1x0 + 3x-1", "2x3 + 1x1"])
@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_of_a_matrix_up_to_its_length(spec: str, factor: float) -> None:
    """What is learned is a representation in another basis, times a factor; descriptions are normalised."""
    representation = Representation.parse(spec, "C8" if "-" not in spec else "SO2")
    basis = random_basis(representation.dim)
    generator = torch.linalg.inv(basis) @ representation.generator() @ basis
    group, angle = representation.group, math.pi / 4
    matrix = generator if group.continuous else factor * generator
    steerer = Steerer.from_matrix(matrix, group)
    irreps = Irreps.of(steerer)
    assert sorted(irreps.frequencies) == sorted(group.fold(j) for j, _ in representation.blocks())
    descriptions = randn(4, representation.dim)
    steered = irreps.responses(steerer.steer(descriptions, angle))
    quotients = steered / (irreps.responses(descriptions) * rotated_by(irreps, angle))  # one positive number each
    assert_near(quotients, quotients[:, :1].abs().expand_as(quotients).to(quotients), 1e-8)


def test_blocks_of_a_frequency() -> None:
    irreps = Irreps.of(Steerer.from_spec("2x0 + 1x-2 + 1x1 + 1x2", "SO2"))
    assert irreps.frequencies == [0, 0, 2, 1, 2]
    assert [irreps.of_frequency(j) for j in range(4)] == [[0, 1], [3], [2, 4], []]
    assert irreps.coordinates(torch.ones(8)).shape == (8,)


def test_a_matrix_without_eigenvectors_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be diagonalised"):
        Irreps.of(Steerer.from_matrix(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), "C4"))


# What excites them ----------------------------------------------------------------------------------------------------


def make_photo(seed: int, count: int = 60, scaled: bool = True) -> tuple[Keypoints, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = 2 + 6 * torch.rand(count, generator=generator) if scaled else None
    xy = 300 * torch.rand(count, 2, generator=generator)
    return Keypoints(xy, torch.ones(count), scales), torch.randn(count, 8, generator=generator)


def side_of(patch: Patch) -> float:
    return SIDE * (16.0 if patch.keypoint.scales is None else float(patch.keypoint.scales[0]))


@pytest.mark.parametrize("scaled", [True, False])
def test_patches_against_one_by_one(scaled: bool) -> None:
    irreps = Irreps.of(Steerer.from_spec("2x0 + 1x1 + 2x2", "SO2"))
    photos = [make_photo(seed, scaled=scaled) for seed in range(3)]
    parts = [[0, 1], [2], [3, 4], [4]]
    columns = [[0, 1], [2, 3], [4, 5, 6, 7], [6, 7]]
    found = find_patches(photos, irreps, parts)
    for own, blocks, patches in zip(columns, parts, found, strict=True):
        assert [p.excitation for p in patches] == sorted((p.excitation for p in patches), reverse=True)
        for number, (keypoints, descriptions) in enumerate(photos):
            lengths = (descriptions[:, own].double().norm(dim=1) / descriptions.double().norm(dim=1)).tolist()
            here = [patch for patch in patches if patch.photo == number]
            assert len(here) == PER_PHOTO
            assert here[0].excitation == pytest.approx(max(lengths))
            place = lengths.index(max(lengths))
            assert torch.equal(here[0].keypoint.xy[0], keypoints.xy[place])
            (x, y), free = keypoints.xy[place].tolist(), []
            for index, (u, v) in enumerate(keypoints.xy.tolist()):
                other = SIDE * (16.0 if keypoints.scales is None else float(keypoints.scales[index]))
                if max(abs(x - u), abs(y - v)) > (side_of(here[0]) + other) / 2:
                    free.append(lengths[index])
            assert here[1].excitation == pytest.approx(max(free))
            assert all(patch.block in blocks for patch in here)


def test_the_strongest_block() -> None:
    irreps = Irreps.of(Steerer.from_spec("1x0 + 2x1", "SO2"))
    keypoints = Keypoints(torch.tensor([[50.0, 50.0]]), torch.ones(1))
    ((patch,),) = find_patches([(keypoints, torch.tensor([[9.0, 1.0, 0.0, 0.0, 2.0]]))], irreps, [[1, 2]])
    assert patch.block == 2
    assert patch.excitation == pytest.approx(math.sqrt(5 / 86))


def test_no_patch_where_there_is_nothing() -> None:
    irreps = Irreps.of(Steerer.inv(4))
    nothing = Keypoints(torch.zeros(0, 2), torch.zeros(0)), torch.zeros(0, 4)
    flat = Keypoints(torch.ones(2, 2), torch.ones(2)), torch.zeros(2, 4)
    assert find_patches([nothing, flat], irreps, [[0, 1]]) == [[]]


def test_whole_patches_stay_inside() -> None:
    reach = SIDE * math.sqrt(0.5) * 10
    inside, outside = reach + 0.1, reach - 0.1
    xy = torch.tensor([[inside, inside], [outside, 50.0], [99 - inside, 79 - inside], [50.0, 79 - outside]])
    whole = whole_patches(Keypoints(xy, torch.ones(4), torch.full((4,), 10.0)), 100, 80)
    assert whole.tolist() == [True, False, True, False]
    assert not whole_patches(Keypoints(xy, torch.ones(4)), 60, 60).any()  # of 16 pixels, as there is no scale


def drawn(kind: str, size: int = 65, width: float = 4.0) -> Tensor:
    """(3, size, size): a blob, an edge or a line through the middle, at an angle that is no axis."""
    y, x = torch.meshgrid(*(torch.arange(size) - size // 2 + 0.0,) * 2, indexing="ij")
    across = x * math.cos(0.4) + y * math.sin(0.4)
    grey = {
        "blob": torch.exp(-(x**2 + y**2) / (2 * width**2)),
        "edge": torch.sigmoid(across / 1.5),
        "line": torch.exp(-(across**2) / (2 * (width / 2) ** 2)),
    }[kind]
    return (0.2 + 0.6 * grey).expand(3, -1, -1).contiguous()


def test_blobs_edges_and_lines_excite_frequencies_0_1_and_2() -> None:
    """The reading of appendix A.1, with Upright SIFT."""
    irreps, model = Irreps.of(UPRIGHT_SIFT), UprightSift()
    middle = Keypoints(torch.tensor([[32.0, 32.0]]), torch.ones(1), torch.tensor([8.0]))
    kinds = ("blob", "edge", "line")
    found = {
        kind: [
            float(irreps.responses(describe_image(model, drawn(kind), middle))[0, irreps.of_frequency(j)].norm())
            for j in range(3)
        ]
        for kind in kinds
    }
    for frequency, most in enumerate(kinds):
        assert max(kinds, key=lambda kind: found[kind][frequency]) == most, found
    assert found["blob"][0] > 0.97
    assert found["edge"][1] > 0.65
    assert found["line"][2] > 0.6
    assert found["line"][1] < 0.1  # a half turn leaves a line as it is


# How they respond -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coffee.jpg", "camera.jpg"])
def test_upright_sift_responds_to_quarter_turns_exactly(name: str) -> None:
    irreps, model = Irreps.of(UPRIGHT_SIFT), UprightSift()
    image = load_image(EXAMPLES / name, max_size=300).tensor
    keypoints = detect_image(model, image, num_keypoints=40)
    keypoints = keypoints.select(whole_patches(keypoints, image.shape[2], image.shape[1]))
    parts = [irreps.of_frequency(j) for j in range(3)] + [[5], [40], [90]]
    found = find_patches([(keypoints, describe_image(model, image, keypoints))], irreps, parts)
    for blocks, patches in zip(parts, found, strict=True):
        for patch in patches:
            response = rotate_patch(model, image, patch, irreps, blocks, QUARTERS)
            assert_near(response.found, response.ideal, 1e-6)
            assert response.angle_error < 1e-3
            assert response.deviation < 1e-6


@pytest.mark.parametrize("frequency", [0, 1, 2, 3])
def test_responses_of_every_angle(frequency: int) -> None:
    """Waves around a keypoint rotate counter-clockwise with the image, by their frequency times the angle."""
    irreps, model, image = Irreps.of(Steerer.from_spec(Rings.spec, "SO2")), Rings(), make_picture(120, 120, seed=3)
    blocks = irreps.of_frequency(frequency)
    keypoint = Keypoints(torch.tensor([[61.0, 58.0]]), torch.ones(1))
    for chosen in (blocks, blocks[2:]):
        response = rotate_patch(model, image, Patch(0, keypoint, 1.0, blocks[0]), irreps, chosen, EIGHTHS)
        assert response.frequency == frequency
        assert response.found[0] == pytest.approx(1)
        assert response.angle_error < 8, (frequency, response.found)
        assert response.deviation < 0.3


def test_errors_of_a_response() -> None:
    angles = torch.tensor([0.0, math.pi / 2, math.pi], dtype=torch.float64)
    off = torch.polar(torch.tensor([1.0, 2.0, 1.0]).double(), 2 * angles + torch.tensor([0.0, 0.1, -0.3]))
    response = Response(2, angles, off, torch.tensor([0.0, 0.5, 0.1], dtype=torch.float64))
    assert response.angle_error == pytest.approx(math.degrees(0.2))
    assert response.deviation == pytest.approx(0.3)
    for one, other in combinations(response.ideal[[0, 2]].tolist(), 2):
        assert one == pytest.approx(other)  # frequency 2: half a turn changes nothing
