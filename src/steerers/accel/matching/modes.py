"""The rotation of a pair of images from those of its matches, without many small operations of the device.

Both are :func:`steerers.geometry.circular_mode`: of a few known rotations, and of any.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

WIDTH = math.radians(10.0)
"""As of :func:`steerers.geometry.circular_mode`."""
REACH = math.cos(3 * WIDTH)


def mode_of_few(rotations: tuple[float, ...], weights: tuple[float, ...]) -> float:
    """The mode of rotations that are known beforehand, whose density is prepared."""
    peak = math.radians(int((_density(rotations) @ np.array(weights, dtype=np.float64)).argmax()))
    x = y = 0.0
    for rotation, weight in zip(rotations, weights, strict=True):
        cos = math.cos(rotation - peak)
        if cos > REACH:
            x += weight * cos
            y += weight * math.sin(rotation - peak)
    return peak + math.atan2(y, x)


def mode_of_many(angles: Tensor, weights: Tensor) -> float:
    """The mode of (K,) angles of any device, K > 0; on a GPU it is brought here first."""
    rotations = angles.cpu().numpy().astype(np.float64, copy=False)
    heavy = weights.cpu().numpy().astype(np.float64, copy=False)
    bins = np.rint(np.degrees(rotations)).astype(np.int64) % 360
    histogram = np.bincount(bins, heavy, 360)
    density = np.fft.irfft(np.fft.rfft(histogram) * _spectrum(), 360)
    apart = rotations - math.radians(int(density.argmax()))
    cos = np.cos(apart)
    near = np.where(cos > REACH, heavy, 0.0)
    return math.radians(int(density.argmax())) + math.atan2(float(near @ np.sin(apart)), float(near @ cos))


def _kernel(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    kernel: NDArray[np.float64] = np.exp((np.cos(np.radians(apart)) - 1) / WIDTH**2)
    return kernel


@lru_cache(maxsize=64)
def _density(rotations: tuple[float, ...]) -> NDArray[np.float64]:
    """The (360, T) density of each rotation at whole degrees."""
    return _kernel(np.arange(360.0)[:, None] - np.round(np.degrees(rotations)))


@lru_cache(maxsize=1)
def _spectrum() -> NDArray[np.complex128]:
    return np.fft.rfft(_kernel(np.arange(360.0)))
