"""The tiled dual softmax with mutual nearest neighbours, and the latter alone, against dense matrices."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import randn, seeds
from matching import reference
from matching.reference import assert_identical, assert_same, planted, rotations_of, unit
from steerers.matching.assignment import Assignment, Options, Tiled, number_of_most_matches
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import Cosine, RowBlock, Rows, Similarity
from steerers.matching.strategies import make_strategy
from steerers.steering.steerer import Steerer

TILES = [1, 7, 64, 1000, None]


pytestmark = pytest.mark.usefixtures("one_thread")


class Given(Similarity):
    """Cosines that are written down: (alternatives, N, M). Tiles of them have no rounding."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores if scores.ndim == 3 else scores[None]
        self.alternatives = len(self.scores)
        super().__init__(*(scores.new_zeros(length, 0) for length in self.scores.shape[1:]))

    def block(self, rows: Rows, scale: float = 1.0) -> RowBlock:
        return lambda cols: self.scores[:, rows][:, :, cols] * scale

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        return self.scores[0, i, j].double()

    def alternative(self, index: int) -> Similarity:
        return Given(self.scores[index])


def assign(similarity: Similarity, **options: Any) -> list[Assignment]:
    """Of each alternative."""
    (found,) = Tiled([similarity], Options(**options)).assignments()
    return found


def pair_of_images(n: int, m: int, dim: int = 24, seed: int = 0, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    a, b, _ = planted(Steerer.inv(dim), 0.0, n, m, noise=noise, seed=seed)
    return a, b


def rounding(inverse_temperature: float) -> float:
    """How far float32 probabilities may be off: cosines are by 1e-7, which the temperature multiplies."""
    return 2e-5 * max(1.0, inverse_temperature / 20)


def decided(p: Tensor, threshold: float) -> bool:
    """Whether no probability is so near to another of its row or column, or to the threshold, that rounding decides."""
    clear = bool(((p - threshold).abs() > 1e-5).all()) or threshold == 0
    for q in (p.log(), p.mT.log()):
        if q.shape[1] > 1:
            best, second = q.topk(2, dim=1).values.unbind(dim=1)
            clear = clear and bool((best - second > 1e-3).all())
    return clear


# Against the textbook -------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    seed=seeds,
    inverse_temperature=st.sampled_from([1.0, 20.0, 59.0, 61.0, 200.0]),
    threshold=st.sampled_from([0.0, 0.01, 0.5]),
    tile=st.sampled_from([1, 3, 16, None]),
)
def test_any_matrix_of_cosines(
    n: int, m: int, seed: int, inverse_temperature: float, threshold: float, tile: int | None, dtype: torch.dtype
) -> None:
    scores = torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * 2 - 1
    options = {"inverse_temperature": inverse_temperature, "threshold": threshold}
    assume(decided(reference.probabilities(scores.double(), inverse_temperature), threshold))
    (found,) = assign(Given(scores), tile=tile, **options)
    assert_same(found, reference.assign(scores.double(), **options), atol=rounding(inverse_temperature))


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("inverse_temperature", [5.0, 20.0, 60.0])
@pytest.mark.parametrize(("n", "m"), [(150, 90), (40, 200)])
def test_planted_matches(n: int, m: int, inverse_temperature: float, threshold: float) -> None:
    a, b = pair_of_images(n, m)
    options = {"inverse_temperature": inverse_temperature, "threshold": threshold}
    expected = reference.dual_softmax(a, b, **options)
    (found,) = assign(Cosine(a, b), **options)
    assert_same(found, expected, atol=rounding(inverse_temperature))
    if inverse_temperature == 20:
        assert len(found) > (5 if threshold == 0.5 else 20)
        assert bool((found.scores > threshold).all())


