"""The folder of a run: checkpoints, the log, the model that is left, and what is no run."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steerers._weights import load, save
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.training.build import build_objective
from steerers.training.config import ModelConfig, SteererConfig, TrainConfig, parse_config, to_dict
from steerers.training.run_folder import (
    CHECKPOINT,
    CONFIG,
    LOG,
    MODEL,
    SPECTRUM,
    CheckpointError,
    RunLog,
    _recipe,
    check_folder,
    check_resumable,
    export_model,
    load_run,
    load_steerer,
    locked,
    not_finite,
    read_checkpoint,
    read_log,
    read_spectrum,
    write_checkpoint,
)
from steerers.training.spectrum import read_records
from training.runs import fake_run, small_config
from training.tiny import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")

# Checkpoints ----------------------------------------------------------------------------------------------------------


def state() -> dict[str, Any]:
    return {
        "step": 7,
        "config": {"rate": 0.1, "paths": ("a", "b"), "name": None},
        "weights": {"x": torch.randn(3, 2), "n": torch.tensor(4), "half": torch.ones(2, dtype=torch.bfloat16)},
    }


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    written = state()
    write_checkpoint(tmp_path, written)
    read = read_checkpoint(tmp_path)
    assert (read["step"], read["config"]) == (7, written["config"])
    for name, value in written["weights"].items():
        assert torch.equal(read["weights"][name], value)
        assert read["weights"][name].dtype == value.dtype
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]  # nothing temporary is left


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        write_checkpoint(tmp_path, {"step": lambda: 2})
    assert read_checkpoint(tmp_path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT]


@given(st.data())
def test_a_damaged_checkpoint_is_named_and_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write_checkpoint(folder, state())
    path = folder / CHECKPOINT
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: .*(damaged|not a checkpoint)"):
        read_checkpoint(folder)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: cannot be read \(No such file"):
        read_checkpoint(tmp_path)
    (tmp_path / "folder" / CHECKPOINT).mkdir(parents=True)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(tmp_path / "folder")
    torch.save({"step": 1}, tmp_path / CHECKPOINT)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: not a checkpoint"):
        read_checkpoint(tmp_path)
    write_checkpoint(tmp_path, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="it holds list"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (str(tmp_path / "ran"),)

    write_checkpoint(tmp_path, {"step": Harmful()})
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: a damaged checkpoint"):
        read_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    assert not_finite(state()) is None
    assert not_finite({}) is None
    spoiled = state() | {"optimiser": {"state": {3: {"exp_avg": torch.tensor([0.0, value])}}}}
    assert not_finite(spoiled) == "optimiser.state.3.exp_avg"
    write_checkpoint(tmp_path, spoiled)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: optimiser\.state\.3\.exp_avg holds NaN or infinite"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_without_its_parts_is_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot resume: the checkpoint has no 'objective'; another version"):
        check_resumable({"config": {}, "step": 1}, small_config(), [4])


# The lock -------------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from filelock import FileLock
lock = FileLock(Path(sys.argv[1]) / ".lock")
lock.acquire()
print("held", flush=True)
time.sleep(20)
"""


def test_one_process_at_a_time_and_none_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerers.training.run_folder._PATIENCE", 0.0)
    run = tmp_path / "runs" / "mine"
    with locked(run):
        assert run.is_dir()
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for use in (lambda: locked(run).__enter__(), lambda: check_folder(run, resume=False)):
            with pytest.raises(ValueError, match=r"another process trains in .*mine: wait until it ends, or name"):
                use()
        other.send_signal(signal.SIGKILL)
    check_folder(run, resume=False)
    with locked(run):
        pass


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("the file system has no locks")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with locked(tmp_path):
        pass


# The log --------------------------------------------------------------------------------------------------------------


def eigenvalues(step: int) -> Tensor:
    return torch.complex(torch.full((4,), float(step)), torch.arange(4.0))


