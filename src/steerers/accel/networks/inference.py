"""Models for inference: every network that has a faster form in it, the others as they are.

A fast form is a copy with other operations and the same outputs: to 1e-4 in float32, and with cosines above 0.999 in
float16 (bfloat16 rounds eight times as coarsely). It cannot be trained, nor take weights; its tensors have names of
their own.
"""

from __future__ import annotations

import torch

from steerers.accel.networks.compact import FastCompact, FastPyramid
from steerers.accel.networks.dedode import FastDedodeDescriptor, FastDedodeDetector
from steerers.models.base import Combined, Descriptor, Detector, Extractor
from steerers.models.compact import Compact, Pyramid
from steerers.models.dedode import DedodeDescriptor, DedodeDetector

_FAST = (FastCompact, FastDedodeDescriptor, FastDedodeDetector)


def is_fast(extractor: Extractor) -> bool:
    """Whether some network in it is in its fast form already."""
    return any(isinstance(module, _FAST) for module in extractor.modules())


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
        inner = for_inference(extractor.extractor, dtype, graphs=graphs * len(extractor.scales))  # each has its size
        if inner is extractor.extractor:
            return extractor
        if isinstance(inner, FastCompact):
            return FastPyramid(inner, extractor.scales, graphs=graphs)
        return Pyramid(inner, extractor.scales)
    if isinstance(extractor, Combined):
        parts = _detector(extractor.detector, dtype, graphs), _descriptor(extractor.descriptor, dtype, graphs)
        same = parts[0] is extractor.detector and parts[1] is extractor.descriptor
        return extractor if same else Combined(*parts)
    return extractor


def _detector(detector: Detector, dtype: torch.dtype, graphs: int) -> Detector:
    if isinstance(detector, DedodeDetector):
        return FastDedodeDetector(detector, dtype, graphs=graphs)
    return for_inference(detector, dtype, graphs=graphs) if isinstance(detector, Extractor) else detector


def _descriptor(descriptor: Descriptor, dtype: torch.dtype, graphs: int) -> Descriptor:
    if isinstance(descriptor, DedodeDescriptor):
        return FastDedodeDescriptor(descriptor, dtype, graphs=graphs)
    return for_inference(descriptor, dtype, graphs=graphs) if isinstance(descriptor, Extractor) else descriptor
