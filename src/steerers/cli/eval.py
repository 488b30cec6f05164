"""``steerers eval NAME --data DIR``: benchmarks, several models side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from steerers.cli import options

EXAMPLE = """example:
  steerers eval oxford --data oxford --models upright-sift,sift,orb --rotation fixed --json out.json --markdown out.md
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --cache predictions
"""
MODELS = "upright-sift,sift,orb"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="run a benchmark",
        description="Run a benchmark on data that you have.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for name, what in (("oxford", "the Oxford affine sequences"), ("hpatches", "the HPatches sequences")):
        homographies = benchmarks.add_parser(
            name,
            help=f"homographies on {what}",
            description=f"Homography estimation on {what}, upright or turned: area under the curve of the corner "
            "error, precision of the matches, repeatability of the detector, error of the angle, and times.",
            epilog=EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_homography_options(homographies)
        if name == "hpatches":
            homographies.add_argument(
                "--skip-large",
                action="store_true",
                help="leave out the eight sequences that D2-Net and LoFTR leave out",
            )
        homographies.set_defaults(run=run_homographies, benchmark=name, skip_large=False)


def _add_homography_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder that holds the sequences")
    parser.add_argument(
        "--models",
        type=_list,
        default=MODELS,
        metavar="LIST",
        help="MODEL[@DETECTOR][:STRATEGY[:ORDER]], with commas between (default: %(default)s)",
    )
    options.add_weights_option(parser)
    parser.add_argument(
        "--rotation",
        type=_list,
        default="upright",
        metavar="LIST",
        help="upright, fixed, quarter, all or joint, or several (default: %(default)s)",
    )
    parser.add_argument("--sequences", type=_list, metavar="LIST", help="names of the sequences (default: all)")
    parser.add_argument(
        "--num-keypoints", type=options.positive, default=2048, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--max-size", type=options.positive, default=800, metavar="PX", help="longest side (default: %(default)s)"
    )
    parser.add_argument(
        "--mask-corners", action="store_true", help="no keypoints in the black corners that oblique turns leave"
    )
    parser.add_argument(
        "--threshold", type=float, default=3.0, metavar="PX", help="of the estimator's inliers (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the estimator (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: %(default)s)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep matches here, and use those that are there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")


def run_homographies(arguments: argparse.Namespace) -> int:
    """Match, measure, print, write."""
    for path in (arguments.json, arguments.markdown):
        if path is not None:
            options.check_output(path)
    from steerers.benchmarks import homographies, report
    from steerers.benchmarks.protocol import Settings, load_runs, turn_pairs
    from steerers.pipeline import parse_device

    device = parse_device(arguments.device)
    estimator = homographies.Estimator(threshold=arguments.threshold, seed=arguments.seed)
    settings = Settings(arguments.max_size, arguments.mask_corners)
    skip = homographies.HPATCHES_LARGE if arguments.skip_large else ()
    layout = homographies.LAYOUTS[arguments.benchmark]
    pairs = homographies.list_pairs(layout, arguments.data, arguments.sequences, skip=skip)
    for rotation in arguments.rotation:
        turn_pairs(pairs, rotation)  # refuses unknown names before any work
    runs = load_runs(
        arguments.models,
        num_keypoints=arguments.num_keypoints,
        max_size=arguments.max_size,
        device=device,
        weights=arguments.weights or (),
    )
    made = report.environment(device)
    tables = [
        homographies.evaluate(
            runs, pairs, rotation, settings=settings, estimator=estimator, cache=arguments.cache, made=made
        )
        for rotation in arguments.rotation
    ]
    _write(arguments, report.homography_report(arguments.benchmark, tables, settings, estimator, device))
    return 0


def _write(arguments: argparse.Namespace, measured: dict[str, Any]) -> None:
    from steerers.benchmarks.report import markdown
    from steerers.models.weights import atomic_write

    text = markdown(measured)
    print(text, end="")
    contents = ((arguments.json, json.dumps(measured, indent=1, allow_nan=False) + "\n"), (arguments.markdown, text))
    for path, content in contents:
        if path is not None:
            with atomic_write(path) as temporary:
                temporary.write_text(content, encoding="utf-8")


def _list(text: str) -> list[str]:
    """Names with commas between."""
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return names
