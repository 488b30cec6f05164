"""``steerers bench``: timings beside the plain form, in the same run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.models.base import NUM_KEYPOINTS
from steerers.pipeline import MAX_SIZE
from steerers.viz.progress import progress

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.speed.extraction import ExtractionRow, PipelineRow
    from steerers.benchmarks.speed.matching import MatchingRow
    from steerers.models.zoo import Model

EXAMPLES = {
    "match": """\
  steerers bench match --num 5000 --dim 256 --order 8
  steerers bench match --num 20000 --no-textbook --strategies dual-softmax max-similarity --json bench.json
  steerers bench match --device cuda --num 5000 10000 20000 --order 4 8 --repeats 20
""",
    "describe": """\
  steerers bench describe --models dedode-b,compact --random-weights --device cuda --precision float16
  steerers bench describe --models compact --size 1024x768 --num-keypoints 2048 --repeats 3
""",
    "pipeline": """\
  steerers bench pipeline --data photos --device cuda --precision float16 --batch 8
  steerers bench pipeline a.jpg b.jpg c.jpg --model upright-sift
""",
}


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    first = [example.splitlines()[0] for example in EXAMPLES.values()]
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="Measure speed and memory.",
        epilog="\n".join(["example:", *first]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subjects = parser.add_subparsers(title="what to measure", metavar="SUBJECT", required=True)
    _add_match(subjects)
    _add_describe(subjects)
    _add_pipeline(subjects)


def _add_subject(
    subjects: Any, name: str, run: Callable[[argparse.Namespace], int], what: str, description: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subjects.add_parser(
        name,
        help=what,
        description=description,
        epilog=f"example:\n{EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_measuring_options(parser: argparse.ArgumentParser, *, repeats: int) -> None:
    """How often and where it runs, and where the table goes."""
    parser.add_argument(
        "--repeats", type=options.positive, default=repeats, metavar="N", help="the median counts (%(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")


def _environment(device: torch.device) -> dict[str, Any]:
    """What a timing depends on."""
    import torch

    from steerers._devices import device_name

    return {"device": device_name(device), "threads": torch.get_num_threads(), "torch": torch.__version__}


def _show(settings: Mapping[str, Any], table: str) -> None:
    """What was measured, and where, in one line, and the table below it."""
    print(", ".join(f"{key} {value}" for key, value in settings.items()))
    print(table)


def _write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report, if there is a path, as JSON without NaN."""
    from steerers.benchmarks.report import dump, write_text

    if path is not None:
        write_text(path, dump(report))


# Matching strategies --------------------------------------------------------------------------------------------------


def _add_match(subjects: Any) -> None:
    parser = _add_subject(
        subjects,
        "match",
        run_match,
        "matching strategies against the textbook form",
        "Time and peak extra memory of every matching strategy beside the textbook form (dense matrices, "
        "one product per rotation) in the same run, on random descriptions of which some correspond. Where the peak of "
        "the device is known, also how many times the floor: all products twice, at that peak.",
    )
    parser.add_argument(
        "--num", type=options.positive, nargs="+", default=[5000], metavar="N", help="descriptions an image (5000)"
    )
    parser.add_argument("--dim", type=options.positive, default=256, metavar="D", help="their length (256)")
    parser.add_argument(
        "--order", type=options.positive, nargs="+", default=[8], metavar="N", help="rotations that are tried (8)"
    )
    parser.add_argument(
        "--matching",
        type=options.fraction,
        default=0.5,
        metavar="FRACTION",
        help="of descriptions that correspond (0.5)",
    )
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="default: all but tta")
    parser.add_argument(
        "--no-textbook", action="store_true", help="leave the textbook form out (it needs N x M memory)"
    )
    parser.add_argument(
        "--precision", choices=["default", "exact"], default="default", help="of the fused kernels (%(default)s)"
    )
    parser.add_argument(
        "--kernels", choices=["auto", "tiled", "fused"], default="auto", help="auto: fused on a GPU, else tiled"
    )
    parser.add_argument(
        "--peak-tflops",
        type=options.above_zero("a number above 0"),
        metavar="X",
        help="of the device, for the floor (known for H100 and H200)",
    )
    _add_measuring_options(parser, repeats=5)


