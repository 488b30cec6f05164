"""``steerers bench``: timings beside the plain form, in the same run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._choices import DEFAULT_MODEL, MAX_SIZE, NUM_KEYPOINTS
from steerers._console import Option, flag, positive, precision, progress
from steerers._devices import device_name, parse_device
from steerers.benchmarks.report import dump
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    import torch

    from steerers.benchmarks.speed.collection import CollectionRow
    from steerers.benchmarks.speed.extraction import ExtractionRow, PipelineRow
    from steerers.benchmarks.speed.matching import MatchingRow
    from steerers.benchmarks.speed.refinement import RefinementRow
    from steerers.models.zoo import Model


def _measuring_options(repeats: int) -> tuple[Option, ...]:
    """How often and where it runs, and where the table goes."""
    return (
        Option("--repeats", "the median counts (%(default)s)", positive, "N", repeats),
        Option("--device", "cpu, cuda, cuda:1 (default: %(default)s)", default="cpu"),
        Option("--load", "so many processes beside that keep a core busy each (default: none)", positive, "N", 0),
        Option("--json", "write the table as JSON; - is standard output", Path, "FILE"),
    )


def _environment(device: torch.device, load: int) -> dict[str, Any]:
    """What a timing depends on."""
    import torch

    beside = {"busy processes beside": load} if load else {}
    return {"device": device_name(device), "threads": torch.get_num_threads(), **beside, "torch": torch.__version__}


def _show(settings: Mapping[str, Any], table: str) -> None:
    """What was measured, and where, in one line, and the table below it."""
    options.say(", ".join(f"{key} {value}" for key, value in settings.items()))
    options.say(table)


def _write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        options.write(path, dump(report))


# Matching strategies --------------------------------------------------------------------------------------------------


def run_match(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    from steerers.benchmarks.speed import busy_neighbours, matching

    options.check_output(arguments.json)
    device = parse_device(arguments.device)
    sizes = [(num, order) for num in arguments.num for order in arguments.order]
    work = [(num, order, name) for num, order in sizes for name in _names(arguments, order)]
    rows: dict[tuple[int, int], list[MatchingRow]] = {}
    for num, order, name in progress(work, "measuring"):
        settings = matching.MatchingSettings(
            num,
            arguments.dim,
            order,
            matching=arguments.matching,
            repeats=arguments.repeats,
            with_textbook=not arguments.no_textbook,
            precision=arguments.precision,
            kernels=arguments.kernels,
            peak=matching.peak_of(device_name(device), arguments.precision, arguments.peak_tflops),
        )
        with busy_neighbours(arguments.load):
            rows.setdefault((num, order), []).append(matching.bench_matching(name, settings, device))
    reports: list[dict[str, Any]] = []
    for (num, order), measured in rows.items():
        told = {"num": num, "dim": arguments.dim, "order": order, "matching": arguments.matching}
        if device.type != "cpu" or arguments.kernels != "auto":
            told |= {"precision": arguments.precision, "kernels": arguments.kernels}
        told |= _environment(device, arguments.load)
        if reports:
            options.say("")
        _show(told, _matching_table(measured))
        found = [{**asdict(row), "speedup": row.speedup, "over_floor": row.over_floor} for row in measured]
        reports.append({**told, "rows": found})
    _write_json(arguments.json, reports[0] if len(reports) == 1 else {"runs": reports})
    return 0


def _names(arguments: argparse.Namespace, order: int) -> list[str]:
    """Strategies to measure: those that try no rotations only with the first order."""
    from steerers.benchmarks.speed import matching
    from steerers.benchmarks.speed.subjects import ROTATING

    names = arguments.strategies or matching.MEASURED
    for name in names:
        if name not in matching.MEASURED:
            raise ValueError(f"cannot bench strategy {name!r}; use some of {', '.join(matching.MEASURED)}")
    return [name for name in names if order == arguments.order[0] or name in ROTATING]


def _matching_table(rows: Sequence[MatchingRow]) -> str:
    floors = any(row.floor is not None for row in rows)
    head = ["strategy", "steerer", "ms", "textbook", "ratio", "extra MB", "textbook"]
    head += ["floor ms", "over", "same"] if floors else ["same"]
    return options.table([head, *(_matching_cells(row, floors) for row in rows)], f"<<{'>' * (len(head) - 3)}<")


def _matching_cells(row: MatchingRow, floors: bool) -> list[str]:
    digits = 3 if floors else 1  # a GPU's milliseconds are fractions
    seconds, ratio, extra, same = "-", "-", "-", row.note or "-"
    if row.textbook is not None and row.common is not None:
        seconds, ratio = f"{1e3 * row.textbook.seconds:.1f}", f"{row.speedup:.1f}x"
        extra, same = f"{row.textbook.extra_bytes / 1e6:.1f}", f"{100 * row.common:.2f} % of {row.matches}"
    cells = [row.strategy, row.steerer, f"{1e3 * row.cost.seconds:.{digits}f}", seconds, ratio]
    cells += [f"{row.cost.extra_bytes / 1e6:.1f}", extra]
    if floors:
        cells += [f"{1e3 * row.floor.seconds:.3f}", f"{row.over_floor:.1f}x"] if row.floor is not None else ["-", "-"]
    return [*cells, same]


# Networks -------------------------------------------------------------------------------------------------------------


def run_describe(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    from steerers.benchmarks.speed import busy_neighbours
    from steerers.benchmarks.speed.extraction import ExtractionSettings, bench_description

    options.check_output(arguments.json)
    device = parse_device(arguments.device)
    width, height = arguments.size
    settings = ExtractionSettings(width, height, arguments.num_keypoints, arguments.repeats)
    models = _load(arguments)
    with busy_neighbours(arguments.load):
        rows = [
            row
            for model in progress(models, "measuring")
            for row in bench_description(model, arguments.precision, device, settings)
        ]
    told = {**asdict(settings), "precision": arguments.precision, **_environment(device, arguments.load)}
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


def _extraction_table(rows: Sequence[ExtractionRow]) -> str:
    head = ["model", "step", "form", "ms", "ratio", "extra MiB", "same kpts", "max diff", "min cos"]
    cells = [
        [
            row.model,
            row.step,
            row.form,
            f"{1e3 * row.cost.seconds:.2f}",
            f"{row.speedup:.1f}x",
            f"{row.cost.extra_bytes / 2**20:.1f}",
            "-" if row.same_keypoints is None else f"{100 * row.same_keypoints:.1f} %",
            "-" if row.largest_difference is None else f"{row.largest_difference:.1e}",
            "-" if row.least_cosine is None else f"{row.least_cosine:.5f}",
        ]
        for row in rows
    ]
    return options.table([head, *cells], "<<<>>>>>>")


# Pipelines ------------------------------------------------------------------------------------------------------------


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    from steerers.benchmarks.speed import busy_neighbours
    from steerers.benchmarks.speed.extraction import bench_pipeline
    from steerers.datasets.photos import find_images
    from steerers.pipeline import load

    options.check_output(arguments.json)
    if bool(arguments.images) == (arguments.data is not None):
        raise ValueError("give images, or a folder of them with --data")
    paths = list(arguments.images) if arguments.data is None else find_images(arguments.data)
    asked = {name: getattr(arguments, name) for name in ("num_keypoints", "max_size", "precision")}
    matcher = load(arguments.model, weights=arguments.weights or (), device=arguments.device, **asked)
    with busy_neighbours(arguments.load):
        rows = bench_pipeline(matcher, paths, arguments.batch, arguments.repeats)
    told = {
        "model": arguments.model,
        "images": len(paths),
        "num_keypoints": arguments.num_keypoints,
        "max_size": arguments.max_size,
        "batch": matcher.batch_size(arguments.batch),
        "precision": arguments.precision,
        **_environment(matcher.device, arguments.load),
    }
    _show(told, _pipeline_table(rows))
    _write_json(arguments.json, {**told, "rows": [asdict(row) for row in rows]})
    return 0


def _pipeline_table(rows: Sequence[PipelineRow]) -> str:
    cells = [
        [
            row.way,
            f"{row.seconds:.3f}",
            f"{row.images_per_second:.1f}",
            "-" if row.matches is None else f"{row.matches}",
        ]
        for row in rows
    ]
    return options.table([["way", "seconds", "images/s", "matches"], *cells], "<>>>")


# Refinement -----------------------------------------------------------------------------------------------------------


def run_refine(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    from steerers.benchmarks.speed import busy_neighbours
    from steerers.benchmarks.speed.refinement import RefinementSettings, bench_refinement

    options.check_output(arguments.json)
    device = parse_device(arguments.device)
    width, height = arguments.size
    settings = RefinementSettings(width, height, arguments.num, arguments.repeats)
    with busy_neighbours(arguments.load):
        rows = bench_refinement(device, settings)
    told = {**asdict(settings), **_environment(device, arguments.load)}
    _show(told, _refinement_table(rows))
    _write_json(arguments.json, {**told, "rows": [{**asdict(row), "speedup": row.speedup} for row in rows]})
    return 0


def _refinement_table(rows: Sequence[RefinementRow]) -> str:
    head = ["form", "images", "ms", "ratio", "extra MiB", "px before", "px after", "same", "px apart", "moved alike"]
    cells = [
        [
            row.form,
            row.images,
            f"{1e3 * row.cost.seconds:.2f}",
            f"{row.speedup:.1f}x",
            f"{row.cost.extra_bytes / 2**20:.1f}",
            f"{row.before:.3f}",
            f"{row.after:.3f}",
            f"{100 * row.same:.1f} %",
            f"{row.difference:.4f}",
            f"{100 * row.decided:.1f} %",
        ]
        for row in rows
    ]
    return options.table([head, *cells], "<<>>>>>>>>")


# Collections ----------------------------------------------------------------------------------------------------------


def run_collection(arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    from steerers.benchmarks.speed import busy_neighbours
    from steerers.benchmarks.speed.collection import CollectionSettings, bench_collection, growth

    options.check_output(arguments.json)
    device = parse_device(arguments.device)
    asked = {name: getattr(arguments, name) for name in ("model", "num_keypoints", "max_size", "precision")}
    told = {**asked, "neighbours": arguments.neighbours, "batch": arguments.batch}
    rows: list[CollectionRow] = []
    with busy_neighbours(arguments.load):
        for images in progress(sorted(set(arguments.images)), "measuring"):
            data = None if arguments.data is None else str(arguments.data)
            shared = {"data": data, "size": arguments.size, "device": arguments.device, "batch": arguments.batch}
            rows += bench_collection(CollectionSettings(images, arguments.neighbours, **shared, options=asked))
    told |= _environment(device, arguments.load)
    _show(told, _collection_table(rows))
    steps = {row.step: growth(rows, row.step) for row in rows}
    for step, more in steps.items():
        if more is not None:
            options.say(f"{step}: {more / 1e3:+.1f} kB of memory for every photograph more")
    report = [{**asdict(row), "per_second": row.per_second} for row in rows]
    _write_json(arguments.json, {**told, "rows": report, "growth_bytes": steps})
    return 0


def _collection_table(rows: Sequence[CollectionRow]) -> str:
    head = ["step", "photographs", "of", "seconds", "a second", "kB each", "memory MB", "device MB"]
    cells = [
        [
            row.step,
            f"{row.images}",
            f"{row.items} {'pairs' if row.step == 'match' else 'photographs'}",
            f"{row.seconds:.2f}",
            f"{row.per_second:.2f}",
            f"{row.stored_bytes / row.items / 1e3:.1f}" if row.stored_bytes else "-",
            f"{row.memory_bytes / 1e6:.0f}",
            f"{row.device_bytes / 1e6:.0f}" if row.device_bytes else "-",
        ]
        for row in rows
    ]
    return options.table([head, *cells], "<><>>>>>")


# The command ----------------------------------------------------------------------------------------------------------


MATCH = Command(
    name="match",
    help="matching strategies against the textbook form",
    description="Time and peak extra memory of every matching strategy beside the textbook form (dense matrices, "
    "one product per rotation) in the same run, on random descriptions of which some correspond. Where the peak of "
    "the device is known, also how many times the floor: all products twice, at that peak.",
    example="""\
  steerers bench match --num 5000 --dim 256 --order 8
  steerers bench match --num 20000 --no-textbook --strategies dual-softmax max-similarity --json bench.json
  steerers bench match --device cuda --num 5000 10000 20000 --order 4 8 --repeats 20
