"""``steerers index MAP``: describe a map once, so that photographs are found on it in seconds."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steerers._choices import DEFAULT_MODEL, MAP_KEYPOINTS
from steerers._console import Option, four_corners, positive
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.collection import Extraction
    from steerers.maps import Raster


def parse_bands(text: str) -> list[int]:
    """``4,3,2``, or one."""
    return [positive(part) for part in text.split(",")]


MAP = Option(
    "map", "any georeferenced raster that rasterio opens (GeoTIFF, COG, VRT, image with world file)", Path, "MAP"
)
PLACE = (
    Option("--crs", "of a map that does not say, such as one with a world file: EPSG:32633, or WKT", metavar="CRS"),
    Option(
        "--corners",
        "of a map without georeference, 'X,Y X,Y X,Y X,Y': top left, top right, bottom right, bottom left, longitude "
        "and latitude unless --crs says otherwise",
        four_corners,
        "LIST",
    ),
    Option("--bands", "red, green and blue, from 1 (default: as the map says, or the first)", parse_bands, "R,G,B"),
)
MAKING = (
    Option("--model", f"see `steerers models` (default: that of the index, or {DEFAULT_MODEL})", metavar="NAME"),
    *options.MODEL[1:],
    Option(
        "--num-keypoints", f"of 1024 x 1024 pixels of the map, of a new index (default: {MAP_KEYPOINTS})", positive, "N"
    ),
    options.DEVICE,
)
"""How an index is made."""


def open_map(arguments: argparse.Namespace) -> Raster:
    """The map that was asked for."""
    from steerers.maps import open_map as open_raster

    try:
        return open_raster(arguments.map, crs=arguments.crs, corners=arguments.corners, bands=arguments.bands)
    except ValueError as error:
        advice = (
            str(error).replace("give its CRS, such", "give --crs, such").replace("give its corners", "give --corners")
        )
        raise ValueError(advice) from error


def extraction_of(arguments: argparse.Namespace, path: Path) -> Extraction:
    """Model and options of the index at ``path``, as far as nothing else is asked for, or of a new one."""
    from steerers.collection import Extraction
    from steerers.maps import MapIndex

    asked = {name: getattr(arguments, name) for name in ("model", "detector", "num_keypoints")}
    given = {name: value for name, value in asked.items() if value is not None}
    if not path.is_file():
        return Extraction(**{"num_keypoints": MAP_KEYPOINTS, **given})
    with MapIndex.open(path) as index:
        return replace(index.extraction, **given)


def run(arguments: argparse.Namespace) -> int:
    """Describe what is left of the map."""
    from steerers.maps import index_map
    from steerers.maps.index import index_path

    out = arguments.out or index_path(arguments.map)
    with open_map(arguments) as raster:
        options.check_output(out)
        how = {"weights": arguments.weights or (), "device": arguments.device}
        with index_map(raster, out, extraction=extraction_of(arguments, out), **how) as index:
            options.say(
                f"{raster.path}: {raster.size[0]} x {raster.size[1]} pixels of {raster.place.resolution():.3g} m, "
                f"{len(index.tiles)} tiles at {index.levels} resolutions"
            )
            options.say(f"index: {index.path}")
    return 0


COMMAND = Command(
    description="Describe a map once, at several resolutions, into a file beside it, for `steerers locate`. What was "
    "interrupted goes on where it was left.",
    example="""\
  steerers index city.tif
  steerers index scan.png --corners '12.1,47.3 12.4,47.3 12.4,47.1 12.1,47.1' -o scan.h5
""",
    options=(
        MAP,
        Option("-o --out", "the index (default: MAP.steerers.h5, beside the map)", Path, "FILE"),
        *PLACE,
        *MAKING,
    ),
    run=run,
)
