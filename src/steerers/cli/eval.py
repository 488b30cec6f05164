"""``steerers eval NAME --data DIR``: benchmarks, several models side by side.

A benchmark is a record of :mod:`steerers.benchmarks` with its words and options; here is the command that all of them
share: its options, what is checked first, and what is printed and written in the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from steerers._console import Option, flag, names, positive
from steerers._devices import parse_device
from steerers.benchmarks import summary
from steerers.benchmarks.aims import AIMS
from steerers.benchmarks.benchmark import Benchmark
from steerers.benchmarks.collections import COLLECTIONS
from steerers.benchmarks.equivariance import EQUIVARIANCE
from steerers.benchmarks.homographies import HPATCHES, OXFORD
from steerers.benchmarks.predict import CANVASES, ROTATIONS
from steerers.benchmarks.report import Report, dump, write_text
from steerers.benchmarks.roto import ROTO_360
from steerers.benchmarks.runs import SPEC
from steerers.benchmarks.satast import SAT_AST
from steerers.benchmarks.scannet import SCANNET
from steerers.benchmarks.speed.runtime import RUNTIME
from steerers.benchmarks.two_view import CAMERAS, MEGADEPTH
from steerers.cli import options
from steerers.cli.options import Command
from steerers.models.downloads import home

REPORTS = Path("reports")
"""The folder, in the current one, of the reports of all benchmarks."""
PREDICTIONS = "predictions"
"""The folder of kept matches, beside the weights."""


BENCHMARKS: tuple[Benchmark, ...] = (
    OXFORD, HPATCHES, ROTO_360, *MEGADEPTH, *SCANNET, CAMERAS, AIMS, SAT_AST, COLLECTIONS, RUNTIME, EQUIVARIANCE
)  # fmt: skip
"""All that there are, in the order of the help."""


CACHE = (
    Option(
        "--cache",
        f"keep matches here, and use those that are there (default: {PREDICTIONS} in the folder of the weights, "
        "STEERERS_HOME)",
        Path,
        "DIR",
    ),
    flag("--no-cache", "match anew, keep nothing"),
)
"""Where matches are kept, or that they are not."""


# Options --------------------------------------------------------------------------------------------------------------


def _list_options(benchmark: Benchmark) -> Iterator[Option | tuple[Option, ...]]:
    """The options that benchmarks share, as far as this one has them, and its own."""
    if benchmark.data is not None:
        yield Option("--data", benchmark.data, Path, "DIR", required=True)
    yield Option("--models", f"{SPEC}, with commas between (default: %(default)s)", names, "LIST", benchmark.models)
    yield options.WEIGHTS
    yield options.num_keypoints(benchmark.num_keypoints)
    if benchmark.max_size is not None:
        yield Option("--max-size", "longest side: %(default)s", positive, "PX", benchmark.max_size)
        if benchmark.keeps_matches:
            yield options.RESIZE
    if benchmark.short_side is not None:
        about = "shortest side of all images; smaller ones are enlarged (default: %(default)s)"
        yield Option("--short-side", about, positive, "PX", benchmark.short_side)
    if benchmark.keeps_matches:
        yield CACHE
    if benchmark.paper is not None:
        yield flag("--no-paper", "leave out the paper's rows")
    if benchmark.seed:
        yield Option("--seed", "of the estimator or what is drawn (default: %(default)s)", int, default=0)
    yield options.DEVICE
    yield from _list_outputs(benchmark.name)
    if benchmark.rotations is not None:
        about = f"{', '.join(ROTATIONS)}, or several (default: %(default)s)"
        yield Option("--rotation", about, _rotations, "LIST", benchmark.rotations)
    if benchmark.canvas is not None:
        about = "of rotated images: keep their size, corners cut, or grow to hold all of them (default: %(default)s)"
        yield Option("--canvas", about, default=benchmark.canvas, choices=tuple(CANVASES))
        yield flag("--mask-corners", "no keypoints in the black corners that oblique rotations leave")
    yield from benchmark.own_options


def _list_outputs(name: str) -> Iterator[Option | tuple[Option, ...]]:
    """Where reports go."""
    yield Option("--json", "write the report as JSON", Path, "FILE")
    yield Option("--markdown", "write the report as Markdown", Path, "FILE")
    where = f"write report.json, report.md and plots here (default: {REPORTS / name})"
    yield Option("--report", where, Path, "DIR"), flag("--no-report", "print only")


def _rotations(text: str) -> list[str]:
    found = names(text)
    for index, name in enumerate(found):
        if name not in ROTATIONS:
            raise argparse.ArgumentTypeError(f"unknown rotation {name!r}; use one of {', '.join(ROTATIONS)}")
        if name in found[:index]:
            raise argparse.ArgumentTypeError(f"rotation {name!r} is named twice")
    return found


# Running --------------------------------------------------------------------------------------------------------------


def run(benchmark: Benchmark, arguments: argparse.Namespace) -> int:
    """Match, measure, print, write; or what an option of the benchmark asks for instead."""
    said = benchmark.instead(arguments)
    if said is not None:
        options.say(said)
        return 0
    device = _start(benchmark, arguments)
    return _finish(arguments, benchmark.evaluate(arguments, device))


def _start(benchmark: Benchmark, arguments: argparse.Namespace) -> torch.device:
    """Refuse outputs that cannot be written and a device that is not there, before any work; the device.

    Fills in where matches are kept, unless that is not wanted.
    """
    _check_outputs(benchmark.name, arguments)
    if benchmark.keeps_matches:
        arguments.cache = matches_folder(arguments)
    return parse_device(arguments.device)


def _check_outputs(name: str, arguments: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written; fill in where the report goes, unless it is not wanted."""
    for path in (arguments.json, arguments.markdown):
        options.check_output(path)
    if arguments.report is not None:
        _check_folder(arguments.report)
    elif not arguments.no_report:
        arguments.report = _default_report(name)


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


