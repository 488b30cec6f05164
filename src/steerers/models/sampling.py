"""From a map of logits to keypoints, and from a map of descriptions to the descriptions of keypoints.

Both are written for one convention, that of :mod:`steerers.geometry`: the value ``map[y, x]`` is that of the pixel
whose centre is (x, y). The defaults are DeDoDe's own; suppression and sub-pixel refinement are those of DaD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.accel.networks import layers
from steerers.features import Keypoints
from steerers.geometry import to_normalised
from steerers.models.checks import check_count, check_mask

if TYPE_CHECKING:
    from steerers.accel.networks.cell_kernels import Texture

_DENSITY_TAPS = 51  # of the Gaussian that measures how crowded a pixel's surroundings are
_FILLED = 256  # numbers of keypoints of a batch are multiples of this
_SUBPIXEL_TEMPERATURE = 0.5


@dataclass(frozen=True)
class KeypointSampling:
    """How keypoints are chosen from a map of logits; the defaults are those of the original DeDoDe.

    Attributes:
        coverage: divide each probability by the square root of the local density, so that keypoints spread over the
            image and do not crowd where the detector is surest.
        nms_size: side of the window in which only the best pixel remains; odd, 1 is off.
        subpixel: move each keypoint to the mean of its window of ``nms_size``, weighted by the softmax of the logits.
        border: width in pixels of the frame in which no keypoint may lie.
    """

    coverage: bool = True
    nms_size: int = 1
    subpixel: bool = False
    border: int = 0

    def __post_init__(self) -> None:
        if self.nms_size < 1 or self.nms_size % 2 == 0:
            raise ValueError(f"nms_size must be odd and positive (1 is off), got {self.nms_size}")
        if self.border < 0:
            raise ValueError(f"border must not be negative, got {self.border}")
        if self.subpixel and self.nms_size == 1:
            raise ValueError("subpixel refines within the window of nms_size and needs nms_size of at least 3, got 1")


DEFAULT_SAMPLING = KeypointSampling()


@torch.no_grad()
def sample_keypoints(
    logits: Tensor,
    num_keypoints: int,
    mask: Tensor | None = None,
    sampling: KeypointSampling = DEFAULT_SAMPLING,
) -> Keypoints:
    """The best keypoints of a map of logits, best first; a choice, so no gradient goes through it.

    Scores, density and suppression are those of the whole map: a mask or border takes keypoints away before the best
    are chosen and changes neither the scores nor the order of those that remain.

    Args:
        logits: (H, W) unnormalised log-probabilities of a keypoint at each pixel; ``-inf`` is allowed.
        num_keypoints: how many at most; fewer are returned where fewer pixels are allowed.
        mask: (H, W) bool, True where keypoints are allowed.
        sampling: the options.

    Returns:
        Keypoints at pixels of the map, with the probability, re-weighted if ``sampling.coverage``, as score.
    """
    _check(logits, num_keypoints, mask)
    xy, scores, counts = choose_keypoints(logits[None], num_keypoints, None if mask is None else mask[None], sampling)
    count = int(counts)
    return Keypoints(xy[0, :count], scores[0, :count])


@torch.no_grad()
def choose_keypoints(
    logits: Tensor,
    num_keypoints: int,
    masks: Tensor | None = None,
    sampling: KeypointSampling = DEFAULT_SAMPLING,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`sample_keypoints` of a batch of (B, H, W) maps, without checks and without waiting for a GPU.

    Returns:
        (B, N, 2) pixels, (B, N) scores, both float32, and (B,) how many of them count: what follows only fills up.
    """
    with torch.autocast(logits.device.type, enabled=False):  # scores differ by less than half precision can tell
        logits = logits.float()
        if layers.has_kernels(logits.device) and not sampling.coverage:
            return _choose_by_kernels(logits.contiguous(), num_keypoints, masks, sampling)
        values, best, pixels = _best(logits, num_keypoints, masks, sampling)
        xy = refine(logits, pixels, sampling.nms_size) if sampling.subpixel else pixels.float()
        if sampling.coverage:
            scores = values
        else:
            scores = (logits.flatten(1).gather(1, best) - logits.flatten(1).logsumexp(dim=1, keepdim=True)).exp()
        return xy, scores, (values > -torch.inf).sum(dim=1)


