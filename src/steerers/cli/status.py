"""``steerers status OUT``: how far a collection is."""

from __future__ import annotations

import argparse

from steerers._console import Option, positive
from steerers.cli import options
from steerers.cli.options import Command


def run(arguments: argparse.Namespace) -> int:
    """Print."""
    from steerers.collection import Collection

    collection = Collection.open(arguments.folder)
    extraction, failed = collection.manifest.extraction, collection.failures()
    options.say(f"{collection.photos}: {extraction.model}, at most {extraction.num_keypoints} keypoints a photograph")
    steps = [[name, *map(str, (count.done, count.failed, count.left))] for name, count in collection.status().items()]
    options.say(options.table([["", "done", "failed", "left"], *steps], "<>>>"))
    for name, reason in list(failed.items())[: arguments.failures]:
        options.say(f"failed: {name}: {reason}")
    if len(failed) > arguments.failures:
        options.say(f"and {len(failed) - arguments.failures} more; --failures N shows N")
    return 0


COMMAND = Command(
    description="Say how far a collection is: what is done, what failed and why, what is left.",
    example="""\
  steerers status collection
  steerers status collection --failures 1000
""",
    options=(
        options.OUT,
        Option("--failures", "how many photographs that failed are named (%(default)s)", positive, "N", 10),
    ),
    run=run,
)
