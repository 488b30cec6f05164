"""Pixel frames, rotations of images and points, homographies, poses.

Convention. Pixels are (x right, y down) with the centre of the top-left pixel at (0, 0); a rotation is positive
counter-clockwise *as seen*, as in :func:`torch.rot90`. A 3 x 3 matrix ``T`` maps points of one frame to another:
``p' ~ T (x, y, 1)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Size: TypeAlias = tuple[int, int]
"""Of an image: (width, height)."""

MOST_AT_ONCE = 1 << 20
"""Pixels whose places in another image are computed at a time."""
DISTANCES_AT_ONCE = 1 << 23
"""Distances between points that are held at a time."""
MODE_WIDTH = math.radians(10.0)
"""Standard deviation of the kernel that :func:`circular_mode` smooths angles with."""
DETECTED = 0.7
"""Standard deviation, in pixels that a network saw, of where detectors find one thing in two photographs; where it is
not known how much images were shrunk for it, in stored ones."""
EXACT = 0.03
"""Pixels, the same of the best registration: what is not flat does not look the same from two sides."""
DOUBTED = 3.0
"""Standard deviations, beyond which a match is believed less and less (Cauchy)."""
FEW_ANGLES = 64
"""Up to so many angles, their densities are added up without a histogram."""


class Homography(NamedTuple):
    """A robustly estimated homography: ``H`` is ``None`` where the matches determine none."""

    H: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]


class Fundamental(NamedTuple):
    """A robustly estimated fundamental matrix, ``x1' F x0 = 0``: ``F`` is ``None`` where the matches determine none."""

    F: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]


class Pose(NamedTuple):
    """A robustly estimated relative pose, ``X1 = R X0 + t``; ``R`` and ``t`` are ``None`` where there is none."""

    R: NDArray[np.float64] | None
    t: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]


# Frames ---------------------------------------------------------------------------------------------------------------


def to_normalised(xy: Tensor, size: Size) -> Tensor:
    """Pixels to the frame of ``grid_sample(align_corners=False)``: the image spans [-1, 1], its pixels' edges included.

    Args:
        xy: (..., 2) pixels, the centre of the top-left pixel at (0, 0).
        size: (width, height).
    """
    return torch.stack([(2 * xy[..., k] + 1) / size[k] - 1 for k in (0, 1)], dim=-1)  # no copy to a GPU, no wait for it


def to_pixels(xy: Tensor, size: Size) -> Tensor:
    """The inverse of :func:`to_normalised`."""
    return torch.stack([((xy[..., k] + 1) * size[k] - 1) / 2 for k in (0, 1)], dim=-1)


def transform_points(transform: Tensor, xy: Tensor) -> Tensor:
    """Apply a 3 x 3 projective map to (..., 2) points, in float64, returned in the dtype of ``xy``."""
    points = F.pad(xy.double(), (0, 1), value=1.0) @ transform.to(xy.device, torch.float64).mT  # (..., 3)
    return (points[..., :2] / points[..., 2:]).to(xy.dtype)


def scaling(size: Size, new_size: Size) -> Tensor:
    """The (3, 3) map from pixels of an image of ``size`` to pixels of the same image resized to ``new_size``.

    Both are (width, height). Edges go to edges, so that (x + 0.5) is scaled, not x.
    """
    sx, sy = new_size[0] / size[0], new_size[1] / size[1]
    return torch.tensor([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1]], dtype=torch.float64)


def resized_points(xy: Tensor, ratio: Tensor | float) -> Tensor:
    """(..., 2) pixels of an image as those of it made ``ratio`` times as large, as :func:`scaling`, in their dtype."""
    return (xy + 0.5) * ratio - 0.5


