"""Shards on a Ray cluster: workers that live as long as there is work, take numbers of shards and give back paths.

Arrays never travel: a worker opens the collection where it lies, on a disk that all can reach. If one dies, its shard
is done again by another that is started in its place.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from steerers._console import Progress, tell
from steerers.collection.extraction import extract_shard, extraction_left
from steerers.collection.matching import load_matcher, match_shard, matching_left
from steerers.collection.shards import BusyError
from steerers.collection.store import PAIRS_A_SHARD, Collection
from steerers.collection.work import Share, tell_busy

LOCAL = "local"
"""Instead of an address: a cluster of this machine alone, as long as the work takes."""
MOST_DEATHS = 3
"""Workers that may die of one shard, before it is taken to be at fault."""


def extract_on_ray(
    collection: Collection, address: str = LOCAL, *, share: Share | None = None, retry: bool = False, **how: Any
) -> None:
    """:func:`steerers.collection.extract` on a Ray cluster; ``how`` are its other options."""
    left = extraction_left(collection, share, retry)
    sizes = {number: len(collection.names_in(number)) for number in left}
    run_on_ray(collection, "extract", how, sizes, address)


def match_on_ray(
    collection: Collection,
    address: str = LOCAL,
    *,
    share: Share | None = None,
    shard_size: int = PAIRS_A_SHARD,
    **how: Any,
) -> None:
    """:func:`steerers.collection.match_pairs` on a Ray cluster; ``how`` are its other options."""
    load_matcher(collection, **{name: value for name, value in how.items() if name not in ("batch", "device")})
    left = matching_left(collection, share, shard_size)
    sizes = {number: len(collection.pairs_in(number)) for number in left}
    run_on_ray(collection, "match", how, sizes, address)


def run_on_ray(
    collection: Collection, step: str, how: dict[str, Any], sizes: dict[int, int], address: str = LOCAL
) -> None:
    """Do shards by workers, one for every GPU if it is to be used, else for every core.

    Args:
        step: ``"extract"`` or ``"match"``.
        how: options of that step.
        sizes: how many items each shard has that is to be done.
        address: of the cluster, or :data:`LOCAL`.

    Raises:
        ImportError: if Ray is not installed.
        ValueError: if workers die of a shard again and again; errors of a shard as they are.
    """
    if not sizes:
        return
    ray = _import_ray()
    ours = not ray.is_initialized()
    if ours:
        quiet = {"include_dashboard": False} if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **quiet)
    try:
        resource = "GPU" if str(how.get("device", "cpu")).startswith("cuda") else "CPU"
        count = int(ray.cluster_resources().get(resource, 0))
        if not count:
            raise ValueError(f"the Ray cluster has no {resource} to work on")
        told = (os.path.abspath(collection.folder), step, how)
        unit = {"extract": "photograph", "match": "pair"}[step]
        with Progress(f"{step} on {count} {resource}s of Ray", sum(sizes.values()), unit) as progress:
            _run(ray, lambda: _start(ray, told, resource), min(count, len(sizes)), sizes, progress)
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, start: Callable[[], Any], count: int, sizes: dict[int, int], progress: Progress) -> None:
    """Give shards to workers, a new one to whoever is done, until all are."""
    waiting, deaths, busy = deque(sizes), dict.fromkeys(sizes, 0), 0
    doing: dict[Any, tuple[Any, int]] = {}  # by the promise of a result, the worker and its shard

    def give(worker: Any) -> None:
        if waiting:
            number = waiting.popleft()
            doing[worker.do.remote(number)] = worker, number

    for _ in range(count):
        give(start())
    while doing:
        (promise,), _ = ray.wait(list(doing), num_returns=1)
        worker, number = doing.pop(promise)
        try:
            busy += ray.get(promise) is None
        except ray.exceptions.RayActorError as error:
            deaths[number] += 1
            if deaths[number] == MOST_DEATHS:
                reason = " ".join(str(error).split())[-300:]
                raise ValueError(f"{MOST_DEATHS} workers died of shard {number}, the last so: {reason}") from None
            tell(f"a worker died; shard {number} is done again", logging.WARNING)
            waiting.appendleft(number)
            worker = start()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        else:
            for _ in range(sizes[number]):
                progress.advance()
        give(worker)
    tell_busy(busy)


def _start(ray: Any, told: tuple[str, str, dict[str, Any]], resource: str) -> Any:
    """A worker with a GPU, or a core, of its own."""
    actor = ray.remote(_Worker)
    return actor.options(num_cpus=1, num_gpus=1 if resource == "GPU" else 0).remote(*told)


class _Worker:
    """Does shards in a process of its own; the model is loaded once."""

    def __init__(self, folder: str, step: str, how: dict[str, Any]) -> None:
        self._collection, options = Collection.open(folder), dict(how)
        batch, weights = options.pop("batch", None), options.pop("weights", ())
        pipeline = self._collection.load_pipeline(weights, **options)
        work = extract_shard if step == "extract" else match_shard
        self._do: Callable[[int], None] = lambda number: work(self._collection, pipeline, batch, number, lambda: None)
        self._path = partial(self._collection.shard_path, "features" if step == "extract" else "matches")

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def do(self, number: int) -> str | None:
        """Do a shard; the path of its file, or ``None`` if another process is writing it."""
        try:
            self._do(number)
        except BusyError:
            return None
        return os.fspath(self._path(number))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("Ray is not installed: pip install steerers[ray]") from None
    return ray
