"""Predictions: images as they are shown to matchers, features each extracted once, and what every run finds in a pair.

Images are evaluated at one resolution (see :class:`ViewSettings`) and rotated at that resolution. All coordinates of a
:class:`Prediction` are pixels of the images at that resolution *before* they were rotated, so that the ground truth
holds whatever the rotation.

Matching, which takes minutes to hours, ends here, and :mod:`steerers.benchmarks.store` keeps it; what is estimated from
the matches costs seconds and is the benchmark's own.
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.benchmarks.pairs import AnyPair, Pair
from steerers.benchmarks.runs import MAX_SIZE, Run
from steerers.benchmarks.speed.measure import timed
from steerers.features import Features, Matches
from steerers.geometry import rotate_image, scaling, transform_points
from steerers.images.load import Image, Size, load_image
from steerers.viz.progress import progress

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

FEATURE_BYTES = 512 * 2**20
"""Memory for features that a later pair may need."""
PIXEL_BYTES = 256 * 2**20
"""Memory for images as loaded, and as much for rotated ones."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


# Views ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewSettings:
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


@dataclass(frozen=True, eq=False)
class View:
    """How an image is shown: at the evaluated size, rotated. It has no pixels, so that all of them can be kept."""

    path: Path
    rotation: int  # degrees counter-clockwise
    to_upright: Tensor  # (3, 3) float64, from rotated to unrotated pixels
    size: Size  # of the unrotated image
    stored_size: Size

    def upright(self, keypoints: Tensor) -> Tensor:
        """(N, 2) pixels of the rotated image as pixels of the unrotated one."""
        return transform_points(self.to_upright, keypoints)


def make_view(
    loaded: Image, path: Path, rotation: int, *, mask_corners: bool, device: torch.device
) -> tuple[View, Image]:
    """Rotate an image that is loaded at the evaluated size; quarter turns are exact, what a rotation uncovers is black.

    The second is what the matcher is given: its stored pixels are those of the rotated canvas.
    """
    upright = loaded.tensor.to(device)
    angle = math.radians(rotation)
    tensor, to_rotated = rotate_image(upright, angle)
    mask = loaded.mask
    if mask is not None or (mask_corners and rotation % 90):
        allowed = torch.ones(upright.shape[1:]) if mask is None else mask.float()
        mask = rotate_image(allowed[None], angle)[0][0] > 0.999
    (height, width), (rotated_height, rotated_width) = upright.shape[1:], tensor.shape[1:]
    identity = torch.eye(3, dtype=torch.float64)
    image = Image(tensor.contiguous(), identity, (rotated_width, rotated_height), mask, loaded.name)
    return View(path, rotation, torch.linalg.inv(to_rotated), (width, height), loaded.stored_size), image


def load_at(path: Path, settings: ViewSettings) -> Image:
    """An image shrunk to a longest side, or shrunk or enlarged to a shortest side, whatever its shape.

    Shrinking is :func:`~steerers.images.load.load_image`'s, enlarging :func:`resize`'s.
    """
    if settings.short_side is None:
        return load_image(path, max_size=settings.max_size)
    return resize(load_image(path, max_size=_longest(path, settings.short_side)), settings.short_side)


def _longest(path: Path, short_side: int) -> int | None:
    """The longest side at a shortest one; ``None`` if the file does not say, and reading it will say why."""
    import PIL.Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            with PIL.Image.open(path) as picture:
                return max(fit_size(picture.size, short_side))
    except Exception:  # decoders raise almost anything on broken data
        return None


def resize(image: Image, short_side: int) -> Image:
    """An image at a shortest side, by antialiased cubic interpolation; its map to stored pixels follows."""
    height, width = image.tensor.shape[-2:]
    size = fit_size((width, height), short_side)
    if size == (width, height):
        return image
    tensor = _interpolate(image.tensor, size, "bicubic").clamp(0, 1)
    mask = None if image.mask is None else _interpolate(image.mask[None].float(), size, "bilinear")[0] > 0.999
    return replace(image, tensor=tensor, mask=mask, to_stored=image.to_stored @ scaling(size, (width, height)))


def fit_size(size: Size, short_side: int) -> Size:
    """(width, height) of the same shape with a given shortest side."""
    scale = short_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def _interpolate(channels: Tensor, size: Size, mode: str) -> Tensor:
    return F.interpolate(channels[None], size[::-1], mode=mode, align_corners=False, antialias=True)[0]


# Keeping features -----------------------------------------------------------------------------------------------------


class Recent(Generic[Key, Value]):
    """What was used last, as much as fits into so many bytes; the very last in any case.

    Args:
        limit: bytes.
        weigh: the bytes of a value.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int]) -> None:
        self._limit, self._weigh = limit, weigh
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not at hand."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = make()
        self._kept[key] = value
        self._bytes += self._weigh(value)
        while self._bytes > self._limit and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= self._weigh(oldest)
        return value


def count_bytes(*tensors: Tensor | None) -> int:
    """The memory that tensors hold on to, which is more than their own where they are parts of larger ones."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


def _image_bytes(image: Image) -> int:
    return count_bytes(image.tensor, image.mask)


@dataclass(frozen=True, eq=False)
class Extracted:
    """Features, and the seconds that it took to extract them."""

    features: Features
    seconds: float

    def count_bytes(self) -> int:
        """The memory of its tensors."""
        return count_bytes(self.features.keypoints, self.features.descriptions, self.features.scores)


