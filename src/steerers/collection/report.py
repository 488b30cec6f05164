"""``report.html``: what became of a collection, in one file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers.collection.summary import Model, sentences
from steerers.collection.verification import Verified
from steerers.viz.page import BLUE, FAINT, INK, RED, SOFT, bullets, made_with, page, section, svg, table, tiles

MOST_POINTS, MOST_SQUARES = 6000, 300
"""Of a top view, and photographs of a view graph that are drawn one by one."""

Array = NDArray[np.float64]


def draw_report(
    title: str, verified: Verified, models: Sequence[Model], numbers: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """The page."""
    told = sentences(numbers)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(told[0])}.</p>',
        _tiles(numbers),
        section("What happened", bullets(told)),
        *(_model_section(number, model, len(models)) for number, model in enumerate(models)),
        '<div class="two">',
        section("View graph", _view_graph(verified)),
        section("Rotations of the photographs", _rotations(verified)),
        "</div>",
        section("What failed, and why", _failures(numbers)),
        section("Photographs", _photographs(verified, models)),
        section("Made with", made_with(settings)),
    ]
    return page(title, parts)


def _tiles(numbers: Mapping[str, Any]) -> str:
    models, pairs = numbers["models"], numbers["pairs"]
    shown = [
        ("photographs", f"{numbers['photographs']:,}"),
        ("registered", f"{numbers['registered']:,}"),
        ("models", str(len(models))),
        ("points", f"{sum(model['points'] for model in models):,}"),
    ]
    if models:
        shown += [
            ("mean track length", f"{models[0]['mean_track_length']:.2f}"),
            ("reprojection error, px", f"{models[0]['mean_reprojection_error']:.2f}"),
        ]
    shown += [
        ("verified pairs", f"{pairs['verified']:,} / {pairs['matched']:,}"),
        ("contradicted pairs", f"{len(pairs['contradicted']):,}"),
    ]
    return tiles(shown)


def _model_section(number: int, model: Model, count: int) -> str:
    title = "The model" if count == 1 else f"Model {number}: {len(model.names)} photographs"
    placed = model.place.alignment is not None
    how = (
        "From above, north up."
        if placed
        else "Seen along the direction in which the points are thinnest; without GPS neither up nor scale is known."
    )
    view = _top_view(model, placed)
    histograms = (
        '<div class="two"><div>'
        + _histogram(model.errors, "mean reprojection error of points, pixels", float(np.percentile(model.errors, 99)))
        + "</div><div>"
        + _track_histogram(model.tracks)
        + "</div></div>"
    )
    how += " Triangles are cameras; those that look straight at you or away are diamonds."
    return section(title, f"<p><small>{escape(how)}</small></p>{view}{histograms}")


# Drawings -------------------------------------------------------------------------------------------------------------


def _flatten(model: Model, placed: bool) -> tuple[Array, Array, Array, Array]:
    """Points, centres and viewing directions in the plane of the picture, y up, and the depth of points."""
    axes = np.eye(3)
    if not placed:
        spread = model.points - np.median(model.points, axis=0)
        near = np.linalg.norm(spread, axis=1) <= np.percentile(np.linalg.norm(spread, axis=1), 90)
        axes = np.linalg.svd(spread[near], full_matrices=True)[2]
        axes = axes * np.where(np.linalg.det(axes) < 0, -1, 1)
        if (model.centres @ axes[2]).mean() < (model.points @ axes[2]).mean():  # look from where the cameras are
            axes = axes * np.array([[1], [-1], [-1]])
    return model.points @ axes[:2].T, model.centres @ axes[:2].T, model.forward @ axes[:2].T, model.points @ axes[2]


def _top_view(model: Model, placed: bool) -> str:
    points, centres, forward, height = _flatten(model, placed)
    near = np.concatenate([centres, points])
    low, high = np.percentile(near, 1, axis=0), np.percentile(near, 99, axis=0)
    low, high = np.minimum(low, centres.min(axis=0)), np.maximum(high, centres.max(axis=0))
    extent = np.maximum(high - low, 1e-9)
    width, most = 1000.0, 620.0
    scale = min((width - 60) / extent[0], (most - 60) / extent[1])
    tall = extent[1] * scale + 60
    offset = (width - extent[0] * scale) / 2

    def to_page(xy: Array) -> Array:
        return np.stack([offset + (xy[:, 0] - low[0]) * scale, tall - 30 - (xy[:, 1] - low[1]) * scale], axis=1)

    inside = np.flatnonzero(((points >= low) & (points <= high)).all(axis=1))
    step = max(1, math.ceil(len(inside) / MOST_POINTS))
    shown = inside[::step]
    shown = shown[np.argsort(height[shown], kind="stable")]  # the highest last
    page = to_page(points[shown])
    dots = [
        f'<path d="M{x:.1f} {y:.1f}h0" stroke="#{r:02x}{g:02x}{b:02x}"/>'
        for (x, y), (r, g, b) in zip(page.tolist(), model.colours[shown].tolist(), strict=True)
    ]
    cameras = [
        _camera(x, y, heading, name)
        for (x, y), heading, name in zip(to_page(centres).tolist(), forward.tolist(), model.names, strict=True)
    ]
    parts = [
        f'<rect width="{width:g}" height="{tall:g}" fill="#fbfcfd" stroke="{FAINT}"/>',
        f'<g stroke-width="{2.4 if len(shown) > 3000 else 3.4}" stroke-linecap="round">{"".join(dots)}</g>',
        *cameras,
    ]
    if placed:
        parts.append(_scale_bar(scale, tall))
    return svg(width, tall, parts)


def _camera(x: float, y: float, heading: Sequence[float], name: str) -> str:
    """A triangle that opens to where a camera looks; one that looks straight down is a diamond."""
    dx, dy = heading[0], -heading[1]
    size = math.hypot(dx, dy)
    if size < 0.35:
        shape = f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"
    else:
        ux, uy = dx / size * 12, dy / size * 12
        left, right = (ux - uy * 0.55, uy + ux * 0.55), (ux + uy * 0.55, uy - ux * 0.55)
        shape = f"M{x:.1f} {y:.1f}l{left[0]:.1f} {left[1]:.1f}L{x + right[0]:.1f} {y + right[1]:.1f}z"
    return f'<path d="{shape}" fill="{BLUE}" fill-opacity="0.75" stroke="white"><title>{escape(name)}</title></path>'


def _scale_bar(scale: float, height: float) -> str:
    raw = 150 / scale
    metres = max(m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5) if m * 10.0**e <= max(raw, 1e-3))
    length = metres * scale
    return (
        f'<path d="M20 {height - 14:g}h{length:.1f}" stroke="{INK}" stroke-width="2"/>'
        f'<text x="20" y="{height - 20:g}">{metres:g} m</text>'
    )


def _histogram(values: Array, label: str, most: float) -> str:
    """Thirty bars up to ``most``."""
    counts, edges = np.histogram(np.minimum(values, most), bins=30, range=(0, max(most, 1e-9)))
    marks = [(0, "0"), (15, f"{edges[15]:.2g}"), (30, f"{edges[30]:.2g}")]
    return _bars(counts.tolist(), marks, label)


def _track_histogram(tracks: NDArray[np.int64]) -> str:
    most = int(np.percentile(tracks, 99)) if len(tracks) else 2
    most = max(3, min(most, 30))
    counts = np.bincount(np.minimum(tracks, most), minlength=most + 1)[2:]
    marks = [(k + 0.5, str(k + 2) + ("+" if k == most - 2 else "")) for k in range(0, most - 1, max(1, most // 8))]
    return _bars(counts.tolist(), marks, "observations of a point")


def _bars(counts: Sequence[int], marks: Sequence[tuple[float, str]], label: str) -> str:
    width, height = 470.0, 170.0
    each, most = (width - 20) / max(len(counts), 1), max(1, *counts)
    parts = []
    for index, count in enumerate(counts):
        tall = (height - 60) * count / most
        parts.append(
            f'<rect x="{10 + index * each:.1f}" y="{height - 40 - tall:.1f}" width="{max(each - 1.5, 0.5):.1f}" '
            f'height="{tall:.1f}" fill="{BLUE}" fill-opacity="0.8"><title>{count:,}</title></rect>'
        )
    parts.append(f'<path d="M10 {height - 40:g}H{width - 10:g}" stroke="{SOFT}"/>')
    parts += [
        f'<text x="{10 + place * each:.1f}" y="{height - 25:g}" text-anchor="middle">{escape(text)}</text>'
        for place, text in marks
    ]
    parts.append(f'<text x="{width / 2:g}" y="{height - 6:g}" text-anchor="middle">{escape(label)}</text>')
    return svg(width, height, parts)


def _view_graph(verified: Verified) -> str:
    """Photographs by name in rows and columns; a square is a verified pair, darker for more inliers."""
    count = len(verified.names)
    if not verified.good:
        return '<p class="soft">No pair is explained by geometry.</p>'
    block = math.ceil(count / MOST_SQUARES)
    side, size = 480.0, 480.0 / math.ceil(count / block)
    place = {name: index // block for index, name in enumerate(verified.names)}
    cells: dict[tuple[int, int], tuple[int, bool, str]] = {}
    for verdict, kept in zip(verified.good, verified.consistency.kept.tolist(), strict=True):
        key = place[verdict.pair[0]], place[verdict.pair[1]]
        before = cells.get(key, (0, False, ""))
        words = f"{verdict.pair[0]} and {verdict.pair[1]}: {verdict.inliers} inliers, {verdict.angle:.0f}°"
        if verdict.inliers > before[0] or not kept:
            cells[key] = max(verdict.inliers, before[0]), before[1] or not kept, words
    most = max(inliers for inliers, _, _ in cells.values())
    parts = [f'<rect width="{side:g}" height="{side:g}" fill="#fbfcfd" stroke="{FAINT}"/>']
    for (row, column), (inliers, bad, words) in sorted(cells.items()):
        deep = 0.12 + 0.88 * math.sqrt(inliers / most)
        for x, y in {(column, row), (row, column)}:
            colour = f'fill="{RED}"' if bad else f'fill="{BLUE}" fill-opacity="{deep:.2f}"'
            title = f"<title>{escape(words)}</title>" if x >= y else ""
            box = f'x="{x * size:.2f}" y="{y * size:.2f}" width="{size:.2f}" height="{size:.2f}"'
            parts.append(f"<rect {box} {colour}>{title}</rect>")
    note = "Rows and columns are photographs by name; darker pairs have more inliers, red ones contradict their loops."
    return f"{svg(side, side, parts)}<p><small>{escape(note)}</small></p>"


def _rotations(verified: Verified) -> str:
    """A small frame for each photograph, rotated as it is, its upper edge marked."""
    known = verified.orientations()
    if not known:
        return '<p class="soft">The matcher gives no rotations, or no pair is verified.</p>'
    shown = list(known.items())[:MOST_SQUARES]
    columns = max(6, min(20, math.ceil(math.sqrt(1.3 * len(shown)))))
    cell = 480.0 / columns
    half = cell * 0.30
    parts = []
    for index, (name, degrees) in enumerate(shown):
        x, y = (index % columns + 0.5) * cell, (index // columns + 0.5) * cell
        parts.append(
            f'<g transform="translate({x:.1f} {y:.1f}) rotate({-degrees:.1f})">'
            f'<rect x="{-half:.1f}" y="{-half * 0.75:.1f}" width="{2 * half:.1f}" height="{1.5 * half:.1f}" '
            f'fill="#e6eef7" stroke="{SOFT}"/>'
            f'<path d="M{-half:.1f} {-half * 0.75:.1f}h{2 * half:.1f}" stroke="{BLUE}" stroke-width="3"/>'
            f"<title>{escape(name)}: {degrees:.0f}°</title></g>"
        )
    note = (
        "Each photograph as it lies against most of its group, by name; its upper edge is blue. From the rotations of "
        "the pairs alone."
    )
    left = len(known) - len(shown)
    more = f" The first {len(shown)} of {len(known)} are shown." if left else ""
    height = math.ceil(len(shown) / columns) * cell
    return f"{svg(480.0, height, parts)}<p><small>{escape(note + more)}</small></p>"


def _failures(numbers: Mapping[str, Any]) -> str:
    parts = []
    for title, rows in (("Could not be read", numbers["failed"]), ("Not registered", numbers["not_registered"])):
        if rows:
            parts.append(f"<p><b>{title}</b> ({len(rows)})</p>{table([('', ''), *rows.items()])}")
    contradicted = numbers["pairs"]["contradicted"]
    if contradicted:
        listed = table(
            [
                ("pair", "", "inliers", "rotation", "loops for", "against"),
                *(
                    (
                        *row["pair"],
                        f"{row['inliers']}",
                        f"{row['angle']:.0f}°",
                        f"{row['loops_agreeing']}",
                        f"{row['loops_contradicting']}",
                    )
                    for row in contradicted
                ),
            ],
            "--nnnn",
        )
        parts.append(
            f"<details><summary>Pairs whose rotations contradict their loops ({len(contradicted)})</summary>"
            f"{listed}</details>"
        )
    return "".join(parts) or '<p class="soft">Nothing.</p>'


def _photographs(verified: Verified, models: Sequence[Model]) -> str:
    where = {
        name: (number, observed)
        for number, model in enumerate(models)
        for name, observed in zip(model.names, model.observed, strict=True)
    }
    known = verified.orientations()
    rows = [("name", "size", "keypoints", "rotation", "model", "points seen")]
    for photograph in verified.collection.photographs():
        name = photograph.name
        number, observed = where.get(name, (None, None))
        rows.append(
            (
                name,
                f"{photograph.size[0]} x {photograph.size[1]}",
                f"{photograph.count:,}",
                f"{known[name]:.0f}°" if name in known else "",
                "" if number is None else str(number),
                "" if observed is None else f"{observed:,}",
            )
        )
    return f"<details><summary>{len(rows) - 1:,} photographs</summary>{table(rows, '--nnnn'[1:])}</details>"
