"""Random numbers that follow from seeds alone: one seed for each element of a batch, several streams a seed.

Training needs no state of generators with this: step, rank and position in the batch give the seed, so that a resumed
run draws what the uninterrupted one would have drawn, and two processes draw what one would.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_MIX = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits: spreads small seeds
_MASK = (1 << 63) - 1
_WORD = (1 << 32) - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


def mix(*parts: int) -> int:
    """One seed from several whole numbers; different parts give, for all practical purposes, different seeds."""
    state = _MIX  # not 0, from which leading zeros would not move it
    for part in parts:
        state = (state ^ (part & _MASK)) * _MIX & (1 << 64) - 1
        state ^= state >> 29
    return state & _MASK


def generator_of(seed: int, stream: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one element of a batch; ``stream`` keeps its purposes apart."""
    return torch.Generator(device).manual_seed(mix(seed, stream))


def uniforms(seeds: Sequence[int], count: int, stream: int = 0) -> Tensor:
    """(B, count) float64 in [0, 1), row b from ``seeds[b]`` alone.

    SplitMix64 (Steele, Lea and Flood, 2014) for all rows at once: making a generator for each of them took longer than
    a step of training does.
    """
    starts = np.array([mix(seed, stream) for seed in seeds], dtype=np.uint64)  # (B,)
    state = starts[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_MIX)  # (B, count), modulo 2^64
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    bits = (state ^ (state >> np.uint64(31))) >> np.uint64(11)  # 53 of them
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def noise(seeds: Sequence[int], count: int, stream: int, device: torch.device) -> Tensor:
    """(B, count) float32 of mean 0 and deviation 1, nearly normal, row b from ``seeds[b]`` alone, made on ``device``.

    The same generator with 32 bits, in whole numbers, so that every device makes the same: the sum of four bytes of
    each state, which no eye and no network tells from a normal distribution.
    """
    starts = torch.tensor([mix(seed, stream) & _WORD for seed in seeds], dtype=torch.int64).to(device)
    state = starts[:, None] + torch.arange(count, device=device) * (_MIX & _WORD)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):  # products stay below 2^63
        state = state & _WORD
        state = (state ^ (state >> shift)) * factor
    state = state & _WORD
    state = state ^ (state >> 15)
    total = (state & 0xFF) + (state >> 8 & 0xFF) + (state >> 16 & 0xFF) + (state >> 24)
    return (total - 510).float() / 147.8  # the mean and the deviation of four bytes
