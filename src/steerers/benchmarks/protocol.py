"""What every benchmark shares: pairs and how they are turned, runs, and predictions made once and kept.

A benchmark lists :class:`Pair` records, turns them by :func:`turn_pairs`, and gives them with some :class:`Run` records
to :func:`predict`. Matching, which takes minutes to hours, ends there; what is estimated from the matches costs seconds
and is the benchmark's own.

Images are evaluated at one resolution (longest side ``max_size``) and turned at that resolution. All coordinates of a
:class:`Prediction` are pixels of the images at that resolution *before* they were turned, so that the ground truth
holds whatever the turn.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from steerers._version import __version__
from steerers.features import Features, Matches
from steerers.geometry import rotate_image, transform_points
from steerers.images import Image, load_image
from steerers.matching.strategies import Order, Strategy, Tta

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline
from steerers.progress import progress

Rotation = Literal["upright", "fixed", "quarter", "all", "joint"]
ROTATIONS: dict[Rotation, str] = {
    "upright": "as stored",
    "fixed": "second image of pair i turned by (50 i + 40) mod 360 degrees",
    "quarter": "second image turned by 90, 180 and 270 degrees",
    "all": "second image turned by 0, 10, ..., 350 degrees",
    "joint": "both images turned by the same 90, 180 and 270 degrees",
}
MAX_SIZE = 800
FORMAT = 1
"""Of the files of predictions; a change of what they mean raises it."""

Size = tuple[int, int]  # (width, height)


@dataclass(frozen=True)
class Pair:
    """Two images of a benchmark, and the turns, in degrees counter-clockwise, under which they are matched."""

    name: str
    sequence: str
    image0: Path
    image1: Path
    turn0: int = 0
    turn1: int = 0

    def key(self) -> dict[str, Any]:
        """What makes it this pair, without the folder that the data lies in; benchmarks add their ground truth."""
        return {"name": self.name, "turn0": self.turn0, "turn1": self.turn1}


AnyPair = TypeVar("AnyPair", bound=Pair)
Observer = Callable[[AnyPair, "View", Tensor, "View", Tensor], float]
"""Measures something on all keypoints of a pair, (N, 2) and (M, 2) pixels of the unturned images."""


@dataclass(frozen=True, eq=False)
class Run:
    """A matcher under the name that the table shows."""

    label: str
    pipeline: Pipeline


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a run found in a pair.

    ``matches`` are in pixels of the unturned images at the evaluated size, but their angle is that between the images
    as they were matched.
    """

    matches: Matches
    size0: Size  # evaluated
    size1: Size
    stored0: Size
    stored1: Size
    num_keypoints: tuple[int, int]
    observed: float  # by the benchmark, on all keypoints; NaN if it observes nothing
    extractions: int  # runs of the extractor that the pair needs
    extraction_seconds: float  # of all of them
    matching_seconds: float


@dataclass(frozen=True, eq=False)
class Predictions:
    """All predictions of a run, in the order of the pairs, with what they depend on and where they were made."""

    label: str
    config: dict[str, Any]
    made: dict[str, Any]
    pairs: list[Prediction]


@dataclass(frozen=True)
class Settings:
    """How images are shown to the matchers."""

    max_size: int = MAX_SIZE
    mask_corners: bool = False
    """Keep keypoints out of the black corners that a turn other than a quarter leaves. Users have such corners too, so
    by default they stay."""


# Pairs ----------------------------------------------------------------------------------------------------------------


def turn_pairs(pairs: Sequence[AnyPair], rotation: Rotation) -> list[AnyPair]:
    """The pairs under every turn of a set of rotations, those of one first image together."""
    if rotation not in get_args(Rotation):
        raise ValueError(f"unknown rotation {rotation!r}; use one of {', '.join(ROTATIONS)}")
    return [
        replace(pair, turn0=first, turn1=second)
        for index, pair in enumerate(pairs)
        for first, second in _turns(rotation, index)
    ]


