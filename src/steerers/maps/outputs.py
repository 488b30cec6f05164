"""What is written of located photographs: GeoTIFF, GeoJSON, QGIS' control points, and a picture on the map."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageDraw

from steerers._files import atomic_write, write_text
from steerers.images.load import load_image, to_uint8
from steerers.maps.coordinates import Georeference, map_points
from steerers.maps.geotiff import write_geotiff
from steerers.maps.locating import Located
from steerers.maps.rasters import Raster, open_raster

Array = NDArray[np.float64]

MOST_WARPED = 4
"""Most pixels of a warped photograph, as a multiple of its own: one that looks to the horizon would have any number."""
POINTS_HEADER = ("mapX", "mapY", "sourceX", "sourceY", "enable", "dX", "dY", "residual")
AROUND = 0.35
"""How much of the map is shown around a photograph, as a fraction of its size."""
_PANEL = 640  # pixels
_OUTLINE = (255, 196, 0)


# GeoTIFF --------------------------------------------------------------------------------------------------------------


def write_photograph(path: Path, located: Located) -> None:
    """A GeoTIFF with the pixels of a photograph as they are, and ground control points.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    pixels = _bands(located.photo)
    write_geotiff(
        path,
        located.size,
        lambda tile: pixels[:, tile[1] : tile[3], tile[0] : tile[2]],
        bands=len(pixels),
        dtype=pixels.dtype,
        place=located.control_points(),
    )


