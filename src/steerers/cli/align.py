"""``steerers align FIXED MOVING -o OUT``: lay one image over another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from steerers._choices import Kind, Mirror, Resampling
from steerers._console import Option, flag, one_of
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.maps import Alignment

TIFFS = (".tif", ".tiff")
PICTURE_SIDE = 1200


def run(arguments: argparse.Namespace) -> int:
    """Align, warp, write the transform, report."""
    _check(arguments)
    from steerers.maps import AlignOptions, align
    from steerers.pipeline import load

    how = AlignOptions(
        transform=arguments.transform,
        mirror=arguments.mirror,
        refine=not arguments.no_refine,
        local=arguments.local,
        threshold=arguments.max_distance,
        tiles=arguments.tiles,
        seed=arguments.seed,
    )
    matcher = load(arguments.model, **options.matcher_options(arguments))
    found = align(
        arguments.fixed,
        arguments.moving,
        arguments.out,
        matcher=matcher,
        options=how,
        resampling=arguments.resampling,
        nodata=arguments.nodata,
    )
    _write(arguments, found)
    options.say(f"{found.summary()} ({matcher.model.name}, {found.seconds:.1f} s)")
    options.say_wrote(arguments.out, arguments.json, arguments.itk, arguments.picture)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    outputs = (arguments.out, arguments.json, arguments.itk, arguments.picture)
    if not any(outputs):
        raise ValueError("say what to write: -o OUT.tif, --json, --itk or --picture")
    for path, endings in ((arguments.out, TIFFS), (arguments.itk, (".tfm", ".txt"))):
        options.check_output(path)
        if path is not None and path.suffix.lower() not in endings:
            raise ValueError(f"cannot write {path}: its ending must be {' or '.join(endings)}")
    options.check_output(arguments.json)
    options.check_output(arguments.picture, picture=True)
    options.check_distinct(outputs, (arguments.fixed, arguments.moving))


def _write(arguments: argparse.Namespace, found: Alignment) -> None:
    if arguments.json is not None:
        told = {"fixed": str(arguments.fixed), "moving": str(arguments.moving), **found.to_dict()}
        options.write(arguments.json, found.transform.to_json(told))
    if arguments.itk is not None:
        options.write(arguments.itk, found.transform.to_itk())
    if arguments.picture is not None:
        from steerers.maps.alignment import draw_alignment

        picture = draw_alignment(arguments.fixed, arguments.moving, found.transform, PICTURE_SIDE)
        options.save(picture, arguments.picture)


COMMAND = Command(
    description="Lay a moving image over a fixed one, whatever their rotation, mirrored or not: slides, scans, "
    "satellite images of two dates, infra-red beside colour. OUT is the moving image in the frame of the fixed one, in "
    "its own bands and type of numbers, georeferenced where the fixed one is. Exit code 3 if the images do not lie "
    "over each other. Needs steerers[maps].",
    example="""\
  steerers align slide_a.tif slide_b.tif -o b_on_a.tif --json b_on_a.json --picture check.png
  steerers align 2019.tif 2024.tif -o 2024_on_2019.tif --transform affine
  steerers align he.tif ihc.tif -o ihc_on_he.tif --local --mirror auto --itk ihc_on_he.tfm
""",
    options=(
        Option("fixed", "an image that stays: any raster that rasterio opens, of any size", Path, "FIXED"),
        Option("moving", "an image that is laid over it", Path, "MOVING"),
        Option("-o --out", "the moving image in the frame of the fixed one, a GeoTIFF", Path, "OUT"),
        Option(
            "--transform",
            "similarity, affine, homography, or auto: the stiffest that explains the matches (default: %(default)s)",
            one_of("transform", ("auto", *get_args(Kind))),
            "NAME",
            "auto",
        ),
        flag("--local", "and a smooth local part, a thin-plate spline as stiff as held-out matches ask for"),
        Option(
            "--mirror",
            "is MOVING a mirror image: yes, no or auto (default: %(default)s)",
            one_of("mirror", get_args(Mirror)),
            "HOW",
            "auto",
        ),
        flag("--no-refine", "leave matches where they were detected, instead of registering their patches"),
        Option(
            "--max-distance",
            "of a match that agrees, in pixels of the shrunk image (default: %(default)s)",
            options.above_zero,
            "PX",
            3.0,
        ),
        Option(
            "--tiles",
            "of larger images, at most so many are matched at each finer resolution; 0 for none (default: %(default)s)",
            int,
            "N",
            24,
        ),
        Option(
            "--resampling",
            "nearest (for labels), linear or cubic (default: %(default)s)",
            one_of("resampling", get_args(Resampling)),
            "NAME",
            "linear",
        ),
        Option(
            "--nodata",
            "what stands in OUT where there is no image (default: as in MOVING, else NaN or an alpha band)",
            float,
            "V",
        ),
        Option("--json", "write the transform as JSON; - is standard output", Path, "FILE"),
        Option("--itk", "write it as a transform of ITK, .tfm", Path, "FILE"),
        Option("--picture", "write squares of the two images in turns", Path, "FILE"),
        *options.MODEL,
        options.STEERER,
        *options.STRATEGY,
        options.CONSENSUS,
        options.num_keypoints(4096),
        options.MAX_SIDE,
        *options.COMPUTING,
        Option("--seed", "of what is drawn at random (default: %(default)s)", int, "N", 0),
    ),
    run=run,
)