""",
    options=(
        Option("--num", "descriptions an image (5000)", positive, "N", [5000], nargs="+"),
        Option("--dim", "their length (256)", positive, "D", 256),
        Option("--order", "rotations that are tried (8)", positive, "N", [8], nargs="+"),
        Option("--matching", "of descriptions that correspond (0.5)", options.fraction, "FRACTION", 0.5),
        Option("--strategies", "default: all but tta", metavar="NAME", nargs="+"),
        flag("--no-textbook", "leave the textbook form out (it needs N x M memory)"),
        Option("--precision", "of the fused kernels (%(default)s)", default="default", choices=["default", "exact"]),
        Option("--kernels", "auto: fused on a GPU, else tiled", default="auto", choices=["auto", "tiled", "fused"]),
        Option("--peak-tflops", "of the device, for the floor (known for H100 and H200)", options.above_zero, "X"),
        *_measuring_options(5),
    ),
    run=run_match,
)
DESCRIBE = Command(
    name="describe",
    help="networks in their fast form against the plain module",
    description="Time and peak extra memory of detection and description of one image of noise: the plain module "
    "in float32 and under autocast, and its fast form, in the same run; and how far they find the same.",
    example="""\
  steerers bench describe --models dedode-b,compact --random-weights --device cuda --precision float16
  steerers bench describe --models compact --size 1024x768 --num-keypoints 2048 --repeats 3
