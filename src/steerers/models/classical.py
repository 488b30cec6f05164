"""Classical models on OpenCV: Upright SIFT, SIFT and ORB.

Upright SIFT (SIFT with the angle of every keypoint set to zero) is the paper's exact example of an equivariant
description: a quarter turn of the image permutes the 128 numbers of a description, and nothing needs to be learned
(:func:`c4_permutation`).

OpenCV's own pyramid spoils that a little. It keeps every second pixel, starting from the left and the top; a rotation
then keeps others. Here each octave is computed on an image whose lattice is symmetric about the centre
(:func:`_pyramid`), and the doubled image of the first octave is aligned with the pixels (``enable_precise_upscale``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steerers.features import Keypoints
from steerers.models.base import SingleExtractor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    GreyImage = NDArray[np.uint8]
    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

# OpenCV's defaults: blur of the first layer of an octave, in its pixels, and layers an octave in which keypoints lie.
_SIGMA, _LAYERS = 1.6, 3
# OpenCV finds no keypoint within 5 pixels of the border of an octave, so smaller octaves are of no use.
_SMALLEST_SIDE = 12
# OpenCV's patch, which it clips to the diagonal, must hold 128 pixels: a radius of 6.
_SMALLEST_DIAGONAL = 6
# OpenCV's contrast threshold is 0.04. As only the best keypoints are kept, a lower one costs nothing where there are
# enough, and gives more in small or dull images.
_CONTRAST = 0.01
# Diameter in pixels of keypoints whose detector gives no scale; the described patch is six times as wide.
_DEFAULT_SIZE = 5.0
# OpenCV's defaults of ORB: diameter of a keypoint of the first level, ratio of levels, number of levels, border.
_ORB_PATCH, _ORB_RATIO, _ORB_LEVELS, _ORB_BORDER = 31, 1.2, 8, 31


def c4_permutation() -> Tensor:
    """The (128,) index ``p`` by which a quarter turn of the image acts on Upright SIFT.

    ``description[..., p]`` describes the same keypoint of the image rotated counter-clockwise (:func:`torch.rot90`).
    OpenCV's description is a (4, 4, 8) array: rows of cells from the top, columns from the left, and directions of the
    gradient in steps of 45 degrees counter-clockwise. A rotation moves the cells as it moves pixels, and adds 90
    degrees, two bins, to every direction.
    """
    return torch.arange(128).reshape(4, 4, 8).rot90(1, dims=(0, 1)).roll(2, dims=2).flatten()


class UprightSift(SingleExtractor):
    """SIFT without orientations: equivariant to quarter turns, more distinctive than SIFT on upright images.

    Its descriptions are RootSIFT's, of unit length: the square root of the L1-normalised ones.
    """

    dim = 128

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        points = _detect_sift(_grey(image))
        points[:, _ANGLE] = 0.0
        points = np.unique(points, axis=0)  # one keypoint with several orientations is one keypoint
        return _keypoints(_best(points, num_keypoints, mask, image), image, oriented=False)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        points = _points(keypoints, _DEFAULT_SIZE)
        points[:, _ANGLE] = 0.0
        return _describe_sift(image, points)


class Sift(SingleExtractor):
    """RootSIFT, invariant to rotation: each keypoint is described relative to its orientation.

    A keypoint with several dominant orientations appears once for each.
    """

    dim = 128

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        return _keypoints(_best(_detect_sift(_grey(image)), num_keypoints, mask, image), image, oriented=True)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        _check_oriented("Sift", keypoints)
        return _describe_sift(image, _points(keypoints, _DEFAULT_SIZE))


class Orb(SingleExtractor):
    """ORB: 256 bits relative to the keypoint's orientation, as a vector of +-1/16.

    The vector has unit length, and the cosine of two is 1 - 2 h / 256 for the Hamming distance h of the bits.
    Keypoints lie at least 31 pixels from the border of the image.
    """

    dim = 256

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        import cv2

        grey = _grey(image)
        allowed = None if mask is None else mask.cpu().numpy() * np.uint8(255)  # 1 is lost on coarser levels
        found: list[Any] = []
        if min(grey.shape) > 2 * _ORB_BORDER:  # OpenCV fails on tiny images
            found = list(cv2.ORB.create(nfeatures=min(num_keypoints, grey.size)).detect(grey, allowed))
        return _keypoints(_best(_array(found), num_keypoints, mask, image), image, oriented=True)

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        import cv2

        _check_oriented("Orb", keypoints)
        if len(keypoints) == 0:
            return image.new_zeros((0, self.dim), dtype=torch.float32)
        grey, points = _grey(image), _points(keypoints, _ORB_PATCH)
        # OpenCV reads beyond its memory for points outside the image.
        points[:, :2] = np.clip(np.nan_to_num(points[:, :2]), 0, np.array(grey.shape[::-1]) - 1)
        last = min(_ORB_LEVELS - 1, int(math.log(min(grey.shape), _ORB_RATIO)))  # a smaller level would be empty
        octaves = np.rint(np.log(points[:, _SIZE] / _ORB_PATCH) / math.log(_ORB_RATIO)).clip(0, last)
        given = [
            cv2.KeyPoint(x, y, size, angle, 0.0, int(octave), index)
            for index, ((x, y, size, _, angle), octave) in enumerate(zip(points.tolist(), octaves, strict=True))
        ]
        described, packed = cv2.ORB.create(edgeThreshold=0).compute(grey, given)
        bits = np.empty((len(given), self.dim), np.float32)  # in the given order; OpenCV sorts by level
        bits[[point.class_id for point in described]] = np.unpackbits(np.asarray(packed, np.uint8), axis=1)
        return torch.from_numpy((2 * bits - 1) / 16).to(image.device)


# SIFT, octave by octave -----------------------------------------------------------------------------------------------


class _Level(NamedTuple):
    """The image halved some number of times: pixel p of the level lies at ``scale * p + offset`` of the image."""

    image: GreyImage
    scale: float
    offset: FloatArray  # (2,)


def _pyramid(grey: GreyImage) -> list[_Level]:
    """The image, its half, its quarter, ... as long as SIFT can find keypoints in it."""
    levels = [_Level(grey, 1.0, np.zeros(2))]
    image = grey.astype(np.float32)
    while min(image.shape) >= 2 * _SMALLEST_SIDE:
        scale, offset = levels[-1].scale, levels[-1].offset
        even = np.array([length % 2 == 0 for length in image.shape[::-1]])
        image = _halve(image)
        levels.append(_Level(np.rint(image).astype(np.uint8), 2 * scale, offset + scale * even / 2))
    return levels


def _halve(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """An image at half the size about the same centre, so that halving and quarter turns commute.

    The lattice of kept points must be symmetric: an axis of odd length keeps every second pixel, from the first to the
    last; one of even length keeps the points midway between the pixels of each pair, by their mean. The blur before
    gives the half the same blur in its own pixels, 0.5, that SIFT takes every image to have; a mean of pairs is a part
    of that blur (variance 0.25).
    """
    import cv2

    sigma_y, sigma_x = (math.sqrt(0.5 if length % 2 == 0 else 0.75) for length in image.shape)
    half = np.asarray(cv2.GaussianBlur(image, (0, 0), sigmaX=sigma_x, sigmaY=sigma_y), np.float32)
    for _ in range(2):
        half = (0.5 * (half[::2] + half[1::2]) if len(half) % 2 == 0 else half[::2]).T
    return np.ascontiguousarray(half)


def _detect_sift(grey: GreyImage) -> FloatArray:
    """All keypoints of SIFT, (N, 5): octaves -1 and 0 from the image itself, each other from its level's octave 0."""
    sift = _opencv_sift()
    found = []
    for index, level in enumerate(_pyramid(grey)):
        points = _array(sift.detect(level.image, None))
        octaves, _ = _octaves_and_layers(points[:, _SIZE])
        points = points[octaves <= 0 if index == 0 else octaves == 0]
        points[:, :2] = level.scale * points[:, :2] + level.offset
        points[:, _SIZE] *= level.scale
        found.append(points)
    return np.concatenate(found)


