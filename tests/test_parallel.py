"""Jobs in large pieces, each computed alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from steerers import _parallel
from steerers._parallel import alone, idle_cores, in_pool, spread


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_results_in_order(threads: int, count: int) -> None:
    assert spread(lambda k: k * k, range(count)) == [k * k for k in range(count)]


def test_every_piece_computes_alone_and_the_caller_keeps_its_threads(threads: int) -> None:
    assert set(spread(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert alone(torch.get_num_threads) == 1
    assert torch.get_num_threads() == threads
    seen: list[int] = []
    started = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    started.start()
    started.join()
    assert seen == [threads]  # threads of the user's too


def test_pieces_run_at_once() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = threading.Barrier(3, timeout=20)
        spread(lambda _: together.wait(), range(3))  # breaks unless all three are there
    finally:
        torch.set_num_threads(before)


def test_jobs_within_jobs(threads: int) -> None:
    inner = spread(lambda k: sum(spread(lambda j: 10 * k + j, range(5))), range(6))
    assert inner == [50 * k + 10 for k in range(6)]
    assert not in_pool()
    assert alone(in_pool) == (threads > 1)


def test_errors_come_through_and_nothing_more_is_begun(threads: int) -> None:
    begun: list[int] = []

    def fail(k: int) -> None:
        begun.append(k)
        raise ValueError(f"piece {k}")

    with pytest.raises(ValueError, match="piece"):
        spread(fail, range(100))
    assert len(begun) <= threads
    assert spread(lambda k: k, range(3)) == [0, 1, 2]


def test_gradients_are_on_or_off_as_for_the_caller(threads: int) -> None:
    with torch.no_grad():
        assert spread(lambda _: torch.is_grad_enabled(), range(4)) == [False] * 4
    assert spread(lambda _: torch.is_grad_enabled(), range(4)) == [True] * 4


def test_many_threads_of_the_user_at_once(threads: int) -> None:
    """More jobs than the pool has threads: whoever is kept waiting does its pieces itself."""
    found: list[list[int]] = []
    users = [
        threading.Thread(target=lambda: found.append(spread(lambda k: sum(spread(abs, range(k))), range(6))))
        for _ in range(8)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join(timeout=30)
    assert found == [[0, 0, 1, 3, 6, 10]] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_makes_a_pool_of_its_own() -> None:
    code = (
        "import os, torch\n"
        "from steerers._parallel import spread\n"
        "torch.set_num_threads(2)\n"
        "spread(abs, range(4))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if spread(abs, range(4)) == [0, 1, 2, 3] else 1)\n"
        "raise SystemExit(os.waitpid(child, 0)[1])\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=60).returncode == 0


def test_idle_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    cores = os.cpu_count() or 1
    assert 0 <= idle_cores() <= cores

    def unreadable(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(_parallel, "open", unreadable, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.2, 0.0, 0.0), raising=False)
    assert idle_cores() == cores
    monkeypatch.setattr(os, "getloadavg", lambda: (cores + 5.0, 0.0, 0.0), raising=False)
    assert idle_cores() == 0