""",
    options=(
        Option("--models", "with commas between (%(default)s)", metavar="LIST", default="compact"),
        options.WEIGHTS,
        flag("--random-weights", "models without their weights"),
        Option("--size", "of the image, pixels (default: 784x784)", options.parse_size, "WxH", (784, 784)),
        options.num_keypoints(5000),
        precision("float16"),
        *_measuring_options(10),
    ),
    run=run_describe,
)
PIPELINE = Command(
    name="pipeline",
    help="extracting and matching many images, one by one and together",
    description="Images per second of extracting all images and matching each with the next: one by one, and in "
    "batches that are read ahead by threads; with images from disk, and with images that were read before.",
    example="""\
  steerers bench pipeline --data photos --device cuda --precision float16 --batch 8
  steerers bench pipeline a.jpg b.jpg c.jpg --model upright-sift
""",
    options=(
        Option("images", "at least two, or none with --data", Path, "IMAGE", nargs="*"),
        Option("--data", "a folder of images, instead", Path, "DIR"),
        Option("--model", "see `steerers models` (default: %(default)s)", default=DEFAULT_MODEL),
        options.WEIGHTS,
        options.num_keypoints(NUM_KEYPOINTS),
        Option("--max-size", "default: %(default)s", options.size_limit, "PX", MAX_SIZE),
        precision(),
        Option("--batch", "default: 4 on a GPU, else 1", positive, "N"),
        *_measuring_options(3),
    ),
    run=run_pipeline,
)
REFINE = Command(
    name="refine",
    help="exact places of matches: all at once, and by one kernel, against one resolution after the other",
    description="Time and peak extra memory of refining the matches of two views of noise, rotated by 30 degrees and "
    "in perspective, so that their scales differ: by resolutions, all together and, on a GPU, by one kernel, with "
    "images made ready and not, in the same run; and how far the places of each form are from the first one's.",
    example="""\
  steerers bench refine --num 1000
  steerers bench refine --device cuda --repeats 30
