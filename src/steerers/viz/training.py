"""The curves of a training run: its losses, and what was measured on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steerers.viz import plots

_NOT_LOSSES = {"step", "gradient", "learning_rate", "seconds"}
_FEW = 30  # points of a curve that are marked

Curves = dict[str, tuple[list[float], list[float]]]
"""Steps and values by label."""


def draw_run(entries: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Draw the losses and the measures of a run's log into a folder; the names of the pictures.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    drawn = []
    for name, curves, limits in (
        ("losses", _losses(entries) | _measures(entries, "nll", mean=True), None),
        ("accuracy", _measures(entries, "accuracy"), (0.0, 1.0)),
        ("repeatability", _measures(entries, "repeatability"), (0.0, 1.0)),
    ):
        if curves:
            few = max(len(steps) for steps, _ in curves.values()) < _FEW
            plots.curves(folder / f"{name}.png", curves, xlabel="step", ylabel=name, ylim=limits, markers=few)
            drawn.append(f"{name}.png")
    return drawn


def by_rotation(measured: Mapping[str, float], name: str) -> dict[int, float]:
    """What validation measured under that name (``name@degrees``), by degrees."""
    parts = ((key.partition("@"), value) for key, value in measured.items())
    return {int(degrees): value for (own, at, degrees), value in parts if own == name and at}


def _losses(entries: Sequence[dict[str, Any]]) -> Curves:
    curves: Curves = {}
    for entry in entries:
        for name in entry if "loss" in entry else ():
            if name not in _NOT_LOSSES and not name.endswith("_ms"):
                _add(curves, name, entry["step"], entry[name])
    return curves


def _measures(entries: Sequence[dict[str, Any]], name: str, *, mean: bool = False) -> Curves:
    """What was measured on held-out pairs: its mean, or by rotation."""
    curves: Curves = {}
    for entry in entries:
        measured = entry.get("validation", {})
        if mean and name in measured:
            _add(curves, f"{name}, held out", entry["step"], measured[name])
        elif not mean:
            for degrees, value in by_rotation(measured, name).items():
                _add(curves, f"{name}, {degrees}°", entry["step"], value)
    return curves


def _add(curves: Curves, label: str, step: float, value: float) -> None:
    steps, values = curves.setdefault(label, ([], []))
    steps.append(step)
    values.append(value)
