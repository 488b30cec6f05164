"""What every benchmark shares: pairs and how they are rotated, and predictions.

A benchmark lists :class:`Pair` records, rotates them by :func:`rotate_pairs`, and gives them with some
:class:`~steerers.benchmarks.runs.Run` records to :func:`predict_each`. Matching, which takes minutes to hours, ends
there, and :mod:`steerers.benchmarks.store` keeps it; what is estimated from the matches costs seconds and is the
benchmark's own.

Images are evaluated at one resolution (see :class:`Settings`) and rotated at that resolution. All coordinates of a
:class:`Prediction` are pixels of the images at that resolution *before* they were rotated, so that the ground truth
holds whatever the rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from steerers.benchmarks.feature_cache import Desk
from steerers.benchmarks.runs import MAX_SIZE, Run, sha256
from steerers.benchmarks.speed.measure import now
from steerers.benchmarks.views import View
from steerers.features import Matches
from steerers.geometry import transform_points
from steerers.images.load import Size
from steerers.viz.progress import progress

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

Rotation = Literal["upright", "fixed", "quarter", "all", "joint", "c4", "so2"]
ROTATIONS: dict[Rotation, str] = {
    "upright": "as stored",
    "fixed": "second image of pair i rotated by (50 i + 40) mod 360 degrees",
    "quarter": "second image rotated by 90, 180 and 270 degrees",
    "all": "second image rotated by 0, 10, ..., 350 degrees",
    "joint": "both images rotated by the same 90, 180 and 270 degrees",
    "c4": "second image of pair i rotated by (i mod 4) 90 degrees",
    "so2": "second image of pair i rotated by (i mod 36) 10 degrees",
}


@dataclass(frozen=True)
class Pair:
    """Two images of a benchmark, and the rotations, in degrees counter-clockwise, under which they are matched."""

    name: str
    sequence: str
    image0: Path
    image1: Path
    rotation0: int = 0
    rotation1: int = 0

    def key(self) -> dict[str, Any]:
        """What makes it this pair, without the folder that the data lies in; benchmarks add their ground truth."""
        return {"name": self.name, "rotation0": self.rotation0, "rotation1": self.rotation1}


AnyPair = TypeVar("AnyPair", bound=Pair)
Observer = Callable[[AnyPair, View, Tensor, View, Tensor], float]
"""Measures something on all keypoints of a pair, (N, 2) and (M, 2) pixels of the unrotated images."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a run found in a pair.

    ``matches`` are in pixels of the unrotated images at the evaluated size, but their angle is that between the images
    as they were matched.
    """

    matches: Matches
    size0: Size  # evaluated
    size1: Size
    stored0: Size
    stored1: Size
    num_keypoints: tuple[int, int]
    observed: float  # by the benchmark, on all keypoints; NaN if it observes nothing
    extractions: int  # runs of the extractor that the pair needs
    extraction_seconds: float  # of all of them
    matching_seconds: float


@dataclass(frozen=True, eq=False)
class Predictions:
    """All predictions of a run, in the order of the pairs, with what they depend on and where they were made."""

    label: str
    config: dict[str, Any]
    made: dict[str, Any]
    pairs: list[Prediction]


@dataclass(frozen=True)
class Settings:
    """How images are shown to the matchers.

    Attributes:
        max_size: images are shrunk to this longest side.
        mask_corners: keep keypoints out of the black corners that a rotation other than a quarter leaves. Users have
            such corners too, so by default they stay.
        short_side: instead of ``max_size``: images are shrunk or enlarged to this shortest side, as in AIMS.
    """

    max_size: int = MAX_SIZE
    mask_corners: bool = False
    short_side: int | None = None

    def __post_init__(self) -> None:
        if self.short_side is not None and self.short_side < 1:
            raise ValueError(f"short_side must be at least 1 pixel, got {self.short_side}")

    def describe_size(self) -> dict[str, int]:
        """The side that counts, by its name."""
        return {"max_size": self.max_size} if self.short_side is None else {"short_side": self.short_side}


# Pairs ----------------------------------------------------------------------------------------------------------------


def rotate_pairs(pairs: Sequence[AnyPair], rotation: Rotation) -> list[AnyPair]:
    """The pairs under every rotation of a set of rotations, those of one pair together."""
    if rotation not in get_args(Rotation):
        raise ValueError(f"unknown rotation {rotation!r}; use one of {', '.join(ROTATIONS)}")
    return [
        replace(pair, rotation0=first, rotation1=second)
        for index, pair in enumerate(pairs)
        for first, second in _rotations(rotation, index)
    ]


def _rotations(rotation: Rotation, index: int) -> list[tuple[int, int]]:
    rotations: dict[Rotation, list[tuple[int, int]]] = {
        "upright": [(0, 0)],
        "fixed": [(0, (50 * index + 40) % 360)],
        "quarter": [(0, 90), (0, 180), (0, 270)],
        "all": [(0, degrees) for degrees in range(0, 360, 10)],
        "joint": [(90, 90), (180, 180), (270, 270)],
        "c4": [(0, index % 4 * 90)],
        "so2": [(0, index % 36 * 10)],
    }
    return rotations[rotation]


def hash_pairs(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the list of pairs: names, rotations and ground truth, wherever the data lies."""
    return sha256([pair.key() for pair in pairs])


