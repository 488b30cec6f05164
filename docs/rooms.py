"""The rooms of the package and which imports which, read from the source: ``python docs/rooms.py`` draws the picture.

The picture, ``docs/assets/rooms.svg``, is for docs/architecture.md; tests/test_architecture.py holds the imports to the
order below, and the picture to the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "steerers"
PICTURE = Path(__file__).parent / "assets" / "rooms.svg"
PACKAGE = SOURCE.name
LEVELS = (
    ("core", "accel"),
    ("images",),
    ("features",),
    ("steering",),
    ("matching", "models", "accel/matching", "accel/networks"),
    ("pipeline",),
    ("datasets", "viz", "adapters", "collection"),
    ("maps", "training", "benchmarks"),
    ("cli",),
)
"""From the bottom to the top. A room imports those below it and those beside it; no module imports in a circle."""
TOP = {
    "features": "features",
    "refinement": "features",
    "resolutions": "features",
    "verdict": "features",
    "pipeline": "pipeline",
}
"""Files of the top level that are a room of their own; the others are ``core``."""
INSIDE = ("accel/matching", "accel/networks")
"""Folders that are rooms of their own, beside those that they make faster. Files of ``accel/`` know tensors alone."""

Imports = dict[str, set[str]]


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module below the package's root, by its dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path
    return {name: path for name, path in found.items() if name not in ("__init__", "__main__")}


def read_imports(source: Path = SOURCE) -> Imports:
    """What each module imports of the package: at the top, within functions, and for types alone."""
    known = modules(source)
    return {name: set(_imported(path, known)) - {name} for name, path in known.items()}


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            parent = (node.module or "").removeprefix(PACKAGE).lstrip(".")
            for alias in node.names:
                child = f"{parent}.{alias.name}".lstrip(".")
                yield child if child in known else parent or "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    yield alias.name.removeprefix(PACKAGE).lstrip(".") or "__init__"


def room(module: str) -> str:
    """The room that a module is in."""
    first, *inside = module.split(".")
    own = "/".join([first, *inside[:1]])
    if own in INSIDE:
        return own
    return first if inside or (SOURCE / first).is_dir() else TOP.get(first, "core")


def level(name: str) -> int:
    """How high a room lies."""
    return next(index for index, rooms in enumerate(LEVELS) if name in rooms)


def against_the_order(imports: Imports) -> list[str]:
    """Imports of a room from one above it, as text."""
    return [
        f"{module} imports {other}: {room(module)} lies below {room(other)}"
        for module, others in sorted(imports.items())
        for other in sorted(others)
        if other == "__init__" or level(room(other)) > level(room(module))
    ]


def circles(imports: Imports) -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return found


# The picture ----------------------------------------------------------------------------------------------------------

WIDTH, GAP, LINE, HEAD, CHARACTER = 1180, 24, 15, 26, 6.6
COLOURS = ("#e8eef7", "#e3f1e5", "#fdf1d8", "#f9e3da", "#efe6f6", "#e0f2f1", "#f3f3f3", "#fbeaf0", "#eef3d9")


def draw(imports: Imports) -> str:
    """The rooms as an SVG, the top level first: their files, and below each the rooms that it imports."""
    parts, y = [], GAP
    for index in reversed(range(len(LEVELS))):
        boxes = [
            _box(name, imports, (WIDTH - GAP * (len(LEVELS[index]) + 1)) / len(LEVELS[index])) for name in LEVELS[index]
        ]
        height = max(len(lines) for _, lines in boxes) * LINE + HEAD + 10
        width = (WIDTH - GAP * (len(boxes) + 1)) / len(boxes)
        for place, (name, lines) in enumerate(boxes):
            x = GAP + place * (width + GAP)
            parts.append(_draw_box(x, y, width, height, name, lines, COLOURS[index]))
        y += height + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y:g}" fill="white"/>', *parts, "</svg>", ""])


def _box(name: str, imports: Imports, width: float) -> tuple[str, list[str]]:
    packages = {module.rpartition(".")[0] for module in imports}
    inside = sorted(module for module in imports if room(module) == name and module not in packages and module != name)
    prefix = name.replace("/", ".") + "."
    files = [module.removeprefix(prefix) for module in inside] if inside else []
    used = sorted({room(other) for module in imports if room(module) == name for other in imports[module]} - {name})
    lines = _wrap(files, width) + ([f"imports {', '.join(sorted(used, key=level))}"] if used else [])
    return name, lines


def _wrap(words: list[str], width: float) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and (len(lines[-1]) + len(word) + 3) * CHARACTER < width - 20:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines


def _draw_box(x: float, y: float, width: float, height: float, name: str, lines: list[str], colour: str) -> str:
    title = f"{name}/" if (SOURCE / name).is_dir() else "steerers/*.py" if name == "core" else f"{name}.py"
    text = [f'<text x="{x + 10:g}" y="{y + 18:g}" font-weight="bold" font-size="14">{title}</text>']
    for index, line in enumerate(lines):
        style = ' fill="#666" font-style="italic"' if line.startswith("imports ") else ""
        text.append(f'<text x="{x + 10:g}" y="{y + HEAD + 10 + index * LINE:g}"{style}>{line}</text>')
    box = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{colour}" stroke="#999"/>'
    return "\n".join([box, *text])


if __name__ == "__main__":
    PICTURE.write_text(draw(read_imports()), encoding="utf-8")
