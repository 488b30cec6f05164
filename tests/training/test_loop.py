"""The loop: resumed runs, stopped runs, and several processes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

from steerers import _weights
from steerers.datasets.pairs import PairBatch, PairSource
from steerers.steering.steerer import Steerer
from steerers.training import loop
from steerers.training.config import DataConfig, Kind, ModelConfig, OptimiserConfig, TrainConfig, ValidationConfig
from steerers.training.feed import Sources
from steerers.training.kinds import kind_source
from steerers.training.loop import (
    Ended,
    _held_out_batch,
    _held_out_rotations,
    _turned_batch,
    train,
    validate,
    validate_kinds,
)
from steerers.training.objectives import Measures, Objective, Term, Terms
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import KeypointOptions
from steerers.training.run_folder import (
    MODEL,
    CheckpointError,
    read_checkpoint,
    read_log,
    read_spectrum,
    write_checkpoint,
)
from training.tiny import OPTIONS, Numbers, compact, config_of, descriptor_objective, photographs, small_steerer

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SHIFT = "network.trunk.head.2.bias"
"""Added to all logits, which no likelihood depends on: its gradient is rounding, of which Adam makes steps."""
MOMENT = 1e-9  # minutes: the time is over after one step
TIMES = {"data_ms", "wait_ms", "network_ms", "seconds"}


class Passing:
    """Another source, with something done before each batch is made."""

    def __init__(self, source: PairSource, before: Callable[[int], None]) -> None:
        self.source, self.before, self.made, self.weights = source, before, 0, source.weights

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Any:
        return self.source.read(index)

    def make(self, *arguments: Any) -> PairBatch:
        self.made += 1
        self.before(self.made)
        return self.source.make(*arguments)


def joint_objective() -> JointObjective:
    return JointObjective(compact(), small_steerer(), OPTIONS, KeypointOptions(area=40.0))


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "A": lambda: descriptor_objective("A"),
    "B": lambda: descriptor_objective("B"),
    "joint": joint_objective,
}


def run(
    config: TrainConfig,
    folder: Path,
    source: PairSource | None = None,
    objective: Objective | None = None,
    **options: Any,
) -> Ended:
    objective = objective or OBJECTIVES[config.setting]()
    sources = Sources([(source or photographs(), 1.0)], photographs(2, size=56))
    return train(config, objective, sources, folder, device=CPU, **options)


def entries(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the machine."""
    return [{key: entry[key] for key in entry if key not in TIMES} for entry in read_log(folder)]


