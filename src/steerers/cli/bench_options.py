"""What the subjects of ``steerers bench`` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import options

if TYPE_CHECKING:
    import torch


def add_measuring_options(parser: argparse.ArgumentParser, *, repeats: int) -> None:
    """How often and where it runs, and where the table goes."""
    parser.add_argument(
        "--repeats", type=options.positive, default=repeats, metavar="N", help="the median counts (%(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")


def print_setting(told: Mapping[str, Any]) -> None:
    """What was measured, and where, in one line."""
    print(", ".join(f"{key} {value}" for key, value in told.items()))


def write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report, if there is a path, as JSON without NaN."""
    if path is None:
        return
    from steerers._files import atomic_write

    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def environment(device: torch.device) -> dict[str, Any]:
    """What a timing depends on."""
    import torch

    from steerers._devices import device_name

    return {"device": device_name(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
