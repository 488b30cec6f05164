"""Everything that exists for speed: fused kernels, networks for inference, CUDA graphs.

The package works without it.
"""
