"""What surrounds the fused kernels and needs neither Triton nor a GPU: whether they run, shapes, memory, tables."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import angles_of, randn, representations_of, seeds
from matching.reference import rotations_of
from steerers.accel import matching
from steerers.accel.matching import forget_recordings, solver
from steerers.accel.matching.plans import MULTIPLE, Operands, Plan, Terms, cosine_plan, modulus_plan, rotated_plan
from steerers.accel.matching.solver import TileConfig, config_for, fitting, joined, problems
from steerers.accel.support import unavailable
from steerers.matching.assignment import Options
from steerers.matching.strategies import make_strategy
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

CPU = torch.device("cpu")

# Whether they run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"), [(None, "Triton is not installed"), (object(), "they need a CUDA device, not cpu")]
)
def test_where_kernels_cannot_run_matching_is_tiled(
    spec: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(matching, "unavailable", unavailable.__wrapped__)  # what is known of devices is asked again
    first, second = randn(30, 20).float(), randn(30, 20).float()
    assert len(make_strategy("dual-softmax").match(first, second)) == 30
    with pytest.raises(ValueError, match=f"the fused kernels cannot run: {message}"):
        make_strategy("dual-softmax", kernels="fused").match(first, second)


# Shapes of tiles ------------------------------------------------------------------------------------------------------


def plan_of(even: int, odd: int, rotations: tuple[float, ...] = ()) -> Plan:
    terms = Terms(torch.zeros(2, 1, even + odd, dtype=torch.int32), torch.zeros(2, 1, even + odd), False)
    return Plan("paired", terms, terms, 1, even, rotations)


@given(st.integers(1, 20), st.integers(0, 20), st.sampled_from([16, 32, 64, 128]), st.booleans())
def test_chunks_of_coordinates_fit(even: int, odd: int, block_k: int, keep: bool) -> None:
    """A loop takes chunks of one size; unrolled, the last may be another power of two."""
    sizes = (MULTIPLE * even, MULTIPLE * odd)
    config = fitting(TileConfig(64, 64, block_k, 4, 2, keep=keep), plan_of(*sizes))
    assert config.block_k <= block_k
    for size in sizes:
        rest = size % config.block_k
        assert rest & (rest - 1) == 0 if config.keep else rest == 0
        assert config.block_k >= 16


def test_long_descriptions_are_not_kept() -> None:
    assert config_for(plan_of(160, 128), "default", CPU).keep
    assert not config_for(plan_of(320, 256), "default", CPU).keep


@pytest.mark.parametrize(("capability", "hopper"), [((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)])
def test_tiles_by_device(capability: tuple[int, int], hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "capability", lambda device: capability)
    chosen = config_for(cosine_plan(256, CPU), "default", torch.device("cuda"))
    assert chosen == (solver.HOPPER["cosine", "default"] if hopper else solver.ELSEWHERE)


# Plans ----------------------------------------------------------------------------------------------------------------


def coordinates(table: Terms, group: int, descriptions: torch.Tensor) -> torch.Tensor:
    """(N, K) compared coordinates, as the kernels make them."""
    index, weights = table.index[:, group].long(), table.weights[:, group].double()
    return descriptions[:, index[0]] * weights[0] + descriptions[:, index[1]] * weights[1]


def rotated(steerer: Steerer, order: int, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(order, N, M) products after each rotation."""
    return torch.stack([steerer.steer(first, float(angle)) @ second.mT for angle in Group(order).angles()])


