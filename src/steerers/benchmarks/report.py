"""Reports of benchmarks: what was measured, with what and where, as JSON and as a Markdown table."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import steerers
from steerers._version import __version__
from steerers.benchmarks.homographies import (
    AUC_PIXELS,
    CORRECT_PIXELS,
    Estimator,
    Outcome,
    Row,
    Table,
    summarise,
)
from steerers.benchmarks.protocol import ROTATIONS, Settings, describe_strategy, hash_pairs

_PACKAGES = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "pillow": ("pillow",),
    "opencv": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
}


# Where and with what --------------------------------------------------------------------------------------------------


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit and device."""
    return {
        "steerers": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        **{name: _version(names) for name, names in _PACKAGES.items()},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the kind of CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()} {platform.machine()}"


def commit() -> str | None:
    """The commit of the source tree that the package runs from, ``+`` if changed since; ``None`` if it is in none."""
    init = Path(steerers.__file__)
    if _git(init.parent, "ls-files", "--error-unmatch", init.name) is None:  # installed, maybe in a foreign repository
        return None
    head = _git(init.parent, "rev-parse", "HEAD")
    changed = _git(init.parent, "status", "--porcelain", "--untracked-files=no", ".")
    return None if head is None else head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(names: Sequence[str]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


# JSON -----------------------------------------------------------------------------------------------------------------


def homography_report(
    benchmark: str, tables: Sequence[Table], settings: Settings, estimator: Estimator, device: torch.device
) -> dict[str, Any]:
    """Everything about a homography benchmark as JSON: settings, environment, and a row and its pairs for each run."""
    return {
        "benchmark": benchmark,
        "settings": {
            "num_keypoints": sorted({row.run.pipeline.num_keypoints for table in tables for row in table.rows}),
            "max_size": settings.max_size,
            "corners": "masked" if settings.mask_corners else "black, not masked",
            "estimator": {"name": "OpenCV USAC_MAGSAC", **asdict(estimator)},
            "auc_pixels": list(AUC_PIXELS),
            "correct_pixels": CORRECT_PIXELS,
            "sequences": sorted({pair.sequence for table in tables for pair in table.pairs}),
        },
        "environment": environment(device),
        "tables": [_table(table) for table in tables],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "rotation": table.rotation,
        "description": ROTATIONS[table.rotation],
        "num_pairs": len(table.pairs),
        "pairs_sha256": hash_pairs(table.pairs),
        "rows": [_row(row) for row in table.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    pipeline = row.run.pipeline
    return {
        "label": row.run.label,
        "model": pipeline.model.name,
        "strategy": describe_strategy(pipeline.strategy),
        "made": row.predictions.made,
        **summarise(row.outcomes),
        "by_turn": _grouped(row.outcomes, lambda outcome: str(outcome.turn1)),
        "by_sequence": _grouped(row.outcomes, lambda outcome: outcome.sequence),
        "pairs": [_outcome(outcome) for outcome in row.outcomes],
    }


def _grouped(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, Any]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return {name: summarise(group) for name, group in groups.items()}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    """JSON knows no infinity: a failure has no corner error."""
    return {**asdict(outcome), "corner_error": None if outcome.failed else outcome.corner_error}


# Markdown -------------------------------------------------------------------------------------------------------------


def markdown(report: Mapping[str, Any]) -> str:
    """A report (or what was read from its JSON) as Markdown: a line of settings and a table for each rotation."""
    parts = [f"## {report['benchmark']}", _describe(report)]
    for table in report["tables"]:
        parts.append(
            f"### {table['rotation']}: {table['description']}\n\n"
            f"{table['num_pairs']} pairs, SHA-256 of the list `{table['pairs_sha256'][:16]}`."
        )
        parts.append(homography_table(table["rows"], report["settings"]))
    return "\n\n".join(parts) + "\n"


def homography_table(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """The Markdown table of the rows of one rotation."""
    correct = f"{settings['correct_pixels']:g}"
    head = ["model", "strategy", *(f"AUC@{pixels:g}" for pixels in settings["auc_pixels"]), f"precision@{correct}"]
    head += [f"repeatability@{correct}", "matches", "angle error", "failed", "s/image", "images/pair", "s/pair"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    order = row["strategy"].get("order")
    angle = row["angle_error_median"]
    return [
        row["model"],
        row["strategy"]["name"] + (f" ({order})" if order is not None else ""),
        *(_percent(area) for area in row["auc"].values()),
        _percent(row["precision"]),
        _percent(row["repeatability"]),
        f"{row['num_matches']:.0f}",
        "-" if angle is None else f"{angle:.1f}°",
        f"{row['num_failed']} of {row['num_pairs']}",
        f"{row['seconds_per_image']:.3g}",
        f"{row['extractions_per_pair']:g}",
        f"{row['seconds_per_pair']:.3g}",
    ]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _describe(report: Mapping[str, Any]) -> str:
    settings, where = report["settings"], report["environment"]
    estimator = settings["estimator"]
    keypoints = ", ".join(map(str, settings["num_keypoints"]))
    versions = ", ".join(f"{name} {where[name]}" for name in ("steerers", "python", *_PACKAGES) if where[name])
    made = sorted({row["made"]["device"] for table in report["tables"] for row in table["rows"] if row["made"]})
    return (
        f"At most {keypoints} keypoints an image, longest side {settings['max_size']} px, corners of turned images "
        f"{settings['corners']}. Homography by {estimator['name']}, {estimator['threshold']:g} px, confidence "
        f"{estimator['confidence']:g}, {estimator['max_iterations']} iterations, seed {estimator['seed']}; area under "
        f"the curve of the mean corner error. Shares in per cent; precision, matches and repeatability are means over "
        f"pairs, the angle error is the median; s/image is extraction, images/pair how often it runs, s/pair matching. "
        f"Matched on {', '.join(made) or where['device']}, {where['threads']} threads; {versions}; commit "
        f"{where['commit'] or 'unknown'}."
    )
