"""``steerers bench match``: matching strategies beside the textbook form."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.cli.bench_options import add_measuring_options, environment, print_setting, write_json
from steerers.viz.progress import progress

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.speed.matching import Row

EXAMPLE = """example:
  steerers bench match --num 5000 --dim 256 --order 8
  steerers bench match --num 20000 --no-textbook --strategies dual-softmax max-similarity --json bench.json
  steerers bench match --device cuda --num 5000 10000 20000 --order 4 8 --repeats 20
"""


def add_to(subjects: Any) -> None:
    """Add the subject to the parser."""
    match = subjects.add_parser(
        "match",
        help="matching strategies against the textbook form",
        description="Time and peak extra memory of every matching strategy beside the textbook form (dense matrices, "
        "one product per rotation) in the same run, on random descriptions of which some correspond. Where the peak of "
        "the device is known, also how many times the floor: all products twice, at that peak.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    match.add_argument(
        "--num", type=options.positive, nargs="+", default=[5000], metavar="N", help="descriptions an image (5000)"
    )
    match.add_argument("--dim", type=options.positive, default=256, metavar="D", help="their length (256)")
    match.add_argument(
        "--order", type=options.positive, nargs="+", default=[8], metavar="N", help="rotations that are tried (8)"
    )
    match.add_argument(
        "--matching", type=options.fraction, default=0.5, metavar="SHARE", help="of descriptions that correspond (0.5)"
    )
    match.add_argument("--strategies", nargs="+", metavar="NAME", help="default: all but tta")
    match.add_argument("--no-textbook", action="store_true", help="leave the textbook form out (it needs N x M memory)")
    match.add_argument(
        "--precision", choices=["default", "exact"], default="default", help="of the fused kernels (%(default)s)"
    )
    match.add_argument(
        "--kernels", choices=["auto", "tiled", "fused"], default="auto", help="auto: fused on a GPU, else tiled"
    )
    match.add_argument(
        "--peak-tflops",
        type=options.above_zero("a number above 0"),
        metavar="X",
        help="of the device, for the floor (known for H100 and H200)",
    )
    add_measuring_options(match, repeats=5)
    match.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    from steerers._devices import parse_device

    device = parse_device(arguments.device)
    told = [(num, order) for num in arguments.num for order in arguments.order]
    work = [(num, order, name) for num, order in told for name in _names(arguments, order)]
    rows: dict[tuple[int, int], list[Row]] = {}
    for num, order, name in progress(work, "measuring"):
        rows.setdefault((num, order), []).extend(_measured(arguments, num, order, name, device))
    reports = []
    for (num, order), measured in rows.items():
        sizes = {"num": num, "dim": arguments.dim, "order": order, "matching": arguments.matching}
        setting = {**sizes, **_how(arguments, device), **environment(device)}
        reports.append({**setting, "rows": [_as_json(row) for row in measured]})
        if len(reports) > 1:
            print()
        print_setting(setting)
        print(_table(measured))
    write_json(arguments.json, reports[0] if len(reports) == 1 else {"runs": reports})
    return 0


def _names(arguments: argparse.Namespace, order: int) -> list[str]:
    """Strategies to measure: those that try no rotations only with the first order."""
    from steerers.benchmarks.speed.matching import MEASURED, ROTATING

    names = arguments.strategies or MEASURED
    for name in names:
        if name not in MEASURED:
            raise ValueError(f"cannot bench strategy {name!r}; use some of {', '.join(MEASURED)}")
    return [name for name in names if order == arguments.order[0] or name in ROTATING]


def _measured(arguments: argparse.Namespace, num: int, order: int, name: str, device: torch.device) -> list[Row]:
    from steerers.benchmarks.speed import matching
    from steerers.benchmarks.speed.floors import peak_of

    return matching.bench_matching(
        num,
        arguments.dim,
        order,
        device,
        strategies=[name],
        repeats=arguments.repeats,
        with_textbook=not arguments.no_textbook,
        precision=arguments.precision,
        kernels=arguments.kernels,
        peak=peak_of(environment(device)["device"], arguments.precision, arguments.peak_tflops),
        matching=arguments.matching,
    )


def _how(arguments: argparse.Namespace, device: torch.device) -> dict[str, str]:
    """What matters on a GPU alone, or was asked for."""
    if device.type == "cpu" and arguments.kernels == "auto":
        return {}
    return {"precision": arguments.precision, "kernels": arguments.kernels}


def _as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "speedup": row.speedup, "over_floor": row.over_floor}


def _table(rows: list[Row]) -> str:
    floors = any(row.floor is not None for row in rows)
    head = f"{'strategy':<21} {'steerer':<7} {'ms':>9} {'textbook':>9} {'ratio':>6} {'extra MB':>9} {'textbook':>9}"
    head += f" {'floor ms':>9} {'over':>6}  same" if floors else "  same"
    return "\n".join([head, *(_line(row, floors) for row in rows)])


def _line(row: Row, floors: bool) -> str:
    digits = 3 if floors else 1  # a GPU's milliseconds are fractions
    line = f"{row.strategy:<21} {row.steerer:<7} {1e3 * row.cost.seconds:>9.{digits}f} "
    same = row.note or "-"
    if row.textbook is None or row.speedup is None or row.common is None:
        line += f"{'-':>9} {'-':>6} {row.cost.extra_bytes / 1e6:>9.1f} {'-':>9}"
    else:
        line += f"{1e3 * row.textbook.seconds:>9.1f} {row.speedup:>5.1f}x {row.cost.extra_bytes / 1e6:>9.1f} "
        line += f"{row.textbook.extra_bytes / 1e6:>9.1f}"
        same = f"{100 * row.common:.2f} % of {row.matches}"
    if floors and row.floor is not None and row.over_floor is not None:
        line += f" {1e3 * row.floor.seconds:>9.3f} {row.over_floor:>5.1f}x"
    return f"{line}  {same}"
