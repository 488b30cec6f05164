"""The plots of reports and of training runs: labelled curves, histograms and bars, with one look.

Matplotlib is an extra (``pip install "steerers[plots]"``) and is imported when a plot is drawn. Figures are made
without pyplot, so that nothing global changes and no window system is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steerers._files import atomic_write

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which the colour-blind tell apart, without the yellow that paper swallows."""
BINS = 36
"""Of a histogram of angles: 10 degrees each."""
LINES = ("-", "--", ":", "-.")
WIDTH, HEIGHT, DPI = 7.0, 4.2, 150  # of the axes with their labels, inches; the legend comes below
_NOT_LOSSES = {"step", "gradient", "learning_rate", "seconds"}
_FEW = 30  # points of a curve that are marked
_LEGEND_ROW = 0.22  # inches
_LEGEND_CHARACTERS = 96  # that fit into the width

Values = Sequence[float | None] | NDArray[Any]
Range = tuple[float, float]
Curves = dict[str, tuple[list[float], list[float]]]
"""Steps of a run and values, by label."""


def curves(
    path: Path,
    series: Mapping[str, tuple[Values, Values]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    step: Literal["pre", "post"] | None = None,
    xlim: Range | None = None,
    ylim: Range | None = None,
    xticks: Sequence[float] | None = None,
    markers: bool = False,
) -> None:
    """Draw labelled lines.

    Args:
        path: of the picture; its ending says the format.
        series: x and y of each line by its label. A value that is ``None`` or NaN leaves a gap.
        step: level between points: with ``"pre"`` a value holds back to the point before (precision over recall), with
            ``"post"`` on to the next (recall over error).
        markers: mark the points too, for few of them.
    """
    with _axes(path, list(series), xlabel, ylabel, title) as axes:
        for (label, (x, y)), (colour, line) in zip(series.items(), _styles(), strict=False):
            axes.plot(
                _floats(x),
                _floats(y),
                label=_plain(label),
                color=colour,
                linestyle=line,
                linewidth=1.6,
                drawstyle="default" if step is None else f"steps-{step}",
                marker="o" if markers else None,
                markersize=3.5,
            )
        limits = {"xticks": xticks, "xlim": xlim, "ylim": ylim}
        axes.set(**{name: limit for name, limit in limits.items() if limit is not None})


def angle_histogram(path: Path, series: Mapping[str, Values], *, ylabel: str, title: str = "") -> None:
    """Draw outlines of histograms of angles in degrees, one over the other, -180 to 180 with a bin centred on 0.

    Args:
        path: of the picture; its ending says the format.
        series: values by label; those that are ``None``, NaN or infinite are left out.
    """
    edges = np.linspace(-180, 180, BINS + 1) - 180 / BINS
    with _axes(path, list(series), "angle in degrees, counter-clockwise", ylabel, title) as axes:
        for (label, found), (colour, line) in zip(series.items(), _styles(), strict=False):
            angles = _floats(found)
            wrapped = np.mod(angles[np.isfinite(angles)] - edges[0], 360) + edges[0]
            heights = np.histogram(wrapped, edges)[0].astype(np.float64)
            axes.stairs(heights, edges, label=_plain(label), color=colour, linestyle=line, linewidth=1.6)
            if len(series) == 1:
                axes.stairs(heights, edges, fill=True, alpha=0.25, color=colour)
        axes.set(xticks=range(-180, 181, 45), xlim=(edges[0], edges[-1]))
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)


def bars(path: Path, rows: Sequence[str], series: Mapping[str, Values], *, xlabel: str, title: str = "") -> None:
    """Draw a horizontal bar a row, made of the series one after the other; ``None`` is nothing.

    Args:
        path: of the picture; its ending says the format.
        rows: labels, from the top down.
        series: by label, as many values as rows.
    """
    positions = np.arange(len(rows))
    with _axes(path, list(series), xlabel, "", title, height=0.9 + 0.28 * len(rows)) as axes:
        left = np.zeros(len(rows))
        for (label, values), (colour, _) in zip(series.items(), _styles(), strict=False):
            lengths = np.nan_to_num(_floats(values))
            axes.barh(positions, lengths, left=left, height=0.7, label=_plain(label), color=colour)
            left = left + lengths
        axes.set_yticks(positions, [_plain(row) for row in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")


# Training runs --------------------------------------------------------------------------------------------------------


def draw_run(entries: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Draw the losses and the measures on held-out pairs of a run's log into a folder; the names of the pictures.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    drawn = []
    for name, found, limits in (
        ("losses", _losses(entries), None),
        ("accuracy", _measures(entries, "accuracy"), (0.0, 1.0)),
        ("repeatability", _measures(entries, "repeatability"), (0.0, 1.0)),
    ):
        if found:
            few = max(len(steps) for steps, _ in found.values()) < _FEW
            curves(folder / f"{name}.png", found, xlabel="step", ylabel=name, ylim=limits, markers=few)
            drawn.append(f"{name}.png")
    return drawn


def by_rotation(measured: Mapping[str, float], name: str) -> dict[int, float]:
    """What validation measured under that name (``name@degrees``), by degrees."""
    parts = ((key.partition("@"), value) for key, value in measured.items())
    return {int(degrees): value for (own, at, degrees), value in parts if own == name and at}


def _losses(entries: Sequence[dict[str, Any]]) -> Curves:
    """All losses of the training, and the likelihood on held-out pairs."""
    found: Curves = {}
    for entry in entries:
        for name in entry if "loss" in entry else ():
            if name not in _NOT_LOSSES and not name.endswith("_ms"):
                _add(found, name, entry["step"], entry[name])
        if "nll" in entry.get("validation", {}):
            _add(found, "nll, held out", entry["step"], entry["validation"]["nll"])
    return found


def _measures(entries: Sequence[dict[str, Any]], name: str) -> Curves:
    """What was measured on held-out pairs, by rotation."""
    found: Curves = {}
    for entry in entries:
        for degrees, value in by_rotation(entry.get("validation", {}), name).items():
            _add(found, f"{name}, {degrees}°", entry["step"], value)
    return found


def _add(found: Curves, label: str, step: float, value: float) -> None:
    steps, values = found.setdefault(label, ([], []))
    steps.append(step)
    values.append(value)


# Shared ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _axes(
    path: Path, labels: Sequence[str], xlabel: str, ylabel: str, title: str, height: float = HEIGHT
) -> Iterator[Any]:
    """Axes to draw on; when the block ends the legend is put below them and the picture is written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "steerers[plots]"') from error
    number = len(labels)
    if not number:
        raise ValueError(f"nothing to draw for {path.name}: give at least one series")
    columns = max(1, min(number, _LEGEND_CHARACTERS // (max(len(label) for label in labels) + 8)))
    legend = 0.15 + _LEGEND_ROW * math.ceil(number / columns)
    figure = Figure(figsize=(WIDTH, height + legend), dpi=DPI, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    axes = figure.add_subplot()
    axes.set(xlabel=_plain(xlabel), ylabel=_plain(ylabel), title=_plain(title))
    axes.title.set_fontsize("medium")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    with atomic_write(path) as temporary:
        figure.savefig(temporary)


def _styles() -> Iterator[tuple[str, str]]:
    """Colours, then the same with another line, without end."""
    return ((colour, line) for line, colour in cycle(product(LINES, PALETTE)))


def _floats(values: Values) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else float(value) for value in values], np.float64)


def _plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
