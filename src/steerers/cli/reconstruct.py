"""``steerers reconstruct PHOTOS -o OUT``: from a folder of photographs, in any orientation, to a COLMAP model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from steerers._choices import MAX_ERROR, MAX_REFINED_ERROR, MIN_MODEL_SIZE, Mapper
from steerers._console import Option, flag, one_of, positive
from steerers.cli import options
from steerers.cli.extract import FILES, extraction_of
from steerers.cli.options import Command
from steerers.cli.pairs import CHOICE, choice_of

MAPPERS = get_args(Mapper)
MATCHING: tuple[str, ...] = ("steerer", "strategy", "order", "angles", "threshold", "consensus")
"""Options of :func:`steerers.load` that are about matching alone."""


def run(arguments: argparse.Namespace) -> int:
    """Do what is left, and say what came of it."""
    if arguments.out.suffix.lower() in FILES:
        raise ValueError(f"a reconstruction is a folder, and {arguments.out} looks like a file")
    from steerers.collection import MappingOptions, ReconstructionOptions, reconstruct
    from steerers.refinement import RefineOptions

    mapping = MappingOptions(
        arguments.mapper, arguments.min_model_size, arguments.max_error, arguments.seed, arguments.mapper_threads
    )
    how = ReconstructionOptions(
        options.verification(arguments),
        mapping,
        arguments.cameras,
        arguments.keep_contradicted,
        not arguments.no_gps,
        RefineOptions() if arguments.refine else None,
    )
    result = reconstruct(
        arguments.photos, arguments.out, options=how, retry=arguments.retry, **matched_collection(arguments)
    )
    report = result.folder / "report.html"
    if not result.models:
        raise ValueError(f"{result.sentences[0]} (see {report})")
    for sentence in result.sentences:
        options.say(sentence)
    options.say_wrote(result.folder / "sparse", report)
    return 0


def matched_collection(arguments: argparse.Namespace) -> dict[str, Any]:
    """What :data:`MATCHED_COLLECTION` asks for, as :func:`steerers.collection.reconstruct` takes it."""
    from steerers.collection import Choice

    asked, told = choice_of(arguments), extraction_of(arguments)
    matching = {name: told.pop(name) for name in MATCHING if name in told}
    return {
        **told,
        "choice": Choice(**asked) if any(asked.values()) else None,
        "matching": matching,
        "device": arguments.device,
        "weights": arguments.weights or (),
        "strict": arguments.strict,
    }


MATCHED_COLLECTION = (
    *options.MODEL,
    options.STEERER,
    *options.STRATEGY,
    options.CONSENSUS,
    *options.IMAGES,
    *options.COMPUTING,
    flag("--float32", "keep descriptions as float32, in twice the room (default: float16)"),
    *CHOICE,
    *options.VERIFICATION,
    flag("--strict", "end with an error if a photograph cannot be read"),
)
"""How the photographs of a folder are described, paired, matched and verified."""
COMMAND = Command(
    description="Reconstruct a folder of photographs, in any orientation: extract features, choose pairs, match, "
    "verify, leave out pairs whose rotations contradict their loops, map with COLMAP, align to GPS. OUT/sparse/0 "
    "is the largest model, OUT/report.html tells how it went. Interrupted, it goes on where it was. Needs "
    "steerers[colmap].",
    example="""\
  steerers reconstruct photos -o out
  steerers reconstruct photos -o out --num-keypoints 4096 --mapper global --device cuda
  steerers reconstruct photos -o out --sequential 10 --loop --cameras one --refine
""",
    options=(
        Option("photos", "a folder of photographs", Path, "PHOTOS"),
        Option("-o --out", "a folder", Path, "OUT", required=True),
        *MATCHED_COLLECTION,
        options.REFINE_TRACKS,
        options.CAMERAS,
        Option(
            "--mapper", "incremental or global (default: %(default)s)", one_of("mapper", MAPPERS), "NAME", MAPPERS[0]
        ),
        Option(
            "--min-model-size", "photographs of a model, at least (default: %(default)s)", positive, "N", MIN_MODEL_SIZE
        ),
        Option(
            "--max-error",
            f"largest reprojection error of the incremental mapper, in pixels of the shrunk image (default: "
            f"{MAX_ERROR:g}, or with --refine {MAX_REFINED_ERROR:g} of the larger image that they were registered in)",
            options.above_zero,
            "PX",
        ),
        flag("--no-gps", "do not align the model to GPS positions"),
        Option("--seed", "of the mapper (default: %(default)s)", int, "N", 0),
        Option(
            "--mapper-threads",
            "more are faster, and models then differ a little from run to run (default: %(default)s)",
            positive,
            "N",
            1,
        ),
        flag("--retry", "try photographs again that could not be read"),
    ),
    run=run,
)
