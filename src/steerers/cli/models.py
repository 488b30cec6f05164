"""``steerers models``: the zoo, and which of its weights are here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steerers._console import Option
from steerers.benchmarks.report import write_text
from steerers.cli import options
from steerers.cli.options import Command
from steerers.models.downloads import WeightFile, find, home
from steerers.models.zoo import DEFAULT_MODEL, DETECTORS, ZOO, DetectorEntry, Entry

STANDARD_OUTPUT = Path("-")


def run(arguments: argparse.Namespace) -> int:
    """Print a table, or write JSON."""
    if arguments.json not in (None, STANDARD_OUTPUT):
        options.check_output(arguments.json)
    models = [
        _record(entry, entry.weights)
        | {"default": entry.name == DEFAULT_MODEL, "dim": entry.dim, "group": entry.group and str(entry.group)}
        for entry in ZOO.values()
    ]
    detectors = [_record(entry, entry.part.weights) for entry in DETECTORS.values()]
    if arguments.json is None:
        common = ("size", "licence", "weights", "what")
        print(options.table([("model", "dim", "group", *common), *map(_model_row, models)]), end="\n\n")
        print(options.table([("detector", *common), *map(_detector_row, detectors)]))
        print(f"\nWeights are kept in {home()} (STEERERS_HOME).")
        return 0
    text = json.dumps({"folder": str(home()), "models": models, "detectors": detectors}, indent=1)
    if arguments.json == STANDARD_OUTPUT:
        print(text)
    else:
        write_text(arguments.json, text + "\n")
    return 0


# Records --------------------------------------------------------------------------------------------------------------


def _record(entry: Entry | DetectorEntry, files: Iterable[WeightFile]) -> dict[str, Any]:
    described = [_file(file) for file in files]
    missing = [file for file in described if file["path"] is None]
    if not described:
        status = "embedded"
    elif not missing:
        status = "here"
    elif any(not file["urls"] for file in missing):
        status = "missing: by hand"
    else:
        status = f"missing: {_megabytes(_total(missing))} to download"
    own = {"name": entry.name, "summary": entry.summary, "licence": entry.licence}
    return own | {"bytes": _total(described), "status": status, "weights": described}


def _file(file: WeightFile) -> dict[str, Any]:
    path = find(file, check=False)
    here = {"bytes": file.size if path is None else path.stat().st_size, "path": None if path is None else str(path)}
    told = {name: getattr(file, name) for name in ("name", "urls", "sha256", "licence", "note")}
    return told | here


def _total(described: Iterable[dict[str, Any]]) -> int:
    return sum(file["bytes"] or 0 for file in described)


# Tables ---------------------------------------------------------------------------------------------------------------


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    name, _, *rest = _detector_row(model)
    size = _megabytes(model["bytes"]) if model["weights"] else "-"
    return (name, str(model["dim"]), model["group"] or "-", size, *rest)


def _detector_row(entry: dict[str, Any]) -> tuple[str, ...]:
    what = entry["summary"] + (" (default)" if entry.get("default") else "")
    return (entry["name"], _megabytes(entry["bytes"]), entry["licence"], entry["status"], what)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.{0 if count >= 1e8 else 1}f} MB"


COMMAND = Command(
    name="models",
    help="list the models",
    description="List what --model, --detector and steerers.load() know, and whether the weights are here.",
    example="""\
  steerers models
  steerers models --json models.json
""",
    options=[
        Option(
            "--json",
            "the same and more as JSON, to FILE or else to standard output",
            Path,
            "FILE",
            nargs="?",
            const=STANDARD_OUTPUT,
        )
    ],
    run=run,
)
