"""Timings, every figure a ratio to the plain form in the same run; and here how time and memory are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """What a call takes: the median of its seconds, and the most memory it held beyond its inputs."""

    seconds: float
    extra_bytes: int


WARM_UP = 0.25
"""Seconds that a GPU works before it is timed: idle, its clocks are low."""


def measure(call: Callable[[], Any], device: torch.device, repeats: int = 5) -> Cost:
    """Time a call after a warm-up, then measure its memory in a run of its own."""
    warm_up(call, device)
    seconds = median(timed(call, device)[1] for _ in range(repeats))
    return Cost(seconds, peak_memory(call, device))


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What a call gives and the seconds it takes; the device is idle before and after."""
    start = now(device)
    result = call()
    return result, now(device) - start


def warm_up(call: Callable[[], Any], device: torch.device) -> None:
    """Call once; on a GPU until its clocks are up."""
    call()
    if device.type == "cuda":
        begin = now(device)
        while now(device) - begin < WARM_UP:
            call()


def peak_memory(call: Callable[[], Any], device: torch.device) -> int:
    """Most bytes of tensors that were alive at once during a call, less those alive before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return _peak_cpu_memory(call)


def _peak_cpu_memory(call: Callable[[], Any]) -> int:
    """From the allocator's own events, which PyTorch's profiler records in its trace: those of this thread, so that it
    has to do all the work."""
    activities, threads = [torch.profiler.ProfilerActivity.CPU], torch.get_num_threads()
    with _quiet_profiler(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        torch.set_num_threads(1)
        try:
            call()
        finally:
            torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    allocations = [event for event in events if event.get("name") == "[memory]"]
    allocations.sort(key=lambda event: float(event["ts"]))
    return max(accumulate((int(event["args"]["Bytes"]) for event in allocations), initial=0))


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep the profiler's own log lines off standard error."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
        else:
            os.environ["KINETO_LOG_LEVEL"] = before


def now(device: torch.device) -> float:
    """Seconds, when all that was asked of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(100_000): pass"


@contextmanager
def busy_neighbours(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes beside this one, each of which keeps a core busy, as other programs of a user do."""
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield others
    finally:
        for other in others:
            other.kill()
            other.wait()