def assert_same(actual: Any, expected: Any) -> None:
    """Equal to the bit."""
    if isinstance(expected, Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, Mapping):
        assert set(actual) == set(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


def assert_same_run(folder: Path, expected: Path) -> None:
    saved = read_checkpoint(folder)
    assert set(saved) == {"config", "step", "pairs", "objective", "average", "optimiser"}
    assert_same(saved, read_checkpoint(expected))
    assert entries(folder) == entries(expected)
    assert_same(read_spectrum(folder), read_spectrum(expected))
    assert_same(_weights.load(folder / MODEL), _weights.load(expected / MODEL))


# Stopping and resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["A", "B", "joint"])
def test_a_run_that_is_resumed_after_every_step_equals_the_uninterrupted_one(tmp_path: Path, setting: str) -> None:
    config = config_of(setting=setting, steps=4)
    ended = run(config, tmp_path / "whole")
    assert (ended.step, ended.reason) == (4, "finished")
    for step in range(1, 5):
        part = run(config, tmp_path / "parts", resume=step > 1, max_minutes=MOMENT)
        assert (part.step, part.reason) == (step, "time")
    assert run(config, tmp_path / "parts", resume=True) == ended
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    losses = [entry["loss"] for entry in entries(tmp_path / "whole") if "loss" in entry]
    assert len(losses) == 4
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_leaves_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    config = config_of(setting="A")
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    source = Passing(photographs(), lambda made: os.kill(os.getpid(), number) if made == 3 else None)
    ended = run(config, tmp_path / "parts", source)
    assert ended.reason == "interrupted"
    assert 1 <= ended.step < config.steps
    assert ended.validation == {}
    assert read_checkpoint(tmp_path / "parts")["step"] == ended.step
    assert entries(tmp_path / "parts")[-1] == {"step": ended.step, "validation": {}, "ended": "interrupted"}
    assert int(_weights.load(tmp_path / "parts" / MODEL)[1]["step"]) == ended.step
    assert {n: signal.getsignal(n) for n in handlers} == handlers
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_validation_that_is_interrupted_is_left_and_made_up_for(tmp_path: Path, batches: int) -> None:
    """Of the first validation, at step 2, and of the last, whose batches are the third and fourth."""
    config = config_of(setting="A", steps=4, validation=ValidationConfig(every=2, pairs=2, rotations=(0, 90)))
    held_out = photographs(2, size=56)
    interrupting = Passing(held_out, lambda made: signal.raise_signal(signal.SIGINT) if made == batches else None)
    ended = train(
        config, OBJECTIVES["A"](), Sources([(photographs(), 1.0)], interrupting), tmp_path / "parts", device=CPU
    )
    at = 2 if batches < 3 else 4
    assert ended == Ended(at, "interrupted", {})
    assert interrupting.made == batches
    assert read_checkpoint(tmp_path / "parts")["step"] == at
    whole = run(config, tmp_path / "whole")
    assert run(config, tmp_path / "parts", resume=True) == whole
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_validation_is_not_repeated(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=4, validation=ValidationConfig(every=2, pairs=2, rotations=(0,)))
    held_out = Passing(photographs(2, size=56), lambda made: None)
    sources = Sources([(photographs(), 1.0)], held_out)
    for step, made in ((1, 1), (2, 3), (3, 4)):  # at the end of each part, and at step 2 itself
        train(config, OBJECTIVES["A"](), sources, tmp_path, device=CPU, resume=step > 1, max_minutes=MOMENT)
        assert held_out.made == made


@pytest.mark.parametrize(("processes", "patience"), [(1, "_BOUNCE"), (2, "_PATIENCE")])
def test_who_asks_again_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch, processes: int, patience: str) -> None:
    monkeypatch.setattr(loop, "world", lambda: processes)
    with loop._stopping() as stop:
        for _ in range(2):  # of one Ctrl-C
            signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        monkeypatch.setattr(loop, patience, -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_second_interruption_leaves_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the checkpoint of the first is written."""
    monkeypatch.setattr(loop, "_BOUNCE", -1.0)
    written = os.fsync

    def asked_again(file: int) -> None:
        written(file)
        if stopped:
            signal.raise_signal(signal.SIGINT)

    def ask(made: int) -> None:
        if made == 5:
            stopped.append(made)
            os.kill(os.getpid(), signal.SIGINT)

    stopped: list[int] = []
    monkeypatch.setattr(os, "fsync", asked_again)
    config = config_of(setting="A", steps=20, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, Passing(photographs(), ask))
    assert 2 <= read_checkpoint(tmp_path)["step"] < 5
    assert not list(tmp_path.glob(".steerers-*"))
    stopped.clear()
    assert run(config, tmp_path, resume=True).step == 20


def test_a_crash_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def fail(made: int) -> None:
        if made == 5:
            raise OSError("the disk is gone")

    config = config_of(setting="A", checkpoint_every=2)
    with pytest.raises(OSError, match="the disk is gone"):
        run(config, tmp_path / "parts", Passing(photographs(), fail))
    assert read_checkpoint(tmp_path / "parts")["step"] == 4
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_checkpoints_that_cannot_be_resumed_are_refused(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=1)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: cannot be read"):
        run(config, tmp_path, resume=True)
    run(config, tmp_path)
    with pytest.raises(ValueError, match="holds a run already"):
        run(config, tmp_path)
    for changes, message in (
        ({"steps": 2}, "steps = 1, the configuration says 2"),
        ({"seed": 1}, "seed = 0"),
        (
            {"data": DataConfig(rotations="C4", views=config.data.views)},
            "data.rotations = 'SO2', the configuration says 'C4'$",
        ),
    ):
        with pytest.raises(ValueError, match=f"cannot resume: the checkpoint was made with .*{message}"):
            run(config_of(setting="A", **{"steps": 1, **changes}), tmp_path, resume=True)


def test_a_checkpoint_with_the_names_of_older_runs_is_resumed(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=2)
    run(config, tmp_path, max_minutes=MOMENT)
    saved = read_checkpoint(tmp_path)
    saved["config"]["data"]["colmap_share"] = saved["config"]["data"].pop("colmap_fraction")
    write_checkpoint(tmp_path, saved)
    assert run(config, tmp_path, resume=True).step == 2


def test_a_run_is_not_resumed_with_another_number_of_pairs(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=2)
    run(config, tmp_path, photographs(4), max_minutes=MOMENT)
    assert read_checkpoint(tmp_path)["pairs"] == [4]
    expected = "cannot resume: the checkpoint was made with 4 training pairs, the data has 5; give the same data"
    with pytest.raises(ValueError, match=expected):
        run(config, tmp_path, photographs(5), resume=True)
    mixed = Sources([(photographs(4), 0.5), (photographs(3), 0.5)], photographs(2))
    with pytest.raises(ValueError, match="4 training pairs, the data has 4 and 3;"):
        train(config, OBJECTIVES["A"](), mixed, tmp_path, device=CPU, resume=True)
    assert run(config, tmp_path, photographs(4), resume=True).step == 2


def test_data_is_checked_and_opened_before_the_time_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    source = Passing(photographs(), lambda made: order.append("made"))
    source.open = lambda: order.append("opened")  # type: ignore[attr-defined]
    monkeypatch.setattr(loop.time, "monotonic", lambda: order.append("time") or 0.0)
    run(config_of(setting="A", steps=1), tmp_path / "a", source, max_minutes=1)
    assert order[:2] == ["opened", "time"]
    source.dense = False  # type: ignore[attr-defined]
    order.clear()
    with pytest.raises(ValueError, match="setting 'joint' trains keypoints on pairs whose warp is known everywhere"):
        run(config_of(setting="joint", steps=1), tmp_path / "b", source)
    assert not order


def test_what_does_not_train_may_change(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=2)
    run(config, tmp_path, max_minutes=MOMENT)
    moved = dataclasses.replace(config.data, path=("elsewhere",))
    changed = config_of(
        setting="A", steps=2, name="other", log_every=5, data=moved, validation=ValidationConfig(every=0, pairs=1)
    )
    assert run(changed, tmp_path, resume=True).step == 2


# A run whose loss is known --------------------------------------------------------------------------------------------


class Parabola(Objective):
    """One number that is pulled to the mean of the numbers of the pairs that are drawn."""

    def __init__(self, start: float = 4.0) -> None:
        super().__init__()
        self.steerer = None
        self.network = nn.ParameterDict({"first": nn.Parameter(torch.tensor(start)), "other": torch.zeros(())})
        self.seen: list[tuple[bool, float]] = []  # of every validation

    def networks(self) -> Mapping[str, nn.Module]:
        return {"network": self.network}

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        total = (self.network["first"] - batch.rotations0 * 0).square().sum()
        return {"square": Term(total, torch.tensor(len(batch)), 0.5)}

    def measure(self, batch: PairBatch) -> Measures:
        self.seen.append((self.training, float(self.network["first"])))
        return {"value": (float(self.network["first"]) * len(batch), len(batch))}


def numbers(config: TrainConfig, folder: Path, objective: Parabola | None = None, **options: Any) -> Parabola:
    objective = objective or Parabola()
    train(config, objective, Sources([(Numbers(7), 1.0)], Numbers(3)), folder, device=CPU, **options)
    return objective


def test_the_learning_rate_warms_up_and_falls_as_a_cosine(tmp_path: Path) -> None:
    optimiser = OptimiserConfig(learning_rate=0.5, warm_up=4)
    numbers(config_of(steps=12, optimiser=optimiser), tmp_path)
    rates = [entry["learning_rate"] for entry in entries(tmp_path) if "loss" in entry]
    expected = [0.5 * k / 4 for k in (1, 2, 3, 4)]
    expected += [0.25 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]
    assert rates == pytest.approx(expected)


def test_learning_rates_go_by_the_longest_beginning_of_a_name() -> None:
    rates = {"descriptor": 0.1, "descriptor.trunk": 0.2, "steerer": 0.3}
    objective = descriptor_objective("B")
    optimiser = loop._optimiser(objective, OptimiserConfig(learning_rate=9.0, learning_rates=rates), CPU)
    found = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in objective.named_parameters():
        expected = 0.3 if "steerer" in name else 0.2 if ".trunk." in name else 0.1
        assert found.pop(id(parameter)) == expected
    assert not found
    with pytest.raises(ValueError, match="nothing is trained"):
        loop._optimiser(Parabola().requires_grad_(False), OptimiserConfig(), CPU)


def lengths(objective: Objective) -> dict[str, float]:
    return {
        name: float(torch.cat([p.grad.flatten() for p in network.parameters()]).norm())
        for name, network in objective.networks().items()
    }


@pytest.mark.parametrize(("most", "expected"), [(0.5, 0.5), (0.0, None), (1e6, None)])
def test_clipping_leaves_the_steerer_alone(most: float, expected: float | None) -> None:
    objective = descriptor_objective("B")
    for index, parameter in enumerate(objective.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * index)
    before = lengths(objective)
    assert float(loop._clip(objective, most)) == pytest.approx(before["descriptor"])
    after = lengths(objective)
    assert after["steerer"] == before["steerer"]
    assert after["descriptor"] == pytest.approx(before["descriptor"] if expected is None else expected, rel=1e-4)


def test_a_steerer_that_is_trained_alone_is_measured_and_not_clipped() -> None:
    objective = descriptor_objective("A")
    objective.steerer.generator().grad = torch.full((8, 8), 2.0)
    assert float(loop._clip(objective, 0.01)) == pytest.approx(16.0)
    assert lengths(objective) == {"steerer": pytest.approx(16.0)}


def test_the_average_follows_the_weights() -> None:
    objective = Parabola(1.0)
    state = loop._State(config_of(optimiser=OptimiserConfig(ema=0.5)), objective, CPU)
    expected = 1.0
    for step, value in enumerate([3.0, -2.0, 5.0, 0.5, 7.0, 1.0, 2.0, 9.0, 4.0, 6.0], start=1):
        objective.network["first"].data.fill_(value)
        state.step = step
        state.update_average()
        decay = min(0.5, (1 + step) / (10 + step))  # the start is soon forgotten
        expected = decay * expected + (1 - decay) * value
        assert float(state.average["network.first"]) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(OSError), state.averaged():  # noqa: PT011, PT012 -- what matters is what is left
        assert objective.network["first"].item() == pytest.approx(expected, rel=1e-6)
        raise OSError
    assert objective.network["first"].item() == 6.0


def test_the_average_of_a_learned_steerer_moves_once_a_step() -> None:
    objective = descriptor_objective("B")
    state = loop._State(config_of(optimiser=OptimiserConfig(ema=0.5)), objective, CPU)
    start = objective.steerer.generator().detach().clone()
    objective.steerer.generator().data.add_(1.0)
    state.step = 100
    state.update_average()
    with state.averaged():
        torch.testing.assert_close(objective.steerer.generator().detach(), start + 0.5)
    torch.testing.assert_close(objective.steerer.generator().detach(), start + 1.0)


def test_validation_uses_the_average_and_gives_the_weights_back(tmp_path: Path) -> None:
    config = config_of(
        steps=4,
        optimiser=OptimiserConfig(learning_rate=0.5, ema=0.9),
        validation=ValidationConfig(every=2, pairs=5, rotations=(0,)),
    )
    objective = numbers(config, tmp_path)
    plain = numbers(dataclasses.replace(config, optimiser=OptimiserConfig(learning_rate=0.5)), tmp_path / "plain")
    assert float(objective.network["first"].detach()) == float(
        plain.network["first"].detach()
    )  # averaging does not train
    assert objective.training
    values = [value for training, value in objective.seen if not training]
    assert len(values) == len(objective.seen) == 3 * 2  # in batches of 2: 2, 2, 1 pairs, after steps 2 and 4
    saved = read_checkpoint(tmp_path)
    assert values[-1] == float(saved["average"]["network.first"]) != float(objective.network["first"].detach())
    assert plain.seen[-1][1] == float(plain.network["first"])
    assert [e["validation"] for e in entries(tmp_path) if "validation" in e] == [
        {"value": pytest.approx(value), "value@0": pytest.approx(value)} for value in (values[0], values[-1])
    ]


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    config = config_of(steps=6, checkpoint_every=2, log_every=100, optimiser=OptimiserConfig(learning_rate=0.1))

    class Breaking(Parabola):
        def forward(self, batch: PairBatch, progress: float) -> Terms:
            (term,) = super().forward(batch, progress).values()
            return {"square": term._replace(total=term.total * (math.nan if progress > 0.4 else 1.0))}

    expected = (
        r"at step 4 the loss is not finite \(square, their sum\); the last checkpoint is from step 2; try .* lower"
    )
    with pytest.raises(FloatingPointError, match=expected):
        numbers(config, tmp_path, Breaking())
    assert read_checkpoint(tmp_path)["step"] == 2
    with pytest.raises(FloatingPointError, match="at step 4"):
        numbers(dataclasses.replace(config, log_every=1), tmp_path, Breaking(), resume=True)
    assert [entry["step"] for entry in entries(tmp_path) if "loss" in entry] == [3]
    with pytest.raises(FloatingPointError, match=r"the loss is not finite.*there is no checkpoint yet"):
        numbers(dataclasses.replace(config, checkpoint_every=9), tmp_path / "other", Breaking())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_goes_back_through_a_term_that_is_not_finite(tmp_path: Path, value: float) -> None:
    """Whatever the others are: on a CPU, NaN keypoints would end the process there."""

    class Breaking(Parabola):
        def forward(self, batch: PairBatch, progress: float) -> Terms:
            terms = super().forward(batch, progress)
            total = self.network["other"] + value
            total.register_hook(lambda gradient: pytest.fail("the backward pass was begun"))
            return terms | {"keypoints": Term(total, torch.tensor(1), 0.0)}

    with pytest.raises(FloatingPointError, match=r"at step 1 the loss is not finite \(keypoints, their sum\)"):
        numbers(config_of(steps=2, log_every=100), tmp_path, Breaking())


def test_a_run_that_diverges_ends_in_words(tmp_path: Path) -> None:
    """With the networks themselves, of which the backward pass would crash."""
    config = config_of(setting="joint", steps=6, log_every=100, optimiser=OptimiserConfig(learning_rate=1e20))
    with pytest.raises(FloatingPointError, match=r"at step 2 .*lower optimiser.learning_rate \(it is 1e\+20\)"):
        run(config, tmp_path)


def test_weights_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    optimiser = OptimiserConfig(learning_rate=1e30, weight_decay=1e6)  # the most that there may be
    with pytest.raises(FloatingPointError, match=r"at step 1 objective\.network\.first is not finite; there is no"):
        numbers(config_of(steps=2, checkpoint_every=1, optimiser=optimiser), tmp_path, Parabola(1e3))
    assert not list(tmp_path.glob("*.pt"))


def test_a_gradient_that_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    class Steep(Parabola):
        def forward(self, batch: PairBatch, progress: float) -> Terms:
            return {
                "root": Term((self.network["first"] - self.network["first"].detach()).abs().sqrt(), torch.tensor(1))
            }

    for config in (config_of(steps=1), config_of(steps=1, log_every=9)):
        with pytest.raises(FloatingPointError, match="at step 1 the gradient has the length nan"):
            numbers(config, tmp_path, Steep())


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_a_run_starts_from_is_finite(tmp_path: Path, value: float) -> None:
    objective = joint_objective()
    objective.network.trunk.stem.weight.data[1, 2, 0, 1] = value
    config = dataclasses.replace(config_of(setting="joint", steps=1), model=ModelConfig(weights="mine.pth"))
    expected = r"network\.trunk\.stem\.weight holds NaN or infinite numbers; the weights that .* 'mine\.pth'"
    with pytest.raises(ValueError, match=expected):
        run(config, tmp_path, objective=objective)
    with pytest.raises(ValueError, match=r"network\.first holds NaN"):
        numbers(config_of(steps=1), tmp_path, Parabola(value))


def test_a_checkpoint_that_is_not_finite_is_not_resumed(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=2)
    run(config, tmp_path, max_minutes=MOMENT)
    saved = read_checkpoint(tmp_path)
    saved["average"]["steerer.action.weight"][0, 0] = math.nan
    write_checkpoint(tmp_path, saved)
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.pt: average\.steerer\.action\.weight holds NaN or infinite"
    ):
        run(config, tmp_path, resume=True)


def test_a_checkpoint_of_other_networks_is_refused(tmp_path: Path) -> None:
    config = config_of(setting="A", steps=2)
    run(config, tmp_path, max_minutes=MOMENT)
    saved = read_checkpoint(tmp_path)
    saved["objective"].popitem()
    write_checkpoint(tmp_path, saved)
    with pytest.raises(CheckpointError, match=r"(?s)the checkpoint has other networks: .*Missing key"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.nan, math.inf])
def test_minutes_are_positive(tmp_path: Path, minutes: float) -> None:
    with pytest.raises(ValueError, match="max_minutes must be a positive number"):
        numbers(config_of(steps=1), tmp_path, max_minutes=minutes)


def test_a_run_says_from_its_first_step_how_long_it_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a log, by lines; though no step is logged."""
    caplog.set_level("INFO")
    config = config_of(steps=50_000, log_every=1000, checkpoint_every=1)
    numbers(config, tmp_path, max_minutes=MOMENT)
    told = caplog.messages
    assert told[0] == "training"
    assert re.fullmatch(r"step 1 of 50,000, .* a step, about .* left", told[1])
    assert told[2:] == ["validating"]


def test_the_log_gives_terms_without_and_the_loss_with_their_weights(tmp_path: Path) -> None:
    numbers(config_of(steps=1), tmp_path)
    (entry,) = [entry for entry in entries(tmp_path) if "loss" in entry]
    assert (entry["loss"], entry["square"], entry["gradient"]) == (8.0, 16.0, 4.0)


# Several processes ----------------------------------------------------------------------------------------------------


class Still(JointObjective):
    """Without statistics of batches, which processes do not share on a CPU."""

    def train(self, mode: bool = True) -> Still:
        super().train(mode)
        self.network.eval()
        return self


class Tracks(Passing):
    """Pairs of which the warp is known at some points alone, so that keypoints are not trained."""

    def make(self, *arguments: Any) -> PairBatch:
        batch = self.source.make(*arguments)
        points = torch.tensor([[20.0, 20.0], [28.0, 24.0], [24.0, 30.0]]).expand(len(batch), -1, -1)
        there, seen = batch.warp.forward(points)
        there = there.masked_fill(~seen[..., None], math.nan)
        return dataclasses.replace(batch, anchors=(points, there), dense=False)


def train_both(folder: Path) -> None:
    """Setting A, and a network by two sources of which the second does not train keypoints."""
    config = config_of(setting="A", batch=4, steps=3, validation=ValidationConfig(every=0, pairs=1, rotations=(0,)))
    run(config, folder / "A")
    objective = Still(compact(), small_steerer(), OPTIONS, KeypointOptions(area=40.0))
    config = dataclasses.replace(config, setting="joint", steps=5)
    sources = Sources([(photographs(), 0.5), (Tracks(photographs(), lambda _: None), 0.5)], photographs(1))
    train(config, objective, sources, folder / "joint", device=CPU)


class BreakingAtOne(Parabola):
    """Of which the first process has a loss and the second none."""

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        (term,) = super().forward(batch, progress).values()
        return {"square": term._replace(total=term.total + (math.nan if dist.get_rank() == 1 else 0.0))}


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        with pytest.raises(FloatingPointError, match=r"at step 1 the loss is not finite \(square, their sum\)"):
            numbers(config_of(), Path(folder) / "broken", BreakingAtOne())
        train_both(Path(folder) / "two")
    finally:
        dist.destroy_process_group()


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    train_both(tmp_path / "one")
    kinds = set()
    for name in ("A", "joint"):
        two, one = entries(tmp_path / "two" / name), entries(tmp_path / "one" / name)
        assert [entry["step"] for entry in two] == [entry["step"] for entry in one]
        for entry, expected in zip(two, one, strict=True):
            kinds.add(tuple(expected))
            if "loss" in expected:
                # The gradient is a sum of large terms of either sign in another order; the losses are what must agree.
                assert entry.pop("gradient") == pytest.approx(expected.pop("gradient"), rel=1e-4)
                assert entry == pytest.approx(expected, rel=1e-5, abs=1e-7)
        (saved, expected) = (read_checkpoint(tmp_path / folder / name) for folder in ("two", "one"))
        for key, value in expected["objective"].items():
            if key != SHIFT:
                torch.testing.assert_close(saved["objective"][key], value, rtol=1e-3, atol=1e-4)
    assert len([kind for kind in kinds if "loss" in kind]) == 2  # of the joint run: with keypoints, and without


# Validation -----------------------------------------------------------------------------------------------------------


def test_validation_does_not_depend_on_the_batch() -> None:
    source = photographs(3, size=56)
    found = []
    for batch in (1, 2, 5):
        config = config_of(batch=batch, validation=ValidationConfig(pairs=5, rotations=(0, 90)))
        found.append(validate(config, descriptor_objective("B"), source, CPU))
    assert set(found[0]) == {"nll", "nll@0", "nll@90", "accuracy", "accuracy@0", "accuracy@90"}
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-4)


