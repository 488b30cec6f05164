"""``steerers eval NAME --data DIR``: benchmarks, several models side by side.

Every benchmark is a module of :mod:`steerers.cli` with ``add_to(benchmarks)``; here is what they share: the options,
the models that are asked for, and what is printed and written in the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.report import Report
    from steerers.benchmarks.runs import Run

EXAMPLE = """example:
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed --report out
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --cache predictions
"""
MODELS = "upright-sift,sift,orb"


def add_to(commands: Any) -> None:
    """Add the command, with its benchmarks, to the parser."""
    from steerers.cli import (
        eval_aims,
        eval_collections,
        eval_equivariance,
        eval_homographies,
        eval_roto,
        eval_runtime,
        eval_two_view,
    )

    parser = commands.add_parser(
        "eval",
        help="run a benchmark",
        description="Run a benchmark on data that you have.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for module in (
        eval_homographies,
        eval_roto,
        eval_two_view,
        eval_aims,
        eval_collections,
        eval_runtime,
        eval_equivariance,
    ):
        module.add_to(benchmarks)


def add_benchmark(benchmarks: Any, name: str, what: str, description: str, example: str) -> argparse.ArgumentParser:
    """The parser of one benchmark; ``example`` is at least one line ``  steerers eval NAME ...``."""
    parser: argparse.ArgumentParser = benchmarks.add_parser(
        name,
        help=what,
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


# Options --------------------------------------------------------------------------------------------------------------


def add_common_options(
    parser: argparse.ArgumentParser,
    *,
    data: str | None = "the folder that holds the data",
    models: str | None = MODELS,
    num_keypoints: int | None = 2048,
    max_size: int | None = 800,
    cache: bool = True,
    paper: bool = False,
) -> None:
    """The options of all benchmarks; ``None`` or ``False`` leaves one out.

    Args:
        data: what ``--data`` is.
        models: the default of ``--models``; it brings ``--weights``.
        num_keypoints, max_size: defaults.
        cache: whether matches are kept, for benchmarks on pairs of images.
        paper: whether the paper has the experiment, and ``--no-paper`` hides it.
    """
    from steerers.benchmarks.runs import SPEC

    if data is not None:
        parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=data)
    if models is not None:
        parser.add_argument(
            "--models",
            type=names,
            default=models,
            metavar="LIST",
            help=f"{SPEC}, with commas between (default: %(default)s)",
        )
        options.add_weights_option(parser)
    if num_keypoints is not None:
        parser.add_argument(
            "--num-keypoints", type=options.positive, default=num_keypoints, metavar="N", help="default: %(default)s"
        )
    if max_size is not None:
        parser.add_argument(
            "--max-size", type=options.positive, default=max_size, metavar="PX", help="longest side: %(default)s"
        )
    if cache:
        parser.add_argument("--cache", type=Path, metavar="DIR", help="keep matches here, and use those that are there")
    if paper:
        parser.add_argument("--no-paper", action="store_true", help="leave out the paper's rows")
    _add_output_options(parser)


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report.json, report.md and plots here")


def add_rotation_options(parser: argparse.ArgumentParser, default: str | None = "upright") -> None:
    """``--rotation``, unless the benchmark has its own, and ``--mask-corners``."""
    from steerers.benchmarks.protocol import ROTATIONS

    if default is not None:
        parser.add_argument(
            "--rotation",
            type=names,
            default=default,
            metavar="LIST",
            help=f"{', '.join(ROTATIONS)}, or several (default: %(default)s)",
        )
    parser.add_argument(
        "--mask-corners", action="store_true", help="no keypoints in the black corners that oblique turns leave"
    )


def names(text: str) -> list[str]:
    """Names with commas between."""
    found = [name.strip() for name in text.split(",")]
    if "" in found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return found


# Running --------------------------------------------------------------------------------------------------------------


def start(arguments: argparse.Namespace) -> torch.device:
    """Refuse outputs that cannot be written and a device that is not there, before any work; the device."""
    from steerers.pipeline import parse_device

    for path in (arguments.json, arguments.markdown):
        if path is not None:
            options.check_output(path)
    if arguments.report is not None:
        if arguments.report.exists() and not arguments.report.is_dir():
            raise ValueError(f"cannot write {arguments.report}: it is a file, and the report a folder")
        options.check_output(arguments.report / "report.json" if arguments.report.is_dir() else arguments.report)
    return parse_device(arguments.device)


def load_models(arguments: argparse.Namespace, device: torch.device) -> list[Run]:
    """The runs that ``--models`` names."""
    from steerers.benchmarks.runs import load_runs

    return load_runs(
        arguments.models,
        num_keypoints=arguments.num_keypoints,
        max_size=arguments.max_size,
        device=device,
        weights=arguments.weights or (),
    )


def finish(arguments: argparse.Namespace, report: Report) -> int:
    """Print the Markdown, write the files that were asked for; the exit code."""
    from steerers.benchmarks.report import dump, write_text

    markdown = report.to_markdown()
    options.say(markdown.removesuffix("\n"))
    if arguments.json is not None:
        write_text(arguments.json, dump(report.to_json()))
    if arguments.markdown is not None:
        write_text(arguments.markdown, markdown)
    if arguments.report is not None:
        report.write(arguments.report)
    return 0
