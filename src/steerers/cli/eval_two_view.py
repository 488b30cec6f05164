"""``steerers eval megadepth-1500``, ``-c4``, ``-so2``, ``-joint`` and ``cameras``: relative pose of two views."""

from __future__ import annotations

import argparse
from typing import Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, add_rotation_options, finish, load_models, names, start

DATA = "the folder that holds LoFTR's scene files and Undistorted_SfM"
ABOUT = {
    "megadepth-1500": "MegaDepth-1500",
    "megadepth-c4": "MegaDepth-1500, the second image of pair i rotated by (i mod 4) 90 degrees",
    "megadepth-so2": "MegaDepth-1500, the second image of pair i rotated by (i mod 36) 10 degrees",
    "megadepth-joint": "MegaDepth-1500, both images rotated by the same 90, 180 and 270 degrees",
}


def add_to(benchmarks: Any) -> None:
    """Add the benchmarks to the parser."""
    for name, about in ABOUT.items():
        parser = add_benchmark(
            benchmarks,
            name,
            f"relative pose on {about}",
            f"Relative pose on {about}: area under the curve of the pose error at 5, 10 and 20 degrees.",
            f"  steerers eval {name} --data megadepth --models dedode-b,dedode-b-c4 --runs 5\n",
        )
        add_common_options(parser, data=DATA, num_keypoints=20_000, max_size=1024, paper=True)
        add_rotation_options(parser, None)
        _add_estimator_options(parser, "opencv")
        parser.set_defaults(run=run)
    parser = add_benchmark(
        benchmarks,
        "cameras",
        "relative pose on your own images with cameras",
        "Relative pose on sequences of images with a cameras.json each, upright or rotated: area under the curve of "
        "the pose error at 5, 10 and 20 degrees.",
        "  steerers eval cameras --data strecha --models upright-sift,sift --rotation upright,fixed --apart 1,2,3\n",
    )
    add_common_options(parser, data="a folder of sequences, each with a cameras.json", max_size=1024)
    add_rotation_options(parser)
    _add_estimator_options(parser, "poselib")
    parser.add_argument(
        "--apart",
        type=_numbers,
        default="1,2,3",
        metavar="LIST",
        help="pairs (i, i + k) of a sequence for each k (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def _add_estimator_options(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--sequences", type=names, metavar="LIST", help="names of the sequences (default: all)")
    parser.add_argument(
        "--estimator",
        choices=("poselib", "opencv"),
        default=default,
        help="opencv is that of the paper (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, metavar="PX", help="of inliers (default: 1 for poselib, 0.5 for opencv)"
    )
    parser.add_argument(
        "--runs",
        dest="repeats",
        type=options.positive,
        default=1,
        metavar="N",
        help="estimate every pair so often, with other seeds (default: %(default)s)",
    )


def _numbers(text: str) -> list[int]:
    return [options.positive(number) for number in names(text)]


def run(arguments: argparse.Namespace) -> int:
    """Match, measure, print, write."""
    device = start(arguments)
    from steerers.benchmarks import cameras, paper, two_view
    from steerers.benchmarks.protocol import Settings
    from steerers.benchmarks.report import environment

    benchmark = arguments.benchmark
    estimator = two_view.Estimator(
        arguments.estimator, arguments.threshold, runs=arguments.repeats, seed=arguments.seed
    )
    settings = Settings(arguments.max_size, arguments.mask_corners)
    if benchmark == "cameras":
        rotations, printed = arguments.rotation, []
        pairs = cameras.list_pairs(arguments.data, arguments.apart, arguments.sequences)
    else:
        rotations = [two_view.MEGADEPTH[benchmark]]
        pairs = cameras.list_megadepth(arguments.data, arguments.sequences)
        printed = [] if arguments.no_paper else paper.rows("megadepth", benchmark.removeprefix("megadepth-"))
    runs = load_models(arguments, device)
    made = environment(device)
    evaluations = [
        two_view.evaluate(
            runs, pairs, rotation, settings=settings, estimator=estimator, cache=arguments.cache, made=made
        )
        for rotation in rotations
    ]
    return finish(arguments, two_view.make_report(benchmark, evaluations, settings, estimator, made, paper=printed))