@given(st.data(), st.integers(2, 12), seeds)
def test_plans_of_rotations(data: st.DataObject, order: int, seed: int) -> None:
    steerer = Steerer.from_representation(data.draw(representations_of(Group(None))))
    first, second = randn(3, steerer.dim, seed=seed), randn(4, steerer.dim, seed=seed + 1)
    expected = rotated(steerer, order, first, second)
    plan = rotated_plan(steerer, rotations_of(order), True, CPU)
    assert plan is not None
    assert (plan.mode, plan.groups) == (("paired", order // 2) if order % 2 == 0 else ("maximum", order))
    assert plan.even % MULTIPLE == plan.odd % MULTIPLE == 0
    cols = coordinates(plan.cols, 0, second)
    scores = []
    for group in range(plan.groups):
        rows = coordinates(plan.rows, group, first)
        even, odd = (rows[:, part] @ cols[:, part].mT for part in (slice(plan.even), slice(plan.even, None)))
        scores.append(even + odd.abs())
    torch.testing.assert_close(torch.stack(scores).amax(dim=0), expected.amax(dim=0), atol=1e-5, rtol=0)
    single = rotated_plan(steerer, rotations_of(order)[-1:], False, CPU)
    every = rotated_plan(steerer, rotations_of(order), False, CPU)
    assert single is not None
    assert every is not None
    for k in range(order):
        product = coordinates(every.rows, k, first) @ coordinates(every.cols, 0, second).mT
        torch.testing.assert_close(product, expected[k], atol=1e-5, rtol=0)
    last = coordinates(single.rows, 0, first) @ coordinates(single.cols, 0, second).mT
    torch.testing.assert_close(last, expected[-1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("spec", ["5x1", "2x3", "3x2 + 2x-2"])
def test_plan_of_the_modulus(spec: str) -> None:
    steerer = Steerer.from_spec(spec, "SO2")
    first, second = randn(3, steerer.dim), randn(4, steerer.dim, seed=1)
    plan = modulus_plan(steerer, None, CPU)
    if plan is None:
        assert "-" in spec  # two frequencies, unless they are folded
        return
    rows, cols = coordinates(plan.rows, 0, first), coordinates(plan.cols, 0, second)
    real, imaginary = rows @ cols[:, : plan.even].mT, rows @ cols[:, plan.even :].mT
    angles = torch.atan2(imaginary, real) / plan.frequency
    modulus = torch.hypot(real, imaginary)
    for i in range(3):
        for j in range(4):
            best = steerer.steer(first[i], float(angles[i, j])) @ second[j]
            assert float(best) == pytest.approx(float(modulus[i, j]), abs=1e-5)


def test_what_has_no_plan() -> None:
    learned = Steerer.from_matrix(torch.eye(6), Group(4))
    assert rotated_plan(learned, rotations_of(4), True, CPU) is None
    assert modulus_plan(Steerer.spread(20), None, CPU) is None  # several frequencies


def test_plans_are_made_once() -> None:
    steerer = Steerer.spread(20)
    assert rotated_plan(steerer, rotations_of(4), True, CPU) is rotated_plan(steerer, rotations_of(4), True, CPU)
    assert rotated_plan(steerer, rotations_of(4), True, CPU) is not rotated_plan(steerer, rotations_of(8), True, CPU)
    assert cosine_plan(20, CPU) is cosine_plan(20, CPU)


@given(angles_of(Group(None)))
def test_rotations_of_plans_are_in_one_period(angle: float) -> None:
    (wrapped,) = plan_of(32, 32, (angle,)).angles.tolist()
    assert -math.pi <= wrapped < math.pi
    assert math.remainder(wrapped - angle, 2 * math.pi) == pytest.approx(0, abs=1e-9)


# Memory ---------------------------------------------------------------------------------------------------------------


def test_parts_of_one_tensor_are_not_copied() -> None:
    whole = randn(3, 10, 4)
    together, starts = joined([whole[0, :7], whole[1], whole[2, :3]])
    assert together.data_ptr() == whole.data_ptr()
    assert starts == [0, 10, 20]
    assert torch.equal(together[20:23], whole[2, :3])
    copied, starts = joined([whole[0, :7], whole[1].clone()])
    assert starts == [0, 7]
    assert torch.equal(copied, torch.cat([whole[0, :7], whole[1]]))


def test_problems_of_alternatives() -> None:
    table = problems(((0, 5, 0, 7), (5, 3, 7, 2)), 2, 8, "cpu")
    assert table.tolist() == [[0, 5, 0, 7], [8, 5, 0, 7], [5, 3, 7, 2], [13, 3, 7, 2]]


def is_recorded(plan: Plan | None, n: int, m: int, dtype: torch.dtype = torch.float32, **options: object) -> bool:
    assert plan is not None
    first, second = torch.empty(n, 256, dtype=dtype), torch.empty(m, 256, dtype=dtype)
    return matching._is_recorded(Operands(first, second, plan, **options), Options())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "m", "dtype", "recorded"),
    [
        (5000, 5000, torch.float32, True),
        (20000, 20000, torch.float32, False),
        (6500, 6500, torch.float32, False),  # a copy of these would be 13 MB
        (6500, 6500, torch.float16, True),
        (0, 10, torch.float32, False),
    ],
)
def test_what_is_recorded(n: int, m: int, dtype: torch.dtype, recorded: bool) -> None:
    for plan in (cosine_plan(256, CPU), rotated_plan(Steerer.spread(256), rotations_of(4), True, CPU)):
        assert is_recorded(plan, n, m, dtype) == recorded


@pytest.mark.parametrize(("order", "recorded"), [(8, True), (16, False)])
def test_what_takes_much_memory_is_not_recorded(order: int, recorded: bool) -> None:
    plan = rotated_plan(Steerer.spread(256), rotations_of(order), False, CPU)
    assert is_recorded(plan, 5000, 5000) == recorded
    assert not is_recorded(plan, 5000, 5000, matrices=torch.eye(256)[None])


def test_recordings_are_let_go() -> None:
    matching._recordings._met["something"] = True
    forget_recordings()
    assert not matching._recordings._met
