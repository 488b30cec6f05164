"""The log of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from steerers.training.log import CONFIG, LOG, SPECTRUM, RunLog, read_log, read_spectrum


def eigenvalues(step: int) -> Tensor:
    return torch.complex(torch.full((4,), float(step)), torch.arange(4.0))


def run(folder: Path, start: int, end: int, ended: str | None = None) -> None:
    """The steps after ``start`` up to ``end``: every one logged, every second with eigenvalues."""
    with RunLog(folder, start) as log:
        if start == 0:
            log.spectrum(0, eigenvalues(0))
        for step in range(start + 1, end + 1):
            log.step(step, 10, {"loss": 1 / step}, data_ms=1.0, wait_ms=0.5, network_ms=2.0)
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
        log.step(1, 10, {"loss": 1.0}, data_ms=1.0, wait_ms=0.5, network_ms=2.0)
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
        log.step(1, 2, {"loss": 1.0}, data_ms=0.0, wait_ms=0.0, network_ms=0.0)
        log.validation(1, {})
        log.flush()
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no log\.jsonl"):
        read_log(tmp_path)
    with pytest.raises(ValueError, match=r"has no spectrum\.npz"):
        read_spectrum(tmp_path)


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="TensorBoard is not installed"):
        RunLog(tmp_path, 0, tensorboard=True)
