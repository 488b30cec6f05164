"""Matching by fused kernels in Triton: what :mod:`steerers.matching.strategies` asks before it computes tile by tile.

A pair of images whose sizes come again is recorded as a CUDA graph. Recordings keep memory between calls: sixteen, of
descriptions of up to 12 MiB (6000 and 6000 of length 256 in float32), which take 52 MiB for one size of them and 232 at
most. :func:`forget_recordings` gives it back, and strategies with ``graphs=False`` record nothing.
"""

from steerers.accel.matching.dispatch import forget_recordings, solve

__all__ = ["forget_recordings", "solve"]