""",
    options=(
        Option("--num", "matches (%(default)s)", positive, "N", 1000),
        Option("--size", "of the images, pixels (default: 1024x768)", options.parse_size, "WxH", (1024, 768)),
        *_measuring_options(10),
    ),
    run=run_refine,
)
COLLECTION = Command(
    name="collection",
    help="extracting, comparing and matching a collection",
    description="Photographs and pairs a second, bytes on disk, and memory against the number of photographs: of "
    "`steerers extract`, of `pairs --similar`, and of `match-pairs` of each photograph with those that follow it. "
    "Every step runs in a process of its own, in a temporary folder.",
    example="""\
  steerers bench collection --images 32 128
  steerers bench collection --images 1000 4000 --data photos --device cuda --precision float16 --batch 16
""",
    options=(
        Option("--images", "how many photographs (default: 16 64)", positive, "N", [16, 64], nargs="+"),
        Option("--neighbours", "that each is matched with (%(default)s)", positive, "N", 10),
        Option("--data", "a folder of photographs, taken again if they are fewer (default: noise)", Path, "DIR"),
        Option("--size", "of the noise, pixels (default: 1024x768)", options.parse_size, "WxH", (1024, 768)),
        Option("--model", "see `steerers models` (default: %(default)s)", default=DEFAULT_MODEL),
        options.num_keypoints(NUM_KEYPOINTS),
        Option("--max-size", "default: %(default)s", options.size_limit, "PX", MAX_SIZE),
        precision(),
        Option("--batch", "images, and pairs, at once (default: what suits the device)", positive, "N"),
        *_measuring_options(1)[1:],
    ),
    run=run_collection,
)
SUBJECTS = (MATCH, DESCRIBE, PIPELINE, REFINE, COLLECTION)
COMMAND = Command(
    description="Measure speed and memory.",
    example="\n".join(subject.example.splitlines()[0] for subject in SUBJECTS),
    title="what to measure",
    metavar="SUBJECT",
    commands=SUBJECTS,
)
