"""Recorded runs: on the CPU the function is just called; what is recorded is tested where there is a GPU."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from steerers.accel.graphs import NUM_MET, PATIENCE, Graphs, Packed

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Doubling:
    """Counts how often it runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: Tensor, *, factor: float = 2.0, kept: Hashable = None) -> tuple[Tensor, ...]:
        self.runs += 1
        return x * factor, x.sum()


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))
        self.graphs = Graphs(self._compute)

    def _compute(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x * self.weight,)


def test_elsewhere_it_is_a_call() -> None:
    function = Doubling()
    graphs = Graphs(function)
    for factor in (2.0, 3.0, 3.0):
        doubled, total = graphs(torch.ones(4), factor=factor)
        assert torch.equal(doubled, torch.full((4,), factor))
        assert total == 4
    assert function.runs == 3
    graphs.clear()


def test_results_can_be_trained_with() -> None:
    weight = nn.Parameter(torch.ones(3))
    (doubled, _) = Graphs(Doubling())(torch.ones(3))
    assert not doubled.is_inference()
    assert not doubled.requires_grad
    (weight * doubled).sum().backward()
    assert torch.equal(weight.grad, doubled)  # type: ignore[arg-type]


def test_results_last() -> None:
    graphs = Graphs(lambda x: (x,))
    given = torch.ones(3)
    (kept,) = graphs(given)
    given.zero_()
    assert torch.equal(kept, torch.ones(3))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_calls_itself(copied: object) -> None:
    module = Module()
    other: Module = copied(module)  # type: ignore[operator]
    other.weight.data.fill_(5.0)
    assert module.graphs(torch.ones(1))[0] == 3
    assert other.graphs(torch.ones(1))[0] == 5


DTYPES = [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=6))
def test_packed_tensors_come_back(told: list[tuple[torch.dtype, list[int]]]) -> None:
    """Of any type and shape, empty and single ones too; what is copied lasts when the originals change."""
    tensors = tuple(torch.randint(0, 2, size).to(dtype) for dtype, size in told)
    packed = Packed(tensors)
    copies = packed.copy()
    packed.bytes.zero_()
    assert len(copies) == len(tensors)
    for copied, tensor in zip(copies, tensors, strict=True):
        assert copied.dtype == tensor.dtype
        assert torch.equal(copied, tensor)


def test_packed_tensors_can_be_changed_apart() -> None:
    """What one is changed to does not spoil the gradient of what was computed from another."""
    weight = nn.Parameter(torch.ones(3))
    values, others = Packed((torch.arange(3.0), torch.arange(4.0))).copy()
    loss = (weight * values).sum()
    others.add_(1)
    loss.backward()
    assert torch.equal(weight.grad, torch.arange(3.0))  # type: ignore[arg-type]


def test_packed_tensors_need_not_be_contiguous() -> None:
    grid = torch.arange(12).view(3, 4)
    transposed, column = Packed((grid.mT, grid[:, 1])).copy()
    assert torch.equal(transposed, grid.mT)
    assert torch.equal(column, grid[:, 1])


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must not be negative"):
        Graphs(Doubling(), -1)


