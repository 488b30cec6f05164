"""``steerers bench pipeline``: extracting and matching a folder of images."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.cli.bench_options import add_measuring_options, environment, print_setting, write_json
from steerers.models.base import NUM_KEYPOINTS
from steerers.pipeline import MAX_SIZE

if TYPE_CHECKING:
    from steerers.benchmarks.speed.pipeline import Row

EXAMPLE = """example:
  steerers bench pipeline --data photos --device cuda --precision float16 --batch 8
  steerers bench pipeline a.jpg b.jpg c.jpg --model upright-sift
"""


def add_to(subjects: Any) -> None:
    """Add the subject to the parser."""
    from steerers.models.zoo import DEFAULT_MODEL

    parser = subjects.add_parser(
        "pipeline",
        help="extracting and matching many images, one by one and together",
        description="Images per second of extracting all images and matching each with the next: one by one, and in "
        "batches that are read ahead by threads; with images from disk, and with images that were read before.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="at least two, or none with --data")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder of images, instead")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="see `steerers models` (default: %(default)s)")
    options.add_weights_option(parser)
    parser.add_argument(
        "--num-keypoints", type=options.positive, default=NUM_KEYPOINTS, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--max-size", type=options.size_limit, default=MAX_SIZE, metavar="PX", help="default: %(default)s"
    )
    parser.add_argument("--precision", default="float32", help="float32, bfloat16 or float16 (default: %(default)s)")
    parser.add_argument("--batch", type=options.positive, metavar="N", help="default: 4 on a GPU, else 1")
    add_measuring_options(parser, repeats=3)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    paths = _paths(arguments)
    from steerers.benchmarks.speed.pipeline import bench_pipeline
    from steerers.pipeline import load

    matcher = load(
        arguments.model,
        weights=arguments.weights or (),
        num_keypoints=arguments.num_keypoints,
        max_size=arguments.max_size,
        device=arguments.device,
        precision=arguments.precision,
    )
    rows = bench_pipeline(matcher, paths, arguments.batch, arguments.repeats)
    told: dict[str, Any] = {"model": arguments.model, "images": len(paths), "num_keypoints": arguments.num_keypoints}
    told |= {
        "max_size": arguments.max_size,
        "batch": matcher.batch_size(arguments.batch),
        "precision": arguments.precision,
    }
    told |= environment(matcher.device)
    print_setting(told)
    print(_table(rows))
    write_json(arguments.json, {**told, "rows": [asdict(row) for row in rows]})
    return 0


def _paths(arguments: argparse.Namespace) -> list[Path]:
    if bool(arguments.images) == (arguments.data is not None):
        raise ValueError("give images, or a folder of them with --data")
    if arguments.data is None:
        return list(arguments.images)
    from steerers.datasets.photos import find_images

    return find_images(arguments.data)


def _table(rows: list[Row]) -> str:
    lines = [f"{'way':<24} {'seconds':>9} {'images/s':>9} {'matches':>9}"]
    for row in rows:
        matches = "-" if row.matches is None else row.matches
        lines.append(f"{row.way:<24} {row.seconds:>9.3f} {row.images_per_second:>9.1f} {matches:>9}")
    return "\n".join(lines)
