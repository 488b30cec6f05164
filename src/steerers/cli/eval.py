"""``steerers eval NAME --data DIR``: benchmarks, several models side by side.

A benchmark is a record of :mod:`steerers.benchmarks` with its words and options, the offer; here is the command that
all of them share: its options, what is checked first, and what is printed and written in the end.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from steerers._console import Option, flag, names, positive
from steerers._devices import parse_device
from steerers.benchmarks import summary
from steerers.benchmarks.offers import CANVASES, OFFERS, ROTATIONS, SPEC, Offer, read_rotations
from steerers.benchmarks.report import Report, dump
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.benchmark import Benchmark

logger = logging.getLogger(__name__)

REPORTS = Path("reports")
"""The folder, in the current one, of the reports of all benchmarks."""
PREDICTIONS = "predictions"
"""The folder of kept matches, beside the weights."""


def benchmarks() -> dict[str, Benchmark]:
    """All that there are, by name."""
    from steerers.benchmarks.aims import AIMS
    from steerers.benchmarks.alignment import ALIGNMENT
    from steerers.benchmarks.collections import COLLECTIONS
    from steerers.benchmarks.equivariance import EQUIVARIANCE
    from steerers.benchmarks.homographies import HPATCHES, OXFORD
    from steerers.benchmarks.localisation import LOCALISATION
    from steerers.benchmarks.maps import MAP
    from steerers.benchmarks.reconstruction import RECONSTRUCTION
    from steerers.benchmarks.retrieval import RETRIEVAL
    from steerers.benchmarks.roto import ROTO_360
    from steerers.benchmarks.satast import SAT_AST
    from steerers.benchmarks.scannet import SCANNET
    from steerers.benchmarks.speed.runtime import RUNTIME
    from steerers.benchmarks.two_view import CAMERAS, MEGADEPTH
    from steerers.benchmarks.verdict import VERDICT

    known: tuple[Benchmark, ...] = (
        OXFORD, HPATCHES, ALIGNMENT, ROTO_360, *MEGADEPTH, *SCANNET, CAMERAS, AIMS, SAT_AST, COLLECTIONS, RUNTIME,
        EQUIVARIANCE, RETRIEVAL, VERDICT, MAP, LOCALISATION, RECONSTRUCTION,
    )  # fmt: skip
    return {benchmark.name: benchmark for benchmark in known}


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


def _list_options(offer: Offer) -> Iterator[Option | tuple[Option, ...]]:
    """The options that benchmarks share, as far as this one has them, and its own."""
    if offer.data is not None:
        yield Option("--data", offer.data, Path, "DIR", required=True)
    yield Option("--models", f"{SPEC}, with commas between (default: %(default)s)", names, "LIST", offer.models)
    yield options.WEIGHTS
    yield options.num_keypoints(offer.num_keypoints)
    if offer.max_size is not None:
        yield Option("--max-size", "longest side: %(default)s", positive, "PX", offer.max_size)
        if offer.keeps_matches:
            yield options.RESIZE
    if offer.short_side is not None:
        about = "shortest side of all images; smaller ones are enlarged (default: %(default)s)"
        yield Option("--short-side", about, positive, "PX", offer.short_side)
    if offer.keeps_matches:
        yield CACHE
    if offer.paper is not None:
        yield flag("--no-paper", "leave out the paper's rows")
    if offer.seed:
        yield Option("--seed", "of the estimator or what is drawn (default: %(default)s)", int, default=0)
    yield options.DEVICE
    yield from _list_outputs(offer.name)
    if offer.rotations is not None:
        about = f"{', '.join(ROTATIONS)}, or several (default: %(default)s)"
        yield Option("--rotation", about, _rotations, "LIST", offer.rotations)
    if offer.canvas is not None:
        about = "of rotated images: keep their size, corners cut, or grow to hold all of them (default: %(default)s)"
        yield Option("--canvas", about, default=offer.canvas, choices=tuple(CANVASES))
        yield flag("--mask-corners", "no keypoints in the black corners that oblique rotations leave")
    yield from offer.own_options


def _list_outputs(name: str) -> Iterator[Option | tuple[Option, ...]]:
    """Where reports go."""
    yield Option("--json", "write the report as JSON; - is standard output", Path, "FILE")
    yield Option("--markdown", "write the report as Markdown; - is standard output", Path, "FILE")
    where = f"write report.json, report.md and plots here (default: {REPORTS / name})"
    yield Option("--report", where, Path, "DIR"), flag("--no-report", "print only")


def _rotations(text: str) -> list[str]:
    return read_rotations(text, ROTATIONS, f"one of {', '.join(ROTATIONS)}")


# Running --------------------------------------------------------------------------------------------------------------


def run(offer: Offer, arguments: argparse.Namespace) -> int:
    """Match, measure, print, write; or what an option of the benchmark asks for instead."""
    benchmark = benchmarks()[offer.name]
    said = benchmark.instead(arguments)
    if said is not None:
        options.say(said)
        return 0
    device = _start(offer, arguments)
    return _finish(arguments, benchmark.evaluate(arguments, device))


def _start(offer: Offer, arguments: argparse.Namespace) -> torch.device:
    """Refuse outputs that cannot be written and a device that is not there, before any work; the device.

    Fills in where matches are kept, unless that is not wanted.
    """
    _check_outputs(offer.name, arguments)
    if offer.keeps_matches:
        arguments.cache = matches_folder(arguments)
    return parse_device(arguments.device)


def _check_outputs(name: str, arguments: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written; fill in where the report goes, unless it is not wanted."""
    for path in (arguments.json, arguments.markdown):
        options.check_output(path)
    options.check_distinct((arguments.json, arguments.markdown), ())
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
    from steerers.models.downloads import home

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
        options.write(arguments.json, dump(report.to_json()))
    if arguments.markdown is not None:
        options.write(arguments.markdown, markdown)
    if arguments.report is not None:
        report.write(arguments.report)
        logger.info("report: %s", arguments.report)
    return 0


def _make_command(offer: Offer) -> Command:
    return Command(
        name=offer.name,
        help=offer.help,
        description=offer.about,
        example=offer.example,
        options=tuple(_list_options(offer)),
        run=partial(run, offer),
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
    description="Run a benchmark on data that you have. Tables are printed, and written with plots to a folder "
    "reports/NAME; matches are kept, so that another threshold or estimator needs no matching.",
    example="""\
  steerers eval oxford --data oxford --models compact,sift,orb --rotation fixed
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --report out
""",
    title="benchmarks",
    metavar="NAME",
    commands=[*map(_make_command, OFFERS), SUMMARY],
)
