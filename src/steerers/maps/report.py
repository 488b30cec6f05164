"""``report.html`` of photographs that were looked for on a map, in one file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import PIL.Image

from steerers.maps.locating import Located
from steerers.maps.rasters import Raster
from steerers.viz.page import BLUE, made_with, page, section, svg, table, tiles

OVERVIEW = 1000
"""Pixels of the longer side of the map in a report."""
MOST_PICTURES = 60
"""Of photographs on the map."""


def draw_report(
    title: str,
    raster: Raster,
    located: Sequence[Located],
    pictures: Mapping[str, PIL.Image.Image],
    settings: Mapping[str, Any],
) -> str:
    """The page; ``pictures`` of photographs on the map by their paths."""
    found = [one for one in located if one.found]
    missing = [(one.photo.name, one.reason) for one in located if not one.found]
    seconds = sum(one.seconds for one in located) / max(1, len(located))
    shown = [
        ("photographs", f"{len(located):,}"),
        ("on the map", f"{len(found):,}"),
        ("inliers, median", f"{np.median([one.inliers for one in found]):.0f}" if found else "-"),
        ("seconds a photograph", f"{seconds:.1f}"),
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{len(found)} of {len(located)} photographs are on {escape(raster.path.name)}.</p>',
        tiles(shown),
        section("The map", _overview(raster, found)),
        section("Photographs", _rows(found)) if found else "",
        section("Not on the map", table([("name", "why"), *missing])) if missing else "",
        section("On the map", _pictures(found, pictures)) if pictures else "",
        section("Made with", made_with(settings)),
    ]
    return page(title, parts)


def _overview(raster: Raster, found: Sequence[Located]) -> str:
    """The whole map, with the outlines of photographs."""
    shrink = max(raster.size) / OVERVIEW
    width, height = (max(1, round(side / max(1.0, shrink))) for side in raster.size)
    picture, _ = raster.read((0, 0, *raster.size), (width, height))
    scale = np.array([width / raster.size[0], height / raster.size[1]])
    parts = [f'<image width="{width}" height="{height}" href="{_embedded(PIL.Image.fromarray(picture))}"/>']
    for one in found:
        ring = (one.map_place.from_lonlat(one.footprint()) + 0.5) * scale
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ring.tolist() if np.isfinite(x + y))
        words = f"{one.photo.name}: {one.heading:.0f}°, {one.probability:.2f}"
        parts.append(
            f'<polygon points="{points}" fill="{BLUE}" fill-opacity="0.18" stroke="#ffc400" stroke-width="2">'
            f"<title>{escape(words)}</title></polygon>"
        )
    return svg(width, height, parts)


def _rows(found: Sequence[Located]) -> str:
    rows = [("name", "probability", "longitude, latitude", "heading", "m a pixel", "inliers", "RMSE, m")]
    for one in found:
        lon, lat = one.centre
        numbers = f"{one.heading:.1f}°", f"{one.resolution:.3g}", f"{one.inliers}", f"{one.rmse:.2g}"
        rows.append((one.photo.name, f"{one.probability:.3f}", f"{lon:.6f}, {lat:.6f}", *numbers))
    return table(rows, "-n-nnnn")


def _pictures(found: Sequence[Located], pictures: Mapping[str, PIL.Image.Image]) -> str:
    parts = []
    for one in found[:MOST_PICTURES]:
        picture = pictures.get(str(one.photo))
        if picture is not None:
            source = _embedded(picture)
            parts.append(f'<p>{escape(one.photo.name)}<br><img src="{source}" alt="" style="max-width:100%"></p>')
    left = len(found) - MOST_PICTURES
    return "".join(parts) + (f"<p><small>and {left:,} more</small></p>" if left > 0 else "")


def _embedded(picture: PIL.Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