def run(folder: Path, start: int, end: int, ended: str | None = None) -> None:
    """The steps after ``start`` up to ``end``: every one logged, every second with eigenvalues."""
    with RunLog(folder, start) as log:
        if start == 0:
            log.spectrum(0, eigenvalues(0))
        for step in range(start + 1, end + 1):
            log.step(step, {"loss": 1 / step}, {"data_ms": 1.0, "wait_ms": 0.5, "network_ms": 2.0})
            if step % 2 == 0:
                log.spectrum(step, eigenvalues(step))
            if step % 4 == 0:
                log.validation(step, {"nll": 2.0, "nll@90": 3.0})
        if ended:
            log.validation(end, {"nll": 1.0}, ended=ended)


def test_every_line_is_an_entry(tmp_path: Path) -> None:
    run(tmp_path, 0, 5, "finished")
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == read_log(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4, 5, 5]
    assert lines[4] == {"step": 4, "validation": {"nll": 2.0, "nll@90": 3.0}}
    assert lines[6] == {"step": 5, "validation": {"nll": 1.0}, "ended": "finished"}
    assert {"step", "loss", "data_ms", "wait_ms", "network_ms", "seconds"} == set(lines[0])


def test_lines_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    with RunLog(tmp_path, 0) as log:
        log.step(1, {"loss": 1.0}, {"data_ms": 1.0, "wait_ms": 0.5, "network_ms": 2.0})
        assert len(read_log(tmp_path)) == 1


def without_times(folder: Path) -> list[dict[str, object]]:
    return [{key: entry[key] for key in entry if key != "seconds"} for entry in read_log(folder)]


@pytest.mark.parametrize(("crashed", "checkpoint"), [(5, 5), (6, 4), (9, 8), (3, 1)])
def test_a_resumed_log_is_that_of_the_uninterrupted_run(tmp_path: Path, crashed: int, checkpoint: int) -> None:
    run(tmp_path / "whole", 0, 10, "finished")
    run(tmp_path / "parts", 0, crashed, "interrupted")
    run(tmp_path / "parts", checkpoint, 10, "finished")
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    (steps, values), (expected_steps, expected) = read_spectrum(tmp_path / "parts"), read_spectrum(tmp_path / "whole")
    assert steps == expected_steps == [0, 2, 4, 6, 8, 10]
    assert torch.equal(values, expected)


def test_a_line_that_was_not_finished_is_dropped(tmp_path: Path) -> None:
    run(tmp_path, 0, 3)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 4, "lo')
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 2, 3]
    run(tmp_path, 3, 5)
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 2, 3, 4, 4, 5]


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    run(tmp_path, 0, 3)
    lines = (tmp_path / LOG).read_text().splitlines()
    (tmp_path / LOG).write_text("\n".join([lines[0], "{damaged", lines[2]]) + "\n")
    with pytest.raises(ValueError, match=r"log\.jsonl: line 2 is damaged"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    "line",
    [b"{damaged", b"[1, 2]", b"3", b'{"loss": 1.0}', b'{"step": "two"}', b"\xff\xfe", b"[" * 100_000, b""],
    ids=["half", "list", "number", "stepless", "text", "bytes", "deep", "empty"],
)
def test_a_resumed_run_goes_on_with_what_is_whole_of_its_log(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, 0, 3)
    lines = (tmp_path / LOG).read_bytes().splitlines()
    (tmp_path / LOG).write_bytes(b"\n".join([lines[0], line, lines[2]]) + b"\n")
    with pytest.raises(ValueError, match=r"log\.jsonl: line 2 is damaged"):
        read_log(tmp_path)
    run(tmp_path, 3, 4)
    (said,) = caplog.messages
    assert re.search(r"log\.jsonl: line 2 is damaged \(.*\); 1 line is left out$", said)
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 3, 4, 4]


