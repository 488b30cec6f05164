"""Matching by fused kernels in Triton: what :mod:`steerers.matching.strategies` asks before it computes tile by tile.

Launching takes longer than the work of some thousand keypoints. So a pair of images whose sizes come again is recorded
as a CUDA graph, and replayed from then on. Recordings keep memory between calls: sixteen, of descriptions of up to
12 MiB (6000 and 6000 of length 256 in float32), which take 52 MiB for one size of them and 232 at most.
:func:`forget_recordings` gives it back, and strategies with ``graphs=False`` record nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import torch
from torch import Tensor

from steerers.accel.graphs import Graphs, Outputs
from steerers.accel.matching.plans import Operands, Plan, cosine_plan, modulus_plan, rotated_plan
from steerers.accel.matching.results import Ordered, Results
from steerers.accel.matching.solver import Solver, launch, problems
from steerers.accel.support import unavailable
from steerers.matching.assignment import SAFE_EXPONENT, Assignment, Options, Solution
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Rotated
from steerers.matching.similarity import Aligned, Cosine, CosineAfterRotation, Similarity, Steered, float_type

__all__ = ["forget_recordings", "solve"]
logger = logging.getLogger(__name__)
NUM_RECORDINGS = 16
"""How many are kept, the latest used."""
RECORDED_INPUTS = 12 << 20
"""Most bytes of descriptions of a recorded pair, of which recordings of its sizes have a copy."""
RECORDED_WORK = 40 << 20
"""Most bytes that a recorded pair needs at work. Recordings share them, and those of the same sizes their copy of the
descriptions: all together keep at most this, a copy for each of the sizes, and some for results."""


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
        pair, options = self.operands[0], self.options
        alone = len(self.operands) == 1 and pair.descriptions0.is_cuda
        if alone and _is_recorded(pair, options):
            return _replayed(pair, options, ordered=ordered)
        return launch(self.operands, options)


def solve(similarities: Sequence[Similarity], options: Options) -> Solution | None:
    """The solution by fused kernels, or ``None`` where they are not asked for or cannot run.

    Raises:
        ValueError: where they cannot run and ``options.kernels`` is ``"fused"``.
    """
    if not similarities or options.kernels == "tiled":
        return None
    device = similarities[0].device
    if options.kernels == "auto" and device.type != "cuda":
        return None
    known, reason = list[Operands](), unavailable(device)
    if reason is None and not options.mutual:
        reason = "they find matches that are mutually the most probable, and mutual is False"
    if reason is None and options.inverse_temperature > SAFE_EXPONENT:
        reason = f"they take inverse temperatures up to {SAFE_EXPONENT:g}, got {options.inverse_temperature:g}"
    if reason is None:
        known = [pair for pair in map(operands, similarities) if pair is not None]
        if len(known) < len(similarities) or any(pair.plan is not known[0].plan for pair in known):
            reason = f"they do not know {type(similarities[0]).__name__} of these descriptions"
        elif options.precision == "exact" and known[0].descriptions0.dtype == torch.float64:
            reason = "with precision 'exact' they have float32, and the descriptions float64"
    if reason is None:
        return Fused(known, options)
    if options.kernels == "fused":
        raise ValueError(f"the fused kernels cannot run: {reason}")
    return None


# Operands of every similarity -----------------------------------------------------------------------------------------


@singledispatch
def operands(similarity: Similarity) -> Operands | None:
    """What the fused kernels need to know of a similarity, or ``None`` if they cannot make its scores."""
    return None


@operands.register
def _(similarity: Cosine) -> Operands:
    return _cosine(similarity)


@operands.register
def _(similarity: Aligned) -> Operands:
    return _cosine(similarity, copied=similarity.descriptions0.nbytes + similarity.descriptions1.nbytes)


@operands.register
def _(similarity: CosineAfterRotation) -> Operands:
    plan = rotated_plan(similarity.steerer, (similarity.angle,), False, similarity.device)
    if plan is not None:
        return Operands(similarity.descriptions0, similarity.descriptions1, plan)
    matrix = similarity.steerer.matrix(similarity.angle).to(similarity.device, float_type(similarity.descriptions0))
    return _cosine(similarity, matrix[None])


@operands.register
def _(similarity: Steered) -> Operands | None:
    return None if similarity.maximum else _cosine(similarity, similarity.matrices)


@operands.register
def _(similarity: Rotated) -> Operands | None:
    plan = rotated_plan(similarity.steerer, similarity.angles, similarity.maximum, similarity.device)
    return None if plan is None else Operands(similarity.descriptions0, similarity.descriptions1, plan)


@operands.register
def _(similarity: Continuous) -> Operands | None:
    plan = modulus_plan(similarity.steerer, similarity.order, similarity.device)
    return None if plan is None else Operands(similarity.descriptions0, similarity.descriptions1, plan)


def _cosine(similarity: Similarity, matrices: Tensor | None = None, copied: int = 0) -> Operands:
    """Of a plain cosine, or of those after (L, D, D) matrices."""
    first, second = similarity.descriptions0, similarity.descriptions1
    return Operands(first, second, cosine_plan(first.shape[1], similarity.device), matrices, copied)


# Recordings -----------------------------------------------------------------------------------------------------------


def forget_recordings() -> None:
    """Let go of the recorded launches and their memory, on every GPU."""
    _may_be_recorded.cache_clear()
    _recordings.clear()


def _is_recorded(pair: Operands, options: Options) -> bool:
    """Whether a pair may be recorded."""
    if pair.matrices is not None or not options.graphs:
        return False
    first, second = pair.descriptions0, pair.descriptions1
    return _may_be_recorded(
        pair.plan, options, len(first), len(second), first.nbytes + second.nbytes, first.device
    )  # fmt: skip


@lru_cache(maxsize=256)
def _may_be_recorded(plan: Plan, options: Options, n: int, m: int, size: int, device: torch.device) -> bool:
    """If everything goes in one launch of each kernel, and the memory is worth keeping."""
    if not n or not m or size > RECORDED_INPUTS:
        return False
    solver = Solver(plan, options, device)
    return plan.alternatives * solver.problem_bytes(n, m) + solver.column_bytes(m) <= RECORDED_WORK


def _replayed(pair: Operands, options: Options, *, ordered: bool) -> Results:
    first, second, plan = pair.descriptions0, pair.descriptions1, pair.plan
    whole, device = ((0, len(first), 0, len(second)),), str(first.device)
    # A recording reads these tables: as constants they live as long as it does.
    tables = (problems(whole, 1, 0, device), problems(whole, plan.alternatives, len(first), device))
    try:
        outputs = _recordings(first, second, plan=plan, options=options, ordered=ordered, tables=tables)
    except RuntimeError as error:
        _give_up(error)
        return launch([pair], options)
    stats, *found = outputs
    if not ordered:
        return Results(plan, plan.alternatives, stats, *found)
    ranked = Ordered(*found)
    return Results(plan, plan.alternatives, stats, ranked.scores, ranked.indices[..., 1], ordered=ranked)


def _give_up(error: RuntimeError) -> None:
    """Record nothing from here on, and say so, once. What is wrong with the descriptions shows without a recording."""
    _recordings.capacity = 0
    _recordings.clear()
    logger.warning(
        "matching could not be recorded as a CUDA graph and is launched step by step from here on: %s", error
    )


def _outputs(
    descriptions0: Tensor, descriptions1: Tensor, *, plan: Plan, options: Options, ordered: bool, tables: object
) -> Outputs:
    """What is recorded."""
    results = launch([Operands(descriptions0, descriptions1, plan)], options)
    if ordered:
        ranked = results.sort()
        tensors = (results.stats, ranked.indices, ranked.scores, ranked.angles)
    else:
        tensors = (results.stats, results.probability, results.partner, results.rotation)
    return tuple(tensor for tensor in tensors if tensor is not None)


_recordings = Graphs(_outputs, NUM_RECORDINGS)
