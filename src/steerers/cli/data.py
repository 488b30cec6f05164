"""``steerers data check DIR``: what is missing or broken in training data."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options

if TYPE_CHECKING:
    from steerers.datasets.check import Problem, Report

EXAMPLE = """example:
  steerers data check MegaDepth
  steerers data check MegaDepth --scenes 0015,0022 --all
  steerers data check photographs.tar
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "data",
        help="look after training data",
        description="Look after training data.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="what to do", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="list what is missing or broken",
        description="List what is missing or broken in a folder of training data: MegaDepth (photographs, depth maps, "
        "scene descriptions), a COLMAP reconstruction, or a folder or tar of photographs. The exit code is 0 if all is "
        "well and 1 if not.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("dir", type=Path, metavar="DIR", help="the data")
    check.add_argument(
        "--quick",
        action="store_true",
        help="only look whether files are there, without opening them; of a reconstruction the model alone is read",
    )
    check.add_argument("--scenes", metavar="LIST", help="of MegaDepth, with commas between (default: all)")
    check.add_argument("--images", type=Path, metavar="DIR", help="of a COLMAP reconstruction (default: DIR/images)")
    check.add_argument(
        "--depths", type=Path, metavar="DIR", help="of a COLMAP reconstruction (default: DIR/stereo/depth_maps)"
    )
    check.add_argument(
        "--first", type=options.positive, default=5, metavar="K", help="list so many of each kind (default: 5)"
    )
    check.add_argument("--all", action="store_true", help="list all of them")
    check.set_defaults(run=run)


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
