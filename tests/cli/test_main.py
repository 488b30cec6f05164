"""The command ``steerers`` itself: help, version, exit codes, and what reaches the terminal."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import steerers
from helpers import EXAMPLES, Ran, run_command
from steerers.cli import OUT_OF_MEMORY, Parser, main, make_parser

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


def commands(parser: argparse.ArgumentParser, *above: str) -> list[list[str]]:
    """Every command and subcommand, as typed."""
    assert isinstance(parser, Parser)
    parser.fill()
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                found += [[*above, name], *commands(child, *above, name)]
    return found


COMMANDS = commands(make_parser())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command line."""
    try:
        code: Any = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    return code, *capsys.readouterr()


def examples(text: str) -> list[list[str]]:
    """The command lines below ``example:`` in a help text, without the program's name."""
    _, _, below = text.partition("\nexample:\n")
    lines = below.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("steerers ")]


# Help and version -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    code, out, err = run(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: steerers {' '.join(command)} ")
    found = examples(out)
    assert any(example[: len(command)] == command for example in found)
    for example in found:
        assert callable(make_parser().parse_args(example).run)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert ["bench", "match"] in COMMANDS
    for name, *_ in COMMANDS:
        assert re.search(rf"^ +{name} +\w", out, re.MULTILINE), name


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"steerers {steerers.__version__}\n", "")


@pytest.mark.parametrize("given", [None, "7"])
def test_threads_that_wait_soon_sleep(given: str | None) -> None:
    """Set before PyTorch is imported, which reads it once, and only if the user has not."""
    code = """
import os, sys, steerers.cli
assert "torch" not in sys.modules
try:
    steerers.cli.main(["--version"])
except SystemExit:
    print(os.environ["GOMP_SPINCOUNT"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if given is None else {"GOMP_SPINCOUNT": given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == (given or "20000")


def test_models_marks_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models")
    assert (code, err) == (0, "")
    (default,) = (line for line in out.splitlines() if "(default)" in line)
    assert default.split()[0] == steerers.load().model.name


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "steerers: the following arguments are required: COMMAND (see steerers --help)"),
        (["no-such"], "steerers: argument COMMAND: invalid choice: 'no-such'"),
        (["--no-such"], "steerers: "),
        (["match"], "steerers match: the following arguments are required: A, B (see steerers match --help)"),
        (["match", "a.jpg"], "steerers match: the following arguments are required: B"),
        (["models", "extra"], "steerers: unrecognized arguments: extra"),
        (["bench"], "steerers bench: the following arguments are required: SUBJECT (see steerers bench --help)"),
        (["models", "two\nlines"], "steerers: unrecognized arguments: two"),
        (["match", "two\nlines.jpg", "b.jpg"], "steerers: no such image: two"),
    ],
)
def test_bad_command_lines(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.endswith("\n")
    assert err.count("\n") == 1


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let ``steerers match`` end in an error."""

    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("steerers.pipeline.load", load)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\n  second"), "steerers: first second\n"),
        (ValueError(), "steerers: ValueError\n"),
        (PermissionError(13, "Permission denied", "a.jpg"), "steerers: a.jpg: Permission denied\n"),
        (OSError("broken"), "steerers: broken\n"),
        (MemoryError(), f"steerers: {OUT_OF_MEMORY}\n"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), f"steerers: {OUT_OF_MEMORY}\n"),
        (torch.OutOfMemoryError("CUDA out of memory"), f"steerers: {OUT_OF_MEMORY}\n"),
        (ImportError("needs kornia: pip install 'steerers[frozen]'"),
         "steerers: needs kornia: pip install 'steerers[frozen]'\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_errors_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    fail_with(monkeypatch, error)
    assert run(capsys, "match", "a.jpg", "b.jpg") == (2, "", line)


def test_an_interruption_is_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert run(capsys, "match", "a.jpg", "b.jpg") == (130, "", "steerers: interrupted\n")


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError])
def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    fail_with(monkeypatch, error("a bug"))
    with pytest.raises(error, match="a bug"):
        main(["match", "a.jpg", "b.jpg"])


# What is said, and where ----------------------------------------------------------------------------------------------

PAIR = [EXAMPLES / "board_0.jpg", EXAMPLES / "board_1.jpg", "--model", "orb", "--max-size", "300"]


def match(*options: str | Path) -> Ran:
    """A match that works."""
    ran = run_command("match", *PAIR, *options)
    assert ran.code == 0
    return ran


