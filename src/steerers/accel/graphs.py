"""Functions of tensors as CUDA graphs: a run of a hundred small kernels started by one call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from itertools import accumulate
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
NUM_MET = 64
"""How many shapes that came but once, or cannot be recorded, are remembered."""
PATIENCE = 4
"""A recording makes room for another when it was not used in this many calls for each that there may be: where more
shapes take turns than can be kept, recording them over and over would take longer than it saves."""
_CAPTURING = threading.Lock()  # there is one stream to record in on each device, for all recordings of a process


class Packed:
    """Tensors in one piece of memory, so that all are copied at once."""

    def __init__(self, tensors: Outputs) -> None:
        self.shapes = [(tensor.dtype, tensor.shape) for tensor in tensors]
        # The widest types first: then each begins at a multiple of its own width.
        self.order = sorted(range(len(tensors)), key=lambda index: -tensors[index].itemsize)
        parts = [tensors[index].contiguous().view(-1).view(torch.uint8) for index in self.order]
        self.bytes = torch.cat(parts)  # (bytes,)
        self.ends = list(accumulate(len(part) for part in parts))

    def copy(self) -> Outputs:
        """The tensors, in memory of their own that they share; each knows only of its own changes."""
        flat, start = self.bytes.clone(), 0
        copies: list[Tensor] = [flat] * len(self.shapes)
        for index, end in zip(self.order, self.ends, strict=True):
            dtype, shape = self.shapes[index]
            copies[index] = flat[start:end].view(dtype).view(shape).data
            start = end
        return tuple(copies)


class _Captured:
    """One run, recorded with tensors of its own to read and write."""

    def __init__(self, function: Callable[[], Outputs], inputs: Outputs, pool: Any) -> None:
        self.inputs, self.graph, self.used = inputs, torch.cuda.CUDAGraph(), 0
        self.device = inputs[0].device
        stream = _capture_stream(self.device)
        # Other threads may meanwhile use the GPU, which the default mode forbids them.
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self.outputs = Packed(function())

    def __call__(self, inputs: Outputs) -> Outputs:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.outputs.copy()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """PyTorch's own is on the device of the first recording, whatever the others are made on."""
    return torch.cuda.Stream(device)


class Graphs:
    """A function that is recorded as a CUDA graph when it meets the same shapes again, and replayed from then on.

    The function must do the same for all tensors of the same shapes: nothing may depend on their values. It is run
    without gradients and without autocast. What it returns is copied, so that a result lasts beyond the next call. On
    other devices, and for shapes that come but once, it is just called; so it is, from then on, for shapes whose
    recording does not fit in memory.

    Recordings made by one thread share what cuBLAS works in: two of these that are played at once, in two streams, may
    disturb each other.

    A recording reads and writes the very memory that it met. Tensors that the function makes are part of it, and so are
    those that it is given; whatever else it reads on the GPU must outlive it, or be among the constants, which a
    recording keeps, or be moved only together with a call of :meth:`clear`.

    Args:
        function: from tensors on one device, and constants by name, to a tuple of tensors.
        capacity: how many recordings are kept, the latest used; 0 for none at all. Shapes that came but once take none,
            nor do those that come while all that are kept are in use; see :data:`PATIENCE`.
    """

    def __init__(self, function: Callable[..., Outputs], capacity: int = 4) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative (0 records nothing), got {capacity}")
        self.function, self.capacity = function, capacity
        self._recorded: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._met: OrderedDict[Hashable, bool] = OrderedDict()  # whether to record it when it comes again
        self._inputs: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()
        self._lock, self._calls = threading.Lock(), 0
        self._pools: dict[torch.device, Any] = {}
        self._last: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None

    def __call__(self, *tensors: Tensor, **constants: Hashable) -> Outputs:
        device = tensors[0].device
        if not self.capacity or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return self._run(tensors, constants)
        with self._lock:
            if (
                torch.is_grad_enabled()
                or torch.is_inference_mode_enabled()
                or device.index != torch.cuda.current_device()
            ):
                with torch.cuda.device(device), torch.inference_mode(False), torch.no_grad():
                    return self._replay(tensors, constants)
            return self._replay(tensors, constants)  # entering those takes as long as a launch

    def _replay(self, tensors: Outputs, constants: dict[str, Hashable]) -> Outputs:
        stream, last = torch.cuda.current_stream(), self._last
        if last is not None and last[0] != stream:
            stream.wait_event(last[1])  # recordings share their memory, whatever stream they are played in
        key = (tuple((t.shape, t.dtype, t.device) for t in tensors), tuple(constants.items()))
        captured = self._look_up(key, tensors, constants)
        if captured is None:
            return self._run(tensors, constants)
        outputs = captured(tensors)
        if self._last is None or self._last[0] != stream:
            self._last = stream, torch.cuda.Event()
        self._last[1].record(stream)
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
        self._calls += 1
        captured = self._recorded.get(key)
        if captured is None and self._met.get(key) and self._has_room():
            captured = self._try_to_record(tensors, constants)
            if captured is None:
                self._met[key] = False
            else:
                del self._met[key]
                self._recorded[key] = captured
        if captured is None:
            self._met.setdefault(key, True)
            self._met.move_to_end(key)
            while len(self._met) > NUM_MET:
                self._met.popitem(last=False)
            return None
        captured.used = self._calls
        self._recorded.move_to_end(key)
        return captured

    def _has_room(self) -> bool:
        """Whether one more may be kept; those that were not used for long are let go."""
        while self._recorded and len(self._recorded) >= self.capacity:
            oldest = next(iter(self._recorded.values()))
            if self._calls - oldest.used <= PATIENCE * self.capacity:
                return False
            self._wait()
            self._recorded.popitem(last=False)
        used = {captured.device for captured in self._recorded.values()}
        self._pools = {device: pool for device, pool in self._pools.items() if device in used}  # others are gone
        return True

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
        inputs = tuple(self._own(t, index) for index, t in enumerate(tensors))
        self._run(inputs, constants)  # what is compiled or chosen once, for strides as these, is so before recording
        pool = self._pools.setdefault(tensors[0].device, torch.cuda.graph_pool_handle())
        stream = torch.cuda.current_stream()
        try:
            with _CAPTURING, torch.inference_mode(), torch.autocast("cuda", enabled=False):
                return _Captured(lambda: self.function(*inputs, **constants), inputs, pool)
        except BaseException:
            torch.cuda.set_stream(stream)  # a recording that breaks off leaves its own in place
            stream.synchronize()  # other recordings read these inputs too, perhaps in other streams
            raise

    def _own(self, given: Tensor, index: int) -> Tensor:
        """A copy of an input, which recordings for inputs of its shape share: no two are played at a time."""
        key = (index, given.shape, given.dtype, given.device)
        own = self._inputs.get(key)
        if own is None:
            own = self._inputs[key] = torch.empty(given.shape, dtype=given.dtype, device=given.device)
        return own.copy_(given)

    def _let_go(self) -> None:
        self._wait()
        self._recorded.clear()
        self._pools, self._last = {}, None

    def _wait(self) -> None:
        """Until the last replay is done, before what it uses is let go."""
        if self._last is not None:
            self._last[1].synchronize()
