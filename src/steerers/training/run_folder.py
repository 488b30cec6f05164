"""The folder of a run: what lies in it, how it is written, and how it is read back.

- ``config.json``: the configuration, defaults included.
- ``checkpoint.pt``: everything that the run needs to go on.
- ``log.jsonl``: losses and held-out measures, an entry a line.
- ``spectrum.npz``: the eigenvalues of a steerer that is trained, at many steps.
- ``model.safetensors``: what the run leaves for use: weights, steerer and recipe.
- ``.lock``: held by the process that trains here, so that no other does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout  # PyTorch needs it too: it is there wherever there is PyTorch
from torch import Tensor

from steerers import _weights
from steerers._console import tell
from steerers._files import atomic_write, parse_json, read_json, writing
from steerers._version import __version__
from steerers.datasets.safe_arrays import read_named
from steerers.models import parts, zoo
from steerers.steering.representations import MAX_DIM
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import TrainConfig, flatten, parse_config, renamed, to_dict
from steerers.training.objectives import Objective

CONFIG, CHECKPOINT, LOG = "config.json", "checkpoint.pt", "log.jsonl"
SPECTRUM, MODEL = "spectrum.npz", parts.TRAINED_FILE
_LOCK = ".lock"
_EVERY = ("checkpoint_every", "log_every", "spectrum_every")
_FREE = (*_EVERY, "compile", "cuda_graphs", "name", "data.path", "data.colmap", "data.max_broken")
_SAVED = ("config", "step", "objective", "average", "optimiser")  # what a checkpoint has
_PATIENCE = 1.0  # seconds: others who only look whether the folder is free hold the lock for a moment
_MAGIC = b"steerers checkpoint 1\n"
_DIGEST_BYTES = 32


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse, before any work, to write over a run, to go on with what is none, and a folder that cannot be made."""
    if folder.is_dir():
        with locked(folder):
            pass
    begun = has_checkpoint(folder)
    if begun and not resume:
        raise ValueError(
            f"{folder} has a checkpoint already: go on from it with --resume, name another folder with --out, or "
            "delete it"
        )
    if resume and not begun:
        raise ValueError(f"cannot resume: {folder} has no checkpoint; leave --resume out, or name the run with --out")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"cannot write a run to {folder}: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise ValueError(f"cannot write a run to {folder}: {nearest} is closed")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder, which is made, for as long as the block.

    The system releases the lock of a process that ends, however it ends. Where a file system has no locks, nobody is
    kept out.

    Raises:
        ValueError: if another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        raise ValueError(
            f"another process trains in {folder}: wait until it ends, or name another folder with --out"
        ) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()


