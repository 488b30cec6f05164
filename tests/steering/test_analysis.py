"""What a learned matrix is made of: blocks, the nearest representation, invariants, the directions that matter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from helpers import (
    acting,
    assert_near,
    assert_same_multiset,
    cyclic_groups,
    groups,
    permutations_of,
    randn,
    random_basis,
    random_orthogonal,
    representations,
    representations_of,
    seeds,
    textbook_matrix,
)
from steerers.steering import analysis
from steerers.steering.analysis import BlockDiagonalisation
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")

SO2 = Group(None)


def identity(dim: int) -> Tensor:
    return torch.eye(dim, dtype=torch.float64)


def disguised(representation: Representation, seed: int, *, orthogonal: bool = False) -> Tensor:
    """The generator of a representation in another basis."""
    basis = random_orthogonal(representation.dim, seed) if orthogonal else random_basis(representation.dim, seed)
    return torch.linalg.solve(basis, representation.generator() @ basis)


def scaled(generator: Tensor, group: Group, factor: float) -> Tensor:
    """``factor`` times the smallest rotation of C_n, ``factor ** angle`` times one of SO(2)."""
    if group.continuous:
        return generator + math.log(factor) * identity(len(generator))
    return factor * generator


def assert_reconstructs(blocks: BlockDiagonalisation, generator: Tensor, tolerance: float = 1e-9) -> None:
    """``G = inverse @ matrix @ basis``, with ``basis`` and ``inverse`` inverse to each other."""
    assert_near(blocks.inverse @ blocks.matrix @ blocks.basis, generator.double(), tolerance)
    assert_near(blocks.inverse @ blocks.basis, identity(len(generator)), tolerance)


def outside_blocks(blocks: BlockDiagonalisation) -> Tensor:
    """``matrix`` with the blocks of its representation set to zero."""
    ones = [torch.ones(size, size) for _, size in blocks.representation.blocks()]
    return blocks.matrix * (1 - torch.block_diag(*ones))


# Exact representations ------------------------------------------------------------------------------------------------


@given(representation=representations())
def test_representations_are_recovered(representation: Representation) -> None:
    steerer = Steerer.from_representation(representation)
    nearest, residual = steerer.nearest_representation()
    assert nearest == representation.canonical()
    assert residual < 1e-9


@given(representation=representations(), seed=seeds, factor=st.floats(0.2, 5), orthogonal=st.booleans())
def test_representations_are_recovered_from_any_basis(
    representation: Representation, seed: int, factor: float, orthogonal: bool
) -> None:
    generator = scaled(disguised(representation, seed, orthogonal=orthogonal), representation.group, factor)
    blocks = Steerer.from_matrix(generator, representation.group).block_diagonalise()
    assert blocks.representation == representation.canonical()
    assert blocks.residual < 1e-9
    assert blocks.scale == pytest.approx(factor, rel=1e-9)
    assert_reconstructs(blocks, generator)
    assert_near(blocks.nearest, generator, 1e-9)
    assert float(outside_blocks(blocks).abs().max()) < 1e-9
    expected = scaled(blocks.representation.generator(), representation.group, factor)
    assert_near(blocks.matrix, expected, 1e-9)


@given(representation=representations(), seed=seeds)
def test_representations_are_recovered_from_float32(representation: Representation, seed: int) -> None:
    generator = disguised(representation, seed).float()
    steerer = Steerer.from_matrix(generator, representation.group, learnable=True)
    blocks = steerer.block_diagonalise()
    assert blocks.representation == representation.canonical()
    assert blocks.residual < 1e-3
    assert {t.dtype for t in (blocks.basis, blocks.inverse, blocks.matrix, blocks.nearest)} == {torch.float64}
    assert not blocks.basis.requires_grad
    assert_reconstructs(blocks, generator.double(), 1e-6)


@given(representation=representations(), seed=seeds, factor=st.floats(0.2, 5))
def test_the_basis_of_an_orthogonal_action_is_orthogonal(
    representation: Representation, seed: int, factor: float
) -> None:
    generator = scaled(disguised(representation, seed, orthogonal=True), representation.group, factor)
    blocks = analysis.block_diagonalise(generator, representation.group)
    assert_near(blocks.basis @ blocks.basis.mT, identity(representation.dim), 1e-9)
    assert_near(blocks.inverse, blocks.basis.mT, 1e-9)


@given(drawn=acting(), seed=seeds)
def test_coordinates_in_the_basis_are_steered_block_by_block(drawn: Any, seed: int) -> None:
    representation, (angle,) = drawn
    steerer = Steerer.from_matrix(disguised(representation, seed), representation.group)
    blocks = steerer.block_diagonalise()
    descriptions = randn(3, steerer.dim, seed=seed)
    disentangled = Steerer.from_representation(blocks.representation).steer(descriptions @ blocks.basis.mT, angle)
    assert_near(disentangled, steerer.steer(descriptions, angle) @ blocks.basis.mT, 1e-7)


@given(group=cyclic_groups(), data=st.data())
def test_permutations_are_their_fourier_blocks(group: Group, data: Any) -> None:
    steerer = Steerer.from_permutation(data.draw(permutations_of(group)), group)
    nearest, residual = steerer.nearest_representation()
    assert nearest == steerer.representation
    assert residual < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_spread_is_recovered_from_any_basis(seed: int) -> None:
    representation = Steerer.spread(256).representation
    assert representation is not None
    blocks = analysis.block_diagonalise(disguised(representation, seed, orthogonal=seed == 0), SO2)
    assert blocks.representation == representation
    assert blocks.residual < 1e-9


# Matrices that are only near a representation -------------------------------------------------------------------------


@given(representation=representations(), seed=seeds, orthogonal=st.booleans())
def test_the_residual_grows_with_the_noise(representation: Representation, seed: int, orthogonal: bool) -> None:
    generator = disguised(representation, seed, orthogonal=orthogonal)
    assume(float(generator.norm()) > 0)
    noise = randn(*generator.shape, seed=seed + 2) * generator.norm() / representation.dim
    residuals = []
    for size in (1e-6, 1e-4, 1e-2):
        blocks = analysis.block_diagonalise(generator + size * noise, representation.group)
        assert_reconstructs(blocks, generator + size * noise, 1e-6)
        assert (blocks.representation == representation.canonical()) or size > 1e-4
        residuals.append(blocks.residual)
    assert residuals[0] < 1e-4
    assert residuals[1] < 1e-2
    assert residuals[0] <= residuals[1] <= residuals[2]


@pytest.mark.parametrize(
    ("spec", "group"), [("40x0 + 12x1", "SO2"), ("30x0 + 12x1 + 30x2", "C4"), ("20x0 + 9x2", "C5")]
)
@pytest.mark.parametrize("noise", [1e-12, 1e-11, 1e-10, 3e-10, 1e-9, 3e-9, 1e-8, 1e-7, 1e-6])
def test_nearly_orthogonal_matrices_of_high_multiplicity(spec: str, group: str, noise: float) -> None:
    # Noise splits eigenvalues that repeat into pairs whose imaginary parts are of its own size.
    representation = Representation.parse(spec, group)
    for seed in range(3):
        exact = disguised(representation, seed, orthogonal=True)
        generator = exact + noise * randn(*exact.shape, seed=seed + 50)
        blocks = analysis.block_diagonalise(generator, representation.group)
        assert blocks.representation == representation
        assert blocks.residual < 1e-9 + 1e4 * noise
        assert_reconstructs(blocks, generator, 1e-8)


@given(dim=st.integers(1, 24), group=groups(), seed=seeds)
def test_any_matrix_has_blocks(dim: int, group: Group, seed: int) -> None:
    steerer = Steerer.from_matrix(randn(dim, dim, seed=seed) * dim**-0.5, group)
    blocks = steerer.block_diagonalise()
    assert blocks.representation.dim == dim
    assert blocks.representation == blocks.representation.canonical()
    assert blocks.residual >= 0
    assert_reconstructs(blocks, steerer.generator(), 1e-6)
    # A conjugate pair whose nearest frequency is one-dimensional keeps its 2 x 2 block, so that look for those alone.
    off = blocks.matrix - torch.diag(blocks.matrix.diag())
    assert float(off.tril(-2).abs().max()) < 1e-6
    assert float(off.triu(2).abs().max()) < 1e-6
    beside = (off.diagonal(1).abs() > 1e-6) | (off.diagonal(-1).abs() > 1e-6)
    assert not bool((beside[1:] & beside[:-1]).any())


@pytest.mark.parametrize("order", [3, 5, 7, 9, 11])
def test_minus_one_is_not_admissible_for_odd_orders(order: int) -> None:
    nearest, residual = Steerer.from_matrix(-identity(4), f"C{order}").nearest_representation()
    assert str(nearest) == f"2x{order // 2}"  # the rotations next to a half turn
    assert residual == pytest.approx(2 * math.sin(math.pi / (2 * order)))


@pytest.mark.parametrize("order", [3, 5, 7])
def test_a_single_minus_one_for_odd_orders_counts_as_invariant(order: int) -> None:
    nearest, residual = Steerer.from_matrix(
        torch.diag(torch.tensor([1.0, 1.0, -1.0])), f"C{order}"
    ).nearest_representation()
    assert str(nearest) == "3x0"
    assert residual > 0.5


def test_normal_matrices_whose_eigenvalues_lie_awkwardly() -> None:
    # sqrt(2) and i agree in (real part + sqrt(2) imaginary part); so does any such pair for any one fixed combination.
    normal = torch.zeros(3, 3, dtype=torch.float64)
    normal[0, 0], normal[1, 2], normal[2, 1] = math.sqrt(2), -1, 1
    for seed in range(3):
        basis = random_orthogonal(3, seed)
        generator = basis @ normal @ basis.mT
        blocks = analysis.block_diagonalise(generator, SO2)
        assert str(blocks.representation) == "1x0 + 1x1"
        assert_reconstructs(blocks, generator)


@pytest.mark.parametrize("group", [SO2, Group(4)])
def test_the_zero_matrix(group: Group) -> None:
    blocks = analysis.block_diagonalise(torch.zeros(5, 5), group)
    assert str(blocks.representation) == "5x0"
    assert blocks.residual == 0


def jordan(eigenvalue: float, dim: int) -> Tensor:
    """Two equal eigenvalues with one eigenvector, beside ``dim - 2`` others."""
    matrix = torch.diag(torch.cat([torch.full((2,), eigenvalue), torch.linspace(2, 3, dim - 2)]))
    matrix[0, 1] = 1.0
    return matrix.double()


@pytest.mark.parametrize("group", [SO2, Group(4)], ids=str)
@pytest.mark.parametrize("dim", [2, 6])
@pytest.mark.parametrize("rotated", [False, True])
def test_matrices_that_cannot_be_diagonalised_are_refused(group: Group, dim: int, rotated: bool) -> None:
    matrix = jordan(0.0 if group.continuous else 1.0, dim)
    if rotated:  # the rounding splits the eigenvalue by about 1e-8
        basis = random_orthogonal(dim)
        matrix = basis @ matrix @ basis.mT
    steerer = Steerer.from_matrix(matrix, group)
    for analyse in (steerer.block_diagonalise, steerer.nearest_representation, lambda: steerer.reduced(dim)):
        with pytest.raises(ValueError, match="cannot be diagonalised"):
            analyse()
    if group.continuous:
        with pytest.raises(ValueError, match="cannot be diagonalised"):
            steerer.invariant_projector()


# Frequency 1 ----------------------------------------------------------------------------------------------------------


@given(
    group=st.just(SO2) | cyclic_groups().filter(lambda group: group.order != 2),
    pairs=st.integers(1, 8),
    seed=seeds,
    factor=st.floats(0.2, 5),
    orthogonal=st.booleans(),
)
def test_pairs_of_coordinates_rotate_with_the_image(
    group: Group, pairs: int, seed: int, factor: float, orthogonal: bool
) -> None:
    """In the new basis, which is orthonormal for the inner product that no rotation changes."""
    representation = Representation(group, ((pairs, 1),))
    exact = Steerer.from_matrix(disguised(representation, seed, orthogonal=orthogonal), group)
    steerer = Steerer.from_matrix(scaled(exact.generator(), group, factor), group)
    basis, angle = steerer.frequency1_basis(), a_rotation(group)
    assert basis.dtype == torch.float64
    assert_near(basis @ exact.matrix(angle), textbook_matrix(representation, angle) @ basis, 1e-8)
    rotations = (Group(5) if group.continuous else group).angles().tolist()  # which average as all do
    average = torch.stack([exact.matrix(t).mT @ exact.matrix(t) for t in rotations]).mean(dim=0)
    assert_near(basis.mT @ basis, average, 1e-8)
    if orthogonal:
        assert_near(basis @ basis.mT, identity(2 * pairs), 1e-8)


def test_the_sense_of_blocks_does_not_matter() -> None:
    steerer = Steerer.from_spec("3x1 + 2x-1")
    basis = steerer.frequency1_basis()
    assert_near(basis @ basis.mT, identity(10), 1e-9)
    expected = Representation.parse("5x1", "SO2").matrix(0.7)
    assert_near(basis @ steerer.matrix(0.7) @ basis.mT, expected, 1e-9)


@pytest.mark.parametrize("noise", [1e-6, 1e-3])
def test_matrices_near_frequency_1(noise: float) -> None:
    exact = disguised(Representation.parse("16x1", "SO2"), 3, orthogonal=True)
    basis = analysis.frequency1_basis(exact + noise * randn(32, 32) / 6, SO2)
    assert_near(basis @ basis.mT, identity(32), 10 * noise)
    rotated = basis @ torch.linalg.matrix_exp(0.7 * exact) @ basis.mT
    assert_near(rotated, Representation.parse("16x1", "SO2").matrix(0.7), 10 * noise)


@pytest.mark.parametrize(
    ("spec", "group", "nearest"),
    [("2x0 + 3x1", "SO2", r"2x0 \+ 3x1 of SO2"), ("4x2", "SO2", "4x2 of SO2"), ("3x1", "C2", "3x1 of C2")],
)
def test_other_frequencies_are_refused(spec: str, group: str, nearest: str) -> None:
    with pytest.raises(
        ValueError, match=f"not one of frequency 1 within 0.01: the nearest representation is {nearest}"
    ):
        Steerer.from_spec(spec, group).frequency1_basis()


# The exponential ------------------------------------------------------------------------------------------------------


@given(dim=st.integers(1, 16), angle=st.floats(-1, 7), seed=seeds)
def test_the_exponential_of_any_matrix(dim: int, angle: float, seed: int) -> None:
    """Up to a factor, which keeps it from growing."""
    generator = randn(dim, dim, seed=seed) * dim**-0.5
    found = analysis.exponential(generator)
    assume(found.sound)
    growth = float(torch.linalg.eigvals(generator).real.max())
    expected = torch.linalg.matrix_exp(angle * (generator - growth * identity(dim)))
    (actual,) = found.matrices(torch.tensor([angle], dtype=torch.float64))
    assert_near(actual, expected, 1e-9 * found.condition)
    description = randn(dim, seed=seed + 1)
    coordinates = found.move(found.inverse @ description, torch.tensor(angle, dtype=torch.float64))
    assert_near(found.columns @ coordinates, expected @ description, 1e-9 * found.condition)
    shifted = (generator - growth * identity(dim)) @ (expected @ description)
    assert_near(found.columns @ found.derivative(coordinates), shifted, 1e-8 * found.condition)
    assert float(found.growth.max()) == 0


@given(representation=representations(st.just(SO2)), seed=seeds)
def test_the_exponential_of_a_representation(representation: Representation, seed: int) -> None:
    found = analysis.exponential(disguised(representation, seed))
    frequencies = [abs(frequency) for frequency, size in representation.blocks() for _ in range(size)]
    assert found.sound
    assert found.residual < 1e-9
    assert sorted(found.frequency.abs().tolist()) == pytest.approx(sorted(frequencies), abs=1e-6)
    assert float(found.growth.abs().max()) < 1e-6
    exact = analysis.exponential(representation.generator())
    assert exact.rate == pytest.approx(max(frequencies))
    assert exact.condition == pytest.approx(1)


@pytest.mark.parametrize("rotated", [False, True])
def test_too_few_eigenvectors_are_told(rotated: bool) -> None:
    matrix = jordan(0.0, 6)
    if rotated:
        basis = random_orthogonal(6)
        matrix = basis @ matrix @ basis.mT
    found = analysis.exponential(matrix)
    assert not found.sound
    assert found.condition > analysis.MAX_CONDITION


# Eigenvalues ----------------------------------------------------------------------------------------------------------


@given(representation=representations(), seed=seeds)
def test_eigenvalues_of_a_matrix_are_those_of_its_representation(representation: Representation, seed: int) -> None:
    steerer = Steerer.from_matrix(disguised(representation, seed), representation.group)
    assert_same_multiset(steerer.eigenvalues(), representation.eigenvalues())


@given(dim=st.integers(1, 20), seed=seeds)
def test_eigenvalues_come_largest_first(dim: int, seed: int) -> None:
    values = analysis.eigenvalues(randn(dim, dim, seed=seed, dtype=torch.float32))
    assert values.dtype == torch.complex128
    assert bool((values.abs().diff() <= 1e-12).all())  # complex moduli differ in the last bit from call to call


# Invariants -----------------------------------------------------------------------------------------------------------


@given(representation=representations(), seed=seeds)
def test_the_invariant_projector_projects(representation: Representation, seed: int) -> None:
    steerer = Steerer.from_matrix(disguised(representation, seed), representation.group)
    projector, generator = steerer.invariant_projector(), steerer.generator()
    unchanged = torch.zeros_like(projector) if representation.group.continuous else projector
    assert projector.dtype == torch.float64
    assert_near(projector @ projector, projector, 1e-9)
    assert_near(projector @ generator, unchanged, 1e-9)
    assert_near(generator @ projector, unchanged, 1e-9)
    assert float(projector.trace()) == pytest.approx(representation.multiplicities().get(0, 0), abs=1e-9)


@given(representation=representations(), seed=seeds)
def test_the_invariant_projector_is_the_average_over_the_group(representation: Representation, seed: int) -> None:
    # Of SO(2), rotations by the multiples of 2 pi / 7 average frequencies 1 to 6 to zero, as the integral does.
    group = representation.group
    steerer = Steerer.from_matrix(disguised(representation, seed), group)
    rotations = (Group(7) if group.continuous else group).angles().tolist()
    average = torch.stack([steerer.matrix(rotation) for rotation in rotations]).mean(dim=0)
    assert_near(steerer.invariant_projector(), average, 1e-7)


@given(drawn=acting())
def test_invariants_of_fixed_steerers_are_the_zero_frequencies(drawn: Any) -> None:
    representation, (angle,) = drawn
    projector = Steerer.from_representation(representation).invariant_projector()
    zero = [float(frequency == 0) for frequency, size in representation.blocks() for _ in range(size)]
    assert_near(projector, torch.diag(torch.tensor(zero)), 1e-9)
    assert_near(projector @ textbook_matrix(representation, angle), projector, 1e-9)


@given(group=cyclic_groups(), data=st.data())
def test_invariants_of_permutations_are_means_over_cycles(group: Group, data: Any) -> None:
    permutation = data.draw(permutations_of(group))
    projector = Steerer.from_permutation(permutation, group).invariant_projector()
    vector = torch.arange(1.0, len(permutation) + 1, dtype=torch.float64)
    projected = projector @ vector
    assert_near(projected[permutation], projected, 1e-9)
    assert float(projected.sum()) == pytest.approx(float(vector.sum()))


@given(representation=representations(st.just(SO2)), seed=seeds)
def test_so2_invariants_withstand_noise(representation: Representation, seed: int) -> None:
    generator = disguised(representation, seed) + 1e-4 * randn(representation.dim, representation.dim, seed=seed)
    projector = analysis.invariant_projector(generator, SO2)
    assert_near(projector @ projector, projector, 1e-6)
    assert_near(projector @ generator, generator @ projector, 1e-6)
    assert float(projector.trace()) == pytest.approx(representation.multiplicities().get(0, 0), abs=1e-6)


# Reduction ------------------------------------------------------------------------------------------------------------


@st.composite
def important_and_not(draw: st.DrawFn) -> tuple[Tensor, Group, int]:
    """A generator with large and small eigenvalues in a random basis, and the dimension of the large ones."""
    group = draw(groups())
    large, small = (draw(representations_of(group, max_terms=3, max_multiplicity=2)) for _ in range(2))
    basis = random_basis(large.dim + small.dim, draw(seeds))
    together = torch.block_diag(large.generator(), scaled(small.generator(), group, 0.1))
    return torch.linalg.solve(basis, together @ basis), group, large.dim


def a_rotation(group: Group) -> float:
    return 2 * math.pi / (group.order or 9)


@given(drawn=important_and_not(), seed=seeds)
def test_reduction_keeps_the_large_eigenvalues(drawn: tuple[Tensor, Group, int], seed: int) -> None:
    generator, group, dim = drawn
    steerer = Steerer.from_matrix(generator, group)
    projection, reduced = steerer.reduced(dim)
    assert projection.shape == (dim, steerer.dim)
    assert (reduced.dim, reduced.group) == (dim, group)
    magnitudes = reduced.eigenvalues().real if group.continuous else reduced.eigenvalues().abs().log()
    assert_near(magnitudes, torch.zeros(dim), 1e-7)
    descriptions, angle = randn(4, steerer.dim, seed=seed), a_rotation(group)
    steered_then_projected = steerer.steer(descriptions, angle) @ projection.mT
    assert_near(reduced.steer(descriptions @ projection.mT, angle), steered_then_projected, 1e-7)


@given(drawn=important_and_not(), seed=seeds)
def test_reduction_keeps_cosines_in_the_span(drawn: tuple[Tensor, Group, int], seed: int) -> None:
    generator, group, dim = drawn
    projection, _ = Steerer.from_matrix(generator, group).reduced(dim)
    # What 24 full turns leave over lies in the span of the large eigenvectors: the small ones have died out.
    if group.order is None:
        survivors = torch.linalg.matrix_exp(24 * 2 * math.pi * generator)
    else:
        survivors = torch.linalg.matrix_power(generator, 24 * group.order)
    span = randn(5, len(generator), seed=seed) @ survivors.mT
    short = span @ projection.mT
    assert_near(short @ short.mT, span @ span.mT, 1e-6)


@given(representation=representations(), seed=seeds, data=st.data())
def test_reduction_to_any_dimension(representation: Representation, seed: int, data: Any) -> None:
    steerer = Steerer.from_matrix(disguised(representation, seed), representation.group)
    dim = data.draw(st.integers(2, steerer.dim)) if steerer.dim > 1 else 1
    projection, reduced = steerer.reduced(dim)
    kept = len(projection)
    assert kept in (dim, dim - 1)
    assert reduced.dim == kept
    assert not reduced.learnable
    descriptions, angle = randn(4, steerer.dim, seed=seed), a_rotation(representation.group)
    expected = steerer.steer(descriptions, angle) @ projection.mT
    assert_near(reduced.steer(descriptions @ projection.mT, angle), expected, 1e-7)
    assert int(torch.linalg.matrix_rank(projection)) == kept


def test_a_pair_is_not_torn_apart() -> None:
    for group in ("SO2", "C5"):
        steerer = Steerer.from_spec("3x1", group)
        assert [steerer.reduced(dim)[1].dim for dim in (2, 3, 4, 5, 6)] == [2, 2, 4, 4, 6]
        with pytest.raises(ValueError, match="dim must be at least 2 here"):
            steerer.reduced(1)


def test_reduction_to_everything_keeps_cosines() -> None:
    steerer = Steerer.random(12, "C4", generator=torch.Generator().manual_seed(0)).double()
    projection, reduced = steerer.reduced(12)
    assert_near(projection @ projection.mT, identity(12), 1e-9)
    assert_same_multiset(reduced.eigenvalues(), steerer.eigenvalues())


@pytest.mark.parametrize("dim", [0, -1, 17])
def test_dimensions_that_do_not_exist_are_refused(dim: int) -> None:
    with pytest.raises(ValueError, match=f"dim must be 1 to 16, got {dim}"):
        Steerer.spread(16).reduced(dim)
