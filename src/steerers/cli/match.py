"""``steerers match A B``: match two images, print what was found, write a picture and JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._choices import LIKELY
from steerers._console import STANDARD, Bar, Option
from steerers.cli import options
from steerers.cli.intrinsics import read_intrinsics
from steerers.cli.options import Command

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from steerers.features import Matches
    from steerers.geometry import Pose
    from steerers.images.load import Image

logger = logging.getLogger(__name__)

FAR = 0.2
"""How far from the centre of an image, as a fraction of its side, a principal point is taken for that of another."""


def run(arguments: argparse.Namespace) -> int:
    """Match, verify by a homography, fundamental matrix or pose, report."""
    _check(arguments)
    start = time.perf_counter()
    with _stages("loading", "reading", "matching", "verifying", "writing") as done:
        from steerers.pipeline import load
        from steerers.viz.matches import draw_matches

        cameras = _cameras(arguments)
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
        pose = None
        if cameras is not None:
            _warn_of_other_sizes(cameras, image0, image1)
            pose = matches.pose(*cameras, threshold=1.0 * shrunk)
            inliers = pose.inliers if arguments.verify == "pose" else inliers
        logger.debug("probability %.4f", matches.probability)
        seconds = time.perf_counter() - start
        done()
        if arguments.out is not None:
            options.save(draw_matches(image0, image1, matches, inliers), arguments.out)
        if arguments.json is not None:
            report = _report(arguments, matches, H, pose, inliers, seconds)
            options.write(arguments.json, json.dumps(report, allow_nan=False) + "\n")
        done()
    _print_summary(arguments, matches, pose, inliers, seconds)
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
    cameras = [Path(given) for given in (arguments.intrinsics, arguments.intrinsics1) if given is not None]
    read = [path for path in (*inputs, *cameras) if path != STANDARD]
    options.check_distinct((arguments.out, arguments.json), read)
    if arguments.verify is None:
        arguments.verify = "homography" if arguments.intrinsics is None else "pose"
    if arguments.intrinsics is None and (arguments.verify == "pose" or arguments.intrinsics1 is not None):
        raise ValueError("a pose needs the intrinsics of both cameras: give --intrinsics, of A or of both")


def _cameras(arguments: argparse.Namespace) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The intrinsics of A and B, where they are given."""
    if arguments.intrinsics is None:
        return None
    from steerers.geometry import check_intrinsics

    own = arguments.intrinsics if arguments.intrinsics1 is None else arguments.intrinsics1
    first = check_intrinsics(f"--intrinsics {arguments.intrinsics}", read_intrinsics(arguments.intrinsics))
    return first, check_intrinsics(f"--intrinsics1 {own}", read_intrinsics(own))


def _warn_of_other_sizes(cameras: Sequence[NDArray[np.float64]], *images: Image) -> None:
    """The intrinsics of a shrunk image, say, make a pose that looks right and is not."""
    for name, K, image in zip("AB", cameras, images, strict=True):
        place, size = K[:2, 2], image.stored_size
        if any(abs(x - side / 2) > FAR * side for x, side in zip(place, size, strict=True)):
            logger.warning(
                "the intrinsics of %s have their centre at (%.0f, %.0f), far from that of its %d x %d pixels; they "
                "must be for the image as stored, in full size",
                name,
                *place,
                *size,
            )


def _source(path: Any) -> Any:
    """A path or ``None`` as it is; standard input is read."""
    return sys.stdin.buffer.read() if path == STANDARD else path


def _report(
    arguments: argparse.Namespace,
    matches: Matches,
    H: np.ndarray | None,
    pose: Pose | None,
    inliers: np.ndarray,
    seconds: float,
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
        "probability": matches.probability,
        "homography": None if H is None else H.tolist(),
        "pose": _pose_report(pose),
        "keypoints0": matches.keypoints0.tolist(),
        "keypoints1": matches.keypoints1.tolist(),
        "scores": matches.scores.tolist(),
        "angles_deg": None if matches.angles is None else matches.angles.tolist(),
        "inliers": inliers.tolist(),
        "seconds": seconds,
    }


def _pose_report(pose: Pose | None) -> dict[str, Any] | None:
    if pose is None or pose.R is None or pose.t is None:
        return None
    return {
        "R": pose.R.tolist(),
        "t": pose.t.tolist(),
        "convention": "X1 = R X0 + t, from the camera of image0 to that of image1; x right, y down, z ahead; |t| = 1, "
        "since two images do not tell lengths",
        "num_inliers": int(pose.inliers.sum()),
    }


def _pose_summary(pose: Pose) -> str:
    """For people: where the second camera is, seen from the first."""
    if pose.R is None or pose.t is None:
        return "no pose: the matches do not determine one"
    from steerers.geometry import rotation_degrees

    angle, (x, y, z) = rotation_degrees(pose.R), -pose.R.T @ pose.t
    return (
        f"camera B is rotated by {angle:.1f} degrees against A, and stands from it towards ({x:.2f}, {y:.2f}, {z:.2f})"
        f": right, down, ahead; {int(pose.inliers.sum())} matches agree"
    )


def _print_summary(
    arguments: argparse.Namespace, matches: Matches, pose: Pose | None, inliers: np.ndarray, seconds: float
) -> None:
    rotation = (
        "unknown rotation" if matches.angle is None else f"rotated by {matches.angle:.1f} degrees counter-clockwise"
    )
    count, how = int(inliers.sum()), f"{matches.model}, {matches.strategy}, {seconds:.1f} s"
    if matches.probability < LIKELY:
        told = f"{len(matches)} matches, of which {count} agree, as some do by chance" if len(matches) else "no matches"
        options.say(f"probably not the same thing (probability {matches.probability:.2f}): {told} ({how})")
    else:
        told = f"{len(matches)} matches, {count} inliers, {rotation}"
        options.say(f"{told}, the same thing with probability {matches.probability:.2f} ({how})")
    if pose is not None:
        options.say(_pose_summary(pose))
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
  steerers match a.jpg b.jpg --intrinsics 1068,1068,529.3,385.6 --json pose.json
  curl -s https://example.org/a.jpg | steerers match - b.jpg --json - --quiet
""",
    options=(
        Option("image0", "an image, or - for one from standard input", Path, "A"),
        Option("image1", type=Path, metavar="B"),
        *options.MATCHER,
        Option("--mask0", "where keypoints of A are allowed (not black)", Path, "FILE"),
        Option("--mask1", "where keypoints of B are allowed (not black)", Path, "FILE"),
        Option(
            "--intrinsics",
            "of the camera, for the relative pose: fx,fy,cx,cy, or a file with these, with a 3 x 3 matrix or with JSON "
            "that has K; a pinhole without distortion, in pixels of the image as stored (full size, whatever --exif "
            "says), the centre of the top-left one at (0, 0): of COLMAP's, take 0.5 off cx and cy",
            metavar="K",
        ),
        Option("--intrinsics1", "of the camera of B, if it is another", metavar="K"),
        Option(
            "--verify",
            "what inliers agree with: a homography (flat or distant scenes, 3 px), a fundamental matrix (any two "
            "views, 1 px) or a pose (the same, with --intrinsics), in pixels of the shrunk image (default: pose if "
            "there are intrinsics, else homography)",
            choices=("homography", "fundamental", "pose"),
        ),
        Option("--out", "write a picture of the matches; - is standard output, as PNG", Path, "FILE"),
        Option("--json", "write the matches as JSON; - is standard output", Path, "FILE"),
    ),
    run=run,
)
