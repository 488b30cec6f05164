"""Fixtures of the whole suite: every numerical property in float32 and float64, and hypothesis without deadlines."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
from hypothesis import HealthCheck, settings

from helpers import TOLERANCES

# A loaded machine makes single examples slow; that says nothing about the code. To search longer:
# pytest --hypothesis-profile=thorough. `make fuzz` looks for damaged files that are not refused with the third.
_RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steerers", _RELAXED, max_examples=30)
settings.register_profile("thorough", _RELAXED, max_examples=500)
settings.register_profile("fuzz", _RELAXED, max_examples=2000)
settings.load_profile("steerers")


@pytest.fixture(scope="session", params=list(TOLERANCES), ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """float32, then float64. Of session scope, so that hypothesis takes it."""
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(scope="session")
def tolerance(dtype: torch.dtype) -> float:
    """How near to the truth a result in ``dtype`` must be."""
    return TOLERANCES[dtype]


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For commands that write to the current folder and to the user's cache: an empty folder that stands for both."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STEERERS_HOME", str(folder / "home"))
    return folder


@pytest.fixture
def strict_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every picture is above Pillow's own limit of pixels, as one of 200 megapixels is: ours alone shall count."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 10)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For many small matrices: on a loaded machine, threads that wait for each other take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def short_calls() -> Iterator[None]:
    """In Triton's interpreter a kernel's start exchanges the language for an interpreted one. Every call of a function
    within the kernel does so again, which takes half of the time; here only the first of a file does in a kernel."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton.runtime import interpreter

    original, exchanged = interpreter._patch_lang, set[str]()

    def start(fn: Any) -> Any:
        exchanged.clear()
        return original(fn)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__ not in exchanged:
            original(self.fn)
            exchanged.add(self.fn.__module__)
        return self.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", start)
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        yield


@pytest.fixture
def interpret(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Runs the file of a test again in a process where Triton's interpreter stands in for a GPU.

    Triton decides that when it is first imported. Skipped there, and where there is no Triton.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("is interpreted already")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    if triton < (3, 7) and numpy >= (2, 4):
        pytest.skip("this Triton's interpreter takes arrays of one element for numbers, which NumPy 2.4 refuses")

    def run() -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(request.path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "passed" in done.stdout

    return run
