"""Matching by fused kernels in Triton."""