def nearest_points(points: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) distances from (N, 2) points to the nearest of (M, 2) others, and the (N,) indices of those.

    However many there are, memory stays small. ``M`` must not be 0.
    """
    at_once = max(1, DISTANCES_AT_ONCE // len(others))
    found = [
        torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1)
        for part in points.split(at_once)
    ]
    return torch.cat([distance for distance, _ in found]), torch.cat([index for _, index in found])


# Rotations ------------------------------------------------------------------------------------------------------------


def quarter_turns(angle: float) -> int | None:
    """``k`` in 0..3 if ``angle`` (radians) is ``k`` quarter turns to within 1e-9, else ``None``."""
    k = round(angle / (math.pi / 2))
    return k % 4 if abs(angle - k * math.pi / 2) < 1e-9 else None


def rotation(angle: float) -> Tensor:
    """The (2, 2) float64 map of pixel offsets when an image rotates counter-clockwise by ``angle`` radians."""
    k = quarter_turns(angle)
    c, s = (math.cos(angle), math.sin(angle)) if k is None else ((1, 0, -1, 0)[k], (0, 1, 0, -1)[k])
    return torch.tensor([[c, s], [-s, c]], dtype=torch.float64)


def rotation_of(linear: Tensor) -> float | None:
    """The angle in radians of the rotation nearest to a (2, 2) map of pixel offsets; ``None`` if it mirrors."""
    if float(torch.linalg.det(linear.double())) <= 0:
        return None
    return float(rotation_angles(_float64(linear)))


def rotation_angles(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...,) angles in radians of the rotations nearest to (..., 2, 2) maps of pixel offsets that do not mirror."""
    return np.arctan2(linear[..., 0, 1] - linear[..., 1, 0], linear[..., 0, 0] + linear[..., 1, 1])


def jacobians(H: NDArray[Any], points: NDArray[Any]) -> NDArray[np.float64]:
    """(K, 2, 2) maps of small pixel offsets that a (3, 3) homography makes around (K, 2) points."""
    H, xy = np.asarray(H, np.float64), np.asarray(points, np.float64)
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ H.T  # (K, 3)
    with np.errstate(divide="ignore", invalid="ignore"):  # points on the horizon go nowhere
        places = mapped[:, :2] / mapped[:, 2:]
        return np.asarray((H[:2, :2] - places[:, :, None] * H[2, :2]) / mapped[:, 2, None, None])


def scale_at(H: NDArray[Any], point: NDArray[Any] | Sequence[float]) -> float:
    """How many times as large a (3, 3) homography makes what is around a point."""
    return math.sqrt(abs(float(np.linalg.det(jacobians(H, np.asarray(point)[None])[0]))))


def orientation_change(orientation0: Tensor, orientation1: Tensor) -> tuple[float, float] | None:
    """What the orientations of two images, (2, 2) maps from stored to shown offsets, make of rotations between them.

    Returns:
        ``(base, sense)``, with which a rotation by ``angle`` radians of what is shown is one by ``base + sense angle``
        of what is stored; ``None`` if no rotation relates the stored images, for one of the two is mirrored.
    """
    base = rotation_of(torch.linalg.inv(orientation1) @ orientation0)
    return None if base is None else (base, math.copysign(1.0, float(torch.linalg.det(orientation0))))


def rotation_about_centre(size: Size, angle: float, *, expand: bool = True) -> tuple[Tensor, Size]:
    """The map of pixels when an image of ``size`` rotates about its centre.

    Args:
        expand: onto a canvas that holds all of it; else onto one of its own size, and what leaves that is lost.

    Returns:
        The (3, 3) map from the pixels of the image to those of the rotated one, and the (width, height) of the canvas.
    """
    linear = rotation(angle)
    extent = torch.tensor(size, dtype=torch.float64)
    new_extent = (linear.abs() @ extent - 1e-6).ceil() if expand else extent
    transform = torch.eye(3, dtype=torch.float64)
    transform[:2, :2] = linear
    transform[:2, 2] = (new_extent - 1) / 2 - linear @ ((extent - 1) / 2)
    width, height = new_extent.tolist()
    return transform, (int(width), int(height))


def rotate_image(image: Tensor, angle: float, fill: float = 0.0, *, expand: bool = True) -> tuple[Tensor, Tensor]:
    """Rotate a (C, H, W) image counter-clockwise by ``angle`` radians, as :func:`rotation_about_centre` says.

    Quarter turns move pixels exactly (:func:`torch.rot90`) if the canvas holds the whole image; others sample
    bilinearly, and what lies outside the image is ``fill``.

    Returns:
        The rotated (C, H', W') image, and the (3, 3) map from pixels of the image to pixels of the rotated one.
    """
    height, width = image.shape[-2:]
    transform, new_size = rotation_about_centre((width, height), angle, expand=expand)
    k = quarter_turns(angle)
    if k is not None and new_size == ((height, width) if k % 2 else (width, height)):
        return torch.rot90(image, k, dims=(-2, -1)), transform
    return warp_image(image, transform, new_size, fill), transform