# Checkpoints ----------------------------------------------------------------------------------------------------------


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted; the message names it."""


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a run in the folder that could go on."""
    return (folder / CHECKPOINT).exists()


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors, numbers, strings, lists and dicts: whole or not at all, with a checksum in front."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    with atomic_write(folder / CHECKPOINT) as temporary, temporary.open("xb") as file:
        file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        file.flush()
        os.fsync(file.fileno())  # the one before is replaced: this one must be there even if the machine goes down


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The state of a run's checkpoint, on the CPU.

    Raises:
        CheckpointError: naming the file, if it is missing, damaged, no checkpoint, or has a number that is not finite.
    """
    path = folder / CHECKPOINT
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if not data.startswith(_MAGIC):
        raise CheckpointError(f"{path}: not a checkpoint of this version of steerers")
    digest, payload = data[len(_MAGIC) :][:_DIGEST_BYTES], data[len(_MAGIC) + _DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"{path}: a damaged checkpoint (its checksum is wrong); delete it, or copy it again")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError) as error:
        raise CheckpointError(f"{path}: a damaged checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: not a checkpoint: it holds {type(state).__name__}")
    if name := not_finite(state):
        raise CheckpointError(f"{path}: {name} holds NaN or infinite numbers: no run can go on from it")
    return state


def not_finite(state: dict[str, Any]) -> str | None:
    """The dotted name of the first tensor in nested tables that holds NaN or infinite numbers; ``None`` if all are."""
    tensors = (item for item in flatten(state) if isinstance(item[1], Tensor) and item[1].is_floating_point())
    return next((name for name, value in tensors if not bool(value.isfinite().all())), None)


def check_resumable(saved: dict[str, Any], config: TrainConfig, pairs: list[int]) -> None:
    """Refuse to go on from a checkpoint with another configuration or other data.

    How often a run measures and writes may change, and where its data lies, but nothing that decides what is trained.

    Args:
        pairs: how many each source of the run has.
    """
    if missing := [name for name in _SAVED if name not in saved]:
        raise CheckpointError(f"cannot resume: the checkpoint has no {missing[0]!r}; another version wrote it")
    now = _deciding(to_dict(config))
    before = _deciding(to_dict(TrainConfig())) | _deciding(
        saved["config"]
    )  # options that came later were as by default
    differing = [name for name in before | now if before.get(name) != now.get(name)]
    if differing:
        changes = (f"{name} = {before.get(name)!r}, the configuration says {now.get(name)!r}" for name in differing)
        raise ValueError(f"cannot resume: the checkpoint was made with {'; '.join(changes)}")
    if saved.get("pairs", pairs) != pairs:  # the first checkpoints had none
        had, has = (" and ".join(f"{count:,}" for count in counts) for counts in (saved["pairs"], pairs))
        raise ValueError(
            f"cannot resume: the checkpoint was made with {had} training pairs, the data has {has}; give the same "
            "data, or start another run"
        )


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """The options that decide what is trained, by their dotted names."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flatten(renamed(config))
        if name not in _FREE and not name.startswith("validation.")
    }


# The log --------------------------------------------------------------------------------------------------------------


class RunLog:
    """Writes what happens into the folder of a run; what an interrupted run wrote after its checkpoint is dropped.

    Args:
        step: from which the run goes on.
        silent: write nothing, as every process but the first does.
    """

    def __init__(self, folder: Path, step: int, *, tensorboard: bool = False, silent: bool = False) -> None:
        self.folder, self.silent, self.began = folder, silent, time.monotonic()
        self.board: Any = None
        self.validated = step if silent else 0  # the last step that was validated; only the first process knows
        self.spectra: list[tuple[int, Tensor]] = []
        if silent:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if tensorboard:
            self.board = _summary_writer(folder, step)
        if step == 0:
            (folder / LOG).unlink(missing_ok=True)
            (folder / SPECTRUM).unlink(missing_ok=True)
        else:
            self._rewind(step)
        self.file = (folder / LOG).open("a", encoding="utf-8")

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self.silent:
            return
        try:
            self.flush()
        finally:
            with writing(self.file.name):
                self.file.close()
            if self.board is not None:
                self.board.close()

    def write_config(self, config: dict[str, Any]) -> None:
        """The configuration beside the log."""
        if not self.silent:
            with atomic_write(self.folder / CONFIG) as temporary:
                temporary.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def step(self, step: int, values: dict[str, float], times: dict[str, float]) -> None:
        """A step's losses, and how many milliseconds its parts took."""
        if self.silent:
            return
        rounded = {name: round(spent, 2) for name, spent in times.items()}
        self._line({"step": step, **values, **rounded, "seconds": round(time.monotonic() - self.began, 1)})

    def validation(self, step: int, values: dict[str, float], ended: str | None = None, kind: str = "") -> None:
        """What was measured on held-out pairs; ``ended`` says why the run ends here, and a resumed run forgets it.

        Args:
            kind: of the pairs, if it is measured apart; its values have names such as ``tilt/accuracy``.
        """
        self.validated = step
        if not self.silent:
            named = {"kind": kind} if kind else {}
            self._line({"step": step} | named | {"validation": values} | ({} if ended is None else {"ended": ended}))

    def spectrum(self, step: int, eigenvalues: Tensor) -> None:
        """The steerer's eigenvalues."""
        self.spectra.append((step, eigenvalues.to(torch.complex64).cpu()))

    def flush(self) -> None:
        """Everything onto the disk."""
        if self.silent:
            return
        with writing(self.file.name):
            self.file.flush()
        if self.spectra:
            steps, values = zip(*self.spectra, strict=True)
            arrays = io.BytesIO()  # a zip that cannot be finished complains long after
            np.savez(arrays, steps=np.array(steps), eigenvalues=torch.stack(values).numpy())
            with atomic_write(self.folder / SPECTRUM) as temporary:
                temporary.write_bytes(arrays.getbuffer())

    def _line(self, entry: dict[str, Any]) -> None:
        with writing(self.file.name):
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()
        if self.board is not None:
            for name, value in entry.get("validation", entry).items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, entry["step"])

    def _rewind(self, step: int) -> None:
        """Drop what was written after the checkpoint, and, with a warning, what is damaged: the run needs neither."""
        path = self.folder / LOG
        entries, damaged = _read_entries(path) if path.exists() else ([], [])
        if damaged:
            count = "1 line is" if len(damaged) == 1 else f"{len(damaged)} lines are"
            tell(f"{path}: line {damaged[0][0]} is damaged ({damaged[0][1]}); {count} left out", logging.WARNING)
        kept = [entry for entry in entries if entry["step"] <= step and "ended" not in entry]
        self.validated = max((entry["step"] for entry in kept if "validation" in entry), default=0)
        with atomic_write(path) as temporary:
            temporary.write_text("".join(f"{json.dumps(entry)}\n" for entry in kept), encoding="utf-8")
        if (self.folder / SPECTRUM).exists():
            try:
                steps, values = read_spectrum(self.folder)
            except ValueError as error:
                tell(f"{error}; eigenvalues are recorded anew from step {step}", logging.WARNING)
            else:
                self.spectra = [(s, v) for s, v in zip(steps, values, strict=True) if s <= step]


