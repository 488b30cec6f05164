"""What ``steerers figure`` runs: match, describe, steer, and draw."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import torch

from steerers._devices import parse_device
from steerers.benchmarks.aims import AIMS, AimsPair
from steerers.benchmarks.predict import Prediction, ViewSettings, load_at
from steerers.benchmarks.report import environment
from steerers.benchmarks.runs import load_runs
from steerers.benchmarks.store import is_kept
from steerers.cli import options
from steerers.cli.eval import matches_folder
from steerers.cli.match import shrunk_by
from steerers.features import Keypoints
from steerers.geometry import rotate_image, rotation_about_centre, transform_points
from steerers.images.load import Image, load_image
from steerers.models.base import Detector
from steerers.models.classical import UprightSift
from steerers.pipeline import Pipeline, load
from steerers.steering.steerer import Steerer
from steerers.viz import draw_matches
from steerers.viz.canvas import stack
from steerers.viz.overview import draw_overview, make_overview
from steerers.viz.sift import draw_sift, sift_bins
from steerers.viz.similarity import draw_similarity, similarity_maps

MARGIN = 64
"""Pixels from the border within which no keypoint is chosen, if the image is large enough."""


# What the figures share -----------------------------------------------------------------------------------------------


def _start(arguments: argparse.Namespace, *inputs: Path) -> None:
    """Refuse an output that cannot be written, before any work."""
    options.check_output(arguments.out, picture=True)
    options.check_distinct([arguments.out], inputs)


def _finish(arguments: argparse.Namespace, picture: PIL.Image.Image) -> int:
    options.save(picture, arguments.out)
    options.say_wrote(arguments.out)
    return 0


def _load(arguments: argparse.Namespace, **more: object) -> tuple[Pipeline, Steerer]:
    """The model that the arguments name, and its steerer."""
    pipeline = load(arguments.model, **{**options.matcher_options(arguments), **more})
    steerer = pipeline.model.steerer
    if steerer is None:
        raise ValueError(
            f"model {pipeline.model.name!r} has no steerer, and this figure shows what one does; `steerers models` "
            "says which have one, and --steerer takes one that `steerers fit` wrote"
        )
    return pipeline, steerer


def _find_keypoint(
    detector: Detector, image: Image, arguments: argparse.Namespace, device: torch.device | str = "cpu"
) -> Keypoints:
    """The keypoint that the arguments name by a stored pixel, or else the best one that is not at the border."""
    found = _best_keypoint(detector, image, device) if arguments.at is None else _keypoint_at(image, arguments.at)
    if arguments.diameter is not None:
        found = replace(found, scales=found.xy.new_full((1,), arguments.diameter))
    scales = None if found.scales is None else found.scales.to(device)
    return Keypoints(found.xy.to(device), found.scores.to(device), scales)


def _keypoint_at(image: Image, at: tuple[float, float]) -> Keypoints:
    height, width = image.tensor.shape[1:]
    xy = transform_points(torch.linalg.inv(image.to_stored), torch.tensor([at]))
    if not bool(((xy > -0.5) & (xy < torch.tensor([width - 0.5, height - 0.5]))).all()):
        (x, y), (wide, high) = at, image.stored_size
        raise ValueError(f"--at {x:g},{y:g} lies outside of {image.name}, which has {wide} x {high} pixels")
    return Keypoints(xy, torch.ones(1))


def _best_keypoint(detector: Detector, image: Image, device: torch.device | str) -> Keypoints:
    height, width = image.tensor.shape[1:]
    margin = min(MARGIN, height // 4, width // 4)
    inner = torch.zeros(height, width, dtype=torch.bool)
    inner[margin : height - margin, margin : width - margin] = True
    mask = inner if image.mask is None else inner & image.mask
    with torch.no_grad():
        (found,) = detector.detect(image.tensor[None].to(device), num_keypoints=1, masks=mask[None].to(device))
    if len(found) == 0:
        raise ValueError(f"no keypoint is found in {image.name}; name a place with --at X,Y")
    return found


# Figure 1: matches ----------------------------------------------------------------------------------------------------


def run_matches(arguments: argparse.Namespace) -> int:
    """Match pairs, keep what agrees with a homography, draw the pairs below one another."""
    paths: list[Path] = arguments.images
    if len(paths) % 2:
        raise ValueError(f"images go in pairs, A B C D ..., got {len(paths)}")
    _start(arguments, *paths)
    pipeline = load(arguments.model, **options.matcher_options(arguments))
    drawn = []
    for first, second in zip(paths[::2], paths[1::2], strict=True):
        images = pipeline.load_image(first), pipeline.load_image(second)
        matches = pipeline(*images)
        inliers = matches.homography(3.0 * shrunk_by(*images)).inliers
        options.say(f"{first} {second}: {len(matches)} matches, {int(inliers.sum())} inliers")
        drawn.append(draw_matches(*images, matches, inliers, outliers=False))
    return _finish(arguments, stack(drawn))


# Similarity -----------------------------------------------------------------------------------------------------------


def run_similarity(arguments: argparse.Namespace) -> int:
    """Compare one keypoint with every place of another image, at every rotation."""
    _start(arguments, arguments.image0, arguments.image1)
    pipeline, steerer = _load(arguments, order="default")
    image0, image1 = pipeline.load_image(arguments.image0), pipeline.load_image(arguments.image1)
    keypoint = _find_keypoint(pipeline.model.extractor, image0, arguments, pipeline.device)
    first, second = (image.tensor.to(pipeline.device) for image in (image0, image1))
    found = similarity_maps(
        pipeline.model.extractor, steerer, first, keypoint, second, order=arguments.order, step=arguments.step
    )
    rows = [("rotation", "similarity", "x", "y")]
    for index, angle in enumerate(found.angles.tolist()):
        cosine, *place = found.peak(index)
        ((x, y),) = transform_points(image1.to_stored, torch.tensor([place], dtype=torch.float64)).tolist()
        rows.append((f"{math.degrees(angle):g}°", f"{cosine:.3f}", f"{x:.0f}", f"{y:.0f}"))
    options.say(options.table(rows, ">>>>"))
    return _finish(arguments, draw_similarity(found, f"{pipeline.model.name}: one keypoint against every place"))


# Figure 2: overview ---------------------------------------------------------------------------------------------------


def run_overview(arguments: argparse.Namespace) -> int:
    """Describe a keypoint, steer, and describe it anew in the rotated image."""
    _start(arguments, arguments.image)
    pipeline, steerer = _load(arguments)
    image = pipeline.load_image(arguments.image)
    keypoint = _find_keypoint(pipeline.model.extractor, image, arguments, pipeline.device)
    angle = math.radians(arguments.rotate)
    found = make_overview(pipeline.model.extractor, steerer, image.tensor.to(pipeline.device), keypoint, angle)
    options.say(
        f"cosine with the description of the image rotated by {arguments.rotate:g} degrees: steered "
        f"{found.cosine:.3f}, as it is {found.cosine_unsteered:.3f}"
    )
    return _finish(arguments, draw_overview(found, pipeline.model.name))


# Figure 3: Upright SIFT -----------------------------------------------------------------------------------------------


def run_upright_sift(arguments: argparse.Namespace) -> int:
    """Describe a keypoint before and after a quarter turn, and compare bin by bin."""
    _start(arguments, arguments.image)
    image = load_image(arguments.image, max_size=arguments.max_size, exif=arguments.exif)
    found = sift_bins(image.tensor, _find_keypoint(UprightSift(), image, arguments))
    options.say(f"largest difference between permuted and rotated bins: {found.difference:.2g}")
    return _finish(arguments, draw_sift(found, "Upright SIFT under a quarter turn"))


# The half turn of DeDoDe's Figure 7 -----------------------------------------------------------------------------------


def run_half_turn(arguments: argparse.Namespace) -> int:
    """Match descriptions as they are, and again with those of the rotated image steered back."""
    _start(arguments, arguments.image0, arguments.image1)
    pipeline, steerer = _load(arguments, strategy="dual-softmax")
    degrees, back = int(arguments.rotate), 360 - int(arguments.rotate)  # learned steerers know 0 to 360 degrees
    image0 = pipeline.load_image(arguments.image0)
    image1 = _rotated(pipeline.load_image(arguments.image1), math.radians(degrees))
    features0, features1 = pipeline.extract(image0), pipeline.extract(image1)
    with torch.no_grad():
        steered = replace(features1, descriptions=steerer.steer(features1.descriptions.float(), math.radians(back)))
    drawn, captions = [], ["descriptions as they are", f"those of the second image steered by {back}°"]
    for features, caption in zip((features1, steered), captions, strict=True):
        matches = pipeline.match(features0, features)
        inliers = matches.homography(3.0 * shrunk_by(image0, image1)).inliers
        options.say(f"{caption}: {len(matches)} matches, {int(inliers.sum())} inliers")
        drawn.append(draw_matches(image0, image1, matches, inliers, height=480))
    return _finish(arguments, stack(drawn, captions))


def _rotated(image: Image, angle: float) -> Image:
    """An image as if its file had been rotated by quarter turns."""
    rotated, transform = rotate_image(image.tensor, angle)
    stored, stored_size = rotation_about_centre(image.stored_size, angle)
    return replace(
        image,
        tensor=rotated.contiguous(),
        mask=None if image.mask is None else rotate_image(image.mask[None], angle)[0][0],
        to_stored=stored @ image.to_stored @ torch.linalg.inv(transform),
        stored_size=stored_size,
    )


# Figures 5 and 6: AIMS ------------------------------------------------------------------------------------------------


def run_aims(arguments: argparse.Namespace) -> int:
    """Match the true pairs of AIMS as its benchmark does, or take what that has kept, and draw some."""
    if arguments.least > arguments.most:
        raise ValueError(f"--least {arguments.least} is more than --most {arguments.most}")
    estimator, views = AIMS.read_options(arguments), ViewSettings(short_side=arguments.short_side)
    pairs = AIMS.list_pairs(arguments)
    _start(arguments, *(path for pair in pairs for path in (pair.image0, pair.image1)))
    device, cache = parse_device(arguments.device), matches_folder(arguments)
    runs = load_runs(
        [arguments.model],
        num_keypoints=arguments.num_keypoints,
        max_size=None,
        device=device,
        weights=arguments.weights or (),
    )
    if not is_kept(runs[0], pairs, views, cache=cache):  # those of the whole benchmark are not needed, but welcome
        pairs = [pair for pair in pairs if pair.positive]
    evaluation = AIMS.run(runs, pairs, options=estimator, views=views, cache=cache, made=environment(device))
    (row,) = evaluation.rows
    found = [
        (outcome.num_inliers, pair, prediction)
        for outcome, pair, prediction in zip(row.outcomes, pairs, row.predictions.pairs, strict=True)
        if pair.positive
    ]
    drawn = []
    for number, pair, prediction in _choose(found, arguments):
        options.say(f"{pair.name}: {len(prediction.matches)} matches, {number} inliers")
        stored0, stored1 = (xy.astype(np.float32) for xy in prediction.stored_keypoints())
        matches = replace(prediction.matches, keypoints0=stored0, keypoints1=stored1)
        images = load_at(pair.image0, views), load_at(pair.image1, views)
        inliers = estimator.find(prediction.matches).inliers
        drawn.append(draw_matches(*images, matches, inliers, height=400, outliers=False))
    return _finish(arguments, stack(drawn))


def _choose(
    found: Sequence[tuple[int, AimsPair, Prediction]], arguments: argparse.Namespace
) -> list[tuple[int, AimsPair, Prediction]]:
    """Of the true pairs, those with as many inliers as asked for, most first."""
    ordered = sorted(found, key=lambda case: -case[0])
    chosen = [case for case in ordered if arguments.least <= case[0] <= arguments.most]
    if not chosen:
        raise ValueError(
            f"none of the {len(found)} true pairs has {arguments.least} to {arguments.most} inliers: they have "
            f"{ordered[-1][0]} to {ordered[0][0]}; set --least and --most"
        )
    if arguments.pick == "most" or len(chosen) <= arguments.count:
        return chosen[: arguments.count]
    return [chosen[round(place)] for place in np.linspace(0, len(chosen) - 1, arguments.count).tolist()]
