"""``steerers bench describe``: networks in their fast form beside the plain module."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.cli.bench_options import add_measuring_options, environment, print_setting, write_json
from steerers.viz.progress import progress

if TYPE_CHECKING:
    from steerers.benchmarks.speed.describe import Row
    from steerers.models.zoo import Model

EXAMPLE = """example:
  steerers bench describe --models dedode-b,compact --random-weights --device cuda --precision float16
  steerers bench describe --models compact --size 1024x768 --num-keypoints 2048 --repeats 3
"""


def add_to(subjects: Any) -> None:
    """Add the subject to the parser."""
    parser = subjects.add_parser(
        "describe",
        help="networks in their fast form against the plain module",
        description="Time and peak extra memory of detection and description of one image of noise: the plain module "
        "in float32 and under autocast, and its fast form, in the same run; and how far they find the same.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="compact", metavar="LIST", help="with commas between (%(default)s)")
    options.add_weights_option(parser)
    parser.add_argument("--random-weights", action="store_true", help="models without their weights")
    parser.add_argument(
        "--size",
        type=options.parse_size,
        default=(784, 784),
        metavar="WxH",
        help="of the image, pixels (default: 784x784)",
    )
    parser.add_argument("--num-keypoints", type=options.positive, default=5000, metavar="N", help="default: 5000")
    parser.add_argument("--precision", default="float16", help="float16, bfloat16, or float32 alone (%(default)s)")
    add_measuring_options(parser, repeats=10)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    from steerers._devices import parse_device
    from steerers.benchmarks.speed.describe import Setting, bench_description
    from steerers.models.zoo import PRECISIONS

    device = parse_device(arguments.device)
    if arguments.precision not in PRECISIONS:
        raise ValueError(f"unknown precision {arguments.precision!r}; use {', '.join(PRECISIONS)}")
    width, height = arguments.size
    setting = Setting(width, height, arguments.num_keypoints, arguments.repeats)
    models = _load(arguments)
    rows = [
        row
        for model in progress(models, "measuring")
        for row in bench_description(model, arguments.precision, device, setting)
    ]
    told = {**asdict(setting), "precision": arguments.precision, **environment(device)}
    print_setting(told)
    print(_table(rows))
    write_json(arguments.json, {**told, "rows": [{**asdict(row), "speedup": row.speedup} for row in rows]})
    return 0


def _load(arguments: argparse.Namespace) -> list[Model]:
    from steerers.benchmarks.speed.untrained import build_untrained
    from steerers.models import zoo

    names = [name for name in arguments.models.replace(" ", "").split(",") if name]
    if not names:
        raise ValueError("--models names no model")
    if arguments.random_weights:
        if arguments.weights:
            raise ValueError("--weights and --random-weights exclude each other")
        return [build_untrained(name) for name in names]
    given: list[Path] = arguments.weights or []
    if len(names) > 1 and given:
        raise ValueError("--weights goes with one model; put files of others into the cache")
    return [zoo.build(name, weights=given) for name in names]


def _table(rows: list[Row]) -> str:
    name = max(len("model"), *(len(row.model) for row in rows))
    form = max(len("form"), *(len(row.form) for row in rows))
    lines = [
        f"{'model':<{name}} {'step':<9} {'form':<{form}} {'ms':>9} {'ratio':>7} {'extra MiB':>10} {'same kpts':>10} "
        f"{'max diff':>9} {'min cos':>8}"
    ]
    for row in rows:
        same = "-" if row.same_keypoints is None else f"{100 * row.same_keypoints:.1f} %"
        difference = "-" if row.largest_difference is None else f"{row.largest_difference:.1e}"
        cosine = "-" if row.least_cosine is None else f"{row.least_cosine:.5f}"
        lines.append(
            f"{row.model:<{name}} {row.step:<9} {row.form:<{form}} {1e3 * row.cost.seconds:>9.2f} {row.speedup:>6.1f}x "
            f"{row.cost.extra_bytes / 2**20:>10.1f} {same:>10} {difference:>9} {cosine:>8}"
        )
    return "\n".join(lines)
