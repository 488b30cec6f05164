"""Predictions made once and kept: an HDF5 file a run, under a name that says what they depend on.

A file holds all matches of all pairs one after the other (``keypoints0``, ``keypoints1``, ``scores``, ``indices``), and
for each pair how many they are (``counts``), the rotation (``angles``), the ``sizes`` and the ``costs``. What the
predictions depend on, and where and with what they were made, are the attributes ``config`` and ``made``, as JSON.

While predictions are made, those of some time lie in files of their own beside it (``NAME.part-....h5``), which also
say of which ``pairs`` they are; a later call goes on from them, and they are gone when all are made.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from steerers import __version__
from steerers.benchmarks import protocol
from steerers.benchmarks.protocol import AnyPair, Observer, Pair, Prediction, Predictions, Settings
from steerers.benchmarks.runs import Run, describe_strategy, fingerprint, hash_files, sha256
from steerers.features import Matches

FORMAT = 3
"""Of the files; a change of what they mean raises it."""
PART_SECONDS = 30.0
"""How much work is lost at most when a process is killed."""
_OF_MATCHES = {"keypoints0": np.float32, "keypoints1": np.float32, "scores": np.float32, "indices": np.int64}


def predict_or_load(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: Settings | None = None,
    observe: Observer[AnyPair] | None = None,
    *,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> list[Predictions]:
    """Predictions of every run, from the folder ``cache`` where they were kept under the same configuration.

    Args:
        observe: what else to measure on the keypoints, see :func:`~steerers.benchmarks.protocol.predict`.
        made: where and with what predictions are made now; kept with them, but no part of the configuration, so that
            what one machine predicted another can evaluate.
    """
    protocol.check_runs(runs, pairs)
    settings = settings or Settings()
    configs = [_config(run, pairs, settings, observe) for run in runs]
    paths = [None if cache is None else _file(cache, run, config) for run, config in zip(runs, configs, strict=True)]
    done: list[Predictions | None] = [
        None if path is None or not path.exists() else read(path, run.label, config)
        for path, run, config in zip(paths, runs, configs, strict=True)
    ]
    missing = [index for index, predictions in enumerate(done) if predictions is None]
    if len(missing) < len(runs):
        kept = ", ".join(run.label for index, run in enumerate(runs) if index not in missing)
        sys.stderr.write(f"matched before, taken from {cache}: {kept}\n")
    if missing:
        drafts = [_Draft(paths[index], runs[index].label, configs[index], made or {}) for index in missing]
        made_now = _predict(drafts, [runs[index] for index in missing], pairs, settings, observe)
        for index, predictions in zip(missing, made_now, strict=True):
            done[index] = predictions
    return [predictions for predictions in done if predictions is not None]


def _predict(
    drafts: Sequence[_Draft],
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: Settings,
    observe: Observer[AnyPair] | None,
) -> list[Predictions]:
    """Predict what the drafts lack; if that is interrupted, they keep what they have."""
    try:
        for index, found in protocol.predict_each(runs, pairs, settings, observe, [draft.found for draft in drafts]):
            for number, prediction in found.items():
                drafts[number].add(index, prediction)
    except BaseException:
        for draft in drafts:
            draft.keep()
        raise
    return [draft.finish(len(pairs)) for draft in drafts]


class _Draft:
    """Predictions of a run in the making; without ``path`` they are not kept."""

    def __init__(self, path: Path | None, label: str, config: dict[str, Any], made: dict[str, Any]) -> None:
        self.path, self.label, self.config, self.made = path, label, config, made
        self.found: dict[int, Prediction] = {}
        self.parts = [] if path is None else sorted(path.parent.glob(f"{path.stem}.part-*.h5"))
        self._fresh: list[int] = []
        self._kept_at = time.monotonic()
        self._others: list[dict[str, Any]] = []
        for part in self.parts:
            indices, predictions = _read_part(part, label, config)
            self.found.update(zip(indices, predictions.pairs, strict=True))
            if predictions.made not in (made, *self._others):
                self._others.append(predictions.made)

    def add(self, index: int, prediction: Prediction) -> None:
        self.found[index] = prediction
        self._fresh.append(index)
        if time.monotonic() - self._kept_at >= PART_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Write what is in no file yet."""
        if self.path is not None and self._fresh:
            part = self.path.with_name(f"{self.path.stem}.part-{secrets.token_hex(4)}.h5")
            pairs = [self.found[index] for index in self._fresh]
            write(part, Predictions(self.label, self.config, self.made, pairs), indices=self._fresh)
            self.parts.append(part)
        self._fresh = []
        self._kept_at = time.monotonic()

    def finish(self, count: int) -> Predictions:
        """All predictions, in the order of the pairs, in one file."""
        pairs = [self.found[index] for index in range(count)]
        made = {**self.made, "continued_from": self._others} if self._others else self.made
        predictions = Predictions(self.label, self.config, made, pairs)
        if self.path is not None:
            write(self.path, predictions)
            for part in self.parts:
                part.unlink(missing_ok=True)
        return predictions


