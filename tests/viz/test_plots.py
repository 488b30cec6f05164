"""Plots: a picture comes out, it holds what was given, and without matplotlib the message says what to install."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("matplotlib")

from steerers.viz import plots
from steerers.viz.plots import by_rotation, draw_run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of every plot that a test draws."""
    kept: list[Any] = []
    original = plots._axes

    @contextmanager
    def keep(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with original(*args, **kwargs) as axes:
            kept.append(axes)
            yield axes

    monkeypatch.setattr(plots, "_axes", keep)
    return kept


def draw_curves(path: Path) -> None:
    plots.curves(path, {"a": ([0, 1], [0, 1]), "b": ([0, 1], [1, None])}, xlabel="x", ylabel="y", title="t")


def draw_angles(path: Path) -> None:
    plots.angle_histogram(path, {"a": [1.0, 359.0], "b": [180.0, None]}, ylabel="pairs")


def draw_bars(path: Path) -> None:
    plots.bars(path, ["one", "two"], {"first": [1, 2], "second": [3, None]}, xlabel="ms")


ALL = [draw_curves, draw_angles, draw_bars]


@pytest.mark.parametrize("draw", ALL)
def test_a_readable_picture(draw: Callable[[Path], None], tmp_path: Path) -> None:
    draw(tmp_path / "plot.png")
    with PIL.Image.open(tmp_path / "plot.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 900
        assert picture.height > 250
        assert np.asarray(picture.convert("L")).std() > 5
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("draw", ALL)
def test_without_matplotlib_the_message_says_what_to_install(
    draw: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "steerers\[plots\]"'):
        draw(tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []


def test_curves_hold_the_values_with_gaps_and_steps(tmp_path: Path, drawn: list[Any]) -> None:
    series = {"a": ([0, 1, 2], [1.0, None, 0.5]), "b": (np.arange(3), np.ones(3))}
    plots.curves(
        tmp_path / "p.svg", series, xlabel="x", ylabel="y", step="pre", xlim=(0, 3), ylim=(0, 2), xticks=[0, 3]
    )
    first, second = drawn[0].lines
    assert [first.get_label(), second.get_label()] == ["a", "b"]
    np.testing.assert_array_equal(first.get_ydata(), [1.0, np.nan, 0.5])
    assert first.get_drawstyle() == "steps-pre"
    assert first.get_color() != second.get_color()
    assert (drawn[0].get_xlim(), drawn[0].get_ylim()) == ((0, 3), (0, 2))


def test_many_curves_are_told_apart(tmp_path: Path, drawn: list[Any]) -> None:
    plots.curves(tmp_path / "p.png", {f"m{k}": ([0, 1], [k, k]) for k in range(20)}, xlabel="x", ylabel="y")
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn[0].lines}) == 20


def test_dollars_are_no_mathematics(tmp_path: Path) -> None:
    plots.curves(tmp_path / "p.png", {"$\\broken": ([0, 1], [0, 1])}, xlabel="$", ylabel="a$b$", title="$\\frac$")


def test_angles_wrap_and_a_bin_is_centred_on_0(tmp_path: Path, drawn: list[Any]) -> None:
    angles = {"a": [-4.9, 4.9, 356, 0, None, float("nan")], "b": [180, -180, 176, -176, 540]}
    plots.angle_histogram(tmp_path / "p.png", angles, ylabel="pairs")
    (first, second), edges = drawn[0].patches, drawn[0].patches[0].get_data().edges
    assert len(edges) == 37
    assert first.get_data().values[18] == 4
    assert edges[18] == pytest.approx(-5)
    assert first.get_data().values.sum() == 4
    assert second.get_data().values[0] == 5
    ticks = drawn[0].get_yticks()
    np.testing.assert_array_equal(ticks, np.round(ticks))  # there are no halves of a number


def test_bars_stack_from_the_top_down(tmp_path: Path, drawn: list[Any]) -> None:
    plots.bars(tmp_path / "p.png", ["one", "two"], {"first": [1, 2], "second": [3, None]}, xlabel="ms")
    assert [(bar.get_x(), bar.get_width()) for bar in drawn[0].patches] == [(0, 1), (0, 2), (1, 3), (2, 0)]
    assert drawn[0].yaxis_inverted()


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing to draw for p\.png"):
        plots.curves(tmp_path / "p.png", {}, xlabel="x", ylabel="y")


# Training runs --------------------------------------------------------------------------------------------------------

ENTRIES: list[dict[str, Any]] = [
    {"step": 1, "loss": 3.0, "keypoints": 2.0, "learning_rate": 1.0, "gradient": 1.0, "data_ms": 5.0, "seconds": 1.0},
    {"step": 2, "loss": 2.0, "nll": 1.5, "wait_ms": 1.0},
    {"step": 2, "validation": {"nll": 4.0, "nll@0": 4.0, "accuracy": 0.5, "accuracy@0": 0.6, "accuracy@90": 0.4}},
    {"step": 4, "validation": {"nll": 3.0, "accuracy@90": 0.5}, "ended": "finished"},
]


def test_losses_and_measures_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "curves", lambda path, curves, **options: drawn.update({path.name: curves}))
    assert draw_run(ENTRIES, tmp_path) == ["losses.png", "accuracy.png"]
    assert drawn["losses.png"] == {
        "loss": ([1, 2], [3.0, 2.0]),
        "keypoints": ([1], [2.0]),
        "nll": ([2], [1.5]),
        "nll, held out": ([2, 4], [4.0, 3.0]),
    }
    assert drawn["accuracy.png"] == {"accuracy, 0°": ([2], [0.6]), "accuracy, 90°": ([2, 4], [0.4, 0.5])}
    assert draw_run([], tmp_path) == []


def test_measures_by_rotation() -> None:
    assert by_rotation(ENTRIES[2]["validation"], "accuracy") == {0: 0.6, 90: 0.4}
    assert by_rotation({"accuracy": 0.5}, "accuracy") == {}