@given(
    n=st.integers(0, 40),
    m=st.integers(0, 40),
    seed=seeds,
    threshold=st.sampled_from([0.003, 0.05, 0.5]),
    tile=st.sampled_from(TILES),
)
def test_all_pairs_above_the_threshold_are_found_where_they_need_not_be_mutual(
    n: int, m: int, seed: int, threshold: float, tile: int | None
) -> None:
    a, b = randn(n, 8, seed=seed), randn(m, 8, seed=seed + 1)
    p = reference.probabilities(unit(a) @ unit(b).mT, 20.0)
    assume(bool(((p - threshold).abs() > 1e-6).all()))
    (found,) = assign(Cosine(a, b), threshold=threshold, mutual=False, tile=tile)
    expected = {(i, j) for i, j in (p > threshold).nonzero().tolist()}
    assert len(found) == len(expected)
    assert {(i, j) for i, j in found.indices.tolist()} == expected
    i, j = found.indices.unbind(dim=1)
    torch.testing.assert_close(found.scores.double(), p[i, j], atol=1e-5, rtol=1e-5)
    assert bool((found.scores.diff() <= 0).all())


def test_mutual_matches_are_among_all_pairs() -> None:
    a, b = pair_of_images(60, 50)
    (mutual,), (every,) = (assign(Cosine(a, b), threshold=0.01, mutual=mutual) for mutual in (True, False))
    assert set(map(tuple, mutual.indices.tolist())) < set(map(tuple, every.indices.tolist()))


def test_without_a_threshold_matches_must_be_mutual() -> None:
    with pytest.raises(ValueError, match="mutual=False needs a threshold above 0"):
        Options(threshold=0.0, mutual=False)


def test_a_threshold_only_takes_away() -> None:
    a, b = pair_of_images(120, 130)
    (everything,) = assign(Cosine(a, b), threshold=0.0)
    for threshold in (0.001, 0.01, 0.1, 0.5, 0.9):
        (found,) = assign(Cosine(a, b), threshold=threshold)
        kept = everything.scores > threshold
        assert torch.equal(found.indices, everything.indices[kept])
        assert torch.equal(found.scores, everything.scores[kept])