def test_autocast_stays_outside() -> None:
    weight = torch.rand(4, 4)
    given = torch.rand(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (given @ weight).dtype == torch.bfloat16
        (product,) = Graphs(lambda x: (x @ weight,))(given)
    assert product.dtype == torch.float32
    assert torch.equal(product, given @ weight)


# What is recorded when, with what stands for recordings ---------------------------------------------------------------


class Recorder(Graphs):
    """Records by name; only :meth:`meet` is of use."""

    def __init__(self, capacity: int) -> None:
        super().__init__(Doubling(), capacity)
        self.made: list[str] = []
        self.failing: Exception | None = None
        self.name = ""

    def meet(self, name: str) -> str | None:
        self.name = name
        found: Any = self._look_up(name, (), {})
        return None if found is None else found.name

    def _record(self, tensors: object, constants: object) -> Any:
        if self.failing is not None:
            raise self.failing
        self.made.append(self.name)
        return SimpleNamespace(name=f"recording of {self.name}", used=0, device=torch.device("cpu"))


def test_a_recording_is_made_once_at_the_second_meeting() -> None:
    graphs = Recorder(2)
    assert graphs.meet("a") is None
    assert [graphs.meet("a") for _ in range(3)] == ["recording of a"] * 3
    assert graphs.made == ["a"]


def test_what_comes_but_once_drives_nothing_out() -> None:
    graphs = Recorder(2)
    for name in "aabb":
        graphs.meet(name)
    for number in range(3 * NUM_MET):
        assert graphs.meet(f"once {number}") is None
    assert [graphs.meet("a"), graphs.meet("b")] == ["recording of a", "recording of b"]
    assert graphs.made == ["a", "b"]
    assert len(graphs._met) <= NUM_MET


def test_others_may_come_between_the_meetings() -> None:
    graphs = Recorder(1)
    graphs.meet("a")
    for number in range(NUM_MET - 1):
        graphs.meet(f"once {number}")
    assert graphs.meet("a") == "recording of a"
    graphs.clear()
    assert graphs.meet("a") is None


def test_the_latest_used_recordings_are_kept() -> None:
    graphs = Recorder(2)
    for name in "aabb" + "a" * (2 * PATIENCE) + "cc":  # b was not used for long and goes for c
        graphs.meet(name)
    assert graphs.meet("a") == "recording of a"
    assert graphs.meet("c") == "recording of c"
    assert graphs.meet("b") is None
    assert graphs.made == ["a", "b", "c"]


def test_more_in_rotation_than_are_kept_do_not_drive_each_other_out() -> None:
    graphs = Recorder(2)
    for name in "abc" * 20:
        graphs.meet(name)
    assert graphs.made == ["a", "b"]
    assert graphs.meet("c") is None
    for _ in range(2 * PATIENCE + 1):  # what has room waits no longer
        graphs.meet("c")
    assert graphs.made == ["a", "b", "c"]


@pytest.mark.parametrize("within", [False, True])
def test_what_does_not_fit_in_memory_is_not_recorded_again(within: bool) -> None:
    graphs = Recorder(2)
    for name in "aab":
        graphs.meet(name)
    graphs.failing = torch.OutOfMemoryError("CUDA out of memory")
    if within:  # the end of a recording that broke off fails too
        graphs.failing, graphs.failing.__context__ = RuntimeError("capture was invalidated"), graphs.failing
    assert graphs.meet("b") is None
    graphs.failing = None
    assert [graphs.meet("b") for _ in range(3)] == [None] * 3
    assert [graphs.meet("a"), graphs.meet("a")] == [None, "recording of a"]  # it was let go, to make room


def test_other_errors_of_recording_are_raised() -> None:
    graphs = Recorder(2)
    graphs.meet("a")
    graphs.failing = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        graphs.meet("a")


@on_gpu
def test_recorded_at_the_second_meeting() -> None:
    function = Doubling()
    graphs = Graphs(function, capacity=2)
    for index in range(5):
        x = torch.full((4,), float(index), device="cuda")
        doubled, total = graphs(x)
        assert torch.equal(doubled, 2 * x)
        assert total == 4 * index
        assert not doubled.is_inference()
    assert function.runs == 3  # once as it is; once more, and once recorded; then it is replayed
    for factor in (3.0, 4.0, 3.0, 4.0, 3.0):
        assert torch.equal(graphs(torch.ones(4, device="cuda"), factor=factor)[0], torch.full((4,), factor).cuda())
    assert len(graphs._recorded) == 2


@on_gpu
def test_one_recording_makes_room_for_another() -> None:
    graphs = Graphs(lambda x: (x @ x,), capacity=1)
    for size in [8] * 3 + [16] * (PATIENCE + 4) + [8] * (PATIENCE + 4):
        x = torch.rand(size, size, device="cuda")
        torch.testing.assert_close(graphs(x)[0], x @ x)
    assert [captured.inputs[0].shape[0] for captured in graphs._recorded.values()] == [8]


@on_gpu
def test_recordings_played_in_two_streams() -> None:
    graphs, streams = Graphs(lambda x: ((3 * x + 1).sqrt(),)), [torch.cuda.Stream() for _ in range(2)]
    expected, found = [], []
    for index in range(12):
        with torch.cuda.stream(streams[index % 2]):
            x = torch.full((10_000_000,), float(index), device="cuda")
            expected.append((3 * x + 1).sqrt())
            found.append(graphs(x)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_recordings_on_two_gpus() -> None:
    graphs = Graphs(lambda x: (2 * x,))
    for index in range(6):
        for device in ("cuda:0", "cuda:1"):
            x = torch.full((4,), float(index), device=device)
            assert torch.equal(graphs(x)[0], 2 * x)


@on_gpu
def test_recordings_share_their_inputs() -> None:
    graphs = Graphs(lambda x, y, factor: (factor * x - y,))
    given = [torch.full((3, 4), float(k), device="cuda") for k in range(4)]
    for _ in range(3):
        for factor in (2.0, 3.0):
            assert torch.equal(graphs(given[2], given[1], factor=factor)[0], factor * given[2] - given[1])
            assert torch.equal(graphs(given[3], given[0], factor=factor)[0], factor * given[3])
    first, second = (captured.inputs for captured in graphs._recorded.values())
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert first[0] is not first[1]


@on_gpu
def test_a_recording_keeps_its_constants() -> None:
    class Table:
        def __init__(self) -> None:
            self.values = torch.arange(1000.0, device="cuda")

    graphs, table = Graphs(lambda x, table: (x + table.values,)), Table()
    for _ in range(3):
        (shifted,) = graphs(torch.ones(1000, device="cuda"), table=table)
        assert torch.equal(shifted, 1 + table.values)
    alive = weakref.ref(table)
    del table
    assert alive() is not None  # what a graph reads must not be given to others
    graphs.clear()
    assert alive() is None


@on_gpu
def test_nothing_is_recorded_without_capacity() -> None:
    function = Doubling()
    graphs = Graphs(function, capacity=0)
    for _ in range(4):
        graphs(torch.ones(4, device="cuda"))
    assert function.runs == 4


@on_gpu
def test_networks_are_recorded_by_several_threads() -> None:
    """PyTorch has one stream to record in: two recordings at once would be one."""

    def work(factor: float) -> list[bool]:
        graphs = Graphs(lambda x: (((x @ x).relu() @ x) * factor,))
        given = [torch.rand(n, n, device="cuda") for n in (8, 16, 24) for _ in range(3)]
        return [torch.allclose(graphs(x)[0], ((x @ x).relu() @ x) * factor, rtol=1e-3) for x in given]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(work, [1.0, 2.0, 3.0, 4.0]))


@on_gpu
def test_recordings_know_no_autocast() -> None:
    weight = torch.rand(16, 16, device="cuda")
    graphs = Graphs(lambda x: (x @ weight,))
    with torch.autocast("cuda", dtype=torch.float16):
        assert [graphs(weight)[0].dtype for _ in range(3)] == [torch.float32] * 3
