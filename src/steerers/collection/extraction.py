"""From photographs to features, shard by shard."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from steerers._console import Progress
from steerers._files import StrPath
from steerers._parallel import alone, spread
from steerers._tables import write_table
from steerers.collection.manifest import Extraction, Manifest
from steerers.collection.store import Collection, FeatureWriter, feature_facts, find_names
from steerers.collection.work import Share, do_shards
from steerers.images.exif import Taken, read_taken
from steerers.images.read_ahead import READERS, put_together, read_ahead

if TYPE_CHECKING:
    from steerers.features import Features
    from steerers.images.load import Image
    from steerers.pipeline import Pipeline

logger = logging.getLogger(__name__)


def extract(
    collection: Collection,
    *,
    share: Share | None = None,
    retry: bool = False,
    batch: int | None = None,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
) -> None:
    """Extract the features of all photographs that have none yet.

    A photograph that cannot be read is told of, and kept as one that failed.

    Args:
        share: of the shards, by default all.
        retry: do those shards again in which a photograph failed.
        batch: how many images go through a network at once, see :meth:`steerers.pipeline.Pipeline.extract`.
        weights: where they lie now, see :meth:`Collection.load_pipeline`.

    Raises:
        ValueError: if the folder of photographs is gone, or the weights are not those of the collection.
        OSError: naming the file that cannot be written.
    """
    left = extraction_left(collection, share, retry)
    if not left:
        return
    pipeline = collection.load_pipeline(weights, device=device)
    sizes = [len(names) for names in collection.feature_shards()]
    done = sum(sizes[number] for number in (share or Share()).of(range(len(sizes))) if number not in left)
    work = partial(extract_shard, collection, pipeline, batch)
    told = {"what": "extracting features", "unit": "photograph"}
    do_shards(work, left, sizes, lambda number: not retry and collection.is_extracted(number), done=done, **told)


def check_failures(failed: Mapping[str, str], strict: bool) -> None:
    """Where it is ``strict``, refuse that photographs could not be read, which ``failed`` has with the reasons.

    Raises:
        ValueError: saying how many, and of one why.
    """
    if failed and strict:
        name, reason = next(iter(failed.items()))
        raise ValueError(f"photographs that could not be read: {len(failed)}, such as {name}: {reason}")


def extraction_left(collection: Collection, share: Share | None = None, retry: bool = False) -> list[int]:
    """The shards that are to be done; arguments and errors as of :func:`extract`."""
    if not collection.photos.is_dir():
        raise ValueError(f"the folder of the photographs, {collection.photos}, is gone: say where they are now")
    failed = collection.failures() if retry else {}
    again = {number for number, names in enumerate(collection.feature_shards()) if failed.keys() & set(names)}
    numbers = (share or Share()).of(range(len(collection.feature_shards())))
    return [number for number in numbers if number in again or not collection.is_extracted(number)]


def extract_shard(
    collection: Collection, pipeline: Pipeline, batch: int | None, number: int, advance: Callable[[], None]
) -> None:
    """Extract the features of one shard and write it; ``advance`` is called for every photograph."""
    with collection.write_features(number) as writer:
        _write(writer, pipeline, collection.photos, collection.names_in(number), batch, advance)


def extract_to_file(
    path: StrPath,
    photos: StrPath,
    extraction: Extraction,
    *,
    batch: int | None = None,
    device: str | torch.device = "cpu",
    weights: Sequence[StrPath] = (),
) -> dict[str, str]:
    """Extract the features of all photographs of a folder into one file, whole or not at all.

    Returns:
        The names of the photographs that could not be read, and why.
    """
    names = find_names(Path(photos))
    manifest = Manifest(str(photos), extraction, extraction.checksum(weights))
    pipeline = extraction.load(weights, device=device)
    with (
        write_table(path, "features", feature_facts(manifest)) as table,
        Progress("extracting features", len(names), "photograph") as progress,
    ):
        writer = FeatureWriter(table, half=extraction.descriptions == "float16")
        return _write(writer, pipeline, Path(photos), names, batch, progress.advance)


def _write(
    writer: FeatureWriter,
    pipeline: Pipeline,
    photos: Path,
    names: Sequence[str],
    batch: int | None,
    advance: Callable[[], None],
) -> dict[str, str]:
    """Write the features of photographs, in an order that follows from their names and sizes and the batch alone; the
    names of those that could not be read, and why."""
    failed = {}
    for one in _extracted(pipeline, photos, names, batch):
        if isinstance(one.outcome, str):
            failed[one.name] = one.outcome
            logger.warning("%s is left out: %s", one.name, one.outcome)
            writer.add_failure(one.name, one.outcome)
        else:
            writer.add(one.name, one.outcome, one.taken)
        advance()
    return failed


@dataclass(frozen=True, eq=False)
class _Read:
    """A photograph that was read, or why it was not."""

    name: str
    outcome: Image | str
    taken: Taken


@dataclass(frozen=True, eq=False)
class _Extracted:
    """The features of a photograph, or why there are none."""

    name: str
    outcome: Features | str
    taken: Taken


def _extracted(pipeline: Pipeline, photos: Path, names: Sequence[str], batch: int | None) -> Iterator[_Extracted]:
    on_cpu = pipeline.device.type == "cpu"
    size = torch.get_num_threads() if on_cpu and batch is None else pipeline.batch_size(batch)
    readers = READERS if on_cpu else max(READERS, os.cpu_count() or 1)  # a GPU waits for them
    read = read_ahead(partial(_read, pipeline, photos), names, threads=readers, waiting=2 * size + readers)
    for alike in put_together(read, _order if on_cpu else _kind, size=size, waiting=4 * size):
        group = [one for _, one in alike]
        images = [one.outcome for one in group if not isinstance(one.outcome, str)]
        found = iter(_extract_those(pipeline, images))
        for one in group:
            outcome = one.outcome if isinstance(one.outcome, str) else next(found)
            yield _Extracted(one.name, outcome, one.taken)


def _read(pipeline: Pipeline, photos: Path, name: str) -> _Read:
    try:
        image = pipeline.load_image(photos / name)
        return _Read(name, image, read_taken(photos / name))
    except (ValueError, OSError, MemoryError) as error:
        reason = _one_line(error).replace(str(photos / name), name)  # the same wherever the photographs lie
        return _Read(name, reason, Taken((1, 1)))


def _extract_those(pipeline: Pipeline, images: Sequence[Image]) -> list[Features | str]:
    """The features of images, or why there are none; one by one if they do not go together."""
    try:
        return list(_extract_together(pipeline, images))
    except ValueError as error:
        if len(images) == 1:
            return [_one_line(error)]
        return [found for image in images for found in _extract_those(pipeline, [image])]


def _extract_together(pipeline: Pipeline, images: Sequence[Image]) -> list[Features]:
    """On a CPU each by itself and on one thread, so that the number of threads changes no bit."""
    if pipeline.device.type != "cpu":
        return pipeline.extract(images, batch=max(1, len(images)))
    if getattr(pipeline.model.extractor, "parallel", False):
        return spread(pipeline.extract, images)
    return alone(lambda: [pipeline.extract(image) for image in images])


def _kind(one: _Read) -> object:
    """What must be equal for images to go through a network together."""
    return None if isinstance(one.outcome, str) else one.outcome.kind


def _order(one: _Read) -> object:
    """All are alike: they come in their order."""
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
