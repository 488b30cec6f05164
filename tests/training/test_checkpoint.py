"""Checkpoints come back whole, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steerers.training import checkpoint
from steerers.training.checkpoint import CheckpointError


def state() -> dict[str, Any]:
    return {
        "step": 7,
        "config": {"rate": 0.1, "paths": ("a", "b"), "name": None},
        "weights": {"x": torch.randn(3, 2), "n": torch.tensor(4), "half": torch.ones(2, dtype=torch.bfloat16)},
    }


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    written = state()
    checkpoint.write(tmp_path / "c.pt", written)
    read = checkpoint.read(tmp_path / "c.pt")
    assert (read["step"], read["config"]) == (7, written["config"])
    for name, value in written["weights"].items():
        assert torch.equal(read["weights"][name], value)
        assert read["weights"][name].dtype == value.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]  # nothing temporary is left


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.write(path, {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        checkpoint.write(path, {"step": lambda: 2})
    assert checkpoint.read(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]


@given(st.data())
def test_a_damaged_checkpoint_is_named_and_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "c.pt"
    checkpoint.write(path, state())
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"c\.pt: .*(damaged|not a checkpoint)"):
        checkpoint.read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with pytest.raises(CheckpointError, match=r"c\.pt: cannot be read \(No such file"):
        checkpoint.read(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(tmp_path)
    torch.save({"step": 1}, path)
    with pytest.raises(CheckpointError, match=r"c\.pt: not a checkpoint"):
        checkpoint.read(path)
    checkpoint.write(path, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="it holds list"):
        checkpoint.read(path)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (str(tmp_path / "ran"),)

    checkpoint.write(tmp_path / "c.pt", {"step": Harmful()})
    with pytest.raises(CheckpointError, match=r"c\.pt: a damaged checkpoint"):
        checkpoint.read(tmp_path / "c.pt")
    assert not (tmp_path / "ran").exists()