def rotate_squashed(image: Tensor, angle: float, size: Size, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Rotate what was squashed: the image of ``size`` (width, height) that a (C, S, S) one was made of.

    That image rotates onto a canvas that holds all of it, and the canvas is squashed to S x S. Quarter turns move
    pixels exactly; others sample what was squashed bilinearly, once.

    Returns:
        As :func:`rotate_image`; both pixels are those of squashed images.
    """
    if quarter_turns(angle) is not None:
        return rotate_image(image, angle)
    side = (image.shape[-1], image.shape[-2])
    rotate, canvas = rotation_about_centre(size, angle)
    transform = scaling(canvas, side) @ rotate @ scaling(side, size)
    return warp_image(image, transform, side, fill), transform


def warp_image(image: Tensor, transform: Tensor, new_size: Size, fill: float = 0.0) -> Tensor:
    """Resample a (C, H, W) image through a 3 x 3 map from its pixels to those of a ``new_size`` (width, height) canvas.

    Sampling is bilinear; a canvas pixel whose source lies outside the image, or beyond the horizon of a projective map,
    is ``fill``, and the outermost half pixel of the image blends into it. The map must be oriented: its last coordinate
    positive where the image is.
    """
    back = torch.linalg.inv(transform.double().cpu())
    source = _sources(back, (image.shape[-1], image.shape[-2]), new_size, image)
    warped = F.grid_sample((image - fill)[None], source[None], mode="bilinear", align_corners=False)[0]
    return warped + fill


def window_at(
    image: Tensor, centre: tuple[int, int], radius: int, angle: float = 0.0, fill: float = 0.5
) -> tuple[Tensor, Tensor]:
    """What a (C, H, W) image shows around one of its pixels once it has rotated about it by ``angle`` radians.

    The rotation is counter-clockwise. Unlike :func:`rotate_image`, which leaves corners empty, this shows what lies
    there as long as it is in the image; the rest is ``fill``. Quarter turns move pixels exactly, other angles sample
    bilinearly.

    Returns:
        The (C, S, S) window with sides of ``2 radius + 1`` and the pixel in its middle, and the (3, 3) map from pixels
        of the image to those of the window.
    """
    x, y = centre
    transform = torch.eye(3, dtype=torch.float64)
    transform[:2, :2] = rotation(angle)
    transform[:2, 2] = radius - transform[:2, :2] @ torch.tensor([x, y], dtype=torch.float64)
    k, side = quarter_turns(angle), 2 * radius + 1
    if k is None:
        return warp_image(image, transform, (side, side), fill), transform
    height, width = image.shape[-2:]
    beyond = (radius - x, radius + x + 1 - width, radius - y, radius + y + 1 - height)  # negative: cut off
    return torch.rot90(F.pad(image, beyond, value=fill), k, dims=(-2, -1)), transform


def _sources(back: Tensor, size: Size, new_size: Size, image: Tensor) -> Tensor:
    """(H', W', 2) where the pixels of a canvas come from in an image of ``size``, as ``grid_sample`` takes it.

    A few rows at a time, since in float64 all would take more memory than the image.
    """
    width, height = new_size
    device = "cpu" if image.device.type == "mps" else image.device  # Apple's GPUs have no float64
    corners = torch.tensor([[x, y, 1.0] for x in (0, width - 1) for y in (0, height - 1)], dtype=torch.float64)
    horizon = 1e-9 * float((corners @ back[2]).abs().amax())  # beyond it there is no image
    nowhere = -10.0 * max(size)
    xs = torch.arange(width, dtype=torch.float64, device=device)
    sources = torch.empty(height, width, 2, dtype=image.dtype, device=image.device)
    step = max(1, MOST_AT_ONCE // width)
    for start in range(0, height, step):
        ys = torch.arange(start, min(start + step, height), dtype=torch.float64, device=device)[:, None]
        x, y, w = (a * xs + b * ys + c for a, b, c in back.tolist())  # (r, W') each
        pixels = torch.stack((x, y), dim=-1) / w.clamp(min=1e-300)[..., None]
        pixels = torch.where((w > horizon)[..., None], pixels, nowhere)
        sources[start : start + step] = to_normalised(pixels, size).to(image)
    return sources


def circular_mode(angles: Tensor | ArrayLike, weights: Tensor | ArrayLike) -> float:
    """The direction around which most weight lies: the peak of a von Mises density, refined by a mean around it.

    A mean over all matches would be pulled by the wrong ones, whose angles are anything. The result is in radians, in
    no particular period.

    Args:
        angles: (K,) radians, K > 0; ``weights`` (K,) not negative. Tensors of any device, or arrays.
    """
    own, heavy = _float64(angles), _float64(weights)
    degrees = np.rint(np.degrees(own)).astype(np.int64) % 360
    if len(degrees) <= FEW_ANGLES:
        density = heavy @ _densities()[degrees]
    else:  # a histogram of one degree makes the cost independent of K
        density = np.bincount(degrees, heavy, 360) @ _densities()
    peak = math.radians(int(density.argmax()))
    cos, sin = np.cos(own - peak), np.sin(own - peak)
    near = np.where(cos > math.cos(3 * MODE_WIDTH), heavy, 0.0)
    return peak + math.atan2(near @ sin, near @ cos)


@cache
def _densities() -> NDArray[np.float64]:
    """(360, 360) at whole degrees, of a weight at each whole degree."""
    degrees = np.radians(np.arange(360.0))
    return np.asarray(np.exp((np.cos(degrees[:, None] - degrees) - 1) / MODE_WIDTH**2))


def _float64(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def rotation_degrees(R: NDArray[Any]) -> float:
    """The angle of a (3, 3) rotation."""
    return math.degrees(math.acos(min(1.0, max(-1.0, (float(np.trace(R)) - 1) / 2))))


def wrap_degrees(degrees: float) -> float:
    """``degrees`` brought into (-180, 180]; what rounding left just above -180 is 180."""
    wrapped = 180.0 - (180.0 - degrees) % 360.0
    return 180.0 if wrapped < -180.0 + 1e-9 else wrapped


def farthest_points(points: NDArray[Any], count: int, first: int, worth: NDArray[Any] | None = None) -> list[int]:
    """Indices of so many of (K, 2) points, evenly spread: from ``first`` on each the farthest from those before; with
    (K,) ``worth`` nearer ones too where that is more, and none where it is 0."""
    weight = np.ones(len(points)) if worth is None else np.sqrt(worth)
    kept, left = [first], weight > 0
    distance = np.linalg.norm(points - points[first], axis=1)
    while len(kept) < min(count, int(left.sum())):
        gain = np.where(left, distance * weight, -1.0)
        gain[kept] = -1.0
        kept.append(int(gain.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[kept[-1]], axis=1))
    return kept


# Robust estimation ----------------------------------------------------------------------------------------------------


def estimate_homography(
    points0: NDArray[Any],
    points1: NDArray[Any],
    threshold: float = 3.0,
    *,
    confidence: float = 0.9999,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> Homography:
    """Homography from (K, 2) ``points0`` to ``points1`` by OpenCV's USAC with MAGSAC scoring.

    Fewer than four points, or points that determine none, give ``H = None`` and no inliers.
    """
    import cv2

    return _by_usac(
        cv2.findHomography,
        4,
        points0,
        points1,
        threshold,
        confidence=confidence,
        max_iterations=max_iterations,
        seed=seed,
    )


def weighted_homography(
    H: NDArray[Any], points0: NDArray[Any], points1: NDArray[Any], covariances: NDArray[Any], *, steps: int = 20
) -> NDArray[np.float64]:
    """A (3, 3) homography moved to where it is likeliest, of (K, 2) ``points1`` that scatter by (K, 2, 2) covariances.

    Gauss-Newton on the distances in image 1, each in units of its own covariance: a match that was registered counts as
    hundreds that were detected, and one on an edge counts across it. Points whose covariance is infinite scatter by
    :data:`DETECTED`. What lies farther off than its covariance allows counts less (:data:`DOUBTED`). Points that
    determine no homography give the one that there was.

    Raises:
        ValueError: for covariances of another shape, or that are none.
    """
    p0, p1 = _check_arguments(points0, points1, 1.0, 0)
    whitening, given = _whitening(covariances, len(p0)), np.asarray(H, np.float64)
    if len(p0) < 4:
        return given
    to0, to1 = _conditioning(p0), _conditioning(p1)  # of numbers of one size, all are equally exact
    x, y = ((np.column_stack([p, np.ones(len(p))]) @ to.T) for p, to in ((p0, to0), (p1, to1)))  # (K, 3)
    whitening = whitening / to1[0, 0]
    best, least = to1 @ given @ np.linalg.inv(to0), np.inf
    moved = best
    for _ in range(steps):
        moved = moved / np.linalg.norm(moved)
        squares, rows, wanted = _whitened_distances(moved, x, y[:, :2], whitening)
        cost = float(np.log1p(squares / DOUBTED**2).sum())
        if not cost < least:
            break
        best, least = moved, cost
        weight = np.repeat(1 / np.sqrt(1 + squares / DOUBTED**2), 2)
        change, _, rank, _ = np.linalg.lstsq(weight[:, None] * rows, weight * wanted, rcond=1e-10)
        if rank < 8:  # of nine numbers the scale is free
            return given
        moved = moved + change.reshape(3, 3)
    found = np.linalg.inv(to1) @ best @ to0
    return np.asarray(found / found[2, 2]) if abs(found[2, 2]) > 1e-12 * np.abs(found).max() else given


def _whitened_distances(
    H: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64], whitening: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(K,) squared distances from (K, 3) points, mapped, to (K, 2) points, (2 K, 9) how places change with the numbers
    of the homography, and (2 K,) the distances."""
    mapped = x @ H.T
    with np.errstate(divide="ignore", invalid="ignore"):  # points on the horizon go nowhere
        places = mapped[:, :2] / mapped[:, 2:]
        distances = (whitening @ (y - places)[..., None])[..., 0]  # (K, 2)
        rows = whitening @ _homography_slopes(x, mapped, places)  # (K, 2, 9)
    return (distances**2).sum(axis=1), rows.reshape(-1, 9), distances.reshape(-1)


def _homography_slopes(
    x: NDArray[np.float64], mapped: NDArray[np.float64], places: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, 2, 9) how places change with the nine numbers of a homography, of (K, 3) points and where they are mapped."""
    slopes = np.zeros((len(x), 2, 9))
    over = x / mapped[:, 2:]
    slopes[:, 0, :3] = slopes[:, 1, 3:6] = over
    slopes[:, :, 6:] = -places[:, :, None] * over[:, None]
    return slopes


def _conditioning(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, 3) similarity that moves points around (0, 0), at a distance of about 1."""
    middle = points.mean(axis=0)
    scale = 1 / max(float(np.sqrt(((points - middle) ** 2).sum(axis=1).mean())), 1e-12)
    return np.array([[scale, 0, -scale * middle[0]], [0, scale, -scale * middle[1]], [0, 0, 1]])


def _whitening(covariances: NDArray[Any], count: int) -> NDArray[np.float64]:
    """(K, 2, 2) that make distances of which they are the covariances scatter by 1 in all directions."""
    told = np.asarray(covariances, np.float64)
    if told.shape != (count, 2, 2):
        raise ValueError(f"covariances must have shape ({count}, 2, 2) to go with {count} points, got {told.shape}")
    known = ~np.isinf(told).any(axis=(1, 2), keepdims=True)  # (K, 1, 1)
    told = np.where(known, told, DETECTED**2 * np.eye(2))
    size, mean = np.abs(told).max(axis=(1, 2), keepdims=True), (told + told.swapaxes(1, 2)) / 2
    proper = np.isfinite(told).all() and bool((np.abs(told - mean) <= 1e-3 * size).all())
    if not proper or bool((np.linalg.eigvalsh(mean) < -1e-6 * size[..., 0]).any()):
        raise ValueError("covariances must be symmetric and positive, or infinite where nothing is known")
    told = mean
    return np.asarray(np.linalg.inv(np.linalg.cholesky(told + known * EXACT**2 * np.eye(2))))


def estimate_affine(
    points0: NDArray[Any],
    points1: NDArray[Any],
    threshold: float = 3.0,
    *,
    confidence: float = 0.9999,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> Homography:
    """Affine map from (K, 2) ``points0`` to ``points1``, as :func:`estimate_homography`; three points give one."""
    import cv2

    return _by_usac(
        cv2.estimateAffine2D,
        3,
        points0,
        points1,
        threshold,
        confidence=confidence,
        max_iterations=max_iterations,
        seed=seed,
    )


def _by_usac(
    estimator: Any,
    least: int,
    points0: NDArray[Any],
    points1: NDArray[Any],
    threshold: float,
    *,
    confidence: float,
    max_iterations: int,
    seed: int,
) -> Homography:
    """One of OpenCV's estimators, which needs at least so many points."""
    import cv2

    p0, p1 = _check_arguments(points0, points1, threshold, seed)
    nothing = Homography(None, np.zeros(len(p0), dtype=bool))
    if len(p0) < least:
        return nothing
    params = cv2.UsacParams()
    params.threshold = threshold
    params.confidence = confidence
    params.maxIterations = max_iterations
    params.randomGeneratorState = seed
    params.score = cv2.SCORE_METHOD_MAGSAC
    params.sampler = cv2.SAMPLING_UNIFORM
    params.loMethod = cv2.LOCAL_OPTIM_SIGMA
    params.loIterations = 10
    params.loSampleSize = 50
    params.isParallel = False
    try:
        found, mask = estimator(p0, p1, params)
    except cv2.error:  # degenerate points; OpenCV signals them so
        return nothing
    if found is None or not np.isfinite(found).all():
        return nothing
    H = np.asarray(found, np.float64)
    if len(H) == 2:
        H = np.vstack([H, [0, 0, 1]])
        if abs(np.linalg.det(H)) < 1e-12:  # all goes onto a point or line
            return nothing
    return Homography(H, np.asarray(mask).ravel().astype(bool))


def estimate_similarity(
    points0: NDArray[Any], points1: NDArray[Any], threshold: float = 3.0, *, samples: int = 2000, seed: int = 0
) -> Homography:
    """Similarity (rotation, scale, translation) from (K, 2) ``points0`` to ``points1``; two different points give one.

    Of ``samples`` pairs of points, the similarity with the least sum of squares up to the threshold (MSAC) is fitted to
    the points near it, again and again, with weights that fall to 0 at the threshold.
    """
    p0, p1 = _check_arguments(points0, points1, threshold, seed)
    nothing = Homography(None, np.zeros(len(p0), dtype=bool))
    if len(p0) < 2:
        return nothing
    z0, z1 = (p[:, 0] + 1j * p[:, 1] for p in (p0, p1))  # z1 = turn z0 + shift
    i, j = np.random.default_rng(seed).integers(0, len(p0), (2, samples))
    usable = np.abs(z0[i] - z0[j]) * np.abs(z1[i] - z1[j]) > 1e-12
    if not usable.any():
        return nothing
    i, j = i[usable], j[usable]
    turns = (z1[i] - z1[j]) / (z0[i] - z0[j])
    shifts = z1[i] - turns * z0[i]
    costs = [
        float(np.minimum(np.abs(turn * z0 + shift - z1) ** 2, threshold**2).sum())
        for turn, shift in zip(turns, shifts, strict=True)
    ]
    turn, shift = (complex(values[int(np.argmin(costs))]) for values in (turns, shifts))
    for _ in range(20):
        weights = np.maximum(1 - (np.abs(turn * z0 + shift - z1) / threshold) ** 2, 0) ** 2
        fitted = _fit_turn(z0, z1, weights)
        if fitted is None:
            break
        turn, shift = fitted
    inliers = np.abs(turn * z0 + shift - z1) <= threshold
    if turn == 0 or not inliers.any():
        return nothing
    return Homography(_similarity(turn, shift), inliers)


def fit_similarity(points0: NDArray[Any], points1: NDArray[Any]) -> NDArray[np.float64]:
    """(3, 3) similarity that takes (K, 2) points to others, by least squares; of one point, a shift."""
    z0, z1 = (points[:, 0] + 1j * points[:, 1] for points in (points0, points1))
    fitted = _fit_turn(z0, z1, np.ones(len(z0)), least=0.0)
    return _similarity(*(fitted or (1 + 0j, complex(z1.mean() - z0.mean()))))


def _fit_turn(
    z0: NDArray[Any], z1: NDArray[Any], weights: NDArray[Any], least: float = 1e-12
) -> tuple[complex, complex] | None:
    """The factor and the shift that take complex numbers to others, by weighted least squares; ``None`` if they are
    all at one place, that is if the sum of their squared distances is no more than ``least``."""
    middle0, middle1 = (np.average(z, weights=weights) for z in (z0, z1))
    spread = (weights * np.abs(z0 - middle0) ** 2).sum()
    if spread <= least:
        return None
    turn = complex((weights * (z1 - middle1) * (z0 - middle0).conj()).sum() / spread)
    return turn, complex(middle1 - turn * middle0)


def _similarity(turn: complex, shift: complex) -> NDArray[np.float64]:
    """(3, 3) of the factor and the shift of complex numbers x + iy."""
    a, b = turn.real, turn.imag
    return np.array([[a, -b, shift.real], [b, a, shift.imag], [0, 0, 1]])


def estimate_fundamental(
    points0: NDArray[Any], points1: NDArray[Any], threshold: float = 1.0, *, max_iterations: int = 10_000, seed: int = 0
) -> Fundamental:
    """Fundamental matrix, ``x1' F x0 = 0``, by poselib; fewer than eight different points give none."""
    import poselib

    p0, p1 = _check_arguments(points0, points1, threshold, seed)
    nothing = Fundamental(None, np.zeros(len(p0), dtype=bool))
    if _num_distinct(p0, p1) < 8:
        return nothing
    options = {"max_epipolar_error": threshold, "max_iterations": max_iterations, "seed": seed}
    F, info = poselib.estimate_fundamental(p0, p1, options, {})
    inliers = np.asarray(info["inliers"], dtype=bool)
    if not inliers.any() or not np.isfinite(F).all():
        return nothing
    return Fundamental(np.asarray(F, np.float64), inliers)


def estimate_pose(
    points0: NDArray[Any],
    points1: NDArray[Any],
    K0: NDArray[Any],
    K1: NDArray[Any],
    *,
    threshold: float = 1.0,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> Pose:
    """Relative pose ``X1 = R X0 + t`` of two calibrated cameras by poselib.

    Fewer than five different points give none. Points of a plane, or all on a line, leave more than one pose possible,
    of which one is returned.
    """
    import poselib

    p0, p1 = _check_arguments(points0, points1, threshold, seed)
    cameras = _pinhole("K0", K0), _pinhole("K1", K1)
    nothing = Pose(None, None, np.zeros(len(p0), dtype=bool))
    if _num_distinct(p0, p1) < 5:
        return nothing
    options = {"max_epipolar_error": threshold, "max_iterations": max_iterations, "seed": seed}
    pose, info = poselib.estimate_relative_pose(p0, p1, *cameras, options, {})
    inliers = np.asarray(info["inliers"], dtype=bool)
    translation = np.asarray(pose.t, np.float64)
    norm = float(np.linalg.norm(translation))
    if not inliers.any() or not np.isfinite(translation).all() or norm == 0.0:
        return nothing
    return Pose(np.asarray(pose.R, np.float64), translation / norm, inliers)


def scaled_intrinsics(K: NDArray[Any], size: Size, new_size: Size) -> NDArray[np.float64]:
    """(3, 3) intrinsics of an image of ``size`` after it is resized to ``new_size``, both (width, height)."""
    scaled: NDArray[np.float64] = scaling(size, new_size).numpy() @ K
    return scaled


def relative_pose(
    R0: NDArray[Any], t0: NDArray[Any], R1: NDArray[Any], t1: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R and t of ``X1 = R X0 + t`` for two cameras in one world, each of pose ``X = R X_world + t``."""
    R = R1 @ R0.T
    return R, t1 - R @ t0


def fundamental_matrix(K0: NDArray[Any], K1: NDArray[Any], R: NDArray[Any], t: NDArray[Any]) -> NDArray[np.float64]:
    """(3, 3) F of ``x1^T F x0 = 0`` for cameras of intrinsics K0 and K1 and pose ``X1 = R X0 + t``."""
    x, y, z = t
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ R
    fundamental: NDArray[np.float64] = np.linalg.inv(K1).T @ essential @ np.linalg.inv(K0)
    return fundamental


def epipolar_errors(points0: NDArray[Any], points1: NDArray[Any], fundamental: NDArray[Any]) -> NDArray[np.float64]:
    """(K,) pixels by which matches miss the epipolar lines of each other, the larger of both images.

    Infinite where a point has no line: at an epipole, or between images that were taken from one place.

    Args:
        points0: (K, 2) in image 0, and ``points1`` in image 1.
        fundamental: (3, 3) F of ``x1^T F x0 = 0``.
    """
    first, second = (
        np.column_stack([points, np.ones(len(points))]).astype(np.float64) for points in (points0, points1)
    )
    lines1, lines0 = first @ fundamental.T, second @ fundamental  # (K, 3)
    product = np.abs((lines1 * second).sum(axis=1))
    slope = np.minimum(np.linalg.norm(lines0[:, :2], axis=1), np.linalg.norm(lines1[:, :2], axis=1))
    errors: NDArray[np.float64] = np.divide(product, slope, out=np.full(len(product), np.inf), where=slope > 0)
    return errors


def check_intrinsics(name: str, K: ArrayLike) -> NDArray[np.float64]:
    """The (3, 3) matrix of a pinhole camera, as :func:`estimate_pose` takes it.

    Raises:
        ValueError: by its ``name``, for one that is none, or has skew.
    """
    K = np.asarray(K, np.float64)
    proper = K.shape == (3, 3) and np.isfinite(K).all() and K[0, 0] > 0 and K[1, 1] > 0
    if not proper or K[1, 0] != 0 or not np.array_equal(K[2], (0, 0, 1)):
        raise ValueError(
            f"{name} must be a finite 3 x 3 intrinsic matrix with positive focal lengths, got {K.tolist()}"
        )
    if abs(K[0, 1]) > 1e-9 * K[0, 0]:
        raise ValueError(f"{name} has skew {K[0, 1]}; the pose estimator takes pinhole cameras without skew")
    return K


def _pinhole(name: str, K: ArrayLike) -> dict[str, Any]:
    """poselib's description of a pinhole camera with intrinsics ``K``; the picture's size does not enter."""
    K = check_intrinsics(name, K)
    width, height = int(2 * K[0, 2]) + 1, int(2 * K[1, 2]) + 1
    return {"model": "PINHOLE", "width": width, "height": height, "params": [K[0, 0], K[1, 1], K[0, 2], K[1, 2]]}


def _check_arguments(
    points0: NDArray[Any], points1: NDArray[Any], threshold: float, seed: int
) -> tuple[NDArray[np.float64], ...]:
    """Both sets as (K, 2) float64 arrays; the estimators read whatever lies in memory otherwise."""
    if not threshold > 0:
        raise ValueError(f"threshold must be positive, got {threshold}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be 0 to 2^31 - 1, got {seed}")
    p0, p1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
    if p0.ndim != 2 or p0.shape[1] != 2 or p0.shape != p1.shape:
        raise ValueError(f"points must be two (K, 2) arrays of one length, got shapes {p0.shape} and {p1.shape}")
    if not (np.isfinite(p0).all() and np.isfinite(p1).all()):
        raise ValueError("points hold NaN or infinite coordinates")
    return np.ascontiguousarray(p0), np.ascontiguousarray(p1)


def _num_distinct(*sets: NDArray[np.float64]) -> int:
    """The least number of different points in any of the sets."""
    return min(len(np.unique(points, axis=0)) for points in sets)
