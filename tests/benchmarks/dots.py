"""A world with known answers: images of numbered dots, and a stub in place of a network that finds them.

Dots are drawn over a photograph at known places of every image, in colours that tell which is which: red is the
intensity of a dot, the ratio of green to red its number, and blue marks the images after the first. The stub finds the
dots' centres in whatever it is given, rotated or shrunk, so that frames are checked by pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from helpers import EXAMPLES
from steerers import Pipeline, Steerer
from steerers.benchmarks.benchmark import Evaluation, PairBenchmark
from steerers.benchmarks.predict import AnyPair, Observer, Pair, Prediction, ViewSettings, predict_each
from steerers.benchmarks.report import TableRow
from steerers.benchmarks.runs import Run
from steerers.features import Keypoints
from steerers.matching.strategies import make_strategy
from steerers.models.base import SingleExtractor
from steerers.models.zoo import Model

PHOTOGRAPH = EXAMPLES / "camera.jpg"
SIZE = (160, 120)
DOTS = 12
IMAGES = 6
TIMES = ("extraction_seconds", "matching_seconds")
WRONG = (7, 10, 4, 9, 0, 11, 2, 3, 1, 6, 8, 5)  # a permutation that keeps nothing in its place


def dots() -> np.ndarray:
    """(12, 2) pixels, well inside; no two near each other."""
    xs, ys = np.meshgrid([32, 62, 92, 122], [30, 58, 86], indexing="xy")
    return np.stack([xs.ravel(), ys.ravel()], axis=1).astype(np.float64)


def draw(points: np.ndarray, path: Path, *, marked: bool, size: tuple[int, int] = SIZE) -> None:
    """Dots over the blue part of a photograph; its own red and green are left out."""
    photograph = np.asarray(PIL.Image.open(PHOTOGRAPH).convert("L").resize(size), np.float64) / 255
    ys, xs = np.mgrid[: size[1], : size[0]]
    squared = (xs - points[:, 0, None, None]) ** 2 + (ys - points[:, 1, None, None]) ** 2  # (N, H, W)
    intensity = np.exp(-squared / (2 * 2.5**2))
    ratio = ((np.arange(len(points)) + 0.5) / len(points))[:, None, None]
    blue = 0.5 * photograph + (0.5 if marked else 0.0)
    image = np.stack([intensity.sum(0), (ratio * intensity).sum(0), blue], axis=2)
    PIL.Image.fromarray((image * 255).round().astype(np.uint8)).save(path)


class Stub(SingleExtractor):
    """Finds the dots. Descriptions tell the number of a dot and the direction, as seen, from the first to the last.

    With ``shift``, points of marked images are off by so many pixels; with ``shuffle``, their numbers are wrong.
    """

    dim = 2 * DOTS

    def __init__(self, shift: float = 0.0, shuffle: bool = False, blind: bool = False) -> None:
        super().__init__()
        self.shift, self.shuffle, self.blind = shift, shuffle, blind
        self._calls = 0

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        self._calls += 1
        xy = torch.from_numpy(np.stack([find_dot(image, number) for number in range(DOTS)]))
        if float(image[2].max()) > 0.75:
            xy[:, 0] += self.shift
        if self.blind:
            xy = xy[:0]
        return Keypoints(xy.float()[:num_keypoints], torch.ones(min(len(xy), num_keypoints)))

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        if not len(keypoints):
            return torch.zeros(0, self.dim)
        along = find_dot(image, DOTS - 1) - find_dot(image, 0)
        angle = math.atan2(-along[1], along[0])
        numbers = torch.arange(len(keypoints))
        if self.shuffle and float(image[2].max()) > 0.75:
            numbers = torch.tensor(WRONG)[numbers]
        direction = torch.tensor([math.cos(angle), math.sin(angle)])
        one_hot = torch.nn.functional.one_hot(numbers, DOTS).float()
        return (one_hot[:, :, None] * direction).flatten(1)


def find_dot(image: Tensor, number: int) -> np.ndarray:
    """The centre of a dot by its colour."""
    red, green = image[0].double().numpy(), image[1].double().numpy()
    near = np.abs(green - red * (number + 0.5) / DOTS) <= 0.3 * red / DOTS
    weight = np.where(near, (red - 0.3).clip(0), 0)  # without a step, which would pull towards whole pixels
    ys, xs = np.mgrid[: red.shape[0], : red.shape[1]]
    return np.array([(weight * xs).sum(), (weight * ys).sum()]) / weight.sum()


def make_run(
    stub: Stub | None = None,
    strategy: str = "procrustes",
    label: str = "stub",
    num_keypoints: int = 100,
    **options: object,
) -> Run:
    steerer = Steerer.freq1(Stub.dim)
    model = Model(label, stub or Stub(), steerer)
    tta = options.pop("order") if strategy == "tta" else None
    made = make_strategy("dual-softmax" if tta else strategy, steerer, **options)  # type: ignore[arg-type]
    return Run(label, Pipeline(model, made, num_keypoints=num_keypoints, tta=tta))  # type: ignore[arg-type]


def predict_all(
    runs: Sequence[Run],
    pairs: Sequence[AnyPair],
    settings: ViewSettings | None = None,
    observe: Observer[AnyPair] | None = None,
) -> list[list[Prediction]]:
    """The predictions of every run for every pair: a list a run."""
    found = dict(predict_each(runs, pairs, settings, observe))
    return [[found[index][run] for index in range(len(pairs))] for run in range(len(runs))]


def table_rows(benchmark: PairBenchmark[Any, Any, Any], evaluation: Evaluation[Any, Any]) -> list[TableRow]:
    """What a benchmark's table says of every run."""
    return benchmark.make_report([evaluation], {}).tables[0].rows


def draw_collection(folder: Path) -> list[Pair]:
    """Each two of some images."""
    paths = [folder / f"{k}.png" for k in range(IMAGES)]
    for k, path in enumerate(paths):
        draw(dots() + np.array([k, -k]), path, marked=k > 0)
    return [Pair(f"{a.stem} {b.stem}", "", a, b) for a, b in combinations(paths, 2)]


def assert_same(first: Prediction, second: Prediction) -> None:
    """All but the times."""
    for field in Prediction.__dataclass_fields__:
        if field not in ("matches", *TIMES):
            np.testing.assert_equal(getattr(first, field), getattr(second, field), field)
    for field in ("keypoints0", "keypoints1", "scores", "indices", "angle", "model", "strategy"):
        np.testing.assert_array_equal(getattr(first.matches, field), getattr(second.matches, field))
