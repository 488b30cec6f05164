"""Predictions made once and kept: a folder a run, under a name that says what they depend on, and in it a file a pair.

A file is written when its pair is matched, whole or not at all, so that an interrupted run loses nothing that it had
finished. It is an NPZ archive with the matches (``keypoints0``, ``keypoints1``, ``scores``, ``indices``) and, as JSON
in ``about``, everything else: the configuration, where and when it was made, sizes and costs.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steerers._files import parse_json
from steerers._version import __version__
from steerers.benchmarks import predict
from steerers.benchmarks.predict import AnyPair, Observer, Pair, Prediction, Predictions, ViewSettings, hash_pairs
from steerers.benchmarks.runs import Run, describe_matching, hash_files
from steerers.datasets.safe_arrays import read_named, write_named
from steerers.features import Matches
from steerers.matching.fingerprints import fingerprint, sha256

logger = logging.getLogger(__name__)

FORMAT = 4
"""Of the files; a change of what they mean raises it."""
FILE = "{:05d}.npz"
"""Of a pair, by its index."""
_OF_MATCHES: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "keypoints0": (np.float32, (2,)), "keypoints1": (np.float32, (2,)), "scores": (np.float32, ()),
    "indices": (np.int64, (2,)),
}  # fmt: skip
_PAIRS = ("size0", "size1", "stored0", "stored1", "num_keypoints")
_OF_PREDICTION = (*_PAIRS, "observed", "extractions", "extraction_seconds", "matching_seconds")


def predict_or_load(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: ViewSettings | None = None,
    observe: Observer[AnyPair] | None = None,
    *,
    cache: Path | None = None,
    made: dict[str, Any] | None = None,
) -> list[Predictions]:
    """Predictions of every run, from the folder ``cache`` where they were kept under the same configuration.

    Args:
        observe: what else to measure on the keypoints, see :func:`~steerers.benchmarks.predict.predict_each`.
        made: where and with what predictions are made now; kept with them, but no part of the configuration, so that
            what one machine predicted another can evaluate.
    """
    predict.check_runs(runs, pairs)
    settings = settings or ViewSettings()
    kept = [_Kept(cache, run, _config(run, pairs, settings, observe), made or {}, len(pairs)) for run in runs]
    whole = [one.run.label for one in kept if one.was_whole]
    if whole:
        logger.info("matched before, taken from %s: %s", cache, ", ".join(whole))
    missing = [one for one in kept if not one.was_whole]
    if missing:
        left, done = [one.run for one in missing], [one.found for one in missing]
        for index, found in predict.predict_each(left, pairs, settings, observe, done):
            for number, prediction in found.items():
                missing[number].add(index, prediction)
    return [one.finish() for one in kept]


def is_kept(
    run: Run,
    pairs: Sequence[AnyPair],
    settings: ViewSettings,
    observe: Observer[AnyPair] | None = None,
    *,
    cache: Path | None,
) -> bool:
    """Whether ``cache`` holds the predictions of a run for all pairs, so that none has to be made."""
    return cache is not None and _Kept(cache, run, _config(run, pairs, settings, observe), {}, len(pairs)).was_whole


def _config(
    run: Run, pairs: Sequence[Pair], settings: ViewSettings, observe: Observer[AnyPair] | None
) -> dict[str, Any]:
    """Everything that predictions depend on, as JSON."""
    pipeline = run.pipeline
    return {
        "format": FORMAT,
        "steerers": __version__,
        "pairs": hash_pairs(pairs),
        "files": hash_files([path for pair in pairs for path in (pair.image0, pair.image1)]),
        **settings.describe_size(),
        "mask_corners": settings.mask_corners,
        "canvas": settings.canvas if predict.are_rotated(pairs) else None,
        "observed": None if observe is None else f"{observe.__module__}.{observe.__qualname__}",
        "model": pipeline.model.name,
        "extractor": fingerprint(pipeline.model.extractor),
        "num_keypoints": pipeline.num_keypoints,
        "strategy": describe_matching(pipeline),
    }


class _Kept:
    """The predictions of a run so far, each in a file of its own; without ``cache`` they are not kept."""

    def __init__(self, cache: Path | None, run: Run, config: dict[str, Any], made: dict[str, Any], count: int) -> None:
        self.run, self.config, self.count = run, config, count
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", run.label)
        self.folder = None if cache is None else cache / f"{readable}-{sha256(config)[:16]}"
        self.found: dict[int, Prediction] = {}
        self._made = made
        self._made_at: dict[float, dict[str, Any]] = {}  # by the time of each pair
        for index in range(count):
            self._read(index)
        self.was_whole = len(self.found) == count

    def add(self, index: int, prediction: Prediction) -> None:
        """Keep the prediction of a pair."""
        now = time.time()
        self.found[index], self._made_at[now] = prediction, self._made
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {"config": self.config, "made": self._made, "time": now}
            write(self.folder / FILE.format(index), prediction, about)

    def finish(self) -> Predictions:
        """All predictions, in the order of the pairs; those of several places name the last, and all before it."""
        latest_first = [self._made_at[at] for at in sorted(self._made_at, reverse=True)]
        made, *before = {json.dumps(made): made for made in latest_first}.values()
        pairs = [self.found[index] for index in range(self.count)]
        return Predictions({**made, "continued_from": before} if before else made, pairs)

    def _read(self, index: int) -> None:
        """Take what is kept of a pair; a damaged file is removed, so that the pair is matched again."""
        if self.folder is None or not (path := self.folder / FILE.format(index)).exists():
            return
        try:
            self.found[index], about = read(path, self.config)
        except ValueError as error:
            path.unlink()
            logger.warning("%s; removed, and matched again", error)
        else:
            self._made_at[about["time"]] = about["made"]


# Files ----------------------------------------------------------------------------------------------------------------


def write(path: Path, prediction: Prediction, about: dict[str, Any]) -> None:
    """Write a prediction, with ``about`` as JSON, whole or not at all."""
    matches = prediction.matches
    everything = {**about, "angle": matches.angle, **{name: getattr(prediction, name) for name in _OF_PREDICTION}}
    arrays = {name: getattr(matches, name).astype(dtype) for name, (dtype, _) in _OF_MATCHES.items()}
    write_named(path, {"about": np.array(json.dumps(everything)), **arrays})


def read(path: Path, config: dict[str, Any]) -> tuple[Prediction, dict[str, Any]]:
    """Read what :func:`write` wrote: the prediction, and everything else that the file says.

    Raises:
        ValueError: if the file is damaged, no file of predictions, or one of another configuration.
    """
    try:
        values = read_named(path, (*_OF_MATCHES, "about"))
        about = parse_json(str(values["about"]))
        if about["config"] != config:
            raise ValueError("predictions of another configuration under this name")
        _ = about["time"], about["made"]
        names = {"model": config["model"], "strategy": config["strategy"]["name"]}
        angle = None if about["angle"] is None else _told(about["angle"], pair=False)
        matches = Matches(**_arrays(values), angle=angle, **names)
        return Prediction(matches, **{name: _told(about[name], name in _PAIRS) for name in _OF_PREDICTION}), about
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: not a file of predictions, or damaged ({reason})") from error


def _arrays(values: dict[str, Any]) -> dict[str, Any]:
    """The arrays of matches, of one length and of their types."""
    count = len(values["scores"])
    for name, (dtype, shape) in _OF_MATCHES.items():
        if values[name].dtype != dtype or values[name].shape != (count, *shape):
            raise ValueError(f"its {name} are {values[name].dtype} of shape {values[name].shape}, its matches {count}")
    return {name: values[name] for name in _OF_MATCHES}


def _told(value: Any, pair: bool) -> Any:
    """A number, or two whole ones."""
    parts = value if pair else [value]
    if not isinstance(parts, list) or len(parts) != 1 + pair:
        raise ValueError(f"{value!r:.40} is not what a prediction has")
    if not all(isinstance(part, int if pair else (int, float)) for part in parts):
        raise ValueError(f"{value!r:.40} is no number that a prediction has")
    return tuple(parts) if pair else value