def check_tensorboard() -> None:
    """Refuse, before any work, to log for a TensorBoard that is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ImportError('TensorBoard is not installed: pip install "steerers[tensorboard]"')


def _summary_writer(folder: Path, step: int) -> Any:
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step or None)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The entries of a run's log; a last line that a run did not finish, or has not finished yet, is left out."""
    path = folder / LOG
    if not path.exists():
        raise ValueError(f"{folder} has no {LOG}: it is not the folder of a run")
    entries, damaged = _read_entries(path)
    if damaged:
        raise ValueError(f"{path}: line {damaged[0][0]} is damaged ({damaged[0][1]})")
    return entries


def _read_entries(path: Path) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The entries of a log, and the numbers of lines that are none, with the reason."""
    entries: list[dict[str, Any]] = []
    damaged: list[tuple[int, str]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # the last is empty, or was not finished
        try:
            entry = parse_json(line)
        except ValueError as error:
            damaged.append((number, str(error)))
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
        else:
            damaged.append((number, "it is not the entry of a step"))
    return entries, damaged


def read_spectrum(folder: Path) -> tuple[list[int], Tensor]:
    """The steps, and the (T, D) complex64 eigenvalues at each, that a run recorded.

    Raises:
        ValueError: if the run recorded none, or the file is damaged.
    """
    path = folder / SPECTRUM
    if not path.exists():
        raise ValueError(f"{folder} has no {SPECTRUM}: it is not a run, or its steerer was not trained")
    found = read_named(path, ("steps", "eigenvalues"), "spectrum")
    steps, values = np.asarray(found["steps"]), np.asarray(found["eigenvalues"])
    fits = steps.dtype.kind in "iu" and values.ndim == 2 and steps.shape == values.shape[:1]
    if not fits or values.dtype.kind != "c" or not values.size or values.shape[1] > MAX_DIM:
        raise ValueError(f"{path}: damaged: {steps.size} steps, and {values.dtype} of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{path}: it holds eigenvalues that are not finite")
    return steps.tolist(), torch.from_numpy(values)


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run.

    Raises:
        ValueError: if the folder is not that of a run.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such run")
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {CONFIG}: it is not the folder of a run") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not the configuration of a run, which is a table")
    try:
        return parse_config(values)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a configuration of this version of steerers: {error}") from error


# The model ------------------------------------------------------------------------------------------------------------


def export_model(
    objective: Objective, config: TrainConfig, step: int, folder: Path, dtype: torch.dtype | None = None
) -> None:
    """Write what was trained under its names (``network.``, ``descriptor.``, ``detector.``, ...) and the steerer.

    The steerer is written even if it is fixed, so that :meth:`steerers.Steerer.load` reads it from the file.

    Args:
        dtype: in which floating-point weights are written; by default as they are.
    """
    tensors = {
        f"{prefix}.{name}": _stored(value, dtype)
        for prefix, network in objective.networks().items()
        for name, value in network.state_dict().items()
        if prefix != "steerer"
    }
    metadata = {
        "steerers_version": __version__,
        "kind": config.model.kind,
        "setting": config.setting,
        "step": str(step),
        "config": json.dumps(_recipe(config), sort_keys=True),
    }
    if config.model.kind not in zoo.TRAINABLE:
        metadata["model"] = zoo.find(config.model.kind).fitted_to  # the steerer is refused for another
    if objective.steerer is not None:
        steering, described = objective.steerer.export()
        tensors, metadata = tensors | steering, metadata | described
    _weights.save(folder / MODEL, tensors, metadata)


def _recipe(config: TrainConfig) -> dict[str, Any]:
    """The configuration without where the data lay, and the weights that a network started from, which is nobody's
    business but the machine's. A frozen network and a detector are read again from where they are."""
    recipe = to_dict(config)
    if config.setting != "A":
        recipe["model"]["weights"] = PurePath(config.model.weights).name
    recipe["distillation"]["teachers"] = [PurePath(name).name for name in config.distillation.teachers]
    recipe["data"] = {key: value for key, value in recipe["data"].items() if key not in ("path", "colmap")}
    return recipe


