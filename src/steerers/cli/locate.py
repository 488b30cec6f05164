"""``steerers locate PHOTO... MAP -o OUT``: where on a map photographs were taken."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._choices import LIKELY, MAP_TILES
from steerers._console import APART, Option, flag, positive, progress, tell
from steerers.cli import options
from steerers.cli.index import MAKING, MAP, PLACE, extraction_of, open_map
from steerers.cli.options import Command

if TYPE_CHECKING:
    import PIL.Image

    from steerers.maps import Located, Locator, Prior, Raster

GEOJSON, REPORT = "photographs.geojson", "report.html"


def parse_position(text: str) -> tuple[float, float]:
    """``LON,LAT`` in degrees."""
    try:
        lon, lat = (float(part) for part in text.split(","))
    except ValueError:
        lon = lat = math.nan
    if not (abs(lon) <= 180 and abs(lat) <= 90):
        raise argparse.ArgumentTypeError(f"{text!r} is not a longitude and a latitude such as 12.57,47.26")
    return lon, lat


def run(arguments: argparse.Namespace) -> int:
    """Look for each photograph, and write what was found."""
    if arguments.near is None and arguments.within is not None and arguments.no_gps:
        raise ValueError("--within needs a position: give --near LON,LAT, or leave --no-gps out")
    photos = find_photos(arguments.photos)
    out: Path = arguments.out
    if out.exists() and not out.is_dir():
        raise ValueError(f"cannot write {out}: it is a file, and what is found goes into a folder")
    options.check_output(out / GEOJSON if out.is_dir() else out)
    tiffs = [out / f"{photo.stem}.tif" for photo in photos]
    options.check_distinct([*tiffs, out / GEOJSON, out / REPORT], [*photos, arguments.map])
    from steerers.maps import LocateOptions, Locator
    from steerers.maps.index import index_path
    from steerers.maps.outputs import write_geojson

    index = arguments.index or index_path(arguments.map)
    with (
        open_map(arguments) as raster,
        Locator(
            raster,
            index,
            extraction=extraction_of(arguments, index),
            weights=arguments.weights or (),
            device=arguments.device,
            options=LocateOptions(tiles=arguments.tiles, threshold=arguments.threshold),
        ) as locator,
    ):
        out.mkdir(parents=True, exist_ok=True)
        located: list[Located] = []
        try:
            pictures = _locate_all(arguments, raster, locator, photos, located)
        finally:  # also of those before an interruption
            if located:
                write_geojson(out / GEOJSON, located)
        if not located:
            raise ValueError(f"none of {len(photos)} photographs could be read")
        if len(photos) > 1:
            _write_report(out / REPORT, raster, located, pictures, arguments)
    count = sum(one.found for one in located)
    if len(located) > 1:
        options.say(f"{count} of {len(located)} photographs are on {arguments.map}")
    options.say(f"wrote {out}")
    return 0 if count else APART


def find_photos(given: Sequence[Path]) -> list[Path]:
    """Files as they are, and all photographs of folders; no two of one name, whose outputs would be one."""
    from steerers.datasets.photos import find_images

    photos = [photo for path in given for photo in (find_images(path) if path.is_dir() else [path])]
    seen: dict[str, Path] = {}
    for photo in photos:
        if not photo.is_file():
            raise FileNotFoundError(f"no such photograph: {photo}")
        if seen.setdefault(photo.stem, photo) != photo:
            raise ValueError(
                f"{photo} and {seen[photo.stem]} would be written to files of one name: look for them apart"
            )
    return photos


def prior_of(arguments: argparse.Namespace, photo: Path) -> Prior:
    """What is known of a photograph beforehand."""
    from steerers.maps import Prior
    from steerers.maps.locating import WITHIN, exif_prior

    within = WITHIN if arguments.within is None else arguments.within
    known = Prior()
    if arguments.near is not None:
        known = Prior(arguments.near, within)
    elif not arguments.no_gps:
        known = exif_prior(photo, within)
    return Prior(known.position, known.within, arguments.resolution)


def _locate_all(
    arguments: argparse.Namespace, raster: Raster, locator: Locator, photos: Sequence[Path], located: list[Located]
) -> dict[str, PIL.Image.Image]:
    """Look for each photograph, and write what was found as soon as it is; add it to ``located``.

    Returns:
        Small pictures of the first on the map, by their paths.
    """
    from steerers.images.load import ImageError
    from steerers.maps.outputs import draw_on_map, write_photograph, write_picture, write_points, write_warped
    from steerers.maps.report import MOST_PICTURES

    pictures: dict[str, PIL.Image.Image] = {}
    for photo in _shown(photos):
        try:
            one = locator(photo, prior_of(arguments, photo))
        except ImageError as error:
            if len(photos) == 1:
                raise
            tell(f"{error}", logging.WARNING)
            continue
        located.append(one)
        options.say(describe(one, raster))
        image, points, overlay = (arguments.out / f"{photo.stem}{ending}" for ending in (".tif", ".points", "-map.jpg"))
        if not one.found:
            for stale in (image, points, overlay):  # of a run that had found it
                stale.unlink(missing_ok=True)
            continue
        (write_warped if arguments.warp else write_photograph)(image, one)
        write_points(points, one)
        picture = draw_on_map(raster, one)
        write_picture(overlay, picture)
        if len(pictures) < MOST_PICTURES:
            pictures[str(photo)] = picture.resize((picture.width // 2, picture.height // 2))
    return pictures


def _shown(photos: Sequence[Path]) -> Iterator[Path]:
    return iter(photos) if len(photos) == 1 else progress(photos, "looking for photographs")


def describe(one: Located, raster: Raster) -> str:
    """A line for people."""
    if not one.found:
        return f"{one.photo}: not on {raster.path.name}: {one.reason} ({one.seconds:.1f} s)"
    lon, lat = one.centre
    return (
        f"{one.photo}: {lon:.6f}, {lat:.6f}, upper edge {one.heading:.1f} degrees from north, {one.resolution:.3g} m a "
        f"pixel; {one.inliers} inliers, RMSE {one.rmse:.2g} m, probability {one.probability:.2f} ({one.seconds:.1f} s)"
    )


def _write_report(
    path: Path,
    raster: Raster,
    located: Sequence[Located],
    pictures: dict[str, PIL.Image.Image],
    arguments: argparse.Namespace,
) -> None:
    from steerers._files import write_text
    from steerers._version import __version__
    from steerers.maps.report import draw_report

    settings: dict[str, Any] = {"steerers": __version__, "map": arguments.map}
    settings |= {name: getattr(arguments, name) for name in ("near", "within", "resolution", "tiles", "threshold")}
    write_text(path, draw_report(f"Photographs on {raster.path.name}", raster, located, pictures, settings))


COMMAND = Command(
    description="Say where on a map photographs were taken, whatever way is up. OUT is a folder: the footprints of all "
    f"in {GEOJSON}; of each a GeoTIFF, control points for QGIS and a picture on the map; of several {REPORT}. The map "
    "is described once, see `steerers index`. Exit code 3 if no photograph is on the map.",
    example="""\
  steerers locate photo.jpg city.tif -o located
  steerers locate flight city.tif -o located --within 300 --warp
  steerers locate photo.jpg scan.png --corners '12.1,47.3 12.4,47.3 12.4,47.1 12.1,47.1' --near 12.2,47.2 -o located
""",
    options=(
        Option("photos", "photographs, or folders of them", Path, "PHOTO", nargs="+"),
        MAP,
        Option("-o --out", "a folder, made if it is missing", Path, "OUT", required=True),
        flag("--warp", "write photographs as they lie on the map, not as they are with control points"),
        Option(
            "--near",
            "about where they were taken, as in --near=-70.3,-23.6 (default: the GPS position of each, if it has one)",
            parse_position,
            "LON,LAT",
        ),
        flag("--no-gps", "whatever positions photographs have in their EXIF data"),
        Option("--within", "metres from that position (default: 1000)", options.above_zero, "M"),
        Option("--resolution", "about how many metres a pixel of the photographs has", options.above_zero, "M"),
        Option("--index", "of the map (default: MAP.steerers.h5, beside it; made if it is missing)", Path, "FILE"),
        Option(
            "--tiles",
            "of the map, with which a photograph is compared at most (default: %(default)s)",
            positive,
            "N",
            MAP_TILES,
        ),
        Option("--threshold", "least probability of a place (default: %(default)s)", options.fraction, "P", LIKELY),
        *PLACE,
        *MAKING,
    ),
    run=run,
)