def test_output_is_on_standard_output_and_nothing_else_is_said() -> None:
    ran = match()
    assert re.fullmatch(r"\d+ matches, \d+ inliers, .* \(orb, dual-softmax, .* s\)\n", ran.out)
    assert ran.err == ""


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet(option: str, tmp_path: Path) -> None:
    assert match(option, "--json", tmp_path / "a.json") == Ran(0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["model"] == "orb"
    assert run_command("match", "a.jpg", "b.jpg", option) == Ran(2, "", "steerers: no such image: a.jpg\n")


def test_quiet_leaves_the_data_that_is_asked_for() -> None:
    ran = match("--quiet", "--json", "-")
    assert json.loads(ran.out)["model"] == "orb"
    assert ran.err == ""


def test_data_on_standard_output_is_alone_there() -> None:
    ran = match("--json", "-")
    assert json.loads(ran.out)["num_matches"] > 0
    assert re.fullmatch(r"\d+ matches, .*\n", ran.err)
    assert not Path("-").exists()


def test_verbose_tells_what_is_read_and_chosen_on_standard_error() -> None:
    ran = match("--verbose")
    assert re.fullmatch(r"\d+ matches, .*\n", ran.out)
    for told in (
        f"image {EXAMPLES / 'board_0.jpg'}: 1024 x 768 pixels, shown at 300 x 225",
        "model orb on cpu in float32",
        "strategy dual-softmax",
        "reading took",
    ):
        assert told in ran.err, told


def test_what_the_command_line_shows_it_shows_while_it_runs_alone() -> None:
    """A program that imports the package keeps its own logging."""
    loggers = [logging.getLogger("steerers"), logging.getLogger("steerers.output")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    match("--verbose")
    run_command("match", "a.jpg", "b.jpg")
    assert [(logger.handlers, logger.level, logger.propagate) for logger in loggers] == before


def test_quiet_and_verbose_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "models", "--quiet", "--verbose")
    assert code == 2
    assert "--verbose: not allowed with argument -q/--quiet" in err


# In a process of its own ----------------------------------------------------------------------------------------------


WITHOUT_HEAVY_MODULES = """
import contextlib, io, json, sys
from steerers.cli import main

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "cv2", "PIL", "safetensors", "tqdm", "matplotlib"):
            raise RuntimeError(f"{name} is imported")

sys.meta_path.insert(0, Refuse())
for line, expected in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(line)
        except SystemExit as stopped:
            code = stopped.code
    assert code == expected, (line, code)
print("done")
"""


def test_help_and_usage_errors_wait_for_no_heavy_module() -> None:
    """They come in a tenth of a second, not after the seconds that PyTorch takes to import."""
    helps = [[*command, "--help"] for command in [[], *COMMANDS]]
    wrong = [[*command, "--no-such-option"] for command in COMMANDS]
    wrong += [
        [],
        ["no-such"],
        ["match", "a.jpg"],
        ["match", "a.jpg", "b.jpg", "--strategy", "no-such"],
        ["match", "a.jpg", "b.jpg", "--order", "one"],
        ["match", "a.jpg", "b.jpg", "--precision", "float8"],
        ["eval", "no-such"],
        ["eval", "oxford", "--data", "x", "--rotation", "no-such"],
        ["eval", "equivariance", "--data", "x", "--angles", "1,1"],
    ]
    lines = [(line, 0) for line in [*helps, ["--version"]]] + [(line, 2) for line in wrong]
    command = [sys.executable, "-c", WITHOUT_HEAVY_MODULES, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


def run_writing_to(output: int, command: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose output goes to a file descriptor, as users run it."""
    line = [sys.executable, "-m", "steerers", command]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(line, stdout=output, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    return done.returncode, done.stderr


@POSIX
@pytest.mark.parametrize("command", ["models", "--help"])
def test_a_reader_that_leaves(command: str) -> None:
    """As in ``steerers models | head -1``: neither a traceback nor Python's own complaint when it closes the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run_writing_to(writing, command) == (1, "")
    finally:
        os.close(writing)


@POSIX
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["models", "--help"])
def test_output_to_a_full_disk(command: str) -> None:
    with open("/dev/full", "wb") as full:
        found = run_writing_to(full.fileno(), command)
    assert found == (2, "steerers: cannot write to standard output: No space left on device\n")


@POSIX
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_closed_streams(closed: str) -> None:
    """Python has no standard output then, or no standard error."""
    command = f"{shlex.quote(sys.executable)} -m steerers models {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


@POSIX
def test_a_loop_of_links(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = tmp_path / "a.jpg", tmp_path / "b.jpg"
    first.symlink_to(second)
    second.symlink_to(first)
    for arguments in (["match", first, second], ["match", EXAMPLES / "coffee.jpg", first, "--out", second]):
        code, out, err = run(capsys, *map(str, arguments))
        assert (code, out) == (2, "")
        assert re.fullmatch(rf"steerers: (cannot write )?{tmp_path}/[ab]\.jpg: [^\n]+\n", err), err
