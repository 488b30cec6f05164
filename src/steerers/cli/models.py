"""``steerers models``: the zoo, and which of its weights are here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._choices import DEFAULT_MODEL
from steerers._console import STANDARD, Option
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.models.downloads import WeightFile
    from steerers.models.zoo import DetectorEntry, Entry


def run(arguments: argparse.Namespace) -> int:
    """Print a table, or write JSON."""
    from steerers.models.downloads import home
    from steerers.models.zoo import ALIASES, DETECTORS, ZOO, find

    options.check_output(arguments.json)
    models = [
        _record(entry, entry.weights)
        | {"default": entry is find(DEFAULT_MODEL), "dim": entry.dim, "group": entry.group and str(entry.group)}
        | {"also": [alias for alias, name in ALIASES.items() if name == entry.name]}
        for entry in ZOO.values()
    ]
    detectors = [_record(entry, entry.part.weights) for entry in DETECTORS.values()]
    if arguments.json is None:
        common = ("size", "licence", "weights", "what")
        options.say(options.table([("model", "dim", "group", *common), *map(_model_row, models)]) + "\n")
        options.say(options.table([("detector", *common), *map(_detector_row, detectors)]))
        options.say(f"\nWeights are kept in {home()} (STEERERS_HOME).")
        return 0
    found = {"folder": str(home()), "models": models, "detectors": detectors}
    options.write(arguments.json, json.dumps(found, indent=1) + "\n")
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
    from steerers.models.downloads import find

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
    what += "".join(f", or {name}" for name in entry.get("also", ()))
    return (entry["name"], _megabytes(entry["bytes"]), entry["licence"], entry["status"], what)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.{0 if count >= 1e8 else 1}f} MB"


COMMAND = Command(
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
            const=STANDARD,
        )
    ],
    run=run,
)
