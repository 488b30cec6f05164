"""``steerers eval oxford`` and ``steerers eval hpatches``: homographies, upright and rotated."""

from __future__ import annotations

import argparse
from typing import Any

from steerers.cli.eval import add_benchmark, add_common_options, add_rotation_options, finish, load_models, names, start

EXAMPLES = {
    "oxford": """\
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed --report out
""",
    "hpatches": """\
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --no-cache
""",
}


def add_to(benchmarks: Any) -> None:
    """Add both benchmarks to the parser."""
    for name, what in (("oxford", "the Oxford affine sequences"), ("hpatches", "the HPatches sequences")):
        parser = add_benchmark(
            benchmarks,
            name,
            f"homographies on {what}",
            f"Homography estimation on {what}, upright or rotated: area under the curve of the corner error, precision "
            "of the matches, repeatability of the detector, error of the angle, and times.",
            EXAMPLES[name],
        )
        add_common_options(parser, data="the folder that holds the sequences")
        add_rotation_options(parser)
        parser.add_argument("--sequences", type=names, metavar="LIST", help="names of the sequences (default: all)")
        parser.add_argument(
            "--threshold",
            type=float,
            default=3.0,
            metavar="PX",
            help="of the estimator's inliers (default: %(default)s)",
        )
        if name == "hpatches":
            parser.add_argument(
                "--skip-large",
                action="store_true",
                help="leave out the eight sequences that D2-Net and LoFTR leave out",
            )
        parser.set_defaults(run=run, skip_large=False)


def run(arguments: argparse.Namespace) -> int:
    """Match, measure, print, write."""
    device = start(arguments)
    from steerers.benchmarks import homographies
    from steerers.benchmarks.protocol import Settings
    from steerers.benchmarks.report import environment

    estimator = homographies.Estimator(threshold=arguments.threshold, seed=arguments.seed)
    settings = Settings(arguments.max_size, arguments.mask_corners)
    skip = homographies.HPATCHES_LARGE if arguments.skip_large else ()
    layout = homographies.LAYOUTS[arguments.benchmark]
    pairs = homographies.list_pairs(layout, arguments.data, arguments.sequences, skip=skip)
    runs = load_models(arguments, device)
    made = environment(device)
    evaluations = [
        homographies.evaluate(
            runs, pairs, rotation, settings=settings, estimator=estimator, cache=arguments.cache, made=made
        )
        for rotation in arguments.rotation
    ]
    return finish(arguments, homographies.make_report(arguments.benchmark, evaluations, settings, estimator, made))
