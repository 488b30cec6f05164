"""The loop: plain PyTorch, read from top to bottom.

All that is drawn follows from the seed, the step and the place in the batch (:mod:`steerers.datasets.pairs`), and the
learning rate from the step, so that a checkpoint needs no state of generators or schedules, a resumed run equals the
uninterrupted one, and several processes draw what one would.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steerers._console import Progress
from steerers._devices import parse_device
from steerers.datasets.pairs import PairBatch, PairSource, mix, uniforms
from steerers.models.compact import Compact
from steerers.steering.steerer import Steerer
from steerers.training import run_folder
from steerers.training.config import OptimiserConfig, TrainConfig, to_dict
from steerers.training.feed import Feed, Sources, check_dense, check_kinds, read_pair
from steerers.training.objectives import Measures, Objective, Terms

_PATIENCE = 2.0  # seconds: of one Ctrl-C, torchrun may make two signals
_BOUNCE = 0.2  # the same without torchrun
_VALIDATION = 43  # seed of the held-out views
_ANGLE = 44  # stream of that seed
_DENSE = ("repeatability",)  # measures that need a warp known wherever both views see the scene


@dataclass(frozen=True)
class Ended:
    """How a call of :func:`train` ended."""

    step: int
    reason: str  # "finished", "time", "interrupted"
    validation: dict[str, float]  # empty if interrupted; of a kind as ``kind/name``


def train(
    config: TrainConfig,
    objective: Objective,
    sources: Sources,
    folder: Path,
    *,
    device: torch.device,
    resume: bool = False,
    max_minutes: float | None = None,
    tensorboard: bool = False,
) -> Ended:
    """Train until the last step, Ctrl-C, SIGTERM or the end of ``max_minutes``; a checkpoint is left in any case.

    Who interrupts a run does not wait for validation; a resumed run makes up for it.

    Args:
        folder: of the run; :mod:`~steerers.training.run_folder` says what lies in it.
        resume: go on from the folder's checkpoint.

    Raises:
        ValueError: if there is a run in the folder that is not to be resumed, or one of another configuration or of
            other data; if another process trains there; if the data cannot train what the configuration says; or if
            the weights to start from are not finite.
        CheckpointError: if its checkpoint is damaged.
        FloatingPointError: if the loss is no longer finite; the last checkpoint is from before.
    """
    if max_minutes is not None and not 0 < max_minutes < math.inf:
        raise ValueError(f"max_minutes must be a positive number, got {max_minutes}")
    check_dense(config.setting, sources.training)
    check_kinds(config.setting, sources.kinds)
    with run_folder.locked(folder) if rank() == 0 else contextlib.nullcontext():
        state = _State(config, objective.to(device), device, [len(source) for source, _ in sources.training])
        if resume:
            state.restore(run_folder.read_checkpoint(folder))
        elif run_folder.has_checkpoint(folder):
            raise ValueError(f"{folder} holds a run already: resume it, or choose another folder")
        else:
            _check_start(objective, config)
        sources.open()
        deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        return _run(state, sources, folder, deadline, tensorboard)


def _run(state: _State, sources: Sources, folder: Path, deadline: float, tensorboard: bool) -> Ended:
    config, device = state.config, state.device
    with (
        Feed(config, sources.training, device, rank=rank(), world=world()) as feed,
        run_folder.RunLog(folder, state.step, tensorboard=tensorboard, silent=rank() > 0) as log,
        _stopping() as stop,
        Progress("training", config.steps, "step", done=state.step) as shown,
    ):
        log.write_config(to_dict(config))
        if state.step == 0:
            _record_spectrum(state, log)
        _validate_if_due(state, sources, log, stop)
        reason = "finished"
        while state.step < config.steps:
            _advance(state, feed, log, shown)
            if state.step % config.spectrum_every == 0 or state.step == config.steps:
                _record_spectrum(state, log)
            _validate_if_due(state, sources, log, stop)
            interrupted, late = _agree([stop.is_set(), time.monotonic() > deadline], device)
            if interrupted or late or state.step % config.checkpoint_every == 0 or state.step == config.steps:
                _save(state, log, folder)
            if interrupted or late:
                reason = "interrupted" if interrupted else "time"
                break
        measured = {} if reason == "interrupted" else _validate(state, sources, stop)
        if stop.is_set():
            reason, measured = "interrupted", {}
        _log_validation(log, state.step, measured or {"": {}}, ended=reason)
        if rank() == 0:
            with state.averaged():
                run_folder.export_model(state.objective, config, state.step, folder)
    return Ended(state.step, reason, {name: value for own in measured.values() for name, value in own.items()})


# A step ---------------------------------------------------------------------------------------------------------------


class _State:
    """What changes during a run: weights, their average, the optimiser and the step; and what must not change.

    Args:
        pairs: how many each source has: with other numbers, a resumed run would draw others than the whole one.
    """

    def __init__(
        self, config: TrainConfig, objective: Objective, device: torch.device, pairs: Sequence[int] = ()
    ) -> None:
        self.config, self.objective, self.device, self.step = config, objective, device, 0
        self.saved: int | None = None  # the step of the last checkpoint
        self.pairs = list(pairs)
        self.loss, self.gradient = torch.zeros(()), torch.zeros(())  # of the last step
        objective.train()
        if device.type == "cuda":
            objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if config.compile:
            objective.compile()
        if config.cuda_graphs:
            _capture(objective, config, device)
        self.optimiser = _optimiser(objective, config.optimiser, device)
        self.module: nn.Module = objective
        if world() > 1:
            if device.type == "cuda":
                nn.SyncBatchNorm.convert_sync_batchnorm(objective)
            # Not every batch trains all of the compact network: tracks alone, for one, train no keypoints.
            partly = any(isinstance(network, Compact) for network in objective.networks().values())
            self.module = nn.parallel.DistributedDataParallel(objective, find_unused_parameters=partly)
        self.current = _floats(objective)  # the tensors themselves, which a step changes in place
        self.average = copy.deepcopy(self.current) if config.optimiser.ema else None

    def update_average(self) -> None:
        if self.average is None:
            return
        decay = min(self.config.optimiser.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.values()), list(self.current.values()), 1 - decay)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in place of the current ones."""
        if self.average is None:
            yield
            return
        current = list(self.current.values())
        kept = [value.clone() for value in current]
        torch._foreach_copy_(current, list(self.average.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(current, kept)

    def snapshot(self) -> dict[str, Any]:
        return {
            "config": to_dict(self.config),
            "step": self.step,
            "pairs": self.pairs,
            "objective": self.objective.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        run_folder.check_resumable(saved, self.config, self.pairs)
        self.step = self.saved = saved["step"]
        try:
            self.objective.load_state_dict(saved["objective"])
            self.optimiser.load_state_dict(saved["optimiser"])
            if self.average is not None:
                for name, value in self.average.items():
                    value.copy_(saved["average"][name])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise run_folder.CheckpointError(f"cannot resume: the checkpoint has other networks: {error}") from error

    def diverged(self, step: int, what: str) -> FloatingPointError:
        """That ``what`` is not finite at a step, and what to do."""
        last = "there is no checkpoint yet" if self.saved is None else f"the last checkpoint is from step {self.saved}"
        return FloatingPointError(
            f"at step {step} {what}; {last}; try a new run with a lower optimiser.learning_rate (it is "
            f"{self.config.optimiser.learning_rate:g}), a longer optimiser.warm_up or an optimiser.clip"
        )


def _check_start(objective: Objective, config: TrainConfig) -> None:
    if name := run_folder.not_finite(objective.state_dict()):
        weights = f" {config.model.weights!r}" if config.model.weights else ""
        raise ValueError(
            f"cannot train: {name} holds NaN or infinite numbers; the weights that the run starts from"
            f"{weights} are damaged, or of a run that diverged"
        )


def _advance(state: _State, feed: Feed, log: run_folder.RunLog, shown: Progress) -> None:
    """One step of gradient descent."""
    config = state.config
    timed = (state.step + 1) % config.log_every == 0
    start = _now(state.device, timed)
    batch, data_seconds = feed.batch(state.step)
    made = _now(state.device, timed)
    state.module.train()
    _set_learning_rates(state.optimiser, config, state.step)
    with autocast(config, state.device):
        terms: Terms = state.module(batch, state.step / config.steps)
    loss = _total(terms)
    _check_loss(state, terms, loss)
    state.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    state.loss, state.gradient = loss.detach(), _clip(state.objective, config.optimiser.clip)
    state.optimiser.step()
    state.step += 1
    state.update_average()
    if timed:
        done = _now(state.device, True)
        _check_gradient(state)
        mean = float(_summed(state.loss.clone()) / world())
        values = {"loss": mean, **_means(terms), "gradient": float(state.gradient)}
        values["learning_rate"] = float(state.optimiser.param_groups[0]["lr"])
        spent = {"data_ms": data_seconds, "wait_ms": made - start, "network_ms": done - made}
        log.step(state.step, values, {name: 1e3 * seconds for name, seconds in spent.items()})
        shown.note = f"loss {mean:.3f}"
    shown.advance()


def _capture(objective: Objective, config: TrainConfig, device: torch.device) -> None:
    """Record the trunk's forward and backward pass as CUDA graphs: a thousand launches become two.

    The network is the bottleneck only once the CPU need not launch its kernels one by one. Other devices, and several
    processes, have no such graphs and train without.
    """
    network = getattr(objective, "network", None)
    if not isinstance(network, Compact):
        raise ValueError("cuda_graphs is for the compact network; set it to false")
    if device.type != "cuda" or world() > 1:
        return
    side = config.data.views.size + -config.data.views.size % network.config.stride
    images = torch.zeros(2 * config.batch, 3, side, side, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=config.precision == "bfloat16", cache_enabled=False):
        torch.cuda.make_graphed_callables(network.trunk, (images.contiguous(memory_format=torch.channels_last),))


def _total(terms: Terms) -> Tensor:
    """The loss: every term's sum over the mean count of the processes, since DDP averages their gradients."""
    counts = _summed(torch.stack([term.count.detach().float() for term in terms.values()])) / world()
    parts = [
        term.weight * term.total / count.clamp(min=1.0 / world())
        for term, count in zip(terms.values(), counts, strict=True)
    ]
    return torch.stack(parts).sum()


def _means(terms: Terms) -> dict[str, float]:
    """Every term, without its weight, over all processes."""
    sums = _summed(torch.stack([torch.stack([t.total.detach().float(), t.count.float()]) for t in terms.values()]))
    return {name: float(total / count.clamp(min=1)) for name, (total, count) in zip(terms, sums, strict=True)}


def _check_loss(state: _State, terms: Terms, loss: Tensor) -> None:
    """End the run, in all processes at once, if a part of the loss is not finite in any: before its backward pass.

    That would spoil the weights. And on a CPU it ends the process: where a keypoint is NaN, the backward pass of
    ``grid_sample`` writes anywhere.
    """
    parts = {name: term.total for name, term in terms.items()} | {"their sum": loss}
    broken = torch.stack([~part.detach().isfinite() for part in parts.values()]).float()
    names = [name for name, count in zip(parts, _summed(broken).tolist(), strict=True) if count]
    if names:
        raise state.diverged(state.step + 1, f"the loss is not finite ({', '.join(names)})")


def _check_gradient(state: _State) -> None:
    if not math.isfinite(state.gradient):
        raise state.diverged(state.step, f"the gradient has the length {float(state.gradient):g}")


def _clip(objective: Objective, most: float) -> Tensor:
    """The length of the gradient of the networks, clipped if asked; the steerer's is not, as in the original.

    Of a run that trains the steerer alone it is the length of the steerer's.
    """
    networks = objective.networks()
    parameters = [p for name, network in networks.items() if name != "steerer" for p in network.parameters()]
    measured = parameters or list(networks["steerer"].parameters())
    norm = nn.utils.get_total_norm([p.grad for p in measured if p.grad is not None])
    if most > 0:
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def _optimiser(objective: Objective, config: OptimiserConfig, device: torch.device) -> torch.optim.Optimizer:
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in objective.trained():
        if parameter.requires_grad:
            groups.setdefault(config.rate_of(name), []).append(parameter)
    if not groups:
        raise ValueError("nothing is trained: every parameter is frozen")
    options = [{"params": parameters, "lr": rate, "base": rate} for rate, parameters in groups.items()]
    return torch.optim.AdamW(options, weight_decay=config.weight_decay, fused=device.type == "cuda")


def _set_learning_rates(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """Warm-up, then a cosine to zero."""
    warm = config.optimiser.warm_up
    factor = (step + 1) / warm if step < warm else (
        1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm))
    ) / 2  # fmt: skip
    for group in optimiser.param_groups:
        group["lr"] = group["base"] * factor


def _floats(module: nn.Module) -> dict[str, Tensor]:
    """The floating-point tensors of a module, to be averaged: parameters and running statistics.

    Each is there once: the state of an objective names the steerer twice, as its own and as its matcher's.
    """
    state = module.state_dict()
    once = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    return {name: state[name] for name in once if name in state and state[name].is_floating_point()}


# Validation -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def validate(
    config: TrainConfig,
    objective: Objective,
    source: PairSource,
    device: torch.device,
    stop: threading.Event | None = None,
) -> dict[str, float]:
    """Measures on held-out pairs: their mean, and those at each rotation (``@degrees``).

    The pairs are spread evenly over the source; the objective is in evaluation mode meanwhile.

    Args:
        stop: if it is set, now or meanwhile, nothing is measured.
    """
    sums: dict[str, Tensor] = {}
    rotations, starts = _held_out_rotations(config, objective.steerer), range(0, config.validation.pairs, config.batch)
    with _evaluating(objective), Progress("validating", len(rotations) * len(starts), "batch") as shown:
        for degrees, start in itertools.product(rotations, starts):
            if stop is not None and stop.is_set():
                return {}
            batch = _held_out_batch(config, source, start, degrees, device)
            with autocast(config, device):
                measures = objective.measure(batch)
            _add(sums, {key: value for name, value in measures.items() for key in (name, f"{name}@{degrees}")})
            shown.advance()
    return _ratios(sums)


@torch.no_grad()
def validate_kinds(
    config: TrainConfig,
    objective: Objective,
    kinds: Mapping[str, PairSource],
    device: torch.device,
    stop: threading.Event | None = None,
) -> dict[str, dict[str, float]]:
    """Measures on held-out pairs of each kind, under names such as ``tilt/accuracy``.

    Pairs are spread as those of :func:`validate`. Each is rotated by an angle of its own, the same in every kind and at
    every step.

    Args:
        stop: as for :func:`validate`.
    """
    if not kinds:
        return {}
    sums: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
    starts = range(0, config.validation.pairs, config.batch)
    with _evaluating(objective), Progress("validating by kind", len(kinds) * len(starts), "batch") as shown:
        for (kind, source), start in itertools.product(kinds.items(), starts):
            if stop is not None and stop.is_set():
                return {}
            batch = _turned_batch(config, source, start, objective.steerer, device)
            with autocast(config, device):
                measures = objective.measure(batch)
            known = {name: value for name, value in measures.items() if batch.dense or name not in _DENSE}
            _add(sums[kind], {f"{kind}/{name}": value for name, value in known.items()})
            shown.advance()
    return {kind: _ratios(own) for kind, own in sums.items()}


@contextlib.contextmanager
def _evaluating(objective: Objective) -> Iterator[None]:
    """The objective in evaluation mode."""
    mode = objective.training
    objective.eval()
    try:
        yield
    finally:
        objective.train(mode)


def _add(sums: dict[str, Tensor], measures: Measures) -> None:
    for name, (total, count) in measures.items():
        sums[name] = sums.get(name, 0) + torch.tensor([total, count], dtype=torch.float64)


def _ratios(sums: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(total / count) for name, (total, count) in sums.items() if count}


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """The precision of the networks that a configuration asks for."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


def _held_out_rotations(config: TrainConfig, steerer: Steerer | None) -> list[int]:
    """The degrees that the steerer can answer for."""
    order = None if steerer is None else steerer.group.order
    quarters = config.data.rotations.endswith("C4")
    return [
        degrees
        for degrees in config.validation.rotations
        if (order is None or degrees * order % 360 == 0) and (not quarters or degrees % 90 == 0)
    ] or [0]


def _held_out_batch(
    config: TrainConfig, source: PairSource, start: int, degrees: int, device: torch.device
) -> PairBatch:
    """Pairs from number ``start`` on, all rotated alike."""
    numbers = _numbers(config, start)
    second = torch.full((len(numbers),), math.radians(degrees), dtype=torch.float64)
    return _made(config, source, numbers, second, device)


def _turned_batch(
    config: TrainConfig, source: PairSource, start: int, steerer: Steerer | None, device: torch.device
) -> PairBatch:
    """Pairs from number ``start`` on, each rotated by its own angle, which the steerer can answer for."""
    numbers = _numbers(config, start)
    drawn = uniforms([mix(_VALIDATION, number) for number in numbers], 1, _ANGLE)[:, 0]  # (B,)
    orders = [None if steerer is None else steerer.group.order, 4 if config.data.rotations.endswith("C4") else None]
    if order := math.gcd(*(order for order in orders if order is not None)):
        drawn = (order * drawn).floor() / order
    none = config.data.rotations == "none"
    return _made(config, source, numbers, torch.zeros_like(drawn) if none else 2 * math.pi * drawn, device)


def _numbers(config: TrainConfig, start: int) -> range:
    return range(start, min(start + config.batch, config.validation.pairs))


def _made(
    config: TrainConfig, source: PairSource, numbers: Sequence[int], second: Tensor, device: torch.device
) -> PairBatch:
    """Pairs spread evenly over the source, their second views rotated by (B,) radians."""
    seeds = [mix(_VALIDATION, number) for number in numbers]
    first = second if config.data.rotations.startswith("joint") else torch.zeros_like(second)
    read = [read_pair(source, number * len(source) // config.validation.pairs) for number in numbers]
    return source.make(read, first, second, seeds, device)


# Processes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def join_processes(device: str | None) -> Iterator[torch.device]:
    """The device of this process; under ``torchrun`` it joins the others for as long as the block.

    Args:
        device: by default a GPU where there is one.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        yield parse_device(name)
        return
    if name not in ("cpu", "cuda"):
        raise ValueError(f"torchrun gives each process its own GPU: --device is cpu or cuda, got {name!r}")
    chosen = parse_device(name if name == "cpu" else f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def world() -> int:
    """How many processes train: one, or as many as ``torchrun`` started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _summed(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def _agree(flags: list[bool], device: torch.device) -> list[bool]:
    """For each flag whether any process says so."""
    if world() == 1:
        return flags
    return [votes > 0 for votes in _summed(torch.tensor(flags, dtype=torch.float32, device=device)).tolist()]


# Around it ------------------------------------------------------------------------------------------------------------


def _validate(state: _State, sources: Sources, stop: threading.Event) -> dict[str, dict[str, float]]:
    """With the averaged weights: what is measured on the held-out pairs, and by their kinds."""
    with state.averaged():
        found = {"": validate(state.config, state.objective, sources.validation, state.device, stop)}
        return found | validate_kinds(state.config, state.objective, sources.kinds, state.device, stop)


def _log_validation(
    log: run_folder.RunLog, step: int, measured: dict[str, dict[str, float]], ended: str | None = None
) -> None:
    for kind, values in measured.items():
        log.validation(step, values, kind=kind, ended=ended)


def _validate_if_due(state: _State, sources: Sources, log: run_folder.RunLog, stop: threading.Event) -> None:
    """Validate every so many steps; at the first of a resumed run only if the log does not have it yet."""
    every, step = state.config.validation.every, state.step
    if not every or step % every or not log.validated < step < state.config.steps:
        return
    measured = _validate(state, sources, stop)
    if not stop.is_set():
        _log_validation(log, step, measured)


def _record_spectrum(state: _State, log: run_folder.RunLog) -> None:
    steerer = state.objective.steerer
    if steerer is not None and steerer.learnable and rank() == 0:
        log.spectrum(state.step, steerer.eigenvalues())


def _save(state: _State, log: run_folder.RunLog, folder: Path) -> None:
    _check_gradient(state)
    snapshot = state.snapshot()
    if name := run_folder.not_finite(snapshot):
        raise state.diverged(state.step, f"{name} is not finite")
    if rank() == 0:
        log.flush()
        run_folder.write_checkpoint(folder, snapshot)
    state.saved = state.step


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that the step is finished and a checkpoint written.

    Who asks again is not kept waiting: that raises KeyboardInterrupt, and the last checkpoint stays.
    """
    stop, first = threading.Event(), math.inf
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def asked(*_: object) -> None:
        nonlocal first
        if time.monotonic() > first + (_PATIENCE if world() > 1 else _BOUNCE):
            raise KeyboardInterrupt
        if not stop.is_set() and rank() == 0:  # not by print, which may be what the signal interrupts
            with contextlib.suppress(OSError):
                os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again stops at once\n")
        first = min(first, time.monotonic())
        stop.set()

    kept = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _now(device: torch.device, exact: bool) -> float:
    if exact and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