@pytest.mark.parametrize("inverse_temperature", [100.0, 200.0, 500.0])
def test_a_large_inverse_temperature_stays_exact(inverse_temperature: float, dtype: torch.dtype) -> None:
    """Rows whose best cosine is far below 1 must not vanish: exp(500 (0.5 - 1)) is nothing in float32."""
    a, b = pair_of_images(80, 70, dim=16, noise=0.8)
    (found,) = assign(Cosine(a.to(dtype), b.to(dtype)), inverse_temperature=inverse_temperature)
    assert bool(torch.isfinite(found.scores).all())
    expected = reference.dual_softmax(a, b, inverse_temperature=inverse_temperature)
    assert len(expected) > 30
    assert_same(found, expected, atol=rounding(inverse_temperature) if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("inverse_temperature", [20.0, 100.0, 500.0])
def test_opposite_descriptions_match_where_there_is_no_other(inverse_temperature: float) -> None:
    """One row, one column: both softmaxes are 1 whatever the cosine."""
    a = randn(1, 8, dtype=torch.float32)
    (found,) = assign(Cosine(a, -a), inverse_temperature=inverse_temperature)
    assert found.indices.tolist() == [[0, 0]]
    assert found.scores.tolist() == pytest.approx([1.0], abs=one_score_error(inverse_temperature, dim=8))


def one_score_error(inverse_temperature: float, dim: int) -> float:
    """How far the float32 score of a single pair, which is 1, may be off.

    Of one row and column the sums are r = c = s', the score of the tile in float32, so that log P = 2 s - r - c =
    2 (s - s'), with s in float64 from the same unit vectors x and y. At the inverse temperature t and with the unit
    roundoff u = 2^-24, s' is the sum of the products of t x_k, rounded (u), with y_k, rounded (u), added up in any
    order (each term is rounded dim - 1 times at most): to first order |s - s'| <= (dim + 1) u t sum_k |x_k y_k| and
    that sum is at most 1. Up to t = 60, exp s' is added up, and float32's exponential adds another 2 u. The relative
    error of P is the error of log P, and P is rounded once more.
    """
    roundoff = 2.0**-24
    return (2 * ((dim + 1) * inverse_temperature + 2) + 1) * roundoff


def test_alternatives_are_assigned_apart() -> None:
    scores = torch.rand(3, 50, 40, generator=torch.Generator().manual_seed(0))
    together = assign(Given(scores), tile=16)
    assert len(together) == 3
    for found, alone in zip(together, scores, strict=True):
        assert_same(found, reference.assign(alone))


def test_the_best_alternative_has_more_then_surer_matches() -> None:
    scores = torch.full((3, 4, 4), -1.0)
    scores[0, 0, 0] = 1.0
    scores[1, [0, 1], [0, 1]] = torch.tensor([0.8, 0.9])
    scores[2, [0, 1], [0, 1]] = torch.tensor([0.9, 0.9])
    solution = Tiled(
        [Given(scores), Given(scores[:1]), Given(scores[:, :0])], Options(inverse_temperature=2.0, threshold=0.5)
    )
    assert [(number, len(found)) for number, found in solution.best()] == [(2, 2), (0, 1), (0, 0)]
    assert solution.counts() == [(2, 2), (0, 1), (0, 0)]
    assert_identical(solution.best()[0][1], solution.assignments()[0][2])

    def with_scores(*scores: float) -> Assignment:
        return Assignment(torch.zeros(len(scores), 2, dtype=torch.long), torch.tensor(scores))

    found = [with_scores(0.9), with_scores(0.1, 0.1), with_scores(0.3, 0.2), with_scores()]
    assert number_of_most_matches(found) == 2
    assert number_of_most_matches([with_scores()] * 4) == 0


# Tiles ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.5])
def test_the_tile_does_not_change_the_matches(threshold: float, dtype: torch.dtype) -> None:
    a, b = pair_of_images(35, 27)
    results = [assign(Cosine(a.to(dtype), b.to(dtype)), threshold=threshold, tile=tile)[0] for tile in TILES]
    assert len(results[0]) > 5
    for found in results[1:]:
        assert_same(found, results[0], atol=2e-5 if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("tile", TILES)
def test_of_equal_ones_the_first_counts(tile: int | None) -> None:
    scores = torch.full((30, 20), 0.1)
    scores[4:9, 3] = scores[4:9, 11] = 0.9  # rows 4 to 8 are the same, columns 3 and 11 are
    scores[20, 5] = scores[25, 5] = 0.8
    (found,) = assign(Given(scores), tile=tile, threshold=0.02)
    assert found.indices.tolist() == [[20, 5], [4, 3]]


@pytest.mark.parametrize("tile", TILES)
def test_all_equal(tile: int | None) -> None:
    (found,) = assign(Given(torch.full((9, 9), 0.3)), tile=tile)
    assert found.indices.tolist() == [[0, 0]]
    assert found.scores.tolist() == pytest.approx([1 / 81], abs=1e-6)


@pytest.mark.parametrize("strategy", ["dual-softmax", "max-similarity", "max-matches"])
def test_the_tile_does_not_change_which_duplicate_matches(strategy: str) -> None:
    """Equal descriptions make equal scores, whatever rounding a product of another shape does: the first counts."""
    distinct = randn(20, 16, dtype=torch.float32)
    shuffle = torch.Generator().manual_seed(0)
    i, j = torch.randperm(60, generator=shuffle) % 20, torch.randperm(40, generator=shuffle) % 20
    for tile in TILES:
        found = make_strategy(strategy, Steerer.spread(16), tile=tile).match(distinct[i], distinct[j])
        expected = [[i.tolist().index(k), j.tolist().index(k)] for k in range(20)]
        assert sorted(found.indices.tolist()) == sorted(expected)


# Edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 30), (30, 1)])
@pytest.mark.parametrize("dim", [1, 8])
def test_one_keypoint_or_one_dimension(n: int, m: int, dim: int) -> None:
    a, b = randn(n, dim, dtype=torch.float32), randn(m, dim, seed=1, dtype=torch.float32)
    (found,) = assign(Cosine(a, b))
    assert_same(found, reference.dual_softmax(a, b))
    assert len(found) <= 1


def test_descriptions_of_zeros_match_nothing_above_chance() -> None:
    (found,) = assign(Cosine(torch.zeros(20, 8), randn(20, 8, dtype=torch.float32)))
    assert len(found) == 0


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("inverse_temperature", 0.0),
        ("inverse_temperature", -20.0),
        ("inverse_temperature", math.nan),
        ("inverse_temperature", math.inf),
        ("threshold", -0.1),
        ("threshold", 1.0),
        ("threshold", math.nan),
        ("tile", 0),
        ("tile", -3),
        ("kernels must be one of auto, tiled, fused, got 'triton'", "triton"),
        ("precision must be one of default, exact, got 'half'", "half"),
    ],
)
def test_options_that_make_no_sense_are_refused(message: str, value: float | str) -> None:
    option = message.split(maxsplit=1)[0]
    with pytest.raises(ValueError, match=message):
        make_strategy("dual-softmax", **{option: value})