def test_rotations_are_those_that_the_steerer_knows() -> None:
    validation = ValidationConfig(rotations=(0, 45, 90, 120, 180))
    for steerer, rotations, expected in (
        (Steerer.spread(8, 2), "SO2", [0, 45, 90, 120, 180]),
        (Steerer.perm(8, "C4"), "C4", [0, 90, 180]),
        (Steerer.from_spec("8x1", "C2"), "SO2", [0, 180]),
        (None, "joint-C4", [0, 90, 180]),
        (None, "joint-SO2", [0, 45, 90, 120, 180]),
    ):
        config = config_of(validation=validation, data=DataConfig(rotations=rotations))
        assert _held_out_rotations(config, steerer) == expected


@pytest.mark.parametrize(("rotations", "both"), [("SO2", False), ("joint-SO2", True)])
def test_the_second_views_of_validation_are_rotated(rotations: Any, both: bool) -> None:
    config = config_of(data=DataConfig(rotations=rotations))
    batch = _held_out_batch(config, photographs(), 0, 90, CPU)
    assert batch.rotations1.tolist() == [math.pi / 2] * 2
    assert batch.rotations0.tolist() == ([math.pi / 2] * 2 if both else [0.0] * 2)


@pytest.mark.parametrize(
    ("count", "pairs", "expected"),
    [(12, 4, [0, 3, 6, 9]), (5, 3, [0, 1, 3]), (3, 3, [0, 1, 2]), (2, 5, [0, 0, 0, 1, 1])],
)
def test_pairs_are_spread_over_the_source(count: int, pairs: int, expected: list[int]) -> None:
    source = Numbers(count)
    objective = descriptor_objective("B").train()
    modes = []

    def measure(batch: PairBatch) -> Measures:
        modes.append(objective.training)
        return {"pairs": (float(len(batch)), 1.0), "nothing": (0.0, 0.0)}

    objective.measure = measure  # type: ignore[method-assign]
    config = config_of(batch=2, validation=ValidationConfig(pairs=pairs, rotations=(0,)))
    measured = validate(config, objective, source, CPU)
    assert [index for batch in source.drawn for index in batch] == expected
    assert measured == {"pairs": pytest.approx(pairs / len(modes)), "pairs@0": pytest.approx(pairs / len(modes))}
    assert not any(modes)
    assert objective.training
    objective.eval()
    validate(config, objective, source, CPU)
    assert not objective.training


