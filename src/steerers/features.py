"""The records that travel between rooms: :class:`Keypoints`, :class:`Features` and :class:`Matches`.

Frames. Every public coordinate is a pixel of the image *as stored on disk*: x right, y down, the centre of the top-left
pixel at (0, 0). :class:`Keypoints` alone live in the frame of the tensor that a detector was given; the pipeline maps
them to stored pixels when it makes :class:`Features`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers._choices import MAX_SIZE

if TYPE_CHECKING:
    from steerers.geometry import Fundamental, Homography, Pose
    from steerers.images.load import Image, ImageSource
    from steerers.refinement import RefineOptions

    FloatArray = NDArray[np.float32]
    IntArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]


Numbers: TypeAlias = Tensor | NDArray[Any]
"""What callers may give where tensors are worked with."""
Row: TypeAlias = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""A record as :mod:`steerers._tables` keeps it: what JSON can hold, and the arrays."""


def as_tensor(name: str, values: Numbers) -> Tensor:
    """Numbers that a caller may have in a NumPy array, as a tensor; a tensor stays as it is.

    Raises:
        TypeError: saying by its ``name`` what is neither.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, (np.ndarray, np.generic)) and values.dtype.kind in "biuf":
        return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ["C", "W"]))
    what = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
    raise TypeError(f"{name} must be a tensor or a NumPy array of numbers, got {what}")


def _take_arrays(record: Keypoints | Features, *names: str) -> None:
    """Exchange arrays in the fields of those names for tensors."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not isinstance(value, Tensor):
            object.__setattr__(record, name, as_tensor(name, value))


@dataclass(frozen=True, eq=False)
class Keypoints:
    """Points that a detector found, in pixels of the tensor it was given.

    ``scales`` (diameter in pixels) and ``orientations`` (radians, counter-clockwise) are ``None`` for detectors that
    have none; a descriptor that needs them says so.
    """

    xy: Tensor  # (N, 2) float32
    scores: Tensor  # (N,) float32, higher is better
    scales: Tensor | None = None  # (N,) float32
    orientations: Tensor | None = None  # (N,) float32

    def __post_init__(self) -> None:
        _take_arrays(self, "xy", "scores", "scales", "orientations")
        if self.xy.ndim != 2 or self.xy.shape[1] != 2:
            raise ValueError(f"keypoints.xy must have shape (N, 2), got {tuple(self.xy.shape)}")
        for name in ("scores", "scales", "orientations"):
            value = getattr(self, name)
            if value is not None and value.shape != (len(self),):
                raise ValueError(f"keypoints.{name} must have shape ({len(self)},), got {tuple(value.shape)}")

    def __len__(self) -> int:
        return int(self.xy.shape[0])

    def clone(self) -> Keypoints:
        """In memory of their own."""
        return self.select(torch.arange(len(self), device=self.xy.device))

    @staticmethod
    def join(parts: Sequence[Keypoints]) -> Keypoints:
        """The keypoints of several records of one image, one after the other; they have what all of them have."""
        fields: dict[str, Any] = {}
        for name in ("xy", "scores", "scales", "orientations"):
            values = [getattr(part, name) for part in parts]
            fields[name] = None if any(value is None for value in values) else torch.cat(values)
        return Keypoints(**fields)

    def select(self, index: Tensor) -> Keypoints:
        """The keypoints at ``index``, an index or boolean tensor."""
        return Keypoints(
            self.xy[index],
            self.scores[index],
            None if self.scales is None else self.scales[index],
            None if self.orientations is None else self.orientations[index],
        )