# Nearest neighbours ---------------------------------------------------------------------------------------------------


def first_largest(cosines: Tensor, tie: float) -> int:
    """Of values that differ by no more than ``tie``, which is rounding, the first counts."""
    return int((cosines >= cosines.max() - tie).int().argmax())


def textbook(
    a: Tensor, b: Tensor, tie: float, threshold: float = -1.0, ratio: float | None = None
) -> dict[tuple[int, int], float]:
    """Mutual nearest neighbours with their cosines: dense, in float64, one comparison a line."""
    distances = (unit(a)[:, None] - unit(b)[None]).norm(dim=2)  # (N, M)
    cosines = 1 - distances.square() / 2
    found = {}
    for i, row in enumerate(distances):
        j = first_largest(cosines[i], tie)
        mutual = first_largest(cosines[:, j], tie) == i
        others = torch.cat([row[:j], row[j + 1 :]])
        unambiguous = ratio is None or not len(others) or float(row[j]) < ratio * float(others.min())
        if mutual and unambiguous and cosines[i, j] >= threshold:
            found[i, j] = float(cosines[i, j])
    return found


def ties_are_clear(a: Tensor, b: Tensor, tie: float) -> bool:
    """Whether no two best values differ by so nearly a tie that rounding decides whether it is one."""
    similarity = reference.cosines(a, b)
    best = [s.topk(2, dim=1).values for s in (similarity, similarity.mT) if s.shape[1] > 1]
    return all(bool(((two[:, 0] - two[:, 1] - tie).abs() > tie / 16).all()) for two in best)


@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    threshold=st.sampled_from([-1.0, 0.0, 0.3]),
    ratio=st.sampled_from([None, 0.7, 0.9, 1.0]),
    tile=st.sampled_from([None, 1, 7, 64]),
    seed=seeds,
)
@example(n=16, m=14, threshold=-1.0, ratio=None, tile=None, seed=488)  # in float32 a tie: 7.3 of 8 roundings apart
def test_nearest_neighbours_against_the_textbook(
    n: int, m: int, threshold: float, ratio: float | None, tile: int | None, seed: int, dtype: torch.dtype
) -> None:
    a, b = randn(n, 8, seed=seed), randn(m, 8, seed=seed + 1)
    b[: min(n, m) // 2] = a[: min(n, m) // 2] + 0.3 * b[: min(n, m) // 2]
    tie = 8 * torch.finfo(dtype).eps
    assume(ties_are_clear(a, b, tie))
    strategy = make_strategy("mutual-nearest", threshold=threshold, ratio=ratio, tile=tile)
    found = strategy.match(a.to(dtype), b.to(dtype))
    expected = textbook(a, b, tie, threshold, ratio)
    assert set(map(tuple, found.indices.tolist())) == set(expected)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    for pair, score in zip(found.indices.tolist(), found.scores.tolist(), strict=True):
        assert score == pytest.approx((1 + expected[tuple(pair)]) / 2, abs=1e-6)


@pytest.mark.parametrize("tile", [None, 1, 2])
def test_of_equal_descriptions_the_first_counts_and_the_ratio_test_refuses_them(tile: int | None) -> None:
    a, b = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0.0, 1], [1, 0], [1, 0], [1, 0]])
    plain = make_strategy("mutual-nearest", tile=tile).match(a, b)
    assert sorted(plain.indices.tolist()) == [[0, 1], [1, 0]]
    tested = make_strategy("mutual-nearest", ratio=1.0, tile=tile).match(a, b)
    assert tested.indices.tolist() == [[1, 0]]


