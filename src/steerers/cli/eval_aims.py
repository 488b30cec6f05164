"""``steerers eval aims`` and ``steerers eval sat-ast``: photographs by astronauts and satellite images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, add_rotation_options, finish, load_models, start

AIMS_EXAMPLE = """\
  steerers eval aims --data aims --models dedode-b-so2-spread@dedode-l-so2,upright-sift-so2,sift --report out

manifest.csv in the folder lists the pairs, paths from its folder, positive 1 if both show the same place:
  query,candidate,positive,split
  photos/ISS052-E-8329.jpg,tiles/13_2804_4286.jpg,1,north-up
  photos/ISS052-E-8329.jpg,tiles/13_2806_4286.jpg,0,north-up
  photos/ISS056-E-6047.jpg,tiles/14_10052_14788.jpg,1,others
"""
SAT_AST_EXAMPLE = """\
  steerers eval sat-ast --data satast --models upright-sift-so2,sift --rotation upright,quarter --report out
"""


def add_to(benchmarks: Any) -> None:
    """Add both benchmarks to the parser."""
    _add_aims(benchmarks)
    _add_sat_ast(benchmarks)


def _add_aims(benchmarks: Any) -> None:
    parser = add_benchmark(
        benchmarks,
        "aims",
        "which satellite images show an astronaut's photograph (AIMS)",
        "Retrieval of satellite images for photographs by astronauts: average precision, by the number of inliers of "
        "the homography of each pair, for photographs with North up, all others and all.",
        AIMS_EXAMPLE,
    )
    add_common_options(
        parser,
        data="the folder that holds manifest.csv (see below) and the images",
        num_keypoints=10_000,
        max_size=None,
        paper=True,
    )
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="the manifest (default: manifest.csv in DIR)")
    parser.add_argument(
        "--short-side",
        type=options.positive,
        default=576,
        metavar="PX",
        help="shortest side of all images; smaller ones are enlarged (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, default=5.0, metavar="PX", help="of the estimator's inliers (default: %(default)s)"
    )
    parser.set_defaults(run=run_aims, max_size=None)


def _add_sat_ast(benchmarks: Any) -> None:
    parser = add_benchmark(
        benchmarks,
        "sat-ast",
        "homographies from astronauts' photographs to satellite images (SatAst)",
        "Homographies between photographs by astronauts and satellite images, upright or rotated: area under the curve "
        "of the errors of points that were marked by hand.",
        SAT_AST_EXAMPLE,
    )
    add_common_options(parser, data="the folder that holds annotations-v1 and data", max_size=1024, seed=False)
    add_rotation_options(parser, default="upright,quarter")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.001,
        metavar="T",
        help="of the estimator's inliers, for images that span -1 to 1 (default: %(default)s)",
    )
    parser.set_defaults(run=run_sat_ast)


def run_aims(arguments: argparse.Namespace) -> int:
    """Match, score, print, write."""
    device = start(arguments)
    from steerers.benchmarks import aims, manifest
    from steerers.benchmarks.report import environment

    estimator = aims.paper_estimator(arguments.threshold, arguments.seed)
    pairs = manifest.read_manifest(arguments.manifest or arguments.data / manifest.MANIFEST)
    runs = load_models(arguments, device)
    made = environment(device)
    evaluation = aims.evaluate(
        runs, pairs, short_side=arguments.short_side, estimator=estimator, cache=arguments.cache, made=made
    )
    report = aims.make_report(evaluation, arguments.short_side, estimator, made, show_paper=not arguments.no_paper)
    return finish(arguments, report)


def run_sat_ast(arguments: argparse.Namespace) -> int:
    """Match, measure, print, write."""
    device = start(arguments)
    from steerers.benchmarks import satast
    from steerers.benchmarks.protocol import Settings
    from steerers.benchmarks.report import environment

    estimator = satast.Estimator(threshold=arguments.threshold)
    settings = Settings(arguments.max_size, arguments.mask_corners)
    pairs = satast.list_pairs(arguments.data)
    runs = load_models(arguments, device)
    made = environment(device)
    evaluations = [
        satast.evaluate(runs, pairs, rotation, settings=settings, estimator=estimator, cache=arguments.cache, made=made)
        for rotation in arguments.rotation
    ]
    return finish(arguments, satast.make_report(evaluations, settings, estimator, made))