@dataclass(frozen=True, eq=False)
class Features:
    """Keypoints of one image with their descriptions: what matching needs to know of an image.

    NumPy arrays are taken too, and become tensors.
    """

    keypoints: Tensor  # (N, 2) float32, stored pixels
    descriptions: Tensor  # (N, D)
    scores: Tensor  # (N,) float32
    image_size: tuple[int, int]  # (width, height) of the stored image
    model: str = ""  # the model that made the descriptions; two images match only if it is the same
    orientation: Tensor = field(default_factory=lambda: torch.eye(2, dtype=torch.float64))  # (2, 2)
    """Linear part, without scale, of the map from stored pixels to what the model saw (EXIF); the identity if none."""

    def __post_init__(self) -> None:
        _take_arrays(self, "keypoints", "descriptions", "scores", "orientation")
        n = len(self)
        if self.keypoints.shape != (n, 2):
            raise ValueError(f"keypoints must have shape (N, 2), got {tuple(self.keypoints.shape)}")
        if self.descriptions.ndim != 2 or self.descriptions.shape[0] != n:
            raise ValueError(
                f"descriptions must have shape ({n}, D) to go with {n} keypoints, got {tuple(self.descriptions.shape)}"
            )
        if self.scores.shape != (n,):
            raise ValueError(f"scores must have shape ({n},), got {tuple(self.scores.shape)}")
        bad = int((~torch.isfinite(self.descriptions)).any(dim=1).sum())
        if bad:
            raise ValueError(
                f"{bad} of {n} descriptions of model {self.model or '(unnamed)'!r} are not finite (NaN or infinite); "
                "if the network runs in half precision, run it in float32"
            )

    def __len__(self) -> int:
        return int(self.keypoints.shape[0])

    def __repr__(self) -> str:
        count, dim = self.descriptions.shape
        width, height = self.image_size
        told = (f"{count} keypoints of an image of {width} x {height}", f"{dim} dimensions", self.model)
        return f"Features({', '.join(filter(None, told))})"

    def to(self, device: torch.device | str) -> Features:
        """The same features on ``device``."""
        keypoints, descriptions, scores = (x.to(device) for x in (self.keypoints, self.descriptions, self.scores))
        return replace(self, keypoints=keypoints, descriptions=descriptions, scores=scores)

    # Files ------------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write an HDF5 file, whole or not at all, that :func:`load_features` reads.

        Args:
            half: keep descriptions as float16, in half of the room; by default they stay exactly what they are.

        Raises:
            OSError: if the file cannot be written.
            ValueError: if float16 cannot hold the descriptions.
        """
        from steerers._tables import write_table

        with write_table(path, "features", single=True) as table:
            table.append(*self.to_row(half=half))

    def to_row(self, *, half: bool = False) -> Row:
        """What a file keeps of the features; ``half`` as in :meth:`save`."""
        width, height = self.image_size
        told = {"size": [int(width), int(height)], "model": self.model, "orientation": self.orientation.tolist()}
        descriptions = self.descriptions.detach()
        if half:
            descriptions = descriptions.half()
            if not bool(torch.isfinite(descriptions).all()):
                named = repr(self.model or "(unnamed)")
                raise ValueError(f"descriptions of model {named} are too large for float16; keep them as float32")
        elif descriptions.dtype == torch.bfloat16:  # NumPy has none; all its values are in float32
            descriptions = descriptions.float()
        arrays = {"keypoints": self.keypoints, "descriptions": descriptions, "scores": self.scores}
        return told, {name: values.detach().cpu().numpy() for name, values in arrays.items()}

    @classmethod
    def from_row(cls, told: Mapping[str, Any], arrays: Callable[..., list[NDArray[Any]]]) -> Features:
        """The features of which a file keeps this; ``arrays`` reads those of some names.

        Raises:
            ValueError: if they contradict each other, or something is missing.
        """
        with _missing():
            width, height = told["size"]
            orientation = torch.tensor(told["orientation"], dtype=torch.float64)
            if not (type(width) is type(height) is int) or min(width, height) < 1 or orientation.shape != (2, 2):
                raise ValueError(f"its size is {told['size']!r:.40} and its orientation {told['orientation']!r:.80}")
            keypoints, descriptions, scores = arrays("keypoints", "descriptions", "scores")
            if not all(values.dtype.kind == "f" for values in (keypoints, descriptions, scores)):
                raise ValueError("its keypoints, descriptions and scores are no floating-point numbers")
            return cls(keypoints, descriptions, scores, (width, height), str(told["model"]), orientation)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Matches:
    """Matched keypoints of two images, best score first, with the rotation between the images.

    ``angle`` is the counter-clockwise rotation, in degrees in (-180, 180], that brings image 0 onto image 1; ``angles``
    is the same for every match. Both are ``None`` for a strategy that does not estimate them. Of images that were
    squashed (``load(..., resize="squash")``) they are rotations of the squashed ones; rotations of the stored images
    they are where these are square, or the angle is a multiple of 90 degrees.

    ``covariances`` are there after :meth:`refine`: how far each place of image 1 can be relied on.
    """

    keypoints0: FloatArray  # (K, 2) stored pixels of image 0
    keypoints1: FloatArray  # (K, 2) stored pixels of image 1
    scores: FloatArray  # (K,) match probability in [0, 1]
    indices: IntArray  # (K, 2) into the keypoints of the two Features
    angle: float | None = None
    angles: FloatArray | None = None  # (K,)
    features0: Features | None = None
    features1: Features | None = None
    model: str = ""
    strategy: str = ""
    covariances: FloatArray | None = None  # (K, 2, 2) squared stored pixels of image 1; infinite if not refined

    def __len__(self) -> int:
        return int(self.scores.shape[0])

    def __repr__(self) -> str:
        told = [f"{len(self)} matches"]
        told += [] if self.angle is None else [f"rotated by {self.angle:.1f} degrees"]
        return f"Matches({', '.join([*told, *filter(None, (self.model, self.strategy))])})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an HDF5 file, whole or not at all, that :func:`load_matches` reads.

        It holds all but the two :class:`Features`, which have files of their own (:meth:`Features.save`).

        Raises:
            OSError: if the file cannot be written.
        """
        from steerers._tables import write_table

        optional = {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None}
        told = {"angle": self.angle, "model": self.model, "strategy": self.strategy}
        arrays = {name: getattr(self, name) for name in _OF_MATCHES}
        with write_table(path, "matches", single=True) as table:
            table.append({**told, **{name: name in optional for name in _OPTIONAL}}, {**arrays, **optional})

    def refine(
        self,
        image0: ImageSource | Image,
        image1: ImageSource | Image,
        *,
        max_size: int | None = MAX_SIZE,
        options: RefineOptions | None = None,
        device: torch.device | str = "cpu",
    ) -> Matches:
        """With keypoints of image 1 moved to where those of image 0 are seen, to a small fraction of a pixel.

        Patches around the two keypoints of a match are laid upright to each other by its rotation and registered; see
        :mod:`steerers.refinement`. Keypoints of image 0 stay, and so does what cannot be told: its covariance is
        infinite.

        Args:
            image0: that was matched, as the matcher takes it; ``image1`` likewise.
            max_size: images are registered at this longest side: the one at which they were matched, by default as
                :func:`steerers.load` has it. A second call with a larger one, or ``None``, refines further.
            options: sizes and limits.
            device: what computes.

        Raises:
            ValueError: if an image has another size than the one that was matched.
        """
        from steerers.images.load import Image, load_image
        from steerers.refinement import Shown, refine_keypoints

        first, second = (
            image if isinstance(image, Image) else load_image(image, max_size=max_size) for image in (image0, image1)
        )
        for number, image, features in ((0, first, self.features0), (1, second, self.features1)):
            if features is not None and image.stored_size != features.image_size:
                sizes = " x ".join(map(str, image.stored_size)), " x ".join(map(str, features.image_size))
                raise ValueError(f"image{number} has {sizes[0]} pixels, but matches are of one of {sizes[1]}")
        degrees = angle_of_each(self)
        shown0, shown1 = (Shown.of(image, device) for image in (first, second))
        found = refine_keypoints(shown0, shown1, self.keypoints0, self.keypoints1, degrees, options=options)
        return replace(self, keypoints1=found.keypoints1, covariances=found.covariances)

    def homography(
        self,
        threshold: float = 3.0,
        *,
        confidence: float = 0.9999,
        max_iterations: int = 10_000,
        seed: int = 0,
        weighted: bool = False,
    ) -> Homography:
        """Robust homography from image 0 to image 1 by OpenCV's USAC with MAGSAC scoring.

        Args:
            threshold: inlier distance in pixels of image 1.
            confidence: probability with which the search may stop early.
            max_iterations: most samples that are tried.
            seed: of the estimator's sampling; the same seed gives the same result.
            weighted: of refined matches, let every inlier count as exactly as its covariance says (weighted least
                squares, from the robust estimate on; the inliers stay). Matches that were not refined count as those of
                a detector.

        Returns:
            ``(H, inliers)``, a (3, 3) float64 array, or ``None`` if the matches do not determine one, and a (K,)
            boolean array.

        Raises:
            ValueError: if ``weighted`` is asked of matches without covariances.
        """
        from steerers.geometry import Homography, estimate_homography, weighted_homography

        p0, p1, told = self.keypoints0, self.keypoints1, self.covariances
        if weighted and told is None:
            raise ValueError("weighted needs covariances, which matches have after refine()")
        found = estimate_homography(p0, p1, threshold, confidence=confidence, max_iterations=max_iterations, seed=seed)
        if not weighted or told is None or found.H is None:
            return found
        inliers = found.inliers
        return Homography(weighted_homography(found.H, p0[inliers], p1[inliers], told[inliers]), inliers)

    @cached_property
    def probability(self) -> float:
        """That the two images show the same thing, as if every second pair did: from how many matches agree with a
        homography or, where the scene is not flat, a fundamental matrix, and in their rotations; see
        :mod:`steerers.verdict`. Estimated when first asked for."""
        from steerers.verdict import gather, probability

        return probability(gather(self))

    def fundamental(self, threshold: float = 1.0, *, max_iterations: int = 10_000, seed: int = 0) -> Fundamental:
        """Robust fundamental matrix of two views of a scene that need not be flat, by poselib.

        Args:
            threshold: largest epipolar distance of an inlier, in pixels.

        Returns:
            ``(F, inliers)`` with ``x1' F x0 = 0``; ``F`` is ``None`` if the matches do not determine one.
        """
        from steerers.geometry import estimate_fundamental

        p0, p1 = self.keypoints0, self.keypoints1
        return estimate_fundamental(p0, p1, threshold, max_iterations=max_iterations, seed=seed)

    def pose(
        self,
        K0: NDArray[np.floating[Any]],
        K1: NDArray[np.floating[Any]],
        *,
        threshold: float = 1.0,
        max_iterations: int = 10_000,
        seed: int = 0,
    ) -> Pose:
        """Relative pose of two calibrated cameras by poselib.

        Args:
            K0: (3, 3) intrinsic matrix of image 0, for its stored pixels with the centre of the top-left one at (0, 0):
                COLMAP's has 0.5 more in both coordinates of the principal point; K1 of image 1.
            threshold: largest epipolar distance of an inlier, in pixels.
            max_iterations: most samples that are tried.
            seed: of the estimator's sampling.

        Returns:
            ``(R, t, inliers)`` with ``X1 = R X0 + t``, ``|t| = 1``; ``R`` and ``t`` are ``None`` if the matches do not
            determine a pose; ``inliers`` is a (K,) boolean array.
        """
        from steerers.geometry import estimate_pose

        p0, p1 = self.keypoints0, self.keypoints1
        return estimate_pose(p0, p1, K0, K1, threshold=threshold, max_iterations=max_iterations, seed=seed)


