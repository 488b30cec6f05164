"""Functions of tensors as CUDA graphs: a run of a hundred small kernels started by one call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
NUM_MET = 64
"""How many shapes that came but once, or cannot be recorded, are remembered."""
_CAPTURING = threading.Lock()  # PyTorch has one stream to record in, for all recordings of a process


class _Captured:
    """One run, recorded with tensors of its own to read and write."""

    def __init__(self, function: Callable[[], Outputs], inputs: Outputs, pool: Any) -> None:
        self.inputs, self.graph = inputs, torch.cuda.CUDAGraph()
        # Other threads may meanwhile use the GPU, which the default mode forbids them.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = function()

    def __call__(self, inputs: Outputs) -> Outputs:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)


class Graphs:
    """A function that is recorded as a CUDA graph when it meets the same shapes again, and replayed from then on.

    The function must do the same for all tensors of the same shapes: nothing may depend on their values. It is run
    without gradients and without autocast. What it returns is copied, so that a result lasts beyond the next call. On
    other devices, and for shapes that come but once, it is just called; so it is, from then on, for shapes whose
    recording does not fit in memory.

    A recording reads and writes the very memory that it met. Tensors that the function makes are part of it, and so are
    those that it is given; whatever else it reads on the GPU must outlive it, or be among the constants, which a
    recording keeps, or be moved only together with a call of :meth:`clear`.

    Args:
        function: from tensors on one device, and constants by name, to a tuple of tensors.
        capacity: how many recordings are kept, the latest used; 0 for none at all. Shapes that came but once take none.
    """

    def __init__(self, function: Callable[..., Outputs], capacity: int = 4) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative (0 records nothing), got {capacity}")
        self.function, self.capacity = function, capacity
        self._recorded: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._met: OrderedDict[Hashable, bool] = OrderedDict()  # whether to record it when it comes again
        self._lock = threading.Lock()
        self._pool: Any = None
        self._done: torch.cuda.Event | None = None

    def __call__(self, *tensors: Tensor, **constants: Hashable) -> Outputs:
        if not self.capacity or not tensors[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return self._run(tensors, constants)
        key = (tuple((t.shape, t.dtype, t.device) for t in tensors), tuple(sorted(constants.items())))
        with self._lock, torch.cuda.device(tensors[0].device), torch.inference_mode(False), torch.no_grad():
            captured = self._look_up(key, tensors, constants)
            if captured is None:
                return self._run(tensors, constants)
            stream = torch.cuda.current_stream()
            if self._done is not None:
                stream.wait_event(self._done)  # recordings share their memory, whatever stream they are played in
            outputs = captured(tensors)
            self._done = stream.record_event()
            return outputs

    def clear(self) -> None:
        """Forget all recordings: needed when what the function reads has moved."""
        with self._lock:
            self._let_go()
            self._met.clear()

    def __reduce__(self) -> tuple[type[Graphs], tuple[Callable[..., Outputs], int]]:
        return Graphs, (self.function, self.capacity)  # a copy records anew

    def _run(self, tensors: Outputs, constants: dict[str, Hashable]) -> Outputs:
        with torch.inference_mode(), torch.autocast(tensors[0].device.type, enabled=False):
            outputs = self.function(*tensors, **constants)
        with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be trained with
            return tuple(output.clone() for output in outputs)

    def _look_up(self, key: Hashable, tensors: Outputs, constants: dict[str, Hashable]) -> _Captured | None:
        """The recording for a key, made at the second call, for shapes that will come again."""
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return self._recorded[key]
        captured = self._try_to_record(tensors, constants) if self._met.get(key) else None
        if captured is None:
            self._met[key] = self._met.get(key) is None  # what was met and is not recorded cannot be
            self._met.move_to_end(key)
            while len(self._met) > NUM_MET:
                self._met.popitem(last=False)
            return None
        del self._met[key]
        while self._recorded and len(self._recorded) >= self.capacity:
            self._wait()
            self._recorded.popitem(last=False)
        self._recorded[key] = captured
        return captured

    def _try_to_record(self, tensors: Outputs, constants: dict[str, Hashable]) -> _Captured | None:
        """A recording, or None if there is no memory for it; then those that there were are gone too."""
        try:
            return self._record(tensors, constants)
        except RuntimeError as error:
            # One that breaks off for want of memory may end with an error of its own.
            if not any(isinstance(e, torch.OutOfMemoryError) for e in (error, error.__context__)):
                raise
        self._let_go()
        return None

    def _record(self, tensors: Outputs, constants: dict[str, Hashable]) -> _Captured:
        inputs = tuple(t.detach().clone(memory_format=torch.contiguous_format) for t in tensors)
        self._run(inputs, constants)  # what is compiled or chosen once, for strides as these, is so before recording
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream()
        try:
            with _CAPTURING, torch.inference_mode(), torch.autocast("cuda", enabled=False):
                return _Captured(lambda: self.function(*inputs, **constants), inputs, self._pool)
        except BaseException:
            torch.cuda.set_stream(stream)  # a recording that breaks off leaves its own in place
            raise

    def _let_go(self) -> None:
        self._wait()
        self._recorded.clear()
        self._pool, self._done = None, None

    def _wait(self) -> None:
        """Until the last replay is done, before what it uses is let go."""
        if self._done is not None:
            self._done.synchronize()
