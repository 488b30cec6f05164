"""LightGlue's shape: modules that take and give dictionaries of tensors with a batch dimension.

Where a program has LightGlue's extractor and matcher, these two stand in, and the images may be rotated against each
other as they like. Keypoints are pixels of the image that was given, the centre of the top-left one at (0, 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from steerers._choices import DEFAULT_MODEL, NUM_KEYPOINTS, TTA
from steerers._files import StrPath
from steerers.features import Features, as_tensor
from steerers.geometry import wrap_degrees
from steerers.images.load import ImageSource
from steerers.matching.assignment import Assignment
from steerers.matching.strategies import NEEDS_IMAGES
from steerers.models import zoo
from steerers.pipeline import Pipeline, choose_strategy, load
from steerers.steering.representations import Order
from steerers.steering.steerer import Steerer


class Matcher(nn.Module):
    """Matches descriptions, whoever made them, as LightGlue does.

    It moves with :meth:`~torch.nn.Module.to` and expects descriptions on the device where it is. No network is loaded:
    what is needed is the steerer for the descriptions. It matches as :func:`steerers.load` does without consensus.

    Args:
        name: the model that made the descriptions, see ``steerers models``: ``"disk-so2"`` for those of DISK.
        steerer: a steerer, or the file of one, instead of the model's own.
        weights: files of a published steerer that is not in the cache.
        strategy: how to match, with ``order``, ``angles`` and ``options``; see :func:`steerers.load`.
    """

    def __init__(
        self,
        name: StrPath = DEFAULT_MODEL,
        *,
        steerer: StrPath | Steerer | None = None,
        weights: StrPath | Sequence[StrPath] = (),
        strategy: str | None = None,
        order: Order = "default",
        angles: Sequence[float] | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        if strategy == TTA:
            raise ValueError(NEEDS_IMAGES)
        model = zoo.build(name, steerer=steerer, weights=weights, network=False)
        self.steerer = model.steerer  # so that it moves with the module
        self.strategy, _ = choose_strategy(model, strategy, order, angles, options)
        self.name = model.name

    def extra_repr(self) -> str:
        return f"{self.name}, {self.strategy.name}"

    def forward(self, data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Match B pairs of images.

        Args:
            data: ``image0`` and ``image1``, each with ``descriptors`` (B, N, D), and ``num_keypoints`` (B,) where some
                of the N are there to fill up. What else LightGlue takes, such as ``keypoints`` and ``image_size``, may
                stand there too; nothing depends on it.

        Returns:
            A dictionary of tensors.

            - ``matches0`` (B, N): for each description of image 0 the number of its match, or -1; ``matches1`` (B, M)
            - ``matching_scores0`` (B, N): probabilities of the matches, 0 where there is none; ``matching_scores1``
            - ``matches``: B tensors (K, 2) of numbers into both, the best match first; ``scores``: B tensors (K,)
            - ``angle`` (B,): the rotation in degrees, counter-clockwise, that brings image 0 onto image 1, in
              (-180, 180]; NaN where the strategy does not tell, or nothing matches; ``angles``: B tensors (K,), the
              same for every match
        """
        (first, lengths0), (second, lengths1) = (_descriptions(data, name) for name in ("image0", "image1"))
        found = self.strategy.match_batch(first, second, lengths0, lengths1)
        matches0, scores0 = _by_number(found, 0, first)
        matches1, scores1 = _by_number(found, 1, second)
        angles = [[_degrees(pair.angle)] for pair in found]
        return {
            "matches0": matches0,
            "matches1": matches1,
            "matching_scores0": scores0,
            "matching_scores1": scores1,
            "matches": [pair.indices for pair in found],
            "scores": [pair.scores for pair in found],
            "angle": first.new_tensor(angles, dtype=torch.float32).view(-1),
            "angles": [_all_degrees(pair) for pair in found],
        }


