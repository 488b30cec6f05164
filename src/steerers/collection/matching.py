"""From pairs of photographs to matches, shard by shard: many pairs at once, and features read few times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from steerers._files import StrPath
from steerers.collection.store import PAIRS, PAIRS_A_SHARD, TILE, Collection, Pair, PairMatches
from steerers.collection.work import Share, do_shards
from steerers.matching.fingerprints import describe_strategy

if TYPE_CHECKING:
    from steerers.features import Features
    from steerers.pipeline import Pipeline

BATCH_ON_GPU = 32
"""Pairs that are matched in one launch."""


def match_pairs(
    collection: Collection,
    *,
    share: Share | None = None,
    batch: int | None = None,
    shard_size: int = PAIRS_A_SHARD,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
    **options: Any,
) -> None:
    """Match all pairs of ``pairs.txt`` that are not matched yet.

    Args:
        share: of the shards, by default all.
        batch: pairs that are matched at once; by default 32 on a GPU, and on a CPU two for every thread.
        shard_size: pairs a file.
        weights: where they lie now, see :meth:`Collection.load_pipeline`.
        options: of matching, as :func:`steerers.load` takes them: ``strategy``, ``order``, ``threshold``, ...

    Raises:
        ValueError: if there are no pairs, a photograph of one has no features, or pairs were matched in another way.
        OSError: naming the file that cannot be written.
    """
    pipeline = load_matcher(collection, weights, device=device, **options)
    left = matching_left(collection, share, shard_size)
    sizes = [len(pairs) for pairs in collection.match_shards()]
    done = sum(sizes[number] for number in (share or Share()).of(range(len(sizes))) if number not in left)
    work = partial(match_shard, collection, pipeline, batch)
    do_shards(work, left, sizes, collection.is_matched, what="matching pairs", unit="pair", done=done)


def load_matcher(collection: Collection, weights: Sequence[StrPath] = (), **options: Any) -> Pipeline:
    """The matcher for pairs of a collection, which then says how they are matched; see :func:`match_pairs`."""
    if not collection.pairs():
        raise ValueError(f"{collection.folder / PAIRS} has no pairs to match; choose some with steerers pairs")
    pipeline = collection.load_pipeline(weights, **options)
    if pipeline.tta is not None:
        raise ValueError("tta describes rotated copies of every image, and a collection has one: use another strategy")
    collection.set_matching(describe_strategy(pipeline.strategy, consensus=pipeline.consensus))
    return pipeline


def matching_left(collection: Collection, share: Share | None = None, shard_size: int = PAIRS_A_SHARD) -> list[int]:
    """The shards that are to be done; arguments and errors as of :func:`match_pairs`."""
    collection.plan_matches(shard_size)
    shards = collection.match_shards()
    numbers = (share or Share()).of(range(len(shards)))
    return [number for number in numbers if shards[number] and not collection.is_matched(number)]


def match_shard(
    collection: Collection, pipeline: Pipeline, batch: int | None, number: int, advance: Callable[[], None]
) -> None:
    """Match the pairs of one shard and write it; ``advance`` is called for every pair."""
    size = batch or (2 * torch.get_num_threads() if pipeline.device.type == "cpu" else BATCH_ON_GPU)
    resident = _Resident(collection, pipeline.device, 2 * (TILE + size))
    pairs = iter(collection.pairs_in(number))
    with collection.write_matches(number) as writer:
        while together := list(islice(pairs, size)):
            found = pipeline.match_pairs([resident.both(pair) for pair in together])
            for pair, matches in zip(together, found, strict=True):
                writer.add(pair, PairMatches.of(matches))
                advance()


class _Resident:
    """Features on a device, those that were asked for last: at most ``most``, however many photographs there are."""

    def __init__(self, collection: Collection, device: torch.device, most: int) -> None:
        self._collection, self._device, self._most = collection, device, most
        self._kept: OrderedDict[str, Features] = OrderedDict()

    def both(self, pair: Pair) -> tuple[Features, Features]:
        return self._get(pair[0]), self._get(pair[1])

    def _get(self, name: str) -> Features:
        if name not in self._kept:
            self._kept[name] = self._collection.features(name).to(self._device)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]