def _describe_sift(image: Tensor, points: FloatArray) -> Tensor:
    """(N, 128) descriptions of (N, 5) keypoints, of unit length; zero where the patch has no gradient.

    OpenCV writes beyond its memory for patches of a few pixels. So diameters are at least those of its own detector,
    and images of a few pixels, smaller than any patch, count as without gradient.
    """
    grey = _grey(image)
    diagonal = math.hypot(*grey.shape)
    described = np.zeros((len(points), 128), np.float32)
    if len(points) and diagonal >= _SMALLEST_DIAGONAL:
        levels = _pyramid(grey)
        points[:, _SIZE] = points[:, _SIZE].clip(_SIGMA, diagonal)
        octaves, layers = _octaves_and_layers(points[:, _SIZE])
        layers = np.where(octaves < len(levels), layers, _LAYERS)
        octaves = np.minimum(octaves, len(levels) - 1)
        for octave in np.unique(octaves):
            chosen = octaves == octave
            described[chosen] = _describe_octave(levels[max(octave, 0)], points[chosen], min(octave, 0), layers[chosen])
    sums = np.maximum(described.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return torch.from_numpy(np.sqrt(described / sums)).to(image.device)


def _describe_octave(level: _Level, points: FloatArray, octave: int, layers: IntArray) -> NDArray[np.float32]:
    """OpenCV's (N, 128) descriptions of keypoints of one octave, on the image of that octave."""
    import cv2

    xy = (points[:, :2] - level.offset) / level.scale
    # OpenCV rounds to whole pixels; a tie goes to the centre of the image, as no other rule rotates with the image.
    centre = (np.array(level.image.shape[::-1]) - 1) / 2
    xy += 1e-3 * np.sign(centre - xy)
    sizes = points[:, _SIZE] / level.scale
    given = [
        cv2.KeyPoint(x, y, size, angle, 0.0, (octave & 255) | layer << 8)
        for x, y, size, angle, layer in zip(
            *xy.T.tolist(), sizes.tolist(), points[:, _ANGLE].tolist(), layers.tolist(), strict=True
        )
    ]
    _, descriptions = _opencv_sift().compute(level.image, given)
    return np.asarray(descriptions, np.float32)


def _octaves_and_layers(sizes: FloatArray) -> tuple[IntArray, IntArray]:
    """The octave (from -1) and the layer in it (1 to 3) in which OpenCV finds keypoints of the given diameters.

    OpenCV's diameter is sigma * 2^(octave + 1 + layer / 3), the layer with a fraction within +-0.5.
    """
    steps = np.rint(_LAYERS * np.log2(sizes / _SIGMA)).astype(np.int64)
    octaves, layers = np.divmod(np.maximum(steps, 1) - 1, _LAYERS)
    return octaves - 1, layers + 1


def _opencv_sift() -> Any:
    import cv2

    return cv2.SIFT.create(
        nOctaveLayers=_LAYERS, contrastThreshold=_CONTRAST, sigma=_SIGMA, enable_precise_upscale=True
    )


# Keypoints as arrays (N, 5): x, y, diameter, response, angle in degrees clockwise, as OpenCV has them -----------------

_SIZE, _RESPONSE, _ANGLE = 2, 3, 4


def _array(found: Any) -> FloatArray:
    """OpenCV's keypoints as an (N, 5) array."""
    return np.array([(*p.pt, p.size, p.response, p.angle) for p in found], np.float64).reshape(-1, 5)


def _points(keypoints: Keypoints, default_size: float) -> FloatArray:
    """:class:`Keypoints` as an (N, 5) array."""
    points = np.zeros((len(keypoints), 5))
    points[:, :2] = keypoints.xy.detach().cpu().numpy()
    points[:, _RESPONSE] = keypoints.scores.detach().cpu().numpy()
    points[:, _SIZE] = default_size if keypoints.scales is None else keypoints.scales.detach().cpu().numpy()
    if not (points[:, _SIZE] > 0).all():
        raise ValueError(f"keypoints.scales must be positive diameters in pixels, got {points[:, _SIZE].min()}")
    if keypoints.orientations is not None:
        points[:, _ANGLE] = np.degrees(-keypoints.orientations.detach().cpu().numpy().astype(np.float64)) % 360
    return points


def _keypoints(points: FloatArray, image: Tensor, *, oriented: bool) -> Keypoints:
    """The inverse of :func:`_points`, on the image's device."""
    table = torch.from_numpy(points).to(image.device, torch.float32)
    angles = torch.from_numpy(np.radians(-points[:, _ANGLE] % 360)).to(image.device, torch.float32)
    return Keypoints(table[:, :2], table[:, _RESPONSE], table[:, _SIZE], angles if oriented else None)


def _best(points: FloatArray, num_keypoints: int, mask: Tensor | None, image: Tensor) -> FloatArray:
    """The best allowed keypoints, best first; equal responses in order of position, so that runs agree."""
    if mask is not None:
        height, width = image.shape[-2:]
        columns = np.rint(points[:, 0]).astype(np.int64).clip(0, width - 1)
        rows = np.rint(points[:, 1]).astype(np.int64).clip(0, height - 1)
        points = points[mask.cpu().numpy()[rows, columns]]
    order = np.lexsort((points[:, _ANGLE], points[:, 1], points[:, 0], -points[:, _RESPONSE]))
    return points[order[:num_keypoints]]


# Arguments ------------------------------------------------------------------------------------------------------------


def _grey(image: Tensor) -> GreyImage:
    from steerers.images.load import to_grey

    return np.ascontiguousarray(to_grey(image))


def _check_oriented(model: str, keypoints: Keypoints) -> None:
    if keypoints.orientations is None:
        raise ValueError(
            f"{model} describes keypoints relative to their orientations, and these have none; use keypoints of "
            f"{model}, or describe with UprightSift"
        )
