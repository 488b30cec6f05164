"""Pages of reports: one HTML file that needs nothing else, and what they are put together of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MOST_ROWS = 500
"""Of a table."""
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


def page(title: str, parts: Sequence[str]) -> str:
    """The file, of the parts that are not empty."""
    body = "\n".join(part for part in parts if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def tiles(shown: Sequence[tuple[str, str]]) -> str:
    """Names and values, the values large."""
    made = (f'<div class="tile"><b>{escape(value)}</b>{escape(name)}</div>' for name, value in shown)
    return f'<div class="tiles">{"".join(made)}</div>'


def made_with(settings: Mapping[str, Any]) -> str:
    """Options and versions, folded."""
    rows = table([("", ""), *((name, str(value)) for name, value in settings.items())])
    return f"<details><summary>options and versions</summary>{rows}</details>"


def section(title: str, content: str) -> str:
    """A part of a page under a title."""
    return f"<section><h2>{escape(title)}</h2>\n{content}\n</section>"


def bullets(lines: Sequence[str]) -> str:
    """A list of lines of text."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def table(rows: Sequence[Sequence[str]], numeric: str = "") -> str:
    """Rows of text, the head first (left out if empty); ``numeric`` has an n for each column of numbers."""
    head, *rest = rows

    def cells(row: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if numeric[k : k + 1] == "n" else "" for k in range(len(row))]
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True))

    lines = [f"<tr>{cells(head, 'th')}</tr>"] if any(head) else []
    lines += [f"<tr>{cells(row, 'td')}</tr>" for row in rest[:MOST_ROWS]]
    more = f"<p><small>and {len(rest) - MOST_ROWS:,} more</small></p>" if len(rest) > MOST_ROWS else ""
    return f"<table>{''.join(lines)}</table>{more}"


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """A drawing."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img">{"".join(parts)}</svg>'
