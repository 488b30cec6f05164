"""``steerers fit``: a steerer for a frozen descriptor, from a folder of photographs (Setting A)."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from steerers._console import Option, positive, progress
from steerers._devices import parse_device
from steerers._version import __version__
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.training.fit_steerer import Fit

MIRROR = "mirror"
"""Instead of a group of rotations."""


def run(arguments: argparse.Namespace) -> int:
    """Fit, print, write the steerer and the picture of its eigenvalues."""
    if arguments.group == MIRROR:
        return _run_mirror(arguments)
    plot = arguments.plot or arguments.out.with_suffix(".png")
    if arguments.out.suffix != ".safetensors":
        raise ValueError(f"cannot write {arguments.out}: the file of a steerer ends in .safetensors")
    options.check_output(arguments.out)
    options.check_output(plot, picture=True)
    from steerers.pipeline import load
    from steerers.steering.representations import Group
    from steerers.training.fit_steerer import FitOptions, fit_examples, make_examples
    from steerers.viz import draw_spectrum

    starts = [
        FitOptions(
            num_pairs=arguments.num_pairs,
            num_keypoints=arguments.num_keypoints,
            steps=arguments.steps,
            start=start,
            seed=arguments.seed,
        )
        for start in arguments.start.replace(" ", "").split(",")
    ]
    group, device = Group.parse(arguments.group), parse_device(arguments.device)
    extractor = load(
        arguments.model, detector=arguments.detector, weights=arguments.weights or (), device=device, fast=False
    ).model.extractor
    fitting, testing = make_examples(
        extractor, arguments.images, group, options=starts[0], device=device, progress=progress
    )
    fits = {chosen.start: fit_examples(fitting, testing, group, chosen, progress) for chosen in starts}
    for name, result in fits.items():
        options.say(f"start {name}: {_losses(result)}{result.summary()}")
    best = max(fits, key=lambda name: fits[name].accuracy)
    steerer = fits[best].steerer
    representation, residual = steerer.nearest_representation()
    options.say(f"nearest representation of {group}: {representation} (residual {residual:.3f})")
    steerer.save(arguments.out, _recipe(arguments, best, fits[best]))
    options.save(draw_spectrum(steerer), plot)
    options.say_wrote(arguments.out, plot)
    return 0


def _run_mirror(arguments: argparse.Namespace) -> int:
    """What a reflection does to descriptions, which needs no descent."""
    if arguments.out.suffix != ".safetensors":
        raise ValueError(f"cannot write {arguments.out}: the file of a steerer ends in .safetensors")
    options.check_output(arguments.out)
    from steerers.models import zoo
    from steerers.pipeline import load
    from steerers.training.fit_mirror import fit_mirror

    model = load(arguments.model, detector=arguments.detector, weights=arguments.weights or (), device=arguments.device)
    found = fit_mirror(
        model,
        arguments.images,
        num_photos=arguments.num_pairs,
        num_keypoints=arguments.num_keypoints,
        progress=progress,
    )
    options.say(found.summary())
    recipe = {"model": zoo.find(arguments.model).fitted_to, "setting": MIRROR, "steerers_version": __version__}
    found.steerer.save(
        arguments.out, {**recipe, "cosine": f"{found.cosine:.4f}", "photographs": str(found.photographs)}
    )
    options.say_wrote(arguments.out)
    return 0


def _losses(result: Fit) -> str:
    """The first and the last tenth."""
    tenth = len(result.losses) // 10 + 1
    if not result.losses:
        return ""
    return f"loss {fmean(result.losses[:tenth]):.3f} to {fmean(result.losses[-tenth:]):.3f}; "


def _recipe(arguments: argparse.Namespace, start: str, result: Fit) -> dict[str, str]:
    """What the file says of its making."""
    from steerers.models import zoo

    recipe = {key: getattr(arguments, key) for key in ("detector", "num_pairs", "num_keypoints", "steps", "seed")}
    return {
        "model": zoo.find(arguments.model).fitted_to,
        "setting": "A",
        "steerers_version": __version__,
        **{f"recipe.{key}": str(value) for key, value in recipe.items()},
        "recipe.start": start,
        "accuracy": f"{result.accuracy:.4f}",
        "accuracy.unsteered": f"{result.unsteered_accuracy:.4f}",
        "accuracy.same_rotation": f"{result.same_rotation_accuracy:.4f}",
    }


COMMAND = Command(
    description="Fit a steerer to a frozen descriptor from unlabelled photographs (the paper's Setting A): pairs "
    "by random homographies, change of light and rotations; a closed-form start, then the dual softmax likelihood.",
    example="""\
  steerers fit --model disk --images photographs/ --group C4 -o disk-c4.safetensors
  steerers fit --model upright-sift --images photographs/ --group SO2 --num-pairs 400 -o mine.safetensors
""",
    options=(
        Option("--model", "see `steerers models`", required=True),
        Option(
            "--detector",
            "whose keypoints are described (default: the model's own, which may not be consistent under rotations; "
            "upright-sift is)",
            metavar="NAME",
        ),
        Option("--images", "folder of photographs", Path, "DIR", required=True),
        Option("--group", "C4, C8, SO2, or mirror: what a reflection does (default: %(default)s)", default="C4"),
        Option("-o --out", "the steerer, .safetensors", Path, "FILE", required=True),
        Option("--plot", "its eigenvalues as a picture (default: beside FILE)", Path, "FILE"),
        Option("--num-pairs", "of mirror: photographs (default: %(default)s)", positive, "N", 200),
        options.num_keypoints(512),
        Option("--steps", "of gradient descent (default: %(default)s)", int, "N", 500),
        Option(
            "--start",
            "where descent begins: orthogonal, least-squares, random, identity; several with commas between are "
            "compared, and the best on held-out photographs is kept (default: %(default)s)",
            default="orthogonal",
        ),
        Option("--seed", "the same seed gives the same steerer", int, "N", 0),
        options.DEVICE,
        options.WEIGHTS,
    ),
    run=run,
)
