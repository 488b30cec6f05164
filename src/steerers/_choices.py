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
Mapper = Literal["incremental", "global"]
Cameras = Literal["auto", "one", "each"]
"""Of reconstructions: COLMAP's mappers; and which photographs share the parameters of a camera: those of one camera,
focal length and size by their EXIF data, all of one size, or none."""
MAX_DISTANCE, MIN_INLIERS = 1.5, 15
"""Of an inlier from its epipolar line, in pixels of the image that was matched; and of a pair that is verified."""
MAX_ERROR, MAX_REFINED_ERROR, MIN_MODEL_SIZE = 4.0, 2.0, 3
"""Of an observation of a model, in the same pixels, as detected and refined; and photographs of a model, at least."""
LIKELY = 0.5
"""Probability from which two images are said to show the same thing, and a photograph to be on a map."""
MAP_KEYPOINTS, MAP_TILES = 1024, 96
"""Of 1024 x 1024 pixels of a map, in its index; and most tiles of a map that a photograph is compared with."""
Kind = Literal["similarity", "affine", "homography"]
Mirror = Literal["auto", "yes", "no"]
Resampling = Literal["nearest", "linear", "cubic"]
"""Of alignments: the map from one image to the other, from the stiffest to the most pliable; whether one is a mirror
image; and how the pixels of the other are interpolated."""
Exif = Literal["ignore", "apply"]
Resize = Literal["fit", "squash"]
"""Both are explained at :func:`steerers.images.load.load_image`."""
