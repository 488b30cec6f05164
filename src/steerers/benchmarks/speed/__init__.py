"""Timings: every figure is a ratio to the plain form, measured in the same run."""
