"""Arrays of objects are read, and what else a pickle holds is not run."""

from __future__ import annotations

import codecs
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerers.datasets.safe_arrays import read_dictionary, read_named

numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text() | st.binary()
values = st.recursive(
    numbers, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


class Trap:
    """Calls something when it is unpickled by an incautious reader."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def save(path: Path, value: Any, protocol: int = 4) -> None:
    """What ``np.save`` writes of a dictionary, with any protocol."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(np.array(value, dtype=object), file, protocol=protocol)


@given(st.dictionaries(st.text() | st.integers(), values), st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(tmp_path_factory: pytest.TempPathFactory, value: dict[Any, Any], protocol: int) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.npy"
    save(path, value, protocol)
    assert read_dictionary(path) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_and_scalars_come_back(tmp_path: Path, protocol: int) -> None:
    value = {"array": np.arange(6.0).reshape(2, 3), "scalar": np.float32(0.5), "order": OrderedDict(a=np.array("x"))}
    save(tmp_path / "a.npy", value, protocol)
    found = read_dictionary(tmp_path / "a.npy")
    np.testing.assert_array_equal(found["array"], value["array"])
    assert found["scalar"] == np.float32(0.5)
    assert found["order"] == value["order"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_a_file_is_run(tmp_path: Path, protocol: int) -> None:
    trace = str(tmp_path / "trace")
    for trap in (Trap(os.mkdir, trace), Trap(eval, f"__import__('os').mkdir({trace!r})"), Trap(map, print, [1])):
        save(tmp_path / "a.npy", {"a": np.ones(2), "b": [trap]}, protocol)
        with pytest.raises(ValueError, match=r"a.npy: a damaged dictionary, or none \(it asks for .*no array needs\)"):
            read_dictionary(tmp_path / "a.npy")
        np.savez(tmp_path / "a.npz", a=np.array([trap], dtype=object))
        with pytest.raises(ValueError, match=r"a.npz: a damaged scene, or none \(it asks for"):
            read_named(tmp_path / "a.npz", ["a"], "scene")
    assert not (tmp_path / "trace").exists()


def test_bytes_are_encoded_in_one_way_alone(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", {"a": Trap(codecs.encode, "x", "rot13")}, 2)
    with pytest.raises(ValueError, match="it asks for the codec 'rot13'"):
        read_dictionary(tmp_path / "a.npy")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))])
def test_plain_arrays_are_read_too(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    np.savez_compressed(tmp_path / "a.npz", plain=array, names=np.array(["x", "y"]))
    found = read_named(tmp_path / "a.npz", ["plain", "names"])
    np.testing.assert_array_equal(found["plain"], array)
    assert found["names"].tolist() == ["x", "y"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(1), b=np.ones(1))
    save(tmp_path / "a.npy", {"a": 1, "b": 2})
    for name in ("a.npz", "a.npy"):
        assert set(read_named(tmp_path / name, ["a"])) == {"a"}
        with pytest.raises(ValueError, match=rf"{name}: it has no other, more; it has a, b"):
            read_named(tmp_path / name, ["other", "a", "more"])
    with pytest.raises(FileNotFoundError):
        read_dictionary(tmp_path / "no.npy")
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"a.npy: a scene holds a dictionary, this file a ndarray"):
        read_dictionary(tmp_path / "a.npy", "scene")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{"path": "abcdef"}], dtype=object))
    save(tmp_path / "a.npy", {"a": np.ones(100)})
    for name in ("a.npz", "a.npy"):
        whole = (tmp_path / name).read_bytes()
        for data in (b"", b"no array", whole[:60], whole[: len(whole) // 2]):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(ValueError, match=rf"{name}: a damaged file of arrays, or none"):
                read_named(tmp_path / name, ["a"])
    np.savez(tmp_path / "a.npz", a=np.array([{"path": "abcdef"}], dtype=object))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole.replace(b"abcdef", b"abcdeg"))
    with pytest.raises(ValueError, match=r"a damaged file of arrays, or none \(Bad CRC"):
        read_named(tmp_path / "a.npz", ["a"])