def _turns(rotation: Rotation, index: int) -> list[tuple[int, int]]:
    if rotation == "fixed":
        return [(0, (50 * index + 40) % 360)]
    if rotation == "quarter":
        return [(0, 90), (0, 180), (0, 270)]
    if rotation == "all":
        return [(0, degrees) for degrees in range(0, 360, 10)]
    return [(90, 90), (180, 180), (270, 270)] if rotation == "joint" else [(0, 0)]


def hash_pairs(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the list of pairs: names, turns and ground truth, wherever the data lies."""
    return _sha256([pair.key() for pair in pairs])


# Runs -----------------------------------------------------------------------------------------------------------------


def load_runs(
    specs: Sequence[str],
    *,
    num_keypoints: int,
    max_size: int = MAX_SIZE,
    device: str | torch.device = "cpu",
    weights: Sequence[str | os.PathLike[str]] = (),
) -> list[Run]:
    """Matchers from ``MODEL[@DETECTOR][:STRATEGY[:ORDER]]``, such as ``sift`` or ``disk@dedode-l:tta:8``.

    Those with equal networks share one, so that :func:`predict` runs it once for all of them. Files of ``weights`` go
    to the models that need them, by their names.
    """
    from steerers.pipeline import load

    parsed = [_parse_spec(spec) for spec in specs]
    given = _deal(weights, [(name, detector) for name, detector, _, _ in parsed])
    runs = [
        Run(
            spec,
            load(
                name,
                detector=detector,
                weights=files,
                strategy=strategy,
                order=order,
                num_keypoints=num_keypoints,
                max_size=max_size,
                device=device,
            ),
        )
        for spec, (name, detector, strategy, order), files in zip(specs, parsed, given, strict=True)
    ]
    return share_extractors(runs)


def _parse_spec(spec: str) -> tuple[str, str | None, str | None, Order]:
    model, *rest = spec.split(":")
    name, *detector = model.split("@")
    if "" in (name, *detector, *rest) or len(detector) > 1 or len(rest) > 2:
        raise ValueError(f"cannot read {spec!r}; write MODEL[@DETECTOR][:STRATEGY[:ORDER]], as in disk or disk:tta:4")
    order: Order = "default"
    if len(rest) == 2:
        if rest[1] != "continuous" and not rest[1].isdecimal():
            raise ValueError(f"cannot read {spec!r}: the order {rest[1]!r} is neither a whole number nor 'continuous'")
        order = None if rest[1] == "continuous" else int(rest[1])
    return name, detector[0] if detector else None, rest[0] if rest else None, order


def _deal(
    weights: Sequence[str | os.PathLike[str]], models: Sequence[tuple[str, str | None]]
) -> list[list[str | os.PathLike[str]]]:
    """For each model the files that it needs, by their names; of one model, all."""
    from steerers.models import zoo

    if len(set(models)) == 1:
        return [list(weights)] * len(models)
    dealt = []
    for name, detector in models:
        entry = zoo.find(name) if detector is None else zoo.with_detector(zoo.find(name), detector)
        stems = {Path(file.name).stem for file in entry.weights}
        dealt.append([path for path in weights if Path(path).stem in stems])
    for path in weights:
        if not any(path in files for files in dealt):
            raise ValueError(f"{path} is none of the weights of the models {', '.join(name for name, _ in models)}")
    return dealt


def share_extractors(runs: Sequence[Run]) -> list[Run]:
    """The same runs, those whose extractors are equal with one object, however they came about."""
    kept: dict[str, Any] = {}
    shared = []
    for run in runs:
        model = run.pipeline.model
        extractor = kept.setdefault(fingerprint(model.extractor), model.extractor)
        same = extractor is model.extractor
        shared.append(
            run if same else replace(run, pipeline=replace(run.pipeline, model=replace(model, extractor=extractor)))
        )
    return shared


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of what a module computes: its classes, public settings and tensors.

    A setting whose text holds an address is never equal to another, so nothing is shared or reused by mistake.
    """
    parts: list[Any] = []
    for name, part in module.named_modules():
        public = {key: _plain(value) for key, value in vars(part).items() if key[0] != "_" and key != "training"}
        hidden = [fingerprint(m) for v in vars(part).values() if isinstance(v, tuple) for m in v if _is_module(m)]
        parts.append([name, f"{type(part).__module__}.{type(part).__qualname__}", public, hidden])
    parts.append({key: _plain(value) for key, value in module.state_dict().items()})
    return _sha256(parts)


def _is_module(value: object) -> bool:
    return isinstance(value, nn.Module)


def _plain(value: object) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, nn.Module):
        return fingerprint(value)
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# Predicting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """An image at the evaluated size, turned: what the matcher is given."""

    path: Path
    turn: int
    image: Image  # its stored pixels are those of the turned canvas
    to_upright: Tensor  # (3, 3) float64, from turned to unturned pixels
    size: Size  # of the unturned image
    stored_size: Size


