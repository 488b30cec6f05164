"""``steerers eval NAME --data DIR``: benchmarks, several models side by side.

A benchmark is a record of :mod:`steerers.benchmarks` with its words and options; here is the command that all of them
share: its options, what is checked first, and what is printed and written in the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.benchmark import Benchmark
    from steerers.benchmarks.report import Report

EXAMPLE = """example:
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --report out
"""
REPORTS = Path("reports")
"""The folder, in the current one, of the reports of all benchmarks."""
PREDICTIONS = "predictions"
"""The folder of kept matches, beside the weights."""


def list_benchmarks() -> tuple[Benchmark, ...]:
    """All that there are, in the order of the help."""
    from steerers.benchmarks.aims import AIMS
    from steerers.benchmarks.collections import COLLECTIONS
    from steerers.benchmarks.equivariance import EQUIVARIANCE
    from steerers.benchmarks.homographies import HPATCHES, OXFORD
    from steerers.benchmarks.roto import ROTO_360
    from steerers.benchmarks.satast import SAT_AST
    from steerers.benchmarks.speed.runtime import RUNTIME
    from steerers.benchmarks.two_view import CAMERAS, MEGADEPTH

    return (OXFORD, HPATCHES, ROTO_360, *MEGADEPTH, CAMERAS, AIMS, SAT_AST, COLLECTIONS, RUNTIME, EQUIVARIANCE)


def add_to(commands: Any) -> None:
    """Add the command, with its benchmarks, to the parser."""
    parser = commands.add_parser(
        "eval",
        help="run a benchmark",
        description="Run a benchmark on data that you have. Tables are printed, and written with plots to a folder "
        "reports/NAME; matches are kept, so that another threshold or estimator needs no matching.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for benchmark in list_benchmarks():
        one: argparse.ArgumentParser = benchmarks.add_parser(
            benchmark.name,
            help=benchmark.help,
            description=benchmark.about,
            epilog=f"example:\n{benchmark.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(one, benchmark)
        one.set_defaults(run=partial(run, benchmark))


def run(benchmark: Benchmark, arguments: argparse.Namespace) -> int:
    """Match, measure, print, write; or what an option of the benchmark asks for instead."""
    said = benchmark.instead(arguments)
    if said is not None:
        options.say(said)
        return 0
    device = _start(benchmark, arguments)
    return _finish(arguments, benchmark.evaluate(arguments, device))


# Options --------------------------------------------------------------------------------------------------------------


def _add_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    """The options that benchmarks share, as far as this one has them, and its own."""
    from steerers.benchmarks.runs import SPEC

    if benchmark.data is not None:
        parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=benchmark.data)
    parser.add_argument(
        "--models",
        type=options.names,
        default=benchmark.models,
        metavar="LIST",
        help=f"{SPEC}, with commas between (default: %(default)s)",
    )
    options.add_weights_option(parser)
    _add_size_options(parser, benchmark)
    if benchmark.keeps_matches:
        _add_cache_options(parser)
    if benchmark.paper is not None:
        parser.add_argument("--no-paper", action="store_true", help="leave out the paper's rows")
    if benchmark.seed:
        parser.add_argument(
            "--seed", type=int, default=0, help="of the estimator or what is drawn (default: %(default)s)"
        )
    _add_output_options(parser, benchmark.name)
    _add_rotation_options(parser, benchmark)
    benchmark.add_options(parser)


def _add_size_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    parser.add_argument(
        "--num-keypoints",
        type=options.positive,
        default=benchmark.num_keypoints,
        metavar="N",
        help="default: %(default)s",
    )
    if benchmark.max_size is not None:
        parser.add_argument(
            "--max-size",
            type=options.positive,
            default=benchmark.max_size,
            metavar="PX",
            help="longest side: %(default)s",
        )
    if benchmark.short_side is not None:
        parser.add_argument(
            "--short-side",
            type=options.positive,
            default=benchmark.short_side,
            metavar="PX",
            help="shortest side of all images; smaller ones are enlarged (default: %(default)s)",
        )


def _add_output_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    report = parser.add_mutually_exclusive_group()
    report.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help=f"write report.json, report.md and plots here (default: {REPORTS / name})",
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


def _add_rotation_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    from steerers.benchmarks.pairs import ROTATIONS

    if benchmark.rotations is not None:
        parser.add_argument(
            "--rotation",
            type=_rotations,
            default=benchmark.rotations,
            metavar="LIST",
            help=f"{', '.join(ROTATIONS)}, or several (default: %(default)s)",
        )
    if benchmark.rotates:
        parser.add_argument(
            "--mask-corners", action="store_true", help="no keypoints in the black corners that oblique rotations leave"
        )


def _rotations(text: str) -> list[str]:
    from steerers.benchmarks.pairs import ROTATIONS

    found = options.names(text)
    for index, name in enumerate(found):
        if name not in ROTATIONS:
            raise argparse.ArgumentTypeError(f"unknown rotation {name!r}; use one of {', '.join(ROTATIONS)}")
        if name in found[:index]:
            raise argparse.ArgumentTypeError(f"rotation {name!r} is named twice")
    return found


# Running --------------------------------------------------------------------------------------------------------------


def _start(benchmark: Benchmark, arguments: argparse.Namespace) -> torch.device:
    """Refuse outputs that cannot be written and a device that is not there, before any work; the device.

    Fills in where the report goes and where matches are kept, unless these are not wanted.
    """
    from steerers._devices import parse_device

    for path in (arguments.json, arguments.markdown):
        options.check_output(path)
    if arguments.report is not None:
        _check_folder(arguments.report)
    elif not arguments.no_report:
        arguments.report = _default_report(benchmark.name)
    if benchmark.keeps_matches and not arguments.no_cache:
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


def _finish(arguments: argparse.Namespace, report: Report) -> int:
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
