"""What users choose from, and what they get unless they choose; for the command line, so without PyTorch.

The rooms that give these names a meaning import them from here.
"""

from __future__ import annotations

from typing import Literal

DEFAULT_MODEL = "compact"
NUM_KEYPOINTS = 2048
"""Most keypoints of an image, unless said otherwise."""
MAX_SIZE = 1024
"""Longest side of an image in pixels, unless said otherwise."""

TTA = "tta"
"""Test-time augmentation: what the pipeline does with a strategy, of several descriptions of the first image."""
STRATEGY_NAMES = (
    "dual-softmax", "max-matches", "max-similarity", "subset", "procrustes", "prototype-procrustes", "invariant",
    "mutual-nearest", TTA,
)  # fmt: skip
"""What users may type for a strategy; :mod:`steerers.matching.strategies` has their classes."""
PRECISIONS = ("float32", "bfloat16", "float16")
"""Of networks, by the names that PyTorch has for them."""
Exif = Literal["ignore", "apply"]
Resize = Literal["fit", "squash"]
"""Both are explained at :func:`steerers.images.load.load_image`."""
