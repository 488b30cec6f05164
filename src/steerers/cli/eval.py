"""``steerers eval NAME --data DIR``: benchmarks, several models side by side.

Every benchmark is a module of :mod:`steerers.cli` with ``add_to(benchmarks)``; here is what they share: the options,
the models that are asked for, and what is printed and written in the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.report import Report
    from steerers.benchmarks.runs import Run

EXAMPLE = """example:
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --report out
"""
MODELS = "upright-sift,sift,orb"
REPORTS = Path("reports")
"""The folder, in the current one, of the reports of all benchmarks."""
PREDICTIONS = "predictions"
"""The folder of kept matches, beside the weights."""


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
        description="Run a benchmark on data that you have. Tables are printed, and written with plots to a folder "
        "reports/NAME; matches are kept, so that another threshold or estimator needs no matching.",
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
    parser.set_defaults(benchmark=name)
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
    seed: bool = True,
) -> None:
    """The options of all benchmarks; ``None`` or ``False`` leaves one out.

    Args:
        data: what ``--data`` is.
        models: the default of ``--models``; it brings ``--weights``.
        num_keypoints, max_size: defaults.
        cache: whether matches are kept, for benchmarks on pairs of images.
        paper: whether the paper has the experiment, and ``--no-paper`` hides it.
        seed: whether the benchmark itself draws anything; strategies have seeds of their own.
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
        _add_cache_options(parser)
    if paper:
        parser.add_argument("--no-paper", action="store_true", help="leave out the paper's rows")
    if seed:
        parser.add_argument(
            "--seed", type=int, default=0, help="of the estimator or what is drawn (default: %(default)s)"
        )
    _add_output_options(parser)


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    report = parser.add_mutually_exclusive_group()
    report.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help=f"write report.json, report.md and plots here (default: {REPORTS / parser.get_default('benchmark')})",
    )
    report.add_argument("--no-report", action="store_true", help="print only")


def _add_cache_options(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help=f"keep matches here, and use those that are there (default: {PREDICTIONS} in the folder of the weights, "
        "STEERERS_HOME)",
    )
    cache.add_argument("--no-cache", action="store_true", help="match anew, keep nothing")


def add_rotation_options(parser: argparse.ArgumentParser, default: str | None = "upright") -> None:
    """``--rotation``, unless the benchmark has its own, and ``--mask-corners``."""
    from steerers.benchmarks.protocol import ROTATIONS

    if default is not None:
        parser.add_argument(
            "--rotation",
            type=_rotations,
            default=default,
            metavar="LIST",
            help=f"{', '.join(ROTATIONS)}, or several (default: %(default)s)",
        )
    parser.add_argument(
        "--mask-corners", action="store_true", help="no keypoints in the black corners that oblique rotations leave"
    )


def _rotations(text: str) -> list[str]:
    from steerers.benchmarks.protocol import ROTATIONS

    found = names(text)
    for index, name in enumerate(found):
        if name not in ROTATIONS:
            raise argparse.ArgumentTypeError(f"unknown rotation {name!r}; use one of {', '.join(ROTATIONS)}")
        if name in found[:index]:
            raise argparse.ArgumentTypeError(f"rotation {name!r} is named twice")
    return found


def names(text: str) -> list[str]:
    """Names with commas between."""
    found = [name.strip() for name in text.split(",")]
    if "" in found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return found


# Running --------------------------------------------------------------------------------------------------------------


def start(arguments: argparse.Namespace) -> torch.device:
    """Refuse outputs that cannot be written and a device that is not there, before any work; the device.

    Fills in where the report goes and where matches are kept, unless these are not wanted.
    """
    from steerers.pipeline import parse_device

    for path in (arguments.json, arguments.markdown):
        options.check_output(path)
    if arguments.report is not None:
        _check_folder(arguments.report)
    elif not arguments.no_report:
        arguments.report = _default_report(arguments.benchmark)
    if "cache" in arguments and not arguments.no_cache:
        from steerers.models.downloads import home

        arguments.cache = arguments.cache or home() / PREDICTIONS
        _check_cache(arguments.cache)
    return parse_device(arguments.device)


def _default_report(benchmark: str) -> Path:
    folder = REPORTS / benchmark
    try:
        _check_folder(folder if REPORTS.is_dir() else REPORTS)
    except ValueError as error:
        raise ValueError(f"{error}; give --report DIR, or --no-report") from None
    return folder


def _check_folder(folder: Path) -> None:
    """Refuse a folder that could not be made or written to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write {folder}: it is a file, and the report a folder")
    options.check_output(folder / "report.json" if folder.is_dir() else folder)


def _check_cache(folder: Path) -> None:
    """Refuse a folder in which matches could not be kept, without making it."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"cannot keep matches in {folder}: cannot write to {there}; give --cache DIR, or --no-cache")


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
    """Print the Markdown, write the files, say where the report is on standard error; the exit code."""
    from steerers.benchmarks.report import dump, write_text

    markdown = report.to_markdown()
    options.say(markdown.removesuffix("\n"))
    if arguments.json is not None:
        write_text(arguments.json, dump(report.to_json()))
    if arguments.markdown is not None:
        write_text(arguments.markdown, markdown)
    if arguments.report is not None:
        report.write(arguments.report)
        print(f"report: {arguments.report}", file=sys.stderr)
    return 0
