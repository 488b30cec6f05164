"""``steerers mosaic PHOTOS -o OUT``: one picture of many photographs of a flat scene."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from steerers._console import Option, flag
from steerers.cli import options
from steerers.cli.align import PICTURE_SIDE, TIFFS
from steerers.cli.options import Command
from steerers.cli.reconstruct import MATCHED_COLLECTION, matched_collection


def run(arguments: argparse.Namespace) -> int:
    """Do what is left, write, report."""
    outputs = (arguments.out, arguments.json, arguments.picture)
    for path in outputs:
        options.check_output(path, picture=path is not None and path == arguments.picture)
    if arguments.out.suffix.lower() not in TIFFS:
        raise ValueError(f"cannot write {arguments.out}: its ending must be {' or '.join(TIFFS)}")
    options.check_distinct(outputs, ())
    from steerers.maps import MosaicOptions, mosaic

    how = MosaicOptions(
        verification=options.verification(arguments),
        scale=arguments.scale,
        gps=not arguments.no_gps,
        keep_contradicted=arguments.keep_contradicted,
    )
    made = mosaic(arguments.photos, arguments.out, arguments.folder, options=how, **matched_collection(arguments))
    if arguments.json is not None:
        options.write(arguments.json, json.dumps(made.numbers, indent=1) + "\n")
    if arguments.picture is not None:
        from steerers.maps.mosaics import draw_mosaic

        options.save(draw_mosaic(made, PICTURE_SIDE), arguments.picture)
    for sentence in made.sentences:
        options.say(sentence)
    options.say_wrote(*outputs)
    return 0


COMMAND = Command(
    description="Make one picture of a folder of photographs of a flat scene, in any orientation: drone strips, "
    "whiteboards, microscope fields. OUT is a GeoTIFF, in the UTM zone where photographs have GPS positions. "
    "Interrupted, it goes on where it was. Exit code 3 if the scene is not flat, or the photographs do not overlap. "
    "Needs steerers[maps].",
    example="""\
  steerers mosaic flight -o flight.tif --picture layout.jpg
  steerers mosaic flight -o flight.tif --scale 0.5 --json flight.json --device cuda
  steerers mosaic fields -o slide.tif --sequential 5 --no-gps
""",
    options=(
        Option("photos", "a folder of photographs", Path, "PHOTOS"),
        Option("-o --out", "the mosaic, a GeoTIFF", Path, "OUT", required=True),
        Option("--folder", "of the collection with features and matches (default: beside OUT)", Path, "DIR"),
        Option(
            "--scale", "pixels of OUT for one of the photographs (default: %(default)s)", options.above_zero, "S", 1.0
        ),
        flag("--no-gps", "do not lay it on the Earth"),
        Option("--picture", "write the mosaic, small, with the outlines of the photographs", Path, "FILE"),
        Option("--json", "write the numbers of the report as JSON; - is standard output", Path, "FILE"),
        *MATCHED_COLLECTION,
    ),
    run=run,
)
