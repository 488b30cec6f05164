"""How time and memory are measured."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest
import torch

from steerers.benchmarks.speed import Cost, measure, peak_memory, warm_up

CPU = torch.device("cpu")
MB = 1_000_000
DEVICES = [
    CPU,
    pytest.param(torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA")),
]


def megabytes(number: float, device: torch.device = CPU) -> torch.Tensor:
    return torch.ones(int(number * MB / 4), device=device)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("number", [1, 8, 50])
def test_an_allocation_counts(device: torch.device, number: int) -> None:
    def call() -> None:
        megabytes(number, device)

    assert peak_memory(call, device) == pytest.approx(number * MB, rel=0.1)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_allocations_after_each_other_count_once(device: torch.device) -> None:
    def call() -> None:
        for _ in range(5):
            held = megabytes(10, device)
            del held

    assert peak_memory(call, device) == pytest.approx(10 * MB, rel=0.1)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_allocations_at_once_add_up(device: torch.device) -> None:
    def call() -> None:
        first, second = megabytes(10, device), megabytes(6, device)
        del first
        third = megabytes(8, device)
        del second, third

    assert peak_memory(call, device) == pytest.approx(16 * MB, rel=0.1)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_result_that_is_kept_counts(device: torch.device) -> None:
    kept = []
    assert peak_memory(lambda: kept.append(megabytes(10, device)), device) == pytest.approx(10 * MB, rel=0.1)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_what_was_there_before_does_not_count(device: torch.device) -> None:
    before = megabytes(30, device)
    assert peak_memory(lambda: before.mul_(2), device) < MB
    held = [before, megabytes(20, device)]
    assert peak_memory(held.clear, device) < MB  # freed, not held


def test_temporaries_of_an_operation_count() -> None:
    a = torch.ones(1000, 500)  # 2 MB
    assert peak_memory(lambda: (a + 1).exp().sum(), CPU) == pytest.approx(4 * MB, rel=0.1)
    assert peak_memory(lambda: a @ a.mT, CPU) == pytest.approx(4 * MB, rel=0.1)


def test_time_is_the_median_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 1, 50 and 2 seconds by a clock of our own; the first call is not timed, the last is for memory."""
    clock = itertools.chain.from_iterable((start, start + taken) for start, taken in ((0, 1), (10, 50), (100, 2)))
    monkeypatch.setattr("steerers.benchmarks.speed.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    calls = []

    def call() -> None:
        calls.append(megabytes(1).sum())

    cost = measure(call, CPU, repeats=3)
    assert cost.seconds == 2
    assert cost.extra_bytes == pytest.approx(MB, rel=0.1)
    assert len(calls) == 5
    assert next(clock, None) is None


@pytest.mark.parametrize(("device", "calls"), [("cpu", 1), ("cuda", 4)])
def test_a_gpu_works_before_it_is_timed(device: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own, that a call advances by a tenth of a second."""
    made: list[int] = []
    monkeypatch.setattr("steerers.benchmarks.speed.now", lambda _: 0.1 * len(made))
    warm_up(lambda: made.append(1), torch.device(device))
    assert len(made) == calls


def test_real_time() -> None:
    cost = measure(lambda: torch.ones(100).sum(), CPU, repeats=2)
    assert isinstance(cost, Cost)
    assert 0 < cost.seconds < 1


@pytest.mark.parametrize("level", [None, "3"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, level: str | None, fails: bool) -> None:
    if level is None:
        monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)

    def call() -> None:
        if fails:
            raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            peak_memory(call, CPU)
    else:
        assert peak_memory(call, CPU) == 0
    assert os.environ.get("KINETO_LOG_LEVEL") == level