# Files ----------------------------------------------------------------------------------------------------------------

_OF_MATCHES = {"keypoints0": (2,), "keypoints1": (2,), "scores": (), "indices": (2,)}
_OPTIONAL = {"angles": (), "covariances": (2, 2)}


class _Rotated(Protocol):
    """What matches of any record say of rotations, in degrees: of the pair, and of each, as far as it is known."""

    @property
    def angle(self) -> float | None: ...
    @property
    def angles(self) -> FloatArray | None: ...
    def __len__(self) -> int: ...


def angle_of_each(matches: _Rotated) -> FloatArray | None:
    """(K,) degrees of every match: its own rotation, or where there is none that of the pair; ``None`` if unknown."""
    if matches.angles is not None or matches.angle is None:
        return matches.angles
    return np.full(len(matches), matches.angle, dtype=np.float32)


def load_features(path: str | os.PathLike[str], name: str | None = None) -> Features:
    """The features that :meth:`Features.save` wrote, or ``steerers extract``.

    Args:
        name: of the photograph, where a file holds several.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file, if it is damaged or of another kind, or has no photograph of that name.
    """
    from steerers._tables import Table

    with Table(path, "features") as table:
        index = _find(table.rows, name, path)
        with _damages(path, "features"):
            if "error" in table.rows[index]:
                raise ValueError(f"{name!r} could not be read when they were extracted: {table.rows[index]['error']}")
            return Features.from_row(table.rows[index], lambda *columns: table.read(index, *columns))


