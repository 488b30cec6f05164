"""Matching: similarities made tile by tile, one assignment, and the strategies that users name.

Read :mod:`.similarity`, :mod:`.assignment` and :mod:`.strategies`, in this order; :mod:`.harmonics` and :mod:`.extrema`
hold the mathematics of fixed steerers. On a GPU :mod:`steerers.accel.matching` does the same by fused kernels.
"""
