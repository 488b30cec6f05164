"""Reports of benchmarks: what was measured, with what and where, as JSON, as Markdown tables and as plots.

A benchmark fills :class:`Table` records with rows that JSON can hold, and says by :class:`Column` records what of a row
people see. Rows that are printed elsewhere are rows like the others, with a ``"source"``, ``"paper"`` for those of the
paper; a number that they do not have is a dash.

``data/paper.json`` holds what Tables 1 to 6 of "Steerers: A framework for rotation equivariant keypoint descriptors"
(CVPR 2024) print, models and strategies by the names that they have there. Fractions are 0 to 1 and times are seconds,
as in our rows. Table 3 is a part of Table 5; a row of both is said to be of Table 3. On MegaDepth-1500 the paper
matches by the dual softmax, whatever the strategy of the row. Rows of one descriptor that differ there all the same are
kept under the strategy they are printed with.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import math
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._devices import device_name
from steerers._files import atomic_write, write_text
from steerers._version import __version__

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

TableRow = dict[str, Any]
"""Of a table: what JSON can hold, with a ``label``."""
Draw = Callable[[Path], None]
"""Writes a picture to a path."""
MISSING = "-"
SOURCE = Path(__file__).parents[1]
"""The folder of the package."""
_PACKAGES = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "pillow": ("pillow",),
    "opencv": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
    "poselib": ("poselib",),
}


# Columns --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a Markdown table: its title, and its cell from a row; a dash where the row has no such thing."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]
    left: bool = False
    """Whether cells are words, which stand to the left, and not numbers."""


def look_up(row: Mapping[str, Any], *path: str) -> Any:
    """``row[a][b]...``, or ``None`` where any of it is missing."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def number(title: str, *path: str, form: str = "{:.0f}", factor: float = 1.0) -> Column:
    """The number at ``row[a][b]...``, times ``factor``, written as ``form`` says."""

    def cell(row: Mapping[str, Any]) -> str:
        value = look_up(row, *path)
        return MISSING if value is None or not math.isfinite(value) else form.format(factor * value)

    return Column(title, cell)


def percent(title: str, *path: str) -> Column:
    """The fraction, 0 to 1, at ``row[a][b]...`` in per cent."""
    return number(title, *path, form="{:.1f}", factor=100.0)


def text(title: str, *path: str) -> Column:
    """The words at ``row[a][b]...``."""

    def cell(row: Mapping[str, Any]) -> str:
        value = look_up(row, *path)
        return MISSING if value is None else str(value)

    return Column(title, cell, left=True)


def failed_fraction(title: str = "failed") -> Column:
    """``num_failed of num_pairs``."""

    def cell(row: Mapping[str, Any]) -> str:
        failed, pairs = row.get("num_failed"), row.get("num_pairs")
        return MISSING if failed is None or pairs is None else f"{failed:g} of {pairs}"

    return Column(title, cell)


def _strategy(row: Mapping[str, Any]) -> str:
    """Name and order; options, as far as they were asked for."""
    strategy = row.get("strategy")
    if not isinstance(strategy, Mapping):
        return MISSING if strategy is None else str(strategy)
    order = strategy.get("order")
    asked = str(row["label"]).partition("?")[2].replace("&", ", ").replace("=", " ")
    return f"{strategy.get('name', MISSING)}{'' if order is None else f' ({order})'}{asked and f', {asked}'}"


MODEL_COLUMNS = (
    Column("model", lambda row: str(row.get("model") or row["label"]), left=True),
    Column("strategy", _strategy, left=True),
)
"""Which model, and how it matches: the first columns of most tables."""
COST_COLUMNS = (
    number("s/image", "seconds_per_image", form="{:.3g}"),
    number("images/pair", "extractions_per_pair", form="{:g}"),
    number("s/pair", "seconds_per_pair", form="{:.3g}"),
)
"""What every benchmark on pairs gives: the last columns of most tables."""


