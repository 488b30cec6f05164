"""Run time, with a clock of our own: what is counted, and what is not."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steerers.benchmarks.speed import subjects
from steerers.benchmarks.speed.runtime import make_report, measure_model, summarise
from steerers.benchmarks.speed.subjects import RuntimeSettings, Subject, list_subjects
from steerers.features import Keypoints
from steerers.matching.assignment import Assignment
from steerers.matching.strategies import NAMES, DualSoftmax
from steerers.models.base import SingleExtractor
from steerers.models.zoo import Model
from steerers.steering.steerer import Steerer

CPU = torch.device("cpu")
SMALL = RuntimeSettings(size=48, num_keypoints=40, repeats=4, warm_up=2)

pytestmark = pytest.mark.usefixtures("one_thread")


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class Slow(SingleExtractor):
    """Takes 10 ms an image, 100 in its first three calls; remembers what it saw."""

    dim = 32

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.seen: list[tuple[int, int]] = []

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        raise AssertionError("detection is not timed")

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        self.seen.append((image.shape[2], image.shape[1]))
        if self.clock is not None:
            self.clock.now += 0.1 if len(self.seen) <= 3 else 0.01
        assert bool((keypoints.xy > -1).all())
        assert bool((keypoints.xy < torch.tensor(self.seen[-1])).all())
        return keypoints.xy.sum(dim=1, keepdim=True) * torch.linspace(0.1, 1, self.dim)


class Long(Slow):
    """Of the length of DeDoDe's."""

    dim = 256


@dataclass(frozen=True, kw_only=True)
class Patient(DualSoftmax):
    """Takes 3 ms."""

    clock: Any

    def match(self, descriptions0: Tensor, descriptions1: Tensor) -> Assignment:
        self.clock.now += 0.003
        return super().match(descriptions0, descriptions1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_apart_and_together_without_the_warm_up(clock: Clock) -> None:
    model = Model("slow", Slow(clock))
    (row,) = measure_model([Subject("slow:patient", model, Patient(clock=clock), None)], SMALL, CPU)
    seconds = row["seconds"]
    assert seconds["description"]["median"] == pytest.approx(0.02)
    assert seconds["matching"]["median"] == pytest.approx(0.003)
    assert seconds["total"]["median"] == pytest.approx(0.023)
    assert seconds["total"]["max"] == pytest.approx(0.023)  # the slow first calls were to warm up
    assert len(model.extractor.seen) == 2 * 2 * (SMALL.repeats + SMALL.warm_up)


def test_augmentation_describes_every_rotation(clock: Clock) -> None:
    model = Model("slow", Slow(clock))
    rows = measure_model(list_subjects(model, ["dual-softmax", "tta"]), SMALL, CPU)
    assert [row["label"] for row in rows] == ["slow:dual-softmax", "slow:tta:4", "slow:tta:8"]
    assert [row["descriptions_per_pair"] for row in rows] == [2, 5, 9]
    assert [row["seconds"]["description"]["median"] for row in rows] == pytest.approx([0.02, 0.05, 0.09])
    assert [row["seconds"]["total"]["median"] for row in rows] == pytest.approx([0.02, 0.05, 0.09])
    assert set(model.extractor.seen) == {(48, 48), (68, 68)}  # an eighth of a rotation needs a larger canvas


def test_every_strategy_is_timed() -> None:
    labels = [subject.label for subject in list_subjects(Model("m", Slow()))]
    assert labels[0] == "m:dual-softmax"
    assert {label.split(":")[1] for label in labels} == set(NAMES)
    assert {"m:tta:4", "m:tta:8", "m:max-matches:4", "m:subset:8", "m:max-similarity:continuous"} <= set(labels)
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    ("steerer", "strategy", "expected"),
    [
        (None, "max-matches", "Spread, standing in"),
        (None, "procrustes", "Freq1, standing in"),
        (Steerer.perm(32), "max-matches", "C4, fixed"),
        (Steerer.perm(32), "procrustes", "Freq1, standing in"),
        (Steerer.freq1(32), "procrustes", "SO2, fixed"),
        (Steerer.freq1(32), "invariant", "Spread, standing in"),
        (Steerer.random(32, learnable=False), "max-similarity", "SO2, learned"),
        (Steerer.spread(32), "dual-softmax", None),
        (Steerer.spread(32), "tta", None),
    ],
)
def test_the_models_own_steerer_where_it_fits(steerer: Steerer | None, strategy: str, expected: str | None) -> None:
    for subject in list_subjects(Model("m", Slow(), steerer), [strategy]):
        assert subject.steerer == expected


