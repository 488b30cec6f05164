"""``steerers match A B``: match two images, print what was found, write a picture and JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from steerers._console import Option
from steerers._files import atomic_write
from steerers.benchmarks.report import write_text
from steerers.cli import options
from steerers.cli.options import Command
from steerers.features import Matches
from steerers.images.load import Image
from steerers.pipeline import load
from steerers.viz import draw_matches


def run(arguments: argparse.Namespace) -> int:
    """Match, verify by a homography, report."""
    for path, picture in ((arguments.out, True), (arguments.json, False)):
        options.check_output(path, picture=picture)
    inputs = (arguments.image0, arguments.image1, arguments.mask0, arguments.mask1)
    options.check_distinct((arguments.out, arguments.json), inputs)
    start = time.perf_counter()
    with _stages(4) as done:
        matcher = load(arguments.model, **options.matcher_options(arguments))
        image0 = matcher.load_image(arguments.image0, arguments.mask0)
        image1 = matcher.load_image(arguments.image1, arguments.mask1)
        done("matching")
        matches = matcher(image0, image1)
        done("verifying")
        shrunk = shrunk_by(image0, image1)
        H, inliers = matches.homography(3.0 * shrunk)
        if arguments.verify == "fundamental":
            inliers = matches.fundamental(1.0 * shrunk).inliers
        seconds = time.perf_counter() - start
        done("writing")
        if arguments.out is not None:
            drawn = draw_matches(image0, image1, matches, inliers)
            with atomic_write(arguments.out) as temporary:
                drawn.save(temporary)
        if arguments.json is not None:
            report = _report(arguments, matches, H, inliers, seconds)
            write_text(arguments.json, json.dumps(report, allow_nan=False) + "\n")
        done("done")
    _print_summary(arguments, matches, inliers, seconds)
    return 0


def shrunk_by(*images: Image) -> float:
    """How many stored pixels a pixel of the most shrunk image is: thresholds are in pixels of what was matched."""
    return max(1.0, *(max(image.stored_size) / max(image.tensor.shape[1:]) for image in images))


def _report(
    arguments: argparse.Namespace, matches: Matches, H: np.ndarray | None, inliers: np.ndarray, seconds: float
) -> dict[str, Any]:
    return {
        "image0": str(arguments.image0),
        "image1": str(arguments.image1),
        "model": matches.model,
        "strategy": matches.strategy,
        "verified_by": arguments.verify,
        "angle_deg": matches.angle,
        "num_matches": len(matches),
        "num_inliers": int(inliers.sum()),
        "homography": None if H is None else H.tolist(),
        "keypoints0": matches.keypoints0.tolist(),
        "keypoints1": matches.keypoints1.tolist(),
        "scores": matches.scores.tolist(),
        "angles_deg": None if matches.angles is None else matches.angles.tolist(),
        "inliers": inliers.tolist(),
        "seconds": seconds,
    }


def _print_summary(arguments: argparse.Namespace, matches: Matches, inliers: np.ndarray, seconds: float) -> None:
    rotation = (
        "unknown rotation" if matches.angle is None else f"rotated by {matches.angle:.1f} degrees counter-clockwise"
    )
    how = f"{matches.model}, {matches.strategy}, {seconds:.1f} s"
    print(f"{len(matches)} matches, {int(inliers.sum())} inliers, {rotation} ({how})")
    for path in (arguments.out, arguments.json):
        if path is not None:
            options.say(f"wrote {path}")


@contextmanager
def _stages(total: int) -> Iterator[Any]:
    """A progress bar over the stages of the work, shown only if it takes longer than two seconds."""
    from tqdm import tqdm

    with tqdm(
        total=total, delay=2, leave=False, file=sys.stderr, disable=None, bar_format="{desc} {bar} {elapsed}"
    ) as bar:
        bar.set_description("loading", refresh=False)

        def done(following: str) -> None:
            bar.set_description(following, refresh=False)
            bar.update()

        yield done


COMMAND = Command(
    name="match",
    help="match two images",
    description="Match two images that may be rotated against each other.",
    example="""\
  steerers match a.jpg b.jpg --out matches.png --json matches.json
  steerers match a.jpg b.jpg --strategy max-similarity --num-keypoints 4096 --mask0 sky.png
""",
    options=(
        Option("image0", type=Path, metavar="A"),
        Option("image1", type=Path, metavar="B"),
        *options.MATCHER,
        Option("--mask0", "where keypoints of A are allowed (not black)", Path, "FILE"),
        Option("--mask1", "where keypoints of B are allowed (not black)", Path, "FILE"),
        Option(
            "--verify",
            "what inliers agree with: a homography (flat or distant scenes, 3 px) or a fundamental matrix (any two "
            "views, 1 px), in pixels of the shrunk image (default: %(default)s)",
            default="homography",
            choices=("homography", "fundamental"),
        ),
        Option("--out", "write a picture of the matches", Path, "FILE"),
        Option("--json", "write the matches as JSON", Path, "FILE"),
    ),
    run=run,
)