# Reports --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Runs side by side.

    Attributes:
        columns: what of the rows people see.
        rows: JSON-ready, each with a ``label``; one that is printed elsewhere with a ``source``.
        facts: JSON-ready, of all rows: ``num_pairs``, ``pairs_sha256``, the rotation.
        notes: what stands below, a line each.
    """

    title: str
    columns: tuple[Column, ...]
    rows: list[TableRow]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Title, facts and rows, and notes if there are any."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"title": self.title, **self.facts, "rows": self.rows, **notes}

    def to_markdown(self) -> str:
        """Heading, number of pairs, table, notes."""
        head = "| " + " | ".join(column.title for column in self.columns) + " |"
        rule = "|" + "".join("---|" if column.left else "---:|" for column in self.columns)
        lines = "\n".join([head, rule, *map(self._line, self.rows)])
        pairs, digest = self.facts.get("num_pairs"), self.facts.get("pairs_sha256")
        about = "" if pairs is None else f"{pairs} pairs"
        about += f", SHA-256 of the list `{digest[:16]}`" if about and digest else ""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(part for part in (f"### {self.title}", about and f"{about}.", lines, notes) if part)

    def _line(self, row: Mapping[str, Any]) -> str:
        cells = [column.cell(row).replace("|", "\\|") for column in self.columns]
        if row.get("source"):
            cells[0] += f" ({row['source']})"
        return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True, eq=False)
class Report:
    """Everything about a benchmark.

    Attributes:
        description: for people: protocol, estimator, sizes, what the columns mean.
        settings: JSON-ready: keypoints, size, estimator, seeds, thresholds.
        environment: from :func:`environment`; empty for what was put together from other reports.
        plots: by file name, what writes that picture to a path; called by :meth:`write` alone.
    """

    benchmark: str
    description: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    tables: list[Table]
    plots: dict[str, Draw] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold: numbers that are not finite are ``None``."""
        whole = {
            "benchmark": self.benchmark,
            "description": self.description,
            "settings": self.settings,
            "environment": self.environment,
            "tables": [table.to_json() for table in self.tables],
        }
        return dict(finite(whole))

    def to_markdown(self, plots: Sequence[str] = ()) -> str:
        """Headings, prose and tables, and below them the pictures of these names."""
        parts = [f"## {self.benchmark}", f"{self.description} {self._where()}".rstrip()]
        parts += [table.to_markdown() for table in self.tables]
        parts += [f"![{Path(name).stem}]({name})" for name in plots]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and the plots into a folder, which is made if need be.

        Plots need matplotlib; where it is missing they are left out, and a warning says so.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.json", dump(self.to_json()))
        write_text(folder / "report.md", self.to_markdown(self._draw(folder)))

    def _draw(self, folder: Path) -> list[str]:
        if self.plots and importlib.util.find_spec("matplotlib") is None:
            logger.warning('the report has no plots, for want of matplotlib: pip install "steerers[plots]"')
            return []
        for name, draw in self.plots.items():
            with atomic_write(folder / name) as temporary:
                draw(temporary)
        return list(self.plots)

    def _where(self) -> str:
        """Devices on which predictions were made, versions and commit."""
        where = self.environment
        if not where:
            return ""
        made = {look_up(row, "made", "device") for table in self.tables for row in table.rows} - {None}
        devices = ", ".join(sorted(made)) or where.get("device", "an unknown device")
        count = where.get("threads")
        threads = "" if count is None else f", {count} thread{'' if count == 1 else 's'}"
        versions = [f"{name} {where[name]}" for name in ("steerers", "python", *_PACKAGES) if where.get(name)]
        return f"Run on {devices}{threads}; {', '.join(versions)}; commit {where.get('commit') or 'unknown'}."


def finite(value: Any) -> Any:
    """The same value with ``None`` for every number that is NaN or infinite, and lists for tuples."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dump(value: Any) -> str:
    """JSON as it is written to files."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


# The paper's rows -----------------------------------------------------------------------------------------------------


def paper_rows(experiment: str, variant: str = "") -> list[TableRow]:
    """What the paper reports for an experiment; nothing where it has none.

    Args:
        experiment: ``"roto-360"`` (``precision``), ``"aims"`` (``ap``), ``"megadepth"`` (``auc``) or ``"runtime"``
            (``seconds``).
        variant: for MegaDepth ``"1500"``, ``"c4"``, ``"so2"`` or ``"joint"``.

    Returns:
        Rows with ``label``, ``model`` (``DESCRIPTOR[@DETECTOR]``), ``strategy``, ``source`` and ``table``, and numbers
        under the keys that our rows have. They are the caller's own.
    """
    return [_paper_row(printed) for printed in json.loads(_paper()).get(experiment, {}).get(variant, [])]


def _paper_row(printed: dict[str, Any]) -> TableRow:
    descriptor, detector, strategy = (printed.pop(key, None) for key in ("descriptor", "detector", "strategy"))
    model = descriptor if detector in (None, descriptor) else f"{descriptor}@{detector}"
    named = {} if strategy is None else {"strategy": {"name": strategy}}
    label = ", ".join(part for part in (model, strategy) if part)
    return {"label": label, "source": "paper", "model": model, **named, **printed}


@cache
def _paper() -> str:
    return resources.files("steerers.benchmarks").joinpath("data", "paper.json").read_text(encoding="utf-8")


# Where and with what --------------------------------------------------------------------------------------------------


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit and device."""
    import torch

    return {
        "steerers": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        **{name: _version(names) for name, names in _PACKAGES.items()},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the source tree that the package runs from, ``+`` if changed since; ``None`` if it is in none."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # it may be installed, in a foreign repository
        changed = _git("status", "--porcelain", "--untracked-files=no", ".")
        return _git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(SOURCE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _version(names: Sequence[str]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