def make_view(loaded: Image, path: Path, turn: int, *, mask_corners: bool, device: torch.device) -> View:
    """Turn an image that is loaded at the evaluated size; quarter turns are exact, what a turn uncovers is black."""
    upright = loaded.tensor.to(device)
    angle = math.radians(turn)
    tensor, to_turned = rotate_image(upright, angle)
    mask = loaded.mask
    if mask is not None or (mask_corners and turn % 90):
        allowed = torch.ones(upright.shape[1:]) if mask is None else mask.float()
        mask = rotate_image(allowed[None], angle)[0][0] > 0.999
    (height, width), (turned_height, turned_width) = upright.shape[1:], tensor.shape[1:]
    identity = torch.eye(3, dtype=torch.float64)
    image = Image(tensor.contiguous(), identity, (turned_width, turned_height), mask, loaded.name)
    return View(path, turn, image, torch.linalg.inv(to_turned), (width, height), loaded.stored_size)


@dataclass(frozen=True, eq=False)
class _Extracted:
    features: Features
    seconds: float


class _Desk:
    """The images and features at hand: each image is read once, each extraction done once for all runs that share it.

    Pairs come in the order of their first image, so it is enough to keep what belongs to that one.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.images: dict[Path, Image] = {}
        self.views: dict[tuple[Path, int], View] = {}
        self.extracted: dict[tuple[Path, int, int, int, float], _Extracted] = {}

    def clear_for(self, pair: Pair) -> None:
        """Forget what the pair does not need and a later one of the same first image will not."""
        self.images = {path: image for path, image in self.images.items() if path in (pair.image0, pair.image1)}
        self.views = {key: view for key, view in self.views.items() if _needed(key, pair)}
        self.extracted = {key: value for key, value in self.extracted.items() if _needed(key[:2], pair)}

    def view(self, path: Path, turn: int) -> View:
        if path not in self.images:
            self.images[path] = load_image(path, max_size=self.settings.max_size)
        if (path, turn) not in self.views:
            self.views[path, turn] = make_view(
                self.images[path], path, turn, mask_corners=self.settings.mask_corners, device=self.device
            )
        return self.views[path, turn]

    def extract(self, pipeline: Pipeline, view: View, angle: float = 0.0) -> _Extracted:
        """Features of a view, for augmentation turned by a further ``angle`` in radians, in pixels of the view."""
        key = (view.path, view.turn, id(pipeline.model.extractor), pipeline.num_keypoints, angle)
        if key not in self.extracted:
            start = _now(pipeline.device)
            features = pipeline.extract_turned(view.image, angle) if angle else pipeline.extract(view.image)
            self.extracted[key] = _Extracted(features, _now(pipeline.device) - start)
        found = self.extracted[key]
        return _Extracted(replace(found.features, model=pipeline.model.name), found.seconds)


def _needed(key: tuple[Path, int], pair: Pair) -> bool:
    return key[0] == pair.image0 or key == (pair.image1, pair.turn1)


def predict(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: Settings | None = None,
    observe: Observer[AnyPair] | None = None,
) -> list[list[Prediction]]:
    """The predictions of every run for every pair: a list a run.

    Features are extracted once for each image, turn and extractor, whatever the number of runs that use it; their
    seconds count for each run as if it were alone.
    """
    _check(runs, pairs)
    device = runs[0].pipeline.device
    settings = settings or Settings()
    if device.type != "cpu":  # the first call on an accelerator compiles and allocates: not to be timed
        _predict_pair(_Desk(settings, device), runs, pairs[0], None)
    desk = _Desk(settings, device)
    found = [_predict_pair(desk, runs, pair, observe) for pair in progress(pairs, "matching")]
    return [[predictions[index] for predictions in found] for index in range(len(runs))]


def _predict_pair(
    desk: _Desk, runs: Sequence[Run], pair: AnyPair, observe: Observer[AnyPair] | None
) -> list[Prediction]:
    desk.clear_for(pair)
    view0, view1 = desk.view(pair.image0, pair.turn0), desk.view(pair.image1, pair.turn1)
    observed: dict[tuple[int, int], float] = {}
    predictions = []
    for run in runs:
        key = (id(run.pipeline.model.extractor), run.pipeline.num_keypoints)
        prediction = _match(desk, run.pipeline, view0, view1)
        if observe is not None and key not in observed:
            points = (_upright(view, desk.extract(run.pipeline, view).features.keypoints) for view in (view0, view1))
            first, second = points
            observed[key] = observe(pair, view0, first, view1, second)
        predictions.append(replace(prediction, observed=observed.get(key, math.nan)))
    return predictions


def _match(desk: _Desk, pipeline: Pipeline, view0: View, view1: View) -> Prediction:
    strategy = pipeline.strategy
    angles = [float(angle) for angle in strategy.angles] if isinstance(strategy, Tta) else [0.0]
    first, second = [desk.extract(pipeline, view0, angle) for angle in angles], desk.extract(pipeline, view1)
    start = _now(pipeline.device)
    if isinstance(strategy, Tta):
        turned = [extracted.features for extracted in first]
        assignment, best = strategy.match_turned([f.descriptions for f in turned], second.features.descriptions)
        matches = pipeline.to_matches(assignment, turned[best], second.features)
    else:
        matches = pipeline.match(first[0].features, second.features)
    seconds = _now(pipeline.device) - start
    return Prediction(
        matches=_turned_back(matches, view0, view1),
        size0=view0.size,
        size1=view1.size,
        stored0=view0.stored_size,
        stored1=view1.stored_size,
        num_keypoints=(len(first[0].features), len(second.features)),
        observed=math.nan,
        extractions=len(first) + 1,
        extraction_seconds=sum(extracted.seconds for extracted in (*first, second)),
        matching_seconds=seconds,
    )


def _turned_back(matches: Matches, view0: View, view1: View) -> Matches:
    return Matches(
        keypoints0=_upright(view0, torch.from_numpy(matches.keypoints0)).numpy(),
        keypoints1=_upright(view1, torch.from_numpy(matches.keypoints1)).numpy(),
        scores=matches.scores,
        indices=matches.indices,
        angle=matches.angle,
        model=matches.model,
        strategy=matches.strategy,
    )


def _upright(view: View, keypoints: Tensor) -> Tensor:
    return transform_points(view.to_upright, keypoints)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def _check(runs: Sequence[Run], pairs: Sequence[Pair]) -> None:
    if not pairs:
        raise ValueError("pairs must not be empty")
    labels = [run.label for run in runs]
    if not labels:
        raise ValueError("runs must not be empty: name at least one model")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label!r} is named twice; every run needs a label of its own")


# Keeping predictions --------------------------------------------------------------------------------------------------


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
        made: where and with what predictions are made now; kept with them, but no part of the configuration, so that
            what one machine predicted another can evaluate.
    """
    _check(runs, pairs)
    settings = settings or Settings()
    configs = [_config(run, pairs, settings, observe) for run in runs]
    paths = [
        None if cache is None else _cache_file(cache, run, config) for run, config in zip(runs, configs, strict=True)
    ]
    done: list[Predictions | None] = [
        None if path is None or not path.exists() else _read(path, run.label, config)
        for path, run, config in zip(paths, runs, configs, strict=True)
    ]
    missing = [index for index, predictions in enumerate(done) if predictions is None]
    if missing:
        computed = predict([runs[index] for index in missing], pairs, settings, observe)
        for index, found in zip(missing, computed, strict=True):
            done[index] = _keep(Predictions(runs[index].label, configs[index], made or {}, found), paths[index])
    return [predictions for predictions in done if predictions is not None]