def cut(path: Path) -> object:
    whole = path.read_bytes()
    return path.write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    "spoil",
    [
        cut,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no zip at all"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"eigenvalues", b"eigenvalueS")),
        lambda path: np.savez(path, steps=np.array(["a"]), eigenvalues=np.ones((1, 4), np.complex64)),
        lambda path: np.savez(path, steps=np.arange(3), eigenvalues=np.full((3, 4), np.nan, np.complex64)),
    ],
)
def test_a_damaged_spectrum_is_begun_anew(
    tmp_path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, 0, 4)
    spoil(tmp_path / SPECTRUM)
    run(tmp_path, 4, 8)
    (line,) = caplog.messages
    assert re.search(
        r"spectrum\.npz: (a damaged spectrum|damaged|it has no|it holds).*; eigenvalues are recorded anew from step 4",
        line,
    )
    steps, values = read_spectrum(tmp_path)
    assert steps == [6, 8]
    assert torch.equal(values[1], eigenvalues(8))


def test_a_full_disk_is_named_wherever_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_checkpoint(tmp_path, {"step": 1})
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match=r"the disk is full .*checkpoint\.pt'"):
            write_checkpoint(tmp_path, {"step": 2})
    assert read_checkpoint(tmp_path) == {"step": 1}
    with RunLog(tmp_path, 0) as log:
        file, log.file = log.file, open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115
        with pytest.raises(OSError, match=r"the disk is full .*/dev/full'"):
            log.step(1, {"loss": 1.0}, {})
        with contextlib.suppress(OSError):
            log.file.close()
        log.file = file
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, LOG}


def test_a_new_run_forgets_the_old_one(tmp_path: Path) -> None:
    run(tmp_path, 0, 4)
    with RunLog(tmp_path, 0):
        pass
    assert read_log(tmp_path) == []
    assert not (tmp_path / SPECTRUM).exists()


def test_the_spectrum_is_a_file_of_arrays(tmp_path: Path) -> None:
    run(tmp_path, 0, 4)
    with np.load(tmp_path / SPECTRUM) as file:
        assert file["steps"].tolist() == [0, 2, 4]
        assert file["eigenvalues"].dtype == np.complex64
        assert file["eigenvalues"].shape == (3, 4)
    steps, values = read_spectrum(tmp_path)
    assert torch.equal(values[steps.index(2)], eigenvalues(2))


def test_the_configuration_lies_beside(tmp_path: Path) -> None:
    with RunLog(tmp_path / "a" / "b", 0) as log:
        log.write_config({"name": "é", "views": {"scale": (0.8, 1.3)}})
    assert json.loads((tmp_path / "a" / "b" / CONFIG).read_text()) == {"name": "é", "views": {"scale": [0.8, 1.3]}}


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", 0, silent=True) as log:
        log.write_config({})
        log.step(1, {"loss": 1.0}, {"data_ms": 0.0, "wait_ms": 0.0, "network_ms": 0.0})
        log.validation(1, {})
        log.flush()
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no log\.jsonl"):
        read_log(tmp_path)
    with pytest.raises(ValueError, match=r"has no spectrum\.npz"):
        read_spectrum(tmp_path)


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="TensorBoard is not installed"):
        RunLog(tmp_path, 0, tensorboard=True)


# The model ------------------------------------------------------------------------------------------------------------


def exported(
    folder: Path, values: dict[str, Any], dtype: torch.dtype | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, str], TrainConfig]:
    config = parse_config({"model": {"compact": {"dim": 32, "hidden": 32}, "detector": "upright-sift"}, **values})
    export_model(build_objective(config), config, 12, folder, dtype)
    tensors, metadata = load(folder / MODEL)
    return tensors, metadata, config


