"""The fused kernels against the tiled path: on a GPU where there is one, otherwise by Triton's interpreter.

The interpreter is chosen when Triton is first imported, so that these run in a process of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import helpers
from matching import reference
from matching.reference import assert_identical
from steerers.accel import matching as fused
from steerers.accel.matching import results, solver
from steerers.accel.matching.solver import launch
from steerers.matching.assignment import Assignment, Options
from steerers.matching.similarity import Cosine
from steerers.matching.strategies import SoftmaxStrategy, make_strategy, solve
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
kernels = pytest.mark.skipif(not INTERPRETED and DEVICE.type == "cpu", reason="needs a GPU or Triton's interpreter")
SMALL = solver.TileConfig(16, 16, 16, 4, 2)


def test_interpreted(interpret: Callable[[], None]) -> None:
    interpret()


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few descriptions have several tiles, in few programs; on a GPU they are what they are."""
    if INTERPRETED:
        tiles = {key: replace(SMALL, keep=config.keep) for key, config in solver.HOPPER.items()}
        monkeypatch.setattr(solver, "HOPPER", tiles)
        monkeypatch.setattr(solver, "PREPARED_AT_ONCE", 32)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return helpers.randn(*shape, seed=seed, dtype=torch.float32)


def pair(n: int, m: int, steerer: Steerer, angle: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Descriptions of which the smaller number correspond, the second rotated."""
    first, second = randn(n, steerer.dim, seed=seed), randn(m, steerer.dim, seed=seed + 1)
    common = min(n, m)
    noise = 0.3 * randn(common, steerer.dim, seed=seed + 2)
    second[m - common :] = steerer.steer(first[:common], angle).flip(0) + noise
    return first.to(DEVICE), second.to(DEVICE)


def assert_same(actual: Assignment, expected: Assignment, *, scores: float = 1e-4, rotations: float = 1e-5) -> None:
    reference.assert_same(actual, expected, atol=scores, angle_atol=rotations, pair_atol=rotations)
    if actual.angles is not None:
        assert bool(((actual.angles >= -math.pi) & (actual.angles < math.pi)).all())


def by(strategy: SoftmaxStrategy, **options: object) -> SoftmaxStrategy:
    """The strategy with other options."""
    return replace(strategy, options=replace(strategy.options, **options))  # type: ignore[arg-type]


def both(strategy: SoftmaxStrategy, first: Tensor, second: Tensor) -> tuple[Assignment, Assignment]:
    """Matches of the fused kernels and of the tiled path."""
    return by(strategy, kernels="fused").match(first, second), by(strategy, kernels="tiled").match(first, second)


# Modes ----------------------------------------------------------------------------------------------------------------

CASES = [
    ("dual-softmax", Steerer.inv(40), None),
    ("max-matches", Steerer.spread(40), 4),
    ("max-similarity", Steerer.spread(40), 3),  # an odd order: every rotation by itself
    ("max-similarity", Steerer.spread(40), 4),
    ("max-similarity", Steerer.perm(40), 4),
    ("max-similarity", Steerer.freq1(40), 8),
    ("max-similarity", Steerer.freq1(40), None),
    ("max-similarity", Steerer.from_spec("6x0 + 20x1 + 6x2", "C16"), 16),
    ("max-similarity", Steerer.spread(20), 64),  # more rotations than one program prepares or finishes at a time
    ("subset", Steerer.spread(40), 5),
    ("procrustes", Steerer.freq1(40), None),
    ("procrustes", Steerer.from_spec("10x1 + 10x4", "C5"), None),
    ("prototype-procrustes", Steerer.freq1(40), None),
    ("invariant", Steerer.spread(140), None),
]

EXACT = [("dual-softmax", None), ("max-matches", 4), ("max-similarity", 3), ("max-similarity", 4), ("procrustes", None)]


def named(name: str, steerer: Steerer, order: int | None, **options: object) -> SoftmaxStrategy:
    if name == "max-similarity" or order is not None:
        options |= {"order": order, "refine": False}
    if name == "subset":
        options["subset_size"] = 15
    return make_strategy(name, steerer.to(DEVICE), **options)  # type: ignore[arg-type]


@kernels
@pytest.mark.parametrize(("name", "steerer", "order"), CASES)
def test_as_the_tiled_path(name: str, steerer: Steerer, order: int | None) -> None:
    step = 2 * math.pi / (order or steerer.group.order or 7)
    first, second = pair(23, 19, steerer.cpu(), 0.0 if name == "dual-softmax" else step)
    precisions = ("default", "exact") if (name, order) in EXACT else ("default",)
    for precision in precisions:
        actual, expected = both(named(name, steerer, order, precision=precision), first, second)
        assert len(actual) > 10
        half = precision == "default"
        assert_same(actual, expected, scores=2e-3 if half else 5e-5, rotations=1e-3 if half else 1e-4)


@kernels
@pytest.mark.parametrize(
    ("name", "angles"),
    [
        ("max-matches", (0.0, 0.4)),
        ("max-similarity", (0.4,)),
        ("max-similarity", (0.0, 0.4, 2.0)),
        ("max-similarity", (0.4, 2.0, 0.4 + math.pi, 2.0 + math.pi)),
        ("subset", (0.4, 2.0)),
    ],
)
def test_given_angles(name: str, angles: tuple[float, ...]) -> None:
    steerer = Steerer.spread(40)
    first, second = pair(23, 19, steerer, 0.4)
    options = {"angles": angles, "refine": False, "precision": "exact"}
    if name == "subset":
        options["subset_size"] = 15
    strategy = make_strategy(name, steerer.to(DEVICE), **options)  # type: ignore[arg-type]
    actual, expected = both(strategy, first, second)
    assert len(actual) > 10
    assert_same(actual, expected, scores=5e-5, rotations=1e-4)
    steerer.cpu()


@kernels
def test_frequency_1_by_a_matrix() -> None:
    """Descriptions are changed to the basis of blocks, and go the same way from there."""
    basis = helpers.random_basis(40)
    generator = basis @ Steerer.freq1(40).generator() @ torch.linalg.inv(basis)
    steerer = Steerer.from_matrix(generator.float(), "SO2")
    first, second = pair(23, 19, steerer, 1.0)
    for name in ("procrustes", "prototype-procrustes"):
        strategy = make_strategy(name, steerer.to(DEVICE), precision="exact")
        actual, expected = both(strategy, first, second)
        assert len(actual) > 10
        assert_same(actual, expected, scores=5e-5, rotations=1e-4)


@kernels
def test_one_keypoint_has_the_rotation_of_the_largest_cosine() -> None:
    steerer = Steerer.spread(40)
    strategy = named("max-matches", steerer, 5)
    for seed in range(3):
        first, second = randn(1, 40, seed=seed), randn(1, 40, seed=seed + 9)
        cosines = reference.steered_cosines(first, second, steerer.cpu(), 5).flatten()
        steerer.to(DEVICE)
        found = by(strategy, kernels="fused").match(first.to(DEVICE), second.to(DEVICE))
        assert found.angle == pytest.approx(reference.rotations_of(5)[int(cosines.argmax())])


@kernels
def test_where_nothing_matches_on_the_subsets() -> None:
    first, second = torch.ones(40, 20, device=DEVICE), torch.ones(40, 20, device=DEVICE)
    first[17], second[31] = -1, -1
    strategy = make_strategy("subset", Steerer.inv(20).to(DEVICE), subset_size=5, threshold=0.9)
    actual, expected = both(strategy, first, second)
    assert_same(actual, expected)
    assert actual.indices.tolist() == [[17, 31]]
    assert (actual.angle, actual.angles) == (None, None)


@kernels
def test_every_angle_of_a_learned_matrix_goes_by_tiles() -> None:
    steerer = Steerer.spread(20, learnable=True)
    first, second = pair(18, 17, steerer.cpu(), 1.0)
    strategy = make_strategy("max-similarity", steerer.to(DEVICE), order=None)
    assert_same(strategy.match(first, second), by(strategy, kernels="tiled").match(first, second))
    with pytest.raises(ValueError, match="cannot run: they do not know ContinuousSteered"):
        by(strategy, kernels="fused").match(first, second)


@kernels
def test_matches_that_need_not_be_mutual_go_by_tiles() -> None:
    steerer = Steerer.spread(20)
    first, second = pair(18, 17, steerer, 1.0)
    strategy = make_strategy("max-similarity", steerer.to(DEVICE), mutual=False, threshold=0.02)
    found, tiled = (one.match(first, second) for one in (strategy, by(strategy, kernels="tiled")))
    assert torch.equal(found.indices, tiled.indices)
    assert len(found) > len(by(strategy, mutual=True).match(first, second))
    with pytest.raises(ValueError, match="cannot run: they find matches that are mutually the most probable"):
        by(strategy, kernels="fused").match(first, second)


@kernels
def test_a_learned_matrix_rotation_by_rotation() -> None:
    q = helpers.random_orthogonal(20, seed=9)
    steerer = Steerer.from_matrix(q @ Steerer.spread(20).matrix(math.pi / 2) @ q.mT, Group(4))
    first, second = pair(18, 17, steerer, math.pi / 2)
    assert_same(*both(make_strategy("max-matches", steerer.to(DEVICE), precision="exact"), first, second))
    with pytest.raises(ValueError, match="cannot run: they do not know Steered"):
        make_strategy("max-similarity", steerer, kernels="fused").match(first, second)
    assert len(make_strategy("max-similarity", steerer).match(first, second)) > 10


# Descriptions ---------------------------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 20), (35, 2), (17, 16)])
def test_sizes(n: int, m: int) -> None:
    steerer = Steerer.spread(20)
    first, second = pair(n, m, steerer, math.pi / 2)
    for name, order in (("dual-softmax", None), ("max-similarity", 4), ("max-matches", 4)):
        assert_same(*both(named(name, steerer, order, precision="exact"), first, second))


@kernels
@pytest.mark.parametrize("dim", [2, 6, 20, 130])
def test_lengths(dim: int) -> None:
    steerer = Steerer.freq1(dim)
    first, second = pair(19, 10, steerer, 1.0)
    for name in ("dual-softmax", "procrustes"):
        assert_same(*both(named(name, steerer, None, precision="exact"), first, second))
    assert_same(*both(named("max-similarity", steerer, 4, precision="exact"), first, second))


@kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    steerer = Steerer.spread(40)
    first, second = (d.to(dtype) for d in pair(37, 35, steerer, math.pi / 2))
    assert_same(*both(named("max-similarity", steerer, 4), first, second), scores=2e-3)


@kernels
def test_float64_stays_exact() -> None:
    first, second = (d.double() for d in pair(18, 18, Steerer.spread(20)))
    with pytest.raises(ValueError, match="have float32, and the descriptions float64"):
        make_strategy("dual-softmax", precision="exact", kernels="fused").match(first, second)
    exact = make_strategy("dual-softmax", precision="exact")
    assert_identical(exact.match(first, second), by(exact, kernels="tiled").match(first, second))


@kernels
def test_strides() -> None:
    steerer = Steerer.spread(40)
    first, second = pair(37, 35, steerer, math.pi / 2)
    strategy = by(named("max-similarity", steerer, 4), kernels="fused")
    expected = strategy.match(first, second)
    wide = torch.zeros(74, 80, device=DEVICE)
    wide[::2, 1::2] = first
    rotated = second.mT.contiguous().mT
    assert (wide[::2, 1::2].stride(), rotated.stride()) == ((160, 2), (1, 35))
    assert_identical(strategy.match(wide[::2, 1::2], rotated), expected)


@kernels
@pytest.mark.parametrize("scale", [1e-8, 1e30])
def test_lengths_of_any_size(scale: float) -> None:
    """Squares of the large ones leave the range of float32."""
    first, second = pair(18, 18, Steerer.spread(20))
    strategy = make_strategy("dual-softmax", kernels="fused")
    assert_same(strategy.match(first * scale, second), strategy.match(first, second))


@kernels
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_values_that_are_not_finite(value: float, side: int) -> None:
    both_sides = [d.clone() for d in pair(40, 40, Steerer.spread(20))]
    both_sides[side][33, 7] = value
    with pytest.raises(ValueError, match=f"descriptions{side} holds NaN or infinite values"):
        solve([Cosine(*both_sides)], Options(kernels="fused")).assignments()


# The assignment -------------------------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.9])
def test_thresholds(threshold: float) -> None:
    first, second = pair(23, 19, Steerer.spread(20))
    strategy = make_strategy("dual-softmax", threshold=threshold, precision="exact")
    assert_same(*both(strategy, first, second))


@kernels
@pytest.mark.parametrize("precision", ["default", "exact"])
def test_of_equal_ones_the_first(precision: str) -> None:
    """In the same tile and in others."""
    unit = F.normalize(randn(8, 20), dim=1).to(DEVICE)
    first, second = unit[[0, 1, 2, 0, 3, *[4] * 40, 0]], unit[[5, 0, 1, 1, 2, *[6] * 40, 2, 1, 0]]
    strategy = make_strategy("dual-softmax", precision=precision)
    found, tiled = (sorted(a.indices.tolist()) for a in both(strategy, first, second))
    assert found[:3] == [[0, 1], [1, 2], [2, 4]]
    assert found == tiled


@kernels
def test_nothing_matches() -> None:
    first = torch.ones(40, 20, device=DEVICE)
    for name, order in (("dual-softmax", None), ("max-similarity", 4), ("max-matches", 4)):
        none = by(named(name, Steerer.spread(20), order, threshold=0.5), kernels="fused").match(first, first)
        assert (len(none), none.indices.shape, none.angle) == (0, (0, 2), None)


@kernels
def test_temperature_beyond_what_needs_no_shift() -> None:
    first, second = pair(18, 18, Steerer.spread(20))
    with pytest.raises(ValueError, match="inverse temperatures up to 60, got 61"):
        make_strategy("dual-softmax", inverse_temperature=61.0, kernels="fused").match(first, second)
    assert len(make_strategy("dual-softmax", inverse_temperature=61.0).match(first, second)) == 18
    assert_same(*both(make_strategy("dual-softmax", inverse_temperature=60.0, precision="exact"), first, second))


@kernels
def test_always_the_same() -> None:
    steerer = Steerer.freq1(40)
    first, second = pair(23, 20, steerer, 1.0)
    strategy = by(named("procrustes", steerer, None), kernels="fused")
    assert_identical(strategy.match(first, second), strategy.match(first, second))


# Batches, chunks, order -----------------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize(("name", "order"), [("dual-softmax", None), ("max-similarity", 4), ("max-matches", 2)])
def test_batches(name: str, order: int | None) -> None:
    steerer = Steerer.spread(20)
    pairs = [pair(n, m, steerer, math.pi / 2, seed=n) for n, m in ((18, 10), (5, 17), (0, 4), (7, 0))]
    strategy = by(named(name, steerer, order), kernels="fused")
    together = strategy.match_batch([first for first, _ in pairs], [second for _, second in pairs])
    for (first, second), actual in zip(pairs, together, strict=True):
        assert_identical(actual, strategy.match(first, second))


@kernels
def test_padded_batches() -> None:
    first, second = randn(3, 34, 20).to(DEVICE), randn(3, 33, 20, seed=1).to(DEVICE)
    second[:, :10] = first[:, 3:13]
    lengths0, lengths1 = [34, 15, 7], [9, 33, 20]
    strategy = make_strategy("dual-softmax", kernels="fused")
    together = strategy.match_batch(first, second, lengths0, lengths1)
    for k, actual in enumerate(together):
        assert_identical(actual, strategy.match(first[k, : lengths0[k]], second[k, : lengths1[k]]))
    assert len(together[0]) >= 5


@kernels
@pytest.mark.parametrize(("name", "order"), [("max-similarity", 4), ("max-matches", 4), ("procrustes", None)])
def test_a_small_budget_changes_nothing(name: str, order: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One alternative after the other, and rows in chunks; on a GPU too, where tiles are larger."""
    steerer = Steerer.freq1(40)
    first, second = pair(20, 10, steerer, math.pi / 2)
    similarity = named(name, steerer, order)._similarity(first, second)
    options = Options(kernels="fused", graphs=False)
    monkeypatch.setattr(solver, "config_for", lambda plan, *_: solver.fitting(SMALL, plan))
    (whole,) = solve([similarity], options).assignments()
    monkeypatch.setattr(solver, "BUDGET", 5000)
    monkeypatch.setattr(solver, "LEAST_BUDGET", 5000)
    (parts,) = solve([similarity], options).assignments()
    for actual, expected in zip(parts, whole, strict=True):
        assert_same(actual, expected, scores=1e-6)


@kernels
@pytest.mark.parametrize(("name", "order"), [("dual-softmax", None), ("max-similarity", 4), ("procrustes", None)])
def test_sorting_many_is_counting_few(name: str, order: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    steerer = Steerer.freq1(20)
    first, second = pair(20, 17, steerer, math.pi / 2)
    first[5:9], second[12:14] = first[4], second[11]  # equal scores
    strategy = by(named(name, steerer, order, threshold=0.0), kernels="fused")
    counted = strategy.match(first, second)
    monkeypatch.setattr(results, "MOST_COMPARED", 0)
    assert_identical(counted, strategy.match(first, second))


# Recordings -----------------------------------------------------------------------------------------------------------


def replayed(self: fused.Fused, *, ordered: bool) -> results.Results:
    return fused._replayed(self.operands[0], self.options, ordered=ordered)


@kernels
@pytest.mark.parametrize(("name", "order"), [("dual-softmax", None), ("max-similarity", 4), ("max-matches", 2)])
def test_recordings_find_the_same(name: str, order: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    steerer = Steerer.spread(20)
    pairs = [pair(18, 17, steerer, math.pi / 2, seed=seed) for seed in range(3)]
    strategy = by(named(name, steerer, order), kernels="fused", graphs=False)
    expected = [strategy.match(*each) for each in pairs]

    if INTERPRETED:  # nothing is recorded there, but it takes the same way
        monkeypatch.setattr(fused.Fused, "_launch", replayed)
    recorded = by(strategy, graphs=True)
    for each, plain in zip(pairs, expected, strict=True):
        assert_identical(recorded.match(*each), plain)
    fused.forget_recordings()


@kernels
def test_a_recording_that_fails_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        capacity, calls = 8, 0

        def __call__(self, *_: Tensor, **__: object) -> tuple[Tensor, ...]:
            self.calls += 1
            raise RuntimeError("operation not permitted when stream is capturing")

        def clear(self) -> None:
            pass

    failing = Failing()
    monkeypatch.setattr(fused, "_recordings", failing)
    first, second = pair(18, 17, Steerer.spread(20))
    operands = fused.operands(Cosine(first, second))
    assert operands is not None
    actual = fused._replayed(operands, Options(), ordered=True).assignments()[0][0]
    assert "launched step by step from here on: operation not permitted" in caplog.text
    assert failing.capacity == 0
    assert_identical(actual, launch([operands], Options()).assignments()[0][0])
