"""Work on several cores of a CPU that may have other work to do.

PyTorch runs every operator on all its threads and waits for the last of them. Where another process keeps a core busy,
each such wait takes as long as that process is given the core, thousands of times in one match. Here it is the other
way round: a job is cut into large pieces, which threads of a pool take one by one, each computing alone; what a thread
that is kept waiting does not take, the others do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_pools: dict[int, ThreadPoolExecutor] = {}
_making = threading.Lock()
_working = threading.local()


def spread(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``function`` of every item, in their order: on as many threads as PyTorch has, each with one of its own.

    The calling thread waits; called by a thread of the pool, that one works along, so that jobs may be parts of jobs.
    An error in one piece is raised when the others that were begun have ended.
    """
    graded = torch.is_grad_enabled()  # in this thread; others have a mode of their own

    def compute(item: T) -> R:
        with torch.set_grad_enabled(graded):
            return function(item)

    pieces = list(items)
    if in_pool() or torch.get_num_threads() == 1:
        return _shared(compute, pieces, _own_pool())
    pool = _pool(torch.get_num_threads())
    return pool.submit(_shared, compute, pieces, pool).result()


def spread_on(device: torch.device, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """:func:`spread` where tensors lie on the CPU; other devices are asked for one item after another."""
    return spread(function, items) if device.type == "cpu" else list(map(function, items))


def alone(function: Callable[[], R]) -> R:
    """``function()`` on one thread of the pool, whatever PyTorch's number of threads is; inside the pool, as it is."""
    return spread(lambda _: function(), [None])[0]


def in_pool() -> bool:
    """Whether this thread is one of a pool, in which PyTorch has one thread."""
    return _own_pool() is not None


def idle_cores() -> int:
    """How many cores no other process uses right now; all of them where that cannot be told."""
    cores = os.cpu_count() or 1
    try:
        with open("/proc/loadavg", encoding="ascii") as file:  # "0.20 0.18 0.12 1/80 11206": 1 is running, this one
            others = int(file.read().split()[3].split("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        others = round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(0, cores - others)


# The pool -------------------------------------------------------------------------------------------------------------


def _own_pool() -> ThreadPoolExecutor | None:
    """That of which this thread is one."""
    pool: ThreadPoolExecutor | None = getattr(_working, "pool", None)
    return pool


def _shared(function: Callable[[T], R], pieces: list[T], pool: ThreadPoolExecutor | None) -> list[R]:
    """Take pieces as long as there are some, and let the other threads of the pool do so too."""
    results: dict[int, R] = {}
    left = iter(range(len(pieces)))
    taking = threading.Lock()

    def take() -> None:
        while True:
            with taking:
                index = next(left, None)
            if index is None:
                return
            results[index] = function(pieces[index])

    helpers = [] if pool is None else [pool.submit(take) for _ in range(min(pool._max_workers, len(pieces)) - 1)]
    try:
        take()
    finally:
        with taking:
            for _ in left:  # nothing is begun any more
                pass
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[index] for index in range(len(pieces))]


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of so many threads; made once."""
    with _making:
        if threads not in _pools:
            _pools[threads] = _make_pool(threads)
        return _pools[threads]


def _make_pool(threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, "steerers")
    together = threading.Barrier(threads)
    for made in [pool.submit(_begin, pool, together) for _ in range(threads)]:
        made.result()
    torch.set_num_threads(threads)  # what threads of the user will have: the pool's number is the last that was set
    return pool


def _begin(pool: ThreadPoolExecutor, together: threading.Barrier) -> None:
    """In each thread of a pool: all have to come before one leaves, so that none comes twice."""
    together.wait()
    _working.pool = pool
    torch.get_num_threads()  # a thread takes the number that was last set when it first asks: here, so that it is past
    torch.set_num_threads(1)  # of this thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a child has none of the threads
