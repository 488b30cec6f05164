"""The command ``steerers``: one small file a subcommand.

A file is imported when its command is asked for, and PyTorch when the command runs, so that help, the version and what
is wrong with a command line come at once. Bad input ends with one line on standard error and exit code 2. Anything else
that goes wrong is a bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from steerers._console import BAD_INPUT, INTERRUPTED, STANDARD, shown
from steerers._version import __version__

COMMANDS = {
    "match": "match two images",
    "align": "lay one image over another",
    "reconstruct": "reconstruct a folder of photographs with COLMAP",
    "mosaic": "make one picture of many photographs of a flat scene",
    "extract": "extract the features of many photographs",
    "pairs": "choose which photographs of a collection are matched",
    "match-pairs": "match the pairs of a collection",
    "index": "describe a map, to find photographs on it",
    "locate": "say where on a map photographs were taken",
    "status": "say how far a collection is",
    "models": "list the models",
    "fit": "fit a steerer to a frozen descriptor",
    "fit-consensus": "learn which matches agree with those around them",
    "train": "train a descriptor, a steerer or a detector",
    "spectrum": "draw the eigenvalues of a steerer, or how training moved them",
    "figure": "draw the figures of the paper from pictures of your own",
    "data": "look after training data",
    "eval": "run a benchmark",
    "bench": "measure speed and memory",
    "web": "serve a page on which photographs are turned and matched",
    "export": "write a model as ONNX, or a collection for COLMAP, hloc or OpenSfM",
}
"""The modules of this folder that are commands, and what each does, in the order of the help."""
OUT_OF_MEMORY = "not enough memory for this; ask for smaller images or tiles, fewer keypoints or a smaller batch"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which may get its options when it is first used."""

    def __init__(self, *arguments: Any, fill: Callable[[Parser], None] | None = None, **told: Any) -> None:
        super().__init__(*arguments, **told)
        self._fill = fill

    def fill(self) -> None:
        """Get the options, if they are still to come."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


class _Help(argparse.HelpFormatter):
    """Help with a column that is wide enough for the names of commands, of which argparse forgets the indentation."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


def make_parser() -> Parser:
    """The command line."""
    about = "Match images whatever their in-plane rotation."
    parser = Parser(prog="steerers", description=about, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"steerers {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about, fill=partial(_fill, name))
    return parser


def _fill(name: str, parser: Parser) -> None:
    importlib.import_module(f"steerers.cli.{name.replace('-', '_')}").COMMAND.fill(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    # Before PyTorch is imported: threads that wait for one another shall soon sleep, not spin on. Beside another busy
    # process on two cores spinning made `steerers match` take up to 22 seconds instead of 3; on idle ones this costs
    # nothing that can be measured (never to spin at all costs half a second).
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of damaged images: what they mean is said in one line
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `steerers models >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, to the end of the process
    try:
        try:
            return _run(make_parser().parse_args(argv))
        finally:
            sys.stdout.flush()  # a reader that has gone away, or a full disk, shows now, not at exit
    except KeyboardInterrupt:
        print("steerers: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as in `steerers models | head -1`
        _leave_stdout()
        return 1
    except OSError as error:
        _leave_stdout()
        print(f"steerers: cannot write to standard output: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT


def _run(arguments: argparse.Namespace) -> int:
    level = logging.ERROR if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO
    # What was asked for as data is alone on standard output.
    data = any(getattr(arguments, name, None) == STANDARD for name in ("out", "plot", "json", "markdown"))
    try:
        with shown(level, sys.stderr if data else sys.stdout):
            return int(arguments.run(arguments) or 0)
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None:
            raise  # of standard output: files have names
        if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
            raise  # a bug
        print(f"steerers: {one_line(error)}", file=sys.stderr)
        return int(getattr(error, "exit_code", BAD_INPUT))


def _leave_stdout() -> None:
    """Nothing more can be written there: what is left goes nowhere, and Python does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: BaseException) -> bool:
    """Also where PyTorch says so, which on a CPU has no kind of error for that."""
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "DefaultCPUAllocator" in str(error)


def one_line(error: BaseException) -> str:
    """The message of an error on one line; that of the operating system with its path."""
    message = OUT_OF_MEMORY if _is_out_of_memory(error) else str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    return " ".join(message.split()) or type(error).__name__
