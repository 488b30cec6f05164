"""Batches by their step, made while the step before is trained."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from steerers.datasets.pairs import PairBatch, PairSource, draw_rotations
from steerers.datasets.rng import mix, uniforms
from steerers.training import processes
from steerers.training.config import TrainConfig
from steerers.training.sources import read_pair

_CHOICE, _ORDER = 41, 42  # streams of the run's seed
_READ_AHEAD = 2  # steps


class _Made(NamedTuple):
    """A batch, the event after which a GPU has made it, and how long it took."""

    batch: PairBatch
    ready: torch.cuda.Event | None
    seconds: float


class Feed:
    """Batches by their step, one step ahead of training: read by several threads, made by one of its own.

    On a GPU that thread has its own stream, so that making a batch waits for no step and no step waits for it.
    """

    def __init__(self, config: TrainConfig, sources: Sequence[tuple[PairSource, float]], device: torch.device) -> None:
        if config.batch % processes.world():
            raise ValueError(f"batch {config.batch} is not a multiple of the {processes.world()} processes")
        self.config, self.device = config, device
        self.sources = [source for source, _ in sources]
        self.shares = torch.tensor([share for _, share in sources], dtype=torch.float64).cumsum(0)
        self.readers, self.maker = ThreadPoolExecutor(8), ThreadPoolExecutor(1)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.read: dict[int, list[Future[Any]]] = {}
        self.made: dict[int, Future[_Made]] = {}
        self.orders: dict[tuple[int, int], list[int]] = {}
        self.recent: deque[PairBatch] = deque(maxlen=3)  # memory of one stream must outlive its use in another

    def batch(self, step: int) -> tuple[PairBatch, float]:
        """The pairs of this process for a step, and the seconds it took to make them."""
        last = self.config.steps - 1
        for coming in range(step, min(step + _READ_AHEAD, last) + 1):
            if coming not in self.read and coming not in self.made:
                source = self.sources[self._choose(coming)]
                self.read[coming] = [self.readers.submit(read_pair, source, index) for index in self._indices(coming)]
        for coming in range(step, min(step + 1, last) + 1):
            if coming not in self.made:
                self.made[coming] = self.maker.submit(self._make, coming, self.read.pop(coming))
        made = self.made.pop(step).result()
        if made.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(made.ready)
        self.recent.append(made.batch)
        return made.batch, made.seconds

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in (self.maker, self.readers):
            pool.shutdown(cancel_futures=True)

    @torch.no_grad()
    def _make(self, step: int, reading: list[Future[Any]]) -> _Made:
        read = [future.result() for future in reading]
        start = time.perf_counter()
        seeds = self._seeds(step)
        rotations0, rotations1 = draw_rotations(self.config.data.rotations, seeds)
        source = self.sources[self._choose(step)]
        if self.stream is None:
            batch = source.make(read, rotations0, rotations1, seeds, self.device)
            return _Made(batch, None, time.perf_counter() - start)
        with torch.cuda.stream(self.stream):
            batch = source.make(read, rotations0, rotations1, seeds, self.device)
            ready = torch.cuda.Event()
            ready.record()
            self.stream.synchronize()
        return _Made(batch, ready, time.perf_counter() - start)

    def _choose(self, step: int) -> int:
        drawn = float(uniforms([mix(self.config.seed, step)], 1, _CHOICE)) * float(self.shares[-1])
        return int(torch.searchsorted(self.shares, drawn, right=True).clamp(max=len(self.sources) - 1))

    def _seeds(self, step: int) -> list[int]:
        return [mix(self.config.seed, step, place) for place in self._places()]

    def _places(self) -> range:
        each = self.config.batch // processes.world()
        return range(processes.rank() * each, (processes.rank() + 1) * each)

    def _indices(self, step: int) -> list[int]:
        """Every pair once before any comes again; or at random, by the weights of the source.

        Of several sources each skips the places of the steps that others have, and with them some of its pairs.
        """
        number = self._choose(step)
        source = self.sources[number]
        if source.weights is not None:
            ladder = source.weights.double().cumsum(0)
            drawn = uniforms(self._seeds(step), 1, _ORDER)[:, 0] * ladder[-1]
            return torch.searchsorted(ladder, drawn, right=True).clamp(max=len(source) - 1).tolist()
        positions = [step * self.config.batch + place for place in self._places()]
        return [self._order(number, len(source), p // len(source))[p % len(source)] for p in positions]

    def _order(self, number: int, length: int, epoch: int) -> list[int]:
        if (number, epoch) not in self.orders:
            self.orders = {key: order for key, order in self.orders.items() if key[1] >= epoch - 1}
            generator = torch.Generator().manual_seed(mix(self.config.seed, epoch, _ORDER))
            self.orders[number, epoch] = torch.randperm(length, generator=generator).tolist()
        return self.orders[number, epoch]
