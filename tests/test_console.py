"""What is said, where it goes, and what is shown during long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import logging
import sys
from itertools import count

import pytest

from steerers import _console
from steerers._console import OUTPUT, Progress, duration, noted, progress, shown, tell


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


@pytest.fixture(autouse=True)
def notes(caplog: pytest.LogCaptureFixture) -> None:
    """What is noted is logged."""
    caplog.set_level("INFO")


def work(clock: list[float], seconds: list[float], total: int = 10_000, done: int = 0) -> None:
    with Progress("training", total, "step", done=done) as going:
        for number, spent in enumerate(seconds):
            clock[0] += spent
            going.note = f"loss {number}"
            going.advance()


def test_a_log_gets_lines_from_the_first_moment_on(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with Progress("reading photographs", 3, "photograph"):
        assert caplog.messages == ["reading photographs"]
    work(clock, [3.2, 30.0, 29.9, 0.2, 50.0, 15.0])
    assert caplog.messages[1:] == [
        "training",
        "step 1 of 10,000, 3.2 s a step, about 9 h left, loss 0",
        "step 4 of 10,000, 20 s a step, about 2 days left, loss 3",  # a minute later, of the steps since
        "step 6 of 10,000, 32 s a step, about 4 days left, loss 5",
    ]


def test_what_is_done_soon_has_one_line(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    work(clock, [0.1, 0.1], total=2)
    work(clock, [], total=0)
    assert caplog.messages == ["training"]


def test_a_resumed_run_counts_from_where_it_was(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    work(clock, [2.0], total=1000, done=900)
    assert "step 901 of 1,000, 2.0 s a step, about 3 min left" in caplog.messages[1]


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("training", 5, "step", done=2) as going:
        assert "training:  40%" in terminal.getvalue()  # at once
        going.note = "loss 1.5"
        for _ in range(3):
            going.advance()
            going._bar.refresh()
        assert "5/5" in terminal.getvalue()
        assert "loss 1.5" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()


def test_a_terminal_without_tqdm_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown(logging.INFO, io.StringIO()), Progress("training", 5, "step"):
        assert terminal.getvalue() == "training\n"


def test_a_log_is_told_of_long_loops(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    seen = []
    for item in noted(iter("abc"), "describing", 10_000):
        seen.append(item)
        clock[0] += 5.0
    assert seen == ["a", "b", "c"]
    assert caplog.messages == ["describing", "part 1 of 10,000, 5.0 s a part, about 14 h left"]


def test_of_several_processes_the_first_speaks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    tell("left out")
    with Progress("training", 5, "step") as going:
        going.advance()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert Progress("training", 5, "step")._bar is None
    assert caplog.messages == []


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


# Where it goes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "output", "said"),
    [
        (logging.INFO, "table\n", "note\nwarning: careful\nbroken\n"),
        (logging.DEBUG, "table\n", "detail\nnote\nwarning: careful\nbroken\n"),
        (logging.ERROR, "", "broken\n"),
    ],
)
def test_output_and_what_else_is_said_have_streams_of_their_own(
    monkeypatch: pytest.MonkeyPatch, level: int, output: str, said: str
) -> None:
    streams = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", streams[1])
    logger = logging.getLogger("steerers.somewhere")
    with shown(level, streams[0]):
        OUTPUT.info("table")
        logger.debug("detail")
        tell("note")
        logger.warning("careful")
        logger.error("broken")
    OUTPUT.info("later")
    logger.error("later")
    assert tuple(stream.getvalue() for stream in streams) == (output, said)


def test_a_line_is_shown_in_whatever_encoding() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    with shown(logging.INFO, stream):
        OUTPUT.info("wrote Bökman.png")
    assert raw.getvalue() == b"wrote B\\xf6kman.png\n"


@pytest.mark.parametrize(
    ("stream", "level", "drawn"),
    [
        (Terminal(), logging.INFO, True),
        (io.StringIO(), logging.INFO, False),
        (Terminal(), logging.ERROR, False),
        (io.StringIO(), logging.ERROR, False),
    ],
    ids=["terminal", "file", "quiet", "quiet file"],
)
def test_progress_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: int, drawn: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("tqdm.std.time", count(0.0, 3.0).__next__)  # at every look three seconds later
    with shown(level, io.StringIO()):
        assert list(progress("abc", "counting")) == list("abc")
    assert ("counting" in stream.getvalue()) == drawn
