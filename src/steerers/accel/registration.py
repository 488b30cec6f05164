"""Registration of patches on a GPU: what :mod:`steerers.refinement` asks before it registers by operators.

Of matches, some hundred operators would each be a launch, which takes longer than their work. So the steps of a match
are one kernel (:mod:`.registration_kernels`), and the operators around it are recorded as CUDA graphs, of numbers of
matches that are filled up to a multiple of :data:`MULTIPLE`. Images are named by their addresses: a recording serves
images of all sizes. Recordings keep memory between calls; :func:`forget_recordings` gives it back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from steerers.accel.graphs import Graphs, Outputs
from steerers.accel.support import on_device, unavailable

logger = logging.getLogger(__name__)
MULTIPLE = 256
"""Matches are filled up to a multiple of this, so that recordings fit again."""
MOST_RECORDED = 8192
"""Matches: of more the launches are few for the work, and a recording would keep much memory."""
LARGEST_RADIUS = 15
"""Of patches that one program holds."""
NUM_RECORDINGS = 8
"""Of each function that is recorded, the latest used."""


class Source(NamedTuple):
    """An image at one resolution: (FINE h, FINE w) float32 values, and (h, w) what can be relied on, if not all."""

    values: Tensor
    valid: Tensor | None
    size: tuple[int, int]  # width and height, pixels


class Fitted(NamedTuple):
    """What the kernel says of every match; ``centres`` and ``linear`` in pixels of the moving image."""

    centres: Tensor  # (K, 2)
    linear: Tensor  # (K, 2, 2)
    spread: Tensor  # (K, 2, 2) covariance for white noise of variance 1
    slopes: Tensor  # (K, 2, 2) the normal equations of the translation
    variance: Tensor  # (K,) of what is left
    contrast: Tensor  # (K,)
    seen: Tensor  # (K,) part of the window that is in both images
    before: Tensor  # (K,) correlation
    after: Tensor  # (K,)
    beside: Tensor  # (K, (2 reach + 1)^2) correlations around the place, where it moved far; else 0


def reason_against(image: Tensor, radius: int) -> str | None:
    """Why patches of an image cannot be registered by the kernel, or ``None`` if they can."""
    if image.dtype != torch.float32:
        return f"it takes float32, not {image.dtype}".replace("torch.", "")
    if radius > LARGEST_RADIUS:
        return f"it takes a radius up to {LARGEST_RADIUS}, not {radius}"
    return unavailable(image.device)


def filled_up(tensor: Tensor) -> Tensor:
    """(K, ...) numbers with NaN behind them, up to a multiple; as they are where they would not be recorded."""
    extra = -len(tensor) % MULTIPLE
    if not extra or len(tensor) > MOST_RECORDED:
        return tensor
    return torch.cat([tensor, tensor.new_full((extra, *tensor.shape[1:]), torch.nan)])


def run(function: Callable[..., Outputs], *tensors: Tensor, **constants: Hashable) -> Outputs:
    """``function``, of (K, ...) tensors first, by a recording where there is one; see :class:`~.graphs.Graphs`."""
    recordings = _recordings(function)
    if not recordings.capacity or len(tensors[0]) > MOST_RECORDED:
        return function(*tensors, **constants)
    try:
        return recordings(*tensors, **constants)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not tensors[0].is_cuda:
            raise
        recordings.capacity = 0
        recordings.clear()
        logger.warning("refinement could not be recorded as a CUDA graph and is launched step by step: %s", error)
        return function(*tensors, **constants)


def _recordings(function: Callable[..., Outputs]) -> Graphs:
    return _kept.setdefault(function, Graphs(function, NUM_RECORDINGS))


_kept: dict[Callable[..., Outputs], Graphs] = {}


def forget_recordings() -> None:
    """Let go of what was recorded and its memory, on every GPU."""
    for recordings in _kept.values():
        recordings.clear()


def table(sources: Sequence[Source | None], device: torch.device) -> Tensor:
    """(N, 4) int64 for the kernel: addresses of values and of what is valid, width, height. The images must outlive
    its launch."""
    rows = [
        (0, 0, 1, 1) if source is None else (
            source.values.data_ptr(), 0 if source.valid is None else source.valid.data_ptr(), *source.size
        )
        for source in sources
    ]  # fmt: skip
    return torch.tensor(rows, dtype=torch.int64).to(device)


def fit(
    own: Tensor,
    other: Tensor,
    linear: Tensor,
    moving: Tensor,
    table: Tensor,
    gram: Tensor,
    *,
    radius: int,
    steps: int,
    damping: float,
    fine: int,
    reach: int,
    far: float,
    least_change: float,
) -> Fitted:
    """Register patches of images, one of which stays.

    Args:
        own: (K, 2) centres of the patches, pixels of the image that stays; ``other`` likewise of the one that moves.
        linear: (K, 2, 2) from displacements in the one to displacements in the other.
        moving: (K,) row of the :func:`table` of the resolution that moves. The first half is of one image, from its
            full size on, the second half of the other; patches are of the other image in full size.
        gram: (2 radius + 1, 2 radius + 1) what smoothing does to the covariance of white noise, along one side.
        far: pixels; around places that moved farther, correlations up to ``reach`` pixels beside are told.
    """
    from steerers.accel import registration_kernels as kernels

    count, span = len(own), (2 * reach + 1) ** 2
    out, beside = own.new_empty(count, kernels.NUMBERS), own.new_zeros(count, span)
    side = 16 if radius < 8 else 32
    padded = own.new_zeros(side, side)
    padded[: len(gram), : len(gram)] = gram
    if count:
        with on_device(own.device):
            kernels.register[(count,)](
                own.contiguous(), other.contiguous(), linear.contiguous(), moving, table, padded, out, beside, steps,
                damping, far, least_change, radius, side, fine, len(table) // 2, reach, num_warps=side * side // 64,
            )  # fmt: skip
    shapes = ((2,), (2, 2), (2, 2), (2, 2), (), (), (), (), ())
    parts = out.split([math.prod(shape) for shape in shapes], dim=1)
    return Fitted(*(part.view(count, *shape) for part, shape in zip(parts, shapes, strict=True)), beside)  # type: ignore[call-arg]
