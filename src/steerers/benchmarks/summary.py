"""Several benchmarks in one table, beside what others print: put together from reports that were written before.

Rows of the reports are joined by their labels. Every number carries the number of the report that it is from, and what
the reports do not have in common stands below the table. ``data/peers.json`` holds what is printed elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from steerers._files import parse_json
from steerers.benchmarks.offers import ROTO_ORIGINAL
from steerers.benchmarks.report import MISSING, MODEL_COLUMNS, Column, Report, Table, TableRow, look_up

FILE = "report.json"
NAME = "summary"


class Part(NamedTuple):
    """A benchmark of a summary: what of its report becomes columns."""

    benchmark: str
    title: str  # of a column, with a place for the bound
    rotation: str  # of the table that counts
    metric: str
    bounds: tuple[str, ...]
    num_pairs: int  # that there are, for who has fewer


TABLES = {
    "redi": (
        Part("megadepth-c4", "MegaDepth-C4 AUC@{}°", "c4", "auc", ("5", "10", "20"), 1500),
        Part("scannet-c4", "ScanNet-C4 AUC@{}°", "c4", "auc", ("5", "10", "20"), 1500),
        Part("roto-360", "Roto-360 MMA@{}", "upright", "precision", ("3", "5", "10"), 350),
        Part("sat-ast", "SatAst AUC@{}", "upright", "auc", ("10",), 40),
    )
}
"""By name: the benchmarks on which REDI-Match (2026) compares with others."""


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Source:
    """A report, or the table of it that counts."""

    path: Path
    part: Part
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    num_pairs: int | None
    rows: list[TableRow]  # our own


def find_reports(given: Sequence[Path], folder: Path, table: str) -> list[Source]:
    """The reports that are named, each by its folder or file; or, if none is, those in ``folder`` that fit the table.

    They come in the order of the table's columns.

    Raises:
        ValueError: for what is no report, is one of another benchmark, or lacks what the table shows.
    """
    parts = {part.benchmark: part for part in TABLES[table]}
    names = ", ".join(parts)
    contents = {path: _read(path) for path in _files(given, folder)}
    for path, content in contents.items():
        if given and content["benchmark"] not in parts:
            raise ValueError(f"{path} is a report of {content['benchmark']!r}; --table {table} takes those of {names}")
    found = [
        _source(path, content, part)
        for part in parts.values()
        for path, content in contents.items()
        if content["benchmark"] == part.benchmark
    ]
    if not found:
        raise ValueError(f"there is no report of {names} in {folder}: run one of these first, or name its report")
    return found


def _files(given: Sequence[Path], folder: Path) -> list[Path]:
    if not given:
        return sorted(folder.glob(f"*/{FILE}"))
    files = [path / FILE if path.is_dir() else path for path in given]
    for path in files:
        if not path.is_file():
            raise ValueError(f"there is no {path}; give a folder or a {FILE} that `steerers eval` wrote")
    return list(dict.fromkeys(files))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
        whole = isinstance(content["benchmark"], str) and isinstance(content["settings"], dict)
        labels = [row["label"] for table in content["tables"] for row in table["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no report that `steerers eval` wrote ({type(error).__name__}: {error})") from error
    if not whole or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{path} is no report that `steerers eval` wrote")
    return dict(content)


def _source(path: Path, content: Mapping[str, Any], part: Part) -> Source:
    tables = [table for table in content["tables"] if table.get("rotation") == part.rotation]
    if not tables:
        raise ValueError(
            f"{path} has no table of rotation {part.rotation!r}, which is what counts: run {part.benchmark} with "
            f"--rotation {part.rotation}"
        )
    rows = [row for row in tables[0]["rows"] if "source" not in row]
    for row in rows:
        values = [look_up(row, part.metric, bound) for bound in part.bounds]
        if not all(value is None or (isinstance(value, (int, float)) and 0 <= value <= 1) for value in values):
            raise ValueError(f"{path}: {part.metric} of {row['label']!r} is no number from 0 to 1, got {values!r:.80}")
    environment = content.get("environment") or {}
    return Source(path, part, content["settings"], environment, tables[0].get("num_pairs"), rows)


# The table ------------------------------------------------------------------------------------------------------------


def make_report(sources: Sequence[Source], table: str) -> Report:
    """One table of all reports, and of what is printed elsewhere."""
    peers = json.loads(resources.files("steerers.benchmarks").joinpath("data", "peers.json").read_text("utf-8"))[table]
    printed = len(sources) + 1
    rows = [*_join(sources), *(_printed_row(row, printed) for row in peers["rows"])]
    columns = (*MODEL_COLUMNS, *(_column(part, bound) for part in TABLES[table] for bound in part.bounds))
    notes = [f"[{n}] {_describe(source)}" for n, source in enumerate(sources, start=1)]
    notes += [f"[{printed}] {peers['source']}, as they print them.", *_differences(sources)]
    description = (
        "Put together from reports of `steerers eval`, rows joined by their labels, and from what others print: per "
        "cent, with where a number is from in brackets, and a dash for what is missing."
    )
    settings = {"table": table, "sources": [str(source.path) for source in sources] + [peers["source"]]}
    title = f"{table}: beside {', '.join(row['label'] for row in peers['rows'])}"
    return Report(NAME, description, settings, {}, [Table(title, columns, rows, notes=tuple(notes))])


def _join(sources: Sequence[Source]) -> list[TableRow]:
    """A row a label, with the results of every benchmark that has it."""
    joined: dict[str, TableRow] = {}
    for n, source in enumerate(sources, start=1):
        name, metric = source.part.benchmark, source.part.metric
        for row in source.rows:
            known = {key: row.get(key) for key in ("label", "model", "strategy")}
            results = joined.setdefault(row["label"], {**known, "results": {}})["results"]
            if name in results:
                before = sources[results[name]["source"] - 1].path
                raise ValueError(
                    f"{before} and {source.path} both hold {name} of {row['label']!r}: name one of them, not both"
                )
            results[name] = {metric: row.get(metric), "source": n}
    return list(joined.values())


def _printed_row(row: TableRow, number: int) -> TableRow:
    results = {name: {**result, "source": number} for name, result in row["results"].items()}
    return {**row, "source": "printed", "results": results}


def _column(part: Part, bound: str) -> Column:
    """The number in per cent, and that of its source."""

    def cell(row: Mapping[str, Any]) -> str:
        value = look_up(row, "results", part.benchmark, part.metric, bound)
        return MISSING if value is None else f"{100 * value:.1f} [{row['results'][part.benchmark]['source']}]"

    return Column(part.title.format(bound), cell)


# What stands below ----------------------------------------------------------------------------------------------------


def _describe(source: Source) -> str:
    """A report in a line."""
    count, all_pairs, data = source.num_pairs, source.part.num_pairs, source.settings.get("data")
    pairs = f"{count} pairs" if count == all_pairs else f"{count} pairs instead of {all_pairs}, not to be compared"
    like = f", {data} data, not to be compared" if data not in (None, ROTO_ORIGINAL) else ""
    made = f"steerers {source.environment.get('steerers', 'unknown')}, commit {_commit(source)}"
    return f"{source.path}: {source.part.benchmark}, {pairs}{like}; {_shown(source)}; {made}."


def _commit(source: Source) -> str:
    commit = str(source.environment.get("commit") or "unknown")
    return f"{commit[:12]}{'+' if commit.endswith('+') else ''}"


def _shown(source: Source) -> str:
    """What images the matchers saw."""
    keypoints, side = _keypoints(source), source.settings.get("max_size", "unknown")
    size = f"squashed to {side} x {side} px" if _resize(source) == "squash" else f"longest side {side} px"
    return f"at most {keypoints} keypoints, {size}"


def _keypoints(source: Source) -> str:
    told = source.settings.get("num_keypoints", "unknown")
    return ", ".join(map(str, told)) if isinstance(told, list) else str(told)


def _resize(source: Source) -> str:
    return str(source.settings.get("resize", "fit"))


def _estimator(source: Source) -> str | None:
    """Of poses, which is one for all; benchmarks of homographies have their own."""
    told = source.settings.get("estimator")
    if "auc_degrees" not in source.settings or not isinstance(told, Mapping):
        return None
    return f"{told.get('name')} {told.get('threshold')} px, {told.get('runs')} runs"


def _differences(sources: Sequence[Source]) -> list[str]:
    """A line for each thing that the reports do not have in common."""
    compared: dict[str, Callable[[Source], str | None]] = {
        "keypoints": _keypoints,
        "max_size": lambda source: str(source.settings.get("max_size", "unknown")),
        "resize": _resize,
        "estimator of poses": _estimator,
        "commit": _commit,
    }
    lines = [_difference(name, map(told, sources)) for name, told in compared.items()]
    for label in dict.fromkeys(row["label"] for source in sources for row in source.rows):
        strategies = [_strategy(source, label) for source in sources]
        options = dict.fromkeys(option for strategy in strategies for option in strategy)
        lines += [
            _difference(f"{option} of {label}", (found.get(option) for found in strategies)) for option in options
        ]
    return [line for line in lines if line]


def _strategy(source: Source, label: str) -> dict[str, str]:
    """Its options, as text; nothing where the report has no such row."""
    told = next((row.get("strategy") for row in source.rows if row["label"] == label), None)
    return {f"strategy's {key}": str(value) for key, value in told.items()} if isinstance(told, Mapping) else {}


def _difference(name: str, told: Iterable[str | None]) -> str:
    """Who says what, if not all of those that say something say the same."""
    places: dict[str, str] = {}
    for n, value in enumerate(told, start=1):
        if value is not None:
            places[value] = f"{places.get(value, '')}[{n}]"
    return "" if len(places) < 2 else f"Differs: {name}: {'; '.join(f'{value} {at}' for value, at in places.items())}."
