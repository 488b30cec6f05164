"""``steerers pairs OUT``: choose which photographs of a collection are matched with which."""

from __future__ import annotations

import argparse
from typing import Any

from steerers._console import Option, flag, positive
from steerers.cli import options
from steerers.cli.options import Command

CHOICE = (
    flag("--exhaustive", "all"),
    Option("--sequential", "each with the N that follow in the order of names (9 before 10)", positive, "N"),
    flag("--loop", "with --sequential: also with the N most similar of those further away in that order"),
    Option("--gps", "each with the K nearest on the ground, by positions in EXIF data", positive, "K"),
    Option("--metres", "of --gps, only what is at most so far apart", options.above_zero, "M"),
    Option("--similar", "each with the K most similar, whatever their rotation", positive, "K"),
)
"""What :class:`steerers.collection.Choice` takes."""


def choice_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for :class:`steerers.collection.Choice`."""
    asked = ("exhaustive", "sequential", "loop", "gps", "metres", "similar")
    return {name: getattr(arguments, name) for name in asked}


def run(arguments: argparse.Namespace) -> int:
    """Choose, write, report."""
    from steerers.collection import Choice, Collection, choose_pairs

    choice = Choice(**choice_of(arguments))
    collection = Collection.open(arguments.folder)
    pairs = choose_pairs(collection, choice, device=arguments.device, weights=arguments.weights or ())
    photographs = len({name for pair in pairs for name in pair})
    options.say(f"{len(pairs)} pairs of {photographs} photographs: {collection.folder / 'pairs.txt'}")
    return 0


COMMAND = Command(
    description="Choose pairs of photographs of a collection: all that at least one of the options asks for. They are "
    "written to OUT/pairs.txt, two names a line with a tab between, which may be edited or made by other means.",
    example="""\
  steerers pairs collection --exhaustive
  steerers pairs collection --sequential 10 --loop
  steerers pairs collection --gps 20 --metres 300 --similar 10
""",
    options=(options.OUT, *CHOICE, options.DEVICE, options.WEIGHTS),
    run=run,
)