class Extractor(nn.Module):
    """Finds and describes keypoints, as LightGlue's extractors do.

    It moves with :meth:`~torch.nn.Module.to`: the network is loaded in the form that is fast where it is.

    Args:
        name: see ``steerers models``; the same as that of the :class:`Matcher`.
        num_keypoints: most keypoints an image.
        options: of :func:`steerers.load`, about images and networks: ``max_size``, ``detector``, ``weights``,
            ``precision``, ``tile`` and others.
    """

    _place: Tensor

    def __init__(self, name: StrPath = DEFAULT_MODEL, *, num_keypoints: int = NUM_KEYPOINTS, **options: Any) -> None:
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)  # knows where the module is
        self._options = {"name": name, "num_keypoints": num_keypoints, **options}
        self._pipeline = load(**self._options)

    @property
    def pipeline(self) -> Pipeline:
        """What does the work, on the device where the module is."""
        if self._pipeline.device != self._place.device:
            self._pipeline = load(**self._options, device=self._place.device)
        return self._pipeline

    def extra_repr(self) -> str:
        return repr(self._pipeline)

    def extract(self, image: ImageSource, *, mask: ImageSource | None = None) -> dict[str, Tensor]:
        """The features of an image, shrunk where it is large, in a batch of one.

        Args:
            image: a (3, H, W) or (1, H, W) tensor in [0, 1], also with a batch dimension of one, or whatever else
                :func:`~steerers.images.load.load_image` takes, such as a path.
            mask: where keypoints are allowed; see there.

        Returns:
            ``keypoints`` (1, N, 2), ``descriptors`` (1, N, D), ``keypoint_scores`` (1, N), ``image_size`` (1, 2), which
            is width and height, and ``num_keypoints`` (1,), which is N.
        """
        return _batch([self.pipeline.extract(image, mask=mask)])

    def forward(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The features of ``image``, a (B, 3, H, W) or (B, 1, H, W) tensor in [0, 1].

        Returns:
            As :meth:`extract`, of all; where an image has fewer keypoints than another, zeros fill up, and
            ``num_keypoints`` (B,) tells how many are real.
        """
        images = data["image"]
        if images.ndim != 4:
            raise ValueError(f"image must have shape (B, 3, H, W) or (B, 1, H, W), got {tuple(images.shape)}")
        return _batch(self.pipeline.extract(list(images)))


def _descriptions(data: Mapping[str, Mapping[str, Any]], name: str) -> tuple[Tensor, list[int] | None]:
    """(B, N, D), and how many of the N are real where that is told."""
    features = data.get(name)
    if not isinstance(features, Mapping) or "descriptors" not in features:
        raise ValueError(f"data must have descriptors of both images: data[{name!r}]['descriptors'] is missing")
    descriptions = as_tensor(f"descriptors of {name}", features["descriptors"])
    if descriptions.ndim != 3:
        raise ValueError(f"descriptors of {name} must have shape (B, N, D), got {tuple(descriptions.shape)}")
    lengths = features.get("num_keypoints")
    return descriptions, None if lengths is None else torch.as_tensor(lengths).tolist()


def _by_number(found: Sequence[Assignment], which: int, descriptions: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N) what each description of image ``which`` matches, or -1, and with which probability, or 0."""
    matches = descriptions.new_full(descriptions.shape[:2], -1, dtype=torch.int64)
    scores = descriptions.new_zeros(descriptions.shape[:2], dtype=torch.float32)
    for row, pair in enumerate(found):
        own, other = pair.indices[:, which], pair.indices[:, 1 - which]
        matches[row, own] = other
        scores[row, own] = pair.scores.float()
    return matches, scores


def _degrees(radians: float | None) -> float:
    return float("nan") if radians is None else wrap_degrees(radians * 180 / torch.pi)


def _all_degrees(pair: Assignment) -> Tensor:
    """(K,) degrees; NaN where the strategy has none."""
    if pair.angles is None:
        return torch.full_like(pair.scores, torch.nan)
    return pair.scores.new_tensor([_degrees(angle) for angle in pair.angles.tolist()])


def _batch(features: Sequence[Features]) -> dict[str, Tensor]:
    """Features of images, filled up with zeros to one length."""
    place = features[0].keypoints.device
    return {
        "keypoints": pad_sequence([one.keypoints for one in features], batch_first=True),
        "descriptors": pad_sequence([one.descriptions for one in features], batch_first=True),
        "keypoint_scores": pad_sequence([one.scores for one in features], batch_first=True),
        "image_size": torch.tensor([one.image_size for one in features], dtype=torch.float32, device=place),
        "num_keypoints": torch.tensor([len(one) for one in features], device=place),
    }
