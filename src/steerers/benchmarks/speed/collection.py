"""How fast a collection is filled, and how its memory depends on the number of photographs: each step in a process of
its own, so that the most memory that it ever had is its own too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
import torch

from steerers.collection import Choice, Collection, choose_pairs, extract, match_pairs
from steerers.datasets.photos import find_images
from steerers.images.load import make_picture, to_uint8

STEPS = ("extract", "similar", "match")


@dataclass(frozen=True)
class CollectionSettings:
    """What is measured.

    Attributes:
        images: how many photographs.
        neighbours: with how many that follow it each photograph is matched.
        data: a folder of photographs, which are taken again and again if they are fewer; by default noise is made up,
            of ``size`` (width, height).
        options: what :meth:`Collection.create` takes, such as ``model``.
    """

    images: int
    neighbours: int = 10
    data: str | None = None
    size: tuple[int, int] = (1024, 768)
    device: str = "cpu"
    batch: int | None = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class CollectionRow:
    """A step: how many photographs or pairs, in which time, with which memory at most."""

    step: str
    images: int
    items: int
    seconds: float
    stored_bytes: int
    memory_bytes: int  # of the process
    device_bytes: int  # of tensors on a GPU

    @property
    def per_second(self) -> float:
        """Photographs or pairs."""
        return self.items / self.seconds


def bench_collection(settings: CollectionSettings) -> list[CollectionRow]:
    """Fill a collection in a temporary folder, step by step."""
    with tempfile.TemporaryDirectory() as folder:
        make_photographs(Path(folder) / "photos", settings)
        told = json.dumps({**asdict(settings), "folder": folder})
        return [_in_process(step, told) for step in STEPS]


def make_photographs(folder: Path, settings: CollectionSettings) -> None:
    """Links to photographs, or pictures of noise."""
    folder.mkdir()
    files = [] if settings.data is None else find_images(settings.data)
    width, height = settings.size
    if not files:
        picture = to_uint8(make_picture(height, width, seed=0))
        files = [folder.parent / "picture.jpg"]
        PIL.Image.fromarray(picture).save(files[0], quality=90)
    for index in range(settings.images):
        source = files[index % len(files)].resolve()
        (folder / f"{index:07d}{source.suffix}").symlink_to(source)


def _in_process(step: str, told: str) -> CollectionRow:
    code = f"from steerers.benchmarks.speed.collection import print_step; print_step({step!r}, {told!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"step {step} failed: {' '.join(done.stderr.split())[-300:]}")
    return CollectionRow(**json.loads(done.stdout.splitlines()[-1]))


def print_step(step: str, told: str) -> None:
    """Do a step of what :func:`bench_collection` measures, and print its row as JSON."""
    sys.stdout.write(json.dumps(asdict(do_step(step, told))) + "\n")


def do_step(step: str, told: str) -> CollectionRow:
    """Do a step, in this process."""
    given = json.loads(told)
    folder = Path(given.pop("folder"))
    settings = CollectionSettings(**given)
    options, photos, out = settings.options or {}, folder / "photos", folder / "out"
    collection = Collection.create(out, photos, **options) if step == "extract" else Collection.open(out)
    how: dict[str, Any] = {"device": settings.device, "batch": settings.batch}
    steps: dict[str, Callable[[], object]] = {
        "extract": partial(extract, collection, **how),
        "similar": partial(choose_pairs, collection, Choice(similar=settings.neighbours), device=settings.device),
        "match": partial(match_pairs, collection, **how),
    }
    if step == "match":
        choose_pairs(collection, Choice(sequential=settings.neighbours))
    start = time.perf_counter()
    steps[step]()
    seconds = time.perf_counter() - start
    items = len(collection.pairs()) if step == "match" else settings.images
    stored = {"extract": "features", "match": "matches"}.get(step)
    size = 0 if stored is None else sum(path.stat().st_size for path in (out / stored).iterdir())
    on_device = torch.cuda.max_memory_allocated() if settings.device.startswith("cuda") else 0
    return CollectionRow(step, settings.images, items, seconds, size, _most_memory(), on_device)


def _most_memory() -> int:
    """Bytes that this process had at most."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def growth(rows: Sequence[CollectionRow], step: str) -> float | None:
    """Bytes of memory that a step takes more for every photograph, from the fewest to the most."""
    measured = sorted((row for row in rows if row.step == step), key=lambda row: row.images)
    if len(measured) < 2:
        return None
    first, last = measured[0], measured[-1]
    return (last.memory_bytes - first.memory_bytes) / (last.images - first.images)
