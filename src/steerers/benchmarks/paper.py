"""The paper's own numbers, as rows for the tables of the benchmarks.

``data/paper.json`` holds what Tables 1 to 6 of "Steerers: A framework for rotation equivariant keypoint descriptors"
(CVPR 2024) print, models and strategies by the names that they have there. Shares are 0 to 1 and times are seconds, as
in our rows. Table 3 is a part of Table 5; a row of both is said to be of Table 3.

On MegaDepth-1500 the paper matches by the dual softmax, whatever the strategy of the row. Rows of one descriptor that
differ there all the same are kept under the strategy they are printed with.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


def rows(benchmark: str, variant: str = "") -> list[dict[str, Any]]:
    """What the paper reports for an experiment; nothing where it has none.

    Args:
        benchmark: ``"roto-360"`` (``precision``), ``"aims"`` (``ap``), ``"megadepth"`` (``auc``) or ``"runtime"``
            (``seconds``).
        variant: for MegaDepth ``"1500"``, ``"c4"``, ``"so2"`` or ``"joint"``.

    Returns:
        Rows with ``label``, ``model`` (``DESCRIPTOR[@DETECTOR]``), ``strategy``, ``source`` and ``table``, and numbers
        under the keys that our rows have. They are the caller's own.
    """
    return [_row(printed) for printed in json.loads(_text()).get(benchmark, {}).get(variant, [])]


def experiments() -> dict[str, list[str]]:
    """The variants of every benchmark that the paper has numbers for."""
    return {benchmark: list(variants) for benchmark, variants in json.loads(_text()).items()}


def _row(printed: dict[str, Any]) -> dict[str, Any]:
    descriptor, detector, strategy = (printed.pop(key, None) for key in ("descriptor", "detector", "strategy"))
    model = descriptor if detector in (None, descriptor) else f"{descriptor}@{detector}"
    named = {} if strategy is None else {"strategy": {"name": strategy}}
    label = ", ".join(part for part in (model, strategy) if part)
    return {"label": label, "source": "paper", "model": model, **named, **printed}


@cache
def _text() -> str:
    return resources.files("steerers.benchmarks").joinpath("data", "paper.json").read_text(encoding="utf-8")
