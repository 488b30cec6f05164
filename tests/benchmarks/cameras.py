"""Points in space, and cameras that see them where it is known."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.dots import DOTS

K = np.array([[110.0, 0, 78], [0, 112, 61], [0, 0, 1]])


def rotation(axis: np.ndarray, degrees: float) -> np.ndarray:
    """By Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = math.radians(degrees)
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def project(points: np.ndarray, R: np.ndarray, t: np.ndarray, K: np.ndarray = K) -> np.ndarray:
    rays = (points @ R.T + t) @ K.T
    return rays[:, :2] / rays[:, 2:]


def world(seed: int, count: int = DOTS) -> np.ndarray:
    """(N, 3) points in front of a camera at the origin, on no plane and with no two near each other in the image."""
    rng = np.random.default_rng(seed)
    xs, ys = np.meshgrid([-1.2, -0.4, 0.4, 1.2], [-0.8, 0.0, 0.8]) if count == DOTS else rng.uniform(-1, 1, (2, count))
    depth = rng.uniform(3.5, 6.5, count)
    return np.stack([xs.ravel(), ys.ravel(), depth], axis=1) * np.array([1, 1, 1]) * (depth / 5)[:, None] ** [1, 1, 0]


def camera(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the second image: rotated by some degrees and moved."""
    rng = np.random.default_rng(100 + seed)
    return rotation(rng.normal(size=3), 6.0), np.array([1.2, 0.4, 0.3]) * rng.uniform(0.7, 1.0, 3)
