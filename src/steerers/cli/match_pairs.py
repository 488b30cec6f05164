"""``steerers match-pairs OUT``: match the pairs of a collection."""

from __future__ import annotations

import argparse

from steerers._console import Option, positive
from steerers.cli import options
from steerers.cli.options import Command


def run(arguments: argparse.Namespace) -> int:
    """Match what is left, and report."""
    from steerers.collection import Collection, Share, match_pairs
    from steerers.collection.store import PAIRS_A_SHARD

    collection = Collection.open(arguments.folder)
    how = {"batch": arguments.batch, "shard_size": arguments.shard_size or PAIRS_A_SHARD}
    how |= {"share": Share(*arguments.shard or ()), **options.matcher_options(arguments)}
    if arguments.ray is None:
        match_pairs(collection, **how)
    else:
        from steerers.collection.cluster import match_on_ray

        match_on_ray(collection, arguments.ray, **how)
    count = collection.status()["pairs"]
    options.say(f"{count.done} pairs matched, {count.left} left: {collection.folder}")
    return 0


COMMAND = Command(
    description="Match the pairs of OUT/pairs.txt, by the features that are there and the model that made them. It "
    "goes on where it was interrupted, and with pairs that have come since.",
    example="""\
  steerers match-pairs collection
  steerers match-pairs collection --device cuda --shard 2/8
""",
    options=(
        options.OUT,
        options.WEIGHTS,
        options.STEERER,
        *options.STRATEGY,
        options.CONSENSUS,
        options.DEVICE,
        Option("--batch", "pairs that are matched at once (default: 32 on a GPU, else 2 a thread)", positive, "N"),
        options.SHARE,
        options.RAY,
        Option("--shard-size", "pairs a file, of those that are left (default: 1000)", positive, "N"),
    ),
    run=run,
)
