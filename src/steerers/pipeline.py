"""From two images to matches: :func:`load` and the :class:`Pipeline` that it returns."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from steerers._choices import DEFAULT_MODEL, MAX_SIZE, NUM_KEYPOINTS, TTA, Exif, Resize
from steerers._devices import parse_device
from steerers._files import StrPath
from steerers._parallel import alone, idle_cores, spread, spread_on
from steerers.features import Features, Matches
from steerers.geometry import orientation_change, rotate_image, rotate_squashed, transform_points, wrap_degrees
from steerers.images.load import Image, ImageSource, check_resize, load_image
from steerers.images.read_ahead import put_together, read_images
from steerers.matching.assignment import Assignment, number_of_most_matches
from steerers.matching.consensus import CANDIDATE, Consensus
from steerers.matching.strategies import (
    NEEDS_IMAGES,
    STRATEGIES,
    DualSoftmax,
    OverRotations,
    PrototypeProcrustes,
    SoftmaxStrategy,
    Strategy,
    check_name,
    make_strategy,
)
from steerers.models import zoo
from steerers.models.sampling import KeypointSampling
from steerers.models.tiles import check_tile, tiled
from steerers.models.zoo import Model
from steerers.refinement import RefineOptions
from steerers.steering.representations import Group, Order
from steerers.steering.steerer import Steerer

logger = logging.getLogger(__name__)

BATCH_ON_GPU = 4
MAX_AUGMENTATIONS = 360
"""Most rotations of an image that test-time augmentation describes: it keeps the descriptions of all of them."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model with a matching strategy: call it with two images.

    Make one with :func:`load`, or put a :class:`~steerers.models.zoo.Model` of your own together with a strategy.

    Attributes:
        tta: test-time augmentation: how many rotations of the first image are described, of which the one with the most
            matches is kept. It needs no steerer, but one run of the network for each: what steerers replace.
        resize: see :func:`~steerers.images.load.load_image`; with ``"squash"`` angles are those of squashed images.
        consensus: chooses among what the strategy finds by what neighbours agree in, see
            :mod:`steerers.matching.consensus`; the strategy then finds candidates. ``None`` takes all it finds.
        refinement: how the places of matches are refined when images are matched, see :meth:`Matches.refine`; ``None``
            leaves them as they were detected. Features that are matched without their images stay as they are.
    """

    model: Model
    strategy: Strategy
    num_keypoints: int = NUM_KEYPOINTS
    max_size: int | None = MAX_SIZE
    exif: Exif = "ignore"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tta: int | None = None
    resize: Resize = "fit"
    refinement: RefineOptions | None = None
    consensus: Consensus | None = None

    def __post_init__(self) -> None:
        check_resize(self.resize, self.max_size)
        if self.tta is not None:
            count_augmentations(self.tta)
        if not isinstance(self.num_keypoints, int) or self.num_keypoints < 1:
            raise ValueError(f"num_keypoints must be a whole number of at least 1, got {self.num_keypoints!r}")
        self.model.extractor.to(self.device).eval()
        if self.model.steerer is not None:
            self.model.steerer.to(self.device)
        if self.consensus is not None:
            self.consensus.to(self.device)

    def __repr__(self) -> str:
        size = "any size" if self.max_size is None else f"at most {self.max_size} pixels a side"
        how = f"{self.model.name}, {self.strategy_name}, {self.num_keypoints} keypoints"
        return f"Pipeline({how}, images of {size}, {self.device})"

    def __call__(
        self,
        image0: ImageSource | Image,
        image1: ImageSource | Image,
        *,
        mask0: ImageSource | None = None,
        mask1: ImageSource | None = None,
    ) -> Matches:
        """Match two images.

        Args:
            image0: a path, bytes, open file, PIL image, RGB array or (3, H, W) tensor; ``image1`` likewise; see
                :func:`~steerers.images.load.load_image`.
            mask0: where keypoints of image 0 are allowed (not zero), of the size of the stored image; ``mask1``.
        """
        first, second = self.load_image(image0, mask0), self.load_image(image1, mask1)
        if self.tta is None:
            matches = self.match(*self._extract_each([first, second]))
        else:
            rotated = [self.extract_rotated(first, angle) for angle in self.rotations]
            matches = self.match_rotated(rotated, self.extract(second))
        return self.refined(matches, first, second)

    def refined(self, matches: Matches, image0: Image, image1: Image) -> Matches:
        """Matches of two images as they are, or with the places that :attr:`refinement` finds."""
        if self.refinement is None:
            return matches
        start = time.perf_counter()
        matches = matches.refine(image0, image1, options=self.refinement, device=self.device)
        logger.debug("places refined in %.3f s", time.perf_counter() - start)
        return matches

    @property
    def strategy_name(self) -> str:
        """How it matches, as users name it."""
        return self.strategy.name if self.tta is None else TTA

    @property
    def rotations(self) -> list[float]:
        """The rotations, in radians, at which the first image is described."""
        return [0.0] if self.tta is None else Group(self.tta).angles().tolist()

    def load_image(self, source: ImageSource | Image, mask: ImageSource | None = None) -> Image:
        """Read an image as :meth:`extract` would; what is already an :class:`~steerers.images.load.Image` stays."""
        if not isinstance(source, Image):
            return load_image(source, max_size=self.max_size, resize=self.resize, exif=self.exif, mask=mask)
        if mask is not None:
            raise ValueError("give the mask when the image is loaded: this one is loaded already")
        return source

    @overload  # a str is a sequence of images too, to a type checker
    def extract(  # type: ignore[overload-overlap]
        self, image: ImageSource | Image, *, mask: ImageSource | None = None
    ) -> Features: ...

    @overload
    def extract(
        self,
        image: Sequence[ImageSource | Image],
        *,
        mask: Sequence[ImageSource | None] | None = None,
        batch: int | None = None,
    ) -> list[Features]: ...

    def extract(
        self,
        image: ImageSource | Image | Sequence[ImageSource | Image],
        *,
        mask: ImageSource | Sequence[ImageSource | None] | None = None,
        batch: int | None = None,
    ) -> Features | list[Features]:
        """Keypoints and descriptions of an image, to be matched with :meth:`match` as often as needed.

        Of a list or tuple of images, or a (B, 3, H, W) tensor of several, those of all, in order. They are read by
        threads while the network is at work, and those of equal size go through it together.

        Args:
            mask: where keypoints are allowed; for several images a list as long, with None where they are everywhere,
                or with a tensor of images a (B, H, W) one.
            batch: of a list of images, how many of the same size go through the network at once; by default 4 on a GPU
                and 1 elsewhere. It takes memory, and changes descriptions by no more than rounding does.
        """
        if isinstance(image, Tensor) and image.ndim == 4 and len(image) != 1:
            image, mask = list(image), list(mask) if isinstance(mask, Tensor) else mask
        if not isinstance(image, (list, tuple)):
            if batch is not None:
                raise ValueError(f"batch goes with a list of images; got {batch!r} with a single one")
            return self._extract_each([self.load_image(image, mask)])[0]  # type: ignore[arg-type]
        size = self.batch_size(batch)
        each = size == 1 and self.device.type == "cpu"  # by itself, whatever its kind, and one for every thread
        if each:
            size = torch.get_num_threads()
        read = read_images(self.load_image, image, mask, waiting=2 * size, pinned=self.device.type == "cuda")
        found: dict[int, Features] = {}
        for alike in put_together(read, lambda image: None if each else image.kind, size=size, waiting=4 * size):
            indices, images = zip(*alike, strict=True)
            found |= zip(indices, self._extract_each(images) if each else self._features(images), strict=True)
        return [found[index] for index in range(len(image))]

    def batch_size(self, batch: int | None = None) -> int:
        """How many of a list of images go through the network at once, if that many are of the same size."""
        if batch is None:
            return 1 if self.device.type == "cpu" else BATCH_ON_GPU
        if not isinstance(batch, int | np.integer) or batch < 1:
            raise ValueError(f"batch must be a whole number of at least 1, got {batch!r}")
        return int(batch)

    def match(self, features0: Features, features1: Features) -> Matches:
        """Match features that were extracted before, by the same model."""
        return self.match_pairs([(features0, features1)])[0]

    def match_pairs(self, pairs: Sequence[tuple[Features, Features]]) -> list[Matches]:
        """:meth:`match` of several pairs: on a GPU in one launch, on a CPU by its threads."""
        if self.tta is not None:
            raise ValueError(NEEDS_IMAGES)
        for features in (features for pair in pairs for features in pair):
            _check_features(features)
            if features.model and features.model != self.model.name:
                raise ValueError(
                    f"features of model {features.model!r} cannot be matched by {self.model.name!r}: what two models, "
                    "or two generations of one, describe does not compare; extract them again, or load their model"
                )
        placed = [(features0.to(self.device), features1.to(self.device)) for features0, features1 in pairs]
        start = time.perf_counter()
        found = self._assign(placed)
        matches = [self._to_matches(one, *pair) for one, pair in zip(found, placed, strict=True)]
        logger.debug("%s in %.3f s", ", ".join(map(repr, matches)), time.perf_counter() - start)
        return matches

    def match_rotated(self, rotated0: Sequence[Features], features1: Features) -> Matches:
        """Test-time augmentation: match what :meth:`extract_rotated` gave of the first image at each of
        :attr:`rotations`, and keep the rotation with the most matches."""
        _check_features(*rotated0, features1)
        if len(rotated0) != len(self.rotations):
            raise ValueError(
                f"tta of order {self.tta} needs the descriptions of {self.tta} rotations, got {len(rotated0)}"
            )
        turned = zip(rotated0, self.rotations, strict=True)
        found = [self._assign([(features, features1)], angle)[0] for features, angle in turned]
        best = number_of_most_matches(found)
        angle = self.rotations[best] if len(found[best]) else None
        return self._to_matches(replace(found[best], angle=angle), rotated0[best], features1)

    def extract_rotated(self, image: ImageSource | Image, angle: float) -> Features:
        """:meth:`extract` of the image rotated by ``angle``, in radians, with keypoints of the image as it was.

        A squashed one rotates as if it had its shape, and is squashed again: the network sees one size alone.
        """
        image, squashed = self.load_image(image), self.resize == "squash"
        rotate = partial(rotate_squashed, size=image.upright_size) if squashed else rotate_image
        allowed = torch.ones(image.tensor.shape[1:]) if image.mask is None else image.mask.float()
        rotated, to_rotated = rotate(image.tensor.to(self.device), angle, fill=0.5)
        mask = rotate(allowed[None], angle)[0][0] > 0.999
        return self._features([replace(image, tensor=rotated, mask=mask)], torch.linalg.inv(to_rotated))[0]

    # Steps ------------------------------------------------------------------------------------------------------------

    def _extract_each(self, images: Sequence[Image]) -> list[Features]:
        """The features of images, each by itself: on a CPU one a core, or a single one on all cores if they are idle.

        An operator of PyTorch waits for its threads, each of which may have to wait for other processes.
        """

        def extract(image: Image) -> Features:
            return self._features([image])[0]

        one_by_one = len(images) == 1 or not getattr(self.model.extractor, "parallel", False)
        if self.device.type != "cpu" or (one_by_one and idle_cores() >= torch.get_num_threads()):
            return list(map(extract, images))
        return alone(lambda: list(map(extract, images))) if one_by_one else spread(extract, images)

    @torch.no_grad()
    def _features(self, images: Sequence[Image], back: Tensor | None = None) -> list[Features]:
        """The features of images of one kind; ``back`` is the map from pixels of their tensors to what they were."""
        start = time.perf_counter()
        tensors = torch.stack([image.tensor.to(self.device, non_blocking=True) for image in images])
        masks = [image.mask.to(self.device) for image in images if image.mask is not None]
        extracted = self.model.extractor.extract(
            tensors, num_keypoints=self.num_keypoints, masks=torch.stack(masks) if masks else None
        )
        features = []
        for image, (keypoints, descriptions) in zip(images, extracted, strict=True):
            xy = keypoints.xy.float() if back is None else transform_points(back, keypoints.xy.float())
            features.append(
                Features(
                    keypoints=transform_points(image.to_stored, xy),
                    descriptions=descriptions,
                    scores=keypoints.scores.float(),
                    image_size=image.stored_size,
                    model=self.model.name,
                    orientation=image.orientation,
                )
            )
        logger.debug("%s in %.3f s", ", ".join(map(repr, features)), time.perf_counter() - start)
        return features

    def _assign(self, pairs: Sequence[tuple[Features, Features]], angle: float = 0.0) -> list[Assignment]:
        """What the strategy finds in pairs of features, of which the first are of images rotated by ``angle``."""
        firsts, seconds = ([pair[side].descriptions for pair in pairs] for side in (0, 1))
        found = self.strategy.match_batch(firsts, seconds)
        if self.consensus is None:
            return found
        return spread_on(self.device, self._agreed, zip(found, pairs, strict=True))

    def _agreed(self, found: tuple[Assignment, tuple[Features, Features]]) -> Assignment:
        """Of candidates of a pair those that agree, in the frame in which the strategy tells rotations."""
        assert self.consensus is not None
        candidates, pair = found
        shown = [features.keypoints @ features.orientation.to(features.keypoints).mT for features in pair]
        return self.consensus.choose(candidates, *shown)

    def _to_matches(self, found: Assignment, features0: Features, features1: Features) -> Matches:
        """What a strategy found of the features of two images, in stored pixels and degrees."""
        i, j = found.indices.unbind(dim=1)
        angle, angles = _stored_rotations(found, features0.orientation, features1.orientation)
        return Matches(
            keypoints0=_numpy(features0.keypoints[i]),
            keypoints1=_numpy(features1.keypoints[j]),
            scores=_numpy(found.scores),
            indices=found.indices.cpu().numpy(),
            angle=angle,
            angles=angles,
            features0=features0,
            features1=features1,
            model=self.model.name,
            strategy=self.strategy_name,
        )


def load(
    name: StrPath = DEFAULT_MODEL,
    *,
    detector: StrPath | None = None,
    steerer: StrPath | Steerer | None = None,
    weights: StrPath | Sequence[StrPath] = (),
    strategy: str | None = None,
    order: Order = "default",
    angles: Sequence[float] | None = None,
    num_keypoints: int = NUM_KEYPOINTS,
    max_size: int | Literal["default"] | None = "default",
    exif: Exif = "ignore",
    device: str | torch.device = "cpu",
    precision: str = "float32",
    sampling: KeypointSampling | None = None,
    fast: bool = True,
    resize: Resize = "fit",
    tile: int | None = None,
    refine: bool | RefineOptions = False,
    consensus: bool | StrPath | None = None,
    **options: object,
) -> Pipeline:
    """A matcher by the name of its model.

    Args:
        name: see ``steerers models``; the default is embedded and works offline. Or what you trained: the folder of a
            run of ``steerers train``, or the ``model.safetensors`` in it.
        detector: whose keypoints are described, if not the model's own: a detector of ``steerers models``
            (``"dedode-l-v2"``), another model (``"superpoint"``), or the folder of a run.
        steerer: a steerer, or the file of one, instead of the model's own: what ``steerers fit`` or ``train`` wrote for
            this model, or a published matrix (see :meth:`steerers.Steerer.load`).
        weights: files of weights that lie elsewhere than in the cache, told apart by their names; where the model needs
            one file, any name will do. What is in neither place is downloaded.
        strategy: how to match, see :data:`steerers.matching.strategies.NAMES`; by default what suits the model.
        order: how many rotations a strategy tries; by default what suits the model (16 for ``compact``), and with a
            strategy or steerer of your choice what the steerer has (8 for SO(2)).
        angles: the rotations that it tries instead, in degrees, such as ``[0, 90, 180]``.
        num_keypoints: most keypoints an image.
        max_size: images are shrunk so that no side is longer, by default than 1024 pixels; ``None``, and with ``tile``
            the default, keeps their size.
        resize: ``"squash"`` makes every image a square of ``max_size`` pixels a side, as the paper does with 784; by
            default shapes are kept, and rotations stay rotations.
        exif: ``"apply"`` rotates photographs upright by their EXIF orientation before matching; keypoints stay those of
            the stored pixels.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        precision: ``"float32"``, or ``"bfloat16"`` or ``"float16"`` for DeDoDe's networks and the compact one.
        sampling: how DeDoDe's detectors choose keypoints: coverage, non-maximum suppression, sub-pixel, border.
        fast: run those networks in a form for inference, which finds the same in less time; ``False`` gives the plain
            modules, to train, export or take apart.
        tile: the network sees larger images in tiles of so many pixels a side, which overlap, and of all the best
            keypoints are kept: as in one pass, with the memory of a tile; see :mod:`steerers.models.tiles`.
        refine: move the keypoints of image 1 to where those of image 0 are seen, to a small fraction of a pixel; see
            :meth:`Matches.refine <steerers.Matches.refine>`.
        consensus: keep matches that agree with those around them, by a small network that was fitted to the model
            (:mod:`steerers.matching.consensus`), or the file of one that ``steerers fit-consensus`` wrote; by default
            where there is one, unless you choose a strategy.
        options: of the strategy: ``inverse_temperature``, ``threshold``, ``subset_size``, ``seed``, ``prototype``,
            ``ratio``; the first two by default as they suit the model.
    """
    checked = parse_device(device)
    if max_size == "default":
        max_size = MAX_SIZE if tile is None else None
    check_resize(resize, max_size)  # before any download
    if tile is not None:
        check_tile(tile)
    if strategy is not None:
        check_name(strategy)
    model = zoo.build(name, detector=detector, steerer=steerer, weights=weights)
    model = zoo.configure(model, precision, sampling, fast=fast, device=checked)
    if tile is not None:
        model = replace(model, extractor=tiled(model.extractor, tile))
    network = choose_consensus(model, name, strategy, consensus)
    if network is not None and "threshold" in options:
        network = network.above(options["threshold"])  # type: ignore[arg-type]
    if network is not None:
        options["threshold"] = CANDIDATE
        options.setdefault("mutual", not STRATEGIES[strategy or model.strategy].finds_candidates)
    made, tta = choose_strategy(model, strategy, order, angles, options)
    logger.debug(
        "model %s on %s in %s, %d threads; strategy %s, order %s, %s",
        model.name,
        checked,
        precision,
        torch.get_num_threads(),
        strategy or model.strategy,
        tta or getattr(made, "order", "none"),
        ", ".join(f"{option} {value}" for option, value in options.items()) or "no options",
    )
    refinement = refine if isinstance(refine, RefineOptions) else RefineOptions() if refine else None
    return Pipeline(model, made, num_keypoints, max_size, exif, checked, tta, resize, refinement, network)


def choose_consensus(
    model: Model, name: StrPath, strategy: str | None, wanted: bool | StrPath | None
) -> Consensus | None:
    """What chooses among the candidates of a model, as :func:`load` is asked for.

    Raises:
        ValueError: if it is wanted, and there is none or the strategy tells no rotation of every match.
    """
    if wanted is None:
        return model.consensus if strategy is None else None
    if isinstance(wanted, int) and not wanted:  # a truth value, or 0 and 1 of a model spec
        return None
    chosen = strategy or model.strategy
    if chosen == TTA or not issubclass(STRATEGIES[chosen], OverRotations):
        raise ValueError(f"strategy {chosen!r} tells no rotation of every match, which consensus needs")
    if not isinstance(wanted, int):
        return Consensus.load(wanted, zoo.find(name).fitted_to)
    if model.consensus is None:
        raise ValueError(f"model {model.name!r} has no consensus; steerers fit-consensus fits one")
    return model.consensus


def choose_strategy(
    model: Model, strategy: str | None, order: Order, angles: Sequence[float] | None, options: dict[str, object]
) -> tuple[Strategy, int | None]:
    """How a model matches, as :func:`load` is asked for; what it leaves open is filled in, also in ``options``.

    Returns:
        The strategy, and how many rotations of the first image test-time augmentation describes, if that was asked for.
    """
    chosen = strategy or model.strategy
    if strategy is None and order == "default" and angles is None:
        order = model.order
    if angles is not None:
        options["angles"] = _radians(chosen, angles)
    tta = None
    if chosen == TTA:
        tta, chosen, order = count_augmentations(order), DualSoftmax.name, "default"
    if issubclass(STRATEGIES[chosen], SoftmaxStrategy):
        options.setdefault("inverse_temperature", model.inverse_temperature)
        options.setdefault("threshold", model.threshold)
    if chosen == PrototypeProcrustes.name and model.prototype is not None:
        options.setdefault("prototype", model.prototype)
    return make_strategy(chosen, model.steerer, order=order, **options), tta


def _radians(strategy: str, degrees: Sequence[float]) -> list[float]:
    """What is refused of angles in radians is said by the strategy, in degrees too."""
    if strategy == TTA:
        raise ValueError("tta rotates the image by the rotations of an order: give order instead of angles")
    try:
        return [math.radians(angle) for angle in degrees]
    except TypeError:
        raise ValueError(f"angles must be numbers, in degrees, got {degrees!r}") from None


def count_augmentations(order: Order) -> int:
    """How many rotations of the first image test-time augmentation describes; by default 4."""
    if order == "default":
        return 4
    if not isinstance(order, int) or order < 2:
        raise ValueError(f"order must be a whole number of at least 2 for tta, got {order!r}")
    if order > MAX_AUGMENTATIONS:
        raise ValueError(f"order must be at most {MAX_AUGMENTATIONS} for tta, got {order}")
    return order


def _check_features(*given: object) -> None:
    for features in given:
        if not isinstance(features, Features):
            raise TypeError(
                f"features must be Features, as matcher.extract(image) gives them, got {type(features).__name__}; to "
                "match images, call the matcher with them: matcher(image0, image1)"
            )


def _stored_rotations(
    found: Assignment, orientation0: Tensor, orientation1: Tensor
) -> tuple[float | None, np.ndarray | None]:
    """Rotations between what the model saw as rotations between stored images, in degrees in (-180, 180].

    The orientations are identities unless EXIF was applied. If one of them mirrors, no rotation relates the stored
    images.
    """
    change = orientation_change(orientation0, orientation1)
    if change is None:
        return None, None
    base, sense = change
    angle = None if found.angle is None else wrap_degrees(math.degrees(base + sense * found.angle))
    if found.angles is None:
        return angle, None
    degrees = torch.rad2deg(base + sense * found.angles).tolist()
    return angle, np.array([wrap_degrees(value) for value in degrees], dtype=np.float32)


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
