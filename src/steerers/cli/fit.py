"""``steerers fit``: a steerer for a frozen descriptor, from a folder of photographs (Setting A)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.steering.representations import Group
from steerers.viz.progress import progress

if TYPE_CHECKING:
    from steerers.training.fit_steerer import Fit

EXAMPLE = """example:
  steerers fit --model disk --images photographs/ --group C4 -o disk-c4.safetensors
  steerers fit --model upright-sift --images photographs/ --group SO2 --num-pairs 400 -o mine.safetensors
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "fit",
        help="fit a steerer to a frozen descriptor",
        description="Fit a steerer to a frozen descriptor from unlabelled photographs (the paper's Setting A): pairs "
        "by random homographies, change of light and rotations; a closed-form start, then the dual softmax likelihood.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="see `steerers models`")
    parser.add_argument(
        "--detector",
        metavar="NAME",
        help="whose keypoints are described (default: the model's own, which may not be "
        "consistent under rotations; upright-sift is)",
    )
    parser.add_argument("--images", type=Path, required=True, metavar="DIR", help="folder of photographs")
    parser.add_argument("--group", default="C4", help="C4, C8, SO2 (default: %(default)s)")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the steerer, .safetensors")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="its eigenvalues as a picture (default: beside FILE)")
    parser.add_argument("--num-pairs", type=options.positive, default=200, metavar="N", help="default: %(default)s")
    parser.add_argument("--num-keypoints", type=options.positive, default=512, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--steps", type=int, default=500, metavar="N", help="of gradient descent (default: %(default)s)"
    )
    parser.add_argument(
        "--start",
        default="orthogonal",
        help="where descent begins: orthogonal, least-squares, random, identity; several with commas between are "
        "compared, and the best on held-out photographs is kept (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same steerer")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    options.add_weights_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit, print, write the steerer and the picture of its eigenvalues."""
    plot = arguments.plot or arguments.out.with_suffix(".png")
    if arguments.out.suffix != ".safetensors":
        raise ValueError(f"cannot write {arguments.out}: the file of a steerer ends in .safetensors")
    options.check_output(arguments.out)
    options.check_output(plot, picture=True)
    from steerers._devices import parse_device
    from steerers._files import atomic_write
    from steerers.pipeline import load
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
        print(f"start {name}: {_losses(result)}{result.summary()}")
    best = max(fits, key=lambda name: fits[name].accuracy)
    steerer = fits[best].steerer
    representation, residual = steerer.nearest_representation()
    print(f"nearest representation of {group}: {representation} (residual {residual:.3f})")
    steerer.save(arguments.out, {**_recipe(arguments), "recipe.start": best, **_accuracy(fits[best])})
    with atomic_write(plot) as temporary:
        draw_spectrum(steerer).save(temporary)
    options.say(f"wrote {arguments.out} and {plot}")
    return 0


def _losses(result: Fit) -> str:
    if not result.losses:
        return ""
    first, last = result.losses[: len(result.losses) // 10 + 1], result.losses[-(len(result.losses) // 10 + 1) :]
    return f"loss {sum(first) / len(first):.3f} to {sum(last) / len(last):.3f}; "


def _recipe(arguments: argparse.Namespace) -> dict[str, str]:
    """What the file says of its making."""
    from steerers._version import __version__
    from steerers.models import zoo

    recipe = {key: str(getattr(arguments, key)) for key in ("detector", "num_pairs", "num_keypoints", "steps", "seed")}
    return {
        "model": zoo.find(arguments.model).fitted_to,
        "setting": "A",
        "steerers_version": __version__,
        **{f"recipe.{key}": value for key, value in recipe.items()},
    }


def _accuracy(result: Fit) -> dict[str, str]:
    return {
        "accuracy": f"{result.accuracy:.4f}",
        "accuracy.unsteered": f"{result.unsteered_accuracy:.4f}",
        "accuracy.same_rotation": f"{result.same_rotation_accuracy:.4f}",
    }
