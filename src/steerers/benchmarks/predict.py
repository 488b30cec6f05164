"""Predictions: images as they are shown to matchers, features each extracted once, and what every run finds in a pair.

Images are evaluated at one resolution (see :class:`ViewSettings`) and rotated at that resolution; those that are to be
squashed are rotated as stored, then squashed. All coordinates of a :class:`Prediction` are pixels of the images at that
resolution, with their shape, *before* they were rotated, so that the ground truth holds whatever the rotation.

Matching, which takes minutes to hours, ends here, and :mod:`steerers.benchmarks.store` keeps it; what is estimated from
the matches costs seconds and is the benchmark's own.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from steerers._console import progress
from steerers.benchmarks.offers import MAX_SIZE, ROTATIONS, Canvas, Rotation
from steerers.benchmarks.runs import Run
from steerers.benchmarks.speed import timed
from steerers.features import Features, Matches
from steerers.geometry import rotate_image, scaling, transform_points
from steerers.images.decode import fit_within, header_size
from steerers.images.load import Image, ImageError, Resize, Size, check_resize, load_image, to_uint8
from steerers.matching.fingerprints import sha256

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

FEATURE_BYTES = 512 * 2**20
"""Memory for features that a later pair may need."""
PIXEL_BYTES = 256 * 2**20
"""Memory for images as loaded, and as much for rotated ones."""
MAX_SHOWN = 100_000_000
"""Pixels of an image at a shortest side, 1.2 GB in float32: a strip of a pixel's width would have any number."""
SQUASHED_FROM = 8
"""How many times the side of the square an image has at most that is rotated and then squashed to it."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


# Pairs ----------------------------------------------------------------------------------------------------------------


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


def rotate_pairs(pairs: Sequence[AnyPair], rotation: Rotation) -> list[AnyPair]:
    """The pairs under every rotation of a set of rotations, those of one pair together."""
    if rotation not in ROTATIONS:
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


def are_rotated(pairs: Sequence[Pair]) -> bool:
    """Whether any image of the pairs is."""
    return any(pair.rotation0 % 360 or pair.rotation1 % 360 for pair in pairs)


def hash_pairs(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the list of pairs: names, rotations and ground truth, wherever the data lies."""
    return sha256([pair.key() for pair in pairs])


def choose(
    found: dict[str, Path], wanted: Sequence[str] | None, folder: Path, what: str = "sequence"
) -> dict[str, Path]:
    """Of the sequences of a folder, by name, those that are wanted; all if ``wanted`` is ``None``."""
    for name in wanted or ():
        if name not in found:
            raise ValueError(f"{folder} has no {what} {name!r}; it has {', '.join(found)}")
    return found if wanted is None else {name: found[name] for name in dict.fromkeys(wanted)}


# Views ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewSettings:
    """How images are shown to the matchers.

    Attributes:
        max_size: images are shrunk to this longest side.
        mask_corners: keep keypoints out of what a rotation uncovers, which is black. Users have such corners too, so by
            default they stay.
        short_side: instead of ``max_size``: images are shrunk or enlarged to this shortest side, as in AIMS.
        resize: ``"squash"`` shows all of them as squares of ``max_size``, as the paper does, whatever their shape.
        canvas: of rotated images; ``"keep"`` is that of torchvision's ``rotate``, and cuts a quarter turn too where the
            image is not square.
    """

    max_size: int = MAX_SIZE
    mask_corners: bool = False
    short_side: int | None = None
    resize: Resize = "fit"
    canvas: Canvas = "grow"

    def __post_init__(self) -> None:
        check_resize(self.resize, self.max_size)
        if self.squashes and self.short_side is not None:
            raise ValueError("short_side keeps shapes: give max_size with resize 'squash'")

    @property
    def squashes(self) -> bool:
        """Whether images are shown without their shape."""
        return self.resize == "squash"

    def describe_size(self) -> dict[str, Any]:
        """The side that counts, by its name, and what is done to reach it."""
        if self.short_side is not None:
            return {"short_side": self.short_side}
        return {"max_size": self.max_size, "resize": self.resize}


@dataclass(frozen=True, eq=False)
class View:
    """How an image is shown: at the evaluated size, rotated. It has no pixels, so that all of them can be kept."""

    path: Path
    rotation: int  # degrees counter-clockwise
    to_upright: Tensor  # (3, 3) float64, from pixels of the rotated canvas to those of the unrotated image
    size: Size  # of the unrotated image, with its shape
    stored_size: Size

    def upright(self, keypoints: Tensor) -> Tensor:
        """(N, 2) pixels of the rotated image as pixels of the unrotated one."""
        return transform_points(self.to_upright, keypoints)


def make_view(
    loaded: Image, path: Path, rotation: int, settings: ViewSettings, device: torch.device
) -> tuple[View, Image]:
    """Rotate an image that :func:`load_at` loaded; whole quarter turns are exact, what a rotation uncovers is black.

    The second is what the matcher is given: its stored pixels are those of the rotated canvas.
    """
    upright, mask = loaded.tensor.to(device), loaded.mask
    height, width = upright.shape[1:]
    keeps = settings.canvas == "keep"
    rotate = partial(rotate_image, angle=math.radians(rotation), expand=not keeps)
    tensor, to_rotated = rotate(upright)
    uncovers = rotation % 90 or (keeps and rotation % 180 and width != height)
    if mask is not None or (settings.mask_corners and uncovers):
        allowed = torch.ones(height, width) if mask is None else mask.float()
        mask = rotate(allowed[None])[0][0] > 0.999
    size, canvas = (width, height), (tensor.shape[2], tensor.shape[1])
    if settings.squashes:
        size = fit_within(loaded.stored_size, settings.max_size)
        square = load_image(to_uint8(tensor), max_size=settings.max_size, resize="squash", mask=mask)
        image = replace(square, name=loaded.name)
    else:
        image = Image(tensor.contiguous(), torch.eye(3, dtype=torch.float64), canvas, mask, loaded.name)
    to_upright = scaling((width, height), size) @ torch.linalg.inv(to_rotated)
    return View(path, rotation, to_upright, size, loaded.stored_size), image