def test_half_of_what_is_matched_corresponds() -> None:
    """Matching nothing costs less: the subset strategy would be done with the subset."""
    model = Model("m", Long())
    planted = subjects.plant_descriptions(RuntimeSettings(num_keypoints=1200), model.extractor.dim, CPU)
    for subject in list_subjects(model):
        found = subjects.match_pair(subject, planted)
        assert 150 < len(found) <= 1200
        if subject.strategy.name in ("dual-softmax", "tta", "max-matches"):
            assert 300 < len(found) < 700
    rotated = planted[0]
    assert len(rotated) == 8
    assert not torch.equal(rotated[0], rotated[1])


def test_orders() -> None:
    def labels(steerer: Steerer | None, *wanted: str) -> list[str]:
        return [subject.label for subject in list_subjects(Model("m", Slow(), steerer), wanted)]

    assert labels(Steerer.perm(32), "max-similarity") == ["m:max-similarity"]
    assert labels(Steerer.random(32, learnable=False), "max-similarity") == ["m:max-similarity:4", "m:max-similarity:8"]
    assert labels(Steerer.spread(32), "max-similarity:16", "tta:3") == ["m:max-similarity:16", "m:tta:3"]
    assert labels(None, "tta:4", "tta") == ["m:tta:4", "m:tta:8"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("no-such", "unknown strategy"), ("tta:many", "neither a whole number"), ("tta:1", "at least 2")],
)
def test_strategies_that_are_none(wanted: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_subjects(Model("m", Slow()), [wanted])


def test_pairs_are_random_and_the_same_again() -> None:
    (image0, keypoints0), (image1, _) = subjects.draw_pair(SMALL, 0, CPU)
    again, other = subjects.draw_pair(SMALL, 0, CPU), subjects.draw_pair(SMALL, 1, CPU)
    assert image0.shape == (3, 48, 48)
    assert keypoints0.xy.shape == (40, 2)
    assert torch.equal(image0, again[0][0])
    assert not torch.equal(image0, image1)
    assert not torch.equal(image0, other[0][0])


def test_summary_of_known_times() -> None:
    found = summarise([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (found["median"], found["lower_quartile"], found["upper_quartile"]) == (3, 2, 4)
    assert (found["mean"], found["min"], found["max"]) == (4, 1, 10)
    assert found["standard_deviation"] == pytest.approx(12.5**0.5)
    assert summarise([2.0])["standard_deviation"] == 0


def test_report_beside_the_paper(clock: Clock, tmp_path: Path) -> None:
    model = Model("slow", Slow(clock))
    rows = measure_model(list_subjects(model, ["dual-softmax", "tta:4"]), SMALL, CPU)
    report = make_report(rows, SMALL, {"device": "nowhere"}, weights="random")
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    ratios = {row["label"]: row["times_plain"] for row in found["tables"][0]["rows"]}
    assert ratios["slow:tta:4"] == pytest.approx(2.5)
    assert ratios["DeDoDe-B-C4, Max matches C4-steered"] == pytest.approx(96.5 / 63.4)
    assert ratios["DeDoDe-G-C4, Subset C4-steered"] == pytest.approx(222.9 / 217.3)
    text = report.to_markdown()
    assert "| slow | tta (4) | - | 5 | 50.0 | 0.0 | 50.0 (50.0 to 50.0) | 2.50 | - |" in text
    assert "| DeDoDe-B (paper) | Dual softmax + TTAx8 | - | - | - | - | 513.0 ± 0.09 | 8.09 | - |" in text
    assert "random weights" in text
    assert "paper)" not in make_report(rows, SMALL, {}, with_paper=False).to_markdown()
    pytest.importorskip("matplotlib")
    report.write(tmp_path)
    assert (tmp_path / "slow.png").is_file()


def test_a_ratio_needs_plain_matching(clock: Clock) -> None:
    rows = measure_model(list_subjects(Model("slow", Slow(clock)), ["tta:4"]), SMALL, CPU)
    (row,) = make_report(rows, SMALL, {}, with_paper=False).to_json()["tables"][0]["rows"]
    assert row["times_plain"] is None


@pytest.mark.parametrize("bad", [{"size": 8}, {"num_keypoints": 0}, {"repeats": 0}, {"warm_up": -1}])
def test_bad_settings(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be at least"):
        RuntimeSettings(**bad)
