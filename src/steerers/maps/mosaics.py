"""Photographs of a flat scene, in any orientation, made one picture: drone strips, whiteboards, microscope fields.

The first steps are those of a collection: features, pairs, matches, verification. Then one homography an image, of all
together (:mod:`steerers.maps.adjustment`), the plane straightened and laid on the Earth
(:mod:`steerers.maps.rectification`), and the picture (:mod:`steerers.maps.compositing`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image

from steerers._choices import DEFAULT_MODEL
from steerers._console import tell
from steerers._files import StrPath
from steerers.collection.georeference import NotAlignedError
from steerers.collection.pairing import Choice
from steerers.collection.reconstruction import match_photographs
from steerers.collection.store import Collection, Photograph, find_names
from steerers.collection.two_view import VerificationOptions
from steerers.collection.verification import verify
from steerers.geometry import Size
from steerers.images.decode import fit_within
from steerers.images.load import load_image, to_uint8
from steerers.maps.adjustment import Adjusted
from steerers.maps.compositing import Composite, Layer, Pixels
from steerers.maps.coordinates import Georeference, check_crs, import_rasterio
from steerers.maps.geotiff import write_geotiff
from steerers.maps.planarity import NotFlatError, adjust_scene, link_scene
from steerers.maps.rasters import open_raster
from steerers.maps.rectification import OnGround, Rectified, place_on_ground, rectify
from steerers.maps.transforms import Array, need_scipy, transfer
from steerers.viz.canvas import BACKGROUND
from steerers.viz.layout import draw_layout

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MOST_UNLIKE = 6.0
"""By how much the area of a photograph on the plane may differ from most others."""
MOST_PIXELS = 4_000_000_000
"""Of a mosaic."""


@dataclass(frozen=True, kw_only=True)
class MosaicOptions:
    """How a mosaic is made.

    Attributes:
        verification: of pairs, before a plane is asked for.
        max_distance: of a match from where the homography of its pair has it, in pixels of the image as it was matched.
        scale: pixels of the mosaic for one of the photographs.
        gps: lay it on the Earth where photographs have positions.
        keep_contradicted: also use pairs whose rotations contradict their loops.
    """

    verification: VerificationOptions = field(default_factory=VerificationOptions)
    max_distance: float = 3.0
    scale: float = 1.0
    gps: bool = True
    keep_contradicted: bool = False

    def __post_init__(self) -> None:
        for name in ("max_distance", "scale"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Mosaic:
    """A mosaic that was written.

    Attributes:
        path: of the file.
        size: its (width, height).
        outlines: (K, 2) pixels of it around each photograph, by name.
        left_out: photographs that it does not show, and why.
        numbers: of the report, for JSON; ``sentences`` say them in words.
    """

    path: Path
    size: Size
    outlines: dict[str, Array]
    left_out: dict[str, str]
    numbers: dict[str, Any]
    sentences: list[str]


def mosaic(
    photos: StrPath,
    out: StrPath,
    folder: StrPath | None = None,
    model: str = DEFAULT_MODEL,
    *,
    choice: Choice | None = None,
    options: MosaicOptions | None = None,
    matching: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
    strict: bool = False,
    **extraction: Any,
) -> Mosaic:
    """Make a mosaic of a folder of photographs of a flat scene.

    Args:
        photos: a folder; photographs below it count too.
        out: the GeoTIFF, RGB and alpha, in the UTM zone if at least three photographs have GPS positions.
        folder: of the collection, by default beside ``out``; a second call goes on with what is there.
        choice: of pairs, see :func:`steerers.collection.reconstruct`, also for ``matching`` and ``extraction``.
        strict: raise an error if a photograph cannot be read.

    Raises:
        NotFlatError: if the scene is not flat, naming what is left, or no two photographs overlap.
        ValueError: if there are fewer than two photographs, or what is in ``folder`` was made in another way.
        OSError: naming the file, if it cannot be written.
    """
    import_rasterio()
    need_scipy()
    folder = Path(folder or default_folder(out))
    if len(find_names(Path(photos), leave_out=folder)) < 2:
        raise ValueError(f"a mosaic needs two photographs or more, and {photos} has one")
    collection = match_photographs(
        photos,
        folder,
        model,
        choice=choice,
        matching=matching,
        device=device,
        weights=weights,
        strict=strict,
        least=2,
        **extraction,
    )
    return mosaic_matched(collection, out, options)


def default_folder(out: StrPath) -> Path:
    """Of the collection of a mosaic: beside it."""
    return Path(out).with_suffix(".collection")


def mosaic_matched(collection: Collection, out: StrPath, options: MosaicOptions | None = None) -> Mosaic:
    """:func:`mosaic` of a collection whose pairs are matched."""
    start, options = time.perf_counter(), options or MosaicOptions()
    photographs = collection.photographs()
    verified = verify(collection, options.verification)
    scene = link_scene(
        verified,
        photographs,
        max_distance=options.max_distance,
        min_inliers=options.verification.min_inliers,
        keep_contradicted=options.keep_contradicted,
    )
    verified.close()
    left_out = {name: f"could not be read: {why}" for name, why in collection.failures().items()}
    adjusted = adjust_scene(scene, photographs, left_out)
    plane = rectify(
        adjusted.maps,
        {index: photographs[index].size for index in adjusted.maps},
        {index: photographs[index].focal for index in adjusted.maps},
    )
    plane = _keep_sound(plane, photographs, left_out)
    ground, why = _on_ground(plane, photographs, options)
    layers, size, place = _lay_out(plane, adjusted, photographs, collection.photos, ground, options)
    adjusted_at = time.perf_counter()
    composite = Composite(layers, size)
    write_geotiff(out, size, composite.draw, bands=4, place=place, alpha=True)
    numbers = {
        "photographs": len(photographs),
        "shown": len(layers),
        "left_out": dict(sorted(left_out.items())),
        **scene.numbers(adjusted),
        "distortion": adjusted.distortion,
        "size": list(size),
        "metres_per_pixel": None if ground is None else ground.metres / options.scale,
        "crs": None if ground is None else ground.crs,
        "gps": None if ground is None else _gps_numbers(ground),
        "not_georeferenced": why or None,
        "seconds": {"adjusting": adjusted_at - start, "drawing": time.perf_counter() - adjusted_at},
    }
    outlines = {layer.name: layer.outline() for layer in layers}
    return Mosaic(Path(out), size, outlines, left_out, numbers, sentences(numbers))


def draw_mosaic(made: Mosaic, side: int) -> PIL.Image.Image:
    """A mosaic with the outlines of its photographs, whose longer side has at most so many pixels."""
    size = fit_within(made.size, side)
    with open_raster(made.path) as raster:
        pixels, valid = raster.read(size=size)
    pixels[~valid] = BACKGROUND
    ratio = np.array(size) / made.size
    outlines = {name: (outline + 0.5) * ratio - 0.5 for name, outline in made.outlines.items()}
    return draw_layout(PIL.Image.fromarray(pixels), outlines)


# The canvas -----------------------------------------------------------------------------------------------------------


def _keep_sound(plane: Rectified, photographs: Sequence[Photograph], left_out: dict[str, str]) -> Rectified:
    """Without photographs that lie on the plane as no photograph does."""
    areas = {}
    for index, H in plane.maps.items():
        width, height = photographs[index].size
        box = np.array([[0.0, 0], [width, 0], [width, height], [0, height]])
        weights = np.column_stack([box, np.ones(4)]) @ H[2]
        x, y = transfer(H, box).T
        area = float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2 / (width * height)
        areas[index] = area if (weights > 0).all() else 0.0
    typical = float(np.median(list(areas.values())))
    kept = [index for index, area in areas.items() if typical / MOST_UNLIKE < area < typical * MOST_UNLIKE]
    left_out |= {
        photographs[i].name: "was taken at too flat an angle, or does not fit" for i in areas.keys() - set(kept)
    }
    if len(kept) < 2:
        raise NotFlatError("the photographs do not lie on one plane: their outlines fold over or collapse")
    return Rectified({i: plane.maps[i] for i in kept}, {i: plane.cameras[i] for i in kept})


def _on_ground(
    plane: Rectified, photographs: Sequence[Photograph], options: MosaicOptions
) -> tuple[OnGround | None, str]:
    """How it lies on the Earth, or why that is not known."""
    if not options.gps:
        return None, "it was not asked for"
    names = {index: photographs[index].name for index in plane.maps}
    positions = {one.name: one.position for one in photographs if one.position is not None}
    try:
        return place_on_ground(plane, names, positions), ""
    except NotAlignedError as error:
        tell(f"the mosaic is not georeferenced: {error}", logging.WARNING if positions else logging.INFO)
        return None, str(error)


def _lay_out(
    plane: Rectified,
    adjusted: Adjusted,
    photographs: Sequence[Photograph],
    folder: Path,
    ground: OnGround | None,
    options: MosaicOptions,
) -> tuple[list[Layer], Size, Georeference | None]:
    """The photographs on a canvas that holds them all, north up if it is known; its size, and where it lies."""
    pitch = (1.0 if ground is None else ground.metres) / options.scale  # of a pixel, in units of the plane or metres
    onto = np.eye(3) if ground is None else ground.matrix
    flip = 1.0 if ground is None else -1.0  # north is up
    scaled = np.diag([1 / pitch, flip / pitch, 1.0]) @ onto
    layers = [_layer(photographs[i], scaled @ H, adjusted.distortion, folder) for i, H in sorted(plane.maps.items())]
    outlines = np.concatenate([layer.outline() for layer in layers])
    low, high = np.floor(outlines.min(axis=0)), np.ceil(outlines.max(axis=0)) + 1
    size = (int(high[0] - low[0]), int(high[1] - low[1]))
    if size[0] * size[1] > MOST_PIXELS:
        raise ValueError(f"the mosaic would have {size[0]:,} x {size[1]:,} pixels; take a smaller scale")
    move = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1.0]])
    layers = [Layer(one.name, one.read, one.size, move @ one.matrix, one.distortion) for one in layers]
    if ground is None:
        return layers, size, None
    matrix = np.diag([pitch, flip * pitch, 1.0]) @ np.linalg.inv(move)
    return layers, size, Georeference(check_crs(ground.crs, "the mosaic"), matrix, size)


def _layer(photograph: Photograph, matrix: Array, distortion: float, folder: Path) -> Layer:
    return Layer(photograph.name, partial(_read, folder / photograph.name), photograph.size, matrix, distortion)


def _read(path: Path, longest: int | None) -> Pixels:
    return to_uint8(load_image(path, max_size=longest).tensor)


# In words -------------------------------------------------------------------------------------------------------------


def _gps_numbers(ground: OnGround) -> dict[str, Any]:
    placement = ground.placement
    offsets = [off for name, off in placement.offsets.items() if name not in placement.wrong]
    return {
        "photographs": len(placement.offsets),
        "median_m": placement.error,
        "largest_m": max(offsets),
        "wrong": list(placement.wrong),
    }


def sentences(numbers: Mapping[str, Any]) -> list[str]:
    """The numbers of a mosaic in words."""
    width, height = numbers["size"]
    error, gps = numbers["error_px"], numbers["gps"]
    told = [
        f"{numbers['shown']} of {numbers['photographs']} photographs in {width:,} x {height:,} pixels",
        f"{numbers['matches']:,} matches of {numbers['pairs']:,} pairs are {error['median']:.2f} px off (median); "
        f"the plane explains {numbers['flat']:.0%} of all that two-view geometry does",
    ]
    if gps is not None:
        wrong = f", {len(gps['wrong'])} positions are wrong" if gps["wrong"] else ""
        told.append(
            f"{numbers['metres_per_pixel'] * 100:.3g} cm a pixel in {numbers['crs']}; cameras are "
            f"{gps['median_m']:.2g} m (median), at most {gps['largest_m']:.2g} m from {gps['photographs']} GPS "
            f"positions{wrong}"
        )
    else:
        told.append(f"not georeferenced: {numbers['not_georeferenced']}")
    return told + [f"left out: {name} {why}" for name, why in list(numbers["left_out"].items())[:10]]
