"""The embedded network at several scales, for inference: one recording, and one wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor

from steerers.accel.graphs import Graphs
from steerers.accel.networks.compact import FastCompact
from steerers.accel.networks.merge_scales import Found, Frame, join
from steerers.accel.networks.upsample_sampling import Stencil
from steerers.features import Keypoints
from steerers.models.checks import check_batch
from steerers.models.sampling import KeypointSampling
from steerers.models.scales import DIAMETER, Pyramid, shrink, shrink_masks, shrunk_size


class FastPyramid(Pyramid):
    """A :class:`~steerers.models.scales.Pyramid` around the compact network that finds keypoints at all scales in one
    run.

    While it is recorded, the smaller scales run beside the first: their kernels are too small to fill a GPU.

    Args:
        extractor: the network.
        scales: of the image, the first 1.
        graphs: how many sizes of images are recorded as CUDA graphs.
    """

    extractor: FastCompact

    def __init__(self, extractor: FastCompact, scales: Sequence[float] = (1.0, 0.5), *, graphs: int = 4) -> None:
        super().__init__(extractor, scales)
        self._extracting = Graphs(self._extract, graphs)

    def extract_batch(
        self, images: Tensor, *, num_keypoints: int, masks: Tensor | None = None
    ) -> list[tuple[Keypoints, Tensor]]:
        given = check_batch(images, num_keypoints, masks)
        scales = tuple(self.scales_for(images))
        stencils = tuple(self.extractor.stencil(shrunk_size(images, scale), images.device) for scale in scales)
        xy, scores, diameters, descriptions, stats = self._extracting(
            *given,
            num_keypoints=num_keypoints,
            sampling=self.extractor.sampling,
            scales=scales,
            stencils=stencils,
            moves=self.extractor.moves,
        )
        counts = self.extractor.read(stats)
        return [
            (Keypoints(xy[i, :n], scores[i, :n], diameters[i, :n]), descriptions[i, :n]) for i, n in enumerate(counts)
        ]

    def _extract(
        self,
        images: Tensor,
        masks: Tensor | None = None,
        *,
        num_keypoints: int,
        sampling: KeypointSampling,
        scales: tuple[float, ...],
        stencils: tuple[Stencil, ...],
        moves: int,
    ) -> tuple[Tensor, ...]:
        """``moves`` only tells apart what was recorded before the network moved."""
        height, width = images.shape[-2:]

        def find(scale: float, stencil: Stencil) -> Found:
            level = shrink(images, scale)
            allowed = None if masks is None else shrink_masks(masks, level)
            area = level.shape[-2] * level.shape[-1] / (height * width)
            return self.extractor.find(level, allowed, num_keypoints, sampling, stencil, area)

        found = _side_by_side([partial(find, *pair) for pair in zip(scales, stencils, strict=True)], images.device)
        sizes = [shrunk_size(images, scale) for scale in scales]
        frames = [Frame(width / w, height / h, DIAMETER / scale) for (h, w), scale in zip(sizes, scales, strict=True)]
        return join(found, frames, num_keypoints)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._extracting.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings, since cuBLAS keeps memory for each."""
    return torch.cuda.Stream(device)


def _side_by_side(tasks: Sequence[Callable[[], Found]], device: torch.device) -> list[Found]:
    """The results of all tasks; of a recording, those after the first are a branch of their own.

    Only of a recording: there, memory that one branch lets go is not given to another.
    """
    if len(tasks) == 1 or device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return [task() for task in tasks]
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        others = [task() for task in tasks[1:]]
    first = tasks[0]()
    main.wait_stream(side)
    return [first, *others]
