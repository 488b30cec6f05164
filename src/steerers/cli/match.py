"""``steerers match A B``: match two images, print what was found, write a picture and JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._console import STANDARD, Bar, Option
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    import numpy as np

    from steerers.features import Matches
    from steerers.images.load import Image

logger = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Match, verify by a homography, report."""
    _check(arguments)
    start = time.perf_counter()
    with _stages("loading", "reading", "matching", "verifying", "writing") as done:
        from steerers.pipeline import load
        from steerers.viz.matches import draw_matches

        matcher = load(arguments.model, **options.matcher_options(arguments))
        done()
        image0 = matcher.load_image(_source(arguments.image0), _source(arguments.mask0))
        image1 = matcher.load_image(_source(arguments.image1), _source(arguments.mask1))
        done()
        matches = matcher(image0, image1)
        done()
        shrunk = shrunk_by(image0, image1)
        H, inliers = matches.homography(3.0 * shrunk)
        if arguments.verify == "fundamental":
            inliers = matches.fundamental(1.0 * shrunk).inliers
        seconds = time.perf_counter() - start
        done()
        if arguments.out is not None:
            options.save(draw_matches(image0, image1, matches, inliers), arguments.out)
        if arguments.json is not None:
            report = _report(arguments, matches, H, inliers, seconds)
            options.write(arguments.json, json.dumps(report, allow_nan=False) + "\n")
        done()
    _print_summary(arguments, matches, inliers, seconds)
    return 0


def shrunk_by(*images: Image) -> float:
    """How many stored pixels a pixel of the most shrunk image is: thresholds are in pixels of what was matched."""
    return max(1.0, *(max(image.stored_size) / max(image.tensor.shape[1:]) for image in images))


def _check(arguments: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written, and standard input for two images."""
    options.check_output(arguments.out, picture=True)
    options.check_output(arguments.json)
    inputs = (arguments.image0, arguments.image1, arguments.mask0, arguments.mask1)
    if inputs.count(STANDARD) > 1:
        raise ValueError("standard input (-) can be read once: give it for one of the images and masks")
    options.check_distinct((arguments.out, arguments.json), [path for path in inputs if path != STANDARD])


def _source(path: Any) -> Any:
    """A path or ``None`` as it is; standard input is read."""
    return sys.stdin.buffer.read() if path == STANDARD else path


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
    options.say(f"{len(matches)} matches, {int(inliers.sum())} inliers, {rotation} ({how})")
    options.say_wrote(arguments.out, arguments.json)


@contextmanager
def _stages(*names: str) -> Iterator[Callable[[], None]]:
    """A progress bar over the stages of the work; call what it yields at the end of each."""
    left, start = list(names), time.perf_counter()
    with Bar(left[0], total=len(names), bar_format="{desc} {bar} {elapsed}") as bar:

        def done() -> None:
            nonlocal start
            logger.debug("%s took %.2f s", left.pop(0), time.perf_counter() - start)
            start = time.perf_counter()
            bar.update(what=left[0] if left else "done")

        yield done


COMMAND = Command(
    description="Match two images that may be rotated against each other.",
    example="""\
  steerers match a.jpg b.jpg --out matches.png --json matches.json
  steerers match a.jpg b.jpg --strategy max-similarity --num-keypoints 4096 --mask0 sky.png
  curl -s https://example.org/a.jpg | steerers match - b.jpg --json - --quiet
""",
    options=(
        Option("image0", "an image, or - for one from standard input", Path, "A"),
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
        Option("--out", "write a picture of the matches; - is standard output, as PNG", Path, "FILE"),
        Option("--json", "write the matches as JSON; - is standard output", Path, "FILE"),
    ),
    run=run,
)
