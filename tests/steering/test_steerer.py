"""Steerers: how they are made, how they act, their files, and which way they rotate."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import (
    acting,
    angles_of,
    assert_near,
    assert_same_multiset,
    cyclic_groups,
    groups,
    permutations_of,
    randn,
    random_orthogonal,
    representations,
    seeds,
)
from steerers import _weights
from steerers._weights import WeightsError
from steerers.geometry import rotate_image, transform_points
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")

QUARTER = math.pi / 2
ROTATION = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
CYCLE = torch.tensor([[0.0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]], dtype=torch.float64)

dims = st.integers(1, 64)


def repeated(block: Tensor, times: int) -> Tensor:
    return torch.block_diag(*[block] * times)


# The paper's steerers -------------------------------------------------------------------------------------------------


def test_spread_256_is_the_papers() -> None:
    steerer = Steerer.spread(256)
    assert str(steerer.representation) == "40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6"
    pairs = [repeated(j * ROTATION, 18) for j in range(1, 7)]
    assert torch.equal(steerer.generator(), torch.block_diag(torch.zeros(40, 40, dtype=torch.float64), *pairs))


def test_perm_256_is_the_papers() -> None:
    steerer = Steerer.perm(256)
    assert steerer.group == Group(4)
    assert torch.equal(steerer.generator(), repeated(CYCLE, 64))
    assert str(steerer.representation) == "64x0 + 64x1 + 64x2"
    expected = torch.tensor([1, -1, 1j, -1j], dtype=torch.complex128).repeat(64)
    assert_same_multiset(steerer.eigenvalues(), expected)
    assert_same_multiset(torch.linalg.eigvals(steerer.generator()), expected)


@pytest.mark.parametrize("group", ["SO2", "C4"])
def test_freq1_and_inv_256_are_the_papers(group: str) -> None:
    assert_near(Steerer.freq1(256, group).generator(), repeated(ROTATION, 128), 1e-12)
    identity = torch.eye(256, dtype=torch.float64)
    assert torch.equal(Steerer.inv(256, group).matrix(QUARTER), identity)
    assert torch.equal(Steerer.inv(256, group).generator(), torch.zeros_like(identity) if group == "SO2" else identity)


@given(dim=dims, group=groups())
def test_inv_changes_nothing(dim: int, group: Group) -> None:
    steerer = Steerer.inv(dim, group)
    descriptions = randn(2, dim)
    assert (steerer.dim, steerer.group) == (dim, group)
    assert torch.equal(steerer.steer(descriptions, 2 * math.pi / (group.order or 7)), descriptions)


@given(half=dims, group=groups().filter(lambda group: group.order != 2))
def test_freq1_is_pairs_that_rotation_with_the_image(half: int, group: Group) -> None:
    steerer = Steerer.freq1(2 * half, group)
    angle = 2 * math.pi / (group.order or 7)
    c, s = math.cos(angle), math.sin(angle)
    assert (steerer.dim, steerer.group) == (2 * half, group)
    assert_near(steerer.matrix(angle), repeated(torch.tensor([[c, -s], [s, c]], dtype=torch.float64), half), 1e-12)


@given(cycles=st.integers(1, 20), group=cyclic_groups())
def test_perm_is_cycles_of_the_order(cycles: int, group: Group) -> None:
    assert group.order is not None
    steerer = Steerer.perm(cycles * group.order, group)
    descriptions = randn(3, steerer.dim)
    shifted = descriptions.view(3, cycles, group.order).roll(-1, dims=-1).flatten(1)
    assert (steerer.dim, steerer.group) == (cycles * group.order, group)
    assert torch.equal(steerer.steer(descriptions, 2 * math.pi / group.order), shifted)
    assert steerer.representation is not None
    expected = dict.fromkeys(range(group.order // 2 + 1), cycles)
    assert steerer.representation.multiplicities() == expected


@given(max_frequency=st.integers(1, 8), extra=st.integers(0, 100))
def test_spread_is_about_equal_parts(max_frequency: int, extra: int) -> None:
    dim = 2 * max_frequency + 2 + extra
    representation = Steerer.spread(dim, max_frequency).representation
    assert representation is not None
    assert representation.dim == dim
    counts = representation.multiplicities()
    assert list(counts) == list(range(max_frequency + 1))
    assert len({counts[j] for j in range(1, max_frequency + 1)}) == 1
    assert counts[1] == dim // (2 * max_frequency + 2)
    assert counts[0] >= 2 * counts[1]


@pytest.mark.parametrize("make", [Steerer.inv, Steerer.freq1, Steerer.perm, Steerer.spread, Steerer.random])
def test_dimensions_must_fit_into_memory(make: Callable[[Any], Steerer]) -> None:
    with pytest.raises(ValueError, match="dim must be at most 4096, got 1000000000"):
        make(10**9)


@pytest.mark.parametrize("make", [Steerer.inv, Steerer.freq1, Steerer.perm, Steerer.spread, Steerer.random])
@pytest.mark.parametrize("dim", [0, -4, 2.5, "8", None])
def test_dimensions_must_be_positive_integers(make: Callable[[Any], Steerer], dim: Any) -> None:
    with pytest.raises(ValueError, match=f"dim must be a positive integer, got {dim!r}"):
        make(dim)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Steerer.freq1(7), "dim must be even, got 7"),
        (lambda: Steerer.freq1(8, "C2"), "Freq1 needs a group with 2 x 2 blocks"),
        (lambda: Steerer.perm(255), "dim 255 is not a multiple"),
        (lambda: Steerer.perm(256, "C3"), "cycles of 3: dim 256 is not a multiple"),
        (lambda: Steerer.perm(256, "SO2"), "Perm represents a cyclic group"),
        (lambda: Steerer.spread(13), "frequencies up to 6 needs dim.*14.*, got 13"),
        (lambda: Steerer.spread(256, max_frequency=0), "max_frequency must be at least 1, got 0"),
        (lambda: Steerer.inv(8, "SO3"), "unknown group 'SO3'"),
        (lambda: Steerer.from_spec("40x0 + 18x1", dim=256), "has dimension 76"),
        (lambda: Steerer.from_spec("40x0 + 18y1"), "cannot read '18y1'"),
    ],
)
def test_what_cannot_be_made_is_explained(make: Callable[[], Steerer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Random and learnable -------------------------------------------------------------------------------------------------


@given(dim=dims, seed=seeds, group=groups())
def test_random_initialisation_is_bounded_and_reproducible(dim: int, seed: int, group: Group) -> None:
    def make() -> Steerer:
        return Steerer.random(dim, group, generator=torch.Generator().manual_seed(seed))

    steerer = make()
    weight = steerer.generator()
    assert steerer.learnable
    assert (steerer.dim, steerer.group) == (dim, group)
    assert weight.shape == (dim, dim)
    assert bool((weight.abs() <= dim**-0.5 * (1 + 1e-6)).all())
    assert torch.equal(weight, make().generator())


def test_random_initialisation_fills_its_range() -> None:
    weight = Steerer.random(256, generator=torch.Generator().manual_seed(0)).generator().detach() * 256**0.5
    assert float(weight.min()) < -0.99
    assert float(weight.max()) > 0.99
    assert abs(float(weight.mean())) < 0.02
    assert float(weight.var()) == pytest.approx(1 / 3, abs=0.01)


def test_random_initialisation_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first = Steerer.random(8, generator=torch.Generator().manual_seed(0))
    second = Steerer.random(8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first.generator(), second.generator())
    assert not Steerer.random(8, generator=torch.Generator(), learnable=False).learnable


LEARNABLE: list[Callable[[], Steerer]] = [
    lambda: Steerer.inv(16, learnable=True),
    lambda: Steerer.inv(16, "C3", learnable=True),
    lambda: Steerer.freq1(16, learnable=True),
    lambda: Steerer.freq1(16, "C5", learnable=True),
    lambda: Steerer.perm(16, learnable=True),
    lambda: Steerer.spread(16, learnable=True),
    lambda: Steerer.from_spec("2x0 + 3x-2 + 4x1", learnable=True),
    lambda: Steerer.from_permutation(torch.tensor([1, 0, 2, 3]), "C2", learnable=True),
    lambda: Steerer.from_matrix(random_orthogonal(16).float(), "C8", learnable=True),
    lambda: Steerer.random(16, "SO2", generator=torch.Generator().manual_seed(0)),
    lambda: Steerer.random(16, "C4", generator=torch.Generator().manual_seed(0)),
]


@pytest.mark.parametrize("make", LEARNABLE)
@pytest.mark.parametrize("many", [False, True])
def test_gradients_reach_the_parameter_through_steering(make: Callable[[], Steerer], many: bool) -> None:
    steerer = make()
    step = 2 * math.pi / (steerer.group.order or 8)
    (parameter,) = steerer.parameters()
    assert steerer.learnable
    assert parameter.shape == (steerer.dim, steerer.dim)
    assert steerer.representation is None
    angle = step * torch.arange(5) if many else step
    (steerer.steer(randn(5, steerer.dim, dtype=parameter.dtype), angle) ** 3).sum().backward()
    assert parameter.grad is not None
    assert bool(torch.isfinite(parameter.grad).all())
    assert float(parameter.grad.abs().max()) > 0


@pytest.mark.parametrize("group", ["SO2", "C4"])
def test_gradients_are_those_of_finite_differences(group: str) -> None:
    descriptions, angles = randn(3, 4), torch.tensor([QUARTER, 0.0, 3 * QUARTER])

    def steered(weight: Tensor) -> Tensor:
        steerer = Steerer.from_matrix(weight, group, learnable=True)
        return torch.func.functional_call(steerer, {"action.weight": weight}, (descriptions, angles))

    assert torch.autograd.gradcheck(steered, (0.5 * randn(4, 4, seed=1).requires_grad_(),))


@pytest.mark.parametrize("group", ["SO2", "C4"])
def test_a_learnable_steerer_trains_without_a_rotation(group: str) -> None:
    # Of a batch whose pairs all happen to have the same orientation nothing is learned, and backward() must not raise.
    steerer = Steerer.freq1(8, group, learnable=True)
    steerer.steer(randn(3, 8, dtype=torch.float32), 0.0).sum().backward()
    gradient = next(steerer.parameters()).grad
    assert gradient is None or not gradient.any()


@given(representation=representations(), data=st.data())
def test_learnable_starts_as_the_fixed_one(representation: Representation, data: Any) -> None:
    fixed = Steerer.from_representation(representation)
    learnable = Steerer.from_representation(representation, learnable=True)
    angle = data.draw(angles_of(representation.group))
    descriptions = randn(3, fixed.dim, dtype=torch.float32)
    assert learnable.generator().dtype == torch.get_default_dtype()
    assert not fixed.learnable
    assert not list(fixed.parameters())
    assert_near(learnable.steer(descriptions, angle), fixed.steer(descriptions, angle), 1e-3)


def test_from_matrix_copies_and_detaches() -> None:
    matrix = randn(4, 4).requires_grad_()
    steerer = Steerer.from_matrix(matrix, "C4")
    before = steerer.generator().clone()
    with torch.no_grad():
        matrix.zero_()
    assert torch.equal(steerer.generator(), before)
    assert not steerer.generator().requires_grad


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (torch.zeros(3, 4), ValueError, r"square matrix, got shape \(3, 4\)"),
        (torch.zeros(4), ValueError, r"square matrix, got shape \(4,\)"),
        (torch.zeros(2, 4, 4), ValueError, r"square matrix, got shape \(2, 4, 4\)"),
        (torch.zeros(0, 0), ValueError, r"square matrix, got shape \(0, 0\)"),
        (torch.full((3, 3), math.nan), ValueError, "NaN or infinite"),
        (torch.diag(torch.tensor([1.0, math.inf])), ValueError, "NaN or infinite"),
        (torch.eye(3, dtype=torch.long), TypeError, "floating-point matrix, got torch.int64"),
        (torch.eye(3, dtype=torch.complex64), TypeError, "floating-point matrix, got torch.complex64"),
    ],
)
def test_matrices_that_are_refused(matrix: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Steerer.from_matrix(matrix, "C4")


# Steering -------------------------------------------------------------------------------------------------------------


@given(drawn=acting(), seed=seeds)
def test_block_form_agrees_with_the_matrix(drawn: Any, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    representation, (angle,) = drawn
    steerer = Steerer.from_representation(representation)
    descriptions = randn(2, 3, steerer.dim, seed=seed, dtype=dtype)
    steered = steerer.steer(descriptions, angle)
    assert steered.dtype == dtype
    assert_near(steered, descriptions @ representation.matrix(angle, dtype).mT, tolerance)
    assert_near(steerer.matrix(angle), representation.matrix(angle), 1e-12)
    assert_near(steerer(descriptions, angle), steered, 0)
    assert_near(steered.norm(dim=-1), descriptions.norm(dim=-1), tolerance)


@given(drawn=acting(), seed=seeds)
def test_block_form_agrees_with_the_dense_generator(
    drawn: Any, seed: int, dtype: torch.dtype, tolerance: float
) -> None:
    representation, (angle,) = drawn
    order = representation.group.order
    steerer = Steerer.from_representation(representation)
    generator = steerer.generator().to(dtype)
    if order is None:
        dense = torch.linalg.matrix_exp(angle * generator)
    else:
        dense = torch.linalg.matrix_power(generator, round(angle * order / (2 * math.pi)) % order)
    descriptions = randn(3, steerer.dim, seed=seed, dtype=dtype)
    steered = steerer.steer(descriptions, angle)
    assert_near(steered, descriptions @ dense.mT, tolerance)
    learned = Steerer.from_matrix(generator, representation.group)
    assert_near(learned.steer(descriptions, angle), steered, tolerance)


@given(drawn=acting(count=2), seed=seeds)
def test_steering_twice_is_steering_by_the_sum(drawn: Any, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    representation, (first, second) = drawn
    steerer = Steerer.from_representation(representation)
    descriptions = randn(3, steerer.dim, seed=seed, dtype=dtype)
    twice = steerer.steer(steerer.steer(descriptions, first), second)
    assert_near(twice, steerer.steer(descriptions, first + second), tolerance)


def three_kinds(representation: Representation, permutation: Tensor) -> list[Steerer]:
    """Blocks, a matrix, and for a cyclic group a permutation."""
    kinds = [
        Steerer.from_representation(representation),
        Steerer.from_matrix(representation.generator(), representation.group),
        Steerer.from_representation(representation, learnable=True).double(),
    ]
    if not representation.group.continuous:
        kinds.append(Steerer.from_permutation(permutation, representation.group))
    return kinds


@given(representation=representations(), data=st.data(), seed=seeds)
def test_an_angle_for_each_description_is_a_loop(representation: Representation, data: Any, seed: int) -> None:
    group = representation.group
    permutation = data.draw(permutations_of(group)) if not group.continuous else torch.arange(1)
    angles = [data.draw(angles_of(group)) for _ in range(6)]
    for steerer in three_kinds(representation, permutation):
        descriptions = randn(6, steerer.dim, seed=seed)
        expected = torch.stack([steerer.steer(d, angle) for d, angle in zip(descriptions, angles, strict=True)])
        per_description = torch.tensor(angles, dtype=torch.float64)
        assert_near(steerer.steer(descriptions, per_description), expected, 1e-9)
        grid = steerer.steer(descriptions.view(2, 3, -1), per_description.view(2, 3))
        assert_near(grid, expected.view(2, 3, -1), 1e-9)
        every = steerer.steer(descriptions, per_description[:, None])  # every rotation of every description
        assert_near(every, torch.stack([steerer.steer(descriptions, angle) for angle in angles]), 1e-9)


KINDS: dict[str, Callable[[], Steerer]] = {
    "blocks": lambda: Steerer.freq1(8),
    "cyclic blocks": lambda: Steerer.freq1(8, "C4"),
    "permutation": lambda: Steerer.perm(8),
    "matrix": lambda: Steerer.from_matrix(randn(8, 8), "SO2"),
    "cyclic matrix": lambda: Steerer.from_matrix(random_orthogonal(8), "C4"),
    "learnable": lambda: Steerer.freq1(8, learnable=True),
    "cyclic learnable": lambda: Steerer.perm(8, learnable=True),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
every_cyclic_kind = pytest.mark.parametrize(
    "make",
    [KINDS[kind] for kind in ("cyclic blocks", "permutation", "cyclic matrix")],
    ids=["blocks", "gather", "matrix"],
)


@every_kind
def test_shapes_broadcast_alike_for_every_kind(make: Callable[[], Steerer]) -> None:
    steerer, descriptions = make(), randn(3, 8)
    assert steerer.steer(descriptions[0], QUARTER).shape == (8,)
    assert steerer.steer(descriptions, torch.tensor(QUARTER)).shape == (3, 8)
    assert steerer.steer(descriptions, torch.full((3,), QUARTER)).shape == (3, 8)
    assert steerer.steer(descriptions[0], torch.full((5,), QUARTER)).shape == (5, 8)
    assert steerer.steer(descriptions, torch.full((5, 1), QUARTER)).shape == (5, 3, 8)
    assert steerer.steer(descriptions, torch.full((1, 1), QUARTER)).shape == (1, 3, 8)
    assert steerer.steer(descriptions, QUARTER * torch.arange(5)[:, None]).shape == (5, 3, 8)


@every_kind
def test_no_descriptions_give_none(make: Callable[[], Steerer]) -> None:
    steerer = make()
    assert steerer.steer(torch.zeros(0, 8), QUARTER).shape == (0, 8)
    assert steerer.steer(torch.zeros(0, 8), torch.zeros(0)).shape == (0, 8)


@every_kind
def test_angles_that_do_not_fit_the_descriptions_are_refused(make: Callable[[], Steerer]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        make().steer(randn(3, 8), torch.full((7,), QUARTER))


@every_kind
def test_descriptions_of_another_length_are_refused(make: Callable[[], Steerer]) -> None:
    with pytest.raises(ValueError, match="acts on descriptions of length 8, got 9"):
        make().steer(torch.zeros(3, 9), 0.0)


@every_cyclic_kind
@pytest.mark.parametrize("angle", [0.5, math.nan, math.inf])
def test_rotations_outside_a_cyclic_group_are_refused(make: Callable[[], Steerer], angle: float) -> None:
    with pytest.raises(ValueError, match=r"C4 rotates by|finite|nan|inf"):
        make().steer(torch.zeros(3, 8), angle)
    with pytest.raises(ValueError, match=r"C4 rotates by|finite|nan|inf"):
        make().steer(torch.zeros(3, 8), torch.tensor([0.0, QUARTER, angle]))


@pytest.mark.parametrize("spec", ["4x1", "2x0 + 3x2"])
def test_whole_numbers_are_not_steered_to_nonsense(spec: str) -> None:
    with pytest.raises(TypeError, match="float"):
        Steerer.from_spec(spec).steer(torch.ones(3, 8, dtype=torch.long), 1.0)


# O(D) -----------------------------------------------------------------------------------------------------------------


class NoMatrices(TorchDispatchMode):
    """Fails on any matrix product (unless ``products``), and on any tensor of ``limit`` elements or more."""

    FORBIDDEN = frozenset({"mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "linalg_matrix_exp"})

    def __init__(self, limit: int, *, products: bool = False) -> None:
        super().__init__()
        self.limit, self.products = limit, products
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.seen.append(name)
        if name in self.FORBIDDEN and not self.products:
            raise AssertionError(f"matrix product {name}")
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.numel() >= self.limit:
                raise AssertionError(f"{name} made a tensor of shape {tuple(tensor.shape)}")
        return result


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steerer.spread(256),
        lambda: Steerer.freq1(256),
        lambda: Steerer.inv(256),
        lambda: Steerer.freq1(256, "C8"),
        lambda: Steerer.perm(256),
        lambda: Steerer.perm(256, "C8"),
        lambda: Steerer.spread(256).discretised(8),
        lambda: Steerer.perm(256).discretised(2),
    ],
)
def test_fixed_steerers_never_form_a_square_matrix(make: Callable[[], Steerer]) -> None:
    steerer, descriptions = make(), randn(5, 256)
    angles = torch.arange(5) * math.pi
    with NoMatrices(limit=256 * 256) as mode:
        steerer.steer(descriptions, math.pi)
        steerer.steer(descriptions, angles)
    assert mode.seen


def test_the_watch_for_matrix_products_sees_them() -> None:
    for make in (lambda: Steerer.spread(64, learnable=True), lambda: Steerer.perm(64, learnable=True)):
        steerer = make()
        with pytest.raises(AssertionError), NoMatrices(limit=64 * 64):
            steerer.steer(randn(5, 64, dtype=torch.float32), math.pi)


def test_learned_steerers_share_one_matrix_among_the_descriptions_of_a_rotation() -> None:
    many, dim = 64, 16
    for group in ("SO2", "C4"):
        steerer = Steerer.freq1(dim, group, learnable=True)
        with NoMatrices(limit=many * dim * dim, products=True):
            steerer.steer(randn(many, dim, dtype=torch.float32), QUARTER * (torch.arange(many) % 4))


# Discretisation -------------------------------------------------------------------------------------------------------


@given(representation=representations(st.just(Group(None))), order=st.integers(2, 12), k=st.integers(-12, 12))
def test_discretised_so2_acts_alike(representation: Representation, order: int, k: int) -> None:
    descriptions, angle = randn(3, representation.dim), k * 2 * math.pi / order
    for whole in three_kinds(representation, torch.arange(1)):
        part = whole.discretised(order)
        assert part.group == Group(order)
        assert not part.learnable
        assert not part.steer(descriptions, angle).requires_grad
        # A matrix is exponentiated once and then multiplied: rounding grows with the power.
        assert_near(part.steer(descriptions, angle), whole.steer(descriptions, angle % (2 * math.pi)).detach(), 1e-6)
        with pytest.raises(ValueError, match=f"C{order} rotates by multiples"):
            part.steer(descriptions, math.pi / order)


@given(order=st.integers(2, 6), factor=st.integers(1, 4), data=st.data())
def test_discretised_cyclic_groups_act_alike(order: int, factor: int, data: Any) -> None:
    group = Group(order * factor)
    representation = data.draw(representations(st.just(group)))
    permutation = data.draw(permutations_of(group))
    for whole in three_kinds(representation, permutation):
        part = whole.discretised(order)
        descriptions = randn(3, whole.dim)
        assert part.group == Group(order)
        assert not part.learnable
        for angle in part.group.angles().tolist():
            assert_near(part.steer(descriptions, angle), whole.steer(descriptions, angle).detach(), 1e-9)


@every_cyclic_kind
@pytest.mark.parametrize("order", [3, 8])
def test_discretisation_to_no_subgroup_is_refused(make: Callable[[], Steerer], order: int) -> None:
    with pytest.raises(ValueError, match=f"C{order} is not a subgroup of C4"):
        make().discretised(order)


@every_kind
def test_discretisation_below_two_is_refused(make: Callable[[], Steerer]) -> None:
    with pytest.raises(ValueError, match="at least 2, got 1"):
        make().discretised(1)


# Permutations ---------------------------------------------------------------------------------------------------------


@given(group=cyclic_groups(), data=st.data(), seed=seeds)
def test_permutations_agree_with_their_matrix_and_their_fourier_blocks(
    group: Group, data: Any, seed: int, dtype: torch.dtype, tolerance: float
) -> None:
    permutation = data.draw(permutations_of(group))
    steerer = Steerer.from_permutation(permutation, group)
    assert steerer.representation is not None
    assert steerer.representation.dim == steerer.dim == len(permutation)
    descriptions = randn(4, steerer.dim, seed=seed, dtype=dtype)
    blocks = Steerer.from_representation(steerer.representation)
    assert torch.equal(steerer.steer(descriptions, 2 * math.pi / (group.order or 0)), descriptions[:, permutation])
    for k, angle in enumerate(group.angles().tolist()):
        steered = steerer.steer(descriptions, angle)
        dense = torch.linalg.matrix_power(steerer.generator(), k).to(dtype)
        assert_near(steered, descriptions @ dense.mT, tolerance)
        assert_near(steerer.to_blocks(steered), blocks.steer(steerer.to_blocks(descriptions), angle), tolerance)
    grams = [d @ d.mT for d in (descriptions, steerer.to_blocks(descriptions))]
    assert_near(grams[0], grams[1], tolerance)
    assert_same_multiset(torch.linalg.eigvals(steerer.generator()), steerer.eigenvalues())


@pytest.mark.parametrize(
    ("permutation", "group", "message"),
    [
        ([0, 0, 1], "C2", "each of the numbers 0 to D - 1 once"),
        ([1, 2, 3], "C3", "each of the numbers 0 to D - 1 once"),
        ([[0, 1]], "C2", "each of the numbers 0 to D - 1 once"),
        ([1, 2, 0], "C2", "power 2 is not the identity, so it does not represent C2"),
        ([1, 2, 3, 0], "C6", "power 6 is not the identity"),
        ([1, 0], "SO2", "represents a cyclic group, not SO"),
    ],
)
def test_permutations_that_represent_nothing_are_refused(permutation: Any, group: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Steerer.from_permutation(torch.tensor(permutation), group)


def test_arrays_are_taken_as_tensors_are() -> None:
    matrix, permutation = np.eye(4)[::-1], np.array([1, 2, 3, 0])
    fixed, learned = Steerer.from_permutation(permutation, "C4"), Steerer.from_matrix(matrix, "C2")
    np.testing.assert_array_equal(learned.generator().numpy(), matrix)
    descriptions, angles = np.arange(8.0).reshape(2, 4).astype(">f4"), np.array([0.0, math.pi / 2])
    descriptions.flags.writeable = False
    expected = fixed.steer(torch.tensor(descriptions.tolist()), torch.from_numpy(angles))
    assert torch.equal(fixed.steer(descriptions, angles), expected)
    assert torch.equal(fixed.steer(descriptions, np.float32(0)), expected.new_tensor(descriptions.tolist()))


@pytest.mark.parametrize("wrong", ["abc", None, [[1.0] * 16], np.array(["a"]), object()])
def test_what_are_no_numbers_is_said(wrong: Any) -> None:
    steerer, what = (
        Steerer.spread(16),
        r"must be a tensor or a NumPy array of numbers, got (str|None|list|an array|object)",
    )
    for call in (
        lambda: steerer.steer(wrong, 0.1),
        lambda: steerer.steer(torch.zeros(2, 16), wrong),
        lambda: Steerer.from_matrix(wrong, "C4"),
        lambda: Steerer.from_permutation(wrong, "C4"),
    ):
        with pytest.raises(TypeError, match=what):
            call()
    with pytest.raises(ValueError, match="acts on descriptions of length 16, got 0"):
        steerer.steer(torch.tensor(1.0), 0.1)


def test_permutations_with_fractions_are_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        Steerer.from_permutation(torch.tensor([1.5, 0.2]), "C2")


def test_blocks_are_their_own_blocks_and_matrices_have_none() -> None:
    descriptions = randn(3, 16)
    assert torch.equal(Steerer.spread(16).to_blocks(descriptions), descriptions)
    with pytest.raises(ValueError, match="no exact blocks"):
        Steerer.spread(16, learnable=True).to_blocks(descriptions)


# What it says of itself -----------------------------------------------------------------------------------------------


def test_orthogonal_where_lengths_are_kept() -> None:
    assert Steerer.spread(16).orthogonal
    assert Steerer.perm(16).orthogonal
    assert Steerer.freq1(16, learnable=True).orthogonal
    assert Steerer.perm(16, learnable=True).orthogonal
    assert Steerer.from_matrix(random_orthogonal(16), "C4").orthogonal
    assert not Steerer.from_matrix(2 * torch.eye(4), "C4").orthogonal
    assert not Steerer.from_matrix(torch.eye(4), "SO2").orthogonal
    assert not Steerer.random(16, generator=torch.Generator().manual_seed(0)).orthogonal


def test_repr_tells_what_it_is() -> None:
    assert '"8x1", group=C4, learnable=False' in repr(Steerer.freq1(16, "C4"))
    assert "16 x 16 matrix, group=SO2, learnable=True" in repr(Steerer.spread(16, learnable=True))


def test_fixed_steerers_take_part_in_modules() -> None:
    model = torch.nn.ModuleDict({"blocks": Steerer.spread(16), "permutation": Steerer.perm(16)})
    assert not list(model.parameters())
    assert not model.state_dict()
    descriptions = randn(2, 16)
    expected = Steerer.spread(16).steer(descriptions, 1.0)
    assert_near(model.to(torch.float32)["blocks"](descriptions, 1.0), expected, 1e-12)


# Files ----------------------------------------------------------------------------------------------------------------

SAVED: dict[str, Callable[[], Steerer]] = {
    "blocks": lambda: Steerer.spread(16),
    "negative frequencies": lambda: Steerer.from_spec("3x0 + 2x-5 + 1x2"),
    "cyclic blocks": lambda: Steerer.from_spec("2x2 + 1x0 + 3x5", "C7"),
    "permutation": lambda: Steerer.perm(12, "C3"),
    "matrix": lambda: Steerer.from_matrix(randn(6, 6), "SO2"),
    "matrix float32": lambda: Steerer.from_matrix(random_orthogonal(6).float(), "C4"),
    "learnable": lambda: Steerer.perm(8, learnable=True),
    "random": lambda: Steerer.random(8, generator=torch.Generator().manual_seed(0)),
    "discretised": lambda: Steerer.spread(16).discretised(8),
    "discretised matrix": lambda: Steerer.spread(16, learnable=True).discretised(8),
}


@pytest.mark.parametrize("kind", SAVED)
def test_files_bring_every_kind_back(kind: str, tmp_path: Path) -> None:
    steerer, path = SAVED[kind](), tmp_path / "steerer.safetensors"
    steerer.save(path, {"licence": "MIT", "steerer.kind": "must not win"})
    again = Steerer.load(str(path))
    assert type(again.action) is type(steerer.action)
    assert again.representation == steerer.representation
    assert (again.group, again.dim, again.learnable) == (steerer.group, steerer.dim, steerer.learnable)
    assert again.generator().dtype == steerer.generator().dtype
    assert torch.equal(again.generator(), steerer.generator())
    descriptions = randn(3, steerer.dim)
    angle = 2 * math.pi / (steerer.group.order or 7)
    assert torch.equal(again.steer(descriptions, angle), steerer.steer(descriptions, angle))
    assert _weights.load(path)[1]["licence"] == "MIT"


@pytest.mark.parametrize("kind", SAVED)
def test_tampered_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    SAVED[kind]().save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises((WeightsError, ValueError), match=r"steerer\.safetensors"):
        Steerer.load(path)


@pytest.mark.parametrize("content", [None, b"", b"not a file of tensors", bytes(64)])
def test_files_that_are_missing_or_something_else_are_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((WeightsError, ValueError), match=r"steerer\.safetensors"):
        Steerer.load(path)


def test_files_cut_short_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    Steerer.perm(16).save(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises((WeightsError, ValueError), match=r"steerer\.safetensors"):
        Steerer.load(path)


def test_files_without_a_steerer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    _weights.save(path, {"layer": torch.zeros(3)}, {"model": "other"})
    with pytest.raises(ValueError, match=r"other.safetensors does not hold a steerer: its metadata names no steerer"):
        Steerer.load(path)


@pytest.mark.parametrize(
    ("kind", "tensors", "metadata", "reason"),
    [
        ("blocks", {}, {"steerer.dim": "17"}, "says dimension 17, its contents 16"),
        ("blocks", {}, {"steerer.dim": "many"}, "many"),
        ("blocks", {}, {"steerer.kind": "tensor"}, "unknown kind of steerer 'tensor'"),
        ("blocks", {}, {"steerer.group": "SO3"}, "unknown group 'SO3'"),
        ("blocks", {}, {"steerer.group": "C4"}, "frequency in '1x4' must be 0 to 3 for C4"),
        ("blocks", {}, {"steerer.spec": "4x0 + y"}, "cannot read 'y'"),
        ("blocks", {}, {"steerer.spec": "10x0 + 3x1"}, "frequenc|spec|contradict"),
        ("blocks", {"steerer.frequencies": torch.zeros(16, dtype=torch.long)}, {}, "frequenc|spec|contradict"),
        ("blocks", {}, {"steerer.kind": "permutation"}, "steerer.permutation"),
        ("permutation", {}, {"steerer.group": "C4"}, "does not represent C4"),
        ("permutation", {}, {"steerer.group": "SO2"}, "not SO"),
        ("permutation", {"steerer.permutation": torch.zeros(12, dtype=torch.long)}, {}, "each of the numbers"),
        ("permutation", {}, {"steerer.kind": "matrix"}, "steerer.generator"),
        ("matrix", {"steerer.generator": torch.full((6, 6), math.nan)}, {}, "NaN or infinite"),
        ("matrix", {"steerer.generator": torch.zeros(6, 5)}, {}, "square matrix"),
        ("matrix", {"steerer.generator": torch.zeros(5, 5)}, {}, "says dimension 6, its contents 5"),
        ("matrix", {"steerer.generator": torch.zeros(6, 6, dtype=torch.long)}, {}, "floating-point"),
        ("matrix", {}, {"steerer.group": ""}, "unknown group ''"),
        ("matrix", {}, {"steerer.group": "C1000000000"}, "order of a cyclic group must be at most 4096"),
        ("permutation", {}, {"steerer.group": "C1000000000"}, "order of a cyclic group must be at most 4096"),
        ("blocks", {}, {"steerer.spec": "300000000x1"}, "dim must be at most 4096, got 600000000"),
        ("blocks", {}, {"steerer.spec": "1x1000000000000000000000"}, "frequency in .* must be -512 to 512"),
        ("matrix", {"steerer.generator": torch.zeros(4097, 4097).bool()}, {}, "dim must be at most 4096, got 4097"),
        ("permutation", {"steerer.permutation": torch.arange(4097)}, {}, "dim must be at most 4096, got 4097"),
        *(
            (kind, {f"steerer.{name}": values.to(dtype)}, {}, reason)
            for dtype in (torch.bool, torch.int8, torch.uint16, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)
            for kind, name, values, reason in (
                ("matrix", "generator", torch.eye(6), "needs a 16, 32 or 64-bit floating-point matrix"),
                ("permutation", "permutation", torch.ones(12), "must hold"),
                ("blocks", "frequencies", torch.zeros(6), "contradict"),
            )
        ),
    ],
)
def test_files_whose_parts_contradict_are_refused(
    kind: str, tensors: dict[str, Tensor], metadata: dict[str, str], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "steerer.safetensors"
    saved_tensors, saved_metadata = SAVED[kind]().export()
    _weights.save(path, saved_tensors | tensors, saved_metadata | metadata)
    with pytest.raises(ValueError, match=f"steerer.safetensors does not hold a steerer: .*({reason})"):
        Steerer.load(path)


@pytest.mark.parametrize("missing", ["steerer.group", "steerer.dim", "steerer.spec"])
def test_files_that_lack_a_part_name_it(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    tensors, metadata = Steerer.spread(16).export()
    del metadata[missing]
    _weights.save(path, tensors, metadata)
    with pytest.raises(ValueError, match=f"steerer.safetensors does not hold a steerer: .*{missing}"):
        Steerer.load(path)


# Files of others ------------------------------------------------------------------------------------------------------

PUBLISHED = randn(8, 8, dtype=torch.float32)
FORMS: dict[str, Callable[[], Any]] = {
    "bare": lambda: PUBLISHED,
    "parameter": lambda: torch.nn.Parameter(PUBLISHED),
    "weight": lambda: {"weight": PUBLISHED},
    "linear": lambda: OrderedDict(weight=PUBLISHED, bias=torch.zeros(8)),
    "wrapped": lambda: {"steerer.weight": PUBLISHED},
    "beside others": lambda: {"net.weight": torch.zeros(8, 8), "net.bias": torch.ones(8), "steerer.weight": PUBLISHED},
    "generator": lambda: {"generator": PUBLISHED, "order": 4},
    "checkpoint": lambda: {
        "model": {"encoder.layers.0.weight": torch.zeros(8, 8)},
        "n": 8,
        "optimizer": {"state": {}},
        "lr_scheduler": {"last_epoch": 3},
        "steerer": {"generator": PUBLISHED},
    },
    "checkpoint, bare": lambda: {"model": {}, "steerer": PUBLISHED},
    "convolution": lambda: {"weight": PUBLISHED[:, :, None, None]},
    "bare convolution": lambda: PUBLISHED[:, :, None, None],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", [".pth", ".pt", ".PTH", ""])
def test_published_files(form: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"B_C4_steerer_setting_A{ending}"
    torch.save(FORMS[form](), path)
    steerer = Steerer.load(path)
    assert (str(steerer.group), steerer.dim, steerer.learnable) == ("C4", 8, False)
    assert torch.equal(steerer.generator(), PUBLISHED)
    assert torch.equal(steerer.steer(PUBLISHED, QUARTER), torch.nn.functional.linear(PUBLISHED, PUBLISHED))
    assert Steerer.load(str(path), group="SO2").group == Group(None)  # what is given goes before the name


def test_published_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "xfeat_C8_steerer.safetensors"
    save_file({"steerer.weight": PUBLISHED[:, :, None, None].contiguous()}, path)
    steerer = Steerer.load(path)
    assert str(steerer.group) == "C8"
    assert torch.equal(steerer.generator(), PUBLISHED)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_published_types(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.save(PUBLISHED.to(dtype), tmp_path / "c4.pth")
    generator = Steerer.load(tmp_path / "c4.pth").generator()
    assert generator.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(generator, PUBLISHED.to(dtype).to(generator.dtype))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("B_C4_steerer_setting_A", "C4"),
        ("B_SO2_Spread_steerer_setting_B", "SO2"),
        ("steerer-c8", "C8"),
        ("so2", "SO2"),
        ("C12", "C12"),
        ("C4.C4", "C4"),
    ],
)
def test_groups_in_names(name: str, group: str, tmp_path: Path) -> None:
    torch.save(PUBLISHED, tmp_path / f"{name}.pth")
    assert str(Steerer.load(tmp_path / f"{name}.pth").group) == group


@pytest.mark.parametrize("name", ["steerer", "C4andmore", "ABC4", "SO2_as_C8", "C1", "C", "SO3", "C04"])
def test_names_without_a_group(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.pth"
    torch.save(PUBLISHED, path)
    with pytest.raises(
        ValueError, match=rf"{name}\.pth: a matrix that does not say of which group .* give group, such as C4"
    ):
        Steerer.load(path)
    assert str(Steerer.load(path, group="C4").group) == "C4"
    with pytest.raises(ValueError, match="unknown group 'D4'"):
        Steerer.load(path, group="D4")


def test_a_group_that_contradicts_the_file(tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    Steerer.perm(8).save(path)
    assert Steerer.load(path, group="C_4").group == Group(4)
    with pytest.raises(ValueError, match=r"steerer\.safetensors: a steerer of C4, but the group shall be SO2"):
        Steerer.load(path, group="SO2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(8, 7), r"not a steerer: a tensor of shape \(8, 7\), not a square matrix"),
        (torch.zeros(8), "not a steerer: a tensor of shape"),
        (torch.zeros(8, 8, 3, 3), r"not a steerer: a tensor of shape \(8, 8, 3, 3\)"),
        (torch.zeros(8, 8, dtype=torch.long), "does not hold a steerer: .*floating-point"),
        (torch.full((8, 8), math.nan), "does not hold a steerer: .*NaN"),
        ({}, "not a steerer: an empty dict"),
        ([PUBLISHED], "not a steerer: an object of type list"),
        ({"weight": PUBLISHED, "bias": torch.ones(8)}, "'weight' comes with a bias, and a steerer is linear"),
        ({"steerer.weight": PUBLISHED, "steerer.bias": torch.ones(8)}, "'steerer.weight' comes with a bias"),
        (
            {f"encoder.layers.{k}.weight": torch.zeros(8, 8) for k in range(308)},
            r"a state dict of 308 tensors, such as encoder\.layers\.0\.weight: the weights of a network",
        ),
        ({"model": {"w": PUBLISHED}, "optimizer": {}}, "not a steerer: a dict with the entries 'model', 'optimizer'"),
        ({"steerer": {"a": PUBLISHED, "b": PUBLISHED}}, "not a steerer"),
        ({"steerer.a": PUBLISHED, "steerer.b": PUBLISHED}, "a state dict of 2 tensors, such as steerer.a"),
    ],
)
def test_files_of_others_that_hold_something_else(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "B_C4.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"B_C4\.pth.* {message}"):
        Steerer.load(path)


@pytest.mark.parametrize("ending", ["pth", "jpg", "png", "tif"])
def test_an_image_is_no_steerer(ending: str, tmp_path: Path) -> None:
    path, kind = tmp_path / f"C4.{ending}", {"pth": "JPEG", "jpg": "JPEG", "png": "PNG", "tif": "TIFF"}[ending]
    PIL.Image.new("RGB", (8, 8)).save(path, format=kind)
    with pytest.raises(WeightsError, match=rf"C4\.{ending}: an image \({kind}\), not a file of tensors"):
        Steerer.load(path)


@pytest.mark.parametrize("content", [b"", b"0 1\n-1 0\n", bytes(64)])
def test_what_torch_did_not_save(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "C4.txt"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"C4\.txt: .*not a (PyTorch file|file of tensors)"):
        Steerer.load(path)


# The exponential ------------------------------------------------------------------------------------------------------


def test_the_exponential_follows_the_generator() -> None:
    steerer = Steerer.spread(16, max_frequency=3, learnable=True)
    first = steerer.exponential()
    assert steerer.exponential() is first
    with torch.no_grad():
        steerer.generator().mul_(2)
    second = steerer.exponential()
    assert second is not first
    assert second.rate == pytest.approx(2 * first.rate)
    steerer.load_state_dict(Steerer.spread(16, max_frequency=3, learnable=True).state_dict())
    assert steerer.exponential().rate == pytest.approx(first.rate)
    with pytest.raises(ValueError, match="a C4 steerer has single rotations"):
        Steerer.perm(16).exponential()


# Which way it rotates -------------------------------------------------------------------------------------------------
#
# A descriptor that is equivariant by construction, as the witness of the sign convention. With phi the angle of a pixel
# about the keypoint, counter-clockwise as seen (so y is taken upwards), the coefficient of frequency j on a ring is
#
#     z_j(I) = sum over pixels p of the ring: I(p) exp(+i j phi(p)),
#
# real and imaginary part being the two coordinates. Rotate the image counter-clockwise by t: the value at p moves to
# the pixel whose angle is phi(p) + t, hence
#
#     z_j(I rotated) = sum of I(p) exp(+i j (phi(p) + t)) = exp(i j t) z_j(I),
#
# and multiplication by exp(i j t) is the rotation [[cos jt, -sin jt], [sin jt, cos jt]] of (real, imaginary): steering
# by t. With exp(-i j phi), the sign of the usual Fourier transform, the pair would rotate the other way: frequency -j.

FREQUENCIES = [0, 1, 2, 3]


def ring_descriptions(image: Tensor, keypoints: Tensor, radius: int = 3, sense: int = 1) -> Tensor:
    """(N, D) Fourier coefficients, frequency by frequency, along the rings of equal distance about (x, y) pixels."""
    offsets = torch.arange(-radius, radius + 1)
    right, up = torch.meshgrid(offsets, offsets.flip(0), indexing="xy")  # (2 radius + 1,) squared, as seen
    phi = torch.atan2(up.double(), right.double())
    rings = [right**2 + up**2 == r2 for r2 in (1, 2, 4, 5, 9, 13)]
    described = []
    for x, y in keypoints.long().tolist():
        patch = image[0, y - radius : y + radius + 1, x - radius : x + radius + 1].double()
        coordinates = []
        for j in FREQUENCIES:
            for ring in rings:
                value = (patch[ring] * torch.exp(1j * sense * j * phi[ring])).sum()
                coordinates += [value.real] if j == 0 else [value.real, value.imag]
        described.append(torch.stack(coordinates))
    return torch.stack(described).to(image.dtype)


RINGS = "6x0 + 6x1 + 6x2 + 6x3"


@given(seed=seeds, k=st.integers(-4, 4))
def test_steering_is_torch_rot90(seed: int, k: int, dtype: torch.dtype, tolerance: float) -> None:
    image, centre = randn(1, 7, 7, seed=seed, dtype=dtype), torch.tensor([[3, 3]])
    steerer = Steerer.from_spec(RINGS)
    described = ring_descriptions(image, centre)
    rotated = ring_descriptions(torch.rot90(image, k, dims=(-2, -1)), centre)
    assert_near(steerer.steer(described, k * QUARTER), rotated, tolerance)
    assert_near(steerer.discretised(4).steer(described, k * QUARTER), rotated, tolerance)


@given(seed=seeds, k=st.integers(1, 3))
def test_keypoints_rotation_with_the_image(seed: int, k: int) -> None:
    image, keypoints = randn(1, 12, 17, seed=seed), torch.tensor([[3.0, 4.0], [13.0, 8.0], [7.0, 3.0]])
    rotated, transform = rotate_image(image, k * QUARTER)
    moved = transform_points(transform, keypoints).round()
    steered = Steerer.from_spec(RINGS).steer(ring_descriptions(image, keypoints), k * QUARTER)
    assert_near(steered, ring_descriptions(rotated, moved), 1e-9)


def test_the_other_sense_is_told_apart() -> None:
    image, centre = randn(1, 7, 7), torch.tensor([[3, 3]])
    clockwise = torch.rot90(image, -1, dims=(-2, -1))
    steered = Steerer.from_spec(RINGS).steer(ring_descriptions(image, centre), QUARTER)
    assert not torch.allclose(steered, ring_descriptions(clockwise, centre))
    mirrored = Steerer.from_spec("6x0 + 6x-1 + 6x-2 + 6x-3")
    described = ring_descriptions(image, centre, sense=-1)
    rotated = ring_descriptions(torch.rot90(image, 1, dims=(-2, -1)), centre, sense=-1)
    assert_near(mirrored.steer(described, QUARTER), rotated, 1e-9)
    assert not torch.allclose(Steerer.from_spec(RINGS).steer(described, QUARTER), rotated)


@given(seed=seeds, angle=st.floats(-7, 7))
def test_any_angle_rotations_a_polynomial_image(seed: int, angle: float) -> None:
    # An image without pixels: a cubic polynomial. Sixteen samples of a circle give its Fourier coefficients exactly.
    coefficients = randn(4, 4, seed=seed)
    phi = torch.arange(16, dtype=torch.float64) * (2 * math.pi / 16)

    def describe(rotation: float) -> Tensor:
        x, y = (
            torch.cos(phi - rotation),
            torch.sin(phi - rotation),
        )  # what is seen at phi was at phi - rotation; y is up
        values = sum(coefficients[a, b] * x**a * y**b for a in range(4) for b in range(4 - a))
        waves = [(values * torch.exp(1j * j * phi)).sum() for j in FREQUENCIES]
        return torch.cat(
            [torch.view_as_real(z) if j else z.real[None] for j, z in zip(FREQUENCIES, waves, strict=True)]
        )

    assert_near(Steerer.from_spec("1x0 + 1x1 + 1x2 + 1x3").steer(describe(0.0), angle), describe(angle), 1e-9)