def test_the_ratio_is_of_distances_seen_from_image_0() -> None:
    """Distances of unit vectors at 20 and 40 degrees: 2 sin 10 and 2 sin 20."""

    def at(*degrees: float) -> Tensor:
        angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
        return torch.stack([angles.cos(), angles.sin()], dim=1)

    ratio = math.sin(math.radians(10)) / math.sin(math.radians(20))
    for a, b, expected in ((at(0), at(20, 40), False), (at(20, 40), at(0), True)):
        assert len(make_strategy("mutual-nearest", ratio=ratio + 1e-6).match(a, b)) == 1
        assert len(make_strategy("mutual-nearest", ratio=ratio - 1e-6).match(a, b)) == expected


def test_opposite_nearest_neighbours_have_score_0() -> None:
    a = torch.tensor([[0.6, 0.8]])
    found = make_strategy("mutual-nearest").match(a, -a)
    assert found.scores.tolist() == pytest.approx([0.0], abs=1e-6)
    assert len(make_strategy("mutual-nearest", threshold=-0.99).match(a, -a)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -1.5}, "threshold of mutual-nearest is a cosine and must be -1 to 1, got -1.5"),
        ({"threshold": math.nan}, "threshold of mutual-nearest"),
        ({"ratio": 0.0}, "ratio must be above 0 and at most 1, got 0.0"),
        ({"ratio": 1.1}, "ratio must be above 0"),
        ({"tile": 0}, "tile must be at least 1, got 0"),
        ({"order": 4}, "strategy 'mutual-nearest' has no option 'order'"),
        ({"inverse_temperature": 20.0}, "strategy 'mutual-nearest' has no option 'inverse_temperature'"),
        ({"kernels": "tiled"}, "strategy 'mutual-nearest' has no option 'kernels'"),
    ],
)
def test_wrong_options_of_mutual_nearest(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_strategy("mutual-nearest", **options)  # type: ignore[arg-type]


# Memory ---------------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor that was made, and the most bytes that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.live = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        weakref.finalize(storage, self._free, key, size)
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)

    def _free(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def test_allocations_are_seen() -> None:
    with Allocations() as memory:
        a = torch.zeros(1000)
        for _ in range(3):
            a = a + torch.ones(1000)
    assert memory.largest == 4000
    assert 8000 <= memory.peak <= 12000
    del a
    assert memory.live == 0


@pytest.mark.parametrize(
    ("strategy", "steerer"),
    [
        ("dual-softmax", None),
        ("max-similarity", Steerer.spread(64)),
        ("max-matches", Steerer.perm(64)),
        ("procrustes", Steerer.freq1(64)),
    ],
)
def test_memory_of_many_keypoints(strategy: str, steerer: Steerer | None) -> None:
    n = 4000
    a, b, _ = planted(steerer or Steerer.inv(64), 0.0, n, n, noise=0.5)
    matcher = make_strategy(strategy, steerer)
    with Allocations() as memory:
        found = matcher.match(a, b)
    assert len(found) > n // 2
    assert memory.largest < n * n / 4 * a.element_size()  # a quarter of the matrix that the textbook makes several of
    assert memory.peak < 64e6


def test_memory_grows_with_the_number_of_keypoints_alone() -> None:
    steerer = Steerer.spread(16)
    peaks = []
    for n in (1500, 3000):
        a, b = randn(n, 16, dtype=torch.float32), randn(n, 16, seed=1, dtype=torch.float32)
        with Allocations() as memory:
            assign(Rotated(a, b, steerer, rotations_of(4), maximum=True), tile=128)
        peaks.append(memory.peak)
    assert peaks[1] < 2.2 * peaks[0]