def write_warped(path: Path, located: Located) -> None:
    """A GeoTIFF of a photograph as it lies on the map, in the map's CRS, upright, transparent outside.

    Raises:
        OSError: naming the file, if it cannot be written.
        ValueError: if it looks so far that what it shows would have too many pixels.
    """
    import cv2

    picture = to_uint8(load_image(located.photo).tensor)  # (H, W, 3)
    grid, size = _grid(located)
    source = np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)])

    def draw(tile: tuple[int, int, int, int]) -> NDArray[np.uint8]:
        left, top, right, bottom = tile
        x, y = np.meshgrid(np.arange(left, right), np.arange(top, bottom))
        pixels = located.to_pixels(grid.to_crs(np.stack([x, y], axis=-1).reshape(-1, 2)))
        pixels = np.where(np.isfinite(pixels), pixels, -10).reshape(bottom - top, right - left, 2).astype(np.float32)
        warped = cv2.remap(source, pixels[..., 0], pixels[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
        return np.moveaxis(np.asarray(warped, np.uint8), 2, 0)

    write_geotiff(path, size, draw, bands=4, place=grid, alpha=True)


def _bands(photo: Path) -> NDArray[Any]:
    """(C, H, W) pixels of a photograph as stored; of a format that rasterio does not know, as we read them."""
    try:
        with open_raster(photo) as opened:
            return opened.read_bands((0, 0, *opened.size))
    except ValueError:
        return np.moveaxis(to_uint8(load_image(photo).tensor), 2, 0)


def _grid(located: Located) -> tuple[Georeference, tuple[int, int]]:
    """Pixels along the axes of the map's CRS that cover a photograph, about as large as its own."""
    assert located.place is not None
    points = located.control_points(9).coordinates
    low, high = points.min(axis=0), points.max(axis=0)
    middle = located.to_crs(np.array([located.size]) / 2 + [[0, 0], [1, 0], [0, 1]])
    step = math.sqrt(abs(float(np.linalg.det(np.stack([middle[1] - middle[0], middle[2] - middle[0]])))))
    width, height = (max(1, math.ceil(float(side) / step)) for side in high - low)
    if width * height > MOST_WARPED * max(located.size) ** 2:
        raise ValueError(
            f"{located.photo} looks so far that what it shows would have {width} x {height} pixels: leave it unwarped"
        )
    corner = np.array([[step, 0, low[0] + step / 2], [0, -step, high[1] - step / 2], [0, 0, 1]])
    return Georeference(located.place.crs, corner, (width, height)), (width, height)


# Vectors --------------------------------------------------------------------------------------------------------------


def to_geojson(located: Sequence[Located]) -> dict[str, Any]:
    """A feature for each photograph, in longitudes and latitudes as GeoJSON has them; one that was not found has no
    geometry."""
    features = [
        {"type": "Feature", "geometry": _geometry(one) if one.found else None, "properties": one.properties()}
        for one in located
    ]
    return {"type": "FeatureCollection", "features": features}


def write_geojson(path: Path, located: Sequence[Located]) -> None:
    """:func:`to_geojson` as a file, whole or not at all."""
    lines = [json.dumps(one, ensure_ascii=False, allow_nan=False) for one in to_geojson(located)["features"]]
    write_text(path, '{"type": "FeatureCollection", "features": [\n' + ",\n".join(lines) + "\n]}\n")


def _geometry(located: Located) -> dict[str, Any]:
    """The outline, counter-clockwise as GeoJSON wants it; cut where it crosses the antimeridian."""
    ring = located.footprint()
    ring[:, 0] = ring[0, 0] + (ring[:, 0] - ring[0, 0] + 180) % 360 - 180  # without a jump
    parts = []
    for turn in (-360, 0, 360):
        shifted = ring + np.array([turn, 0.0])
        inside = _clip(_clip(shifted, -180, keep_above=True), 180, keep_above=False)
        if len(inside) >= 3:
            parts.append([_closed(inside)])
    if len(parts) == 1:
        return {"type": "Polygon", "coordinates": parts[0]}
    return {"type": "MultiPolygon", "coordinates": parts}


def _clip(ring: Array, meridian: float, *, keep_above: bool) -> Array:
    """The part of a polygon on one side of a meridian (Sutherland and Hodgman's algorithm)."""
    kept: list[Array] = []
    for start, end in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        ins, ine = ((point[0] >= meridian) == keep_above or point[0] == meridian for point in (start, end))
        if ins:
            kept.append(start)
        if ins != ine:
            kept.append(start + (end - start) * (meridian - start[0]) / (end[0] - start[0]))
    return np.array(kept).reshape(-1, 2)


def _closed(ring: Array) -> list[list[float]]:
    area = float((ring[:, 0] * np.roll(ring[:, 1], -1) - np.roll(ring[:, 0], -1) * ring[:, 1]).sum())
    ordered = ring if area > 0 else ring[::-1]
    return [[round(float(value), 9) for value in point] for point in (*ordered, ordered[0])]


def write_points(path: Path, located: Located) -> None:
    """QGIS' file of ground control points: the matches that agree, with what they are off in pixels."""
    assert located.place is not None
    places = located.map_place.to_crs(located.map_points)
    off = located.to_pixels(places) - located.photo_points
    lines = io.StringIO()
    lines.write(f"#CRS: {located.place.crs}\n")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(POINTS_HEADER)
    for (x, y), (px, py), (dx, dy) in zip(places.tolist(), located.photo_points.tolist(), off.tolist(), strict=True):
        writer.writerow([x, y, px + 0.5, -(py + 0.5), 1, dx, -dy, math.hypot(dx, dy)])
    write_text(path, lines.getvalue())


# Pictures -------------------------------------------------------------------------------------------------------------


def draw_on_map(raster: Raster, located: Located, panel: int = _PANEL) -> PIL.Image.Image:
    """The part of the map that a photograph shows and what is around it: as it is, and with the photograph laid over
    it, both with its outline and a mark at its upper edge."""
    import cv2

    right, bottom = located.size[0] - 0.5, located.size[1] - 0.5
    edges = [[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom]]
    corners = located.map_place.to_pixels(located.to_crs(edges))
    known = corners[np.isfinite(corners).all(axis=1)]
    low, high = known.min(axis=0), known.max(axis=0)
    middle, half = (low + high) / 2, (0.5 + AROUND) * float((high - low).max())
    window = (middle[0] - half, middle[1] - half, middle[0] + half, middle[1] + half)
    shown, _ = raster.read(window, (panel, panel))
    to_panel = panel / (2 * half)
    x, y = np.meshgrid(np.arange(panel), np.arange(panel))
    places = (np.stack([x, y], axis=-1).reshape(-1, 2) + 0.5) / to_panel + np.array(window[:2]) - 0.5
    pixels = located.to_pixels(located.map_place.to_crs(places))
    pixels = np.where(np.isfinite(pixels), pixels, -10)
    image = load_image(located.photo, max_size=2 * panel)
    pixels = map_points(np.linalg.inv(image.to_stored.numpy()), pixels).reshape(panel, panel, 2).astype(np.float32)
    photo = np.dstack([to_uint8(image.tensor), np.full(image.tensor.shape[1:], 255, np.uint8)])
    laid = cv2.remap(photo, pixels[..., 0], pixels[..., 1], cv2.INTER_AREA, borderMode=cv2.BORDER_CONSTANT)
    covered = laid[..., 3:] / 255.0
    over = np.rint(shown * (1 - covered) + laid[..., :3] * covered).astype(np.uint8)
    canvas = PIL.Image.new("RGB", (2 * panel + 8, panel), (16, 18, 22))
    for number, part in enumerate((shown, over)):
        picture = PIL.Image.fromarray(part)
        _outline(picture, (corners + 0.5 - np.array(window[:2])) * to_panel)
        canvas.paste(picture, (number * (panel + 8), 0))
    return canvas


def _outline(picture: PIL.Image.Image, corners: Array) -> None:
    """The edges of a photograph; from the middle of the upper one a line outwards."""
    if not np.isfinite(corners).all():
        return
    draw, points = ImageDraw.Draw(picture), [(float(x), float(y)) for x, y in corners]
    draw.line([*points, points[0]], fill=_OUTLINE, width=3, joint="curve")
    top, middle = (corners[0] + corners[1]) / 2, corners.mean(axis=0)
    out = top + (top - middle) / max(float(np.linalg.norm(top - middle)), 1e-9) * 24
    draw.line([(float(top[0]), float(top[1])), (float(out[0]), float(out[1]))], fill=_OUTLINE, width=3)


def write_picture(path: Path, picture: PIL.Image.Image) -> None:
    """A picture, whole or not at all."""
    with atomic_write(path) as temporary:
        picture.save(temporary, quality=88)