# Validation by kind ---------------------------------------------------------------------------------------------------

KINDS: tuple[Kind, ...] = get_args(Kind)


def by_kind(kinds: Sequence[Kind], pairs: int = 2) -> Sources:
    held_out = photographs(2, size=56)
    return Sources([(photographs(), 1.0)], held_out, {kind: kind_source(kind, held_out, pairs) for kind in kinds})


def test_every_kind_gives_a_record(tmp_path: Path) -> None:
    config = config_of(setting="joint", steps=4, validation=ValidationConfig(every=2, pairs=2, rotations=(0,)))
    plain = run(config, tmp_path / "plain")
    ended = train(config, joint_objective(), by_kind(KINDS), tmp_path / "kinds", device=CPU)
    log = entries(tmp_path / "kinds")
    assert [entry for entry in log if "kind" not in entry] == entries(tmp_path / "plain")
    for step in (2, 4):
        records = [entry for entry in log if entry["step"] == step and "kind" in entry]
        assert [entry["kind"] for entry in records] == list(KINDS)
        for entry in records:
            names = {f"{entry['kind']}/{name}" for name in ("nll", "accuracy", "repeatability")}
            assert set(entry["validation"]) <= names
            assert f"{entry['kind']}/repeatability" in entry["validation"]
            assert entry.get("ended") == ("finished" if step == 4 else None)
    last = {name: value for entry in records for name, value in entry["validation"].items()}
    assert ended.validation == plain.validation | last
    assert read_log(tmp_path / "kinds")[-1]["kind"] == KINDS[-1]