class FeatureCache:
    """The images and features at hand: each extraction is done once for all runs and pairs that share it.

    Views, which are small, are all kept; pixels and features as long as there is room. An image whose features are kept
    is not read again.
    """

    def __init__(self, settings: ViewSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.views: dict[tuple[Path, int], View] = {}
        self.loaded: Recent[Path, Image] = Recent(PIXEL_BYTES, _image_bytes)
        self.rotated: Recent[tuple[Path, int], Image] = Recent(PIXEL_BYTES, _image_bytes)
        self.extracted: Recent[tuple[Path, int, int, int, float], Extracted] = Recent(
            FEATURE_BYTES, Extracted.count_bytes
        )

    def view(self, path: Path, rotation: int) -> View:
        """How an image is shown under a rotation."""
        if (path, rotation) not in self.views:
            self._show(path, rotation)
        return self.views[path, rotation]

    def _show(self, path: Path, rotation: int) -> Image:
        """What the matcher is given."""

        def make() -> Image:
            loaded = self.loaded.get(path, lambda: load_at(path, self.settings))
            self.views[path, rotation], image = make_view(
                loaded, path, rotation, mask_corners=self.settings.mask_corners, device=self.device
            )
            return image

        return self.rotated.get((path, rotation), make)

    def extract(self, pipeline: Pipeline, view: View, angle: float = 0.0) -> Extracted:
        """Features of a view, for augmentation rotated by a further ``angle`` in radians, in pixels of the view."""

        def make() -> Extracted:
            image = self._show(view.path, view.rotation)
            return Extracted(*timed(lambda: _extract(pipeline, image, angle), pipeline.device))

        key = (view.path, view.rotation, id(pipeline.model.extractor), pipeline.num_keypoints, angle)
        found = self.extracted.get(key, make)
        return replace(found, features=replace(found.features, model=pipeline.model.name))


def _extract(pipeline: Pipeline, image: Image, angle: float) -> Features:
    return pipeline.extract_rotated(image, angle) if angle else pipeline.extract(image)


# Predicting -----------------------------------------------------------------------------------------------------------


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
    """All predictions of a run, in the order of the pairs, and where they were made."""

    made: dict[str, Any]
    pairs: list[Prediction]


def predict_each(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: ViewSettings | None = None,
    observe: Observer[AnyPair] | None = None,
    done: Sequence[Container[int]] | None = None,
) -> Iterator[tuple[int, dict[int, Prediction]]]:
    """Predict pair by pair, in an order that saves work: the index of a pair, and predictions by the index of the run.

    Features are extracted once for each image, rotation and extractor, whatever the number of runs and pairs that use
    it, as long as there is room for them (:class:`FeatureCache`); their seconds count for each run and pair as if it
    were alone.

    Args:
        done: for each run the indices of pairs to leave out.
    """
    check_runs(runs, pairs)
    device = runs[0].pipeline.device
    settings = settings or ViewSettings()
    left = [
        (index, [run for run in range(len(runs)) if done is None or index not in done[run]])
        for index in _by_first_image(pairs)
    ]
    work = [(index, numbers) for index, numbers in left if numbers]
    if work and device.type != "cpu":  # the first call on an accelerator compiles and allocates: not to be timed
        _predict_pair(FeatureCache(settings, device), runs, pairs[work[0][0]], None)
    cache = FeatureCache(settings, device)
    for index, numbers in progress(work, "matching"):
        found = _predict_pair(cache, [runs[number] for number in numbers], pairs[index], observe)
        yield index, dict(zip(numbers, found, strict=True))


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
    cache: FeatureCache, runs: Sequence[Run], pair: AnyPair, observe: Observer[AnyPair] | None
) -> list[Prediction]:
    view0, view1 = cache.view(pair.image0, pair.rotation0), cache.view(pair.image1, pair.rotation1)
    observed: dict[tuple[int, int], float] = {}
    predictions = []
    for run in runs:
        key = (id(run.pipeline.model.extractor), run.pipeline.num_keypoints)
        prediction = _predict(cache, run.pipeline, view0, view1)
        if observe is not None and key not in observed:
            first, second = (
                view.upright(cache.extract(run.pipeline, view).features.keypoints) for view in (view0, view1)
            )
            observed[key] = observe(pair, view0, first, view1, second)
        predictions.append(replace(prediction, observed=observed.get(key, math.nan)))
    return predictions


def _predict(cache: FeatureCache, pipeline: Pipeline, view0: View, view1: View) -> Prediction:
    first = [cache.extract(pipeline, view0, angle) for angle in pipeline.rotations]
    second = cache.extract(pipeline, view1)
    rotated = [extracted.features for extracted in first]
    matches, seconds = timed(lambda: _match(pipeline, rotated, second.features), pipeline.device)
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


def _match(pipeline: Pipeline, rotated0: Sequence[Features], features1: Features) -> Matches:
    """Match the features of the first image, after each rotation of the augmentation, with those of the second."""
    if pipeline.tta is None:
        return pipeline.match(rotated0[0], features1)
    return pipeline.match_rotated(rotated0, features1)


def _rotated_back(matches: Matches, view0: View, view1: View) -> Matches:
    return replace(
        matches,
        keypoints0=view0.upright(torch.from_numpy(matches.keypoints0)).numpy(),
        keypoints1=view1.upright(torch.from_numpy(matches.keypoints1)).numpy(),
        angles=None,
        features0=None,
        features1=None,
    )
