"""``steerers figure NAME``: the figures of the paper, on pictures of one's own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steerers._choices import DEFAULT_MODEL
from steerers._console import Option, positive
from steerers.benchmarks.offers import AIMS, SPEC
from steerers.cli import options
from steerers.cli.eval import CACHE
from steerers.cli.options import Command


def _parse_point(text: str) -> tuple[float, float]:
    try:
        x, y = map(float, text.split(","))
        if math.isfinite(x) and math.isfinite(y):
            return x, y
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a pixel such as 320,240")


def _run(name: str) -> Callable[[argparse.Namespace], int]:
    """A function of :mod:`steerers.cli.figures`, which is imported when it is called."""

    def run(arguments: argparse.Namespace) -> int:
        from steerers.cli import figures

        function: Any = getattr(figures, name)
        return int(function(arguments))

    return run


OUT = Option("--out", "the picture", Path, "FILE", required=True)
AT = Option("--at", "the keypoint, a pixel of the image as stored (default: the best one)", _parse_point, "X,Y")
DIAMETER = Option(
    "--diameter",
    "of the keypoint in pixels, for models that describe at several scales (default: the keypoint's, or the model's)",
    options.above_zero,
    "PX",
)


def _matcher_options(*without: str) -> list[Option | tuple[Option, ...]]:
    """What all commands of matching take, as far as it makes a difference here."""
    return [
        option
        for option in options.MATCHER
        if (option if isinstance(option, Option) else option[0]).names.removeprefix("--") not in without
    ]


_ONE_KEYPOINT = _matcher_options("strategy", "order", "num-keypoints", "threshold", "resize")

COMMAND = Command(
    description="Draw the figures of the paper from pictures of your own. Figure 4 is `steerers spectrum`, the "
    "precision-recall curves of AIMS come with `steerers eval aims`.",
    example="""\
  steerers figure matches a.jpg b.jpg --out matches.png
  steerers figure overview a.jpg --at 320,240 --rotate 60 --out overview.png
""",
    title="figures",
    metavar="NAME",
    commands=[
        Command(
            name="matches",
            help="pairs with their inliers (Figure 1)",
            description="Match pairs of images and draw the matches that agree with a homography, pair below pair "
            "(paper, Figure 1).",
            example="  steerers figure matches a.jpg b.jpg c.jpg d.jpg --out matches.png\n",
            options=(Option("images", "in pairs", Path, "A B", nargs="+"), OUT, *options.MATCHER),
            run=_run("run_matches"),
        ),
        Command(
            name="overview",
            help="steering a description is describing the rotated image (Figure 2)",
            description="Describe a keypoint, steer its description, and describe it anew in the rotated image "
            "(paper, Figure 2). Descriptions are drawn in the blocks of the steerer, by frequency.",
            example="  steerers figure overview a.jpg --at 320,240 --rotate 60 --out overview.png\n",
            options=(
                Option("image", type=Path, metavar="IMAGE"),
                AT,
                DIAMETER,
                Option(
                    "--rotate", "degrees counter-clockwise, of the steerer's group (default: %(default)g)", float,
                    "DEGREES", 90.0,
                ),
                OUT,
                *_ONE_KEYPOINT,
            ),
            run=_run("run_overview"),
        ),
        Command(
            name="upright-sift",
            help="a quarter turn permutes the bins of Upright SIFT (Figure 3)",
            description="Draw the subregions of a keypoint in an image and in the image after a quarter turn, and the "
            "128 bins of both descriptions; a bin keeps its colour when it moves (paper, Figure 3).",
            example="  steerers figure upright-sift a.jpg --at 320,240 --diameter 16 --out upright-sift.png\n",
            options=(
                Option("image", type=Path, metavar="IMAGE"),
                AT,
                DIAMETER,
                OUT,
                options.MAX_SIDE,
                options.EXIF,
            ),
            run=_run("run_upright_sift"),
        ),
        Command(
            name="half-turn",
            help="matching upside down, without and with steering (appendix, after DeDoDe's Figure 7)",
            description="Rotate B by a half turn, exactly, and match by plain dual softmax: above descriptions as they "
            "are, below with those of B steered back.",
            example="  steerers figure half-turn a.jpg b.jpg --out half-turn.png\n",
            options=(
                Option("image0", type=Path, metavar="A"),
                Option("image1", type=Path, metavar="B"),
                Option(
                    "--rotate", "B, by 90, 180 or 270 degrees counter-clockwise (default: %(default)s)",
                    default="180", choices=("90", "180", "270"),
                ),
                OUT,
                *_matcher_options("strategy", "order"),
            ),
            run=_run("run_half_turn"),
        ),
        Command(
            name="aims",
            help="true pairs of AIMS with few inliers (Figures 5 and 6)",
            description="Draw true pairs of AIMS with 20 to 200 inliers: found, but with difficulty (paper, Figures 5 "
            "and 6). Pairs are matched as by `steerers eval aims`, whose kept matches are used.",
            example="  steerers figure aims --data aims --model dedode-b-so2 --count 6 --out aims.png\n",
            options=(
                Option("--data", AIMS.data, Path, "DIR", required=True),
                Option("--least", "inliers (default: %(default)s)", positive, "N", 20),
                Option("--most", "inliers (default: %(default)s)", positive, "N", 200),
                Option("--count", "pairs (default: %(default)s)", positive, "N", 6),
                Option(
                    "--pick", "of those, some spread evenly over the numbers of inliers, or those with the most "
                    "(default: %(default)s)", default="spread", choices=("spread", "most"),
                ),
                OUT,
                Option("--model", f"{SPEC} (default: %(default)s)", default=DEFAULT_MODEL),
                options.WEIGHTS,
                options.num_keypoints(AIMS.num_keypoints),
                Option("--short-side", "of all images (default: %(default)s)", positive, "PX", AIMS.short_side),
                *AIMS.own_options,
                Option("--seed", "of the estimator (default: %(default)s)", int, default=0),
                CACHE,
                options.DEVICE,
            ),
            run=_run("run_aims"),
        ),
        Command(
            name="similarity",
            help="one keypoint against every place of another image, at every rotation",
            description="Compare the description of one keypoint of A, steered by every rotation, with descriptions "
            "all over B: at the right rotation the most similar place is the right one.",
            example="  steerers figure similarity a.jpg b.jpg --at 320,240 --out similarity.png\n",
            options=(
                Option("image0", type=Path, metavar="A"),
                Option("image1", type=Path, metavar="B"),
                AT,
                DIAMETER,
                Option("--order", "rotations (default: all of C_n, 8 of SO(2))", positive, "N"),
                Option("--step", "between the places of B (default: %(default)s)", positive, "PX", 4),
                OUT,
                *_ONE_KEYPOINT,
            ),
            run=_run("run_similarity"),
        ),
    ],
)  # fmt: skip
