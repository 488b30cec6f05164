"""Networks in their form for inference; :func:`for_inference` is how the models come here.

A fast form is a copy with other operations and the same outputs: to 1e-4 in float32, and with cosines above 0.999 in
float16 (bfloat16 rounds eight times as coarsely). It cannot be trained, nor take weights; its tensors have names of
their own.
"""

from __future__ import annotations

from typing import Any

import torch

from steerers.accel.networks.compact import FastCompact, FastPyramid
from steerers.accel.networks.dedode import FastDedodeDescriptor, FastDedodeDetector
from steerers.models.base import Combined, Extractor
from steerers.models.compact import Compact, Pyramid
from steerers.models.dedode import DedodeDescriptor, DedodeDetector

__all__ = ["for_inference", "is_fast"]


def is_fast(extractor: Extractor) -> bool:
    """Whether some network in it is in its fast form already."""
    fast = (FastCompact, FastDedodeDescriptor, FastDedodeDetector)
    return any(isinstance(module, fast) for module in extractor.modules())


def for_inference(extractor: Extractor, dtype: torch.dtype = torch.float32, *, graphs: int = 4) -> Extractor:
    """An extractor with the networks of DeDoDe and the compact one in their fast form.

    Args:
        extractor: is left as it is; networks without a fast form are shared.
        dtype: of the networks that have a fast form.
        graphs: how many sizes of images each keeps recorded as CUDA graphs; 0 turns that off.
    """
    if isinstance(extractor, Compact):
        return FastCompact(extractor, dtype, graphs=graphs)
    if isinstance(extractor, Pyramid):
        inner, scales, coarse = extractor.extractor, extractor.scales, extractor.coarse
        if isinstance(inner, Compact):
            return FastPyramid(FastCompact(inner, dtype, graphs=graphs, scales=len(scales)), scales, coarse)
        fast = for_inference(inner, dtype, graphs=graphs * len(scales))  # each scale has its size
        return extractor if fast is inner else Pyramid(fast, scales, coarse)
    if isinstance(extractor, Combined):
        detector, descriptor = (_part(part, dtype, graphs) for part in (extractor.detector, extractor.descriptor))
        same = detector is extractor.detector and descriptor is extractor.descriptor
        return extractor if same else Combined(detector, descriptor)
    return extractor


def _part(model: Any, dtype: torch.dtype, graphs: int) -> Any:
    """A detector or a descriptor."""
    if isinstance(model, DedodeDetector):
        return FastDedodeDetector(model, dtype, graphs=graphs)
    if isinstance(model, DedodeDescriptor):
        return FastDedodeDescriptor(model, dtype, graphs=graphs)
    return for_inference(model, dtype, graphs=graphs) if isinstance(model, Extractor) else model
