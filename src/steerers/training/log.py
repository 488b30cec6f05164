"""The log of a run: JSON lines, eigenvalues, a progress bar, and TensorBoard where asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from steerers._files import atomic_write

LOG, SPECTRUM, CONFIG = "log.jsonl", "spectrum.npz", "config.json"


class RunLog:
    """Writes what happens into the folder of a run; what an interrupted run wrote after its checkpoint is dropped."""

    def __init__(self, folder: Path, step: int, *, tensorboard: bool = False, silent: bool = False) -> None:
        self.folder, self.silent, self.start = folder, silent, step
        self.bar: Any = None
        self.began = time.monotonic()
        self.spectra: list[tuple[int, Tensor]] = []
        self.board: Any = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.silent:
            return
        self.flush()
        self.file.close()
        if self.bar is not None:
            self.bar.close()
        if self.board is not None:
            self.board.close()

    def write_config(self, config: dict[str, Any]) -> None:
        """The configuration beside the log."""
        if not self.silent:
            with atomic_write(self.folder / CONFIG) as temporary:
                temporary.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def step(
        self, step: int, steps: int, values: dict[str, float], *, data_ms: float, wait_ms: float, network_ms: float
    ) -> None:
        """A step's losses; how long its data took to make, how long it waited for them, and how long the rest took."""
        if self.silent:
            return
        timing = {"data_ms": round(data_ms, 2), "wait_ms": round(wait_ms, 2), "network_ms": round(network_ms, 2)}
        self._line({"step": step, **values, **timing, "seconds": round(time.monotonic() - self.began, 1)})
        if self.bar is None:
            self.bar = tqdm(total=steps, initial=self.start, desc="training", delay=2)
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
            flat = entry.get("validation", entry)
            for name, value in flat.items():
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


def read_spectrum(folder: Path) -> tuple[list[int], Tensor]:
    """The steps, and the (T, D) complex64 eigenvalues at each, that a run recorded."""
    path = folder / SPECTRUM
    if not path.exists():
        raise ValueError(f"{folder} has no {SPECTRUM}: it is not a run, or its steerer was not trained")
    with np.load(path) as file:
        return file["steps"].tolist(), torch.from_numpy(file["eigenvalues"])


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


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('TensorBoard is not installed: pip install "steerers[tensorboard]"') from error
    return SummaryWriter(str(folder), purge_step=step or None)
