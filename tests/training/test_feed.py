"""Batches by their step: which pairs they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from steerers.datasets.pairs import PairSource
from steerers.training import processes
from steerers.training.feed import Feed
from training.tiny import Numbers, config_of

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def feed_of(sources: Sequence[tuple[PairSource, float]], **changes: Any) -> Feed:
    return Feed(config_of(**changes), sources, CPU)


def test_every_pair_comes_once_before_any_comes_again() -> None:
    source = Numbers(7)
    with feed_of([(source, 1.0)], batch=3, steps=21) as feed:
        for step in range(21):
            feed.batch(step)
    drawn = [index for batch in source.drawn for index in batch]
    epochs = [drawn[start : start + 7] for start in range(0, 63, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 5  # each in an order of its own


def test_nothing_is_read_beyond_the_last_step() -> None:
    source = Numbers(7)
    with feed_of([(source, 1.0)], batch=2, steps=5) as feed:
        feed.batch(4)
        assert not feed.read
        assert not feed.made
    assert len(source.drawn) == 1


class Broken(Numbers):
    root = "photographs"

    def read(self, index: int) -> int:
        raise OSError("disk on fire")


def test_a_pair_that_cannot_be_read_is_named_with_its_source() -> None:
    expected = r"pair \d of photographs cannot be read: disk on fire; `steerers data check photographs` lists"
    with feed_of([(Broken(3), 1.0)]) as feed, pytest.raises(ValueError, match=expected):
        feed.batch(0)


def test_weighted_pairs_are_drawn_by_their_weights() -> None:
    source = Numbers(4, torch.tensor([1.0, 0.0, 3.0, 0.0]))
    feed = feed_of([(source, 1.0)], batch=8)
    counts = Counter(index for step in range(250) for index in feed._indices(step))
    assert set(counts) == {0, 2}
    assert counts[2] / 2000 == pytest.approx(0.75, abs=0.04)


def test_sources_are_drawn_by_their_shares() -> None:
    feed = feed_of([(Numbers(3), 0.2), (Numbers(3), 0.0), (Numbers(3), 0.6)])
    counts = Counter(feed._choose(step) for step in range(2000))
    assert set(counts) == {0, 2}
    assert counts[2] / 2000 == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("shares", [None, torch.arange(1.0, 12.0)])
def test_processes_draw_what_one_would(monkeypatch: pytest.MonkeyPatch, shares: Tensor | None) -> None:
    feed = feed_of([(Numbers(11, shares), 1.0)], batch=6)
    whole = [(feed._indices(step), feed._seeds(step)) for step in range(9)]
    assert len({seed for _, seeds in whole for seed in seeds}) == 54
    monkeypatch.setattr(processes, "world", lambda: 3)
    parts = []
    for rank in range(3):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        parts.append([(feed._indices(step), feed._seeds(step)) for step in range(9)])
    for step, expected in enumerate(whole):
        for k in (0, 1):
            assert [value for part in parts for value in part[step][k]] == expected[k]
    with pytest.raises(ValueError, match="batch 4 is not a multiple of the 3 processes"):
        feed_of([(Numbers(3), 1.0)], batch=4)
