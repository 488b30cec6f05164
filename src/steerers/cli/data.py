"""``steerers data check DIR``: what is missing or broken in training data."""

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
COMMAND = Command(
    description="Look after training data.", example=EXAMPLE, title="what to do", metavar="ACTION", commands=[CHECK]
)
