"""Matchers under the names that tables show: how they are written, loaded, shared and told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from steerers._choices import Resize
from steerers._files import StrPath, checksum
from steerers.benchmarks.offers import MAX_SIZE, SPEC
from steerers.matching.fingerprints import describe_strategy, fingerprint, sha256
from steerers.matching.strategies import DualSoftmax
from steerers.steering.representations import Order
from steerers.steering.steerer import Steerer

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

_RATIO_TEST = "sift:mutual-nearest?ratio=0.85"
_OPTIONS: dict[str, type[int] | type[float]] = {
    "inverse_temperature": float,
    "threshold": float,
    "ratio": float,
    "subset_size": int,
    "seed": int,
    "refine": int,
    "consensus": int,
}


@dataclass(frozen=True, eq=False)
class Run:
    """A matcher under the name that the table shows."""

    label: str
    pipeline: Pipeline


# Loading --------------------------------------------------------------------------------------------------------------


def load_runs(
    specs: Sequence[str],
    *,
    num_keypoints: int,
    max_size: int | None = MAX_SIZE,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
    precision: str = "float32",
    resize: Resize = "fit",
) -> list[Run]:
    """Matchers from ``MODEL[@DETECTOR][:STRATEGY[:ORDER]][?OPTION=VALUE&...]``.

    Such as ``sift``, ``disk@dedode-l:tta:8`` or ``sift:mutual-nearest?ratio=0.85``; options are those of the strategy,
    which may also be one of :data:`steerers.benchmarks.peers.PEERS`. Those with equal networks share one, so that
    predicting runs it once for all of them. Files of ``weights`` go to the models that need them, by their names.
    """
    from steerers.pipeline import load

    sized = partial(load, num_keypoints=num_keypoints, max_size=max_size, resize=resize)
    configured = partial(sized, device=device, precision=precision)
    runs = [
        Run(label, _load(partial(configured, model, weights=files), options))
        for label, (model, options, files) in zip(specs, read_specs(specs, weights), strict=True)
    ]
    return share_extractors(runs)


def read_specs(
    specs: Sequence[str], weights: Sequence[StrPath] = ()
) -> list[tuple[str, dict[str, Any], list[StrPath]]]:
    """What :func:`load_runs` reads: of each the model, keyword arguments of :func:`steerers.load`, and the files that
    it needs."""
    parsed = [_parse_spec(spec) for spec in specs]
    dealt = _deal(weights, [(model, options["detector"]) for model, options in parsed])
    return [(model, options, files) for (model, options), files in zip(parsed, dealt, strict=True)]


def _load(load: Callable[..., Pipeline], options: dict[str, Any]) -> Pipeline:
    """A pipeline with a strategy of ours, or with the matcher of a peer, which is looked for before any download."""
    from steerers.benchmarks.peers import PEERS, with_peer

    peer, order, *rest = options.pop("strategy"), options.pop("order"), *options
    if peer not in PEERS:
        return load(strategy=peer, order=order, **options)
    for option in rest:
        if option not in ("detector", "refine"):
            raise ValueError(f"{peer} has the settings of its authors, and no option {option!r}")
    PEERS[peer].folder()
    return with_peer(load(strategy=DualSoftmax.name, **options), peer, order)


def _parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """The model, and keyword arguments of :func:`steerers.load`."""
    path, mark, query = text.partition("?")
    model, *rest = path.split(":")
    name, *detector = model.split("@")
    if "" in (name, *detector, *rest) or len(detector) > 1 or len(rest) > 2 or (mark and not query):
        raise ValueError(f"cannot read {text!r}; write {SPEC}, as in disk, disk:tta:4 or {_RATIO_TEST}")
    order: Order = "default"
    if len(rest) == 2:
        if rest[1] != "continuous" and not rest[1].isdecimal():
            raise ValueError(f"cannot read {text!r}: the order {rest[1]!r} is neither a whole number nor 'continuous'")
        order = None if rest[1] == "continuous" else int(rest[1])
    options = dict(_parse_option(text, part) for part in query.split("&")) if query else {}
    how = {"detector": detector[0] if detector else None, "strategy": rest[0] if rest else None, "order": order}
    return name, {**how, **options}


def _parse_option(text: str, part: str) -> tuple[str, float]:
    name, equals, value = part.partition("=")
    if name not in _OPTIONS or not equals:
        raise ValueError(f"cannot read {text!r}: {part!r} is none of the options {'=, '.join(_OPTIONS)}=")
    try:
        return name, _OPTIONS[name](value)
    except ValueError:
        kind = "whole number" if _OPTIONS[name] is int else "number"
        raise ValueError(f"cannot read {text!r}: {name} must be a {kind}, got {value!r}") from None


def _deal(weights: Sequence[StrPath], models: Sequence[tuple[str, str | None]]) -> list[list[StrPath]]:
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


# Telling apart --------------------------------------------------------------------------------------------------------


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


def describe_matching(pipeline: Pipeline) -> dict[str, Any]:
    """Name and options of how a pipeline matches, see :func:`describe_strategy`, and how it refines places, if so."""
    told = {**describe_strategy(pipeline.strategy, pipeline.tta, pipeline.consensus), "name": pipeline.strategy_name}
    return told if pipeline.refinement is None else {**told, "refinement": asdict(pipeline.refinement)}


def describe_steerer(steerer: Steerer) -> str:
    """Its group, and whether its representation is known."""
    return f"{steerer.group}, {'learned' if steerer.representation is None else 'fixed'}"


def hash_files(paths: Sequence[Path]) -> str:
    """SHA-256 of names and contents, wherever the files lie; each is read once."""
    contents: dict[Path, str] = {}
    for path in paths:
        if path not in contents:
            contents[path] = checksum(path)
    return sha256([[path.name, contents[path]] for path in paths])