# Predicting -----------------------------------------------------------------------------------------------------------


def predict(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: Settings | None = None,
    observe: Observer[AnyPair] | None = None,
) -> list[list[Prediction]]:
    """The predictions of every run for every pair: a list a run, see :func:`predict_each`."""
    found = dict(predict_each(runs, pairs, settings, observe))
    return [[found[index][run] for index in range(len(pairs))] for run in range(len(runs))]


def predict_each(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: Settings | None = None,
    observe: Observer[AnyPair] | None = None,
    done: Sequence[Container[int]] | None = None,
) -> Iterator[tuple[int, dict[int, Prediction]]]:
    """Predict pair by pair, in an order that saves work: the index of a pair, and predictions by the index of the run.

    Features are extracted once for each image, rotation and extractor, whatever the number of runs and pairs that use
    it, as long as there is room for them (:mod:`steerers.benchmarks.feature_cache`); their seconds count for each run
    and pair as if it were alone.

    Args:
        done: for each run the indices of pairs to leave out.
    """
    check_runs(runs, pairs)
    device = runs[0].pipeline.device
    settings = settings or Settings()
    left = [
        (index, [run for run in range(len(runs)) if done is None or index not in done[run]])
        for index in _by_first_image(pairs)
    ]
    work = [(index, numbers) for index, numbers in left if numbers]
    if work and device.type != "cpu":  # the first call on an accelerator compiles and allocates: not to be timed
        _predict_pair(Desk(settings, device), runs, pairs[work[0][0]], None)
    desk = Desk(settings, device)
    for index, numbers in progress(work, "matching"):
        found = _predict_pair(desk, [runs[number] for number in numbers], pairs[index], observe)
        yield index, dict(zip(numbers, found, strict=True))


def _by_first_image(pairs: Sequence[Pair]) -> list[int]:
    """The pairs in an order in which those of one first image are together.

    There and back: every other first image has its pairs in reverse, so that it starts with what was used last, which
    is still at hand where not all features fit.
    """
    groups: dict[Path, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.image0, []).append(index)
    return [index for number, group in enumerate(groups.values()) for index in (group[::-1] if number % 2 else group)]


def _predict_pair(
    desk: Desk, runs: Sequence[Run], pair: AnyPair, observe: Observer[AnyPair] | None
) -> list[Prediction]:
    view0, view1 = desk.view(pair.image0, pair.rotation0), desk.view(pair.image1, pair.rotation1)
    observed: dict[tuple[int, int], float] = {}
    predictions = []
    for run in runs:
        key = (id(run.pipeline.model.extractor), run.pipeline.num_keypoints)
        prediction = _match(desk, run.pipeline, view0, view1)
        if observe is not None and key not in observed:
            points = (_upright(view, desk.extract(run.pipeline, view).features.keypoints) for view in (view0, view1))
            first, second = points
            observed[key] = observe(pair, view0, first, view1, second)
        predictions.append(replace(prediction, observed=observed.get(key, math.nan)))
    return predictions


def _match(desk: Desk, pipeline: Pipeline, view0: View, view1: View) -> Prediction:
    first = [desk.extract(pipeline, view0, angle) for angle in pipeline.rotations]
    second = desk.extract(pipeline, view1)
    start = now(pipeline.device)
    if pipeline.tta is None:
        matches = pipeline.match(first[0].features, second.features)
    else:
        matches = pipeline.match_rotated([extracted.features for extracted in first], second.features)
    seconds = now(pipeline.device) - start
    return Prediction(
        matches=_rotated_back(matches, view0, view1),
        size0=view0.size,
        size1=view1.size,
        stored0=view0.stored_size,
        stored1=view1.stored_size,
        num_keypoints=(len(first[0].features), len(second.features)),
        observed=math.nan,
        extractions=len(first) + 1,
        extraction_seconds=sum(extracted.seconds for extracted in (*first, second)),
        matching_seconds=seconds,
    )


def _rotated_back(matches: Matches, view0: View, view1: View) -> Matches:
    return Matches(
        keypoints0=_upright(view0, torch.from_numpy(matches.keypoints0)).numpy(),
        keypoints1=_upright(view1, torch.from_numpy(matches.keypoints1)).numpy(),
        scores=matches.scores,
        indices=matches.indices,
        angle=matches.angle,
        model=matches.model,
        strategy=matches.strategy,
    )


def _upright(view: View, keypoints: Tensor) -> Tensor:
    return transform_points(view.to_upright, keypoints)


def check_runs(runs: Sequence[Run], pairs: Sequence[Pair]) -> None:
    """Refuse nothing to do, and two runs of one label."""
    if not pairs:
        raise ValueError("pairs must not be empty")
    labels = [run.label for run in runs]
    if not labels:
        raise ValueError("runs must not be empty: name at least one model")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label!r} is named twice; every run needs a label of its own")