def test_a_run_with_kinds_is_resumed_as_any(tmp_path: Path) -> None:
    kinds: tuple[Kind, ...] = ("plain", "tilt")
    config = config_of(setting="A", steps=4, validation=ValidationConfig(every=2, pairs=2, rotations=(0,)))
    whole = train(config, OBJECTIVES["A"](), by_kind(kinds), tmp_path / "whole", device=CPU)
    for step in range(1, 5):
        options: dict[str, Any] = {"resume": step > 1, "max_minutes": MOMENT}
        train(config, OBJECTIVES["A"](), by_kind(kinds), tmp_path / "parts", device=CPU, **options)
    resumed = train(config, OBJECTIVES["A"](), by_kind(kinds), tmp_path / "parts", device=CPU, resume=True)
    assert resumed == whole
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    interrupted = by_kind(kinds)
    tilted = Passing(interrupted.kinds["tilt"], lambda made: signal.raise_signal(signal.SIGINT) if made == 1 else None)
    sources = dataclasses.replace(interrupted, kinds={**interrupted.kinds, "tilt": tilted, "more": tilted})
    ended = train(config, OBJECTIVES["A"](), sources, tmp_path / "stopped", device=CPU)
    assert ended == Ended(2, "interrupted", {})
    assert tilted.made == 1  # the rest is left
    assert [entry for entry in entries(tmp_path / "stopped") if "validation" in entry] == [
        {"step": 2, "validation": {}, "ended": "interrupted"}
    ]
    assert train(config, OBJECTIVES["A"](), by_kind(kinds), tmp_path / "stopped", device=CPU, resume=True) == whole
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_kinds_are_measured_alike_each_time_and_whatever_the_batch() -> None:
    objective, kinds = joint_objective().train(), by_kind(("plain", "scale", "blur"), 3).kinds
    found = []
    for batch in (1, 2, 2):
        config = config_of(setting="joint", batch=batch, validation=ValidationConfig(pairs=3))
        found.append(validate_kinds(config, objective, kinds, CPU))
    assert list(found[0]) == ["plain", "scale", "blur"]
    assert found[1] == found[2]
    for kind, values in found[0].items():
        assert values == pytest.approx(found[1][kind], rel=1e-3)
    assert found[0]["plain"]["plain/repeatability"] != found[0]["blur"]["blur/repeatability"]
    assert objective.training


