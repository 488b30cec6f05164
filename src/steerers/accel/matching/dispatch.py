"""The fused kernels as the assignment calls them, and recordings of what they launch.

Launching takes longer than the work of some thousand keypoints. So a pair whose sizes come again is recorded as a CUDA
graph and replayed from then on. Recordings keep memory: see :data:`NUM_RECORDINGS` and :func:`forget_recordings`.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import Tensor

from steerers.accel.matching.batching import Footprint, problems
from steerers.accel.matching.plans import Operands, Plan
from steerers.accel.matching.results import Found, Ordered
from steerers.accel.matching.solver import Task, launch

if TYPE_CHECKING:
    from steerers.accel.graphs import Graphs, Outputs

NUM_RECORDINGS = 16
"""How many are kept, the latest used."""
MOST_DECIDED = 256
"""Sizes for which it is kept in mind whether they may be recorded."""
RECORDED_INPUTS = 12 << 20
"""Most bytes of descriptions of a recorded pair, of which recordings of its sizes have a copy."""
RECORDED_WORK = 40 << 20
"""Most bytes that a recorded pair needs at work. Recordings share them, and those of the same sizes their copy of the
descriptions: all together keep at most this, a copy for each of the sizes, and some for results; for one size 52 MiB,
for 16 at most 232."""


def solve(operands: Sequence[Operands], task: Task) -> Found:
    """Launch everything for pairs of descriptions that share a plan; nothing is waited for."""
    if len(operands) == 1 and task.graphs and operands[0].descriptions0.is_cuda and _is_recorded(operands[0], task):
        return _replayed(operands[0], task)
    return launch(operands, task)


def forget_recordings() -> None:
    """Let go of the recorded launches and their memory, on every GPU."""
    _decided.clear()
    if _recordings.cache_info().currsize:
        _recordings().clear()


def _is_recorded(pair: Operands, task: Task) -> bool:
    """Whether a pair may be recorded; decided once for its sizes."""
    if pair.matrices is not None:
        return False
    first, second = pair.descriptions0, pair.descriptions1
    decided = _decided.setdefault(pair.plan, {})
    key = (task, first.shape, second.shape, first.itemsize, first.device)
    if key not in decided:
        if len(decided) >= MOST_DECIDED:
            decided.clear()
        decided[key] = _may_be_recorded(pair, task)
    return decided[key]


_decided: WeakKeyDictionary[Plan, dict[Hashable, bool]] = WeakKeyDictionary()


def _may_be_recorded(pair: Operands, task: Task) -> bool:
    """If everything goes in one launch of each kernel, and the memory is worth keeping."""
    first, second, plan = pair.descriptions0, pair.descriptions1, pair.plan
    n, m = len(first), len(second)
    if not n or not m or first.nbytes + second.nbytes > RECORDED_INPUTS:
        return False
    footprint = Footprint(plan, task.config_for(plan, first.device), task.precision)
    return plan.alternatives * footprint.problem(n, m) + footprint.columns(m) <= min(RECORDED_WORK, task.budget)


def _replayed(pair: Operands, task: Task) -> Found:
    first, second, plan = pair.descriptions0, pair.descriptions1, pair.plan
    whole, device = ((0, len(first), 0, len(second)),), str(first.device)
    # A recording reads these tables: as constants they live as long as it does.
    tables = (problems(whole, 1, 0, device), problems(whole, plan.alternatives, len(first), device))
    try:
        outputs = _recordings()(first, second, plan=plan, task=task, tables=tables)
    except RuntimeError as error:
        _give_up(error)
        return launch([pair], task)
    return _found(plan, task, outputs)


def _give_up(error: RuntimeError) -> None:
    """Record nothing from here on, and say so, once. What is wrong with the descriptions shows without a recording."""
    recordings = _recordings()
    recordings.capacity = 0
    recordings.clear()
    warnings.warn(
        f"matching could not be recorded as a CUDA graph and is launched step by step from here on: {error}",
        RuntimeWarning,
        stacklevel=2,
    )


def _found(plan: Plan, task: Task, outputs: Outputs) -> Found:
    stats, first, second, *third = outputs
    last = third[0] if third else None
    if task.ordered:
        return Found(plan, plan.alternatives, stats, second, first[..., 1], None, Ordered(first, second, last))
    return Found(plan, plan.alternatives, stats, first, second, last)


def _outputs(descriptions0: Tensor, descriptions1: Tensor, *, plan: Plan, task: Task, tables: object) -> Outputs:
    """What is recorded."""
    found = launch([Operands(descriptions0, descriptions1, plan)], task)
    if task.ordered:
        ordered = found.sort()
        tensors = (found.stats, ordered.indices, ordered.scores, ordered.angles)
    else:
        tensors = (found.stats, found.probability, found.partner, found.rotation)
    return tuple(tensor for tensor in tensors if tensor is not None)


@lru_cache(maxsize=1)
def _recordings() -> Graphs:
    from steerers.accel.graphs import Graphs

    return Graphs(_outputs, NUM_RECORDINGS)
