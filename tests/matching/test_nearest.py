"""Mutual nearest neighbours against their textbook form: dense, in float64, one comparison a line."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, seeds
from matching.reference import unit
from steerers.matching import make_strategy

pytestmark = pytest.mark.usefixtures("one_thread")


def textbook(a: Tensor, b: Tensor, threshold: float = -1.0, ratio: float | None = None) -> dict[tuple[int, int], float]:
    """Matches with their cosines."""
    distances = (unit(a)[:, None] - unit(b)[None]).norm(dim=2)  # (N, M)
    found = {}
    for i, row in enumerate(distances):
        j = int(row.argmin())
        cosine = 1 - float(row[j]) ** 2 / 2
        mutual = int(distances[:, j].argmin()) == i
        others = torch.cat([row[:j], row[j + 1 :]])
        unambiguous = ratio is None or not len(others) or float(row[j]) < ratio * float(others.min())
        if mutual and unambiguous and cosine >= threshold:
            found[i, j] = cosine
    return found


@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    threshold=st.sampled_from([-1.0, 0.0, 0.3]),
    ratio=st.sampled_from([None, 0.7, 0.9, 1.0]),
    tile=st.sampled_from([None, 1, 7, 64]),
    seed=seeds,
)
def test_against_the_textbook(
    n: int, m: int, threshold: float, ratio: float | None, tile: int | None, seed: int, dtype: torch.dtype
) -> None:
    a, b = randn(n, 8, seed=seed), randn(m, 8, seed=seed + 1)
    b[: min(n, m) // 2] = a[: min(n, m) // 2] + 0.3 * b[: min(n, m) // 2]
    strategy = make_strategy("mutual-nearest", threshold=threshold, ratio=ratio, tile=tile)
    found = strategy.match(a.to(dtype), b.to(dtype))
    expected = textbook(a, b, threshold, ratio)
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


def test_opposite_descriptions_match_with_score_0() -> None:
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
    ],
)
def test_wrong_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_strategy("mutual-nearest", **options)  # type: ignore[arg-type]
