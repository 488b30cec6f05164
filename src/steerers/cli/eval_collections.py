"""``steerers eval collections``: a folder of photographs without ground truth."""

from __future__ import annotations

import argparse
from typing import Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, finish, load_models, start

EXAMPLE = """\
  steerers eval collections --data flight --models upright-sift-so2,sift --neighbours 5 --report out
  steerers eval collections --data flight --models upright-sift-so2,sift --gps 80 --geometry fundamental
"""


def add_to(benchmarks: Any) -> None:
    """Add the benchmark to the parser."""
    parser = add_benchmark(
        benchmarks,
        "collections",
        "a folder of photographs without ground truth",
        "Pairs of photographs of one place, such as those of a drone, without ground truth: how many are verified by "
        "geometry, their inliers and angles, and how well the angles agree around three images.",
        EXAMPLE,
    )
    add_common_options(parser, data="the folder that holds the photographs")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--neighbours",
        type=options.positive,
        metavar="K",
        help="match each photograph with the K that follow it in the order of names (default: with all)",
    )
    which.add_argument(
        "--gps", type=float, metavar="METRES", help="match those taken at most so far apart, by their EXIF positions"
    )
    parser.add_argument(
        "--pairs",
        type=options.positive,
        metavar="N",
        help="match at most N pairs, the nearest in the order of names, or on the ground with --gps",
    )
    parser.add_argument(
        "--geometry",
        default="homography",
        help="what verifies a pair: homography or fundamental (default: %(default)s)",
    )
    parser.add_argument(
        "--min-inliers",
        type=options.positive,
        default=30,
        metavar="N",
        help="that a verified pair has (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=3.0,
        metavar="PX",
        help="of inliers, pixels of the resized images (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Match, verify, print, write."""
    device = start(arguments)
    from steerers.benchmarks import collections, selection
    from steerers.benchmarks.protocol import Settings
    from steerers.benchmarks.report import environment

    verification = collections.Verification(
        geometry=arguments.geometry,
        threshold=arguments.threshold,
        min_inliers=arguments.min_inliers,
        seed=arguments.seed,
    )
    chosen = selection.Selection(arguments.neighbours, arguments.gps, arguments.pairs)
    pairs = selection.list_pairs(arguments.data, chosen)
    settings = Settings(arguments.max_size)
    runs = load_models(arguments, device)
    made = environment(device)
    evaluation = collections.evaluate(
        runs, pairs, settings=settings, verification=verification, cache=arguments.cache, made=made
    )
    return finish(arguments, collections.make_report(evaluation, settings, verification, chosen, made))