def matches_folder(arguments: argparse.Namespace) -> Path | None:
    """Where :data:`CACHE` says that matches are kept; refused if they could not be. It is not made here."""
    if arguments.no_cache:
        return None
    folder: Path = arguments.cache or home() / PREDICTIONS
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"cannot keep matches in {folder}: cannot write to {there}; give --cache DIR, or --no-cache")
    return folder


def _finish(arguments: argparse.Namespace, report: Report) -> int:
    """Print the Markdown, write the files, say where the report is on standard error; the exit code."""
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


def _make_command(benchmark: Benchmark) -> Command:
    return Command(
        name=benchmark.name,
        help=benchmark.help,
        description=benchmark.about,
        example=benchmark.example,
        options=tuple(_list_options(benchmark)),
        run=partial(run, benchmark),
    )


def summarise(arguments: argparse.Namespace) -> int:
    """One table of several reports."""
    _check_outputs(summary.NAME, arguments)
    sources = summary.find_reports(arguments.reports, REPORTS, arguments.table)
    written = None if arguments.report is None else arguments.report / summary.FILE
    options.check_distinct((arguments.json, arguments.markdown, written), [source.path for source in sources])
    return _finish(arguments, summary.make_report(sources, arguments.table))


SUMMARY = Command(
    name=summary.NAME,
    help="one table of several reports, beside what others print",
    description="Put reports of several benchmarks together, beside the printed numbers of others: rows are joined by "
    "their labels, every number says which report it is from, and what the reports do not share stands below.",
    example="""\
  steerers eval summary --table redi
  steerers eval summary --table redi reports/megadepth-c4 elsewhere/roto.json
""",
    options=(
        Option("reports", f"folders or {summary.FILE} files (default: those in {REPORTS})", Path, "REPORT", nargs="*"),
        Option(
            "--table",
            "redi: MegaDepth-C4, ScanNet-C4, Roto-360 and SatAst, beside REDI-Match and others (default: %(default)s)",
            default="redi",
            choices=tuple(summary.TABLES),
        ),
        *_list_outputs(summary.NAME),
    ),
    run=summarise,
)


COMMAND = Command(
    name="eval",
    help="run a benchmark",
    description="Run a benchmark on data that you have. Tables are printed, and written with plots to a folder "
    "reports/NAME; matches are kept, so that another threshold or estimator needs no matching.",
    example="""\
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --report out
""",
    title="benchmarks",
    metavar="NAME",
    commands=[*map(_make_command, BENCHMARKS), SUMMARY],
)
