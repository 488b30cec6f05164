"""``steerers spectrum ... --patches``: what excites the blocks of a steerer, and how they respond (appendix A.1)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from steerers._console import progress
from steerers._devices import parse_device
from steerers.cli import options
from steerers.datasets.photos import Photo, find_photos, spread
from steerers.features import Keypoints
from steerers.models import zoo
from steerers.models.base import Extractor
from steerers.models.zoo import Model
from steerers.pipeline import load
from steerers.steering.irreps import Excited, Irreps, Patch, find_patches, rotate_patch, whole_patches
from steerers.steering.representations import Group
from steerers.viz.irreps import draw_detail, draw_frequencies

MAX_SIZE, NUM_KEYPOINTS, DEGREES = 640, 512, 45


def show_patches(arguments: argparse.Namespace, count: int) -> int:
    """Find the patches, rotate ``count`` of each kind, print how the blocks follow, draw."""
    path, picture = _check(arguments)
    photos = spread(find_photos(arguments.patches), arguments.num_photos)
    model = _find_model(path, arguments)
    assert model.steerer is not None
    irreps, device = Irreps.of(model.steerer), parse_device(arguments.device)
    parts = _choose_blocks(irreps, arguments)
    extractor = model.extractor.to(device).eval()
    found = find_patches(_describe(extractor, photos, device), irreps, parts)
    angles = _angles(model.steerer.group)
    rows = []
    for blocks, patches in progress(list(zip(parts, found, strict=True)), "rotating"):
        if not patches:
            raise ValueError(f"no photograph of {arguments.patches[0]} has a keypoint far enough from its border")
        best = patches[:count]
        images = [_load(photos[patch.photo], device) for patch in best]
        rows.append(_rotate(extractor, irreps, blocks, best, images, angles))
    _print(rows, model, irreps, len(photos))
    title = f"{model.name}, {irreps.representation} of {model.steerer.group}"
    if len(rows) == 1:
        what = f"frequency {rows[0].frequency}" if arguments.block is None else f"block {arguments.block}"
        drawn = draw_detail(rows[0], f"{what}: {title}")
    else:
        drawn = draw_frequencies(rows, title)
    options.save(drawn, picture)
    options.say_wrote(picture)
    return 0


# Arguments ------------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The run, file or model, and where the picture goes; refused before any work."""
    path, *more = arguments.paths
    if more:
        raise ValueError(f"--patches looks at one steerer, got {', '.join(map(str, arguments.paths))}")
    for option in ("data", "gif", "dims", "pairs", "cache"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} does not go with --patches")
    picture = arguments.out or (path / "patches.png" if path.is_dir() else Path(f"{path.with_suffix('')}-patches.png"))
    options.check_output(picture, picture=True)
    options.check_distinct([picture], [path])
    return path, picture


def _find_model(path: Path, arguments: argparse.Namespace) -> Model:
    """Descriptor and steerer: of a run, of a model by its name, or of the file of a steerer and its model."""
    if path.is_dir():
        return _model_of_run(path, arguments)
    is_file = path.is_file() or path.suffix == ".safetensors"
    if is_file and arguments.model is None:
        raise ValueError(f"{path} holds a steerer, but no descriptor: name it with --model")
    if not is_file and arguments.model is not None:
        raise ValueError(f"--model goes with the file of a steerer, and {path} is none")
    if not is_file and str(path) not in zoo.names():
        raise ValueError(f"{path} is no run, no file of a steerer, and no model (see `steerers models`)")
    name, steerer = (arguments.model, path) if is_file else (str(path), None)
    model = load(name, steerer=steerer, weights=arguments.weights or (), device=arguments.device).model
    if model.steerer is None:
        raise ValueError(f"model {model.name!r} has no steerer; `steerers models` says which have one")
    return model


def _model_of_run(folder: Path, arguments: argparse.Namespace) -> Model:
    from steerers.training.run_folder import load_run

    for option in ("model", "weights"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} does not go with the folder of a run, which has its own")
    objective = load_run(folder).objective
    extractor, steerer = objective.extractor(), objective.steerer
    if extractor is None or steerer is None:
        raise ValueError(f"{folder}: this run has no steerer")
    return Model(folder.resolve().name, extractor, steerer)


def _choose_blocks(irreps: Irreps, arguments: argparse.Namespace) -> list[list[int]]:
    """One block, all of one frequency, or those of each."""
    frequencies = sorted(set(irreps.frequencies))
    if arguments.block is not None:
        if arguments.block >= len(irreps.frequencies):
            raise ValueError(f"--block must be 0 to {len(irreps.frequencies) - 1} here, got {arguments.block}")
        return [[arguments.block]]
    if arguments.frequency is not None and arguments.frequency not in frequencies:
        known = ", ".join(map(str, frequencies))
        raise ValueError(f"the steerer has no block of frequency {arguments.frequency}; it has {known}")
    wanted = frequencies if arguments.frequency is None else [arguments.frequency]
    return [irreps.of_frequency(frequency) for frequency in wanted]


# Work -----------------------------------------------------------------------------------------------------------------


def _angles(group: Group) -> list[float]:
    """All rotations of a cyclic group, or some of SO(2), from 0 on, in radians."""
    own = Group(360 // DEGREES) if group.continuous else group
    return [float(angle) for angle in own.angles()]


@torch.no_grad()
def _describe(
    extractor: Extractor, photos: Sequence[Photo], device: torch.device
) -> Iterator[tuple[Keypoints, Tensor]]:
    for photo in progress(photos, "describing"):
        image = _load(photo, device)
        ((keypoints, descriptions),) = extractor.extract(image[None], num_keypoints=NUM_KEYPOINTS)
        whole = whole_patches(keypoints, image.shape[2], image.shape[1])
        yield keypoints.select(whole), descriptions[whole]


def _load(photo: Photo, device: torch.device) -> Tensor:
    return photo.load(MAX_SIZE).to(device).float() / 255


def _rotate(
    extractor: Extractor,
    irreps: Irreps,
    blocks: Sequence[int],
    patches: list[Patch],
    images: list[Tensor],
    angles: Sequence[float],
) -> Excited:
    responses = [
        rotate_patch(extractor, image, patch, irreps, blocks, angles)
        for image, patch in zip(images, patches, strict=True)
    ]
    return Excited(irreps.frequencies[blocks[0]], blocks, images, patches, responses)


def _print(rows: Sequence[Excited], model: Model, irreps: Irreps, num_photos: int) -> None:
    options.say(f"{model.name}: {irreps.representation}, {num_photos} photographs")
    table = [["frequency", "blocks", "patches", "most excited block", "excitation", "angle error", "deviation"]]
    table += [
        [
            str(row.frequency),
            str(len(row.blocks)),
            str(len(row.patches)),
            str(row.strongest),
            f"{row.excitation:.3f}",
            f"{row.angle_error:.1f}°",
            f"{row.deviation:.3f}",
        ]
        for row in rows
    ]
    options.say(options.table(table, ">" * len(table[0])))
