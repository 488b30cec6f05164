"""``steerers bench``: timings beside the plain form, in the same run."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.progress import progress

if TYPE_CHECKING:
    from steerers.bench.matching import Row

EXAMPLE = """example:
  steerers bench match --num 5000 --dim 256 --order 8
  steerers bench match --num 20000 --no-textbook --strategies dual-softmax max-similarity --json bench.json
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="Measure speed and memory.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subjects = parser.add_subparsers(title="what to measure", metavar="SUBJECT", required=True)
    match = subjects.add_parser(
        "match",
        help="matching strategies against the textbook form",
        description="Time and peak extra memory of every matching strategy beside the textbook form (dense matrices, "
        "one product per rotation) in the same run, on random descriptions of which half correspond.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    match.add_argument("--num", type=options.positive, default=5000, metavar="N", help="descriptions an image (5000)")
    match.add_argument("--dim", type=options.positive, default=256, metavar="D", help="their length (256)")
    match.add_argument(
        "--order", type=options.positive, default=8, metavar="N", help="turns that are tried (default: %(default)s)"
    )
    match.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")
    match.add_argument("--repeats", type=options.positive, default=5, metavar="N", help="the median counts (5)")
    match.add_argument("--strategies", nargs="+", metavar="NAME", help="default: all but tta")
    match.add_argument("--no-textbook", action="store_true", help="leave the textbook form out (it needs N x M memory)")
    match.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")
    match.set_defaults(run=run_match)


def run_match(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    if arguments.json is not None:
        options.check_output(arguments.json)
    import torch

    from steerers.bench.matching import MEASURED, bench_matching
    from steerers.models.weights import atomic_write
    from steerers.pipeline import parse_device

    device = parse_device(arguments.device)
    names = arguments.strategies or MEASURED
    for name in names:
        if name not in MEASURED:
            raise ValueError(f"cannot bench strategy {name!r}; use some of {', '.join(MEASURED)}")
    setting = {"num": arguments.num, "dim": arguments.dim, "order": arguments.order, "device": _device_name(device)}
    setting |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    rows: list[Row] = []
    for name in progress(names, "measuring"):
        rows += bench_matching(
            arguments.num,
            arguments.dim,
            arguments.order,
            device,
            strategies=[name],
            repeats=arguments.repeats,
            with_textbook=not arguments.no_textbook,
        )
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    print(_table(rows))
    if arguments.json is not None:
        report = {**setting, "rows": [{**asdict(row), "speedup": row.speedup} for row in rows]}
        with atomic_write(arguments.json) as temporary:
            temporary.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


def _table(rows: list[Row]) -> str:
    lines = [
        f"{'strategy':<21} {'steerer':<7} {'ms':>9} {'textbook':>9} {'ratio':>6} {'extra MB':>9} {'textbook':>9}  same"
    ]
    for row in rows:
        line = f"{row.strategy:<21} {row.steerer:<7} {1e3 * row.cost.seconds:>9.1f} "
        if row.textbook is None or row.speedup is None or row.common is None:
            line += f"{'-':>9} {'-':>6} {row.cost.extra_bytes / 1e6:>9.1f} {'-':>9}  -"
        else:
            line += f"{1e3 * row.textbook.seconds:>9.1f} {row.speedup:>5.1f}x {row.cost.extra_bytes / 1e6:>9.1f} "
            line += f"{row.textbook.extra_bytes / 1e6:>9.1f}  {100 * row.common:.2f} % of {row.matches}"
        lines.append(line)
    return "\n".join(lines)


def _device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