def run_match(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    from steerers._devices import parse_device

    device = parse_device(arguments.device)
    told = [(num, order) for num in arguments.num for order in arguments.order]
    work = [(num, order, name) for num, order in told for name in _names(arguments, order)]
    rows: dict[tuple[int, int], list[MatchingRow]] = {}
    for num, order, name in progress(work, "measuring"):
        rows.setdefault((num, order), []).extend(_measured(arguments, num, order, name, device))
    reports = []
    for (num, order), measured in rows.items():
        sizes = {"num": num, "dim": arguments.dim, "order": order, "matching": arguments.matching}
        settings = {**sizes, **_how(arguments, device), **_environment(device)}
        reports.append({**settings, "rows": [_as_json(row) for row in measured]})
        if len(reports) > 1:
            print()
        _show(settings, _matching_table(measured))
    _write_json(arguments.json, reports[0] if len(reports) == 1 else {"runs": reports})
    return 0


def _names(arguments: argparse.Namespace, order: int) -> list[str]:
    """Strategies to measure: those that try no rotations only with the first order."""
    from steerers.benchmarks.speed.matching import MEASURED
    from steerers.benchmarks.speed.subjects import ROTATING

    names = arguments.strategies or MEASURED
    for name in names:
        if name not in MEASURED:
            raise ValueError(f"cannot bench strategy {name!r}; use some of {', '.join(MEASURED)}")
    return [name for name in names if order == arguments.order[0] or name in ROTATING]


def _measured(
    arguments: argparse.Namespace, num: int, order: int, name: str, device: torch.device
) -> list[MatchingRow]:
    from steerers.benchmarks.speed import matching

    settings = matching.MatchingSettings(
        num,
        arguments.dim,
        order,
        matching=arguments.matching,
        repeats=arguments.repeats,
        with_textbook=not arguments.no_textbook,
        precision=arguments.precision,
        kernels=arguments.kernels,
        peak=matching.peak_of(_environment(device)["device"], arguments.precision, arguments.peak_tflops),
    )
    return matching.bench_matching(settings, device, [name])


def _how(arguments: argparse.Namespace, device: torch.device) -> dict[str, str]:
    """What matters on a GPU alone, or was asked for."""
    if device.type == "cpu" and arguments.kernels == "auto":
        return {}
    return {"precision": arguments.precision, "kernels": arguments.kernels}


def _as_json(row: MatchingRow) -> dict[str, Any]:
    return {**asdict(row), "speedup": row.speedup, "over_floor": row.over_floor}


def _matching_table(rows: list[MatchingRow]) -> str:
    floors = any(row.floor is not None for row in rows)
    head = f"{'strategy':<21} {'steerer':<7} {'ms':>9} {'textbook':>9} {'ratio':>6} {'extra MB':>9} {'textbook':>9}"
    head += f" {'floor ms':>9} {'over':>6}  same" if floors else "  same"
    return "\n".join([head, *(_matching_line(row, floors) for row in rows)])


def _matching_line(row: MatchingRow, floors: bool) -> str:
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


# Networks -------------------------------------------------------------------------------------------------------------


def _add_describe(subjects: Any) -> None:
    parser = _add_subject(
        subjects,
        "describe",
        run_describe,
        "networks in their fast form against the plain module",
        "Time and peak extra memory of detection and description of one image of noise: the plain module "
        "in float32 and under autocast, and its fast form, in the same run; and how far they find the same.",
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
    _add_measuring_options(parser, repeats=10)


def run_describe(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    from steerers._devices import parse_device
    from steerers.benchmarks.speed.extraction import ExtractionSettings, bench_description
    from steerers.models.zoo import PRECISIONS

    device = parse_device(arguments.device)
    if arguments.precision not in PRECISIONS:
        raise ValueError(f"unknown precision {arguments.precision!r}; use {', '.join(PRECISIONS)}")
    width, height = arguments.size
    settings = ExtractionSettings(width, height, arguments.num_keypoints, arguments.repeats)
    models = _load(arguments)
    rows = [
        row
        for model in progress(models, "measuring")
        for row in bench_description(model, arguments.precision, device, settings)
    ]
    told = {**asdict(settings), "precision": arguments.precision, **_environment(device)}
    _show(told, _extraction_table(rows))
    _write_json(arguments.json, {**told, "rows": [{**asdict(row), "speedup": row.speedup} for row in rows]})
    return 0


def _load(arguments: argparse.Namespace) -> list[Model]:
    from steerers.benchmarks.speed.subjects import build_untrained
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


def _extraction_table(rows: list[ExtractionRow]) -> str:
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


# Pipelines ------------------------------------------------------------------------------------------------------------


def _add_pipeline(subjects: Any) -> None:
    from steerers.models.zoo import DEFAULT_MODEL

    parser = _add_subject(
        subjects,
        "pipeline",
        run_pipeline,
        "extracting and matching many images, one by one and together",
        "Images per second of extracting all images and matching each with the next: one by one, and in "
        "batches that are read ahead by threads; with images from disk, and with images that were read before.",
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
    _add_measuring_options(parser, repeats=3)


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    options.check_output(arguments.json)
    paths = _paths(arguments)
    from steerers.benchmarks.speed.extraction import bench_pipeline
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
    told |= _environment(matcher.device)
    _show(told, _pipeline_table(rows))
    _write_json(arguments.json, {**told, "rows": [asdict(row) for row in rows]})
    return 0


def _paths(arguments: argparse.Namespace) -> list[Path]:
    if bool(arguments.images) == (arguments.data is not None):
        raise ValueError("give images, or a folder of them with --data")
    if arguments.data is None:
        return list(arguments.images)
    from steerers.datasets.photos import find_images

    return find_images(arguments.data)


def _pipeline_table(rows: list[PipelineRow]) -> str:
    lines = [f"{'way':<24} {'seconds':>9} {'images/s':>9} {'matches':>9}"]
    for row in rows:
        matches = "-" if row.matches is None else row.matches
        lines.append(f"{row.way:<24} {row.seconds:>9.3f} {row.images_per_second:>9.1f} {matches:>9}")
    return "\n".join(lines)