def _stored(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    value = value.detach().cpu().contiguous()
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What a run has trained: its objective with the weights and the steerer of the file it left."""

    config: TrainConfig
    objective: Objective
    step: int


def load_run(folder: Path) -> LoadedRun:
    """The objective of a run with what was trained, on the CPU and in evaluation mode.

    What a trained network started from, and who taught it, is not read again; a frozen network and a detector are.

    Raises:
        ValueError: if the folder is not that of a run, it has left no file yet, or the file is of another run.
    """
    config, path = read_config(folder), model_of(folder)
    start = config.model.weights if config.setting == "A" else ""
    alone = replace(config.distillation, teachers=())
    objective = build_objective(replace(config, model=replace(config.model, weights=start), distillation=alone))
    tensors, metadata = _weights.load(path)
    for prefix, network in objective.networks().items():
        if prefix != "steerer":
            start = f"{prefix}."
            state = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
            _weights.load_into(network, state, path, "the configuration beside it")
    if objective.steerer is not None:
        _set_steerer(objective.steerer, load_steerer(folder)[0], path)
    return LoadedRun(config, objective.eval(), int(metadata["step"]))


def load_steerer(folder: Path) -> tuple[Steerer, int]:
    """The steerer that a run left, and its step.

    Raises:
        ValueError: if it has left none yet, or the file is damaged.
    """
    path = model_of(folder)
    tensors, metadata = _weights.load(path)
    try:
        return Steerer.restore(tensors, metadata), int(metadata["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the steerer of a run: {error}") from error


def model_of(folder: Path) -> Path:
    """The file that a run left.

    Raises:
        ValueError: if it has left none yet.
    """
    path = folder / MODEL
    if not path.exists():
        raise ValueError(f"{folder} has no {MODEL}: it is not a run, or has not ended yet")
    return path


def _set_steerer(steerer: Steerer, trained: Steerer, path: Path) -> None:
    if (steerer.group, steerer.dim) != (trained.group, trained.dim):
        raise ValueError(
            f"{path}: a steerer of {trained.group} for {trained.dim} dimensions, but the configuration beside it has "
            f"{steerer.group} and {steerer.dim}"
        )
    if steerer.learnable:
        with torch.no_grad():
            steerer.generator().copy_(trained.generator())