def _config(run: Run, pairs: Sequence[Pair], settings: Settings, observe: Observer[AnyPair] | None) -> dict[str, Any]:
    """Everything that predictions depend on, as JSON."""
    pipeline = run.pipeline
    files = [[path.name, path.stat().st_size] for pair in pairs for path in (pair.image0, pair.image1)]
    return {
        "format": FORMAT,
        "steerers": __version__,
        "pairs": hash_pairs(pairs),
        "files": _sha256(files),
        "max_size": settings.max_size,
        "mask_corners": settings.mask_corners,
        "observed": None if observe is None else f"{observe.__module__}.{observe.__qualname__}",
        "model": pipeline.model.name,
        "extractor": fingerprint(pipeline.model.extractor),
        "num_keypoints": pipeline.num_keypoints,
        "strategy": describe_strategy(pipeline.strategy),
    }


def describe_strategy(strategy: Strategy) -> dict[str, Any]:
    """Name and options of a strategy; steerers and tensors by their hash. Tiles do not change what is matched."""
    options = {option.name: _plain(getattr(strategy, option.name)) for option in fields(strategy) if option.init}
    options.pop("tile")
    return {"name": strategy.name, **options}


def _cache_file(folder: Path, run: Run, config: dict[str, Any]) -> Path:
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", run.label)
    return folder / f"{readable}-{_sha256(config)[:16]}.npz"