def _config(run: Run, pairs: Sequence[Pair], settings: Settings, observe: Observer[AnyPair] | None) -> dict[str, Any]:
    """Everything that predictions depend on, as JSON."""
    pipeline = run.pipeline
    return {
        "format": FORMAT,
        "steerers": __version__,
        "pairs": protocol.hash_pairs(pairs),
        "files": hash_files([path for pair in pairs for path in (pair.image0, pair.image1)]),
        **settings.describe_size(),
        "mask_corners": settings.mask_corners,
        "observed": None if observe is None else f"{observe.__module__}.{observe.__qualname__}",
        "model": pipeline.model.name,
        "extractor": fingerprint(pipeline.model.extractor),
        "num_keypoints": pipeline.num_keypoints,
        "strategy": describe_strategy(pipeline.strategy, pipeline.tta),
    }


def _file(folder: Path, run: Run, config: dict[str, Any]) -> Path:
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", run.label)
    return folder / f"{readable}-{sha256(config)[:16]}.h5"


# Files ----------------------------------------------------------------------------------------------------------------


def write(path: Path, predictions: Predictions, *, indices: Sequence[int] | None = None) -> None:
    """Write predictions to a file, whole or not at all; its folder is made if need be.

    Args:
        indices: of which pairs they are, if not of all.
    """
    import h5py

    from steerers._files import atomic_write

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["config"] = json.dumps(predictions.config, sort_keys=True)
        file.attrs["made"] = json.dumps(predictions.made)
        arrays = _pack(predictions)
        if indices is not None:
            arrays["pairs"] = np.array(indices, np.int64)
        for name, array in arrays.items():
            checked = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
            file.create_dataset(name, data=array, **(checked if array.size else {}))


def read(path: Path, label: str, config: dict[str, Any]) -> Predictions:
    """Read what :func:`write` wrote.

    Raises:
        ValueError: if the file is damaged, no file of predictions, or one of another configuration.
    """
    return _read(path, label, config)[0]


def _read_part(path: Path, label: str, config: dict[str, Any]) -> tuple[list[int], Predictions]:
    predictions, arrays = _read(path, label, config)
    indices = arrays.get("pairs", np.zeros(0, np.int64)).tolist()
    if len(indices) != len(predictions.pairs):
        raise ValueError(f"{path}: no part of a file of predictions; delete it")
    return indices, predictions


def _read(path: Path, label: str, config: dict[str, Any]) -> tuple[Predictions, dict[str, Any]]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            arrays = {name: np.asarray(file[name]) for name in file}
            kept, made = json.loads(file.attrs["config"]), json.loads(file.attrs["made"])
        pairs = list(_unpack(arrays, config["model"], config["strategy"]["name"]))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # it cannot be opened, whatever is in it
            raise
        raise ValueError(f"{path}: not a file of predictions, or damaged ({error}); delete it") from error
    if kept != config:
        raise ValueError(f"{path}: predictions of another configuration under this name; delete it")
    return Predictions(label, config, made, pairs), arrays


def _pack(predictions: Predictions) -> dict[str, Any]:
    pairs = predictions.pairs
    matches = [pair.matches for pair in pairs]
    arrays: dict[str, Any] = {
        "counts": np.array([len(m) for m in matches], np.int64),
        "angles": np.array([math.nan if m.angle is None else m.angle for m in matches], np.float64),
        "sizes": np.array([(*p.size0, *p.size1, *p.stored0, *p.stored1, *p.num_keypoints) for p in pairs], np.int64),
        "costs": np.array(
            [(p.observed, p.extractions, p.extraction_seconds, p.matching_seconds) for p in pairs], np.float64
        ),
    }
    for name, dtype in _OF_MATCHES.items():
        arrays[name] = np.concatenate([getattr(m, name) for m in matches]).astype(dtype)
    return arrays


def _unpack(arrays: dict[str, Any], model: str, strategy: str) -> Iterator[Prediction]:
    bounds = np.concatenate([[0], np.cumsum(arrays["counts"])]).tolist()
    if any(len(arrays[name]) != bounds[-1] for name in _OF_MATCHES):
        raise ValueError(f"the pairs have {bounds[-1]} matches, the file holds another number")
    columns = (pairwise(bounds), arrays["angles"].tolist(), arrays["sizes"].tolist(), arrays["costs"].tolist())
    for (start, stop), angle, sizes, (observed, extractions, *seconds) in zip(*columns, strict=True):
        matches = Matches(
            keypoints0=arrays["keypoints0"][start:stop],
            keypoints1=arrays["keypoints1"][start:stop],
            scores=arrays["scores"][start:stop],
            indices=arrays["indices"][start:stop],
            angle=None if math.isnan(angle) else angle,
            model=model,
            strategy=strategy,
        )
        size0, size1, stored0, stored1, number = zip(sizes[::2], sizes[1::2], strict=True)
        yield Prediction(matches, size0, size1, stored0, stored1, number, observed, int(extractions), *seconds)
