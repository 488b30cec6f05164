"""From a map of logits to keypoints, and from a map of descriptions to the descriptions of keypoints.

Both are written for one convention, that of :mod:`steerers.geometry`: the value ``map[y, x]`` is that of the pixel
whose centre is (x, y). The defaults are DeDoDe's own; suppression and the sub-pixel mean are those of DaD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.models.base import check_count, check_masks

_DENSITY_TAPS = 51  # of the Gaussian that measures how crowded a pixel's surroundings are
SUBPIXEL_TEMPERATURE = 0.5


@dataclass(frozen=True)
class KeypointSampling:
    """How keypoints are chosen from a map of logits; the defaults are those of the original DeDoDe.

    Attributes:
        coverage: divide each probability by the square root of the local density, so that keypoints spread over the
            image and do not crowd where the detector is surest.
        nms_size: side of the window in which only the best pixel remains; odd, 1 is off.
        subpixel: move each keypoint to the mean of its window of ``nms_size``, weighted by the softmax of the logits;
            ``"peak"`` to the top of the paraboloid that fits the logits of the pixel and of the eight around it.
        border: width in pixels of the frame in which no keypoint may lie.
    """

    coverage: bool = True
    nms_size: int = 1
    subpixel: bool | Literal["peak"] = False
    border: int = 0

    def __post_init__(self) -> None:
        if self.nms_size < 1 or self.nms_size % 2 == 0:
            raise ValueError(f"nms_size must be odd and positive (1 is off), got {self.nms_size}")
        if self.border < 0:
            raise ValueError(f"border must not be negative, got {self.border}")
        if self.subpixel not in (False, True, "peak"):
            raise ValueError(f"subpixel must be False, True or 'peak', got {self.subpixel!r}")
        if self.subpixel and self.nms_size == 1:
            raise ValueError("subpixel refines within the window of nms_size and needs nms_size of at least 3, got 1")


DEFAULT_SAMPLING = KeypointSampling()


class Chosen(NamedTuple):
    """The best keypoints of a batch of maps, best first; where a map has fewer than N, some only fill up."""

    xy: Tensor  # (B, N, 2) pixels
    scores: Tensor  # (B, N)
    real: Tensor  # (B, N) bool, False for what only fills up


def choose_keypoints(
    logits: Tensor, num_keypoints: int, masks: Tensor | None = None, sampling: KeypointSampling = DEFAULT_SAMPLING
) -> Chosen:
    """The best keypoints of maps of logits: for inference, for training, and in graphs for other runtimes.

    The choice has no gradient. Sub-pixel positions do, so that training can place keypoints. Nothing waits for a GPU,
    and nothing is checked. Scores, density and suppression are those of the whole map: a mask or border takes keypoints
    away before the best are chosen and changes neither the scores nor the order of those that remain.

    Args:
        logits: (B, H, W) unnormalised log-probabilities of a keypoint at each pixel; ``-inf`` is allowed.
        num_keypoints: N.
        masks: (B, H, W) bool, True where keypoints are allowed.
        sampling: the options.

    Returns:
        Pixels in float32 (float64 stays); scores are the probability, re-weighted if ``sampling.coverage``.
    """
    with torch.autocast(logits.device.type, enabled=False):  # in half precision no pixel beyond 256 has a place
        logits = full_precision(logits)
        with torch.no_grad():
            ranking = keypoint_scores(logits) if sampling.coverage else _ranked(logits)
            allowed = _allowed(ranking, masks, sampling)
            ranking = ranking if allowed is None else ranking.masked_fill(~allowed, -torch.inf)
            values, best = _top(ranking.flatten(1), num_keypoints)
            pixels = _pixels(best, logits.shape[2])  # (B, N, 2)
            scores = values if sampling.coverage else _probabilities(logits, best)
        return Chosen(_placed(logits, pixels, sampling), scores, values > -torch.inf)


def _placed(logits: Tensor, pixels: Tensor, sampling: KeypointSampling) -> Tensor:
    """(B, N, 2) positions of keypoints whose best pixels are known."""
    if sampling.subpixel == "peak":
        return peaks(logits, pixels)
    return refine(logits, pixels, sampling.nms_size) if sampling.subpixel else pixels.to(logits.dtype)


def sample_keypoints(
    logits: Tensor, num_keypoints: int, masks: Tensor | None = None, sampling: KeypointSampling = DEFAULT_SAMPLING
) -> list[Keypoints]:
    """:func:`choose_keypoints`, checked, as a record for each map; without gradients.

    Raises:
        ValueError: a map holds NaN or inf, or nothing above ``-inf``.
    """
    _check(logits, num_keypoints, masks)
    count = min(num_keypoints, logits[0].numel())
    xy, scores, real = choose_keypoints(logits.detach(), count, masks, sampling)
    counts = real.sum(dim=1).tolist()
    return [Keypoints(xy[i, :n].float(), scores[i, :n].float()) for i, n in enumerate(counts)]


def keypoint_scores(logits: Tensor) -> Tensor:
    """(..., H, W) scores by which keypoints are chosen for coverage: the softmax of logits over all pixels, weighed.

    The constants are the original's. They are not free: the one added to the probabilities decides how much an
    empty neighbourhood is worth.
    """
    # On a GPU the softmax of one long row would be the work of one multiprocessor.
    probabilities = (logits - logits.logsumexp(dim=(-2, -1), keepdim=True)).exp()
    taps = torch.linspace(-2, 2, _DENSITY_TAPS, device=logits.device, dtype=logits.dtype).square().neg().exp()
    density = ((probabilities + 1e-6) * 1e4).reshape(-1, 1, *logits.shape[-2:])  # (B, 1, H, W)
    density = F.conv2d(density, taps.view(1, 1, 1, -1), padding=(0, _DENSITY_TAPS // 2))
    density = F.conv2d(density, taps.view(1, 1, -1, 1), padding=(_DENSITY_TAPS // 2, 0))
    return probabilities * (density.view_as(probabilities) + 1e-8).rsqrt()


def sample_descriptions(maps: Tensor, xy: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Descriptions at keypoints, bilinearly from maps of descriptions; gradients go through to the maps.

    Args:
        maps: (B, D, H, W) descriptions of every pixel.
        xy: (B, N, 2) pixels. Beyond the centres of the outermost pixels the nearest description is taken.
        size: (width, height) of the image that ``xy`` are pixels of, where the maps are of another size than it.

    Returns:
        (B, N, D) descriptions.
    """
    if maps.ndim != 4 or xy.ndim != 3 or xy.shape[-1] != 2 or maps.shape[0] != xy.shape[0]:
        raise ValueError(f"maps (B, D, H, W) and xy (B, N, 2) do not fit: {tuple(maps.shape)} and {tuple(xy.shape)}")
    size = (maps.shape[-1], maps.shape[-2]) if size is None else size
    grid = to_normalised(xy.to(maps.dtype), size)[:, None]  # (B, 1, N, 2)
    sampled = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled[:, :, 0].mT  # (B, N, D)