def load_matches(path: str | os.PathLike[str]) -> Matches:
    """The matches that :meth:`Matches.save` wrote; without the two :class:`Features`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file, if it is damaged or of another kind.
    """
    from steerers._tables import Table

    with Table(path, "matches") as table, _damages(path, "matches"), _missing():
        told = table.rows[0]
        arrays: dict[str, Any] = dict(zip(_OF_MATCHES, table.read(0, *_OF_MATCHES), strict=True))
        arrays |= {name: table.read(0, name)[0] for name in _OPTIONAL if told[name]}
        check_matches(told["angle"], arrays)
        return Matches(**arrays, angle=told["angle"], model=str(told["model"]), strategy=str(told["strategy"]))


def check_matches(angle: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse what a file says of matches if it is no rotation, or arrays of other types or lengths than theirs."""
    if angle is not None and not (isinstance(angle, (int, float)) and math.isfinite(angle)):
        raise ValueError(f"its angle is {angle!r:.40}")
    count = len(arrays["scores"])
    for name, values in arrays.items():
        kind, shape = ("i" if name == "indices" else "f"), (count, *{**_OF_MATCHES, **_OPTIONAL}[name])
        if values.dtype.kind != kind or values.shape != shape:
            raise ValueError(f"its {name} are {values.dtype} of shape {values.shape}, its matches {count}")


def _find(rows: Sequence[Mapping[str, Any]], name: str | None, path: str | os.PathLike[str]) -> int:
    """Which row is that of a photograph; without a name, the only one."""
    if name is None and len(rows) == 1:
        return 0
    names = [row.get("name") for row in rows]
    if name is not None and name in names:
        return names.index(name)
    asked = "give the name of one" if name is None else f"none of them is {name!r}"
    shown = ", ".join(repr(known) for known in names[:3]) + (", ..." if len(names) > 3 else "")
    raise ValueError(f"{os.fspath(path)} holds features of {len(rows)} photographs ({shown}): {asked}")


@contextmanager
def _damages(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Errors in the block name the file."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(os.fspath(path)):
            raise
        raise ValueError(f"{os.fspath(path)}: no {kind} to be read, or damaged ({error})") from error


@contextmanager
def _missing() -> Iterator[None]:
    """What a row lacks, or has in a type that is not its own, is a ValueError."""
    try:
        yield
    except (KeyError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise ValueError(f"what it says is incomplete: {type(error).__name__} {error}") from error
