"""Matching: similarities made tile by tile, one assignment, and the strategies that users name.

On a CUDA device with Triton the assignment is made by fused kernels. A pair of images whose sizes come again is there
recorded as a CUDA graph. Recordings keep memory between calls: sixteen, of descriptions of up to 12 MiB (6000 and 6000
of length 256 in float32), which take 52 MiB for one size of them and 232 at most. :func:`forget_recordings` gives it
back, and strategies with ``graphs=False`` record nothing.
"""

from steerers.matching.assignment import Assignment, assign
from steerers.matching.strategies import STRATEGIES, Strategy, make_strategy

__all__ = ["STRATEGIES", "Assignment", "Strategy", "assign", "forget_recordings", "make_strategy"]


def forget_recordings() -> None:
    """Let go of the recorded launches and their memory, on every GPU."""
    from steerers.accel.matching import dispatch

    dispatch.forget_recordings()
