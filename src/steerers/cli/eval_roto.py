"""``steerers eval roto-360``: precision of matches of rotated photographs; and data like it from any photographs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, finish, load_models, names, start

EXAMPLE = """\
  steerers eval roto-360 --data roto360 --models upright-sift,sift:mutual-nearest --report out
  steerers eval roto-360 --make photographs --data roto360-like
"""


def add_to(benchmarks: Any) -> None:
    """Add the benchmark to the parser."""
    from steerers.benchmarks.roto import MAX_SIZE, NAME
    from steerers.benchmarks.roto_like import SCENES

    parser = add_benchmark(
        benchmarks,
        NAME,
        "precision of matches of rotated photographs",
        "Roto-360: each of ten photographs against itself, rotated by all multiples of 10 degrees: precision at 3, 5 "
        "and 10 pixels, number of matches and keypoints. With --make, such data is made from a folder of photographs.",
        EXAMPLE,
    )
    add_common_options(
        parser, data="the folder that holds the scenes, or is to", max_size=MAX_SIZE, paper=True, seed=False
    )
    parser.add_argument("--sequences", type=names, metavar="LIST", help="names of the scenes (default: all)")
    parser.add_argument("--make", type=Path, metavar="IMAGES", help="make data in --data from these photographs")
    parser.add_argument(
        "--scenes",
        type=options.positive,
        default=SCENES,
        metavar="N",
        help="photographs for --make, the first ones by name (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Match, measure, print, write; or make data."""
    from steerers.benchmarks import paper, roto, roto_like
    from steerers.benchmarks.protocol import Settings
    from steerers.benchmarks.report import environment

    if arguments.make is not None:
        made = roto_like.make(arguments.make, arguments.data, scenes=arguments.scenes, max_size=arguments.max_size)
        options.say(f"made {len(made)} scenes of {len(roto_like.ANGLES)} images ({roto_like.LIKE}) in {arguments.data}")
        return 0
    device = start(arguments)
    pairs = roto.list_pairs(arguments.data, arguments.sequences)
    settings = Settings(arguments.max_size)
    runs = load_models(arguments, device)
    where = environment(device)
    evaluation = roto.evaluate(runs, pairs, settings=settings, cache=arguments.cache, made=where)
    like = roto_like.is_made(arguments.data)
    printed = [] if like or arguments.no_paper else paper.rows(roto.NAME)
    return finish(arguments, roto.make_report(evaluation, settings, where, like=like, paper=printed))
