"""What a configuration amounts to, told before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from steerers.datasets.photos import find_photos, held_out
from steerers.training.build import build_network, build_objective, build_steerer, needed_weights
from steerers.training.config import TrainConfig
from steerers.training.loop import CHECKPOINT
from steerers.training.objectives import Objective
from steerers.training.sources import build_sources, check_dense, needs_detections, open_reconstructions, places_of

_SETTINGS = {
    "A": "setting A, frozen descriptor",
    "B": "setting B, descriptor and steerer together",
    "C": "setting C, descriptor for a fixed steerer",
    "detector": "a detector",
    "joint": "keypoints and descriptions of one network",
}


def overview(
    config: TrainConfig, data: list[Path], folder: Path, device: str | None, cache: Path | None = None
) -> Iterator[tuple[str, str]]:
    """What a configuration amounts to, as titles and texts.

    No photograph is decoded, no weights are read, nor data that is not there.

    Args:
        cache: of decoded photographs, as the run would have it.

    Raises:
        ValueError: for what a run would refuse.
    """
    objective = build_objective(config, pretrained=False)
    yield "run", f"{config.name}: {_SETTINGS[config.setting]}"
    yield from _networks(config, objective)
    yield from _data(config, data, cache)
    yield "optimiser", _optimiser(config)
    for prefix, (count, rate) in _rates(config, objective).items():
        yield "learning rate", f"{rate:g} of {prefix} ({count:,} parameters)"
    schedule = f"warm-up over {config.optimiser.warm_up}, then " if config.optimiser.warm_up else ""
    yield "schedule", f"{config.steps:,} steps of {config.batch} pairs; {schedule}a cosine to 0"
    validation = f"every {config.validation.every:,} steps" if config.validation.every else "at the end"
    degrees = ", ".join(f"{angle}°" for angle in config.validation.rotations)
    yield "validation", f"{validation}, {config.validation.pairs} pairs at each of {degrees} that the group has"
    faster = (", compiled" if config.compile else "") + (", CUDA graphs on a GPU" if config.cuda_graphs else "")
    yield "precision", config.precision + faster
    yield "device", device or "cuda where there is one, else cpu"
    yield "folder", f"{folder} ({'has a checkpoint' if (folder / CHECKPOINT).exists() else 'new'})"


def _networks(config: TrainConfig, objective: Objective) -> Iterator[tuple[str, str]]:
    network = build_network(config.model, pretrained=False)
    count = sum(parameter.numel() for parameter in network.parameters())
    frozen = "frozen" if config.setting == "A" else "trained"
    yield "network", f"{config.model.kind}, {count:,} parameters, {frozen}; from {config.model.weights or 'random'}"
    if config.setting not in ("detector", "joint"):
        yield "keypoints", f"{config.matching.num_keypoints:,} of {config.model.detector}, frozen"
    if config.setting != "detector":
        yield "steerer", _steerer(config, objective)
    if config.matching.prototype:
        yield "prototype", "trained, for prototype-procrustes"
    for name, where in needed_weights(config.model):
        yield "weights", f"{name} ({where})"


def _steerer(config: TrainConfig, objective: Objective) -> str:
    steerer = objective.steerer
    if steerer is None:
        return "none"
    fixed = build_steerer(replace(config.steerer, learn=False), steerer.dim, config.seed)
    known = None if fixed is None else fixed.representation
    start = config.steerer.kind if known is None else f"{config.steerer.kind}, {known}"
    how = "trained from" if steerer.learnable else "fixed:"
    return f"{steerer.group}, {steerer.dim} x {steerer.dim}, {how} {start}"


def _data(run: TrainConfig, data: list[Path], cache: Path | None) -> Iterator[tuple[str, str]]:
    config = run.data
    views = f"rotations {config.rotations}, views of {config.views.size} x {config.views.size} pixels"
    yield "data", f"{config.source}, {views}"
    if not data and not config.path:
        yield "", "none given: set data.path, or give --data"
        return
    places = places_of(config, data)
    missing = [place for place in places if not place.exists()]
    yield from (("", f"{place} is not there") for place in missing)
    if not missing:
        yield "", f"{', '.join(map(str, places))}: {_count_pairs(run, places, cache)}"
    if config.mosaics.share:
        low, high = config.mosaics.scale
        laid = f"mosaics of {config.mosaics.side} x {config.mosaics.side} photographs at zooms of {low:g} to {high:g}"
        yield "", f"for {config.mosaics.share:.0%} of the steps {laid}"
    if config.source == "folder" and config.colmap and config.colmap_share:
        mixed = ", ".join(_beside(run, Path(place), cache) for place in config.colmap)
        yield "", f"for {config.colmap_share:.0%} of the steps {mixed}"


def _beside(run: TrainConfig, place: Path, cache: Path | None) -> str:
    """A reconstruction beside photographs."""
    if not place.exists():
        return f"{place} (not there)"
    (source,) = open_reconstructions(run.data, [place], cache)
    check_dense(run.setting, [(source, run.data.colmap_share)], photographs=True)
    return f"{place} ({len(source):,} pairs)"


def _count_pairs(run: TrainConfig, places: list[Path], cache: Path | None) -> str:
    config = run.data
    if config.source == "folder":  # without decoding them
        names = [photo.name for photo in find_photos(places)]
        held = sum(held_out(name, config.held_out) for name in names)
        kept = held if 0 < held < len(names) else 1  # a handful: the last
        return f"{len(names)} photographs, a pair each; of them {kept} held out"
    sources = build_sources(config, places, torch.device("cpu"), cache, detections=needs_detections(run))
    check_dense(run.setting, sources.training)
    return f"{sum(len(source) for source, _ in sources.training):,} pairs, {len(sources.validation):,} held out"


def _optimiser(config: TrainConfig) -> str:
    chosen = config.optimiser
    clip = f"gradient clipped to {chosen.clip:g}" if chosen.clip else "gradient not clipped"
    return f"AdamW, weight decay {chosen.weight_decay:g}, {clip}" + (f", average {chosen.ema:g}" if chosen.ema else "")


def _rates(config: TrainConfig, objective: Objective) -> dict[str, tuple[int, float]]:
    """Number of parameters and learning rate by the beginning of their names."""
    rates: dict[str, tuple[int, float]] = {}
    for prefix, network in objective.networks().items():
        for name, parameter in network.named_parameters():
            rate = config.optimiser.rate_of(f"{prefix}.{name}")
            given = [own for own in config.optimiser.learning_rates if f"{prefix}.{name}".startswith(own)]
            key = max(given, key=len) if given else prefix
            rates[key] = (rates.get(key, (0, rate))[0] + parameter.numel(), rate)
    return rates