def stack_points(keypoints: Sequence[Keypoints], device: torch.device, multiple: int = 1) -> Tensor:
    """(B, N, 2) pixels of the keypoints of B images, filled up with zeros to a multiple of some number."""
    count = max(1, -(-max(map(len, keypoints), default=0) // multiple)) * multiple
    return torch.stack([F.pad(found.xy.to(device), (0, 0, 0, count - len(found))) for found in keypoints])


def split_points(values: Tensor, keypoints: Sequence[Keypoints]) -> list[Tensor]:
    """(B, N, D) values at :func:`stack_points`, of each image those of its own keypoints."""
    return [value[: len(found)] for value, found in zip(values, keypoints, strict=True)]


def _check(logits: Tensor, num_keypoints: int, masks: Tensor | None) -> None:
    if logits.ndim != 3 or logits.numel() == 0:
        raise ValueError(f"logits must have shape (B, H, W), got {tuple(logits.shape)}")
    check_count(num_keypoints)
    if not bool(torch.isfinite(logits.amax(dim=(1, 2))).all()):  # a NaN anywhere is the maximum
        raise ValueError(
            "logits hold NaN or inf, or are -inf everywhere; if the network runs in half precision, use float32"
        )
    check_masks(masks, logits.shape)


def _top(ranking: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of (B, P) values and their indices; where P is less, -inf and the last index fill up."""
    values, index = F.pad(ranking, (0, count), value=-torch.inf).topk(count)
    return values, index.clamp(max=ranking.shape[1] - 1)


def _pixels(index: Tensor, width: int) -> Tensor:
    """(..., 2) whole (x, y) of flat indices into maps of that width."""
    rows = index.div(width, rounding_mode="floor")  # no remainder: graphs for other runtimes have none for sizes
    return torch.stack((index - rows * width, rows), dim=-1)


def _probabilities(logits: Tensor, index: Tensor) -> Tensor:
    """(B, N) of (B, H, W) logits, at (B, N) flat indices."""
    flat = logits.flatten(1)
    return (flat.gather(1, index) - flat.logsumexp(dim=1, keepdim=True)).exp()


def _ranked(logits: Tensor) -> Tensor:
    """Logits in place of probabilities, which are zero and so all alike where a detector is sure that nothing is."""
    return logits.clamp(min=torch.finfo(logits.dtype).min)  # what is not allowed is below


def _allowed(ranking: Tensor, masks: Tensor | None, sampling: KeypointSampling) -> Tensor | None:
    """(B, H, W) bool, True at the pixels that may be keypoints; ``None`` if all may."""
    allowed = None if masks is None else masks.to(ranking.device)
    if sampling.nms_size > 1:
        best = F.max_pool2d(ranking[:, None], sampling.nms_size, stride=1, padding=sampling.nms_size // 2)[:, 0]
        allowed = (ranking == best) if allowed is None else allowed & (ranking == best)
    if sampling.border > 0:
        inside = [_inside(n, sampling.border, ranking.device) for n in ranking.shape[1:]]
        frame = inside[0][:, None] & inside[1]  # (H, W)
        allowed = frame.expand_as(ranking) if allowed is None else allowed & frame
    return allowed


def _inside(length: int, border: int, device: torch.device) -> Tensor:
    """(length,) bool, False within ``border`` of either end."""
    position = torch.arange(length, device=device)
    return (position >= border) & (position < length - border)


def refine(logits: Tensor, pixels: Tensor, size: int) -> Tensor:
    """(B, N, 2) sub-pixel positions: the mean of each pixel's window, weighted by the softmax of its logits.

    Gradients go through to the logits, so that training can place keypoints.

    Args:
        logits: (B, H, W); pixels: (B, N, 2) whole (x, y); size: side of the window, odd.
    """
    radius = size // 2
    padded = F.pad(logits, (radius,) * 4, value=-torch.inf)  # what lies outside the image weighs nothing
    window, offsets = windows(padded, pixels, radius)
    weights = (window / SUBPIXEL_TEMPERATURE).softmax(dim=2)
    return pixels + weights @ offsets.to(weights.dtype)


def peaks(logits: Tensor, pixels: Tensor) -> Tensor:
    """(B, N, 2) sub-pixel positions: the top of the paraboloid that fits the 3 x 3 logits around each pixel best.

    It is exact where logits are a paraboloid there; the mean of a window is drawn to the middle of the window, and so
    to whole pixels. A pixel stays where it is no hilltop, and moves by one at most. Gradients go through.

    Args:
        logits: (B, H, W); pixels: (B, N, 2) whole (x, y).
    """
    padded = F.pad(logits[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    window = windows(padded, pixels, 1)[0].unflatten(2, (3, 3))  # (B, N, x, y)
    (left, middle, right), (above, level, below) = (window.sum(dim=d).unbind(dim=2) for d in (3, 2))  # (B, N) each
    dx, dy = (right - left) / 6, (below - above) / 6
    dxx, dyy = (right + left - 2 * middle) / 3, (below + above - 2 * level) / 3
    dxy = (window[..., 2, 2] + window[..., 0, 0] - window[..., 0, 2] - window[..., 2, 0]) / 4
    curvature = dxx * dyy - dxy * dxy
    is_top = (dxx < 0) & (curvature > LEAST_CURVATURE)
    curvature = torch.where(is_top, curvature, 1.0)
    moves = torch.stack([dxy * dy - dyy * dx, dxy * dx - dxx * dy], dim=2) / curvature[..., None]
    moves = torch.where(is_top[..., None], moves.clamp(-1, 1), 0.0)
    return pixels + torch.where(window.isnan().any(dim=3).any(dim=2)[..., None], torch.nan, moves)


LEAST_CURVATURE = 0.02
"""Of logits, in both directions multiplied: what is flatter has no top. Those of ``compact`` have 3.6 at the fifth
percentile; a network that has just begun has less, and nothing is learnt from where its hills would be."""


def windows(padded: Tensor, pixels: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """(B, N, S) values around pixels of a map that is padded by the radius, column by column, and their (S, 2)
    offsets."""
    width = padded.shape[-1]
    steps = torch.arange(-radius, radius + 1, device=padded.device)
    offsets = torch.cartesian_prod(steps, steps)  # (S, 2), (x, y)
    x, y = (pixels[:, :, None] + offsets + radius).unbind(dim=-1)  # (B, N, S) each
    return padded.flatten(1).gather(1, (y * width + x).flatten(1)).view(x.shape), offsets


def full_precision(x: Tensor) -> Tensor:
    """``x`` in float32 if it is in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