def _keep(predictions: Predictions, path: Path | None) -> Predictions:
    """Write the file, if one is asked for, whole or not at all."""
    if path is None:
        return predictions
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **_pack(predictions))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return predictions


def _pack(predictions: Predictions) -> dict[str, Any]:
    pairs = predictions.pairs
    matches = [pair.matches for pair in pairs]
    arrays: dict[str, Any] = {
        "config": json.dumps(predictions.config, sort_keys=True),
        "made": json.dumps(predictions.made),
        "counts": np.array([len(m) for m in matches], np.int64),
        "angles": np.array([math.nan if m.angle is None else m.angle for m in matches], np.float64),
        "sizes": np.array([(*p.size0, *p.size1, *p.stored0, *p.stored1, *p.num_keypoints) for p in pairs], np.int64),
        "costs": np.array(
            [(p.observed, p.extractions, p.extraction_seconds, p.matching_seconds) for p in pairs], np.float64
        ),
    }
    for name in ("keypoints0", "keypoints1", "scores", "indices"):
        arrays[name] = np.concatenate([getattr(m, name) for m in matches])
    return arrays


def _read(path: Path, label: str, config: dict[str, Any]) -> Predictions:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        kept, made = json.loads(str(arrays["config"])), json.loads(str(arrays["made"]))
        pairs = list(_unpack(arrays, config["model"], config["strategy"]["name"]))
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a file of predictions, or damaged ({error}); delete it") from error
    if kept != config:
        raise ValueError(f"{path}: predictions of another configuration under this name; delete it")
    return Predictions(label, config, made, pairs)


def _unpack(arrays: dict[str, Any], model: str, strategy: str) -> Iterator[Prediction]:
    bounds = np.concatenate([[0], np.cumsum(arrays["counts"])]).tolist()
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
