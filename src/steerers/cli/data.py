"""``steerers data``: what is missing or broken in training data (``check``), and depth maps for it (``depth``)."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steerers._console import Option, flag, positive
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.datasets.check import Problem, Report


EXAMPLE = """\
  steerers data check MegaDepth
  steerers data check MegaDepth --scenes 0015,0022 --all
  steerers data check photographs.tar
"""


def run(arguments: argparse.Namespace) -> int:
    """Check, print; 1 if something is wrong."""
    from steerers.datasets.check import check_data

    report = check_data(
        arguments.dir,
        quick=arguments.quick,
        scenes=None if arguments.scenes is None else arguments.scenes.replace(" ", "").split(","),
        images=arguments.images,
        depths=arguments.depths,
    )
    _print(report, arguments.dir, None if arguments.all else arguments.first)
    return 1 if report.problems else 0


def _print(report: Report, root: Path, first: int | None) -> None:
    counted = ", ".join(f"{count} {what}" for what, count in report.counts.items())
    options.say(f"{report.layout} in {root}" + (f": {counted}" if counted else ""))
    for scene in dict.fromkeys(problem.scene for problem in report.problems):
        found = [problem for problem in report.problems if problem.scene == scene]
        if scene:
            options.say(f"scene {scene}: {_count(found)}")
        for kind, count in Counter(problem.kind for problem in found).items():
            options.say(f"  {kind}: {count}")
            what = [problem.what for problem in found if problem.kind == kind]
            for line in what[:first]:
                options.say(f"    {line}")
            if len(what[:first]) < count:
                options.say(f"    and {count - len(what[:first])} more (--all lists them)")
    for note in report.notes:
        options.say(f"note: {note}")
    options.say(f"{_count(report.problems)} in all" if report.problems else "all is well")


def _count(problems: Sequence[Problem]) -> str:
    return f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"


CHECK = Command(
    name="check",
    help="list what is missing or broken",
    description="List what is missing or broken in a folder of training data: MegaDepth (photographs, depth maps, "
    "scene descriptions), a COLMAP reconstruction, or a folder or tar of photographs. The exit code is 0 if all is "
    "well and 1 if not.",
    example=EXAMPLE,
    options=(
        Option("dir", "the data", Path, "DIR"),
        flag(
            "--quick",
            "only look whether files are there, without opening them; of a reconstruction the model alone is read",
        ),
        Option("--scenes", "of MegaDepth, with commas between (default: all)", metavar="LIST"),
        Option("--images", "of a COLMAP reconstruction (default: DIR/images)", Path, "DIR"),
        Option("--depths", "of a COLMAP reconstruction (default: DIR/stereo/depth_maps)", Path, "DIR"),
        Option("--first", "list so many of each kind (default: 5)", positive, "K", 5),
        flag("--all", "list all of them"),
    ),
    run=run,
)


def make_depth(arguments: argparse.Namespace) -> int:
    """Write depth maps, print how much of the photographs they cover."""
    from steerers._console import progress
    from steerers._devices import parse_device
    from steerers.datasets.reconstruction import DEPTHS, open_scenes
    from steerers.datasets.stereo import StereoOptions, write_depth_maps

    device = parse_device(arguments.device)
    chosen = StereoOptions(size=arguments.size, planes=arguments.planes, views=arguments.views)
    for found in open_scenes(arguments.dir, arguments.images):
        scene = found._replace(depths=found.home / DEPTHS)
        total = len(scene.reconstruction)
        written = list(progress(write_depth_maps(scene, chosen, device), scene.name, total))
        covered = sum(fraction for _, fraction in written) / total
        options.say(f"{scene.name}: {total} depth maps in {scene.depths}, {covered:.0%} of the pixels have a depth")
    return 0


DEPTH = Command(
    name="depth",
    help="make depth maps of reconstructions, for training",
    description="Make depth maps of COLMAP reconstructions by plane sweep and write them as COLMAP does, into "
    "stereo/depth_maps of each, where training looks for them. Cameras must have no lens distortion "
    "(pycolmap.undistort_images). Meant for a GPU; on a CPU a photograph takes a minute or so.",
    example="  steerers data depth undistorted --device cuda\n",
    options=(
        Option("dir", "a reconstruction, or a folder of them", Path, "DIR"),
        Option("--images", "its photographs (default: DIR/images)", Path, "DIR"),
        Option("--size", "longest side of a depth map in pixels (default: 512)", positive, "N", 512),
        Option("--planes", "how many are tried, of each of five normals (default: 160)", positive, "N", 160),
        Option("--views", "with how many photographs one is compared, at most (default: 8)", positive, "N", 8),
        options.DEVICE,
    ),
    run=make_depth,
)
COMMAND = Command(
    description="Look after training data, and make depth maps for it.",
    example=EXAMPLE,
    title="what to do",
    metavar="ACTION",
    commands=[CHECK, DEPTH],
)
