"""Where kernels can run, with devices that are not there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from steerers.accel import support
from steerers.accel.networks import layers
from steerers.accel.support import capable, unavailable

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is known of devices is asked again, and forgotten afterwards; Triton is there and nothing is interpreted."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    unavailable.cache_clear()
    yield
    unavailable.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "capability", lambda device: (9, 0))


def test_without_triton_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert unavailable(GPU) == "Triton is not installed"
    assert not layers.has_kernels(GPU)
    assert caplog.messages == []


def test_on_a_cpu() -> None:
    assert unavailable(torch.device("cpu")) == "they need a CUDA device, not cpu"
    assert not capable(torch.device("cpu"))
    assert not layers.has_kernels(torch.device("cpu"))


def test_the_interpreter_is_enough_for_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert unavailable(torch.device("cpu")) is None
    assert not layers.has_kernels(torch.device("cpu"))


def test_old_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert unavailable(GPU) == "Tesla T4 is older than compute capability 8.0"
    assert not capable(GPU)


def test_other_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    support.capability.cache_clear()
    assert unavailable(GPU) == "they are written for NVIDIA's GPUs"
    assert not capable(GPU)
    support.capability.cache_clear()


@pytest.mark.usefixtures("gpu")
def test_triton_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "steerers.accel.common_kernels", SimpleNamespace(try_out=lambda device: None))
    assert unavailable(GPU) is None
    assert layers.has_kernels(GPU)


@pytest.mark.usefixtures("gpu")
def test_want_of_memory_says_nothing_about_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(sys.modules, "steerers.accel.common_kernels", SimpleNamespace(try_out=fail))
    with pytest.raises(torch.OutOfMemoryError):
        unavailable(GPU)
    monkeypatch.setitem(sys.modules, "steerers.accel.common_kernels", SimpleNamespace(try_out=lambda device: None))
    assert unavailable(GPU) is None


@pytest.mark.usefixtures("gpu")
def test_triton_that_does_not_work_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError(f"Failed to find C compiler\nfor {device}")

    monkeypatch.setitem(sys.modules, "steerers.accel.common_kernels", SimpleNamespace(try_out=fail))
    for _ in range(2):
        assert not layers.has_kernels(GPU)
    assert unavailable(GPU) == "Triton is installed but does not work on cuda:0: Failed to find C compiler"
    assert caplog.messages == [
        "Triton is installed but does not work on cuda:0, so that PyTorch's own kernels are used, which is slower: "
        "Failed to find C compiler"
    ]
