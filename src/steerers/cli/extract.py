"""``steerers extract PHOTOS -o OUT``: the features of many photographs, into a collection or one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers._console import Option, flag, positive
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from steerers.collection import Collection

FILES = (".h5", ".hdf5")
"""Endings of what is one file, and no folder."""


def run(arguments: argparse.Namespace) -> int:
    """Extract what is left, and report."""
    out: Path = arguments.out
    if out.suffix.lower() in FILES and not out.is_dir():
        return _extract_to_file(arguments)
    from steerers.collection import Collection, Share, extract

    told = extraction_of(arguments)
    size = arguments.shard_size
    collection = Collection.create(
        out, arguments.photos, told.pop("model"), weights=arguments.weights or (), shard_size=size, **told
    )
    how = {"retry": arguments.retry, "batch": arguments.batch, "device": arguments.device}
    how |= {"share": Share(*arguments.shard or ()), "weights": arguments.weights or ()}
    if arguments.ray is None:
        extract(collection, **how)
    else:
        from steerers.collection.cluster import extract_on_ray

        extract_on_ray(collection, arguments.ray, **how)
    _report(collection, arguments.strict)
    return 0


def extraction_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of :class:`steerers.collection.Extraction`."""
    told = options.matcher_options(arguments)
    for name in ("device", "weights", "refine"):  # of a reconstruction, refine is a step of its own
        told.pop(name, None)
    return {"model": arguments.model, **told, "descriptions": "float32" if arguments.float32 else "float16"}


def _extract_to_file(arguments: argparse.Namespace) -> int:
    from steerers.collection import Extraction, extract_to_file
    from steerers.collection.extraction import check_failures

    for name in ("shard", "shard_size", "retry", "ray"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} goes with a folder, and {arguments.out} is one file")
    options.check_output(arguments.out)
    extraction = Extraction(**extraction_of(arguments))
    how = {"batch": arguments.batch, "device": arguments.device, "weights": arguments.weights or ()}
    failed = extract_to_file(arguments.out, arguments.photos, extraction, **how)
    options.say_wrote(arguments.out)
    check_failures(failed, arguments.strict)
    return 0


def _report(collection: Collection, strict: bool) -> None:
    from steerers.collection.extraction import check_failures

    count = collection.status()["photographs"]
    options.say(
        f"{count.done} photographs with features, {count.failed} failed, {count.left} left: {collection.folder}"
    )
    failed = collection.failures()
    if failed and not count.done and not count.left:
        name, reason = next(iter(failed.items()))
        raise ValueError(f"none of {len(failed)} photographs could be read; {name}: {reason}")
    check_failures(failed, strict)


COMMAND = Command(
    description="Extract the features of all photographs of a folder and those below it. OUT is a folder, the "
    "collection that `steerers pairs` and `match-pairs` go on with; extraction goes on where it was interrupted, and "
    "adds photographs that have come since. If OUT ends in .h5, all goes into that one file.",
    example="""\
  steerers extract photos -o collection
  steerers extract photos -o collection --device cuda --shard 2/8
  steerers extract photos -o features.h5 --num-keypoints 4096
""",
    options=(
        Option("photos", "a folder of photographs", Path, "PHOTOS"),
        Option("-o --out", "a folder, or a file with the ending .h5", Path, "OUT", required=True),
        *options.MODEL,
        *options.IMAGES,
        *options.COMPUTING,
        flag("--float32", "keep descriptions as float32, in twice the room (default: float16)"),
        Option("--batch", "images that go through a network at once (default: 4 on a GPU, else 1)", positive, "N"),
        options.SHARE,
        options.RAY,
        Option("--shard-size", "photographs a file, of a new collection (default: 1000)", positive, "N"),
        flag("--retry", "do files again in which a photograph failed"),
        flag("--strict", "end with an error if a photograph cannot be read"),
    ),
    run=run,
)
