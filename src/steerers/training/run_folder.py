"""The folder of a run: what lies in it, how it is written, and how it is read back.

- ``config.json``: the configuration, defaults included.
- ``checkpoint.pt``: everything that the run needs to go on.
- ``log.jsonl``: losses and held-out measures, an entry a line.
- ``spectrum.npz``: the eigenvalues of a steerer that is trained, at many steps.
- ``model.safetensors``: what the run leaves for use: weights, steerer and recipe.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steerers import _weights
from steerers._files import atomic_write
from steerers._version import __version__
from steerers.models import parts, zoo
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import TrainConfig, flatten, parse_config, renamed, to_dict
from steerers.training.objectives import Objective

CONFIG, CHECKPOINT, LOG = "config.json", "checkpoint.pt", "log.jsonl"
SPECTRUM, MODEL = "spectrum.npz", parts.TRAINED_FILE
_EVERY = ("checkpoint_every", "log_every", "spectrum_every")
_FREE = (*_EVERY, "compile", "cuda_graphs", "name", "data.path", "data.colmap")
_MAGIC = b"steerers checkpoint 1\n"
_DIGEST_BYTES = 32


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse, before any work, to write over a run, to go on with what is none, and a folder that cannot be made."""
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
        CheckpointError: naming the file, if it is missing, damaged, or no checkpoint.
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
    return state


def check_resumable(saved: dict[str, Any], config: TrainConfig, pairs: list[int]) -> None:
    """Refuse to go on from a checkpoint with another configuration or other data.

    How often a run measures and writes may change, and where its data lies, but nothing that decides what is trained.

    Args:
        pairs: how many each source of the run has.
    """
    before, now = _deciding(saved["config"]), _deciding(to_dict(config))
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
        self.folder, self.silent, self.start, self.began = folder, silent, step, time.monotonic()
        self.bar: Any = None
        self.board: Any = None
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
        self.flush()
        for writer in (self.file, self.bar, self.board):
            if writer is not None:
                writer.close()

    def write_config(self, config: dict[str, Any]) -> None:
        """The configuration beside the log."""
        if not self.silent:
            with atomic_write(self.folder / CONFIG) as temporary:
                temporary.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def step(self, step: int, steps: int, values: dict[str, float], times: dict[str, float]) -> None:
        """A step's losses, and how many milliseconds its parts took."""
        if self.silent:
            return
        rounded = {name: round(spent, 2) for name, spent in times.items()}
        self._line({"step": step, **values, **rounded, "seconds": round(time.monotonic() - self.began, 1)})
        self.bar = self.bar or _progress_bar(steps, self.start)
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
            self.bar.update(step - self.bar.n)

    def validation(self, step: int, values: dict[str, float], ended: str | None = None) -> None:
        """What was measured on held-out pairs; ``ended`` says why the run ends here, and a resumed run forgets it."""
        if not self.silent:
            self._line({"step": step, "validation": values} | ({} if ended is None else {"ended": ended}))

    def spectrum(self, step: int, eigenvalues: Tensor) -> None:
        """The steerer's eigenvalues."""
        self.spectra.append((step, eigenvalues.to(torch.complex64).cpu()))

    def flush(self) -> None:
        """Everything onto the disk."""
        if self.silent:
            return
        self.file.flush()
        if self.spectra:
            steps, values = zip(*self.spectra, strict=True)
            with atomic_write(self.folder / SPECTRUM) as temporary:
                np.savez(temporary, steps=np.array(steps), eigenvalues=torch.stack(values).numpy())

    def _line(self, entry: dict[str, Any]) -> None:
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in entry.get("validation", entry).items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, entry["step"])

    def _rewind(self, step: int) -> None:
        """Drop what was written after the checkpoint."""
        path = self.folder / LOG
        entries = read_log(self.folder) if path.exists() else []
        kept = [entry for entry in entries if entry["step"] <= step and "ended" not in entry]
        with atomic_write(path) as temporary:
            temporary.write_text("".join(f"{json.dumps(entry)}\n" for entry in kept), encoding="utf-8")
        if (self.folder / SPECTRUM).exists():
            steps, values = read_spectrum(self.folder)
            self.spectra = [(s, v) for s, v in zip(steps, values, strict=True) if s <= step]


def _progress_bar(steps: int, start: int) -> Any:
    """A bar that appears after two seconds; ``None`` where tqdm is missing, as on a bare machine with a GPU."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=steps, initial=start, desc="training", delay=2)


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
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if line.endswith("\n"):
                raise ValueError(f"{path}: line {number} is damaged ({error})") from error
    return entries


def read_spectrum(folder: Path) -> tuple[list[int], Tensor]:
    """The steps, and the (T, D) complex64 eigenvalues at each, that a run recorded."""
    path = folder / SPECTRUM
    if not path.exists():
        raise ValueError(f"{folder} has no {SPECTRUM}: it is not a run, or its steerer was not trained")
    with np.load(path) as file:
        return file["steps"].tolist(), torch.from_numpy(file["eigenvalues"])


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run.

    Raises:
        ValueError: if the folder is not that of a run.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such run")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {CONFIG}: it is not the folder of a run") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not the configuration of a run, which is a table")
    try:
        return parse_config(values)
    except ValueError as error:
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
    """The configuration without where the data lay, which is nobody's business but the machine's."""
    recipe = to_dict(config)
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

    What a trained network started from is not read again; a frozen network and a detector are.

    Raises:
        ValueError: if the folder is not that of a run, it has left no file yet, or the file is of another run.
    """
    config, path = read_config(folder), _model_of(folder)
    start = config.model.weights if config.setting == "A" else ""
    objective = build_objective(replace(config, model=replace(config.model, weights=start)))
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
    path = _model_of(folder)
    tensors, metadata = _weights.load(path)
    try:
        return Steerer.restore(tensors, metadata), int(metadata["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the steerer of a run: {error}") from error


def _model_of(folder: Path) -> Path:
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
