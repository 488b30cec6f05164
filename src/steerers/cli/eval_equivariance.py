"""``steerers eval equivariance``: how well a steerer steers, over angles."""

from __future__ import annotations

import argparse
import math
from typing import Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, finish, load_models, names, start

EXAMPLE = """\
  steerers eval equivariance --data photographs --models upright-sift,disk-c4@upright-sift --report out
  steerers eval equivariance --data photographs --models upright-sift-so2 --angles 0,15,30,45 --num-photos 20
"""


def add_to(benchmarks: Any) -> None:
    """Add the benchmark to the parser."""
    parser = add_benchmark(
        benchmarks,
        "equivariance",
        "how well a steerer steers",
        "Compare steered descriptions with those computed anew from rotated photographs: cosine and rank over angles. "
        "And how far the cosines between two photographs change when both are rotated alike (Theorem 4.1).",
        EXAMPLE,
    )
    add_common_options(
        parser,
        data="a folder of photographs, any will do",
        models="upright-sift,upright-sift-so2",
        num_keypoints=512,
        max_size=640,
        cache=False,
        seed=False,
    )
    parser.add_argument(
        "--angles", type=_angles, metavar="LIST", help="degrees, with commas between (default: every 10)"
    )
    parser.add_argument(
        "--num-photos", type=options.positive, metavar="N", help="as many, spread over the folder (default: all)"
    )
    parser.add_argument(
        "--margin", type=float, default=16.0, metavar="PX", help="between disc and border (default: %(default)g)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Describe, compare, print, write."""
    device = start(arguments)
    from steerers.benchmarks import equivariance
    from steerers.benchmarks.report import environment
    from steerers.datasets.photos import find_images

    for name in arguments.models:
        if set(name) & set(":?"):
            raise ValueError(f"cannot measure {name!r}: nothing is matched here; give MODEL[@DETECTOR] alone")
    settings = equivariance.Settings(
        arguments.max_size, arguments.num_keypoints, arguments.margin, arguments.angles or equivariance.ANGLES
    )
    if not arguments.data.is_dir():
        raise ValueError(f"there is no folder {arguments.data}; give --data a folder of photographs, any will do")
    photos = find_images(arguments.data)
    if arguments.num_photos is not None and arguments.num_photos < len(photos):
        step = len(photos) / arguments.num_photos
        photos = [photos[int(index * step)] for index in range(arguments.num_photos)]
    steering, kept = equivariance.evaluate(load_models(arguments, device), photos, settings)
    return finish(arguments, equivariance.make_report(steering, kept, photos, settings, environment(device)))


def _angles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in names(text))
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(angle) for angle in found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different angles in degrees with commas between")
    return found