def _choose_by_kernels(
    logits: Tensor, num_keypoints: int, masks: Tensor | None, sampling: KeypointSampling
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`choose_keypoints` without coverage, in five kernels where it would be fifty."""
    from steerers.accel.networks import keypoint_kernels

    masks = None if masks is None else masks.to(logits.device).contiguous()
    ranking, totals = keypoint_kernels.peaks(logits, masks, sampling.nms_size, sampling.border)
    values, best = ranking.flatten(1).topk(min(num_keypoints, ranking[0].numel()))
    size = sampling.nms_size if sampling.subpixel else 1
    xy, scores = keypoint_kernels.place(logits, values, best, totals, size, _SUBPIXEL_TEMPERATURE)
    return xy, scores, (values > -torch.inf).sum(dim=1)


def has_cells(device: torch.device, sampling: KeypointSampling) -> bool:
    """Whether :func:`find_in_cells` can choose keypoints there."""
    return layers.has_kernels(device) and not sampling.coverage and sampling.nms_size > 1


def find_in_cells(
    logits: Tensor,
    num_keypoints: int,
    masks: Tensor | None,
    sampling: KeypointSampling,
    texture: Texture | None = None,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """:func:`choose_keypoints` of (B, H, W) float32 logits, in any order and faster, where :func:`has_cells`.

    Windows of radius r leave at most one keypoint in a cell of (r + 1) x (r + 1) pixels, unless some of its pixels are
    equal: then only the first of these that is allowed may be one.

    Args:
        texture: where there is something to see, if keypoints may only lie there.
        share: by which scores are multiplied.

    Returns:
        (B, N, 2) pixels, and (B, N) scores: -1 for what only fills up, all NaN if a logit is not finite.
    """
    from steerers.accel.networks import cell_kernels, keypoint_kernels

    logits = logits.contiguous()
    masks = None if masks is None else masks.to(logits.device).contiguous()
    found = cell_kernels.candidates(logits, masks, sampling.nms_size, sampling.border, texture)
    values, best = found.values.topk(min(num_keypoints, found.values.shape[1]), sorted=False)
    size = sampling.nms_size if sampling.subpixel else 1
    return keypoint_kernels.place(logits, values, best, found.totals, size, _SUBPIXEL_TEMPERATURE, found.places, share)


def keypoint_scores(logits: Tensor, *, coverage: bool = True) -> Tensor:
    """(..., H, W) scores by which keypoints are chosen: the softmax of logits over all pixels, re-weighted if asked.

    The constants are the original's. They are not free: the one added to the probabilities decides how much an
    empty neighbourhood is worth.
    """
    # On a GPU the softmax of one long row would be the work of one multiprocessor.
    probabilities = (logits - logits.logsumexp(dim=(-2, -1), keepdim=True)).exp()
    if not coverage:
        return probabilities
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


def stack_points(keypoints: Sequence[Keypoints], device: torch.device) -> Tensor:
    """(B, N, 2) float32 pixels of the keypoints of B images, filled up with zeros.

    N is a multiple of 256, so that runs which were recorded for a number of keypoints fit again.
    """
    count = max(1, -(-max(map(len, keypoints)) // _FILLED)) * _FILLED
    return torch.stack([F.pad(k.xy.to(device, torch.float32), (0, 0, 0, count - len(k))) for k in keypoints])


def _check(logits: Tensor, num_keypoints: int, mask: Tensor | None) -> None:
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"logits must have shape (H, W), got {tuple(logits.shape)}")
    check_count(num_keypoints)
    if not torch.isfinite(logits.max()):  # a NaN anywhere is the maximum
        raise ValueError(
            "logits hold NaN or inf, or are -inf everywhere; if the network runs in half precision, use float32"
        )
    check_mask(mask, logits.shape)


def _best(
    logits: Tensor, num_keypoints: int, masks: Tensor | None, sampling: KeypointSampling
) -> tuple[Tensor, Tensor, Tensor]:
    """Of (B, H, W) logits the best N pixels: by which value, -inf for what only fills up, flat index, and (x, y)."""
    ranking = keypoint_scores(logits) if sampling.coverage else _ranked(logits)
    allowed = _allowed(ranking, masks, sampling)
    ranking = ranking if allowed is None else ranking.masked_fill(~allowed, -torch.inf)
    values, best = ranking.flatten(1).topk(min(num_keypoints, ranking[0].numel()))
    width = logits.shape[-1]
    return values, best, torch.stack((best % width, best // width), dim=2)


def _ranked(logits: Tensor) -> Tensor:
    """Logits in place of probabilities, which are zero and so all alike where a detector is sure that nothing is."""
    return logits.clamp(min=torch.finfo(logits.dtype).min)  # what is not allowed is below


def _allowed(scores: Tensor, mask: Tensor | None, sampling: KeypointSampling) -> Tensor | None:
    """(..., H, W) bool, True at the pixels that may be keypoints; ``None`` if all may."""
    if mask is None and sampling.nms_size == 1 and sampling.border == 0:
        return None
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.to(scores.device)
    if sampling.nms_size > 1:
        height, width = scores.shape[-2:]
        maps = scores.reshape(-1, 1, height, width)
        best = F.max_pool2d(maps, sampling.nms_size, stride=1, padding=sampling.nms_size // 2)
        allowed = allowed & (scores == best.view_as(scores))
    if sampling.border > 0:
        height, width = scores.shape[-2:]
        frame = torch.zeros_like(allowed)
        frame[..., sampling.border : height - sampling.border, sampling.border : width - sampling.border] = True
        allowed = allowed & frame
    return allowed


def refine(logits: Tensor, pixels: Tensor, size: int) -> Tensor:
    """(B, N, 2) sub-pixel positions: the mean of each pixel's window, weighted by the softmax of its logits.

    Gradients go through to the logits, so that training can place keypoints.

    Args:
        logits: (B, H, W); pixels: (B, N, 2) whole (x, y); size: side of the window, odd.
    """
    radius = size // 2
    padded = F.pad(logits, (radius,) * 4, value=-torch.inf)  # what lies outside the image weighs nothing
    width = padded.shape[-1]
    steps = torch.arange(-radius, radius + 1, device=logits.device)
    offsets = torch.cartesian_prod(steps, steps)  # (S, 2), (x, y)
    x, y = (pixels[:, :, None] + offsets + radius).unbind(dim=-1)  # (B, N, S) each
    window = padded.flatten(1).gather(1, (y * width + x).flatten(1)).view(x.shape)
    weights = (window / _SUBPIXEL_TEMPERATURE).softmax(dim=2)
    return pixels + weights @ offsets.to(weights.dtype)


def sample_batch(
    logits: Tensor, num_keypoints: int, masks: Tensor | None = None, sampling: KeypointSampling = DEFAULT_SAMPLING
) -> tuple[Tensor, Tensor]:
    """:func:`sample_keypoints` of a batch, of the same number in every image, with gradients if refined.

    Args:
        logits: (B, H, W), finite.
        masks: (B, H, W) bool, True where keypoints are allowed.

    Returns:
        (B, N, 2) pixels in float32 (float64 stays), and (B, N) bool, False for what only fills up where an image has
        fewer than N keypoints.
    """
    with torch.autocast(logits.device.type, enabled=False):  # in half precision no pixel beyond 256 has a place
        logits = logits if logits.dtype == torch.float64 else logits.float()
        with torch.no_grad():
            values, _, pixels = _best(logits, num_keypoints, masks, sampling)
        xy = refine(logits, pixels, sampling.nms_size) if sampling.subpixel else pixels.to(logits.dtype)
        return xy, values > -torch.inf
