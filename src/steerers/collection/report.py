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

MOST_POINTS, MOST_ROWS, MOST_SQUARES = 6000, 500, 300
"""Of a top view, of a table, and photographs of a view graph that are drawn one by one."""

Array = NDArray[np.float64]
INK, SOFT, FAINT, BLUE, RED = "#1d2733", "#5d6b7a", "#d8dee5", "#2563a8", "#c8372d"

STYLE = f"""
body {{ font: 15px/1.5 system-ui, "Helvetica Neue", Arial, sans-serif; color: {INK}; margin: 0; background: #f4f6f8; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 28px 24px 60px; }}
h1 {{ font-size: 26px; margin: 0 0 2px; }} h2 {{ font-size: 18px; margin: 0 0 8px; }}
section {{ background: white; border: 1px solid {FAINT}; border-radius: 8px; padding: 18px 20px; margin-top: 18px; }}
p {{ margin: 4px 0; }} .soft {{ color: {SOFT}; }} small {{ color: {SOFT}; }}
.tiles {{ display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin-top: 16px; }}
.tile {{ background: white; border: 1px solid {FAINT}; border-radius: 8px; padding: 10px 16px; }}
.tile b {{ display: block; font-size: 24px; font-weight: 600; }}
.two {{ display: grid; grid-template-columns: 1fr 1fr; gap: 18px; }} .two section {{ margin-top: 18px; }}
@media (max-width: 800px) {{ .two {{ grid-template-columns: 1fr; }} }}
table {{ border-collapse: collapse; width: 100%; font-size: 13px; }}
td, th {{ text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #eef1f4; overflow-wrap: anywhere; }}
td.n, th.n {{ text-align: right; white-space: nowrap; }} svg {{ width: 100%; height: auto; display: block; }}
details summary {{ cursor: pointer; color: {BLUE}; margin: 6px 0; }} svg text {{ font-size: 11px; fill: {SOFT}; }}
li.bad {{ color: {RED}; }} ul {{ margin: 6px 0; padding-left: 20px; }}
"""


def draw_report(
    title: str, verified: Verified, models: Sequence[Model], numbers: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """The page."""
    told = sentences(numbers)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(told[0])}.</p>',
        _tiles(numbers),
        _section("What happened", _list(told)),
        *(_model_section(number, model, len(models)) for number, model in enumerate(models)),
        '<div class="two">',
        _section("View graph", _view_graph(verified)),
        _section("Rotations of the photographs", _rotations(verified)),
        "</div>",
        _section("What failed, and why", _failures(numbers)),
        _section("Photographs", _photographs(verified, models)),
        _section("Made with", _made_with(settings)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _made_with(settings: Mapping[str, Any]) -> str:
    table = _table([("", ""), *((name, str(value)) for name, value in settings.items())])
    return f"<details><summary>options and versions</summary>{table}</details>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}\n</section>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _table(rows: Sequence[Sequence[str]], numeric: str = "") -> str:
    """Rows of text, the head first (left out if empty); ``numeric`` has an n for each column of numbers."""
    head, *rest = rows

    def cells(row: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if numeric[k : k + 1] == "n" else "" for k in range(len(row))]
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True))

    lines = [f"<tr>{cells(head, 'th')}</tr>"] if any(head) else []
    lines += [f"<tr>{cells(row, 'td')}</tr>" for row in rest[:MOST_ROWS]]
    more = f"<p><small>and {len(rest) - MOST_ROWS:,} more</small></p>" if len(rest) > MOST_ROWS else ""
    return f"<table>{''.join(lines)}</table>{more}"


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
    tiles = (f'<div class="tile"><b>{escape(value)}</b>{escape(name)}</div>' for name, value in shown)
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _model_section(number: int, model: Model, count: int) -> str:
    title = "The model" if count == 1 else f"Model {number}: {len(model.names)} photographs"
    placed = model.place.alignment is not None
    how = (
        "From above, north up. Axes are in metres."
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
    return _section(title, f"<p><small>{escape(how)} Triangles are cameras.</small></p>{view}{histograms}")


# Drawings -------------------------------------------------------------------------------------------------------------


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img">{"".join(parts)}</svg>'


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
    return _svg(width, tall, parts)


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
    return _svg(width, height, parts)


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
    note = (
        "Rows and columns are photographs by name; darker pairs have more inliers, red ones contradict their triangles."
    )
    return f"{_svg(side, side, parts)}<p><small>{escape(note)}</small></p>"


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
    return f"{_svg(480.0, height, parts)}<p><small>{escape(note + more)}</small></p>"


def _failures(numbers: Mapping[str, Any]) -> str:
    parts = []
    for title, rows in (("Could not be read", numbers["failed"]), ("Not registered", numbers["not_registered"])):
        if rows:
            parts.append(f"<p><b>{title}</b> ({len(rows)})</p>{_table([('', ''), *rows.items()])}")
    contradicted = numbers["pairs"]["contradicted"]
    if contradicted:
        table = _table(
            [
                ("pair", "", "inliers", "rotation", "triangles for", "against"),
                *(
                    (
                        *row["pair"],
                        f"{row['inliers']}",
                        f"{row['angle']:.0f}°",
                        f"{row['triangles_agreeing']}",
                        f"{row['triangles_contradicting']}",
                    )
                    for row in contradicted
                ),
            ],
            "--nnnn",
        )
        parts.append(
            f"<details><summary>Pairs whose rotations contradict their triangles ({len(contradicted)})</summary>{table}"
            "</details>"
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
    return f"<details><summary>{len(rows) - 1:,} photographs</summary>{_table(rows, '--nnnn'[1:])}</details>"
