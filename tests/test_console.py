"""What is said during long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import sys

import pytest

from steerers import _console
from steerers._console import Progress, duration, tell


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only element."""
    now = [100.0]
    monkeypatch.setattr(_console.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun."""
    monkeypatch.delenv("RANK", raising=False)


def work(clock: list[float], seconds: list[float], total: int = 10_000, done: int = 0) -> None:
    with Progress("training", total, "step", done=done) as shown:
        for number, spent in enumerate(seconds):
            clock[0] += spent
            shown.note = f"loss {number}"
            shown.advance()


def test_a_log_gets_lines_from_the_first_moment_on(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading photographs", 3, "photograph"):
        assert capsys.readouterr().err == "reading photographs\n"
    work(clock, [3.2, 30.0, 29.9, 0.2, 50.0, 15.0])
    assert capsys.readouterr().err.splitlines() == [
        "training",
        "step 1 of 10,000, 3.2 s a step, about 9 h left, loss 0",
        "step 4 of 10,000, 20 s a step, about 2 days left, loss 3",  # a minute later, of the steps since
        "step 6 of 10,000, 32 s a step, about 4 days left, loss 5",
    ]


def test_what_is_done_soon_has_one_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    work(clock, [0.1, 0.1], total=2)
    work(clock, [], total=0)
    assert capsys.readouterr().err == "training\n"


def test_a_resumed_run_counts_from_where_it_was(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    work(clock, [2.0], total=1000, done=900)
    assert "step 901 of 1,000, 2.0 s a step, about 3 min left" in capsys.readouterr().err


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("training", 5, "step", done=2) as shown:
        assert "training:  40%" in terminal.getvalue()  # at once
        shown.note = "loss 1.5"
        for _ in range(3):
            shown.advance()
            shown._bar.refresh()
        assert "5/5" in terminal.getvalue()
        assert "loss 1.5" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()


def test_a_terminal_without_tqdm_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("training", 5, "step"):
        assert terminal.getvalue() == "training\n"


def test_of_several_processes_the_first_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    tell("left out")
    with Progress("training", 5, "step") as shown:
        shown.advance()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert Progress("training", 5, "step")._bar is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.035, "35 ms"),
        (3.21, "3.2 s"),
        (9.96, "10 s"),
        (119.0, "119 s"),
        (2400, "40 min"),
        (3e4, "8 h"),
        (3e5, "3 days"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
