"""The fused kernels as the strategies call them: what they can solve, how, and recordings of what they launch.

Launching takes longer than the work of some thousand keypoints. So a pair whose sizes come again is recorded as a CUDA
graph and replayed from then on. Recordings keep memory: see :data:`NUM_RECORDINGS` and :func:`forget_recordings`.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from steerers.accel.matching.batching import Footprint, problems
from steerers.accel.matching.plans import (
    Operands,
    Plan,
    alternatives_plan,
    cosine_plan,
    maximum_plan,
    modulus_plan,
    rotation_plan,
)
from steerers.accel.matching.results import Ordered, Results
from steerers.accel.matching.solver import Task, launch
from steerers.accel.support import unavailable
from steerers.matching.assignment import SAFE_EXPONENT, Assignment, Options, Solution
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import Aligned, Cosine, CosineAfterRotation, Similarity, Steered, float_type

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


# What is solved -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fused:
    """The solution by fused kernels, of pairs that share a plan; launched when it is asked for."""

    operands: Sequence[Operands]
    options: Options

    def assignments(self) -> list[list[Assignment]]:
        return self._launch(ordered=True).assignments()

    def best(self) -> list[tuple[int, Assignment]]:
        return self._launch(ordered=False).best()

    def counts(self) -> list[tuple[int, int]]:
        return self._launch(ordered=False).counts()

    def _launch(self, *, ordered: bool) -> Results:
        task, pair = Task(self.options, ordered), self.operands[0]
        alone = len(self.operands) == 1 and pair.descriptions0.is_cuda
        return _replayed(pair, task) if alone and _is_recorded(pair, task) else launch(self.operands, task)


def solve(similarities: Sequence[Similarity], options: Options) -> Solution | None:
    """The solution by fused kernels, or ``None`` where they are not asked for or cannot run.

    Raises:
        ValueError: where they cannot run and ``options.kernels`` is ``"fused"``.
    """
    if not similarities or not uses_kernels(options, similarities[0].device):
        return None
    known = [pair for pair in map(operands, similarities) if pair is not None]
    reason = None
    if len(known) < len(similarities) or any(pair.plan is not known[0].plan for pair in known):
        reason = f"they do not know {type(similarities[0]).__name__} of these descriptions"
    elif options.precision == "exact" and known[0].descriptions0.dtype == torch.float64:
        reason = "with precision 'exact' they have float32, and the descriptions float64"
    return Fused(known, options) if _can_run(options, reason) else None


def uses_kernels(options: Options, device: torch.device) -> bool:
    """Whether the fused kernels are asked for and can run on a device, for similarities that they know."""
    if options.kernels == "tiled" or (options.kernels == "auto" and device.type != "cuda"):
        return False
    reason = unavailable(device)
    if reason is None and options.inverse_temperature > SAFE_EXPONENT:
        reason = f"they take inverse temperatures up to {SAFE_EXPONENT:g}, got {options.inverse_temperature:g}"
    return _can_run(options, reason)


def _can_run(options: Options, reason: str | None) -> bool:
    """Whether there is no reason against it; an error if there is one and they must."""
    if reason is not None and options.kernels == "fused":
        raise ValueError(f"the fused kernels cannot run: {reason}")
    return reason is None


# Operands of every similarity -----------------------------------------------------------------------------------------


@singledispatch
def operands(similarity: Similarity) -> Operands | None:
    """What the fused kernels need to know of a similarity, or ``None`` if they cannot make its scores."""
    return None


@operands.register
def _(similarity: Cosine) -> Operands:
    matrices = None if similarity.matrix is None else similarity.matrix[None]
    return _cosine(similarity, matrices)


@operands.register
def _(similarity: Aligned) -> Operands:
    return _cosine(similarity, copied=similarity.descriptions0.nbytes + similarity.descriptions1.nbytes)


@operands.register
def _(similarity: CosineAfterRotation) -> Operands:
    plan = rotation_plan(similarity.steerer, similarity.order, similarity.step, similarity.device)
    if plan is not None:
        return Operands(similarity.descriptions0, similarity.descriptions1, plan)
    matrix = similarity.steerer.matrix(similarity.angle).to(similarity.device, float_type(similarity.descriptions0))
    return _cosine(similarity, matrix[None])


@operands.register
def _(similarity: Steered) -> Operands | None:
    return None if similarity.maximum else _cosine(similarity, similarity.matrices)


@operands.register
def _(similarity: Rotated) -> Operands | None:
    of = similarity.harmonics
    make = maximum_plan if similarity.maximum else alternatives_plan
    plan = make(of.steerer, similarity.order, similarity.device)
    return None if plan is None else Operands(of.descriptions0, of.descriptions1, plan)


@operands.register
def _(similarity: Continuous) -> Operands | None:
    of = similarity.harmonics
    plan = modulus_plan(of.steerer, of.order, similarity.device)
    return None if plan is None else Operands(of.descriptions0, of.descriptions1, plan)


def _cosine(similarity: Cosine | Steered, matrices: Tensor | None = None, copied: int = 0) -> Operands:
    """Of a plain cosine, or of those after (L, D, D) matrices."""
    first, second = similarity.descriptions0, similarity.descriptions1
    return Operands(first, second, cosine_plan(first.shape[1], similarity.device), matrices, copied)


# Recordings -----------------------------------------------------------------------------------------------------------


def forget_recordings() -> None:
    """Let go of the recorded launches and their memory, on every GPU."""
    _decided.clear()
    if _recordings.cache_info().currsize:
        _recordings().clear()


def _is_recorded(pair: Operands, task: Task) -> bool:
    """Whether a pair may be recorded; decided once for its sizes."""
    if pair.matrices is not None or not task.options.graphs:
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
    footprint = Footprint(plan, task.config_for(plan, first.device), task.options.precision)
    return plan.alternatives * footprint.problem(n, m) + footprint.columns(m) <= min(RECORDED_WORK, task.budget)


def _replayed(pair: Operands, task: Task) -> Results:
    first, second, plan = pair.descriptions0, pair.descriptions1, pair.plan
    whole, device = ((0, len(first), 0, len(second)),), str(first.device)
    # A recording reads these tables: as constants they live as long as it does.
    tables = (problems(whole, 1, 0, device), problems(whole, plan.alternatives, len(first), device))
    try:
        outputs = _recordings()(first, second, plan=plan, task=task, tables=tables)
    except RuntimeError as error:
        _give_up(error)
        return launch([pair], task)
    return _results(plan, task, outputs)


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


def _results(plan: Plan, task: Task, outputs: Outputs) -> Results:
    stats, first, second, *third = outputs
    last = third[0] if third else None
    if task.ordered:
        return Results(plan, plan.alternatives, stats, second, first[..., 1], None, Ordered(first, second, last))
    return Results(plan, plan.alternatives, stats, first, second, last)


def _outputs(descriptions0: Tensor, descriptions1: Tensor, *, plan: Plan, task: Task, tables: object) -> Outputs:
    """What is recorded."""
    results = launch([Operands(descriptions0, descriptions1, plan)], task)
    if task.ordered:
        ordered = results.sort()
        tensors = (results.stats, ordered.indices, ordered.scores, ordered.angles)
    else:
        tensors = (results.stats, results.probability, results.partner, results.rotation)
    return tuple(tensor for tensor in tensors if tensor is not None)


@lru_cache(maxsize=1)
def _recordings() -> Graphs:
    from steerers.accel.graphs import Graphs

    return Graphs(_outputs, NUM_RECORDINGS)
