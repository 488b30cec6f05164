"""Matching: similarities made tile by tile, one assignment, and the strategies that users name.

Read :mod:`.similarity`, :mod:`.assignment` and :mod:`.strategies`, in this order. The mathematics of fixed steerers is
in :mod:`.harmonics` and :mod:`.extrema`, that of every angle of learned ones in :mod:`.exponentials`. On a GPU
:mod:`steerers.accel.matching` does the same by fused kernels.
"""