def test_weights_and_steerer_travel_together(tmp_path: Path) -> None:
    tensors, metadata, config = exported(tmp_path, {"setting": "joint"})
    network = build_objective(config).networks()["network"]
    for name, value in network.state_dict().items():
        assert torch.equal(tensors[f"network.{name}"], value)
    assert (metadata["kind"], metadata["setting"], metadata["step"]) == ("compact", "joint", "12")
    steerer = Steerer.load(tmp_path / MODEL)
    assert not steerer.learnable
    assert str(steerer.representation) == str(Steerer.spread(32).representation)


def test_a_learned_steerer_comes_back(tmp_path: Path) -> None:
    values = {"setting": "B", "steerer": {"group": "C4", "kind": "random", "learn": True}, "data": {"rotations": "C4"}}
    tensors, _, config = exported(tmp_path, values)
    assert any(name.startswith("descriptor.") for name in tensors)
    steerer, expected = Steerer.load(tmp_path / MODEL), build_objective(config).steerer
    assert expected is not None
    assert steerer.learnable
    assert torch.equal(steerer.generator(), expected.generator())


def test_a_frozen_descriptor_and_detector_stay_out(tmp_path: Path) -> None:
    values = {"setting": "A", "steerer": {"group": "C4", "kind": "random", "learn": True}, "data": {"rotations": "C4"}}
    tensors, _, _ = exported(tmp_path, values)
    assert list(tensors) == ["steerer.generator"]


def test_the_prototype_is_written(tmp_path: Path) -> None:
    values = {"setting": "A", "steerer": {"kind": "freq1"}, "matching": {"prototype": True}}
    tensors, _, _ = exported(tmp_path, values)
    assert sorted(tensors) == ["prototype.prototype", "steerer.frequencies"]
    assert tensors["prototype.prototype"].shape == (32,)


def test_without_a_steerer_there_is_none(tmp_path: Path) -> None:
    values = {"setting": "C", "steerer": {"kind": "none"}, "data": {"rotations": "joint-C4"}}
    tensors, metadata, _ = exported(tmp_path, values)
    assert not any("steerer." in key for key in (*tensors, *metadata))
    with pytest.raises(ValueError, match="does not hold a steerer"):
        Steerer.load(tmp_path / MODEL)


def test_the_recipe_says_all_but_where_the_data_lay(tmp_path: Path) -> None:
    values = {"data": {"path": ["/home/me/photographs"], "colmap": ["/home/me/street"]}}
    _, metadata, config = exported(tmp_path, values)
    assert "/home/me" not in json.dumps(metadata)
    recipe = json.loads(metadata["config"])
    again = to_dict(parse_config(recipe))
    for part in (again, expected := to_dict(config)):
        part["data"].pop("path"), part["data"].pop("colmap")
    assert again == expected
    before = "/home/me/runs/before.safetensors"
    started = replace(config, model=replace(config.model, weights=before, detector_weights=before))
    for setting, told in (("joint", "before.safetensors"), ("B", "before.safetensors"), ("A", before)):
        recipe = _recipe(replace(started, setting=setting))["model"]
        assert recipe["weights"] == told  # a frozen network is read again
        assert recipe["detector_weights"] == before


def test_half_precision_halves_the_floating_point_weights_alone(tmp_path: Path) -> None:
    tensors, _, _ = exported(tmp_path, {"setting": "joint"}, torch.float16)
    weights = {name: value for name, value in tensors.items() if name.startswith("network.")}
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float16}
    assert all(not value.is_floating_point() for name, value in weights.items() if "num_batches" in name)


# Runs read back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_a_run_is_read_back(trained: dict[str, tuple[Path, dict[str, float]]], group: str) -> None:
    folder, _ = trained[group]
    records, run = read_records(folder), load_run(folder)
    assert (records.name, records.group, records.steps) == (group, Group.parse(group), [0, 1, 2, 3, 4])
    assert records.values.shape == (5, SMALL.dim)
    assert run.step == 4
    tensors, _ = load(folder / MODEL)
    state = run.objective.state_dict()
    for name, value in tensors.items():
        if name != "steerer.generator":
            torch.testing.assert_close(state[name], value)
    steerer, step = load_steerer(folder)
    assert step == 4
    assert run.objective.steerer is not None
    torch.testing.assert_close(run.objective.steerer.generator(), steerer.generator())
    assert not run.objective.training