def test_what_needs_a_dense_warp_is_left_out_where_there_is_none() -> None:
    config = config_of(setting="joint", validation=ValidationConfig(pairs=2))
    kinds = {"dense": photographs(2), "tracks": Tracks(photographs(2), lambda _: None)}
    found = validate_kinds(config, joint_objective(), kinds, CPU)
    assert set(found["dense"]) == {"dense/nll", "dense/accuracy", "dense/repeatability"}
    assert set(found["tracks"]) == {"tracks/nll", "tracks/accuracy"}


def test_a_detector_is_not_validated_where_only_tracks_are_known(tmp_path: Path) -> None:
    tracks = Tracks(photographs(2), lambda _: None)
    tracks.dense, tracks.root = False, "church"  # type: ignore[attr-defined]
    sources = Sources([(photographs(), 1.0)], photographs(2), {"church": tracks})
    config = config_of(setting="detector")
    with pytest.raises(ValueError, match=r"not every photograph of church has a depth map, .*'detector' measures"):
        train(config, joint_objective(), sources, tmp_path, device=CPU)
    assert not tmp_path.joinpath("log.jsonl").exists()


@pytest.mark.parametrize(
    ("rotations", "steerer", "order"),
    [
        ("SO2", Steerer.spread(8, 2), 0),
        ("SO2", None, 0),
        ("SO2", Steerer.from_spec("8x1", "C2"), 2),
        ("C4", Steerer.spread(8, 2), 4),
        ("C4", Steerer.perm(8, "C8"), 4),
        ("joint-C4", None, 4),
        ("joint-SO2", None, 0),
        ("none", None, 1),
    ],
)
def test_each_pair_of_a_kind_has_an_angle_of_its_own(rotations: Any, steerer: Steerer | None, order: int) -> None:
    config = config_of(batch=16, data=DataConfig(rotations=rotations), validation=ValidationConfig(pairs=40))
    parts = [_turned_batch(config, Numbers(40), start, steerer, CPU) for start in (0, 16, 32)]
    first, second = (torch.cat([getattr(part, name) for part in parts]) for name in ("rotations0", "rotations1"))
    assert torch.equal(first, second if rotations.startswith("joint") else torch.zeros_like(second))
    assert len(second) == 40
    assert 0 <= float(second.min()) <= float(second.max()) < 2 * math.pi
    turns = second * (order or 1) / (2 * math.pi)
    if order:
        assert set(turns.tolist()) == set(range(order))
    else:
        assert len(set(turns.tolist())) == 40
        assert float(turns.max() - turns.min()) > 0.9
    again = _turned_batch(dataclasses.replace(config, batch=1), Numbers(40), 17, steerer, CPU)
    assert again.rotations1.tolist() == second[17:18].tolist()