def load_at(path: Path, settings: ViewSettings) -> Image:
    """An image shrunk to a longest side, or shrunk or enlarged to a shortest side, whatever its shape.

    Shrinking is :func:`~steerers.images.load.load_image`'s, enlarging :func:`resize`'s. What will be squashed keeps its
    size, because it is rotated before, unless that is beyond :data:`SQUASHED_FROM`.
    """
    if settings.squashes:
        return load_image(path, max_size=SQUASHED_FROM * settings.max_size)
    if settings.short_side is None:
        return load_image(path, max_size=settings.max_size)
    return resize(load_image(path, max_size=_longest(path, settings.short_side)), settings.short_side)


def _longest(path: Path, short_side: int) -> int:
    """The longest side at a shortest one."""
    shown = fit_size(header_size(path), short_side)
    if math.prod(shown) > MAX_SHOWN:
        raise ImageError(
            f"{path} would be {shown[0]} x {shown[1]} at a shortest side of {short_side}, more than the "
            f"{MAX_SHOWN // 10**6} megapixels that are shown to matchers; cut it to another shape, or leave it out"
        )
    return max(shown)


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


Extracted = tuple[Features, float]
"""Features, and the seconds that it took to extract them."""


def _feature_bytes(extracted: Extracted) -> int:
    features, _ = extracted
    return count_bytes(features.keypoints, features.descriptions, features.scores)


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
        self.extracted: Recent[tuple[Path, int, int, int, float], Extracted] = Recent(FEATURE_BYTES, _feature_bytes)

    def view(self, path: Path, rotation: int) -> View:
        """How an image is shown under a rotation."""
        if (path, rotation) not in self.views:
            self._show(path, rotation)
        return self.views[path, rotation]

    def show(self, view: View) -> Image:
        """The image that a view is of, as the matcher is given it."""
        return self._show(view.path, view.rotation)

    def _show(self, path: Path, rotation: int) -> Image:
        """What the matcher is given."""

        def make() -> Image:
            loaded = self.loaded.get(path, lambda: load_at(path, self.settings))
            self.views[path, rotation], image = make_view(loaded, path, rotation, self.settings, self.device)
            return image

        return self.rotated.get((path, rotation), make)

    def extract(self, pipeline: Pipeline, view: View, angle: float = 0.0) -> Extracted:
        """Features of a view, for augmentation rotated by a further ``angle`` in radians, in pixels of the view."""

        def make() -> Extracted:
            image = self.show(view)
            extract = partial(pipeline.extract_rotated, image, angle) if angle else partial(pipeline.extract, image)
            return timed(extract, pipeline.device)

        key = (view.path, view.rotation, id(pipeline.model.extractor), pipeline.num_keypoints, angle)
        features, seconds = self.extracted.get(key, make)
        return replace(features, model=pipeline.model.name), seconds


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

    def stored_keypoints(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The (K, 2) keypoints of the matches in stored pixels."""
        to_stored0, to_stored1 = scaling(self.size0, self.stored0), scaling(self.size1, self.stored1)
        first, second = torch.from_numpy(self.matches.keypoints0), torch.from_numpy(self.matches.keypoints1)
        return (
            transform_points(to_stored0, first.double()).numpy(),
            transform_points(to_stored1, second.double()).numpy(),
        )


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
    left = {
        index: [run for run in range(len(runs)) if done is None or index not in done[run]]
        for index in _by_first_image(pairs)
    }
    work = [(index, numbers) for index, numbers in left.items() if numbers]
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
    if not runs:
        raise ValueError("runs must not be empty: name at least one model")
    label, count = Counter(run.label for run in runs).most_common(1)[0]
    if count > 1:
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
            first, second = (view.upright(cache.extract(run.pipeline, view)[0].keypoints) for view in (view0, view1))
            observed[key] = observe(pair, view0, first, view1, second)
        predictions.append(replace(prediction, observed=observed.get(key, math.nan)))
    return predictions


def _predict(cache: FeatureCache, pipeline: Pipeline, view0: View, view1: View) -> Prediction:
    extracted = [cache.extract(pipeline, view0, angle) for angle in pipeline.rotations]
    extracted.append(cache.extract(pipeline, view1))
    *rotated0, features1 = (features for features, _ in extracted)
    match = partial(pipeline.match, rotated0[0]) if pipeline.tta is None else partial(pipeline.match_rotated, rotated0)
    images = (cache.show(view0), cache.show(view1)) if pipeline.refinement is not None else ()
    matches, matching_seconds = timed(
        lambda: pipeline.refined(match(features1), *images) if images else match(features1), pipeline.device
    )
    return Prediction(
        matches=replace(
            matches,
            keypoints0=view0.upright(torch.from_numpy(matches.keypoints0)).numpy(),
            keypoints1=view1.upright(torch.from_numpy(matches.keypoints1)).numpy(),
            angles=None,
            features0=None,
            features1=None,
        ),
        size0=view0.size,
        size1=view1.size,
        stored0=view0.stored_size,
        stored1=view1.stored_size,
        num_keypoints=(len(rotated0[0]), len(features1)),
        observed=math.nan,
        extractions=len(extracted),
        extraction_seconds=sum(seconds for _, seconds in extracted),
        matching_seconds=matching_seconds,
    )
