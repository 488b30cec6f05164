"""``steerers bench``: timings beside the plain form, in the same run."""

from __future__ import annotations

import argparse
from typing import Any

from steerers.cli import bench_describe, bench_match, bench_pipeline


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="Measure speed and memory.",
        epilog=_examples(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subjects = parser.add_subparsers(title="what to measure", metavar="SUBJECT", required=True)
    bench_match.add_to(subjects)
    bench_describe.add_to(subjects)
    bench_pipeline.add_to(subjects)


def _examples() -> str:
    """The first of every subject."""
    examples = (bench_match.EXAMPLE, bench_describe.EXAMPLE, bench_pipeline.EXAMPLE)
    return "\n".join(["example:", *(example.splitlines()[1] for example in examples)])