VALUES = torch.tensor([[1, -1, 1j, -1j], [0.5, -0.5, 0.5j, -0.5j]])


def _config(**changes: Any) -> Callable[[Path], object]:
    return lambda run: (run / CONFIG).write_text(json.dumps(to_dict(small_config("C4", **changes))))


def _records(**arrays: Any) -> Callable[[Path], object]:
    return lambda run: np.savez(run / SPECTRUM, **arrays)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "there is no such run"),
        (lambda run: (run / CONFIG).unlink(), "no config.json: it is not the folder of a run"),
        (lambda run: (run / CONFIG).write_text("{"), "config.json: damaged"),
        (lambda run: (run / CONFIG).write_bytes(b"\xff"), "config.json: damaged"),
        (lambda run: (run / CONFIG).write_text("[]"), "config.json: not the configuration of a run"),
        (lambda run: (run / CONFIG).write_text('{"depth": 3}'), "config.json: .*this version.*unknown key 'depth'"),
        (
            _config(steerer=SteererConfig("C4", "perm", False)),
            "fixed.*draw them by themselves, with `steerers spectrum .*run`",
        ),
        (_config(steerer=SteererConfig("C4", "none", False)), "has no steerer"),
        (_config(setting="detector"), "has no steerer"),
        (lambda run: (run / SPECTRUM).unlink(), "no spectrum.npz yet"),
        (lambda run: (run / SPECTRUM).write_bytes(b"PK"), "spectrum.npz: a damaged spectrum"),
        (lambda run: (run / SPECTRUM).write_bytes(b""), "spectrum.npz: a damaged spectrum"),
        (_records(steps=np.arange(2)), "spectrum.npz: it has no eigenvalues"),
        (_records(steps=np.arange(2), eigenvalues=np.array(["a"])), "spectrum.npz: damaged"),
        (_records(steps=np.arange(3), eigenvalues=VALUES.numpy()), "spectrum.npz: damaged: 3 steps"),
        (_records(steps=np.arange(2), eigenvalues=VALUES.real.numpy()), "spectrum.npz: damaged"),
        (_records(steps=np.arange(0), eigenvalues=VALUES[:0].numpy()), "spectrum.npz: damaged"),
        (_records(steps=np.arange(2), eigenvalues=VALUES.numpy() * np.nan), "not finite"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    run = fake_run(tmp_path / "run", VALUES)
    assert read_records(run).steps == [0, 1]
    spoil(run)
    with pytest.raises(ValueError, match=message):
        read_records(run)


def test_a_run_that_goes_on_has_no_weights(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", VALUES)
    for reader in (load_run, load_steerer):
        with pytest.raises(ValueError, match=r"no model\.safetensors: it is not a run, or has not ended yet"):
            reader(run)


def test_weights_of_another_run_are_refused(tmp_path: Path, trained: dict[str, tuple[Path, dict[str, float]]]) -> None:
    run = shutil.copytree(trained["C4"][0], tmp_path / "run")
    shutil.copy(trained["SO2"][0] / MODEL, run)
    with pytest.raises(ValueError, match=r"a steerer of SO2 for 8 dimensions, but .* has C4 and 8"):
        load_run(run)
    larger = replace(SMALL, hidden=16)
    (run / CONFIG).write_text(json.dumps(to_dict(small_config("SO2", model=ModelConfig(compact=larger)))))
    with pytest.raises(ValueError, match=r"model\.safetensors: not the weights of the configuration beside it"):
        load_run(run)
    save(run / MODEL, {"a": torch.zeros(1)}, {"step": "1"})
    with pytest.raises(ValueError, match="does not hold the steerer of a run"):
        load_steerer(run)
